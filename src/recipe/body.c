#include "recipe/body.h"

#include <stdarg.h>  /* va_list */
#include <stdio.h>   /* snprintf, vsnprintf */
#include <string.h>  /* strlen */
#include <strings.h> /* strncasecmp */

const struct toolkit_policies TOOLKIT_DEFAULTS = {
    .default_thinking = true,
    .max_tokens_thinking = MAX_TOKENS_BOUND,
    .max_tokens_plain = MAX_TOKENS_BOUND,
};

/* ---- paths ---- */

void place_path(const struct place *place, char *path, size_t capacity) {
    char whole[256] = "";
    size_t used = 0;
    if (place->parent)
        place_path(place->parent, whole, sizeof whole);
    used = strlen(whole);
    if (place->key)
        snprintf(whole + used, sizeof whole - used, "%s%s", used ? "." : "", place->key);
    else
        snprintf(whole + used, sizeof whole - used, "[%zu]", place->index);
    copy_text(path, capacity, whole, strlen(whole));
}

bool refuse_at(
    struct body_reader *reader, const char *code, const struct place *place, const char *format, ...) {
    char path[sizeof reader->refusal->param], text[sizeof reader->refusal->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    place_path(place, path, sizeof path);
    return refuse(reader->refusal, code, path, "%s", text);
}

bool refuse_value_at(
    struct body_reader *reader, const struct place *place, const char *expected, const struct json *found) {
    char path[sizeof reader->refusal->param];
    place_path(place, path, sizeof path);
    return refuse_value(reader->refusal, path, expected, found);
}

/* ---- typed members ---- */

bool is_absent(const struct json *value) {
    return !value || value->kind == JSON_NULL;
}

bool check_object(
    struct body_reader *reader, const struct place *place, const char *expected, const struct json *value) {
    return (value && value->kind == JSON_OBJECT) || refuse_value_at(reader, place, expected, value);
}

static bool take_text(struct body_reader *reader, const struct place *place, const struct json *value,
    struct text_piece *text) {
    if (!value || value->kind != JSON_STRING)
        return refuse_value_at(reader, place, "a string", value);
    *text = (struct text_piece){.data = value->text, .bytes = value->bytes};
    return true;
}

bool read_text(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, struct text_piece *text) {
    return take_text(reader, MEMBER_OF(parent, key), json_member(object, key), text);
}

bool read_optional_text(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, struct text_piece *text) {
    const struct json *value = json_member(object, key);
    *text = (struct text_piece){0};
    return is_absent(value) || take_text(reader, MEMBER_OF(parent, key), value, text);
}

bool read_optional_flag(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const struct json **flag) {
    const struct json *value = json_member(object, key);
    *flag = is_absent(value) ? NULL : value;
    return !*flag || value->kind == JSON_TRUE || value->kind == JSON_FALSE ||
           refuse_value_at(reader, MEMBER_OF(parent, key), "true or false", value);
}

bool read_array(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const struct json **array) {
    *array = json_member(object, key);
    return (*array && (*array)->kind == JSON_ARRAY) ||
           refuse_value_at(reader, MEMBER_OF(parent, key), "an array", *array);
}

bool read_optional_array(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const struct json **array) {
    if (!is_absent(json_member(object, key)))
        return read_array(reader, parent, object, key, array);
    *array = NULL;
    return true;
}

bool read_word(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const char *const *words, const char *expected, int *word) {
    const struct json *value = json_member(object, key);
    for (int i = 0; words[i]; i++) {
        if (json_is_text(value, words[i])) {
            *word = i;
            return true;
        }
    }
    return refuse_value_at(reader, MEMBER_OF(parent, key), expected, value);
}

bool read_optional_word(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const char *const *words, const char *expected, int *word) {
    return is_absent(json_member(object, key)) ||
           read_word(reader, parent, object, key, words, expected, word);
}

struct text_piece text_member(const struct json *object, const char *key) {
    const struct json *value = json_member(object, key);
    return value && value->kind == JSON_STRING ? (struct text_piece){value->text, value->bytes}
                                               : (struct text_piece){0};
}

const struct json *optional_member(const struct json *object, const char *key) {
    const struct json *value = json_member(object, key);
    return is_absent(value) ? NULL : value;
}

bool is_true(const struct json *value) {
    return value && value->kind == JSON_TRUE;
}

struct text_piece keep_path(struct body_reader *reader, const struct place *place) {
    char path[sizeof reader->refusal->param];
    place_path(place, path, sizeof path);
    return arena_copy(&reader->conversation->arena, text_of(path));
}

bool check_content(struct body_reader *reader, const struct place *place, const struct json *content,
    part_check *type_part) {
    size_t index = 0;
    if (content && content->kind == JSON_STRING)
        return true;
    if (!content || content->kind != JSON_ARRAY)
        return refuse_value_at(reader, place, "a string or an array of parts", content);
    for (const struct json *part = content->first; part; part = part->next, index++) {
        const struct place *at = ELEMENT_OF(place, index);
        if (!check_object(reader, at, "an object with a type", part) || !type_part(reader, at, part))
            return false;
    }
    return true;
}

/* ---- the model's name ---- */

bool check_model(struct body_reader *reader, const struct json *body) {
    const struct json *model = json_member(body, "model");
    for (const char *const *name = reader->model_names; *name; name++) {
        if (strlen(*name) == model->bytes && !strncasecmp(*name, model->text, model->bytes))
            return true;
    }
    return refuse_at(reader, CODE_MODEL, MEMBER_OF(NULL, "model"),
        "the model %s does not exist here: this campaign runs \"%s\"", json_excerpt(model).text,
        reader->model_names[0] ? reader->model_names[0] : "");
}

/* ---- thinking ---- */

bool read_thinking(struct body_reader *reader, const struct json *body, struct thinking_fields *fields) {
    static const char *const words[] = {"disabled", "enabled", "adaptive", NULL};
    const struct json *object = json_member(body, "thinking");
    const struct place *place = MEMBER_OF(NULL, "thinking");
    int word = 0;
    fields->has_type = !is_absent(object);
    if (!fields->has_type)
        return true;
    if (!check_object(reader, place, "an object like {\"type\": \"disabled\"}", object) ||
        !read_word(reader, place, object, "type", words, "\"enabled\", \"adaptive\" or \"disabled\"", &word))
        return false;
    fields->enabled = word > 0;
    const struct json *budget = json_member(object, "budget_tokens");
    uint64_t tokens;
    return is_absent(budget) || json_uint64(budget, &tokens) ||
           refuse_value_at(reader, MEMBER_OF(place, "budget_tokens"), "an integer of at least 0", budget);
}

bool read_effort(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, struct thinking_fields *fields) {
    static const char *const words[] = {
        "none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max", NULL};
    static const enum chat_effort efforts[] = {EFFORT_UNSPECIFIED, EFFORT_LOW, EFFORT_LOW, EFFORT_HIGH,
        EFFORT_HIGH, EFFORT_XHIGH, EFFORT_MAX, EFFORT_MAX};
    int word = -1;
    if (!read_optional_word(reader, parent, object, key, words,
            "none, minimal, low, medium, high, xhigh, ultra or max", &word))
        return false;
    fields->has_effort = word >= 0;
    fields->effort_none = word == 0;
    fields->effort = word > 0 ? efforts[word] : EFFORT_UNSPECIFIED;
    return true;
}

void set_thinking(struct body_reader *reader, const struct thinking_fields *fields) {
    struct conversation *conversation = reader->conversation;
    conversation->thinking = fields->has_type     ? fields->enabled
                             : fields->has_effort ? !fields->effort_none
                                                  : reader->policies->default_thinking;
    conversation->effort = !conversation->thinking                ? EFFORT_UNSPECIFIED
                           : fields->effort == EFFORT_UNSPECIFIED ? EFFORT_HIGH
                                                                  : fields->effort;
}

bool check_reasoning(struct body_reader *reader, const char *field, bool has_tools) {
    const struct message *missing = NULL;
    if (!reader->conversation->thinking || !reader->policies->reject_missing_reasoning)
        return true;
    for (const struct message *message = reader->conversation->messages; message; message = message->next) {
        if (message->role == ROLE_USER)
            missing = NULL;
        else if (message->role == ROLE_ASSISTANT && !message->has_reasoning && (has_tools || message->calls))
            missing = missing ? missing : message;
    }
    return !missing || refuse_at(reader, CODE_MISSING, MEMBER_OF(NULL, field),
                           "with thinking on, the reasoning of the assistant's messages after the last user "
                           "message must be "
                           "passed back");
}

/* ---- formats ---- */

static bool says_json(struct text_piece text) {
    for (size_t i = 0; i + 4 <= text.bytes; i++) {
        const char *word = text.data + i;
        if ((word[0] | 32) == 'j' && (word[1] | 32) == 's' && (word[2] | 32) == 'o' && (word[3] | 32) == 'n')
            return true;
    }
    return false;
}

bool conversation_says_json(const struct conversation *conversation) {
    for (const struct message *message = conversation->messages; message; message = message->next) {
        for (const struct content_part *part = message->parts; part; part = part->next) {
            if (part->image < 0 && says_json(part->text))
                return true;
        }
    }
    return false;
}

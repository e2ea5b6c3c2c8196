#include "recipe/chat.h"

#include "base/buffer.h"         /* struct buffer */
#include "recipe/added_tokens.h" /* struct added_tokens */

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* strlen */

enum marker { BOS, EOS, SYSTEM, USER, ASSISTANT, THINK, END_THINK, MARKERS };

static const char *const MARKER_SPELLINGS[MARKERS] = {
    [BOS] = "<｜begin▁of▁sentence｜>",
    [EOS] = "<｜end▁of▁sentence｜>",
    [SYSTEM] = "<｜System｜>",
    [USER] = "<｜User｜>",
    [ASSISTANT] = "<｜Assistant｜>",
    [THINK] = "<think>",
    [END_THINK] = "</think>",
};

/* In what an assistant said, these are the model's own marks for places in an image. */
static const char *const GROUNDING_SPELLINGS[] = {"<｜ref｜>", "<｜/ref｜>", "<｜box｜>", "<｜/box｜>",
    "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>"};

#define EFFORT_LINE                                                                                          \
    "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
#define PARAGRAPH "\n\n" /* between parts of a message, and between messages of one user turn */
#define UNSUPPORTED "is not supported by this version; leave it out"

struct chat_format {
    const struct tokenizer *tokenizer;
    int32_t markers[MARKERS];
    struct added_tokens grounding; /* those the tokenizer has */
    struct buffer plain;           /* text since the last marker: encoded in one go */
    struct buffer content;         /* of the message at hand, its parts joined */
};

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT };

/* What is known while a body's messages are walked through. */
struct walk {
    struct chat_format *format;
    struct chat_prompt *prompt;
    struct refusal *refusal;
    size_t index;      /* of the message, for paths */
    bool has_previous; /* a message was written */
    enum role previous;
    bool ended_in_prefix;
};

enum result chat_format_create(const struct tokenizer *tokenizer, struct chat_format **result) {
    enum result status = OK;
    struct chat_format *format = calloc(1, sizeof *format);
    if (!format)
        return fail(ERROR_MEMORY, "no memory for the chat format");
    format->tokenizer = tokenizer;
    for (int i = 0; i < MARKERS; i++) {
        format->markers[i] = tokenizer_added_id(tokenizer, MARKER_SPELLINGS[i]);
        if (format->markers[i] < 0) {
            status = fail(ERROR_INPUT, "tokenizer.json: added_tokens has no %s, which the chat format needs",
                MARKER_SPELLINGS[i]);
            goto done;
        }
    }
    for (size_t i = 0; i < sizeof GROUNDING_SPELLINGS / sizeof GROUNDING_SPELLINGS[0]; i++) {
        const char *spelling = GROUNDING_SPELLINGS[i];
        int32_t id = tokenizer_added_id(tokenizer, spelling);
        if (id >= 0)
            TRY_GOTO(status, added_tokens_insert(&format->grounding, spelling, strlen(spelling), id), done);
    }
    *result = format;
    format = NULL;
done:
    chat_format_free(format);
    return status;
}

void chat_format_free(struct chat_format *format) {
    if (!format)
        return;
    added_tokens_free(&format->grounding);
    buffer_free(&format->plain);
    buffer_free(&format->content);
    free(format);
}

/* ---- thinking ---- */

static bool is_absent(const struct json *value) {
    return !value || value->kind == JSON_NULL;
}

/* *given tells whether the body decides; else *thinking is untouched. */
static bool read_thinking_type(
    const struct json *body, bool *given, bool *thinking, struct refusal *refusal) {
    const struct json *object = json_member(body, "thinking");
    *given = !is_absent(object);
    if (!*given)
        return true;
    if (object->kind != JSON_OBJECT)
        return refuse_value(refusal, "thinking", "an object like {\"type\": \"disabled\"}", object);
    const struct json *type = json_member(object, "type");
    *thinking = json_is_text(type, "enabled") || json_is_text(type, "adaptive");
    if (!*thinking && !json_is_text(type, "disabled"))
        return refuse_value(refusal, "thinking.type", "\"enabled\", \"adaptive\" or \"disabled\"", type);
    return true;
}

static bool read_effort(
    const struct json *body, bool *none, enum chat_effort *effort, struct refusal *refusal) {
    static const struct {
        const char *word;
        enum chat_effort effort;
    } words[] = {{"none", EFFORT_UNSPECIFIED}, {"minimal", EFFORT_LOW}, {"low", EFFORT_LOW},
        {"medium", EFFORT_HIGH}, {"high", EFFORT_HIGH}, {"xhigh", EFFORT_XHIGH}, {"ultra", EFFORT_MAX},
        {"max", EFFORT_MAX}};
    const struct json *value = json_member(body, "reasoning_effort");
    *none = false;
    *effort = EFFORT_UNSPECIFIED;
    if (is_absent(value))
        return true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (json_is_text(value, words[i].word)) {
            *effort = words[i].effort;
            *none = i == 0;
            return true;
        }
    }
    return refuse_value(
        refusal, "reasoning_effort", "none, minimal, low, medium, high, xhigh, ultra or max", value);
}

static bool read_mode(const struct json *body, struct chat_prompt *prompt, struct refusal *refusal) {
    bool given, none;
    if (!read_thinking_type(body, &given, &prompt->thinking, refusal) ||
        !read_effort(body, &none, &prompt->effort, refusal))
        return false;
    if (!given)
        prompt->thinking = !none;
    if (!prompt->thinking)
        prompt->effort = EFFORT_UNSPECIFIED;
    return true;
}

static bool check_supported(const struct json *body, struct refusal *refusal) {
    static const char *const unsupported[] = {"functions", "function_call", "audio", "web_search_options"};
    const struct json *tools = json_member(body, "tools");
    if (!is_absent(tools) && tools->kind != JSON_ARRAY)
        return refuse_value(refusal, "tools", "an array", tools);
    if (!is_absent(tools) && tools->count)
        return refuse(refusal, CODE_UNSUPPORTED, "tools", UNSUPPORTED);
    const struct json *choice = json_member(body, "tool_choice");
    if (!is_absent(choice) && !json_is_text(choice, "none") && !json_is_text(choice, "auto"))
        return refuse(refusal, CODE_UNSUPPORTED, "tool_choice", "%s " UNSUPPORTED, json_excerpt(choice).text);
    const struct json *format = json_member(body, "response_format");
    if (!is_absent(format) && format->kind != JSON_OBJECT)
        return refuse_value(refusal, "response_format", "an object like {\"type\": \"text\"}", format);
    const struct json *type = json_member(format, "type");
    if (!is_absent(format) && !json_is_text(type, "text"))
        return refuse(
            refusal, CODE_UNSUPPORTED, "response_format.type", "%s " UNSUPPORTED, json_excerpt(type).text);
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        if (!is_absent(json_member(body, unsupported[i])))
            return refuse(refusal, CODE_UNSUPPORTED, unsupported[i], UNSUPPORTED);
    }
    return true;
}

/* ---- messages ---- */

/* Paths are made only when something is refused. */
static bool refuse_member(const struct walk *walk, const char *code, const char *member, const char *text) {
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].%s", walk->index, member);
    return refuse(walk->refusal, code, param, "%s", text);
}

static bool refuse_member_value(
    const struct walk *walk, const char *member, const char *expected, const struct json *found) {
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].%s", walk->index, member);
    return refuse_value(walk->refusal, param, expected, found);
}

static bool append_part(const struct walk *walk, const struct json *part, size_t index) {
    char member[48];
    const struct json *type = json_member(part, "type"), *text = json_member(part, "text");
    snprintf(member, sizeof member, "content[%zu]", index);
    if (part->kind != JSON_OBJECT)
        return refuse_member_value(
            walk, member, "an object like {\"type\": \"text\", \"text\": \"...\"}", part);
    snprintf(member, sizeof member, "content[%zu].type", index);
    if (!type || type->kind != JSON_STRING)
        return refuse_member_value(walk, member, "\"text\"", type);
    if (!json_is_text(type, "text")) {
        char what[192];
        snprintf(what, sizeof what, "%s " UNSUPPORTED, json_excerpt(type).text);
        return refuse_member(walk, CODE_UNSUPPORTED, member, what);
    }
    snprintf(member, sizeof member, "content[%zu].text", index);
    if (!text || text->kind != JSON_STRING)
        return refuse_member_value(walk, member, "a string", text);
    if (index > 0)
        buffer_append_text(&walk->format->content, PARAGRAPH);
    buffer_append(&walk->format->content, text->text, text->bytes);
    return true;
}

/* Joins the parts of the message's content in format->content. */
static bool read_content(const struct walk *walk, const struct json *message) {
    const struct json *content = json_member(message, "content");
    buffer_clear(&walk->format->content);
    if (content && content->kind == JSON_STRING) {
        buffer_append(&walk->format->content, content->text, content->bytes);
        return true;
    }
    if (!content || content->kind != JSON_ARRAY)
        return refuse_member_value(walk, "content", "a string or an array of text parts", content);
    size_t index = 0;
    for (const struct json *part = content->first; part; part = part->next, index++) {
        if (!append_part(walk, part, index))
            return false;
    }
    return true;
}

static enum result flush_plain(struct walk *walk) {
    struct buffer *plain = &walk->format->plain;
    if (!plain->bytes)
        return OK;
    TRY(tokenizer_encode_plain(walk->format->tokenizer, plain->data, plain->bytes, &walk->prompt->ids));
    buffer_clear(plain);
    return OK;
}

static enum result write_id(struct walk *walk, int32_t id) {
    TRY(flush_plain(walk));
    token_list_append(&walk->prompt->ids, &id, 1);
    return OK;
}

static enum result write_marker(struct walk *walk, enum marker marker) {
    return write_id(walk, walk->format->markers[marker]);
}

static void write_plain(struct walk *walk, const char *text, size_t bytes) {
    buffer_append(&walk->format->plain, text, bytes);
}

/* What an assistant said, with its grounding marks. */
static enum result write_assistant_text(struct walk *walk, const char *text, size_t bytes) {
    const char *end = text + bytes, *start;
    int32_t id;
    while (added_tokens_find(&walk->format->grounding, text, end, &start, &bytes, &id)) {
        write_plain(walk, text, (size_t)(start - text));
        TRY(write_id(walk, id));
        text = start + bytes;
    }
    write_plain(walk, text, (size_t)(end - text));
    return OK;
}

/* What stands before the first message, whose role is known by now; for an empty conversation too. */
static enum result write_opening(struct walk *walk, bool system_first) {
    const struct chat_prompt *prompt = walk->prompt;
    TRY(write_marker(walk, BOS));
    if (prompt->thinking || system_first)
        TRY(write_marker(walk, SYSTEM));
    if (prompt->thinking) {
        int budget = prompt->effort == EFFORT_LOW ? 50 : prompt->effort == EFFORT_MAX ? 100 : 75;
        buffer_printf(&walk->format->plain, EFFORT_LINE, budget);
    }
    return OK;
}

static enum result write_system(struct walk *walk) {
    const struct buffer *content = &walk->format->content;
    if (!content->bytes)
        return OK; /* left out altogether: its neighbours are adjacent */
    if (walk->has_previous)
        TRY(write_marker(walk, SYSTEM));
    else
        TRY(write_opening(walk, true));
    write_plain(walk, content->data, content->bytes);
    walk->previous = ROLE_SYSTEM;
    walk->has_previous = true;
    return OK;
}

static enum result write_user(struct walk *walk) {
    const struct buffer *content = &walk->format->content;
    if (!walk->has_previous)
        TRY(write_opening(walk, false));
    if (walk->has_previous && walk->previous == ROLE_USER)
        write_plain(walk, PARAGRAPH, strlen(PARAGRAPH));
    else
        TRY(write_marker(walk, USER));
    write_plain(walk, content->data, content->bytes);
    walk->previous = ROLE_USER;
    walk->has_previous = true;
    return OK;
}

/* A last assistant message that the answer goes on from. `reasoning` may be NULL. */
static enum result write_prefix(struct walk *walk, const struct json *reasoning) {
    const struct buffer *content = &walk->format->content;
    struct chat_prompt *prompt = walk->prompt;
    prompt->starts_in_reasoning = prompt->thinking && !content->bytes;
    walk->ended_in_prefix = true;
    TRY(write_marker(walk, prompt->thinking ? THINK : END_THINK));
    if (prompt->thinking && !is_absent(reasoning))
        TRY(write_assistant_text(walk, reasoning->text, reasoning->bytes));
    if (prompt->thinking && content->bytes)
        TRY(write_marker(walk, END_THINK));
    return write_assistant_text(walk, content->data, content->bytes);
}

/* Earlier reasoning is dropped: only a history with tools keeps it. */
static enum result write_assistant(struct walk *walk, const struct json *message, bool prefix) {
    const struct buffer *content = &walk->format->content;
    if (!walk->has_previous)
        TRY(write_opening(walk, false));
    walk->previous = ROLE_ASSISTANT;
    walk->has_previous = true;
    TRY(write_marker(walk, ASSISTANT));
    if (prefix)
        return write_prefix(walk, json_member(message, "reasoning_content"));
    TRY(write_marker(walk, END_THINK));
    TRY(write_assistant_text(walk, content->data, content->bytes));
    return write_marker(walk, EOS);
}

static bool read_role(const struct walk *walk, const struct json *message, enum role *role) {
    const struct json *value = json_member(message, "role");
    if (json_is_text(value, "system") || json_is_text(value, "developer"))
        *role = ROLE_SYSTEM;
    else if (json_is_text(value, "user"))
        *role = ROLE_USER;
    else if (json_is_text(value, "assistant"))
        *role = ROLE_ASSISTANT;
    else if (json_is_text(value, "tool") || json_is_text(value, "function") ||
             json_is_text(value, "latest_reminder")) {
        char what[192];
        snprintf(what, sizeof what,
            "%s is not supported by this version: send system, user and assistant messages",
            json_excerpt(value).text);
        return refuse_member(walk, CODE_UNSUPPORTED, "role", what);
    } else
        return refuse_member_value(walk, "role", "system, developer, user or assistant", value);
    return true;
}

static bool check_assistant(const struct walk *walk, const struct json *message, bool *prefix) {
    const struct json *reasoning = json_member(message, "reasoning_content"),
                      *flag = json_member(message, "prefix");
    if (!is_absent(json_member(message, "tool_calls")))
        return refuse_member(walk, CODE_UNSUPPORTED, "tool_calls", UNSUPPORTED);
    if (!is_absent(reasoning) && reasoning->kind != JSON_STRING)
        return refuse_member_value(walk, "reasoning_content", "a string", reasoning);
    if (!is_absent(flag) && flag->kind != JSON_TRUE && flag->kind != JSON_FALSE)
        return refuse_member_value(walk, "prefix", "true or false", flag);
    *prefix = flag && flag->kind == JSON_TRUE;
    if (*prefix && message->next)
        return refuse_member(walk, CODE_VALUE, "prefix", "true is for the last message only");
    return true;
}

static enum result write_message(struct walk *walk, const struct json *message, bool *accepted) {
    enum role role = ROLE_USER;
    bool prefix = false;
    *accepted = false;
    if (message->kind != JSON_OBJECT) {
        char param[64];
        snprintf(param, sizeof param, "messages[%zu]", walk->index);
        refuse_value(walk->refusal, param, "an object with role and content", message);
        return OK;
    }
    if (!read_role(walk, message, &role) ||
        (role == ROLE_ASSISTANT && !check_assistant(walk, message, &prefix)) || !read_content(walk, message))
        return OK;
    *accepted = true;
    switch (role) {
    case ROLE_SYSTEM:
        return write_system(walk);
    case ROLE_USER:
        return write_user(walk);
    case ROLE_ASSISTANT:
        return write_assistant(walk, message, prefix);
    }
    return OK;
}

static enum result write_ending(struct walk *walk) {
    if (!walk->has_previous)
        TRY(write_opening(walk, false));
    if (!walk->ended_in_prefix) {
        TRY(write_marker(walk, ASSISTANT));
        TRY(write_marker(walk, walk->prompt->thinking ? THINK : END_THINK));
    }
    return flush_plain(walk);
}

static bool check_messages(const struct json *messages, struct refusal *refusal) {
    if (!messages || messages->kind != JSON_ARRAY)
        return refuse_value(refusal, "messages", "an array of messages", messages);
    if (!messages->count)
        return refuse(refusal, CODE_VALUE, "messages", "expected at least one message, found an empty array");
    return true;
}

enum result chat_format_render(struct chat_format *format, const struct json *body,
    struct chat_prompt *prompt, struct refusal *refusal, bool *accepted) {
    const struct json *messages = json_member(body, "messages");
    struct walk walk = {.format = format, .prompt = prompt, .refusal = refusal};
    prompt->ids.count = 0;
    buffer_clear(&format->plain);
    *accepted = check_supported(body, refusal) && read_mode(body, prompt, refusal) &&
                check_messages(messages, refusal);
    if (!*accepted)
        return OK;
    prompt->starts_in_reasoning = prompt->thinking;
    for (const struct json *message = messages->first; message; message = message->next, walk.index++) {
        TRY(write_message(&walk, message, accepted));
        if (!*accepted)
            return OK;
    }
    return write_ending(&walk);
}

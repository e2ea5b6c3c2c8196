/* Chat Completions bodies. */
#include "recipe/body.h"
#include "recipe/name_index.h"

enum { ROLES = 6 };

static const char *const ROLE_WORDS[] = {
    "system", "user", "assistant", "tool", "latest_reminder", "developer", NULL};
static const enum message_role ROLE_MEANINGS[ROLES] = {
    ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLE_REMINDER, ROLE_SYSTEM};

/* What conversion needs of a body whose types are right. */
struct chat_body {
    struct body_reader *reader;
    const struct json *messages, *tools;
    bool has_choice;
    enum tool_choice choice;
    struct text_piece chosen;    /* data NULL: no tool is named */
    const struct json *parallel; /* whether several calls may come at once; NULL: they may */
    enum response_format format;
    const struct json *json_schema; /* response_format.json_schema */
    struct text_piece regex;
    struct thinking_fields thinking;
    struct sampling_fields sampling;
};

/* ---- types of messages ---- */

enum part_word { PART_TEXT, PART_IMAGE_URL, PART_FILE };

static const char *const PART_WORDS[] = {"text", "image_url", "file", NULL};

static bool type_image_url(struct body_reader *reader, const struct place *place, const struct json *part) {
    const struct json *image = json_member(part, "image_url");
    const struct place *at = MEMBER_OF(place, "image_url");
    struct text_piece url;
    enum image_detail detail;
    return check_object(reader, at, "an object like {\"url\": \"...\"}", image) &&
           read_text(reader, at, image, "url", &url) && read_detail(reader, at, image, &detail);
}

static bool type_part(struct body_reader *reader, const struct place *place, const struct json *part) {
    int word = 0;
    struct text_piece text;
    if (!read_word(reader, place, part, "type", PART_WORDS, "text, image_url or file", &word))
        return false;
    switch ((enum part_word)word) {
    case PART_TEXT:
        return read_text(reader, place, part, "text", &text);
    case PART_IMAGE_URL:
        return type_image_url(reader, place, part);
    case PART_FILE:
        return read_optional_text(reader, place, part, "file_id", &text) &&
               read_optional_text(reader, place, part, "file_data", &text) &&
               read_optional_text(reader, place, part, "filename", &text);
    }
    return true;
}

static bool type_call(struct body_reader *reader, const struct place *place, const struct json *call) {
    static const char *const words[] = {"function", NULL};
    const struct json *function = json_member(call, "function");
    const struct place *at = MEMBER_OF(place, "function");
    struct text_piece text;
    int word;
    return check_object(reader, place, "an object with id, type and function", call) &&
           read_text(reader, place, call, "id", &text) &&
           read_word(reader, place, call, "type", words, "\"function\"", &word) &&
           check_object(reader, at, "an object with name and arguments", function) &&
           read_text(reader, at, function, "name", &text) &&
           read_text(reader, at, function, "arguments", &text);
}

static bool type_assistant(
    struct body_reader *reader, const struct place *place, const struct json *message) {
    const struct json *content = json_member(message, "content"), *calls, *prefix;
    const struct place *at = MEMBER_OF(place, "tool_calls");
    struct text_piece reasoning;
    size_t index = 0;
    if (!is_absent(content) && !check_content(reader, MEMBER_OF(place, "content"), content, type_part))
        return false;
    if (!read_optional_text(reader, place, message, "reasoning_content", &reasoning) ||
        !read_optional_flag(reader, place, message, "prefix", &prefix) ||
        !read_optional_array(reader, place, message, "tool_calls", &calls))
        return false;
    for (const struct json *call = calls ? calls->first : NULL; call; call = call->next, index++) {
        if (!type_call(reader, ELEMENT_OF(at, index), call))
            return false;
    }
    return true;
}

static bool read_role(
    struct body_reader *reader, const struct place *place, const struct json *message, int *role) {
    const char *expected = reader->toolkit ? "system, user, assistant, tool or latest_reminder"
                                           : "system, developer, user, assistant, tool or latest_reminder";
    if (!read_word(reader, place, message, "role", ROLE_WORDS, expected, role))
        return false;
    /* The toolkit does not know "developer" here. */
    return !reader->toolkit || *role < ROLES - 1 ||
           refuse_value_at(reader, MEMBER_OF(place, "role"), expected, json_member(message, "role"));
}

static bool type_message(struct body_reader *reader, const struct place *place, const struct json *message) {
    int role = 0;
    struct text_piece text;
    if (!check_object(reader, place, "an object with role and content", message) ||
        !read_role(reader, place, message, &role) ||
        !read_optional_text(reader, place, message, "name", &text))
        return false;
    switch (ROLE_MEANINGS[role]) {
    case ROLE_ASSISTANT:
        return type_assistant(reader, place, message);
    case ROLE_REMINDER:
        return read_text(reader, place, message, "content", &text);
    case ROLE_TOOL:
        if (!read_text(reader, place, message, "tool_call_id", &text))
            return false;
        break;
    case ROLE_SYSTEM:
    case ROLE_USER:
        break;
    }
    return check_content(reader, MEMBER_OF(place, "content"), json_member(message, "content"), type_part);
}

static bool type_messages(struct chat_body *body, const struct json *object) {
    const struct place *place = MEMBER_OF(NULL, "messages");
    size_t index = 0;
    body->messages = json_member(object, "messages");
    if (!body->messages || body->messages->kind != JSON_ARRAY)
        return refuse_value_at(body->reader, place, "an array of messages", body->messages);
    for (const struct json *message = body->messages->first; message; message = message->next, index++) {
        if (!type_message(body->reader, ELEMENT_OF(place, index), message))
            return false;
    }
    return true;
}

/* ---- types of tools and formats ---- */

static bool type_tool(struct body_reader *reader, const struct place *place, const struct json *tool) {
    static const char *const words[] = {"function", NULL};
    const struct json *function = json_member(tool, "function"), *strict;
    const struct place *at = MEMBER_OF(place, "function");
    struct text_piece text;
    int word;
    return check_object(reader, place, "an object with type and function", tool) &&
           read_word(reader, place, tool, "type", words, "\"function\"", &word) &&
           check_object(reader, at, "an object with a name", function) &&
           read_text(reader, at, function, "name", &text) &&
           read_optional_text(reader, at, function, "description", &text) &&
           read_optional_flag(reader, at, function, "strict", &strict);
}

static bool type_tools(struct chat_body *body, const struct json *object) {
    const struct place *place = MEMBER_OF(NULL, "tools");
    size_t index = 0;
    if (!read_optional_array(body->reader, NULL, object, "tools", &body->tools))
        return false;
    for (const struct json *tool = body->tools ? body->tools->first : NULL; tool;
         tool = tool->next, index++) {
        if (!type_tool(body->reader, ELEMENT_OF(place, index), tool))
            return false;
    }
    return true;
}

static bool type_choice(struct chat_body *body, const struct json *object) {
    static const char *const words[] = {"auto", "none", "required", NULL};
    static const char *const kinds[] = {"function", NULL};
    static const char expected[] = "none, auto, required or an object like {\"type\": \"function\", "
                                   "\"function\": {\"name\": \"...\"}}";
    struct body_reader *reader = body->reader;
    const struct json *choice = json_member(object, "tool_choice");
    const struct place *place = MEMBER_OF(NULL, "tool_choice");
    const struct json *function = json_member(choice, "function");
    const struct place *at = MEMBER_OF(place, "function");
    int word = 0;
    if (is_absent(choice))
        return true;
    body->has_choice = true;
    if (choice->kind != JSON_OBJECT || !json_member(choice, "type")) {
        if (!read_word(reader, NULL, object, "tool_choice", words, expected, &word))
            return false;
        body->choice = (enum tool_choice)word;
        return true;
    }
    return read_word(reader, place, choice, "type", kinds, "\"function\"", &word) &&
           check_object(reader, at, "an object with a name", function) &&
           read_text(reader, at, function, "name", &body->chosen);
}

static bool type_format(struct chat_body *body, const struct json *object) {
    static const char *const words[] = {"text", "json_object", "json_schema", "regex", NULL};
    struct body_reader *reader = body->reader;
    const struct json *format = json_member(object, "response_format"), *strict;
    const struct place *place = MEMBER_OF(NULL, "response_format");
    const struct place *at = MEMBER_OF(place, "json_schema");
    struct text_piece name;
    int word = 0;
    if (is_absent(format))
        return true;
    if (!check_object(reader, place, "an object like {\"type\": \"text\"}", format) ||
        !read_word(reader, place, format, "type", words, "text, json_object, json_schema or regex", &word))
        return false;
    body->format = (enum response_format)word;
    if (!read_whitespace(reader, place, format))
        return false;
    if (body->format == FORMAT_REGEX)
        return read_text(reader, place, format, "regex", &body->regex);
    if (body->format != FORMAT_JSON_SCHEMA)
        return true;
    body->json_schema = json_member(format, "json_schema");
    if (!check_object(reader, at, "an object with a schema", body->json_schema) ||
        !read_optional_text(reader, at, body->json_schema, "name", &name) ||
        !read_optional_flag(reader, at, body->json_schema, "strict", &strict))
        return false;
    return json_member(body->json_schema, "schema") ||
           refuse_value_at(reader, MEMBER_OF(at, "schema"), "a JSON Schema", NULL);
}

static bool check_types(struct chat_body *body, const struct json *object, bool sampling) {
    struct body_reader *reader = body->reader;
    struct text_piece model;
    return read_text(reader, NULL, object, "model", &model) && type_messages(body, object) &&
           read_thinking(reader, object, &body->thinking) &&
           read_effort(reader, NULL, object, "reasoning_effort", &body->thinking) &&
           type_tools(body, object) && type_choice(body, object) && type_format(body, object) &&
           read_optional_flag(reader, NULL, object, "parallel_tool_calls", &body->parallel) &&
           (!sampling || type_sampling(reader, KIND_CHAT, object, &body->sampling));
}

/* ---- messages ---- */

static bool add_file(
    struct body_reader *reader, const struct place *place, const struct json *part, struct message *message) {
    struct text_piece id = text_member(part, "file_id");
    struct image_reference image = {.reference = text_member(part, "file_data"), .detail = DETAIL_HIGH};
    const struct place *at = MEMBER_OF(place, "file_data");
    if (id.data && image.reference.data)
        return refuse_at(reader, CODE_VALUE, place, "give file_id or file_data, not both");
    if (id.data)
        return refuse_at(reader, CODE_UNSUPPORTED, MEMBER_OF(place, "file_id"),
            "stored files are not supported; pass the image itself as a data URL in file_data");
    if (!image.reference.data)
        return refuse_at(
            reader, CODE_MISSING, place, "expected file_data, found neither file_id nor file_data");
    if (!settle_file(reader, at, &image))
        return false;
    image.path = keep_path(reader, at);
    message_add_image(reader->conversation, message, &image);
    return true;
}

static bool add_image(
    struct body_reader *reader, const struct place *place, const struct json *part, struct message *message) {
    const struct json *object = json_member(part, "image_url");
    const struct place *outer = MEMBER_OF(place, "image_url"), *at = MEMBER_OF(outer, "url");
    struct image_reference image = {.reference = text_member(object, "url")};
    if (!read_detail(reader, outer, object, &image.detail) || !settle_image(reader, at, &image))
        return false;
    image.path = keep_path(reader, at);
    message_add_image(reader->conversation, message, &image);
    return true;
}

static bool add_part(
    struct body_reader *reader, const struct place *place, const struct json *part, struct message *message) {
    const struct json *type = json_member(part, "type");
    if (json_is_text(type, "text")) {
        message_add_text(reader->conversation, message, text_member(part, "text"));
        return true;
    }
    if (message->role == ROLE_ASSISTANT)
        return refuse_at(reader, CODE_VALUE, place, "an assistant's message cannot hold an image");
    return json_is_text(type, "file") ? add_file(reader, place, part, message)
                                      : add_image(reader, place, part, message);
}

static bool add_content(struct body_reader *reader, const struct place *place, const struct json *content,
    struct message *message) {
    size_t index = 0;
    if (content->kind == JSON_STRING) {
        message_add_text(reader->conversation, message, (struct text_piece){content->text, content->bytes});
        return true;
    }
    for (const struct json *part = content->first; part; part = part->next, index++) {
        if (!add_part(reader, ELEMENT_OF(place, index), part, message))
            return false;
    }
    return true;
}

/* The calls' ids, each found to be there once. */
static bool add_calls(struct body_reader *reader, const struct place *place, const struct json *calls,
    struct message *message, struct name_index *ids) {
    size_t index = 0;
    *ids = name_index_create(&reader->conversation->arena, calls->count);
    for (const struct json *value = calls->first; value; value = value->next, index++) {
        const struct json *function = json_member(value, "function");
        struct tool_call *call = message_add_call(reader->conversation, message);
        call->id = text_member(value, "id");
        call->name = text_member(function, "name");
        call->arguments = text_member(function, "arguments");
        const struct place *at = ELEMENT_OF(place, index);
        if (name_index_add(ids, call->id, call))
            return refuse_at(reader, CODE_VALUE, MEMBER_OF(at, "id"), "the id \"%.*s\" stands there twice",
                call->id.bytes < 64 ? (int)call->id.bytes : 64, call->id.data);
    }
    return true;
}

/* A message with calls is followed at once by one tool message for each of them, in any order. */
static bool check_results(struct body_reader *reader, const struct place *place, size_t index,
    const struct json *value, const struct message *message, const struct name_index *ids) {
    struct name_index seen = name_index_create(&reader->conversation->arena, message->call_count);
    const struct json *result = value->next;
    const struct place *messages = place->parent;
    for (size_t i = 0; i < message->call_count; i++, result = result->next) {
        if (!result || !json_is_text(json_member(result, "role"), "tool"))
            return refuse_at(reader, CODE_VALUE, MEMBER_OF(place, "tool_calls"),
                "%zu calls must be followed by %zu tool messages, found %zu", message->call_count,
                message->call_count, i);
    }
    result = value->next;
    for (size_t i = 0; i < message->call_count; i++, result = result->next) {
        struct text_piece id = text_member(result, "tool_call_id");
        const struct place *at = ELEMENT_OF(messages, index + 1 + i);
        int shown = id.bytes < 64 ? (int)id.bytes : 64;
        if (!name_index_find(ids, id))
            return refuse_at(reader, CODE_VALUE, MEMBER_OF(at, "tool_call_id"),
                "the preceding message has no call with the id \"%.*s\"", shown, id.data);
        if (name_index_add(&seen, id, &seen))
            return refuse_at(reader, CODE_VALUE, MEMBER_OF(at, "tool_call_id"),
                "the call \"%.*s\" is answered twice", shown, id.data);
    }
    return true;
}

static bool add_assistant(struct body_reader *reader, const struct place *place, size_t index,
    const struct json *value, struct message *message, size_t *results) {
    const struct json *content = json_member(value, "content"), *calls = json_member(value, "tool_calls");
    const struct place *at = MEMBER_OF(place, "tool_calls");
    struct name_index ids;
    message->reasoning = text_member(value, "reasoning_content");
    message->has_reasoning = message->reasoning.data != NULL;
    message->prefix = is_true(json_member(value, "prefix"));
    if (is_absent(content) && is_absent(calls))
        return refuse_at(reader, CODE_MISSING, MEMBER_OF(place, "content"),
            "an assistant's message needs content or tool_calls");
    if (!is_absent(content) && !add_content(reader, MEMBER_OF(place, "content"), content, message))
        return false;
    if (is_absent(calls))
        return true;
    if (!calls->count)
        return refuse_at(reader, CODE_VALUE, at, "expected at least one call, found an empty array");
    *results = calls->count;
    return add_calls(reader, at, calls, message, &ids) &&
           check_results(reader, place, index, value, message, &ids);
}

/* `results`: how many tool messages may still follow. */
static bool add_message(struct body_reader *reader, const struct place *place, size_t index,
    const struct json *value, size_t *results) {
    int role = 0;
    if (!read_role(reader, place, value, &role))
        return false;
    struct message *before = reader->conversation->last_message;
    struct message *message = conversation_add_message(reader->conversation, ROLE_MEANINGS[role]);
    if (message->role == ROLE_ASSISTANT)
        return add_assistant(reader, place, index, value, message, results);
    if (message->role == ROLE_TOOL) {
        if (!*results)
            return refuse_at(reader, CODE_VALUE, place,
                "a tool message must answer a call of the assistant's message before it");
        --*results;
        message->call_id = text_member(value, "tool_call_id");
    }
    if (!add_content(reader, MEMBER_OF(place, "content"), json_member(value, "content"), message))
        return false;
    bool empty = message->role == ROLE_SYSTEM && message_is_empty(message);
    /* Of reminders in a row the toolkit keeps the first. */
    bool repeated =
        reader->toolkit && message->role == ROLE_REMINDER && before && before->role == ROLE_REMINDER;
    if (empty || repeated) /* its neighbours are adjacent */
        conversation_drop_last(reader->conversation, before);
    return true;
}

static bool add_messages(struct chat_body *body) {
    const struct place *place = MEMBER_OF(NULL, "messages");
    size_t index = 0, results = 0;
    for (const struct json *message = body->messages->first; message; message = message->next, index++) {
        if (!add_message(body->reader, ELEMENT_OF(place, index), index, message, &results))
            return false;
    }
    return index ||
           refuse_at(body->reader, CODE_VALUE, place, "expected at least one message, found an empty array");
}

static bool check_prefix(struct chat_body *body) {
    struct body_reader *reader = body->reader;
    const struct place *place = MEMBER_OF(NULL, "messages");
    size_t index = 0;
    for (const struct message *message = reader->conversation->messages; message;
         message = message->next, index++) {
        const struct place *outer = ELEMENT_OF(place, index), *at = MEMBER_OF(outer, "prefix");
        if (!message->prefix)
            continue;
        if (message->next)
            return refuse_at(reader, CODE_VALUE, at, "true is for the last message only");
    }
    return true;
}

static bool check_prefix_alone(struct chat_body *body) {
    const struct conversation *conversation = body->reader->conversation;
    const struct place *place = MEMBER_OF(NULL, "messages");
    const struct place *last = ELEMENT_OF(place, body->messages->count - 1), *at = MEMBER_OF(last, "prefix");
    if (!conversation->last_message || !conversation->last_message->prefix)
        return true;
    if (body->format == FORMAT_JSON_OBJECT)
        return refuse_at(body->reader, CODE_VALUE, at, "a prefix cannot go with response_format json_object");
    return !body->tools || !body->tools->count ||
           refuse_at(body->reader, CODE_VALUE, at, "a prefix cannot go with tools");
}

static bool check_json_word(struct chat_body *body) {
    return body->format != FORMAT_JSON_OBJECT || conversation_says_json(body->reader->conversation) ||
           refuse_at(body->reader, CODE_VALUE, MEMBER_OF(NULL, "messages"),
               "the word \"json\" must stand in a message for response_format json_object");
}

/* ---- tools and format ---- */

static bool check_tool_names(struct chat_body *body) {
    const struct place *place = MEMBER_OF(NULL, "tools");
    size_t index = 0;
    for (const struct json *tool = body->tools ? body->tools->first : NULL; tool;
         tool = tool->next, index++) {
        const struct place *at = ELEMENT_OF(place, index);
        if (!check_tool_name(
                body->reader, MEMBER_OF(at, "function"), text_member(json_member(tool, "function"), "name")))
            return false;
    }
    return true;
}

static bool add_tools(struct chat_body *body) {
    struct body_reader *reader = body->reader;
    struct conversation *conversation = reader->conversation;
    const struct place *place = MEMBER_OF(NULL, "tools");
    size_t index = 0;
    struct name_index names = name_index_create(&conversation->arena, body->tools ? body->tools->count : 0);
    for (const struct json *value = body->tools ? body->tools->first : NULL; value;
         value = value->next, index++) {
        const struct json *function = json_member(value, "function");
        struct tool tool = {.name = text_member(function, "name"),
            .description = text_member(function, "description"),
            .parameters = optional_member(function, "parameters"),
            .strict = optional_member(function, "strict")};
        const struct place *element = ELEMENT_OF(place, index), *at = MEMBER_OF(element, "function");
        if (body->choice != TOOL_CHOICE_NONE &&
            (!check_unique_name(reader, place, &names, &tool) ||
                !settle_parameters(reader, MEMBER_OF(at, "parameters"), &tool)))
            return false;
        tool_list_add(conversation, &conversation->tools, &tool);
    }
    if (body->choice == TOOL_CHOICE_NONE) /* tools that cannot be called are not looked at */
        return true;
    return check_strictness(reader, place, &conversation->tools);
}

static bool set_choice(struct chat_body *body) {
    body->reader->conversation->tool_choice = body->choice;
    body->reader->conversation->one_call = body->parallel && !is_true(body->parallel);
    return (!body->chosen.data || !body->reader->conversation->tools.count ||
               choose_tool(body->reader, body->chosen)) &&
           check_choice_against_thinking(body->reader) && check_prefix_alone(body);
}

static bool set_format(struct chat_body *body, const struct json **constraint) {
    struct conversation *conversation = body->reader->conversation;
    const struct place *place = MEMBER_OF(NULL, "response_format"), *at = MEMBER_OF(place, "json_schema");
    const struct json *strict = json_member(body->json_schema, "strict");
    conversation->format = body->format;
    if (body->format != FORMAT_JSON_SCHEMA)
        return true;
    conversation->schema = json_member(body->json_schema, "schema");
    return settle_schema(body->reader, MEMBER_OF(at, "schema"), conversation->schema,
        strict && strict->kind == JSON_TRUE, constraint);
}

bool chat_body_read(
    struct body_reader *reader, const struct json *object, struct toolkit_sampling *sampling) {
    struct chat_body body = {.reader = reader};
    const struct json *constraint = NULL;
    if (!check_types(&body, object, sampling) || !check_model(reader, object))
        return false;
    set_thinking(reader, &body.thinking);
    if (!check_tool_names(&body) || !add_messages(&body) ||
        !check_reasoning(reader, "messages", body.tools && body.tools->count) || !check_prefix(&body) ||
        !check_json_word(&body) || !add_tools(&body) || !set_choice(&body))
        return false;
    if (sampling && !settle_stops(reader, &body.sampling, sampling))
        return false;
    if (!set_format(&body, &constraint))
        return false;
    if (sampling && !settle_sampling(reader, KIND_CHAT, &body.sampling, sampling))
        return false;
    conversation_finish(reader->conversation, constraint, body.regex);
    return true;
}

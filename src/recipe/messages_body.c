/* Messages bodies. */
#include "recipe/body.h"
#include "recipe/name_index.h"
#include "recipe/python_json.h" /* compact_json_append */

enum block_kind {
    BLOCK_TEXT,
    BLOCK_IMAGE,
    BLOCK_DOCUMENT,
    BLOCK_TOOL_REFERENCE, /* in tool results only */
    BLOCK_THINKING,
    BLOCK_TOOL_USE,
    BLOCK_TOOL_RESULT,
    BLOCK_TOOL_ADDITION,
    BLOCK_SERVER_TOOL_USE,
    BLOCK_SERVER_RESULT,
    BLOCK_REDACTED_THINKING, /* not the toolkit's: dropped */
    BLOCK_KINDS,
};

static const char *const BLOCK_WORDS[] = {"text", "image", "document", "tool_reference", "thinking",
    "tool_use", "tool_result", "tool_addition", "server_tool_use", "web_search_tool_result",
    "redacted_thinking", NULL};

enum choice_word { CHOICE_AUTO, CHOICE_NONE, CHOICE_ANY, CHOICE_TOOL };

/* What conversion needs of a body whose types are right, and what is known while messages are walked
 * through. */
struct messages_body {
    struct body_reader *reader;
    const struct json *system, *messages, *tools;
    enum choice_word choice;
    struct text_piece chosen;
    const struct json *one_call; /* whether one call at most may come; NULL: no */
    const struct json *schema;   /* of output_config.format, as the next; NULL: none */
    struct text_piece regex;     /* data NULL: none */
    struct thinking_fields thinking;
    struct sampling_fields sampling;

    struct name_index known_tools; /* name -> struct tool */
    struct name_index uses;        /* ids of the last assistant message's calls -> struct pending_use */
    struct pending_use *pending;   /* these calls */
    size_t pending_count;          /* those without a result */
};

struct pending_use {
    struct pending_use *next;
    struct text_piece id;
    bool answered;
};

static enum block_kind block_kind(const struct json *block) {
    const struct json *type = json_member(block, "type");
    int kind = 0;
    while (kind < BLOCK_KINDS - 1 && !json_is_text(type, BLOCK_WORDS[kind]))
        kind++;
    return (enum block_kind)kind;
}

/* ---- types of blocks ---- */

static bool type_image(struct body_reader *reader, const struct place *place, const struct json *block) {
    static const char *const words[] = {"base64", "url", "file", NULL};
    static const char *const media[] = {
        "image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp", NULL};
    const struct json *source = json_member(block, "source");
    const struct place *at = MEMBER_OF(place, "source");
    struct text_piece text;
    int word = 0;
    if (!check_object(reader, at, "an object like {\"type\": \"base64\", ...}", source) ||
        !read_word(reader, at, source, "type", words, "base64, url or file", &word))
        return false;
    if (word > 0)
        return read_text(reader, at, source, word == 1 ? "url" : "file_id", &text);
    return read_word(reader, at, source, "media_type", media,
               "image/jpeg, image/jpg, image/png, image/gif or image/webp", &word) &&
           read_text(reader, at, source, "data", &text);
}

static bool type_result_block(
    struct body_reader *reader, const struct place *place, const struct json *block);

static bool type_tool_result(
    struct body_reader *reader, const struct place *place, const struct json *block) {
    const struct json *content = optional_member(block, "content"), *flag;
    struct text_piece id;
    return read_text(reader, place, block, "tool_use_id", &id) &&
           read_optional_flag(reader, place, block, "is_error", &flag) &&
           (!content || check_content(reader, MEMBER_OF(place, "content"), content, type_result_block));
}

static bool type_tool_addition(
    struct body_reader *reader, const struct place *place, const struct json *block) {
    static const char *const words[] = {"tool_reference", NULL};
    const struct json *tool = json_member(block, "tool");
    const struct place *at = MEMBER_OF(place, "tool");
    struct text_piece name;
    int word;
    return check_object(
               reader, at, "an object like {\"type\": \"tool_reference\", \"name\": \"...\"}", tool) &&
           read_word(reader, at, tool, "type", words, "\"tool_reference\"", &word) &&
           read_text(reader, at, tool, "name", &name);
}

static bool type_tool_use(struct body_reader *reader, const struct place *place, const struct json *block) {
    struct text_piece text;
    return read_text(reader, place, block, "id", &text) && read_text(reader, place, block, "name", &text) &&
           (json_member(block, "input") ||
               refuse_value_at(reader, MEMBER_OF(place, "input"), "an object", NULL));
}

static bool type_known_block(
    struct body_reader *reader, const struct place *place, const struct json *block) {
    struct text_piece text;
    switch (block_kind(block)) {
    case BLOCK_TEXT:
        return read_text(reader, place, block, "text", &text);
    case BLOCK_IMAGE:
        return type_image(reader, place, block);
    case BLOCK_DOCUMENT:
        return check_object(reader, MEMBER_OF(place, "source"), "an object", json_member(block, "source")) &&
               read_optional_text(
                   reader, MEMBER_OF(place, "source"), json_member(block, "source"), "media_type", &text);
    case BLOCK_TOOL_REFERENCE:
        return read_text(reader, place, block, "tool_name", &text);
    case BLOCK_THINKING:
        return read_text(reader, place, block, "thinking", &text) &&
               read_optional_text(reader, place, block, "signature", &text);
    case BLOCK_TOOL_USE:
    case BLOCK_SERVER_TOOL_USE:
        return type_tool_use(reader, place, block);
    case BLOCK_TOOL_RESULT:
        return type_tool_result(reader, place, block);
    case BLOCK_TOOL_ADDITION:
        return type_tool_addition(reader, place, block);
    case BLOCK_SERVER_RESULT:
        return read_text(reader, place, block, "tool_use_id", &text) &&
               (json_member(block, "content") ||
                   refuse_value_at(reader, MEMBER_OF(place, "content"), "an array", NULL));
    case BLOCK_REDACTED_THINKING:
    case BLOCK_KINDS:
        break;
    }
    return true;
}

static bool type_result_block(
    struct body_reader *reader, const struct place *place, const struct json *block) {
    static const char *const words[] = {"text", "image", "document", "tool_reference", NULL};
    int word;
    return read_word(reader, place, block, "type", words, "text, image, document or tool_reference", &word) &&
           type_known_block(reader, place, block);
}

static bool type_block(struct body_reader *reader, const struct place *place, const struct json *block) {
    static const char expected[] = "text, image, document, thinking, tool_use, tool_result, tool_addition, "
                                   "server_tool_use or web_search_tool_result";
    int word = 0;
    if (!read_word(reader, place, block, "type", BLOCK_WORDS, expected, &word))
        return false;
    if (word == BLOCK_TOOL_REFERENCE || (word == BLOCK_REDACTED_THINKING && reader->toolkit))
        return refuse_value_at(reader, MEMBER_OF(place, "type"), expected, json_member(block, "type"));
    return type_known_block(reader, place, block);
}

static bool type_system_block(
    struct body_reader *reader, const struct place *place, const struct json *block) {
    static const char *const words[] = {"text", NULL};
    struct text_piece text;
    int word;
    return read_word(reader, place, block, "type", words, "\"text\"", &word) &&
           read_text(reader, place, block, "text", &text);
}

/* ---- types of the body ---- */

static const char *const ROLE_WORDS[] = {"user", "assistant", "system", NULL};

static bool type_messages(struct messages_body *body, const struct json *object) {
    struct body_reader *reader = body->reader;
    const struct place *place = MEMBER_OF(NULL, "messages");
    size_t index = 0;
    int word;
    if (!read_array(reader, NULL, object, "messages", &body->messages))
        return false;
    for (const struct json *message = body->messages->first; message; message = message->next, index++) {
        const struct place *at = ELEMENT_OF(place, index);
        if (!check_object(reader, at, "an object with role and content", message) ||
            !read_word(reader, at, message, "role", ROLE_WORDS, "user, assistant or system", &word) ||
            !check_content(reader, MEMBER_OF(at, "content"), json_member(message, "content"), type_block))
            return false;
    }
    return true;
}

static bool type_tool(struct body_reader *reader, const struct place *place, const struct json *tool) {
    const struct json *flag;
    struct text_piece text;
    if (!check_object(reader, place, "an object with name and input_schema", tool))
        return false;
    if (json_member(tool, "type")) /* a tool that a server runs needs nothing else */
        return read_text(reader, place, tool, "type", &text) &&
               (text_equal(text, text_of("custom")) && !reader->toolkit
                       ? read_text(reader, place, tool, "name", &text)
                       : read_optional_text(reader, place, tool, "name", &text));
    return read_text(reader, place, tool, "name", &text) &&
           read_optional_text(reader, place, tool, "description", &text) &&
           read_optional_flag(reader, place, tool, "defer_loading", &flag) &&
           (reader->toolkit || read_optional_flag(reader, place, tool, "strict", &flag));
}

static bool type_tools(struct messages_body *body, const struct json *object) {
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

static bool type_choice(struct messages_body *body, const struct json *object) {
    static const char *const words[] = {"auto", "none", "any", "tool", NULL};
    struct body_reader *reader = body->reader;
    const struct json *choice = optional_member(object, "tool_choice");
    const struct place *place = MEMBER_OF(NULL, "tool_choice");
    int word = 0;
    if (!choice)
        return true;
    if (!check_object(reader, place, "an object like {\"type\": \"auto\"}", choice) ||
        !read_word(reader, place, choice, "type", words, "auto, any, tool or none", &word) ||
        !read_optional_flag(reader, place, choice, "disable_parallel_tool_use", &body->one_call))
        return false;
    body->choice = (enum choice_word)word;
    return body->choice != CHOICE_TOOL || read_text(reader, place, choice, "name", &body->chosen);
}

/* Beyond the toolkit: the schema or pattern that the answer is held to. */
static bool type_format(struct messages_body *body, const struct place *parent, const struct json *config) {
    static const char *const words[] = {"json_schema", "regex", NULL};
    struct body_reader *reader = body->reader;
    const struct json *format = optional_member(config, "format");
    const struct place *place = MEMBER_OF(parent, "format");
    int word = 0;
    if (!format || reader->toolkit)
        return true;
    if (!check_object(reader, place, "an object like {\"type\": \"json_schema\", \"schema\": ...}", format) ||
        !read_word(reader, place, format, "type", words, "json_schema or regex", &word) ||
        !read_whitespace(reader, place, format))
        return false;
    if (word == 1)
        return read_text(reader, place, format, "regex", &body->regex);
    body->schema = json_member(format, "schema");
    return body->schema || refuse_value_at(reader, MEMBER_OF(place, "schema"), "a JSON Schema", NULL);
}

static bool type_settings(struct messages_body *body, const struct json *object) {
    struct body_reader *reader = body->reader;
    const struct json *config = optional_member(object, "output_config");
    const struct json *metadata = optional_member(object, "metadata");
    const struct place *place = MEMBER_OF(NULL, "output_config"), *at = MEMBER_OF(NULL, "metadata");
    struct text_piece text;
    if (config && (!check_object(reader, place, "an object like {\"effort\": \"high\"}", config) ||
                      !read_effort(reader, place, config, "effort", &body->thinking) ||
                      !type_format(body, place, config)))
        return false;
    return !metadata || !reader->toolkit ||
           (check_object(reader, at, "an object", metadata) &&
               read_optional_text(reader, at, metadata, "user_id", &text));
}

static bool check_types(struct messages_body *body, const struct json *object, bool sampling) {
    struct body_reader *reader = body->reader;
    struct text_piece text;
    body->system = optional_member(object, "system");
    return read_text(reader, NULL, object, "model", &text) && type_messages(body, object) &&
           (!body->system ||
               check_content(reader, MEMBER_OF(NULL, "system"), body->system, type_system_block)) &&
           read_thinking(reader, object, &body->thinking) && type_settings(body, object) &&
           type_tools(body, object) && type_choice(body, object) &&
           (!sampling || type_sampling(reader, KIND_MESSAGES, object, &body->sampling));
}

/* ---- tools ---- */

static bool is_web_search(struct text_piece type) {
    static const char word[] = "web_search";
    return type.bytes >= sizeof word - 1 && !memcmp(type.data, word, sizeof word - 1);
}

/* A tool that a server runs is refused or dropped; "custom" says that it is none, to all but the toolkit. */
static bool check_tool_type(
    struct body_reader *reader, const struct place *place, const struct json *value, bool *dropped) {
    struct text_piece type = text_member(value, "type");
    *dropped = false;
    if (!type.data || (!reader->toolkit && text_equal(type, text_of("custom"))))
        return true;
    *dropped = reader->policies->messages_drop_web_search && is_web_search(type);
    return *dropped || refuse_at(reader, CODE_UNSUPPORTED, MEMBER_OF(place, "type"),
                           "tools that a server runs are not supported, found %s",
                           json_excerpt(json_member(value, "type")).text);
}

static bool add_tools(struct messages_body *body) {
    static const struct json null = {.kind = JSON_NULL};
    struct body_reader *reader = body->reader;
    struct conversation *conversation = reader->conversation;
    const struct place *place = MEMBER_OF(NULL, "tools");
    size_t index = 0, deferred = 0;
    for (const struct json *value = body->tools ? body->tools->first : NULL; value;
         value = value->next, index++) {
        const struct place *at = ELEMENT_OF(place, index);
        const struct json *schema = json_member(value, "input_schema");
        struct tool tool = {.name = text_member(value, "name"),
            .description = text_member(value, "description"),
            .parameters = schema ? schema : &null,
            .is_held = !reader->toolkit && is_true(json_member(value, "strict")),
            .deferred = is_true(json_member(value, "defer_loading"))};
        bool dropped;
        if (!check_tool_type(reader, at, value, &dropped) ||
            (!dropped && !check_tool_name(reader, at, tool.name)))
            return false;
        if (dropped) {
            if (body->choice == CHOICE_TOOL && text_equal(body->chosen, tool.name))
                body->choice = CHOICE_AUTO;
            continue;
        }
        deferred += tool.deferred;
        tool_list_add(conversation, &conversation->tools, &tool);
    }
    if (deferred && deferred == conversation->tools.count)
        return refuse_at(
            reader, CODE_VALUE, place, "all tools have defer_loading true: at least one must not");
    body->known_tools = name_index_create(&conversation->arena, conversation->tools.count);
    for (struct tool *tool = conversation->tools.first; tool; tool = tool->next)
        name_index_add(&body->known_tools, tool->name, tool);
    return true;
}

static bool settle_tools(struct body_reader *reader, bool callable) {
    struct tool_list *tools = &reader->conversation->tools;
    const struct place *place = MEMBER_OF(NULL, "tools");
    struct name_index names = name_index_create(&reader->conversation->arena, tools->count);
    if (!callable)
        return true;
    for (struct tool *tool = tools->first; tool; tool = tool->next) {
        char name[64];
        copy_text(name, sizeof name, tool->name.data, tool->name.bytes);
        const struct place *at = MEMBER_OF(place, name);
        if (!check_unique_name(reader, place, &names, tool) ||
            !settle_parameters(reader, MEMBER_OF(at, "input_schema"), tool))
            return false;
    }
    return true;
}

static bool set_choice(struct messages_body *body) {
    struct body_reader *reader = body->reader;
    struct conversation *conversation = reader->conversation;
    conversation->one_call = is_true(body->one_call);
    conversation->tool_choice = body->choice == CHOICE_NONE ? TOOL_CHOICE_NONE : TOOL_CHOICE_AUTO;
    if (body->choice == CHOICE_ANY && !reader->toolkit) /* for the toolkit any is auto */
        conversation->tool_choice = TOOL_CHOICE_REQUIRED;
    if (body->choice == CHOICE_TOOL && conversation->tools.count && !choose_tool(reader, body->chosen))
        return false;
    return check_choice_against_thinking(reader);
}

/* ---- blocks ---- */

static bool check_pending(struct messages_body *body, const struct place *place) {
    if (!body->pending_count)
        return true;
    const struct pending_use *use = body->pending;
    while (use && use->answered)
        use = use->next;
    if (!use)
        return true;
    return refuse_at(body->reader, CODE_VALUE, place,
        "the call \"%.*s\" has no tool_result block at the start of the next message",
        use->id.bytes < 64 ? (int)use->id.bytes : 64, use->id.data);
}

static bool add_image(struct body_reader *reader, const struct place *place, const struct json *block,
    struct message *message) {
    const struct json *source = json_member(block, "source");
    const struct json *type = json_member(source, "type");
    const struct place *outer = MEMBER_OF(place, "source");
    bool base64 = json_is_text(type, "base64");
    const struct place *at = MEMBER_OF(outer, base64 ? "data" : "url");
    struct image_reference image = {.detail = DETAIL_HIGH};
    if (json_is_text(type, "file"))
        return refuse_at(reader, CODE_UNSUPPORTED, MEMBER_OF(outer, "file_id"),
            "stored files are not supported; pass the image itself as base64");
    if (base64) {
        struct buffer url = {0};
        struct text_piece media = text_member(source, "media_type"), data = text_member(source, "data");
        buffer_printf(&url, "data:%.*s;base64,", (int)media.bytes, media.data);
        buffer_append(&url, data.data, data.bytes);
        image.reference = arena_copy(&reader->conversation->arena, (struct text_piece){url.data, url.bytes});
        buffer_free(&url);
        if (reader->toolkit && !is_padded_base64(data))
            return refuse_at(reader, CODE_VALUE, at, "the base64 data is invalid");
    } else {
        image.reference = text_member(source, "url");
        if (!settle_address(reader, at, &image))
            return false;
    }
    image.path = keep_path(reader, at);
    message_add_image(reader->conversation, message, &image);
    return true;
}

static void add_document(struct body_reader *reader, const struct json *block, struct message *message) {
    struct conversation *conversation = reader->conversation;
    struct text_piece type = text_member(json_member(block, "source"), "media_type");
    struct buffer text = {0};
    buffer_append_text(&text, "[Unsupported document type: ");
    if (type.data)
        buffer_append(&text, type.data, type.bytes);
    else
        buffer_append_text(&text, "unknown");
    buffer_append_text(&text, "]");
    message_add_text(
        conversation, message, arena_copy(&conversation->arena, (struct text_piece){text.data, text.bytes}));
    buffer_free(&text);
}

/* Text, images and documents. */
static bool add_plain_block(struct body_reader *reader, const struct place *place, const struct json *block,
    struct message *message) {
    switch (block_kind(block)) {
    case BLOCK_IMAGE:
        if (message->role == ROLE_ASSISTANT)
            return refuse_at(reader, CODE_VALUE, place, "an assistant's message cannot hold an image");
        return add_image(reader, place, block, message);
    case BLOCK_DOCUMENT:
        add_document(reader, block, message);
        return true;
    default:
        message_add_text(reader->conversation, message, text_member(block, "text"));
        return true;
    }
}

static bool add_new_tool(
    struct messages_body *body, const struct place *place, struct text_piece name, struct tool_list *list) {
    const struct tool *tool = name_index_find(&body->known_tools, name);
    if (!tool)
        return refuse_at(body->reader, CODE_VALUE, place, "tools has none named \"%.*s\"",
            name.bytes < 64 ? (int)name.bytes : 64, name.data);
    tool_list_add(body->reader->conversation, list, tool);
    return true;
}

static bool add_result_block(struct messages_body *body, const struct place *place, const struct json *block,
    struct message *message, struct tool_list *found) {
    struct text_piece name;
    if (block_kind(block) != BLOCK_TOOL_REFERENCE)
        return add_plain_block(body->reader, place, block, message);
    name = text_member(block, "tool_name");
    message_add_text(body->reader->conversation, message, name);
    return add_new_tool(body, MEMBER_OF(place, "tool_name"), name, found);
}

static bool add_tool_result(struct messages_body *body, const struct place *place, const struct json *block,
    struct tool_list *found) {
    struct body_reader *reader = body->reader;
    struct conversation *conversation = reader->conversation;
    struct text_piece id = text_member(block, "tool_use_id");
    struct pending_use *use = body->pending ? name_index_find(&body->uses, id) : NULL;
    const struct place *at = MEMBER_OF(place, "tool_use_id"), *content_at = MEMBER_OF(place, "content");
    int shown = id.bytes < 64 ? (int)id.bytes : 64;
    if (!use)
        return refuse_at(
            reader, CODE_VALUE, at, "the message before has no call with the id \"%.*s\"", shown, id.data);
    if (use->answered)
        return refuse_at(reader, CODE_VALUE, at, "the call \"%.*s\" is answered twice", shown, id.data);
    use->answered = true;
    body->pending_count--;
    struct message *message = conversation_add_message(conversation, ROLE_TOOL);
    const struct json *content = optional_member(block, "content");
    size_t index = 0;
    message->call_id = id;
    if (content && content->kind == JSON_STRING)
        message_add_text(conversation, message, (struct text_piece){content->text, content->bytes});
    for (const struct json *part = content ? content->first : NULL; part; part = part->next, index++) {
        if (!add_result_block(body, ELEMENT_OF(content_at, index), part, message, found))
            return false;
    }
    return true;
}

static void add_thinking(struct body_reader *reader, const struct json *block, struct message *message) {
    struct text_piece thinking = text_member(block, "thinking");
    message->reasoning = message->has_reasoning
                             ? arena_join(&reader->conversation->arena, message->reasoning, "\n\n", thinking)
                             : thinking;
    message->has_reasoning = true;
}

static bool add_tool_use(struct messages_body *body, const struct place *place, const struct json *block,
    struct message *message) {
    struct conversation *conversation = body->reader->conversation;
    struct pending_use *use = arena_take(&conversation->arena, sizeof *use);
    const struct json *input = json_member(block, "input");
    use->id = text_member(block, "id");
    if (name_index_add(&body->uses, use->id, use))
        return refuse_at(body->reader, CODE_VALUE, MEMBER_OF(place, "id"),
            "the id \"%.*s\" stands there twice", use->id.bytes < 64 ? (int)use->id.bytes : 64, use->id.data);
    struct tool_call *call = message_add_call(conversation, message);
    call->id = use->id;
    call->name = text_member(block, "name");
    if (input->kind == JSON_OBJECT)
        call->object = input;
    else {
        struct buffer text = {0};
        compact_json_append(&text, input);
        call->arguments = arena_copy(&conversation->arena, (struct text_piece){text.data, text.bytes});
        buffer_free(&text);
    }
    use->next = body->pending;
    body->pending = use;
    body->pending_count++;
    return true;
}

/* ---- messages ---- */

static bool refuse_block(
    struct body_reader *reader, const struct place *place, const struct json *block, const char *role) {
    return refuse_at(reader, CODE_VALUE, MEMBER_OF(place, "type"), "a %s block can stand in %s message only",
        BLOCK_WORDS[block_kind(block)], role);
}

/* A block whose kind fits no other role. */
static bool check_role(
    struct body_reader *reader, const struct place *place, const struct json *block, enum message_role role) {
    switch (block_kind(block)) {
    case BLOCK_THINKING:
    case BLOCK_TOOL_USE:
    case BLOCK_SERVER_TOOL_USE:
        return role == ROLE_ASSISTANT || refuse_block(reader, place, block, "an assistant's");
    case BLOCK_TOOL_RESULT:
        return role == ROLE_USER || refuse_block(reader, place, block, "a user's");
    case BLOCK_TOOL_ADDITION:
        return role == ROLE_SYSTEM || refuse_block(reader, place, block, "a system");
    default:
        return true;
    }
}

static bool is_dropped(const struct json *block) {
    enum block_kind kind = block_kind(block);
    return kind == BLOCK_SERVER_TOOL_USE || kind == BLOCK_SERVER_RESULT || kind == BLOCK_REDACTED_THINKING;
}

static bool check_server_block(
    struct body_reader *reader, const struct place *place, const struct json *block) {
    return !is_dropped(block) || block_kind(block) == BLOCK_REDACTED_THINKING ||
           reader->policies->messages_drop_web_search ||
           refuse_at(reader, CODE_UNSUPPORTED, MEMBER_OF(place, "type"),
               "tools that a server runs are not supported");
}

static bool add_user_blocks(
    struct messages_body *body, const struct place *place, const struct json *content) {
    struct body_reader *reader = body->reader;
    struct conversation *conversation = reader->conversation;
    struct message *message = NULL;
    struct tool_list found = {0};
    size_t index = 0;
    for (const struct json *block = content->first; block; block = block->next, index++) {
        const struct place *at = ELEMENT_OF(place, index);
        if (!check_role(reader, at, block, ROLE_USER) || !check_server_block(reader, at, block))
            return false;
        if (block_kind(block) == BLOCK_TOOL_RESULT) {
            if (!add_tool_result(body, at, block, &found))
                return false;
            continue;
        }
        if (is_dropped(block))
            continue;
        if (!check_pending(body, at))
            return false;
        if (!message)
            message = conversation_add_message(conversation, ROLE_USER);
        if (!add_plain_block(reader, at, block, message))
            return false;
    }
    if (found.count)
        conversation_add_message(conversation, ROLE_SYSTEM)->new_tools = found;
    return true;
}

static bool add_assistant_blocks(
    struct messages_body *body, const struct place *place, const struct json *content) {
    struct body_reader *reader = body->reader;
    struct message *message = conversation_add_message(reader->conversation, ROLE_ASSISTANT);
    size_t index = 0;
    body->pending = NULL;
    body->pending_count = 0;
    body->uses = name_index_create(&reader->conversation->arena, content->count);
    for (const struct json *block = content->first; block; block = block->next, index++) {
        const struct place *at = ELEMENT_OF(place, index);
        if (!check_role(reader, at, block, ROLE_ASSISTANT) || !check_server_block(reader, at, block))
            return false;
        enum block_kind kind = block_kind(block);
        if (kind == BLOCK_THINKING)
            add_thinking(reader, block, message);
        else if (kind == BLOCK_TOOL_USE) {
            if (!add_tool_use(body, at, block, message))
                return false;
        } else if (!is_dropped(block) &&
                   (!check_pending(body, at) || !add_plain_block(reader, at, block, message)))
            return false;
    }
    return true;
}

static bool add_system_blocks(
    struct messages_body *body, const struct place *place, const struct json *content) {
    struct body_reader *reader = body->reader;
    struct message *message = conversation_add_message(reader->conversation, ROLE_SYSTEM);
    size_t index = 0;
    for (const struct json *block = content->first; block; block = block->next, index++) {
        const struct place *at = ELEMENT_OF(place, index), *tool = MEMBER_OF(at, "tool");
        if (!check_role(reader, at, block, ROLE_SYSTEM) || !check_server_block(reader, at, block))
            return false;
        if (block_kind(block) == BLOCK_TOOL_ADDITION
                ? !add_new_tool(body, MEMBER_OF(tool, "name"),
                      text_member(json_member(block, "tool"), "name"), &message->new_tools)
                : !is_dropped(block) && !add_plain_block(reader, at, block, message))
            return false;
    }
    return true;
}

static bool add_message(struct messages_body *body, const struct place *place, const struct json *value) {
    static const enum message_role roles[] = {ROLE_USER, ROLE_ASSISTANT, ROLE_SYSTEM};
    struct body_reader *reader = body->reader;
    const struct json *content = json_member(value, "content");
    const struct place *at = MEMBER_OF(place, "content");
    int word = 0;
    if (!read_word(reader, place, value, "role", ROLE_WORDS, "", &word))
        return false;
    enum message_role role = roles[word];
    if (role != ROLE_USER && !check_pending(body, place))
        return false;
    if (content->kind == JSON_STRING) {
        if (!check_pending(body, place))
            return false;
        body->pending = NULL;
        message_add_text(reader->conversation, conversation_add_message(reader->conversation, role),
            (struct text_piece){content->text, content->bytes});
        return true;
    }
    if (!content->count && role != ROLE_SYSTEM)
        return refuse_at(reader, CODE_VALUE, at, "expected at least one block, found an empty array");
    if (role == ROLE_ASSISTANT)
        return add_assistant_blocks(body, at, content);
    if (role == ROLE_SYSTEM)
        return add_system_blocks(body, at, content);
    bool added = add_user_blocks(body, at, content) && check_pending(body, place);
    body->pending = NULL;
    return added;
}

static bool add_messages(struct messages_body *body) {
    struct body_reader *reader = body->reader;
    struct conversation *conversation = reader->conversation;
    const struct place *place = MEMBER_OF(NULL, "messages");
    size_t index = 0;
    if (!body->messages->count)
        return refuse_at(reader, CODE_VALUE, place, "expected at least one message, found an empty array");
    if (body->system) {
        struct message *message = conversation_add_message(conversation, ROLE_SYSTEM);
        if (body->system->kind == JSON_STRING)
            message_add_text(
                conversation, message, (struct text_piece){body->system->text, body->system->bytes});
        for (const struct json *block = body->system->first; block; block = block->next)
            message_add_text(conversation, message, text_member(block, "text"));
    }
    for (const struct json *message = body->messages->first; message; message = message->next, index++) {
        if (!add_message(body, ELEMENT_OF(place, index), message))
            return false;
    }
    return check_pending(body, place);
}

static bool set_format(struct messages_body *body, const struct json **constraint) {
    struct conversation *conversation = body->reader->conversation;
    const struct place *config = MEMBER_OF(NULL, "output_config"), *place = MEMBER_OF(config, "format");
    if (body->regex.data)
        conversation->format = FORMAT_REGEX;
    if (!body->schema)
        return true;
    conversation->format = FORMAT_JSON_SCHEMA;
    conversation->schema = body->schema;
    return settle_schema(body->reader, MEMBER_OF(place, "schema"), body->schema, true, constraint);
}

bool messages_body_read(
    struct body_reader *reader, const struct json *object, struct toolkit_sampling *sampling) {
    struct messages_body body = {.reader = reader};
    const struct json *constraint = NULL;
    if (!check_types(&body, object, sampling) || !check_model(reader, object))
        return false;
    set_thinking(reader, &body.thinking);
    if (!add_tools(&body) || !add_messages(&body) ||
        !check_reasoning(reader, "messages", reader->conversation->tools.count > 0) ||
        !settle_tools(reader, body.choice != CHOICE_NONE) || !set_choice(&body) ||
        !set_format(&body, &constraint))
        return false;
    if (sampling && !(settle_stops(reader, &body.sampling, sampling) &&
                        settle_sampling(reader, KIND_MESSAGES, &body.sampling, sampling)))
        return false;
    conversation_finish(reader->conversation, constraint, body.regex);
    return true;
}

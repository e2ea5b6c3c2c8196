/* Responses bodies. */
#include "recipe/body.h"
#include "recipe/name_index.h"
#include "recipe/python_json.h" /* compact_json_append */
#include "recipe/tools_text.h"  /* APPLY_PATCH_... */

#include <stdio.h>  /* snprintf */
#include <string.h> /* memcpy, memset */

enum item_kind {
    ITEM_MESSAGE,
    ITEM_CALL,
    ITEM_OUTPUT,
    ITEM_REASONING,
    ITEM_CUSTOM_CALL,
    ITEM_CUSTOM_OUTPUT,
    ITEM_SEARCH_CALL,
    ITEM_SEARCH_OUTPUT,
    ITEM_OTHER, /* skipped */
};

enum tool_kind { TOOL_FUNCTION, TOOL_CUSTOM, TOOL_NAMESPACE, TOOL_SEARCH, TOOL_WEB_SEARCH, TOOL_OTHER };

/* What conversion needs of a body whose types are right, and what is known while items are walked through. */
struct responses_body {
    struct body_reader *reader;
    const struct json *input, *tools;
    struct text_piece instructions;
    enum tool_choice choice;
    bool web_search_chosen;
    struct text_piece chosen;    /* data NULL: no tool is named */
    const struct json *parallel; /* whether several calls may come at once; NULL: they may */
    enum response_format format;
    const struct json *text_format;
    struct text_piece regex;
    struct thinking_fields thinking;
    struct sampling_fields sampling;

    struct message *open;    /* assistant message that items are still added to, or NULL */
    struct name_index calls; /* all calls so far, by id -> struct pending_call */
    struct pending_call *awaiting, *last_awaiting; /* calls of the last assistant message */
    struct tool_list found;                        /* tools that the outputs at hand introduced */
};

struct pending_call {
    struct pending_call *next;
    struct text_piece id;
    bool answered;
};

/* ---- types of items ---- */

static bool type_part_of(struct body_reader *reader, const struct place *place, const struct json *part,
    const char *const *words, const char *expected) {
    struct text_piece text;
    enum image_detail detail;
    int word = 0;
    if (!read_word(reader, place, part, "type", words, expected, &word))
        return false;
    if (word == 0) /* a file */
        return true;
    if (word > 1)
        return read_text(reader, place, part, "text", &text);
    return read_optional_text(reader, place, part, "image_url", &text) &&
           read_optional_text(reader, place, part, "file_id", &text) &&
           read_detail(reader, place, part, &detail);
}

static bool type_part(struct body_reader *reader, const struct place *place, const struct json *part) {
    static const char *const words[] = {"input_file", "input_image", "input_text", "output_text", NULL};
    return type_part_of(reader, place, part, words, "input_text, output_text, input_image or input_file");
}

static bool type_output_part(struct body_reader *reader, const struct place *place, const struct json *part) {
    static const char *const words[] = {"input_file", "input_image", "input_text", NULL};
    return type_part_of(reader, place, part, words, "input_text, input_image or input_file");
}

static const char *const ROLE_WORDS[] = {"user", "assistant", "system", "developer", NULL};

static bool type_message(struct body_reader *reader, const struct place *place, const struct json *item) {
    int role;
    return read_word(
               reader, place, item, "role", ROLE_WORDS, "user, assistant, system or developer", &role) &&
           check_content(reader, MEMBER_OF(place, "content"), json_member(item, "content"), type_part);
}

static bool type_reasoning(struct body_reader *reader, const struct place *place, const struct json *item) {
    const struct place *at = MEMBER_OF(place, "content");
    const struct json *content;
    struct text_piece text;
    size_t index = 0;
    if (!read_optional_text(reader, place, item, "encrypted_content", &text) ||
        !read_optional_array(reader, place, item, "content", &content))
        return false;
    for (const struct json *part = content ? content->first : NULL; part; part = part->next, index++) {
        const struct place *element = ELEMENT_OF(at, index);
        if (!check_object(reader, element, "an object with a text", part) ||
            !read_text(reader, element, part, "text", &text))
            return false;
    }
    return true;
}

static bool type_tool(struct body_reader *reader, const struct place *place, const struct json *tool);

static bool type_tools(struct body_reader *reader, const struct place *place, const struct json *tools) {
    size_t index = 0;
    for (const struct json *tool = tools ? tools->first : NULL; tool; tool = tool->next, index++) {
        if (!type_tool(reader, ELEMENT_OF(place, index), tool))
            return false;
    }
    return true;
}

static bool read_execution(
    struct body_reader *reader, const struct place *place, const struct json *object, bool *client) {
    static const char *const words[] = {"server", "client", NULL};
    int word = 0;
    if (!read_optional_word(reader, place, object, "execution", words, "client or server", &word))
        return false;
    *client = word == 1;
    return true;
}

static bool type_search(
    struct body_reader *reader, const struct place *place, const struct json *item, enum item_kind kind) {
    const struct json *tools = NULL;
    struct text_piece text;
    bool client;
    if (!read_text(reader, place, item, "call_id", &text) || !read_execution(reader, place, item, &client))
        return false;
    if (kind == ITEM_SEARCH_CALL)
        return check_object(
            reader, MEMBER_OF(place, "arguments"), "an object", json_member(item, "arguments"));
    return read_array(reader, place, item, "tools", &tools) &&
           type_tools(reader, MEMBER_OF(place, "tools"), tools);
}

static bool type_call(
    struct body_reader *reader, const struct place *place, const struct json *item, const char *arguments) {
    struct text_piece text;
    return read_text(reader, place, item, "call_id", &text) &&
           read_text(reader, place, item, "name", &text) &&
           read_text(reader, place, item, arguments, &text) &&
           read_optional_text(reader, place, item, "namespace", &text);
}

static enum item_kind item_kind(const struct json *item) {
    static const char *const words[] = {"message", "function_call", "function_call_output", "reasoning",
        "custom_tool_call", "custom_tool_call_output", "tool_search_call", "tool_search_output"};
    const struct json *type = json_member(item, "type");
    if (!type)
        return ITEM_MESSAGE;
    for (int i = 0; i < ITEM_OTHER; i++) {
        if (json_is_text(type, words[i]))
            return (enum item_kind)i;
    }
    return ITEM_OTHER;
}

/* A function's output may lack call_id, a custom tool's output itself. */
static bool type_output(struct body_reader *reader, const struct place *place, const struct json *item) {
    bool custom = item_kind(item) == ITEM_CUSTOM_OUTPUT;
    struct text_piece text = {0};
    if (!(custom ? read_text : read_optional_text)(reader, place, item, "call_id", &text))
        return false;
    return (custom && !json_member(item, "output")) ||
           check_content(reader, MEMBER_OF(place, "output"), json_member(item, "output"), type_output_part);
}

static bool type_item(struct body_reader *reader, const struct place *place, const struct json *item) {
    struct text_piece type;
    if (!check_object(reader, place, "an object with a type", item) ||
        (json_member(item, "type") && !read_text(reader, place, item, "type", &type)))
        return false;
    switch (item_kind(item)) {
    case ITEM_MESSAGE:
        return type_message(reader, place, item);
    case ITEM_CALL:
        return type_call(reader, place, item, "arguments");
    case ITEM_CUSTOM_CALL:
        return type_call(reader, place, item, "input");
    case ITEM_OUTPUT:
    case ITEM_CUSTOM_OUTPUT:
        return type_output(reader, place, item);
    case ITEM_REASONING:
        return type_reasoning(reader, place, item);
    case ITEM_SEARCH_CALL:
        return type_search(reader, place, item, ITEM_SEARCH_CALL);
    case ITEM_SEARCH_OUTPUT:
        return type_search(reader, place, item, ITEM_SEARCH_OUTPUT);
    case ITEM_OTHER:
        break;
    }
    return true;
}

static bool type_input(struct responses_body *body, const struct json *object) {
    const struct place *place = MEMBER_OF(NULL, "input");
    size_t index = 0;
    body->input = optional_member(object, "input");
    if (!body->input || body->input->kind == JSON_STRING)
        return true;
    if (body->input->kind != JSON_ARRAY)
        return refuse_value_at(body->reader, place, "a string or an array of input items", body->input);
    for (const struct json *item = body->input->first; item; item = item->next, index++) {
        if (!type_item(body->reader, ELEMENT_OF(place, index), item))
            return false;
    }
    return true;
}

/* ---- types of tools and settings ---- */

static enum tool_kind tool_kind(const struct json *tool) {
    static const struct {
        const char *word;
        enum tool_kind kind;
    } words[] = {{"function", TOOL_FUNCTION}, {"custom", TOOL_CUSTOM}, {"namespace", TOOL_NAMESPACE},
        {"tool_search", TOOL_SEARCH}, {"web_search", TOOL_WEB_SEARCH},
        {"web_search_2025_08_26", TOOL_WEB_SEARCH}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (json_is_text(json_member(tool, "type"), words[i].word))
            return words[i].kind;
    }
    return TOOL_OTHER;
}

static bool type_function(struct body_reader *reader, const struct place *place, const struct json *tool) {
    const struct json *flag;
    struct text_piece text;
    return read_text(reader, place, tool, "name", &text) &&
           read_optional_text(reader, place, tool, "description", &text) &&
           read_optional_flag(reader, place, tool, "strict", &flag);
}

static bool type_namespace(struct body_reader *reader, const struct place *place, const struct json *tool) {
    static const char *const words[] = {"function", "custom", NULL};
    const struct place *at = MEMBER_OF(place, "tools");
    const struct json *tools;
    struct text_piece text;
    size_t index = 0;
    int word;
    if (!read_text(reader, place, tool, "name", &text) ||
        !read_optional_text(reader, place, tool, "description", &text) ||
        !read_array(reader, place, tool, "tools", &tools))
        return false;
    for (const struct json *inner = tools->first; inner; inner = inner->next, index++) {
        const struct place *element = ELEMENT_OF(at, index);
        if (!check_object(reader, element, "an object with type and name", inner) ||
            !read_word(reader, element, inner, "type", words, "function or custom", &word) ||
            !type_function(reader, element, inner))
            return false;
    }
    return true;
}

static bool type_tool(struct body_reader *reader, const struct place *place, const struct json *tool) {
    struct text_piece text;
    bool client;
    if (!check_object(reader, place, "an object with a type", tool) ||
        !read_text(reader, place, tool, "type", &text))
        return false;
    switch (tool_kind(tool)) {
    case TOOL_FUNCTION:
        return type_function(reader, place, tool);
    case TOOL_CUSTOM:
        return read_text(reader, place, tool, "name", &text);
    case TOOL_NAMESPACE:
        return type_namespace(reader, place, tool);
    case TOOL_SEARCH:
        return read_execution(reader, place, tool, &client) &&
               read_optional_text(reader, place, tool, "description", &text);
    case TOOL_WEB_SEARCH:
    case TOOL_OTHER:
        break;
    }
    return true;
}

static bool type_choice(struct responses_body *body, const struct json *object) {
    static const char *const words[] = {"auto", "none", "required", NULL};
    static const char *const kinds[] = {"function", "custom", "web_search", "web_search_2025_08_26", NULL};
    struct body_reader *reader = body->reader;
    const struct json *choice = optional_member(object, "tool_choice");
    const struct place *place = MEMBER_OF(NULL, "tool_choice");
    int word = 0;
    if (!choice)
        return true;
    if (choice->kind != JSON_OBJECT) {
        if (!read_word(reader, NULL, object, "tool_choice", words,
                "none, auto, required or an object like {\"type\": \"function\", \"name\": \"...\"}", &word))
            return false;
        body->choice = (enum tool_choice)word;
        return true;
    }
    if (!read_word(reader, place, choice, "type", kinds, "function, custom or web_search", &word))
        return false;
    body->web_search_chosen = word > 1;
    return body->web_search_chosen || read_text(reader, place, choice, "name", &body->chosen);
}

static bool type_text(struct responses_body *body, const struct json *object) {
    static const char *const words[] = {"text", "json_object", "json_schema", "regex", NULL};
    static const char *const of_toolkit[] = {"text", "json_object", "json_schema", NULL};
    static const char *const verbosities[] = {"low", "medium", "high", NULL};
    struct body_reader *reader = body->reader;
    const struct json *text = optional_member(object, "text"), *strict;
    const struct place *place = MEMBER_OF(NULL, "text"), *at = MEMBER_OF(place, "format");
    struct text_piece piece;
    int word = 0;
    if (!text)
        return true;
    if (!check_object(reader, place, "an object like {\"format\": {\"type\": \"text\"}}", text) ||
        !read_optional_word(reader, place, text, "verbosity", verbosities, "low, medium or high", &word))
        return false;
    body->text_format = json_member(text, "format");
    if (!body->text_format)
        return true;
    if (!check_object(reader, at, "an object like {\"type\": \"text\"}", body->text_format) ||
        !read_word(reader, at, body->text_format, "type", reader->toolkit ? of_toolkit : words,
            reader->toolkit ? "text, json_object or json_schema" : "text, json_object, json_schema or regex",
            &word))
        return false;
    body->format = (enum response_format)word;
    if (!read_whitespace(reader, at, body->text_format))
        return false;
    if (body->format == FORMAT_REGEX)
        return read_text(reader, at, body->text_format, "regex", &body->regex);
    if (body->format != FORMAT_JSON_SCHEMA)
        return true;
    if (!read_text(reader, at, body->text_format, "name", &piece) ||
        !read_optional_text(reader, at, body->text_format, "description", &piece) ||
        !read_optional_flag(reader, at, body->text_format, "strict", &strict))
        return false;
    return json_member(body->text_format, "schema") ||
           refuse_value_at(reader, MEMBER_OF(at, "schema"), "a JSON Schema", NULL);
}

static bool type_reasoning_settings(struct responses_body *body, const struct json *object) {
    static const char *const words[] = {"auto", "concise", "detailed", NULL};
    static const char expected[] = "auto, concise or detailed";
    struct body_reader *reader = body->reader;
    const struct json *reasoning = optional_member(object, "reasoning");
    const struct place *place = MEMBER_OF(NULL, "reasoning");
    int word = 0;
    if (!reasoning)
        return true;
    return check_object(reader, place, "an object like {\"effort\": \"high\"}", reasoning) &&
           read_effort(reader, place, reasoning, "effort", &body->thinking) &&
           read_optional_word(reader, place, reasoning, "summary", words, expected, &word) &&
           read_optional_word(reader, place, reasoning, "generate_summary", words, expected, &word);
}

static bool check_types(struct responses_body *body, const struct json *object, bool sampling) {
    struct body_reader *reader = body->reader;
    struct text_piece text;
    return read_text(reader, NULL, object, "model", &text) && type_input(body, object) &&
           read_optional_text(reader, NULL, object, "instructions", &body->instructions) &&
           type_reasoning_settings(body, object) &&
           read_optional_array(reader, NULL, object, "tools", &body->tools) &&
           type_tools(reader, MEMBER_OF(NULL, "tools"), body->tools) && type_choice(body, object) &&
           type_text(body, object) &&
           (reader->toolkit ||
               read_optional_flag(reader, NULL, object, "parallel_tool_calls", &body->parallel)) &&
           (!reader->toolkit || read_optional_text(reader, NULL, object, "user", &text)) &&
           (!sampling || type_sampling(reader, KIND_RESPONSES, object, &body->sampling));
}

/* ---- tools ---- */

/* The JSON Schema of apply_patch's one parameter. */
static const struct json *apply_patch_parameters(void) {
#define TEXT(text_) .kind = JSON_STRING, .text = (text_), .bytes = sizeof(text_) - 1
#define KEY(key_) .key = (key_), .key_bytes = sizeof(key_) - 1
    static const struct json description = {TEXT(APPLY_PATCH_INPUT), KEY("description")};
    static const struct json string = {TEXT("string"), KEY("type"), .next = &description};
    static const struct json input = {JSON_OBJECT, .count = 2, .first = &string, KEY("input")};
    static const struct json name = {TEXT("input")};
    static const struct json required = {JSON_ARRAY, .count = 1, .first = &name, KEY("required")};
    static const struct json properties = {
        JSON_OBJECT, .count = 1, .first = &input, KEY("properties"), .next = &required};
    static const struct json additional = {JSON_FALSE, KEY("additionalProperties"), .next = &properties};
    static const struct json type = {TEXT("object"), KEY("type"), .next = &additional};
    static const struct json parameters = {JSON_OBJECT, .count = 4, .first = &type};
    return &parameters;
#undef TEXT
#undef KEY
}

/* The text of both, on two lines; `second` alone when there is no first. */
static struct text_piece join_descriptions(
    struct body_reader *reader, struct text_piece first, struct text_piece second) {
    return first.bytes ? arena_join(&reader->conversation->arena, first, "\n", second) : second;
}

static struct text_piece join_names(
    struct body_reader *reader, struct text_piece space, struct text_piece name) {
    return space.data ? arena_join(&reader->conversation->arena, space, "::", name) : name;
}

static bool check_namespace(struct body_reader *reader, const struct place *place, const struct json *space) {
    const struct json *tools = json_member(space, "tools");
    const struct place *at = MEMBER_OF(place, "tools");
    struct name_index names = name_index_create(&reader->conversation->arena, tools->count);
    size_t index = 0;
    for (const struct json *tool = tools->first; tool; tool = tool->next, index++) {
        const struct place *element = ELEMENT_OF(at, index);
        if (tool_kind(tool) == TOOL_CUSTOM)
            return refuse_at(reader, CODE_UNSUPPORTED, element, "a custom tool cannot stand in a namespace");
        if (!check_tool_name(reader, element, text_member(tool, "name")))
            return false;
        if (name_index_add(&names, text_member(tool, "name"), &names))
            return refuse_at(reader, CODE_VALUE, element, "the name %s stands twice in the namespace",
                json_excerpt(json_member(tool, "name")).text);
    }
    return true;
}

static bool check_name(struct body_reader *reader, const struct place *place, const struct json *tool) {
    struct text_piece name = text_member(tool, "name");
    switch (tool_kind(tool)) {
    case TOOL_FUNCTION:
        return check_tool_name(reader, place, name);
    case TOOL_CUSTOM:
        return text_equal(name, text_of("apply_patch")) ||
               refuse_at(reader, CODE_UNSUPPORTED, MEMBER_OF(place, "name"),
                   "the only custom tool is apply_patch, found %s",
                   json_excerpt(json_member(tool, "name")).text);
    case TOOL_NAMESPACE:
        return check_tool_name(reader, place, name) && check_namespace(reader, place, tool);
    case TOOL_WEB_SEARCH:
        return !reader->policies->responses_reject_web_search ||
               refuse_at(reader, CODE_UNSUPPORTED, place, "tools that a server runs are not supported");
    case TOOL_SEARCH:
    case TOOL_OTHER:
        break;
    }
    return true;
}

static bool check_names(struct body_reader *reader, const struct place *place, const struct json *tools) {
    size_t index = 0;
    for (const struct json *tool = tools ? tools->first : NULL; tool; tool = tool->next, index++) {
        if (!check_name(reader, ELEMENT_OF(place, index), tool))
            return false;
    }
    return true;
}

/* `space`: the namespace a tool stands in, or NULL. */
static void describe_tool(
    struct body_reader *reader, const struct json *value, const struct json *space, struct tool *tool) {
    bool custom = tool_kind(value) == TOOL_CUSTOM;
    tool->name = tool_kind(value) == TOOL_SEARCH ? text_of("tool_search") : text_member(value, "name");
    tool->description = text_member(value, "description");
    if (custom)
        tool->description = text_of(APPLY_PATCH_DESCRIPTION);
    tool->parameters = custom ? apply_patch_parameters() : optional_member(value, "parameters");
    tool->strict = custom ? NULL : optional_member(value, "strict");
    if (!space)
        return;
    tool->name = join_names(reader, text_member(space, "name"), tool->name);
    tool->description = join_descriptions(reader, text_member(space, "description"), tool->description);
}

/* The same name in two namespaces of one name gets a number behind. */
static void number_name(struct body_reader *reader, struct name_index *names, struct tool *tool) {
    struct text_piece name = tool->name;
    for (int number = 1; name_index_add(names, tool->name, names); number++) {
        char *numbered = arena_take(&reader->conversation->arena, name.bytes + 16);
        memcpy(numbered, name.data, name.bytes);
        int digits = snprintf(numbered + name.bytes, 16, "_%d", number);
        tool->name = (struct text_piece){numbered, name.bytes + (size_t)digits};
    }
}

static size_t count_tools(const struct json *tools) {
    size_t count = 0;
    for (const struct json *tool = tools ? tools->first : NULL; tool; tool = tool->next)
        count += tool_kind(tool) == TOOL_NAMESPACE ? json_member(tool, "tools")->count : 1;
    return count;
}

/* `names`: those of tools in namespaces. */
static void list_tools(struct body_reader *reader, const struct json *tools, const struct json *space,
    bool deferred, struct name_index *names, struct tool_list *list) {
    for (const struct json *value = tools ? tools->first : NULL; value; value = value->next) {
        enum tool_kind kind = tool_kind(value);
        bool client_search = kind == TOOL_SEARCH && json_is_text(json_member(value, "execution"), "client");
        struct tool tool = {.deferred = deferred};
        if (kind == TOOL_NAMESPACE)
            list_tools(reader, json_member(value, "tools"), value, deferred, names, list);
        if (kind != TOOL_FUNCTION && kind != TOOL_CUSTOM && !client_search)
            continue;
        describe_tool(reader, value, space, &tool);
        if (space)
            number_name(reader, names, &tool);
        tool_list_add(reader->conversation, list, &tool);
    }
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
            !settle_parameters(reader, MEMBER_OF(at, "parameters"), tool))
            return false;
    }
    for (struct message *message = reader->conversation->messages; message; message = message->next) {
        for (struct tool *tool = message->new_tools.first; tool; tool = tool->next) {
            if (!settle_parameters(reader, place, tool)) /* accepted above: rebuilt as there */
                return false;
        }
    }
    return check_strictness(reader, place, tools);
}

/* ---- items ---- */

static struct message *open_assistant(struct responses_body *body) {
    if (!body->open)
        body->open = conversation_add_message(body->reader->conversation, ROLE_ASSISTANT);
    return body->open;
}

/* Tools that outputs introduced are told of after all of them. */
static void tell_found_tools(struct responses_body *body) {
    struct conversation *conversation = body->reader->conversation;
    if (!body->found.count)
        return;
    conversation_add_message(conversation, ROLE_SYSTEM)->new_tools = body->found;
    body->found = (struct tool_list){0};
}

/* The assistant's message is over, and its calls have their outputs. */
static bool close_turn(struct responses_body *body, const struct place *place) {
    for (const struct pending_call *call = body->awaiting; call; call = call->next) {
        if (!call->answered)
            return refuse_at(body->reader, CODE_VALUE, place, "no output is given for the call \"%.*s\"",
                call->id.bytes < 64 ? (int)call->id.bytes : 64, call->id.data);
    }
    body->awaiting = NULL;
    body->open = NULL;
    tell_found_tools(body);
    return true;
}

static bool add_image(
    struct body_reader *reader, const struct place *place, const struct json *part, struct message *message) {
    const struct json *url = optional_member(part, "image_url"), *id = optional_member(part, "file_id");
    const struct place *at = MEMBER_OF(place, "image_url");
    struct image_reference image = {.reference = text_member(part, "image_url")};
    if (url && id)
        return refuse_at(reader, CODE_VALUE, place, "give image_url or file_id, not both");
    if (id)
        return refuse_at(reader, CODE_UNSUPPORTED, MEMBER_OF(place, "file_id"),
            "stored files are not supported; pass the image itself as a data URL in image_url");
    if (!url)
        return refuse_at(
            reader, CODE_MISSING, place, "expected image_url, found neither image_url nor file_id");
    if (!read_detail(reader, place, part, &image.detail) || !settle_image(reader, at, &image))
        return false;
    image.path = keep_path(reader, at);
    message_add_image(reader->conversation, message, &image);
    return true;
}

static bool add_content(struct body_reader *reader, const struct place *place, const struct json *content,
    struct message *message) {
    struct conversation *conversation = reader->conversation;
    size_t index = 0;
    if (content->kind == JSON_STRING) {
        message_add_text(conversation, message, (struct text_piece){content->text, content->bytes});
        return true;
    }
    for (const struct json *part = content->first; part; part = part->next, index++) {
        const struct place *at = ELEMENT_OF(place, index);
        const struct json *type = json_member(part, "type");
        if (json_is_text(type, "input_file"))
            message_add_text(conversation, message, text_of("[Unsupported Document]"));
        else if (!json_is_text(type, "input_image"))
            message_add_text(conversation, message, text_member(part, "text"));
        else if (message->role == ROLE_ASSISTANT)
            return refuse_at(reader, CODE_VALUE, at, "an assistant's message cannot hold an image");
        else if (!add_image(reader, at, part, message))
            return false;
    }
    return true;
}

static bool add_message(struct responses_body *body, const struct place *place, const struct json *item) {
    static const enum message_role roles[] = {ROLE_USER, ROLE_ASSISTANT, ROLE_SYSTEM, ROLE_SYSTEM};
    struct body_reader *reader = body->reader;
    int word = 0;
    if (!read_word(reader, place, item, "role", ROLE_WORDS, "", &word))
        return false;
    bool assistant = roles[word] == ROLE_ASSISTANT;
    if ((!assistant || body->awaiting) && !close_turn(body, place))
        return false;
    struct message *message =
        assistant ? open_assistant(body) : conversation_add_message(reader->conversation, roles[word]);
    return add_content(reader, MEMBER_OF(place, "content"), json_member(item, "content"), message);
}

static bool add_reasoning(struct responses_body *body, const struct place *place, const struct json *item) {
    struct arena *arena = &body->reader->conversation->arena;
    const struct json *content = optional_member(item, "content");
    struct buffer text = {0};
    for (const struct json *part = content ? content->first : NULL; part; part = part->next) {
        struct text_piece piece = text_member(part, "text");
        if (part != content->first)
            buffer_append(&text, "\n", 1);
        buffer_append(&text, piece.data, piece.bytes);
    }
    bool ok = true;
    if (text.bytes && (body->awaiting || (body->open && body->open->parts)))
        ok = close_turn(body, place);
    if (text.bytes && ok) {
        struct message *message = open_assistant(body);
        struct text_piece piece = {text.data, text.bytes};
        message->reasoning = message->has_reasoning
                                 ? join_descriptions(body->reader, message->reasoning, piece)
                                 : arena_copy(arena, piece);
        message->has_reasoning = true;
    }
    buffer_free(&text);
    return ok;
}

static bool read_call_id(
    struct body_reader *reader, const struct place *place, const struct json *item, struct text_piece *id) {
    *id = text_member(item, "call_id");
    return id->bytes || refuse_at(reader, CODE_VALUE, MEMBER_OF(place, "call_id"),
                            "expected at least one character, found an empty string");
}

static bool add_call(
    struct responses_body *body, const struct place *place, const struct json *item, enum item_kind kind) {
    struct body_reader *reader = body->reader;
    struct pending_call *pending = arena_take(&reader->conversation->arena, sizeof *pending);
    if (!read_call_id(reader, place, item, &pending->id))
        return false;
    if (name_index_add(&body->calls, pending->id, pending))
        return refuse_at(reader, CODE_VALUE, MEMBER_OF(place, "call_id"),
            "the id \"%.*s\" stands there twice", pending->id.bytes < 64 ? (int)pending->id.bytes : 64,
            pending->id.data);
    if (body->awaiting && !body->open && !close_turn(body, place)) /* outputs came in between */
        return false;
    struct tool_call *call = message_add_call(reader->conversation, open_assistant(body));
    call->id = pending->id;
    call->custom = kind == ITEM_CUSTOM_CALL;
    call->name = kind == ITEM_SEARCH_CALL
                     ? text_of("tool_search")
                     : join_names(reader, text_member(item, "namespace"), text_member(item, "name"));
    call->arguments = text_member(item, call->custom ? "input" : "arguments");
    call->object = kind == ITEM_SEARCH_CALL ? json_member(item, "arguments") : NULL;
    if (body->awaiting)
        body->last_awaiting->next = pending;
    else
        body->awaiting = pending;
    body->last_awaiting = pending;
    return true;
}

/* A tool as the model is shown it in the result of a search. */
static void append_found_tool(struct buffer *text, const struct json *tool, const struct json *space) {
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    static const struct json null = {.kind = JSON_NULL};
    buffer_append_text(text, text->bytes > 1 ? ",{\"type\":\"function\"" : "{\"type\":\"function\"");
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const struct json *value = json_member(tool, members[i]);
        buffer_printf(text, ",\"%s\":", members[i]);
        compact_json_append(text, value ? value : &null);
    }
    if (space) {
        const struct json *description = json_member(space, "description");
        buffer_append_text(text, ",\"namespace\":{\"name\":");
        compact_json_append(text, json_member(space, "name"));
        buffer_append_text(text, ",\"description\":");
        compact_json_append(text, description ? description : &null);
        buffer_append_text(text, "}");
    }
    buffer_append_text(text, "}");
}

static bool append_found_tools(struct body_reader *reader, const struct place *place,
    const struct json *tools, const struct json *space, struct buffer *text) {
    size_t index = 0;
    for (const struct json *tool = tools->first; tool; tool = tool->next, index++) {
        switch (tool_kind(tool)) {
        case TOOL_FUNCTION:
            append_found_tool(text, tool, space);
            break;
        case TOOL_CUSTOM:
            buffer_append_text(text, text->bytes > 1 ? "," : "");
            buffer_append_text(text, "{\"type\":\"custom\",\"name\":\"apply_patch\"}");
            break;
        case TOOL_NAMESPACE:
            if (!append_found_tools(
                    reader, MEMBER_OF(place, "tools"), json_member(tool, "tools"), tool, text))
                return false;
            break;
        case TOOL_SEARCH:
        case TOOL_WEB_SEARCH:
        case TOOL_OTHER:
            return refuse_at(reader, CODE_UNSUPPORTED, ELEMENT_OF(place, index),
                "a search can find functions, namespaces and apply_patch only");
        }
    }
    return true;
}

static bool add_found_tools(struct responses_body *body, const struct place *place, const struct json *item,
    struct message *message) {
    struct conversation *conversation = body->reader->conversation;
    const struct json *tools = json_member(item, "tools");
    const struct place *at = MEMBER_OF(place, "tools");
    struct buffer text = {0};
    buffer_append_text(&text, "[");
    bool ok =
        check_names(body->reader, at, tools) && append_found_tools(body->reader, at, tools, NULL, &text);
    buffer_append_text(&text, "]");
    if (ok) {
        message_add_text(conversation, message,
            arena_copy(&conversation->arena, (struct text_piece){text.data, text.bytes}));
        struct name_index names = name_index_create(&conversation->arena, count_tools(tools));
        struct tool_list found = {0};
        list_tools(body->reader, tools, NULL, true, &names, &found);
        for (const struct tool *tool = found.first; tool; tool = tool->next) {
            tool_list_add(conversation, &body->found, tool);
            tool_list_add(conversation, &conversation->tools, tool);
        }
    }
    buffer_free(&text);
    return ok;
}

static bool add_output(
    struct responses_body *body, const struct place *place, const struct json *item, enum item_kind kind) {
    struct body_reader *reader = body->reader;
    struct text_piece id;
    if (!optional_member(item, "call_id")) /* the output of no call in particular */
        return close_turn(body, place) &&
               add_content(reader, MEMBER_OF(place, "output"), json_member(item, "output"),
                   conversation_add_message(reader->conversation, ROLE_TOOL));
    if (!read_call_id(reader, place, item, &id))
        return false;
    struct pending_call *call = name_index_find(&body->calls, id);
    int shown = id.bytes < 64 ? (int)id.bytes : 64;
    if (!call)
        return refuse_at(
            reader, CODE_VALUE, MEMBER_OF(place, "call_id"), "no call has the id \"%.*s\"", shown, id.data);
    if (call->answered)
        return refuse_at(reader, CODE_VALUE, MEMBER_OF(place, "call_id"),
            "the call \"%.*s\" is answered twice", shown, id.data);
    call->answered = true;
    body->open = NULL;
    struct message *message = conversation_add_message(reader->conversation, ROLE_TOOL);
    message->call_id = id;
    if (kind == ITEM_CUSTOM_OUTPUT && !json_member(item, "output"))
        return true;
    return kind == ITEM_SEARCH_OUTPUT
               ? add_found_tools(body, place, item, message)
               : add_content(reader, MEMBER_OF(place, "output"), json_member(item, "output"), message);
}

static bool add_item(struct responses_body *body, const struct place *place, const struct json *item) {
    enum item_kind kind = item_kind(item);
    switch (kind) {
    case ITEM_MESSAGE:
        return add_message(body, place, item);
    case ITEM_CALL:
    case ITEM_CUSTOM_CALL:
    case ITEM_SEARCH_CALL:
        return add_call(body, place, item, kind);
    case ITEM_OUTPUT:
    case ITEM_CUSTOM_OUTPUT:
    case ITEM_SEARCH_OUTPUT:
        return add_output(body, place, item, kind);
    case ITEM_REASONING:
        return add_reasoning(body, place, item);
    case ITEM_OTHER:
        break;
    }
    return true;
}

static bool comes_first(const struct tool_call *a, const struct tool_call *b) {
    size_t bytes = a->id.bytes < b->id.bytes ? a->id.bytes : b->id.bytes;
    int order = bytes ? memcmp(a->id.data, b->id.data, bytes) : 0;
    return order ? order < 0 : a->id.bytes <= b->id.bytes;
}

/* Sorts a list of `count` calls by their ids; returns its head. */
static struct tool_call *sort_calls(struct tool_call *list, size_t count) {
    if (count < 2)
        return list;
    struct tool_call *last = list;
    for (size_t i = 1; i < count / 2; i++)
        last = last->next;
    struct tool_call *second = last->next, *sorted = NULL, **link = &sorted;
    last->next = NULL;
    list = sort_calls(list, count / 2);
    second = sort_calls(second, count - count / 2);
    while (list && second) {
        struct tool_call **from = comes_first(list, second) ? &list : &second;
        *link = *from;
        link = &(*link)->next;
        *from = *link;
    }
    *link = list ? list : second;
    return sorted;
}

/* The toolkit tells of a turn's calls in the order of their ids; others keep the order given. */
static void order_calls(struct body_reader *reader) {
    if (!reader->toolkit)
        return;
    for (struct message *message = reader->conversation->messages; message; message = message->next)
        message->calls = sort_calls(message->calls, message->call_count);
}

static bool add_input(struct responses_body *body) {
    struct body_reader *reader = body->reader;
    struct conversation *conversation = reader->conversation;
    const struct place *place = MEMBER_OF(NULL, "input");
    size_t index = 0;
    if (!body->input && !body->instructions.bytes)
        return refuse_at(reader, CODE_MISSING, place, "expected input or instructions, found neither");
    if (body->input && body->input->kind == JSON_ARRAY && !body->input->count)
        return refuse_at(reader, CODE_VALUE, place, "expected at least one item, found an empty array");
    if (body->instructions.bytes)
        message_add_text(
            conversation, conversation_add_message(conversation, ROLE_SYSTEM), body->instructions);
    if (body->input && body->input->kind == JSON_STRING)
        message_add_text(conversation, conversation_add_message(conversation, ROLE_USER),
            (struct text_piece){body->input->text, body->input->bytes});
    if (!body->input || body->input->kind == JSON_STRING)
        return true;
    body->calls = name_index_create(&conversation->arena, body->input->count);
    for (const struct json *item = body->input->first; item; item = item->next, index++) {
        if (!add_item(body, ELEMENT_OF(place, index), item))
            return false;
    }
    order_calls(reader);
    return close_turn(body, place);
}

/* ---- settings ---- */

static bool set_choice(struct responses_body *body) {
    struct body_reader *reader = body->reader;
    reader->conversation->tool_choice = body->choice;
    reader->conversation->one_call = body->parallel && !is_true(body->parallel);
    if (body->chosen.data && reader->conversation->tools.count && !choose_tool(reader, body->chosen))
        return false;
    return check_choice_against_thinking(reader);
}

static bool check_server_choice(struct responses_body *body) {
    return !body->web_search_chosen || !body->reader->policies->responses_reject_web_search ||
           refuse_at(body->reader, CODE_UNSUPPORTED, MEMBER_OF(NULL, "tool_choice"),
               "tools that a server runs are not supported");
}

static bool set_format(struct responses_body *body, const struct json **constraint) {
    struct conversation *conversation = body->reader->conversation;
    const struct place *text = MEMBER_OF(NULL, "text"), *place = MEMBER_OF(text, "format");
    conversation->format = body->format;
    if (body->format == FORMAT_JSON_OBJECT && !conversation_says_json(conversation))
        return refuse_at(body->reader, CODE_VALUE, MEMBER_OF(NULL, "input"),
            "the word \"json\" must stand in a message for text.format json_object");
    if (body->format != FORMAT_JSON_SCHEMA)
        return true;
    conversation->schema = json_member(body->text_format, "schema");
    return settle_schema(body->reader, MEMBER_OF(place, "schema"), conversation->schema,
        is_true(json_member(body->text_format, "strict")), constraint);
}

bool responses_body_read(
    struct body_reader *reader, const struct json *object, struct toolkit_sampling *sampling) {
    struct responses_body body = {.reader = reader};
    const struct json *constraint = NULL;
    if (!check_types(&body, object, sampling) || !check_model(reader, object))
        return false;
    set_thinking(reader, &body.thinking);
    if (!check_names(reader, MEMBER_OF(NULL, "tools"), body.tools) || !check_server_choice(&body))
        return false;
    struct name_index names = name_index_create(&reader->conversation->arena, count_tools(body.tools));
    list_tools(reader, body.tools, NULL, false, &names, &reader->conversation->tools);
    if (!add_input(&body) || !check_reasoning(reader, "input", reader->conversation->tools.count > 0) ||
        !settle_tools(reader, body.choice != TOOL_CHOICE_NONE) || !set_choice(&body) ||
        !set_format(&body, &constraint))
        return false;
    if (sampling && !(settle_stops(reader, &body.sampling, sampling) &&
                        settle_sampling(reader, KIND_RESPONSES, &body.sampling, sampling)))
        return false;
    conversation_finish(reader->conversation, constraint, body.regex);
    return true;
}

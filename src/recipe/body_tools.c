/* Tools and formats of request bodies. */
#include "recipe/body.h"
#include "recipe/schema_check.h"
#include "recipe/strict_schema.h"

enum { TOOL_NAME_MOST = 128 };

bool check_tool_name(struct body_reader *reader, const struct place *tool, struct text_piece name) {
    const struct place *place = MEMBER_OF(tool, "name");
    size_t characters = 0;
    bool plain = true;
    for (size_t i = 0; i < name.bytes; i++) {
        unsigned char c = (unsigned char)name.data[i];
        characters += (c & 0xC0) != 0x80;
        plain &= (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                 c == '-';
    }
    if (!name.bytes)
        return refuse_at(reader, CODE_VALUE, place, "expected at least one character, found an empty string");
    if (characters > TOOL_NAME_MOST)
        return refuse_at(reader, CODE_VALUE, place, "expected at most %d characters, found %zu",
            TOOL_NAME_MOST, characters);
    return plain ||
           refuse_at(reader, CODE_VALUE, place, "expected only characters of a-z, A-Z, 0-9, _ and -");
}

bool settle_parameters(struct body_reader *reader, const struct place *parameters, struct tool *tool) {
    const struct json *schema = tool->parameters;
    if (is_true(tool->strict)) {
        /* Rebuilding drops keywords that it does not know: calls are held to them all the same, but the toolkit's. */
        tool->held = reader->toolkit ? NULL : schema;
        return rebuild_strict_schema(reader, parameters, schema, true, &tool->parameters);
    }
    if (!schema)
        return true;
    return check_schema(reader, parameters, schema) &&
           (json_is_text(json_member(schema, "type"), "object") ||
               refuse_value_at(
                   reader, MEMBER_OF(parameters, "type"), "\"object\"", json_member(schema, "type")));
}

bool check_unique_name(struct body_reader *reader, const struct place *tools, struct name_index *names,
    const struct tool *tool) {
    struct json found = {.kind = JSON_STRING, .text = tool->name.data, .bytes = tool->name.bytes};
    return !name_index_add(names, tool->name, names) ||
           refuse_at(reader, CODE_VALUE, tools, "two tools are named %s: names must be unique",
               json_excerpt(&found).text);
}

bool check_strictness(struct body_reader *reader, const struct place *tools, const struct tool_list *list) {
    size_t strict = 0;
    for (const struct tool *tool = list->first; tool; tool = tool->next)
        strict += is_true(tool->strict);
    return !reader->toolkit || !strict || strict == list->count ||
           refuse_at(reader, CODE_VALUE, tools,
               "either all tools are strict or none: found %zu strict ones of %zu", strict, list->count);
}

bool choose_tool(struct body_reader *reader, struct text_piece name) {
    struct conversation *conversation = reader->conversation;
    const struct tool *tool = tool_list_find(&conversation->tools, name);
    if (!tool) {
        struct json found = {.kind = JSON_STRING, .text = name.data, .bytes = name.bytes};
        return refuse_at(reader, CODE_VALUE, MEMBER_OF(NULL, "tool_choice"), "tools has no function named %s",
            json_excerpt(&found).text);
    }
    struct tool_list only = {0};
    tool_list_add(conversation, &only, tool);
    conversation->tools = only;
    conversation->tool_choice = TOOL_CHOICE_REQUIRED;
    conversation->one_call = true;
    return true;
}

bool check_choice_against_thinking(struct body_reader *reader) {
    const struct conversation *conversation = reader->conversation;
    return !conversation->thinking || conversation->tool_choice != TOOL_CHOICE_REQUIRED ||
           !conversation->tools.count ||
           refuse_at(reader, CODE_VALUE, MEMBER_OF(NULL, "tool_choice"),
               "a tool cannot be required with thinking on; turn thinking off, or let tool_choice be auto");
}

bool settle_schema(struct body_reader *reader, const struct place *place, const struct json *schema,
    bool strict, const struct json **constraint) {
    reader->conversation->strict = strict;
    *constraint = schema;
    return strict && reader->toolkit ? rebuild_strict_schema(reader, place, schema, false, constraint)
                                     : check_schema(reader, place, schema);
}

bool read_whitespace(struct body_reader *reader, const struct place *place, const struct json *format) {
    static const char *const words[] = {"flexible", "compact", "none", NULL};
    int word = 0;
    if (reader->toolkit)
        return true;
    if (!read_optional_word(reader, place, format, "whitespace", words, "flexible, compact or none", &word))
        return false;
    reader->conversation->compact = word > 0;
    return true;
}

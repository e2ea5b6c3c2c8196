#include "grammar/tools.h"

#include "grammar/schema.h"

#include <string.h> /* strlen, strcmp */

#define MARKER                                                                                               \
    "\xEF\xBD\x9C"                                                                                           \
    "DSML"                                                                                                   \
    "\xEF\xBD\x9C"
enum { TOOLS_LIMIT = 1024 };

struct tool {
    struct rules *rules;
    const struct grammar_specification *specification;
    uint32_t way;  /* the parameters so far of one way to give them */
    uint32_t body; /* the ways so far, or RULES_FAILED */
};

static uint32_t text(struct rules *rules, const char *bytes, size_t count) {
    return rules_terminal(rules, expression_literal(rules_expressions(rules), bytes, count));
}

static uint32_t words(struct rules *rules, const char *bytes) {
    return text(rules, bytes, strlen(bytes));
}

/* `before`, the marker, `behind`. The marker is its token where there is one: spelled in others it is only text. */
static uint32_t tag(const struct tool *tool, const char *before, const char *behind) {
    uint32_t token = tool->specification->marker_token;
    uint32_t marker =
        token == GRAMMAR_NO_TOKEN ? words(tool->rules, MARKER) : rules_token(tool->rules, token);
    uint32_t all[] = {words(tool->rules, before), marker, words(tool->rules, behind)};
    return rules_sequence(tool->rules, all, 3);
}

/* Any text that holds none of the parts. */
static uint32_t without(struct expressions *e, const char *const *parts, size_t count) {
    uint32_t any = expression_any_utf8(e), part = EXPRESSION_NOTHING;
    for (size_t i = 0; i < count; i++) {
        uint32_t either[] = {part, expression_literal(e, parts[i], strlen(parts[i]))};
        part = expression_either(e, either, 2);
    }
    uint32_t holds = expression_concatenate(e, any, expression_concatenate(e, part, any));
    uint32_t both[] = {any, expression_complement(e, holds)};
    return expression_both(e, both, 2);
}

/* Text between the tags of a parameter, and in JSON's strings there: who reads calls takes any of these for an end. */
static uint32_t text_between_tags(struct expressions *e) {
    static const char *const ends[] = {
        "</" MARKER " parameter>", "</" MARKER " invoke>", "</" MARKER " calls>"};
    return without(e, ends, sizeof ends / sizeof *ends);
}

/* The same for a parameter's raw text. Where the schema bounds it, only the nearest end is left out: a count beside a search for all three
 * has too many states. */
static uint32_t raw_text(struct expressions *e, uint32_t raw) {
    static const char *const end[] = {"</" MARKER " parameter>"};
    return raw == expression_any_utf8(e) ? text_between_tags(e) : without(e, end, 1);
}

/* A name ends with the quote behind it, and a call's reader takes tags for tags wherever they are. */
static enum result check_name(const char *name, size_t bytes, const char *what) {
    bool says = memchr(name, '"', bytes) || memchr(name, '<', bytes) || memchr(name, '>', bytes) ||
                memchr(name, '\n', bytes) || !bytes;
    return says ? fail(ERROR_INPUT, "%s must have a name without quotes, angle brackets and line ends", what)
                : OK;
}

static enum result add_parameter(void *context, const struct schema_parameter *parameter, bool *possible) {
    struct tool *tool = context;
    struct rules *rules = tool->rules;
    struct expressions *e = rules_expressions(rules);
    uint32_t ways[2], count = 0;
    uint32_t raw_list[] = {parameter->raw, raw_text(e, parameter->raw)};
    uint32_t raw = expression_both(e, raw_list, 2);
    TRY(check_name(parameter->name, parameter->bytes, "a parameter"));
    if (!expression_is_empty(e, raw)) {
        uint32_t way[] = {words(rules, "\" string=\"true\">"), rules_terminal(rules, raw)};
        ways[count++] = rules_sequence(rules, way, 2);
    }
    if (parameter->others != RULES_FAILED) {
        uint32_t way[] = {words(rules, "\" string=\"false\">"), parameter->others};
        ways[count++] = rules_sequence(rules, way, 2);
    }
    *possible = count || !parameter->required;
    if (!count)
        return OK;
    uint32_t all[] = {tag(tool, "<", " parameter name=\""), text(rules, parameter->name, parameter->bytes),
        rules_choice(rules, ways, count), tag(tool, "</", " parameter>\n")};
    uint32_t whole = rules_sequence(rules, all, 4), none = rules_sequence(rules, NULL, 0);
    uint32_t maybe[] = {none, whole};
    uint32_t both[] = {tool->way, parameter->required ? whole : rules_choice(rules, maybe, 2)};
    tool->way = rules_sequence(rules, both, 2);
    return OK;
}

static void begin_way(struct tool *tool) {
    tool->way = rules_sequence(tool->rules, NULL, 0);
}

static void end_way(void *context, bool possible) {
    struct tool *tool = context;
    if (possible) {
        uint32_t ways[] = {tool->body, tool->way};
        tool->body = tool->body == RULES_FAILED ? tool->way : rules_choice(tool->rules, ways, 2);
    }
    begin_way(tool);
}

/* The parameters as their schema says. */
static enum result hold_parameters(struct tool *tool, const struct json *schema) {
    struct schema_compiler *compiler = NULL;
    const struct schema_parameters_taker taker = {tool, add_parameter, end_way};
    tool->body = RULES_FAILED;
    begin_way(tool);
    TRY(schema_compiler_create(
        tool->rules, schema, "parameters", true, tool->specification->compact, &compiler));
    schema_compiler_bind_strings(compiler, text_between_tags(rules_expressions(tool->rules)));
    enum result status = schema_compile_parameters(compiler, schema, &taker);
    schema_compiler_free(compiler);
    return status;
}

/* Whether a grammar can hold parameters of this schema; tried apart, for what fails half-way leaves rules behind. */
static enum result can_hold(const struct tool *tool, const struct json *schema, bool *can) {
    struct rules *rules = NULL;
    struct grammar *grammar = NULL;
    TRY(rules_create(&rules));
    struct tool trial = {.rules = rules, .specification = tool->specification};
    enum result status = hold_parameters(&trial, schema);
    if (status == OK)
        status = rules_finish(rules, trial.body, &grammar);
    else
        rules_free(rules);
    grammar_free(grammar);
    *can = status == OK;
    return status == ERROR_INPUT ? OK : status;
}

/* The names that the schema declares, with any text or JSON value. */
static enum result name_parameters(struct tool *tool, const struct json *properties) {
    static const struct json nothing = {.kind = JSON_OBJECT};
    struct schema_compiler *compiler = NULL;
    struct schema_parameter parameter = {.raw = expression_any_utf8(rules_expressions(tool->rules))};
    bool possible = true;
    begin_way(tool);
    TRY(schema_compiler_create(
        tool->rules, &nothing, "parameters", false, tool->specification->compact, &compiler));
    schema_compiler_bind_strings(compiler, text_between_tags(rules_expressions(tool->rules)));
    enum result status = schema_compile(compiler, NULL, &parameter.others);
    for (const struct json *property = properties->first; property && status == OK;
         property = property->next) {
        parameter.name = property->key;
        parameter.bytes = property->key_bytes;
        status = add_parameter(tool, &parameter, &possible);
    }
    schema_compiler_free(compiler);
    tool->body = tool->way;
    return status;
}

/* A function that is not strict is held to its schema when grammars can, and else to the names of its parameters. */
static enum result compile_parameters(struct tool *tool, const struct json *function) {
    static const struct json nothing = {.kind = JSON_OBJECT};
    const struct json *schema = json_member(function, "parameters"), *said = json_member(function, "strict");
    if (!schema || schema->kind == JSON_NULL)
        schema = &nothing;
    const struct json *properties = json_member(schema, "properties");
    bool strict = said && said->kind != JSON_NULL ? said->kind == JSON_TRUE : tool->specification->strict;
    bool can = true;
    if (!strict && properties && properties->kind == JSON_OBJECT)
        TRY(can_hold(tool, schema, &can));
    return can ? hold_parameters(tool, schema) : name_parameters(tool, properties);
}

static enum result compile_tool(struct tool *tool, const struct json *function, uint32_t *node) {
    const struct json *name = json_member(function, "name");
    if (!name || name->kind != JSON_STRING)
        return fail(ERROR_INPUT, "a tool's function needs a 'name'");
    TRY(check_name(name->text, name->bytes, "a tool's function"));
    enum result status = compile_parameters(tool, function);
    if (status != OK)
        return fail_context(status, "tool \"%.100s\"", name->text);
    uint32_t all[] = {tag(tool, "<", " invoke name=\""), text(tool->rules, name->text, name->bytes),
        words(tool->rules, "\">\n"), tool->body, tag(tool, "</", " invoke>\n")};
    *node = rules_sequence(tool->rules, all, 5);
    return OK;
}

static enum result compile_calls(struct tool *tool, const struct json *tools, uint32_t *node) {
    const struct grammar_specification *specification = tool->specification;
    bool named = specification->tool_choice == GRAMMAR_TOOLS_NAMED;
    uint32_t calls[TOOLS_LIMIT];
    size_t count = 0;
    for (const struct json *item = tools->first; item; item = item->next) {
        const struct json *function = json_member(item, "function");
        if (named && !json_is_text(json_member(function, "name"), specification->tool_name))
            continue;
        if (count == TOOLS_LIMIT)
            return fail(ERROR_INPUT, "more than %d tools", TOOLS_LIMIT);
        TRY(compile_tool(tool, function, &calls[count++]));
    }
    if (!count)
        return fail(ERROR_INPUT, "there is no such tool to call");
    uint32_t call = rules_choice(tool->rules, calls, count);
    uint32_t all[] = {tag(tool, "<", " calls>\n"),
        rules_repeat(tool->rules, call, 1, named || specification->one_call ? 1 : -1),
        tag(tool, "</", " calls>")};
    *node = rules_sequence(tool->rules, all, 3);
    return OK;
}

enum result tools_compile(struct rules *rules, const struct json *tools,
    const struct grammar_specification *specification, uint32_t *root) {
    struct tool tool = {.rules = rules, .specification = specification};
    if (tools->kind != JSON_ARRAY)
        return fail(ERROR_INPUT, "'tools' must be a list");
    enum grammar_tool_choice choice = specification->tool_choice;
    static const char *const opening[] = {"<" MARKER " calls>"};
    uint32_t free_text = rules_terminal(rules, without(rules_expressions(rules), opening, 1));
    uint32_t calls = RULES_FAILED;
    *root = free_text;
    if (choice == GRAMMAR_TOOLS_NONE)
        return OK;
    TRY(compile_calls(&tool, tools, &calls));
    if (choice == GRAMMAR_TOOLS_AUTO) {
        uint32_t maybe[] = {rules_sequence(rules, NULL, 0), calls};
        uint32_t all[] = {free_text, rules_choice(rules, maybe, 2)};
        *root = rules_sequence(rules, all, 2);
    } else {
        uint32_t all[] = {words(rules, "\n\n"), calls};
        *root = rules_sequence(rules, all, 2);
    }
    return OK;
}

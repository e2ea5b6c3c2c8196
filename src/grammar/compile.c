#include "grammar/grammar.h"
#include "grammar/regex.h"
#include "grammar/rules.h"
#include "grammar/schema.h"
#include "grammar/tools.h"

static enum result compile_schema_text(struct rules *rules, struct json_document *document, const char *text,
    size_t bytes, const struct grammar_specification *specification, uint32_t *root) {
    const struct json *schema = NULL;
    struct schema_compiler *compiler = NULL;
    enum { TEXT_LIMIT = 1 << 20 };
    if (bytes > TEXT_LIMIT)
        return fail(ERROR_INPUT, "the schema is larger than 1 MiB");
    enum result status = json_parse(document, text, bytes, &schema);
    if (status != OK)
        return fail_context(status, "the schema is not JSON");
    status =
        schema_compiler_create(rules, schema, "#", specification->strict, specification->compact, &compiler);
    if (status == OK)
        status = schema_compile(compiler, schema, root);
    schema_compiler_free(compiler);
    return status;
}

static enum result compile_pattern(
    struct rules *rules, const struct grammar_specification *specification, uint32_t *root) {
    uint32_t expression = EXPRESSION_NOTHING;
    enum result status = regex_compile(
        rules_expressions(rules), specification->text, specification->bytes, REGEX_WHOLE, false, &expression);
    if (status != OK)
        return fail_context(status, "pattern");
    if (expression_is_empty(rules_expressions(rules), expression))
        return fail(ERROR_INPUT, "pattern: no text matches");
    *root = rules_terminal(rules, expression);
    return OK;
}

static enum result compile_tools(struct rules *rules, struct json_document *document,
    const struct grammar_specification *specification, uint32_t *root) {
    const struct json *tools = NULL;
    enum result status = json_parse(document, specification->text, specification->bytes, &tools);
    return status == OK ? tools_compile(rules, tools, specification, root)
                        : fail_context(status, "the tools are not JSON");
}

static enum result compile_root(struct rules *rules, struct json_document *document,
    const struct grammar_specification *specification, uint32_t *root) {
    static const char any_object[] = "{\"type\":\"object\"}";
    switch (specification->kind) {
    case GRAMMAR_SCHEMA:
        return compile_schema_text(
            rules, document, specification->text, specification->bytes, specification, root);
    case GRAMMAR_JSON_OBJECT:
        return compile_schema_text(rules, document, any_object, sizeof any_object - 1, specification, root);
    case GRAMMAR_REGEX:
        return compile_pattern(rules, specification, root);
    case GRAMMAR_TOOLS:
        return compile_tools(rules, document, specification, root);
    }
    return fail(ERROR_INTERNAL, "unknown kind of grammar");
}

enum result grammar_compile(const struct grammar_specification *specification, struct grammar **grammar) {
    struct rules *rules = NULL;
    struct json_document *document = NULL;
    uint32_t root = RULES_FAILED;
    *grammar = NULL;
    TRY(rules_create(&rules));
    expressions_limit_work(rules_expressions(rules), GRAMMAR_WORK_LIMIT);
    enum result status = json_document_create(&document);
    if (status == OK) {
        json_document_refuse_duplicates(document);
        status = compile_root(rules, document, specification, &root);
    }
    json_document_free(document);
    if (status != OK) {
        rules_free(rules);
        return status;
    }
    return rules_finish(rules, root, grammar);
}

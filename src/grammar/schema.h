/* JSON Schema (draft 2020-12) -> rules. */
#ifndef NOCTURNE_GRAMMAR_SCHEMA_H
#define NOCTURNE_GRAMMAR_SCHEMA_H

#include "base/json.h"
#include "grammar/rules.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* uint32_t */

struct schema_compiler;

/* `root` is the document that `#` stands for; it must outlive the compiler. `base`: what paths in messages
 * start with. */
MUST_CHECK enum result schema_compiler_create(struct rules *rules, const struct json *root, const char *base,
    bool strict, bool compact, struct schema_compiler **compiler);
/* What stands between the quotes of strings and keys, unless the schema lists them, must be a text of `spellings`, too. */
void schema_compiler_bind_strings(struct schema_compiler *compiler, uint32_t spellings);
void schema_compiler_free(struct schema_compiler *compiler); /* NULL is allowed */

/* The node of the values that fit `schema` (NULL: any value). ERROR_INPUT names the keyword and its path. */
MUST_CHECK enum result schema_compile(
    struct schema_compiler *compiler, const struct json *schema, uint32_t *node);

/* A parameter of a tool: its strings as an expression over their raw text (EXPRESSION_NOTHING: none), and all
 * other values as a node (RULES_FAILED: none). */
struct schema_parameter {
    const char *name;
    size_t bytes;
    bool required;
    uint32_t raw, others;
};

/* Who is told of a function's parameters. A schema with anyOf or oneOf has several ways to give them. */
struct schema_parameters_taker {
    void *context;
    /* A parameter of the way, in order. `*possible` false (it is true before): the way has no texts for it. */
    enum result (*take)(void *context, const struct schema_parameter *parameter, bool *possible);
    /* All parameters of a way were told; not `possible`: no text goes this way. */
    void (*end_way)(void *context, bool possible);
};

/* Tells of each key that a schema of objects declares. ERROR_INPUT, too, when no object fits. */
MUST_CHECK enum result schema_compile_parameters(
    struct schema_compiler *compiler, const struct json *schema, const struct schema_parameters_taker *taker);

#endif

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
void schema_compiler_free(struct schema_compiler *compiler); /* NULL is allowed */

/* The node of the values that fit `schema` (NULL: any value). ERROR_INPUT names the keyword and its path. */
MUST_CHECK enum result schema_compile(
    struct schema_compiler *compiler, const struct json *schema, uint32_t *node);

/* As schema_compile, but apart: the strings as an expression over their raw text (EXPRESSION_NOTHING: none),
 * and all other values as a node (RULES_FAILED: none). */
MUST_CHECK enum result schema_compile_parameter(
    struct schema_compiler *compiler, const struct json *schema, uint32_t *raw, uint32_t *others);

/* Any object. */
MUST_CHECK enum result schema_compile_any_object(struct schema_compiler *compiler, uint32_t *node);

/* The declared keys of a schema of objects, in order: calls `take` for each with its schema and whether it
 * is required. */
typedef enum result (*schema_property)(
    void *context, const char *key, size_t bytes, const struct json *schema, bool required);
MUST_CHECK enum result schema_properties(struct schema_compiler *compiler, const struct json *schema,
    schema_property take, void *context, bool *any_declared);

#endif

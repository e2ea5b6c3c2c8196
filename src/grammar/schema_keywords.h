/* Whether a schema's keywords have the values that they must have, and mean something that can be held. */
#ifndef NOCTURNE_GRAMMAR_SCHEMA_KEYWORDS_H
#define NOCTURNE_GRAMMAR_SCHEMA_KEYWORDS_H

#include "base/buffer.h"
#include "base/json.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64
};
enum { COUNTS_LIMIT = 1000000 };

/* Refuses the first keyword of `schema` (itself, not what lies within) that is wrong or not supported:
 * ERROR_INPUT, "'keyword' ...", without a path. */
MUST_CHECK enum result schema_check_keywords(const struct json *schema, bool is_root);

/* The types of a checked `type` keyword's value; all types for NULL. TYPE_NUMBER comes without TYPE_INTEGER. */
unsigned schema_types(const struct json *type);

/* A checked keyword's count, or `otherwise` when it is absent. */
int32_t schema_count(const struct json *schema, const char *keyword, int32_t otherwise);

/* Appends the JSON pointer from `root` to `value`; false when it is not within. */
bool schema_path(struct buffer *path, const struct json *root, const struct json *value);

#endif

/* A strict JSON reader (RFC 8259) and an escaping writer.
 *
 * Ours rather than a library's, because the chat protocol needs what Debian's libraries drop: the
 * spelling of numbers (64-bit integers, and doubles printed back as they were), "last of duplicate keys
 * wins", a depth limit and refusal of invalid UTF-8, raw control characters and lone surrogates, with
 * the position of the fault. */
#ifndef NOCTURNE_BASE_JSON_H
#define NOCTURNE_BASE_JSON_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

enum json_kind { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

/* One value, immutable, owned by its document. Texts and keys are NUL-terminated. */
struct json {
    enum json_kind kind;
    size_t bytes;             /* JSON_STRING: bytes of text; JSON_NUMBER: bytes of its spelling */
    const char *text;         /* JSON_STRING: unescaped UTF-8, may hold NULs; JSON_NUMBER: spelling */
    size_t count;             /* JSON_ARRAY: elements; JSON_OBJECT: members, duplicates already dropped */
    const struct json *first; /* JSON_ARRAY, JSON_OBJECT: first child or NULL */
    const struct json *next;  /* the next child of the same parent, or NULL */
    const char *key;          /* as a member: its name; else NULL */
    size_t key_bytes;
};

/* Memory of parsed values; reused from one parse to the next so that reading many lines takes flat memory. */
struct json_document;

MUST_CHECK enum result json_document_create(struct json_document **document);
/* From now on a key that comes twice in one object is refused (ERROR_INPUT). */
void json_document_refuse_duplicates(struct json_document *document);
void json_document_free(struct json_document *document); /* NULL is allowed */

enum { JSON_DEPTH_LIMIT = 128 }; /* as serde_json, which the published toolkit uses */

/* Parses exactly one value (blanks around it allowed). `text` is not changed and not kept. Values of the
 * document's earlier parse are gone. ERROR_INPUT: the message says what is wrong and at which line and
 * column (1-based, in bytes). A byte order mark is refused. Duplicate keys: the last value, at the place
 * of the first. Numbers that do not fit a double ("1e999") are refused. */
MUST_CHECK enum result json_parse(
    struct json_document *document, const char *text, size_t bytes, const struct json **root);

/* Reads and parses a whole file; the message names it. */
MUST_CHECK enum result json_parse_file(
    struct json_document *document, const char *path, const struct json **root);

/* The member `key` of an object, or NULL (also when `value` is NULL or no object). O(members). */
const struct json *json_member(const struct json *value, const char *key);

/* True and the value, when `value` is a number written as an integer (no '.', 'e') that fits. */
bool json_int64(const struct json *value, int64_t *number);
bool json_uint64(const struct json *value, uint64_t *number);
/* True and the nearest double, when `value` is a number. */
bool json_double(const struct json *value, double *number);
bool json_is_text(const struct json *value, const char *text);
/* "null", "boolean", "number", "string", "array", "object"; "absent" for NULL. For messages. */
const char *json_kind_name(const struct json *value);

#endif

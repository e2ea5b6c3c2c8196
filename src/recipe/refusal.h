/* Why a request's body is refused: what goes into an API reply of status 400. */
#ifndef NOCTURNE_RECIPE_REFUSAL_H
#define NOCTURNE_RECIPE_REFUSAL_H

#include "base/error.h" /* PRINTF_LIKE */
#include "base/json.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */

struct refusal {
    const char *code;   /* one of the words below */
    char param[128];    /* path of the field, such as "messages[2].content" */
    char message[1024]; /* valid UTF-8 */
};

#define CODE_MISSING "missing_required_parameter"
#define CODE_TYPE "invalid_type"
#define CODE_VALUE "invalid_value"
#define CODE_UNSUPPORTED "unsupported_parameter" /* part of the protocol, not of this version */
#define CODE_UNKNOWN "unknown_parameter"

/* Fills the refusal; returns false, so that a reader of a field can end with it. The message becomes
 * "param: text". */
bool refuse(struct refusal *refusal, const char *code, const char *param, const char *format, ...)
    PRINTF_LIKE(4, 5);

/* "param: expected X, found Y", with the code for an absent value, a wrong type or a wrong value. */
bool refuse_value(struct refusal *refusal, const char *param, const char *expected, const struct json *found);

/* A short form of a value for messages: numbers and strings as spelled and cut to a few characters, else
 * the kind. */
struct json_excerpt {
    char text[64];
};
struct json_excerpt json_excerpt(const struct json *value);

/* Copies as much as fits of `text` without cutting a character, and a NUL. */
void copy_text(char *to, size_t capacity, const char *text, size_t bytes);

#endif

#include "recipe/refusal.h"

#include <stdarg.h> /* va_list */
#include <stdio.h>  /* vsnprintf, snprintf */
#include <string.h> /* memcpy */

enum { EXCERPT_BYTES = 48 };

void copy_text(char *to, size_t capacity, const char *text, size_t bytes) {
    if (bytes >= capacity) {
        bytes = capacity - 1;
        while (bytes > 0 && ((unsigned char)text[bytes] & 0xC0) == 0x80)
            bytes--;
    }
    if (bytes)
        memcpy(to, text, bytes);
    to[bytes] = 0;
}

struct json_excerpt json_excerpt(const struct json *value) {
    struct json_excerpt excerpt;
    char text[EXCERPT_BYTES + 1];
    if (value && (value->kind == JSON_STRING || value->kind == JSON_NUMBER)) {
        const char *quote = value->kind == JSON_STRING ? "\"" : "";
        copy_text(text, sizeof text, value->text, value->bytes);
        const char *rest = value->bytes > EXCERPT_BYTES ? "..." : "";
        snprintf(excerpt.text, sizeof excerpt.text, "%s%s%s%s", quote, text, rest, quote);
    } else if (value && (value->kind == JSON_TRUE || value->kind == JSON_FALSE))
        snprintf(excerpt.text, sizeof excerpt.text, "%s", value->kind == JSON_TRUE ? "true" : "false");
    else
        snprintf(excerpt.text, sizeof excerpt.text, "%s", json_kind_name(value));
    return excerpt;
}

bool refuse(struct refusal *refusal, const char *code, const char *param, const char *format, ...) {
    char text[sizeof refusal->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    refusal->code = code;
    copy_text(refusal->param, sizeof refusal->param, param, strlen(param));
    char message[sizeof refusal->param + sizeof text + 2];
    snprintf(message, sizeof message, "%s: %s", refusal->param, text);
    copy_text(refusal->message, sizeof refusal->message, message, strlen(message));
    return false;
}

bool refuse_value(
    struct refusal *refusal, const char *param, const char *expected, const struct json *found) {
    if (!found)
        return refuse(
            refusal, CODE_MISSING, param, "expected %s, found nothing: the field is required", expected);
    bool spelled = found->kind == JSON_STRING || found->kind == JSON_NUMBER;
    return refuse(refusal, spelled ? CODE_VALUE : CODE_TYPE, param, "expected %s, found %s", expected,
        json_excerpt(found).text);
}

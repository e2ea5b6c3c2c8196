#include "base/buffer.h"

#include "base/utf8.h" /* utf8_decode */

#include <float.h>   /* FLT_MIN */
#include <math.h>    /* isfinite, fabsf */
#include <stdarg.h>  /* va_list */
#include <stdbool.h> /* bool */
#include <stdio.h>   /* vsnprintf, fprintf */
#include <stdlib.h>  /* realloc, abort, strtof */
#include <string.h>  /* memcpy, strlen */

enum { FLOAT_TEXT_BYTES = 32, FLOAT_DIGITS_SURE = 6, FLOAT_DIGITS_MOST = 9 };

/* Makes room for `more` bytes and the NUL. */
static void reserve(struct buffer *buffer, size_t more) {
    size_t needed = buffer->bytes + more + 1;
    if (needed <= buffer->capacity)
        return;
    size_t capacity = buffer->capacity ? buffer->capacity : 256;
    while (capacity < needed)
        capacity *= 2;
    char *data = realloc(buffer->data, capacity);
    if (!data) {
        fprintf(stderr, "nocturne: no memory for a text of %zu bytes\n", needed);
        abort();
    }
    buffer->data = data;
    buffer->capacity = capacity;
}

void buffer_free(struct buffer *buffer) {
    free(buffer->data);
    *buffer = (struct buffer){0};
}

void buffer_clear(struct buffer *buffer) {
    buffer->bytes = 0;
    if (buffer->data)
        buffer->data[0] = 0;
}

void buffer_append(struct buffer *buffer, const void *data, size_t bytes) {
    reserve(buffer, bytes);
    if (bytes)
        memcpy(buffer->data + buffer->bytes, data, bytes);
    buffer->bytes += bytes;
    buffer->data[buffer->bytes] = 0;
}

void buffer_append_text(struct buffer *buffer, const char *text) {
    buffer_append(buffer, text, strlen(text));
}

void buffer_printf(struct buffer *buffer, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    reserve(buffer, 64);
    size_t room = buffer->capacity - buffer->bytes;
    int length = vsnprintf(buffer->data + buffer->bytes, room, format, arguments);
    if (length > 0 && (size_t)length >= room) {
        reserve(buffer, (size_t)length);
        vsnprintf(buffer->data + buffer->bytes, (size_t)length + 1, format, again);
    }
    buffer->bytes += length > 0 ? (size_t)length : 0;
    buffer->data[buffer->bytes] = 0;
    va_end(again);
    va_end(arguments);
}

static inline bool needs_escape(unsigned char c) {
    return c < 0x20 || c == '"' || c == '\\';
}

static void append_escaped(struct buffer *buffer, unsigned char c) {
    static const char names[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    const char *value = c ? strchr(values, c) : NULL;
    if (value) {
        char escape[2] = {'\\', names[value - values]};
        buffer_append(buffer, escape, sizeof escape);
    } else
        buffer_printf(buffer, "\\u%04x", c);
}

void buffer_append_json_string(struct buffer *buffer, const char *text, size_t bytes) {
    size_t run = 0; /* start of the bytes not yet copied */
    reserve(buffer, bytes + 2);
    buffer_append(buffer, "\"", 1);
    for (size_t i = 0; i < bytes;) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x80 && !needs_escape(c)) {
            i++;
            continue;
        }
        uint32_t character;
        unsigned length = utf8_decode(text + i, bytes - i, &character);
        if (length > 1) {
            i += length;
            continue;
        }
        buffer_append(buffer, text + run, i - run);
        if (length) {
            append_escaped(buffer, c);
            i++;
        } else {
            buffer_append(buffer, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
            i += character; /* here the length of the invalid part */
        }
        run = i;
    }
    if (run < bytes) /* an empty text may be NULL */
        buffer_append(buffer, text + run, bytes - run);
    buffer_append(buffer, "\"", 1);
}

void buffer_append_json_float(struct buffer *buffer, float value) {
    if (!isfinite(value)) {
        buffer_append(buffer, "null", 4);
        return;
    }
    /* %g drops trailing zeros, and six digits hold every shorter spelling of a normal float; subnormals
     * have fewer significant bits, so that all lengths are tried. */
    char text[FLOAT_TEXT_BYTES];
    int digits = fabsf(value) < FLT_MIN ? 1 : FLOAT_DIGITS_SURE;
    for (; digits <= FLOAT_DIGITS_MOST; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    buffer_append_text(buffer, text);
}

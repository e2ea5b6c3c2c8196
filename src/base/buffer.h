/* A growing byte buffer, for building text. */
#ifndef NOCTURNE_BASE_BUFFER_H
#define NOCTURNE_BASE_BUFFER_H

#include "base/error.h"

#include <stddef.h> /* size_t */

/* Zero-initialize; free with buffer_free. Data stay NUL-terminated (the NUL is not counted in `bytes`).
 * Appending past memory aborts the program with a message: its users build text of bounded size. */
struct buffer {
    char *data;
    size_t bytes, capacity;
};

void buffer_free(struct buffer *buffer);
void buffer_clear(struct buffer *buffer); /* keeps the memory */
void buffer_append(struct buffer *buffer, const void *data, size_t bytes);
void buffer_append_text(struct buffer *buffer, const char *text);
void buffer_printf(struct buffer *buffer, const char *format, ...) PRINTF_LIKE(2, 3);
/* Appends a JSON string with quotes: ", \ and controls escaped, other UTF-8 raw, invalid UTF-8 as U+FFFD. */
void buffer_append_json_string(struct buffer *buffer, const char *text, size_t bytes);
/* Appends a float as JSON: shortest digits that read back to the same float; null for NaN and infinities. */
void buffer_append_json_float(struct buffer *buffer, float value);

#endif

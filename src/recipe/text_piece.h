/* A stretch of text that somebody else owns. */
#ifndef NOCTURNE_RECIPE_TEXT_PIECE_H
#define NOCTURNE_RECIPE_TEXT_PIECE_H

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <string.h>  /* memcmp */

struct text_piece {
    const char *data; /* UTF-8, not NUL-terminated; may hold NULs */
    size_t bytes;
};

static inline bool text_equal(struct text_piece a, struct text_piece b) {
    return a.bytes == b.bytes && (!a.bytes || !memcmp(a.data, b.data, a.bytes));
}

static inline struct text_piece text_of(const char *text) {
    return (struct text_piece){.data = text, .bytes = strlen(text)};
}

#endif

/* Memory for what is read from one line of requests: taken piece by piece, given back all at once, and used
 * again for the next line. */
#ifndef NOCTURNE_RECIPE_ARENA_H
#define NOCTURNE_RECIPE_ARENA_H

#include "recipe/text_piece.h"

#include <stddef.h> /* size_t */

struct arena_block;

/* Zero-initialize; free with arena_free. */
struct arena {
    struct arena_block *first, *current; /* blocks after `current` are unused */
};

void arena_free(struct arena *arena);
void arena_clear(struct arena *arena); /* keeps the memory */

/* Zeroed memory, aligned for any type, valid until arena_clear. Like a struct buffer it aborts the program
 * when there is none: a line of bounded length needs a bounded amount. */
void *arena_take(struct arena *arena, size_t bytes);

/* A copy of `text`. */
struct text_piece arena_copy(struct arena *arena, struct text_piece text);

/* `first`, `between` and `second` as one text. */
struct text_piece arena_join(
    struct arena *arena, struct text_piece first, const char *between, struct text_piece second);

#endif

/* Finds names given in one line of requests, however many there are, in constant time each. */
#ifndef NOCTURNE_RECIPE_NAME_INDEX_H
#define NOCTURNE_RECIPE_NAME_INDEX_H

#include "recipe/arena.h"
#include "recipe/text_piece.h"

#include <stddef.h> /* size_t, ptrdiff_t */

struct name_slot;

/* Lives in an arena, with room for a number of names that is fixed at the start. */
struct name_index {
    struct name_slot *slots;
    size_t mask;
};

struct name_index name_index_create(struct arena *arena, size_t names);
/* Returns NULL when the name is new, else the value it was added with; a new value is not taken then. */
void *name_index_add(struct name_index *index, struct text_piece name, void *value);
/* The value the name was added with, or NULL. */
void *name_index_find(const struct name_index *index, struct text_piece name);

#endif

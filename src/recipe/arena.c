#include "recipe/arena.h"

#include <stdalign.h> /* alignas, alignof */
#include <stdio.h>    /* fprintf */
#include <stdlib.h>   /* malloc, free, abort */
#include <string.h>   /* memset, memcpy */

enum { BLOCK_BYTES = 64 << 10 };

struct arena_block {
    struct arena_block *next;
    size_t bytes, used;
    alignas(max_align_t) char data[];
};

void arena_free(struct arena *arena) {
    while (arena->first) {
        struct arena_block *next = arena->first->next;
        free(arena->first);
        arena->first = next;
    }
    arena->current = NULL;
}

void arena_clear(struct arena *arena) {
    for (struct arena_block *block = arena->first; block; block = block->next)
        block->used = 0;
    arena->current = arena->first;
}

static struct arena_block *new_block(size_t bytes) {
    size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    struct arena_block *block = malloc(sizeof *block + room);
    if (!block) {
        fprintf(stderr, "nocturne: no memory for %zu bytes of a request\n", room);
        abort();
    }
    *block = (struct arena_block){.bytes = room};
    return block;
}

/* Makes a block with room for `bytes` the current one. */
static struct arena_block *next_block(struct arena *arena, size_t bytes) {
    struct arena_block **link = arena->current ? &arena->current->next : &arena->first;
    while (*link && (*link)->bytes < bytes)
        link = &(*link)->next;
    if (!*link)
        *link = new_block(bytes);
    arena->current = *link;
    return *link;
}

void *arena_take(struct arena *arena, size_t bytes) {
    struct arena_block *block = arena->current;
    bytes = (bytes + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
    if (!block || block->bytes - block->used < bytes)
        block = next_block(arena, bytes);
    void *memory = block->data + block->used;
    block->used += bytes;
    memset(memory, 0, bytes);
    return memory;
}

struct text_piece arena_copy(struct arena *arena, struct text_piece text) {
    char *copy = arena_take(arena, text.bytes + 1);
    if (text.bytes)
        memcpy(copy, text.data, text.bytes);
    return (struct text_piece){.data = copy, .bytes = text.bytes};
}

static char *put(char *to, struct text_piece text) {
    if (text.bytes)
        memcpy(to, text.data, text.bytes);
    return to + text.bytes;
}

struct text_piece arena_join(
    struct arena *arena, struct text_piece first, const char *between, struct text_piece second) {
    struct text_piece middle = text_of(between);
    size_t bytes = first.bytes + middle.bytes + second.bytes;
    char *joined = arena_take(arena, bytes + 1);
    put(put(put(joined, first), middle), second);
    return (struct text_piece){joined, bytes};
}

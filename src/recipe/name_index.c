#include "recipe/name_index.h"

#include <stdint.h> /* uint64_t */

#define XXH_INLINE_ALL
#include <xxhash.h> /* XXH3_64bits */

struct name_slot {
    struct text_piece name;
    void *value; /* NULL: free */
};

struct name_index name_index_create(struct arena *arena, size_t names) {
    size_t slots = 8;
    while (slots < 2 * names)
        slots *= 2;
    return (struct name_index){
        .slots = arena_take(arena, slots * sizeof(struct name_slot)), .mask = slots - 1};
}

/* The name's slot, or the free one where it belongs. */
static struct name_slot *find_slot(const struct name_index *index, struct text_piece name) {
    size_t i = (size_t)XXH3_64bits(name.data, name.bytes) & index->mask;
    while (index->slots[i].value && !text_equal(index->slots[i].name, name))
        i = (i + 1) & index->mask;
    return &index->slots[i];
}

void *name_index_add(struct name_index *index, struct text_piece name, void *value) {
    struct name_slot *slot = find_slot(index, name);
    if (slot->value)
        return slot->value;
    *slot = (struct name_slot){.name = name, .value = value};
    return NULL;
}

void *name_index_find(const struct name_index *index, struct text_piece name) {
    return find_slot(index, name)->value;
}

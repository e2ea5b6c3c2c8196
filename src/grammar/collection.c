/* Throws away parts of an automaton that can be made again: without this a grammar that many answers share would grow
 * with all that they say. Sets that matchers' histories or kept masks need stay, with their frames and expressions. */
#include "grammar/automaton.h"

#include <stdlib.h> /* malloc, realloc, free, qsort */
#include <string.h> /* memset */

/* The limit grows where the work would else be done anew again and again: collections come at least so many calls
 * apart, unless the tables are large. */
enum { CALLS_BETWEEN_COLLECTIONS = 200, GONE = UINT32_MAX };
static const size_t GROWN_LIMIT = (size_t)16 << 20;

/* The new numbers, or GONE. */
struct collection {
    uint32_t *sets, *frames;
    uint32_t (*rows)[2]; /* place and set of each row */
};

static void keep_set(struct collection *collection, uint32_t set) {
    collection->sets[set] = 0;
}

static void keep_needed_sets(const struct automaton *automaton, struct collection *collection) {
    memset(collection->sets, 0xFF, automaton->sets.count * sizeof(uint32_t));
    keep_set(collection, DEAD_SET);
    keep_set(collection, automaton->start);
    for (const struct grammar_matcher *matcher = automaton->matchers; matcher; matcher = matcher->next)
        for (size_t i = 0; i < matcher->count; i++)
            keep_set(collection, matcher->history[i]);
    for (size_t i = 1; i < automaton->masks.count; i++)
        keep_set(collection, ((const struct kept_mask *)automaton->masks.data)[i].set);
}

/* The frames and expressions of kept sets; parents have lower numbers. */
static void keep_needed_frames(struct grammar *grammar, struct collection *collection) {
    const struct automaton *automaton = grammar->automaton;
    memset(collection->frames, 0xFF, automaton->frames.count * sizeof(uint32_t));
    collection->frames[0] = 0;
    for (uint32_t i = 0; i < automaton->sets.count; i++) {
        const struct set *set = set_at(automaton, i);
        const struct configuration *all = configurations_of(automaton, set);
        for (uint32_t j = 0; collection->sets[i] != GONE && j < set->count; j++) {
            collection->frames[all[j].frame] = 0;
            if (!(all[j].state & TOKEN_FLAG))
                expressions_keep(grammar->expressions, all[j].state);
        }
    }
    for (uint32_t i = (uint32_t)automaton->frames.count; i-- > 0;)
        if (collection->frames[i] != GONE)
            collection->frames[frame_at(automaton, i)->parent] = 0;
    for (size_t i = 0; i < grammar->node_count; i++)
        if (grammar->nodes[i].kind == RULE_TERMINAL)
            expressions_keep(grammar->expressions, grammar->nodes[i].a);
}

static void move_frames(struct automaton *automaton, struct collection *collection) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < automaton->frames.count; i++) {
        if (collection->frames[i] == GONE)
            continue;
        struct frame frame = *frame_at(automaton, i);
        collection->frames[i] = kept;
        frame.parent = collection->frames[frame.parent];
        frame.masked = 0;
        *frame_at(automaton, kept++) = frame;
    }
    automaton->frames.count = kept;
}

/* Rows keep the successors that are kept, and their order. */
static void move_row(
    const struct grammar *grammar, const struct collection *collection, struct set *set, size_t *used) {
    uint32_t *rows = grammar->automaton->rows.data, classes = 0;
    (void)expression_classes(grammar->expressions, set->partition, &classes);
    for (uint32_t i = 0; i < classes; i++) {
        uint32_t next = rows[set->row - 1 + i];
        rows[*used + i] = next == UNKNOWN_SET || collection->sets[next] == GONE ? UNKNOWN_SET : next;
    }
    set->row = (uint32_t)*used + 1;
    *used += classes;
}

static void move_set(
    struct grammar *grammar, const struct collection *collection, struct set *set, size_t *configurations) {
    struct automaton *automaton = grammar->automaton;
    struct configuration *all = automaton->configurations.data;
    for (uint32_t i = 0; i < set->count; i++) {
        struct configuration at = all[set->first + i];
        if (!(at.state & TOKEN_FLAG))
            at.state = expressions_moved(grammar->expressions, at.state);
        at.frame = collection->frames[at.frame];
        all[*configurations + i] = at;
    }
    set->first = (uint32_t)*configurations;
    *configurations += set->count;
}

/* Sets, configurations and rows lie in the order in which they were made, but for rows, which are sorted first. */
static int compare_rows(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return (x[0] > y[0]) - (x[0] < y[0]);
}

/* Moves rows, from the first to the last in memory. */
static void move_rows(struct grammar *grammar, const struct collection *collection) {
    struct automaton *automaton = grammar->automaton;
    uint32_t(*order)[2] = collection->rows;
    size_t count = 0, used = 0;
    for (uint32_t i = 0; i < automaton->sets.count; i++)
        if (collection->sets[i] != GONE && set_at(automaton, i)->row) {
            order[count][0] = set_at(automaton, i)->row;
            order[count++][1] = i;
        }
    qsort(order, count, sizeof *order, compare_rows);
    for (size_t i = 0; i < count; i++)
        move_row(grammar, collection, set_at(automaton, order[i][1]), &used);
    automaton->rows.count = used;
}

static void renumber_sets(struct automaton *automaton, struct collection *collection) {
    uint32_t *rows = automaton->rows.data, kept = 0;
    for (uint32_t i = 0; i < automaton->sets.count; i++)
        if (collection->sets[i] != GONE) {
            collection->sets[i] = kept;
            *set_at(automaton, kept++) = *set_at(automaton, i);
        }
    automaton->sets.count = kept;
    for (uint32_t i = 0; i < kept; i++) {
        uint32_t masked = collection->sets[set_at(automaton, i)->masked];
        set_at(automaton, i)->masked = masked == GONE ? 0 : masked;
    }
    for (size_t i = 0; i < automaton->rows.count; i++)
        rows[i] = rows[i] == UNKNOWN_SET ? UNKNOWN_SET : collection->sets[rows[i]];
    automaton->start = collection->sets[automaton->start];
    for (struct grammar_matcher *matcher = automaton->matchers; matcher; matcher = matcher->next)
        for (size_t i = 0; i < matcher->count; i++)
            matcher->history[i] = collection->sets[matcher->history[i]];
    struct kept_mask *masks = automaton->masks.data;
    for (size_t i = 1; i < automaton->masks.count; i++)
        masks[i].set = collection->sets[masks[i].set];
}

static void shrink(struct array *array, size_t item) {
    size_t capacity = array->count + array->count / 4 + 32;
    void *data = capacity < array->capacity ? realloc(array->data, capacity * item) : NULL;
    if (data) {
        array->data = data;
        array->capacity = capacity;
    }
}

static void move_all(struct grammar *grammar, struct collection *collection) {
    struct automaton *automaton = grammar->automaton;
    size_t configurations = 0;
    move_rows(grammar, collection);
    for (size_t i = 0; i < grammar->node_count; i++)
        if (grammar->nodes[i].kind == RULE_TERMINAL)
            grammar->nodes[i].a = expressions_moved(grammar->expressions, grammar->nodes[i].a);
    move_frames(automaton, collection);
    for (uint32_t i = 0; i < automaton->sets.count; i++)
        if (collection->sets[i] != GONE)
            move_set(grammar, collection, set_at(automaton, i), &configurations);
    automaton->configurations.count = configurations;
    renumber_sets(automaton, collection);
    shrink(&automaton->frames, sizeof(struct frame));
    shrink(&automaton->sets, sizeof(struct set));
    shrink(&automaton->configurations, sizeof(struct configuration));
    shrink(&automaton->rows, sizeof(uint32_t));
    automaton_rehash(automaton);
}

static size_t table_bytes(const struct grammar *grammar) {
    return automaton_bytes(grammar->automaton) + expressions_bytes(grammar->expressions);
}

static void set_limit(struct grammar *grammar) {
    struct automaton *automaton = grammar->automaton;
    bool soon = automaton->calls - automaton->collected < CALLS_BETWEEN_COLLECTIONS;
    size_t needed = table_bytes(grammar);
    if (soon && automaton->limit < GROWN_LIMIT)
        automaton->limit += automaton->limit / 2;
    if (automaton->limit < needed + needed / 2)
        automaton->limit = needed + needed / 2;
    automaton->collected = automaton->calls;
}

void automaton_collect(struct grammar *grammar) {
    struct automaton *automaton = grammar->automaton;
    automaton->calls++;
    if (table_bytes(grammar) <= automaton->limit)
        return;
    struct collection collection = {.sets = malloc(automaton->sets.count * sizeof(uint32_t)),
        .frames = malloc(automaton->frames.count * sizeof(uint32_t)),
        .rows = malloc(automaton->sets.count * sizeof *collection.rows)};
    /* Without memory for it the tables just stay. */
    if (collection.sets && collection.frames && collection.rows &&
        expressions_begin_collection(grammar->expressions)) {
        keep_needed_sets(automaton, &collection);
        keep_needed_frames(grammar, &collection);
        if (expressions_end_collection(grammar->expressions))
            move_all(grammar, &collection);
    }
    free(collection.sets);
    free(collection.frames);
    free(collection.rows);
    set_limit(grammar);
}

#include "grammar/automaton.h"

#include <stdlib.h> /* calloc, malloc, realloc, free, qsort */
#include <string.h> /* memcpy, memset, memcmp */

enum { CLOSURE_LIMIT = 20000 };
static const size_t HARD_LIMIT = (size_t)256
                                 << 20; /* of a grammar's tables, all of which are needed at once */

static enum result out_of_memory(void) {
    return fail(ERROR_MEMORY, "no memory to follow a grammar");
}

enum result array_grow(struct array *array, size_t item, size_t more) {
    if (array->count + more <= array->capacity)
        return OK;
    size_t capacity = array->capacity ? array->capacity * 3 / 2 : 32;
    while (capacity < array->count + more)
        capacity *= 2;
    void *data = realloc(array->data, capacity * item);
    if (!data)
        return out_of_memory();
    array->data = data;
    array->capacity = capacity;
    return OK;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 31;
}

/* ---- frames ---- */

static uint64_t hash_frame(const struct frame *frame) {
    return mix(mix(frame->depth, (uint64_t)frame->node << 32 | frame->index), frame->parent);
}

static void fill_frame_buckets(struct automaton *automaton) {
    memset(automaton->frame_buckets, 0, automaton->frame_bucket_count * sizeof(uint32_t));
    for (uint32_t i = 1; i < automaton->frames.count; i++) {
        struct frame *frame = frame_at(automaton, i);
        uint32_t *bucket = &automaton->frame_buckets[hash_frame(frame) & (automaton->frame_bucket_count - 1)];
        frame->next = *bucket;
        *bucket = i;
    }
}

/* Twice as many buckets. */
static enum result grow_buckets(uint32_t **buckets, size_t *count) {
    size_t grown = *count ? *count * 2 : 64;
    uint32_t *moved = realloc(*buckets, grown * sizeof *moved);
    if (!moved)
        return out_of_memory();
    *buckets = moved;
    *count = grown;
    return OK;
}

static enum result intern_frame(struct automaton *automaton, struct frame wanted, uint32_t *number) {
    if (automaton->frames.count >= automaton->frame_bucket_count) {
        TRY(grow_buckets(&automaton->frame_buckets, &automaton->frame_bucket_count));
        fill_frame_buckets(automaton);
    }
    uint32_t *bucket = &automaton->frame_buckets[hash_frame(&wanted) & (automaton->frame_bucket_count - 1)];
    for (uint32_t i = *bucket; i; i = frame_at(automaton, i)->next) {
        const struct frame *frame = frame_at(automaton, i);
        if (frame->node == wanted.node && frame->index == wanted.index && frame->parent == wanted.parent &&
            frame->depth == wanted.depth) {
            *number = i;
            return OK;
        }
    }
    TRY(array_grow(&automaton->frames, sizeof(struct frame), 1));
    *number = (uint32_t)automaton->frames.count++;
    wanted.next = *bucket;
    *frame_at(automaton, *number) = wanted;
    *bucket = *number;
    return OK;
}

/* ---- closure: all configurations before the next byte ---- */

static void begin_closure(struct automaton *automaton) {
    automaton->work.count = automaton->found.count = 0;
    automaton->accepting = false;
    automaton->visited_count = 0;
    if (++automaton->closures == 0) {
        memset(automaton->visited, 0, automaton->visited_capacity * sizeof *automaton->visited);
        automaton->closures = 1;
    }
}

/* The place of the key in a table of visits, or a free one for it. */
static struct visit *visit_of(struct visit *table, size_t capacity, uint32_t closure, uint64_t key) {
    size_t place = mix(0, key) & (capacity - 1);
    while (table[place].closure == closure && table[place].key != key)
        place = (place + 1) & (capacity - 1);
    return &table[place];
}

static enum result grow_visited(struct automaton *automaton) {
    size_t capacity = automaton->visited_capacity ? automaton->visited_capacity * 2 : 64;
    struct visit *table = calloc(capacity, sizeof *table);
    if (!table)
        return out_of_memory();
    for (size_t i = 0; i < automaton->visited_capacity; i++) {
        struct visit visit = automaton->visited[i];
        if (visit.closure == automaton->closures)
            *visit_of(table, capacity, visit.closure, visit.key) = visit;
    }
    free(automaton->visited);
    automaton->visited = table;
    automaton->visited_capacity = capacity;
    return OK;
}

/* Whether node and frame come for the first time. */
static enum result first_visit(struct automaton *automaton, uint32_t node, uint32_t frame, bool *first) {
    if (automaton->visited_count * 2 >= automaton->visited_capacity)
        TRY(grow_visited(automaton));
    uint64_t key = (uint64_t)node << 32 | frame;
    struct visit *visit = visit_of(automaton->visited, automaton->visited_capacity, automaton->closures, key);
    *first = visit->closure != automaton->closures;
    *visit = (struct visit){key, automaton->closures};
    automaton->visited_count += *first;
    if (automaton->visited_count > CLOSURE_LIMIT)
        return fail(ERROR_INPUT, "the grammar is too ambiguous: more than %d ways to go on", CLOSURE_LIMIT);
    return OK;
}

static enum result push(struct automaton *automaton, uint32_t node, uint32_t frame, uint32_t depth) {
    bool first = false;
    TRY(first_visit(automaton, node, frame, &first));
    if (!first)
        return OK;
    TRY(array_grow(&automaton->work, sizeof(struct work), 1));
    ((struct work *)automaton->work.data)[automaton->work.count++] = (struct work){node, frame, depth};
    return OK;
}

static enum result add_configuration(struct automaton *automaton, uint32_t state, uint32_t frame) {
    TRY(array_grow(&automaton->found, sizeof(struct configuration), 1));
    ((struct configuration *)automaton->found.data)[automaton->found.count++] =
        (struct configuration){state, frame};
    return OK;
}

static enum result resume(struct automaton *automaton, const struct grammar *grammar, uint32_t frame);

static enum result go_on_sequence(struct automaton *automaton, const struct grammar *grammar, uint32_t node,
    uint32_t index, uint32_t parent, uint32_t depth) {
    const struct rule_node *sequence = &grammar->nodes[node];
    if (index == sequence->count)
        return resume(automaton, grammar, parent);
    uint32_t frame = parent;
    if (index + 1 < sequence->count)
        TRY(intern_frame(automaton,
            (struct frame){.node = node, .index = index + 1, .parent = parent, .depth = depth}, &frame));
    return push(automaton, grammar->children[sequence->a + index], frame, depth);
}

static enum result go_on_repetition(struct automaton *automaton, const struct grammar *grammar, uint32_t node,
    uint32_t times, uint32_t parent, uint32_t depth) {
    const struct rule_node *repeat = &grammar->nodes[node];
    if (repeat->most < 0 || times < (uint32_t)repeat->most) {
        /* Without an end, what is above the least number makes no difference. */
        uint32_t next = repeat->most < 0 && times >= (uint32_t)repeat->least ? times : times + 1, frame = 0;
        TRY(intern_frame(automaton,
            (struct frame){.node = node, .index = next, .parent = parent, .depth = depth}, &frame));
        TRY(push(automaton, repeat->a, frame, depth));
    }
    return times >= (uint32_t)repeat->least ? resume(automaton, grammar, parent) : OK;
}

static enum result resume(struct automaton *automaton, const struct grammar *grammar, uint32_t number) {
    if (!number) {
        automaton->accepting = true;
        return OK;
    }
    bool first = false;
    TRY(first_visit(automaton, UINT32_MAX, number, &first));
    if (!first)
        return OK;
    struct frame frame = *frame_at(automaton, number);
    if (grammar->nodes[frame.node].kind == RULE_SEQUENCE)
        return go_on_sequence(automaton, grammar, frame.node, frame.index, frame.parent, frame.depth);
    return go_on_repetition(automaton, grammar, frame.node, frame.index, frame.parent, frame.depth);
}

/* A rule is entered only when its shallowest text still fits the limit of depth, so that there is always a
 * way to the end. */
static enum result enter_rule(
    struct automaton *automaton, const struct grammar *grammar, const struct work *work) {
    const struct rule *rule = &grammar->rules[grammar->nodes[work->node].a];
    if (work->depth + rule->height > RULES_DEPTH_LIMIT)
        return OK;
    return push(automaton, rule->node, work->frame, work->depth + rule->nests);
}

static enum result enter(struct automaton *automaton, const struct grammar *grammar, struct work work) {
    const struct rule_node *node = &grammar->nodes[work.node];
    if (!node->productive || work.depth + node->height > RULES_DEPTH_LIMIT)
        return OK; /* no text comes of it */
    switch (node->kind) {
    case RULE_TERMINAL:
        if (node->a != EXPRESSION_EMPTY)
            TRY(add_configuration(automaton, node->a, work.frame));
        return node->nullable ? resume(automaton, grammar, work.frame) : OK;
    case RULE_TOKEN:
        return add_configuration(automaton, TOKEN_FLAG | node->a, work.frame);
    case RULE_CALL:
        return enter_rule(automaton, grammar, &work);
    case RULE_SEQUENCE:
        return go_on_sequence(automaton, grammar, work.node, 0, work.frame, work.depth);
    case RULE_CHOICE:
        for (uint32_t i = 0; i < node->count; i++)
            TRY(push(automaton, grammar->children[node->a + i], work.frame, work.depth));
        return OK;
    case RULE_REPEAT:
        return go_on_repetition(automaton, grammar, work.node, 0, work.frame, work.depth);
    }
    return OK;
}

static enum result work_off(struct automaton *automaton, const struct grammar *grammar) {
    while (automaton->work.count) {
        struct work work = ((struct work *)automaton->work.data)[--automaton->work.count];
        TRY(enter(automaton, grammar, work));
    }
    return OK;
}

/* ---- sets ---- */

static int compare_configurations(const void *a, const void *b) {
    const struct configuration *x = a, *y = b;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return (x->frame > y->frame) - (x->frame < y->frame);
}

static void sort_configurations(struct configuration *all, size_t count) {
    enum { FEW = 16 };
    if (count > FEW) {
        qsort(all, count, sizeof *all, compare_configurations);
        return;
    }
    for (size_t i = 1; i < count; i++) {
        struct configuration moved = all[i];
        size_t to = i;
        for (; to && compare_configurations(&moved, &all[to - 1]) < 0; to--)
            all[to] = all[to - 1];
        all[to] = moved;
    }
}

static uint64_t hash_set(const struct configuration *configurations, uint32_t count, bool accepting) {
    uint64_t hash = accepting;
    for (uint32_t i = 0; i < count; i++)
        hash = mix(hash, (uint64_t)configurations[i].state << 32 | configurations[i].frame);
    return hash;
}

static void fill_set_buckets(struct automaton *automaton) {
    memset(automaton->set_buckets, 0, automaton->set_bucket_count * sizeof(uint32_t));
    for (uint32_t i = 1; i < automaton->sets.count; i++) {
        struct set *set = set_at(automaton, i);
        uint64_t hash = hash_set(configurations_of(automaton, set), set->count, set->accepting);
        uint32_t *bucket = &automaton->set_buckets[hash & (automaton->set_bucket_count - 1)];
        set->next = *bucket;
        *bucket = i;
    }
}

static enum result add_set(
    struct automaton *automaton, const struct configuration *found, uint32_t count, uint32_t *bucket) {
    TRY(array_grow(&automaton->sets, sizeof(struct set), 1));
    TRY(array_grow(&automaton->configurations, sizeof(struct configuration), count));
    struct set set = {.first = (uint32_t)automaton->configurations.count,
        .count = count,
        .accepting = automaton->accepting,
        .next = *bucket};
    if (count)
        memcpy(
            (struct configuration *)automaton->configurations.data + set.first, found, count * sizeof *found);
    automaton->configurations.count += count;
    *bucket = (uint32_t)automaton->sets.count++;
    *set_at(automaton, *bucket) = set;
    return OK;
}

/* The set of what the closure found. */
static enum result intern_found(struct automaton *automaton, uint32_t *number) {
    struct configuration *found = automaton->found.data;
    uint32_t count = 0;
    sort_configurations(found, automaton->found.count);
    for (size_t i = 0; i < automaton->found.count; i++)
        if (!count || compare_configurations(&found[count - 1], &found[i]))
            found[count++] = found[i];
    *number = DEAD_SET;
    if (!count && !automaton->accepting)
        return OK;
    if (automaton->sets.count >= automaton->set_bucket_count) {
        TRY(grow_buckets(&automaton->set_buckets, &automaton->set_bucket_count));
        fill_set_buckets(automaton);
    }
    uint64_t hash = hash_set(found, count, automaton->accepting);
    uint32_t *bucket = &automaton->set_buckets[hash & (automaton->set_bucket_count - 1)];
    for (*number = *bucket; *number; *number = set_at(automaton, *number)->next) {
        const struct set *set = set_at(automaton, *number);
        if (set->count == count && set->accepting == automaton->accepting &&
            (!count || !memcmp(configurations_of(automaton, set), found, count * sizeof *found)))
            return OK;
    }
    if (automaton_bytes(automaton) > HARD_LIMIT)
        return fail(ERROR_INPUT, "the grammar's tables grew over %zu MiB", HARD_LIMIT >> 20);
    TRY(add_set(automaton, found, count, bucket));
    *number = *bucket;
    return OK;
}

/* ---- steps ---- */

static enum result fresh_step(struct grammar *grammar, uint32_t number, unsigned char byte, uint32_t *next) {
    struct automaton *automaton = grammar->automaton;
    struct set set = *set_at(automaton, number);
    begin_closure(automaton);
    for (uint32_t i = 0; i < set.count; i++) {
        struct configuration at = configurations_of(automaton, &set)[i];
        if (at.state & TOKEN_FLAG)
            continue;
        uint32_t state = expression_derivative(grammar->expressions, at.state, byte);
        if (state == EXPRESSION_NOTHING)
            continue;
        if (state == EXPRESSION_FAILED)
            return expressions_check(grammar->expressions);
        if (state != EXPRESSION_EMPTY)
            TRY(add_configuration(automaton, state, at.frame));
        if (expression_nullable(grammar->expressions, state))
            TRY(resume(automaton, grammar, at.frame));
        TRY(work_off(automaton, grammar));
    }
    TRY(expressions_check(grammar->expressions));
    return intern_found(automaton, next);
}

/* Bytes that no terminal of the set tells apart. */
static enum result partition_of(struct grammar *grammar, const struct set *set, uint32_t *partition) {
    uint32_t few[64] = {0}, *states = few, count = 0;
    const struct configuration *all = configurations_of(grammar->automaton, set);
    if (set->count > sizeof few / sizeof *few)
        states = malloc(set->count * sizeof *states);
    if (!states)
        return out_of_memory();
    for (uint32_t i = 0; i < set->count; i++)
        if (!(all[i].state & TOKEN_FLAG))
            states[count++] = all[i].state;
    *partition = expression_partition_all(grammar->expressions, states, count);
    if (states != few)
        free(states);
    return expressions_check(grammar->expressions);
}

enum result automaton_row(struct grammar *grammar, uint32_t number, uint32_t *row) {
    struct automaton *automaton = grammar->automaton;
    struct set *set = set_at(automaton, number);
    if (!set->row) {
        uint32_t classes = 0;
        TRY(partition_of(grammar, set, &set->partition));
        set->class_of = expression_classes(grammar->expressions, set->partition, &classes);
        TRY(array_grow(&automaton->rows, sizeof(uint32_t), classes));
        memset((uint32_t *)automaton->rows.data + automaton->rows.count, 0xFF, classes * sizeof(uint32_t));
        set->row = (uint32_t)automaton->rows.count + 1;
        automaton->rows.count += classes;
    }
    *row = set->row - 1;
    return OK;
}

enum result automaton_step(struct grammar *grammar, uint32_t number, unsigned char byte, uint32_t *next) {
    struct automaton *automaton = grammar->automaton;
    uint32_t row = 0;
    TRY(automaton_row(grammar, number, &row));
    row += set_at(automaton, number)->class_of[byte];
    *next = ((uint32_t *)automaton->rows.data)[row];
    if (*next != UNKNOWN_SET)
        return OK;
    TRY(fresh_step(grammar, number, byte, next));
    ((uint32_t *)automaton->rows.data)[row] = *next;
    return OK;
}

enum result automaton_step_token(struct grammar *grammar, uint32_t number, uint32_t token, uint32_t *next) {
    struct automaton *automaton = grammar->automaton;
    struct set set = *set_at(automaton, number);
    begin_closure(automaton);
    for (uint32_t i = 0; i < set.count; i++) {
        struct configuration at = configurations_of(automaton, &set)[i];
        if (at.state == (TOKEN_FLAG | token))
            TRY(resume(automaton, grammar, at.frame));
        TRY(work_off(automaton, grammar));
    }
    return intern_found(automaton, next);
}

/* ---- states that allow the same tokens ---- */

/* A repetition's count so far, or another one from which no token tells it. */
static uint32_t masked_index(const struct rule_node *repeat, uint32_t index, uint32_t longest) {
    uint32_t least = (uint32_t)repeat->least;
    if (repeat->most >= 0 && (uint32_t)repeat->most - index <= longest)
        return index;
    if (index >= least)
        return repeat->most < 0 || (uint32_t)repeat->most - least > longest ? least : index;
    return least - index > longest ? least - longest - 1 : index;
}

static enum result masked_frame(struct grammar *grammar, uint32_t number, uint32_t *masked) {
    struct automaton *automaton = grammar->automaton;
    *masked = number ? frame_at(automaton, number)->masked : 0;
    if (!number || *masked)
        return OK;
    struct frame frame = *frame_at(automaton, number);
    const struct rule_node *node = &grammar->nodes[frame.node];
    TRY(masked_frame(grammar, frame.parent, &frame.parent));
    if (node->kind == RULE_REPEAT)
        frame.index = masked_index(node, frame.index, automaton->vocabulary->longest);
    TRY(intern_frame(automaton, frame, masked));
    frame_at(automaton, number)->masked = *masked;
    frame_at(automaton, *masked)->masked = *masked;
    return OK;
}

static uint32_t longest_run(const void *vocabulary, const bool bytes[256], uint32_t shortest) {
    return vocabulary_longest_run(vocabulary, bytes, shortest);
}

enum result automaton_masked(struct grammar *grammar, uint32_t number, uint32_t *masked) {
    struct automaton *automaton = grammar->automaton;
    struct set set = *set_at(automaton, number);
    *masked = set.masked;
    if (*masked)
        return OK;
    begin_closure(automaton);
    automaton->accepting = set.accepting;
    for (uint32_t i = 0; i < set.count; i++) {
        struct configuration at = configurations_of(automaton, &set)[i];
        if (!(at.state & TOKEN_FLAG))
            at.state = expression_within(grammar->expressions, at.state, longest_run, automaton->vocabulary);
        TRY(masked_frame(grammar, at.frame, &at.frame));
        TRY(add_configuration(automaton, at.state, at.frame));
    }
    TRY(expressions_check(grammar->expressions));
    TRY(intern_found(automaton, masked));
    set_at(automaton, number)->masked = *masked;
    set_at(automaton, *masked)->masked = *masked;
    return OK;
}

/* ---- life ---- */

void automaton_free(struct automaton *automaton) {
    if (!automaton)
        return;
    masks_clear(automaton);
    struct array *arrays[] = {&automaton->frames, &automaton->sets, &automaton->configurations,
        &automaton->rows, &automaton->work, &automaton->found, &automaton->masks};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]->data);
    free(automaton->visited);
    free(automaton->frame_buckets);
    free(automaton->set_buckets);
    free(automaton->scratch);
    free(automaton);
}

size_t automaton_bytes(const struct automaton *automaton) {
    if (!automaton)
        return 0;
    return sizeof *automaton + automaton->frames.capacity * sizeof(struct frame) +
           automaton->sets.capacity * sizeof(struct set) +
           (automaton->configurations.capacity + automaton->found.capacity) * sizeof(struct configuration) +
           automaton->rows.capacity * sizeof(uint32_t) + automaton->work.capacity * sizeof(struct work) +
           automaton->visited_capacity * sizeof *automaton->visited +
           (automaton->frame_bucket_count + automaton->set_bucket_count) * sizeof(uint32_t) +
           masks_bytes(automaton);
}

void automaton_rehash(struct automaton *automaton) {
    fill_frame_buckets(automaton);
    fill_set_buckets(automaton);
}

static enum result fill(struct grammar *grammar) {
    struct automaton *automaton = grammar->automaton;
    TRY(masks_create(automaton));
    TRY(array_grow(&automaton->frames, sizeof(struct frame), 1));
    TRY(array_grow(&automaton->sets, sizeof(struct set), 1));
    TRY(array_grow(&automaton->configurations, sizeof(struct configuration), 1));
    *frame_at(automaton, 0) = (struct frame){0};
    *set_at(automaton, DEAD_SET) = (struct set){0};
    automaton->frames.count = automaton->sets.count = 1;
    TRY(grow_buckets(&automaton->frame_buckets, &automaton->frame_bucket_count));
    TRY(grow_buckets(&automaton->set_buckets, &automaton->set_bucket_count));
    automaton_rehash(automaton);
    begin_closure(automaton);
    TRY(push(automaton, grammar->root, 0, 0));
    TRY(work_off(automaton, grammar));
    return intern_found(automaton, &automaton->start);
}

enum result automaton_create(struct grammar *grammar, const struct grammar_vocabulary *vocabulary) {
    struct automaton *automaton = calloc(1, sizeof *automaton);
    if (!automaton)
        return out_of_memory();
    grammar->automaton = automaton;
    automaton->vocabulary = vocabulary;
    automaton->limit = AUTOMATON_SOFT_LIMIT;
    enum result status = fill(grammar);
    if (status != OK) {
        automaton_free(automaton);
        grammar->automaton = NULL;
    }
    return status;
}

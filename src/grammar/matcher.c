/* Following an answer: all ways to read it at once, as a set of configurations. A configuration is the state of
 * a terminal and the stack of what comes behind it. Stacks and sets are kept once each, so that a set is a
 * state of a lazily built automaton and a byte is one look-up when it was met before. */
#include "grammar/grammar.h"
#include "grammar/rules_internal.h"
#include "grammar/vocabulary.h"

#include <stdlib.h> /* calloc, malloc, realloc, free, qsort */
#include <string.h> /* memcpy, memset, memcmp */

enum { DEAD_SET = 0, UNKNOWN_SET = UINT32_MAX, TOKEN_FLAG = 0x40000000 };
enum { MASKS_KEPT = 64, CLOSURE_LIMIT = 200000 };
static const size_t AUTOMATON_BYTES_LIMIT = (size_t)256 << 20;

/* What comes when a part is complete: the sequence's child `index`, or one more of a repetition that has
 * `index` so far. Frame 0: the answer is complete. */
struct frame {
    uint32_t node, index, parent, depth, next;
};

struct configuration {
    uint32_t state; /* an expression, or TOKEN_FLAG | token */
    uint32_t frame;
};

struct set {
    uint32_t first, count, next; /* configurations */
    bool accepting;
    uint32_t *row; /* the set behind each byte, UNKNOWN_SET where not asked yet; NULL: none */
    uint32_t kept; /* number of the kept mask + 1; 0: none */
};

struct array {
    void *data;
    size_t count, capacity;
};

struct work {
    uint32_t node, frame, depth;
};

struct automaton {
    const struct grammar_vocabulary *vocabulary;
    struct array frames, sets, configurations; /* kept */
    struct array work, found;                  /* of the closure being made */
    uint64_t *visited;                         /* hash table of node and frame, +1 */
    size_t visited_capacity, visited_count;
    uint32_t *frame_buckets, *set_buckets;
    size_t frame_bucket_count, set_bucket_count;
    bool accepting;
    uint32_t start;
    uint64_t *masks; /* MASKS_KEPT masks, the oldest replaced */
    uint32_t mask_sets[MASKS_KEPT], next_mask;
    size_t row_bytes;
};

struct grammar_matcher {
    struct grammar *grammar;
    const struct grammar_vocabulary *vocabulary;
    uint32_t *history; /* sets; the last is the present one */
    size_t count, capacity;
    bool finished; /* the end token was taken; it is the last entry of the history */
};

static enum result out_of_memory(void) {
    return fail(ERROR_MEMORY, "no memory to follow a grammar");
}

static enum result grow(struct array *array, size_t item, size_t more) {
    if (array->count + more <= array->capacity)
        return OK;
    size_t capacity = array->capacity ? array->capacity * 2 : 64;
    while (capacity < array->count + more)
        capacity *= 2;
    void *data = realloc(array->data, capacity * item);
    if (!data)
        return out_of_memory();
    array->data = data;
    array->capacity = capacity;
    return OK;
}

static struct frame *frame_at(const struct automaton *automaton, uint32_t frame) {
    return (struct frame *)automaton->frames.data + frame;
}

static struct set *set_at(const struct automaton *automaton, uint32_t set) {
    return (struct set *)automaton->sets.data + set;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 31;
}

/* ---- frames ---- */

static uint64_t hash_frame(const struct frame *frame) {
    return mix(mix(frame->depth, (uint64_t)frame->node << 32 | frame->index), frame->parent);
}

static enum result grow_frame_buckets(struct automaton *automaton) {
    size_t count = automaton->frame_bucket_count ? automaton->frame_bucket_count * 2 : 64;
    uint32_t *buckets = calloc(count, sizeof *buckets);
    if (!buckets)
        return out_of_memory();
    for (uint32_t i = 1; i < automaton->frames.count; i++) {
        struct frame *frame = frame_at(automaton, i);
        uint32_t *bucket = &buckets[hash_frame(frame) & (count - 1)];
        frame->next = *bucket;
        *bucket = i;
    }
    free(automaton->frame_buckets);
    automaton->frame_buckets = buckets;
    automaton->frame_bucket_count = count;
    return OK;
}

static enum result intern_frame(struct automaton *automaton, struct frame wanted, uint32_t *number) {
    if (automaton->frames.count >= automaton->frame_bucket_count)
        TRY(grow_frame_buckets(automaton));
    uint32_t *bucket = &automaton->frame_buckets[hash_frame(&wanted) & (automaton->frame_bucket_count - 1)];
    for (uint32_t i = *bucket; i; i = frame_at(automaton, i)->next) {
        const struct frame *frame = frame_at(automaton, i);
        if (frame->node == wanted.node && frame->index == wanted.index && frame->parent == wanted.parent &&
            frame->depth == wanted.depth) {
            *number = i;
            return OK;
        }
    }
    TRY(grow(&automaton->frames, sizeof(struct frame), 1));
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
    if (automaton->visited_count)
        memset(automaton->visited, 0, automaton->visited_capacity * sizeof *automaton->visited);
    automaton->visited_count = 0;
}

/* Whether node and frame come for the first time. */
static enum result first_visit(struct automaton *automaton, uint32_t node, uint32_t frame, bool *first) {
    if (automaton->visited_count * 2 >= automaton->visited_capacity) {
        size_t capacity = automaton->visited_capacity ? automaton->visited_capacity * 2 : 64;
        uint64_t *table = calloc(capacity, sizeof *table);
        if (!table)
            return out_of_memory();
        for (size_t i = 0; i < automaton->visited_capacity; i++) {
            uint64_t key = automaton->visited[i];
            size_t place = key ? mix(0, key) & (capacity - 1) : 0;
            while (key && table[place])
                place = (place + 1) & (capacity - 1);
            if (key)
                table[place] = key;
        }
        free(automaton->visited);
        automaton->visited = table;
        automaton->visited_capacity = capacity;
    }
    uint64_t key = ((uint64_t)node << 32 | frame) + 1;
    size_t place = mix(0, key) & (automaton->visited_capacity - 1);
    while (automaton->visited[place] && automaton->visited[place] != key)
        place = (place + 1) & (automaton->visited_capacity - 1);
    *first = !automaton->visited[place];
    automaton->visited[place] = key;
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
    TRY(grow(&automaton->work, sizeof(struct work), 1));
    ((struct work *)automaton->work.data)[automaton->work.count++] = (struct work){node, frame, depth};
    return OK;
}

static enum result add_configuration(struct automaton *automaton, uint32_t state, uint32_t frame) {
    TRY(grow(&automaton->found, sizeof(struct configuration), 1));
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
        TRY(intern_frame(automaton, (struct frame){node, index + 1, parent, depth, 0}, &frame));
    return push(automaton, grammar->children[sequence->a + index], frame, depth);
}

static enum result go_on_repetition(struct automaton *automaton, const struct grammar *grammar, uint32_t node,
    uint32_t times, uint32_t parent, uint32_t depth) {
    const struct rule_node *repeat = &grammar->nodes[node];
    if (repeat->most < 0 || times < (uint32_t)repeat->most) {
        /* Without an end, what is above the least number makes no difference. */
        uint32_t next = repeat->most < 0 && times >= (uint32_t)repeat->least ? times : times + 1, frame = 0;
        TRY(intern_frame(automaton, (struct frame){node, next, parent, depth, 0}, &frame));
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

static uint64_t hash_set(const struct configuration *configurations, uint32_t count, bool accepting) {
    uint64_t hash = accepting;
    for (uint32_t i = 0; i < count; i++)
        hash = mix(hash, (uint64_t)configurations[i].state << 32 | configurations[i].frame);
    return hash;
}

static enum result grow_set_buckets(struct automaton *automaton) {
    size_t count = automaton->set_bucket_count ? automaton->set_bucket_count * 2 : 64;
    uint32_t *buckets = calloc(count, sizeof *buckets);
    if (!buckets)
        return out_of_memory();
    const struct configuration *all = automaton->configurations.data;
    for (uint32_t i = 1; i < automaton->sets.count; i++) {
        struct set *set = set_at(automaton, i);
        uint32_t *bucket = &buckets[hash_set(all + set->first, set->count, set->accepting) & (count - 1)];
        set->next = *bucket;
        *bucket = i;
    }
    free(automaton->set_buckets);
    automaton->set_buckets = buckets;
    automaton->set_bucket_count = count;
    return OK;
}

/* The set of what the closure found. */
static enum result intern_found(struct automaton *automaton, uint32_t *number) {
    struct configuration *found = automaton->found.data;
    uint32_t count = 0;
    if (automaton->found.count)
        qsort(found, automaton->found.count, sizeof *found, compare_configurations);
    for (size_t i = 0; i < automaton->found.count; i++)
        if (!count || compare_configurations(&found[count - 1], &found[i]))
            found[count++] = found[i];
    *number = DEAD_SET;
    if (!count && !automaton->accepting)
        return OK;
    if (automaton->sets.count >= automaton->set_bucket_count)
        TRY(grow_set_buckets(automaton));
    uint64_t hash = hash_set(found, count, automaton->accepting);
    uint32_t *bucket = &automaton->set_buckets[hash & (automaton->set_bucket_count - 1)];
    const struct configuration *all = automaton->configurations.data;
    for (*number = *bucket; *number; *number = set_at(automaton, *number)->next) {
        const struct set *set = set_at(automaton, *number);
        if (set->count == count && set->accepting == automaton->accepting &&
            (!count || !memcmp(all + set->first, found, count * sizeof *found)))
            return OK;
    }
    if (automaton_bytes(automaton) > AUTOMATON_BYTES_LIMIT)
        return fail(ERROR_MEMORY, "the grammar's tables grew over %zu MiB", AUTOMATON_BYTES_LIMIT >> 20);
    TRY(grow(&automaton->sets, sizeof(struct set), 1));
    TRY(grow(&automaton->configurations, sizeof(struct configuration), count));
    struct set set = {.first = (uint32_t)automaton->configurations.count,
        .count = count,
        .accepting = automaton->accepting,
        .next = *bucket};
    if (count)
        memcpy(
            (struct configuration *)automaton->configurations.data + set.first, found, count * sizeof *found);
    automaton->configurations.count += count;
    *number = (uint32_t)automaton->sets.count++;
    *set_at(automaton, *number) = set;
    *bucket = *number;
    return OK;
}

static enum result fresh_step(struct grammar *grammar, uint32_t number, unsigned char byte, uint32_t *next) {
    struct automaton *automaton = grammar->automaton;
    struct set set = *set_at(automaton, number);
    begin_closure(automaton);
    for (uint32_t i = 0; i < set.count; i++) {
        struct configuration at = ((struct configuration *)automaton->configurations.data)[set.first + i];
        if (at.state & TOKEN_FLAG)
            continue;
        uint32_t state = expression_derivative(grammar->expressions, at.state, byte);
        if (state == EXPRESSION_FAILED)
            return expressions_check(grammar->expressions);
        if (state != EXPRESSION_NOTHING && state != EXPRESSION_EMPTY)
            TRY(add_configuration(automaton, state, at.frame));
        if (expression_nullable(grammar->expressions, state))
            TRY(resume(automaton, grammar, at.frame));
        TRY(work_off(automaton, grammar));
    }
    TRY(expressions_check(grammar->expressions));
    return intern_found(automaton, next);
}

/* The set behind a byte. */
static enum result step(struct grammar *grammar, uint32_t number, unsigned char byte, uint32_t *next) {
    struct automaton *automaton = grammar->automaton;
    struct set *set = set_at(automaton, number);
    if (set->row && set->row[byte] != UNKNOWN_SET) {
        *next = set->row[byte];
        return OK;
    }
    if (!set->row) {
        set->row = malloc(256 * sizeof *set->row);
        if (!set->row)
            return out_of_memory();
        memset(set->row, 0xFF, 256 * sizeof *set->row);
        automaton->row_bytes += 256 * sizeof *set->row;
    }
    TRY(fresh_step(grammar, number, byte, next));
    set_at(automaton, number)->row[byte] = *next;
    return OK;
}

static enum result step_token(struct grammar *grammar, uint32_t number, uint32_t token, uint32_t *next) {
    struct automaton *automaton = grammar->automaton;
    struct set set = *set_at(automaton, number);
    begin_closure(automaton);
    for (uint32_t i = 0; i < set.count; i++) {
        struct configuration at = ((struct configuration *)automaton->configurations.data)[set.first + i];
        if (at.state == (TOKEN_FLAG | token))
            TRY(resume(automaton, grammar, at.frame));
        TRY(work_off(automaton, grammar));
    }
    return intern_found(automaton, next);
}

/* ---- the automaton ---- */

void automaton_free(struct automaton *automaton) {
    if (!automaton)
        return;
    for (size_t i = 0; i < automaton->sets.count; i++)
        free(set_at(automaton, (uint32_t)i)->row);
    struct array *arrays[] = {&automaton->frames, &automaton->sets, &automaton->configurations,
        &automaton->work, &automaton->found};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]->data);
    free(automaton->visited);
    free(automaton->frame_buckets);
    free(automaton->set_buckets);
    free(automaton->masks);
    free(automaton);
}

size_t automaton_bytes(const struct automaton *automaton) {
    if (!automaton)
        return 0;
    return sizeof *automaton + automaton->row_bytes + automaton->frames.capacity * sizeof(struct frame) +
           automaton->sets.capacity * sizeof(struct set) +
           automaton->configurations.capacity * sizeof(struct configuration) +
           automaton->work.capacity * sizeof(struct work) +
           automaton->found.capacity * sizeof(struct configuration) +
           automaton->visited_capacity * sizeof *automaton->visited +
           (automaton->frame_bucket_count + automaton->set_bucket_count) * sizeof(uint32_t);
}

static size_t mask_words(const struct grammar_vocabulary *vocabulary) {
    return (vocabulary->count + 63) / 64;
}

static enum result start_automaton(struct grammar *grammar, const struct grammar_vocabulary *vocabulary) {
    struct automaton *automaton = calloc(1, sizeof *automaton);
    if (!automaton)
        return out_of_memory();
    grammar->automaton = automaton;
    automaton->vocabulary = vocabulary;
    automaton->masks = malloc(MASKS_KEPT * (mask_words(vocabulary) + 1) * sizeof *automaton->masks);
    if (!automaton->masks)
        return out_of_memory();
    TRY(grow(&automaton->frames, sizeof(struct frame), 1));
    TRY(grow(&automaton->sets, sizeof(struct set), 1));
    *frame_at(automaton, 0) = (struct frame){0};
    *set_at(automaton, DEAD_SET) = (struct set){0};
    automaton->frames.count = automaton->sets.count = 1;
    begin_closure(automaton);
    TRY(push(automaton, grammar->root, 0, 0));
    TRY(work_off(automaton, grammar));
    TRY(intern_found(automaton, &automaton->start));
    return OK;
}

/* ---- matchers ---- */

static uint32_t present(const struct grammar_matcher *matcher) {
    return matcher->history[matcher->count - 1];
}

static enum result remember(struct grammar_matcher *matcher, uint32_t set) {
    if (matcher->count == matcher->capacity) {
        size_t capacity = matcher->capacity ? matcher->capacity * 2 : 64;
        uint32_t *history = realloc(matcher->history, capacity * sizeof *history);
        if (!history)
            return out_of_memory();
        matcher->history = history;
        matcher->capacity = capacity;
    }
    matcher->history[matcher->count++] = set;
    return OK;
}

enum result grammar_matcher_create(
    struct grammar *grammar, const struct grammar_vocabulary *vocabulary, struct grammar_matcher **result) {
    struct grammar_matcher *matcher = calloc(1, sizeof *matcher);
    *result = NULL;
    if (!matcher)
        return out_of_memory();
    matcher->grammar = grammar;
    matcher->vocabulary = vocabulary;
    pthread_mutex_lock(&grammar->lock);
    enum result status = OK;
    if (!grammar->automaton && (status = start_automaton(grammar, vocabulary)) != OK) {
        automaton_free(grammar->automaton);
        grammar->automaton = NULL;
    } else if (grammar->automaton->vocabulary != vocabulary) {
        status = fail(ERROR_INTERNAL, "a grammar is used with two vocabularies");
    } else {
        status = remember(matcher, grammar->automaton->start);
    }
    pthread_mutex_unlock(&grammar->lock);
    if (status == OK)
        *result = matcher;
    else
        grammar_matcher_free(matcher);
    return status;
}

enum result grammar_matcher_fork(const struct grammar_matcher *matcher, struct grammar_matcher **copy) {
    struct grammar_matcher *fork = malloc(sizeof *fork);
    uint32_t *history = malloc(matcher->count * sizeof *history);
    *copy = NULL;
    if (!fork || !history) {
        free(fork);
        free(history);
        return out_of_memory();
    }
    *fork = *matcher;
    memcpy(history, matcher->history, matcher->count * sizeof *history);
    fork->history = history;
    fork->capacity = matcher->count;
    *copy = fork;
    return OK;
}

void grammar_matcher_free(struct grammar_matcher *matcher) {
    if (!matcher)
        return;
    free(matcher->history);
    free(matcher);
}

static void set_bit(uint64_t *bits, uint32_t bit) {
    bits[bit >> 6] |= (uint64_t)1 << (bit & 63);
}

/* Control tokens and the end. */
static void mask_controls(const struct automaton *automaton, const struct set *set, uint64_t *bits) {
    const struct configuration *all = automaton->configurations.data;
    for (uint32_t i = 0; i < set->count; i++) {
        uint32_t state = all[set->first + i].state;
        if (state & TOKEN_FLAG && (state & ~(uint32_t)TOKEN_FLAG) < automaton->vocabulary->count)
            set_bit(bits, state & ~(uint32_t)TOKEN_FLAG);
    }
    if (set->accepting)
        set_bit(bits, automaton->vocabulary->end);
}

static enum result fresh_mask(struct grammar *grammar, uint32_t number, uint64_t *bits) {
    const struct grammar_vocabulary *vocabulary = grammar->automaton->vocabulary;
    uint32_t sets[TOKEN_BYTES_LIMIT + 1];
    size_t ends[TOKEN_BYTES_LIMIT + 1]; /* of the subtrees of the open branch */
    uint32_t depth = 0;
    memset(bits, 0, mask_words(vocabulary) * sizeof *bits);
    sets[0] = number;
    for (size_t i = 0; i < vocabulary->nodes;) {
        struct trie_node node = vocabulary->trie[i];
        while (depth && ends[depth] <= i)
            depth--;
        uint32_t next = DEAD_SET;
        TRY(step(grammar, sets[depth], (unsigned char)node.byte, &next));
        if (next == DEAD_SET) {
            i += node.subtree;
            continue;
        }
        for (uint32_t rank = node.rank; rank < vocabulary->trie[i + 1].rank; rank++)
            set_bit(bits, vocabulary->order[rank]);
        sets[++depth] = next;
        ends[depth] = i + node.subtree;
        i++;
    }
    mask_controls(grammar->automaton, set_at(grammar->automaton, number), bits);
    return OK;
}

/* The set whose mask is that of `number`: without the counts that no token is long enough to reach. */
static enum result set_of_mask(struct grammar *grammar, uint32_t number, uint32_t *masked) {
    struct automaton *automaton = grammar->automaton;
    struct set set = *set_at(automaton, number);
    begin_closure(automaton);
    automaton->accepting = set.accepting;
    for (uint32_t i = 0; i < set.count; i++) {
        struct configuration at = ((struct configuration *)automaton->configurations.data)[set.first + i];
        if (!(at.state & TOKEN_FLAG))
            at.state =
                expression_within(grammar->expressions, at.state, (int32_t)automaton->vocabulary->longest);
        TRY(add_configuration(automaton, at.state, at.frame));
    }
    TRY(expressions_check(grammar->expressions));
    return intern_found(automaton, masked);
}

static enum result kept_mask(struct grammar *grammar, uint32_t number, uint64_t *bits) {
    struct automaton *automaton = grammar->automaton;
    size_t words = mask_words(automaton->vocabulary);
    TRY(set_of_mask(grammar, number, &number));
    uint32_t kept = set_at(automaton, number)->kept;
    if (kept && automaton->mask_sets[kept - 1] == number) {
        memcpy(bits, automaton->masks + (kept - 1) * words, words * sizeof *bits);
        return OK;
    }
    TRY(fresh_mask(grammar, number, bits));
    uint32_t place = automaton->next_mask++ % MASKS_KEPT;
    memcpy(automaton->masks + place * words, bits, words * sizeof *bits);
    automaton->mask_sets[place] = number;
    set_at(automaton, number)->kept = place + 1;
    return OK;
}

enum result grammar_matcher_mask(struct grammar_matcher *matcher, uint64_t *bits) {
    if (matcher->finished) {
        memset(bits, 0, mask_words(matcher->vocabulary) * sizeof *bits);
        set_bit(bits, matcher->vocabulary->end);
        return OK;
    }
    pthread_mutex_lock(&matcher->grammar->lock);
    enum result status = kept_mask(matcher->grammar, present(matcher), bits);
    pthread_mutex_unlock(&matcher->grammar->lock);
    return status;
}

static enum result follow(
    struct grammar *grammar, uint32_t set, const char *text, size_t bytes, uint32_t *reached, size_t *taken) {
    *reached = set;
    for (*taken = 0; *taken < bytes; ++*taken) {
        uint32_t next = DEAD_SET;
        TRY(step(grammar, *reached, (unsigned char)text[*taken], &next));
        if (next == DEAD_SET)
            return OK;
        *reached = next;
    }
    return OK;
}

static enum result follow_token(
    const struct grammar_matcher *matcher, uint32_t token, uint32_t *reached, bool *accepted) {
    const struct grammar_vocabulary *vocabulary = matcher->vocabulary;
    uint32_t from = vocabulary->offsets[token], length = vocabulary->offsets[token + 1] - from;
    size_t taken = 0;
    if (length) {
        TRY(follow(matcher->grammar, present(matcher), vocabulary->text + from, length, reached, &taken));
        *accepted = taken == length;
        return OK;
    }
    TRY(step_token(matcher->grammar, present(matcher), token, reached));
    *accepted = *reached != DEAD_SET;
    return OK;
}

enum result grammar_matcher_accept(struct grammar_matcher *matcher, uint32_t token, bool *accepted) {
    *accepted = false;
    if (matcher->finished || token >= matcher->vocabulary->count)
        return OK;
    if (token == matcher->vocabulary->end) {
        *accepted = matcher->finished = grammar_matcher_accepting(matcher);
        return *accepted ? remember(matcher, present(matcher)) : OK;
    }
    uint32_t reached = DEAD_SET;
    pthread_mutex_lock(&matcher->grammar->lock);
    enum result status = follow_token(matcher, token, &reached, accepted);
    pthread_mutex_unlock(&matcher->grammar->lock);
    TRY(status);
    return *accepted ? remember(matcher, reached) : OK;
}

enum result grammar_matcher_accept_bytes(
    struct grammar_matcher *matcher, const char *text, size_t bytes, size_t *taken) {
    uint32_t reached = DEAD_SET;
    *taken = 0;
    if (matcher->finished)
        return OK;
    pthread_mutex_lock(&matcher->grammar->lock);
    enum result status = follow(matcher->grammar, present(matcher), text, bytes, &reached, taken);
    pthread_mutex_unlock(&matcher->grammar->lock);
    TRY(status);
    return remember(matcher, reached);
}

bool grammar_matcher_accepting(const struct grammar_matcher *matcher) {
    if (matcher->finished)
        return true;
    pthread_mutex_lock(&matcher->grammar->lock);
    bool accepting = set_at(matcher->grammar->automaton, present(matcher))->accepting;
    pthread_mutex_unlock(&matcher->grammar->lock);
    return accepting;
}

bool grammar_matcher_finished(const struct grammar_matcher *matcher) {
    return matcher->finished;
}

static enum result next_bytes(struct grammar *grammar, uint32_t set, bool allowed[256]) {
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t next = DEAD_SET;
        TRY(step(grammar, set, (unsigned char)byte, &next));
        allowed[byte] = next != DEAD_SET;
    }
    return OK;
}

enum result grammar_matcher_next_bytes(struct grammar_matcher *matcher, bool allowed[256]) {
    memset(allowed, 0, 256 * sizeof *allowed);
    if (matcher->finished)
        return OK;
    pthread_mutex_lock(&matcher->grammar->lock);
    enum result status = next_bytes(matcher->grammar, present(matcher), allowed);
    pthread_mutex_unlock(&matcher->grammar->lock);
    return status;
}

static bool waits_for_token(const struct automaton *automaton, uint32_t number) {
    const struct set *set = set_at(automaton, number);
    const struct configuration *all = automaton->configurations.data;
    for (uint32_t i = 0; i < set->count; i++)
        if (all[set->first + i].state & TOKEN_FLAG)
            return true;
    return false;
}

static enum result forced(struct grammar *grammar, uint32_t set, char *text, size_t room, size_t *bytes) {
    while (*bytes < room && !set_at(grammar->automaton, set)->accepting &&
           !waits_for_token(grammar->automaton, set)) {
        bool allowed[256];
        int only = -1;
        TRY(next_bytes(grammar, set, allowed));
        for (int byte = 0; byte < 256; byte++)
            if (allowed[byte])
                only = only == -1 ? byte : -2;
        if (only < 0)
            return OK;
        text[(*bytes)++] = (char)only;
        TRY(step(grammar, set, (unsigned char)only, &set));
    }
    return OK;
}

enum result grammar_matcher_forced(struct grammar_matcher *matcher, char *text, size_t room, size_t *bytes) {
    *bytes = 0;
    if (matcher->finished)
        return OK;
    pthread_mutex_lock(&matcher->grammar->lock);
    enum result status = forced(matcher->grammar, present(matcher), text, room, bytes);
    pthread_mutex_unlock(&matcher->grammar->lock);
    return status;
}

void grammar_matcher_rollback(struct grammar_matcher *matcher, size_t tokens) {
    if (tokens == 0)
        return;
    matcher->finished = false;
    matcher->count = tokens < matcher->count ? matcher->count - tokens : 1;
}

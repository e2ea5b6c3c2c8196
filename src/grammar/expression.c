#include "grammar/expression.h"

#include <stdlib.h> /* calloc, realloc, free, qsort */
#include <string.h> /* memcpy, memset, memcmp */

enum { ALTERNATIVES_LIMIT = 20000 };

enum kind { NOTHING, EMPTY, BYTES, CONCATENATION, EITHER, BOTH, COMPLEMENT, REPEAT, MULTIPLE };

enum liveness { UNKNOWN, ALIVE, DEAD };

/* Of derivatives, which call themselves: a few hundred bytes of stack each. */
enum { HEIGHT_LIMIT = 256 };

/* `a`, `b`: operands, or numbers of MULTIPLE; lists of EITHER and BOTH lie in `lists` from `a`, `b` long; the
 * set of BYTES is `sets[a]`. */
struct node {
    uint8_t kind, nullable, liveness;
    bool plain;  /* no BOTH, COMPLEMENT or MULTIPLE within: not empty unless it is NOTHING */
    bool counts; /* has a repetition within */
    uint32_t a, b;
    int32_t least, most;
    uint32_t height;    /* calls within calls that a derivative takes */
    uint32_t partition; /* of the bytes into those with equal derivatives; 0: not known yet */
    uint32_t row;       /* place in `rows` of the derivatives of the partition's classes, +1; 0: none */
    uint32_t run;       /* of a repetition: how often it can go on within a token, + 1; 0: not known yet */
    uint32_t next;      /* of the same hash */
};

struct partition {
    uint8_t class_of[256];
    uint32_t classes;
    uint32_t next;
};

/* A partition worked out from two others; kept by their numbers. */
struct meet {
    uint32_t a, b, met;
};

enum { MEETS_KEPT = 256 };

struct pool {
    void *data;
    size_t count, capacity, item;
};

struct expressions {
    struct pool nodes, lists, sets, partitions, rows;
    uint32_t *buckets, *partition_buckets;
    size_t bucket_count, partition_bucket_count;
    enum result failure;
    const char *why;
    bool exploring; /* rows of dead ends are being found out */
    struct meet meets[MEETS_KEPT];
    uint64_t work, work_limit; /* spent, and how much may be; 0: any number */
    uint32_t *moved; /* of a collection: the new number of each node, UINT32_MAX where it is thrown away */
};

static struct node *node_at(const struct expressions *e, uint32_t a) {
    return (struct node *)e->nodes.data + a;
}

static uint32_t *list_at(const struct expressions *e, uint32_t place) {
    return (uint32_t *)e->lists.data + place;
}

static uint32_t *row_at(const struct expressions *e, uint32_t place) {
    return (uint32_t *)e->rows.data + place;
}

static struct partition *partition_at(const struct expressions *e, uint32_t place) {
    return ((struct partition **)e->partitions.data)[place];
}

static uint32_t failed(struct expressions *e, enum result failure, const char *why) {
    if (e->failure == OK) {
        e->failure = failure;
        e->why = why;
    }
    return EXPRESSION_FAILED;
}

void expressions_limit_work(struct expressions *e, uint64_t units) {
    e->work = 0;
    e->work_limit = units;
}

void expressions_spend(struct expressions *e, uint64_t units) {
    e->work += units;
    if (e->work_limit && e->work > e->work_limit)
        (void)failed(e, ERROR_INPUT, "it takes too much work to compile: make it smaller");
}

uint64_t expressions_spent(const struct expressions *e) {
    return e->work;
}

/* The place of `count` new items, zeroed, or SIZE_MAX. */
static size_t pool_add(struct expressions *e, struct pool *pool, size_t count) {
    if (pool->count + count > pool->capacity) {
        size_t capacity = pool->capacity ? pool->capacity * 2 : 64;
        while (capacity < pool->count + count)
            capacity *= 2;
        void *data = realloc(pool->data, capacity * pool->item);
        if (!data) {
            (void)failed(e, ERROR_MEMORY, "no memory for a grammar");
            return SIZE_MAX;
        }
        pool->data = data;
        pool->capacity = capacity;
    }
    size_t place = pool->count;
    memset((char *)pool->data + place * pool->item, 0, count * pool->item);
    pool->count += count;
    return place;
}

/* ---- equal nodes are one node ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static uint64_t hash_words(uint64_t hash, const uint32_t *words, size_t count) {
    for (size_t i = 0; i < count; i++)
        hash = mix(hash, words[i]);
    return hash;
}

static uint64_t hash_node(const struct expressions *e, const struct node *node) {
    uint64_t hash = mix(node->kind, (uint64_t)(uint32_t)node->least << 32 | (uint32_t)node->most);
    if (node->kind == EITHER || node->kind == BOTH)
        return hash_words(hash, list_at(e, node->a), node->b);
    if (node->kind == BYTES) {
        const struct byte_set *set = (const struct byte_set *)e->sets.data + node->a;
        for (int i = 0; i < 4; i++)
            hash = mix(hash, set->words[i]);
        return hash;
    }
    return mix(hash, (uint64_t)node->a << 32 | node->b);
}

static bool equal_nodes(const struct expressions *e, const struct node *a, const struct node *b) {
    if (a->kind != b->kind || a->least != b->least || a->most != b->most)
        return false;
    if (a->kind == EITHER || a->kind == BOTH)
        return a->b == b->b && !memcmp(list_at(e, a->a), list_at(e, b->a), a->b * sizeof(uint32_t));
    if (a->kind == BYTES) {
        const struct byte_set *sets = e->sets.data;
        return !memcmp(&sets[a->a], &sets[b->a], sizeof *sets);
    }
    return a->a == b->a && a->b == b->b;
}

static void fill_buckets(struct expressions *e) {
    memset(e->buckets, 0xFF, e->bucket_count * sizeof *e->buckets);
    for (uint32_t i = 0; i < e->nodes.count; i++) {
        struct node *node = node_at(e, i);
        uint32_t *bucket = &e->buckets[hash_node(e, node) & (e->bucket_count - 1)];
        node->next = *bucket;
        *bucket = i;
    }
}

static bool grow_buckets(struct expressions *e) {
    size_t count = e->bucket_count ? e->bucket_count * 2 : 256;
    uint32_t *buckets = realloc(e->buckets, count * sizeof *buckets);
    if (!buckets) {
        (void)failed(e, ERROR_MEMORY, "no memory for a grammar");
        return false;
    }
    e->buckets = buckets;
    e->bucket_count = count;
    fill_buckets(e);
    return true;
}

static uint32_t height_of(const struct expressions *e, const struct node *node) {
    uint32_t height = 0;
    switch ((enum kind)node->kind) {
    case NOTHING:
    case EMPTY:
    case BYTES:
    case MULTIPLE:
        return 0;
    case CONCATENATION:
        height = node_at(e, node->a)->height;
        if (node_at(e, node->a)->nullable && node_at(e, node->b)->height > height)
            height = node_at(e, node->b)->height;
        break;
    case EITHER:
    case BOTH:
        for (uint32_t i = 0; i < node->b; i++) {
            uint32_t member = node_at(e, list_at(e, node->a)[i])->height;
            height = member > height ? member : height;
        }
        break;
    case COMPLEMENT:
    case REPEAT:
        height = node_at(e, node->a)->height;
    }
    return height + 1;
}

/* The number of a node equal to `wanted`. What `wanted` alone brought along (a list, a set) was the last
 * added and goes again when such a node is there already. */
static uint32_t intern(struct expressions *e, const struct node *wanted) {
    expressions_spend(e, wanted->kind == EITHER || wanted->kind == BOTH ? 2 + wanted->b : 2);
    if (e->failure != OK)
        return EXPRESSION_FAILED;
    if (e->nodes.count >= e->bucket_count && !grow_buckets(e))
        return EXPRESSION_FAILED;
    uint64_t hash = hash_node(e, wanted);
    for (uint32_t i = e->buckets[hash & (e->bucket_count - 1)]; i != UINT32_MAX; i = node_at(e, i)->next) {
        if (!equal_nodes(e, node_at(e, i), wanted))
            continue;
        if (wanted->kind == EITHER || wanted->kind == BOTH)
            e->lists.count -= wanted->b;
        else if (wanted->kind == BYTES)
            e->sets.count--;
        return i;
    }
    if (e->nodes.count >= EXPRESSIONS_LIMIT)
        return failed(e, ERROR_INPUT, "the grammar is too large: limit of expressions exceeded");
    uint32_t height = height_of(e, wanted);
    if (height > HEIGHT_LIMIT)
        return failed(e, ERROR_INPUT, "the grammar has more than 256 optional parts in a row");
    size_t place = pool_add(e, &e->nodes, 1);
    if (place == SIZE_MAX)
        return EXPRESSION_FAILED;
    uint32_t *bucket = &e->buckets[hash & (e->bucket_count - 1)];
    *node_at(e, (uint32_t)place) = *wanted;
    node_at(e, (uint32_t)place)->height = height;
    node_at(e, (uint32_t)place)->next = *bucket;
    *bucket = (uint32_t)place;
    return (uint32_t)place;
}

/* A partition stays at its place in memory, for those who walk by its classes. */
static uint32_t add_partition(struct expressions *e, const struct partition *wanted) {
    struct partition *partition = malloc(sizeof *partition);
    size_t place = partition ? pool_add(e, &e->partitions, 1) : SIZE_MAX;
    if (place == SIZE_MAX) {
        free(partition);
        (void)failed(e, ERROR_MEMORY, "no memory for a grammar");
        return EXPRESSION_ALL_ALIKE;
    }
    *partition = *wanted;
    ((struct partition **)e->partitions.data)[place] = partition;
    return (uint32_t)place;
}

/* ---- life ---- */

enum result expressions_create(struct expressions **expressions) {
    struct expressions *e = calloc(1, sizeof *e);
    *expressions = e;
    if (!e)
        return fail(ERROR_MEMORY, "no memory for a grammar");
    e->nodes.item = sizeof(struct node);
    e->lists.item = e->rows.item = sizeof(uint32_t);
    e->sets.item = sizeof(struct byte_set);
    e->partitions.item = sizeof(struct partition *);
    (void)intern(e, &(struct node){.kind = NOTHING, .plain = true, .liveness = DEAD});
    (void)intern(e, &(struct node){.kind = EMPTY, .plain = true, .nullable = 1, .liveness = ALIVE});
    /* Number 0 means "not known"; 1 has all bytes alike. */
    (void)add_partition(e, &(struct partition){.classes = 1});
    (void)add_partition(e, &(struct partition){.classes = 1});
    return expressions_check(e);
}

void expressions_free(struct expressions *e) {
    if (!e)
        return;
    for (uint32_t i = 0; i < e->partitions.count; i++)
        free(partition_at(e, i));
    free(e->moved);
    free(e->nodes.data);
    free(e->lists.data);
    free(e->sets.data);
    free(e->partitions.data);
    free(e->rows.data);
    free(e->buckets);
    free(e->partition_buckets);
    free(e);
}

enum result expressions_check(const struct expressions *e) {
    return e->failure == OK ? OK : fail(e->failure, "%s", e->why);
}

size_t expressions_bytes(const struct expressions *e) {
    const struct pool *pools[] = {&e->nodes, &e->lists, &e->sets, &e->partitions, &e->rows};
    size_t bytes = sizeof *e + (e->bucket_count + e->partition_bucket_count) * sizeof(uint32_t);
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
        bytes += pools[i]->capacity * pools[i]->item;
    return bytes + e->partitions.count * sizeof(struct partition);
}

/* ---- builders ---- */

uint32_t expression_nothing(struct expressions *e) {
    (void)e;
    return EXPRESSION_NOTHING;
}

uint32_t expression_empty(struct expressions *e) {
    (void)e;
    return EXPRESSION_EMPTY;
}

uint32_t expression_byte_set(struct expressions *e, const struct byte_set *set) {
    if (!(set->words[0] | set->words[1] | set->words[2] | set->words[3]))
        return EXPRESSION_NOTHING;
    size_t place = pool_add(e, &e->sets, 1);
    if (place == SIZE_MAX)
        return EXPRESSION_FAILED;
    ((struct byte_set *)e->sets.data)[place] = *set;
    return intern(e, &(struct node){.kind = BYTES, .plain = true, .liveness = ALIVE, .a = (uint32_t)place});
}

static uint32_t byte_range(struct expressions *e, unsigned first, unsigned last) {
    struct byte_set set = {{0}};
    for (unsigned byte = first; byte <= last; byte++)
        set.words[byte >> 6] |= (uint64_t)1 << (byte & 63);
    return expression_byte_set(e, &set);
}

uint32_t expression_byte(struct expressions *e, unsigned char byte) {
    return byte_range(e, byte, byte);
}

/* One concatenation of parts that are neither empty nor nothing, the first of which is none itself. */
static uint32_t concatenate_two(struct expressions *e, uint32_t a, uint32_t b) {
    if (a == EXPRESSION_FAILED || b == EXPRESSION_FAILED)
        return EXPRESSION_FAILED;
    const struct node *first = node_at(e, a), *second = node_at(e, b);
    struct node node = {.kind = CONCATENATION, .a = a, .b = b};
    node.counts = first->counts || second->counts;
    node.nullable = first->nullable && second->nullable;
    node.plain = first->plain && second->plain;
    return intern(e, &node);
}

/* Concatenations lean to the right, so that equal languages meet more often: `b` goes behind the last part of
 * `a`. The parts stand in `lists` meanwhile. */
uint32_t expression_concatenate(struct expressions *e, uint32_t a, uint32_t b) {
    if (a == EXPRESSION_FAILED || b == EXPRESSION_FAILED)
        return EXPRESSION_FAILED;
    if (a == EXPRESSION_NOTHING || b == EXPRESSION_NOTHING)
        return EXPRESSION_NOTHING;
    if (a == EXPRESSION_EMPTY)
        return b;
    if (b == EXPRESSION_EMPTY)
        return a;
    size_t start = e->lists.count;
    for (; node_at(e, a)->kind == CONCATENATION; a = node_at(e, a)->b) {
        size_t place = pool_add(e, &e->lists, 1);
        if (place == SIZE_MAX)
            return EXPRESSION_FAILED;
        *list_at(e, (uint32_t)place) = node_at(e, a)->a;
    }
    uint32_t result = concatenate_two(e, a, b);
    while (e->lists.count > start) {
        uint32_t head = *list_at(e, (uint32_t)--e->lists.count);
        result = concatenate_two(e, head, result);
    }
    return result;
}

static int compare_numbers(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Appends `a`, or the members of `a` when it is a list of the same kind, to the list being made. */
static bool add_operand(struct expressions *e, enum kind kind, uint32_t a) {
    const struct node *node = node_at(e, a);
    uint32_t count = node->kind == kind ? node->b : 1, from = node->a;
    size_t place = pool_add(e, &e->lists, count);
    if (place == SIZE_MAX)
        return false;
    if (node->kind == kind)
        memcpy(list_at(e, (uint32_t)place), list_at(e, from), count * sizeof(uint32_t));
    else
        *list_at(e, (uint32_t)place) = a;
    return true;
}

/* Joins the sets of bytes among the operands: of many alternatives, most are such. */
static void join_sets(struct expressions *e, size_t start) {
    struct byte_set joined = {{0}};
    size_t kept = start, found = 0;
    uint32_t *lists = e->lists.data;
    for (size_t i = start; i < e->lists.count; i++)
        found += node_at(e, lists[i])->kind == BYTES;
    if (found < 2)
        return;
    for (size_t i = start; i < e->lists.count; i++) {
        const struct node *node = node_at(e, lists[i]);
        if (node->kind != BYTES) {
            lists[kept++] = lists[i];
            continue;
        }
        for (int w = 0; w < 4; w++)
            joined.words[w] |= ((const struct byte_set *)e->sets.data)[node->a].words[w];
    }
    e->lists.count = kept;
    uint32_t set = expression_byte_set(e, &joined);
    if (set != EXPRESSION_FAILED)
        (void)add_operand(e, EITHER, set);
}

/* The part that `a` begins with, and what is behind it. */
static uint32_t split(const struct expressions *e, uint32_t a, uint32_t *behind) {
    const struct node *node = node_at(e, a);
    *behind = node->kind == CONCATENATION ? node->b : EXPRESSION_EMPTY;
    return node->kind == CONCATENATION ? node->a : a;
}

/* x{a,b} or x{c,d} as one repetition, when together they are all counts from the least to the most. */
static bool join_repeats(struct expressions *e, uint32_t a, uint32_t b, uint32_t *joined) {
    const struct node *x = node_at(e, a), *y = node_at(e, b);
    if (x->kind != REPEAT || y->kind != REPEAT || x->a != y->a || (x->most >= 0 && y->least > x->most + 1) ||
        (y->most >= 0 && x->least > y->most + 1))
        return false;
    int32_t least = x->least < y->least ? x->least : y->least;
    int32_t most = x->most < 0 || y->most < 0 ? -1 : x->most > y->most ? x->most : y->most;
    *joined = expression_repeat(e, x->a, least, most);
    return true;
}

/* Whether `a` or `b` is one expression of the same form, as they differ in one count alone. */
static bool join_counts(struct expressions *e, uint32_t a, uint32_t b, uint32_t *joined) {
    enum { PARTS = 8 };
    uint32_t heads[PARTS], count = 0, x_behind, y_behind;
    while (a != b && count < PARTS) {
        uint32_t x = split(e, a, &x_behind), y = split(e, b, &y_behind);
        if (x != y && (x_behind != y_behind || !join_repeats(e, x, y, &x)))
            return false;
        heads[count++] = x;
        a = x_behind;
        b = y_behind;
    }
    if (a != b)
        return false;
    *joined = a;
    while (count)
        *joined = expression_concatenate(e, heads[--count], *joined);
    return true;
}

/* Joins alternatives that differ in a count alone: repetitions within repetitions would have one for each way to
 * divide the text. */
static void join_alternatives(struct expressions *e, size_t start) {
    enum { FEW = 64 };
    uint32_t candidates[FEW], count = 0; /* places */
    size_t kept = start;
    for (size_t i = start; i < e->lists.count; i++) {
        uint32_t member = *list_at(e, (uint32_t)i), with = count;
        if (node_at(e, member)->counts)
            for (with = 0; with < count; with++)
                if (join_counts(e, *list_at(e, candidates[with]), member, &member))
                    break;
        if (member == EXPRESSION_FAILED)
            return;
        if (with < count) {
            *list_at(e, candidates[with]) = member;
            continue;
        }
        if (count < FEW && node_at(e, member)->counts)
            candidates[count++] = (uint32_t)kept;
        *list_at(e, (uint32_t)kept++) = member;
    }
    e->lists.count = kept;
}

static uint32_t finish_list(struct expressions *e, enum kind kind, size_t start) {
    expressions_spend(e, 2 * (e->lists.count - start));
    uint32_t neutral = kind == EITHER ? EXPRESSION_NOTHING : EXPRESSION_FAILED;
    uint32_t *list = list_at(e, (uint32_t)start);
    size_t count = e->lists.count - start, kept = 0;
    if (count)
        qsort(list, count, sizeof *list, compare_numbers);
    struct node node = {.kind = (uint8_t)kind, .a = (uint32_t)start, .plain = kind == EITHER};
    node.nullable = kind == BOTH;
    bool nothing = false;
    for (size_t i = 0; i < count; i++) {
        if ((kept && list[kept - 1] == list[i]) || list[i] == neutral)
            continue;
        const struct node *member = node_at(e, list[i]);
        nothing = nothing || list[i] == EXPRESSION_NOTHING;
        node.nullable =
            kind == EITHER ? node.nullable || member->nullable : node.nullable && member->nullable;
        node.plain = node.plain && member->plain;
        node.counts = node.counts || member->counts;
        list[kept++] = list[i];
    }
    if (kept == 0 || (kind == BOTH && nothing)) {
        e->lists.count = start;
        return EXPRESSION_NOTHING;
    }
    if (kept == 1) {
        uint32_t only = list[0];
        e->lists.count = start;
        return only;
    }
    if (kept > ALTERNATIVES_LIMIT)
        return failed(e, ERROR_INPUT, "the grammar is too ambiguous: more than 20000 ways to go on");
    e->lists.count = start + kept;
    node.b = (uint32_t)kept;
    return intern(e, &node);
}

static uint32_t build_list(struct expressions *e, enum kind kind, const uint32_t *list, size_t count) {
    if (e->failure != OK)
        return EXPRESSION_FAILED;
    size_t start = e->lists.count;
    for (size_t i = 0; i < count; i++)
        if (list[i] == EXPRESSION_FAILED || !add_operand(e, kind, list[i]))
            return EXPRESSION_FAILED;
    if (kind == EITHER) {
        join_sets(e, start);
        join_alternatives(e, start);
    }
    return e->failure == OK ? finish_list(e, kind, start) : EXPRESSION_FAILED;
}

uint32_t expression_either(struct expressions *e, const uint32_t *list, size_t count) {
    return build_list(e, EITHER, list, count);
}

uint32_t expression_both(struct expressions *e, const uint32_t *list, size_t count) {
    return build_list(e, BOTH, list, count);
}

uint32_t expression_complement(struct expressions *e, uint32_t a) {
    if (a == EXPRESSION_FAILED)
        return a;
    const struct node *node = node_at(e, a);
    if (node->kind == COMPLEMENT)
        return node->a;
    return intern(e, &(struct node){.kind = COMPLEMENT, .a = a, .nullable = !node->nullable});
}

uint32_t expression_repeat(struct expressions *e, uint32_t a, int32_t least, int32_t most) {
    if (a == EXPRESSION_FAILED)
        return a;
    if (most == 0 || a == EXPRESSION_EMPTY)
        return EXPRESSION_EMPTY;
    if (a == EXPRESSION_NOTHING)
        return least > 0 ? EXPRESSION_NOTHING : EXPRESSION_EMPTY;
    if (least == 1 && most == 1)
        return a;
    const struct node *node = node_at(e, a);
    if (node->nullable)
        least = 0;
    if (node->kind == REPEAT && node->least == 0 && node->most == -1)
        return a; /* (x*){n,m} */
    struct node repeat = {.kind = REPEAT, .a = a, .least = least, .most = most, .plain = node->plain};
    repeat.nullable = least == 0;
    repeat.counts = true;
    return intern(e, &repeat);
}

uint32_t expression_literal(struct expressions *e, const char *bytes, size_t count) {
    uint32_t literal = EXPRESSION_EMPTY;
    for (size_t i = count; i > 0; i--)
        literal = expression_concatenate(e, expression_byte(e, (unsigned char)bytes[i - 1]), literal);
    return literal;
}

static int compare_texts(const void *a, const void *b) {
    const struct expression_text *x = a, *y = b;
    size_t shared = x->count < y->count ? x->count : y->count;
    int order = shared ? memcmp(x->bytes, y->bytes, shared) : 0;
    return order ? order : (x->count > y->count) - (x->count < y->count);
}

/* What is behind the first `at` bytes, which are the same, of sorted texts. `depth`: branchings before it. */
static uint32_t sorted_texts(
    struct expressions *e, const struct expression_text *texts, size_t count, size_t at, int depth) {
    enum { DEPTH = 200 };
    uint32_t alternatives[1 + 256], found = 0;
    const struct expression_text *first = texts, *last = texts + count - 1;
    size_t from = at;
    while (at < first->count && at < last->count && first->bytes[at] == last->bytes[at])
        at++;
    uint32_t shared = expression_literal(e, first->bytes + from, at - from);
    if (depth == DEPTH && count > 1) { /* for the sake of the stack */
        shared = EXPRESSION_NOTHING;
        for (size_t i = 0; i < count; i++) {
            uint32_t both[] = {shared, expression_literal(e, texts[i].bytes + from, texts[i].count - from)};
            shared = expression_either(e, both, 2);
        }
        return shared;
    }
    while (texts <= last && texts->count == at) {
        alternatives[0] = EXPRESSION_EMPTY;
        found = 1;
        texts++;
    }
    while (texts <= last) {
        const struct expression_text *group = texts;
        while (texts <= last && texts->bytes[at] == group->bytes[at])
            texts++;
        alternatives[found++] = sorted_texts(e, group, (size_t)(texts - group), at, depth + 1);
    }
    return expression_concatenate(e, shared, expression_either(e, alternatives, found));
}

uint32_t expression_texts(struct expressions *e, struct expression_text *texts, size_t count) {
    if (!count)
        return EXPRESSION_NOTHING;
    qsort(texts, count, sizeof *texts, compare_texts);
    return sorted_texts(e, texts, count, 0, 0);
}

uint32_t expression_multiple(struct expressions *e, uint32_t modulus, uint32_t remainder) {
    struct node node = {.kind = MULTIPLE, .a = modulus, .b = remainder % modulus};
    node.nullable = node.b == 0;
    return intern(e, &node);
}

/* ---- characters ---- */

/* Characters first..last of one UTF-8 length, of which the low `bits` are still to be said: the same lead
 * bytes are said once, whole blocks as ranges of bytes. */
static uint32_t continuation(struct expressions *e, uint32_t first, uint32_t last, unsigned bits) {
    if (bits == 0)
        return EXPRESSION_EMPTY;
    uint32_t block = (uint32_t)1 << (bits - 6), mask = block - 1, alternatives[3];
    size_t count = 0;
    while (first <= last && count < 3) {
        uint32_t lead = first >> (bits - 6), end = last >> (bits - 6), to;
        if ((first & mask) || lead == end)
            to = lead == end ? last : first | mask;
        else
            to = (last & mask) == mask ? last : (end << (bits - 6)) - 1;
        if ((first & mask) == 0 && lead == end && (last & mask) == mask)
            to = last;
        uint32_t bytes = byte_range(e, 0x80 | lead, 0x80 | to >> (bits - 6));
        alternatives[count++] =
            expression_concatenate(e, bytes, continuation(e, first & mask, to & mask, bits - 6));
        first = to + 1;
    }
    return expression_either(e, alternatives, count);
}

static uint32_t characters_of_length(struct expressions *e, uint32_t first, uint32_t last, unsigned length) {
    static const unsigned marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    unsigned bits = 6 * (length - 1);
    uint32_t block = (uint32_t)1 << bits, mask = block - 1, result = EXPRESSION_NOTHING;
    for (uint32_t from = first; from <= last;) {
        uint32_t lead = from >> bits, end = last >> bits, to;
        if ((from & mask) || lead == end)
            to = lead == end ? last : from | mask;
        else
            to = (last & mask) == mask ? last : (end << bits) - 1;
        uint32_t pair[] = {
            result, expression_concatenate(e, byte_range(e, marks[length] | lead, marks[length] | to >> bits),
                        continuation(e, from & mask, to & mask, bits))};
        result = expression_either(e, pair, 2);
        from = to + 1;
    }
    return result;
}

static uint32_t character_range(struct expressions *e, uint32_t first, uint32_t last) {
    static const struct {
        uint32_t first, last;
        unsigned length;
    } parts[] = {
        {0, 0x7F, 1}, {0x80, 0x7FF, 2}, {0x800, 0xD7FF, 3}, {0xE000, 0xFFFF, 3}, {0x10000, 0x10FFFF, 4}};
    uint32_t found[5];
    size_t count = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        uint32_t from = first > parts[i].first ? first : parts[i].first;
        uint32_t to = last < parts[i].last ? last : parts[i].last;
        if (from > to)
            continue;
        found[count++] = parts[i].length == 1 ? byte_range(e, from, to)
                                              : characters_of_length(e, from, to, parts[i].length);
    }
    return expression_either(e, found, count);
}

uint32_t expression_code_points(struct expressions *e, const struct code_range *ranges, size_t count) {
    uint32_t result = EXPRESSION_NOTHING;
    for (size_t i = 0; i < count; i++) {
        uint32_t pair[] = {result, character_range(e, ranges[i].first, ranges[i].last)};
        result = expression_either(e, pair, 2);
    }
    return result;
}

uint32_t expression_any_utf8(struct expressions *e) {
    return expression_repeat(e, character_range(e, 0, 0x10FFFF), 0, -1);
}

/* ---- partitions of the bytes ---- */

static uint32_t intern_partition(struct expressions *e, const struct partition *wanted) {
    if (e->partitions.count >= e->partition_bucket_count) {
        size_t count = e->partition_bucket_count ? e->partition_bucket_count * 2 : 64;
        uint32_t *buckets = calloc(count, sizeof *buckets);
        if (!buckets) {
            (void)failed(e, ERROR_MEMORY, "no memory for a grammar");
            return 1;
        }
        free(e->partition_buckets);
        e->partition_buckets = buckets;
        e->partition_bucket_count = count;
        for (uint32_t i = 1; i < e->partitions.count; i++) {
            struct partition *p = partition_at(e, i);
            uint64_t hash = hash_words(0, (const uint32_t *)(const void *)p->class_of, 64);
            p->next = buckets[hash & (count - 1)];
            buckets[hash & (count - 1)] = i;
        }
    }
    uint64_t hash = hash_words(0, (const uint32_t *)(const void *)wanted->class_of, 64);
    uint32_t *bucket = &e->partition_buckets[hash & (e->partition_bucket_count - 1)];
    for (uint32_t i = *bucket; i; i = partition_at(e, i)->next)
        if (!memcmp(partition_at(e, i)->class_of, wanted->class_of, 256))
            return i;
    uint32_t place = add_partition(e, wanted);
    if (e->failure != OK)
        return EXPRESSION_ALL_ALIKE;
    partition_at(e, place)->next = *bucket;
    *bucket = place;
    return place;
}

/* Tells apart what `by` does, too. Classes are numbered by first byte, so that equal partitions meet. */
static void refine(struct partition *met, const struct partition *by) {
    enum { TABLE = 4096 };
    uint16_t pairs[256], table[TABLE]; /* of pairs of classes: the new one + 1 */
    uint32_t classes = 0, size = met->classes * by->classes;
    if (by->classes == 1)
        return;
    if (size <= TABLE)
        memset(table, 0, size * sizeof *table);
    for (unsigned byte = 0; byte < 256; byte++) {
        uint16_t pair = (uint16_t)(met->class_of[byte] * by->classes + by->class_of[byte]);
        uint32_t class = size <= TABLE && table[pair] ? table[pair] - 1u : 0;
        while (size > TABLE && class < classes && pairs[class] != pair)
            class ++;
        if (size > TABLE ? class == classes : !table[pair]) {
            class = classes++;
            pairs[class] = pair;
            if (size <= TABLE)
                table[pair] = (uint16_t)(class + 1);
        }
        met->class_of[byte] = (uint8_t) class;
    }
    met->classes = classes;
}

/* The partition that tells apart what one of two does. */
static uint32_t meet(struct expressions *e, uint32_t a, uint32_t b) {
    if (a == b || b == EXPRESSION_ALL_ALIKE)
        return a;
    if (a == EXPRESSION_ALL_ALIKE)
        return b;
    struct meet *known = &e->meets[(a * 31 + b) % MEETS_KEPT];
    if (known->a != a || known->b != b) {
        struct partition met = *partition_at(e, a);
        refine(&met, partition_at(e, b));
        *known = (struct meet){a, b, intern_partition(e, &met)};
    }
    return known->met;
}

uint32_t expression_partition_all(struct expressions *e, const uint32_t *list, size_t count) {
    enum { FEW = 6, SEEN = 16 };
    uint32_t seen[SEEN] = {0}; /* that were taken into account lately */
    struct partition met = {.classes = 1};
    uint32_t first = EXPRESSION_ALL_ALIKE;
    bool several = false;
    expressions_spend(e, 5 * count);
    for (size_t i = 0; count <= FEW && i < count; i++)
        first = meet(e, first, expression_partition(e, list[i]));
    if (count <= FEW)
        return first;
    for (size_t i = 0; i < count; i++) {
        uint32_t next = expression_partition(e, list[i]);
        if (next == EXPRESSION_ALL_ALIKE || seen[next % SEEN] == next)
            continue;
        seen[next % SEEN] = next;
        several = several || first != EXPRESSION_ALL_ALIKE;
        first = first == EXPRESSION_ALL_ALIKE ? next : first;
        refine(&met, partition_at(e, next));
    }
    return several ? intern_partition(e, &met) : first;
}

const uint8_t *expression_classes(const struct expressions *e, uint32_t partition, uint32_t *count) {
    if (count)
        *count = partition_at(e, partition)->classes;
    return partition_at(e, partition)->class_of;
}

static bool in_set(const struct expressions *e, uint32_t set, unsigned byte) {
    return ((const struct byte_set *)e->sets.data)[set].words[byte >> 6] >> (byte & 63) & 1;
}

static uint32_t fresh_partition(struct expressions *e, const struct node *node) {
    struct partition made = {.classes = 2};
    switch ((enum kind)node->kind) {
    case NOTHING:
    case EMPTY:
        return 1;
    case BYTES:
        for (unsigned byte = 0; byte < 256; byte++)
            made.class_of[byte] = in_set(e, node->a, byte) != in_set(e, node->a, 0);
        return memchr(made.class_of, 1, 256) ? intern_partition(e, &made) : 1;
    case MULTIPLE:
        for (unsigned byte = 0; byte < 256; byte++)
            made.class_of[byte] = byte >= '0' && byte <= '9' ? (uint8_t)(byte - '0' + 2) : byte == '.';
        made.classes = 12;
        return intern_partition(e, &made);
    case CONCATENATION:
        return node_at(e, node->a)->nullable
                   ? expression_partition_all(e, (const uint32_t[]){node->a, node->b}, 2)
                   : expression_partition(e, node->a);
    case EITHER:
    case BOTH:
        return expression_partition_all(e, list_at(e, node->a), node->b);
    case COMPLEMENT:
    case REPEAT:
        return expression_partition(e, node->a);
    }
    return 1;
}

uint32_t expression_partition(struct expressions *e, uint32_t a) {
    struct node node = *node_at(e, a);
    if (node.partition)
        return node.partition;
    uint32_t partition = fresh_partition(e, &node);
    node_at(e, a)->partition = partition;
    return partition;
}

/* ---- derivatives ---- */

static const uint32_t NOT_DERIVED = UINT32_MAX - 1; /* a place of a row */

static uint32_t raw_derivative(struct expressions *e, uint32_t a, unsigned byte);

static uint32_t derive_list(struct expressions *e, const struct node *node, unsigned byte) {
    uint32_t few[64], *derived = few, result = EXPRESSION_FAILED;
    if (node->b > 64)
        derived = malloc(node->b * sizeof *derived);
    if (!derived)
        return failed(e, ERROR_MEMORY, "no memory for a grammar");
    for (uint32_t i = 0; i < node->b; i++)
        derived[i] = raw_derivative(e, list_at(e, node->a)[i], byte);
    result = build_list(e, (enum kind)node->kind, derived, node->b);
    if (derived != few)
        free(derived);
    return result;
}

static uint32_t derive_repeat(struct expressions *e, const struct node *node, unsigned byte) {
    uint32_t head = raw_derivative(e, node->a, byte);
    if (head == EXPRESSION_NOTHING || head == EXPRESSION_FAILED)
        return head;
    int32_t least = node->least > 0 ? node->least - 1 : 0,
            most = node->most > 0 ? node->most - 1 : node->most;
    return expression_concatenate(e, head, expression_repeat(e, node->a, least, most));
}

static uint32_t derive(struct expressions *e, const struct node *node, unsigned byte) {
    switch ((enum kind)node->kind) {
    case NOTHING:
    case EMPTY:
        return EXPRESSION_NOTHING;
    case BYTES:
        return in_set(e, node->a, byte) ? EXPRESSION_EMPTY : EXPRESSION_NOTHING;
    case CONCATENATION: {
        uint32_t head = expression_concatenate(e, raw_derivative(e, node->a, byte), node->b);
        if (head == EXPRESSION_FAILED || !node_at(e, node->a)->nullable)
            return head;
        uint32_t pair[] = {head, raw_derivative(e, node->b, byte)};
        return expression_either(e, pair, 2);
    }
    case EITHER:
    case BOTH:
        return derive_list(e, node, byte);
    case COMPLEMENT:
        return expression_complement(e, raw_derivative(e, node->a, byte));
    case REPEAT:
        return derive_repeat(e, node, byte);
    case MULTIPLE:
        if (byte == '.')
            return expression_multiple(e, node->a, node->b);
        if (byte < '0' || byte > '9')
            return EXPRESSION_NOTHING;
        return expression_multiple(e, node->a, (uint32_t)(((uint64_t)node->b * 10 + (byte - '0')) % node->a));
    }
    return EXPRESSION_NOTHING;
}

/* The place of the derivatives of `a` by class of bytes, each made on first use; SIZE_MAX: failed. */
static size_t row_of(struct expressions *e, uint32_t a) {
    if (node_at(e, a)->row)
        return node_at(e, a)->row - 1;
    uint32_t classes = partition_at(e, expression_partition(e, a))->classes;
    size_t row = e->failure == OK ? pool_add(e, &e->rows, classes) : SIZE_MAX;
    if (row == SIZE_MAX)
        return SIZE_MAX;
    for (uint32_t class = 0; class < classes; class ++)
        *row_at(e, (uint32_t)row + class) = NOT_DERIVED;
    node_at(e, a)->row = (uint32_t)row + 1;
    return row;
}

static uint32_t raw_derivative(struct expressions *e, uint32_t a, unsigned byte) {
    const struct node *known = node_at(e, a),
                      *head = known->kind == CONCATENATION ? node_at(e, known->a) : known;
    if (head->kind == BYTES && e->failure == OK) /* most of all, and not worth a row */
        return !in_set(e, head->a, byte) ? EXPRESSION_NOTHING : head == known ? EXPRESSION_EMPTY : known->b;
    size_t row = e->failure == OK ? row_of(e, a) : SIZE_MAX;
    if (row == SIZE_MAX)
        return EXPRESSION_FAILED;
    uint32_t place = (uint32_t)row + partition_at(e, node_at(e, a)->partition)->class_of[byte];
    if (*row_at(e, place) != NOT_DERIVED)
        return *row_at(e, place);
    struct node node = *node_at(e, a);
    uint32_t derived = derive(e, &node, byte);
    if (derived != EXPRESSION_FAILED)
        *row_at(e, place) = derived;
    return derived;
}

/* The derivative by a class of bytes. */
static uint32_t class_derivative(struct expressions *e, uint32_t a, uint32_t class) {
    const uint8_t *class_of = partition_at(e, expression_partition(e, a))->class_of;
    const uint8_t *first = memchr(class_of, (int)class, 256);
    return first ? raw_derivative(e, a, (unsigned)(first - class_of)) : EXPRESSION_NOTHING;
}

/* ---- which expressions have a text ---- */

bool expression_nullable(const struct expressions *e, uint32_t a) {
    return a != EXPRESSION_FAILED && node_at(e, a)->nullable;
}

/* A search for a text of `a` in depth: all expressions on the way to one are alive, and all that a search
 * without success met are dead. */
static enum liveness explore(struct expressions *e, uint32_t a) {
    struct step {
        uint32_t at, class;
    };
    struct pool way = {.item = sizeof(struct step)}, seen = {.item = sizeof(uint32_t)};
    enum liveness found = DEAD;
    for (uint32_t next = a;;) {
        struct node *node = next == EXPRESSION_FAILED ? NULL : node_at(e, next);
        if (!node || e->failure != OK || seen.count > EXPRESSION_STATES_LIMIT) {
            (void)failed(e, ERROR_INPUT, "an expression of the grammar has more than 50000 states");
            break;
        }
        if (node->liveness == ALIVE || node->nullable || (node->plain && next != EXPRESSION_NOTHING)) {
            node->liveness = ALIVE;
            found = ALIVE;
            break;
        }
        if (node->liveness == UNKNOWN) {
            node->liveness = DEAD; /* for now: not to be entered twice */
            size_t place = pool_add(e, &seen, 1), step = pool_add(e, &way, 1);
            if (place == SIZE_MAX || step == SIZE_MAX)
                break;
            ((uint32_t *)seen.data)[place] = next;
            ((struct step *)way.data)[step].at = next;
        }
        next = EXPRESSION_NOTHING;
        while (way.count && next == EXPRESSION_NOTHING) {
            struct step *last = (struct step *)way.data + way.count - 1;
            if (last->class == partition_at(e, expression_partition(e, last->at))->classes)
                way.count--;
            else
                next = class_derivative(e, last->at, last->class ++);
            expressions_spend(e, 1);
        }
        if (next == EXPRESSION_NOTHING)
            break;
    }
    for (size_t i = 0; found == ALIVE && i < seen.count; i++)
        node_at(e, ((uint32_t *)seen.data)[i])->liveness = UNKNOWN;
    for (size_t i = 0; found == ALIVE && i < way.count; i++)
        node_at(e, ((struct step *)way.data)[i].at)->liveness = ALIVE;
    free(way.data);
    free(seen.data);
    return found;
}

/* Adds an expression that is met for the first time; false without memory. */
static bool meet_state(struct expressions *e, struct pool *met, struct pool *states, uint32_t a) {
    if (a == EXPRESSION_NOTHING)
        return true;
    if (a >= met->count && pool_add(e, met, a + 1 - met->count) == SIZE_MAX)
        return false;
    if (((uint8_t *)met->data)[a])
        return true;
    ((uint8_t *)met->data)[a] = 1;
    size_t place = pool_add(e, states, 1);
    if (place == SIZE_MAX)
        return false;
    ((uint32_t *)states->data)[place] = a;
    return true;
}

bool expression_has_states(struct expressions *e, uint32_t a, size_t most) {
    struct pool met = {.item = sizeof(uint8_t)}, states = {.item = sizeof(uint32_t)};
    bool fine = a != EXPRESSION_FAILED && meet_state(e, &met, &states, a);
    for (size_t i = 0; fine && i < states.count && states.count <= most; i++) {
        uint32_t at = ((uint32_t *)states.data)[i];
        uint32_t classes = partition_at(e, expression_partition(e, at))->classes;
        for (uint32_t class = 0; fine && class < classes; class ++) {
            uint32_t next = class_derivative(e, at, class);
            fine = next != EXPRESSION_FAILED && meet_state(e, &met, &states, next);
        }
        expressions_spend(e, classes);
    }
    fine = fine && states.count <= most;
    free(met.data);
    free(states.data);
    return fine;
}

bool expression_is_empty(struct expressions *e, uint32_t a) {
    if (a == EXPRESSION_FAILED || a == EXPRESSION_NOTHING)
        return true;
    const struct node *node = node_at(e, a);
    if (node->nullable || node->plain)
        return false;
    if (node->liveness != UNKNOWN)
        return node->liveness == DEAD;
    return explore(e, a) == DEAD;
}

uint32_t expression_derivative(struct expressions *e, uint32_t a, unsigned char byte) {
    uint32_t derived = raw_derivative(e, a, byte);
    return expression_is_empty(e, derived) ? EXPRESSION_NOTHING : derived;
}

/* Adds the bytes that texts of `a` may hold; false when it has too many parts to look at. */
static bool collect_bytes(const struct expressions *e, uint32_t a, bool bytes[256], int *parts) {
    enum { PARTS = 1000 };
    for (;; a = node_at(e, a)->b) {
        const struct node *node = node_at(e, a);
        if (++*parts > PARTS)
            return false;
        for (unsigned byte = 0; node->kind == BYTES && byte < 256; byte++)
            bytes[byte] = bytes[byte] || in_set(e, node->a, byte);
        if (node->kind == REPEAT)
            return collect_bytes(e, node->a, bytes, parts);
        for (uint32_t i = 0; node->kind == EITHER && i < node->b; i++)
            if (!collect_bytes(e, list_at(e, node->a)[i], bytes, parts))
                return false;
        if (node->kind != CONCATENATION)
            return true;
        if (!collect_bytes(e, node->a, bytes, parts))
            return false;
    }
}

/* At least so many bytes have texts of `a`. */
static uint32_t shortest_text(const struct expressions *e, uint32_t a, int *parts) {
    enum { PARTS = 1000 };
    const uint32_t enough = 1 << 16;
    uint32_t bytes = 0;
    for (;; a = node_at(e, a)->b) {
        const struct node *node = node_at(e, a);
        if (node->nullable || ++*parts > PARTS || bytes >= enough)
            return bytes;
        uint32_t least = node->kind == BYTES ? 1 : 0;
        if (node->kind == CONCATENATION)
            least = shortest_text(e, node->a, parts);
        if (node->kind == REPEAT) {
            least = shortest_text(e, node->a, parts);
            least = least < enough / (uint32_t)node->least ? least * (uint32_t)node->least : enough;
        }
        for (uint32_t i = 0; node->kind == EITHER && i < node->b; i++) {
            uint32_t one = shortest_text(e, list_at(e, node->a)[i], parts);
            least = i && least < one ? least : one;
        }
        bytes += least;
        if (node->kind != CONCATENATION)
            return bytes;
    }
}

struct within {
    expression_longest_run longest;
    const void *context;
};

static uint32_t run_of(struct expressions *e, uint32_t a, const struct within *within) {
    if (!node_at(e, a)->run) {
        bool bytes[256] = {false};
        int parts = 0, measured = 0;
        if (!collect_bytes(e, a, bytes, &parts))
            memset(bytes, true, sizeof bytes);
        uint32_t run = within->longest(within->context, bytes, shortest_text(e, a, &measured));
        node_at(e, a)->run = (run < 1 << 20 ? run : 1 << 20) + 1;
    }
    return node_at(e, a)->run - 1;
}

static uint32_t reduce_repeat(struct expressions *e, const struct node *node, const struct within *within) {
    int32_t run = (int32_t)run_of(e, node->a, within);
    int32_t least = node->least > run ? run + 1 : node->least;
    int32_t most = node->most > run ? -1 : node->most;
    return expression_repeat(e, node->a, least, most);
}

/* Parts behind so many others are left as they are, which is as right, for the sake of the stack. */
static uint32_t reduce(struct expressions *e, uint32_t a, const struct within *within, int parts) {
    enum { PARTS = 512, ALTERNATIVES = 32 };
    if (a == EXPRESSION_FAILED || !node_at(e, a)->plain || !node_at(e, a)->counts || parts == PARTS)
        return a;
    struct node node = *node_at(e, a);
    if (node.kind == CONCATENATION)
        return expression_concatenate(
            e, reduce(e, node.a, within, parts + 1), reduce(e, node.b, within, parts + 1));
    if (node.kind == REPEAT)
        return reduce_repeat(e, &node, within);
    if (node.kind != EITHER || node.b > ALTERNATIVES)
        return a;
    uint32_t alternatives[ALTERNATIVES];
    for (uint32_t i = 0; i < node.b; i++)
        alternatives[i] = reduce(e, list_at(e, node.a)[i], within, parts + 1);
    return expression_either(e, alternatives, node.b);
}

uint32_t expression_within(
    struct expressions *e, uint32_t a, expression_longest_run longest, const void *context) {
    return reduce(e, a, &(struct within){longest, context}, 0);
}

/* ---- collection ---- */

bool expressions_begin_collection(struct expressions *e) {
    free(e->moved);
    e->moved = malloc((e->nodes.count + 1) * sizeof *e->moved);
    if (!e->moved)
        return false;
    memset(e->moved, 0xFF, e->nodes.count * sizeof *e->moved);
    expressions_keep(e, EXPRESSION_NOTHING);
    expressions_keep(e, EXPRESSION_EMPTY);
    return true;
}

void expressions_keep(struct expressions *e, uint32_t a) {
    e->moved[a] = 0;
}

/* Keeps the operands of what is kept, which have lower numbers; gives the members of all lists together. */
static size_t keep_operands(struct expressions *e) {
    size_t members = 0;
    for (uint32_t i = (uint32_t)e->nodes.count; i-- > 0;) {
        const struct node *node = node_at(e, i);
        if (e->moved[i] == UINT32_MAX)
            continue;
        if (node->kind == CONCATENATION || node->kind == COMPLEMENT || node->kind == REPEAT)
            expressions_keep(e, node->a);
        if (node->kind == CONCATENATION)
            expressions_keep(e, node->b);
        if (node->kind != EITHER && node->kind != BOTH)
            continue;
        members += node->b;
        for (uint32_t member = 0; member < node->b; member++)
            expressions_keep(e, list_at(e, node->a)[member]);
    }
    return members;
}

/* The node with its operands' new numbers; those of a list go behind the `used` ones of `lists`. */
static void move_operands(struct expressions *e, struct node *node, uint32_t *lists, size_t *used) {
    node->row = 0;
    if (node->kind == EITHER || node->kind == BOTH) {
        for (uint32_t member = 0; member < node->b; member++)
            lists[*used + member] = e->moved[list_at(e, node->a)[member]];
        node->a = (uint32_t)*used;
        *used += node->b;
        return;
    }
    if (node->kind == CONCATENATION)
        node->b = e->moved[node->b];
    if (node->kind == CONCATENATION || node->kind == COMPLEMENT || node->kind == REPEAT)
        node->a = e->moved[node->a];
}

static void shrink(struct pool *pool) {
    size_t capacity = pool->count + pool->count / 4 + 32;
    void *data = capacity < pool->capacity ? realloc(pool->data, capacity * pool->item) : NULL;
    if (data) {
        pool->data = data;
        pool->capacity = capacity;
    }
}

bool expressions_end_collection(struct expressions *e) {
    size_t members = keep_operands(e), used = 0, kept = 0;
    uint32_t *lists = malloc((members + 1) * sizeof *lists);
    if (!lists)
        return false;
    for (uint32_t i = 0; i < e->nodes.count; i++) {
        if (e->moved[i] == UINT32_MAX)
            continue;
        struct node node = *node_at(e, i);
        e->moved[i] = (uint32_t)kept;
        move_operands(e, &node, lists, &used);
        *node_at(e, (uint32_t)kept++) = node;
    }
    free(e->lists.data);
    e->lists.data = lists;
    e->lists.count = used;
    e->lists.capacity = members + 1;
    e->nodes.count = kept;
    e->rows.count = 0;
    shrink(&e->nodes);
    shrink(&e->rows);
    fill_buckets(e);
    return true;
}

uint32_t expressions_moved(const struct expressions *e, uint32_t a) {
    return e->moved[a];
}

bool expression_matches(struct expressions *e, uint32_t a, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes && a != EXPRESSION_NOTHING; i++)
        a = expression_derivative(e, a, (unsigned char)text[i]);
    return expression_nullable(e, a);
}

#include "bench/cases/kept_blocks.h"

#include <stdlib.h> /* calloc, realloc, qsort */
#include <string.h> /* memset */

struct entry {
    uint64_t key;
    struct policy_facts facts;
};

struct kept_blocks {
    struct policy policy;
    int64_t limit;
    struct entry *entries; /* [count] of [capacity] */
    int64_t count, capacity;
    double swept;     /* when what is past its time was dropped last */
    int64_t *buckets; /* [2 * capacity], a power of two: index of an entry + 1, 0: none */
    struct kept_counts counts;
};

enum { FIRST_CAPACITY = 1024, SWEEP_SECONDS = 21600 };

/* ---- the table ---- */

static int64_t *bucket_of(const struct kept_blocks *kept, uint64_t key) {
    uint64_t mask = 2 * (uint64_t)kept->capacity - 1, at = (key * 0x9e3779b97f4a7c15u) >> 20 & mask;
    while (kept->buckets[at] && kept->entries[kept->buckets[at] - 1].key != key)
        at = (at + 1) & mask;
    return &kept->buckets[at];
}

static void fill_buckets(struct kept_blocks *kept) {
    memset(kept->buckets, 0, 2 * (size_t)kept->capacity * sizeof *kept->buckets);
    for (int64_t i = 0; i < kept->count; i++)
        *bucket_of(kept, kept->entries[i].key) = i + 1;
}

static enum result resize(struct kept_blocks *kept, int64_t capacity) {
    struct entry *entries = realloc(kept->entries, (size_t)capacity * sizeof *entries);
    if (entries)
        kept->entries = entries;
    int64_t *buckets = realloc(kept->buckets, 2 * (size_t)capacity * sizeof *buckets);
    if (buckets)
        kept->buckets = buckets;
    if (!entries || !buckets)
        return fail(ERROR_MEMORY, "out of memory for %lld blocks", (long long)capacity);
    kept->capacity = capacity;
    fill_buckets(kept);
    return OK;
}

enum result kept_blocks_create(const struct policy *policy, int64_t limit, struct kept_blocks **kept) {
    struct kept_blocks *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for blocks");
    *made = (struct kept_blocks){.policy = *policy, .limit = limit};
    enum result status = resize(made, FIRST_CAPACITY);
    if (status == OK)
        *kept = made;
    else
        kept_blocks_free(made);
    return status;
}

void kept_blocks_free(struct kept_blocks *kept) {
    if (!kept)
        return;
    free(kept->entries);
    free(kept->buckets);
    free(kept);
}

/* ---- making room ---- */

static void drop_expired(struct kept_blocks *kept, double now) {
    int64_t left = 0;
    for (int64_t i = 0; i < kept->count; i++) {
        if (policy_expired(&kept->policy, &kept->entries[i].facts, now))
            kept->counts.bytes -= kept->entries[i].facts.bytes;
        else
            kept->entries[left++] = kept->entries[i];
    }
    kept->count = left;
    kept->swept = now;
}

struct candidate {
    double worth;
    int64_t index;
    int32_t first_token;
};

static int first_to_go(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (policy_before(x->worth, x->first_token, y->worth, y->first_token))
        return -1;
    if (policy_before(y->worth, y->first_token, x->worth, x->first_token))
        return 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static enum result evict(struct kept_blocks *kept, double now) {
    struct candidate *candidates = calloc((size_t)kept->count + 1, sizeof *candidates);
    if (!candidates)
        return fail(ERROR_MEMORY, "out of memory for %lld blocks", (long long)kept->count);
    for (int64_t i = 0; i < kept->count; i++)
        candidates[i] = (struct candidate){
            policy_worth(&kept->policy, &kept->entries[i].facts, now), i, kept->entries[i].facts.first_token};
    qsort(candidates, (size_t)kept->count, sizeof *candidates, first_to_go);
    int64_t gone = 0, left = 0, before = kept->count;
    for (; gone < before && kept->counts.bytes > kept->limit / 10 * 9; gone++) {
        struct policy_facts *facts = &kept->entries[candidates[gone].index].facts;
        kept->counts.bytes -= facts->bytes;
        facts->bytes = 0; /* marks it */
    }
    for (int64_t i = 0; i < before; i++)
        if (kept->entries[i].facts.bytes)
            kept->entries[left++] = kept->entries[i];
    kept->count = left;
    kept->counts.evicted += gone;
    free(candidates);
    return OK;
}

static enum result make_room(struct kept_blocks *kept, int64_t bytes, double now) {
    bool is_over = kept->limit && kept->counts.bytes + bytes > kept->limit;
    if (!is_over && kept->count < kept->capacity && now < kept->swept + SWEEP_SECONDS)
        return OK;
    drop_expired(kept, now);
    if (is_over && kept->counts.bytes + bytes > kept->limit)
        TRY(evict(kept, now));
    if (kept->count > kept->capacity / 4 * 3)
        return resize(kept, 2 * kept->capacity);
    fill_buckets(kept);
    return OK;
}

/* ---- what others call ---- */

bool kept_blocks_use(struct kept_blocks *kept, uint64_t key, double now) {
    int64_t found = *bucket_of(kept, key);
    if (!found)
        return false;
    struct policy_facts *facts = &kept->entries[found - 1].facts;
    if (policy_expired(&kept->policy, facts, now))
        return false;
    facts->uses++;
    facts->last_used = now;
    return true;
}

enum result kept_blocks_put(
    struct kept_blocks *kept, uint64_t key, const struct policy_facts *facts, double now) {
    if (kept_blocks_use(kept, key, now))
        return OK;
    struct policy_facts fresh = *facts;
    fresh.created = fresh.last_used = now;
    fresh.uses = 0;
    int64_t expired = *bucket_of(kept, key);
    if (expired) {
        kept->counts.bytes += fresh.bytes - kept->entries[expired - 1].facts.bytes;
        kept->entries[expired - 1].facts = fresh;
        return OK;
    }
    TRY(make_room(kept, fresh.bytes, now));
    kept->entries[kept->count++] = (struct entry){key, fresh};
    *bucket_of(kept, key) = kept->count;
    kept->counts.bytes += fresh.bytes;
    if (kept->counts.bytes > kept->counts.peak)
        kept->counts.peak = kept->counts.bytes;
    return OK;
}

struct kept_counts kept_blocks_counts(const struct kept_blocks *kept) {
    struct kept_counts counts = kept->counts;
    counts.entries = kept->count;
    return counts;
}

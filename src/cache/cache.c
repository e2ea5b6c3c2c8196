#include "cache/cache.h"

#include "base/clock.h"
#include "cache/keys.h"
#include "cache/memory.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy */

enum {
    RUN = 32, /* blocks whose copies share one look into the table */
};

struct cache {
    struct cache_options options;
    struct policy policy;
    int64_t payload_bytes;
    struct memory *memory;
    struct cache_counts counts;
};

static enum result check_options(const struct cache_options *options) {
    if (options->space.payload_bytes < 1 || options->space.payload_bytes > INT32_MAX)
        return fail(ERROR_USAGE, "the prefix cache takes blocks of 1 to %d bytes, not %lld", INT32_MAX,
            (long long)options->space.payload_bytes);
    if (options->space.block_tokens < 1)
        return fail(ERROR_USAGE, "the prefix cache takes blocks of at least 1 token, not %d",
            options->space.block_tokens);
    if (options->memory_bytes < 0 || options->local_bytes < 0 || options->shared_bytes < 0)
        return fail(ERROR_USAGE, "a limit of the prefix cache is negative");
    return OK;
}

enum result cache_open(const struct cache_options *options, struct cache **cache) {
    TRY(check_options(options));
    struct cache *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "no memory for the prefix cache");
    made->options = *options;
    made->policy = policy_make(options->eviction, options->keep_hours);
    made->payload_bytes = options->space.payload_bytes;
    int64_t kept = options->memory_bytes / made->payload_bytes;
    enum result status = memory_create(&made->policy, made->payload_bytes,
        (int32_t)(kept < INT32_MAX / 2 ? kept : INT32_MAX / 2), RUN, &made->memory);
    if (status != OK)
        cache_close(made);
    else
        *cache = made;
    return status;
}

void cache_close(struct cache *cache) {
    if (!cache)
        return;
    memory_free(cache->memory);
    free(cache);
}

int32_t cache_match(struct cache *cache, const struct cache_key *keys, int32_t count) {
    return memory_match(cache->memory, keys, count);
}

void cache_prefetch(struct cache *cache, const struct cache_key *keys, int32_t count) {
    (void)cache, (void)keys, (void)count;
}

static int32_t copy_run(struct cache *cache, const struct cache_key *keys, int32_t count, uint8_t *payloads) {
    int32_t slots[RUN];
    struct memory_note notes[RUN];
    int32_t found = memory_find_run(cache->memory, keys, count < RUN ? count : RUN, slots, notes);
    for (int32_t i = 0; i < found; i++) {
        memcpy(payloads + i * cache->payload_bytes, memory_payload(cache->memory, slots[i]),
            (size_t)cache->payload_bytes);
        cache->counts.tiers[notes[i].origin].hits++;
        cache->counts.seconds_saved += (double)notes[i].entry.cost_seconds;
    }
    memory_release_run(cache->memory, slots, found);
    return found;
}

enum result cache_get(
    struct cache *cache, const struct cache_key *keys, int32_t count, void *payloads, int32_t *found) {
    *found = 0;
    for (int32_t got = 1; *found < count && got > 0; *found += got)
        got = copy_run(
            cache, keys + *found, count - *found, (uint8_t *)payloads + *found * cache->payload_bytes);
    cache->counts.misses += count - *found;
    return OK;
}

void cache_put(
    struct cache *cache, const struct cache_key *key, const struct cache_entry *entry, const void *payload) {
    int32_t slot = memory_find(cache->memory, key, NULL);
    if (slot < 0) {
        slot = memory_reserve(cache->memory);
        if (slot < 0) {
            cache->counts.dropped++;
            return;
        }
        memcpy(memory_payload(cache->memory, slot), payload, (size_t)cache->payload_bytes);
        memory_publish(
            cache->memory, slot, key, &(struct memory_note){.entry = *entry, .created = wall_clock()});
        cache->counts.puts++;
    }
    memory_release(cache->memory, slot);
}

enum result cache_flush(struct cache *cache) {
    (void)cache;
    return OK;
}

void cache_counts(struct cache *cache, struct cache_counts *counts) {
    struct memory_counts memory;
    memory_counts(cache->memory, &memory);
    *counts = cache->counts;
    counts->tiers[CACHE_TIER_MEMORY].entries = memory.entries;
    counts->tiers[CACHE_TIER_MEMORY].bytes = memory.bytes;
    counts->tiers[CACHE_TIER_MEMORY].evicted = memory.evicted;
}

/* The prefix cache as its users see it: three tiers, prefetch, counts. */
#include "cache/cache.h"
#include "cache_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { PAYLOAD = 5000, BLOCKS = 40 };

static const struct cache_space space = {.fingerprint = "abc",
    .backend = "cpu",
    .instruction_set = "avx2",
    .block_tokens = 16,
    .payload_bytes = PAYLOAD};

static struct cache_options folders(const char *local, const char *shared, int64_t memory) {
    return (struct cache_options){.space = space,
        .local = local,
        .shared = shared,
        .memory_bytes = memory,
        .local_bytes = 64 << 20,
        .shared_bytes = 64 << 20};
}

static struct cache *opened(struct cache_options options) {
    struct cache *cache;
    assert_int_equal(cache_open(&options, &cache), OK);
    return cache;
}

static void keys_from(uint64_t first, int32_t count, struct cache_key *keys) {
    for (int32_t i = 0; i < count; i++)
        keys[i] = numbered_key(first + (uint64_t)i);
}

static int32_t block_step = 16;

static void put(struct cache *cache, uint64_t first, int32_t count) {
    uint8_t payload[PAYLOAD];
    for (int32_t i = 0; i < count; i++) {
        struct cache_key key = numbered_key(first + (uint64_t)i);
        struct cache_entry entry = {.first_token = i * block_step, .cost_seconds = 0.5F};
        fill_payload(first + (uint64_t)i, payload, PAYLOAD);
        cache_put(cache, &key, &entry, payload);
    }
}

/* How many leading ones of `count` are got; each must be right. */
static int32_t got(struct cache *cache, uint64_t first, int32_t count) {
    struct cache_key keys[BLOCKS * 4];
    uint8_t *payloads = malloc((size_t)count * PAYLOAD);
    int32_t found;
    assert_non_null(payloads);
    keys_from(first, count, keys);
    assert_int_equal(cache_get(cache, keys, count, payloads, &found), OK);
    for (int32_t i = 0; i < found; i++)
        assert_true(is_payload(first + (uint64_t)i, payloads + i * PAYLOAD, PAYLOAD));
    free(payloads);
    return found;
}

static int32_t matched(struct cache *cache, uint64_t first, int32_t count) {
    struct cache_key keys[BLOCKS * 4];
    keys_from(first, count, keys);
    return cache_match(cache, keys, count);
}

static struct cache_counts counts_of(struct cache *cache) {
    struct cache_counts counts;
    cache_counts(cache, &counts);
    return counts;
}

static void keeps_in_memory(void **state) {
    (void)state;
    struct cache *cache = opened(folders(NULL, NULL, BLOCKS * PAYLOAD));
    put(cache, 0, BLOCKS);
    assert_int_equal(matched(cache, 0, BLOCKS + 5), BLOCKS);
    assert_int_equal(got(cache, 0, BLOCKS + 5), BLOCKS);
    assert_int_equal(got(cache, 100, 3), 0);
    struct cache_counts counts = counts_of(cache);
    assert_int_equal(counts.puts, BLOCKS);
    assert_int_equal(counts.misses, 5 + 3);
    assert_int_equal(counts.tiers[CACHE_TIER_MEMORY].hits, BLOCKS);
    assert_int_equal(counts.tiers[CACHE_TIER_MEMORY].bytes, BLOCKS * PAYLOAD);
    assert_float_equal(counts.seconds_saved, 0.5 * BLOCKS, 1e-9);
    put(cache, 0, BLOCKS); /* known */
    assert_int_equal(counts_of(cache).puts, BLOCKS);
    put(cache, 1000, BLOCKS); /* in place of the others */
    counts = counts_of(cache);
    assert_int_equal(counts.tiers[CACHE_TIER_MEMORY].entries, BLOCKS);
    assert_int_equal(counts.tiers[CACHE_TIER_MEMORY].evicted, BLOCKS);
    cache_close(cache);
}

static void survives_closing(void **state) {
    char folder[64];
    int64_t memories[] = {0, 4 * PAYLOAD, 100 * PAYLOAD};
    (void)state;
    make_folder(folder);
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++) {
        struct cache *cache = opened(folders(folder, NULL, memories[i]));
        uint64_t first = 1000 * i;
        put(cache, first, BLOCKS);
        assert_int_equal(cache_flush(cache), OK);
        assert_int_equal(matched(cache, first, BLOCKS), BLOCKS);
        assert_int_equal(got(cache, first, BLOCKS + 1), BLOCKS);
        assert_int_equal(counts_of(cache).tiers[CACHE_TIER_LOCAL].entries, BLOCKS * ((int)i + 1));
        cache_close(cache);
        cache = opened(folders(folder, NULL, memories[i]));
        assert_int_equal(matched(cache, first, BLOCKS + 1), BLOCKS);
        assert_int_equal(got(cache, first, BLOCKS + 1), BLOCKS);
        struct cache_counts counts = counts_of(cache);
        assert_int_equal(counts.tiers[CACHE_TIER_LOCAL].hits, BLOCKS);
        assert_int_equal(counts.tiers[CACHE_TIER_LOCAL].read, BLOCKS * PAYLOAD);
        assert_int_equal(counts.damaged, 0);
        assert_int_equal(counts.dropped, 0);
        put(cache, first, BLOCKS); /* known: nothing is written */
        assert_int_equal(cache_flush(cache), OK);
        assert_int_equal(counts_of(cache).tiers[CACHE_TIER_LOCAL].written, 0);
        cache_close(cache);
    }
    remove_folder(folder);
}

/* Puts without a flush are down after close. */
static void close_waits_for_puts(void **state) {
    char folder[64];
    (void)state;
    make_folder(folder);
    struct cache *cache = opened(folders(folder, NULL, 0));
    put(cache, 0, BLOCKS);
    cache_close(cache);
    cache = opened(folders(folder, NULL, 0));
    assert_int_equal(got(cache, 0, BLOCKS), BLOCKS);
    cache_close(cache);
    remove_folder(folder);
}

static void promotes(void **state) {
    char local[64], shared[64];
    (void)state;
    make_folder(local);
    make_folder(shared);
    struct cache *cache = opened(folders(NULL, shared, 0));
    put(cache, 0, BLOCKS);
    cache_close(cache);
    cache = opened(folders(local, shared, 2 * BLOCKS * PAYLOAD));
    assert_int_equal(got(cache, 0, BLOCKS), BLOCKS);
    assert_int_equal(got(cache, 0, BLOCKS), BLOCKS);
    assert_int_equal(cache_flush(cache), OK);
    struct cache_counts counts = counts_of(cache);
    assert_int_equal(counts.tiers[CACHE_TIER_SHARED].hits, BLOCKS);
    assert_int_equal(counts.tiers[CACHE_TIER_MEMORY].hits, BLOCKS);
    assert_int_equal(counts.tiers[CACHE_TIER_LOCAL].entries, BLOCKS);
    assert_int_equal(counts.tiers[CACHE_TIER_SHARED].written, 0);
    assert_int_equal(counts.puts, 0);
    cache_close(cache);
    cache = opened(folders(local, NULL, 0));
    assert_int_equal(got(cache, 0, BLOCKS), BLOCKS);
    cache_close(cache);
    remove_folder(local);
    remove_folder(shared);
}

/* A prompt whose blocks lie in different tiers. */
static void joins_tiers(void **state) {
    char local[64], shared[64];
    (void)state;
    make_folder(local);
    make_folder(shared);
    struct cache *cache = opened(folders(local, NULL, 0));
    put(cache, 0, 10);
    put(cache, 20, 5);
    cache_close(cache);
    cache = opened(folders(NULL, shared, 0));
    put(cache, 10, 10);
    put(cache, 25, 5);
    cache_close(cache);
    cache = opened(folders(local, shared, 0));
    assert_int_equal(matched(cache, 0, BLOCKS), 30);
    assert_int_equal(got(cache, 0, BLOCKS), 30);
    cache_close(cache);
    remove_folder(local);
    remove_folder(shared);
}

static void prefetches(void **state) {
    char folder[64];
    struct cache_key keys[BLOCKS];
    (void)state;
    make_folder(folder);
    struct cache *cache = opened(folders(folder, NULL, 0));
    put(cache, 0, BLOCKS);
    cache_close(cache);
    for (int round = 0; round < 30; round++) {
        cache = opened(folders(folder, NULL, 4 * BLOCKS * PAYLOAD));
        keys_from(0, BLOCKS, keys);
        cache_prefetch(cache, keys, BLOCKS);
        if (round % 3 == 1)
            usleep(100 * (unsigned)round);
        if (round % 3 == 2) { /* until all are there */
            for (int i = 0; i < 1000 && counts_of(cache).tiers[CACHE_TIER_MEMORY].entries < BLOCKS; i++)
                usleep(1000);
            assert_int_equal(counts_of(cache).tiers[CACHE_TIER_MEMORY].entries, BLOCKS);
        }
        assert_int_equal(got(cache, 0, BLOCKS), BLOCKS);
        assert_int_equal(counts_of(cache).tiers[CACHE_TIER_LOCAL].hits, BLOCKS); /* wherever they came from */
        assert_int_equal(got(cache, 0, BLOCKS), BLOCKS);
        assert_int_equal(counts_of(cache).tiers[CACHE_TIER_MEMORY].hits, BLOCKS);
        cache_close(cache);
    }
    remove_folder(folder);
}

static void refuses(struct cache_options options, const char *text) {
    struct cache *cache;
    assert_int_equal(cache_open(&options, &cache), ERROR_USAGE);
    assert_non_null(strstr(failure_message(), text));
}

static void refuses_nonsense(void **state) {
    char folder[64];
    (void)state;
    make_folder(folder);
    struct cache_options options = folders(folder, NULL, 0);
    options.local_bytes = 1000;
    refuses(options, "limit of at least");
    refuses(folders(folder, folder, 0), "are one");
    options = folders(NULL, NULL, -1);
    refuses(options, "negative");
    options = folders(NULL, NULL, 0);
    options.space.payload_bytes = 0;
    refuses(options, "blocks of 1 to");
    struct cache *cache;
    options = folders("/proc/nocturne/cache", NULL, 0);
    assert_int_equal(cache_open(&options, &cache), ERROR_IO);
    remove_folder(folder);
}

/* Another checkpoint's cache in the same folder: other keys, other sizes, no harm. */
static void keeps_spaces_apart(void **state) {
    char folder[64];
    uint8_t payload[3000];
    (void)state;
    make_folder(folder);
    struct cache_options options = folders(folder, NULL, 0), other = options;
    other.space.fingerprint = "def";
    other.space.payload_bytes = sizeof payload;
    int32_t ids[64] = {1, 2, 3}, found;
    struct cache_key keys[4], other_keys[4];
    cache_keys(&options.space, ids, 64, NULL, 0, keys);
    cache_keys(&other.space, ids, 64, NULL, 0, other_keys);
    struct cache *cache = opened(other);
    for (uint64_t i = 0; i < 4; i++) {
        fill_payload(i, payload, sizeof payload);
        cache_put(cache, &other_keys[i], &(struct cache_entry){0}, payload);
    }
    cache_close(cache);
    cache = opened(options);
    assert_int_equal(cache_match(cache, keys, 4), 0);
    put(cache, 0, 3);
    cache_close(cache);
    cache = opened(other);
    uint8_t payloads[4 * 3000];
    assert_int_equal(cache_get(cache, other_keys, 4, payloads, &found), OK);
    assert_int_equal(found, 4);
    for (uint64_t i = 0; i < 4; i++)
        assert_true(is_payload(i, payloads + i * 3000, 3000));
    cache_close(cache);
    remove_folder(folder);
}

/* A folder far smaller than what is put: the limit holds, and what can be got is right. */
static void stays_under_limits(void **state) {
    char folder[64], paths[256][512];
    (void)state;
    make_folder(folder);
    struct cache_options options = folders(folder, NULL, 0);
    options.local_bytes = 4 << 20; /* about 830 blocks */
    block_step = 0;                /* so that only times decide */
    options.eviction = CACHE_EVICT_LEAST_RECENT;
    struct cache *cache = opened(options);
    for (uint64_t first = 0; first < 4000; first += 100) {
        put(cache, first, 100);
        assert_int_equal(cache_flush(cache), OK);
        int64_t bytes = 0;
        for (int i = list_files(folder, "segments", paths, 256) - 1; i >= 0; i--)
            bytes += file_bytes(paths[i]);
        assert_true(bytes <= options.local_bytes);
        assert_int_equal(got(cache, first, 100), 100);
    }
    struct cache_counts counts = counts_of(cache);
    assert_int_equal(counts.dropped, 0);
    assert_true(counts.tiers[CACHE_TIER_LOCAL].entries > 500);
    assert_int_equal(counts.tiers[CACHE_TIER_LOCAL].entries + counts.tiers[CACHE_TIER_LOCAL].evicted, 4000);
    assert_int_equal(got(cache, 0, 100), 0);
    block_step = 16;
    cache_close(cache);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_in_memory), cmocka_unit_test(survives_closing),
        cmocka_unit_test(close_waits_for_puts), cmocka_unit_test(promotes), cmocka_unit_test(joins_tiers),
        cmocka_unit_test(prefetches), cmocka_unit_test(refuses_nonsense),
        cmocka_unit_test(keeps_spaces_apart), cmocka_unit_test(stays_under_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The memory tier: slots, references, the table under random use against a plain model, eviction, copies. */
#include "cache/memory.h"
#include "cache_folder.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { PAYLOAD = 100 };

static struct memory *made(enum cache_eviction eviction, int32_t kept, int32_t passing) {
    struct policy policy = policy_make(eviction, (double[CACHE_TRAFFIC_KINDS]){0});
    struct memory *memory;
    assert_int_equal(memory_create(&policy, PAYLOAD, kept, passing, &memory), OK);
    return memory;
}

static bool add(struct memory *memory, uint64_t n, double created) {
    struct cache_key key = numbered_key(n);
    struct memory_note note = {.created = created, .entry = {.cost_seconds = 1}};
    int32_t slot = memory_reserve(memory);
    if (slot < 0)
        return false;
    fill_payload(n, memory_payload(memory, slot), PAYLOAD);
    memory_publish(memory, slot, &key, &note);
    memory_release(memory, slot);
    return true;
}

static bool has(struct memory *memory, uint64_t n) {
    struct cache_key key = numbered_key(n);
    struct memory_note note;
    int32_t slot = memory_find(memory, &key, &note);
    assert_int_equal(memory_match(memory, &key, 1), slot >= 0);
    assert_int_equal(memory_match_absent(memory, &key, 1), slot < 0);
    if (slot < 0)
        return false;
    assert_true(is_payload(n, memory_payload(memory, slot), PAYLOAD));
    memory_release(memory, slot);
    return true;
}

static void evicts_by_the_policy(void **state) {
    (void)state;
    struct memory *memory = made(CACHE_EVICT_OLDEST, 20, 1);
    for (uint64_t n = 0; n < 20; n++) /* ages in a mixed order */
        assert_true(add(memory, n, (double)(n * 7 % 20)));
    for (uint64_t n = 100; n < 110; n++)
        assert_true(add(memory, n, 1000));
    for (uint64_t n = 0; n < 20; n++)
        assert_int_equal(has(memory, n), n * 7 % 20 >= 10);
    for (uint64_t n = 100; n < 110; n++)
        assert_true(has(memory, n));
    struct memory_counts counts;
    memory_counts(memory, &counts);
    assert_int_equal(counts.entries, 20);
    assert_int_equal(counts.bytes, 20 * PAYLOAD);
    assert_int_equal(counts.evicted, 10);
    memory_free(memory);
    memory = made(CACHE_EVICT_LEAST_RECENT, 10, 1);
    for (uint64_t n = 0; n < 10; n++)
        assert_true(add(memory, n, 0));
    usleep(100); /* times are doubles, with steps of a quarter of a microsecond */
    for (uint64_t n = 0; n < 5; n++)
        assert_true(has(memory, n)); /* used later than 5 to 9 */
    usleep(100);
    for (uint64_t n = 100; n < 105; n++)
        assert_true(add(memory, n, 0));
    for (uint64_t n = 0; n < 10; n++)
        assert_int_equal(has(memory, n), n < 5);
    memory_free(memory);
}

/* What somebody reads stays as it is; when all slots are referred to there is none to reserve. */
static void keeps_what_is_referred_to(void **state) {
    int32_t slots[6];
    (void)state;
    struct memory *memory = made(CACHE_EVICT_LEAST_RECENT, 4, 2);
    for (uint64_t n = 0; n < 4; n++)
        assert_true(add(memory, n, 0));
    for (uint64_t n = 0; n < 4; n++) {
        struct cache_key key = numbered_key(n);
        slots[n] = memory_find(memory, &key, NULL);
        assert_true(slots[n] >= 0);
    }
    assert_true(add(memory, 10, 0)); /* one of the four leaves the table, not its slot */
    assert_true(add(memory, 11, 0));
    for (uint64_t n = 0; n < 4; n++)
        assert_true(is_payload(n, memory_payload(memory, slots[n]), PAYLOAD));
    memory_retain(memory, slots[0]);
    memory_release(memory, slots[0]);
    assert_true(is_payload(0, memory_payload(memory, slots[0]), PAYLOAD));
    assert_true((slots[4] = memory_reserve(memory)) >= 0); /* 10 or 11 goes */
    assert_true((slots[5] = memory_reserve(memory)) >= 0);
    assert_int_equal(memory_reserve(memory), -1);
    memory_release_run(memory, slots, 6);
    assert_true((slots[4] = memory_reserve(memory)) >= 0);
    memory_release(memory, slots[4]);
    memory_free(memory);
}

static void keeps_notes(void **state) {
    struct cache_key key = numbered_key(5);
    struct memory_note note = {.origin = CACHE_TIER_SHARED,
                           .tiers = 4,
                           .created = 12,
                           .entry = {.first_token = 7}},
                       read;
    (void)state;
    struct memory *memory = made(CACHE_EVICT_LEAST_VALUE, 4, 1);
    int32_t slot = memory_reserve(memory);
    memory_publish(memory, slot, &key, &note);
    memory_release(memory, slot);
    memory_mark(memory, &key, 2, 0);
    memory_release(memory, memory_find(memory, &key, &read));
    assert_int_equal(read.origin, CACHE_TIER_SHARED); /* the first use tells where it came from */
    assert_int_equal(read.tiers, 6);
    assert_int_equal(read.entry.first_token, 7);
    memory_mark(memory, &key, 0, 4);
    memory_release(memory, memory_find(memory, &key, &read));
    assert_int_equal(read.origin, CACHE_TIER_MEMORY);
    assert_int_equal(read.tiers, 2);
    memory_free(memory);
    memory = made(CACHE_EVICT_LEAST_VALUE, 0, 1); /* no tier: nothing is kept, slots serve others */
    slot = memory_reserve(memory);
    memory_publish(memory, slot, &key, &note);
    memory_release(memory, slot);
    assert_int_equal(memory_find(memory, &key, &read), -1);
    memory_free(memory);
}

/* Many keys in and out: runs of the table's buckets that wrap and shrink. */
static void table_like_a_plain_set(void **state) {
    enum { NUMBERS = 64, KEPT = 24 };
    unsigned seed = 1;
    (void)state;
    struct memory *memory = made(CACHE_EVICT_OLDEST, KEPT, 1);
    double created[NUMBERS] = {0}; /* 0: not there */
    for (int step = 1; step < 20000; step++) {
        uint64_t n = (seed = seed * 1664525 + 1013904223) >> 20 & (NUMBERS - 1);
        if (created[n] > 0) {
            assert_true(has(memory, n));
            continue;
        }
        assert_false(has(memory, n));
        assert_true(add(memory, n, step));
        created[n] = step;
        int there = 0, oldest = -1;
        for (int i = 0; i < NUMBERS; i++)
            if (created[i] > 0 && ++there && (oldest < 0 || created[i] < created[oldest]))
                oldest = i;
        if (there > KEPT)
            created[oldest] = 0;
    }
    memory_free(memory);
}

static void copies_any_bytes(void **state) {
    uint8_t from[700], to[700], wanted[700];
    (void)state;
    for (int i = 0; i < 700; i++)
        from[i] = (uint8_t)(i * 31 + 7);
    for (int64_t bytes = 0; bytes < 300; bytes++)
        for (int shift = 0; shift < 70; shift += 3) {
            memset(to, 0, sizeof to);
            memset(wanted, 0, sizeof wanted);
            memory_copy_past_caches(to + shift, from + 70 - shift, bytes);
            memcpy(wanted + shift, from + 70 - shift, (size_t)bytes);
            assert_memory_equal(to, wanted, sizeof to);
        }
}

/* Threads that put and read: a payload is whole, whoever evicts meanwhile. */
static void *put_and_read(void *argument) {
    struct memory *memory = argument;
    static _Atomic unsigned turns;
    unsigned seed = ++turns;
    for (int i = 0; i < 20000; i++) {
        uint64_t n = (seed = seed * 1664525 + 1013904223) >> 20 & 127;
        struct cache_key key = numbered_key(n);
        int32_t slot = memory_find(memory, &key, NULL);
        if (slot < 0) {
            add(memory, n, i);
            continue;
        }
        if (!is_payload(n, memory_payload(memory, slot), PAYLOAD))
            abort();
        memory_release(memory, slot);
    }
    return NULL;
}

static void serves_threads(void **state) {
    pthread_t threads[3];
    (void)state;
    struct memory *memory = made(CACHE_EVICT_LEAST_VALUE, 64, 8);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_and_read, memory), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    int32_t slots[72]; /* every slot but the kept ones is free again, and these can be had */
    for (int i = 0; i < 72; i++)
        assert_true((slots[i] = memory_reserve(memory)) >= 0);
    assert_int_equal(memory_reserve(memory), -1);
    memory_release_run(memory, slots, 72);
    memory_free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(evicts_by_the_policy),
        cmocka_unit_test(keeps_what_is_referred_to), cmocka_unit_test(keeps_notes),
        cmocka_unit_test(table_like_a_plain_set), cmocka_unit_test(copies_any_bytes),
        cmocka_unit_test(serves_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

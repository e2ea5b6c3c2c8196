/* A folder of the prefix cache by itself: the index over many changes, uses, keep times, what goes first, room that is given back,
 * segments of other hosts. */
#include "base/clock.h"
#include "cache/store.h"
#include "cache_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <utime.h>

#include <cmocka.h>

enum { PAYLOAD = 4000, STRIDE = PAYLOAD + SEGMENT_RECORD_BYTES };

#define HOUR 3600.0
#define UNLIMITED ((int64_t)1 << 40)

static char folder[64];

static int begin(void **state) {
    (void)state;
    make_folder(folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

static struct store *opened_as(const char *host, int64_t limit, enum cache_eviction eviction, bool still) {
    const struct store_options options = {.folder = folder,
        .limit = limit,
        .policy = policy_make(eviction, (double[CACHE_TRAFFIC_KINDS]){0}),
        .host = host,
        .still = still};
    struct store *store;
    assert_int_equal(store_open(&options, &store), OK);
    return store;
}

static struct store *opened(int64_t limit, enum cache_eviction eviction) {
    return opened_as("here", limit, eviction, false);
}

static struct segment_header space_of(int64_t payload_bytes) {
    struct segment_header header;
    const struct cache_space space = {"abc", "cpu", "avx2", 16, payload_bytes};
    segment_header_make(&space, "", &header);
    return header;
}

/* Puts numbers with one append; those of `created` hours ago. */
static void append(
    struct store *store, uint64_t first, int32_t count, double hours_ago, enum cache_traffic traffic) {
    struct segment_header header = space_of(PAYLOAD);
    struct store_put *puts = malloc((size_t)count * sizeof *puts);
    uint8_t *payloads = malloc((size_t)count * PAYLOAD);
    assert_true(puts && payloads);
    for (int32_t i = 0; i < count; i++) {
        uint64_t n = first + (uint64_t)i;
        fill_payload(n, payloads + i * PAYLOAD, PAYLOAD);
        puts[i] = (struct store_put){.key = numbered_key(n),
            .entry = {.traffic = traffic, .cost_seconds = 1, .first_token = i * 16},
            .created = wall_clock() - hours_ago * HOUR,
            .payload = payloads + i * PAYLOAD};
    }
    assert_int_equal(store_append(store, &header, puts, count), count);
    free(puts);
    free(payloads);
}

static bool has(struct store *store, uint64_t n) {
    struct cache_key key = numbered_key(n);
    struct index_entry entry;
    uint8_t payload[PAYLOAD], *place = payload;
    if (store_find(store, &key, 1, &entry) == 0)
        return false;
    assert_int_equal(store_read(store, &key, &entry, 1, &place), 1);
    assert_true(is_payload(n, payload, PAYLOAD));
    return true;
}

static int count_there(struct store *store, uint64_t first, int count) {
    int there = 0;
    for (int i = 0; i < count; i++)
        there += has(store, first + (uint64_t)i);
    return there;
}

static struct store_counts counts_of(struct store *store) {
    struct store_counts counts;
    store_counts(store, &counts);
    return counts;
}

static int64_t files(int *count) {
    char paths[512][512];
    int64_t bytes = 0;
    int number = list_files(folder, "segments", paths, 512);
    for (int i = 0; i < number; i++)
        bytes += file_bytes(paths[i]);
    if (count)
        *count = number;
    return bytes;
}

static void reads_in_any_order(void **state) {
    (void)state;
    struct store *store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    append(store, 0, 500, 0, CACHE_TRAFFIC_OTHER);
    struct cache_key keys[500];
    struct index_entry entries[500];
    uint8_t *payloads[500], *memory = malloc(500 * PAYLOAD);
    assert_non_null(memory);
    for (int order = 0; order < 3; order++) {
        uint64_t numbers[500];
        for (uint64_t i = 0; i < 500; i++) {
            numbers[i] = order == 0 ? i : order == 1 ? 499 - i : i * 7 % 500;
            keys[i] = numbered_key(numbers[i]);
            payloads[i] = memory + i * PAYLOAD;
        }
        memset(memory, 0, 500 * PAYLOAD);
        assert_int_equal(store_find(store, keys, 500, entries), 500);
        assert_int_equal(store_read(store, keys, entries, 500, payloads), 500);
        for (int i = 0; i < 500; i++)
            assert_true(is_payload(numbers[i], payloads[i], PAYLOAD));
    }
    keys[100] = numbered_key(1000);
    assert_int_equal(store_find(store, keys, 500, entries), 100);
    assert_int_equal(store_find(store, keys, 500, NULL), 100);
    free(memory);
    append(store, 0, 500, 0, CACHE_TRAFFIC_OTHER); /* known: nothing is written */
    assert_int_equal(counts_of(store).written, 500 * STRIDE);
    store_close(store);
}

static void counts_uses(void **state) {
    struct cache_key key = numbered_key(3);
    struct index_entry entry;
    (void)state;
    struct store *store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    append(store, 0, 10, 5, CACHE_TRAFFIC_CHAT);
    for (int i = 0; i < 3; i++)
        store_use(store, &key, 1);
    assert_int_equal(store_find(store, &key, 1, &entry), 1);
    assert_int_equal(entry.uses, 0);
    store_close(store); /* settles */
    store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    assert_int_equal(store_find(store, &key, 1, &entry), 1);
    assert_int_equal(entry.uses, 3);
    assert_true(wall_clock() - entry.last_used < 60);
    assert_true(wall_clock() - entry.created > 4 * HOUR);
    assert_int_equal(entry.traffic, CACHE_TRAFFIC_CHAT);
    assert_int_equal(entry.first_token, 3 * 16);
    store_close(store);
}

static void removes_what_is_expired(void **state) {
    struct cache_key key = numbered_key(205);
    int number;
    (void)state;
    struct store *store = opened(UNLIMITED, CACHE_EVICT_LEAST_VALUE);
    append(store, 0, 100, 1, CACHE_TRAFFIC_OTHER);
    append(store, 100, 100, 100, CACHE_TRAFFIC_CHAT);
    append(store, 200, 100, 100, CACHE_TRAFFIC_OTHER);
    append(store, 300, 100, 200, CACHE_TRAFFIC_CHAT);
    store_use(store, &key, 1); /* used again: it stays */
    store_close(store);
    assert_int_equal(files(&number), SEGMENT_HEADER_BYTES + 400 * STRIDE);
    store = opened(UNLIMITED, CACHE_EVICT_LEAST_VALUE);
    assert_int_equal(count_there(store, 0, 100), 100);
    assert_int_equal(count_there(store, 100, 100), 100);
    assert_int_equal(count_there(store, 200, 100), 1);
    assert_int_equal(count_there(store, 300, 100), 0);
    assert_int_equal(counts_of(store).evicted, 199);
    assert_true(files(&number) >= 201 * STRIDE);
    store_close(store);
}

/* A segment with few entries left is written anew, and one with none is removed. */
static void gives_room_back(void **state) {
    int number;
    (void)state;
    struct store *store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    append(store, 0, 200, 100, CACHE_TRAFFIC_OTHER);
    append(store, 200, 50, 0, CACHE_TRAFFIC_OTHER);
    store_close(store);
    store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    assert_int_equal(count_there(store, 200, 50), 50);
    assert_int_equal(files(&number), SEGMENT_HEADER_BYTES + 50 * STRIDE);
    assert_int_equal(number, 1);
    assert_int_equal(counts_of(store).bytes, SEGMENT_HEADER_BYTES + 50 * STRIDE);
    store_close(store);
    store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    assert_int_equal(count_there(store, 200, 50), 50); /* at their new places, with the facts they had */
    for (uint64_t n = 200; n < 250; n++) {
        struct cache_key key = numbered_key(n);
        assert_int_equal(store_remove(store, &key), OK);
    }
    store_upkeep(store, -1, 0);
    assert_int_equal(files(&number), 0);
    assert_int_equal(number, 0);
    store_close(store);
}

static void removes_in_the_policys_order(void **state) {
    int number;
    (void)state;
    struct store *store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    for (int i = 0; i < 10; i++) /* group i was used i + 1 hours ago */
        append(store, (uint64_t)i * 100, 100, i + 1, CACHE_TRAFFIC_OTHER);
    store_close(store);
    int64_t limit = SEGMENT_HEADER_BYTES + 500 * STRIDE;
    store = opened_as("here", limit, CACHE_EVICT_LEAST_RECENT, true);
    int64_t entries, bytes;
    assert_int_equal(store_foresee_upkeep(store, limit, &entries, &bytes), OK);
    assert_int_equal(counts_of(store).entries, 1000);
    store_upkeep(store, limit, 0);
    assert_int_equal(counts_of(store).evicted, entries);
    assert_true(files(&number) <= limit);
    assert_int_equal(count_there(store, 0, 400), 400); /* nine tenths of the limit: 4.5 groups */
    assert_int_equal(count_there(store, 500, 500), 0);
    int half = count_there(store, 400, 100);
    assert_in_range(half, 45, 55);
    for (int i = 0; i < 100; i++) /* the earlier blocks of its prompt */
        assert_int_equal(has(store, 400 + (uint64_t)i), i < half);
    store_close(store);
}

static void learns_from_other_hosts(void **state) {
    (void)state;
    struct store *one = opened_as("one", UNLIMITED, CACHE_EVICT_LEAST_RECENT, false);
    append(one, 0, 300, 0, CACHE_TRAFFIC_AGENT);
    struct store *two = opened_as("two", UNLIMITED, CACHE_EVICT_LEAST_RECENT, false);
    assert_int_equal(count_there(two, 0, 300), 300); /* while the segment is still written */
    append(one, 300, 200, 0, CACHE_TRAFFIC_AGENT);
    assert_int_equal(count_there(two, 300, 200), 0);
    append(two, 1000, 10, 0, CACHE_TRAFFIC_AGENT);
    store_close(two);
    two = opened_as("two", UNLIMITED, CACHE_EVICT_LEAST_RECENT, false); /* goes on where it had come to */
    assert_int_equal(count_there(two, 0, 500), 500);
    assert_int_equal(counts_of(two).entries, 510);
    store_close(one);
    one = opened_as("one", UNLIMITED, CACHE_EVICT_LEAST_RECENT, false);
    assert_int_equal(counts_of(one).entries, 510);
    struct cache_key key = numbered_key(1004);
    struct index_entry entry;
    assert_int_equal(store_find(one, &key, 1, &entry), 1);
    assert_int_equal(entry.traffic, CACHE_TRAFFIC_AGENT);
    assert_int_equal(entry.first_token, 4 * 16);
    store_close(one);
    store_close(two);
}

/* What an unknown host or an old version left goes when it is old, and the limit is reached. */
static void removes_old_strangers(void **state) {
    char path[128];
    (void)state;
    struct store *store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    append(store, 0, 10, 0, CACHE_TRAFFIC_OTHER);
    store_close(store);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/segments/stranger-%d.segment", folder, i);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        for (int line = 0; line < 100000; line++)
            fputs("no records\n", file);
        fclose(file);
    }
    time_t then = time(NULL) - 200 * 3600;
    assert_int_equal(utime(path, &(struct utimbuf){then, then}), 0);
    store = opened(1 << 20, CACHE_EVICT_LEAST_RECENT);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof path, "%s/segments/stranger-0.segment", folder);
    assert_int_equal(access(path, F_OK), 0);
    store_close(store);
}

/* Blocks of another space: segments of their own. */
static void keeps_sizes_apart(void **state) {
    uint8_t payload[100];
    int number;
    (void)state;
    struct store *store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
    struct segment_header small = space_of(sizeof payload);
    for (uint64_t n = 0; n < 10; n++) {
        append(store, n, 1, 0, CACHE_TRAFFIC_OTHER);
        fill_payload(100 + n, payload, sizeof payload);
        struct store_put put = {.key = numbered_key(100 + n), .created = wall_clock(), .payload = payload};
        assert_int_equal(store_append(store, &small, &put, 1), 1);
    }
    assert_int_equal(count_there(store, 0, 10), 10);
    for (uint64_t n = 0; n < 10; n++) {
        struct cache_key key = numbered_key(100 + n);
        struct index_entry entry;
        uint8_t *place = payload;
        assert_int_equal(store_find(store, &key, 1, &entry), 1);
        assert_int_equal(entry.bytes, sizeof payload);
        assert_int_equal(store_read(store, &key, &entry, 1, &place), 1);
        assert_true(is_payload(100 + n, payload, sizeof payload));
    }
    assert_int_equal(files(&number), 20 * SEGMENT_HEADER_BYTES + 10 * (STRIDE + 164));
    store_close(store);
}

/* An index with pages of all kinds, over opens: each open looks through all of it and finds nothing wrong. */
static void index_over_many_changes(void **state) {
    enum { NUMBERS = 30000 };
    static bool there[NUMBERS];
    char damaged[128];
    unsigned seed = 7;
    (void)state;
    struct segment_header header = space_of(8);
    memset(there, 0, sizeof there);
    for (int round = 0; round < 12; round++) {
        struct store *store = opened(UNLIMITED, CACHE_EVICT_LEAST_RECENT);
        static struct store_put puts[4000];
        static uint64_t payloads[4000];
        int64_t entries = 0;
        for (int i = 0; i < 4000; i++) {
            payloads[i] = (seed = seed * 1664525 + 1013904223) >> 8;
            payloads[i] %= NUMBERS;
            puts[i] = (struct store_put){.key = numbered_key(payloads[i]),
                .created = wall_clock(),
                .payload = (uint8_t *)&payloads[i]};
            there[payloads[i]] = true;
        }
        assert_int_equal(store_append(store, &header, puts, 4000), 4000);
        struct index_change change;
        assert_int_equal(index_begin(store_index(store), &change), OK);
        for (int i = 0; i < (round % 4 == 3 ? 12000 : 1500); i++) {
            uint64_t n = ((seed = seed * 1664525 + 1013904223) >> 8) % NUMBERS;
            struct cache_key key = numbered_key(n);
            assert_int_equal(index_remove(&change, &key), OK);
            there[n] = false;
        }
        assert_int_equal(index_end(&change, OK), OK);
        for (int n = 0; n < NUMBERS; n++) {
            struct cache_key key = numbered_key((uint64_t)n);
            entries += there[n];
            assert_int_equal(store_find(store, &key, 1, NULL), there[n]);
        }
        assert_int_equal(counts_of(store).entries, entries);
        store_close(store);
    }
    snprintf(damaged, sizeof damaged, "%s/index-here.damaged", folder);
    assert_int_equal(access(damaged, F_OK), -1);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {TEST(reads_in_any_order), TEST(counts_uses),
        TEST(removes_what_is_expired), TEST(gives_room_back), TEST(removes_in_the_policys_order),
        TEST(learns_from_other_hosts), TEST(removes_old_strangers), TEST(keeps_sizes_apart),
        TEST(index_over_many_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

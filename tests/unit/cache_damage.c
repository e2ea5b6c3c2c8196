/* Damage of every kind to a folder of the prefix cache: what is got is right or absent, what is whole is still found, and what
 * is put again is there again. */
#include "cache/cache.h"
#include "cache/index_check.h"
#include "cache_folder.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { PAYLOAD = 3001, BLOCKS = 24, STRIDE = PAYLOAD + SEGMENT_RECORD_BYTES };

static char made[64], folder[128], segment[512], second[512], data_path[512], lock_path[512];

static struct cache *opened(void) {
    const struct cache_options options = {.space = {.fingerprint = "abc",
                                              .backend = "cpu",
                                              .instruction_set = "avx2",
                                              .block_tokens = 16,
                                              .payload_bytes = PAYLOAD},
        .local = folder,
        .local_bytes = 16 << 20};
    struct cache *cache;
    assert_int_equal(cache_open(&options, &cache), OK);
    return cache;
}

static void put(struct cache *cache, uint64_t first, uint64_t count) {
    uint8_t payload[PAYLOAD];
    for (uint64_t n = first; n < first + count; n++) {
        struct cache_key key = numbered_key(n);
        fill_payload(n, payload, PAYLOAD);
        cache_put(cache, &key, &(struct cache_entry){.cost_seconds = 1}, payload);
    }
}

static void copy(const char *from, const char *to) {
    char command[512];
    remove_folder(to);
    snprintf(command, sizeof command, "cp -a '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

/* Two segments of half of the blocks each. */
static int make_pristine(void **state) {
    char paths[8][512], environments[8][512];
    (void)state;
    make_folder(made);
    snprintf(folder, sizeof folder, "%s/cache", made);
    for (int half = 0; half < 2; half++) {
        struct cache *cache = opened();
        put(cache, (uint64_t)half * BLOCKS / 2, BLOCKS / 2);
        cache_close(cache);
        assert_int_equal(list_files(folder, "segments", paths, 8), half + 1);
        if (half == 0)
            strcpy(segment, paths[0]);
    }
    strcpy(second, strcmp(paths[0], segment) ? paths[0] : paths[1]);
    for (int i = list_files(folder, ".", environments, 8) - 1; i >= 0; i--)
        if (strstr(environments[i], "/index-") && !strstr(environments[i], ".lock")) {
            snprintf(data_path, sizeof data_path, "%.480s/data.mdb", environments[i]);
            snprintf(lock_path, sizeof lock_path, "%.480s/lock.mdb", environments[i]);
        }
    assert_int_equal(file_bytes(segment), SEGMENT_HEADER_BYTES + BLOCKS / 2 * STRIDE);
    char pristine[128];
    snprintf(pristine, sizeof pristine, "%s/pristine", made);
    copy(folder, pristine);
    return 0;
}

static int remove_pristine(void **state) {
    (void)state;
    remove_folder(made);
    return 0;
}

static void restore(void) {
    char pristine[128];
    snprintf(pristine, sizeof pristine, "%s/pristine", made);
    copy(pristine, folder);
}

/* How many of the blocks are found, each asked for by itself; aborts on a wrong one. absent[n]. */
static int found(struct cache *cache, bool absent[BLOCKS]) {
    uint8_t payload[PAYLOAD];
    int count = 0;
    for (uint64_t n = 0; n < BLOCKS; n++) {
        struct cache_key key = numbered_key(n);
        int32_t got;
        memset(payload, 0xEE, sizeof payload);
        assert_int_equal(cache_get(cache, &key, 1, payload, &got), OK);
        assert_true(got == 0 || is_payload(n, payload, PAYLOAD));
        count += got;
        if (absent)
            absent[n] = !got;
    }
    return count;
}

/* Reads a damaged folder; puts all again, and has all, now and after the next open. Returns how many were found at first. */
static int read_and_heal(bool absent[BLOCKS], int64_t *damaged) {
    struct cache_counts counts;
    struct cache *cache = opened();
    int count = found(cache, absent);
    cache_counts(cache, &counts);
    if (damaged)
        *damaged = counts.damaged;
    put(cache, 0, BLOCKS);
    assert_int_equal(cache_flush(cache), OK);
    assert_int_equal(found(cache, NULL), BLOCKS);
    cache_close(cache);
    cache = opened();
    assert_int_equal(found(cache, NULL), BLOCKS);
    cache_close(cache);
    return count;
}

static void pristine_is_whole(void **state) {
    int64_t damaged;
    (void)state;
    restore();
    assert_int_equal(read_and_heal(NULL, &damaged), BLOCKS);
    assert_int_equal(damaged, 0);
}

/* One block is lost, and it is the one. */
static void flipped_bits(void **state) {
    (void)state;
    for (int block = 0; block < BLOCKS / 2; block += 5)
        for (int place = 0; place < STRIDE; place += place < SEGMENT_RECORD_BYTES ? 7 : 600) {
            bool absent[BLOCKS];
            int64_t damaged;
            restore();
            flip_bit(segment, SEGMENT_HEADER_BYTES + block * STRIDE + place, place % 8);
            assert_int_equal(read_and_heal(absent, &damaged), BLOCKS - 1);
            assert_true(absent[block]);
            assert_int_equal(damaged, 1);
        }
}

static void flipped_file_headers(void **state) {
    (void)state;
    for (int place = 0; place < SEGMENT_HEADER_BYTES; place += 37) {
        restore();
        flip_bit(segment, place, place % 8);
        assert_int_equal(read_and_heal(NULL, NULL), BLOCKS / 2);
    }
}

static void truncated(void **state) {
    (void)state;
    restore();
    int64_t whole = file_bytes(segment);
    for (int64_t bytes = 0; bytes < whole; bytes += bytes < 600 ? 100 : 1777) {
        restore();
        assert_int_equal(truncate(segment, bytes), 0);
        int64_t kept = bytes < SEGMENT_HEADER_BYTES ? 0 : (bytes - SEGMENT_HEADER_BYTES) / STRIDE;
        assert_int_equal(read_and_heal(NULL, NULL), BLOCKS / 2 + kept);
    }
}

static void missing(void **state) {
    (void)state;
    restore();
    assert_int_equal(unlink(segment), 0);
    assert_int_equal(read_and_heal(NULL, NULL), BLOCKS / 2);
    restore();
    assert_int_equal(unlink(segment), 0);
    assert_int_equal(mkdir(segment, 0777), 0);
    assert_int_equal(read_and_heal(NULL, NULL), BLOCKS / 2);
}

/* While the cache is open, where the index still says that all is well. */
static void missing_later(void **state) {
    (void)state;
    restore();
    struct cache *cache = opened();
    assert_int_equal(unlink(segment), 0);
    assert_int_equal(truncate(second, SEGMENT_HEADER_BYTES + STRIDE), 0);
    assert_int_equal(found(cache, NULL), 1);
    put(cache, 0, BLOCKS);
    assert_int_equal(cache_flush(cache), OK);
    assert_int_equal(found(cache, NULL), BLOCKS);
    cache_close(cache);
}

static void swapped(void **state) {
    char third[600];
    (void)state;
    restore();
    snprintf(third, sizeof third, "%s.away", segment);
    assert_int_equal(rename(segment, third), 0);
    assert_int_equal(rename(second, segment), 0);
    assert_int_equal(rename(third, second), 0);
    assert_int_equal(read_and_heal(NULL, NULL), 0); /* every place holds another block */
}

static void foreign_files(void **state) {
    char path[700];
    (void)state;
    restore();
    snprintf(path, sizeof path, "%s/segments/other.segment", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 100; i++)
        fputs("these are no records\n", file);
    fclose(file);
    assert_int_equal(read_and_heal(NULL, NULL), BLOCKS);
    assert_int_equal(access(path, F_OK), 0); /* it is left alone */
}

/* A segment of a later version: its blocks are unknown, and it stays. */
static void other_version(void **state) {
    uint8_t bytes[SEGMENT_HEADER_BYTES];
    (void)state;
    restore();
    FILE *file = fopen(segment, "r+b");
    assert_non_null(file);
    assert_int_equal(fread(bytes, sizeof bytes, 1, file), 1);
    bytes[8] = 2;
    uint64_t sum = XXH3_64bits(bytes, 504);
    memcpy(bytes + 504, &sum, 8);
    rewind(file);
    assert_int_equal(fwrite(bytes, sizeof bytes, 1, file), 1);
    fclose(file);
    assert_int_equal(read_and_heal(NULL, NULL), BLOCKS / 2);
}

static void write_garbage(const char *path, int64_t bytes, unsigned seed) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    for (int64_t i = 0; i < bytes; i++)
        fputc((int)(seed = seed * 1664525 + 1013904223) >> 24, file);
    fclose(file);
}

/* The index is made again: nothing is lost. */
static void garbage_index(void **state) {
    (void)state;
    restore();
    int64_t whole = file_bytes(data_path);
    for (int kind = 0; kind < 6; kind++) {
        restore();
        switch (kind) {
        case 0:
            write_garbage(data_path, whole, 1);
            break;
        case 1:
            assert_int_equal(truncate(data_path, 0), 0);
            break;
        case 2:
            assert_int_equal(truncate(data_path, whole / 2), 0);
            break;
        case 3:
            assert_int_equal(truncate(data_path, 100), 0);
            break;
        case 4:
            assert_int_equal(unlink(data_path), 0);
            assert_int_equal(mkdir(data_path, 0777), 0);
            break;
        default:
            write_garbage(lock_path, file_bytes(lock_path), 2);
        }
        assert_int_equal(read_and_heal(NULL, NULL), BLOCKS);
    }
}

/* Wherever a bit of the index flips, what is got is right, and the segments still have the rest. Most flips are found before LMDB
 * may see them; those in values are absent entries. */
static void flipped_index_bits(void **state) {
    unsigned seed = 3;
    (void)state;
    restore();
    int64_t whole = file_bytes(data_path);
    for (int round = 0; round < 400; round++) {
        seed = seed * 1664525 + 1013904223;
        restore();
        /* Every second one in what comes first in a page: LMDB's own numbers. */
        int64_t place = round % 2
                            ? (int64_t)((seed >> 8) % (uint64_t)whole)
                            : (int64_t)((seed >> 8) % (uint64_t)(whole / 4096)) * 4096 + (seed >> 3) % 160;
        flip_bit(data_path, place, (int)(seed >> 29));
        assert_true(read_and_heal(NULL, NULL) >= BLOCKS - 1);
    }
}

/* The check alone, on the index with any one bit flipped, and cut anywhere: it reads nothing outside (sanitizers would tell). */
static void checks_any_bytes(void **state) {
    (void)state;
    restore();
    size_t bytes = (size_t)file_bytes(data_path);
    uint8_t *file = malloc(bytes);
    FILE *data = fopen(data_path, "rb");
    assert_true(data && file && fread(file, bytes, 1, data) == 1);
    fclose(data);
    assert_int_equal(index_check_bytes("index", file, bytes), OK);
    int refused = 0;
    for (size_t place = 0; place < bytes; place += place % 4096 < 200 ? 1 : 61) {
        file[place] ^= (uint8_t)(1 << place % 8);
        refused += index_check_bytes("index", file, bytes) != OK;
        file[place] ^= (uint8_t)(1 << place % 8);
    }
    assert_true(refused > 50);
    for (size_t size = 0; size < bytes; size += 509) {
        uint8_t *cut = malloc(size + 1);
        assert_non_null(cut);
        memcpy(cut, file, size);
        refused += index_check_bytes("index", cut, size) != OK;
        free(cut);
    }
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(pristine_is_whole), cmocka_unit_test(flipped_bits),
        cmocka_unit_test(flipped_file_headers), cmocka_unit_test(truncated), cmocka_unit_test(missing),
        cmocka_unit_test(missing_later), cmocka_unit_test(swapped), cmocka_unit_test(foreign_files),
        cmocka_unit_test(other_version), cmocka_unit_test(garbage_index),
        cmocka_unit_test(flipped_index_bits), cmocka_unit_test(checks_any_bytes)};
    return cmocka_run_group_tests(tests, make_pristine, remove_pristine);
}

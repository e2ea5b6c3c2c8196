/* Keys of the prefix cache: equal where all is equal, different where anything before a block's end is. */
#include "cache/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { TOKENS = 16, COUNT = 100, BLOCKS = COUNT / TOKENS };

static const struct cache_space space = {"abc", "cpu", "avx2", TOKENS, 1000};

static void make_ids(int32_t ids[COUNT]) {
    for (int32_t i = 0; i < COUNT; i++)
        ids[i] = i * 7 % 50;
}

/* How many leading keys two prompts share; behind these, none. */
static int32_t shared(const struct cache_key *a, const struct cache_key *b) {
    int32_t same = 0;
    while (same < BLOCKS && cache_key_equal(&a[same], &b[same]))
        same++;
    for (int32_t i = same; i < BLOCKS; i++)
        for (int32_t j = 0; j < BLOCKS; j++)
            assert_false(cache_key_equal(&a[i], &b[j]));
    return same;
}

static void depend_on_tokens_before(void **state) {
    int32_t ids[COUNT], others[COUNT];
    struct cache_key keys[BLOCKS], other_keys[BLOCKS];
    (void)state;
    make_ids(ids);
    cache_keys(&space, ids, COUNT, NULL, 0, keys);
    for (int32_t changed = 0; changed < COUNT; changed++) {
        make_ids(others);
        others[changed] ^= 1 << changed % 31;
        cache_keys(&space, others, COUNT, NULL, 0, other_keys);
        assert_int_equal(shared(keys, other_keys), changed / TOKENS < BLOCKS ? changed / TOKENS : BLOCKS);
    }
    for (int32_t count = 0; count <= COUNT;
         count++) { /* a shorter prompt has the first keys, and writes no more */
        memset(other_keys, 0xAA, sizeof other_keys);
        cache_keys(&space, ids, count, NULL, 0, other_keys);
        assert_memory_equal(keys, other_keys, (size_t)(count / TOKENS) * sizeof *keys);
        for (int32_t i = count / TOKENS; i < BLOCKS; i++)
            assert_int_equal(other_keys[i].bytes[0], 0xAA);
    }
}

static void differ_between_blocks(void **state) {
    int32_t ids[COUNT] = {0};
    struct cache_key keys[BLOCKS];
    (void)state;
    cache_keys(&space, ids, COUNT, NULL, 0, keys);
    for (int32_t i = 0; i < BLOCKS; i++)
        for (int32_t j = 0; j < i; j++)
            assert_false(cache_key_equal(&keys[i], &keys[j])); /* the same tokens at another place */
}

static void depend_on_the_space(void **state) {
    int32_t ids[COUNT];
    struct cache_key keys[BLOCKS], other_keys[BLOCKS];
    struct cache_space others[] = {space, space, space, space, space, space};
    (void)state;
    others[0].fingerprint = "abd";
    others[1].backend = "cuda";
    others[2].instruction_set = "avx512";
    others[3].payload_bytes++;
    others[4].fingerprint = "abcc"; /* the same letters, cut elsewhere */
    others[4].backend = "pu";
    others[5].fingerprint = NULL;
    make_ids(ids);
    cache_keys(&space, ids, COUNT, NULL, 0, keys);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        cache_keys(&others[i], ids, COUNT, NULL, 0, other_keys);
        assert_int_equal(shared(keys, other_keys), 0);
    }
    struct cache_space larger = space;
    larger.block_tokens = 2 * TOKENS;
    cache_keys(&larger, ids, COUNT, NULL, 0, other_keys);
    assert_false(cache_key_equal(&keys[1], &other_keys[0]));
}

static void depend_on_images(void **state) {
    int32_t ids[COUNT];
    struct cache_key plain[BLOCKS], keys[BLOCKS], other_keys[BLOCKS];
    struct cache_image images[2] = {{{1, 2, 3}, 20, 40}, {{4, 5, 6}, 48, 60}}, others[2];
    (void)state;
    make_ids(ids);
    cache_keys(&space, ids, COUNT, NULL, 0, plain);
    cache_keys(&space, ids, COUNT, images, 2, keys);
    assert_int_equal(shared(plain, keys), 1); /* the first block that an image touches is [16, 32) */
    memcpy(others, images, sizeof images);
    others[0].content[15] ^= 1;
    cache_keys(&space, ids, COUNT, others, 2, other_keys);
    assert_int_equal(shared(keys, other_keys), 1);
    memcpy(others, images, sizeof images);
    others[1].content[0] ^= 1; /* [48, 60) lies in the block [48, 64) only */
    cache_keys(&space, ids, COUNT, others, 2, other_keys);
    assert_int_equal(shared(keys, other_keys), 3);
    memcpy(others, images, sizeof images);
    others[0].begin++;
    cache_keys(&space, ids, COUNT, others, 2, other_keys);
    assert_int_equal(shared(keys, other_keys), 1);
    cache_keys(&space, ids, COUNT, images, 1, other_keys); /* one image less */
    assert_int_equal(shared(keys, other_keys), 3);
    cache_keys(&space, ids, 48, images, 1,
        other_keys); /* an image after the end of a shorter prompt does not matter */
    assert_memory_equal(keys, other_keys, 3 * sizeof *keys);
}

/* Keys are kept on disks: the function must never change under the same version. */
static void are_these(void **state) {
    static const uint8_t wanted[2][4] = {{0x7b, 0x63, 0xe7, 0xc6}, {0x2f, 0xff, 0x8a, 0xdb}};
    int32_t ids[COUNT];
    struct cache_key keys[BLOCKS];
    struct cache_image image = {{9}, 0, 5};
    (void)state;
    make_ids(ids);
    cache_keys(&space, ids, COUNT, &image, 1, keys);
    assert_memory_equal(keys[0].bytes, wanted[0], 4);
    assert_memory_equal(keys[BLOCKS - 1].bytes, wanted[1], 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(depend_on_tokens_before),
        cmocka_unit_test(differ_between_blocks), cmocka_unit_test(depend_on_the_space),
        cmocka_unit_test(depend_on_images), cmocka_unit_test(are_these)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

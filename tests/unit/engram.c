/* Engram's row numbers: NumPy's generator, primes, barriers, and a whole text of the reference. */
#include "model/engram.h"
#include "base/error.h"
#include "model/checkpoint.h"

#include <hdf5.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY SOURCE_DIR "/tests/data/tiny"

static struct model_config real_sizes(void) {
    return (struct model_config){
        .engram_layers = 2,
        .engram_layer_ids = {1, 14},
        .engram_max_ngram_size = 4,
        .engram_n_heads = 8,
        .engram_vocab_size = 16000000,
        .engram_compressed_vocab_size = 99092,
    };
}

/* The published model's constants. */
static void test_published_constants(void **state) {
    (void)state;
    static const int64_t multipliers[2][4] = {
        {76632096046245, 4839876093313, 35959672319349, 73987337458391},
        {67716810739261, 51510806800915, 30921347202721, 82619226485591},
    };
    const struct model_config config = real_sizes();
    struct engram_hash hash;
    engram_hash_prepare(&hash, &config, 2);
    assert_int_equal(hash.columns, 24);
    assert_memory_equal(hash.multipliers[0], multipliers[0], sizeof multipliers[0]);
    assert_memory_equal(hash.multipliers[1], multipliers[1], sizeof multipliers[1]);
    assert_int_equal(hash.primes[0][0], 16000057);
    assert_int_equal(hash.primes[0][8], 16000189);
    assert_int_equal(hash.primes[0][23], 16000463);
    assert_int_equal(hash.primes[1][0], 16000477);
    assert_int_equal(hash.primes[1][23], 16000889);
    assert_int_equal(hash.offsets[0][0], 0);
    assert_int_equal(hash.offsets[0][1], 16000057);
    assert_int_equal(engram_hash_table_rows(&hash, 0), 384006168);
    assert_int_equal(engram_hash_table_rows(&hash, 1), 384016682);
}

/* What numpy.random.default_rng(10007 * layer).integers(0, bound, 4, numpy.int64) * 2 + 1 gives. */
static void test_generator(void **state) {
    (void)state;
    static const struct {
        int32_t layer, vocabulary;
        int64_t multipliers[4];
    } cases[] = {
        {0, 99092, {59287678272599, 25111444230055, 3813769577005, 1538373747317}},
        {0, 1, {5874934615388537135, 2488343231644625807, 377914054924498011, 152440531369162767}},
        {2, 2651, {2859780532075739, 1386682655328975, 846538939638777, 2669785628405293}},
        {4, 400, {20378323963399201, 1248012217874625, 18246170261325197, 4695688200551669}},
        {6, 8000, {492452077167791, 1118362511775843, 133656496774925, 334013976916559}},
        {60, 1, {4548645752526982477, 5116831383162680833, 7196621650650236879, 1038519202482450685}},
        {127, 99092, {16873926047761, 9628273917781, 75708216553597, 18784278278073}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_config config = real_sizes();
        struct engram_hash hash;
        config.engram_layers = 1;
        config.engram_layer_ids[0] = cases[i].layer;
        config.engram_compressed_vocab_size = cases[i].vocabulary;
        engram_hash_prepare(&hash, &config, 0);
        assert_memory_equal(hash.multipliers[0], cases[i].multipliers, sizeof cases[i].multipliers);
    }
}

/* Primes go on over all layers and columns, from the smallest possible start. */
static void test_small_primes(void **state) {
    (void)state;
    static const int64_t primes[2][4] = {{2, 3, 5, 7}, {11, 13, 17, 19}};
    struct model_config config = real_sizes();
    struct engram_hash hash;
    config.engram_vocab_size = 2;
    config.engram_n_heads = 2;
    config.engram_max_ngram_size = 3;
    engram_hash_prepare(&hash, &config, 0);
    for (int layer = 0; layer < 2; layer++)
        assert_memory_equal(hash.primes[layer], primes[layer], sizeof primes[layer]);
    assert_int_equal(hash.offsets[1][3], 11 + 13 + 17);
    assert_int_equal(engram_hash_table_rows(&hash, 1), 11 + 13 + 17 + 19);
}

static struct checkpoint *open_tiny(struct engram_hash *hash) {
    struct checkpoint *checkpoint;
    if (checkpoint_open(TINY "/checkpoint", &checkpoint) != OK)
        fail_msg("%s", failure_message());
    const struct model_config *config = checkpoint_config(checkpoint);
    engram_hash_prepare(hash, config, checkpoint_engram_token_map(checkpoint)[config->engram_pad_token_id]);
    return checkpoint;
}

/* An image token bars all look-backs over it; so does the start of the text. Rows by the NumPy reference. */
static void test_barriers(void **state) {
    (void)state;
    static const int32_t history[] = {7, ENGRAM_BARRIER, 9, 10, 11, 12};
    static const int64_t expected[][12] = {
        {335, 956, 1402, 1762, 2063, 3113, 279, 907, 1126, 1698, 2579, 3058},
        {222, 965, 1500, 2031, 2151, 2990, 158, 582, 1443, 1910, 2768, 2844},
        {302, 524, 1345, 1826, 2152, 3099, 362, 609, 1343, 1851, 2597, 2877},
        {323, 605, 1074, 1566, 2519, 2931, 221, 819, 1527, 2251, 2658, 2974},
        {337, 516, 1033, 1852, 2109, 2733, 318, 673, 1132, 1883, 2591, 3213},
        {240, 713, 1344, 1783, 2574, 3023, 478, 638, 1248, 1948, 2334, 3369},
    };
    struct engram_hash hash;
    struct checkpoint *checkpoint = open_tiny(&hash);
    int64_t rows[12];
    for (int64_t at = 0; at < 6; at++) {
        engram_hash_rows(&hash, history, at, rows);
        assert_memory_equal(rows, expected[at], sizeof rows);
    }
    /* The three entries before a token are all it needs. */
    engram_hash_rows(&hash, history + 2, 3, rows);
    assert_memory_equal(rows, expected[5], sizeof rows);
    checkpoint_close(checkpoint);
}

/* A dataset of int64, freed by the caller. */
static int64_t *read_dataset(hid_t file, const char *name, hsize_t *count) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    assert_true(dataset >= 0);
    hid_t space = H5Dget_space(dataset);
    *count = (hsize_t)H5Sget_simple_extent_npoints(space);
    int64_t *values = calloc(*count, sizeof values[0]);
    assert_non_null(values);
    assert_true(H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Sclose(space);
    H5Dclose(dataset);
    return values;
}

static void test_golden(void **state) {
    (void)state;
    struct engram_hash hash;
    struct checkpoint *checkpoint = open_tiny(&hash);
    const int32_t *map = checkpoint_engram_token_map(checkpoint);
    hid_t file = H5Fopen(TINY "/golden.h5", H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(file >= 0);
    hsize_t tokens, count;
    int64_t *ids = read_dataset(file, "ids", &tokens), *expected = read_dataset(file, "engram_hash", &count);
    size_t width = (size_t)(hash.layers * hash.columns);
    assert_int_equal(tokens, 96);
    assert_int_equal(count, tokens * width);
    int32_t *history = calloc(tokens, sizeof history[0]);
    int64_t *rows = calloc(width, sizeof rows[0]);
    for (hsize_t t = 0; t < tokens; t++)
        history[t] = map[ids[t]];
    for (hsize_t t = 0; t < tokens; t++) {
        engram_hash_rows(&hash, history, (int64_t)t, rows);
        assert_memory_equal(rows, expected + t * width, width * sizeof rows[0]);
    }
    free(history);
    free(rows);
    free(ids);
    free(expected);
    H5Fclose(file);
    checkpoint_close(checkpoint);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_constants),
        cmocka_unit_test(test_generator),
        cmocka_unit_test(test_small_primes),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

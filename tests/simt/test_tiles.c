/* The choice of tile shapes: every output and every chunk falls to one block or warp, within what a block
 * may have. */
#include "kernels/cuda/tiles.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST_SHARED = 227 << 10, MULTIPROCESSORS = 132 };

static struct product_shape shape_of(
    enum weight_format format, int32_t tokens, int32_t rows, int32_t columns) {
    return (struct product_shape){.tokens = tokens,
        .groups = 1,
        .rows = rows,
        .columns = columns,
        .format = format,
        .terms = format == WEIGHT_F32 ? 0 : 1,
        .multiprocessors = MULTIPROCESSORS};
}

/* What holds for any choice. */
static void check_tiles(const struct product_shape *shape) {
    struct product_tiles t = choose_product_tiles(shape);
    int32_t chunk = shape->format == WEIGHT_F32 ? FLOAT_CHUNK_COLUMNS : CHUNK_COLUMNS;
    assert_int_equal(t.chunks, (shape->columns + chunk - 1) / chunk);
    assert_true(t.shared_bytes <= MOST_SHARED);
    if (shape->experts == 0)
        assert_true((int64_t)t.token_tiles * t.tokens >= shape->tokens &&
                    (int64_t)(t.token_tiles - 1) * t.tokens < shape->tokens);
    if (t.kernel == PRODUCT_FEW && shape->format != WEIGHT_F32) {
        assert_true(t.tokens == 8 || t.tokens == 16 || t.tokens == 32);
        assert_true(t.warps * t.chunks_a_part >= t.chunks && (t.warps - 1) * t.chunks_a_part < t.chunks);
        assert_true(t.warps * (shape->is_gate_and_up ? 2 : 1) <= FEW_MOST_WARPS);
        int32_t sums = shape->is_gate_and_up ? 4 * FEW_ROWS : FEW_ROWS;
        assert_int_equal(t.shared_bytes, (int64_t)t.chunks * sums * t.tokens * 4);
    }
    if (t.kernel == PRODUCT_MANY) {
        assert_true(t.tokens == 64 || t.tokens == 128);
        assert_true(t.parts * t.chunks_a_part >= t.chunks && (t.parts - 1) * t.chunks_a_part < t.chunks);
        assert_true(t.parts == 1 || shape->experts == 0);
        assert_int_equal(t.rows, shape->is_gate_and_up ? MANY_ROWS / 2 : MANY_ROWS);
    }
}

static void test_any_shape(void **state) {
    (void)state;
    static const enum weight_format formats[] = {
        WEIGHT_F32, WEIGHT_BF16, WEIGHT_FP8_TILE, WEIGHT_FP8_ROW, WEIGHT_FP4_ROW};
    static const int32_t tokens[] = {1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 200, 8192};
    static const int32_t sizes[][2] = {{1, 32}, {384, 5120}, {1280, 5120}, {32768, 1280}, {5120, 8192},
        {2304, 5120}, {5120, 2304}, {129280, 5120}, {40, 24}, {33, 16384}, {24, 20480}, {7, 5}};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                struct product_shape shape = shape_of(formats[f], tokens[t], sizes[s][0], sizes[s][1]);
                check_tiles(&shape);
                shape.experts = 48;
                check_tiles(&shape);
                shape.is_gate_and_up = true;
                if (product_is_regular(&shape))
                    check_tiles(&shape);
            }
}

/* With experts there are tiles enough for any way the pairs can fall to them. */
static void test_tiles_of_experts(void **state) {
    (void)state;
    for (int32_t tokens = 1; tokens < 600; tokens += 7)
        for (int32_t experts = 1; experts < 400; experts += 33) {
            struct product_shape shape = shape_of(WEIGHT_FP4_ROW, tokens, 2304, 5120);
            shape.experts = experts;
            struct product_tiles t = choose_product_tiles(&shape);
            /* worst: all but one expert have one pair, the last one the rest */
            int32_t alone = experts - 1 < tokens - 1 ? experts - 1 : tokens - 1;
            assert_true(t.token_tiles >= alone + (tokens - alone + t.tokens - 1) / t.tokens);
            assert_true(t.token_tiles <= tokens);
        }
}

static enum product_kernel kernel_of(
    enum weight_format format, int32_t tokens, int32_t rows, int32_t columns) {
    struct product_shape shape = shape_of(format, tokens, rows, columns);
    return choose_product_tiles(&shape).kernel;
}

static void test_choice(void **state) {
    (void)state;
    assert_int_equal(kernel_of(WEIGHT_FP8_TILE, 1, 5120, 8192), PRODUCT_FEW);
    assert_int_equal(kernel_of(WEIGHT_FP8_TILE, 32, 5120, 8192), PRODUCT_FEW);
    assert_int_equal(kernel_of(WEIGHT_FP8_TILE, 33, 5120, 8192), PRODUCT_MANY);
    assert_int_equal(kernel_of(WEIGHT_BF16, 1, 384, 5120), PRODUCT_FEW);
    assert_int_equal(kernel_of(WEIGHT_BF16, 1, 384, 5122), PRODUCT_PLAIN); /* rows begin within vectors */
    assert_int_equal(
        kernel_of(WEIGHT_BF16, 1, 384, 200000), PRODUCT_MANY); /* more chunks than shared memory holds */
    assert_int_equal(kernel_of(WEIGHT_F32, 1, 24, 20480), PRODUCT_FEW);
    struct product_shape gates = shape_of(WEIGHT_FP4_ROW, 384, 2304, 5120);
    gates.experts = 48;
    gates.is_gate_and_up = true;
    struct product_tiles t = choose_product_tiles(&gates);
    assert_int_equal(t.kernel, PRODUCT_FEW);
    assert_int_equal(t.rows, 32);
    gates.tokens = (int32_t)few_pairs(48);
    assert_int_equal(choose_product_tiles(&gates).kernel, PRODUCT_FEW);
    gates.tokens++;
    assert_int_equal(choose_product_tiles(&gates).kernel, PRODUCT_MANY);
}

/* Some dozens of tokens: blocks share out chunks until the device is busy, but only then. */
static void test_shared_chunks(void **state) {
    (void)state;
    struct product_shape small = shape_of(WEIGHT_FP8_TILE, 64, 1280, 5120);
    struct product_tiles t = choose_product_tiles(&small);
    assert_int_equal(t.kernel, PRODUCT_MANY);
    assert_true(t.parts > 1 && t.parts * 10 <= MULTIPROCESSORS);
    struct product_shape large = shape_of(WEIGHT_FP8_TILE, 8192, 1280, 5120);
    assert_int_equal(choose_product_tiles(&large).parts, 1);
}

static void test_force(void **state) {
    (void)state;
    struct product_shape shape = shape_of(WEIGHT_FP8_TILE, 5, 100, 1024),
                         odd = shape_of(WEIGHT_BF16, 5, 100, 33);
    for (int kernel = PRODUCT_PLAIN; kernel <= PRODUCT_MANY; kernel++) {
        force_product_kernel((enum product_kernel)kernel);
        assert_int_equal(choose_product_tiles(&shape).kernel, kernel);
        check_tiles(&shape);
        assert_int_equal(choose_product_tiles(&odd).kernel, PRODUCT_PLAIN);
    }
    force_product_kernel(PRODUCT_ANY);
    assert_int_equal(choose_product_tiles(&shape).kernel, PRODUCT_FEW);
}

static void test_slabs(void **state) {
    (void)state;
    assert_int_equal(product_slab_tokens(1 << 20) % 128, 0);
    assert_true((int64_t)product_slab_tokens(1 << 20) << 20 <= 256 << 20);
    assert_int_equal(product_slab_tokens((int64_t)1 << 40), 128); /* a tile at least */
    assert_true(product_slab_tokens(16) > 1000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_shape),
        cmocka_unit_test(test_tiles_of_experts),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_shared_chunks),
        cmocka_unit_test(test_force),
        cmocka_unit_test(test_slabs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

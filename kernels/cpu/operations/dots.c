/* Dot products of input rows with decoded weight rows.
 *
 * The sum of one (token, output) is the same for every shape of the call: blocks of columns, as many as callers take at once
 * (BLOCK_COLUMNS, unless they say otherwise), each summed in LANES lanes by one chain of multiply-adds, folded as
 * sum_lanes does, the blocks' sums added in order. The register tiles below only compute several such sums side by side.
 */
#include "kernels/cpu/operations/fold.h"
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

#ifdef HAVE_AVX512
enum { MICRO_TOKENS = 6, MICRO_ROWS = 4 };
#else
enum { MICRO_TOKENS = 3, MICRO_ROWS = 4 };
#endif

/* ---- register tiles ---- */

/* tokens x rows sums at once; both constant where it is called. */
static inline __attribute__((always_inline)) void micro_tile(const float *const *x, int32_t column,
    const float *w, int64_t w_stride, int32_t columns, float *out, int64_t out_stride, bool add,
    const int32_t tokens, const int32_t rows) {
    lanes sum[MICRO_TOKENS][MICRO_ROWS];
    const float *input[MICRO_TOKENS];
#pragma GCC unroll 8
    for (int32_t t = 0; t < tokens; t++) {
        input[t] = x[t] + column;
#pragma GCC unroll 8
        for (int32_t r = 0; r < rows; r++)
            sum[t][r] = splat(0);
    }
    for (int32_t c = 0; c < columns; c += LANES) {
        lanes weight[MICRO_ROWS];
#pragma GCC unroll 8
        for (int32_t r = 0; r < rows; r++)
            weight[r] = load(w + r * w_stride + c);
#pragma GCC unroll 8
        for (int32_t t = 0; t < tokens; t++) {
            lanes value = load(input[t] + c);
#pragma GCC unroll 8
            for (int32_t r = 0; r < rows; r++)
                sum[t][r] = multiply_add(value, weight[r], sum[t][r]);
        }
    }
#pragma GCC unroll 8
    for (int32_t t = 0; t < tokens; t++) {
        float *to = out + t * out_stride;
        if (rows == MICRO_ROWS) {
            float folded[MICRO_ROWS];
            fold_four(sum[t], folded);
#pragma GCC unroll 8
            for (int32_t r = 0; r < rows; r++)
                put(to + r, folded[r], add);
        } else {
#pragma GCC unroll 8
            for (int32_t r = 0; r < rows; r++)
                put(to + r, sum_lanes(sum[t][r]), add);
        }
    }
}

/* `tokens` <= MICRO_TOKENS tokens times all rows. */
#define DEFINE_STRIP(tokens)                                                                                 \
    static void strip_##tokens(const float *const *x, int32_t column, const float *w, int64_t w_stride,      \
        int32_t rows, int32_t columns, float *out, int64_t out_stride, bool add) {                           \
        int32_t r = 0;                                                                                       \
        for (; r + MICRO_ROWS <= rows; r += MICRO_ROWS)                                                      \
            micro_tile(x, column, w + r * w_stride, w_stride, columns, out + r, out_stride, add, tokens,     \
                MICRO_ROWS);                                                                                 \
        for (; r < rows; r++)                                                                                \
            micro_tile(x, column, w + r * w_stride, w_stride, columns, out + r, out_stride, add, tokens, 1); \
    }

DEFINE_STRIP(1)
DEFINE_STRIP(2)
DEFINE_STRIP(3)
#ifdef HAVE_AVX512
DEFINE_STRIP(4)
DEFINE_STRIP(5)
DEFINE_STRIP(6)
#endif

typedef void strip_function(const float *const *x, int32_t column, const float *w, int64_t w_stride,
    int32_t rows, int32_t columns, float *out, int64_t out_stride, bool add);

static strip_function *const strips[MICRO_TOKENS + 1] = {NULL, strip_1, strip_2, strip_3,
#ifdef HAVE_AVX512
    strip_4, strip_5, strip_6
#endif
};

void FOR_SET(dot_tile)(const float *const *x, int32_t column, int32_t tokens, const float *w,
    int64_t w_stride, int32_t rows, int32_t columns, float *out, int64_t out_stride, bool add) {
    for (int32_t t = 0, strip; t < tokens; t += strip) {
        strip = strip_tokens(tokens - t, MICRO_TOKENS);
        strips[strip](x + t, column, w, w_stride, rows, columns, out + t * out_stride, out_stride, add);
    }
}

/* ---- packed weights ---- */

static inline __attribute__((always_inline)) void decode_rows(const enum weight_format format,
    const struct weight_block *block, int32_t rows, float *out, int64_t stride) {
    for (int32_t r = 0; r < rows; r++) {
        const uint8_t *codes = block->codes + r * block->stride;
        const float *factors = block->factors + r * block->factor_stride;
        float *to = out + r * stride;
        int32_t c = 0;
        lanes value[STEP_VECTORS];
        for (; c + GROUP <= block->columns; c += GROUP) {
            decode_step(format, codes, c, factors, value);
            for (int32_t v = 0; v < STEP_VECTORS; v++)
                store(to + c + v * LANES, value[v]);
        }
        if (c < block->columns) {
            decode_last_step(format, codes, c, block->columns - c, value);
            for (int32_t v = 0; c + v * LANES < block->columns; v++)
                store(to + c + v * LANES, value[v]);
        }
    }
}

void FOR_SET(decode_block)(const struct weight_block *block, int32_t rows, float *out, int64_t stride) {
#define DECODE_ROWS(format) decode_rows(format, block, rows, out, stride)
    WITH_FORMAT(block, DECODE_ROWS)
}

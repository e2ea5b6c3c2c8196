/* Dot products of input rows with decoded weight rows.
 *
 * The sum of one (token, output) is the same for every shape of the call: blocks of BLOCK_COLUMNS columns, each summed
 * in LANES lanes by one chain of multiply-adds, folded as sum_lanes does, the blocks' sums added in order. The
 * register tiles below only compute several such sums side by side.
 */
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

#ifdef HAVE_AVX512
enum { MICRO_TOKENS = 6, MICRO_ROWS = 4 };
#else
enum { MICRO_TOKENS = 3, MICRO_ROWS = 4 };
#endif

/* ---- folding ---- */

/* The four sums sum_lanes would give, in the same order of additions. */
static inline __attribute__((always_inline)) void fold_four(const lanes *sum, float *folded) {
#if defined(HAVE_AVX512)
    __m512 a = (__m512)sum[0], b = (__m512)sum[1], c = (__m512)sum[2], d = (__m512)sum[3];
    __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    __m512 cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
    __m512 all = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
    all += _mm512_permute_ps(all, 0x4e);
    all += _mm512_permute_ps(all, 0xb1);
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(folded, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, all)));
#elif defined(HAVE_AVX2)
    __m256 a = (__m256)sum[0], b = (__m256)sum[1], c = (__m256)sum[2], d = (__m256)sum[3];
    __m256 ab = _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
    __m256 cd = _mm256_permute2f128_ps(c, d, 0x20) + _mm256_permute2f128_ps(c, d, 0x31);
    __m256 all = _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xee);
    all += _mm256_permute_ps(all, 0xb1);
    folded[0] = all[0];
    folded[1] = all[4];
    folded[2] = all[2];
    folded[3] = all[6];
#else
    for (int32_t r = 0; r < 4; r++)
        folded[r] = sum_lanes(sum[r]);
#endif
}

static inline __attribute__((always_inline)) void put(float *out, float value, bool add) {
    *out = add ? *out + value : value;
}

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
    for (int32_t t = 0; t < tokens; t += MICRO_TOKENS)
        strips[least(MICRO_TOKENS, tokens - t)](
            x + t, column, w, w_stride, rows, columns, out + t * out_stride, out_stride, add);
}

/* ---- packed weights ---- */

/* Calls a function with the block's format as a constant. */
#define WITH_FORMAT(block, call)                                                                             \
    switch ((block)->format) {                                                                               \
    case WEIGHT_F32:                                                                                         \
        call(WEIGHT_F32);                                                                                    \
        break;                                                                                               \
    case WEIGHT_BF16:                                                                                        \
        call(WEIGHT_BF16);                                                                                   \
        break;                                                                                               \
    case WEIGHT_FP8_TILE:                                                                                    \
    case WEIGHT_FP8_ROW:                                                                                     \
        call(WEIGHT_FP8_ROW);                                                                                \
        break;                                                                                               \
    case WEIGHT_FP4_ROW:                                                                                     \
        call(WEIGHT_FP4_ROW);                                                                                \
        break;                                                                                               \
    }

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

enum { PACKED_ROWS = 4, PACKED_MICRO_TOKENS = 2 };

/* One step of tokens x rows sums. */
static inline __attribute__((always_inline)) void packed_step(const float *const *input, int32_t c,
    lanes (*weight)[STEP_VECTORS], lanes (*sum)[PACKED_ROWS], int32_t vectors, const int32_t tokens,
    const int32_t rows) {
#pragma GCC unroll 8
    for (int32_t v = 0; v < vectors; v++)
#pragma GCC unroll 4
        for (int32_t t = 0; t < tokens; t++) {
            lanes value = load(input[t] + c + v * LANES);
#pragma GCC unroll 4
            for (int32_t r = 0; r < rows; r++)
                sum[t][r] = multiply_add(value, weight[r][v], sum[t][r]);
        }
}

/* As micro_tile, from row `row` of the block on; format, tokens and rows are constant where it is called. */
static inline __attribute__((always_inline)) void packed_micro(const enum weight_format format,
    const float *const *x, int32_t column, const struct weight_block *block, int32_t row, float *out,
    int64_t out_stride, bool add, const int32_t tokens, const int32_t rows) {
    lanes sum[PACKED_MICRO_TOKENS][PACKED_ROWS], weight[PACKED_ROWS][STEP_VECTORS];
    const float *input[PACKED_MICRO_TOKENS];
#pragma GCC unroll 4
    for (int32_t t = 0; t < tokens; t++) {
        input[t] = x[t] + column;
#pragma GCC unroll 4
        for (int32_t r = 0; r < rows; r++)
            sum[t][r] = splat(0);
    }
    const uint8_t *codes = block->codes + row * block->stride;
    const float *factors = block->factors + row * block->factor_stride;
    int32_t c = 0;
    for (; c + GROUP <= block->columns; c += GROUP) {
#pragma GCC unroll 4
        for (int32_t r = 0; r < rows; r++)
            decode_step(format, codes + r * block->stride, c, factors + r * block->factor_stride, weight[r]);
        packed_step(input, c, weight, sum, STEP_VECTORS, tokens, rows);
    }
    if (c < block->columns) {
        for (int32_t r = 0; r < rows; r++)
            decode_last_step(format, codes + r * block->stride, c, block->columns - c, weight[r]);
        packed_step(input, c, weight, sum, (block->columns - c + LANES - 1) / LANES, tokens, rows);
    }
#pragma GCC unroll 4
    for (int32_t t = 0; t < tokens; t++) {
        float folded[PACKED_ROWS];
        if (rows == PACKED_ROWS)
            fold_four(sum[t], folded);
        else
            folded[0] = sum_lanes(sum[t][0]);
        for (int32_t r = 0; r < rows; r++)
            put(out + t * out_stride + row + r, folded[r], add);
    }
}

static inline __attribute__((always_inline)) void packed_strip(const enum weight_format format,
    const float *const *x, int32_t column, const struct weight_block *block, int32_t rows, float *out,
    int64_t out_stride, bool add, const int32_t tokens) {
    int32_t r = 0;
    for (; r + PACKED_ROWS <= rows; r += PACKED_ROWS)
        packed_micro(format, x, column, block, r, out, out_stride, add, tokens, PACKED_ROWS);
    for (; r < rows; r++)
        packed_micro(format, x, column, block, r, out, out_stride, add, tokens, 1);
}

void FOR_SET(dot_packed)(const float *const *x, int32_t column, int32_t tokens,
    const struct weight_block *block, int32_t rows, float *out, int64_t out_stride, bool add) {
    for (int32_t t = 0; t < tokens; t += PACKED_MICRO_TOKENS) {
        float *to = out + t * out_stride;
#define PACKED_PAIR(format) packed_strip(format, x + t, column, block, rows, to, out_stride, add, 2)
#define PACKED_ONE(format) packed_strip(format, x + t, column, block, rows, to, out_stride, add, 1)
        if (tokens - t >= PACKED_MICRO_TOKENS)
            WITH_FORMAT(block, PACKED_PAIR)
        else
            WITH_FORMAT(block, PACKED_ONE)
    }
}

/* Decoding of packed weights in registers: the one place where each format meets each instruction set.
 *
 * A step is 32 columns, one scale group. Scales become float factors once per row and block of columns, so that the
 * inner loops only broadcast them. With half-precision conversion at hand E4M3 codes are read as halves, which are
 * 2^-8 of their value, and the factors carry 2^8; scale codes above 246 (2^119) then are infinite, and the NaN code is
 * read as 480: checkpoints hold neither. No intermediate value is a denormal, which some processors punish.
 */
#ifndef NOCTURNE_CPU_WEIGHTS_H
#define NOCTURNE_CPU_WEIGHTS_H

#include "kernels/cpu/operations/internal.h"

enum {
    STEP_VECTORS = GROUP / LANES,
    BLOCK_GROUPS = BLOCK_COLUMNS / GROUP,
};

/* Rows of one block of columns of a matrix. */
struct weight_block {
    enum weight_format format;
    const uint8_t *codes; /* of the first row's first column */
    int64_t stride;       /* bytes from row to row */
    int32_t columns;      /* at most BLOCK_COLUMNS; a multiple of GROUP for packed formats */
    int32_t factor_stride;
    float factors[TILE_ROWS * BLOCK_GROUPS]; /* [rows, factor_stride]; stride 0: all rows share them */
};

/* ---- scales ---- */

static inline float scale_factor(enum weight_format format, uint8_t scale) {
#if defined(HAVE_AVX512) || defined(HAVE_AVX2)
    if (format != WEIGHT_FP4_ROW)
        return bits_float(scale <= 246 ? (uint32_t)(scale + 8) << 23 : INFINITY_BITS);
#else
    (void)format;
#endif
    return e8m0_value(scale);
}

/* Rows [row, row + rows), rows <= TILE_ROWS, columns [column, column + columns) of w. */
static inline void open_block(const struct matrix *w, int32_t row, int32_t rows, int32_t column,
    int32_t columns, struct weight_block *block) {
    int64_t groups = (w->columns + GROUP - 1) / GROUP;
    block->format = w->format;
    block->stride = weight_bytes(w->format, w->columns);
    block->codes = (const uint8_t *)w->values + row * block->stride + weight_bytes(w->format, column);
    block->columns = columns;
    block->factor_stride = 0;
    if (w->scales == NULL)
        return;
    /* rows that lie within one tile share its scales */
    bool is_shared = w->format == WEIGHT_FP8_TILE && row / GROUP == (row + rows - 1) / GROUP;
    block->factor_stride = is_shared ? 0 : BLOCK_GROUPS;
    for (int32_t r = 0; r < (is_shared ? 1 : rows); r++) {
        int32_t scale_row = w->format == WEIGHT_FP8_TILE ? (row + r) / GROUP : row + r;
        const uint8_t *scales = w->scales + scale_row * groups + column / GROUP;
        for (int32_t g = 0; g < (columns + GROUP - 1) / GROUP; g++)
            block->factors[r * BLOCK_GROUPS + g] = scale_factor(w->format, scales[g]);
    }
}

/* ---- steps ---- */

/* with keeps_nan, constant where it is called, the NaN code becomes NaN on all instruction sets */
static inline __attribute__((always_inline)) void decode_fp8_step(
    const uint8_t *codes, float factor, const bool keeps_nan, lanes *out) {
#if defined(HAVE_AVX512)
    const __m256i kept = _mm256_set1_epi16((short)0xbf80), magnitude = _mm256_set1_epi16(0x3f80);
#pragma GCC unroll 2
    for (int32_t v = 0; v < STEP_VECTORS; v++) {
        __m256i half = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(codes + v * LANES)));
        half = _mm256_and_si256(_mm256_slli_epi16(half, 7), kept);
        if (keeps_nan) {
            __mmask16 is_nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(half, magnitude), magnitude);
            half = _mm256_mask_mov_epi16(half, is_nan, _mm256_set1_epi16(0x7e00));
        }
        out[v] = (lanes)_mm512_cvtph_ps(half) * factor;
    }
#elif defined(HAVE_AVX2)
    const __m128i kept = _mm_set1_epi16((short)0xbf80), magnitude = _mm_set1_epi16(0x3f80);
#pragma GCC unroll 4
    for (int32_t v = 0; v < STEP_VECTORS; v++) {
        __m128i half = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(codes + v * LANES)));
        half = _mm_and_si128(_mm_slli_epi16(half, 7), kept);
        if (keeps_nan) {
            __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(half, magnitude), magnitude);
            half = _mm_or_si128(half, _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00)));
        }
        out[v] = (lanes)_mm256_cvtph_ps(half) * factor;
    }
#else
    (void)keeps_nan;
    float value[GROUP];
    for (int32_t i = 0; i < GROUP; i++)
        value[i] = e4m3_value(codes[i]) * factor;
    for (int32_t v = 0; v < STEP_VECTORS; v++)
        out[v] = load(value + v * LANES);
#endif
}

static inline __attribute__((always_inline)) void decode_fp4_step(
    const uint8_t *codes, float factor, lanes *out) {
#if defined(HAVE_AVX512) || defined(HAVE_AVX2)
    const __m128i nibble = _mm_set1_epi8(15);
    __m128i pairs = _mm_loadu_si128((const __m128i *)codes);
    __m128i even = _mm_and_si128(pairs, nibble);
    __m128i odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble);
    __m128i first = _mm_unpacklo_epi8(even, odd), second = _mm_unpackhi_epi8(even, odd);
#endif
#if defined(HAVE_AVX512)
    const lanes values = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    __m512 scaled = (__m512)(values * factor);
    out[0] = (lanes)_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(first), scaled);
    out[1] = (lanes)_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(second), scaled);
#elif defined(HAVE_AVX2)
    const lanes values = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    __m256 scaled = (__m256)(values * factor);
    const __m128i parts[4] = {first, _mm_srli_si128(first, 8), second, _mm_srli_si128(second, 8)};
    const __m256i sign = _mm256_set1_epi32((int)0x80000000u);
#pragma GCC unroll 4
    for (int32_t v = 0; v < STEP_VECTORS; v++) {
        __m256i code = _mm256_cvtepu8_epi32(parts[v]);
        __m256i negative = _mm256_and_si256(_mm256_slli_epi32(code, 28), sign);
        __m256i magnitude = (__m256i)_mm256_permutevar8x32_ps(scaled, code);
        out[v] = (lanes)_mm256_or_si256(magnitude, negative);
    }
#else
    float value[GROUP];
    unpack_fp4(codes, GROUP, factor, value);
    for (int32_t v = 0; v < STEP_VECTORS; v++)
        out[v] = load(value + v * LANES);
#endif
}

/* Columns [c, c + GROUP) of a row, all of which exist. `format` is constant where it is called. */
static inline __attribute__((always_inline)) void decode_step(
    const enum weight_format format, const uint8_t *codes, int32_t c, const float *factors, lanes *out) {
    switch (format) {
    case WEIGHT_F32:
#pragma GCC unroll 8
        for (int32_t v = 0; v < STEP_VECTORS; v++)
            out[v] = load((const float *)codes + c + v * LANES);
        break;
    case WEIGHT_BF16:
#pragma GCC unroll 8
        for (int32_t v = 0; v < STEP_VECTORS; v++)
            out[v] = load_bf16((const uint16_t *)codes + c + v * LANES);
        break;
    case WEIGHT_FP8_TILE:
    case WEIGHT_FP8_ROW:
        decode_fp8_step(codes + c, factors[c / GROUP], false, out);
        break;
    case WEIGHT_FP4_ROW:
        decode_fp4_step(codes + c / 2, factors[c / GROUP], out);
        break;
    }
}

/* The last `count` < GROUP columns of a float32 or BF16 row, then zeros. */
static inline void decode_last_step(
    const enum weight_format format, const uint8_t *codes, int32_t c, int32_t count, lanes *out) {
    uint8_t padded[GROUP * sizeof(float)] = {0};
    size_t size = format == WEIGHT_F32 ? 4 : 2;
    memcpy(padded, codes + (size_t)c * size, (size_t)count * size);
    if (format == WEIGHT_F32)
        decode_step(WEIGHT_F32, padded, 0, NULL, out);
    else
        decode_step(WEIGHT_BF16, padded, 0, NULL, out);
}

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

/* ---- encoded rows ---- */

static inline __attribute__((always_inline)) void store_step(float *to, const lanes *value) {
#pragma GCC unroll 8
    for (int32_t v = 0; v < STEP_VECTORS; v++)
        store(to + v * LANES, value[v]);
}

/* As decode_row, the same values, by vectors. */
static inline void decode_row_fast(
    enum row_encoding encoding, const uint8_t *row, int32_t columns, float *out) {
    lanes value[STEP_VECTORS];
    switch (encoding) {
    case ROWS_F32:
        memcpy(out, row, (size_t)columns * sizeof(float));
        break;
    case ROWS_FP8:
        for (int32_t c = 0; c < columns; c += GROUP) {
            uint8_t scale = row[columns + c / GROUP];
            if (scale > 246) { /* the factor would be infinite */
                decode_fp8_group(row + c, scale, out + c);
                continue;
            }
            decode_fp8_step(row + c, scale_factor(WEIGHT_FP8_ROW, scale), true, value);
            store_step(out + c, value);
        }
        break;
    case ROWS_FP4:
        for (int32_t c = 0; c < columns; c += GROUP) {
            decode_fp4_step(row + c / 2, e8m0_value(row[columns / 2 + c / GROUP]), value);
            store_step(out + c, value);
        }
        break;
    case ROWS_FP4_FINE:
        for (int32_t c = 0; c < columns; c += GROUP) {
            const uint8_t *scales = row + columns / 2 + c / FINE_GROUP;
            float first = e4m3_value(scales[0]), second = e4m3_value(scales[1]);
            decode_fp4_step(row + c / 2, 1, value);
            for (int32_t v = 0; v < STEP_VECTORS; v++)
                value[v] *= v < STEP_VECTORS / 2 ? first : second;
            store_step(out + c, value);
        }
        break;
    }
}

#endif

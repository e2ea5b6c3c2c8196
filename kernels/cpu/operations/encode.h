/* Encoding of rows by vectors: the same bytes as encode_row of number_formats.h gives. */
#ifndef NOCTURNE_CPU_ENCODE_H
#define NOCTURNE_CPU_ENCODE_H

#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/number_formats.h"
#include "kernels/cpu/operations/vectors.h"
#include "kernels/cpu/operations/weights.h"

static inline int_lanes larger_bits(int_lanes a, int_lanes b) {
#if defined(HAVE_AVX512)
    return (int_lanes)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(HAVE_AVX2)
    return (int_lanes)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    int_lanes mask = a > b;
    return (mask & a) | (~mask & b);
#endif
}

/* largest_magnitude of `vectors` vectors, a constant where it is called. */
static inline __attribute__((always_inline)) uint32_t largest_in_vectors(
    const lanes *x, const int32_t vectors) {
    int_lanes top = (int_lanes)absolute(x[0]);
#pragma GCC unroll 8
    for (int32_t v = 1; v < vectors; v++)
        top = larger_bits(top, (int_lanes)absolute(x[v]));
#if defined(HAVE_AVX512)
    return (uint32_t)_mm512_reduce_max_epi32((__m512i)top);
#else
    int32_t largest = top[0];
    for (int32_t l = 1; l < LANES; l++)
        largest = top[l] > largest ? top[l] : largest;
    return (uint32_t)largest;
#endif
}

/* Codes of finite numbers whose magnitudes round to what the format holds, without their signs: `bits` of fraction, the
 * exponent of the least normal number `least` (as in a float32). A number that is added to a power of two 2^(23 - bits)
 * times as large is rounded to the last place of its code, which then stands in the last places of the sum. Numbers
 * below the least normal one are treated as of its exponent, so that denormal codes come out the same way. */
static inline __attribute__((always_inline)) int_lanes magnitude_codes(
    int_lanes magnitude, const int32_t bits, const int32_t least) {
    int_lanes exponent = larger_bits(magnitude & (int32_t)INFINITY_BITS, (int_lanes){0} + (least << 23));
    int_lanes base = exponent + ((23 - bits) << 23);
    int_lanes places = (int_lanes)((lanes)magnitude + (lanes)base) - base;
    return (exponent >> (23 - bits)) - (least << bits) + places;
}

/* e4m3_code and e2m1_code of each lane. */
static inline int_lanes e4m3_codes(lanes x) {
    int_lanes sign = (int_lanes)x >> 24 & 128;
    return magnitude_codes((int_lanes)absolute(x), 3, 121) | sign;
}

static inline int_lanes e2m1_codes(lanes x) {
    int_lanes sign = (int_lanes)x >> 28 & 8;
    return magnitude_codes((int_lanes)absolute(x), 1, 127) | sign;
}

/* One byte of each lane. */
static inline void store_bytes(uint8_t *to, int_lanes code) {
#if defined(HAVE_AVX512)
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)code));
#else
    for (int32_t l = 0; l < LANES; l++)
        to[l] = (uint8_t)code[l];
#endif
}

/* Two codes a byte, the even lane in the low nibble. */
static inline void store_nibbles(uint8_t *to, int_lanes code) {
#if defined(HAVE_AVX512)
    __m512i pairs = _mm512_or_si512((__m512i)code, _mm512_srli_epi64((__m512i)code, 28));
    _mm_storel_epi64((__m128i *)to, _mm512_cvtepi64_epi8(pairs));
#else
    for (int32_t l = 0; l < LANES; l += 2)
        to[l / 2] = (uint8_t)(code[l] | code[l + 1] << 4);
#endif
}

static inline void load_step(const float *x, lanes *value) {
#pragma GCC unroll 8
    for (int32_t v = 0; v < STEP_VECTORS; v++)
        value[v] = load(x + v * LANES);
}

/* The groups that hold an infinity or a NaN take the plain functions. */
static inline void encode_fp8_step(const float *x, uint8_t *codes, uint8_t *scale) {
    lanes value[STEP_VECTORS];
    load_step(x, value);
    uint32_t amax = largest_in_vectors(value, STEP_VECTORS);
    if (amax >= INFINITY_BITS) {
        encode_fp8_group(x, codes, scale);
        return;
    }
    *scale = group_scale(amax, 1e-4f, 1.0f / 448.0f);
    float inverse = inverse_scale(*scale);
#pragma GCC unroll 8
    for (int32_t v = 0; v < STEP_VECTORS; v++)
        store_bytes(codes + v * LANES, e4m3_codes(value[v] * inverse));
}

static inline void encode_fp4_step(const float *x, uint8_t *codes, uint8_t *scale) {
    lanes value[STEP_VECTORS];
    load_step(x, value);
    uint32_t amax = largest_in_vectors(value, STEP_VECTORS);
    if (amax >= INFINITY_BITS) {
        encode_fp4_group(x, codes, scale);
        return;
    }
    *scale = group_scale(amax, 6 * 0x1p-126f, 1.0f / 6.0f);
    float inverse = inverse_scale(*scale);
#pragma GCC unroll 8
    for (int32_t v = 0; v < STEP_VECTORS; v++)
        store_nibbles(codes + v * LANES / 2, e2m1_codes(value[v] * inverse));
}

static inline void encode_fp4_fine_step(const float *x, uint8_t *codes, uint8_t *scale) {
    enum { VECTORS = FINE_GROUP / LANES };
    lanes value[VECTORS];
#pragma GCC unroll 8
    for (int32_t v = 0; v < VECTORS; v++)
        value[v] = load(x + v * LANES);
    uint32_t amax_bits = largest_in_vectors(value, VECTORS);
    if (amax_bits >= INFINITY_BITS) {
        encode_fp4_fine_group(x, codes, scale);
        return;
    }
    float amax = bits_float(amax_bits);
    amax = amax < 6 * 0x1p-9f ? 6 * 0x1p-9f : amax;
    *scale = e4m3_code(amax / 6.0f);
    float divisor = e4m3_value(*scale);
#pragma GCC unroll 8
    for (int32_t v = 0; v < VECTORS; v++) {
        /* the scale is rounded and has a largest value, so that quotients may exceed what FP4 holds */
        lanes scaled = smaller(larger(value[v] / divisor, splat(-6)), splat(6));
        store_nibbles(codes + v * LANES / 2, e2m1_codes(scaled));
    }
}

static inline void encode_row_fast(enum row_encoding encoding, const float *x, int32_t columns, void *row) {
    uint8_t *codes = row, *scales = codes + (encoding == ROWS_FP8 ? columns : columns / 2);
    switch (encoding) {
    case ROWS_F32:
        memcpy(row, x, (size_t)columns * sizeof(float));
        break;
    case ROWS_FP8:
        for (int32_t c = 0; c < columns; c += GROUP)
            encode_fp8_step(x + c, codes + c, scales + c / GROUP);
        break;
    case ROWS_FP4:
        for (int32_t c = 0; c < columns; c += GROUP)
            encode_fp4_step(x + c, codes + c / 2, scales + c / GROUP);
        break;
    case ROWS_FP4_FINE:
        for (int32_t c = 0; c < columns; c += FINE_GROUP)
            encode_fp4_fine_step(x + c, codes + c / 2, scales + c / FINE_GROUP);
        break;
    }
}

/* As round_row. */
static inline void round_row_fast(enum row_encoding encoding, float *x, int32_t columns) {
    uint8_t codes[GROUP * sizeof(float)]; /* one step and its scales */
    if (encoding == ROWS_F32)
        return;
    for (int32_t c = 0; c < columns; c += GROUP) {
        encode_row_fast(encoding, x + c, GROUP, codes);
        decode_row_fast(encoding, codes, GROUP, x + c);
    }
}

#endif

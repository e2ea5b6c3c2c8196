/* Vectors of LANES floats for the instruction set this file is compiled for, and functions on them.
 *
 * Sums have one order everywhere: lane l of an accumulator takes the elements l, l + LANES, ... in turn, and the lanes
 * are folded by halves at the end. Rows whose length is no multiple of LANES go through the same vectors, padded
 * with zeros, never through another loop.
 */
#ifndef NOCTURNE_CPU_VECTORS_H
#define NOCTURNE_CPU_VECTORS_H

#include <stdint.h> /* int32_t, uint32_t */
#include <string.h> /* memcpy */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define HAVE_AVX512 1
#if defined(__AVX512BF16__) && defined(__AVX512VBMI__)
#define HAVE_BF16 1
#endif
#include <immintrin.h>
enum { LANES = 16 };
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define HAVE_AVX2 1
#include <immintrin.h>
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float lanes __attribute__((vector_size(LANES * 4), may_alias));
typedef int32_t int_lanes __attribute__((vector_size(LANES * 4), may_alias));
typedef float unaligned_lanes __attribute__((vector_size(LANES * 4), may_alias, aligned(1)));

static inline int32_t round_up(int32_t value, int32_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static inline int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static inline lanes load(const float *from) {
    return *(const unaligned_lanes *)from;
}

static inline void store(float *to, lanes value) {
    *(unaligned_lanes *)to = value;
}

/* The first `count` (1 to LANES) elements, then zeros. */
static inline lanes load_part(const float *from, int32_t count) {
    if (count >= LANES)
        return load(from);
    lanes value = {0};
    memcpy(&value, from, (size_t)count * sizeof(float));
    return value;
}

static inline void store_part(float *to, lanes value, int32_t count) {
    if (count >= LANES)
        store(to, value);
    else
        memcpy(to, &value, (size_t)count * sizeof(float));
}

/* LANES BF16 values. */
static inline __attribute__((always_inline)) lanes load_bf16(const uint16_t *codes) {
#if defined(HAVE_AVX512)
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)codes));
    return (lanes)_mm512_slli_epi32(wide, 16);
#elif defined(HAVE_AVX2)
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)codes));
    return (lanes)_mm256_slli_epi32(wide, 16);
#else
    uint16_t code[4];
    memcpy(code, codes, sizeof code); /* of weights the address may be odd */
    return (lanes)(int_lanes){(int32_t)((uint32_t)code[0] << 16), (int32_t)((uint32_t)code[1] << 16),
        (int32_t)((uint32_t)code[2] << 16), (int32_t)((uint32_t)code[3] << 16)};
#endif
}

/* Up to LANES BF16 values, then zeros. */
static inline lanes load_bf16_part(const uint16_t *from, int32_t count) {
    if (count >= LANES)
        return load_bf16(from);
    uint16_t code[LANES] = {0};
    memcpy(code, from, (size_t)count * sizeof *code);
    return load_bf16(code);
}

static inline lanes splat(float value) {
    return value - (lanes){0}; /* folds to a broadcast; 0 + value would not, because of -0 */
}

/* a * b + c, fused where the instruction set fuses. */
static inline lanes multiply_add(lanes a, lanes b, lanes c) {
#if defined(HAVE_AVX512)
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(HAVE_AVX2)
    return (lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* where mask (all ones or all zeros a lane) ? a : b */
static inline lanes choose_lanes(int_lanes mask, lanes a, lanes b) {
    return (lanes)((mask & (int_lanes)a) | (~mask & (int_lanes)b));
}

/* a > b ? a : b, so b when either is NaN */
static inline lanes larger(lanes a, lanes b) {
#if defined(HAVE_AVX512)
    return (lanes)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(HAVE_AVX2)
    return (lanes)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose_lanes(a > b, a, b);
#endif
}

/* a < b ? a : b */
static inline lanes smaller(lanes a, lanes b) {
#if defined(HAVE_AVX512)
    return (lanes)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(HAVE_AVX2)
    return (lanes)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return choose_lanes(a < b, a, b);
#endif
}

static inline lanes absolute(lanes a) {
    return (lanes)((int_lanes)a & 0x7fffffff);
}

/* Sum of the lanes: lane l + lane l + width/2, by halves. */
static inline float sum_lanes(lanes value) {
    float part[LANES];
    memcpy(part, &value, sizeof part);
    for (int32_t half = LANES / 2; half > 0; half /= 2)
        for (int32_t l = 0; l < half; l++)
            part[l] += part[l + half];
    return part[0];
}

static inline float largest_lane(lanes value) {
    float top = value[0];
    for (int32_t l = 1; l < LANES; l++)
        top = value[l] > top ? value[l] : top;
    return top;
}

/* ---- transposition ---- */

#if defined(HAVE_AVX512)
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b)                                                                                       \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif defined(HAVE_AVX2)
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Transposes a square of LANES rows: log2(LANES) times each row is interleaved with the one half the square below. */
static inline __attribute__((always_inline)) void transpose(lanes *square) {
    lanes zipped[LANES];
#pragma GCC unroll 4
    for (int32_t width = 1; width < LANES; width *= 2) {
#pragma GCC unroll 8
        for (int32_t i = 0; i < LANES / 2; i++) {
            zipped[2 * i] = ZIP_LOW(square[i], square[i + LANES / 2]);
            zipped[2 * i + 1] = ZIP_HIGH(square[i], square[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int32_t i = 0; i < LANES; i++)
            square[i] = zipped[i];
    }
}

/* ---- functions ---- */

/* e^x within 2 units in the last place; 0 below -104, infinity above 88.73, NaN stays. */
static inline lanes vector_exp(lanes x) {
    const lanes magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    lanes bounded = smaller(splat(89.0f), larger(splat(-104.0f), x)); /* NaN stays */
    lanes shifted = multiply_add(bounded, splat(1.44269504f), magic);
    lanes n = shifted - magic;
    lanes r = multiply_add(n, splat(-0.693145752f), bounded); /* ln 2 in two parts */
    r = multiply_add(n, splat(-1.42860677e-6f), r);
    lanes p = splat(1.0f / 5040.0f);
    p = multiply_add(p, r, splat(1.0f / 720.0f));
    p = multiply_add(p, r, splat(1.0f / 120.0f));
    p = multiply_add(p, r, splat(1.0f / 24.0f));
    p = multiply_add(p, r, splat(1.0f / 6.0f));
    p = multiply_add(p, r, splat(0.5f));
    p = multiply_add(p, r * r, r) + 1.0f;
#if defined(HAVE_AVX512)
    return (lanes)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    /* 2^n in two factors, for n reaches from -150 to 128 */
    int_lanes exponent = (int_lanes)shifted - (int_lanes)magic;
    int_lanes half = exponent >> 1;
    lanes first = (lanes)((half + 127) << 23);
    lanes second = (lanes)((exponent - half + 127) << 23);
    return p * first * second;
#endif
}

static inline lanes vector_sigmoid(lanes x) {
    return 1.0f / (1.0f + vector_exp(-x));
}

static inline float scalar_exp(float x) {
    return vector_exp(splat(x))[0];
}

static inline float scalar_sigmoid(float x) {
    return vector_sigmoid(splat(x))[0];
}

enum { SQUARE_SUMS = 4 };

/* The sum of four accumulators, each of which took every fourth vector of a row: one chain would wait for itself. */
static inline float sum_squares(const lanes *total) {
    return sum_lanes((total[0] + total[1]) + (total[2] + total[3]));
}

/* Sum of squares of a row. */
static inline float sum_of_squares(const float *x, int32_t count) {
    lanes total[SQUARE_SUMS] = {{0}};
    int32_t c = 0;
    for (; c + SQUARE_SUMS * LANES <= count; c += SQUARE_SUMS * LANES)
#pragma GCC unroll 4
        for (int32_t i = 0; i < SQUARE_SUMS; i++) {
            lanes value = load(x + c + i * LANES);
            total[i] = multiply_add(value, value, total[i]);
        }
    for (int32_t i = 0; c < count; c += LANES, i++) {
        lanes value = load_part(x + c, count - c);
        total[i] = multiply_add(value, value, total[i]);
    }
    return sum_squares(total);
}

#endif

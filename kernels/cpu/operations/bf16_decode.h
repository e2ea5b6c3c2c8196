/* Packed weights as BF16 numbers in registers, for instruction sets with BF16 dot products.
 *
 * E4M3 and E2M1 codes, their power-of-two scales applied, are BF16 numbers exactly, so products of them in float32 lose
 * nothing. Codes become BF16 words by table look-up, with the largest exponents that any scale can ask for; what the scale
 * lacks to that is then subtracted from the exponents. Zeros are the most negative word (-0), which a saturating
 * subtraction leaves as it is. A step is STEP_COLUMNS columns, as STEP_WORD_VECTORS vectors in the order that decoding gives:
 *
 *   E4M3: per 64 columns two vectors; 128-bit lane l of them has the columns 16 l .. + 7 and 16 l + 8 .. + 15
 *   E2M1: vector j has the columns 4 i + j
 *   BF16: natural order
 *
 * Dot products with vectors of float32 meet the even words of a vector first, then the odd ones. Scale codes are taken
 * between 10 and 246 (E4M3) or 2 and 252 (E2M1), the range in which all products with a code are finite and normal.
 */
#ifndef NOCTURNE_CPU_BF16_DECODE_H
#define NOCTURNE_CPU_BF16_DECODE_H

#include "kernels/cpu/operations/internal.h"

#ifdef HAVE_BF16

enum { STEP_COLUMNS = 128, STEP_WORD_VECTORS = 4, STEP_GROUPS = STEP_COLUMNS / GROUP, WORD_LANES = 32 };

/* ---- tables ---- */

/* BF16 words of the magnitudes of E4M3 and E2M1 at the largest scales, 2^(246 - 127) and 2^(252 - 127). */
enum { E4M3_LARGEST_SCALE = 246, E4M3_LEAST_SCALE = 10, E2M1_LARGEST_SCALE = 252, E2M1_LEAST_SCALE = 2 };

#define WORD(exponent, mantissa) ((exponent) << 7 | (mantissa))
#define ZERO_WORD 0x8000
#define E4M3_WORD(c)                                                                                         \
    ((c) == 0     ? ZERO_WORD                                                                                \
        : (c) < 2 ? WORD(118 + E4M3_LARGEST_SCALE - 127, 0)                                                  \
        : (c) < 4 ? WORD(119 + E4M3_LARGEST_SCALE - 127, ((c)&1) << 6)                                       \
        : (c) < 8 ? WORD(120 + E4M3_LARGEST_SCALE - 127, ((c)&3) << 5)                                       \
                  : WORD(((c) >> 3) + 120 + E4M3_LARGEST_SCALE - 127, ((c)&7) << 4))
#define E2M1_MAGNITUDE(c)                                                                                    \
    ((c) == 0      ? ZERO_WORD                                                                               \
        : (c) == 1 ? WORD(126 + E2M1_LARGEST_SCALE - 127, 0)                                                 \
                   : WORD(((c) >> 1) + 126 + E2M1_LARGEST_SCALE - 127, ((c)&1) << 6))
#define E2M1_WORD(c) (uint16_t)(E2M1_MAGNITUDE((c)&7) | ((c)&8) << 12)

#define LOW_BYTE(c) (uint8_t)(E4M3_WORD(c) & 255)
#define HIGH_BYTE(c) (uint8_t)(E4M3_WORD(c) >> 8)
#define FOR_EIGHT(f, c)                                                                                      \
    f(c), f((c) + 1), f((c) + 2), f((c) + 3), f((c) + 4), f((c) + 5), f((c) + 6), f((c) + 7)
#define FOR_32(f, c) FOR_EIGHT(f, c), FOR_EIGHT(f, (c) + 8), FOR_EIGHT(f, (c) + 16), FOR_EIGHT(f, (c) + 24)
#define FOR_128(f) FOR_32(f, 0), FOR_32(f, 32), FOR_32(f, 64), FOR_32(f, 96)

static const uint8_t e4m3_low_bytes[128] __attribute__((aligned(64))) = {FOR_128(LOW_BYTE)};
static const uint8_t e4m3_high_bytes[128] __attribute__((aligned(64))) = {FOR_128(HIGH_BYTE)};
/* twice, for a look-up takes five bits of the code's word, the fifth being the next code's */
static const uint16_t e2m1_words[32] __attribute__((aligned(64))) = {FOR_32(E2M1_WORD, 0)};

struct decode_tables {
    __m512i low[2], high[2], words; /* of E4M3, of E4M3, of E2M1 */
};

static inline __attribute__((always_inline)) struct decode_tables load_tables(void) {
    return (struct decode_tables){{_mm512_load_si512(e4m3_low_bytes), _mm512_load_si512(e4m3_low_bytes + 64)},
        {_mm512_load_si512(e4m3_high_bytes), _mm512_load_si512(e4m3_high_bytes + 64)},
        _mm512_load_si512(e2m1_words)};
}

/* ---- scales ---- */

/* Which of four words the words of each 128-bit lane have, as an order for vpshufb. */
static inline __attribute__((always_inline)) __m512i lanes_of(int a, int b, int c, int d) {
    const int first = 0x01000100, next = 0x02020202;
    return _mm512_setr_epi32(first + a * next, first + a * next, first + a * next, first + a * next,
        first + b * next, first + b * next, first + b * next, first + b * next, first + c * next,
        first + c * next, first + c * next, first + c * next, first + d * next, first + d * next,
        first + d * next, first + d * next);
}

/* What scale codes lack to the largest one, as exponents: words [count]; writes up to a multiple of 32. */
static inline void lacking_words(
    const uint8_t *scales, int32_t count, int largest, int least_scale, uint16_t *out) {
    const __m256i top = _mm256_set1_epi8((char)largest),
                  most = _mm256_set1_epi8((char)(largest - least_scale));
    for (int32_t g = 0; g < count; g += 32) {
        __mmask32 there = count - g >= 32 ? 0xffffffffu : (1u << (count - g)) - 1;
        __m256i lacking = _mm256_subs_epu8(top, _mm256_maskz_loadu_epi8(there, scales + g));
        lacking = _mm256_min_epu8(lacking, most);
        _mm512_storeu_si512(out + g, _mm512_slli_epi16(_mm512_cvtepu8_epi16(lacking), 7));
    }
}

/* The words of a step's four groups, for vectors of E2M1. */
static inline __attribute__((always_inline)) __m512i e2m1_exponents(const uint16_t *four) {
    int64_t words;
    memcpy(&words, four, sizeof words);
    return _mm512_shuffle_epi8(_mm512_set1_epi64(words), lanes_of(0, 1, 2, 3));
}

/* Of E4M3 codes 64 * half .. + 63 of a step. */
static inline __attribute__((always_inline)) __m512i e4m3_exponents(const uint16_t *four, int half) {
    int64_t words;
    memcpy(&words, four, sizeof words);
    return _mm512_shuffle_epi8(
        _mm512_set1_epi64(words), half == 0 ? lanes_of(0, 0, 1, 1) : lanes_of(2, 2, 3, 3));
}

/* ---- codes ---- */

/* 64 E4M3 codes; the NaN code is read as 480. */
static inline __attribute__((always_inline)) void e4m3_words(
    __m512i codes, const struct decode_tables *tables, __m512i exponents, __m512i *out) {
    __m512i low = _mm512_permutex2var_epi8(tables->low[0], codes, tables->low[1]);
    __m512i high = _mm512_permutex2var_epi8(tables->high[0], codes, tables->high[1]);
    high =
        _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8((char)0x80), 0xf8); /* high | codes & 0x80 */
    out[0] = _mm512_subs_epi16(_mm512_unpacklo_epi8(low, high), exponents);
    out[1] = _mm512_subs_epi16(_mm512_unpackhi_epi8(low, high), exponents);
}

/* 128 E2M1 codes. */
static inline __attribute__((always_inline)) void e2m1_words_of(
    __m512i codes, const struct decode_tables *tables, __m512i exponents, __m512i *out) {
    out[0] = _mm512_subs_epi16(_mm512_permutexvar_epi16(codes, tables->words), exponents);
    out[1] =
        _mm512_subs_epi16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), tables->words), exponents);
    out[2] =
        _mm512_subs_epi16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), tables->words), exponents);
    out[3] =
        _mm512_subs_epi16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), tables->words), exponents);
}

/* ---- words as float32 ---- */

static inline __attribute__((always_inline)) lanes even_words(__m512i words) {
    return (lanes)_mm512_slli_epi32(words, 16);
}

static inline __attribute__((always_inline)) lanes odd_words(__m512i words) {
    return (lanes)_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000));
}

#endif
#endif

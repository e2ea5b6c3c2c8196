/* Pairs of BF16 values, two a word (the lower half first), and codes that are decoded into them.
 *
 * Eight neighbouring codes make four pairs (value i, value i + 4): so both halves of a word take the same shifts.
 * Values are laid into BF16's places with their own exponents, and a power of two corrects the bias, which makes
 * denormal codes come out right, too. All results are exact but products below BF16's smallest normal number.
 */
#ifndef NOCTURNE_CUDA_PAIRS_H
#define NOCTURNE_CUDA_PAIRS_H

#include "kernels/cuda/backend.h"

enum { UNIT = 8 }; /* neighbouring columns, 16 bytes of BF16 values */

/* The column within a unit that lies at place `place`, and where column `column` lies. */
__host__ __device__ static inline int32_t unit_column(int32_t place) {
    return place / 2 + place % 2 * 4;
}

#ifdef CUDA_EMULATION
/* Nearest BF16, ties to even. */
__device__ static inline uint32_t nearest_bf16(float value) {
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > INFINITY_BITS)
        return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
#endif

/* Two numbers, rounded to BF16. */
__device__ static inline uint32_t pack_pair(float low, float high) {
#ifdef CUDA_EMULATION
    return nearest_bf16(low) | nearest_bf16(high) << 16;
#else
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

__device__ static inline float low_value(uint32_t pair) {
    return bits_float(pair << 16);
}

__device__ static inline float high_value(uint32_t pair) {
    return bits_float(pair & 0xffff0000u);
}

/* The pair (low, high) in two terms, whose sum lacks 2^-17 of it at most: the first; *rest is the second. */
__device__ static inline uint32_t split_pair(float low, float high, uint32_t *rest) {
    uint32_t pair = pack_pair(low, high);
    *rest = pack_pair(low - low_value(pair), high - high_value(pair));
    return pair;
}

/* Half by half, rounded to BF16; denormal numbers are kept. */
__device__ static inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
#ifdef CUDA_EMULATION
    return pack_pair(low_value(a) * low_value(b), high_value(a) * high_value(b));
#else
    uint32_t product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
#endif
}

/* A number that BF16 holds exactly, in both halves. */
__device__ static inline uint32_t both_halves(float value) {
    uint32_t bits = float_bits(value);
    return (bits & 0xffff0000u) | bits >> 16;
}

/* Pair `i` of eight E2M1 codes, the first one in the lowest bits. */
__device__ static inline uint32_t e2m1_pair(uint32_t codes, int32_t i) {
    uint32_t sign = codes << (12 - 4 * i) & 0x80008000u;
    uint32_t magnitude = (i < 2 ? codes << (6 - 4 * i) : codes >> (4 * i - 6)) & 0x01c001c0u;
    return multiply_pairs(sign | magnitude, 0x7e807e80u); /* 2^126 */
}

/* Pair `i` of eight E4M3 codes, columns 0 to 3 in `first`, 4 to 7 in `second`. NaN codes give 480. */
__device__ static inline uint32_t e4m3_pair(uint32_t first, uint32_t second, int32_t i) {
    uint32_t codes =
        __byte_perm(first, second, (uint32_t)(i << 4 | (i + 4) << 12)); /* in the high byte of a half */
    uint32_t magnitude = codes >> 4 & 0x07f007f0u;
    return multiply_pairs((codes & 0x80008000u) | magnitude, 0x7b807b80u); /* 2^120 */
}

/* The value of an E4M3 code in both halves. */
__device__ static inline uint32_t e4m3_both_halves(uint32_t code) {
    uint32_t half = (code & 128u) << 8 | (code & 127u) << 4;
    uint32_t pair = multiply_pairs(half | half << 16, 0x7b807b80u);
    return (code & 127u) == (uint32_t)E4M3_NAN ? 0x7fff7fffu : pair;
}

/* Whether one of four E4M3 codes is a NaN. */
__device__ static inline bool has_e4m3_nan(uint32_t codes) {
    return (((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
}

#endif

/* Packed weights become BF16 numbers in registers.
 *
 * A code's magnitude bits, moved to where BF16 has the end of its exponent and the beginning of its fraction,
 * are the code's value times 2^-120 (E4M3) or 2^-126 (E2M1), denormal codes included. One multiplication of
 * two packed BF16 numbers puts that right and applies the power-of-two scale; it is exact, and overflows to
 * infinity or rounds to a denormal number where float32 would, too. The NaN code of E4M3 is read as 480:
 * checkpoints hold none. A scale of NaN gives NaN.
 *
 * Eight columns become four words, columns 0 and 4 in the first, 1 and 5 in the second, and so on
 * (product_rows.h).
 */
#ifndef NOCTURNE_CUDA_PRODUCT_CODES_H
#define NOCTURNE_CUDA_PRODUCT_CODES_H

#include "kernels/cuda/pairs.h"

enum code_kind { CODES_BF16, CODES_FP8, CODES_FP4 };

/* 32-bit words that hold eight columns. */
template <int kind> struct code_size {
    static const int words = kind == CODES_BF16 ? 4 : kind == CODES_FP8 ? 2 : 1;
};

/* Bytes `count` columns take; a multiple of 2 for CODES_FP4. */
template <int kind> __host__ __device__ static inline int64_t code_bytes(int64_t count) {
    return kind == CODES_BF16 ? 2 * count : kind == CODES_FP8 ? count : count / 2;
}

/* Eight columns, CODES_BF16 as they are, else lacking the factor of their scale. */
template <int kind> __device__ static inline void open_codes(const uint32_t *codes, uint32_t *out) {
    if (kind == CODES_BF16) {
        out[0] = __byte_perm(codes[0], codes[2], 0x5410);
        out[1] = __byte_perm(codes[0], codes[2], 0x7632);
        out[2] = __byte_perm(codes[1], codes[3], 0x5410);
        out[3] = __byte_perm(codes[1], codes[3], 0x7632);
    } else if (kind == CODES_FP8) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t pair = __byte_perm(codes[0], codes[1], 0x4400u + 0x1111u * (uint32_t)i);
            out[i] = (pair >> 4 & 0x07f007f0u) | (pair & 0x80008000u);
        }
    } else {
        /* a product moves sign and magnitude at once: 4 bits of each half, times two powers of two */
        const uint32_t kept = 0x81c081c0u, low = 0x000f000fu, high = 0x00f000f0u;
        uint32_t later = codes[0] >> 8;
        out[0] = (codes[0] & low) * (1u << 12 | 1u << 6) & kept;
        out[1] = (codes[0] & high) * (1u << 8 | 1u << 2) & kept;
        out[2] = (later & low) * (1u << 12 | 1u << 6) & kept;
        out[3] = (later & high) * (1u << 8 | 1u << 2) & kept;
    }
}

/* Exponents of the factors: 127 + 120 - 127 or 127 + 126 - 127 more than the scale's code. */
template <int kind> struct factor_exponent {
    static const uint32_t added = kind == CODES_FP8 ? 120 : 126;
    static const uint32_t largest_scale = 254 - added; /* whose factor is a finite number */
};

/* What codes are multiplied by, as two packed BF16 numbers, for an E8M0 scale of at most largest_scale. */
template <int kind> __device__ static inline uint32_t factor_of(uint32_t scale) {
    return (scale + factor_exponent<kind>::added) * 0x00800080u;
}

/* The same for larger scales, which need two factors. */
template <int kind>
__device__ static inline void apply_large_scale(uint32_t *words, int count, uint32_t scale) {
    const uint32_t largest = factor_exponent<kind>::largest_scale;
    uint32_t first = scale == E8M0_NAN ? 0x7fc07fc0u : factor_of<kind>(largest);
    uint32_t second = (scale - largest + 127u) * 0x00800080u;
#pragma unroll
    for (int i = 0; i < count; i++)
        words[i] = multiply_pairs(multiply_pairs(words[i], first), second);
}

/* `count` words of opened codes times their scale. */
template <int kind, int count> __device__ static inline void apply_scale(uint32_t *words, uint32_t scale) {
    if (scale > factor_exponent<kind>::largest_scale) {
        apply_large_scale<kind>(words, count, scale);
        return;
    }
    uint32_t factor = factor_of<kind>(scale);
#pragma unroll
    for (int i = 0; i < count; i++)
        words[i] = multiply_pairs(words[i], factor);
}

/* ---- weights in memory ---- */

/* A matrix on the device. */
struct code_matrix {
    const uint8_t *codes;
    const uint8_t *scales;
    int32_t columns;
    int32_t scale_groups; /* scales of a row */
    int32_t scale_shift;  /* row r has the scales of row r >> scale_shift */
};

static inline struct code_matrix code_matrix_of(const struct matrix *w) {
    struct code_matrix made = {(const uint8_t *)w->values, w->scales, w->columns,
        (w->columns + GROUP - 1) / GROUP, w->format == WEIGHT_FP8_TILE ? 5 : 0};
    return made;
}

__device__ static inline const uint8_t *scales_of_row(const struct code_matrix *w, int32_t row) {
    return w->scales + (int64_t)(row >> w->scale_shift) * w->scale_groups;
}

__device__ static inline uint32_t load_scale(const uint8_t *scale) {
    return __ldg(scale);
}

/* Reads of weights that are met once: past the nearest cache, which is the inputs'. */
__device__ static inline uint4 load_stream_16(const void *from) {
#ifdef CUDA_EMULATION
    return *(const uint4 *)from;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
#endif
}

__device__ static inline uint2 load_stream_8(const void *from) {
#ifdef CUDA_EMULATION
    return *(const uint2 *)from;
#else
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(from));
    return v;
#endif
}

#endif

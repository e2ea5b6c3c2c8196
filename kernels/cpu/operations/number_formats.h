/* The number formats of the checkpoint and of rounded activations, as the OCP Microscaling specification names them:
 * E4M3 (FP8), E2M1 (FP4), E8M0 (power-of-two scale), and BF16.
 *
 * Group rounding: FP8 and FP4 with one E8M0 scale per 32 columns, the smallest power of two that is at least
 * amax / 448 or amax / 6; FP4 "fine" with one E4M3 scale per 16 columns, amax / 6 rounded. A group that holds an
 * infinity or a NaN has the scale 1 (FP8, FP4); FP8 keeps its NaNs, an FP4 group with a NaN becomes NaN as a whole.
 * The loops have no branches, so that compilers turn them into vector code.
 */
#ifndef NOCTURNE_CPU_NUMBER_FORMATS_H
#define NOCTURNE_CPU_NUMBER_FORMATS_H

#include "kernels/kernels.h"

#include <math.h>   /* NAN */
#include <stdint.h> /* uint8_t, uint32_t */
#include <string.h> /* memcpy */

enum {
    GROUP = 32,      /* columns of an E8M0 scale */
    FINE_GROUP = 16, /* columns of an E4M3 scale */
    E8M0_ONE = 127,
    E8M0_NAN = 255,
    E4M3_NAN = 127,
};

#define INFINITY_BITS 0x7f800000u

static inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- single numbers ---- */

static inline float bf16_value(uint16_t code) {
    return bits_float((uint32_t)code << 16);
}

static inline float e4m3_value(uint8_t code) {
    uint32_t magnitude = code & 127u;
    float normal = bits_float((magnitude << 20) + (120u << 23));
    float denormal = (float)(int32_t)magnitude * 0x1p-9f;
    float value = magnitude < 8 ? denormal : normal;
    uint32_t bits = magnitude == E4M3_NAN ? 0x7fc00000u : float_bits(value);
    return bits_float(bits | (uint32_t)(code & 128u) << 24);
}

/* Nearest E4M3, ties to even, clipped to +-448; NaN stays. */
static inline uint8_t e4m3_code(float value) {
    uint32_t bits = float_bits(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t clipped = magnitude < 0x43e00000u ? magnitude : 0x43e00000u; /* 448 */
    uint32_t normal = ((clipped + 0x7ffffu + ((clipped >> 20) & 1u)) >> 20) - (120u << 3);
    /* below 2^-6 codes count units of 2^-9, the last place of 2^14 */
    uint32_t denormal = float_bits(bits_float(clipped) + 16384.0f) - 0x46800000u;
    uint32_t code = clipped < 0x3c800000u ? denormal : normal;
    code = magnitude > INFINITY_BITS ? (uint32_t)E4M3_NAN : code;
    return (uint8_t)(code | (bits >> 24 & 128u));
}

static inline float e2m1_value(uint8_t code) {
    uint32_t magnitude = code & 7u;
    float small = (float)(int32_t)magnitude * 0.5f; /* 0 and 0.5, the denormal */
    float normal = bits_float((magnitude << 22) + (126u << 23));
    float value = magnitude < 2 ? small : normal;
    return bits_float(float_bits(value) | (uint32_t)(code & 8u) << 28);
}

/* Nearest E2M1, ties to the even code, clipped to +-6. */
static inline uint8_t e2m1_code(float value) {
    uint32_t bits = float_bits(value);
    float m = bits_float(bits & 0x7fffffffu);
    uint32_t code = (uint32_t)(m > 0.25f) + (uint32_t)(m >= 0.75f) + (uint32_t)(m > 1.25f) +
                    (uint32_t)(m >= 1.75f) + (uint32_t)(m > 2.5f) + (uint32_t)(m >= 3.5f) +
                    (uint32_t)(m > 5.0f);
    return (uint8_t)(code | (bits >> 28 & 8u));
}

/* 2^(code - 127) */
static inline float e8m0_value(uint8_t code) {
    uint32_t bits = code == 0 ? 0x00400000u : (uint32_t)code << 23;
    return bits_float(code == E8M0_NAN ? 0x7fc00000u : bits);
}

/* The smallest power of two >= value, which is positive and normal. */
static inline uint8_t e8m0_code_at_least(float value) {
    uint32_t bits = float_bits(value);
    return (uint8_t)((bits >> 23) + ((bits & 0x7fffffu) != 0));
}

/* ---- groups ---- */

/* Bits of the largest magnitude; any NaN is larger than infinity. */
static inline uint32_t largest_magnitude(const float *x, int32_t count) {
    uint32_t top = 0;
    for (int32_t i = 0; i < count; i++) {
        uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
        top = magnitude > top ? magnitude : top;
    }
    return top;
}

/* Scale of a group of 32: the power of two at least amax * inverse_limit, amax being at least `floor`. */
static inline uint8_t group_scale(uint32_t amax_bits, float floor, float inverse_limit) {
    if (amax_bits >= INFINITY_BITS)
        return E8M0_ONE;
    float amax = bits_float(amax_bits);
    return e8m0_code_at_least((amax > floor ? amax : floor) * inverse_limit);
}

/* 1 / 2^(code - 127) for the codes group_scale gives, 1 to 253. */
static inline float inverse_scale(uint8_t code) {
    return bits_float((254u - code) << 23);
}

static inline void encode_fp8_group(const float *x, uint8_t *codes, uint8_t *scale) {
    *scale = group_scale(largest_magnitude(x, GROUP), 1e-4f, 1.0f / 448.0f);
    float inverse = inverse_scale(*scale);
    for (int32_t i = 0; i < GROUP; i++)
        codes[i] = e4m3_code(x[i] * inverse);
}

static inline void decode_fp8_group(const uint8_t *codes, uint8_t scale, float *out) {
    float factor = e8m0_value(scale);
    for (int32_t i = 0; i < GROUP; i++)
        out[i] = e4m3_value(codes[i]) * factor;
}

static inline void pack_fp4(const float *scaled, int32_t count, uint8_t *codes) {
    uint8_t code[GROUP];
    for (int32_t i = 0; i < count; i++)
        code[i] = e2m1_code(scaled[i]);
    for (int32_t i = 0; i < count / 2; i++)
        codes[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
}

static inline void unpack_fp4(const uint8_t *codes, int32_t count, float factor, float *out) {
    for (int32_t i = 0; i < count / 2; i++) {
        out[2 * i] = e2m1_value(codes[i] & 15) * factor;
        out[2 * i + 1] = e2m1_value(codes[i] >> 4) * factor;
    }
}

static inline void encode_fp4_group(const float *x, uint8_t *codes, uint8_t *scale) {
    uint32_t amax = largest_magnitude(x, GROUP);
    *scale = group_scale(amax, 6 * 0x1p-126f, 1.0f / 6.0f);
    float inverse = inverse_scale(*scale);
    float scaled[GROUP];
    for (int32_t i = 0; i < GROUP; i++)
        scaled[i] = x[i] * inverse;
    pack_fp4(scaled, GROUP, codes);
    if (amax > INFINITY_BITS)
        *scale = E8M0_NAN;
}

static inline void encode_fp4_fine_group(const float *x, uint8_t *codes, uint8_t *scale) {
    float amax = bits_float(largest_magnitude(x, FINE_GROUP));
    amax = amax < 6 * 0x1p-9f ? 6 * 0x1p-9f : amax;
    *scale = e4m3_code(amax / 6.0f);
    float divisor = e4m3_value(*scale);
    float scaled[FINE_GROUP];
    for (int32_t i = 0; i < FINE_GROUP; i++)
        scaled[i] = x[i] / divisor;
    pack_fp4(scaled, FINE_GROUP, codes);
}

/* ---- rows: codes of all columns, then their scales (enum row_encoding) ---- */

static inline void encode_row(enum row_encoding encoding, const float *x, int32_t columns, void *row) {
    uint8_t *codes = row;
    switch (encoding) {
    case ROWS_F32:
        memcpy(row, x, (size_t)columns * sizeof(float));
        break;
    case ROWS_FP8:
        for (int32_t g = 0; g < columns / GROUP; g++)
            encode_fp8_group(x + g * GROUP, codes + g * GROUP, codes + columns + g);
        break;
    case ROWS_FP4:
        for (int32_t g = 0; g < columns / GROUP; g++)
            encode_fp4_group(x + g * GROUP, codes + g * GROUP / 2, codes + columns / 2 + g);
        break;
    case ROWS_FP4_FINE:
        for (int32_t g = 0; g < columns / FINE_GROUP; g++)
            encode_fp4_fine_group(x + g * FINE_GROUP, codes + g * FINE_GROUP / 2, codes + columns / 2 + g);
        break;
    }
}

static inline void decode_row(enum row_encoding encoding, const void *row, int32_t columns, float *out) {
    const uint8_t *codes = row;
    switch (encoding) {
    case ROWS_F32:
        memcpy(out, row, (size_t)columns * sizeof(float));
        break;
    case ROWS_FP8:
        for (int32_t g = 0; g < columns / GROUP; g++)
            decode_fp8_group(codes + g * GROUP, codes[columns + g], out + g * GROUP);
        break;
    case ROWS_FP4:
        for (int32_t g = 0; g < columns / GROUP; g++)
            unpack_fp4(codes + g * GROUP / 2, GROUP, e8m0_value(codes[columns / 2 + g]), out + g * GROUP);
        break;
    case ROWS_FP4_FINE:
        for (int32_t g = 0; g < columns / FINE_GROUP; g++)
            unpack_fp4(codes + g * FINE_GROUP / 2, FINE_GROUP, e4m3_value(codes[columns / 2 + g]),
                out + g * FINE_GROUP);
        break;
    }
}

/* Replaces a row by the values its encoding holds. */
static inline void round_row(enum row_encoding encoding, float *x, int32_t columns) {
    uint8_t codes[GROUP * sizeof(float)]; /* one group and its scale, in any encoding */
    int32_t group = encoding == ROWS_FP4_FINE ? FINE_GROUP : GROUP;
    if (encoding == ROWS_F32)
        return;
    for (int32_t c = 0; c < columns; c += group) {
        encode_row(encoding, x + c, group, codes);
        decode_row(encoding, codes, group, x + c);
    }
}

#endif

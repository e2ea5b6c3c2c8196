/* The number formats of the checkpoint and of rounded activations, as the OCP Microscaling specification names them:
 * E4M3 (FP8), E2M1 (FP4), E8M0 (power-of-two scale), and BF16: single numbers and the choice of scales, for all backends.
 *
 * Group rounding: FP8 and FP4 with one E8M0 scale per 32 columns, the smallest power of two that is at least
 * amax / 448 or amax / 6; FP4 "fine" with one E4M3 scale per 16 columns, amax / 6 rounded. A group that holds an
 * infinity or a NaN has the scale 1 (FP8, FP4); FP8 keeps its NaNs, an FP4 group with a NaN becomes NaN as a whole.
 *
 * C and CUDA C. A backend whose compiler needs a word before functions defines NUMBER_FUNCTION first.
 */
#ifndef NOCTURNE_NUMBER_FORMATS_H
#define NOCTURNE_NUMBER_FORMATS_H

#include <stdint.h> /* uint8_t, uint32_t */
#include <string.h> /* memcpy */

#ifndef NUMBER_FUNCTION
#define NUMBER_FUNCTION static inline
#endif

enum {
    GROUP = 32,      /* columns of an E8M0 scale */
    FINE_GROUP = 16, /* columns of an E4M3 scale */
    E8M0_ONE = 127,
    E8M0_NAN = 255,
    E4M3_NAN = 127,
};

#define INFINITY_BITS 0x7f800000u

NUMBER_FUNCTION uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

NUMBER_FUNCTION float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- single numbers ---- */

NUMBER_FUNCTION float bf16_value(uint16_t code) {
    return bits_float((uint32_t)code << 16);
}

NUMBER_FUNCTION float e4m3_value(uint8_t code) {
    uint32_t magnitude = code & 127u;
    float normal = bits_float((magnitude << 20) + (120u << 23));
    float denormal = (float)(int32_t)magnitude * 0x1p-9f;
    float value = magnitude < 8 ? denormal : normal;
    uint32_t bits = magnitude == E4M3_NAN ? 0x7fc00000u : float_bits(value);
    return bits_float(bits | (uint32_t)(code & 128u) << 24);
}

/* Nearest E4M3, ties to even, clipped to +-448; NaN stays. */
NUMBER_FUNCTION uint8_t e4m3_code(float value) {
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

NUMBER_FUNCTION float e2m1_value(uint8_t code) {
    uint32_t magnitude = code & 7u;
    float small = (float)(int32_t)magnitude * 0.5f; /* 0 and 0.5, the denormal */
    float normal = bits_float((magnitude << 22) + (126u << 23));
    float value = magnitude < 2 ? small : normal;
    return bits_float(float_bits(value) | (uint32_t)(code & 8u) << 28);
}

/* Nearest E2M1, ties to the even code, clipped to +-6. */
NUMBER_FUNCTION uint8_t e2m1_code(float value) {
    uint32_t bits = float_bits(value);
    float m = bits_float(bits & 0x7fffffffu);
    uint32_t code = (uint32_t)(m > 0.25f) + (uint32_t)(m >= 0.75f) + (uint32_t)(m > 1.25f) +
                    (uint32_t)(m >= 1.75f) + (uint32_t)(m > 2.5f) + (uint32_t)(m >= 3.5f) +
                    (uint32_t)(m > 5.0f);
    return (uint8_t)(code | (bits >> 28 & 8u));
}

/* 2^(code - 127) */
NUMBER_FUNCTION float e8m0_value(uint8_t code) {
    uint32_t bits = code == 0 ? 0x00400000u : (uint32_t)code << 23;
    return bits_float(code == E8M0_NAN ? 0x7fc00000u : bits);
}

/* The smallest power of two >= value, which is positive and normal. */
NUMBER_FUNCTION uint8_t e8m0_code_at_least(float value) {
    uint32_t bits = float_bits(value);
    return (uint8_t)((bits >> 23) + ((bits & 0x7fffffu) != 0));
}

/* ---- scales of groups ---- */

/* Scale of a group of 32: the power of two at least amax * inverse_limit, amax being at least `floor`. */
NUMBER_FUNCTION uint8_t group_scale(uint32_t amax_bits, float floor, float inverse_limit) {
    if (amax_bits >= INFINITY_BITS)
        return E8M0_ONE;
    float amax = bits_float(amax_bits);
    return e8m0_code_at_least((amax > floor ? amax : floor) * inverse_limit);
}

/* 1 / 2^(code - 127) for the codes group_scale gives, 1 to 253. */
NUMBER_FUNCTION float inverse_scale(uint8_t code) {
    return bits_float((254u - code) << 23);
}

#endif

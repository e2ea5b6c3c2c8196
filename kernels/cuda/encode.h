/* Encoding of rows four columns a thread, so that a kernel that has made a row's values can encode them where they are.
 *
 * A scale group is 8 neighbouring lanes (32 columns) or 4 (16): columns are a multiple of 32, so groups never cross warps. The
 * bytes are those of the CPU backend's encode_row, NaNs and infinities included.
 */
#ifndef NOCTURNE_CUDA_ENCODE_H
#define NOCTURNE_CUDA_ENCODE_H

#include "kernels/cuda/functions.h"

struct encoded_four {
    uint32_t codes; /* FP8: a byte a column; FP4: a nibble a column, in the low half */
    uint8_t scale;  /* of the group, in all its lanes */
};

/* Bits of the largest magnitude among the fours of `lanes` neighbouring lanes. All lanes of the warp take part. */
template <int lanes> __device__ static inline uint32_t largest_of_lanes(const float v[FOUR]) {
    uint32_t top = 0;
    for (int32_t i = 0; i < FOUR; i++) {
        uint32_t magnitude = float_bits(v[i]) & 0x7fffffffu;
        top = magnitude > top ? magnitude : top;
    }
    for (int32_t half = 1; half < lanes; half *= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, top, half);
        top = other > top ? other : top;
    }
    return top;
}

/* Values that are not finite keep their bits: a product may change a NaN's sign, which the codes show. */
__device__ static inline float scaled_value(float value, uint32_t amax_bits, float inverse) {
    return amax_bits >= INFINITY_BITS ? value : value * inverse;
}

__device__ static inline struct encoded_four encode_fp8_four(const float v[FOUR]) {
    uint32_t amax = largest_of_lanes<GROUP / FOUR>(v);
    struct encoded_four out = {0, group_scale(amax, 1e-4f, 1.0f / 448.0f)};
    float inverse = inverse_scale(out.scale);
    for (int32_t i = 0; i < FOUR; i++)
        out.codes |= (uint32_t)e4m3_code(scaled_value(v[i], amax, inverse)) << 8 * i;
    return out;
}

__device__ static inline struct encoded_four encode_fp4_four(const float v[FOUR]) {
    uint32_t amax = largest_of_lanes<GROUP / FOUR>(v);
    struct encoded_four out = {0, group_scale(amax, 6 * 0x1p-126f, 1.0f / 6.0f)};
    float inverse = inverse_scale(out.scale);
    for (int32_t i = 0; i < FOUR; i++)
        out.codes |= (uint32_t)e2m1_code(scaled_value(v[i], amax, inverse)) << 4 * i;
    if (amax > INFINITY_BITS)
        out.scale = E8M0_NAN;
    return out;
}

/* In a group with a NaN the divisor is one: a quotient has the value's sign if that is NaN itself, else none. */
__device__ static inline float fine_quotient(float value, uint32_t amax_bits, float divisor) {
    if (amax_bits <= INFINITY_BITS)
        return value / divisor;
    return (float_bits(value) & 0x7fffffffu) > INFINITY_BITS ? value : 0.0f;
}

__device__ static inline struct encoded_four encode_fp4_fine_four(const float v[FOUR]) {
    uint32_t amax_bits = largest_of_lanes<FINE_GROUP / FOUR>(v);
    float amax = bits_float(amax_bits);
    amax = amax < 6 * 0x1p-9f ? 6 * 0x1p-9f : amax;
    struct encoded_four out = {0, amax_bits > INFINITY_BITS ? (uint8_t)E4M3_NAN : e4m3_code(amax / 6.0f)};
    float divisor = e4m3_value(out.scale);
    for (int32_t i = 0; i < FOUR; i++)
        out.codes |= (uint32_t)e2m1_code(fine_quotient(v[i], amax_bits, divisor)) << 4 * i;
    return out;
}

/* The code of four columns; ROWS_F32 has none. All lanes of the warp take part, with zeros where there are no columns. */
template <enum row_encoding encoding>
__device__ static inline struct encoded_four encode_four(const float v[FOUR]) {
    if (encoding == ROWS_FP8)
        return encode_fp8_four(v);
    if (encoding == ROWS_FP4)
        return encode_fp4_four(v);
    return encode_fp4_fine_four(v);
}

/* The values of a code. */
template <enum row_encoding encoding>
__device__ static inline void decode_four(struct encoded_four code, float v[FOUR]) {
    float factor = encoding == ROWS_FP4_FINE ? e4m3_value(code.scale) : e8m0_value(code.scale);
    for (int32_t i = 0; i < FOUR; i++)
        v[i] = encoding == ROWS_FP8 ? e4m3_value((uint8_t)(code.codes >> 8 * i)) * factor
                                    : e2m1_value((uint8_t)(code.codes >> 4 * i & 15)) * factor;
}

/* ---- bytes of a row ---- */

/* Whether the codes of four columns can be met as one word: rows begin and follow each other on multiples of 4 bytes. */
static inline bool has_whole_codes(const void *data, int64_t stride) {
    return ((uintptr_t)data | (uintptr_t)stride) % 4 == 0;
}

/* Where the scale of column c lies in a row of `columns`. */
template <enum row_encoding encoding>
__device__ static inline int32_t scale_offset(int32_t columns, int32_t c) {
    if (encoding == ROWS_FP8)
        return columns + c / GROUP;
    return columns / 2 + c / (encoding == ROWS_FP4 ? (int32_t)GROUP : (int32_t)FINE_GROUP);
}

/* Columns [c, c + 4) of a row; the first lane of a group writes the scale. */
template <enum row_encoding encoding>
__device__ static inline void store_code(
    uint8_t *row, int32_t columns, int32_t c, bool whole, struct encoded_four code) {
    if (encoding == ROWS_FP8) {
        if (whole)
            *(uint32_t *)(row + c) = code.codes;
        for (int32_t i = 0; i < FOUR && !whole; i++)
            row[c + i] = (uint8_t)(code.codes >> 8 * i);
    } else {
        if (whole)
            *(uint16_t *)(row + c / 2) = (uint16_t)code.codes;
        for (int32_t i = 0; i < 2 && !whole; i++)
            row[c / 2 + i] = (uint8_t)(code.codes >> 8 * i);
    }
    if (c % (encoding == ROWS_FP4_FINE ? (int32_t)FINE_GROUP : (int32_t)GROUP) == 0)
        row[scale_offset<encoding>(columns, c)] = code.scale;
}

template <enum row_encoding encoding>
__device__ static inline struct encoded_four load_code(
    const uint8_t *row, int32_t columns, int32_t c, bool whole) {
    struct encoded_four code = {0, row[scale_offset<encoding>(columns, c)]};
    if (encoding == ROWS_FP8) {
        if (whole)
            code.codes = *(const uint32_t *)(row + c);
        for (int32_t i = 0; i < FOUR && !whole; i++)
            code.codes |= (uint32_t)row[c + i] << 8 * i;
    } else {
        if (whole)
            code.codes = *(const uint16_t *)(row + c / 2);
        for (int32_t i = 0; i < 2 && !whole; i++)
            code.codes |= (uint32_t)row[c / 2 + i] << 8 * i;
    }
    return code;
}

#endif

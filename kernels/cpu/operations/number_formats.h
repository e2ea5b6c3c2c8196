/* Groups and rows of the number formats (kernels/number_formats.h). The loops have no branches, so that compilers turn them
 * into vector code.
 */
#ifndef NOCTURNE_CPU_NUMBER_FORMATS_H
#define NOCTURNE_CPU_NUMBER_FORMATS_H

#include "kernels/kernels.h"
#include "kernels/number_formats.h"

#include <math.h> /* NAN */

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

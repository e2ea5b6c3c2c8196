/* Inputs of products as the tensor cores take them: rows of BF16 numbers.
 *
 * Encoded rows (FP8, FP4) are BF16 numbers exactly, their scales applied: one term. A float32 number is the
 * sum of three BF16 numbers, its terms: x = t0 + t1 + t2 with t0 the nearest BF16 number to x, t1 that to the
 * rest, and so on; the sum is exact except near the ends of float32's range. Products with three terms are so
 * as exact as float32 ones. Two terms hold 16 bits and a sign, an error of a few millionths of a sum, about
 * that of adding up thousands of float32 products: enough for the grouped product, the only large one of
 * float32 rows.
 *
 * A row lies in memory as its columns in eights, up to a multiple of eight (zeros follow the last column),
 * each eight in the order 0 4 1 5 2 6 3 7: the order in which packed codes come apart (product_codes.h).
 * Weights of float32 meet rows of float32 in their natural order: 0 terms.
 */
#ifndef NOCTURNE_CUDA_PRODUCT_ROWS_H
#define NOCTURNE_CUDA_PRODUCT_ROWS_H

#include "kernels/cuda/functions.h"
#include "kernels/cuda/tiles.h"

enum { EIGHT = 8, MOST_TERMS = 3, GROUPED_TERMS = 2 };

/* Prepared rows, in device memory. */
struct product_rows {
    uint8_t *values;
    int64_t stride;     /* bytes from row to row */
    int64_t term_bytes; /* from a row's first term to its second */
    int32_t terms;
};

/* Terms of rows of an encoding that meet weights of a format. */
static inline int32_t product_terms(enum row_encoding encoding, enum weight_format format) {
    if (format == WEIGHT_F32)
        return 0;
    return encoding == ROWS_F32 ? MOST_TERMS : 1;
}

/* Of float32 rows in grouped products; fewer for the format that the model has there. */
static inline int32_t grouped_terms(enum weight_format format) {
    bool is_fp8 = format == WEIGHT_FP8_TILE || format == WEIGHT_FP8_ROW;
    return is_fp8 ? GROUPED_TERMS : product_terms(ROWS_F32, format);
}

/* Bytes of a prepared row with all its terms. */
static inline int64_t product_row_bytes(int32_t columns, int32_t terms) {
    int64_t eights = (columns + EIGHT - 1) / EIGHT;
    return terms == 0 ? eights * EIGHT * (int64_t)sizeof(float) : eights * 16 * terms;
}

/* Rows prepared into `memory`, of product_row_bytes for each of `rows`. */
static inline struct product_rows product_rows_at(
    void *memory, int64_t rows, int32_t columns, int32_t terms) {
    int64_t stride = product_row_bytes(columns, terms == 0 ? 0 : 1);
    struct product_rows made = {(uint8_t *)memory, stride, rows * stride, terms};
    return made;
}

/* Where column c of a row stands. */
__device__ static inline int32_t place_in_row(int32_t c) {
    return (c & ~7) | (c & 3) << 1 | (c >> 2 & 1);
}

/* The nearest BF16 number, ties to even; the largest one instead of an infinity for finite numbers. */
__device__ static inline uint16_t nearest_finite(float value) {
    uint32_t bits = float_bits(value);
    uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    if ((bits & 0x7fffffffu) > INFINITY_BITS)
        rounded = bits | 0x00400000u;
    else if ((rounded & INFINITY_BITS) == INFINITY_BITS)
        rounded = bits;
    return (uint16_t)(rounded >> 16);
}

/* The terms of a number. */
template <int terms> __device__ static inline void split_terms(float value, uint16_t term[MOST_TERMS]) {
    term[0] = nearest_finite(value);
    bool is_finite = (float_bits(value) & INFINITY_BITS) != INFINITY_BITS;
    float rest = is_finite ? value - bf16_value(term[0]) : 0.0f;
    for (int i = 1; i < terms; i++) {
        term[i] = nearest_finite(rest);
        rest -= bf16_value(term[i]);
    }
}

/* Columns [c, c + 8) of a prepared row from their values; c is a multiple of 8. */
template <int terms>
__device__ static inline void put_eight(
    const struct product_rows *rows, int64_t row, int32_t c, const float v[EIGHT]) {
    uint8_t *to = rows->values + row * rows->stride;
    if constexpr (terms == 0) {
        store_four((float *)to + c, FOUR, true, v);
        store_four((float *)to + c + FOUR, FOUR, true, v + FOUR);
    } else {
        uint32_t words[terms][4];
        for (int i = 0; i < 4; i++) {
            uint16_t low[MOST_TERMS], high[MOST_TERMS];
            split_terms<terms>(v[i], low);
            split_terms<terms>(v[i + 4], high);
            for (int t = 0; t < terms; t++)
                words[t][i] = low[t] | (uint32_t)high[t] << 16;
        }
        for (int t = 0; t < terms; t++)
            *(uint4 *)(to + t * rows->term_bytes + (int64_t)c * 2) =
                make_uint4(words[t][0], words[t][1], words[t][2], words[t][3]);
    }
}

/* One column of a prepared row. */
__device__ static inline void put_column(
    const struct product_rows *rows, int64_t row, int32_t c, float value) {
    uint8_t *to = rows->values + row * rows->stride;
    if (rows->terms == 0) {
        ((float *)to)[c] = value;
        return;
    }
    uint16_t term[MOST_TERMS];
    split_terms<MOST_TERMS>(value, term);
    for (int t = 0; t < rows->terms; t++)
        *(uint16_t *)(to + t * rows->term_bytes + (int64_t)place_in_row(c) * 2) = term[t];
}

/* ---- reading rows of any encoding ---- */

/* Columns [c, c + 8) of a row, zeros beyond `columns`; `whole`: rows begin on multiples of 16 bytes
 * (float32) or 8. */
__device__ static inline void load_float_eight(
    const uint8_t *row, int32_t columns, int32_t c, bool whole, float v[EIGHT]) {
    const float *from = (const float *)row + c;
    int32_t left = columns - c;
    load_four(from, left, whole && left >= FOUR, v);
    load_four(from + FOUR, left - FOUR, whole && left >= EIGHT, v + FOUR);
}

__device__ static inline void load_fp8_eight(
    const uint8_t *row, int32_t columns, int32_t c, bool whole, float v[EIGHT]) {
    float factor = e8m0_value(row[columns + c / GROUP]);
    uint64_t codes = 0;
    if (whole)
        codes = *(const uint64_t *)(row + c);
    for (int i = 0; i < EIGHT && !whole; i++)
        codes |= (uint64_t)row[c + i] << 8 * i;
    for (int i = 0; i < EIGHT; i++)
        v[i] = e4m3_value((uint8_t)(codes >> 8 * i)) * factor;
}

__device__ static inline void load_fp4_eight(
    const uint8_t *row, int32_t columns, int32_t c, bool is_fine, float v[EIGHT]) {
    const uint8_t *scales = row + columns / 2;
    float factor = is_fine ? e4m3_value(scales[c / FINE_GROUP]) : e8m0_value(scales[c / GROUP]);
    for (int i = 0; i < EIGHT / 2; i++) {
        uint8_t pair = row[c / 2 + i];
        v[2 * i] = e2m1_value(pair & 15u) * factor;
        v[2 * i + 1] = e2m1_value(pair >> 4) * factor;
    }
}

__device__ static inline void load_eight(
    enum row_encoding encoding, const uint8_t *row, int32_t columns, int32_t c, bool whole, float v[EIGHT]) {
    if (encoding == ROWS_F32)
        load_float_eight(row, columns, c, whole, v);
    else if (encoding == ROWS_FP8)
        load_fp8_eight(row, columns, c, whole, v);
    else
        load_fp4_eight(row, columns, c, encoding == ROWS_FP4_FINE, v);
}

/* Rows that are to be prepared. */
struct row_source {
    const uint8_t *data;
    int64_t stride;
    enum row_encoding encoding;
    int32_t columns;
    bool is_whole; /* see load_eight */
};

static inline struct row_source row_source_of(const struct rows *x) {
    struct row_source source = {(const uint8_t *)x->data, x->stride, x->encoding, x->columns, false};
    int32_t vector = x->encoding == ROWS_F32 ? 16 : 8;
    source.is_whole = ((uintptr_t)x->data | (uintptr_t)x->stride) % (uintptr_t)vector == 0;
    return source;
}

enum { PREPARE_THREADS = 128 };

/* The part of row `from` of the source that falls to this thread, as row `to`; gridDim.y parts of
 * PREPARE_THREADS eights. */
template <int terms>
__device__ static inline void prepare_row(
    const struct row_source *source, int64_t from, const struct product_rows *rows, int64_t to) {
    const uint8_t *row = source->data + from * source->stride;
    int32_t first = (int32_t)(blockIdx.y * PREPARE_THREADS + threadIdx.x) * EIGHT;
    for (int32_t c = first; c < source->columns; c += (int32_t)gridDim.y * PREPARE_THREADS * EIGHT) {
        float v[EIGHT];
        load_eight(source->encoding, row, source->columns, c, source->is_whole, v);
        put_eight<terms>(rows, to, c, v);
    }
}

/* The parts of a row, for gridDim.y. */
static inline uint32_t prepare_parts(int32_t columns) {
    uint32_t parts = ((uint32_t)columns + PREPARE_THREADS * EIGHT - 1) / (PREPARE_THREADS * EIGHT);
    return parts < 65535u ? parts : 65535u;
}

#endif

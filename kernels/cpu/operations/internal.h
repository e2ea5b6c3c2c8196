/* What the files of one instruction set share. */
#ifndef NOCTURNE_CPU_INTERNAL_H
#define NOCTURNE_CPU_INTERNAL_H

#include "kernels/cpu/backend.h"
#include "kernels/cpu/operations/number_formats.h"
#include "kernels/cpu/operations/vectors.h"

#include <math.h>    /* sqrtf */
#include <omp.h>     /* omp_get_thread_num */
#include <stdbool.h> /* bool */

/* ---- tables: each file puts its operations into the table ---- */

void FOR_SET(fill_operations)(struct kernels *kernels);
void FOR_SET(fill_products)(struct kernels *kernels);
void FOR_SET(fill_experts)(struct kernels *kernels);
void FOR_SET(fill_rows)(struct kernels *kernels);
void FOR_SET(fill_streams)(struct kernels *kernels);
void FOR_SET(fill_attention)(struct kernels *kernels);
void FOR_SET(fill_choose)(struct kernels *kernels);
void FOR_SET(fill_route)(struct kernels *kernels);
void FOR_SET(fill_vision)(struct kernels *kernels);

/* ---- dot products, the inner part of products, experts and attention (dots.c) ---- */

enum {
    BLOCK_COLUMNS =
        512,        /* columns summed in lanes before their sum is added to the output; a multiple of GROUP */
    TILE_ROWS = 32, /* weight rows decoded at once; a multiple of GROUP */
};

/* out[t * out_stride + r] = sum over c < columns (a multiple of LANES) of x[t][column + c] * w[r * w_stride + c]; with
 * `add` the sum is added to what out holds. */
void FOR_SET(dot_tile)(const float *const *x, int32_t column, int32_t tokens, const float *w,
    int64_t w_stride, int32_t rows, int32_t columns, float *out, int64_t out_stride, bool add);

struct weight_block; /* weights.h */

/* The same on a block's packed weights, decoded in registers: for few tokens. */
void FOR_SET(dot_packed)(const float *const *x, int32_t column, int32_t tokens,
    const struct weight_block *block, int32_t rows, float *out, int64_t out_stride, bool add);

/* Values of a block's first `rows` rows: out[r * stride + c], padded with zeros to a multiple of LANES. */
void FOR_SET(decode_block)(const struct weight_block *block, int32_t rows, float *out, int64_t stride);

/* Rows [row, row + rows) (at most TILE_ROWS) of w times the input rows x, each padded with zeros to a multiple of LANES:
 * out[t * out_stride + r]. tile: scratch of
 * TILE_ROWS * BLOCK_COLUMNS floats. */
void FOR_SET(multiply_rows)(const float *const *x, int32_t tokens, const struct matrix *w, int32_t row,
    int32_t rows, float *out, int64_t out_stride, float *tile);

/* Decodes rows into the scratch area SCRATCH_INPUT, or leaves float32 rows of fitting shape where they are; pointers[t]
 * for t < tokens are the rows, padded with zeros to a multiple of LANES. The pointers lie in scratch too. */
const float *const *FOR_SET(input_rows)(struct stream *stream, const struct rows *x, int32_t tokens);

void FOR_SET(product)(struct stream *stream, const struct rows *x, int32_t tokens, const struct matrix *w,
    float *out, int64_t out_stride); /* kernels.h */

/* One tile of decoded weights per thread. */
static inline float *weight_tiles(struct stream *stream) {
    return stream_scratch(
        stream, SCRATCH_WEIGHTS, (size_t)stream->threads * TILE_ROWS * BLOCK_COLUMNS * sizeof(float));
}

/* ---- rows ---- */

/* x * weight / sqrt(mean(x^2) + eps); weight BF16; in place allowed. */
static inline void norm_row(const float *x, int32_t columns, const uint16_t *weight, float eps, float *out) {
    float factor = 1.0f / sqrtf(sum_of_squares(x, columns) / (float)columns + eps);
    for (int32_t c = 0; c < columns; c += LANES) {
        lanes value = load_part(x + c, columns - c) * factor * load_bf16_part(weight + c, columns - c);
        store_part(out + c, value, columns - c);
    }
}

/* ---- block tables ---- */

/* The encoded row `row` of a sequence. */
static inline uint8_t *block_row(
    const struct block_rows *rows, const struct block_tables *tables, int32_t sequence, int32_t row) {
    int32_t entry = row / rows->rows_per_block - tables->first_block[sequence];
    int32_t block = tables->blocks[(int64_t)sequence * tables->stride + entry];
    return rows->base + block * rows->block_bytes + rows->offset +
           (int64_t)(row % rows->rows_per_block) * row_bytes(rows->encoding, rows->columns);
}

/* This thread's number within its parallel region. */
static inline int32_t thread_number(void) {
    return omp_get_thread_num();
}

/* Small jobs are not worth waking threads for. */
static inline bool is_worth_threads(int64_t elements) {
    return elements > 16384;
}

#endif

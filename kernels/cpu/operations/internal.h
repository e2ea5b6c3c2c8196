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

/* ---- dot products of float32 rows (dots.c) ---- */

enum {
    BLOCK_COLUMNS =
        512,        /* columns summed in lanes before their sum is added to the output, unless a caller of
                       dot_tile chooses others; a multiple of GROUP */
    TILE_ROWS = 32, /* weight rows decoded at once; a multiple of GROUP */
};

/* out[t * out_stride + r] = sum over c < columns (a multiple of LANES) of x[t][column + c] * w[r * w_stride + c]; with
 * `add` the sum is added to what out holds. */
void FOR_SET(dot_tile)(const float *const *x, int32_t column, int32_t tokens, const float *w,
    int64_t w_stride, int32_t rows, int32_t columns, float *out, int64_t out_stride, bool add);

/* Tokens of the next of equal strips of at most `most`: a small last one would keep the multipliers waiting. */
static inline int32_t strip_tokens(int32_t tokens, int32_t most) {
    int32_t strips = (tokens + most - 1) / most;
    return (tokens + strips - 1) / strips;
}

struct weight_block; /* weights.h */

/* Values of a block's first `rows` rows: out[r * stride + c], padded with zeros to a multiple of LANES. */
void FOR_SET(decode_block)(const struct weight_block *block, int32_t rows, float *out, int64_t stride);

/* ---- products with packed weights (multiply_float.c, multiply_bf16.c) ----
 *
 * How input rows must lie in memory depends on the instruction set and on the weights: numbers of which type, columns
 * in which order. prepare_inputs and prepare_part know; the other files only pass the rows on. */

/* Rows prepared for products with weights of one format. */
struct inputs {
    const void *const *rows; /* [tokens] */
    bool is_bf16;            /* BF16 numbers, else float32 */
};

enum {
    PART_COLUMNS = 128, /* columns prepared at once by prepare_part */
    FEW_TOKENS = 6,     /* up to so many, work is cut into few, long items: see item_rows */
};

/* Outputs of one work item, a multiple of `least`, when `runs` runs of `rows` outputs are shared out. Weights that few tokens
 * meet come from memory, whose prefetchers want long streams: about `items` items in all. Else items are small. */
static inline int32_t item_rows(
    bool has_few_tokens, int32_t rows, int32_t runs, int32_t items, int32_t least_rows) {
    int32_t cuts = runs > 0 && items > runs ? (items + runs - 1) / runs : 1;
    return has_few_tokens ? round_up((rows + cuts - 1) / cuts, least_rows) : least_rows;
}

/* Rows `x` prepared for weights of that format, in the scratch area SCRATCH_INPUT (or where they are). */
struct inputs FOR_SET(prepare_inputs)(
    struct stream *stream, const struct rows *x, int32_t tokens, enum weight_format format);

/* Bytes of one prepared row, a multiple of a vector. */
size_t FOR_SET(prepared_bytes)(int32_t columns, bool is_bf16);

/* Columns [column, column + count) of a row, column a multiple of PART_COLUMNS and count at most that: rounded to FP8
 * (count is a multiple of GROUP then) if asked, and put into the prepared row, which is padded with zeros as prepare_inputs does it. values
 * is overwritten. BF16 rows are always rounded. */
void FOR_SET(prepare_part)(enum weight_format format, bool is_bf16, bool round, float *values, int32_t column,
    int32_t count, void *row);

/* Whether rows prepared with that encoding of x for that weight format hold BF16 numbers. */
bool FOR_SET(uses_bf16)(enum row_encoding encoding, enum weight_format format);

/* Rows [row, row + rows) of w times the prepared rows [token, token + tokens): out[t * out_stride + r], t and r counted from
 * `token` and `row`. tile: this thread's part of weight_tiles. */
void FOR_SET(multiply_rows)(const struct inputs *x, int32_t token, int32_t tokens, const struct matrix *w,
    int32_t row, int32_t rows, float *out, int64_t out_stride, void *tile);

void FOR_SET(product)(struct stream *stream, const struct rows *x, int32_t tokens, const struct matrix *w,
    float *out, int64_t out_stride); /* kernels.h */

enum { TILE_BYTES = 352 << 10 }; /* of a tile of decoded weights: four rows of MOST_COLUMNS and more */

/* One tile of decoded weights per thread, TILE_BYTES each. */
static inline uint8_t *weight_tiles(struct stream *stream) {
    return stream_scratch(stream, SCRATCH_WEIGHTS, (size_t)stream->threads * TILE_BYTES);
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

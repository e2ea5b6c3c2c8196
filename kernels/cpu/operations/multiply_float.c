/* Products with packed weights in float32: weights are decoded in registers for few tokens, into a tile for many. Rows are
 * prepared as float32 numbers in their natural order. */
#include "kernels/cpu/operations/fold.h"
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

#ifndef HAVE_BF16

enum { PACKED_TOKENS = 4 }; /* up to so many, weights are decoded in registers */

/* ---- few tokens ---- */

enum { PACKED_ROWS = 4, PACKED_MICRO_TOKENS = 2 };

/* One step of tokens x rows sums. */
static inline __attribute__((always_inline)) void packed_step(const float *const *input, int32_t c,
    lanes (*weight)[STEP_VECTORS], lanes (*sum)[PACKED_ROWS], int32_t vectors, const int32_t tokens,
    const int32_t rows) {
#pragma GCC unroll 8
    for (int32_t v = 0; v < vectors; v++)
#pragma GCC unroll 4
        for (int32_t t = 0; t < tokens; t++) {
            lanes value = load(input[t] + c + v * LANES);
#pragma GCC unroll 4
            for (int32_t r = 0; r < rows; r++)
                sum[t][r] = multiply_add(value, weight[r][v], sum[t][r]);
        }
}

/* As micro_tile, from row `row` of the block on; format, tokens and rows are constant where it is called. */
static inline __attribute__((always_inline)) void packed_micro(const enum weight_format format,
    const float *const *x, int32_t column, const struct weight_block *block, int32_t row, float *out,
    int64_t out_stride, bool add, const int32_t tokens, const int32_t rows) {
    lanes sum[PACKED_MICRO_TOKENS][PACKED_ROWS], weight[PACKED_ROWS][STEP_VECTORS];
    const float *input[PACKED_MICRO_TOKENS];
#pragma GCC unroll 4
    for (int32_t t = 0; t < tokens; t++) {
        input[t] = x[t] + column;
#pragma GCC unroll 4
        for (int32_t r = 0; r < rows; r++)
            sum[t][r] = splat(0);
    }
    const uint8_t *codes = block->codes + row * block->stride;
    const float *factors = block->factors + row * block->factor_stride;
    int32_t c = 0;
    for (; c + GROUP <= block->columns; c += GROUP) {
#pragma GCC unroll 4
        for (int32_t r = 0; r < rows; r++)
            decode_step(format, codes + r * block->stride, c, factors + r * block->factor_stride, weight[r]);
        packed_step(input, c, weight, sum, STEP_VECTORS, tokens, rows);
    }
    if (c < block->columns) {
        for (int32_t r = 0; r < rows; r++)
            decode_last_step(format, codes + r * block->stride, c, block->columns - c, weight[r]);
        packed_step(input, c, weight, sum, (block->columns - c + LANES - 1) / LANES, tokens, rows);
    }
#pragma GCC unroll 4
    for (int32_t t = 0; t < tokens; t++) {
        float folded[PACKED_ROWS];
        if (rows == PACKED_ROWS)
            fold_four(sum[t], folded);
        else
            folded[0] = sum_lanes(sum[t][0]);
        for (int32_t r = 0; r < rows; r++)
            put(out + t * out_stride + row + r, folded[r], add);
    }
}

static inline __attribute__((always_inline)) void packed_strip(const enum weight_format format,
    const float *const *x, int32_t column, const struct weight_block *block, int32_t rows, float *out,
    int64_t out_stride, bool add, const int32_t tokens) {
    int32_t r = 0;
    for (; r + PACKED_ROWS <= rows; r += PACKED_ROWS)
        packed_micro(format, x, column, block, r, out, out_stride, add, tokens, PACKED_ROWS);
    for (; r < rows; r++)
        packed_micro(format, x, column, block, r, out, out_stride, add, tokens, 1);
}

static void dot_packed(const float *const *x, int32_t column, int32_t tokens,
    const struct weight_block *block, int32_t rows, float *out, int64_t out_stride, bool add) {
    for (int32_t t = 0; t < tokens; t += PACKED_MICRO_TOKENS) {
        float *to = out + t * out_stride;
#define PACKED_PAIR(format) packed_strip(format, x + t, column, block, rows, to, out_stride, add, 2)
#define PACKED_ONE(format) packed_strip(format, x + t, column, block, rows, to, out_stride, add, 1)
        if (tokens - t >= PACKED_MICRO_TOKENS)
            WITH_FORMAT(block, PACKED_PAIR)
        else
            WITH_FORMAT(block, PACKED_ONE)
    }
}

/* ---- a tile of outputs ---- */

static void multiply_tile(const float *const *x, int32_t tokens, const struct matrix *w, int32_t row,
    int32_t rows, float *out, int64_t out_stride, float *tile) {
    for (int32_t column = 0; column < w->columns; column += BLOCK_COLUMNS) {
        struct weight_block block;
        open_block(w, row, rows, column, least(BLOCK_COLUMNS, w->columns - column), &block);
        if (tokens <= PACKED_TOKENS) {
            dot_packed(x, column, tokens, &block, rows, out, out_stride, column > 0);
            continue;
        }
        FOR_SET(decode_block)(&block, rows, tile, BLOCK_COLUMNS);
        FOR_SET(dot_tile)
        (x, column, tokens, tile, BLOCK_COLUMNS, rows, round_up(block.columns, LANES), out, out_stride,
            column > 0);
    }
}

void FOR_SET(multiply_rows)(const struct inputs *x, int32_t token, int32_t tokens, const struct matrix *w,
    int32_t row, int32_t rows, float *out, int64_t out_stride, void *tile) {
    for (int32_t r = 0; r < rows; r += TILE_ROWS)
        multiply_tile((const float *const *)x->rows + token, tokens, w, row + r, least(TILE_ROWS, rows - r),
            out + r, out_stride, tile);
}

/* ---- inputs ---- */

/* Decodes rows into the scratch area SCRATCH_INPUT, or leaves float32 rows of fitting shape where they are; pointers[t] for
 * t < tokens are the rows, padded with zeros to a multiple of LANES. The pointers lie in scratch too. */
static const float *const *input_rows(struct stream *stream, const struct rows *x, int32_t tokens) {
    int32_t padded = round_up(x->columns, LANES);
    bool in_place = x->encoding == ROWS_F32 && padded == x->columns;
    size_t pointer_bytes = ((size_t)tokens * sizeof(float *) + 63) / 64 * 64;
    size_t value_bytes = in_place ? 0 : (size_t)tokens * (size_t)padded * sizeof(float);
    const float **pointers = stream_scratch(stream, SCRATCH_INPUT, pointer_bytes + value_bytes);
    float *values = (float *)((uint8_t *)pointers + pointer_bytes);
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (!in_place && is_worth_threads((int64_t)tokens * padded))
    for (int32_t t = 0; t < tokens; t++) {
        const uint8_t *from = (const uint8_t *)x->data + t * x->stride;
        if (in_place) {
            pointers[t] = (const float *)from;
            continue;
        }
        float *to = values + (int64_t)t * padded;
        decode_row_fast(x->encoding, from, x->columns, to);
        for (int32_t c = x->columns; c < padded; c++)
            to[c] = 0;
        pointers[t] = to;
    }
    return pointers;
}

struct inputs FOR_SET(prepare_inputs)(
    struct stream *stream, const struct rows *x, int32_t tokens, enum weight_format format) {
    (void)format;
    return (struct inputs){(const void *const *)input_rows(stream, x, tokens), false};
}

bool FOR_SET(uses_bf16)(enum row_encoding encoding, enum weight_format format) {
    (void)encoding;
    (void)format;
    return false;
}

size_t FOR_SET(prepared_bytes)(int32_t columns, bool is_bf16) {
    (void)is_bf16;
    return (size_t)round_up(columns, LANES) * sizeof(float);
}

void FOR_SET(prepare_part)(enum weight_format format, bool is_bf16, bool round, float *values, int32_t column,
    int32_t count, void *row) {
    (void)format;
    (void)is_bf16;
    if (round)
        round_row(ROWS_FP8, values, count);
    float *to = (float *)row + column;
    memcpy(to, values, (size_t)count * sizeof(float));
    for (int32_t c = count; c % LANES != 0; c++)
        to[c] = 0;
}

#endif

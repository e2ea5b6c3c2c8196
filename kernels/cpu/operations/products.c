/* Products of rows with packed weights. */
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

enum {
    CHUNK_TOKENS = 192, /* tokens of one work item: enough to pay for decoding its weights */
    PACKED_TOKENS = 4,  /* up to so many, weights are decoded in registers */
};

/* ---- a tile of outputs ---- */

void FOR_SET(multiply_rows)(const float *const *x, int32_t tokens, const struct matrix *w, int32_t row,
    int32_t rows, float *out, int64_t out_stride, float *tile) {
    for (int32_t column = 0; column < w->columns; column += BLOCK_COLUMNS) {
        struct weight_block block;
        open_block(w, row, rows, column, least(BLOCK_COLUMNS, w->columns - column), &block);
        if (tokens <= PACKED_TOKENS) {
            FOR_SET(dot_packed)(x, column, tokens, &block, rows, out, out_stride, column > 0);
            continue;
        }
        FOR_SET(decode_block)(&block, rows, tile, BLOCK_COLUMNS);
        FOR_SET(dot_tile)
        (x, column, tokens, tile, BLOCK_COLUMNS, rows, round_up(block.columns, LANES), out, out_stride,
            column > 0);
    }
}

/* ---- inputs ---- */

const float *const *FOR_SET(input_rows)(struct stream *stream, const struct rows *x, int32_t tokens) {
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

/* ---- operations ---- */

void FOR_SET(product)(struct stream *stream, const struct rows *x, int32_t tokens, const struct matrix *w,
    float *out, int64_t out_stride) {
    if (tokens <= 0)
        return;
    const float *const *input = FOR_SET(input_rows)(stream, x, tokens);
    float *tiles = weight_tiles(stream);
    int32_t row_tiles = (w->rows + TILE_ROWS - 1) / TILE_ROWS;
    int32_t chunks = (tokens + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
#pragma omp parallel num_threads(                                                                            \
    stream->threads) if (is_worth_threads((int64_t)tokens * w->rows * w->columns))
    {
        float *tile = tiles + (int64_t)thread_number() * TILE_ROWS * BLOCK_COLUMNS;
#pragma omp for schedule(dynamic)
        for (int32_t task = 0; task < row_tiles * chunks; task++) {
            int32_t row = task % row_tiles * TILE_ROWS;
            int32_t token = task / row_tiles * CHUNK_TOKENS;
            FOR_SET(multiply_rows)
            (input + token, least(CHUNK_TOKENS, tokens - token), w, row, least(TILE_ROWS, w->rows - row),
                out + token * out_stride + row, out_stride, tile);
        }
    }
}

static void grouped_product(struct stream *stream, const float *x, int32_t tokens, int32_t groups,
    const struct matrix *w, float *out) {
    if (tokens <= 0)
        return;
    /* a row for each (group, token), so that the pointers of one group's tokens stand side by side */
    const float **pointers =
        stream_scratch(stream, SCRATCH_TASKS, (size_t)tokens * (size_t)groups * sizeof(float *));
    struct rows rows = {(void *)x, ROWS_F32, w->columns, (int64_t)w->columns * 4};
    const float *const *input = FOR_SET(input_rows)(stream, &rows, tokens * groups);
    for (int32_t g = 0; g < groups; g++)
        for (int32_t t = 0; t < tokens; t++)
            pointers[g * tokens + t] = input[t * groups + g];
    float *tiles = weight_tiles(stream);
    int32_t group_rows = w->rows / groups;
    int32_t row_tiles = (group_rows + TILE_ROWS - 1) / TILE_ROWS;
    int32_t chunks = (tokens + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
#pragma omp parallel num_threads(                                                                            \
    stream->threads) if (is_worth_threads((int64_t)tokens * w->rows * w->columns))
    {
        float *tile = tiles + (int64_t)thread_number() * TILE_ROWS * BLOCK_COLUMNS;
#pragma omp for schedule(dynamic)
        for (int32_t task = 0; task < groups * row_tiles * chunks; task++) {
            int32_t group = task % groups;
            int32_t row = task / groups % row_tiles * TILE_ROWS;
            int32_t token = task / groups / row_tiles * CHUNK_TOKENS;
            FOR_SET(multiply_rows)
            (pointers + group * tokens + token, least(CHUNK_TOKENS, tokens - token), w,
                group * group_rows + row, least(TILE_ROWS, group_rows - row),
                out + (int64_t)token * w->rows + group * group_rows + row, w->rows, tile);
        }
    }
}

void FOR_SET(fill_products)(struct kernels *kernels) {
    kernels->product = FOR_SET(product);
    kernels->grouped_product = grouped_product;
}

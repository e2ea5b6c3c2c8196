/* Products of rows with packed weights. */
#include "kernels/cpu/operations/internal.h"

enum {
    CHUNK_TOKENS = 192, /* tokens of one work item: enough to pay for decoding its weights */
    LEAST_SHARE = 64,   /* tokens of a thread, when tokens are shared out */
    LEAST_ROWS = 64,    /* outputs of one work item; a multiple of GROUP */
};

/* One product: what the threads share. */
struct product_call {
    struct inputs x; /* [groups, tokens] */
    int32_t tokens, groups;
    const struct matrix *w; /* [groups * group_rows, columns] */
    float *out;
    int64_t out_stride;
};

/* Tokens [token, token + tokens) times outputs [row, row + rows) of a group. */
static void multiply_item(const struct product_call *call, int32_t group, int32_t row, int32_t rows,
    int32_t token, int32_t tokens, uint8_t *tile) {
    int32_t first = group * (call->w->rows / call->groups) + row;
    FOR_SET(multiply_rows)
    (&call->x, group * call->tokens + token, tokens, call->w, first, rows,
        call->out + token * call->out_stride + first, call->out_stride, tile);
}

/* Outputs shared out among the threads. */
static void multiply_by_rows(const struct product_call *call, const struct stream *stream, uint8_t *tiles) {
    int32_t tokens = call->tokens, group_rows = call->w->rows / call->groups;
    bool has_few = tokens <= FEW_TOKENS;
    int32_t rows = item_rows(has_few, group_rows, call->groups, stream->threads, has_few ? 4 : LEAST_ROWS);
    int32_t row_items = (group_rows + rows - 1) / rows, chunks = (tokens + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
#pragma omp parallel num_threads(                                                                            \
    stream->threads) if (is_worth_threads((int64_t)tokens * call->w->rows * call->w->columns))
    {
        uint8_t *tile = tiles + (int64_t)thread_number() * TILE_BYTES;
#pragma omp for schedule(dynamic) nowait
        for (int32_t item = 0; item < call->groups * row_items * chunks; item++) {
            int32_t row = item % row_items * rows, token = item / row_items / call->groups * CHUNK_TOKENS;
            multiply_item(call, item / row_items % call->groups, row, least(rows, group_rows - row), token,
                least(CHUNK_TOKENS, tokens - token), tile);
        }
    }
}

/* Tokens shared out among the threads, as the operations on rows do it: each finds its inputs in its own cache, which is worth
 * decoding the weights once per thread. */
static void multiply_by_tokens(const struct product_call *call, const struct stream *stream, uint8_t *tiles) {
    int32_t share = (call->tokens + stream->threads - 1) / stream->threads;
    int32_t group_rows = call->w->rows / call->groups;
#pragma omp parallel for num_threads(stream->threads) schedule(static)
    for (int32_t thread = 0; thread < stream->threads; thread++) {
        int32_t end = least((thread + 1) * share, call->tokens), tokens;
        for (int32_t token = thread * share; token < end; token += tokens) {
            tokens = strip_tokens(end - token, CHUNK_TOKENS);
            for (int32_t group = 0; group < call->groups; group++)
                multiply_item(
                    call, group, 0, group_rows, token, tokens, tiles + (int64_t)thread * TILE_BYTES);
        }
    }
}

static void multiply(struct stream *stream, const struct product_call *call) {
    uint8_t *tiles = weight_tiles(stream);
    if (stream->threads > 1 && call->tokens >= LEAST_SHARE * stream->threads)
        multiply_by_tokens(call, stream, tiles);
    else
        multiply_by_rows(call, stream, tiles);
}

void FOR_SET(product)(struct stream *stream, const struct rows *x, int32_t tokens, const struct matrix *w,
    float *out, int64_t out_stride) {
    if (tokens <= 0)
        return;
    struct product_call call = {
        FOR_SET(prepare_inputs)(stream, x, tokens, w->format), tokens, 1, w, out, out_stride};
    multiply(stream, &call);
}

static void grouped_product(struct stream *stream, const float *x, int32_t tokens, int32_t groups,
    const struct matrix *w, float *out) {
    if (tokens <= 0)
        return;
    struct rows rows = {(void *)x, ROWS_F32, w->columns, (int64_t)w->columns * 4};
    struct inputs input = FOR_SET(prepare_inputs)(stream, &rows, tokens * groups, w->format);
    /* so that the rows of one group's tokens stand side by side */
    const void **pointers =
        stream_scratch(stream, SCRATCH_TASKS, (size_t)tokens * (size_t)groups * sizeof(void *));
    for (int32_t g = 0; g < groups; g++)
        for (int32_t t = 0; t < tokens; t++)
            pointers[g * tokens + t] = input.rows[t * groups + g];
    struct product_call call = {{pointers, input.is_bf16}, tokens, groups, w, out, w->rows};
    multiply(stream, &call);
}

void FOR_SET(fill_products)(struct kernels *kernels) {
    kernels->product = FOR_SET(product);
    kernels->grouped_product = grouped_product;
}

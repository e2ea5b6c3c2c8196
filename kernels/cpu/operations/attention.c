/* Sparse attention: one latent row per position is key and value of all heads.
 *
 * A batch of tokens at a time: the visible rows of each token are decoded to float32, then heads are shared out among
 * the threads. Per (token, head): dot products as in dots.c; a softmax whose sum runs in lanes over the rows; a
 * weighted sum of the rows, one multiply-add after the other in ascending order of the list (window rows, then
 * chosen rows).
 */
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/softmax.h"
#include "kernels/cpu/operations/weights.h"

#include <math.h> /* INFINITY, sqrtf */

enum { KEY_TILE = 32 }; /* rows that meet all heads of a work item while they are in the cache */

#ifdef HAVE_AVX512
enum { SUM_HEADS = 6, SUM_VECTORS = 4 };
#else
enum { SUM_HEADS = 3, SUM_VECTORS = 4 };
#endif

/* One call: what the threads share. */
struct attention_call {
    const float *const *q; /* [T * heads], padded */
    int32_t heads, columns, padded;
    int64_t row_stride; /* floats from decoded row to row: not a power of two, which would crowd cache sets */
    const int32_t *sequence, *position, *visible_from;
    const struct block_rows *window, *latents;
    const struct block_tables *window_tables, *latent_tables;
    const int32_t *chosen;
    int32_t top_k;
    const float *sink;
    float *out;
    int32_t most_rows;    /* of any token, rounded up to LANES */
    float *rows, *scores; /* scratch: [batch, most_rows, row_stride], [batch, heads, most_rows] */
};

/* ---- rows ---- */

static int32_t window_count(const struct attention_call *call, int32_t token) {
    int32_t count = call->position[token] - call->visible_from[token] + 1;
    return count > 0 ? count : 0;
}

static int32_t chosen_count(const struct attention_call *call, int32_t token) {
    int32_t count = 0;
    if (call->latents == NULL)
        return 0;
    while (count < call->top_k && call->chosen[(int64_t)token * call->top_k + count] >= 0)
        count++;
    return count;
}

/* Row `index` of a token's list. */
static void decode_visible_row(const struct attention_call *call, int32_t token, int32_t index, float *out) {
    int32_t sequence = call->sequence[token];
    int32_t window = window_count(call, token);
    const struct block_rows *rows = index < window ? call->window : call->latents;
    const struct block_tables *tables = index < window ? call->window_tables : call->latent_tables;
    int32_t row = index < window ? call->visible_from[token] + index
                                 : call->chosen[(int64_t)token * call->top_k + index - window];
    decode_row_fast(rows->encoding, block_row(rows, tables, sequence, row), call->columns, out);
    for (int32_t c = call->columns; c < call->padded; c++)
        out[c] = 0;
}

/* ---- weighted sum ---- */

/* out[h][c] = sum over k of weight[h][k] * rows[k][c] for `heads` heads and `vectors` vectors of columns, both constant
 * where it is called. */
static inline __attribute__((always_inline)) void sum_tile(const float *weight, int64_t weight_stride,
    const float *rows, int64_t row_stride, int32_t count, lanes (*sum)[SUM_VECTORS], const int32_t heads,
    const int32_t vectors) {
#pragma GCC unroll 8
    for (int32_t h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int32_t v = 0; v < vectors; v++)
            sum[h][v] = splat(0);
    for (int32_t k = 0; k < count; k++) {
        lanes value[SUM_VECTORS];
#pragma GCC unroll 8
        for (int32_t v = 0; v < vectors; v++)
            value[v] = load(rows + k * row_stride + v * LANES);
#pragma GCC unroll 8
        for (int32_t h = 0; h < heads; h++) {
            lanes factor = splat(weight[h * weight_stride + k]);
#pragma GCC unroll 8
            for (int32_t v = 0; v < vectors; v++)
                sum[h][v] = multiply_add(factor, value[v], sum[h][v]);
        }
    }
}

/* Columns [column, column + vectors * LANES) of the outputs of `heads` heads; vectors is SUM_VECTORS or 1. */
static void sum_strip(const float *weight, int64_t weight_stride, const float *rows, int64_t row_stride,
    int32_t count, int32_t heads, int32_t column, int32_t vectors, int32_t columns, float *out) {
    int32_t now;
    for (int32_t h = 0; h < heads; h += now) {
        lanes sum[SUM_HEADS][SUM_VECTORS];
        const float *w = weight + h * weight_stride, *first = rows + column;
        now = heads - h >= SUM_HEADS ? SUM_HEADS : heads - h >= 2 ? 2 : 1;
        if (vectors == 1) {
            now = 1;
            sum_tile(w, weight_stride, first, row_stride, count, sum, 1, 1);
        } else if (now == SUM_HEADS) {
            sum_tile(w, weight_stride, first, row_stride, count, sum, SUM_HEADS, SUM_VECTORS);
        } else if (now == 2) {
            sum_tile(w, weight_stride, first, row_stride, count, sum, 2, SUM_VECTORS);
        } else {
            sum_tile(w, weight_stride, first, row_stride, count, sum, 1, SUM_VECTORS);
        }
        for (int32_t i = 0; i < now; i++)
            for (int32_t v = 0; v < vectors; v++)
                store_part(out + (int64_t)(h + i) * columns + column + v * LANES, sum[i][v],
                    columns - column - v * LANES);
    }
}

/* Heads [head, head + heads) of one token; slot: its place in the batch. */
static void attend_heads(
    const struct attention_call *call, int32_t token, int32_t slot, int32_t head, int32_t heads) {
    int32_t count = window_count(call, token) + chosen_count(call, token);
    int32_t most = call->most_rows;
    const float *rows = call->rows + (int64_t)slot * most * call->row_stride;
    float *scores = call->scores + ((int64_t)slot * call->heads + head) * most;
    for (int32_t k = 0; k < count; k += KEY_TILE)
        for (int32_t c = 0; c < call->padded; c += BLOCK_COLUMNS)
            FOR_SET(dot_tile)
    (call->q + (int64_t)token * call->heads + head, c, heads, rows + k * call->row_stride + c,
        call->row_stride, least(KEY_TILE, count - k), least(BLOCK_COLUMNS, call->padded - c), scores + k,
        most, c > 0);
    float scale = 1.0f / sqrtf((float)call->columns);
    for (int32_t h = 0; h < heads; h++)
        softmax_with_sink(
            scores + (int64_t)h * most, count, round_up(count, LANES), scale, call->sink[head + h]);
    float *out = call->out + ((int64_t)token * call->heads + head) * call->columns;
    for (int32_t c = 0; c < call->padded;) {
        int32_t vectors = call->padded - c >= SUM_VECTORS * LANES ? SUM_VECTORS : 1;
        sum_strip(scores, most, rows, call->row_stride, count, heads, c, vectors, call->columns, out);
        c += vectors * LANES;
    }
}

/* ---- the operation ---- */

/* Tokens [begin, begin + count), count <= batch. Called by all threads of a parallel region. */
static void attend_batch(
    const struct attention_call *call, int32_t begin, int32_t count, int32_t item_heads) {
    int32_t most = call->most_rows;
    int32_t items = (call->heads + item_heads - 1) / item_heads;
    int32_t row_items = (most + KEY_TILE - 1) / KEY_TILE;
#pragma omp for schedule(dynamic)
    for (int32_t item = 0; item < count * row_items; item++) {
        int32_t slot = item / row_items, first = item % row_items * KEY_TILE;
        int32_t rows = window_count(call, begin + slot) + chosen_count(call, begin + slot);
        for (int32_t k = first; k < least(first + KEY_TILE, rows); k++)
            decode_visible_row(
                call, begin + slot, k, call->rows + ((int64_t)slot * most + k) * call->row_stride);
    }
#pragma omp for schedule(dynamic)
    for (int32_t item = 0; item < count * items; item++) {
        int32_t slot = item / items, head = item % items * item_heads;
        attend_heads(call, begin + slot, slot, head, least(item_heads, call->heads - head));
    }
}

static void attend(struct stream *stream, const float *q, int32_t tokens, int32_t heads,
    const int32_t *sequence, const int32_t *position, const int32_t *visible_from,
    const struct block_rows *window, const struct block_tables *window_tables,
    const struct block_rows *latents, const struct block_tables *latent_tables, const int32_t *chosen,
    int32_t top_k, const float *sink, float *out) {
    if (tokens <= 0)
        return;
    int32_t columns = window->columns;
    struct rows q_rows = {(void *)q, ROWS_F32, columns, (int64_t)columns * 4};
    struct attention_call call = {FOR_SET(input_rows)(stream, &q_rows, tokens * heads), heads, columns,
        round_up(columns, LANES), round_up(columns, LANES) + LANES, sequence, position, visible_from, window,
        latents, window_tables, latent_tables, chosen, top_k, sink, out, 0, NULL, NULL};
    for (int32_t t = 0; t < tokens; t++) {
        int32_t count = round_up(window_count(&call, t) + (latents != NULL ? top_k : 0), LANES);
        call.most_rows = count > call.most_rows ? count : call.most_rows;
    }
    int32_t batch = least(tokens, 4 * stream->threads);
    size_t rows = (size_t)batch * (size_t)call.most_rows;
    call.rows = stream_scratch(stream, SCRATCH_ROWS, rows * (size_t)call.row_stride * sizeof(float));
    call.scores = stream_scratch(stream, SCRATCH_SCORES, rows * (size_t)heads * sizeof(float));
    int32_t share = (heads * batch + 2 * stream->threads - 1) / (2 * stream->threads);
    int32_t item_heads = least(heads, round_up(share, 2));
#pragma omp parallel num_threads(stream->threads)
    for (int32_t begin = 0; begin < tokens; begin += batch)
        attend_batch(&call, begin, least(batch, tokens - begin), item_heads);
}

void FOR_SET(fill_attention)(struct kernels *kernels) {
    kernels->attend = attend;
}

/* Sparse attention: what its kernels share.
 *
 * The rows a token sees are taken in chunks of CHUNK: its window rows, then its chosen rows, both ascending. A chunk
 * gives per head its largest score, the sum of its weights relative to that, and its rows' sum by these weights.
 * Chunks are merged in order, beginning with the sink, by merge_chunk. So a block that takes all chunks of a token
 * and blocks that take one each come to the same bits, and nothing depends on other tokens.
 */
#ifndef NOCTURNE_CUDA_ATTEND_H
#define NOCTURNE_CUDA_ATTEND_H

#include "kernels/cuda/block_rows.h"
#include "kernels/cuda/functions.h"

#include <math.h> /* INFINITY, sqrtf */

enum { CHUNK = 64 };

/* One call of kernels.h's attend. */
struct attend_call {
    const float *q;
    int32_t tokens, heads, columns;
    const int32_t *sequence, *position, *visible_from, *chosen;
    int32_t top_k; /* 0 without compressed rows */
    struct stored_rows window, latents;
    bool is_window_aligned, are_latents_aligned; /* rows that asynchronous copies can fetch */
    const float *sink;
    float scale; /* of scores: 1 / sqrt(columns) */
    float *out;
};

/* Any encodings and shapes, one block a token and head: attend_plain.cu. */
void attend_plain(struct stream *stream, const struct attend_call *call);

enum { TILED_COLUMNS = 512 }; /* most columns attend_tiled takes */
/* FP8 and FP4 rows of up to TILED_COLUMNS columns, by tensor cores: attend_tiled.cu. */
void attend_tiled(struct stream *stream, const struct attend_call *call);

/* ---- chunks ---- */

struct chunks {
    int32_t token, sequence;
    int32_t first_row, window_rows; /* of the window */
    int32_t window, count;          /* chunks of window rows, of all rows */
};

__device__ static inline struct chunks token_chunks(const struct attend_call *call, int32_t token) {
    struct chunks chunks = {token, call->sequence[token], call->visible_from[token], 0, 0, 0};
    int32_t rows = call->position[token] - chunks.first_row + 1;
    chunks.window_rows = rows > 0 ? rows : 0;
    chunks.window = chunks.count = (chunks.window_rows + CHUNK - 1) / CHUNK;
    const int32_t *chosen = call->chosen + (int64_t)token * call->top_k;
    for (int32_t k = 0; k < call->top_k && chosen[k] >= 0; k += CHUNK)
        chunks.count++;
    return chunks;
}

/* The number of row `i` of a chunk; -1: the chunk has fewer. */
__device__ static inline int32_t chunk_row(
    const struct attend_call *call, const struct chunks *chunks, int32_t chunk, int32_t i) {
    if (chunk < chunks->window) {
        int32_t place = chunk * CHUNK + i;
        return place < chunks->window_rows ? chunks->first_row + place : -1;
    }
    int32_t place = (chunk - chunks->window) * CHUNK + i;
    return place < call->top_k ? call->chosen[(int64_t)chunks->token * call->top_k + place] : -1;
}

/* ---- softmax ---- */

/* Of one head: the largest score so far and the sum of the weights relative to it. */
struct softmax {
    float top, sum;
};

/* By what sums are multiplied when chunk and what was before are brought to one top. */
struct merge_factors {
    float before, chunk;
};

__device__ static inline struct softmax start_softmax(const struct attend_call *call, int32_t head) {
    return (struct softmax){head < call->heads ? call->sink[head] : 0.0f, 1.0f};
}

/* What scores of a chunk are relative to: its top, if that is a number. */
__device__ static inline float softmax_base(float top) {
    return top == -INFINITY ? 0.0f : top;
}

__device__ static inline float lowering(float top, float new_top) {
    return top == new_top ? 1.0f : exp_float(top - new_top);
}

__device__ static inline struct merge_factors merge_chunk(struct softmax *before, struct softmax chunk) {
    float top = fmaxf(before->top, chunk.top);
    struct merge_factors factors = {lowering(before->top, top), lowering(chunk.top, top)};
    before->sum = fmaf(chunk.sum, factors.chunk, before->sum * factors.before);
    before->top = top;
    return factors;
}

__device__ static inline float merge_sums(float before, float chunk, struct merge_factors factors) {
    return fmaf(chunk, factors.chunk, before * factors.before);
}

#endif

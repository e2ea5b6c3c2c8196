/* Sparse attention, the plain version: float32 sums, rows decoded where they are used. It serves the float32 rows of
 * the exact mode and rows too long for the tiles. */
#include "kernels/cuda/attend.h"

enum { PLAIN_THREADS = 128, PLAIN_WARPS = PLAIN_THREADS / WARP };

struct plain_memory {
    const uint8_t *rows[CHUNK];
    float weights[CHUNK]; /* scores at first */
};

/* The chunk's encoded rows; returns how it decodes them. */
__device__ static inline const struct block_rows *find_rows(
    const struct attend_call *call, const struct chunks *chunks, int32_t chunk, struct plain_memory *memory) {
    const struct stored_rows *kind = chunk < chunks->window ? &call->window : &call->latents;
    if (threadIdx.x < CHUNK) {
        int32_t row = chunk_row(call, chunks, chunk, (int32_t)threadIdx.x);
        memory->rows[threadIdx.x] = row >= 0 ? block_row(kind, chunks->sequence, row) : NULL;
    }
    return &kind->rows;
}

/* A warp a row: lanes sum every WARP-th column and are folded by halves. */
__device__ static inline void score_plain(const struct attend_call *call, const float *query,
    const struct block_rows *rows, struct plain_memory *memory) {
    int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP;
    for (int32_t r = warp; r < CHUNK; r += PLAIN_WARPS) {
        const uint8_t *row = memory->rows[r];
        float sum = 0;
        for (int32_t c = lane; c < call->columns && row != NULL; c += WARP)
            sum = fmaf(query[c], row_value(rows, row, c), sum);
        sum = sum_warp(sum);
        if (lane == 0)
            memory->weights[r] = row != NULL ? sum * call->scale : -INFINITY;
    }
}

/* Scores become weights relative to the chunk's top; all threads come to the same top and sum. */
__device__ static inline struct softmax weigh_plain(struct plain_memory *memory) {
    struct softmax chunk = {-INFINITY, 0};
    for (int32_t r = 0; r < CHUNK; r++)
        chunk.top = fmaxf(chunk.top, memory->weights[r]);
    __syncthreads();
    if (threadIdx.x < CHUNK)
        memory->weights[threadIdx.x] = exp_float(memory->weights[threadIdx.x] - softmax_base(chunk.top));
    __syncthreads();
    for (int32_t r = 0; r < CHUNK; r++)
        chunk.sum += memory->weights[r];
    return chunk;
}

__device__ static inline float sum_column(
    const struct block_rows *rows, const struct plain_memory *memory, int32_t column) {
    float sum = 0;
    for (int32_t r = 0; r < CHUNK; r++)
        if (memory->rows[r] != NULL)
            sum = fmaf(memory->weights[r], row_value(rows, memory->rows[r], column), sum);
    return sum;
}

/* Block (head, token): sums stand in `out` until they are complete. */
static __global__ void attend_plain_kernel(struct attend_call call) {
    struct plain_memory *memory = &SHARED(struct plain_memory);
    int32_t head = (int32_t)blockIdx.x % call.heads, token = (int32_t)blockIdx.x / call.heads;
    int64_t at = ((int64_t)token * call.heads + head) * call.columns;
    float *out = call.out + at;
    struct chunks chunks = token_chunks(&call, token);
    struct softmax all = start_softmax(&call, head);
    for (int32_t c = (int32_t)threadIdx.x; c < call.columns; c += PLAIN_THREADS)
        out[c] = 0;
    for (int32_t chunk = 0; chunk < chunks.count; chunk++) {
        __syncthreads(); /* the last chunk's rows and weights are no longer needed */
        const struct block_rows *rows = find_rows(&call, &chunks, chunk, memory);
        __syncthreads();
        score_plain(&call, call.q + at, rows, memory);
        __syncthreads();
        struct merge_factors factors = merge_chunk(&all, weigh_plain(memory));
        for (int32_t c = (int32_t)threadIdx.x; c < call.columns; c += PLAIN_THREADS)
            out[c] = merge_sums(out[c], sum_column(rows, memory, c), factors);
    }
    float inverse = 1.0f / all.sum;
    for (int32_t c = (int32_t)threadIdx.x; c < call.columns; c += PLAIN_THREADS)
        out[c] *= inverse;
}

void attend_plain(struct stream *stream, const struct attend_call *call) {
    struct attend_call given = *call;
    dim3 grid((unsigned)((int64_t)given.tokens * given.heads));
    LAUNCH(stream, attend_plain_kernel, grid, dim3(PLAIN_THREADS), sizeof(struct plain_memory), given);
}

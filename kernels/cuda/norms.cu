/* RMS norms: of rows, and of the sum of a token's residual streams. */
#include "kernels/cuda/functions.h"
#include "kernels/cuda/operations.h"

/* A row is met by as many warps as give each thread KEPT fours (a power of two up to MOST_WARPS), so that it stays in registers
 * between the sum of squares and the product; of longer rows the rest is read again. The number of warps, and with it the order of
 * the sum, follows from the columns. */
enum { KEPT = 4, NORM_WARPS = 8 };

struct norm_call {
    const float *x;      /* [T, columns], or the streams [T, count, columns] */
    const float *factor; /* [T, count] */
    const uint16_t *weight;
    float *out;
    int32_t tokens, columns, count;
    float eps;
    int32_t warps; /* of a row */
    bool whole, weight_whole;
};

struct norm_shared {
    float parts[MOST_WARPS];
};

/* Four columns of the row that is normed. count 0: a row of x; -1: call.count streams. */
template <int count>
__device__ static inline void load_sum(const struct norm_call &call, int64_t row, int32_t c, float v[FOUR]) {
    int32_t left = call.columns - c, streams = count < 0 ? call.count : count;
    if (count == 0) {
        load_four(call.x + row * call.columns + c, left, call.whole, v);
        return;
    }
    const float *from = call.x + row * streams * call.columns + c, *factor = call.factor + row * streams;
    load_four(from, left, call.whole, v);
    for (int32_t i = 0; i < FOUR; i++)
        v[i] *= factor[0];
#pragma unroll
    for (int32_t s = 1; s < streams; s++) {
        float value[FOUR];
        load_four(from + (int64_t)s * call.columns, left, call.whole, value);
        for (int32_t i = 0; i < FOUR; i++)
            v[i] = fmaf(factor[s], value[i], v[i]);
    }
}

__device__ static inline void store_normed(
    const struct norm_call &call, int64_t row, int32_t c, float factor, const float v[FOUR]) {
    float weight[FOUR], normed[FOUR];
    load_four_bf16(call.weight + c, call.columns - c, call.weight_whole, weight);
    for (int32_t i = 0; i < FOUR; i++)
        normed[i] = v[i] * factor * weight[i];
    store_four(call.out + row * call.columns + c, call.columns - c, call.whole, normed);
}

template <int count>
static __global__ void __launch_bounds__(MOST_WARPS *WARP) norm_rows(struct norm_call call) {
    struct norm_shared &shared = SHARED(struct norm_shared);
    int32_t wide = call.warps * WARP, place = (int32_t)threadIdx.x % wide;
    int32_t in_block = (int32_t)threadIdx.x / wide;
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / (unsigned)wide) + in_block;
    bool exists = row < call.tokens;
    float kept[KEPT][FOUR], sum = 0;
#pragma unroll
    for (int32_t k = 0; k < KEPT; k++) {
        int32_t c = (place + k * wide) * FOUR;
        for (int32_t i = 0; i < FOUR; i++)
            kept[k][i] = 0;
        if (exists && c < call.columns)
            load_sum<count>(call, row, c, kept[k]);
        for (int32_t i = 0; i < FOUR; i++)
            sum = fmaf(kept[k][i], kept[k][i], sum);
    }
    for (int32_t c = (place + KEPT * wide) * FOUR; exists && c < call.columns; c += wide * FOUR) {
        float v[FOUR];
        load_sum<count>(call, row, c, v);
        for (int32_t i = 0; i < FOUR; i++)
            sum = fmaf(v[i], v[i], sum);
    }
    sum_warps(&sum, 1, place / WARP, call.warps, shared.parts + in_block * call.warps);
    if (!exists)
        return;
    float factor = 1.0f / sqrtf(sum / (float)call.columns + call.eps);
#pragma unroll
    for (int32_t k = 0; k < KEPT; k++) {
        int32_t c = (place + k * wide) * FOUR;
        if (c < call.columns)
            store_normed(call, row, c, factor, kept[k]);
    }
    for (int32_t c = (place + KEPT * wide) * FOUR; c < call.columns; c += wide * FOUR) {
        float v[FOUR];
        load_sum<count>(call, row, c, v);
        store_normed(call, row, c, factor, v);
    }
}

/* Completes the call and gives the launch: rows of few warps share a block. */
static dim3 norm_shape(struct norm_call *call, dim3 *block) {
    int32_t fours = fours_of(call->columns), rows = 1;
    call->warps = 1;
    while (call->warps < MOST_WARPS && call->warps * WARP * KEPT < fours)
        call->warps *= 2;
    if (call->warps < NORM_WARPS)
        rows = NORM_WARPS / call->warps;
    call->whole = is_in_fours(call->x, call->columns) && is_in_fours(call->out, call->columns);
    call->weight_whole = is_in_fours_bf16(call->weight, call->columns);
    *block = dim3((unsigned)(rows * call->warps * WARP));
    return dim3((unsigned)((call->tokens + rows - 1) / rows));
}

void cuda_rms_norm(struct stream *stream, const float *x, int32_t tokens, int32_t columns, const void *weight,
    float eps, float *out) {
    if (tokens <= 0)
        return;
    struct norm_call call = {
        x, NULL, (const uint16_t *)weight, out, tokens, columns, 0, eps, 0, false, false};
    dim3 block, grid = norm_shape(&call, &block);
    LAUNCH(stream, norm_rows<0>, grid, block, sizeof(struct norm_shared), call);
}

void cuda_collapse_norm(struct stream *stream, const float *streams, const float *pre, int32_t tokens,
    int32_t streams_count, int32_t columns, const void *weight, float eps, float *out) {
    if (tokens <= 0)
        return;
    struct norm_call call = {
        streams, pre, (const uint16_t *)weight, out, tokens, columns, streams_count, eps, 0, false, false};
    dim3 block, grid = norm_shape(&call, &block);
    if (streams_count == 4)
        LAUNCH(stream, norm_rows<4>, grid, block, sizeof(struct norm_shared), call);
    else
        LAUNCH(stream, norm_rows<-1>, grid, block, sizeof(struct norm_shared), call);
}

/* The gated addition of an n-gram lookup to the residual streams. */
#include "kernels/cuda/functions.h"
#include "kernels/cuda/operations.h"

#include <math.h> /* copysignf, fabsf, sqrtf */

enum { ENGRAM_WARPS = 8, ENGRAM_SUMS = 3 };

struct engram_call {
    const float *kv;                     /* [T, (count + 1) * columns] */
    const uint16_t *q_weight, *k_weight; /* [count, columns] */
    const uint8_t *is_image;             /* [T] */
    float *streams;                      /* [T, count, columns] */
    int32_t count, columns;
    float eps;
    bool whole, weights_whole;
};

struct engram_shared {
    float parts[ENGRAM_SUMS * ENGRAM_WARPS];
};

/* The gate of a stream: from its weighted dot product with the key and both sums of squares. */
__device__ static inline float engram_gate(const float sums[ENGRAM_SUMS], int32_t columns, float eps) {
    float dot = sums[0] * (1.0f / sqrtf((float)columns));
    dot /= sqrtf(sums[1] / (float)columns + eps);
    dot /= sqrtf(sums[2] / (float)columns + eps);
    float magnitude = fabsf(dot) > 1e-6f ? fabsf(dot) : 1e-6f;
    return sigmoid_float(copysignf(sqrtf(magnitude), dot));
}

/* A block: a stream of a token. */
static __global__ void add_engram(struct engram_call call) {
    struct engram_shared &shared = SHARED(struct engram_shared);
    int64_t t = blockIdx.x;
    int32_t s = (int32_t)blockIdx.y, columns = call.columns;
    if (call.is_image[t])
        return;
    const float *keys = call.kv + t * (call.count + 1) * columns;
    const float *key = keys + (int64_t)s * columns, *value = keys + (int64_t)call.count * columns;
    const uint16_t *q_weight = call.q_weight + (int64_t)s * columns,
                   *k_weight = call.k_weight + (int64_t)s * columns;
    float *row = call.streams + (t * call.count + s) * columns, sums[ENGRAM_SUMS] = {0, 0, 0};
    for (int32_t c = (int32_t)threadIdx.x * FOUR; c < columns; c += ENGRAM_WARPS * WARP * FOUR) {
        int32_t left = columns - c;
        float x[FOUR], k[FOUR], q_factor[FOUR], k_factor[FOUR];
        load_four(row + c, left, call.whole, x);
        load_four(key + c, left, call.whole, k);
        load_four_bf16(q_weight + c, left, call.weights_whole, q_factor);
        load_four_bf16(k_weight + c, left, call.weights_whole, k_factor);
        for (int32_t i = 0; i < FOUR; i++) {
            sums[0] = fmaf(x[i] * (q_factor[i] * k_factor[i]), k[i], sums[0]);
            sums[1] = fmaf(x[i], x[i], sums[1]);
            sums[2] = fmaf(k[i], k[i], sums[2]);
        }
    }
    sum_warps(sums, ENGRAM_SUMS, (int32_t)threadIdx.x / WARP, ENGRAM_WARPS, shared.parts);
    float gate = engram_gate(sums, columns, call.eps);
    for (int32_t c = (int32_t)threadIdx.x * FOUR; c < columns; c += ENGRAM_WARPS * WARP * FOUR) {
        float x[FOUR], v[FOUR];
        load_four(row + c, columns - c, call.whole, x);
        load_four(value + c, columns - c, call.whole, v);
        for (int32_t i = 0; i < FOUR; i++)
            x[i] = fmaf(gate, v[i], x[i]);
        store_four(row + c, columns - c, call.whole, x);
    }
}

void cuda_engram_add(struct stream *stream, const float *kv, const void *q_weight, const void *k_weight,
    const uint8_t *is_image, int32_t tokens, int32_t streams_count, int32_t columns, float eps,
    float *streams) {
    if (tokens <= 0)
        return;
    bool whole = is_in_fours(kv, columns) && is_in_fours(streams, columns);
    bool weights_whole = is_in_fours_bf16(q_weight, columns) && is_in_fours_bf16(k_weight, columns);
    struct engram_call call = {kv, (const uint16_t *)q_weight, (const uint16_t *)k_weight, is_image, streams,
        streams_count, columns, eps, whole, weights_whole};
    dim3 grid((unsigned)tokens, (unsigned)streams_count);
    LAUNCH(stream, add_engram, grid, ENGRAM_WARPS * WARP, sizeof(struct engram_shared), call);
}

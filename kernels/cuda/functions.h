/* What the kernels on rows share: groups of four columns, functions of float32, sums over warps and blocks, launch shapes.
 *
 * A thread holds four neighbouring columns of a row, the next lane the next four: one access of 16 bytes a lane. Sums over
 * a row have one order, which follows from the number of columns alone: a thread adds its fours in turn, lanes are
 * folded by halves, warps are added in turn.
 */
#ifndef NOCTURNE_CUDA_FUNCTIONS_H
#define NOCTURNE_CUDA_FUNCTIONS_H

#include "kernels/cuda/backend.h"

enum { FOUR = 4, MOST_WARPS = 32, ROW_BLOCK = 256 };

/* ---- fours ---- */

/* Columns of a row from `from` on, of which `left` exist; the others are 0. `whole`: all four exist and the address is a
 * multiple of 16. */
__device__ static inline void load_four(const float *from, int32_t left, bool whole, float v[FOUR]) {
    if (whole) {
        float4 four = *(const float4 *)from;
        v[0] = four.x;
        v[1] = four.y;
        v[2] = four.z;
        v[3] = four.w;
        return;
    }
    for (int32_t i = 0; i < FOUR; i++)
        v[i] = i < left ? from[i] : 0.0f;
}

__device__ static inline void store_four(float *to, int32_t left, bool whole, const float v[FOUR]) {
    if (whole) {
        *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
        return;
    }
    for (int32_t i = 0; i < FOUR; i++)
        if (i < left)
            to[i] = v[i];
}

/* The same of BF16 values; `whole` asks for multiples of 8. */
__device__ static inline void load_four_bf16(const uint16_t *from, int32_t left, bool whole, float v[FOUR]) {
    if (whole) {
        uint2 codes = *(const uint2 *)from;
        v[0] = bits_float(codes.x << 16);
        v[1] = bits_float(codes.x & 0xffff0000u);
        v[2] = bits_float(codes.y << 16);
        v[3] = bits_float(codes.y & 0xffff0000u);
        return;
    }
    for (int32_t i = 0; i < FOUR; i++)
        v[i] = i < left ? bf16_value(from[i]) : 0.0f;
}

/* ---- functions ---- */

/* e^x within 2 units in the last place; 0 below -104, infinity above 88.73, NaN stays. */
__device__ static inline float exp_float(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float bounded = x < -104.0f ? -104.0f : x;
    bounded = bounded > 89.0f ? 89.0f : bounded;
    float shifted = fmaf(bounded, 1.44269504f, magic);
    float n = shifted - magic;
    float r = fmaf(n, -0.693145752f, bounded); /* ln 2 in two parts */
    r = fmaf(n, -1.42860677e-6f, r);
    float p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, r) + 1.0f;
    /* 2^n in two factors, for n reaches from -150 to 128 */
    int32_t exponent = (int32_t)(float_bits(shifted) - float_bits(magic));
    int32_t half = exponent >> 1;
    return p * bits_float((uint32_t)(half + 127) << 23) * bits_float((uint32_t)(exponent - half + 127) << 23);
}

__device__ static inline float sigmoid_float(float x) {
    return 1.0f / (1.0f + exp_float(-x));
}

/* a < b ? a : b, so b when either is NaN, as on the CPU. */
__device__ static inline float smaller_float(float a, float b) {
    return a < b ? a : b;
}

__device__ static inline float larger_float(float a, float b) {
    return a > b ? a : b;
}

/* ---- sums ---- */

/* Sum over the warp, in all lanes. */
__device__ static inline float sum_warp(float value) {
    for (int32_t half = WARP / 2; half > 0; half /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, half);
    return value;
}

/* `count` sums over `warps` neighbouring warps of a block, one of which is `warp` (0 .. warps - 1), in all their threads.
 * parts [count * warps] is shared memory of these warps. All threads of the block call it with the same numbers. */
__device__ static inline void sum_warps(
    float *sums, int32_t count, int32_t warp, int32_t warps, float *parts) {
    for (int32_t i = 0; i < count; i++) {
        sums[i] = sum_warp(sums[i]);
        if (threadIdx.x % WARP == 0)
            parts[i * warps + warp] = sums[i];
    }
    __syncthreads();
    for (int32_t i = 0; i < count; i++) {
        sums[i] = parts[i * warps];
        for (int32_t w = 1; w < warps; w++)
            sums[i] += parts[i * warps + w];
    }
}

/* ---- launch shapes ---- */

static inline int32_t fours_of(int32_t columns) {
    return (columns + FOUR - 1) / FOUR;
}

/* Whether rows of `columns` floats, one after the other from here on, can be met in whole fours. */
static inline bool is_in_fours(const void *rows, int32_t columns) {
    return columns % FOUR == 0 && (uintptr_t)rows % 16 == 0;
}

static inline bool is_in_fours_bf16(const void *rows, int32_t columns) {
    return columns % FOUR == 0 && (uintptr_t)rows % 8 == 0;
}

/* Blocks for work on rows in which no thread needs another row or warp: threads (x: fours, y: rows), blocks (x: rows, y: parts of
 * a row, as many as keep the device busy when rows are few). */
struct row_shape {
    dim3 grid, block;
};

static inline struct row_shape shape_rows(const struct stream *stream, int32_t rows, int32_t fours) {
    int32_t wide = (fours + WARP - 1) / WARP * WARP;
    wide = wide < ROW_BLOCK ? wide : ROW_BLOCK;
    int32_t high = ROW_BLOCK / wide, blocks = (rows + high - 1) / high;
    int32_t parts = (fours + wide - 1) / wide, wanted = (8 * stream->multiprocessors + blocks - 1) / blocks;
    parts = parts < wanted ? parts : wanted;
    return (struct row_shape){dim3((unsigned)blocks, (unsigned)parts), dim3((unsigned)wide, (unsigned)high)};
}

/* Within such a launch: this thread's row, its first four, and the distance to its next. */
__device__ static inline int64_t shape_row(void) {
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

__device__ static inline int32_t shape_first(void) {
    return (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
}

__device__ static inline int32_t shape_step(void) {
    return (int32_t)(gridDim.y * blockDim.x);
}

#endif

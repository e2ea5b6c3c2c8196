/* Full attention among the tokens of an image.
 *
 * Queries, keys and values are first split into two BF16 terms each, heads apart and tokens padded to whole tiles; the terms lack
 * 2^-17 of a value at most. A block then takes QUERIES queries of a head and meets all keys tile by tile: a warp holds
 * 16 queries, adds the three larger products of terms by tensor cores, and keeps the largest score, the sum of the weights and
 * the weighted values in registers. Heads wider than MOST_WIDTH take the plain kernel: a warp a query, products in float32.
 */
#include "kernels/cuda/functions.h"
#include "kernels/cuda/mma.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/pairs.h"

#include <math.h> /* INFINITY, sqrtf */

enum {
    QUERIES = 64, /* of a block */
    KEYS = 64,    /* of a tile */
    IMAGE_WARPS = QUERIES / 16,
    KEY_TILES = KEYS / 8,
    STAGES = 2,
    MOST_WIDTH = 128,
    SPLIT_THREADS = 256,
    PLAIN_WARPS = 4,
};

struct image_call {
    const float *qkv; /* [T, 3, heads, width] */
    uint16_t
        *terms; /* [3, heads, padded, 2, padded width]: of queries, keys, values; higher and lower terms */
    float *out; /* [T, heads * width] */
    int32_t tokens, padded, heads, width;
    float scale;
};

/* Keys and values of two tiles: one is met while the other is copied. Rows are 16 bytes longer than their terms, so that
 * eight of them lie in different banks. */
template <int width> struct image_memory { alignas(16) unsigned char rows[STAGES][2][KEYS][4 * width + 16]; };

/* ---- terms ---- */

/* A thread: two neighbouring columns of a head of a token. */
template <int width> static __global__ void split_image(struct image_call call) {
    int64_t i = (int64_t)blockIdx.x * SPLIT_THREADS + threadIdx.x;
    int32_t c = (int32_t)(i % (width / 2)) * 2;
    int64_t row = i / (width / 2); /* of [padded, 3 * heads] */
    int32_t t = (int32_t)(row / (3 * call.heads)), head = (int32_t)(row % (3 * call.heads));
    if (t >= call.padded)
        return;
    const float *from = call.qkv + ((int64_t)t * 3 * call.heads + head) * call.width + c;
    float low = t < call.tokens && c < call.width ? from[0] : 0.0f;
    float high = t < call.tokens && c + 1 < call.width ? from[1] : 0.0f;
    uint32_t rest, pair = split_pair(low, high, &rest);
    uint16_t *to = call.terms + ((int64_t)head * call.padded + t) * 2 * width + c;
    *(uint32_t *)to = pair;
    *(uint32_t *)(to + width) = rest;
}

/* ---- tiles ---- */

/* Begins the copies of a tile's keys and values. */
template <int width>
__device__ static inline void copy_tile(
    const struct image_call &call, struct image_memory<width> &memory, int32_t head, int32_t tile) {
    const int32_t units = 4 * width / 16; /* of 16 bytes in a row */
    for (int32_t i = (int32_t)threadIdx.x; i < 2 * KEYS * units; i += IMAGE_WARPS * WARP) {
        int32_t unit = i % units, key = i / units % KEYS, kind = i / (units * KEYS);
        int64_t row = ((int64_t)(kind + 1) * call.heads + head) * call.padded + tile * KEYS + key;
        copy_async(
            &memory.rows[tile % STAGES][kind][key][unit * 16], call.terms + row * 2 * width + unit * 8, 16);
    }
    copies_commit();
}

/* A warp's queries: fragments of both terms. */
template <int width> struct image_queries { uint32_t term[2][width / 16][4]; };

template <int width>
__device__ static inline void load_queries(
    const struct image_call &call, int32_t head, int32_t first, struct image_queries<width> *queries) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    const uint16_t *row =
        call.terms + ((int64_t)head * call.padded + first + lane / 4) * 2 * width + lane % 4 * 2;
#pragma unroll
    for (int32_t term = 0; term < 2; term++)
#pragma unroll
        for (int32_t k = 0; k < width / 16; k++)
#pragma unroll
            for (int32_t part = 0; part < 4;
                 part++) /* rows + 8 in the odd parts, columns + 8 in the last two */
                queries->term[term][k][part] = *(
                    const uint32_t *)(row + part % 2 * 8 * 2 * width + term * width + k * 16 + part / 2 * 8);
}

/* What a warp keeps of its 16 queries; a lane has those of rows lane / 4 and lane / 4 + 8. */
template <int width> struct image_sums {
    float top[2], total[2];
    float value[width / 8][4];
};

/* scores = q . k of a tile, each lane's as mma_bf16 leaves them. */
template <int width>
__device__ static inline void score_tile(const struct image_queries<width> &queries,
    const unsigned char (*keys)[4 * width + 16], float scores[KEY_TILES][4]) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t key = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
    for (int32_t n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            scores[n][i] = 0;
#pragma unroll
    for (int32_t k = 0; k < width / 16; k++)
#pragma unroll
        for (int32_t n = 0; n < KEY_TILES; n += 2) {
            const unsigned char *at = &keys[n * 8 + key][2 * (k * 16 + column)];
            uint32_t high[4], low[4];
            load_matrices(high, at);
            load_matrices(low, at + 2 * width);
#pragma unroll
            for (int32_t half = 0; half < 2; half++) {
                mma_bf16(scores[n + half], queries.term[1][k], high + 2 * half);
                mma_bf16(scores[n + half], queries.term[0][k], low + 2 * half);
                mma_bf16(scores[n + half], queries.term[0][k], high + 2 * half);
            }
        }
}

/* Scores become weights relative to the largest score so far, to which the sums are brought. Keys from `left` on do not exist. */
template <int width>
__device__ static inline void weigh_tile(
    float scores[KEY_TILES][4], int32_t left, float scale, struct image_sums<width> *sums) {
    int32_t column = (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        float top = sums->top[row], total = 0;
#pragma unroll
        for (int32_t i = 0; i < 2 * KEY_TILES; i++) {
            float *score = &scores[i / 2][2 * row + i % 2];
            *score = i / 2 * 8 + column + i % 2 < left ? *score * scale : -INFINITY;
            top = larger_float(top, *score);
        }
        top = larger_float(top, __shfl_xor_sync(ALL_LANES, top, 1));
        top = larger_float(top, __shfl_xor_sync(ALL_LANES, top, 2));
#pragma unroll
        for (int32_t i = 0; i < 2 * KEY_TILES; i++) {
            float *score = &scores[i / 2][2 * row + i % 2];
            *score = exp_float(*score - top);
            total += *score;
        }
        float kept = exp_float(sums->top[row] - top);
        sums->top[row] = top;
        sums->total[row] = sums->total[row] * kept + total;
#pragma unroll
        for (int32_t n = 0; n < width / 8; n++) {
            sums->value[n][2 * row] *= kept;
            sums->value[n][2 * row + 1] *= kept;
        }
    }
}

/* Adds the weighted values of a tile. */
template <int width>
__device__ static inline void add_tile(const float weights[KEY_TILES][4],
    const unsigned char (*values)[4 * width + 16], struct image_sums<width> *sums) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t key = lane / 8 % 2 * 8 + lane % 8, column = lane / 16 * 8;
#pragma unroll
    for (int32_t k = 0; k < KEYS / 16; k++) {
        uint32_t first[4], second[4];
#pragma unroll
        for (int32_t part = 0; part < 4; part++) {
            const float *pair = &weights[2 * k + part / 2][part % 2 * 2];
            first[part] = split_pair(pair[0], pair[1], &second[part]);
        }
#pragma unroll
        for (int32_t n = 0; n < width / 8; n += 2) {
            const unsigned char *at = &values[k * 16 + key][2 * (n * 8 + column)];
            uint32_t high[4], low[4];
            load_matrices_transposed(high, at);
            load_matrices_transposed(low, at + 2 * width);
#pragma unroll
            for (int32_t half = 0; half < 2; half++) {
                mma_bf16(sums->value[n + half], second, high + 2 * half);
                mma_bf16(sums->value[n + half], first, low + 2 * half);
                mma_bf16(sums->value[n + half], first, high + 2 * half);
            }
        }
    }
}

template <int width>
__device__ static inline void store_queries(
    const struct image_call &call, int32_t head, int32_t first, const struct image_sums<width> &sums) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int32_t row = 0; row < 2; row++) {
        int32_t t = first + lane / 4 + row * 8;
        float total = sums.total[row];
        total += __shfl_xor_sync(ALL_LANES, total, 1);
        total += __shfl_xor_sync(ALL_LANES, total, 2);
        float *to = call.out + ((int64_t)t * call.heads + head) * call.width;
#pragma unroll
        for (int32_t i = 0; i < width / 4; i++) {
            int32_t c = i / 2 * 8 + lane % 4 * 2 + i % 2;
            if (t < call.tokens && c < call.width)
                to[c] = sums.value[i / 2][2 * row + i % 2] / total;
        }
    }
}

/* A block: QUERIES queries (x) of a head (y). */
template <int width>
static __global__ void __launch_bounds__(IMAGE_WARPS *WARP) attend_image(struct image_call call) {
    struct image_memory<width> &memory = SHARED(struct image_memory<width>);
    int32_t head = (int32_t)blockIdx.y;
    int32_t first = (int32_t)(blockIdx.x * QUERIES + threadIdx.x / WARP * 16);
    int32_t tiles = call.padded / KEYS;
    copy_tile<width>(call, memory, head, 0);
    struct image_queries<width> queries;
    load_queries<width>(call, head, first, &queries);
    struct image_sums<width> sums;
    for (int32_t row = 0; row < 2; row++) {
        sums.top[row] = -INFINITY;
        sums.total[row] = 0;
    }
#pragma unroll
    for (int32_t n = 0; n < width / 8; n++)
#pragma unroll
        for (int32_t i = 0; i < 4; i++)
            sums.value[n][i] = 0;
    for (int32_t tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            copy_tile<width>(call, memory, head, tile + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        float scores[KEY_TILES][4];
        score_tile<width>(queries, memory.rows[tile % STAGES][0], scores);
        weigh_tile<width>(scores, call.tokens - tile * KEYS, call.scale, &sums);
        add_tile<width>(scores, memory.rows[tile % STAGES][1], &sums);
        __syncthreads();
    }
    store_queries<width>(call, head, first, sums);
}

/* ---- plain ---- */

/* A warp: one query of a head (y). Keys are met WARP at a time, a lane each; then all lanes add their share of the columns. The
 * output holds the sums meanwhile. */
static __global__ void attend_image_plainly(struct image_call call) {
    int32_t lane = (int32_t)threadIdx.x % WARP, head = (int32_t)blockIdx.y;
    int32_t t = (int32_t)(blockIdx.x * PLAIN_WARPS + threadIdx.x / WARP);
    if (t >= call.tokens)
        return;
    int64_t step = (int64_t)3 * call.heads * call.width; /* from token to token */
    const float *query = call.qkv + t * step + (int64_t)head * call.width;
    const float *keys = call.qkv + ((int64_t)call.heads + head) * call.width;
    const float *values = keys + (int64_t)call.heads * call.width;
    float *out = call.out + ((int64_t)t * call.heads + head) * call.width;
    for (int32_t c = lane; c < call.width; c += WARP)
        out[c] = 0;
    float top = -INFINITY, total = 0;
    for (int32_t begin = 0; begin < call.tokens; begin += WARP) {
        float score = -INFINITY;
        if (begin + lane < call.tokens) {
            score = 0;
            for (int32_t c = 0; c < call.width; c++)
                score = fmaf(query[c], keys[(begin + lane) * step + c], score);
            score *= call.scale;
        }
        float most = larger_float(top, score);
        for (int32_t half = WARP / 2; half > 0; half /= 2)
            most = larger_float(most, __shfl_xor_sync(ALL_LANES, most, half));
        float kept = exp_float(top - most), weight = exp_float(score - most);
        top = most;
        total = total * kept + sum_warp(weight);
        for (int32_t c = lane; c < call.width; c += WARP)
            out[c] *= kept;
        for (int32_t k = 0; k < WARP && begin + k < call.tokens; k++) {
            float of_key = __shfl_sync(ALL_LANES, weight, k);
            for (int32_t c = lane; c < call.width; c += WARP)
                out[c] = fmaf(of_key, values[(begin + k) * step + c], out[c]);
        }
    }
    for (int32_t c = lane; c < call.width; c += WARP)
        out[c] /= total;
}

/* ---- launches ---- */

template <int width> static void launch_image(struct stream *stream, struct image_call call) {
    int64_t values = (int64_t)3 * call.heads * call.padded * width;
    call.terms = (uint16_t *)stream_scratch(stream, SCRATCH_VISION, (size_t)values * 2 * sizeof(uint16_t));
    if (call.terms == NULL)
        return;
    unsigned blocks = (unsigned)((values / 2 + SPLIT_THREADS - 1) / SPLIT_THREADS);
    LAUNCH(stream, split_image<width>, blocks, SPLIT_THREADS, 0, call);
    dim3 grid((unsigned)(call.padded / QUERIES), (unsigned)call.heads);
    LAUNCH(stream, attend_image<width>, grid, IMAGE_WARPS * WARP, sizeof(struct image_memory<width>), call);
}

void cuda_attend_all(
    struct stream *stream, const float *qkv, int32_t tokens, int32_t heads, int32_t width, float *out) {
    if (tokens <= 0)
        return;
    int32_t padded = (tokens + KEYS - 1) / KEYS * KEYS;
    struct image_call call = {qkv, NULL, out, tokens, padded, heads, width, 1.0f / sqrtf((float)width)};
    dim3 plain_grid((unsigned)((tokens + PLAIN_WARPS - 1) / PLAIN_WARPS), (unsigned)heads);
    if (width <= 16)
        launch_image<16>(stream, call);
    else if (width <= 32)
        launch_image<32>(stream, call);
    else if (width <= 64)
        launch_image<64>(stream, call);
    else if (width <= MOST_WIDTH)
        launch_image<MOST_WIDTH>(stream, call);
    else
        LAUNCH(stream, attend_image_plainly, plain_grid, PLAIN_WARPS * WARP, 0, call);
}

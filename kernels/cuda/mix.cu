/* Mix coefficients of the residual streams: their products with fn, the sum of their squares, and the Sinkhorn normalization.
 *
 * The products' columns are cut into chunks of CHUNK. Within a chunk lane l of a warp adds columns 4l .. 4l + 3, then those
 * WARP * FOUR further on, in turn; the lanes are folded by halves; the chunks are added in turn. Both kernels below keep that
 * order: one for few tokens, in which a warp holds a chunk of one row of fn, and one for many, in which a warp meets a tile of
 * tokens and rows.
 */
#include "kernels/cuda/functions.h"
#include "kernels/cuda/operations.h"

enum {
    CHUNK = 1024,
    CHUNK_STEPS = CHUNK / (WARP * FOUR),
    FEW_WARPS = 8,   /* rows of a block */
    FEW_TOKENS = 8,  /* tokens of a block */
    MOST_FEW = 64,   /* tokens from which on fn would be read too often */
    TILE = 8,        /* tokens and rows of a warp */
    MANY_WARPS = 12, /* of a block: all rows of fn for as many tiles of tokens as there is room for */
    FINISH_TOKENS = 8,
    LOADED = 20, /* chunks that are loaded at once: all of the model's */
    USUAL_STREAMS = 4,
    MOST_STREAMS = 8,
    MOST_SUMS = (2 + MOST_STREAMS) * MOST_STREAMS + 1,
};

struct mix_call {
    const float *streams; /* [T, flat] */
    const float *fn;      /* [rows, flat] */
    int32_t tokens, rows, flat, chunks;
    bool whole;
    float *partials; /* [chunks, T, rows + 1]: sums of one chunk; the last is that of the squares */
    int32_t count;   /* streams */
    const float *base, *scale;
    int32_t iterations;
    float hc_eps, norm_eps;
    float *pre, *post, *comb;
};

__device__ static inline void load_chunk(
    const struct mix_call &call, const float *row, int32_t chunk, int32_t step, float v[FOUR]) {
    int32_t c = chunk * CHUNK + (step * WARP + (int32_t)(threadIdx.x % WARP)) * FOUR;
    if (c < call.flat) {
        load_four(row + c, call.flat - c, call.whole, v);
        return;
    }
    for (int32_t i = 0; i < FOUR; i++)
        v[i] = 0;
}

__device__ static inline void store_partial(
    const struct mix_call &call, int32_t chunk, int32_t token, int32_t row, float value) {
    if (token < call.tokens && row <= call.rows)
        call.partials[((int64_t)chunk * call.tokens + token) * (call.rows + 1) + row] = value;
}

/* ---- few tokens ---- */

/* A block: a chunk, FEW_WARPS rows, FEW_TOKENS tokens. The row after the last of fn is the token itself. */
static __global__ void mix_few(struct mix_call call) {
    int32_t chunk = (int32_t)blockIdx.x, first = (int32_t)blockIdx.z * FEW_TOKENS;
    int32_t row = (int32_t)(blockIdx.y * FEW_WARPS + threadIdx.x / WARP);
    if (row > call.rows)
        return;
    float w[CHUNK_STEPS][FOUR];
#pragma unroll
    for (int32_t step = 0; step < CHUNK_STEPS; step++)
        if (row < call.rows)
            load_chunk(call, call.fn + (int64_t)row * call.flat, chunk, step, w[step]);
    int32_t last = first + FEW_TOKENS < call.tokens ? first + FEW_TOKENS : call.tokens;
    for (int32_t t = first; t < last; t++) {
        float sum = 0;
#pragma unroll
        for (int32_t step = 0; step < CHUNK_STEPS; step++) {
            float v[FOUR];
            load_chunk(call, call.streams + (int64_t)t * call.flat, chunk, step, v);
            for (int32_t i = 0; i < FOUR; i++)
                sum = fmaf(v[i], row < call.rows ? w[step][i] : v[i], sum);
        }
        sum = sum_warp(sum);
        if (threadIdx.x % WARP == 0)
            store_partial(call, chunk, t, row, sum);
    }
}

/* ---- many tokens ---- */

/* One step of fold_sums: of 4 * half values a lane keeps one half, adding its partner's, whose other half it gives. */
template <int half> __device__ static inline void fold_step(float v[TILE * TILE]) {
    bool is_upper = (threadIdx.x & half) != 0;
#pragma unroll
    for (int32_t i = 0; i < 2 * half; i++) {
        float kept = is_upper ? v[i + 2 * half] : v[i], given = is_upper ? v[i] : v[i + 2 * half];
        v[i] = kept + __shfl_xor_sync(ALL_LANES, given, half);
    }
}

/* Folds 2 * WARP values a lane by halves of the warp, as sum_warp does, so that lane l ends with the sums 2l and 2l + 1. */
__device__ static inline void fold_sums(float v[TILE * TILE]) {
    fold_step<16>(v);
    fold_step<8>(v);
    fold_step<4>(v);
    fold_step<2>(v);
    fold_step<1>(v);
}

/* A block: a chunk and blockDim.z tiles of tokens; threads (x: lane, y: tile of rows, z: tile of tokens). */
static __global__ void __launch_bounds__(MANY_WARPS *WARP) mix_many(struct mix_call call) {
    int32_t chunk = (int32_t)blockIdx.x, lane = (int32_t)threadIdx.x;
    int32_t first_row = (int32_t)threadIdx.y * TILE;
    int32_t first_token = (int32_t)(blockIdx.y * blockDim.z + threadIdx.z) * TILE;
    float sums[TILE * TILE], squares[TILE];
#pragma unroll
    for (int32_t i = 0; i < TILE * TILE; i++)
        sums[i] = 0;
#pragma unroll
    for (int32_t i = 0; i < TILE; i++)
        squares[i] = 0;
    for (int32_t step = 0; step < CHUNK_STEPS; step++) {
        float w[TILE][FOUR];
#pragma unroll
        for (int32_t r = 0; r < TILE; r++) {
            int32_t row = first_row + r < call.rows ? first_row + r : call.rows - 1;
            load_chunk(call, call.fn + (int64_t)row * call.flat, chunk, step, w[r]);
        }
#pragma unroll
        for (int32_t t = 0; t < TILE; t++) {
            int32_t token = first_token + t < call.tokens ? first_token + t : call.tokens - 1;
            float v[FOUR];
            load_chunk(call, call.streams + (int64_t)token * call.flat, chunk, step, v);
#pragma unroll
            for (int32_t i = 0; i < FOUR; i++) {
#pragma unroll
                for (int32_t r = 0; r < TILE; r++)
                    sums[t * TILE + r] = fmaf(v[i], w[r][i], sums[t * TILE + r]);
                if (first_row == 0)
                    squares[t] = fmaf(v[i], v[i], squares[t]);
            }
        }
    }
    fold_sums(sums);
#pragma unroll
    for (int32_t e = 0; e < 2; e++) {
        int32_t place = 2 * lane + e, row = first_row + place % TILE;
        if (row < call.rows)
            store_partial(call, chunk, first_token + place / TILE, row, sums[e]);
    }
#pragma unroll
    for (int32_t t = 0; t < TILE && first_row == 0; t++) {
        float square = sum_warp(squares[t]);
        if (lane == 0)
            store_partial(call, chunk, first_token + t, call.rows, square);
    }
}

/* ---- coefficients ---- */

/* Softmax over each row of the matrix, plus eps. */
template <int streams>
__device__ static inline void softmax_lines(float *matrix, int32_t count_of_call, float eps) {
    const int32_t count = streams > 0 ? streams : count_of_call;
#pragma unroll
    for (int32_t i = 0; i < count; i++) {
        float *line = matrix + i * count, top = line[0], total = 0;
#pragma unroll
        for (int32_t j = 1; j < count; j++)
            top = larger_float(line[j], top);
#pragma unroll
        for (int32_t j = 0; j < count; j++) {
            line[j] = exp_float(line[j] - top);
            total += line[j];
        }
#pragma unroll
        for (int32_t j = 0; j < count; j++)
            line[j] = line[j] / total + eps;
    }
}

/* Divides the rows (line_step = count, step = 1) or columns of the matrix by their sums plus eps. */
template <int streams>
__device__ static inline void normalize_lines(
    float *matrix, int32_t count_of_call, int32_t line_step, int32_t step, float eps) {
    const int32_t count = streams > 0 ? streams : count_of_call;
#pragma unroll
    for (int32_t i = 0; i < count; i++) {
        float *line = matrix + i * line_step, total = line[0];
#pragma unroll
        for (int32_t j = 1; j < count; j++)
            total += line[j * step];
        float inverse = 1.0f / (total + eps);
#pragma unroll
        for (int32_t j = 0; j < count; j++)
            line[j * step] *= inverse;
    }
}

/* One token by one thread; mix [rows] holds the products. */
template <int streams>
__device__ static inline void set_coefficients(
    const struct mix_call &call, int64_t token, const float *mix, float factor) {
    const int32_t count = streams > 0 ? streams : call.count;
    for (int32_t s = 0; s < count; s++) {
        float pre = mix[s] * factor * call.scale[0] + call.base[s];
        float post = mix[count + s] * factor * call.scale[1] + call.base[count + s];
        call.pre[token * count + s] = sigmoid_float(pre) + call.hc_eps;
        call.post[token * count + s] = 2 * sigmoid_float(post);
    }
    float matrix[streams > 0 ? streams * streams : MOST_STREAMS * MOST_STREAMS];
#pragma unroll
    for (int32_t i = 0; i < count * count; i++)
        matrix[i] = mix[2 * count + i] * factor * call.scale[2] + call.base[2 * count + i];
    softmax_lines<streams>(matrix, count, call.hc_eps);
    normalize_lines<streams>(matrix, count, 1, count, call.hc_eps);
    for (int32_t i = 1; i < call.iterations; i++) {
        normalize_lines<streams>(matrix, count, count, 1, call.hc_eps);
        normalize_lines<streams>(matrix, count, 1, count, call.hc_eps);
    }
#pragma unroll
    for (int32_t i = 0; i < count * count; i++)
        call.comb[token * count * count + i] = matrix[i];
}

struct finish_shared {
    float sums[FINISH_TOKENS][MOST_SUMS];
};

/* A warp adds the chunks of one token; then a thread a token makes its coefficients. */
template <int streams> static __global__ void finish_mix(struct mix_call call) {
    struct finish_shared &shared = SHARED(struct finish_shared);
    int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    int64_t first = (int64_t)blockIdx.x * FINISH_TOKENS, token = first + warp;
    int32_t sums = call.rows + 1;
    for (int32_t r = lane; r < sums && token < call.tokens; r += WARP) {
        const float *partial = call.partials + token * sums + r;
        int64_t step = (int64_t)call.tokens * sums; /* from chunk to chunk */
        float sum = 0;
        for (int32_t chunk = 0; chunk < call.chunks; chunk += LOADED) {
            float value[LOADED]; /* all on their way before the first is added */
#pragma unroll
            for (int32_t i = 0; i < LOADED; i++)
                value[i] = chunk + i < call.chunks ? partial[(chunk + i) * step] : 0.0f;
#pragma unroll
            for (int32_t i = 0; i < LOADED; i++)
                sum += value[i];
        }
        shared.sums[warp][r] = sum;
    }
    __syncthreads();
    token = first + threadIdx.x;
    if (threadIdx.x >= FINISH_TOKENS || token >= call.tokens)
        return;
    const float *mix = shared.sums[threadIdx.x];
    float factor = 1.0f / sqrtf(mix[call.rows] / (float)call.flat + call.norm_eps);
    set_coefficients<streams>(call, token, mix, factor);
}

/* ---- launches ---- */

static void launch_products(struct stream *stream, const struct mix_call *from) {
    struct mix_call call = *from;
    unsigned chunks = (unsigned)call.chunks;
    if (call.tokens <= MOST_FEW) {
        dim3 grid(chunks, (unsigned)(call.rows / FEW_WARPS + 1),
            (unsigned)((call.tokens + FEW_TOKENS - 1) / FEW_TOKENS));
        LAUNCH(stream, mix_few, grid, FEW_WARPS * WARP, 0, call);
        return;
    }
    unsigned row_tiles = (unsigned)((call.rows + TILE - 1) / TILE), token_tiles = MANY_WARPS / row_tiles;
    token_tiles = token_tiles > 0 ? token_tiles : 1;
    unsigned tokens = token_tiles * TILE;
    dim3 grid(chunks, ((unsigned)call.tokens + tokens - 1) / tokens), block(WARP, row_tiles, token_tiles);
    LAUNCH(stream, mix_many, grid, block, 0, call);
}

void cuda_mix(struct stream *stream, const float *streams, int32_t tokens, int32_t streams_count,
    int32_t columns, const struct matrix *fn, const float *base, const float *scale, int32_t iterations,
    float hc_eps, float norm_eps, float *pre, float *post, float *comb) {
    if (tokens <= 0)
        return;
    if (streams_count > MOST_STREAMS || fn->format != WEIGHT_F32) {
        (void)stream_check(stream, cudaErrorInvalidValue, "mix: more than 8 streams, or fn is not float32");
        return;
    }
    int32_t flat = streams_count * columns, chunks = (flat + CHUNK - 1) / CHUNK;
    size_t bytes = (size_t)chunks * (size_t)tokens * (size_t)(fn->rows + 1) * sizeof(float);
    float *partials = (float *)stream_scratch(stream, SCRATCH_MIX, bytes);
    if (partials == NULL)
        return;
    bool whole = is_in_fours(streams, flat) && is_in_fours(fn->values, flat);
    struct mix_call call = {streams, (const float *)fn->values, tokens, fn->rows, flat, chunks, whole,
        partials, streams_count, base, scale, iterations, hc_eps, norm_eps, pre, post, comb};
    launch_products(stream, &call);
    dim3 grid((unsigned)((tokens + FINISH_TOKENS - 1) / FINISH_TOKENS));
    if (streams_count == USUAL_STREAMS)
        LAUNCH(stream, finish_mix<USUAL_STREAMS>, grid, FINISH_TOKENS * WARP, sizeof(struct finish_shared),
            call);
    else
        LAUNCH(stream, finish_mix<0>, grid, FINISH_TOKENS * WARP, sizeof(struct finish_shared), call);
}

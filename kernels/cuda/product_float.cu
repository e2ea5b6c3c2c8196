/* Products with weights of float32, in float32. The sum of one (token, output) is that of chunks of
 * FLOAT_CHUNK_COLUMNS columns in ascending order; in a chunk each lane of a warp adds up its fours of
 * columns, every 32nd one, by fused multiply-adds, and the lanes are folded by halves. So the order is that
 * of the columns, whatever the tile.
 */
#include "kernels/cuda/product_work.h"

enum { LANE_STEP = WARP * FOUR };

/* Four columns of a row of weights or inputs, zeros beyond the last; `whole`: rows are met in vectors. */
__device__ static inline void load_lane(
    const float *row, int32_t c, int32_t columns, bool whole, float v[FOUR]) {
    if (c < columns)
        load_four(row + c, columns - c, whole && columns - c >= FOUR, v);
    else
        v[0] = v[1] = v[2] = v[3] = 0;
}

/* A lane's part of a chunk's sums; the tile's rows and tokens that are not there repeat its first. */
template <int tokens>
__device__ static inline void float_chunk(const struct product_work *work, const struct product_job *job,
    int32_t chunk, bool whole, float sum[FLOAT_ROWS][tokens]) {
    int32_t lane = (int32_t)threadIdx.x % WARP, columns = work->w.columns;
    int32_t end = (chunk + 1) * FLOAT_CHUNK_COLUMNS < columns ? (chunk + 1) * FLOAT_CHUNK_COLUMNS : columns;
    for (int32_t c = chunk * FLOAT_CHUNK_COLUMNS + lane * FOUR; c - lane * FOUR < end; c += LANE_STEP) {
        float x[tokens][FOUR], w[FOUR];
#pragma unroll
        for (int t = 0; t < tokens; t++)
            load_lane(
                (const float *)(job->x + (t < job->tokens ? t : 0) * job->x_stride), c, columns, whole, x[t]);
#pragma unroll
        for (int r = 0; r < FLOAT_ROWS; r++) {
            int32_t row = job->first + (job->row + r < job->rows ? job->row + r : job->row);
            load_lane((const float *)job->w[0].codes + (int64_t)row * columns, c, columns, whole, w);
#pragma unroll
            for (int t = 0; t < tokens; t++)
#pragma unroll
                for (int i = 0; i < FOUR; i++)
                    sum[r][t] = fmaf(x[t][i], w[i], sum[r][t]);
        }
    }
}

template <int tokens> struct float_shared { float sum[FLOAT_ROWS][tokens]; };

/* Warps share out the chunks; their sums meet in shared memory, [chunks]. */
template <int tokens>
static __global__ void __launch_bounds__(FEW_MOST_WARPS *WARP)
    float_product(struct product_work work, bool whole) {
    typedef struct float_shared<tokens> shared_type;
    shared_type *shared = &SHARED(shared_type);
    struct product_job job;
    if (!find_job(&work, FLOAT_ROWS, tokens, &job))
        return;
    int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    for (int32_t chunk = warp; chunk < work.chunks; chunk += (int32_t)blockDim.x / WARP) {
        float sum[FLOAT_ROWS][tokens] = {{0}};
        float_chunk<tokens>(&work, &job, chunk, whole, sum);
#pragma unroll
        for (int r = 0; r < FLOAT_ROWS; r++)
#pragma unroll
            for (int t = 0; t < tokens; t++) {
                float folded = sum_warp(sum[r][t]);
                if (lane == 0)
                    shared[chunk].sum[r][t] = folded;
            }
    }
    __syncthreads();
    for (int32_t o = (int32_t)threadIdx.x; o < FLOAT_ROWS * job.tokens; o += (int32_t)blockDim.x) {
        int32_t row = o % FLOAT_ROWS, token = o / FLOAT_ROWS;
        float total = shared[0].sum[row][token];
        for (int32_t chunk = 1; chunk < work.chunks; chunk++)
            total += shared[chunk].sum[row][token];
        if (job.row + row < job.rows)
            put_output(&work, &job, token, job.row + row, total);
    }
}

/* Any number of columns, simply: a warp makes one output of one token. */
static __global__ void plain_float_product(struct product_work work) {
    struct product_job job;
    if (!find_job(&work, 1, FLOAT_TOKENS, &job))
        return;
    int32_t lane = (int32_t)threadIdx.x;
    const float *w = (const float *)job.w[0].codes + (int64_t)(job.first + job.row) * work.w.columns;
    for (int32_t token = 0; token < job.tokens; token++) {
        const float *x = (const float *)(job.x + token * job.x_stride);
        float total = 0;
        for (int32_t chunk = 0; chunk < work.chunks; chunk++) {
            int32_t end = (chunk + 1) * FLOAT_CHUNK_COLUMNS;
            end = end < work.w.columns ? end : work.w.columns;
            float sum = 0;
            for (int32_t c = chunk * FLOAT_CHUNK_COLUMNS; c < end; c += LANE_STEP)
                for (int32_t i = c + lane * FOUR; i < c + lane * FOUR + FOUR; i++)
                    sum = fmaf(i < end ? x[i] : 0.0f, i < end ? w[i] : 0.0f, sum);
            sum = sum_warp(sum);
            total = chunk == 0 ? sum : total + sum;
        }
        if (lane == 0)
            put_output(&work, &job, token, job.row, total);
    }
}

void launch_float_product(
    struct stream *stream, const struct product_work *work, const struct product_tiles *tiles) {
    struct product_work now = *work;
    now.chunks = tiles->chunks;
    now.row_tiles = (work->rows + tiles->rows - 1) / tiles->rows;
    dim3 grid((uint32_t)now.row_tiles * (uint32_t)tiles->token_tiles, (uint32_t)work->groups);
    bool whole = work->w.columns % FOUR == 0 &&
                 ((uintptr_t)work->w.codes | (uintptr_t)work->x.values | (uintptr_t)work->x.stride) % 16 == 0;
    uint32_t threads = (uint32_t)tiles->warps * WARP;
    size_t bytes = (size_t)tiles->shared_bytes;
    if (tiles->kernel == PRODUCT_PLAIN)
        LAUNCH(stream, plain_float_product, grid, WARP, 0, now);
    else if (tiles->tokens == 1)
        LAUNCH(stream, (float_product<1>), grid, threads, bytes, now, whole);
    else
        LAUNCH(stream, (float_product<FLOAT_TOKENS>), grid, threads, bytes, now, whole);
}

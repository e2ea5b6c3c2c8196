/* Operations that meet each column by itself: activations, sums of experts and residual streams, biases, pairs, copies. */
#include "kernels/cuda/functions.h"
#include "kernels/cuda/operations.h"

enum { FLAT_THREADS = 256, FLAT_FOURS = 4, USUAL_STREAMS = 4, MOST_STREAMS = 8 };

/* ---- flat arrays ---- */

/* Blocks for `count` values that lie one after the other: each thread meets up to FLAT_FOURS fours, a block's width apart. */
static unsigned flat_blocks(int64_t count) {
    int64_t values = (int64_t)FLAT_THREADS * FLAT_FOURS * FOUR;
    return (unsigned)((count + values - 1) / values);
}

/* This thread's four number k of a flat array. */
__device__ static inline int64_t flat_place(int32_t k) {
    return (((int64_t)blockIdx.x * FLAT_FOURS + k) * FLAT_THREADS + threadIdx.x) * FOUR;
}

__device__ static inline int32_t flat_left(int64_t count, int64_t at) {
    return count - at < FOUR ? (int32_t)(count - at) : (int32_t)FOUR;
}

static __global__ void gated_units(
    const float *gate, const float *up, int64_t count, float limit, bool whole, float *out) {
#pragma unroll
    for (int32_t k = 0; k < FLAT_FOURS; k++) {
        int64_t at = flat_place(k);
        if (at >= count)
            return;
        int32_t left = flat_left(count, at);
        float g[FOUR], u[FOUR], v[FOUR];
        load_four(gate + at, left, whole && left == FOUR, g);
        load_four(up + at, left, whole && left == FOUR, u);
        for (int32_t i = 0; i < FOUR; i++) {
            float bounded = smaller_float(g[i], limit);
            v[i] = bounded * sigmoid_float(bounded) * smaller_float(larger_float(u[i], -limit), limit);
        }
        store_four(out + at, left, whole && left == FOUR, v);
    }
}

void cuda_swiglu(struct stream *stream, const float *gate, const float *up, int32_t tokens, int32_t columns,
    float limit, float *out) {
    int64_t count = (int64_t)tokens * columns;
    if (count <= 0)
        return;
    bool whole = is_in_fours(gate, FOUR) && is_in_fours(up, FOUR) && is_in_fours(out, FOUR);
    LAUNCH(stream, gated_units, flat_blocks(count), FLAT_THREADS, 0, gate, up, count, limit, whole, out);
}

static __global__ void add_values(float *x, const float *y, int64_t count, bool whole) {
#pragma unroll
    for (int32_t k = 0; k < FLAT_FOURS; k++) {
        int64_t at = flat_place(k);
        if (at >= count)
            return;
        int32_t left = flat_left(count, at);
        float v[FOUR], w[FOUR];
        load_four(x + at, left, whole && left == FOUR, v);
        load_four(y + at, left, whole && left == FOUR, w);
        for (int32_t i = 0; i < FOUR; i++)
            v[i] += w[i];
        store_four(x + at, left, whole && left == FOUR, v);
    }
}

void cuda_add(struct stream *stream, float *x, const float *y, int64_t count) {
    if (count <= 0)
        return;
    bool whole = is_in_fours(x, FOUR) && is_in_fours(y, FOUR);
    LAUNCH(stream, add_values, flat_blocks(count), FLAT_THREADS, 0, x, y, count, whole);
}

static __global__ void gelu_values(float *x, int64_t count, bool whole) {
#pragma unroll
    for (int32_t k = 0; k < FLAT_FOURS; k++) {
        int64_t at = flat_place(k);
        if (at >= count)
            return;
        int32_t left = flat_left(count, at);
        float v[FOUR];
        load_four(x + at, left, whole && left == FOUR, v);
        for (int32_t i = 0; i < FOUR; i++)
            v[i] = v[i] * 0.5f * (1.0f + erff(v[i] * 0.70710678f));
        store_four(x + at, left, whole && left == FOUR, v);
    }
}

void cuda_gelu(struct stream *stream, float *x, int64_t count) {
    if (count > 0)
        LAUNCH(stream, gelu_values, flat_blocks(count), FLAT_THREADS, 0, x, count, is_in_fours(x, FOUR));
}

/* ---- rows ---- */

static __global__ void add_bias_rows(
    float *x, int32_t tokens, int32_t columns, const uint16_t *bias, bool whole, bool bias_whole) {
    int64_t t = shape_row();
    if (t >= tokens)
        return;
    for (int32_t c = shape_first() * FOUR; c < columns; c += shape_step() * FOUR) {
        float v[FOUR], b[FOUR];
        load_four(x + t * columns + c, columns - c, whole, v);
        load_four_bf16(bias + c, columns - c, bias_whole, b);
        for (int32_t i = 0; i < FOUR; i++)
            v[i] += b[i];
        store_four(x + t * columns + c, columns - c, whole, v);
    }
}

void cuda_add_bias(struct stream *stream, float *x, int32_t tokens, int32_t columns, const void *bias) {
    if (tokens <= 0)
        return;
    struct row_shape shape = shape_rows(stream, tokens, fours_of(columns));
    LAUNCH(stream, add_bias_rows, shape.grid, shape.block, 0, x, tokens, columns, (const uint16_t *)bias,
        is_in_fours(x, columns), is_in_fours_bf16(bias, columns));
}

static __global__ void combine_rows(const float *shared, const float *routed, const int32_t *place,
    int32_t tokens, int32_t k, int32_t columns, bool whole, float *out) {
    int64_t t = shape_row();
    if (t >= tokens)
        return;
    for (int32_t c = shape_first() * FOUR; c < columns; c += shape_step() * FOUR) {
        float sum[FOUR], v[FOUR];
        load_four(shared + t * columns + c, columns - c, whole, sum);
#pragma unroll 4
        for (int32_t i = 0; i < k; i++) {
            load_four(routed + (int64_t)place[t * k + i] * columns + c, columns - c, whole, v);
            for (int32_t j = 0; j < FOUR; j++)
                sum[j] += v[j];
        }
        store_four(out + t * columns + c, columns - c, whole, sum);
    }
}

void cuda_combine(struct stream *stream, const float *shared, const float *routed, const int32_t *place,
    int32_t tokens, int32_t k, int32_t columns, float *out) {
    if (tokens <= 0)
        return;
    bool whole = is_in_fours(shared, columns) && is_in_fours(routed, columns) && is_in_fours(out, columns);
    struct row_shape shape = shape_rows(stream, tokens, fours_of(columns));
    LAUNCH(stream, combine_rows, shape.grid, shape.block, 0, shared, routed, place, tokens, k, columns, whole,
        out);
}

static __global__ void copy_listed_rows(const struct row_copy *list, int32_t count, int32_t columns) {
    int64_t r = shape_row();
    if (r >= count || list[r].to == NULL)
        return;
    float *to = list[r].to;
    const float *from = list[r].from;
    bool whole = columns % FOUR == 0 && ((uintptr_t)to | (uintptr_t)from) % 16 == 0;
    for (int32_t c = shape_first() * FOUR; c < columns; c += shape_step() * FOUR) {
        float v[FOUR];
        load_four(from + c, columns - c, whole, v);
        store_four(to + c, columns - c, whole, v);
    }
}

void cuda_copy_rows(struct stream *stream, const struct row_copy *list, int32_t count, int32_t columns) {
    if (count <= 0)
        return;
    struct row_shape shape = shape_rows(stream, count, fours_of(columns));
    LAUNCH(stream, copy_listed_rows, shape.grid, shape.block, 0, list, count, columns);
}

/* ---- pairs of rows ---- */

static __global__ void compress_row_pairs(
    const float *kv, const float *gate, int32_t groups, int32_t columns, bool whole, float *out) {
    int64_t g = shape_row();
    if (g >= groups)
        return;
    const float *values = kv + g * 2 * columns, *gates = gate + g * 2 * columns;
    for (int32_t c = shape_first() * FOUR; c < columns; c += shape_step() * FOUR) {
        int32_t left = columns - c;
        float g0[FOUR], g1[FOUR], v0[FOUR], v1[FOUR], sum[FOUR];
        load_four(gates + c, left, whole, g0);
        load_four(gates + columns + c, left, whole, g1);
        load_four(values + c, left, whole, v0);
        load_four(values + columns + c, left, whole, v1);
        for (int32_t i = 0; i < FOUR; i++) {
            float top = larger_float(g0[i], g1[i]);
            float e0 = exp_float(g0[i] - top), e1 = exp_float(g1[i] - top), total = e0 + e1;
            sum[i] = fmaf(v1[i], e1 / total, v0[i] * (e0 / total));
        }
        store_four(out + g * columns + c, left, whole, sum);
    }
}

void cuda_compress_pairs(
    struct stream *stream, const float *kv, const float *gate, int32_t groups, int32_t columns, float *out) {
    if (groups <= 0)
        return;
    bool whole = is_in_fours(kv, columns) && is_in_fours(gate, columns) && is_in_fours(out, columns);
    struct row_shape shape = shape_rows(stream, groups, fours_of(columns));
    LAUNCH(stream, compress_row_pairs, shape.grid, shape.block, 0, kv, gate, groups, columns, whole, out);
}

/* ---- residual streams ---- */

static __global__ void start_token_streams(
    const float *x, int32_t tokens, int32_t count, int32_t columns, bool whole, float *streams, float *pre) {
    int64_t t = shape_row();
    if (t >= tokens)
        return;
    for (int32_t s = shape_first(); s < count; s += shape_step())
        pre[t * count + s] = s == 0 ? 1.0f : 0.0f;
    for (int32_t c = shape_first() * FOUR; c < columns; c += shape_step() * FOUR) {
        float v[FOUR];
        load_four(x + t * columns + c, columns - c, whole, v);
        for (int32_t s = 0; s < count; s++)
            store_four(streams + (t * count + s) * columns + c, columns - c, whole, v);
    }
}

void cuda_start_streams(struct stream *stream, const float *x, int32_t tokens, int32_t streams_count,
    int32_t columns, float *streams, float *pre) {
    if (tokens <= 0)
        return;
    bool whole = is_in_fours(x, columns) && is_in_fours(streams, columns);
    struct row_shape shape = shape_rows(stream, tokens, fours_of(columns));
    LAUNCH(stream, start_token_streams, shape.grid, shape.block, 0, x, tokens, streams_count, columns, whole,
        streams, pre);
}

struct expand_call {
    const float *x, *post, *comb;
    float *streams;
    int32_t tokens, count, columns;
    bool whole;
};

/* usual: call.count is USUAL_STREAMS, so that coefficients and streams stay in registers. */
template <bool usual> static __global__ void expand_streams(struct expand_call call) {
    int64_t t = shape_row();
    if (t >= call.tokens)
        return;
    const int32_t count = usual ? (int32_t)USUAL_STREAMS : call.count;
    const float *post = call.post + t * count, *comb = call.comb + t * count * count;
    float *streams = call.streams + t * count * call.columns;
    for (int32_t c = shape_first() * FOUR; c < call.columns; c += shape_step() * FOUR) {
        int32_t left = call.columns - c;
        float x[FOUR], old[MOST_STREAMS][FOUR];
        load_four(call.x + t * call.columns + c, left, call.whole, x);
#pragma unroll
        for (int32_t i = 0; i < count; i++)
            load_four(streams + (int64_t)i * call.columns + c, left, call.whole, old[i]);
#pragma unroll
        for (int32_t j = 0; j < count; j++) {
            float sum[FOUR];
            for (int32_t l = 0; l < FOUR; l++)
                sum[l] = x[l] * post[j];
#pragma unroll
            for (int32_t i = 0; i < count; i++)
                for (int32_t l = 0; l < FOUR; l++)
                    sum[l] = fmaf(comb[i * count + j], old[i][l], sum[l]);
            store_four(streams + (int64_t)j * call.columns + c, left, call.whole, sum);
        }
    }
}

void cuda_expand(struct stream *stream, const float *x, const float *post, const float *comb, int32_t tokens,
    int32_t streams_count, int32_t columns, float *streams) {
    if (tokens <= 0)
        return;
    if (streams_count > MOST_STREAMS) {
        (void)stream_check(stream, cudaErrorInvalidValue, "expand: more than 8 streams");
        return;
    }
    bool whole = is_in_fours(x, columns) && is_in_fours(streams, columns);
    struct expand_call call = {x, post, comb, streams, tokens, streams_count, columns, whole};
    struct row_shape shape = shape_rows(stream, tokens, fours_of(columns));
    if (streams_count == USUAL_STREAMS)
        LAUNCH(stream, expand_streams<true>, shape.grid, shape.block, 0, call);
    else
        LAUNCH(stream, expand_streams<false>, shape.grid, shape.block, 0, call);
}

/* ---- squares ---- */

struct square_call {
    const float *x;
    float *out;
    int32_t grid_rows, grid_columns, columns, ratio, wide; /* wide: squares side by side */
};

/* A block: one square, a thread: one column of it after another, in the order in which they are written. */
static __global__ void pack_grid_squares(struct square_call call) {
    int32_t square = (int32_t)blockIdx.x, parts = call.ratio * call.ratio, size = call.columns * parts;
    int32_t top = square / call.wide * call.ratio, left = square % call.wide * call.ratio;
    for (int32_t i = (int32_t)threadIdx.x; i < size; i += (int32_t)blockDim.x) {
        int32_t c = i / parts, part = i % parts;
        int32_t y = top + part / call.ratio, z = left + part % call.ratio;
        bool exists = y < call.grid_rows && z < call.grid_columns;
        call.out[(int64_t)square * size + i] =
            exists ? call.x[((int64_t)y * call.grid_columns + z) * call.columns + c] : 0.0f;
    }
}

void cuda_pack_squares(struct stream *stream, const float *x, int32_t grid_rows, int32_t grid_columns,
    int32_t columns, int32_t ratio, float *out) {
    int32_t wide = (grid_columns + ratio - 1) / ratio, high = (grid_rows + ratio - 1) / ratio;
    if (wide * high <= 0)
        return;
    struct square_call call = {x, out, grid_rows, grid_columns, columns, ratio, wide};
    LAUNCH(stream, pack_grid_squares, (unsigned)(wide * high), FLAT_THREADS, 0, call);
}

/* The residual streams: hyper-connections and the Engram addition. */
#include "kernels/cpu/operations/internal.h"

#include <math.h> /* copysignf, fabsf, sqrtf */

enum { USUAL_STREAMS = 4, MOST_STREAMS = 8, MOST_MIXES = (2 + MOST_STREAMS) * MOST_STREAMS };

static void start_streams(struct stream *stream, const float *x, int32_t tokens, int32_t streams_count,
    int32_t columns, float *streams, float *pre) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * columns))
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t s = 0; s < streams_count; s++) {
            memcpy(streams + ((int64_t)t * streams_count + s) * columns, x + (int64_t)t * columns,
                (size_t)columns * sizeof(float));
            pre[t * streams_count + s] = s == 0;
        }
}

/* out = sum over s of factor[s] * streams[s]; `count` streams, a constant where speed matters. */
static inline __attribute__((always_inline)) void collapse_row(
    const float *streams, const float *factor, const int32_t count, int32_t columns, float *out) {
    int32_t c = 0;
    for (; c + LANES <= columns; c += LANES) {
        lanes sum = load(streams + c) * factor[0];
        for (int32_t s = 1; s < count; s++)
            sum = multiply_add(splat(factor[s]), load(streams + (int64_t)s * columns + c), sum);
        store(out + c, sum);
    }
    if (c < columns) {
        lanes sum = load_part(streams + c, columns - c) * factor[0];
        for (int32_t s = 1; s < count; s++)
            sum = multiply_add(
                splat(factor[s]), load_part(streams + (int64_t)s * columns + c, columns - c), sum);
        store_part(out + c, sum, columns - c);
    }
}

static void collapse_norm(struct stream *stream, const float *streams, const float *pre, int32_t tokens,
    int32_t streams_count, int32_t columns, const void *weight, float eps, float *out) {
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (is_worth_threads((int64_t)tokens * columns * streams_count))
    for (int32_t t = 0; t < tokens; t++) {
        float *row = out + (int64_t)t * columns;
        const float *from = streams + (int64_t)t * streams_count * columns;
        const float *factor = pre + (int64_t)t * streams_count;
        if (streams_count == USUAL_STREAMS)
            collapse_row(from, factor, USUAL_STREAMS, columns, row);
        else
            collapse_row(from, factor, streams_count, columns, row);
        norm_row(row, columns, weight, eps, row);
    }
}

/* ---- mix coefficients ---- */

/* Below, a lane is a token, so that the many small steps are done for LANES tokens at once. `count` streams, a constant
 * where speed matters. */

/* Softmax over each row of [count, count], plus eps. */
static inline __attribute__((always_inline)) void softmax_rows(lanes *comb, const int32_t count, float eps) {
    for (int32_t i = 0; i < count; i++) {
        lanes *row = comb + i * count;
        lanes top = row[0], total = {0};
        for (int32_t j = 1; j < count; j++)
            top = larger(row[j], top);
        for (int32_t j = 0; j < count; j++) {
            row[j] = vector_exp(row[j] - top);
            total += row[j];
        }
        for (int32_t j = 0; j < count; j++)
            row[j] = row[j] / total + eps;
    }
}

/* Divides `count` lines (rows or columns) of the matrix by their sums plus eps; the elements of a line are `step` apart. */
static inline __attribute__((always_inline)) void normalize_lines(
    lanes *comb, const int32_t count, const int32_t line_step, const int32_t step, float eps) {
#pragma GCC unroll 8
    for (int32_t i = 0; i < count; i++) {
        lanes *line = comb + i * line_step, total = line[0];
#pragma GCC unroll 8
        for (int32_t j = 1; j < count; j++)
            total += line[j * step];
        lanes inverse = 1.0f / (total + eps);
#pragma GCC unroll 8
        for (int32_t j = 0; j < count; j++)
            line[j * step] *= inverse;
    }
}

/* mix, pre, post and comb as in `mix`, each number a vector of tokens. */
static inline __attribute__((always_inline)) void mix_lanes(const lanes *mix, const int32_t count,
    const float *base, const float *scale, int32_t iterations, float hc_eps, lanes *pre, lanes *post,
    lanes *comb) {
    for (int32_t s = 0; s < count; s++) {
        pre[s] = vector_sigmoid(mix[s] * scale[0] + base[s]) + hc_eps;
        post[s] = 2 * vector_sigmoid(mix[count + s] * scale[1] + base[count + s]);
    }
    lanes matrix[MOST_STREAMS * MOST_STREAMS];
#pragma GCC unroll 64
    for (int32_t i = 0; i < count * count; i++)
        matrix[i] = mix[2 * count + i] * scale[2] + base[2 * count + i];
    softmax_rows(matrix, count, hc_eps);
    normalize_lines(matrix, count, 1, count, hc_eps);
    for (int32_t i = 1; i < iterations; i++) {
        normalize_lines(matrix, count, count, 1, hc_eps);
        normalize_lines(matrix, count, 1, count, hc_eps);
    }
#pragma GCC unroll 64
    for (int32_t i = 0; i < count * count; i++)
        comb[i] = matrix[i];
}

/* One call: what the threads share. */
struct mix_call {
    const float *streams, *mixes; /* mixes [T, (2 + S) * S]: products that are not normalized yet */
    int32_t tokens, count, flat;  /* flat: S * D */
    const float *base, *scale;
    int32_t iterations;
    float hc_eps, norm_eps;
    float *pre, *post, *comb;
};

/* Copies column `lane` of `count` vectors. */
static void copy_lane(const lanes *from, int32_t lane, int32_t count, float *to) {
    for (int32_t i = 0; i < count; i++)
        to[i] = from[i][lane];
}

/* Tokens [begin, begin + LANES), as far as they exist. */
static void mix_tokens(const struct mix_call *call, int32_t begin) {
    int32_t s = call->count, rows = (2 + s) * s, tokens = least(LANES, call->tokens - begin);
    lanes mix[MOST_MIXES], pre[MOST_STREAMS], post[MOST_STREAMS], comb[MOST_STREAMS * MOST_STREAMS];
    for (int32_t i = 0; i < rows; i++)
        mix[i] = (lanes){0};
    for (int32_t l = 0; l < tokens; l++) {
        const float *from = call->mixes + (int64_t)(begin + l) * rows;
        float mean =
            sum_of_squares(call->streams + (int64_t)(begin + l) * call->flat, call->flat) / (float)call->flat;
        float factor = 1.0f / sqrtf(mean + call->norm_eps);
        for (int32_t i = 0; i < rows; i++)
            mix[i][l] = from[i] * factor;
    }
    if (s == USUAL_STREAMS)
        mix_lanes(
            mix, USUAL_STREAMS, call->base, call->scale, call->iterations, call->hc_eps, pre, post, comb);
    else
        mix_lanes(mix, s, call->base, call->scale, call->iterations, call->hc_eps, pre, post, comb);
    for (int32_t l = 0; l < tokens; l++) {
        int64_t token = begin + l;
        copy_lane(pre, l, s, call->pre + token * s);
        copy_lane(post, l, s, call->post + token * s);
        copy_lane(comb, l, s * s, call->comb + token * s * s);
    }
}

static void mix(struct stream *stream, const float *streams, int32_t tokens, int32_t streams_count,
    int32_t columns, const struct matrix *fn, const float *base, const float *scale, int32_t iterations,
    float hc_eps, float norm_eps, float *pre, float *post, float *comb) {
    if (tokens <= 0)
        return;
    int32_t flat = streams_count * columns;
    float *mixes = stream_scratch(stream, SCRATCH_MIX, (size_t)tokens * (size_t)fn->rows * sizeof(float));
    struct rows rows = {(void *)streams, ROWS_F32, flat, (int64_t)flat * 4};
    FOR_SET(product)(stream, &rows, tokens, fn, mixes, fn->rows);
    struct mix_call call = {streams, mixes, tokens, streams_count, flat, base, scale, iterations, hc_eps,
        norm_eps, pre, post, comb};
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * flat))
    for (int32_t t = 0; t < tokens; t += LANES)
        mix_tokens(&call, t);
}

/* ---- expansion ---- */

/* Columns [c, c + LANES) of a token, of which `left` exist; whole vectors and the count are constant where speed
 * matters. */
static inline __attribute__((always_inline)) void expand_vector(const float *x, const float *post,
    const float *comb, const int32_t count, int32_t columns, int32_t c, const bool is_whole, float *streams) {
    int32_t left = is_whole ? LANES : columns - c;
    lanes value = load_part(x + c, left), old[MOST_STREAMS] = {{0}};
#pragma GCC unroll 8
    for (int32_t i = 0; i < count; i++)
        old[i] = load_part(streams + (int64_t)i * columns + c, left);
#pragma GCC unroll 8
    for (int32_t j = 0; j < count; j++) {
        lanes sum = value * post[j];
#pragma GCC unroll 8
        for (int32_t i = 0; i < count; i++)
            sum = multiply_add(splat(comb[i * count + j]), old[i], sum);
        store_part(streams + (int64_t)j * columns + c, sum, left);
    }
}

static inline __attribute__((always_inline)) void expand_row(const float *x, const float *post,
    const float *comb, const int32_t count, int32_t columns, float *streams) {
    int32_t c = 0;
    for (; c + LANES <= columns; c += LANES)
        expand_vector(x, post, comb, count, columns, c, true, streams);
    if (c < columns)
        expand_vector(x, post, comb, count, columns, c, false, streams);
}

static void expand(struct stream *stream, const float *x, const float *post, const float *comb,
    int32_t tokens, int32_t streams_count, int32_t columns, float *streams) {
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (is_worth_threads((int64_t)tokens * columns * streams_count))
    for (int32_t t = 0; t < tokens; t++) {
        const float *row = x + (int64_t)t * columns, *factors = post + (int64_t)t * streams_count;
        const float *matrix = comb + (int64_t)t * streams_count * streams_count;
        float *to = streams + (int64_t)t * streams_count * columns;
        if (streams_count == USUAL_STREAMS) {
            /* copies that no store to the streams can change stay in registers */
            float post_copy[USUAL_STREAMS], comb_copy[USUAL_STREAMS * USUAL_STREAMS];
            memcpy(post_copy, factors, sizeof post_copy);
            memcpy(comb_copy, matrix, sizeof comb_copy);
            expand_row(row, post_copy, comb_copy, USUAL_STREAMS, columns, to);
        } else {
            expand_row(row, factors, matrix, streams_count, columns, to);
        }
    }
}

/* ---- Engram ---- */

/* The gate of one stream: from its cosine with the key, weighted. */
static float engram_gate(const float *row, const float *key, const uint16_t *q_weight,
    const uint16_t *k_weight, int32_t columns, float eps) {
    lanes dots = {0};
    for (int32_t c = 0; c < columns; c += LANES) {
        int32_t count = columns - c;
        lanes weight = load_bf16_part(q_weight + c, count) * load_bf16_part(k_weight + c, count);
        dots = multiply_add(load_part(row + c, count) * weight, load_part(key + c, count), dots);
    }
    float dot = sum_lanes(dots) * (1.0f / sqrtf((float)columns));
    dot /= sqrtf(sum_of_squares(row, columns) / (float)columns + eps);
    dot /= sqrtf(sum_of_squares(key, columns) / (float)columns + eps);
    float magnitude = fabsf(dot) > 1e-6f ? fabsf(dot) : 1e-6f;
    return scalar_sigmoid(copysignf(sqrtf(magnitude), dot));
}

static void engram_add(struct stream *stream, const float *kv, const void *q_weight, const void *k_weight,
    const uint8_t *is_image, int32_t tokens, int32_t streams_count, int32_t columns, float eps,
    float *streams) {
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (is_worth_threads((int64_t)tokens * columns * streams_count))
    for (int32_t t = 0; t < tokens; t++) {
        const float *keys = kv + (int64_t)t * (streams_count + 1) * columns;
        const float *value = keys + (int64_t)streams_count * columns;
        for (int32_t s = 0; s < streams_count && !is_image[t]; s++) {
            float *row = streams + ((int64_t)t * streams_count + s) * columns;
            int64_t at = (int64_t)s * columns;
            float gate = engram_gate(row, keys + at, (const uint16_t *)q_weight + at,
                (const uint16_t *)k_weight + at, columns, eps);
            for (int32_t c = 0; c < columns; c += LANES)
                store_part(row + c,
                    multiply_add(
                        splat(gate), load_part(value + c, columns - c), load_part(row + c, columns - c)),
                    columns - c);
        }
    }
}

void FOR_SET(fill_streams)(struct kernels *kernels) {
    kernels->start_streams = start_streams;
    kernels->collapse_norm = collapse_norm;
    kernels->mix = mix;
    kernels->expand = expand;
    kernels->engram_add = engram_add;
}

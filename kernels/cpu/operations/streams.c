/* The residual streams: hyper-connections and the Engram addition. */
#include "kernels/cpu/operations/internal.h"

#include <math.h> /* copysignf, fabsf, sqrtf */

enum { MOST_STREAMS = 8, MOST_MIXES = (2 + MOST_STREAMS) * MOST_STREAMS };

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

/* out = sum over s of factor[s] * streams[s] */
static void collapse_row(
    const float *streams, const float *factor, int32_t streams_count, int32_t columns, float *out) {
    for (int32_t c = 0; c < columns; c += LANES) {
        lanes sum = load_part(streams + c, columns - c) * factor[0];
        for (int32_t s = 1; s < streams_count; s++)
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
        collapse_row(streams + (int64_t)t * streams_count * columns, pre + (int64_t)t * streams_count,
            streams_count, columns, row);
        norm_row(row, columns, weight, eps, row);
    }
}

/* ---- mix coefficients ---- */

/* Softmax over each row of [count, count], plus eps. */
static void softmax_rows(float *comb, int32_t count, float eps) {
    for (int32_t i = 0; i < count; i++) {
        float *row = comb + i * count;
        float top = row[0], total = 0;
        for (int32_t j = 1; j < count; j++)
            top = row[j] > top ? row[j] : top;
        for (int32_t j = 0; j < count; j++) {
            row[j] = scalar_exp(row[j] - top);
            total += row[j];
        }
        for (int32_t j = 0; j < count; j++)
            row[j] = row[j] / total + eps;
    }
}

static void normalize_rows(float *comb, int32_t count, float eps) {
    for (int32_t i = 0; i < count; i++) {
        float total = 0;
        for (int32_t j = 0; j < count; j++)
            total += comb[i * count + j];
        for (int32_t j = 0; j < count; j++)
            comb[i * count + j] /= total + eps;
    }
}

static void normalize_columns(float *comb, int32_t count, float eps) {
    for (int32_t j = 0; j < count; j++) {
        float total = 0;
        for (int32_t i = 0; i < count; i++)
            total += comb[i * count + j];
        for (int32_t i = 0; i < count; i++)
            comb[i * count + j] /= total + eps;
    }
}

static void mix_token(float *mix, int32_t count, const float *base, const float *scale, int32_t iterations,
    float hc_eps, float *pre, float *post, float *comb) {
    for (int32_t s = 0; s < count; s++) {
        pre[s] = scalar_sigmoid(mix[s] * scale[0] + base[s]) + hc_eps;
        post[s] = 2 * scalar_sigmoid(mix[count + s] * scale[1] + base[count + s]);
    }
    for (int32_t i = 0; i < count * count; i++)
        comb[i] = mix[2 * count + i] * scale[2] + base[2 * count + i];
    softmax_rows(comb, count, hc_eps);
    normalize_columns(comb, count, hc_eps);
    for (int32_t i = 1; i < iterations; i++) {
        normalize_rows(comb, count, hc_eps);
        normalize_columns(comb, count, hc_eps);
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
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * flat))
    for (int32_t t = 0; t < tokens; t++) {
        float *row = mixes + (int64_t)t * fn->rows;
        float mean = sum_of_squares(streams + (int64_t)t * flat, flat) / (float)flat;
        float factor = 1.0f / sqrtf(mean + norm_eps);
        for (int32_t i = 0; i < fn->rows; i++)
            row[i] *= factor;
        mix_token(row, streams_count, base, scale, iterations, hc_eps, pre + (int64_t)t * streams_count,
            post + (int64_t)t * streams_count, comb + (int64_t)t * streams_count * streams_count);
    }
}

/* ---- expansion ---- */

static void expand_row(
    const float *x, const float *post, const float *comb, int32_t count, int32_t columns, float *streams) {
    for (int32_t c = 0; c < columns; c += LANES) {
        lanes value = load_part(x + c, columns - c);
        lanes old[MOST_STREAMS];
        for (int32_t i = 0; i < count; i++)
            old[i] = load_part(streams + (int64_t)i * columns + c, columns - c);
        for (int32_t j = 0; j < count; j++) {
            lanes sum = value * post[j];
            for (int32_t i = 0; i < count; i++)
                sum = multiply_add(splat(comb[i * count + j]), old[i], sum);
            store_part(streams + (int64_t)j * columns + c, sum, columns - c);
        }
    }
}

static void expand(struct stream *stream, const float *x, const float *post, const float *comb,
    int32_t tokens, int32_t streams_count, int32_t columns, float *streams) {
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (is_worth_threads((int64_t)tokens * columns * streams_count))
    for (int32_t t = 0; t < tokens; t++)
        expand_row(x + (int64_t)t * columns, post + (int64_t)t * streams_count,
            comb + (int64_t)t * streams_count * streams_count, streams_count, columns,
            streams + (int64_t)t * streams_count * columns);
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

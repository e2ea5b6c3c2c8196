/* Operations of the vision encoder: biases, GELU, the two-dimensional rotation, full attention within an image. */
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/softmax.h"

#include <math.h> /* cosf, erff, sinf, sqrtf */

enum { QUERY_TILE = 32 }; /* queries that meet all keys of a head as one work item */

static void add_bias(struct stream *stream, float *x, int32_t tokens, int32_t columns, const void *bias) {
    const uint16_t *values = bias;
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * columns))
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t c = 0; c < columns; c += LANES) {
            float *at = x + (int64_t)t * columns + c;
            store_part(at, load_part(at, columns - c) + load_bf16_part(values + c, columns - c), columns - c);
        }
}

static void add(struct stream *stream, float *x, const float *y, int64_t count) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads(count))
    for (int64_t i = 0; i < count; i++)
        x[i] += y[i];
}

static void gelu(struct stream *stream, float *x, int64_t count) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads(count))
    for (int64_t i = 0; i < count; i++)
        x[i] = x[i] * 0.5f * (1.0f + erff(x[i] * 0.70710678f));
}

/* ---- rotation ---- */

static void rotate_halves(float *x, const float *turns, int32_t half) {
    for (int32_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i], c = turns[2 * i], s = turns[2 * i + 1];
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

static void rotate_grid(struct stream *stream, float *qkv, int32_t grid_rows, int32_t grid_columns,
    int32_t heads, int32_t width, const float *frequency) {
    int32_t half = width / 2, quarter = width / 4;
    float *all =
        stream_scratch(stream, SCRATCH_GRID, (size_t)stream->threads * (size_t)width * sizeof(float));
#pragma omp parallel for num_threads(stream->threads)
    for (int32_t t = 0; t < grid_rows * grid_columns; t++) {
        float *turns = all + (int64_t)thread_number() * width;
        for (int32_t i = 0; i < half; i++) {
            int32_t at = i < quarter ? t / grid_columns : t % grid_columns;
            float angle = (float)at * frequency[i % quarter];
            turns[2 * i] = cosf(angle);
            turns[2 * i + 1] = sinf(angle);
        }
        for (int32_t h = 0; h < 2 * heads; h++) /* queries, then keys */
            rotate_halves(qkv + ((int64_t)t * 3 * heads + h) * width, turns, half);
    }
}

/* ---- squares ---- */

static void pack_squares(struct stream *stream, const float *x, int32_t grid_rows, int32_t grid_columns,
    int32_t columns, int32_t ratio, float *out) {
    int32_t wide = (grid_columns + ratio - 1) / ratio, high = (grid_rows + ratio - 1) / ratio;
    int64_t size = (int64_t)columns * ratio * ratio;
#pragma omp parallel for num_threads(stream->threads)
    for (int32_t square = 0; square < high * wide; square++)
        for (int32_t part = 0; part < ratio * ratio; part++) {
            int32_t y = square / wide * ratio + part / ratio, z = square % wide * ratio + part % ratio;
            const float *cell =
                y < grid_rows && z < grid_columns ? x + ((int64_t)y * grid_columns + z) * columns : NULL;
            for (int32_t c = 0; c < columns; c++)
                out[square * size + (int64_t)c * ratio * ratio + part] = cell ? cell[c] : 0;
        }
}

/* ---- attention ---- */

/* One image: heads' queries and keys as padded rows, values transposed, so that both products are dot products. */
struct image_call {
    int32_t tokens, padded_tokens, heads, width, padded_width;
    float *q, *k;  /* [heads, T, padded_width] */
    float *v;      /* [heads, width, padded_tokens] */
    float *scores; /* [threads, QUERY_TILE, padded_tokens] */
    float *out;    /* [T, heads * width] */
};

static void unpack_head(const struct image_call *call, const float *qkv, int32_t head) {
    int32_t width = call->width;
    for (int32_t t = 0; t < call->tokens; t++) {
        const float *q = qkv + ((int64_t)t * 3 * call->heads + head) * width;
        const float *k = q + (int64_t)call->heads * width, *v = k + (int64_t)call->heads * width;
        int64_t row = ((int64_t)head * call->tokens + t) * call->padded_width;
        for (int32_t c = 0; c < call->padded_width; c++) {
            call->q[row + c] = c < width ? q[c] : 0;
            call->k[row + c] = c < width ? k[c] : 0;
        }
        for (int32_t c = 0; c < width; c++)
            call->v[((int64_t)head * width + c) * call->padded_tokens + t] = v[c];
    }
    for (int32_t c = 0; c < width; c++)
        for (int32_t t = call->tokens; t < call->padded_tokens; t++)
            call->v[((int64_t)head * width + c) * call->padded_tokens + t] = 0;
}

/* Dot products of `count` rows of x (`columns` long, a multiple of LANES) with `rows` rows of w. */
static void dot_rows(const float *const *x, int32_t count, int32_t columns, const float *w, int64_t w_stride,
    int32_t rows, float *out, int64_t out_stride) {
    for (int32_t r = 0; r < rows; r += TILE_ROWS)
        for (int32_t c = 0; c < columns; c += BLOCK_COLUMNS)
            FOR_SET(dot_tile)
    (x, c, count, w + r * w_stride + c, w_stride, least(TILE_ROWS, rows - r),
        least(BLOCK_COLUMNS, columns - c), out + r, out_stride, c > 0);
}

static void attend_queries(const struct image_call *call, int32_t head, int32_t first, int32_t count) {
    const float *rows[QUERY_TILE];
    float *scores = call->scores + (int64_t)thread_number() * QUERY_TILE * call->padded_tokens;
    for (int32_t i = 0; i < count; i++)
        rows[i] = call->q + ((int64_t)head * call->tokens + first + i) * call->padded_width;
    dot_rows(rows, count, call->padded_width, call->k + (int64_t)head * call->tokens * call->padded_width,
        call->padded_width, call->tokens, scores, call->padded_tokens);
    for (int32_t i = 0; i < count; i++) {
        softmax_with_sink(scores + (int64_t)i * call->padded_tokens, call->tokens, call->padded_tokens,
            1.0f / sqrtf((float)call->width), -INFINITY);
        rows[i] = scores + (int64_t)i * call->padded_tokens;
    }
    dot_rows(rows, count, call->padded_tokens, call->v + (int64_t)head * call->width * call->padded_tokens,
        call->padded_tokens, call->width, call->out + ((int64_t)first * call->heads + head) * call->width,
        (int64_t)call->heads * call->width);
}

static void attend_all(
    struct stream *stream, const float *qkv, int32_t tokens, int32_t heads, int32_t width, float *out) {
    struct image_call call = {.tokens = tokens,
        .padded_tokens = round_up(tokens, LANES),
        .heads = heads,
        .width = width,
        .padded_width = round_up(width, LANES),
        .out = out};
    int64_t rows = (int64_t)heads * tokens * call.padded_width;
    int64_t values = (int64_t)heads * width * call.padded_tokens;
    call.q = stream_scratch(stream, SCRATCH_VISION, (size_t)(2 * rows + values) * sizeof(float));
    call.k = call.q + rows;
    call.v = call.k + rows;
    call.scores = stream_scratch(stream, SCRATCH_SCORES,
        (size_t)stream->threads * QUERY_TILE * (size_t)call.padded_tokens * sizeof(float));
    int32_t tiles = (tokens + QUERY_TILE - 1) / QUERY_TILE;
#pragma omp parallel num_threads(stream->threads)
    {
#pragma omp for schedule(static)
        for (int32_t h = 0; h < heads; h++)
            unpack_head(&call, qkv, h);
#pragma omp for schedule(dynamic)
        for (int32_t item = 0; item < heads * tiles; item++) {
            int32_t first = item % tiles * QUERY_TILE;
            attend_queries(&call, item / tiles, first, least(QUERY_TILE, tokens - first));
        }
    }
}

void FOR_SET(fill_vision)(struct kernels *kernels) {
    kernels->add_bias = add_bias;
    kernels->add = add;
    kernels->gelu = gelu;
    kernels->rotate_grid = rotate_grid;
    kernels->pack_squares = pack_squares;
    kernels->attend_all = attend_all;
}

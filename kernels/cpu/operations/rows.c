/* Operations on rows: norms, encodings, rotation, activation, sums. */
#include "kernels/cpu/operations/encode.h"
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

#include <math.h> /* cos, sin, sqrtf */

static void embed(
    struct stream *stream, const struct matrix *table, const int32_t *ids, int32_t tokens, float *out) {
    (void)stream;
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t c = 0; c < table->columns; c += BLOCK_COLUMNS) {
            int32_t count = least(BLOCK_COLUMNS, table->columns - c);
            float values[BLOCK_COLUMNS]; /* decoding pads with zeros */
            struct weight_block block;
            open_block(table, ids[t], 1, c, count, &block);
            FOR_SET(decode_block)(&block, 1, values, BLOCK_COLUMNS);
            memcpy(out + (int64_t)t * table->columns + c, values, (size_t)count * sizeof(float));
        }
}

static void rms_norm(struct stream *stream, const float *x, int32_t tokens, int32_t columns,
    const void *weight, float eps, float *out) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * columns))
    for (int32_t t = 0; t < tokens; t++)
        norm_row(x + (int64_t)t * columns, columns, weight, eps, out + (int64_t)t * columns);
}

static void encode(struct stream *stream, const float *x, int32_t tokens, const struct rows *out) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * out->columns))
    for (int32_t t = 0; t < tokens; t++)
        encode_row_fast(out->encoding, x + (int64_t)t * out->columns, out->columns,
            (uint8_t *)out->data + t * out->stride);
}

static void decode(struct stream *stream, const struct rows *x, int32_t tokens, float *out) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * x->columns))
    for (int32_t t = 0; t < tokens; t++)
        decode_row_fast(
            x->encoding, (const uint8_t *)x->data + t * x->stride, x->columns, out + (int64_t)t * x->columns);
}

static void round_rows(
    struct stream *stream, float *x, int32_t tokens, int32_t columns, enum row_encoding encoding) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * columns))
    for (int32_t t = 0; t < tokens; t++)
        round_row_fast(encoding, x + (int64_t)t * columns, columns);
}

/* ---- rotation ---- */

/* cos and sin of the float32 angles of one position, pair by pair; the inverse turn has the negative angle. */
static void fill_turns(int32_t position, const struct rope *rope, bool inverse, float *turns) {
    for (int32_t i = 0; i < rope->dims / 2; i++) {
        float angle = (float)position * rope->frequency[i];
        double exact = inverse ? -(double)angle : (double)angle;
        turns[2 * i] = (float)cos(exact);
        turns[2 * i + 1] = (float)sin(exact);
    }
}

static void rotate_head(float *x, const float *turns, int32_t dims) {
    for (int32_t i = 0; i < dims; i += 2) {
        float a = x[i], b = x[i + 1], c = turns[i], s = turns[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = a * s + b * c;
    }
}

static void rotate(struct stream *stream, float *x, const int32_t *positions, int32_t tokens, int32_t heads,
    int32_t columns, const struct rope *rope, bool inverse) {
    float *turns =
        stream_scratch(stream, SCRATCH_TURNS, (size_t)stream->threads * (size_t)rope->dims * sizeof(float));
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (is_worth_threads((int64_t)tokens * heads * rope->dims))
    for (int32_t t = 0; t < tokens; t++) {
        float *turn = turns + (int64_t)thread_number() * rope->dims;
        fill_turns(positions[t], rope, inverse, turn);
        for (int32_t h = 0; h < heads; h++)
            rotate_head(x + ((int64_t)t * heads + h + 1) * columns - rope->dims, turn, rope->dims);
    }
}

/* ---- activation and sums ---- */

static void swiglu(struct stream *stream, const float *gate, const float *up, int32_t tokens, int32_t columns,
    float limit, float *out) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * columns))
    for (int32_t t = 0; t < tokens; t++) {
        int64_t row = (int64_t)t * columns;
        for (int32_t c = 0; c < columns; c += LANES) {
            lanes g = smaller(load_part(gate + row + c, columns - c), splat(limit));
            lanes u = load_part(up + row + c, columns - c);
            u = smaller(larger(u, splat(-limit)), splat(limit));
            store_part(out + row + c, g * vector_sigmoid(g) * u, columns - c);
        }
    }
}

static void combine(struct stream *stream, const float *shared, const float *routed, const int32_t *place,
    int32_t tokens, int32_t k, int32_t columns, float *out) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * columns * k))
    for (int32_t t = 0; t < tokens; t++) {
        int64_t row = (int64_t)t * columns;
        for (int32_t c = 0; c < columns; c += LANES) {
            lanes sum = load_part(shared + row + c, columns - c);
            for (int32_t i = 0; i < k; i++)
                sum += load_part(routed + (int64_t)place[(int64_t)t * k + i] * columns + c, columns - c);
            store_part(out + row + c, sum, columns - c);
        }
    }
}

/* ---- rows of the key/value blocks ---- */

static void store_rows(struct stream *stream, const float *x, int32_t tokens, const int32_t *sequence,
    const int32_t *row, const int32_t *write_floor, const struct block_rows *rows,
    const struct block_tables *tables) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)tokens * rows->columns))
    for (int32_t t = 0; t < tokens; t++)
        if (row[t] >= 0 && row[t] >= write_floor[sequence[t]])
            encode_row_fast(rows->encoding, x + (int64_t)t * rows->columns, rows->columns,
                block_row(rows, tables, sequence[t], row[t]));
}

static void compress_pairs(
    struct stream *stream, const float *kv, const float *gate, int32_t groups, int32_t columns, float *out) {
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads((int64_t)groups * columns))
    for (int32_t g = 0; g < groups; g++) {
        const float *values = kv + (int64_t)g * 2 * columns;
        const float *gates = gate + (int64_t)g * 2 * columns;
        for (int32_t c = 0; c < columns; c += LANES) {
            int32_t count = columns - c;
            lanes g0 = load_part(gates + c, count), g1 = load_part(gates + columns + c, count);
            lanes top = larger(g0, g1);
            lanes e0 = vector_exp(g0 - top), e1 = vector_exp(g1 - top);
            lanes total = e0 + e1;
            lanes sum = load_part(values + c, count) * (e0 / total);
            sum = multiply_add(load_part(values + columns + c, count), e1 / total, sum);
            store_part(out + (int64_t)g * columns + c, sum, count);
        }
    }
}

void FOR_SET(fill_rows)(struct kernels *kernels) {
    kernels->embed = embed;
    kernels->rms_norm = rms_norm;
    kernels->encode = encode;
    kernels->decode = decode;
    kernels->round = round_rows;
    kernels->rotate = rotate;
    kernels->swiglu = swiglu;
    kernels->combine = combine;
    kernels->store_rows = store_rows;
    kernels->compress_pairs = compress_pairs;
}

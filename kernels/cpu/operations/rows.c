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

/* The layers of a step turn the same positions by the same frequencies again and again, so a stream keeps the sines and
 * cosines of the last TURN_LISTS lists of positions. What is kept is found by its values: frequencies and positions,
 * which lie before the turns in a list's memory. */
struct turns {
    float *frequency;  /* [dims / 2] */
    int32_t *position; /* [tokens] */
    float *turn;       /* [tokens, dims]: cosine and sine, pair by pair */
    bool is_filled;
};

static size_t turn_bytes(int32_t tokens, int32_t dims) {
    return ((size_t)dims / 2 + (size_t)tokens + (size_t)tokens * (size_t)dims) * sizeof(float);
}

static struct turns open_turns(void *memory, int32_t tokens, int32_t dims, bool is_filled) {
    float *frequency = memory;
    int32_t *position = (int32_t *)(frequency + dims / 2);
    return (struct turns){frequency, position, (float *)(position + tokens), is_filled};
}

/* The list of these positions, or the one that was not used for longest, made ready to be filled. */
static struct turns find_turns(
    struct stream *stream, const int32_t *positions, int32_t tokens, const struct rope *rope) {
    size_t frequency_bytes = (size_t)rope->dims / 2 * sizeof(float);
    size_t position_bytes = (size_t)tokens * sizeof *positions;
    int32_t oldest = 0;
    stream->turn_uses++;
    for (int32_t i = 0; i < TURN_LISTS; i++) {
        struct turn_list *list = &stream->turn_lists[i];
        if (stream->turn_uses - list->used > stream->turn_uses - stream->turn_lists[oldest].used)
            oldest = i;
        if (list->tokens != tokens || list->dims != rope->dims)
            continue;
        enum scratch_area area = SCRATCH_TURNS + i;
        struct turns turns = open_turns(stream->scratch[area].memory, tokens, rope->dims, true);
        if (memcmp(turns.frequency, rope->frequency, frequency_bytes) != 0 ||
            memcmp(turns.position, positions, position_bytes) != 0)
            continue;
        list->used = stream->turn_uses;
        return turns;
    }
    enum scratch_area area = SCRATCH_TURNS + oldest;
    void *memory = stream_scratch(stream, area, turn_bytes(tokens, rope->dims));
    stream->turn_lists[oldest] = (struct turn_list){tokens, rope->dims, stream->turn_uses};
    struct turns turns = open_turns(memory, tokens, rope->dims, false);
    memcpy(turns.frequency, rope->frequency, frequency_bytes);
    memcpy(turns.position, positions, position_bytes);
    return turns;
}

/* cos and sin of the float32 angles of one position, pair by pair. */
static void fill_turns(int32_t position, const struct rope *rope, float *turns) {
    for (int32_t i = 0; i < rope->dims / 2; i++) {
        float angle = (float)position * rope->frequency[i];
        turns[2 * i] = (float)cos((double)angle);
        turns[2 * i + 1] = (float)sin((double)angle);
    }
}

#if defined(HAVE_AVX512)
#define EVEN_LANES(a) __builtin_shufflevector(a, a, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14)
#define ODD_LANES(a) __builtin_shufflevector(a, a, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15)
#define SWAPPED_LANES(a) __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif defined(HAVE_AVX2)
#define EVEN_LANES(a) __builtin_shufflevector(a, a, 0, 0, 2, 2, 4, 4, 6, 6)
#define ODD_LANES(a) __builtin_shufflevector(a, a, 1, 1, 3, 3, 5, 5, 7, 7)
#define SWAPPED_LANES(a) __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define EVEN_LANES(a) __builtin_shufflevector(a, a, 0, 0, 2, 2)
#define ODD_LANES(a) __builtin_shufflevector(a, a, 1, 1, 3, 3)
#define SWAPPED_LANES(a) __builtin_shufflevector(a, a, 1, 0, 3, 2)
#endif

/* sign: -1 turns back, for the cosine of an angle is that of its negative and the sine its negative. */
static void rotate_head(float *x, const float *turns, int32_t dims, float sign) {
    lanes signs = splat(sign);
    for (int32_t l = 0; l < LANES; l += 2)
        signs[l] = -sign; /* pairs (a, b) become (a cos - b sin, b cos + a sin) */
    for (int32_t i = 0; i < dims; i += LANES) {
        lanes turn = load_part(turns + i, dims - i), value = load_part(x + i, dims - i);
        lanes sine = ODD_LANES(turn) * signs;
        store_part(x + i, value * EVEN_LANES(turn) + SWAPPED_LANES(value) * sine, dims - i);
    }
}

static void rotate(struct stream *stream, float *x, const int32_t *positions, int32_t tokens, int32_t heads,
    int32_t columns, const struct rope *rope, bool inverse) {
    if (tokens <= 0)
        return;
    struct turns turns = find_turns(stream, positions, tokens, rope);
    int64_t work = (int64_t)tokens * rope->dims * (heads + (turns.is_filled ? 0 : 32));
#pragma omp parallel for num_threads(stream->threads) if (is_worth_threads(work))
    for (int32_t t = 0; t < tokens; t++) {
        float *turn = turns.turn + (int64_t)t * rope->dims;
        if (!turns.is_filled)
            fill_turns(positions[t], rope, turn);
        for (int32_t h = 0; h < heads; h++)
            rotate_head(x + ((int64_t)t * heads + h + 1) * columns - rope->dims, turn, rope->dims,
                inverse ? -1.0f : 1.0f);
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

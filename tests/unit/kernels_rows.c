/* Row, stream and router operations of the CPU backend against plain loops in double. */
#include "kernels_check.h"

/* What the operations of this file take; each uses its part. */
struct rows_case {
    int32_t tokens, columns, streams, heads, k, experts;
    const float *x, *y, *z;
    const uint16_t *weight, *other_weight;
    const int32_t *ids;
    const uint8_t *is_image;
    struct matrix matrix;
    struct rope rope;
    bool flag;
    enum row_encoding encoding;
    float eps;
};

#define RUN(name)                                                                                            \
    static void run_##name(const struct kernels *kernels, struct stream *stream, const void *context,        \
        int32_t first, int32_t count, void *out)

static double *doubles(int64_t count) {
    return allocate_or_fail((size_t)count * sizeof(double));
}

static const int32_t widths[] = {1, 5, 16, 33, 512, 1025};
enum { WIDTHS = sizeof widths / sizeof widths[0], TOKENS = 7 };

/* ---- norms ---- */

RUN(rms_norm) {
    const struct rows_case *c = context;
    kernels->rms_norm(stream, c->x + (int64_t)first * c->columns, count, c->columns, c->weight, c->eps, out);
}

static void test_rms_norm(void **state) {
    (void)state;
    for (int32_t w = 0; w < WIDTHS; w++) {
        int32_t n = widths[w];
        float *x = random_floats((size_t)(TOKENS * n), 3);
        memset(x, 0, (size_t)n * sizeof *x); /* a zero row stays zero with eps 1e-20 */
        uint16_t *weight = random_bf16((size_t)n);
        struct rows_case c = {.columns = n, .x = x, .weight = weight, .eps = 1e-20f};
        double *expected = doubles(TOKENS * n);
        for (int32_t t = 0; t < TOKENS; t++) {
            double sum = 0;
            for (int32_t i = 0; i < n; i++)
                sum += (double)x[t * n + i] * x[t * n + i];
            for (int32_t i = 0; i < n; i++)
                expected[t * n + i] = x[t * n + i] / sqrt(sum / n + 1e-20) * bf16_value(weight[i]);
        }
        struct trial trial = {"rms_norm", run_rms_norm, &c, TOKENS, (size_t)n * 4, expected, 1e-6};
        check_all_sets(&trial);
        free(x);
        free(weight);
        free(expected);
    }
}

/* ---- encodings ---- */

RUN(encode) {
    const struct rows_case *c = context;
    struct rows rows = {out, c->encoding, c->columns, row_bytes(c->encoding, c->columns)};
    kernels->encode(stream, c->x + (int64_t)first * c->columns, count, &rows);
}

RUN(decode) {
    const struct rows_case *c = context;
    int32_t stride = row_bytes(c->encoding, c->columns);
    uint8_t *bytes = allocate_or_fail((size_t)(count * stride));
    struct rows rows = {bytes, c->encoding, c->columns, stride};
    kernels->encode(stream, c->x + (int64_t)first * c->columns, count, &rows);
    kernels->decode(stream, &rows, count, out);
    free(bytes);
}

RUN(round) {
    const struct rows_case *c = context;
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    if (bytes > 0)
        memcpy(out, c->x + (int64_t)first * c->columns, bytes);
    kernels->round(stream, out, count, c->columns, c->encoding);
}

static void test_encodings(void **state) {
    (void)state;
    static const enum row_encoding encodings[] = {ROWS_F32, ROWS_FP8, ROWS_FP4, ROWS_FP4_FINE};
    enum { N = 96 };
    float *x = random_floats(TOKENS * N, 5);
    for (int32_t e = 0; e < 4; e++) {
        struct rows_case c = {.columns = N, .x = x, .encoding = encodings[e]};
        double *expected = doubles(TOKENS * N);
        for (int32_t t = 0; t < TOKENS; t++) {
            float row[N];
            memcpy(row, x + t * N, sizeof row);
            round_row(encodings[e], row, N);
            for (int32_t i = 0; i < N; i++)
                expected[t * N + i] = row[i];
        }
        struct trial decode = {"decode", run_decode, &c, TOKENS, N * 4, expected, 0};
        check_all_sets(&decode);
        struct trial round = {"round", run_round, &c, TOKENS, N * 4, expected, 0};
        check_all_sets(&round);
        struct trial encode = {"encode", run_encode, &c, TOKENS, (size_t)row_bytes(encodings[e], N), NULL, 0};
        uint8_t *found = allocate_or_fail(TOKENS * N * 4), *same = allocate_or_fail(TOKENS * N * 4);
        assert_true(check_set(&encode, "generic", same));
        for (int32_t s = 0; s < INSTRUCTION_SETS; s++) /* codes do not depend on the instruction set either */
            if (check_set(&encode, instruction_set_names[s], found))
                assert_memory_equal(found, same, TOKENS * (size_t)row_bytes(encodings[e], N));
        free(found);
        free(same);
        free(expected);
    }
    free(x);
}

/* Codes and scales are those of encode_row on all instruction sets, for numbers of every size, ties, infinities and NaN. */
static void test_encoding_of_any_numbers(void **state) {
    (void)state;
    static const enum row_encoding encodings[] = {ROWS_FP8, ROWS_FP4, ROWS_FP4_FINE};
    enum { N = 256, ROWS = 400 };
    float *x = random_floats(ROWS * N, 1);
    for (int32_t r = 0; r < ROWS; r++)
        for (int32_t i = 0; i < N; i++) {
            float *value = &x[r * N + i];
            if (r % 4 == 1) /* ties: few bits */
                *value = ldexpf((float)(int32_t)(random_bits() % 65) - 32, (int32_t)(random_bits() % 10) - 8);
            if (r % 4 == 2) /* any bits, now and then infinite or NaN */
                *value = bits_float(random_bits());
            if (r % 4 == 3) /* any size */
                *value = ldexpf(*value, r % 260 - 140 + (int32_t)(random_bits() % 6));
        }
    for (int32_t e = 0; e < 3; e++)
        for (size_t s = 0; s < sizeof instruction_set_names / sizeof instruction_set_names[0]; s++) {
            const struct kernels *kernels;
            struct stream *stream;
            if (kernels_cpu_create(1, instruction_set_names[s], &kernels) != OK)
                continue;
            assert_int_equal(kernels->stream_create(kernels, &stream), OK);
            int32_t stride = row_bytes(encodings[e], N);
            uint8_t *bytes = allocate_or_fail((size_t)(ROWS * stride)), expected[N * sizeof(float)];
            struct rows rows = {bytes, encodings[e], N, stride};
            kernels->encode(stream, x, ROWS, &rows);
            for (int32_t r = 0; r < ROWS; r++) {
                encode_row(encodings[e], x + r * N, N, expected);
                for (int32_t i = 0; i < stride; i++)
                    if (bytes[r * stride + i] != expected[i])
                        fail_msg("encoding %d, %s: row %d, byte %d: %d, expected %d", encodings[e],
                            instruction_set_names[s], r, i, bytes[r * stride + i], expected[i]);
            }
            free(bytes);
            kernels->stream_free(kernels, stream);
            kernels_free(kernels);
        }
    free(x);
}

/* Any bytes decode to what the formats say, NaN codes and extreme scales among them. */
static void test_decoding_of_any_bytes(void **state) {
    (void)state;
    static const enum row_encoding encodings[] = {ROWS_FP8, ROWS_FP4, ROWS_FP4_FINE};
    enum { N = 256, ROWS = 300 };
    for (int32_t e = 0; e < 3; e++)
        for (size_t s = 0; s < INSTRUCTION_SETS; s++) {
            const struct kernels *kernels;
            struct stream *stream;
            if (kernels_cpu_create(1, instruction_set_names[s], &kernels) != OK)
                continue;
            assert_int_equal(kernels->stream_create(kernels, &stream), OK);
            int32_t stride = row_bytes(encodings[e], N);
            uint8_t *bytes = allocate_or_fail((size_t)(ROWS * stride));
            for (int32_t i = 0; i < ROWS * stride; i++)
                bytes[i] = (uint8_t)random_bits();
            float *found = allocate_or_fail(ROWS * N * 4), expected[N];
            struct rows rows = {bytes, encodings[e], N, stride};
            kernels->decode(stream, &rows, ROWS, found);
            for (int32_t r = 0; r < ROWS; r++) {
                decode_row(encodings[e], bytes + r * stride, N, expected);
                for (int32_t i = 0; i < N; i++)
                    if (!(found[r * N + i] == expected[i] || (isnan(found[r * N + i]) && isnan(expected[i]))))
                        fail_msg("encoding %d, %s: row %d, column %d: %a, expected %a", encodings[e],
                            instruction_set_names[s], r, i, (double)found[r * N + i], (double)expected[i]);
            }
            free(bytes);
            free(found);
            kernels->stream_free(kernels, stream);
            kernels_free(kernels);
        }
}

/* ---- embed ---- */

RUN(embed) {
    const struct rows_case *c = context;
    kernels->embed(stream, &c->matrix, c->ids + first, count, out);
}

static void test_embed(void **state) {
    (void)state;
    static const enum weight_format formats[] = {
        WEIGHT_F32, WEIGHT_BF16, WEIGHT_FP8_TILE, WEIGHT_FP8_ROW, WEIGHT_FP4_ROW};
    static const int32_t ids[TOKENS] = {0, 39, 7, 7, 1, 32, 31};
    for (int32_t f = 0; f < 5; f++) {
        struct rows_case c = {.matrix = random_matrix(formats[f], 40, 544), .ids = ids};
        double *expected = doubles(TOKENS * 544);
        for (int32_t t = 0; t < TOKENS; t++)
            for (int32_t i = 0; i < 544; i++)
                expected[t * 544 + i] = weight_value(&c.matrix, ids[t], i);
        struct trial trial = {"embed", run_embed, &c, TOKENS, 544 * 4, expected, 0};
        check_all_sets(&trial);
        free_matrix(&c.matrix);
        free(expected);
    }
}

/* ---- rotation ---- */

RUN(rotate) {
    const struct rows_case *c = context;
    int64_t width = (int64_t)c->heads * c->columns;
    if (count > 0)
        memcpy(out, c->x + first * width, (size_t)(count * width) * sizeof(float));
    kernels->rotate(stream, out, c->ids + first, count, c->heads, c->columns, &c->rope, c->flag);
}

static void test_rotate(void **state) {
    (void)state;
    static const int32_t positions[TOKENS] = {0, 1, 2, 500, 65535, 1048575, 77};
    static const float frequency[8] = {1, 0.5623413f, 0.3162278f, 0.1f, 0.01f, 1e-3f, 1.3e-4f, 7e-5f};
    enum { HEADS = 3, N = 24, DIMS = 16 };
    float *x = random_floats(TOKENS * HEADS * N, 1);
    for (int32_t inverse = 0; inverse < 2; inverse++) {
        struct rows_case c = {.heads = HEADS,
            .columns = N,
            .x = x,
            .ids = positions,
            .rope = {DIMS, frequency},
            .flag = inverse};
        double *expected = doubles(TOKENS * HEADS * N);
        for (int32_t i = 0; i < TOKENS * HEADS * N; i++)
            expected[i] = x[i];
        for (int32_t head = 0; head < TOKENS * HEADS; head++)
            for (int32_t p = 0; p < DIMS / 2; p++) {
                float angle = (float)positions[head / HEADS] * frequency[p]; /* rounded to float32 */
                double turn = inverse ? -(double)angle : (double)angle;
                int32_t at = head * N + N - DIMS + 2 * p;
                expected[at] = x[at] * cos(turn) - x[at + 1] * sin(turn);
                expected[at + 1] = x[at] * sin(turn) + x[at + 1] * cos(turn);
            }
        struct trial trial = {"rotate", run_rotate, &c, TOKENS, HEADS * N * 4, expected, 2e-7};
        check_all_sets(&trial);
        free(expected);
    }
    free(x);
}

/* Turns that a stream keeps are not taken for those of other positions or frequencies in the same memory. */
static void test_rotate_again(void **state) {
    (void)state;
    const struct kernels *kernels;
    struct stream *stream;
    float frequency[1];
    int32_t positions[2];
    struct rope rope = {2, frequency};
    assert_int_equal(kernels_cpu_create(1, NULL, &kernels), OK);
    assert_int_equal(kernels->stream_create(kernels, &stream), OK);
    for (int32_t i = 0; i < 300; i++) {
        float x[4] = {1, 0, 0, 1};
        frequency[0] = i % 4 == 0 ? 0.5f : 0.25f;
        positions[0] = i % 7;
        positions[1] = i % 3 * 100;
        int32_t tokens = 1 + i % 2;
        kernels->rotate(stream, x, positions, tokens, 1, 2, &rope, i % 5 == 0);
        for (int32_t t = 0; t < tokens; t++) {
            double angle = positions[t] * (i % 5 == 0 ? -1 : 1) * (double)frequency[0];
            double expected[2] = {t == 0 ? cos(angle) : -sin(angle), t == 0 ? sin(angle) : cos(angle)};
            for (int32_t c = 0; c < 2; c++)
                assert_true(fabs(x[2 * t + c] - expected[c]) < 1e-6);
        }
    }
    kernels->stream_free(kernels, stream);
    kernels_free(kernels);
}

/* ---- activation, combination, compression ---- */

RUN(swiglu) {
    const struct rows_case *c = context;
    int64_t at = (int64_t)first * c->columns;
    kernels->swiglu(stream, c->x + at, c->y + at, count, c->columns, 10, out);
}

static void test_swiglu(void **state) {
    (void)state;
    for (int32_t w = 0; w < WIDTHS; w++) {
        int32_t n = widths[w], total = TOKENS * n;
        float *gate = random_floats((size_t)total, 100), *up = random_floats((size_t)total, 14);
        struct rows_case c = {.columns = n, .x = gate, .y = up};
        double *expected = doubles(total);
        for (int32_t i = 0; i < total; i++) {
            double g = fmin(gate[i], 10), u = fmax(fmin(up[i], 10), -10);
            expected[i] = g / (1 + exp(-g)) * u;
        }
        struct trial trial = {"swiglu", run_swiglu, &c, TOKENS, (size_t)n * 4, expected, 1e-6};
        check_all_sets(&trial);
        free(gate);
        free(up);
        free(expected);
    }
}

RUN(combine) {
    const struct rows_case *c = context;
    int64_t at = (int64_t)first * c->columns;
    kernels->combine(stream, c->x + at, c->y, c->ids + (int64_t)first * c->k, count, c->k, c->columns, out);
}

static void test_combine(void **state) {
    (void)state;
    for (int32_t w = 0; w < WIDTHS; w++) {
        int32_t n = widths[w], k = w;
        float *shared = random_floats((size_t)(TOKENS * n), 1);
        float *routed = random_floats((size_t)(TOKENS * n * k), 1);
        int32_t *place = allocate_or_fail((size_t)(TOKENS * k + 1) * sizeof *place);
        for (int32_t i = 0; i < TOKENS * k; i++)
            place[i] = TOKENS * k - 1 - i;
        struct rows_case c = {.columns = n, .k = k, .x = shared, .y = routed, .ids = place};
        double *expected = doubles(TOKENS * n);
        for (int32_t t = 0; t < TOKENS; t++)
            for (int32_t i = 0; i < n; i++) {
                float sum = shared[t * n + i]; /* exactly this order */
                for (int32_t e = 0; e < k; e++)
                    sum += routed[place[t * k + e] * n + i];
                expected[t * n + i] = sum;
            }
        struct trial trial = {"combine", run_combine, &c, TOKENS, (size_t)n * 4, expected, 0};
        check_all_sets(&trial);
        free(shared);
        free(routed);
        free(place);
        free(expected);
    }
}

RUN(compress_pairs) {
    const struct rows_case *c = context;
    int64_t at = (int64_t)first * 2 * c->columns;
    kernels->compress_pairs(stream, c->x + at, c->y + at, count, c->columns, out);
}

static void test_compress_pairs(void **state) {
    (void)state;
    for (int32_t w = 0; w < WIDTHS; w++) {
        int32_t n = widths[w];
        float *kv = random_floats((size_t)(TOKENS * 2 * n), 2),
              *gate = random_floats((size_t)(TOKENS * 2 * n), 90);
        struct rows_case c = {.columns = n, .x = kv, .y = gate};
        double *expected = doubles(TOKENS * n);
        for (int32_t g = 0; g < TOKENS; g++)
            for (int32_t i = 0; i < n; i++) {
                int32_t a = g * 2 * n + i, b = a + n;
                double share = 1 / (1 + exp((double)gate[b] - gate[a]));
                expected[g * n + i] = kv[a] * share + kv[b] * (1 - share);
            }
        struct trial trial = {
            "compress_pairs", run_compress_pairs, &c, TOKENS, (size_t)n * 4, expected, 1e-6};
        check_all_sets(&trial);
        free(kv);
        free(gate);
        free(expected);
    }
}

/* ---- streams ---- */

RUN(start_streams) {
    const struct rows_case *c = context;
    int64_t width = (int64_t)c->streams * c->columns;
    float *streams = allocate_or_fail((size_t)(count * width) * 4),
          *pre = allocate_or_fail((size_t)(count * c->streams) * 4);
    kernels->start_streams(
        stream, c->x + (int64_t)first * c->columns, count, c->streams, c->columns, streams, pre);
    for (int32_t t = 0; t < count; t++) {
        float *to = (float *)out + t * (width + c->streams);
        memcpy(to, streams + t * width, (size_t)width * 4);
        memcpy(to + width, pre + t * c->streams, (size_t)c->streams * 4);
    }
    free(streams);
    free(pre);
}

static void test_start_streams(void **state) {
    (void)state;
    enum { S = 4, N = 33, WIDTH = S * N + S };
    float *x = random_floats(TOKENS * N, 1);
    struct rows_case c = {.streams = S, .columns = N, .x = x};
    double *expected = doubles(TOKENS * WIDTH);
    for (int32_t t = 0; t < TOKENS; t++) {
        for (int32_t i = 0; i < S * N; i++)
            expected[t * WIDTH + i] = x[t * N + i % N];
        expected[t * WIDTH + S * N] = 1;
    }
    struct trial trial = {"start_streams", run_start_streams, &c, TOKENS, WIDTH * 4, expected, 0};
    check_all_sets(&trial);
    free(x);
    free(expected);
}

RUN(collapse_norm) {
    const struct rows_case *c = context;
    int64_t width = (int64_t)c->streams * c->columns;
    kernels->collapse_norm(stream, c->x + first * width, c->y + (int64_t)first * c->streams, count,
        c->streams, c->columns, c->weight, c->eps, out);
}

static void test_collapse_norm(void **state) {
    (void)state;
    enum { S = 4 };
    for (int32_t w = 0; w < WIDTHS; w++) {
        int32_t n = widths[w];
        float *streams = random_floats((size_t)(TOKENS * S * n), 1), *pre = random_floats(TOKENS * S, 1);
        memset(streams, 0, (size_t)(S * n) * sizeof *streams);
        uint16_t *weight = random_bf16((size_t)n);
        struct rows_case c = {
            .streams = S, .columns = n, .x = streams, .y = pre, .weight = weight, .eps = 1e-20f};
        double *expected = doubles(TOKENS * n);
        for (int32_t t = 0; t < TOKENS; t++) {
            double squares = 0;
            for (int32_t i = 0; i < n; i++) {
                for (int32_t s = 0; s < S; s++)
                    expected[t * n + i] += (double)pre[t * S + s] * streams[(t * S + s) * n + i];
                squares += expected[t * n + i] * expected[t * n + i];
            }
            for (int32_t i = 0; i < n; i++)
                expected[t * n + i] *= bf16_value(weight[i]) / sqrt(squares / n + 1e-20);
        }
        struct trial trial = {"collapse_norm", run_collapse_norm, &c, TOKENS, (size_t)n * 4, expected, 5e-6};
        check_all_sets(&trial);
        free(streams);
        free(pre);
        free(weight);
        free(expected);
    }
}

enum { MIX_S = 4, MIX_OUT = 2 * MIX_S + MIX_S * MIX_S };

RUN(mix) {
    const struct rows_case *c = context;
    int64_t width = (int64_t)c->streams * c->columns;
    float *pre = allocate_or_fail((size_t)(count * MIX_S) * 4),
          *post = allocate_or_fail((size_t)(count * MIX_S) * 4);
    float *comb = allocate_or_fail((size_t)(count * MIX_S * MIX_S) * 4);
    kernels->mix(stream, c->x + first * width, count, c->streams, c->columns, &c->matrix, c->y, c->z, 20,
        1e-6f, c->eps, pre, post, comb);
    for (int32_t t = 0; t < count; t++) {
        float *to = (float *)out + t * MIX_OUT;
        memcpy(to, pre + t * MIX_S, MIX_S * 4);
        memcpy(to + MIX_S, post + t * MIX_S, MIX_S * 4);
        memcpy(to + 2 * MIX_S, comb + t * MIX_S * MIX_S, MIX_S * MIX_S * 4);
    }
    free(pre);
    free(post);
    free(comb);
}

/* Divides rows or columns of a [S, S] matrix by their sums. */
static void normalize(double *m, bool columns) {
    for (int32_t a = 0; a < MIX_S; a++) {
        double total = 1e-6;
        for (int32_t b = 0; b < MIX_S; b++)
            total += m[columns ? b * MIX_S + a : a * MIX_S + b];
        for (int32_t b = 0; b < MIX_S; b++)
            m[columns ? b * MIX_S + a : a * MIX_S + b] /= total;
    }
}

static void expected_mix(const struct rows_case *c, int32_t token, double *out) {
    int32_t width = c->streams * c->columns;
    const float *x = c->x + (int64_t)token * width;
    double squares = 0, logits[MIX_OUT];
    for (int32_t i = 0; i < width; i++)
        squares += (double)x[i] * x[i];
    for (int32_t r = 0; r < MIX_OUT; r++) {
        double sum = 0;
        for (int32_t i = 0; i < width; i++)
            sum += x[i] * weight_value(&c->matrix, r, i);
        int32_t part = r < MIX_S ? 0 : r < 2 * MIX_S ? 1 : 2;
        logits[r] = sum / sqrt(squares / width + 1e-20) * c->z[part] + c->y[r];
    }
    for (int32_t s = 0; s < MIX_S; s++) {
        out[s] = 1 / (1 + exp(-logits[s])) + 1e-6;
        out[MIX_S + s] = 2 / (1 + exp(-logits[MIX_S + s]));
    }
    double *comb = out + 2 * MIX_S;
    for (int32_t i = 0; i < MIX_S; i++) {
        double total = 0;
        for (int32_t j = 0; j < MIX_S; j++)
            total += exp(logits[2 * MIX_S + i * MIX_S + j]);
        for (int32_t j = 0; j < MIX_S; j++)
            comb[i * MIX_S + j] = exp(logits[2 * MIX_S + i * MIX_S + j]) / total + 1e-6;
    }
    normalize(comb, true);
    for (int32_t i = 1; i < 20; i++) {
        normalize(comb, false);
        normalize(comb, true);
    }
}

static void test_mix(void **state) {
    (void)state;
    for (int32_t w = 0; w < WIDTHS; w++) {
        int32_t n = widths[w];
        float *streams = random_floats((size_t)(TOKENS * MIX_S * n), 1), *base = random_floats(MIX_OUT, 1);
        memset(
            streams, 0, (size_t)(MIX_S * n) * sizeof *streams); /* a zero token: the mixes are the base's */
        base[1] = -50;                                          /* as trained checkpoints have them */
        base[MIX_S] = 40;
        float scale[3] = {0.4f, 0.7f, 0.3f};
        struct rows_case c = {.streams = MIX_S,
            .columns = n,
            .x = streams,
            .y = base,
            .z = scale,
            .matrix = random_matrix(WEIGHT_F32, MIX_OUT, MIX_S * n),
            .eps = 1e-20f};
        double *expected = doubles(TOKENS * MIX_OUT);
        for (int32_t t = 0; t < TOKENS; t++)
            expected_mix(&c, t, expected + t * MIX_OUT);
        struct trial trial = {"mix", run_mix, &c, TOKENS, MIX_OUT * 4, expected, 1e-5};
        check_all_sets(&trial);
        free(streams);
        free(base);
        free_matrix(&c.matrix);
        free(expected);
    }
}

RUN(expand) {
    const struct rows_case *c = context;
    int64_t width = (int64_t)c->streams * c->columns;
    if (count > 0)
        memcpy(out, c->z + first * width, (size_t)(count * width) * 4);
    const float *post = c->y + (int64_t)first * c->streams;
    const float *comb = c->y + (int64_t)c->tokens * c->streams + (int64_t)first * c->streams * c->streams;
    kernels->expand(
        stream, c->x + (int64_t)first * c->columns, post, comb, count, c->streams, c->columns, out);
}

static void test_expand(void **state) {
    (void)state;
    enum { S = 4 };
    for (int32_t w = 0; w < WIDTHS; w++) {
        int32_t n = widths[w];
        float *x = random_floats((size_t)(TOKENS * n), 1),
              *streams = random_floats((size_t)(TOKENS * S * n), 1);
        float *factors = random_floats(TOKENS * (S + S * S), 1); /* post of all tokens, then comb */
        struct rows_case c = {
            .tokens = TOKENS, .streams = S, .columns = n, .x = x, .y = factors, .z = streams};
        double *expected = doubles(TOKENS * S * n);
        for (int32_t t = 0; t < TOKENS; t++)
            for (int32_t j = 0; j < S; j++)
                for (int32_t i = 0; i < n; i++) {
                    double sum = (double)factors[t * S + j] * x[t * n + i];
                    for (int32_t s = 0; s < S; s++)
                        sum +=
                            (double)factors[TOKENS * S + (t * S + s) * S + j] * streams[(t * S + s) * n + i];
                    expected[(t * S + j) * n + i] = sum;
                }
        struct trial trial = {"expand", run_expand, &c, TOKENS, (size_t)(S * n) * 4, expected, 1e-6};
        check_all_sets(&trial);
        free(x);
        free(streams);
        free(factors);
        free(expected);
    }
}

RUN(engram_add) {
    const struct rows_case *c = context;
    int64_t width = (int64_t)c->streams * c->columns;
    if (count > 0)
        memcpy(out, c->x + first * width, (size_t)(count * width) * 4);
    kernels->engram_add(stream, c->y + first * (width + c->columns), c->weight, c->other_weight,
        c->is_image + first, count, c->streams, c->columns, c->eps, out);
}

static double expected_engram_gate(
    const struct rows_case *c, const float *row, const float *key, int32_t at) {
    double dot = 0, rows = 0, keys = 0;
    for (int32_t i = 0; i < c->columns; i++) {
        double weight = (double)bf16_value(c->weight[at + i]) * bf16_value(c->other_weight[at + i]);
        dot += row[i] * weight * key[i];
        rows += (double)row[i] * row[i];
        keys += (double)key[i] * key[i];
    }
    dot /= sqrt(c->columns) * sqrt(rows / c->columns + 1e-20) * sqrt(keys / c->columns + 1e-20);
    return 1 / (1 + exp(-copysign(sqrt(fmax(fabs(dot), 1e-6)), dot)));
}

static void test_engram_add(void **state) {
    (void)state;
    enum { S = 4 };
    for (int32_t w = 0; w < WIDTHS; w++) {
        int32_t n = widths[w];
        float *streams = random_floats((size_t)(TOKENS * S * n), 1),
              *kv = random_floats((size_t)(TOKENS * (S + 1) * n), 1);
        memset(streams + S * n, 0, (size_t)n * 4); /* a zero stream meets any key */
        uint16_t *q = random_bf16((size_t)(S * n)), *k = random_bf16((size_t)(S * n));
        uint8_t is_image[TOKENS] = {0, 0, 1, 0, 1, 1, 0};
        struct rows_case c = {.streams = S,
            .columns = n,
            .x = streams,
            .y = kv,
            .weight = q,
            .other_weight = k,
            .is_image = is_image,
            .eps = 1e-20f};
        double *expected = doubles(TOKENS * S * n);
        for (int32_t t = 0; t < TOKENS; t++)
            for (int32_t s = 0; s < S; s++) {
                const float *row = streams + (t * S + s) * n, *keys = kv + t * (S + 1) * n;
                double gate = is_image[t] ? 0 : expected_engram_gate(&c, row, keys + s * n, s * n);
                for (int32_t i = 0; i < n; i++)
                    expected[(t * S + s) * n + i] = row[i] + gate * keys[S * n + i];
            }
        struct trial trial = {"engram_add", run_engram_add, &c, TOKENS, (size_t)(S * n) * 4, expected, 1e-5};
        check_all_sets(&trial);
        free(streams);
        free(kv);
        free(q);
        free(k);
        free(expected);
    }
}

/* ---- router ---- */

struct routed {
    int32_t experts[8];
    float weights[8];
};

RUN(route) {
    const struct rows_case *c = context;
    int32_t *experts = allocate_or_fail((size_t)(count * c->k) * 4);
    float *weights = allocate_or_fail((size_t)(count * c->k) * 4);
    kernels->route(stream, c->x + (int64_t)first * c->experts, count, c->experts, c->y, c->z,
        c->is_image + first, c->k, c->flag, 1.5f, experts, weights);
    for (int32_t t = 0; t < count; t++) {
        struct routed *to = (struct routed *)out + t;
        memset(to, 0, sizeof *to);
        memcpy(to->experts, experts + t * c->k, (size_t)c->k * 4);
        memcpy(to->weights, weights + t * c->k, (size_t)c->k * 4);
    }
    free(experts);
    free(weights);
}

static void check_routed(const struct rows_case *c, int32_t token, const struct routed *routed) {
    const float *bias = c->is_image[token] ? c->z : c->y;
    double total = 0, score[64];
    for (int32_t e = 0; e < c->experts; e++)
        score[e] = sqrt(log1p(exp(c->x[(int64_t)token * c->experts + e])));
    for (int32_t i = 0; i < c->k; i++)
        total += score[routed->experts[i]];
    for (int32_t i = 0; i < c->k; i++) {
        int32_t e = routed->experts[i], better = 0;
        assert_true(e >= 0 && e < c->experts && (i == 0 || e > routed->experts[i - 1]));
        for (int32_t other = 0; other < c->experts; other++) {
            double mine = score[e] + bias[e], its = score[other] + bias[other];
            better += its > mine + 1e-6 || (fabs(its - mine) < 1e-9 && other < e);
        }
        assert_true(better < c->k);
        double weight = 1.5 * (c->flag && c->k > 1 ? score[e] / total : score[e]);
        assert_true(fabs(routed->weights[i] - weight) < 1e-5);
    }
}

static void test_route(void **state) {
    (void)state;
    enum { N = 37 };
    float *logits = random_floats(TOKENS * N, 20), *bias = random_floats(N, 1),
          *bias_vl = random_floats(N, 1);
    uint8_t is_image[TOKENS] = {0, 1, 0, 0, 1, 0, 0};
    for (int32_t e = 0; e < N; e++) { /* token 2: all equal; token 3: -50; bias alone decides, with ties */
        logits[2 * N + e] = 1;
        logits[3 * N + e] = -50;
        bias[e] = e % 5 == 0 ? 0.5f : bias[e];
    }
    for (int32_t k = 1; k <= 8; k += 1)
        for (int32_t normalized = 0; normalized < 2; normalized++) {
            struct rows_case c = {.experts = N,
                .k = k,
                .x = logits,
                .y = bias,
                .z = bias_vl,
                .is_image = is_image,
                .flag = normalized};
            struct routed routed[TOKENS];
            struct trial trial = {"route", run_route, &c, TOKENS, sizeof routed[0], NULL, 0};
            for (int32_t s = 0; s < INSTRUCTION_SETS; s++)
                if (check_set(&trial, instruction_set_names[s], (uint8_t *)routed))
                    for (int32_t t = 0; t < TOKENS; t++)
                        check_routed(&c, t, &routed[t]);
        }
    free(logits);
    free(bias);
    free(bias_vl);
}

static void test_route_ties_and_nan(void **state) {
    (void)state;
    float logits[2 * 6] = {1, 1, 1, 1, 1, 1, NAN, 2, NAN, 2, 2, NAN}, bias[6] = {0};
    uint8_t is_image[2] = {0};
    struct rows_case c = {.experts = 6, .k = 3, .x = logits, .y = bias, .z = bias, .is_image = is_image};
    struct routed routed[2];
    struct trial trial = {"route with ties", run_route, &c, 2, sizeof routed[0], NULL, 0};
    for (int32_t s = 0; s < INSTRUCTION_SETS; s++)
        if (check_set(&trial, instruction_set_names[s], (uint8_t *)routed)) {
            const int32_t lowest[3] = {0, 1, 2}, numbers[3] = {1, 3, 4};
            assert_memory_equal(routed[0].experts, lowest, sizeof lowest);
            assert_memory_equal(routed[1].experts, numbers, sizeof numbers);
        }
}

/* ---- backend ---- */

static void test_backend(void **state) {
    (void)state;
    const struct kernels *kernels;
    assert_int_equal(kernels_cpu_create(1, "avx1024", &kernels), ERROR_USAGE);
    assert_non_null(strstr(failure_message(), "avx1024"));
    assert_int_equal(kernels_cpu_create(-1, NULL, &kernels), ERROR_USAGE);
    assert_int_equal(kernels_cpu_create(2, NULL, &kernels), OK);
    assert_int_equal(kernels->threads, 2);
    static const size_t sizes[] = {0, 1, 63, 64, 65, 100000, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *memory;
        assert_int_equal(kernels->allocate(kernels, sizes[i], (void **)&memory), OK);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t b = 0; b < sizes[i]; b++)
            assert_int_equal(memory[b], 0);
        memset(memory, 1, sizes[i]);
        kernels->release(kernels, memory);
    }
    kernels->release(kernels, NULL);
    void *pool; /* far more than the machine has: costs nothing until touched */
    assert_int_equal(kernels->allocate(kernels, (size_t)1 << 40, &pool), OK);
    ((uint8_t *)pool)[(size_t)1 << 39] = 1;
    kernels->release(kernels, pool);
    assert_int_equal(kernels->allocate(kernels, SIZE_MAX - 5, &pool), ERROR_MEMORY);
    kernels_free(kernels);
    kernels_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_encoding_of_any_numbers),
        cmocka_unit_test(test_decoding_of_any_bytes),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_rotate),
        cmocka_unit_test(test_rotate_again),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_combine),
        cmocka_unit_test(test_compress_pairs),
        cmocka_unit_test(test_start_streams),
        cmocka_unit_test(test_collapse_norm),
        cmocka_unit_test(test_mix),
        cmocka_unit_test(test_expand),
        cmocka_unit_test(test_engram_add),
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_route_ties_and_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

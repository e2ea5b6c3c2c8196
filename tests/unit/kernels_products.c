/* Products, grouped products and experts of the CPU backend against sums in double. */
#include "kernels_check.h"

/* ---- product ---- */

struct product_case {
    struct rows x;
    struct matrix w;
};

static void run_product(const struct kernels *kernels, struct stream *stream, const void *context,
    int32_t first, int32_t count, void *out) {
    const struct product_case *c = context;
    struct rows x = c->x;
    x.data = (uint8_t *)x.data + first * x.stride;
    struct matrix placed;
    /* whole calls meet the weights where they lie, parts of them a copy: their bits are compared */
    void *memory = NULL;
    if (first > 0)
        assert_int_equal(
            kernels->allocate(kernels, (size_t)kernels->placed_bytes(kernels, &c->w), &memory), OK);
    assert_int_equal(kernels->place(kernels, &c->w, memory, &placed), OK);
    int64_t stride = c->w.rows + 3; /* outputs apart from each other */
    float *apart = allocate_or_fail((size_t)(count * stride) * sizeof *apart);
    kernels->product(stream, &x, count, &placed, apart, stride);
    for (int32_t t = 0; t < count; t++)
        memcpy((float *)out + (int64_t)t * c->w.rows, apart + t * stride, (size_t)c->w.rows * sizeof *apart);
    free(apart);
    kernels->release(kernels, memory);
}

static double *expected_product(const struct product_case *c, int32_t tokens) {
    double *expected = allocate_or_fail((size_t)tokens * (size_t)c->w.rows * sizeof *expected);
    float *x = allocate_or_fail((size_t)c->x.columns * sizeof *x);
    for (int32_t t = 0; t < tokens; t++) {
        decode_row(c->x.encoding, (const uint8_t *)c->x.data + t * c->x.stride, c->x.columns, x);
        for (int32_t r = 0; r < c->w.rows; r++)
            for (int32_t i = 0; i < c->w.columns; i++)
                expected[(int64_t)t * c->w.rows + r] += x[i] * weight_value(&c->w, r, i);
    }
    free(x);
    return expected;
}

static void check_product(
    enum weight_format format, enum row_encoding encoding, int32_t rows, int32_t columns, int32_t tokens) {
    float *x = random_floats((size_t)tokens * (size_t)columns, 2);
    struct product_case c = {
        encoded_rows(encoding, x, tokens, columns), random_matrix(format, rows, columns)};
    double *expected = expected_product(&c, tokens);
    char name[100];
    snprintf(name, sizeof name, "product of format %d, rows %d x %d, encoding %d, %d tokens", format, rows,
        columns, encoding, tokens);
    struct trial trial = {name, run_product, &c, tokens, (size_t)rows * sizeof(float), expected, 1e-5};
    check_all_sets(&trial);
    free(x);
    free(c.x.data);
    free_matrix(&c.w);
    free(expected);
}

static void test_products(void **state) {
    (void)state;
    static const enum weight_format formats[] = {
        WEIGHT_F32, WEIGHT_BF16, WEIGHT_FP8_TILE, WEIGHT_FP8_ROW, WEIGHT_FP4_ROW};
    static const int32_t shapes[][2] = {{1, 32}, {3, 64}, {37, 96}, {64, 512}, {33, 544}, {70, 1056}};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            check_product(formats[f], ROWS_F32, shapes[s][0], shapes[s][1], 13);
            check_product(formats[f], ROWS_FP8, shapes[s][0], shapes[s][1], 7);
        }
    check_product(WEIGHT_FP8_TILE, ROWS_FP4, 40, 160, 3);
    check_product(WEIGHT_FP4_ROW, ROWS_FP4_FINE, 40, 160, 3);
    check_product(WEIGHT_BF16, ROWS_F32, 5, 32, 401); /* several chunks of tokens */
}

static void test_products_of_odd_columns(void **state) {
    (void)state;
    static const int32_t columns[] = {1, 7, 17, 515, 1030};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        check_product(WEIGHT_F32, ROWS_F32, 9, columns[i], 8);
        check_product(WEIGHT_BF16, ROWS_F32, 24, columns[i], 8);
    }
}

/* Longer rows than decoded ones may have: the mixes of the residual streams have them, in float32. */
static void test_products_of_long_rows(void **state) {
    (void)state;
    static const int32_t columns[] = {20480, 28672}, tokens[] = {1, 8, 13};
    for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++)
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++)
            check_product(WEIGHT_F32, ROWS_F32, 24, columns[c], tokens[t]);
}

static void test_scales_at_the_ends(void **state) {
    (void)state;
    static const uint8_t ends[] = {0, 1, 127, 246};
    for (size_t i = 0; i < sizeof ends; i++) {
        float x[32] = {1};
        uint8_t codes[32] = {0x3a, 0x01, 0x80, 0x7e}, scales[1] = {ends[i]};
        struct product_case c = {encoded_rows(ROWS_F32, x, 1, 32), {codes, scales, WEIGHT_FP8_ROW, 1, 32}};
        for (size_t s = 0; s < INSTRUCTION_SETS; s++) {
            float found;
            struct trial trial = {"product with an extreme scale", run_product, &c, 1, sizeof found, NULL, 0};
            /* BF16 dot products know no denormal numbers: kernels/cpu/operations/bf16_decode.h */
            bool is_bounded = strcmp(instruction_set_names[s], "avx512bf16") == 0 && ends[i] < 10;
            if (check_set(&trial, instruction_set_names[s], (uint8_t *)&found))
                assert_true(found == (float)(1.25 * ldexp(1, (is_bounded ? 10 : ends[i]) - 127)));
        }
        free(c.x.data);
    }
}

/* ---- grouped product ---- */

struct grouped_case {
    const float *x;
    struct matrix w;
    int32_t groups;
};

static void run_grouped(const struct kernels *kernels, struct stream *stream, const void *context,
    int32_t first, int32_t count, void *out) {
    const struct grouped_case *c = context;
    kernels->grouped_product(
        stream, c->x + (int64_t)first * c->groups * c->w.columns, count, c->groups, &c->w, out);
}

static void check_grouped(
    enum weight_format format, int32_t groups, int32_t rows, int32_t columns, int32_t tokens) {
    struct grouped_case c = {random_floats((size_t)tokens * (size_t)groups * (size_t)columns, 1),
        random_matrix(format, groups * rows, columns), groups};
    double *expected = allocate_or_fail((size_t)tokens * (size_t)c.w.rows * sizeof *expected);
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t r = 0; r < c.w.rows; r++)
            for (int32_t i = 0; i < columns; i++)
                expected[(int64_t)t * c.w.rows + r] +=
                    c.x[((int64_t)t * groups + r / rows) * columns + i] * weight_value(&c.w, r, i);
    struct trial trial = {
        "grouped product", run_grouped, &c, tokens, (size_t)c.w.rows * sizeof(float), expected, 1e-5};
    check_all_sets(&trial);
    free((void *)c.x);
    free_matrix(&c.w);
    free(expected);
}

static void test_grouped_products(void **state) {
    (void)state;
    check_grouped(WEIGHT_FP8_TILE, 4, 32, 128, 9);
    check_grouped(WEIGHT_FP8_TILE, 3, 40, 96, 6); /* groups that begin inside a scale's tile */
    check_grouped(WEIGHT_BF16, 2, 5, 33, 200);
    check_grouped(WEIGHT_FP8_ROW, 1, 7, 544, 1);
}

/* ---- experts ---- */

enum { EXPERTS = 5 };

struct experts_case {
    struct rows x;
    struct expert_weights experts[EXPERTS];
    const int32_t *chosen; /* [tokens, k], ascending */
    const float *weight;   /* [tokens, k] */
    int32_t k, inner;
    float limit;
};

/* Pairs of tokens [first, first + count), sorted by expert; results go back to their token. */
static void run_experts(const struct kernels *kernels, struct stream *stream, const void *context,
    int32_t first, int32_t count, void *out) {
    const struct experts_case *c = context;
    size_t most = (size_t)(count * c->k);
    int32_t *row = allocate_or_fail(most * 4), *place = allocate_or_fail(most * 4);
    int32_t start[EXPERTS + 1] = {0};
    float *weight = allocate_or_fail(most * 4);
    int32_t pairs = 0;
    for (int32_t e = 0; e < EXPERTS; e++) {
        for (int32_t i = 0; i < count * c->k; i++)
            if (c->chosen[first * c->k + i] == e) {
                row[pairs] = first + i / c->k; /* rows of other tokens lie around */
                weight[pairs] = c->weight[first * c->k + i];
                place[pairs++] = i;
            }
        start[e + 1] = pairs;
    }
    struct expert_pairs list = {pairs, EXPERTS, start, row, weight};
    float *result = allocate_or_fail(most * (size_t)c->x.columns * sizeof *result);
    kernels->experts(stream, &c->x, &list, c->experts, c->limit, result);
    for (int32_t p = 0; p < pairs; p++)
        memcpy((float *)out + (int64_t)place[p] * c->x.columns, result + (int64_t)p * c->x.columns,
            (size_t)c->x.columns * sizeof *result);
    free(row);
    free(place);
    free(weight);
    free(result);
}

static double dot_weights(const struct matrix *w, int32_t row, const float *x) {
    double sum = 0;
    for (int32_t c = 0; c < w->columns; c++)
        sum += x[c] * weight_value(w, row, c);
    return sum;
}

static double *expected_experts(const struct experts_case *c, int32_t tokens) {
    int32_t columns = c->x.columns;
    double *expected = allocate_or_fail((size_t)(tokens * c->k) * (size_t)columns * sizeof *expected);
    float *x = allocate_or_fail((size_t)columns * sizeof *x),
          *hidden = allocate_or_fail((size_t)c->inner * 4);
    for (int32_t pair = 0; pair < tokens * c->k; pair++) {
        decode_row(c->x.encoding, (const uint8_t *)c->x.data + pair / c->k * c->x.stride, columns, x);
        const struct expert_weights *expert = &c->experts[c->chosen[pair]];
        for (int32_t i = 0; i < c->inner; i++) {
            double gate = fmin(dot_weights(&expert->w1, i, x), c->limit);
            double up = fmax(fmin(dot_weights(&expert->w3, i, x), c->limit), -c->limit);
            hidden[i] = (float)(gate / (1 + exp(-gate)) * up * c->weight[pair]);
        }
        if (c->x.encoding == ROWS_FP8)
            round_row(ROWS_FP8, hidden, c->inner);
        for (int32_t i = 0; i < columns; i++)
            expected[(int64_t)pair * columns + i] = dot_weights(&expert->w2, i, hidden);
    }
    free(x);
    free(hidden);
    return expected;
}

/* tolerance: a hidden value near a tie of FP8 may round the other way, a sixteenth of it at most */
static void check_experts(enum row_encoding encoding, enum weight_format format, int32_t columns,
    int32_t inner, int32_t tokens, double tolerance) {
    enum { K = 3 };
    float *x = random_floats((size_t)tokens * (size_t)columns, 1);
    int32_t *chosen = allocate_or_fail((size_t)(tokens * K) * 4);
    float *weight = random_floats((size_t)(tokens * K), 1);
    for (int32_t t = 0; t < tokens; t++) {
        uint32_t left_out = random_bits() % 4; /* expert 3 is chosen by nobody */
        for (int32_t e = 0, filled = 0; e < EXPERTS && filled < K; e++)
            if (e != 3 && e != (int32_t)(left_out == 3 ? 4 : left_out))
                chosen[t * K + filled++] = e;
    }
    struct experts_case c = {
        encoded_rows(encoding, x, tokens, columns), {{{0}, {0}, {0}}}, chosen, weight, K, inner, 10};
    for (int32_t e = 0; e < EXPERTS; e++)
        c.experts[e] = (struct expert_weights){random_matrix(format, inner, columns),
            random_matrix(format, inner, columns), random_matrix(format, columns, inner)};
    double *expected = expected_experts(&c, tokens);
    struct trial trial = {
        "experts", run_experts, &c, tokens, (size_t)(K * columns) * sizeof(float), expected, tolerance};
    check_all_sets(&trial);
    for (int32_t e = 0; e < EXPERTS; e++) {
        free_matrix(&c.experts[e].w1);
        free_matrix(&c.experts[e].w3);
        free_matrix(&c.experts[e].w2);
    }
    free(x);
    free(chosen);
    free(weight);
    free(c.x.data);
    free(expected);
}

static void test_experts(void **state) {
    (void)state;
    check_experts(ROWS_F32, WEIGHT_FP4_ROW, 128, 64, 11, 1e-5);
    check_experts(ROWS_FP8, WEIGHT_FP4_ROW, 128, 64, 11, 2e-2);
    check_experts(
        ROWS_FP8, WEIGHT_FP4_ROW, 96, 160, 90, 2e-2); /* more tokens than a hidden tile takes at once */
    check_experts(ROWS_F32, WEIGHT_BF16, 40, 24, 6, 1e-5);
    check_experts(ROWS_F32, WEIGHT_F32, 7, 5, 6, 1e-5);
}

static void test_no_tokens(void **state) {
    (void)state;
    const struct kernels *kernels;
    struct stream *stream;
    assert_int_equal(kernels_cpu_create(2, NULL, &kernels), OK);
    assert_int_equal(kernels->stream_create(kernels, &stream), OK);
    struct matrix w = random_matrix(WEIGHT_FP8_TILE, 32, 32);
    struct rows x = {NULL, ROWS_FP8, 32, 33};
    struct expert_pairs pairs = {0, 0, NULL, NULL, NULL};
    kernels->product(stream, &x, 0, &w, NULL, 32);
    kernels->grouped_product(stream, NULL, 0, 1, &w, NULL);
    kernels->experts(stream, &x, &pairs, NULL, 10, NULL);
    free_matrix(&w);
    kernels->stream_free(kernels, stream);
    kernels_free(kernels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_products_of_long_rows),
        cmocka_unit_test(test_products_of_odd_columns),
        cmocka_unit_test(test_scales_at_the_ends),
        cmocka_unit_test(test_grouped_products),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

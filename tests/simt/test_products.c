/* Products of the CUDA backend: against the CPU backend, with each kernel, for any number of tokens. */
#include "products_check.h"

/* Weights of packed formats are exact; inputs of float32 are split into terms that hold all but their last
 * bit or so. */
#define PRODUCT_TOLERANCE 1e-5

struct product_case {
    struct rows x; /* in host memory */
    struct matrix w;
    int32_t groups; /* 0: a plain product */
};

static void run_product(const struct kernels *kernels, struct stream *stream, const void *context,
    int32_t first, int32_t count, void *out) {
    const struct product_case *c = context;
    struct device d = open_device(kernels, stream);
    struct rows x = c->x;
    int32_t rows = c->groups > 0 ? c->groups : 1,
            gap = c->groups > 0 ? 0 : 3; /* outputs apart from each other */
    int64_t stride = c->w.rows + gap;
    x.data = to_device(&d, (uint8_t *)c->x.data + (int64_t)first * rows * x.stride,
        (size_t)((int64_t)count * rows * x.stride));
    struct matrix placed = matrix_to_device(&d, &c->w);
    size_t bytes = (size_t)(count * stride) * sizeof(float);
    float *to = device_array(&d, bytes), *apart = allocate_or_fail(bytes);
    if (c->groups > 0)
        kernels->grouped_product(stream, x.data, count, c->groups, &placed, to);
    else
        kernels->product(stream, &x, count, &placed, to, stride);
    from_device(&d, apart, to, bytes);
    for (int32_t t = 0; t < count; t++) {
        memcpy((float *)out + (int64_t)t * c->w.rows, apart + t * stride, (size_t)c->w.rows * sizeof *apart);
        for (int32_t i = 0; i < gap; i++)
            assert_true(apart[t * stride + c->w.rows + i] == 0); /* between rows nothing is written */
    }
    free(apart);
    close_device(&d);
}

static struct product_case open_case(enum weight_format format, enum row_encoding encoding, int32_t groups,
    int32_t rows, int32_t columns, int32_t tokens) {
    int32_t x_rows = tokens * (groups > 0 ? groups : 1);
    float *x = random_floats((size_t)x_rows * (size_t)columns, 2);
    struct product_case c = {{x, ROWS_F32, columns, columns * 4},
        random_matrix(format, rows * (groups > 0 ? groups : 1), columns), groups};
    if (groups > 0) /* one row of float32 after the other */
        return c;
    c.x = encoded_rows(encoding, x, x_rows, columns);
    free(x);
    return c;
}

static void close_case(struct product_case *c) {
    free(c->x.data);
    free_matrix(&c->w);
}

static struct trial trial_of(const struct product_case *c, int32_t tokens, char name[100]) {
    snprintf(name, 100, "product of format %d, %d x %d, encoding %d, %d tokens, %d groups", (int)c->w.format,
        c->w.rows, c->w.columns, (int)c->x.encoding, tokens, c->groups);
    return (struct trial){
        name, run_product, c, tokens, (size_t)c->w.rows * sizeof(float), NULL, PRODUCT_TOLERANCE};
}

static void check_product(enum weight_format format, enum row_encoding encoding, int32_t groups, int32_t rows,
    int32_t columns, int32_t tokens) {
    char name[100];
    struct product_case c = open_case(format, encoding, groups, rows, columns, tokens);
    struct trial trial = trial_of(&c, tokens, name);
    compare_backends(&trial);
    close_case(&c);
}

static void check_kernels(enum weight_format format, enum row_encoding encoding, int32_t groups, int32_t rows,
    int32_t columns, int32_t tokens) {
    char name[100];
    struct product_case c = open_case(format, encoding, groups, rows, columns, tokens);
    struct trial trial = trial_of(&c, tokens, name);
    compare_kernels(&trial);
    close_case(&c);
}

static const enum weight_format formats[] = {
    WEIGHT_F32, WEIGHT_BF16, WEIGHT_FP8_TILE, WEIGHT_FP8_ROW, WEIGHT_FP4_ROW};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* ---- against the CPU ---- */

static void test_shapes(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{1, 32}, {3, 64}, {37, 96}, {64, 512}, {33, 544}, {70, 1056}};
    for (size_t f = 0; f < FORMATS; f++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            check_product(formats[f], ROWS_F32, 0, shapes[s][0], shapes[s][1], 11);
            check_product(formats[f], ROWS_FP8, 0, shapes[s][0], shapes[s][1], 7);
        }
    check_product(WEIGHT_FP8_TILE, ROWS_FP4, 0, 40, 160, 3);
    check_product(WEIGHT_FP4_ROW, ROWS_FP4_FINE, 0, 40, 160, 3);
    check_product(WEIGHT_F32, ROWS_FP4, 0, 20, 96, 3);
}

static void test_odd_columns(void **state) {
    (void)state;
    static const int32_t columns[] = {1, 7, 17, 515, 1030};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        check_product(WEIGHT_F32, ROWS_F32, 0, 9, columns[i], 9);
        check_product(WEIGHT_BF16, ROWS_F32, 0, 24, columns[i], 8);
    }
    check_product(WEIGHT_F32, ROWS_F32, 0, 24, 20480, 3);
}

/* The shapes of the real model's linears, their outputs cut down. */
static void test_long_rows(void **state) {
    (void)state;
    check_product(WEIGHT_FP8_TILE, ROWS_FP8, 0, 48, 5120, 6);
    check_product(WEIGHT_FP8_TILE, ROWS_FP8, 0, 64, 1280, 6);
    check_product(WEIGHT_FP8_TILE, ROWS_FP8, 0, 16, 8192, 2);
    check_product(WEIGHT_BF16, ROWS_F32, 0, 24, 5120, 6);
    check_product(WEIGHT_FP8_TILE, ROWS_F32, 2, 16, 4096, 3);
}

static void test_groups(void **state) {
    (void)state;
    check_product(WEIGHT_FP8_TILE, ROWS_F32, 4, 32, 128, 9);
    check_product(WEIGHT_FP8_TILE, ROWS_F32, 3, 40, 96, 6); /* groups that begin inside a scale's tile */
    check_product(WEIGHT_BF16, ROWS_F32, 2, 5, 33, 70);
    check_product(WEIGHT_FP8_ROW, ROWS_F32, 1, 7, 544, 1);
    check_product(WEIGHT_F32, ROWS_F32, 2, 9, 50, 9);
}

/* ---- the same bits whatever kernel, however many tokens ---- */

static void test_kernels(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 9, 33, 130};
    for (size_t f = 0; f < FORMATS; f++)
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
            check_kernels(formats[f], ROWS_FP8, 0, 150, 1056, tokens[t]);
            check_kernels(formats[f], ROWS_F32, 0, 40, 608, tokens[t]);
        }
    check_kernels(
        WEIGHT_BF16, ROWS_F32, 0, 20, 584, 20); /* a block of columns that ends within a lane's part */
    check_kernels(WEIGHT_FP8_TILE, ROWS_F32, 3, 40, 608, 35);
}

/* Blocks that share out the chunks: few outputs, long rows. */
static void test_shared_chunks(void **state) {
    (void)state;
    struct product_shape shape = {40, 0, 1, 70, 4640, WEIGHT_FP8_TILE, 1, false, 4};
    struct product_tiles tiles = choose_product_tiles(&shape);
    assert_int_equal(tiles.kernel, PRODUCT_MANY);
    assert_true(tiles.parts > 1);
    check_kernels(WEIGHT_FP8_TILE, ROWS_FP8, 0, 70, 4640, 40);
    check_kernels(WEIGHT_FP4_ROW, ROWS_F32, 2, 24, 2080, 40);
}

static void test_token_counts(void **state) {
    (void)state;
    enum { MOST = 130, ROWS = 35 };
    static const int32_t counts[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 64, 65, 128};
    struct product_case c = open_case(WEIGHT_FP8_TILE, ROWS_FP8, 0, ROWS, 1088, MOST);
    struct backends b = open_backends();
    float *all = allocate_or_fail(MOST * ROWS * sizeof *all),
          *some = allocate_or_fail(MOST * ROWS * sizeof *some);
    run_product(b.kernels[1], b.stream[1], &c, 0, MOST, all);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        int32_t first = MOST - counts[i];
        run_product(b.kernels[1], b.stream[1], &c, first, counts[i], some);
        if (memcmp(some, all + (int64_t)first * ROWS, (size_t)counts[i] * ROWS * sizeof *some) != 0)
            fail_msg("%d tokens differ from the same among %d", counts[i], MOST);
    }
    free(all);
    free(some);
    close_backends(&b);
    close_case(&c);
}

/* ---- numbers at the ends ---- */

/* What one token's infinities and NaNs do to its outputs the CPU says; no other token sees them. */
static void test_infinities(void **state) {
    (void)state;
    enum { TOKENS = 9, COLUMNS = 96, ROWS = 20 };
    for (size_t f = 0; f < FORMATS; f++)
        for (int encoded = 0; encoded < 2; encoded++) {
            float *x = random_floats(TOKENS * COLUMNS, 1);
            x[1 * COLUMNS + 5] = INFINITY;
            x[2 * COLUMNS + 70] = -INFINITY;
            x[4 * COLUMNS + 0] = NAN;
            x[5 * COLUMNS + 8] = 3.4e38f;
            x[6 * COLUMNS + 3] = 1e-42f;
            struct product_case c = {encoded_rows(encoded ? ROWS_FP8 : ROWS_F32, x, TOKENS, COLUMNS),
                random_matrix(formats[f], ROWS, COLUMNS), 0};
            char name[100];
            struct trial trial = trial_of(&c, TOKENS, name);
            compare_backends(&trial);
            close_case(&c);
            free(x);
        }
}

static void test_scales_at_the_ends(void **state) {
    (void)state;
    static const uint8_t ends[] = {0, 1, 2, 20, 127, 128, 129, 134, 135, 200, 246, 250, 254, 255};
    static const float sizes[] = {1, 0x1p100f, 0x1p-100f};
    for (size_t i = 0; i < sizeof ends; i++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (int is_fp4 = 0; is_fp4 < 2; is_fp4++) {
                float x[64] = {0};
                uint8_t codes[64] = {0x3a, 0x01, 0x80, 0x7e}, scales[2] = {ends[i], 127};
                x[is_fp4 ? 0 : i % 4] = sizes[s]; /* one product: sums of infinities are nobody's promise */
                /* above, weights are infinite, and float32 inputs have terms that are 0 */
                enum row_encoding encoding = ends[i] > 246 ? ROWS_FP8 : ROWS_F32;
                struct product_case c = {encoded_rows(encoding, x, 1, 64),
                    {codes, scales, is_fp4 ? WEIGHT_FP4_ROW : WEIGHT_FP8_ROW, 1, 64}, 0};
                char name[100];
                struct trial trial = trial_of(&c, 1, name);
                compare_backends(&trial);
                compare_kernels(&trial);
                free(c.x.data);
            }
}

/* A code of each kind comes out of each kernel as its value. */
static void test_codes(void **state) {
    (void)state;
    enum { COLUMNS = 256 };
    float x[COLUMNS * COLUMNS] = {0};
    uint8_t codes[COLUMNS], scales[COLUMNS / 32];
    for (int32_t c = 0; c < COLUMNS; c++)
        x[c * COLUMNS + c] = 1; /* token c gives column c */
    memset(scales, 127, sizeof scales);
    for (int is_fp4 = 0; is_fp4 < 2; is_fp4++) {
        for (int32_t c = 0; c < COLUMNS; c++)
            codes[c] = (uint8_t)(!is_fp4 && (c & 127) == E4M3_NAN ? 0 : c); /* NaN codes have no promise */
        struct product_case c = {encoded_rows(ROWS_FP8, x, COLUMNS, COLUMNS),
            {codes, scales, is_fp4 ? WEIGHT_FP4_ROW : WEIGHT_FP8_TILE, 1, COLUMNS}, 0};
        struct backends b = open_backends();
        for (size_t k = 0; k < sizeof all_kernels / sizeof all_kernels[0]; k++) {
            float found[COLUMNS];
            force_product_kernel(all_kernels[k]);
            run_product(b.kernels[1], b.stream[1], &c, 0, COLUMNS, found);
            for (int32_t i = 0; i < COLUMNS; i++)
                assert_true(found[i] == weight_value(&c.w, 0, i));
        }
        force_product_kernel(PRODUCT_ANY);
        free(c.x.data);
        close_backends(&b);
    }
}

static void test_no_tokens(void **state) {
    (void)state;
    struct backends b = open_backends();
    struct matrix w = random_matrix(WEIGHT_FP8_TILE, 32, 32);
    struct rows x = {NULL, ROWS_FP8, 32, 33};
    b.kernels[1]->product(b.stream[1], &x, 0, &w, NULL, 32);
    b.kernels[1]->grouped_product(b.stream[1], NULL, 0, 1, &w, NULL);
    assert_int_equal(b.kernels[1]->synchronize(b.stream[1]), OK);
    free_matrix(&w);
    close_backends(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_odd_columns),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_shared_chunks),
        cmocka_unit_test(test_token_counts),
        cmocka_unit_test(test_infinities),
        cmocka_unit_test(test_scales_at_the_ends),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

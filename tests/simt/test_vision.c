/* Operations of the vision encoder of the CUDA backend against the CPU backend. */
#include "operations_check.h"

struct vision_case {
    int32_t columns, rows, heads, width, ratio;
    const float *x, *y;
    const uint16_t *weight;
};

#define RUN(name)                                                                                            \
    static void run_##name(const struct kernels *kernels, struct stream *stream, const void *context,        \
        int32_t first, int32_t count, void *out)

#define OPEN                                                                                                 \
    const struct vision_case *c = context;                                                                   \
    struct device d = open_device(kernels, stream)

/* ---- element by element: a token is a row of columns ---- */

RUN(add_bias) {
    OPEN;
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    float *x = to_device(&d, c->x + (int64_t)first * c->columns, bytes);
    kernels->add_bias(stream, x, count, c->columns, to_device(&d, c->weight, (size_t)c->columns * 2));
    from_device(&d, out, x, bytes);
    close_device(&d);
}

RUN(add) {
    OPEN;
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    float *x = to_device(&d, c->x + (int64_t)first * c->columns, bytes);
    float *y = to_device(&d, c->y + (int64_t)first * c->columns, bytes);
    kernels->add(stream, x, y, (int64_t)count * c->columns);
    from_device(&d, out, x, bytes);
    close_device(&d);
}

RUN(gelu) {
    OPEN;
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    float *x = to_device(&d, c->x + (int64_t)first * c->columns, bytes);
    kernels->gelu(stream, x, (int64_t)count * c->columns);
    from_device(&d, out, x, bytes);
    close_device(&d);
}

static void test_elements(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{7, 33}, {70, 64}, {1, 1}, {5, 4096}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int32_t tokens = shapes[s][0], columns = shapes[s][1];
        float *x = edge_floats((size_t)(tokens * columns)), *y = edge_floats((size_t)(tokens * columns));
        uint16_t *bias = random_bf16((size_t)columns);
        struct vision_case c = {.columns = columns, .x = x, .y = y, .weight = bias};
        size_t bytes = (size_t)columns * 4;
        struct trial add_bias = {"add_bias", run_add_bias, &c, tokens, bytes, NULL, 1e-45};
        compare_backends(&add_bias);
        struct trial add = {"add", run_add, &c, tokens, bytes, NULL, 1e-45};
        compare_backends(&add);
        struct trial gelu = {"gelu", run_gelu, &c, tokens, bytes, NULL, 5e-7};
        compare_backends(&gelu);
        free(x);
        free(y);
        free(bias);
    }
}

/* ---- grids: a whole image is one token of the trial ---- */

RUN(rotate_grid) {
    OPEN;
    (void)first;
    float frequency[32];
    for (int32_t i = 0; i < c->width / 4; i++)
        frequency[i] = (float)pow(10000.0, -4.0 * i / c->width);
    size_t bytes = (size_t)(c->rows * c->columns * 3 * c->heads * c->width) * sizeof(float);
    float *x = to_device(&d, c->x, bytes);
    assert_int_equal(count, 1);
    kernels->rotate_grid(stream, x, c->rows, c->columns, c->heads, c->width, frequency);
    from_device(&d, out, x, bytes);
    close_device(&d);
}

static void check_rotate_grid(int32_t rows, int32_t columns, int32_t heads, int32_t width) {
    size_t count = (size_t)(rows * columns * 3 * heads * width);
    float *x = random_floats(count, 3);
    struct vision_case c = {.rows = rows, .columns = columns, .heads = heads, .width = width, .x = x};
    struct trial trial = {"rotate_grid", run_rotate_grid, &c, 1, count * 4, NULL, 3e-7};
    compare_backends(&trial);
    free(x);
}

static void test_rotate_grid(void **state) {
    (void)state;
    check_rotate_grid(3, 5, 2, 16);
    check_rotate_grid(2, 40, 16, 64);
    check_rotate_grid(1, 1, 1, 4);
}

static int64_t squares_of(const struct vision_case *c) {
    return (int64_t)((c->rows + c->ratio - 1) / c->ratio) * ((c->heads + c->ratio - 1) / c->ratio);
}

/* heads: columns of the grid */
RUN(pack_squares) {
    OPEN;
    (void)first;
    size_t bytes = (size_t)(squares_of(c) * c->columns * c->ratio * c->ratio) * sizeof(float);
    float *x = to_device(&d, c->x, (size_t)(c->rows * c->heads * c->columns) * sizeof(float));
    float *to = device_array(&d, bytes);
    assert_int_equal(count, 1);
    kernels->pack_squares(stream, x, c->rows, c->heads, c->columns, c->ratio, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

static void check_pack_squares(int32_t rows, int32_t wide, int32_t columns, int32_t ratio) {
    float *x = edge_floats((size_t)(rows * wide * columns));
    struct vision_case c = {.rows = rows, .heads = wide, .columns = columns, .ratio = ratio, .x = x};
    size_t bytes = (size_t)(squares_of(&c) * columns * ratio * ratio) * 4;
    struct trial trial = {"pack_squares", run_pack_squares, &c, 1, bytes, NULL, SAME_BITS};
    compare_backends(&trial);
    free(x);
}

static void test_pack_squares(void **state) {
    (void)state;
    check_pack_squares(3, 6, 64, 3);
    check_pack_squares(4, 5, 33, 3);
    check_pack_squares(1, 1, 5, 2);
    check_pack_squares(5, 3, 1024, 3);
}

/* ---- attention ---- */

RUN(attend_all) {
    OPEN;
    (void)first;
    int32_t all = c->heads * c->width;
    size_t bytes = (size_t)(c->rows * all) * sizeof(float);
    float *qkv = to_device(&d, c->x, 3 * bytes), *to = device_array(&d, bytes);
    assert_int_equal(count, 1);
    kernels->attend_all(stream, qkv, c->rows, c->heads, c->width, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

/* Products of two BF16 terms lack 2^-17 of each product at most, mostly much less, and the errors of a score average out. */
static const double SPLIT_TOLERANCE = 1e-5, FLOAT_TOLERANCE = 2e-6;

static void check_attend_all(int32_t tokens, int32_t heads, int32_t width, float size, double tolerance) {
    size_t count = (size_t)(tokens * heads * width);
    float *qkv = random_floats(3 * count, size);
    struct vision_case c = {.rows = tokens, .heads = heads, .width = width, .x = qkv};
    struct trial trial = {"attend_all", run_attend_all, &c, 1, count * 4, NULL, tolerance};
    compare_backends(&trial);
    free(qkv);
}

static void test_attend_all(void **state) {
    (void)state;
    check_attend_all(1, 1, 16, 2, SPLIT_TOLERANCE);
    check_attend_all(7, 4, 16, 2, SPLIT_TOLERANCE);
    check_attend_all(64, 2, 64, 2, SPLIT_TOLERANCE);
    check_attend_all(65, 2, 64, 2, SPLIT_TOLERANCE);
    check_attend_all(200, 3, 64, 2, SPLIT_TOLERANCE);
    check_attend_all(1030, 1, 64, 2, SPLIT_TOLERANCE);
    check_attend_all(70, 1, 30, 2, SPLIT_TOLERANCE);
    check_attend_all(40, 1, 80, 2, SPLIT_TOLERANCE);
    check_attend_all(66, 1, 128, 2, SPLIT_TOLERANCE);
    check_attend_all(70, 2, 33, 0.1f, SPLIT_TOLERANCE);
    check_attend_all(70, 2, 132, 2, FLOAT_TOLERANCE); /* the plain kernel */
    check_attend_all(3, 1, 200, 2, FLOAT_TOLERANCE);
}

/* One key far ahead of all others: its value is the result. */
static void test_attend_all_peaked(void **state) {
    (void)state;
    enum { TOKENS = 130, WIDTH = 64 };
    float *qkv = random_floats(TOKENS * 3 * WIDTH, 1);
    for (int32_t c = 0; c < WIDTH; c++) {
        for (int32_t t = 0; t < TOKENS; t++)
            qkv[t * 3 * WIDTH + c] = 20;
        qkv[(100 * 3 + 1) * WIDTH + c] = 20;
    }
    struct vision_case c = {.rows = TOKENS, .heads = 1, .width = WIDTH, .x = qkv};
    struct trial trial = {"attend_all", run_attend_all, &c, 1, TOKENS * WIDTH * 4, NULL, SPLIT_TOLERANCE};
    compare_backends(&trial);
    free(qkv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_rotate_grid),
        cmocka_unit_test(test_pack_squares),
        cmocka_unit_test(test_attend_all),
        cmocka_unit_test(test_attend_all_peaked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Operations on residual streams of the CUDA backend against the CPU backend. */
#include "operations_check.h"

struct streams_case {
    int32_t streams, columns;
    const float *x, *y, *pre, *comb, *base, *scale;
    const uint16_t *weight, *other_weight;
    const uint8_t *is_image;
    struct matrix matrix;
};

#define RUN(name)                                                                                            \
    static void run_##name(const struct kernels *kernels, struct stream *stream, const void *context,        \
        int32_t first, int32_t count, void *out)

#define OPEN                                                                                                 \
    const struct streams_case *c = context;                                                                  \
    struct device d = open_device(kernels, stream)

static float *part_to_device(struct device *d, const float *x, int32_t first, int32_t count, int32_t width) {
    return to_device(d, x + (int64_t)first * width, (size_t)count * (size_t)width * sizeof(float));
}

/* Puts a token's parts one after the other: column `at` of rows of `total` floats gets those of `part`, `width` a token. */
static void lay_beside(
    float *out, int32_t total, int32_t at, const float *part, int32_t width, int32_t count) {
    for (int32_t t = 0; t < count; t++)
        memcpy(out + (int64_t)t * total + at, part + (int64_t)t * width, (size_t)width * sizeof(float));
}

/* Fetches an array of `width` floats a token and lays it beside what is there. */
static void fetch_beside(struct device *d, const float *from, int32_t width, int32_t count, float *out,
    int32_t total, int32_t at) {
    size_t bytes = (size_t)(count * width) * sizeof(float);
    float *part = allocate_or_fail(bytes);
    from_device(d, part, from, bytes);
    lay_beside(out, total, at, part, width, count);
    free(part);
}

/* ---- start ---- */

RUN(start_streams) {
    OPEN;
    int32_t flat = c->streams * c->columns, total = flat + c->streams;
    float *streams = device_array(&d, (size_t)(count * flat) * 4);
    float *pre = device_array(&d, (size_t)(count * c->streams) * 4);
    kernels->start_streams(stream, part_to_device(&d, c->x, first, count, c->columns), count, c->streams,
        c->columns, streams, pre);
    fetch_beside(&d, streams, flat, count, out, total, 0);
    fetch_beside(&d, pre, c->streams, count, out, total, flat);
    close_device(&d);
}

static void test_start_streams(void **state) {
    (void)state;
    static const int32_t shapes[][3] = {{1, 33, 3}, {70, 64, 4}, {2, 5120, 4}, {3, 5, 8}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int32_t tokens = shapes[s][0];
        struct streams_case c = {.columns = shapes[s][1], .streams = shapes[s][2]};
        float *x = edge_floats((size_t)(tokens * c.columns));
        c.x = x;
        size_t bytes = (size_t)(c.streams * (c.columns + 1)) * 4;
        struct trial trial = {"start_streams", run_start_streams, &c, tokens, bytes, NULL, SAME_BITS};
        compare_backends(&trial);
        free(x);
    }
}

/* ---- collapse ---- */

RUN(collapse_norm) {
    OPEN;
    size_t bytes = (size_t)(count * c->columns) * 4;
    float *to = device_array(&d, bytes);
    kernels->collapse_norm(stream, part_to_device(&d, c->x, first, count, c->streams * c->columns),
        part_to_device(&d, c->pre, first, count, c->streams), count, c->streams, c->columns,
        to_device(&d, c->weight, (size_t)c->columns * 2), 1e-20f, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

static void test_collapse_norm(void **state) {
    (void)state;
    static const int32_t shapes[][3] = {
        {7, 33, 3}, {70, 64, 4}, {3, 5120, 4}, {7, 1030, 4}, {1, 5, 8}, {7, 512, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int32_t tokens = shapes[s][0];
        struct streams_case c = {.columns = shapes[s][1], .streams = shapes[s][2]};
        int32_t flat = c.streams * c.columns;
        float *x = random_floats((size_t)(tokens * flat), 3);
        float *pre = random_floats((size_t)(tokens * c.streams), 1);
        if (tokens > 2)
            memset(x, 0, (size_t)flat * sizeof *x); /* zeros stay zeros with eps 1e-20 */
        uint16_t *weight = random_bf16((size_t)c.columns);
        c.x = x;
        c.pre = pre;
        c.weight = weight;
        struct trial trial = {
            "collapse_norm", run_collapse_norm, &c, tokens, (size_t)c.columns * 4, NULL, 2e-6};
        compare_backends(&trial);
        free(x);
        free(pre);
        free(weight);
    }
}

/* ---- mix ---- */

RUN(mix) {
    OPEN;
    int32_t s = c->streams, flat = s * c->columns, total = (2 + s) * s;
    struct matrix fn = matrix_to_device(&d, &c->matrix);
    float *pre = device_array(&d, (size_t)(count * s) * 4), *post = device_array(&d, (size_t)(count * s) * 4);
    float *comb = device_array(&d, (size_t)(count * s * s) * 4);
    kernels->mix(stream, part_to_device(&d, c->x, first, count, flat), count, s, c->columns, &fn,
        to_device(&d, c->base, (size_t)total * 4), to_device(&d, c->scale, 12), 20, 1e-6f, 1e-20f, pre, post,
        comb);
    fetch_beside(&d, pre, s, count, out, total, 0);
    fetch_beside(&d, post, s, count, out, total, s);
    fetch_beside(&d, comb, s * s, count, out, total, 2 * s);
    close_device(&d);
}

/* With more tokens than the kernel for few takes, the pieces are met by the other kernel: bits must be the same. */
static void check_mix(int32_t tokens, int32_t streams, int32_t columns) {
    struct streams_case c = {.columns = columns, .streams = streams};
    int32_t flat = streams * columns, rows = (2 + streams) * streams;
    float *x = random_floats((size_t)(tokens * flat), 3), *base = random_floats((size_t)rows, 1);
    static const float scale[3] = {0.5f, 0.7f, 1.5f};
    c.matrix = random_matrix(WEIGHT_F32, rows, flat);
    c.x = x;
    c.base = base;
    c.scale = scale;
    struct trial trial = {"mix", run_mix, &c, tokens, (size_t)rows * 4, NULL, 1e-5};
    compare_backends(&trial);
    free_matrix(&c.matrix);
    free(x);
    free(base);
}

static void test_mix(void **state) {
    (void)state;
    check_mix(1, 4, 128);
    check_mix(7, 3, 35);
    check_mix(70, 4, 300);
    check_mix(67, 2, 601);
    check_mix(66, 8, 40);
    check_mix(65, 1, 33);
    check_mix(2, 4, 5120);
}

/* ---- expand ---- */

RUN(expand) {
    OPEN;
    int32_t flat = c->streams * c->columns;
    float *streams = part_to_device(&d, c->y, first, count, flat);
    kernels->expand(stream, part_to_device(&d, c->x, first, count, c->columns),
        part_to_device(&d, c->pre, first, count, c->streams),
        part_to_device(&d, c->comb, first, count, c->streams * c->streams), count, c->streams, c->columns,
        streams);
    from_device(&d, out, streams, (size_t)(count * flat) * 4);
    close_device(&d);
}

static void test_expand(void **state) {
    (void)state;
    static const int32_t shapes[][3] = {{7, 33, 3}, {70, 64, 4}, {2, 5120, 4}, {7, 30, 4}, {3, 12, 8}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int32_t tokens = shapes[s][0], count = shapes[s][2];
        struct streams_case c = {.columns = shapes[s][1], .streams = count};
        float *x = random_floats((size_t)(tokens * c.columns), 3);
        float *streams = random_floats((size_t)(tokens * count * c.columns), 3);
        float *post = random_floats((size_t)(tokens * count), 2);
        float *comb = random_floats((size_t)(tokens * count * count), 1);
        c.x = x;
        c.y = streams;
        c.pre = post;
        c.comb = comb;
        struct trial trial = {"expand", run_expand, &c, tokens, (size_t)(count * c.columns) * 4, NULL, 5e-7};
        compare_backends(&trial);
        free(x);
        free(streams);
        free(post);
        free(comb);
    }
}

/* ---- Engram ---- */

RUN(engram_add) {
    OPEN;
    int32_t flat = c->streams * c->columns;
    float *streams = part_to_device(&d, c->x, first, count, flat);
    kernels->engram_add(stream, part_to_device(&d, c->y, first, count, flat + c->columns),
        to_device(&d, c->weight, (size_t)flat * 2), to_device(&d, c->other_weight, (size_t)flat * 2),
        to_device(&d, c->is_image + first, (size_t)count), count, c->streams, c->columns, 1e-20f, streams);
    from_device(&d, out, streams, (size_t)(count * flat) * 4);
    close_device(&d);
}

static void test_engram_add(void **state) {
    (void)state;
    static const int32_t shapes[][3] = {{7, 33, 3}, {70, 64, 4}, {2, 5120, 4}, {6, 1030, 2}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        int32_t tokens = shapes[s][0], count = shapes[s][2];
        struct streams_case c = {.columns = shapes[s][1], .streams = count};
        int32_t flat = count * c.columns;
        float *streams = random_floats((size_t)(tokens * flat), 3);
        float *kv = random_floats((size_t)(tokens * (flat + c.columns)), 3);
        uint16_t *q = random_bf16((size_t)flat), *k = random_bf16((size_t)flat);
        uint8_t *is_image = allocate_or_fail((size_t)tokens);
        for (int32_t t = 0; t < tokens; t++)
            is_image[t] = t % 4 == 2;
        c.x = streams;
        c.y = kv;
        c.weight = q;
        c.other_weight = k;
        c.is_image = is_image;
        struct trial trial = {"engram_add", run_engram_add, &c, tokens, (size_t)flat * 4, NULL, 1e-5};
        compare_backends(&trial);
        free(streams);
        free(kv);
        free(q);
        free(k);
        free(is_image);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_start_streams),
        cmocka_unit_test(test_collapse_norm),
        cmocka_unit_test(test_mix),
        cmocka_unit_test(test_expand),
        cmocka_unit_test(test_engram_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

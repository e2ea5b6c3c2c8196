/* Row operations of the CUDA backend against the CPU backend: embedding, norms, encodings, rotation, activation, sums, stores. */
#include "operations_check.h"

struct rows_case {
    int32_t columns, heads, k, gap; /* gap: bytes between encoded rows */
    const float *x, *y;
    const uint16_t *weight;
    const int32_t *ids;
    struct matrix matrix;
    struct rope rope;
    bool flag;
    enum row_encoding encoding;
    float eps;
};

#define RUN(name)                                                                                            \
    static void run_##name(const struct kernels *kernels, struct stream *stream, const void *context,        \
        int32_t first, int32_t count, void *out)

#define OPEN                                                                                                 \
    const struct rows_case *c = context;                                                                     \
    struct device d = open_device(kernels, stream)

/* Floats a token is made of: an array of the case, of `width` a token. */
static float *part_to_device(struct device *d, const float *x, int32_t first, int32_t count, int32_t width) {
    return to_device(d, x + (int64_t)first * width, (size_t)count * (size_t)width * sizeof(float));
}

static const enum row_encoding encodings[] = {ROWS_F32, ROWS_FP8, ROWS_FP4, ROWS_FP4_FINE};

/* ---- embed ---- */

RUN(embed) {
    OPEN;
    struct matrix table = matrix_to_device(&d, &c->matrix);
    int32_t *ids = to_device(&d, c->ids + first, (size_t)count * sizeof *ids);
    size_t bytes = (size_t)(count * c->matrix.columns) * sizeof(float);
    float *to = device_array(&d, bytes);
    kernels->embed(stream, &table, ids, count, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

static void check_embed(enum weight_format format, int32_t columns, int32_t tokens) {
    enum { VOCABULARY = 70 };
    struct rows_case c = {.matrix = random_matrix(format, VOCABULARY, columns)};
    int32_t *ids = random_ids((size_t)tokens, VOCABULARY);
    c.ids = ids;
    struct trial trial = {"embed", run_embed, &c, tokens, (size_t)columns * 4, NULL, SAME_BITS};
    compare_backends(&trial);
    free_matrix(&c.matrix);
    free(ids);
}

static void test_embed(void **state) {
    (void)state;
    check_embed(WEIGHT_BF16, 5120, 3);
    check_embed(WEIGHT_BF16, 33, 70);
    check_embed(WEIGHT_F32, 33, 6);
    check_embed(WEIGHT_F32, 128, 6);
    check_embed(WEIGHT_FP8_TILE, 96, 7);
    check_embed(WEIGHT_FP8_ROW, 96, 7);
    check_embed(WEIGHT_FP4_ROW, 96, 7);
}

/* ---- norms ---- */

RUN(rms_norm) {
    OPEN;
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    float *x = part_to_device(&d, c->x, first, count, c->columns);
    uint16_t *weight = to_device(&d, c->weight, (size_t)c->columns * sizeof *weight);
    float *to = c->flag ? x : device_array(&d, bytes); /* flag: in place */
    kernels->rms_norm(stream, x, count, c->columns, weight, c->eps, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

static void check_rms_norm(int32_t columns, int32_t tokens, bool in_place) {
    float *x = random_floats((size_t)(tokens * columns), 3);
    uint16_t *weight = random_bf16((size_t)columns);
    if (tokens > 2) {
        memset(x, 0, (size_t)columns * sizeof *x); /* a zero row stays zero with eps 1e-20 */
        x[columns] = NAN;
    }
    struct rows_case c = {.columns = columns, .x = x, .weight = weight, .eps = 1e-20f, .flag = in_place};
    struct trial trial = {"rms_norm", run_rms_norm, &c, tokens, (size_t)columns * 4, NULL, 1e-6};
    compare_backends(&trial);
    free(x);
    free(weight);
}

static void test_rms_norm(void **state) {
    (void)state;
    static const int32_t widths[] = {1, 5, 16, 33, 128, 512, 516, 1025, 1280, 5120};
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
        check_rms_norm(widths[w], 7, w % 2 == 0);
    check_rms_norm(64, 70, true);
    check_rms_norm(17000, 2, false); /* more than registers hold */
}

/* ---- encodings ---- */

static size_t case_stride(const struct rows_case *c) {
    return (size_t)(row_bytes(c->encoding, c->columns) + c->gap);
}

RUN(encode) {
    OPEN;
    size_t stride = case_stride(c), bytes = (size_t)count * stride;
    float *x = part_to_device(&d, c->x, first, count, c->columns);
    struct rows rows = {device_array(&d, bytes), c->encoding, c->columns, (int64_t)stride};
    kernels->encode(stream, x, count, &rows);
    from_device(&d, out, rows.data, bytes);
    close_device(&d);
}

RUN(decode) {
    OPEN;
    size_t stride = case_stride(c), bytes = (size_t)(count * c->columns) * sizeof(float);
    float *x = part_to_device(&d, c->x, first, count, c->columns), *to = device_array(&d, bytes);
    struct rows rows = {device_array(&d, (size_t)count * stride), c->encoding, c->columns, (int64_t)stride};
    kernels->encode(stream, x, count, &rows);
    kernels->decode(stream, &rows, count, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

RUN(round) {
    OPEN;
    float *x = part_to_device(&d, c->x, first, count, c->columns);
    kernels->round(stream, x, count, c->columns, c->encoding);
    from_device(&d, out, x, (size_t)(count * c->columns) * sizeof(float));
    close_device(&d);
}

/* Rows of every kind of number: ordinary ones with some of any bits, ties, any bits, any size. */
static float *numbers_of_all_kinds(int32_t rows, int32_t columns) {
    float *x = edge_floats((size_t)(rows * columns));
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < columns; i++) {
            float *value = &x[r * columns + i];
            if (r % 4 == 1) /* ties: few bits */
                *value = ldexpf((float)(int32_t)(random_bits() % 65) - 32, (int32_t)(random_bits() % 10) - 8);
            if (r % 4 == 2 && random_bits() % 16 > 0)
                *value = bits_float(random_bits());
            if (r % 4 == 3)
                *value = ldexpf(random_float(), r % 260 - 140 + (int32_t)(random_bits() % 6));
        }
    return x;
}

static void check_encodings(int32_t tokens, int32_t columns, int32_t gap) {
    float *x = numbers_of_all_kinds(tokens, columns);
    for (size_t e = 0; e < sizeof encodings / sizeof encodings[0]; e++) {
        struct rows_case c = {.columns = columns, .x = x, .encoding = encodings[e], .gap = gap};
        if (encodings[e] == ROWS_F32)
            c.gap = gap / 4 * 4;
        struct trial encode = {"encode", run_encode, &c, tokens, case_stride(&c), NULL, SAME_BITS};
        compare_backends(&encode);
        /* a NaN's bits are not promised, so near with the least tolerance that counts */
        struct trial decode = {"decode", run_decode, &c, tokens, (size_t)columns * 4, NULL, 1e-45};
        compare_backends(&decode);
        struct trial round = {"round", run_round, &c, tokens, (size_t)columns * 4, NULL, 1e-45};
        compare_backends(&round);
    }
    free(x);
}

static void test_encodings(void **state) {
    (void)state;
    check_encodings(70, 64, 0);
    check_encodings(9, 32, 0); /* rows of 33, 17 and 18 bytes: words do not fit */
    check_encodings(9, 96, 5);
    check_encodings(260, 32, 3);
    check_encodings(2, 5120, 0);
}

/* ---- rotation ---- */

RUN(rotate) {
    OPEN;
    int32_t width = c->heads * c->columns;
    float *x = part_to_device(&d, c->x, first, count, width);
    int32_t *positions = to_device(&d, c->ids + first, (size_t)count * sizeof *positions);
    kernels->rotate(stream, x, positions, count, c->heads, c->columns, &c->rope, c->flag);
    from_device(&d, out, x, (size_t)(count * width) * sizeof(float));
    close_device(&d);
}

static void check_rotate(int32_t tokens, int32_t heads, int32_t columns, int32_t dims, bool inverse) {
    float frequency[64];
    for (int32_t i = 0; i < dims / 2; i++)
        frequency[i] = (float)pow(10000.0, -2.0 * i / dims);
    float *x = random_floats((size_t)(tokens * heads * columns), 3);
    int32_t *positions = random_ids((size_t)tokens, 1 << 20);
    positions[0] = 0;
    struct rows_case c = {.columns = columns,
        .heads = heads,
        .x = x,
        .ids = positions,
        .rope = {dims, frequency},
        .flag = inverse};
    struct trial trial = {"rotate", run_rotate, &c, tokens, (size_t)(heads * columns) * 4, NULL, 3e-7};
    compare_backends(&trial);
    free(x);
    free(positions);
}

static void test_rotate(void **state) {
    (void)state;
    check_rotate(2, 64, 512, 64, false);
    check_rotate(70, 1, 64, 16, false);
    check_rotate(7, 3, 64, 16, true);
    check_rotate(7, 3, 35, 14, true); /* no whole fours */
    check_rotate(3, 1, 128, 128, false);
}

/* ---- activation and sums ---- */

RUN(swiglu) {
    OPEN;
    float *gate = part_to_device(&d, c->x, first, count, c->columns);
    float *up = part_to_device(&d, c->y, first, count, c->columns);
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    float *to = c->flag ? gate : device_array(&d, bytes);
    kernels->swiglu(stream, gate, up, count, c->columns, 10, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

static void check_swiglu(int32_t tokens, int32_t columns, bool in_place) {
    float *gate = edge_floats((size_t)(tokens * columns)), *up = edge_floats((size_t)(tokens * columns));
    for (int32_t i = 0; i < tokens * columns; i += 3)
        gate[i] *= 40;
    struct rows_case c = {.columns = columns, .x = gate, .y = up, .flag = in_place};
    struct trial trial = {"swiglu", run_swiglu, &c, tokens, (size_t)columns * 4, NULL, 5e-7};
    compare_backends(&trial);
    free(gate);
    free(up);
}

static void test_swiglu(void **state) {
    (void)state;
    check_swiglu(7, 33, false);
    check_swiglu(70, 96, true);
    check_swiglu(2, 2304, false);
}

RUN(combine) {
    OPEN;
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    float *shared = part_to_device(&d, c->x, first, count, c->columns);
    float *routed = part_to_device(&d, c->y, 0, c->heads, c->columns); /* heads: rows that the experts made */
    int32_t *place = to_device(&d, c->ids + first * c->k, (size_t)(count * c->k) * sizeof *place);
    float *to = device_array(&d, bytes);
    kernels->combine(stream, shared, routed, place, count, c->k, c->columns, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

static void check_combine(int32_t tokens, int32_t columns, int32_t k) {
    enum { ROUTED = 90 };
    float *shared = random_floats((size_t)(tokens * columns), 3);
    float *routed = random_floats((size_t)(ROUTED * columns), 3);
    int32_t *place = random_ids((size_t)(tokens * k) + 1, ROUTED);
    struct rows_case c = {
        .columns = columns, .heads = ROUTED, .k = k, .x = shared, .y = routed, .ids = place};
    struct trial trial = {"combine", run_combine, &c, tokens, (size_t)columns * 4, NULL, SAME_BITS};
    compare_backends(&trial);
    free(shared);
    free(routed);
    free(place);
}

static void test_combine(void **state) {
    (void)state;
    check_combine(70, 64, 6);
    check_combine(7, 37, 3);
    check_combine(3, 64, 0);
    check_combine(2, 5120, 6);
}

RUN(compress_pairs) {
    OPEN;
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    float *kv = part_to_device(&d, c->x, 2 * first, 2 * count, c->columns);
    float *gate = part_to_device(&d, c->y, 2 * first, 2 * count, c->columns);
    float *to = device_array(&d, bytes);
    kernels->compress_pairs(stream, kv, gate, count, c->columns, to);
    from_device(&d, out, to, bytes);
    close_device(&d);
}

static void check_compress_pairs(int32_t groups, int32_t columns) {
    float *kv = random_floats((size_t)(2 * groups * columns), 3);
    float *gate = random_floats((size_t)(2 * groups * columns), 30);
    struct rows_case c = {.columns = columns, .x = kv, .y = gate};
    struct trial trial = {"compress_pairs", run_compress_pairs, &c, groups, (size_t)columns * 4, NULL, 5e-7};
    compare_backends(&trial);
    free(kv);
    free(gate);
}

static void test_compress_pairs(void **state) {
    (void)state;
    check_compress_pairs(7, 33);
    check_compress_pairs(70, 64);
    check_compress_pairs(3, 512);
}

/* ---- copies and stores ---- */

/* Every row but each third one, last first. */
RUN(copy_rows) {
    OPEN;
    size_t bytes = (size_t)(count * c->columns) * sizeof(float);
    float *from = part_to_device(&d, c->x, first, count, c->columns), *to = device_array(&d, bytes);
    struct row_copy *list = allocate_or_fail((size_t)count * sizeof *list);
    for (int32_t i = 0; i < count; i++) {
        int32_t row = count - 1 - i;
        list[i].to = (first + row) % 3 != 0 ? to + (int64_t)row * c->columns : NULL;
        list[i].from = from + (int64_t)row * c->columns;
    }
    struct row_copy *on_device = to_device(&d, list, (size_t)count * sizeof *list);
    kernels->copy_rows(stream, on_device, count, c->columns);
    from_device(&d, out, to, bytes);
    free(list);
    close_device(&d);
}

static void test_copy_rows(void **state) {
    (void)state;
    static const int32_t widths[] = {33, 64, 5120};
    for (int32_t w = 0; w < 3; w++) {
        enum { TOKENS = 8 };
        float *x = edge_floats((size_t)(TOKENS * widths[w]));
        struct rows_case c = {.columns = widths[w], .x = x};
        struct trial trial = {"copy_rows", run_copy_rows, &c, TOKENS, (size_t)widths[w] * 4, NULL, SAME_BITS};
        compare_backends(&trial);
        free(x);
    }
}

enum { SEQUENCES = 3, TABLE = 6, BLOCKS = SEQUENCES * TABLE, ROWS_A_BLOCK = 4 };

/* A pool of blocks after the rows of `tokens` tokens were stored, some of them below their sequence's floor or nowhere. */
static uint8_t *store_on(const struct kernels *kernels, struct stream *stream, const struct rows_case *c,
    int32_t tokens, const int32_t *row, size_t *bytes) {
    struct device d = open_device(kernels, stream);
    int32_t sequence[70], blocks[BLOCKS], first_block[SEQUENCES] = {0, 2, 5}, floors[SEQUENCES] = {0, 10, 21};
    for (int32_t t = 0; t < tokens; t++)
        sequence[t] = t % SEQUENCES;
    for (int32_t i = 0; i < BLOCKS; i++)
        blocks[i] = (i * 7 + 3) % BLOCKS;
    struct block_rows rows = {.rows_per_block = ROWS_A_BLOCK, .encoding = c->encoding, .columns = c->columns};
    rows.offset = 12 + c->gap;
    rows.block_bytes = rows.offset + ROWS_A_BLOCK * row_bytes(c->encoding, c->columns) + c->gap;
    *bytes = (size_t)(BLOCKS * rows.block_bytes);
    rows.base = device_array(&d, *bytes);
    struct block_tables tables = {
        to_device(&d, blocks, sizeof blocks), to_device(&d, first_block, sizeof first_block), TABLE};
    kernels->store_rows(stream, part_to_device(&d, c->x, 0, tokens, c->columns), tokens,
        to_device(&d, sequence, sizeof sequence), to_device(&d, row, (size_t)tokens * sizeof *row),
        to_device(&d, floors, sizeof floors), &rows, &tables);
    uint8_t *pool = allocate_or_fail(*bytes);
    from_device(&d, pool, rows.base, *bytes);
    close_device(&d);
    return pool;
}

static void check_store_rows(enum row_encoding encoding, int32_t columns, int32_t gap) {
    enum { TOKENS = 70 };
    struct backends b = open_backends();
    float *x = numbers_of_all_kinds(TOKENS, columns);
    int32_t row[TOKENS]; /* each sequence's rows once, its table holding TABLE blocks from its first on */
    static const int32_t begin[SEQUENCES] = {0, 2 * ROWS_A_BLOCK, 5 * ROWS_A_BLOCK};
    for (int32_t t = 0; t < TOKENS; t++) {
        int32_t at = t / SEQUENCES;
        row[t] = at < TABLE * ROWS_A_BLOCK && at % 5 != 4 ? begin[t % SEQUENCES] + at : -1;
    }
    struct rows_case c = {.columns = columns, .x = x, .encoding = encoding, .gap = gap};
    size_t bytes = 0;
    uint8_t *expected = store_on(b.kernels[0], b.stream[0], &c, TOKENS, row, &bytes);
    uint8_t *found = store_on(b.kernels[1], b.stream[1], &c, TOKENS, row, &bytes);
    assert_memory_equal(found, expected, bytes);
    free(expected);
    free(found);
    free(x);
    close_backends(&b);
}

static void test_store_rows(void **state) {
    (void)state;
    for (size_t e = 0; e < sizeof encodings / sizeof encodings[0]; e++) {
        check_store_rows(encodings[e], 64, 4);
        check_store_rows(encodings[e], 512, 0);
    }
    check_store_rows(ROWS_FP8, 32, 0); /* rows of 33 bytes */
    check_store_rows(ROWS_FP4, 64, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_rotate),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_combine),
        cmocka_unit_test(test_compress_pairs),
        cmocka_unit_test(test_copy_rows),
        cmocka_unit_test(test_store_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Sparse attention of the CUDA backend against the CPU's; bits of tokens alone, in batches, and on devices of
 * different size. */
#include "blocks_check.h"

enum { NO_ROWS = -1, MOST_TOKENS = 8, SEQUENCES = 3 };

/* A token's place, and how many compressed rows it has chosen. */
struct token {
    int32_t sequence, position, window, chosen;
};

struct attend_case {
    struct stored window, latents;
    bool has_latents;
    int32_t tokens, heads, top_k;
    int32_t sequence[MOST_TOKENS], position[MOST_TOKENS], visible_from[MOST_TOKENS];
    int32_t *chosen;
    float *q, *sink;
};

struct shape {
    const char *name;
    int32_t window, latents; /* encodings; NO_ROWS: no compressed rows */
    int32_t columns, heads, top_k;
    int32_t padding;  /* of blocks: 16 lets rows be fetched in the fast way */
    double tolerance; /* relative to 1 + the largest value of the token */
    int32_t tokens;
    struct token token[MOST_TOKENS];
};

enum { MOST_ROWS = 260, GONE = 2, WINDOW_BLOCK = 8, LATENT_BLOCK = 16 };

static void choose_rows(struct attend_case *c, int32_t token, int32_t count) {
    int32_t *chosen = c->chosen + token * c->top_k, row = 0;
    for (int32_t k = 0; k < c->top_k; k++) {
        chosen[k] = k < count ? row : -1;
        row += 1 + (int32_t)(random_bits() % 2 && MOST_ROWS - row > c->top_k - k + 1);
    }
}

static struct attend_case open_case(const struct shape *shape) {
    struct attend_case c = {.has_latents = shape->latents != NO_ROWS,
        .tokens = shape->tokens,
        .heads = shape->heads,
        .top_k = shape->top_k};
    c.window = open_store((struct store_shape){(enum row_encoding)shape->window, shape->columns, WINDOW_BLOCK,
        SEQUENCES, MOST_ROWS, GONE, shape->padding});
    fill_store(&c.window, 1);
    if (c.has_latents) {
        c.latents = open_store((struct store_shape){(enum row_encoding)shape->latents, shape->columns,
            LATENT_BLOCK, SEQUENCES, MOST_ROWS, 0, shape->padding});
        fill_store(&c.latents, 1);
    }
    c.q = random_floats((size_t)(shape->tokens * shape->heads * shape->columns), 2);
    c.sink = random_floats((size_t)shape->heads, 2);
    c.chosen = allocate_or_fail((size_t)(shape->tokens * shape->top_k) * 4);
    for (int32_t t = 0; t < shape->tokens; t++) {
        c.sequence[t] = shape->token[t].sequence;
        c.position[t] = shape->token[t].position;
        c.visible_from[t] = c.position[t] - shape->token[t].window + 1;
        choose_rows(&c, t, shape->token[t].chosen);
    }
    return c;
}

static void close_case(struct attend_case *c) {
    close_store(&c->window);
    if (c->has_latents)
        close_store(&c->latents);
    free(c->q);
    free(c->sink);
    free(c->chosen);
}

static size_t token_floats(const struct attend_case *c) {
    return (size_t)c->heads * (size_t)c->window.rows.columns;
}

/* Tokens [first, first + count) on a backend: out [count, heads, columns]. */
static void run_attend(
    const struct backend *backend, const struct attend_case *c, int32_t first, int32_t count, float *out) {
    struct uploads uploads = {{NULL}, 0};
    struct block_rows window, latents;
    struct block_tables window_tables, latent_tables;
    size_t n = (size_t)count, floats = n * token_floats(c), k = (size_t)c->top_k;
    upload_store(backend, &uploads, &c->window, &window, &window_tables);
    if (c->has_latents)
        upload_store(backend, &uploads, &c->latents, &latents, &latent_tables);
    const float *q =
        upload_kept(backend, &uploads, c->q + (size_t)first * token_floats(c), floats * sizeof(float));
    const int32_t *sequence = upload_kept(backend, &uploads, c->sequence + first, n * 4);
    const int32_t *position = upload_kept(backend, &uploads, c->position + first, n * 4);
    const int32_t *visible_from = upload_kept(backend, &uploads, c->visible_from + first, n * 4);
    const int32_t *chosen = upload_kept(backend, &uploads, c->chosen + (size_t)first * k, n * k * 4);
    const float *sink = upload_kept(backend, &uploads, c->sink, (size_t)c->heads * 4);
    float *result = upload_kept(backend, &uploads, NULL, floats * sizeof(float));
    backend->kernels->attend(backend->stream, q, count, c->heads, sequence, position, visible_from, &window,
        &window_tables, c->has_latents ? &latents : NULL, c->has_latents ? &latent_tables : NULL,
        c->has_latents ? chosen : NULL, c->top_k, sink, result);
    download(backend, out, result, floats * sizeof(float));
    release_uploads(backend, &uploads);
}

static void assert_close(
    const struct shape *shape, const struct attend_case *c, const float *found, const float *expected) {
    size_t width = token_floats(c);
    for (int32_t t = 0; t < c->tokens; t++, found += width, expected += width) {
        float top = 0;
        for (size_t i = 0; i < width; i++)
            top = fabsf(expected[i]) > top ? fabsf(expected[i]) : top;
        for (size_t i = 0; i < width; i++)
            if (isnan(expected[i]) ? !isnan(found[i])
                                   : !(fabsf(found[i] - expected[i]) <= shape->tolerance * (1 + top)))
                fail_msg("%s: token %d, head %zu, column %zu: %.9g, the CPU has %.9g", shape->name, t,
                    i / (size_t)c->window.rows.columns, i % (size_t)c->window.rows.columns, found[i],
                    expected[i]);
    }
}

/* The backend's results for pieces of `piece` tokens have the bits of `whole`. */
static void assert_same_bits(const struct shape *shape, const struct backend *backend,
    const struct attend_case *c, int32_t piece, const float *whole) {
    size_t width = token_floats(c);
    for (int32_t first = 0; first < c->tokens; first += piece) {
        int32_t count = c->tokens - first < piece ? c->tokens - first : piece;
        float *part = allocate_or_fail((size_t)count * width * sizeof *part);
        run_attend(backend, c, first, count, part);
        if (memcmp(part, whole + (size_t)first * width, (size_t)count * width * sizeof *part) != 0)
            fail_msg("%s: tokens %d to %d by themselves differ from all %d at once", shape->name, first,
                first + count - 1, c->tokens);
        free(part);
    }
}

static void check_case(const struct shape *shape, const struct attend_case *c) {
    struct backends all = open_backends();
    float *expected = allocate_or_fail((size_t)c->tokens * token_floats(c) * sizeof *expected);
    float *found = allocate_or_fail((size_t)c->tokens * token_floats(c) * sizeof *found);
    run_attend(&all.cpu, c, 0, c->tokens, expected);
    run_attend(&all.narrow, c, 0, c->tokens, found);
    assert_close(shape, c, found, expected);
    assert_same_bits(shape, &all.narrow, c, 1, found);
    assert_same_bits(shape, &all.wide, c, c->tokens, found);
    assert_same_bits(shape, &all.wide, c, 2, found);
    free(expected);
    free(found);
    close_backends(&all);
}

static void check_shape(const struct shape *shape) {
    struct attend_case c = open_case(shape);
    check_case(shape, &c);
    close_case(&c);
}

/* ---- shapes ---- */

static void test_small_model(void **state) {
    (void)state;
    struct shape shape = {"8 heads of 64", ROWS_FP8, ROWS_FP4_FINE, 64, 8, 8, 4, 3e-5, 6,
        {{0, 16, 1, 0}, {0, 17, 2, 1}, {1, 90, 16, 8}, {1, 91, 16, 5}, {2, 259, 16, 8}, {2, 100, 0, 3}}};
    check_shape(&shape);
}

static void test_real_shape(void **state) {
    (void)state;
    struct shape shape = {"64 heads of 512", ROWS_FP8, ROWS_FP4_FINE, 512, 64, 140, 16, 3e-5, 2,
        {{0, 200, 128, 140}, {1, 150, 129, 65}}};
    check_shape(&shape);
}

static void test_window_only(void **state) {
    (void)state;
    struct shape shape = {"33 heads of 512, window only", ROWS_FP8, NO_ROWS, 512, 33, 4, 16, 3e-5, 3,
        {{0, 16, 1, 0}, {2, 79, 64, 0}, {1, 81, 65, 0}}};
    check_shape(&shape);
}

static void test_chosen_only(void **state) {
    (void)state;
    struct shape shape = {"5 heads of 64, no window", ROWS_FP8, ROWS_FP4_FINE, 64, 5, 200, 16, 3e-5, 5,
        {{0, 99, 0, 200}, {0, 99, 0, 1}, {1, 99, 0, 63}, {1, 99, 0, 64}, {2, 99, 0, 129}}};
    check_shape(&shape);
}

static void test_nothing_visible(void **state) {
    (void)state;
    struct shape shape = {
        "no rows", ROWS_FP8, ROWS_FP4_FINE, 64, 3, 4, 16, 0, 2, {{0, 99, 0, 0}, {1, 50, 0, 0}}};
    check_shape(&shape);
}

static void test_encodings(void **state) {
    (void)state;
    static const enum row_encoding encodings[] = {ROWS_F32, ROWS_FP8, ROWS_FP4, ROWS_FP4_FINE};
    for (int32_t w = 0; w < 4; w++)
        for (int32_t l = 0; l < 4; l++) {
            struct shape shape = {"all encodings", encodings[w], encodings[l], 96, 3, 70, w == l ? 4 : 16,
                3e-5, 2, {{0, 90, 70, 66}, {2, 120, 3, 2}}};
            check_shape(&shape);
        }
}

static void test_plain_shapes(void **state) {
    (void)state;
    struct shape wide = {
        "1056 columns", ROWS_F32, ROWS_F32, 1056, 1, 5, 4, 3e-6, 2, {{0, 90, 24, 5}, {1, 60, 7, 2}}};
    struct shape narrow = {
        "7 columns", ROWS_F32, ROWS_F32, 7, 5, 33, 4, 3e-6, 2, {{0, 90, 70, 33}, {1, 60, 7, 2}}};
    struct shape rounded = {
        "544 columns", ROWS_FP8, ROWS_FP4_FINE, 544, 2, 5, 4, 3e-6, 2, {{0, 90, 24, 5}, {1, 60, 7, 2}}};
    check_shape(&wide);
    check_shape(&narrow);
    check_shape(&rounded);
}

/* ---- values ---- */

/* Sinks far above, far below and at minus infinity; scores far apart, so that weights vanish. */
static void test_extreme_scores(void **state) {
    (void)state;
    struct shape shape = {"extreme scores", ROWS_FP8, ROWS_FP4_FINE, 64, 4, 100, 16, 3e-5, 3,
        {{0, 150, 100, 100}, {1, 99, 3, 70}, {2, 200, 128, 0}}};
    struct attend_case c = open_case(&shape);
    c.sink[0] = 200;
    c.sink[1] = -200;
    c.sink[2] = -INFINITY;
    for (size_t i = 0; i < 3 * token_floats(&c); i++)
        if (i / 64 % 4 == 3)
            c.q[i] *= 50;
    shape.tolerance = 3e-4; /* a score of a hundred times the size has so large an error */
    check_case(&shape, &c);
    close_case(&c);
}

/* NaN codes make what sees them NaN and nothing else. */
static void test_nan_codes(void **state) {
    (void)state;
    struct shape shape = {"NaN codes", ROWS_FP8, ROWS_FP4_FINE, 64, 2, 3, 16, 3e-5, 4,
        {{0, 99, 64, 3}, {1, 99, 64, 3}, {2, 99, 64, 1}, {2, 99, 10, 2}}};
    struct attend_case c = open_case(&shape);
    stored_row(&c.window, 0, 70)[5] = E4M3_NAN;
    stored_row(&c.window, 1, 70)[64] = E8M0_NAN;
    stored_row(&c.latents, 2, c.chosen[3 * 3 + 1])[32] = E4M3_NAN;
    check_case(&shape, &c);
    close_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_model),
        cmocka_unit_test(test_real_shape),
        cmocka_unit_test(test_window_only),
        cmocka_unit_test(test_chosen_only),
        cmocka_unit_test(test_nothing_visible),
        cmocka_unit_test(test_encodings),
        cmocka_unit_test(test_plain_shapes),
        cmocka_unit_test(test_extreme_scores),
        cmocka_unit_test(test_nan_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

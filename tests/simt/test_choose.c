/* The index choice of the CUDA backend against the CPU's, on scores that are exact whatever the order of their sums,
 * and against scores in double where they are not; bits of tokens alone, in batches, and on devices of different
 * size. */
#include "blocks_check.h"

enum { SEQUENCES = 3 };

struct choose_case {
    const char *name;
    struct stored keys;
    struct index_choice choice;
    int32_t tokens;
    int32_t *sequence, *position;
    float *q, *weight;
    int32_t *candidates; /* [tokens, block_limit]: given when use_candidates */
};

/* ---- cases ---- */

struct shape {
    const char *name;
    enum row_encoding encoding;
    int32_t columns, heads, ratio, most_rows, rows_per_block, padding;
};

static struct choose_case open_case(const struct shape *shape, const int32_t *visible, int32_t tokens) {
    struct choose_case c = {.name = shape->name, .tokens = tokens};
    c.keys = open_store((struct store_shape){shape->encoding, shape->columns, shape->rows_per_block,
        SEQUENCES, shape->most_rows, 0, shape->padding});
    c.choice = (struct index_choice){.ratio = shape->ratio,
        .heads = shape->heads,
        .columns = shape->columns,
        .top_k = 8,
        .block_size = 8,
        .block_limit = 4};
    c.sequence = allocate_or_fail((size_t)tokens * 4);
    c.position = allocate_or_fail((size_t)tokens * 4);
    for (int32_t t = 0; t < tokens; t++) {
        c.sequence[t] = t / 2 % SEQUENCES;
        c.position[t] = visible[t] * shape->ratio + (shape->ratio > 1 && t % 2 == 0) - 1;
        c.position[t] = c.position[t] < 0 ? 0 : c.position[t];
        if ((c.position[t] + 1) / shape->ratio > shape->most_rows)
            fail_msg("%s: token %d sees rows that are not there", shape->name, t);
    }
    c.q = allocate_or_fail((size_t)(tokens * shape->heads * shape->columns) * sizeof(float));
    c.weight = allocate_or_fail((size_t)(tokens * shape->heads) * sizeof(float));
    return c;
}

static void close_case(struct choose_case *c) {
    close_store(&c->keys);
    free(c->sequence);
    free(c->position);
    free(c->q);
    free(c->weight);
    free(c->candidates);
}

/* Small integers times powers of two: sums are exact and ties are many. */
static void fill_exact(struct choose_case *c) {
    int32_t columns = c->choice.columns, heads = c->choice.heads;
    for (int32_t i = 0; i < c->tokens * heads * columns; i++)
        c->q[i] = ldexpf((float)(int32_t)(random_bits() % 5) - 2, i / 32 % 3 - 1);
    for (int32_t i = 0; i < c->tokens * heads; i++)
        c->weight[i] = (float)(int32_t)(random_bits() % 4) - 1;
    float *x = allocate_or_fail((size_t)columns * sizeof *x);
    for (int32_t s = 0; s < SEQUENCES; s++)
        for (int32_t r = 0; r < c->keys.most; r++) {
            for (int32_t i = 0; i < columns; i++)
                x[i] = r % 7 == 3 ? 0 : (float)(int32_t)(random_bits() % 9) - 4;
            for (int32_t i = 0; i < columns; i += 16)
                x[i] = 6; /* fixes the scales */
            store_row(&c->keys, s, r, x);
            if (c->keys.rows.encoding == ROWS_FP4 && r % 50 == 20) /* never chosen */
                stored_row(&c->keys, s, r)[columns / 2] = E8M0_NAN;
        }
    free(x);
}

/* ---- runs ---- */

/* Tokens [first, first + count) on a backend: out [count, top_k + block_limit], chosen rows and candidates. */
static void run_choose(
    const struct backend *backend, const struct choose_case *c, int32_t first, int32_t count, int32_t *out) {
    struct uploads uploads = {{NULL}, 0};
    struct block_rows keys;
    struct block_tables tables;
    const struct index_choice *choice = &c->choice;
    size_t n = (size_t)count, k = (size_t)choice->top_k, limit = (size_t)choice->block_limit;
    size_t heads = (size_t)choice->heads, columns = (size_t)choice->columns, from = (size_t)first;
    upload_store(backend, &uploads, &c->keys, &keys, &tables);
    const float *q =
        upload_kept(backend, &uploads, c->q + from * heads * columns, n * heads * columns * sizeof(float));
    const float *weight = upload_kept(backend, &uploads, c->weight + from * heads, n * heads * sizeof(float));
    const int32_t *sequence = upload_kept(backend, &uploads, c->sequence + from, n * 4);
    const int32_t *position = upload_kept(backend, &uploads, c->position + from, n * 4);
    int32_t *candidates = upload_kept(
        backend, &uploads, choice->use_candidates ? c->candidates + from * limit : NULL, n * limit * 4);
    int32_t *chosen = upload_kept(backend, &uploads, NULL, n * k * 4);
    backend->kernels->choose(
        backend->stream, q, weight, count, sequence, position, choice, &keys, &tables, candidates, chosen);
    int32_t *found = allocate_or_fail(n * k * 4), *blocks = allocate_or_fail(n * limit * 4);
    download(backend, found, chosen, n * k * 4);
    download(backend, blocks, candidates, n * limit * 4);
    for (size_t t = 0; t < n; t++) {
        memcpy(out + t * (k + limit), found + t * k, k * 4);
        memcpy(out + t * (k + limit) + k, blocks + t * limit, limit * 4);
    }
    free(found);
    free(blocks);
    release_uploads(backend, &uploads);
}

static size_t token_words(const struct choose_case *c) {
    return (size_t)(c->choice.top_k + c->choice.block_limit);
}

static void assert_same(const struct choose_case *c, const char *what, int32_t first, int32_t count,
    const int32_t *found, const int32_t *expected) {
    size_t width = token_words(c);
    for (size_t i = 0; i < (size_t)count * width; i++)
        if (found[i] != expected[i])
            fail_msg("%s, %s: token %zu, %s %zu: %d, expected %d", c->name, what, (size_t)first + i / width,
                i % width < (size_t)c->choice.top_k ? "row" : "candidate",
                i % width % (size_t)c->choice.top_k, found[i], expected[i]);
}

/* The results on all backends are `expected`, in pieces of any size. */
static void check_pieces(const struct choose_case *c, const struct backends *all, const int32_t *expected) {
    const struct backend *backends[] = {&all->narrow, &all->wide};
    for (int32_t b = 0; b < 2; b++)
        for (int32_t piece = b == 0 ? 1 : 5; piece <= c->tokens; piece += c->tokens > 1 ? c->tokens - 1 : 1)
            for (int32_t first = 0; first < c->tokens; first += piece) {
                int32_t count = c->tokens - first < piece ? c->tokens - first : piece;
                int32_t *part = allocate_or_fail((size_t)count * token_words(c) * 4);
                run_choose(backends[b], c, first, count, part);
                assert_same(c, b == 0 ? "one multiprocessor" : "many", first, count, part,
                    expected + (size_t)first * token_words(c));
                free(part);
            }
}

/* Compares with the CPU; returns its results. */
static int32_t *check_case(const struct choose_case *c) {
    struct backends all = open_backends();
    int32_t *expected = allocate_or_fail((size_t)c->tokens * token_words(c) * 4);
    run_choose(&all.cpu, c, 0, c->tokens, expected);
    check_pieces(c, &all, expected);
    close_backends(&all);
    return expected;
}

/* ---- exact scores ---- */

enum { FEW_TOKENS = 12, FEW_ROWS = 150 };
static const int32_t few_visible[FEW_TOKENS] = {0, 1, 2, 8, 9, 16, 30, 64, 65, 149, 150, 100};

static void check_shape(const struct shape *shape, int32_t top_k) {
    struct choose_case c = open_case(shape, few_visible, FEW_TOKENS);
    fill_exact(&c);
    c.choice.top_k = top_k;
    free(check_case(&c));
    close_case(&c);
}

static void test_shapes(void **state) {
    (void)state;
    struct shape real = {"32 heads of 128", ROWS_FP4, 128, 32, 1, FEW_ROWS, 16, 0};
    struct shape tiny = {"4 heads of 32", ROWS_FP4, 32, 4, 2, FEW_ROWS, 16, 0};
    struct shape odd = {"13 heads of 96", ROWS_FP4, 96, 13, 1, FEW_ROWS, 7, 36};
    struct shape one = {"a head of 64", ROWS_FP4, 64, 1, 2, FEW_ROWS, 16, 4};
    check_shape(&real, 8);
    check_shape(&tiny, 8);
    check_shape(&odd, 1);
    check_shape(&one, 200); /* more than there are rows */
}

static void test_plain_shapes(void **state) {
    (void)state;
    struct shape exact = {"float32 keys", ROWS_F32, 32, 4, 1, FEW_ROWS, 16, 4};
    struct shape fp8 = {"FP8 keys", ROWS_FP8, 32, 3, 2, FEW_ROWS, 16, 4};
    struct shape fine = {"fine keys", ROWS_FP4_FINE, 32, 2, 1, FEW_ROWS, 16, 4};
    struct shape wide = {"2 heads of 160", ROWS_FP4, 160, 2, 1, FEW_ROWS, 16, 4};
    struct shape many = {"65 heads of 32", ROWS_FP4, 32, 65, 1, FEW_ROWS, 16, 4};
    check_shape(&exact, 8);
    check_shape(&fp8, 20);
    check_shape(&fine, 8);
    check_shape(&wide, 8);
    check_shape(&many, 8);
}

/* A sequence that comes again, with more rows, after one that has none where a block works. */
static void test_interrupted_sequence(void **state) {
    (void)state;
    enum { TOKENS = 6 };
    static const int32_t visible[TOKENS] = {40, 40, 0, 0, 0, 140}, sequence[TOKENS] = {0, 0, 1, 1, 1, 0};
    struct shape shape = {"interrupted sequence", ROWS_FP4, 64, 4, 1, 900, 64, 0};
    struct choose_case c = open_case(&shape, visible, TOKENS);
    fill_exact(&c);
    for (int32_t t = 0; t < TOKENS; t++) {
        c.sequence[t] = sequence[t];
        c.position[t] = visible[t] - 1; /* -1: sees nothing */
    }
    struct backends all = open_backends();
    int32_t *expected = allocate_or_fail(TOKENS * token_words(&c) * 4);
    int32_t *found = allocate_or_fail(TOKENS * token_words(&c) * 4);
    run_choose(&all.cpu, &c, 0, TOKENS, expected);
    run_choose(&all.narrow, &c, 0, TOKENS, found);
    assert_same(&c, "one multiprocessor", 0, TOKENS, found, expected);
    close_backends(&all);
    free(expected);
    free(found);
    close_case(&c);
}

/* A source's candidates, then the choice among them. */
static void check_candidates(const struct shape *shape, int32_t limit, int32_t size) {
    struct choose_case c = open_case(shape, few_visible, FEW_TOKENS);
    fill_exact(&c);
    c.choice.is_candidate_source = true;
    c.choice.block_limit = limit;
    c.choice.block_size = size;
    int32_t *source = check_case(&c);
    c.candidates = allocate_or_fail((size_t)(FEW_TOKENS * limit) * 4);
    for (size_t t = 0; t < FEW_TOKENS; t++)
        memcpy(c.candidates + t * (size_t)limit, source + t * token_words(&c) + c.choice.top_k,
            (size_t)limit * 4);
    c.choice.is_candidate_source = false;
    c.choice.use_candidates = true;
    free(check_case(&c));
    free(source);
    close_case(&c);
}

static void test_candidates(void **state) {
    (void)state;
    struct shape fp4 = {"candidates", ROWS_FP4, 64, 5, 1, FEW_ROWS, 16, 4};
    struct shape exact = {"candidates, float32 keys", ROWS_F32, 32, 3, 1, FEW_ROWS, 16, 4};
    check_candidates(&fp4, 1, 8);
    check_candidates(&fp4, 2, 8);
    check_candidates(&fp4, 40, 8); /* more than there are blocks */
    check_candidates(&fp4, 5, 6);
    check_candidates(&exact, 3, 8);
}

static void test_nan_and_infinite_scores(void **state) {
    (void)state;
    struct shape shape = {"NaN and infinity", ROWS_F32, 32, 3, 1, FEW_ROWS, 16, 4};
    struct choose_case c = open_case(&shape, few_visible, FEW_TOKENS);
    fill_exact(&c);
    c.choice.is_candidate_source = true;
    for (int32_t h = 0; h < 3; h++) {
        c.weight[5 * 3 + h] = -INFINITY; /* every score -infinity or, at 0 * infinity, NaN */
        c.weight[7 * 3 + h] = NAN;
    }
    c.q[9 * 3 * 32] = NAN; /* all dot products of a head */
    c.weight[8 * 3] = INFINITY;
    free(check_case(&c));
    close_case(&c);
}

/* ---- long lists ---- */

static struct choose_case open_long(const char *name, int32_t rows, int32_t tokens, const int32_t *visible) {
    struct shape shape = {name, ROWS_FP4, 32, 2, 1, rows, 64, 0};
    struct choose_case c = open_case(&shape, visible, tokens);
    fill_exact(&c);
    for (int32_t i = 0; i < tokens * 2; i++)
        c.weight[i] = i % 2 == 0 ? 0.5f : -0.25f;
    return c;
}

/* Two rounds of segments, and blocks of candidates in one. */
static void test_many_rows(void **state) {
    (void)state;
    enum { ROWS = 40000 };
    static const int32_t visible[] = {ROWS, 16385};
    struct choose_case c = open_long("40000 rows", ROWS, 2, visible);
    c.choice.is_candidate_source = true;
    c.choice.top_k = 300;
    c.choice.block_limit = 40;
    free(check_case(&c));
    c.choice.top_k = 8100; /* three segments' best fill two segments */
    free(check_case(&c));
    close_case(&c);
}

static void test_many_chosen(void **state) {
    (void)state;
    static const int32_t visible[] = {10000};
    struct choose_case c = open_long("9000 of 10000 rows", 10000, 1, visible);
    c.choice.top_k = 9000; /* the plain selection */
    free(check_case(&c));
    close_case(&c);
}

/* More tokens than a batch holds. */
static void test_many_tokens(void **state) {
    (void)state;
    enum { TOKENS = 2050 };
    int32_t *visible = allocate_or_fail(TOKENS * 4);
    for (int32_t t = 0; t < TOKENS; t++)
        visible[t] = 1 + t % 20;
    struct shape shape = {"2050 tokens", ROWS_FP4, 32, 1, 1, 20, 64, 0};
    struct choose_case c = open_case(&shape, visible, TOKENS);
    fill_exact(&c);
    c.choice.top_k = 3;
    struct backends all = open_backends();
    int32_t *expected = allocate_or_fail((size_t)TOKENS * token_words(&c) * 4);
    int32_t *found = allocate_or_fail((size_t)TOKENS * token_words(&c) * 4);
    run_choose(&all.cpu, &c, 0, TOKENS, expected);
    run_choose(&all.narrow, &c, 0, TOKENS, found);
    assert_same(&c, "one multiprocessor", 0, TOKENS, found, expected);
    close_backends(&all);
    free(expected);
    free(found);
    free(visible);
    close_case(&c);
}

/* ---- scores that are rounded ---- */

static double exact_score(const struct choose_case *c, int32_t token, int32_t row) {
    double score = 0;
    for (int32_t h = 0; h < c->choice.heads; h++) {
        const float *q = c->q + ((int64_t)token * c->choice.heads + h) * c->choice.columns;
        double dot = 0;
        for (int32_t i = 0; i < c->choice.columns; i++)
            dot += (double)q[i] * stored_value(&c->keys, c->sequence[token], row)[i];
        score += (dot > 0 ? dot : 0) * c->weight[(int64_t)token * c->choice.heads + h];
    }
    return score;
}

/* What is chosen is ascending, and no row left out is better than one chosen, but for rounding. */
static void assert_best(const struct choose_case *c, int32_t token, const int32_t *chosen) {
    int32_t rows = c->position[token] + 1, filled = 0;
    double worst = INFINITY, best_left = -INFINITY;
    for (int32_t r = 0; r < rows; r++) {
        double score = exact_score(c, token, r);
        if (filled < c->choice.top_k && chosen[filled] == r) {
            filled++;
            worst = score < worst ? score : worst;
        } else {
            best_left = score > best_left ? score : best_left;
        }
    }
    assert_int_equal(filled, c->choice.top_k);
    if (best_left > worst + 1e-5 * (1 + fabs(worst)))
        fail_msg("%s: token %d: a row of score %.9g is left out, one of %.9g chosen", c->name, token,
            best_left, worst);
}

static void test_random_scores(void **state) {
    (void)state;
    enum { TOKENS = 4, ROWS = 700 };
    static const int32_t visible[TOKENS] = {600, 601, 300, ROWS};
    struct shape shape = {"random scores", ROWS_FP4, 128, 32, 1, ROWS, 64, 0};
    struct choose_case c = open_case(&shape, visible, TOKENS);
    fill_store(&c.keys, 3);
    c.choice.top_k = 100;
    for (int32_t i = 0; i < TOKENS * 32 * 128; i++)
        c.q[i] = random_float();
    for (int32_t i = 0; i < TOKENS * 32; i++) {
        round_row(ROWS_FP4, c.q + (int64_t)i * 128, 128);
        c.weight[i] = random_float();
    }
    struct backends all = open_backends();
    int32_t *found = allocate_or_fail(TOKENS * token_words(&c) * 4);
    run_choose(&all.narrow, &c, 0, TOKENS, found);
    for (int32_t t = 0; t < TOKENS; t++)
        assert_best(&c, t, found + (size_t)t * token_words(&c));
    check_pieces(&c, &all, found);
    close_backends(&all);
    free(found);
    close_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_plain_shapes),
        cmocka_unit_test(test_interrupted_sequence),
        cmocka_unit_test(test_candidates),
        cmocka_unit_test(test_nan_and_infinite_scores),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_many_chosen),
        cmocka_unit_test(test_many_tokens),
        cmocka_unit_test(test_random_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Key/value blocks, the index choice and sparse attention of the CPU backend against plain loops in double. */
#include "kernels_check.h"

/* ---- sequences in blocks ---- */

/* Rows of several sequences, stored in blocks that lie in mixed order, and their decoded values. */
struct stored {
    struct block_rows rows;
    struct block_tables tables;
    int32_t sequences, most;
    float *values; /* [sequences, most, columns]: as the encoding holds them */
};

/* The first `gone` blocks of each sequence are not in its table. */
static struct stored store_random(enum row_encoding encoding, int32_t columns, int32_t rows_per_block,
    int32_t sequences, int32_t most, int32_t gone) {
    int32_t per_sequence = (most + rows_per_block - 1) / rows_per_block - gone;
    int32_t blocks = per_sequence * sequences;
    int64_t block_bytes = (int64_t)row_bytes(encoding, columns) * rows_per_block + 100;
    struct stored s = {.sequences = sequences, .most = most};
    s.rows = (struct block_rows){
        allocate_or_fail((size_t)(blocks * block_bytes)), block_bytes, 36, rows_per_block, encoding, columns};
    int32_t *table = allocate_or_fail((size_t)blocks * 4), *first = allocate_or_fail((size_t)sequences * 4);
    for (int32_t i = 0; i < blocks; i++) /* a permutation */
        table[i] = (int32_t)((int64_t)(i + 3) * 7919 % blocks);
    for (int32_t q = 0; q < sequences; q++)
        first[q] = gone;
    assert_true(blocks % 7919 != 0);
    s.tables = (struct block_tables){table, first, per_sequence};
    s.values = random_floats((size_t)sequences * (size_t)most * (size_t)columns, 1);
    for (int32_t q = 0; q < sequences; q++)
        for (int32_t r = 0; r < most; r++) {
            float *value = s.values + ((int64_t)q * most + r) * columns;
            round_row(encoding, value, columns);
            if (r < gone * rows_per_block)
                continue;
            int32_t block = table[q * per_sequence + r / rows_per_block - gone];
            uint8_t *at =
                s.rows.base + block * block_bytes + 36 + r % rows_per_block * row_bytes(encoding, columns);
            encode_row(encoding, value, columns, at);
            decode_row(encoding, at, columns, value);
        }
    return s;
}

static void free_stored(struct stored *s) {
    free(s->rows.base);
    free((void *)s->tables.blocks);
    free((void *)s->tables.first_block);
    free(s->values);
}

static const float *stored_value(const struct stored *s, int32_t sequence, int32_t row) {
    return s->values + ((int64_t)sequence * s->most + row) * s->rows.columns;
}

static void test_store_rows(void **state) {
    (void)state;
    enum { N = 64, MOST = 20, TOKENS = 9 };
    static const enum row_encoding encodings[] = {ROWS_F32, ROWS_FP8, ROWS_FP4, ROWS_FP4_FINE};
    static const int32_t sequence[TOKENS] = {0, 0, 1, 2, 2, 1, 0, 2, 1},
                         row[TOKENS] = {8, 9, 19, 4, 5, 11, -1, 13, 12};
    static const int32_t write_floor[3] = {9, 0, 5};
    for (int32_t e = 0; e < 4; e++)
        for (int32_t threads = 1; threads <= 2; threads++) {
            struct stored s = store_random(encodings[e], N, 4, 3, MOST, 1);
            float *x = random_floats(TOKENS * N, 1);
            const struct kernels *kernels;
            struct stream *stream;
            assert_int_equal(kernels_cpu_create(threads, NULL, &kernels), OK);
            assert_int_equal(kernels->stream_create(kernels, &stream), OK);
            kernels->store_rows(stream, x, TOKENS, sequence, row, write_floor, &s.rows, &s.tables);
            for (int32_t t = 0; t < TOKENS; t++)
                if (row[t] >= write_floor[sequence[t]]) {
                    float *value = s.values + ((int64_t)sequence[t] * MOST + row[t]) * N;
                    memcpy(value, x + t * N, N * 4);
                    round_row(encodings[e], value, N);
                }
            for (int32_t q = 0; q < 3; q++)
                for (int32_t r = 4; r < MOST; r++) { /* all other rows are as they were */
                    float found[N];
                    int32_t block = s.tables.blocks[q * s.tables.stride + r / 4 - 1];
                    const uint8_t *at =
                        s.rows.base + block * s.rows.block_bytes + 36 + r % 4 * row_bytes(encodings[e], N);
                    decode_row(encodings[e], at, N, found);
                    for (int32_t i = 0; i < N; i++)
                        assert_true(found[i] == stored_value(&s, q, r)[i]);
                }
            kernels->stream_free(kernels, stream);
            kernels_free(kernels);
            free(x);
            free_stored(&s);
        }
}

/* ---- choice ---- */

struct choose_case {
    struct stored keys;
    struct index_choice choice;
    const float *q, *weight;
    const int32_t *sequence, *position;
    int32_t *candidates; /* [tokens, block_limit], given when use_candidates */
};

/* out: chosen [top_k], then candidates [block_limit] */
static void run_choose(const struct kernels *kernels, struct stream *stream, const void *context,
    int32_t first, int32_t count, void *out) {
    const struct choose_case *c = context;
    int32_t k = c->choice.top_k, limit = c->choice.block_limit;
    int32_t *chosen = allocate_or_fail((size_t)(count * k) * 4);
    int32_t *candidates = allocate_or_fail((size_t)(count * limit) * 4);
    if (c->choice.use_candidates)
        memcpy(candidates, c->candidates + (int64_t)first * limit, (size_t)(count * limit) * 4);
    kernels->choose(stream, c->q + (int64_t)first * c->choice.heads * c->choice.columns,
        c->weight + (int64_t)first * c->choice.heads, count, c->sequence + first, c->position + first,
        &c->choice, &c->keys.rows, &c->keys.tables, candidates, chosen);
    for (int32_t t = 0; t < count; t++) {
        int32_t *to = (int32_t *)out + (int64_t)t * (k + limit);
        memcpy(to, chosen + t * k, (size_t)k * 4);
        memcpy(to + k, candidates + t * limit, (size_t)limit * 4);
    }
    free(chosen);
    free(candidates);
}

/* -infinity for NaN, too. */
static void oracle_scores(const struct choose_case *c, int32_t token, int32_t rows, double *scores) {
    for (int32_t r = 0; r < rows; r++) {
        double score = 0;
        for (int32_t h = 0; h < c->choice.heads; h++) {
            const float *q = c->q + ((int64_t)token * c->choice.heads + h) * c->choice.columns;
            double dot = 0;
            for (int32_t i = 0; i < c->choice.columns; i++)
                dot += (double)q[i] * stored_value(&c->keys, c->sequence[token], r)[i];
            score += (dot > 0 || isnan(dot) ? dot : 0) * c->weight[(int64_t)token * c->choice.heads + h];
        }
        scores[r] = isnan(score) ? -INFINITY : score;
    }
}

/* Marks the k best of scores [count], lower index first among equals. */
static void oracle_best(const double *scores, int32_t count, int32_t k, bool *taken) {
    memset(taken, 0, (size_t)count);
    for (int32_t i = 0; i < k; i++) {
        int32_t best = -1;
        for (int32_t r = 0; r < count; r++)
            if (!taken[r] && (best < 0 || scores[r] > scores[best]))
                best = r;
        if (best < 0 || scores[best] == -INFINITY)
            return;
        taken[best] = true;
    }
}

static void assert_list(
    const char *what, int32_t token, const int32_t *found, int32_t limit, const bool *taken, int32_t count) {
    int32_t filled = 0;
    for (int32_t r = 0; r < count; r++)
        if (taken[r]) {
            if (filled >= limit || found[filled] != r)
                fail_msg("%s of token %d: place %d holds %d, expected %d", what, token, filled,
                    filled < limit ? found[filled] : -2, r);
            filled++;
        }
    for (; filled < limit; filled++)
        assert_int_equal(found[filled], -1);
}

static void oracle_blocks(const struct choose_case *c, const double *scores, int32_t rows, bool *taken) {
    int32_t size = c->choice.block_size, blocks = (rows + size - 1) / size;
    double *best = allocate_or_fail((size_t)(blocks + 1) * sizeof *best);
    for (int32_t b = 0; b < blocks; b++) {
        best[b] = -INFINITY;
        for (int32_t r = b * size; r < rows && r < (b + 1) * size; r++)
            best[b] = scores[r] > best[b] ? scores[r] : best[b];
    }
    /* the newest block has a place whatever its score; only when nothing in it is live it is dropped */
    if (blocks > 0)
        oracle_best(best, blocks - 1, c->choice.block_limit - 1, taken);
    taken[blocks > 0 ? blocks - 1 : 0] = blocks > 0 && best[blocks - 1] > -INFINITY;
    free(best);
}

/* Compares one token's results with the definition. */
static void check_choice(const struct choose_case *c, int32_t token, const int32_t *found) {
    int32_t rows = (c->position[token] + 1) / c->choice.ratio, size = c->choice.block_size;
    double *scores = allocate_or_fail((size_t)(rows + 1) * sizeof *scores);
    bool *taken = allocate_or_fail((size_t)rows + 1);
    oracle_scores(c, token, rows, scores);
    if (c->choice.is_candidate_source) {
        oracle_blocks(c, scores, rows, taken);
        assert_list("candidates", token, found + c->choice.top_k, c->choice.block_limit, taken,
            (rows + size - 1) / size);
    }
    if (c->choice.use_candidates) {
        bool *inside = allocate_or_fail((size_t)rows + 1);
        for (int32_t i = 0; i < c->choice.block_limit; i++) {
            int32_t block = c->candidates[(int64_t)token * c->choice.block_limit + i];
            for (int32_t r = block * size; block >= 0 && r < rows && r < (block + 1) * size; r++)
                inside[r] = true;
        }
        for (int32_t r = 0; r < rows; r++)
            scores[r] = inside[r] ? scores[r] : -INFINITY;
        free(inside);
    }
    oracle_best(scores, rows, c->choice.top_k, taken);
    assert_list("choice", token, found, c->choice.top_k, taken, rows);
    free(scores);
    free(taken);
}

static void check_choices(struct choose_case *c, int32_t tokens) {
    size_t width = (size_t)(c->choice.top_k + c->choice.block_limit);
    int32_t *found = allocate_or_fail((size_t)tokens * width * 4);
    struct trial trial = {"choose", run_choose, c, tokens, width * 4, NULL, 0};
    for (int32_t s = 0; s < INSTRUCTION_SETS; s++)
        if (check_set(&trial, instruction_set_names[s], (uint8_t *)found))
            for (int32_t t = 0; t < tokens; t++)
                check_choice(c, t, found + (size_t)t * width);
    free(found);
}

enum { CHOOSE_TOKENS = 12, CHOOSE_ROWS = 150, CHOOSE_COLUMNS = 64 };

/* Three sequences, some tokens of each; positions from 0 to the last row; values are small integers, so that sums are
 * exact and ties are many. */
static struct choose_case choose_case(enum row_encoding encoding, int32_t heads, int32_t ratio) {
    static const int32_t sequence[CHOOSE_TOKENS] = {0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 0};
    static const int32_t rows[CHOOSE_TOKENS] = {0, 1, 2, 8, 9, 16, 30, 64, 65, 149, 150, 100};
    struct choose_case c = {.keys = store_random(encoding, CHOOSE_COLUMNS, 16, 3, CHOOSE_ROWS, 0)};
    c.choice = (struct index_choice){ratio, heads, CHOOSE_COLUMNS, 8, false, false, 8, 4};
    float *q = allocate_or_fail((size_t)(CHOOSE_TOKENS * heads * CHOOSE_COLUMNS) * 4);
    for (int32_t i = 0; i < CHOOSE_TOKENS * heads * CHOOSE_COLUMNS; i++)
        q[i] = ldexpf((float)(int32_t)(random_bits() % 5) - 2, i / 32 % 3 - 1); /* scales differ */
    float *weight = allocate_or_fail((size_t)(CHOOSE_TOKENS * heads) * 4);
    for (int32_t i = 0; i < CHOOSE_TOKENS * heads; i++)
        weight[i] = (float)(int32_t)(random_bits() % 4) - 1;
    int32_t *position = allocate_or_fail(CHOOSE_TOKENS * 4);
    for (int32_t t = 0; t < CHOOSE_TOKENS; t++)
        position[t] = rows[t] * ratio + (ratio > 1 && t % 2 == 0) - 1; /* odd ones end inside a group */
    position[0] = 0;
    for (int32_t s = 0; s < 3; s++)
        for (int32_t r = 0; r < CHOOSE_ROWS; r++) {
            float *key = c.keys.values + ((int64_t)s * CHOOSE_ROWS + r) * CHOOSE_COLUMNS;
            for (int32_t i = 0; i < CHOOSE_COLUMNS; i++)
                key[i] = r % 7 == 3 ? 0 : (float)(int32_t)(random_bits() % 9) - 4;
            key[0] = key[32] = 6; /* fixes the scales */
            int32_t block = c.keys.tables.blocks[s * c.keys.tables.stride + r / 16];
            uint8_t *at = c.keys.rows.base + block * c.keys.rows.block_bytes + 36 +
                          r % 16 * row_bytes(encoding, CHOOSE_COLUMNS);
            round_row(encoding, key, CHOOSE_COLUMNS);
            encode_row(encoding, key, CHOOSE_COLUMNS, at);
            if (encoding == ROWS_FP4 && r % 50 == 20) { /* never chosen */
                at[CHOOSE_COLUMNS / 2 + 1] = E8M0_NAN;
                decode_row(encoding, at, CHOOSE_COLUMNS, key);
            }
        }
    c.q = q;
    c.weight = weight;
    c.sequence = sequence;
    c.position = position;
    return c;
}

static void free_choose_case(struct choose_case *c) {
    free((void *)c->q);
    free((void *)c->weight);
    free((void *)c->position);
    free(c->candidates);
    free_stored(&c->keys);
}

static void test_choose(void **state) {
    (void)state;
    for (int32_t ratio = 1; ratio <= 2; ratio++)
        for (int32_t heads = 1; heads <= 13; heads += 6) {
            struct choose_case c = choose_case(ROWS_FP4, heads, ratio);
            check_choices(&c, CHOOSE_TOKENS);
            c.choice.top_k = 1;
            check_choices(&c, CHOOSE_TOKENS);
            c.choice.top_k = 200; /* more than there are rows */
            check_choices(&c, CHOOSE_TOKENS);
            free_choose_case(&c);
        }
    struct choose_case exact = choose_case(ROWS_F32, 4, 2);
    check_choices(&exact, CHOOSE_TOKENS);
    free_choose_case(&exact);
}

static void test_candidates(void **state) {
    (void)state;
    for (int32_t limit = 1; limit <= 30; limit += limit < 4 ? 1 : 13) {
        struct choose_case c = choose_case(ROWS_FP4, 5, 1);
        c.choice.is_candidate_source = true;
        c.choice.block_limit = limit;
        check_choices(&c, CHOOSE_TOKENS);
        size_t width = (size_t)(c.choice.top_k + limit);
        int32_t *found = allocate_or_fail(CHOOSE_TOKENS * width * 4);
        struct trial source = {"choose", run_choose, &c, CHOOSE_TOKENS, width * 4, NULL, 0};
        assert_true(check_set(&source, "generic", (uint8_t *)found));
        c.candidates = allocate_or_fail((size_t)(CHOOSE_TOKENS * limit) * 4);
        for (int32_t t = 0; t < CHOOSE_TOKENS; t++)
            memcpy(c.candidates + t * limit, found + (size_t)t * width + c.choice.top_k, (size_t)limit * 4);
        c.choice.is_candidate_source = false;
        c.choice.use_candidates = true;
        check_choices(&c, CHOOSE_TOKENS);
        free(found);
        free_choose_case(&c);
    }
}

static void test_nan_and_infinite_scores(void **state) {
    (void)state;
    struct choose_case c = choose_case(ROWS_F32, 3, 1);
    c.choice.is_candidate_source = true;
    float *q = (float *)c.q, *weight = (float *)c.weight;
    for (int32_t h = 0; h < 3; h++) {
        weight[5 * 3 + h] = -INFINITY; /* every score -infinity or, at 0 * infinity, NaN */
        weight[7 * 3 + h] = NAN;
    }
    q[9 * 3 * CHOOSE_COLUMNS] = NAN; /* all dot products of a head */
    weight[8 * 3] = INFINITY;
    check_choices(&c, CHOOSE_TOKENS);
    free_choose_case(&c);
}

/* Long lists: several batches, tiles and digits. Scores of one token are compared with a sort. */
static void test_many_rows(void **state) {
    (void)state;
    enum { ROWS = 5000, TOKENS = 3 };
    struct stored keys = store_random(ROWS_FP4, 32, 64, 1, ROWS, 0);
    static const int32_t sequence[TOKENS] = {0}, position[TOKENS] = {4000, 4500, ROWS - 1};
    struct choose_case c = {.keys = keys,
        .choice = {1, 2, 32, 300, true, false, 8, 40},
        .sequence = sequence,
        .position = position};
    float *q = random_floats(TOKENS * 2 * 32, 1), *weight = random_floats(TOKENS * 2, 1);
    for (int32_t i = 0; i < TOKENS * 2 * 32; i++)
        q[i] = (float)(int32_t)(q[i] * 4); /* FP4 keys times small integers: exact sums */
    for (int32_t i = 0; i < TOKENS * 2; i++)
        weight[i] = i % 2 == 0 ? 0.5f : -0.25f;
    c.q = q;
    c.weight = weight;
    check_choices(&c, TOKENS);
    free(q);
    free(weight);
    free_stored(&c.keys);
}

/* ---- attention ---- */

struct attend_case {
    struct stored window, latents;
    bool has_latents;
    int32_t heads, top_k;
    const float *q, *sink;
    const int32_t *sequence, *position, *visible_from, *chosen;
};

static void run_attend(const struct kernels *kernels, struct stream *stream, const void *context,
    int32_t first, int32_t count, void *out) {
    const struct attend_case *c = context;
    kernels->attend(stream, c->q + (int64_t)first * c->heads * c->window.rows.columns, count, c->heads,
        c->sequence + first, c->position + first, c->visible_from + first, &c->window.rows, &c->window.tables,
        c->has_latents ? &c->latents.rows : NULL, c->has_latents ? &c->latents.tables : NULL,
        c->has_latents ? c->chosen + (int64_t)first * c->top_k : NULL, c->top_k, c->sink, out);
}

static void expected_head(const struct attend_case *c, int32_t token, int32_t head, double *out) {
    enum { MOST = 400 };
    int32_t n = c->window.rows.columns, count = 0;
    const float *row[MOST], *q = c->q + ((int64_t)token * c->heads + head) * n;
    double score[MOST], top = c->sink[head], total = 0;
    for (int32_t r = c->visible_from[token]; r <= c->position[token]; r++)
        row[count++] = stored_value(&c->window, c->sequence[token], r);
    for (int32_t i = 0; c->has_latents && i < c->top_k && c->chosen[token * c->top_k + i] >= 0; i++)
        row[count++] = stored_value(&c->latents, c->sequence[token], c->chosen[token * c->top_k + i]);
    for (int32_t k = 0; k < count; k++) {
        score[k] = 0;
        for (int32_t i = 0; i < n; i++)
            score[k] += (double)q[i] * row[k][i];
        score[k] /= sqrt(n);
        top = score[k] > top ? score[k] : top;
    }
    for (int32_t k = 0; k < count; k++)
        total += exp(score[k] - top);
    total += exp(c->sink[head] - top);
    for (int32_t k = 0; k < count; k++)
        for (int32_t i = 0; i < n; i++)
            out[i] += exp(score[k] - top) / total * row[k][i];
}

static void check_attend(enum row_encoding window, enum row_encoding latents, int32_t columns, int32_t heads,
    int32_t top_k, bool has_latents) {
    enum { TOKENS = 11, WINDOW = 24, SEQUENCES = 3, MOST = 90 };
    static const int32_t sequence[TOKENS] = {0, 0, 0, 1, 1, 2, 2, 2, 2, 1, 0};
    static const int32_t position[TOKENS] = {0, 1, 7, 30, 31, 60, 61, 62, 63, 89, 50};
    struct attend_case c = {store_random(window, columns, 8, SEQUENCES, MOST, 0),
        store_random(latents, columns, 16, SEQUENCES, MOST, 0), has_latents, heads, top_k,
        random_floats((size_t)(TOKENS * heads * columns), 2), random_floats((size_t)heads, 2), sequence,
        position, NULL, NULL};
    int32_t *visible_from = allocate_or_fail(TOKENS * 4);
    int32_t *chosen = allocate_or_fail((size_t)(TOKENS * top_k + 1) * 4);
    for (int32_t t = 0; t < TOKENS; t++) {
        visible_from[t] = position[t] >= WINDOW ? position[t] - WINDOW + 1 : 0;
        int32_t filled = 0, wanted = t == 4   ? 0
                                     : t == 5 ? top_k
                                              : (int32_t)(random_bits() % (uint32_t)(top_k + 1));
        for (int32_t r = 0; r < MOST && filled < wanted; r += 1 + (int32_t)(random_bits() % 2))
            chosen[t * top_k + filled++] = r;
        for (; filled < top_k; filled++)
            chosen[t * top_k + filled] = -1;
    }
    visible_from[8] = 64; /* no window row at all */
    c.visible_from = visible_from;
    c.chosen = chosen;
    double *expected = allocate_or_fail((size_t)(TOKENS * heads * columns) * sizeof *expected);
    for (int32_t i = 0; i < TOKENS * heads; i++)
        expected_head(&c, i / heads, i % heads, expected + (int64_t)i * columns);
    struct trial trial = {"attend", run_attend, &c, TOKENS, (size_t)(heads * columns) * 4, expected, 3e-6};
    check_all_sets(&trial);
    free((void *)c.q);
    free((void *)c.sink);
    free(visible_from);
    free(chosen);
    free(expected);
    free_stored(&c.window);
    free_stored(&c.latents);
}

static void test_attend(void **state) {
    (void)state;
    check_attend(ROWS_FP8, ROWS_FP4_FINE, 64, 8, 20, true);
    check_attend(ROWS_FP8, ROWS_FP4_FINE, 64, 8, 20, false);
    check_attend(ROWS_FP8, ROWS_FP4_FINE, 96, 13, 1, true);
    check_attend(ROWS_F32, ROWS_F32, 1056, 1, 5, true); /* several blocks of columns */
    check_attend(ROWS_F32, ROWS_F32, 7, 5, 33, true);   /* narrower than a vector */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_rows),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_candidates),
        cmocka_unit_test(test_nan_and_infinite_scores),
        cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_attend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

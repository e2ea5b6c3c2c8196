/* Sampling of the CUDA backend against the host's sampler: the same tokens and log-probabilities, bit for bit. */
#include "kernels/cuda/sample.h"
#include "model/sampling.h"
#include "operations_check.h"
#include "recipe/request.h"

/* ---- adjustments ---- */

enum { MOST_ADJUSTMENTS = 64 };

struct adjustments {
    struct sample_adjustment list[MOST_ADJUSTMENTS];
    int32_t count;
};

/* Behind those of lower and of the same id. */
static void insert(struct adjustments *to, int32_t id, float delta) {
    int32_t at = to->count++;
    assert_true(to->count <= MOST_ADJUSTMENTS);
    for (; at > 0 && to->list[at - 1].id > id; at--)
        to->list[at] = to->list[at - 1];
    to->list[at] = (struct sample_adjustment){id, delta};
}

static void adjust(
    struct adjustments *to, const struct sampling *sampling, const int32_t *generated, int32_t count) {
    for (int32_t i = 0; i < sampling->bias_count; i++)
        insert(to, sampling->bias_ids[i], sampling->bias_values[i]);
    if (sampling->presence_penalty == 0 && sampling->frequency_penalty == 0)
        return;
    for (int32_t i = 0; i < count; i++) {
        int32_t times = 0, earlier = 0;
        for (int32_t j = 0; j < count; j++) {
            times += generated[j] == generated[i];
            earlier += j < i && generated[j] == generated[i];
        }
        if (earlier == 0)
            insert(
                to, generated[i], -(sampling->presence_penalty + (float)times * sampling->frequency_penalty));
    }
}

/* ---- one batch ---- */

struct batch {
    int32_t rows, vocabulary;
    const float *logits; /* [rows, vocabulary] */
    const struct sampling *sampling;
    const int32_t *generated; /* [rows, generated_count] */
    int32_t generated_count;
    const uint64_t *masks; /* [rows, words of the vocabulary]; NULL: none. Every third row goes without */
    uint64_t seed;
};

static const uint64_t *row_mask(const struct batch *batch, int32_t row) {
    return batch->masks && row % 3 ? batch->masks + (size_t)row * mask_words(batch->vocabulary) : NULL;
}

static struct random_key row_key(const struct batch *batch, int32_t row) {
    return (struct random_key){
        {batch->seed * 0x9E3779B97F4A7C15u + (uint64_t)row, batch->seed ^ 0x5bd1e995u}};
}

/* Results of rows [first, first + count). */
static struct sample_result *run_batch(
    const struct backends *b, const struct batch *batch, int32_t first, int32_t count) {
    struct device d = open_device(b->kernels[1], b->stream[1]);
    size_t width = (size_t)batch->vocabulary * sizeof(float);
    size_t words = mask_words(batch->vocabulary);
    struct sample_row *rows = allocate_or_fail((size_t)count * sizeof *rows);
    uint64_t *masks = allocate_or_fail((size_t)count * words * sizeof *masks);
    struct sample_adjustment *list = allocate_or_fail((size_t)count * MOST_ADJUSTMENTS * sizeof *list);
    float *logits = allocate_or_fail((size_t)count * width);
    int32_t filled = 0, masked = 0;
    for (int32_t i = 0; i < count; i++) {
        const uint64_t *mask = row_mask(batch, first + i);
        if (mask)
            memcpy(masks + (size_t)masked * words, mask, words * sizeof *masks);
        memcpy(logits + (int64_t)(count - 1 - i) * batch->vocabulary,
            batch->logits + (int64_t)(first + i) * batch->vocabulary, width);
        const struct sampling *s = &batch->sampling[first + i];
        struct adjustments own = {.count = 0};
        adjust(&own, s, batch->generated + (first + i) * batch->generated_count, batch->generated_count);
        memcpy(list + filled, own.list, (size_t)own.count * sizeof *list);
        struct random_key key = row_key(batch, first + i);
        rows[i] = (struct sample_row){.key = {key.words[0], key.words[1]},
            .position = (uint64_t)(first + i) << 30,
            .temperature = s->temperature,
            .top_p = s->top_p,
            .min_p = s->min_p,
            .top_k = s->top_k,
            .top_logprobs = s->top_logprobs,
            .logits = count - 1 - i, /* the last row's come first */
            .mask = mask ? masked++ : -1,
            .first_adjustment = filled,
            .adjustments = own.count};
        filled += own.count;
    }
    struct sample_result *results = allocate_or_fail((size_t)count * sizeof *results);
    struct sample_result *on_device = to_device(&d, results, (size_t)count * sizeof *results);
    cuda_sample(b->stream[1], to_device(&d, logits, (size_t)count * width), count, batch->vocabulary,
        to_device(&d, rows, (size_t)count * sizeof *rows),
        to_device(&d, list, (size_t)count * MOST_ADJUSTMENTS * sizeof *list),
        to_device(&d, masks, (size_t)count * words * sizeof *masks), on_device);
    from_device(&d, results, on_device, (size_t)count * sizeof *results);
    close_device(&d);
    free(rows);
    free(list);
    free(masks);
    free(logits);
    return results;
}

static void check_row(
    const struct batch *batch, struct sampler *sampler, int32_t row, const struct sample_result *found) {
    const struct sampling *s = &batch->sampling[row];
    struct sampled_token expected;
    const struct token_draw draw = {.sampling = s,
        .key = row_key(batch, row),
        .position = (int64_t)row << 30,
        .generated = batch->generated + row * batch->generated_count,
        .generated_count = batch->generated_count,
        .allowed = row_mask(batch, row)};
    if (sampler_choose(sampler, batch->logits + (int64_t)row * batch->vocabulary, &draw, &expected) != OK) {
        assert_int_equal(found->id, -1);
        return;
    }
    if (found->id != expected.id)
        fail_msg("row %d of %d tokens (temperature %g, top_p %g, top_k %d, min_p %g): token %d, not %d", row,
            batch->vocabulary, (double)s->temperature, (double)s->top_p, s->top_k, (double)s->min_p,
            found->id, expected.id);
    if (s->top_logprobs < 0) {
        assert_int_equal(found->top_logprobs, 0);
        return;
    }
    double log_sum = (double)found->most + log(found->sum);
    double expected_sum = logits_log_sum(batch->logits + (int64_t)row * batch->vocabulary, batch->vocabulary);
    assert_memory_equal(&log_sum, &expected_sum, sizeof log_sum);
    float logprob = sample_logprob(found, found->logit);
    assert_memory_equal(&logprob, &expected.logprob, sizeof logprob);
    assert_int_equal(found->top_logprobs, expected.top_logprobs);
    for (int32_t i = 0; i < found->top_logprobs; i++) {
        logprob = sample_logprob(found, found->top_logits[i]);
        assert_int_equal(found->top_ids[i], expected.top_ids[i]);
        assert_memory_equal(&logprob, &expected.top_values[i], sizeof logprob);
    }
}

/* All rows at once as the host says, and each alone the same. */
static void check_batch(const struct batch *batch) {
    struct backends b = open_backends();
    struct sampler *sampler;
    assert_int_equal(sampler_create(batch->vocabulary, &sampler), OK);
    struct sample_result *found = run_batch(&b, batch, 0, batch->rows);
    for (int32_t row = 0; row < batch->rows; row++) {
        check_row(batch, sampler, row, &found[row]);
        if (row % 5 != 0)
            continue;
        struct sample_result *alone = run_batch(&b, batch, row, 1);
        assert_memory_equal(alone, &found[row], sizeof *alone);
        free(alone);
    }
    free(found);
    sampler_free(sampler);
    close_backends(&b);
}

/* ---- batches ---- */

/* Logits as models have them: most of them low, a few high. */
static void fill_logits(float *logits, int32_t count, float size) {
    for (int32_t i = 0; i < count; i++) {
        float sum = 0;
        for (int32_t k = 0; k < 4; k++)
            sum += random_float();
        logits[i] = sum * size;
    }
}

/* Every combination of temperature, top_p, top_k and min_p below, log-probabilities in turn. */
static int32_t fill_samplings(struct sampling *samplings) {
    static const float temperatures[] = {0, 0.6f, 1, 1.8f}, top_ps[] = {1, 0.9f, 0.3f, 1e-6f},
                       min_ps[] = {0, 0.05f};
    static const int32_t top_ks[] = {0, 1, 7, 1000000}, tops[] = {-1, 0, 5, 20};
    int32_t count = 0;
    for (int32_t t = 0; t < 4; t++)
        for (int32_t p = 0; p < 4; p++)
            for (int32_t k = 0; k < 4; k++) {
                if (t == 0 && (p > 0 || k > 0))
                    continue;
                samplings[count] = (struct sampling){.temperature = temperatures[t],
                    .top_p = top_ps[p],
                    .top_k = top_ks[k],
                    .min_p = min_ps[(p + k) % 2],
                    .top_logprobs = tops[count % 4],
                    .choices = 1};
                count++;
            }
    return count;
}

enum { MOST_COMBINATIONS = 64 };

static void check_vocabulary(int32_t vocabulary, float size) {
    struct sampling samplings[MOST_COMBINATIONS];
    int32_t rows = fill_samplings(samplings);
    float *logits = allocate_or_fail((size_t)(rows * vocabulary) * sizeof *logits);
    fill_logits(logits, rows * vocabulary, size);
    struct batch batch = {
        .rows = rows, .vocabulary = vocabulary, .logits = logits, .sampling = samplings, .seed = 7};
    batch.generated = random_ids(1, 1);
    check_batch(&batch);
    free((void *)batch.generated);
    free(logits);
}

static void test_vocabularies(void **state) {
    (void)state;
    static const int32_t vocabularies[] = {1, 2, 7, 33, 511, 512, 1025, 3000};
    for (size_t v = 0; v < sizeof vocabularies / sizeof vocabularies[0]; v++)
        check_vocabulary(vocabularies[v], 5);
    check_vocabulary(600, 60);   /* most probabilities vanish */
    check_vocabulary(600, 0.1f); /* all are much alike */
}

/* The model's own vocabulary, a row of each way. */
static void test_whole_vocabulary(void **state) {
    (void)state;
    enum { ROWS = 3, VOCABULARY = 129280 };
    float *logits = allocate_or_fail(ROWS * VOCABULARY * sizeof *logits);
    fill_logits(logits, ROWS * VOCABULARY, 6);
    struct sampling samplings[ROWS] = {{.temperature = 1, .top_p = 0.95f, .top_logprobs = 20},
        {.temperature = 1, .top_p = 1, .top_logprobs = -1},
        {.temperature = 0.7f, .top_p = 0.9f, .top_k = 50, .top_logprobs = 0}};
    int32_t generated[ROWS] = {0, 0, 0};
    struct batch batch = {.rows = ROWS,
        .vocabulary = VOCABULARY,
        .logits = logits,
        .sampling = samplings,
        .generated = generated,
        .seed = 3};
    check_batch(&batch);
    free(logits);
}

/* Equal logits, of both zeros too; infinities and NaN; rows without any finite logit. */
static void test_edges(void **state) {
    (void)state;
    enum { VOCABULARY = 300 };
    struct sampling samplings[MOST_COMBINATIONS];
    int32_t rows = fill_samplings(samplings);
    float *logits = allocate_or_fail((size_t)rows * VOCABULARY * sizeof *logits);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t i = 0; i < VOCABULARY; i++) {
            float *value = &logits[r * VOCABULARY + i];
            uint32_t kind = random_bits() % 8;
            *value = (float)(int32_t)(random_bits() % 3) - 1;
            if (r % 5 == 0)
                *value = i % 2 ? 0.0f : -0.0f;
            if (r % 5 == 1 && kind < 3)
                *value = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
            if (r % 5 == 2)
                *value = i == 17 ? 3 : -INFINITY;
            if (r % 15 == 3)
                *value = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
            if (r % 15 == 4)
                *value = bits_float(random_bits());
        }
    int32_t generated[1] = {0};
    struct batch batch = {.rows = rows,
        .vocabulary = VOCABULARY,
        .logits = logits,
        .sampling = samplings,
        .generated = generated,
        .seed = 11};
    check_batch(&batch);
    free(logits);
}

/* Bias (ids twice, and beyond the vocabulary) and penalties for tokens generated so far. */
static void test_adjustments(void **state) {
    (void)state;
    enum { VOCABULARY = 200, GENERATED = 20, BIASES = 8 };
    static const int32_t ids[BIASES] = {5, 17, 5, 300, -1, 199, 0, 17};
    static const float values[BIASES] = {3.3f, -100, 0.1f, 50, 50, 2.5f, 1e-3f, 99.7f};
    struct sampling samplings[MOST_COMBINATIONS];
    int32_t rows = fill_samplings(samplings);
    for (int32_t r = 0; r < rows; r++) {
        if (r % 3 != 0) {
            samplings[r].bias_ids = ids;
            samplings[r].bias_values = values;
            samplings[r].bias_count = BIASES;
        }
        samplings[r].presence_penalty = r % 4 == 1 ? 0.7f : 0;
        samplings[r].frequency_penalty = r % 4 >= 2 ? -0.3f : 0;
    }
    float *logits = allocate_or_fail((size_t)rows * VOCABULARY * sizeof *logits);
    fill_logits(logits, rows * VOCABULARY, 3);
    int32_t *generated = random_ids((size_t)(rows * GENERATED), VOCABULARY / 4);
    struct batch batch = {.rows = rows,
        .vocabulary = VOCABULARY,
        .logits = logits,
        .sampling = samplings,
        .generated = generated,
        .generated_count = GENERATED,
        .seed = 5};
    check_batch(&batch);
    free(generated);
    free(logits);
}

/* Some tokens may be chosen, one, or none; some of them are not finite. */
static void check_masks(int32_t vocabulary) {
    static const int32_t ids[] = {1, 2, 2};
    static const float values[] = {100, -100, 40};
    struct sampling samplings[MOST_COMBINATIONS];
    int32_t rows = fill_samplings(samplings);
    size_t words = mask_words(vocabulary);
    float *logits = allocate_or_fail((size_t)(rows * vocabulary) * sizeof *logits);
    uint64_t *masks = allocate_or_fail((size_t)rows * words * sizeof *masks);
    fill_logits(logits, rows * vocabulary, 4);
    memset(masks, 0, (size_t)rows * words * sizeof *masks);
    for (int32_t r = 0; r < rows; r++) {
        uint64_t *mask = masks + (size_t)r * words;
        for (int32_t i = 0; i < vocabulary; i++)
            if (r % 5 == 0 ? i == (r * 31) % vocabulary : random_bits() % (1u << r % 5) == 0)
                mask[i / 64] |= (uint64_t)1 << i % 64;
        if (r % 11 == 1)
            memset(mask, 0, words * sizeof *mask);
        for (int32_t i = 0; r % 7 == 1 && i < vocabulary; i += 2)
            logits[r * vocabulary + i] = i % 4 ? NAN : -INFINITY;
        if (r % 2) {
            samplings[r].bias_ids = ids;
            samplings[r].bias_values = values;
            samplings[r].bias_count = 3;
        }
        samplings[r].presence_penalty = r % 4 == 1 ? 0.7f : 0;
    }
    int32_t *generated = random_ids((size_t)(rows * 4), vocabulary);
    struct batch batch = {.rows = rows,
        .vocabulary = vocabulary,
        .logits = logits,
        .sampling = samplings,
        .generated = generated,
        .generated_count = 4,
        .masks = masks,
        .seed = 13};
    check_batch(&batch);
    free(generated);
    free(masks);
    free(logits);
}

static void test_masks(void **state) {
    (void)state;
    static const int32_t vocabularies[] = {3, 64, 200, 1025};
    for (size_t v = 0; v < sizeof vocabularies / sizeof vocabularies[0]; v++)
        check_masks(vocabularies[v]);
}

/* Sums of two exponentials, of which the last place shows in the logarithm. */
static void test_exponentials(void **state) {
    (void)state;
    enum { ROWS = 300, VOCABULARY = 2 };
    struct sampling samplings[ROWS];
    float *logits = allocate_or_fail(ROWS * VOCABULARY * sizeof *logits);
    for (int32_t r = 0; r < ROWS; r++) {
        samplings[r] = (struct sampling){.temperature = 0, .top_p = 1, .top_logprobs = 0};
        logits[r * VOCABULARY + r % 2] = -0.3f + 0.3f * random_float();
    }
    int32_t generated[ROWS] = {0};
    struct batch batch = {.rows = ROWS,
        .vocabulary = VOCABULARY,
        .logits = logits,
        .sampling = samplings,
        .generated = generated,
        .seed = 19};
    check_batch(&batch);
    free(logits);
}

/* Weights of 1 less some units in the last place, in one bucket: where top_p cuts depends on how their sum was rounded, so on its
 * order. */
static void test_order_of_sums(void **state) {
    (void)state;
    enum { ROWS = 256, VOCABULARY = 16 };
    struct sampling samplings[ROWS];
    float *logits = allocate_or_fail(ROWS * VOCABULARY * sizeof *logits);
    for (int32_t r = 0; r < ROWS; r++) {
        samplings[r] =
            (struct sampling){.temperature = 1, .top_p = r % 2 ? 0.25f : 0.125f, .top_logprobs = -1};
        for (int32_t i = 0; i < VOCABULARY; i++)
            logits[r * VOCABULARY + i] = -0x1p-53f * (float)(random_bits() % 3 * 2 + 3);
        logits[r * VOCABULARY + r % VOCABULARY] = 0;
    }
    int32_t generated[ROWS] = {0};
    struct batch batch = {.rows = ROWS,
        .vocabulary = VOCABULARY,
        .logits = logits,
        .sampling = samplings,
        .generated = generated,
        .seed = 17};
    check_batch(&batch);
    free(logits);
}

/* More rows than one launch takes. */
static void test_many_rows(void **state) {
    (void)state;
    enum { ROWS = 140, VOCABULARY = 40 };
    struct sampling samplings[ROWS];
    for (int32_t r = 0; r < ROWS; r++)
        samplings[r] =
            (struct sampling){.temperature = 1, .top_p = r % 2 ? 1.0f : 0.8f, .top_logprobs = r % 3};
    float *logits = allocate_or_fail(ROWS * VOCABULARY * sizeof *logits);
    fill_logits(logits, ROWS * VOCABULARY, 3);
    int32_t generated[ROWS] = {0};
    struct batch batch = {.rows = ROWS,
        .vocabulary = VOCABULARY,
        .logits = logits,
        .sampling = samplings,
        .generated = generated,
        .seed = 13};
    check_batch(&batch);
    free(logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocabularies),
        cmocka_unit_test(test_whole_vocabulary),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_adjustments),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_exponentials),
        cmocka_unit_test(test_order_of_sums),
        cmocka_unit_test(test_many_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

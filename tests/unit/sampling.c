#include "model/sampling.h"
#include "recipe/request.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const struct sampling greedy = {.temperature = 0, .top_p = 1, .choices = 1, .top_logprobs = -1};
static const struct sampling plain = {.temperature = 1, .top_p = 1, .choices = 1, .top_logprobs = -1};

static int32_t choose(struct sampler *sampler, const float *logits, const struct sampling *sampling,
    struct random_key key, int64_t position) {
    const struct token_draw draw = {.sampling = sampling, .key = key, .position = position};
    struct sampled_token token;
    assert_int_equal(sampler_choose(sampler, logits, &draw, &token), OK);
    return token.id;
}

/* A draw that looks back at what was generated. */
static struct token_draw draw_after(const struct sampling *sampling, struct random_key key, int64_t position,
    const int32_t *generated, int32_t count) {
    return (struct token_draw){.sampling = sampling,
        .key = key,
        .position = position,
        .generated = generated,
        .generated_count = count};
}

static struct sampler *make(int32_t vocab_size) {
    struct sampler *sampler;
    assert_int_equal(sampler_create(vocab_size, &sampler), OK);
    return sampler;
}

static enum result choose_after(
    struct sampler *sampler, const float *logits, struct token_draw draw, struct sampled_token *token) {
    return sampler_choose(sampler, logits, &draw, token);
}

/* The known answers that were published with the generator (Random123's kat_vectors). */
static void philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
            {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
            {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        philox_4x32_10(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static void keys_differ(void **state) {
    (void)state;
    struct random_key keys[] = {random_key_make(1, "a", 1, 0), random_key_make(2, "a", 1, 0),
        random_key_make(1, "b", 1, 0), random_key_make(1, "a", 1, 1), random_key_make(1, "", 0, 0),
        random_key_make(-1, "a", 1, 0), random_key_make(1, "a\0", 2, 0)};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(&keys[i], &keys[k], sizeof keys[i]);
    struct random_key again = random_key_make(1, "a", 1, 0);
    assert_memory_equal(&again, &keys[0], sizeof again);
}

static void uniform_is_uniform(void **state) {
    (void)state;
    enum { CELLS = 64, DRAWS = 64000 };
    int counts[CELLS] = {0};
    struct random_key key = random_key_make(7, "uniform", 7, 0);
    for (int i = 0; i < DRAWS; i++) {
        double u = random_uniform(key, (uint64_t)i);
        assert_true(u >= 0 && u < 1);
        counts[(int)(u * CELLS)]++;
    }
    double chi = 0;
    for (int i = 0; i < CELLS; i++)
        chi += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000.0;
    assert_true(chi > 28 && chi < 113); /* 63 degrees of freedom: 1e-4 on each side */
    assert_true(random_uniform(key, 1) != random_uniform(key, (uint64_t)1 << 32 | 1));
}

static void greedy_takes_the_first_of_equals(void **state) {
    (void)state;
    struct sampler *sampler = make(21);
    float logits[21];
    for (int i = 0; i < 21; i++)
        logits[i] = -1.0f;
    logits[6] = logits[13] = logits[20] = 2.0f;
    struct random_key key = {{1, 2}};
    assert_int_equal(choose(sampler, logits, &greedy, key, 0), 6);
    logits[20] = 2.5f;
    assert_int_equal(choose(sampler, logits, &greedy, key, 0), 20);
    logits[3] = NAN;
    logits[4] = INFINITY;
    logits[5] = -INFINITY;
    assert_int_equal(choose(sampler, logits, &greedy, key, 0), 20);
    for (int position = 0; position < 500; position++) {
        int32_t id = choose(sampler, logits, &plain, key, position);
        assert_true(id != 3 && id != 4 && id != 5);
    }
    for (int i = 0; i < 21; i++)
        logits[i] = i % 2 ? NAN : -INFINITY;
    struct sampled_token token;
    assert_int_equal(
        choose_after(sampler, logits, draw_after(&greedy, key, 0, NULL, 0), &token), ERROR_INTERNAL);
    sampler_free(sampler);
}

static void logprobs_are_of_the_unmodified_logits(void **state) {
    (void)state;
    enum { VOCAB = 1003 };
    struct sampler *sampler = make(VOCAB);
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = 6.0f * sinf((float)i * 1.7f);
    logits[100] = logits[900] = 7.0f;
    long double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += expl((long double)logits[i] - 7.0L);
    double expected = (double)(7.0L + logl(sum));
    assert_true(fabs(logits_log_sum(logits, VOCAB) - expected) < 1e-13 * expected);
    const int32_t ids[] = {100, 900, 5};
    const float values[] = {-100, -100, 100};
    struct sampling sampling = greedy;
    sampling.bias_ids = ids;
    sampling.bias_values = values;
    sampling.bias_count = 3;
    sampling.top_logprobs = 20;
    struct sampled_token token;
    struct random_key key = {{0, 0}};
    assert_int_equal(choose_after(sampler, logits, draw_after(&sampling, key, 9, NULL, 0), &token), OK);
    assert_int_equal(token.id, 5);
    assert_true(fabsf(token.logprob - (float)(logits[5] - expected)) < 1e-6f);
    assert_int_equal(token.top_logprobs, 20);
    assert_int_equal(token.top_ids[0], 100);
    assert_int_equal(token.top_ids[1], 900);
    for (int i = 0; i < 20; i++) {
        int better = 0;
        for (int k = 0; k < VOCAB; k++)
            better += logits[k] > logits[token.top_ids[i]] ||
                      (logits[k] == logits[token.top_ids[i]] && k < token.top_ids[i]);
        assert_int_equal(better, i);
        assert_true(
            token.top_values[i] == (float)((double)logits[token.top_ids[i]] - logits_log_sum(logits, VOCAB)));
    }
    sampler_free(sampler);
}

static void exponential_is_accurate(void **state) {
    (void)state;
    /* ln(1 + e^-x) tells the exponential's value for two logits, x apart. */
    for (double x = 0; x < 40; x += 0.37) {
        float logits[2] = {0, (float)-x};
        double expected = log1p(exp(-(double)(float)x));
        assert_true(fabs(logits_log_sum(logits, 2) - expected) < 3e-16 + 4e-16 * expected);
    }
    float far[2] = {0, -1e30f};
    assert_true(logits_log_sum(far, 2) == 0);
}

static void penalties_follow_openai(void **state) {
    (void)state;
    struct sampler *sampler = make(5);
    const float logits[5] = {1.0f, 0.9f, 0.8f, 0.1f, 0.0f};
    struct sampling sampling = greedy;
    struct sampled_token token;
    struct random_key key = {{0, 0}};
    const int32_t generated[] = {0, 1, 0, 0};
    sampling.presence_penalty = 0.15f; /* 0.85, 0.75, 0.8 */
    assert_int_equal(choose_after(sampler, logits, draw_after(&sampling, key, 0, generated, 4), &token), OK);
    assert_int_equal(token.id, 0);
    sampling.presence_penalty = 0.25f; /* 0.75, 0.65, 0.8 */
    assert_int_equal(choose_after(sampler, logits, draw_after(&sampling, key, 0, generated, 4), &token), OK);
    assert_int_equal(token.id, 2);
    sampling.presence_penalty = 0;
    sampling.frequency_penalty = 0.06f; /* 0.82, 0.84, 0.8 */
    assert_int_equal(choose_after(sampler, logits, draw_after(&sampling, key, 0, generated, 4), &token), OK);
    assert_int_equal(token.id, 1);
    sampling.frequency_penalty =
        -0.06f; /* 1.18, 0.96, 0.8: and nothing was left over from the calls before */
    assert_int_equal(
        choose_after(sampler, logits, draw_after(&sampling, key, 0, generated + 1, 1), &token), OK);
    assert_int_equal(token.id, 0);
    assert_int_equal(choose_after(sampler, logits, draw_after(&sampling, key, 0, NULL, 0), &token), OK);
    assert_int_equal(token.id, 0);
    sampler_free(sampler);
}

/* Draws from 40 tokens often and compares with the distribution that a plain, sorting implementation leaves. */
static void check_distribution(struct sampling sampling, const char *name) {
    enum { VOCAB = 40, DRAWS = 40000 };
    struct sampler *sampler = make(VOCAB);
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)((i * 17) % VOCAB / 4) * 0.31f; /* several equal ones, out of order */
    double probability[VOCAB];
    int order[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        probability[i] = exp(logits[i] / (double)sampling.temperature);
        order[i] = i;
    }
    for (int i = 0; i < VOCAB; i++)
        for (int k = 0; k + 1 < VOCAB; k++)
            if (logits[order[k]] < logits[order[k + 1]]) {
                int swap = order[k];
                order[k] = order[k + 1];
                order[k + 1] = swap;
            }
    int kept = sampling.top_k > 0 && sampling.top_k < VOCAB ? sampling.top_k : VOCAB;
    double of_k = 0, reached = 0, most = probability[order[0]];
    for (int i = 0; i < kept; i++)
        of_k += probability[order[i]];
    bool full = false;
    double left = 0;
    for (int i = 0; i < VOCAB; i++) {
        double p = probability[order[i]];
        if (i >= kept || full)
            probability[order[i]] = 0;
        reached += p;
        if (sampling.top_p < 1 && reached >= (double)sampling.top_p * of_k)
            full = true;
        if (p < (double)sampling.min_p * most)
            probability[order[i]] = 0;
        left += probability[order[i]];
    }
    int counts[VOCAB] = {0}, cells = 0;
    struct random_key key = random_key_make(11, name, strlen(name), 0);
    for (int i = 0; i < DRAWS; i++)
        counts[choose(sampler, logits, &sampling, key, i)]++;
    double chi = 0;
    for (int i = 0; i < VOCAB; i++) {
        double expected = probability[i] / left * DRAWS;
        if (probability[i] == 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
        cells++;
    }
    double freedom = cells - 1;
    assert_true(chi < freedom + 4.5 * sqrt(2 * freedom) + 3);
    sampler_free(sampler);
}

static void distributions(void **state) {
    (void)state;
    struct sampling s = plain;
    check_distribution(s, "plain");
    s.temperature = 0.5f;
    check_distribution(s, "cool");
    s.temperature = 1.7f;
    s.top_k = 7;
    check_distribution(s, "top_k cuts through equal logits");
    s.top_k = 0;
    s.top_p = 0.6f;
    check_distribution(s, "top_p");
    s.top_k = 20;
    check_distribution(s, "top_k then top_p");
    s.top_p = 1;
    s.top_k = 0;
    s.min_p = 0.2f;
    check_distribution(s, "min_p");
    s.top_k = 30;
    s.top_p = 0.9f;
    s.temperature = 1;
    check_distribution(s, "all three");
}

static void narrow_limits_are_greedy(void **state) {
    (void)state;
    struct sampler *sampler = make(3000);
    float logits[3000];
    for (int i = 0; i < 3000; i++)
        logits[i] = (float)(i * 7919 % 3000) * 0.001f;
    int32_t best = choose(sampler, logits, &greedy, (struct random_key){{0, 0}}, 0);
    for (int position = 0; position < 200; position++) {
        struct random_key key = {{(uint64_t)position, 9}};
        struct sampling s = plain;
        s.top_k = 1;
        assert_int_equal(choose(sampler, logits, &s, key, position), best);
        s = plain;
        s.top_p = 1e-6f;
        assert_int_equal(choose(sampler, logits, &s, key, position), best);
        s = plain;
        s.min_p = 1;
        assert_int_equal(choose(sampler, logits, &s, key, position), best);
        s = plain;
        s.temperature = 1e-6f;
        assert_int_equal(choose(sampler, logits, &s, key, position), best);
    }
    sampler_free(sampler);
}

/* Only tokens whose bit is set are drawn, in the proportions that they have among themselves, whatever bias says. */
static void masks_rule_out_tokens(void **state) {
    (void)state;
    enum { VOCAB = 130 };
    struct sampler *sampler = make(VOCAB);
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = i % 2 ? 5.0f : (float)i * 0.01f;
    uint64_t allowed[] = {(uint64_t)1 << 10, (uint64_t)1 << 63, 1};
    const int32_t ids[] = {10, 127, 128, 1};
    const float values[] = {-100, -100, -100, 100};
    struct sampling biased = plain, few = plain;
    biased.bias_ids = ids;
    biased.bias_values = values;
    biased.bias_count = 4;
    few.top_k = 1;
    few.top_logprobs = 5;
    int seen[VOCAB] = {0};
    for (int position = 0; position < 4000; position++) {
        struct token_draw draw = {.sampling = &plain, .position = position, .allowed = allowed};
        struct sampled_token token, same, best;
        assert_int_equal(sampler_choose(sampler, logits, &draw, &token), OK);
        draw.sampling = &biased; /* all that are allowed alike */
        assert_int_equal(sampler_choose(sampler, logits, &draw, &same), OK);
        assert_int_equal(same.id, token.id);
        draw.sampling = &few;
        assert_int_equal(sampler_choose(sampler, logits, &draw, &best), OK);
        assert_int_equal(best.id, 127);
        assert_int_equal(best.top_ids[0], 1); /* alternatives are of the unmodified logits */
        assert_true(best.top_values[0] == best.logprob);
        seen[token.id]++;
    }
    assert_int_equal(seen[10] + seen[127] + seen[128], 4000);
    double rest = exp(0.1) + exp(5) + exp(1.28);
    assert_true(fabs(seen[10] / 4000.0 - exp(0.1) / rest) < 0.01);
    assert_true(fabs(seen[128] / 4000.0 - exp(1.28) / rest) < 0.01);
    /* One token is left: it comes without a draw, with its own log-probability. */
    allowed[0] = allowed[1] = 0;
    const struct token_draw last = {.sampling = &plain, .position = 9, .allowed = allowed};
    struct sampled_token token;
    assert_int_equal(sampler_choose(sampler, logits, &last, &token), OK);
    assert_int_equal(token.id, 128);
    assert_true(token.logprob == (float)((double)logits[128] - logits_log_sum(logits, VOCAB)));
    allowed[2] = 0;
    assert_int_equal(sampler_choose(sampler, logits, &last, &token), ERROR_INTERNAL);
    sampler_free(sampler);
}

/* What was drawn before, and with which sampler, leaves no trace. */
static void only_the_inputs_matter(void **state) {
    (void)state;
    enum { VOCAB = 517 };
    struct sampler *used = make(VOCAB);
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = cosf((float)i);
    struct sampling s = plain;
    s.top_p = 0.8f;
    s.top_k = 200;
    s.frequency_penalty = 0.5f;
    const int32_t generated[] = {3, 3, 500};
    for (int position = 0; position < 100; position++) {
        struct sampler *fresh = make(VOCAB);
        struct random_key key = random_key_make(position, "x", 1, 0);
        struct sampled_token one, two;
        assert_int_equal(choose_after(used, logits, draw_after(&s, key, position, generated, 3), &one), OK);
        assert_int_equal(choose_after(fresh, logits, draw_after(&s, key, position, generated, 3), &two), OK);
        assert_int_equal(one.id, two.id);
        assert_true(one.logprob == two.logprob);
        sampler_free(fresh);
    }
    sampler_free(used);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The large model's vocabulary: every way stays far below a token's time in the model, also when all logits are equal. */
static void large_vocabulary_is_fast(void **state) {
    (void)state;
    enum { VOCAB = 129280, ROUNDS = 20 };
    struct sampler *sampler = make(VOCAB);
    float *logits = malloc(VOCAB * sizeof *logits);
    assert_non_null(logits);
    for (int equal = 0; equal < 2; equal++) {
        for (int i = 0; i < VOCAB; i++)
            logits[i] = equal ? 1.0f : 4.0f * sinf((float)i * 0.77f) + cosf((float)i * 3.1f);
        struct sampling ways[3] = {greedy, plain, plain};
        ways[2].top_p = 0.9f;
        ways[2].top_k = 100000;
        for (int way = 0; way < 3; way++) {
            double start = seconds();
            for (int i = 0; i < ROUNDS; i++)
                choose(sampler, logits, &ways[way], (struct random_key){{3, 4}}, i);
            double each = (seconds() - start) / ROUNDS;
            print_message(
                "%s logits, way %d: %.2f ms a token\n", equal ? "equal" : "varied", way, each * 1e3);
            assert_true(each < 0.25); /* loose: sanitizers and shared cores */
        }
    }
    free(logits);
    sampler_free(sampler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(keys_differ),
        cmocka_unit_test(uniform_is_uniform),
        cmocka_unit_test(greedy_takes_the_first_of_equals),
        cmocka_unit_test(logprobs_are_of_the_unmodified_logits),
        cmocka_unit_test(exponential_is_accurate),
        cmocka_unit_test(penalties_follow_openai),
        cmocka_unit_test(distributions),
        cmocka_unit_test(narrow_limits_are_greedy),
        cmocka_unit_test(masks_rule_out_tokens),
        cmocka_unit_test(only_the_inputs_matter),
        cmocka_unit_test(large_vocabulary_is_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The made-up trace: the same for the same seed, conversations that only grow, and statistics that are those of its prompts. */
#include "bench/cases/traffic.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct traffic *make(const struct traffic_options *options) {
    struct traffic *traffic = NULL;
    assert_int_equal(traffic_make(options, &traffic), OK);
    return traffic;
}

static int32_t *prompt_of(const struct traffic *traffic, int64_t request) {
    int32_t *ids = calloc((size_t)traffic->requests[request].prompt_tokens, sizeof *ids);
    assert_non_null(ids);
    traffic_prompt(traffic, request, ids);
    return ids;
}

static void is_the_same_for_the_same_seed(void **state) {
    (void)state;
    struct traffic_options options = traffic_defaults(500);
    struct traffic *first = make(&options), *second = make(&options);
    options.seed = 2;
    struct traffic *third = make(&options);
    assert_int_equal(first->count, 500);
    assert_int_equal(third->count, 500);
    int64_t different = 0;
    for (int64_t i = 0; i < first->count; i++) {
        const struct traffic_request *a = &first->requests[i], *b = &second->requests[i];
        assert_true(a->hours == b->hours && a->conversation == b->conversation && a->turn == b->turn &&
                    a->prompt_tokens == b->prompt_tokens && a->answer_tokens == b->answer_tokens);
        different += a->prompt_tokens != third->requests[i].prompt_tokens;
    }
    assert_true(different > 400);
    int32_t *a = prompt_of(first, 7), *b = prompt_of(second, 7);
    assert_memory_equal(a, b, (size_t)first->requests[7].prompt_tokens * sizeof *a);
    free(a);
    free(b);
    traffic_free(first);
    traffic_free(second);
    traffic_free(third);
}

/* Of the turns of a conversation each begins where the one before had ended or later, in time and in text. */
static void conversations_grow(void **state) {
    (void)state;
    struct traffic_options options = traffic_defaults(1000);
    struct traffic *traffic = make(&options);
    int64_t *before =
        calloc((size_t)traffic->conversations, sizeof *before); /* request + 1 of its last turn */
    int64_t compared = 0;
    for (int64_t i = 0; i < traffic->count; i++) {
        const struct traffic_request *r = &traffic->requests[i];
        assert_true(r->conversation >= 0 && r->conversation < traffic->conversations);
        assert_true(r->hours >= 0 && r->hours < 24 * options.days);
        assert_true(r->answer_tokens >= 1 && r->answer_tokens <= r->max_tokens);
        assert_true(r->prompt_tokens > r->system_end);
        assert_true(r->prompt_tokens + r->max_tokens <= TRAFFIC_CONTEXT);
        assert_int_equal(r->system < 0, r->kind == TRAFFIC_QUESTION);
        int64_t last = before[r->conversation] - 1;
        before[r->conversation] = i + 1;
        assert_int_equal(r->turn, last < 0 ? 0 : traffic->requests[last].turn + 1);
        if (last < 0)
            continue;
        const struct traffic_request *earlier = &traffic->requests[last];
        assert_true(r->prompt_tokens >= earlier->prompt_tokens + earlier->answer_tokens);
        assert_int_equal(r->kind, earlier->kind);
        if (i % 10)
            continue;
        int32_t *a = prompt_of(traffic, last), *b = prompt_of(traffic, i);
        assert_memory_equal(a, b, (size_t)earlier->prompt_tokens * sizeof *a);
        free(a);
        free(b);
        compared++;
    }
    assert_true(compared > 20);
    free(before);
    traffic_free(traffic);
}

struct prompt {
    int32_t *ids, count;
};

static int by_tokens(const void *a, const void *b) {
    const struct prompt *x = a, *y = b;
    for (int32_t i = 0; i < x->count && i < y->count; i++)
        if (x->ids[i] != y->ids[i])
            return x->ids[i] < y->ids[i] ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

/* Tokens of the trie over all prompts: of each in sorted order those that it doesn't share with the one before. */
static int64_t trie_tokens(const struct traffic *traffic, enum traffic_kind kind, int64_t *all) {
    struct prompt *prompts = calloc((size_t)traffic->count, sizeof *prompts);
    int64_t count = 0, total = 0;
    *all = 0;
    for (int64_t i = 0; i < traffic->count; i++)
        if (kind == TRAFFIC_KINDS || traffic->requests[i].kind == kind)
            prompts[count++] = (struct prompt){prompt_of(traffic, i), traffic->requests[i].prompt_tokens};
    qsort(prompts, (size_t)count, sizeof *prompts, by_tokens);
    for (int64_t i = 0; i < count; i++) {
        int32_t common = 0;
        while (i && common < prompts[i].count && common < prompts[i - 1].count &&
               prompts[i].ids[common] == prompts[i - 1].ids[common])
            common++;
        total += prompts[i].count - common;
        *all += prompts[i].count;
    }
    for (int64_t i = 0; i < count; i++)
        free(prompts[i].ids);
    free(prompts);
    return total;
}

static void counts_distinct_tokens_as_a_trie_does(void **state) {
    (void)state;
    struct traffic_options options = traffic_defaults(400);
    options.agents = 5;
    struct traffic *traffic = make(&options);
    for (int kind = 0; kind <= TRAFFIC_KINDS; kind++) {
        struct traffic_statistics s;
        int64_t all, distinct = trie_tokens(traffic, (enum traffic_kind)kind, &all);
        assert_int_equal(traffic_describe(traffic, (enum traffic_kind)kind, &s), OK);
        assert_int_equal(s.prompt_tokens, all);
        assert_int_equal(s.distinct_tokens, distinct);
        assert_int_equal(s.requests, kind == TRAFFIC_KINDS ? 400 : options.requests[kind]);
        assert_true(s.prompt.median <= s.prompt.ninth_decile &&
                    s.prompt.ninth_decile <= s.prompt.last_percentile &&
                    s.prompt.last_percentile <= s.prompt.largest);
        assert_true(fabs(s.prompt.mean * (double)s.requests - (double)all) < 1);
    }
    traffic_free(traffic);
}

/* What the page on balance says of the kinds, within what 20,000 draws leave open. */
static void looks_as_described(void **state) {
    (void)state;
    struct traffic_options options = traffic_defaults(20000);
    struct traffic *traffic = make(&options);
    struct traffic_statistics agents, chats, questions;
    assert_int_equal(traffic_describe(traffic, TRAFFIC_AGENT, &agents), OK);
    assert_int_equal(traffic_describe(traffic, TRAFFIC_CHAT, &chats), OK);
    assert_int_equal(traffic_describe(traffic, TRAFFIC_QUESTION, &questions), OK);
    for (int64_t i = 0; i < traffic->count; i++)
        if (traffic->requests[i].kind == TRAFFIC_AGENT)
            assert_in_range(
                traffic->requests[i].system_end, 2000 + TRAFFIC_TEMPLATE, 20000 + TRAFFIC_TEMPLATE);
    assert_true(1 - (double)agents.distinct_tokens / (double)agents.prompt_tokens > 0.85);
    assert_true((double)agents.requests / (double)agents.conversations > 6);
    assert_in_range(chats.answer.median, 290, 350);                      /* median 320 */
    assert_in_range(questions.answer.median, 380, 460);                  /* 420 */
    assert_true(chats.prompt.last_percentile > 6 * chats.prompt.median); /* a heavy tail */
    assert_int_equal(questions.conversations, questions.requests);
    assert_int_equal(agents.returns + questions.returns, 0);
    assert_true(chats.returns > 0);
    traffic_free(traffic);
}

/* Rests between a chat's sittings follow the tail that was asked for: of those that a long trace shows, the share that are
 * longer than twice the scale. */
static void chats_return_by_the_tail(void **state) {
    (void)state;
    struct traffic_options options = traffic_defaults(1);
    options.requests[TRAFFIC_AGENT] = options.requests[TRAFFIC_QUESTION] = 0;
    options.requests[TRAFFIC_CHAT] = 40000;
    options.days = 100000; /* so that hardly any return falls behind its end */
    options.shape = 1.5;
    options.scale = 2;
    for (int tail = TRAFFIC_PARETO; tail <= TRAFFIC_LOGNORMAL; tail++) {
        options.tail = (enum traffic_tail)tail;
        struct traffic *traffic = make(&options);
        double *hours = calloc((size_t)traffic->conversations, sizeof *hours);
        int64_t longer = 0, returns = 0;
        for (int64_t i = 0; i < traffic->count; i++) {
            const struct traffic_request *r = &traffic->requests[i];
            returns += r->is_return;
            longer += r->is_return && r->hours - hours[r->conversation] > 4;
            hours[r->conversation] = r->hours;
        }
        double expected = tail == TRAFFIC_PARETO ? pow(2, -1.5) : 0.5 * erfc(log(2) / 1.5 / sqrt(2));
        assert_true(returns > 5000);
        assert_true(fabs((double)longer / (double)returns - expected) < 0.02);
        free(hours);
        traffic_free(traffic);
    }
}

static void refuses_options_without_sense(void **state) {
    (void)state;
    struct traffic *traffic = NULL;
    struct traffic_options options = traffic_defaults(10);
    options.days = 0;
    assert_int_equal(traffic_make(&options, &traffic), ERROR_USAGE);
    options = traffic_defaults(10);
    options.shape = NAN;
    assert_int_equal(traffic_make(&options, &traffic), ERROR_USAGE);
    options = traffic_defaults(10);
    options.requests[TRAFFIC_CHAT] = -1;
    assert_int_equal(traffic_make(&options, &traffic), ERROR_USAGE);
    options = traffic_defaults(10);
    options.return_share = 1.5;
    assert_int_equal(traffic_make(&options, &traffic), ERROR_USAGE);
    assert_null(traffic);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_the_same_for_the_same_seed),
        cmocka_unit_test(conversations_grow),
        cmocka_unit_test(counts_distinct_tokens_as_a_trie_does),
        cmocka_unit_test(looks_as_described),
        cmocka_unit_test(chats_return_by_the_tail),
        cmocka_unit_test(refuses_options_without_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

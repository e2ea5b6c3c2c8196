#include "schedule/plan.h"

#include "prompts_at_random.h"
#include "schedule/prompt_order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 400, MOST_RANKS = 200 };

static const struct plan_costs costs = {1, 2};
static struct random_prompts prompts;

struct made {
    struct plan_entry *entries; /* [count] */
    int64_t count;
    int64_t first[MOST_RANKS + 1];
    int32_t ranks;
};

static struct made make_plan(
    const struct plan_request *requests, int64_t count, int32_t ranks, enum plan_placement placement) {
    struct made made = {
        .entries = malloc((size_t)(count + 1) * sizeof *made.entries), .count = count, .ranks = ranks};
    assert_non_null(made.entries);
    memset(made.first, 0xff, sizeof made.first);
    assert_int_equal(plan_make(requests, count, ranks, &costs, placement, made.entries, made.first), OK);
    assert_int_equal(made.first[0], 0);
    assert_int_equal(made.first[ranks], count);
    for (int32_t rank = 0; rank < ranks; rank++)
        assert_true(made.first[rank] <= made.first[rank + 1]);
    return made;
}

static double entry_work(const struct plan_entry *entry) {
    int32_t held = entry->shared > entry->cached_tokens ? entry->shared : entry->cached_tokens;
    return costs.prompt_token * (entry->tokens > held ? entry->tokens - held : 0) +
           costs.answer_token * entry->answer_tokens;
}

static double rank_work(const struct made *made, int32_t rank) {
    double sum = 0;
    for (int64_t i = made->first[rank]; i < made->first[rank + 1]; i++)
        sum += entry_work(&made->entries[i]);
    return sum;
}

static double longest_rank(const struct made *made) {
    double most = 0;
    for (int32_t rank = 0; rank < made->ranks; rank++)
        most = rank_work(made, rank) > most ? rank_work(made, rank) : most;
    return most;
}

/* ---- sorted prompts ---- */

static void sorts_prompts(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        make_prompts(&prompts, seed, seed % 2, seed % 5 == 0);
        int64_t order[PROMPTS_MOST + 1];
        int32_t shared[PROMPTS_MOST + 1];
        bool seen[PROMPTS_MOST] = {0};
        for (int64_t i = 0; i < prompts.count; i++)
            order[i] = i;
        assert_int_equal(prompt_order(prompts.requests, order, shared, prompts.count), OK);
        for (int64_t i = 0; i < prompts.count; i++) {
            assert_false(seen[order[i]]);
            seen[order[i]] = true;
            const struct plan_request *one = &prompts.requests[order[i]];
            int32_t most = 0; /* nobody before shares more than the neighbour */
            for (int64_t k = 0; k < i; k++) {
                int32_t common = plain_shared(&prompts.requests[order[k]], one);
                assert_int_equal(common, prompt_shared(&prompts.requests[order[k]], one));
                most = common > most ? common : most;
            }
            assert_int_equal(shared[i], most);
            assert_int_equal(shared[i], i ? plain_shared(&prompts.requests[order[i - 1]], one) : 0);
        }
    }
}

/* ---- any plan ---- */

static void check_entries(const struct made *made) {
    bool seen[PROMPTS_MOST] = {0};
    for (int32_t rank = 0; rank < made->ranks; rank++)
        for (int64_t i = made->first[rank]; i < made->first[rank + 1]; i++) {
            const struct plan_entry *entry = &made->entries[i];
            const struct plan_request *request = find_prompt(&prompts, entry->request);
            assert_int_equal(request->request, entry->request);
            assert_false(seen[request - prompts.requests]);
            seen[request - prompts.requests] = true;
            assert_int_equal(entry->tokens, request->tokens);
            assert_int_equal(entry->answer_tokens, request->answer_tokens);
            assert_int_equal(
                entry->cached_tokens, request->token_ids ? request->cached_tokens : request->tokens);
            assert_int_equal(entry->shared,
                i > made->first[rank] ? plain_shared(find_prompt(&prompts, entry[-1].request), request) : 0);
        }
}

/* Each prefix that a rank's prompts share is computed by it once: what an entry shares with the one before it, it shares with
 * any before it. */
static void check_computed_once(const struct made *made) {
    for (int32_t rank = 0; rank < made->ranks; rank++)
        for (int64_t i = made->first[rank]; i < made->first[rank + 1]; i++)
            for (int64_t k = made->first[rank]; k < i; k++)
                assert_true(plain_shared(find_prompt(&prompts, made->entries[k].request),
                                find_prompt(&prompts, made->entries[i].request)) <= made->entries[i].shared);
}

/* A prompt that another one begins with comes before it, whatever their answers: its last token must be run. */
static void check_nested(const struct made *made) {
    for (int32_t rank = 0; rank < made->ranks; rank++)
        for (int64_t i = made->first[rank] + 1; i < made->first[rank + 1]; i++) {
            const struct plan_entry *entry = &made->entries[i];
            assert_true(
                entry->shared == 0 || entry->shared < entry->tokens || entry[-1].tokens == entry->tokens);
        }
}

static void places_each_request_once(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 2, 3, 7, MOST_RANKS};
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        make_prompts(&prompts, seed, seed % 2, seed % 5 == 0);
        for (int64_t i = 0; seed % 3 == 0 && i < prompts.count; i++)
            prompts.requests[i].cached_tokens =
                (int32_t)draw_below(&prompts.state, prompts.requests[i].tokens + 1);
        int32_t ranks = sizes[seed % (sizeof sizes / sizeof *sizes)];
        for (int placement = PLAN_FAMILIES; placement <= PLAN_PREFIX_AFFINITY; placement++) {
            struct made made = make_plan(prompts.requests, prompts.count, ranks, placement);
            check_entries(&made);
            if (placement == PLAN_FAMILIES || placement == PLAN_PREFIX_AFFINITY) {
                check_computed_once(&made);
                check_nested(&made);
            }
            struct made again = make_plan(prompts.requests, prompts.count, ranks, placement);
            for (int64_t i = 0; i < made.count; i++)
                assert_memory_equal(&made.entries[i], &again.entries[i], sizeof made.entries[i]);
            assert_memory_equal(made.first, again.first, (size_t)(ranks + 1) * sizeof *made.first);
            free(made.entries);
            free(again.entries);
        }
    }
}

/* The longest rank has little more than it must: its part of all work with each prefix computed once, and a prompt that can't be
 * divided with the prefix it may have to compute again. */
static void balances(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        make_prompts(&prompts, seed, false, seed % 5 == 0);
        if (prompts.count == 0)
            continue;
        int32_t ranks = 2 + (int32_t)(seed % 6);
        struct made one = make_plan(prompts.requests, prompts.count, 1, PLAN_FAMILIES);
        struct made made = make_plan(prompts.requests, prompts.count, ranks, PLAN_FAMILIES);
        double alone = 0, least = longest_rank(&one) / ranks;
        for (int64_t i = 0; i < prompts.count; i++) {
            const struct plan_request *request = &prompts.requests[i];
            double work = (request->token_ids ? request->tokens : 0) + 2.0 * request->answer_tokens;
            alone = work > alone ? work : alone;
        }
        assert_true(longest_rank(&made) <= least + alone + PROMPT_MOST + least / 16);
        free(one.entries);
        free(made.entries);
    }
}

/* ---- known cases ---- */

enum { CASE_MOST = 1000 };
static int32_t case_tokens[CASE_MOST][400];
static struct plan_request case_requests[CASE_MOST];

/* `families` of `members` prompts each, dealt in turn: `template` tokens that all begin with, `prefix` tokens of the family, and
 * `own` ones. */
static int64_t make_families(
    int64_t families, int64_t members, int32_t template, int32_t prefix, int32_t own) {
    for (int64_t i = 0; i < families * members; i++) {
        int32_t *tokens = case_tokens[i], count = template + prefix + own;
        for (int32_t t = 0; t < count; t++)
            tokens[t] = t < template ? t : t < template + prefix ? (int32_t)(i % families) : (int32_t)i;
        case_requests[i] =
            (struct plan_request){.request = i, .token_ids = tokens, .tokens = count, .answer_tokens = 10};
    }
    return families * members;
}

static void divides_a_huge_family(void **state) {
    (void)state;
    int64_t count = make_families(1, 400, 20, 300, 50);
    struct made made = make_plan(case_requests, count, 4, PLAN_FAMILIES);
    for (int32_t rank = 0; rank < 4; rank++)
        assert_int_equal(made.first[rank + 1] - made.first[rank], 100);
    for (int32_t rank = 0; rank < 4; rank++)
        assert_true(rank_work(&made, rank) == 320 + 100 * (50 + 20));
    free(made.entries);
    made = make_plan(case_requests, count, 4, PLAN_PREFIX_AFFINITY);
    assert_true(longest_rank(&made) == 320 + 400 * (50 + 20));
    free(made.entries);
}

static int ranks_of_family(const struct made *made, int64_t family, int64_t families) {
    int found = 0;
    for (int32_t rank = 0; rank < made->ranks; rank++) {
        bool has = false;
        for (int64_t i = made->first[rank]; i < made->first[rank + 1]; i++)
            has |= made->entries[i].request % families == family;
        found += has;
    }
    return found;
}

static void keeps_families_whole(void **state) {
    (void)state;
    int64_t count = make_families(20, 30, 5, 100, 40);
    struct made made = make_plan(case_requests, count, 4, PLAN_FAMILIES);
    for (int32_t rank = 0; rank < 4; rank++)
        assert_true(rank_work(&made, rank) == 5 + 5 * (100 + 30 * (40 + 20)));
    for (int64_t family = 0; family < 20; family++)
        assert_int_equal(ranks_of_family(&made, family, 20), 1);
    free(made.entries);
}

/* 5 families for 4 ranks: only cutting helps, and 3 cuts are enough. */
static void cuts_few_families(void **state) {
    (void)state;
    int64_t count = make_families(5, 80, 5, 100, 40);
    struct made made = make_plan(case_requests, count, 4, PLAN_FAMILIES);
    int parts = 0;
    for (int64_t family = 0; family < 5; family++)
        parts += ranks_of_family(&made, family, 5);
    assert_in_range(parts, 6, 8);
    assert_true(longest_rank(&made) <= (5 * (100 + 80 * 60.0)) / 4 + 105 + 60);
    free(made.entries);
}

/* Within a family that must be cut, the cut goes between smaller ones when that is as good. */
static void cuts_between_parts_of_a_family(void **state) {
    (void)state;
    enum { PARTS = 101, MEMBERS = 4 };
    int64_t count = make_families(PARTS, MEMBERS, 0, 330, 20);
    for (int64_t i = 0; i < count; i++)
        for (int32_t t = 0; t < 300; t++)
            case_tokens[i][t] = -1;
    struct made made = make_plan(case_requests, count, 2, PLAN_FAMILIES);
    for (int64_t part = 0; part < PARTS; part++)
        assert_int_equal(ranks_of_family(&made, part, PARTS), 1);
    assert_true(longest_rank(&made) <= 300 + (PARTS + 1) / 2 * (30 + MEMBERS * (20 + 20.0)));
    free(made.entries);
}

/* Each prefix is cheap, all of them are not. */
static void keeps_cheap_families_together(void **state) {
    (void)state;
    int64_t count = make_families(40, 25, 5, 15, 30);
    struct made made = make_plan(case_requests, count, 4, PLAN_FAMILIES);
    double sum = 0, least = 5 + 40 * (15 + 25 * (30 + 20.0));
    for (int32_t rank = 0; rank < 4; rank++)
        sum += rank_work(&made, rank);
    assert_true(sum <= least * (1 + 1 / 64.0) + 3 * 20);
    assert_true(longest_rank(&made) <= least / 4 * (1 + 1 / 16.0));
    free(made.entries);
}

static void begins_with_the_straggler(void **state) {
    (void)state;
    int64_t count = make_families(4, 25, 5, 50, 10);
    case_requests[70].answer_tokens = 5000;
    struct made made = make_plan(case_requests, count, 4, PLAN_FAMILIES);
    int32_t found = -1;
    for (int32_t rank = 0; rank < 4; rank++)
        for (int64_t i = made.first[rank]; i < made.first[rank + 1]; i++)
            if (made.entries[i].request == 70)
                found = rank;
    assert_true(found >= 0);
    assert_int_equal(made.entries[made.first[found]].request, 70);
    assert_true(longest_rank(&made) <= 10065); /* itself */
    free(made.entries);
    case_requests[70].answer_tokens = 11; /* long ones come first among equals, too */
    made = make_plan(case_requests, count, 1, PLAN_FAMILIES);
    assert_int_equal(made.entries[0].request, 70);
    for (int64_t i = 1; i < 25; i++)
        assert_int_equal(made.entries[i].request % 4, 70 % 4);
    free(made.entries);
}

static void counts_what_is_cached(void **state) {
    (void)state;
    int64_t count = make_families(2, 100, 5, 300, 10);
    for (int64_t i = 0; i < count; i += 2)
        case_requests[i].cached_tokens = 305; /* one family needs nothing but its ends */
    struct made made = make_plan(case_requests, count, 2, PLAN_FAMILIES);
    double all = rank_work(&made, 0) + rank_work(&made, 1);
    assert_true(longest_rank(&made) <= all / 2 + 305);
    assert_true(all <= 2 * 100 * 30 + 2 * 305);
    free(made.entries);
}

static void plans_nothing(void **state) {
    (void)state;
    for (int placement = PLAN_FAMILIES; placement <= PLAN_PREFIX_AFFINITY; placement++) {
        struct made made = make_plan(NULL, 0, 3, placement);
        assert_int_equal(made.first[1], 0);
        free(made.entries);
    }
}

/* Prompts of which each is the begin of the next, and many equal ones: the depths that a recursive way would not stand. */
static void stands_long_chains(void **state) {
    (void)state;
    enum { CHAIN = 20000 };
    int32_t *tokens = calloc(CHAIN, sizeof *tokens);
    struct plan_request *requests = calloc(2 * CHAIN, sizeof *requests);
    for (int64_t i = 0; i < 2 * CHAIN; i++)
        requests[i] = (struct plan_request){.request = i,
            .token_ids = tokens,
            .tokens = i < CHAIN ? (int32_t)(i * 7919 % CHAIN) : CHAIN,
            .answer_tokens = 1};
    struct made made = make_plan(requests, 2 * CHAIN, 1, PLAN_FAMILIES);
    int64_t computed = 0;
    for (int64_t i = 0; i < 2 * CHAIN; i++)
        computed += made.entries[i].tokens - made.entries[i].shared;
    assert_int_equal(computed, CHAIN);
    free(made.entries);
    free(requests);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorts_prompts),
        cmocka_unit_test(places_each_request_once),
        cmocka_unit_test(balances),
        cmocka_unit_test(divides_a_huge_family),
        cmocka_unit_test(keeps_families_whole),
        cmocka_unit_test(cuts_few_families),
        cmocka_unit_test(cuts_between_parts_of_a_family),
        cmocka_unit_test(keeps_cheap_families_together),
        cmocka_unit_test(begins_with_the_straggler),
        cmocka_unit_test(counts_what_is_cached),
        cmocka_unit_test(plans_nothing),
        cmocka_unit_test(stands_long_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

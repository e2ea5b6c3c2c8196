#include "prompts_at_random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 400, MOST_RANKS = 8 };

static const struct plan_costs costs = {1, 2};
static struct random_prompts prompts;
static struct plan_entry entries[PROMPTS_MOST + 1];
static int64_t first[MOST_RANKS + 1];

static int32_t plan_rank(const struct plan_entry *entry) {
    int32_t rank = 0;
    while (entry - entries >= first[rank + 1])
        rank++;
    return rank;
}

static int32_t entries_shared(const struct plan_entry *a, const struct plan_entry *b) {
    return plan_rank(a) == plan_rank(b)
               ? plain_shared(find_prompt(&prompts, a->request), find_prompt(&prompts, b->request))
               : 0;
}

static struct queues *create(int32_t ranks) {
    struct queues *queues;
    assert_int_equal(queues_create(entries, prompts.count, first, ranks, &costs, &queues), OK);
    return queues;
}

static double computed(const struct queue_next *next) {
    const struct plan_entry *entry = next->entry;
    int32_t held = next->shared > entry->cached_tokens ? next->shared : entry->cached_tokens;
    return costs.prompt_token * (entry->tokens > held ? entry->tokens - held : 0) +
           costs.answer_token * entry->answer_tokens;
}

static void plan_prompts(uint64_t seed, int32_t ranks) {
    make_prompts(&prompts, seed, seed % 2, seed % 5 == 0);
    for (int64_t i = 0; seed % 3 == 0 && i < prompts.count; i++)
        prompts.requests[i].cached_tokens =
            (int32_t)draw_below(&prompts.state, prompts.requests[i].tokens + 1);
    assert_int_equal(
        plan_make(prompts.requests, prompts.count, ranks, &costs, PLAN_FAMILIES, entries, first), OK);
}

/* ---- one rank after another, nothing moved ---- */

/* All lengths above `shared` at which later entries of the rank branch off, ascending. */
static int32_t plain_branches(
    const struct plan_entry *entry, int64_t end, int32_t shared, int32_t *branches) {
    bool is_branch[PROMPT_MOST + 1] = {0};
    int32_t count = 0;
    for (const struct plan_entry *other = entry + 1; other < entries + end; other++)
        is_branch[entries_shared(entry, other)] = true;
    for (int32_t length = shared + 1; length <= PROMPT_MOST; length++)
        if (is_branch[length])
            branches[count++] = length;
    return count;
}

static void check_branches(
    const struct queue_next *next, const int32_t *all, int32_t all_count, int32_t least) {
    int32_t last = next->shared, k = 0, expected = 0;
    for (int32_t i = 0; i < next->branch_count; i++) {
        assert_true(next->branches[i] - last >= least);
        while (k < all_count && all[k] < next->branches[i])
            k++;
        assert_true(k < all_count && all[k] == next->branches[i]);
        last = next->branches[i];
    }
    last = next->shared;
    for (k = 0; k < all_count; k++)
        if (all[k] - last >= least) {
            last = all[k];
            expected++;
        }
    if (expected <= MOST_BRANCHES)
        assert_int_equal(next->branch_count, expected);
    else
        assert_in_range(next->branch_count, 1, MOST_BRANCHES);
}

static void takes_in_the_order_of_the_plan(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        int32_t ranks = 1 + (int32_t)(seed % 3), least = 1 + (int32_t)(seed % 4) * 3;
        plan_prompts(seed, ranks);
        struct queues *queues = create(ranks);
        struct queue_next next;
        for (int32_t rank = 0; rank < ranks; rank++)
            for (int64_t i = first[rank]; i < first[rank + 1]; i++) {
                double before = queues_cost(queues, rank);
                assert_int_equal(queues_left(queues, rank), first[rank + 1] - i);
                queues_take(queues, rank, least, &next);
                assert_ptr_equal(next.entry, &entries[i]);
                assert_int_equal(next.shared, entries[i].shared);
                assert_true(before - queues_cost(queues, rank) == computed(&next));
                int32_t all[PROMPT_MOST],
                    count = plain_branches(next.entry, first[rank + 1], next.shared, all);
                check_branches(&next, all, count, least);
            }
        for (int32_t rank = 0; rank < ranks; rank++) {
            queues_take(queues, rank, least, &next);
            assert_null(next.entry);
            assert_int_equal(queues_left(queues, rank), 0);
            assert_int_equal(queues_taken(queues, rank), first[rank + 1] - first[rank]);
            assert_true(queues_cost(queues, rank) == 0);
        }
        queues_free(queues);
    }
}

/* ---- ranks that take and move at random, each with queues of its own ---- */

struct replicas {
    int32_t ranks;
    struct queues *of[MOST_RANKS];
    const struct plan_entry *last[MOST_RANKS];
    bool taken[PROMPTS_MOST];
    int64_t count, moved;
};

static void take(struct replicas *replicas, int32_t rank, struct queue_next *next) {
    queues_take(replicas->of[rank], rank, 1, next);
    if (!next->entry)
        return;
    assert_false(replicas->taken[next->entry - entries]);
    replicas->taken[next->entry - entries] = true;
    replicas->count++;
    const struct plan_entry *last = replicas->last[rank];
    assert_int_equal(next->shared, last ? entries_shared(last, next->entry) : 0);
    int32_t before = next->shared;
    for (int32_t i = 0; i < next->branch_count; i++) {
        bool found = false; /* a request that waits branches off here */
        for (int64_t k = 0; k < prompts.count; k++)
            found |= !replicas->taken[k] && entries_shared(&entries[k], next->entry) == next->branches[i];
        assert_true(found && next->branches[i] > before);
        before = next->branches[i];
    }
    replicas->last[rank] = next->entry;
}

static void agree(struct replicas *replicas, const int64_t *hungry, const double *busy) {
    int64_t taken[MOST_RANKS], moved[MOST_RANKS];
    for (int32_t rank = 0; rank < replicas->ranks; rank++)
        taken[rank] = queues_taken(replicas->of[rank], rank);
    for (int32_t rank = 0; rank < replicas->ranks; rank++) {
        assert_int_equal(queues_agree(replicas->of[rank], taken, hungry, busy, &moved[rank]), OK);
        assert_int_equal(moved[rank], moved[0]);
    }
    replicas->moved += moved[0];
    for (int32_t of = 1; of < replicas->ranks; of++)
        for (int32_t rank = 0; rank < replicas->ranks; rank++) {
            assert_int_equal(queues_left(replicas->of[of], rank), queues_left(replicas->of[0], rank));
            assert_int_equal(queues_taken(replicas->of[of], rank), queues_taken(replicas->of[0], rank));
            assert_true(queues_cost(replicas->of[of], rank) == queues_cost(replicas->of[0], rank));
        }
}

/* Some take some; then those without work are hungry, most of the time. */
static void take_and_agree(struct replicas *replicas, uint64_t *state) {
    int64_t hungry[MOST_RANKS];
    double busy[MOST_RANKS];
    struct queue_next next;
    for (int32_t rank = 0; rank < replicas->ranks; rank++) {
        for (int64_t n = draw_below(state, 2 + 5 * (rank % 3)); n > 0; n--)
            take(replicas, rank, &next);
        hungry[rank] = draw_below(state, 4) > 0; /* those that have work aren't taken at their word */
        busy[rank] = (double)draw_below(state, 50);
    }
    agree(replicas, hungry, busy);
}

static void keeps_replicas_alike(void **state) {
    (void)state;
    int64_t moved = 0;
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        struct replicas replicas = {.ranks = 2 + (int32_t)(seed % 7)};
        plan_prompts(seed, seed % 4 ? replicas.ranks : 1);
        for (int32_t rank = 1; seed % 4 == 0 && rank <= replicas.ranks; rank++)
            first[rank] = prompts.count; /* one rank has all */
        for (int32_t rank = 0; rank < replicas.ranks; rank++)
            replicas.of[rank] = create(replicas.ranks);
        for (int round = 0; round < 12; round++)
            take_and_agree(&replicas, &prompts.state);
        for (int32_t rank = 0; rank < replicas.ranks; rank++) {
            double expected = queues_cost(replicas.of[rank], rank), sum = 0;
            struct queue_next next;
            for (take(&replicas, rank, &next); next.entry; take(&replicas, rank, &next))
                sum += computed(&next);
            assert_true(sum == expected);
        }
        assert_int_equal(replicas.count, prompts.count);
        moved += replicas.moved;
        for (int32_t rank = 0; rank < replicas.ranks; rank++)
            queues_free(replicas.of[rank]);
    }
    assert_true(moved > ROUNDS); /* else nothing was tried */
}

/* ---- known cases ---- */

/* families[i] requests of 10 tokens of answer each, with 100 tokens of prompt, of which 80 are their family's; all for rank 0. */
static void make_case(const int32_t *families, int32_t count, int32_t ranks) {
    prompts.count = 0;
    for (int32_t f = 0; f < count; f++)
        for (int32_t i = 0; i < families[f]; i++) {
            entries[prompts.count] = (struct plan_entry){.request = 1000 + 3 * prompts.count,
                .tokens = 100,
                .shared = i ? 80 : 0,
                .answer_tokens = 10};
            prompts.count++;
        }
    for (int32_t rank = 1; rank <= ranks; rank++)
        first[rank] = prompts.count;
    first[0] = 0;
}

static const int64_t nobody[MOST_RANKS];
static const double idle[MOST_RANKS];

static void feeds_idle_ranks(void **state) {
    (void)state;
    make_case((const int32_t[]){100}, 1, 4);
    struct queues *queues = create(4);
    int64_t moved, hungry[4] = {0, 1, 1, 1};
    assert_int_equal(queues_agree(queues, nobody, nobody, idle, &moved), OK);
    assert_int_equal(moved, 0);
    assert_int_equal(queues_agree(queues, nobody, hungry, idle, &moved), OK);
    assert_in_range(moved, 70, 75);
    for (int32_t rank = 0; rank < 4; rank++)
        assert_in_range(queues_left(queues, rank), 23, 28);
    queues_free(queues);
}

static void moves_whole_families(void **state) {
    (void)state;
    make_case((const int32_t[]){10, 10, 10, 10}, 4, 2);
    struct queues *queues = create(2);
    int64_t moved, taken[2] = {2, 0}, hungry[2] = {0, 1};
    struct queue_next next;
    queues_take(queues, 0, 1, &next);
    queues_take(queues, 0, 1, &next);
    const double busy[2] = {200, 0};
    assert_int_equal(queues_agree(queues, taken, hungry, busy, &moved), OK);
    assert_int_equal(moved, 20);
    queues_take(queues, 1, 1, &next);
    assert_ptr_equal(next.entry, &entries[20]);
    queues_free(queues);
}

/* A rank with much to do before keeps the one that is next, until it is the only one. */
static void leaves_the_front(void **state) {
    (void)state;
    make_case((const int32_t[]){5}, 1, 2);
    struct queues *queues = create(2);
    int64_t moved, taken[2] = {0, 4}, hungry[2] = {0, 1};
    const double busy[2] = {10000, 0};
    struct queue_next next;
    assert_int_equal(queues_agree(queues, nobody, hungry, busy, &moved), OK);
    assert_int_equal(moved, 4);
    assert_int_equal(queues_left(queues, 0), 1);
    for (int i = 0; i < 4; i++)
        queues_take(queues, 1, 1, &next);
    assert_int_equal(queues_agree(queues, taken, hungry, busy, &moved), OK);
    assert_int_equal(moved, 1);
    queues_free(queues);
}

/* Two parts that follow each other in the plan are run in its order. */
static void joins_parts(void **state) {
    (void)state;
    make_case((const int32_t[]){10, 10, 7, 7}, 4, 2);
    struct queues *queues = create(2);
    int64_t moved, hungry[2] = {0, 1};
    struct queue_next next;
    assert_int_equal(queues_agree(queues, nobody, hungry, idle, &moved), OK);
    assert_int_equal(moved, 15);
    for (int64_t i = 19; i < 34; i++) {
        queues_take(queues, 1, 1, &next);
        assert_ptr_equal(next.entry, &entries[i]);
        assert_int_equal(next.shared, i == 19 ? 0 : entries[i].shared);
    }
    assert_true(queues_cost(queues, 1) == 0);
    queues_free(queues);
}

static void leaves_what_is_next(void **state) {
    (void)state;
    make_case((const int32_t[]){2}, 1, 2);
    struct queues *queues = create(2);
    int64_t moved, taken[2] = {0, 0}, hungry[2] = {0, 1};
    double busy[2] = {30, 0};
    struct queue_next next;
    assert_int_equal(queues_agree(queues, taken, hungry, busy, &moved), OK);
    assert_int_equal(moved, 1);
    queues_take(queues, 1, 1, &next);
    assert_ptr_equal(next.entry, &entries[1]);
    assert_int_equal(next.shared, 0);
    taken[1] = 1;
    busy[0] = 0; /* it would take it itself as soon */
    assert_int_equal(queues_agree(queues, taken, hungry, busy, &moved), OK);
    assert_int_equal(moved, 0);
    busy[0] = 50; /* it has much to do before */
    assert_int_equal(queues_agree(queues, taken, hungry, busy, &moved), OK);
    assert_int_equal(moved, 1);
    queues_take(queues, 1, 1, &next);
    assert_ptr_equal(next.entry, &entries[0]);
    assert_int_equal(next.shared, 80); /* with the one after it in the plan, which went before */
    queues_free(queues);
}

static void follows_costs(void **state) {
    (void)state;
    make_case((const int32_t[]){3}, 1, 2);
    struct queues *queues = create(2);
    assert_true(queues_cost(queues, 0) == 100 + 2 * 20 + 2 * 30.0);
    queues_set_costs(queues, &(struct plan_costs){0.5, 0});
    assert_true(queues_cost(queues, 0) == (100 + 2 * 20) / 2.0);
    queues_free(queues);
}

static void refuses_numbers_that_do_not_fit(void **state) {
    (void)state;
    make_case((const int32_t[]){3}, 1, 2);
    struct queues *queues = create(2);
    struct queue_next next;
    int64_t moved;
    assert_int_equal(queues_agree(queues, (const int64_t[]){4, 0}, nobody, idle, &moved), ERROR_INTERNAL);
    assert_int_equal(queues_agree(queues, (const int64_t[]){0, 1}, nobody, idle, &moved), ERROR_INTERNAL);
    queues_take(queues, 0, 1, &next);
    assert_int_equal(queues_agree(queues, (const int64_t[]){0, 0}, nobody, idle, &moved), ERROR_INTERNAL);
    assert_non_null(strstr(failure_message(), "rank 0"));
    queues_free(queues);
    queues_free(NULL);
}

/* More branches than there is room for: those that are kept are spread. */
static void spreads_branches(void **state) {
    (void)state;
    prompts.count = PROMPTS_MOST;
    for (int32_t i = 0; i < PROMPTS_MOST; i++)
        entries[i] = (struct plan_entry){.request = 1000 + 3 * i,
            .tokens = 10 * PROMPTS_MOST,
            .shared = i ? 10 * (PROMPTS_MOST - i) : 0,
            .answer_tokens = 1};
    first[0] = 0;
    first[1] = PROMPTS_MOST;
    struct queues *queues = create(1);
    struct queue_next next;
    queues_take(queues, 0, 1, &next);
    assert_in_range(next.branch_count, MOST_BRANCHES / 2, MOST_BRANCHES);
    for (int32_t i = 0; i < next.branch_count; i++)
        assert_true(next.branches[i] - (i ? next.branches[i - 1] : 0) >= 10 * PROMPTS_MOST / 16);
    queues_take(queues, 0, 1, &next);
    assert_int_equal(next.branch_count, 0); /* all that follow branch off where something is held already */
    queues_free(queues);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_in_the_order_of_the_plan),
        cmocka_unit_test(keeps_replicas_alike),
        cmocka_unit_test(feeds_idle_ranks),
        cmocka_unit_test(moves_whole_families),
        cmocka_unit_test(leaves_the_front),
        cmocka_unit_test(joins_parts),
        cmocka_unit_test(leaves_what_is_next),
        cmocka_unit_test(follows_costs),
        cmocka_unit_test(refuses_numbers_that_do_not_fit),
        cmocka_unit_test(spreads_branches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

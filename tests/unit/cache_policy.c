/* The prefix cache's policy: what is worth less goes first. */
#include "cache/policy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define HOUR 3600.0

static const double defaults[CACHE_TRAFFIC_KINDS];

static struct policy_facts facts(double created, double last_used, int64_t uses) {
    return (struct policy_facts){
        .created = created, .last_used = last_used, .uses = uses, .bytes = 100000, .cost_seconds = 0.1F};
}

static void expire_after_their_keep_time(void **state) {
    struct policy policy = policy_make(CACHE_EVICT_LEAST_VALUE, defaults);
    struct policy_facts entry = facts(0, 1000, 3);
    static const double hours[CACHE_TRAFFIC_KINDS] = {72, 72, 168};
    (void)state;
    for (int kind = 0; kind < CACHE_TRAFFIC_KINDS; kind++) {
        entry.traffic = (enum cache_traffic)kind;
        assert_false(policy_expired(&policy, &entry, 1000 + hours[kind] * HOUR - 1));
        assert_true(policy_expired(&policy, &entry, 1000 + hours[kind] * HOUR + 1));
        assert_false(policy_expired(&policy, &entry, 0)); /* a clock that was set back */
    }
    policy = policy_make(CACHE_EVICT_OLDEST, (const double[CACHE_TRAFFIC_KINDS]){1, 0, 2});
    entry.traffic = CACHE_TRAFFIC_OTHER;
    assert_true(policy_expired(&policy, &entry, 1001 + HOUR));
    entry.traffic = CACHE_TRAFFIC_AGENT;
    assert_false(policy_expired(&policy, &entry, 1001 + 71 * HOUR));
    entry.traffic = CACHE_TRAFFIC_CHAT;
    assert_true(policy_expired(&policy, &entry, 1001 + 2 * HOUR));
}

static double worth(enum cache_eviction eviction, struct policy_facts entry, double now) {
    struct policy policy = policy_make(eviction, defaults);
    return policy_worth(&policy, &entry, now);
}

static void orders_by_time(void **state) {
    (void)state;
    struct policy_facts early = facts(10, 500, 9), late = facts(20, 400, 0);
    assert_true(worth(CACHE_EVICT_OLDEST, early, 1000) < worth(CACHE_EVICT_OLDEST, late, 1000));
    assert_true(worth(CACHE_EVICT_LEAST_RECENT, early, 1000) > worth(CACHE_EVICT_LEAST_RECENT, late, 1000));
}

static double value(struct policy_facts entry) {
    return worth(CACHE_EVICT_LEAST_VALUE, entry, 20 * HOUR);
}

static void values_what_it_should(void **state) {
    const struct policy_facts base = facts(10 * HOUR, 15 * HOUR, 2);
    struct policy_facts other = base;
    (void)state;
    other.cost_seconds *= 2;
    assert_float_equal(value(other) / value(base), 2, 1e-6);
    other = base;
    other.bytes *= 4;
    assert_float_equal(value(other) / value(base), 0.25, 1e-6);
    other = base;
    other.uses++;
    assert_true(value(other) > value(base));
    other = base;
    other.last_used += HOUR;
    assert_true(value(other) > value(base));
    other = base;
    other.created += HOUR; /* as many uses in less time */
    assert_true(value(other) > value(base));
    other = base;
    other.traffic = CACHE_TRAFFIC_CHAT; /* which is kept for longer */
    assert_true(value(other) > value(base));
    other = base;
    other.last_used = 25 * HOUR; /* in the future: as now */
    assert_true(value(other) > value(base));
    other.created = 24 * HOUR;
    assert_true(value(other) < 1);
    other = base;
    other.last_used = -100 * HOUR;
    assert_true(value(other) < value(base) / 2);
}

/* No cost, or a nonsense one, is worth little and never negative or not a number. */
static void bears_nonsense(void **state) {
    static const float costs[] = {0, -1, NAN, -1e30F};
    const struct policy_facts base = facts(10 * HOUR, 15 * HOUR, 2);
    (void)state;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        struct policy_facts other = base;
        other.cost_seconds = costs[i];
        assert_true(value(other) > 0 && value(other) < value(base));
    }
}

/* Of a prompt's blocks the last goes first, though later ones cost more: up to twice as much after POLICY_DEPTH tokens. */
static void keeps_beginnings(void **state) {
    (void)state;
    for (int slope = 0; slope <= 4; slope++) {
        double before = INFINITY;
        for (int32_t first = 0; first < 200000; first += 128) {
            struct policy_facts block = facts(10 * HOUR, 15 * HOUR, 2);
            block.first_token = first;
            block.cost_seconds = (float)(0.1 * (1 + slope / 4.0 * first / POLICY_DEPTH));
            assert_true(value(block) <= before * (1 + 1e-6));
            before = value(block);
        }
    }
    assert_true(policy_before(1, 0, 2, 128));
    assert_false(policy_before(2, 128, 1, 0));
    assert_true(policy_before(1, 128, 1, 0));
    assert_false(policy_before(1, 0, 1, 128));
    assert_false(policy_before(1, 0, 1, 0));
}

/* Blocks of a prompt that are put one after another while it is computed: the last goes first, by every policy. */
static void aligns_times(void **state) {
    (void)state;
    for (int eviction = CACHE_EVICT_LEAST_VALUE; eviction <= CACHE_EVICT_OLDEST; eviction++) {
        double before = INFINITY;
        for (int32_t first = 0; first < 100000; first += 128) {
            double put = 10 * HOUR + first * 0.015; /* 67 tokens a second */
            struct policy_facts block = facts(put, put, 0);
            block.first_token = first;
            policy_align_times(&block);
            double now = worth((enum cache_eviction)eviction, block, 20 * HOUR);
            assert_true(now < before);
            before = now;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(expire_after_their_keep_time),
        cmocka_unit_test(orders_by_time), cmocka_unit_test(values_what_it_should),
        cmocka_unit_test(bears_nonsense), cmocka_unit_test(keeps_beginnings), cmocka_unit_test(aligns_times)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

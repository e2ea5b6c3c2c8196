#include "schedule/step_costs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct plan_costs guess = {1, 2};

static void assert_near(double found, double expected) {
    if (fabs(found - expected) > 1e-3 * fabs(expected) + 1e-9)
        fail_msg("found %g, expected %g", found, expected);
}

static void finds_what_made_the_times(void **state) {
    (void)state;
    struct step_costs sums = {0}, other = {0};
    for (int64_t i = 0; i < 1000; i++) {
        int64_t prompt = i % 7 * 64, answer = i * 37 % 65;
        double noise = i % 2 ? 1.01 : 0.99;
        step_costs_add(i % 3 ? &sums : &other, prompt, answer,
            noise * (0.0004 * (double)prompt + 0.0015 * (double)answer));
    }
    int64_t *to = &sums.steps, *from = &other.steps;
    for (int i = 0; i < STEP_COSTS_FIELDS; i++)
        to[i] += from[i];
    struct plan_costs found = step_costs_solve(&sums, &guess);
    assert_true(fabs(found.prompt_token - 0.0004) < 0.00001);
    assert_true(fabs(found.answer_token - 0.0015) < 0.00005);
}

static void keeps_what_steps_do_not_tell(void **state) {
    (void)state;
    struct step_costs sums = {0};
    struct plan_costs found = step_costs_solve(&sums, &guess);
    assert_near(found.prompt_token, 1);
    assert_near(found.answer_token, 2);
    for (int i = 0; i < 10; i++)
        step_costs_add(&sums, 100 + i, 0, 0.01 * (100 + i)); /* prefill only */
    found = step_costs_solve(&sums, &guess);
    assert_near(found.prompt_token, 0.01);
    assert_near(found.answer_token, 0.02);
    sums = (struct step_costs){0};
    for (int i = 1; i < 10; i++)
        step_costs_add(&sums, 8 * i, 4 * i, 0.16 * i); /* always as many of both */
    found = step_costs_solve(&sums, &guess);
    assert_near(found.prompt_token, 0.01);
    assert_near(found.answer_token, 0.02);
}

static void is_never_negative(void **state) {
    (void)state;
    struct step_costs sums = {0};
    step_costs_add(&sums, 100, 10, 1);
    step_costs_add(&sums, 100, 20, 0.5); /* more work in less time */
    struct plan_costs found = step_costs_solve(&sums, &guess);
    assert_true(found.answer_token >= 0 && found.prompt_token > 0);
    sums = (struct step_costs){0};
    step_costs_add(&sums, 10, 100, 1);
    step_costs_add(&sums, 20, 100, 0.5);
    found = step_costs_solve(&sums, &guess);
    assert_true(found.prompt_token >= 0 && found.answer_token > 0);
}

static void stands_any_number(void **state) {
    (void)state;
    struct step_costs sums = {0};
    static const double times[] = {-1, 0, 1e-9, 1, 86400, 1e9, NAN, INFINITY};
    static const int64_t counts[] = {-1, 0, 1, 512, 1 << 24, INT64_MAX, INT64_MIN};
    for (int round = 0; round < 3000; round++)
        for (int t = 0; t < 8; t++)
            for (int c = 0; c < 49; c++)
                step_costs_add(&sums, counts[c % 7], counts[c / 7], times[t]);
    const int64_t *fields = &sums.steps;
    for (int i = 0; i < STEP_COSTS_FIELDS; i++)
        assert_in_range(fields[i], 0, INT64_C(1) << 47); /* 65,536 ranks' sums can be added up */
    struct plan_costs found = step_costs_solve(&sums, &guess);
    assert_true(found.prompt_token >= 0 && found.answer_token >= 0);
    struct step_costs nothing = {0};
    step_costs_add(&nothing, 5, 5, NAN);
    step_costs_add(&nothing, 0, 0, 1);
    assert_int_equal(nothing.steps, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_made_the_times),
        cmocka_unit_test(keeps_what_steps_do_not_tell),
        cmocka_unit_test(is_never_negative),
        cmocka_unit_test(stands_any_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

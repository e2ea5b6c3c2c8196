/* The stopwatch's parts add up to the time that passed, and claims move time between them. */
#include "base/stopwatch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h> /* strstr */
#include <time.h>   /* nanosleep, clock_gettime */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void rest(double seconds) {
    double end = now() + seconds;
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
    while (now() < end) {
    }
}

static double total(const double *seconds) {
    double sum = 0;
    for (int i = 0; i < WORK_PARTS; i++)
        sum += seconds[i];
    return sum;
}

static void test_parts(void **state) {
    (void)state;
    double before[WORK_PARTS], after[WORK_PARTS];
    stopwatch_read(before);
    double begin = now();
    enum work_part outer = stopwatch_switch(WORK_ENGRAM);
    rest(0.02);
    assert_int_equal(stopwatch_switch(WORK_EXCHANGE), WORK_ENGRAM);
    rest(0.01);
    assert_int_equal(stopwatch_switch(outer), WORK_EXCHANGE);
    double passed = now() - begin;
    stopwatch_read(after);
    double engram = after[WORK_ENGRAM] - before[WORK_ENGRAM],
           exchange = after[WORK_EXCHANGE] - before[WORK_EXCHANGE];
    assert_true(engram >= 0.02 && exchange >= 0.01 && engram + exchange <= passed + 1e-6);
    assert_true(total(after) - total(before) >= passed - 1e-6);
}

static void test_claims(void **state) {
    (void)state;
    double before[WORK_PARTS], after[WORK_PARTS];
    enum work_part outer = stopwatch_switch(WORK_WAITING);
    stopwatch_read(before);
    rest(0.02);
    stopwatch_claim(WORK_EXCHANGE, 0.005);
    stopwatch_read(after);
    double waiting = after[WORK_WAITING] - before[WORK_WAITING];
    double exchange = after[WORK_EXCHANGE] - before[WORK_EXCHANGE];
    assert_true(exchange > 0.0049 && exchange < 0.0051);
    assert_true(waiting >= 0.015);
    stopwatch_claim(WORK_EXCHANGE, 1000); /* no more than the stretch has */
    stopwatch_read(before);
    assert_true(before[WORK_WAITING] >= after[WORK_WAITING]);
    assert_true(before[WORK_EXCHANGE] - after[WORK_EXCHANGE] < 1);
    assert_int_equal(stopwatch_switch(outer), WORK_WAITING);
}

static void test_names(void **state) {
    (void)state;
    for (int i = 0; i < WORK_PARTS; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(work_part_name(i), work_part_name(j));
}

static void test_trace(void **state) {
    (void)state;
    assert_int_equal(trace_open("/nonexistent/trace", 0), ERROR_IO);
    assert_non_null(strstr(failure_message(), "/nonexistent/trace"));
    trace_step(1, 2, 3); /* without a trace: nothing */
    assert_int_equal(trace_close(), OK);
    assert_int_equal(trace_open("/dev/full", 0), OK);
    trace_step(1, 2, 3);
    assert_int_equal(trace_close(), ERROR_IO);
    assert_int_equal(trace_close(), OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_claims),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

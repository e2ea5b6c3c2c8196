/* The end of the allocation: what users and Slurm say, and what is no time. */
#include "campaign/walltime.h"
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h> /* setenv */
#include <string.h> /* strstr */
#include <time.h>   /* tzset */

#include <cmocka.h>

static const double NOW = 1900000000; /* 2030-03-17 17:46:40 UTC, a Sunday */

static int in_utc(void **state) {
    (void)state;
    setenv("TZ", "UTC", 1);
    tzset();
    unsetenv("SLURM_JOB_END_TIME");
    return 0;
}

static void expect_end(const char *until, double expected) {
    double end = -1;
    assert_int_equal(walltime_end(until, NOW, &end), OK);
    assert_true(end == expected);
}

static void test_forms(void **state) {
    (void)state;
    expect_end(NULL, 0);
    expect_end("never", 0);
    expect_end("+90", NOW + 90);
    expect_end("+0.5", NOW + 0.5);
    expect_end("@1900000001", NOW + 1);
    expect_end("17:47", NOW + 20);
    expect_end("17:46", NOW - 40 + 86400); /* has passed today */
    expect_end("00:00", NOW + 22400);
    expect_end("2030-03-17T17:47", NOW + 20);
    expect_end("2030-03-17T17:46:41", NOW + 1);
    expect_end("2030-04-01T17:46:40", NOW + 15 * 86400);
}

static void test_daylight_saving(void **state) {
    (void)state;
    setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset();
    double end,
        before = 1901059200; /* 2030-03-30 00:00 UTC: 01:00 CET, a day before the clock is put forward */
    assert_int_equal(walltime_end("00:30", before, &end), OK);
    assert_true(end == before + 23.5 * 3600);
    before += 86400; /* 01:00 CET; 03:00 comes after one hour */
    assert_int_equal(walltime_end("03:00", before, &end), OK);
    assert_true(end == before + 3600);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const wrong[] = {"", "+", "+-5", "+5s", "+inf", "+nan", "@", "@1", "5", "24:00",
        "12:60", "-1:30", "12:30x", "12:", "tomorrow", "2030-13-01T00:00", "2030-00-01T00:00",
        "2031-02-29T00:00", "2030-04-31T12:00", "2030-03-17T17:46:60",
        "2030-03-17T17:46:", "2030-03-17T17:47Z", "2030-03-17", "2030-03-17T17:46:40", "2029-12-31T23:59",
        "NEVER", "+1e300"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        double end;
        if (walltime_end(wrong[i], NOW, &end) != ERROR_USAGE)
            fail_msg("--until %s was taken", wrong[i]);
        assert_non_null(strstr(failure_message(), "--until"));
        assert_non_null(strstr(failure_message(), wrong[i]));
    }
}

static void test_slurm(void **state) {
    (void)state;
    setenv("SLURM_JOB_END_TIME", "1900003600", 1);
    expect_end(NULL, NOW + 3600);
    expect_end("never", 0);
    expect_end("+5", NOW + 5);
    setenv("SLURM_JOB_END_TIME", "1899999999", 1); /* of another job: passed on by a shell that outlived it */
    expect_end(NULL, 0);
    setenv("SLURM_JOB_END_TIME", "soon", 1);
    expect_end(NULL, 0);
    setenv("SLURM_JOB_END_TIME", "", 1);
    expect_end(NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_forms, in_utc),
        cmocka_unit_test_setup(test_daylight_saving, in_utc),
        cmocka_unit_test_setup(test_refused, in_utc),
        cmocka_unit_test_setup(test_slurm, in_utc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

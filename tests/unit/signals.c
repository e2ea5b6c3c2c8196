/* Stop signals: noted once, at once fatal only when repeated in earnest. Each case is a process of its own. */
#include "base/signals.h"
#include "base/error.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h> /* strcmp */
#include <sys/wait.h>
#include <unistd.h> /* fork, _exit, usleep */

#include <cmocka.h>

/* Runs `body` in a child; the child's exit code, or 1000 + the signal that ended it. */
static int in_child(int (*body)(void)) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signals_install();
        alarm(20);
        _exit(body());
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int nothing(void) {
    return signals_stop_requested() || strcmp(signals_name(), "") != 0;
}

static int each_is_noted(void) {
    raise(SIGUSR1);
    if (!signals_stop_requested() || strcmp(signals_name(), "SIGUSR1") != 0)
        return 1;
    raise(SIGUSR1);
    raise(SIGTERM); /* the first one that could end it */
    return strcmp(signals_name(), "SIGUSR1") == 0 ? 0 : 2;
}

static int terminate(void) {
    raise(SIGTERM);
    return signals_stop_requested() && strcmp(signals_name(), "SIGTERM") == 0 ? 0 : 1;
}

static int doubled(void) {
    raise(SIGINT);
    raise(SIGTERM); /* the same wish by another way */
    return signals_stop_requested() ? 0 : 1;
}

static int insisted(void) {
    raise(SIGINT);
    usleep(1100000);
    raise(SIGINT);
    return 1; /* not reached */
}

static int broken_pipe(void) {
    int ends[2];
    if (pipe(ends) != 0 || close(ends[0]) != 0)
        return 1;
    return write(ends[1], "x", 1) == -1 && !signals_stop_requested() ? 0 : 2;
}

static void test_signals(void **state) {
    (void)state;
    assert_int_equal(in_child(nothing), 0);
    assert_int_equal(in_child(each_is_noted), 0);
    assert_int_equal(in_child(terminate), 0);
    assert_int_equal(in_child(doubled), 0);
    assert_int_equal(in_child(insisted), ERROR_STOPPED);
    assert_int_equal(in_child(broken_pipe), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_signals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "base/signals.h"

#include "base/beacon.h"
#include "base/error.h" /* ERROR_STOPPED */

#include <errno.h>  /* errno */
#include <signal.h> /* sigaction */
#include <stddef.h> /* NULL */
#include <string.h> /* memset, strlen */
#include <time.h>   /* clock_gettime */
#include <unistd.h> /* write, _exit */

static volatile sig_atomic_t first_signal;  /* 0: none yet */
static volatile sig_atomic_t stop_signals;  /* SIGINT and SIGTERM so far */
static volatile struct timespec first_time; /* of the first signal, on the monotonic clock */
static volatile struct timespec first_stop; /* of the first of SIGINT and SIGTERM */

static void say(const char *text) {
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written; /* nobody is left to hear of it */
}

/* Only calls what POSIX allows in a signal handler. */
static void note_signal(int signal_number) {
    int error = errno;
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (!first_signal) {
        first_time.tv_sec = now.tv_sec;
        first_time.tv_nsec = now.tv_nsec;
        first_signal = signal_number;
    }
    if (signal_number == SIGUSR1) {
        errno = error;
        return;
    }
    if (!stop_signals) {
        first_stop.tv_sec = now.tv_sec;
        first_stop.tv_nsec = now.tv_nsec;
        stop_signals = 1;
    } else if ((double)(now.tv_sec - first_stop.tv_sec) + 1e-9 * (double)(now.tv_nsec - first_stop.tv_nsec) >
               1) {
        say("nocturne: stopped at once by a second signal; finished work is kept, run the same command "
            "again\n");
        beacon_leave(BEACON_LEFT_ALONE);
        _exit(ERROR_STOPPED);
    }
    errno = error;
}

void signals_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    /* One at a time: the handler's variables need no further care. */
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

bool signals_stop_requested(void) {
    return first_signal != 0;
}

double signals_stop_age(void) {
    struct timespec now = {0};
    if (!first_signal)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - first_time.tv_sec) + 1e-9 * (double)(now.tv_nsec - first_time.tv_nsec);
}

const char *signals_name(void) {
    switch (first_signal) {
    case SIGINT:
        return "SIGINT";
    case SIGTERM:
        return "SIGTERM";
    case SIGUSR1:
        return "SIGUSR1";
    default:
        return "";
    }
}

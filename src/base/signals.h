/* Signals that ask for an early, orderly end: Ctrl-C, the scheduler's SIGTERM, and the warning signal SIGUSR1. */
#ifndef NOCTURNE_BASE_SIGNALS_H
#define NOCTURNE_BASE_SIGNALS_H

#include <stdbool.h> /* bool */

/* From now on SIGINT, SIGTERM and SIGUSR1 only note that a stop is requested; a further SIGINT or SIGTERM, more than a second
 * after the first one of them, ends the process at once with ERROR_STOPPED (schedulers often send the same signal twice
 * in a row, by way of the launcher and directly). SIGPIPE is ignored: writes fail with EPIPE instead. */
void signals_install(void);

/* True once a stop was requested of this process. Ranks must agree on it (group_max) before they act on it together. */
bool signals_stop_requested(void);

/* Seconds since the first signal that asked for a stop, 0 before any. */
double signals_stop_age(void);

/* "SIGTERM" and so on: the first signal received, or "" before any. For messages. */
const char *signals_name(void);

#endif

/* The time of day. Durations are measured on the monotonic clock instead. */
#ifndef NOCTURNE_BASE_CLOCK_H
#define NOCTURNE_BASE_CLOCK_H

/* Seconds since 1970 (Unix time), with fractions. */
double wall_clock(void);

#endif

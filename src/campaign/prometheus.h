/* A phase's state as a file for the textfile collector of Prometheus' node exporter. */
#ifndef NOCTURNE_CAMPAIGN_PROMETHEUS_H
#define NOCTURNE_CAMPAIGN_PROMETHEUS_H

#include "base/error.h"
#include "schedule/engine.h" /* struct engine_counts */

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

struct prometheus_sample {
    const char *campaign, *phase;
    int64_t total, done_before;         /* requests, and those done before this launch */
    const struct engine_counts *counts; /* of this launch */
    double seconds;                     /* since the launch began its work */
    double walltime_left;               /* seconds to the end of the allocation, below 0: unknown */
    int32_t ranks;
    bool running;
};

/* Replaces the file at `path` by rename, so that a reader never sees half of it. ERROR_IO names the file. */
MUST_CHECK enum result prometheus_write(const char *path, const struct prometheus_sample *sample);

#endif

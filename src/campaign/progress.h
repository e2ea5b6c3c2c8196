/* How far a phase is: one line on the terminal that is written anew, or a line a minute in the log; and progress.json for `nocturne
 * status`. Rank 0 shows it. */
#ifndef NOCTURNE_CAMPAIGN_PROGRESS_H
#define NOCTURNE_CAMPAIGN_PROGRESS_H

#include "campaign/campaign.h"
#include "schedule/engine.h" /* struct engine_counts */

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

struct phase_progress {
    const struct campaign *campaign;
    const char *phase;
    int64_t total, done_before; /* requests of the phase, and those done when this run began */
    int32_t ranks;
    bool terminal, quiet;
    const char *prometheus;       /* file for Prometheus, or NULL */
    double end;                   /* of the allocation in Unix seconds, 0: unknown */
    double begun, shown, written; /* seconds on the monotonic clock */
};

/* The caller may set `prometheus` and `end` afterwards. */

void progress_begin(struct phase_progress *progress, const struct campaign *campaign, const char *phase,
    int64_t total, int64_t done_before, int32_t ranks, bool quiet);
/* Shows and writes the state when it is time again. */
void progress_update(struct phase_progress *progress, const struct engine_counts *counts);
/* The last line and file. */
void progress_finish(struct phase_progress *progress, const struct engine_counts *counts, bool finished);

double monotonic_seconds(void);

#endif

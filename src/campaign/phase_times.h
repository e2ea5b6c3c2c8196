/* Where the time of a phase goes: a line of the log at its end, and the trace that --trace asks for. */
#ifndef NOCTURNE_CAMPAIGN_PHASE_TIMES_H
#define NOCTURNE_CAMPAIGN_PHASE_TIMES_H

#include "base/error.h"
#include "base/stopwatch.h"
#include "cluster/ranks.h"

struct phase_times {
    double begun[WORK_PARTS]; /* the stopwatch when the phase began its work */
};

/* Begins to count; with a `trace_path` begins this rank's trace there, or with several ranks at "trace_path.RANK". ERROR_IO
 * when that can't be written. */
MUST_CHECK enum result phase_times_begin(
    struct phase_times *times, const struct ranks *ranks, const char *trace_path);

/* Logs, on rank 0, what share of the ranks' time each part took; of exchange and waiting also the most that a rank had. Ends the
 * trace. Collective over the run; a trace that could not be written whole is a warning only. */
MUST_CHECK enum result phase_times_end(
    const struct phase_times *times, const struct ranks *ranks, const char *phase);

#endif

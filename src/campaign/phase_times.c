#include "campaign/phase_times.h"

#include "base/buffer.h"
#include "base/log.h"
#include "cluster/collectives.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc */
#include <string.h> /* strlen */

/* Parts below this share are not worth a place in the line. */
static const double LEAST_SHOWN = 0.0005;

enum result phase_times_begin(struct phase_times *times, const struct ranks *ranks, const char *trace_path) {
    stopwatch_read(times->begun);
    if (!trace_path)
        return OK;
    if (ranks->count == 1)
        return trace_open(trace_path, 0);
    size_t size = strlen(trace_path) + 16;
    char *path = malloc(size);
    if (!path)
        return fail(ERROR_MEMORY, "out of memory for the name of the trace");
    snprintf(path, size, "%s.%d", trace_path, ranks->rank);
    enum result status = trace_open(path, ranks->rank);
    free(path);
    return status;
}

/* The largest of a part's times among the ranks. */
static double most_of(const double *all, int32_t ranks, enum work_part part, int32_t *rank) {
    double most = -1;
    for (int32_t r = 0; r < ranks; r++)
        if (all[r * WORK_PARTS + part] > most) {
            most = all[r * WORK_PARTS + part];
            *rank = r;
        }
    return most;
}

static void log_times(const double *all, int32_t ranks, const char *phase) {
    double sums[WORK_PARTS] = {0}, total = 1e-9;
    for (int32_t i = 0; i < ranks * WORK_PARTS; i++) {
        sums[i % WORK_PARTS] += all[i];
        total += all[i];
    }
    struct buffer line = {0};
    for (int part = 0; part < WORK_PARTS; part++)
        if (sums[part] / total >= LEAST_SHOWN)
            buffer_printf(
                &line, "%s%s %.1f%%", line.bytes ? ", " : "", work_part_name(part), 100 * sums[part] / total);
    log_info("%s: time by part: %s", phase, line.bytes ? line.data : "none");
    buffer_free(&line);
    if (ranks == 1)
        return;
    int32_t sender = 0, waiter = 0;
    double exchange = most_of(all, ranks, WORK_EXCHANGE, &sender),
           waiting = most_of(all, ranks, WORK_WAITING, &waiter);
    log_info(
        "%s: between ranks: exchange %.3f s a rank, at most %.3f s on rank %d; waiting %.3f s a rank, at "
        "most %.3f s on rank %d",
        phase, sums[WORK_EXCHANGE] / ranks, exchange, sender, sums[WORK_WAITING] / ranks, waiting, waiter);
}

enum result phase_times_end(const struct phase_times *times, const struct ranks *ranks, const char *phase) {
    double own[WORK_PARTS];
    stopwatch_read(own);
    for (int i = 0; i < WORK_PARTS; i++)
        own[i] -= times->begun[i];
    if (trace_close() != OK)
        log_warning("%s", failure_message());
    double *all = calloc((size_t)ranks->count, sizeof own);
    enum result status = all ? OK : fail(ERROR_MEMORY, "out of memory for the times of the ranks");
    status = ranks_agree(ranks->world, status);
    if (status == OK && all)
        status = group_all_gather(ranks->world, "end: times of the ranks", own, sizeof own, all);
    if (status == OK && all && ranks->rank == 0)
        log_times(all, ranks->count, phase);
    free(all);
    return status;
}

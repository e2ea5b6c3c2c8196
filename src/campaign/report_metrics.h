/* The metrics of a campaign's launches, brought to few points in time. */
#ifndef NOCTURNE_CAMPAIGN_REPORT_METRICS_H
#define NOCTURNE_CAMPAIGN_REPORT_METRICS_H

#include "base/error.h"
#include "cache/cache.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

enum { REPORT_INTERVALS = 120 };
enum time_share { SHARE_WORK, SHARE_EXCHANGE, SHARE_WAITING, SHARE_OTHER, SHARES };

struct report_launch {
    int32_t number, ranks, ranks_read;
    int64_t nodes, exit_code, done_before;
    bool ended; /* the launch wrote its end itself */
    double begun, written;
    char *command, *version, *hosts, *job, *message;
    int32_t intervals;                 /* 0: nothing to plot */
    double time[REPORT_INTERVALS + 1]; /* Unix seconds */
    /* Of each interval. */
    double prompt_rate[REPORT_INTERVALS], generated_rate[REPORT_INTERVALS], sequences[REPORT_INTERVALS];
    double kv_use[REPORT_INTERVALS];                                  /* percent */
    double shares[SHARES][REPORT_INTERVALS];                          /* seconds of all ranks read */
    double pairs_sum[REPORT_INTERVALS], pairs_most[REPORT_INTERVALS]; /* over ranks */
    int64_t finished, failed, prompt_tokens, generated_tokens;
    int64_t shared_tokens, cached_tokens, replayed_tokens, saved_milliseconds; /* see struct engine_counts */
    int64_t cache_hits[CACHE_TIERS], cache_bytes[CACHE_TIERS];
};

struct report_metrics {
    struct report_launch *launches;
    int32_t count;
    int64_t damaged; /* files that were left out */
    int32_t most_ranks;
    double (*rank_shares)[SHARES]; /* [most_ranks]: seconds over all launches */
    int64_t layers, experts;
    int64_t *load; /* [layers, experts]: pairs over all launches; NULL: none were counted */
};

/* Files that are damaged or of another version are left out and counted. Without metrics there are no launches. */
MUST_CHECK enum result report_metrics_read(
    const char *campaign_folder, const char *requests, struct report_metrics *metrics);
void report_metrics_free(struct report_metrics *metrics);

#endif

/* What a launch measured: samples over time of counts and of where the time of each rank went, and how loaded the experts were.
 * Each rank writes DIR/metrics/launch-NNNN/rank-NNNN.h5 (docs/formats.md, nocturne.metrics), which is replaced as a whole from time to
 * time: a launch that is killed loses what came after. Nothing in it has an influence on answers, and a metrics file
 * that can't be written is a warning, no failure. */
#ifndef NOCTURNE_CAMPAIGN_METRICS_H
#define NOCTURNE_CAMPAIGN_METRICS_H

#include "campaign/campaign.h"
#include "campaign/hdf5_file.h"
#include "cluster/ranks.h"
#include "model/model.h"
#include "schedule/engine.h"

#include <stdint.h> /* int32_t, int64_t */

#define METRICS_FORMAT "nocturne.metrics"
enum { METRICS_VERSION = 2 };

/* Columns of a file. Counts are of all ranks, seconds of this one; both grow from the launch's begin. */
enum metrics_column {
    METRICS_TIME,
    METRICS_STEPS,
    METRICS_PROMPT_TOKENS,
    METRICS_GENERATED_TOKENS,
    METRICS_FINISHED,
    METRICS_FAILED,
    METRICS_WAITING,
    METRICS_SEQUENCES,
    METRICS_KV_RESERVED,
    METRICS_KV_BLOCKS,
    METRICS_SHARED_TOKENS,
    METRICS_CACHED_TOKENS,
    METRICS_REPLAYED_TOKENS,
    METRICS_SAVED_MILLISECONDS,
    METRICS_CACHE_HITS, /* this and the next: one column a tier */
    METRICS_CACHE_BYTES = METRICS_CACHE_HITS + CACHE_TIERS,
    METRICS_EXPERT_PAIRS = METRICS_CACHE_BYTES + CACHE_TIERS,
    METRICS_PART_SECONDS, /* [samples, WORK_PARTS] */
    METRICS_SERIES,
    METRICS_EXPERT_LOAD = METRICS_SERIES, /* [layers, experts of this rank] */
    METRICS_COLUMNS
};
extern const struct column metrics_columns[METRICS_COLUMNS];

struct metrics;

/* What a launch is. Texts are copied. */
struct metrics_launch {
    const char *campaign_folder, *requests; /* the latter: identity of requests.h5 */
    const struct provenance *provenance;
    const struct ranks *ranks;
    const struct model *model;
    double interval; /* seconds between files */
    int64_t total, done_before;
};

/* Chooses the launch's number and makes its folder. Collective over the run. */
MUST_CHECK enum result metrics_create(const struct metrics_launch *launch, struct metrics **metrics);
/* After a step: takes a sample and writes the file when it is time. */
void metrics_step(struct metrics *metrics, const struct engine_counts *world);
/* The last sample, with the final counts, and file. `outcome` is OK, ERROR_STOPPED or what the launch ends with; `message` why. NULL metrics: nothing. */
void metrics_end(
    struct metrics *metrics, const struct engine_counts *world, enum result outcome, const char *message);
void metrics_free(struct metrics *metrics);

#endif

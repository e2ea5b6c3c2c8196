/* Parts of results/: what became of requests. A request is in it once, with all its choices. */
#ifndef NOCTURNE_CAMPAIGN_RESULTS_H
#define NOCTURNE_CAMPAIGN_RESULTS_H

#include "base/error.h"
#include "campaign/campaign.h"
#include "schedule/engine.h" /* struct request_result */

#include <stdint.h> /* int64_t */

struct results_writer;

/* Parts go below results/rank-NNNN of `rank`, numbered on from those that exist. */
MUST_CHECK enum result results_writer_create(const char *campaign_folder, int32_t rank,
    const struct provenance *provenance, struct results_writer **writer);
/* Copies the result; kept in memory until the part is written. */
MUST_CHECK enum result results_writer_add(struct results_writer *writer, const struct request_result *result);
/* Results and bytes held and not yet in a part. */
int64_t results_writer_pending(const struct results_writer *writer);
int64_t results_writer_pending_bytes(const struct results_writer *writer);
/* Writes the pending results as one part: temporary name, fsync of file, rename, fsync of folder. Nothing pending: nothing. */
MUST_CHECK enum result results_writer_flush(struct results_writer *writer);
void results_writer_free(struct results_writer *writer); /* drops what is pending */

#endif

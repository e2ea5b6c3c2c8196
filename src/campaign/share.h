/* Deals the images of the vision phase out to ranks; requests have a plan (schedule/plan.h). */
#ifndef NOCTURNE_CAMPAIGN_SHARE_H
#define NOCTURNE_CAMPAIGN_SHARE_H

#include "base/error.h"

#include <stdint.h> /* int32_t, int64_t */

/* Indices of the images with todo[i] != 0 that belong to `rank` of `ranks`, ascending. Shares differ by
 * at most one request, and by little in tokens: requests are dealt in order of length, back and forth.
 * *share is allocated. */
MUST_CHECK enum result share_requests(const uint8_t *todo, const int32_t *lengths, int64_t total,
    int32_t rank, int32_t ranks, int64_t **share, int64_t *count);

#endif

/* The prefix cache of a phase: its options, its opening, and what it has done. */
#ifndef NOCTURNE_CAMPAIGN_PHASE_CACHE_H
#define NOCTURNE_CAMPAIGN_PHASE_CACHE_H

#include "base/error.h"
#include "base/options.h"
#include "cache/cache.h"
#include "campaign/launch.h"
#include "campaign/requests.h"

#include <stdint.h> /* int64_t, uint8_t */

enum { PHASE_CACHE_OPTIONS = 8 };

struct phase_cache_options {
    const char *shared, *local, *replay;
    int64_t shared_limit, local_limit, memory_limit;
    int eviction;                           /* enum cache_eviction */
    const char *keep;                       /* hours by kind of traffic, as text */
    int32_t bounded;                        /* of `replay`, by phase_cache_check; 0: exact */
    double keep_hours[CACHE_TRAFFIC_KINDS]; /* of `keep`; 0: the cache's default */
};

/* Defaults, and PHASE_CACHE_OPTIONS rows for the table of options. */
void phase_cache_option_rows(struct phase_cache_options *options, struct option *row);
/* Reads what are texts. ERROR_USAGE names the option. */
MUST_CHECK enum result phase_cache_check(struct phase_cache_options *options);

struct phase_cache {
    struct cache *cache; /* NULL: none */
    struct cache_space space;
    char fingerprint[128];
};

/* Opens the cache that the options ask for, if any. `arithmetic`: a number for what bits depend on in this program. Local. */
MUST_CHECK enum result phase_cache_open(const struct phase_cache_options *options,
    const struct launch *launch, int arithmetic, struct phase_cache *cache);
/* Collective over the run: all puts are down, rank 0 logs a line on what the cache did on all ranks. */
MUST_CHECK enum result phase_cache_finish(const struct phase_cache *cache, const struct launch *launch);
void phase_cache_close(struct phase_cache *cache);

/* What identifies the embeddings of the campaign's image `image`. */
MUST_CHECK enum result phase_cache_image(
    struct requests *requests, int64_t image, uint8_t identity[CACHE_KEY_BYTES]);

#endif

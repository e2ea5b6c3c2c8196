/* Blocks of a prefix cache without their payloads: what the real policy (src/cache/policy.h) keeps of them, one tier of them,
 * at times that the caller tells. A tier over its limit is brought down to nine tenths of it, as the cache's folders are. */
#ifndef NOCTURNE_BENCH_KEPT_BLOCKS_H
#define NOCTURNE_BENCH_KEPT_BLOCKS_H

#include "base/error.h"
#include "cache/policy.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t, uint64_t */

struct kept_blocks;

/* limit: bytes; 0: none. */
MUST_CHECK enum result kept_blocks_create(
    const struct policy *policy, int64_t limit, struct kept_blocks **kept);
void kept_blocks_free(struct kept_blocks *kept); /* NULL is allowed */

/* Whether a block is there, and not past its time at `now` (seconds); that counts as a use. */
bool kept_blocks_use(struct kept_blocks *kept, uint64_t key, double now);

/* Adds a block, unless it is there; ERROR_MEMORY. Of `facts` bytes, cost_seconds, first_token and traffic are read. */
MUST_CHECK enum result kept_blocks_put(
    struct kept_blocks *kept, uint64_t key, const struct policy_facts *facts, double now);

struct kept_counts {
    int64_t entries, bytes; /* now; what is past its time goes every six hours, and when room is made */
    int64_t peak;           /* bytes at most */
    int64_t evicted;        /* before their time */
};
struct kept_counts kept_blocks_counts(const struct kept_blocks *kept);

#endif

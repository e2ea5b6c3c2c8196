/* The collectives interface: host-memory implementation over MPI. (A device-memory one, NCCL, will stand beside it.)
 *
 * All functions are Collective over their group: every rank of it calls them in the same order with the same sizes
 * where sizes are not per rank. They poll and yield the core while waiting, so that oversubscribed ranks make progress,
 * and give up at the deadline (ranks.h).
 */
#ifndef NOCTURNE_CLUSTER_COLLECTIVES_H
#define NOCTURNE_CLUSTER_COLLECTIVES_H

#include "base/error.h"

#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t, int64_t */

struct group;

int32_t group_rank(const struct group *group);
int32_t group_size(const struct group *group);

MUST_CHECK enum result group_barrier(struct group *group, const char *what);
/* Element-wise sum or maximum, in place, result on all ranks. `what` names the wait in messages. */
MUST_CHECK enum result group_sum(struct group *group, const char *what, int64_t *values, int32_t count);
MUST_CHECK enum result group_max(struct group *group, const char *what, int64_t *values, int32_t count);
MUST_CHECK enum result group_broadcast(
    struct group *group, const char *what, int32_t root, void *data, size_t bytes);
/* Every rank's `bytes` bytes, in rank order, on all ranks: out [size * bytes]. */
MUST_CHECK enum result group_all_gather(
    struct group *group, const char *what, const void *data, size_t bytes, void *out);
/* As above with per-rank sizes; counts [size] in bytes are known to all; out holds their sum. */
MUST_CHECK enum result group_all_gather_sizes(
    struct group *group, const char *what, const void *data, const int64_t *bytes, void *out);
/* send_counts[r] to rank r -> receive_counts[r] from rank r. */
MUST_CHECK enum result group_exchange_counts(
    struct group *group, const char *what, const int64_t *send_counts, int64_t *receive_counts);
/* Rows of row_bytes: send_counts[r] rows for rank r, packed in rank order; received likewise. Counts may be zero; totals
 * beyond 2 GiB work. A rank's own rows are copied without messages. */
MUST_CHECK enum result group_exchange_rows(struct group *group, const char *what, const void *send,
    const int64_t *send_counts, void *receive, const int64_t *receive_counts, size_t row_bytes);

/* Seconds this rank has spent inside collectives, and bytes it has sent to other ranks, since the start. */
double group_seconds(const struct group *group);
int64_t group_bytes_sent(const struct group *group);

#endif

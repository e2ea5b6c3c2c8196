/* Measures the network between the ranks of a run, and their clocks. */
#ifndef NOCTURNE_CLUSTER_LINKS_H
#define NOCTURNE_CLUSTER_LINKS_H

#include "base/error.h"
#include "cluster/ranks.h"

#include <stdint.h> /* int32_t */

/* One pair of ranks. */
struct link {
    int32_t from, to;        /* ranks of the run, from < to */
    double latency;          /* seconds that a message of 8 bytes takes one way: the median of many */
    double bytes_per_second; /* of messages of 4 MiB, one way */
};

struct links {
    struct link *pairs; /* [count], on all ranks; freed with links_free */
    int32_t count;
    bool within_node; /* there is one node only: its first and its last rank were paired */
};

/* Measures all pairs of nodes, each by its first rank, as many pairs at once as there can be without sharing a node; on one node
 * the pair of its first and last rank; nothing in a run of one rank. Takes some milliseconds for each other node.
 * Collective over the run. */
MUST_CHECK enum result links_measure(const struct ranks *ranks, struct links *links);
void links_free(struct links *links);

/* Whom place `place` of `places` (an even number) meets in round 0 .. places - 2: all pairs meet once, each place once a round. */
int32_t links_opponent(int32_t place, int32_t places, int32_t round);

/* Seconds by which each rank's clock (CLOCK_REALTIME) is ahead of rank 0's: ahead [count], filled on rank 0; the error is below half the
 * time that a message takes there and back. Collective over the run. */
MUST_CHECK enum result clocks_compare(const struct ranks *ranks, double *ahead);

#endif

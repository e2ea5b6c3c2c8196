/* The ranks of a run: start and end, layout over nodes and supernodes, binding, and agreement on errors.
 *
 * MPI is called in this folder and nowhere else. Every wait on other ranks has a deadline: past it the message names this rank,
 * what it waited for and how long, and the run is aborted with ERROR_RANKS.
 */
#ifndef NOCTURNE_CLUSTER_RANKS_H
#define NOCTURNE_CLUSTER_RANKS_H

#include "base/error.h"
#include "cluster/topology.h" /* struct rank_place */

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

struct rank_options {
    int32_t supernode;        /* ranks of a supernode; 0: all ranks of the run */
    int32_t threads;          /* threads of this rank; 0: its share of the node's cores */
    int32_t deadline_seconds; /* longest wait on other ranks; 0: 600 */
    bool bind; /* bind this process to its share of cores (not when the launcher already did) */
};

struct group; /* ranks that communicate: an opaque communicator, see collectives.h */

struct ranks {
    int32_t rank, count;           /* in the whole run */
    int32_t node_rank, node_count; /* among the ranks of this node */
    int32_t node, nodes;           /* index of this rank's node, and how many there are */
    int32_t supernode, supernodes; /* index of this rank's supernode, and how many there are */
    int32_t threads;               /* what this rank should use, >= 1 */
    char host[256];
    struct rank_place place;       /* its cores and memory; of the launcher's choice when launcher_bound */
    bool launcher_bound;           /* the launcher had bound the ranks of this node to different cores */
    bool bound;                    /* this process is bound to its place, by us or the launcher */
    struct group *world;           /* all ranks */
    struct group *supernode_group; /* this supernode's ranks, in order of their node, then rank */
};

/* Starts MPI (also when launched without mpirun: one rank) and lays the ranks out. Collective over the run.
 * ERROR_USAGE on all ranks when the count is no multiple of options->supernode, or when a run on several nodes would divide
 * a node between supernodes. Also sets log_setup's rank (level stays normal) and OpenMP's thread count. After a failure
 * `ranks` is good for ranks_share and ranks_stop only, and ranks_stop must be called. */
MUST_CHECK enum result ranks_start(const struct rank_options *options, struct ranks *ranks);

/* True when all ranks of the run are known to end with this `status`: it is OK, or what ranks_agree (over all ranks) or
 * ranks_start just returned. Rank 0 alone then needs to print the message. */
bool ranks_share(const struct ranks *ranks, enum result status);

/* Ends MPI. With a `status` that not all ranks are known to share (ranks_share), aborts the run with that code: print the
 * message before. Call it once, last. */
void ranks_stop(struct ranks *ranks, enum result status);

/* Collective over `group`: returns OK when every rank passed OK; else, on all ranks, the code of the lowest failing rank, and
 * failure_message() on every rank becomes that rank's message, prefixed with "rank N on HOST: " when it was another's. */
MUST_CHECK enum result ranks_agree(struct group *group, enum result own);

#endif

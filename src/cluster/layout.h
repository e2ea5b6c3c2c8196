/* Layout of ranks over nodes and supernodes: plain arithmetic, no MPI and no hwloc, so that any cluster can be laid out
 * anywhere. */
#ifndef NOCTURNE_CLUSTER_LAYOUT_H
#define NOCTURNE_CLUSTER_LAYOUT_H

#include "base/error.h"

#include <stdint.h> /* int32_t */

struct layout_rank {
    int32_t node;                  /* index of its node, in order of the nodes' lowest ranks */
    int32_t node_rank, node_count; /* among the ranks of that node */
    int32_t supernode, supernode_rank;
};

struct layout {
    int32_t count, nodes, supernodes;
    int32_t supernode_size;    /* ranks of each supernode */
    struct layout_rank *ranks; /* [count] */
};

/* Lays `count` ranks out. nodes [count] are names of nodes: ranks with equal numbers share a node. Supernodes of
 * `supernode` ranks (0: one with all ranks) are cut from the ranks in order of node, then rank, so that a launcher that deals
 * ranks out to nodes in turn gets whole nodes too. ERROR_USAGE when the count is no multiple of `supernode`, or, on
 * several nodes, when a node would be divided between supernodes. Free with layout_free. */
MUST_CHECK enum result layout_make(
    const int32_t *nodes, int32_t count, int32_t supernode, struct layout *layout);
void layout_free(struct layout *layout); /* a zeroed layout is allowed */

/* nodes [count] of a run that fills each node with `ranks_per_node` ranks before the next. */
void layout_fill_nodes(int32_t *nodes, int32_t count, int32_t ranks_per_node);

#endif

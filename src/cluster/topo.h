/* The command `nocturne topo`: where the ranks of a run stand, and what each holds. */
#ifndef NOCTURNE_CLUSTER_TOPO_H
#define NOCTURNE_CLUSTER_TOPO_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdint.h> /* int32_t, int64_t */

struct topo_options {
    const char *topology;   /* as for topology_load: the machine that every node is */
    int32_t ranks;          /* 0: ranks_per_node, that is one node */
    int32_t ranks_per_node; /* 0: one for each accelerator, or without accelerators all ranks on one node */
    int32_t supernode;      /* ranks of a supernode; 0: all */
    int32_t experts;        /* routed experts of a layer */
    int64_t engram_rows;    /* rows of the Engram tables; 0: not shown */
};

/* Appends the layout of a run that need not exist: machine, ranks, expert shards. ERROR_USAGE when it is impossible. */
MUST_CHECK enum result topo_print(const struct topo_options *options, struct buffer *out);

/* `nocturne topo ...`; argv[0] is the command's name. Collective when launched on several ranks without --topology and
 * --ranks: then rank 0 prints the run as it is. Starts and stops the ranks itself. */
MUST_CHECK enum result command_topo(int argc, char **argv);

#endif

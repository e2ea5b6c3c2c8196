/* Machine topology by hwloc: each rank's cores, and what `nocturne topo` prints. Needs no MPI, so layouts of machines one
 * does not have can be computed from a synthetic description or a recorded XML. */
#ifndef NOCTURNE_CLUSTER_TOPOLOGY_H
#define NOCTURNE_CLUSTER_TOPOLOGY_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdint.h> /* int32_t */

struct topology;

/* This machine (NULL), an hwloc XML file (a path that exists), or a synthetic description such as
 * "package:2 numa:4 core:8 pu:1" or hwloc's own syntax. ERROR_USAGE or ERROR_INPUT says what is wrong with it. */
MUST_CHECK enum result topology_load(const char *source, struct topology **topology);
void topology_free(struct topology *topology);

struct rank_place {
    int32_t first_core,
        cores;           /* logical indices of whole cores; more ranks than cores: cores is 1 and shared */
    int32_t numa_node;   /* logical index of the memory next to those cores, -1: none known */
    int32_t accelerator; /* logical index among the machine's accelerators, -1: none */
    char cpuset[256];    /* as hwloc prints lists: "0-3,8" */
};

/* Place of rank `node_rank` of `node_ranks` on this machine: next to accelerator node_rank when the machine has as
 * many accelerators as ranks, else an even share of the cores in order. */
MUST_CHECK enum result topology_place(
    const struct topology *topology, int32_t node_rank, int32_t node_ranks, struct rank_place *place);

/* Binds the calling process (and threads it starts later) and its memory to a place. A system that does not support it is a
 * warning, not a failure. */
MUST_CHECK enum result topology_bind(const struct topology *topology, const struct rank_place *place);

#endif

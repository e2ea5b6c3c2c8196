/* Machine topology by hwloc: each rank's cores, and what `nocturne topo` prints. Needs no MPI, so layouts of machines one
 * does not have can be computed from a synthetic description or a recorded XML. */
#ifndef NOCTURNE_CLUSTER_TOPOLOGY_H
#define NOCTURNE_CLUSTER_TOPOLOGY_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

struct topology;

/* This machine (NULL), an hwloc XML file, a text file with a synthetic description, or such a description itself, for
 * example "package:2 numa:4 core:8 pu:1". Of this machine only the processors that this process may use are kept.
 * ERROR_USAGE, ERROR_INPUT or ERROR_IO say what is wrong with it. */
MUST_CHECK enum result topology_load(const char *source, struct topology **topology);
/* This machine with all its processors, whatever this process may use: distances of other processes' processors need it. It cannot
 * be bound to. */
MUST_CHECK enum result topology_load_whole(struct topology **topology);
void topology_free(struct topology *topology); /* NULL is allowed */

int32_t topology_cores(const struct topology *topology);
int32_t topology_accelerators(const struct topology *topology);
/* Appends a few lines on the machine: packages, cores, memory, accelerators. */
void topology_describe(const struct topology *topology, struct buffer *out);

/* ---- accelerators ---- */

enum { DEVICE_ADDRESS_BYTES = 16, DEVICE_NAME_BYTES = 32, PROCESSOR_WORDS = 16 };

/* Where an accelerator is. */
struct topology_device {
    char name[DEVICE_NAME_BYTES];       /* as the operating system or CUDA calls it, or "unnamed" */
    char address[DEVICE_ADDRESS_BYTES]; /* on the PCI bus, "0000:1b:00.0"; "" when none is known */
    int32_t numa_node;                  /* logical index of the memory beside it, -1: none or several */
    char network[DEVICE_NAME_BYTES];    /* the nearest network device, "" without one */
    int32_t
        network_steps; /* to it: 0 behind the same switch, 1 the same root port, 2 NUMA node, 3 package, 4 else; 0 without one */
};

/* `index`: logical, 0 .. topology_accelerators - 1. */
void topology_device(const struct topology *topology, int32_t index, struct topology_device *device);
/* The accelerator at a PCI address, or -1. */
int32_t topology_device_at(const struct topology *topology, const char *address);

/* Sets of processors by the operating system's numbers: bit p % 64 of word p / 64; higher ones are left out. */
struct processor_set {
    uint64_t words[PROCESSOR_WORDS];
};

/* From processors to an accelerator: 0 when some are beside it, 1 in its NUMA node, 2 in its package, 3 else. */
int32_t topology_steps(
    const struct topology *topology, const struct processor_set *processors, int32_t accelerator);

/* ---- places ---- */

struct rank_place {
    int32_t first_core;  /* logical index of the first of its whole cores, which are neighbours */
    int32_t cores;       /* with more ranks than cores: 1, and shared */
    bool shared;         /* another rank has the same core */
    int32_t numa_node;   /* logical index of the memory next to all those cores, -1: none or several */
    int32_t accelerator; /* logical index among the machine's accelerators, -1: none */
    char accelerator_name[DEVICE_NAME_BYTES]; /* as the operating system or CUDA calls it, "" without one */
    char cpuset[256];                         /* as hwloc prints lists: "0-3,8"; ends in "..." when longer */
};

/* Place of rank `node_rank` of `node_ranks` on this machine: next to accelerator node_rank when the machine has as
 * many accelerators as ranks, else an even share of the cores in order. */
MUST_CHECK enum result topology_place(
    const struct topology *topology, int32_t node_rank, int32_t node_ranks, struct rank_place *place);

/* The processors of a place. */
void topology_processors(
    const struct topology *topology, const struct rank_place *place, struct processor_set *processors);

/* Binds the calling process (and threads it starts later) and its memory to a place. A system that does not support it is a
 * warning, not a failure. */
MUST_CHECK enum result topology_bind(const struct topology *topology, const struct rank_place *place);

#endif

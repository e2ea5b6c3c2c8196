/* Which device each rank of a node takes: one for each, so that the distances from the ranks' processors to their devices, and from
 * those to networks, are the least in sum. Everything here is the same on all ranks of a node. */
#ifndef NOCTURNE_CLUSTER_DEVICES_H
#define NOCTURNE_CLUSTER_DEVICES_H

#include "base/error.h"
#include "cluster/topology.h"

#include <stdint.h> /* int32_t */

struct ranks;

enum { MOST_DEVICES = 32 }; /* of a node that are looked at */

/* What one rank of a node may choose from. */
struct device_view {
    int32_t rank;                    /* in the run, for messages */
    int32_t count;                   /* devices it sees */
    struct processor_set processors; /* that it may use */
    char addresses[MOST_DEVICES]
                  [DEVICE_ADDRESS_BYTES]; /* of the devices, in the order in which CUDA numbers them for it */
};

/* chosen [count] gets each rank's number of its device in its own view. ERROR_USAGE, naming two ranks and the fix, when there is
 * no device for each. `host` is for messages. */
MUST_CHECK enum result devices_assign(const struct topology *topology, const char *host,
    const struct device_view *views, int32_t count, int32_t *chosen);

/* What a rank takes. */
struct device_choice {
    int32_t number; /* as CUDA numbers it for this process */
    char address[DEVICE_ADDRESS_BYTES];
};

/* Collective over the run, after ranks_start: ranks look at their devices and choose, then compare what they have chosen. ERROR_USAGE
 * on all ranks when a rank has no device, or two have the same. Sets ranks->place.accelerator and its name. */
MUST_CHECK enum result devices_choose(struct ranks *ranks, struct device_choice *choice);

#endif

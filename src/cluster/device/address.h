/* Which devices this process sees. */
#ifndef NOCTURNE_CLUSTER_DEVICE_ADDRESS_H
#define NOCTURNE_CLUSTER_DEVICE_ADDRESS_H

#include "cluster/topology.h" /* DEVICE_ADDRESS_BYTES */

#include <stdint.h> /* int32_t */

/* PCI addresses, as topology_device gives them, of the first `most` devices that the CUDA driver shows this process, in its order:
 * what CUDA_VISIBLE_DEVICES or the launcher left. Returns how many; 0 without a driver or in a build without CUDA. */
int32_t device_addresses(char (*addresses)[DEVICE_ADDRESS_BYTES], int32_t most);

#endif

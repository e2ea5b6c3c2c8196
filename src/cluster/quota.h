/* The share of the machine's processor time that a container or a job has, when it is less than its processors. */
#ifndef NOCTURNE_CLUSTER_QUOTA_H
#define NOCTURNE_CLUSTER_QUOTA_H

#include <stdint.h> /* int32_t */

/* Whole cores' worth of time that this process's control groups grant to all their processes together, at least 1; 0 when there
 * is no limit or none can be read. `root` is "" but for tests, where it stands before /proc and /sys. */
int32_t processor_quota(const char *root);

#endif

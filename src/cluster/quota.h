/* The share of the machine's processor time and memory that a container or a job has, when it is less than its processors. */
#ifndef NOCTURNE_CLUSTER_QUOTA_H
#define NOCTURNE_CLUSTER_QUOTA_H

#include <stdint.h> /* int32_t, int64_t */

/* Whole cores' worth of time that this process's control groups grant to all their processes together, at least 1; 0 when there
 * is no limit or none can be read. `root` is "" but for tests, where it stands before /proc and /sys. */
int32_t processor_quota(const char *root);

/* Bytes of memory that this process's control groups (a container's, or a job's of a batch system) grant; INT64_MAX when there is no limit. `root` as
 * above. */
int64_t memory_limit(const char *root);

#endif

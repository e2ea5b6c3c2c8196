/* Controls of the emulation, for tests. C and C++. */
#ifndef SIMT_H
#define SIMT_H

#include <stdint.h> /* int32_t */

#ifdef __cplusplus
extern "C" {
#endif

struct simt_options {
    uint64_t seed;         /* SIMT_SEED, 0: threads in order; else another order for each number */
    int32_t threads;       /* SIMT_THREADS, 1: host threads that share a launch's blocks, at most 64 */
    int32_t lazy;          /* SIMT_LAZY, 0: streams work only when something waits for them */
    int32_t uninitialised; /* SIMT_UNINITIALISED, 0: device memory is watched for reads before writes */
    int32_t global_races;  /* SIMT_GLOBAL_RACES, 0: buffers are watched for races */
    /* SIMT_WEAK_SHUFFLES, 0: only __syncwarp orders the shared memory of a warp's lanes, as CUDA promises; else all warp operations. */
    int32_t weak_shuffles;
    /* SIMT_DEVICES 1, SIMT_MULTIPROCESSORS 4, SIMT_ARCHITECTURE 90, SIMT_MEMORY 16384 (MiB a device): what the API tells. */
    int32_t devices, multiprocessors, architecture, memory;
};

/* The settings in force. The first call, or first use of CUDA, reads the environment. */
struct simt_options simt_get_options(void);
/* Changes them for the launches to come. Waits for all streams. Memory allocated before `uninitialised` was set counts as written. */
void simt_set_options(const struct simt_options *options);

/* Called with each error's message instead of printing it and aborting; the launch ends there, and the next call that waits for it returns
 * cudaErrorLaunchFailure. NULL: print and abort. May be called from several host threads, one at a time. */
typedef void (*simt_error_handler)(const char *message, void *context);
void simt_on_error(simt_error_handler handler, void *context);

/* Kernels launched and blocks run so far. */
struct simt_counts {
    int64_t launches, blocks;
};
struct simt_counts simt_get_counts(void);

#ifdef __cplusplus
}
#endif

#endif

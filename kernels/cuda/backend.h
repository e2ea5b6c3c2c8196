/* What the CUDA backend's operations share: the stream with its scratch memory, and how failures are kept.
 *
 * Operations return nothing: the first failure of a stream (a refused launch, no memory) is kept in it with its
 * message, later work on that stream is still enqueued or skipped, and synchronize returns it.
 */
#ifndef NOCTURNE_CUDA_BACKEND_H
#define NOCTURNE_CUDA_BACKEND_H

#include "kernels/cuda/device.h"
#include "kernels/kernels.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t */

/* Scratch areas of a stream, in device memory. An operation that calls another uses none of its areas. */
enum scratch_area {
    SCRATCH_PRODUCT, /* partial sums of products with few tokens */
    SCRATCH_EXPERTS, /* hidden rows of experts, their gate and up sums */
    SCRATCH_CHOOSE,  /* index scores, candidates */
    SCRATCH_ATTEND,  /* partial softmax sums of attention with few tokens */
    SCRATCH_MIX,     /* products of the stream mixers */
    SCRATCH_VISION,  /* scores of an image's attention */
    SCRATCH_SAMPLE,  /* weights and order of the tokens a row may choose */
    SCRATCH_AREAS,
};

struct scratch {
    void *memory;
    size_t bytes;
};

struct pinned_ring;   /* host memory through which small uploads go without a wait: memory.cu */
struct expert_tables; /* where experts lie, in device memory: experts_table.cu */

struct stream {
    cudaStream_t handle;
    int32_t device;
    int32_t multiprocessors; /* of the device: launch shapes may depend on it, results never */
    int32_t architecture;    /* 90 or 100; 0 in the emulation */
    struct scratch scratch[SCRATCH_AREAS];
    int64_t scratch_moves; /* times an area got other memory: recordings made before are stale */
    bool is_recording;
    struct pinned_ring *ring;
    struct expert_tables *expert_tables;
    enum result status; /* of the work so far, and its message */
    char message[256];
};

/* At least `bytes` of device memory aligned to 256 bytes, its content undefined, valid until the area is asked for again: work
 * enqueued before still sees the old memory. NULL, with the failure kept, when the device has no memory: enqueue nothing then. */
void *stream_scratch(struct stream *stream, enum scratch_area area, size_t bytes);

/* Keeps a refused launch of `kernel` as the stream's failure. */
void stream_launched(struct stream *stream, const char *kernel);
/* Keeps `code` as the stream's failure, `what` being the operation; true when it is cudaSuccess. */
bool stream_check(struct stream *stream, cudaError_t code, const char *what);

/* Frees the stream's tables of experts. */
void expert_tables_free(struct stream *stream);

#endif

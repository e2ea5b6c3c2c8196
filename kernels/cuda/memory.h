/* The CUDA backend's table entries that are no operations: streams, memory, weights. Contracts: kernels/kernels.h. */
#ifndef NOCTURNE_CUDA_MEMORY_H
#define NOCTURNE_CUDA_MEMORY_H

#include "kernels/cuda/backend.h"

struct cuda_backend {
    struct kernels table; /* first, so that a pointer to it is one to the backend */
    int32_t device, multiprocessors, architecture;
    cudaStream_t
        own; /* allocations are cleared and weights uploaded on it, so that they wait for no other work */
    char name[32]; /* of the instruction set: "sm90", "sm100", "emulation" */
};

enum result cuda_stream_create(const struct kernels *self, struct stream **stream);
void cuda_stream_free(const struct kernels *self, struct stream *stream);
void cuda_copy_in(struct stream *stream, void *device, const void *host, size_t bytes);
void cuda_copy_out(struct stream *stream, void *host, const void *device, size_t bytes);
void cuda_copy(struct stream *stream, void *to, const void *from, size_t bytes);
enum result cuda_record_begin(struct stream *stream);
enum result cuda_record_end(struct stream *stream, struct recording **recording);
int64_t cuda_memory_moves(const struct stream *stream);
void cuda_replay(struct stream *stream, const struct recording *recording);
void cuda_recording_free(struct recording *recording);
enum result cuda_synchronize(struct stream *stream);

#endif

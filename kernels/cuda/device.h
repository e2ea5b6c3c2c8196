/* CUDA C as the files of this folder write it, so that they compile with nvcc and, for the emulation of tests/simt, with a
 * C++ compiler of the host: there <cuda_runtime.h> is the emulation's own (CUDA_EMULATION is defined).
 *
 * Rules that keep both true:
 * - Kernels are `static __global__ void`, C in style; templates only over integers, enums and bools. What kernels take is passed by
 *   value.
 * - Launches go through LAUNCH, one order of work: the stream.
 * - Shared memory is dynamic only: one struct a kernel, reached by SHARED(struct name), its size given to LAUNCH. The emulation
 *   watches every access to it: a read of what was never written, two threads without a barrier between them, misaligned vectors.
 * - A structure that a function returns goes into a local variable first, then into shared or device memory: the compiler's
 *   hooks do not see a call whose result is stored there directly.
 * - Every thread of a block reaches every __syncthreads(), every named lane every *_sync.
 * - No fused multiply-add but fmaf (nvcc -fmad=false), no fast-math functions, no float atomics: bits are promised.
 */
#ifndef NOCTURNE_CUDA_DEVICE_H
#define NOCTURNE_CUDA_DEVICE_H

#include <cuda_runtime.h>

#include <stdint.h> /* uint32_t */

#define NUMBER_FUNCTION __host__ __device__ static inline
#include "kernels/number_formats.h"

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

#ifdef CUDA_EMULATION
#define SHARED(type) (*(type *)simt_shared_memory(sizeof(type)))
#define LAUNCH(stream, kernel, grid, block, shared_bytes, ...)                                               \
    do {                                                                                                     \
        simt_launch((stream)->handle, #kernel, grid, block, shared_bytes, kernel, ##__VA_ARGS__);            \
        stream_launched(stream, #kernel);                                                                    \
    } while (0)
#else
extern __shared__ __align__(128) unsigned char nocturne_shared_memory[];
#define SHARED(type) (*(type *)nocturne_shared_memory)
/* More than 48 KiB of shared memory is given only to kernels that ask for it. All ask for the most, which reserves nothing: a later,
 * smaller launch must not lower what a recorded one needs. */
#define MOST_SHARED_BYTES (227 * 1024)
#define LAUNCH(stream, kernel, grid, block, shared_bytes, ...)                                               \
    do {                                                                                                     \
        if ((shared_bytes) > 48 * 1024)                                                                      \
            (void)cudaFuncSetAttribute(                                                                      \
                kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED_BYTES);                     \
        kernel<<<grid, block, shared_bytes, (stream)->handle>>>(__VA_ARGS__);                                \
        stream_launched(stream, #kernel);                                                                    \
    } while (0)
#endif

#endif

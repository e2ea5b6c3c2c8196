/* The emulation's <cuda_runtime.h>: CUDA C of the kind described in kernels/cuda/device.h runs on the host, its memory watched.
 * Found first on the include path; C files see the host API only.
 *
 * EMULATED
 * - Grids, blocks and warps. Blocks run one after another (or on SIMT_THREADS host threads), the threads of a block as fibers that
 *   change places at barriers and warp operations only. SIMT_SEED permutes blocks, warps and lanes.
 * - __syncthreads and its voting forms, __syncwarp, shuffles, votes, match and reduce, with full and partial masks. Found: barriers and
 *   warp operations that can never complete, masks that differ, lanes that ended or never were, threads at different barriers.
 * - Dynamic shared memory (simt_shared_memory), up to 227 KiB. Integer atomics. The tensor-core forms of kernels/cuda/mma.h;
 *   asynchronous copies, whose data arrive at simt_copies_wait and not earlier.
 * - Memory of devices and pinned memory, streams, events, copies, host functions, stream capture and graphs. Work is done when
 *   it is enqueued, or, with SIMT_LAZY=1, only when something waits for it. Invalid launches are refused with CUDA's codes.
 *
 * WATCHED, in files that GCC compiles with -fsanitize=thread,alignment,bounds (the hooks are in watcher.cpp; do not link libtsan; clang calls the
 * same hooks, but copies structs without one):
 * - Every access must lie in one buffer of the kernel's device, in pinned memory, in the launch's shared memory, in the thread's own
 *   variables or in constants of the program: all else is an error, as is memory past a buffer's end (guards lie around each), freed
 *   memory, and device memory that watched host code touches.
 * - Shared memory, byte by byte: reads of what was never written in this block; two threads of which one writes, without a barrier
 *   of the block or of their warp between them; reads of what an asynchronous copy has yet to bring.
 * - Addresses that are no multiple of the access. The compiler may split a vector's load into its parts before the hooks see it:
 *   -fsanitize=alignment checks the vector's own alignment, and -fsanitize=bounds indices of arrays inside a struct.
 * - With SIMT_UNINITIALISED=1, reads of device memory that nothing ever wrote.
 * - With SIMT_GLOBAL_RACES=1, bytes of buffers that two blocks of a launch touch, one of them writing, not both by atomics, and those
 *   that two threads of a block touch so without a barrier between. A block that reads what others wrote before a fence and an atomic
 *   counter is right on a GPU but reported here.
 *
 * NOT EMULATED: blocks or warps that wait for each other by polling memory (they never end), named barriers, clusters, cooperative
 * launches, float atomics, static __shared__ arrays, textures, managed memory, dynamic parallelism, the weak order of memory between
 * blocks, the time things take. Inline PTX needs a form of its own (mma.h).
 * NOT SEEN: functions of the C library but memcpy, memmove, memset and memcmp, called by these names after this header; a struct that a
 * function returns and that is stored at once (put it in a variable first). Between lanes synchronized with a partial mask, a race
 * may stay unseen where several lanes read before.
 *
 * AN ERROR prints one message that names the kernel, block, thread and place, and aborts; simt_on_error (simt.h) takes it instead. Settings
 * are environment variables, read once; simt.h lists them.
 */
#ifndef SIMT_CUDA_RUNTIME_H
#define SIMT_CUDA_RUNTIME_H

#define CUDA_EMULATION 1

#include "simt_host.h"
#ifdef __cplusplus
#include "simt_device.h"
#endif

#endif

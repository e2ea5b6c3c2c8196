/* A NCCL communicator over the ranks of a group: set up, watched and waited for with deadlines.
 *
 * NCCL itself waits forever for a rank that does not come. So the communicator is made without blocking and polled; ranks tell each
 * other over MPI how far they are, and the message at the deadline names those that did not come. Later every call looks at
 * the communicator's asynchronous error, and streams are polled until their work has ended or the deadline has passed. After
 * any failure the communicator is aborted: what was enqueued on it ends, and all further calls fail.
 */
#ifndef NOCTURNE_CLUSTER_NCCL_GROUP_H
#define NOCTURNE_CLUSTER_NCCL_GROUP_H

#include "base/error.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t */

struct group;
struct nccl_group;

/* Collective over `group`; each rank has chosen its device (cudaSetDevice). ERROR_RANKS on all ranks that came, naming ranks and
 * hosts of those that did not within the group's deadline, or that failed, and what to look at. */
MUST_CHECK enum result nccl_group_create(struct group *group, struct nccl_group **created);

/* Collective, when no work is left; NULL is allowed. Ends within the deadline in any case. */
void nccl_group_free(struct nccl_group *nccl);

/* Sends and receives between nccl_group_begin and nccl_group_end travel at once, as one piece of work on the stream. `what` and
 * `layer` (-1: none) name it in messages; `what` must live as long as the communicator. */
MUST_CHECK enum result nccl_group_begin(struct nccl_group *nccl, const char *what, int32_t layer);
MUST_CHECK enum result nccl_group_send(
    struct nccl_group *nccl, const void *data, size_t bytes, int32_t to, cudaStream_t stream);
MUST_CHECK enum result nccl_group_receive(
    struct nccl_group *nccl, void *data, size_t bytes, int32_t from, cudaStream_t stream);
MUST_CHECK enum result nccl_group_end(struct nccl_group *nccl, cudaStream_t stream);

/* Every rank's `bytes` bytes in order of rank, on all ranks: a piece of work of its own. */
MUST_CHECK enum result nccl_group_all_gather(struct nccl_group *nccl, const char *what, int32_t layer,
    const void *data, size_t bytes, void *out, cudaStream_t stream);

/* Makes `later` wait for what is enqueued on `earlier`, which `what` and `layer` name. */
MUST_CHECK enum result nccl_group_order(
    struct nccl_group *nccl, const char *what, int32_t layer, cudaStream_t earlier, cudaStream_t later);

/* Waits for all work on the stream, at most for the group's deadline. The failure names this rank, and the piece of work that
 * has not ended: its call and layer. */
MUST_CHECK enum result nccl_group_wait(struct nccl_group *nccl, const char *what, cudaStream_t stream);

/* Turns a CUDA return code into a result that names this rank and host; a failure aborts the communicator. */
MUST_CHECK enum result nccl_group_cuda(struct nccl_group *nccl, const char *what, cudaError_t code);

#endif

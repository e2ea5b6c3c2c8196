/* A thin double of NCCL for tests without devices: the calls that src/cluster/device uses, with NCCL's names, over MPI and the
 * memory of the emulation, which MPI can reach. Include it behind the emulation's <cuda_runtime.h>.
 *
 * A piece of work (a group, or a call outside one) is one host function of its stream, so it runs in the stream's order: at once, or in the
 * emulation's lazy mode when something waits: there a rank that waits for others in MPI keeps back what they wait for, where a device would
 * go on, so programs that do both belong into the other mode. Communicators are made without blocking, as the real ones with config.blocking = 0.
 *
 * It has a communicator of its own, made within MPI_Init_thread, so that any program can be linked with it. Faults are set by
 * nccl_double_set; they count pieces of work from 0, over all communicators since the last nccl_double_set.
 */
#ifndef NCCL_DOUBLE_H
#define NCCL_DOUBLE_H

#include <cuda_runtime.h>
#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- NCCL's own ---- */

typedef struct ncclComm *ncclComm_t;

enum { NCCL_UNIQUE_ID_BYTES = 128 };
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum { ncclInt8 = 0, ncclUint8 = 1, ncclInt32 = 2, ncclFloat32 = 7 } ncclDataType_t;

typedef struct {
    int blocking;
} ncclConfig_t;

/* clang-format off */
#define NCCL_CONFIG_INITIALIZER {1}
/* clang-format on */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommFinalize(ncclComm_t communicator);
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
ncclResult_t ncclCommAbort(ncclComm_t communicator);
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t *code);
const char *ncclGetErrorString(ncclResult_t code);
const char *ncclGetLastError(ncclComm_t communicator);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int to, ncclComm_t communicator,
    cudaStream_t stream);
ncclResult_t ncclRecv(
    void *data, size_t count, ncclDataType_t type, int from, ncclComm_t communicator, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
    ncclComm_t communicator, cudaStream_t stream);

/* ---- for tests ---- */

/* Numbers below 0: none. */
struct nccl_double_faults {
    int32_t deaf_rank; /* of a communicator: its start returns only after `deaf_seconds` */
    double deaf_seconds;
    int32_t mute_rank;   /* its start never reaches the others */
    int32_t error_piece; /* this piece of work is not done: an asynchronous error instead */
    int32_t stuck_piece; /* this piece and all work behind it never end */
    int32_t late_piece;  /* its messages leave this rank after `late_seconds` */
    double late_seconds;
};

void nccl_double_set(const struct nccl_double_faults *faults); /* NULL: no faults */

/* Pieces of work since the last nccl_double_set, and bytes that they sent. */
struct nccl_double_counts {
    int64_t pieces, messages, bytes;
};
struct nccl_double_counts nccl_double_counts(void);

/* The emulation's streams cannot be stuck: while a piece of this double is, these answer for it. */
cudaError_t nccl_double_stream_query(cudaStream_t stream);
cudaError_t nccl_double_event_query(cudaEvent_t event);
cudaError_t nccl_double_event_record(cudaEvent_t event, cudaStream_t stream);
#ifndef NCCL_DOUBLE_INSIDE
#define cudaStreamQuery nccl_double_stream_query
#define cudaEventQuery nccl_double_event_query
#define cudaEventRecord nccl_double_event_record
#endif

#ifdef __cplusplus
}
#endif

#endif

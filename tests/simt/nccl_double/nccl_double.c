#define NCCL_DOUBLE_INSIDE
#include "nccl.h"

#include <mpi.h>
#include <sched.h> /* sched_yield */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_EVENTS = 4096, TAGS = 4, FIRST_TAG = 64 };
static const double PATIENCE_SECONDS = 120; /* a piece of work that waits longer is a test that hangs */

/* What a unique id holds. */
struct meeting {
    int32_t root;   /* rank in the double's communicator that gathers the others */
    int32_t serial; /* of the communicators rooted there */
};

struct newcomer {
    int32_t rank, world;
};

/* How far a communicator has come. */
enum stage { MEETING, READY, BROKEN };

struct ncclComm {
    int32_t ranks, rank, tag;
    enum stage stage;
    ncclResult_t error;    /* of BROKEN */
    int32_t looks;         /* until an enqueued piece counts as begun */
    int32_t *world;        /* [ranks]: their numbers in the double's communicator */
    struct newcomer own;   /* sent to the root */
    struct newcomer *came; /* root: [ranks] */
    MPI_Request *requests; /* [2 * ranks + 2] */
    int32_t request_count;
    bool is_root, told;
    struct ncclComm *next; /* of those aborted, whose work may still be in a stream */
};

struct message {
    bool sends;
    void *data;
    size_t bytes;
    int32_t peer;
};

/* One host function of a stream. */
struct piece {
    ncclComm_t communicator;
    cudaStream_t stream;
    int64_t number;
    struct message *messages;
    int32_t count, capacity;
    struct piece *next; /* of those that were recorded, which may run again */
    bool is_recorded;
};

static MPI_Comm double_communicator = MPI_COMM_NULL;
static int double_rank;
static int32_t serials;
static struct nccl_double_faults current = {-1, 0, -1, -1, -1, -1, 0};
static struct nccl_double_counts counts;
static struct piece *open_piece;
static int32_t depth; /* of groups */
static struct piece *recorded;
static ncclComm_t aborted;
static bool stuck; /* some piece is */

/* Events by the pieces of work enqueued before them. */
static struct {
    cudaEvent_t event;
    int64_t pieces;
} events[MOST_EVENTS];
static int32_t event_count;

static void die(const char *why) {
    fprintf(stderr, "NCCL double, rank %d: %s\n", double_rank, why);
    MPI_Abort(MPI_COMM_WORLD, 99);
    _Exit(99);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void sleep_for(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    nanosleep(&time, NULL);
}

static void *take(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        die("out of memory");
    return memory;
}

/* ---- the tests' side ---- */

static void free_piece(struct piece *piece) {
    free(piece->messages);
    free(piece);
}

static void release(ncclComm_t c) {
    free(c->world);
    free(c->came);
    free(c->requests);
    free(c);
}

/* MPI's profiling interface lets the double make its communicator where all ranks meet, whoever starts MPI. */
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int code = PMPI_Init_thread(argc, argv, required, provided);
    if (code != MPI_SUCCESS)
        return code;
    code = PMPI_Comm_dup(MPI_COMM_WORLD, &double_communicator);
    PMPI_Comm_rank(MPI_COMM_WORLD, &double_rank);
    return code;
}

int MPI_Finalize(void) {
    while (recorded) {
        struct piece *next = recorded->next;
        free_piece(recorded);
        recorded = next;
    }
    while (aborted) {
        ncclComm_t next = aborted->next;
        release(aborted);
        aborted = next;
    }
    PMPI_Comm_free(&double_communicator);
    return PMPI_Finalize();
}

void nccl_double_set(const struct nccl_double_faults *faults) {
    current = faults ? *faults : (struct nccl_double_faults){-1, 0, -1, -1, -1, -1, 0};
    counts = (struct nccl_double_counts){0};
    stuck = false;
    event_count = 0;
}

struct nccl_double_counts nccl_double_counts(void) {
    return counts;
}

/* In the lazy mode this is what gets streams going. */
static bool is_stuck(cudaStream_t stream) {
    cudaError_t code = cudaStreamQuery(stream);
    return stuck && (code == cudaSuccess || code == cudaErrorNotReady);
}

cudaError_t nccl_double_stream_query(cudaStream_t stream) {
    if (is_stuck(stream))
        return cudaErrorNotReady;
    return cudaStreamQuery(stream);
}

cudaError_t nccl_double_event_record(cudaEvent_t event, cudaStream_t stream) {
    int32_t i = 0;
    while (i < event_count && events[i].event != event)
        i++;
    if (i == MOST_EVENTS)
        die("too many events");
    events[i].event = event;
    events[i].pieces = counts.pieces;
    event_count += i == event_count;
    return cudaEventRecord(event, stream);
}

cudaError_t nccl_double_event_query(cudaEvent_t event) {
    for (int32_t i = 0; stuck && i < event_count; i++)
        if (events[i].event == event && events[i].pieces > current.stuck_piece)
            return cudaErrorNotReady;
    return cudaEventQuery(event);
}

/* ---- communicators ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    struct meeting meeting = {double_rank, serials++};
    memset(id, 0, sizeof *id);
    memcpy(id, &meeting, sizeof meeting);
    return ncclSuccess;
}

/* The root waits for all, and the others for the root's list. */
static void begin_meeting(ncclComm_t c, struct meeting meeting) {
    c->is_root = meeting.root == double_rank;
    c->own = (struct newcomer){c->rank, double_rank};
    MPI_Isend(&c->own, (int)sizeof c->own, MPI_BYTE, meeting.root, c->tag, double_communicator,
        &c->requests[c->request_count++]);
    if (!c->is_root) {
        MPI_Irecv(c->world, c->ranks, MPI_INT32_T, meeting.root, c->tag + 1, double_communicator,
            &c->requests[c->request_count++]);
        return;
    }
    for (int32_t r = 0; r < c->ranks; r++)
        MPI_Irecv(&c->came[r], (int)sizeof c->came[r], MPI_BYTE, MPI_ANY_SOURCE, c->tag, double_communicator,
            &c->requests[c->request_count++]);
}

static void tell_all(ncclComm_t c) {
    for (int32_t r = 0; r < c->ranks; r++)
        c->world[c->came[r].rank] = c->came[r].world;
    for (int32_t r = 0; r < c->ranks; r++)
        if (c->world[r] != double_rank)
            MPI_Isend(c->world, c->ranks, MPI_INT32_T, c->world[r], c->tag + 1, double_communicator,
                &c->requests[c->request_count++]);
    c->told = true;
}

static void go_on_meeting(ncclComm_t c) {
    int done = 0;
    MPI_Testall(c->request_count, c->requests, &done, MPI_STATUSES_IGNORE);
    if (!done || !c->request_count)
        return;
    c->request_count = 0;
    if (c->is_root && !c->told)
        tell_all(c);
    if (!c->request_count)
        c->stage = READY;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    struct meeting meeting;
    memcpy(&meeting, &id, sizeof meeting);
    if (!config || config->blocking != 0)
        die("communicators are to be made without blocking");
    ncclComm_t c = take(sizeof *c);
    c->ranks = ranks;
    c->rank = rank;
    c->tag = FIRST_TAG + (meeting.root * 1024 + meeting.serial % 1024) % 4096 * TAGS;
    c->world = take(sizeof *c->world * (size_t)ranks);
    c->came = take(sizeof *c->came * (size_t)ranks);
    c->requests = take(sizeof(MPI_Request) * (size_t)(2 * ranks + 2));
    *communicator = c;
    if (current.deaf_rank == rank)
        sleep_for(current.deaf_seconds);
    if (current.mute_rank != rank)
        begin_meeting(c, meeting);
    return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
    c->looks = 1;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
    if (c->stage == MEETING || c->looks)
        die("a communicator is destroyed before it is finalized");
    release(c);
    return ncclSuccess;
}

/* Groups that the caller leaves open end here. */
ncclResult_t ncclCommAbort(ncclComm_t c) {
    if (open_piece && open_piece->communicator == c) {
        free_piece(open_piece);
        open_piece = NULL;
        depth = 0;
    }
    for (int32_t i = 0; i < c->request_count; i++)
        if (c->requests[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&c->requests[i]);
            MPI_Request_free(&c->requests[i]);
        }
    c->stage = BROKEN;
    c->next = aborted;
    aborted = c;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *code) {
    if (c->stage == MEETING)
        go_on_meeting(c);
    *code = c->stage == BROKEN ? c->error : c->stage == MEETING || c->looks ? ncclInProgress : ncclSuccess;
    c->looks -= c->looks > 0;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code) {
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error",
        "internal error", "invalid argument", "invalid usage",
        "remote process exited or there was a network error", "NCCL operation in progress"};
    return code < sizeof texts / sizeof *texts ? texts[code] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t c) {
    return c && c->stage == BROKEN ? "a fault of the double" : "";
}

/* ---- work ---- */

static void post(const struct piece *piece, const struct message *m, MPI_Request *request) {
    const ncclComm_t c = piece->communicator;
    int peer = c->world[m->peer];
    if (m->sends) {
        MPI_Isend(m->data, (int)m->bytes, MPI_BYTE, peer, c->tag + 2, double_communicator, request);
        counts.messages++;
        counts.bytes += (int64_t)m->bytes;
    } else {
        MPI_Irecv(m->data, (int)m->bytes, MPI_BYTE, peer, c->tag + 2, double_communicator, request);
    }
}

static void check_length(const struct message *m, const MPI_Status *status) {
    int bytes = 0;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    if (!m->sends && (size_t)bytes != m->bytes)
        die("a message is not as long as its receiver expects");
}

static void exchange_messages(const struct piece *piece) {
    MPI_Request *requests = take(sizeof *requests * (size_t)piece->count);
    MPI_Status *statuses = take(sizeof *statuses * (size_t)piece->count);
    for (int32_t i = 0; i < piece->count; i++)
        post(piece, &piece->messages[i], &requests[i]);
    double start = now();
    for (int done = 0; !done;) {
        MPI_Testall(piece->count, requests, &done, statuses);
        if (!done)
            sched_yield();
        if (now() - start > PATIENCE_SECONDS)
            die("a piece of work waits for messages that do not come");
    }
    for (int32_t i = 0; i < piece->count; i++)
        check_length(&piece->messages[i], &statuses[i]);
    free(requests);
    free(statuses);
}

/* The host function; of a recorded piece, at each replay. */
static void run_piece(void *argument) {
    struct piece *piece = argument;
    if (piece->number == current.stuck_piece)
        stuck = true;
    if (piece->number == current.late_piece)
        sleep_for(current.late_seconds);
    if (!stuck && piece->communicator->stage != BROKEN)
        exchange_messages(piece);
    if (!piece->is_recorded)
        free_piece(piece);
}

static ncclResult_t enqueue(struct piece *piece) {
    ncclComm_t c = piece->communicator;
    piece->number = counts.pieces++;
    if (piece->number == current.error_piece) {
        c->stage = BROKEN;
        c->error = ncclRemoteError;
    }
    c->looks = 2;
    cudaStream_t stream = piece->stream;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(stream, &capture);
    if (capture == cudaStreamCaptureStatusActive) {
        piece->is_recorded = true;
        piece->next = recorded;
        recorded = piece;
    }
    return cudaLaunchHostFunc(stream, run_piece, piece) == cudaSuccess ? ncclInProgress
                                                                       : ncclUnhandledCudaError;
}

ncclResult_t ncclGroupStart(void) {
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (depth < 1)
        die("a group ends that never began");
    struct piece *piece = open_piece;
    if (--depth || !piece)
        return ncclSuccess;
    open_piece = NULL;
    return enqueue(piece);
}

static size_t type_bytes(ncclDataType_t type) {
    return type == ncclInt32 || type == ncclFloat32 ? 4 : 1;
}

static void add_message(
    bool sends, void *data, size_t bytes, int32_t peer, ncclComm_t c, cudaStream_t stream) {
    if (!open_piece) {
        open_piece = take(sizeof *open_piece);
        open_piece->communicator = c;
        open_piece->stream = stream;
    }
    struct piece *piece = open_piece;
    if (piece->communicator != c || piece->stream != stream)
        die("a group has one communicator and one stream here");
    if (piece->count == piece->capacity) {
        piece->capacity = 2 * piece->capacity + 8;
        piece->messages = realloc(piece->messages, sizeof *piece->messages * (size_t)piece->capacity);
        if (!piece->messages)
            die("out of memory");
    }
    piece->messages[piece->count++] = (struct message){sends, data, bytes, peer};
}

static ncclResult_t send_or_receive(
    bool sends, void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
    if (c->stage == MEETING || c->looks)
        return ncclInvalidUsage; /* what was asked of it before has not begun */
    if (peer < 0 || peer >= c->ranks || (!data && count))
        return ncclInvalidArgument;
    (void)ncclGroupStart();
    add_message(sends, data, count * type_bytes(type), peer, c, stream);
    return ncclGroupEnd();
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int to, ncclComm_t communicator,
    cudaStream_t stream) {
    return send_or_receive(true, (void *)data, count, type, to, communicator, stream);
}

ncclResult_t ncclRecv(
    void *data, size_t count, ncclDataType_t type, int from, ncclComm_t communicator, cudaStream_t stream) {
    return send_or_receive(false, data, count, type, from, communicator, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
    ncclComm_t communicator, cudaStream_t stream) {
    const size_t bytes = count * type_bytes(type);
    (void)ncclGroupStart();
    for (int32_t r = 0; r < communicator->ranks; r++) {
        ncclResult_t code = ncclSend(send, bytes, ncclUint8, r, communicator, stream);
        if (code == ncclSuccess)
            code = ncclRecv((char *)receive + (size_t)r * bytes, bytes, ncclUint8, r, communicator, stream);
        if (code != ncclSuccess) {
            depth--;
            return code;
        }
    }
    return ncclGroupEnd();
}

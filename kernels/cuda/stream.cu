/* Streams of the CUDA backend: their scratch memory, uploads through pinned memory, and the first failure. */
#include "kernels/cuda/memory.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy */

/* Small uploads are copied into pinned host memory and go from there, so that the caller neither waits nor has to keep its array.
 * The ring has two halves; before one is used again, the copies from it must have been made. */
enum { RING_HALF_BYTES = 4 << 20, RING_ALIGNMENT = 64 };

struct pinned_ring {
    uint8_t *memory;     /* [2 * RING_HALF_BYTES] */
    size_t used;         /* bytes of the current half */
    int half;            /* 0 or 1 */
    cudaEvent_t left[2]; /* recorded when a half was full */
};

/* ---- failures ---- */

static void keep_failure(struct stream *stream, enum result status, const char *what, const char *why) {
    if (stream->status != OK)
        return;
    stream->status = status;
    snprintf(stream->message, sizeof stream->message, "device %d: %s: %s", stream->device, what, why);
}

bool stream_check(struct stream *stream, cudaError_t code, const char *what) {
    if (code == cudaSuccess)
        return true;
    keep_failure(stream, code == cudaErrorMemoryAllocation ? ERROR_MEMORY : ERROR_INTERNAL, what,
        cudaGetErrorString(code));
    return false;
}

void stream_launched(struct stream *stream, const char *kernel) {
    (void)stream_check(stream, cudaGetLastError(), kernel);
}

enum result cuda_synchronize(struct stream *stream) {
    (void)stream_check(stream, cudaStreamSynchronize(stream->handle), "work on the device");
    return stream->status == OK ? OK : fail(stream->status, "%s", stream->message);
}

/* ---- scratch memory ---- */

void *stream_scratch(struct stream *stream, enum scratch_area area, size_t bytes) {
    struct scratch *scratch = &stream->scratch[area];
    if (scratch->bytes >= bytes && scratch->memory != NULL)
        return scratch->memory;
    if (stream->is_recording) {
        keep_failure(stream, ERROR_INTERNAL, "recording", "scratch memory would have to grow");
        return NULL;
    }
    stream->scratch_moves++;
    size_t grown = bytes + bytes / 4 + 256; /* some room, lest slowly growing shapes allocate each time */
    void *memory = NULL;
    /* In stream order: work enqueued before still finds the old memory. */
    if (scratch->memory != NULL)
        (void)stream_check(
            stream, cudaFreeAsync(scratch->memory, stream->handle), "release of scratch memory");
    scratch->memory = NULL;
    scratch->bytes = 0;
    if (!stream_check(
            stream, cudaMallocAsync(&memory, grown, stream->handle), "scratch memory of an operation"))
        return NULL;
    scratch->memory = memory;
    scratch->bytes = grown;
    return memory;
}

/* ---- copies ---- */

/* Room for `bytes` in the ring. */
static uint8_t *ring_take(struct stream *stream, size_t bytes) {
    struct pinned_ring *ring = stream->ring;
    size_t rounded = (bytes + RING_ALIGNMENT - 1) / RING_ALIGNMENT * RING_ALIGNMENT;
    if (ring->used + rounded > RING_HALF_BYTES) {
        if (!stream_check(stream, cudaEventRecord(ring->left[ring->half], stream->handle), "upload"))
            return NULL;
        ring->half = 1 - ring->half;
        ring->used = 0;
        if (!stream_check(stream, cudaEventSynchronize(ring->left[ring->half]), "upload"))
            return NULL;
    }
    uint8_t *room = ring->memory + (size_t)ring->half * RING_HALF_BYTES + ring->used;
    ring->used += rounded;
    return room;
}

void cuda_copy_in(struct stream *stream, void *device, const void *host, size_t bytes) {
    if (bytes == 0)
        return;
    if (stream->is_recording) {
        keep_failure(stream, ERROR_INTERNAL, "upload", "host memory was to be read by a recording");
        return;
    }
    const void *from = host;
    if (bytes <= RING_HALF_BYTES / 4) {
        uint8_t *room = ring_take(stream, bytes);
        if (room == NULL)
            return;
        memcpy(room, host, bytes);
        from = room;
    }
    (void)stream_check(
        stream, cudaMemcpyAsync(device, from, bytes, cudaMemcpyHostToDevice, stream->handle), "upload");
}

void cuda_copy_out(struct stream *stream, void *host, const void *device, size_t bytes) {
    if (bytes > 0)
        (void)stream_check(
            stream, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream->handle), "download");
}

void cuda_copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    if (bytes > 0)
        (void)stream_check(stream, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream->handle),
            "copy on the device");
}

/* ---- recordings: graphs of CUDA ---- */

struct recording {
    cudaGraphExec_t graph;
};

enum result cuda_record_begin(struct stream *stream) {
    if (!stream_check(
            stream, cudaStreamBeginCapture(stream->handle, cudaStreamCaptureModeThreadLocal), "recording"))
        return fail(stream->status, "%s", stream->message);
    stream->is_recording = true;
    return OK;
}

enum result cuda_record_end(struct stream *stream, struct recording **recording) {
    cudaGraph_t graph = NULL;
    *recording = NULL;
    stream->is_recording = false;
    (void)stream_check(stream, cudaStreamEndCapture(stream->handle, &graph), "end of a recording");
    struct recording *made = stream->status == OK ? (struct recording *)calloc(1, sizeof *made) : NULL;
    if (made != NULL) {
        if (!stream_check(stream, cudaGraphInstantiate(&made->graph, graph, 0), "recording")) {
            free(made);
            made = NULL;
        }
    }
    if (graph != NULL)
        (void)cudaGraphDestroy(graph);
    *recording = made;
    if (stream->status != OK)
        return fail(stream->status, "%s", stream->message);
    return made != NULL ? OK : fail(ERROR_MEMORY, "out of memory for a recording");
}

int64_t cuda_memory_moves(const struct stream *stream) {
    return stream->scratch_moves;
}

void cuda_replay(struct stream *stream, const struct recording *recording) {
    (void)stream_check(stream, cudaGraphLaunch(recording->graph, stream->handle), "replay");
}

void cuda_recording_free(struct recording *recording) {
    if (recording == NULL)
        return;
    (void)cudaGraphExecDestroy(recording->graph);
    free(recording);
}

/* ---- life ---- */

static enum result ring_create(struct stream *stream) {
    stream->ring = (struct pinned_ring *)calloc(1, sizeof *stream->ring);
    if (stream->ring == NULL)
        return fail(ERROR_MEMORY, "out of memory for a stream");
    void *memory = NULL;
    cudaError_t code = cudaMallocHost(&memory, 2 * RING_HALF_BYTES);
    stream->ring->memory = (uint8_t *)memory;
    for (int i = 0; i < 2 && code == cudaSuccess; i++)
        code = cudaEventCreateWithFlags(&stream->ring->left[i], cudaEventDisableTiming);
    return code == cudaSuccess ? OK
                               : fail(ERROR_MEMORY, "device %d: pinned memory for uploads: %s",
                                     stream->device, cudaGetErrorString(code));
}

static void ring_free(struct pinned_ring *ring) {
    if (ring == NULL)
        return;
    for (int i = 0; i < 2; i++)
        if (ring->left[i] != NULL)
            (void)cudaEventDestroy(ring->left[i]);
    if (ring->memory != NULL)
        (void)cudaFreeHost(ring->memory);
    free(ring);
}

enum result cuda_stream_create(const struct kernels *self, struct stream **stream) {
    const struct cuda_backend *backend = (const struct cuda_backend *)self;
    struct stream *made = (struct stream *)calloc(1, sizeof *made);
    if (made == NULL)
        return fail(ERROR_MEMORY, "out of memory for a stream");
    made->device = backend->device;
    made->multiprocessors = backend->multiprocessors;
    made->architecture = backend->architecture;
    cudaError_t code = cudaSetDevice(backend->device);
    if (code == cudaSuccess)
        code = cudaStreamCreateWithFlags(&made->handle, cudaStreamNonBlocking);
    enum result status = code == cudaSuccess ? ring_create(made)
                                             : fail(ERROR_INTERNAL, "device %d: cannot make a stream: %s",
                                                   backend->device, cudaGetErrorString(code));
    if (status != OK) {
        cuda_stream_free(self, made);
        return status;
    }
    *stream = made;
    return OK;
}

void cuda_stream_free(const struct kernels *self, struct stream *stream) {
    (void)self;
    if (stream == NULL)
        return;
    if (stream->handle != NULL)
        (void)cudaStreamSynchronize(stream->handle);
    for (int32_t i = 0; i < SCRATCH_AREAS; i++)
        if (stream->scratch[i].memory != NULL)
            (void)cudaFreeAsync(stream->scratch[i].memory, stream->handle);
    expert_tables_free(stream);
    ring_free(stream->ring);
    if (stream->handle != NULL)
        (void)cudaStreamDestroy(stream->handle);
    free(stream);
}

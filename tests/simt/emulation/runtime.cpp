/* The host API: devices, memory, streams as queues of tasks, events, capture and graphs. Contract: simt_host.h.
 *
 * One lock guards all of it and is held while tasks run. A task runs when it is enqueued, or, in lazy mode, when something waits for
 * its stream or for an event behind it.
 */
#include "simt_internal.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <time.h>

enum {
    MOST_DEVICES = 32,
};

/* ---- settings ---- */

simt_options simt_settings;
simt_error_handler simt_handler;
void *simt_handler_context;

static int32_t from_environment(const char *name, int32_t otherwise, int32_t least, int32_t most) {
    const char *text = getenv(name);
    if (text == NULL || *text == 0)
        return otherwise;
    char *end = NULL;
    long value = strtol(text, &end, 10);
    if (*end != 0 || value < least || value > most) {
        fprintf(stderr, "simt: %s=%s: give a number from %d to %d\n", name, text, least, most);
        abort();
    }
    return (int32_t)value;
}

static void read_settings(void) {
    simt_options *o = &simt_settings;
    o->seed = (uint64_t)from_environment("SIMT_SEED", 0, 0, INT32_MAX);
    o->threads = from_environment("SIMT_THREADS", 1, 1, 64);
    o->lazy = from_environment("SIMT_LAZY", 0, 0, 1);
    o->uninitialised = from_environment("SIMT_UNINITIALISED", 0, 0, 1);
    o->global_races = from_environment("SIMT_GLOBAL_RACES", 0, 0, 1);
    o->weak_shuffles = from_environment("SIMT_WEAK_SHUFFLES", 0, 0, 1);
    o->devices = from_environment("SIMT_DEVICES", 1, 0, MOST_DEVICES);
    o->multiprocessors = from_environment("SIMT_MULTIPROCESSORS", 4, 1, 1024);
    o->architecture = from_environment("SIMT_ARCHITECTURE", 90, 10, 999);
    o->memory = from_environment("SIMT_MEMORY", 16384, 1, 65536);
}

void simt_read_environment(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_settings);
}

/* ---- the lock ---- */

static pthread_mutex_t *lock_of_all(void) {
    static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    return &mutex;
}

namespace {
/* Held as long as it lives. */
struct hold {
    hold() {
        if (simt_current != NULL) {
            fprintf(stderr, "simt: a kernel called the host API\n");
            abort();
        }
        simt_read_environment();
        pthread_mutex_lock(lock_of_all());
    }
    ~hold() {
        pthread_mutex_unlock(lock_of_all());
    }
};
} // namespace

/* ---- errors ---- */

static thread_local cudaError_t last_error;
static thread_local int current_device;
static cudaError_t failure_of_work; /* told once, by the next call that waits */

static cudaError_t done(cudaError_t code) {
    if (code != cudaSuccess && code != cudaErrorNotReady)
        last_error = code;
    return code;
}

static cudaError_t waited(void) {
    cudaError_t code = failure_of_work;
    failure_of_work = cudaSuccess;
    return done(code);
}

struct named_error {
    cudaError_t code;
    const char *name, *text;
};

#define NAMED(name, text)                                                                                    \
    { cudaError##name, "cudaError" #name, text }
static const struct named_error errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    NAMED(InvalidValue, "invalid argument"),
    NAMED(MemoryAllocation, "out of memory"),
    NAMED(InitializationError, "initialization error"),
    NAMED(InvalidConfiguration, "invalid configuration of a launch"),
    NAMED(InvalidPitchValue, "invalid pitch"),
    NAMED(InvalidDevicePointer, "invalid device pointer"),
    NAMED(InvalidMemcpyDirection, "invalid direction of a copy"),
    NAMED(InsufficientDriver, "the driver is older than the runtime"),
    NAMED(InvalidDeviceFunction, "invalid device function"),
    NAMED(NoDevice, "no device"),
    NAMED(InvalidDevice, "invalid number of a device"),
    NAMED(NoKernelImageForDevice, "no kernel image for the device"),
    NAMED(InvalidResourceHandle, "invalid handle of a resource"),
    NAMED(IllegalState, "a handle's state forbids the call"),
    NAMED(NotReady, "not ready"),
    NAMED(IllegalAddress, "illegal memory access"),
    NAMED(LaunchOutOfResources, "too many resources asked for a launch"),
    NAMED(Assert, "device-side assert"),
    NAMED(MisalignedAddress, "misaligned address"),
    NAMED(LaunchFailure, "a kernel failed"),
    NAMED(NotSupported, "not supported"),
    NAMED(StreamCaptureUnsupported, "not permitted while a stream is capturing"),
    NAMED(StreamCaptureInvalidated, "a call before has spoiled the capture"),
    NAMED(StreamCaptureMerge, "two captures would be merged"),
    NAMED(StreamCaptureUnmatched, "the capture was begun on another stream"),
    NAMED(StreamCaptureUnjoined, "work of a capture was not joined to its first stream"),
    NAMED(StreamCaptureIsolation, "a capture would depend on work outside of it"),
    NAMED(StreamCaptureImplicit, "a capture would depend on the default stream"),
    NAMED(CapturedEvent, "the event was last recorded in a capture"),
    NAMED(StreamCaptureWrongThread, "the capture was begun by another thread"),
    NAMED(Unknown, "unknown error"),
};

static const struct named_error *find_error(cudaError_t code) {
    for (const struct named_error &error : errors)
        if (error.code == code)
            return &error;
    return &errors[sizeof errors / sizeof *errors - 1];
}

extern "C" const char *cudaGetErrorName(cudaError_t code) {
    return find_error(code)->name;
}

extern "C" const char *cudaGetErrorString(cudaError_t code) {
    return find_error(code)->text;
}

extern "C" cudaError_t cudaGetLastError(void) {
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

extern "C" cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

/* ---- tasks ---- */

enum task_kind {
    TASK_LAUNCH,
    TASK_COPY,
    TASK_FILL,
    TASK_RECORD,
    TASK_WAIT,
    TASK_RELEASE,
    TASK_CALL,
};

struct task {
    enum task_kind kind;
    int references; /* by queues and graphs */
    simt_launch_data launch;
    /* rows of a copy or fill; `staged` is the task's own copy of pageable memory, or NULL. TASK_RELEASE: to */
    uint8_t *to;
    const uint8_t *from;
    uint8_t *staged;
    size_t to_pitch, from_pitch, width, height;
    int value;
    struct CUevent_st *event;
    uint64_t version;
    cudaHostFn_t function;
    void *data;
};

struct task_list {
    struct task **items;
    size_t first, count, capacity; /* items[first .. count) */
};

struct CUgraph_st {
    struct task_list tasks; /* in the order of the calls */
    struct CUstream_st *origin;
    bool is_spoiled;
};

struct CUgraphExec_st {
    struct task_list tasks;
};

struct CUstream_st {
    struct task_list queue;
    int device;
    bool is_default, is_blocking;
    struct CUgraph_st *capture; /* being captured into, or NULL */
    uint64_t captured,
        joined; /* tasks captured, and those of them that another stream of the capture waits for */
    struct CUstream_st *next; /* in the list of all */
};

struct CUevent_st {
    int references;              /* the handle's and those of tasks */
    uint64_t version, completed; /* records enqueued, and the last that was reached */
    struct CUstream_st *stream;  /* of the last record */
    struct CUgraph_st *capture;  /* that it was recorded in, or NULL */
    uint64_t captured;           /* tasks of the stream before it, in a capture */
    double time;
    bool has_time;
};

static struct CUstream_st *streams; /* all, but the default streams */
static struct CUstream_st default_streams[MOST_DEVICES];

static void *get_memory(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "simt: out of host memory\n");
        abort();
    }
    return memory;
}

static struct task *new_task(enum task_kind kind) {
    struct task *task = (struct task *)get_memory(sizeof *task);
    task->kind = kind;
    task->references = 1;
    return task;
}

static void drop_event(struct CUevent_st *event) {
    if (--event->references == 0)
        free(event);
}

static void drop_task(struct task *task) {
    if (--task->references > 0)
        return;
    if (task->kind == TASK_LAUNCH)
        task->launch.work.destroy(task->launch.work.arguments);
    if (task->event != NULL)
        drop_event(task->event);
    free(task->staged);
    free(task);
}

static void append_task(struct task_list *list, struct task *task) {
    if (list->first == list->count)
        list->first = list->count = 0;
    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        list->items = (struct task **)realloc(list->items, list->capacity * sizeof *list->items);
        if (list->items == NULL)
            abort();
    }
    list->items[list->count++] = task;
}

static void free_tasks(struct task_list *list) {
    for (size_t i = list->first; i < list->count; i++)
        drop_task(list->items[i]);
    free(list->items);
}

/* ---- running them ---- */

static void run_until(struct CUevent_st *event, uint64_t version);

/* Rows that a copy or fill has written count as written; a copy carries over which bytes were. */
static void mark_written(const struct task *task, const uint8_t *from) {
    simt_buffer *target = simt_buffer_find((uintptr_t)task->to, false);
    if (target == NULL || target->written == NULL)
        return;
    simt_buffer *source = from == NULL ? NULL : simt_buffer_find((uintptr_t)from, false);
    for (size_t row = 0; row < task->height; row++) {
        uint8_t *marks = target->written + ((uintptr_t)task->to - target->begin) + row * task->to_pitch;
        if (source != NULL && source->written != NULL)
            memmove(marks, source->written + ((uintptr_t)from - source->begin) + row * task->from_pitch,
                task->width);
        else
            memset(marks, 1, task->width);
    }
}

static size_t span(size_t pitch, size_t width, size_t height) {
    return height == 0 || width == 0 ? 0 : (height - 1) * pitch + width;
}

/* Whether the range lies in one buffer, or, where that is allowed, in none's neighbourhood: in host memory. */
static bool check_range(const char *what, const void *memory, size_t bytes, bool is_host_allowed) {
    uintptr_t address = (uintptr_t)memory;
    char place[160];
    simt_buffer *buffer = simt_buffer_find(address, false);
    bool is_in_arena = simt_arena != 0 && (address - simt_arena) >> SIMT_PAGE_BITS < simt_arena_pages;
    if (bytes == 0 || (!is_in_arena && is_host_allowed))
        return true;
    if (buffer != NULL && address - buffer->begin + bytes <= buffer->bytes)
        return true;
    simt_describe(buffer != NULL ? buffer->begin + buffer->bytes : address, place, sizeof place);
    simt_fail(NULL, "%s of %zu bytes reaches %s", what, bytes, place);
    return false;
}

static bool check_rows(const struct task *task) {
    if (task->kind == TASK_COPY && !check_range("the source of a copy", task->from,
                                       span(task->from_pitch, task->width, task->height), true))
        return false;
    return check_range(task->kind == TASK_COPY ? "the target of a copy" : "a fill", task->to,
        span(task->to_pitch, task->width, task->height), task->kind == TASK_COPY);
}

static void run_rows(const struct task *task) {
    const uint8_t *from = task->staged != NULL ? task->staged : task->from;
    size_t from_pitch = task->staged != NULL ? task->width : task->from_pitch;
    if (!check_rows(task)) { /* freed since it was enqueued */
        failure_of_work = cudaErrorIllegalAddress;
        return;
    }
    for (size_t row = 0; row < task->height; row++) {
        if (task->kind == TASK_COPY)
            memmove(task->to + row * task->to_pitch, from + row * from_pitch, task->width);
        else
            memset(task->to + row * task->to_pitch, task->value, task->width);
    }
    mark_written(task, task->kind == TASK_COPY ? task->from : NULL);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static cudaError_t release(void *memory, enum simt_memory_kind kind, const char *call) {
    if (simt_buffer_free(memory, kind))
        return cudaSuccess;
    simt_fail(NULL, "%s of %p, where no buffer of %s memory begins, or no longer does", call, memory,
        kind == SIMT_DEVICE_MEMORY ? "device" : "pinned");
    return cudaErrorInvalidValue;
}

static void run_task(struct task *task) {
    switch (task->kind) {
    case TASK_LAUNCH:
        if (!simt_run_launch(&task->launch))
            failure_of_work = cudaErrorLaunchFailure;
        break;
    case TASK_COPY:
    case TASK_FILL:
        run_rows(task);
        break;
    case TASK_RECORD:
        task->event->completed = task->version;
        task->event->time = now();
        break;
    case TASK_WAIT:
        run_until(task->event, task->version);
        break;
    case TASK_RELEASE:
        if (release(task->to, SIMT_DEVICE_MEMORY, "cudaFreeAsync") != cudaSuccess)
            failure_of_work = cudaErrorInvalidValue;
        break;
    case TASK_CALL:
        task->function(task->data);
        break;
    }
}

static bool run_next(struct CUstream_st *stream) {
    struct task_list *queue = &stream->queue;
    if (queue->first == queue->count)
        return false;
    struct task *task = queue->items[queue->first++];
    run_task(task);
    drop_task(task);
    return true;
}

static void run_tasks(struct CUstream_st *stream) {
    while (run_next(stream))
        ;
}

static void run_until(struct CUevent_st *event, uint64_t version) {
    while (event->completed < version && run_next(event->stream))
        ;
}

static void run_blocking_streams(void) {
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->is_blocking)
            run_tasks(stream);
}

static void run_everything(void) {
    for (int device = 0; device < MOST_DEVICES; device++)
        run_tasks(&default_streams[device]);
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        run_tasks(stream);
}

/* The stream meant; NULL for a device that is not there. */
static struct CUstream_st *resolve(cudaStream_t stream) {
    if (stream != NULL && stream != cudaStreamLegacy)
        return stream;
    struct CUstream_st *found = &default_streams[current_device];
    found->device = current_device;
    found->is_default = found->is_blocking = true;
    return found;
}

/* Takes over the caller's reference. */
static void enqueue(struct CUstream_st *stream, struct task *task) {
    if (stream->capture != NULL) {
        stream->captured++;
        append_task(&stream->capture->tasks, task);
        return;
    }
    if (simt_settings.lazy) {
        if (stream->is_default) /* its order with streams that did not ask to be apart */
            run_blocking_streams();
        else if (stream->is_blocking)
            run_tasks(&default_streams[stream->device]);
        append_task(&stream->queue, task);
        return;
    }
    run_task(task);
    drop_task(task);
}

/* ---- capture ---- */

static bool is_capturing(void) {
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->capture != NULL)
            return true;
    return false;
}

/* Refuses a call that allocates or waits while a stream is capturing, and spoils the capture. */
static bool refuse_in_capture(void) {
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next)
        if (stream->capture != NULL)
            stream->capture->is_spoiled = true;
    return is_capturing();
}

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
    struct hold hold;
    struct CUstream_st *stream = resolve(handle);
    (void)mode;
    if (stream->is_default)
        return done(cudaErrorStreamCaptureUnsupported);
    if (stream->capture != NULL)
        return done(cudaErrorIllegalState);
    stream->capture = (struct CUgraph_st *)get_memory(sizeof *stream->capture);
    stream->capture->origin = stream;
    stream->captured = stream->joined = 0;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    struct hold hold;
    if (graph == NULL)
        return done(cudaErrorInvalidValue);
    free_tasks(&graph->tasks);
    free(graph);
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
    struct hold hold;
    struct CUstream_st *origin = resolve(handle);
    struct CUgraph_st *capture = origin->capture;
    *graph = NULL;
    if (capture == NULL)
        return done(cudaErrorIllegalState);
    if (capture->origin != origin)
        return done(cudaErrorStreamCaptureUnmatched);
    cudaError_t code = capture->is_spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    for (struct CUstream_st *stream = streams; stream != NULL; stream = stream->next) {
        if (stream->capture != capture)
            continue;
        if (stream != origin && stream->joined < stream->captured && code == cudaSuccess)
            code = cudaErrorStreamCaptureUnjoined;
        stream->capture = NULL;
    }
    if (code != cudaSuccess) {
        (void)cudaGraphDestroy(capture);
        return done(code);
    }
    *graph = capture;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
    struct hold hold;
    struct CUgraph_st *capture = resolve(handle)->capture;
    *status = capture == NULL       ? cudaStreamCaptureStatusNone
              : capture->is_spoiled ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphInstantiate(
    cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    struct hold hold;
    (void)flags;
    if (graph == NULL)
        return done(cudaErrorInvalidValue);
    struct CUgraphExec_st *made = (struct CUgraphExec_st *)get_memory(sizeof *made);
    for (size_t i = 0; i < graph->tasks.count; i++) {
        graph->tasks.items[i]->references++;
        append_task(&made->tasks, graph->tasks.items[i]);
    }
    *executable = made;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
    struct hold hold;
    struct CUstream_st *stream = resolve(handle);
    if (graph == NULL)
        return done(cudaErrorInvalidValue);
    for (size_t i = 0; i < graph->tasks.count; i++) {
        graph->tasks.items[i]->references++;
        enqueue(stream, graph->tasks.items[i]);
    }
    return cudaSuccess;
}

extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    struct hold hold;
    if (graph == NULL)
        return done(cudaErrorInvalidValue);
    free_tasks(&graph->tasks);
    free(graph);
    return cudaSuccess;
}

/* ---- launches ---- */

static cudaError_t check_launch(const unsigned grid[3], const unsigned block[3], size_t shared_bytes) {
    static const uint64_t most_blocks[3] = {2147483647, 65535, 65535}, most_threads[3] = {1024, 1024, 64};
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (grid[i] == 0 || block[i] == 0 || grid[i] > most_blocks[i] || block[i] > most_threads[i])
            return cudaErrorInvalidConfiguration;
        threads *= block[i];
    }
    if (threads > SIMT_BLOCK_THREADS)
        return cudaErrorInvalidConfiguration;
    return shared_bytes > SIMT_SHARED_BYTES ? cudaErrorInvalidValue : cudaSuccess;
}

extern "C" void simt_enqueue_launch(cudaStream_t handle, const char *name, const unsigned grid[3],
    const unsigned block[3], size_t shared_bytes, simt_work work) {
    struct hold hold;
    struct CUstream_st *stream = resolve(handle);
    cudaError_t code = check_launch(grid, block, shared_bytes);
    if (code != cudaSuccess) {
        work.destroy(work.arguments);
        (void)done(code);
        return;
    }
    struct task *task = new_task(TASK_LAUNCH);
    simt_launch_data *launch = &task->launch;
    launch->name = name;
    for (int i = 0; i < 3; i++) {
        launch->grid[i] = grid[i];
        launch->block[i] = block[i];
    }
    launch->blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    launch->shared_bytes = shared_bytes;
    launch->work = work;
    launch->device = stream->device;
    enqueue(stream, task);
}

extern "C" cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    bool is_too_much =
        attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > (int)SIMT_SHARED_BYTES;
    return done(kernel == NULL || value < 0 || is_too_much ? cudaErrorInvalidValue : cudaSuccess);
}

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
    struct hold hold;
    struct task *task = new_task(TASK_CALL);
    task->function = function;
    task->data = data;
    enqueue(resolve(handle), task);
    return cudaSuccess;
}

/* ---- copies ---- */

static bool is_device_memory(const void *memory) {
    simt_buffer *buffer = simt_buffer_find((uintptr_t)memory, true);
    return buffer != NULL && buffer->kind == SIMT_DEVICE_MEMORY;
}

static bool is_pageable(const void *memory) {
    return (uintptr_t)memory - simt_arena >= simt_arena_pages << SIMT_PAGE_BITS;
}

static bool fits_kind(const void *to, const void *from, enum cudaMemcpyKind kind) {
    bool is_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool is_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return kind == cudaMemcpyDefault ||
           (is_device_memory(to) == is_to_device && is_device_memory(from) == is_from_device);
}

/* The task of a copy, or NULL with the code of what is wrong. */
static struct task *new_copy(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
    size_t height, enum cudaMemcpyKind kind, cudaError_t *code) {
    struct task *task = new_task(TASK_COPY);
    task->to = (uint8_t *)to;
    task->from = (const uint8_t *)from;
    task->to_pitch = to_pitch;
    task->from_pitch = from_pitch;
    task->width = width;
    task->height = height;
    *code = cudaSuccess;
    if (width > to_pitch || width > from_pitch)
        *code = cudaErrorInvalidPitchValue;
    else if (!check_rows(task))
        *code = cudaErrorInvalidValue;
    else if (width * height > 0 && !fits_kind(to, from, kind))
        *code = cudaErrorInvalidMemcpyDirection;
    if (*code == cudaSuccess)
        return task;
    drop_task(task);
    return NULL;
}

/* Pageable memory is the caller's again after the call. */
static void stage(struct task *task) {
    if (!is_pageable(task->from) || task->width * task->height == 0)
        return;
    task->staged = (uint8_t *)get_memory(task->width * task->height);
    for (size_t row = 0; row < task->height; row++)
        memcpy(task->staged + row * task->width, task->from + row * task->from_pitch, task->width);
}

extern "C" cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
    size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t handle) {
    struct hold hold;
    struct CUstream_st *stream = resolve(handle);
    cudaError_t code = cudaSuccess;
    struct task *task = new_copy(to, to_pitch, from, from_pitch, width, height, kind, &code);
    if (task == NULL)
        return done(code);
    if (simt_settings.lazy && stream->capture == NULL)
        stage(task);
    enqueue(stream, task);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

extern "C" cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    struct hold hold;
    if (refuse_in_capture())
        return done(cudaErrorStreamCaptureImplicit);
    cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    run_tasks(resolve(NULL));
    return code == cudaSuccess ? waited() : code;
}

extern "C" cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t handle) {
    struct hold hold;
    struct task *task = new_task(TASK_FILL);
    task->to = (uint8_t *)to;
    task->to_pitch = task->width = bytes;
    task->height = 1;
    task->value = value;
    if (!check_rows(task)) {
        drop_task(task);
        return done(cudaErrorInvalidValue);
    }
    enqueue(resolve(handle), task);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    struct hold hold;
    if (refuse_in_capture())
        return done(cudaErrorStreamCaptureImplicit);
    return cudaMemsetAsync(to, value, bytes, NULL);
}

/* ---- memory ---- */

static cudaError_t allocate(void **memory, size_t bytes, enum simt_memory_kind kind, int device) {
    *memory = NULL;
    if (refuse_in_capture())
        return done(cudaErrorStreamCaptureUnsupported);
    if (simt_settings.devices == 0)
        return done(cudaErrorNoDevice);
    if (bytes == 0)
        return cudaSuccess;
    *memory = simt_buffer_create(bytes, kind, device);
    return done(*memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

extern "C" cudaError_t cudaMalloc(void **memory, size_t bytes) {
    struct hold hold;
    return allocate(memory, bytes, SIMT_DEVICE_MEMORY, current_device);
}

extern "C" cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream) {
    struct hold hold;
    return allocate(memory, bytes, SIMT_DEVICE_MEMORY, resolve(stream)->device);
}

extern "C" cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags) {
    struct hold hold;
    (void)flags;
    return allocate(memory, bytes, SIMT_PINNED_MEMORY, current_device);
}

extern "C" cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

/* Waits for all work, as CUDA does in practice. */
static cudaError_t free_at_once(void *memory, enum simt_memory_kind kind, const char *call) {
    if (memory == NULL)
        return cudaSuccess;
    if (refuse_in_capture())
        return done(cudaErrorStreamCaptureUnsupported);
    run_everything();
    return done(release(memory, kind, call));
}

extern "C" cudaError_t cudaFree(void *memory) {
    struct hold hold;
    return free_at_once(memory, SIMT_DEVICE_MEMORY, "cudaFree");
}

extern "C" cudaError_t cudaFreeHost(void *memory) {
    struct hold hold;
    return free_at_once(memory, SIMT_PINNED_MEMORY, "cudaFreeHost");
}

extern "C" cudaError_t cudaFreeAsync(void *memory, cudaStream_t handle) {
    struct hold hold;
    struct CUstream_st *stream = resolve(handle);
    if (memory == NULL)
        return cudaSuccess;
    if (stream->capture != NULL) {
        stream->capture->is_spoiled = true;
        return done(cudaErrorStreamCaptureUnsupported);
    }
    struct task *task = new_task(TASK_RELEASE);
    task->to = (uint8_t *)memory;
    enqueue(stream, task);
    return cudaSuccess;
}

extern "C" cudaError_t cudaPointerGetAttributes(
    struct cudaPointerAttributes *attributes, const void *memory) {
    struct hold hold;
    simt_buffer *buffer = simt_buffer_find((uintptr_t)memory, false);
    memset(attributes, 0, sizeof *attributes);
    attributes->device = buffer != NULL ? buffer->device : -1;
    if (buffer == NULL)
        return cudaSuccess;
    attributes->type = buffer->kind == SIMT_DEVICE_MEMORY ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->devicePointer = (void *)memory;
    attributes->hostPointer = buffer->kind == SIMT_DEVICE_MEMORY ? NULL : (void *)memory;
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    struct hold hold;
    *all = (size_t)simt_settings.memory << 20;
    *left = *all - simt_memory_used(current_device);
    return cudaSuccess;
}

/* ---- streams ---- */

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    struct hold hold;
    *stream = NULL;
    if (simt_settings.devices == 0)
        return done(cudaErrorNoDevice);
    if (flags > cudaStreamNonBlocking)
        return done(cudaErrorInvalidValue);
    struct CUstream_st *made = (struct CUstream_st *)get_memory(sizeof *made);
    made->device = current_device;
    made->is_blocking = flags == cudaStreamDefault;
    made->next = streams;
    streams = made;
    *stream = made;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    struct hold hold;
    struct CUstream_st **link = &streams;
    while (*link != NULL && *link != stream)
        link = &(*link)->next;
    if (*link == NULL)
        return done(cudaErrorInvalidResourceHandle);
    if (stream->capture != NULL)
        return done(cudaErrorStreamCaptureUnsupported);
    run_tasks(stream);
    *link = stream->next;
    free_tasks(&stream->queue);
    free(stream);
    return cudaSuccess;
}

static cudaError_t wait_for(struct CUstream_st *stream) {
    if (refuse_in_capture())
        return done(cudaErrorStreamCaptureUnsupported);
    if (stream->is_default)
        run_blocking_streams();
    run_tasks(stream);
    return waited();
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    struct hold hold;
    return wait_for(resolve(stream));
}

extern "C" cudaError_t cudaDeviceSynchronize(void) {
    struct hold hold;
    if (refuse_in_capture())
        return done(cudaErrorStreamCaptureUnsupported);
    run_everything();
    return waited();
}

/* Each call that finds work does a piece of it, so that polling ends. */
extern "C" cudaError_t cudaStreamQuery(cudaStream_t handle) {
    struct hold hold;
    if (refuse_in_capture())
        return done(cudaErrorStreamCaptureUnsupported);
    return run_next(resolve(handle)) ? cudaErrorNotReady : waited();
}

/* ---- events ---- */

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    struct hold hold;
    struct CUevent_st *made = (struct CUevent_st *)get_memory(sizeof *made);
    made->references = 1;
    made->has_time = (flags & cudaEventDisableTiming) == 0;
    *event = made;
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event) {
    struct hold hold;
    if (event == NULL)
        return done(cudaErrorInvalidResourceHandle);
    drop_event(event);
    return cudaSuccess;
}

static struct task *new_event_task(enum task_kind kind, struct CUevent_st *event) {
    struct task *task = new_task(kind);
    task->event = event;
    task->version = event->version;
    event->references++;
    return task;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    struct hold hold;
    struct CUstream_st *stream = resolve(handle);
    if (event == NULL)
        return done(cudaErrorInvalidResourceHandle);
    event->stream = stream;
    event->capture = stream->capture;
    event->captured = stream->captured;
    if (stream->capture != NULL)
        return cudaSuccess;
    event->version++;
    enqueue(stream, new_event_task(TASK_RECORD, event));
    return cudaSuccess;
}

/* A wait inside a capture orders nothing here, for its tasks keep the order of the calls: it makes a stream take part, or joins it. */
static cudaError_t wait_in_capture(struct CUstream_st *stream, struct CUevent_st *event) {
    if (event->capture == NULL) {
        stream->capture->is_spoiled = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (stream->capture != NULL && stream->capture != event->capture) {
        stream->capture->is_spoiled = event->capture->is_spoiled = true;
        return cudaErrorStreamCaptureMerge;
    }
    if (event->stream != stream && event->stream->joined < event->captured)
        event->stream->joined = event->captured;
    if (stream->capture == NULL) {
        stream->capture = event->capture;
        stream->captured = 1; /* even without tasks it must be joined */
        stream->joined = 0;
    }
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
    struct hold hold;
    struct CUstream_st *stream = resolve(handle);
    (void)flags;
    if (event == NULL)
        return done(cudaErrorInvalidResourceHandle);
    if (stream->capture != NULL || event->capture != NULL)
        return done(wait_in_capture(stream, event));
    if (event->version > 0)
        enqueue(stream, new_event_task(TASK_WAIT, event));
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    struct hold hold;
    if (event == NULL)
        return done(cudaErrorInvalidResourceHandle);
    if (event->capture != NULL)
        return done(cudaErrorCapturedEvent);
    if (refuse_in_capture())
        return done(cudaErrorStreamCaptureUnsupported);
    run_until(event, event->version);
    return waited();
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event) {
    struct hold hold;
    if (event == NULL)
        return done(cudaErrorInvalidResourceHandle);
    if (event->capture != NULL)
        return done(cudaErrorCapturedEvent);
    if (event->completed == event->version)
        return waited();
    (void)run_next(event->stream);
    return cudaErrorNotReady;
}

extern "C" cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    struct hold hold;
    if (start == NULL || end == NULL || !start->has_time || !end->has_time || start->version == 0 ||
        end->version == 0)
        return done(cudaErrorInvalidResourceHandle);
    if (start->completed < start->version || end->completed < end->version)
        return cudaErrorNotReady;
    *milliseconds = (float)((end->time - start->time) * 1e3);
    return cudaSuccess;
}

/* ---- devices ---- */

extern "C" cudaError_t cudaGetDeviceCount(int *count) {
    struct hold hold;
    *count = simt_settings.devices;
    return done(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

static bool is_device(int device) {
    return device >= 0 && device < simt_settings.devices;
}

extern "C" cudaError_t cudaSetDevice(int device) {
    struct hold hold;
    if (!is_device(device))
        return done(simt_settings.devices > 0 ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    current_device = device;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    struct hold hold;
    if (!is_device(device))
        return done(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated device %d", device);
    p->totalGlobalMem = (size_t)simt_settings.memory << 20;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = SIMT_SHARED_BYTES;
    p->sharedMemPerMultiprocessor = SIMT_SHARED_BYTES + 1024;
    p->totalConstMem = 64 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = SIMT_WARP;
    p->maxThreadsPerBlock = SIMT_BLOCK_THREADS;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = simt_settings.architecture / 10;
    p->minor = simt_settings.architecture % 10;
    p->multiProcessorCount = simt_settings.multiprocessors;
    p->maxThreadsPerMultiProcessor = 2048;
    p->l2CacheSize = 50 << 20;
    p->pciBusID = device + 1;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->memoryPoolsSupported = 1;
    p->asyncEngineCount = 2;
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    cudaError_t code = cudaGetDeviceProperties(&p, device);
    if (code != cudaSuccess)
        return code;
    const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } table[] = {
        {cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
        {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
        {cudaDevAttrMaxBlockDimY, p.maxThreadsDim[1]},
        {cudaDevAttrMaxBlockDimZ, p.maxThreadsDim[2]},
        {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
        {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
        {cudaDevAttrMaxGridDimZ, p.maxGridSize[2]},
        {cudaDevAttrMaxSharedMemoryPerBlock, (int)p.sharedMemPerBlock},
        {cudaDevAttrWarpSize, p.warpSize},
        {cudaDevAttrMaxRegistersPerBlock, p.regsPerBlock},
        {cudaDevAttrMultiProcessorCount, p.multiProcessorCount},
        {cudaDevAttrIntegrated, p.integrated},
        {cudaDevAttrCanMapHostMemory, p.canMapHostMemory},
        {cudaDevAttrConcurrentKernels, p.concurrentKernels},
        {cudaDevAttrEccEnabled, p.ECCEnabled},
        {cudaDevAttrPciBusId, p.pciBusID},
        {cudaDevAttrPciDeviceId, p.pciDeviceID},
        {cudaDevAttrPciDomainId, p.pciDomainID},
        {cudaDevAttrL2CacheSize, p.l2CacheSize},
        {cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor},
        {cudaDevAttrAsyncEngineCount, p.asyncEngineCount},
        {cudaDevAttrUnifiedAddressing, p.unifiedAddressing},
        {cudaDevAttrComputeCapabilityMajor, p.major},
        {cudaDevAttrComputeCapabilityMinor, p.minor},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)p.sharedMemPerMultiprocessor},
        {cudaDevAttrCooperativeLaunch, 0},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)p.sharedMemPerBlockOptin},
        {cudaDevAttrMemoryPoolsSupported, p.memoryPoolsSupported},
    };
    for (const auto &entry : table) {
        if (entry.attribute != attribute)
            continue;
        *value = entry.value;
        return cudaSuccess;
    }
    return done(cudaErrorInvalidValue);
}

extern "C" cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
    struct cudaDeviceProp p;
    cudaError_t code = cudaGetDeviceProperties(&p, device);
    if (code != cudaSuccess)
        return code;
    int used = snprintf(text, (size_t)bytes, "%04x:%02x:%02x.0", (unsigned)p.pciDomainID,
        (unsigned)p.pciBusID, (unsigned)p.pciDeviceID);
    return done(used < bytes ? cudaSuccess : cudaErrorInvalidValue);
}

extern "C" cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

extern "C" cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* ---- controls ---- */

extern "C" simt_options simt_get_options(void) {
    struct hold hold;
    return simt_settings;
}

extern "C" void simt_set_options(const simt_options *options) {
    struct hold hold;
    run_everything();
    simt_settings = *options;
}

extern "C" void simt_on_error(simt_error_handler handler, void *context) {
    struct hold hold;
    simt_handler = handler;
    simt_handler_context = context;
}

extern "C" simt_counts simt_get_counts(void) {
    struct hold hold;
    return simt_count;
}

/* The CUDA backend: one device, its memory, and the table of its operations. */
#include "kernels/cuda/memory.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/sample.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */

enum { ALIGNMENT = 64, LEAST_ARCHITECTURE = 90 };

/* ---- memory ---- */

static enum result cuda_failure(
    const struct kernels *self, cudaError_t code, const char *what, size_t bytes) {
    const struct cuda_backend *backend = (const struct cuda_backend *)self;
    size_t left = 0, all = 0;
    (void)cudaGetLastError();
    if (code != cudaErrorMemoryAllocation)
        return fail(ERROR_INTERNAL, "device %d: %s: %s", backend->device, what, cudaGetErrorString(code));
    (void)cudaMemGetInfo(&left, &all);
    return fail(ERROR_MEMORY, "device %d: no memory for %s of %zu MB: %zu of its %zu MB are free",
        backend->device, what, bytes >> 20, left >> 20, all >> 20);
}

static enum result cuda_allocate(const struct kernels *self, size_t bytes, void **memory) {
    void *place = NULL;
    size_t least = bytes > 0 ? bytes : 1;
    cudaError_t code = cudaSetDevice(((const struct cuda_backend *)self)->device);
    if (code == cudaSuccess)
        code = cudaMalloc(&place, least);
    if (code != cudaSuccess)
        return cuda_failure(self, code, "an array", bytes);
    cudaStream_t own = ((const struct cuda_backend *)self)->own;
    code = cudaMemsetAsync(place, 0, least, own);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(own);
    if (code != cudaSuccess) {
        (void)cudaFree(place);
        return cuda_failure(self, code, "an array", bytes);
    }
    *memory = place;
    return OK;
}

static void cuda_release(const struct kernels *self, void *memory) {
    (void)self;
    if (memory != NULL)
        (void)cudaFree(memory); /* waits for the work enqueued on it */
}

static int64_t cuda_memory_left(const struct kernels *self) {
    size_t left = 0, all = 0;
    (void)cudaSetDevice(((const struct cuda_backend *)self)->device);
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? (int64_t)left : 0;
}

/* ---- weights: as published, the values and then the scales ---- */

static int64_t whole_lines(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t cuda_placed_bytes(const struct kernels *self, const struct matrix *host) {
    (void)self;
    return whole_lines(matrix_value_bytes(host)) + whole_lines(matrix_scale_bytes(host));
}

static enum result cuda_place(
    const struct kernels *self, const struct matrix *host, void *memory, struct matrix *placed) {
    if (memory == NULL)
        return fail(ERROR_INTERNAL, "a matrix was to be placed on a device without memory for it");
    int64_t values = matrix_value_bytes(host), scales = matrix_scale_bytes(host);
    uint8_t *to = (uint8_t *)memory, *scales_to = to + whole_lines(values);
    const struct cuda_backend *backend = (const struct cuda_backend *)self;
    cudaError_t code = cudaSetDevice(backend->device);
    if (code == cudaSuccess)
        code = cudaMemcpyAsync(to, host->values, (size_t)values, cudaMemcpyHostToDevice, backend->own);
    if (code == cudaSuccess && host->scales != NULL)
        code = cudaMemcpyAsync(scales_to, host->scales, (size_t)scales, cudaMemcpyHostToDevice, backend->own);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(backend->own);
    if (code != cudaSuccess)
        return cuda_failure(self, code, "the upload of a matrix", (size_t)(values + scales));
    *placed = *host;
    placed->values = to;
    placed->scales = host->scales != NULL ? scales_to : NULL;
    return OK;
}

/* ---- the table ---- */

static void fill_operations(struct kernels *table) {
    table->product = cuda_product;
    table->grouped_product = cuda_grouped_product;
    table->experts = cuda_experts;
    table->copy_rows = cuda_copy_rows;
    table->embed = cuda_embed;
    table->rms_norm = cuda_rms_norm;
    table->encode = cuda_encode;
    table->decode = cuda_decode;
    table->round = cuda_round;
    table->rotate = cuda_rotate;
    table->swiglu = cuda_swiglu;
    table->combine = cuda_combine;
    table->start_streams = cuda_start_streams;
    table->collapse_norm = cuda_collapse_norm;
    table->mix = cuda_mix;
    table->expand = cuda_expand;
    table->engram_add = cuda_engram_add;
    table->store_rows = cuda_store_rows;
    table->compress_pairs = cuda_compress_pairs;
    table->choose = cuda_choose;
    table->attend = cuda_attend;
    table->add_bias = cuda_add_bias;
    table->add = cuda_add;
    table->gelu = cuda_gelu;
    table->rotate_grid = cuda_rotate_grid;
    table->pack_squares = cuda_pack_squares;
    table->attend_all = cuda_attend_all;
    table->route = cuda_route;
    table->sample = cuda_sample;
}

static void cuda_destroy(const struct kernels *self) {
    (void)cudaStreamDestroy(((const struct cuda_backend *)self)->own);
    free((void *)self);
}

static enum result look_at_device(struct cuda_backend *backend) {
    int major = 0, minor = 0, count = 0;
    cudaError_t code = cudaSetDevice(backend->device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, backend->device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, backend->device);
    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, backend->device);
    if (code != cudaSuccess)
        return fail(ERROR_USAGE, "device %d cannot be used: %s", backend->device, cudaGetErrorString(code));
    backend->multiprocessors = count;
    backend->architecture = 10 * major + minor;
#ifdef CUDA_EMULATION
    snprintf(backend->name, sizeof backend->name, "emulation");
#else
    /* Kernels are built for 9.0 and 10.0; code for the latter runs on all of 10.x, and a family has one name, for its bits are
     * the same. */
    if (backend->architecture < LEAST_ARCHITECTURE)
        return fail(ERROR_USAGE,
            "device %d has compute capability %d.%d, older than 9.0: use --backend cpu or a newer device",
            backend->device, major, minor);
    snprintf(backend->name, sizeof backend->name, "sm%d0", major);
#endif
    code = cudaStreamCreateWithFlags(&backend->own, cudaStreamNonBlocking);
    if (code != cudaSuccess)
        return fail(
            ERROR_INTERNAL, "device %d: cannot make a stream: %s", backend->device, cudaGetErrorString(code));
    return OK;
}

int32_t kernels_cuda_devices(const char **why) {
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    *why = "the CUDA driver shows no device to this process";
    if (code == cudaSuccess)
        return count;
    (void)cudaGetLastError();
    *why = cudaGetErrorString(code);
    return 0;
}

enum result kernels_cuda_create(int32_t device, const struct kernels **kernels) {
    const char *why = NULL;
    int32_t devices = kernels_cuda_devices(&why);
    *kernels = NULL;
    if (devices == 0)
        return fail(ERROR_USAGE, "no CUDA device: %s", why);
    if (device < 0 || device >= devices)
        return fail(ERROR_USAGE, "device %d: this process sees %d, numbered from 0", device, devices);
    struct cuda_backend *backend = (struct cuda_backend *)calloc(1, sizeof *backend);
    if (backend == NULL)
        return fail(ERROR_MEMORY, "out of memory for the CUDA backend");
    backend->device = device;
    enum result status = look_at_device(backend);
    if (status != OK) {
        free(backend);
        return status;
    }
    struct kernels *table = &backend->table;
    table->name = "cuda";
    table->instruction_set = backend->name;
    table->threads = 1;
    table->has_cuda_streams = true;
    table->destroy = cuda_destroy;
    table->stream_create = cuda_stream_create;
    table->stream_free = cuda_stream_free;
    table->allocate = cuda_allocate;
    table->release = cuda_release;
    table->memory_left = cuda_memory_left;
    table->copy_in = cuda_copy_in;
    table->copy_out = cuda_copy_out;
    table->copy = cuda_copy;
    table->synchronize = cuda_synchronize;
    table->record_begin = cuda_record_begin;
    table->record_end = cuda_record_end;
    table->memory_moves = cuda_memory_moves;
    table->replay = cuda_replay;
    table->recording_free = cuda_recording_free;
    table->placed_bytes = cuda_placed_bytes;
    table->place = cuda_place;
    fill_operations(table);
    *kernels = table;
    return OK;
}

/* The limits of a device: reads from memory and float32 multiply-adds by kernels that do nothing else. */
#include "bench/device/device.h"
#include "bench/device/timing.h"

#include <stdio.h> /* snprintf */

enum { READ_THREADS = 512, READ_UNROLL = 8, FMA_THREADS = 512, FMA_SUMS = 8, FMA_ROUNDS = 4096, PASSES = 10 };
static const size_t READ_BYTES = (size_t)4 << 30;

/* ---- reads ---- */

struct reading {
    const uint4 *memory;
    size_t vectors; /* a multiple of blocks * READ_THREADS * READ_UNROLL */
    unsigned *sink;
    int blocks;
};

/* Adds up all of the memory; the sum reaches `sink`, lest the compiler leave the loads out. */
static __global__ void __launch_bounds__(READ_THREADS)
    read_all(const uint4 *memory, size_t vectors, unsigned *sink) {
    const size_t step = (size_t)gridDim.x * READ_THREADS * READ_UNROLL;
    unsigned sum = 0;
    for (size_t at = (size_t)blockIdx.x * READ_THREADS * READ_UNROLL + threadIdx.x; at < vectors;
         at += step) {
        uint4 v[READ_UNROLL];
#pragma unroll
        for (int i = 0; i < READ_UNROLL; i++)
            v[i] = __ldcs(memory + at + (size_t)i * READ_THREADS);
#pragma unroll
        for (int i = 0; i < READ_UNROLL; i++)
            sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 1) /* of zeros it never is */
        *sink = sum;
}

static cudaError_t read_pass(void *context, cudaStream_t stream) {
    const struct reading *reading = (const struct reading *)context;
    read_all<<<reading->blocks, READ_THREADS, 0, stream>>>(reading->memory, reading->vectors, reading->sink);
    return cudaGetLastError();
}

/* The best of several numbers of blocks a multiprocessor. */
static cudaError_t measure_reads(int multiprocessors, double *rate) {
    size_t left = 0, all = 0;
    void *memory = NULL;
    cudaError_t code = cudaMemGetInfo(&left, &all);
    size_t bytes = left / 4 < READ_BYTES ? left / 4 : READ_BYTES;
    code = code == cudaSuccess ? cudaMalloc(&memory, bytes + sizeof(unsigned)) : code;
    code = code == cudaSuccess ? cudaMemset(memory, 0, bytes) : code;
    code = code == cudaSuccess ? cudaDeviceSynchronize() : code;
    *rate = 0;
    for (int each = 1; each <= 32 && code == cudaSuccess; each *= 2) {
        const size_t piece =
            (size_t)multiprocessors * (size_t)each * READ_THREADS * READ_UNROLL * sizeof(uint4);
        struct reading reading = {(const uint4 *)memory, bytes / piece * piece / sizeof(uint4),
            (unsigned *)((char *)memory + bytes / sizeof(unsigned) * sizeof(unsigned)),
            multiprocessors * each};
        double seconds = 0;
        code = time_passes(read_pass, &reading, PASSES, &seconds);
        if (code == cudaSuccess && (double)(reading.vectors * sizeof(uint4)) / seconds > *rate)
            *rate = (double)(reading.vectors * sizeof(uint4)) / seconds;
    }
    (void)cudaFree(memory);
    return code;
}

/* ---- multiply-adds ---- */

static __global__ void __launch_bounds__(FMA_THREADS) multiply_add(float factor, float addend, float *sink) {
    float sums[FMA_SUMS], total = 0;
#pragma unroll
    for (int i = 0; i < FMA_SUMS; i++)
        sums[i] = (float)(threadIdx.x + i);
    for (int round = 0; round < FMA_ROUNDS; round++) {
#pragma unroll
        for (int i = 0; i < FMA_SUMS; i++)
            sums[i] = fmaf(sums[i], factor, addend);
    }
#pragma unroll
    for (int i = 0; i < FMA_SUMS; i++)
        total += sums[i];
    if (total == -1.0f) /* it is positive */
        *sink = total;
}

struct adding {
    int blocks;
    float *sink;
};

static cudaError_t add_pass(void *context, cudaStream_t stream) {
    const struct adding *adding = (const struct adding *)context;
    multiply_add<<<adding->blocks, FMA_THREADS, 0, stream>>>(0.999f, 1e-3f, adding->sink);
    return cudaGetLastError();
}

static cudaError_t measure_multiply_adds(int multiprocessors, double *rate) {
    struct adding adding = {multiprocessors * 16, NULL};
    double seconds = 0;
    cudaError_t code = cudaMalloc((void **)&adding.sink, sizeof *adding.sink);
    code = code == cudaSuccess ? time_passes(add_pass, &adding, PASSES, &seconds) : code;
    if (code == cudaSuccess)
        *rate = 2.0 * adding.blocks * FMA_THREADS * FMA_SUMS * FMA_ROUNDS / seconds;
    (void)cudaFree(adding.sink);
    return code;
}

/* ---- all ---- */

enum result device_measure_limits(int32_t device, struct device_limits *limits) {
    cudaDeviceProp properties;
    cudaError_t code = cudaSetDevice(device);
    code = code == cudaSuccess ? cudaGetDeviceProperties(&properties, device) : code;
    if (code == cudaSuccess) {
        snprintf(limits->name, sizeof limits->name, "%s", properties.name);
        limits->multiprocessors = properties.multiProcessorCount;
        limits->cache_bytes = properties.l2CacheSize;
        code = measure_reads(limits->multiprocessors, &limits->read_bytes);
    }
    code = code == cudaSuccess ? measure_multiply_adds(limits->multiprocessors, &limits->fma) : code;
    if (code != cudaSuccess)
        return fail(ERROR_INTERNAL, "device %d: limits cannot be measured: %s", (int)device,
            cudaGetErrorString(code));
    limits->bf16 = device_peer_peak(device);
    return OK;
}

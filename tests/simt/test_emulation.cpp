/* The emulation's own tests: kernels that are wrong in one way each, which it must tell, and right ones that must pass in every order.
 * `simt-emulation speed` measures it instead. */
#include "kernels/cuda/mma.h"
#include "simt.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

/* ---- what tests share ---- */

static int error_count;
static char error_text[2048];
static struct simt_options usual_options;

static void keep_error(const char *message, void *context) {
    (void)context;
    error_count++;
    snprintf(error_text, sizeof error_text, "%s", message);
}

static int prepare(void **state) {
    (void)state;
    usual_options = simt_get_options();
    usual_options.seed = 0; /* tests name threads; those that take several orders do so themselves */
    usual_options.threads = 1;
    usual_options.lazy = usual_options.uninitialised = 0;
    usual_options.global_races = usual_options.weak_shuffles = 0;
    usual_options.devices = 1;
    simt_set_options(&usual_options);
    simt_on_error(keep_error, NULL);
    (void)cudaDeviceSynchronize(); /* forgets a failure of the test before */
    (void)cudaGetLastError();
    error_count = 0;
    error_text[0] = 0;
    return 0;
}

static int restore(void **state) {
    (void)state;
    simt_set_options(&usual_options);
    simt_on_error(NULL, NULL);
    return 0;
}

/* An error was told since the last look, whose message has all these parts, up to NULL. */
static void check_error(const char *part, ...) {
    va_list parts;
    assert_int_equal(error_count, 1);
    va_start(parts, part);
    for (; part != NULL; part = va_arg(parts, const char *))
        if (strstr(error_text, part) == NULL)
            fail_msg("\"%s\" is not in: %s", part, error_text);
    va_end(parts);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess); /* told once */
    (void)cudaGetLastError();
    error_count = 0;
}

static void check_no_error(void) {
    if (error_count != 0)
        fail_msg("%d errors, the last: %s", error_count, error_text);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

#define RUN(kernel, grid, block, shared_bytes, ...)                                                          \
    simt_launch(NULL, #kernel, grid, block, shared_bytes, kernel, __VA_ARGS__)

template <typename T> static T *device_array(size_t count) {
    T *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, count * sizeof(T)), cudaSuccess);
    return memory;
}

template <typename T> static T *device_copy(const T *host, size_t count) {
    T *memory = device_array<T>(count);
    assert_int_equal(cudaMemcpy(memory, host, count * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    return memory;
}

template <typename T> static void fetch(T *host, const T *device, size_t count) {
    assert_int_equal(cudaMemcpy(host, device, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
}

/* In several orders of blocks, warps and lanes, on one host thread and on two. */
template <typename Check> static void in_every_order(Check check) {
    struct simt_options options = simt_get_options();
    for (uint64_t seed = 0; seed < 12; seed++) {
        options.seed = seed;
        options.threads = seed % 3 == 2 ? 2 : 1;
        simt_set_options(&options);
        check();
        check_no_error();
    }
}

/* ---- addresses ---- */

static __global__ void read_at(const int *from, int64_t index, int *to) {
    *to = from[index];
}

static __global__ void write_at(int *to, int64_t index) {
    to[index] = 1;
}

static void memory_outside_of_buffers_is_refused(void **state) {
    (void)state;
    int *data = device_array<int>(100), *out = device_array<int>(1);
    RUN(read_at, 1, 1, 0, data, 99, out);
    check_no_error();
    RUN(read_at, 1, 1, 0, data, 100, out);
    check_error("kernel read_at, block (0, 0, 0), thread (0, 0, 0): read of 4 bytes",
        "0 bytes past the end of 400 bytes of device memory", NULL);
    RUN(write_at, 1, 1, 0, data, 103);
    check_error("write of 4 bytes", "12 bytes past the end of 400 bytes of device memory", NULL);
    RUN(write_at, 1, 1, 0, data, -2);
    check_error("write of 4 bytes", "8 bytes before the begin of 400 bytes of device memory", NULL);
    RUN(write_at, 1, 1, 0, NULL, 0);
    check_error("host memory", NULL);
    int on_the_host = 0;
    RUN(write_at, 1, 1, 0, &on_the_host, 0);
    check_error("host memory", "which no kernel may touch", NULL);
    assert_int_equal(cudaFree(data), cudaSuccess);
    RUN(read_at, 1, 1, 0, data, 3, out);
    check_error("byte 12 of 400 bytes of device memory that were freed", NULL);
    int *pinned = NULL;
    assert_int_equal(cudaMallocHost(&pinned, 8), cudaSuccess);
    RUN(write_at, 1, 1, 0, pinned, 1);
    check_no_error();
    assert_int_equal(pinned[1], 1);
    RUN(write_at, 1, 1, 0, pinned, 2);
    check_error("past the end of 8 bytes of pinned memory", NULL);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

static __global__ void find_thread(int *data) {
    if (blockIdx.x == 2 && blockIdx.y == 1 && threadIdx.x == 3 && threadIdx.y == 4)
        data[1 << 20] = 0;
}

static void messages_name_block_and_thread(void **state) {
    (void)state;
    int *data = device_array<int>(1);
    RUN(find_thread, dim3(3, 2), dim3(8, 8), 0, data);
    check_error("kernel find_thread, block (2, 1, 0), thread (3, 4, 0)", NULL);
    assert_int_equal(cudaFree(data), cudaSuccess);
}

static __global__ void copy_bytes(uint8_t *to, const uint8_t *from, int bytes) {
    memcpy(to, from, (size_t)bytes);
}

static __global__ void fill_bytes(uint8_t *to, int bytes) {
    memset(to, 7, (size_t)bytes);
}

static void memory_functions_are_watched(void **state) {
    (void)state;
    uint8_t *a = device_array<uint8_t>(100), *b = device_array<uint8_t>(64);
    RUN(copy_bytes, 1, 1, 0, a, b, 64);
    RUN(fill_bytes, 1, 1, 0, a, 100);
    check_no_error();
    RUN(copy_bytes, 1, 1, 0, a, b, 65);
    check_error("read of 65 bytes", "0 bytes past the end of 64 bytes", NULL);
    RUN(fill_bytes, 1, 1, 0, b, 65);
    check_error("write of 65 bytes", NULL);
    assert_int_equal(cudaFree(a), cudaSuccess);
    assert_int_equal(cudaFree(b), cudaSuccess);
}

static __global__ void read_vector(const float *from, int index, float *to) {
    float4 v = *(const float4 *)(from + index);
    to[threadIdx.x] = v.x + v.y + v.z + v.w;
}

static __global__ void read_wide(const char *from, int offset, long long *to) {
    *to = *(const long long *)(from + offset);
}

static void misaligned_accesses_are_refused(void **state) {
    (void)state;
    float *data = device_array<float>(64);
    long long *out = device_array<long long>(2);
    RUN(read_vector, 1, 1, 0, data, 4, (float *)out);
    RUN(read_wide, 1, 1, 0, (const char *)data, 8, out);
    check_no_error();
    RUN(read_vector, 1, 1, 0, data, 2, (float *)out);
    check_error(
        "misaligned access to", "float4", "8 bytes past a multiple of 16", "test_emulation.cpp:", NULL);
    RUN(read_wide, 1, 1, 0, (const char *)data, 4, out);
    check_error("misaligned", "4 bytes past a multiple of 8", NULL);
    assert_int_equal(cudaFree(data), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

static __global__ void set_where_it_runs(int *data) {
    data[0] = 1;
}

static void devices_have_memory_of_their_own(void **state) {
    (void)state;
    struct simt_options options = simt_get_options();
    options.devices = 2;
    options.memory = 1;
    simt_set_options(&options);
    int *data = device_array<int>(1);
    int count = 0;
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    assert_int_equal(count, 2);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    RUN(set_where_it_runs, 1, 1, 0, data);
    check_error("device memory of device 0", NULL);
    void *large = NULL;
    size_t left = 0, all = 0;
    assert_int_equal(cudaMemGetInfo(&left, &all), cudaSuccess);
    assert_int_equal(all, 1 << 20);
    assert_int_equal(left, 1 << 20);
    assert_int_equal(cudaMalloc(&large, (1 << 20) + 1), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&large, 1 << 20), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&left, &all), cudaSuccess);
    assert_int_equal(left, 0);
    assert_int_equal(cudaFree(large), cudaSuccess);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaFree(data), cudaSuccess);
}

static void watched_host_code_may_not_touch_device_memory(void **state) {
    (void)state;
    volatile int *data = device_array<int>(1);
    int value = data[0];
    (void)value;
    assert_int_equal(error_count, 1);
    assert_non_null(strstr(error_text, "the host touches byte 0 of 4 bytes of device memory"));
    error_count = 0;
    assert_int_equal(cudaFree((void *)data), cudaSuccess);
}

/* ---- shared memory ---- */

struct tile {
    int words[64];
    uint8_t bytes[64];
};

static __global__ void shared_race(int *out, int barriers) {
    tile &shared = SHARED(tile);
    int i = (int)threadIdx.x;
    shared.words[i] = i;
    if (barriers > 0)
        __syncthreads();
    int next = shared.words[(i + 1) % 64];
    if (barriers > 1)
        __syncthreads();
    shared.words[i] = next;
    if (barriers > 2)
        __syncthreads();
    out[i] = shared.words[i];
}

static __global__ void write_both(int *out) {
    tile &shared = SHARED(tile);
    shared.words[threadIdx.x / 2] = 3;
    __syncthreads();
    out[threadIdx.x] = shared.words[threadIdx.x / 2];
}

static __global__ void read_unwritten(int *out, int written) {
    tile &shared = SHARED(tile);
    if ((int)threadIdx.x < written)
        shared.words[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = shared.words[threadIdx.x];
}

static __global__ void bytes_of_words(int *out, bool is_wrong) {
    tile &shared = SHARED(tile);
    int i = (int)threadIdx.x;
    shared.bytes[i] = (uint8_t)i;
    if (is_wrong && i == 5)
        shared.bytes[6] = 0;
    __syncthreads();
    if (i < 16)
        out[i] = ((const int *)shared.bytes)[i];
    __syncthreads();
    shared.bytes[63 - i] = (uint8_t)i;
    __syncthreads();
    if (i < 8) {
        uint2 v = ((const uint2 *)shared.bytes)[i];
        out[2 * i] ^= (int)v.x;
        out[2 * i + 1] ^= (int)v.y;
    }
}

static void races_in_shared_memory_are_found(void **state) {
    (void)state;
    int *out = device_array<int>(64);
    RUN(shared_race, 1, 64, sizeof(tile), out, 0);
    check_error(
        "read of 4 bytes of shared memory at offset 4, which no thread of the block has written so far",
        NULL);
    RUN(shared_race, 1, 64, sizeof(tile), out, 1);
    check_error("race in shared memory: write of 4 bytes", "after a read by thread", NULL);
    RUN(shared_race, 1, 64, sizeof(tile), out, 2);
    check_no_error();
    RUN(write_both, 1, 64, sizeof(tile), out);
    check_error(
        "write of 4 bytes at offset 0 after a write by thread (0, 0, 0)", "thread (1, 0, 0): race", NULL);
    RUN(bytes_of_words, 1, 64, sizeof(tile), out, true);
    check_error("race in shared memory: write of 1 bytes at offset 262", NULL);
    in_every_order([=]() {
        RUN(shared_race, 3, 64, sizeof(tile), out, 3);
        int host[64];
        fetch(host, out, 64);
        for (int i = 0; i < 64; i++)
            assert_int_equal(host[i], (i + 1) % 64);
        RUN(bytes_of_words, 1, 64, sizeof(tile), out, false);
        fetch(host, out, 16);
        for (int i = 0; i < 16; i++) {
            uint32_t forth = 0x03020100u + 0x04040404u * (uint32_t)i,
                     back = 0x3c3d3e3fu - 0x04040404u * (uint32_t)i;
            assert_int_equal((uint32_t)host[i], forth ^ back);
        }
    });
    assert_int_equal(cudaFree(out), cudaSuccess);
}

static void unwritten_shared_memory_is_found(void **state) {
    (void)state;
    int *out = device_array<int>(64);
    RUN(read_unwritten, 2, 64, sizeof(tile), out, 64);
    check_no_error();
    RUN(read_unwritten, 1, 64, sizeof(tile), out, 40); /* the block before has written all */
    check_error("thread (40, 0, 0): read of 4 bytes of shared memory at offset 160, which no thread of the "
                "block has written so far",
        NULL);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

static __global__ void shared_index(int *out, int index) {
    int *words = (int *)simt_shared_memory(256);
    words[index] = 1;
    *out = words[index];
}

static __global__ void index_in_struct(int *out, int index) {
    tile &shared = SHARED(tile);
    shared.words[index] = 1;
    *out = 0;
}

static void bounds_of_shared_memory_are_kept(void **state) {
    (void)state;
    int *out = device_array<int>(1);
    RUN(shared_index, 1, 1, 256, out, 63);
    check_no_error();
    RUN(shared_index, 1, 1, 256, out, 64);
    check_error("write of 4 bytes of shared memory at offset 256, outside of the launch's 256 bytes", NULL);
    RUN(shared_index, 1, 1, 256, out, -1);
    check_error("shared memory at offset -4", NULL);
    RUN(shared_index, 1, 1, 255, out, 0);
    check_error("needs 256 bytes of shared memory, but was launched with 255", NULL);
    RUN(index_in_struct, 1, 1, sizeof(tile), out, 64);
    check_error("index 64 of an array", "test_emulation.cpp:", NULL);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

/* Lane i passes its number to lane i + 1 of its group, synchronized among `mask` only. */
static __global__ void through_warp(int *out, unsigned mask, int width, bool is_shuffle) {
    tile &shared = SHARED(tile);
    int i = (int)threadIdx.x, lane = i % 32;
    if (!(mask >> lane & 1))
        mask = ~mask;
    shared.words[i] = -1;
    __syncthreads();
    shared.words[i] = i;
    if (is_shuffle)
        (void)__shfl_sync(mask, 0, 0);
    else
        __syncwarp(mask);
    int group = i / width * width;
    out[i] = shared.words[group + (i + 1) % width];
    __syncwarp(mask);
    shared.words[i] = 0;
}

static void lanes_are_ordered_by_warp_operations(void **state) {
    (void)state;
    int *out = device_array<int>(64);
    RUN(through_warp, 1, 64, sizeof(tile), out, 0xffffffffu, 64, false);
    check_error("race in shared memory", NULL); /* two warps */
    RUN(through_warp, 1, 64, sizeof(tile), out, 0xffffu, 32, false);
    check_error("race in shared memory", NULL); /* two halves of a warp */
    struct simt_options options = simt_get_options();
    options.weak_shuffles = 1;
    simt_set_options(&options);
    RUN(through_warp, 1, 64, sizeof(tile), out, 0xffffffffu, 32, true);
    check_error("race in shared memory", NULL);
    options.weak_shuffles = 0;
    simt_set_options(&options);
    in_every_order([=]() {
        RUN(through_warp, 1, 64, sizeof(tile), out, 0xffffffffu, 32, true);
        RUN(through_warp, 1, 64, sizeof(tile), out, 0xffffffffu, 32, false);
        RUN(through_warp, 1, 64, sizeof(tile), out, 0xffffu, 16, false);
        int host[64];
        fetch(host, out, 64);
        for (int i = 0; i < 64; i++)
            assert_int_equal(host[i], i / 16 * 16 + (i + 1) % 16);
    });
    assert_int_equal(cudaFree(out), cudaSuccess);
}

/* ---- barriers ---- */

static __global__ void barrier_after_return(int last) {
    if ((int)threadIdx.x >= last)
        return;
    __syncthreads();
}

static __global__ void two_barriers(int limit) {
    if ((int)threadIdx.x < limit)
        __syncthreads();
    else
        __syncthreads();
}

static __global__ void barrier_and_warp(int limit) {
    if ((int)threadIdx.x < limit)
        __syncthreads();
    else
        __syncwarp();
}

static __global__ void masks_differ(void) {
    __syncwarp(threadIdx.x == 0 ? 0x3u : 0x7u);
}

static __global__ void masks_wait_for_each_other(void) {
    if (threadIdx.x < 2)
        __syncwarp(threadIdx.x == 0 ? 0x3u : 0x6u);
    __syncthreads();
}

static __global__ void mask_without_itself(void) {
    __syncwarp(0xfffffffeu);
}

static __global__ void full_mask(void) {
    if (threadIdx.x != 7)
        (void)__shfl_xor_sync(ALL_LANES, 1, 1);
}

static __global__ void odd_width(void) {
    (void)__shfl_sync(ALL_LANES, 1, 0, 12);
}

static __global__ void kinds_differ(void) {
    if (threadIdx.x % 2 == 0)
        (void)__any_sync(ALL_LANES, 1);
    else
        (void)__all_sync(ALL_LANES, 1);
}

#define RUN_PLAIN(kernel, grid, block) simt_launch(NULL, #kernel, grid, block, 0, kernel)

static void barriers_that_never_complete_are_found(void **state) {
    (void)state;
    RUN(barrier_after_return, 2, 64, 0, 64);
    check_no_error();
    RUN(barrier_after_return, 2, 64, 0, 60);
    check_error("kernel barrier_after_return, block (0, 0, 0), thread (0, 0, 0): waits at __syncthreads (",
        "test_emulation.cpp:", "with 60 of 64 threads; 4 have ended, the first of them thread (60, 0, 0)",
        NULL);
    RUN(two_barriers, 1, 64, 0, 64);
    check_no_error();
    RUN(two_barriers, 1, 64, 0, 10);
    check_error(
        "thread (10, 0, 0): waits at __syncthreads", "while other threads wait at __syncthreads", NULL);
    RUN(barrier_and_warp, 1, 32, 0, 10);
    check_error("thread (10, 0, 0): waits at __syncwarp", "for lane 0, which waits at a barrier", NULL);
    RUN_PLAIN(masks_differ, 1, 3);
    check_error("meets lane 0 at __syncwarp", "with mask 0x00000003", "with mask 0x00000007", NULL);
    RUN_PLAIN(masks_wait_for_each_other, 1, 3);
    check_error("with mask 0x00000003 for lane 1, which waits at __syncwarp", "with mask 0x00000006", NULL);
    RUN_PLAIN(mask_without_itself, 1, 32);
    check_error(
        "thread (0, 0, 0): __syncwarp", "mask 0xfffffffe, which leaves out lane 0 that calls it", NULL);
    RUN_PLAIN(full_mask, 1, 32);
    check_error("__shfl_xor_sync", "for lane 7, which has ended", NULL);
    RUN_PLAIN(full_mask, 1, 24);
    check_error("the block has no thread for lane 24", NULL);
    RUN_PLAIN(odd_width, 1, 32);
    check_error("with width 12: it must be a power of two", NULL);
    RUN_PLAIN(kinds_differ, 1, 32);
    check_error("meets lane", "__any_sync", "__all_sync", NULL);
}

static __global__ void fails_itself(int how) {
    if (how == 0)
        __trap();
    assert(how != 1);
}

static void traps_and_assertions_are_told(void **state) {
    (void)state;
    RUN(fails_itself, 1, 1, 0, 0);
    check_error("kernel fails_itself", "__trap (", NULL);
    RUN(fails_itself, 1, 1, 0, 1);
    check_error("assert(how != 1) failed (", NULL);
    RUN(fails_itself, 1, 1, 0, 2);
    check_no_error();
}

/* Runs `work` in a process of its own, without a handler: the signal that ended it, and what it wrote to the standard error. */
template <typename Work> static int run_apart(Work work, char *text, size_t room) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL); /* not the test framework's */
        simt_on_error(NULL, NULL);
        work();
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got = 1; got > 0 && used<room - 1; used += got> 0 ? (size_t)got : 0)
        got = read(ends[0], text + used, room - 1 - used);
    text[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void without_a_handler_an_error_aborts(void **state) {
    (void)state;
    char text[4096];
    int ended_by = run_apart(
        [] {
            int *data = device_array<int>(1);
            RUN(write_at, 1, 1, 0, data, 1);
        },
        text, sizeof text);
    assert_int_equal(ended_by, SIGABRT);
    if (strstr(text, "simt: kernel write_at, block (0, 0, 0), thread (0, 0, 0): write of 4 bytes") == NULL ||
        strstr(text, "simt: the access is at ") == NULL)
        fail_msg("wrote: %s", text);
}

static __global__ void dig(int *out, int depth) {
    volatile int room[4096];
    room[depth % 4096] = depth;
    if (depth > 0)
        dig(out, depth - 1);
    *out = room[depth % 4096];
}

static int overflow_a_stack(void) {
    int *out = device_array<int>(1);
    RUN(dig, 1, 1, 0, out, 100);
    return (int)cudaDeviceSynchronize();
}

/* In a program of its own, for the test framework has handlers of such signals. */
static void faults_name_the_thread(void **state) {
    (void)state;
    char text[4096];
    int ended_by =
        run_apart([] { execl("/proc/self/exe", "simt-emulation", "overflow", NULL); }, text, sizeof text);
    assert_int_equal(ended_by, SIGSEGV);
    if (strstr(text, "kernel dig, block (0, 0, 0), thread (0, 0, 0): its stack overflows") == NULL)
        fail_msg("wrote: %s", text);
}

/* ---- asynchronous copies ---- */

struct stages {
    float4 chunk[2][32];
};

enum copy_fault {
    RIGHT,
    NO_WAIT,
    NO_COMMIT,
    WAIT_TOO_LITTLE,
    NO_BARRIER,
    SHARED_MISALIGNED,
    OVERWRITTEN,
};

static __global__ void copy_and_sum(const float4 *from, float *out, int fault) {
    stages &shared = SHARED(stages);
    int i = (int)threadIdx.x;
    copy_async(&shared.chunk[0][i], from + i, 16);
    if (fault != NO_COMMIT)
        copies_commit();
    char *second = (char *)&shared.chunk[1][i] + (fault == SHARED_MISALIGNED ? 8 : 0);
    copy_async(second, from + 32 + i, i < 16 ? 16 : 4);
    if (fault != NO_COMMIT)
        copies_commit();
    if (fault == OVERWRITTEN)
        shared.chunk[0][i] = make_float4(0, 0, 0, 0);
    if (fault == WAIT_TOO_LITTLE)
        copies_wait<1>();
    else if (fault != NO_WAIT)
        copies_wait<0>();
    if (fault != NO_BARRIER)
        __syncthreads();
    float4 a = shared.chunk[0][31 - i], b = shared.chunk[1][31 - i];
    out[i] = a.x + 10 * a.w + 100 * b.x + 1000 * b.w;
}

static void asynchronous_copies_arrive_when_waited_for(void **state) {
    (void)state;
    float host[256], sums[32];
    for (int i = 0; i < 256; i++)
        host[i] = (float)(i % 16);
    float4 *from = (float4 *)device_copy(host, 256);
    float *out = device_array<float>(32);
    in_every_order([&]() {
        RUN(copy_and_sum, 1, 32, sizeof(stages), from, out, RIGHT);
        fetch(sums, out, 32);
        for (int i = 0; i < 32; i++) {
            const float *a = host + 4 * (31 - i), *b = a + 128;
            assert_true(sums[i] == a[0] + 10 * a[3] + 100 * b[0] + (31 - i < 16 ? 1000 * b[3] : 0));
        }
    });
    RUN(copy_and_sum, 1, 32, sizeof(stages), from, out, NO_WAIT);
    check_error("bytes of shared memory", "an asynchronous copy is on its way: copies_wait is missing", NULL);
    RUN(copy_and_sum, 1, 32, sizeof(stages), from, out, NO_COMMIT);
    check_error("an asynchronous copy is on its way", NULL);
    RUN(copy_and_sum, 1, 32, sizeof(stages), from, out, WAIT_TOO_LITTLE);
    check_error("an asynchronous copy is on its way", NULL);
    RUN(copy_and_sum, 1, 32, sizeof(stages), from, out, OVERWRITTEN);
    check_error("write of", "an asynchronous copy is on its way", NULL);
    RUN(copy_and_sum, 1, 32, sizeof(stages), from, out, SHARED_MISALIGNED);
    check_error("misaligned copy_async", NULL);
    RUN(copy_and_sum, 1, 32, sizeof(stages), from + 1, out, RIGHT);
    check_error("copy_async of", "or", NULL);
    assert_int_equal(cudaFree(from), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

/* ---- device memory ---- */

static __global__ void sum_all(const int *from, int count, int *out) {
    int sum = 0;
    for (int i = 0; i < count; i++)
        sum += from[i];
    *out = sum;
}

static void unwritten_device_memory_is_found(void **state) {
    (void)state;
    struct simt_options options = simt_get_options();
    options.uninitialised = 1;
    simt_set_options(&options);
    int host[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int *data = device_array<int>(8), *copy = device_array<int>(8), *out = device_array<int>(1);
    assert_int_equal(cudaMemcpy(data, host, 28, cudaMemcpyHostToDevice), cudaSuccess);
    RUN(sum_all, 1, 1, 0, data, 7, out);
    check_no_error();
    RUN(sum_all, 1, 1, 0, data, 8, out);
    check_error("read of 4 bytes that nothing has written: byte 28 of 32 bytes of device memory", NULL);
    assert_int_equal(cudaMemcpy(copy, data, 32, cudaMemcpyDeviceToDevice), cudaSuccess);
    RUN(sum_all, 1, 1, 0, copy, 8, out);
    check_error("byte 28 of 32 bytes", NULL); /* what was copied was not written either */
    RUN(write_at, 1, 1, 0, data, 7);
    assert_int_equal(cudaMemset(copy, 0, 32), cudaSuccess);
    RUN(sum_all, 1, 1, 0, data, 8, out);
    RUN(sum_all, 1, 1, 0, copy, 8, out);
    check_no_error();
    assert_int_equal(cudaFree(data), cudaSuccess);
    assert_int_equal(cudaFree(copy), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

static __global__ void touch_places(int *data, int stride, bool is_read) {
    int *place = data + (int64_t)blockIdx.x * stride;
    if (is_read)
        data[64 + blockIdx.x] = *place;
    else
        *place = 1;
}

static __global__ void count_up(int *data) {
    atomicAdd(data, 1);
}

static __global__ void count_and_read(int *data) {
    atomicAdd(data, 1);
    data[1 + blockIdx.x] = data[0];
}

static __global__ void count_for_itself(int *data) {
    int *mine = data + 32 * blockIdx.x;
    atomicAdd(mine, 1);
    __syncthreads();
    mine[threadIdx.x] = mine[0]; /* thread 0 writes what the others read */
}

static __global__ void pass_by_device_memory(int *data, bool has_barrier) {
    data[threadIdx.x] = (int)threadIdx.x;
    if (has_barrier)
        __syncthreads();
    int other = data[63 - threadIdx.x];
    if (has_barrier)
        __syncthreads();
    data[threadIdx.x] = other;
}

static void races_in_device_memory_are_found(void **state) {
    (void)state;
    struct simt_options options = simt_get_options();
    options.global_races = 1;
    simt_set_options(&options);
    int *data = device_array<int>(128);
    assert_int_equal(cudaMemset(data, 0, 512), cudaSuccess);
    RUN(touch_places, 4, 1, 0, data, 1, false);
    RUN(touch_places, 4, 1, 0, data, 0, true);  /* all read one */
    RUN(touch_places, 4, 1, 0, data, 1, false); /* another launch */
    RUN(count_up, 4, 32, 0, data);
    check_no_error();
    RUN(touch_places, 4, 1, 0, data, 0, false);
    check_error("block (1, 0, 0)", "race between blocks: write of 4 bytes", NULL);
    RUN(count_and_read, 4, 1, 0, data);
    check_error("race between blocks", NULL);
    RUN(count_for_itself, 4, 1, 0, data);
    RUN(pass_by_device_memory, 1, 64, 0, data, true);
    check_no_error();
    RUN(count_for_itself, 1, 32, 0, data);
    check_error("race in device memory: ", "without a barrier between: byte 0 of 512 bytes", NULL);
    RUN(pass_by_device_memory, 1, 64, 0, data, false);
    check_error("race in device memory: ", NULL);
    assert_int_equal(cudaFree(data), cudaSuccess);
}

/* ---- right kernels ---- */

struct partial_sums {
    long long of_warp[32];
};

static __global__ void sum_block(const int *from, int count, long long *out) {
    partial_sums &shared = SHARED(partial_sums);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    long long sum = 0;
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < count; i += (int)(gridDim.x * blockDim.x))
        sum += from[i];
    for (int step = WARP / 2; step > 0; step /= 2)
        sum += __shfl_down_sync(ALL_LANES, sum, (unsigned)step);
    if (lane == 0)
        shared.of_warp[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < (int)blockDim.x / WARP; i++)
            sum += shared.of_warp[i];
        out[blockIdx.x] = sum;
    }
}

static void reductions_are_right(void **state) {
    (void)state;
    int host[5000];
    for (int i = 0; i < 5000; i++)
        host[i] = i * i % 1009;
    long long expected = 0, sums[7];
    for (int value : host)
        expected += value;
    int *from = device_copy(host, 5000);
    long long *out = device_array<long long>(7);
    in_every_order([&]() {
        RUN(sum_block, 7, 256, sizeof(partial_sums), from, 5000, out);
        fetch(sums, out, 7);
        long long sum = 0;
        for (long long part : sums)
            sum += part;
        assert_true(sum == expected);
    });
    assert_int_equal(cudaFree(from), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

enum {
    LANE_RESULTS = 20,
};

static __global__ void ask_lanes(long long *out) {
    int lane = (int)threadIdx.x % WARP;
    long long *mine = out + LANE_RESULTS * (int)threadIdx.x;
    int value = lane * 3 - 40;
    int n = 0;
    mine[n++] = __shfl_sync(ALL_LANES, value, 5);
    mine[n++] = __shfl_sync(ALL_LANES, value, lane + 9, 8);
    mine[n++] = __shfl_up_sync(ALL_LANES, value, 3);
    mine[n++] = __shfl_up_sync(ALL_LANES, value, 2, 4);
    mine[n++] = __shfl_down_sync(ALL_LANES, value, 3);
    mine[n++] = __shfl_down_sync(ALL_LANES, value, 2, 4);
    mine[n++] = __shfl_xor_sync(ALL_LANES, value, 6);
    mine[n++] = __shfl_xor_sync(ALL_LANES, (long long)value << 33, 17);
    mine[n++] = (long long)__shfl_xor_sync(ALL_LANES, (double)value, 1);
    mine[n++] = __ballot_sync(ALL_LANES, lane % 3 == 0);
    mine[n++] = __any_sync(ALL_LANES, lane == 31) + 2 * __any_sync(ALL_LANES, 0);
    mine[n++] = __all_sync(ALL_LANES, lane < 32) + 2 * __all_sync(ALL_LANES, lane != 9);
    mine[n++] = __match_any_sync(ALL_LANES, lane % 5);
    mine[n++] = __reduce_add_sync(ALL_LANES, value);
    mine[n++] = __reduce_min_sync(ALL_LANES, value);
    mine[n++] = __reduce_max_sync(ALL_LANES, (unsigned)value);
    mine[n++] = __reduce_xor_sync(ALL_LANES, 1u << lane);
    unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    mine[n++] = __reduce_add_sync(half, value);
    int active = __popc(__activemask());
    mine[n++] = __shfl_down_sync(half, value, 4, 16);
    mine[n++] = active;
    __syncwarp(); /* no lane has ended before all have asked */
}

static void check_lane(const long long *got, int lane) {
    auto value = [](int l) { return (long long)(l * 3 - 40); };
    long long expected[LANE_RESULTS] = {value(5), value(lane / 8 * 8 + (lane + 1) % 8),
        value(lane < 3 ? lane : lane - 3), value(lane % 4 < 2 ? lane : lane - 2),
        value(lane + 3 > 31 ? lane : lane + 3), value(lane % 4 > 1 ? lane : lane + 2), value(lane ^ 6),
        (long long)((uint64_t)value(lane ^ 17) << 33), value(lane ^ 1), 0x49249249, 1, 1, 0, 208, -40,
        (long long)(unsigned)-1, 0xffffffffll, 0, 0, 32};
    for (int l = 0; l < 32; l++) {
        expected[12] |= l % 5 == lane % 5 ? 1ll << l : 0;
        expected[17] += l / 16 == lane / 16 ? value(l) : 0;
    }
    expected[18] = value(lane % 16 + 4 > 15 ? lane : lane + 4);
    for (int n = 0; n < LANE_RESULTS; n++)
        if (got[n] != expected[n])
            fail_msg("lane %d, result %d: %lld, not %lld", lane, n, got[n], expected[n]);
}

static void warp_operations_are_right(void **state) {
    (void)state;
    long long *out = device_array<long long>(LANE_RESULTS * 96);
    static long long host[LANE_RESULTS * 96];
    in_every_order([=]() {
        RUN(ask_lanes, 1, 96, 0, out);
        fetch(host, out, LANE_RESULTS * 96);
        for (int i = 0; i < 96; i++)
            check_lane(host + LANE_RESULTS * i, i % 32);
    });
    assert_int_equal(cudaFree(out), cudaSuccess);
}

static __global__ void vote_in_block(int *out) {
    int i = (int)threadIdx.x;
    int n = __syncthreads_count(i % 3 == 0);
    int any = __syncthreads_or(i == 77);
    int all = __syncthreads_and(i != 77);
    out[i] = n * 4 + any * 2 + all;
}

struct square {
    float cells[32][33];
};

static __global__ void transpose(const float *from, int rows, int columns, float *to) {
    square &shared = SHARED(square);
    int column = (int)(blockIdx.x * 32 + threadIdx.x), row = (int)blockIdx.y * 32;
    for (int i = (int)threadIdx.y; i < 32; i += (int)blockDim.y)
        if (row + i < rows && column < columns)
            shared.cells[i][threadIdx.x] = from[(row + i) * columns + column];
    __syncthreads();
    row = (int)(blockIdx.y * 32 + threadIdx.x);
    column = (int)blockIdx.x * 32;
    for (int i = (int)threadIdx.y; i < 32; i += (int)blockDim.y)
        if (column + i < columns && row < rows)
            to[(column + i) * rows + row] = shared.cells[threadIdx.x][i];
}

struct bins {
    unsigned counts[16];
};

static __global__ void histogram(const uint8_t *from, int count, unsigned *out, unsigned *largest) {
    bins &shared = SHARED(bins);
    if (threadIdx.x < 16)
        shared.counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < count;
         i += (int)(gridDim.x * blockDim.x)) {
        atomicAdd(&shared.counts[from[i] % 16], 1u);
        atomicMax(largest, (unsigned)from[i]);
    }
    __syncthreads();
    if (threadIdx.x < 16)
        atomicAdd(&out[threadIdx.x], shared.counts[threadIdx.x]);
}

static __global__ void counts_without_barrier(unsigned *out) {
    bins &shared = SHARED(bins);
    if (threadIdx.x < 16)
        shared.counts[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&shared.counts[threadIdx.x % 16], 1u);
    out[threadIdx.x] = shared.counts[threadIdx.x % 16];
}

static void blocks_work_together(void **state) {
    (void)state;
    enum { ROWS = 70, COLUMNS = 45, BYTES = 3000 };
    static float host[ROWS * COLUMNS], turned[ROWS * COLUMNS];
    static uint8_t bytes[BYTES];
    unsigned expected[16] = {0}, counts[16], largest = 0, most = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        host[i] = (float)i;
    for (int i = 0; i < BYTES; i++) {
        bytes[i] = (uint8_t)(i * i % 251);
        expected[bytes[i] % 16]++;
        most = bytes[i] > most ? bytes[i] : most;
    }
    float *from = device_copy(host, ROWS * COLUMNS), *to = device_array<float>(ROWS * COLUMNS);
    uint8_t *data = device_copy(bytes, BYTES);
    unsigned *out = device_array<unsigned>(256);
    int *votes = device_array<int>(96), vote_results[96];
    RUN(counts_without_barrier, 1, 64, sizeof(bins), out);
    check_error("race in shared memory", NULL);
    in_every_order([&]() {
        RUN(transpose, dim3(2, 3), dim3(32, 8), sizeof(square), from, ROWS, COLUMNS, to);
        fetch(turned, to, ROWS * COLUMNS);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            assert_true(turned[i % COLUMNS * ROWS + i / COLUMNS] == host[i]);
        assert_int_equal(cudaMemset(out, 0, 17 * sizeof *out), cudaSuccess);
        RUN(histogram, 5, 96, sizeof(bins), data, BYTES, out, out + 16);
        fetch(counts, out, 16);
        fetch(&largest, out + 16, 1);
        assert_memory_equal(counts, expected, sizeof counts);
        assert_int_equal(largest, most);
        RUN(vote_in_block, 1, 96, 0, votes);
        fetch(vote_results, votes, 96);
        for (int vote : vote_results)
            assert_int_equal(vote, 32 * 4 + 2);
    });
    assert_int_equal(cudaFree(from), cudaSuccess);
    assert_int_equal(cudaFree(to), cudaSuccess);
    assert_int_equal(cudaFree(data), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
    assert_int_equal(cudaFree(votes), cudaSuccess);
}

static __global__ void all_atomics(unsigned long long *out) {
    unsigned *words = (unsigned *)(out + 8);
    int *numbers = (int *)(words + 8);
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], (unsigned long long)i << 32);
    atomicMax(&out[1], (unsigned long long)i << 32);
    atomicOr(&out[2], 1ull << (i % 64));
    atomicMin(&numbers[0], -(int)i);
    atomicMax(&numbers[1], -(int)i);
    atomicSub(&numbers[2], 1);
    atomicAnd(&words[0], ~(1u << (i % 8)));
    atomicXor(&words[1], i);
    atomicMin(&words[2], i + 5);
    unsigned old = words[3], seen;
    do {
        seen = old;
        old = atomicCAS(&words[3], seen, seen + 2);
    } while (old != seen);
    if (atomicExch(&words[4], 9u) == 1)
        atomicAdd(&words[5], 1u);
}

static void atomics_are_right(void **state) {
    (void)state;
    unsigned long long host[8 + 4 + 4];
    unsigned long long *out = device_array<unsigned long long>(16);
    in_every_order([&]() {
        memset(host, 0, sizeof host);
        unsigned *words = (unsigned *)(host + 8);
        int *numbers = (int *)(words + 8);
        numbers[1] = -1000;
        words[0] = 0xffff;
        words[2] = 1000;
        words[4] = 1;
        assert_int_equal(cudaMemcpy(out, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
        RUN(all_atomics, 4, 64, 0, out);
        fetch(host, out, 16);
        assert_true(host[0] == 32640ull << 32 && host[1] == 255ull << 32 && host[2] == ~0ull);
        assert_true(numbers[0] == -255 && numbers[1] == 0 && numbers[2] == -256);
        assert_true(words[0] == 0xff00 && words[1] == 0 && words[2] == 5 && words[3] == 512 && words[5] == 1);
    });
    assert_int_equal(cudaFree(out), cudaSuccess);
}

/* ---- matrices ---- */

struct matrices {
    uint16_t a[16][16 + 8], b[16][8 + 8]; /* rows of 16-byte multiples */
};

/* out [16 x 8] = c + A [16 x 16] * B [16 x 8], through shared memory. */
static __global__ void multiply_tile(const uint16_t *a, const uint16_t *b, const float *c, float *out) {
    matrices &shared = SHARED(matrices);
    int lane = (int)threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
    for (int i = lane; i < 256; i += WARP)
        shared.a[i / 16][i % 16] = a[i];
    for (int i = lane; i < 128; i += WARP)
        shared.b[i / 8][i % 8] = b[i];
    __syncwarp();
    uint32_t a_words[4], b_words[4];
    float d[4];
    load_matrices(a_words, &shared.a[lane % 16][lane / 16 * 8]);
    load_matrices_transposed(b_words, &shared.b[lane % 16][0]); /* its second half is not used */
    for (int n = 0; n < 4; n++)
        d[n] = c[(group + n / 2 * 8) * 8 + pair + n % 2];
    mma_bf16(d, a_words, b_words);
    for (int n = 0; n < 4; n++)
        out[(group + n / 2 * 8) * 8 + pair + n % 2] = d[n];
}

static __global__ void load_wrongly(int how, uint32_t *out) {
    uint16_t *shared = (uint16_t *)simt_shared_memory(1024);
    uint32_t r[4];
    for (int i = (int)threadIdx.x; i < 512; i += WARP)
        if (how != 1 || i != 100)
            shared[i] = 0;
    if (how != 0)
        __syncwarp();
    const uint16_t *row = shared + threadIdx.x * 8;
    load_matrices(r, how == 2 ? row + 4 : how == 3 ? (const uint16_t *)out : row + (how == 4) * 512);
    out[threadIdx.x] = r[0];
}

static uint16_t bf16_of(int value) {
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void matrix_products_are_right(void **state) {
    (void)state;
    uint16_t a[256], b[128];
    float c[128], d[128];
    for (int i = 0; i < 256; i++)
        a[i] = bf16_of(i * 7 % 23 - 11);
    for (int i = 0; i < 128; i++) {
        b[i] = bf16_of(i * 5 % 19 - 9);
        c[i] = (float)(i * 3 % 17);
    }
    uint16_t *a_device = device_copy(a, 256), *b_device = device_copy(b, 128);
    float *c_device = device_copy(c, 128), *out = device_array<float>(128);
    in_every_order([&]() {
        RUN(multiply_tile, 1, 32, sizeof(matrices), a_device, b_device, c_device, out);
        fetch(d, out, 128);
        for (int row = 0; row < 16; row++) {
            for (int column = 0; column < 8; column++) {
                int sum = row * 8 + column;
                sum = sum * 3 % 17;
                for (int k = 0; k < 16; k++)
                    sum += ((row * 16 + k) * 7 % 23 - 11) * ((k * 8 + column) * 5 % 19 - 9);
                assert_true(d[row * 8 + column] == (float)sum);
            }
        }
    });
    uint32_t *words = (uint32_t *)out;
    RUN(load_wrongly, 1, 32, 1024, 5, words);
    check_no_error();
    RUN(load_wrongly, 1, 32, 1024, 0, words);
    check_error("race in shared memory: read of 16 bytes", NULL);
    RUN(load_wrongly, 1, 32, 1024, 1, words);
    check_error("thread (12, 0, 0): read of 16 bytes", "which no thread of the block has written", NULL);
    RUN(load_wrongly, 1, 32, 1024, 2, words);
    check_error("misaligned load_matrices", NULL);
    RUN(load_wrongly, 1, 32, 1024, 3, words);
    check_error("load_matrices at", "is not in the launch's 1024 bytes of shared memory", NULL);
    RUN(load_wrongly, 1, 32, 1024, 4, words);
    check_error("load_matrices at", "is not in the launch's", NULL);
    assert_int_equal(cudaFree(a_device), cudaSuccess);
    assert_int_equal(cudaFree(b_device), cudaSuccess);
    assert_int_equal(cudaFree(c_device), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

static __global__ void mma_once(const uint32_t *a, float start, float *out) {
    uint32_t a_words[4] = {a[0], a[1], a[2], a[3]}, b_words[2] = {0x3f803f80u, 0x3f803f80u}; /* ones */
    float d[4] = {start, start, start, start};
    mma_bf16(d, a_words, b_words);
    if (threadIdx.x == 0)
        out[0] = d[0];
}

static void matrix_products_round_once(void **state) {
    (void)state;
    /* 2^24 + 8 * (1 + 1) is a float, though each addition of 1 alone would be lost. */
    uint32_t host[4] = {0x3f803f80u, 0, 0x3f803f80u, 0};
    uint32_t *a = device_copy(host, 4);
    float *out = device_array<float>(1), sum = 0;
    RUN(mma_once, 1, 32, 0, a, 16777216.0f, out);
    fetch(&sum, out, 1);
    check_no_error();
    assert_true(sum == 16777232.0f);
    assert_int_equal(cudaFree(a), cudaSuccess);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

/* ---- small functions ---- */

static __global__ void small_functions(unsigned *out, unsigned x) {
    int n = 0;
    out[n++] = (unsigned)__clz((int)x);
    out[n++] = (unsigned)__ffs((int)x);
    out[n++] = __brev(x);
    out[n++] = __byte_perm(0x33221100u, 0x77665544u, 0x6420u);
    out[n++] = __byte_perm(0x80000000u, 0, 0xbbbbu);
    out[n++] = (unsigned)__float2int_rn(2.5f);
    out[n++] = (unsigned)__float2int_rn(3.5f);
    out[n++] = (unsigned)__float2int_rz(-3.9f);
    out[n++] = (unsigned)__float2int_rn(1e20f);
    out[n++] = __funnelshift_l(0x80000000u, 1u, 4);
    out[n++] = __funnelshift_r(0x80000000u, 1u, 4);
    out[n++] = __umulhi(0x80000000u, 6u);
    out[n++] = __float_as_uint(__fmaf_rn(2.0f, 3.0f, 1.0f));
    out[n++] = (unsigned)(__popcll(~0ull) + min(3, -1) + (int)max(2.0f, (float)NAN));
}

static void small_functions_are_right(void **state) {
    (void)state;
    static const unsigned expected[14] = {8, 4, 0x10101100, 0x66442200, 0xffffffffu, 2, 4, (unsigned)-3,
        0x7fffffff, 24, 0x18000000, 3, 0x40e00000, 65};
    unsigned *out = device_array<unsigned>(14), host[14];
    RUN(small_functions, 1, 1, 0, out, 0x00880808u);
    fetch(host, out, 14);
    check_no_error();
    for (int i = 0; i < 14; i++)
        assert_int_equal(host[i], expected[i]);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

/* ---- launches, streams, graphs ---- */

static __global__ void add_number(int *data, int number) {
    data[threadIdx.x] += number;
}

static __global__ void double_all(int *data) {
    data[threadIdx.x] *= 2;
}

static cudaError_t launch_result(dim3 grid, dim3 block, size_t shared_bytes) {
    (void)cudaGetLastError();
    simt_launch(NULL, "fails_itself", grid, block, shared_bytes, fails_itself, 2);
    return cudaGetLastError();
}

static void impossible_launches_are_refused(void **state) {
    (void)state;
    assert_int_equal(launch_result(1, 1024, 227 << 10), cudaSuccess);
    assert_int_equal(launch_result(1, 1025, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_result(1, dim3(64, 32), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_result(1, dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_result(0, 32, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_result(1, 0, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_result(dim3(1, 65536), 32, 0), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_result(1, 32, (227 << 10) + 1), cudaErrorInvalidValue);
    assert_int_equal(
        cudaFuncSetAttribute(fails_itself, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10),
        cudaSuccess);
    assert_int_equal(
        cudaFuncSetAttribute(fails_itself, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
        cudaErrorInvalidValue);
    assert_string_equal(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue");
    assert_string_equal(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    (void)cudaGetLastError();
    check_no_error();
}

static void wrong_copies_are_refused(void **state) {
    (void)state;
    int host[16] = {0};
    int *data = device_array<int>(8);
    assert_int_equal(cudaMemcpy(data, host, 36, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(error_count, 1);
    assert_non_null(
        strstr(error_text, "the target of a copy of 36 bytes reaches 0 bytes past the end of 32 bytes"));
    assert_int_equal(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
    assert_int_equal(error_count, 2);
    assert_int_equal(cudaMemcpy(host, data, 32, cudaMemcpyHostToDevice), cudaErrorInvalidMemcpyDirection);
    assert_int_equal(cudaMemcpy2DAsync(data, 8, host, 16, 12, 2, cudaMemcpyHostToDevice, NULL),
        cudaErrorInvalidPitchValue);
    assert_int_equal(cudaFree(data + 1), cudaErrorInvalidValue);
    assert_int_equal(error_count, 3);
    assert_int_equal(cudaFree(data), cudaSuccess);
    assert_int_equal(cudaFree(data), cudaErrorInvalidValue);
    assert_int_equal(error_count, 4);
    assert_non_null(strstr(error_text, "cudaFree of"));
    assert_int_equal(cudaMemcpy(host, data, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_non_null(strstr(error_text, "that were freed"));
    (void)cudaGetLastError();
    error_count = 0;
}

static void rows_are_copied(void **state) {
    (void)state;
    int host[12], back[12] = {0};
    for (int i = 0; i < 12; i++)
        host[i] = i;
    int *data = device_copy(host, 12);
    assert_int_equal(
        cudaMemcpy2DAsync(back, 12, data + 1, 16, 8, 3, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
    check_no_error();
    static const int expected[12] = {1, 2, 0, 5, 6, 0, 9, 10, 0, 0, 0, 0};
    assert_memory_equal(back, expected, sizeof back);
    assert_int_equal(cudaFree(data), cudaSuccess);
}

static void graphs_replay(void **state) {
    (void)state;
    cudaStream_t stream = NULL, other = NULL;
    cudaEvent_t fork_event = NULL, join_event = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    enum cudaStreamCaptureStatus status;
    int *pinned = NULL, *data = device_array<int>(32), *more = device_array<int>(32);
    assert_int_equal(cudaMallocHost(&pinned, 128), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming), cudaSuccess);

    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(data, pinned, 128, cudaMemcpyHostToDevice, stream), cudaSuccess);
    assert_int_equal(cudaEventRecord(fork_event, stream), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(other, fork_event, 0), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(more, 0, 128, other), cudaSuccess);
    simt_launch(other, "add_number", 1, 32, 0, add_number, more, 5);
    simt_launch(stream, "add_number", 1, 32, 0, add_number, data, 1);
    assert_int_equal(cudaEventRecord(join_event, other), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(stream, join_event, 0), cudaSuccess);
    simt_launch(stream, "double_all", 1, 32, 0, double_all, data);
    assert_int_equal(cudaMemcpyAsync(pinned, data, 128, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    assert_int_equal(cudaStreamIsCapturing(other, &status), cudaSuccess);
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    int64_t before = simt_get_counts().launches;
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaStreamIsCapturing(other, &status), cudaSuccess);
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    assert_int_equal(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    assert_int_equal(simt_get_counts().launches, before); /* recorded, not run */
    for (int i = 0; i < 32; i++)
        pinned[i] = i;
    for (int round = 0; round < 3; round++)
        assert_int_equal(cudaGraphLaunch(executable, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    for (int i = 0; i < 32; i++)
        assert_int_equal(pinned[i], 8 * i + 14);
    assert_int_equal(simt_get_counts().launches, before + 9);
    int five = 0;
    fetch(&five, more + 31, 1);
    assert_int_equal(five, 5);
    assert_int_equal(cudaGraphExecDestroy(executable), cudaSuccess);

    /* what spoils a capture */
    void *memory = NULL;
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    assert_int_equal(cudaEventRecord(fork_event, stream), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(other, fork_event, 0), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
    assert_int_equal(cudaEventDestroy(fork_event), cudaSuccess);
    assert_int_equal(cudaEventDestroy(join_event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    assert_int_equal(cudaFree(data), cudaSuccess);
    assert_int_equal(cudaFree(more), cudaSuccess);
    (void)cudaGetLastError();
    check_no_error();
}

static void count_call(void *data) {
    ++*(int *)data;
}

static void lazy_streams_work_when_waited_for(void **state) {
    (void)state;
    struct simt_options options = simt_get_options();
    options.lazy = 1;
    simt_set_options(&options);
    cudaStream_t first = NULL, second = NULL;
    cudaEvent_t event = NULL;
    int host[32], back[32] = {0}, calls = 0;
    for (int i = 0; i < 32; i++)
        host[i] = i;
    assert_int_equal(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaEventCreate(&event), cudaSuccess);
    int *data = device_array<int>(32);
    int64_t before = simt_get_counts().launches;
    assert_int_equal(cudaMemcpyAsync(data, host, 128, cudaMemcpyHostToDevice, first), cudaSuccess);
    memset(host, 0, sizeof host); /* pageable memory was taken at the call */
    simt_launch(first, "add_number", 1, 32, 0, add_number, data, 1);
    assert_int_equal(cudaEventRecord(event, first), cudaSuccess);
    simt_launch(first, "never", 1, 32, 0, double_all, data); /* behind the event */
    assert_int_equal(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
    simt_launch(second, "double_all", 1, 32, 0, double_all, data);
    assert_int_equal(cudaMemcpyAsync(back, data, 128, cudaMemcpyDeviceToHost, second), cudaSuccess);
    assert_int_equal(cudaLaunchHostFunc(second, count_call, &calls), cudaSuccess);
    assert_int_equal(simt_get_counts().launches, before);
    assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
    assert_int_equal(back[5], 0);
    assert_int_equal(calls, 0);
    assert_int_equal(cudaStreamSynchronize(second), cudaSuccess);
    assert_int_equal(cudaEventQuery(event), cudaSuccess);
    assert_int_equal(simt_get_counts().launches, before + 2);
    assert_int_equal(calls, 1);
    for (int i = 0; i < 32; i++)
        assert_int_equal(back[i], 2 * i + 2);
    int polls = 0;
    while (cudaStreamQuery(first) == cudaErrorNotReady)
        polls++;
    assert_int_equal(polls, 1);
    assert_int_equal(simt_get_counts().launches, before + 3);

    /* memory that is freed in order is seen by what came before, and not by what comes after */
    simt_launch(first, "add_number", 1, 32, 0, add_number, data, 1);
    assert_int_equal(cudaFreeAsync(data, first), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(first), cudaSuccess);
    check_no_error();
    simt_launch(first, "add_number", 1, 32, 0, add_number, data, 1);
    assert_int_equal(error_count, 0);
    assert_int_equal(cudaStreamSynchronize(first), cudaErrorLaunchFailure);
    assert_int_equal(error_count, 1);
    assert_non_null(strstr(error_text, "that were freed"));
    error_count = 0;
    (void)cudaGetLastError();
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(first), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(second), cudaSuccess);
}

static void devices_tell_what_they_are(void **state) {
    (void)state;
    struct cudaDeviceProp properties;
    char bus[32];
    int value = 0;
    assert_int_equal(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    assert_int_equal(properties.warpSize, 32);
    assert_int_equal(properties.major * 10 + properties.minor, usual_options.architecture);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    assert_int_equal(value, usual_options.multiprocessors);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), cudaSuccess);
    assert_int_equal(value, 227 << 10);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 7), cudaErrorInvalidDevice);
    assert_int_equal(cudaDeviceGetPCIBusId(bus, sizeof bus, 0), cudaSuccess);
    assert_string_equal(bus, "0000:01:00.0");
    (void)cudaGetLastError();
}

/* ---- time runs over: more warp operations than the clock of a block can count ---- */

static __global__ void long_conversation(int rounds, int *out) {
    tile &shared = SHARED(tile);
    int i = (int)threadIdx.x;
    shared.words[i] = 0;
    shared.bytes[i] = 1;
    for (int n = 0; n < rounds; n++) {
        __syncwarp();
        if (i == n % 32)
            shared.words[0]++;
    }
    __syncwarp();
    out[i] = shared.words[0] + shared.bytes[(i + 1) % 32];
}

static void clocks_may_overflow(void **state) {
    (void)state;
    int *out = device_array<int>(32), sum = 0;
    RUN(long_conversation, 1, 32, sizeof(tile), 1100000, out);
    check_no_error();
    fetch(&sum, out + 31, 1);
    assert_int_equal(sum, 1100001);
    assert_int_equal(cudaFree(out), cudaSuccess);
}

/* ---- speed ---- */

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static __global__ void nothing(void) {
}

static __global__ void scale_rows(const float *from, float *to, int count) {
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x)
        to[i] = from[i] * 2.0f;
}

static __global__ void shared_rounds(float *out, int rounds) {
    float *shared = (float *)simt_shared_memory(1024);
    int i = (int)threadIdx.x;
    shared[i] = 0;
    for (int n = 0; n < rounds; n++)
        shared[i] += 1.0f;
    out[i] = shared[i];
}

static __global__ void barrier_rounds(int rounds) {
    for (int n = 0; n < rounds; n++)
        __syncthreads();
}

static __global__ void shuffle_rounds(float *out, int rounds) {
    float sum = (float)threadIdx.x;
    for (int n = 0; n < rounds; n++)
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    out[threadIdx.x] = sum;
}

static __global__ void mma_rounds(float *out, int rounds) {
    float d[4] = {0, 0, 0, 0};
    uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
    for (int n = 0; n < rounds; n++)
        mma_bf16(d, a, b);
    out[threadIdx.x] = d[0];
}

template <typename Work> static void measure(const char *what, double count, const char *unit, Work work) {
    double start = seconds();
    work();
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    printf("%-40s %8.1f ns a %s\n", what, (seconds() - start) / count * 1e9, unit);
}

static int measure_speed(void) {
    enum { COUNT = 1 << 20 };
    float *from = device_array<float>(COUNT), *to = device_array<float>(COUNT);
    (void)cudaMemset(from, 0, COUNT * sizeof *from);
    RUN(scale_rows, 1, 256, 0, from, to, COUNT);
    measure("launches of one thread", 1e5, "launch", [=]() {
        for (int i = 0; i < 100000; i++)
            RUN_PLAIN(nothing, 1, 1);
    });
    measure("blocks of 256 threads", 1e4, "block", [=]() { RUN_PLAIN(nothing, 10000, 256); });
    measure("device memory, a read and a write", 20.0 * 2 * COUNT, "access",
        [=]() { RUN(scale_rows, 20, 256, 0, from, to, COUNT); });
    measure("shared memory, a read and a write", 2.0 * 256 * 20000, "access",
        [=]() { RUN(shared_rounds, 1, 256, 1024, to, 20000); });
    measure(
        "barriers of 256 threads", 256.0 * 10000, "thread", [=]() { RUN(barrier_rounds, 1, 256, 0, 10000); });
    measure("shuffles", 256.0 * 10000, "lane", [=]() { RUN(shuffle_rounds, 1, 256, 0, to, 10000); });
    measure("mma_bf16", 8.0 * 10000, "warp", [=]() { RUN(mma_rounds, 1, 256, 0, to, 10000); });
    (void)cudaFree(from);
    (void)cudaFree(to);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "speed") == 0)
        return measure_speed();
    if (argc > 1 && strcmp(argv[1], "overflow") == 0)
        return overflow_a_stack();
#define TEST(name) cmocka_unit_test_setup_teardown(name, prepare, restore)
    const struct CMUnitTest tests[] = {
        TEST(memory_outside_of_buffers_is_refused),
        TEST(messages_name_block_and_thread),
        TEST(memory_functions_are_watched),
        TEST(misaligned_accesses_are_refused),
        TEST(devices_have_memory_of_their_own),
        TEST(watched_host_code_may_not_touch_device_memory),
        TEST(races_in_shared_memory_are_found),
        TEST(unwritten_shared_memory_is_found),
        TEST(bounds_of_shared_memory_are_kept),
        TEST(lanes_are_ordered_by_warp_operations),
        TEST(barriers_that_never_complete_are_found),
        TEST(traps_and_assertions_are_told),
        TEST(without_a_handler_an_error_aborts),
        TEST(faults_name_the_thread),
        TEST(asynchronous_copies_arrive_when_waited_for),
        TEST(unwritten_device_memory_is_found),
        TEST(races_in_device_memory_are_found),
        TEST(reductions_are_right),
        TEST(warp_operations_are_right),
        TEST(blocks_work_together),
        TEST(atomics_are_right),
        TEST(matrix_products_are_right),
        TEST(matrix_products_round_once),
        TEST(small_functions_are_right),
        TEST(impossible_launches_are_refused),
        TEST(wrong_copies_are_refused),
        TEST(rows_are_copied),
        TEST(graphs_replay),
        TEST(lazy_streams_work_when_waited_for),
        TEST(devices_tell_what_they_are),
        TEST(clocks_may_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

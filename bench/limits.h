/* What this machine can do, measured in the same run as what is compared with it: the float32 multiply-add peak, the peaks of
 * dot products of BF16 and of bytes, and the read bandwidth. All are the best of several passes, so that they bound what a kernel can
 * reach: a loop that is slower than the machine would flatter the kernels.
 */
#ifndef NOCTURNE_BENCH_LIMITS_H
#define NOCTURNE_BENCH_LIMITS_H

#include <omp.h>      /* num_threads */
#include <stdbool.h>  /* bool */
#include <stdint.h>   /* int64_t */
#include <string.h>   /* memset */
#include <sys/mman.h> /* mmap, madvise */
#include <time.h>     /* clock_gettime */

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The clock of all measurements: CLOCK_THREAD_CPUTIME_ID, for one thread, measures well on a machine that others use too. */
static clockid_t bench_clock = CLOCK_MONOTONIC;

static inline double bench_seconds(void) {
    struct timespec now;
    clock_gettime(bench_clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- arithmetic ---- */

enum { BENCH_SUMS = 12 }; /* independent sums, which hide an instruction's latency */

/* One thread's loop of `rounds` steps for every sum; returns the floating-point operations done, a multiply-add being two.
 * Sums begin with different values and all their lanes reach `sink`: otherwise the compiler does less. */
typedef double bench_loop(int64_t rounds, volatile float *sink);

#define BENCH_TWELVE(STEP)                                                                                   \
    STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7) STEP(8) STEP(9) STEP(10) STEP(11)

/* The body of a loop over sums of the type VECTOR: FILL makes one from a number, ADVANCE steps it once. */
#define BENCH_LOOP(VECTOR, FILL, ADVANCE)                                                                    \
    VECTOR sums[BENCH_SUMS];                                                                                 \
    float lanes[sizeof(VECTOR) / sizeof(float)], total = 0;                                                  \
    for (int i = 0; i < BENCH_SUMS; i++)                                                                     \
        sums[i] = FILL(*sink + (float)i);                                                                    \
    for (int64_t r = 0; r < rounds; r++) {                                                                   \
        BENCH_TWELVE(ADVANCE)                                                                                \
    }                                                                                                        \
    for (int i = 0; i < BENCH_SUMS; i++) {                                                                   \
        memcpy(lanes, &sums[i], sizeof lanes);                                                               \
        for (unsigned l = 0; l < sizeof lanes / sizeof *lanes; l++)                                          \
            total += lanes[l];                                                                               \
    }                                                                                                        \
    *sink = total;

#if defined(__x86_64__)

#define BENCH_FMA_512(i) sums[i] = _mm512_fmadd_ps(sums[i], factor, addend);
#define BENCH_FMA_256(i) sums[i] = _mm256_fmadd_ps(sums[i], factor, addend);
#define BENCH_DOT_512(i) sums[i] = _mm512_dpbf16_ps(sums[i], left, right);

__attribute__((target("avx512f"))) static inline double bench_fma_avx512(
    int64_t rounds, volatile float *sink) {
    const __m512 factor = _mm512_set1_ps(0.999F), addend = _mm512_set1_ps(1e-3F);
    BENCH_LOOP(__m512, _mm512_set1_ps, BENCH_FMA_512)
    return (double)rounds * BENCH_SUMS * 16 * 2;
}

__attribute__((target("avx2,fma"))) static inline double bench_fma_avx2(
    int64_t rounds, volatile float *sink) {
    const __m256 factor = _mm256_set1_ps(0.999F), addend = _mm256_set1_ps(1e-3F);
    BENCH_LOOP(__m256, _mm256_set1_ps, BENCH_FMA_256)
    return (double)rounds * BENCH_SUMS * 8 * 2;
}

__attribute__((target("avx512f,avx512bf16"))) static inline double bench_dot_avx512bf16(
    int64_t rounds, volatile float *sink) {
    const __m512 small = _mm512_set1_ps(1e-3F);
    const __m512bh left = _mm512_cvtne2ps_pbh(small, small), right = left;
    BENCH_LOOP(__m512, _mm512_set1_ps, BENCH_DOT_512)
    return (double)rounds * BENCH_SUMS * 32 * 2;
}

#define BENCH_BYTES_512(i) sums[i] = _mm512_dpbusd_epi32(sums[i], left, right);
#define BENCH_BYTES_256(i)                                                                                   \
    __asm__("" : "+x"(left)); /* or the product of two constants would be made once, outside the loop */     \
    sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(_mm256_maddubs_epi16(left, right), ones));

/* The sums' content as numbers of their lanes doesn't matter. */
#define BENCH_FILL_INTEGERS_512(x) _mm512_castps_si512(_mm512_set1_ps(x))
#define BENCH_FILL_INTEGERS_256(x) _mm256_castps_si256(_mm256_set1_ps(x))

__attribute__((target("avx512f,avx512vnni"))) static inline double bench_bytes_avx512vnni(
    int64_t rounds, volatile float *sink) {
    const __m512i left = _mm512_set1_epi8(1), right = left;
    BENCH_LOOP(__m512i, BENCH_FILL_INTEGERS_512, BENCH_BYTES_512)
    return (double)rounds * BENCH_SUMS * 64 * 2;
}

__attribute__((target("avx2"))) static inline double bench_bytes_avx2(int64_t rounds, volatile float *sink) {
    __m256i left = _mm256_set1_epi8(1);
    const __m256i right = left, ones = _mm256_set1_epi16(1);
    BENCH_LOOP(__m256i, BENCH_FILL_INTEGERS_256, BENCH_BYTES_256)
    return (double)rounds * BENCH_SUMS * 32 * 2;
}

#endif

/* Any other processor: vectors of 16 bytes, or of two registers where there are 32 of them. */
#if defined(__aarch64__) || defined(__powerpc64__)
enum { BENCH_ANY_BYTES = 32 };
#else
enum { BENCH_ANY_BYTES = 16 };
#endif
typedef float bench_vector __attribute__((vector_size(BENCH_ANY_BYTES)));
#define BENCH_FILL_ANY(x) ((bench_vector){0} + (x))
#define BENCH_FMA_ANY(i) sums[i] = sums[i] * factor + addend;

#ifndef __clang__
__attribute__((optimize("fp-contract=fast")))
#endif
static inline double
bench_fma_any(int64_t rounds, volatile float *sink) {
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
    const bench_vector factor = BENCH_FILL_ANY(0.999F), addend = BENCH_FILL_ANY(1e-3F);
    BENCH_LOOP(bench_vector, BENCH_FILL_ANY, BENCH_FMA_ANY)
    return (double)rounds * BENCH_SUMS * (BENCH_ANY_BYTES / 4) * 2;
}

static inline double bench_loop_rate(bench_loop *loop, int threads) {
    enum { PASSES = 7, ROUNDS = 1500000 };
    double best = 0;
    for (int i = 0; i < PASSES; i++) {
        double operations = 0, begin = bench_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : operations)
        {
            volatile float sink = 0;
            operations += loop(ROUNDS, &sink);
        }
        double rate = operations / (bench_seconds() - begin);
        best = rate > best ? rate : best;
    }
    return best;
}

/* Float32 operations a second that `threads` threads reach in multiply-adds (each counts two). */
static inline double bench_fma_peak(int threads) {
    bench_loop *loop = bench_fma_any;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        loop = bench_fma_avx512;
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        loop = bench_fma_avx2;
#endif
    return bench_loop_rate(loop, threads);
}

/* The same in dot products of BF16 pairs; 0 where the processor has none. */
static inline double bench_bf16_peak(int threads) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16"))
        return bench_loop_rate(bench_dot_avx512bf16, threads);
#endif
    (void)threads;
    return 0;
}

/* The same in dot products of bytes with 32-bit sums; 0 where there are no vectors of them. */
static inline double bench_byte_peak(int threads) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni"))
        return bench_loop_rate(bench_bytes_avx512vnni, threads);
    if (__builtin_cpu_supports("avx2"))
        return bench_loop_rate(bench_bytes_avx2, threads);
#endif
    (void)threads;
    return 0;
}

/* ---- memory ---- */

enum { BENCH_LINE = 64, BENCH_PAGE = 4096 };

/* How one thread walks through its part of the memory. */
struct bench_walk {
    int streams;  /* equal shares of the part read in turn, a line of each */
    int prefetch; /* bytes ahead that are asked for; 0: the processor's own prefetching only */
};

/* Sums `bytes` (a multiple of streams * BENCH_LINE) at `memory`, so that every line is loaded. */
typedef uint64_t bench_read(const uint8_t *memory, int64_t bytes, const struct bench_walk *walk);

#define BENCH_READ(VECTOR, LOAD, ADD)                                                                        \
    enum { LOADS = BENCH_LINE / sizeof(VECTOR) };                                                            \
    const int64_t share = bytes / walk->streams;                                                             \
    VECTOR sums[LOADS];                                                                                      \
    uint64_t words[sizeof sums / 8], total = 0;                                                              \
    memset(sums, 0, sizeof sums);                                                                            \
    for (int64_t at = 0; at < share; at += BENCH_LINE)                                                       \
        for (int s = 0; s < walk->streams; s++) {                                                            \
            const uint8_t *line = memory + s * share + at;                                                   \
            if (walk->prefetch)                                                                              \
                __builtin_prefetch(line + walk->prefetch);                                                   \
            for (int l = 0; l < LOADS; l++)                                                                  \
                sums[l] = ADD(sums[l], LOAD((const void *)(line + (size_t)l * sizeof(VECTOR))));             \
        }                                                                                                    \
    memcpy(words, sums, sizeof sums);                                                                        \
    for (unsigned w = 0; w < sizeof words / sizeof *words; w++)                                              \
        total += words[w];                                                                                   \
    return total;

#if defined(__x86_64__)

__attribute__((target("avx512f"))) static inline uint64_t bench_read_avx512(
    const uint8_t *memory, int64_t bytes, const struct bench_walk *walk) {
    BENCH_READ(__m512i, _mm512_load_si512, _mm512_add_epi64)
}

__attribute__((target("avx2"))) static inline uint64_t bench_read_avx2(
    const uint8_t *memory, int64_t bytes, const struct bench_walk *walk) {
    BENCH_READ(__m256i, _mm256_load_si256, _mm256_add_epi64)
}

#endif

typedef uint64_t bench_words __attribute__((vector_size(16)));
#define BENCH_LOAD_ANY(at) (*(const bench_words *)(at))
#define BENCH_ADD_ANY(a, b) ((a) + (b))

static inline uint64_t bench_read_any(const uint8_t *memory, int64_t bytes, const struct bench_walk *walk) {
    BENCH_READ(bench_words, BENCH_LOAD_ANY, BENCH_ADD_ANY)
}

/* Zeroed memory in large pages where the machine has them, as placed weights; NULL when there is none. End it with free. */
static inline void *bench_pages(size_t bytes) {
    enum { HUGE_PAGE = 2 << 20 };
    size_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *memory = aligned_alloc(HUGE_PAGE, rounded);
    if (!memory)
        return NULL;
#ifdef MADV_HUGEPAGE
    madvise(memory, rounded, MADV_HUGEPAGE);
#endif
    memset(memory, 0, rounded);
    return memory;
}

static inline double bench_walk_rate(
    bench_read *read, const uint8_t *memory, int64_t part, int threads, const struct bench_walk *walk) {
    enum { PASSES = 3 };
    double best = 0;
    for (int i = 0; i < PASSES; i++) {
        uint64_t total = 0;
        double begin = bench_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : total)
        total += read(memory + part * omp_get_thread_num(), part, walk);
        double rate = (double)(part * threads) / (bench_seconds() - begin);
        best = total && rate > best ? rate : best;
    }
    return best;
}

/* Bytes a second that `threads` threads read from memory far larger than the caches, by the best way of walking through it;
 * 0 when there is no memory for it. */
static inline double bench_read_bandwidth(int threads) {
    static const struct bench_walk walks[] = {{1, 0}, {2, 0}, {4, 0}, {8, 0}, {1, 1024}, {1, 4096}, {2, 2048},
        {4, 512}, {4, 1024}, {4, 2048}, {8, 512}, {8, 1024}};
    const int64_t part = (((int64_t)512 << 20) / threads) & ~(int64_t)(8 * BENCH_PAGE - 1);
    const size_t bytes = (size_t)part * (size_t)threads;
    bench_read *read = bench_read_any;
    uint8_t *memory = bench_pages(bytes + 2 * BENCH_PAGE); /* prefetches reach beyond the last part */
    double best = 0;
    if (!memory)
        return 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        read = bench_read_avx512;
    else if (__builtin_cpu_supports("avx2"))
        read = bench_read_avx2;
#endif
    memset(memory, 1, bytes);
    for (size_t i = 0; i < sizeof walks / sizeof *walks; i++) {
        double rate = bench_walk_rate(read, memory, part, threads, &walks[i]);
        best = rate > best ? rate : best;
    }
    free(memory);
    return best;
}

/* ---- all ---- */

/* Per second and for the number of threads they were measured with. */
struct bench_limits {
    double fma, bf16, byte; /* operations; 0: the processor has no such dot products */
    double read_bytes;      /* from memory */
};

static inline struct bench_limits bench_measure_limits(int threads) {
    return (struct bench_limits){.fma = bench_fma_peak(threads),
        .bf16 = bench_bf16_peak(threads),
        .byte = bench_byte_peak(threads),
        .read_bytes = bench_read_bandwidth(threads)};
}

#endif

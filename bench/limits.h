/* What this machine can do, measured in the same run as what is compared with it: float32 FMA peak and read bandwidth. */
#ifndef NOCTURNE_BENCH_LIMITS_H
#define NOCTURNE_BENCH_LIMITS_H

#include <omp.h>
#include <stdint.h>
#include <stdlib.h> /* malloc */
#include <string.h> /* memset */
#include <time.h>   /* clock_gettime */

static inline double bench_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef float bench_vector __attribute__((vector_size(64)));

/* One thread's multiply-adds on 12 independent accumulators, so that latency is hidden; returns their number. */
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), noinline,
    optimize("fp-contract=fast"))) static double
bench_fma_loop(int64_t rounds, volatile float *sink) {
    enum { ACCUMULATORS = 12, LANES = 16 };
    bench_vector sums[ACCUMULATORS], factor, addend;
    memset(sums, 0, sizeof sums);
    for (int i = 0; i < LANES; i++) {
        factor[i] = 0.999F;
        addend[i] = 1e-6F;
    }
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int a = 0; a < ACCUMULATORS; a++)
            sums[a] = sums[a] * factor + addend;
    float total = 0;
    for (int a = 0; a < ACCUMULATORS; a++)
        total += sums[a][0];
    *sink = total;
    return (double)rounds * ACCUMULATORS * LANES;
}

/* Best of five, floating-point operations a second (a multiply-add counts two) on `threads` threads. */
static inline double bench_fma_peak(int threads) {
    double best = 0;
    for (int i = 0; i < 5; i++) {
        double total = 0, begin = bench_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : total)
        {
            volatile float sink;
            total += bench_fma_loop(4000000, &sink);
        }
        double rate = 2 * total / (bench_seconds() - begin);
        if (rate > best)
            best = rate;
    }
    return best;
}

/* Best of five, bytes a second read from memory far larger than the caches, on `threads` threads. */
static inline double bench_read_bandwidth(int threads) {
    size_t bytes = (size_t)512 << 20;
    uint64_t *data = malloc(bytes);
    double best = 0;
    if (!data)
        return 0;
    memset(data, 1, bytes);
    for (int i = 0; i < 5; i++) {
        uint64_t total = 0;
        double begin = bench_seconds();
#pragma omp parallel for num_threads(threads) reduction(+ : total) schedule(static)
        for (size_t block = 0; block < bytes / 4096; block++) {
            const uint64_t *at = data + block * 512;
            uint64_t sum = 0;
            for (int j = 0; j < 512; j++)
                sum += at[j];
            total += sum;
        }
        double rate = (double)bytes / (bench_seconds() - begin);
        if (total && rate > best)
            best = rate;
    }
    free(data);
    return best;
}

#endif

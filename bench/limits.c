/* Prints this machine's limits for 1 .. N threads (default: all cores), which the other benches put beside their figures:
 *
 *   bench-limits [--json] [--processor-time] [N]
 *
 * --processor-time: for one thread, on a machine that others use too.
 */
#include "bench/limits.h"

#include <stdio.h>  /* printf */
#include <stdlib.h> /* atoi */

int main(int argc, char **argv) {
    bool as_json = false;
    int threads = omp_get_num_procs();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            as_json = true;
        else if (strcmp(argv[i], "--processor-time") == 0)
            bench_clock = CLOCK_THREAD_CPUTIME_ID;
        else
            threads = atoi(argv[i]);
    }
    if (threads < 1) {
        fprintf(stderr, "usage: bench-limits [--json] [--processor-time] [THREADS]\n");
        return 2;
    }
    if (bench_clock != CLOCK_MONOTONIC)
        threads = 1;
    for (int t = 1; t <= threads; t++) {
        struct bench_limits limits = bench_measure_limits(t);
        printf(as_json
                   ? "{\"bench\":\"limits\",\"threads\":%d,\"fma_gflops\":%.1f,\"bf16_gflops\":%.1f,"
                     "\"byte_gops\":%.1f,\"read_gbytes\":%.2f}\n"
                   : "threads %3d: float32 multiply-adds %.1f GFLOP/s, BF16 dot products %.1f GFLOP/s, byte "
                     "dot products %.1f GOP/s, reads %.1f GB/s\n",
            t, limits.fma * 1e-9, limits.bf16 * 1e-9, limits.byte * 1e-9, limits.read_bytes * 1e-9);
    }
    return 0;
}

/* Times the kernels of the CPU backend at sizes of the model, beside the limits of this machine measured in the same run.
 *
 *   bench-kernels [--threads N] [--instruction-set NAME] [--tokens N,N,...] [--json] [--processor-time] [KERNEL ...]
 *
 * KERNEL: product, experts, attend ... as in kernels.h; none: all. A row's limit is the one that binds: "read", when its bytes
 * at the read bandwidth take longer than its operations at their peak, else "bf16" (kernels that may use BF16 dot products,
 * with an instruction set that has them), "byte" (dot products of FP4 codes as bytes) or "fma". "cache": rows that come from caches, which no limit here bounds. Weights
 * rotate through copies larger than the caches, in large pages, as placed weights. Time: median of the calls.
 *
 * --json: a JSON line for each row instead. --processor-time: one thread, and its processor time instead of the wall clock's, for
 * machines that others use too.
 */
#include "bench/cases/cases.h"
#include "bench/limits.h"

#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc, qsort */
#include <string.h> /* strcmp */

enum {
    MOST_CALLS = 400,
    LEAST_CALLS = 3,
    MOST_TOKEN_COUNTS = 16,
    MOST_TOKENS = 2048,
    ROTATED_BYTES = 160 << 20
};
static const double ENOUGH_SECONDS = 0.4, MOST_SECONDS = 3;

struct bench {
    struct case_options cases;
    struct bench_limits limits;
    bool has_bf16_dots, has_byte_dots; /* the instruction set's kernels may use them */
    bool as_json;
    int32_t tokens[MOST_TOKEN_COUNTS], token_counts;
    char **wanted;
    int32_t wanted_count;
};

static bool is_wanted(const struct bench *bench, const char *kernel) {
    for (int32_t i = 0; i < bench->wanted_count; i++)
        if (strcmp(bench->wanted[i], kernel) == 0)
            return true;
    return bench->wanted_count == 0;
}

/* ---- one row ---- */

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median seconds of a call. */
static double time_calls(struct bench_case *one) {
    double times[MOST_CALLS], spent = 0;
    int32_t calls = 0;
    case_call(one, 0);
    while (calls < MOST_CALLS && (spent < ENOUGH_SECONDS || (calls < LEAST_CALLS && spent < MOST_SECONDS))) {
        double begin = bench_seconds();
        case_call(one, calls + 1);
        times[calls] = bench_seconds() - begin;
        spent += times[calls++];
    }
    qsort(times, (size_t)calls, sizeof times[0], compare_times);
    return times[calls / 2];
}

/* The name of the limit that binds and the seconds it allows a call; 0 seconds: none does. */
static const char *find_limit(const struct bench *bench, const struct bench_case *one, double *seconds) {
    *seconds = 0;
    if (one->arithmetic == CASE_CACHE)
        return "cache";
    const bool is_bf16 = bench->has_bf16_dots && one->arithmetic == CASE_BF16_DOT;
    const bool is_byte = bench->has_byte_dots && one->arithmetic == CASE_BYTE_DOT;
    const struct bench_limits *limits = &bench->limits;
    const double arithmetic = one->flops / (is_bf16 ? limits->bf16 : is_byte ? limits->byte : limits->fma);
    const double read = one->bytes / limits->read_bytes;
    *seconds = read > arithmetic ? read : arithmetic;
    return read > arithmetic ? "read" : is_bf16 ? "bf16" : is_byte ? "byte" : "fma";
}

static void measure(const struct bench *bench, struct bench_case *one, int32_t tokens) {
    double allowed;
    case_set_tokens(one, tokens);
    const double time = time_calls(one), gflops = one->flops / time * 1e-9, gbytes = one->bytes / time * 1e-9;
    const char *limit = find_limit(bench, one, &allowed);
    if (bench->as_json)
        printf(
            "{\"bench\":\"kernels\",\"kernel\":\"%s\",\"shape\":\"%s\",\"tokens\":%d,\"microseconds\":%.1f,"
            "\"gflops\":%.2f,\"gbytes\":%.3f,\"limit\":\"%s\",\"share_of_limit\":%.4f}\n",
            one->kernel, one->shape, tokens, time * 1e6, gflops, gbytes, limit, allowed / time);
    else if (allowed > 0)
        printf("%-15s %-34s %6d %11.1f %9.1f %8.2f %5.0f%% %s\n", one->kernel, one->shape, tokens, time * 1e6,
            gflops, gbytes, 100 * allowed / time, limit);
    else
        printf("%-15s %-34s %6d %11.1f %9.1f %8.2f      - %s\n", one->kernel, one->shape, tokens, time * 1e6,
            gflops, gbytes, limit);
    fflush(stdout);
}

/* Takes over the case. */
static void measure_all_tokens(const struct bench *bench, struct bench_case *one) {
    for (int32_t i = 0; i < bench->token_counts; i++)
        measure(bench, one, bench->tokens[i]);
    case_free(one);
}

/* ---- all rows ---- */

static void bench_products(const struct bench *bench) {
    static const struct {
        const char *part;
        enum weight_format format;
        int32_t rows, columns;
    } products[] = {
        /* the bench checkpoint's sizes */
        {"small wq_a", WEIGHT_FP8_TILE, 512, 1024},
        {"small wq_b", WEIGHT_FP8_TILE, 4096, 512},
        {"small wo_b", WEIGHT_FP8_TILE, 1024, 2048},
        {"small w1", WEIGHT_FP4_ROW, 512, 1024},
        {"small gate", WEIGHT_BF16, 64, 1024},
        {"small head", WEIGHT_BF16, 8192, 1024},
        /* the published model's */
        {"wq_a", WEIGHT_FP8_TILE, 1280, 5120},
        {"wq_b", WEIGHT_FP8_TILE, 32768, 1280},
        {"wo_b", WEIGHT_FP8_TILE, 5120, 8192},
        {"w1", WEIGHT_FP4_ROW, 2304, 5120},
        {"w2", WEIGHT_FP4_ROW, 5120, 2304},
        {"gate", WEIGHT_BF16, 384, 5120},
        {"1/8 of head", WEIGHT_BF16, 16160, 5120},
        {"mixes", WEIGHT_F32, 24, 20480},
    };
    if (!is_wanted(bench, "product"))
        return;
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
        measure_all_tokens(bench, case_product(&bench->cases, products[i].part, products[i].format,
                                      products[i].rows, products[i].columns));
}

static void bench_grouped_products(const struct bench *bench) {
    if (!is_wanted(bench, "grouped_product"))
        return;
    measure_all_tokens(bench, case_grouped_product(&bench->cases, "small wo_a", 4, 2048, 1024));
    measure_all_tokens(bench, case_grouped_product(&bench->cases, "wo_a", 8, 8192, 4096));
}

/* One expert shows the product alone; more, how a batch spreads over them. */
static void bench_experts(const struct bench *bench) {
    if (!is_wanted(bench, "experts"))
        return;
    measure_all_tokens(bench, case_experts(&bench->cases, "small", 6, 64, 512, 1024));
    measure_all_tokens(bench, case_experts(&bench->cases, "", 1, 1, 2304, 5120));
    measure_all_tokens(bench, case_experts(&bench->cases, "", 6, 24, 2304, 5120));
}

static void bench_attention(const struct bench *bench) {
    if (is_wanted(bench, "attend")) {
        measure_all_tokens(bench, case_attend(&bench->cases, "small", 16, 256, 256, 4096));
        measure_all_tokens(bench, case_attend(&bench->cases, "", 64, 512, 512, 65536));
    }
    if (is_wanted(bench, "choose")) {
        measure_all_tokens(bench, case_choose(&bench->cases, "small", 16, 256, 4096));
        measure_all_tokens(bench, case_choose(&bench->cases, "", 32, 512, 65536));
    }
    if (is_wanted(bench, "route")) {
        measure_all_tokens(bench, case_route(&bench->cases, "small", 6, 64));
        measure_all_tokens(bench, case_route(&bench->cases, "", 6, 384));
    }
}

static void bench_rows(const struct bench *bench) {
    static const char *const kernels[] = {
        "rms_norm", "encode", "encode_fine", "swiglu", "collapse_norm", "mix", "expand", "engram_add"};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (!is_wanted(bench, kernels[i]))
            continue;
        measure_all_tokens(bench, case_rows(&bench->cases, "small", kernels[i], 1024));
        measure_all_tokens(bench, case_rows(&bench->cases, "", kernels[i], 5120));
    }
}

/* ---- the command ---- */

static void fail_usage(void) {
    fprintf(stderr, "usage: bench-kernels [--threads N] [--instruction-set NAME] [--tokens N,N,...] [--json] "
                    "[--processor-time] [KERNEL ...]\n");
    exit(2);
}

static void read_token_counts(struct bench *bench, const char *text) {
    bench->token_counts = 0;
    for (char *end; *text != '\0'; text = *end == ',' ? end + 1 : end) {
        long count = strtol(text, &end, 10);
        if (end == text || count < 1 || count > MOST_TOKENS || bench->token_counts == MOST_TOKEN_COUNTS)
            fail_usage();
        bench->tokens[bench->token_counts++] = (int32_t)count;
    }
}

static void read_arguments(
    struct bench *bench, int argc, char **argv, int32_t *threads, const char **instruction_set) {
    read_token_counts(bench, "1,8,64,512");
    for (int32_t i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--json") == 0)
            bench->as_json = true;
        else if (strcmp(argv[i], "--processor-time") == 0)
            bench_clock = CLOCK_THREAD_CPUTIME_ID;
        else if (strcmp(argv[i], "--threads") == 0 && ++i)
            *threads = atoi(value);
        else if (strcmp(argv[i], "--instruction-set") == 0 && ++i)
            *instruction_set = value;
        else if (strcmp(argv[i], "--tokens") == 0 && ++i)
            read_token_counts(bench, value);
        else if (argv[i][0] == '-')
            fail_usage();
        else
            bench->wanted[bench->wanted_count++] = argv[i];
    }
    if (bench_clock != CLOCK_MONOTONIC)
        *threads = 1;
    for (int32_t i = 0; i < bench->token_counts; i++)
        if (bench->tokens[i] > bench->cases.most_tokens)
            bench->cases.most_tokens = bench->tokens[i];
    if (bench->token_counts == 0)
        fail_usage();
}

static void print_head(const struct bench *bench) {
    const struct kernels *kernels = bench->cases.kernels;
    const struct bench_limits *limits = &bench->limits;
    if (bench->as_json)
        printf("{\"bench\":\"limits\",\"instruction_set\":\"%s\",\"threads\":%d,\"fma_gflops\":%.1f,"
               "\"bf16_gflops\":%.1f,\"byte_gops\":%.1f,\"read_gbytes\":%.2f}\n",
            kernels->instruction_set, kernels->threads, limits->fma * 1e-9, limits->bf16 * 1e-9,
            limits->byte * 1e-9, limits->read_bytes * 1e-9);
    else
        printf("instruction set %s, %d threads, %s time; limits: fma %.1f GFLOP/s, bf16 %.1f GFLOP/s%s, "
               "byte %.1f GOP/s, read %.1f GB/s\n%-15s %-34s %6s %11s %9s %8s %6s %s\n",
            kernels->instruction_set, kernels->threads, bench_clock == CLOCK_MONOTONIC ? "wall" : "processor",
            limits->fma * 1e-9, limits->bf16 * 1e-9,
            bench->has_bf16_dots ? "" : " (not in this instruction set)", limits->byte * 1e-9,
            limits->read_bytes * 1e-9, "kernel", "shape", "tokens", "microsec", "GFLOP/s", "GB/s", "share",
            "of limit");
    fflush(stdout);
}

int main(int argc, char **argv) {
    struct bench bench = {.cases.rotated_bytes = ROTATED_BYTES};
    int32_t threads = 0;
    const char *instruction_set = NULL;
    bench.wanted = malloc(sizeof(char *) * (size_t)argc);
    if (bench.wanted == NULL)
        return 1;
    read_arguments(&bench, argc, argv, &threads, &instruction_set);
    if (kernels_cpu_create(threads, instruction_set, &bench.cases.kernels) != OK ||
        bench.cases.kernels->stream_create(bench.cases.kernels, &bench.cases.stream) != OK) {
        fprintf(stderr, "bench-kernels: %s\n", failure_message());
        return 1;
    }
    const struct kernels *kernels = bench.cases.kernels;
    bench.limits = bench_measure_limits(kernels->threads);
    bench.has_bf16_dots = strcmp(kernels->instruction_set, "avx512bf16") == 0 && bench.limits.bf16 > 0;
    bench.has_byte_dots = strcmp(kernels->instruction_set, "generic") != 0 && bench.limits.byte > 0;
    print_head(&bench);
    bench_products(&bench);
    bench_grouped_products(&bench);
    bench_experts(&bench);
    bench_attention(&bench);
    bench_rows(&bench);
    kernels->stream_free(kernels, bench.cases.stream);
    kernels_free(kernels);
    free(bench.wanted);
    return 0;
}

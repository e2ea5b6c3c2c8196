/* Times the kernels of a backend at sizes of the model, beside the limits of this machine measured in the same run.
 *
 *   bench-kernels [--backend cpu|cuda] [--threads N] [--instruction-set NAME] [--tokens N,N,...] [--published] [--json]
 *                 [--processor-time] [KERNEL ...]
 *
 * KERNEL: product, experts, attend ... as in kernels.h; none: all. A row's limit is the one that binds: "read", when its bytes
 * at the read bandwidth take longer than its operations at their peak, else "bf16" (kernels that may use BF16 dot products,
 * with an instruction set that has them), "byte" (dot products of FP4 codes as bytes) or "fma". "cache": rows that come from caches, which no limit here bounds. Weights
 * rotate through copies larger than the caches, in large pages, as placed weights. Time: median of the calls.
 *
 * --backend cuda: the kernels on the first device, beside its own limits: "read", or "bf16", what cuBLASLt reaches in a big dense
 * product (kernels that use tensor cores), or "fma". Bytes there are all that must be moved, inputs and outputs too. Calls are
 * recorded and replayed, so that launches take no time that a long step wouldn't hide. Next to products stands the time of
 * cuBLASLt for one of the same shape with weights and inputs of BF16, and ours divided by it. "experts-share" are the experts of one rank of 8,
 * with the pairs that the given tokens of each rank bring.
 *
 * --published: only the published model's sizes. --json: a JSON line for each row instead. --processor-time: one thread, and its processor time instead of the wall clock's, for
 * machines that others use too.
 */
#include "bench/cases/cases.h"
#include "bench/device/device.h"
#include "bench/limits.h"

#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc, qsort */
#include <string.h> /* strcmp */

enum {
    MOST_CALLS = 400,
    LEAST_CALLS = 3,
    MOST_TOKEN_COUNTS = 16,
    MOST_TOKENS = 8192,
    ROTATED_BYTES = 160 << 20,
    DEVICE_ROTATED_BYTES = 320 << 20, /* larger than a device's caches */
    MOST_RECORDED = 128,              /* calls */
    DEVICE_PASSES = 7,
    SHARING_RANKS = 8
};
static const double ENOUGH_SECONDS = 0.4, MOST_SECONDS = 3;
static const double PASS_SECONDS = 4e-3; /* of a pass on a device, if enough calls fit in a recording */

struct bench {
    struct case_options cases;
    struct bench_limits limits;
    bool has_bf16_dots, has_byte_dots; /* the instruction set's kernels may use them */
    bool on_device, is_published_only, as_json;
    struct device_limits device;
    const char *backend;
    struct stream
        *recorder; /* of its own, for a failed recording spoils its stream; NULL: there is none (any more) */
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

static void check(enum result status) {
    if (status == OK)
        return;
    fprintf(stderr, "bench-kernels: %s\n", failure_message());
    exit(1);
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

/* Seconds until `count` calls from `turn` on are done. */
static double time_batch(struct bench_case *one, int32_t turn, int32_t count) {
    check(one->kernels->synchronize(one->stream));
    double begin = bench_seconds();
    for (int32_t i = 0; i < count; i++)
        case_call(one, turn + i);
    check(one->kernels->synchronize(one->stream));
    return bench_seconds() - begin;
}

/* `calls` calls as a recording; NULL, and no recorder any more, where that cannot be. */
static struct recording *record(struct bench *bench, struct bench_case *one, int32_t calls) {
    const struct kernels *kernels = one->kernels;
    struct recording *recording = NULL;
    if (bench->recorder == NULL)
        return NULL;
    one->stream = bench->recorder;
    time_batch(one, 0, calls); /* what a first call allocates and uploads */
    enum result status = kernels->record_begin(one->stream);
    for (int32_t i = 0; i < calls && status == OK; i++)
        case_call(one, i);
    if (status == OK)
        status = kernels->record_end(one->stream, &recording);
    one->stream = bench->cases.stream;
    if (status == OK)
        return recording;
    fprintf(stderr, "bench-kernels: calls are timed one by one: %s\n", failure_message());
    kernels->stream_free(kernels, bench->recorder);
    bench->recorder = NULL;
    return NULL;
}

/* Seconds of `times` replays. */
static double time_replays(
    struct bench *bench, const struct bench_case *one, const struct recording *recording, int32_t times) {
    check(one->kernels->synchronize(bench->recorder));
    double begin = bench_seconds();
    for (int32_t i = 0; i < times; i++)
        one->kernels->replay(bench->recorder, recording);
    check(one->kernels->synchronize(bench->recorder));
    return bench_seconds() - begin;
}

/* The median seconds of a call on a device: many calls between two waits, recorded where they are brief. */
static double time_device_calls(struct bench *bench, struct bench_case *one) {
    double times[DEVICE_PASSES];
    time_batch(one, 0, one->rotation < MOST_RECORDED ? one->rotation : MOST_RECORDED);
    const double each = time_batch(one, 0, 2) / 2;
    const int32_t enough = each < PASS_SECONDS ? (int32_t)(PASS_SECONDS / each) + 1 : 1;
    const int32_t calls = enough < MOST_RECORDED ? enough : MOST_RECORDED;
    const int32_t replays = (enough + calls - 1) / calls;
    struct recording *recording = calls > 2 ? record(bench, one, calls) : NULL;
    for (int32_t i = 0; i < DEVICE_PASSES; i++)
        times[i] = recording != NULL ? time_replays(bench, one, recording, replays) / replays
                                     : time_batch(one, i * calls, calls);
    if (recording != NULL)
        one->kernels->recording_free(recording);
    qsort(times, DEVICE_PASSES, sizeof times[0], compare_times);
    return times[DEVICE_PASSES / 2] / calls;
}

/* The name of the limit that binds and the seconds it allows a call; 0 seconds: none does. */
static const char *find_limit(const struct bench *bench, const struct bench_case *one, double *seconds) {
    *seconds = 0;
    if (one->arithmetic == CASE_CACHE &&
        !(bench->on_device && one->bytes > (double)bench->device.cache_bytes))
        return "cache";
    const bool is_bf16 = bench->on_device ? one->fits_tensor_cores && bench->limits.bf16 > 0
                                          : bench->has_bf16_dots && one->arithmetic == CASE_BF16_DOT;
    const bool is_byte = !bench->on_device && bench->has_byte_dots && one->arithmetic == CASE_BYTE_DOT;
    const struct bench_limits *limits = &bench->limits;
    const double arithmetic = one->flops / (is_bf16 ? limits->bf16 : is_byte ? limits->byte : limits->fma);
    const double bytes = one->bytes + (bench->on_device ? one->activations : 0);
    const double read = bytes / limits->read_bytes;
    *seconds = read > arithmetic ? read : arithmetic;
    return read > arithmetic ? "read" : is_bf16 ? "bf16" : is_byte ? "byte" : "fma";
}

static void print_row(const struct bench *bench, const struct bench_case *one, double time, double peer) {
    double allowed;
    const char *limit = find_limit(bench, one, &allowed);
    const double bytes = one->bytes + (bench->on_device ? one->activations : 0);
    const double gflops = one->flops / time * 1e-9, gbytes = bytes / time * 1e-9;
    if (bench->as_json)
        printf(
            "{\"bench\":\"kernels\",\"kernel\":\"%s\",\"shape\":\"%s\",\"tokens\":%d,\"microseconds\":%.1f,"
            "\"gflops\":%.2f,\"gbytes\":%.3f,\"limit\":\"%s\",\"share_of_limit\":%.4f",
            one->kernel, one->shape, one->tokens, time * 1e6, gflops, gbytes, limit, allowed / time);
    else
        printf("%-15s %-34s %6d %11.1f %9.1f %8.2f", one->kernel, one->shape, one->tokens, time * 1e6, gflops,
            gbytes);
    if (!bench->as_json && allowed > 0)
        printf(" %5.0f%% %-8s", 100 * allowed / time, limit);
    else if (!bench->as_json)
        printf("      - %-8s", limit);
    if (peer > 0)
        printf(bench->as_json ? ",\"cublaslt_microseconds\":%.1f,\"times_cublaslt\":%.3f" : " %11.1f %8.2f",
            peer * 1e6, time / peer);
    printf(bench->as_json ? "}\n" : "\n");
    fflush(stdout);
}

static void measure(struct bench *bench, struct bench_case *one, int32_t tokens) {
    case_set_tokens(one, tokens);
    const double time = bench->on_device ? time_device_calls(bench, one) : time_calls(one);
    double peer = 0;
    if (bench->on_device && one->weight_rows > 0)
        peer =
            device_peer_seconds(0, tokens, one->weight_rows, one->weight_columns, bench->cases.rotated_bytes);
    print_row(bench, one, time, peer);
}

/* Takes over the case. */
static void measure_all_tokens(struct bench *bench, struct bench_case *one) {
    for (int32_t i = 0; i < bench->token_counts; i++)
        if (one->most_tokens == 0 || bench->tokens[i] <= one->most_tokens)
            measure(bench, one, bench->tokens[i]);
    case_free(one);
}

/* A case of a small checkpoint's sizes is to be measured. */
static bool shows_small(const struct bench *bench) {
    return !bench->is_published_only;
}

/* ---- all rows ---- */

static void bench_products(struct bench *bench) {
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
        if (shows_small(bench) || strncmp(products[i].part, "small", 5) != 0)
            measure_all_tokens(bench, case_product(&bench->cases, products[i].part, products[i].format,
                                          products[i].rows, products[i].columns));
}

static void bench_grouped_products(struct bench *bench) {
    if (!is_wanted(bench, "grouped_product"))
        return;
    if (shows_small(bench))
        measure_all_tokens(bench, case_grouped_product(&bench->cases, "small wo_a", 4, 2048, 1024));
    measure_all_tokens(bench, case_grouped_product(&bench->cases, "wo_a", 8, 8192, 4096));
}

/* One expert shows the product alone; more, how a batch spreads over them. */
static void bench_experts(struct bench *bench) {
    if (is_wanted(bench, "experts")) {
        if (shows_small(bench))
            measure_all_tokens(bench, case_experts(&bench->cases, "small", 6, 64, 512, 1024));
        measure_all_tokens(bench, case_experts(&bench->cases, "", 1, 1, 2304, 5120));
        measure_all_tokens(bench, case_experts(&bench->cases, "", 6, 24, 2304, 5120));
    }
    if (bench->on_device && is_wanted(bench, "experts-share"))
        measure_all_tokens(bench, case_experts_share(&bench->cases, "", 6, 384, SHARING_RANKS, 2304, 5120));
}

static void bench_attention(struct bench *bench) {
    if (is_wanted(bench, "attend")) {
        if (shows_small(bench))
            measure_all_tokens(bench, case_attend(&bench->cases, "small", 16, 256, 256, 4096));
        measure_all_tokens(bench, case_attend(&bench->cases, "", 64, 512, 512, 65536));
    }
    if (is_wanted(bench, "choose")) {
        if (shows_small(bench))
            measure_all_tokens(bench, case_choose(&bench->cases, "small", 16, 256, 4096));
        measure_all_tokens(bench, case_choose(&bench->cases, "", 32, 512, 65536));
    }
    if (is_wanted(bench, "route")) {
        if (shows_small(bench))
            measure_all_tokens(bench, case_route(&bench->cases, "small", 6, 64));
        measure_all_tokens(bench, case_route(&bench->cases, "", 6, 384));
    }
}

static void bench_rows(struct bench *bench) {
    static const char *const kernels[] = {
        "rms_norm", "encode", "encode_fine", "swiglu", "collapse_norm", "mix", "expand", "engram_add"};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        if (!is_wanted(bench, kernels[i]))
            continue;
        if (shows_small(bench))
            measure_all_tokens(bench, case_rows(&bench->cases, "small", kernels[i], 1024));
        measure_all_tokens(bench, case_rows(&bench->cases, "", kernels[i], 5120));
    }
}

/* ---- the command ---- */

static void fail_usage(void) {
    fprintf(stderr,
        "usage: bench-kernels [--backend cpu|cuda] [--threads N] [--instruction-set NAME] [--tokens N,N,...] "
        "[--published] [--json] [--processor-time] [KERNEL ...]\n");
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
        else if (strcmp(argv[i], "--published") == 0)
            bench->is_published_only = true;
        else if (strcmp(argv[i], "--backend") == 0 && ++i)
            bench->backend = value;
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
    bench->on_device = strcmp(bench->backend, "cuda") == 0;
    if (bench->token_counts == 0 || (!bench->on_device && strcmp(bench->backend, "cpu") != 0))
        fail_usage();
}

static void print_titles(const struct bench *bench) {
    printf("%-15s %-34s %6s %11s %9s %8s %6s %-8s", "kernel", "shape", "tokens", "microsec", "GFLOP/s",
        "GB/s", "share", "of limit");
    if (bench->on_device)
        printf(" %11s %8s", "cuBLASLt", "ours/its");
    printf("\n");
}

static void print_cpu_head(const struct bench *bench) {
    const struct kernels *kernels = bench->cases.kernels;
    const struct bench_limits *limits = &bench->limits;
    if (bench->as_json)
        printf("{\"bench\":\"limits\",\"instruction_set\":\"%s\",\"threads\":%d,\"fma_gflops\":%.1f,"
               "\"bf16_gflops\":%.1f,\"byte_gops\":%.1f,\"read_gbytes\":%.2f}\n",
            kernels->instruction_set, kernels->threads, limits->fma * 1e-9, limits->bf16 * 1e-9,
            limits->byte * 1e-9, limits->read_bytes * 1e-9);
    else
        printf("instruction set %s, %d threads, %s time; limits: fma %.1f GFLOP/s, bf16 %.1f GFLOP/s%s, "
               "byte %.1f GOP/s, read %.1f GB/s\n",
            kernels->instruction_set, kernels->threads, bench_clock == CLOCK_MONOTONIC ? "wall" : "processor",
            limits->fma * 1e-9, limits->bf16 * 1e-9,
            bench->has_bf16_dots ? "" : " (not in this instruction set)", limits->byte * 1e-9,
            limits->read_bytes * 1e-9);
}

static void print_device_head(const struct bench *bench) {
    const struct device_limits *device = &bench->device;
    printf(bench->as_json
               ? "{\"bench\":\"limits\",\"device\":\"%s\",\"multiprocessors\":%d,\"cache_bytes\":%lld,"
                 "\"fma_gflops\":%.1f,\"bf16_gflops\":%.1f,\"read_gbytes\":%.2f}\n"
               : "%s, %d multiprocessors, %lld bytes of cache; limits: fma %.1f GFLOP/s, bf16 %.1f GFLOP/s, "
                 "read %.1f GB/s\n",
        device->name, device->multiprocessors, (long long)device->cache_bytes, device->fma * 1e-9,
        device->bf16 * 1e-9, device->read_bytes * 1e-9);
}

static void open_cpu(struct bench *bench, int32_t threads, const char *instruction_set) {
    check(kernels_cpu_create(threads, instruction_set, &bench->cases.kernels));
    const struct kernels *kernels = bench->cases.kernels;
    check(kernels->stream_create(kernels, &bench->cases.stream));
    bench->limits = bench_measure_limits(kernels->threads);
    bench->has_bf16_dots = strcmp(kernels->instruction_set, "avx512bf16") == 0 && bench->limits.bf16 > 0;
    bench->has_byte_dots = strcmp(kernels->instruction_set, "generic") != 0 && bench->limits.byte > 0;
    print_cpu_head(bench);
}

static void open_cuda(struct bench *bench) {
    check(kernels_cuda_create(0, &bench->cases.kernels));
    const struct kernels *kernels = bench->cases.kernels;
    check(kernels->stream_create(kernels, &bench->cases.stream));
    if (kernels->record_begin != NULL)
        check(kernels->stream_create(kernels, &bench->recorder));
    check(device_measure_limits(0, &bench->device));
    bench->limits = (struct bench_limits){
        .fma = bench->device.fma, .bf16 = bench->device.bf16, .read_bytes = bench->device.read_bytes};
    bench->cases.rotated_bytes = DEVICE_ROTATED_BYTES;
    print_device_head(bench);
}

int main(int argc, char **argv) {
    struct bench bench = {.cases.rotated_bytes = ROTATED_BYTES, .backend = "cpu"};
    int32_t threads = 0;
    const char *instruction_set = NULL;
    bench.wanted = malloc(sizeof(char *) * (size_t)argc);
    if (bench.wanted == NULL)
        return 1;
    read_arguments(&bench, argc, argv, &threads, &instruction_set);
    if (bench.on_device)
        open_cuda(&bench);
    else
        open_cpu(&bench, threads, instruction_set);
    const struct kernels *kernels = bench.cases.kernels;
    if (!bench.as_json)
        print_titles(&bench);
    bench_products(&bench);
    bench_grouped_products(&bench);
    bench_experts(&bench);
    bench_attention(&bench);
    bench_rows(&bench);
    if (bench.recorder != NULL)
        kernels->stream_free(kernels, bench.recorder);
    kernels->stream_free(kernels, bench.cases.stream);
    kernels_free(kernels);
    free(bench.wanted);
    return 0;
}

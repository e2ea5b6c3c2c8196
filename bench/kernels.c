/* Times each operation of the CPU backend at shapes of the model, beside the multiply-add rate and the read bandwidth that
 * the same threads reach in the same run. Weights of products rotate through enough copies to come from memory.
 *
 *   bench-kernels [--threads N] [--instruction-set NAME] [--json] [--processor-time] [OPERATION ...]
 *
 * Columns: operation and shape, tokens, microseconds a call (median), GFLOP/s and share of the multiply-add rate, GB/s of
 * packed weights or rows and share of the read bandwidth. --json: one JSON line per measurement instead. --processor-time: with
 * one thread, its processor time instead of the wall clock's, for machines that others use too.
 */
#include "kernels/kernels.h"

#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_CALLS = 400, COPIES_BYTES = 128 << 20 };

struct bench {
    const struct kernels *kernels;
    struct stream *stream;
    double peak_flops, read_bytes; /* per second */
    bool as_json;
    char **wanted;
    int32_t wanted_count;
};

/* One measured call; `turn` counts the calls, for rotating through copies. */
struct job {
    const char *operation;
    char shape[64];
    int32_t tokens;
    double flops, bytes; /* of one call */
    void (*call)(const struct bench *bench, void *data, int32_t turn);
    void *data;
};

static clockid_t clock_used = CLOCK_MONOTONIC;

static double now(void) {
    struct timespec time;
    clock_gettime(clock_used, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *memory(size_t bytes) {
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (block == NULL) {
        fprintf(stderr, "bench-kernels: no memory\n");
        exit(1);
    }
    return block;
}

/* ---- random data ---- */

static uint32_t random_bits(void) {
    static uint64_t state = 7;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static float *random_floats(size_t count) {
    float *values = memory(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(int32_t)random_bits() * 0x1p-31f;
    return values;
}

static uint8_t *random_bytes(size_t count, uint8_t mask, uint8_t base) {
    uint8_t *values = memory(count);
    for (size_t i = 0; i < count; i++)
        values[i] = (uint8_t)((random_bits() & mask) + base);
    return values;
}

static size_t weight_bytes(enum weight_format format, size_t count) {
    switch (format) {
    case WEIGHT_F32:
        return count * 4;
    case WEIGHT_BF16:
        return count * 2;
    case WEIGHT_FP8_TILE:
    case WEIGHT_FP8_ROW:
        return count;
    case WEIGHT_FP4_ROW:
        return count / 2;
    }
    return 0;
}

static struct matrix random_matrix(enum weight_format format, int32_t rows, int32_t columns) {
    size_t count = (size_t)rows * (size_t)columns;
    struct matrix w = {NULL, NULL, format, rows, columns};
    if (format == WEIGHT_F32)
        w.values = random_floats(count);
    else /* the mask keeps FP8 codes below NaN and BF16 numbers small */
        w.values = random_bytes(weight_bytes(format, count), format == WEIGHT_BF16 ? 0x3f : 0xbf, 0);
    w.scales = random_bytes(count / 32, 3, 120);
    return w;
}

/* ---- the machine ---- */

typedef float wide __attribute__((vector_size(64)));

#if defined(__x86_64__)
#define FOR_ALL_SETS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_ALL_SETS
#endif
#ifdef __clang__
#define FUSES_MULTIPLY_ADD
#define FUSE_MULTIPLY_ADD _Pragma("clang fp contract(fast)")
#else
#define FUSES_MULTIPLY_ADD __attribute__((optimize("fp-contract=fast")))
#define FUSE_MULTIPLY_ADD
#endif

/* Multiply-adds of values in registers, for the widest vectors this machine has. */
FUSES_MULTIPLY_ADD FOR_ALL_SETS static float multiply_adds(int32_t rounds) {
    FUSE_MULTIPLY_ADD
    wide sum[12], factor = (wide){0} + 0.999f, term = (wide){0} + 0.001f;
    for (int32_t i = 0; i < 12; i++)
        sum[i] = (wide){0} + (float)i;
    for (int32_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int32_t i = 0; i < 12; i++)
            sum[i] = sum[i] * factor + term;
    float total = 0;
    for (int32_t i = 0; i < 12; i++)
        total += sum[i][0] + sum[i][15];
    return total;
}

static double measure_peak(int32_t threads) {
    enum { ROUNDS = 2000000 };
    volatile float kept = 0;
    double best = 0;
    for (int32_t i = 0; i < 5; i++) {
        double start = now();
#pragma omp parallel num_threads(threads)
        {
            float result = multiply_adds(ROUNDS);
#pragma omp critical
            kept = kept + result;
        }
        double rate = (double)threads * ROUNDS * 12 * 16 * 2 / (now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static double measure_read(int32_t threads) {
    enum { WORDS = 32 << 20 };
    uint64_t *words = memory((size_t)WORDS * 8);
    memset(words, 1, (size_t)WORDS * 8);
    volatile uint64_t kept = 0;
    double best = 0;
    for (int32_t i = 0; i < 5; i++) {
        double start = now();
        uint64_t total = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : total) schedule(static)
        for (int32_t w = 0; w < WORDS; w++)
            total += words[w];
        kept = kept + total;
        double rate = (double)WORDS * 8 / (now() - start);
        best = rate > best ? rate : best;
    }
    free(words);
    return best;
}

/* ---- measuring ---- */

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool is_wanted(const struct bench *bench, const char *operation) {
    for (int32_t i = 0; i < bench->wanted_count; i++)
        if (strcmp(bench->wanted[i], operation) == 0)
            return true;
    return bench->wanted_count == 0;
}

static void measure(const struct bench *bench, struct job *job) {
    if (!is_wanted(bench, job->operation))
        return;
    double times[MOST_CALLS], spent = 0;
    int32_t calls = 0;
    job->call(bench, job->data, 0);
    while (calls < MOST_CALLS && (spent < 0.4 || calls < 3)) {
        double start = now();
        job->call(bench, job->data, calls + 1);
        times[calls] = now() - start;
        spent += times[calls++];
    }
    qsort(times, (size_t)calls, sizeof times[0], compare_times);
    double time = times[calls / 2], flops = job->flops / time, bytes = job->bytes / time;
    if (bench->as_json)
        printf("{\"operation\":\"%s\",\"shape\":\"%s\",\"tokens\":%d,\"microseconds\":%.1f,\"gflops\":%.2f,"
               "\"gflops_share\":%.4f,\"gbytes\":%.3f,\"gbytes_share\":%.4f}\n",
            job->operation, job->shape, job->tokens, time * 1e6, flops * 1e-9, flops / bench->peak_flops,
            bytes * 1e-9, bytes / bench->read_bytes);
    else
        printf("%-16s %-24s %6d %11.1f %9.1f %5.0f%% %9.2f %5.0f%%\n", job->operation, job->shape,
            job->tokens, time * 1e6, flops * 1e-9, 100 * flops / bench->peak_flops, bytes * 1e-9,
            100 * bytes / bench->read_bytes);
    fflush(stdout);
}

static const int32_t token_counts[] = {1, 4, 8, 64, 512};
enum { TOKEN_COUNTS = sizeof token_counts / sizeof token_counts[0], MOST_TOKENS = 512 };

/* ---- products ---- */

struct product_data {
    struct rows x;
    struct matrix *copies;
    int32_t copy_count, tokens, groups;
    float *out;
};

static void call_product(const struct bench *bench, void *data, int32_t turn) {
    struct product_data *d = data;
    const struct matrix *w = &d->copies[turn % d->copy_count];
    bench->kernels->product(bench->stream, &d->x, d->tokens, w, d->out, w->rows);
}

static void call_grouped(const struct bench *bench, void *data, int32_t turn) {
    struct product_data *d = data;
    bench->kernels->grouped_product(
        bench->stream, d->x.data, d->tokens, d->groups, &d->copies[turn % d->copy_count], d->out);
}

/* groups > 0: a grouped product of `rows` outputs in all. */
static void bench_product(const struct bench *bench, const char *name, enum weight_format format,
    enum row_encoding encoding, int32_t rows, int32_t columns, int32_t groups) {
    if (!is_wanted(bench, groups > 0 ? "grouped_product" : "product"))
        return;
    size_t bytes = weight_bytes(format, (size_t)rows * (size_t)columns);
    int32_t copies = (int32_t)(COPIES_BYTES / bytes) + 1, inputs = groups > 0 ? groups : 1;
    float *x = random_floats((size_t)MOST_TOKENS * (size_t)(columns * inputs));
    struct product_data d = {.copies = memory(sizeof(struct matrix) * (size_t)copies),
        .copy_count = copies,
        .groups = groups,
        .out = memory((size_t)MOST_TOKENS * (size_t)rows * 4)};
    d.x = (struct rows){x, ROWS_F32, columns * inputs, (int64_t)columns * inputs * 4};
    struct rows encoded = {NULL, encoding, columns, row_bytes(encoding, columns)};
    encoded.data = memory((size_t)MOST_TOKENS * (size_t)encoded.stride);
    if (groups == 0) {
        bench->kernels->encode(bench->stream, x, MOST_TOKENS, &encoded);
        d.x = encoded;
    }
    for (int32_t i = 0; i < copies; i++)
        d.copies[i] = random_matrix(format, rows, columns);
    for (int32_t i = 0; i < TOKEN_COUNTS; i++) {
        d.tokens = token_counts[i];
        struct job job = {groups > 0 ? "grouped_product" : "product", "", d.tokens,
            2.0 * d.tokens * rows * columns, (double)bytes, groups > 0 ? call_grouped : call_product, &d};
        snprintf(job.shape, sizeof job.shape, "%s %dx%d", name, rows, columns);
        measure(bench, &job);
    }
    for (int32_t i = 0; i < copies; i++) {
        free((void *)d.copies[i].values);
        free((void *)d.copies[i].scales);
    }
    free(d.copies);
    free(d.out);
    free(x);
    free(encoded.data);
}

/* ---- experts ---- */

struct experts_data {
    struct rows x;
    struct expert_weights *experts;
    struct expert_pairs pairs;
    float *out;
};

static void call_experts(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct experts_data *d = data;
    bench->kernels->experts(bench->stream, &d->x, &d->pairs, d->experts, 10, d->out);
}

/* Pairs of `tokens` tokens with k experts each, sorted by expert. */
static struct expert_pairs random_pairs(int32_t tokens, int32_t k, int32_t experts, int32_t *busy) {
    size_t count = (size_t)(tokens * k);
    int32_t *row = memory(count * 4), *expert = memory(count * 4);
    bool *chosen = memory((size_t)tokens * (size_t)experts);
    memset(chosen, 0, (size_t)tokens * (size_t)experts);
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t i = 0; i < k;) {
            int32_t e = (int32_t)(random_bits() % (uint32_t)experts);
            i += !chosen[t * experts + e];
            chosen[t * experts + e] = true;
        }
    int32_t pairs = 0;
    *busy = 0;
    for (int32_t e = 0; e < experts; e++) {
        int32_t before = pairs;
        for (int32_t t = 0; t < tokens; t++)
            if (chosen[t * experts + e]) {
                row[pairs] = t;
                expert[pairs++] = e;
            }
        *busy += pairs > before;
    }
    free(chosen);
    return (struct expert_pairs){pairs, row, expert, random_floats(count)};
}

static void bench_experts(const struct bench *bench, int32_t experts, int32_t inner, int32_t columns) {
    enum { K = 6 };
    if (!is_wanted(bench, "experts"))
        return;
    struct experts_data d = {.experts = memory(sizeof(struct expert_weights) * (size_t)experts),
        .out = memory((size_t)(MOST_TOKENS * K) * (size_t)columns * 4)};
    for (int32_t e = 0; e < experts; e++)
        d.experts[e] = (struct expert_weights){random_matrix(WEIGHT_FP4_ROW, inner, columns),
            random_matrix(WEIGHT_FP4_ROW, inner, columns), random_matrix(WEIGHT_FP4_ROW, columns, inner)};
    float *x = random_floats((size_t)MOST_TOKENS * (size_t)columns);
    d.x = (struct rows){NULL, ROWS_FP8, columns, row_bytes(ROWS_FP8, columns)};
    d.x.data = memory((size_t)MOST_TOKENS * (size_t)d.x.stride);
    bench->kernels->encode(bench->stream, x, MOST_TOKENS, &d.x);
    for (int32_t i = 0; i < TOKEN_COUNTS; i++) {
        int32_t busy;
        d.pairs = random_pairs(token_counts[i], K, experts, &busy);
        double one = 3.0 * inner * columns;
        struct job job = {
            "experts", "", token_counts[i], 2 * one * d.pairs.count, one / 2 * busy, call_experts, &d};
        snprintf(job.shape, sizeof job.shape, "%d of %d: %dx%d", K, experts, inner, columns);
        measure(bench, &job);
        free((void *)d.pairs.row);
        free((void *)d.pairs.expert);
        free((void *)d.pairs.weight);
    }
    for (int32_t e = 0; e < experts; e++) {
        const struct matrix *parts[] = {&d.experts[e].w1, &d.experts[e].w3, &d.experts[e].w2};
        for (int32_t i = 0; i < 3; i++) {
            free((void *)parts[i]->values);
            free((void *)parts[i]->scales);
        }
    }
    free(d.experts);
    free(d.out);
    free(d.x.data);
    free(x);
}

/* ---- attention ---- */

/* One sequence whose rows lie in one block after the other. */
struct attention_data {
    struct block_rows window, latents, keys;
    struct block_tables tables;
    struct index_choice choice;
    int32_t tokens, heads, top_k;
    int32_t *sequence, *position, *visible_from, *chosen, *candidates;
    float *q, *weight, *sink, *out;
};

static void call_attend(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct attention_data *d = data;
    bench->kernels->attend(bench->stream, d->q, d->tokens, d->heads, d->sequence, d->position,
        d->visible_from, &d->window, &d->tables, &d->latents, &d->tables, d->chosen, d->top_k, d->sink,
        d->out);
}

static void call_choose(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct attention_data *d = data;
    bench->kernels->choose(bench->stream, d->q, d->weight, d->tokens, d->sequence, d->position, &d->choice,
        &d->keys, &d->tables, d->candidates, d->chosen);
}

static struct block_rows random_rows(enum row_encoding encoding, int32_t columns, int32_t rows) {
    int32_t bytes = row_bytes(encoding, columns);
    return (struct block_rows){
        random_bytes((size_t)bytes * (size_t)rows, 0x77, 0), (int64_t)bytes * 64, 0, 64, encoding, columns};
}

static void bench_attention(const struct bench *bench, int32_t heads, int32_t head_dim, int32_t top_k,
    int32_t index_heads, int32_t context) {
    enum { WINDOW = 128, INDEX_COLUMNS = 128 };
    int32_t first_block = 0, *blocks = memory((size_t)context / 64 * 4 + 64);
    for (int32_t i = 0; i < (context + 63) / 64; i++)
        blocks[i] = i;
    struct attention_data d = {random_rows(ROWS_FP8, head_dim, context),
        random_rows(ROWS_FP4_FINE, head_dim, context), random_rows(ROWS_FP4, INDEX_COLUMNS, context),
        {blocks, &first_block, (context + 63) / 64},
        {1, index_heads, INDEX_COLUMNS, top_k, false, false, 8, 1}, 0, heads, top_k, memory(MOST_TOKENS * 4),
        memory(MOST_TOKENS * 4), memory(MOST_TOKENS * 4), memory((size_t)(MOST_TOKENS * top_k) * 4),
        memory(MOST_TOKENS * 4),
        random_floats((size_t)MOST_TOKENS * (size_t)(heads * head_dim + index_heads * INDEX_COLUMNS)),
        random_floats((size_t)(MOST_TOKENS * index_heads)), random_floats((size_t)heads),
        memory((size_t)MOST_TOKENS * (size_t)(heads * head_dim) * 4)};
    for (int32_t i = 0; i < TOKEN_COUNTS; i++) {
        d.tokens = token_counts[i];
        for (int32_t t = 0; t < d.tokens; t++) {
            d.sequence[t] = 0;
            d.position[t] = context - d.tokens + t;
            d.visible_from[t] = d.position[t] - WINDOW + 1;
            for (int32_t k = 0; k < top_k; k++)
                d.chosen[t * top_k + k] = (int32_t)((int64_t)k * (context - MOST_TOKENS) / top_k);
        }
        double rows = (double)d.tokens * (WINDOW + top_k);
        struct job job = {"attend", "", d.tokens, 4 * rows * heads * head_dim,
            rows * row_bytes(ROWS_FP8, head_dim), call_attend, &d};
        snprintf(job.shape, sizeof job.shape, "%dx%d, %d rows", heads, head_dim, WINDOW + top_k);
        measure(bench, &job);
        rows = (double)d.tokens * context;
        job = (struct job){"choose", "", d.tokens, 2 * rows * index_heads * INDEX_COLUMNS,
            (double)context * row_bytes(ROWS_FP4, INDEX_COLUMNS), call_choose, &d};
        snprintf(job.shape, sizeof job.shape, "%d heads, %d rows", index_heads, context);
        measure(bench, &job);
    }
    void *all[] = {blocks, d.window.base, d.latents.base, d.keys.base, d.sequence, d.position, d.visible_from,
        d.chosen, d.candidates, d.q, d.weight, d.sink, d.out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* ---- rows and streams ---- */

struct rows_data {
    float *x, *streams, *base, *pre, *post, *comb, *out;
    uint8_t *encoded;
    uint16_t *weight;
    int32_t *positions;
    struct matrix fn;
    struct rope rope;
    int32_t tokens, columns;
};

static void call_rms_norm(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct rows_data *d = data;
    bench->kernels->rms_norm(bench->stream, d->x, d->tokens, d->columns, d->weight, 1e-20f, d->out);
}

static void call_encode(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct rows_data *d = data;
    struct rows rows = {d->encoded, ROWS_FP8, d->columns, row_bytes(ROWS_FP8, d->columns)};
    bench->kernels->encode(bench->stream, d->x, d->tokens, &rows);
}

static void call_encode_fine(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct rows_data *d = data;
    struct rows rows = {d->encoded, ROWS_FP4_FINE, d->columns, row_bytes(ROWS_FP4_FINE, d->columns)};
    bench->kernels->encode(bench->stream, d->x, d->tokens, &rows);
}

static void call_collapse(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct rows_data *d = data;
    bench->kernels->collapse_norm(
        bench->stream, d->streams, d->pre, d->tokens, 4, d->columns, d->weight, 1e-20f, d->out);
}

static void call_mix(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct rows_data *d = data;
    bench->kernels->mix(bench->stream, d->streams, d->tokens, 4, d->columns, &d->fn, d->base, d->base, 20,
        1e-6f, 1e-20f, d->pre, d->post, d->comb);
}

static void call_expand(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct rows_data *d = data;
    bench->kernels->expand(bench->stream, d->x, d->post, d->comb, d->tokens, 4, d->columns, d->streams);
}

static void call_rotate(const struct bench *bench, void *data, int32_t turn) {
    (void)turn;
    struct rows_data *d = data;
    bench->kernels->rotate(
        bench->stream, d->streams, d->positions, d->tokens, 16, d->columns / 4, &d->rope, turn % 2 == 1);
}

static void bench_rows(const struct bench *bench, int32_t columns) {
    size_t row = (size_t)columns;
    float frequency[32];
    for (int32_t i = 0; i < 32; i++)
        frequency[i] = 1.0f / (float)(1 << i / 2);
    struct rows_data d = {random_floats(MOST_TOKENS * row), random_floats(MOST_TOKENS * 4 * row),
        random_floats(64), random_floats(MOST_TOKENS * 4), random_floats(MOST_TOKENS * 4),
        random_floats(MOST_TOKENS * 16), memory(MOST_TOKENS * row * 4), memory(MOST_TOKENS * row * 2),
        (uint16_t *)random_bytes(row * 2, 0x3f, 0), memory(MOST_TOKENS * 4),
        random_matrix(WEIGHT_F32, 24, 4 * columns), {64, frequency}, 0, columns};
    for (int32_t t = 0; t < MOST_TOKENS; t++)
        d.positions[t] = t;
    static const struct {
        const char *operation;
        void (*call)(const struct bench *bench, void *data, int32_t turn);
        double flops, bytes; /* per column */
    } operations[] = {{"rms_norm", call_rms_norm, 4, 8}, {"encode", call_encode, 0, 5},
        {"encode_fine", call_encode_fine, 0, 4.5}, {"collapse_norm", call_collapse, 12, 20},
        {"mix", call_mix, 2 * 24 * 4, 16}, {"expand", call_expand, 40, 36}, {"rotate", call_rotate, 0, 0}};
    for (size_t o = 0; o < sizeof operations / sizeof operations[0]; o++)
        for (int32_t i = 0; i < TOKEN_COUNTS; i++) {
            d.tokens = token_counts[i];
            double count = (double)d.tokens * columns;
            struct job job = {operations[o].operation, "", d.tokens, operations[o].flops * count,
                operations[o].bytes * count, operations[o].call, &d};
            snprintf(job.shape, sizeof job.shape, "%d", columns);
            measure(bench, &job);
        }
    void *all[] = {d.x, d.streams, d.base, d.pre, d.post, d.comb, d.out, d.encoded, d.weight, d.positions,
        (void *)d.fn.values, (void *)d.fn.scales};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* ---- all ---- */

/* Sizes of the bench checkpoint, then of the published one. */
static void bench_all(const struct bench *bench) {
    bench_product(bench, "fp8", WEIGHT_FP8_TILE, ROWS_FP8, 512, 1024, 0);
    bench_product(bench, "fp8", WEIGHT_FP8_TILE, ROWS_FP8, 4096, 512, 0);
    bench_product(bench, "bf16", WEIGHT_BF16, ROWS_F32, 8192, 1024, 0);
    bench_product(bench, "f32", WEIGHT_F32, ROWS_F32, 24, 4096, 0);
    bench_product(bench, "fp4", WEIGHT_FP4_ROW, ROWS_FP8, 2304, 5120, 0);
    bench_product(bench, "fp8", WEIGHT_FP8_TILE, ROWS_FP8, 1280, 5120, 0);
    bench_product(bench, "fp8, 4 groups", WEIGHT_FP8_TILE, ROWS_F32, 2048, 1024, 4);
    bench_experts(bench, 64, 512, 1024);
    bench_experts(bench, 16, 2304, 5120);
    bench_attention(bench, 16, 256, 256, 16, 4096);
    bench_attention(bench, 64, 512, 512, 32, 65536);
    bench_rows(bench, 1024);
    bench_rows(bench, 5120);
}

int main(int argc, char **argv) {
    struct bench bench = {.wanted = memory(sizeof(char *) * (size_t)(argc + 1))};
    int32_t threads = 0;
    const char *set = NULL;
    for (int32_t i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            bench.as_json = true;
        else if (strcmp(argv[i], "--processor-time") == 0)
            clock_used = CLOCK_THREAD_CPUTIME_ID;
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--instruction-set") == 0 && i + 1 < argc)
            set = argv[++i];
        else
            bench.wanted[bench.wanted_count++] = argv[i];
    }
    if (kernels_cpu_create(threads, set, &bench.kernels) != OK ||
        bench.kernels->stream_create(bench.kernels, &bench.stream) != OK) {
        fprintf(stderr, "bench-kernels: %s\n", failure_message());
        return 1;
    }
    bench.peak_flops = measure_peak(bench.kernels->threads);
    bench.read_bytes = measure_read(bench.kernels->threads);
    if (bench.as_json)
        printf("{\"instruction_set\":\"%s\",\"threads\":%d,\"peak_gflops\":%.1f,\"read_gbytes\":%.2f}\n",
            bench.kernels->instruction_set, bench.kernels->threads, bench.peak_flops * 1e-9,
            bench.read_bytes * 1e-9);
    else
        printf("%s, %d threads: multiply-adds %.1f GFLOP/s, reads %.1f GB/s\n%-16s %-24s %6s %11s %9s %6s "
               "%9s %6s\n",
            bench.kernels->instruction_set, bench.kernels->threads, bench.peak_flops * 1e-9,
            bench.read_bytes * 1e-9, "operation", "shape", "tokens", "microsec", "GFLOP/s", "", "GB/s", "");
    bench_all(&bench);
    bench.kernels->stream_free(bench.kernels, bench.stream);
    kernels_cpu_free(bench.kernels);
    free(bench.wanted);
    return 0;
}

/* Speed of the whole model on this machine, beside the machine's limits measured in the same run:
 *
 *     bench-model CHECKPOINT [--threads N] [--prompts N,N] [--batches N,N] [--chunk N] [--steps N] [--repeats N]
 *                 [--backend cpu|cuda] [--cpu-kernels NAME] [--whole] [--long] [--longest] [--json] [--processor-time]
 *
 * A row for each prompt that is prefilled (with a tail, as campaigns run) and for each batch that decodes: its best time of
 * all repeats or steps, the share of the limit that binds, and where the time of all of them went. The limit is the time that
 * the products' operations take at the peak of the arithmetic they use (BF16 dot products with avx512bf16, else float32
 * multiply-adds), or that the packed weights take to be read, whichever is longer. --backend cuda: the model on the first device, beside
 * its limits; BF16 is what cuBLASLt reaches in a big dense product. --whole: no tail, all layers run on all tokens of a prompt, as where
 * each token's logits are wanted. --long adds prompts of 1k and 32k tokens with the
 * ratio of their costs a token, --longest one of 200k tokens with the memory it takes. --processor-time: one thread, and its processor
 * time instead of the wall clock's, for machines that others use too.
 */
#include "base/log.h"
#include "base/options.h"
#include "base/stopwatch.h"
#include "bench/device/device.h"
#include "bench/limits.h"
#include "cluster/ranks.h"
#include "model/internals.h"

#include <math.h>   /* pow */
#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc */
#include <string.h> /* strcmp */

enum { DECODE_PROMPT = 256, LONG_PROMPT = 32768, LONGEST_PROMPT = 200000, MOST_BATCH = 64, MOST_LIST = 16 };

struct bench {
    struct ranks ranks;
    struct checkpoint *checkpoint;
    const struct model_config *config;
    struct model *model;
    struct bench_limits limits;
    double peak; /* of the arithmetic that the kernels use */
    const char *peak_name;
    int32_t *ids;
    float *logits;
    int64_t repeats, steps;
    bool is_whole, as_json;
};

static double cells(const struct matrix *w) {
    return (double)w->rows * w->columns;
}

/* Weight cells a token meets in one layer's products; `upper`: without what only makes rows for later tokens. */
static double attention_cells(const struct layer_weights *w) {
    return cells(&w->wq_a) + cells(&w->wq_b) + cells(&w->wo_a) + cells(&w->wo_b);
}

static double row_cells(const struct layer_weights *w) {
    return cells(&w->wkv) + cells(&w->compressor.wkv) + cells(&w->compressor.wgate) +
           cells(&w->compressor.wk);
}

static double block_cells(const struct model_config *c, const struct layer_weights *w) {
    double expert = 3.0 * c->moe_intermediate_size * c->hidden_size;
    return attention_cells(w) + cells(&w->indexer.wq_b) + cells(&w->indexer.weights_proj) + cells(&w->gate) +
           (1 + c->num_experts_per_tok) * expert + cells(&w->hc_attn.fn) + cells(&w->hc_ffn.fn);
}

/* Floating-point operations of a prompt's products: rows for all tokens up to the split, blocks above for the tail. */
static double prefill_operations(const struct bench *b, int32_t prompt) {
    const struct model_config *c = b->config;
    int32_t tail = b->is_whole || prompt < c->sliding_window ? prompt : c->sliding_window;
    double total = 0;
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        const struct layer_weights *w = &b->model->layers[l];
        int32_t split = b->model->split_layer;
        total += (l <= split ? prompt : tail) * row_cells(w) +
                 (l < split ? prompt : tail) * block_cells(c, w) + prompt * cells(&w->engram.wkv);
    }
    return 2 * (total + cells(&b->model->head));
}

static double bytes_of(const struct matrix *w) {
    return (double)(matrix_value_bytes(w) + matrix_scale_bytes(w));
}

/* Floating-point operations of a step that decodes `batch` sequences. */
static double decode_operations(const struct bench *b, int32_t batch) {
    double total = cells(&b->model->head);
    for (int32_t l = 0; l < b->config->num_hidden_layers; l++) {
        const struct layer_weights *w = &b->model->layers[l];
        total += row_cells(w) + block_cells(b->config, w) + cells(&w->engram.wkv);
    }
    return 2 * batch * total;
}

/* Packed bytes of a layer's matrices with `experts` of its routed experts. */
static double layer_bytes(const struct bench *b, int32_t layer, double experts) {
    const struct layer_weights *w = &b->model->layers[layer];
    const struct matrix *dense[] = {&w->wq_a, &w->wq_b, &w->wkv, &w->wo_a, &w->wo_b, &w->gate, &w->shared_w1,
        &w->shared_w2, &w->shared_w3, &w->compressor.wkv, &w->compressor.wgate, &w->compressor.wk,
        &w->indexer.wq_b, &w->indexer.weights_proj, &w->engram.wkv, &w->hc_attn.fn, &w->hc_ffn.fn};
    const struct expert_weights *e = &w->experts[0];
    double total = experts * (bytes_of(&e->w1) + bytes_of(&e->w2) + bytes_of(&e->w3));
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
        total += dense[i]->values ? bytes_of(dense[i]) : 0;
    return total;
}

/* Packed weight bytes a decoding step of `batch` sequences reads; experts by the expected number of distinct ones. */
static double step_bytes(const struct bench *b, int32_t batch) {
    const struct model_config *c = b->config;
    double distinct =
        c->n_routed_experts * (1 - pow(1 - (double)c->num_experts_per_tok / c->n_routed_experts, batch));
    double total = bytes_of(&b->model->head);
    for (int32_t l = 0; l < c->num_hidden_layers; l++)
        total += layer_bytes(b, l, distinct);
    return total;
}

/* ---- rows of the table ---- */

/* What a row measured. */
struct measure {
    const char *phase;
    int32_t prompt, batch;
    double best;              /* seconds of a prefill or a step */
    double operations, bytes; /* of that */
    double parts[WORK_PARTS]; /* seconds, of all repeats */
};

/* Columns for the shares of time; what has none is in the last. */
static const struct {
    const char *title;
    enum work_part part;
} columns[] = {{"attn-prod", WORK_ATTENTION_PRODUCTS}, {"index", WORK_INDEX}, {"attention", WORK_ATTENTION},
    {"mixes", WORK_MIXES}, {"router", WORK_ROUTER}, {"shared", WORK_SHARED_EXPERT}, {"experts", WORK_EXPERTS},
    {"exchange", WORK_EXCHANGE}, {"waiting", WORK_WAITING}, {"engram", WORK_ENGRAM}, {"logits", WORK_LOGITS}};

enum { COLUMNS = sizeof columns / sizeof columns[0] };

static void print_titles(const struct bench *b) {
    if (b->as_json)
        return;
    printf("%-8s %7s %6s %10s %10s %9s %7s %6s %-9s", "phase", "prompt", "batch", "tokens/s", "ms", "GFLOP/s",
        "GB/s", "share", "of limit");
    for (int i = 0; i < COLUMNS; i++)
        printf(" %9s", columns[i].title);
    printf(" %9s\n", "rest");
}

static void print_shares(const struct bench *b, const struct measure *m) {
    double total = 1e-12, named = 0;
    for (int i = 0; i < WORK_PARTS; i++)
        total += m->parts[i];
    for (int i = 0; i < COLUMNS; i++) {
        double share = m->parts[columns[i].part] / total;
        named += share;
        if (b->as_json)
            printf("\"%s\":%.4f,", columns[i].title, share);
        else
            printf(" %8.1f%%", 100 * share);
    }
    printf(b->as_json ? "\"rest\":%.4f" : " %8.1f%%", (1 - named) * (b->as_json ? 1 : 100));
}

static void print_row(const struct bench *b, const struct measure *m) {
    double tokens = strcmp(m->phase, "prefill") == 0 ? m->prompt : m->batch;
    double computing = m->operations / b->peak, reading = m->bytes / b->limits.read_bytes;
    const char *limit = computing > reading ? b->peak_name : "read";
    double share = (computing > reading ? computing : reading) / m->best;
    if (b->as_json)
        printf(
            "{\"bench\":\"model\",\"phase\":\"%s\",\"prompt\":%d,\"batch\":%d,\"tokens_per_second\":%.2f,"
            "\"milliseconds\":%.3f,\"gflops\":%.1f,\"gbytes\":%.2f,\"share_of_limit\":%.4f,\"limit\":\"%s\","
            "\"parts\":{",
            m->phase, m->prompt, m->batch, tokens / m->best, m->best * 1e3, m->operations / m->best * 1e-9,
            m->bytes / m->best * 1e-9, share, limit);
    else
        printf("%-8s %7d %6d %10.1f %10.2f %9.1f %7.2f %5.1f%% %-9s", m->phase, m->prompt, m->batch,
            tokens / m->best, m->best * 1e3, m->operations / m->best * 1e-9, m->bytes / m->best * 1e-9,
            100 * share, limit);
    print_shares(b, m);
    printf(b->as_json ? "}}\n" : "\n");
    fflush(stdout);
}

/* One timed call of the model among others: the best time and the sum of the parts. */
static void note(struct measure *m, double seconds, const double *before) {
    double after[WORK_PARTS];
    stopwatch_read(after);
    for (int i = 0; i < WORK_PARTS; i++)
        m->parts[i] += after[i] - before[i];
    m->best = m->best == 0 || seconds < m->best ? seconds : m->best;
}

/* ---- phases ---- */

static enum result prefill(struct bench *b, struct sequence **sequence, int32_t prompt) {
    int32_t chunk = b->model->options.step_tokens,
            tail = b->config->last_kv_source >= 0 && !b->is_whole ? b->config->sliding_window : 0;
    TRY(sequence_create(b->model, sequence));
    for (int32_t at = 0; at < prompt; at += chunk) {
        int32_t n = prompt - at < chunk ? prompt - at : chunk;
        bool last = at + n == prompt;
        struct span span = {.sequence = *sequence,
            .ids = b->ids + at,
            .count = n,
            .tail = tail,
            .last = last,
            .logits = last};
        TRY(model_step(b->model, &span, 1, b->logits));
    }
    return OK;
}

/* Bytes of all packed weights: what a long prompt reads once a chunk at least. */
static double prefill_bytes(const struct bench *b, int32_t prompt) {
    int32_t chunk = b->model->options.step_tokens, chunks = (prompt + chunk - 1) / chunk;
    double bytes = 0;
    for (int32_t l = 0; l < b->config->num_hidden_layers; l++)
        bytes += layer_bytes(b, l, b->config->n_routed_experts) *
                 (b->is_whole || l < b->model->split_layer ? chunks : 1);
    return bytes + bytes_of(&b->model->head);
}

/* Prefills a prompt `repeats` times; *kept gets the last sequence unless NULL. */
static enum result bench_prefill(
    struct bench *b, int32_t prompt, int64_t repeats, struct measure *m, struct sequence **kept) {
    *m = (struct measure){.phase = "prefill",
        .prompt = prompt,
        .batch = 1,
        .operations = prefill_operations(b, prompt),
        .bytes = prefill_bytes(b, prompt)};
    for (int64_t i = 0; i < repeats; i++) {
        struct sequence *sequence = NULL;
        double before[WORK_PARTS];
        stopwatch_read(before);
        double begin = bench_seconds();
        TRY(prefill(b, &sequence, prompt));
        note(m, bench_seconds() - begin, before);
        if (kept && i == repeats - 1)
            *kept = sequence;
        else
            sequence_free(b->model, sequence);
    }
    print_row(b, m);
    return OK;
}

/* Decodes with sequences that have a prompt behind them; the first step is not counted. */
static enum result bench_steps(struct bench *b, struct sequence **sequences, int32_t batch, int32_t prompt) {
    struct span spans[MOST_BATCH];
    struct measure m = {.phase = "decode",
        .prompt = prompt,
        .batch = batch,
        .operations = decode_operations(b, batch),
        .bytes = step_bytes(b, batch)};
    for (int32_t i = 0; i < batch; i++)
        spans[i] = (struct span){.sequence = sequences[i], .count = 1, .logits = 1};
    for (int64_t step = 0; step < b->steps + 1; step++) {
        for (int32_t i = 0; i < batch; i++)
            spans[i].ids = b->ids + (step * 97 + i * 13) % DECODE_PROMPT;
        double before[WORK_PARTS];
        stopwatch_read(before);
        double begin = bench_seconds();
        TRY(model_step(b->model, spans, batch, b->logits));
        if (step)
            note(&m, bench_seconds() - begin, before);
    }
    print_row(b, &m);
    return OK;
}

static enum result bench_decode(struct bench *b, int32_t batch) {
    struct sequence *sequences[MOST_BATCH] = {NULL};
    for (int32_t i = 0; i < batch; i++)
        TRY(prefill(b, &sequences[i], DECODE_PROMPT - i % 8));
    TRY(bench_steps(b, sequences, batch, DECODE_PROMPT));
    for (int32_t i = 0; i < batch; i++)
        sequence_free(b->model, sequences[i]);
    return OK;
}

/* ---- memory ---- */

/* A line of /proc/self/status, in bytes; 0: it has none of that name. */
static double status_bytes(const char *name) {
    char line[256];
    double bytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            bytes = 1024 * strtod(line + length + 1, NULL);
    if (file)
        fclose(file);
    return bytes;
}

/* Peaks count from now on: measuring the limits took memory too. */
static void forget_peak(void) {
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file)
        return;
    fputs("5", file);
    fclose(file);
}

static void print_memory(const struct bench *b, const char *when) {
    struct model_bytes bytes = model_bytes(b->model);
    const struct block_pool *pool = b->model->pool;
    double weights = (double)(bytes.dense + bytes.experts + bytes.engram),
           blocks = (double)pool->peak * (double)pool->block_bytes;
    double peak = status_bytes("VmHWM"), files = status_bytes("RssFile"), own = status_bytes("RssAnon");
    if (b->as_json)
        printf("{\"bench\":\"model\",\"memory\":\"%s\",\"peak\":%.0f,\"files\":%.0f,\"own\":%.0f,"
               "\"weights\":%.0f,\"key_value_peak\":%.0f,\"scratch\":%.0f}\n",
            when, peak, files, own, weights, blocks, (double)bytes.scratch);
    else
        printf("memory %s: at most %.1f MB resident; now %.1f MB of files (weights of this rank: %.1f MB) "
               "and %.1f MB "
               "of its own (at most %.1f MB in key/value blocks; scratch of %.1f MB reserved)\n",
            when, peak * 1e-6, files * 1e-6, weights * 1e-6, own * 1e-6, blocks * 1e-6,
            (double)bytes.scratch * 1e-6);
    fflush(stdout);
}

/* What a token of a long prompt costs beside one of a short prompt. */
static enum result bench_long(struct bench *b) {
    struct measure brief, lengthy;
    struct sequence *sequence = NULL;
    TRY(bench_prefill(b, 1024, b->repeats, &brief, NULL));
    TRY(bench_prefill(b, LONG_PROMPT, 1, &lengthy, &sequence));
    TRY(bench_steps(b, &sequence, 1, LONG_PROMPT));
    sequence_free(b->model, sequence);
    double ratio = lengthy.best / LONG_PROMPT / (brief.best / 1024);
    printf(b->as_json ? "{\"bench\":\"model\",\"long_cost_ratio\":%.3f}\n"
                      : "a token of the 32k prompt costs %.2f times one of the 1k prompt\n",
        ratio);
    return OK;
}

/* What memory a prompt takes that is longer than most. */
static enum result bench_longest(struct bench *b) {
    struct measure longest;
    struct sequence *sequence = NULL;
    print_memory(b, "before the longest prompt");
    TRY(bench_prefill(b, LONGEST_PROMPT, 1, &longest, &sequence));
    TRY(bench_steps(b, &sequence, 1, LONGEST_PROMPT));
    sequence_free(b->model, sequence);
    print_memory(b, "after the longest prompt");
    return OK;
}

/* ---- the run ---- */

struct bench_options {
    int64_t threads, chunk, steps, repeats;
    const char *prompts, *batches, *backend, *instruction_set;
    bool whole, with_long, with_longest, as_json, processor_time;
};

/* "512,2048" as numbers from 1 to `most`. */
static enum result parse_list(
    const char *name, const char *text, int32_t most, int32_t *list, int32_t *count) {
    for (*count = 0; *text; text += *text == ',') {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text || (*end && *end != ',') || value < 1 || value > most || *count == MOST_LIST)
            return fail(ERROR_USAGE, "--%s %s: expected at most %d numbers from 1 to %d with commas between",
                name, text, MOST_LIST, most);
        list[(*count)++] = (int32_t)value;
        text = end;
    }
    return OK;
}

static void print_start(const struct bench *b, const struct kernels *kernels, double opened, double placed) {
    struct model_bytes bytes = model_bytes(b->model);
    if (b->as_json)
        printf("{\"bench\":\"model\",\"instruction_set\":\"%s\",\"threads\":%d,\"clock\":\"%s\",\"open_"
               "seconds\":%.3f,"
               "\"place_seconds\":%.3f,\"fma_gflops\":%.1f,\"bf16_gflops\":%.1f,\"read_gbytes\":%.2f}\n",
            kernels->instruction_set, kernels->threads, bench_clock == CLOCK_MONOTONIC ? "wall" : "processor",
            opened, placed, b->limits.fma * 1e-9, b->limits.bf16 * 1e-9, b->limits.read_bytes * 1e-9);
    else
        printf(
            "instruction set %s, %d threads, %s time; checkpoint opened in %.3f s, model placed in %.3f s\n"
            "weights %.1f MB dense, %.1f MB experts, %.1f MB Engram rows; limits: fma %.1f GFLOP/s, bf16 "
            "%.1f "
            "GFLOP/s, read %.1f GB/s\n",
            kernels->instruction_set, kernels->threads, bench_clock == CLOCK_MONOTONIC ? "wall" : "processor",
            opened, placed, (double)bytes.dense * 1e-6, (double)bytes.experts * 1e-6,
            (double)bytes.engram * 1e-6, b->limits.fma * 1e-9, b->limits.bf16 * 1e-9,
            b->limits.read_bytes * 1e-9);
}

/* Opens the checkpoint and places the model; the first token tells what was left to be read. */
static enum result open_model(
    struct bench *b, const char *folder, const struct kernels *kernels, const struct bench_options *o) {
    double begin = bench_seconds();
    TRY(checkpoint_open(folder, &b->checkpoint));
    double opened = bench_seconds() - begin;
    b->config = checkpoint_config(b->checkpoint);
    struct model_options model_options = {.kernels = kernels,
        .supernode = b->ranks.supernode_group,
        .step_tokens = (int32_t)o->chunk,
        .step_sequences = MOST_BATCH,
        .context = b->config->max_position_embeddings,
        .kv_bytes = (int64_t)4 << 30};
    begin = bench_seconds();
    TRY(model_create(b->checkpoint, &model_options, &b->model));
    double placed = bench_seconds() - begin;
    b->ids = malloc(sizeof *b->ids * LONGEST_PROMPT);
    b->logits = malloc(sizeof *b->logits * MOST_BATCH * (size_t)b->config->vocab_size);
    if (!b->ids || !b->logits)
        return fail(ERROR_MEMORY, "out of memory for the bench");
    for (int32_t i = 0; i < LONGEST_PROMPT; i++)
        b->ids[i] = 3 + (int32_t)((uint32_t)i * 2654435761U % (uint32_t)(b->config->vocab_size - 40));
    struct sequence *sequence = NULL;
    begin = bench_seconds();
    TRY(prefill(b, &sequence, 1));
    double first = bench_seconds() - begin;
    sequence_free(b->model, sequence);
    bool has_dots = b->limits.bf16 > 0 &&
                    (!kernels->shares_host_memory || strcmp(kernels->instruction_set, "avx512bf16") == 0);
    b->peak = has_dots ? b->limits.bf16 : b->limits.fma;
    b->peak_name = has_dots ? "bf16" : "fma";
    print_start(b, kernels, opened, placed);
    printf(b->as_json ? "{\"bench\":\"model\",\"first_token_seconds\":%.3f}\n"
                      : "first token after %.3f s more\n",
        first);
    print_memory(b, "after the first token");
    return OK;
}

static enum result measure(struct bench *b, const struct bench_options *o) {
    int32_t prompts[MOST_LIST], batches[MOST_LIST], prompt_count, batch_count;
    TRY(parse_list("prompts", o->prompts, LONGEST_PROMPT, prompts, &prompt_count));
    TRY(parse_list("batches", o->batches, MOST_BATCH, batches, &batch_count));
    print_titles(b);
    for (int32_t i = 0; i < prompt_count; i++) {
        struct measure m;
        TRY(bench_prefill(b, prompts[i], b->repeats, &m, NULL));
    }
    for (int32_t i = 0; i < batch_count; i++)
        TRY(bench_decode(b, batches[i]));
    if (o->with_long)
        TRY(bench_long(b));
    if (o->with_longest)
        TRY(bench_longest(b));
    print_memory(b, "at the end");
    return OK;
}

/* The backend that was asked for and the limits of what it runs on. */
static enum result open_backend(
    struct bench *b, const struct bench_options *o, const struct kernels **kernels) {
    if (strcmp(o->backend, "cpu") == 0) {
        TRY(kernels_cpu_create(b->ranks.threads, o->instruction_set, kernels));
        b->limits = bench_measure_limits(b->ranks.threads);
        return OK;
    }
    if (strcmp(o->backend, "cuda") != 0)
        return fail(ERROR_USAGE, "--backend %s: give cpu or cuda", o->backend);
    if (o->processor_time)
        return fail(
            ERROR_USAGE, "--processor-time tells nothing of a device: leave it out with --backend cuda");
    struct device_limits device;
    TRY(kernels_cuda_create(0, kernels));
    TRY(device_measure_limits(0, &device));
    b->limits =
        (struct bench_limits){.fma = device.fma, .bf16 = device.bf16, .read_bytes = device.read_bytes};
    return OK;
}

static enum result run(int argc, char **argv) {
    struct bench_options o = {.chunk = 512,
        .steps = 16,
        .repeats = 3,
        .prompts = "512,2048",
        .batches = "1,8,32",
        .backend = "cpu"};
    struct option_list folders = {0};
    bool help = false;
    const struct command_usage usage = {.name = "bench-model",
        .arguments = "CHECKPOINT",
        .summary = "Tokens a second in prefill and decoding, the share of this machine's limits, and the "
                   "parts' shares "
                   "of the time."};
    const struct option options[] = {{.name = "threads",
                                         .kind = OPTION_COUNT,
                                         .value = &o.threads,
                                         .placeholder = "N",
                                         .help = "threads (default: the cores)"},
        {.name = "prompts",
            .kind = OPTION_TEXT,
            .value = &o.prompts,
            .placeholder = "N,N",
            .help = "prompt tokens (default 512,2048)"},
        {.name = "batches",
            .kind = OPTION_TEXT,
            .value = &o.batches,
            .placeholder = "N,N",
            .help = "sequences that decode at once (default 1,8,32; at most 64)"},
        {.name = "chunk",
            .kind = OPTION_COUNT,
            .value = &o.chunk,
            .placeholder = "N",
            .least = 128,
            .most = 1 << 16,
            .help = "tokens of a step (default 512)"},
        {.name = "steps",
            .kind = OPTION_COUNT,
            .value = &o.steps,
            .placeholder = "N",
            .least = 1,
            .most = 1 << 20,
            .help = "decoding steps (default 16)"},
        {.name = "repeats",
            .kind = OPTION_COUNT,
            .value = &o.repeats,
            .placeholder = "N",
            .least = 1,
            .most = 1 << 20,
            .help = "times each prompt is prefilled (default 3)"},
        {.name = "backend",
            .kind = OPTION_TEXT,
            .value = &o.backend,
            .placeholder = "NAME",
            .help = "cpu or cuda (default cpu)"},
        {.name = "cpu-kernels",
            .kind = OPTION_TEXT,
            .value = &o.instruction_set,
            .placeholder = "NAME",
            .help = "instruction set"},
        {.name = "whole",
            .kind = OPTION_FLAG,
            .value = &o.whole,
            .help = "prompts without a tail: all layers on all their tokens"},
        {.name = "long",
            .kind = OPTION_FLAG,
            .value = &o.with_long,
            .help = "prompts of 1k and 32k tokens too"},
        {.name = "longest",
            .kind = OPTION_FLAG,
            .value = &o.with_longest,
            .help = "a prompt of 200k tokens too"},
        {.name = "json", .kind = OPTION_FLAG, .value = &o.as_json, .help = "JSON lines instead of the table"},
        {.name = "processor-time",
            .kind = OPTION_FLAG,
            .value = &o.processor_time,
            .help = "one thread, and its processor time"},
        {0}};
    TRY(options_parse(&usage, options, argc, argv, &folders, &help));
    if (help)
        return OK;
    if (folders.count != 1)
        return fail(ERROR_USAGE, "bench-model: give one checkpoint folder");
    if (o.processor_time) {
        o.threads = 1;
        bench_clock = CLOCK_THREAD_CPUTIME_ID;
    }
    struct bench b = {.repeats = o.repeats, .steps = o.steps, .is_whole = o.whole, .as_json = o.as_json};
    struct rank_options rank_options = {.threads = (int32_t)o.threads};
    TRY(ranks_start(&rank_options, &b.ranks));
    const struct kernels *kernels = NULL;
    TRY(open_backend(&b, &o, &kernels));
    forget_peak();
    TRY(open_model(&b, folders.items[0], kernels, &o));
    TRY(measure(&b, &o));
    model_free(b.model);
    checkpoint_close(b.checkpoint);
    kernels_free(kernels);
    free(b.ids);
    free(b.logits);
    free(folders.items);
    ranks_stop(&b.ranks, OK);
    return OK;
}

int main(int argc, char **argv) {
    enum result status = run(argc, argv);
    if (status != OK)
        log_error("%s", failure_message());
    return status;
}

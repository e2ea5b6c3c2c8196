/* Speed of the whole model on this machine, beside the machine's limits measured in the same run:
 *
 *     bench-model CHECKPOINT [--threads N] [--prompt N] [--batches 1,8,32] [--steps N] [--seconds N]
 *
 * Prefill (tail, as campaigns run) is compared with the float32 FMA peak over the products it does, decoding with the
 * read bandwidth over the packed weights a step touches. Tables go to standard output, one JSON line a row too.
 */
#include "base/log.h"
#include "base/options.h"
#include "bench/limits.h"
#include "cluster/ranks.h"
#include "model/internals.h"

#include <math.h>   /* pow */
#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc */

struct bench {
    struct ranks ranks;
    struct checkpoint *checkpoint;
    const struct model_config *config;
    struct model *model;
    double peak, bandwidth;
    int32_t *ids;
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
    int32_t tail = prompt < c->sliding_window ? prompt : c->sliding_window;
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
    double n = cells(w);
    switch (w->format) {
    case WEIGHT_F32:
        return 4 * n;
    case WEIGHT_BF16:
        return 2 * n;
    case WEIGHT_FP8_TILE:
        return n * (1 + 1.0 / 1024);
    case WEIGHT_FP8_ROW:
        return n * (1 + 1.0 / 32);
    case WEIGHT_FP4_ROW:
        return n * (0.5 + 1.0 / 32);
    }
    return 0;
}

/* Packed weight bytes a decoding step of `batch` sequences reads; experts by the expected number of distinct ones. */
static double step_bytes(const struct bench *b, int32_t batch) {
    const struct model_config *c = b->config;
    double distinct =
        c->n_routed_experts * (1 - pow(1 - (double)c->num_experts_per_tok / c->n_routed_experts, batch));
    double total = bytes_of(&b->model->head);
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        const struct layer_weights *w = &b->model->layers[l];
        const struct matrix *dense[] = {&w->wq_a, &w->wq_b, &w->wkv, &w->wo_a, &w->wo_b, &w->gate,
            &w->shared_w1, &w->shared_w2, &w->shared_w3, &w->compressor.wkv, &w->compressor.wgate,
            &w->compressor.wk, &w->indexer.wq_b, &w->indexer.weights_proj, &w->engram.wkv, &w->hc_attn.fn,
            &w->hc_ffn.fn};
        for (size_t i = 0; i < sizeof dense / sizeof *dense; i++)
            total += dense[i]->values ? bytes_of(dense[i]) : 0;
        const struct expert_weights *e = &w->experts[0];
        total += distinct * (bytes_of(&e->w1) + bytes_of(&e->w2) + bytes_of(&e->w3));
    }
    return total;
}

static enum result prefill(struct bench *b, struct sequence **sequence, int32_t prompt, float *logits) {
    int32_t chunk = b->model->options.step_tokens,
            tail = b->config->last_kv_source >= 0 ? b->config->sliding_window : 0;
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
        TRY(model_step(b->model, &span, 1, logits));
    }
    return OK;
}

static enum result bench_prefill(struct bench *b, int32_t prompt, float *logits) {
    double best = 0;
    for (int i = 0; i < 3; i++) {
        struct sequence *sequence = NULL;
        double begin = bench_seconds();
        TRY(prefill(b, &sequence, prompt, logits));
        double rate = prompt / (bench_seconds() - begin);
        best = rate > best ? rate : best;
        sequence_free(b->model, sequence);
    }
    double operations = prefill_operations(b, prompt), limit = b->peak / (operations / prompt);
    printf(
        "prefill  prompt %5d            %9.1f tokens/s  %8.1f GFLOP/s  %5.1f%% of %.1f tokens/s (FMA peak)\n",
        prompt, best, best * operations / prompt * 1e-9, 100 * best / limit, limit);
    printf("{\"bench\":\"model\",\"phase\":\"prefill\",\"prompt\":%d,\"tokens_per_second\":%.2f,\"share_of_"
           "limit\":%.4f}\n",
        prompt, best, best / limit);
    return OK;
}

static enum result bench_decode(
    struct bench *b, int32_t batch, int32_t prompt, int32_t steps, float *logits) {
    struct sequence **sequences = calloc((size_t)batch, sizeof(struct sequence *));
    struct span *spans = calloc((size_t)batch, sizeof *spans);
    if (!sequences || !spans)
        return fail(ERROR_MEMORY, "out of memory for a batch of %d", batch);
    for (int32_t i = 0; i < batch; i++) {
        TRY(prefill(b, &sequences[i], prompt - i % 8, logits));
        spans[i] = (struct span){.sequence = sequences[i], .count = 1, .logits = 1};
    }
    double best = 0;
    for (int32_t step = 0; step < steps + 1; step++) {
        for (int32_t i = 0; i < batch; i++)
            spans[i].ids = b->ids + (step * 97 + i * 13) % prompt;
        double begin = bench_seconds();
        TRY(model_step(b->model, spans, batch, logits));
        double rate = batch / (bench_seconds() - begin);
        best = step && rate > best ? rate : best;
    }
    double bytes = step_bytes(b, batch), limit = batch * b->bandwidth / bytes;
    printf("decode   batch %3d, after %5d  %9.1f tokens/s  %8.1f GB/s     %5.1f%% of %.1f tokens/s "
           "(bandwidth)\n",
        batch, prompt, best, best / batch * bytes * 1e-9, 100 * best / limit, limit);
    printf("{\"bench\":\"model\",\"phase\":\"decode\",\"batch\":%d,\"tokens_per_second\":%.2f,\"share_of_"
           "limit\":%.4f}\n",
        batch, best, best / limit);
    for (int32_t i = 0; i < batch; i++)
        sequence_free(b->model, sequences[i]);
    free(sequences);
    free(spans);
    return OK;
}

static enum result run(int argc, char **argv) {
    int64_t threads = 0, prompt = 512, steps = 16, chunk = 512;
    const char *instruction_set = NULL;
    struct option_list folders = {0};
    bool help = false;
    const struct command_usage usage = {.name = "bench-model",
        .arguments = "CHECKPOINT",
        .summary = "Tokens a second in prefill and decoding, and the share of this machine's limits."};
    const struct option options[] = {{.name = "threads",
                                         .kind = OPTION_COUNT,
                                         .value = &threads,
                                         .placeholder = "N",
                                         .help = "threads (default: the cores)"},
        {.name = "prompt",
            .kind = OPTION_COUNT,
            .value = &prompt,
            .placeholder = "N",
            .help = "prompt tokens (default 512)"},
        {.name = "chunk",
            .kind = OPTION_COUNT,
            .value = &chunk,
            .placeholder = "N",
            .help = "tokens of a step (default 512)"},
        {.name = "steps",
            .kind = OPTION_COUNT,
            .value = &steps,
            .placeholder = "N",
            .help = "decoding steps (default 16)"},
        {.name = "cpu-kernels",
            .kind = OPTION_TEXT,
            .value = &instruction_set,
            .placeholder = "NAME",
            .help = "instruction set"},
        {0}};
    TRY(options_parse(&usage, options, argc, argv, &folders, &help));
    if (help)
        return OK;
    if (folders.count != 1)
        return fail(ERROR_USAGE, "bench-model: give one checkpoint folder");
    struct bench b = {0};
    struct rank_options rank_options = {.threads = (int32_t)threads};
    TRY(ranks_start(&rank_options, &b.ranks));
    const struct kernels *kernels = NULL;
    TRY(kernels_cpu_create(b.ranks.threads, instruction_set, &kernels));
    TRY(checkpoint_open(folders.items[0], &b.checkpoint));
    b.config = checkpoint_config(b.checkpoint);
    struct model_options model_options = {.kernels = kernels,
        .supernode = b.ranks.supernode_group,
        .step_tokens = (int32_t)chunk,
        .step_sequences = 64,
        .context = b.config->max_position_embeddings,
        .kv_bytes = (int64_t)4 << 30};
    double begin = bench_seconds();
    TRY(model_create(b.checkpoint, &model_options, &b.model));
    struct model_bytes bytes = model_bytes(b.model);
    printf("%s kernels, %d threads; ready in %.2f s; weights %.1f MB dense, %.1f MB experts, %.1f MB Engram; "
           "scratch %.1f MB\n",
        kernels->instruction_set, kernels->threads, bench_seconds() - begin, bytes.dense * 1e-6,
        bytes.experts * 1e-6, bytes.engram * 1e-6, bytes.scratch * 1e-6);
    b.peak = bench_fma_peak(b.ranks.threads);
    b.bandwidth = bench_read_bandwidth(b.ranks.threads);
    printf("limits: %.1f GFLOP/s float32 FMA, %.1f GB/s read\n", b.peak * 1e-9, b.bandwidth * 1e-9);
    b.ids = malloc(sizeof *b.ids * (size_t)prompt);
    float *logits = malloc(sizeof *logits * 64 * (size_t)b.config->vocab_size);
    if (!b.ids || !logits)
        return fail(ERROR_MEMORY, "out of memory for the bench");
    for (int32_t i = 0; i < prompt; i++)
        b.ids[i] = 3 + (int32_t)((uint32_t)i * 2654435761U % (uint32_t)(b.config->vocab_size - 40));
    TRY(bench_prefill(&b, (int32_t)prompt, logits));
    for (int32_t batch = 1; batch <= 32; batch = batch == 1 ? 8 : batch * 4)
        TRY(bench_decode(&b, batch, (int32_t)(prompt < 256 ? prompt : 256), (int32_t)steps, logits));
    model_free(b.model);
    checkpoint_close(b.checkpoint);
    kernels_cpu_free(kernels);
    free(b.ids);
    free(logits);
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

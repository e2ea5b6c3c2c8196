/* Records what steps of the model cost, for bench-balance:
 *
 *     bench-steps CHECKPOINT [--threads N] [--chunk N] [--repeats N] [--processor-time] > STEPS.jsonl
 *
 * The first line says what ran where; each other line is a step: prompt tokens, prompts that end in it, sequences that decode,
 * the sum over its tokens of the tokens before them, and seconds. Prompts run as in campaigns, with a tail. The steps are those of
 * a long prompt, of short prompts that end, of batches that decode behind short and long prompts, and of both together.
 * --processor-time: one thread, and its processor time, for machines that others use too. */
#include "base/log.h"
#include "base/options.h"
#include "bench/limits.h"
#include "cluster/ranks.h"
#include "model/internals.h"

#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc */

enum { LONG_PROMPT = 8192, MOST_SEQUENCES = 64 };
static const int32_t CONTEXTS[] = {256, 2048, LONG_PROMPT}, BATCHES[] = {1, 4, 16, 32, 64},
                     PROMPTS[] = {32, 128, 160, 256, 512};

enum {
    CONTEXT_COUNT = sizeof CONTEXTS / sizeof *CONTEXTS,
    BATCH_COUNT = sizeof BATCHES / sizeof *BATCHES,
    PROMPT_COUNT = sizeof PROMPTS / sizeof *PROMPTS
};

struct bench {
    struct ranks ranks;
    const struct kernels *kernels;
    struct checkpoint *checkpoint;
    struct model *model;
    int32_t tail;
    int32_t *ids;  /* [LONG_PROMPT] */
    float *logits; /* [MOST_SEQUENCES, vocabulary] */
    struct span spans[MOST_SEQUENCES];
    int32_t span_count;
};

/* ---- a step ---- */

static void add_span(struct bench *b, struct sequence *sequence, int32_t count, bool decodes, bool last) {
    b->spans[b->span_count++] = (struct span){.sequence = sequence,
        .ids = b->ids + sequence_length(sequence) % LONG_PROMPT,
        .count = count,
        .tail = decodes ? 0 : b->tail,
        .last = last,
        .logits = decodes || last};
}

/* Runs the step; its line is printed unless it only prepares others. */
static enum result run_step(struct bench *b, bool print) {
    int64_t prompt_tokens = 0, ends = 0, sequences = 0, positions = 0;
    for (int32_t i = 0; i < b->span_count; i++) {
        const struct span *span = &b->spans[i];
        int64_t count = span->count, before = sequence_length(span->sequence);
        bool decodes = span->tail == 0;
        prompt_tokens += decodes ? 0 : count;
        sequences += decodes;
        ends += span->last;
        positions += count * before + count * (count - 1) / 2;
    }
    double begin = bench_seconds();
    TRY(model_step(b->model, b->spans, b->span_count, b->logits));
    double seconds = bench_seconds() - begin;
    b->span_count = 0;
    if (print)
        printf("{\"prompt_tokens\":%lld,\"prompt_ends\":%lld,\"sequences\":%lld,\"positions\":%lld,"
               "\"seconds\":%.6f}\n",
            (long long)prompt_tokens, (long long)ends, (long long)sequences, (long long)positions, seconds);
    fflush(stdout);
    return OK;
}

/* ---- which steps ---- */

/* A prompt in chunks, its steps recorded; *kept [CONTEXT_COUNT] get copies of its state at CONTEXTS. */
static enum result run_long_prompt(struct bench *b, struct sequence **kept) {
    int32_t chunk = model_options(b->model)->step_tokens;
    struct sequence *sequence = NULL;
    TRY(sequence_create(b->model, &sequence));
    for (int32_t at = 0, next = 0; next < CONTEXT_COUNT;) {
        int32_t left = CONTEXTS[next] - at, count = left < chunk ? left : chunk;
        add_span(b, sequence, count, false, count == left);
        TRY(run_step(b, true));
        at += count;
        if (count < left)
            continue;
        kept[next] = sequence; /* a prompt that has ended: the longer one starts anew */
        if (++next < CONTEXT_COUNT) {
            TRY(sequence_create(b->model, &sequence));
            at = 0;
        }
    }
    return OK;
}

/* As many prompts of a length as the step takes, at most `most`, all of which end in it. */
static enum result run_short_prompts(struct bench *b, int32_t tokens, int32_t most) {
    struct sequence *sequences[MOST_SEQUENCES] = {NULL};
    int32_t room = model_options(b->model)->step_tokens, count = 0;
    int32_t longer = tokens < b->tail ? b->tail : tokens; /* the upper layers have their limit, too */
    for (; count < most && count < MOST_SEQUENCES && (count + 1) * longer <= room; count++) {
        TRY(sequence_create(b->model, &sequences[count]));
        add_span(b, sequences[count], tokens, false, true);
    }
    if (count)
        TRY(run_step(b, true));
    for (int32_t i = 0; i < count; i++)
        sequence_free(b->model, sequences[i]);
    return OK;
}

/* Steps of `batch` copies of a sequence; beside them, when beside > 0, so many tokens of a new prompt. */
static enum result run_batch(
    struct bench *b, const struct sequence *original, int32_t batch, int32_t beside, int64_t repeats) {
    struct sequence *sequences[MOST_SEQUENCES] = {NULL};
    struct sequence *prompt = NULL;
    for (int32_t i = 0; i < batch; i++)
        TRY(sequence_fork(b->model, original, &sequences[i]));
    for (int64_t step = 0; step <= repeats; step++) {
        for (int32_t i = 0; i < batch; i++)
            add_span(b, sequences[i], 1, true, false);
        if (beside) {
            TRY(sequence_create(b->model, &prompt));
            add_span(b, prompt, beside, false, false);
        }
        TRY(run_step(b, step > 0)); /* the first one warms the caches */
        sequence_free(b->model, prompt);
        prompt = NULL;
    }
    for (int32_t i = 0; i < batch; i++)
        sequence_free(b->model, sequences[i]);
    return OK;
}

static enum result run_steps(struct bench *b, int64_t repeats) {
    struct sequence *kept[CONTEXT_COUNT] = {NULL};
    TRY(run_short_prompts(b, PROMPTS[0], 1)); /* brings the weights into memory */
    TRY(run_long_prompt(b, kept));
    for (int p = 0; p < PROMPT_COUNT; p++) {
        TRY(run_short_prompts(b, PROMPTS[p], 1));
        TRY(run_short_prompts(b, PROMPTS[p], MOST_SEQUENCES));
    }
    for (int c = 0; c < CONTEXT_COUNT; c++)
        for (int i = 0; i < BATCH_COUNT; i++)
            TRY(run_batch(b, kept[c], BATCHES[i], 0, repeats));
    int32_t room = model_options(b->model)->step_tokens - BATCHES[BATCH_COUNT - 2];
    TRY(run_batch(b, kept[0], BATCHES[BATCH_COUNT - 2], room, repeats));
    TRY(run_batch(b, kept[1], BATCHES[BATCH_COUNT - 3], room / 4, repeats));
    for (int c = 0; c < CONTEXT_COUNT; c++)
        sequence_free(b->model, kept[c]);
    return OK;
}

/* ---- the run ---- */

struct bench_options {
    int64_t threads, chunk, repeats;
    bool processor_time;
};

static enum result open_model(struct bench *b, const char *folder, const struct bench_options *o) {
    TRY(kernels_cpu_create(b->ranks.threads, NULL, &b->kernels));
    TRY(checkpoint_open(folder, &b->checkpoint));
    const struct model_config *config = checkpoint_config(b->checkpoint);
    struct model_options model_options = {.kernels = b->kernels,
        .supernode = b->ranks.supernode_group,
        .step_tokens = (int32_t)o->chunk,
        .step_sequences = MOST_SEQUENCES + 1,
        .context = config->max_position_embeddings,
        .kv_bytes = (int64_t)2 << 30};
    if (model_options.context < LONG_PROMPT + (int32_t)o->repeats + 1)
        return fail(ERROR_INPUT, "%s: sequences of %d tokens are wanted, the model takes %d", folder,
            LONG_PROMPT + (int32_t)o->repeats + 1, model_options.context);
    TRY(model_create(b->checkpoint, &model_options, &b->model));
    b->tail = config->last_kv_source >= 0 ? config->sliding_window : 0;
    if (b->tail == 0)
        return fail(ERROR_INPUT, "%s: the model has no layers above its last source of rows", folder);
    b->ids = malloc(sizeof *b->ids * 2 * LONG_PROMPT);
    b->logits = malloc(sizeof *b->logits * (MOST_SEQUENCES + 1) * (size_t)config->vocab_size);
    if (!b->ids || !b->logits)
        return fail(ERROR_MEMORY, "out of memory for the bench");
    for (int32_t i = 0; i < 2 * LONG_PROMPT; i++)
        b->ids[i] = 3 + (int32_t)((uint32_t)i * 2654435761U % (uint32_t)(config->vocab_size - 40));
    printf("{\"bench\":\"steps\",\"version\":\"%s\",\"layers\":%d,\"hidden_size\":%d,\"experts\":%d,"
           "\"instruction_set\":\"%s\",\"threads\":%d,\"clock\":\"%s\",\"chunk\":%lld}\n",
        NOCTURNE_VERSION, config->num_hidden_layers, config->hidden_size, config->n_routed_experts,
        b->kernels->instruction_set, b->kernels->threads,
        bench_clock == CLOCK_MONOTONIC ? "wall" : "processor", (long long)o->chunk);
    return OK;
}

static enum result parse(struct bench_options *o, int argc, char **argv, const char **folder, bool *help) {
    struct option_list folders = {0};
    const struct command_usage usage = {.name = "bench-steps",
        .arguments = "CHECKPOINT",
        .summary = "Prints what steps of known content cost, as JSON lines for bench-balance --costs."};
    const struct option options[] = {{.name = "threads",
                                         .kind = OPTION_COUNT,
                                         .value = &o->threads,
                                         .placeholder = "N",
                                         .help = "threads (default: the cores)"},
        {.name = "chunk",
            .kind = OPTION_COUNT,
            .value = &o->chunk,
            .placeholder = "N",
            .least = 128,
            .most = 1 << 16,
            .help = "tokens of a step (default 512)"},
        {.name = "repeats",
            .kind = OPTION_COUNT,
            .value = &o->repeats,
            .placeholder = "N",
            .least = 1,
            .most = 1000,
            .help = "steps of each batch (default 4)"},
        {.name = "processor-time",
            .kind = OPTION_FLAG,
            .value = &o->processor_time,
            .help = "one thread, and its processor time"},
        {0}};
    TRY(options_parse(&usage, options, argc, argv, &folders, help));
    *folder = folders.count == 1 ? folders.items[0] : NULL;
    free(folders.items);
    return *folder || *help ? OK : fail(ERROR_USAGE, "bench-steps: give one checkpoint folder");
}

static enum result run(int argc, char **argv) {
    struct bench_options o = {.chunk = 512, .repeats = 4};
    struct bench b = {0};
    const char *folder;
    bool help = false;
    TRY(parse(&o, argc, argv, &folder, &help));
    if (help)
        return OK;
    if (o.processor_time) {
        o.threads = 1;
        bench_clock = CLOCK_THREAD_CPUTIME_ID;
    }
    struct rank_options rank_options = {.threads = (int32_t)o.threads};
    TRY(ranks_start(&rank_options, &b.ranks));
    TRY(open_model(&b, folder, &o));
    TRY(run_steps(&b, o.repeats));
    model_free(b.model);
    checkpoint_close(b.checkpoint);
    kernels_free(b.kernels);
    free(b.ids);
    free(b.logits);
    ranks_stop(&b.ranks, OK);
    return OK;
}

int main(int argc, char **argv) {
    enum result status = run(argc, argv);
    if (status != OK)
        log_error("%s", failure_message());
    return status;
}

/* Compares the forward pass of the two backends on given texts:
 *
 *   bench-agree CHECKPOINT TEXTS.jsonl [--texts N] [--json]
 *
 * A line of TEXTS has "token_ids". Every position's logits are computed by the CPU backend and by the CUDA backend, each text
 * in one prefill and, again on CUDA, its second half token by token, which must not change a bit. It fails when the likeliest next
 * token is equal at less than 98% of the positions, or the perplexities differ by more than 0.5%.
 */
#include "base/json.h"
#include "base/log.h"
#include "base/options.h"
#include "cluster/ranks.h"
#include "model/internals.h"

#include <math.h>   /* exp */
#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc */
#include <string.h> /* memcmp */

enum { MOST_TOKENS = 2048, LINE_BYTES = 1 << 16, BACKENDS = 2 };
static const double LEAST_AGREEMENT = 0.98, MOST_DIFFERENCE = 0.005;

struct agreement {
    struct ranks ranks;
    struct checkpoint *checkpoint;
    struct json_document *document;
    const struct kernels *kernels[BACKENDS]; /* CPU, CUDA */
    struct model *models[BACKENDS];
    int32_t vocab_size;
    int32_t ids[MOST_TOKENS], count;
    float *logits[BACKENDS], *again; /* [MOST_TOKENS, vocab_size] */
    int64_t texts, positions, predicted, equal, changed;
    double sums[BACKENDS]; /* of the log-probabilities of the predicted tokens */
    double worst;          /* difference of two logits */
};

/* ---- texts ---- */

static enum result read_ids(struct agreement *a, const char *line, size_t bytes, int64_t number) {
    const struct json *root = NULL;
    TRY(json_parse(a->document, line, bytes, &root));
    const struct json *list = json_member(root, "token_ids");
    a->count = 0;
    if (list == NULL || list->kind != JSON_ARRAY)
        return fail(ERROR_INPUT, "line %lld has no list of token_ids", (long long)number);
    for (const struct json *item = list->first; item != NULL; item = item->next) {
        int64_t id;
        if (a->count == MOST_TOKENS || !json_int64(item, &id) || id < 0 || id >= a->vocab_size)
            return fail(ERROR_INPUT, "line %lld: token_ids: expected at most %d ids below %d",
                (long long)number, MOST_TOKENS, a->vocab_size);
        a->ids[a->count++] = (int32_t)id;
    }
    return OK;
}

/* ---- passes ---- */

/* Logits of all positions: tokens up to `whole` in one step, the others one by one. */
static enum result run_text(struct agreement *a, struct model *model, int32_t whole, float *logits) {
    struct sequence *sequence = NULL;
    TRY(sequence_create(model, &sequence));
    enum result status = OK;
    for (int32_t at = 0, n; at < a->count && status == OK; at += n) {
        n = at == 0 ? whole : 1;
        const struct span span = {.sequence = sequence, .ids = a->ids + at, .count = n, .logits = n};
        status = model_step(model, &span, 1, logits + (int64_t)at * a->vocab_size);
    }
    sequence_free(model, sequence);
    return status;
}

static int32_t likeliest(const float *logits, int32_t count) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static double log_probability(const float *logits, int32_t count, int32_t id) {
    const double top = logits[likeliest(logits, count)];
    double sum = 0;
    for (int32_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - top);
    return (double)logits[id] - top - log(sum);
}

static void compare_position(struct agreement *a, int32_t at) {
    const float *rows[BACKENDS];
    for (int b = 0; b < BACKENDS; b++) {
        rows[b] = a->logits[b] + (int64_t)at * a->vocab_size;
        if (at + 1 < a->count)
            a->sums[b] += log_probability(rows[b], a->vocab_size, a->ids[at + 1]);
    }
    a->positions++;
    a->predicted += at + 1 < a->count;
    a->equal += likeliest(rows[0], a->vocab_size) == likeliest(rows[1], a->vocab_size);
    for (int32_t i = 0; i < a->vocab_size; i++) {
        double difference = fabs((double)rows[0][i] - (double)rows[1][i]);
        a->worst = difference <= a->worst ? a->worst : difference; /* NaN, too */
    }
}

static enum result compare_text(struct agreement *a) {
    const size_t bytes = (size_t)a->count * (size_t)a->vocab_size * sizeof(float);
    for (int b = 0; b < BACKENDS; b++)
        TRY(run_text(a, a->models[b], a->count, a->logits[b]));
    TRY(run_text(a, a->models[1], (a->count + 1) / 2, a->again));
    a->changed += memcmp(a->again, a->logits[1], bytes) != 0;
    for (int32_t t = 0; t < a->count; t++)
        compare_position(a, t);
    a->texts++;
    return OK;
}

static enum result compare_texts(struct agreement *a, const char *path, int64_t most) {
    static char line[LINE_BYTES];
    FILE *file = fopen(path, "r");
    enum result status = OK;
    if (file == NULL)
        return fail_errno(ERROR_INPUT, "%s", path);
    for (int64_t number = 1; number <= most && status == OK && fgets(line, sizeof line, file) != NULL;
         number++) {
        status = read_ids(a, line, strcspn(line, "\n"), number);
        if (status == OK && a->count > 0)
            status = compare_text(a);
    }
    fclose(file);
    return status;
}

/* ---- the run ---- */

static enum result open_models(struct agreement *a, const char *folder) {
    TRY(checkpoint_open(folder, &a->checkpoint));
    const struct model_config *config = checkpoint_config(a->checkpoint);
    a->vocab_size = config->vocab_size;
    TRY(kernels_cpu_create(a->ranks.threads, NULL, &a->kernels[0]));
    TRY(kernels_cuda_create(0, &a->kernels[1]));
    for (int b = 0; b < BACKENDS; b++) {
        const struct model_options options = {.kernels = a->kernels[b],
            .supernode = a->ranks.supernode_group,
            .step_tokens = MOST_TOKENS,
            .step_sequences = 1,
            .context =
                MOST_TOKENS < config->max_position_embeddings ? MOST_TOKENS : config->max_position_embeddings,
            .kv_bytes = (int64_t)256 << 20};
        TRY(model_create(a->checkpoint, &options, &a->models[b]));
    }
    float **const all[] = {&a->logits[0], &a->logits[1], &a->again};
    for (int i = 0; i < 3; i++)
        if ((*all[i] = malloc(sizeof(float) * MOST_TOKENS * (size_t)a->vocab_size)) == NULL)
            return fail(ERROR_MEMORY, "out of memory for logits");
    return json_document_create(&a->document);
}

static void close_models(struct agreement *a) {
    for (int b = 0; b < BACKENDS; b++) {
        model_free(a->models[b]);
        kernels_free(a->kernels[b]);
        free(a->logits[b]);
    }
    free(a->again);
    json_document_free(a->document);
    checkpoint_close(a->checkpoint);
}

/* Prints the comparison; ERROR_INTERNAL when the backends don't agree. */
static enum result report(const struct agreement *a, bool as_json) {
    const double share = (double)a->equal / (double)(a->positions > 0 ? a->positions : 1);
    const double count = (double)(a->predicted > 0 ? a->predicted : 1);
    const double cpu = exp(-a->sums[0] / count), cuda = exp(-a->sums[1] / count);
    const double difference = fabs(cuda / cpu - 1);
    const bool is_good =
        a->positions > 0 && share >= LEAST_AGREEMENT && difference <= MOST_DIFFERENCE && a->changed == 0;
    printf(as_json ? "{\"bench\":\"agree\",\"texts\":%lld,\"positions\":%lld,\"argmax_equal\":%.5f,\"cpu_"
                     "perplexity\":%.5f,"
                     "\"cuda_perplexity\":%.5f,\"perplexity_difference\":%.6f,\"worst_logit\":%.5f,\"texts_"
                     "changed_by_decoding\":%lld,"
                     "\"pass\":%s}\n"
                   : "%lld texts, %lld positions: likeliest token equal at %.5f (at least 0.98); perplexity "
                     "%.5f on the CPU, %.5f "
                     "on CUDA, difference %.6f (at most 0.005); largest difference of a logit %.5f; texts "
                     "whose bits decoding changes: "
                     "%lld; %s\n",
        (long long)a->texts, (long long)a->positions, share, cpu, cuda, difference, a->worst,
        (long long)a->changed,
        as_json   ? is_good ? "true" : "false"
        : is_good ? "passed"
                  : "FAILED");
    return is_good ? OK : fail(ERROR_INTERNAL, "the CUDA backend doesn't agree with the CPU's");
}

static enum result run(int argc, char **argv) {
    static struct agreement a;
    struct option_list paths = {0};
    int64_t most = INT64_MAX;
    bool help = false, as_json = false;
    const struct command_usage usage = {.name = "bench-agree",
        .arguments = "CHECKPOINT TEXTS.jsonl",
        .summary = "Compares the CUDA backend's predictions with the CPU backend's."};
    const struct option options[] = {{.name = "texts",
                                         .kind = OPTION_COUNT,
                                         .value = &most,
                                         .placeholder = "N",
                                         .least = 1,
                                         .most = INT64_MAX,
                                         .help = "lines to read (default: all)"},
        {.name = "json", .kind = OPTION_FLAG, .value = &as_json, .help = "a JSON line instead"}, {0}};
    TRY(options_parse(&usage, options, argc, argv, &paths, &help));
    if (help)
        return OK;
    if (paths.count != 2)
        return fail(ERROR_USAGE, "bench-agree: give a checkpoint folder and a file of texts");
    const struct rank_options rank_options = {0};
    TRY(ranks_start(&rank_options, &a.ranks));
    TRY(open_models(&a, paths.items[0]));
    TRY(compare_texts(&a, paths.items[1], most));
    enum result status = report(&a, as_json);
    close_models(&a);
    free(paths.items);
    if (status == OK)
        ranks_stop(&a.ranks, OK);
    return status;
}

int main(int argc, char **argv) {
    enum result status = run(argc, argv);
    if (status != OK)
        log_error("%s", failure_message());
    return status;
}

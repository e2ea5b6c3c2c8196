/* What bounded replay changes: the probabilities of text after a hit of the prefix cache, beside those of exact replay.
 *
 *     bench-drift CHECKPOINT HELDOUT.jsonl [--hits N,N] [--bounded N,N] [--scored N] [--prompts N] [--json]
 *
 * HELDOUT.jsonl: lines with `token_ids`, put one after the other to one long text. For each length of a hit, `prompts` places of it are the
 * prompts; the `scored` tokens behind the hit are fed and their probabilities compared: perplexity of both ways, mean
 * Kullback-Leibler divergence of the exact distribution to the other, and how often the likeliest token is the same. Exact replay is
 * checked to be bit-identical to a run from the beginning while at it.
 */
#include "base/json.h"
#include "base/options.h"
#include "cluster/ranks.h"
#include "model/internals.h"

#include <math.h>   /* exp, log */
#include <stdio.h>  /* printf, getline */
#include <stdlib.h> /* malloc */
#include <string.h> /* memcmp */

enum { MOST_LIST = 16, STEP_TOKENS = 512, BLOCK_TOKENS = 64 };

#define REQUIRE(call)                                                                                        \
    do {                                                                                                     \
        if ((call) != OK) {                                                                                  \
            fprintf(stderr, "bench-drift: %s\n", failure_message());                                         \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

struct bench {
    struct model *model;
    const struct model_config *config;
    int32_t *ids; /* the long text */
    int64_t tokens;
    int32_t scored;
};

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes + 1);
    if (!memory) {
        fprintf(stderr, "bench-drift: out of memory\n");
        exit(1);
    }
    return memory;
}

/* ---- the text ---- */

static void add_line(struct bench *b, const struct json *root, int32_t **ids, int64_t *capacity) {
    const struct json *list = json_member(root, "token_ids");
    for (const struct json *item = list ? list->first : NULL; item; item = item->next) {
        int64_t id;
        if (!json_int64(item, &id) || id < 0 || id >= b->config->vocab_size) {
            fprintf(stderr, "bench-drift: an id outside the vocabulary\n");
            exit(1);
        }
        if (b->tokens == *capacity) {
            *capacity = *capacity ? 2 * *capacity : 4096;
            int32_t *grown = allocate((size_t)*capacity * sizeof *grown);
            if (b->tokens)
                memcpy(grown, *ids, (size_t)b->tokens * sizeof *grown);
            free(*ids);
            *ids = grown;
        }
        (*ids)[b->tokens++] = (int32_t)id;
    }
}

static void read_text(struct bench *b, const char *path) {
    FILE *file = fopen(path, "r");
    struct json_document *document = NULL;
    char *line = NULL;
    size_t room = 0;
    int64_t capacity = 0;
    if (!file) {
        fprintf(stderr, "bench-drift: cannot open %s\n", path);
        exit(1);
    }
    REQUIRE(json_document_create(&document));
    for (ssize_t bytes; (bytes = getline(&line, &room, file)) > 0;) {
        const struct json *root;
        REQUIRE(json_parse(document, line, (size_t)bytes, &root));
        add_line(b, root, &b->ids, &capacity);
    }
    json_document_free(document);
    free(line);
    fclose(file);
}

/* ---- runs ---- */

static void feed(struct bench *b, struct sequence *sequence, const int32_t *ids, int32_t count, int32_t tail,
    bool last, int32_t wanted, float *logits) {
    for (int32_t at = 0; at < count;) {
        int32_t left = count - at, n = left < STEP_TOKENS ? left : STEP_TOKENS;
        bool ends = n == left;
        struct span span = {.sequence = sequence,
            .ids = ids + at,
            .count = n,
            .tail = tail,
            .last = tail && last && ends,
            .logits = ends ? wanted : 0};
        REQUIRE(model_step(b->model, &span, 1, logits));
        at += n;
    }
}

/* The prompt ends with the token after the hit; the rest is fed as an answer is. */
static void score(
    struct bench *b, struct sequence *sequence, const int32_t *prompt, int32_t hit, float *logits) {
    int32_t from = sequence_length(sequence);
    feed(b, sequence, prompt + from, hit + 1 - from, b->config->sliding_window, true, 1, logits);
    feed(b, sequence, prompt + hit + 1, b->scored - 1, 0, false, b->scored - 1,
        logits + b->config->vocab_size);
    sequence_free(b->model, sequence);
}

/* The rows of the prompt's blocks, as the cache holds them. */
static uint8_t *pack(struct bench *b, const int32_t *prompt, int32_t hit) {
    int32_t blocks = (hit + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    int64_t bytes = sequence_rows_bytes(b->model, BLOCK_TOKENS);
    uint8_t *packed = allocate((size_t)(blocks * bytes));
    struct sequence *sequence = NULL;
    REQUIRE(sequence_create(b->model, &sequence));
    feed(b, sequence, prompt, blocks * BLOCK_TOKENS, b->config->sliding_window, false, 0, NULL);
    for (int32_t i = 0; i < blocks; i++)
        REQUIRE(sequence_rows_save(b->model, sequence, i * BLOCK_TOKENS, BLOCK_TOKENS, packed + i * bytes));
    sequence_free(b->model, sequence);
    return packed;
}

static void score_hit(struct bench *b, const int32_t *prompt, int32_t hit, int32_t bounded,
    const uint8_t *packed, float *logits) {
    int32_t window = b->config->sliding_window;
    const struct replay replay = {.tail = window, .bounded = bounded};
    const struct restore restore = {.ids = prompt,
        .hit = hit,
        .begin = sequence_replay_begin(b->model, hit, hit + 1 - window, &replay),
        .packed = packed,
        .block_tokens = BLOCK_TOKENS,
        .is_approximate = bounded > 0};
    struct sequence *sequence = NULL;
    REQUIRE(sequence_restore(b->model, &restore, &sequence));
    score(b, sequence, prompt, hit, logits);
}

/* ---- what is compared ---- */

struct drift {
    int64_t tokens, same;
    double exact_loss, other_loss, divergence, worst;
};

static double log_sum(const float *logits, int32_t count) {
    double most = logits[0], sum = 0;
    for (int32_t v = 1; v < count; v++)
        most = logits[v] > most ? logits[v] : most;
    for (int32_t v = 0; v < count; v++)
        sum += exp((double)logits[v] - most);
    return most + log(sum);
}

static int32_t likeliest(const float *logits, int32_t count) {
    int32_t best = 0;
    for (int32_t v = 1; v < count; v++)
        if (logits[v] > logits[best])
            best = v;
    return best;
}

static void compare(struct bench *b, const float *exact, const float *other, const int32_t *next,
    int32_t count, struct drift *drift) {
    int32_t vocab = b->config->vocab_size;
    for (int32_t t = 0; t < count; t++, exact += vocab, other += vocab) {
        double of_exact = log_sum(exact, vocab), of_other = log_sum(other, vocab), divergence = 0;
        for (int32_t v = 0; v < vocab; v++) {
            double p = (double)exact[v] - of_exact, q = (double)other[v] - of_other;
            divergence += exp(p) * (p - q);
        }
        drift->exact_loss += of_exact - (double)exact[next[t]];
        drift->other_loss += of_other - (double)other[next[t]];
        drift->divergence += divergence;
        drift->worst = divergence > drift->worst ? divergence : drift->worst;
        drift->same += likeliest(exact, vocab) == likeliest(other, vocab);
        drift->tokens++;
    }
}

static void show(int32_t hit, int32_t bounded, int32_t run, const struct drift *d, bool as_json) {
    double n = (double)d->tokens;
    const char *format = as_json ? "{\"hit\": %d, \"bounded\": %d, \"replayed\": %d, \"tokens\": %lld, "
                                   "\"perplexity_exact\": %.5f, "
                                   "\"perplexity_bounded\": %.5f, \"kl_mean\": %.3e, \"kl_worst\": %.3e, "
                                   "\"same_likeliest\": %.5f}\n"
                                 : "%8d %8d %9d %8lld %12.5f %12.5f %10.2e %10.2e %9.4f\n";
    printf(format, hit, bounded, run, (long long)d->tokens, exp(d->exact_loss / n), exp(d->other_loss / n),
        d->divergence / n, d->worst, (double)d->same / n);
}

/* One length of hits, for exact replay (bits only) and all bounds. */
static void measure(
    struct bench *b, int32_t hit, const int32_t *bounds, int32_t bound_count, int64_t prompts, bool as_json) {
    size_t bytes = (size_t)b->scored * (size_t)b->config->vocab_size * sizeof(float);
    float *exact = allocate(bytes), *other = allocate(bytes);
    struct drift drifts[MOST_LIST] = {{0}};
    int64_t room = b->tokens - hit - BLOCK_TOKENS - b->scored - 1;
    if (room < 0) {
        fprintf(stderr, "bench-drift: the text is too short for hits of %d tokens\n", hit);
        exit(1);
    }
    for (int64_t i = 0; i < prompts; i++) {
        const int32_t *prompt = b->ids + (prompts > 1 ? room * i / (prompts - 1) : 0);
        uint8_t *packed = pack(b, prompt, hit);
        struct sequence *sequence = NULL;
        REQUIRE(sequence_create(b->model, &sequence));
        score(b, sequence, prompt, hit, exact);
        score_hit(b, prompt, hit, 0, packed, other);
        if (memcmp(exact, other, bytes) != 0) {
            fprintf(stderr, "bench-drift: exact replay after %d tokens gives other bits\n", hit);
            exit(1);
        }
        for (int32_t k = 0; k < bound_count; k++) {
            score_hit(b, prompt, hit, bounds[k], packed, other);
            compare(b, exact, other, prompt + hit + 1, b->scored, &drifts[k]);
        }
        free(packed);
    }
    for (int32_t k = 0; k < bound_count; k++) {
        int32_t window = b->config->sliding_window;
        const struct replay replay = {.tail = window, .bounded = bounds[k]};
        show(hit, bounds[k], hit - sequence_replay_begin(b->model, hit, hit + 1 - window, &replay),
            &drifts[k], as_json);
    }
    free(exact);
    free(other);
}

/* ---- the program ---- */

static int32_t read_list(const char *text, int32_t list[MOST_LIST]) {
    int32_t count = 0;
    for (const char *at = text; *at && count < MOST_LIST;) {
        char *end;
        list[count] = (int32_t)strtol(at, &end, 10) / 2 * 2;
        if (end == at || list[count] < 2) {
            fprintf(stderr, "bench-drift: '%s' is no list of numbers\n", text);
            exit(2);
        }
        count++;
        at = *end == ',' ? end + 1 : end;
    }
    return count;
}

int main(int argc, char **argv) {
    const char *hits_text = "64,128,256,512,1024,2048", *bounds_text = "32,64,128";
    int64_t scored = 64, prompts = 8;
    bool as_json = false, help_shown = false;
    struct option_list arguments = {0};
    const struct option options[] = {
        {.name = "hits",
            .kind = OPTION_TEXT,
            .value = &hits_text,
            .placeholder = "N,N",
            .help = "lengths of hits"},
        {.name = "bounded",
            .kind = OPTION_TEXT,
            .value = &bounds_text,
            .placeholder = "N,N",
            .help = "tokens that bounded replay runs again"},
        {.name = "scored",
            .kind = OPTION_COUNT,
            .value = &scored,
            .placeholder = "N",
            .least = 2,
            .most = STEP_TOKENS,
            .help = "tokens compared behind each hit (default: 64)"},
        {.name = "prompts",
            .kind = OPTION_COUNT,
            .value = &prompts,
            .placeholder = "N",
            .least = 1,
            .most = 1000,
            .help = "places of the text (default: 8)"},
        {.name = "json", .kind = OPTION_FLAG, .value = &as_json, .help = "JSON lines"},
        {0},
    };
    static const struct command_usage usage = {.name = "bench-drift",
        .summary = "Compares bounded with exact replay after hits of the prefix cache.",
        .arguments = "CHECKPOINT HELDOUT.jsonl"};
    if (options_parse(&usage, options, argc, argv, &arguments, &help_shown) != OK ||
        (!help_shown && arguments.count != 2)) {
        fprintf(stderr, "bench-drift: %s\n",
            arguments.count != 2 ? "give CHECKPOINT and HELDOUT.jsonl" : failure_message());
        return 2;
    }
    if (help_shown)
        return 0;
    struct bench b = {.scored = (int32_t)scored};
    struct ranks ranks;
    struct rank_options rank_options = {.threads = 0};
    struct checkpoint *checkpoint = NULL;
    const struct kernels *kernels = NULL;
    REQUIRE(ranks_start(&rank_options, &ranks));
    REQUIRE(kernels_cpu_create(ranks.threads, NULL, &kernels));
    REQUIRE(checkpoint_open(arguments.items[0], &checkpoint));
    b.config = checkpoint_config(checkpoint);
    read_text(&b, arguments.items[1]);
    const struct model_options model = {.kernels = kernels,
        .supernode = ranks.supernode_group,
        .mode = MODE_ROUNDED,
        .step_tokens = STEP_TOKENS,
        .step_sequences = 2,
        .context = b.config->max_position_embeddings,
        .kv_bytes = 256 << 20};
    REQUIRE(model_create(checkpoint, &model, &b.model));
    int32_t hits[MOST_LIST], bounds[MOST_LIST];
    int32_t hit_count = read_list(hits_text, hits), bound_count = read_list(bounds_text, bounds);
    if (!as_json)
        printf("%8s %8s %9s %8s %12s %12s %10s %10s %9s\n", "hit", "bounded", "replayed", "tokens",
            "perplexity", "of bounded", "mean KL", "worst KL", "same top");
    for (int32_t i = 0; i < hit_count; i++)
        measure(&b, hits[i], bounds, bound_count, prompts, as_json);
    model_free(b.model);
    checkpoint_close(checkpoint);
    kernels_free(kernels);
    free(b.ids);
    free(arguments.items);
    ranks_stop(&ranks, OK);
    return 0;
}

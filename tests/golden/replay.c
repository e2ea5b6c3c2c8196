/* Prompts that go on from cached rows: exact replay gives every bit of a run without a cache, bounded replay leaves the cached rows
 * alone.
 *
 *     golden-replay CHECKPOINT [INSTRUCTION_SET | cuda]
 *
 * Under mpirun the experts are sharded over the ranks; all ranks run the same sequences and all compare.
 */
#include "cluster/ranks.h"
#include "model/internals.h"
#include "require.h"

#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc, exit */
#include <string.h> /* memcmp */

enum { BLOCK_TOKENS = 32, DECODED = 5, STEP_TOKENS = 256 };

struct session {
    struct ranks ranks;
    struct checkpoint *checkpoint;
    const struct model_config *config;
    struct model *model;
    int32_t *ids; /* [tokens] */
    float *embeddings;
    int32_t tokens;
    int failures;
};

static void check(struct session *s, bool good, const char *what, const char *kind) {
    s->failures += !good;
    if (s->ranks.rank == 0 || !good)
        printf("%s %s (%s)\n", good ? "ok  " : "FAIL", what, kind);
}

/* What a way to run a prompt has led to. */
struct outcome {
    float *logits; /* of the prompt's end and the decoded tokens */
    uint8_t *rows; /* compressed rows of the prompt, two tokens at a time */
    struct saved_state state;
};

static size_t logits_bytes(const struct session *s) {
    return sizeof(float) * (DECODED + 1) * (size_t)s->config->vocab_size;
}

static int32_t even(int32_t tokens) {
    return tokens / 2 * 2;
}

static int32_t best(const struct session *s, const float *logits) {
    int32_t token = 0;
    for (int32_t v = 1; v < s->config->vocab_size; v++)
        if (logits[v] > logits[token])
            token = v;
    return token;
}

/* Runs tokens [from, s->tokens) in chunks and decodes; frees the sequence. */
static struct outcome finish(
    struct session *s, struct sequence *sequence, int32_t from, int32_t chunk, int32_t tail) {
    struct outcome outcome = {
        .logits = malloc(logits_bytes(s)),
        .rows = malloc((size_t)(s->tokens / 2 * sequence_rows_bytes(s->model, 2))),
    };
    int32_t images = 0;
    for (int32_t t = 0; t < from; t++)
        images += s->ids[t] == s->config->image_token_id;
    for (int32_t at = from; at < s->tokens;) {
        int32_t left = s->tokens - at, count = left < chunk ? left : chunk;
        struct span span = {.sequence = sequence,
            .ids = s->ids + at,
            .count = count,
            .tail = tail,
            .last = count == left,
            .logits = count == left,
            .embeddings = s->embeddings + (int64_t)images * s->config->hidden_size};
        REQUIRE(model_step(s->model, &span, 1, outcome.logits));
        for (int32_t t = at; t < at + count; t++)
            images += s->ids[t] == s->config->image_token_id;
        at += count;
    }
    for (int32_t i = 0; i < DECODED; i++) {
        float *logits = outcome.logits + (int64_t)i * s->config->vocab_size;
        int32_t token = best(s, logits);
        struct span span = {.sequence = sequence, .ids = &token, .count = 1, .logits = 1};
        REQUIRE(model_step(s->model, &span, 1, logits + s->config->vocab_size));
    }
    for (int32_t at = 0; at + 2 <= s->tokens; at += 2)
        REQUIRE(sequence_rows_save(
            s->model, sequence, at, 2, outcome.rows + at / 2 * sequence_rows_bytes(s->model, 2)));
    REQUIRE(sequence_save(s->model, sequence, &outcome.state));
    sequence_free(s->model, sequence);
    return outcome;
}

static void free_outcome(struct outcome *outcome) {
    free(outcome->logits);
    free(outcome->rows);
    sequence_saved_free(&outcome->state);
}

static bool states_equal(struct session *s, const struct saved_state *a, const struct saved_state *b) {
    int32_t count;
    const struct state_section *sections = model_state_sections(s->model, &count);
    for (int32_t i = 0; i < count; i++)
        if (a->sections[i].rows != b->sections[i].rows ||
            memcmp(a->sections[i].data, b->sections[i].data,
                (size_t)(a->sections[i].rows * sections[i].row_bytes)))
            return false;
    return true;
}

static bool outcomes_equal(struct session *s, const struct outcome *a, const struct outcome *b) {
    return !memcmp(a->logits, b->logits, logits_bytes(s)) && states_equal(s, &a->state, &b->state);
}

/* Rows of blocks, each packed for itself as the cache keeps them. */
static uint8_t *pack(struct session *s, int32_t tail) {
    int64_t bytes = sequence_rows_bytes(s->model, BLOCK_TOKENS);
    int32_t blocks = s->tokens / BLOCK_TOKENS;
    uint8_t *packed = malloc((size_t)(bytes * (blocks + 1)));
    struct sequence *sequence = NULL;
    REQUIRE(sequence_create(s->model, &sequence));
    const float *embeddings = s->embeddings;
    for (int32_t at = 0; at < s->tokens; at += STEP_TOKENS) {
        int32_t left = s->tokens - at, count = left < STEP_TOKENS ? left : STEP_TOKENS;
        struct span span = {
            .sequence = sequence, .ids = s->ids + at, .count = count, .tail = tail, .embeddings = embeddings};
        REQUIRE(model_step(s->model, &span, 1, NULL));
        for (int32_t t = at; t < at + count; t++)
            if (s->ids[t] == s->config->image_token_id)
                embeddings += s->config->hidden_size;
    }
    for (int32_t i = 0; i < blocks; i++)
        REQUIRE(sequence_rows_save(s->model, sequence, i * BLOCK_TOKENS, BLOCK_TOKENS, packed + i * bytes));
    sequence_free(s->model, sequence);
    return packed;
}

static struct outcome from_hit(struct session *s, const uint8_t *packed, int32_t hit, int32_t begin,
    int32_t chunk, int32_t tail, bool forked) {
    const struct restore restore = {
        .ids = s->ids, .hit = hit, .begin = begin, .packed = packed, .block_tokens = BLOCK_TOKENS};
    struct sequence *sequence = NULL;
    REQUIRE(sequence_restore(s->model, &restore, &sequence));
    if (forked) {
        struct sequence *fork = NULL;
        REQUIRE(sequence_fork(s->model, sequence, &fork));
        sequence_free(s->model, sequence);
        sequence = fork;
    }
    return finish(s, sequence, begin, chunk, tail);
}

/* Hits around every kind of edge: those of windows, blocks, the image, the tail, and the prompt's end. */
static int32_t list_hits(const struct session *s, int32_t *hits) {
    const int32_t window = s->config->sliding_window, tokens = s->tokens;
    const int32_t around[] = {2, window, 2 * window, BLOCK_TOKENS, s->tokens / 3, s->tokens / 2,
        tokens - 2 * window, tokens - window, tokens - window / 2, tokens};
    int32_t count = 0;
    for (size_t i = 0; i < sizeof around / sizeof *around; i++)
        for (int32_t by = -2; by <= 2; by += 2) {
            int32_t hit = even(around[i]) + by;
            if (hit >= 2 && hit < tokens && hit <= tokens / BLOCK_TOKENS * BLOCK_TOKENS)
                hits[count++] = hit;
        }
    return count;
}

static void check_replay(struct session *s, int32_t tail, const char *kind) {
    enum { MOST_HITS = 32 };
    static const int32_t chunks[] = {STEP_TOKENS, 64, 100, 37};
    int32_t hits[MOST_HITS], hit_count = list_hits(s, hits);
    uint8_t *packed = pack(s, tail);
    struct sequence *sequence = NULL;
    REQUIRE(sequence_create(s->model, &sequence));
    struct outcome want = finish(s, sequence, 0, STEP_TOKENS, tail);
    const struct replay exact = {.tail = tail};
    int exact_wrong = 0, rows_wrong = 0, too_short = 0, shorter_runs = 0;
    for (int32_t i = 0; i < hit_count; i++) {
        int32_t begin = sequence_replay_begin(s->model, hits[i], s->tokens - tail, &exact);
        int32_t chunk = chunks[(size_t)i % (sizeof chunks / sizeof *chunks)];
        chunk = chunk < tail ? tail : chunk;
        struct outcome got = from_hit(s, packed, hits[i], begin, chunk, tail, i % 3 == 1);
        if (!outcomes_equal(s, &want, &got)) {
            printf("hit %d of %d, from %d in chunks of %d: other bits\n", hits[i], s->tokens, begin, chunk);
            exact_wrong++;
        }
        free_outcome(&got);
        const struct replay bounded = {.tail = tail, .bounded = s->config->sliding_window};
        int32_t near = sequence_replay_begin(s->model, hits[i], s->tokens - tail, &bounded);
        if (near == begin)
            continue;
        got = from_hit(s, packed, hits[i], near, chunk, tail, false);
        rows_wrong +=
            memcmp(want.rows, got.rows, (size_t)(hits[i] / 2 * sequence_rows_bytes(s->model, 2))) != 0;
        shorter_runs++;
        too_short += !outcomes_equal(s, &want, &got);
        free_outcome(&got);
    }
    check(s, exact_wrong == 0, "exact replay after hits: logits, rows and windows bit for bit", kind);
    check(s, rows_wrong == 0, "bounded replay leaves cached rows alone", kind);
    check(s, shorter_runs == 0 || too_short > 0, "less than exact replay shows", kind);
    check(s, s->model->pool->unused == s->model->pool->total, "all blocks come back", kind);
    free_outcome(&want);
    free(packed);
}

/* ---- prompts that share a beginning ---- */

/* Copies of an unfinished prompt end after different numbers of tokens, one after the other, and then decode: the tail of each reaches back
 * into what they share. */
static void check_shared_beginning(struct session *s) {
    enum { ENDS = 3 };
    const int32_t tail = s->config->sliding_window, begin = s->tokens / 2 - 81, whole = s->tokens;
    const int32_t more[ENDS] = {1, tail / 2 + 1, tail + 3};
    struct outcome want[ENDS];
    struct sequence *beginning = NULL, *copies[ENDS];
    for (int i = 0; i < ENDS; i++) {
        struct sequence *alone = NULL;
        s->tokens = begin + more[i];
        REQUIRE(sequence_create(s->model, &alone));
        want[i] = finish(s, alone, 0, STEP_TOKENS, tail);
    }
    REQUIRE(sequence_create(s->model, &beginning));
    for (int32_t at = 0; at < begin; at += STEP_TOKENS) {
        struct span span = {.sequence = beginning,
            .ids = s->ids + at,
            .count = begin - at < STEP_TOKENS ? begin - at : STEP_TOKENS,
            .tail = tail};
        REQUIRE(model_step(s->model, &span, 1, NULL));
    }
    float *logits[ENDS];
    for (int i = 0; i < ENDS; i++) {
        logits[i] = malloc(logits_bytes(s));
        REQUIRE(sequence_fork(s->model, beginning, &copies[i]));
        struct span span = {.sequence = copies[i],
            .ids = s->ids + begin,
            .count = more[i],
            .tail = tail,
            .last = true,
            .logits = 1};
        REQUIRE(model_step(s->model, &span, 1, logits[i]));
    }
    sequence_free(s->model, beginning);
    int wrong = 0;
    for (int i = 0; i < ENDS; i++) {
        for (int32_t step = 0; step < DECODED; step++) {
            float *at = logits[i] + (int64_t)step * s->config->vocab_size;
            int32_t token = best(s, at);
            struct span span = {.sequence = copies[i], .ids = &token, .count = 1, .logits = 1};
            REQUIRE(model_step(s->model, &span, 1, at + s->config->vocab_size));
        }
        wrong += memcmp(want[i].logits, logits[i], logits_bytes(s)) != 0;
        sequence_free(s->model, copies[i]);
        free_outcome(&want[i]);
        free(logits[i]);
    }
    s->tokens = whole;
    check(s, wrong == 0, "copies of a shared beginning end apart, bit for bit", "tail");
}

/* ---- the program ---- */

static uint64_t random_next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* A prompt long enough that exact replay begins inside it, with an image in the middle where the model has any. */
static void make_prompt(struct session *s) {
    const struct model_config *c = s->config;
    uint64_t random = 7;
    s->tokens = c->num_hidden_layers * (c->sliding_window - 1) + 3 * c->sliding_window + 101;
    s->ids = malloc(sizeof *s->ids * (size_t)s->tokens);
    s->embeddings = malloc(sizeof(float) * (size_t)s->tokens * (size_t)c->hidden_size);
    for (int32_t t = 0; t < s->tokens; t++) {
        bool in_image = c->image_token_id >= 0 && t >= s->tokens / 2 && t < s->tokens / 2 + 9;
        do
            s->ids[t] =
                in_image ? c->image_token_id : (int32_t)(random_next(&random) % (uint64_t)c->vocab_size);
        while (!in_image && s->ids[t] == c->image_token_id);
    }
    for (int64_t i = 0; i < (int64_t)s->tokens * c->hidden_size; i++)
        s->embeddings[i] = (float)((double)random_next(&random) / 2147483648.0 - 0.5);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: golden-replay CHECKPOINT [INSTRUCTION_SET | cuda]\n");
        return 2;
    }
    struct session s = {0};
    struct rank_options options = {.threads = 1};
    REQUIRE(ranks_start(&options, &s.ranks));
    const char *set = argc > 2 ? argv[2] : NULL;
    const struct kernels *kernels = NULL;
    enum result found =
        set && !strcmp(set, "cuda") ? kernels_cuda_create(0, &kernels) : kernels_cpu_create(1, set, &kernels);
    if (found == ERROR_USAGE && set) {
        printf("skipped: %s\n", failure_message());
        ranks_stop(&s.ranks, OK);
        return SKIPPED;
    }
    REQUIRE(found);
    REQUIRE(checkpoint_open(argv[1], &s.checkpoint));
    s.config = checkpoint_config(s.checkpoint);
    make_prompt(&s);
    const struct model_options model = {.kernels = kernels,
        .supernode = s.ranks.supernode_group,
        .mode = MODE_ROUNDED,
        .step_tokens = STEP_TOKENS,
        .step_sequences = 8,
        .context = s.tokens + DECODED + 2,
        .kv_bytes = 64 << 20};
    REQUIRE(model_create(s.checkpoint, &model, &s.model));
    check_replay(&s, s.config->sliding_window, "tail");
    check_replay(&s, 0, "all layers");
    check_shared_beginning(&s);
    s.tokens--; /* of the other parity */
    check_replay(&s, s.config->sliding_window, "tail, one token less");
    model_free(s.model);
    checkpoint_close(s.checkpoint);
    kernels_free(kernels);
    free(s.ids);
    free(s.embeddings);
    int failures = s.failures;
    printf("%d failures\n", failures);
    ranks_stop(&s.ranks, OK);
    return failures ? 1 : 0;
}

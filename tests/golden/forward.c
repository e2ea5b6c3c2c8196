/* Compares the forward pass with goldens of the reference:
 *
 *     golden-forward CHECKPOINT GOLDEN.h5 [INSTRUCTION_SET | cuda [brief | replays | company]]
 *
 * brief: fewer of the passes that repeat others in smaller pieces, for backends that are slow here; replays, company: only what
 * concerns recorded steps, or sequences beside others.
 *
 * Under mpirun the experts are sharded over the ranks; all ranks run the same sequence and all compare.
 */
#include "base/log.h"
#include "cluster/ranks.h"
#include "model/internals.h"
#include "model/vision.h"
#include "require.h"

#include <hdf5.h>
#include <math.h>   /* sqrt, fabs */
#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc, exit */
#include <string.h> /* memcmp */

struct session {
    struct ranks ranks;
    struct checkpoint *checkpoint;
    const struct model_config *config;
    const struct kernels *kernels;
    hid_t golden;
    int32_t *ids;
    int32_t tokens;
    int failures;
    bool is_brief;
};

static void check(struct session *s, bool good, const char *what, double found, double limit) {
    if (!good)
        s->failures++;
    if (s->ranks.rank == 0 || !good)
        printf("%s %s: %.3g (limit %.3g)\n", good ? "ok  " : "FAIL", what, found, limit);
}

/* Reads a dataset as `type`; *count gets its number of elements. Ends the program when it is missing, unless optional. */
static void *read_dataset(struct session *s, const char *name, hid_t type, size_t bytes, int64_t *count) {
    hid_t set = H5Dopen2(s->golden, name, H5P_DEFAULT);
    if (set < 0) {
        fprintf(stderr, "the golden file has no %s\n", name);
        exit(1);
    }
    hid_t space = H5Dget_space(set);
    *count = H5Sget_simple_extent_npoints(space);
    void *data = malloc((size_t)*count * bytes + 1);
    if (!data || H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        exit(1);
    H5Sclose(space);
    H5Dclose(set);
    return data;
}

static float *read_floats(struct session *s, const char *name, int64_t *count) {
    return read_dataset(s, name, H5T_NATIVE_FLOAT, sizeof(float), count);
}

static int32_t *read_ints(struct session *s, const char *name, int64_t *count) {
    return read_dataset(s, name, H5T_NATIVE_INT32, sizeof(int32_t), count);
}

static bool has_dataset(struct session *s, const char *name) {
    return H5Lexists(s->golden, name, H5P_DEFAULT) > 0;
}

static struct model *open_model(struct session *s, enum numeric_mode mode) {
    struct model *model = NULL;
    struct model_options options = {.kernels = s->kernels,
        .supernode = s->ranks.supernode_group,
        .mode = mode,
        .step_tokens = 256,
        .step_sequences = 8,
        .context = s->config->max_position_embeddings,
        .kv_bytes = 64 << 20};
    REQUIRE(model_create(s->checkpoint, &options, &model));
    return model;
}

/* Runs ids[from..to) of a sequence; logits of the last `logits` tokens go to out. */
static void run(struct model *model, struct sequence *sequence, const int32_t *ids, int32_t count,
    int32_t tail, bool last, int32_t logits, float *out) {
    struct span span = {
        .sequence = sequence, .ids = ids, .count = count, .tail = tail, .last = last, .logits = logits};
    REQUIRE(model_step(model, &span, 1, out));
}

static double largest_difference(const float *a, const float *b, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        if (!(difference <= most))
            most = difference;
    }
    return most;
}

/* ---- whole passes, exact mode ---- */

/* Logits of all tokens, the prompt cut at `cuts`. */
static void run_cut(
    struct session *s, struct model *model, const int32_t *cuts, int64_t cut_count, float *logits) {
    struct sequence *sequence = NULL;
    REQUIRE(sequence_create(model, &sequence));
    int32_t from = 0;
    for (int64_t i = 0; i <= cut_count; i++) {
        int32_t to = i < cut_count ? cuts[i] : s->tokens;
        if (to > from)
            run(model, sequence, s->ids + from, to - from, 0, false, to - from,
                logits + (int64_t)from * s->config->vocab_size);
        from = to;
    }
    sequence_free(model, sequence);
}

static void run_tail(struct session *s, struct model *model, int32_t tail, const int32_t *cuts,
    int64_t cut_count, float *logits) {
    struct sequence *sequence = NULL;
    REQUIRE(sequence_create(model, &sequence));
    int32_t from = 0;
    for (int64_t i = 0; i <= cut_count; i++) {
        int32_t to = i < cut_count ? cuts[i] : s->tokens;
        bool last = to == s->tokens;
        if (to > from)
            run(model, sequence, s->ids + from, to - from, tail, last, last ? tail : 0, logits);
        from = to;
    }
    sequence_free(model, sequence);
}

static void check_forward(struct session *s, struct model *model) {
    int64_t count, cut_count;
    float *want = read_floats(s, "forward/exact/logits", &count);
    float *got = malloc(sizeof *got * (size_t)count), *again = malloc(sizeof *got * (size_t)count);
    run_cut(s, model, NULL, 0, got);
    double worst = largest_difference(got, want, count);
    check(s, worst <= 2e-3, "forward/exact logits", worst, 2e-3);
    int32_t *cuts = read_ints(s, "chunked/cuts", &cut_count);
    run_cut(s, model, cuts, cut_count, again);
    check(
        s, !memcmp(got, again, sizeof *got * (size_t)count), "cut where the golden is cut: bits equal", 0, 0);
    int32_t all[1024];
    for (int32_t step = s->is_brief ? 7 : 1; step <= 7; step += 2) {
        int32_t n = 0;
        for (int32_t at = step; at < s->tokens; at += step)
            all[n++] = at;
        memset(again, 0, sizeof *got * (size_t)count);
        run_cut(s, model, all, n, again);
        check(s, !memcmp(got, again, sizeof *got * (size_t)count), "cut every 1, 3, 5, 7 tokens: bits equal",
            step, 0);
    }
    free(want);
    free(got);
    free(again);
    free(cuts);
}

static void check_tail(struct session *s, struct model *model) {
    int64_t cut_count;
    int32_t *cuts = read_ints(s, "chunked/cuts", &cut_count);
    for (int32_t tail = s->config->sliding_window; tail <= (s->is_brief ? 1 : 2) * s->config->sliding_window;
         tail += s->config->sliding_window) {
        char name[64];
        int64_t count;
        snprintf(name, sizeof name, "tail/%03d/logits", tail);
        float *want = read_floats(s, name, &count);
        float *got = malloc(sizeof *got * (size_t)count), *again = malloc(sizeof *got * (size_t)count);
        run_tail(s, model, tail, NULL, 0, got);
        double worst = largest_difference(got, want, count);
        check(s, worst <= 2e-3, name, worst, 2e-3);
        int32_t edge = s->tokens - tail, one = s->tokens - 1, every[256], n = 0;
        for (int32_t at = 5; at < s->tokens; at += 5)
            every[n++] = at;
        const int32_t *lists[] = {cuts, &edge, &one, every};
        const int64_t counts[] = {cut_count, 1, 1, n};
        for (int i = 0; i < (s->is_brief ? 1 : 4); i++) {
            memset(again, 0, sizeof *got * (size_t)count);
            run_tail(s, model, tail, lists[i], counts[i], again);
            check(s, !memcmp(got, again, sizeof *got * (size_t)count), "tail, cut: bits equal", i, 0);
        }
        free(want);
        free(got);
        free(again);
    }
    free(cuts);
}

/* ---- images ---- */

/* The encoder's embeddings, and logits of a prompt with the image: bias_vl routing, Engram barriers, spans cut by chunks. */
static void check_image(struct session *s, struct model *model) {
    int64_t count, grid_count, tokens, embedding_count, logit_count;
    float *patches = read_floats(s, "image/patches", &count),
          *want = read_floats(s, "image/embeddings", &embedding_count);
    int32_t *grid = read_ints(s, "image/grid", &grid_count), *ids = read_ints(s, "image/ids", &tokens);
    float *logits = read_floats(s, "image/logits_exact", &logit_count);
    int32_t ratio = s->config->vision.downsample_ratio, hidden = s->config->hidden_size;
    int32_t high = vision_shrunk(grid[0], ratio), wide = vision_shrunk(grid[1], ratio);
    int32_t length = vision_span_tokens(&s->config->vision, grid[0], grid[1]);
    float *span = malloc(sizeof *span * (size_t)length * (size_t)hidden);
    struct vision *vision = NULL;
    REQUIRE(vision_create(s->checkpoint, s->kernels, &vision));
    REQUIRE(vision_encode(vision, patches, grid[0], grid[1], span));
    vision_free(vision);
    double worst = 0;
    for (int32_t y = 0; y < high; y++) {
        double row = largest_difference(span + (1 + (int64_t)y * (wide + 1)) * hidden,
            want + (int64_t)y * wide * hidden, (int64_t)wide * hidden);
        worst = row > worst ? row : worst;
    }
    check(s, worst <= 1e-3, "image embeddings", worst, 1e-3);

    float *got = malloc(sizeof *got * (size_t)logit_count),
          *first = malloc(sizeof *got * (size_t)logit_count);
    for (int32_t chunk = (int32_t)tokens; chunk >= (s->is_brief ? (int32_t)tokens / 3 : 3);
         chunk = chunk / 2 - 1) {
        struct sequence *sequence = NULL;
        REQUIRE(sequence_create(model, &sequence));
        const float *row = span;
        for (int32_t at = 0; at < tokens; at += chunk) {
            int32_t n = tokens - at < chunk ? (int32_t)tokens - at : chunk;
            struct span part = {
                .sequence = sequence, .ids = ids + at, .count = n, .logits = n, .embeddings = row};
            REQUIRE(model_step(model, &part, 1, got + (int64_t)at * s->config->vocab_size));
            for (int32_t t = at; t < at + n; t++)
                row += ids[t] == s->config->image_token_id ? hidden : 0;
        }
        sequence_free(model, sequence);
        worst = largest_difference(got, logits, logit_count);
        check(s, worst <= 1e-3, "logits of a prompt with an image", worst, 1e-3);
        if (chunk == tokens)
            memcpy(first, got, sizeof *got * (size_t)logit_count);
        check(s, !memcmp(first, got, sizeof *got * (size_t)logit_count), "image cut by chunks: bits equal",
            chunk, 0);
    }
    free(patches);
    free(want);
    free(grid);
    free(ids);
    free(logits);
    free(span);
    free(got);
    free(first);
}

/* ---- layer by layer on true inputs ---- */

/* Between calls of the trace the stream is the test's own. */
static void put_device(const struct model *model, float *device, const float *host, int64_t count) {
    model->kernels->copy_in(model->lane->stream, device, host, sizeof *host * (size_t)count);
    REQUIRE(model->kernels->synchronize(model->lane->stream));
}

static float *get_device(const struct model *model, const float *device, int64_t count) {
    float *host = malloc(sizeof *host * (size_t)count + 1);
    if (!host)
        exit(1);
    model->kernels->copy_out(model->lane->stream, host, device, sizeof *host * (size_t)count);
    REQUIRE(model->kernels->synchronize(model->lane->stream));
    return host;
}

struct layer_check {
    struct session *s;
    const struct model *model;
    const char *mode;
    double per_token_limit;
    int64_t tokens, within, above;
    double worst, least_share;
    float *engram_want; /* expected after the Engram addition of the layer that runs */
};

static double relative_error(const float *got, const float *want, int64_t count) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    double error = sqrt(difference / (norm > 0 ? norm : 1));
    return error == error ? error : INFINITY;
}

/* device, want [tokens, columns] */
static void compare_tokens(const struct model *model, struct layer_check *check, const float *device,
    const float *want, int32_t tokens, int64_t columns) {
    int64_t within = 0;
    float *got = get_device(model, device, tokens * columns);
    for (int32_t t = 0; t < tokens; t++) {
        double error = relative_error(got + t * columns, want + t * columns, columns);
        if (error > check->worst)
            check->worst = error;
        within += error <= check->per_token_limit;
    }
    check->tokens += tokens;
    check->within += within;
    double share = (double)within / tokens;
    if (share < check->least_share)
        check->least_share = share;
    free(got);
}

static float *read_layer(struct layer_check *check, const char *group, int32_t layer, const char *what) {
    char name[96];
    int64_t count;
    snprintf(name, sizeof name, "%s/%s/%02d/%s", group, check->mode, layer, what);
    return read_floats(check->s, name, &count);
}

static enum result on_layer(
    void *context, enum trace_point point, int32_t layer, const struct token_set *set) {
    struct layer_check *layers = context;
    const struct model_config *c = layers->s->config;
    const struct model *model = layers->model;
    int64_t columns = (int64_t)c->hc_mult * c->hidden_size;
    if (point == TRACE_ENGRAM_IN) {
        float *in = read_layer(layers, "engram", layer, "streams_in");
        put_device(model, set->streams, in, set->tokens * columns);
        layers->engram_want = read_layer(layers, "engram", layer, "streams_out");
        free(in);
        return OK;
    }
    if (point == TRACE_LAYER_IN) {
        if (layers->engram_want) {
            struct layer_check engram = {.per_token_limit = 1e-4, .least_share = 1};
            compare_tokens(model, &engram, set->streams, layers->engram_want, set->tokens, columns);
            char what[64];
            snprintf(what, sizeof what, "engram/%s/%02d: worst token", layers->mode, layer);
            /* One flipped rounding of an input moves a token by more than products' noise. */
            double limit = !strcmp(layers->mode, "exact") ? 1e-4 : 0.1;
            check(layers->s, engram.worst <= limit, what, engram.worst, limit);
            free(layers->engram_want);
            layers->engram_want = NULL;
        }
        float *in = read_layer(layers, "layer_in", layer, "streams_in"),
              *pre = read_layer(layers, "layer_in", layer, "pre_in");
        put_device(model, set->streams, in, set->tokens * columns);
        put_device(model, set->pre, pre, (int64_t)set->tokens * c->hc_mult);
        free(in);
        free(pre);
        return OK;
    }
    float *out = read_layer(layers, "layer_in", layer, "streams_out"),
          *pre = read_layer(layers, "layer_in", layer, "pre_out");
    compare_tokens(model, layers, set->streams, out, set->tokens, columns);
    struct layer_check mix = {.per_token_limit = layers->per_token_limit, .least_share = 1};
    compare_tokens(model, &mix, set->pre, pre, set->tokens, c->hc_mult);
    char what[64];
    snprintf(what, sizeof what, "layer_in/%s/%02d pre: share of tokens", layers->mode, layer);
    double limit = !strcmp(layers->mode, "exact") ? 1 : 0.85;
    check(layers->s, mix.least_share >= limit, what, mix.least_share, limit);
    free(out);
    free(pre);
    return OK;
}

static void check_layers(struct session *s, struct model *model, const char *mode) {
    bool exact = !strcmp(mode, "exact");
    struct layer_check layers = {
        .s = s, .model = model, .mode = mode, .per_token_limit = exact ? 1e-4 : 1e-3, .least_share = 1};
    struct sequence *sequence = NULL;
    REQUIRE(sequence_create(model, &sequence));
    model->trace = on_layer;
    model->trace_context = &layers;
    run(model, sequence, s->ids, s->tokens, 0, false, 0, NULL);
    model->trace = NULL;
    sequence_free(model, sequence);
    double share = (double)layers.within / (double)layers.tokens;
    if (exact) {
        check(s, layers.worst <= 1e-4, "layer_in/exact: worst token", layers.worst, 1e-4);
        return;
    }
    check(s, share >= 0.98, "layer_in/rounded: share of all tokens within 1e-3", share, 0.98);
    check(
        s, layers.least_share >= 0.85, "layer_in/rounded: least share of a layer", layers.least_share, 0.85);
    check(s, layers.worst <= 0.1, "layer_in/rounded: worst token", layers.worst, 0.1);
}

/* ---- copies, saved states, company ---- */

/* Decodes a few tokens greedily from `sequence`, which it frees; logits of every step go to out. */
static void continue_greedily(struct session *s, struct model *model, struct sequence *sequence,
    int32_t token, int32_t steps, float *out) {
    for (int32_t i = 0; i < steps; i++) {
        float *logits = out + (int64_t)i * s->config->vocab_size;
        run(model, sequence, &token, 1, 0, false, 1, logits);
        token = 0;
        for (int32_t v = 1; v < s->config->vocab_size; v++)
            if (logits[v] > logits[token])
                token = v;
    }
    sequence_free(model, sequence);
}

/* A state copied or saved and loaded at any token goes on exactly as the original. */
static void check_copies(struct session *s, struct model *model, int32_t tail) {
    enum { STEPS = 6 };
    size_t bytes = sizeof(float) * STEPS * (size_t)s->config->vocab_size;
    float *want = malloc(bytes), *got = malloc(bytes),
          *last = malloc(sizeof(float) * (size_t)s->config->vocab_size);
    bool fork_equal = true, load_equal = true;
    for (int32_t at = s->is_brief ? s->tokens / 2 : 1; at < s->tokens;
         at += s->is_brief ? s->tokens : 1 + at / 5) {
        /* The prompt is s->tokens long; its state is copied after `at` of them. */
        struct sequence *original = NULL, *fork = NULL, *loaded = NULL;
        struct saved_state saved;
        REQUIRE(sequence_create(model, &original));
        run(model, original, s->ids, at, tail, false, 0, NULL);
        REQUIRE(sequence_fork(model, original, &fork));
        REQUIRE(sequence_save(model, original, &saved));
        REQUIRE(sequence_load(model, saved.tokens, saved.sections, &loaded));
        sequence_saved_free(&saved);
        struct sequence *all[] = {original, fork, loaded};
        for (int i = 0; i < 3; i++) {
            run(model, all[i], s->ids + at, s->tokens - at, tail, true, 1, last);
            continue_greedily(s, model, all[i], s->ids[0], STEPS, i ? got : want);
            if (i && memcmp(want, got, bytes) != 0)
                *(i == 1 ? &fork_equal : &load_equal) = false;
        }
    }
    check(s, fork_equal,
        tail ? "copies of an unfinished prompt with a tail go on bit for bit" : "copies go on bit for bit", 0,
        0);
    check(s, load_equal,
        tail ? "saved states of a prompt with a tail go on bit for bit" : "saved states go on bit for bit", 0,
        0);
    check(s, model->pool->unused == model->pool->total, "all blocks come back",
        model->pool->total - model->pool->unused, 0);
    free(want);
    free(got);
    free(last);
}

static enum result see_nothing(
    void *context, enum trace_point point, int32_t layer, const struct token_set *set) {
    (void)context, (void)point, (void)layer, (void)set;
    return OK;
}

/* Decodes steps of one token, on odd ranks of two sequences; in the middle rank 0 puts a step of two tokens in, which no rank may replay. */
static void step_apart(struct session *s, struct model *model, int32_t steps, float *out) {
    enum { MOST = 2 };
    const int32_t count = 1 + s->ranks.rank % 2;
    struct sequence *sequences[MOST] = {0};
    for (int32_t i = 0; i < count; i++) {
        REQUIRE(sequence_create(model, &sequences[i]));
        run(model, sequences[i], s->ids + i, s->tokens / 2 - 3 * i, 0, false, 0, NULL);
    }
    if (count < MOST) /* the other ranks' second prompt */
        REQUIRE(model_step(model, NULL, 0, NULL));
    for (int32_t step = 0; step < steps; step++) {
        struct span spans[MOST];
        for (int32_t i = 0; i < count; i++)
            spans[i] = (struct span){.sequence = sequences[i],
                .ids = s->ids + 2 * step + i,
                .count = s->ranks.rank == 0 && step == steps / 2 ? 2 : 1,
                .logits = 1};
        REQUIRE(model_step(model, spans, count, out + (int64_t)step * MOST * s->config->vocab_size));
    }
    for (int32_t i = 0; i < count; i++)
        sequence_free(model, sequences[i]);
}

/* Steps that devices recorded and replay give the bits of those that they run piece by piece, as a traced step is. */
static void check_replays(struct session *s, struct model *model) {
    enum { STEPS = 12 };
    if (!model->kernels->record_begin)
        return;
    size_t bytes = sizeof(float) * 2 * STEPS * (size_t)s->config->vocab_size;
    float *logits[2] = {calloc(1, bytes), calloc(1, bytes)};
    const int64_t before = model->lanes[0].replays;
    for (int i = 0; i < 2; i++) {
        model->trace = i ? see_nothing : NULL;
        step_apart(s, model, STEPS, logits[i]);
        model->trace = NULL;
    }
    const int64_t replays = model->lanes[0].replays - before;
    check(s, replays > 0 && replays < STEPS - 2, "steps that were replayed", (double)replays, STEPS);
    check(s, !memcmp(logits[0], logits[1], bytes), "replayed steps: bits equal", 0, 0);
    free(logits[0]);
    free(logits[1]);
}

/* Several sequences of other lengths in one step change no bit of any. */
static void check_company(struct session *s, struct model *model) {
    enum { MOST = 5 };
    int32_t vocab = s->config->vocab_size;
    float *alone = malloc(sizeof(float) * MOST * (size_t)vocab),
          *together = malloc(sizeof(float) * MOST * (size_t)vocab);
    const int32_t lengths[MOST] = {1, 17, 30, 2, 43};
    struct sequence *sequences[MOST];
    struct span spans[MOST];
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < MOST; i++) {
            REQUIRE(sequence_create(model, &sequences[i]));
            spans[i] = (struct span){
                .sequence = sequences[i], .ids = s->ids + 3 * i, .count = lengths[i], .logits = 1};
            if (i % 2) {
                spans[i].tail = s->config->sliding_window;
                spans[i].last = true;
            }
            if (pass == 0)
                REQUIRE(model_step(model, &spans[i], 1, alone + (int64_t)i * vocab));
        }
        if (pass == 1)
            REQUIRE(model_step(model, spans, MOST, together));
        for (int i = 0; i < MOST; i++)
            sequence_free(model, sequences[i]);
    }
    check(s, !memcmp(alone, together, sizeof(float) * MOST * (size_t)vocab),
        "alone and in company: bits equal", 0, 0);
    free(alone);
    free(together);
}

/* The copies that device memory of its own needs change no bit. */
static void check_staging(struct session *s, struct model *model) {
    size_t bytes = sizeof(float) * (size_t)s->config->vocab_size;
    float *want = malloc(bytes), *got = malloc(bytes);
    const struct kernels *shared = s->kernels;
    struct kernels apart = *shared;
    apart.shares_host_memory = false;
    s->kernels = &apart;
    struct model *staged = open_model(s, MODE_ROUNDED);
    s->kernels = shared;
    for (int i = 0; i < 2; i++) {
        struct model *runner = i ? staged : model;
        struct sequence *sequence = NULL;
        REQUIRE(sequence_create(runner, &sequence));
        run(runner, sequence, s->ids, s->tokens - 1, 0, false, 0, NULL);
        run(runner, sequence, s->ids + s->tokens - 1, 1, 0, false, 1, i ? got : want);
        sequence_free(runner, sequence);
    }
    model_free(staged);
    check(s, !memcmp(want, got, bytes), "with and without copies to the device: bits equal", 0, 0);
    free(want);
    free(got);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: golden-forward CHECKPOINT GOLDEN.h5 [INSTRUCTION_SET | cuda [brief | replays "
                        "| company]]\n");
        return 2;
    }
    struct session s = {.is_brief = argc > 4 && !strcmp(argv[4], "brief")};
    struct rank_options options = {.threads = 1};
    REQUIRE(ranks_start(&options, &s.ranks));
    const char *set = argc > 3 ? argv[3] : NULL;
    enum result found = set && !strcmp(set, "cuda") ? kernels_cuda_create(0, &s.kernels)
                                                    : kernels_cpu_create(1, set, &s.kernels);
    if (found == ERROR_USAGE && argc > 3) {
        printf("skipped: %s\n", failure_message());
        ranks_stop(&s.ranks, OK);
        return SKIPPED;
    }
    REQUIRE(found);
    REQUIRE(checkpoint_open(argv[1], &s.checkpoint));
    s.config = checkpoint_config(s.checkpoint);
    s.golden = H5Fopen(argv[2], H5F_ACC_RDONLY, H5P_DEFAULT);
    if (s.golden < 0)
        return 1;
    int64_t count;
    s.ids = read_ints(&s, "ids", &count);
    s.tokens = (int32_t)count;

    struct model *exact = open_model(&s, MODE_EXACT), *rounded = open_model(&s, MODE_ROUNDED);
    if (argc > 4 && !strcmp(argv[4], "company")) {
        check_company(&s, rounded);
        goto done;
    }
    check_replays(&s, rounded);
    if (argc > 4 && !strcmp(argv[4], "replays"))
        goto done;
    check_forward(&s, exact);
    if (has_dataset(&s, "tail"))
        check_tail(&s, exact);
    check_image(&s, exact);
    check_layers(&s, exact, "exact");
    check_layers(&s, rounded, "rounded");
    check_copies(&s, rounded, 0);
    check_copies(&s, rounded, s.config->sliding_window);
    check_company(&s, rounded);
    if (s.kernels->shares_host_memory)
        check_staging(&s, rounded);
done:
    model_free(exact);
    model_free(rounded);
    checkpoint_close(s.checkpoint);
    kernels_free(s.kernels);
    H5Fclose(s.golden);
    free(s.ids);
    printf("%d failures\n", s.failures);
    int failures = s.failures;
    ranks_stop(&s.ranks, OK);
    return failures ? 1 : 0;
}

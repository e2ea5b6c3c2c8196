/* prefill, decode and run: from a campaign's requests, and the embeddings of their images, over ranks, to states and
 * results.
 *
 * Rank 0 takes the campaign's lock, sweeps and reads what is done; all ranks then read requests and states
 * and write parts of their own. Each stage that may fail on one rank alone is agreed by all, so that nobody
 * waits for a rank that has gone. */
#include "campaign/phases.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "campaign/campaign.h"
#include "campaign/embeddings.h"
#include "campaign/files.h" /* struct vector */
#include "campaign/launch.h"
#include "campaign/metrics.h"
#include "campaign/phase_cache.h"
#include "campaign/phase_plan.h"
#include "campaign/phase_start.h"
#include "campaign/phase_times.h"
#include "campaign/progress.h"
#include "campaign/requests.h"
#include "campaign/results.h"
#include "campaign/states.h"
#include "campaign/walltime.h"
#include "cluster/collectives.h"
#include "model/sequence.h"
#include "schedule/engine.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, realpath */
#include <string.h> /* memset */

enum {
    IDENTITY_VERSION = 1, /* of everything that tokens depend on and the other words do not say */
    DEFAULT_BATCH = 64,
    DEFAULT_STEP_TOKENS = 512,
    DEFAULT_PART_SECONDS = 30,
    DEFAULT_GRACE = 60,          /* seconds */
    PART_BYTES = 128 << 20,      /* a part is written when it holds this much */
    KEPT_SPAN_BYTES = 256 << 20, /* most memory of embeddings that further requests may need */
};

struct phase_options {
    const char *campaign, *model, *trace, *until, *prometheus;
    int64_t batch, step_tokens, part_seconds, grace;
    bool all_layers, no_sharing, restart;
    struct launch_options launch;
    struct phase_cache_options cache;
};

struct phase {
    enum engine_phase kind;
    const char *name;
    const struct phase_options *options;
    struct launch launch;
    struct campaign *campaign;
    struct requests *requests;
    struct states *states;
    struct embeddings *embeddings; /* NULL: no images, or not needed */
    struct results_writer *results_writer;
    struct states_writer *states_writer;
    char identity[IDENTITY_BYTES];
    struct buffer settings;
    char *model_folder;                                   /* absolute */
    struct vector lists;                                  /* memory of the next four */
    uint8_t *has_result, *has_state, *lacks_image, *todo; /* [total] */
    int64_t total, done_before, todo_count, without_state, without_image;
    int64_t answered, generated_tokens; /* by earlier launches: the first rank's count */
    struct phase_plan plan;
    int64_t lost_states;                /* of this rank: found damaged when they were read */
    double results_since, states_since; /* when the oldest pending record came; 0: none is pending */
    double end;                         /* of the allocation, in Unix seconds; 0: none is known */
    struct engine_stop stop;
    struct phase_cache cache;
    struct phase_progress progress;
    struct metrics *metrics;
    struct phase_times times;
};

/* ---- source and sink of the engine ---- */

static enum result source_next(void *context, struct engine_work *work) {
    struct phase *phase = context;
    for (phase_plan_next(&phase->plan, work); work->index >= 0; phase_plan_next(&phase->plan, work)) {
        int64_t index = work->index;
        if (phase->states && states_has(phase->states, index)) {
            enum result status = states_read(phase->states, index, &work->state);
            if (status == ERROR_INPUT && phase->kind == ENGINE_RUN) {
                log_warning(
                    "%s: request %lld begins again from its prompt", failure_message(), (long long)index);
                return requests_read(phase->requests, index, &work->request);
            }
            if (status == ERROR_INPUT) {
                log_warning(
                    "%s: request %lld is left for a later prefill", failure_message(), (long long)index);
                phase->lost_states++;
                continue;
            }
            TRY(status);
        }
        return requests_read(phase->requests, index, &work->request);
    }
    return OK;
}

static int64_t source_left(void *context) {
    const struct phase *phase = context;
    return phase_plan_left(&phase->plan);
}

static enum result source_balance(void *context, bool is_hungry, double busy, int64_t *moved) {
    struct phase *phase = context;
    return phase_plan_balance(&phase->plan, is_hungry, busy, moved);
}

/* Whether as many positions have the image token's id as the images have tokens. */
static bool spans_agree(const struct phase *phase, const struct request *request) {
    int32_t id = checkpoint_config(phase->launch.checkpoint)->image_token_id, positions = 0;
    int64_t tokens = 0;
    for (int32_t t = 0; t < request->token_count; t++)
        positions += request->token_ids[t] == id;
    for (int32_t i = 0; i < request->image_count; i++)
        tokens += embeddings_tokens(phase->embeddings, request->images[i].image);
    return positions == request->image_tokens && tokens == request->image_tokens;
}

static enum result source_embeddings(void *context, const struct request *request, float **rows) {
    struct phase *phase = context;
    size_t hidden = (size_t)checkpoint_config(phase->launch.checkpoint)->hidden_size;
    *rows = NULL;
    if (!request->image_count)
        return OK;
    if (!spans_agree(phase, request))
        return fail(ERROR_INPUT,
            "%s: the images of the request on line %lld and their embeddings differ in length: run 'nocturne "
            "vision --restart'",
            phase->options->campaign, (long long)request->line);
    float *made = malloc((size_t)request->image_tokens * hidden * sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for %d embeddings", request->image_tokens);
    float *at = made;
    enum result status = OK;
    for (int32_t i = 0; i < request->image_count && status == OK; i++) {
        int64_t image = request->images[i].image;
        status = embeddings_read(phase->embeddings, image, at);
        at += (size_t)embeddings_tokens(phase->embeddings, image) * hidden;
    }
    if (status != OK)
        free(made);
    else
        *rows = made;
    return status;
}

static enum result source_image(void *context, int64_t image, uint8_t identity[CACHE_KEY_BYTES]) {
    struct phase *phase = context;
    return phase_cache_image(phase->requests, image, identity);
}

static void source_release(void *context, struct request *request, struct state_record *state) {
    (void)context;
    requests_release(request);
    if (state)
        states_release(state);
}

static enum result sink_result(void *context, const struct request_result *result) {
    struct phase *phase = context;
    if (phase->results_since == 0)
        phase->results_since = monotonic_seconds();
    return results_writer_add(phase->results_writer, result);
}

static enum result flush_results(struct phase *phase) {
    phase->results_since = 0;
    return results_writer_flush(phase->results_writer);
}

static enum result flush_states(struct phase *phase) {
    phase->states_since = 0;
    return states_writer_flush(phase->states_writer);
}

static enum result sink_state(void *context, const struct state_record *state) {
    struct phase *phase = context;
    if (phase->kind != ENGINE_PREFILL && phase->results_since > 0)
        TRY(flush_results(
            phase)); /* a stop: what is finished goes first, for the next signal may be a kill */
    if (phase->states_since == 0)
        phase->states_since = monotonic_seconds();
    TRY(states_writer_add(phase->states_writer, state));
    return states_writer_pending_bytes(phase->states_writer) >= PART_BYTES ? flush_states(phase) : OK;
}

static bool is_old(const struct phase *phase, double since) {
    return since > 0 && monotonic_seconds() - since >= (double)phase->options->part_seconds;
}

static enum result sink_step_end(void *context, const struct engine_counts *world) {
    struct phase *phase = context;
    if (is_old(phase, phase->results_since) ||
        results_writer_pending_bytes(phase->results_writer) >= PART_BYTES)
        TRY(flush_results(phase));
    if (is_old(phase, phase->states_since))
        TRY(flush_states(phase));
    if (phase->launch.ranks.rank == 0)
        progress_update(&phase->progress, world);
    phase_plan_step(&phase->plan, world);
    metrics_step(phase->metrics, world);
    return OK;
}

/* ---- opening the campaign ---- */

static bool is_first(const struct phase *phase) {
    return phase->launch.ranks.rank == 0;
}

static enum result agree(struct phase *phase, enum result own) {
    return ranks_agree(phase->launch.ranks.world, own);
}

/* All that tokens depend on, as words. */
static void make_identity(struct phase *phase) {
    char tail[32] = "all-layers";
    if (!phase->options->all_layers)
        snprintf(tail, sizeof tail, "%d", checkpoint_config(phase->launch.checkpoint)->sliding_window);
    snprintf(phase->identity, sizeof phase->identity,
        "version=%d requests=%s fingerprint=%s backend=%s/%s mode=rounded tail=%s", IDENTITY_VERSION,
        requests_identity(phase->requests), checkpoint_fingerprint(phase->launch.checkpoint),
        phase->launch.kernels->name, phase->launch.kernels->instruction_set, tail);
    size_t used = strlen(phase->identity);
    if (phase->options->cache.bounded)
        snprintf(phase->identity + used, sizeof phase->identity - used, " replay=%d",
            phase->options->cache.bounded);
}

/* The options in effect, as a line of JSON. */
static void make_settings(struct phase *phase, const struct model_options *model) {
    const struct phase_options *o = phase->options;
    struct buffer *line = &phase->settings;
    buffer_printf(line, "{\"batch\": %lld, \"step_tokens\": %d, \"step_sequences\": %d, \"all_layers\": %s, ",
        (long long)o->batch, model->step_tokens, model->step_sequences, o->all_layers ? "true" : "false");
    buffer_printf(line, "\"kv_memory\": %lld, \"threads\": %d, \"part_seconds\": %lld, \"kernels\": ",
        (long long)model->kv_bytes, phase->launch.ranks.threads, (long long)o->part_seconds);
    buffer_append_json_string(
        line, phase->launch.kernels->instruction_set, strlen(phase->launch.kernels->instruction_set));
    buffer_append_text(line, "}");
}

/* Whether prompts are run, and some show images. */
static bool needs_embeddings(const struct phase *phase) {
    return phase->kind != ENGINE_DECODE && requests_image_count(phase->requests) > 0;
}

/* Embeddings are this phase's input: --restart drops them only when they can't be used. */
static enum result sweep_embeddings(struct phase *phase) {
    char identity[IDENTITY_BYTES];
    vision_identity(&phase->launch, phase->requests, identity);
    enum result status = campaign_sweep(phase->campaign, "vision", identity, false);
    if (status == ERROR_CONFLICT && phase->options->restart)
        status = campaign_sweep(phase->campaign, "vision", identity, true);
    return status;
}

/* decode leaves the states alone: they are its input. */
static enum result sweep(struct phase *phase) {
    bool restart = phase->options->restart;
    if (needs_embeddings(phase))
        TRY(sweep_embeddings(phase));
    TRY(campaign_sweep(phase->campaign, "prefill", phase->identity, restart && phase->kind != ENGINE_DECODE));
    return campaign_sweep(phase->campaign, "results", phase->identity, restart);
}

static enum result read_done(struct phase *phase) {
    int64_t count;
    TRY(campaign_done(phase->campaign, "results", phase->total, phase->has_result, &phase->answered,
        &phase->generated_tokens));
    return campaign_done(phase->campaign, "prefill", phase->total, phase->has_state, &count, NULL);
}

static enum result allocate_lists(struct phase *phase) {
    size_t size = (size_t)phase->total + 1;
    TRY(vector_reserve(&phase->lists, 4 * size));
    memset(phase->lists.data, 0, 4 * size);
    phase->has_result = phase->lists.data;
    phase->has_state = phase->has_result + size;
    phase->lacks_image = phase->has_state + size;
    phase->todo = phase->lacks_image + size;
    return OK;
}

static enum result open_embeddings(struct phase *phase) {
    if (!needs_embeddings(phase))
        return OK;
    return embeddings_open(phase->options->campaign, requests_image_count(phase->requests),
        checkpoint_config(phase->launch.checkpoint)->hidden_size, KEPT_SPAN_BYTES, &phase->embeddings);
}

/* Which requests show an image that was not encoded yet. */
static enum result find_lacking_images(struct phase *phase) {
    for (int64_t i = 0; phase->embeddings && i < phase->total; i++) {
        const int64_t *images;
        size_t count;
        TRY(requests_read_images(phase->requests, i, &images, &count));
        for (size_t k = 0; k < count; k++)
            phase->lacks_image[i] |= !embeddings_has(phase->embeddings, images[k]);
    }
    return OK;
}

/* What is left to do: prefill makes missing states, decode takes those that are there, run goes from the
 * prompts. Requests whose images have no embeddings yet are left out. */
static void choose_requests(struct phase *phase) {
    for (int64_t i = 0; i < phase->total; i++) {
        bool done = phase->has_result[i] || (phase->kind == ENGINE_PREFILL && phase->has_state[i]);
        phase->done_before += done;
        bool lacks_state = phase->kind == ENGINE_DECODE && !done && !phase->has_state[i];
        phase->without_state += lacks_state;
        bool lacks_image = !done && !phase->has_state[i] && phase->lacks_image[i];
        phase->without_image += lacks_image;
        phase->todo[i] = !done && !lacks_state && !lacks_image;
        phase->todo_count += phase->todo[i];
    }
}

static enum result find_work(struct phase *phase) {
    struct group *world = phase->launch.ranks.world;
    TRY(agree(phase, is_first(phase) ? sweep(phase) : OK));
    TRY(agree(phase, allocate_lists(phase)));
    TRY(agree(phase, is_first(phase) ? read_done(phase) : OK));
    TRY(agree(phase, open_embeddings(phase)));
    TRY(agree(phase, is_first(phase) ? find_lacking_images(phase) : OK));
    if (phase->total > 0) {
        TRY(group_broadcast(
            world, "start: requests with results", 0, phase->has_result, (size_t)phase->total));
        TRY(group_broadcast(world, "start: requests with states", 0, phase->has_state, (size_t)phase->total));
        TRY(group_broadcast(
            world, "start: requests without embeddings", 0, phase->lacks_image, (size_t)phase->total));
    }
    choose_requests(phase);
    return OK;
}

/* ---- writers ---- */

static enum result open_files(struct phase *phase) {
    const struct phase_options *o = phase->options;
    const struct provenance provenance = {
        .command = phase->name,
        .model_folder = phase->model_folder,
        .fingerprint = checkpoint_fingerprint(phase->launch.checkpoint),
        .identity = phase->identity,
        .settings = phase->settings.data,
        .ranks = phase->launch.ranks.count,
        .supernode = phase->launch.ranks.count / phase->launch.ranks.supernodes,
    };
    const struct metrics_launch metrics = {
        .campaign_folder = o->campaign,
        .requests = requests_identity(phase->requests),
        .provenance = &provenance,
        .ranks = &phase->launch.ranks,
        .model = phase->launch.model,
        .interval = (double)o->part_seconds,
        .total = phase->total,
        .done_before = phase->done_before,
    };
    TRY(metrics_create(&metrics, &phase->metrics));
    int32_t section_count, rank = phase->launch.ranks.rank;
    const struct state_section *sections = model_state_sections(phase->launch.model, &section_count);
    TRY(results_writer_create(o->campaign, rank, &provenance, &phase->results_writer));
    TRY(states_writer_create(o->campaign, rank, &provenance, sections, section_count, &phase->states_writer));
    if (phase->kind != ENGINE_PREFILL)
        TRY(states_open(o->campaign, phase->total, sections, section_count, &phase->states));
    return OK;
}

/* After a failure elsewhere: this rank's finished work is kept if that is possible, the first message
 * stays. */
static void flush_quietly(struct phase *phase) {
    char message[4096];
    snprintf(message, sizeof message, "%s", failure_message());
    enum result status = phase->results_writer ? flush_results(phase) : OK;
    if (status == OK && phase->states_writer)
        status = flush_states(phase);
    if (status != OK)
        log_verbose("finished work could not be kept: %s", failure_message());
    (void)fail(ERROR_INTERNAL, "%s", message); /* only puts the message back */
}

static enum result flush_all(struct phase *phase) {
    enum work_part before = stopwatch_switch(WORK_FILES);
    enum result status = flush_results(phase);
    if (status == OK && phase->states_writer)
        status = flush_states(phase);
    (void)stopwatch_switch(before);
    return status;
}

/* ---- a phase ---- */

static enum result create_model(struct phase *phase) {
    const struct phase_options *o = phase->options;
    int64_t sequences = o->batch;
    if (phase->kind != ENGINE_DECODE) /* prompts share a step with decoding sequences, or with each other */
        sequences += DEFAULT_BATCH;
    if (sequences > o->step_tokens)
        sequences = o->step_tokens;
    struct model_options model = {
        .mode = MODE_ROUNDED,
        .step_tokens = (int32_t)o->step_tokens,
        .step_sequences = (int32_t)sequences,
    };
    TRY(launch_model(&phase->launch, &o->launch, &model));
    make_settings(phase, model_options(phase->launch.model));
    return launch_describe(&phase->launch);
}

static void announce(struct phase *phase) {
    progress_begin(&phase->progress, phase->campaign, phase->name, phase->total, phase->done_before,
        phase->launch.ranks.count, phase->options->launch.quiet);
    phase->progress.prometheus = phase->options->prometheus;
    phase->progress.end = phase->end;
    progress_update(&phase->progress, &(struct engine_counts){0});
    log_info("%s: %lld requests, %lld done before, %lld to do", phase->name, (long long)phase->total,
        (long long)phase->done_before, (long long)phase->todo_count);
}

/* When the run must stop by itself. Rank 0's clock and environment count for all. */
static enum result find_end(struct phase *phase) {
    double now = wall_clock();
    int64_t end[1] = {0};
    enum result status = is_first(phase) ? walltime_end(phase->options->until, now, &phase->end) : OK;
    TRY(agree(phase, status));
    end[0] = (int64_t)phase->end;
    TRY(group_broadcast(phase->launch.ranks.world, "start: end of the allocation", 0, end, sizeof end));
    phase->end = (double)end[0];
    if (is_first(phase) && phase->end > 0)
        log_info("%s: the allocation ends in %.0f s; work stops %lld s before", phase->name, phase->end - now,
            (long long)phase->options->grace);
    return OK;
}

static enum result make_plan(struct phase *phase) {
    const struct phase_work work = {
        .kind = phase->kind,
        .requests = phase->requests,
        .todo = phase->todo,
        .has_state = phase->has_state,
        .todo_count = phase->todo_count,
        .answered = phase->answered,
        .generated_tokens = phase->generated_tokens,
        .cache = &phase->cache,
        .model = phase->launch.model,
        .replay = {.tail = phase->options->all_layers
                               ? 0
                               : checkpoint_config(phase->launch.checkpoint)->sliding_window,
            .bounded = phase->options->cache.bounded},
    };
    return phase_plan_make(&phase->plan, &phase->launch.ranks, &work);
}

static enum result run_engine(struct phase *phase, struct engine_counts *world) {
    const struct engine_options engine = {
        .phase = phase->kind,
        .ranks = &phase->launch.ranks,
        .model = phase->launch.model,
        .tokenizer = phase->launch.tokenizer,
        .campaign_seed = requests_seed(phase->requests),
        .batch = (int32_t)phase->options->batch,
        .step_tokens = (int32_t)phase->options->step_tokens,
        .all_layers = phase->options->all_layers,
        .no_sharing = phase->options->no_sharing,
        .cache = phase->cache.cache,
        .space = &phase->cache.space,
        .bounded_replay = phase->options->cache.bounded,
        .stop_at = phase->end > 0 ? phase->end - (double)phase->options->grace : 0,
        .grace = (double)phase->options->grace,
    };
    const struct engine_source source = {.context = phase,
        .next = source_next,
        .left = source_left,
        .balance = source_balance,
        .embeddings = source_embeddings,
        .image_identity = source_image,
        .release = source_release};
    const struct engine_sink sink = {phase, sink_result, sink_state, sink_step_end};
    return engine_run(&engine, &source, &sink, world, &phase->stop);
}

/* The same end on all ranks. */
static enum result conclude(struct phase *phase) {
    const char *signal = *signals_name() ? signals_name() : "a signal on another rank";
    int64_t sums[2] = {phase->lost_states, signals_stop_requested()};
    TRY(group_sum(phase->launch.ranks.world, "end: lost states", sums, 2));
    const int64_t lost = sums[0], signalled = sums[1];
    enum result status = OK;
    if (phase->stop.stopped)
        status = fail(ERROR_STOPPED,
            "%s: stopped by %s; all finished work and the states of %lld requests that were decoding are "
            "kept, and the same "
            "command goes on from here",
            phase->name, !signalled && phase->end > 0 ? "the end of the allocation" : signal,
            (long long)phase->stop.saved);
    else if (phase->without_state + lost > 0)
        status = fail(ERROR_INPUT,
            "%s: %lld of %lld requests have neither a result nor a usable state in prefill/: run "
            "'nocturne prefill --campaign %s' to make the missing states, then decode again",
            phase->options->campaign, (long long)(phase->without_state + lost), (long long)phase->total,
            phase->options->campaign);
    else if (phase->without_image > 0)
        status = fail(ERROR_INPUT,
            "%s: %lld of %lld requests show images that have no embeddings in vision/: run 'nocturne vision "
            "--campaign %s' first, then the same command again",
            phase->options->campaign, (long long)phase->without_image, (long long)phase->total,
            phase->options->campaign);
    return agree(phase, status);
}

static enum result do_phase(struct phase *phase) {
    const struct phase_options *o = phase->options;
    TRY(launch_begin(&o->launch, &phase->launch));
    TRY(phase_open_campaign(&phase->launch, o->campaign, &phase->campaign, &phase->requests));
    phase->total = requests_count(phase->requests);
    TRY(agree(phase, phase_model_folder(o->model, phase->requests, &phase->model_folder)));
    TRY(launch_open(&phase->launch, &o->launch, phase->model_folder, requests_fingerprint(phase->requests)));
    make_identity(phase);
    TRY(find_end(phase));
    TRY(find_work(phase));
    TRY(create_model(phase));
    TRY(agree(
        phase, phase_cache_open(&phase->options->cache, &phase->launch, IDENTITY_VERSION, &phase->cache)));
    TRY(make_plan(phase));
    TRY(agree(phase, open_files(phase)));
    TRY(agree(phase, phase_times_begin(&phase->times, &phase->launch.ranks, o->trace)));
    if (is_first(phase))
        announce(phase);
    struct engine_counts world = {0};
    enum result status = run_engine(phase, &world);
    if (status != OK) {
        flush_quietly(phase);
        metrics_end(phase->metrics, &world, status, failure_message());
        return status;
    }
    TRY(agree(phase, flush_all(phase)));
    if (is_first(phase))
        progress_finish(&phase->progress, &world, !phase->stop.stopped);
    TRY(phase_cache_finish(&phase->cache, &phase->launch));
    TRY(phase_times_end(&phase->times, &phase->launch.ranks, phase->name));
    status = conclude(phase);
    metrics_end(phase->metrics, &world, status, status == OK ? "" : failure_message());
    return status;
}

static void free_phase(struct phase *phase) {
    phase_cache_close(&phase->cache);
    metrics_free(phase->metrics);
    states_close(phase->states);
    embeddings_close(phase->embeddings);
    results_writer_free(phase->results_writer);
    states_writer_free(phase->states_writer);
    requests_close(phase->requests);
    campaign_close(phase->campaign);
    buffer_free(&phase->settings);
    free(phase->model_folder);
    vector_free(&phase->lists);
    phase_plan_free(&phase->plan);
}

static enum result run_phase(enum engine_phase kind, const struct phase_options *options) {
    static const char *const names[] = {"prefill", "decode", "run"};
    struct phase phase;
    memset(&phase, 0, sizeof phase);
    phase.kind = kind;
    phase.name = names[kind];
    phase.options = options;
    enum result status = do_phase(&phase);
    free_phase(&phase);
    return launch_end(&phase.launch, status);
}

/* ---- command lines ---- */

enum { PHASE_OPTIONS = 12 };

static void phase_option_rows(struct phase_options *o, struct option *row) {
    const struct option rows[PHASE_OPTIONS] = {
        {.name = "campaign",
            .kind = OPTION_TEXT,
            .value = &o->campaign,
            .placeholder = "DIR",
            .required = true,
            .help = "the campaign's folder, made by ingest"},
        {.name = "model",
            .kind = OPTION_TEXT,
            .value = &o->model,
            .placeholder = "DIR",
            .help = "where the checkpoint is now (default: where ingest found it)"},
        {.name = "batch",
            .kind = OPTION_COUNT,
            .value = &o->batch,
            .placeholder = "N",
            .least = 1,
            .most = 1 << 16,
            .help = "most sequences a rank decodes at once (default: 64)"},
        {.name = "step-tokens",
            .kind = OPTION_COUNT,
            .value = &o->step_tokens,
            .placeholder = "N",
            .least = 1,
            .most = 1 << 20,
            .help = "most tokens a rank runs in one step (default: 512)"},
        {.name = "all-layers",
            .kind = OPTION_FLAG,
            .value = &o->all_layers,
            .help = "run all layers on all prompt tokens, not only on each prompt's tail"},
        {.name = "no-sharing",
            .kind = OPTION_FLAG,
            .value = &o->no_sharing,
            .help = "run each prompt by itself, even where it begins as others do; to compare: answers are "
                    "the same"},
        {.name = "restart",
            .kind = OPTION_FLAG,
            .value = &o->restart,
            .help = "drop what this and later phases have made, and begin anew"},
        {.name = "part-seconds",
            .kind = OPTION_COUNT,
            .value = &o->part_seconds,
            .placeholder = "N",
            .least = 0,
            .most = 1 << 30,
            .help = "finished work is written to a file at least that often (default: 30)"},
        {.name = "until",
            .kind = OPTION_TEXT,
            .value = &o->until,
            .placeholder = "TIME",
            .help = "when the allocation ends: +SECONDS, HH:MM, YYYY-MM-DDTHH:MM, @UNIX_SECONDS or never "
                    "(default: the Slurm job's end)"},
        {.name = "grace",
            .kind = OPTION_COUNT,
            .value = &o->grace,
            .placeholder = "SECONDS",
            .least = 0,
            .most = 1 << 20,
            .help = "time a stop has to save what is decoding; so long before the allocation's end work "
                    "stops (default: 60)"},
        {.name = "prometheus",
            .kind = OPTION_TEXT,
            .value = &o->prometheus,
            .placeholder = "FILE",
            .help =
                "keep the counts of this launch in FILE (.prom), for the textfile collector of Prometheus"},
        {.name = "trace",
            .kind = OPTION_TEXT,
            .value = &o->trace,
            .placeholder = "FILE",
            .help = "write where the time of each step goes, for Perfetto; with several ranks to FILE.RANK"},
    };
    memcpy(row, rows, sizeof rows);
}

static enum result phase_command(
    enum engine_phase kind, const struct command_usage *usage, int argc, char **argv) {
    struct phase_options options = {
        .batch = DEFAULT_BATCH,
        .step_tokens = DEFAULT_STEP_TOKENS,
        .part_seconds = DEFAULT_PART_SECONDS,
        .grace = DEFAULT_GRACE,
    };
    struct option table[PHASE_OPTIONS + PHASE_CACHE_OPTIONS + LAUNCH_OPTIONS + 1];
    phase_option_rows(&options, table);
    phase_cache_option_rows(&options.cache, table + PHASE_OPTIONS);
    launch_option_rows(&options.launch, table + PHASE_OPTIONS + PHASE_CACHE_OPTIONS);
    bool help_shown;
    TRY(options_parse(usage, table, argc, argv, NULL, &help_shown));
    if (help_shown)
        return OK;
    TRY(phase_cache_check(&options.cache));
    return run_phase(kind, &options);
}

static const char run_notes[] =
    "Started on several ranks by mpirun or srun, or alone. SIGTERM, SIGINT and "
    "SIGUSR1, sent to any rank, and the end of the\n"
    "allocation end it early with exit code 75: finished work is kept, and so are "
    "the tokens of unfinished answers. The same\n"
    "command then goes on. A second SIGTERM or SIGINT ends it at once.";

enum result command_prefill(int argc, char **argv) {
    const struct command_usage usage = {.name = "prefill",
        .summary = "Runs the prompts of a campaign and writes the state and first token of each to prefill/.",
        .notes = run_notes};
    return phase_command(ENGINE_PREFILL, &usage, argc, argv);
}

enum result command_decode(int argc, char **argv) {
    const struct command_usage usage = {.name = "decode",
        .summary =
            "Generates the answers from the states that prefill has written, and writes them to results/.",
        .notes = run_notes};
    return phase_command(ENGINE_DECODE, &usage, argc, argv);
}

enum result command_run(int argc, char **argv) {
    const struct command_usage usage = {.name = "run",
        .summary = "Runs prompts and generates the answers in one launch, without files between; writes to "
                   "results/.",
        .notes = run_notes};
    return phase_command(ENGINE_RUN, &usage, argc, argv);
}

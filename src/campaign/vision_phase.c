/* vision: each image of a campaign through the encoder, once, over ranks.
 *
 * Images are dealt out to ranks; each works alone on its share. They agree every few seconds on how far they are, on
 * stopping and on failures, so that nobody waits long for a rank that has gone. */
#include "base/buffer.h"
#include "base/log.h"
#include "base/signals.h"
#include "campaign/embeddings.h"
#include "campaign/files.h"       /* struct vector */
#include "campaign/image_store.h" /* image_limits_of */
#include "campaign/phase_start.h"
#include "campaign/phases.h"
#include "campaign/progress.h"
#include "campaign/share.h"
#include "cluster/collectives.h"
#include "model/vision.h"
#include "recipe/image.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* malloc, free */
#include <string.h> /* memset, strcmp */

enum {
    DEFAULT_PART_SECONDS = 30,
    PART_BYTES = 128 << 20, /* a part is written when it holds this much */
};

static const double ROUND_SECONDS = 2; /* work of a rank between two agreements, at least one image */
static const double MIB = 1024.0 * 1024.0;

struct vision_options {
    const char *campaign, *model;
    int64_t part_seconds;
    bool restart;
    struct launch_options launch;
};

struct vision_phase {
    const struct vision_options *options;
    struct launch launch;
    struct campaign *campaign;
    struct requests *requests;
    struct vision *vision;
    struct embeddings_writer *writer;
    struct image_workspace workspace;
    struct image_limits limits;
    float *span; /* [max_image_tokens, hidden_size] */
    char identity[IDENTITY_BYTES];
    struct buffer settings;
    char *model_folder;   /* absolute */
    struct vector lists;  /* memory of the next two */
    uint8_t *done, *todo; /* [total] */
    int64_t total, done_before;
    int64_t *share; /* indices of this rank's images */
    int64_t share_count, next;
    double since;                    /* when the oldest pending record came; 0: none is pending */
    struct engine_counts own, world; /* finished: images; prompt_tokens: of their spans */
    struct phase_progress progress;
};

static bool is_first(const struct vision_phase *phase) {
    return phase->launch.ranks.rank == 0;
}

static enum result agree(const struct vision_phase *phase, enum result own) {
    return ranks_agree(phase->launch.ranks.world, own);
}

/* ---- what is to be done ---- */

static enum result allocate_lists(struct vision_phase *phase) {
    size_t size = (size_t)phase->total + 1;
    TRY(vector_reserve(&phase->lists, 2 * size));
    memset(phase->lists.data, 0, 2 * size);
    phase->done = phase->lists.data;
    phase->todo = phase->done + size;
    return OK;
}

static enum result read_done(struct vision_phase *phase) {
    TRY(campaign_sweep(phase->campaign, "vision", phase->identity, phase->options->restart));
    return campaign_done(phase->campaign, "vision", phase->total, phase->done, &phase->done_before, NULL);
}

static enum result take_share(struct vision_phase *phase) {
    const struct ranks *ranks = &phase->launch.ranks;
    const int32_t *tokens;
    TRY(requests_image_tokens(phase->requests, &tokens));
    return share_requests(
        phase->todo, tokens, phase->total, ranks->rank, ranks->count, &phase->share, &phase->share_count);
}

static enum result find_work(struct vision_phase *phase) {
    TRY(agree(phase, allocate_lists(phase)));
    TRY(agree(phase, is_first(phase) ? read_done(phase) : OK));
    TRY(group_broadcast(
        phase->launch.ranks.world, "start: images done", 0, phase->done, (size_t)phase->total));
    phase->done_before = 0;
    for (int64_t i = 0; i < phase->total; i++) {
        phase->done_before += phase->done[i];
        phase->todo[i] = !phase->done[i];
    }
    return agree(phase, take_share(phase));
}

/* The options in effect, as a line of JSON. */
static void make_settings(struct vision_phase *phase) {
    const struct launch *launch = &phase->launch;
    struct buffer *line = &phase->settings;
    buffer_printf(line, "{\"threads\": %d, \"part_seconds\": %lld, \"kernels\": ", launch->ranks.threads,
        (long long)phase->options->part_seconds);
    buffer_append_json_string(
        line, launch->kernels->instruction_set, strlen(launch->kernels->instruction_set));
    buffer_append_text(line, "}");
}

static enum result create_encoder(struct vision_phase *phase) {
    const struct launch *launch = &phase->launch;
    const struct model_config *config = checkpoint_config(launch->checkpoint);
    const struct provenance provenance = {
        .command = "vision",
        .model_folder = phase->model_folder,
        .fingerprint = checkpoint_fingerprint(launch->checkpoint),
        .identity = phase->identity,
        .settings = phase->settings.data,
        .ranks = launch->ranks.count,
        .supernode = launch->ranks.count / launch->ranks.supernodes,
    };
    TRY(vision_create(launch->checkpoint, launch->kernels, &phase->vision));
    phase->limits = image_limits_of(&config->vision);
    TRY(image_limits_check(&phase->limits));
    phase->span =
        malloc(sizeof(float) * (size_t)config->vision.max_image_tokens * (size_t)config->hidden_size);
    if (!phase->span)
        return fail(ERROR_MEMORY, "out of memory for the embeddings of an image");
    return embeddings_writer_create(
        phase->options->campaign, launch->ranks.rank, &provenance, config->hidden_size, &phase->writer);
}

/* ---- the work ---- */

/* Decodes, fits and encodes one image. Ingest did the same up to the plan, so a difference is a fault of the file. */
static enum result encode(struct vision_phase *phase, int64_t index) {
    struct campaign_image image;
    struct image_plan plan;
    const float *patches;
    TRY(requests_read_image(phase->requests, index, &image));
    enum result status = image_to_patches(&phase->workspace, &phase->limits, image.data, image.bytes,
        IMAGE_MOST_SIDE, image.low_detail, &plan, &patches);
    if (status != OK)
        return fail_context(status, "%s/requests.h5: image %lld (%s), which ingest could decode",
            phase->options->campaign, (long long)index, image.hash);
    if (plan.patch_rows != image.rows || plan.patch_columns != image.columns || plan.tokens != image.tokens)
        return fail(ERROR_INPUT,
            "%s/requests.h5: image %lld is planned as %d x %d patches and %d tokens, expected %d x %d and "
            "%d: "
            "ingest the campaign again",
            phase->options->campaign, (long long)index, image.rows, image.columns, image.tokens,
            plan.patch_rows, plan.patch_columns, plan.tokens);
    TRY(vision_encode(phase->vision, patches, plan.patch_rows, plan.patch_columns, phase->span));
    const struct embedding_record record = {
        .image = index, .hash = image.hash, .tokens = plan.tokens, .rows = phase->span};
    TRY(embeddings_writer_add(phase->writer, &record));
    if (phase->since == 0)
        phase->since = monotonic_seconds();
    phase->own.finished++;
    phase->own.prompt_tokens += plan.tokens;
    return OK;
}

static enum result flush(struct vision_phase *phase) {
    phase->since = 0;
    return embeddings_writer_flush(phase->writer);
}

static enum result flush_when_due(struct vision_phase *phase) {
    bool old = phase->since > 0 && monotonic_seconds() - phase->since >= (double)phase->options->part_seconds;
    return old || embeddings_writer_pending_bytes(phase->writer) >= PART_BYTES ? flush(phase) : OK;
}

/* This rank's work up to the next agreement. */
static enum result work(struct vision_phase *phase) {
    double begun = monotonic_seconds();
    while (phase->next < phase->share_count && !signals_stop_requested() &&
           monotonic_seconds() - begun < ROUND_SECONDS) {
        TRY(encode(phase, phase->share[phase->next++]));
        TRY(flush_when_due(phase));
    }
    return flush_when_due(phase);
}

enum agreed_value { AGREED_LEFT, AGREED_STOP, AGREED_ERROR, AGREED_IMAGES, AGREED_TOKENS, AGREED_VALUES };

static enum result agree_on_round(struct vision_phase *phase, enum result own, bool *left, bool *stop) {
    int64_t values[AGREED_VALUES] = {
        [AGREED_LEFT] = phase->next < phase->share_count,
        [AGREED_STOP] = signals_stop_requested(),
        [AGREED_ERROR] = own != OK,
        [AGREED_IMAGES] = phase->own.finished,
        [AGREED_TOKENS] = phase->own.prompt_tokens,
    };
    TRY(group_sum(phase->launch.ranks.world, "images: work left", values, AGREED_VALUES));
    phase->world.finished = values[AGREED_IMAGES];
    phase->world.prompt_tokens = values[AGREED_TOKENS];
    *left = values[AGREED_LEFT] > 0;
    *stop = values[AGREED_STOP] > 0;
    return values[AGREED_ERROR] ? agree(phase, own) : OK;
}

/* Until all images are done, or a stop is asked for on any rank. */
static enum result encode_all(struct vision_phase *phase, bool *stopped) {
    for (bool left = true, stop = false; left && !stop;) {
        TRY(agree_on_round(phase, work(phase), &left, &stop));
        *stopped = left && stop;
        if (is_first(phase))
            progress_update(&phase->progress, &phase->world);
    }
    return OK;
}

/* After a failure elsewhere: this rank's finished work is kept if that is possible, the first message stays. */
static void flush_quietly(struct vision_phase *phase) {
    char message[4096];
    snprintf(message, sizeof message, "%s", failure_message());
    if (flush(phase) != OK)
        log_verbose("finished work could not be kept: %s", failure_message());
    (void)fail(ERROR_INTERNAL, "%s", message); /* only puts the message back */
}

/* ---- the phase ---- */

static void announce(struct vision_phase *phase) {
    const struct ranks *ranks = &phase->launch.ranks;
    log_info("vision encoder: %.1f MiB of weights on each of %d %s, %d %s a rank, kernels %s/%s",
        (double)vision_weight_bytes(phase->vision) / MIB, ranks->count, ranks->count == 1 ? "rank" : "ranks",
        ranks->threads, ranks->threads == 1 ? "thread" : "threads", phase->launch.kernels->name,
        phase->launch.kernels->instruction_set);
    progress_begin(&phase->progress, phase->campaign, "vision", phase->total, phase->done_before,
        ranks->count, phase->options->launch.quiet);
    progress_update(&phase->progress, &(struct engine_counts){0});
    log_info("vision: %lld images, %lld done before, %lld to do", (long long)phase->total,
        (long long)phase->done_before, (long long)(phase->total - phase->done_before));
}

static enum result do_images(struct vision_phase *phase) {
    make_settings(phase);
    vision_identity(&phase->launch, phase->requests, phase->identity);
    TRY(find_work(phase));
    TRY(agree(phase, create_encoder(phase)));
    if (is_first(phase))
        announce(phase);
    bool stopped = false;
    enum result status = encode_all(phase, &stopped);
    if (status != OK) {
        flush_quietly(phase);
        return status;
    }
    TRY(agree(phase, flush(phase)));
    if (is_first(phase))
        progress_finish(&phase->progress, &phase->world, !stopped);
    if (!stopped)
        return OK;
    return agree(
        phase, fail(ERROR_STOPPED,
                   "vision: stopped by %s; all finished work is kept, and the same command goes on from here",
                   *signals_name() ? signals_name() : "a signal on another rank"));
}

static enum result do_phase(struct vision_phase *phase) {
    const struct vision_options *o = phase->options;
    TRY(launch_begin(&o->launch, &phase->launch));
    TRY(phase_open_campaign(&phase->launch, o->campaign, &phase->campaign, &phase->requests));
    phase->total = requests_image_count(phase->requests);
    if (phase->total == 0) {
        if (is_first(phase))
            log_info("vision: no request of the campaign shows an image; nothing to do");
        return OK;
    }
    TRY(agree(phase, phase_model_folder(o->model, phase->requests, &phase->model_folder)));
    TRY(launch_open(&phase->launch, &o->launch, phase->model_folder, requests_fingerprint(phase->requests)));
    return do_images(phase);
}

static void free_phase(struct vision_phase *phase) {
    vision_free(phase->vision);
    embeddings_writer_free(phase->writer);
    image_workspace_free(&phase->workspace);
    requests_close(phase->requests);
    campaign_close(phase->campaign);
    buffer_free(&phase->settings);
    vector_free(&phase->lists);
    free(phase->model_folder);
    free(phase->span);
    free(phase->share);
}

static enum result run_phase(const struct vision_options *options) {
    struct vision_phase phase;
    memset(&phase, 0, sizeof phase);
    phase.options = options;
    enum result status = do_phase(&phase);
    free_phase(&phase);
    return launch_end(&phase.launch, status);
}

/* ---- command line ---- */

enum { VISION_OPTIONS = 4 };

/* The launch's options but those of the language model. */
static void append_launch_rows(struct launch_options *launch, struct option *row) {
    struct option rows[LAUNCH_OPTIONS + 1];
    launch_option_rows(launch, rows);
    for (const struct option *from = rows; from->name; from++)
        if (strcmp(from->name, "kv-memory") && strcmp(from->name, "supernode"))
            *row++ = *from;
    *row = (struct option){0};
}

enum result command_vision(int argc, char **argv) {
    struct vision_options o = {.part_seconds = DEFAULT_PART_SECONDS};
    struct option table[VISION_OPTIONS + LAUNCH_OPTIONS + 1] = {
        {.name = "campaign",
            .kind = OPTION_TEXT,
            .value = &o.campaign,
            .placeholder = "DIR",
            .required = true,
            .help = "the campaign's folder, made by ingest"},
        {.name = "model",
            .kind = OPTION_TEXT,
            .value = &o.model,
            .placeholder = "DIR",
            .help = "where the checkpoint is now (default: where ingest found it)"},
        {.name = "restart",
            .kind = OPTION_FLAG,
            .value = &o.restart,
            .help = "drop the embeddings that were made, and begin anew"},
        {.name = "part-seconds",
            .kind = OPTION_COUNT,
            .value = &o.part_seconds,
            .placeholder = "N",
            .least = 0,
            .most = 1 << 30,
            .help = "finished work is written to a file at least that often (default: 30)"},
    };
    append_launch_rows(&o.launch, table + VISION_OPTIONS);
    const struct command_usage usage = {.name = "vision",
        .summary = "Runs the images of a campaign through the vision encoder, each once, and writes their "
                   "embeddings to vision/.\nWithout images there is nothing to do.",
        .notes = "Started on several ranks by mpirun or srun, or alone. SIGTERM, SIGINT and SIGUSR1 end it "
                 "early with all finished\nwork kept; the same command then goes on."};
    bool help_shown;
    TRY(options_parse(&usage, table, argc, argv, NULL, &help_shown));
    return help_shown ? OK : run_phase(&o);
}

#include "campaign/metrics.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "campaign/progress.h" /* monotonic_seconds */
#include "cluster/collectives.h"

#include <dirent.h>   /* opendir */
#include <errno.h>    /* errno */
#include <stdio.h>    /* snprintf, sscanf */
#include <stdlib.h>   /* calloc, free, getenv */
#include <string.h>   /* memcpy, strlen */
#include <sys/stat.h> /* mkdir */

enum {
    MOST_SAMPLES =
        4096, /* then every second one is dropped, so a file stays small however long a launch is */
    HOST_BYTES = 64,
    COUNTS = METRICS_PART_SECONDS /* columns of one int64 or float64 a sample */
};
static const double FIRST_SPACING = 1, LEAST_INTERVAL = 2;

const struct column metrics_columns[METRICS_COLUMNS] = {
    {"time", COLUMN_F64, "s", "when the sample was taken, Unix seconds"},
    {"steps", COLUMN_I64, NULL, "steps of this rank"},
    {"prompt_tokens", COLUMN_I64, "tokens", "prompt tokens run on all ranks"},
    {"generated_tokens", COLUMN_I64, "tokens", "tokens generated on all ranks"},
    {"finished", COLUMN_I64, "requests", "requests finished on all ranks"},
    {"failed", COLUMN_I64, "requests", "requests failed on all ranks"},
    {"waiting", COLUMN_I64, "requests", "requests admitted and not finished, on all ranks"},
    {"sequences", COLUMN_I64, "sequences", "sequences in the last step of all ranks: the batch"},
    {"kv_reserved", COLUMN_I64, "blocks", "key/value blocks set aside for what is in work, on all ranks"},
    {"kv_blocks", COLUMN_I64, "blocks", "key/value blocks of all ranks"},
    {"shared_tokens", COLUMN_I64, "tokens", "prompt tokens taken over from other prompts, on all ranks"},
    {"cached_tokens", COLUMN_I64, "tokens", "prompt tokens taken from the cache, on all ranks"},
    {"replayed_tokens", COLUMN_I64, "tokens", "of cached_tokens: run again for their windows"},
    {"saved_milliseconds", COLUMN_I64, "ms", "what tokens that were not run would have cost, on all ranks"},
    {"cache_memory_hits", COLUMN_I64, "blocks", "blocks that the cache's memory gave, on all ranks"},
    {"cache_local_hits", COLUMN_I64, "blocks", "blocks that the cache's local folders gave, on all ranks"},
    {"cache_shared_hits", COLUMN_I64, "blocks", "blocks that the cache's shared folder gave, on all ranks"},
    {"cache_memory_bytes", COLUMN_I64, "bytes", "in the cache's memory, on all ranks"},
    {"cache_local_bytes", COLUMN_I64, "bytes", "in the cache's local folder of the first rank's node"},
    {"cache_shared_bytes", COLUMN_I64, "bytes", "in the cache's shared folder"},
    {"expert_pairs", COLUMN_I64, "pairs", "pairs of token and expert that this rank's experts have run"},
    {"part_seconds", COLUMN_F64, "s",
        "seconds of this rank by part of the work; the parts' names: attribute parts"},
    {"expert_load", COLUMN_I64, "pairs",
        "pairs of each layer and each expert of this rank, from expert first_expert on"},
};

/* One sample. */
struct sample {
    double time;
    int64_t counts[COUNTS]; /* [0] is unused: the time */
    double seconds[WORK_PARTS];
};

struct metrics {
    struct metrics_launch launch;
    struct provenance provenance;
    char requests[HASH_DIGITS + 1];
    char *path, *hosts;
    int32_t number, count;
    struct sample *samples; /* [MOST_SAMPLES] */
    struct engine_counts last;
    double begun, spacing, sampled, written; /* begun: Unix seconds; sampled, written: monotonic */
    double parts_begun[WORK_PARTS];
    bool failed; /* a warning was given, and no more files are written */
};

/* ---- names ---- */

/* One more than the largest number of a launch. */
static enum result next_launch(const char *folder, int32_t *number) {
    DIR *stream = opendir(folder);
    *number = 0;
    if (!stream)
        return errno == ENOENT ? OK : fail_errno(ERROR_IO, "%s", folder);
    for (const struct dirent *entry; (entry = readdir(stream));) {
        int32_t found;
        if (sscanf(entry->d_name, "launch-%d", &found) == 1 && found >= *number)
            *number = found + 1;
    }
    closedir(stream);
    return OK;
}

static enum result make_folder(const char *campaign_folder, int32_t *number) {
    char *folder = path_join(campaign_folder, "metrics"), name[32];
    enum result status =
        folder ? next_launch(folder, number) : fail(ERROR_MEMORY, "out of memory for a path");
    snprintf(name, sizeof name, "launch-%04d", *number);
    char *launch = folder ? path_join(folder, name) : NULL;
    if (status == OK)
        status = launch ? folder_make(launch) : fail(ERROR_MEMORY, "out of memory for a path");
    free(folder);
    free(launch);
    return status;
}

/* "node1 node1 node2", in the order of ranks. */
static enum result gather_hosts(struct metrics *metrics) {
    const struct ranks *ranks = metrics->launch.ranks;
    char own[HOST_BYTES] = "", *all = calloc((size_t)ranks->count, HOST_BYTES);
    metrics->hosts = calloc((size_t)ranks->count, HOST_BYTES + 1);
    snprintf(own, sizeof own, "%.63s", ranks->host);
    enum result status =
        all && metrics->hosts ? OK : fail(ERROR_MEMORY, "out of memory for the names of hosts");
    status = ranks_agree(ranks->world, status);
    if (status == OK && all)
        status = group_all_gather(ranks->world, "start: hosts", own, sizeof own, all);
    for (int32_t r = 0; status == OK && all && metrics->hosts && r < ranks->count; r++) {
        if (r)
            strcat(metrics->hosts, " ");
        strcat(metrics->hosts, all + (size_t)r * HOST_BYTES);
    }
    free(all);
    return status;
}

static enum result choose_path(struct metrics *metrics) {
    const struct ranks *ranks = metrics->launch.ranks;
    const char *campaign = metrics->launch.campaign_folder;
    int32_t number = 0;
    enum result status = ranks->rank == 0 ? make_folder(campaign, &number) : OK;
    TRY(ranks_agree(ranks->world, status));
    TRY(group_broadcast(ranks->world, "start: number of the launch", 0, &number, sizeof number));
    metrics->number = number;
    size_t size = strlen(campaign) + 64;
    metrics->path = malloc(size);
    if (metrics->path)
        snprintf(metrics->path, size, "%s/metrics/launch-%04d/rank-%04d.h5", campaign, number, ranks->rank);
    return ranks_agree(
        ranks->world, metrics->path ? OK : fail(ERROR_MEMORY, "out of memory for the name of the metrics"));
}

/* ---- samples ---- */

static void take_sample(struct metrics *metrics) {
    const struct engine_counts *world = &metrics->last;
    if (metrics->count == MOST_SAMPLES) {
        for (int32_t i = 0; i < MOST_SAMPLES / 2; i++)
            metrics->samples[i] = metrics->samples[2 * i];
        metrics->count = MOST_SAMPLES / 2;
        metrics->spacing *= 2;
    }
    struct sample *sample = &metrics->samples[metrics->count++];
    *sample = (struct sample){.time = wall_clock(),
        .counts = {[METRICS_STEPS] = world->steps,
            [METRICS_PROMPT_TOKENS] = world->prompt_tokens,
            [METRICS_GENERATED_TOKENS] = world->generated_tokens,
            [METRICS_FINISHED] = world->finished,
            [METRICS_FAILED] = world->failed,
            [METRICS_WAITING] = world->waiting,
            [METRICS_SEQUENCES] = world->sequences,
            [METRICS_KV_RESERVED] = world->kv_reserved,
            [METRICS_KV_BLOCKS] = world->kv_blocks,
            [METRICS_SHARED_TOKENS] = world->shared_tokens,
            [METRICS_CACHED_TOKENS] = world->cached_tokens,
            [METRICS_REPLAYED_TOKENS] = world->replayed_tokens,
            [METRICS_SAVED_MILLISECONDS] = world->saved_milliseconds}};
    memcpy(sample->counts + METRICS_CACHE_HITS, world->cache_hits, sizeof world->cache_hits);
    memcpy(sample->counts + METRICS_CACHE_BYTES, world->cache_bytes, sizeof world->cache_bytes);
    const struct expert_load load = model_expert_load(metrics->launch.model);
    for (int64_t i = 0; i < (int64_t)load.layers * load.count; i++)
        sample->counts[METRICS_EXPERT_PAIRS] += load.pairs[i];
    stopwatch_read(sample->seconds);
    for (int i = 0; i < WORK_PARTS; i++)
        sample->seconds[i] -= metrics->parts_begun[i];
}

/* ---- the file ---- */

static enum result write_series(const struct metrics *metrics, hid_t file, int column) {
    size_t count = (size_t)metrics->count, values = column == METRICS_PART_SECONDS ? WORK_PARTS : 1;
    double *numbers = calloc(count * values + 1, sizeof *numbers);
    if (!numbers)
        return fail(ERROR_MEMORY, "out of memory for metrics");
    for (size_t i = 0; i < count; i++)
        if (column == METRICS_PART_SECONDS)
            memcpy(numbers + i * values, metrics->samples[i].seconds, sizeof metrics->samples[i].seconds);
        else if (column == METRICS_TIME)
            numbers[i] = metrics->samples[i].time;
        else
            memcpy(&numbers[i], &metrics->samples[i].counts[column], sizeof *numbers);
    enum result status = hdf5_write_column(
        file, metrics->path, &metrics_columns[column], numbers, count, values > 1 ? values : 0);
    free(numbers);
    return status;
}

static enum result put_numbers(const struct metrics *metrics, hid_t file, enum result outcome, bool ended) {
    const struct expert_load load = model_expert_load(metrics->launch.model);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"metrics_version", METRICS_VERSION}, {"launch", metrics->number},
        {"nodes", metrics->launch.ranks->nodes}, {"total", metrics->launch.total},
        {"done_before", metrics->launch.done_before}, {"first_expert", load.first},
        {"expert_count", load.count}, {"experts_counted", load.counted}, {"ended", ended},
        {"exit_code", outcome}, {"begun_microseconds", (int64_t)(metrics->begun * 1e6)},
        {"written_microseconds", (int64_t)(wall_clock() * 1e6)}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(hdf5_put_int64(file, numbers[i].name, numbers[i].value));
    return OK;
}

static enum result put_texts(const struct metrics *metrics, hid_t file, const char *message) {
    const char *job = getenv("SLURM_JOB_ID");
    char parts[512] = "";
    for (int i = 0; i < WORK_PARTS; i++) {
        strcat(parts, i ? "," : "");
        strcat(parts, work_part_name((enum work_part)i));
    }
    TRY(hdf5_put_text(file, "parts", parts));
    /* Attributes hold at most 64 KiB: of a very large run the first hosts only. */
    char hosts[60000];
    snprintf(hosts, sizeof hosts, "%s", metrics->hosts);
    TRY(hdf5_put_text(file, "hosts", hosts));
    TRY(hdf5_put_text(file, "job", job ? job : ""));
    return hdf5_put_text(file, "message", message);
}

static enum result fill_file(
    const struct metrics *metrics, hid_t file, enum result outcome, const char *message, bool ended) {
    const struct expert_load load = model_expert_load(metrics->launch.model);
    TRY(put_numbers(metrics, file, outcome, ended));
    TRY(put_texts(metrics, file, message));
    for (int column = 0; column < METRICS_SERIES; column++)
        TRY(write_series(metrics, file, column));
    return hdf5_write_column(file, metrics->path, &metrics_columns[METRICS_EXPERT_LOAD], load.pairs,
        (size_t)load.layers, (size_t)load.count);
}

static enum result replace_file(const char *path, const struct hdf5_image *image) {
    struct output_file output = {0};
    bool taken;
    TRY(output_file_create(path, &output));
    enum result status = output_file_write(&output, image->data, image->bytes);
    if (status == OK)
        return output_file_commit(&output, true, &taken);
    output_file_abandon(&output);
    return status;
}

static enum result write_file(
    const struct metrics *metrics, enum result outcome, const char *message, bool ended) {
    struct file_header header = {.format = METRICS_FORMAT,
        .version = FORMAT_VERSION,
        .records = metrics->count,
        .completed = metrics->last.finished,
        .failed = metrics->last.failed,
        .prompt_tokens = metrics->last.prompt_tokens,
        .generated_tokens = metrics->last.generated_tokens};
    memcpy(header.requests, metrics->requests, sizeof header.requests);
    struct hdf5_image image = {0};
    hid_t file = H5I_INVALID_HID;
    enum result status;
    TRY_GOTO(status, hdf5_image_begin(&image, &file), done);
    TRY_GOTO(
        status, hdf5_put_provenance(file, &metrics->provenance, &header, metrics->launch.ranks->rank), done);
    TRY_GOTO(status, fill_file(metrics, file, outcome, message, ended), done);
    TRY_GOTO(status, hdf5_image_finish(&image, &file, &header), done);
    status = replace_file(metrics->path, &image);
done:
    if (file >= 0)
        H5Fclose(file);
    hdf5_image_free(&image);
    return status;
}

/* Answers matter more than metrics: a failure is told once, and the launch goes on. */
static void write_or_warn(struct metrics *metrics, enum result outcome, const char *message, bool ended) {
    if (metrics->failed || write_file(metrics, outcome, message, ended) == OK)
        return;
    metrics->failed = true;
    log_warning("no more metrics are written: %s", failure_message());
}

/* ---- life ---- */

static enum result begin(struct metrics *metrics, const struct metrics_launch *launch) {
    metrics->launch = *launch;
    metrics->spacing = FIRST_SPACING;
    metrics->begun = wall_clock();
    if (metrics->launch.interval < LEAST_INTERVAL)
        metrics->launch.interval = LEAST_INTERVAL;
    metrics->written = monotonic_seconds();
    snprintf(metrics->requests, sizeof metrics->requests, "%s", launch->requests);
    stopwatch_read(metrics->parts_begun);
    metrics->samples = calloc(MOST_SAMPLES, sizeof *metrics->samples);
    if (!metrics->samples)
        return fail(ERROR_MEMORY, "out of memory for metrics");
    return provenance_copy(launch->provenance, &metrics->provenance);
}

enum result metrics_create(const struct metrics_launch *launch, struct metrics **metrics) {
    struct metrics *made = calloc(1, sizeof *made);
    enum result status = made ? begin(made, launch) : fail(ERROR_MEMORY, "out of memory for metrics");
    *metrics = NULL;
    status = ranks_agree(launch->ranks->world, status);
    if (status != OK || !made) {
        metrics_free(made);
        return status;
    }
    TRY_GOTO(status, choose_path(made), done);
    TRY_GOTO(status, gather_hosts(made), done);
    take_sample(made);
    write_or_warn(made, OK, "", false);
    made->sampled = monotonic_seconds();
    *metrics = made;
    return OK;
done:
    metrics_free(made);
    return status;
}

void metrics_step(struct metrics *metrics, const struct engine_counts *world) {
    double now = monotonic_seconds();
    metrics->last = *world;
    if (now - metrics->sampled >= metrics->spacing) {
        metrics->sampled = now;
        take_sample(metrics);
    }
    if (now - metrics->written >= metrics->launch.interval) {
        metrics->written = now;
        write_or_warn(metrics, OK, "", false);
    }
}

void metrics_end(
    struct metrics *metrics, const struct engine_counts *world, enum result outcome, const char *message) {
    if (!metrics)
        return;
    char kept[4096]; /* `message` is often failure_message(), which a failing write would replace */
    snprintf(kept, sizeof kept, "%s", message);
    metrics->last = *world;
    take_sample(metrics);
    write_or_warn(metrics, outcome, kept, true);
    if (outcome != OK)
        (void)fail(outcome, "%s", kept);
}

void metrics_free(struct metrics *metrics) {
    if (!metrics)
        return;
    provenance_free(&metrics->provenance);
    free(metrics->path);
    free(metrics->hosts);
    free(metrics->samples);
    free(metrics);
}

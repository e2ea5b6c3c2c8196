#include "campaign/report_metrics.h"

#include "campaign/metrics.h"
#include "campaign/parts.h"

#include <dirent.h> /* opendir */
#include <stdio.h>  /* snprintf, sscanf */
#include <stdlib.h> /* calloc, qsort */
#include <string.h> /* strcmp */

/* Series of one rank as they were read. */
struct rank_series {
    size_t samples, parts;
    double *time, *seconds;          /* [samples], [samples, parts] */
    int64_t *counts[METRICS_SERIES]; /* [samples]; NULL for the two above */
    enum time_share share_of[64];
    int64_t layers, first_expert, expert_count;
    int64_t *load; /* [layers, expert_count] */
};

static void series_free(struct rank_series *series) {
    free(series->time);
    free(series->seconds);
    free(series->load);
    for (int i = 0; i < METRICS_SERIES; i++)
        free(series->counts[i]);
}

/* ---- reading a file ---- */

static enum result read_rows(
    hid_t file, const char *path, int column, size_t row_values, void *pointer, size_t *count) {
    hid_t dataset;
    TRY(hdf5_open_column(file, path, &metrics_columns[column], row_values, &dataset, count));
    void **data = pointer;
    *data = calloc(*count + 1, (row_values ? row_values : 1) * sizeof(int64_t));
    enum result status = *data ? OK : fail(ERROR_MEMORY, "out of memory for metrics");
    if (status == OK && *count)
        status = hdf5_read_rows(dataset, path, &metrics_columns[column], row_values, 0, *count, *data);
    H5Dclose(dataset);
    return status;
}

/* Sorts the parts of the work, which the file names, into shares. */
static enum result read_parts(hid_t file, const char *path, struct rank_series *series) {
    char *names, *rest;
    TRY(hdf5_get_text(file, path, "parts", &names));
    rest = names;
    for (char *name; (name = strsep(&rest, ",")) && series->parts < 64; series->parts++)
        series->share_of[series->parts] =
            !strcmp(name, "exchange")                                                         ? SHARE_EXCHANGE
            : !strcmp(name, "waiting")                                                        ? SHARE_WAITING
            : !strcmp(name, "other") || !strcmp(name, "files") || !strcmp(name, "scheduling") ? SHARE_OTHER
                                                                                              : SHARE_WORK;
    free(names);
    return OK;
}

static enum result read_load(hid_t file, const char *path, struct rank_series *series) {
    int64_t counted;
    size_t layers = 0;
    TRY(hdf5_get_int64(file, path, "experts_counted", &counted));
    TRY(hdf5_get_int64(file, path, "first_expert", &series->first_expert));
    TRY(hdf5_get_int64(file, path, "expert_count", &series->expert_count));
    if (!counted || series->expert_count < 1 || series->expert_count > 1 << 16 || series->first_expert < 0 ||
        series->first_expert > 1 << 16)
        return OK;
    TRY(read_rows(file, path, METRICS_EXPERT_LOAD, (size_t)series->expert_count, &series->load, &layers));
    series->layers = (int64_t)layers;
    return OK;
}

static enum result read_series(hid_t file, const char *path, struct rank_series *series) {
    TRY(read_parts(file, path, series));
    TRY(read_rows(file, path, METRICS_TIME, 0, &series->time, &series->samples));
    for (int column = 0; column < METRICS_SERIES; column++) {
        size_t count = 0;
        if (column == METRICS_PART_SECONDS)
            TRY(read_rows(file, path, column, series->parts, &series->seconds, &count));
        else if (column != METRICS_TIME)
            TRY(read_rows(file, path, column, 0, &series->counts[column], &count));
        else
            continue;
        if (count != series->samples)
            return fail(ERROR_INPUT, "%s: %s has %zu samples, time has %zu", path,
                metrics_columns[column].name, count, series->samples);
    }
    return read_load(file, path, series);
}

static void forget_launch(struct report_launch *launch) {
    free(launch->command);
    free(launch->version);
    free(launch->hosts);
    free(launch->job);
    free(launch->message);
    launch->command = launch->version = launch->hosts = launch->job = launch->message = NULL;
}

static enum result open_file(const char *path, const char *requests, hid_t *file) {
    struct file_header header;
    int64_t version;
    TRY(part_open(path, METRICS_FORMAT, true, &header, file));
    enum result status = hdf5_get_int64(*file, path, "metrics_version", &version);
    if (status == OK && (version != METRICS_VERSION || strcmp(header.requests, requests)))
        status = fail(ERROR_INPUT, "%s: is of another version or other requests", path);
    if (status != OK)
        H5Fclose(*file);
    return status;
}

static enum result read_launch(hid_t file, const char *path, struct report_launch *launch) {
    const struct {
        const char *name;
        int64_t *value;
    } numbers[] = {{"nodes", &launch->nodes}, {"exit_code", &launch->exit_code},
        {"done_before", &launch->done_before}, {"completed", &launch->finished}, {"failed", &launch->failed},
        {"prompt_tokens", &launch->prompt_tokens}, {"generated_tokens", &launch->generated_tokens}};
    const struct {
        const char *name;
        char **value;
    } texts[] = {{"command", &launch->command}, {"version", &launch->version}, {"hosts", &launch->hosts},
        {"job", &launch->job}, {"message", &launch->message}};
    int64_t ranks, ended, begun, written;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(hdf5_get_int64(file, path, numbers[i].name, numbers[i].value));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        TRY(hdf5_get_text(file, path, texts[i].name, texts[i].value));
    TRY(hdf5_get_int64(file, path, "ranks", &ranks));
    TRY(hdf5_get_int64(file, path, "ended", &ended));
    TRY(hdf5_get_int64(file, path, "begun_microseconds", &begun));
    TRY(hdf5_get_int64(file, path, "written_microseconds", &written));
    launch->ranks = ranks < 1 || ranks > 1 << 20 ? 1 : (int32_t)ranks;
    launch->ended = ended != 0;
    launch->begun = (double)begun * 1e-6;
    launch->written = (double)written * 1e-6;
    return OK;
}

/* ---- on the launch's grid ---- */

/* A sum that grows, at `time`: between samples in proportion. */
static double value_at(const struct rank_series *series, const double *values, const int64_t *counts,
    size_t stride, double time) {
    size_t i = 0, last = series->samples - 1;
    while (i < last && series->time[i + 1] < time)
        i++;
    size_t j = i < last ? i + 1 : last;
    double a = values   ? values[i * stride]
               : counts ? (double)counts[i]
                        : 0,
           b = values   ? values[j * stride]
               : counts ? (double)counts[j]
                        : 0;
    double span = series->time[j] - series->time[i], part = span > 0 ? (time - series->time[i]) / span : 0;
    return a + (b - a) * (part < 0 ? 0 : part > 1 ? 1 : part);
}

static void make_grid(struct report_launch *launch, const struct rank_series *series) {
    if (series->samples < 2 || series->time[series->samples - 1] <= series->time[0])
        return;
    size_t most = series->samples - 1;
    launch->intervals = most < REPORT_INTERVALS ? (int32_t)most : REPORT_INTERVALS;
    double begin = series->time[0], end = series->time[series->samples - 1];
    for (int32_t i = 0; i <= launch->intervals; i++)
        launch->time[i] = begin + (end - begin) * i / launch->intervals;
}

/* Counts of all ranks, which stand in each rank's file: taken from the first. */
static void add_world(struct report_launch *launch, const struct rank_series *series) {
    for (int32_t i = 0; i < launch->intervals; i++) {
        double from = launch->time[i], to = launch->time[i + 1], middle = (from + to) / 2;
        const int64_t *prompt = series->counts[METRICS_PROMPT_TOKENS],
                      *generated = series->counts[METRICS_GENERATED_TOKENS];
        launch->prompt_rate[i] =
            (value_at(series, NULL, prompt, 1, to) - value_at(series, NULL, prompt, 1, from)) / (to - from);
        launch->generated_rate[i] =
            (value_at(series, NULL, generated, 1, to) - value_at(series, NULL, generated, 1, from)) /
            (to - from);
        launch->sequences[i] = value_at(series, NULL, series->counts[METRICS_SEQUENCES], 1, middle);
        double blocks = value_at(series, NULL, series->counts[METRICS_KV_BLOCKS], 1, to);
        double reserved = value_at(series, NULL, series->counts[METRICS_KV_RESERVED], 1, middle);
        launch->kv_use[i] = blocks > 0 ? 100 * reserved / blocks : 0;
    }
}

/* Sums at the launch's end. */
static void add_saved(struct report_launch *launch, const struct rank_series *series) {
    if (!series->samples)
        return;
    size_t last = series->samples - 1;
    launch->shared_tokens = series->counts[METRICS_SHARED_TOKENS][last];
    launch->cached_tokens = series->counts[METRICS_CACHED_TOKENS][last];
    launch->replayed_tokens = series->counts[METRICS_REPLAYED_TOKENS][last];
    launch->saved_milliseconds = series->counts[METRICS_SAVED_MILLISECONDS][last];
    for (int tier = 0; tier < CACHE_TIERS; tier++) {
        launch->cache_hits[tier] = series->counts[METRICS_CACHE_HITS + tier][last];
        launch->cache_bytes[tier] = series->counts[METRICS_CACHE_BYTES + tier][last];
    }
}

static void add_rank(struct report_launch *launch, const struct rank_series *series, double totals[SHARES]) {
    if (!series->samples)
        return;
    for (size_t p = 0; p < series->parts; p++) {
        enum time_share share = series->share_of[p];
        totals[share] += series->seconds[(series->samples - 1) * series->parts + p];
        for (int32_t i = 0; i < launch->intervals; i++)
            launch->shares[share][i] +=
                value_at(series, series->seconds + p, NULL, series->parts, launch->time[i + 1]) -
                value_at(series, series->seconds + p, NULL, series->parts, launch->time[i]);
    }
    for (int32_t i = 0; i < launch->intervals; i++) {
        const int64_t *pairs = series->counts[METRICS_EXPERT_PAIRS];
        double run = value_at(series, NULL, pairs, 1, launch->time[i + 1]) -
                     value_at(series, NULL, pairs, 1, launch->time[i]);
        launch->pairs_sum[i] += run;
        if (run > launch->pairs_most[i])
            launch->pairs_most[i] = run;
    }
}

static enum result add_load(struct report_metrics *metrics, const struct rank_series *series) {
    int64_t experts = series->first_expert + series->expert_count;
    if (!series->load || !series->layers)
        return OK;
    if (experts > metrics->experts || series->layers > metrics->layers) {
        int64_t layers = series->layers > metrics->layers ? series->layers : metrics->layers;
        experts = experts > metrics->experts ? experts : metrics->experts;
        int64_t *grown = calloc((size_t)(layers * experts), sizeof *grown);
        if (!grown)
            return fail(ERROR_MEMORY, "out of memory for the load of experts");
        for (int64_t l = 0; l < metrics->layers; l++)
            memcpy(grown + l * experts, metrics->load + l * metrics->experts,
                (size_t)metrics->experts * sizeof *grown);
        free(metrics->load);
        metrics->load = grown;
        metrics->layers = layers;
        metrics->experts = experts;
    }
    for (int64_t l = 0; l < series->layers; l++)
        for (int64_t e = 0; e < series->expert_count; e++)
            metrics->load[l * metrics->experts + series->first_expert + e] +=
                series->load[l * series->expert_count + e];
    return OK;
}

/* ---- launches ---- */

static enum result grow_ranks(struct report_metrics *metrics, int32_t ranks) {
    if (ranks <= metrics->most_ranks)
        return OK;
    void *grown = realloc(metrics->rank_shares, (size_t)ranks * sizeof *metrics->rank_shares);
    if (!grown)
        return fail(ERROR_MEMORY, "out of memory for the times of ranks");
    metrics->rank_shares = grown;
    memset(metrics->rank_shares + metrics->most_ranks, 0,
        (size_t)(ranks - metrics->most_ranks) * sizeof *metrics->rank_shares);
    metrics->most_ranks = ranks;
    return OK;
}

static enum result add_file(struct report_metrics *metrics, struct report_launch *launch, const char *path,
    const char *requests, int32_t rank) {
    struct rank_series series = {0};
    hid_t file;
    TRY(open_file(path, requests, &file));
    bool first = launch->ranks_read == 0;
    enum result status = first ? read_launch(file, path, launch) : OK;
    if (status == OK)
        status = read_series(file, path, &series);
    if (status == OK && first) {
        make_grid(launch, &series);
        add_world(launch, &series);
        add_saved(launch, &series);
    }
    if (status == OK)
        status = grow_ranks(metrics, rank + 1);
    if (status == OK) {
        add_rank(launch, &series, metrics->rank_shares[rank]);
        launch->ranks_read++;
        status = add_load(metrics, &series);
    }
    if (status != OK && first)
        forget_launch(launch);
    series_free(&series);
    H5Fclose(file);
    return status;
}

static enum result add_launch(
    struct report_metrics *metrics, const char *folder, int32_t number, const char *requests) {
    struct report_launch *launch = &metrics->launches[metrics->count];
    *launch = (struct report_launch){.number = number, .ranks = 1};
    size_t size = strlen(folder) + 64;
    char *path = malloc(size);
    if (!path)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status = OK;
    /* Ranks whose file is missing or damaged are left out; how many there are, the first file tells. */
    for (int32_t rank = 0; rank < launch->ranks || (rank < 16 && !launch->ranks_read); rank++) {
        snprintf(path, size, "%s/launch-%04d/rank-%04d.h5", folder, number, rank);
        status = add_file(metrics, launch, path, requests, rank);
        if (status == ERROR_MEMORY)
            break;
        metrics->damaged += status == ERROR_INPUT;
        status = OK;
    }
    free(path);
    metrics->count += launch->ranks_read > 0;
    return status;
}

static int by_number(const void *a, const void *b) {
    int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    return (first > second) - (first < second);
}

static enum result list_launches(const char *folder, struct vector *numbers) {
    DIR *stream = opendir(folder);
    enum result status = OK;
    if (!stream)
        return OK; /* a campaign without metrics */
    for (const struct dirent *entry; status == OK && (entry = readdir(stream));) {
        int32_t number;
        if (sscanf(entry->d_name, "launch-%d", &number) == 1 && number >= 0)
            status = vector_append(numbers, &number, sizeof number);
    }
    closedir(stream);
    if (numbers->bytes)
        qsort(numbers->data, numbers->bytes / sizeof(int32_t), sizeof(int32_t), by_number);
    return status;
}

enum result report_metrics_read(
    const char *campaign_folder, const char *requests, struct report_metrics *metrics) {
    struct vector numbers = {0};
    char *folder = path_join(campaign_folder, "metrics");
    enum result status =
        folder ? list_launches(folder, &numbers) : fail(ERROR_MEMORY, "out of memory for a path");
    size_t count = numbers.bytes / sizeof(int32_t);
    metrics->launches = calloc(count + 1, sizeof *metrics->launches);
    if (status == OK && !metrics->launches)
        status = fail(ERROR_MEMORY, "out of memory for %zu launches", count);
    for (size_t i = 0; status == OK && i < count; i++)
        status = add_launch(metrics, folder, ((const int32_t *)numbers.data)[i], requests);
    free(folder);
    vector_free(&numbers);
    return status;
}

void report_metrics_free(struct report_metrics *metrics) {
    for (int32_t i = 0; metrics->launches && i < metrics->count; i++)
        forget_launch(&metrics->launches[i]);
    free(metrics->launches);
    free(metrics->rank_shares);
    free(metrics->load);
}

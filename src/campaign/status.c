#include "base/buffer.h"
#include "base/json.h"
#include "base/options.h"
#include "campaign/campaign.h"
#include "campaign/files.h"
#include "campaign/lock.h"
#include "campaign/parts.h"
#include "campaign/requests.h"
#include "schedule/engine.h"

#include <stdio.h>  /* printf */
#include <stdlib.h> /* malloc, free */
#include <string.h> /* strlen */
#include <unistd.h> /* access */

/* What progress.json says; all zero when there is none. */
struct live {
    bool running;
    char holder[512], phase[32];
    double seconds;
    int64_t ranks, done, done_before, total, tokens;
    int64_t shared_tokens, cached_tokens, replayed_tokens; /* of prompts, not computed; of these run again */
    double saved_seconds;
    int64_t cache_hits[CACHE_TIERS], cache_bytes[CACHE_TIERS];
};

struct campaign_status {
    int64_t requests, refused, done, failed, waiting, prefilled, images, encoded;
    int64_t prompt_tokens, generated_tokens;
    struct live live;
    const char *phase;
    double tokens_per_second, requests_per_second, eta; /* eta < 0: unknown */
};

static int64_t member_int64(const struct json *object, const char *name) {
    int64_t value = 0;
    return json_int64(json_member(object, name), &value) ? value : 0;
}

static void read_tiers(const struct json *object, const char *name, int64_t values[CACHE_TIERS]) {
    const struct json *array = json_member(object, name);
    const struct json *item = array && array->kind == JSON_ARRAY ? array->first : NULL;
    for (int tier = 0; tier < CACHE_TIERS && item; tier++, item = item->next)
        if (!json_int64(item, &values[tier]))
            values[tier] = 0;
}

/* A missing or broken progress.json leaves the numbers at zero: it is only a hint. */
static void read_live(const char *folder, struct live *live) {
    *live = (struct live){0};
    live->running = lock_is_held(folder, live->holder, sizeof live->holder);
    char *path = path_join(folder, "progress.json");
    struct json_document *document = NULL;
    const struct json *root;
    if (path && !access(path, R_OK) && json_document_create(&document) == OK &&
        json_parse_file(document, path, &root) == OK) {
        const struct json *phase = json_member(root, "phase");
        if (phase && phase->kind == JSON_STRING)
            snprintf(live->phase, sizeof live->phase, "%.31s", phase->text);
        if (!json_double(json_member(root, "seconds"), &live->seconds))
            live->seconds = 0;
        live->ranks = member_int64(root, "ranks");
        live->done = member_int64(root, "done") + member_int64(root, "failed");
        live->done_before = member_int64(root, "done_before");
        live->total = member_int64(root, "total");
        live->shared_tokens = member_int64(root, "shared_tokens");
        live->cached_tokens = member_int64(root, "cached_tokens");
        live->replayed_tokens = member_int64(root, "replayed_tokens");
        if (!json_double(json_member(root, "saved_seconds"), &live->saved_seconds))
            live->saved_seconds = 0;
        read_tiers(root, "cache_hits", live->cache_hits);
        read_tiers(root, "cache_bytes", live->cache_bytes);
        live->tokens = member_int64(root, "prompt_tokens") + member_int64(root, "generated_tokens");
    }
    json_document_free(document);
    free(path);
}

static void estimate(struct campaign_status *status) {
    const struct live *live = &status->live;
    status->eta = -1;
    if (!status->waiting)
        status->phase = "finished";
    else if (live->running)
        status->phase = *live->phase ? live->phase : "working";
    else
        status->phase = status->encoded || status->prefilled || status->done ? "paused" : "ingested";
    if (!live->running || live->seconds <= 0)
        return;
    status->tokens_per_second = (double)live->tokens / live->seconds;
    int64_t finished = live->done - live->done_before, left = live->total - live->done;
    status->requests_per_second = (double)finished / live->seconds;
    if (finished > 0 && left >= 0)
        status->eta = (double)left / status->requests_per_second;
}

static enum result count_images(
    const char *folder, struct requests *requests, struct campaign_status *status) {
    status->images = requests_image_count(requests);
    if (!status->images)
        return OK;
    struct outcome_counts vision;
    uint8_t *outcomes = malloc((size_t)status->images);
    if (!outcomes)
        return fail(ERROR_MEMORY, "out of memory for %lld images", (long long)status->images);
    enum result outcome =
        parts_outcomes(folder, "vision", requests_identity(requests), status->images, outcomes, &vision);
    free(outcomes);
    status->encoded = vision.done;
    return outcome;
}

static enum result count(const char *folder, struct requests *requests, struct campaign_status *status) {
    struct outcome_counts prefill, results;
    const char *identity = requests_identity(requests);
    status->requests = requests_count(requests);
    status->refused = requests_error_count(requests);
    uint8_t *outcomes = malloc((size_t)status->requests + 1);
    if (!outcomes)
        return fail(ERROR_MEMORY, "out of memory for %lld requests", (long long)status->requests);
    enum result outcome = parts_outcomes(folder, "prefill", identity, status->requests, outcomes, &prefill);
    if (outcome == OK)
        outcome = parts_outcomes(folder, "results", identity, status->requests, outcomes, &results);
    free(outcomes);
    if (outcome != OK)
        return outcome;
    TRY(count_images(folder, requests, status));
    status->prefilled = prefill.done;
    status->done = results.done;
    status->failed = results.failed + status->refused;
    status->waiting = status->requests - results.done - results.failed;
    status->prompt_tokens = requests_prompt_tokens(requests);
    status->generated_tokens = results.generated_tokens;
    return OK;
}

static void print_json(const char *folder, const struct campaign_status *status) {
    struct buffer text = {0};
    buffer_append_text(&text, "{\"campaign\": ");
    buffer_append_json_string(&text, folder, strlen(folder));
    buffer_printf(&text,
        ", \"phase\": \"%s\", \"running\": %s, \"total\": %lld, \"done\": %lld, \"failed\": %lld, "
        "\"waiting\": %lld, "
        "\"requests\": %lld, \"refused\": %lld, \"images\": %lld, \"encoded\": %lld, "
        "\"prefilled\": %lld, \"prompt_tokens\": %lld, \"generated_tokens\": %lld",
        status->phase, status->live.running ? "true" : "false", (long long)status->requests + status->refused,
        (long long)status->done, (long long)status->failed, (long long)status->waiting,
        (long long)status->requests, (long long)status->refused, (long long)status->images,
        (long long)status->encoded, (long long)status->prefilled, (long long)status->prompt_tokens,
        (long long)status->generated_tokens);
    const struct live *live = &status->live;
    buffer_printf(&text,
        ", \"shared_tokens\": %lld, \"cached_tokens\": %lld, \"replayed_tokens\": %lld, \"saved_seconds\": "
        "%.3f",
        (long long)live->shared_tokens, (long long)live->cached_tokens, (long long)live->replayed_tokens,
        live->saved_seconds);
    buffer_printf(&text, ", \"cache_hits\": [%lld, %lld, %lld], \"cache_bytes\": [%lld, %lld, %lld]",
        (long long)live->cache_hits[0], (long long)live->cache_hits[1], (long long)live->cache_hits[2],
        (long long)live->cache_bytes[0], (long long)live->cache_bytes[1], (long long)live->cache_bytes[2]);
    if (status->live.running) {
        buffer_append_text(&text, ", \"holder\": ");
        buffer_append_json_string(&text, status->live.holder, strlen(status->live.holder));
        buffer_printf(&text,
            ", \"ranks\": %lld, \"seconds\": %.3f, \"tokens_per_second\": %.3f, \"requests_per_second\": "
            "%.6f",
            (long long)status->live.ranks, status->live.seconds, status->tokens_per_second,
            status->requests_per_second);
    }
    if (status->eta >= 0)
        buffer_printf(&text, ", \"eta_seconds\": %.0f}", status->eta);
    else
        buffer_append_text(&text, ", \"eta_seconds\": null}");
    puts(text.data);
    buffer_free(&text);
}

/* What the last launch did not compute. */
static void print_saved(const struct live *live) {
    static const char *const tiers[CACHE_TIERS] = {"memory", "local folder", "shared folder"};
    if (live->shared_tokens || live->cached_tokens)
        printf("saved      %lld tokens shared by prompts, %lld of the cache (%lld run again): about %.0f s "
               "of the last "
               "launch\n",
            (long long)live->shared_tokens, (long long)live->cached_tokens, (long long)live->replayed_tokens,
            live->saved_seconds);
    for (int tier = 0; tier < CACHE_TIERS; tier++)
        if (live->cache_bytes[tier])
            printf("cache      %s: %lld blocks used, %.1f MiB held\n", tiers[tier],
                (long long)live->cache_hits[tier], (double)live->cache_bytes[tier] / 1048576);
}

static void print_text(const char *folder, const struct campaign_status *status) {
    printf("campaign   %s: %s\n", folder, status->phase);
    printf("lines      %lld = %lld done + %lld failed (%lld of them refused by ingest) + %lld waiting\n",
        (long long)status->requests + status->refused, (long long)status->done, (long long)status->failed,
        (long long)status->refused, (long long)status->waiting);
    if (status->images)
        printf("images     %lld of %lld encoded\n", (long long)status->encoded, (long long)status->images);
    printf("prefilled  %lld of %lld requests\n", (long long)status->prefilled, (long long)status->requests);
    printf("tokens     %lld in prompts, %lld generated\n", (long long)status->prompt_tokens,
        (long long)status->generated_tokens);
    print_saved(&status->live);
    if (!status->live.running)
        return;
    printf("running    %s\n", *status->live.holder ? status->live.holder : "an unknown process");
    if (status->live.seconds <= 0)
        return;
    printf("rate       %.1f tokens/s, %.3f requests/s on %lld ranks for %.0f s\n", status->tokens_per_second,
        status->requests_per_second, (long long)status->live.ranks, status->live.seconds);
    long long eta = (long long)status->eta;
    if (eta >= 0)
        printf("left       %lld h %02lld min %02lld s in this phase\n", eta / 3600, eta / 60 % 60, eta % 60);
}

enum result command_status(int argc, char **argv) {
    const char *folder = NULL;
    bool json = false, help_shown;
    const struct option options[] = {
        {.name = "campaign",
            .kind = OPTION_TEXT,
            .value = &folder,
            .placeholder = "DIR",
            .required = true,
            .help = "folder of the campaign"},
        {.name = "json", .kind = OPTION_FLAG, .value = &json, .help = "one JSON object instead of text"},
        {0},
    };
    static const struct command_usage usage = {
        .name = "status", .summary = "Shows how far a campaign is. Reads only; may be used while it runs."};
    TRY(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    if (help_shown)
        return OK;
    struct requests *requests;
    struct campaign_status status = {0};
    TRY(requests_open(folder, &requests));
    enum result counted = count(folder, requests, &status);
    requests_close(requests);
    TRY(counted);
    read_live(folder, &status.live);
    estimate(&status);
    if (json)
        print_json(folder, &status);
    else
        print_text(folder, &status);
    return OK;
}

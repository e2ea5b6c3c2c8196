#include "campaign/campaign.h"

#include "base/buffer.h"
#include "base/log.h"
#include "campaign/files.h"
#include "campaign/header.h"
#include "campaign/lock.h"
#include "campaign/parts.h"
#include "schedule/engine.h"

#include <errno.h>  /* errno */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* strdup, strerror */
#include <sys/stat.h>
#include <time.h> /* clock_gettime */

struct campaign {
    char *folder;
    int lock; /* descriptor, -1 when not held */
};

enum result campaign_open(
    const char *folder, enum campaign_access access, bool create, struct campaign **campaign) {
    *campaign = NULL;
    struct stat found;
    if (create)
        TRY(folder_make(folder));
    if (stat(folder, &found))
        return fail_errno(ERROR_IO, "%s: no such campaign (make one with 'nocturne ingest')", folder);
    if (!S_ISDIR(found.st_mode))
        return fail(ERROR_IO, "%s: is not a folder, so it can't be a campaign", folder);
    struct campaign *made = calloc(1, sizeof *made);
    if (!made || !(made->folder = strdup(folder))) {
        free(made);
        return fail(ERROR_MEMORY, "out of memory for opening a campaign");
    }
    made->lock = -1;
    if (access == CAMPAIGN_WORK) {
        enum result status = lock_take(folder, &made->lock);
        if (status != OK) {
            campaign_close(made);
            return status;
        }
    }
    *campaign = made;
    return OK;
}

void campaign_close(struct campaign *campaign) {
    if (!campaign)
        return;
    lock_release(campaign->lock);
    free(campaign->folder);
    free(campaign);
}

const char *campaign_folder(const struct campaign *campaign) {
    return campaign->folder;
}

enum result campaign_done(const struct campaign *campaign, const char *phase, int64_t total, uint8_t *done,
    int64_t *count, int64_t *generated_tokens) {
    char requests[HASH_DIGITS + 1];
    struct outcome_counts counts;
    TRY(requests_identity_of(campaign->folder, requests));
    TRY(parts_outcomes(campaign->folder, phase, requests, total, done, &counts));
    for (int64_t i = 0; i < total; i++)
        done[i] = done[i] != OUTCOME_NONE;
    *count = counts.done + counts.failed;
    if (generated_tokens)
        *generated_tokens = counts.generated_tokens;
    return OK;
}

static void append_tiers(struct buffer *text, const char *name, const int64_t values[CACHE_TIERS]) {
    buffer_printf(text, ", \"%s\": [%lld, %lld, %lld]", name, (long long)values[CACHE_TIER_MEMORY],
        (long long)values[CACHE_TIER_LOCAL], (long long)values[CACHE_TIER_SHARED]);
}

static void append_saved(struct buffer *text, const struct engine_counts *counts) {
    if (!counts)
        return;
    buffer_printf(text,
        ", \"shared_tokens\": %lld, \"cached_tokens\": %lld, \"replayed_tokens\": %lld, \"saved_seconds\": "
        "%.3f",
        (long long)counts->shared_tokens, (long long)counts->cached_tokens,
        (long long)counts->replayed_tokens, (double)counts->saved_milliseconds / 1000);
    append_tiers(text, "cache_hits", counts->cache_hits);
    append_tiers(text, "cache_bytes", counts->cache_bytes);
}

static enum result write_progress(const char *path, const struct progress *progress) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct buffer text = {0};
    buffer_append_text(&text, "{\"phase\": ");
    buffer_append_json_string(&text, progress->phase, strlen(progress->phase));
    buffer_printf(&text,
        ", \"total\": %lld, \"done\": %lld, \"failed\": %lld, \"done_before\": %lld, \"prompt_tokens\": "
        "%lld, "
        "\"generated_tokens\": %lld, \"seconds\": %.3f, \"ranks\": %d, \"finished\": %s, \"updated\": "
        "%.3f",
        (long long)progress->total, (long long)progress->done, (long long)progress->failed,
        (long long)progress->done_before, (long long)progress->prompt_tokens,
        (long long)progress->generated_tokens, progress->seconds, progress->ranks,
        progress->finished ? "true" : "false", (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    append_saved(&text, progress->counts);
    buffer_append_text(&text, "}\n");
    struct output_file file;
    bool taken;
    enum result status = output_file_create(path, &file);
    if (status == OK) {
        status = output_file_write(&file, text.data, text.bytes);
        if (status == OK)
            status = output_file_commit(&file, true, &taken);
        else
            output_file_abandon(&file);
    }
    buffer_free(&text);
    return status;
}

void campaign_write_progress(const struct campaign *campaign, const struct progress *progress) {
    char *path = path_join(campaign->folder, "progress.json");
    if (!path || write_progress(path, progress) != OK)
        log_warning("progress isn't shown: %s", path ? failure_message() : "out of memory");
    free(path);
}

#include "base/log.h"
#include "campaign/campaign.h"
#include "campaign/parts.h"
#include "campaign/results_part.h"

#include <dirent.h> /* opendir, readdir */
#include <errno.h>  /* errno */
#include <stdio.h>  /* asprintf, rename */
#include <stdlib.h> /* free */
#include <string.h> /* strcmp, strdup, strtok_r */
#include <unistd.h> /* unlink */

/* Removes the temporary files in one folder whose names begin with `begin`; it's fine when there is none. */
static enum result remove_temporaries(const char *path, const char *begin) {
    DIR *folder = opendir(path);
    if (!folder)
        return errno == ENOENT || errno == ENOTDIR ? OK : fail_errno(ERROR_IO, "%s: cannot list", path);
    enum result status = OK;
    for (struct dirent *entry; status == OK && (entry = readdir(folder));) {
        if (!is_temporary_name(entry->d_name) || strncmp(entry->d_name, begin, strlen(begin)) != 0)
            continue;
        if (unlinkat(dirfd(folder), entry->d_name, 0) && errno != ENOENT)
            status = fail_errno(
                ERROR_IO, "%s/%s: cannot remove this unfinished file of an earlier run", path, entry->d_name);
        else
            log_verbose("removed %s/%s, unfinished by an earlier run", path, entry->d_name);
    }
    closedir(folder);
    return status;
}

static bool is_rank_folder(const char *name) {
    int32_t rank;
    return part_rank(name, &rank);
}

static bool is_launch_folder(const char *name) {
    return !strncmp(name, "launch-", 7);
}

/* The same in all folders of a folder whose names are wanted. */
static enum result remove_temporaries_below(const char *phase_folder, bool (*is_wanted)(const char *name)) {
    DIR *folder = opendir(phase_folder);
    if (!folder)
        return errno == ENOENT ? OK : fail_errno(ERROR_IO, "%s: cannot list", phase_folder);
    enum result status = OK;
    for (struct dirent *entry; status == OK && (entry = readdir(folder));) {
        if (!is_wanted(entry->d_name))
            continue;
        char *path = path_join(phase_folder, entry->d_name);
        status = path ? remove_temporaries(path, "") : fail(ERROR_MEMORY, "out of memory for a path");
        free(path);
    }
    closedir(folder);
    return status;
}

static enum result set_aside(const char *path, const char *things, const char *fault) {
    char *name;
    if (asprintf(&name, "%s.damaged", path) < 0)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status = OK;
    if (rename(path, name))
        status = fail_output(path, "rename it to *.damaged");
    else
        log_warning("%s; set aside as %s, its %s will be done again", fault, name, things);
    free(name);
    return status;
}

/* The words of `have` that `want` lacks, joined by spaces. */
static char *missing_words(const char *have, const char *want) {
    char *copy = strdup(have), *result = calloc(1, strlen(have) + 2), *state = NULL;
    if (!copy || !result) {
        free(copy);
        free(result);
        return NULL;
    }
    for (char *word = strtok_r(copy, " ", &state); word; word = strtok_r(NULL, " ", &state)) {
        size_t length = strlen(word);
        bool found = false;
        for (const char *at = want; !found && (at = strstr(at, word)); at += length)
            found = (at == want || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0');
        if (found)
            continue;
        strcat(result, *result ? " " : "");
        strcat(result, word);
    }
    free(copy);
    return result;
}

static enum result identity_conflict(
    const char *path, const char *phase, const char *found, const char *expected) {
    char *theirs = missing_words(found, expected), *ours = missing_words(expected, found);
    enum result status = fail(ERROR_CONFLICT,
        "%s was made with '%s', this run has '%s': results of both must not be mixed. Run with the same "
        "model and "
        "settings, or add --restart, which removes all of %s/ and begins anew",
        path, theirs ? theirs : found, ours ? ours : expected, phase);
    free(theirs);
    free(ours);
    return status;
}

static enum result sweep_part(
    const char *path, const char *phase, const char *requests, const char *identity) {
    struct file_header header;
    char *found = NULL;
    const char *things = phase_parts(phase)->things;
    enum result status = part_check(path, phase, &header, &found);
    if (status == ERROR_INPUT) {
        char *fault = strdup(failure_message());
        status = set_aside(path, things, fault ? fault : path);
        free(fault);
    } else if (status == OK && strcmp(header.requests, requests)) {
        char *fault;
        if (asprintf(&fault, "%s belongs to other requests (%s) than this campaign's requests.h5 (%s)", path,
                header.requests, requests) < 0)
            fault = NULL;
        status = set_aside(path, things, fault ? fault : path);
        free(fault);
    } else if (status == OK && strcmp(found, identity)) {
        status = identity_conflict(path, phase, found, identity);
    }
    free(found);
    return status;
}

enum result campaign_sweep(struct campaign *campaign, const char *phase, const char *identity, bool restart) {
    const char *folder = campaign_folder(campaign);
    char requests[HASH_DIGITS + 1];
    struct part_list list = {0};
    char *phase_folder = path_join(folder, phase), *metrics_folder = path_join(folder, "metrics");
    if (!phase_folder || !metrics_folder)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status;
    TRY_GOTO(status, requests_identity_of(folder, requests), done);
    TRY_GOTO(status, remove_temporaries_below(phase_folder, is_rank_folder), done);
    /* Of the campaign's own folder only this one: export, which needs no lock, may be writing there. */
    TRY_GOTO(status, remove_temporaries(folder, ".progress.json."), done);
    TRY_GOTO(status, remove_temporaries_below(metrics_folder, is_launch_folder), done);
    TRY_GOTO(status, parts_list(folder, phase, &list), done);
    for (size_t i = 0; i < list.count && status == OK; i++) {
        const char *path = list.parts[i].path;
        if (!restart)
            status = sweep_part(path, phase, requests, identity);
        else if (unlink(path) && errno != ENOENT)
            status = fail_output(path, "remove");
    }
done:
    part_list_free(&list);
    free(phase_folder);
    free(metrics_folder);
    return status;
}

/* The index datasets of one part into `outcomes`. */
static enum result note_outcomes(hid_t file, const char *path, const struct phase_parts *parts, int64_t total,
    uint8_t *outcomes, struct outcome_counts *counts) {
    bool results = !strcmp(parts->name, "results");
    struct vector record = {0}, failed = {0};
    enum result status;
    TRY_GOTO(status, hdf5_read_column(file, path, parts->index, &record), done);
    if (results)
        TRY_GOTO(status, hdf5_read_column(file, path, &results_columns[RESULT_FAILED], &failed), done);
    size_t records = record.bytes / sizeof(int64_t);
    const int64_t *index = record.data;
    if (results && failed.bytes != records) {
        status = fail(ERROR_INPUT, "%s: it has %zu records and %zu outcomes", path, records, failed.bytes);
        goto done;
    }
    for (size_t r = 0; r < records; r++)
        if (index[r] < 0 || index[r] >= total) {
            status = fail(ERROR_INPUT, "%s: record %zu is of number %lld of the %s, but there are %lld", path,
                r, (long long)index[r], parts->things, (long long)total);
            goto done;
        }
    for (size_t r = 0; r < records; r++) {
        if (outcomes[index[r]] != OUTCOME_NONE)
            continue;
        bool bad = results && ((const uint8_t *)failed.data)[r];
        outcomes[index[r]] = bad ? OUTCOME_FAILED : OUTCOME_DONE;
        counts->done += !bad;
        counts->failed += bad;
    }
done:
    vector_free(&record);
    vector_free(&failed);
    return status;
}

enum result parts_outcomes(const char *campaign_folder, const char *phase, const char *requests,
    int64_t total, uint8_t *outcomes, struct outcome_counts *counts) {
    struct part_list list;
    const struct phase_parts *parts = phase_parts(phase);
    *counts = (struct outcome_counts){0};
    memset(outcomes, OUTCOME_NONE, (size_t)total);
    TRY(parts_list(campaign_folder, phase, &list));
    enum result status = OK;
    for (size_t i = 0; i < list.count && status == OK; i++) {
        const char *path = list.parts[i].path;
        struct file_header header;
        hid_t file;
        status = part_open(path, parts->format, false, &header, &file);
        if (status == OK) {
            if (strcmp(header.requests, requests))
                status = fail(ERROR_INPUT, "%s: it belongs to other requests", path);
            else
                status = note_outcomes(file, path, parts, total, outcomes, counts);
            H5Fclose(file);
        }
        if (status == OK) {
            counts->parts++;
            counts->prompt_tokens += header.prompt_tokens;
            counts->generated_tokens += header.generated_tokens;
        } else if (status == ERROR_INPUT) {
            log_warning("%s; left out (the next launch of this phase sets it aside)", failure_message());
            counts->skipped++;
            status = OK;
        } else if (access(path, F_OK)) {
            status = OK; /* it went away while we looked */
        }
    }
    part_list_free(&list);
    return status;
}

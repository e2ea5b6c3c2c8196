#include "campaign/parts.h"

#include "campaign/embeddings_part.h"
#include "campaign/results_part.h"
#include "campaign/states_part.h"

#include <dirent.h> /* opendir, readdir */
#include <errno.h>  /* errno */
#include <stdio.h>  /* asprintf, sscanf */
#include <stdlib.h> /* qsort, realloc, free */
#include <string.h> /* strcmp, strlen */

enum { MOST_NUMBER = 999999999 };

/* "PREFIX" + at least `digits` digits + "SUFFIX". */
static bool numbered_name(
    const char *name, const char *prefix, size_t digits, const char *suffix, int32_t *number) {
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length))
        return false;
    size_t count = strspn(name + length, "0123456789");
    if (count < digits || count > 9 || strcmp(name + length + count, suffix))
        return false;
    *number = (int32_t)strtol(name + length, NULL, 10);
    return true;
}

bool part_number(const char *name, int32_t *number) {
    return numbered_name(name, "part-", 6, ".h5", number);
}

bool part_rank(const char *name, int32_t *rank) {
    return numbered_name(name, "rank-", 4, "", rank);
}

char *part_folder(const char *campaign_folder, const char *phase, int32_t rank) {
    char *path;
    return asprintf(&path, "%s/%s/rank-%04d", campaign_folder, phase, rank) < 0 ? NULL : path;
}

void part_list_free(struct part_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->parts[i].path);
        free(list->parts[i].relative);
    }
    free(list->parts);
    *list = (struct part_list){0};
}

static enum result add_part(struct part_list *list, const char *campaign_folder, const char *phase,
    const char *rank_name, const char *name) {
    struct part_name part = {0};
    if (!part_rank(rank_name, &part.rank) || !part_number(name, &part.number))
        return OK;
    struct part_name *grown = list->parts;
    if ((list->count & (list->count - 1)) == 0)
        grown = realloc(list->parts, sizeof *grown * (list->count ? list->count * 2 : 1));
    if (!grown)
        return fail(ERROR_MEMORY, "out of memory for the list of parts");
    list->parts = grown;
    if (asprintf(&part.relative, "%s/%s/%s", phase, rank_name, name) < 0)
        return fail(ERROR_MEMORY, "out of memory for the list of parts");
    part.path = path_join(campaign_folder, part.relative);
    list->parts[list->count++] = part;
    return part.path ? OK : fail(ERROR_MEMORY, "out of memory for the list of parts");
}

static enum result list_rank(struct part_list *list, const char *campaign_folder, const char *phase,
    const char *phase_folder, const char *name) {
    char *path = path_join(phase_folder, name);
    DIR *folder = path ? opendir(path) : NULL;
    enum result status = OK;
    if (!folder) {
        /* A folder that went away while we looked has no parts. */
        status = path && (errno == ENOENT || errno == ENOTDIR)
                     ? OK
                     : fail_errno(ERROR_IO, "%s: cannot list", phase_folder);
        goto done;
    }
    for (struct dirent *entry; status == OK && (entry = readdir(folder));)
        status = add_part(list, campaign_folder, phase, name, entry->d_name);
    closedir(folder);
done:
    free(path);
    return status;
}

static int by_rank_and_number(const void *left, const void *right) {
    const struct part_name *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

enum result parts_list(const char *campaign_folder, const char *phase, struct part_list *list) {
    *list = (struct part_list){0};
    char *path = path_join(campaign_folder, phase);
    if (!path)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status = OK;
    DIR *folder = opendir(path);
    if (!folder) {
        status = errno == ENOENT ? OK : fail_errno(ERROR_IO, "%s: cannot list", path);
        goto done;
    }
    int32_t rank;
    for (struct dirent *entry; status == OK && (entry = readdir(folder));)
        if (part_rank(entry->d_name, &rank))
            status = list_rank(list, campaign_folder, phase, path, entry->d_name);
    closedir(folder);
    if (status != OK)
        part_list_free(list);
    else if (list->count)
        qsort(list->parts, list->count, sizeof *list->parts, by_rank_and_number);
done:
    free(path);
    return status;
}

enum result part_next_number(const char *folder, int32_t *number) {
    *number = 0;
    DIR *listing = opendir(folder);
    if (!listing)
        return errno == ENOENT ? OK : fail_errno(ERROR_IO, "%s: cannot list", folder);
    int32_t found;
    for (struct dirent *entry; (entry = readdir(listing));)
        if (part_number(entry->d_name, &found) && found >= *number)
            *number = found + 1;
    closedir(listing);
    return OK;
}

/* FOLDER/part-NNNNNN.h5 of the next number; a number of a part set aside as damaged is used again. */
static char *part_path(const char *folder, int32_t number) {
    char *path;
    return asprintf(&path, "%s/part-%06d.h5", folder, number) < 0 ? NULL : path;
}

enum result part_write(const char *folder, const struct hdf5_image *image, int32_t *number) {
    struct output_file file = {.fd = -1};
    char *path = part_path(folder, *number);
    if (!path)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status;
    TRY_GOTO(status, folder_make(folder), done);
    TRY_GOTO(status, output_file_create(path, &file), done);
    TRY_GOTO(status, output_file_write(&file, image->data, image->bytes), done);
    for (bool taken = true; taken;) {
        TRY_GOTO(status, output_file_commit(&file, false, &taken), done);
        if (++*number > MOST_NUMBER) {
            status = fail(ERROR_IO, "%s: no part number is left", folder);
            goto done;
        }
        if (!taken)
            break;
        free(file.path);
        file.path = part_path(folder, *number);
        if (!file.path) {
            free(path);
            return fail(ERROR_MEMORY, "out of memory for a path");
        }
    }
done:
    output_file_abandon(&file);
    free(path);
    return status;
}

enum result part_open(
    const char *path, const char *format, bool content, struct file_header *header, hid_t *file) {
    *file = H5I_INVALID_HID;
    TRY(header_verify_path(path, format, content, header));
    TRY(hdf5_open(path, file));
    char *found = NULL;
    int64_t version = 0;
    enum result status;
    TRY_GOTO(status, hdf5_get_text(*file, path, "format", &found), done);
    TRY_GOTO(status, hdf5_get_int64(*file, path, "format_version", &version), done);
    if (strcmp(found, header->format) || version != header->version)
        status = fail(ERROR_INPUT, "%s: its attributes say %.40s version %lld, its header %s version %lld",
            path, found, (long long)version, header->format, (long long)header->version);
done:
    free(found);
    if (status != OK) {
        H5Fclose(*file);
        *file = H5I_INVALID_HID;
    }
    return status;
}

enum result requests_identity_of(const char *campaign_folder, char identity[HASH_DIGITS + 1]) {
    struct file_header header;
    char *path = path_join(campaign_folder, "requests.h5");
    if (!path)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status = header_verify_path(path, "nocturne.requests", false, &header);
    free(path);
    if (status == OK)
        memcpy(identity, header.requests, HASH_DIGITS + 1);
    return status;
}

const struct phase_parts *phase_parts(const char *phase) {
    static const struct phase_parts all[] = {
        {"vision", EMBEDDINGS_FORMAT, "images", &embeddings_columns[EMBEDDING_IMAGE], embeddings_part_check},
        {"prefill", STATES_FORMAT, "requests", &states_columns[STATE_REQUEST], states_part_check},
        {"results", RESULTS_FORMAT, "requests", &results_columns[RESULT_REQUEST], results_part_check},
    };
    const struct phase_parts *found = all;
    while (strcmp(found->name, phase))
        found++;
    return found;
}

enum result part_check(const char *path, const char *phase, struct file_header *header, char **identity) {
    hid_t file;
    const struct phase_parts *parts = phase_parts(phase);
    *identity = NULL;
    TRY(part_open(path, parts->format, true, header, &file));
    enum result status;
    TRY_GOTO(status, hdf5_get_text(file, path, "identity", identity), done);
    status = parts->check(file, path, header);
done:
    H5Fclose(file);
    if (status != OK) {
        free(*identity);
        *identity = NULL;
    }
    return status;
}

#include "campaign/campaign.h"
#include "campaign/embeddings_part.h"
#include "campaign/parts.h"
#include "campaign/requests.h"
#include "campaign/results_index.h"
#include "campaign/results_part.h"
#include "campaign/states_part.h"

#include <stdio.h>  /* printf */
#include <stdlib.h> /* free */
#include <string.h> /* strcmp */
#include <sys/stat.h>

static const char *type_name(hid_t type) {
    static const char *const names[] = {"uint8", "int32", "int64", "uint64", "float32", "float64"};
    for (int i = COLUMN_U8; i <= COLUMN_F64; i++)
        if (H5Tequal(type, column_file_type((enum column_type)i)) > 0)
            return names[i];
    return "other type";
}

static void print_dataset(hid_t dataset, const char *path, const char *name) {
    char *description = NULL, *units = NULL, shape[64] = "?";
    hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    hsize_t extents[2] = {0, 0};
    int dimensions = H5Sget_simple_extent_ndims(space);
    if (dimensions == 1 || dimensions == 2)
        H5Sget_simple_extent_dims(space, extents, NULL);
    if (dimensions == 1)
        snprintf(shape, sizeof shape, "[%llu]", (unsigned long long)extents[0]);
    else if (dimensions == 2)
        snprintf(shape, sizeof shape, "[%llu, %llu]", (unsigned long long)extents[0],
            (unsigned long long)extents[1]);
    if (hdf5_get_text(dataset, path, "description", &description) != OK)
        description = NULL;
    bool has_units = H5Aexists(dataset, "units") > 0 && hdf5_get_text(dataset, path, "units", &units) == OK;
    printf("  %-28s %-8s %-18s %s%s%s%s\n", name, type_name(type), shape, description ? description : "",
        has_units ? " (" : "", has_units ? units : "", has_units ? ")" : "");
    free(description);
    free(units);
    H5Sclose(space);
    H5Tclose(type);
}

static herr_t visit(hid_t file, const char *name, const H5O_info_t *info, void *path) {
    if (info->type != H5O_TYPE_DATASET)
        return 0;
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    if (dataset < 0)
        return 0;
    print_dataset(dataset, path, name);
    H5Dclose(dataset);
    return 0;
}

static void print_attributes(hid_t file, const char *path) {
    static const char *const texts[] = {"version", "command", "host", "created", "model_folder",
        "fingerprint", "identity", "requests", "settings"};
    static const char *const numbers[] = {"rank", "ranks", "supernode"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *text;
        if (hdf5_get_text(file, path, texts[i], &text) == OK)
            printf("%-17s %s\n", texts[i], text);
        free(text);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int64_t value;
        if (H5Aexists(file, numbers[i]) > 0 && hdf5_get_int64(file, path, numbers[i], &value) == OK)
            printf("%-17s %lld\n", numbers[i], (long long)value);
    }
}

/* Checks beyond the hashes: that the datasets agree. */
static enum result check_structure(hid_t file, const char *path, const struct file_header *header) {
    if (!strcmp(header->format, RESULTS_FORMAT))
        return results_part_check(file, path, header);
    if (!strcmp(header->format, STATES_FORMAT))
        return states_part_check(file, path, header);
    if (!strcmp(header->format, EMBEDDINGS_FORMAT))
        return embeddings_part_check(file, path, header);
    return OK;
}

static enum result inspect_file(const char *path) {
    struct file_header header;
    hid_t file;
    TRY(header_verify_path(path, NULL, true, &header));
    printf("%s\n%-17s %s version %lld\n%-17s %lld\n", path, "format", header.format,
        (long long)header.version, "bytes", (long long)header.bytes);
    printf("%-17s %lld: %lld completed, %lld failed; %lld prompt tokens, %lld generated tokens\n", "records",
        (long long)header.records, (long long)header.completed, (long long)header.failed,
        (long long)header.prompt_tokens, (long long)header.generated_tokens);
    TRY(hdf5_open(path, &file));
    print_attributes(file, path);
    printf("datasets\n");
    /* Only what our own formats know is asked of the library, so a failing visit just prints less. */
#if H5_VERSION_GE(1, 12, 0)
    H5Ovisit3(file, H5_INDEX_NAME, H5_ITER_NATIVE, visit, (void *)(uintptr_t)path, H5O_INFO_BASIC);
#else
    H5Ovisit2(file, H5_INDEX_NAME, H5_ITER_NATIVE, visit, (void *)(uintptr_t)path, H5O_INFO_BASIC);
#endif
    enum result status = check_structure(file, path, &header);
    H5Fclose(file);
    if (status == OK)
        printf("checks            header, content hash and structure are right\n");
    return status;
}

/* One line a part; faults are counted, and the last one is reported at the end. */
static enum result inspect_phase(const char *folder, const char *phase, int64_t *damaged) {
    struct part_list list;
    TRY(parts_list(folder, phase, &list));
    for (size_t i = 0; i < list.count; i++) {
        struct file_header header;
        char *identity;
        if (part_check(list.parts[i].path, phase, &header, &identity) == OK) {
            printf("%s: %lld records, %lld failed, %lld bytes; whole\n", list.parts[i].relative,
                (long long)header.records, (long long)header.failed, (long long)header.bytes);
            free(identity);
        } else {
            printf("%s: NOT WHOLE: %s\n", list.parts[i].relative, failure_message());
            ++*damaged;
        }
    }
    part_list_free(&list);
    return OK;
}

enum result campaign_inspect(const char *path) {
    struct stat found;
    if (stat(path, &found))
        return fail_errno(ERROR_IO, "%s: cannot look at it", path);
    if (!S_ISDIR(found.st_mode))
        return inspect_file(path);
    char *requests = path_join(path, "requests.h5");
    int64_t damaged = 0;
    if (!requests)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status = inspect_file(requests);
    free(requests);
    TRY(status);
    TRY(inspect_phase(path, "vision", &damaged));
    TRY(inspect_phase(path, "prefill", &damaged));
    TRY(inspect_phase(path, "results", &damaged));
    if (damaged)
        return fail(ERROR_INPUT, "%s: %lld parts are not whole", path, (long long)damaged);
    return OK;
}

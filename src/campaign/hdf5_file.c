#include "campaign/hdf5_file.h"

#include "base/beacon.h"

#include <errno.h>  /* errno */
#include <fcntl.h>  /* open */
#include <limits.h> /* HOST_NAME_MAX */
#include <stdio.h>  /* snprintf, sscanf */
#include <stdlib.h> /* malloc, realloc, free */
#include <string.h> /* memcpy, strstr */
#include <time.h>   /* gmtime_r */
#include <unistd.h> /* gethostname, lseek, fsync */
#include <xxhash.h>

/* HDF5's own superblock (version 2 and 3) begins after the user block; its end-of-file address is at this offset. */
enum { END_OF_FILE_OFFSET = HEADER_BYTES + 28, SUPERBLOCK_BYTES = 48, IMAGE_INCREMENT = 1 << 16 };

/* Every use of HDF5 begins here. Its own clean-up at exit is left out: we close what we open, and after a failed write it
 * would try again to write what is left of that file, and crash. */
static void silence(void) {
    static bool begun;
    if (!begun)
        H5dont_atexit();
    begun = true;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

size_t column_type_bytes(enum column_type type) {
    static const size_t bytes[] = {1, 4, 8, 8, 4, 8};
    return bytes[type];
}

hid_t column_file_type(enum column_type type) {
    switch (type) {
    case COLUMN_U8:
        return H5T_STD_U8LE;
    case COLUMN_I32:
        return H5T_STD_I32LE;
    case COLUMN_I64:
        return H5T_STD_I64LE;
    case COLUMN_U64:
        return H5T_STD_U64LE;
    case COLUMN_F32:
        return H5T_IEEE_F32LE;
    case COLUMN_F64:
        return H5T_IEEE_F64LE;
    }
    return H5I_INVALID_HID;
}

hid_t column_memory_type(enum column_type type) {
    switch (type) {
    case COLUMN_U8:
        return H5T_NATIVE_UINT8;
    case COLUMN_I32:
        return H5T_NATIVE_INT32;
    case COLUMN_I64:
        return H5T_NATIVE_INT64;
    case COLUMN_U64:
        return H5T_NATIVE_UINT64;
    case COLUMN_F32:
        return H5T_NATIVE_FLOAT;
    case COLUMN_F64:
        return H5T_NATIVE_DOUBLE;
    }
    return H5I_INVALID_HID;
}

/* The innermost entry of HDF5's error stack; the system's error number stands in the text of its drivers' entries. */
struct cause {
    char text[512];
    int error;
};

static herr_t note_cause(unsigned depth, const H5E_error2_t *entry, void *context) {
    (void)depth;
    struct cause *cause = context;
    const char *description = entry->desc ? entry->desc : "";
    if (!cause->text[0])
        snprintf(cause->text, sizeof cause->text, "%.500s", description);
    const char *number = strstr(description, "errno = ");
    if (number && !cause->error)
        sscanf(number, "errno = %d", &cause->error);
    return 0;
}

static struct cause noted;

int64_t hdf5_noted(int64_t status) {
    if (status < 0) {
        noted = (struct cause){.text = "", .error = 0};
        H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_cause, &noted);
    }
    return status;
}

enum result hdf5_fail(enum result code, const char *path, const char *action, const char *name) {
    struct cause cause = {.text = "", .error = 0};
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_cause, &cause);
    if (!cause.text[0])
        cause = noted;
    noted = (struct cause){.text = "", .error = 0};
    H5Eclear2(H5E_DEFAULT);
    char what[256];
    snprintf(what, sizeof what, "%s%s%s", action, name && *name ? " " : "", name ? name : "");
    if (cause.error) {
        errno = cause.error;
        return code == ERROR_IO ? fail_output(path, what) : fail_errno(ERROR_IO, "%s: cannot %s", path, what);
    }
    return fail(code, "%s: cannot %s: %s", path, what, cause.text[0] ? cause.text : "HDF5 gave no reason");
}

/* File access: formats of HDF5 1.8 to 1.10, no file locks. */
static hid_t access_properties(void) {
    silence();
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V110);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
#if H5_VERSION_GE(1, 10, 7) && !(H5_VERSION_GE(1, 12, 0) && !H5_VERSION_GE(1, 12, 1))
    H5Pset_file_locking(access, 0, 1);
#endif
    return access;
}

static hid_t creation_properties(void) {
    hid_t creation = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_userblock(creation, HEADER_BYTES);
    H5Pset_obj_track_times(creation, 0);
    return creation;
}

/* The core driver's memory functions: they let us keep its buffer when it closes the file, so that a part isn't copied. */
static void *image_malloc(size_t bytes, H5FD_file_image_op_t operation, void *context) {
    (void)operation;
    struct hdf5_image *image = context;
    image->capacity = bytes;
    return malloc(bytes);
}

static void *image_realloc(void *data, size_t bytes, H5FD_file_image_op_t operation, void *context) {
    (void)operation;
    struct hdf5_image *image = context;
    void *grown = realloc(data, bytes);
    if (grown || !bytes)
        image->capacity = bytes;
    return grown;
}

static void *image_copy(
    void *to, const void *from, size_t bytes, H5FD_file_image_op_t operation, void *context) {
    (void)operation;
    (void)context;
    return memcpy(to, from, bytes);
}

static herr_t image_keep(void *data, H5FD_file_image_op_t operation, void *context) {
    struct hdf5_image *image = context;
    if (operation == H5FD_FILE_IMAGE_OP_FILE_CLOSE)
        image->data = data;
    else
        free(data);
    return 0;
}

static void *share_context(void *context) {
    return context;
}

static herr_t keep_context(void *context) {
    (void)context;
    return 0;
}

enum result hdf5_image_begin(struct hdf5_image *image, hid_t *file) {
    *image = (struct hdf5_image){0};
    H5FD_file_image_callbacks_t callbacks = {
        image_malloc, image_copy, image_realloc, image_keep, share_context, keep_context, image};
    hid_t access = access_properties();
    hid_t creation = creation_properties();
    H5Pset_fapl_core(access, IMAGE_INCREMENT, 0);
    H5Pset_file_image_callbacks(access, &callbacks);
    *file = hdf5_noted(H5Fcreate("nocturne-image", H5F_ACC_TRUNC, creation, access));
    H5Pclose(creation);
    H5Pclose(access);
    return *file >= 0 ? OK : hdf5_fail(ERROR_INTERNAL, "a part in memory", "create", "");
}

enum result hdf5_image_finish(struct hdf5_image *image, hid_t *file, struct file_header *header) {
    TRY(hdf5_close(file, "a part in memory"));
    uint64_t end = 0;
    if (!image->data || image->capacity < HEADER_BYTES + SUPERBLOCK_BYTES)
        return fail(ERROR_INTERNAL, "HDF5 left no image of a part");
    memcpy(&end, (char *)image->data + END_OF_FILE_OFFSET, sizeof end);
    if (end < HEADER_BYTES + SUPERBLOCK_BYTES || end > image->capacity)
        return fail(ERROR_INTERNAL, "HDF5's image of a part ends at byte %llu of %zu",
            (unsigned long long)end, image->capacity);
    image->bytes = (size_t)end;
    header->bytes = (int64_t)end;
    hash_digits_128((char *)image->data + HEADER_BYTES, image->bytes - HEADER_BYTES, header->content_hash);
    header_format(header, image->data);
    return OK;
}

void hdf5_image_free(struct hdf5_image *image) {
    free(image->data);
    *image = (struct hdf5_image){0};
}

enum result hdf5_create(const char *path, hid_t *file) {
    ignore_size_signal();
    hid_t access = access_properties();
    hid_t creation = creation_properties();
    beacon_file(path);
    *file = hdf5_noted(H5Fcreate(path, H5F_ACC_TRUNC, creation, access));
    beacon_file(NULL);
    H5Pclose(creation);
    H5Pclose(access);
    return *file >= 0 ? OK : hdf5_fail(ERROR_IO, path, "create", "");
}

enum result hdf5_open(const char *path, hid_t *file) {
    hid_t access = access_properties();
    beacon_file(path);
    *file = hdf5_noted(H5Fopen(path, H5F_ACC_RDONLY, access));
    beacon_file(NULL);
    H5Pclose(access);
    return *file >= 0 ? OK : hdf5_fail(ERROR_INPUT, path, "open as HDF5", "");
}

enum result hdf5_close(hid_t *file, const char *path) {
    hid_t closing = *file;
    *file = H5I_INVALID_HID;
    if (closing < 0)
        return OK;
    beacon_file(path);
    herr_t closed = H5Fclose(closing);
    beacon_file(NULL);
    if (closed >= 0)
        return OK;
    return hdf5_fail(ERROR_IO, path, "write", "(closing)");
}

enum result hdf5_seal(const char *path, struct file_header *header) {
    char block[HEADER_BYTES];
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return fail_output(path, "open");
    enum result status = OK;
    header->bytes = lseek(fd, 0, SEEK_END);
    TRY_GOTO(status, header_hash_content(fd, path, header->bytes, header->content_hash), done);
    header_format(header, block);
    lseek(fd, 0, SEEK_SET);
    TRY_GOTO(status, write_fully(fd, block, sizeof block, path), done);
    beacon_file(path);
    if (fsync(fd))
        status = fail_output(path, "flush to disk");
    beacon_file(NULL);
done:
    if (close(fd) && status == OK)
        status = fail_output(path, "close");
    return status;
}

static enum result put_attribute(
    hid_t object, const char *name, hid_t type, hid_t memory_type, const void *value) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = hdf5_noted(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
    int64_t written = attribute < 0 ? -1 : hdf5_noted(H5Awrite(attribute, memory_type, value));
    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    return written < 0 ? hdf5_fail(ERROR_IO, "HDF5 file", "write the attribute", name) : OK;
}

static hid_t text_type(size_t bytes) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, bytes);
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    H5Tset_cset(type, H5T_CSET_UTF8);
    return type;
}

enum result hdf5_put_text(hid_t object, const char *name, const char *text) {
    const char *given = text ? text : "";
    hid_t type = text_type(*given ? strlen(given) : 1);
    enum result status = put_attribute(object, name, type, type, given);
    H5Tclose(type);
    return status;
}

enum result hdf5_put_int64(hid_t object, const char *name, int64_t value) {
    return put_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

enum result hdf5_get_text(hid_t object, const char *path, const char *name, char **text) {
    enum { MOST_TEXT = 1 << 24 };
    *text = NULL;
    hid_t type = H5I_INVALID_HID, memory_type = H5I_INVALID_HID, space = H5I_INVALID_HID;
    enum result status = OK;
    silence();
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    if (attribute < 0)
        return hdf5_fail(ERROR_INPUT, path, "find the attribute", name);
    type = H5Aget_type(attribute);
    space = H5Aget_space(attribute);
    size_t bytes = type >= 0 && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0
                       ? H5Tget_size(type)
                       : 0;
    if (!bytes || bytes > MOST_TEXT || H5Sget_simple_extent_npoints(space) != 1) {
        status = fail(ERROR_INPUT, "%s: the attribute %s is not a text of fixed length", path, name);
        goto done;
    }
    *text = calloc(1, bytes + 1);
    if (!*text) {
        status = fail(ERROR_MEMORY, "%s: out of memory for the attribute %s", path, name);
        goto done;
    }
    memory_type = H5Tcopy(type);
    H5Tset_strpad(memory_type, H5T_STR_NULLPAD);
    if (H5Aread(attribute, memory_type, *text) < 0) {
        status = hdf5_fail(ERROR_INPUT, path, "read the attribute", name);
        free(*text);
        *text = NULL;
    }
done:
    if (memory_type >= 0)
        H5Tclose(memory_type);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    H5Aclose(attribute);
    return status;
}

enum result hdf5_get_int64(hid_t object, const char *path, const char *name, int64_t *value) {
    silence();
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    if (attribute < 0)
        return hdf5_fail(ERROR_INPUT, path, "find the attribute", name);
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    enum result status = OK;
    if (H5Tequal(type, H5T_STD_I64LE) <= 0 || H5Sget_simple_extent_npoints(space) != 1)
        status = fail(ERROR_INPUT, "%s: the attribute %s is not a 64-bit integer", path, name);
    else if (H5Aread(attribute, H5T_NATIVE_INT64, value) < 0)
        status = hdf5_fail(ERROR_INPUT, path, "read the attribute", name);
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(attribute);
    return status;
}

enum result hdf5_put_provenance(
    hid_t file, const struct provenance *provenance, const struct file_header *header, int32_t rank) {
    char host[HOST_NAME_MAX + 1] = "", created[32];
    if (gethostname(host, sizeof host - 1))
        host[0] = '\0';
    time_t now = time(NULL);
    struct tm utc;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    const struct {
        const char *name, *text;
    } texts[] = {{"format", header->format}, {"version", NOCTURNE_VERSION}, {"command", provenance->command},
        {"model_folder", provenance->model_folder}, {"fingerprint", provenance->fingerprint},
        {"identity", provenance->identity}, {"settings", provenance->settings},
        {"requests", header->requests}, {"host", host}, {"created", created}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        TRY(hdf5_put_text(file, texts[i].name, texts[i].text));
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"format_version", FORMAT_VERSION}, {"ranks", provenance->ranks},
        {"supernode", provenance->supernode}, {"records", header->records}, {"completed", header->completed},
        {"failed", header->failed}, {"prompt_tokens", header->prompt_tokens},
        {"generated_tokens", header->generated_tokens}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(hdf5_put_int64(file, numbers[i].name, numbers[i].value));
    return rank < 0 ? OK : hdf5_put_int64(file, "rank", rank);
}

enum result provenance_copy(const struct provenance *from, struct provenance *to) {
    *to = (struct provenance){.ranks = from->ranks, .supernode = from->supernode};
    const char *const texts[] = {
        from->command, from->model_folder, from->fingerprint, from->identity, from->settings};
    const char **const copies[] = {
        &to->command, &to->model_folder, &to->fingerprint, &to->identity, &to->settings};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!(*copies[i] = strdup(texts[i] ? texts[i] : ""))) {
            provenance_free(to);
            return fail(ERROR_MEMORY, "out of memory for a file's attributes");
        }
    return OK;
}

void provenance_free(struct provenance *provenance) {
    const char *const texts[] = {provenance->command, provenance->model_folder, provenance->fingerprint,
        provenance->identity, provenance->settings};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        free((void *)(uintptr_t)texts[i]);
    *provenance = (struct provenance){0};
}

enum result hdf5_describe(hid_t dataset, const struct column *column) {
    if (column->units)
        TRY(hdf5_put_text(dataset, "units", column->units));
    return hdf5_put_text(dataset, "description", column->description);
}

/* Dataset-space rank and extents of a column: [count] or [count, row_values]. */
static int column_extents(size_t count, size_t row_values, hsize_t extents[2]) {
    extents[0] = count;
    extents[1] = row_values;
    return row_values ? 2 : 1;
}

/* Bytes of a row. */
static size_t row_size(const struct column *column, size_t row_values) {
    return (row_values ? row_values : 1) * column_type_bytes(column->type);
}

enum result hdf5_write_column(hid_t file, const char *path, const struct column *column, const void *data,
    size_t count, size_t row_values) {
    hsize_t extents[2];
    int dimensions = column_extents(count, row_values, extents);
    hid_t space = H5Screate_simple(dimensions, extents, NULL);
    hid_t links = H5Pcreate(H5P_LINK_CREATE), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    H5Pset_obj_track_times(creation, 0);
    H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
    hid_t dataset =
        H5Dcreate2(file, column->name, column_file_type(column->type), space, links, creation, H5P_DEFAULT);
    enum result status = OK;
    if (dataset < 0) {
        status = hdf5_fail(ERROR_IO, path, "create the dataset", column->name);
        goto done;
    }
    if (count &&
        H5Dwrite(dataset, column_memory_type(column->type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
        status = hdf5_fail(ERROR_IO, path, "write the dataset", column->name);
        goto done;
    }
    size_t bytes = count * row_size(column, row_values);
    char digits[17];
    format_hash_64(XXH3_64bits(count ? data : "", bytes), digits);
    TRY_GOTO(status, hdf5_describe(dataset, column), done);
    status = hdf5_put_text(dataset, "xxh3_64", digits);
done:
    if (dataset >= 0)
        H5Dclose(dataset);
    H5Pclose(creation);
    H5Pclose(links);
    H5Sclose(space);
    return status;
}

enum result hdf5_open_column(hid_t file, const char *path, const struct column *column, size_t row_values,
    hid_t *dataset, size_t *count) {
    silence();
    *dataset = H5Dopen2(file, column->name, H5P_DEFAULT);
    if (*dataset < 0)
        return hdf5_fail(ERROR_INPUT, path, "find the dataset", column->name);
    hid_t type = H5Dget_type(*dataset), space = H5Dget_space(*dataset),
          creation = H5Dget_create_plist(*dataset);
    hsize_t extents[2] = {0, 0};
    int dimensions = H5Sget_simple_extent_ndims(space);
    const char *fault = NULL;
    size_t row = row_size(column, row_values);
    if (H5Tequal(type, column_file_type(column->type)) <= 0)
        fault = "has another type than the format says";
    else if (dimensions != (row_values ? 2 : 1) || H5Sget_simple_extent_dims(space, extents, NULL) < 0 ||
             (row_values && extents[1] != row_values))
        fault = "has another shape than the format says";
    /* A contiguous dataset can't claim more than the file holds; memory is allocated by its size. */
    else if (H5Pget_layout(creation) != H5D_CONTIGUOUS || H5Pget_external_count(creation) != 0 ||
             extents[0] > SIZE_MAX / row || (extents[0] && H5Dget_storage_size(*dataset) != extents[0] * row))
        fault = "isn't stored in one piece";
    H5Pclose(creation);
    H5Sclose(space);
    H5Tclose(type);
    *count = (size_t)extents[0];
    if (!fault)
        return OK;
    H5Dclose(*dataset);
    *dataset = H5I_INVALID_HID;
    return fail(ERROR_INPUT, "%s: the dataset %s %s", path, column->name, fault);
}

enum result hdf5_read_rows(hid_t dataset, const char *path, const struct column *column, size_t row_values,
    uint64_t first, size_t count, void *data) {
    if (!count)
        return OK;
    hsize_t start[2] = {first, 0}, extents[2];
    int dimensions = column_extents(count, row_values, extents);
    hid_t space = H5Dget_space(dataset), memory = H5Screate_simple(dimensions, extents, NULL);
    int64_t got = hdf5_noted(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, extents, NULL));
    beacon_file(path);
    if (got >= 0)
        got =
            hdf5_noted(H5Dread(dataset, column_memory_type(column->type), memory, space, H5P_DEFAULT, data));
    beacon_file(NULL);
    H5Sclose(memory);
    H5Sclose(space);
    return got < 0 ? hdf5_fail(ERROR_INPUT, path, "read the dataset", column->name) : OK;
}

enum result hdf5_read_column(hid_t file, const char *path, const struct column *column, struct vector *data) {
    hid_t dataset;
    size_t count = 0;
    char *expected = NULL, digits[17];
    TRY(hdf5_open_column(file, path, column, 0, &dataset, &count));
    enum result status = OK;
    size_t bytes = count * column_type_bytes(column->type);
    data->bytes = 0;
    TRY_GOTO(status, vector_reserve(data, bytes), done);
    data->bytes = bytes;
    TRY_GOTO(status, hdf5_read_rows(dataset, path, column, 0, 0, count, data->data), done);
    TRY_GOTO(status, hdf5_get_text(dataset, path, "xxh3_64", &expected), done);
    format_hash_64(XXH3_64bits(bytes ? data->data : "", bytes), digits);
    if (!expected || strcmp(digits, expected))
        status = fail(ERROR_INPUT, "%s: the dataset %s is damaged (checksum %s, expected %.40s)", path,
            column->name, digits, expected);
done:
    free(expected);
    H5Dclose(dataset);
    return status;
}

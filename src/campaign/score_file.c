#include "campaign/score_file.h"

#include "campaign/files.h"
#include "campaign/hdf5_file.h"

#include <fcntl.h>  /* open */
#include <math.h>   /* NAN */
#include <stdio.h>  /* rename */
#include <stdlib.h> /* calloc */
#include <string.h> /* strdup */
#include <unistd.h> /* fsync */

enum { CHUNK_BYTES = 1 << 18 };

/* An extendible dataset; `columns` 0: one-dimensional. */
struct growing {
    const struct column *column;
    hid_t dataset;
    int64_t rows, columns;
};

enum {
    OFFSETS,
    TOKEN_IDS,
    LOGPROBS,
    IDS,
    ID_OFFSETS,
    ERROR_LINES,
    MESSAGES,
    MESSAGE_OFFSETS,
    LOGITS,
    DATASETS
};

static const struct column columns[DATASETS] = {
    [OFFSETS] = {"offsets", COLUMN_U64, "tokens", "text i is rows offsets[i] to offsets[i + 1]"},
    [TOKEN_IDS] = {"token_ids", COLUMN_I32, NULL, "token ids of the texts"},
    [LOGPROBS] = {"logprobs", COLUMN_F32, "nats",
        "natural log-probability of each token given those before it; 0 for a text's first, NaN where not "
        "computed"},
    [IDS] = {"id", COLUMN_U8, NULL, "ids of the texts, UTF-8, end to end"},
    [ID_OFFSETS] = {"id_offsets", COLUMN_U64, "bytes", "id i is bytes id_offsets[i] to id_offsets[i + 1]"},
    [ERROR_LINES] = {"errors/line", COLUMN_I64, NULL, "1-based input lines that could not be scored"},
    [MESSAGES] = {"errors/message", COLUMN_U8, NULL, "what was wrong with them, UTF-8, end to end"},
    [MESSAGE_OFFSETS] = {"errors/message_offsets", COLUMN_U64, "bytes", "message i is bytes [i] to [i + 1]"},
    [LOGITS] = {"logits", COLUMN_F32, NULL,
        "row i: logits of the token after token i; NaN where not computed"},
};

struct score_file {
    char *path, *temporary;
    hid_t file;
    struct growing sets[DATASETS];
};

static hid_t create_properties(const struct column *column, int64_t row_columns) {
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t row_bytes = column_type_bytes(column->type) * (hsize_t)(row_columns ? row_columns : 1);
    hsize_t chunk[2] = {row_bytes < CHUNK_BYTES ? CHUNK_BYTES / row_bytes : 1, (hsize_t)row_columns};
    float not_computed = NAN;
    H5Pset_chunk(properties, row_columns ? 2 : 1, chunk);
    if (column->type == COLUMN_F32)
        H5Pset_fill_value(properties, H5T_NATIVE_FLOAT, &not_computed);
    return properties;
}

static enum result create_set(struct score_file *file, int which, int64_t row_columns) {
    struct growing *set = &file->sets[which];
    set->column = &columns[which];
    set->columns = row_columns;
    hsize_t size[2] = {0, (hsize_t)row_columns}, most[2] = {H5S_UNLIMITED, (hsize_t)row_columns};
    hid_t space = H5Screate_simple(row_columns ? 2 : 1, size, most);
    hid_t properties = create_properties(set->column, row_columns);
    hid_t links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    set->dataset = H5Dcreate2(file->file, set->column->name, column_file_type(set->column->type), space,
        links, properties, H5P_DEFAULT);
    enum result status = set->dataset < 0 ? hdf5_fail(ERROR_IO, file->path, "create", set->column->name) : OK;
    H5Pclose(links);
    H5Pclose(properties);
    H5Sclose(space);
    return status == OK ? hdf5_describe(set->dataset, set->column) : status;
}

static enum result extend(struct score_file *file, struct growing *set, int64_t rows) {
    hsize_t size[2] = {(hsize_t)rows, (hsize_t)set->columns};
    if (H5Dset_extent(set->dataset, size) < 0)
        return hdf5_fail(ERROR_IO, file->path, "extend", set->column->name);
    set->rows = rows;
    return OK;
}

static enum result write_rows(
    struct score_file *file, struct growing *set, int64_t first, int64_t count, const void *data) {
    if (count == 0)
        return OK;
    hsize_t start[2] = {(hsize_t)first, 0}, size[2] = {(hsize_t)count, (hsize_t)set->columns};
    int dimensions = set->columns ? 2 : 1;
    hid_t space = H5Dget_space(set->dataset), memory = H5Screate_simple(dimensions, size, NULL);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, size, NULL);
    herr_t written =
        H5Dwrite(set->dataset, column_memory_type(set->column->type), memory, space, H5P_DEFAULT, data);
    enum result status = written < 0 ? hdf5_fail(ERROR_IO, file->path, "write", set->column->name) : OK;
    H5Sclose(memory);
    H5Sclose(space);
    return status;
}

static enum result append(struct score_file *file, int which, const void *data, int64_t count) {
    struct growing *set = &file->sets[which];
    int64_t first = set->rows;
    TRY(extend(file, set, first + count));
    return write_rows(file, set, first, count, data);
}

static enum result append_end(struct score_file *file, int offsets, int values) {
    uint64_t end = (uint64_t)file->sets[values].rows;
    return append(file, offsets, &end, 1);
}

static enum result create_all(struct score_file *file, const struct score_file_options *options) {
    TRY(hdf5_create(file->temporary, &file->file));
    for (int i = 0; i < DATASETS; i++)
        if (i != LOGITS || options->logits)
            TRY(create_set(file, i, i == LOGITS ? options->vocab_size : 0));
    TRY(append_end(file, OFFSETS, TOKEN_IDS));
    TRY(append_end(file, ID_OFFSETS, IDS));
    TRY(append_end(file, MESSAGE_OFFSETS, MESSAGES));
    TRY(hdf5_put_text(file->file, "version", NOCTURNE_VERSION));
    TRY(hdf5_put_text(file->file, "fingerprint", options->fingerprint));
    TRY(hdf5_put_text(file->file, "mode", options->mode));
    TRY(hdf5_put_text(file->file, "kernels", options->kernels));
    return hdf5_put_text(file->file, "tail", options->tail);
}

enum result score_file_create(
    const char *path, const struct score_file_options *options, struct score_file **file) {
    TRY(output_check(path));
    struct score_file *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "%s: out of memory", path);
    made->file = H5I_INVALID_HID;
    for (int i = 0; i < DATASETS; i++)
        made->sets[i].dataset = H5I_INVALID_HID;
    made->path = strdup(path);
    made->temporary = temporary_name(path);
    enum result status = made->path && made->temporary ? create_all(made, options)
                                                       : fail(ERROR_MEMORY, "%s: out of memory", path);
    if (status == OK)
        *file = made;
    else
        score_file_abandon(made);
    return status;
}

static enum result close_file(struct score_file *file) {
    enum result status = OK;
    for (int i = 0; i < DATASETS; i++)
        if (file->sets[i].dataset >= 0 && H5Dclose(file->sets[i].dataset) < 0 && status == OK)
            status = hdf5_fail(ERROR_IO, file->path, "write", columns[i].name);
    if (file->file >= 0) {
        enum result closed = hdf5_close(&file->file, file->path);
        status = status == OK ? closed : status;
    }
    return status;
}

static void free_file(struct score_file *file) {
    free(file->path);
    free(file->temporary);
    free(file);
}

void score_file_abandon(struct score_file *file) {
    if (!file)
        return;
    char message[4096];
    snprintf(message, sizeof message, "%s", failure_message());
    if (close_file(file) != OK)
        (void)fail(ERROR_IO, "%s", message); /* the first message stays */
    if (file->temporary)
        unlink(file->temporary);
    free_file(file);
}

static enum result flush_file(const struct score_file *file) {
    int fd = open(file->temporary, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_output(file->path, "open again");
    int code = fsync(fd);
    close(fd);
    return code ? fail_output(file->path, "flush") : OK;
}

enum result score_file_finish(struct score_file *file) {
    enum result status = close_file(file);
    if (status == OK)
        status = flush_file(file);
    if (status == OK && rename(file->temporary, file->path) != 0)
        status = fail_output(file->path, "rename");
    if (status != OK)
        unlink(file->temporary);
    free_file(file);
    return status;
}

int64_t score_file_tokens(const struct score_file *file) {
    return file->sets[TOKEN_IDS].rows;
}

enum result score_file_put_logits(
    struct score_file *file, int64_t first, int64_t count, const float *logits) {
    struct growing *set = &file->sets[LOGITS];
    if (first + count > set->rows)
        TRY(extend(file, set, first + count));
    return write_rows(file, set, first, count, logits);
}

enum result score_file_add(struct score_file *file, const char *id, int64_t id_bytes,
    const int32_t *token_ids, const float *logprobs, int64_t tokens) {
    TRY(append(file, TOKEN_IDS, token_ids, tokens));
    TRY(append(file, LOGPROBS, logprobs, tokens));
    TRY(append_end(file, OFFSETS, TOKEN_IDS));
    TRY(append(file, IDS, id, id_bytes));
    TRY(append_end(file, ID_OFFSETS, IDS));
    if (file->sets[LOGITS].dataset < 0 || file->sets[LOGITS].rows >= file->sets[TOKEN_IDS].rows)
        return OK;
    return extend(file, &file->sets[LOGITS], file->sets[TOKEN_IDS].rows);
}

enum result score_file_add_error(
    struct score_file *file, int64_t line, const char *message, int64_t message_bytes) {
    TRY(append(file, ERROR_LINES, &line, 1));
    TRY(append(file, MESSAGES, message, message_bytes));
    return append_end(file, MESSAGE_OFFSETS, MESSAGES);
}

#include "campaign/results_index.h"

#include <stdio.h>  /* rename */
#include <stdlib.h> /* free */
#include <string.h> /* memcpy */
#include <unistd.h> /* unlink */

struct index_writer {
    const char *path; /* the temporary file, for messages */
    hid_t file;
    const struct indexed_part *parts;
    size_t count;
};

/* Rows of a column over all parts; the first 0 of a column of offsets counts once. */
static uint64_t joined_rows(const struct index_writer *writer, int column) {
    uint64_t rows = 0, first = column_is_offsets(&results_columns[column]);
    for (size_t i = 0; i < writer->count; i++)
        rows += writer->parts[i].rows[column] - first;
    return rows + first;
}

/* A dataset whose values stay in the parts. Paths are relative to results.h5. */
static enum result write_virtual(const struct index_writer *writer, int column) {
    const struct column *about = &results_columns[column];
    hsize_t total = joined_rows(writer, column), start = 0;
    if (!total)
        return hdf5_write_column(writer->file, writer->path, about, NULL, 0, 0);
    hid_t space = H5Screate_simple(1, &total, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
    int64_t made = 0;
    H5Pset_obj_track_times(creation, 0);
    for (size_t i = 0; i < writer->count && made >= 0; i++) {
        hsize_t rows = writer->parts[i].rows[column];
        if (!rows)
            continue;
        hid_t source = H5Screate_simple(1, &rows, NULL);
        made = hdf5_noted(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &rows, NULL));
        if (made >= 0)
            made = hdf5_noted(
                H5Pset_virtual(creation, space, writer->parts[i].name->relative, about->name, source));
        H5Sclose(source);
        start += rows;
    }
    H5Sselect_all(space);
    hid_t dataset = made < 0 ? H5I_INVALID_HID
                             : H5Dcreate2(writer->file, about->name, column_file_type(about->type), space,
                                   H5P_DEFAULT, creation, H5P_DEFAULT);
    enum result status = dataset < 0 ? hdf5_fail(ERROR_IO, writer->path, "create the dataset", about->name)
                                     : hdf5_describe(dataset, about);
    if (dataset >= 0)
        H5Dclose(dataset);
    H5Pclose(creation);
    H5Sclose(space);
    return status;
}

static enum result write_rows(const struct index_writer *writer, hid_t dataset, const struct column *about,
    hsize_t start, hsize_t rows, const void *values) {
    if (!rows)
        return OK;
    hid_t space = H5Dget_space(dataset), memory = H5Screate_simple(1, &rows, NULL);
    int64_t written = hdf5_noted(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &rows, NULL));
    if (written >= 0)
        written = hdf5_noted(
            H5Dwrite(dataset, column_memory_type(about->type), memory, space, H5P_DEFAULT, values));
    H5Sclose(memory);
    H5Sclose(space);
    return written < 0 ? hdf5_fail(ERROR_IO, writer->path, "write the dataset", about->name) : OK;
}

/* One part's offsets, moved behind those of the parts before. */
static enum result append_offsets(const struct index_writer *writer, hid_t dataset, int column,
    const struct indexed_part *part, hsize_t *row, uint64_t *end, struct vector *data) {
    const struct column *about = &results_columns[column];
    hid_t file;
    TRY(hdf5_open(part->name->path, &file));
    enum result status = hdf5_read_column(file, part->name->path, about, data);
    H5Fclose(file);
    if (status != OK)
        return status;
    uint64_t *offsets = data->data;
    size_t rows = data->bytes / sizeof *offsets;
    if (rows != part->rows[column])
        return fail(ERROR_INPUT, "%s: it changed while it was read", part->name->path);
    for (size_t i = 0; i < rows; i++)
        offsets[i] += *end;
    TRY(write_rows(writer, dataset, about, *row, rows - 1, offsets + 1));
    *row += rows - 1;
    *end = offsets[rows - 1];
    return OK;
}

static enum result write_offsets(const struct index_writer *writer, int column) {
    const struct column *about = &results_columns[column];
    hsize_t total = joined_rows(writer, column), row = 1;
    uint64_t end = 0;
    struct vector data = {0};
    hid_t space = H5Screate_simple(1, &total, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(creation, 0);
    hid_t dataset = H5Dcreate2(
        writer->file, about->name, column_file_type(about->type), space, H5P_DEFAULT, creation, H5P_DEFAULT);
    enum result status = OK;
    if (dataset < 0) {
        status = hdf5_fail(ERROR_IO, writer->path, "create the dataset", about->name);
        goto done;
    }
    TRY_GOTO(status, hdf5_describe(dataset, about), done);
    TRY_GOTO(status, write_rows(writer, dataset, about, 0, 1, &end), done);
    for (size_t i = 0; i < writer->count && status == OK; i++)
        status = append_offsets(writer, dataset, column, &writer->parts[i], &row, &end, &data);
done:
    if (dataset >= 0 && H5Dclose(dataset) < 0 && status == OK)
        status = hdf5_fail(ERROR_IO, writer->path, "write the dataset", about->name);
    H5Pclose(creation);
    H5Sclose(space);
    vector_free(&data);
    return status;
}

static enum result write_contents(const struct index_writer *writer, const int64_t *record_of_request,
    int64_t total, const struct provenance *provenance, const struct file_header *header) {
    static const struct column records = {
        "record_of_request", COLUMN_I64, NULL, "record of each request of requests.h5; -1: it has none yet"};
    TRY(hdf5_put_provenance(writer->file, provenance, header, -1));
    TRY(hdf5_put_int64(writer->file, "parts", (int64_t)writer->count));
    for (int i = 0; i < RESULT_COLUMNS; i++)
        TRY(column_is_offsets(&results_columns[i]) ? write_offsets(writer, i) : write_virtual(writer, i));
    return hdf5_write_column(writer->file, writer->path, &records, record_of_request, (size_t)total, 0);
}

enum result results_index_write(const char *campaign_folder, const struct indexed_part *parts, size_t count,
    const int64_t *record_of_request, int64_t total, const struct provenance *provenance,
    struct file_header *header) {
    char *path = path_join(campaign_folder, "results.h5");
    char *temporary = path ? temporary_name(path) : NULL;
    struct index_writer writer = {.path = temporary, .file = H5I_INVALID_HID, .parts = parts, .count = count};
    memcpy(header->format, INDEX_FORMAT, sizeof INDEX_FORMAT);
    header->version = FORMAT_VERSION;
    enum result status;
    if (!temporary) {
        status = fail(ERROR_MEMORY, "out of memory for a path");
        goto done;
    }
    TRY_GOTO(status, hdf5_create(temporary, &writer.file), done);
    TRY_GOTO(status, write_contents(&writer, record_of_request, total, provenance, header), done);
    TRY_GOTO(status, hdf5_close(&writer.file, temporary), done);
    TRY_GOTO(status, hdf5_seal(temporary, header), done);
    if (rename(temporary, path))
        status = fail_output(path, "rename the finished file to its name");
    else
        status = folder_flush(campaign_folder);
done:
    if (writer.file >= 0)
        H5Fclose(writer.file);
    if (temporary && status != OK)
        unlink(temporary);
    free(temporary);
    free(path);
    return status;
}

#include "campaign/requests.h"

#include "base/beacon.h"
#include "campaign/requests_columns.h"

#include <stdio.h>  /* rename */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy, strlen */
#include <unistd.h> /* unlink */
#include <xxhash.h>

enum {
    BATCH_BYTES = 8 << 20, /* gathered before datasets are extended */
    CHUNK_BYTES = 1 << 16, /* of a dataset in a file of more than one batch */
};

/* The extendible datasets of one table. */
struct stream {
    struct table table;
    const struct column_layout *layouts;
    hid_t *datasets; /* [table.count], made with the first batch */
    hsize_t *rows;   /* [table.count] written */
    XXH3_state_t **hashes;
    bool open;
};

struct requests_writer {
    char *path, *temporary, *folder;
    hid_t file;
    struct provenance provenance; /* its texts are copies */
    int64_t seed;
    char *options;
    struct stream requests, refused, images, inputs;
    struct file_header header; /* counts as they grow */
    int64_t image_count;
};

static enum result stream_create(
    struct stream *stream, const struct column *columns, const struct column_layout *layouts, int count) {
    *stream = (struct stream){.layouts = layouts};
    TRY(table_create(&stream->table, columns, count));
    stream->datasets = calloc((size_t)count, sizeof *stream->datasets);
    stream->rows = calloc((size_t)count, sizeof *stream->rows);
    stream->hashes = calloc((size_t)count, sizeof *stream->hashes);
    if (!stream->datasets || !stream->rows || !stream->hashes)
        return fail(ERROR_MEMORY, "out of memory for writing requests.h5");
    for (int i = 0; i < count; i++) {
        stream->datasets[i] = H5I_INVALID_HID;
        stream->hashes[i] = XXH3_createState();
        if (!stream->hashes[i])
            return fail(ERROR_MEMORY, "out of memory for writing requests.h5");
        XXH3_64bits_reset(stream->hashes[i]);
    }
    return OK;
}

static void stream_free(struct stream *stream) {
    for (int i = 0; i < stream->table.count; i++) {
        if (stream->datasets && stream->datasets[i] >= 0)
            H5Dclose(stream->datasets[i]);
        if (stream->hashes)
            XXH3_freeState(stream->hashes[i]);
    }
    free(stream->datasets);
    free(stream->rows);
    free(stream->hashes);
    table_free(&stream->table);
    *stream = (struct stream){0};
}

/* Chunks are of CHUNK_BYTES, or as long as the data when all fit in one: small campaigns make small files. */
static hsize_t chunk_rows(const struct stream *stream, int column, bool only_batch) {
    hsize_t rows = CHUNK_BYTES / column_type_bytes(stream->table.columns[column].type);
    size_t all = table_rows(&stream->table, column);
    if (only_batch && all < rows)
        rows = all ? all : 1;
    return rows;
}

static enum result open_dataset(
    struct stream *stream, hid_t file, const char *path, int column, bool only_batch) {
    const struct column *about = &stream->table.columns[column];
    hsize_t none = 0, most = H5S_UNLIMITED, chunk = chunk_rows(stream, column, only_batch);
    hid_t space = H5Screate_simple(1, &none, &most);
    hid_t links = H5Pcreate(H5P_LINK_CREATE), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    H5Pset_obj_track_times(creation, 0);
    H5Pset_chunk(creation, 1, &chunk);
    H5Pset_fletcher32(creation);
    hid_t dataset =
        H5Dcreate2(file, about->name, column_file_type(about->type), space, links, creation, H5P_DEFAULT);
    stream->datasets[column] = dataset;
    H5Pclose(creation);
    H5Pclose(links);
    H5Sclose(space);
    if (dataset < 0)
        return hdf5_fail(ERROR_IO, path, "create the dataset", about->name);
    return hdf5_describe(dataset, about);
}

static enum result extend_dataset(struct stream *stream, const char *path, int column) {
    hsize_t count = table_rows(&stream->table, column);
    if (!count)
        return OK;
    const struct column *about = &stream->table.columns[column];
    hid_t dataset = stream->datasets[column];
    hsize_t start = stream->rows[column], end = start + count;
    const void *values = table_values(&stream->table, column);
    beacon_file(path);
    int64_t written = hdf5_noted(H5Dset_extent(dataset, &end));
    hid_t space = H5Dget_space(dataset), memory = H5Screate_simple(1, &count, NULL);
    if (written >= 0)
        written = hdf5_noted(H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL));
    if (written >= 0)
        written = hdf5_noted(
            H5Dwrite(dataset, column_memory_type(about->type), memory, space, H5P_DEFAULT, values));
    beacon_file(NULL);
    H5Sclose(memory);
    H5Sclose(space);
    if (written < 0)
        return hdf5_fail(ERROR_IO, path, "write the dataset", about->name);
    stream->rows[column] = end;
    XXH3_64bits_update(stream->hashes[column], values, count * column_type_bytes(about->type));
    return OK;
}

/* Writes what the table holds and empties it. `last`: nothing follows. */
static enum result stream_flush(struct stream *stream, hid_t file, const char *path, bool last) {
    for (int i = 0; i < stream->table.count; i++) {
        if (!stream->open)
            TRY(open_dataset(stream, file, path, i, last));
        TRY(extend_dataset(stream, path, i));
    }
    stream->open = true;
    table_clear(&stream->table);
    return OK;
}

/* Puts the checksums in, adds them to `identity`, closes the datasets. */
static enum result stream_finish(
    struct stream *stream, hid_t file, const char *path, XXH3_state_t *identity) {
    TRY(stream_flush(stream, file, path, true));
    for (int i = 0; i < stream->table.count; i++) {
        char digits[17];
        format_hash_64(XXH3_64bits_digest(stream->hashes[i]), digits);
        XXH3_128bits_update(
            identity, stream->table.columns[i].name, strlen(stream->table.columns[i].name) + 1);
        XXH3_128bits_update(identity, digits, sizeof digits);
        TRY(hdf5_put_text(stream->datasets[i], "xxh3_64", digits));
        int64_t closed = hdf5_noted(H5Dclose(stream->datasets[i]));
        stream->datasets[i] = H5I_INVALID_HID;
        if (closed < 0)
            return hdf5_fail(ERROR_IO, path, "write the dataset", stream->table.columns[i].name);
    }
    return OK;
}

static void writer_free(struct requests_writer *writer) {
    stream_free(&writer->requests);
    stream_free(&writer->refused);
    stream_free(&writer->images);
    stream_free(&writer->inputs);
    if (writer->file >= 0) {
        H5Fclose(writer->file);
        H5Eclear2(H5E_DEFAULT);
    }
    if (writer->temporary)
        unlink(writer->temporary);
    free(writer->path);
    free(writer->temporary);
    free(writer->folder);
    free(writer->options);
    provenance_free(&writer->provenance);
    free(writer);
}

void requests_writer_abandon(struct requests_writer *writer) {
    if (writer)
        writer_free(writer);
}

enum result requests_writer_create(const char *campaign_folder, const struct provenance *provenance,
    const struct requests_source *source, struct requests_writer **writer) {
    *writer = NULL;
    struct requests_writer *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for writing requests.h5");
    enum result status;
    made->file = H5I_INVALID_HID;
    made->seed = source->seed;
    made->folder = strdup(campaign_folder);
    made->path = path_join(campaign_folder, "requests.h5");
    made->temporary = made->path ? temporary_name(made->path) : NULL;
    made->options = strdup(source->options ? source->options : "");
    if (!made->folder || !made->temporary || !made->options) {
        status = fail(ERROR_MEMORY, "out of memory for writing requests.h5");
        goto done;
    }
    TRY_GOTO(status, provenance_copy(provenance, &made->provenance), done);
    TRY_GOTO(
        status, stream_create(&made->requests, requests_columns, requests_layouts, REQUEST_COLUMNS), done);
    TRY_GOTO(status, stream_create(&made->refused, refused_columns, refused_layouts, REFUSED_COLUMNS), done);
    TRY_GOTO(status, stream_create(&made->images, image_columns, image_layouts, IMAGE_COLUMN_COUNT), done);
    TRY_GOTO(status, stream_create(&made->inputs, input_columns, input_layouts, INPUT_COLUMNS), done);
    for (int32_t i = 0; i < source->file_count; i++)
        TRY_GOTO(status, table_append_text(&made->inputs.table, INPUT_FILES, source->files[i]), done);
    status = hdf5_create(made->temporary, &made->file);
done:
    if (status != OK)
        writer_free(made);
    else
        *writer = made;
    return status;
}

static enum result add_sampling(struct table *table, const struct sampling *sampling) {
    const struct {
        int column;
        float value;
    } floats[] = {{REQUEST_TEMPERATURE, sampling->temperature}, {REQUEST_TOP_P, sampling->top_p},
        {REQUEST_MIN_P, sampling->min_p}, {REQUEST_PRESENCE_PENALTY, sampling->presence_penalty},
        {REQUEST_FREQUENCY_PENALTY, sampling->frequency_penalty}};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        TRY(table_append_float(table, floats[i].column, floats[i].value));
    const struct {
        int column;
        int32_t value;
    } integers[] = {{REQUEST_TOP_K, sampling->top_k}, {REQUEST_CHOICES, sampling->choices},
        {REQUEST_MAX_TOKENS, sampling->max_tokens}, {REQUEST_TOP_LOGPROBS, sampling->top_logprobs}};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        TRY(table_append_int32(table, integers[i].column, integers[i].value));
    TRY(table_append_byte(table, REQUEST_HAS_SEED, sampling->has_seed));
    TRY(table_append_int64(table, REQUEST_SEED, sampling->has_seed ? sampling->seed : 0));
    TRY(table_append_byte(table, REQUEST_IGNORE_EOS, sampling->ignore_eos));
    TRY(table_append(table, REQUEST_BIAS_IDS, sampling->bias_ids, (size_t)sampling->bias_count));
    TRY(table_append_ragged(table, REQUEST_BIAS_VALUES, sampling->bias_values, (size_t)sampling->bias_count));
    TRY(table_append_ragged(table, REQUEST_STOP_IDS, sampling->stop_ids, (size_t)sampling->stop_id_count));
    for (int32_t i = 0; i < sampling->stop_count; i++)
        TRY(table_append_ragged(table, REQUEST_STOPS, sampling->stops[i].data, sampling->stops[i].bytes));
    return table_append_offset(table, REQUEST_STOP_LIST_OFFSETS, (size_t)sampling->stop_count);
}

static enum result add_images(struct table *table, const struct request *request) {
    TRY(table_append_int32(table, REQUEST_IMAGE_TOKENS, request->image_tokens));
    for (int32_t i = 0; i < request->image_count; i++) {
        TRY(table_append_int64(table, REQUEST_IMAGES, request->images[i].image));
        TRY(table_append_int32(table, REQUEST_IMAGE_POSITIONS, request->images[i].position));
    }
    return table_append_offset(table, REQUEST_IMAGE_OFFSETS, (size_t)request->image_count);
}

static enum result flush_when_full(struct requests_writer *writer, struct stream *stream) {
    if (table_bytes(&stream->table) < BATCH_BYTES)
        return OK;
    return stream_flush(stream, writer->file, writer->temporary, false);
}

enum result requests_writer_add(struct requests_writer *writer, const struct request *request) {
    struct table *table = &writer->requests.table;
    TRY(table_append_int32(table, REQUEST_FILE, request->file));
    TRY(table_append_int64(table, REQUEST_LINE, request->line));
    TRY(table_append_ragged(table, REQUEST_CUSTOM_ID, request->custom_id.data, request->custom_id.bytes));
    TRY(table_append_ragged(table, REQUEST_MODEL, request->model.data, request->model.bytes));
    TRY(table_append_byte(table, REQUEST_KIND, (uint8_t)request->kind));
    TRY(table_append_byte(table, REQUEST_THINKING, request->thinking));
    TRY(table_append_byte(table, REQUEST_START, (uint8_t)request->start));
    TRY(table_append_byte(table, REQUEST_PARSE_TOOL_CALLS, request->parse_tool_calls));
    TRY(table_append_byte(table, REQUEST_JSON_OUTPUT, request->json_output));
    TRY(table_append_byte(table, REQUEST_CONSTRAINT, (uint8_t)request->constraint));
    TRY(table_append_byte(table, REQUEST_CONSTRAINT_STRICT, request->constraint_strict));
    TRY(table_append_byte(table, REQUEST_CONSTRAINT_COMPACT, request->constraint_compact));
    TRY(table_append_byte(table, REQUEST_ONE_CALL, request->one_call));
    TRY(table_append_ragged(
        table, REQUEST_CONSTRAINT_TEXT, request->constraint_text.data, request->constraint_text.bytes));
    TRY(table_append_ragged(table, REQUEST_TOKEN_IDS, request->token_ids, (size_t)request->token_count));
    TRY(add_images(table, request));
    TRY(add_sampling(table, &request->sampling));
    writer->header.records++;
    writer->header.completed++;
    writer->header.prompt_tokens += request->token_count;
    return flush_when_full(writer, &writer->requests);
}

enum result requests_writer_add_image(struct requests_writer *writer, const struct campaign_image *image) {
    struct table *table = &writer->images.table;
    TRY(table_append_text(table, IMAGE_HASH, image->hash));
    TRY(table_append_text(table, IMAGE_FORMAT, image->format));
    TRY(table_append_byte(table, IMAGE_LOW_DETAIL, image->low_detail));
    TRY(table_append_int32(table, IMAGE_ROWS, image->rows));
    TRY(table_append_int32(table, IMAGE_COLUMNS, image->columns));
    TRY(table_append_int32(table, IMAGE_TOKENS, image->tokens));
    TRY(table_append_ragged(table, IMAGE_DATA, image->data, image->bytes));
    writer->image_count++;
    return flush_when_full(writer, &writer->images);
}

enum result requests_writer_add_error(struct requests_writer *writer, const struct request_error *error) {
    struct table *table = &writer->refused.table;
    TRY(table_append_int32(table, REFUSED_FILE, error->file));
    TRY(table_append_int64(table, REFUSED_LINE, error->line));
    TRY(table_append_byte(table, REFUSED_HAS_CUSTOM_ID, error->has_custom_id));
    TRY(table_append_ragged(
        table, REFUSED_CUSTOM_ID, error->custom_id.data, error->has_custom_id ? error->custom_id.bytes : 0));
    TRY(table_append_int32(table, REFUSED_STATUS, error->status));
    TRY(table_append_text(table, REFUSED_TYPE, error->type));
    TRY(table_append_text(table, REFUSED_CODE, error->code));
    TRY(table_append_text(table, REFUSED_PARAM, error->param));
    TRY(table_append_text(table, REFUSED_MESSAGE, error->message));
    writer->header.failed++;
    return flush_when_full(writer, &writer->refused);
}

/* The last batches, the identity, all attributes; closes the HDF5 file. */
static enum result finish_hdf5(struct requests_writer *writer, const struct requests_input *input) {
    const char *path = writer->temporary;
    struct file_header *header = &writer->header;
    XXH3_state_t *identity = XXH3_createState();
    if (!identity)
        return fail(ERROR_MEMORY, "%s: out of memory", path);
    XXH3_128bits_reset(identity);
    const char *fingerprint = writer->provenance.fingerprint;
    XXH3_128bits_update(identity, fingerprint, strlen(fingerprint) + 1);
    XXH3_128bits_update(identity, &writer->seed, sizeof writer->seed);
    enum result status;
    TRY_GOTO(status, stream_finish(&writer->requests, writer->file, path, identity), done);
    TRY_GOTO(status, stream_finish(&writer->refused, writer->file, path, identity), done);
    TRY_GOTO(status, stream_finish(&writer->images, writer->file, path, identity), done);
    XXH128_hash_t hash = XXH3_128bits_digest(identity);
    format_hash_128(hash.high64, hash.low64, header->requests);
    TRY_GOTO(status, stream_finish(&writer->inputs, writer->file, path, identity), done);
    memcpy(header->format, REQUESTS_FORMAT, sizeof REQUESTS_FORMAT);
    header->version = FORMAT_VERSION;
    struct provenance provenance = writer->provenance;
    provenance.identity = header->requests;
    TRY_GOTO(status, hdf5_put_provenance(writer->file, &provenance, header, -1), done);
    TRY_GOTO(status, hdf5_put_text(writer->file, "input_xxh3_128", input->hash), done);
    TRY_GOTO(status, hdf5_put_text(writer->file, "options", writer->options), done);
    TRY_GOTO(status, hdf5_put_int64(writer->file, "seed", writer->seed), done);
    TRY_GOTO(status, hdf5_put_int64(writer->file, "lines", input->lines), done);
    TRY_GOTO(status, hdf5_put_int64(writer->file, "blank_lines", input->blank_lines), done);
    TRY_GOTO(status, hdf5_put_int64(writer->file, "refused", header->failed), done);
    TRY_GOTO(status, hdf5_put_int64(writer->file, "images", writer->image_count), done);
    status = hdf5_close(&writer->file, path);
done:
    XXH3_freeState(identity);
    return status;
}

enum result requests_writer_finish(struct requests_writer *writer, const struct requests_input *input) {
    enum result status;
    TRY_GOTO(status, finish_hdf5(writer, input), done);
    TRY_GOTO(status, hdf5_seal(writer->temporary, &writer->header), done);
    if (rename(writer->temporary, writer->path)) {
        status = fail_output(writer->path, "rename the finished file to its name");
        goto done;
    }
    free(writer->temporary);
    writer->temporary = NULL;
    status = folder_flush(writer->folder);
done:
    writer_free(writer);
    return status;
}

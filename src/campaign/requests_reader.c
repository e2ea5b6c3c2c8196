#include "campaign/requests.h"

#include "campaign/requests_columns.h"

#include <errno.h>  /* errno */
#include <limits.h> /* INT32_MAX */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy, strcmp */
#include <unistd.h> /* access */

enum {
    LEAST_BLOCK = 16,        /* records read at once after a jump */
    MOST_BLOCK = 4096,       /* ... when reading on in order */
    BLOCK_VALUES = 16 << 20, /* tokens read at once, unless one request has more */
    CHECK_BYTES = 64 << 20,  /* files up to this size have their content's hash checked at opening */
};

/* The open datasets of one table, and how many records it has. */
struct reader {
    const struct column *columns;
    const struct column_layout *layouts;
    int count;
    int64_t records;
    hid_t *datasets;   /* [count] */
    uint64_t *extents; /* [count] rows in the file */
};

/* Records [first, first + count) in memory. Offsets are as in the file. */
struct block {
    int64_t first, count;
    struct table table;
    uint64_t *begins; /* [columns] row in the file where the table's rows begin */
};

struct requests {
    char *path;
    struct file_header header;
    hid_t file;
    char *model_folder, *fingerprint, *input_hash, *options;
    int64_t seed;
    struct reader requests, refused, images;
    struct block block, heads, formats, prompts, errors, image, shown;
    struct text_piece *stops; /* [stop_capacity] of the format read last */
    size_t stop_capacity;
    struct table inputs;
    char **input_files; /* NUL-terminated, [input_file_count] */
    int32_t input_file_count;
    int32_t *lengths;                                   /* [records], read on demand */
    int32_t *choices, *max_tokens;                      /* [records], read on demand */
    int32_t *image_tokens;                              /* [images], read on demand */
    char image_hash[HASH_DIGITS + 1], image_format[16]; /* of the image read last */
};

/* What requests_read gives out: the request first, then all it points to. */
struct request_memory {
    struct request request;
};

static enum result open_chunked(struct reader *reader, hid_t file, const char *path, int column) {
    const struct column *about = &reader->columns[column];
    hid_t dataset = H5Dopen2(file, about->name, H5P_DEFAULT);
    reader->datasets[column] = dataset;
    if (dataset < 0)
        return hdf5_fail(ERROR_INPUT, path, "find the dataset", about->name);
    hid_t type = H5Dget_type(dataset), space = H5Dget_space(dataset);
    hsize_t extent = 0;
    bool right = H5Tequal(type, column_file_type(about->type)) > 0 &&
                 H5Sget_simple_extent_ndims(space) == 1 &&
                 H5Sget_simple_extent_dims(space, &extent, NULL) == 1;
    H5Sclose(space);
    H5Tclose(type);
    reader->extents[column] = extent;
    return right ? OK
                 : fail(ERROR_INPUT, "%s: the dataset %s has another type or shape than the format says",
                       path, about->name);
}

static void reader_close(struct reader *reader) {
    for (int i = 0; reader->datasets && i < reader->count; i++)
        if (reader->datasets[i] >= 0)
            H5Dclose(reader->datasets[i]);
    free(reader->datasets);
    free(reader->extents);
    *reader = (struct reader){0};
}

static enum result reader_open(struct reader *reader, hid_t file, const char *path,
    const struct column *columns, const struct column_layout *layouts, int count, int64_t records) {
    *reader = (struct reader){.columns = columns, .layouts = layouts, .count = count, .records = records};
    reader->datasets = malloc((size_t)count * sizeof *reader->datasets);
    reader->extents = calloc((size_t)count, sizeof *reader->extents);
    if (!reader->datasets || !reader->extents) {
        free(reader->datasets);
        reader->datasets = NULL;
        return fail(ERROR_MEMORY, "%s: out of memory for reading it", path);
    }
    for (int i = 0; i < count; i++)
        reader->datasets[i] = H5I_INVALID_HID;
    for (int i = 0; i < count; i++) {
        TRY(open_chunked(reader, file, path, i));
        uint64_t expected = (uint64_t)records + (layouts[i].extent == EXTENT_OFFSETS);
        if (layouts[i].extent <= EXTENT_OFFSETS && reader->extents[i] != expected)
            return fail(ERROR_INPUT, "%s: the dataset %s has %llu rows, expected %llu", path, columns[i].name,
                (unsigned long long)reader->extents[i], (unsigned long long)expected);
    }
    return OK;
}

static void block_free(struct block *block) {
    table_free(&block->table);
    free(block->begins);
    *block = (struct block){0};
}

static enum result block_create(struct block *block, const struct reader *reader) {
    *block = (struct block){0};
    block->begins = calloc((size_t)reader->count, sizeof *block->begins);
    if (!block->begins)
        return fail(ERROR_MEMORY, "out of memory for reading requests.h5");
    return table_create(&block->table, reader->columns, reader->count);
}

static enum result fail_beyond(const struct reader *reader, const char *path, int column) {
    return fail(ERROR_INPUT, "%s: the dataset %s has %llu rows, its offsets go beyond", path,
        reader->columns[column].name, (unsigned long long)reader->extents[column]);
}

/* Rows [begin, begin + count) of one column into the block. */
static enum result load_rows(const struct reader *reader, const char *path, struct block *block, int column,
    uint64_t begin, uint64_t count) {
    struct vector *data = &block->table.data[column];
    size_t size = column_type_bytes(reader->columns[column].type);
    data->bytes = 0;
    if (begin > reader->extents[column] || count > reader->extents[column] - begin || count > SIZE_MAX / size)
        return fail_beyond(reader, path, column);
    TRY(vector_reserve(data, (size_t)count * size));
    data->bytes = (size_t)count * size;
    block->begins[column] = begin;
    return hdf5_read_rows(
        reader->datasets[column], path, &reader->columns[column], 0, begin, (size_t)count, data->data);
}

/* Loads offsets and checks that they never decrease. */
static enum result load_offsets(const struct reader *reader, const char *path, struct block *block,
    int column, uint64_t begin, uint64_t count) {
    if (count >= reader->extents[column]) /* count + 1 may be too large for its type */
        return fail_beyond(reader, path, column);
    TRY(load_rows(reader, path, block, column, begin, count + 1));
    const uint64_t *offsets = table_offsets(&block->table, column);
    for (uint64_t i = 0; i < count; i++)
        if (offsets[i] > offsets[i + 1])
            return fail(ERROR_INPUT, "%s: the dataset %s decreases at entry %llu", path,
                reader->columns[column].name, (unsigned long long)begin + i + 1);
    return OK;
}

/* First and one past the last row that a column of offsets spans in the block. */
static void offsets_span(const struct block *block, int column, uint64_t *begin, uint64_t *count) {
    const uint64_t *offsets = table_offsets(&block->table, column);
    *begin = offsets[0];
    *count = offsets[table_rows(&block->table, column) - 1] - offsets[0];
}

/* Loads records [first, first + count): of the columns in `wanted` (NULL: all), those by record, then those the offsets lead to. */
static enum result block_load(const struct reader *reader, const char *path, struct block *block,
    const bool *wanted, int64_t first, int64_t count) {
    block->count = 0;
    for (int pass = EXTENT_RECORD; pass <= EXTENT_VALUES; pass++)
        for (int i = 0; i < reader->count; i++) {
            struct column_layout layout = reader->layouts[i];
            uint64_t begin = (uint64_t)first, rows = (uint64_t)count;
            if ((int)layout.extent != pass || (wanted && !wanted[i]))
                continue;
            if (pass >= EXTENT_NESTED)
                offsets_span(block, layout.offsets, &begin, &rows);
            if (pass == EXTENT_OFFSETS || pass == EXTENT_NESTED)
                TRY(load_offsets(reader, path, block, i, begin, rows));
            else
                TRY(load_rows(reader, path, block, i, begin, rows));
        }
    block->first = first;
    block->count = count;
    return OK;
}

/* How many records to load for `index`: more and more while reading on in order, few after a jump. A rank has only
 * some of the requests, so that a gap no wider than the last block is still in order. */
static int64_t block_records(const struct reader *reader, const struct block *block, int64_t index) {
    int64_t end = block->first + block->count;
    bool in_order = block->count ? index >= end && index - end <= block->count : index == 0;
    int64_t count = in_order ? (block->count ? block->count * 2 : 256) : LEAST_BLOCK;
    if (count > MOST_BLOCK)
        count = MOST_BLOCK;
    return count < reader->records - index ? count : reader->records - index;
}

/* Makes the block hold record `index`; `values`: a column of offsets by which the block's size is limited, or -1. */
static enum result block_seek(const struct reader *reader, const char *path, struct block *block,
    const bool *wanted, int values, int64_t index) {
    if (index < 0 || index >= reader->records)
        return fail(ERROR_INTERNAL, "%s: record %lld of %lld was asked for", path, (long long)index,
            (long long)reader->records);
    if (block->count && index >= block->first && index < block->first + block->count)
        return OK;
    int64_t count = block_records(reader, block, index);
    block->count = 0;
    if (values >= 0) {
        TRY(load_offsets(reader, path, block, values, (uint64_t)index, (uint64_t)count));
        const uint64_t *offsets = table_offsets(&block->table, values);
        while (count > 1 && offsets[count] - offsets[0] > BLOCK_VALUES)
            count = (count + 1) / 2;
    }
    return block_load(reader, path, block, wanted, index, count);
}

/* Values of entry `entry` (in the file's count) of a ragged column, *count of them. */
static const void *block_values(
    const struct block *block, const struct reader *reader, int column, uint64_t entry, size_t *count) {
    int by = reader->layouts[column].offsets;
    const uint64_t *offsets = table_offsets(&block->table, by) + (entry - block->begins[by]);
    *count = (size_t)(offsets[1] - offsets[0]);
    const char *data = table_values(&block->table, column);
    size_t at = (size_t)(offsets[0] - block->begins[column]);
    return data ? data + at * column_type_bytes(reader->columns[column].type) : "";
}

static struct text_piece block_text(
    const struct block *block, const struct reader *reader, int column, uint64_t entry) {
    size_t count;
    const char *data = block_values(block, reader, column, entry, &count);
    return (struct text_piece){data, count};
}

static int32_t block_int32(const struct block *block, int column, int64_t index) {
    return ((const int32_t *)table_values(&block->table, column))[index - block->first];
}

static int64_t block_int64(const struct block *block, int column, int64_t index) {
    return ((const int64_t *)table_values(&block->table, column))[index - block->first];
}

static float block_float(const struct block *block, int column, int64_t index) {
    return ((const float *)table_values(&block->table, column))[index - block->first];
}

static bool block_flag(const struct block *block, int column, int64_t index) {
    return ((const uint8_t *)table_values(&block->table, column))[index - block->first] != 0;
}

/* One of a few words; what is above `most`, from a newer program, is 0. */
static int block_word(const struct block *block, int column, int64_t index, int most) {
    uint8_t word = ((const uint8_t *)table_values(&block->table, column))[index - block->first];
    return word <= most ? word : 0;
}

static enum result read_inputs(struct requests *made) {
    struct reader reader;
    struct block block = {0};
    int64_t files = 0;
    hid_t dataset = H5Dopen2(made->file, input_columns[INPUT_FILES_OFFSETS].name, H5P_DEFAULT);
    if (dataset >= 0) {
        hid_t space = H5Dget_space(dataset);
        files = (int64_t)H5Sget_simple_extent_npoints(space) - 1;
        H5Sclose(space);
        H5Dclose(dataset);
    }
    if (files < 0 || files > 1 << 20)
        return fail(ERROR_INPUT, "%s: it names %lld input files", made->path, (long long)files);
    enum result status;
    TRY_GOTO(status,
        reader_open(&reader, made->file, made->path, input_columns, input_layouts, INPUT_COLUMNS, files),
        done);
    TRY_GOTO(status, block_create(&block, &reader), done);
    TRY_GOTO(status, block_load(&reader, made->path, &block, NULL, 0, files), done);
    made->input_files = calloc((size_t)files + 1, sizeof *made->input_files);
    for (int64_t i = 0; made->input_files && i < files; i++) {
        struct text_piece name = block_text(&block, &reader, INPUT_FILES, (uint64_t)i);
        made->input_files[i] = strndup(name.data, name.bytes);
        if (!made->input_files[i])
            break;
        made->input_file_count++;
    }
    if (made->input_file_count != files)
        status = fail(ERROR_MEMORY, "%s: out of memory for reading it", made->path);
done:
    block_free(&block);
    reader_close(&reader);
    return status;
}

static enum result read_attributes(struct requests *made) {
    char *identity = NULL;
    const char *path = made->path;
    TRY(hdf5_get_text(made->file, path, "model_folder", &made->model_folder));
    TRY(hdf5_get_text(made->file, path, "fingerprint", &made->fingerprint));
    TRY(hdf5_get_text(made->file, path, "input_xxh3_128", &made->input_hash));
    TRY(hdf5_get_text(made->file, path, "options", &made->options));
    TRY(hdf5_get_int64(made->file, path, "seed", &made->seed));
    TRY(hdf5_get_text(made->file, path, "identity", &identity));
    bool same = !strcmp(identity, made->header.requests);
    free(identity);
    return same ? OK : fail(ERROR_INPUT, "%s: its identity attribute and its header disagree", path);
}

static enum result open_images(struct requests *made) {
    int64_t images;
    TRY(hdf5_get_int64(made->file, made->path, "images", &images));
    if (images < 0)
        return fail(ERROR_INPUT, "%s: it has %lld images", made->path, (long long)images);
    TRY(reader_open(
        &made->images, made->file, made->path, image_columns, image_layouts, IMAGE_COLUMN_COUNT, images));
    return block_create(&made->image, &made->images);
}

enum result requests_open(const char *campaign_folder, struct requests **requests) {
    *requests = NULL;
    struct requests *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for reading requests.h5");
    enum result status;
    made->file = H5I_INVALID_HID;
    made->path = path_join(campaign_folder, "requests.h5");
    if (!made->path) {
        status = fail(ERROR_MEMORY, "out of memory for a path");
        goto done;
    }
    if (access(made->path, F_OK) && errno == ENOENT) {
        status = fail(ERROR_IO, "%s is not there: 'nocturne ingest' makes a campaign", made->path);
        goto done;
    }
    TRY_GOTO(status, header_verify_path(made->path, REQUESTS_FORMAT, false, &made->header), done);
    if (made->header.bytes <= CHECK_BYTES)
        TRY_GOTO(status, header_verify_path(made->path, REQUESTS_FORMAT, true, &made->header), done);
    TRY_GOTO(status, hdf5_open(made->path, &made->file), done);
    TRY_GOTO(status, read_attributes(made), done);
    TRY_GOTO(status,
        reader_open(&made->requests, made->file, made->path, requests_columns, requests_layouts,
            REQUEST_COLUMNS, made->header.completed),
        done);
    TRY_GOTO(status,
        reader_open(&made->refused, made->file, made->path, refused_columns, refused_layouts, REFUSED_COLUMNS,
            made->header.failed),
        done);
    TRY_GOTO(status, block_create(&made->block, &made->requests), done);
    TRY_GOTO(status, block_create(&made->heads, &made->requests), done);
    TRY_GOTO(status, block_create(&made->formats, &made->requests), done);
    TRY_GOTO(status, block_create(&made->prompts, &made->requests), done);
    TRY_GOTO(status, block_create(&made->shown, &made->requests), done);
    TRY_GOTO(status, block_create(&made->errors, &made->refused), done);
    TRY_GOTO(status, open_images(made), done);
    status = read_inputs(made);
done:
    if (status != OK)
        requests_close(made);
    else
        *requests = made;
    return status;
}

void requests_close(struct requests *requests) {
    if (!requests)
        return;
    block_free(&requests->block);
    block_free(&requests->heads);
    block_free(&requests->formats);
    block_free(&requests->prompts);
    free(requests->stops);
    block_free(&requests->errors);
    block_free(&requests->image);
    block_free(&requests->shown);
    reader_close(&requests->requests);
    reader_close(&requests->refused);
    reader_close(&requests->images);
    if (requests->file >= 0)
        H5Fclose(requests->file);
    for (int32_t i = 0; i < requests->input_file_count; i++)
        free(requests->input_files[i]);
    free(requests->input_files);
    free(requests->lengths);
    free(requests->choices);
    free(requests->max_tokens);
    free(requests->image_tokens);
    free(requests->model_folder);
    free(requests->fingerprint);
    free(requests->input_hash);
    free(requests->options);
    free(requests->path);
    free(requests);
}

int64_t requests_count(const struct requests *requests) {
    return requests->header.completed;
}

int64_t requests_error_count(const struct requests *requests) {
    return requests->header.failed;
}

int64_t requests_seed(const struct requests *requests) {
    return requests->seed;
}

int64_t requests_prompt_tokens(const struct requests *requests) {
    return requests->header.prompt_tokens;
}

const char *requests_model_folder(const struct requests *requests) {
    return requests->model_folder;
}

const char *requests_fingerprint(const struct requests *requests) {
    return requests->fingerprint;
}

const char *requests_identity(const struct requests *requests) {
    return requests->header.requests;
}

const char *requests_input_hash(const struct requests *requests) {
    return requests->input_hash;
}

const char *requests_options(const struct requests *requests) {
    return requests->options;
}

int32_t requests_input_file_count(const struct requests *requests) {
    return requests->input_file_count;
}

const char *requests_input_file(const struct requests *requests, int32_t file) {
    return file >= 0 && file < requests->input_file_count ? requests->input_files[file] : "(unknown file)";
}

enum result requests_lengths(struct requests *requests, const int32_t **token_counts) {
    *token_counts = requests->lengths;
    if (requests->lengths)
        return OK;
    enum { PIECE = 1 << 16 };
    const struct reader *reader = &requests->requests;
    struct block block;
    TRY(block_create(&block, reader));
    enum result status = OK;
    int32_t *lengths = malloc((size_t)reader->records * sizeof *lengths + 1);
    if (!lengths) {
        status = fail(
            ERROR_MEMORY, "%s: out of memory for %lld lengths", requests->path, (long long)reader->records);
        goto done;
    }
    for (int64_t first = 0; first < reader->records; first += PIECE) {
        int64_t count = reader->records - first < PIECE ? reader->records - first : PIECE;
        TRY_GOTO(status,
            load_offsets(
                reader, requests->path, &block, REQUEST_TOKEN_OFFSETS, (uint64_t)first, (uint64_t)count),
            done);
        const uint64_t *offsets = table_offsets(&block.table, REQUEST_TOKEN_OFFSETS);
        for (int64_t i = 0; i < count; i++) {
            if (offsets[i + 1] - offsets[i] > INT32_MAX) {
                status = fail(ERROR_INPUT, "%s: request %lld has %llu tokens", requests->path,
                    (long long)first + i, (unsigned long long)offsets[i + 1] - offsets[i]);
                goto done;
            }
            lengths[first + i] = (int32_t)(offsets[i + 1] - offsets[i]);
        }
    }
done:
    block_free(&block);
    if (status != OK) {
        free(lengths);
        return status;
    }
    *token_counts = requests->lengths = lengths;
    return OK;
}

/* Hands out aligned pieces of one allocation; with data NULL only counts. */
struct pieces {
    char *data;
    size_t used;
};

static void *take_copy(struct pieces *pieces, const void *from, size_t bytes) {
    void *to = pieces->data ? pieces->data + pieces->used : NULL;
    if (to && bytes)
        memcpy(to, from, bytes);
    pieces->used += (bytes + 7) & ~(size_t)7;
    return to;
}

static struct text_piece take_text(struct pieces *pieces, struct text_piece text) {
    return (struct text_piece){take_copy(pieces, text.data, text.bytes), text.bytes};
}

static void read_sampling(const struct block *block, int64_t index, struct sampling *sampling) {
    *sampling = (struct sampling){.temperature = block_float(block, REQUEST_TEMPERATURE, index),
        .top_p = block_float(block, REQUEST_TOP_P, index),
        .min_p = block_float(block, REQUEST_MIN_P, index),
        .top_k = block_int32(block, REQUEST_TOP_K, index),
        .presence_penalty = block_float(block, REQUEST_PRESENCE_PENALTY, index),
        .frequency_penalty = block_float(block, REQUEST_FREQUENCY_PENALTY, index),
        .choices = block_int32(block, REQUEST_CHOICES, index),
        .max_tokens = block_int32(block, REQUEST_MAX_TOKENS, index),
        .top_logprobs = block_int32(block, REQUEST_TOP_LOGPROBS, index),
        .has_seed = block_flag(block, REQUEST_HAS_SEED, index),
        .seed = block_int64(block, REQUEST_SEED, index),
        .ignore_eos = block_flag(block, REQUEST_IGNORE_EOS, index)};
}

/* A ragged column's values as a piece; *count is what fits an int32_t. */
static void *take_values(struct pieces *pieces, const struct requests *requests, int column, int64_t index,
    int32_t *count, bool *too_many) {
    size_t found;
    const struct reader *reader = &requests->requests;
    const void *values = block_values(&requests->block, reader, column, (uint64_t)index, &found);
    *too_many |= found > INT32_MAX;
    *count = found > INT32_MAX ? 0 : (int32_t)found;
    return take_copy(pieces, values, (size_t)*count * column_type_bytes(reader->columns[column].type));
}

static void take_stops(struct pieces *pieces, const struct requests *requests, int64_t index,
    struct sampling *sampling, bool *too_many) {
    const struct block *block = &requests->block;
    const uint64_t *lists = table_offsets(&block->table, REQUEST_STOP_LIST_OFFSETS) + (index - block->first);
    uint64_t count = lists[1] - lists[0];
    *too_many |= count > INT32_MAX;
    sampling->stop_count = count > INT32_MAX ? 0 : (int32_t)count;
    struct text_piece *stops = take_copy(pieces, NULL, 0);
    pieces->used += (size_t)sampling->stop_count * sizeof *stops;
    for (int32_t i = 0; i < sampling->stop_count; i++) {
        struct text_piece stop =
            take_text(pieces, block_text(block, &requests->requests, REQUEST_STOPS, lists[0] + (uint64_t)i));
        if (stops)
            stops[i] = stop;
    }
    sampling->stops = stops;
}

static void take_images(struct pieces *pieces, const struct requests *requests, int64_t index,
    struct request *request, bool *too_many) {
    const struct reader *reader = &requests->requests;
    size_t found;
    const int64_t *images = block_values(&requests->block, reader, REQUEST_IMAGES, (uint64_t)index, &found);
    const int32_t *positions =
        block_values(&requests->block, reader, REQUEST_IMAGE_POSITIONS, (uint64_t)index, &found);
    *too_many |= found > INT32_MAX;
    request->image_tokens = block_int32(&requests->block, REQUEST_IMAGE_TOKENS, index);
    request->image_count = found > INT32_MAX ? 0 : (int32_t)found;
    struct request_image *taken = take_copy(pieces, NULL, 0);
    pieces->used += (size_t)request->image_count * sizeof *taken;
    for (int32_t i = 0; taken && i < request->image_count; i++)
        taken[i] = (struct request_image){images[i], positions[i]};
    request->images = taken;
}

/* Fills the request from the block. With pieces->data NULL only the bytes it needs are counted. */
static void take_request(struct pieces *pieces, const struct requests *requests, int64_t index,
    struct request *request, bool *too_many) {
    const struct block *block = &requests->block;
    const struct reader *reader = &requests->requests;
    struct sampling *sampling = &request->sampling;
    int32_t values;
    request->file = block_int32(block, REQUEST_FILE, index);
    request->line = block_int64(block, REQUEST_LINE, index);
    request->kind = (enum request_kind)block_word(block, REQUEST_KIND, index, KIND_MESSAGES);
    request->thinking = block_flag(block, REQUEST_THINKING, index);
    request->start = (enum start_stage)block_word(block, REQUEST_START, index, START_CALLS);
    request->parse_tool_calls = block_flag(block, REQUEST_PARSE_TOOL_CALLS, index);
    request->json_output = block_flag(block, REQUEST_JSON_OUTPUT, index);
    request->constraint =
        (enum constraint_kind)block_word(block, REQUEST_CONSTRAINT, index, CONSTRAINT_NO_TOOL_CALL);
    request->constraint_strict = block_flag(block, REQUEST_CONSTRAINT_STRICT, index);
    request->constraint_compact = block_flag(block, REQUEST_CONSTRAINT_COMPACT, index);
    request->one_call = block_flag(block, REQUEST_ONE_CALL, index);
    request->constraint_text =
        take_text(pieces, block_text(block, reader, REQUEST_CONSTRAINT_TEXT, (uint64_t)index));
    request->custom_id = take_text(pieces, block_text(block, reader, REQUEST_CUSTOM_ID, (uint64_t)index));
    request->model = take_text(pieces, block_text(block, reader, REQUEST_MODEL, (uint64_t)index));
    request->token_ids =
        take_values(pieces, requests, REQUEST_TOKEN_IDS, index, &request->token_count, too_many);
    take_images(pieces, requests, index, request, too_many);
    read_sampling(block, index, sampling);
    sampling->bias_ids =
        take_values(pieces, requests, REQUEST_BIAS_IDS, index, &sampling->bias_count, too_many);
    sampling->bias_values = take_values(pieces, requests, REQUEST_BIAS_VALUES, index, &values, too_many);
    sampling->stop_ids =
        take_values(pieces, requests, REQUEST_STOP_IDS, index, &sampling->stop_id_count, too_many);
    take_stops(pieces, requests, index, sampling, too_many);
}

enum result requests_read(struct requests *requests, int64_t index, struct request **request) {
    *request = NULL;
    TRY(block_seek(
        &requests->requests, requests->path, &requests->block, NULL, REQUEST_TOKEN_OFFSETS, index));
    struct pieces pieces = {0};
    struct request counted;
    bool too_many = false;
    take_request(&pieces, requests, index, &counted, &too_many);
    if (too_many)
        return fail(ERROR_INPUT, "%s: request %lld has more tokens, biases or stops than can be",
            requests->path, (long long)index);
    struct request_memory *memory = malloc(sizeof *memory + pieces.used);
    if (!memory)
        return fail(ERROR_MEMORY, "%s: out of memory for request %lld", requests->path, (long long)index);
    pieces = (struct pieces){.data = (char *)(memory + 1)};
    take_request(&pieces, requests, index, &memory->request, &too_many);
    *request = &memory->request;
    return OK;
}

void requests_release(struct request *request) {
    /* The request is the first member of its allocation. */
    free(request);
}

enum result requests_read_head(struct requests *requests, int64_t index, struct request_head *head) {
    static const bool wanted[REQUEST_COLUMNS] = {[REQUEST_FILE] = true,
        [REQUEST_LINE] = true,
        [REQUEST_CUSTOM_ID] = true,
        [REQUEST_CUSTOM_ID_OFFSETS] = true,
        [REQUEST_MODEL] = true,
        [REQUEST_MODEL_OFFSETS] = true,
        [REQUEST_KIND] = true,
        [REQUEST_THINKING] = true,
        [REQUEST_START] = true,
        [REQUEST_PARSE_TOOL_CALLS] = true,
        [REQUEST_JSON_OUTPUT] = true,
        [REQUEST_TOP_LOGPROBS] = true,
        [REQUEST_IMAGE_TOKENS] = true};
    const struct reader *reader = &requests->requests;
    const struct block *block = &requests->heads;
    TRY(block_seek(reader, requests->path, &requests->heads, wanted, -1, index));
    *head = (struct request_head){.file = block_int32(block, REQUEST_FILE, index),
        .line = block_int64(block, REQUEST_LINE, index),
        .custom_id = block_text(block, reader, REQUEST_CUSTOM_ID, (uint64_t)index),
        .model = block_text(block, reader, REQUEST_MODEL, (uint64_t)index),
        .kind = (enum request_kind)block_word(block, REQUEST_KIND, index, KIND_MESSAGES),
        .thinking = block_flag(block, REQUEST_THINKING, index),
        .start = (enum start_stage)block_word(block, REQUEST_START, index, START_CALLS),
        .parse_tool_calls = block_flag(block, REQUEST_PARSE_TOOL_CALLS, index),
        .json_output = block_flag(block, REQUEST_JSON_OUTPUT, index),
        .top_logprobs = block_int32(block, REQUEST_TOP_LOGPROBS, index),
        .image_tokens = block_int32(block, REQUEST_IMAGE_TOKENS, index)};
    return OK;
}

static enum result reserve_stops(struct requests *requests, size_t count) {
    if (count <= requests->stop_capacity)
        return OK;
    struct text_piece *grown = realloc(requests->stops, count * sizeof *grown);
    if (!grown)
        return fail(ERROR_MEMORY, "%s: out of memory for %zu stop strings", requests->path, count);
    requests->stops = grown;
    requests->stop_capacity = count;
    return OK;
}

enum result requests_read_format(struct requests *requests, int64_t index, struct request_format *format) {
    static const bool wanted[REQUEST_COLUMNS] = {[REQUEST_CONSTRAINT] = true,
        [REQUEST_CONSTRAINT_TEXT] = true,
        [REQUEST_CONSTRAINT_TEXT_OFFSETS] = true,
        [REQUEST_STOP_LIST_OFFSETS] = true,
        [REQUEST_STOPS] = true,
        [REQUEST_STOPS_OFFSETS] = true};
    const struct reader *reader = &requests->requests;
    const struct block *block = &requests->formats;
    TRY(block_seek(
        reader, requests->path, &requests->formats, wanted, REQUEST_CONSTRAINT_TEXT_OFFSETS, index));
    const uint64_t *lists = table_offsets(&block->table, REQUEST_STOP_LIST_OFFSETS) + (index - block->first);
    size_t count = (size_t)(lists[1] - lists[0]);
    if (count > INT32_MAX)
        return fail(
            ERROR_INPUT, "%s: request %lld has more stops than can be", requests->path, (long long)index);
    TRY(reserve_stops(requests, count));
    for (size_t i = 0; i < count; i++)
        requests->stops[i] = block_text(block, reader, REQUEST_STOPS, lists[0] + i);
    *format = (struct request_format){.constraint = (enum constraint_kind)block_word(
                                          block, REQUEST_CONSTRAINT, index, CONSTRAINT_NO_TOOL_CALL),
        .constraint_text = block_text(block, reader, REQUEST_CONSTRAINT_TEXT, (uint64_t)index),
        .stops = requests->stops,
        .stop_count = (int32_t)count};
    return OK;
}

enum result requests_read_prompt(struct requests *requests, int64_t index, struct request_prompt *prompt) {
    static const bool wanted[REQUEST_COLUMNS] = {[REQUEST_TOKEN_IDS] = true,
        [REQUEST_TOKEN_OFFSETS] = true,
        [REQUEST_IMAGES] = true,
        [REQUEST_IMAGE_POSITIONS] = true,
        [REQUEST_IMAGE_OFFSETS] = true};
    const struct reader *reader = &requests->requests;
    const struct block *block = &requests->prompts;
    TRY(block_seek(reader, requests->path, &requests->prompts, wanted, REQUEST_TOKEN_OFFSETS, index));
    size_t tokens, images;
    uint64_t entry = (uint64_t)index;
    *prompt =
        (struct request_prompt){.token_ids = block_values(block, reader, REQUEST_TOKEN_IDS, entry, &tokens),
            .images = block_values(block, reader, REQUEST_IMAGES, entry, &images),
            .positions = block_values(block, reader, REQUEST_IMAGE_POSITIONS, entry, &images)};
    if (tokens > INT32_MAX || images > INT32_MAX)
        return fail(ERROR_INPUT, "%s: request %lld has %zu tokens and %zu images", requests->path,
            (long long)index, tokens, images);
    prompt->tokens = (int32_t)tokens;
    prompt->image_count = (int32_t)images;
    return OK;
}

/* A column of one number a record. */
static enum result read_numbers(const struct requests *requests, int column, int32_t **numbers) {
    const struct reader *reader = &requests->requests;
    size_t count = (size_t)reader->records;
    if (*numbers)
        return OK;
    int32_t *read = malloc(count * sizeof *read + 1);
    if (!read)
        return fail(ERROR_MEMORY, "%s: out of memory for %zu requests", requests->path, count);
    enum result status = hdf5_read_rows(
        reader->datasets[column], requests->path, &requests_columns[column], 0, 0, count, read);
    for (size_t i = 0; i < count && status == OK; i++)
        if (read[i] < 1)
            status = fail(ERROR_INPUT, "%s: %s of request %zu is %d", requests->path,
                requests_columns[column].name, i, read[i]);
    if (status != OK)
        free(read);
    else
        *numbers = read;
    return status;
}

enum result requests_limits(struct requests *requests, const int32_t **choices, const int32_t **max_tokens) {
    TRY(read_numbers(requests, REQUEST_CHOICES, &requests->choices));
    TRY(read_numbers(requests, REQUEST_MAX_TOKENS, &requests->max_tokens));
    *choices = requests->choices;
    *max_tokens = requests->max_tokens;
    return OK;
}

/* A text as a NUL-terminated string in memory that lasts until the next refused line is read; NULL when it's empty. */
static const char *error_string(char *to, size_t capacity, struct text_piece text) {
    size_t bytes = text.bytes < capacity ? text.bytes : capacity - 1;
    memcpy(to, text.data, bytes);
    to[bytes] = '\0';
    return bytes ? to : NULL;
}

enum result requests_read_error(struct requests *requests, int64_t index, struct request_error *error) {
    static char type[256], code[256], param[1024];
    const struct reader *reader = &requests->refused;
    const struct block *block = &requests->errors;
    TRY(block_seek(reader, requests->path, &requests->errors, NULL, -1, index));
    *error = (struct request_error){.file = block_int32(block, REFUSED_FILE, index),
        .line = block_int64(block, REFUSED_LINE, index),
        .has_custom_id = block_flag(block, REFUSED_HAS_CUSTOM_ID, index),
        .status = block_int32(block, REFUSED_STATUS, index)};
    uint64_t entry = (uint64_t)index;
    error->custom_id = block_text(block, reader, REFUSED_CUSTOM_ID, entry);
    error->type = error_string(type, sizeof type, block_text(block, reader, REFUSED_TYPE, entry));
    error->code = error_string(code, sizeof code, block_text(block, reader, REFUSED_CODE, entry));
    error->param = error_string(param, sizeof param, block_text(block, reader, REFUSED_PARAM, entry));
    error_string(error->message, sizeof error->message, block_text(block, reader, REFUSED_MESSAGE, entry));
    if (!error->code)
        error->code = "unknown_error";
    return OK;
}

int64_t requests_image_count(const struct requests *requests) {
    return requests->images.records;
}

enum result requests_read_images(
    struct requests *requests, int64_t index, const int64_t **images, size_t *count) {
    static const bool wanted[REQUEST_COLUMNS] = {[REQUEST_IMAGES] = true, [REQUEST_IMAGE_OFFSETS] = true};
    const struct reader *reader = &requests->requests;
    TRY(block_seek(reader, requests->path, &requests->shown, wanted, REQUEST_IMAGE_OFFSETS, index));
    *images = block_values(&requests->shown, reader, REQUEST_IMAGES, (uint64_t)index, count);
    return OK;
}

enum result requests_image_tokens(struct requests *requests, const int32_t **image_tokens) {
    *image_tokens = requests->image_tokens;
    if (requests->image_tokens)
        return OK;
    const struct reader *reader = &requests->images;
    size_t count = (size_t)reader->records;
    int32_t *tokens = malloc(count * sizeof *tokens + 1);
    if (!tokens)
        return fail(ERROR_MEMORY, "%s: out of memory for %zu images", requests->path, count);
    enum result status = hdf5_read_rows(
        reader->datasets[IMAGE_TOKENS], requests->path, &image_columns[IMAGE_TOKENS], 0, 0, count, tokens);
    for (size_t i = 0; i < count && status == OK; i++)
        if (tokens[i] < 1)
            status = fail(ERROR_INPUT, "%s: image %zu has %d tokens", requests->path, i, tokens[i]);
    if (status != OK) {
        free(tokens);
        return status;
    }
    *image_tokens = requests->image_tokens = tokens;
    return OK;
}

enum result requests_image_identity(
    struct requests *requests, int64_t index, struct image_identity *identity) {
    static const bool wanted[IMAGE_COLUMN_COUNT] = {[IMAGE_HASH] = true,
        [IMAGE_HASH_OFFSETS] = true,
        [IMAGE_LOW_DETAIL] = true,
        [IMAGE_ROWS] = true,
        [IMAGE_COLUMNS] = true,
        [IMAGE_TOKENS] = true};
    const struct reader *reader = &requests->images;
    const struct block *block = &requests->image;
    if (index < 0 || index >= reader->records)
        return fail(ERROR_INTERNAL, "%s: image %lld of %lld was asked for", requests->path, (long long)index,
            (long long)reader->records);
    TRY(block_load(reader, requests->path, &requests->image, wanted, index, 1));
    struct text_piece hash = block_text(block, reader, IMAGE_HASH, (uint64_t)index);
    if (hash.bytes != sizeof identity->hash)
        return fail(ERROR_INPUT, "%s: the hash of image %lld has %zu digits", requests->path,
            (long long)index, hash.bytes);
    *identity = (struct image_identity){
        .low_detail = block_flag(block, IMAGE_LOW_DETAIL, index),
        .rows = block_int32(block, IMAGE_ROWS, index),
        .columns = block_int32(block, IMAGE_COLUMNS, index),
        .tokens = block_int32(block, IMAGE_TOKENS, index),
    };
    memcpy(identity->hash, hash.data, sizeof identity->hash);
    return OK;
}

enum result requests_read_image(struct requests *requests, int64_t index, struct campaign_image *image) {
    const struct reader *reader = &requests->images;
    const struct block *block = &requests->image;
    if (index < 0 || index >= reader->records)
        return fail(ERROR_INTERNAL, "%s: image %lld of %lld was asked for", requests->path, (long long)index,
            (long long)reader->records);
    TRY(block_load(reader, requests->path, &requests->image, NULL, index, 1));
    uint64_t entry = (uint64_t)index;
    struct text_piece data = block_text(block, reader, IMAGE_DATA, entry);
    char found[HASH_DIGITS + 1];
    hash_digits_128(data.data, data.bytes, found);
    *image = (struct campaign_image){
        .hash = error_string(
            requests->image_hash, sizeof requests->image_hash, block_text(block, reader, IMAGE_HASH, entry)),
        .format = error_string(requests->image_format, sizeof requests->image_format,
            block_text(block, reader, IMAGE_FORMAT, entry)),
        .low_detail = block_flag(block, IMAGE_LOW_DETAIL, index),
        .rows = block_int32(block, IMAGE_ROWS, index),
        .columns = block_int32(block, IMAGE_COLUMNS, index),
        .tokens = block_int32(block, IMAGE_TOKENS, index),
        .data = (const uint8_t *)data.data,
        .bytes = data.bytes,
    };
    if (!image->hash || strcmp(found, image->hash))
        return fail(ERROR_INPUT, "%s: image %lld is damaged (checksum %s, expected %s)", requests->path,
            (long long)index, found, image->hash ? image->hash : "one");
    return OK;
}

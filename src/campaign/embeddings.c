#include "campaign/embeddings.h"

#include "campaign/embeddings_part.h"
#include "campaign/parts.h"

#include <limits.h> /* INT32_MAX */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy, strlen */
#include <xxhash.h>

enum { OPEN_PARTS = 8 };

const struct column embeddings_columns[EMBEDDING_COLUMNS] = {
    [EMBEDDING_IMAGE] = {"image", COLUMN_I64, NULL, "index of the image in the group images of requests.h5"},
    [EMBEDDING_HASH] = {"hash", COLUMN_U8, NULL,
        "UTF-8: XXH3 128-bit hash of the image's bytes, hexadecimal digits"},
    [EMBEDDING_HASH_OFFSETS] = {"hash_offsets", COLUMN_U64, "bytes", "where each hash begins"},
    [EMBEDDING_RECORD_HASH] = {"record_xxh3_64", COLUMN_U64, NULL,
        "XXH3 64-bit hash of the record's rows as little-endian bytes"},
    [EMBEDDING_ROW_OFFSETS] = {"row_offsets", COLUMN_U64, "rows", "where each image's rows begin"},
};

/* [rows, hidden] */
static const struct column rows_column = {
    "rows", COLUMN_F32, NULL, "inputs of the language model, one row a position of an image's span"};

/* Writing */

struct embeddings_writer {
    char *folder; /* vision/rank-NNNN */
    char requests[HASH_DIGITS + 1];
    struct provenance provenance; /* its texts are copies */
    int32_t rank, next_number, hidden;
    struct table table;
    struct vector rows;
    struct file_header counts; /* of what is pending */
};

static enum result begin_pending(struct embeddings_writer *writer) {
    table_free(&writer->table);
    writer->rows.bytes = 0;
    writer->counts = (struct file_header){0};
    return table_create(&writer->table, embeddings_columns, EMBEDDING_COLUMNS);
}

enum result embeddings_writer_create(const char *campaign_folder, int32_t rank,
    const struct provenance *provenance, int32_t hidden, struct embeddings_writer **writer) {
    *writer = calloc(1, sizeof **writer);
    struct embeddings_writer *made = *writer;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for an embeddings writer");
    enum result status;
    *made = (struct embeddings_writer){.rank = rank, .hidden = hidden};
    made->folder = part_folder(campaign_folder, "vision", rank);
    if (!made->folder) {
        status = fail(ERROR_MEMORY, "out of memory for a path");
        goto done;
    }
    TRY_GOTO(status, provenance_copy(provenance, &made->provenance), done);
    TRY_GOTO(status, requests_identity_of(campaign_folder, made->requests), done);
    TRY_GOTO(status, part_next_number(made->folder, &made->next_number), done);
    status = begin_pending(made);
done:
    if (status != OK) {
        embeddings_writer_free(made);
        *writer = NULL;
    }
    return status;
}

void embeddings_writer_free(struct embeddings_writer *writer) {
    if (!writer)
        return;
    table_free(&writer->table);
    vector_free(&writer->rows);
    provenance_free(&writer->provenance);
    free(writer->folder);
    free(writer);
}

enum result embeddings_writer_add(struct embeddings_writer *writer, const struct embedding_record *record) {
    struct table *table = &writer->table;
    if (record->image < 0 || record->tokens < 1)
        return fail(ERROR_INTERNAL, "embeddings of image %lld with %d tokens", (long long)record->image,
            record->tokens);
    size_t bytes = (size_t)record->tokens * (size_t)writer->hidden * sizeof *record->rows;
    uint64_t hash = XXH3_64bits(record->rows, bytes);
    TRY(vector_append(&writer->rows, record->rows, bytes));
    TRY(table_append_int64(table, EMBEDDING_IMAGE, record->image));
    TRY(table_append_text(table, EMBEDDING_HASH, record->hash));
    TRY(table_append(table, EMBEDDING_RECORD_HASH, &hash, 1));
    TRY(table_append_offset(table, EMBEDDING_ROW_OFFSETS, (size_t)record->tokens));
    writer->counts.records++;
    writer->counts.completed++;
    writer->counts.prompt_tokens += record->tokens;
    return OK;
}

int64_t embeddings_writer_pending_bytes(const struct embeddings_writer *writer) {
    return writer->counts.records ? (int64_t)(table_bytes(&writer->table) + writer->rows.bytes) : 0;
}

enum result embeddings_writer_flush(struct embeddings_writer *writer) {
    if (!writer->counts.records)
        return OK;
    struct hdf5_image image = {0};
    hid_t file = H5I_INVALID_HID;
    struct file_header header = writer->counts;
    memcpy(header.format, EMBEDDINGS_FORMAT, sizeof EMBEDDINGS_FORMAT);
    header.version = FORMAT_VERSION;
    memcpy(header.requests, writer->requests, sizeof header.requests);
    enum result status;
    TRY_GOTO(status, hdf5_image_begin(&image, &file), done);
    TRY_GOTO(status, hdf5_put_provenance(file, &writer->provenance, &header, writer->rank), done);
    TRY_GOTO(status, table_write(file, writer->folder, &writer->table), done);
    TRY_GOTO(status,
        hdf5_write_column(file, writer->folder, &rows_column, writer->rows.data, (size_t)header.prompt_tokens,
            (size_t)writer->hidden),
        done);
    TRY_GOTO(status, hdf5_image_finish(&image, &file, &header), done);
    TRY_GOTO(status, part_write(writer->folder, &image, &writer->next_number), done);
    status = begin_pending(writer);
done:
    if (file >= 0)
        H5Fclose(file);
    hdf5_image_free(&image);
    return status;
}

/* Reading */

/* The extents of the rows. */
static enum result rows_extents(hid_t file, const char *path, size_t *rows, int32_t *hidden) {
    hid_t dataset = H5Dopen2(file, rows_column.name, H5P_DEFAULT);
    if (dataset < 0)
        return hdf5_fail(ERROR_INPUT, path, "find the dataset", rows_column.name);
    hid_t space = H5Dget_space(dataset);
    hsize_t extents[2] = {0, 0};
    bool plain =
        H5Sget_simple_extent_ndims(space) == 2 && H5Sget_simple_extent_dims(space, extents, NULL) == 2;
    H5Sclose(space);
    H5Dclose(dataset);
    if (!plain || extents[1] == 0 || extents[1] > INT32_MAX)
        return fail(ERROR_INPUT, "%s: the dataset %s is not a table of rows", path, rows_column.name);
    *hidden = (int32_t)extents[1];
    TRY(hdf5_open_column(file, path, &rows_column, (size_t)*hidden, &dataset, rows));
    H5Dclose(dataset);
    return OK;
}

static enum result check_table(
    const struct table *table, const char *path, const struct file_header *header, size_t rows) {
    size_t records = table_rows(table, EMBEDDING_IMAGE);
    if ((int64_t)records != header->records || records > INT32_MAX)
        return fail(ERROR_INPUT, "%s: it has %zu records, its header says %lld", path, records,
            (long long)header->records);
    TRY(table_check_rows(table, path, EMBEDDING_RECORD_HASH, records));
    TRY(table_check_offsets(table, path, EMBEDDING_HASH_OFFSETS, records, table_rows(table, EMBEDDING_HASH)));
    TRY(table_check_offsets(table, path, EMBEDDING_ROW_OFFSETS, records, rows));
    const int64_t *image = table_values(table, EMBEDDING_IMAGE);
    const uint64_t *offsets = table_offsets(table, EMBEDDING_ROW_OFFSETS);
    for (size_t r = 0; r < records; r++) {
        uint64_t tokens = offsets[r + 1] - offsets[r];
        if (image[r] < 0 || tokens == 0 || tokens > INT32_MAX)
            return fail(ERROR_INPUT, "%s: record %zu is of image %lld with %llu rows", path, r,
                (long long)image[r], (unsigned long long)tokens);
    }
    return OK;
}

enum result embeddings_part_read(
    hid_t file, const char *path, const struct file_header *header, struct table *table, int32_t *hidden) {
    size_t rows = 0;
    TRY(rows_extents(file, path, &rows, hidden));
    TRY(table_create(table, embeddings_columns, EMBEDDING_COLUMNS));
    enum result status = table_read(file, path, table);
    if (status == OK)
        status = check_table(table, path, header, rows);
    if (status != OK)
        table_free(table);
    return status;
}

enum result embeddings_part_check(hid_t file, const char *path, const struct file_header *header) {
    struct table table;
    int32_t hidden;
    TRY(embeddings_part_read(file, path, header, &table, &hidden));
    table_free(&table);
    return OK;
}

/* A part open for reading. */
struct open_part {
    int32_t part;      /* index in the list, -1: none */
    uint64_t last_use; /* the one used longest ago is closed first */
    hid_t file, rows;
    struct table table;
};

/* A span in memory; the ones used longest ago are dropped first. */
struct kept_span {
    struct kept_span *newer, *older;
    int64_t image;
    float rows[];
};

struct image_place {
    int32_t part, record, tokens; /* part -1: no embeddings */
    struct kept_span *kept;       /* NULL: not in memory */
};

struct embeddings {
    struct part_list list;
    struct image_place *places; /* [total] */
    int64_t total;
    int32_t hidden;
    uint64_t uses;
    struct open_part open[OPEN_PARTS];
    struct kept_span *newest, *oldest;
    int64_t kept_bytes, most_bytes;
};

static size_t span_bytes(const struct embeddings *embeddings, int64_t image) {
    return (size_t)embeddings->places[image].tokens * (size_t)embeddings->hidden * sizeof(float);
}

/* ---- the index ---- */

static void part_forget(struct open_part *part) {
    if (part->rows >= 0)
        H5Dclose(part->rows);
    if (part->file >= 0)
        H5Fclose(part->file);
    table_free(&part->table);
    *part = (struct open_part){.part = -1, .file = H5I_INVALID_HID, .rows = H5I_INVALID_HID};
}

/* Opens a part with its columns; `part` is empty before, and after a failure. */
static enum result part_load(struct embeddings *embeddings, int32_t index, struct open_part *part) {
    const char *path = embeddings->list.parts[index].path;
    struct file_header header;
    int32_t hidden = 0;
    size_t rows = 0;
    enum result status;
    TRY_GOTO(status, part_open(path, EMBEDDINGS_FORMAT, false, &header, &part->file), done);
    TRY_GOTO(status, embeddings_part_read(part->file, path, &header, &part->table, &hidden), done);
    if (hidden != embeddings->hidden) {
        status = fail(ERROR_INPUT, "%s: its rows have %d values, the model has a hidden_size of %d", path,
            hidden, embeddings->hidden);
        goto done;
    }
    TRY_GOTO(
        status, hdf5_open_column(part->file, path, &rows_column, (size_t)hidden, &part->rows, &rows), done);
    part->part = index;
done:
    if (status != OK)
        part_forget(part);
    return status;
}

/* Notes where the records of one part lie. The first part that has an image counts. */
static enum result index_part(struct embeddings *embeddings, int32_t index) {
    struct open_part part = {.part = -1, .file = H5I_INVALID_HID, .rows = H5I_INVALID_HID};
    TRY(part_load(embeddings, index, &part));
    enum result status = OK;
    size_t records = table_rows(&part.table, EMBEDDING_IMAGE);
    const int64_t *image = table_values(&part.table, EMBEDDING_IMAGE);
    const uint64_t *offsets = table_offsets(&part.table, EMBEDDING_ROW_OFFSETS);
    for (size_t r = 0; r < records; r++) {
        if (image[r] >= embeddings->total) {
            status = fail(ERROR_INPUT, "%s: record %zu is of image %lld, but there are %lld",
                embeddings->list.parts[index].path, r, (long long)image[r], (long long)embeddings->total);
            break;
        }
        struct image_place *place = &embeddings->places[image[r]];
        if (place->part < 0)
            *place = (struct image_place){index, (int32_t)r, (int32_t)(offsets[r + 1] - offsets[r]), NULL};
    }
    part_forget(&part);
    return status;
}

enum result embeddings_open(const char *campaign_folder, int64_t total_images, int32_t hidden,
    int64_t cache_bytes, struct embeddings **embeddings) {
    *embeddings = calloc(1, sizeof **embeddings);
    struct embeddings *made = *embeddings;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for the index of embeddings");
    *made = (struct embeddings){.total = total_images, .hidden = hidden, .most_bytes = cache_bytes};
    for (int i = 0; i < OPEN_PARTS; i++)
        made->open[i] = (struct open_part){.part = -1, .file = H5I_INVALID_HID, .rows = H5I_INVALID_HID};
    enum result status;
    made->places = malloc((size_t)total_images * sizeof *made->places + 1);
    if (!made->places) {
        status =
            fail(ERROR_MEMORY, "out of memory for the index of %lld embeddings", (long long)total_images);
        goto done;
    }
    for (int64_t i = 0; i < total_images; i++)
        made->places[i] = (struct image_place){.part = -1};
    TRY_GOTO(status, parts_list(campaign_folder, "vision", &made->list), done);
    for (size_t i = 0; i < made->list.count && status == OK; i++)
        status = index_part(made, (int32_t)i);
done:
    if (status != OK) {
        embeddings_close(made);
        *embeddings = NULL;
    }
    return status;
}

void embeddings_close(struct embeddings *embeddings) {
    if (!embeddings)
        return;
    for (int i = 0; i < OPEN_PARTS; i++)
        part_forget(&embeddings->open[i]);
    for (struct kept_span *span = embeddings->newest; span;) {
        struct kept_span *older = span->older;
        free(span);
        span = older;
    }
    part_list_free(&embeddings->list);
    free(embeddings->places);
    free(embeddings);
}

bool embeddings_has(const struct embeddings *embeddings, int64_t image) {
    return image >= 0 && image < embeddings->total && embeddings->places[image].part >= 0;
}

int32_t embeddings_tokens(const struct embeddings *embeddings, int64_t image) {
    return embeddings_has(embeddings, image) ? embeddings->places[image].tokens : 0;
}

/* ---- spans in memory ---- */

static void unlink_span(struct embeddings *embeddings, struct kept_span *span) {
    *(span->newer ? &span->newer->older : &embeddings->newest) = span->older;
    *(span->older ? &span->older->newer : &embeddings->oldest) = span->newer;
}

static void link_newest(struct embeddings *embeddings, struct kept_span *span) {
    span->newer = NULL;
    span->older = embeddings->newest;
    *(span->older ? &span->older->newer : &embeddings->oldest) = span;
    embeddings->newest = span;
}

static void drop_oldest(struct embeddings *embeddings) {
    struct kept_span *dropped = embeddings->oldest;
    embeddings->oldest = dropped->newer;
    *(dropped->newer ? &dropped->newer->older : &embeddings->newest) = NULL;
    embeddings->places[dropped->image].kept = NULL;
    embeddings->kept_bytes -= (int64_t)span_bytes(embeddings, dropped->image);
    free(dropped);
}

/* Keeps a copy of a span; without memory it's just not kept. */
static void keep_span(struct embeddings *embeddings, int64_t image, const float *rows) {
    size_t bytes = span_bytes(embeddings, image);
    if ((int64_t)bytes > embeddings->most_bytes)
        return;
    while (embeddings->kept_bytes + (int64_t)bytes > embeddings->most_bytes)
        drop_oldest(embeddings);
    struct kept_span *span = malloc(sizeof *span + bytes);
    if (!span)
        return;
    span->image = image;
    memcpy(span->rows, rows, bytes);
    link_newest(embeddings, span);
    embeddings->places[image].kept = span;
    embeddings->kept_bytes += (int64_t)bytes;
}

/* ---- reading spans ---- */

/* The part, open; the least recently used one gives way. */
static enum result get_part(struct embeddings *embeddings, int32_t index, struct open_part **found) {
    struct open_part *part = &embeddings->open[0];
    for (int i = 0; i < OPEN_PARTS && part->part != index; i++) {
        struct open_part *candidate = &embeddings->open[i];
        if (candidate->part == index || candidate->last_use < part->last_use)
            part = candidate;
    }
    if (part->part != index) {
        part_forget(part);
        TRY(part_load(embeddings, index, part));
    }
    part->last_use = ++embeddings->uses;
    *found = part;
    return OK;
}

static enum result read_rows(struct embeddings *embeddings, int64_t image, float *rows) {
    const struct image_place *place = &embeddings->places[image];
    const char *path = embeddings->list.parts[place->part].path;
    struct open_part *part;
    TRY(get_part(embeddings, place->part, &part));
    size_t r = (size_t)place->record;
    const uint64_t *offsets = table_offsets(&part->table, EMBEDDING_ROW_OFFSETS);
    if (r >= table_rows(&part->table, EMBEDDING_IMAGE) ||
        offsets[r + 1] - offsets[r] != (uint64_t)place->tokens)
        return fail(ERROR_INPUT, "%s: it changed while it was in use", path);
    TRY(hdf5_read_rows(
        part->rows, path, &rows_column, (size_t)embeddings->hidden, offsets[r], (size_t)place->tokens, rows));
    if (XXH3_64bits(rows, span_bytes(embeddings, image)) ==
        ((const uint64_t *)table_values(&part->table, EMBEDDING_RECORD_HASH))[r])
        return OK;
    return fail(ERROR_INPUT,
        "%s: the embeddings of image %lld are damaged (checksum); run 'nocturne vision' again: it sets the "
        "part aside",
        path, (long long)image);
}

enum result embeddings_read(struct embeddings *embeddings, int64_t image, float *rows) {
    if (!embeddings_has(embeddings, image))
        return fail(ERROR_INTERNAL, "there are no embeddings of image %lld", (long long)image);
    struct kept_span *kept = embeddings->places[image].kept;
    if (kept) {
        memcpy(rows, kept->rows, span_bytes(embeddings, image));
        unlink_span(embeddings, kept);
        link_newest(embeddings, kept);
        return OK;
    }
    TRY(read_rows(embeddings, image, rows));
    keep_span(embeddings, image, rows);
    return OK;
}

#include "campaign/states.h"

#include "campaign/parts.h"
#include "campaign/states_part.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy, strcmp */
#include <xxhash.h>

enum { MOST_SECTIONS = 1024, OPEN_PARTS = 8 };

const struct column states_columns[STATE_COLUMNS] = {
    [STATE_REQUEST] = {"request", COLUMN_I64, NULL, "index of the request in requests.h5"},
    [STATE_CACHED_TOKENS] = {"cached_tokens", COLUMN_I32, "tokens", "of the prompt: as in results"},
    [STATE_GENERATED] = {"generated", COLUMN_I64, "tokens", "generated tokens of all choices of the record"},
    [STATE_RECORD_HASH] = {"record_xxh3_64", COLUMN_U64, NULL,
        "hash of the record's rows: XXH3 64-bit of each section's, its seed being that of the section "
        "before"},
    [STATE_SECTION_NAMES] = {"section_names", COLUMN_U8, NULL, "UTF-8: names of the sections, in order"},
    [STATE_SECTION_NAMES_OFFSETS] = {"section_names_offsets", COLUMN_U64, "bytes", "where each name begins"},
    [STATE_SEQUENCE_TOKENS] = {"sequence_tokens", COLUMN_I32, "tokens", "length of each sequence"},
    [STATE_SEQUENCE_OFFSETS] = {"sequence_offsets", COLUMN_U64, "sequences",
        "where each record's sequences begin"},
    [STATE_CHOICE_SEQUENCE] = {"choice_sequence", COLUMN_I32, NULL,
        "which of its record's sequences each choice goes on from; -1: it has ended"},
    [STATE_TOP_COUNT] = {"top_count", COLUMN_I32, NULL, "alternatives of each of a choice's tokens; 0: none"},
    [STATE_CHOICE_OFFSETS] = {"choice_offsets", COLUMN_U64, "choices", "where each record's choices begin"},
    [STATE_TOKEN_IDS] = {"token_ids", COLUMN_I32, NULL,
        "generated tokens of each choice; the last one has not been run"},
    [STATE_TOKEN_LOGPROBS] = {"token_logprobs", COLUMN_F32, "nat",
        "their log-probabilities under the unmodified softmax"},
    [STATE_TOKEN_OFFSETS] = {"token_offsets", COLUMN_U64, "tokens", "where each choice's tokens begin"},
    [STATE_TOP_IDS] = {"top_ids", COLUMN_I32, NULL, "alternatives of each token, likeliest first"},
    [STATE_TOP_LOGPROBS] = {"top_logprobs", COLUMN_F32, "nat", "log-probabilities of the alternatives"},
    [STATE_TOP_OFFSETS] = {"top_offsets", COLUMN_U64, "alternatives",
        "where each choice's alternatives begin"},
};

/* The two datasets of a section. */
struct section_columns {
    char rows_name[64], offsets_name[64];
    struct column rows, offsets;
};

static void section_columns_set(struct section_columns *columns, const char *name, const char *description) {
    snprintf(columns->rows_name, sizeof columns->rows_name, "sections/%.31s", name);
    snprintf(columns->offsets_name, sizeof columns->offsets_name, "sections/%.31s_offsets", name);
    columns->rows = (struct column){columns->rows_name, COLUMN_U8, NULL, description};
    columns->offsets =
        (struct column){columns->offsets_name, COLUMN_U64, "rows", "where each sequence's rows begin"};
}

/* Writing */

struct states_writer {
    char *folder; /* prefill/rank-NNNN */
    char requests[HASH_DIGITS + 1];
    struct provenance provenance; /* its texts are copies */
    int32_t rank, next_number, section_count;
    const struct state_section *sections; /* not owned */
    struct table table;
    struct vector *rows, *offsets; /* [section_count] */
    struct file_header counts;     /* of what is pending */
};

/* Empties the tables for the next part; what every part begins with is put in. */
static enum result begin_pending(struct states_writer *writer) {
    table_free(&writer->table);
    writer->counts = (struct file_header){0};
    TRY(table_create(&writer->table, states_columns, STATE_COLUMNS));
    static const uint64_t zero;
    for (int32_t s = 0; s < writer->section_count; s++) {
        TRY(table_append_text(&writer->table, STATE_SECTION_NAMES, writer->sections[s].name));
        writer->rows[s].bytes = writer->offsets[s].bytes = 0;
        TRY(vector_append(&writer->offsets[s], &zero, sizeof zero));
    }
    return OK;
}

enum result states_writer_create(const char *campaign_folder, int32_t rank,
    const struct provenance *provenance, const struct state_section *sections, int32_t section_count,
    struct states_writer **writer) {
    *writer = calloc(1, sizeof **writer);
    struct states_writer *made = *writer;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for a states writer");
    enum result status;
    *made = (struct states_writer){.rank = rank, .sections = sections, .section_count = section_count};
    made->folder = part_folder(campaign_folder, "prefill", rank);
    made->rows = calloc((size_t)section_count + 1, sizeof *made->rows);
    made->offsets = calloc((size_t)section_count + 1, sizeof *made->offsets);
    if (!made->folder || !made->rows || !made->offsets) {
        status = fail(ERROR_MEMORY, "out of memory for a states writer");
        goto done;
    }
    TRY_GOTO(status, provenance_copy(provenance, &made->provenance), done);
    TRY_GOTO(status, requests_identity_of(campaign_folder, made->requests), done);
    TRY_GOTO(status, part_next_number(made->folder, &made->next_number), done);
    status = begin_pending(made);
done:
    if (status != OK) {
        states_writer_free(made);
        *writer = NULL;
    }
    return status;
}

void states_writer_free(struct states_writer *writer) {
    if (!writer)
        return;
    for (int32_t s = 0; s < writer->section_count; s++) {
        if (writer->rows)
            vector_free(&writer->rows[s]);
        if (writer->offsets)
            vector_free(&writer->offsets[s]);
    }
    free(writer->rows);
    free(writer->offsets);
    table_free(&writer->table);
    provenance_free(&writer->provenance);
    free(writer->folder);
    free(writer);
}

/* Each section's hash is the seed of the next one's. */
static uint64_t hash_rows(uint64_t before, const void *rows, size_t bytes) {
    return XXH3_64bits_withSeed(bytes ? rows : "", bytes, before);
}

static enum result add_sequence(
    struct states_writer *writer, const struct saved_sequence *sequence, uint64_t *hash) {
    for (int32_t s = 0; s < writer->section_count; s++) {
        size_t row_bytes = (size_t)writer->sections[s].row_bytes;
        const struct section_rows *given = &sequence->sections[s];
        size_t bytes = (size_t)given->rows * row_bytes;
        *hash = hash_rows(*hash, given->data, bytes);
        TRY(vector_append(&writer->rows[s], given->data, bytes));
        uint64_t end = writer->rows[s].bytes / row_bytes;
        TRY(vector_append(&writer->offsets[s], &end, sizeof end));
    }
    return table_append_int32(&writer->table, STATE_SEQUENCE_TOKENS, sequence->tokens);
}

static enum result add_choice(struct table *table, const struct saved_choice *choice) {
    size_t tokens = (size_t)choice->token_count, top = tokens * (size_t)choice->top_logprobs;
    TRY(table_append_int32(table, STATE_CHOICE_SEQUENCE, choice->sequence));
    TRY(table_append_int32(table, STATE_TOP_COUNT, choice->top_logprobs));
    TRY(table_append(table, STATE_TOKEN_IDS, choice->token_ids, tokens));
    TRY(table_append(table, STATE_TOKEN_LOGPROBS, choice->logprobs, tokens));
    TRY(table_append_offset(table, STATE_TOKEN_OFFSETS, tokens));
    TRY(table_append(table, STATE_TOP_IDS, choice->top_ids, top));
    TRY(table_append(table, STATE_TOP_LOGPROBS, choice->top_values, top));
    return table_append_offset(table, STATE_TOP_OFFSETS, top);
}

enum result states_writer_add(struct states_writer *writer, const struct state_record *record) {
    struct table *table = &writer->table;
    if (record->request < 0 || record->choice_count < 0 || record->sequence_count < 0)
        return fail(ERROR_INTERNAL, "a state of request %lld with %d choices and %d sequences",
            (long long)record->request, record->choice_count, record->sequence_count);
    uint64_t hash = 0;
    int64_t generated = 0;
    for (int32_t i = 0; i < record->sequence_count; i++) {
        TRY(add_sequence(writer, &record->sequences[i], &hash));
        writer->counts.prompt_tokens += record->sequences[i].tokens;
    }
    for (int32_t i = 0; i < record->choice_count; i++) {
        TRY(add_choice(table, &record->choices[i]));
        generated += record->choices[i].token_count;
    }
    TRY(table_append_int64(table, STATE_REQUEST, record->request));
    TRY(table_append_int32(table, STATE_CACHED_TOKENS, record->cached_tokens));
    TRY(table_append_int64(table, STATE_GENERATED, generated));
    TRY(table_append(table, STATE_RECORD_HASH, &hash, 1));
    TRY(table_append_offset(table, STATE_SEQUENCE_OFFSETS, (size_t)record->sequence_count));
    TRY(table_append_offset(table, STATE_CHOICE_OFFSETS, (size_t)record->choice_count));
    writer->counts.records++;
    writer->counts.completed++;
    return OK;
}

int64_t states_writer_pending(const struct states_writer *writer) {
    return writer->counts.records;
}

int64_t states_writer_pending_bytes(const struct states_writer *writer) {
    if (!writer->counts.records)
        return 0;
    size_t bytes = table_bytes(&writer->table);
    for (int32_t s = 0; s < writer->section_count; s++)
        bytes += writer->rows[s].bytes + writer->offsets[s].bytes;
    return (int64_t)bytes;
}

static enum result write_sections(const struct states_writer *writer, hid_t file) {
    for (int32_t s = 0; s < writer->section_count; s++) {
        const struct state_section *section = &writer->sections[s];
        struct section_columns columns;
        section_columns_set(
            &columns, section->name, section->description ? section->description : section->name);
        size_t row_bytes = (size_t)section->row_bytes;
        TRY(hdf5_write_column(file, writer->folder, &columns.rows, writer->rows[s].data,
            writer->rows[s].bytes / row_bytes, row_bytes));
        TRY(hdf5_write_column(file, writer->folder, &columns.offsets, writer->offsets[s].data,
            writer->offsets[s].bytes / sizeof(uint64_t), 0));
    }
    return OK;
}

enum result states_writer_flush(struct states_writer *writer) {
    if (!writer->counts.records)
        return OK;
    struct hdf5_image image = {0};
    hid_t file = H5I_INVALID_HID;
    struct file_header header = writer->counts;
    memcpy(header.format, STATES_FORMAT, sizeof STATES_FORMAT);
    header.version = FORMAT_VERSION;
    memcpy(header.requests, writer->requests, sizeof header.requests);
    enum result status;
    TRY_GOTO(status, hdf5_image_begin(&image, &file), done);
    TRY_GOTO(status, hdf5_put_provenance(file, &writer->provenance, &header, writer->rank), done);
    TRY_GOTO(status, table_write(file, writer->folder, &writer->table), done);
    TRY_GOTO(status, write_sections(writer, file), done);
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

/* A record's choices against its sequences, and the numbers of alternatives. */
static enum result check_record(const struct table *table, const char *path, size_t r) {
    const uint64_t *sequences = table_offsets(table, STATE_SEQUENCE_OFFSETS),
                   *choices = table_offsets(table, STATE_CHOICE_OFFSETS),
                   *tokens = table_offsets(table, STATE_TOKEN_OFFSETS),
                   *tops = table_offsets(table, STATE_TOP_OFFSETS);
    const int32_t *length = table_values(table, STATE_SEQUENCE_TOKENS),
                  *sequence = table_values(table, STATE_CHOICE_SEQUENCE),
                  *top = table_values(table, STATE_TOP_COUNT);
    const int64_t *request = table_values(table, STATE_REQUEST);
    int64_t count = (int64_t)(sequences[r + 1] - sequences[r]);
    if (request[r] < 0)
        return fail(ERROR_INPUT, "%s: record %zu is of request %lld", path, r, (long long)request[r]);
    for (uint64_t s = sequences[r]; s < sequences[r + 1]; s++)
        if (length[s] < 0)
            return fail(ERROR_INPUT, "%s: a sequence of record %zu has %d tokens", path, r, length[s]);
    for (uint64_t c = choices[r]; c < choices[r + 1]; c++) {
        uint64_t drawn = tokens[c + 1] - tokens[c], alternatives = tops[c + 1] - tops[c];
        if (sequence[c] < -1 || sequence[c] >= count)
            return fail(ERROR_INPUT, "%s: a choice of record %zu goes on from sequence %d of %lld", path, r,
                sequence[c], (long long)count);
        if (drawn < 1 || drawn > INT32_MAX || top[c] < 0 || alternatives != drawn * (uint64_t)top[c])
            return fail(ERROR_INPUT,
                "%s: a choice of record %zu has %llu tokens, top_count %d and %llu alternatives", path, r,
                (unsigned long long)drawn, top[c], (unsigned long long)alternatives);
    }
    return OK;
}

static enum result check_table(
    const struct table *table, const char *path, const struct file_header *header) {
    size_t records = table_rows(table, STATE_REQUEST), choices = table_rows(table, STATE_CHOICE_SEQUENCE),
           sequences = table_rows(table, STATE_SEQUENCE_TOKENS), tokens = table_rows(table, STATE_TOKEN_IDS);
    if ((int64_t)records != header->records)
        return fail(ERROR_INPUT, "%s: it has %zu records, its header says %lld", path, records,
            (long long)header->records);
    TRY(table_check_rows(table, path, STATE_CACHED_TOKENS, records));
    TRY(table_check_rows(table, path, STATE_GENERATED, records));
    TRY(table_check_rows(table, path, STATE_RECORD_HASH, records));
    TRY(table_check_rows(table, path, STATE_TOP_COUNT, choices));
    TRY(table_check_rows(table, path, STATE_TOKEN_LOGPROBS, tokens));
    size_t top = table_rows(table, STATE_TOP_IDS);
    TRY(table_check_rows(table, path, STATE_TOP_LOGPROBS, top));
    TRY(table_check_offsets(table, path, STATE_SEQUENCE_OFFSETS, records, sequences));
    TRY(table_check_offsets(table, path, STATE_CHOICE_OFFSETS, records, choices));
    TRY(table_check_offsets(table, path, STATE_TOKEN_OFFSETS, choices, tokens));
    TRY(table_check_offsets(table, path, STATE_TOP_OFFSETS, choices, top));
    for (size_t r = 0; r < records; r++)
        TRY(check_record(table, path, r));
    size_t sections = table_rows(table, STATE_SECTION_NAMES_OFFSETS);
    if (sections < 1 || sections - 1 > MOST_SECTIONS)
        return fail(
            ERROR_INPUT, "%s: it has %zu sections, at most %d are possible", path, sections, MOST_SECTIONS);
    return table_check_offsets(
        table, path, STATE_SECTION_NAMES_OFFSETS, sections - 1, table_rows(table, STATE_SECTION_NAMES));
}

enum result states_part_read(
    hid_t file, const char *path, const struct file_header *header, struct table *table) {
    TRY(table_create(table, states_columns, STATE_COLUMNS));
    enum result status = table_read(file, path, table);
    if (status == OK)
        status = check_table(table, path, header);
    if (status != OK)
        table_free(table);
    return status;
}

/* Name of section `index` of a part, at most 31 bytes. */
static enum result section_name(const struct table *table, const char *path, size_t index, char name[32]) {
    const uint64_t *offsets = table_offsets(table, STATE_SECTION_NAMES_OFFSETS);
    uint64_t bytes = offsets[index + 1] - offsets[index];
    const char *text = (const char *)table_values(table, STATE_SECTION_NAMES) + offsets[index];
    if (bytes == 0 || bytes > 31 || memchr(text, '/', bytes) || memchr(text, '\0', bytes))
        return fail(ERROR_INPUT, "%s: section %zu has an impossible name", path, index);
    memcpy(name, text, bytes);
    name[bytes] = '\0';
    return OK;
}

/* A section's offsets, checked, and the number of bytes of its rows; 0: as the file says. */
static enum result read_offsets(hid_t file, const char *path, const struct section_columns *columns,
    size_t sequences, size_t rows, struct vector *offsets) {
    TRY(hdf5_read_column(file, path, &columns->offsets, offsets));
    uint64_t end = rows;
    struct table one = {.columns = &columns->offsets, .count = 1, .data = offsets, .ends = &end};
    return table_check_offsets(&one, path, 0, sequences, rows);
}

/* The second extent of a section's rows. */
static enum result section_row_bytes(hid_t file, const char *path, const char *name, size_t *row_bytes) {
    hid_t dataset = H5Dopen2(file, name, H5P_DEFAULT);
    if (dataset < 0)
        return hdf5_fail(ERROR_INPUT, path, "find the dataset", name);
    hid_t space = H5Dget_space(dataset);
    hsize_t extents[2] = {0, 0};
    bool plain =
        H5Sget_simple_extent_ndims(space) == 2 && H5Sget_simple_extent_dims(space, extents, NULL) == 2;
    H5Sclose(space);
    H5Dclose(dataset);
    if (!plain || extents[1] == 0 || extents[1] > INT32_MAX)
        return fail(ERROR_INPUT, "%s: the dataset %s is not a table of rows", path, name);
    *row_bytes = (size_t)extents[1];
    return OK;
}

static enum result check_section(hid_t file, const char *path, const char *name, size_t sequences) {
    struct section_columns columns;
    struct vector offsets = {0};
    size_t row_bytes = 0, rows;
    hid_t dataset;
    section_columns_set(&columns, name, "");
    TRY(section_row_bytes(file, path, columns.rows_name, &row_bytes));
    TRY(hdf5_open_column(file, path, &columns.rows, row_bytes, &dataset, &rows));
    H5Dclose(dataset);
    enum result status = read_offsets(file, path, &columns, sequences, rows, &offsets);
    vector_free(&offsets);
    return status;
}

enum result states_part_check(hid_t file, const char *path, const struct file_header *header) {
    struct table table;
    TRY(states_part_read(file, path, header, &table));
    enum result status = OK;
    size_t sequences = table_rows(&table, STATE_SEQUENCE_TOKENS);
    size_t sections = table_rows(&table, STATE_SECTION_NAMES_OFFSETS) - 1;
    for (size_t s = 0; s < sections && status == OK; s++) {
        char name[32];
        status = section_name(&table, path, s, name);
        if (status == OK)
            status = check_section(file, path, name, sequences);
    }
    table_free(&table);
    return status;
}

/* A part open for reading, with the columns that say where records lie. */
struct open_part {
    int32_t part;      /* index in the list, -1: none */
    uint64_t last_use; /* the one used longest ago is closed first */
    hid_t file;
    struct table table;
    struct vector *offsets; /* [section_count] */
    hid_t *rows;            /* [section_count] datasets */
};

struct state_place {
    int32_t part, record; /* part -1: no state */
    int64_t generated;    /* tokens of all choices */
};

struct states {
    struct part_list list;
    struct state_place *places; /* [total] */
    int64_t total;
    const struct state_section *sections; /* not owned */
    int32_t section_count;
    uint64_t uses;
    struct open_part open[OPEN_PARTS];
};

static void part_forget(struct states *states, struct open_part *part) {
    for (int32_t s = 0; s < states->section_count; s++) {
        if (part->offsets)
            vector_free(&part->offsets[s]);
        if (part->rows && part->rows[s] >= 0)
            H5Dclose(part->rows[s]);
    }
    free(part->offsets);
    free(part->rows);
    table_free(&part->table);
    if (part->file >= 0)
        H5Fclose(part->file);
    *part = (struct open_part){.part = -1, .file = H5I_INVALID_HID};
}

/* Notes where the records of one part lie. Of several that have a request the one counts that is farthest, of equal ones the first. */
static enum result index_part(struct states *states, int32_t index) {
    const char *path = states->list.parts[index].path;
    struct file_header header;
    struct vector request = {0}, generated = {0};
    hid_t file;
    TRY(part_open(path, STATES_FORMAT, false, &header, &file));
    enum result status;
    TRY_GOTO(status, hdf5_read_column(file, path, &states_columns[STATE_REQUEST], &request), done);
    TRY_GOTO(status, hdf5_read_column(file, path, &states_columns[STATE_GENERATED], &generated), done);
    size_t records = request.bytes / sizeof(int64_t);
    if (generated.bytes / sizeof(int64_t) != records || records > INT32_MAX) {
        status = fail(ERROR_INPUT, "%s: it has %zu records and %zu lengths", path, records,
            generated.bytes / sizeof(int64_t));
        goto done;
    }
    for (size_t r = 0; r < records; r++) {
        int64_t at = ((int64_t *)request.data)[r];
        if (at < 0 || at >= states->total) {
            status = fail(ERROR_INPUT, "%s: record %zu is of request %lld, but there are %lld", path, r,
                (long long)at, (long long)states->total);
            goto done;
        }
        int64_t farness = ((int64_t *)generated.data)[r];
        if (states->places[at].part < 0 || states->places[at].generated < farness)
            states->places[at] = (struct state_place){index, (int32_t)r, farness};
    }
done:
    vector_free(&request);
    vector_free(&generated);
    H5Fclose(file);
    return status;
}

enum result states_open(const char *campaign_folder, int64_t total_requests,
    const struct state_section *sections, int32_t section_count, struct states **states) {
    *states = calloc(1, sizeof **states);
    struct states *made = *states;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for the index of states");
    *made = (struct states){.total = total_requests, .sections = sections, .section_count = section_count};
    for (int i = 0; i < OPEN_PARTS; i++)
        made->open[i] = (struct open_part){.part = -1, .file = H5I_INVALID_HID};
    enum result status;
    made->places = malloc((size_t)total_requests * sizeof *made->places + 1);
    if (!made->places) {
        status = fail(ERROR_MEMORY, "out of memory for the index of %lld states", (long long)total_requests);
        goto done;
    }
    for (int64_t i = 0; i < total_requests; i++)
        made->places[i] = (struct state_place){.part = -1};
    TRY_GOTO(status, parts_list(campaign_folder, "prefill", &made->list), done);
    for (size_t i = 0; i < made->list.count && status == OK; i++)
        status = index_part(made, (int32_t)i);
done:
    if (status != OK) {
        states_close(made);
        *states = NULL;
    }
    return status;
}

void states_close(struct states *states) {
    if (!states)
        return;
    for (int i = 0; i < OPEN_PARTS; i++)
        part_forget(states, &states->open[i]);
    part_list_free(&states->list);
    free(states->places);
    free(states);
}

bool states_has(const struct states *states, int64_t request) {
    return request >= 0 && request < states->total && states->places[request].part >= 0;
}

static enum result open_sections(struct states *states, struct open_part *part, const char *path) {
    size_t sequences = table_rows(&part->table, STATE_SEQUENCE_TOKENS);
    size_t found = table_rows(&part->table, STATE_SECTION_NAMES_OFFSETS) - 1;
    if (found != (size_t)states->section_count)
        return fail(
            ERROR_INPUT, "%s: it has %zu sections, the model has %d", path, found, states->section_count);
    for (int32_t s = 0; s < states->section_count; s++) {
        const struct state_section *section = &states->sections[s];
        struct section_columns columns;
        char name[32];
        size_t rows;
        TRY(section_name(&part->table, path, (size_t)s, name));
        if (strcmp(name, section->name))
            return fail(
                ERROR_INPUT, "%s: section %d is %s, the model expects %s", path, s, name, section->name);
        section_columns_set(&columns, section->name, "");
        TRY(hdf5_open_column(
            part->file, path, &columns.rows, (size_t)section->row_bytes, &part->rows[s], &rows));
        TRY(read_offsets(part->file, path, &columns, sequences, rows, &part->offsets[s]));
    }
    return OK;
}

/* The part, open; the least recently used one gives way. */
static enum result get_part(struct states *states, int32_t index, struct open_part **found) {
    struct open_part *part = &states->open[0];
    for (int i = 0; i < OPEN_PARTS; i++) {
        struct open_part *candidate = &states->open[i];
        if (candidate->part == index) {
            candidate->last_use = ++states->uses;
            *found = candidate;
            return OK;
        }
        if (candidate->last_use < part->last_use)
            part = candidate;
    }
    part_forget(states, part);
    const char *path = states->list.parts[index].path;
    struct file_header header;
    enum result status;
    part->offsets = calloc((size_t)states->section_count + 1, sizeof *part->offsets);
    part->rows = malloc(((size_t)states->section_count + 1) * sizeof *part->rows);
    if (!part->offsets || !part->rows) {
        free(part->rows);
        part->rows = NULL;
        status = fail(ERROR_MEMORY, "%s: out of memory for reading it", path);
        goto done;
    }
    for (int32_t s = 0; s < states->section_count; s++)
        part->rows[s] = H5I_INVALID_HID;
    TRY_GOTO(status, part_open(path, STATES_FORMAT, false, &header, &part->file), done);
    TRY_GOTO(status, states_part_read(part->file, path, &header, &part->table), done);
    status = open_sections(states, part, path);
done:
    if (status != OK) {
        part_forget(states, part);
        return status;
    }
    part->part = index;
    part->last_use = ++states->uses;
    *found = part;
    return OK;
}

/* One allocation holds a record, its sequences with their sections, its choices with their tokens and alternatives, and the rows. */
struct record_memory {
    struct state_record record;
    char rest[];
};

static size_t aligned(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

/* Where the record's entries lie in the columns. */
struct record_place {
    uint64_t first_sequence, sequences, first_choice, choices, first_token, tokens, first_top, tops;
};

static struct record_place place_of(const struct table *table, size_t r) {
    const uint64_t *sequences = table_offsets(table, STATE_SEQUENCE_OFFSETS),
                   *choices = table_offsets(table, STATE_CHOICE_OFFSETS),
                   *tokens = table_offsets(table, STATE_TOKEN_OFFSETS),
                   *tops = table_offsets(table, STATE_TOP_OFFSETS);
    struct record_place p = {.first_sequence = sequences[r],
        .sequences = sequences[r + 1] - sequences[r],
        .first_choice = choices[r],
        .choices = choices[r + 1] - choices[r]};
    p.first_token = tokens[p.first_choice];
    p.tokens = tokens[choices[r + 1]] - p.first_token;
    p.first_top = tops[p.first_choice];
    p.tops = tops[choices[r + 1]] - p.first_top;
    return p;
}

/* The parts of a record's memory. */
struct record_parts {
    struct saved_sequence *sequences;
    struct section_rows *sections; /* [sequences, section_count] */
    struct saved_choice *choices;
    int32_t *token_ids, *top_ids;
    float *logprobs, *top_values;
    char *rows;
};

static struct record_memory *record_allocate(const struct states *states, const struct open_part *part,
    const struct record_place *p, struct record_parts *parts) {
    size_t sections = (size_t)states->section_count;
    const size_t bytes[] = {aligned(sizeof(struct record_memory)),
        aligned(p->sequences * sizeof *parts->sequences),
        aligned(p->sequences * sections * sizeof *parts->sections),
        aligned(p->choices * sizeof *parts->choices), aligned(p->tokens * 4), aligned(p->tokens * 4),
        aligned(p->tops * 4), aligned(p->tops * 4)};
    size_t total = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        total += bytes[i];
    char *at = NULL;
    size_t row_bytes = 0;
    for (size_t s = 0; s < sections; s++) {
        const uint64_t *offsets = part->offsets[s].data;
        for (uint64_t i = p->first_sequence; i < p->first_sequence + p->sequences; i++)
            row_bytes += aligned((offsets[i + 1] - offsets[i]) * (size_t)states->sections[s].row_bytes);
    }
    struct record_memory *memory = aligned_alloc(64, total + row_bytes + 64);
    if (!memory)
        return NULL;
    at = (char *)memory + bytes[0];
    parts->sequences = (void *)at;
    parts->sections = (void *)(at += bytes[1]);
    parts->choices = (void *)(at += bytes[2]);
    parts->token_ids = (void *)(at += bytes[3]);
    parts->logprobs = (void *)(at += bytes[4]);
    parts->top_ids = (void *)(at += bytes[5]);
    parts->top_values = (void *)(at += bytes[6]);
    parts->rows = at + bytes[7];
    memory->record = (struct state_record){.sequences = parts->sequences,
        .sequence_count = (int32_t)p->sequences,
        .choices = parts->choices,
        .choice_count = (int32_t)p->choices};
    return memory;
}

static void copy_values(void *to, const struct table *table, int column, uint64_t first, uint64_t count) {
    if (count)
        memcpy(to, (const char *)table_values(table, column) + 4 * first, 4 * count);
}

static void copy_choices(
    const struct table *table, const struct record_place *p, struct record_parts *parts) {
    const uint64_t *tokens = table_offsets(table, STATE_TOKEN_OFFSETS),
                   *tops = table_offsets(table, STATE_TOP_OFFSETS);
    copy_values(parts->token_ids, table, STATE_TOKEN_IDS, p->first_token, p->tokens);
    copy_values(parts->logprobs, table, STATE_TOKEN_LOGPROBS, p->first_token, p->tokens);
    copy_values(parts->top_ids, table, STATE_TOP_IDS, p->first_top, p->tops);
    copy_values(parts->top_values, table, STATE_TOP_LOGPROBS, p->first_top, p->tops);
    for (uint64_t i = 0; i < p->choices; i++) {
        uint64_t c = p->first_choice + i, token = tokens[c] - p->first_token, top = tops[c] - p->first_top;
        parts->choices[i] = (struct saved_choice){
            .sequence = ((const int32_t *)table_values(table, STATE_CHOICE_SEQUENCE))[c],
            .token_count = (int32_t)(tokens[c + 1] - tokens[c]),
            .token_ids = parts->token_ids + token,
            .logprobs = parts->logprobs + token,
            .top_logprobs = ((const int32_t *)table_values(table, STATE_TOP_COUNT))[c],
            .top_ids = parts->top_ids + top,
            .top_values = parts->top_values + top};
    }
}

/* Reads the rows of one sequence. */
static enum result read_sequence(const struct states *states, const struct open_part *part, const char *path,
    uint64_t sequence, struct section_rows *sections, char **rows, uint64_t *hash) {
    for (int32_t s = 0; s < states->section_count; s++) {
        const uint64_t *offsets = part->offsets[s].data;
        size_t row_bytes = (size_t)states->sections[s].row_bytes;
        sections[s] = (struct section_rows){*rows, (int64_t)(offsets[sequence + 1] - offsets[sequence])};
        size_t bytes = (size_t)sections[s].rows * row_bytes;
        struct column column = {states->sections[s].name, COLUMN_U8, NULL, NULL};
        TRY(hdf5_read_rows(
            part->rows[s], path, &column, row_bytes, offsets[sequence], (size_t)sections[s].rows, *rows));
        *hash = hash_rows(*hash, *rows, bytes);
        *rows += aligned(bytes);
    }
    return OK;
}

enum result states_read(struct states *states, int64_t request, struct state_record **record) {
    *record = NULL;
    if (!states_has(states, request))
        return fail(ERROR_INTERNAL, "there is no state of request %lld", (long long)request);
    struct state_place place = states->places[request];
    const char *path = states->list.parts[place.part].path;
    struct open_part *part;
    TRY(get_part(states, place.part, &part));
    size_t r = (size_t)place.record, sections = (size_t)states->section_count;
    const struct table *table = &part->table;
    uint64_t hash = 0;
    struct record_parts parts;
    if (r >= table_rows(table, STATE_REQUEST))
        return fail(ERROR_INPUT, "%s: it changed while it was in use", path);
    const struct record_place p = place_of(table, r);
    struct record_memory *memory = record_allocate(states, part, &p, &parts);
    if (!memory)
        return fail(
            ERROR_MEMORY, "%s: out of memory for the state of request %lld", path, (long long)request);
    memory->record.request = request;
    memory->record.cached_tokens = ((const int32_t *)table_values(table, STATE_CACHED_TOKENS))[r];
    copy_choices(table, &p, &parts);
    enum result status = OK;
    for (uint64_t i = 0; i < p.sequences && status == OK; i++) {
        parts.sequences[i] = (struct saved_sequence){
            .tokens = ((const int32_t *)table_values(table, STATE_SEQUENCE_TOKENS))[p.first_sequence + i],
            .sections = parts.sections + i * sections};
        status = read_sequence(
            states, part, path, p.first_sequence + i, parts.sections + i * sections, &parts.rows, &hash);
    }
    if (status == OK && hash != ((const uint64_t *)table_values(table, STATE_RECORD_HASH))[r])
        status = fail(ERROR_INPUT,
            "%s: the state of request %lld is damaged (checksum); run 'nocturne prefill' again: it sets the "
            "part aside",
            path, (long long)request);
    if (status != OK) {
        free(memory);
        return status;
    }
    *record = &memory->record;
    return OK;
}

void states_release(struct state_record *record) {
    /* The record is the first member of its allocation. */
    free(record);
}

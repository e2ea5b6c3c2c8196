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
    [STATE_TOKENS] = {"tokens", COLUMN_I32, "tokens", "sequence length the state stands at"},
    [STATE_RECORD_HASH] = {"record_xxh3_64", COLUMN_U64, NULL,
        "hash of the record's rows: XXH3 64-bit of each section's, its seed being that of the section "
        "before"},
    [STATE_SECTION_NAMES] = {"section_names", COLUMN_U8, NULL, "UTF-8: names of the sections, in order"},
    [STATE_SECTION_NAMES_OFFSETS] = {"section_names_offsets", COLUMN_U64, "bytes", "where each name begins"},
    [STATE_CHOICE_OFFSETS] = {"choice_offsets", COLUMN_U64, "choices",
        "where each record's first tokens begin"},
    [STATE_FIRST_IDS] = {"first_ids", COLUMN_I32, NULL, "first generated token of each choice"},
    [STATE_FIRST_LOGPROBS] = {"first_logprobs", COLUMN_F32, "nat",
        "its log-probability under the unmodified softmax"},
    [STATE_TOP_COUNT] = {"top_count", COLUMN_I32, NULL, "alternatives of the first token; 0: none"},
    [STATE_TOP_IDS] = {"top_ids", COLUMN_I32, NULL, "alternatives, likeliest first"},
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
        (struct column){columns->offsets_name, COLUMN_U64, "rows", "where each record's rows begin"};
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

static enum result add_rows(struct states_writer *writer, const struct state_record *record) {
    uint64_t hash = 0;
    for (int32_t s = 0; s < writer->section_count; s++) {
        size_t row_bytes = (size_t)writer->sections[s].row_bytes;
        const struct section_rows *given = &record->sections[s];
        size_t bytes = (size_t)given->rows * row_bytes;
        hash = hash_rows(hash, given->data, bytes);
        TRY(vector_append(&writer->rows[s], given->data, bytes));
        uint64_t end = writer->rows[s].bytes / row_bytes;
        TRY(vector_append(&writer->offsets[s], &end, sizeof end));
    }
    return table_append(&writer->table, STATE_RECORD_HASH, &hash, 1);
}

enum result states_writer_add(struct states_writer *writer, const struct state_record *record) {
    struct table *table = &writer->table;
    if (record->request < 0 || record->choice_count < 0)
        return fail(ERROR_INTERNAL, "a state of request %lld with %d choices", (long long)record->request,
            record->choice_count);
    TRY(add_rows(writer, record));
    TRY(table_append_int64(table, STATE_REQUEST, record->request));
    TRY(table_append_int32(table, STATE_TOKENS, record->tokens));
    for (int32_t i = 0; i < record->choice_count; i++) {
        const struct first_token *first = &record->first_tokens[i];
        size_t top = (size_t)first->top_logprobs;
        TRY(table_append_int32(table, STATE_FIRST_IDS, first->id));
        TRY(table_append_float(table, STATE_FIRST_LOGPROBS, first->logprob));
        TRY(table_append_int32(table, STATE_TOP_COUNT, first->top_logprobs));
        TRY(table_append(table, STATE_TOP_IDS, first->top_ids, top));
        TRY(table_append(table, STATE_TOP_LOGPROBS, first->top_values, top));
        TRY(table_append_offset(table, STATE_TOP_OFFSETS, top));
    }
    TRY(table_append_offset(table, STATE_CHOICE_OFFSETS, (size_t)record->choice_count));
    writer->counts.records++;
    writer->counts.completed++;
    writer->counts.prompt_tokens += record->tokens;
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

static enum result check_table(
    const struct table *table, const char *path, const struct file_header *header) {
    size_t records = table_rows(table, STATE_REQUEST), choices = table_rows(table, STATE_FIRST_IDS);
    if ((int64_t)records != header->records)
        return fail(ERROR_INPUT, "%s: it has %zu records, its header says %lld", path, records,
            (long long)header->records);
    TRY(table_check_rows(table, path, STATE_TOKENS, records));
    TRY(table_check_rows(table, path, STATE_RECORD_HASH, records));
    TRY(table_check_rows(table, path, STATE_FIRST_LOGPROBS, choices));
    TRY(table_check_rows(table, path, STATE_TOP_COUNT, choices));
    size_t top = table_rows(table, STATE_TOP_IDS);
    TRY(table_check_rows(table, path, STATE_TOP_LOGPROBS, top));
    TRY(table_check_offsets(table, path, STATE_CHOICE_OFFSETS, records, choices));
    TRY(table_check_offsets(table, path, STATE_TOP_OFFSETS, choices, top));
    const uint64_t *top_offsets = table_offsets(table, STATE_TOP_OFFSETS);
    const int32_t *top_count = table_values(table, STATE_TOP_COUNT);
    for (size_t c = 0; c < choices; c++)
        if (top_count[c] < 0 || top_offsets[c + 1] - top_offsets[c] != (uint64_t)top_count[c])
            return fail(ERROR_INPUT, "%s: first token %zu has top_count %d and %llu alternatives", path, c,
                top_count[c], (unsigned long long)(top_offsets[c + 1] - top_offsets[c]));
    const int64_t *request = table_values(table, STATE_REQUEST);
    const int32_t *tokens = table_values(table, STATE_TOKENS);
    for (size_t r = 0; r < records; r++)
        if (request[r] < 0 || tokens[r] < 0)
            return fail(ERROR_INPUT, "%s: record %zu is of request %lld with %d tokens", path, r,
                (long long)request[r], tokens[r]);
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
    size_t records, size_t rows, struct vector *offsets) {
    TRY(hdf5_read_column(file, path, &columns->offsets, offsets));
    uint64_t end = rows;
    struct table one = {.columns = &columns->offsets, .count = 1, .data = offsets, .ends = &end};
    return table_check_offsets(&one, path, 0, records, rows);
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

static enum result check_section(hid_t file, const char *path, const char *name, size_t records) {
    struct section_columns columns;
    struct vector offsets = {0};
    size_t row_bytes = 0, rows;
    hid_t dataset;
    section_columns_set(&columns, name, "");
    TRY(section_row_bytes(file, path, columns.rows_name, &row_bytes));
    TRY(hdf5_open_column(file, path, &columns.rows, row_bytes, &dataset, &rows));
    H5Dclose(dataset);
    enum result status = read_offsets(file, path, &columns, records, rows, &offsets);
    vector_free(&offsets);
    return status;
}

enum result states_part_check(hid_t file, const char *path, const struct file_header *header) {
    struct table table;
    TRY(states_part_read(file, path, header, &table));
    enum result status = OK;
    size_t records = table_rows(&table, STATE_REQUEST);
    size_t sections = table_rows(&table, STATE_SECTION_NAMES_OFFSETS) - 1;
    for (size_t s = 0; s < sections && status == OK; s++) {
        char name[32];
        status = section_name(&table, path, s, name);
        if (status == OK)
            status = check_section(file, path, name, records);
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
    int32_t part, record, tokens; /* part -1: no state */
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

/* Notes where the records of one part lie. The first part that has a request counts. */
static enum result index_part(struct states *states, int32_t index) {
    const char *path = states->list.parts[index].path;
    struct file_header header;
    struct vector request = {0}, tokens = {0};
    hid_t file;
    TRY(part_open(path, STATES_FORMAT, false, &header, &file));
    enum result status;
    TRY_GOTO(status, hdf5_read_column(file, path, &states_columns[STATE_REQUEST], &request), done);
    TRY_GOTO(status, hdf5_read_column(file, path, &states_columns[STATE_TOKENS], &tokens), done);
    size_t records = request.bytes / sizeof(int64_t);
    if (tokens.bytes / sizeof(int32_t) != records || records > INT32_MAX) {
        status = fail(ERROR_INPUT, "%s: it has %zu records and %zu lengths", path, records,
            tokens.bytes / sizeof(int32_t));
        goto done;
    }
    for (size_t r = 0; r < records; r++) {
        int64_t at = ((int64_t *)request.data)[r];
        if (at < 0 || at >= states->total) {
            status = fail(ERROR_INPUT, "%s: record %zu is of request %lld, but there are %lld", path, r,
                (long long)at, (long long)states->total);
            goto done;
        }
        if (states->places[at].part < 0)
            states->places[at] = (struct state_place){index, (int32_t)r, ((int32_t *)tokens.data)[r]};
    }
done:
    vector_free(&request);
    vector_free(&tokens);
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

int32_t states_length(const struct states *states, int64_t request) {
    return states_has(states, request) ? states->places[request].tokens : 0;
}

static enum result open_sections(struct states *states, struct open_part *part, const char *path) {
    size_t records = table_rows(&part->table, STATE_REQUEST);
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
        TRY(read_offsets(part->file, path, &columns, records, rows, &part->offsets[s]));
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

/* One allocation holds a record, its sections, first tokens, alternatives and rows. */
struct record_memory {
    struct state_record record;
    char rest[];
};

static size_t aligned(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

static struct record_memory *record_allocate(const struct states *states, const struct open_part *part,
    size_t r, struct section_rows **sections, struct first_token **first, char **top, char **rows) {
    const struct table *table = &part->table;
    const uint64_t *choices = table_offsets(table, STATE_CHOICE_OFFSETS);
    const uint64_t *tops = table_offsets(table, STATE_TOP_OFFSETS);
    size_t choice_count = choices[r + 1] - choices[r], top_count = tops[choices[r + 1]] - tops[choices[r]];
    size_t section_bytes = aligned((size_t)states->section_count * sizeof **sections);
    size_t first_bytes = aligned(choice_count * sizeof **first), top_bytes = aligned(top_count * 8),
           row_bytes = 0;
    for (int32_t s = 0; s < states->section_count; s++) {
        const uint64_t *offsets = part->offsets[s].data;
        row_bytes += aligned((offsets[r + 1] - offsets[r]) * (size_t)states->sections[s].row_bytes);
    }
    size_t head = aligned(sizeof(struct record_memory));
    struct record_memory *memory =
        aligned_alloc(64, head + section_bytes + first_bytes + top_bytes + row_bytes + 64);
    if (!memory)
        return NULL;
    char *at = (char *)memory + head;
    *sections = (struct section_rows *)at;
    *first = (struct first_token *)(at + section_bytes);
    *top = at + section_bytes + first_bytes;
    *rows = *top + top_bytes;
    memory->record = (struct state_record){.sections = *sections,
        .first_tokens = *first,
        .choice_count = (int32_t)choice_count,
        .request = ((const int64_t *)table_values(table, STATE_REQUEST))[r],
        .tokens = ((const int32_t *)table_values(table, STATE_TOKENS))[r]};
    return memory;
}

static void copy_first_tokens(const struct table *table, size_t r, struct first_token *first, char *top) {
    uint64_t begin = table_offsets(table, STATE_CHOICE_OFFSETS)[r];
    uint64_t end = table_offsets(table, STATE_CHOICE_OFFSETS)[r + 1];
    const uint64_t *tops = table_offsets(table, STATE_TOP_OFFSETS);
    for (uint64_t c = begin; c < end; c++) {
        size_t count = tops[c + 1] - tops[c];
        int32_t *ids = (int32_t *)top;
        float *values = (float *)(ids + count);
        if (count) {
            memcpy(ids, (const int32_t *)table_values(table, STATE_TOP_IDS) + tops[c], count * sizeof *ids);
            memcpy(values, (const float *)table_values(table, STATE_TOP_LOGPROBS) + tops[c],
                count * sizeof *values);
        }
        top = (char *)(values + count);
        first[c - begin] =
            (struct first_token){.id = ((const int32_t *)table_values(table, STATE_FIRST_IDS))[c],
                .logprob = ((const float *)table_values(table, STATE_FIRST_LOGPROBS))[c],
                .top_logprobs = (int32_t)count,
                .top_ids = ids,
                .top_values = values};
    }
}

enum result states_read(struct states *states, int64_t request, struct state_record **record) {
    *record = NULL;
    if (!states_has(states, request))
        return fail(ERROR_INTERNAL, "there is no state of request %lld", (long long)request);
    struct state_place place = states->places[request];
    const char *path = states->list.parts[place.part].path;
    struct open_part *part;
    TRY(get_part(states, place.part, &part));
    size_t r = (size_t)place.record;
    uint64_t hash = 0;
    struct section_rows *sections;
    struct first_token *first;
    char *top, *rows;
    if (r >= table_rows(&part->table, STATE_REQUEST))
        return fail(ERROR_INPUT, "%s: it changed while it was in use", path);
    struct record_memory *memory = record_allocate(states, part, r, &sections, &first, &top, &rows);
    if (!memory)
        return fail(
            ERROR_MEMORY, "%s: out of memory for the state of request %lld", path, (long long)request);
    copy_first_tokens(&part->table, r, first, top);
    enum result status = OK;
    for (int32_t s = 0; s < states->section_count; s++) {
        const uint64_t *offsets = part->offsets[s].data;
        size_t row_bytes = (size_t)states->sections[s].row_bytes;
        sections[s] = (struct section_rows){rows, (int64_t)(offsets[r + 1] - offsets[r])};
        struct column column = {states->sections[s].name, COLUMN_U8, NULL, NULL};
        TRY_GOTO(status,
            hdf5_read_rows(
                part->rows[s], path, &column, row_bytes, offsets[r], (size_t)sections[s].rows, rows),
            done);
        hash = hash_rows(hash, rows, (size_t)sections[s].rows * row_bytes);
        rows += aligned((size_t)sections[s].rows * row_bytes);
    }
    if (hash != ((const uint64_t *)table_values(&part->table, STATE_RECORD_HASH))[r])
        status = fail(ERROR_INPUT,
            "%s: the state of request %lld is damaged (checksum); run 'nocturne prefill' again: it sets the "
            "part aside",
            path, (long long)request);
done:
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

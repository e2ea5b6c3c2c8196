/* Any bytes as a campaign's file, and files whose checksums are right but whose values are not.
 *
 * The first byte says what follows. 0 mod 4: the rest is a whole file. Else: edits of the columns of a good file (1: a
 * part of results, 2: a part of states, 3: requests.h5; from 200 on: a part of embeddings), which is then written with
 * right checksums and read by all that reads such files. An edit is 12 bytes: column, kind, row (2), value (8).
 * HDF5's own reading of damaged metadata is out of reach on purpose: the content hash refuses such a file before the
 * library sees it. */
#include "campaign/answers.h"
#include "campaign/embeddings.h"
#include "campaign/embeddings_part.h"
#include "campaign/parts.h"
#include "campaign/requests.h"
#include "campaign/requests_columns.h"
#include "campaign/results.h"
#include "campaign/results_part.h"
#include "campaign/states.h"
#include "campaign/states_part.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* abort, mkdtemp */
#include <string.h> /* memcpy */
#include <sys/stat.h>
#include <unistd.h> /* unlink, rmdir */

enum { RECORDS = 3, MOST_COLUMNS = 128, EDIT_BYTES = 12, SECTIONS = 2, HIDDEN = 2 };
enum format { WHOLE_FILE, RESULTS_PART, STATES_PART, REQUESTS_FILE, EMBEDDINGS_PART };

/* A column of a file in memory. */
struct item {
    struct column column;
    struct vector data;
    size_t row_values; /* 0: one-dimensional */
};

struct good_file {
    struct item items[MOST_COLUMNS];
    int count;
};

static char folder[] = "/tmp/nocturne-fuzz-XXXXXX", path[96];
static struct good_file good[5];
static struct tokenizer *tokenizer;
static struct answer_writer *answers;
static const struct provenance provenance = {
    .command = "fuzz", .model_folder = "m", .fingerprint = "f", .identity = "i=1", .settings = "{}"};
static const struct state_section sections[SECTIONS] = {
    {"latent_02", "a row", 8}, {"window", "another row", 3}};
static const struct column section_columns[2 * SECTIONS] = {
    {"sections/latent_02", COLUMN_U8, NULL, "rows"},
    {"sections/latent_02_offsets", COLUMN_U64, NULL, "offsets"},
    {"sections/window", COLUMN_U8, NULL, "rows"},
    {"sections/window_offsets", COLUMN_U64, NULL, "offsets"},
};

static const struct column rows_column = {"rows", COLUMN_F32, NULL, "rows"};

static void must(enum result status) {
    if (status == OK)
        return;
    fprintf(stderr, "set-up failed: %s\n", failure_message());
    abort();
}

static void make_requests(void) {
    struct requests_writer *writer;
    static const char *const files[] = {"in.jsonl"};
    struct requests_source source = {.files = files, .file_count = 1, .options = ""};
    must(requests_writer_create(folder, &provenance, &source, &writer));
    int32_t ids[] = {1, 2, 3};
    float values[] = {1, 2, 3};
    struct text_piece stops[] = {{"a", 1}, {"bc", 2}};
    struct request_image images[] = {{0, 0}, {2, 1}};
    for (int i = 0; i < RECORDS; i++) {
        struct campaign_image image = {
            .hash = "1", .format = "PNG", .data = (const uint8_t *)"abc", .bytes = 3};
        char hash[HASH_DIGITS + 1];
        hash_digits_128(image.data, image.bytes, hash);
        image.hash = hash;
        image.tokens = 1;
        must(requests_writer_add_image(writer, &image));
        struct request request = {
            .custom_id = {"id", 2}, .model = {"m", 1}, .token_ids = ids, .token_count = 3};
        request.images = images;
        request.image_count = request.image_tokens = i;
        request.sampling = (struct sampling){.choices = 1,
            .bias_ids = ids,
            .bias_values = values,
            .bias_count = i,
            .stop_ids = ids,
            .stop_id_count = i,
            .stops = stops,
            .stop_count = i};
        must(requests_writer_add(writer, &request));
        struct request_error error = {.line = i, .code = "c", .type = "t", .message = "m"};
        must(requests_writer_add_error(writer, &error));
    }
    struct requests_input input = {.hash = "h"};
    must(requests_writer_finish(writer, &input));
}

static void make_parts(void) {
    struct embeddings_writer *embeddings;
    struct results_writer *results;
    struct states_writer *states;
    int32_t ids[] = {5, 6, 7, 8};
    float values[] = {-1, -2, -3, -4};
    must(results_writer_create(folder, 0, &provenance, &results));
    must(embeddings_writer_create(folder, 0, &provenance, HIDDEN, &embeddings));
    must(states_writer_create(folder, 0, &provenance, sections, SECTIONS, &states));
    for (int i = 0; i < RECORDS; i++) {
        struct choice_result choice = {.token_count = 2,
            .token_ids = ids,
            .logprobs = values,
            .top_logprobs = 2,
            .top_ids = ids,
            .top_values = values,
            .text = {"text", 4},
            .text_tokens = 2,
            .stop_index = -1};
        struct request_result result = {.request = i, .choice_count = 1, .choices = &choice};
        must(results_writer_add(results, &result));
        struct section_rows rows[SECTIONS] = {{"0123456789abcdef", 2}, {"xyz", 1}};
        struct saved_sequence sequences[2] = {{3, rows}, {4, rows}};
        struct saved_choice choices[2] = {{.token_count = 1,
                                              .token_ids = ids,
                                              .logprobs = values,
                                              .top_logprobs = 2,
                                              .top_ids = ids,
                                              .top_values = values},
            {.sequence = i % 2, .token_count = 2, .token_ids = ids, .logprobs = values}};
        struct state_record record = {
            .request = i, .sequence_count = 2, .sequences = sequences, .choice_count = 2, .choices = choices};
        must(states_writer_add(states, &record));
        struct embedding_record embedding = {.image = i, .hash = "0a", .tokens = 1 + i % 2, .rows = values};
        must(embeddings_writer_add(embeddings, &embedding));
    }
    must(embeddings_writer_flush(embeddings));
    embeddings_writer_free(embeddings);
    must(results_writer_flush(results));
    must(states_writer_flush(states));
    results_writer_free(results);
    states_writer_free(states);
}

/* Bytes of a row. */
static size_t row_size(const struct item *item) {
    return (item->row_values ? item->row_values : 1) * column_type_bytes(item->column.type);
}

/* Takes the values of columns out of a file, whatever their layout. */
static void take_columns(hid_t file, const struct column *columns, int count, struct good_file *taken) {
    for (int i = 0; i < count; i++) {
        struct item *item = &taken->items[taken->count++];
        item->column = columns[i];
        hid_t dataset = H5Dopen2(file, columns[i].name, H5P_DEFAULT), space = H5Dget_space(dataset);
        hsize_t extents[2] = {0, 0};
        H5Sget_simple_extent_dims(space, extents, NULL);
        item->row_values = (size_t)extents[1];
        size_t row = row_size(item);
        must(vector_reserve(&item->data, (size_t)extents[0] * row + 1));
        item->data.bytes = (size_t)extents[0] * row;
        if (H5Dread(dataset, column_memory_type(columns[i].type), H5S_ALL, H5S_ALL, H5P_DEFAULT,
                item->data.data) < 0)
            abort();
        H5Sclose(space);
        H5Dclose(dataset);
    }
}

static void take_file(const char *name, enum format format) {
    hid_t file;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    must(hdf5_open(path, &file));
    struct good_file *taken = &good[format];
    if (format == RESULTS_PART)
        take_columns(file, results_columns, RESULT_COLUMNS, taken);
    if (format == STATES_PART) {
        take_columns(file, states_columns, STATE_COLUMNS, taken);
        take_columns(file, section_columns, 2 * SECTIONS, taken);
    }
    if (format == REQUESTS_FILE) {
        take_columns(file, requests_columns, REQUEST_COLUMNS, taken);
        take_columns(file, refused_columns, REFUSED_COLUMNS, taken);
        take_columns(file, image_columns, IMAGE_COLUMN_COUNT, taken);
        take_columns(file, input_columns, INPUT_COLUMNS, taken);
    }
    if (format == EMBEDDINGS_PART) {
        take_columns(file, embeddings_columns, EMBEDDING_COLUMNS, taken);
        take_columns(file, &rows_column, 1, taken);
    }
    H5Fclose(file);
}

static void clean_up(void) {
    static const char *const names[] = {"requests.h5", "results/rank-0000/part-000000.h5",
        "prefill/rank-0000/part-000000.h5", "vision/rank-0000/part-000000.h5", "results/rank-0000", "results",
        "prefill/rank-0000", "prefill", "vision/rank-0000", "vision", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        remove(path);
    }
}

static void set_up(void) {
    if (!mkdtemp(folder))
        abort();
    atexit(clean_up);
    make_requests();
    make_parts();
    take_file("requests.h5", REQUESTS_FILE);
    take_file("results/rank-0000/part-000000.h5", RESULTS_PART);
    take_file("prefill/rank-0000/part-000000.h5", STATES_PART);
    take_file("vision/rank-0000/part-000000.h5", EMBEDDINGS_PART);
    must(tokenizer_load(SOURCE_DIR "/inputs/nano", &tokenizer));
    must(answer_writer_create(tokenizer, &answers));
}

/* One edit: 0 mod 3 sets a value, 1 a small value, 2 makes the column longer or shorter. */
static void edit(struct vector *columns, const struct good_file *from, const uint8_t *bytes) {
    int at = bytes[0] % from->count;
    const struct item *item = &from->items[at];
    size_t size = row_size(item);
    size_t rows = columns[at].bytes / size, row = (size_t)bytes[2] | (size_t)bytes[3] << 8;
    uint64_t value = 0;
    memcpy(&value, bytes + 4, bytes[1] % 3 ? 1 : 8);
    if (bytes[1] % 3 == 2) {
        must(vector_reserve(&columns[at], (row % 16 + 1) * size));
        if (row % 16 > rows)
            memset((char *)columns[at].data + columns[at].bytes, (int)value, (row % 16 - rows) * size);
        columns[at].bytes = row % 16 * size;
    } else if (rows) {
        memcpy((char *)columns[at].data + row % rows * size, &value, size < 8 ? size : 8);
    }
}

static void write_file(const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || (bytes && fwrite(data, 1, bytes, file) != bytes) || fclose(file))
        abort();
}

static void write_edited(enum format format, const uint8_t *data, size_t size) {
    static const char *const names[] = {
        "", RESULTS_FORMAT, STATES_FORMAT, REQUESTS_FORMAT, EMBEDDINGS_FORMAT};
    const struct good_file *from = &good[format];
    struct vector columns[MOST_COLUMNS] = {{0}};
    for (int i = 0; i < from->count; i++)
        must(vector_append(&columns[i], from->items[i].data.data, from->items[i].data.bytes));
    for (; size >= EDIT_BYTES; data += EDIT_BYTES, size -= EDIT_BYTES)
        edit(columns, from, data);
    struct file_header header = {
        .version = FORMAT_VERSION, .records = RECORDS, .completed = RECORDS, .failed = RECORDS};
    snprintf(header.format, sizeof header.format, "%s", names[format]);
    memset(header.requests, 'a', HASH_DIGITS);
    struct provenance about = provenance;
    about.identity = header.requests;
    struct hdf5_image image;
    hid_t file;
    must(hdf5_image_begin(&image, &file));
    must(hdf5_put_provenance(file, &about, &header, 0));
    must(hdf5_put_text(file, "input_xxh3_128", "h"));
    must(hdf5_put_text(file, "options", "{}"));
    must(hdf5_put_int64(file, "seed", 1));
    must(hdf5_put_int64(file, "images", RECORDS));
    for (int i = 0; i < from->count; i++) {
        const struct item *item = &from->items[i];
        size_t rows = columns[i].bytes / row_size(item);
        must(hdf5_write_column(file, "image", &item->column, columns[i].data, rows, item->row_values));
        vector_free(&columns[i]);
    }
    must(hdf5_image_finish(&image, &file, &header));
    write_file(image.data, image.bytes);
    hdf5_image_free(&image);
}

static void read_results(bool outcomes_too) {
    struct file_header header;
    struct table table;
    hid_t file;
    uint8_t outcomes[RECORDS];
    struct outcome_counts counts;
    char requests[HASH_DIGITS + 1];
    memset(requests, 'a', HASH_DIGITS);
    requests[HASH_DIGITS] = '\0';
    if (outcomes_too)
        must(parts_outcomes(folder, "results", requests, RECORDS, outcomes, &counts));
    if (part_open(path, RESULTS_FORMAT, true, &header, &file) != OK)
        return;
    enum result status = results_part_read(file, path, &header, &table);
    H5Fclose(file);
    if (status != OK)
        return;
    struct buffer text = {0};
    for (size_t r = 0; r < table_rows(&table, RESULT_REQUEST); r++)
        for (int kind = 0; kind < 12; kind++) {
            const struct answer_request request = {
                .kind = kind / 4, .thinking = kind & 1, .logprobs = kind & 2, .image_tokens = kind};
            buffer_clear(&text);
            answer_append(answers, &table, r, &request, "id", &text);
        }
    buffer_free(&text);
    table_free(&table);
}

static void read_states(void) {
    struct states *states;
    struct file_header header;
    char *identity;
    if (part_check(path, "prefill", &header, &identity) == OK)
        free(identity);
    if (states_open(folder, RECORDS, sections, SECTIONS, &states) != OK)
        return;
    for (int64_t i = 0; i < RECORDS; i++) {
        struct state_record *record;
        if (states_has(states, i) && states_read(states, i, &record) == OK)
            states_release(record);
    }
    states_close(states);
}

static void read_embeddings(void) {
    struct embeddings *embeddings;
    struct file_header header;
    char *identity;
    if (part_check(path, "vision", &header, &identity) == OK)
        free(identity);
    if (embeddings_open(folder, RECORDS, HIDDEN, 16, &embeddings) != OK)
        return;
    for (int64_t i = 0; i < RECORDS; i++) {
        int32_t tokens = embeddings_tokens(embeddings, i);
        float *rows = malloc((size_t)tokens * HIDDEN * sizeof *rows + 1);
        if (!rows)
            abort();
        if (tokens && embeddings_read(embeddings, i, rows) != OK && !failure_message()[0])
            abort();
        free(rows);
    }
    embeddings_close(embeddings);
}

static void read_images(struct requests *requests) {
    const int32_t *tokens;
    if (requests_image_tokens(requests, &tokens) != OK)
        return;
    for (int64_t i = requests_image_count(requests); i-- > 0;) {
        struct campaign_image image;
        if (requests_read_image(requests, i, &image) == OK && (!image.hash || !image.bytes))
            abort();
    }
}

static void read_requests(void) {
    struct requests *requests;
    const int32_t *lengths;
    if (requests_open(folder, &requests) != OK)
        return;
    if (requests_lengths(requests, &lengths) != OK)
        lengths = NULL;
    for (int64_t i = requests_count(requests); i-- > 0;) {
        struct request *request;
        struct request_head head;
        if (requests_read(requests, i, &request) == OK)
            requests_release(request);
        const int64_t *images;
        size_t count;
        if (requests_read_images(requests, i, &images, &count) != OK)
            continue;
        if (requests_read_head(requests, i, &head) != OK)
            continue;
    }
    read_images(requests);
    for (int64_t i = 0; i < requests_error_count(requests); i++) {
        struct request_error error;
        if (requests_read_error(requests, i, &error) != OK)
            break;
    }
    requests_close(requests);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"results/rank-0000/part-000000.h5",
        "results/rank-0000/part-000000.h5", "prefill/rank-0000/part-000000.h5", "requests.h5",
        "vision/rank-0000/part-000000.h5"};
    if (!tokenizer)
        set_up();
    if (!size)
        return 0;
    enum format format = data[0] < 200 ? data[0] % 4 : EMBEDDINGS_PART;
    snprintf(path, sizeof path, "%s/%s", folder, names[format]);
    if (format == WHOLE_FILE) {
        struct file_header header;
        char *identity;
        write_file(data + 1, size - 1);
        if (part_check(path, "results", &header, &identity) == OK)
            free(identity);
        return 0;
    }
    write_edited(format, data + 1, size - 1);
    if (format == RESULTS_PART)
        read_results(size % 8 == 0); /* not always: it warns of each fault on standard error */
    else if (format == STATES_PART)
        read_states();
    else if (format == EMBEDDINGS_PART)
        read_embeddings();
    else
        read_requests();
    return 0;
}

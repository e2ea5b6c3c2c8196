#include "base/buffer.h"
#include "base/log.h"
#include "base/options.h"
#include "campaign/answers.h"
#include "campaign/campaign.h"
#include "campaign/files.h"
#include "campaign/parts.h"
#include "campaign/requests.h"
#include "campaign/results_index.h"
#include "cluster/watch.h"
#include "recipe/tokenizer.h"

#include <errno.h>    /* errno */
#include <math.h>     /* isfinite */
#include <stdio.h>    /* printf, snprintf */
#include <stdlib.h>   /* calloc, qsort, free */
#include <string.h>   /* memcpy, strlen, strcmp */
#include <sys/stat.h> /* stat */
#include <unistd.h>   /* unlink */

/* Export goes through the parts once, in their own order, and puts the line of each request into a spool file; then
 * it copies the lines in the order asked for. So memory stays small (struct place and a few bytes a request), and
 * parts are read whole and in a row. */

enum export_order { ORDER_INPUT, ORDER_COMPLETION };

struct export_options {
    const char *campaign, *output, *errors, *model;
    int order;
    int64_t deadline;
};

struct place {
    int64_t offset, bytes; /* of its line in the spool; offset -1: no result */
    double finished_at;    /* Unix seconds */
    int64_t record;        /* row in the joined records of results.h5 */
};

struct export {
    const struct export_options *options;
    struct requests *requests;
    struct tokenizer *tokenizer;
    struct answer_writer *answers;
    struct json_document *document; /* of a request's tools */
    struct part_list list;
    struct indexed_part *parts; /* [parts_used], of the list */
    size_t parts_used;
    int64_t total, done, failed, records;
    struct place *places; /* [total] */
    uint8_t *outcomes;    /* [total] enum outcome */
    int64_t *order;       /* [total], NULL: input order */
    struct vector rows;   /* of the part at hand: int64_t, by request */
    struct output_file spool;
    struct file_header counts;
    struct buffer line;
    char system_fingerprint[16];
};

static enum result allocate(struct export *export) {
    size_t total = (size_t) export->total;
    export->places = malloc(total * sizeof *export->places + 1);
    export->outcomes = calloc(total + 1, 1);
    if (!export->places || !export->outcomes)
        return fail(ERROR_MEMORY, "out of memory for the index of %zu requests", total);
    for (size_t i = 0; i < total; i++)
        export->places[i] = (struct place){.offset = -1, .record = -1};
    return OK;
}

/* Answers are made from token ids. */
static enum result load_tokenizer(struct export *export) {
    if (!export->total)
        return OK;
    const char *folder =
        export->options->model ? export->options->model : requests_model_folder(export->requests);
    enum result status = tokenizer_load(folder, &export->tokenizer);
    if (status != OK)
        return fail_context(status, "the tokenizer is needed for answers (--model DIR if it moved)");
    return answer_writer_create(export->tokenizer, &export->answers);
}

/* 32 digits that depend on the campaign, the kind ('r': request, 'e': refused line) and the index. */
static void line_id(const struct export *export, char kind, int64_t index, char digits[HASH_DIGITS + 1]) {
    char key[HASH_DIGITS + 32];
    int bytes =
        snprintf(key, sizeof key, "%s%c%lld", requests_identity(export->requests), kind, (long long)index);
    hash_digits_128(key, (size_t)bytes, digits);
}

/* A text of a part's column as a NUL-terminated string in `to`. */
static const char *part_string(const struct table *part, int column, size_t record, struct buffer *to) {
    const uint64_t *offsets = table_offsets(part, column + 1);
    buffer_clear(to);
    if (offsets[record + 1] > offsets[record])
        buffer_append(to, (const char *)table_values(part, column) + offsets[record],
            offsets[record + 1] - offsets[record]);
    return to->data ? to->data : "";
}

/* ---- the line of a request ---- */

static void begin_line(struct buffer *line, const char *id, const struct text_piece *custom_id) {
    buffer_clear(line);
    buffer_append_text(line, "{\"id\":\"batch_req_");
    buffer_append_text(line, id);
    buffer_append_text(line, "\",\"custom_id\":");
    if (custom_id)
        buffer_append_json_string(line, custom_id->data, custom_id->bytes);
    else
        buffer_append_text(line, "null");
    buffer_append_text(line, ",\"response\":");
}

/* A line that tells of an error. */
static void append_error_line(struct export *export, const struct error_text *error, const char *id,
    const struct text_piece *custom_id) {
    struct buffer *line = &export->line;
    begin_line(line, id, custom_id);
    if (error->status)
        buffer_printf(
            line, "{\"status_code\":%d,\"request_id\":\"%s\",\"body\":{\"error\":", error->status, id);
    else
        buffer_append_text(line, "null,\"error\":");
    error_append(error, line);
    buffer_append_text(line, error->status ? "}},\"error\":null}\n" : "}\n");
}

/* The line of a failed request. */
static void append_failed(struct export *export, const struct table *part, size_t record,
    const struct request_head *head, const char *id) {
    struct buffer texts[4] = {{0}};
    static const int columns[] = {
        RESULT_ERROR_TYPE, RESULT_ERROR_CODE, RESULT_ERROR_PARAM, RESULT_ERROR_MESSAGE};
    const char *strings[4];
    for (int i = 0; i < 4; i++)
        strings[i] = part_string(part, columns[i], record, &texts[i]);
    struct error_text error = {.status = ((const int32_t *)table_values(part, RESULT_ERROR_STATUS))[record],
        .type = strings[0],
        .code = strings[1],
        .param = strings[2],
        .message = strings[3],
        .file = requests_input_file_count(export->requests) > 1
                    ? requests_input_file(export->requests, head->file)
                    : NULL,
        .line = head->line};
    append_error_line(export, &error, id, &head->custom_id);
    for (int i = 0; i < 4; i++)
        buffer_free(&texts[i]);
}

/* What the answer takes from the request besides its head: stop strings (a Messages answer names the one that ended
 * it) and the tools' schemas. They last until the next request. */
static enum result read_format(struct export *export, int64_t request, struct answer_request *asked) {
    struct request_format format;
    if (asked->kind != KIND_MESSAGES && !asked->tools)
        return OK;
    TRY(requests_read_format(export->requests, request, &format));
    asked->stops = format.stops;
    asked->stop_count = format.stop_count;
    if (format.constraint != CONSTRAINT_TOOL_CALL && format.constraint != CONSTRAINT_TOOL_CALL_REQUIRED)
        return OK;
    if (!export->document)
        TRY(json_document_create(&export->document));
    enum result status = json_parse(
        export->document, format.constraint_text.data, format.constraint_text.bytes, &asked->tools_schemas);
    return status == OK ? OK : fail_context(status, "the tools of request %lld", (long long)request);
}

/* The line of an answered request. */
static enum result append_answer(struct export *export, const struct table *part, size_t record,
    const struct request_head *head, const char *id) {
    int64_t request = ((const int64_t *)table_values(part, RESULT_REQUEST))[record];
    struct buffer *line = &export->line;
    struct answer_request asked = {.kind = head->kind,
        .stage = head->start,
        .thinking = head->start != START_CONTENT && head->start != START_CALLS,
        .tools = head->parse_tool_calls,
        .json = head->json_output,
        .logprobs = head->top_logprobs >= 0,
        .image_tokens = head->image_tokens};
    struct message_head message = {.id = id,
        .created = answer_created(part, record),
        .model = head->model,
        .system_fingerprint = export->system_fingerprint};
    TRY(read_format(export, request, &asked));
    begin_line(line, id, &head->custom_id);
    buffer_append_text(line, "{\"status_code\":200,\"request_id\":\"");
    buffer_append_text(line, id);
    buffer_append_text(line, "\",\"body\":");
    message_append_head(head->kind, &message, line);
    answer_append(export->answers, part, record, &asked, id, line);
    buffer_append_text(line, "},\"error\":null}\n");
    return OK;
}

/* ---- from parts to the spool ---- */

static enum result spool_record(struct export *export, const struct table *part, size_t record) {
    int64_t request = ((const int64_t *)table_values(part, RESULT_REQUEST))[record];
    bool failed = ((const uint8_t *)table_values(part, RESULT_FAILED))[record];
    char id[HASH_DIGITS + 1];
    struct request_head head;
    if (export->places[request].offset >= 0)
        return OK;
    TRY(requests_read_head(export->requests, request, &head));
    line_id(export, 'r', request, id);
    if (failed)
        append_failed(export, part, record, &head, id);
    else
        TRY(append_answer(export, part, record, &head, id));
    export->places[request] = (struct place){.offset = export->spool.bytes,
        .bytes = (int64_t) export->line.bytes,
        .finished_at = ((const double *)table_values(part, RESULT_FINISHED_AT))[record],
        .record = export->records + (int64_t)record};
    export->outcomes[request] = failed ? OUTCOME_FAILED : OUTCOME_DONE;
    export->done += !failed;
    export->failed += failed;
    return output_file_write(&export->spool, export->line.data, export->line.bytes);
}

static int by_request(const void *left, const void *right, void *context) {
    const int64_t *request = context;
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    if (request[a] != request[b])
        return request[a] < request[b] ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* The part's records by their requests, so that requests.h5 is read in its order. */
static enum result sort_records(struct export *export, const struct table *part, const int64_t **rows) {
    const int64_t *request = table_values(part, RESULT_REQUEST);
    size_t count = table_rows(part, RESULT_REQUEST);
    TRY(vector_reserve(&export->rows, count * sizeof(int64_t)));
    int64_t *sorted = export->rows.data;
    for (size_t r = 0; r < count; r++)
        sorted[r] = (int64_t)r;
    if (count > 1)
        qsort_r(sorted, count, sizeof *sorted, by_request, (void *)(uintptr_t)request);
    *rows = sorted;
    return OK;
}

static enum result check_requests(const struct export *export, const char *path, const struct table *part) {
    const int64_t *request = table_values(part, RESULT_REQUEST);
    for (size_t r = 0; r < table_rows(part, RESULT_REQUEST); r++)
        if (request[r] >= export->total)
            return fail(ERROR_INPUT, "%s: record %zu is of request %lld, but there are %lld", path, r,
                (long long)request[r], (long long)export->total);
    return OK;
}

static enum result read_part(
    const struct export *export, const char *path, struct file_header *header, struct table *part) {
    hid_t file;
    TRY(part_open(path, RESULTS_FORMAT, true, header, &file));
    enum result status = OK;
    if (strcmp(header->requests, requests_identity(export->requests)))
        status = fail(ERROR_INPUT, "%s: it belongs to other requests", path);
    if (status == OK)
        status = results_part_read(file, path, header, part);
    H5Fclose(file);
    if (status != OK)
        return status;
    status = check_requests(export, path, part);
    if (status != OK)
        table_free(part);
    return status;
}

static enum result spool_part(struct export *export, const struct part_name *name) {
    struct table part;
    struct file_header header;
    enum result status = read_part(export, name->path, &header, &part);
    if (status == ERROR_INPUT) {
        log_warning("%s; left out", failure_message());
        return OK;
    }
    if (status != OK)
        return status;
    size_t records = table_rows(&part, RESULT_REQUEST);
    const int64_t *rows = NULL;
    status = sort_records(export, &part, &rows);
    for (size_t r = 0; r < records && status == OK; r++)
        status = spool_record(export, &part, (size_t)rows[r]);
    struct indexed_part *indexed = &export->parts[export->parts_used++];
    indexed->name = name;
    for (int i = 0; i < RESULT_COLUMNS; i++)
        indexed->rows[i] = table_rows(&part, i);
    export->records += (int64_t)records;
    export->counts.prompt_tokens += header.prompt_tokens;
    export->counts.generated_tokens += header.generated_tokens;
    table_free(&part);
    return status;
}

static enum result spool_parts(struct export *export, const char *output) {
    TRY(parts_list(export->options->campaign, "results", &export->list));
    export->parts = calloc(export->list.count + 1, sizeof *export->parts);
    if (!export->parts)
        return fail(ERROR_MEMORY, "out of memory for the list of parts");
    char *path;
    if (asprintf(&path, "%s.spool", output) < 0)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status = output_file_create(path, &export->spool);
    free(path);
    TRY(status);
    /* Without a name it goes away by itself, however we end. */
    unlink(export->spool.temporary);
    for (size_t i = 0; i < export->list.count; i++)
        TRY(spool_part(export, &export->list.parts[i]));
    return output_file_write_out(&export->spool);
}

/* ---- from the spool to the files ---- */

/* Copies a request's line, in pieces that fit a small buffer. */
static enum result write_line(struct export *export, int64_t request, struct output_file *file) {
    char piece[1 << 15];
    struct place place = export->places[request];
    while (place.bytes) {
        size_t got, want = place.bytes < (int64_t)sizeof piece ? (size_t)place.bytes : sizeof piece;
        TRY(read_fully(export->spool.fd, piece, want, place.offset, &got, export->spool.path));
        if (got != want)
            return fail(ERROR_IO, "%s: it ends too early", export->spool.path);
        TRY(output_file_write(file, piece, got));
        place.offset += (int64_t)got;
        place.bytes -= (int64_t)got;
    }
    return OK;
}

static enum result write_refused(struct export *export, int64_t index, struct output_file *file) {
    char id[HASH_DIGITS + 1];
    struct request_error refused;
    TRY(requests_read_error(export->requests, index, &refused));
    struct error_text error = {.status = refused.status,
        .type = refused.type,
        .code = refused.code,
        .param = refused.param,
        .message = refused.message,
        .file = requests_input_file_count(export->requests) > 1
                    ? requests_input_file(export->requests, refused.file)
                    : NULL,
        .line = refused.line};
    line_id(export, 'e', index, id);
    append_error_line(export, &error, id, refused.has_custom_id ? &refused.custom_id : NULL);
    return output_file_write(file, export->line.data, export->line.bytes);
}

static int64_t in_order(const struct export *export, int64_t i) {
    return export->order ? export->order[i] : i;
}

static enum result write_results(struct export *export, struct output_file *file) {
    for (int64_t i = 0; i < export->total; i++) {
        int64_t request = in_order(export, i);
        if (export->outcomes[request] == OUTCOME_DONE)
            TRY(write_line(export, request, file));
    }
    return OK;
}

/* Refused lines that stand before a place in the input; with file INT32_MAX all that are left. */
static enum result write_refused_before(
    struct export *export, int32_t file, int64_t line, int64_t *next, struct output_file *output) {
    struct request_error refused;
    for (; *next < requests_error_count(export->requests); ++*next) {
        TRY(requests_read_error(export->requests, *next, &refused));
        if (refused.file > file || (refused.file == file && refused.line > line))
            break;
        TRY(write_refused(export, *next, output));
    }
    return OK;
}

static enum result write_errors(struct export *export, struct output_file *file) {
    int64_t next = 0;
    struct request_head head;
    if (export->order)
        TRY(write_refused_before(export, INT32_MAX, 0, &next, file));
    for (int64_t i = 0; i < export->total; i++) {
        int64_t request = in_order(export, i);
        if (export->outcomes[request] != OUTCOME_FAILED)
            continue;
        TRY(requests_read_head(export->requests, request, &head));
        TRY(write_refused_before(export, head.file, head.line, &next, file));
        TRY(write_line(export, request, file));
    }
    return write_refused_before(export, INT32_MAX, 0, &next, file);
}

/* Writes one of the two files, or removes an old one when there is nothing to write. */
static enum result write_file(struct export *export, const char *path, int64_t lines,
    enum result (*write_lines)(struct export *export, struct output_file *file)) {
    struct output_file file;
    bool taken;
    if (!lines)
        return unlink(path) && errno != ENOENT ? fail_output(path, "remove the old file") : OK;
    TRY(output_file_create(path, &file));
    enum result status = write_lines(export, &file);
    if (status == OK)
        return output_file_commit(&file, true, &taken);
    output_file_abandon(&file);
    return status;
}

/* Requests by the time they finished; qsort has no context. */
static const struct place *sort_places;

static int by_completion(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    double x = sort_places[a].finished_at, y = sort_places[b].finished_at;
    if (x != y)
        return x < y ? -1 : 1;
    return a < b ? -1 : a > b;
}

static enum result sort_order(struct export *export) {
    if (export->options->order == ORDER_INPUT || !export->total)
        return OK;
    export->order = malloc((size_t) export->total * sizeof *export->order);
    if (!export->order)
        return fail(ERROR_MEMORY, "out of memory for the order of completion");
    for (int64_t i = 0; i < export->total; i++)
        export->order[i] = i;
    sort_places = export->places;
    qsort(export->order, (size_t) export->total, sizeof *export->order, by_completion);
    return OK;
}

static enum result write_index(struct export *export) {
    int64_t *records = malloc((size_t) export->total * sizeof *records + 1);
    if (!records)
        return fail(ERROR_MEMORY, "out of memory for the index of results.h5");
    for (int64_t i = 0; i < export->total; i++)
        records[i] = export->places[i].record;
    const char *identity = requests_identity(export->requests);
    struct provenance provenance = {.command = "export",
        .model_folder = requests_model_folder(export->requests),
        .fingerprint = requests_fingerprint(export->requests),
        .identity = identity,
        .settings = "{}",
        .ranks = 1,
        .supernode = 1};
    memcpy(export->counts.requests, identity, HASH_DIGITS + 1);
    export->counts.records = export->records;
    export->counts.completed = export->done;
    export->counts.failed = export->failed;
    enum result status = results_index_write(export->options->campaign, export->parts, export->parts_used,
        records, export->total, &provenance, &export->counts);
    free(records);
    return status;
}

static void print_summary(const struct export *export, const char *output, const char *errors) {
    int64_t refused = requests_error_count(export->requests);
    int64_t waiting = export->total - export->done - export->failed, bad = export->failed + refused;
    if (export->done)
        printf("%s: %lld answers\n", output, (long long)export->done);
    else
        printf("no answers: %s is not written\n", output);
    if (bad)
        printf("%s: %lld errors (%lld refused lines, %lld failed requests)\n", errors, (long long)bad,
            (long long)refused, (long long)export->failed);
    if (waiting)
        log_warning("%lld of %lld requests have no result yet and are in neither file; finish the campaign, "
                    "then export again",
            (long long)waiting, (long long)export->total);
}

/* Both names before anything is written or removed: /dev/null stays a device, and no file takes the other's place. */
static enum result check_names(const char *output, const char *errors) {
    struct stat one, other;
    TRY(output_check(output));
    TRY(output_check(errors));
    bool same = !stat(output, &one) && !stat(errors, &other) && one.st_dev == other.st_dev &&
                one.st_ino == other.st_ino;
    if (same || !strcmp(output, errors))
        return fail(
            ERROR_USAGE, "export: %s: answers and errors go to two files: give them two names", errors);
    return OK;
}

static enum result export_run(struct export *export, const char *output, const char *errors) {
    TRY(check_names(output, errors));
    TRY(requests_open(export->options->campaign, &export->requests));
    export->total = requests_count(export->requests);
    snprintf(export->system_fingerprint, sizeof export->system_fingerprint, "fp_%.10s",
        requests_fingerprint(export->requests));
    TRY(allocate(export));
    TRY(load_tokenizer(export));
    TRY(spool_parts(export, output));
    TRY(sort_order(export));
    TRY(write_file(export, output, export->done, write_results));
    TRY(write_file(export, errors, export->failed + requests_error_count(export->requests), write_errors));
    TRY(write_index(export));
    print_summary(export, output, errors);
    return OK;
}

static void export_free(struct export *export) {
    output_file_abandon(&export->spool);
    answer_writer_free(export->answers);
    json_document_free(export->document);
    if (export->tokenizer)
        tokenizer_free(export->tokenizer);
    part_list_free(&export->list);
    free(export->parts);
    free(export->places);
    vector_free(&export->rows);
    free(export->outcomes);
    free(export->order);
    buffer_free(&export->line);
    requests_close(export->requests);
}

enum result command_export(int argc, char **argv) {
    static const char *const orders[] = {"input", "completion", NULL};
    struct export_options values = {.order = ORDER_INPUT, .deadline = WATCH_DEFAULT_DEADLINE};
    const struct option options[] = {
        {.name = "campaign",
            .kind = OPTION_TEXT,
            .value = &values.campaign,
            .placeholder = "DIR",
            .required = true,
            .help = "folder of the campaign"},
        {.name = "output",
            .kind = OPTION_TEXT,
            .value = &values.output,
            .placeholder = "FILE",
            .help = "where answers go (default DIR/results.jsonl)"},
        {.name = "errors",
            .kind = OPTION_TEXT,
            .value = &values.errors,
            .placeholder = "FILE",
            .help = "where errors go (default DIR/errors.jsonl)"},
        {.name = "order",
            .kind = OPTION_CHOICE,
            .value = &values.order,
            .choices = orders,
            .help = "of the lines: as in the input (default), or as they finished"},
        {.name = "model",
            .kind = OPTION_TEXT,
            .value = &values.model,
            .placeholder = "DIR",
            .help = "folder with the tokenizer (default: the one given to ingest)"},
        {.name = "deadline",
            .kind = OPTION_COUNT,
            .value = &values.deadline,
            .placeholder = "SECONDS",
            .least = 1,
            .most = 1 << 30,
            .help = "longest wait on the file system before export is given up (default: 600)"},
        {0},
    };
    static const struct command_usage usage = {.name = "export",
        .summary = "Writes a campaign's answers and errors as OpenAI batch output files, and results.h5.\n"
                   "May be used at any time: requests that have no result yet are left out."};
    bool help_shown;
    TRY(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    if (help_shown)
        return OK;
    watch_start((double)values.deadline, NULL, true);
    struct export export = {.options = &values, .spool = {.fd = -1}};
    char *output = values.output ? strdup(values.output) : path_join(values.campaign, "results.jsonl");
    char *errors = values.errors ? strdup(values.errors) : path_join(values.campaign, "errors.jsonl");
    enum result status = output && errors ? export_run(&export, output, errors)
                                          : fail(ERROR_MEMORY, "out of memory for a path");
    export_free(&export);
    watch_stop();
    free(output);
    free(errors);
    return status;
}

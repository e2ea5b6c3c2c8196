#include "campaign/report_results.h"

#include "base/log.h"
#include "campaign/parts.h"
#include "campaign/results_part.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, qsort */
#include <string.h> /* strcmp, memmove, strndup */

struct reader {
    struct requests *requests;
    struct report_results *results;
    uint8_t *seen; /* [requests] */
};

static void count_code(struct report_results *results, const char *code) {
    int32_t i = 0;
    while (i < results->code_count && strncmp(results->codes[i].code, code, REPORT_CODE_BYTES - 1))
        i++;
    if (i == REPORT_CODES) {
        i = REPORT_CODES - 1;
        snprintf(results->codes[i].code, REPORT_CODE_BYTES, "others");
    } else if (i == results->code_count) {
        snprintf(results->codes[i].code, REPORT_CODE_BYTES, "%s", code);
        results->code_count++;
    }
    results->codes[i].count++;
}

static int by_count(const void *a, const void *b) {
    const struct report_code *first = a, *second = b;
    return (first->count < second->count) - (first->count > second->count);
}

static char *copy(const char *text, size_t bytes) {
    return strndup(text ? text : "", text ? bytes : 0);
}

static enum result add_error(struct report_results *results, const struct report_error *error) {
    if (results->error_count == REPORT_ERRORS)
        return OK;
    results->errors[results->error_count++] = *error;
    if (!error->custom_id || !error->code || !error->param || !error->message)
        return fail(ERROR_MEMORY, "out of memory for the table of errors");
    return OK;
}

static enum result read_refused(struct reader *reader) {
    struct report_results *results = reader->results;
    for (int64_t i = 0; i < results->refused; i++) {
        struct request_error error;
        TRY(requests_read_error(reader->requests, i, &error));
        count_code(results, error.code);
        if (results->error_count == REPORT_ERRORS)
            continue;
        const struct report_error row = {.line = error.line,
            .status = error.status,
            .custom_id =
                error.has_custom_id ? copy(error.custom_id.data, error.custom_id.bytes) : copy("", 0),
            .code = copy(error.code, strlen(error.code)),
            .param = copy(error.param, error.param ? strlen(error.param) : 0),
            .message = copy(error.message, strlen(error.message))};
        TRY(add_error(results, &row));
    }
    return OK;
}

static char *part_text(const struct table *part, int column, size_t record) {
    const uint64_t *offsets = table_offsets(part, column + 1);
    const char *values = table_values(part, column);
    return copy(values ? values + offsets[record] : NULL, offsets[record + 1] - offsets[record]);
}

static enum result add_failed(
    struct reader *reader, const struct table *part, size_t record, int64_t request) {
    struct report_results *results = reader->results;
    char *code = part_text(part, RESULT_ERROR_CODE, record);
    if (!code)
        return fail(ERROR_MEMORY, "out of memory for the table of errors");
    results->failed++;
    count_code(results, code);
    struct request_head head = {0};
    enum result status =
        results->error_count < REPORT_ERRORS ? requests_read_head(reader->requests, request, &head) : OK;
    if (status != OK || results->error_count == REPORT_ERRORS) {
        free(code);
        return status;
    }
    const struct report_error row = {.line = head.line,
        .status = ((const int32_t *)table_values(part, RESULT_ERROR_STATUS))[record],
        .custom_id = copy(head.custom_id.data, head.custom_id.bytes),
        .code = code,
        .param = part_text(part, RESULT_ERROR_PARAM, record),
        .message = part_text(part, RESULT_ERROR_MESSAGE, record)};
    return add_error(results, &row);
}

/* Keeps the longest, longest first; of equals the earlier in the input. */
static void add_long(struct report_results *results, const struct report_long *row) {
    int32_t at = results->longest_count;
    while (at > 0 && (results->longest[at - 1].longest < row->longest ||
                         (results->longest[at - 1].longest == row->longest &&
                             results->longest[at - 1].request > row->request)))
        at--;
    if (at == REPORT_LONGEST)
        return;
    int32_t moved = results->longest_count - at - (results->longest_count == REPORT_LONGEST);
    memmove(&results->longest[at + 1], &results->longest[at], (size_t)moved * sizeof *row);
    results->longest[at] = *row;
    results->longest_count += results->longest_count < REPORT_LONGEST;
}

static void add_done(struct reader *reader, const struct table *part, size_t record, int64_t request) {
    const uint64_t *choices = table_offsets(part, RESULT_CHOICE_OFFSETS),
                   *tokens = table_offsets(part, RESULT_TOKEN_OFFSETS);
    struct report_long row = {.request = request,
        .prompt_tokens = ((const int32_t *)table_values(part, RESULT_PROMPT_TOKENS))[record],
        .finished_at = ((const double *)table_values(part, RESULT_FINISHED_AT))[record]};
    for (uint64_t c = choices[record]; c < choices[record + 1]; c++) {
        int64_t count = (int64_t)(tokens[c + 1] - tokens[c]);
        row.generated_tokens += count;
        row.longest = count > row.longest ? count : row.longest;
    }
    reader->results->done++;
    reader->results->prompt_tokens += row.prompt_tokens;
    reader->results->generated_tokens += row.generated_tokens;
    add_long(reader->results, &row);
}

static enum result add_part(struct reader *reader, const char *path) {
    struct file_header header;
    struct table part;
    hid_t file;
    TRY(part_open(path, RESULTS_FORMAT, false, &header, &file));
    enum result status = strcmp(header.requests, requests_identity(reader->requests))
                             ? fail(ERROR_INPUT, "%s: is of other requests", path)
                             : results_part_read(file, path, &header, &part);
    H5Fclose(file);
    TRY(status);
    const int64_t *requests = table_values(&part, RESULT_REQUEST);
    const uint8_t *failed = table_values(&part, RESULT_FAILED);
    for (size_t r = 0; status == OK && r < table_rows(&part, RESULT_REQUEST); r++) {
        if (requests[r] >= requests_count(reader->requests) || reader->seen[requests[r]])
            continue;
        reader->seen[requests[r]] = 1;
        if (failed[r])
            status = add_failed(reader, &part, r, requests[r]);
        else
            add_done(reader, &part, r, requests[r]);
    }
    table_free(&part);
    return status;
}

static enum result read_parts(struct reader *reader, const char *campaign_folder) {
    struct part_list list;
    enum result status = OK;
    TRY(parts_list(campaign_folder, "results", &list));
    for (size_t i = 0; status == OK && i < list.count; i++) {
        status = add_part(reader, list.parts[i].path);
        if (status != ERROR_INPUT && status != ERROR_IO)
            continue;
        log_warning("left out: %s", failure_message());
        reader->results->skipped++;
        status = OK;
    }
    part_list_free(&list);
    return status;
}

static enum result name_longest(struct reader *reader) {
    for (int32_t i = 0; i < reader->results->longest_count; i++) {
        struct report_long *row = &reader->results->longest[i];
        struct request_head head;
        TRY(requests_read_head(reader->requests, row->request, &head));
        row->line = head.line;
        row->custom_id = copy(head.custom_id.data, head.custom_id.bytes);
        if (!row->custom_id)
            return fail(ERROR_MEMORY, "out of memory for the table of requests");
    }
    return OK;
}

enum result report_results_read(
    const char *campaign_folder, struct requests *requests, struct report_results *results) {
    int64_t total = requests_count(requests);
    struct reader reader = {requests, results, calloc((size_t)total + 1, 1)};
    if (!reader.seen)
        return fail(ERROR_MEMORY, "out of memory for %lld requests", (long long)total);
    results->refused = requests_error_count(requests);
    results->lines = total + results->refused;
    enum result status = read_refused(&reader);
    if (status == OK)
        status = read_parts(&reader, campaign_folder);
    if (status == OK)
        status = name_longest(&reader);
    results->waiting = total - results->done - results->failed;
    qsort(results->codes, (size_t)results->code_count, sizeof *results->codes, by_count);
    free(reader.seen);
    return status;
}

void report_results_free(struct report_results *results) {
    for (int32_t i = 0; i < results->error_count; i++) {
        free(results->errors[i].custom_id);
        free(results->errors[i].code);
        free(results->errors[i].param);
        free(results->errors[i].message);
    }
    for (int32_t i = 0; i < results->longest_count; i++)
        free(results->longest[i].custom_id);
}

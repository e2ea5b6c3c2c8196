#include "campaign/results.h"

#include "campaign/parts.h"
#include "campaign/results_part.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* strdup */

const struct column results_columns[RESULT_COLUMNS] = {
    [RESULT_REQUEST] = {"request", COLUMN_I64, NULL, "index of the request in requests.h5"},
    [RESULT_PROMPT_TOKENS] = {"prompt_tokens", COLUMN_I32, "tokens", "length of the prompt"},
    [RESULT_CACHED_TOKENS] = {"cached_tokens", COLUMN_I32, "tokens",
        "of the prompt: shared with other requests or found in the cache, and so not computed for this one"},
    [RESULT_FINISHED_AT] = {"finished_at", COLUMN_F64, "s",
        "when the request finished, in seconds since 1970-01-01 UTC"},
    [RESULT_FAILED] = {"failed", COLUMN_U8, NULL, "1: the request failed and has no choices"},
    [RESULT_ERROR_STATUS] = {"error_status", COLUMN_I32, NULL,
        "HTTP-like status of a failed request; 0: no reply"},
    [RESULT_ERROR_TYPE] = {"error_type", COLUMN_U8, NULL,
        "UTF-8: type of the error as in an API reply; empty: null"},
    [RESULT_ERROR_TYPE_OFFSETS] = {"error_type_offsets", COLUMN_U64, "bytes",
        "where each record's error_type begins"},
    [RESULT_ERROR_CODE] = {"error_code", COLUMN_U8, NULL, "UTF-8: code of the error"},
    [RESULT_ERROR_CODE_OFFSETS] = {"error_code_offsets", COLUMN_U64, "bytes",
        "where each record's error_code begins"},
    [RESULT_ERROR_PARAM] = {"error_param", COLUMN_U8, NULL, "UTF-8: the field that is at fault; empty: null"},
    [RESULT_ERROR_PARAM_OFFSETS] = {"error_param_offsets", COLUMN_U64, "bytes",
        "where each record's error_param begins"},
    [RESULT_ERROR_MESSAGE] = {"error_message", COLUMN_U8, NULL, "UTF-8: message of the error"},
    [RESULT_ERROR_MESSAGE_OFFSETS] = {"error_message_offsets", COLUMN_U64, "bytes",
        "where each record's error_message begins"},
    [RESULT_CHOICE_OFFSETS] = {"choice_offsets", COLUMN_U64, "choices", "where each record's choices begin"},
    [RESULT_TOKEN_IDS] = {"token_ids", COLUMN_I32, NULL,
        "generated tokens of all choices, the stopping one included"},
    [RESULT_LOGPROBS] = {"logprobs", COLUMN_F32, "nat",
        "log-probability of each generated token under the unmodified softmax"},
    [RESULT_TOKEN_OFFSETS] = {"token_offsets", COLUMN_U64, "tokens", "where each choice's tokens begin"},
    [RESULT_TEXT] = {"text", COLUMN_U8, NULL, "UTF-8: the answers, cut before a stop string"},
    [RESULT_TEXT_OFFSETS] = {"text_offsets", COLUMN_U64, "bytes", "where each choice's text begins"},
    [RESULT_TEXT_TOKENS] = {"text_tokens", COLUMN_I32, "tokens",
        "leading tokens whose text is wholly in `text`"},
    [RESULT_FINISH] = {"finish", COLUMN_U8, NULL, "why the choice ended; 0: stop, 1: length"},
    [RESULT_CAUSE] = {"cause", COLUMN_U8, NULL,
        "what stopped it; 0: nothing, 1: EOS, 2: a stop id, 3: a stop string"},
    [RESULT_STOP_INDEX] = {"stop_index", COLUMN_I32, NULL,
        "index of the stop string, or the stop id; else -1"},
    [RESULT_TOP_COUNT] = {"top_count", COLUMN_I32, NULL, "alternatives a token; 0: none"},
    [RESULT_TOP_IDS] = {"top_ids", COLUMN_I32, NULL,
        "alternatives [tokens, top_count] of each choice, likeliest first"},
    [RESULT_TOP_LOGPROBS] = {"top_logprobs", COLUMN_F32, "nat", "log-probabilities of the alternatives"},
    [RESULT_TOP_OFFSETS] = {"top_offsets", COLUMN_U64, "alternatives",
        "where each choice's alternatives begin"},
};

struct results_writer {
    char *folder; /* results/rank-NNNN */
    char requests[HASH_DIGITS + 1];
    struct provenance provenance; /* its texts are copies */
    int32_t rank, next_number;
    struct table table;
    struct file_header counts; /* of what is pending */
};

enum result results_writer_create(const char *campaign_folder, int32_t rank,
    const struct provenance *provenance, struct results_writer **writer) {
    *writer = calloc(1, sizeof **writer);
    struct results_writer *made = *writer;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for a results writer");
    enum result status;
    made->rank = rank;
    made->folder = part_folder(campaign_folder, "results", rank);
    if (!made->folder) {
        status = fail(ERROR_MEMORY, "out of memory for a path");
        goto done;
    }
    TRY_GOTO(status, provenance_copy(provenance, &made->provenance), done);
    TRY_GOTO(status, requests_identity_of(campaign_folder, made->requests), done);
    TRY_GOTO(status, part_next_number(made->folder, &made->next_number), done);
    status = table_create(&made->table, results_columns, RESULT_COLUMNS);
done:
    if (status != OK) {
        results_writer_free(made);
        *writer = NULL;
    }
    return status;
}

void results_writer_free(struct results_writer *writer) {
    if (!writer)
        return;
    table_free(&writer->table);
    provenance_free(&writer->provenance);
    free(writer->folder);
    free(writer);
}

static enum result add_choice(struct results_writer *writer, const struct choice_result *choice) {
    struct table *table = &writer->table;
    size_t tokens = (size_t)choice->token_count, top = (size_t)choice->top_logprobs * tokens;
    TRY(table_append(table, RESULT_TOKEN_IDS, choice->token_ids, tokens));
    TRY(table_append(table, RESULT_LOGPROBS, choice->logprobs, tokens));
    TRY(table_append_offset(table, RESULT_TOKEN_OFFSETS, tokens));
    TRY(table_append_ragged(table, RESULT_TEXT, choice->text.data, choice->text.bytes));
    TRY(table_append_int32(table, RESULT_TEXT_TOKENS, choice->text_tokens));
    TRY(table_append_byte(table, RESULT_FINISH, (uint8_t)choice->finish));
    TRY(table_append_byte(table, RESULT_CAUSE, (uint8_t)choice->cause));
    TRY(table_append_int32(table, RESULT_STOP_INDEX, choice->stop_index));
    TRY(table_append_int32(table, RESULT_TOP_COUNT, choice->top_logprobs));
    TRY(table_append(table, RESULT_TOP_IDS, choice->top_ids, top));
    TRY(table_append(table, RESULT_TOP_LOGPROBS, choice->top_values, top));
    TRY(table_append_offset(table, RESULT_TOP_OFFSETS, top));
    writer->counts.generated_tokens += choice->token_count;
    return OK;
}

enum result results_writer_add(struct results_writer *writer, const struct request_result *result) {
    struct table *table = &writer->table;
    bool failed = result->error_code != NULL;
    if (result->request < 0 || result->choice_count < 0 || (failed && result->choice_count))
        return fail(ERROR_INTERNAL, "a result of request %lld with %d choices and error %s",
            (long long)result->request, result->choice_count, failed ? result->error_code : "none");
    TRY(table_append_int64(table, RESULT_REQUEST, result->request));
    TRY(table_append_int32(table, RESULT_PROMPT_TOKENS, result->prompt_tokens));
    TRY(table_append_int32(table, RESULT_CACHED_TOKENS, result->cached_tokens));
    TRY(table_append(table, RESULT_FINISHED_AT, &result->finished_at, 1));
    TRY(table_append_byte(table, RESULT_FAILED, failed));
    TRY(table_append_int32(table, RESULT_ERROR_STATUS, failed ? result->error_status : 0));
    TRY(table_append_text(table, RESULT_ERROR_TYPE, failed ? result->error_type : NULL));
    TRY(table_append_text(table, RESULT_ERROR_CODE, result->error_code));
    TRY(table_append_text(table, RESULT_ERROR_PARAM, failed ? result->error_param : NULL));
    TRY(table_append_text(table, RESULT_ERROR_MESSAGE, failed ? result->error_message : NULL));
    for (int32_t i = 0; i < result->choice_count; i++)
        TRY(add_choice(writer, &result->choices[i]));
    TRY(table_append_offset(table, RESULT_CHOICE_OFFSETS, (size_t)result->choice_count));
    writer->counts.records++;
    writer->counts.completed += !failed;
    writer->counts.failed += failed;
    writer->counts.prompt_tokens += result->prompt_tokens;
    return OK;
}

int64_t results_writer_pending(const struct results_writer *writer) {
    return writer->counts.records;
}

int64_t results_writer_pending_bytes(const struct results_writer *writer) {
    return writer->counts.records ? (int64_t)table_bytes(&writer->table) : 0;
}

enum result results_writer_flush(struct results_writer *writer) {
    if (!writer->counts.records)
        return OK;
    struct hdf5_image image = {0};
    struct table next = {0};
    hid_t file = H5I_INVALID_HID;
    struct file_header header = writer->counts;
    memcpy(header.format, RESULTS_FORMAT, sizeof RESULTS_FORMAT);
    header.version = FORMAT_VERSION;
    memcpy(header.requests, writer->requests, sizeof header.requests);
    enum result status;
    TRY_GOTO(status, table_create(&next, results_columns, RESULT_COLUMNS), done);
    TRY_GOTO(status, hdf5_image_begin(&image, &file), done);
    TRY_GOTO(status, hdf5_put_provenance(file, &writer->provenance, &header, writer->rank), done);
    TRY_GOTO(status, table_write(file, writer->folder, &writer->table), done);
    TRY_GOTO(status, hdf5_image_finish(&image, &file, &header), done);
    TRY_GOTO(status, part_write(writer->folder, &image, &writer->next_number), done);
    table_free(&writer->table);
    writer->table = next;
    next = (struct table){0};
    writer->counts = (struct file_header){0};
done:
    if (file >= 0)
        H5Fclose(file);
    hdf5_image_free(&image);
    table_free(&next);
    return status;
}

static enum result check_choices(const struct table *table, const char *path, size_t choices) {
    static const int of_choices[] = {
        RESULT_TEXT_TOKENS, RESULT_FINISH, RESULT_CAUSE, RESULT_STOP_INDEX, RESULT_TOP_COUNT};
    size_t tokens = table_rows(table, RESULT_TOKEN_IDS), top = table_rows(table, RESULT_TOP_IDS);
    for (size_t i = 0; i < sizeof of_choices / sizeof *of_choices; i++)
        TRY(table_check_rows(table, path, of_choices[i], choices));
    TRY(table_check_rows(table, path, RESULT_LOGPROBS, tokens));
    TRY(table_check_rows(table, path, RESULT_TOP_LOGPROBS, top));
    TRY(table_check_offsets(table, path, RESULT_TOKEN_OFFSETS, choices, tokens));
    TRY(table_check_offsets(table, path, RESULT_TEXT_OFFSETS, choices, table_rows(table, RESULT_TEXT)));
    TRY(table_check_offsets(table, path, RESULT_TOP_OFFSETS, choices, top));
    const uint64_t *token_offsets = table_offsets(table, RESULT_TOKEN_OFFSETS);
    const uint64_t *top_offsets = table_offsets(table, RESULT_TOP_OFFSETS);
    const int32_t *top_count = table_values(table, RESULT_TOP_COUNT);
    const int32_t *text_tokens = table_values(table, RESULT_TEXT_TOKENS);
    const uint8_t *finish = table_values(table, RESULT_FINISH), *cause = table_values(table, RESULT_CAUSE);
    for (size_t c = 0; c < choices; c++) {
        uint64_t count = token_offsets[c + 1] - token_offsets[c], wide = top_offsets[c + 1] - top_offsets[c];
        if (top_count[c] < 0 ||
            (top_count[c] ? wide / (uint64_t)top_count[c] != count || wide % (uint64_t)top_count[c]
                          : wide != 0))
            return fail(ERROR_INPUT, "%s: choice %zu has %llu alternatives for %llu tokens of %d", path, c,
                (unsigned long long)wide, (unsigned long long)count, top_count[c]);
        if (text_tokens[c] < 0 || (uint64_t)text_tokens[c] > count || finish[c] > FINISH_LENGTH ||
            cause[c] > STOP_TEXT)
            return fail(ERROR_INPUT, "%s: choice %zu has text_tokens %d of %llu, finish %d, cause %d", path,
                c, text_tokens[c], (unsigned long long)count, finish[c], cause[c]);
    }
    return OK;
}

static enum result check_records(
    const struct table *table, const char *path, const struct file_header *header) {
    static const int of_records[] = {
        RESULT_PROMPT_TOKENS, RESULT_CACHED_TOKENS, RESULT_FINISHED_AT, RESULT_FAILED, RESULT_ERROR_STATUS};
    static const int texts[] = {
        RESULT_ERROR_TYPE, RESULT_ERROR_CODE, RESULT_ERROR_PARAM, RESULT_ERROR_MESSAGE};
    size_t records = table_rows(table, RESULT_REQUEST), choices = table_rows(table, RESULT_FINISH);
    if ((int64_t)records != header->records)
        return fail(ERROR_INPUT, "%s: it has %zu records, its header says %lld", path, records,
            (long long)header->records);
    for (size_t i = 0; i < sizeof of_records / sizeof *of_records; i++)
        TRY(table_check_rows(table, path, of_records[i], records));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        TRY(table_check_offsets(table, path, texts[i] + 1, records, table_rows(table, texts[i])));
    TRY(table_check_offsets(table, path, RESULT_CHOICE_OFFSETS, records, choices));
    const int64_t *request = table_values(table, RESULT_REQUEST);
    for (size_t r = 0; r < records; r++)
        if (request[r] < 0)
            return fail(ERROR_INPUT, "%s: record %zu is of request %lld", path, r, (long long)request[r]);
    return check_choices(table, path, choices);
}

enum result results_part_read(
    hid_t file, const char *path, const struct file_header *header, struct table *table) {
    TRY(table_create(table, results_columns, RESULT_COLUMNS));
    enum result status = table_read(file, path, table);
    if (status == OK)
        status = check_records(table, path, header);
    if (status != OK)
        table_free(table);
    return status;
}

enum result results_part_check(hid_t file, const char *path, const struct file_header *header) {
    struct table table;
    TRY(results_part_read(file, path, header, &table));
    table_free(&table);
    return OK;
}

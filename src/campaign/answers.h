/* Answers as JSON: bodies of API replies, from the columns of a results part. */
#ifndef NOCTURNE_CAMPAIGN_ANSWERS_H
#define NOCTURNE_CAMPAIGN_ANSWERS_H

#include "base/buffer.h"
#include "base/error.h"
#include "campaign/table.h"
#include "recipe/message.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */

/* What of a request its answer depends on. */
struct answer_request {
    enum request_kind kind;
    enum start_stage stage;
    bool thinking, tools, json, logprobs;
    int32_t image_tokens;             /* of the prompt */
    const struct json *tools_schemas; /* as in struct reply_options; used during the call */
    const struct text_piece
        *stops; /* [stop_count], for the stop string that a Messages answer names; may be NULL */
    int32_t stop_count;
};

struct answer_writer;

MUST_CHECK enum result answer_writer_create(const struct tokenizer *tokenizer, struct answer_writer **writer);
void answer_writer_free(struct answer_writer *writer);

/* Appends the body of a record that did not fail, but for what message_append_head writes. `id`: as in struct
 * message_head. */
void answer_append(struct answer_writer *writer, const struct table *part, size_t record,
    const struct answer_request *request, const char *id, struct buffer *text);
/* When a record finished, in whole Unix seconds; 0 when the part doesn't say. */
int64_t answer_created(const struct table *part, size_t record);

/* Appends the error object of a refused line or a failed request: with a status {message, type, param, code},
 * else {code, message} and the line, with its file when `file` isn't NULL. Empty type and param are null. */
struct error_text {
    int32_t status;
    const char *type, *code, *param, *message; /* NULL: empty */
    const char *file;
    int64_t line;
};
void error_append(const struct error_text *error, struct buffer *text);

#endif

/* Answers as JSON: the choices and the usage of a chat completion, from the columns of a results part. */
#ifndef NOCTURNE_CAMPAIGN_ANSWERS_H
#define NOCTURNE_CAMPAIGN_ANSWERS_H

#include "base/buffer.h"
#include "base/error.h"
#include "campaign/table.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */

struct answer_writer;

MUST_CHECK enum result answer_writer_create(const struct tokenizer *tokenizer, struct answer_writer **writer);
void answer_writer_free(struct answer_writer *writer);

/* Appends "choices":[...],"usage":{...} of a record that did not fail. `logprobs`: the request asked for them. */
void answer_append(struct answer_writer *writer, const struct table *part, size_t record, bool thinking,
    bool logprobs, struct buffer *text);

/* Appends the error object of a refused line or a failed request: with a status {message, type, param, code}, else
 * {code, message} and the line, with its file when `file` isn't NULL. Empty type and param are null. */
struct error_text {
    int32_t status;
    const char *type, *code, *param, *message; /* NULL: empty */
    const char *file;
    int64_t line;
};
void error_append(const struct error_text *error, struct buffer *text);

#endif

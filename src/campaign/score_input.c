#include "campaign/score_input.h"

#include "base/json.h"

#include <stdio.h>  /* getline */
#include <stdlib.h> /* calloc */
#include <string.h> /* strspn */

struct score_input {
    struct score_input_options options;
    const char *path;
    FILE *file;
    char *text; /* of the line, by getline */
    size_t capacity;
    int64_t lines, filled; /* read so far; of those, not blank */
    struct json_document *document;
    struct score_line line;
};

enum result score_input_open(
    const char *path, const struct score_input_options *options, struct score_input **input) {
    struct score_input *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "%s: out of memory", path);
    made->options = *options;
    made->path = path;
    enum result status = OK;
    made->file = fopen(path, "r");
    if (!made->file)
        TRY_GOTO(status, fail_errno(ERROR_IO, "%s: cannot open the texts to score", path), done);
    TRY_GOTO(status, json_document_create(&made->document), done);
    *input = made;
done:
    if (status != OK)
        score_input_close(made);
    return status;
}

void score_input_close(struct score_input *input) {
    if (!input)
        return;
    if (input->file)
        fclose(input->file);
    json_document_free(input->document);
    free(input->line.tokens.ids);
    buffer_free(&input->line.id);
    free(input->text);
    free(input);
}

/* The text of the next line that is not blank; *bytes 0 at the end. */
static enum result read_line(struct score_input *input, size_t *bytes) {
    for (;;) {
        ssize_t got = getline(&input->text, &input->capacity, input->file);
        if (got < 0) {
            *bytes = 0;
            return ferror(input->file) ? fail_errno(ERROR_IO, "%s: cannot read line %lld", input->path,
                                             (long long)input->lines + 1)
                                       : OK;
        }
        input->lines++;
        *bytes = (size_t)got;
        if (strspn(input->text, " \t\r\n") < *bytes) {
            input->filled++;
            return OK;
        }
    }
}

static void take_id(struct score_line *line, const struct json *id) {
    buffer_clear(&line->id);
    if (id && (id->kind == JSON_STRING || id->kind == JSON_NUMBER))
        buffer_append(&line->id, id->text, id->bytes);
    else
        buffer_printf(&line->id, "%lld", (long long)line->line);
}

/* Token ids as they are: nothing is put in front. */
static enum result take_ids(
    const struct score_input *input, struct score_line *line, const struct json *ids) {
    if (ids->kind != JSON_ARRAY)
        return fail(ERROR_INPUT, "token_ids: expected an array of integers, found %s", json_kind_name(ids));
    int64_t place = 0;
    for (const struct json *item = ids->first; item; item = item->next, place++) {
        int64_t id;
        if (!json_int64(item, &id))
            return fail(ERROR_INPUT, "token_ids[%lld]: expected an integer, found %s", (long long)place,
                json_kind_name(item));
        if (id < 0 || id >= input->options.vocab_size)
            return fail(ERROR_INPUT, "token_ids[%lld]: %lld is outside the vocabulary of %d tokens",
                (long long)place, (long long)id, input->options.vocab_size);
        int32_t small = (int32_t)id;
        token_list_append(&line->tokens, &small, 1);
    }
    return OK;
}

static enum result take_text(
    const struct score_input *input, struct score_line *line, const struct json *text) {
    if (text->kind != JSON_STRING)
        return fail(ERROR_INPUT, "text: expected a string, found %s", json_kind_name(text));
    token_list_append(&line->tokens, &input->options.bos_token_id, 1);
    return tokenizer_encode_plain(input->options.tokenizer, text->text, text->bytes, &line->tokens);
}

static enum result parse_line(struct score_input *input, struct score_line *line, size_t bytes) {
    const struct json *root;
    take_id(line, NULL);
    TRY(json_parse(input->document, input->text, bytes, &root));
    if (root->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "expected an object, found %s", json_kind_name(root));
    take_id(line, json_member(root, "id"));
    const struct json *ids = json_member(root, "token_ids"), *text = json_member(root, "text");
    if (!ids == !text)
        return fail(ERROR_INPUT, "expected one of token_ids and text, found %s", ids ? "both" : "neither");
    TRY(ids ? take_ids(input, line, ids) : take_text(input, line, text));
    if (line->tokens.count == 0)
        return fail(ERROR_INPUT, "token_ids: expected at least one token, found none");
    if (line->tokens.count > (size_t)input->options.context)
        return fail(ERROR_INPUT, "the text has %zu tokens, the model's context %d", line->tokens.count,
            input->options.context);
    return OK;
}

enum result score_input_next(struct score_input *input, struct score_line **line) {
    *line = NULL;
    size_t bytes;
    do {
        TRY(read_line(input, &bytes));
        if (bytes == 0)
            return OK;
    } while ((input->filled - 1) % input->options.ranks != input->options.rank);
    *line = &input->line;
    input->line.line = input->lines;
    input->line.tokens.count = 0;
    enum result status = parse_line(input, &input->line, bytes);
    input->line.bad = status == ERROR_INPUT;
    if (input->line.bad)
        snprintf(input->line.message, sizeof input->line.message, "%s", failure_message());
    return input->line.bad ? OK : status;
}

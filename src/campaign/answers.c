#include "campaign/answers.h"

#include "base/utf8.h"
#include "campaign/results_part.h"
#include "schedule/engine.h" /* enum finish_reason */

#include <math.h>   /* isfinite, fabs */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* strlen */

/* The JSON of a token that doesn't depend on where it stands: `"token":"...","bytes":[...]`. */
struct token_json {
    char *text;
    size_t bytes;
};

struct answer_writer {
    const struct tokenizer *tokenizer;
    struct token_json *tokens; /* [size], made when first needed */
    int32_t size;
    struct reply_parser *parser;
    struct json_document *document;
    struct buffer scratch, logprobs, choices;
};

enum result answer_writer_create(const struct tokenizer *tokenizer, struct answer_writer **writer) {
    struct answer_writer *made = calloc(1, sizeof *made);
    enum result status = OK;
    *writer = NULL;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for writing answers");
    made->tokenizer = tokenizer;
    made->size = tokenizer_size(tokenizer);
    made->tokens = calloc((size_t)made->size + 1, sizeof *made->tokens);
    if (!made->tokens) {
        status = fail(ERROR_MEMORY, "out of memory for writing answers");
        goto done;
    }
    TRY_GOTO(status, reply_parser_create(tokenizer, &made->parser), done);
    TRY_GOTO(status, json_document_create(&made->document), done);
    *writer = made;
    made = NULL;
done:
    answer_writer_free(made);
    return status;
}

void answer_writer_free(struct answer_writer *writer) {
    if (!writer)
        return;
    for (int32_t i = 0; writer->tokens && i < writer->size; i++)
        free(writer->tokens[i].text);
    free(writer->tokens);
    reply_parser_free(writer->parser);
    json_document_free(writer->document);
    buffer_free(&writer->scratch);
    buffer_free(&writer->logprobs);
    buffer_free(&writer->choices);
    free(writer);
}

static void append_int(struct buffer *text, int64_t value) {
    char digits[24], *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0)
        *--at = '-';
    buffer_append(text, at, (size_t)(digits + sizeof digits - at));
}

static void append_token(struct answer_writer *writer, int32_t id, struct buffer *text) {
    bool known = id >= 0 && id < writer->size;
    if (known && writer->tokens[id].text) {
        buffer_append(text, writer->tokens[id].text, writer->tokens[id].bytes);
        return;
    }
    const char *bytes = "";
    size_t count = 0, before = text->bytes;
    if (!tokenizer_token_bytes(writer->tokenizer, id, &bytes, &count))
        count = 0;
    buffer_append_text(text, "\"token\":");
    buffer_append_json_string(text, bytes, count);
    buffer_append_text(text, ",\"bytes\":[");
    for (size_t i = 0; i < count; i++) {
        buffer_append(text, ",", i > 0);
        append_int(text, (unsigned char)bytes[i]);
    }
    buffer_append(text, "]", 1);
    char *kept = known ? malloc(text->bytes - before) : NULL;
    if (!kept)
        return;
    memcpy(kept, text->data + before, text->bytes - before);
    writer->tokens[id] = (struct token_json){kept, text->bytes - before};
}

/* A log-probability; minus infinity as OpenAI writes it. */
static void append_logprob(struct buffer *text, float value) {
    buffer_append_text(text, ",\"logprob\":");
    if (isfinite(value))
        buffer_append_json_float(text, value);
    else
        buffer_append_text(text, "-9999.0");
}

/* A choice of a record, as it lies in the part. */
struct choice_view {
    const int32_t *ids, *top_ids;
    const float *logprobs, *top_logprobs;
    const char *text;
    size_t tokens, text_bytes, text_tokens;
    int32_t top_count, stop_index;
    bool length, stopped_by_token, stopped_by_text;
};

static struct choice_view view_choice(const struct table *part, size_t c) {
    const uint64_t *tokens = table_offsets(part, RESULT_TOKEN_OFFSETS),
                   *texts = table_offsets(part, RESULT_TEXT_OFFSETS);
    const uint64_t *tops = table_offsets(part, RESULT_TOP_OFFSETS);
    uint8_t cause = ((const uint8_t *)table_values(part, RESULT_CAUSE))[c];
    /* A column without values has no memory; nothing is read of it then. */
    static const int32_t no_id;
    static const float no_value;
    const int32_t *ids = table_values(part, RESULT_TOKEN_IDS), *top_ids = table_values(part, RESULT_TOP_IDS);
    const float *logprobs = table_values(part, RESULT_LOGPROBS),
                *top = table_values(part, RESULT_TOP_LOGPROBS);
    const char *text = table_values(part, RESULT_TEXT);
    return (struct choice_view){.ids = ids ? ids + tokens[c] : &no_id,
        .logprobs = logprobs ? logprobs + tokens[c] : &no_value,
        .top_ids = top_ids ? top_ids + tops[c] : &no_id,
        .top_logprobs = top ? top + tops[c] : &no_value,
        .text = text ? text + texts[c] : "",
        .tokens = tokens[c + 1] - tokens[c],
        .text_bytes = texts[c + 1] - texts[c],
        .text_tokens = (size_t)((const int32_t *)table_values(part, RESULT_TEXT_TOKENS))[c],
        .top_count = ((const int32_t *)table_values(part, RESULT_TOP_COUNT))[c],
        .length = ((const uint8_t *)table_values(part, RESULT_FINISH))[c] == FINISH_LENGTH,
        .stopped_by_token = cause == STOP_EOS || cause == STOP_ID,
        .stopped_by_text = cause == STOP_TEXT,
        .stop_index = ((const int32_t *)table_values(part, RESULT_STOP_INDEX))[c]};
}

/* ---- the reply, from the token ids ---- */

/* Whether the bytes end inside a character. */
static bool ends_inside_character(const struct buffer *bytes) {
    for (size_t back = 1; back <= 3 && back <= bytes->bytes; back++) {
        const char *lead = bytes->data + bytes->bytes - back;
        uint32_t character;
        if (((unsigned char)*lead & 0xC0) == 0x80)
            continue;
        return utf8_decode(lead, back, &character) == 0 && character == back &&
               (unsigned char)*lead >= 0xC2 && (unsigned char)*lead <= 0xF4;
    }
    return false;
}

/* Of an answer that a stop string cut: how many of its tokens end with a character and before the cut, and in
 * *bytes how much of the text they are. */
static size_t tokens_before_cut(
    struct answer_writer *writer, const struct choice_view *choice, size_t *bytes) {
    struct buffer *raw = &writer->scratch;
    size_t whole = 0;
    buffer_clear(raw);
    for (size_t t = 0; t < choice->text_tokens; t++) {
        const char *piece;
        size_t count;
        if (!tokenizer_is_special(writer->tokenizer, choice->ids[t]) &&
            tokenizer_token_bytes(writer->tokenizer, choice->ids[t], &piece, &count))
            buffer_append(raw, piece, count);
        if (!ends_inside_character(raw))
            whole = t + 1;
    }
    buffer_clear(raw);
    tokenizer_decode(writer->tokenizer, choice->ids, whole, true, raw);
    *bytes = raw->bytes < choice->text_bytes ? raw->bytes : choice->text_bytes;
    return whole;
}

/* Parses the tokens whose text is in the answer, and what a stop string left of the next one. */
static const struct reply *parse_choice(
    struct answer_writer *writer, const struct choice_view *choice, const struct answer_request *request) {
    struct reply_options options = {.rules = REPLY_REPAIRED,
        .stage = request->stage,
        .thinking = request->thinking,
        .tools = request->tools,
        .json = request->json,
        .as_ids = true,
        .skip_special = true,
        .tools_schemas = request->tools_schemas};
    size_t whole = choice->text_tokens, bytes = choice->text_bytes;
    if (choice->stopped_by_text)
        whole = tokens_before_cut(writer, choice, &bytes);
    reply_begin(writer->parser, &options);
    reply_feed_ids(writer->parser, choice->ids, whole);
    if (choice->stopped_by_text)
        reply_feed_text(writer->parser, choice->text + bytes, choice->text_bytes - bytes);
    return reply_finish(writer->parser, choice->length ? REPLY_LENGTH : REPLY_STOP);
}

/* Tokens before the end of reasoning, and the first one after it. */
struct split {
    size_t reasoning_tokens, content_token;
};

static struct split split_tokens(const struct choice_view *choice, const struct reply *reply) {
    if (reply->in_reasoning)
        return (struct split){choice->tokens - choice->stopped_by_token, choice->tokens};
    return (struct split){(size_t)reply->reasoning_tokens, (size_t)reply->content_token};
}

/* ---- log-probabilities ---- */

/* Tokens [begin, end) with their alternatives as a list. */
static void append_tokens(struct answer_writer *writer, const struct choice_view *choice, size_t begin,
    size_t end, struct buffer *text) {
    buffer_append(text, "[", 1);
    for (size_t t = begin; t < end; t++) {
        buffer_append(text, ",{", t > begin ? 2 : 0);
        buffer_append(text, "{", t == begin);
        append_token(writer, choice->ids[t], text);
        append_logprob(text, choice->logprobs[t]);
        buffer_append_text(text, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < choice->top_count; k++) {
            size_t at = t * (size_t)choice->top_count + (size_t)k;
            buffer_append(text, ",{", k > 0 ? 2 : 0);
            buffer_append(text, "{", k == 0);
            append_token(writer, choice->top_ids[at], text);
            append_logprob(text, choice->top_logprobs[at]);
            buffer_append(text, "}", 1);
        }
        buffer_append(text, "]}", 2);
    }
    buffer_append(text, "]", 1);
}

/* What a kind of body has of them: Responses a list of the content's tokens. */
static struct text_piece make_logprobs(struct answer_writer *writer, const struct choice_view *choice,
    const struct answer_request *request, const struct split *split) {
    struct buffer *text = &writer->logprobs;
    size_t end = choice->text_tokens, reasoning = split->reasoning_tokens;
    size_t begin = split->content_token < end ? split->content_token : end;
    if (!request->logprobs || request->kind == KIND_MESSAGES)
        return (struct text_piece){0};
    buffer_clear(text);
    if (request->kind == KIND_RESPONSES)
        append_tokens(writer, choice, begin, end, text);
    else {
        buffer_append_text(text, "{\"content\":");
        append_tokens(writer, choice, begin, end, text);
        if (request->thinking) {
            buffer_append_text(text, ",\"reasoning_content\":");
            append_tokens(writer, choice, 0, reasoning < end ? reasoning : end, text);
        }
        buffer_append_text(text, ",\"refusal\":null}");
    }
    return (struct text_piece){.data = text->data, .bytes = text->bytes};
}

/* ---- bodies ---- */

int64_t answer_created(const struct table *part, size_t record) {
    double finished_at = ((const double *)table_values(part, RESULT_FINISHED_AT))[record];
    return isfinite(finished_at) && fabs(finished_at) < 1e15 ? (int64_t)finished_at : 0;
}

static struct message_choice make_choice(struct answer_writer *writer, const struct choice_view *view,
    const struct answer_request *request, struct message_usage *usage) {
    struct message_choice choice = {
        .reply = parse_choice(writer, view, request),
        .stopped = view->stopped_by_text,
    };
    struct split split = split_tokens(view, choice.reply);
    choice.logprobs = make_logprobs(writer, view, request, &split);
    if (choice.stopped && view->stop_index >= 0 && view->stop_index < request->stop_count)
        choice.stop_sequence = request->stops[view->stop_index];
    usage->completion_tokens += (int64_t)view->tokens;
    usage->reasoning_tokens += (int64_t)split.reasoning_tokens;
    return choice;
}

void answer_append(struct answer_writer *writer, const struct table *part, size_t record,
    const struct answer_request *request, const char *id, struct buffer *text) {
    const uint64_t *choices = table_offsets(part, RESULT_CHOICE_OFFSETS);
    struct message_usage usage = {
        .prompt_tokens = ((const int32_t *)table_values(part, RESULT_PROMPT_TOKENS))[record],
        .cached_tokens = ((const int32_t *)table_values(part, RESULT_CACHED_TOKENS))[record],
        .image_tokens = request->image_tokens,
        .thinking = request->thinking,
    };
    buffer_clear(&writer->choices);
    for (uint64_t c = choices[record]; c < choices[record + 1]; c++) {
        struct choice_view view = view_choice(part, c);
        struct message_choice choice = make_choice(writer, &view, request, &usage);
        if (request->kind == KIND_CHAT) {
            buffer_append(&writer->choices, ",", c > choices[record]);
            message_append_choice(id, (int32_t)(c - choices[record]), &choice, &writer->choices);
            continue;
        }
        if (request->kind == KIND_RESPONSES)
            message_append_responses(id, answer_created(part, record), &choice, &usage, text);
        else
            message_append_messages(id, &choice, &usage, writer->document, text);
        return; /* these have one choice */
    }
    struct text_piece joined = {writer->choices.data ? writer->choices.data : "", writer->choices.bytes};
    message_append_chat(joined, &usage, text);
}

/* ---- errors ---- */

static void append_member(struct buffer *text, const char *name, const char *value) {
    buffer_append_text(text, name);
    if (value && *value)
        buffer_append_json_string(text, value, strlen(value));
    else
        buffer_append_text(text, "null");
}

void error_append(const struct error_text *error, struct buffer *text) {
    if (error->status) {
        append_member(text, "{\"message\":", error->message);
        append_member(text, ",\"type\":", error->type);
        append_member(text, ",\"param\":", error->param);
        append_member(text, ",\"code\":", error->code);
        buffer_append(text, "}", 1);
        return;
    }
    append_member(text, "{\"code\":", error->code);
    append_member(text, ",\"message\":", error->message);
    if (error->file)
        append_member(text, ",\"file\":", error->file);
    buffer_append_text(text, ",\"line\":");
    append_int(text, error->line);
    buffer_append(text, "}", 1);
}

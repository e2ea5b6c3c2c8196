#include "campaign/answers.h"

#include "campaign/results_part.h"
#include "schedule/engine.h" /* enum finish_reason */

#include <math.h>   /* isfinite */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcmp, strlen */

/* The JSON of a token that doesn't depend on where it stands: `"token":"...","bytes":[...]`. */
struct token_json {
    char *text;
    size_t bytes;
};

struct answer_writer {
    const struct tokenizer *tokenizer;
    struct token_json *tokens; /* [size], made when first needed */
    int32_t size;
    int32_t end_of_thinking; /* id of </think>, -1 when the model has none */
    struct buffer scratch;
};

static const char end_of_thinking_text[] = "</think>";

enum result answer_writer_create(const struct tokenizer *tokenizer, struct answer_writer **writer) {
    struct answer_writer *made = calloc(1, sizeof *made);
    *writer = made;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for writing answers");
    made->tokenizer = tokenizer;
    made->size = tokenizer_size(tokenizer);
    made->end_of_thinking = tokenizer_added_id(tokenizer, end_of_thinking_text);
    made->tokens = calloc((size_t)made->size + 1, sizeof *made->tokens);
    if (made->tokens)
        return OK;
    free(made);
    *writer = NULL;
    return fail(ERROR_MEMORY, "out of memory for writing answers");
}

void answer_writer_free(struct answer_writer *writer) {
    if (!writer)
        return;
    for (int32_t i = 0; i < writer->size; i++)
        free(writer->tokens[i].text);
    free(writer->tokens);
    buffer_free(&writer->scratch);
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
    int32_t top_count;
    bool length, stopped_by_token;
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
        .stopped_by_token = cause == STOP_EOS || cause == STOP_ID};
}

/* Where reasoning ends and content begins. */
struct split {
    size_t reasoning_tokens, content_token; /* tokens before </think>; first token after it */
    size_t reasoning_bytes, content_byte;
};

/* Reasoning is what comes before the token </think>; without it all is reasoning. */
static struct split split_thinking(struct answer_writer *writer, const struct choice_view *choice) {
    size_t at = 0, marker = sizeof end_of_thinking_text - 1;
    while (at < choice->tokens && choice->ids[at] != writer->end_of_thinking)
        at++;
    size_t spoken = choice->tokens - choice->stopped_by_token;
    struct split split = {at < spoken ? at : spoken, choice->tokens, choice->text_bytes, choice->text_bytes};
    if (at >= choice->tokens)
        return split;
    split.content_token = at + 1;
    buffer_clear(&writer->scratch);
    tokenizer_decode(writer->tokenizer, choice->ids, at, true, &writer->scratch);
    size_t bytes = writer->scratch.bytes;
    if (bytes > choice->text_bytes)
        return split; /* a stop string cut the text inside the reasoning */
    split.reasoning_bytes = split.content_byte = bytes;
    if (choice->text_bytes - bytes >= marker && !memcmp(choice->text + bytes, end_of_thinking_text, marker))
        split.content_byte += marker;
    return split;
}

static void append_text_without_newlines(struct buffer *text, const char *from, size_t bytes, bool trailing) {
    while (bytes && *from == '\n') {
        from++;
        bytes--;
    }
    while (trailing && bytes && from[bytes - 1] == '\n')
        bytes--;
    buffer_append_json_string(text, from, bytes);
}

static void append_message(
    const struct choice_view *choice, bool thinking, const struct split *split, struct buffer *text) {
    buffer_append_text(text, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (!thinking) {
        buffer_append_json_string(text, choice->text, choice->text_bytes);
    } else {
        bool closed = split->content_token < choice->tokens || split->content_byte < choice->text_bytes;
        append_text_without_newlines(
            text, choice->text + split->content_byte, choice->text_bytes - split->content_byte, false);
        buffer_append_text(text, ",\"reasoning_content\":");
        append_text_without_newlines(text, choice->text, split->reasoning_bytes, closed);
    }
    buffer_append_text(text, ",\"refusal\":null}");
}

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

static void append_logprobs(struct answer_writer *writer, const struct choice_view *choice, bool thinking,
    const struct split *split, struct buffer *text) {
    size_t end = choice->text_tokens;
    size_t begin = thinking ? split->content_token : 0, reasoning = split->reasoning_tokens;
    buffer_append_text(text, "{\"content\":");
    append_tokens(writer, choice, begin < end ? begin : end, end, text);
    if (thinking) {
        buffer_append_text(text, ",\"reasoning_content\":");
        append_tokens(writer, choice, 0, reasoning < end ? reasoning : end, text);
    }
    buffer_append_text(text, ",\"refusal\":null}");
}

void answer_append(struct answer_writer *writer, const struct table *part, size_t record, bool thinking,
    bool logprobs, struct buffer *text) {
    const uint64_t *choices = table_offsets(part, RESULT_CHOICE_OFFSETS);
    int64_t prompt = ((const int32_t *)table_values(part, RESULT_PROMPT_TOKENS))[record], completion = 0,
            reasoning = 0;
    buffer_append_text(text, "\"choices\":[");
    for (uint64_t c = choices[record]; c < choices[record + 1]; c++) {
        struct choice_view choice = view_choice(part, c);
        struct split split = {0};
        if (thinking)
            split = split_thinking(writer, &choice);
        buffer_append(text, ",", c > choices[record]);
        buffer_append_text(text, "{\"index\":");
        append_int(text, (int64_t)(c - choices[record]));
        buffer_append(text, ",", 1);
        append_message(&choice, thinking, &split, text);
        buffer_append_text(text, ",\"logprobs\":");
        if (logprobs)
            append_logprobs(writer, &choice, thinking, &split, text);
        else
            buffer_append_text(text, "null");
        buffer_append_text(
            text, choice.length ? ",\"finish_reason\":\"length\"}" : ",\"finish_reason\":\"stop\"}");
        completion += (int64_t)choice.tokens;
        reasoning += (int64_t)split.reasoning_tokens;
    }
    buffer_append_text(text, "],\"usage\":{\"prompt_tokens\":");
    append_int(text, prompt);
    buffer_append_text(text, ",\"completion_tokens\":");
    append_int(text, completion);
    buffer_append_text(text, ",\"total_tokens\":");
    append_int(text, prompt + completion);
    if (thinking) {
        buffer_append_text(text, ",\"completion_tokens_details\":{\"reasoning_tokens\":");
        append_int(text, reasoning);
        buffer_append(text, "}", 1);
    }
    buffer_append(text, "}", 1);
}

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

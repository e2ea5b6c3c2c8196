#include "schedule/choices.h"

#include "base/utf8.h"

#include <stdlib.h> /* realloc */
#include <string.h> /* memcpy */

enum result choice_begin(struct choice *choice, const struct request *request, int32_t index,
    int64_t campaign_seed, const struct stop_strings *stops) {
    const struct sampling *sampling = &request->sampling;
    *choice = (struct choice){
        .key = random_key_make(sampling->has_seed ? sampling->seed : campaign_seed, request->custom_id.data,
            request->custom_id.bytes, index),
        .top_logprobs = sampling->top_logprobs > 0 ? sampling->top_logprobs : 0,
        .stop_index = -1,
    };
    return stop_scan_create(stops, &choice->scan);
}

void choice_free(struct choice *choice) {
    stop_scan_free(choice->scan);
    constraint_free(choice->constraint);
    free(choice->token_ids);
    free(choice->logprobs);
    free(choice->top_ids);
    free(choice->top_values);
}

static bool grow_array(void **array, size_t count, size_t bytes) {
    if (bytes == 0)
        return true;
    void *grown = realloc(*array, count * bytes);
    if (grown)
        *array = grown;
    return grown;
}

static enum result reserve_token(struct choice *choice) {
    if (choice->count < choice->capacity)
        return OK;
    size_t capacity = choice->capacity ? 2 * (size_t)choice->capacity : 16;
    size_t top = (size_t)choice->top_logprobs;
    if (!grow_array((void **)&choice->token_ids, capacity, sizeof *choice->token_ids) ||
        !grow_array((void **)&choice->logprobs, capacity, sizeof *choice->logprobs) ||
        !grow_array((void **)&choice->top_ids, capacity, top * sizeof *choice->top_ids) ||
        !grow_array((void **)&choice->top_values, capacity, top * sizeof *choice->top_values))
        return fail(ERROR_MEMORY, "out of memory for an answer of %zu tokens: lower --batch", capacity);
    choice->capacity = (int32_t)capacity;
    return OK;
}

static bool is_stop_id(const struct sampling *sampling, int32_t id) {
    for (int32_t i = 0; i < sampling->stop_id_count; i++)
        if (sampling->stop_ids[i] == id)
            return true;
    return false;
}

/* The bytes a token adds to the answer's text: none for special and unknown tokens. */
static size_t text_bytes(const struct tokenizer *tokenizer, int32_t id, const char **bytes) {
    size_t count = 0;
    if (tokenizer_is_special(tokenizer, id) || !tokenizer_token_bytes(tokenizer, id, bytes, &count))
        return 0;
    return count;
}

static void end(struct choice *choice, enum finish_reason finish, enum stop_cause cause, int32_t index) {
    choice->finished = true;
    choice->finish = finish;
    choice->cause = cause;
    choice->stop_index = index;
}

static void notice_end(struct choice *choice, const struct answer_rules *rules, const struct request *request,
    const struct stop_strings *stops) {
    const struct sampling *sampling = &request->sampling;
    int32_t id = choice->token_ids[choice->count - 1];
    if (id == rules->eos_token_id && !sampling->ignore_eos) {
        end(choice, FINISH_STOP, STOP_EOS, -1);
        return;
    }
    if (is_stop_id(sampling, id)) {
        end(choice, FINISH_STOP, STOP_ID, id);
        return;
    }
    const char *bytes = NULL;
    size_t count = stops ? text_bytes(rules->tokenizer, id, &bytes) : 0;
    struct stop_match match;
    if (count > 0 && stop_scan_feed(stops, choice->scan, bytes, count, &match)) {
        end(choice, FINISH_STOP, STOP_TEXT, match.index);
        choice->stop_start = match.start;
        return;
    }
    if (choice->count >= sampling->max_tokens || request->token_count + choice->count >= rules->context)
        end(choice, FINISH_LENGTH, STOP_NONE, -1);
}

enum result choice_add(struct choice *choice, const struct answer_rules *rules, const struct request *request,
    const struct stop_strings *stops, const struct generated_token *token) {
    TRY(reserve_token(choice));
    size_t top = (size_t)choice->top_logprobs;
    if (top != (size_t)token->top_logprobs)
        return fail(
            ERROR_INTERNAL, "a token came with %d alternatives instead of %zu", token->top_logprobs, top);
    choice->token_ids[choice->count] = token->id;
    choice->logprobs[choice->count] = token->logprob;
    if (top) {
        memcpy(choice->top_ids + (size_t)choice->count * top, token->top_ids, top * sizeof *token->top_ids);
        memcpy(choice->top_values + (size_t)choice->count * top, token->top_values,
            top * sizeof *token->top_values);
    }
    choice->count++;
    notice_end(choice, rules, request, stops);
    if (!choice->finished)
        constraint_accept(choice->constraint, token->id);
    return OK;
}

/* Appends bytes that may end inside a character: U+FFFD for what is not UTF-8, as the tokenizer decodes. */
static void append_repaired(struct buffer *text, const char *bytes, size_t count) {
    for (size_t at = 0; at < count;) {
        uint32_t character;
        unsigned length = utf8_decode(bytes + at, count - at, &character);
        if (length == 0) {
            buffer_append(text, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
            at += character;
        } else {
            buffer_append(text, bytes + at, length);
            at += length;
        }
    }
}

/* The text before a stop string, and how many tokens lie wholly in it. */
static int32_t append_cut(
    const struct choice *choice, const struct tokenizer *tokenizer, struct buffer *text) {
    struct buffer raw = {0};
    int32_t whole = 0;
    for (int32_t i = 0; i < choice->count; i++) {
        const char *bytes = NULL;
        size_t count = text_bytes(tokenizer, choice->token_ids[i], &bytes);
        if (raw.bytes + count <= (size_t)choice->stop_start) {
            whole = i + 1;
            buffer_append(&raw, bytes ? bytes : "", count);
            continue;
        }
        buffer_append(&raw, bytes, (size_t)choice->stop_start - raw.bytes);
        break;
    }
    append_repaired(text, raw.data ? raw.data : "", raw.bytes);
    buffer_free(&raw);
    return whole;
}

void choice_describe(const struct choice *choice, const struct answer_rules *rules,
    struct choice_result *result, struct buffer *text) {
    *result = (struct choice_result){
        .token_count = choice->count,
        .token_ids = choice->token_ids,
        .logprobs = choice->logprobs,
        .top_logprobs = choice->top_logprobs,
        .top_ids = choice->top_ids,
        .top_values = choice->top_values,
        .finish = choice->finish,
        .cause = choice->cause,
        .stop_index = choice->stop_index,
    };
    if (choice->cause == STOP_TEXT) {
        result->text_tokens = append_cut(choice, rules->tokenizer, text);
        return;
    }
    bool drop_last = choice->cause == STOP_EOS || choice->cause == STOP_ID;
    result->text_tokens = choice->count - drop_last;
    tokenizer_decode(rules->tokenizer, choice->token_ids, (size_t)result->text_tokens, true, text);
}

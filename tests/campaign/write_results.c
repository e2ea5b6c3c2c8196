/* Writes made-up results for every request of an ingested campaign (write_results DIR), for export.py. */
#include "base/buffer.h"
#include "campaign/requests.h"
#include "campaign/results.h"
#include "recipe/tokenizer.h"

#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* strtol */
#include <string.h> /* strcmp */

enum { TOKENS = 24, TOP = 3, CALL_TOKENS_MOST = 256 };

/* Token t of choice c of a request: some of them are only parts of a character. */
static int32_t token_of(int64_t request, int c, int t, int32_t size) {
    return (int32_t)((request * 131 + c * 37 + t * 17) % (size - 64));
}

/* An answer that calls a tool, its one argument told of as a number. */
static enum result write_call(struct results_writer *writer, const struct tokenizer *tokenizer,
    const struct request *request, int64_t index) {
    static const char reasoning[] = "Hm.\n</think>";
    static const char call[] = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter "
                               "name=\"k\" string=\"false\">5"
                               "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    static const float logprobs[CALL_TOKENS_MOST];
    struct token_list ids = {0};
    struct buffer text = {0};
    enum result status = OK;
    if (request->thinking)
        TRY_GOTO(status, tokenizer_encode(tokenizer, reasoning, sizeof reasoning - 1, &ids), done);
    TRY_GOTO(status, tokenizer_encode(tokenizer, call, sizeof call - 1, &ids), done);
    size_t text_tokens = ids.count;
    token_list_append(&ids, &(int32_t){1}, 1); /* EOS */
    if (ids.count > CALL_TOKENS_MOST) {
        status = fail(ERROR_INTERNAL, "a call of %zu tokens", ids.count);
        goto done;
    }
    tokenizer_decode(tokenizer, ids.ids, text_tokens, true, &text);
    struct choice_result choice = {.token_count = (int32_t)ids.count,
        .token_ids = ids.ids,
        .logprobs = logprobs,
        .text = {text.data, text.bytes},
        .text_tokens = (int32_t)text_tokens,
        .cause = STOP_EOS,
        .stop_index = -1};
    struct request_result result = {.request = index,
        .prompt_tokens = request->token_count,
        .choice_count = 1,
        .choices = &choice,
        .finished_at = 1700000000.0};
    status = results_writer_add(writer, &result);
done:
    free(ids.ids);
    buffer_free(&text);
    return status;
}

static enum result write_one(struct results_writer *writer, const struct tokenizer *tokenizer,
    const struct request *request, int64_t index) {
    int32_t ids[TOKENS], top_ids[TOKENS * TOP], size = tokenizer_size(tokenizer);
    float logprobs[TOKENS], top_values[TOKENS * TOP];
    struct choice_result choices[8];
    struct buffer texts[8] = {{0}};
    int end_of_thinking = tokenizer_added_id(tokenizer, "</think>");
    int32_t count = request->sampling.choices < 8 ? request->sampling.choices : 8;
    static int32_t kept[8][TOKENS];
    for (int c = 0; c < count; c++) {
        for (int t = 0; t < TOKENS; t++) {
            ids[t] = token_of(index, c, t, size);
            logprobs[t] = t == 3 ? -1.0f / 0.0f : -(float)t / 7;
            for (int k = 0; k < TOP; k++) {
                top_ids[t * TOP + k] = token_of(index, c, t + k, size);
                top_values[t * TOP + k] = -(float)(t + k) / 3;
            }
        }
        if (request->thinking && index % 3)
            ids[9] = end_of_thinking;
        memcpy(kept[c], ids, sizeof ids);
        bool eos = c % 2 == 0;
        int text_tokens = TOKENS - eos;
        tokenizer_decode(tokenizer, ids, (size_t)text_tokens, true, &texts[c]);
        choices[c] = (struct choice_result){.token_count = TOKENS,
            .token_ids = kept[c],
            .logprobs = logprobs,
            .top_logprobs = request->sampling.top_logprobs > 0 ? TOP : 0,
            .top_ids = top_ids,
            .top_values = top_values,
            .text = {texts[c].data, texts[c].bytes},
            .text_tokens = text_tokens,
            .finish = eos ? FINISH_STOP : FINISH_LENGTH,
            .cause = eos ? STOP_EOS : STOP_NONE,
            .stop_index = -1};
    }
    struct request_result result = {.request = index,
        .prompt_tokens = request->token_count,
        .cached_tokens = (int32_t)(index * 31 % request->token_count),
        .choice_count = count,
        .choices = choices,
        .finished_at = 1700000000.0 + (double)(index * 7919 % 101)};
    if (index % 7 == 5) {
        result.choice_count = 0;
        result.error_code = "context_too_long";
        result.error_message = "made up \"failure\"";
        result.error_status = index % 2 ? 400 : 0;
        result.error_type = index % 2 ? "invalid_request_error" : NULL;
        result.error_param = index % 2 ? "messages" : NULL;
    }
    enum result status = results_writer_add(writer, &result);
    for (int c = 0; c < count; c++)
        buffer_free(&texts[c]);
    return status;
}

/* Results go to two ranks by turns, in several parts; every `skip`th request is left without one. */
static enum result write_all(const char *folder, int64_t skip, struct requests *requests) {
    struct provenance provenance = {.command = "test",
        .model_folder = requests_model_folder(requests),
        .fingerprint = requests_fingerprint(requests),
        .identity = "test=1",
        .settings = "{}",
        .ranks = 2,
        .supernode = 2};
    struct results_writer *writers[2];
    struct tokenizer *tokenizer;
    TRY(tokenizer_load(requests_model_folder(requests), &tokenizer));
    TRY(results_writer_create(folder, 0, &provenance, &writers[0]));
    TRY(results_writer_create(folder, 1, &provenance, &writers[1]));
    for (int64_t i = requests_count(requests); i-- > 0;) {
        struct request *request;
        struct results_writer *writer = writers[i % 3 == 0];
        if (skip && i % skip == skip - 1)
            continue;
        TRY(requests_read(requests, i, &request));
        TRY((request->parse_tool_calls ? write_call : write_one)(writer, tokenizer, request, i));
        requests_release(request);
        if (results_writer_pending(writer) >= (requests_count(requests) > 1000 ? 1000 : 4))
            TRY(results_writer_flush(writer));
    }
    for (int w = 0; w < 2; w++) {
        TRY(results_writer_flush(writers[w]));
        results_writer_free(writers[w]);
    }
    tokenizer_free(tokenizer);
    return OK;
}

int main(int argc, char **argv) {
    struct requests *requests;
    if (argc != 3)
        return 2;
    enum result status = requests_open(argv[1], &requests);
    if (status == OK) {
        status = write_all(argv[1], strtol(argv[2], NULL, 10), requests);
        requests_close(requests);
    }
    if (status != OK)
        fprintf(stderr, "%s\n", failure_message());
    return (int)status;
}

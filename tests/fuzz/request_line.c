/* A line of a batch file: any bytes give a request within its promises or an error. */
#include "base/error.h"
#include "recipe/request.h"

#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* abort */

enum { CONTEXT = 512 };

static struct request_parser *make_parser(bool toolkit, bool images) {
    static const char *const names[] = {"nano", NULL};
    static struct tokenizer *tokenizer;
    struct request_options options = {
        .model_names = names, .context = CONTEXT, .toolkit = toolkit, .images = images};
    struct request_parser *parser = NULL;
    if ((!tokenizer && tokenizer_load(SOURCE_DIR "/inputs/nano", &tokenizer) != OK) ||
        request_parser_create(tokenizer, &options, &parser) != OK) {
        fprintf(stderr, "%s\n", failure_message());
        abort();
    }
    return parser;
}

static void check(bool holds) {
    if (!holds)
        abort();
}

static void check_request(const struct request *request) {
    const struct sampling *sampling = &request->sampling;
    check(request->token_count > 0 && request->token_count <= CONTEXT);
    check(sampling->max_tokens >= 1);
    check(request->token_count == CONTEXT || request->token_count + sampling->max_tokens <= CONTEXT);
    check(sampling->temperature >= 0 && sampling->temperature <= 2);
    check(sampling->top_p > 0 && sampling->top_p <= 1);
    check(sampling->choices >= 1 && sampling->top_logprobs >= -1 && sampling->top_logprobs <= 20);
    check(sampling->stop_count <= 16);
    for (int32_t i = 0; i < sampling->stop_count; i++)
        check(sampling->stops[i].bytes > 0);
    for (int32_t i = 0; i < sampling->bias_count; i++)
        check(sampling->bias_ids[i] >= 0 && sampling->bias_values[i] >= -100 &&
              sampling->bias_values[i] <= 100);
}

/* Gives each image a span of some length, and compares what came before. */
static void place_images(struct request_parser *parser, struct request *request) {
    enum { MOST = 8 };
    static const int64_t indices[MOST] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const int32_t tokens[MOST] = {3, 1, 200, 2, 9, 4, 5, 300};
    struct request_error error = {0};
    bool accepted = false;
    size_t count;
    const struct image_reference *images = request_images(parser, &count);
    int32_t before = request->token_count;
    if (!count || count > MOST)
        return;
    for (size_t i = 0; i < count; i++)
        check(images[i].path.bytes > 0);
    check(request_place_images(parser, indices, tokens, request, &error, &accepted) == OK);
    check(request->image_count == (int32_t)count);
    check(request->token_count == before - (int32_t)count + request->image_tokens);
    if (accepted)
        check(request->sampling.max_tokens >= 1);
    else
        check(error.status == 400);
}

static void parse(struct request_parser *parser, const unsigned char *data, size_t bytes) {
    struct request request;
    struct request_error error;
    bool accepted = false;
    check(request_parse(parser, (const char *)data, bytes, &request, &error, &accepted) == OK);
    if (!accepted) {
        check(error.code && error.message[0] && (error.status == 0 || error.param));
        return;
    }
    check_request(&request);
    place_images(parser, &request);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    static struct request_parser *parsers[2];
    for (int i = 0; i < 2; i++) {
        if (!parsers[i])
            parsers[i] = make_parser(i == 1, i == 0);
        parse(parsers[i], data, bytes);
    }
    return 0;
}

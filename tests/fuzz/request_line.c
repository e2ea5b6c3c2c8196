/* A line of a batch file: any bytes give a request within its promises or an error. */
#include "base/error.h"
#include "recipe/request.h"

#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* abort */

enum { CONTEXT = 512 };

static struct request_parser *make_parser(void) {
    static const char *const names[] = {"nano", NULL};
    struct request_options options = {.model_names = names, .context = CONTEXT};
    struct tokenizer *tokenizer = NULL;
    struct request_parser *parser = NULL;
    if (tokenizer_load(SOURCE_DIR "/inputs/nano", &tokenizer) != OK ||
        request_parser_create(tokenizer, &options, &parser) != OK) {
        fprintf(stderr, "%s\n", error_message());
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

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    static struct request_parser *parser;
    struct request request;
    struct request_error error;
    bool accepted = false;
    if (!parser)
        parser = make_parser();
    check(request_parse(parser, (const char *)data, bytes, &request, &error, &accepted) == OK);
    if (accepted)
        check_request(&request);
    else
        check(error.code && error.message[0] && (error.status == 0 || error.param));
    return 0;
}

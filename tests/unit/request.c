#include "recipe/request.h"

#include "recipe/refusal.h"
#include "vectors.h"

#include <sys/resource.h>
#include <time.h>

enum { CONTEXT = 4096 };

static struct tokenizer *tokenizer;
static const char *const names[] = {"nano", "deepseek-v4.1-flash", NULL};

static int setup(void **state) {
    (void)state;
    if (tokenizer_load(SOURCE_DIR "/inputs/nano", &tokenizer) != OK) {
        fprintf(stderr, "%s\n", failure_message());
        return 1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

static struct request_parser *make_parser(bool strict, int32_t context, int32_t default_max_tokens) {
    struct request_options options = {
        .model_names = names, .context = context, .strict = strict, .default_max_tokens = default_max_tokens};
    struct request_parser *parser = NULL;
    if (request_parser_create(tokenizer, &options, &parser) != OK)
        fail_msg("%s", failure_message());
    return parser;
}

static bool parse(struct request_parser *parser, const char *line, size_t bytes, struct request *request,
    struct request_error *error) {
    bool accepted = false;
    /* A copy that ends at its allocation's end, so that a sanitizer sees reads past it; gone afterwards,
     * as nothing of the request may point into the line. */
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, line, bytes);
    assert_int_equal(request_parse(parser, copy, bytes, request, error, &accepted), OK);
    free(copy);
    return accepted;
}

#define LINE(fields)                                                                                         \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/"                                           \
    "completions\",\"body\":{\"model\":\"nano\","                                                            \
    "\"messages\":[{\"role\":\"user\",\"content\":\"Define dog.\"}]" fields "}}"
#define PLAIN ",\"thinking\":{\"type\":\"disabled\"}"

static struct request accept(struct request_parser *parser, const char *line) {
    struct request request;
    struct request_error error;
    if (!parse(parser, line, strlen(line), &request, &error))
        fail_msg("%s: %s", line, error.message);
    return request;
}

static bool piece_is(struct text_piece piece, const char *text) {
    return piece.bytes == strlen(text) && !memcmp(piece.data, text, piece.bytes);
}

/* ---- what is accepted ---- */

static void fills_in_defaults(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(true, CONTEXT, 0);
    struct request request = accept(parser, LINE(PLAIN));
    assert_true(piece_is(request.custom_id, "a"));
    assert_true(piece_is(request.model, "nano"));
    assert_false(request.thinking);
    assert_int_equal(request.token_ids[0], 0);
    assert_int_equal(request.token_ids[request.token_count - 1], tokenizer_added_id(tokenizer, "</think>"));
    const struct sampling *sampling = &request.sampling;
    assert_true(sampling->temperature == 1 && sampling->top_p == 1 && sampling->min_p == 0);
    assert_true(sampling->presence_penalty == 0 && sampling->frequency_penalty == 0);
    assert_int_equal(sampling->top_k, 0);
    assert_int_equal(sampling->choices, 1);
    assert_int_equal(sampling->top_logprobs, -1);
    assert_int_equal(sampling->max_tokens, CONTEXT - request.token_count);
    assert_false(sampling->has_seed || sampling->ignore_eos);
    assert_int_equal(sampling->bias_count + sampling->stop_count + sampling->stop_id_count, 0);
    request_parser_free(parser);
}

static void reads_every_field(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(true, CONTEXT, 0);
    struct request request =
        accept(parser, LINE(",\"temperature\":0,\"top_p\":0.25,\"min_p\":0.125,\"top_k\":40,\"seed\":"
                            "9223372036854775807,\"n\":3,"
                            "\"max_tokens\":10,\"max_completion_tokens\":12,\"stop\":[\"\\n\\n\","
                            "\"\xE4\xBD\xA0\"],\"stop_token_ids\":[5,3071],"
                            "\"ignore_eos\":true,\"presence_penalty\":-2,\"frequency_penalty\":1.5,\"logit_"
                            "bias\":{\"0\":-100,\"17\":2.5},"
                            "\"logprobs\":true,\"top_logprobs\":20,\"stream\":false,\"stream_options\":null,"
                            "\"user\":\"u\",\"metadata\":{},"
                            "\"store\":true,\"service_tier\":\"flex\",\"parallel_tool_calls\":false,"
                            "\"tools\":[],\"tool_choice\":\"none\","
                            "\"response_format\":{\"type\":\"text\"},\"reasoning_effort\":\"low\""));
    const struct sampling *sampling = &request.sampling;
    assert_true(request.thinking);
    assert_int_equal(request.token_ids[request.token_count - 1], tokenizer_added_id(tokenizer, "<think>"));
    assert_true(sampling->temperature == 0 && sampling->top_p == 0.25f && sampling->min_p == 0.125f);
    assert_true(sampling->presence_penalty == -2 && sampling->frequency_penalty == 1.5f);
    assert_int_equal(sampling->top_k, 40);
    assert_true(sampling->has_seed && sampling->seed == INT64_MAX);
    assert_int_equal(sampling->choices, 3);
    assert_int_equal(sampling->max_tokens, 12);
    assert_true(sampling->ignore_eos);
    assert_int_equal(sampling->top_logprobs, 20);
    assert_int_equal(sampling->stop_count, 2);
    assert_true(piece_is(sampling->stops[0], "\n\n") && piece_is(sampling->stops[1], "\xE4\xBD\xA0"));
    assert_int_equal(sampling->stop_id_count, 2);
    assert_int_equal(sampling->stop_ids[1], 3071);
    assert_int_equal(sampling->bias_count, 2);
    assert_int_equal(sampling->bias_ids[1], 17);
    assert_true(sampling->bias_values[0] == -100 && sampling->bias_values[1] == 2.5f);
    /* The next line starts afresh. */
    request = accept(parser, LINE(PLAIN ",\"stop\":\"x\",\"top_k\":-1,\"logprobs\":true,\"max_tokens\":7"));
    assert_int_equal(request.sampling.stop_count, 1);
    assert_int_equal(request.sampling.stop_id_count + request.sampling.bias_count, 0);
    assert_int_equal(request.sampling.top_k, 0);
    assert_int_equal(request.sampling.top_logprobs, 0);
    assert_int_equal(request.sampling.max_tokens, 7);
    assert_false(request.sampling.has_seed || request.sampling.ignore_eos);
    request_parser_free(parser);
}

static void null_is_absent(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(true, CONTEXT, 0);
    struct request request =
        accept(parser, LINE(",\"temperature\":null,\"top_p\":null,\"seed\":null,\"n\":null,\"max_tokens\":"
                            "null,\"stop\":null,\"logprobs\":null,"
                            "\"top_logprobs\":null,\"logit_bias\":null,\"stream\":null,\"thinking\":null,"
                            "\"reasoning_effort\":null,"
                            "\"tools\":null,\"response_format\":null,\"whatever\":null"));
    assert_true(request.sampling.temperature == 1);
    assert_true(request.thinking);
    request_parser_free(parser);
}

static void model_names_ignore_case(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    struct request request = accept(parser,
        "{\"url\":\"/v1/chat/completions\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
        "\"model\":\"DeepSeek-V4.1-Flash\"},\"method\":\"POST\",\"custom_id\":\"\"}");
    assert_true(piece_is(request.model, "DeepSeek-V4.1-Flash"));
    assert_int_equal(request.custom_id.bytes, 0);
    request_parser_free(parser);
}

/* ---- length ---- */

static int32_t max_tokens_of(int32_t context, int32_t default_max_tokens, const char *line) {
    struct request_parser *parser = make_parser(true, context, default_max_tokens);
    struct request request = accept(parser, line);
    request_parser_free(parser);
    return request.sampling.max_tokens;
}

static void default_lengths(void **state) {
    (void)state;
    enum { LARGE = 1 << 20 };
    assert_int_equal(max_tokens_of(LARGE, 0, LINE(PLAIN)), 8192);
    assert_int_equal(max_tokens_of(LARGE, 0, LINE("")), 65536);
    assert_int_equal(max_tokens_of(LARGE, 0, LINE(",\"reasoning_effort\":\"high\"")), 65536);
    assert_int_equal(max_tokens_of(LARGE, 0, LINE(",\"reasoning_effort\":\"max\"")), 131072);
    assert_int_equal(max_tokens_of(LARGE, 0, LINE(",\"reasoning_effort\":\"none\"")), 8192);
    assert_int_equal(max_tokens_of(LARGE, 33, LINE("")), 33);
    assert_int_equal(max_tokens_of(LARGE, 33, LINE(",\"max_tokens\":44")), 44);
}

static void keeps_to_the_context(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(true, CONTEXT, 0);
    struct request request = accept(parser, LINE(PLAIN));
    int32_t prompt = request.token_count;
    request_parser_free(parser);
    assert_int_equal(max_tokens_of(prompt + 5, 0, LINE(PLAIN)), 5);
    assert_int_equal(max_tokens_of(prompt + 1, 0, LINE(PLAIN)), 1);
    assert_int_equal(max_tokens_of(prompt + 5, 0, LINE(PLAIN ",\"max_tokens\":5")), 5);
    static const struct {
        int more;
        const char *line, *param;
        int asked;
    } cases[] = {{-1, LINE(PLAIN), "messages", 1}, {0, LINE(PLAIN), "messages", 1},
        {5, LINE(PLAIN ",\"max_tokens\":6"), "max_tokens", 6},
        {5, LINE(PLAIN ",\"max_tokens\":1,\"max_completion_tokens\":6"), "max_completion_tokens", 6},
        {-2, LINE(PLAIN ",\"max_tokens\":6"), "messages", 6}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct request_error error;
        char expected[512];
        parser = make_parser(true, prompt + cases[i].more, 0);
        assert_false(parse(parser, cases[i].line, strlen(cases[i].line), &request, &error));
        assert_int_equal(error.status, 400);
        assert_string_equal(error.code, "context_length_exceeded");
        assert_string_equal(error.param, cases[i].param);
        snprintf(expected, sizeof expected,
            "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the "
            "messages, %d in "
            "the completion). Please reduce the length of the messages or completion.",
            prompt + cases[i].more, prompt + cases[i].asked, prompt, cases[i].asked);
        assert_string_equal(error.message, expected);
        request_parser_free(parser);
    }
}

/* ---- what is refused ---- */

struct refused {
    const char *line;
    int status;
    const char *code, *param, *message;
};

static void check_refused(struct request_parser *parser, const struct refused *expected) {
    struct request request;
    struct request_error error;
    if (parse(parser, expected->line, strlen(expected->line), &request, &error))
        fail_msg("accepted: %s", expected->line);
    if (expected->message && strcmp(error.message, expected->message) != 0)
        fail_msg("%s\n  expected: %s\n  found: %s", expected->line, expected->message, error.message);
    assert_int_equal(error.status, expected->status);
    assert_string_equal(error.code, expected->code);
    if (expected->param) {
        assert_string_equal(error.param, expected->param);
        assert_string_equal(error.type, "invalid_request_error");
    } else {
        assert_null(error.param);
        assert_null(error.type);
    }
}

static void refuses_bad_lines(void **state) {
    (void)state;
    static const struct refused cases[] = {
        {"", 0, "invalid_json_line", NULL,
            "the line is no request: column 1: expected a value, found the end of the text"},
        {"{\"custom_id\":\"a\"", 0, "invalid_json_line", NULL,
            "the line is no request: column 17: expected ',' or '}', found the end of the text"},
        {"[]", 0, "invalid_json_line", NULL,
            "the line is no request: expected a JSON object with custom_id, method, url and body"},
        {"\"\xFF\"", 0, "invalid_json_line", NULL,
            "the line is no request: column 2: invalid UTF-8 in a string"},
        {"{}", 400, CODE_MISSING, "custom_id",
            "custom_id: expected a string, found nothing: the field is required"},
        {"{\"custom_id\":7}", 400, CODE_VALUE, "custom_id", "custom_id: expected a string, found 7"},
        {"{\"custom_id\":null}", 400, CODE_TYPE, "custom_id", "custom_id: expected a string, found null"},
        {"{\"custom_id\":\"a\"}", 400, CODE_MISSING, "method",
            "method: expected \"POST\", found nothing: the field is required"},
        {"{\"custom_id\":\"a\",\"method\":\"GET\"}", 400, CODE_VALUE, "method",
            "method: expected \"POST\", found \"GET\""},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/embeddings\"}", 400, CODE_VALUE, "url",
            "url: expected /v1/chat/completions, /v1/responses or /v1/messages, found \"/v1/embeddings\""},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\"}", 400, CODE_MISSING,
            "body", "body: expected an object, found nothing: the field is required"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":[]}", 400,
            CODE_TYPE, "body", "body: expected an object, found array"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{}}", 400,
            CODE_MISSING, "model", "model: expected the model's name, found nothing: the field is required"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/"
         "completions\",\"body\":{\"model\":\"nanoo\"}}",
            404, "model_not_found", "model",
            "model: the model \"nanoo\" does not exist here: this campaign runs \"nano\""},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/"
         "completions\",\"body\":{\"model\":\"nano\","
         "\"messages\":[]}}",
            400, CODE_VALUE, "messages", "messages: expected at least one message, found an empty array"},
    };
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(parser, &cases[i]);
    request_parser_free(parser);
}

static void refuses_bad_fields(void **state) {
    (void)state;
#define BAD(field, code, param, message)                                                                     \
    { LINE("," field), 400, code, param, param ": " message }
    static const struct refused cases[] = {
        BAD("\"temperature\":-0.1", CODE_VALUE, "temperature", "expected a number from 0 to 2, found -0.1"),
        BAD("\"temperature\":2.01", CODE_VALUE, "temperature", "expected a number from 0 to 2, found 2.01"),
        BAD("\"temperature\":1e300", CODE_VALUE, "temperature", "expected a number from 0 to 2, found 1e300"),
        BAD("\"temperature\":\"1\"", CODE_VALUE, "temperature", "expected a number from 0 to 2, found \"1\""),
        BAD("\"top_p\":0", CODE_VALUE, "top_p", "expected a number above 0 and up to 1, found 0"),
        BAD("\"top_p\":1e-60", CODE_VALUE, "top_p", "expected a number above 0 and up to 1, found 1e-60"),
        BAD("\"top_p\":1.1", CODE_VALUE, "top_p", "expected a number above 0 and up to 1, found 1.1"),
        BAD("\"min_p\":-0.5", CODE_VALUE, "min_p", "expected a number from 0 to 1, found -0.5"),
        BAD("\"top_k\":-2", CODE_VALUE, "top_k",
            "expected an integer of at least 0 (0 or -1: off), found -2"),
        BAD("\"top_k\":1.5", CODE_VALUE, "top_k",
            "expected an integer of at least 0 (0 or -1: off), found 1.5"),
        BAD("\"presence_penalty\":2.5", CODE_VALUE, "presence_penalty",
            "expected a number from -2 to 2, found 2.5"),
        BAD("\"frequency_penalty\":[]", CODE_TYPE, "frequency_penalty",
            "expected a number from -2 to 2, found array"),
        BAD("\"seed\":-1", CODE_VALUE, "seed", "expected an integer from 0 to 9223372036854775807, found -1"),
        BAD("\"seed\":9223372036854775808", CODE_VALUE, "seed",
            "expected an integer from 0 to 9223372036854775807, found 9223372036854775808"),
        BAD("\"n\":0", CODE_VALUE, "n", "expected an integer from 1 to 128, found 0"),
        BAD("\"n\":129", CODE_VALUE, "n", "expected an integer from 1 to 128, found 129"),
        BAD("\"max_tokens\":0", CODE_VALUE, "max_tokens", "expected an integer from 1 to 393216, found 0"),
        BAD("\"max_tokens\":393217", CODE_VALUE, "max_tokens",
            "expected an integer from 1 to 393216, found 393217"),
        BAD("\"max_completion_tokens\":1.0", CODE_VALUE, "max_completion_tokens",
            "expected an integer from 1 to 393216, found 1.0"),
        BAD("\"stop\":5", CODE_VALUE, "stop", "expected a string or an array of 1 to 16 strings, found 5"),
        BAD("\"stop\":\"\"", CODE_VALUE, "stop", "expected a string of at least one character, found \"\""),
        BAD("\"stop\":[]", CODE_VALUE, "stop", "expected 1 to 16 strings, found 0"),
        BAD("\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", CODE_VALUE, "stop",
            "expected 1 to 16 strings, found 17"),
        BAD("\"stop\":[\"a\",null]", CODE_TYPE, "stop[1]",
            "expected a string of at least one character, found null"),
        BAD("\"stop_token_ids\":5", CODE_VALUE, "stop_token_ids", "expected an array of token ids, found 5"),
        BAD("\"stop_token_ids\":[5,3072]", CODE_VALUE, "stop_token_ids[1]",
            "expected a token id from 0 to 3071, found 3072"),
        BAD("\"stop_token_ids\":[-1]", CODE_VALUE, "stop_token_ids[0]",
            "expected a token id from 0 to 3071, found -1"),
        BAD("\"ignore_eos\":1", CODE_VALUE, "ignore_eos", "expected true or false, found 1"),
        BAD("\"logit_bias\":[]", CODE_TYPE, "logit_bias",
            "expected an object of token ids and numbers, found array"),
        BAD("\"logit_bias\":{\"3072\":1}", CODE_VALUE, "logit_bias[\"3072\"]",
            "expected a token id from 0 to 3071 in decimal digits"),
        BAD("\"logit_bias\":{\"-1\":1}", CODE_VALUE, "logit_bias[\"-1\"]",
            "expected a token id from 0 to 3071 in decimal digits"),
        BAD("\"logit_bias\":{\"07\":1}", CODE_VALUE, "logit_bias[\"07\"]",
            "expected a token id from 0 to 3071 in decimal digits"),
        BAD("\"logit_bias\":{\"\":1}", CODE_VALUE, "logit_bias[\"\"]",
            "expected a token id from 0 to 3071 in decimal digits"),
        BAD("\"logit_bias\":{\"7\":100.5}", CODE_VALUE, "logit_bias[\"7\"]",
            "expected a number from -100 to 100, found 100.5"),
        BAD("\"logit_bias\":{\"7\":null}", CODE_TYPE, "logit_bias[\"7\"]",
            "expected a number from -100 to 100, found null"),
        BAD("\"logprobs\":5", CODE_VALUE, "logprobs", "expected true or false, found 5"),
        BAD("\"logprobs\":true,\"top_logprobs\":21", CODE_VALUE, "top_logprobs",
            "expected an integer from 0 to 20, found 21"),
        BAD("\"top_logprobs\":3", CODE_VALUE, "top_logprobs", "needs logprobs to be true"),
        BAD("\"logprobs\":false,\"top_logprobs\":0", CODE_VALUE, "top_logprobs", "needs logprobs to be true"),
        BAD("\"stream\":true", CODE_VALUE, "stream", "expected false: a campaign's answers are whole"),
        BAD("\"stream\":\"no\"", CODE_VALUE, "stream", "expected true or false, found \"no\""),
        BAD("\"tools\":[{}]", CODE_MISSING, "tools[0].type",
            "expected \"function\", found nothing: the field is required"),
        BAD("\"functions\":[]", CODE_UNSUPPORTED, "functions",
            "is not supported by this version; leave it out"),
        BAD("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
            "\"a.png\"}}]}]",
            CODE_UNSUPPORTED, "messages[0].content[0].image_url.url",
            "images are not supported by this version"),
        BAD("\"messages\":[{\"role\":\"user\",\"content\":1}]", CODE_VALUE, "messages[0].content",
            "expected a string or an array of parts, found 1"),
    };
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(parser, &cases[i]);
    request_parser_free(parser);
}

static void errors_name_the_request(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    struct request request;
    struct request_error error;
    const char *line = LINE(",\"n\":0");
    assert_false(parse(parser, line, strlen(line), &request, &error));
    assert_true(error.has_custom_id && piece_is(error.custom_id, "a"));
    assert_false(parse(parser, "{\"custom_id\":", 13, &request, &error));
    assert_false(error.has_custom_id);
    request_parser_free(parser);
}

static void unknown_fields(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    assert_string_equal(request_parser_ignored_fields(parser), "");
    accept(parser, LINE(",\"min_tokens\":1,\"verbosity\":\"low\""));
    accept(parser, LINE(",\"min_tokens\":1"));
    assert_string_equal(request_parser_ignored_fields(parser), "min_tokens=2, verbosity=1");
    for (int i = 0; i < 100; i++) { /* names are data: their number must not grow memory */
        char line[512];
        snprintf(line, sizeof line, LINE(",\"field-%d\":1"), i);
        accept(parser, line);
    }
    const char *text = request_parser_ignored_fields(parser);
    assert_non_null(strstr(text, "field-29=1, (others)=70"));
    request_parser_free(parser);

    parser = make_parser(true, CONTEXT, 0);
    static const struct refused strict = {LINE(",\"min_tokens\":1"), 400, CODE_UNKNOWN, "min_tokens",
        "min_tokens: unknown field; leave it out, or run without --strict"};
    check_refused(parser, &strict);
    accept(parser, LINE(",\"user\":\"u\""));
    request_parser_free(parser);
}

/* ---- kinds ---- */

#define RESPONSES(fields)                                                                                    \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"                                                \
    "responses\",\"body\":{\"model\":\"nano\"," fields "}}"
#define MESSAGES(fields)                                                                                     \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/messages\",\"body\":{\"model\":\"nano\"," fields \
    "}}"
#define TOOL                                                                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":null,\"parameters\":{},\"strict\":" \
    "null}}"

static void the_url_says_the_kind(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(true, CONTEXT, 0);
    struct request request = accept(parser, LINE(PLAIN));
    assert_int_equal(request.kind, KIND_CHAT);
    assert_int_equal(request.start, START_CONTENT);
    assert_int_equal(request.constraint, CONSTRAINT_NONE);
    assert_int_equal(request.constraint_text.bytes, 0);
    assert_false(request.parse_tool_calls || request.json_output);

    request = accept(parser,
        RESPONSES(
            "\"input\":\"hi\",\"max_output_tokens\":9,\"top_logprobs\":2,\"user\":\"u\",\"store\":false,"
            "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"seed\":3,\"temperature\":0.25"));
    assert_int_equal(request.kind, KIND_RESPONSES);
    assert_true(request.thinking && request.parse_tool_calls);
    assert_int_equal(request.start, START_REASONING);
    assert_int_equal(request.constraint, CONSTRAINT_TOOL_CALL);
    assert_true(piece_is(request.constraint_text, "[" TOOL "]"));
    assert_int_equal(request.sampling.max_tokens, 9);
    assert_int_equal(request.sampling.top_logprobs, 2);
    assert_true(request.sampling.has_seed && request.sampling.temperature == 0.25f);

    request = accept(parser,
        MESSAGES("\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":3000,\"top_k\":7,"
                 "\"stop_sequences\":[\"x\",\"y\"],\"system\":\"s\",\"thinking\":{\"type\":\"disabled\"},"
                 "\"metadata\":{\"user_id\":\"u\"}"));
    assert_int_equal(request.kind, KIND_MESSAGES);
    assert_int_equal(request.sampling.max_tokens, 3000);
    assert_int_equal(request.sampling.top_k, 7);
    assert_int_equal(request.sampling.stop_count, 2);
    assert_false(request.thinking);
    request_parser_free(parser);
}

static void refuses_by_kind(void **state) {
    (void)state;
    static const struct refused cases[] = {
        {RESPONSES("\"messages\":[]"), 400, CODE_UNKNOWN, "messages",
            "messages: unknown field; leave it out, or run without --strict"},
        {RESPONSES("\"input\":[]"), 400, CODE_VALUE, "input",
            "input: expected at least one item, found an empty array"},
        {RESPONSES("\"input\":\"a\",\"previous_response_id\":\"r\""), 400, CODE_UNSUPPORTED,
            "previous_response_id", "previous_response_id: is not supported by this version; leave it out"},
        {RESPONSES("\"input\":\"a\",\"max_output_tokens\":5000"), 400, "context_length_exceeded",
            "max_output_tokens", NULL},
        {MESSAGES("\"messages\":[{\"role\":\"user\",\"content\":[]}]"), 400, CODE_VALUE,
            "messages[0].content", "messages[0].content: expected at least one block, found an empty array"},
        {MESSAGES("\"messages\":[],\"stop_sequences\":\"x\""), 400, CODE_VALUE, "stop_sequences",
            "stop_sequences: expected an array of 1 to 16 strings, found \"x\""},
    };
    struct request_parser *parser = make_parser(true, CONTEXT, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(parser, &cases[i]);
    request_parser_free(parser);
}

/* ---- what answers are held to ---- */

#define SCHEMA "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":3}}}"
#define FUNCTION(name, strict)                                                                               \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"description\":null,\"parameters\":" SCHEMA \
    ",\"strict\":" strict "}}"
#define CHAT(fields) LINE(PLAIN "," fields)
#define TOOL_CHOICE(choice)                                                                                  \
    "\"tools\":[" FUNCTION("f", "null") "," FUNCTION("g", "null") "],\"tool_choice\":" choice

struct held {
    const char *line;
    enum constraint_kind constraint;
    const char *text; /* NULL: not looked at */
    bool strict, compact, one_call;
};

static const struct held HELD[] = {
    {CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" SCHEMA "}}"),
        CONSTRAINT_JSON, SCHEMA, false, false, false},
    {CHAT("\"response_format\":{\"type\":\"json_schema\",\"whitespace\":\"none\",\"json_schema\":{\"strict\":"
          "true,\"schema\":" SCHEMA "}}"),
        CONSTRAINT_JSON, SCHEMA, true, true, false},
    {CHAT("\"response_format\":{\"type\":\"json_object\",\"whitespace\":\"compact\"},\"messages\":[{\"role\":"
          "\"user\",\"content\":\"JSON\"}]"),
        CONSTRAINT_JSON, "", false, true, false},
    {CHAT("\"response_format\":{\"type\":\"regex\",\"regex\":\"[a-c]+\"}"), CONSTRAINT_REGEX, "[a-c]+", false,
        false, false},
    {CHAT(TOOL_CHOICE("\"auto\"")), CONSTRAINT_TOOL_CALL,
        "[" FUNCTION("f", "null") "," FUNCTION("g", "null") "]", false, false, false},
    {CHAT(TOOL_CHOICE("\"auto\"") ",\"parallel_tool_calls\":false"), CONSTRAINT_TOOL_CALL, NULL, false, false,
        true},
    {CHAT(TOOL_CHOICE("\"auto\"") ",\"parallel_tool_calls\":true"), CONSTRAINT_TOOL_CALL, NULL, false, false,
        false},
    {CHAT(TOOL_CHOICE("\"required\"")), CONSTRAINT_TOOL_CALL_REQUIRED, NULL, false, false, false},
    {CHAT(TOOL_CHOICE("{\"type\":\"function\",\"function\":{\"name\":\"g\"}}")),
        CONSTRAINT_TOOL_CALL_REQUIRED, "[" FUNCTION("g", "null") "]", false, false, true},
    {CHAT(TOOL_CHOICE("\"none\"")), CONSTRAINT_NO_TOOL_CALL, "", false, false, false},
    {CHAT(TOOL_CHOICE("\"none\"") ",\"response_format\":{\"type\":\"regex\",\"regex\":\"a\"}"),
        CONSTRAINT_REGEX, "a", false, false, false},
    {RESPONSES(
         "\"input\":\"hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"strict\":true,"
         "\"schema\":" SCHEMA "}}"),
        CONSTRAINT_JSON, SCHEMA, true, false, false},
    {RESPONSES(
         "\"input\":\"hi\",\"parallel_tool_calls\":false,\"tools\":[{\"type\":\"function\",\"name\":\"f\","
         "\"parameters\":" SCHEMA "}]"),
        CONSTRAINT_TOOL_CALL, "[" FUNCTION("f", "null") "]", false, false, true},
    {MESSAGES("\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"output_config\":{\"format\":{\"type\":"
              "\"json_schema\",\"schema\":" SCHEMA "}}"),
        CONSTRAINT_JSON, SCHEMA, true, false, false},
    {MESSAGES("\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"f\","
              "\"strict\":true,\"input_schema\":" SCHEMA "}],\"tool_choice\":{\"type\":\"auto\","
              "\"disable_parallel_tool_use\":true}"),
        CONSTRAINT_TOOL_CALL, "[" FUNCTION("f", "true") "]", false, false, true},
    {RESPONSES("\"input\":\"hi\",\"text\":{\"format\":{\"type\":\"regex\",\"regex\":\"a+\"}}"),
        CONSTRAINT_REGEX, "a+", false, false, false},
    {MESSAGES("\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"output_config\":{\"format\":{\"type\":"
              "\"regex\",\"regex\":\"a+\"}}"),
        CONSTRAINT_REGEX, "a+", false, false, false},
    /* A strict function is held to what its rebuilt schema leaves out, too. */
    {CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{"
          "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":3}},\"required\":["
          "\"a\"]}}}"
          "]"),
        CONSTRAINT_TOOL_CALL,
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":null,\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":3}},\"required\":[\"a\"]},"
        "\"strict\":"
        "true}}]",
        false, false, false},
    /* One that is not strict may have what grammars cannot hold. */
    {CHAT(
         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
         "\"properties\":{\"a\":{\"type\":\"array\",\"uniqueItems\":true}}}}}]"),
        CONSTRAINT_TOOL_CALL, NULL, false, false, false},
};

static void answers_are_held(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(true, CONTEXT, 0);
    for (size_t i = 0; i < sizeof HELD / sizeof HELD[0]; i++) {
        struct request request = accept(parser, HELD[i].line);
        if (request.constraint != HELD[i].constraint || request.constraint_strict != HELD[i].strict ||
            request.constraint_compact != HELD[i].compact || request.one_call != HELD[i].one_call)
            fail_msg("case %zu: constraint %d, strict %d, compact %d, one call %d", i, request.constraint,
                request.constraint_strict, request.constraint_compact, request.one_call);
        if (HELD[i].text && !piece_is(request.constraint_text, HELD[i].text))
            fail_msg("case %zu: held to %.*s", i, (int)request.constraint_text.bytes,
                request.constraint_text.data);
        assert_int_equal(request.start == START_CALLS, HELD[i].constraint == CONSTRAINT_TOOL_CALL_REQUIRED);
    }
    request_parser_free(parser);
}

/* What grammars cannot hold is the line's error, by field, keyword and path. */
static void grammars_refuse(void **state) {
    (void)state;
    static const struct refused cases[] = {
        {CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":{"
              "\"a\":{"
              "\"uniqueItems\":true}}}}}"),
            400, CODE_VALUE, "response_format.json_schema.schema", NULL},
        {CHAT("\"response_format\":{\"type\":\"regex\",\"regex\":\"ab(?=c)\"}"), 400, CODE_VALUE,
            "response_format.regex", NULL},
        {RESPONSES(
             "\"input\":\"hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{"
             "\"not\":{}}}}"),
            400, CODE_VALUE, "text.format.schema", NULL},
        {MESSAGES(
             "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"output_config\":{\"format\":{\"type\":"
             "\"json_schema\",\"schema\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":1}}}"),
            400, CODE_VALUE, "output_config.format.schema", NULL},
        {CHAT(
             "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{"
             "\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(?!a)\"}},"
             "\"required\":[\"a\"]}}}]"),
            400, CODE_VALUE, "tools", NULL},
        {CHAT("\"response_format\":{\"type\":\"json_object\",\"whitespace\":\"few\"}"), 400, CODE_VALUE,
            "response_format.whitespace",
            "response_format.whitespace: expected flexible, compact or none, found \"few\""},
    };
    static const char *const parts[][2] = {{"uniqueItems", "#/properties/a"}, {"offset", "2"}, {"not", "#"},
        {"#", "no value"}, {"tool \"f\"", "pattern"}, {"whitespace", "few"}};
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct request request;
        struct request_error error;
        check_refused(parser, &cases[i]);
        assert_false(
            parse(parser, cases[i].line, strlen(cases[i].line), &request, &error)); /* not remembered */
        for (int k = 0; k < 2; k++)
            if (!strstr(error.message, parts[i][k]))
                fail_msg("case %zu: \"%s\" does not say \"%s\"", i, error.message, parts[i][k]);
    }
    request_parser_free(parser);
}

/* Beyond the toolkit: what other servers take. */
static void takes_what_others_take(void **state) {
    (void)state;
    static const char *const lines[] = {
        LINE(",\"messages\":[{\"role\":\"developer\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"y\"}"
             "]"),
        MESSAGES(
            "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"custom\",\"name\":"
            "\"f\",\"input_schema\":{\"type\":\"object\"}}]"),
        MESSAGES("\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":[{"
                 "\"type\":"
                 "\"redacted_thinking\",\"data\":\"d\"},{\"type\":\"text\",\"text\":\"y\"}]}]"),
        LINE(",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}},{\"type\":"
             "\"function\",\"function\":{\"name\":\"g\"}}]"),
    };
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        accept(parser, lines[i]);
    request_parser_free(parser);
}

static struct request_parser *make_other_parser(bool toolkit, bool images) {
    struct request_options options = {
        .model_names = names, .context = CONTEXT, .toolkit = toolkit, .images = images};
    struct request_parser *parser = NULL;
    if (request_parser_create(tokenizer, &options, &parser) != OK)
        fail_msg("%s", failure_message());
    return parser;
}

static void toolkit_options(void **state) {
    (void)state;
    struct request_parser *parser = make_other_parser(true, false);
    struct request request =
        accept(parser, LINE(",\"temperature\":0.5,\"top_p\":0.5,\"max_completion_tokens\":1,\"stop\":\"x\""));
    assert_true(request.sampling.temperature == 1 && request.sampling.top_p == 0.95f);
    assert_int_equal(request.sampling.max_tokens, CONTEXT - request.token_count);
    assert_int_equal(request.sampling.stop_count, 1);
    request = accept(parser, LINE(PLAIN ",\"temperature\":0.5,\"top_p\":0.5,\"top_k\":5,\"max_tokens\":7,"
                                        "\"logprobs\":true,\"stream\":true"));
    assert_true(request.sampling.temperature == 0.5f && request.sampling.top_p == 1);
    assert_int_equal(request.sampling.top_k, 0);
    assert_int_equal(request.sampling.max_tokens, 7);
    assert_int_equal(request.sampling.top_logprobs, 0);
    static const struct refused refused[] = {
        {LINE(",\"n\":2"), 400, CODE_VALUE, "n", "n: expected 1, found 2"},
        {LINE(",\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]"), 400, CODE_VALUE,
            "messages[0].role",
            "messages[0].role: expected system, user, assistant, tool or latest_reminder, found "
            "\"developer\""},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        check_refused(parser, &refused[i]);
    request_parser_free(parser);
}

static void places_images(void **state) {
    (void)state;
    const char *line =
        LINE(PLAIN ",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
                   "{\"url\":\"a.png\",\"detail\":\"low\"}},{\"type\":\"text\",\"text\":\"and\"},{\"type\":"
                   "\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,AA==\"}}]}]");
    int32_t marker = tokenizer_added_id(tokenizer, "<｜deepseek_image｜>");
    if (marker < 0)
        skip();
    struct request_parser *parser = make_other_parser(false, true);
    struct request request = accept(parser, line);
    struct request_error error;
    size_t count;
    bool accepted = false;
    const struct image_reference *images = request_images(parser, &count);
    assert_int_equal(count, 2);
    assert_true(piece_is(images[0].reference, "a.png") && images[0].detail == DETAIL_LOW);
    assert_true(piece_is(images[1].path, "messages[0].content[2].image_url.url"));
    int32_t before = request.token_count;
    static const int64_t indices[] = {8, 5};
    static const int32_t tokens[] = {7, 11}, many[] = {7, CONTEXT};
    assert_int_equal(request_place_images(parser, indices, tokens, &request, &error, &accepted), OK);
    assert_true(accepted);
    assert_int_equal(request.token_count, before + 6 + 10);
    assert_int_equal(request.image_count, 2);
    assert_int_equal(request.image_tokens, 18);
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(request.images[i].image, indices[i]);
        for (int32_t k = 0; k < tokens[i]; k++)
            assert_int_equal(request.token_ids[request.images[i].position + k], marker);
        assert_int_not_equal(request.token_ids[request.images[i].position + tokens[i]], marker);
    }
    assert_int_equal(request_place_images(parser, indices, many, &request, &error, &accepted), OK);
    assert_false(accepted);
    assert_string_equal(error.code, "context_length_exceeded");
    request_parser_free(parser);
}

/* ---- robustness ---- */

static void survives_damaged_lines(void **state) {
    (void)state;
    const char *line = LINE(
        PLAIN ",\"stop\":[\"x\"],\"logit_bias\":{\"5\":1},\"logprobs\":true,\"top_logprobs\":2,\"seed\":1");
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    struct request request;
    struct request_error error;
    size_t bytes = strlen(line);
    for (size_t cut = 0; cut < bytes; cut++)
        assert_false(parse(parser, line, cut, &request, &error));
    srand(9);
    int accepted = 0;
    for (int round = 0; round < 20000; round++) {
        char damaged[1024];
        memcpy(damaged, line, bytes);
        for (int i = rand() % 3; i >= 0; i--)
            damaged[rand() % (int)bytes] = (char)(rand() % 2 ? rand() : line[rand() % (int)bytes]);
        accepted += parse(parser, damaged, bytes, &request, &error);
    }
    assert_true(accepted > 0 && accepted < 20000);
    request_parser_free(parser);
}

static long peak_kilobytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* Straight from one text: a sanitizer keeps freed copies for a while, which would look like a leak. */
static void memory_stays_flat(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    const char *line = LINE(PLAIN ",\"stop\":[\"x\"],\"logit_bias\":{\"5\":1},\"stop_token_ids\":[1]");
    struct request request;
    struct request_error error;
    bool accepted = false;
    long before = 0;
    for (int i = 0; i < 100000; i++) {
        assert_int_equal(request_parse(parser, line, strlen(line), &request, &error, &accepted), OK);
        assert_true(accepted);
        if (i == 100)
            before = peak_kilobytes();
    }
    if (peak_kilobytes() - before > 4 << 10)
        fail_msg("%ld KB more after 100000 lines", peak_kilobytes() - before);
    request_parser_free(parser);
}

static void a_large_line_is_quick(void **state) {
    (void)state;
    struct request_parser *parser = make_parser(false, CONTEXT, 0);
    struct buffer line = {0};
    buffer_append_text(&line, "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/"
                              "completions\",\"body\":{\"model\":\"nano\","
                              "\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 1 << 20; i++)
        buffer_append(&line, "a", 1);
    buffer_append_text(&line, "\"}]");
    for (int i = 0; i < 100000; i++)
        buffer_printf(&line, ",\"k%d\":[]", i);
    buffer_append_text(&line, "}}");
    struct request request;
    struct request_error error;
    clock_t start = clock();
    assert_false(parse(parser, line.data, line.bytes, &request, &error));
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_string_equal(error.code, "context_length_exceeded");
    assert_true(seconds < 10);
    buffer_free(&line);
    request_parser_free(parser);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_in_defaults),
        cmocka_unit_test(reads_every_field),
        cmocka_unit_test(null_is_absent),
        cmocka_unit_test(model_names_ignore_case),
        cmocka_unit_test(default_lengths),
        cmocka_unit_test(keeps_to_the_context),
        cmocka_unit_test(refuses_bad_lines),
        cmocka_unit_test(refuses_bad_fields),
        cmocka_unit_test(errors_name_the_request),
        cmocka_unit_test(unknown_fields),
        cmocka_unit_test(the_url_says_the_kind),
        cmocka_unit_test(refuses_by_kind),
        cmocka_unit_test(answers_are_held),
        cmocka_unit_test(grammars_refuse),
        cmocka_unit_test(takes_what_others_take),
        cmocka_unit_test(toolkit_options),
        cmocka_unit_test(places_images),
        cmocka_unit_test(survives_damaged_lines),
        cmocka_unit_test(memory_stays_flat),
        cmocka_unit_test(a_large_line_is_quick),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* Request bodies of all three kinds: the published toolkit's conversion and prompts, and what it refuses. */
#include "recipe/toolkit.h"

#include "vectors.h"

#include <time.h>

#define DATA SOURCE_DIR "/tests/data/recipe"

static struct tokenizer *tokenizer;
static struct toolkit *toolkit;

static int setup(void **state) {
    (void)state;
    if (tokenizer_load(DATA, &tokenizer) != OK || toolkit_create(tokenizer, &toolkit) != OK) {
        fprintf(stderr, "%s\n", failure_message());
        return 1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    toolkit_free(toolkit);
    tokenizer_free(tokenizer);
    return 0;
}

/* ---- published vectors ---- */

/* One file of vectors. */
struct vectors {
    enum request_kind kind;
    int accepted, refused;
};

static void check_text(const struct json *vector, const char *what, const char *found, size_t bytes,
    const struct json *expected) {
    if (expected->bytes != bytes || memcmp(expected->text, found, bytes) != 0)
        fail_msg(
            "%s: %s: expected %s\nfound %.*s", vector_name(vector), what, expected->text, (int)bytes, found);
}

static void check_word(
    const struct json *vector, const char *what, const char *found, const struct json *expected) {
    if (expected->kind == JSON_NULL ? found != NULL : !found || !json_is_text(expected, found))
        fail_msg("%s: %s: expected %s, found %s", vector_name(vector), what,
            expected->kind == JSON_NULL ? "null" : expected->text, found ? found : "null");
}

static void check_flag(const struct json *vector, const struct json *object, const char *key, bool found) {
    const struct json *expected = json_member(object, key);
    assert_non_null(expected);
    if ((expected->kind == JSON_TRUE) != found)
        fail_msg("%s: %s: found %s", vector_name(vector), key, found ? "true" : "false");
}

/* `found` is -1 for null. */
static void check_integer(
    const struct json *vector, const struct json *object, const char *key, int64_t found) {
    const struct json *expected = json_member(object, key);
    int64_t number = -1;
    assert_non_null(expected);
    assert_true(expected->kind == JSON_NULL || json_int64(expected, &number));
    if (number != found)
        fail_msg("%s: %s: expected %lld, found %lld", vector_name(vector), key, (long long)number,
            (long long)found);
}

static void check_float(const struct json *vector, const struct json *object, const char *key, float found) {
    double expected;
    assert_true(json_double(json_member(object, key), &expected));
    if (expected != (double)found)
        fail_msg("%s: %s: expected %.17g, found %.17g", vector_name(vector), key, expected, (double)found);
}

static void check_markers(const struct json *vector) {
    const struct prompt *prompt = &toolkit->prompt;
    size_t i = 0;
    for (const struct json *range = json_member(vector, "special_ranges_bytes")->first; range;
         range = range->next, i++) {
        int64_t start = 0, end = 0;
        assert_true(json_int64(range->first, &start) && json_int64(range->first->next, &end));
        assert_true(i < prompt->marker_count);
        assert_int_equal(prompt->markers[i].offset, start);
        assert_int_equal(prompt->markers[i].offset + prompt->markers[i].bytes, end);
    }
    assert_int_equal(i, prompt->marker_count);
}

static void check_parsing(const struct json *vector) {
    static const char *const stages[] = {[START_CONTENT_CONTINUATION] = "ContentContinuation",
        [START_REASONING] = "ReasoningStart",
        [START_REASONING_CONTINUATION] = "ReasoningContinuation",
        [START_CALLS] = NULL};
    const struct conversation *conversation = &toolkit->conversation;
    const struct json *parsing = json_member(vector, "parsing");
    size_t i = 0;
    check_flag(vector, parsing, "parse_tool_calls", conversation->parse_tool_calls);
    check_flag(vector, parsing, "starts_in_tool_calls", conversation->start == START_CALLS);
    check_flag(vector, parsing, "parse_json_output", conversation->json_output);
    check_word(vector, "thinking_initial_stage", stages[conversation->start],
        json_member(parsing, "thinking_initial_stage"));
    for (const struct json *stop = json_member(parsing, "stop_sequences")->first; stop;
         stop = stop->next, i++) {
        assert_true(i < toolkit->sampling.stop_count);
        check_text(vector, "stop", toolkit->sampling.stops[i].data, toolkit->sampling.stops[i].bytes, stop);
    }
    assert_int_equal(i, toolkit->sampling.stop_count);
}

static void check_inference(const struct json *vector) {
    static const char *const kinds[] = {[CONSTRAINT_JSON] = "json",
        [CONSTRAINT_REGEX] = "regex",
        [CONSTRAINT_TOOL_CALL] = "tool_call",
        [CONSTRAINT_TOOL_CALL_REQUIRED] = "tool_call_required"};
    const struct conversation *conversation = &toolkit->conversation;
    const struct toolkit_sampling *sampling = &toolkit->sampling;
    const struct json *inference = json_member(vector, "inference");
    const struct json *constraint = json_member(inference, "output_constraint");
    check_integer(vector, inference, "max_tokens", sampling->max_tokens);
    check_float(vector, inference, "temperature", sampling->temperature);
    check_float(vector, inference, "top_p", sampling->top_p);
    check_flag(vector, inference, "logprobs", sampling->logprobs);
    check_integer(vector, inference, "top_logprobs", sampling->top_logprobs);
    check_integer(vector, inference, "seed", sampling->has_seed ? sampling->seed : -1);
    if (constraint->kind == JSON_NULL) {
        assert_int_equal(conversation->constraint, CONSTRAINT_NONE);
        return;
    }
    const struct buffer *text = &conversation->constraint_text;
    check_word(vector, "constraint", kinds[conversation->constraint], json_member(constraint, "kind"));
    check_text(
        vector, "constraint", text->data ? text->data : "", text->bytes, json_member(constraint, "schema"));
}

static void check_images(const struct json *vector) {
    static const char *const details[] = {"low", "high", "original", "auto"};
    const struct conversation *conversation = &toolkit->conversation;
    const struct json *images = json_member(vector, "images");
    size_t i = 0, markers = 0;
    for (const struct json *image = images ? images->first : NULL; image; image = image->next, i++) {
        assert_true(i < conversation->image_count);
        const struct image_reference *found = &conversation->images[i];
        check_text(vector, "image", found->reference.data, found->reference.bytes, json_member(image, "ref"));
        check_word(vector, "kind", found->is_url ? "url" : "data_url", json_member(image, "kind"));
        check_word(vector, "detail", details[found->detail], json_member(image, "detail"));
        assert_true(found->path.bytes > 0);
    }
    assert_int_equal(i, conversation->image_count);
    int32_t id = tokenizer_added_id(tokenizer, "<｜deepseek_image｜>");
    for (size_t k = 0; k < toolkit->prompt.ids.count; k++)
        markers += toolkit->prompt.ids.ids[k] == id;
    assert_int_equal(markers, conversation->image_count);
}

static void check_accepted(const struct json *vector) {
    static const char *const efforts[] = {NULL, "low", "high", "xhigh", "max"};
    static const char *const choices[] = {"auto", "none", "required"};
    static const char *const formats[] = {"text", "json_object", "json_schema", "regex"};
    const struct conversation *conversation = &toolkit->conversation;
    const struct prompt *prompt = &toolkit->prompt;
    check_text(vector, "prompt", prompt->text.data, prompt->text.bytes, json_member(vector, "prompt"));
    check_markers(vector);
    check_ids(vector, prompt->ids.ids, prompt->ids.count, json_member(vector, "token_ids"));
    check_flag(vector, vector, "thinking_mode", conversation->thinking);
    check_flag(vector, vector, "stream", toolkit->sampling.stream);
    check_word(vector, "effort", efforts[conversation->effort], json_member(vector, "reasoning_effort"));
    check_word(vector, "choice", choices[conversation->tool_choice], json_member(vector, "tool_choice"));
    check_word(vector, "format", formats[conversation->format], json_member(vector, "response_format"));
    check_parsing(vector);
    check_inference(vector);
    check_images(vector);
}

static bool render(const struct json *vector, enum request_kind kind) {
    const struct json *raw = json_member(vector, "request_raw"), *request = json_member(vector, "request");
    struct toolkit_policies policies;
    bool accepted = false;
    assert_int_equal(toolkit_read_policies(json_member(vector, "options"), &policies), OK);
    /* The one body in base64 is no UTF-8. */
    struct text_piece text =
        raw ? (struct text_piece){raw->text, raw->bytes} : text_of("{\"model\":\"\xFF\"}");
    enum result status = request ? toolkit_render(toolkit, kind, request, &policies, &accepted)
                                 : toolkit_render_text(toolkit, kind, text, &policies, &accepted);
    if (status != OK)
        fail_msg("%s: %s", vector_name(vector), failure_message());
    return accepted;
}

static bool check_vector(const struct json *vector, void *context) {
    struct vectors *vectors = context;
    bool accepted = render(vector, vectors->kind);
    if (accepted == (json_member(vector, "error") != NULL))
        fail_msg("%s: %s", vector_name(vector), accepted ? "accepted" : toolkit->refusal.message);
    if (accepted)
        check_accepted(vector);
    *(accepted ? &vectors->accepted : &vectors->refused) += 1;
    return true;
}

static void check_file(enum request_kind kind, const char *path, int accepted, int refused) {
    struct vectors vectors = {.kind = kind};
    assert_int_equal(for_each_vector(path, check_vector, &vectors), accepted + refused);
    assert_int_equal(vectors.accepted, accepted);
    assert_int_equal(vectors.refused, refused);
}

static void renders_chat_completions(void **state) {
    (void)state;
    check_file(KIND_CHAT, DATA "/chat_cases.jsonl", 303, 175);
}

static void renders_responses(void **state) {
    (void)state;
    check_file(KIND_RESPONSES, DATA "/responses_cases.jsonl", 66, 32);
}

static void renders_messages(void **state) {
    (void)state;
    check_file(KIND_MESSAGES, DATA "/messages_cases.jsonl", 66, 41);
}

/* ---- refusals: field and reason ---- */

/* The table of refusals.tsv as lines, looked through by kind and case. */
struct refusals {
    enum request_kind kind;
    char *text;
    int found;
};

static char *read_text_file(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    if (!file || !text)
        fail_msg("%s: cannot open", path);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static bool check_refusal(const struct json *vector, void *context) {
    static const char *const kinds[] = {"chat", "responses", "messages"};
    struct refusals *refusals = context;
    if (!json_member(vector, "error") || json_member(vector, "request_raw_base64"))
        return false;
    char expected[4096], start[256];
    assert_false(render(vector, refusals->kind));
    snprintf(start, sizeof start, "\n%s\t%s\t", kinds[refusals->kind], vector_name(vector));
    snprintf(expected, sizeof expected, "\t%s\t%s", toolkit->refusal.param, toolkit->refusal.message);
    const char *line = strstr(refusals->text, start);
    if (!line)
        fail_msg("refusals.tsv has no line for %s", vector_name(vector));
    const char *end = strchr(line + 1, '\n');
    size_t bytes = strlen(expected);
    if ((size_t)(end - line) < bytes || memcmp(end - bytes, expected, bytes) != 0)
        fail_msg("%s: expected %.*s\nfound%s", vector_name(vector), (int)(end - line), line, expected);
    assert_true(
        strncmp(toolkit->refusal.message, toolkit->refusal.param, strlen(toolkit->refusal.param)) == 0);
    return true;
}

static void names_field_and_reason(void **state) {
    (void)state;
    struct refusals refusals = {.text = read_text_file(DATA "/refusals.tsv")};
    refusals.kind = KIND_CHAT;
    assert_int_equal(for_each_vector(DATA "/chat_cases.jsonl", check_refusal, &refusals), 174);
    refusals.kind = KIND_RESPONSES;
    assert_int_equal(for_each_vector(DATA "/responses_cases.jsonl", check_refusal, &refusals), 32);
    refusals.kind = KIND_MESSAGES;
    assert_int_equal(for_each_vector(DATA "/messages_cases.jsonl", check_refusal, &refusals), 41);
    free(refusals.text);
}

/* ---- what no vector shows ---- */

static bool render_body(enum request_kind kind, const char *body) {
    bool accepted = false;
    if (toolkit_render_text(toolkit, kind, text_of(body), &TOOLKIT_DEFAULTS, &accepted) != OK)
        fail_msg("%s", failure_message());
    return accepted;
}

static void check_refused(enum request_kind kind, const char *body, const char *message) {
    if (render_body(kind, body))
        fail_msg("accepted: %s", body);
    assert_string_equal(toolkit->refusal.message, message);
}

#define MODEL "\"model\":\"DeepSeek-V4.1-Flash\""
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi json\"}]"
#define SCHEMA(schema)                                                                                       \
    "{" MODEL "," HI                                                                                         \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" schema "}}]}"

static void checks_schemas(void **state) {
    (void)state;
    static const char *const good[] = {
        SCHEMA("{\"type\":\"object\",\"$ref\":\"#/x/a~0b/c%20d\",\"x\":{\"a~b\":{\"c d\":{}}}}"),
        SCHEMA("{\"type\":\"object\",\"$ref\":\"#foo\",\"$defs\":{\"a\":{\"$anchor\":\"foo\"}}}"),
        SCHEMA("{\"type\":\"object\",\"$id\":\"http://e.com/x\",\"$ref\":\"http://e.com/x\"}"),
        SCHEMA("{\"type\":\"object\",\"properties\":{\"$ref\":{\"type\":\"string\"}}}"),
        SCHEMA("{\"type\":\"object\",\"properties\":{\"x\":{\"const\":{\"$ref\":\"#/zz\"}}}}"),
        SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"minLength\":1.0}}}"),
        SCHEMA("{\"type\":\"object\",\"$schema\":\"http://json-schema.org/draft-07/schema#\","
               "\"properties\":{\"a\":{\"items\":[{}]}}}"),
    };
    static const struct {
        const char *body, *message;
    } bad[] = {
        {SCHEMA("{\"type\":\"object\",\"$ref\":\"#/x\"}"),
            "tools[0].function.parameters.$ref: \"#/x\" leads nowhere in the schema"},
        {SCHEMA("{\"type\":\"object\",\"$ref\":\"http://e.com/x\"}"),
            "tools[0].function.parameters.$ref: \"http://e.com/x\" leads nowhere in the schema"},
        {SCHEMA("{\"type\":\"object\",\"required\":[\"a\",\"a\"]}"),
            "tools[0].function.parameters.required: \"a\" stands there twice"},
        {SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"multipleOf\":0}}}"),
            "tools[0].function.parameters.properties.a.multipleOf: expected a number above 0, found 0"},
        {SCHEMA("{\"type\":\"object\",\"anyOf\":[]}"),
            "tools[0].function.parameters.anyOf: expected at least one schema, found an empty array"},
        {SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"items\":[{}]}}}"),
            "tools[0].function.parameters.properties.a.items: expected a JSON Schema: an object or a "
            "boolean, "
            "found array"},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (!render_body(KIND_CHAT, good[i]))
            fail_msg("%s: %s", good[i], toolkit->refusal.message);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check_refused(KIND_CHAT, bad[i].body, bad[i].message);
}

static void checks_in_order(void **state) {
    (void)state;
    static const struct {
        const char *body, *message;
    } cases[] = {
        /* a wrong type before a wrong value, wherever they stand */
        {"{\"model\":\"zz\"," HI ",\"temperature\":\"x\"}", "temperature: expected a number, found \"x\""},
        {"{\"model\":\"zz\",\"messages\":[]}",
            "model: the model \"zz\" does not exist here: this campaign runs \"DeepSeek-V4.1-Flash\""},
        {"{" MODEL ",\"messages\":[],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]}",
            "tools[0].function.name: expected at least one character, found an empty string"},
        {"{" MODEL "," HI ",\"stop\":[\"\"],\"n\":2}",
            "stop[0]: expected a string of at least one character, found \"\""},
        {"{" MODEL "," HI ",\"n\":2,\"temperature\":9}", "n: expected 1, found 2"},
        {"{" MODEL "," HI ",\"temperature\":9,\"top_p\":9}",
            "temperature: expected a number from 0 to 2, found 9"},
        {"{" MODEL "," HI ",\"seed\":9223372036854775808,\"max_tokens\":0}",
            "max_tokens: expected an integer from 1 to 393216, found 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(KIND_CHAT, cases[i].body, cases[i].message);
}

/* Nothing of a body, accepted or refused, is left for the next. */
static void starts_afresh(void **state) {
    (void)state;
    static const char plain[] = "{" MODEL ",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    struct buffer first = {0};
    assert_true(render_body(KIND_CHAT, plain));
    buffer_append(&first, toolkit->prompt.text.data, toolkit->prompt.text.bytes);
    assert_true(render_body(KIND_CHAT, SCHEMA("{\"type\":\"object\"}")));
    assert_int_equal(toolkit->conversation.constraint, CONSTRAINT_TOOL_CALL);
    assert_false(
        render_body(KIND_RESPONSES, "{" MODEL ",\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\","
                                    "\"name\":\"f\",\"arguments\":\"{}\"}]}"));
    assert_true(render_body(KIND_CHAT, plain));
    assert_string_equal(toolkit->prompt.text.data, first.data);
    assert_int_equal(toolkit->conversation.constraint, CONSTRAINT_NONE);
    assert_int_equal(toolkit->conversation.constraint_text.bytes, 0);
    buffer_free(&first);
}

static void calls_come_by_their_ids(void **state) {
    (void)state;
    assert_true(render_body(KIND_RESPONSES,
        "{" MODEL ",\"input\":["
        "{\"type\":\"function_call\",\"call_id\":\"10\",\"name\":\"x\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"9\",\"name\":\"y\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"z\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"9\",\"output\":\"Y\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"10\",\"output\":\"X\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":\"Z\"}]}"));
    const char *prompt = toolkit->prompt.text.data;
    static const char *const order[] = {
        "name=\"z\"", "name=\"x\"", "name=\"y\"", "<tool_result>Z<", "<tool_result>X<", "<tool_result>Y<"};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        prompt = strstr(prompt, order[i]);
        assert_non_null(prompt);
    }
}

/* However long the lists in a body are, it is read in a moment. */
static void reads_long_lists_quickly(void **state) {
    (void)state;
    enum { MANY = 50000 };
    struct buffer body = {0};
    buffer_append_text(
        &body, "{" MODEL ",\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[");
    for (int i = 0; i < MANY; i++)
        buffer_printf(&body,
            "%s{\"id\":\"c%d\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}",
            i ? "," : "", i);
    buffer_append_text(&body, "]}");
    for (int i = MANY; i-- > 0;)
        buffer_printf(&body, ",{\"role\":\"tool\",\"tool_call_id\":\"c%d\",\"content\":\"\"}", i);
    buffer_append_text(&body, "],\"tools\":[");
    for (int i = 0; i < MANY; i++)
        buffer_printf(&body, "%s{\"type\":\"function\",\"function\":{\"name\":\"f%d\"}}", i ? "," : "", i);
    buffer_append_text(&body, "]}");
    clock_t start = clock();
    assert_true(render_body(KIND_CHAT, body.data));
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 20);
    assert_int_equal(toolkit->conversation.tools.count, MANY);
    buffer_free(&body);
}

static void reads_options(void **state) {
    (void)state;
    static const struct {
        const char *options, *message;
    } bad[] = {{"{\"zz\":1}", "options.zz: unknown option"},
        {"{\"default_thinking_mode\":1}", "options.default_thinking_mode: expected true or false, found 1"},
        {"{\"messages_web_search\":\"Keep\"}",
            "options.messages_web_search: expected \"Reject\" or \"Drop\", found \"Keep\""},
        {"{\"thinking_max_tokens_upper_bound\":0}",
            "options.thinking_max_tokens_upper_bound: expected an integer from 1 to 2147483647, found 0"},
        {"[]", "options: expected an object, found array"}};
    struct json_document *document = NULL;
    assert_int_equal(json_document_create(&document), OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct toolkit_policies policies;
        const struct json *options = NULL;
        assert_int_equal(json_parse(document, bad[i].options, strlen(bad[i].options), &options), OK);
        assert_int_equal(toolkit_read_policies(options, &policies), ERROR_INPUT);
        assert_string_equal(failure_message(), bad[i].message);
    }
    json_document_free(document);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_chat_completions),
        cmocka_unit_test(renders_responses),
        cmocka_unit_test(renders_messages),
        cmocka_unit_test(names_field_and_reason),
        cmocka_unit_test(checks_schemas),
        cmocka_unit_test(checks_in_order),
        cmocka_unit_test(starts_afresh),
        cmocka_unit_test(calls_come_by_their_ids),
        cmocka_unit_test(reads_long_lists_quickly),
        cmocka_unit_test(reads_options),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

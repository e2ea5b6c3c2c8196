/* Replies as API bodies: the published toolkit's, and what its vectors don't have. */
#include "recipe/message.h"

#include "vectors.h"

#include <ctype.h>

static struct tokenizer *tokenizer;
static struct reply_parser *parser;
static struct json_document *scratch;

static int load(void **state) {
    (void)state;
    if (tokenizer_load(SOURCE_DIR "/tests/data/recipe", &tokenizer) != OK ||
        reply_parser_create(tokenizer, &parser) != OK || json_document_create(&scratch) != OK)
        fail_msg("%s", failure_message());
    return 0;
}

static int unload(void **state) {
    (void)state;
    reply_parser_free(parser);
    tokenizer_free(tokenizer);
    json_document_free(scratch);
    return 0;
}

/* Members whose values are ours: ids, times and the like. */
static bool is_own(const char *key) {
    static const char *const keys[] = {"id", "created", "created_at", "completed_at", "system_fingerprint",
        "refusal", "signature", "encrypted_content", "call_id", NULL};
    for (size_t i = 0; keys[i]; i++)
        if (!strcmp(key, keys[i]))
            return true;
    return false;
}

/* All that `found` says must be as `expected` has it. `whole`: and nothing may be missing. */
static void same_json(const struct json *found, const struct json *expected, bool whole, const char *path) {
    char below[256];
    if (!expected || found->kind != expected->kind)
        fail_msg("%s: expected %s, found %s", path, json_kind_name(expected), json_kind_name(found));
    if (found->kind == JSON_STRING &&
        (found->bytes != expected->bytes || memcmp(found->text, expected->text, found->bytes)))
        fail_msg("%s: expected '%s', found '%s'", path, expected->text, found->text);
    if (found->kind == JSON_NUMBER && strcmp(found->text, expected->text))
        fail_msg("%s: expected %s, found %s", path, expected->text, found->text);
    if (found->kind == JSON_ARRAY) {
        if (found->count != expected->count)
            fail_msg("%s: expected %zu elements, found %zu", path, expected->count, found->count);
        const struct json *b = expected->first;
        for (const struct json *a = found->first; a; a = a->next, b = b->next)
            same_json(a, b, true, path);
    }
    if (found->kind != JSON_OBJECT)
        return;
    for (const struct json *a = found->first; a; a = a->next) {
        snprintf(below, sizeof below, "%s.%s", path, a->key);
        if (!is_own(a->key))
            same_json(a, json_member(expected, a->key), !strcmp(a->key, "usage") || whole, below);
    }
    for (const struct json *b = expected->first; whole && b; b = b->next)
        if (!json_member(found, b->key))
            fail_msg("%s: %s is missing", path, b->key);
}

struct body {
    struct buffer text;
    struct json_document *document;
    const struct json *json;
};

static void parse_body(struct body *body) {
    if (!body->document)
        assert_int_equal(json_document_create(&body->document), OK);
    if (json_parse(body->document, body->text.data, body->text.bytes, &body->json) != OK)
        fail_msg("%s: %s", failure_message(), body->text.data);
    assert_null(memchr(body->text.data, '\n', body->text.bytes)); /* it must fit a line */
}

static void free_body(struct body *body) {
    buffer_free(&body->text);
    json_document_free(body->document);
}

static void make_body(enum request_kind kind, const struct message_choice *choice,
    const struct message_usage *usage, struct body *body) {
    struct message_head head = {"0123", 1700000000, {"DeepSeek-V4.1-Flash", 19}, "fp_x"};
    struct buffer choices = {0};
    buffer_clear(&body->text);
    message_append_head(kind, &head, &body->text);
    if (kind == KIND_CHAT) {
        message_append_choice(head.id, 0, choice, &choices);
        message_append_chat((struct text_piece){choices.data, choices.bytes}, usage, &body->text);
    } else if (kind == KIND_RESPONSES)
        message_append_responses(head.id, head.created, choice, usage, &body->text);
    else
        message_append_messages(head.id, choice, usage, scratch, &body->text);
    buffer_free(&choices);
    parse_body(body);
}

static const struct reply *parse_vector(const struct json *vector, struct text_piece *stop) {
    const struct json *from = json_member(vector, "options"), *stops = json_member(from, "stop_sequences");
    const struct json *stage = json_member(from, "thinking_initial_stage"),
                      *finish = json_member(vector, "finish");
    if (stops->first)
        *stop = (struct text_piece){stops->first->text, stops->first->bytes};
    struct reply_options options = {.rules = REPLY_REPAIRED,
        .stage = stage->kind == JSON_STRING ? START_REASONING : START_CONTENT,
        .thinking = stage->kind == JSON_STRING,
        .tools = json_member(from, "parse_tool_calls")->kind == JSON_TRUE,
        .as_ids = true,
        .stops = stop,
        .stop_count = stops->first != NULL};
    reply_begin(parser, &options);
    for (const struct json *chunk = json_member(vector, "token_chunks")->first; chunk; chunk = chunk->next)
        for (const struct json *id = chunk->first; id; id = id->next) {
            int64_t number;
            assert_true(json_int64(id, &number));
            reply_feed_ids(parser, &(int32_t){(int32_t)number}, 1);
        }
    return reply_finish(parser, json_is_text(finish, "Length")          ? REPLY_LENGTH
                                : json_is_text(finish, "ContentFilter") ? REPLY_CONTENT_FILTER
                                                                        : REPLY_STOP);
}

/* The last event of a Responses stream holds the whole response. */
static const struct json *last_response(const struct json *vector) {
    const struct json *event = json_member(json_member(vector, "responses"), "events")->first;
    while (event->next)
        event = event->next;
    return json_member(event, "response");
}

static void check_call_ids(const struct json *calls, const char *member) {
    int i = 0;
    for (const struct json *call = calls ? calls->first : NULL; call; call = call->next) {
        const struct json *id = json_member(call, member);
        char begin[24];
        if (!id || strncmp(id->text, "call_", 5))
            continue;
        snprintf(begin, sizeof begin, "call_%02d_", i++);
        assert_int_equal(id->bytes, 8 + 24);
        assert_memory_equal(id->text, begin, 8);
        for (size_t k = 8; k < 32; k++)
            assert_true(k < 28 ? isalnum((unsigned char)id->text[k]) : isdigit((unsigned char)id->text[k]));
    }
}

static bool check_vector(const struct json *vector, void *context) {
    (void)context;
    struct text_piece stop = {0};
    struct body body = {0};
    const struct reply *reply = parse_vector(vector, &stop);
    struct message_choice choice = {.reply = reply, .stopped = reply->stop_index >= 0, .stop_sequence = stop};
    struct message_usage usage = {.prompt_tokens = 10,
        .completion_tokens = reply->completion_tokens,
        .reasoning_tokens = reply->reasoning_tokens,
        .thinking = reply->thinking};
    make_body(KIND_CHAT, &choice, &usage, &body);
    same_json(body.json, json_member(json_member(vector, "chat"), "response"), true, vector_name(vector));
    const struct json *message = json_member(json_member(body.json, "choices")->first, "message");
    check_call_ids(json_member(message, "tool_calls"), "id");
    make_body(KIND_RESPONSES, &choice, &usage, &body);
    same_json(body.json, last_response(vector), false, vector_name(vector));
    check_call_ids(json_member(body.json, "output"), "call_id");
    make_body(KIND_MESSAGES, &choice, &usage, &body);
    same_json(body.json, json_member(json_member(vector, "messages"), "response"), true, vector_name(vector));
    check_call_ids(json_member(body.json, "content"), "id");
    free_body(&body);
    return true;
}

static void published_bodies(void **state) {
    (void)state;
    assert_int_equal(
        for_each_vector(SOURCE_DIR "/tests/data/recipe/parse_protocol_events.jsonl", check_vector, NULL), 9);
}

static const struct reply *cut_call(enum reply_rules rules, const char *value) {
    struct reply_options options = {.rules = rules, .stage = START_CALLS, .tools = true};
    static const char begin[] =
        "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"k\" string=\"false\">";
    reply_begin(parser, &options);
    reply_feed_text(parser, begin, sizeof begin - 1);
    reply_feed_text(parser, value, strlen(value));
    return reply_finish(parser, REPLY_LENGTH);
}

static const struct json *member(const struct json *json, const char *a, const char *b) {
    return json_member(json_member(json, a)->first, b);
}

static void cut_calls(void **state) {
    (void)state;
    struct body body = {0};
    struct message_usage usage = {.prompt_tokens = 5, .completion_tokens = 7};
    struct message_choice choice = {.reply = cut_call(REPLY_REPAIRED, "{\n \"x\": 1}")};
    make_body(KIND_CHAT, &choice, &usage, &body);
    const struct json *message = member(body.json, "choices", "message");
    assert_string_equal(json_member(json_member(message, "tool_calls")->first, "status")->text, "incomplete");
    assert_string_equal(member(body.json, "choices", "finish_reason")->text, "length");
    make_body(KIND_RESPONSES, &choice, &usage, &body);
    assert_string_equal(member(body.json, "output", "status")->text, "incomplete");
    assert_string_equal(json_member(body.json, "status")->text, "incomplete");
    make_body(KIND_MESSAGES, &choice, &usage, &body);
    int64_t x = 0;
    assert_true(json_int64(json_member(json_member(member(body.json, "content", "input"), "k"), "x"), &x));
    assert_int_equal(x, 1);
    assert_string_equal(member(body.json, "content", "status")->text, "incomplete");
    choice.reply = cut_call(REPLY_PUBLISHED, "nonsense");
    make_body(KIND_MESSAGES, &choice, &usage, &body);
    assert_string_equal(
        json_member(member(body.json, "content", "input"), "arguments")->text, "{\"k\": nonsense");
    free_body(&body);
}

static void usage_details(void **state) {
    (void)state;
    struct body body = {0};
    struct reply_options options = {.stage = START_CONTENT};
    reply_begin(parser, &options);
    reply_feed_text(parser, "x", 1);
    struct message_choice choice = {.reply = reply_finish(parser, REPLY_STOP), .logprobs = {"[1]", 3}};
    struct message_usage usage = {
        .prompt_tokens = 100, .completion_tokens = 7, .image_tokens = 30, .cached_tokens = 40};
    make_body(KIND_CHAT, &choice, &usage, &body);
    assert_non_null(
        strstr(body.text.data, "\"prompt_tokens_details\":{\"cached_tokens\":40,\"image_tokens\":30}"));
    assert_non_null(strstr(body.text.data, "\"prompt_cache_miss_tokens\":60"));
    assert_non_null(strstr(body.text.data, "\"logprobs\":[1]"));
    make_body(KIND_RESPONSES, &choice, &usage, &body);
    assert_non_null(
        strstr(body.text.data, "\"input_tokens_details\":{\"cached_tokens\":40,\"image_tokens\":30}"));
    assert_non_null(strstr(body.text.data, "\"logprobs\":[1]"));
    make_body(KIND_MESSAGES, &choice, &usage, &body);
    assert_non_null(strstr(body.text.data, "\"input_tokens\":60,"));
    assert_non_null(strstr(body.text.data, "\"cache_read_input_tokens\":40,"));
    free_body(&body);
}

static void namespaces(void **state) {
    (void)state;
    struct body body = {0};
    struct message_usage usage = {0};
    static const char text[] = "<｜DSML｜ invoke name=\"files::read\">\n</｜DSML｜ invoke>";
    struct reply_options options = {.rules = REPLY_REPAIRED, .stage = START_CALLS, .tools = true};
    reply_begin(parser, &options);
    reply_feed_text(parser, text, sizeof text - 1);
    struct message_choice choice = {.reply = reply_finish(parser, REPLY_STOP)};
    make_body(KIND_RESPONSES, &choice, &usage, &body);
    assert_string_equal(member(body.json, "output", "name")->text, "read");
    assert_string_equal(member(body.json, "output", "namespace")->text, "files");
    free_body(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_bodies),
        cmocka_unit_test(cut_calls),
        cmocka_unit_test(usage_details),
        cmocka_unit_test(namespaces),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

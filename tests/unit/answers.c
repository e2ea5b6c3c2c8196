/* Answers of results parts as API bodies: what the engine cut at stop strings, kinds, log-probabilities and
 * call ids. */
#include "campaign/answers.h"

#include "base/json.h"
#include "campaign/results_part.h"
#include "schedule/choices.h"
#include "vectors.h"

static struct tokenizer *tokenizer;
static struct answer_writer *writer;
static struct json_document *document;
static uint64_t random_state = 3;

static int load(void **state) {
    (void)state;
    if (tokenizer_load(SOURCE_DIR "/tests/data/recipe", &tokenizer) != OK ||
        answer_writer_create(tokenizer, &writer) != OK || json_document_create(&document) != OK)
        fail_msg("%s", failure_message());
    return 0;
}

static int unload(void **state) {
    (void)state;
    answer_writer_free(writer);
    tokenizer_free(tokenizer);
    json_document_free(document);
    return 0;
}

static void check(enum result status) {
    if (status != OK)
        fail_msg("%s", failure_message());
}

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* ---- a part with one record of one choice, made as the engine makes it ---- */

struct answer {
    struct table part;
    struct buffer text; /* what the engine says the answer is */
    enum stop_cause cause;
};

static void append_choice(struct table *part, const struct choice_result *choice, const struct buffer *text) {
    size_t tokens = (size_t)choice->token_count;
    check(table_append_int32(part, RESULT_PROMPT_TOKENS, 11));
    check(table_append_int32(part, RESULT_CACHED_TOKENS, 0));
    check(table_append(part, RESULT_FINISHED_AT, &(double){1700000000.5}, 1));
    check(table_append_offset(part, RESULT_CHOICE_OFFSETS, 1));
    check(table_append(part, RESULT_TOKEN_IDS, choice->token_ids, tokens));
    check(table_append(part, RESULT_LOGPROBS, choice->logprobs, tokens));
    check(table_append_offset(part, RESULT_TOKEN_OFFSETS, tokens));
    check(table_append_ragged(part, RESULT_TEXT, text->data ? text->data : "", text->bytes));
    check(table_append_int32(part, RESULT_TEXT_TOKENS, choice->text_tokens));
    check(table_append_byte(part, RESULT_FINISH, (uint8_t)choice->finish));
    check(table_append_byte(part, RESULT_CAUSE, (uint8_t)choice->cause));
    check(table_append_int32(part, RESULT_STOP_INDEX, choice->stop_index));
    check(table_append_int32(part, RESULT_TOP_COUNT, 0));
    check(table_append_offset(part, RESULT_TOP_OFFSETS, 0));
}

/* Feeds ids to the engine's own bookkeeping until it ends the answer. */
static void make_answer(struct answer *answer, const int32_t *ids, size_t count,
    const struct text_piece *stops, int32_t stop_count) {
    struct request request = {.custom_id = {"a", 1},
        .sampling = {.choices = 1,
            .max_tokens = (int32_t)count,
            .top_logprobs = 0,
            .stops = stops,
            .stop_count = stop_count}};
    struct answer_rules rules = {.tokenizer = tokenizer, .eos_token_id = 1, .context = 1 << 20};
    struct stop_strings *strings = NULL;
    struct choice choice;
    struct choice_result result;
    memset(answer, 0, sizeof *answer);
    check(stop_strings_create(stops, stop_count, &strings));
    check(choice_begin(&choice, &request, 0, 0, strings));
    for (size_t i = 0; i < count && !choice.finished; i++)
        check(choice_add(
            &choice, &rules, &request, strings, &(struct generated_token){.id = ids[i], .logprob = -1}));
    choice_describe(&choice, &rules, &result, &answer->text);
    answer->cause = result.cause;
    check(table_create(&answer->part, results_columns, RESULT_COLUMNS));
    append_choice(&answer->part, &result, &answer->text);
    choice_free(&choice);
    stop_strings_free(strings);
}

static void free_answer(struct answer *answer) {
    table_free(&answer->part);
    buffer_free(&answer->text);
}

static const struct json *body_of(
    const struct answer *answer, const struct answer_request *request, struct buffer *text) {
    const struct json *body = NULL;
    buffer_clear(text);
    buffer_append_text(text, "{\"x\":0");
    answer_append(writer, &answer->part, 0, request, "0123", text);
    check(json_parse(document, text->data, text->bytes, &body));
    return body;
}

static const struct json *chat_message(const struct json *body) {
    return json_member(json_member(body, "choices")->first, "message");
}

static int64_t number_at(const struct json *json, const char *a, const char *b) {
    int64_t number = -1;
    const struct json *value = json_member(json, a);
    assert_true(json_int64(b ? json_member(value, b) : value, &number));
    return number;
}

/* ---- tests ---- */

/* Wherever a stop string cuts, inside a token or a character, content is what the engine kept. */
static void content_is_what_the_engine_cut(void **state) {
    (void)state;
    static const char *const pieces[] = {"hello", " END", "é", "日本", "😀", "x", " ", "E", "N", "D!"};
    static const struct text_piece stops[] = {
        {"END", 3}, {"lo", 2}, {"本", 3}, {"\x98\x80", 2}, {"日\xE6", 4}};
    struct buffer spoken = {0}, text = {0};
    struct token_list ids = {0};
    int cut = 0;
    for (int round = 0; round < 3000; round++) {
        buffer_clear(&spoken);
        buffer_append(&spoken, "a", 1);
        for (uint32_t i = draw(8); i > 0; i--)
            buffer_append_text(&spoken, pieces[draw(sizeof pieces / sizeof *pieces)]);
        ids.count = 0;
        if (draw(2))
            check(tokenizer_encode(tokenizer, spoken.data, spoken.bytes, &ids));
        else
            for (size_t i = 0; i < spoken.bytes;
                 i++) /* a token a byte: bytes have the ids 3 to 258 in some order */
                for (int32_t id = 3; id < 259; id++) {
                    const char *byte;
                    size_t bytes;
                    if (tokenizer_token_bytes(tokenizer, id, &byte, &bytes) && bytes == 1 &&
                        *byte == spoken.data[i])
                        token_list_append(&ids, &id, 1);
                }
        if (draw(4) == 0)
            token_list_append(&ids, &(int32_t){0}, 1); /* a special token, which has no text */
        struct answer answer;
        make_answer(&answer, ids.ids, ids.count, &stops[draw(5)], 1);
        struct answer_request request = {.kind = KIND_CHAT, .stage = START_CONTENT};
        const struct json *content = json_member(chat_message(body_of(&answer, &request, &text)), "content");
        if (content->bytes != answer.text.bytes || memcmp(content->text, answer.text.data, content->bytes))
            fail_msg("'%s': expected '%s', found '%s'", spoken.data, answer.text.data, content->text);
        cut += answer.cause == STOP_TEXT;
        free_answer(&answer);
    }
    assert_in_range(cut, 500, 2900);
    free(ids.ids);
    buffer_free(&spoken);
    buffer_free(&text);
}

#define DSML "｜DSML｜"
static const char with_call[] =
    "Think.\n</think>\n\nSure.\n\n<" DSML " calls>\n<" DSML " invoke name=\"f\">\n<" DSML
    " parameter name=\"k\" string=\"false\">not json</" DSML " parameter>\n</" DSML " invoke>\n</" DSML
    " calls><｜end▁of▁sentence｜>";

static void calls_in_all_kinds(void **state) {
    (void)state;
    struct token_list ids = {0};
    struct buffer text = {0}, again = {0};
    struct answer answer;
    check(tokenizer_encode(tokenizer, with_call, sizeof with_call - 1, &ids));
    make_answer(&answer, ids.ids, ids.count, NULL, 0);
    struct answer_request request = {
        .kind = KIND_CHAT, .stage = START_REASONING, .thinking = true, .tools = true};
    const struct json *body = body_of(&answer, &request, &text), *message = chat_message(body);
    assert_string_equal(json_member(message, "reasoning_content")->text, "Think.");
    assert_string_equal(json_member(message, "content")->text, "Sure.");
    const struct json *call = json_member(json_member(message, "tool_calls")->first, "function");
    assert_string_equal(json_member(call, "arguments")->text, "{\"k\": \"not json\"}");
    assert_string_equal(
        json_member(json_member(body, "choices")->first, "finish_reason")->text, "tool_calls");
    assert_int_equal(number_at(json_member(body, "usage"), "completion_tokens", NULL), ids.count);
    size_t reasoning = 0;
    while (ids.ids[reasoning] != 128822)
        reasoning++;
    assert_int_equal(
        number_at(json_member(body, "usage"), "completion_tokens_details", "reasoning_tokens"), reasoning);
    body_of(&answer, &request, &again);
    assert_string_equal(text.data, again.data);
    request.kind = KIND_RESPONSES;
    body = body_of(&answer, &request, &text);
    assert_int_equal(json_member(body, "output")->count, 3);
    assert_int_equal(number_at(body, "completed_at", NULL), 1700000000);
    request.kind = KIND_MESSAGES;
    body = body_of(&answer, &request, &text);
    assert_int_equal(json_member(body, "content")->count, 3);
    assert_string_equal(json_member(body, "stop_reason")->text, "tool_use");
    request.tools = false;
    request.kind = KIND_CHAT;
    message = chat_message(body_of(&answer, &request, &text));
    assert_null(json_member(message, "tool_calls"));
    assert_non_null(strstr(json_member(message, "content")->text, "invoke name"));
    free_answer(&answer);
    free(ids.ids);
    buffer_free(&text);
    buffer_free(&again);
}

static void stop_strings_in_messages(void **state) {
    (void)state;
    static const struct text_piece stops[] = {{"never", 5}, {"END", 3}};
    struct token_list ids = {0};
    struct buffer text = {0};
    struct answer answer;
    check(tokenizer_encode(tokenizer, "one END two", 11, &ids));
    make_answer(&answer, ids.ids, ids.count, stops, 2);
    struct answer_request request = {
        .kind = KIND_MESSAGES, .stage = START_CONTENT, .stops = stops, .stop_count = 2};
    const struct json *body = body_of(&answer, &request, &text);
    assert_string_equal(json_member(body, "stop_reason")->text, "stop_sequence");
    assert_string_equal(json_member(body, "stop_sequence")->text, "END");
    assert_string_equal(json_member(json_member(body, "content")->first, "text")->text, "one ");
    free_answer(&answer);
    free(ids.ids);
    buffer_free(&text);
}

/* The lists hold exactly the tokens of reasoning and of content. */
static void logprobs_follow_the_parts(void **state) {
    (void)state;
    struct token_list ids = {0};
    struct buffer text = {0};
    struct answer answer;
    check(tokenizer_encode(tokenizer, "one two</think>three", 20, &ids));
    make_answer(&answer, ids.ids, ids.count, NULL, 0);
    struct answer_request request = {
        .kind = KIND_CHAT, .stage = START_REASONING, .thinking = true, .logprobs = true};
    const struct json *body = body_of(&answer, &request, &text);
    const struct json *logprobs = json_member(json_member(body, "choices")->first, "logprobs");
    assert_int_equal(json_member(logprobs, "reasoning_content")->count, 2);
    assert_int_equal(json_member(logprobs, "content")->count, ids.count - 3);
    request.kind = KIND_RESPONSES;
    body = body_of(&answer, &request, &text);
    const struct json *message = json_member(body, "output")->first->next;
    assert_int_equal(json_member(json_member(message, "content")->first, "logprobs")->count, ids.count - 3);
    free_answer(&answer);
    free(ids.ids);
    buffer_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_is_what_the_engine_cut),
        cmocka_unit_test(calls_in_all_kinds),
        cmocka_unit_test(stop_strings_in_messages),
        cmocka_unit_test(logprobs_follow_the_parts),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

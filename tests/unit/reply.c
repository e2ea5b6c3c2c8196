/* Replies: the published vectors whole and in random pieces, the repaired rules, and what must hold for any
 * output. */
#include "recipe/reply.h"

#include "base/utf8.h"
#include "vectors.h"

#include <ctype.h>
#include <time.h>

#define DSML "｜DSML｜"
#define CALLS "\n\n<" DSML " calls>\n"
#define END_CALLS "\n</" DSML " calls>"
#define INVOKE(name) "<" DSML " invoke name=\"" name "\">\n"
#define END_INVOKE "</" DSML " invoke>"
#define STRING(key, value)                                                                                   \
    "<" DSML " parameter name=\"" key "\" string=\"true\">" value "</" DSML " parameter>\n"
#define RAW(key, value)                                                                                      \
    "<" DSML " parameter name=\"" key "\" string=\"false\">" value "</" DSML " parameter>\n"

static struct tokenizer *tokenizer;
static struct reply_parser *parser;

static int load(void **state) {
    (void)state;
    if (tokenizer_load(SOURCE_DIR "/tests/data/recipe", &tokenizer) != OK ||
        reply_parser_create(tokenizer, &parser) != OK)
        fail_msg("%s", failure_message());
    return 0;
}

static int unload(void **state) {
    (void)state;
    reply_parser_free(parser);
    tokenizer_free(tokenizer);
    return 0;
}

static uint64_t random_state = 1;

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

/* ---- the published vectors ---- */

static void describe(const struct reply *reply, struct buffer *text) {
    static const char *const finishes[] = {"stop", "length", "content_filter", "tool_calls"};
    buffer_clear(text);
    buffer_append_text(text, "{\"reasoning\": ");
    if (reply->thinking)
        buffer_append_json_string(
            text, reply->reasoning.data ? reply->reasoning.data : "", reply->reasoning.bytes);
    else
        buffer_append_text(text, "null");
    buffer_append_text(text, ", \"content\": ");
    buffer_append_json_string(text, reply->content.data ? reply->content.data : "", reply->content.bytes);
    for (size_t i = 0; i < reply->call_count; i++) {
        const struct reply_call *call = &reply->calls[i];
        buffer_append_text(text, call->incomplete ? ", \"cut call\": " : ", \"call\": ");
        buffer_append_json_string(text, call->name.data ? call->name.data : "", call->name.bytes);
        buffer_append_text(text, ", \"arguments\": ");
        buffer_append_json_string(
            text, call->arguments.data ? call->arguments.data : "", call->arguments.bytes);
    }
    buffer_printf(text, ", \"finish\": \"%s\"}", finishes[reply->finish]);
}

static void same_text(
    const struct json *vector, const char *what, const struct json *expected, const struct buffer *found) {
    if (expected->bytes != found->bytes ||
        memcmp(expected->text, found->data ? found->data : "", found->bytes))
        fail_msg("%s: %s: expected '%s', found '%s'", vector_name(vector), what, expected->text,
            found->data ? found->data : "");
}

static void check_result(const struct json *vector, const struct json *result, const struct reply *reply) {
    static const char *const finishes[] = {"stop", "length", "content_filter", "tool_calls"};
    const struct json *reasoning = json_member(result, "reasoning");
    assert_int_equal(reply->thinking, reasoning->kind == JSON_STRING);
    if (reply->thinking)
        same_text(vector, "reasoning", reasoning, &reply->reasoning);
    same_text(vector, "content", json_member(result, "content"), &reply->content);
    const struct json *calls = json_member(result, "tool_calls");
    if (calls->count != reply->call_count)
        fail_msg("%s: expected %zu calls, found %zu", vector_name(vector), calls->count, reply->call_count);
    size_t i = 0;
    for (const struct json *call = calls->first; call; call = call->next, i++) {
        same_text(vector, "name", json_member(call, "name"), &reply->calls[i].name);
        same_text(vector, "arguments", json_member(call, "arguments"), &reply->calls[i].arguments);
    }
    if (!json_is_text(json_member(result, "finish_reason"), finishes[reply->finish]))
        fail_msg("%s: finish_reason is %s", vector_name(vector), finishes[reply->finish]);
}

enum { STOPS_MOST = 8 };

static struct reply_options vector_options(
    const struct json *vector, bool as_ids, struct text_piece stops[STOPS_MOST]) {
    const struct json *from = json_member(vector, "options"),
                      *stage = json_member(from, "thinking_initial_stage"),
                      *list = json_member(from, "stop_sequences");
    struct reply_options options = {.rules = REPLY_PUBLISHED,
        .thinking = stage->kind == JSON_STRING,
        .tools = json_member(from, "parse_tool_calls")->kind == JSON_TRUE,
        .json = json_member(from, "parse_json_output")->kind == JSON_TRUE,
        .as_ids = as_ids,
        .stops = stops};
    options.stage = json_is_text(stage, "ReasoningStart")          ? START_REASONING
                    : json_is_text(stage, "ReasoningContinuation") ? START_REASONING_CONTINUATION
                    : json_is_text(stage, "ContentContinuation")   ? START_CONTENT_CONTINUATION
                                                                   : START_CONTENT;
    if (json_member(from, "starts_in_tool_calls")->kind == JSON_TRUE)
        options.stage = START_CALLS;
    for (const struct json *stop = list->first; stop; stop = stop->next)
        stops[options.stop_count++] = (struct text_piece){.data = stop->text, .bytes = stop->bytes};
    return options;
}

static enum reply_finish vector_finish(const struct json *vector) {
    const struct json *finish = json_member(vector, "finish");
    return json_is_text(finish, "Length")          ? REPLY_LENGTH
           : json_is_text(finish, "ContentFilter") ? REPLY_CONTENT_FILTER
                                                   : REPLY_STOP;
}

/* Feeds pieces of 1..most bytes (most 0: all at once). What reply_held leaves out must never change. */
static const struct reply *feed_text(const struct reply_options *options, const char *text, size_t bytes,
    uint32_t most, enum reply_finish finish) {
    struct buffer settled = {0};
    reply_begin(parser, options);
    while (bytes) {
        size_t piece = most ? 1 + draw(most) : bytes;
        piece = piece < bytes ? piece : bytes;
        reply_feed_text(parser, text, piece);
        text += piece;
        bytes -= piece;
        const struct buffer *content = &reply_so_far(parser)->content;
        size_t final =
            content->bytes - (reply_held(parser) < content->bytes ? reply_held(parser) : content->bytes);
        if (most && final > settled.bytes)
            buffer_append(&settled, content->data + settled.bytes, final - settled.bytes);
    }
    const struct reply *reply = reply_finish(parser, finish);
    assert_true(settled.bytes <= reply->content.bytes);
    if (settled.bytes)
        assert_memory_equal(settled.data, reply->content.data, settled.bytes);
    buffer_free(&settled);
    return reply;
}

static bool check_text_case(const struct json *vector, void *context) {
    (void)context;
    struct text_piece stops[STOPS_MOST];
    struct reply_options options = vector_options(vector, false, stops);
    const struct json *text = json_member(vector, "text");
    const struct json *result = json_member(vector, "result");
    enum reply_finish finish = vector_finish(vector);
    check_result(vector, result, feed_text(&options, text->text, text->bytes, 0, finish));
    check_result(vector, result, feed_text(&options, text->text, text->bytes, 1, finish));
    for (uint32_t round = 0; round < 20; round++)
        check_result(vector, result, feed_text(&options, text->text, text->bytes, 2 + round, finish));
    return true;
}

static void text_vectors(void **state) {
    (void)state;
    assert_int_equal(
        for_each_vector(SOURCE_DIR "/tests/data/recipe/parse_cases.jsonl", check_text_case, NULL), 167);
}

static const struct reply *feed_ids(const struct reply_options *options, const int32_t *ids, size_t count,
    uint32_t most, enum reply_finish finish) {
    reply_begin(parser, options);
    while (count) {
        size_t piece = most ? 1 + draw(most) : count;
        piece = piece < count ? piece : count;
        reply_feed_ids(parser, ids, piece);
        ids += piece;
        count -= piece;
    }
    return reply_finish(parser, finish);
}

static size_t read_ids(const struct json *list, int32_t **ids) {
    size_t count = 0;
    *ids = malloc((list->count + 1) * sizeof **ids);
    assert_non_null(*ids);
    for (const struct json *id = list->first; id; id = id->next) {
        int64_t number;
        assert_true(json_int64(id, &number));
        (*ids)[count++] = (int32_t)number;
    }
    return count;
}

/* What a token stream gives. In JSON mode the published parser's blanks for surrounding text depend on the
 * pieces; ours are the whole text's. */
static const struct json *stream_result(const struct json *vector, const struct json *stream) {
    const struct json *own = json_member(stream, "result");
    bool json = json_member(json_member(vector, "options"), "parse_json_output")->kind == JSON_TRUE;
    return own && !json ? own : json_member(vector, "result");
}

static bool check_ids_case(const struct json *vector, void *context) {
    bool *streams = context; /* the token_stream of text cases */
    const struct json *from = *streams ? json_member(vector, "token_stream") : vector;
    struct text_piece stops[STOPS_MOST];
    struct reply_options options = vector_options(vector, true, stops);
    int32_t *ids;
    int64_t expected = -1;
    size_t count = read_ids(json_member(from, "token_ids"), &ids);
    assert_true(json_int64(json_member(json_member(from, "usage"), "completion_tokens"), &expected));
    for (uint32_t most = 0; most < 8; most++) {
        const struct reply *reply = feed_ids(&options, ids, count, most, vector_finish(vector));
        check_result(vector, stream_result(vector, from), reply);
        if (reply->completion_tokens != expected)
            fail_msg("%s: %d tokens, expected %d", vector_name(vector), (int)reply->completion_tokens,
                (int)expected);
    }
    free(ids);
    return true;
}

static void token_vectors(void **state) {
    (void)state;
    bool streams = false;
    const char *path = SOURCE_DIR "/tests/data/recipe/parse_token_cases.jsonl";
    assert_int_equal(for_each_vector(path, check_ids_case, &streams), 34);
    streams = true;
    path = SOURCE_DIR "/tests/data/recipe/parse_cases.jsonl";
    assert_int_equal(for_each_vector(path, check_ids_case, &streams), 167);
}

/* ---- repaired ---- */

static const struct json *tools_schemas;

static struct reply_options repaired_options(enum start_stage stage) {
    return (struct reply_options){.rules = REPLY_REPAIRED,
        .stage = stage,
        .thinking = stage == START_REASONING,
        .tools = true,
        .tools_schemas = tools_schemas};
}

static void check_repaired(
    const struct reply_options *options, const char *text, enum reply_finish finish, const char *expected) {
    struct buffer found = {0};
    for (uint32_t most = 0; most < 30; most++) {
        describe(feed_text(options, text, strlen(text), most, finish), &found);
        if (strcmp(found.data, expected))
            fail_msg("%s\nexpected %s\nfound    %s", text, expected, found.data);
    }
    struct token_list ids = {0};
    struct reply_options by_id = *options;
    by_id.as_ids = true;
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), &ids), OK);
    for (uint32_t most = 0; most < 5; most++) {
        describe(feed_ids(&by_id, ids.ids, ids.count, most, finish), &found);
        if (strcmp(found.data, expected))
            fail_msg("as ids: %s\nexpected %s\nfound    %s", text, expected, found.data);
    }
    free(ids.ids);
    buffer_free(&found);
}

#define REPLY(content, rest, finish)                                                                         \
    "{\"reasoning\": null, \"content\": \"" content "\"" rest ", \"finish\": \"" finish "\"}"
#define CALL(name, arguments) ", \"call\": \"" name "\", \"arguments\": \"" arguments "\""
#define CUT_CALL(name, arguments) ", \"cut call\": \"" name "\", \"arguments\": \"" arguments "\""
#define CLOSED(text) CALLS INVOKE("f") text END_INVOKE END_CALLS

static void repaired_calls(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"a <" DSML " b", REPLY("a <" DSML " b", "", "stop")},
        {"a <" DSML " invoke name=\" is how it\nbegins",
            REPLY("a <" DSML " invoke name=\\\" is how it\\nbegins", "", "stop")},
        {"a <" DSML " calls> b", REPLY("a <" DSML " calls> b", "", "stop")},
        {"a\n\n<" DSML " calls>\n", REPLY("a", "", "stop")},
        {"a </" DSML " calls> b", REPLY("a </" DSML " calls> b", "", "stop")},
        {CLOSED(STRING("k", "v")), REPLY("", CALL("f", "{\\\"k\\\": \\\"v\\\"}"), "tool_calls")},
        {CLOSED(RAW("k", "not json") RAW("z", "1")),
            REPLY("", CALL("f", "{\\\"k\\\": \\\"not json\\\", \\\"z\\\": 1}"), "tool_calls")},
        {CLOSED(RAW("k", "")), REPLY("", CALL("f", "{\\\"k\\\": \\\"\\\"}"), "tool_calls")},
        {CLOSED(RAW("k", " 5 ")), REPLY("", CALL("f", "{\\\"k\\\":  5 }"), "tool_calls")},
        {CLOSED(RAW("k", "{\"x\": 1")),
            REPLY("", CALL("f", "{\\\"k\\\": \\\"{\\\\\\\"x\\\\\\\": 1\\\"}"), "tool_calls")},
        {CLOSED(RAW("a b\\", "1")), REPLY("", CALL("f", "{\\\"a b\\\\\\\\\\\": 1}"), "tool_calls")},
        {CLOSED("<" DSML " parameter name=\"k\">v</" DSML " parameter>\n"),
            REPLY("", CALL("f", "{\\\"k\\\": \\\"v\\\"}"), "tool_calls")},
        {CLOSED("<" DSML " parameter name=\"k\" string=\"maybe\">7</" DSML " parameter>\n"),
            REPLY("", CALL("f", "{\\\"k\\\": 7}"), "tool_calls")},
        {CLOSED(""), REPLY("", CALL("f", "{}"), "tool_calls")},
        {CLOSED("junk\n"), REPLY("\\njunk\\n", CALL("f", "{}"), "tool_calls")},
        {CALLS INVOKE("f") STRING("k", "v") INVOKE("g") END_INVOKE END_CALLS,
            REPLY("", CALL("f", "{\\\"k\\\": \\\"v\\\"}") CALL("g", "{}"), "tool_calls")},
        {CALLS INVOKE("f") "<" DSML " parameter name=\"k\" string=\"true\">v\n" END_INVOKE END_CALLS "x",
            REPLY("x", CALL("f", "{\\\"k\\\": \\\"v\\\\n\\\"}"), "tool_calls")},
        {"one" CLOSED("") "\ntwo" CLOSED("") "three",
            REPLY("one\\ntwothree", CALL("f", "{}") CALL("f", "{}"), "tool_calls")},
        {"\n<" DSML " invoke name=\"f\">" END_INVOKE " x", REPLY(" x", CALL("f", "{}"), "tool_calls")},
        {CLOSED("<" DSML " parameter name=\"k" STRING("z", "v")),
            REPLY("<" DSML " parameter name=\\\"k", CALL("f", "{\\\"z\\\": \\\"v\\\"}"), "tool_calls")},
    };
    struct reply_options options = repaired_options(START_CONTENT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_repaired(&options, cases[i].text, REPLY_STOP, cases[i].expected);
    options.stage = START_CALLS;
    check_repaired(&options, "hello", REPLY_STOP, REPLY("hello", "", "stop"));
}

static void repaired_cuts(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"ok\n\n<" DSML " ca", REPLY("ok\\n\\n<" DSML " ca", "", "length")},
        {"ok" CALLS INVOKE("f") "<" DSML " par", REPLY("ok", CUT_CALL("f", "{}"), "length")},
        {"ok" CALLS INVOKE("f") "<" DSML " parameter name=\"k", REPLY("ok", CUT_CALL("f", "{}"), "length")},
        {"ok" CALLS INVOKE("f") "<" DSML " parameter name=\"k\" string=\"true\">who </" DSML,
            REPLY("ok", CUT_CALL("f", "{\\\"k\\\": \\\"who </" DSML "\\\"}"), "length")},
        {"ok" CALLS INVOKE("f") "<" DSML " parameter name=\"k\" string=\"false\">[1",
            REPLY("ok", CUT_CALL("f", "{\\\"k\\\": \\\"[1\\\"}"), "length")},
        {"ok" CALLS INVOKE("f") STRING("k", "v"),
            REPLY("ok", CUT_CALL("f", "{\\\"k\\\": \\\"v\\\"}"), "length")},
        {"ok" CALLS "<" DSML " invoke name=\"sea", REPLY("ok", CUT_CALL("sea", "{}"), "length")},
    };
    struct reply_options options = repaired_options(START_CONTENT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_repaired(&options, cases[i].text, REPLY_LENGTH, cases[i].expected);
    options = repaired_options(START_REASONING);
    check_repaired(&options, "r" CLOSED("") "</think>\n\nSure", REPLY_STOP,
        "{\"reasoning\": \"r\", \"content\": \"Sure\"" CALL("f", "{}") ", \"finish\": \"tool_calls\"}");
}

static void repaired_json(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"{\"a\": \"]}\\\"\"} tail", REPLY("{\\\"a\\\": \\\"]}\\\\\\\"\\\"}", "", "stop")},
        {"Here:\n```json\n{\"a\":1}\n```\nDone.", REPLY("{\\\"a\\\":1}", "", "stop")},
        {"Use [x] then {\"a\":1}", REPLY("{\\\"a\\\":1}", "", "stop")},
        {"no json here", REPLY("no json here", "", "stop")},
        {"\n\n{\"a\":", REPLY("{\\\"a\\\":", "", "stop")},
        {"Here: {\"a\":", REPLY("Here: {\\\"a\\\":", "", "stop")},
        {"{\"a\": 1}" CLOSED(STRING("k", "v")),
            REPLY("{\\\"a\\\": 1}", CALL("f", "{\\\"k\\\": \\\"v\\\"}"), "tool_calls")},
        {"Look:" CLOSED(""), REPLY("Look:", CALL("f", "{}"), "tool_calls")},
        {"a</think>{\"q\":1}</think>", REPLY("{\\\"q\\\":1}", "", "stop")},
    };
    struct reply_options options = repaired_options(START_CONTENT);
    options.json = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_repaired(&options, cases[i].text, REPLY_STOP, cases[i].expected);
}

static void typed_arguments(void **state) {
    (void)state;
    static const char schemas[] =
        "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},"
        "\"i\":{\"type\":\"integer\"},\"n\":{\"type\":[\"string\",\"null\"]},\"b\":{\"type\":\"boolean\"},"
        "\"o\":{\"type\":\"object\"},\"any\":{}}}},{\"type\":\"function\",\"function\":{\"name\":\"g\","
        "\"parameters\":{\"properties\":{\"s\":{\"type\":[\"string\"]}}}}}]";
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {RAW("s", "5"), "{\\\"s\\\": \\\"5\\\"}"},
        {RAW("s", "\\\"q\\\""), "{\\\"s\\\": \\\"\\\\\\\\\\\\\\\"q\\\\\\\\\\\\\\\"\\\"}"},
        {RAW("s", "\"q\""), "{\\\"s\\\": \\\"q\\\"}"},
        {STRING("i", "5"), "{\\\"i\\\": 5}"},
        {STRING("i", "5.5"), "{\\\"i\\\": \\\"5.5\\\"}"},
        {STRING("i", "five"), "{\\\"i\\\": \\\"five\\\"}"},
        {RAW("n", "null"), "{\\\"n\\\": null}"},
        {STRING("n", "null"), "{\\\"n\\\": \\\"null\\\"}"},
        {STRING("b", "true"), "{\\\"b\\\": true}"},
        {STRING("b", "1"), "{\\\"b\\\": \\\"1\\\"}"},
        {STRING("o", "{\"x\": [1]}"), "{\\\"o\\\": {\\\"x\\\": [1]}}"},
        {STRING("any", "5"), "{\\\"any\\\": \\\"5\\\"}"},
        {STRING("unknown", "5"), "{\\\"unknown\\\": \\\"5\\\"}"},
    };
    struct json_document *document;
    struct buffer text = {0}, expected = {0};
    assert_int_equal(json_document_create(&document), OK);
    assert_int_equal(json_parse(document, schemas, strlen(schemas), &tools_schemas), OK);
    struct reply_options options = repaired_options(START_CONTENT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buffer_clear(&text);
        buffer_clear(&expected);
        buffer_printf(&text, CALLS INVOKE("f") "%s" END_INVOKE END_CALLS, cases[i].text);
        buffer_printf(&expected, REPLY("", CALL("f", "%s"), "tool_calls"), cases[i].expected);
        check_repaired(&options, text.data, REPLY_STOP, expected.data);
    }
    check_repaired(&options, CALLS INVOKE("g") RAW("s", "5") END_INVOKE END_CALLS, REPLY_STOP,
        REPLY("", CALL("g", "{\\\"s\\\": \\\"5\\\"}"), "tool_calls"));
    tools_schemas = NULL;
    buffer_free(&text);
    buffer_free(&expected);
    json_document_free(document);
}

/* ---- what holds for any output ---- */

static const char *const fragments[] = {"</think>", "<" DSML " calls>", "<" DSML, "</" DSML " calls>",
    "<" DSML " invoke name=\"", "</" DSML " invoke>", "\">", "\"", "<" DSML " parameter name=\"",
    "\" string=\"true\">", "\" string=\"false\">", "</" DSML " parameter>", "<", "</", "\n", "\n\n", " ", "{",
    "}", "[", "]", "```json\n", "\n```", "\\", "\xff", "\xe2\x82", "é", "👩", "<" DSML "tool_calls>"};
enum { FRAGMENTS = sizeof fragments / sizeof *fragments };

/* Fragments with numbered words between them; returns how many words. */
static uint32_t random_output(struct buffer *text) {
    uint32_t pieces = 1 + draw(40), words = 0;
    buffer_clear(text);
    for (uint32_t i = 0; i < pieces; i++)
        if (draw(3))
            buffer_append_text(text, fragments[draw(FRAGMENTS)]);
        else
            buffer_printf(text, "w%ux", words++);
    return words;
}

static bool holds_word(const struct reply *reply, const char *word) {
    bool found = (reply->reasoning.data && strstr(reply->reasoning.data, word)) ||
                 (reply->content.data && strstr(reply->content.data, word));
    for (size_t i = 0; i < reply->call_count; i++)
        found = found || (reply->calls[i].name.data && strstr(reply->calls[i].name.data, word)) ||
                (reply->calls[i].arguments.data && strstr(reply->calls[i].arguments.data, word));
    return found;
}

static void check_arguments(const struct reply *reply) {
    struct json_document *document;
    assert_int_equal(json_document_create(&document), OK);
    for (size_t i = 0; i < reply->call_count; i++) {
        const struct buffer *text = &reply->calls[i].arguments;
        const struct json *value = NULL;
        if (json_parse(document, text->data, text->bytes, &value) != OK)
            fail_msg("arguments %s: %s", text->data, failure_message());
        assert_int_equal(value->kind, JSON_OBJECT);
    }
    json_document_free(document);
}

/* No word is lost but in a parameter's tag that the end of the output cut. */
static void check_words(const struct reply *reply, const struct buffer *text, uint32_t words) {
    const char *tag = NULL;
    for (const char *at = text->data; at && (at = strstr(at, " parameter name=\"")); at++)
        tag = at;
    for (uint32_t w = 0; w < words; w++) {
        char word[16];
        snprintf(word, sizeof word, "w%ux", w);
        const char *place = strstr(text->data, word);
        if (!holds_word(reply, word) && !(tag && place > tag))
            fail_msg("'%s' lost its word %s: content '%s'", text->data, word, reply->content.data);
    }
}

static void nothing_is_lost(void **state) {
    (void)state;
    struct buffer text = {0}, whole = {0}, pieces = {0};
    for (int round = 0; round < 20000; round++) {
        uint32_t words = random_output(&text);
        struct reply_options options = repaired_options((enum start_stage)draw(5));
        enum reply_finish finish = draw(2) ? REPLY_STOP : REPLY_LENGTH;
        options.thinking = true;
        options.rules = draw(4) ? REPLY_REPAIRED : REPLY_PUBLISHED;
        options.json = draw(8) == 0;
        const struct reply *reply = feed_text(&options, text.data, text.bytes, 0, finish);
        describe(reply, &whole);
        if (options.rules == REPLY_REPAIRED)
            check_arguments(reply);
        if (options.rules == REPLY_REPAIRED && !options.json)
            check_words(reply, &text, words);
        describe(feed_text(&options, text.data, text.bytes, 1 + draw(9), finish), &pieces);
        if (strcmp(whole.data, pieces.data))
            fail_msg("'%s'\nwhole     %s\nin pieces %s", text.data, whole.data, pieces.data);
    }
    buffer_free(&text);
    buffer_free(&whole);
    buffer_free(&pieces);
}

/* Without tools the parts are the text but for the marker and the newlines around it. */
static void parts_are_the_text(void **state) {
    (void)state;
    static const char *const pieces[] = {"a", "<", "</thin", DSML, "\n", "é", "<" DSML " calls>", " "};
    struct buffer text = {0}, joined = {0};
    for (int round = 0; round < 5000; round++) {
        buffer_clear(&text);
        buffer_append(&text, "r", 1);
        for (uint32_t i = draw(30); i > 0; i--)
            buffer_append_text(&text, pieces[draw(sizeof pieces / sizeof *pieces)]);
        size_t close = text.bytes;
        buffer_append_text(&text, "!</think>.");
        for (uint32_t i = draw(30); i > 0; i--)
            buffer_append_text(&text, pieces[draw(sizeof pieces / sizeof *pieces)]);
        struct reply_options options = {.stage = START_REASONING, .thinking = true};
        options.rules = draw(2) ? REPLY_REPAIRED : REPLY_PUBLISHED;
        const struct reply *reply = feed_text(&options, text.data, text.bytes, 1 + draw(5), REPLY_STOP);
        buffer_clear(&joined);
        buffer_append(&joined, reply->reasoning.data, reply->reasoning.bytes);
        assert_int_equal(joined.bytes, close + 1);
        buffer_append_text(&joined, "</think>");
        buffer_append(&joined, reply->content.data, reply->content.bytes);
        assert_int_equal(joined.bytes, text.bytes);
        assert_memory_equal(joined.data, text.data, text.bytes);
    }
    buffer_free(&text);
    buffer_free(&joined);
}

static void characters_over_pieces(void **state) {
    (void)state;
    static const char text[] = "r</think>é€😀\xf0\x9f\x98 \xe2\x82";
    static const char expected[] = "é€😀\xEF\xBF\xBD \xEF\xBF\xBD";
    struct reply_options options = {.rules = REPLY_REPAIRED, .stage = START_REASONING, .thinking = true};
    for (uint32_t most = 0; most < 6; most++)
        assert_string_equal(
            feed_text(&options, text, sizeof text - 1, most, REPLY_STOP)->content.data, expected);
    const int32_t ids[] = {67, 128822, 175, 256}; /* a </think> and half a character */
    options.as_ids = true;
    const struct reply *reply = feed_ids(&options, ids, 4, 1, REPLY_STOP);
    assert_string_equal(reply->content.data, UTF8_REPLACEMENT);
    assert_int_equal(reply->completion_tokens, 4);
    assert_int_equal(reply->reasoning_tokens, 1);
    assert_int_equal(reply->content_token, 2);
}

static void token_counts(void **state) {
    (void)state;
    struct token_list ids = {0};
    static const char text[] = "one two\n\n<" DSML " calls>\n" INVOKE("f") END_INVOKE END_CALLS;
    struct reply_options options = repaired_options(START_REASONING);
    options.as_ids = true;
    assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text - 1, &ids), OK);
    size_t marker = 0;
    while (ids.ids[marker] != 128825)
        marker++;
    const struct reply *reply = feed_ids(&options, ids.ids, ids.count, 3, REPLY_STOP);
    assert_int_equal(reply->call_count, 1);
    assert_int_equal(reply->reasoning_tokens, marker - 1); /* `<` is a token of its own */
    assert_false(reply->in_reasoning);
    reply = feed_ids(&options, ids.ids, 2, 0, REPLY_LENGTH);
    assert_int_equal(reply->reasoning_tokens, 2);
    assert_true(reply->in_reasoning);
    free(ids.ids);
}

/* 8 MB in a second or so, whatever they are. */
static void linear_time(void **state) {
    (void)state;
    static const char *const patterns[] = {"<", "\n", "<" DSML, "<" DSML " invoke name=\"", "\"", "{", "[1]",
        "aab", "<" DSML " parameter name=\"", "\n\n<" DSML " calls>\n</"};
    struct buffer text = {0};
    struct text_piece stops[] = {{"aaaaaaaab", 9}, {"\n\n\n\n!", 5}, {"[1][1][1]!", 10}};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
        for (int rules = 0; rules < 4; rules++) {
            struct reply_options options = repaired_options(START_CONTENT);
            options.rules = rules & 1 ? REPLY_REPAIRED : REPLY_PUBLISHED;
            options.json = rules & 2;
            options.stops = stops;
            options.stop_count = 3;
            buffer_clear(&text);
            while (text.bytes < 1 << 20)
                buffer_append_text(&text, patterns[p]);
            struct timespec begin, end;
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
            feed_text(&options, text.data, text.bytes, 0, REPLY_STOP);
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
            double seconds =
                (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
            if (seconds > 2)
                fail_msg("1 MB of '%s' took %.1f s", patterns[p], seconds);
        }
    buffer_free(&text);
}

static void call_ids(void **state) {
    (void)state;
    struct buffer a = {0}, b = {0};
    reply_call_id("seed", 4, 0, &a);
    reply_call_id("seed", 4, 0, &b);
    assert_string_equal(a.data, b.data);
    assert_int_equal(a.bytes, 8 + 24);
    assert_memory_equal(a.data, "call_00_", 8);
    for (size_t i = 8; i < a.bytes; i++)
        assert_true(i < 28 ? isalnum((unsigned char)a.data[i]) : isdigit((unsigned char)a.data[i]));
    buffer_clear(&b);
    reply_call_id("seed", 4, 1, &b);
    assert_string_not_equal(a.data + 8, b.data + 8);
    buffer_clear(&b);
    reply_call_id("other", 5, 0, &b);
    assert_string_not_equal(a.data, b.data);
    buffer_free(&a);
    buffer_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_vectors),
        cmocka_unit_test(token_vectors),
        cmocka_unit_test(repaired_calls),
        cmocka_unit_test(repaired_cuts),
        cmocka_unit_test(repaired_json),
        cmocka_unit_test(typed_arguments),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(parts_are_the_text),
        cmocka_unit_test(characters_over_pieces),
        cmocka_unit_test(token_counts),
        cmocka_unit_test(linear_time),
        cmocka_unit_test(call_ids),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

#include "recipe/chat.h"

#include "vectors.h"

#define DATA SOURCE_DIR "/tests/data/recipe"

static struct tokenizer *tokenizer;
static struct chat_format *format;

static int setup(void **state) {
    (void)state;
    if (tokenizer_load(DATA, &tokenizer) != OK || chat_format_create(tokenizer, &format) != OK) {
        fprintf(stderr, "%s\n", error_message());
        return 1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    chat_format_free(format);
    tokenizer_free(tokenizer);
    return 0;
}

/* ---- published vectors ---- */

static bool plain_content(const struct json *content) {
    if (!content || content->kind == JSON_NULL || content->kind == JSON_STRING)
        return true;
    for (const struct json *part = content->first; part; part = part->next) {
        if (!json_is_text(json_member(part, "type"), "text"))
            return false;
    }
    return true;
}

/* Whether the vector's body uses only what this version covers. */
static bool covered(const struct json *body) {
    const struct json *tools = json_member(body, "tools"), *choice = json_member(body, "tool_choice");
    const struct json *response_format = json_member(body, "response_format");
    if (tools && tools->count)
        return false;
    if (choice && choice->kind != JSON_NULL && !json_is_text(choice, "auto") && !json_is_text(choice, "none"))
        return false;
    if (response_format && response_format->kind != JSON_NULL &&
        !json_is_text(json_member(response_format, "type"), "text"))
        return false;
    for (const struct json *message = json_member(body, "messages")->first; message;
         message = message->next) {
        const struct json *role = json_member(message, "role");
        if (!json_is_text(role, "system") && !json_is_text(role, "user") && !json_is_text(role, "assistant"))
            return false;
        if (json_member(message, "tool_calls") || !plain_content(json_member(message, "content")))
            return false;
    }
    return true;
}

static bool check_body(const struct json *vector, const struct json *body) {
    struct chat_prompt prompt = {0};
    struct refusal refusal;
    bool accepted = false;
    if (!covered(body))
        return false;
    assert_int_equal(chat_format_render(format, body, &prompt, &refusal, &accepted), OK);
    if (!accepted)
        fail_msg("%s: %s", vector_name(vector), refusal.message);
    check_ids(vector, prompt.ids.ids, prompt.ids.count, json_member(vector, "token_ids"));
    assert_int_equal(prompt.thinking, json_member(vector, "thinking_mode")->kind == JSON_TRUE);
    const struct json *stage = json_member(json_member(vector, "parsing"), "thinking_initial_stage");
    bool reasoning = json_is_text(stage, "ReasoningStart") || json_is_text(stage, "ReasoningContinuation");
    assert_int_equal(prompt.starts_in_reasoning, reasoning);
    free(prompt.ids.ids);
    return true;
}

static bool check_vector(const struct json *vector, void *context) {
    (void)context;
    const struct json *raw = json_member(vector, "request_raw");
    if (json_member(vector, "error") || json_member(json_member(vector, "options"), "default_thinking_mode"))
        return false;
    if (!raw)
        return check_body(vector, json_member(vector, "request"));
    struct json_document *document = NULL;
    const struct json *body = NULL;
    assert_int_equal(json_document_create(&document), OK);
    assert_int_equal(json_parse(document, raw->text, raw->bytes, &body), OK);
    bool checked = check_body(vector, body);
    json_document_free(document);
    return checked;
}

static void renders_the_published_vectors(void **state) {
    (void)state;
    assert_int_equal(for_each_vector(DATA "/chat_cases.jsonl", check_vector, NULL), 152);
}

/* ---- refusals ---- */

static void check_refused(const char *text, const char *code, const char *param, const char *message) {
    struct json_document *document = NULL;
    const struct json *body = NULL;
    struct chat_prompt prompt = {0};
    struct refusal refusal;
    bool accepted = true;
    assert_int_equal(json_document_create(&document), OK);
    assert_int_equal(json_parse(document, text, strlen(text), &body), OK);
    assert_int_equal(chat_format_render(format, body, &prompt, &refusal, &accepted), OK);
    if (accepted)
        fail_msg("accepted: %s", text);
    assert_string_equal(refusal.code, code);
    assert_string_equal(refusal.param, param);
    assert_string_equal(refusal.message, message);
    free(prompt.ids.ids);
    json_document_free(document);
}

#define HI "{\"role\":\"user\",\"content\":\"hi\"}"
#define WITH_HI "{\"messages\":[" HI "],"
#define LEAVE " is not supported by this version; leave it out"

static void names_what_it_refuses(void **state) {
    (void)state;
    static const struct {
        const char *body, *code, *param, *message;
    } cases[] = {
        {"{}", CODE_MISSING, "messages",
            "messages: expected an array of messages, found nothing: the field is required"},
        {"{\"messages\":[]}", CODE_VALUE, "messages",
            "messages: expected at least one message, found an empty array"},
        {"{\"messages\":\"x\"}", CODE_VALUE, "messages",
            "messages: expected an array of messages, found \"x\""},
        {"{\"messages\":[" HI ",5]}", CODE_VALUE, "messages[1]",
            "messages[1]: expected an object with role and content, found 5"},
        {"{\"messages\":[{\"content\":\"x\"}]}", CODE_MISSING, "messages[0].role",
            "messages[0].role: expected system, developer, user or assistant, found nothing: the field is "
            "required"},
        {"{\"messages\":[{\"role\":\"boss\",\"content\":\"x\"}]}", CODE_VALUE, "messages[0].role",
            "messages[0].role: expected system, developer, user or assistant, found \"boss\""},
        {"{\"messages\":[" HI ",{\"role\":\"tool\",\"content\":\"x\"}]}", CODE_UNSUPPORTED,
            "messages[1].role",
            "messages[1].role: \"tool\" is not supported by this version: send system, user and assistant "
            "messages"},
        {"{\"messages\":[{\"role\":\"latest_reminder\",\"content\":\"x\"}]}", CODE_UNSUPPORTED,
            "messages[0].role",
            "messages[0].role: \"latest_reminder\" is not supported by this version: send system, user and "
            "assistant "
            "messages"},
        {"{\"messages\":[{\"role\":\"user\"}]}", CODE_MISSING, "messages[0].content",
            "messages[0].content: expected a string or an array of text parts, found nothing: the field is "
            "required"},
        {"{\"messages\":[" HI "," HI ",{\"role\":\"assistant\",\"content\":null}]}", CODE_TYPE,
            "messages[2].content",
            "messages[2].content: expected a string or an array of text parts, found null"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
         "\"image_url\"}]}]}",
            CODE_UNSUPPORTED, "messages[0].content[1].type",
            "messages[0].content[1].type: \"image_url\"" LEAVE},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":7}]}]}", CODE_VALUE,
            "messages[0].content[0].text", "messages[0].content[0].text: expected a string, found 7"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[\"a\"]}]}", CODE_VALUE, "messages[0].content[0]",
            "messages[0].content[0]: expected an object like {\"type\": \"text\", \"text\": \"...\"}, found "
            "\"a\""},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{}]}]}", CODE_MISSING, "messages[0].content[0].type",
            "messages[0].content[0].type: expected \"text\", found nothing: the field is required"},
        {"{\"messages\":[" HI ",{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[{}]}]}",
            CODE_UNSUPPORTED, "messages[1].tool_calls", "messages[1].tool_calls:" LEAVE},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":true}," HI "]}", CODE_VALUE,
            "messages[0].prefix", "messages[0].prefix: true is for the last message only"},
        {"{\"messages\":[" HI ",{\"role\":\"assistant\",\"content\":\"x\",\"prefix\":\"yes\"}]}", CODE_VALUE,
            "messages[1].prefix", "messages[1].prefix: expected true or false, found \"yes\""},
        {"{\"messages\":[" HI ",{\"role\":\"assistant\",\"content\":\"x\",\"reasoning_content\":5}]}",
            CODE_VALUE, "messages[1].reasoning_content",
            "messages[1].reasoning_content: expected a string, found 5"},
        {WITH_HI "\"tools\":[{}]}", CODE_UNSUPPORTED, "tools", "tools:" LEAVE},
        {WITH_HI "\"tools\":{}}", CODE_TYPE, "tools", "tools: expected an array, found object"},
        {WITH_HI "\"tool_choice\":\"required\"}", CODE_UNSUPPORTED, "tool_choice",
            "tool_choice: \"required\"" LEAVE},
        {WITH_HI "\"functions\":[]}", CODE_UNSUPPORTED, "functions", "functions:" LEAVE},
        {WITH_HI "\"response_format\":{\"type\":\"json_object\"}}", CODE_UNSUPPORTED, "response_format.type",
            "response_format.type: \"json_object\"" LEAVE},
        {WITH_HI "\"response_format\":\"text\"}", CODE_VALUE, "response_format",
            "response_format: expected an object like {\"type\": \"text\"}, found \"text\""},
        {WITH_HI "\"thinking\":true}", CODE_TYPE, "thinking",
            "thinking: expected an object like {\"type\": \"disabled\"}, found true"},
        {WITH_HI "\"thinking\":{}}", CODE_MISSING, "thinking.type",
            "thinking.type: expected \"enabled\", \"adaptive\" or \"disabled\", found nothing: the field is "
            "required"},
        {WITH_HI "\"thinking\":{\"type\":\"maybe\"}}", CODE_VALUE, "thinking.type",
            "thinking.type: expected \"enabled\", \"adaptive\" or \"disabled\", found \"maybe\""},
        {WITH_HI "\"reasoning_effort\":\"huge\"}", CODE_VALUE, "reasoning_effort",
            "reasoning_effort: expected none, minimal, low, medium, high, xhigh, ultra or max, found "
            "\"huge\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(cases[i].body, cases[i].code, cases[i].param, cases[i].message);
}

/* A refused body must leave nothing behind for the next. */
static void developer_is_system(void **state) {
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"system\",\"content\":\"be brief\"}," HI
        "],\"thinking\":{\"type\":\"disabled\"}}",
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"}," HI ",7]}",
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"be brief\"}," HI
        "],\"thinking\":{\"type\":\"disabled\"}}",
    };
    struct token_list lists[3] = {{0}};
    struct json_document *document = NULL;
    struct chat_prompt prompt = {0};
    assert_int_equal(json_document_create(&document), OK);
    for (int i = 0; i < 3; i++) {
        const struct json *body = NULL;
        struct refusal refusal;
        bool accepted;
        assert_int_equal(json_parse(document, bodies[i], strlen(bodies[i]), &body), OK);
        assert_int_equal(chat_format_render(format, body, &prompt, &refusal, &accepted), OK);
        assert_int_equal(accepted, i != 1);
        token_list_append(&lists[i], prompt.ids.ids, prompt.ids.count);
    }
    assert_int_equal(lists[0].count, lists[2].count);
    assert_memory_equal(lists[0].ids, lists[2].ids, lists[0].count * sizeof(int32_t));
    for (int i = 0; i < 3; i++)
        free(lists[i].ids);
    free(prompt.ids.ids);
    json_document_free(document);
}

static void excerpts_stay_valid_utf8(void **state) {
    (void)state;
    char text[400] = "{\"messages\":[{\"role\":\"";
    for (int i = 0; i < 50; i++)
        strcat(text, "\xE4\xBD\xA0");
    strcat(text, "\"}]}");
    check_refused(text, CODE_VALUE, "messages[0].role",
        "messages[0].role: expected system, developer, user or assistant, found "
        "\"\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0"
        "\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0\xE4\xBD\xA0..."
        "\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_the_published_vectors),
        cmocka_unit_test(names_what_it_refuses),
        cmocka_unit_test(developer_is_system),
        cmocka_unit_test(excerpts_stay_valid_utf8),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

#include "recipe/toolkit.h"

#include <stdlib.h> /* calloc, free */

/* The toolkit's own list; this program renders all of them for V4.1. */
static const char *const MODEL_NAMES[] = {"DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro", NULL};

enum result toolkit_create(const struct tokenizer *tokenizer, struct toolkit **result) {
    enum result status = OK;
    struct toolkit *toolkit = calloc(1, sizeof *toolkit);
    if (!toolkit)
        return fail(ERROR_MEMORY, "no memory for rendering requests");
    TRY_GOTO(status, prompt_format_create(tokenizer, &toolkit->format), done);
    TRY_GOTO(status, json_document_create(&toolkit->document), done);
    *result = toolkit;
    toolkit = NULL;
done:
    toolkit_free(toolkit);
    return status;
}

void toolkit_free(struct toolkit *toolkit) {
    if (!toolkit)
        return;
    prompt_format_free(toolkit->format);
    json_document_free(toolkit->document);
    conversation_free(&toolkit->conversation);
    prompt_free(&toolkit->prompt);
    free(toolkit);
}

static bool read_body(struct toolkit *toolkit, enum request_kind kind, const struct json *body,
    const struct toolkit_policies *policies) {
    struct body_reader reader = {.conversation = &toolkit->conversation,
        .refusal = &toolkit->refusal,
        .policies = policies,
        .model_names = MODEL_NAMES,
        .toolkit = true};
    conversation_clear(&toolkit->conversation);
    toolkit->sampling = (struct toolkit_sampling){0};
    if (body->kind != JSON_OBJECT)
        return refuse_value(&toolkit->refusal, "body", "an object", body);
    switch (kind) {
    case KIND_CHAT:
        return chat_body_read(&reader, body, &toolkit->sampling);
    case KIND_RESPONSES:
        return responses_body_read(&reader, body, &toolkit->sampling);
    case KIND_MESSAGES:
        return messages_body_read(&reader, body, &toolkit->sampling);
    }
    return false;
}

enum result toolkit_render(struct toolkit *toolkit, enum request_kind kind, const struct json *body,
    const struct toolkit_policies *policies, bool *accepted) {
    *accepted = read_body(toolkit, kind, body, policies);
    if (!*accepted)
        return OK;
    TRY(prompt_render(toolkit->format, &toolkit->conversation, &toolkit->prompt));
    return prompt_encode(toolkit->format, &toolkit->prompt);
}

enum result toolkit_render_text(struct toolkit *toolkit, enum request_kind kind, struct text_piece text,
    const struct toolkit_policies *policies, bool *accepted) {
    const struct json *body = NULL;
    *accepted = false;
    enum result parsed = json_parse(toolkit->document, text.data, text.bytes, &body);
    if (parsed == ERROR_INPUT) {
        refuse(&toolkit->refusal, CODE_VALUE, "body", "the body is no JSON: %.900s", failure_message());
        return OK;
    }
    TRY(parsed);
    return toolkit_render(toolkit, kind, body, policies, accepted);
}

/* ---- options ---- */

static enum result read_flag(const struct json *value, bool *flag) {
    if (value->kind != JSON_TRUE && value->kind != JSON_FALSE)
        return fail(ERROR_INPUT, "options.%s: expected true or false, found %s", value->key,
            json_excerpt(value).text);
    *flag = value->kind == JSON_TRUE;
    return OK;
}

static enum result read_choice(const struct json *value, const char *no, const char *yes, bool *flag) {
    *flag = json_is_text(value, yes);
    if (*flag || json_is_text(value, no))
        return OK;
    return fail(ERROR_INPUT, "options.%s: expected \"%s\" or \"%s\", found %s", value->key, no, yes,
        json_excerpt(value).text);
}

static enum result read_bound(const struct json *value, int32_t *bound) {
    int64_t number;
    if (!json_int64(value, &number) || number < 1 || number > INT32_MAX)
        return fail(ERROR_INPUT, "options.%s: expected an integer from 1 to %d, found %s", value->key,
            INT32_MAX, json_excerpt(value).text);
    *bound = (int32_t)number;
    return OK;
}

enum result toolkit_read_policies(const struct json *options, struct toolkit_policies *policies) {
    *policies = TOOLKIT_DEFAULTS;
    if (is_absent(options))
        return OK;
    if (options->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "options: expected an object, found %s", json_kind_name(options));
    for (const struct json *value = options->first; value; value = value->next) {
        if (!strcmp(value->key, "default_thinking_mode"))
            TRY(read_flag(value, &policies->default_thinking));
        else if (!strcmp(value->key, "reasoning_content_behavior"))
            TRY(read_choice(value, "FillEmpty", "Reject", &policies->reject_missing_reasoning));
        else if (!strcmp(value->key, "responses_web_search"))
            TRY(read_choice(value, "Drop", "Reject", &policies->responses_reject_web_search));
        else if (!strcmp(value->key, "messages_web_search"))
            TRY(read_choice(value, "Reject", "Drop", &policies->messages_drop_web_search));
        else if (!strcmp(value->key, "thinking_max_tokens_upper_bound"))
            TRY(read_bound(value, &policies->max_tokens_thinking));
        else if (!strcmp(value->key, "non_thinking_max_tokens_upper_bound"))
            TRY(read_bound(value, &policies->max_tokens_plain));
        else
            return fail(ERROR_INPUT, "options.%s: unknown option", value->key);
    }
    return OK;
}

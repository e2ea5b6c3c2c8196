#include "recipe/message.h"

#include <stdio.h>  /* snprintf */
#include <string.h> /* strstr */

static void append_int(struct buffer *text, int64_t value) {
    char digits[24], *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0)
        *--at = '-';
    buffer_append(text, at, (size_t)(digits + sizeof digits - at));
}

static void append_member_int(struct buffer *text, const char *name, int64_t value) {
    buffer_append_text(text, name);
    append_int(text, value);
}

static void append_string(struct buffer *text, const struct buffer *string) {
    buffer_append_json_string(text, string->data ? string->data : "", string->bytes);
}

/* Why it ended, with stop strings counted in. */
static enum reply_finish finish_of(const struct message_choice *choice) {
    return choice->stopped ? REPLY_STOP : choice->reply->finish;
}

static void append_call_id(const char *id, int32_t choice, size_t call, struct buffer *text) {
    char seed[128];
    int bytes = snprintf(seed, sizeof seed, "%s %d", id, choice);
    buffer_append(text, "\"", 1);
    reply_call_id(seed, (size_t)bytes < sizeof seed ? (size_t)bytes : sizeof seed - 1, call, text);
    buffer_append(text, "\"", 1);
}

void message_append_head(enum request_kind kind, const struct message_head *head, struct buffer *text) {
    static const char *const begins[] = {[KIND_CHAT] = "{\"id\":\"chatcmpl-",
        [KIND_RESPONSES] = "{\"id\":\"resp_",
        [KIND_MESSAGES] = "{\"id\":\"msg_"};
    static const char *const objects[] = {[KIND_CHAT] = "\",\"object\":\"chat.completion\",\"created\":",
        [KIND_RESPONSES] = "\",\"object\":\"response\",\"created_at\":",
        [KIND_MESSAGES] = "\",\"type\":\"message\",\"role\":\"assistant\""};
    buffer_append_text(text, begins[kind]);
    buffer_append_text(text, head->id);
    buffer_append_text(text, objects[kind]);
    if (kind != KIND_MESSAGES)
        append_int(text, head->created);
    buffer_append_text(text, ",\"model\":");
    buffer_append_json_string(text, head->model.data, head->model.bytes);
    if (kind == KIND_CHAT) {
        buffer_append_text(text, ",\"system_fingerprint\":\"");
        buffer_append_text(text, head->system_fingerprint);
        buffer_append(text, "\"", 1);
    }
}

/* ---- Chat Completions ---- */

static void append_tool_calls(const char *id, int32_t index, const struct reply *reply, struct buffer *text) {
    buffer_append_text(text, ",\"tool_calls\":[");
    for (size_t i = 0; i < reply->call_count; i++) {
        const struct reply_call *call = &reply->calls[i];
        append_member_int(text, i ? ",{\"index\":" : "{\"index\":", (int64_t)i);
        buffer_append_text(text, ",\"id\":");
        append_call_id(id, index, i, text);
        buffer_append_text(text, ",\"type\":\"function\",\"function\":{\"name\":");
        append_string(text, &call->name);
        buffer_append_text(text, ",\"arguments\":");
        append_string(text, &call->arguments);
        buffer_append_text(text, call->incomplete ? "},\"status\":\"incomplete\"}" : "}}");
    }
    buffer_append(text, "]", 1);
}

void message_append_choice(
    const char *id, int32_t index, const struct message_choice *choice, struct buffer *text) {
    static const char *const finishes[] = {[REPLY_STOP] = "\"stop\"}",
        [REPLY_LENGTH] = "\"length\"}",
        [REPLY_CONTENT_FILTER] = "\"content_filter\"}",
        [REPLY_TOOL_CALLS] = "\"tool_calls\"}"};
    const struct reply *reply = choice->reply;
    append_member_int(text, "{\"index\":", index);
    buffer_append_text(text, ",\"message\":{\"role\":\"assistant\",\"content\":");
    append_string(text, &reply->content);
    if (reply->thinking) {
        buffer_append_text(text, ",\"reasoning_content\":");
        append_string(text, &reply->reasoning);
    }
    if (reply->call_count)
        append_tool_calls(id, index, reply, text);
    buffer_append_text(text, ",\"refusal\":null},\"logprobs\":");
    if (choice->logprobs.data)
        buffer_append(text, choice->logprobs.data, choice->logprobs.bytes);
    else
        buffer_append_text(text, "null");
    buffer_append_text(text, ",\"finish_reason\":");
    buffer_append_text(text, finishes[finish_of(choice)]);
}

void message_append_chat(struct text_piece choices, const struct message_usage *usage, struct buffer *text) {
    buffer_append_text(text, ",\"choices\":[");
    buffer_append(text, choices.data, choices.bytes);
    append_member_int(text, "],\"usage\":{\"prompt_tokens\":", usage->prompt_tokens);
    append_member_int(text, ",\"completion_tokens\":", usage->completion_tokens);
    append_member_int(text, ",\"total_tokens\":", usage->prompt_tokens + usage->completion_tokens);
    append_member_int(text, ",\"prompt_tokens_details\":{\"cached_tokens\":", usage->cached_tokens);
    if (usage->image_tokens)
        append_member_int(text, ",\"image_tokens\":", usage->image_tokens);
    if (usage->thinking)
        append_member_int(
            text, "},\"completion_tokens_details\":{\"reasoning_tokens\":", usage->reasoning_tokens);
    append_member_int(text, "},\"prompt_cache_hit_tokens\":", usage->cached_tokens);
    append_member_int(text, ",\"prompt_cache_miss_tokens\":", usage->prompt_tokens - usage->cached_tokens);
    buffer_append(text, "}}", 2);
}

/* ---- Responses ---- */

/* Begins item `place` of the output: `{"type":"T","id":"PREFIX_ID_PLACE","status":"S"`. */
static void begin_item(struct buffer *text, const char *type, const char *prefix, const char *id,
    int64_t *place, bool complete) {
    buffer_append_text(text, *place ? ",{\"type\":\"" : "{\"type\":\"");
    buffer_append_text(text, type);
    buffer_append_text(text, "\",\"id\":\"");
    buffer_append_text(text, prefix);
    buffer_append_text(text, id);
    append_member_int(text, "_", (*place)++);
    buffer_append_text(text, complete ? "\",\"status\":\"completed\"" : "\",\"status\":\"incomplete\"");
}

/* A tool of a namespace is `space::name` to the model, and two members here. */
static void append_names(const struct buffer *name, struct buffer *text) {
    const char *begin = name->data ? name->data : "", *colons = strstr(begin, "::");
    size_t space = colons ? (size_t)(colons - begin) : 0;
    if (space) {
        buffer_append_text(text, ",\"namespace\":");
        buffer_append_json_string(text, begin, space);
        space += 2;
    }
    buffer_append_text(text, ",\"name\":");
    buffer_append_json_string(text, begin + space, name->bytes - space);
}

/* Items: reasoning, message, calls; those that are empty are left out. The last is incomplete when the output
 * was cut. */
static void append_output(const char *id, const struct message_choice *choice, struct buffer *text) {
    const struct reply *reply = choice->reply;
    enum reply_finish finish = finish_of(choice);
    bool cut = finish == REPLY_LENGTH || finish == REPLY_CONTENT_FILTER;
    int64_t place = 0;
    if (reply->reasoning.bytes) {
        begin_item(
            text, "reasoning", "rs_", id, &place, !cut || reply->content.bytes > 0 || reply->call_count > 0);
        buffer_append_text(text, ",\"content\":[{\"type\":\"reasoning_text\",\"text\":");
        append_string(text, &reply->reasoning);
        buffer_append_text(text, "}],\"summary\":[],\"encrypted_content\":null}");
    }
    if (reply->content.bytes) {
        begin_item(text, "message", "msg_", id, &place, !cut || reply->call_count > 0);
        buffer_append_text(text, ",\"role\":\"assistant\",\"phase\":");
        buffer_append_text(text, reply->call_count ? "\"commentary\"" : "\"final_answer\"");
        buffer_append_text(text, ",\"content\":[{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":");
        if (choice->logprobs.data)
            buffer_append(text, choice->logprobs.data, choice->logprobs.bytes);
        else
            buffer_append(text, "[]", 2);
        buffer_append_text(text, ",\"text\":");
        append_string(text, &reply->content);
        buffer_append_text(text, "}]}");
    }
    for (size_t i = 0; i < reply->call_count; i++) {
        const struct reply_call *call = &reply->calls[i];
        begin_item(text, "function_call", "fc_", id, &place, !call->incomplete);
        buffer_append_text(text, ",\"call_id\":");
        append_call_id(id, 0, i, text);
        append_names(&call->name, text);
        buffer_append_text(text, ",\"arguments\":");
        append_string(text, &call->arguments);
        buffer_append(text, "}", 1);
    }
}

void message_append_responses(const char *id, int64_t created, const struct message_choice *choice,
    const struct message_usage *usage, struct buffer *text) {
    enum reply_finish finish = finish_of(choice);
    bool cut = finish == REPLY_LENGTH || finish == REPLY_CONTENT_FILTER;
    buffer_append_text(text, cut ? ",\"status\":\"incomplete\"" : ",\"status\":\"completed\"");
    append_member_int(text, ",\"background\":false,\"completed_at\":", created);
    buffer_append_text(text, ",\"error\":null,\"incomplete_details\":");
    buffer_append_text(text, finish == REPLY_LENGTH           ? "{\"reason\":\"max_output_tokens\"}"
                             : finish == REPLY_CONTENT_FILTER ? "{\"reason\":\"content_filter\"}"
                                                              : "null");
    buffer_append_text(text, ",\"output\":[");
    append_output(id, choice, text);
    buffer_append_text(text, "],\"previous_response_id\":null,\"service_tier\":\"default\",\"store\":false,"
                             "\"truncation\":\"disabled\"");
    append_member_int(text, ",\"usage\":{\"input_tokens\":", usage->prompt_tokens);
    append_member_int(text, ",\"input_tokens_details\":{\"cached_tokens\":", usage->cached_tokens);
    if (usage->image_tokens)
        append_member_int(text, ",\"image_tokens\":", usage->image_tokens);
    append_member_int(text, "},\"output_tokens\":", usage->completion_tokens);
    append_member_int(text, ",\"output_tokens_details\":{\"reasoning_tokens\":", usage->reasoning_tokens);
    append_member_int(text, "},\"total_tokens\":", usage->prompt_tokens + usage->completion_tokens);
    buffer_append(text, "}}", 2);
}

/* ---- Messages ---- */

/* Arguments as a JSON object in the body. A line of JSON must hold no newline, which JSON text may have
 * between its values. */
static void append_input(
    const struct buffer *arguments, struct json_document *document, struct buffer *text) {
    const struct json *value = NULL;
    const char *data = arguments->data ? arguments->data : "";
    if (json_parse(document, data, arguments->bytes, &value) != OK || value->kind != JSON_OBJECT) {
        buffer_append_text(text, "{\"arguments\":");
        append_string(text, arguments);
        buffer_append(text, "}", 1);
        return;
    }
    size_t begin = text->bytes;
    buffer_append(text, data, arguments->bytes);
    for (size_t i = begin; i < text->bytes; i++)
        if (text->data[i] == '\n' || text->data[i] == '\r')
            text->data[i] = ' ';
}

static void append_blocks(
    const char *id, const struct reply *reply, struct json_document *document, struct buffer *text) {
    const char *separator = "";
    if (reply->reasoning.bytes) {
        buffer_append_text(text, "{\"type\":\"thinking\",\"thinking\":");
        append_string(text, &reply->reasoning);
        buffer_append_text(text, ",\"signature\":\"msg_");
        buffer_append_text(text, id);
        buffer_append_text(text, "\"}");
        separator = ",";
    }
    if (reply->content.bytes) {
        buffer_append_text(text, separator);
        buffer_append_text(text, "{\"type\":\"text\",\"text\":");
        append_string(text, &reply->content);
        buffer_append(text, "}", 1);
        separator = ",";
    }
    for (size_t i = 0; i < reply->call_count; i++, separator = ",") {
        const struct reply_call *call = &reply->calls[i];
        buffer_append_text(text, separator);
        buffer_append_text(text, "{\"type\":\"tool_use\",\"id\":");
        append_call_id(id, 0, i, text);
        buffer_append_text(text, ",\"name\":");
        append_string(text, &call->name);
        buffer_append_text(text, ",\"input\":");
        append_input(&call->arguments, document, text);
        buffer_append_text(text, call->incomplete ? ",\"status\":\"incomplete\"}" : "}");
    }
}

void message_append_messages(const char *id, const struct message_choice *choice,
    const struct message_usage *usage, struct json_document *document, struct buffer *text) {
    static const char *const reasons[] = {[REPLY_STOP] = "end_turn",
        [REPLY_LENGTH] = "max_tokens",
        [REPLY_CONTENT_FILTER] = "refusal",
        [REPLY_TOOL_CALLS] = "tool_use"};
    buffer_append_text(text, ",\"content\":[");
    append_blocks(id, choice->reply, document, text);
    buffer_append_text(text, "],\"stop_reason\":\"");
    buffer_append_text(text, choice->stopped ? "stop_sequence" : reasons[choice->reply->finish]);
    buffer_append_text(text, "\",\"stop_sequence\":");
    if (choice->stopped)
        buffer_append_json_string(text, choice->stop_sequence.data, choice->stop_sequence.bytes);
    else
        buffer_append_text(text, "null");
    append_member_int(text, ",\"usage\":{\"input_tokens\":", usage->prompt_tokens - usage->cached_tokens);
    append_member_int(
        text, ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":", usage->cached_tokens);
    append_member_int(text, ",\"output_tokens\":", usage->completion_tokens);
    buffer_append_text(text, ",\"service_tier\":\"standard\"}}");
}

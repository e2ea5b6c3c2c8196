#include "recipe/parse_command.h"

#include "base/buffer.h"
#include "base/json.h"
#include "base/options.h"
#include "recipe/reply.h"
#include "recipe/tokenizer.h"

#include <errno.h>  /* errno */
#include <stdio.h>  /* fopen, getline, fwrite */
#include <stdlib.h> /* realloc, free */
#include <string.h> /* strcmp */

/* One run of the command. */
struct parsing {
    struct tokenizer *tokenizer;
    struct reply_parser *parser;
    struct json_document *document;
    bool repaired;
    struct text_piece *stops; /* [stop_capacity] of the line at hand */
    size_t stop_capacity;
    struct token_list ids, scratch;
    struct buffer line; /* of the output */
};

/* ---- a line's fields; all return ERROR_INPUT with a message that names the field ---- */

static bool is_absent(const struct json *value) {
    return !value || value->kind == JSON_NULL;
}

static enum result wrong(const char *field, const char *expected, const struct json *found) {
    return fail(ERROR_INPUT, "%s: expected %s, found %s", field, expected, json_kind_name(found));
}

static enum result read_flag(const struct json *options, const char *name, bool *flag) {
    const struct json *value = json_member(options, name);
    *flag = value && value->kind == JSON_TRUE;
    if (!is_absent(value) && value->kind != JSON_TRUE && value->kind != JSON_FALSE)
        return fail(ERROR_INPUT, "options.%s: expected a boolean, found %s", name, json_kind_name(value));
    return OK;
}

static enum result read_stage(const struct json *options, struct reply_options *reply) {
    static const struct {
        const char *word;
        enum start_stage stage;
    } stages[] = {{"ReasoningStart", START_REASONING},
        {"ReasoningContinuation", START_REASONING_CONTINUATION},
        {"ContentContinuation", START_CONTENT_CONTINUATION}};
    const struct json *stage = json_member(options, "thinking_initial_stage");
    reply->stage = START_CONTENT;
    if (is_absent(stage))
        return OK;
    reply->thinking = true;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (json_is_text(stage, stages[i].word)) {
            reply->stage = stages[i].stage;
            return OK;
        }
    return fail(ERROR_INPUT,
        "options.thinking_initial_stage: expected \"ReasoningStart\", "
        "\"ReasoningContinuation\", \"ContentContinuation\" or null, found %s",
        stage->kind == JSON_STRING ? stage->text : json_kind_name(stage));
}

static enum result read_stops(
    struct parsing *parsing, const struct json *options, struct reply_options *reply) {
    const struct json *list = json_member(options, "stop_sequences");
    if (is_absent(list))
        return OK;
    if (list->kind != JSON_ARRAY)
        return wrong("options.stop_sequences", "an array of strings", list);
    if (list->count > parsing->stop_capacity) {
        struct text_piece *grown = realloc(parsing->stops, list->count * sizeof *grown);
        if (!grown)
            return fail(ERROR_MEMORY, "no memory for %zu stop sequences", list->count);
        parsing->stops = grown;
        parsing->stop_capacity = list->count;
    }
    for (const struct json *stop = list->first; stop; stop = stop->next) {
        if (stop->kind != JSON_STRING)
            return wrong("options.stop_sequences", "an array of strings", stop);
        parsing->stops[reply->stop_count++] = (struct text_piece){.data = stop->text, .bytes = stop->bytes};
    }
    reply->stops = parsing->stops;
    return OK;
}

static enum result read_options(
    struct parsing *parsing, const struct json *line, struct reply_options *reply) {
    const struct json *options = json_member(line, "options");
    bool starts_in_calls = false;
    *reply = (struct reply_options){.rules = parsing->repaired ? REPLY_REPAIRED : REPLY_PUBLISHED};
    if (!is_absent(options) && options->kind != JSON_OBJECT)
        return wrong("options", "an object", options);
    TRY(read_flag(options, "parse_tool_calls", &reply->tools));
    TRY(read_flag(options, "parse_json_output", &reply->json));
    TRY(read_flag(options, "starts_in_tool_calls", &starts_in_calls));
    TRY(read_stage(options, reply));
    if (starts_in_calls)
        reply->stage = START_CALLS;
    return read_stops(parsing, options, reply);
}

static enum result read_finish(const struct json *line, enum reply_finish *finish) {
    const struct json *word = json_member(line, "finish");
    *finish = REPLY_STOP;
    if (is_absent(word) || json_is_text(word, "Stop"))
        return OK;
    *finish = json_is_text(word, "Length") ? REPLY_LENGTH : REPLY_CONTENT_FILTER;
    if (*finish == REPLY_LENGTH || json_is_text(word, "ContentFilter"))
        return OK;
    return wrong("finish", "\"Stop\", \"Length\", \"ContentFilter\" or null", word);
}

static enum result read_ids(struct parsing *parsing, const struct json *list) {
    parsing->ids.count = 0;
    if (list->kind != JSON_ARRAY)
        return wrong("token_ids", "an array of integers", list);
    for (const struct json *id = list->first; id; id = id->next) {
        int64_t number;
        if (!json_int64(id, &number))
            return wrong("token_ids", "an array of integers", id);
        int32_t known = number >= 0 && number < INT32_MAX ? (int32_t)number : -1; /* -1: an unknown id */
        token_list_append(&parsing->ids, &known, 1);
    }
    return OK;
}

/* ---- the output ---- */

static void append_text(struct buffer *line, const struct buffer *text) {
    buffer_append_json_string(line, text->data ? text->data : "", text->bytes);
}

static void append_calls(struct buffer *line, const struct reply *reply, struct text_piece seed, bool marks) {
    buffer_append_text(line, ",\"tool_calls\":[");
    for (size_t i = 0; i < reply->call_count; i++) {
        const struct reply_call *call = &reply->calls[i];
        buffer_append_text(line, i ? ",{\"id\":\"" : "{\"id\":\"");
        reply_call_id(seed.data, seed.bytes, i, line);
        buffer_append_text(line, "\",\"name\":");
        append_text(line, &call->name);
        buffer_append_text(line, ",\"arguments\":");
        append_text(line, &call->arguments);
        if (marks && call->incomplete)
            buffer_append_text(line, ",\"status\":\"incomplete\"");
        buffer_append(line, "}", 1);
    }
    buffer_append(line, "]", 1);
}

/* The published count of reasoning tokens is of its text, encoded anew; the repaired one of the ids. */
static enum result append_usage(struct parsing *parsing, const struct reply *reply) {
    const struct buffer *reasoning = &reply->reasoning;
    int64_t tokens = reply->reasoning_tokens;
    if (!parsing->repaired) {
        parsing->scratch.count = 0;
        TRY(tokenizer_encode(
            parsing->tokenizer, reasoning->data ? reasoning->data : "", reasoning->bytes, &parsing->scratch));
        tokens = (int64_t)parsing->scratch.count;
    }
    buffer_printf(&parsing->line,
        ",\"usage\":{\"completion_tokens\":%lld,\"reasoning_tokens\":", (long long)reply->completion_tokens);
    if (reply->thinking)
        buffer_printf(&parsing->line, "%lld}", (long long)tokens);
    else
        buffer_append_text(&parsing->line, "null}");
    return OK;
}

static enum result append_reply(
    struct parsing *parsing, const struct reply *reply, bool as_ids, struct text_piece seed) {
    static const char *const finishes[] = {
        [REPLY_STOP] = "stop",
        [REPLY_LENGTH] = "length",
        [REPLY_CONTENT_FILTER] = "content_filter",
        [REPLY_TOOL_CALLS] = "tool_calls",
    };
    struct buffer *line = &parsing->line;
    buffer_append_text(line, ",\"reasoning\":");
    if (reply->thinking)
        append_text(line, &reply->reasoning);
    else
        buffer_append_text(line, "null");
    buffer_append_text(line, ",\"content\":");
    append_text(line, &reply->content);
    append_calls(line, reply, seed, parsing->repaired);
    buffer_printf(line, ",\"finish_reason\":\"%s\"", finishes[reply->finish]);
    return as_ids ? append_usage(parsing, reply) : OK;
}

/* ---- lines ---- */

static enum result parse_fields(struct parsing *parsing, const struct json *line, struct text_piece seed) {
    const struct json *text = json_member(line, "text"), *ids = json_member(line, "token_ids");
    struct reply_options options;
    enum reply_finish finish;
    if (line->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "expected an object, found %s", json_kind_name(line));
    TRY(read_options(parsing, line, &options));
    TRY(read_finish(line, &finish));
    options.as_ids = is_absent(text);
    if (options.as_ids && is_absent(ids))
        return fail(ERROR_INPUT, "expected \"text\" or \"token_ids\", found neither");
    if (options.as_ids)
        TRY(read_ids(parsing, ids));
    else if (text->kind != JSON_STRING)
        return wrong("text", "a string", text);
    reply_begin(parsing->parser, &options);
    if (options.as_ids)
        reply_feed_ids(parsing->parser, parsing->ids.ids, parsing->ids.count);
    else
        reply_feed_text(parsing->parser, text->text, text->bytes);
    return append_reply(parsing, reply_finish(parsing->parser, finish), options.as_ids, seed);
}

/* Turns a line into a line of output; a bad one into one with `error`. */
static enum result parse_line(struct parsing *parsing, const char *text, size_t bytes, int64_t number) {
    const struct json *line = NULL, *name = NULL;
    struct buffer *output = &parsing->line;
    char seed[24];
    int seed_bytes = snprintf(seed, sizeof seed, "%lld", (long long)number);
    buffer_clear(output);
    enum result status = json_parse(parsing->document, text, bytes, &line);
    if (status == OK)
        name = json_member(line, "name");
    bool named = name && name->kind == JSON_STRING;
    buffer_append_text(output, "{\"name\":");
    if (named)
        buffer_append_json_string(output, name->text, name->bytes);
    else
        buffer_append_text(output, "null");
    size_t head = output->bytes;
    if (status == OK)
        status = parse_fields(parsing, line,
            named ? (struct text_piece){name->text, name->bytes}
                  : (struct text_piece){seed, (size_t)seed_bytes});
    if (status == ERROR_INPUT) {
        output->bytes = head;
        buffer_append_text(output, ",\"error\":{\"status\":400,\"message\":");
        buffer_append_json_string(output, failure_message(), strlen(failure_message()));
        buffer_append(output, "}", 1);
        status = OK;
    }
    buffer_append_text(output, "}\n");
    return status;
}

static enum result parse_lines(struct parsing *parsing, FILE *file, const char *path) {
    char *text = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    enum result status = OK;
    int64_t number = 0;
    while (status == OK && (errno = 0, bytes = getline(&text, &capacity, file)) >= 0) {
        number++;
        if (strspn(text, " \t\r\n") == (size_t)bytes)
            continue;
        status = parse_line(parsing, text, (size_t)bytes, number);
        if (status == OK && fwrite(parsing->line.data, 1, parsing->line.bytes, stdout) != parsing->line.bytes)
            status = fail_errno(ERROR_IO, "standard output");
    }
    if (status == OK && ferror(file))
        status = fail_errno(ERROR_IO, "%s", path);
    if (status == OK && fflush(stdout) != 0)
        status = fail_errno(ERROR_IO, "standard output");
    free(text);
    return status;
}

static enum result parse_file(const char *tokenizer, const char *path, bool repaired) {
    struct parsing parsing = {.repaired = repaired};
    bool standard = !strcmp(path, "-");
    enum result status = OK;
    FILE *file = standard ? stdin : fopen(path, "r");
    if (!file)
        return fail_errno(ERROR_IO, "%s", path);
    TRY_GOTO(status, tokenizer_load(tokenizer, &parsing.tokenizer), done);
    TRY_GOTO(status, reply_parser_create(parsing.tokenizer, &parsing.parser), done);
    TRY_GOTO(status, json_document_create(&parsing.document), done);
    status = parse_lines(&parsing, file, path);
done:
    if (!standard)
        fclose(file);
    reply_parser_free(parsing.parser);
    if (parsing.tokenizer)
        tokenizer_free(parsing.tokenizer);
    json_document_free(parsing.document);
    free(parsing.stops);
    free(parsing.ids.ids);
    free(parsing.scratch.ids);
    buffer_free(&parsing.line);
    return status;
}

enum result command_parse(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "parse",
        .summary =
            "Parses what models wrote into reasoning, content and tool calls, as JSON lines on standard "
            "output.",
        .notes =
            "A line of the input is an object: name, options {parse_tool_calls, parse_json_output,\n"
            "starts_in_tool_calls: booleans, thinking_initial_stage: ReasoningStart, ReasoningContinuation,\n"
            "ContentContinuation or null, stop_sequences: strings}, finish (Stop, Length, ContentFilter or "
            "null),\n"
            "and text or token_ids. A line of the output: name, reasoning, content, tool_calls,\n"
            "finish_reason and, for token_ids, usage; or name and error.",
    };
    const char *tokenizer = "", *input = ""; /* both are required */
    bool repaired = false, help_shown = false;
    const struct option options[] = {
        {.name = "tokenizer",
            .kind = OPTION_TEXT,
            .value = &tokenizer,
            .placeholder = "DIR",
            .required = true,
            .help = "folder with tokenizer.json"},
        {.name = "input",
            .kind = OPTION_TEXT,
            .value = &input,
            .placeholder = "FILE",
            .required = true,
            .help = "JSON lines; - is standard input"},
        {.name = "repaired",
            .kind = OPTION_FLAG,
            .value = &repaired,
            .help = "by the rules of export (docs/replies.md) instead of the published toolkit's"},
        {0},
    };
    TRY(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    return help_shown ? OK : parse_file(tokenizer, input, repaired);
}

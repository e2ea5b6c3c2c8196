#include "recipe/commands.h"

#include "base/buffer.h"
#include "base/options.h"
#include "recipe/tokenizer.h"
#include "recipe/toolkit.h"

#include <errno.h>  /* errno */
#include <stdio.h>  /* fopen, getline, fwrite */
#include <stdlib.h> /* free */
#include <string.h> /* strlen, strcmp, strspn */

/* One run of a command. */
struct run {
    struct tokenizer *tokenizer;
    struct toolkit *toolkit; /* render only */
    enum request_kind kind;  /* render only */
    struct json_document *document;
    struct token_list ids;
    struct buffer text;
    struct buffer line; /* of the output */
};

/* Appends a line's members after its name. ERROR_INPUT: the line is wrong, and the message says why. */
typedef enum result line_function(struct run *run, const struct json *line);

/* ---- members ---- */

static enum result wrong(const char *field, const char *expected, const struct json *found) {
    return fail(ERROR_INPUT, "%s: expected %s, found %s", field, expected, json_excerpt(found).text);
}

static void append_ids(struct buffer *line, const char *name, const struct token_list *ids) {
    buffer_printf(line, ",\"%s\":[", name);
    for (size_t i = 0; i < ids->count; i++)
        buffer_printf(line, i ? ",%d" : "%d", (int)ids->ids[i]);
    buffer_append(line, "]", 1);
}

static void append_text(struct buffer *line, const char *name, const struct buffer *text) {
    buffer_printf(line, ",\"%s\":", name);
    buffer_append_json_string(line, text->data ? text->data : "", text->bytes);
}

static void append_error(struct buffer *line, const char *message) {
    buffer_append_text(line, ",\"error\":{\"status\":400,\"message\":");
    buffer_append_json_string(line, message, strlen(message));
    buffer_append(line, "}", 1);
}

static enum result tokenize_line(struct run *run, const struct json *line) {
    const struct json *text = json_member(line, "text");
    if (!text || text->kind != JSON_STRING)
        return wrong("text", "a string", text);
    run->ids.count = 0;
    TRY(tokenizer_encode(run->tokenizer, text->text, text->bytes, &run->ids));
    append_ids(&run->line, "ids", &run->ids);
    return OK;
}

static enum result detokenize_line(struct run *run, const struct json *line) {
    const struct json *ids = json_member(line, "ids");
    if (!ids || ids->kind != JSON_ARRAY)
        return wrong("ids", "an array of integers", ids);
    run->ids.count = 0;
    for (const struct json *id = ids->first; id; id = id->next) {
        int64_t number;
        if (!json_int64(id, &number))
            return wrong("ids", "an array of integers", id);
        int32_t known = number >= 0 && number < INT32_MAX ? (int32_t)number : -1; /* -1: an unknown id */
        token_list_append(&run->ids, &known, 1);
    }
    buffer_clear(&run->text);
    tokenizer_decode(run->tokenizer, run->ids.ids, run->ids.count, false, &run->text);
    append_text(&run->line, "text", &run->text);
    buffer_clear(&run->text);
    tokenizer_decode(run->tokenizer, run->ids.ids, run->ids.count, true, &run->text);
    append_text(&run->line, "text_skip_special", &run->text);
    return OK;
}

/* Decodes padded base64; false when the text is none. */
static bool decode_base64(struct text_piece text, struct buffer *bytes) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t bits = 0;
    int count = 0;
    buffer_clear(bytes);
    for (size_t i = 0; i < text.bytes && text.data[i] != '='; i++) {
        const char *at = text.data[i] ? strchr(alphabet, text.data[i]) : NULL;
        if (!at)
            return false;
        bits = bits << 6 | (uint32_t)(at - alphabet);
        count += 6;
        if (count >= 8) {
            count -= 8;
            buffer_append(bytes, &(unsigned char){(unsigned char)(bits >> count)}, 1);
        }
    }
    return true;
}

static enum result render_text(struct run *run, const struct json *line, const struct json *raw,
    const struct toolkit_policies *policies, bool *accepted) {
    const struct json *base64 = json_member(line, "request_raw_base64");
    if (raw && raw->kind == JSON_STRING)
        return toolkit_render_text(
            run->toolkit, run->kind, (struct text_piece){raw->text, raw->bytes}, policies, accepted);
    if (raw)
        return wrong("request_raw", "a string", raw);
    if (!base64)
        return fail(ERROR_INPUT, "expected request, request_raw or request_raw_base64, found none");
    if (base64->kind != JSON_STRING ||
        !decode_base64((struct text_piece){base64->text, base64->bytes}, &run->text))
        return wrong("request_raw_base64", "base64", base64);
    return toolkit_render_text(run->toolkit, run->kind,
        (struct text_piece){run->text.data ? run->text.data : "", run->text.bytes}, policies, accepted);
}

static enum result render_line(struct run *run, const struct json *line) {
    const struct json *request = json_member(line, "request"), *raw = json_member(line, "request_raw");
    struct toolkit_policies policies;
    bool accepted = false;
    TRY(toolkit_read_policies(json_member(line, "options"), &policies));
    if (request)
        TRY(toolkit_render(run->toolkit, run->kind, request, &policies, &accepted));
    else
        TRY(render_text(run, line, raw, &policies, &accepted));
    if (accepted) {
        append_text(&run->line, "prompt", &run->toolkit->prompt.text);
        append_ids(&run->line, "token_ids", &run->toolkit->prompt.ids);
    } else
        append_error(&run->line, run->toolkit->refusal.message);
    return OK;
}

/* ---- lines ---- */

/* Turns a line into a line of output; a bad one into one with `error`. */
static enum result answer_line(struct run *run, const char *text, size_t bytes, line_function *function) {
    const struct json *line = NULL, *name = NULL;
    struct buffer *output = &run->line;
    buffer_clear(output);
    enum result status = json_parse(run->document, text, bytes, &line);
    if (status == OK)
        name = json_member(line, "name");
    buffer_append_text(output, "{\"name\":");
    if (name && name->kind == JSON_STRING)
        buffer_append_json_string(output, name->text, name->bytes);
    else
        buffer_append_text(output, "null");
    size_t head = output->bytes;
    if (status == OK)
        status = function(run, line);
    if (status == ERROR_INPUT) {
        output->bytes = head;
        append_error(output, failure_message());
        status = OK;
    }
    buffer_append_text(output, "}\n");
    return status;
}

static enum result answer_lines(struct run *run, FILE *file, const char *path, line_function *function) {
    char *text = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    enum result status = OK;
    while (status == OK && (errno = 0, bytes = getline(&text, &capacity, file)) >= 0) {
        if (strspn(text, " \t\r\n") == (size_t)bytes)
            continue;
        status = answer_line(run, text, (size_t)bytes, function);
        if (status == OK && fwrite(run->line.data, 1, run->line.bytes, stdout) != run->line.bytes)
            status = fail_errno(ERROR_IO, "standard output");
    }
    if (status == OK && ferror(file))
        status = fail_errno(ERROR_IO, "%s", path);
    if (status == OK && fflush(stdout) != 0)
        status = fail_errno(ERROR_IO, "standard output");
    free(text);
    return status;
}

static enum result run_file(
    struct run *run, const char *tokenizer, const char *path, line_function *function) {
    bool standard = !strcmp(path, "-");
    enum result status = OK;
    FILE *file = standard ? stdin : fopen(path, "r");
    if (!file)
        return fail_errno(ERROR_IO, "%s", path);
    TRY_GOTO(status, tokenizer_load(tokenizer, &run->tokenizer), done);
    TRY_GOTO(status, json_document_create(&run->document), done);
    if (function == render_line)
        TRY_GOTO(status, toolkit_create(run->tokenizer, &run->toolkit), done);
    status = answer_lines(run, file, path, function);
done:
    if (!standard)
        fclose(file);
    toolkit_free(run->toolkit);
    if (run->tokenizer)
        tokenizer_free(run->tokenizer);
    json_document_free(run->document);
    free(run->ids.ids);
    buffer_free(&run->text);
    buffer_free(&run->line);
    return status;
}

/* ---- the commands ---- */

#define TOKENIZER_OPTION(value_)                                                                             \
    {                                                                                                        \
        .name = "tokenizer", .kind = OPTION_TEXT, .value = &(value_), .placeholder = "DIR",                  \
        .required = true, .help = "folder with tokenizer.json"                                               \
    }
#define INPUT_OPTION(value_)                                                                                 \
    {                                                                                                        \
        .name = "input", .kind = OPTION_TEXT, .value = &(value_), .placeholder = "FILE", .required = true,   \
        .help = "JSON lines; - is standard input"                                                            \
    }

static enum result run_plain(
    const struct command_usage *usage, int argc, char **argv, line_function *function) {
    const char *tokenizer = "", *input = "";
    const struct option options[] = {TOKENIZER_OPTION(tokenizer), INPUT_OPTION(input), {0}};
    bool help_shown;
    struct run run = {0};
    TRY(options_parse(usage, options, argc, argv, NULL, &help_shown));
    return help_shown ? OK : run_file(&run, tokenizer, input, function);
}

enum result command_tokenize(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "tokenize",
        .summary = "Turns texts into token ids, as JSON lines on standard output.",
        .notes =
            "A line of the input is an object with text, and name if you like; of the output, with name\n"
            "and ids, or name and error. Spellings of added tokens in the text become these tokens.",
    };
    return run_plain(&usage, argc, argv, tokenize_line);
}

enum result command_detokenize(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "detokenize",
        .summary = "Turns token ids into texts, as JSON lines on standard output.",
        .notes =
            "A line of the input is an object with ids, and name if you like; of the output, with name,\n"
            "text and text_skip_special (the text without special tokens), or name and error.",
    };
    return run_plain(&usage, argc, argv, detokenize_line);
}

enum result command_render(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "render",
        .summary =
            "Turns request bodies into prompts, as the published toolkit does, as JSON lines on standard "
            "output.",
        .notes =
            "A line of the input is an object: request (a body) or request_raw (a body's text), options\n"
            "(the toolkit's) and name if you like. A line of the output: name, prompt and token_ids, or\n"
            "name and error {status, message}.",
    };
    static const char *const kinds[] = {"chat", "responses", "messages", NULL};
    const char *tokenizer = "", *input = "";
    int kind = KIND_CHAT;
    const struct option options[] = {TOKENIZER_OPTION(tokenizer), INPUT_OPTION(input),
        {.name = "kind",
            .kind = OPTION_CHOICE,
            .value = &kind,
            .choices = kinds,
            .help = "of the bodies (default: chat)"},
        {0}};
    bool help_shown;
    struct run run = {0};
    TRY(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    run.kind = (enum request_kind)kind;
    return help_shown ? OK : run_file(&run, tokenizer, input, render_line);
}

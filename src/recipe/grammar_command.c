#include "recipe/grammar_command.h"

#include "base/buffer.h"
#include "base/json.h"
#include "base/options.h"
#include "grammar/grammar.h"
#include "recipe/tokenizer.h"

#include <stdio.h>  /* getline, printf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* strcmp, memset */

struct work {
    struct tokenizer *tokenizer;
    struct grammar_vocabulary *vocabulary;
    struct json_document *document;
    struct buffer text, out;
    uint64_t *mask;
};

static void append_value(struct buffer *out, const struct json *value) {
    static const char *const words[] = {[JSON_NULL] = "null", [JSON_FALSE] = "false", [JSON_TRUE] = "true"};
    if (value->kind == JSON_STRING)
        buffer_append_json_string(out, value->text, value->bytes);
    else if (value->kind == JSON_NUMBER)
        buffer_append(out, value->text, value->bytes);
    else if (value->kind != JSON_ARRAY && value->kind != JSON_OBJECT)
        buffer_append_text(out, words[value->kind]);
    else {
        buffer_append_text(out, value->kind == JSON_ARRAY ? "[" : "{");
        for (const struct json *item = value->first; item; item = item->next) {
            if (item != value->first)
                buffer_append_text(out, ",");
            if (item->key) {
                buffer_append_json_string(out, item->key, item->key_bytes);
                buffer_append_text(out, ":");
            }
            append_value(out, item);
        }
        buffer_append_text(out, value->kind == JSON_ARRAY ? "]" : "}");
    }
}

/* What the line asks for; its text lies in `work` or in the line. */
static enum result read_specification(
    struct work *work, const struct json *line, struct grammar_specification *specification) {
    const struct json *kind = json_member(line, "kind"), *spec = json_member(line, "spec");
    const struct json *pattern = json_member(line, "pattern"), *schema = json_member(line, "schema");
    const struct json *strict = json_member(line, "strict");
    *specification = (struct grammar_specification){.kind = GRAMMAR_SCHEMA, .marker_token = GRAMMAR_NO_TOKEN};
    specification->strict = strict && strict->kind == JSON_TRUE;
    specification->compact = json_is_text(json_member(line, "whitespace"), "none") ||
                             json_is_text(json_member(line, "whitespace"), "compact");
    if (json_is_text(kind, "json_object")) {
        specification->kind = GRAMMAR_JSON_OBJECT;
        return OK;
    }
    const struct json *tools = json_member(line, "tools"), *choice = json_member(line, "tool_choice");
    if (tools) {
        specification->kind = GRAMMAR_TOOLS;
        specification->tool_choice = json_is_text(choice, "required") ? GRAMMAR_TOOLS_REQUIRED
                                     : json_is_text(choice, "none")   ? GRAMMAR_TOOLS_NONE
                                                                      : GRAMMAR_TOOLS_AUTO;
    }
    bool is_regex = pattern || json_is_text(kind, "regex");
    const struct json *given = tools ? tools : pattern ? pattern : schema ? schema : spec;
    if (!given || (is_regex && given->kind != JSON_STRING))
        return fail(ERROR_INPUT, "give 'schema', or 'pattern' (a string), or 'kind' and 'spec'");
    bool raw = is_regex || (json_is_text(kind, "schema_text") && given->kind == JSON_STRING);
    buffer_clear(&work->text);
    if (raw)
        buffer_append(&work->text, given->text, given->bytes);
    else
        append_value(&work->text, given);
    if (!tools)
        specification->kind = is_regex ? GRAMMAR_REGEX : GRAMMAR_SCHEMA;
    specification->text = work->text.data ? work->text.data : "";
    specification->bytes = work->text.bytes;
    return OK;
}

static enum result text_fits(
    struct work *work, struct grammar *grammar, const struct json *text, bool *fits) {
    struct grammar_matcher *matcher = NULL;
    size_t taken = 0;
    TRY(grammar_matcher_create(grammar, work->vocabulary, &matcher));
    enum result status = grammar_matcher_accept_bytes(matcher, text->text, text->bytes, &taken);
    *fits = status == OK && taken == text->bytes && grammar_matcher_accepting(matcher);
    grammar_matcher_free(matcher);
    return status;
}

static enum result answer_texts(
    struct work *work, struct grammar *grammar, const struct json *line, const char *key) {
    const struct json *texts = json_member(line, key);
    if (!texts)
        return OK;
    buffer_printf(&work->out, ",\"%s\":[", key);
    for (const struct json *text = texts->first; text; text = text->next) {
        bool fits = false;
        if (text->kind != JSON_STRING)
            return fail(ERROR_INPUT, "'%s' must be a list of strings", key);
        TRY(text_fits(work, grammar, text, &fits));
        buffer_printf(&work->out, "%s%s", text == texts->first ? "" : ",", fits ? "true" : "false");
    }
    buffer_append_text(&work->out, "]");
    return OK;
}

/* The mask behind the line's prefix, in hexadecimal: bytes of little-endian bits. */
static enum result answer_mask(struct work *work, struct grammar *grammar, const struct json *prefix) {
    struct grammar_matcher *matcher = NULL;
    uint32_t count = grammar_vocabulary_count(work->vocabulary);
    size_t taken = 0, allowed = 0, words = (count + 63) / 64;
    TRY(grammar_matcher_create(grammar, work->vocabulary, &matcher));
    enum result status = grammar_matcher_accept_bytes(matcher, prefix->text, prefix->bytes, &taken);
    if (status == OK && taken < prefix->bytes)
        status = fail(ERROR_INPUT, "the prefix stops fitting at byte %zu", taken);
    if (status == OK)
        status = grammar_matcher_mask(matcher, work->mask);
    bool accepting = status == OK && grammar_matcher_accepting(matcher);
    grammar_matcher_free(matcher);
    TRY(status);
    for (size_t i = 0; i < words; i++)
        allowed += (size_t)__builtin_popcountll(work->mask[i]);
    buffer_printf(&work->out, ",\"allowed_count\":%zu,\"eos_allowed\":%s,\"mask\":\"", allowed,
        accepting ? "true" : "false");
    for (size_t i = 0; i < (count + 7) / 8; i++)
        buffer_printf(&work->out, "%02x", (unsigned)(work->mask[i / 8] >> (i % 8 * 8) & 0xFF));
    buffer_append_text(&work->out, "\"");
    return OK;
}

static enum result answer_line(struct work *work, const struct json *line) {
    struct grammar_specification specification;
    struct grammar *grammar = NULL;
    TRY(read_specification(work, line, &specification));
    TRY(grammar_compile(&specification, &grammar));
    const struct json *prefix = json_member(line, "prefix_text");
    enum result status = answer_texts(work, grammar, line, "accept");
    if (status == OK)
        status = answer_texts(work, grammar, line, "reject");
    if (status == OK && prefix && prefix->kind == JSON_STRING)
        status = answer_mask(work, grammar, prefix);
    grammar_free(grammar);
    return status;
}

static enum result answer_lines(struct work *work, FILE *file, const char *path) {
    char *line = NULL;
    size_t room = 0, number = 0;
    ssize_t length;
    enum result status = OK;
    while (status == OK && (length = getline(&line, &room, file)) >= 0) {
        const struct json *root = NULL;
        number++;
        status = json_parse(work->document, line, (size_t)length, &root);
        if (status != OK && status != ERROR_INPUT)
            break;
        bool readable = status == OK;
        status = readable ? OK : fail_context(status, "%s:%zu", path, number);
        const struct json *name = readable ? json_member(root, "name") : NULL;
        buffer_clear(&work->out);
        buffer_append_text(&work->out, "{\"name\":");
        if (name)
            append_value(&work->out, name);
        else
            buffer_append_text(&work->out, "null");
        size_t start = work->out.bytes;
        enum result answered = readable ? answer_line(work, root) : status;
        status = OK;
        if (answered != OK && answered != ERROR_INPUT)
            status = answered;
        if (answered == ERROR_INPUT) {
            work->out.bytes = start;
            buffer_append_text(&work->out, ",\"error\":");
            buffer_append_json_string(&work->out, failure_message(), strlen(failure_message()));
        }
        if (status == OK)
            printf("%s}\n", work->out.data);
    }
    free(line);
    return status;
}

/* Tokens that are added to the vocabulary or special are control tokens: no grammar allows their text. */
static enum result make_vocabulary(struct work *work) {
    uint32_t count = (uint32_t)tokenizer_size(work->tokenizer);
    const char **bytes = calloc(count + 1, sizeof *bytes);
    uint32_t *lengths = calloc(count + 1, sizeof *lengths);
    enum result status =
        bytes && lengths ? OK : fail(ERROR_MEMORY, "no memory for the vocabulary of grammars");
    for (uint32_t i = 0; status == OK && i < count; i++) {
        size_t length = 0;
        if (!tokenizer_is_added(work->tokenizer, (int32_t)i) &&
            tokenizer_token_bytes(work->tokenizer, (int32_t)i, &bytes[i], &length))
            lengths[i] = (uint32_t)length;
    }
    enum { END_OF_SENTENCE = 1 };
    if (status == OK)
        status = grammar_vocabulary_create(bytes, lengths, count, END_OF_SENTENCE, &work->vocabulary);
    free(bytes);
    free(lengths);
    return status;
}

static enum result answer_file(const char *tokenizer, const char *path) {
    struct work work = {0};
    bool standard = !strcmp(path, "-");
    FILE *file = standard ? stdin : fopen(path, "r");
    if (!file)
        return fail_errno(ERROR_IO, "%s", path);
    enum result status = OK;
    TRY_GOTO(status, tokenizer_load(tokenizer, &work.tokenizer), done);
    TRY_GOTO(status, make_vocabulary(&work), done);
    TRY_GOTO(status, json_document_create(&work.document), done);
    work.mask = calloc((grammar_vocabulary_count(work.vocabulary) + 63) / 64 + 1, sizeof *work.mask);
    status = work.mask ? answer_lines(&work, file, path) : fail(ERROR_MEMORY, "no memory for a mask");
done:
    if (!standard)
        fclose(file);
    if (work.tokenizer)
        tokenizer_free(work.tokenizer);
    grammar_vocabulary_free(work.vocabulary);
    json_document_free(work.document);
    buffer_free(&work.text);
    buffer_free(&work.out);
    free(work.mask);
    return status;
}

enum result command_grammar(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "grammar",
        .summary =
            "Says which texts fit a JSON Schema or a regular expression, as JSON lines on standard output.",
        .notes =
            "A line of the input is an object: name; schema, pattern, tools with tool_choice, or kind "
            "(schema, schema_text, "
            "regex,\n"
            "json_object) and spec; strict (true or false), whitespace (flexible or none); accept and\n"
            "reject (texts), or prefix_text. A line of the output: name and, for each text, whether it\n"
            "fits; behind a prefix allowed_count, eos_allowed and mask (hexadecimal, little-endian bits);\n"
            "or name and error.",
    };
    const char *tokenizer = "", *input = "";
    bool help_shown = false;
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
        {0},
    };
    TRY(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    return help_shown ? OK : answer_file(tokenizer, input);
}

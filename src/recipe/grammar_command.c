#include "recipe/grammar_command.h"

#include "base/buffer.h"
#include "base/hex.h"
#include "base/json.h"
#include "base/options.h"
#include "grammar/grammar.h"
#include "recipe/grammar_check.h"
#include "recipe/request_grammar.h"
#include "recipe/tokenizer.h"

#include <openssl/evp.h> /* EVP_Digest */
#include <stdio.h>       /* getline, printf */
#include <stdlib.h>      /* calloc, free */
#include <string.h>      /* memcpy, strcmp */

struct work {
    struct tokenizer *tokenizer;
    struct grammar_vocabulary *vocabulary;
    struct json_document *document;
    struct buffer text, prefix, out;
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

/* ---- what a line asks for ---- */

/* Absent (or null) as `otherwise`. */
static enum result read_flag(const struct json *line, const char *key, bool otherwise, bool *flag) {
    const struct json *value = json_member(line, key);
    *flag = otherwise;
    if (!value || value->kind == JSON_NULL)
        return OK;
    if (value->kind != JSON_TRUE && value->kind != JSON_FALSE)
        return fail(ERROR_INPUT, "'%s' must be true or false", key);
    *flag = value->kind == JSON_TRUE;
    return OK;
}

static enum result read_whitespace(const struct json *line, bool *compact) {
    const struct json *value = json_member(line, "whitespace");
    *compact = json_is_text(value, "none") || json_is_text(value, "compact");
    if (value && value->kind != JSON_NULL && !*compact && !json_is_text(value, "flexible"))
        return fail(ERROR_INPUT, "'whitespace' must be flexible or none");
    return OK;
}

/* auto, required, none, or {"type": "function", "function": {"name": ...}}. */
static enum result read_choice(const struct json *line, struct grammar_specification *specification) {
    const struct json *choice = json_member(line, "tool_choice");
    const struct json *name = json_member(json_member(choice, "function"), "name");
    if (!choice || choice->kind == JSON_NULL || json_is_text(choice, "auto"))
        specification->tool_choice = GRAMMAR_TOOLS_AUTO;
    else if (json_is_text(choice, "required"))
        specification->tool_choice = GRAMMAR_TOOLS_REQUIRED;
    else if (json_is_text(choice, "none"))
        specification->tool_choice = GRAMMAR_TOOLS_NONE;
    else if (name && name->kind == JSON_STRING) {
        specification->tool_choice = GRAMMAR_TOOLS_NAMED;
        specification->tool_name = name->text;
    } else
        return fail(
            ERROR_INPUT, "'tool_choice' must be auto, required, none or an object that names a function");
    bool parallel = true;
    TRY(read_flag(line, "parallel_tool_calls", true, &parallel));
    specification->one_call = !parallel;
    return OK;
}

/* The kind, and the value that is to be compiled: NULL for json_object. */
static enum result read_kind(const struct json *line, enum grammar_kind *kind, const struct json **given) {
    static const struct {
        const char *member;
        enum grammar_kind kind;
    } members[] = {{"schema", GRAMMAR_SCHEMA}, {"pattern", GRAMMAR_REGEX}, {"tools", GRAMMAR_TOOLS}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if ((*given = json_member(line, members[i].member)) != NULL) {
            *kind = members[i].kind;
            return OK;
        }
    const struct json *name = json_member(line, "kind");
    *given = json_member(line, "spec");
    *kind = json_is_text(name, "regex")         ? GRAMMAR_REGEX
            : json_is_text(name, "json_object") ? GRAMMAR_JSON_OBJECT
                                                : GRAMMAR_SCHEMA;
    if (*kind == GRAMMAR_JSON_OBJECT)
        *given = NULL;
    else if (!*given || !name)
        return fail(ERROR_INPUT, "give 'schema', 'pattern' or 'tools', or 'kind' and 'spec'");
    else if (*kind == GRAMMAR_SCHEMA && !json_is_text(name, "schema") && !json_is_text(name, "schema_text"))
        return fail(ERROR_INPUT, "'kind' must be schema, schema_text, regex or json_object");
    return OK;
}

/* The specification's texts lie in `work` or in the line. Tools are strict unless the line says otherwise: that
 * is what there is to try. */
static enum result read_specification(
    struct work *work, const struct json *line, struct grammar_specification *specification) {
    const struct json *given = NULL;
    *specification = (struct grammar_specification){.marker_token = GRAMMAR_NO_TOKEN};
    TRY(read_kind(line, &specification->kind, &given));
    TRY(read_flag(line, "strict", specification->kind == GRAMMAR_TOOLS, &specification->strict));
    TRY(read_whitespace(line, &specification->compact));
    if (specification->kind == GRAMMAR_TOOLS)
        TRY(read_choice(line, specification));
    buffer_clear(&work->text);
    buffer_append_text(&work->text, "");
    bool schema_text = json_is_text(json_member(line, "kind"), "schema_text");
    if (specification->kind == GRAMMAR_REGEX && (!given || given->kind != JSON_STRING))
        return fail(ERROR_INPUT, "a pattern must be a string, not %s", json_kind_name(given));
    if (given && given->kind == JSON_STRING && (specification->kind == GRAMMAR_REGEX || schema_text))
        buffer_append(&work->text, given->text, given->bytes);
    else if (given)
        append_value(&work->text, given);
    specification->text = work->text.data;
    specification->bytes = work->text.bytes;
    return OK;
}

/* ---- answers ---- */

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
    if (texts->kind != JSON_ARRAY)
        return fail(ERROR_INPUT, "'%s' must be a list of strings", key);
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

/* The answer's beginning behind which a mask is asked for: prefix_text, or prefix_hex where it ends within a
 * character. False: none is. */
static enum result read_prefix(struct work *work, const struct json *line, bool *asked) {
    const struct json *text = json_member(line, "prefix_text"), *digits = json_member(line, "prefix_hex");
    const struct json *given = text && text->kind != JSON_NULL ? text : digits;
    *asked = given && given->kind != JSON_NULL;
    buffer_clear(&work->prefix);
    buffer_append_text(&work->prefix, "");
    if (!*asked)
        return OK;
    if (given->kind != JSON_STRING)
        return fail(ERROR_INPUT, "'%s' must be a string", given->key);
    if (given == text)
        buffer_append(&work->prefix, text->text, text->bytes);
    for (size_t i = 0; given == digits && i < digits->bytes; i += 2) {
        int high = hex_value(digits->text[i]), low = high < 0 ? -1 : hex_value(digits->text[i + 1]);
        if (low < 0)
            return fail(ERROR_INPUT, "'prefix_hex' must be pairs of hexadecimal digits");
        char byte = (char)(high << 4 | low);
        buffer_append(&work->prefix, &byte, 1);
    }
    return OK;
}

/* SHA-256 of the mask as bytes of little-endian bits, the first token's the lowest. */
static enum result append_digest(struct work *work, uint32_t count) {
    size_t bytes = ((size_t)count + 7) / 8;
    unsigned char *spelled = malloc(bytes + 1), digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (!spelled)
        return fail(ERROR_MEMORY, "no memory for a mask");
    for (size_t i = 0; i < bytes; i++)
        spelled[i] = (unsigned char)(work->mask[i / 8] >> (i % 8 * 8));
    bool made = EVP_Digest(spelled, bytes, digest, &length, EVP_sha256(), NULL) == 1;
    free(spelled);
    if (!made)
        return fail(ERROR_INTERNAL, "the library has no SHA-256");
    for (unsigned i = 0; i < length; i++)
        buffer_printf(&work->out, "%02x", digest[i]);
    return OK;
}

static enum result find_mask(struct work *work, struct grammar *grammar, bool *accepting) {
    struct grammar_matcher *matcher = NULL;
    size_t taken = 0;
    TRY(grammar_matcher_create(grammar, work->vocabulary, &matcher));
    enum result status = grammar_matcher_accept_bytes(matcher, work->prefix.data, work->prefix.bytes, &taken);
    if (status == OK && taken < work->prefix.bytes)
        status = fail(ERROR_INPUT, "the prefix stops fitting at byte %zu", taken);
    if (status == OK)
        status = grammar_matcher_mask(matcher, work->mask);
    *accepting = status == OK && grammar_matcher_accepting(matcher);
    grammar_matcher_free(matcher);
    return status;
}

static enum result answer_mask(struct work *work, struct grammar *grammar) {
    uint32_t count = grammar_vocabulary_count(work->vocabulary);
    size_t allowed = 0, words = ((size_t)count + 63) / 64;
    bool accepting = false;
    TRY(find_mask(work, grammar, &accepting));
    for (size_t i = 0; i < words; i++)
        allowed += (size_t)__builtin_popcountll(work->mask[i]);
    buffer_printf(&work->out, ",\"allowed_count\":%zu,\"mask_sha256\":\"", allowed);
    TRY(append_digest(work, count));
    buffer_printf(&work->out, "\",\"eos_allowed\":%s", accepting ? "true" : "false");
    return OK;
}

/* The list of all allowed ids, when the line asks for it. */
static enum result answer_ids(struct work *work, const struct json *line) {
    bool wanted = false, first = true;
    TRY(read_flag(line, "list_allowed", false, &wanted));
    if (!wanted)
        return OK;
    buffer_append_text(&work->out, ",\"allowed\":[");
    for (uint32_t id = 0; id < grammar_vocabulary_count(work->vocabulary); id++)
        if (work->mask[id / 64] >> (id % 64) & 1) {
            buffer_printf(&work->out, "%s%u", first ? "" : ",", id);
            first = false;
        }
    buffer_append_text(&work->out, "]");
    return OK;
}

static enum result answer_line(struct work *work, const struct json *line) {
    struct grammar_specification specification;
    struct grammar *grammar = NULL;
    bool asked = false;
    TRY(read_specification(work, line, &specification));
    TRY(read_prefix(work, line, &asked));
    TRY(grammar_compile(&specification, &grammar));
    enum result status = answer_texts(work, grammar, line, "accept");
    if (status == OK)
        status = answer_texts(work, grammar, line, "reject");
    if (status == OK && asked)
        status = answer_mask(work, grammar);
    if (status == OK && asked)
        status = answer_ids(work, line);
    grammar_free(grammar);
    return status;
}

/* ---- files ---- */

/* A line that is wrong or refused has its error as its answer. */
static enum result answer_text(
    struct work *work, const char *text, size_t bytes, const char *path, size_t number) {
    const struct json *root = NULL;
    enum result status = json_parse(work->document, text, bytes, &root);
    const struct json *name = status == OK ? json_member(root, "name") : NULL;
    if (status != OK)
        status = fail_context(status, "%s:%zu", path, number);
    buffer_clear(&work->out);
    buffer_append_text(&work->out, "{\"name\":");
    if (name)
        append_value(&work->out, name);
    else
        buffer_append_text(&work->out, "null");
    size_t start = work->out.bytes;
    if (status == OK)
        status = answer_line(work, root);
    if (status != OK && status != ERROR_INPUT)
        return status;
    if (status == ERROR_INPUT) {
        work->out.bytes = start;
        buffer_append_text(&work->out, ",\"error\":");
        buffer_append_json_string(&work->out, failure_message(), strlen(failure_message()));
    }
    printf("%s}\n", work->out.data);
    return OK;
}

static enum result answer_lines(struct work *work, FILE *file, const char *path) {
    char *line = NULL;
    size_t room = 0, number = 0;
    ssize_t length;
    enum result status = OK;
    while (status == OK && (length = getline(&line, &room, file)) >= 0)
        status = answer_text(work, line, (size_t)length, path, ++number);
    if (status == OK && ferror(file))
        status = fail_errno(ERROR_IO, "%s", path);
    free(line);
    if (status == OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = fail_errno(ERROR_IO, "standard output");
    return status;
}

static enum result make_vocabulary(struct work *work) {
    int32_t end = tokenizer_added_id(work->tokenizer, "<｜end▁of▁sentence｜>");
    if (end < 0)
        return fail(ERROR_INPUT, "the tokenizer has no token <｜end▁of▁sentence｜>, which ends an answer");
    return tokenizer_grammar_vocabulary(
        work->tokenizer, tokenizer_size(work->tokenizer), end, &work->vocabulary);
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
    buffer_free(&work.prefix);
    buffer_free(&work.out);
    free(work.mask);
    return status;
}

enum result command_grammar(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "grammar",
        .summary = "Says which texts fit JSON Schemas, patterns and tools, and which tokens may come next: a "
                   "line of\n"
                   "JSON for each line of the input.\n"
                   "'nocturne grammar check' tries one schema, pattern or set of tools (see its --help).",
        .notes =
            "A line of the input is an object. What is tried is one of\n"
            "  schema                   a JSON Schema; with strict (true or false)\n"
            "  pattern                  a regular expression that the whole text must match\n"
            "  tools                    a list of functions, as in a request; with tool_choice,\n"
            "                           parallel_tool_calls and strict (true unless it says otherwise)\n"
            "  kind and spec            kind is schema, schema_text, regex or json_object\n"
            "and whitespace is flexible or none. It is tried on\n"
            "  accept and reject        lists of texts: the answer has a list of true (it fits) and\n"
            "                           false for each of them\n"
            "  prefix_text, prefix_hex  the beginning of an answer: allowed_count, mask_sha256 (of the\n"
            "                           bits of all tokens, little-endian) and eos_allowed say what may\n"
            "                           come behind it; with list_allowed true, the tokens' ids too\n"
            "The answer has the line's name. A line that is wrong or refused is answered by name and error.",
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
    if (argc > 1 && !strcmp(argv[1], "check"))
        return command_grammar_check(argc - 1, argv + 1);
    TRY(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    return help_shown ? OK : answer_file(tokenizer, input);
}

#include "recipe/grammar_check.h"

#include "base/buffer.h"
#include "base/options.h"
#include "base/utf8.h"
#include "grammar/grammar.h"

#include <stdio.h>  /* fopen, fread, printf */
#include <string.h> /* strcmp, memchr */

/* What the command line asks for. */
struct asked {
    const char *schema, *pattern, *tools, *tool, *text, *text_file;
    bool json_object, strict, one_call;
    int whitespace, choice;
};

/* ---- reading ---- */

static enum result read_file(const char *path, struct buffer *content) {
    bool standard = !strcmp(path, "-");
    FILE *file = standard ? stdin : fopen(path, "r");
    char piece[4096];
    size_t count;
    if (!file)
        return fail_errno(ERROR_IO, "%s", path);
    buffer_append_text(content, "");
    while ((count = fread(piece, 1, sizeof piece, file)) > 0)
        buffer_append(content, piece, count);
    enum result status = ferror(file) ? fail_errno(ERROR_IO, "%s", path) : OK;
    if (!standard)
        fclose(file);
    return status;
}

static enum result check_usage(const struct asked *asked) {
    int kinds =
        (*asked->schema != '\0') + (*asked->pattern != '\0') + (*asked->tools != '\0') + asked->json_object;
    if (kinds != 1)
        return fail(ERROR_USAGE,
            "grammar check: give one of --schema, --pattern, --tools and --json-object (see "
            "'nocturne grammar check --help')");
    if (!*asked->tools && (*asked->tool || asked->one_call || asked->choice != GRAMMAR_TOOLS_REQUIRED))
        return fail(ERROR_USAGE, "grammar check: --tool-choice, --tool and --one-call go with --tools");
    if (*asked->text && *asked->text_file)
        return fail(ERROR_USAGE, "grammar check: give --text or --text-file, not both");
    return OK;
}

/* `content` holds the file's text. */
static enum result specify(
    const struct asked *asked, struct buffer *content, struct grammar_specification *specification) {
    *specification = (struct grammar_specification){.kind = GRAMMAR_JSON_OBJECT,
        .strict = asked->strict,
        .compact = asked->whitespace == 1,
        .tool_choice = *asked->tool ? GRAMMAR_TOOLS_NAMED : (enum grammar_tool_choice)asked->choice,
        .tool_name = asked->tool,
        .one_call = asked->one_call,
        .marker_token = GRAMMAR_NO_TOKEN};
    if (*asked->pattern) {
        specification->kind = GRAMMAR_REGEX;
        buffer_append_text(content, asked->pattern);
    } else if (!asked->json_object) {
        specification->kind = *asked->schema ? GRAMMAR_SCHEMA : GRAMMAR_TOOLS;
        TRY(read_file(*asked->schema ? asked->schema : asked->tools, content));
    }
    specification->text = content->data;
    specification->bytes = content->bytes;
    return OK;
}

/* The end of a file's last line is no part of the text. */
static enum result read_text(const struct asked *asked, struct buffer *text) {
    buffer_append_text(text, asked->text);
    if (!*asked->text_file)
        return OK;
    TRY(read_file(asked->text_file, text));
    if (text->bytes && text->data[text->bytes - 1] == '\n')
        text->bytes--;
    return OK;
}

/* ---- saying where and what ---- */

static void append_byte(struct buffer *out, unsigned byte) {
    static const char *const names[] = {
        ['\t'] = "<tab>", ['\n'] = "<line end>", ['\r'] = "<carriage return>", [' '] = "<blank>"};
    if (byte <= ' ' && names[byte])
        buffer_append_text(out, names[byte]);
    else if (byte > ' ' && byte < 0x7F)
        buffer_printf(out, "%c", (char)byte);
    else
        buffer_printf(out, "<byte %02X>", byte);
}

static unsigned kind_of(unsigned byte) {
    return byte >= '0' && byte <= '9'    ? 1
           : byte >= 'a' && byte <= 'z'  ? 2
           : byte >= 'A' && byte <= 'Z'  ? 3
           : byte >= 0x80 && byte < 0xC0 ? 4
                                         : 0;
}

/* The last byte of a run of allowed letters, digits or continuations of characters; `byte` when there is none. */
static unsigned end_of_run(const bool allowed[256], unsigned byte) {
    unsigned last = byte;
    while (kind_of(byte) && last < 255 && allowed[last + 1] && kind_of(last + 1) == kind_of(byte))
        last++;
    return last;
}

/* The allowed bytes; all that begin characters beyond ASCII in one. */
static void append_allowed(struct buffer *out, const bool allowed[256], bool end) {
    bool other = false;
    for (unsigned byte = 0; byte < 256; byte++) {
        other = other || (allowed[byte] && byte >= 0xC0);
        if (!allowed[byte] || byte >= 0xC0)
            continue;
        unsigned last = end_of_run(allowed, byte);
        buffer_append_text(out, " ");
        append_byte(out, byte);
        buffer_append_text(out, last > byte + 1 ? "-" : last > byte ? " " : "");
        if (last > byte)
            append_byte(out, last);
        byte = last;
    }
    buffer_append_text(out, other ? " <characters beyond ASCII>" : "");
    buffer_append_text(out, end ? " <the end>" : "");
}

/* Where byte `at` of the text is; as people count, from 1. */
static void append_place(struct buffer *out, const struct buffer *text, size_t at) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at; i++) {
        column = text->data[i] == '\n' ? 1 : column + 1;
        line += text->data[i] == '\n';
    }
    buffer_printf(out, "byte %zu (line %zu, column %zu)", at + 1, line, column);
}

/* What is there, up to the end of the line and some 20 bytes, in whole characters. */
static void append_excerpt(struct buffer *out, const struct buffer *text, size_t at) {
    enum { EXCERPT = 20 };
    size_t count = 0;
    while (at + count < text->bytes && count < EXCERPT && (!count || text->data[at + count] != '\n')) {
        uint32_t character;
        unsigned length = utf8_decode(text->data + at + count, text->bytes - at - count, &character);
        count += length ? length : 1;
    }
    buffer_append_json_string(out, text->data + at, count);
}

static enum result append_next(struct buffer *out, struct grammar_matcher *matcher) {
    char forced[64];
    bool allowed[256];
    size_t bytes = 0;
    TRY(grammar_matcher_forced(matcher, forced, sizeof forced, &bytes));
    if (bytes > 1) {
        buffer_append_text(out, "what must come is ");
        buffer_append_json_string(out, forced, bytes);
        return OK;
    }
    TRY(grammar_matcher_next_bytes(matcher, allowed));
    buffer_append_text(out, "what may come is one of");
    append_allowed(out, allowed, grammar_matcher_accepting(matcher));
    return OK;
}

/* ---- trying ---- */

static enum result try_text(struct grammar_matcher *matcher, const struct buffer *text) {
    struct buffer why = {0};
    size_t taken = 0;
    TRY(grammar_matcher_accept_bytes(matcher, text->data, text->bytes, &taken));
    if (taken == text->bytes && grammar_matcher_accepting(matcher)) {
        printf("the text fits\n");
        return OK;
    }
    if (taken == text->bytes)
        buffer_printf(&why, "the text ends too early, behind byte %zu; ", taken);
    else {
        buffer_append_text(&why, "the text stops fitting at ");
        append_place(&why, text, taken);
        buffer_append_text(&why, ", at ");
        append_excerpt(&why, text, taken);
        buffer_append_text(&why, "; ");
    }
    enum result status = append_next(&why, matcher);
    if (status == OK)
        status = fail(ERROR_INPUT, "%s", why.data);
    buffer_free(&why);
    return status;
}

/* Bytes are all that is asked about, so that a vocabulary of one token beside the end will do. */
static enum result make_vocabulary(struct grammar_vocabulary **vocabulary) {
    const char *const bytes[] = {"", "a"};
    const uint32_t lengths[] = {0, 1};
    return grammar_vocabulary_create(bytes, lengths, 2, 0, vocabulary);
}

static enum result try_grammar(const struct asked *asked, struct grammar *grammar) {
    struct grammar_vocabulary *vocabulary = NULL;
    struct grammar_matcher *matcher = NULL;
    struct buffer text = {0};
    enum result status = read_text(asked, &text);
    if (status == OK)
        status = make_vocabulary(&vocabulary);
    if (status == OK)
        status = grammar_matcher_create(grammar, vocabulary, &matcher);
    if (status == OK)
        status = try_text(matcher, &text);
    grammar_matcher_free(matcher);
    grammar_vocabulary_free(vocabulary);
    buffer_free(&text);
    return status;
}

static enum result check(const struct asked *asked, bool with_text) {
    struct buffer content = {0};
    struct grammar_specification specification;
    struct grammar *grammar = NULL;
    const char *file = *asked->schema ? asked->schema : asked->tools;
    const char *what = asked->json_object   ? "any JSON object"
                       : *asked->pattern    ? "the pattern"
                       : !strcmp(file, "-") ? "standard input"
                                            : file;
    TRY(check_usage(asked));
    enum result status = specify(asked, &content, &specification);
    if (status == OK) {
        status = grammar_compile(&specification, &grammar);
        if (status != OK && specification.kind != GRAMMAR_REGEX)
            status = fail_context(status, "%s", what);
    }
    if (status == OK)
        printf("%s is supported\n", what);
    if (status == OK && with_text)
        status = try_grammar(asked, grammar);
    grammar_free(grammar);
    buffer_free(&content);
    return status;
}

enum result command_grammar_check(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "grammar check",
        .summary = "Says whether answers can be held to a JSON Schema, a pattern or a set of tools, and "
                   "whether a text "
                   "fits.",
        .notes = "Exit code 0: it is supported, and the text (when one is given) fits. 3: it is refused (the "
                 "message\n"
                 "names the keyword and its JSON path, or the offset in the pattern), or the text does not "
                 "fit (the\n"
                 "message says at which byte, and what may come there). No checkpoint is needed.\n\n"
                 "  nocturne grammar check --schema person.schema.json --text '{\"name\":\"Ada\"}'\n"
                 "  nocturne grammar check --pattern '[0-9]{4}-[0-9]{2}' --text 2026-1\n"
                 "  nocturne grammar check --tools tools.json --tool-choice auto --text-file answer.txt",
    };
    static const char *const blanks[] = {"flexible", "none", NULL};
    static const char *const choices[] = {
        "auto", "required", "none", NULL}; /* as GRAMMAR_TOOLS_... less named */
    struct asked asked = {.schema = "", .pattern = "", .tools = "", .tool = "", .text = "", .text_file = ""};
    int choice = 1;
    bool help_shown = false;
    const struct option options[] = {
        {.name = "schema",
            .kind = OPTION_TEXT,
            .value = &asked.schema,
            .placeholder = "FILE",
            .help = "a JSON Schema; - is standard input"},
        {.name = "pattern",
            .kind = OPTION_TEXT,
            .value = &asked.pattern,
            .placeholder = "PATTERN",
            .help = "a regular expression that the whole text must match"},
        {.name = "tools",
            .kind = OPTION_TEXT,
            .value = &asked.tools,
            .placeholder = "FILE",
            .help = "a JSON list of tools, as in a request; - is standard input"},
        {.name = "json-object", .kind = OPTION_FLAG, .value = &asked.json_object, .help = "any JSON object"},
        {.name = "strict",
            .kind = OPTION_FLAG,
            .value = &asked.strict,
            .help = "objects are closed unless they say otherwise; functions are strict unless they do"},
        {.name = "whitespace",
            .kind = OPTION_CHOICE,
            .value = &asked.whitespace,
            .choices = blanks,
            .help = "blanks between the parts of JSON (flexible)"},
        {.name = "tool-choice",
            .kind = OPTION_CHOICE,
            .value = &choice,
            .choices = choices,
            .help = "whether the answer calls tools (required)"},
        {.name = "tool",
            .kind = OPTION_TEXT,
            .value = &asked.tool,
            .placeholder = "NAME",
            .help = "the answer calls this tool"},
        {.name = "one-call", .kind = OPTION_FLAG, .value = &asked.one_call, .help = "one call at most"},
        {.name = "text",
            .kind = OPTION_TEXT,
            .value = &asked.text,
            .placeholder = "TEXT",
            .help = "an answer to try"},
        {.name = "text-file",
            .kind = OPTION_TEXT,
            .value = &asked.text_file,
            .placeholder = "FILE",
            .help = "an answer to try; a line end at its end does not count"},
        {0},
    };
    static const enum grammar_tool_choice meanings[] = {
        GRAMMAR_TOOLS_AUTO, GRAMMAR_TOOLS_REQUIRED, GRAMMAR_TOOLS_NONE};
    TRY(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    asked.choice = (int)meanings[choice];
    return help_shown ? OK : check(&asked, *asked.text || *asked.text_file);
}

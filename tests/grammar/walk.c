/* Random answers by grammars, token by token over a real vocabulary: walk FOLDER_WITH_TOKENIZER <LINES.
 *
 * A line: {"kind": "schema", "regex" or "tools" (one of which is called), "text": the schema, pattern or tools, "strict": flag, "compact": flag, "seed": number,
 * "states": how many states to compare mask and accept at, for every token}. Its answer is {"error": why it was refused} or
 * {"text": the answer} or, when the answer did not end, {}. What must hold of matchers is checked on the way; exit code 1
 * names what did not. */
#include "base/buffer.h"
#include "base/json.h"
#include "recipe/request_grammar.h"
#include "recipe/tokenizer.h"

#include <stdio.h>  /* getline, printf */
#include <stdlib.h> /* exit, calloc */
#include <string.h> /* memcmp */

enum { TOKENS = 24, LONGEST = 6000, END = 1 };

struct walk {
    struct grammar_vocabulary *vocabulary;
    struct grammar_matcher *matcher;
    uint64_t *bits, *again, seed;
    uint32_t count;
    size_t words, line;
    struct buffer text;
};

static void check(const struct walk *walk, bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "line %zu: %s, behind %zu bytes: ", walk->line, what, walk->text.bytes);
    fwrite(walk->text.data, 1, walk->text.bytes, stderr);
    fprintf(stderr, "\n");
    exit(1);
}

static void expect(const struct walk *walk, enum result status) {
    check(walk, status == OK, failure_message());
}

static uint64_t draw(struct walk *walk, uint64_t below) {
    uint64_t x = walk->seed += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (x ^ x >> 31) % below;
}

static bool bit(const uint64_t *bits, uint32_t token) {
    return bits[token >> 6] >> (token & 63) & 1;
}

/* Every token's bit says whether it is accepted. */
static void compare_all(struct walk *walk) {
    for (uint32_t token = 0; token < walk->count; token++) {
        bool accepted = false;
        expect(walk, grammar_matcher_accept(walk->matcher, token, &accepted));
        if (accepted != bit(walk->bits, token)) {
            fprintf(stderr, "token %u: ", token);
            check(walk, false, accepted ? "accepted but not in the mask" : "in the mask but not accepted");
        }
        if (accepted)
            grammar_matcher_rollback(walk->matcher, 1);
    }
    expect(walk, grammar_matcher_mask(walk->matcher, walk->again));
    check(walk, !memcmp(walk->bits, walk->again, walk->words * sizeof *walk->bits), "the mask changed");
}

static void look(struct walk *walk) {
    expect(walk, grammar_matcher_mask(walk->matcher, walk->bits));
    uint64_t any = 0;
    for (size_t i = 0; i < walk->words; i++)
        any |= walk->bits[i];
    check(walk, any != 0, "a dead end");
    check(walk, bit(walk->bits, END) == grammar_matcher_accepting(walk->matcher), "the end's bit is wrong");
}

/* A random token of the mask that is not the end, or the end when there is no other. */
static uint32_t choose(struct walk *walk) {
    uint32_t start = (uint32_t)draw(walk, walk->count);
    for (uint32_t i = 0; i < walk->count; i++) {
        uint32_t token = (start + i) % walk->count;
        if (token != END && bit(walk->bits, token))
            return token;
    }
    return END;
}

static void give_byte(struct walk *walk, char byte) {
    size_t taken = 0;
    expect(walk, grammar_matcher_accept_bytes(walk->matcher, &byte, 1, &taken));
    check(walk, taken == 1, "an allowed byte is refused");
    buffer_append(&walk->text, &byte, 1);
}

/* A byte that leads on to the end, where one of these does; otherwise any. */
static bool go_on(struct walk *walk) {
    static const char closing[] = "\"}]:";
    bool allowed[256];
    expect(walk, grammar_matcher_next_bytes(walk->matcher, allowed));
    for (const char *c = closing; *c && draw(walk, 16); c++)
        if (allowed[(unsigned char)*c]) {
            give_byte(walk, *c);
            return true;
        }
    unsigned start = (unsigned)draw(walk, 256);
    for (unsigned i = 0; i < 256; i++) {
        unsigned byte = (start + i) % 256;
        bool blank = byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
        if (allowed[byte] && (!blank || !draw(walk, 8))) {
            give_byte(walk, (char)byte);
            return true;
        }
    }
    return false;
}

static bool take_tokens(struct walk *walk, const struct tokenizer *tokenizer, int64_t states) {
    for (int i = 0; i < TOKENS; i++) {
        const char *bytes;
        size_t length;
        bool accepted = false;
        look(walk);
        if (i < states)
            compare_all(walk);
        if (bit(walk->bits, END) && !draw(walk, 3))
            return true;
        uint32_t token = choose(walk);
        if (token == END)
            return true;
        expect(walk, grammar_matcher_accept(walk->matcher, token, &accepted));
        check(walk, accepted, "a token of the mask is refused");
        if (tokenizer_token_bytes(tokenizer, (int32_t)token, &bytes, &length))
            buffer_append(&walk->text, bytes, length);
        for (uint64_t extra = draw(walk, 4); extra; extra--)
            if (grammar_matcher_accepting(walk->matcher) || !go_on(walk))
                break;
    }
    return false;
}

/* Each beginning of an answer is allowed, and so is the byte behind it. */
static void check_beginnings(struct walk *walk, struct grammar *grammar) {
    grammar_matcher_free(walk->matcher);
    expect(walk, grammar_matcher_create(grammar, walk->vocabulary, &walk->matcher));
    for (size_t i = 0; i < walk->text.bytes; i++) {
        size_t taken = 0;
        bool allowed[256];
        expect(walk, grammar_matcher_next_bytes(walk->matcher, allowed));
        check(walk, allowed[(unsigned char)walk->text.data[i]], "a beginning of the answer is refused");
        expect(walk, grammar_matcher_accept_bytes(walk->matcher, walk->text.data + i, 1, &taken));
        check(walk, taken == 1, "a byte of the answer is refused");
    }
    check(walk, grammar_matcher_accepting(walk->matcher), "the whole answer may not end");
}

static bool walk_grammar(
    struct walk *walk, struct grammar *grammar, const struct tokenizer *tokenizer, int64_t states) {
    buffer_clear(&walk->text);
    buffer_append_text(&walk->text, "");
    expect(walk, grammar_matcher_create(grammar, walk->vocabulary, &walk->matcher));
    bool ended = take_tokens(walk, tokenizer, states);
    while (!ended && walk->text.bytes < LONGEST) {
        ended = grammar_matcher_accepting(walk->matcher);
        if (!ended && !go_on(walk))
            continue; /* only blanks, passed over this time */
    }
    if (ended)
        check_beginnings(walk, grammar);
    grammar_matcher_free(walk->matcher);
    return ended;
}

static bool is_true(const struct json *line, const char *key) {
    const struct json *value = json_member(line, key);
    return value && value->kind == JSON_TRUE;
}

static void answer(struct walk *walk, const struct tokenizer *tokenizer, const struct json *line) {
    const struct json *text = json_member(line, "text");
    int64_t seed = 0, states = 0;
    struct grammar *grammar = NULL;
    struct buffer out = {0};
    check(walk,
        text && text->kind == JSON_STRING && json_int64(json_member(line, "seed"), &seed) &&
            json_int64(json_member(line, "states"), &states),
        "a line without its members");
    const struct json *kind = json_member(line, "kind");
    struct grammar_specification specification = {.kind = json_is_text(kind, "regex")   ? GRAMMAR_REGEX
                                                          : json_is_text(kind, "tools") ? GRAMMAR_TOOLS
                                                                                        : GRAMMAR_SCHEMA,
        .tool_choice = GRAMMAR_TOOLS_REQUIRED,
        .text = text->text,
        .bytes = text->bytes,
        .strict = is_true(line, "strict"),
        .compact = is_true(line, "compact"),
        .marker_token = GRAMMAR_NO_TOKEN};
    walk->seed = (uint64_t)seed;
    enum result status = grammar_compile(&specification, &grammar);
    check(walk, status == OK || status == ERROR_INPUT, failure_message());
    buffer_append_text(&out, "{");
    if (status != OK) {
        buffer_append_text(&out, "\"error\":");
        buffer_append_json_string(&out, failure_message(), strlen(failure_message()));
    } else if (walk_grammar(walk, grammar, tokenizer, states)) {
        buffer_append_text(&out, "\"text\":");
        buffer_append_json_string(&out, walk->text.data, walk->text.bytes);
    }
    printf("%s}\n", out.data);
    buffer_free(&out);
    grammar_free(grammar);
}

int main(int argc, char **argv) {
    struct tokenizer *tokenizer = NULL;
    struct json_document *document = NULL;
    struct walk walk = {.line = 0};
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    if (argc != 2) {
        fprintf(stderr, "usage: walk FOLDER_WITH_TOKENIZER <LINES\n");
        return 2;
    }
    buffer_append_text(&walk.text, "");
    expect(&walk, tokenizer_load(argv[1], &tokenizer));
    expect(&walk, json_document_create(&document));
    expect(&walk, tokenizer_grammar_vocabulary(tokenizer, tokenizer_size(tokenizer), END, &walk.vocabulary));
    walk.count = grammar_vocabulary_count(walk.vocabulary);
    walk.words = ((size_t)walk.count + 63) / 64;
    walk.bits = calloc(walk.words, sizeof *walk.bits);
    walk.again = calloc(walk.words, sizeof *walk.again);
    check(&walk, walk.bits && walk.again, "no memory");
    while ((length = getline(&line, &room, stdin)) >= 0) {
        const struct json *root = NULL;
        walk.line++;
        expect(&walk, json_parse(document, line, (size_t)length, &root));
        answer(&walk, tokenizer, root);
    }
    free(line);
    free(walk.bits);
    free(walk.again);
    buffer_free(&walk.text);
    grammar_vocabulary_free(walk.vocabulary);
    json_document_free(document);
    tokenizer_free(tokenizer);
    return 0;
}

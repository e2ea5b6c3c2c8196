#include "recipe/tokenizer.h"

#include "base/utf8.h"
#include "recipe/pretokenizer.h"
#include "recipe/unicode_classes.h"
#include "vectors.h"

#include <time.h>

#define DATA SOURCE_DIR "/tests/data/recipe"

static struct tokenizer *tokenizer; /* of the published model */
static struct tokenizer *nano;      /* of the embedded model */

static int setup(void **state) {
    (void)state;
    if (tokenizer_load(DATA, &tokenizer) != OK || tokenizer_load(SOURCE_DIR "/inputs/nano", &nano) != OK) {
        fprintf(stderr, "%s\n", failure_message());
        return 1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    tokenizer_free(nano);
    return 0;
}

/* ---- vectors ---- */

static bool check_encode(const struct json *vector, void *context) {
    (void)context;
    const struct json *text = json_member(vector, "text");
    struct token_list ids = {0};
    assert_int_equal(tokenizer_encode(tokenizer, text->text, text->bytes, &ids), OK);
    check_ids(vector, ids.ids, ids.count, json_member(vector, "ids"));
    free(ids.ids);
    return true;
}

static void encodes_the_published_vectors(void **state) {
    (void)state;
    assert_int_equal(for_each_vector(DATA "/tokenize_cases.jsonl", check_encode, NULL), 437);
}

static void check_text(
    const struct json *vector, const char *member, const struct token_list *ids, bool skip_special) {
    const struct json *expected = json_member(vector, member);
    struct buffer text = {0};
    buffer_append_text(&text, "kept:");
    tokenizer_decode(tokenizer, ids->ids, ids->count, skip_special, &text);
    if (text.bytes != expected->bytes + 5 || memcmp(text.data + 5, expected->text, expected->bytes))
        fail_msg(
            "%s: %s: expected '%s', found '%s'", vector_name(vector), member, expected->text, text.data + 5);
    assert_memory_equal(text.data, "kept:", 5);
    buffer_free(&text);
}

static bool check_decode(const struct json *vector, void *context) {
    (void)context;
    struct token_list ids = {0};
    for (const struct json *id = json_member(vector, "ids")->first; id; id = id->next) {
        int64_t number = -1;
        assert_true(json_int64(id, &number));
        int32_t narrow = (int32_t)number;
        token_list_append(&ids, &narrow, 1);
    }
    check_text(vector, "text", &ids, false);
    check_text(vector, "text_skip_special", &ids, true);
    free(ids.ids);
    return true;
}

static void decodes_the_published_vectors(void **state) {
    (void)state;
    assert_int_equal(for_each_vector(DATA "/detokenize_cases.jsonl", check_decode, NULL), 120);
}

/* ---- lookup ---- */

static void finds_added_tokens(void **state) {
    (void)state;
    assert_int_equal(tokenizer_size(tokenizer), 129280);
    assert_int_equal(tokenizer_added_id(tokenizer, "<｜begin▁of▁sentence｜>"), 0);
    assert_int_equal(tokenizer_added_id(tokenizer, "<｜User｜>"), 128803);
    assert_int_equal(tokenizer_added_id(tokenizer, "</think>"), 128822);
    assert_int_equal(tokenizer_added_id(tokenizer, "<｜image｜>"), -1);
    assert_int_equal(tokenizer_added_id(tokenizer, "the"), -1);
    assert_true(tokenizer_is_special(tokenizer, 0));
    assert_false(tokenizer_is_special(tokenizer, 128803));
    assert_false(tokenizer_is_special(tokenizer, -1));
    const char *bytes;
    size_t count;
    assert_false(tokenizer_token_bytes(tokenizer, 129280, &bytes, &count));
    assert_false(tokenizer_token_bytes(tokenizer, -1, &bytes, &count));
    assert_true(tokenizer_token_bytes(tokenizer, 270, &bytes, &count));
    assert_int_equal(count, 4);
    assert_memory_equal(bytes, " the", 4);
    assert_int_equal(tokenizer_size(nano), 3072);
    assert_int_equal(tokenizer_added_id(nano, "<｜end▁of▁sentence｜>"), 1);
}

static void prompts_never_hold_markers(void **state) {
    (void)state;
    const char *text = "<｜User｜>hi</think>";
    struct token_list plain = {0}, full = {0};
    assert_int_equal(tokenizer_encode_plain(tokenizer, text, strlen(text), &plain), OK);
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), &full), OK);
    assert_int_equal(full.ids[0], 128803);
    assert_int_equal(full.ids[full.count - 1], 128822);
    for (size_t i = 0; i < plain.count; i++)
        assert_true(plain.ids[i] < 128000);
    free(plain.ids);
    free(full.ids);
}

/* ---- properties ---- */

static void check_round_trip(const struct tokenizer *which, const char *text, size_t bytes) {
    struct token_list ids = {0};
    struct buffer back = {0};
    /* A copy that ends at its allocation's end, so that a sanitizer sees reads past it. */
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    assert_int_equal(tokenizer_encode_plain(which, copy, bytes, &ids), OK);
    tokenizer_decode(which, ids.ids, ids.count, false, &back);
    assert_int_equal(back.bytes, bytes);
    if (bytes)
        assert_memory_equal(back.data, text, bytes);
    free(copy);
    free(ids.ids);
    buffer_free(&back);
}

/* Half from a few characters of every class, half any. */
static uint32_t random_character(void) {
    static const uint32_t interesting[] = {'a', 'Z', ' ', ' ', '\n', '\r', '\t', '.', '\'', '$', '7', 0x661,
        0xE9, 0x301, 0x4E00, 0x3042, 0x3099, 0x309B, 0x30FB, 0x3007, 0x200D, 0x1F600, 0xA0, 0x3000, 0x85, 1,
        0xE000, 0x378, 0xFF01};
    uint32_t c;
    if (rand() % 2)
        return interesting[rand() % (int)(sizeof interesting / sizeof interesting[0])];
    do
        c = (uint32_t)rand() % (rand() % 2 ? 0x3100 : 0x110000);
    while (c >= 0xD800 && c < 0xE000);
    return c;
}

static size_t random_text(char *text, int characters) {
    size_t bytes = 0;
    for (int i = 0; i < characters; i++)
        bytes += utf8_encode(random_character(), text + bytes);
    return bytes;
}

static void random_text_round_trips(void **state) {
    (void)state;
    srand(4);
    char text[4 * 200];
    check_round_trip(tokenizer, "", 0);
    for (int round = 0; round < 4000; round++) {
        size_t bytes = random_text(text, rand() % 200);
        check_round_trip(round % 2 ? tokenizer : nano, text, bytes);
    }
}

/* Pieces encoded one by one give the ids of the whole. */
static void pieces_are_independent(void **state) {
    (void)state;
    srand(5);
    char text[4 * 100];
    for (int round = 0; round < 2000; round++) {
        size_t bytes = random_text(text, 100);
        struct token_list whole = {0}, pieces = {0};
        assert_int_equal(tokenizer_encode_plain(tokenizer, text, bytes, &whole), OK);
        for (const char *at = text; at < text + bytes;) {
            const char *next = pretokenizer_next(at, text + bytes);
            assert_true(next > at && next <= text + bytes);
            struct token_list one = {0};
            assert_int_equal(tokenizer_encode_plain(tokenizer, at, (size_t)(next - at), &one), OK);
            token_list_append(&pieces, one.ids, one.count);
            free(one.ids);
            at = next;
        }
        assert_int_equal(whole.count, pieces.count);
        assert_memory_equal(whole.ids, pieces.ids, whole.count * sizeof *whole.ids);
        free(whole.ids);
        free(pieces.ids);
    }
}

static void refuses_invalid_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int offset;
    } cases[] = {
        {"\xFF", 0}, {"abcdefghij\x80", 10}, {"\xC3\xA9\xED\xA0\x80", 2}, {"ab\xE4\xBD", 2}, {"\xC0\x80", 0}};
    struct token_list ids = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[32];
        snprintf(expected, sizeof expected, "byte offset %d ", cases[i].offset);
        assert_int_equal(
            tokenizer_encode_plain(tokenizer, cases[i].text, strlen(cases[i].text), &ids), ERROR_INPUT);
        assert_non_null(strstr(failure_message(), expected));
        assert_int_equal(
            tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), &ids), ERROR_INPUT);
    }
    assert_int_equal(ids.count, 0);
    srand(6);
    for (int round = 0; round < 20000; round++) {
        char text[16];
        size_t bytes = (size_t)(rand() % 16);
        for (size_t i = 0; i < bytes; i++)
            text[i] = (char)rand();
        enum result status = tokenizer_encode(tokenizer, text, bytes, &ids);
        assert_true(status == OK || status == ERROR_INPUT);
    }
    free(ids.ids);
}

static void decode_bears_any_ids(void **state) {
    (void)state;
    srand(7);
    for (int round = 0; round < 2000; round++) {
        int32_t ids[64];
        for (int i = 0; i < 64; i++)
            ids[i] = rand() % 8 ? rand() % 130000 : rand() - RAND_MAX / 2;
        struct buffer text = {0};
        tokenizer_decode(tokenizer, ids, 64, round % 2, &text);
        for (size_t at = 0; at < text.bytes;) {
            uint32_t character;
            unsigned length = utf8_decode(text.data + at, text.bytes - at, &character);
            assert_true(length > 0);
            at += length;
        }
        buffer_free(&text);
    }
}

/* ---- hostile lengths ---- */

static void long_pieces_are_not_quadratic(void **state) {
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "aaab", "\xE4\xBD\xA0", "!", " \n", "\xE2\x80\x8D",
        "1", "<｜", "\xC2\xA0", "\x01 ", "<｜User", "\xE3\x81\x82\xE3\x81\x84", "qwxz", "\r", "<"};
    enum { BYTES = 1 << 20 };
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t unit = strlen(units[i]), bytes = 0;
        for (; bytes + unit <= BYTES; bytes += unit)
            memcpy(text + bytes, units[i], unit);
        struct token_list ids = {0};
        clock_t start = clock();
        assert_int_equal(tokenizer_encode(tokenizer, text, bytes, &ids), OK);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds >
            10) /* seen: below 0.5; sanitizers and busy machines are slower, quadratic time is minutes */
            fail_msg("a megabyte of '%s' took %.1f s", units[i], seconds);
        struct buffer back = {0};
        tokenizer_decode(tokenizer, ids.ids, ids.count, false, &back);
        assert_int_equal(back.bytes, bytes);
        assert_memory_equal(back.data, text, bytes);
        buffer_free(&back);
        free(ids.ids);
    }
    free(text);
}

/* ---- pre-tokenizer, against a literal reading of its patterns ---- */

/* The third pattern by plain backtracking over an array of classes. Each alternative returns its end or -1. */
struct characters {
    uint32_t at[64];
    unsigned classes[64];
    int count;
};

static bool is_blank(const struct characters *c, int i) {
    return i < c->count && (c->classes[i] & CLASS_SPACE);
}

static bool is_newline(const struct characters *c, int i) {
    return i < c->count && (c->at[i] == '\r' || c->at[i] == '\n');
}

static bool is_word(const struct characters *c, int i) {
    return i < c->count && (c->classes[i] & (CLASS_LETTER | CLASS_MARK));
}

static bool is_mark(const struct characters *c, int i) {
    return i < c->count && (c->classes[i] & (CLASS_PUNCTUATION | CLASS_SYMBOL));
}

static bool is_latin(const struct characters *c, int i) {
    return i < c->count && ((c->at[i] >= 'A' && c->at[i] <= 'Z') || (c->at[i] >= 'a' && c->at[i] <= 'z'));
}

static int run(const struct characters *c, int i, bool (*is)(const struct characters *, int)) {
    while (is(c, i))
        i++;
    return i;
}

static int match_literally(const struct characters *c, int i) {
    if (strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", (int)c->at[i]) && c->at[i] < 128 && c->at[i] &&
        is_latin(c, i + 1))
        return run(c, i + 1, is_latin);
    bool optional = !is_newline(c, i) && !(c->classes[i] & CLASS_LETTER) && !is_mark(c, i);
    if (optional && is_word(c, i + 1))
        return run(c, i + 1, is_word);
    if (is_word(c, i))
        return run(c, i, is_word);
    int marks = c->at[i] == ' ' && is_mark(c, i + 1) ? i + 1 : i;
    if (is_mark(c, marks))
        return run(c, run(c, marks, is_mark), is_newline);
    for (int blanks = run(c, i, is_blank); blanks >= i; blanks--) {
        if (is_newline(c, blanks))
            return run(c, blanks, is_newline);
    }
    for (int blanks = run(c, i, is_blank); blanks > i; blanks--) {
        if (blanks == c->count || is_blank(c, blanks))
            return blanks;
    }
    return is_blank(c, i) ? run(c, i, is_blank) : -1;
}

/* Marks the ends of the pieces that the third pattern makes of characters [first, end). */
static void cut_words(const struct characters *all, int first, int end, bool *cut) {
    struct characters part = {.count = end - first};
    for (int i = first; i < end; i++) {
        part.at[i - first] = all->at[i];
        part.classes[i - first] = all->classes[i];
    }
    for (int i = 0; i < part.count;) {
        int next = match_literally(&part, i);
        if (next < 0) {
            i++;
            continue;
        }
        cut[first + i] = cut[first + next] = true;
        i = next;
    }
    cut[first] = cut[end] = true;
}

static void cut_literally(const struct characters *all, bool *cut) {
    for (int i = 0; i < all->count;) {
        unsigned kind = all->classes[i] & (CLASS_NUMBER | CLASS_IDEOGRAPH);
        int end = i;
        while (end < all->count && (all->classes[end] & (CLASS_NUMBER | CLASS_IDEOGRAPH)) == kind &&
               !(kind == CLASS_NUMBER && end == i + 3))
            end++;
        cut_words(all, i, end, cut);
        i = end;
    }
}

static void pieces_are_what_the_patterns_say(void **state) {
    (void)state;
    srand(8);
    for (int round = 0; round < 100000; round++) {
        struct characters all = {.count = rand() % 14};
        char text[4 * 64];
        size_t offsets[65], bytes = 0;
        bool expected[65] = {0}, found[65] = {0};
        for (int i = 0; i < all.count; i++) {
            all.at[i] = random_character();
            all.classes[i] = unicode_class(all.at[i]);
            offsets[i] = bytes;
            bytes += utf8_encode(all.at[i], text + bytes);
        }
        offsets[all.count] = bytes;
        cut_literally(&all, expected);
        int i = 0;
        for (const char *at = text; at < text + bytes;) {
            at = pretokenizer_next(at, text + bytes);
            while (offsets[i] < (size_t)(at - text))
                i++;
            found[i] = true;
        }
        expected[0] = false;
        if (memcmp(expected, found, sizeof found)) {
            for (int k = 0; k <= all.count; k++)
                print_error(
                    "U+%04X expected %d found %d\n", k < all.count ? all.at[k] : 0, expected[k], found[k]);
            fail_msg("round %d", round);
        }
    }
}

/* ---- files ---- */

/* The nano tokenizer's file with `old` replaced by `new` must be refused with `message`. */
static void check_refused(const char *old, const char *new, const char *message) {
    FILE *file = fopen(SOURCE_DIR "/inputs/nano/tokenizer.json", "r");
    assert_non_null(file);
    static char text[1 << 20];
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    char *at = strstr(text, old);
    if (!at)
        fail_msg("'%s' is not in the file", old);
    struct buffer changed = {0};
    buffer_append(&changed, text, (size_t)(at - text));
    buffer_append_text(&changed, new);
    buffer_append_text(&changed, at + strlen(old));
    struct tokenizer *bad = NULL;
    if (tokenizer_load_memory("some/tokenizer.json", changed.data, changed.bytes, &bad) == OK)
        fail_msg("accepted '%s' for '%s'", new, old);
    assert_null(bad);
    if (!strstr(failure_message(), message) || strncmp(failure_message(), "some/tokenizer.json: ", 21) != 0)
        fail_msg("expected '%s' in '%s'", message, failure_message());
    buffer_free(&changed);
}

static void refuses_other_pipelines(void **state) {
    (void)state;
    static const struct {
        const char *old, *new, *message;
    } cases[] = {
        {"\"truncation\": null", "\"truncation\": {}", "truncation: expected null"},
        {"\"padding\": null", "\"padding\": {}", "padding: expected null"},
        {"\"normalizers\": []", "\"normalizers\": [{\"type\":\"NFC\"}]",
            "normalizer.normalizers: expected 0 elements"},
        {"\\\\p{N}{1,3}", "\\\\p{N}{1,2}",
            "pre_tokenizer.pretokenizers[0].pattern.Regex: expected \"\\p{N}{1,3}\""},
        {"\"Isolated\"", "\"Removed\"",
            "pretokenizers[0].behavior: expected \"Isolated\", found \"Removed\""},
        {"\"invert\": false", "\"invert\": true", "pretokenizers[0].invert: expected false, found true"},
        {"\"use_regex\": false", "\"use_regex\": true", "pretokenizers[3].use_regex: expected false"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "pretokenizers[3].add_prefix_space"},
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", "model.type: expected \"BPE\", found \"Unigram\""},
        {"\"dropout\": null", "\"dropout\": 0.1", "model.dropout: expected null"},
        {"\"unk_token\": null", "\"unk_token\": \"<unk>\"", "model.unk_token: expected null"},
        {"\"byte_fallback\": false", "\"byte_fallback\": true", "model.byte_fallback: expected false"},
        {"\"merges\": [", "\"merges\": [\"th\",", "model.merges[0]: expected two tokens"},
        {"\"merges\": [", "\"merges\": [\"t zzzz\",", "model.merges[0]: its right part is no token"},
        {"\"merges\": [", "\"merges\": [\"\\u0120th \\u0120th\",", "model.merges[0]: its result is no token"},
        {"\"merges\": [", "\"merges\": [\"t h\",", "model.merges[1]: the same pair stands there twice"},
        {"\"merges\": [", "\"merges\": [5,",
            "model.merges[0]: expected a string or a pair of strings, found number"},
        {"\"!\": 3", "\"!\": 4", "two tokens have the id 4"},
        {"\"!\": 3", "\"!\": -1", "expected an id from 0"},
        {"\"!\": 3", "\"!\": 1048576", "expected an id from 0 to 1048575, found 1048576"},
        {"\"@\": 34", "\"@@@@@@@@\": 34", "no token for byte 0x40 alone"},
        {"\"!\": 3", "\"\": 3", "the token of id 3 has no characters"},
        {"\"lstrip\": false", "\"lstrip\": true", "added_tokens[0].lstrip: expected false"},
        {"\"added_tokens\": [", "\"added_tokens\": [{\"id\": 3, \"content\": \"x\"},",
            "that of another token of model.vocab"},
        {"\"added_tokens\": [", "\"added_tokens\": [{\"id\": 0, \"content\": \"\"},",
            "added_tokens[0].content: expected a string"},
        {"\"added_tokens\": [", "\"added_tokens\": [5,", "added_tokens[0]"},
        {"{", "[", "line 2 column 11: expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(cases[i].old, cases[i].new, cases[i].message);
    struct tokenizer *bad = NULL;
    assert_int_equal(tokenizer_load("/nonexistent", &bad), ERROR_IO);
    assert_non_null(strstr(failure_message(), "/nonexistent/tokenizer.json"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes_the_published_vectors),
        cmocka_unit_test(decodes_the_published_vectors),
        cmocka_unit_test(finds_added_tokens),
        cmocka_unit_test(prompts_never_hold_markers),
        cmocka_unit_test(random_text_round_trips),
        cmocka_unit_test(pieces_are_independent),
        cmocka_unit_test(refuses_invalid_utf8),
        cmocka_unit_test(decode_bears_any_ids),
        cmocka_unit_test(long_pieces_are_not_quadratic),
        cmocka_unit_test(pieces_are_what_the_patterns_say),
        cmocka_unit_test(refuses_other_pipelines),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

#include "base/json.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static struct json_document *document;

static int setup(void **state) {
    (void)state;
    return json_document_create(&document);
}

static int teardown(void **state) {
    (void)state;
    json_document_free(document);
    return 0;
}

/* Parses a copy that ends exactly at the allocation's end, so that a sanitizer sees reads past it. */
static enum result parse_bytes_exactly(const char *text, size_t bytes, const struct json **root) {
    char *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    enum result status = json_parse(document, copy, bytes, root);
    free(copy);
    return status;
}

static const struct json *parse(const char *text) {
    const struct json *root = NULL;
    if (parse_bytes_exactly(text, strlen(text), &root) != OK)
        fail_msg("%s: %s", text, failure_message());
    return root;
}

static void refuse(const char *text, size_t bytes, const char *message) {
    const struct json *root;
    if (parse_bytes_exactly(text, bytes, &root) == OK)
        fail_msg("accepted: %s", text);
    if (!strstr(failure_message(), message))
        fail_msg("%s: expected '%s' in '%s'", text, message, failure_message());
}

static void reads_every_kind(void **state) {
    (void)state;
    const struct json *root =
        parse(" {\"a\": [1, -2.5e3, true, false, null, \"x\"], \"b\": {}, \"c\": []}\n");
    assert_int_equal(root->kind, JSON_OBJECT);
    assert_int_equal(root->count, 3);
    const struct json *a = json_member(root, "a");
    assert_int_equal(a->kind, JSON_ARRAY);
    assert_int_equal(a->count, 6);
    static const enum json_kind kinds[] = {
        JSON_NUMBER, JSON_NUMBER, JSON_TRUE, JSON_FALSE, JSON_NULL, JSON_STRING};
    int i = 0;
    for (const struct json *child = a->first; child; child = child->next, i++) {
        assert_int_equal(child->kind, kinds[i]);
        assert_null(child->key);
    }
    assert_string_equal(a->first->next->text, "-2.5e3");
    assert_int_equal(json_member(root, "b")->count, 0);
    assert_null(json_member(root, "c")->first);
    assert_null(json_member(root, "d"));
    assert_null(json_member(a, "a"));
    assert_null(json_member(NULL, "a"));
    assert_string_equal(json_kind_name(json_member(root, "b")), "object");
    assert_string_equal(json_kind_name(NULL), "absent");
}

static void unescapes_strings(void **state) {
    (void)state;
    const struct json *root = parse("\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC\\ud83d\\ude00 plain "
                                    "text beyond eight bytes \xE4\xBD\xA0\"");
    const char *expected =
        "a\"\\/\b\f\n\r\tA\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 plain text beyond eight bytes \xE4\xBD\xA0";
    assert_string_equal(root->text, expected);
    assert_int_equal(root->bytes, strlen(expected));
    root = parse("\"a\\u0000b\"");
    assert_int_equal(root->bytes, 3);
    assert_memory_equal(root->text, "a\0b", 4);
}

/* Each special byte at each place of the eight-byte stride. */
static void strings_of_all_alignments(void **state) {
    (void)state;
    for (int length = 0; length < 40; length++) {
        for (int place = 0; place <= length; place++) {
            char text[128], expected[128];
            int n = snprintf(text, sizeof text, "\"%.*s\\n%.*s\"", place,
                "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", length - place,
                "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKLMNOPQRSTUVWXYZ");
            snprintf(expected, sizeof expected, "%.*s\n%.*s", place,
                "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", length - place,
                "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKLMNOPQRSTUVWXYZ");
            const struct json *root = NULL;
            assert_int_equal(parse_bytes_exactly(text, (size_t)n, &root), OK);
            assert_string_equal(root->text, expected);
            text[1 + place] = '\x01';
            refuse(text, (size_t)n, "control character");
            text[1 + place] = '\xFF';
            refuse(text, (size_t)n, "invalid UTF-8");
        }
    }
}

static void refuses_bad_text(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "line 1 column 1: expected a value, found the end"},
        {"  ", "line 1 column 3: expected a value"},
        {"{\"a\":\n 1,}", "line 2 column 4: expected a key in quotes, found '}'"},
        {"[1,]", "column 4: expected a value, found ']'"},
        {"[1 2]", "column 4: expected ',' or ']', found '2'"},
        {"{\"a\" 1}", "column 6: expected ':' after a key, found '1'"},
        {"{\"a\":1", "expected ',' or '}', found the end"},
        {"{a:1}", "expected a key in quotes, found 'a'"},
        {"[1}", "expected ',' or ']', found '}'"},
        {"\xEF\xBB\xBF{}", "byte order mark"},
        {"{} x", "column 4: expected the end of the text, found 'x'"},
        {"nul", "expected a value, found 'n'"},
        {"nullx", "expected the end of the text"},
        {"'a'", "expected a value, found '''"},
        {"\"a", "line 1 column 1: this string is not closed"},
        {"\"\\x\"", "unknown escape"},
        {"\"\\", "unknown escape"},
        {"\"\\u12\"", "four hexadecimal digits"},
        {"\"\\u12g4\"", "four hexadecimal digits"},
        {"\"\\ud800\"", "lone surrogate"},
        {"\"\\ud800\\u0041\"", "lone surrogate"},
        {"\"\\udc00\"", "lone surrogate"},
        {"\"\\ud800\\ud800\"", "lone surrogate"},
        {"\"\t\"", "control character"},
        {"\"\xC0\x80\"", "invalid UTF-8"},
        {"\"\xED\xA0\x80\"", "invalid UTF-8"},
        {"\"\xF4\x90\x80\x80\"", "invalid UTF-8"},
        {"\"\xE4\xBD\"", "invalid UTF-8"},
        {"01", "must not begin with 0"},
        {"-", "expected a digit"},
        {"1.", "expected a digit"},
        {"1e", "expected a digit"},
        {".5", "expected a value"},
        {"+1", "expected a value"},
        {"1e999", "number out of range"},
        {"-1e400", "number out of range"},
        {"NaN", "expected a value"},
        {"Infinity", "expected a value"},
        {"/* */ 1", "expected a value"},
        {"\xFF", "found byte 0xFF"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refuse(cases[i].text, strlen(cases[i].text), cases[i].message);
    refuse("\0", 1, "found byte 0x00");
    refuse("[1]\0", 4, "expected the end of the text, found byte 0x00");
}

static void refuses_every_truncation(void **state) {
    (void)state;
    const char *text = "{\"k\\u00e9y\":[1.5e-3,true,{\"\xE4\xBD\xA0\":\"a\\\"b\"}],\"z\":null}";
    const struct json *root;
    parse(text);
    for (size_t bytes = 0; bytes < strlen(text); bytes++)
        assert_int_equal(parse_bytes_exactly(text, bytes, &root), ERROR_INPUT);
}

static void bounds_depth(void **state) {
    (void)state;
    char text[2 * JSON_DEPTH_LIMIT + 4];
    memset(text, '[', JSON_DEPTH_LIMIT + 1);
    memset(text + JSON_DEPTH_LIMIT, ']', JSON_DEPTH_LIMIT);
    const struct json *root;
    assert_int_equal(parse_bytes_exactly(text, 2 * JSON_DEPTH_LIMIT, &root), OK);
    memset(text, '[', JSON_DEPTH_LIMIT + 1);
    refuse(text, JSON_DEPTH_LIMIT + 1, "nested deeper than 128");
}

static void last_duplicate_wins_at_the_first_place(void **state) {
    (void)state;
    const struct json *root = parse("{\"a\":1,\"b\":2,\"a\":[3],\"c\":4,\"b\":\"x\"}");
    assert_int_equal(root->count, 3);
    assert_string_equal(root->first->key, "a");
    assert_int_equal(root->first->kind, JSON_ARRAY);
    assert_int_equal(root->first->count, 1);
    assert_string_equal(root->first->next->key, "b");
    assert_string_equal(root->first->next->text, "x");
    assert_string_equal(root->first->next->next->key, "c");
    assert_null(root->first->next->next->next);
}

/* Objects large enough for the hash table, with keys of equal prefix, twice each. */
static void large_objects(void **state) {
    (void)state;
    enum { MEMBERS = 100000 };
    char *text = malloc(MEMBERS * 2 * 40);
    assert_non_null(text);
    size_t bytes = 0;
    text[bytes++] = '{';
    for (int i = 0; i < 2 * MEMBERS; i++)
        bytes += (size_t)sprintf(text + bytes, "%s\"key-%d\": %d", i ? "," : "", i % MEMBERS, i);
    text[bytes++] = '}';
    clock_t start = clock();
    const struct json *root = NULL;
    assert_int_equal(json_parse(document, text, bytes, &root), OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_int_equal(root->count, MEMBERS);
    int i = 0;
    for (const struct json *member = root->first; member; member = member->next, i++) {
        int64_t number = -1;
        assert_true(json_int64(member, &number));
        assert_int_equal(number, MEMBERS + i);
    }
    assert_int_equal(i, MEMBERS);
    assert_true(seconds < 5);
    free(text);
}

static void converts_numbers(void **state) {
    (void)state;
    int64_t number;
    uint64_t natural;
    double real;
    assert_true(json_int64(parse("-9223372036854775808"), &number));
    assert_true(number == INT64_MIN);
    assert_false(json_int64(parse("9223372036854775808"), &number));
    assert_true(json_uint64(parse("18446744073709551615"), &natural));
    assert_true(natural == UINT64_MAX);
    assert_false(json_uint64(parse("18446744073709551616"), &natural));
    assert_false(json_uint64(parse("-1"), &natural));
    assert_true(json_uint64(parse("-0"), &natural));
    assert_int_equal(natural, 0);
    assert_false(json_int64(parse("1.0"), &number));
    assert_false(json_int64(parse("1e2"), &number));
    assert_false(json_int64(parse("\"1\""), &number));
    assert_true(json_double(parse("1e2"), &real));
    assert_true(real == 100.0);
    assert_true(json_double(parse("1e-400"), &real));
    assert_true(real == 0.0);
    assert_false(json_double(parse("true"), &real));
    assert_true(json_is_text(parse("\"abc\""), "abc"));
    assert_false(json_is_text(parse("\"abc\\u0000\""), "abc"));
    assert_false(json_is_text(NULL, "abc"));
    char digits[2000]; /* no exponent, but too large */
    memset(digits, '9', sizeof digits);
    refuse(digits, sizeof digits, "number out of range");
}

static void survives_random_bytes(void **state) {
    (void)state;
    static const char alphabet[] = "{}[]\",:0123456789.eE+-truefalsn\\u \n\xC3\xA9\xFF\x01";
    srand(1);
    int accepted = 0;
    for (int round = 0; round < 50000; round++) {
        char text[48];
        size_t bytes = (size_t)(rand() % (int)sizeof text);
        for (size_t i = 0; i < bytes; i++)
            text[i] = alphabet[rand() % (int)(sizeof alphabet - 1)];
        const struct json *root;
        enum result status = parse_bytes_exactly(text, bytes, &root);
        assert_true(status == OK || status == ERROR_INPUT);
        accepted += status == OK;
    }
    assert_true(accepted > 0);
}

static void reads_files(void **state) {
    (void)state;
    char path[] = "/tmp/nocturne-json-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, "{\"a\":\n}", 7), 7);
    close(file);
    const struct json *root;
    assert_int_equal(json_parse_file(document, path, &root), ERROR_INPUT);
    assert_non_null(strstr(failure_message(), path));
    assert_non_null(strstr(failure_message(), "line 2 column 1"));
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(json_parse_file(document, path, &root), ERROR_INPUT);
    unlink(path);
    assert_int_equal(json_parse_file(document, path, &root), ERROR_IO);
    assert_int_equal(json_parse_file(document, "/tmp", &root), ERROR_IO);
}

/* ---- utf8.h ---- */

static void utf8_round_trips_every_character(void **state) {
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[4];
        uint32_t back;
        unsigned length = utf8_encode(c, text);
        unsigned got = utf8_decode(text, length, &back);
        bool surrogate = c >= 0xD800 && c < 0xE000;
        assert_true(surrogate ? got == 0 : got == length && back == c);
    }
}

static void utf8_finds_maximal_invalid_parts(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t invalid;
    } cases[] = {
        {"\x80", 1},
        {"\xC1\x80", 1},
        {"\xE0\x80\x80", 1},
        {"\xE4\xBD", 2},
        {"\xE4\xBDx", 2},
        {"\xED\xA0\x80", 1},
        {"\xF0\x9F\x98", 3},
        {"\xF0\x9Fx", 2},
        {"\xF5\x80\x80", 1},
        {"\xC3", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t invalid;
        assert_int_equal(utf8_decode(cases[i].text, strlen(cases[i].text), &invalid), 0);
        assert_int_equal(invalid, cases[i].invalid);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_kind),
        cmocka_unit_test(unescapes_strings),
        cmocka_unit_test(strings_of_all_alignments),
        cmocka_unit_test(refuses_bad_text),
        cmocka_unit_test(refuses_every_truncation),
        cmocka_unit_test(bounds_depth),
        cmocka_unit_test(last_duplicate_wins_at_the_first_place),
        cmocka_unit_test(large_objects),
        cmocka_unit_test(converts_numbers),
        cmocka_unit_test(survives_random_bytes),
        cmocka_unit_test(reads_files),
        cmocka_unit_test(utf8_round_trips_every_character),
        cmocka_unit_test(utf8_finds_maximal_invalid_parts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

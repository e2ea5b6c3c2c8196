#include "recipe/python_json.h"

#include "vectors.h"

#include <math.h>

#define NUMBERS SOURCE_DIR "/tests/data/recipe/number_format_cases.json"

typedef void append_function(struct buffer *text, const struct json *value);

static void check_written(append_function *append, const char *text, size_t bytes, const char *expected) {
    struct json_document *document = NULL;
    const struct json *value = NULL;
    struct buffer written = {0};
    assert_int_equal(json_document_create(&document), OK);
    if (json_parse(document, text, bytes, &value) != OK)
        fail_msg("%s: %s", text, failure_message());
    append(&written, value);
    assert_string_equal(written.data, expected);
    buffer_free(&written);
    json_document_free(document);
}

static void numbers_as_published(void **state) {
    (void)state;
    struct json_document *document = NULL;
    const struct json *cases = NULL;
    int count = 0;
    assert_int_equal(json_document_create(&document), OK);
    assert_int_equal(json_parse_file(document, NUMBERS, &cases), OK);
    for (const struct json *pair = cases->first; pair; pair = pair->next, count++)
        check_written(python_json_append, pair->first->text, pair->first->bytes, pair->first->next->text);
    assert_int_equal(count, 1500);
    json_document_free(document);
}

static void numbers_in_both_styles(void **state) {
    (void)state;
    static const struct {
        const char *source, *python, *compact;
    } cases[] = {
        {"1e16", "1e+16", "1e+16"},
        {"1e15", "1000000000000000.0", "1000000000000000.0"},
        {"0.0001", "0.0001", "0.0001"},
        {"1e-5", "1e-05", "0.00001"},
        {"1.5E-5", "1.5e-05", "0.000015"},
        {"1e-6", "1e-06", "1e-6"},
        {"5e-324", "5e-324", "5e-324"},
        {"2.2250738585072014e-308", "2.2250738585072014e-308", "2.2250738585072014e-308"},
        {"1.7976931348623157e308", "1.7976931348623157e+308", "1.7976931348623157e+308"},
        {"5.6843418860808015e-14", "5.684341886080802e-14", "5.684341886080802e-14"},
        {"9007199254740993.0", "9007199254740992.0", "9007199254740992.0"},
        {"0.1000000000000000055511151231257827", "0.1", "0.1"},
        {"-0", "-0.0", "-0.0"},
        {"-0.0e5", "-0.0", "-0.0"},
        {"1e-400", "0.0", "0.0"},
        {"-1e-400", "-0.0", "-0.0"},
        {"0e999999999999", "0.0", "0.0"},
        {"18446744073709551615", "18446744073709551615", "18446744073709551615"},
        {"18446744073709551616", "1.8446744073709552e+19", "1.8446744073709552e+19"},
        {"-9223372036854775808", "-9223372036854775808", "-9223372036854775808"},
        {"-9223372036854775809", "-9.223372036854776e+18", "-9.223372036854776e+18"},
        {"100E-2", "1.0", "1.0"},
        {"123456.789", "123456.789", "123456.789"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_written(python_json_append, cases[i].source, strlen(cases[i].source), cases[i].python);
        check_written(compact_json_append, cases[i].source, strlen(cases[i].source), cases[i].compact);
    }
}

/* The number of significant digits in a number's text. */
static int digits_of(const char *text) {
    int count = 0, zeros = 0;
    for (; *text && *text != 'e'; text++) {
        if (*text == '0')
            zeros += count > 0;
        else if (*text > '0' && *text <= '9') {
            count += zeros + 1;
            zeros = 0;
        }
    }
    return count;
}

/* Reads back to the same double, with no more digits than needed. */
static void check_double(double value) {
    char source[64], shorter[64];
    struct json number = {.kind = JSON_NUMBER, .text = source};
    struct buffer written = {0};
    snprintf(source, sizeof source, "%.20e", value);
    number.bytes = strlen(source);
    python_json_append(&written, &number);
    if (strtod(written.data, NULL) != value)
        fail_msg("%s became %s", source, written.data);
    int digits = digits_of(written.data);
    if (digits > 1) {
        snprintf(shorter, sizeof shorter, "%.*e", digits - 2, value);
        if (strtod(shorter, NULL) == value)
            fail_msg("%s became %s, but %s is shorter", source, written.data, shorter);
    }
    buffer_free(&written);
}

static void doubles_are_shortest(void **state) {
    (void)state;
    uint64_t seed = 5;
    for (int exponent = -1074; exponent < 1024; exponent++)
        check_double(ldexp(1, exponent)); /* where doubles change their density */
    for (int i = 0; i < 200000; i++) {
        double value;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        memcpy(&value, &seed, sizeof value);
        if (isfinite(value))
            check_double(value);
    }
}

static void texts_and_structure(void **state) {
    (void)state;
    static const char source[] = "{\"b\":[1,2.50,true,false,null],\"a\":{},\"c\":[],\"t\":\"\\\"\\\\\\/"
                                 "\\b\\f\\n\\r\\t\\u0001\\u001F\\u007F\xC3\xA9\"}";
    check_written(python_json_append, source, sizeof source - 1,
        "{\"b\": [1, 2.5, true, false, null], \"a\": {}, \"c\": [], \"t\": "
        "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7F\xC3\xA9\"}");
    check_written(compact_json_append, source, sizeof source - 1,
        "{\"b\":[1,2.5,true,false,null],\"a\":{},\"c\":[],\"t\":"
        "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7F\xC3\xA9\"}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_as_published),
        cmocka_unit_test(numbers_in_both_styles),
        cmocka_unit_test(doubles_are_shortest),
        cmocka_unit_test(texts_and_structure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

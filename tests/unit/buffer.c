#include "base/buffer.h"
#include "base/json.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void appends(void **state) {
    (void)state;
    struct buffer buffer = {0};
    buffer_append(&buffer, "", 0);
    assert_string_equal(buffer.data, "");
    for (int i = 0; i < 1000; i++)
        buffer_printf(&buffer, "%d,", i);
    buffer_append_text(&buffer, "end");
    assert_int_equal(buffer.bytes, 10 * 2 + 90 * 3 + 900 * 4 + 3);
    assert_int_equal(strlen(buffer.data), buffer.bytes);
    assert_memory_equal(buffer.data, "0,1,2,", 6);
    size_t capacity = buffer.capacity;
    buffer_clear(&buffer);
    assert_int_equal(buffer.bytes, 0);
    assert_string_equal(buffer.data, "");
    assert_int_equal(buffer.capacity, capacity);
    char *large = malloc(70001);
    assert_non_null(large);
    memset(large, 'x', 70000);
    large[70000] = 0;
    buffer_printf(&buffer, "<%s>", large); /* longer than what is there */
    assert_int_equal(buffer.bytes, 70002);
    assert_int_equal(buffer.data[70001], '>');
    free(large);
    buffer_free(&buffer);
    assert_null(buffer.data);
}

static void check_string(const char *text, size_t bytes, const char *expected) {
    struct buffer buffer = {0};
    buffer_append_json_string(&buffer, text, bytes);
    assert_string_equal(buffer.data, expected);
    buffer_free(&buffer);
}

static void writes_json_strings(void **state) {
    (void)state;
    check_string("", 0, "\"\"");
    check_string(NULL, 0, "\"\"");
    check_string("a\"b\\c/\b\f\n\r\t\x01\x1f\x7f", 14, "\"a\\\"b\\\\c/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\"");
    check_string("a\0b", 3, "\"a\\u0000b\"");
    check_string("\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80", 9, "\"\xC3\xA9\xE4\xBD\xA0\xF0\x9F\x98\x80\"");
    check_string("x\xFFy", 3, "\"x\xEF\xBF\xBDy\"");
    check_string("\xE4\xBD", 2, "\"\xEF\xBF\xBD\"");
    check_string("\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

/* Whatever is written is read back by the reader; valid text unchanged. */
static void strings_round_trip(void **state) {
    (void)state;
    struct json_document *document = NULL;
    assert_int_equal(json_document_create(&document), OK);
    struct buffer buffer = {0};
    srand(2);
    for (int round = 0; round < 20000; round++) {
        char text[32];
        size_t bytes = (size_t)(rand() % 32);
        bool ascii = round % 2;
        for (size_t i = 0; i < bytes; i++)
            text[i] = (char)(rand() % (ascii ? 128 : 256));
        buffer_clear(&buffer);
        buffer_append_json_string(&buffer, text, bytes);
        const struct json *value = NULL;
        assert_int_equal(json_parse(document, buffer.data, buffer.bytes, &value), OK);
        if (ascii) {
            assert_int_equal(value->bytes, bytes);
            assert_memory_equal(value->text, text, bytes);
        }
    }
    buffer_free(&buffer);
    json_document_free(document);
}

static void check_float(float value, const char *expected) {
    struct buffer buffer = {0};
    buffer_append_json_float(&buffer, value);
    assert_string_equal(buffer.data, expected);
    buffer_free(&buffer);
}

static void writes_json_floats(void **state) {
    (void)state;
    check_float(0, "0");
    check_float(-0.0f, "-0");
    check_float(1, "1");
    check_float(0.1f, "0.1");
    check_float(-1.5f, "-1.5");
    check_float(-0.0033470004f, "-0.0033470003");
    check_float(16777216, "16777216");
    check_float(FLT_MAX, "3.4028235e+38");
    check_float(FLT_TRUE_MIN, "1e-45");
    check_float(NAN, "null");
    check_float(INFINITY, "null");
    check_float(-INFINITY, "null");
}

/* Significant digits of a decimal spelling. */
static int significant_digits(const char *text) {
    int digits = 0, zeros = 0;
    for (; *text && *text != 'e'; text++) {
        if (*text == '0')
            zeros += digits > 0;
        else if (*text >= '1' && *text <= '9') {
            digits += zeros + 1;
            zeros = 0;
        }
    }
    return digits;
}

/* Reads back to the same float, and one digit less would not. */
static void floats_are_shortest(void **state) {
    (void)state;
    srand(3);
    struct buffer buffer = {0};
    for (int round = 0; round < 100000; round++) {
        uint32_t bits = (uint32_t)rand() << 16 ^ (uint32_t)rand();
        float value;
        memcpy(&value, &bits, 4);
        if (!isfinite(value) || value == 0)
            continue;
        buffer_clear(&buffer);
        buffer_append_json_float(&buffer, value);
        assert_true(strtof(buffer.data, NULL) == value);
        int least = 1;
        char text[32];
        while (snprintf(text, sizeof text, "%.*g", least, (double)value), strtof(text, NULL) != value)
            least++;
        assert_int_equal(significant_digits(buffer.data), significant_digits(text));
    }
    buffer_free(&buffer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends),
        cmocka_unit_test(writes_json_strings),
        cmocka_unit_test(strings_round_trip),
        cmocka_unit_test(writes_json_floats),
        cmocka_unit_test(floats_are_shortest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

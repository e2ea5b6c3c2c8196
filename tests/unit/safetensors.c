/* One shard's header: what is accepted, and each fault with the message that names it. */
#include "model/safetensors.h"
#include "base/error.h"
#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct json_document *document;

/* A file in memory: length, header, `data` zero bytes. Exactly sized, so that the sanitizer sees any read past the end. */
static unsigned char *make_file(const char *text, uint64_t length, int64_t data, int64_t *bytes) {
    size_t header = strlen(text);
    *bytes = (int64_t)(8 + header) + data;
    unsigned char *file = calloc(1, (size_t)*bytes);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)(length >> 8 * i);
    memcpy(file + 8, text, header);
    return file;
}

static enum result parse(const char *text, int64_t data, struct safetensors_header *header) {
    int64_t bytes;
    unsigned char *file = make_file(text, strlen(text), data, &bytes);
    enum result status = safetensors_parse("shard", file, bytes, document, header);
    free(file);
    return status;
}

static void expect_refused(const char *text, int64_t data, const char *more) {
    struct safetensors_header header;
    enum result status = parse(text, data, &header);
    if (status == OK)
        fail_msg("accepted: %s", text);
    assert_int_equal(status, ERROR_INPUT);
    if (!strstr(failure_message(), "shard: ") || !strstr(failure_message(), more))
        fail_msg("expected \"%s\" in: %s", more, failure_message());
    assert_null(header.entries);
}

static void test_accepts(void **state) {
    (void)state;
    struct safetensors_header header;
    /* Out of order, every dtype, with metadata and padding; 89 bytes of header before 64-bit alignment. */
    const char *text = "{\"__metadata__\":{\"format\":\"pt\"},"
                       "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                       "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                       "\"c.weight\":{\"data_offsets\":[20,26],\"shape\":[3,2],\"dtype\":\"F8_E4M3\"},"
                       "\"c.scale\":{\"dtype\":\"F8_E8M0\",\"shape\":[1,1],\"data_offsets\":[26,27]},"
                       "\"d \\\": x\":{\"dtype\":\"I8\",\"shape\":[5],\"data_offsets\":[27,32]}}    ";
    char *padded = calloc(1, strlen(text) + 9);
    strcpy(padded, text);
    while (strlen(padded) % 8)
        strcat(padded, " ");
    assert_int_equal(parse(padded, 32, &header), OK);
    int64_t data = 8 + (int64_t)strlen(padded);
    static const char *const names[] = {"a", "b", "c.weight", "c.scale", "d \": x"};
    static const enum tensor_dtype dtypes[] = {
        TENSOR_F32, TENSOR_BF16, TENSOR_F8_E4M3, TENSOR_F8_E8M0, TENSOR_I8};
    static const int64_t ends[] = {8, 20, 26, 27, 32};
    assert_int_equal(header.count, 5);
    assert_int_equal(header.data_begin, data);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(header.entries[i].name, names[i]);
        assert_int_equal(header.entries[i].dtype, dtypes[i]);
        assert_int_equal(header.entries[i].begin, data + (i ? ends[i - 1] : 0));
        assert_int_equal(header.entries[i].end, data + ends[i]);
    }
    assert_int_equal(header.entries[0].dimensions, 1);
    assert_int_equal(header.entries[0].shape[1], 1);
    assert_int_equal(header.entries[1].shape[0], 2);
    assert_int_equal(header.entries[1].shape[1], 3);
    safetensors_header_free(&header);
    free(padded);

    assert_int_equal(parse("{}", 0, &header), OK);
    assert_int_equal(header.count, 0);
    safetensors_header_free(&header);
}

static void test_lengths(void **state) {
    (void)state;
    const char *text = "{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    struct safetensors_header header;
    int64_t bytes;
    /* Every truncation of a whole file. */
    unsigned char *file = make_file(text, strlen(text), 4, &bytes);
    for (int64_t cut = 0; cut < bytes; cut++) {
        unsigned char *copy = malloc(cut ? (size_t)cut : 1);
        memcpy(copy, file, (size_t)cut);
        assert_int_equal(safetensors_parse("shard", copy, cut, document, &header), ERROR_INPUT);
        assert_non_null(strstr(failure_message(), "truncated"));
        free(copy);
    }
    assert_int_equal(safetensors_parse("shard", file, bytes, document, &header), OK);
    safetensors_header_free(&header);
    free(file);
    expect_refused(text, 5, "expected 65 bytes, the end of the last tensor, found 66");

    static const uint64_t lengths[] = {
        UINT64_MAX, INT64_MAX, (uint64_t)INT64_MAX + 1, SAFETENSORS_HEADER_LIMIT + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        file = make_file(text, lengths[i], 4, &bytes);
        assert_int_equal(safetensors_parse("shard", file, bytes, document, &header), ERROR_INPUT);
        assert_non_null(strstr(failure_message(), "no safetensors file"));
        free(file);
    }
    file = make_file(text, 0, 4, &bytes);
    assert_int_equal(safetensors_parse("shard", file, bytes, document, &header), ERROR_INPUT);
    assert_non_null(strstr(failure_message(), "not the JSON"));
    free(file);
}

#define ENTRY(dtype, shape, offsets)                                                                         \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_entries(void **state) {
    (void)state;
    static const struct {
        const char *text, *more;
    } cases[] = {
        {"[]", "expected an object, found array"},
        {"{", "not the JSON"},
        {"{\"a\":3}", "tensor a: expected an object, found number"},
        {"{\"__metadata__\":[]}", "__metadata__: expected an object"},
        {"{\"\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "expected a name"},
        {"{\"a\\u0000b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "without NUL"},
        {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", "tensor a: dtype: expected F32"},
        {"{\"a\":{\"dtype\":\"I8\",\"data_offsets\":[0,4]}}", "tensor a: shape"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[4]}}", "tensor a: data_offsets"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4],\"strides\":[1]}}",
            "strides: unknown field"},
        {ENTRY("\"F16\"", "[2]", "[0,4]"), "found F16"},
        {ENTRY("\"i8\"", "[4]", "[0,4]"), "found i8"},
        {ENTRY("3", "[4]", "[0,4]"), "found number"},
        {ENTRY("\"I8\"", "[]", "[0,4]"), "1 or 2 sizes"},
        {ENTRY("\"I8\"", "[1,2,2]", "[0,4]"), "1 or 2 sizes"},
        {ENTRY("\"I8\"", "{}", "[0,4]"), "1 or 2 sizes"},
        {ENTRY("\"I8\"", "[0]", "[0,0]"), "sizes from 1 up, found 0"},
        {ENTRY("\"I8\"", "[-4]", "[0,4]"), "found -4"},
        {ENTRY("\"I8\"", "[4.0]", "[0,4]"), "found 4.0"},
        {ENTRY("\"I8\"", "[4e0]", "[0,4]"), "found 4e0"},
        {ENTRY("\"I8\"", "[99999999999999999999]", "[0,4]"), "found 99999999999999999999"},
        {ENTRY("\"I8\"", "[\"4\"]", "[0,4]"), "found string"},
        {ENTRY("\"I8\"", "[4294967296,4294967296]", "[0,4]"), "more than a file holds"},
        {ENTRY("\"F32\"", "[2305843009213693952,4]", "[0,4]"), "more than a file holds"},
        {ENTRY("\"I8\"", "[4]", "[0]"), "expected [begin, end]"},
        {ENTRY("\"I8\"", "[4]", "[0,4,8]"), "expected [begin, end]"},
        {ENTRY("\"I8\"", "[4]", "[4,0]"), "expected [begin, end]"},
        {ENTRY("\"I8\"", "[4]", "[-4,0]"), "expected [begin, end]"},
        {ENTRY("\"I8\"", "[4]", "[0,\"4\"]"), "expected [begin, end]"},
        {ENTRY("\"I8\"", "[4]", "[9223372036854775803,9223372036854775807]"), "expected [begin, end]"},
        {ENTRY("\"I8\"", "[4]", "[0,3]"), "expected 4 bytes for I8 of shape [4], found 3"},
        {ENTRY("\"BF16\"", "[2,2]", "[0,4]"), "expected 8 bytes for BF16 of shape [2, 2], found 4"},
        {ENTRY("\"I8\"", "[5]", "[0,5]"), "tensor a ends at byte"},
        {ENTRY("\"I8\"", "[3]", "[1,4]"), "there is a gap"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(cases[i].text, 4, cases[i].more);
}

#define PAIR(first, second) "{\"a\":{" first "},\"b\":{" second "}}"
#define I8(size, offsets) "\"dtype\":\"I8\",\"shape\":[" size "],\"data_offsets\":" offsets

static void test_places(void **state) {
    (void)state;
    expect_refused(PAIR(I8("4", "[0,4]"), I8("4", "[2,6]")), 6, "tensor b: expected at byte");
    expect_refused(PAIR(I8("4", "[0,4]"), I8("4", "[2,6]")), 6, "the end of a, found at");
    expect_refused(PAIR(I8("4", "[0,4]"), I8("4", "[0,4]")), 4, "they overlap");
    expect_refused(PAIR(I8("4", "[0,4]"), I8("2", "[5,7]")), 7, "there is a gap");
    expect_refused(PAIR(I8("4", "[0,4]"), I8("2", "[4,6]")), 8, "the end of the last tensor");
    /* b begins one byte after the header, whose length decides whether that is even. */
#define ODD PAIR(I8("1", "[0,1]"), "\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[1,5]")
    expect_refused(strlen(ODD) % 2 ? ODD " " : ODD, 5, "no multiple of the 2 bytes");
}

static void test_duplicates(void **state) {
    (void)state;
    expect_refused("{\"a\":{" I8("4", "[0,4]") "},\"a\":{" I8("4", "[0,4]") "}}", 4, "a name is there twice");
    expect_refused("{\"a\":{\"dtype\":\"F32\"," I8("4", "[0,4]") "}}", 4, "a name is there twice");
    /* Colons and quotes inside names are no members. */
    struct safetensors_header header;
    assert_int_equal(parse("{\"a:\\\"b:\":{" I8("4", "[0,4]") "}}", 4, &header), OK);
    safetensors_header_free(&header);
}

static int set_up(void **state) {
    (void)state;
    return json_document_create(&document) == OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    json_document_free(document);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_duplicates),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

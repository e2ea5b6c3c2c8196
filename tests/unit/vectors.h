/* Test helper: runs a check on every line of a JSONL file under tests/data/. */
#ifndef NOCTURNE_TESTS_UNIT_VECTORS_H
#define NOCTURNE_TESTS_UNIT_VECTORS_H

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* True when the line was checked, false when it is of no concern. */
typedef bool vector_check(const struct json *vector, void *context);

/* Returns how many lines were checked. */
static inline int for_each_vector(const char *path, vector_check *check, void *context) {
    struct json_document *document = NULL;
    assert_int_equal(json_document_create(&document), OK);
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("%s: cannot open", path);
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    int checked = 0;
    while ((bytes = getline(&line, &capacity, file)) > 0) {
        const struct json *vector = NULL;
        if (json_parse(document, line, (size_t)bytes, &vector) != OK)
            fail_msg("%s: %s", path, failure_message());
        checked += check(vector, context);
    }
    free(line);
    fclose(file);
    json_document_free(document);
    return checked;
}

/* The vector's name, for messages. */
static inline const char *vector_name(const struct json *vector) {
    const struct json *name = json_member(vector, "name");
    return name ? name->text : "?";
}

/* Compares ids with a JSON array of numbers. */
static inline void check_ids(
    const struct json *vector, const int32_t *ids, size_t count, const struct json *expected) {
    assert_non_null(expected);
    size_t i = 0;
    for (const struct json *id = expected->first; id; id = id->next, i++) {
        int64_t number = -1;
        assert_true(json_int64(id, &number));
        if (i >= count || ids[i] != number)
            fail_msg("%s: id %zu of %zu: expected %d, found %d", vector_name(vector), i, count, (int)number,
                i < count ? ids[i] : -1);
    }
    if (count != i)
        fail_msg("%s: expected %zu ids, found %zu", vector_name(vector), i, count);
}

#endif

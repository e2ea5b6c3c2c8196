/* Test helper: the files of tests/data/recipe/images/. */
#ifndef NOCTURNE_TESTS_UNIT_IMAGE_FILES_H
#define NOCTURNE_TESTS_UNIT_IMAGE_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define IMAGES_FOLDER SOURCE_DIR "/tests/data/recipe/images/"

struct test_file {
    uint8_t *bytes;
    size_t count;
};

/* Free bytes with free(). */
static inline struct test_file read_test_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s: cannot open", path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    assert_true(size >= 0);
    struct test_file content = {malloc((size_t)size + 1), (size_t)size};
    assert_non_null(content.bytes);
    assert_int_equal(fread(content.bytes, 1, content.count, file), content.count);
    fclose(file);
    return content;
}

/* A file of IMAGES_FOLDER. */
static inline struct test_file read_image_file(const char *name, const char *suffix) {
    char path[512];
    snprintf(path, sizeof path, "%s%s%s", IMAGES_FOLDER, name, suffix);
    return read_test_file(path);
}

#endif

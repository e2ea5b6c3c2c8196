/* What the tests of kernels/ share: random data, and the check that an operation's result for a token is right and does
 * not depend on the other tokens, the number of threads or the cuts, in each instruction set this machine has. */
#ifndef NOCTURNE_TESTS_KERNELS_CHECK_H
#define NOCTURNE_TESTS_KERNELS_CHECK_H

#include "base/error.h"
#include "kernels/cpu/operations/number_formats.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- random data ---- */

static uint64_t random_state = 1;

static inline uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

/* Between -1 and 1. */
static inline float random_float(void) {
    return (float)(int32_t)random_bits() * 0x1p-31f;
}

static inline void *allocate_or_fail(size_t bytes) {
    void *memory = calloc(1, bytes + 1);
    assert_non_null(memory);
    return memory;
}

static inline float *random_floats(size_t count, float size) {
    float *values = allocate_or_fail(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = random_float() * size;
    return values;
}

static inline uint16_t *random_bf16(size_t count) {
    uint16_t *values = allocate_or_fail(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = (uint16_t)(float_bits(random_float()) >> 16);
    return values;
}

/* A matrix with random codes; values and scales are freed by the caller. */
static inline struct matrix random_matrix(enum weight_format format, int32_t rows, int32_t columns) {
    size_t count = (size_t)rows * (size_t)columns;
    size_t groups = ((size_t)columns + 31) / 32;
    struct matrix w = {NULL, NULL, format, rows, columns};
    if (format == WEIGHT_F32) {
        w.values = random_floats(count, 1);
        return w;
    }
    if (format == WEIGHT_BF16) {
        w.values = random_bf16(count);
        return w;
    }
    uint8_t *codes = allocate_or_fail(count);
    for (size_t i = 0; i < count; i++)
        codes[i] = (uint8_t)random_bits();
    if (format != WEIGHT_FP4_ROW)
        for (size_t i = 0; i < count; i++)
            codes[i] = (codes[i] & 127) == 127 ? 0 : codes[i]; /* checkpoints hold no NaN */
    uint8_t *scales = allocate_or_fail(groups * (size_t)rows);
    for (size_t i = 0; i < groups * (size_t)rows; i++)
        scales[i] = (uint8_t)(120 + random_bits() % 4);
    w.values = codes;
    w.scales = scales;
    return w;
}

static inline void free_matrix(struct matrix *w) {
    free((void *)w->values);
    free((void *)w->scales);
}

/* The value of one weight, by the definition of its format. */
static inline double weight_value(const struct matrix *w, int32_t row, int32_t column) {
    int64_t at = (int64_t)row * w->columns + column;
    int64_t groups = (w->columns + 31) / 32;
    const uint8_t *bytes = w->values;
    int32_t scale_row = w->format == WEIGHT_FP8_TILE ? row / 32 : row;
    double scale = w->scales != NULL ? ldexp(1, w->scales[scale_row * groups + column / 32] - 127) : 1;
    switch (w->format) {
    case WEIGHT_F32:
        return ((const float *)w->values)[at];
    case WEIGHT_BF16:
        return bf16_value(((const uint16_t *)w->values)[at]);
    case WEIGHT_FP8_TILE:
    case WEIGHT_FP8_ROW:
        return e4m3_value(bytes[at]) * scale;
    case WEIGHT_FP4_ROW:
        return e2m1_value(bytes[at / 2] >> (at % 2 * 4) & 15) * scale;
    }
    return NAN;
}

/* Rows [tokens, columns] of x in an encoding, with some bytes between them; data is freed by the caller. */
static inline struct rows encoded_rows(
    enum row_encoding encoding, const float *x, int32_t tokens, int32_t columns) {
    struct rows rows = {NULL, encoding, columns, row_bytes(encoding, columns) + 12};
    rows.data = allocate_or_fail((size_t)tokens * (size_t)rows.stride);
    for (int32_t t = 0; t < tokens; t++)
        encode_row(encoding, x + (int64_t)t * columns, columns, (uint8_t *)rows.data + t * rows.stride);
    return rows;
}

/* ---- trials ---- */

/* An operation under test on tokens [first, first + count): writes `bytes` bytes per token to out. */
struct trial {
    const char *name;
    void (*run)(const struct kernels *kernels, struct stream *stream, const void *context, int32_t first,
        int32_t count, void *out);
    const void *context;
    int32_t tokens;
    size_t bytes;
    /* The expected floats of all tokens, or NULL when the caller looks at the results itself. */
    const double *expected;
    double tolerance; /* of a difference, relative to 1 + the largest expected value of the token */
};

static inline void assert_near(const struct trial *trial, const float *found, const char *set) {
    size_t width = trial->bytes / sizeof(float);
    for (int32_t t = 0; t < trial->tokens; t++) {
        const double *expected = trial->expected + (size_t)t * width;
        double top = 0;
        for (size_t i = 0; i < width; i++)
            top = fabs(expected[i]) > top ? fabs(expected[i]) : top;
        for (size_t i = 0; i < width; i++) {
            double value = found[(size_t)t * width + i];
            if (!(fabs(value - expected[i]) <= trial->tolerance * (1 + top)))
                fail_msg("%s (%s): token %d, value %zu of %zu: %.9g, expected %.9g", trial->name, set, t, i,
                    width, value, expected[i]);
        }
    }
}

/* Runs the trial in pieces of `piece` tokens and compares every bit with `whole`. */
static inline void assert_same_in_pieces(const struct trial *trial, const struct kernels *kernels,
    struct stream *stream, int32_t piece, const uint8_t *whole) {
    for (int32_t first = 0; first < trial->tokens; first += piece) {
        int32_t count = trial->tokens - first < piece ? trial->tokens - first : piece;
        size_t bytes = (size_t)count * trial->bytes;
        uint8_t *part = allocate_or_fail(bytes);
        memset(part, 0xa5, bytes);
        trial->run(kernels, stream, trial->context, first, count, part);
        if (memcmp(part, whole + (size_t)first * trial->bytes, bytes) != 0)
            fail_msg("%s (%s, %d threads): tokens %d to %d alone differ from all %d at once", trial->name,
                kernels->instruction_set, kernels->threads, first, first + count - 1, trial->tokens);
        free(part);
    }
}

enum { INSTRUCTION_SETS = 4 };
static const char *const instruction_set_names[INSTRUCTION_SETS] = {
    "generic", "avx2", "avx512", "avx512bf16"};

/* Checks one instruction set; false when this machine does not have it. `results`, when given, receives the bytes. */
static inline bool check_set(const struct trial *trial, const char *set, uint8_t *results) {
    size_t bytes = (size_t)trial->tokens * trial->bytes;
    uint8_t *whole = allocate_or_fail(bytes);
    for (int32_t threads = 1; threads <= 3; threads++) {
        const struct kernels *kernels;
        struct stream *stream;
        if (kernels_cpu_create(threads, set, &kernels) != OK) {
            free(whole);
            return false;
        }
        assert_int_equal(kernels->stream_create(kernels, &stream), OK);
        if (threads == 1) {
            memset(whole, 0xa5, bytes);
            trial->run(kernels, stream, trial->context, 0, trial->tokens, whole);
            if (trial->expected != NULL)
                assert_near(trial, (const float *)whole, set);
        } else {
            assert_same_in_pieces(trial, kernels, stream, trial->tokens, whole);
        }
        assert_same_in_pieces(trial, kernels, stream, 1, whole);
        assert_same_in_pieces(trial, kernels, stream, 5, whole);
        kernels->stream_free(kernels, stream);
        kernels_free(kernels);
    }
    if (results != NULL)
        memcpy(results, whole, bytes);
    free(whole);
    return true;
}

static inline void check_all_sets(const struct trial *trial) {
    int32_t checked = 0;
    for (size_t i = 0; i < sizeof instruction_set_names / sizeof instruction_set_names[0]; i++)
        checked += check_set(trial, instruction_set_names[i], NULL);
    assert_true(checked >= 1);
}

#endif

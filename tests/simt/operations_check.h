/* What the tests of operations share: arrays on either backend, and the comparison of the CUDA backend's results with the CPU's and
 * with its own for fewer tokens. Nothing here needs the emulation: the same tests run on a device.
 */
#ifndef NOCTURNE_TESTS_OPERATIONS_CHECK_H
#define NOCTURNE_TESTS_OPERATIONS_CHECK_H

#include "tests/unit/kernels_check.h"

/* ---- arrays ---- */

enum { MOST_ARRAYS = 24 };

struct device {
    const struct kernels *kernels;
    struct stream *stream;
    int32_t count;
    void *arrays[MOST_ARRAYS];
};

static inline struct device open_device(const struct kernels *kernels, struct stream *stream) {
    struct device device = {.kernels = kernels, .stream = stream};
    return device;
}

/* Zeroed; released by close_device. */
static inline void *device_array(struct device *device, size_t bytes) {
    void *memory = NULL;
    assert_true(device->count < MOST_ARRAYS);
    assert_int_equal(device->kernels->allocate(device->kernels, bytes > 0 ? bytes : 1, &memory), OK);
    device->arrays[device->count++] = memory;
    return memory;
}

static inline void *to_device(struct device *device, const void *host, size_t bytes) {
    void *memory = device_array(device, bytes);
    device->kernels->copy_in(device->stream, memory, host, bytes);
    return memory;
}

/* Waits for the work and fails the test if it failed. */
static inline void from_device(struct device *device, void *host, const void *memory, size_t bytes) {
    device->kernels->copy_out(device->stream, host, memory, bytes);
    if (device->kernels->synchronize(device->stream) != OK)
        fail_msg("%s", failure_message());
}

static inline struct matrix matrix_to_device(struct device *device, const struct matrix *host) {
    struct matrix placed;
    void *memory = device_array(device, (size_t)device->kernels->placed_bytes(device->kernels, host));
    assert_int_equal(device->kernels->place(device->kernels, host, memory, &placed), OK);
    return placed;
}

static inline void close_device(struct device *device) {
    assert_int_equal(device->kernels->synchronize(device->stream), OK);
    for (int32_t i = 0; i < device->count; i++)
        device->kernels->release(device->kernels, device->arrays[i]);
}

/* ---- both backends ---- */

struct backends {
    const struct kernels *kernels[2]; /* CPU, CUDA */
    struct stream *stream[2];
};

static inline struct backends open_backends(void) {
    struct backends b;
    assert_int_equal(kernels_cpu_create(1, "generic", &b.kernels[0]), OK);
    if (kernels_cuda_create(0, &b.kernels[1]) != OK)
        fail_msg("%s", failure_message());
    for (int32_t i = 0; i < 2; i++)
        assert_int_equal(b.kernels[i]->stream_create(b.kernels[i], &b.stream[i]), OK);
    return b;
}

static inline void close_backends(struct backends *b) {
    for (int32_t i = 0; i < 2; i++) {
        b->kernels[i]->stream_free(b->kernels[i], b->stream[i]);
        kernels_free(b->kernels[i]);
    }
}

/* ---- comparison ---- */

enum { SAME_BITS = 0 }; /* tolerance of a trial whose bytes are promised */

static inline bool is_near(float found, float expected, double slack) {
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? isnan(found) != 0 : found == expected;
    return fabs((double)found - (double)expected) <= slack;
}

/* Each token's floats lie within tolerance * (1 + its largest expected magnitude) of the CPU's. */
static inline void assert_rows_near(const struct trial *trial, const float *found, const float *expected) {
    size_t width = trial->bytes / sizeof(float);
    for (int32_t t = 0; t < trial->tokens; t++) {
        const float *of_token = expected + (size_t)t * width;
        double top = 0;
        for (size_t i = 0; i < width; i++)
            top = isfinite(of_token[i]) && fabs((double)of_token[i]) > top ? fabs((double)of_token[i]) : top;
        for (size_t i = 0; i < width; i++)
            if (!is_near(found[(size_t)t * width + i], of_token[i], trial->tolerance * (1 + top)))
                fail_msg("%s: token %d of %d, value %zu of %zu: %.9g on CUDA, %.9g on the CPU", trial->name,
                    t, trial->tokens, i, width, (double)found[(size_t)t * width + i], (double)of_token[i]);
    }
}

/* Runs a trial on both backends; then in pieces on the CUDA backend, which must give the same bits. */
static inline void compare_backends(const struct trial *trial) {
    struct backends b = open_backends();
    size_t bytes = (size_t)trial->tokens * trial->bytes;
    uint8_t *result[2];
    for (int32_t i = 0; i < 2; i++) {
        result[i] = allocate_or_fail(bytes);
        memset(result[i], 0xa5, bytes);
        trial->run(b.kernels[i], b.stream[i], trial->context, 0, trial->tokens, result[i]);
    }
    if (trial->tolerance > 0)
        assert_rows_near(trial, (const float *)result[1], (const float *)result[0]);
    for (size_t i = 0; i < bytes && trial->tolerance <= 0; i++)
        if (result[0][i] != result[1][i])
            fail_msg("%s: token %zu of %d, byte %zu of %zu: %d on CUDA, %d on the CPU", trial->name,
                i / trial->bytes, trial->tokens, i % trial->bytes, trial->bytes, result[1][i], result[0][i]);
    assert_same_in_pieces(trial, b.kernels[1], b.stream[1], 1, result[1]);
    if (trial->tokens > 5)
        assert_same_in_pieces(trial, b.kernels[1], b.stream[1], 5, result[1]);
    free(result[0]);
    free(result[1]);
    close_backends(&b);
}

/* ---- data ---- */

/* Random values, some of them zeros, denormal, of any size, infinite or NaN. */
static inline float *edge_floats(size_t count) {
    float *values = random_floats(count, 3);
    for (size_t i = 0; i < count; i++) {
        uint32_t kind = random_bits() % 64;
        if (kind == 0)
            values[i] = i % 2 ? 0.0f : -0.0f;
        if (kind == 1)
            values[i] = bits_float(random_bits() & 0x807fffffu); /* denormal */
        if (kind == 2)
            values[i] = bits_float(random_bits()); /* any bits */
        if (kind == 3 && i % 7 == 0)
            values[i] = i % 3 ? INFINITY : -INFINITY;
        if (kind == 4 && i % 7 == 0)
            values[i] = i % 2 ? NAN : -NAN;
    }
    return values;
}

static inline int32_t *random_ids(size_t count, int32_t limit) {
    int32_t *ids = allocate_or_fail(count * sizeof *ids);
    for (size_t i = 0; i < count; i++)
        ids[i] = (int32_t)(random_bits() % (uint32_t)limit);
    return ids;
}

#endif

/* What the tests of attention and choice share: the backends under test, arrays on their devices, and key/value rows
 * in blocks.
 *
 * The CUDA backend runs twice, as on a device of one multiprocessor and on one of many: launch shapes differ, bits
 * must not. */
#ifndef NOCTURNE_TESTS_SIMT_BLOCKS_CHECK_H
#define NOCTURNE_TESTS_SIMT_BLOCKS_CHECK_H

#include "simt.h"
#include "tests/unit/kernels_check.h"

struct backend {
    const struct kernels *kernels;
    struct stream *stream;
};

struct backends {
    struct backend cpu, narrow, wide;
};

enum { MANY_MULTIPROCESSORS = 4096 };

static inline struct backend open_cuda(int32_t multiprocessors) {
    struct simt_options options = simt_get_options();
    struct backend backend;
    options.multiprocessors = multiprocessors;
    options.uninitialised = 1;
    simt_set_options(&options);
    assert_int_equal(kernels_cuda_create(0, &backend.kernels), OK);
    assert_int_equal(backend.kernels->stream_create(backend.kernels, &backend.stream), OK);
    return backend;
}

static inline struct backends open_backends(void) {
    struct backends all;
    assert_int_equal(kernels_cpu_create(1, "generic", &all.cpu.kernels), OK);
    assert_int_equal(all.cpu.kernels->stream_create(all.cpu.kernels, &all.cpu.stream), OK);
    all.narrow = open_cuda(1);
    all.wide = open_cuda(MANY_MULTIPROCESSORS);
    return all;
}

static inline void close_backend(struct backend *backend) {
    backend->kernels->stream_free(backend->kernels, backend->stream);
    kernels_free(backend->kernels);
}

static inline void close_backends(struct backends *all) {
    close_backend(&all->cpu);
    close_backend(&all->narrow);
    close_backend(&all->wide);
}

/* ---- arrays ---- */

/* Device memory of exactly `bytes`, filled from host memory unless that is NULL. */
static inline void *upload(const struct backend *backend, const void *host, size_t bytes) {
    void *device = NULL;
    assert_int_equal(backend->kernels->allocate(backend->kernels, bytes, &device), OK);
    if (host != NULL)
        backend->kernels->copy_in(backend->stream, device, host, bytes);
    return device;
}

static inline void download(const struct backend *backend, void *host, const void *device, size_t bytes) {
    backend->kernels->copy_out(backend->stream, host, device, bytes);
    assert_int_equal(backend->kernels->synchronize(backend->stream), OK);
}

/* What one run has uploaded. */
struct uploads {
    void *memory[16];
    int32_t count;
};

static inline void *upload_kept(
    const struct backend *backend, struct uploads *uploads, const void *host, size_t bytes) {
    void *device = upload(backend, host, bytes);
    assert_true(uploads->count < 16);
    uploads->memory[uploads->count++] = device;
    return device;
}

static inline void release_uploads(const struct backend *backend, struct uploads *uploads) {
    for (int32_t i = 0; i < uploads->count; i++)
        backend->kernels->release(backend->kernels, uploads->memory[i]);
    uploads->count = 0;
}

/* ---- rows in blocks ---- */

/* Rows of several sequences in blocks that lie in mixed order, in host memory, with the values they hold. */
struct stored {
    struct block_rows rows;
    struct block_tables tables;
    int32_t sequences, most; /* most: rows of each */
    int32_t blocks;
    float *values; /* [sequences, most, columns] */
};

static inline uint8_t *stored_row(const struct stored *s, int32_t sequence, int32_t row) {
    int32_t entry = row / s->rows.rows_per_block - s->tables.first_block[sequence];
    assert_true(entry >= 0 && entry < s->tables.stride);
    int32_t block = s->tables.blocks[sequence * s->tables.stride + entry];
    return s->rows.base + block * s->rows.block_bytes + s->rows.offset +
           row % s->rows.rows_per_block * row_bytes(s->rows.encoding, s->rows.columns);
}

static inline const float *stored_value(const struct stored *s, int32_t sequence, int32_t row) {
    return s->values + ((int64_t)sequence * s->most + row) * s->rows.columns;
}

/* Puts a row's values into its block and keeps what the encoding makes of them. */
static inline void store_row(struct stored *s, int32_t sequence, int32_t row, const float *x) {
    uint8_t *at = stored_row(s, sequence, row);
    float *value = s->values + ((int64_t)sequence * s->most + row) * s->rows.columns;
    encode_row(s->rows.encoding, x, s->rows.columns, at);
    decode_row(s->rows.encoding, at, s->rows.columns, value);
}

/* Where rows lie within their blocks; with `padding` bytes before and after them. */
struct store_shape {
    enum row_encoding encoding;
    int32_t columns, rows_per_block, sequences, most;
    int32_t gone; /* blocks at the beginning of each sequence that no table has */
    int32_t padding;
};

static inline struct stored open_store(struct store_shape shape) {
    int32_t each = (shape.most + shape.rows_per_block - 1) / shape.rows_per_block - shape.gone;
    int32_t blocks = each * shape.sequences;
    int64_t bytes =
        (int64_t)row_bytes(shape.encoding, shape.columns) * shape.rows_per_block + 2 * shape.padding;
    struct stored s = {.sequences = shape.sequences, .most = shape.most, .blocks = blocks};
    s.rows = (struct block_rows){allocate_or_fail((size_t)(blocks * bytes)), bytes, shape.padding,
        shape.rows_per_block, shape.encoding, shape.columns};
    int32_t *table = allocate_or_fail((size_t)blocks * 4);
    int32_t *first = allocate_or_fail((size_t)shape.sequences * 4);
    for (int32_t i = 0; i < blocks; i++) /* a permutation */
        table[i] = (int32_t)((int64_t)(i + 3) * 7919 % blocks);
    assert_true(blocks % 7919 != 0);
    for (int32_t i = 0; i < shape.sequences; i++)
        first[i] = shape.gone;
    s.tables = (struct block_tables){table, first, each};
    s.values = allocate_or_fail((size_t)shape.sequences * (size_t)shape.most * (size_t)shape.columns * 4);
    return s;
}

static inline void fill_store(struct stored *s, float size) {
    for (int32_t q = 0; q < s->sequences; q++)
        for (int32_t r = s->tables.first_block[q] * s->rows.rows_per_block; r < s->most; r++) {
            float *x = random_floats((size_t)s->rows.columns, size);
            store_row(s, q, r, x);
            free(x);
        }
}

static inline void close_store(struct stored *s) {
    free(s->rows.base);
    free((void *)s->tables.blocks);
    free((void *)s->tables.first_block);
    free(s->values);
}

/* The same rows and tables on a device. */
static inline void upload_store(const struct backend *backend, struct uploads *uploads,
    const struct stored *s, struct block_rows *rows, struct block_tables *tables) {
    size_t entries = (size_t)s->sequences * (size_t)s->tables.stride;
    *rows = s->rows;
    *tables = s->tables;
    rows->base = upload_kept(backend, uploads, s->rows.base, (size_t)(s->blocks * s->rows.block_bytes));
    tables->blocks = upload_kept(backend, uploads, s->tables.blocks, entries * 4);
    tables->first_block = upload_kept(backend, uploads, s->tables.first_block, (size_t)s->sequences * 4);
}

#endif

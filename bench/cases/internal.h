/* What the makers of cases share: memory that a case owns and made-up numbers. */
#ifndef NOCTURNE_BENCH_CASES_INTERNAL_H
#define NOCTURNE_BENCH_CASES_INTERNAL_H

#include "bench/cases/cases.h"

/* A case in zeroed memory of `bytes`, whose first member is a struct bench_case. Starts the made-up numbers anew, so
 * that a case doesn't depend on those made before it. The shape is `part` and the rest as printf has it. */
void *case_new(size_t bytes, const struct case_options *options, const char *kernel, const char *part,
    const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Zeroed host memory that lives as long as the case, 64-byte aligned. */
void *case_memory(struct bench_case *self, size_t bytes);
/* The same in device memory; the CPU's is host memory. */
void *case_device(struct bench_case *self, size_t bytes);
/* Device memory for what the case makes in `host`: that itself where the backend shares host memory. case_send copies it there. */
void *case_twin(struct bench_case *self, void *host, size_t bytes);
void case_send(struct bench_case *self, void *twin, const void *host, size_t bytes);
/* case_twin, filled. */
void *case_upload(struct bench_case *self, void *host, size_t bytes);
/* Room for placed weights: large pages, or device memory. */
void *case_weights(struct bench_case *self, size_t bytes);

uint32_t random_bits(void);
/* Values in [-1, 1), in host memory. */
float *random_floats(struct bench_case *self, size_t count);
/* The same in device memory. */
float *device_floats(struct bench_case *self, size_t count);
/* BF16 values in (-1, 1). */
void fill_bf16(void *memory, size_t count);
/* FP8 and FP4 codes without NaN: the highest bit of an exponent is never set. */
void fill_codes(void *memory, size_t bytes);
/* Scales 2^-7 .. 2^-4, small enough for sums over all columns. */
void fill_scales(uint8_t *scales, size_t count);
/* Rows [tokens] of float32 values in (-1, 1), encoded, in device memory. */
struct rows random_input(
    struct bench_case *self, enum row_encoding encoding, int32_t tokens, int32_t columns);

/* Bytes of a matrix as it lies in a checkpoint, scales included. */
size_t matrix_bytes(enum weight_format format, int32_t rows, int32_t columns);
/* Bytes from one matrix to the next in case_weights. */
size_t matrix_stride(const struct kernels *kernels, enum weight_format format, int32_t rows, int32_t columns);
/* A made-up matrix placed at `memory`, part of case_weights and matrix_stride long. */
struct matrix random_matrix(
    const struct kernels *kernels, uint8_t *memory, enum weight_format format, int32_t rows, int32_t columns);

#endif

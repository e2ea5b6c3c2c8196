/* What the makers of cases share: memory that a case owns and made-up numbers. */
#ifndef NOCTURNE_BENCH_CASES_INTERNAL_H
#define NOCTURNE_BENCH_CASES_INTERNAL_H

#include "bench/cases/cases.h"

/* A case in zeroed memory of `bytes`, whose first member is a struct bench_case. Starts the made-up numbers anew, so
 * that a case doesn't depend on those made before it. The shape is `part` and the rest as printf has it. */
void *case_new(size_t bytes, const struct case_options *options, const char *kernel, const char *part,
    const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Memory that lives as long as the case, 64-byte aligned. */
void *case_memory(struct bench_case *self, size_t bytes);
/* The same in large pages, as placed weights have. */
void *case_pages(struct bench_case *self, size_t bytes);

uint32_t random_bits(void);
/* Values in [-1, 1). */
float *random_floats(struct bench_case *self, size_t count);
/* BF16 values in (-1, 1). */
void fill_bf16(void *memory, size_t count);
/* FP8 and FP4 codes without NaN: the highest bit of an exponent is never set. */
void fill_codes(void *memory, size_t bytes);
/* Scales 2^-7 .. 2^-4, small enough for sums over all columns. */
void fill_scales(uint8_t *scales, size_t count);
/* Rows [tokens] of float32 values in (-1, 1), encoded. */
struct rows random_input(
    struct bench_case *self, enum row_encoding encoding, int32_t tokens, int32_t columns);

/* Bytes of a matrix as it lies in a checkpoint, scales included. */
size_t matrix_bytes(enum weight_format format, int32_t rows, int32_t columns);
/* A made-up matrix at `memory` (matrix_bytes long), placed on the backend. */
struct matrix random_matrix(
    const struct kernels *kernels, uint8_t *memory, enum weight_format format, int32_t rows, int32_t columns);

#endif

/* Kernels on made-up inputs at sizes of the model: what bench-kernels times and bench-regress counts the instructions of.
 *
 * A case owns its inputs, which depend on nothing but its description, and can be called with any number of tokens up to
 * the most it was made for. Weights may lie in several copies through which calls rotate, so that they come from
 * memory and not from a cache. All that the kernels read and write lies in the backend's device memory.
 */
#ifndef NOCTURNE_BENCH_CASES_H
#define NOCTURNE_BENCH_CASES_H

#include "kernels/kernels.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t */

/* What of the machine bounds a kernel, when the bytes from memory don't. */
enum case_arithmetic {
    CASE_CACHE, /* nothing that is measured: few operations a value, on rows in a cache */
    CASE_FMA,   /* float32 multiply-adds */
    CASE_BF16_DOT, /* BF16 dot products where the instruction set has them: both factors are codes that BF16 can hold */
    CASE_BYTE_DOT, /* dot products of bytes where the instruction set has them: both factors are FP4 codes */
};

struct bench_case {
    const char *kernel; /* name of the operation in kernels.h */
    char shape[64];
    enum case_arithmetic arithmetic;
    bool fits_tensor_cores; /* a device makes its sums there */
    int32_t tokens;
    int32_t most_tokens; /* fewer than it was made for, where the shape has no room for more; 0: as many */
    int32_t rotation;    /* calls until the same copies are met again */
    double flops, bytes; /* of one call; bytes: those that come from memory */
    double activations;  /* bytes of inputs and outputs, which may come from a cache */
    /* float32 in device memory that a call writes; NULL where that is something else */
    const float *result;
    int64_t result_count;
    /* product of one token: the weight's shape, which other libraries can be given */
    int32_t weight_rows, weight_columns;
    /* the case's own */
    const struct kernels *kernels;
    struct stream *stream;
    void (*set_tokens)(struct bench_case *self, int32_t tokens);
    void (*call)(struct bench_case *self, int32_t turn);
    void *blocks[24], *device_blocks[24];
    int32_t block_count, device_count;
};

/* What all cases are made with. */
struct case_options {
    const struct kernels *kernels;
    struct stream *stream;
    int32_t most_tokens;
    size_t rotated_bytes; /* copies of weights are made until they are larger than this; 0: one copy */
};

/* The makers end the program when there is no memory. `part` names the place in the model, for the shape. */

/* kernels->product: FP8 and FP4 weights take FP8 rows, others float32 rows. */
struct bench_case *case_product(const struct case_options *options, const char *part,
    enum weight_format format, int32_t rows, int32_t columns);
/* kernels->grouped_product, FP8 weights of `rows` outputs in all. */
struct bench_case *case_grouped_product(
    const struct case_options *options, const char *part, int32_t groups, int32_t rows, int32_t columns);
/* kernels->experts, FP4: each token visits `chosen` of `experts` experts. */
struct bench_case *case_experts(const struct case_options *options, const char *part, int32_t chosen,
    int32_t experts, int32_t inner, int32_t columns);
/* The same on one of `ranks` ranks that share the experts evenly: the tokens are those of each rank, and what is multiplied are
 * the pairs of all ranks' tokens with this rank's experts. */
struct bench_case *case_experts_share(const struct case_options *options, const char *part, int32_t chosen,
    int32_t experts, int32_t ranks, int32_t inner, int32_t columns);

/* kernels->attend: 128 window rows and `top_k` chosen ones of `context`. */
struct bench_case *case_attend(const struct case_options *options, const char *part, int32_t heads,
    int32_t head_dim, int32_t top_k, int32_t context);
/* kernels->choose among `context` rows. */
struct bench_case *case_choose(
    const struct case_options *options, const char *part, int32_t heads, int32_t top_k, int32_t context);
/* kernels->route. */
struct bench_case *case_route(
    const struct case_options *options, const char *part, int32_t chosen, int32_t experts);

/* Operations on rows of `columns` values, by name: rms_norm, encode (FP8), encode_fine (FP4 with fine scales), swiglu,
 * collapse_norm, mix, expand, engram_add. NULL for another name. */
struct bench_case *case_rows(
    const struct case_options *options, const char *part, const char *kernel, int32_t columns);

/* Sets `tokens`, `flops` and `bytes`. */
void case_set_tokens(struct bench_case *self, int32_t tokens);
/* One call of the kernel; `turn` counts the calls, for the rotation. */
void case_call(struct bench_case *self, int32_t turn);
void case_free(struct bench_case *self);

#endif

/* What the tests of products share: each of the kernels that can make a product must give the same bits. */
#ifndef NOCTURNE_TESTS_PRODUCTS_CHECK_H
#define NOCTURNE_TESTS_PRODUCTS_CHECK_H

#include "kernels/cuda/tiles.h"
#include "operations_check.h"

static const enum product_kernel all_kernels[] = {PRODUCT_PLAIN, PRODUCT_FEW, PRODUCT_MANY};
static const char *const kernel_names[] = {"any", "plain", "few", "many"};

/* Runs a trial on the CUDA backend with each kernel and compares every bit. */
static inline void compare_kernels(const struct trial *trial) {
    struct backends b = open_backends();
    size_t bytes = (size_t)trial->tokens * trial->bytes;
    uint8_t *first = allocate_or_fail(bytes), *result = allocate_or_fail(bytes);
    trial->run(b.kernels[1], b.stream[1], trial->context, 0, trial->tokens, first);
    for (size_t k = 0; k < sizeof all_kernels / sizeof all_kernels[0]; k++) {
        force_product_kernel(all_kernels[k]);
        memset(result, 0xa5, bytes);
        trial->run(b.kernels[1], b.stream[1], trial->context, 0, trial->tokens, result);
        for (size_t i = 0; i < bytes; i += sizeof(float))
            if (memcmp(first + i, result + i, sizeof(float)) != 0) {
                float values[2];
                memcpy(&values[0], first + i, sizeof(float));
                memcpy(&values[1], result + i, sizeof(float));
                fail_msg("%s: token %zu of %d, value %zu: %.9g, %.9g with the kernel \"%s\"", trial->name,
                    i / trial->bytes, trial->tokens, i % trial->bytes / sizeof(float), (double)values[0],
                    (double)values[1], kernel_names[all_kernels[k]]);
            }
    }
    force_product_kernel(PRODUCT_ANY);
    free(first);
    free(result);
    close_backends(&b);
}

#endif

/* Dense and grouped products, for the operations that are made of them. */
#ifndef NOCTURNE_CUDA_PRODUCT_H
#define NOCTURNE_CUDA_PRODUCT_H

#include "kernels/cuda/backend.h"

/* `groups` products side by side: row t * groups + g of x meets rows [g, g + 1) * w->rows / groups of w;
 * out[t * out_stride + r] for all rows r of w; terms: of the inputs (product_rows.h). Uses
 * SCRATCH_PRODUCT. */
void multiply_groups(struct stream *stream, const struct rows *x, int32_t terms, int32_t tokens,
    int32_t groups, const struct matrix *w, float *out, int64_t out_stride);

#endif

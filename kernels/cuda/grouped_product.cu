/* Products side by side: a token's inputs for its groups are rows of their own. */
#include "kernels/cuda/operations.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_rows.h"

void cuda_grouped_product(struct stream *stream, const float *x, int32_t tokens, int32_t groups,
    const struct matrix *w, float *out) {
    struct rows rows = {(void *)x, ROWS_F32, w->columns, (int64_t)w->columns * (int64_t)sizeof(float)};
    multiply_groups(stream, &rows, grouped_terms(w->format), tokens, groups, w, out, w->rows);
}

/* Products side by side: a token's inputs for its groups are rows of their own. */
#include "kernels/cuda/operations.h"
#include "kernels/cuda/product.h"

void cuda_grouped_product(struct stream *stream, const float *x, int32_t tokens, int32_t groups,
    const struct matrix *w, float *out) {
    struct rows rows = {(void *)x, ROWS_F32, w->columns, (int64_t)w->columns * (int64_t)sizeof(float)};
    multiply_groups(stream, &rows, tokens, groups, w, out, w->rows);
}

/* Dense products: inputs become rows of BF16 numbers, a slab of tokens at a time, and meet the weights. */
#include "kernels/cuda/operations.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_work.h"

/* ---- inputs ---- */

template <int terms>
static __global__ void prepare_inputs(struct row_source source, struct product_rows rows) {
    prepare_row<terms>(&source, blockIdx.x, &rows, blockIdx.x);
}

static void launch_prepare(
    struct stream *stream, struct row_source source, struct product_rows rows, int64_t count) {
    dim3 grid((uint32_t)count, prepare_parts(source.columns));
    if (rows.terms == 0)
        LAUNCH(stream, (prepare_inputs<0>), grid, PREPARE_THREADS, 0, source, rows);
    else if (rows.terms == 1)
        LAUNCH(stream, (prepare_inputs<1>), grid, PREPARE_THREADS, 0, source, rows);
    else if (rows.terms == GROUPED_TERMS)
        LAUNCH(stream, (prepare_inputs<GROUPED_TERMS>), grid, PREPARE_THREADS, 0, source, rows);
    else
        LAUNCH(stream, (prepare_inputs<MOST_TERMS>), grid, PREPARE_THREADS, 0, source, rows);
}

/* ---- products ---- */

/* One product of as many tokens as scratch memory is given for. */
struct slab {
    const struct rows *x; /* of the slab's first token */
    int32_t tokens, groups;
    const struct matrix *w;
    float *out;
    int64_t out_stride;
};

static void multiply_slab(struct stream *stream, const struct slab *slab, int32_t terms) {
    const struct matrix *w = slab->w;
    int32_t group_rows = w->rows / slab->groups;
    int64_t count = (int64_t)slab->tokens * slab->groups;
    struct product_shape shape = {slab->tokens, 0, slab->groups, group_rows, w->columns, w->format, terms,
        false, stream->multiprocessors};
    struct product_tiles tiles = choose_product_tiles(&shape);
    bool is_in_place = terms == 0 && slab->x->encoding == ROWS_F32;
    size_t row_bytes =
        is_in_place ? 0 : (size_t)(count * product_row_bytes(w->columns, terms) + 255) / 256 * 256;
    size_t part_bytes = tiles.parts > 1 ? (size_t)(tiles.chunks * count * group_rows) * sizeof(float) : 0;
    struct product_rows rows = {(uint8_t *)slab->x->data, slab->x->stride, 0, 0};
    uint8_t *memory = NULL;
    if (row_bytes + part_bytes > 0) {
        memory = (uint8_t *)stream_scratch(stream, SCRATCH_PRODUCT, row_bytes + part_bytes);
        if (memory == NULL)
            return;
    }
    if (!is_in_place) {
        rows = product_rows_at(memory, count, w->columns, terms);
        launch_prepare(stream, row_source_of(slab->x), rows, count);
    }
    struct product_work work = {};
    work.w = code_matrix_of(w);
    work.rows = group_rows;
    work.groups = slab->groups;
    work.x = rows;
    work.tokens = slab->tokens;
    work.parts = (float *)(memory + row_bytes);
    work.out = slab->out;
    work.out_stride = slab->out_stride;
    launch_product(stream, &work, &tiles, w->format, false);
}

void multiply_groups(struct stream *stream, const struct rows *x, int32_t terms, int32_t tokens,
    int32_t groups, const struct matrix *w, float *out, int64_t out_stride) {
    int32_t most = product_slab_tokens(product_row_bytes(w->columns, terms) * groups);
    for (int32_t token = 0; token < tokens; token += most) {
        struct rows part = *x;
        part.data = (uint8_t *)x->data + (int64_t)token * groups * x->stride;
        struct slab slab = {&part, tokens - token < most ? tokens - token : most, groups, w,
            out + token * out_stride, out_stride};
        multiply_slab(stream, &slab, terms);
    }
}

void cuda_product(struct stream *stream, const struct rows *x, int32_t tokens, const struct matrix *w,
    float *out, int64_t out_stride) {
    multiply_groups(stream, x, product_terms(x->encoding, w->format), tokens, 1, w, out, out_stride);
}

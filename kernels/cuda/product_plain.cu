/* Products of any shape, simply: a warp makes 16 outputs of 8 tokens, one block of columns after the other.
 * The fast kernels (product_few.cu, product_many.cu) give the same bits.
 */
#include "kernels/cuda/mma.h"
#include "kernels/cuda/product_work.h"

enum { PLAIN_TOKENS = 8 };

/* Columns [c, c + 8) of a row of weights, zeros beyond the last. */
template <int kind>
__device__ static inline void load_plain_eight(
    const struct code_matrix *w, int32_t row, int32_t c, uint32_t out[4]) {
    const int32_t bytes = (int32_t)code_bytes<kind>(EIGHT);
    const uint8_t *from = w->codes + row * code_bytes<kind>(w->columns) + code_bytes<kind>(c);
    int32_t left = w->columns > c ? (int32_t)code_bytes<kind>(w->columns - c) : 0;
    uint32_t codes[code_size<kind>::words] = {0};
    for (int32_t i = 0; i < bytes; i++)
        if (i < left)
            codes[i / 4] |= (uint32_t)from[i] << i % 4 * 8;
    open_codes<kind>(codes, out);
    if (kind != CODES_BF16 && left > 0)
        apply_scale<kind, 4>(out, scales_of_row(w, row)[c / GROUP]);
}

/* Columns [c, c + 8) of a term of a token's row. */
__device__ static inline void load_plain_input(
    const uint8_t *row, int32_t columns, int32_t c, uint32_t out[4]) {
    uint4 words = c < columns ? *(const uint4 *)(row + (int64_t)c * 2) : make_uint4(0, 0, 0, 0);
    out[0] = words.x;
    out[1] = words.y;
    out[2] = words.z;
    out[3] = words.w;
}

/* Adds one block of columns to the sum. */
template <int kind>
__device__ static inline void plain_block(const struct product_work *work, const struct product_job *job,
    int32_t low_row, int32_t high_row, const uint8_t *input, int32_t column, float sum[4]) {
    for (int32_t half = 0; half < 2; half++) {
        uint32_t low[4], high[4], b[4];
        int32_t c = column + half * EIGHT;
        load_plain_eight<kind>(job->w, low_row, c, low);
        load_plain_eight<kind>(job->w, high_row, c, high);
        for (int32_t term = 0; term < work->x.terms; term++) {
            load_plain_input(input + term * work->x.term_bytes, work->w.columns, c, b);
            for (int32_t s = 0; s < 4; s += 2) {
                uint32_t a[4] = {low[s], high[s], low[s + 1], high[s + 1]};
                mma_bf16(sum, a, b + s);
            }
        }
    }
}

template <int kind> static __global__ void plain_product(struct product_work work) {
    struct product_job job;
    if (!find_job(&work, FEW_ROWS, PLAIN_TOKENS, &job))
        return;
    int32_t g = (int32_t)threadIdx.x / 4, i = (int32_t)threadIdx.x % 4, last = job.rows - 1;
    int32_t low = job.row + g, high = low + 8, token = g < job.tokens ? g : 0;
    const uint8_t *input = job.x + token * job.x_stride;
    float total[4] = {0, 0, 0, 0};
    for (int32_t chunk = 0; chunk < work.chunks; chunk++) {
        float sum[4] = {0, 0, 0, 0};
        int32_t end =
            (chunk + 1) * CHUNK_COLUMNS < work.w.columns ? (chunk + 1) * CHUNK_COLUMNS : work.w.columns;
        for (int32_t c = chunk * CHUNK_COLUMNS; c < end; c += BLOCK_COLUMNS)
            plain_block<kind>(&work, &job, job.first + (low < last ? low : last),
                job.first + (high < last ? high : last), input, c + 16 * i, sum);
        for (int32_t o = 0; o < 4; o++)
            total[o] = chunk == 0 ? sum[o] : total[o] + sum[o];
    }
    for (int32_t o = 0; o < 4; o++) {
        int32_t row = o < 2 ? low : high, to = 2 * i + o % 2;
        if (row < job.rows && to < job.tokens)
            put_output(&work, &job, to, row, total[o]);
    }
}

void launch_plain_product(struct stream *stream, const struct product_work *work,
    const struct product_tiles *tiles, enum code_kind kind) {
    struct product_work now = *work;
    now.row_tiles = (work->rows + FEW_ROWS - 1) / FEW_ROWS;
    now.chunks = tiles->chunks;
    dim3 grid((uint32_t)now.row_tiles * (uint32_t)tiles->token_tiles, (uint32_t)work->groups);
    if (kind == CODES_BF16)
        LAUNCH(stream, (plain_product<CODES_BF16>), grid, WARP, 0, now);
    else if (kind == CODES_FP8)
        LAUNCH(stream, (plain_product<CODES_FP8>), grid, WARP, 0, now);
    else
        LAUNCH(stream, (plain_product<CODES_FP4>), grid, WARP, 0, now);
}

void launch_product(struct stream *stream, const struct product_work *work, const struct product_tiles *tiles,
    enum weight_format format, bool is_gate_and_up) {
    enum code_kind kind = format == WEIGHT_BF16      ? CODES_BF16
                          : format == WEIGHT_FP4_ROW ? CODES_FP4
                                                     : CODES_FP8;
    if (format == WEIGHT_F32)
        launch_float_product(stream, work, tiles);
    else if (tiles->kernel == PRODUCT_FEW)
        launch_few_product(stream, work, tiles, kind, is_gate_and_up);
    else if (tiles->kernel == PRODUCT_MANY)
        launch_many_product(stream, work, tiles, kind, is_gate_and_up);
    else
        launch_plain_product(stream, work, tiles, kind);
}

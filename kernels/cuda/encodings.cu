/* Rows of values and encoded rows: encode, decode, round, store_rows, and the rows of an embedding table. */
#include "kernels/cuda/encode.h"
#include "kernels/cuda/operations.h"

/* ---- encode ---- */

/* Encoded rows, one after the other. */
struct encoded_place {
    uint8_t *data;
    int64_t stride; /* bytes from row to row */
    int32_t columns;
    bool whole; /* four columns can be met at once */
};

/* What turns a token into a place in the key/value blocks. */
struct block_place {
    struct block_rows rows;
    struct block_tables tables;
    const int32_t *sequence, *row, *write_floor;
    int32_t row_bytes;
};

/* A row of float32 values to the bytes at `to`. A whole warp meets one row. */
template <enum row_encoding encoding>
__device__ static inline void encode_row_part(
    const float *from, bool is_whole, uint8_t *to, int32_t columns, bool has_whole_words) {
    int32_t lane = (int32_t)(threadIdx.x % WARP);
    for (int32_t first = shape_first() - lane; first * FOUR < columns; first += shape_step()) {
        int32_t c = (first + lane) * FOUR;
        float v[FOUR] = {0, 0, 0, 0};
        if (c < columns)
            load_four(from + c, columns - c, is_whole, v);
        if (encoding == ROWS_F32) {
            if (c < columns)
                store_four((float *)to + c, columns - c, has_whole_words, v);
            continue;
        }
        struct encoded_four code = encode_four<encoding>(v);
        if (c < columns)
            store_code<encoding>(to, columns, c, has_whole_words, code);
    }
}

template <enum row_encoding encoding>
static __global__ void encode_rows(const float *x, int32_t tokens, bool is_whole, struct encoded_place out) {
    int64_t row = shape_row();
    if (row < tokens)
        encode_row_part<encoding>(
            x + row * out.columns, is_whole, out.data + row * out.stride, out.columns, out.whole);
}

void cuda_encode(struct stream *stream, const float *x, int32_t tokens, const struct rows *out) {
    if (tokens <= 0)
        return;
    bool is_whole = is_in_fours(x, out->columns);
    struct encoded_place place = {
        (uint8_t *)out->data, out->stride, out->columns, has_whole_codes(out->data, out->stride)};
    struct row_shape shape = shape_rows(stream, tokens, fours_of(out->columns));
    switch (out->encoding) {
    case ROWS_F32:
        place.whole = is_whole && is_in_fours(out->data, out->columns) && out->stride % 16 == 0;
        LAUNCH(stream, encode_rows<ROWS_F32>, shape.grid, shape.block, 0, x, tokens, is_whole, place);
        break;
    case ROWS_FP8:
        LAUNCH(stream, encode_rows<ROWS_FP8>, shape.grid, shape.block, 0, x, tokens, is_whole, place);
        break;
    case ROWS_FP4:
        LAUNCH(stream, encode_rows<ROWS_FP4>, shape.grid, shape.block, 0, x, tokens, is_whole, place);
        break;
    case ROWS_FP4_FINE:
        LAUNCH(stream, encode_rows<ROWS_FP4_FINE>, shape.grid, shape.block, 0, x, tokens, is_whole, place);
        break;
    }
}

/* ---- store_rows ---- */

template <enum row_encoding encoding>
static __global__ void store_encoded_rows(
    const float *x, int32_t tokens, bool is_whole, bool has_whole_words, struct block_place place) {
    int64_t t = shape_row();
    if (t >= tokens)
        return;
    int32_t row = place.row[t], sequence = place.sequence[t];
    if (row < 0 || row < place.write_floor[sequence])
        return;
    int32_t entry = row / place.rows.rows_per_block - place.tables.first_block[sequence];
    int32_t block = place.tables.blocks[(int64_t)sequence * place.tables.stride + entry];
    uint8_t *to = place.rows.base + block * place.rows.block_bytes + place.rows.offset +
                  (int64_t)(row % place.rows.rows_per_block) * place.row_bytes;
    encode_row_part<encoding>(x + t * place.rows.columns, is_whole, to, place.rows.columns, has_whole_words);
}

void cuda_store_rows(struct stream *stream, const float *x, int32_t tokens, const int32_t *sequence,
    const int32_t *row, const int32_t *write_floor, const struct block_rows *rows,
    const struct block_tables *tables) {
    if (tokens <= 0)
        return;
    int32_t bytes = row_bytes(rows->encoding, rows->columns);
    struct block_place place = {*rows, *tables, sequence, row, write_floor, bytes};
    bool is_whole = is_in_fours(x, rows->columns);
    /* all rows begin on multiples of what the base, the blocks, the offset and a row's bytes are multiples of */
    uintptr_t steps =
        (uintptr_t)rows->base | (uintptr_t)rows->block_bytes | (uintptr_t)rows->offset | (uintptr_t)bytes;
    bool has_whole_words = steps % 4 == 0;
    struct row_shape shape = shape_rows(stream, tokens, fours_of(rows->columns));
    switch (rows->encoding) {
    case ROWS_F32:
        has_whole_words = is_whole && steps % 16 == 0;
        LAUNCH(stream, store_encoded_rows<ROWS_F32>, shape.grid, shape.block, 0, x, tokens, is_whole,
            has_whole_words, place);
        break;
    case ROWS_FP8:
        LAUNCH(stream, store_encoded_rows<ROWS_FP8>, shape.grid, shape.block, 0, x, tokens, is_whole,
            has_whole_words, place);
        break;
    case ROWS_FP4:
        LAUNCH(stream, store_encoded_rows<ROWS_FP4>, shape.grid, shape.block, 0, x, tokens, is_whole,
            has_whole_words, place);
        break;
    case ROWS_FP4_FINE:
        LAUNCH(stream, store_encoded_rows<ROWS_FP4_FINE>, shape.grid, shape.block, 0, x, tokens, is_whole,
            has_whole_words, place);
        break;
    }
}

/* ---- decode and round ---- */

template <enum row_encoding encoding>
static __global__ void decode_rows(struct encoded_place x, int32_t tokens, bool is_whole, float *out) {
    int64_t row = shape_row();
    if (row >= tokens)
        return;
    const uint8_t *from = x.data + row * x.stride;
    float *to = out + row * x.columns;
    for (int32_t c = shape_first() * FOUR; c < x.columns; c += shape_step() * FOUR) {
        float v[FOUR];
        if (encoding == ROWS_F32)
            load_four((const float *)from + c, x.columns - c, x.whole, v);
        else
            decode_four<encoding>(load_code<encoding>(from, x.columns, c, x.whole), v);
        store_four(to + c, x.columns - c, is_whole, v);
    }
}

void cuda_decode(struct stream *stream, const struct rows *x, int32_t tokens, float *out) {
    if (tokens <= 0)
        return;
    bool is_whole = is_in_fours(out, x->columns);
    struct encoded_place place = {
        (uint8_t *)x->data, x->stride, x->columns, has_whole_codes(x->data, x->stride)};
    struct row_shape shape = shape_rows(stream, tokens, fours_of(x->columns));
    switch (x->encoding) {
    case ROWS_F32:
        place.whole = is_in_fours(x->data, x->columns) && x->stride % 16 == 0;
        LAUNCH(stream, decode_rows<ROWS_F32>, shape.grid, shape.block, 0, place, tokens, is_whole, out);
        break;
    case ROWS_FP8:
        LAUNCH(stream, decode_rows<ROWS_FP8>, shape.grid, shape.block, 0, place, tokens, is_whole, out);
        break;
    case ROWS_FP4:
        LAUNCH(stream, decode_rows<ROWS_FP4>, shape.grid, shape.block, 0, place, tokens, is_whole, out);
        break;
    case ROWS_FP4_FINE:
        LAUNCH(stream, decode_rows<ROWS_FP4_FINE>, shape.grid, shape.block, 0, place, tokens, is_whole, out);
        break;
    }
}

template <enum row_encoding encoding>
static __global__ void round_values(float *x, int32_t tokens, int32_t columns, bool is_whole) {
    int64_t row = shape_row();
    if (row >= tokens)
        return;
    float *values = x + row * columns;
    int32_t fours = columns / FOUR, lane = (int32_t)(threadIdx.x % WARP);
    for (int32_t first = shape_first() - lane; first < fours; first += shape_step()) {
        int32_t c = (first + lane) * FOUR;
        float v[FOUR] = {0, 0, 0, 0};
        if (c < columns)
            load_four(values + c, FOUR, is_whole, v);
        decode_four<encoding>(encode_four<encoding>(v), v);
        if (c < columns)
            store_four(values + c, FOUR, is_whole, v);
    }
}

void cuda_round(
    struct stream *stream, float *x, int32_t tokens, int32_t columns, enum row_encoding encoding) {
    if (tokens <= 0 || encoding == ROWS_F32)
        return;
    bool is_whole = is_in_fours(x, columns);
    struct row_shape shape = shape_rows(stream, tokens, fours_of(columns));
    if (encoding == ROWS_FP8)
        LAUNCH(stream, round_values<ROWS_FP8>, shape.grid, shape.block, 0, x, tokens, columns, is_whole);
    else if (encoding == ROWS_FP4)
        LAUNCH(stream, round_values<ROWS_FP4>, shape.grid, shape.block, 0, x, tokens, columns, is_whole);
    else
        LAUNCH(stream, round_values<ROWS_FP4_FINE>, shape.grid, shape.block, 0, x, tokens, columns, is_whole);
}

/* ---- embed ---- */

/* Columns [c, c + 4) of a row of a table in its published encoding; packed formats have a multiple of 32 columns. */
template <enum weight_format format>
__device__ static inline void load_weights(
    const struct matrix &table, int64_t row, int32_t c, bool is_whole, float v[FOUR]) {
    int64_t at = row * table.columns + c;
    int32_t left = table.columns - c;
    if (format == WEIGHT_F32) {
        load_four((const float *)table.values + at, left, is_whole, v);
        return;
    }
    if (format == WEIGHT_BF16) {
        load_four_bf16((const uint16_t *)table.values + at, left, is_whole, v);
        return;
    }
    const uint8_t *codes = (const uint8_t *)table.values;
    int64_t scale_row = format == WEIGHT_FP8_TILE ? row / GROUP : row;
    float factor = e8m0_value(table.scales[scale_row * (table.columns / GROUP) + c / GROUP]);
    for (int32_t i = 0; i < FOUR; i++)
        v[i] = factor * (format == WEIGHT_FP4_ROW ? e2m1_value(codes[(at + i) / 2] >> (i % 2 * 4) & 15)
                                                  : e4m3_value(codes[at + i]));
}

template <enum weight_format format>
static __global__ void embed_rows(
    struct matrix table, const int32_t *ids, int32_t tokens, bool is_whole, bool out_is_whole, float *out) {
    int64_t t = shape_row();
    if (t >= tokens)
        return;
    for (int32_t c = shape_first() * FOUR; c < table.columns; c += shape_step() * FOUR) {
        float v[FOUR];
        load_weights<format>(table, ids[t], c, is_whole, v);
        store_four(out + t * table.columns + c, table.columns - c, out_is_whole, v);
    }
}

void cuda_embed(
    struct stream *stream, const struct matrix *table, const int32_t *ids, int32_t tokens, float *out) {
    if (tokens <= 0)
        return;
    bool is_whole = is_in_fours(table->values, table->columns),
         out_is_whole = is_in_fours(out, table->columns);
    struct row_shape shape = shape_rows(stream, tokens, fours_of(table->columns));
    dim3 grid = shape.grid, block = shape.block;
    struct matrix from = *table;
    switch (table->format) {
    case WEIGHT_F32:
        LAUNCH(
            stream, embed_rows<WEIGHT_F32>, grid, block, 0, from, ids, tokens, is_whole, out_is_whole, out);
        break;
    case WEIGHT_BF16:
        is_whole = is_in_fours_bf16(table->values, table->columns);
        LAUNCH(
            stream, embed_rows<WEIGHT_BF16>, grid, block, 0, from, ids, tokens, is_whole, out_is_whole, out);
        break;
    case WEIGHT_FP8_TILE:
        LAUNCH(
            stream, embed_rows<WEIGHT_FP8_TILE>, grid, block, 0, from, ids, tokens, false, out_is_whole, out);
        break;
    case WEIGHT_FP8_ROW:
        LAUNCH(
            stream, embed_rows<WEIGHT_FP8_ROW>, grid, block, 0, from, ids, tokens, false, out_is_whole, out);
        break;
    case WEIGHT_FP4_ROW:
        LAUNCH(
            stream, embed_rows<WEIGHT_FP4_ROW>, grid, block, 0, from, ids, tokens, false, out_is_whole, out);
        break;
    }
}

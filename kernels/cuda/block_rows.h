/* Key/value rows in blocks, as kernels reach them. */
#ifndef NOCTURNE_CUDA_BLOCK_ROWS_H
#define NOCTURNE_CUDA_BLOCK_ROWS_H

#include "kernels/cuda/backend.h"

/* The rows of one kind and the tables that lead to them. */
struct stored_rows {
    struct block_rows rows;
    struct block_tables tables;
    int32_t bytes; /* of a row */
};

/* rows NULL: there are none. */
static inline struct stored_rows stored_rows(
    const struct block_rows *rows, const struct block_tables *tables) {
    struct stored_rows stored = {};
    if (rows != NULL) {
        stored.rows = *rows;
        stored.tables = *tables;
        stored.bytes = row_bytes(rows->encoding, rows->columns);
    }
    return stored;
}

/* Whether all rows begin at multiples of `alignment` bytes and are as long as a multiple. */
static inline bool are_aligned(const struct stored_rows *stored, int64_t alignment) {
    int64_t all = (int64_t)(uintptr_t)stored->rows.base | stored->rows.block_bytes | stored->rows.offset |
                  stored->bytes;
    return all % alignment == 0;
}

/* The most rows a sequence of these tables has. */
static inline int64_t most_rows(const struct stored_rows *stored) {
    return (int64_t)stored->tables.stride * stored->rows.rows_per_block;
}

/* The encoded row `row` of a sequence. */
__device__ static inline uint8_t *block_row(const struct stored_rows *stored, int32_t sequence, int32_t row) {
    const struct block_rows *rows = &stored->rows;
    uint32_t number = (uint32_t)row / (uint32_t)rows->rows_per_block; /* unsigned: fewer instructions */
    uint32_t inside = (uint32_t)row - number * (uint32_t)rows->rows_per_block;
    int32_t entry = (int32_t)number - stored->tables.first_block[sequence];
    int32_t block = stored->tables.blocks[(int64_t)sequence * stored->tables.stride + entry];
    return rows->base + block * rows->block_bytes + rows->offset + (int64_t)inside * stored->bytes;
}

/* The value of one column of an encoded row. */
__device__ static inline float row_value(const struct block_rows *rows, const uint8_t *row, int32_t column) {
    int32_t columns = rows->columns, nibble = column % 2 * 4;
    switch (rows->encoding) {
    case ROWS_F32: {
        float value;
        memcpy(&value, row + (int64_t)column * 4, sizeof value);
        return value;
    }
    case ROWS_FP8:
        return e4m3_value(row[column]) * e8m0_value(row[columns + column / GROUP]);
    case ROWS_FP4:
        return e2m1_value(row[column / 2] >> nibble & 15) * e8m0_value(row[columns / 2 + column / GROUP]);
    case ROWS_FP4_FINE:
        return e2m1_value(row[column / 2] >> nibble & 15) *
               e4m3_value(row[columns / 2 + column / FINE_GROUP]);
    }
    return 0;
}

#endif

/* Tile shapes of the products: how a product's sum is cut (a matter of the weight's columns alone) and how
 * its outputs are cut into blocks (a matter of speed alone). Host only.
 *
 * The sum of one (token, output), for weights of BF16, FP8 and FP4, is that of chunks of CHUNK_COLUMNS
 * columns, added in ascending order. A chunk is summed from zero by tensor cores, 16 columns a step: blocks
 * of BLOCK_COLUMNS ascending; within a block its two halves (the first eight of each 16 columns, then the
 * others); within a half one after the other the terms of the input (product_rows.h); within a term two
 * steps. Weights of float32 have chunks of FLOAT_CHUNK_COLUMNS: product_float.cu.
 */
#ifndef NOCTURNE_CUDA_TILES_H
#define NOCTURNE_CUDA_TILES_H

#include "kernels/kernels.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BLOCK_COLUMNS = 64,
    CHUNK_BLOCKS = 8,
    CHUNK_COLUMNS = BLOCK_COLUMNS * CHUNK_BLOCKS,
    FLOAT_CHUNK_COLUMNS = 1024,
};

enum product_kernel {
    PRODUCT_ANY,   /* in force_product_kernel: choose */
    PRODUCT_PLAIN, /* any shape: one warp for 16 outputs of 8 tokens */
    PRODUCT_FEW,   /* few tokens: weights are read once, straight into registers; warps share out chunks */
    PRODUCT_MANY,  /* many tokens: weights are decoded into shared memory once for a tile of tokens */
};

enum {
    FEW_ROWS = 16, /* outputs of a tensor-core tile of PRODUCT_FEW */
    FEW_MOST_TOKENS = 32,
    FEW_MOST_WARPS = 10, /* of a block: two blocks share a multiprocessor's registers */
    FEW_MOST_SHARED = 96 << 10,
    FLOAT_ROWS = 8, /* outputs and tokens of a block, weights being float32 */
    FLOAT_TOKENS = 8,
    MANY_ROWS = 128,
    MANY_THREADS = 256,
};

/* What the choice depends on. */
struct product_shape {
    int32_t tokens;        /* of the call; with experts: pairs, the most there can be */
    int32_t experts;       /* that share the pairs; 0: none */
    int32_t groups;        /* products side by side */
    int32_t rows, columns; /* of the weight of one group or expert */
    enum weight_format format;
    int32_t terms;       /* of the inputs: 1 to 3 */
    bool is_gate_and_up; /* two weights of that shape, whose outputs meet in the block (experts) */
    int32_t multiprocessors;
};

struct product_tiles {
    enum product_kernel kernel;
    int32_t rows;   /* outputs of a block; with is_gate_and_up: of each of the two weights */
    int32_t tokens; /* of a block: 8, 16 or 32 (few), 64 or 128 (many), 1 or 8 (few, float32) */
    int32_t warps;  /* few: that share out the chunks of a tile of outputs */
    int32_t chunks; /* of the sum */
    int32_t
        chunks_a_part; /* few: of a warp; many: of a block, less than `chunks` where blocks share them out */
    int32_t parts;     /* many: blocks that share out the chunks */
    int32_t token_tiles;  /* in the grid: with experts the most there can be */
    int64_t shared_bytes; /* few: of shared memory */
};

/* Whether the fast kernels can meet such a weight: whole vectors in each row, whole scale groups in a
 * gate's block. */
bool product_is_regular(const struct product_shape *shape);

/* The tiles of a product. PRODUCT_PLAIN with is_gate_and_up: no kernel makes both at once. */
struct product_tiles choose_product_tiles(const struct product_shape *shape);

/* Pairs up to which PRODUCT_FEW meets that many experts; for more, PRODUCT_MANY does. */
int64_t few_pairs(int32_t experts);

/* Tokens whose prepared inputs, `bytes` each, are made at once: bounded, so that the scratch memory is; a
 * multiple of a tile. */
int32_t product_slab_tokens(int64_t bytes);

/* For tests: products to come use that kernel wherever it can meet the shape. The bits are the same. */
void force_product_kernel(enum product_kernel kernel);

#ifdef __cplusplus
}
#endif

#endif

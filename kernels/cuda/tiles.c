#include "kernels/cuda/tiles.h"

enum {
    EIGHT_COLUMNS = 8,   /* of BF16: a vector of 16 bytes */
    FEW_MOST_PAIRS = 24, /* of an expert on average, up to which PRODUCT_FEW meets experts */
    MANY_LARGE_TOKENS = 128,
    MANY_SMALL_TOKENS = 64,
    LEAST_CHUNKS_A_BLOCK = 2, /* where blocks share out chunks: fewer do not pay for adding them up */
    SLAB_BYTES = 256 << 20,
};

static enum product_kernel forced_kernel = PRODUCT_ANY;

void force_product_kernel(enum product_kernel kernel) {
    forced_kernel = kernel;
}

static int32_t divide_up(int64_t a, int64_t b) {
    return (int32_t)((a + b - 1) / b);
}

bool product_is_regular(const struct product_shape *shape) {
    bool is_packed = shape->format != WEIGHT_F32 && shape->format != WEIGHT_BF16;
    if (shape->format == WEIGHT_F32)
        return false;
    if (shape->is_gate_and_up && (!is_packed || shape->rows % 32 != 0))
        return false;
    return shape->columns % (is_packed ? 32 : EIGHT_COLUMNS) == 0;
}

/* Tokens that a weight meets in one go, on average. */
static int32_t usual_tokens(const struct product_shape *shape) {
    return shape->experts > 0 ? divide_up(shape->tokens, shape->experts) : shape->tokens;
}

/* Tiles of tokens: with experts each may have a tile that is not full. */
static int32_t count_token_tiles(const struct product_shape *shape, int32_t tokens) {
    int64_t tiles = divide_up(shape->tokens, tokens);
    if (shape->experts == 0)
        return (int32_t)tiles;
    int64_t most = shape->tokens / tokens + (shape->experts < shape->tokens ? shape->experts : shape->tokens);
    return (int32_t)(most < shape->tokens ? most : shape->tokens);
}

static struct product_tiles plain_tiles(const struct product_shape *shape) {
    return (struct product_tiles){.kernel = PRODUCT_PLAIN,
        .rows = FEW_ROWS,
        .tokens = 8,
        .chunks = divide_up(shape->columns, CHUNK_COLUMNS),
        .token_tiles = count_token_tiles(shape, 8)};
}

/* Tiles of 16 outputs that a block of PRODUCT_FEW has: a gate and its up product need 32 outputs of each,
 * one scale group. */
static int32_t few_row_tiles(const struct product_shape *shape) {
    return shape->is_gate_and_up ? 4 : 1;
}

static int64_t few_shared(const struct product_shape *shape, int32_t tokens) {
    int64_t chunks = divide_up(shape->columns, CHUNK_COLUMNS);
    return chunks * few_row_tiles(shape) * FEW_ROWS * tokens * (int64_t)sizeof(float);
}

static struct product_tiles few_tiles(const struct product_shape *shape) {
    int32_t usual = usual_tokens(shape), tokens = 8;
    int32_t wanted =
        shape->experts > 0 && usual > 4 ? 2 * usual : usual; /* experts differ in what they get */
    while (tokens < wanted && tokens < FEW_MOST_TOKENS && few_shared(shape, 2 * tokens) <= FEW_MOST_SHARED)
        tokens *= 2;
    struct product_tiles tiles = {.kernel = PRODUCT_FEW, .tokens = tokens};
    int32_t most = shape->is_gate_and_up ? FEW_MOST_WARPS / 2 : FEW_MOST_WARPS;
    tiles.rows = shape->is_gate_and_up ? 2 * FEW_ROWS : FEW_ROWS;
    tiles.chunks = divide_up(shape->columns, CHUNK_COLUMNS);
    tiles.chunks_a_part = divide_up(tiles.chunks, most);
    tiles.warps = divide_up(tiles.chunks, tiles.chunks_a_part);
    tiles.token_tiles = count_token_tiles(shape, tokens);
    tiles.shared_bytes = few_shared(shape, tokens);
    return tiles;
}

/* Blocks that share out the chunks, so that products with few outputs keep the device busy. */
static int32_t many_parts(const struct product_shape *shape, const struct product_tiles *tiles) {
    int64_t blocks = (int64_t)divide_up(shape->rows, tiles->rows) * tiles->token_tiles * shape->groups;
    int32_t most = divide_up(tiles->chunks, LEAST_CHUNKS_A_BLOCK);
    if (shape->experts > 0 || 2 * blocks > shape->multiprocessors || most < 2)
        return 1;
    int64_t wanted = shape->multiprocessors / blocks;
    return wanted < most ? (int32_t)wanted : most;
}

static struct product_tiles many_tiles(const struct product_shape *shape) {
    struct product_tiles tiles = {.kernel = PRODUCT_MANY};
    tiles.rows = shape->is_gate_and_up ? MANY_ROWS / 2 : MANY_ROWS;
    tiles.tokens = usual_tokens(shape) > MANY_SMALL_TOKENS ? MANY_LARGE_TOKENS : MANY_SMALL_TOKENS;
    tiles.token_tiles = count_token_tiles(shape, tiles.tokens);
    tiles.chunks = divide_up(shape->columns, CHUNK_COLUMNS);
    tiles.chunks_a_part = divide_up(tiles.chunks, many_parts(shape, &tiles));
    tiles.parts = divide_up(tiles.chunks, tiles.chunks_a_part);
    return tiles;
}

/* Weights of float32 have a plain kernel and one for any number of tokens. */
static struct product_tiles float_tiles(const struct product_shape *shape) {
    struct product_tiles tiles = {.kernel = PRODUCT_FEW, .rows = FLOAT_ROWS, .tokens = FLOAT_TOKENS};
    if (shape->experts == 0 && shape->tokens == 1)
        tiles.tokens = 1;
    tiles.chunks = divide_up(shape->columns, FLOAT_CHUNK_COLUMNS);
    tiles.warps = tiles.chunks < FEW_MOST_WARPS ? tiles.chunks : FEW_MOST_WARPS;
    tiles.shared_bytes = (int64_t)tiles.chunks * FLOAT_ROWS * tiles.tokens * (int64_t)sizeof(float);
    if (forced_kernel == PRODUCT_PLAIN || tiles.shared_bytes > FEW_MOST_SHARED) {
        tiles.kernel = PRODUCT_PLAIN;
        tiles.rows = 1;
        tiles.tokens = FLOAT_TOKENS;
    }
    tiles.token_tiles = count_token_tiles(shape, tiles.tokens);
    return tiles;
}

struct product_tiles choose_product_tiles(const struct product_shape *shape) {
    if (shape->format == WEIGHT_F32 && !shape->is_gate_and_up)
        return float_tiles(shape);
    bool fits_few = few_shared(shape, 8) <= FEW_MOST_SHARED;
    if (!product_is_regular(shape) || forced_kernel == PRODUCT_PLAIN)
        return plain_tiles(shape);
    if (forced_kernel == PRODUCT_MANY || !fits_few)
        return many_tiles(shape);
    if (forced_kernel == PRODUCT_FEW)
        return few_tiles(shape);
    int32_t most = shape->experts > 0 ? FEW_MOST_PAIRS : FEW_MOST_TOKENS;
    return usual_tokens(shape) <= most ? few_tiles(shape) : many_tiles(shape);
}

int64_t few_pairs(int32_t experts) {
    return (int64_t)FEW_MOST_PAIRS * experts;
}

int32_t product_slab_tokens(int64_t bytes) {
    int64_t tokens = SLAB_BYTES / bytes / MANY_LARGE_TOKENS * MANY_LARGE_TOKENS;
    tokens = tokens > INT32_MAX / 2 ? INT32_MAX / 2 / MANY_LARGE_TOKENS * MANY_LARGE_TOKENS : tokens;
    return tokens > MANY_LARGE_TOKENS ? (int32_t)tokens : MANY_LARGE_TOKENS;
}

/* Products of many tokens: a block makes MANY_ROWS outputs of 64 or 128 tokens. Packed weights and inputs
 * come into shared memory by asynchronous copies, some blocks of columns ahead; weights are decoded once for
 * the block, by the threads that copied them, into one of two tiles of BF16 numbers, while the tensor cores
 * work on the other. With gate and up products the tile has 64 outputs of each, and leaves as hidden rows.
 *
 * Shared tiles have rows of BLOCK_COLUMNS BF16 numbers in 8 pieces of 16 bytes; piece p of row r lies at
 * place p ^ (r % 8), so that neither writing nor reading meets a memory bank twice. A lane takes its
 * fragments as whole pieces: its 16 columns of a block are pieces 2 i and 2 i + 1, of two steps each.
 */
#include "kernels/cuda/mma.h"
#include "kernels/cuda/product_work.h"

enum {
    PIECES = BLOCK_COLUMNS / EIGHT, /* of a row */
    PIECE_BYTES = 16,
    MANY_WARPS = MANY_THREADS / WARP,
    WARPS_OF_ROWS = 2, /* the warps' tiles: 2 x 4 */
    WARPS_OF_TOKENS = MANY_WARPS / WARPS_OF_ROWS,
    WARP_ROWS = MANY_ROWS / WARPS_OF_ROWS,
    ROW_TILES = WARP_ROWS / FEW_ROWS, /* of 16 outputs, of a warp */
};

/* ---- shapes ---- */

template <int kind, int terms, int token_tiles> struct many_shape {
    static const int tokens = 8 * token_tiles * WARPS_OF_TOKENS;
    static const int stages = terms == 1 ? 4 : 3;
    static const int row_pieces = kind == CODES_BF16 ? 8 : kind == CODES_FP8 ? 4 : 2; /* of packed codes */
    static const int code_pieces = MANY_ROWS * row_pieces / MANY_THREADS;             /* of a thread */
    static const int input_pieces = terms * tokens * PIECES / MANY_THREADS;
};

struct many_piece {
    uint4 words;
};

template <int kind, int terms, int token_tiles> struct many_shared {
    typedef struct many_shape<kind, terms, token_tiles> shape;
    struct many_piece weight[2][MANY_ROWS * PIECES];
    struct many_piece input[shape::stages][terms][shape::tokens * PIECES];
    struct many_piece codes[shape::stages][MANY_ROWS * shape::row_pieces];
};

/* Where a piece of a row lies in a tile. */
__device__ static inline int32_t place_of_piece(int32_t row, int32_t piece) {
    return row * PIECES + (piece ^ (row & 7));
}

/* ---- weights ---- */

/* A row of the block's tile: of which matrix, and which of its rows (-1: none). With gate and up products
 * a warp's 64 rows are 32 of the gate product, then the same 32 of the up product. */
struct tile_row {
    int32_t matrix, row;
};

template <bool is_gate_and_up>
__device__ static inline struct tile_row find_row(const struct product_job *job, int32_t tile_row) {
    struct tile_row found = {0, job->row + tile_row};
    if (is_gate_and_up) {
        int32_t half = WARP_ROWS / 2, in_warp = tile_row % WARP_ROWS;
        found.matrix = in_warp / half;
        found.row = job->row + tile_row / WARP_ROWS * half + in_warp % half;
    }
    found.row = found.row < job->rows ? job->first + found.row : -1;
    return found;
}

/* A thread's pieces of packed codes, the same rows and columns within each block of columns. */
template <int kind, int pieces> struct code_reader {
    const uint8_t *codes[pieces];  /* of the first block; NULL: no such row */
    const uint8_t *scales[pieces]; /* of the first block */
    int32_t column[pieces];        /* within a block */
    uint32_t scale[pieces];        /* of the block that is decoded next */
};

template <int kind, int pieces, int row_pieces, bool is_gate_and_up>
__device__ static inline void open_reader(
    const struct product_job *job, struct code_reader<kind, pieces> *reader) {
#pragma unroll
    for (int k = 0; k < pieces; k++) {
        int32_t at = (int32_t)threadIdx.x + k * MANY_THREADS;
        struct tile_row row = find_row<is_gate_and_up>(job, at / row_pieces);
        struct code_matrix w = is_gate_and_up && row.matrix == 1 ? job->w[1] : job->w[0];
        reader->column[k] = at % row_pieces * (BLOCK_COLUMNS / row_pieces);
        reader->codes[k] = reader->scales[k] = NULL;
        if (row.row >= 0) {
            reader->codes[k] =
                w.codes + row.row * code_bytes<kind>(w.columns) + code_bytes<kind>(reader->column[k]);
            if (kind != CODES_BF16)
                reader->scales[k] = scales_of_row(&w, row.row) + reader->column[k] / GROUP;
        }
    }
}

template <int kind, int pieces>
__device__ static inline void copy_codes(const struct code_reader<kind, pieces> *reader, const uint8_t *any,
    int32_t block, int32_t columns, struct many_piece *to) {
#pragma unroll
    for (int k = 0; k < pieces; k++) {
        bool has = reader->codes[k] != NULL && block * BLOCK_COLUMNS + reader->column[k] < columns;
        const uint8_t *from = has ? reader->codes[k] + code_bytes<kind>((int64_t)block * BLOCK_COLUMNS) : any;
        copy_async(&to[(int32_t)threadIdx.x + k * MANY_THREADS], from, has ? PIECE_BYTES : 0);
    }
}

/* Reads the scales of a block ahead of its decoding. */
template <int kind, int pieces>
__device__ static inline void load_scales(
    struct code_reader<kind, pieces> *reader, int32_t block, int32_t columns) {
#pragma unroll
    for (int k = 0; k < pieces; k++) {
        bool has = reader->scales[k] != NULL && block * BLOCK_COLUMNS + reader->column[k] < columns;
        reader->scale[k] = has ? load_scale(reader->scales[k] + block * (BLOCK_COLUMNS / GROUP)) : 0u;
    }
}

/* This thread's pieces of codes become pieces of the tile. */
template <int kind, int pieces, int row_pieces>
__device__ static inline void decode_pieces(
    const struct code_reader<kind, pieces> *reader, const struct many_piece *codes, struct many_piece *tile) {
    constexpr int made = PIECES / row_pieces; /* of a piece of codes */
#pragma unroll
    for (int k = 0; k < pieces; k++) {
        int32_t at = (int32_t)threadIdx.x + k * MANY_THREADS, row = at / row_pieces,
                first = at % row_pieces * made;
        uint4 four = codes[at].words;
        uint32_t word[4] = {four.x, four.y, four.z, four.w}, out[4 * made];
#pragma unroll
        for (int m = 0; m < made; m++)
            open_codes<kind>(word + m * code_size<kind>::words, out + 4 * m);
        if (kind != CODES_BF16)
            apply_scale<kind, 4 * made>(out, reader->scale[k]);
#pragma unroll
        for (int m = 0; m < made; m++)
            tile[place_of_piece(row, first + m)].words =
                make_uint4(out[4 * m], out[4 * m + 1], out[4 * m + 2], out[4 * m + 3]);
    }
}

/* ---- inputs ---- */

/* A block of columns of the tile's tokens, all terms: zeros for tokens and columns that are not there. */
template <int terms, int tokens>
__device__ static inline void copy_inputs(const struct product_work *work, const struct product_job *job,
    int32_t block, struct many_piece (*to)[tokens * PIECES]) {
    int32_t first = (int32_t)threadIdx.x / PIECES, piece = (int32_t)threadIdx.x % PIECES;
    int32_t c = block * BLOCK_COLUMNS + piece * EIGHT;
#pragma unroll
    for (int k = 0; k < tokens * PIECES / MANY_THREADS; k++) {
        int32_t token = first + k * (MANY_THREADS / PIECES);
        bool has = token < job->tokens && c < work->w.columns;
        const uint8_t *from = has ? job->x + token * job->x_stride + (int64_t)c * 2 : job->x;
#pragma unroll
        for (int term = 0; term < terms; term++)
            copy_async(&to[term][place_of_piece(token, piece)], from + term * work->x.term_bytes,
                has ? PIECE_BYTES : 0);
    }
}

/* ---- products ---- */

__device__ static inline void load_piece(
    const struct many_piece *tile, int32_t row, int32_t piece, uint32_t out[4]) {
    uint4 four = tile[place_of_piece(row, piece)].words;
    out[0] = four.x;
    out[1] = four.y;
    out[2] = four.z;
    out[3] = four.w;
}

/* Adds one block of columns to the warp's sums: sum[row tile][token tile]. */
template <int terms, int token_tiles, int pieces>
__device__ static inline void multiply_block(const struct many_piece *weight,
    const struct many_piece (*input)[pieces], float sum[ROW_TILES][token_tiles][4]) {
    int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP, g = lane / 4,
            i = lane % 4;
    int32_t first_row = warp / WARPS_OF_TOKENS * WARP_ROWS,
            first_token = warp % WARPS_OF_TOKENS * 8 * token_tiles;
#pragma unroll(terms == 1 ? 2 : 1) /* more would need more registers than there are */
    for (int step = 0; step < 2 * terms; step++) {
        int half = step / terms, term = step % terms;
        uint32_t b[token_tiles][4];
#pragma unroll
        for (int n = 0; n < token_tiles; n++)
            load_piece(input[term], first_token + 8 * n + g, 2 * i + half, b[n]);
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
            uint32_t low[4], high[4];
            load_piece(weight, first_row + FEW_ROWS * m + g, 2 * i + half, low);
            load_piece(weight, first_row + FEW_ROWS * m + g + 8, 2 * i + half, high);
#pragma unroll
            for (int s = 0; s < 4; s += 2) {
                uint32_t a[4] = {low[s], high[s], low[s + 1], high[s + 1]};
#pragma unroll
                for (int n = 0; n < token_tiles; n++)
                    mma_bf16(sum[m][n], a, b[n] + s);
            }
        }
    }
}

/* ---- where sums go ---- */

/* This thread's number, which the compiler cannot know ahead: else it computes the places of all sums before the
 * loop over the columns, and runs out of registers in it. */
__device__ static inline int32_t thread_here(void) {
    int32_t thread = (int32_t)threadIdx.x;
#ifndef CUDA_EMULATION
    asm volatile("" : "+r"(thread));
#endif
    return thread;
}

/* The output that sum o of a lane in row tile m and token tile n is. */
struct many_place {
    int32_t row, token; /* within the block's tile */
};

template <int token_tiles>
__device__ static inline struct many_place find_place(int32_t thread, int m, int n, int o) {
    int32_t lane = thread % WARP, warp = thread / WARP;
    struct many_place place = {warp / WARPS_OF_TOKENS * WARP_ROWS + FEW_ROWS * m + lane / 4 + o / 2 * 8,
        warp % WARPS_OF_TOKENS * 8 * token_tiles + 8 * n + lane % 4 * 2 + o % 2};
    return place;
}

template <int token_tiles>
__device__ static inline void put_sums(const struct product_work *work, const struct product_job *job,
    float *to, int64_t stride, const float sum[ROW_TILES][token_tiles][4]) {
    int32_t thread = thread_here();
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < token_tiles; n++)
#pragma unroll
            for (int o = 0; o < 4; o++) {
                struct many_place place = find_place<token_tiles>(thread, m, n, o);
                if (job->row + place.row < work->rows && place.token < job->tokens)
                    to[(job->token + place.token) * stride + job->first + job->row + place.row] =
                        sum[m][n][o];
            }
}

/* The sums of gate and up products in shared memory, [tokens][STAGED_ROWS]: rows apart by a number that
 * spreads them over the banks. */
enum { STAGED_ROWS = MANY_ROWS + 4 };

template <int token_tiles>
__device__ static inline void stage_sums(float *staged, const float sum[ROW_TILES][token_tiles][4]) {
    int32_t thread = thread_here();
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < token_tiles; n++)
#pragma unroll
            for (int o = 0; o < 4; o++) {
                struct many_place place = find_place<token_tiles>(thread, m, n, o);
                staged[place.token * STAGED_ROWS + place.row] = sum[m][n][o];
            }
}

/* Columns of hidden rows from there: a warp makes one scale group of one token at a time. */
__device__ static inline void put_hidden(
    const struct product_work *work, const struct product_job *job, const float *staged) {
    const int32_t groups = MANY_ROWS / 2 / GROUP;
    const struct activation *to = &work->activation;
    int32_t lane = (int32_t)threadIdx.x % WARP;
    for (int32_t item = (int32_t)threadIdx.x / WARP; item < job->tokens * groups; item += MANY_WARPS) {
        int32_t token = item / groups, group = item % groups, column = job->row + group * GROUP + lane;
        const float *sums = staged + token * STAGED_ROWS + group * WARP_ROWS + lane;
        float weight = to->weight[job->token + token];
        float value = activate(sums[0], sums[WARP_ROWS / 2], to->limit, weight);
        uint32_t amax = largest_in_warp(value);
        if (to->is_rounded)
            value = round_in_group(value, amax);
        if (column < work->rows)
            put_column(&to->hidden, job->token + token, column, value);
    }
}

/* ---- the kernel ---- */

template <int token_tiles>
__device__ static inline void add_sums(
    float total[ROW_TILES][token_tiles][4], float sum[ROW_TILES][token_tiles][4], bool is_first) {
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int n = 0; n < token_tiles; n++)
#pragma unroll
            for (int o = 0; o < 4; o++) {
                total[m][n][o] = is_first ? sum[m][n][o] : total[m][n][o] + sum[m][n][o];
                sum[m][n][o] = 0;
            }
}

/* Decodes this thread's part of a block, and reads the scales of the next one. */
template <int kind, int terms, int token_tiles, int pieces>
__device__ static inline void decode_block(struct code_reader<kind, pieces> *reader,
    struct many_shared<kind, terms, token_tiles> *shared, int32_t block, int32_t columns) {
    typedef struct many_shape<kind, terms, token_tiles> shape;
    decode_pieces<kind, pieces, shape::row_pieces>(
        reader, shared->codes[block % shape::stages], shared->weight[block % 2]);
    load_scales(reader, block + 1, columns);
}

template <int kind, int terms, int token_tiles, bool is_gate_and_up>
static __global__ void __launch_bounds__(MANY_THREADS) many_product(struct product_work work) {
    typedef struct many_shape<kind, terms, token_tiles> shape;
    typedef struct many_shared<kind, terms, token_tiles> shared_type;
    constexpr int stages = shape::stages, pieces = shape::code_pieces, row_pieces = shape::row_pieces;
    shared_type *shared = &SHARED(shared_type);
    struct product_job job;
    if (!find_job(&work, is_gate_and_up ? MANY_ROWS / 2 : MANY_ROWS, shape::tokens, &job))
        return;
    struct code_reader<kind, pieces> reader;
    open_reader<kind, pieces, row_pieces, is_gate_and_up>(&job, &reader);
    float sum[ROW_TILES][token_tiles][4] = {{{0}}}, total[ROW_TILES][token_tiles][4];
    /* of the two warps that share a scheduler, one multiplies while the other decodes */
    const bool decodes_first = threadIdx.x < MANY_THREADS / 2;
    int32_t columns = work.w.columns, all = (columns + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    int32_t first = (int32_t)blockIdx.z * work.chunks_a_part * CHUNK_BLOCKS;
    int32_t end = first + work.chunks_a_part * CHUNK_BLOCKS;
    end = end < all ? end : all;
    for (int32_t block = first; block < first + stages - 1; block++) {
        if (block < end) {
            copy_codes(&reader, job.x, block, columns, shared->codes[block % stages]);
            copy_inputs<terms, shape::tokens>(&work, &job, block, shared->input[block % stages]);
        }
        copies_commit();
    }
    load_scales(&reader, first, columns);
    copies_wait<stages - 2>();
    decode_block(&reader, shared, first, columns);
    __syncthreads();
    for (int32_t block = first; block < end; block++) {
        int32_t later = block + stages - 1;
        if (later < end) {
            copy_codes(&reader, job.x, later, columns, shared->codes[later % stages]);
            copy_inputs<terms, shape::tokens>(&work, &job, later, shared->input[later % stages]);
        }
        copies_commit();
        copies_wait<stages - 2>();
        bool has_next = block + 1 < end;
        if (has_next && decodes_first)
            decode_block(&reader, shared, block + 1, columns);
        multiply_block<terms, token_tiles>(shared->weight[block % 2], shared->input[block % stages], sum);
        if (has_next && !decodes_first)
            decode_block(&reader, shared, block + 1, columns);
        if (block % CHUNK_BLOCKS == CHUNK_BLOCKS - 1 || block == end - 1) {
            int32_t chunk = block / CHUNK_BLOCKS;
            add_sums<token_tiles>(total, sum, work.parts != NULL || chunk == 0);
            if (!is_gate_and_up && work.parts != NULL) {
                int64_t stride = (int64_t)work.groups * work.rows;
                put_sums<token_tiles>(&work, &job, work.parts + chunk * work.tokens * stride, stride, total);
            }
        }
        __syncthreads();
    }
    if (is_gate_and_up) {
        static_assert(
            sizeof(shared_type) >= shape::tokens * STAGED_ROWS * sizeof(float), "sums fit where tiles were");
        float *staged = (float *)shared;
        stage_sums<token_tiles>(staged, total);
        __syncthreads();
        put_hidden(&work, &job, staged);
    } else if (work.parts == NULL)
        put_sums<token_tiles>(&work, &job, work.out, work.out_stride, total);
}

/* The chunks' sums, where blocks shared them out. */
static __global__ void add_parts(struct product_work work) {
    int64_t outputs = (int64_t)work.groups * work.rows, all = outputs * work.tokens;
    for (int64_t o = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; o < all;
         o += (int64_t)gridDim.x * blockDim.x) {
        float total = work.parts[o];
        for (int32_t chunk = 1; chunk < work.chunks; chunk++)
            total += work.parts[chunk * all + o];
        work.out[o / outputs * work.out_stride + o % outputs] = total;
    }
}

/* ---- launches ---- */

template <int kind, int terms, bool is_gate_and_up>
static void launch_many_tokens(
    struct stream *stream, struct product_work work, const struct product_tiles *tiles, dim3 grid) {
    if (tiles->tokens == 64)
        LAUNCH(stream, (many_product<kind, terms, 2, is_gate_and_up>), grid, MANY_THREADS,
            sizeof(struct many_shared<kind, terms, 2>), work);
    else
        LAUNCH(stream, (many_product<kind, terms, 4, is_gate_and_up>), grid, MANY_THREADS,
            sizeof(struct many_shared<kind, terms, 4>), work);
}

template <int kind, bool is_gate_and_up>
static void launch_many_terms(
    struct stream *stream, const struct product_work *work, const struct product_tiles *tiles, dim3 grid) {
    if (work->x.terms == 1)
        launch_many_tokens<kind, 1, is_gate_and_up>(stream, *work, tiles, grid);
    else
        launch_many_tokens<kind, MOST_TERMS, is_gate_and_up>(stream, *work, tiles, grid);
}

static void launch_add_parts(struct stream *stream, struct product_work work) {
    enum { THREADS = 256 };
    int64_t blocks = ((int64_t)work.tokens * work.groups * work.rows + THREADS - 1) / THREADS;
    int64_t most = 8 * (int64_t)stream->multiprocessors;
    LAUNCH(stream, add_parts, (uint32_t)(blocks < most ? blocks : most), THREADS, 0, work);
}

void launch_many_product(struct stream *stream, const struct product_work *work,
    const struct product_tiles *tiles, enum code_kind kind, bool is_gate_and_up) {
    struct product_work now = *work;
    now.row_tiles = (work->rows + tiles->rows - 1) / tiles->rows;
    now.chunks = tiles->chunks;
    now.chunks_a_part = tiles->chunks_a_part;
    now.parts = tiles->parts > 1 ? work->parts : NULL;
    dim3 grid((uint32_t)now.row_tiles * (uint32_t)tiles->token_tiles, (uint32_t)work->groups,
        (uint32_t)tiles->parts);
    if (kind == CODES_FP8 && now.x.terms == GROUPED_TERMS)
        launch_many_tokens<CODES_FP8, GROUPED_TERMS, false>(stream, now, tiles, grid);
    else if (kind == CODES_FP4 && is_gate_and_up)
        launch_many_terms<CODES_FP4, true>(stream, &now, tiles, grid);
    else if (kind == CODES_FP4)
        launch_many_terms<CODES_FP4, false>(stream, &now, tiles, grid);
    else if (kind == CODES_FP8 && is_gate_and_up)
        launch_many_terms<CODES_FP8, true>(stream, &now, tiles, grid);
    else if (kind == CODES_FP8)
        launch_many_terms<CODES_FP8, false>(stream, &now, tiles, grid);
    else /* gates and ups of BF16 are not regular: tiles.c */
        launch_many_terms<CODES_BF16, false>(stream, &now, tiles, grid);
    if (now.parts != NULL)
        launch_add_parts(stream, now);
}

/* Products of few tokens: what bounds them is the reading of weights, so each weight is read once, straight
 * into the registers of the lane whose part of a tensor-core fragment it is, several blocks of columns ahead
 * of their use. A block makes 16 outputs (of gate and up products 32 of each); its warps share out the chunks
 * of columns, and add their sums up in shared memory.
 */
#include "kernels/cuda/mma.h"
#include "kernels/cuda/product_work.h"

/* ---- weights ---- */

enum {
    LANE_COLUMNS = 16, /* of a block of columns, per lane and row */
    BLOCK_INPUT_BYTES = 2 * BLOCK_COLUMNS,
};

/* A lane's columns of one row. */
template <int kind> struct lane_codes {
    uint32_t word[2 * code_size<kind>::words];
    uint32_t scale;
};

/* A row of weights, from this lane's columns of some block on. */
struct lane_row {
    const uint8_t *codes, *scales;
};

template <int kind>
__device__ static inline struct lane_row open_row(const struct code_matrix *w, int32_t row, int32_t column) {
    struct lane_row opened = {w->codes + row * code_bytes<kind>(w->columns) + code_bytes<kind>(column), NULL};
    if (kind != CODES_BF16)
        opened.scales = scales_of_row(w, row) + column / GROUP;
    return opened;
}

/* The lane's columns `blocks` blocks on, of which `left` exist, or, with is_whole, all. */
template <int kind, bool is_whole>
__device__ static inline void load_codes(
    const struct lane_row *row, int32_t blocks, int32_t left, struct lane_codes<kind> *out) {
    const uint8_t *from = row->codes + blocks * (int32_t)code_bytes<kind>(BLOCK_COLUMNS);
    bool is_in = is_whole || left > 0;
    if (kind == CODES_FP4) {
        uint2 two = is_in ? load_stream_8(from) : make_uint2(0, 0);
        out->word[0] = two.x;
        out->word[1] = two.y;
    } else {
#pragma unroll
        for (int v = 0; v < code_size<kind>::words / 2; v++) {
            bool has = is_whole || (kind == CODES_BF16 ? left > v * EIGHT : is_in);
            uint4 four = has ? load_stream_16(from + 16 * v) : make_uint4(0, 0, 0, 0);
            out->word[4 * v] = four.x;
            out->word[4 * v + 1] = four.y;
            out->word[4 * v + 2] = four.z;
            out->word[4 * v + 3] = four.w;
        }
    }
    if (kind != CODES_BF16)
        out->scale = is_in ? load_scale(row->scales + blocks * (BLOCK_COLUMNS / GROUP)) : 0u;
}

/* Eight columns, two words a step. */
template <int kind>
__device__ static inline void decode_half(const struct lane_codes<kind> *codes, int half, uint32_t out[4]) {
    open_codes<kind>(codes->word + half * code_size<kind>::words, out);
    if (kind != CODES_BF16)
        apply_scale<kind, 4>(out, codes->scale);
}

/* ---- a warp's chunks ---- */

/* Blocks of columns that are read ahead, as registers allow; a chunk is a multiple of them. */
template <int kind, int matrices, int token_tiles> struct few_shape {
    static const int wanted = kind == CODES_FP4 ? 8 : kind == CODES_FP8 ? 4 : 2;
    static const int share = matrices * (matrices * token_tiles > 1 ? 2 : 1);
    static const int ahead = wanted > share ? wanted / share : 1;
};

template <int kind, int matrices, int token_tiles> struct few_state {
    struct lane_row row[matrices][2]; /* rows g and g + 8 */
    struct lane_codes<kind> codes[few_shape<kind, matrices, token_tiles>::ahead][matrices][2];
    const uint8_t *x[token_tiles]; /* token g of each eight, from this lane's columns of the same block on */
    float sum[matrices][token_tiles][4];
    int32_t tokens; /* that are there */
};

template <int kind, int matrices, int token_tiles, bool is_whole>
__device__ static inline void load_block(
    struct few_state<kind, matrices, token_tiles> *state, int32_t blocks, int32_t left, int slot) {
#pragma unroll
    for (int m = 0; m < matrices; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            load_codes<kind, is_whole>(&state->row[m][r], blocks, left, &state->codes[slot][m][r]);
}

/* Eight columns of a token's row: two steps of two words. */
template <bool is_whole>
__device__ static inline void load_input(const uint8_t *from, int32_t left, uint32_t out[4]) {
    uint4 four = is_whole || left > 0 ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    out[0] = four.x;
    out[1] = four.y;
    out[2] = four.z;
    out[3] = four.w;
}

/* The block in `slot`, which is `blocks` on from where the state's rows of inputs point. */
template <int kind, int terms, int matrices, int token_tiles, bool is_whole>
__device__ static inline void meet_block(struct few_state<kind, matrices, token_tiles> *state, int32_t blocks,
    int32_t left, int slot, int64_t term_bytes) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t low[matrices][4], high[matrices][4];
        int32_t offset = blocks * BLOCK_INPUT_BYTES + half * 2 * EIGHT;
#pragma unroll
        for (int m = 0; m < matrices; m++) {
            decode_half<kind>(&state->codes[slot][m][0], half, low[m]);
            decode_half<kind>(&state->codes[slot][m][1], half, high[m]);
        }
#pragma unroll
        for (int term = 0; term < terms; term++)
#pragma unroll
            for (int n = 0; n < token_tiles; n++) {
                uint32_t b[4];
                if (n > 0 && 8 * n >= state->tokens)
                    continue;
                load_input<is_whole>(state->x[n] + term * term_bytes + offset, left - half * EIGHT, b);
#pragma unroll
                for (int s = 0; s < 4; s += 2)
#pragma unroll
                    for (int m = 0; m < matrices; m++) {
                        uint32_t a[4] = {low[m][s], high[m][s], low[m][s + 1], high[m][s + 1]};
                        mma_bf16(state->sum[m][n], a, b + s);
                    }
            }
    }
}

/* Moves the state on by as many blocks as are read ahead. */
template <int kind, int matrices, int token_tiles>
__device__ static inline void move_on(struct few_state<kind, matrices, token_tiles> *state) {
    constexpr int ahead = few_shape<kind, matrices, token_tiles>::ahead;
#pragma unroll
    for (int m = 0; m < matrices; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            state->row[m][r].codes += ahead * code_bytes<kind>(BLOCK_COLUMNS);
            if (kind != CODES_BF16)
                state->row[m][r].scales += ahead * (BLOCK_COLUMNS / GROUP);
        }
#pragma unroll
    for (int n = 0; n < token_tiles; n++)
        state->x[n] += ahead * BLOCK_INPUT_BYTES;
}

/* Sums of one chunk of one tile of 16 outputs: [matrices][16][tokens]. */
template <int matrices, int token_tiles> struct few_sums { float sum[matrices][FEW_ROWS][8 * token_tiles]; };

template <int kind, int matrices, int token_tiles>
__device__ static inline void put_sums(
    struct few_state<kind, matrices, token_tiles> *state, struct few_sums<matrices, token_tiles> *to) {
    int32_t g = (int32_t)threadIdx.x % WARP / 4, i = (int32_t)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < matrices; m++)
#pragma unroll
        for (int n = 0; n < token_tiles; n++)
#pragma unroll
            for (int o = 0; o < 4; o++) {
                to->sum[m][g + o / 2 * 8][8 * n + 2 * i + o % 2] = state->sum[m][n][o];
                state->sum[m][n][o] = 0;
            }
}

/* Rows and tokens that are not there repeat the last and the first one. */
template <int kind, int matrices, int token_tiles>
__device__ static inline void open_state(const struct product_job *job, int32_t row, int32_t column,
    struct few_state<kind, matrices, token_tiles> *state) {
    int32_t g = (int32_t)threadIdx.x % WARP / 4;
    state->tokens = job->tokens;
#pragma unroll
    for (int m = 0; m < matrices; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int32_t at = row + g + 8 * r, last = job->rows - 1;
            state->row[m][r] = open_row<kind>(&job->w[m], job->first + (at < last ? at : last), column);
        }
#pragma unroll
    for (int n = 0; n < token_tiles; n++) {
        int32_t token = 8 * n + g;
        state->x[n] = job->x + (token < job->tokens ? token : 0) * job->x_stride + (int64_t)column * 2;
#pragma unroll
        for (int o = 0; o < 4 * matrices; o++)
            state->sum[o / 4][n][o % 4] = 0;
    }
}

/* This warp's chunks, from `first` on, of the tile of 16 outputs that begins at row `row` of the group;
 * sums: of chunk 0, those of the next one `step` on. */
template <int kind, int terms, int matrices, int token_tiles>
__device__ static inline void few_chunks(const struct product_work *work, const struct product_job *job,
    int32_t row, int32_t first, struct few_sums<matrices, token_tiles> *sums, int32_t step) {
    constexpr int ahead = few_shape<kind, matrices, token_tiles>::ahead;
    struct few_state<kind, matrices, token_tiles> state;
    int32_t lane_column = (int32_t)threadIdx.x % 4 * LANE_COLUMNS, columns = job->w[0].columns;
    int32_t block = first * CHUNK_BLOCKS, end = block + work->chunks_a_part * CHUNK_BLOCKS;
    int32_t whole = columns / BLOCK_COLUMNS, last = end < whole ? end : whole;
    open_state<kind, matrices, token_tiles>(job, row, block * BLOCK_COLUMNS + lane_column, &state);
#pragma unroll
    for (int slot = 0; slot < ahead; slot++)
        if (block + slot < last)
            load_block<kind, matrices, token_tiles, true>(&state, slot, 0, slot);
    for (; block + ahead <= last; block += ahead) {
#pragma unroll
        for (int slot = 0; slot < ahead; slot++) {
            meet_block<kind, terms, matrices, token_tiles, true>(&state, slot, 0, slot, work->x.term_bytes);
            if (block + slot + ahead < last)
                load_block<kind, matrices, token_tiles, true>(&state, slot + ahead, 0, slot);
        }
        move_on<kind, matrices, token_tiles>(&state);
        if ((block + ahead) % CHUNK_BLOCKS == 0)
            put_sums<kind, matrices, token_tiles>(&state, sums + block / CHUNK_BLOCKS * step);
    }
    /* the rest of a chunk, and of a block of columns */
#pragma unroll
    for (int slot = 0; slot < ahead - 1; slot++)
        if (block + slot < last)
            meet_block<kind, terms, matrices, token_tiles, true>(&state, slot, 0, slot, work->x.term_bytes);
    bool has_part = columns % BLOCK_COLUMNS != 0 && whole < end;
    if (has_part) {
        int32_t left = columns - whole * BLOCK_COLUMNS - lane_column;
        load_block<kind, matrices, token_tiles, false>(&state, whole - block, left, 0);
        meet_block<kind, terms, matrices, token_tiles, false>(
            &state, whole - block, left, 0, work->x.term_bytes);
    }
    if (last % CHUNK_BLOCKS != 0 || has_part)
        put_sums<kind, matrices, token_tiles>(&state, sums + last / CHUNK_BLOCKS * step);
}

/* The whole sum of one output of one matrix. */
template <int matrices, int token_tiles>
__device__ static inline float add_chunks(const struct few_sums<matrices, token_tiles> *sums, int32_t step,
    int32_t chunks, int matrix, int32_t row, int32_t token) {
    float total = sums->sum[matrix][row][token];
    for (int32_t chunk = 1; chunk < chunks; chunk++)
        total += sums[chunk * step].sum[matrix][row][token];
    return total;
}

/* ---- kernels ---- */

template <int kind, int terms, int token_tiles>
static __global__ void __launch_bounds__(FEW_MOST_WARPS *WARP, 2) few_product(struct product_work work) {
    typedef struct few_sums<1, token_tiles> sums_type;
    sums_type *sums = &SHARED(sums_type);
    struct product_job job;
    if (!find_job(&work, FEW_ROWS, 8 * token_tiles, &job))
        return;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    few_chunks<kind, terms, 1, token_tiles>(&work, &job, job.row, warp * work.chunks_a_part, sums, 1);
    __syncthreads();
    for (int32_t o = (int32_t)threadIdx.x; o < FEW_ROWS * job.tokens; o += (int32_t)blockDim.x) {
        int32_t row = o % FEW_ROWS, token = o / FEW_ROWS;
        if (job.row + row < job.rows)
            put_output(&work, &job, token, job.row + row, add_chunks(sums, 1, work.chunks, 0, row, token));
    }
}

/* The first half of the warps makes 16 outputs of both products, the second half the next 16: one scale
 * group of the hidden row. */
template <int kind, int terms, int token_tiles>
static __global__ void __launch_bounds__(FEW_MOST_WARPS *WARP, token_tiles > 2 ? 1 : 2)
    few_gate_and_up(struct product_work work) {
    typedef struct few_sums<2, token_tiles> sums_type;
    sums_type *sums = &SHARED(sums_type);
    struct product_job job;
    if (!find_job(&work, 2 * FEW_ROWS, 8 * token_tiles, &job))
        return;
    int32_t warps = (int32_t)blockDim.x / WARP, warp = (int32_t)threadIdx.x / WARP;
    int32_t half = warp / (warps / 2), lane = (int32_t)threadIdx.x % WARP;
    few_chunks<kind, terms, 2, token_tiles>(
        &work, &job, job.row + half * FEW_ROWS, warp % (warps / 2) * work.chunks_a_part, sums + half, 2);
    __syncthreads();
    const struct activation *to = &work.activation;
    for (int32_t token = warp; token < job.tokens; token += warps) {
        float gate = add_chunks(sums + lane / FEW_ROWS, 2, work.chunks, 0, lane % FEW_ROWS, token);
        float up = add_chunks(sums + lane / FEW_ROWS, 2, work.chunks, 1, lane % FEW_ROWS, token);
        float value = activate(gate, up, to->limit, to->weight[job.token + token]);
        uint32_t amax = largest_in_warp(value);
        if (to->is_rounded)
            value = round_in_group(value, amax);
        put_column(&to->hidden, job.token + token, job.row + lane, value);
    }
}

/* ---- launches ---- */

template <int kind, int terms>
static void launch_few_tokens(
    struct stream *stream, struct product_work work, const struct product_tiles *tiles, dim3 grid) {
    uint32_t threads = (uint32_t)tiles->warps * WARP;
    size_t bytes = (size_t)tiles->shared_bytes;
    if (tiles->tokens == 8)
        LAUNCH(stream, (few_product<kind, terms, 1>), grid, threads, bytes, work);
    else if (tiles->tokens == 16)
        LAUNCH(stream, (few_product<kind, terms, 2>), grid, threads, bytes, work);
    else
        LAUNCH(stream, (few_product<kind, terms, 4>), grid, threads, bytes, work);
}

template <int kind, int terms>
static void launch_few_gate_and_up(
    struct stream *stream, struct product_work work, const struct product_tiles *tiles, dim3 grid) {
    uint32_t threads = 2 * (uint32_t)tiles->warps * WARP;
    size_t bytes = (size_t)tiles->shared_bytes;
    if (tiles->tokens == 8)
        LAUNCH(stream, (few_gate_and_up<kind, terms, 1>), grid, threads, bytes, work);
    else if (tiles->tokens == 16)
        LAUNCH(stream, (few_gate_and_up<kind, terms, 2>), grid, threads, bytes, work);
    else
        LAUNCH(stream, (few_gate_and_up<kind, terms, 4>), grid, threads, bytes, work);
}

template <int kind>
static void launch_few_terms(struct stream *stream, const struct product_work *work,
    const struct product_tiles *tiles, dim3 grid, bool is_gate_and_up) {
    if (is_gate_and_up && work->x.terms == 1)
        launch_few_gate_and_up<kind, 1>(stream, *work, tiles, grid);
    else if (is_gate_and_up)
        launch_few_gate_and_up<kind, MOST_TERMS>(stream, *work, tiles, grid);
    else if (work->x.terms == 1)
        launch_few_tokens<kind, 1>(stream, *work, tiles, grid);
    else
        launch_few_tokens<kind, MOST_TERMS>(stream, *work, tiles, grid);
}

void launch_few_product(struct stream *stream, const struct product_work *work,
    const struct product_tiles *tiles, enum code_kind kind, bool is_gate_and_up) {
    struct product_work now = *work;
    now.row_tiles = (work->rows + tiles->rows - 1) / tiles->rows;
    now.chunks = tiles->chunks;
    now.chunks_a_part = tiles->chunks_a_part;
    dim3 grid((uint32_t)now.row_tiles * (uint32_t)tiles->token_tiles, (uint32_t)work->groups);
    if (kind == CODES_FP8 && now.x.terms == GROUPED_TERMS)
        launch_few_tokens<CODES_FP8, GROUPED_TERMS>(stream, now, tiles, grid);
    else if (kind == CODES_FP4)
        launch_few_terms<CODES_FP4>(stream, &now, tiles, grid, is_gate_and_up);
    else if (kind == CODES_FP8)
        launch_few_terms<CODES_FP8>(stream, &now, tiles, grid, is_gate_and_up);
    else if (now.x.terms == 1) /* gates and ups of BF16 are not regular: tiles.c */
        launch_few_tokens<CODES_BF16, 1>(stream, now, tiles, grid);
    else
        launch_few_tokens<CODES_BF16, MOST_TERMS>(stream, now, tiles, grid);
}

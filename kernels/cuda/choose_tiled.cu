/* Index scores by tensor cores: FP4 keys and queries.
 *
 * FP4 values are small multiples of a half, times a power of two that a group of columns shares: a dot product is
 * exact in the tensor cores' sums, whose own order then cannot show, unless the scales of its groups lie further
 * apart than about 2^10. Heads are added by weight in float32: a lane adds its pair of every eight, lanes are folded
 * by halves.
 *
 * A warp keeps WARP_ROWS keys in registers and meets the tokens of its block one after the other; their packed
 * queries come through shared memory. Keys are loaded again only where a token has another sequence or list. Columns
 * of a group lie in the order that makes one word of codes a lane's part of two products.
 *
 * Kernels exist for keys of one group and of up to MOST_GROUPS, zeros where there are fewer; for rows that begin at
 * multiples of 4 bytes (whole) and others; for lists of candidate blocks and for all visible rows.
 */
#include "kernels/cuda/choose.h"
#include "kernels/cuda/encode.h"
#include "kernels/cuda/mma.h"
#include "kernels/cuda/pairs.h"

enum {
    MOST_GROUPS = 4, /* scale groups of a key */
    MOST_COLUMNS = MOST_GROUPS * GROUP,
    MOST_HEADS = 64,
    HEAD_TILE = 8,
    THREADS = 256,
    WARP_ROWS = 32,
    ROW_TILES = WARP_ROWS / 16,
    BLOCK_ROWS = THREADS / WARP * WARP_ROWS, /* as many as threads */
    MOST_TOKENS = 64,                        /* of a block */
    UNITS = MOST_COLUMNS / UNIT,
};

/* A query of one head, packed: BF16 values [MOST_COLUMNS], 16-byte units permuted by the head's number. After those
 * of all heads of a token come their weights; heads are padded to whole tiles. */
enum {
    QUERY_BYTES = MOST_COLUMNS * 2,
    HEAD_BYTES = QUERY_BYTES + 4,
};

struct score_memory {
    uint4 queries[2][MOST_HEADS * HEAD_BYTES / 16]; /* of this token and the next */
};

__host__ __device__ static inline int32_t padded_heads(int32_t heads) {
    return (heads + HEAD_TILE - 1) / HEAD_TILE * HEAD_TILE;
}

int64_t packed_query_bytes(int32_t heads) {
    return (int64_t)padded_heads(heads) * HEAD_BYTES;
}

bool is_score_tiled(const struct choose_call *call) {
    const struct block_rows *rows = &call->keys.rows;
    return rows->encoding == ROWS_FP4 && rows->columns <= MOST_COLUMNS && rows->columns % GROUP == 0 &&
           call->choice.heads <= MOST_HEADS;
}

/* ---- packing ---- */

/* Where a column of a group lies: lane i of a product has the codes 8 i to 8 i + 7, two at a time. */
__device__ static inline int32_t group_place(int32_t column) {
    int32_t lane = column / UNIT, code = column % UNIT;
    return code % 4 * UNIT + lane * 2 + code / 4;
}

/* A warp a head, a lane four columns. */
static __global__ void pack_queries(struct choose_call call) {
    int32_t heads = call.choice.heads, padded = padded_heads(heads), columns = call.keys.rows.columns;
    int32_t lane = (int32_t)threadIdx.x % WARP, head = (int32_t)blockIdx.x % padded;
    int32_t token = (int32_t)blockIdx.x / padded;
    uint8_t *packed = call.queries + (int64_t)token * padded * HEAD_BYTES;
    uint16_t *values = (uint16_t *)(packed + head * QUERY_BYTES);
    float *weights = (float *)(packed + padded * QUERY_BYTES);
    bool is_there = head < heads && lane * FOUR < columns;
    float x[FOUR] = {};
    for (int32_t i = 0; i < FOUR && is_there; i++)
        x[i] = call.q[((int64_t)token * heads + head) * columns + lane * FOUR + i];
    struct encoded_four code = encode_fp4_four(x);
    for (int32_t i = 0; i < FOUR; i++) {
        int32_t place = lane * FOUR / GROUP * GROUP + group_place(lane * FOUR % GROUP + i);
        int32_t unit = place / UNIT ^ (head & 7);
        float value = e2m1_value((uint8_t)(code.codes >> 4 * i & 15)) * e8m0_value(code.scale);
        values[unit * UNIT + place % UNIT] = (uint16_t)(float_bits(value) >> 16);
    }
    if (lane == 0)
        weights[head] = head < heads ? call.weight[(int64_t)token * heads + head] : 0.0f;
}

/* ---- keys ---- */

/* A warp's rows. Of each tile a lane has parts of the rows lane / 4 and that + 8, as products want them. */
template <int groups> struct key_tile { uint32_t values[ROW_TILES][groups][2][4]; };

/* Four bytes. */
template <bool whole> __device__ static inline uint32_t load_codes(const uint8_t *from) {
    if (whole)
        return *(const uint32_t *)from;
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

/* This lane's part of an encoded row. */
template <int groups> struct lane_codes {
    uint32_t codes[groups];
    uint8_t scale[groups];
};

template <int groups, bool whole>
__device__ static inline void load_row(const uint8_t *row, int32_t columns, struct lane_codes<groups> *part) {
    int32_t lane = (int32_t)threadIdx.x % 4;
#pragma unroll
    for (int32_t g = 0; g < groups; g++) {
        bool is_there = g * GROUP < columns;
        part->codes[g] = is_there ? load_codes<whole>(row + g * (GROUP / 2) + lane * 4) : 0;
        part->scale[g] = is_there ? row[columns / 2 + g] : 0;
    }
}

/* Half `half` of tile m. */
template <int groups>
__device__ static inline void decode_row(
    struct key_tile<groups> *keys, int32_t m, int32_t half, const struct lane_codes<groups> *part) {
#pragma unroll
    for (int32_t g = 0; g < groups; g++) {
        uint32_t scale = both_halves(e8m0_value(part->scale[g]));
#pragma unroll
        for (int32_t k = 0; k < 2; k++) {
            keys->values[m][g][k][half] = multiply_pairs(e2m1_pair(part->codes[g], k * 2), scale);
            keys->values[m][g][k][half + 2] = multiply_pairs(e2m1_pair(part->codes[g], k * 2 + 1), scale);
        }
    }
}

/* The place of row `half` of tile m. */
__device__ static inline int32_t lane_place(int32_t m, int32_t half) {
    int32_t warp = (int32_t)threadIdx.x / WARP, row = (int32_t)threadIdx.x % WARP / 4;
    return (int32_t)blockIdx.x * BLOCK_ROWS + warp * WARP_ROWS + m * 16 + half * 8 + row;
}

/* Which keys the warp holds: places before `reach` of a sequence's rows. Tokens between two of a sequence may have
 * been passed over, so that the second one's rows can reach further. seen: bit m * 2 + half tells of a list's token
 * whether it sees that row. */
struct held_keys {
    int32_t sequence, reach; /* -1: none */
    uint32_t seen;
};

/* The most rows that tokens from `token` on see which share its list. */
__device__ static inline int32_t shared_reach(const struct choose_call *call, int32_t token, int32_t end) {
    int32_t reach = visible_rows(call, token), sequence = call->sequence[token];
    for (int32_t t = token + 1; t < end && call->sequence[t] == sequence; t++) {
        int32_t visible = visible_rows(call, t);
        reach = visible > reach ? visible : reach;
    }
    return reach;
}

/* Where a warp's rows begin, if they lie in one block of the pool. */
struct row_run {
    int32_t first;
    const uint8_t *start;
    bool is_whole; /* they do */
};

/* Of the warp's rows before `reach`; the last of these, if there is none. */
__device__ static inline struct row_run find_run(
    const struct choose_call *call, int32_t sequence, int32_t reach) {
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t first = (int32_t)blockIdx.x * BLOCK_ROWS + warp * WARP_ROWS;
    first = first < reach ? first : reach - 1;
    int32_t last = first + WARP_ROWS - 1 < reach ? first + WARP_ROWS - 1 : reach - 1;
    uint32_t each = (uint32_t)call->keys.rows.rows_per_block;
    bool is_whole = (uint32_t)first / each == (uint32_t)last / each;
    return (struct row_run){first, block_row(&call->keys, sequence, first), is_whole};
}

/* Makes sure that the warp holds the keys of a token that sees a row at least. */
template <int groups, bool whole, bool has_list>
__device__ static inline void hold_keys(const struct choose_call *call, int32_t token, int32_t end,
    struct held_keys *held, struct key_tile<groups> *keys) {
    if (!has_list && call->sequence[token] == held->sequence && visible_rows(call, token) <= held->reach)
        return;
    held->sequence = call->sequence[token];
    held->reach = has_list ? visible_rows(call, token) : shared_reach(call, token, end);
    held->seen = 0;
    struct row_run run = {0, NULL, false};
    if (!has_list)
        run = find_run(call, held->sequence, held->reach);
    struct lane_codes<groups> part[ROW_TILES][2]; /* all on their way before the first is decoded */
#pragma unroll
    for (int32_t m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int32_t half = 0; half < 2; half++) {
            int32_t place = lane_place(m, half), row = place;
            if (has_list)
                row = place < call->places ? listed_row(call, token, place) : -1;
            held->seen |= (uint32_t)(row >= 0) << (m * 2 + half);
            row = row >= 0 && row < held->reach ? row : held->reach - 1; /* any; its score is not kept */
            const uint8_t *from = run.is_whole ? run.start + (row - run.first) * call->keys.bytes
                                               : block_row(&call->keys, held->sequence, row);
            load_row<groups, whole>(from, call->keys.rows.columns, &part[m][half]);
        }
#pragma unroll
    for (int32_t m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int32_t half = 0; half < 2; half++)
            decode_row<groups>(keys, m, half, &part[m][half]);
}

/* ---- scores ---- */

/* This lane's part of the scores of its rows, over its pair of each tile of heads. */
template <int groups>
__device__ static inline void add_heads(
    const struct key_tile<groups> *keys, const uint4 *packed, int32_t padded, float total[ROW_TILES][2]) {
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const uint4 *units =
        packed + (lane & 7) * UNITS; /* of the first tile's head whose values this lane fetches */
    const float *weights = (const float *)(packed + padded * UNITS) + lane % 4 * 2;
    for (int32_t first = 0; first < padded; first += HEAD_TILE) {
        float sum[ROW_TILES][4] = {};
#pragma unroll
        for (int32_t g = 0; g < groups; g++) {
            uint32_t query[4];
            load_matrices(query, units + ((g * 4 + lane / 8) ^ (lane & 7)));
#pragma unroll
            for (int32_t m = 0; m < ROW_TILES; m++) {
                mma_bf16(sum[m], keys->values[m][g][0], query);
                mma_bf16(sum[m], keys->values[m][g][1], query + 2);
            }
        }
#pragma unroll
        for (int32_t m = 0; m < ROW_TILES; m++)
#pragma unroll
            for (int32_t e = 0; e < 4; e++)
                total[m][e / 2] = fmaf(positive_part(sum[m][e]), weights[e % 2], total[m][e / 2]);
        units += HEAD_TILE * UNITS;
        weights += HEAD_TILE;
    }
}

/* Scores of the token for the warp's rows; `end` is the place after the last that is kept. */
template <int groups, bool has_list>
__device__ static inline void score_token(const struct choose_call *call, int32_t token, int32_t end,
    const struct held_keys *held, const struct key_tile<groups> *keys, const uint4 *packed) {
    float total[ROW_TILES][2] = {};
    add_heads<groups>(keys, packed, padded_heads(call->choice.heads), total);
    uint32_t *scores = call->scores + token * call->stride;
#pragma unroll
    for (int32_t m = 0; m < ROW_TILES; m++)
#pragma unroll
        for (int32_t half = 0; half < 2; half++) {
            float score = total[m][half];
            score += __shfl_xor_sync(ALL_LANES, score, 1);
            score += __shfl_xor_sync(ALL_LANES, score, 2);
            int32_t row = m * 2 + half, place = lane_place(m, half);
            bool is_seen = !has_list || (held->seen >> row & 1u) != 0;
            if ((int32_t)threadIdx.x % 4 == row && place < end) /* each lane of four stores one */
                scores[place] = is_seen ? sort_key(score) : 0;
        }
}

/* Whether the token, which sees `visible` rows, sees nothing from place `first` on. Candidate blocks fill the first
 * places of a list. */
template <bool has_list>
__device__ static inline bool is_beyond_list(
    const struct choose_call *call, int32_t token, int32_t visible, int32_t first) {
    if (!has_list || visible == 0)
        return first >= visible;
    const int32_t *blocks = call->candidates + (int64_t)token * call->choice.block_limit;
    return blocks[(uint32_t)first / (uint32_t)call->choice.block_size] < 0;
}

/* The block's places hold nothing that is ever chosen. */
__device__ static inline void clear_scores(const struct choose_call *call, int32_t token, int32_t first) {
    int32_t place = first + (int32_t)threadIdx.x;
    if (place < call->places)
        call->scores[token * call->stride + place] = 0;
}

/* Sets out to bring a token's packed queries. */
__device__ static inline void fetch_queries(
    const struct choose_call *call, int32_t token, struct score_memory *memory) {
    int32_t bytes = padded_heads(call->choice.heads) * HEAD_BYTES;
    const uint8_t *from = call->queries + (int64_t)token * bytes;
    for (int32_t i = (int32_t)threadIdx.x; i < bytes / 16; i += THREADS)
        copy_async(&memory->queries[token % 2][i], from + i * 16, 16);
    copies_commit();
}

/* Block (rows, tokens): BLOCK_ROWS places of the lists of `group` tokens. */
template <int groups, bool whole, bool has_list>
static __global__ void __launch_bounds__(THREADS, 2) score_tiles(struct choose_call call, int32_t group) {
    struct score_memory *memory = &SHARED(struct score_memory);
    int32_t token = (int32_t)blockIdx.y * group,
            end = token + group < call.tokens ? token + group : call.tokens;
    int32_t first = (int32_t)blockIdx.x * BLOCK_ROWS;
    struct held_keys held = {-1, -1, 0};
    struct key_tile<groups> keys;
    fetch_queries(&call, token, memory);
    for (; token < end; token++) {
        int32_t visible = visible_rows(&call, token);
        bool is_empty = is_beyond_list<has_list>(&call, token, visible, first);
        if (!is_empty) /* on their way while queries are waited for */
            hold_keys<groups, whole, has_list>(&call, token, end, &held, &keys);
        copies_wait<0>();
        __syncthreads(); /* the token's queries are there, those of the last one no longer read */
        if (token + 1 < end)
            fetch_queries(&call, token + 1, memory);
        if (!is_empty)
            score_token<groups, has_list>(&call, token, has_list ? (int32_t)call.places : visible, &held,
                &keys, memory->queries[token % 2]);
        else if (has_list)
            clear_scores(&call, token, first);
    }
}

/* Tokens of a block: the more the fewer keys are loaded again, but enough blocks to keep the device busy. */
static int32_t tokens_of_block(const struct stream *stream, int64_t tiles, int32_t tokens) {
    int64_t group = tiles * tokens / (4 * (int64_t)stream->multiprocessors);
    return group < 1 ? 1 : group < MOST_TOKENS ? (int32_t)group : MOST_TOKENS;
}

template <int groups, bool whole>
static void launch_scores(struct stream *stream, const struct choose_call *call, dim3 grid, int32_t group) {
    struct choose_call given = *call;
    const size_t bytes = sizeof(struct score_memory);
    if (call->choice.use_candidates)
        LAUNCH(stream, (score_tiles<groups, whole, true>), grid, dim3(THREADS), bytes, given, group);
    else
        LAUNCH(stream, (score_tiles<groups, whole, false>), grid, dim3(THREADS), bytes, given, group);
}

void score_tiled(struct stream *stream, const struct choose_call *call) {
    struct choose_call given = *call;
    int64_t tiles = (call->places + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int32_t group = tokens_of_block(stream, tiles, call->tokens);
    dim3 pack_grid((unsigned)(call->tokens * padded_heads(call->choice.heads)));
    dim3 grid((unsigned)tiles, (unsigned)((call->tokens + group - 1) / group));
    bool is_short = call->keys.rows.columns <= GROUP, whole = are_aligned(&call->keys, 4);
    LAUNCH(stream, pack_queries, pack_grid, dim3(WARP), 0, given);
    if (is_short && whole)
        launch_scores<1, true>(stream, &given, grid, group);
    else if (is_short)
        launch_scores<1, false>(stream, &given, grid, group);
    else if (whole)
        launch_scores<MOST_GROUPS, true>(stream, &given, grid, group);
    else
        launch_scores<MOST_GROUPS, false>(stream, &given, grid, group);
}

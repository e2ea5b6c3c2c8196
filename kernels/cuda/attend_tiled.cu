/* Sparse attention by tensor cores, for FP8 and FP4 rows.
 *
 * A block takes HEADS heads of a token and meets its rows chunk by chunk: encoded rows are copied asynchronously
 * while the chunk before is worked on, and decoded to BF16, which holds them exactly. Queries and weights are split
 * into two BF16 terms, so that their products lack 2^-17 of them at most. Columns of a unit lie in the order of
 * pairs.h, in queries and rows alike; 16-byte units of a row are permuted by its number, lest matrix loads meet one
 * bank.
 *
 * Warps of a block share out a chunk's scores as two halves of its rows times four quarters of the columns, whose
 * sums meet in shared memory; and its sums by columns. With few tokens each chunk gets a block of its own; its top,
 * sum and row sums go through scratch memory to attend_merge, which merges them as the block that takes all chunks
 * does.
 */
#include "kernels/cuda/attend.h"
#include "kernels/cuda/mma.h"
#include "kernels/cuda/pairs.h"

enum {
    HEADS = 32, /* of a block */
    HEAD_TILES = HEADS / 16,
    THREADS = 256,
    QUARTERS = 4,               /* of the columns, for scores */
    SCORE_STRIDE = 72,          /* floats from head to head, which keeps the stores of a quarter warp apart */
    COPIERS = THREADS / CHUNK,  /* threads that copy a row */
    WEIGHERS = THREADS / HEADS, /* threads that share a head's weights: UNIT rows each */
    BATCH = 4,                  /* rows a thread decodes at a time */
    MERGE_THREADS = 128,
    MERGED = TILED_COLUMNS / MERGE_THREADS, /* columns of a thread of attend_merge */
};

/* Most bytes of an encoded row of tensor-core attention, whole copies. */
__host__ __device__ constexpr int32_t encoded_bytes(int32_t columns) {
    return (columns + columns / GROUP + 15) / 16 * 16;
}

/* width: columns, rounded up; 128 or TILED_COLUMNS. */
template <int width> struct tile_memory {
    uint4 query[2][HEADS][width / UNIT]; /* two terms */
    uint4 rows[CHUNK][width / UNIT];
    uint4 weights[2][HEADS][CHUNK / UNIT]; /* two terms */
    float scores[QUARTERS][HEADS][SCORE_STRIDE];
    struct merge_factors factors[HEADS];
    int32_t present[2][CHUNK]; /* of this chunk and the next: whether there is such a row */
    uint8_t encoded[CHUNK][encoded_bytes(width)];
};

/* Sums of HEADS heads and the warp's share of the columns, as mma_bf16 leaves them. */
template <int width> struct tile_sums { float value[HEAD_TILES][width / 64][4]; };

/* Results of chunks, [chunk, token, head] and then columns. */
struct partials {
    struct softmax *softmax;
    float *sums;
};

/* The heads and the token of a block. */
struct place {
    int32_t token, head;
};

/* ---- queries ---- */

__device__ static inline void split_unit(const float x[UNIT], uint4 *first, uint4 *second) {
    first->x = split_pair(x[0], x[4], &second->x);
    first->y = split_pair(x[1], x[5], &second->y);
    first->z = split_pair(x[2], x[6], &second->z);
    first->w = split_pair(x[3], x[7], &second->w);
}

/* Heads and columns beyond the last are zeros. */
template <int width>
__device__ static inline void load_queries(
    const struct attend_call *call, struct place place, struct tile_memory<width> *memory) {
    const int32_t units = width / UNIT;
    for (int32_t u = (int32_t)threadIdx.x; u < HEADS * units; u += THREADS) {
        int32_t head = u / units, unit = u % units;
        float x[UNIT] = {};
        if (place.head + head < call->heads && unit * UNIT < call->columns) {
            int64_t row = (int64_t)place.token * call->heads + place.head + head;
            const float *from = call->q + row * call->columns + unit * UNIT;
            load_four(from, FOUR, true, x);
            load_four(from + FOUR, FOUR, true, x + FOUR);
        }
        int32_t at = unit ^ (head & 7);
        split_unit(x, &memory->query[0][head][at], &memory->query[1][head][at]);
    }
}

/* ---- rows ---- */

__device__ static inline void copy_row(uint8_t *to, const uint8_t *from, int32_t bytes, bool aligned) {
    int32_t part = (int32_t)threadIdx.x % COPIERS;
    if (aligned)
        for (int32_t b = part * 16; b < bytes; b += COPIERS * 16)
            copy_async(to + b, from + b, 16);
    else
        for (int32_t b = part; b < bytes; b += COPIERS)
            to[b] = from[b];
}

/* Zeros of any encoding. */
template <int width> __device__ static inline void clear_row(uint8_t *to) {
    for (int32_t b = (int32_t)threadIdx.x % COPIERS * 16; b < encoded_bytes(width); b += COPIERS * 16)
        *(uint4 *)(to + b) = make_uint4(0, 0, 0, 0);
}

/* Sets out to bring a chunk's encoded rows; rows that are not there are zeros. */
template <int width>
__device__ static inline void fetch_chunk(const struct attend_call *call, const struct chunks *chunks,
    int32_t chunk, struct tile_memory<width> *memory) {
    int32_t i = (int32_t)threadIdx.x / COPIERS, row = chunk_row(call, chunks, chunk, i);
    if (threadIdx.x % COPIERS == 0)
        memory->present[chunk % 2][i] = row >= 0;
    if (row >= 0 && chunk < chunks->window)
        copy_row(memory->encoded[i], block_row(&call->window, chunks->sequence, row), call->window.bytes,
            call->is_window_aligned);
    else if (row >= 0)
        copy_row(memory->encoded[i], block_row(&call->latents, chunks->sequence, row), call->latents.bytes,
            call->are_latents_aligned);
    else
        clear_row<width>(memory->encoded[i]);
    copies_commit();
}

/* One unit of a row: FP8 codes in both words, FP4 codes in the first one. */
struct encoded_unit {
    uint32_t first, second;
    uint8_t scale;
};

template <enum row_encoding encoding>
__device__ static inline struct encoded_unit load_unit(const uint8_t *row, int32_t columns, int32_t unit) {
    if (encoding == ROWS_FP8) {
        uint2 codes = *(const uint2 *)(row + unit * UNIT);
        return (struct encoded_unit){codes.x, codes.y, row[columns + unit / (GROUP / UNIT)]};
    }
    const int32_t units =
        (encoding == ROWS_FP4 ? (int32_t)GROUP : (int32_t)FINE_GROUP) / UNIT; /* of a scale */
    return (struct encoded_unit){
        *(const uint32_t *)(row + unit * (UNIT / 2)), 0, row[columns / 2 + unit / units]};
}

/* A pair of FP8 values some of which are NaN. */
__device__ static inline uint32_t careful_e4m3_pair(struct encoded_unit unit, int32_t i) {
    return pack_pair(e4m3_value((uint8_t)(unit.first >> 8 * i)), e4m3_value((uint8_t)(unit.second >> 8 * i)));
}

template <enum row_encoding encoding> __device__ static inline uint4 decode_unit(struct encoded_unit unit) {
    uint32_t pairs[UNIT / 2];
    uint32_t scale =
        encoding == ROWS_FP4_FINE ? e4m3_both_halves(unit.scale) : both_halves(e8m0_value(unit.scale));
#pragma unroll
    for (int32_t i = 0; i < UNIT / 2; i++)
        pairs[i] = encoding == ROWS_FP8 ? e4m3_pair(unit.first, unit.second, i) : e2m1_pair(unit.first, i);
    if (encoding == ROWS_FP8 && (has_e4m3_nan(unit.first) || has_e4m3_nan(unit.second))) {
#pragma unroll
        for (int32_t i = 0; i < UNIT / 2; i++)
            pairs[i] = careful_e4m3_pair(unit, i);
    }
    return make_uint4(multiply_pairs(pairs[0], scale), multiply_pairs(pairs[1], scale),
        multiply_pairs(pairs[2], scale), multiply_pairs(pairs[3], scale));
}

/* Columns beyond the last are zeros. A thread decodes one unit of every few rows, BATCH of them at a time, so that
 * they do not wait for shared memory one by one. */
template <int width, enum row_encoding encoding>
__device__ static inline void decode_rows(int32_t columns, struct tile_memory<width> *memory) {
    const int32_t units = width / UNIT, step = THREADS / units;
    int32_t unit = (int32_t)threadIdx.x % units, first = (int32_t)threadIdx.x / units;
    bool is_there = unit * UNIT < columns;
    for (int32_t row = first; row < CHUNK; row += BATCH * step) {
        struct encoded_unit encoded[BATCH] = {};
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++)
            if (is_there)
                encoded[i] = load_unit<encoding>(memory->encoded[row + i * step], columns, unit);
#pragma unroll
        for (int32_t i = 0; i < BATCH; i++) {
            int32_t to = row + i * step;
            uint4 values = decode_unit<encoding>(encoded[i]);
            memory->rows[to][unit ^ (to & 7)] = values;
        }
    }
}

template <int width>
__device__ static inline void decode_chunk(
    const struct attend_call *call, bool is_window, struct tile_memory<width> *memory) {
    enum row_encoding encoding = is_window ? call->window.rows.encoding : call->latents.rows.encoding;
    if (encoding == ROWS_FP8)
        decode_rows<width, ROWS_FP8>(call->columns, memory);
    else if (encoding == ROWS_FP4)
        decode_rows<width, ROWS_FP4>(call->columns, memory);
    else
        decode_rows<width, ROWS_FP4_FINE>(call->columns, memory);
}

/* ---- scores ---- */

/* This warp's quarter of the columns, its half of the rows. */
template <int width> __device__ static inline void score_chunk(struct tile_memory<width> *memory) {
    const int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP;
    const int32_t first = warp % 2 * 32, quarter = warp / 2;
    float sum[HEAD_TILES][4][4] = {};
#pragma unroll
    for (int32_t step = 0; step < width / 64; step++) {
        int32_t unit = quarter * (width / 32) + step * 2;
        uint32_t key[2][4];
#pragma unroll
        for (int32_t p = 0; p < 2; p++) {
            int32_t row = first + p * 16 + (lane & 7) + lane / 16 * 8;
            load_matrices(key[p], &memory->rows[row][(unit + lane / 8 % 2) ^ (row & 7)]);
        }
#pragma unroll
        for (int32_t term = 0; term < 2; term++)
#pragma unroll
            for (int32_t m = 0; m < HEAD_TILES; m++) {
                uint32_t query[4];
                int32_t head = m * 16 + lane % 16;
                load_matrices(query, &memory->query[term][head][(unit + lane / 16) ^ (head & 7)]);
#pragma unroll
                for (int32_t n = 0; n < 4; n++)
                    mma_bf16(sum[m][n], query, key[n / 2] + n % 2 * 2);
            }
    }
#pragma unroll
    for (int32_t m = 0; m < HEAD_TILES; m++)
#pragma unroll
        for (int32_t n = 0; n < 4; n++) {
            int32_t head = m * 16 + lane / 4, row = first + n * 8 + lane % 4 * 2;
            *(float2 *)&memory->scores[quarter][head][row] = make_float2(sum[m][n][0], sum[m][n][1]);
            *(float2 *)&memory->scores[quarter][head + 8][row] = make_float2(sum[m][n][2], sum[m][n][3]);
        }
}

/* ---- weights ---- */

/* Scores of UNIT rows from `row` on, -infinity where there is no row. */
template <int width>
__device__ static inline void add_quarters(const struct tile_memory<width> *memory, int32_t parity,
    int32_t head, int32_t row, float scale, float score[UNIT]) {
#pragma unroll
    for (int32_t f = 0; f < UNIT; f += FOUR) {
        float part[QUARTERS][FOUR];
#pragma unroll
        for (int32_t k = 0; k < QUARTERS; k++)
            load_four(&memory->scores[k][head][row + f], FOUR, true, part[k]);
#pragma unroll
        for (int32_t i = 0; i < FOUR; i++) {
            float sum = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
            score[f + i] = memory->present[parity][row + f + i] ? sum * scale : -INFINITY;
        }
    }
}

/* The chunk's weights, relative to its top. WEIGHERS neighbouring threads share a head; each gets its top and sum. */
template <int width>
__device__ static inline struct softmax weigh_chunk(
    const struct attend_call *call, int32_t parity, struct tile_memory<width> *memory) {
    const int32_t head = (int32_t)threadIdx.x / WEIGHERS, part = (int32_t)threadIdx.x % WEIGHERS;
    float weight[UNIT];
    struct softmax chunk = {-INFINITY, 0};
    add_quarters<width>(memory, parity, head, part * UNIT, call->scale, weight);
#pragma unroll
    for (int32_t i = 0; i < UNIT; i++)
        chunk.top = fmaxf(chunk.top, weight[i]);
#pragma unroll
    for (int32_t half = 1; half < WEIGHERS; half *= 2)
        chunk.top = fmaxf(chunk.top, __shfl_xor_sync(ALL_LANES, chunk.top, half));
    float base = softmax_base(chunk.top);
#pragma unroll
    for (int32_t i = 0; i < UNIT; i++) {
        weight[i] = exp_float(weight[i] - base);
        chunk.sum += weight[i];
    }
#pragma unroll
    for (int32_t half = 1; half < WEIGHERS; half *= 2)
        chunk.sum += __shfl_xor_sync(ALL_LANES, chunk.sum, half);
    uint4 first, second;
    first.x = split_pair(weight[0], weight[1], &second.x);
    first.y = split_pair(weight[2], weight[3], &second.y);
    first.z = split_pair(weight[4], weight[5], &second.z);
    first.w = split_pair(weight[6], weight[7], &second.w);
    memory->weights[0][head][part ^ (head & 7)] = first;
    memory->weights[1][head][part ^ (head & 7)] = second;
    return chunk;
}

/* ---- sums ---- */

/* The chunk's rows by their weights. */
template <int width>
__device__ static inline void sum_chunk(
    const struct tile_memory<width> *memory, struct tile_sums<width> *sums) {
    const int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP, tiles = width / 64;
#pragma unroll
    for (int32_t m = 0; m < HEAD_TILES; m++)
#pragma unroll
        for (int32_t n = 0; n < tiles; n++)
#pragma unroll
            for (int32_t e = 0; e < 4; e++)
                sums->value[m][n][e] = 0;
#pragma unroll
    for (int32_t k = 0; k < CHUNK / 16; k++) { /* 16 rows */
        uint32_t weight[2][HEAD_TILES][4];     /* two terms */
#pragma unroll
        for (int32_t term = 0; term < 2; term++)
#pragma unroll
            for (int32_t m = 0; m < HEAD_TILES; m++) {
                int32_t head = m * 16 + lane % 16, unit = k * 2 + lane / 16;
                load_matrices(weight[term][m], &memory->weights[term][head][unit ^ (head & 7)]);
            }
#pragma unroll
        for (int32_t n = 0; n < tiles; n += 2) {
            uint32_t value[4]; /* of two tiles */
            int32_t row = k * 16 + lane % 16, unit = warp * tiles + n + lane / 16;
            load_matrices_transposed(value, &memory->rows[row][unit ^ (row & 7)]);
#pragma unroll
            for (int32_t i = 0; i < 2; i++)
#pragma unroll
                for (int32_t term = 0; term < 2; term++)
#pragma unroll
                    for (int32_t m = 0; m < HEAD_TILES; m++)
                        mma_bf16(sums->value[m][n + i], weight[term][m], value + i * 2);
        }
    }
}

/* Of sums' element e of tile m: its head within the block. */
__device__ static inline int32_t sum_head(int32_t m, int32_t e) {
    return m * 16 + (int32_t)threadIdx.x % WARP / 4 + e / 2 * 8;
}

template <int width>
__device__ static inline void merge_tile(const struct tile_memory<width> *memory,
    const struct tile_sums<width> *chunk, struct tile_sums<width> *all) {
#pragma unroll
    for (int32_t m = 0; m < HEAD_TILES; m++)
#pragma unroll
        for (int32_t e = 0; e < 4; e += 2) {
            struct merge_factors factors = memory->factors[sum_head(m, e)];
#pragma unroll
            for (int32_t n = 0; n < width / 64; n++)
#pragma unroll
                for (int32_t i = e; i < e + 2; i++)
                    all->value[m][n][i] = merge_sums(all->value[m][n][i], chunk->value[m][n][i], factors);
        }
}

/* rows: [heads, columns], where the first one is the block's. */
template <int width>
__device__ static inline void store_sums(
    const struct attend_call *call, struct place place, const struct tile_sums<width> *sums, float *rows) {
    int32_t lane = (int32_t)threadIdx.x % WARP, warp = (int32_t)threadIdx.x / WARP, tiles = width / 64;
#pragma unroll
    for (int32_t m = 0; m < HEAD_TILES; m++)
#pragma unroll
        for (int32_t n = 0; n < tiles; n++)
#pragma unroll
            for (int32_t e = 0; e < 4; e++) {
                int32_t head = sum_head(m, e);
                int32_t column = (warp * tiles + n) * UNIT + unit_column(lane % 4 * 2 + e % 2);
                if (place.head + head < call->heads && column < call->columns)
                    rows[(int64_t)head * call->columns + column] = sums->value[m][n][e];
            }
}

/* ---- kernels ---- */

__device__ static inline struct place block_place(const struct attend_call *call) {
    int32_t tiles = (call->heads + HEADS - 1) / HEADS;
    return (struct place){(int32_t)blockIdx.x / tiles, (int32_t)blockIdx.x % tiles * HEADS};
}

/* All chunks of a token, HEADS heads. */
template <int width> static __global__ void attend_tokens(struct attend_call call) {
    struct tile_memory<width> *memory = &SHARED(struct tile_memory<width>);
    struct place place = block_place(&call);
    struct chunks chunks = token_chunks(&call, place.token);
    int32_t head = (int32_t)threadIdx.x / WEIGHERS;
    bool is_first = threadIdx.x % WEIGHERS == 0;
    struct softmax softmax = start_softmax(&call, place.head + head);
    struct tile_sums<width> all = {}, sums;
    if (chunks.count > 0)
        fetch_chunk<width>(&call, &chunks, 0, memory);
    load_queries<width>(&call, place, memory);
    for (int32_t chunk = 0; chunk < chunks.count; chunk++) {
        copies_wait<0>();
        __syncthreads(); /* the encoded rows are there; rows, weights and factors are no longer read */
        decode_chunk<width>(&call, chunk < chunks.window, memory);
        __syncthreads();
        if (chunk + 1 < chunks.count)
            fetch_chunk<width>(&call, &chunks, chunk + 1, memory);
        score_chunk<width>(memory);
        __syncthreads();
        struct merge_factors factors = merge_chunk(&softmax, weigh_chunk<width>(&call, chunk % 2, memory));
        if (is_first)
            memory->factors[head] = factors;
        __syncthreads();
        sum_chunk<width>(memory, &sums);
        merge_tile<width>(memory, &sums, &all);
    }
    __syncthreads();
    if (is_first)
        memory->factors[head].before = 1.0f / softmax.sum;
    __syncthreads();
#pragma unroll
    for (int32_t m = 0; m < HEAD_TILES; m++)
#pragma unroll
        for (int32_t n = 0; n < width / 64; n++)
#pragma unroll
            for (int32_t e = 0; e < 4; e++)
                all.value[m][n][e] *= memory->factors[sum_head(m, e)].before;
    int64_t row = (int64_t)place.token * call.heads + place.head;
    store_sums<width>(&call, place, &all, call.out + row * call.columns);
}

/* Chunk blockIdx.y of a token, HEADS heads, into partials. */
template <int width> static __global__ void attend_chunks(struct attend_call call, struct partials partials) {
    struct tile_memory<width> *memory = &SHARED(struct tile_memory<width>);
    struct place place = block_place(&call);
    struct chunks chunks = token_chunks(&call, place.token);
    int32_t chunk = (int32_t)blockIdx.y;
    if (chunk >= chunks.count)
        return;
    fetch_chunk<width>(&call, &chunks, chunk, memory);
    load_queries<width>(&call, place, memory);
    copies_wait<0>();
    __syncthreads();
    decode_chunk<width>(&call, chunk < chunks.window, memory);
    __syncthreads();
    score_chunk<width>(memory);
    __syncthreads();
    struct softmax softmax = weigh_chunk<width>(&call, chunk % 2, memory);
    int64_t row = ((int64_t)chunk * call.tokens + place.token) * call.heads + place.head;
    int32_t head = (int32_t)threadIdx.x / WEIGHERS;
    if (threadIdx.x % WEIGHERS == 0 && place.head + head < call.heads)
        partials.softmax[row + head] = softmax;
    __syncthreads();
    struct tile_sums<width> sums;
    sum_chunk<width>(memory, &sums);
    store_sums<width>(&call, place, &sums, partials.sums + row * call.columns);
}

/* Merges the chunks of one token and head. */
static __global__ void attend_merge(struct attend_call call, struct partials partials) {
    int32_t head = (int32_t)blockIdx.x % call.heads, token = (int32_t)blockIdx.x / call.heads;
    struct chunks chunks = token_chunks(&call, token);
    struct softmax softmax = start_softmax(&call, head);
    float all[MERGED] = {};
    for (int32_t chunk = 0; chunk < chunks.count; chunk++) {
        int64_t row = ((int64_t)chunk * call.tokens + token) * call.heads + head;
        struct merge_factors factors = merge_chunk(&softmax, partials.softmax[row]);
        for (int32_t i = 0; i < MERGED; i++) {
            int32_t column = i * MERGE_THREADS + (int32_t)threadIdx.x;
            if (column < call.columns)
                all[i] = merge_sums(all[i], partials.sums[row * call.columns + column], factors);
        }
    }
    float inverse = 1.0f / softmax.sum, *out = call.out + ((int64_t)token * call.heads + head) * call.columns;
    for (int32_t i = 0; i < MERGED; i++) {
        int32_t column = i * MERGE_THREADS + (int32_t)threadIdx.x;
        if (column < call.columns)
            out[column] = all[i] * inverse;
    }
}

/* ---- launches ---- */

/* Most chunks of a token of the call. */
static int64_t most_chunks(const struct attend_call *call) {
    return (most_rows(&call->window) + CHUNK - 1) / CHUNK + (call->top_k + CHUNK - 1) / CHUNK;
}

/* Blocks that take whole tokens would leave half of the device idle or more. */
static bool is_split(const struct stream *stream, const struct attend_call *call, int64_t blocks) {
    return 2 * blocks <= stream->multiprocessors && most_chunks(call) <= UINT16_MAX;
}

template <int width>
static void attend_split(struct stream *stream, const struct attend_call *call, int64_t blocks) {
    int64_t chunks = most_chunks(call), rows = chunks * call->tokens * call->heads;
    size_t softmax_bytes = ((size_t)rows * sizeof(struct softmax) + 255) / 256 * 256;
    uint8_t *memory = (uint8_t *)stream_scratch(
        stream, SCRATCH_ATTEND, softmax_bytes + (size_t)(rows * call->columns) * sizeof(float));
    if (memory == NULL)
        return;
    struct attend_call given = *call;
    struct partials partials = {(struct softmax *)memory, (float *)(memory + softmax_bytes)};
    dim3 grid((unsigned)blocks, (unsigned)chunks);
    if (chunks > 0)
        LAUNCH(stream, attend_chunks<width>, grid, dim3(THREADS), sizeof(struct tile_memory<width>), given,
            partials);
    dim3 merge_grid((unsigned)(given.tokens * given.heads));
    LAUNCH(stream, attend_merge, merge_grid, dim3(MERGE_THREADS), 0, given, partials);
}

template <int width> static void attend_width(struct stream *stream, const struct attend_call *call) {
    int64_t blocks = (int64_t)call->tokens * ((call->heads + HEADS - 1) / HEADS);
    struct attend_call given = *call;
    dim3 grid((unsigned)blocks);
    if (is_split(stream, call, blocks))
        attend_split<width>(stream, call, blocks);
    else
        LAUNCH(stream, attend_tokens<width>, grid, dim3(THREADS), sizeof(struct tile_memory<width>), given);
}

void attend_tiled(struct stream *stream, const struct attend_call *call) {
    if (call->columns <= 128)
        attend_width<128>(stream, call);
    else
        attend_width<TILED_COLUMNS>(stream, call);
}

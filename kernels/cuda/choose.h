/* The index: what its kernels share.
 *
 * Tokens are taken in batches whose scores fit a fixed budget of memory, whatever the context. A token's list of rows
 * is all that it sees, or those of its candidate blocks; a place is an index into it. Scores are kept as sort keys,
 * order-preserving integers in which 0 means never chosen, and the best of a list are found in segments, then among
 * the segments' best: the set is the same however it is found.
 */
#ifndef NOCTURNE_CUDA_CHOOSE_H
#define NOCTURNE_CUDA_CHOOSE_H

#include "kernels/cuda/block_rows.h"

#include <math.h> /* INFINITY */

/* One batch of a call of kernels.h's choose. */
struct choose_call {
    const float *q, *weight;
    int32_t tokens;
    const int32_t *sequence, *position;
    struct index_choice choice;
    struct stored_rows keys;
    int32_t *candidates, *chosen;
    int64_t places;         /* of the longest list there may be; fits an int32_t, as rows' numbers do */
    int64_t stride;         /* sort keys of a token, at least `places` */
    uint32_t *scores;       /* scratch [tokens, stride] */
    int64_t blocks;         /* candidate blocks of the longest list; 0: none are wanted */
    uint32_t *block_scores; /* scratch [tokens, blocks]: the largest sort key of each block */
    uint8_t *queries;       /* scratch of score_tiled [tokens, packed_query_bytes] */
    void *survivors;        /* scratch of select_segments [tokens, survivor_bytes] */
};

/* ---- scores: sort keys of the places that a token sees, and 0 for all others of a list of candidate blocks ---- */

/* Any keys and shapes, a thread a row; heads are added in order: choose_plain.cu. */
void score_plain(struct stream *stream, const struct choose_call *call);

/* FP4 keys, by tensor cores: choose_tiled.cu, which tells the order of sums. */
bool is_score_tiled(const struct choose_call *call);
int64_t packed_query_bytes(int32_t heads); /* of a token, a multiple of 16 */
void score_tiled(struct stream *stream, const struct choose_call *call);

/* ---- selection ---- */

enum selected {
    SELECT_ROWS,   /* into chosen */
    SELECT_BLOCKS, /* into candidates; the newest one has a place of its own */
};

/* How many are selected by score. */
__host__ __device__ static inline int32_t selected_count(
    const struct index_choice *choice, enum selected kind) {
    return kind == SELECT_ROWS ? choice->top_k : choice->block_limit - 1;
}

/* Any number of places, one block a token: choose_plain.cu. */
void select_plain(struct stream *stream, const struct choose_call *call, enum selected kind);

/* Up to MOST_SELECTED places, by segments: choose_select.cu. survivor_bytes: for a token of `length` places, a
 * multiple of 16. */
enum { MOST_SELECTED = 8192 };
int64_t survivor_bytes(int64_t length, int64_t count);
void select_segments(struct stream *stream, const struct choose_call *call, enum selected kind);

/* ---- lists ---- */

__device__ static inline int32_t visible_rows(const struct choose_call *call, int32_t token) {
    return (call->position[token] + 1) / call->choice.ratio;
}

/* The row at a place of a token's list; -1: the token sees none there. */
__device__ static inline int32_t listed_row(const struct choose_call *call, int32_t token, int32_t place) {
    int32_t row = place;
    if (call->choice.use_candidates) {
        int32_t size = call->choice.block_size;
        int32_t number = (int32_t)((uint32_t)place / (uint32_t)size);
        int32_t block = call->candidates[(int64_t)token * call->choice.block_limit + number];
        row = block < 0 ? -1 : block * size + (place - number * size);
    }
    return row < visible_rows(call, token) ? row : -1;
}

/* Places, or candidate blocks, among which is selected. */
__device__ static inline int64_t list_length(
    const struct choose_call *call, enum selected kind, int32_t token) {
    const struct index_choice *choice = &call->choice;
    int32_t visible = visible_rows(call, token);
    if (kind == SELECT_BLOCKS)
        return visible > 0 ? (visible - 1) / choice->block_size : 0; /* without the newest */
    return choice->use_candidates ? (int64_t)choice->block_limit * choice->block_size : visible;
}

__device__ static inline const uint32_t *list_keys(
    const struct choose_call *call, enum selected kind, int32_t token) {
    return kind == SELECT_ROWS ? call->scores + token * call->stride
                               : call->block_scores + token * call->blocks;
}

__device__ static inline int32_t *selected_list(
    const struct choose_call *call, enum selected kind, int32_t token) {
    return kind == SELECT_ROWS ? call->chosen + (int64_t)token * call->choice.top_k
                               : call->candidates + (int64_t)token * call->choice.block_limit;
}

/* What is written for the place. */
__device__ static inline int32_t selected_value(
    const struct choose_call *call, enum selected kind, int32_t token, int32_t place) {
    return kind == SELECT_ROWS ? listed_row(call, token, place) : place;
}

/* Ends a token's list after `filled` values, each thread some places: the newest block if anything in it is live,
 * then -1. */
__device__ static inline void end_list(const struct choose_call *call, enum selected kind, int32_t token,
    int32_t filled, int32_t thread, int32_t threads) {
    int32_t *list = selected_list(call, kind, token);
    int32_t room = kind == SELECT_ROWS ? call->choice.top_k : call->choice.block_limit;
    int64_t newest = kind == SELECT_BLOCKS ? list_length(call, kind, token) : 0;
    bool has_newest =
        kind == SELECT_BLOCKS && visible_rows(call, token) > 0 && list_keys(call, kind, token)[newest] > 0;
    for (int32_t i = filled + thread; i < room; i += threads)
        list[i] = has_newest && i == filled ? (int32_t)newest : -1;
}

/* ---- sort keys ---- */

/* Larger score, larger key; 0: never chosen (NaN and -infinity). */
__device__ static inline uint32_t sort_key(float score) {
    uint32_t bits = float_bits(score + 0.0f); /* -0 becomes 0 */
    uint32_t key = bits >> 31 ? ~bits : bits | 0x80000000u;
    return score > -INFINITY ? key : 0;
}

/* max(0, x), a NaN staying NaN. */
__device__ static inline float positive_part(float x) {
    return x <= 0.0f ? 0.0f : x;
}

/* Sum over a block of `warps` warps, in all threads; turn: alternates between calls, so that one barrier is enough. */
template <int warps>
__device__ static inline int32_t sum_block(int32_t (&counts)[2][warps], int32_t turn, int32_t count) {
    for (int32_t half = 1; half < WARP; half *= 2)
        count += __shfl_xor_sync(ALL_LANES, count, half);
    if (threadIdx.x % WARP == 0)
        counts[turn % 2][threadIdx.x / WARP] = count;
    __syncthreads();
    int32_t sum = 0;
    for (int32_t w = 0; w < warps; w++)
        sum += counts[turn % 2][w];
    return sum;
}

#endif

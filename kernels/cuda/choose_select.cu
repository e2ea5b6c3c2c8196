/* The best of long lists: a block finds the best of a segment of SEGMENT keys, which it holds in registers; the
 * segments' best make a shorter list, and so on until one segment is left. The threshold is found bit by bit from the
 * top, all by counting, so that no order of work can show. Among equal keys the lower place wins: survivors keep
 * their order.
 */
#include "kernels/cuda/choose.h"

enum {
    THREADS = 512,
    WARPS = THREADS / WARP,
    KEYS = 32, /* of a thread */
    WARP_KEYS = KEYS * WARP,
    SEGMENT = THREADS * KEYS, /* at least twice MOST_SELECTED, so that lists get shorter */
};

/* Keys of a list and their places in the token's own list; places NULL: the first list, where they are the indices. */
struct survivors {
    uint32_t *keys;
    int32_t *places;
    int64_t stride; /* from token to token */
};

/* ---- lengths of lists ---- */

__host__ __device__ static inline int64_t segments_of(int64_t length) {
    return (length + SEGMENT - 1) / SEGMENT;
}

/* Of the list after `level` rounds. */
__host__ __device__ static inline int64_t length_after(int64_t length, int32_t level, int64_t count) {
    for (int32_t l = 0; l < level; l++)
        length = segments_of(length) * count;
    return length;
}

/* Rounds until one segment is left. */
static int32_t rounds_of(int64_t length, int64_t count) {
    int32_t rounds = 0;
    while (length_after(length, rounds, count) > SEGMENT)
        rounds++;
    return rounds;
}

int64_t survivor_bytes(int64_t length, int64_t count) {
    int64_t words = 0;
    for (int32_t level = 1; level <= rounds_of(length, count); level++)
        words += 2 * length_after(length, level, count);
    return (words * 4 + 15) / 16 * 16;
}

/* ---- one segment ---- */

struct select_memory {
    int32_t counts[2][WARPS]; /* of turns, or of larger keys and ties */
};

__device__ static inline int32_t count_from(const uint32_t key[KEYS], uint32_t least) {
    int32_t count = 0;
#pragma unroll
    for (int32_t j = 0; j < KEYS; j++)
        count += key[j] >= least;
    return count;
}

/* A key that exactly `count` keys reach, if there is one; else the count-th largest, 0 if there are not so many. */
__device__ static inline uint32_t find_threshold(
    const uint32_t key[KEYS], int32_t count, struct select_memory *memory) {
    uint32_t threshold = 0;
    for (int32_t bit = 31; bit >= 0; bit--) {
        uint32_t trial = threshold | 1u << bit;
        int32_t found = sum_block(memory->counts, bit, count_from(key, trial));
        threshold = found >= count ? trial : threshold;
        if (found == count)
            break;
    }
    return threshold;
}

/* How keys are taken: all larger than the threshold and the first `ties` of those equal to it. Counts are the warp's,
 * and before it in the segment. */
struct taking {
    uint32_t threshold;
    int32_t ties;
    int32_t taken_before, ties_before;
    int32_t all; /* taken in the segment */
};

__device__ static inline bool is_tie(uint32_t key, uint32_t threshold) {
    return key == threshold && key > 0;
}

__device__ static inline int32_t taken_ties(int32_t left, int32_t ties) {
    return left < 0 ? 0 : left < ties ? left : ties;
}

__device__ static inline struct taking plan_taking(
    const uint32_t key[KEYS], int32_t count, int32_t listed, struct select_memory *memory) {
    struct taking taking = {0, 0, 0, 0, 0};
    if (listed > count)
        taking.threshold = find_threshold(key, count, memory);
    int32_t warp = (int32_t)threadIdx.x / WARP, larger = 0, equal = 0;
#pragma unroll
    for (int32_t j = 0; j < KEYS; j++) {
        larger += __popc(__ballot_sync(ALL_LANES, key[j] > taking.threshold));
        equal += __popc(__ballot_sync(ALL_LANES, is_tie(key[j], taking.threshold)));
    }
    __syncthreads(); /* the last turn's counts have been read */
    if (threadIdx.x % WARP == 0) {
        memory->counts[0][warp] = larger;
        memory->counts[1][warp] = equal;
    }
    __syncthreads();
    taking.ties = count;
    for (int32_t w = 0; w < WARPS; w++)
        taking.ties -= memory->counts[0][w];
    int32_t ties = 0;
    for (int32_t w = 0; w < WARPS; w++) {
        if (w == warp) {
            taking.taken_before = taking.all;
            taking.ties_before = ties;
        }
        taking.all += memory->counts[0][w] + taken_ties(taking.ties - ties, memory->counts[1][w]);
        ties += memory->counts[1][w];
    }
    return taking;
}

/* ---- rounds ---- */

/* The segment's keys: place j * WARP + lane of the warp's. */
__device__ static inline void load_keys(
    const uint32_t *keys, int64_t first, int64_t length, uint32_t key[KEYS]) {
    int64_t at = first + (int32_t)threadIdx.x / WARP * WARP_KEYS + (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int32_t j = 0; j < KEYS; j++)
        key[j] = at + j * WARP < length ? keys[at + j * WARP] : 0;
}

/* Where what is taken goes. */
struct destination {
    const struct choose_call *call;
    enum selected kind;
    int32_t token;
    const int32_t *places; /* of the list that is read, or NULL */
    uint32_t *keys;        /* the segment's part of the next list, or NULL: the token's own list */
    int32_t *kept_places;
};

__device__ static inline void put(const struct destination *to, int32_t at, uint32_t key, int64_t index) {
    int32_t place = to->places != NULL ? to->places[index] : (int32_t)index;
    if (to->keys != NULL) {
        to->keys[at] = key;
        to->kept_places[at] = place;
    } else {
        selected_list(to->call, to->kind, to->token)[at] =
            selected_value(to->call, to->kind, to->token, place);
    }
}

__device__ static inline void take_keys(
    const uint32_t key[KEYS], int64_t first, const struct taking *taking, const struct destination *to) {
    uint32_t lower = (1u << threadIdx.x % WARP) - 1;
    int64_t index = first + (int32_t)threadIdx.x / WARP * WARP_KEYS + (int32_t)threadIdx.x % WARP;
    int32_t taken = taking->taken_before, ties = taking->ties_before;
#pragma unroll
    for (int32_t j = 0; j < KEYS; j++) {
        bool tie = is_tie(key[j], taking->threshold);
        uint32_t equal = __ballot_sync(ALL_LANES, tie);
        bool is_taken = key[j] > taking->threshold || (tie && ties + __popc(equal & lower) < taking->ties);
        uint32_t lanes = __ballot_sync(ALL_LANES, is_taken);
        if (is_taken)
            put(to, taken + __popc(lanes & lower), key[j], index + j * WARP);
        taken += __popc(lanes);
        ties += __popc(equal);
    }
}

/* Block (segment, token) of the list after `level` rounds; the best go into the next list, or into the token's own if
 * `is_last`. */
template <bool is_last>
static __global__ void select_segment(struct choose_call call, enum selected kind, int32_t level,
    struct survivors from, struct survivors next) {
    struct select_memory *memory = &SHARED(struct select_memory);
    int32_t token = (int32_t)blockIdx.y, count = selected_count(&call.choice, kind);
    int64_t length = length_after(list_length(&call, kind, token), level, count);
    int64_t first = (int64_t)blockIdx.x * SEGMENT, left = length - first;
    if (!is_last && left <= 0)
        return;
    const uint32_t *keys = level > 0 ? from.keys + token * from.stride : list_keys(&call, kind, token);
    uint32_t key[KEYS];
    load_keys(keys, first, length, key);
    struct taking taking = plan_taking(key, count, left < SEGMENT ? (int32_t)left : SEGMENT, memory);
    struct destination to = {&call, kind, token, NULL, NULL, NULL};
    if (level > 0)
        to.places = from.places + token * from.stride;
    if (!is_last) {
        int64_t at = token * next.stride + (int64_t)blockIdx.x * count;
        to.keys = next.keys + at;
        to.kept_places = next.places + at;
    }
    take_keys(key, first, &taking, &to);
    if (is_last)
        end_list(&call, kind, token, taking.all, (int32_t)threadIdx.x, THREADS);
    else
        for (int32_t i = taking.all + (int32_t)threadIdx.x; i < count; i += THREADS)
            to.keys[i] = 0; /* never chosen */
}

/* The longest list of the batch. */
static int64_t longest_list(const struct choose_call *call, enum selected kind) {
    if (kind == SELECT_ROWS)
        return call->places;
    return call->blocks > 0 ? call->blocks - 1 : 0;
}

void select_segments(struct stream *stream, const struct choose_call *call, enum selected kind) {
    struct choose_call given = *call;
    int64_t length = longest_list(call, kind), count = selected_count(&call->choice, kind);
    int32_t rounds = rounds_of(length, count);
    struct survivors from = {NULL, NULL, 0};
    uint32_t *memory = (uint32_t *)call->survivors;
    for (int32_t level = 0; level < rounds; level++) {
        int64_t stride = length_after(length, level + 1, count);
        struct survivors next = {memory, (int32_t *)memory + stride * call->tokens, stride};
        dim3 grid((unsigned)(stride / (count > 0 ? count : 1)), (unsigned)call->tokens);
        memory += 2 * stride * call->tokens;
        if (count > 0)
            LAUNCH(stream, select_segment<false>, grid, dim3(THREADS), sizeof(struct select_memory), given,
                kind, level, from, next);
        from = next;
    }
    LAUNCH(stream, select_segment<true>, dim3(1, (unsigned)call->tokens), dim3(THREADS),
        sizeof(struct select_memory), given, kind, rounds, from, from);
}

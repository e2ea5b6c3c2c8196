/* The index, the plain version: float32 dot products, and a selection that reads a token's whole list again for each
 * bit. It serves the float32 keys of the exact mode, and counts and shapes that the fast kernels do not take. */
#include "kernels/cuda/choose.h"

enum { PLAIN_THREADS = 256, PLAIN_WARPS = PLAIN_THREADS / WARP };

/* ---- scores ---- */

__device__ static inline float plain_score(
    const struct choose_call *call, int32_t token, const uint8_t *row) {
    int32_t heads = call->choice.heads, columns = call->keys.rows.columns;
    const float *q = call->q + (int64_t)token * heads * columns;
    const float *weight = call->weight + (int64_t)token * heads;
    float score = 0;
    for (int32_t h = 0; h < heads; h++, q += columns) {
        float sum = 0;
        for (int32_t c = 0; c < columns; c++)
            sum = fmaf(q[c], row_value(&call->keys.rows, row, c), sum);
        score = fmaf(positive_part(sum), weight[h], score);
    }
    return score;
}

/* A thread a place; blockIdx.y: the token. */
static __global__ void score_plain_kernel(struct choose_call call) {
    int32_t token = (int32_t)blockIdx.y;
    int64_t place = (int64_t)blockIdx.x * PLAIN_THREADS + threadIdx.x;
    if (place >= call.places)
        return;
    int32_t row = listed_row(&call, token, (int32_t)place);
    if (row >= 0) {
        const uint8_t *key = block_row(&call.keys, call.sequence[token], row);
        call.scores[token * call.stride + place] = sort_key(plain_score(&call, token, key));
    } else if (call.choice.use_candidates) {
        call.scores[token * call.stride + place] = 0;
    }
}

void score_plain(struct stream *stream, const struct choose_call *call) {
    struct choose_call given = *call;
    dim3 grid((unsigned)((call->places + PLAIN_THREADS - 1) / PLAIN_THREADS), (unsigned)call->tokens);
    LAUNCH(stream, score_plain_kernel, grid, dim3(PLAIN_THREADS), 0, given);
}

/* ---- selection ---- */

struct plain_memory {
    int32_t counts[2][PLAIN_WARPS];
};

__device__ static inline int32_t count_from(const uint32_t *keys, int64_t length, uint32_t least) {
    int32_t count = 0;
    for (int64_t i = threadIdx.x; i < length; i += PLAIN_THREADS)
        count += keys[i] >= least;
    return count;
}

/* The count-th largest key, 0 if there are not so many. */
__device__ static inline uint32_t plain_threshold(
    const uint32_t *keys, int64_t length, int32_t count, struct plain_memory *memory) {
    uint32_t threshold = 0;
    for (int32_t bit = 31; bit >= 0; bit--) {
        uint32_t trial = threshold | 1u << bit;
        if (sum_block(memory->counts, bit, count_from(keys, length, trial)) >= count)
            threshold = trial;
    }
    return threshold;
}

/* Places before this thread's, within the block's next PLAIN_THREADS, of which `taken` holds; *all: within all of
 * them. */
__device__ static inline int32_t count_before(
    struct plain_memory *memory, int32_t turn, bool taken, int32_t *all) {
    int32_t warp = (int32_t)threadIdx.x / WARP;
    uint32_t lanes = __ballot_sync(ALL_LANES, taken);
    if (threadIdx.x % WARP == 0)
        memory->counts[turn % 2][warp] = __popc(lanes);
    __syncthreads();
    int32_t before = __popc(lanes & ((1u << threadIdx.x % WARP) - 1));
    *all = 0;
    for (int32_t w = 0; w < PLAIN_WARPS; w++) {
        before += w < warp ? memory->counts[turn % 2][w] : 0;
        *all += memory->counts[turn % 2][w];
    }
    return before;
}

/* One block a token. */
static __global__ void select_plain_kernel(struct choose_call call, enum selected kind) {
    struct plain_memory *memory = &SHARED(struct plain_memory);
    int32_t token = (int32_t)blockIdx.x, count = selected_count(&call.choice, kind), filled = 0;
    const uint32_t *keys = list_keys(&call, kind, token);
    int64_t length = list_length(&call, kind, token);
    int32_t *list = selected_list(&call, kind, token);
    uint32_t threshold = plain_threshold(keys, length, count, memory);
    /* the last turn was 0; no sort key is so large that there is no larger number */
    int64_t larger = sum_block(memory->counts, 1, count_from(keys, length, threshold + 1));
    int32_t ties = count - (int32_t)larger, turn = 0;
    for (int64_t first = 0; first < length; first += PLAIN_THREADS, turn += 2) {
        int64_t place = first + threadIdx.x;
        uint32_t key = place < length ? keys[place] : 0;
        bool is_tie = key == threshold && key > 0;
        int32_t all_ties = 0, all_taken = 0;
        int32_t tie = count_before(memory, turn, is_tie, &all_ties);
        bool is_taken = key > threshold || (is_tie && tie < ties);
        int32_t at = count_before(memory, turn + 1, is_taken, &all_taken);
        if (is_taken)
            list[filled + at] = selected_value(&call, kind, token, (int32_t)place);
        filled += all_taken;
        ties -= all_ties;
    }
    end_list(&call, kind, token, filled, (int32_t)threadIdx.x, PLAIN_THREADS);
}

void select_plain(struct stream *stream, const struct choose_call *call, enum selected kind) {
    struct choose_call given = *call;
    LAUNCH(stream, select_plain_kernel, dim3((unsigned)given.tokens), dim3(PLAIN_THREADS),
        sizeof(struct plain_memory), given, kind);
}

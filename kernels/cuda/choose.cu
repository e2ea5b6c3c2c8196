/* The index choice: batches, their memory, and the kernels each takes. */
#include "kernels/cuda/choose.h"
#include "kernels/cuda/operations.h"

enum { SCRATCH_ALIGNMENT = 256, BLOCK_THREADS = 256 };
#define MOST_BATCH ((int64_t)2048)  /* tokens of a batch */
#define BUDGET ((int64_t)256 << 20) /* bytes of a batch, unless one token needs more */

/* ---- memory of a batch ---- */

static int64_t larger_size(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t round_to(int64_t bytes, int64_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

/* Bytes a token needs in each array. */
struct token_bytes {
    int64_t scores, block_scores, queries, survivors;
};

static int64_t kind_survivors(const struct choose_call *call, enum selected kind, int64_t length) {
    int32_t count = selected_count(&call->choice, kind);
    return count <= MOST_SELECTED ? survivor_bytes(length, count) : 0;
}

static struct token_bytes token_bytes(const struct choose_call *call) {
    struct token_bytes bytes = {call->stride * 4, call->blocks * 4, 0, 0};
    if (is_score_tiled(call))
        bytes.queries = packed_query_bytes(call->choice.heads);
    bytes.survivors = kind_survivors(call, SELECT_ROWS, call->places);
    if (call->blocks > 0)
        bytes.survivors = larger_size(bytes.survivors, kind_survivors(call, SELECT_BLOCKS, call->blocks - 1));
    return bytes;
}

static int32_t batch_tokens(const struct token_bytes *bytes, int32_t tokens) {
    int64_t one = bytes->scores + bytes->block_scores + bytes->queries + bytes->survivors;
    int64_t fitting = BUDGET / larger_size(one, 1);
    fitting = fitting < 1 ? 1 : fitting < MOST_BATCH ? fitting : MOST_BATCH;
    return tokens < fitting ? tokens : (int32_t)fitting;
}

static bool take_memory(
    struct stream *stream, const struct token_bytes *bytes, int32_t tokens, struct choose_call *call) {
    int64_t scores = round_to(bytes->scores * tokens, SCRATCH_ALIGNMENT);
    int64_t block_scores = round_to(bytes->block_scores * tokens, SCRATCH_ALIGNMENT);
    int64_t queries = round_to(bytes->queries * tokens, SCRATCH_ALIGNMENT);
    int64_t all = scores + block_scores + queries + bytes->survivors * tokens;
    uint8_t *memory = (uint8_t *)stream_scratch(stream, SCRATCH_CHOOSE, (size_t)larger_size(all, 1));
    if (memory == NULL)
        return false;
    call->scores = (uint32_t *)memory;
    call->block_scores = (uint32_t *)(memory + scores);
    call->queries = memory + scores + block_scores;
    call->survivors = memory + scores + block_scores + queries;
    return true;
}

/* ---- scores of blocks ---- */

/* A thread a candidate block: the largest sort key of its visible rows. */
static __global__ void find_block_scores(struct choose_call call) {
    int32_t token = (int32_t)blockIdx.y, size = call.choice.block_size, visible = visible_rows(&call, token);
    int64_t block = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t *scores = call.scores + token * call.stride;
    uint32_t top = 0;
    if (block >= call.blocks || block * size >= visible)
        return;
    for (int64_t r = block * size; r < (block + 1) * size && r < visible; r++)
        top = scores[r] > top ? scores[r] : top;
    call.block_scores[token * call.blocks + block] = top;
}

/* ---- batches ---- */

static void select_best(struct stream *stream, const struct choose_call *call, enum selected kind) {
    if (selected_count(&call->choice, kind) <= MOST_SELECTED)
        select_segments(stream, call, kind);
    else
        select_plain(stream, call, kind);
}

static void choose_batch(struct stream *stream, const struct choose_call *call) {
    struct choose_call given = *call;
    if (call->places > 0 && is_score_tiled(call))
        score_tiled(stream, call);
    else if (call->places > 0)
        score_plain(stream, call);
    select_best(stream, call, SELECT_ROWS);
    if (!call->choice.is_candidate_source)
        return;
    dim3 grid((unsigned)((call->blocks + BLOCK_THREADS - 1) / BLOCK_THREADS), (unsigned)call->tokens);
    if (call->blocks > 0)
        LAUNCH(stream, find_block_scores, grid, dim3(BLOCK_THREADS), 0, given);
    select_best(stream, call, SELECT_BLOCKS);
}

/* The call's tokens from `first` on. */
static struct choose_call batch_call(const struct choose_call *call, int32_t first, int32_t tokens) {
    struct choose_call batch = *call;
    const struct index_choice *choice = &call->choice;
    batch.q += (int64_t)first * choice->heads * call->keys.rows.columns;
    batch.weight += (int64_t)first * choice->heads;
    batch.sequence += first;
    batch.position += first;
    if (choice->is_candidate_source || choice->use_candidates)
        batch.candidates += (int64_t)first * choice->block_limit;
    batch.chosen += (int64_t)first * choice->top_k;
    batch.tokens = tokens;
    return batch;
}

void cuda_choose(struct stream *stream, const float *q, const float *weight, int32_t tokens,
    const int32_t *sequence, const int32_t *position, const struct index_choice *choice,
    const struct block_rows *keys, const struct block_tables *tables, int32_t *candidates, int32_t *chosen) {
    if (tokens <= 0)
        return;
    struct choose_call call = {};
    call.q = q;
    call.weight = weight;
    call.sequence = sequence;
    call.position = position;
    call.choice = *choice;
    call.keys = stored_rows(keys, tables);
    call.candidates = candidates;
    call.chosen = chosen;
    int64_t rows = most_rows(&call.keys);
    call.places = choice->use_candidates ? (int64_t)choice->block_limit * choice->block_size : rows;
    call.stride = round_to(call.places, 64);
    call.blocks = choice->is_candidate_source ? (rows + choice->block_size - 1) / choice->block_size : 0;
    struct token_bytes bytes = token_bytes(&call);
    int32_t most = batch_tokens(&bytes, tokens);
    if (!take_memory(stream, &bytes, most, &call))
        return;
    for (int32_t first = 0; first < tokens; first += most) {
        int32_t left = tokens - first;
        struct choose_call batch = batch_call(&call, first, left < most ? left : most);
        choose_batch(stream, &batch);
    }
}

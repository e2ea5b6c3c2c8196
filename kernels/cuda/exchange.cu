/* The exchange's kernels. None of them adds numbers other than counts, so their results are the same for every launch shape. */
#include "kernels/cuda/exchange.h"

#include "kernels/cuda/backend.h"

enum { THREADS = 256, RETURN_BLOCKS = 64, PAIRS_A_THREAD = 4 };

/* ---- sums over a block ---- */

struct scan_memory {
    uint32_t warp_total[THREADS / WARP];
};

/* Sum of the values of the threads below this one; *total: of all. Two barriers: all threads of the block call it. */
__device__ static uint32_t block_scan(struct scan_memory *memory, uint32_t value, uint32_t *total) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t sum = value;
    for (uint32_t step = 1; step < WARP; step *= 2) {
        uint32_t below = __shfl_up_sync(ALL_LANES, sum, step);
        sum += lane >= step ? below : 0;
    }
    if (lane == WARP - 1)
        memory->warp_total[warp] = sum;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (uint32_t w = 0; w < THREADS / WARP; w++) {
        uint32_t of_warp = memory->warp_total[w];
        before += w < warp ? of_warp : 0;
        all += of_warp;
    }
    __syncthreads(); /* the memory may be used again */
    *total = all;
    return before + sum - value;
}

/* ---- slots ---- */

__device__ static int32_t *slot_header(const struct exchange_shape *shape, struct exchange_slot slot) {
    int64_t end = ((int64_t)slot.row + slot.rows) * shape->row_bytes;
    int64_t begin = (end + EXCHANGE_ALIGNMENT - 1) / EXCHANGE_ALIGNMENT * EXCHANGE_ALIGNMENT;
    return (int32_t *)(shape->arena + begin);
}

__device__ static int32_t *behind_header(int32_t *header) {
    return header + EXCHANGE_HEADER_BYTES / sizeof(int32_t);
}

/* The parts of a slot for a rank. */
struct pair_lists {
    int32_t *experts, *rows;
    float *weights;
};

__device__ static struct pair_lists slot_pairs(
    const struct exchange_shape *shape, struct exchange_slot slot) {
    struct pair_lists lists;
    lists.experts = behind_header(slot_header(shape, slot));
    lists.rows = lists.experts + slot.pairs;
    lists.weights = (float *)(lists.rows + slot.pairs);
    return lists;
}

__device__ static int32_t pairs_in(const struct exchange_shape *shape, struct exchange_slot slot) {
    if (slot.row < 0)
        return 0;
    return shape->exact ? slot.pairs : slot_header(shape, slot)[1];
}

/* ---- tokens and where they go ---- */

/* Tokens of one source: this rank's own, or those of another that it hands on. */
struct source {
    const char *rows;
    int64_t stride;
    int32_t count;
    const int32_t *experts; /* [count, k] */
    const float *weights;
    int32_t *row_to; /* [count, 2 * k] */
};

__device__ static struct source source_at(const struct exchange_shape *shape,
    const struct exchange_tokens *tokens, const struct exchange_work *work, int32_t index) {
    struct source source = {(const char *)tokens->rows, tokens->stride, tokens->count, tokens->experts,
        tokens->weights, work->row_to};
    if (index == 0)
        return source;
    const struct exchange_slot slot = shape->forwarded[index];
    int32_t *header = slot_header(shape, slot);
    source.rows = shape->arena + slot.row * shape->row_bytes;
    source.stride = shape->row_bytes;
    source.count = slot.row < 0 ? 0 : shape->exact ? slot.rows : header[0];
    source.experts = behind_header(header);
    source.weights = (const float *)(source.experts + (int64_t)slot.rows * shape->choices);
    source.row_to = work->row_to + (int64_t)slot.base * 2 * shape->choices;
    return source;
}

/* Where a block's messages go: a rank, or a node whose rank of this rank's index hands them on. */
struct destination {
    int32_t rank, node; /* the other one is -1 */
    int32_t first_expert, end_expert;
    struct exchange_slot slot; /* row -1: nothing is written to it */
};

/* The destination `index` of a source: of its own tokens all ranks and then all nodes, of others the ranks of this node.
 * `slots` false: there are none yet. */
__device__ static struct destination destination_at(
    const struct exchange_shape *shape, int32_t source, int32_t index, bool slots) {
    const int32_t first_of_node = shape->node_first;
    struct destination to = {source ? first_of_node + index : index, -1, 0, 0, {-1, 0, 0, 0}};
    if (to.rank >= shape->ranks) {
        to.node = to.rank - shape->ranks;
        to.rank = -1;
        to.first_expert = shape->first_expert[shape->first_rank[to.node]];
        to.end_expert = shape->first_expert[shape->first_rank[to.node + 1]];
        if (slots)
            to.slot = shape->to_nodes[to.node];
        return to;
    }
    to.first_expert = shape->first_expert[to.rank];
    to.end_expert = shape->first_expert[to.rank + 1];
    int32_t inside = to.rank - first_of_node;
    if (slots && inside >= 0 && inside < shape->node_ranks)
        to.slot = shape->sent[source * shape->node_ranks + inside];
    return to;
}

/* A token's experts at a destination: they ascend, so they stand together. */
struct share {
    int32_t first, count;
};

__device__ static struct share share_at(
    const int32_t *experts, int32_t choices, const struct destination *to) {
    struct share share = {0, 0};
    for (int32_t j = 0; j < choices; j++) {
        share.first += experts[j] < to->first_expert;
        share.count += experts[j] >= to->first_expert && experts[j] < to->end_expert;
    }
    return share;
}

/* ---- packing ---- */

__device__ static void write_pairs(const struct exchange_shape *shape, const struct source *source,
    const struct destination *to, int32_t token, struct share share, int32_t row, int32_t pair) {
    const struct pair_lists lists = slot_pairs(shape, to->slot);
    const int64_t first = (int64_t)token * shape->choices + share.first;
    for (int32_t j = 0; j < share.count; j++) {
        lists.experts[pair + j] = source->experts[first + j] - to->first_expert;
        lists.rows[pair + j] = row;
        lists.weights[pair + j] = source->weights[first + j];
    }
}

/* What a node gets with a row: all its experts. */
__device__ static void write_choices(const struct exchange_shape *shape, const struct source *source,
    const struct destination *to, int32_t token, int32_t row) {
    int32_t *experts = behind_header(slot_header(shape, to->slot));
    float *weights = (float *)(experts + (int64_t)to->slot.rows * shape->choices);
    for (int32_t j = 0; j < shape->choices; j++) {
        experts[(int64_t)row * shape->choices + j] = source->experts[(int64_t)token * shape->choices + j];
        weights[(int64_t)row * shape->choices + j] = source->weights[(int64_t)token * shape->choices + j];
    }
}

/* Where this rank finds the outputs of its own token again; for pairs that stay, exchange_place will know. */
__device__ static void write_places(const struct exchange_shape *shape, const struct exchange_work *work,
    int32_t rank, int32_t token, struct share share, int32_t pair) {
    const int64_t first = (int64_t)token * shape->choices + share.first;
    for (int32_t j = 0; j < share.count; j++) {
        if (rank == shape->rank)
            work->own_token[pair + j] = (int32_t)first + j;
        else
            work->place[first + j] = shape->return_row[rank] + pair + j;
    }
}

/* The token `token` of a source has a share at a destination, where it is row `row` with the pairs from `pair` on. */
__device__ static void pack_token(const struct exchange_shape *shape, const struct exchange_work *work,
    const struct source *source, int32_t source_index, const struct destination *to, int32_t token,
    struct share share, int32_t row, int32_t pair) {
    const bool node = to->node >= 0, message = to->slot.row >= 0;
    int32_t *row_to = source->row_to + ((int64_t)token * 2 + (node ? 1 : 0)) * shape->choices + share.first;
    for (int32_t j = 0; j < share.count; j++)
        row_to[j] = j == 0 && message ? to->slot.row + row : -1;
    if (message && node)
        write_choices(shape, source, to, token, row);
    if (message && !node)
        write_pairs(shape, source, to, token, share, row, pair);
    if (!node && source_index == 0)
        write_places(shape, work, to->rank, token, share, pair);
}

__device__ static void check_choices(
    const struct exchange_shape *shape, const int32_t *experts, int32_t token, int32_t *refused) {
    bool fine = true;
    for (int32_t j = 0, before = -1; j < shape->choices; j++) {
        fine = fine && experts[j] > before && experts[j] < shape->experts;
        before = experts[j];
    }
    if (!fine)
        atomicMax(refused, token + 1);
}

struct pack_memory {
    struct scan_memory scan;
};

/* A block finds the tokens of one source for one destination, in order, and counts them or writes the message.
 * Grid: destinations, sources. */
template <bool counting>
static __global__ void pack_tokens(struct exchange_shape shape, struct exchange_tokens tokens,
    struct exchange_work work, int32_t first_source, int32_t *counts) {
    struct pack_memory &memory = SHARED(struct pack_memory);
    const int32_t source_index = first_source + (int32_t)blockIdx.y, index = (int32_t)blockIdx.x;
    const struct source source = source_at(&shape, &tokens, &work, source_index);
    const struct destination to = destination_at(&shape, source_index, index, !counting);
    const int32_t choices = shape.choices;
    int32_t rows = 0, pairs = 0;
    for (int32_t base = 0; base < source.count; base += THREADS) {
        const int32_t token = base + (int32_t)threadIdx.x;
        const int32_t *experts = source.experts + (int64_t)token * choices;
        struct share share = {0, 0};
        if (token < source.count)
            share = share_at(experts, choices, &to);
        if (index == 0 && source_index == 0 && token < source.count)
            check_choices(&shape, experts, token, work.refused);
        uint32_t total;
        const uint32_t own = ((uint32_t)(share.count > 0) << 16) + (uint32_t)share.count;
        const uint32_t before = block_scan(&memory.scan, own, &total);
        if (!counting && share.count > 0)
            pack_token(&shape, &work, &source, source_index, &to, token, share,
                rows + (int32_t)(before >> 16), pairs + (int32_t)(before & 0xffffu));
        rows += (int32_t)(total >> 16);
        pairs += (int32_t)(total & 0xffffu);
    }
    if (threadIdx.x != 0)
        return;
    if (counting && to.node >= 0) {
        counts[2 * shape.ranks + to.node] = rows;
    } else if (counting) {
        counts[2 * to.rank] = rows;
        counts[2 * to.rank + 1] = pairs;
    } else if (to.slot.row >= 0) {
        int32_t *header = slot_header(&shape, to.slot);
        header[0] = rows;
        header[1] = pairs;
        header[2] = header[3] = 0;
    }
}

/* ---- copies of rows ---- */

template <int bytes> struct unit;
template <> struct unit<16> { typedef uint4 type; };
template <> struct unit<4> { typedef uint32_t type; };
template <> struct unit<1> { typedef uint8_t type; };

/* True where a row of a source goes to its target `j`: of the choices, those of this node's experts when it is handed on. */
__device__ static bool is_target(
    const struct exchange_shape *shape, const int32_t *experts, int32_t source_index, int32_t j) {
    if (source_index == 0)
        return true;
    return experts[j] >= shape->first_expert[shape->node_first] &&
           experts[j] < shape->first_expert[shape->node_first + shape->node_ranks];
}

/* A block copies one row of a source to all slots it is for. Grid: rows, sources. */
template <int bytes>
static __global__ void spread_rows(struct exchange_shape shape, struct exchange_tokens tokens,
    struct exchange_work work, int32_t first_source) {
    typedef typename unit<bytes>::type unit_type;
    const int32_t source_index = first_source + (int32_t)blockIdx.y, token = (int32_t)blockIdx.x;
    const struct source source = source_at(&shape, &tokens, &work, source_index);
    if (token >= source.count)
        return;
    const int32_t *experts = source.experts + (int64_t)token * shape.choices;
    const int32_t *row_to = source.row_to + (int64_t)token * 2 * shape.choices;
    const int32_t targets = source_index == 0 && shape.nodes > 1 ? 2 * shape.choices : shape.choices;
    const unit_type *from = (const unit_type *)(source.rows + token * source.stride);
    const int32_t units = (int32_t)(shape.row_bytes / bytes);
    for (int32_t i = (int32_t)threadIdx.x; i < units; i += THREADS) {
        const unit_type value = from[i];
        for (int32_t j = 0; j < targets; j++) {
            if (!is_target(&shape, experts, source_index, j) || row_to[j] < 0)
                continue;
            ((unit_type *)(shape.arena + row_to[j] * shape.row_bytes))[i] = value;
        }
    }
}

/* ---- arrivals ---- */

struct place_memory {
    struct scan_memory scan;
    int32_t first[EXCHANGE_MOST_RANKS + 1]; /* pairs of lower sources, then of all */
};

/* Numbers the pairs of all slots through, by source. */
__device__ static void number_pairs(const struct exchange_shape *shape, struct place_memory *memory) {
    int32_t running = 0;
    for (int32_t base = 0; base < shape->ranks; base += THREADS) {
        const int32_t source = base + (int32_t)threadIdx.x;
        uint32_t count = 0, total;
        if (source < shape->ranks)
            count = (uint32_t)pairs_in(shape, shape->received[source]);
        const uint32_t before = block_scan(&memory->scan, count, &total);
        if (source < shape->ranks)
            memory->first[source] = running + (int32_t)before;
        running += (int32_t)total;
    }
    if (threadIdx.x == 0)
        memory->first[shape->ranks] = running;
    __syncthreads();
}

/* A pair by its number: its source and its number there. */
struct numbered_pair {
    int32_t source, index;
};

__device__ static struct numbered_pair pair_number(
    const struct place_memory *memory, int32_t ranks, int32_t number) {
    int32_t low = 0, high = ranks; /* first[low] <= number < first[high] */
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (memory->first[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    struct numbered_pair pair = {low, number - memory->first[low]};
    return pair;
}

__device__ static int32_t expert_of(const struct exchange_shape *shape, struct numbered_pair pair) {
    return slot_pairs(shape, shape->received[pair.source]).experts[pair.index];
}

__device__ static void place_pair(const struct exchange_shape *shape, const struct exchange_work *work,
    struct numbered_pair pair, int32_t at) {
    const struct exchange_slot slot = shape->received[pair.source];
    const struct pair_lists lists = slot_pairs(shape, slot);
    work->pair_row[at] = slot.row + lists.rows[pair.index];
    work->pair_weight[at] = lists.weights[pair.index];
    work->position[slot.base + pair.index] = at;
    if (pair.source == shape->rank)
        work->place[work->own_token[pair.index]] = at;
}

/* A thread's pairs of one turn that are for `expert`. */
struct found_pairs {
    struct numbered_pair pair[PAIRS_A_THREAD];
    uint32_t count;
};

__device__ static struct found_pairs find_pairs(const struct exchange_shape *shape,
    const struct place_memory *memory, int32_t first, int32_t pairs, int32_t expert) {
    struct found_pairs found;
    found.count = 0;
    for (int32_t i = 0; i < PAIRS_A_THREAD; i++) {
        found.pair[i].source = -1;
        if (first + i >= pairs)
            continue;
        const struct numbered_pair pair = pair_number(memory, shape->ranks, first + i);
        if (expert_of(shape, pair) != expert)
            continue;
        found.pair[i] = pair;
        found.count++;
    }
    return found;
}

/* A block places the pairs of one of this rank's experts: behind those of all lower ones, in order of their numbers. */
static __global__ void place_pairs(struct exchange_shape shape, struct exchange_work work) {
    struct place_memory &memory = SHARED(struct place_memory);
    const int32_t expert = (int32_t)blockIdx.x;
    number_pairs(&shape, &memory);
    const int32_t pairs = memory.first[shape.ranks];
    uint32_t lower = 0, start, total;
    for (int32_t number = (int32_t)threadIdx.x; number < pairs; number += THREADS)
        lower += expert_of(&shape, pair_number(&memory, shape.ranks, number)) < expert;
    (void)block_scan(&memory.scan, lower, &start);
    int32_t at = (int32_t)start;
    for (int32_t base = 0; base < pairs; base += THREADS * PAIRS_A_THREAD) {
        const int32_t first = base + (int32_t)threadIdx.x * PAIRS_A_THREAD;
        const struct found_pairs found = find_pairs(&shape, &memory, first, pairs, expert);
        int32_t next = at + (int32_t)block_scan(&memory.scan, found.count, &total);
        for (int32_t i = 0; i < PAIRS_A_THREAD; i++)
            if (found.pair[i].source >= 0)
                place_pair(&shape, &work, found.pair[i], next++);
        at += (int32_t)total;
    }
    if (threadIdx.x != 0)
        return;
    work.start[expert] = (int32_t)start;
    if (expert + 1 == shape.local_experts)
        work.start[expert + 1] = at;
}

/* ---- the way back ---- */

/* Blocks copy the output rows of one source's pairs into the order of its message. Grid: rows in turns, sources. */
template <int bytes>
static __global__ void return_rows(struct exchange_shape shape, struct exchange_work work,
    const float *outputs, int32_t columns, float *returning) {
    typedef typename unit<bytes>::type unit_type;
    const int32_t source = (int32_t)blockIdx.y;
    if (source == shape.rank)
        return;
    const struct exchange_slot slot = shape.received[source];
    const int32_t pairs = pairs_in(&shape, slot);
    const int32_t units = (int32_t)(columns * (int64_t)sizeof(float) / bytes);
    for (int32_t i = (int32_t)blockIdx.x; i < pairs; i += (int32_t)gridDim.x) {
        const int64_t from_row = work.position[slot.base + i], to_row = slot.base + i;
        const unit_type *from = (const unit_type *)(outputs + from_row * columns);
        unit_type *to = (unit_type *)(returning + to_row * columns);
        for (int32_t u = (int32_t)threadIdx.x; u < units; u += THREADS)
            to[u] = from[u];
    }
}

/* ---- launches ---- */

cudaStream_t exchange_stream(const struct stream *stream) {
    return stream->handle;
}

/* The longest unit that rows can be copied in. */
static int32_t unit_bytes(const void *from, int64_t stride, int64_t row_bytes) {
    const uint64_t all = (uint64_t)(uintptr_t)from | (uint64_t)stride | (uint64_t)row_bytes;
    return all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
}

static void launch_spread(struct stream *stream, struct exchange_shape shape, struct exchange_tokens tokens,
    struct exchange_work work, int32_t first_source, int32_t sources, int32_t rows) {
    const dim3 grid((unsigned)rows, (unsigned)sources);
    const int32_t bytes = first_source ? unit_bytes(NULL, 0, shape.row_bytes)
                                       : unit_bytes(tokens.rows, tokens.stride, shape.row_bytes);
    if (rows == 0 || sources == 0)
        return;
    if (bytes == 16)
        LAUNCH(stream, spread_rows<16>, grid, THREADS, 0, shape, tokens, work, first_source);
    else if (bytes == 4)
        LAUNCH(stream, spread_rows<4>, grid, THREADS, 0, shape, tokens, work, first_source);
    else
        LAUNCH(stream, spread_rows<1>, grid, THREADS, 0, shape, tokens, work, first_source);
}

static int32_t own_destinations(const struct exchange_shape *shape) {
    return shape->ranks + (shape->nodes > 1 ? shape->nodes : 0);
}

void exchange_count(struct stream *stream, const struct exchange_shape *given,
    const struct exchange_tokens *own, const struct exchange_work *memory, int32_t *counts) {
    const struct exchange_shape shape = *given;
    const struct exchange_tokens tokens = *own;
    const struct exchange_work work = *memory;
    LAUNCH(stream, pack_tokens<true>, (unsigned)own_destinations(&shape), THREADS, sizeof(struct pack_memory),
        shape, tokens, work, 0, counts);
}

void exchange_pack(struct stream *stream, const struct exchange_shape *given,
    const struct exchange_tokens *own, const struct exchange_work *memory, bool copy) {
    const struct exchange_shape shape = *given;
    const struct exchange_tokens tokens = *own;
    const struct exchange_work work = *memory;
    LAUNCH(stream, pack_tokens<false>, (unsigned)own_destinations(&shape), THREADS,
        sizeof(struct pack_memory), shape, tokens, work, 0, NULL);
    if (copy)
        launch_spread(stream, shape, tokens, work, 0, 1, tokens.count);
}

void exchange_forward(struct stream *stream, const struct exchange_shape *given, int32_t sources,
    int32_t most_rows, const struct exchange_work *memory) {
    const struct exchange_shape shape = *given;
    const struct exchange_tokens tokens = {NULL, 0, 0, NULL, NULL};
    const struct exchange_work work = *memory;
    if (sources < 2)
        return;
    const dim3 grid((unsigned)shape.node_ranks, (unsigned)(sources - 1));
    LAUNCH(
        stream, pack_tokens<false>, grid, THREADS, sizeof(struct pack_memory), shape, tokens, work, 1, NULL);
    launch_spread(stream, shape, tokens, work, 1, sources - 1, most_rows);
}

void exchange_place(
    struct stream *stream, const struct exchange_shape *given, const struct exchange_work *memory) {
    const struct exchange_shape shape = *given;
    const struct exchange_work work = *memory;
    const int32_t blocks = shape.local_experts > 0 ? shape.local_experts : 1; /* start[0] is always written */
    LAUNCH(stream, place_pairs, (unsigned)blocks, THREADS, sizeof(struct place_memory), shape, work);
}

void exchange_return(struct stream *stream, const struct exchange_shape *given,
    const struct exchange_work *memory, const float *outputs, int32_t columns, int32_t most_pairs,
    float *returning) {
    const struct exchange_shape shape = *given;
    const struct exchange_work work = *memory;
    const int32_t blocks = most_pairs < RETURN_BLOCKS ? most_pairs : RETURN_BLOCKS;
    if (blocks == 0)
        return;
    const dim3 grid((unsigned)blocks, (unsigned)shape.ranks);
    if (columns % 4 == 0)
        LAUNCH(stream, return_rows<16>, grid, THREADS, 0, shape, work, outputs, columns, returning);
    else
        LAUNCH(stream, return_rows<4>, grid, THREADS, 0, shape, work, outputs, columns, returning);
}

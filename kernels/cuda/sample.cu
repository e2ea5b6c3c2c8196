/* Sampling: a block a row of logits.
 *
 * All numbers are those of src/model/sampling.c: the same doubles, added in the same order. What has no order (exponentials, largest
 * values, counts) is done by all threads; what has one is cut where the host's sums are cut: eight partial sums over the row,
 * one sum a bucket of probabilities in order of ids, one sum a block of ids. For the sums of buckets the ids are sorted by bucket first,
 * stably: SEGMENTS warps count and place those of a segment of the row each.
 */
#include "kernels/cuda/sample.h"

#include "kernels/cuda/backend.h"
#include "kernels/sample_arithmetic.h"

#include <math.h> /* INFINITY */

enum {
    THREADS = 1024,
    WARPS = THREADS / WARP,
    DRAWN = 512,         /* probabilities summed together when drawing */
    BUCKETS = 4096,      /* of probabilities by size */
    BUCKETS_A_UNIT = 64, /* buckets for a factor of e */
    NO_BUCKET = 0xffff,
    SEGMENTS = 8,
    MOST_DRAWN = SAMPLE_MOST_VOCABULARY / DRAWN,
    MOST_ROWS = 128, /* of a launch, for each takes scratch memory */
};

struct sample_call {
    const float *logits; /* [.., vocab] */
    const struct sample_row *rows;
    const struct sample_adjustment *adjustments;
    const uint64_t *masks; /* [.., (vocab + 63) / 64] */
    struct sample_result *results;
    int32_t vocab;
    int64_t scratch_bytes; /* of a row */
    unsigned char *scratch;
};

struct sample_shared {
    uint64_t best[THREADS]; /* key of the best that a thread has left */
    uint64_t warp_best[WARPS];
    double tile[2][THREADS];
    double drawn[MOST_DRAWN]; /* sums of DRAWN weights */
    double bucket_weight[BUCKETS];
    uint32_t place[SEGMENTS]
                  [BUCKETS]; /* where the next id goes; at last the end of that segment's ids of a bucket */
    uint32_t warp_total[WARPS];
    double sum, kept; /* found by one thread for all */
    int32_t index;
    int64_t tokens;
};

/* A row's memory. */
struct row_memory {
    double *weight;    /* [vocab]: probabilities relative to the likeliest token's */
    float *adjusted;   /* [vocab] */
    int32_t *ids;      /* [vocab]: sorted by bucket, then ascending */
    uint16_t *buckets; /* [vocab] */
};

static int64_t scratch_bytes_of(int32_t vocab) {
    int64_t padded = ((int64_t)vocab + 15) / 16 * 16;
    return padded * (int64_t)(sizeof(double) + sizeof(float) + sizeof(int32_t) + sizeof(uint16_t));
}

__device__ static inline struct row_memory row_memory_of(const struct sample_call &call) {
    int64_t padded = ((int64_t)call.vocab + 15) / 16 * 16;
    struct row_memory row;
    row.weight = (double *)(call.scratch + blockIdx.x * call.scratch_bytes);
    row.adjusted = (float *)(row.weight + padded);
    row.ids = (int32_t *)(row.adjusted + padded);
    row.buckets = (uint16_t *)(row.ids + padded);
    return row;
}

/* ---- numbers ---- */

__device__ static inline bool is_finite(float value) {
    return (float_bits(value) & INFINITY_BITS) != INFINITY_BITS;
}

/* ---- the best of many ---- */

/* Larger for larger values, then for lower ids; no key is 0. Both zeros are equal, as they are to the host. */
__device__ static inline uint64_t token_key(float value, int32_t id) {
    uint32_t bits = float_bits(value == 0 ? 0.0f : value);
    bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - (uint32_t)id);
}

__device__ static inline int32_t key_id(uint64_t key) {
    return (int32_t)(0xffffffffu - (uint32_t)key);
}

/* Tokens among which the best are looked for. */
struct token_list {
    const float *logits;
    const int32_t *ids; /* NULL: 0 .. count - 1 */
    int32_t count;
    bool takes_all; /* what is not finite counts as -infinity, else not at all */
};

__device__ static inline uint64_t list_key(const struct token_list &list, int32_t place) {
    int32_t id = list.ids != NULL ? list.ids[place] : place;
    float value = list.logits[id];
    if (!is_finite(value))
        return list.takes_all ? token_key(-INFINITY, id) : 0;
    return token_key(value, id);
}

/* The largest key of the block, in all threads. */
__device__ static inline uint64_t largest_key(struct sample_shared &shared, uint64_t key) {
    for (int32_t half = WARP / 2; half > 0; half /= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, key, half);
        key = other > key ? other : key;
    }
    if (threadIdx.x % WARP == 0)
        shared.warp_best[threadIdx.x / WARP] = key;
    __syncthreads();
    for (int32_t warp = 0; warp < WARPS; warp++)
        key = shared.warp_best[warp] > key ? shared.warp_best[warp] : key;
    __syncthreads(); /* the memory may be used again */
    return key;
}

/* The best of the list, after which take_next gives one after another. */
__device__ static inline uint64_t take_first(struct sample_shared &shared, const struct token_list &list) {
    uint64_t best = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < list.count; i += THREADS) {
        uint64_t key = list_key(list, i);
        best = key > best ? key : best;
    }
    shared.best[threadIdx.x] = best;
    return largest_key(shared, best);
}

/* The best after `taken`: all threads look through the share of the one who had it. */
__device__ static inline uint64_t take_next(
    struct sample_shared &shared, const struct token_list &list, uint64_t taken) {
    int32_t is_owner = shared.best[threadIdx.x] == taken;
    if (is_owner)
        shared.index = (int32_t)threadIdx.x;
    __syncthreads();
    int32_t owner = shared.index;
    uint64_t best = 0;
    for (int64_t i = owner + (int64_t)threadIdx.x * THREADS; i < list.count;
         i += (int64_t)THREADS * THREADS) {
        uint64_t key = list_key(list, (int32_t)i);
        best = key < taken && key > best ? key : best;
    }
    best = largest_key(shared, best);
    if (is_owner)
        shared.best[threadIdx.x] = best;
    return largest_key(shared, shared.best[threadIdx.x]);
}

/* ---- adjustments and the sum of exponentials ---- */

/* Copies the row's logits, -infinity for tokens that may not be chosen. */
__device__ static inline void copy_logits(
    const struct sample_call &call, const struct sample_row &row, const float *logits, float *adjusted) {
    const uint64_t *mask = row.mask < 0 ? NULL : call.masks + (int64_t)row.mask * ((call.vocab + 63) / 64);
    for (int32_t i = (int32_t)threadIdx.x; i < call.vocab; i += THREADS) {
        bool may_be_chosen = mask == NULL || (mask[i / 64] >> i % 64 & 1) != 0;
        adjusted[i] = may_be_chosen ? logits[i] : -INFINITY;
    }
    __syncthreads();
}

/* The logits to choose from: the row's own, or a copy with the mask and the adjustments. */
__device__ static inline const float *adjust_logits(
    const struct sample_call &call, const struct sample_row &row, const float *logits, float *adjusted) {
    if (row.adjustments <= 0 && row.mask < 0)
        return logits;
    const struct sample_adjustment *list = call.adjustments + row.first_adjustment;
    copy_logits(call, row, logits, adjusted);
    for (int32_t i = (int32_t)threadIdx.x; i < row.adjustments; i += THREADS) {
        int32_t id = list[i].id;
        if (id < 0 || id >= call.vocab || (i > 0 && list[i - 1].id == id))
            continue; /* the first of an id adds all */
        float value = adjusted[id];
        for (int32_t j = i; j < row.adjustments && list[j].id == id; j++)
            value += list[j].delta;
        adjusted[id] = value;
    }
    __syncthreads();
    return adjusted;
}

/* Sum of exp(logit - most): element i belongs to partial sum i % LANES, added in turn by one thread each while the others make
 * the next tile of exponentials. In all threads. */
__device__ static inline double sum_exponentials(
    struct sample_shared &shared, const float *logits, int32_t vocab, double most) {
    double lane = 0;
    for (int32_t first = 0, turn = 0; first < vocab; first += THREADS, turn ^= 1) {
        int32_t i = first + (int32_t)threadIdx.x;
        double difference = i < vocab ? (double)logits[i] - most : -INFINITY;
        shared.tile[turn][threadIdx.x] = exp_of_negative(difference <= 0 ? difference : -INFINITY);
        __syncthreads();
        if (threadIdx.x < LANES)
#pragma unroll 16
            for (int32_t j = 0; j < THREADS / LANES; j++)
                lane += shared.tile[turn][j * LANES + (int32_t)threadIdx.x];
    }
    __syncthreads();
    if (threadIdx.x < LANES)
        shared.tile[0][threadIdx.x] = lane;
    __syncthreads();
    double sum = add_lanes(shared.tile[0]);
    __syncthreads();
    return sum;
}

/* ---- weights and buckets ---- */

__device__ static inline void weigh(const struct row_memory &row, const float *logits, int32_t vocab,
    double most, double temperature, bool needs_buckets) {
    for (int32_t i = (int32_t)threadIdx.x; i < vocab; i += THREADS) {
        double difference = (double)logits[i] - most;
        if (temperature != 1) /* a division costs as much as half an exponential */
            difference /= temperature;
        row.weight[i] = exp_of_negative(difference <= 0 ? difference : -INFINITY);
        if (!needs_buckets)
            continue;
        double place = is_finite(logits[i]) ? -difference * BUCKETS_A_UNIT : 0;
        int32_t bucket = place < BUCKETS - 1 ? (int32_t)place : BUCKETS - 1;
        row.buckets[i] = (uint16_t)(is_finite(logits[i]) ? bucket : (int32_t)NO_BUCKET);
    }
    __syncthreads();
}

/* The ids of this warp's segment, WARP at a time: counted, or, with ids, put in their places. */
__device__ static inline void place_segment(
    uint32_t *place, const uint16_t *buckets, int32_t first, int32_t last, int32_t *ids) {
    uint32_t lane = threadIdx.x % WARP;
    for (int32_t begin = first; begin < last; begin += WARP) {
        int32_t id = begin + (int32_t)lane;
        uint32_t bucket = id < last ? buckets[id] : (uint32_t)NO_BUCKET;
        uint32_t peers = __match_any_sync(ALL_LANES, bucket), below = peers & ((1u << lane) - 1);
        bool has_bucket = bucket != NO_BUCKET;
        uint32_t at = has_bucket ? place[bucket] : 0;
        if (has_bucket && ids != NULL)
            ids[at + (uint32_t)__popc(below)] = id;
        __syncwarp();
        if (has_bucket && below == 0)
            place[bucket] = at + (uint32_t)__popc(peers);
        __syncwarp();
    }
}

/* Counts of buckets and segments become the places where their ids begin: buckets in turn, segments in turn in each. */
__device__ static inline void scan_places(struct sample_shared &shared) {
    const int32_t each = BUCKETS / THREADS;
    uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, total = 0;
    int32_t first = (int32_t)threadIdx.x * each;
    for (int32_t b = first; b < first + each; b++)
        for (int32_t s = 0; s < SEGMENTS; s++)
            total += shared.place[s][b];
    uint32_t sum = total;
    for (uint32_t step = 1; step < WARP; step *= 2) {
        uint32_t below = __shfl_up_sync(ALL_LANES, sum, step);
        sum += lane >= step ? below : 0;
    }
    if (lane == WARP - 1)
        shared.warp_total[warp] = sum;
    __syncthreads();
    uint32_t at = sum - total;
    for (uint32_t w = 0; w < warp; w++)
        at += shared.warp_total[w];
    for (int32_t b = first; b < first + each; b++)
        for (int32_t s = 0; s < SEGMENTS; s++) {
            uint32_t count = shared.place[s][b];
            shared.place[s][b] = at;
            at += count;
        }
    __syncthreads();
}

/* The ids of bucket b, once they are placed. */
__device__ static inline int32_t bucket_begin(const struct sample_shared &shared, int32_t b) {
    return b > 0 ? (int32_t)shared.place[SEGMENTS - 1][b - 1] : 0;
}

__device__ static inline int32_t bucket_end(const struct sample_shared &shared, int32_t b) {
    return (int32_t)shared.place[SEGMENTS - 1][b];
}

/* Sorts the ids by bucket and adds each bucket's weights in order of ids. */
__device__ static inline void fill_buckets(
    struct sample_shared &shared, const struct row_memory &row, int32_t vocab) {
    int32_t warp = (int32_t)threadIdx.x / WARP,
            size = (vocab + SEGMENTS * WARP - 1) / (SEGMENTS * WARP) * WARP;
    int32_t first = warp * size, last = first + size < vocab ? first + size : vocab;
    for (int32_t i = (int32_t)threadIdx.x; i < SEGMENTS * BUCKETS; i += THREADS)
        shared.place[i / BUCKETS][i % BUCKETS] = 0;
    __syncthreads();
    if (warp < SEGMENTS)
        place_segment(shared.place[warp], row.buckets, first, last, NULL);
    __syncthreads();
    scan_places(shared);
    if (warp < SEGMENTS)
        place_segment(shared.place[warp], row.buckets, first, last, row.ids);
    __syncthreads();
    for (int32_t b = (int32_t)threadIdx.x; b < BUCKETS; b += THREADS) {
        int32_t end = bucket_end(shared, b);
        double sum = 0;
#pragma unroll 8
        for (int32_t i = bucket_begin(shared, b); i < end; i++)
            sum += row.weight[row.ids[i]];
        shared.bucket_weight[b] = sum;
    }
    __syncthreads();
}

/* ---- cuts ---- */

/* A place in the order of tokens by falling logit, then rising id: tokens up to and including it are kept. */
struct cut {
    float logit;
    int32_t id;
};

__device__ static inline bool is_kept(struct cut cut, float logit, int32_t id) {
    return logit > cut.logit || (logit == cut.logit && id <= cut.id);
}

/* The cut after the likeliest tokens until there are `most_tokens` of them, or their weights reach `target`. *kept is the weight up
 * to the cut. The same in all threads. */
__device__ static inline struct cut find_cut(struct sample_shared &shared, const struct row_memory &row,
    const float *logits, int64_t most_tokens, double target, double *kept) {
    if (threadIdx.x == 0) {
        int64_t tokens = 0;
        double sum = 0;
        int32_t bucket = 0;
        for (; bucket < BUCKETS - 1; bucket++) {
            int64_t count = bucket_end(shared, bucket) - bucket_begin(shared, bucket);
            if (tokens + count >= most_tokens || sum + shared.bucket_weight[bucket] >= target)
                break;
            tokens += count;
            sum += shared.bucket_weight[bucket];
        }
        shared.tokens = tokens;
        shared.sum = sum;
        shared.index = bucket;
    }
    __syncthreads();
    int64_t tokens = shared.tokens;
    double sum = shared.sum;
    int32_t begin = bucket_begin(shared, shared.index), end = bucket_end(shared, shared.index);
    __syncthreads();
    struct token_list members = {logits, row.ids + begin, end - begin, false};
    struct cut cut = {-INFINITY, -1};
    for (uint64_t key = take_first(shared, members); key != 0; key = take_next(shared, members, key)) {
        cut.id = key_id(key);
        cut.logit = logits[cut.id];
        sum += row.weight[cut.id];
        if (++tokens >= most_tokens || sum >= target)
            break;
    }
    if (cut.id < 0)
        cut.id = INT32_MAX; /* rounding left the target unreached: keep all */
    *kept = sum;
    __syncthreads();
    return cut;
}

__device__ static inline double sum_of_buckets(struct sample_shared &shared) {
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int32_t b = 0; b < BUCKETS; b++)
            sum += shared.bucket_weight[b];
        shared.kept = sum;
    }
    __syncthreads();
    return shared.kept;
}

/* Sets the weights of tokens that top_k, top_p and min_p leave out to zero. */
__device__ static inline void filter(struct sample_shared &shared, const struct sample_row &asked,
    const struct row_memory &row, const float *logits, int32_t vocab) {
    bool limit_k = asked.top_k > 0 && asked.top_k < vocab, limit_p = asked.top_p < 1.0f;
    struct cut cut_k = {-INFINITY, INT32_MAX}, cut_p = cut_k;
    double kept = 0;
    if (limit_k || limit_p)
        fill_buckets(shared, row, vocab);
    if (limit_k)
        cut_k = find_cut(shared, row, logits, asked.top_k, INFINITY, &kept);
    else if (limit_p)
        kept = sum_of_buckets(shared);
    if (limit_p)
        cut_p = find_cut(shared, row, logits, INT64_MAX, (double)asked.top_p * kept, &kept);
    for (int32_t i = (int32_t)threadIdx.x; i < vocab; i += THREADS)
        if (!is_kept(cut_k, logits[i], i) || !is_kept(cut_p, logits[i], i) ||
            row.weight[i] < (double)asked.min_p)
            row.weight[i] = 0;
    __syncthreads();
}

/* ---- the draw ---- */

/* Sums of DRAWN weights each, in the host's order: a thread adds one lane of a block, the first of eight the lanes. */
__device__ static inline void sum_drawn(struct sample_shared &shared, const double *weight, int32_t vocab) {
    int32_t lane = (int32_t)threadIdx.x % LANES, pairs = (vocab + DRAWN - 1) / DRAWN * LANES;
    double *lanes = &shared.tile[0][threadIdx.x / LANES * LANES];
    for (int32_t first = 0; first < pairs; first += THREADS) {
        int32_t block = (first + (int32_t)threadIdx.x) / LANES, begin = block * DRAWN;
        int32_t end = begin + DRAWN < vocab ? begin + DRAWN : vocab;
        double sum = 0;
#pragma unroll 8
        for (int32_t i = begin + lane; i < end; i += LANES)
            sum += weight[i];
        lanes[lane] = sum;
        __syncwarp();
        if (lane == 0 && begin < vocab)
            shared.drawn[block] = add_lanes(lanes);
        __syncwarp();
    }
    __syncthreads();
}

/* The block of ids in which the target lies, -1 for none; *before: the sum of those before it. By one thread. */
__device__ static inline int32_t find_drawn(
    const struct sample_shared &shared, int32_t blocks, double uniform, double *before, double *target) {
    double total = 0, reached = 0;
    for (int32_t b = 0; b < blocks; b++)
        total += shared.drawn[b];
    *target = uniform * total;
    for (int32_t b = 0; b < blocks; b++) {
        double sum = shared.drawn[b];
        *before = reached;
        if (sum > 0 && reached + sum > *target)
            return b;
        reached += sum;
    }
    return -1;
}

/* The token of a block of ids, whose weights lie in the tile, at which the sum passes the target. By one thread. */
__device__ static inline int32_t find_token(
    const double *weight, int32_t first, int32_t count, double reached, double target) {
    int32_t last_possible = first;
    for (int32_t i = 0; i < count; i++) {
        if (weight[i] <= 0)
            continue;
        last_possible = first + i;
        reached += weight[i];
        if (reached > target)
            break;
    }
    return last_possible;
}

/* The token whose stretch of the summed weights holds uniform * total, tokens in order of id. In all threads. */
__device__ static inline int32_t draw(
    struct sample_shared &shared, const double *weight, int32_t vocab, double uniform) {
    double before = 0, target = 0;
    sum_drawn(shared, weight, vocab);
    if (threadIdx.x == 0)
        shared.index = find_drawn(shared, (vocab + DRAWN - 1) / DRAWN, uniform, &before, &target);
    __syncthreads();
    int32_t block = shared.index;
    __syncthreads();
    if (block < 0) { /* rounding left the target unreached: the last token that has a weight */
        uint64_t last = 0;
        for (int32_t i = (int32_t)threadIdx.x; i < vocab; i += THREADS)
            last = weight[i] > 0 ? (uint64_t)i + 1 : last;
        last = largest_key(shared, last);
        return last > 0 ? (int32_t)last - 1 : 0;
    }
    int32_t first = block * DRAWN, count = vocab - first < DRAWN ? vocab - first : (int32_t)DRAWN;
    if ((int32_t)threadIdx.x < count)
        shared.tile[1][threadIdx.x] = weight[first + (int32_t)threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
        shared.index = find_token(shared.tile[1], first, count, before, target);
    __syncthreads();
    int32_t id = shared.index;
    __syncthreads();
    return id;
}

/* ---- the kernel ---- */

__device__ static inline void find_top(struct sample_shared &shared, const float *logits, int32_t vocab,
    int32_t wanted, struct sample_result *result) {
    struct token_list all = {logits, NULL, vocab, true};
    int32_t count = 0;
    uint64_t key = wanted > 0 ? take_first(shared, all) : 0;
    while (count < wanted && key != 0) {
        if (threadIdx.x == 0) {
            float value = logits[key_id(key)];
            result->top_ids[count] = key_id(key);
            result->top_logits[count] = is_finite(value) ? value : -INFINITY;
        }
        if (++count < wanted)
            key = take_next(shared, all, key);
    }
    if (threadIdx.x == 0)
        result->top_logprobs = count;
}

static __global__ void __launch_bounds__(THREADS) sample_rows(struct sample_call call) {
    struct sample_shared &shared = SHARED(struct sample_shared);
    const struct sample_row asked = call.rows[blockIdx.x];
    const float *logits = call.logits + (int64_t)asked.logits * call.vocab;
    struct sample_result *result = call.results + blockIdx.x;
    struct row_memory row = row_memory_of(call);
    struct token_list all = {logits, NULL, call.vocab, false};
    uint64_t best = take_first(shared, all);
    if (threadIdx.x == 0) {
        result->id = -1;
        result->top_logprobs = 0;
        result->sum = 0;
    }
    if (best == 0)
        return;
    float most = logits[key_id(best)];
    double sum = asked.top_logprobs >= 0 ? sum_exponentials(shared, logits, call.vocab, (double)most) : 0;
    const float *from = adjust_logits(call, asked, logits, row.adjusted);
    if (from != logits) {
        all.logits = from;
        best = take_first(shared, all);
    }
    int32_t id = best != 0 ? key_id(best) : -1;
    if (id >= 0 && asked.temperature > 0) {
        bool is_limited = (asked.top_k > 0 && asked.top_k < call.vocab) || asked.top_p < 1.0f;
        weigh(row, from, call.vocab, (double)from[id], (double)asked.temperature, is_limited);
        if (is_limited || asked.min_p > 0)
            filter(shared, asked, row, from, call.vocab);
        id = draw(shared, row.weight, call.vocab, uniform_of(asked.key, asked.position));
    }
    if (threadIdx.x == 0) {
        result->id = id;
        result->logit = id >= 0 ? logits[id] : 0;
        result->most = most;
        result->sum = sum;
    }
    int32_t wanted = asked.top_logprobs < SAMPLE_MOST_TOP ? asked.top_logprobs : (int32_t)SAMPLE_MOST_TOP;
    find_top(shared, logits, call.vocab, wanted, result);
}

void cuda_sample(struct stream *stream, const float *logits, int32_t count, int32_t vocab_size,
    const struct sample_row *rows, const struct sample_adjustment *adjustments, const uint64_t *masks,
    struct sample_result *results) {
    if (count <= 0)
        return;
    if (vocab_size > SAMPLE_MOST_VOCABULARY) {
        (void)stream_check(stream, cudaErrorInvalidValue, "sample: too large a vocabulary");
        return;
    }
    int64_t bytes = scratch_bytes_of(vocab_size);
    int32_t most = count < MOST_ROWS ? count : (int32_t)MOST_ROWS;
    unsigned char *scratch = (unsigned char *)stream_scratch(stream, SCRATCH_SAMPLE, (size_t)(most * bytes));
    if (scratch == NULL)
        return;
    for (int32_t first = 0; first < count; first += most) {
        struct sample_call call = {
            logits, rows + first, adjustments, masks, results + first, vocab_size, bytes, scratch};
        unsigned blocks = (unsigned)(count - first < most ? count - first : most);
        LAUNCH(stream, sample_rows, blocks, THREADS, sizeof(struct sample_shared), call);
    }
}

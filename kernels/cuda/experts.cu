/* The routed experts: gate and up, the clamped SwiGLU times the routing weight, rounding, down.
 *
 * Three launches: one prepares an input row for each pair and cuts the pairs into tiles of one expert each;
 * one makes hidden rows; one the outputs. Only the device knows how many pairs there are and of which expert,
 * so grids are sized for the most there can be and blocks beyond the last tile return at once. Where there
 * can be many pairs but may be few (a rank's share of a step is known to the device alone), both kernels are
 * launched, and one of them finds no tiles. Where the shapes allow no fused kernel, gate, up and the
 * activation are launches of their own.
 */
#include "kernels/cuda/experts_table.h"
#include "kernels/cuda/operations.h"

/* ---- tiles of pairs ---- */

/* Tiles of at most `tokens` pairs of one expert, in device memory. */
struct tile_list {
    int32_t tokens;
    int32_t *count;
    struct expert_tile *tiles;
};

/* The lists of one choice of kernels, which is used when there are from `least` to `most` pairs. */
struct tile_plan {
    struct tile_list hidden, down;
    int32_t least, most;
};

/* Few pairs, many pairs; or the first alone. */
enum { MOST_PLANS = 2 };
struct tile_plans {
    struct tile_plan plan[MOST_PLANS];
    int32_t count;
};

struct plan_shared {
    int32_t of_warp[PREPARE_THREADS / WARP];
};

__device__ static inline int32_t count_tiles(const int32_t *start, int32_t expert, int32_t tokens) {
    return (start[expert + 1] - start[expert] + tokens - 1) / tokens;
}

/* One block lists the tiles, experts ascending: each thread those of some neighbouring experts. */
__device__ static inline void list_tiles(
    const int32_t *start, int32_t experts, const struct tile_list *list, struct plan_shared *shared) {
    int32_t thread = (int32_t)threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    int32_t share = (experts + PREPARE_THREADS - 1) / PREPARE_THREADS, own = 0;
    int32_t first = thread * share, end = first + share < experts ? first + share : experts;
    for (int32_t e = first; e < end; e++)
        own += count_tiles(start, e, list->tokens);
    int32_t at = own;
    for (int32_t distance = 1; distance < WARP; distance *= 2) {
        int32_t before = __shfl_up_sync(ALL_LANES, at, (unsigned)distance);
        at += lane >= distance ? before : 0;
    }
    if (lane == WARP - 1)
        shared->of_warp[warp] = at;
    __syncthreads();
    for (int32_t w = 0; w < warp; w++)
        at += shared->of_warp[w];
    if (thread == PREPARE_THREADS - 1)
        *list->count = at;
    at -= own;
    for (int32_t e = first; e < end; e++)
        for (int32_t p = start[e]; p < start[e + 1]; p += list->tokens) {
            int32_t left = start[e + 1] - p;
            struct expert_tile tile = {e, p, left < list->tokens ? left : list->tokens};
            list->tiles[at++] = tile;
        }
    __syncthreads();
}

__device__ static inline void plan_tiles(
    const int32_t *start, int32_t experts, const struct tile_plans *plans, struct plan_shared *shared) {
    int32_t pairs = start[experts];
    for (int32_t i = 0; i < plans->count; i++) {
        const struct tile_plan *plan = &plans->plan[i];
        if (pairs >= plan->least && pairs <= plan->most) {
            list_tiles(start, experts, &plan->hidden, shared);
            list_tiles(start, experts, &plan->down, shared);
        } else if (threadIdx.x == 0) {
            *plan->hidden.count = *plan->down.count = 0;
        }
    }
}

/* ---- inputs ---- */

/* The device arrays of struct expert_pairs. */
struct pair_arrays {
    int32_t experts;
    const int32_t *start, *row;
};

/* Block 0 plans, block p + 1 prepares the input row of pair p. */
template <int terms>
static __global__ void begin_experts(
    struct row_source source, struct product_rows rows, struct pair_arrays pairs, struct tile_plans plans) {
    struct plan_shared *shared = &SHARED(struct plan_shared);
    int32_t pair = (int32_t)blockIdx.x - 1;
    if (pair >= 0) {
        if (pair < pairs.start[pairs.experts])
            prepare_row<terms>(&source, pairs.row[pair], &rows, pair);
    } else if (blockIdx.y == 0) {
        plan_tiles(pairs.start, pairs.experts, &plans, shared);
    }
}

/* ---- the activation, where no product kernel makes it ---- */

/* gate and up [pairs, columns]; a warp makes 32 columns of a hidden row. Without tiles nothing was made of
 * the pairs. */
static __global__ void activate_pairs(const float *gate, const float *up, struct activation to,
    const int32_t *tile_count, const int32_t *pairs) {
    int64_t pair = blockIdx.x;
    int32_t lane = (int32_t)threadIdx.x % WARP, warps = (int32_t)blockDim.x / WARP;
    if (*tile_count == 0 || pair >= *pairs)
        return;
    int32_t whole = (to.columns + EIGHT - 1) / EIGHT * EIGHT;
    for (int32_t c = (int32_t)threadIdx.x / WARP * WARP; c < to.columns; c += warps * WARP) {
        bool is_in = c + lane < to.columns;
        int64_t at = pair * to.columns + c + lane;
        float value = is_in ? activate(gate[at], up[at], to.limit, to.weight[pair]) : 0.0f;
        uint32_t amax = largest_in_warp(value);
        if (to.is_rounded)
            value = round_in_group(value, amax);
        if (c + lane < whole)
            put_column(&to.hidden, pair, c + lane, value);
    }
}

/* ---- one call ---- */

/* One choice of kernels. */
struct expert_tiles {
    struct product_tiles hidden, down;
    bool is_fused;
};

struct experts_call {
    const struct expert_pairs *pairs;
    const struct expert_weights *first; /* all have the same shape and formats */
    const struct expert_places *places;
    int32_t input_terms, hidden_terms;
    struct expert_tiles tiles[MOST_PLANS];
    struct tile_plans plans;
    struct product_rows input, hidden;
    float *gate, *up; /* [count, inner], unless fused */
};

static struct product_tiles choose_tiles(const struct stream *stream, const struct experts_call *call,
    int64_t pairs, const struct matrix *w, int32_t terms, bool is_gate_and_up) {
    struct product_shape shape = {(int32_t)pairs, call->pairs->experts, 1, w->rows, w->columns, w->format,
        terms, is_gate_and_up, stream->multiprocessors};
    return choose_product_tiles(&shape);
}

/* The tiles for at most `pairs` pairs. */
static struct expert_tiles choose_expert_tiles(
    const struct stream *stream, const struct experts_call *call, int64_t pairs) {
    const struct matrix *w1 = &call->first->w1, *w2 = &call->first->w2;
    struct expert_tiles tiles = {};
    tiles.hidden = choose_tiles(stream, call, pairs, w1, call->input_terms, true);
    tiles.is_fused = tiles.hidden.kernel != PRODUCT_PLAIN;
    if (!tiles.is_fused)
        tiles.hidden = choose_tiles(stream, call, pairs, w1, call->input_terms, false);
    tiles.down = choose_tiles(stream, call, pairs, w2, call->hidden_terms, false);
    return tiles;
}

static void choose_plans(const struct stream *stream, struct experts_call *call) {
    int64_t count = call->pairs->count, few = few_pairs(call->pairs->experts);
    struct tile_plans *plans = &call->plans;
    plans->count = count > few ? 2 : 1;
    for (int32_t i = 0; i < plans->count; i++) {
        bool is_last = i == plans->count - 1;
        plans->plan[i].least = i == 0 ? 0 : (int32_t)few + 1;
        plans->plan[i].most = is_last ? INT32_MAX : (int32_t)few;
        call->tiles[i] = choose_expert_tiles(stream, call, is_last ? count : few);
    }
}

/* Takes the next part of scratch memory; with memory NULL only counts. */
static uint8_t *take(uint8_t *memory, size_t *used, int64_t bytes) {
    uint8_t *part = memory == NULL ? NULL : memory + *used;
    *used += ((size_t)bytes + 255) / 256 * 256;
    return part;
}

static struct tile_list take_list(uint8_t *memory, size_t *used, const struct product_tiles *tiles) {
    uint8_t *count = take(memory, used, (int64_t)sizeof(int32_t));
    uint8_t *list = take(memory, used, tiles->token_tiles * (int64_t)sizeof(struct expert_tile));
    return (struct tile_list){tiles->tokens, (int32_t *)count, (struct expert_tile *)list};
}

/* Bytes of scratch memory; places all parts in `memory` unless it is NULL. */
static size_t lay_out(struct experts_call *call, uint8_t *memory) {
    size_t used = 0;
    int64_t count = call->pairs->count, apart = 0;
    int32_t columns = call->first->w1.columns, inner = call->first->w1.rows;
    for (int32_t i = 0; i < call->plans.count; i++) {
        call->plans.plan[i].hidden = take_list(memory, &used, &call->tiles[i].hidden);
        call->plans.plan[i].down = take_list(memory, &used, &call->tiles[i].down);
        apart = call->tiles[i].is_fused ? apart : count * inner * (int64_t)sizeof(float);
    }
    call->input = product_rows_at(take(memory, &used, count * product_row_bytes(columns, call->input_terms)),
        count, columns, call->input_terms);
    call->hidden = product_rows_at(take(memory, &used, count * product_row_bytes(inner, call->hidden_terms)),
        count, inner, call->hidden_terms);
    call->gate = (float *)take(memory, &used, apart);
    call->up = (float *)take(memory, &used, apart);
    return used;
}

static void begin(struct stream *stream, const struct experts_call *call, struct row_source source) {
    struct pair_arrays pairs = {call->pairs->experts, call->pairs->start, call->pairs->row};
    struct product_rows rows = call->input;
    struct tile_plans plans = call->plans;
    dim3 grid((uint32_t)call->pairs->count + 1, prepare_parts(source.columns));
    size_t bytes = sizeof(struct plan_shared);
    if (rows.terms == 0)
        LAUNCH(stream, (begin_experts<0>), grid, PREPARE_THREADS, bytes, source, rows, pairs, plans);
    else if (rows.terms == 1)
        LAUNCH(stream, (begin_experts<1>), grid, PREPARE_THREADS, bytes, source, rows, pairs, plans);
    else
        LAUNCH(stream, (begin_experts<MOST_TERMS>), grid, PREPARE_THREADS, bytes, source, rows, pairs, plans);
}

/* What a product of one of the experts' matrices starts from. */
static struct product_work expert_work(const struct experts_call *call, const struct matrix *w,
    enum expert_matrix matrix, const struct product_rows *x, const struct tile_list *list, float *out) {
    struct product_work work = {};
    work.w = code_matrix_of(w);
    work.w.codes = work.w.scales = NULL;
    work.rows = w->rows;
    work.groups = 1;
    work.x = *x;
    work.experts = call->places;
    work.tiles = list->tiles;
    work.tile_count = list->count;
    work.matrix = matrix;
    work.out = out;
    work.out_stride = w->rows;
    return work;
}

/* Hidden rows, by the kernels of plan `i`. */
static void make_hidden(
    struct stream *stream, const struct experts_call *call, int32_t i, const struct activation *activation) {
    enum { THREADS = 128 };
    const struct matrix *w1 = &call->first->w1;
    const struct product_tiles *tiles = &call->tiles[i].hidden;
    const struct tile_list *list = &call->plans.plan[i].hidden;
    struct product_work work = expert_work(call, w1, EXPERT_GATE, &call->input, list, call->gate);
    if (call->tiles[i].is_fused) {
        work.activation = *activation;
        launch_product(stream, &work, tiles, w1->format, true);
        return;
    }
    launch_product(stream, &work, tiles, w1->format, false);
    work.matrix = EXPERT_UP;
    work.out = call->up;
    launch_product(stream, &work, tiles, w1->format, false);
    const float *gate = call->gate, *up = call->up;
    struct activation to = *activation;
    const int32_t *count = list->count, *pairs = call->pairs->start + call->pairs->experts;
    LAUNCH(stream, activate_pairs, (uint32_t)call->pairs->count, THREADS, 0, gate, up, to, count, pairs);
}

void cuda_experts(struct stream *stream, const struct rows *x, const struct expert_pairs *pairs,
    const struct expert_weights *experts, float limit, float *out) {
    if (pairs->count <= 0 || pairs->experts <= 0)
        return;
    bool is_rounded = x->encoding == ROWS_FP8;
    const struct matrix *w1 = &experts->w1, *w2 = &experts->w2;
    struct experts_call call = {};
    call.pairs = pairs;
    call.first = experts;
    call.input_terms = product_terms(x->encoding, w1->format);
    call.hidden_terms = product_terms(is_rounded ? ROWS_FP8 : ROWS_F32, w2->format);
    choose_plans(stream, &call);
    call.places = expert_places_on_device(stream, experts, pairs->experts);
    uint8_t *memory = (uint8_t *)stream_scratch(stream, SCRATCH_EXPERTS, lay_out(&call, NULL));
    if (call.places == NULL || memory == NULL)
        return;
    (void)lay_out(&call, memory);
    begin(stream, &call, row_source_of(x));
    struct activation activation = {pairs->weight, limit, is_rounded, w1->rows, call.hidden};
    for (int32_t i = 0; i < call.plans.count; i++)
        make_hidden(stream, &call, i, &activation);
    for (int32_t i = 0; i < call.plans.count; i++) {
        struct product_work down =
            expert_work(&call, w2, EXPERT_DOWN, &call.hidden, &call.plans.plan[i].down, out);
        launch_product(stream, &down, &call.tiles[i].down, w2->format, false);
    }
}

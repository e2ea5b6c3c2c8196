/* The routed experts: gate and up, the clamped SwiGLU times the routing weight, rounding, down. */
#include "kernels/cpu/operations/internal.h"

/* The pairs of one expert. */
struct segment {
    int32_t begin, end;
};

/* One call: what the threads share. */
struct experts_call {
    const struct expert_pairs *pairs;
    const struct expert_weights *experts;
    const struct segment *segments;
    const float *const *input; /* [count]: decoded input row of each pair */
    const float **hidden;      /* [count]: the pair's hidden row, padded */
    int32_t inner, inner_padded;
    float limit;
    bool is_rounded;
};

static int32_t find_segments(const struct expert_pairs *pairs, struct segment *segments) {
    int32_t count = 0;
    for (int32_t p = 0; p < pairs->count; p++) {
        if (p == 0 || pairs->expert[p] != pairs->expert[p - 1])
            segments[count++] = (struct segment){p, p};
        segments[count - 1].end = p + 1;
    }
    return count;
}

/* hidden = silu(min(gate, limit)) * clamp(up) * weight over a tile of columns, in place of gate. */
static void activate(float *gate, const float *up, int32_t columns, float limit, float weight) {
    for (int32_t c = 0; c < columns; c += LANES) {
        int32_t count = columns - c;
        lanes g = smaller(load_part(gate + c, count), splat(limit));
        lanes u = smaller(larger(load_part(up + c, count), splat(-limit)), splat(limit));
        store_part(gate + c, g * vector_sigmoid(g) * u * weight, count);
    }
}

/* Columns [row, row + rows) of the hidden rows of one expert's pairs. up: scratch of CHUNK rows. */
static void hidden_tile(
    const struct experts_call *call, const struct segment *segment, int32_t row, float *tile) {
    enum { CHUNK = 64 };
    float up[CHUNK * TILE_ROWS];
    const struct expert_weights *expert = &call->experts[call->pairs->expert[segment->begin]];
    int32_t rows = least(TILE_ROWS, call->inner - row);
    for (int32_t begin = segment->begin; begin < segment->end; begin += CHUNK) {
        int32_t count = least(CHUNK, segment->end - begin);
        const float *const *x = call->input + begin;
        float *gate = (float *)call->hidden[begin] + row;
        FOR_SET(multiply_rows)(x, count, &expert->w1, row, rows, gate, call->inner_padded, tile);
        FOR_SET(multiply_rows)(x, count, &expert->w3, row, rows, up, TILE_ROWS, tile);
        for (int32_t p = 0; p < count; p++) {
            float *hidden = gate + (int64_t)p * call->inner_padded;
            activate(hidden, up + p * TILE_ROWS, rows, call->limit, call->pairs->weight[begin + p]);
            if (call->is_rounded)
                round_row(ROWS_FP8, hidden, rows); /* TILE_ROWS is a multiple of GROUP */
            if (row + rows == call->inner)
                for (int32_t c = rows; row + c < call->inner_padded; c++)
                    hidden[c] = 0;
        }
    }
}

static void down_tile(
    const struct experts_call *call, const struct segment *segment, int32_t row, float *out, float *tile) {
    const struct matrix *w2 = &call->experts[call->pairs->expert[segment->begin]].w2;
    FOR_SET(multiply_rows)
    (call->hidden + segment->begin, segment->end - segment->begin, w2, row, least(TILE_ROWS, w2->rows - row),
        out + (int64_t)segment->begin * w2->rows + row, w2->rows, tile);
}

/* Input pointers by pair, and the hidden rows, in scratch. */
static void prepare(struct stream *stream, const struct rows *x, struct experts_call *call) {
    const struct expert_pairs *pairs = call->pairs;
    int32_t rows = 0;
    for (int32_t p = 0; p < pairs->count; p++)
        rows = pairs->row[p] >= rows ? pairs->row[p] + 1 : rows;
    const float *const *decoded = FOR_SET(input_rows)(stream, x, rows);
    size_t count = (size_t)pairs->count;
    float *hidden =
        stream_scratch(stream, SCRATCH_HIDDEN, count * (size_t)call->inner_padded * sizeof(float));
    uint8_t *tasks =
        stream_scratch(stream, SCRATCH_TASKS, count * (2 * sizeof(float *) + sizeof(struct segment)));
    const float **input = (const float **)tasks;
    call->hidden = (const float **)(tasks + count * sizeof(float *));
    call->segments = (struct segment *)(tasks + 2 * count * sizeof(float *));
    for (int32_t p = 0; p < pairs->count; p++) {
        input[p] = decoded[pairs->row[p]];
        call->hidden[p] = hidden + (int64_t)p * call->inner_padded;
    }
    call->input = input;
}

static void experts(struct stream *stream, const struct rows *x, const struct expert_pairs *pairs,
    const struct expert_weights *weights, float limit, float *out) {
    if (pairs->count <= 0)
        return;
    const struct expert_weights *first = &weights[pairs->expert[0]];
    struct experts_call call = {.pairs = pairs,
        .experts = weights,
        .inner = first->w1.rows,
        .inner_padded = round_up(first->w1.rows, LANES),
        .limit = limit,
        .is_rounded = x->encoding == ROWS_FP8};
    prepare(stream, x, &call);
    int32_t segments = find_segments(pairs, (struct segment *)call.segments);
    int32_t hidden_tiles = (call.inner + TILE_ROWS - 1) / TILE_ROWS;
    int32_t down_tiles = (first->w2.rows + TILE_ROWS - 1) / TILE_ROWS;
    float *tiles = weight_tiles(stream);
#pragma omp parallel num_threads(stream->threads)
    {
        float *tile = tiles + (int64_t)thread_number() * TILE_ROWS * BLOCK_COLUMNS;
#pragma omp for schedule(dynamic)
        for (int32_t task = 0; task < segments * hidden_tiles; task++)
            hidden_tile(&call, &call.segments[task / hidden_tiles], task % hidden_tiles * TILE_ROWS, tile);
#pragma omp for schedule(dynamic)
        for (int32_t task = 0; task < segments * down_tiles; task++)
            down_tile(&call, &call.segments[task / down_tiles], task % down_tiles * TILE_ROWS, out, tile);
    }
}

void FOR_SET(fill_experts)(struct kernels *kernels) {
    kernels->experts = experts;
}

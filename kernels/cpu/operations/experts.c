/* The routed experts: gate and up, the clamped SwiGLU times the routing weight, rounding, down. */
#include "kernels/cpu/operations/internal.h"

enum {
    HIDDEN_VALUES = 96 * PART_COLUMNS, /* outputs of a first projection that wait for the activation */
    DOWN_ROWS = 64,                    /* least outputs of one work item of the down projections */
    ITEMS_PER_THREAD = 3,              /* for few tokens: enough to even out, few enough to be long */
};

/* The pairs of one expert. */
struct segment {
    int32_t expert, begin, end;
};

/* One call: what the threads share. */
struct experts_call {
    const struct expert_pairs *pairs;
    const struct expert_weights *experts;
    struct segment *segments;
    struct inputs input;  /* [count]: prepared input row of each pair */
    struct inputs hidden; /* [count]: the pair's prepared hidden row */
    int32_t inner;
    float limit;
    bool is_rounded;
};

static int32_t find_segments(const struct expert_pairs *pairs, struct segment *segments) {
    int32_t count = 0;
    for (int32_t e = 0; e < pairs->experts; e++)
        if (pairs->start[e] < pairs->start[e + 1])
            segments[count++] = (struct segment){e, pairs->start[e], pairs->start[e + 1]};
    return count;
}

/* hidden = silu(min(gate, limit)) * clamp(up) * weight over a part of the columns, in place of gate. */
static void activate(float *gate, const float *up, int32_t columns, float limit, float weight) {
    for (int32_t c = 0; c < columns; c += LANES) {
        int32_t count = columns - c;
        lanes g = smaller(load_part(gate + c, count), splat(limit));
        lanes u = smaller(larger(load_part(up + c, count), splat(-limit)), splat(limit));
        store_part(gate + c, g * vector_sigmoid(g) * u * weight, count);
    }
}

/* Columns [row, row + rows) of the hidden rows of one expert's pairs; row is a multiple of PART_COLUMNS. */
static void hidden_columns(
    const struct experts_call *call, const struct segment *segment, int32_t row, int32_t rows, void *tile) {
    float gate[HIDDEN_VALUES], up[HIDDEN_VALUES];
    const struct expert_weights *expert = &call->experts[segment->expert];
    int32_t pairs = segment->end - segment->begin, most = HIDDEN_VALUES / rows;
    int32_t chunks = (pairs + most - 1) / most;
    int32_t share = (pairs + chunks - 1) / chunks; /* no small rest, for each chunk decodes the weights */
    for (int32_t begin = segment->begin; begin < segment->end; begin += share) {
        int32_t count = least(share, segment->end - begin);
        FOR_SET(multiply_rows)(&call->input, begin, count, &expert->w1, row, rows, gate, rows, tile);
        FOR_SET(multiply_rows)(&call->input, begin, count, &expert->w3, row, rows, up, rows, tile);
        for (int32_t p = 0; p < count; p++) {
            float *values = gate + p * rows;
            activate(values, up + p * rows, rows, call->limit, call->pairs->weight[begin + p]);
            for (int32_t c = 0; c < rows; c += PART_COLUMNS)
                FOR_SET(prepare_part)
            (expert->w2.format, call->hidden.is_bf16, call->is_rounded, values + c, row + c,
                least(PART_COLUMNS, rows - c), (void *)call->hidden.rows[begin + p]);
        }
    }
}

static void down_rows(const struct experts_call *call, const struct segment *segment, int32_t row,
    int32_t rows, float *out, void *tile) {
    const struct matrix *w2 = &call->experts[segment->expert].w2;
    FOR_SET(multiply_rows)
    (&call->hidden, segment->begin, segment->end - segment->begin, w2, row, rows,
        out + (int64_t)segment->begin * w2->rows + row, w2->rows, tile);
}

/* Rows by pair: inputs, and room for the hidden ones. */
static void prepare(struct stream *stream, const struct rows *x, struct experts_call *call) {
    const struct expert_pairs *pairs = call->pairs;
    const struct expert_weights *first = call->experts; /* all have the same shape and formats */
    int32_t rows = 0;
    for (int32_t p = 0; p < pairs->count; p++)
        rows = pairs->row[p] >= rows ? pairs->row[p] + 1 : rows;
    struct inputs decoded = FOR_SET(prepare_inputs)(stream, x, rows, first->w1.format);
    bool is_bf16 = FOR_SET(uses_bf16)(x->encoding, first->w2.format);
    size_t count = (size_t)pairs->count, row_bytes = FOR_SET(prepared_bytes)(call->inner, is_bf16);
    uint8_t *hidden = stream_scratch(stream, SCRATCH_HIDDEN, count * row_bytes);
    uint8_t *tasks =
        stream_scratch(stream, SCRATCH_TASKS, count * (2 * sizeof(void *) + sizeof(struct segment)));
    const void **input = (const void **)tasks, **output = input + count;
    call->segments = (struct segment *)(output + count);
    for (int32_t p = 0; p < pairs->count; p++) {
        input[p] = decoded.rows[pairs->row[p]];
        output[p] = hidden + (size_t)p * row_bytes;
    }
    call->input = (struct inputs){input, decoded.is_bf16};
    call->hidden = (struct inputs){output, is_bf16};
}

static void experts(struct stream *stream, const struct rows *x, const struct expert_pairs *pairs,
    const struct expert_weights *weights, float limit, float *out) {
    if (pairs->count <= 0)
        return;
    struct experts_call call = {.pairs = pairs,
        .experts = weights,
        .inner = weights->w1.rows,
        .limit = limit,
        .is_rounded = x->encoding == ROWS_FP8};
    prepare(stream, x, &call);
    int32_t segments = find_segments(pairs, call.segments);
    bool has_few = pairs->count <= FEW_TOKENS * segments;
    int32_t inner = call.inner, outer = weights->w2.rows;
    int32_t hidden =
        least(item_rows(has_few, inner, segments, ITEMS_PER_THREAD * stream->threads, PART_COLUMNS),
            HIDDEN_VALUES / PART_COLUMNS * PART_COLUMNS);
    int32_t down = item_rows(has_few, outer, segments, ITEMS_PER_THREAD * stream->threads, DOWN_ROWS);
    int32_t hidden_items = (inner + hidden - 1) / hidden, down_items = (outer + down - 1) / down;
    uint8_t *tiles = weight_tiles(stream);
#pragma omp parallel num_threads(stream->threads)
    {
        uint8_t *tile = tiles + (int64_t)thread_number() * TILE_BYTES;
#pragma omp for schedule(dynamic)
        for (int32_t item = 0; item < segments * hidden_items; item++) {
            int32_t row = item % hidden_items * hidden;
            hidden_columns(&call, &call.segments[item / hidden_items], row, least(hidden, inner - row), tile);
        }
#pragma omp for schedule(dynamic) nowait
        for (int32_t item = 0; item < segments * down_items; item++) {
            int32_t row = item % down_items * down;
            down_rows(&call, &call.segments[item / down_items], row, least(down, outer - row), out, tile);
        }
    }
}

void FOR_SET(fill_experts)(struct kernels *kernels) {
    kernels->experts = experts;
}

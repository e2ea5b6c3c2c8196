/* Mixture of experts: router, shared expert, dispatch of rows to the experts' ranks, combination in fixed order. */
#include "base/stopwatch.h"
#include "model/internals.h"

MUST_CHECK enum result grow_device(struct model *model, void *pointer, int64_t *capacity, int64_t bytes) {
    void **memory = pointer;
    if (bytes <= *capacity)
        return OK;
    /* Half as much again, so that a slowly growing need does not allocate at every step. */
    bytes += bytes / 2;
    if (*memory)
        model->kernels->release(model->kernels, *memory);
    *memory = NULL;
    model->bytes.scratch += bytes - *capacity;
    *capacity = 0;
    model->lane->memory_moves++;
    TRY(model->kernels->allocate(model->kernels, (size_t)bytes, memory));
    *capacity = bytes;
    return OK;
}

/* Whether rows pass through host memory on their way between device and exchange. */
static bool is_staged(const struct model *model) {
    return !model->kernels->shares_host_memory && !exchange_on_device(model->lane->exchange);
}

/* The host reads and writes what the device made or needs, unless the exchange is on the device, too. */
static enum result wait_for_device(struct model *model) {
    return exchange_on_device(model->lane->exchange) ? OK : model->kernels->synchronize(model->lane->stream);
}

/* The shared expert in two halves, so that both of the exchange's journeys have work beside them. */
static enum result shared_expert_up(
    struct model *model, const struct layer_weights *w, const struct rows *x, int32_t tokens) {
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    int32_t inner = w->shared_w1.rows;
    (void)stopwatch_switch(WORK_SHARED_EXPERT);
    k->product(model->lane->stream, x, tokens, &w->shared_w1, m->gate, inner);
    TRY(exchange_progress(model->lane->exchange));
    k->product(model->lane->stream, x, tokens, &w->shared_w3, m->up, inner);
    k->swiglu(model->lane->stream, m->gate, m->up, tokens, inner, model->config->swiglu_limit, m->gate);
    k->encode(model->lane->stream, m->gate, tokens, &m->hidden_rows);
    return exchange_progress(model->lane->exchange);
}

static enum result shared_expert_down(struct model *model, const struct layer_weights *w, int32_t tokens) {
    struct step_memory *m = &model->lane->step;
    (void)stopwatch_switch(WORK_SHARED_EXPERT);
    model->kernels->product(
        model->lane->stream, &m->hidden_rows, tokens, &w->shared_w2, m->shared, model->config->hidden_size);
    return exchange_progress(model->lane->exchange);
}

/* Copies the lists of the pairs that arrived to the device: starts, then rows, then weights. */
static enum result upload_pairs(struct model *model, struct expert_pairs *pairs) {
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    const size_t word = sizeof(int32_t), starts = (size_t)pairs->experts + 1, count = (size_t)pairs->count;
    TRY(grow_device(model, &m->pair_lists, &m->pair_lists_bytes, (int64_t)((starts + 2 * count) * word)));
    int32_t *row = m->pair_lists + starts;
    float *weight = (float *)(row + count);
    k->copy_in(model->lane->stream, m->pair_lists, pairs->start, starts * word);
    k->copy_in(model->lane->stream, row, pairs->row, count * word);
    k->copy_in(model->lane->stream, weight, pairs->weight, count * word);
    pairs->start = m->pair_lists;
    pairs->row = row;
    pairs->weight = weight;
    return OK;
}

static void count_pairs(struct model *model, const struct layer_weights *w, const struct arrivals *arrivals) {
    int64_t experts = model->expert_shard.count, *pairs = model->expert_pairs + (w - model->layers) * experts;
    if (exchange_on_device(model->lane->exchange))
        return;
    for (int64_t e = 0; e < experts; e++)
        pairs[e] += arrivals->start[e + 1] - arrivals->start[e];
}

/* Outputs of this rank's experts for the pairs that arrived. */
static enum result run_arrivals(
    struct model *model, const struct layer_weights *w, const struct arrivals *arrivals) {
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    struct rows x = m->x_rows;
    int64_t in_bytes = arrivals->rows * x.stride,
            out_bytes = arrivals->pairs * model->config->hidden_size * 4;
    float *out = arrivals->outputs;
    if (!arrivals->pairs)
        return OK;
    count_pairs(model, w, arrivals);
    (void)stopwatch_switch(WORK_EXPERTS);
    x.data = (void *)arrivals->row_data;
    struct expert_pairs pairs = {.count = (int32_t)arrivals->pairs,
        .experts = (int32_t)model->expert_shard.count,
        .start = arrivals->start,
        .row = arrivals->pair_row,
        .weight = arrivals->pair_weight};
    if (is_staged(model)) {
        TRY(grow_device(model, &m->arrived, &m->arrived_bytes, in_bytes));
        TRY(grow_device(model, &m->pair_out, &m->pair_out_bytes, out_bytes));
        TRY(upload_pairs(model, &pairs));
        k->copy_in(model->lane->stream, m->arrived, arrivals->row_data, (size_t)in_bytes);
        x.data = m->arrived;
        out = m->pair_out;
    }
    k->experts(model->lane->stream, &x, &pairs, w->experts, model->config->swiglu_limit, out);
    if (is_staged(model))
        k->copy_out(model->lane->stream, arrivals->outputs, out, (size_t)out_bytes);
    return wait_for_device(model);
}

/* What the dispatch sends, where the exchange looks for it. */
struct choices {
    const void *rows;
    const int32_t *experts;
    const float *weights;
};

static enum result choose_experts(struct model *model, const struct layer_weights *w, const float *x,
    const struct rows *x_rows, const uint8_t *is_image, int32_t tokens, struct choices *choices) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    int32_t chosen = c->num_experts_per_tok;
    size_t pairs = (size_t)tokens * (size_t)chosen;
    const struct rows plain = {
        .data = (void *)x, .encoding = ROWS_F32, .columns = c->hidden_size, .stride = c->hidden_size * 4};
    (void)stopwatch_switch(WORK_ROUTER);
    k->product(model->lane->stream, &plain, tokens, &w->gate, m->router_logits, c->n_routed_experts);
    k->route(model->lane->stream, m->router_logits, tokens, c->n_routed_experts, w->gate_bias,
        w->gate_bias_vl, is_image, chosen, c->norm_topk_prob, c->routed_scaling_factor, m->expert_id,
        m->expert_weight);
    *choices = (struct choices){x_rows->data, m->expert_id, m->expert_weight};
    if (is_staged(model)) {
        k->copy_out(model->lane->stream, m->host_rows, x_rows->data, (size_t)(x_rows->stride * tokens));
        k->copy_out(model->lane->stream, m->host_expert_id, m->expert_id, sizeof(int32_t) * pairs);
        k->copy_out(model->lane->stream, m->host_expert_weight, m->expert_weight, sizeof(float) * pairs);
        *choices = (struct choices){m->host_rows, m->host_expert_id, m->host_expert_weight};
    }
    return wait_for_device(model);
}

/* Sums the shared expert's output and those of the chosen experts. */
static enum result sum_outputs(
    struct model *model, const struct combined *combined, int32_t tokens, float *out) {
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    int32_t hidden = model->config->hidden_size, chosen = model->config->num_experts_per_tok;
    const float *routed = combined->outputs;
    const int32_t *place = combined->place;
    (void)stopwatch_switch(WORK_EXPERTS);
    if (is_staged(model)) {
        int64_t bytes = combined->rows * hidden * (int64_t)sizeof(float);
        TRY(grow_device(model, &m->routed, &m->routed_bytes, bytes));
        k->copy_in(model->lane->stream, m->routed, routed, (size_t)bytes);
        k->copy_in(model->lane->stream, m->place, place, sizeof *place * (size_t)tokens * (size_t)chosen);
        routed = m->routed;
        place = m->place;
    }
    k->combine(model->lane->stream, m->shared, routed, place, tokens, chosen, hidden, out);
    return OK;
}

MUST_CHECK enum result moe_run(struct model *model, const struct layer_weights *w, const float *x,
    const struct rows *x_rows, const uint8_t *is_image, int32_t tokens, float *out) {
    struct choices choices = {0};
    struct arrivals arrivals;
    struct combined combined;
    if (tokens)
        TRY(choose_experts(model, w, x, x_rows, is_image, tokens, &choices));
    TRY(exchange_dispatch_begin(
        model->lane->exchange, choices.rows, x_rows->stride, tokens, choices.experts, choices.weights));
    if (tokens)
        TRY(shared_expert_up(model, w, x_rows, tokens));
    TRY(exchange_dispatch_end(model->lane->exchange, &arrivals));
    TRY(run_arrivals(model, w, &arrivals));
    TRY(exchange_combine_begin(model->lane->exchange));
    if (tokens)
        TRY(shared_expert_down(model, w, tokens));
    TRY(exchange_combine_end(model->lane->exchange, &combined));
    return tokens ? sum_outputs(model, &combined, tokens, out) : OK;
}

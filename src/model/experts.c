/* Mixture of experts: router, shared expert, dispatch of rows to the experts' ranks, combination in fixed order. */
#include "model/internals.h"

#include <stdlib.h> /* free, malloc */

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
    TRY(model->kernels->allocate(model->kernels, (size_t)bytes, memory));
    *capacity = bytes;
    return OK;
}

static void shared_expert(
    struct model *model, const struct layer_weights *w, const struct rows *x, int32_t tokens) {
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->step;
    int32_t inner = w->shared_w1.rows;
    k->product(model->stream, x, tokens, &w->shared_w1, m->gate, inner);
    k->product(model->stream, x, tokens, &w->shared_w3, m->up, inner);
    k->swiglu(model->stream, m->gate, m->up, tokens, inner, model->config->swiglu_limit, m->gate);
    k->encode(model->stream, m->gate, tokens, &m->hidden_rows);
    k->product(model->stream, &m->hidden_rows, tokens, &w->shared_w2, m->shared, model->config->hidden_size);
}

/* Outputs of this rank's experts for the pairs that arrived, in host memory. */
static enum result run_arrivals(
    struct model *model, const struct layer_weights *w, const struct arrivals *arrivals) {
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->step;
    int64_t row = m->x_rows.stride, out_bytes = arrivals->pairs * model->config->hidden_size * 4;
    if (out_bytes > m->host_pair_out_bytes) {
        free(m->host_pair_out);
        m->host_pair_out_bytes = 0;
        m->host_pair_out = malloc((size_t)(out_bytes + out_bytes / 2));
        if (!m->host_pair_out)
            return fail(ERROR_MEMORY, "out of memory for %lld bytes of expert outputs", (long long)out_bytes);
        m->host_pair_out_bytes = out_bytes + out_bytes / 2;
    }
    if (!arrivals->pairs)
        return OK;
    TRY(grow_device(model, &m->arrived, &m->arrived_bytes, arrivals->rows * row));
    TRY(grow_device(model, &m->pair_out, &m->pair_out_bytes, out_bytes));
    k->copy_in(model->stream, m->arrived, arrivals->row_data, (size_t)(arrivals->rows * row));
    struct rows x = m->x_rows;
    x.data = m->arrived;
    struct expert_pairs pairs = {.count = (int32_t)arrivals->pairs,
        .row = arrivals->pair_row,
        .expert = arrivals->pair_expert,
        .weight = arrivals->pair_weight};
    k->experts(model->stream, &x, &pairs, w->experts, model->config->swiglu_limit, m->pair_out);
    k->copy_out(model->stream, m->host_pair_out, m->pair_out, (size_t)out_bytes);
    k->synchronize(model->stream);
    return OK;
}

MUST_CHECK enum result moe_run(struct model *model, const struct layer_weights *w, const float *x,
    const struct rows *x_rows, const uint8_t *is_image, int32_t tokens, float *out) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->step;
    int32_t chosen = c->num_experts_per_tok;
    if (tokens) {
        struct rows plain = {
            .data = (void *)x, .encoding = ROWS_F32, .columns = c->hidden_size, .stride = c->hidden_size * 4};
        k->product(model->stream, &plain, tokens, &w->gate, m->router_logits, c->n_routed_experts);
        k->route(model->stream, m->router_logits, tokens, c->n_routed_experts, w->gate_bias, w->gate_bias_vl,
            is_image, chosen, c->norm_topk_prob, c->routed_scaling_factor, m->expert_id, m->expert_weight);
        k->copy_out(model->stream, m->host_rows, x_rows->data, (size_t)(x_rows->stride * tokens));
        k->copy_out(
            model->stream, m->host_expert_id, m->expert_id, sizeof(int32_t) * (size_t)(tokens * chosen));
        k->copy_out(model->stream, m->host_expert_weight, m->expert_weight,
            sizeof(float) * (size_t)(tokens * chosen));
        k->synchronize(model->stream);
    }
    struct arrivals arrivals;
    TRY(exchange_dispatch(model->exchange, m->host_rows, x_rows->stride, tokens, m->host_expert_id,
        m->host_expert_weight, &arrivals));
    TRY(run_arrivals(model, w, &arrivals));
    TRY(exchange_combine(model->exchange, m->host_pair_out, m->host_routed));
    if (!tokens)
        return OK;
    shared_expert(model, w, x_rows, tokens);
    k->copy_in(model->stream, m->routed, m->host_routed,
        sizeof(float) * (size_t)(tokens * chosen) * (size_t)c->hidden_size);
    k->combine(model->stream, m->shared, m->routed, tokens, chosen, c->hidden_size, out);
    return OK;
}

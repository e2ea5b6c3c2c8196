/* Memory of a step, sized once for step_tokens; nothing is allocated in the step loop but arrivals that outgrow it. */
#include "model/internals.h"

#include <stdlib.h> /* calloc, free */

/* Names what is allocated, so that one table says how much memory a step takes. */
struct piece {
    void *pointer; /* address of a typed pointer */
    int64_t count; /* elements */
    int32_t bytes; /* of an element */
};

static enum result allocate_device(struct model *model, const struct piece *pieces, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        TRY(model_allocate(model, (size_t)(pieces[i].count * pieces[i].bytes), pieces[i].pointer));
    return OK;
}

static enum result allocate_host(const struct piece *pieces, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        void *memory = calloc((size_t)pieces[i].count + 1, (size_t)pieces[i].bytes);
        if (!memory)
            return fail(ERROR_MEMORY, "out of memory for the host staging of a step");
        *(void **)pieces[i].pointer = memory;
    }
    return OK;
}

static enum result allocate_rows(
    struct model *model, struct rows *rows, enum row_encoding encoding, int32_t columns, int64_t count) {
    *rows = (struct rows){.encoding = encoding, .columns = columns, .stride = row_bytes(encoding, columns)};
    return model_allocate(model, (size_t)(rows->stride * count), &rows->data);
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

MUST_CHECK enum result step_memory_create(struct model *model) {
    const struct model_config *c = model->config;
    struct step_memory *m = &model->lane->step;
    int64_t tokens = model->options.step_tokens, sequences = model->options.step_sequences;
    int64_t streams = c->hc_mult, hidden = c->hidden_size, heads = c->num_attention_heads, dim = c->head_dim;
    int64_t k = c->num_experts_per_tok, inner = c->moe_intermediate_size;
    int64_t engram = (int64_t)(c->engram_max_ngram_size - 1) * c->engram_n_heads;
    m->window_most = (2 * (c->sliding_window + (int32_t)tokens)) / WINDOW_BLOCK_ROWS + 4;
    m->global_most = model->options.context / model->kv.global_tokens + 2;
    m->row_copies_most = (int32_t)(2 * tokens + 4 * sequences);
    int64_t row_copies = (int64_t)m->row_copies_most * model->ratio2_sources;
    const struct piece device[] = {
        {&m->ids, tokens, 4},
        {&m->lower.sequence, tokens, 4},
        {&m->lower.position, tokens, 4},
        {&m->lower.visible_from, tokens, 4},
        {&m->lower.visible_from_upper, tokens, 4},
        {&m->lower.is_image, tokens, 1},
        {&m->lower.streams, tokens * streams * hidden, 4},
        {&m->lower.pre, tokens * streams, 4},
        {&m->upper.sequence, tokens, 4},
        {&m->upper.position, tokens, 4},
        {&m->upper.visible_from, tokens, 4},
        {&m->upper.visible_from_upper, tokens, 4},
        {&m->upper.is_image, tokens, 1},
        {&m->upper_streams, tokens * streams * hidden, 4},
        {&m->upper_pre, tokens * streams, 4},
        {&m->write_floor, sequences, 4},
        {&m->group_write_floor, sequences, 4},
        {&m->no_floor, sequences, 4},
        {&m->window_blocks, sequences * m->window_most, 4},
        {&m->window_first, sequences, 4},
        {&m->global_blocks, sequences * m->global_most, 4},
        {&m->global_first, sequences, 4},
        {&m->group_sequence, tokens, 4},
        {&m->group_row, tokens, 4},
        {&m->group_position, tokens, 4},
        {&m->post, tokens * streams, 4},
        {&m->comb, tokens * streams * streams, 4},
        {&m->x, tokens * hidden, 4},
        {&m->latent_q, tokens * c->q_lora_rank, 4},
        {&m->q, tokens * heads * dim, 4},
        {&m->kv, tokens * dim, 4},
        {&m->attended, tokens * heads * dim, 4},
        {&m->grouped, tokens * c->o_groups * c->o_lora_rank, 4},
        {&m->sublayer, tokens * hidden, 4},
        {&m->compress_kv, tokens * dim, 4},
        {&m->compress_gate, tokens * dim, 4},
        {&m->pair_kv, (tokens + sequences) * dim, 4},
        {&m->pair_gate, (tokens + sequences) * dim, 4},
        {&m->row_copies, row_copies, sizeof(struct row_copy)},
        {&m->latent, tokens * dim, 4},
        {&m->key, tokens * c->index_head_dim, 4},
        {&m->index_q, tokens * c->index_n_heads * c->index_head_dim, 4},
        {&m->index_weight, tokens * c->index_n_heads, 4},
        {&m->chosen, tokens * c->index_topk, 4},
        {&m->candidates, tokens * larger(c->candidate_topk_blocks, 1), 4},
        {&m->router_logits, tokens * c->n_routed_experts, 4},
        {&m->expert_weight, tokens * k, 4},
        {&m->expert_id, tokens * k, 4},
        {&m->gate, tokens * inner, 4},
        {&m->up, tokens * inner, 4},
        {&m->shared, tokens * hidden, 4},
        {&m->logit_hidden, tokens * hidden, 4},
    };
    TRY(allocate_device(model, device, (int32_t)(sizeof device / sizeof *device)));
    TRY(allocate_rows(model, &m->x_rows, model->activation, c->hidden_size, tokens));
    TRY(allocate_rows(model, &m->latent_q_rows, model->activation, c->q_lora_rank, tokens));
    TRY(allocate_rows(model, &m->grouped_rows, model->activation, c->o_groups * c->o_lora_rank, tokens));
    TRY(allocate_rows(model, &m->hidden_rows, model->activation, c->moe_intermediate_size, tokens));
    for (int i = 0; i < HOST_ARRAYS; i++) {
        const struct piece array = {&m->host_i32[i], larger(tokens, sequences), 4};
        TRY(allocate_host(&array, 1));
    }
    const struct piece host[] = {
        {&m->host_image, tokens, 1},
        {&m->host_image_upper, tokens, 1},
        {&m->host_window, sequences * m->window_most, 4},
        {&m->host_global, sequences * m->global_most, 4},
        {&m->host_row_copies, row_copies, sizeof(struct row_copy)},
    };
    TRY(allocate_host(host, (int32_t)(sizeof host / sizeof *host)));
    if (!model->kernels->shares_host_memory) {
        const struct piece staging[] = {
            {&m->host_rows, tokens * m->x_rows.stride, 1},
            {&m->host_expert_id, tokens * k, 4},
            {&m->host_expert_weight, tokens * k, 4},
        };
        TRY(allocate_host(staging, (int32_t)(sizeof staging / sizeof *staging)));
        TRY(model_allocate(model, (size_t)(tokens * k) * sizeof *m->place, &m->place));
    }
    if (!c->engram_layers)
        return OK;
    int64_t found = engram * c->engram_head_dim;
    m->engram_layer_bytes = (tokens * engram * row_bytes(ROWS_FP8, c->engram_head_dim) + 63) / 64 * 64;
    const struct piece device_engram[] = {
        {&m->found, tokens * found, 4},
        {&m->engram_kv, tokens * (streams + 1) * hidden, 4},
        {&m->engram_codes, m->engram_layer_bytes * c->engram_layers, 1},
    };
    TRY(allocate_device(model, device_engram, (int32_t)(sizeof device_engram / sizeof *device_engram)));
    TRY(allocate_rows(model, &m->found_rows, model->activation, (int32_t)found, tokens));
    const struct piece host_engram[] = {
        {&m->engram_rows, tokens * engram * c->engram_layers, 8},
        {&m->engram_wanted, tokens * engram, 8},
        {&m->engram_packed, tokens * engram * row_bytes(ROWS_FP8, c->engram_head_dim), 1},
        {&m->compressed_ids, tokens + MOST_ENGRAM_NGRAM, 4},
    };
    return allocate_host(host_engram, (int32_t)(sizeof host_engram / sizeof *host_engram));
}

void step_memory_free(struct model *model, struct step_memory *m) {
    for (int i = 0; i < HOST_ARRAYS; i++)
        free(m->host_i32[i]);
    free(m->host_image);
    free(m->host_image_upper);
    free(m->host_window);
    free(m->host_global);
    free(m->host_row_copies);
    free(m->host_rows);
    free(m->host_expert_id);
    free(m->host_expert_weight);
    free(m->engram_rows);
    free(m->engram_wanted);
    free(m->engram_packed);
    free(m->compressed_ids);
    void *grown[] = {m->arrived, m->pair_lists, m->pair_out, m->routed, m->logits, m->draws, m->drawn};
    for (size_t i = 0; i < sizeof grown / sizeof *grown; i++)
        if (grown[i])
            model->kernels->release(model->kernels, grown[i]);
}

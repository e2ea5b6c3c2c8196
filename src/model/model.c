/* Placing a model's weights on this rank, and its memory. */
#include "base/beacon.h"
#include "base/log.h"
#include "model/internals.h"
#include "model/rotary.h"

#include <stdarg.h> /* va_list */
#include <stdio.h>  /* vsnprintf */
#include <stdlib.h> /* calloc, free */

MUST_CHECK enum result model_allocate(struct model *model, size_t bytes, void *pointer) {
    if (model->allocation_count == model->allocation_capacity) {
        int32_t capacity = model->allocation_capacity ? model->allocation_capacity * 2 : 128;
        void **grown = realloc(model->allocations, sizeof *grown * (size_t)capacity);
        if (!grown)
            return fail(ERROR_MEMORY, "out of memory for the list of allocations");
        model->allocations = grown;
        model->allocation_capacity = capacity;
    }
    void *memory = NULL;
    TRY(model->kernels->allocate(model->kernels, bytes ? bytes : 1, &memory));
    model->allocations[model->allocation_count++] = memory;
    model->bytes.scratch += (int64_t)bytes;
    *(void **)pointer = memory;
    return OK;
}

/* ---- weights ---- */

enum {
    WEIGHTS_CHUNK = 256 << 20, /* bytes: placed weights share allocations, lest each has pages of its own */
    TOUCHED_SLICE = 16 << 20,
    SMALL_PAGE = 4096, /* the least there are */
};

/* Clearing fresh pages takes longer than filling them, so all threads take part before one copies. */
static void touch_pages(struct model *model, int64_t bytes) {
    if (bytes < TOUCHED_SLICE)
        bytes = model->weights_left < TOUCHED_SLICE ? model->weights_left : TOUCHED_SLICE;
    uint8_t *pages = model->weights_room;
#pragma omp parallel for num_threads(model->kernels->threads) schedule(static)
    for (int64_t at = 0; at < bytes; at += SMALL_PAGE)
        *(volatile uint8_t *)(pages + at) = 0;
    model->weights_touched = bytes;
}

static enum result take_room(struct model *model, int64_t bytes, void **memory) {
    if (model->weights_left < bytes) {
        int64_t chunk = bytes > WEIGHTS_CHUNK ? bytes : WEIGHTS_CHUNK;
        TRY(model_allocate(model, (size_t)chunk, &model->weights_room));
        model->bytes.scratch -= chunk;
        model->weights_left = chunk;
        model->weights_touched = 0;
    }
    if (model->weights_touched < bytes && model->kernels->shares_host_memory)
        touch_pages(model, bytes);
    *memory = model->weights_room;
    model->weights_room += bytes;
    model->weights_left -= bytes;
    model->weights_touched -= bytes;
    return OK;
}

/* Copies a matrix to the device, unless it stays where the checkpoint is mapped. */
static enum result place_matrix(struct model *model, const struct matrix *host, struct matrix *placed) {
    const struct kernels *k = model->kernels;
    if (k->shares_host_memory && model->options.mapped_weights)
        return k->place(k, host, NULL, placed);
    void *memory = NULL;
    beacon_tick(); /* reading them may take long, on a cold disk */
    TRY(take_room(model, k->placed_bytes(k, host), &memory));
    TRY(k->place(k, host, memory, placed));
    checkpoint_forget_pages(host->values, matrix_value_bytes(host));
    if (host->scales)
        checkpoint_forget_pages(host->scales, matrix_scale_bytes(host));
    return OK;
}

enum { NAME_BYTES = 160 };

static void name_of(char *name, const char *format, va_list arguments) {
    vsnprintf(name, NAME_BYTES, format, arguments);
}

/* The linear layer of that name, on the device; its bytes are added to *bytes. */
static enum result place(struct model *model, int64_t *bytes, struct matrix *placed, const char *format, ...)
    PRINTF_LIKE(4, 5);
static enum result place(
    struct model *model, int64_t *bytes, struct matrix *placed, const char *format, ...) {
    char name[NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    name_of(name, format, arguments);
    va_end(arguments);
    struct matrix host;
    TRY(checkpoint_matrix(model->checkpoint, name, &host));
    *bytes += matrix_value_bytes(&host) + matrix_scale_bytes(&host);
    return place_matrix(model, &host, placed);
}

/* The BF16 or F32 tensor of that name as values on the device. */
static enum result place_values(struct model *model, const void *values, const char *format, ...)
    PRINTF_LIKE(3, 4);
static enum result place_values(struct model *model, const void *values, const char *format, ...) {
    char name[NAME_BYTES];
    va_list arguments;
    va_start(arguments, format);
    name_of(name, format, arguments);
    va_end(arguments);
    const struct tensor *tensor = checkpoint_tensor(model->checkpoint, name);
    if (!tensor)
        return fail(ERROR_INTERNAL, "%s: no tensor %s", checkpoint_folder(model->checkpoint), name);
    int64_t columns = tensor->dimensions > 1 ? tensor->shape[1] : tensor->shape[0];
    struct matrix host = {.values = tensor->data,
        .format = tensor->dtype == TENSOR_F32 ? WEIGHT_F32 : WEIGHT_BF16,
        .rows = tensor->dimensions > 1 ? (int32_t)tensor->shape[0] : 1,
        .columns = (int32_t)columns};
    struct matrix placed;
    TRY(place_matrix(model, &host, &placed));
    model->bytes.dense += tensor->bytes;
    *(const void **)values = placed.values;
    return OK;
}

static enum result place_mix(struct model *model, struct mix_weights *mix, int32_t layer, const char *part) {
    const struct model_config *c = model->config;
    const void *fn = NULL;
    TRY(place_values(model, &fn, "layers.%d.hc_%s_fn", layer, part));
    mix->fn = (struct matrix){.values = fn,
        .format = WEIGHT_F32,
        .rows = (2 + c->hc_mult) * c->hc_mult,
        .columns = c->hc_mult * c->hidden_size};
    TRY(place_values(model, &mix->base, "layers.%d.hc_%s_base", layer, part));
    return place_values(model, &mix->scale, "layers.%d.hc_%s_scale", layer, part);
}

static enum result place_attention(struct model *model, struct layer_weights *w, int32_t l) {
    const struct model_config *c = model->config;
    int64_t *dense = &model->bytes.dense;
    TRY(place(model, dense, &w->wq_a, "layers.%d.attn.wq_a", l));
    TRY(place(model, dense, &w->wq_b, "layers.%d.attn.wq_b", l));
    TRY(place(model, dense, &w->wkv, "layers.%d.attn.wkv", l));
    TRY(place(model, dense, &w->wo_a, "layers.%d.attn.wo_a", l));
    TRY(place(model, dense, &w->wo_b, "layers.%d.attn.wo_b", l));
    TRY(place_values(model, &w->q_norm, "layers.%d.attn.q_norm.weight", l));
    TRY(place_values(model, &w->kv_norm, "layers.%d.attn.kv_norm.weight", l));
    TRY(place_values(model, &w->attn_sink, "layers.%d.attn.attn_sink", l));
    if (c->is_kv_source[l]) {
        TRY(place(model, dense, &w->compressor.wkv, "layers.%d.attn.compressor.wkv", l));
        if (c->compress_ratios[l] > 1)
            TRY(place(model, dense, &w->compressor.wgate, "layers.%d.attn.compressor.wgate", l));
        TRY(place_values(model, &w->compressor.norm, "layers.%d.attn.compressor.norm.weight", l));
        TRY(place(model, dense, &w->compressor.wk, "layers.%d.attn.indexer.wk", l));
        TRY(place_values(model, &w->compressor.k_norm, "layers.%d.attn.indexer.k_norm.weight", l));
    }
    if (c->is_index_source[l]) {
        TRY(place(model, dense, &w->indexer.wq_b, "layers.%d.attn.indexer.wq_b", l));
        TRY(place(model, dense, &w->indexer.weights_proj, "layers.%d.attn.indexer.weights_proj", l));
    }
    return OK;
}

static enum result place_experts(struct model *model, struct layer_weights *w, int32_t l) {
    struct shard shard = model->expert_shard;
    TRY(place(model, &model->bytes.dense, &w->gate, "layers.%d.ffn.gate", l));
    TRY(place_values(model, &w->gate_bias, "layers.%d.ffn.gate.bias", l));
    TRY(place_values(model, &w->gate_bias_vl, "layers.%d.ffn.gate.bias_vl", l));
    TRY(place(model, &model->bytes.dense, &w->shared_w1, "layers.%d.ffn.shared_experts.w1", l));
    TRY(place(model, &model->bytes.dense, &w->shared_w2, "layers.%d.ffn.shared_experts.w2", l));
    TRY(place(model, &model->bytes.dense, &w->shared_w3, "layers.%d.ffn.shared_experts.w3", l));
    w->experts = calloc((size_t)shard.count + 1, sizeof *w->experts);
    if (!w->experts)
        return fail(ERROR_MEMORY, "out of memory for the expert table of layer %d", l);
    for (int64_t i = 0; i < shard.count; i++) {
        int e = (int)(shard.first + i);
        TRY(place(model, &model->bytes.experts, &w->experts[i].w1, "layers.%d.ffn.experts.%d.w1", l, e));
        TRY(place(model, &model->bytes.experts, &w->experts[i].w2, "layers.%d.ffn.experts.%d.w2", l, e));
        TRY(place(model, &model->bytes.experts, &w->experts[i].w3, "layers.%d.ffn.experts.%d.w3", l, e));
    }
    return OK;
}

static enum result place_engram(struct model *model, struct layer_weights *w, int32_t l, int32_t slot) {
    const struct model_config *c = model->config;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "layers.%d.engram.embed", l);
    /* Stays in host memory: only rows that tokens look up are read, by the rank that owns them. */
    TRY(checkpoint_matrix(model->checkpoint, name, &w->engram.table));
    struct shard rows = shard_of(c->engram_num_embeddings[slot], group_size(model->options.supernode),
        group_rank(model->options.supernode));
    model->bytes.engram += rows.count * row_bytes(ROWS_FP8, c->engram_head_dim);
    TRY(place(model, &model->bytes.dense, &w->engram.wkv, "layers.%d.engram.wkv", l));
    TRY(place_values(model, &w->engram.q_weight, "layers.%d.engram.q_weight", l));
    return place_values(model, &w->engram.k_weight, "layers.%d.engram.k_weight", l);
}

/* Only rows that tokens look up are read, so a mapped table stays where it is. */
static enum result place_embed(struct model *model) {
    const struct kernels *k = model->kernels;
    struct matrix host;
    if (!k->shares_host_memory)
        return place(model, &model->bytes.dense, &model->embed, "embed");
    TRY(checkpoint_matrix(model->checkpoint, "embed", &host));
    model->bytes.dense += matrix_value_bytes(&host);
    return k->place(k, &host, NULL, &model->embed);
}

static enum result place_layers(struct model *model) {
    const struct model_config *c = model->config;
    int32_t slot = 0;
    model->layers = calloc((size_t)c->num_hidden_layers, sizeof *model->layers);
    model->expert_pairs = calloc(
        (size_t)c->num_hidden_layers * (size_t)model->expert_shard.count + 1, sizeof *model->expert_pairs);
    if (!model->layers || !model->expert_pairs)
        return fail(ERROR_MEMORY, "out of memory for the table of layers");
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        struct layer_weights *w = &model->layers[l];
        TRY(place_values(model, &w->attn_norm, "layers.%d.attn_norm.weight", l));
        TRY(place_values(model, &w->ffn_norm, "layers.%d.ffn_norm.weight", l));
        TRY(place_attention(model, w, l));
        TRY(place_mix(model, &w->hc_attn, l, "attn"));
        TRY(place_mix(model, &w->hc_ffn, l, "ffn"));
        TRY(place_experts(model, w, l));
        if (slot < c->engram_layers && c->engram_layer_ids[slot] == l)
            TRY(place_engram(model, w, l, slot++));
    }
    TRY(place_embed(model));
    TRY(place(model, &model->bytes.dense, &model->head, "head"));
    return place_values(model, &model->final_norm, "norm.weight");
}

/* ---- the rest ---- */

/* Orders of layers that the forward pass relies on; all published configurations have them. */
static enum result check_structure(struct model *model) {
    const struct model_config *c = model->config;
    const char *folder = checkpoint_folder(model->checkpoint);
    model->split_layer = c->last_kv_source >= 0 ? c->last_kv_source : c->num_hidden_layers - 1;
    bool any_index = false;
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        any_index = any_index || c->is_index_source[l];
        if (c->is_kv_source[l] && !c->is_index_source[l])
            return fail(ERROR_INPUT, "%s/config.json: kv source layer %d is not among index_source_layer_ids",
                folder, l);
        if (c->compress_ratios[l] && !any_index)
            return fail(ERROR_INPUT,
                "%s/config.json: layer %d has compressed rows but no index source at or below it", folder, l);
        if (c->compress_ratios[l] && model->kv.source_of[l] >= 0 &&
            c->compress_ratios[l] != c->compress_ratios[model->kv.source_of[l]])
            return fail(ERROR_INPUT,
                "%s/config.json: layer %d has compress ratio %d, its kv source %d has %d", folder, l,
                c->compress_ratios[l], model->kv.source_of[l], c->compress_ratios[model->kv.source_of[l]]);
        if (c->is_kv_source[l] && c->compress_ratios[l] > 1)
            model->ratio2_slot[l] = model->ratio2_sources++;
    }
    if (c->candidate_source_layer_id >= 0 && c->candidate_source_layer_id < c->last_kv_source)
        return fail(ERROR_INPUT,
            "%s/config.json: candidate_source_layer_id %d is below the last kv source layer %d", folder,
            c->candidate_source_layer_id, c->last_kv_source);
    for (int32_t i = 0; i < c->engram_layers; i++)
        if (c->engram_layer_ids[i] > model->split_layer)
            return fail(ERROR_INPUT, "%s/config.json: Engram layer %d is above the last kv source layer %d",
                folder, c->engram_layer_ids[i], model->split_layer);
    return OK;
}

static enum result create_exchange(struct model *model) {
    const struct model_config *c = model->config;
    struct exchange_options options = {.experts = c->n_routed_experts,
        .experts_per_token = c->num_experts_per_tok,
        .most_tokens = model->options.step_tokens,
        .row_bytes = row_bytes(model->activation, c->hidden_size),
        .columns = c->hidden_size};
    if (model->kernels->has_cuda_streams) {
        options.kernels = model->kernels;
        options.stream = model->lane->stream;
        options.node = model->options.node;
    }
    return exchange_create(model->options.supernode, &options, &model->lane->exchange);
}

/* Of what a device has left when all else is allocated; the rest is for what grows, such as arrivals of the exchange. */
static int64_t most_of(int64_t left) {
    return left / 10 * 8;
}

/* A device works on two batches in turn; the CPU's work is done when it is enqueued. */
static enum result create_lanes(struct model *model) {
    const struct kernels *k = model->kernels;
    model->lane_count = k->shares_host_memory ? 1 : MOST_LANES;
    for (int32_t i = 0; i < model->lane_count; i++) {
        struct lane *lane = model->lane = &model->lanes[i];
        lane->spans = calloc((size_t)model->options.step_sequences, sizeof *lane->spans);
        if (!lane->spans)
            return fail(ERROR_MEMORY, "out of memory for the sequences of a step");
        TRY(k->stream_create(k, &lane->stream));
        TRY(step_memory_create(model));
        TRY(create_exchange(model));
    }
    model->lane = &model->lanes[0];
    return OK;
}

static void free_lane(struct model *model, struct lane *lane) {
    if (lane->stream && lane->in_flight && model->kernels->synchronize(lane->stream) != OK)
        log_error("%s", failure_message());
    recordings_free(model, lane);
    exchange_free(lane->exchange);
    step_memory_free(model, &lane->step);
    if (lane->stream)
        model->kernels->stream_free(model->kernels, lane->stream);
    free(lane->spans);
}

static enum result create_pool(struct model *model) {
    const struct kernels *k = model->kernels;
    if (!model->options.kv_bytes && k->memory_left)
        model->options.kv_bytes = most_of(k->memory_left(k));
    TRY(block_pool_create(model->kernels, model->kv.block_bytes, model->options.kv_bytes, &model->pool));
    for (int32_t l = 0; l < model->config->num_hidden_layers; l++) {
        struct block_rows *kinds[] = {&model->kv.window[l], &model->kv.latent[l], &model->kv.index_key[l]};
        for (int i = 0; i < 3; i++) {
            kinds[i]->base = model->pool->base;
            kinds[i]->block_bytes = model->kv.block_bytes;
        }
    }
    model->bytes.kv = (int64_t)model->pool->total * model->pool->block_bytes;
    return OK;
}

MUST_CHECK enum result model_create(
    const struct checkpoint *checkpoint, const struct model_options *options, struct model **model) {
    enum result status = OK;
    struct model *new = calloc(1, sizeof *new);
    if (!new)
        return fail(ERROR_MEMORY, "out of memory for the model");
    const struct model_config *c = checkpoint_config(checkpoint);
    bool rounded = options->mode == MODE_ROUNDED;
    new->checkpoint = checkpoint;
    new->config = c;
    new->options = *options;
    new->kernels = options->kernels;
    new->activation = new->window_encoding = rounded ? ROWS_FP8 : ROWS_F32;
    new->latent_encoding = rounded ? ROWS_FP4_FINE : ROWS_F32;
    new->key_encoding = rounded ? ROWS_FP4 : ROWS_F32;
    new->expert_shard =
        shard_of(c->n_routed_experts, group_size(options->supernode), group_rank(options->supernode));
    TRY_GOTO(status, new->kernels->stream_create(new->kernels, &new->stream), done);
    kv_layout_make(new);
    TRY_GOTO(status, check_structure(new), done);
    TRY_GOTO(status, state_sections_make(new), done);
    TRY_GOTO(status, rope_create(c->qk_rope_head_dim, c->rope_theta, NULL, &new->plain_rope), done);
    TRY_GOTO(status,
        rope_create(c->qk_rope_head_dim, c->compress_rope_theta, &c->rope_scaling, &new->long_rope), done);
    if (c->engram_layers)
        engram_hash_prepare(&new->engram, c, checkpoint_engram_token_map(checkpoint)[c->engram_pad_token_id]);
    TRY_GOTO(status, place_layers(new), done);
    TRY_GOTO(status, create_lanes(new), done);
    TRY_GOTO(status, create_pool(new), done);
done:
    if (status != OK) {
        model_free(new);
        return status;
    }
    *model = new;
    return OK;
}

void model_free(struct model *model) {
    if (!model)
        return;
    for (int32_t i = 0; i < MOST_LANES; i++)
        free_lane(model, &model->lanes[i]);
    samplers_free(model);
    free(model->open_group_spares);
    for (int32_t i = 0; i < model->allocation_count; i++)
        model->kernels->release(model->kernels, model->allocations[i]);
    free(model->allocations);
    block_pool_free(model->pool);
    if (model->layers)
        for (int32_t l = 0; l < model->config->num_hidden_layers; l++)
            free(model->layers[l].experts);
    free(model->layers);
    free(model->expert_pairs);
    free(model->sections);
    rope_free(&model->plain_rope);
    rope_free(&model->long_rope);
    if (model->stream)
        model->kernels->stream_free(model->kernels, model->stream);
    free(model);
}

const struct model_config *model_config(const struct model *model) {
    return model->config;
}

const struct model_options *model_options(const struct model *model) {
    return &model->options;
}

struct model_bytes model_bytes(const struct model *model) {
    return model->bytes;
}

struct expert_load model_expert_load(const struct model *model) {
    return (struct expert_load){.layers = model->config->num_hidden_layers,
        .experts = model->config->n_routed_experts,
        .first = (int32_t)model->expert_shard.first,
        .count = (int32_t)model->expert_shard.count,
        .pairs = model->expert_pairs,
        .counted = !exchange_on_device(model->lanes[0].exchange)};
}

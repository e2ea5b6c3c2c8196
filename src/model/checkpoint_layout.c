#include "model/checkpoint_layout.h"

#include <stdarg.h> /* va_list */
#include <stdio.h>  /* vsnprintf */
#include <string.h> /* strstr */

struct layout {
    const struct model_config *config;
    layout_visitor visit;
    void *context;
    enum result status; /* the first failure; after it nothing is visited */
};

enum { PREFIX_BYTES = 96 };

/* ---- the kinds of tensors ---- */

PRINTF_LIKE(6, 7)
static void put(struct layout *layout, enum tensor_dtype dtype, int32_t dimensions, int64_t rows,
    int64_t columns, const char *format, ...) {
    if (layout->status != OK)
        return;
    struct expected_tensor tensor = {.dtype = dtype, .dimensions = dimensions, .shape = {rows, columns}};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(tensor.name, sizeof tensor.name, format, arguments);
    va_end(arguments);
    /* Stored as F32 by some writers; the published model's total of bytes fits BF16 only. */
    tensor.or_bf16 = strstr(tensor.name, ".confidence_head.") != NULL;
    layout->status = layout->visit(layout->context, &tensor);
}

static void vector(
    struct layout *layout, enum tensor_dtype dtype, const char *prefix, const char *name, int64_t size) {
    put(layout, dtype, 1, size, 1, "%s%s", prefix, name);
}

static void table(struct layout *layout, enum tensor_dtype dtype, const char *prefix, const char *name,
    int64_t rows, int64_t columns) {
    put(layout, dtype, 2, rows, columns, "%s%s", prefix, name);
}

static int64_t blocks(int64_t size) {
    return (size + 31) / 32;
}

/* FP8, one scale per 32 x 32 tile. */
static void dense(
    struct layout *layout, const char *prefix, const char *name, int64_t rows, int64_t columns) {
    put(layout, TENSOR_F8_E4M3, 2, rows, columns, "%s%s.weight", prefix, name);
    put(layout, TENSOR_F8_E8M0, 2, blocks(rows), blocks(columns), "%s%s.scale", prefix, name);
}

/* FP4, two columns a byte, one scale per row and 32 columns. */
static void expert_matrix(struct layout *layout, const char *prefix, int32_t expert, const char *name,
    int64_t rows, int64_t columns) {
    put(layout, TENSOR_I8, 2, rows, columns / 2, "%s.experts.%d.%s.weight", prefix, expert, name);
    put(layout, TENSOR_F8_E8M0, 2, rows, columns / 32, "%s.experts.%d.%s.scale", prefix, expert, name);
}

/* ---- the parts of the model ---- */

static void visit_moe(struct layout *layout, const char *block, int32_t experts) {
    int64_t dim = layout->config->hidden_size, inner = layout->config->moe_intermediate_size;
    char prefix[PREFIX_BYTES];
    snprintf(prefix, sizeof prefix, "%s.ffn", block);
    table(layout, TENSOR_BF16, prefix, ".gate.weight", experts, dim);
    vector(layout, TENSOR_F32, prefix, ".gate.bias", experts);
    vector(layout, TENSOR_F32, prefix, ".gate.bias_vl", experts);
    for (int32_t expert = 0; expert < experts && layout->status == OK; expert++) {
        expert_matrix(layout, prefix, expert, "w1", inner, dim);
        expert_matrix(layout, prefix, expert, "w3", inner, dim);
        expert_matrix(layout, prefix, expert, "w2", dim, inner);
    }
    dense(layout, prefix, ".shared_experts.w1", inner, dim);
    dense(layout, prefix, ".shared_experts.w3", inner, dim);
    dense(layout, prefix, ".shared_experts.w2", dim, inner);
}

static void visit_block(struct layout *layout, const char *block, int32_t experts) {
    const struct model_config *c = layout->config;
    int64_t dim = c->hidden_size, streams = c->hc_mult, mixes = (2 + streams) * streams;
    int64_t queries = (int64_t)c->num_attention_heads * c->head_dim;
    int64_t outputs = (int64_t)c->o_groups * c->o_lora_rank;
    char prefix[PREFIX_BYTES];
    snprintf(prefix, sizeof prefix, "%s.attn", block);
    dense(layout, prefix, ".wq_a", c->q_lora_rank, dim);
    vector(layout, TENSOR_BF16, prefix, ".q_norm.weight", c->q_lora_rank);
    dense(layout, prefix, ".wq_b", queries, c->q_lora_rank);
    dense(layout, prefix, ".wkv", c->head_dim, dim);
    vector(layout, TENSOR_BF16, prefix, ".kv_norm.weight", c->head_dim);
    dense(layout, prefix, ".wo_a", outputs, queries / c->o_groups);
    dense(layout, prefix, ".wo_b", dim, outputs);
    vector(layout, TENSOR_F32, prefix, ".attn_sink", c->num_attention_heads);
    vector(layout, TENSOR_BF16, block, ".attn_norm.weight", dim);
    vector(layout, TENSOR_BF16, block, ".ffn_norm.weight", dim);
    static const char *const parts[] = {"attn", "ffn"};
    for (int i = 0; i < 2; i++) {
        snprintf(prefix, sizeof prefix, "%s.hc_%s", block, parts[i]);
        table(layout, TENSOR_F32, prefix, "_fn", mixes, streams * dim);
        vector(layout, TENSOR_F32, prefix, "_base", mixes);
        vector(layout, TENSOR_F32, prefix, "_scale", 3);
    }
    visit_moe(layout, block, experts);
}

static void visit_sources(struct layout *layout, int32_t layer) {
    const struct model_config *c = layout->config;
    char prefix[PREFIX_BYTES];
    if (c->is_kv_source[layer]) {
        snprintf(prefix, sizeof prefix, "layers.%d.attn.compressor", layer);
        table(layout, TENSOR_BF16, prefix, ".wkv.weight", c->head_dim, c->hidden_size);
        if (c->compress_ratios[layer] > 1)
            table(layout, TENSOR_BF16, prefix, ".wgate.weight", c->head_dim, c->hidden_size);
        vector(layout, TENSOR_BF16, prefix, ".norm.weight", c->head_dim);
    }
    if (c->is_index_source[layer]) {
        snprintf(prefix, sizeof prefix, "layers.%d.attn.indexer", layer);
        dense(layout, prefix, ".wq_b", (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank);
        table(layout, TENSOR_BF16, prefix, ".weights_proj.weight", c->index_n_heads, c->hidden_size);
        if (c->is_kv_source[layer]) {
            table(layout, TENSOR_BF16, prefix, ".wk.weight", c->index_head_dim, c->head_dim);
            vector(layout, TENSOR_BF16, prefix, ".k_norm.weight", c->index_head_dim);
        }
    }
}

static void visit_engram(struct layout *layout, int32_t index) {
    const struct model_config *c = layout->config;
    int64_t rows = c->engram_num_embeddings[index], width = c->engram_head_dim, streams = c->hc_mult;
    char prefix[PREFIX_BYTES];
    snprintf(prefix, sizeof prefix, "layers.%d.engram", c->engram_layer_ids[index]);
    /* One scale per row and 32 columns, unlike other FP8 weights. */
    table(layout, TENSOR_F8_E4M3, prefix, ".embed.weight", rows, width);
    table(layout, TENSOR_F8_E8M0, prefix, ".embed.scale", rows, width / 32);
    dense(layout, prefix, ".wkv", c->hidden_size * (streams + 1), engram_columns(c) * width);
    table(layout, TENSOR_BF16, prefix, ".q_weight", streams, c->hidden_size);
    table(layout, TENSOR_BF16, prefix, ".k_weight", streams, c->hidden_size);
}

static void visit_drafts(struct layout *layout) {
    const struct model_config *c = layout->config;
    int64_t dim = c->hidden_size, rank = c->dspark_markov_rank;
    char prefix[PREFIX_BYTES];
    for (int32_t stage = 0; stage < c->n_mtp_layers; stage++) {
        snprintf(prefix, sizeof prefix, "mtp.%d", stage);
        visit_block(layout, prefix, c->dspark_n_routed_experts);
    }
    dense(layout, "mtp.0", ".main_proj", dim, dim * c->dspark_target_layers);
    vector(layout, TENSOR_BF16, "mtp.0", ".main_norm.weight", dim);
    snprintf(prefix, sizeof prefix, "mtp.%d", c->n_mtp_layers - 1);
    vector(layout, TENSOR_BF16, prefix, ".norm.weight", dim);
    table(layout, TENSOR_BF16, prefix, ".markov_head.embed.weight", c->vocab_size, rank);
    table(layout, TENSOR_BF16, prefix, ".markov_head.head.weight", c->vocab_size, rank);
    table(layout, TENSOR_F32, prefix, ".confidence_head.proj.weight", 1, dim + rank);
}

static void visit_vision_block(struct layout *layout, int32_t block) {
    const struct vision_config *v = &layout->config->vision;
    int64_t dim = v->hidden_size, inner = v->intermediate_size;
    char prefix[PREFIX_BYTES];
    snprintf(prefix, sizeof prefix, "vision.blocks.%d", block);
    vector(layout, TENSOR_BF16, prefix, ".norm1.weight", dim);
    table(layout, TENSOR_BF16, prefix, ".attn.wqkv.weight", 3 * dim, dim);
    vector(layout, TENSOR_BF16, prefix, ".attn.wqkv.bias", 3 * dim);
    table(layout, TENSOR_BF16, prefix, ".attn.wo.weight", dim, dim);
    vector(layout, TENSOR_BF16, prefix, ".attn.wo.bias", dim);
    vector(layout, TENSOR_BF16, prefix, ".norm2.weight", dim);
    table(layout, TENSOR_BF16, prefix, ".mlp.w1.weight", 2 * inner, dim);
    table(layout, TENSOR_BF16, prefix, ".mlp.w2.weight", dim, inner);
}

static void visit_vision(struct layout *layout) {
    const struct vision_config *v = &layout->config->vision;
    int64_t dim = v->hidden_size, model = layout->config->hidden_size;
    int64_t patch = 3 * (int64_t)v->patch_size * v->patch_size;
    int64_t merged = dim * v->downsample_ratio * v->downsample_ratio;
    table(layout, TENSOR_BF16, "vision", ".patch_embed.proj.weight", dim, patch);
    vector(layout, TENSOR_BF16, "vision", ".patch_embed.proj.bias", dim);
    for (int32_t block = 0; block < v->num_hidden_layers; block++)
        visit_vision_block(layout, block);
    vector(layout, TENSOR_BF16, "vision", ".norm.weight", dim);
    table(layout, TENSOR_BF16, "aligner", ".w1.weight", model, merged);
    vector(layout, TENSOR_BF16, "aligner", ".w1.bias", model);
    table(layout, TENSOR_BF16, "aligner", ".w2.weight", model, model);
    vector(layout, TENSOR_BF16, "aligner", ".w2.bias", model);
    vector(layout, TENSOR_BF16, "image", "_start", model);
    vector(layout, TENSOR_BF16, "image", "_end", model);
    vector(layout, TENSOR_BF16, "image", "_newline", model);
}

enum result checkpoint_layout_visit(const struct model_config *config, layout_visitor visit, void *context) {
    struct layout layout = {.config = config, .visit = visit, .context = context, .status = OK};
    char prefix[PREFIX_BYTES];
    table(&layout, TENSOR_BF16, "embed", ".weight", config->vocab_size, config->hidden_size);
    for (int32_t layer = 0; layer < config->num_hidden_layers && layout.status == OK; layer++) {
        snprintf(prefix, sizeof prefix, "layers.%d", layer);
        visit_block(&layout, prefix, config->n_routed_experts);
        visit_sources(&layout, layer);
    }
    for (int32_t i = 0; i < config->engram_layers; i++)
        visit_engram(&layout, i);
    vector(&layout, TENSOR_BF16, "norm", ".weight", config->hidden_size);
    table(&layout, TENSOR_BF16, "head", ".weight", config->vocab_size, config->hidden_size);
    if (config->n_mtp_layers > 0)
        visit_drafts(&layout);
    if (config->vision.present)
        visit_vision(&layout);
    return layout.status;
}

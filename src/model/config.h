/* The published config.json, checked field by field. Members have the published names, so that messages, code and
 * the reference agree. */
#ifndef NOCTURNE_MODEL_CONFIG_H
#define NOCTURNE_MODEL_CONFIG_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t */

enum {
    MOST_LAYERS = 128, /* num_hidden_layers + n_mtp_layers at most */
    MOST_ENGRAM_LAYERS = 8,
    MOST_ENGRAM_COLUMNS = 64, /* (engram_max_ngram_size - 1) * engram_n_heads at most */
    MOST_ENGRAM_NGRAM = 8,    /* engram_max_ngram_size at most */
    MOST_STREAMS = 8,         /* hc_mult at most */
};

struct yarn_config {
    double factor, beta_fast, beta_slow;
    int32_t original_max_position_embeddings;
};

struct vision_config {
    bool present;
    int32_t num_hidden_layers, hidden_size, num_attention_heads, intermediate_size, patch_size,
        downsample_ratio;
    int32_t min_pixels, max_image_tokens;
    double rope_theta;
};

struct model_config {
    int32_t image_token_id; /* -1 when the config has none */
    int32_t vocab_size, hidden_size, moe_intermediate_size, num_hidden_layers;
    int32_t num_attention_heads, head_dim, qk_rope_head_dim, q_lora_rank, o_groups, o_lora_rank;
    int32_t n_routed_experts, n_shared_experts, num_experts_per_tok;
    bool norm_topk_prob;
    float routed_scaling_factor, swiglu_limit, rms_norm_eps;
    int32_t sliding_window;
    int32_t compress_ratios[MOST_LAYERS]; /* [num_hidden_layers + n_mtp_layers]: 0, 1 or 2 */
    bool is_kv_source[MOST_LAYERS];       /* of kv_source_layer_ids */
    bool is_index_source[MOST_LAYERS];    /* of index_source_layer_ids */
    int32_t last_kv_source;               /* largest kv_source_layer_ids, -1 when there are none */
    int32_t candidate_source_layer_id;    /* -1: no two-level choice */
    int32_t candidate_topk_blocks, candidate_block_size;
    int32_t index_n_heads, index_head_dim, index_topk;
    double rope_theta, compress_rope_theta;
    struct yarn_config rope_scaling;
    int32_t max_position_embeddings;
    int32_t hc_mult, hc_sinkhorn_iters;
    float hc_eps;
    int32_t engram_layers; /* number of engram_layer_ids, 0: no Engram */
    int32_t engram_layer_ids[MOST_ENGRAM_LAYERS];
    int64_t engram_num_embeddings[MOST_ENGRAM_LAYERS];
    int32_t engram_max_ngram_size, engram_n_heads, engram_head_dim, engram_pad_token_id;
    int32_t engram_compressed_vocab_size;
    int64_t engram_vocab_size;
    int32_t n_mtp_layers, dspark_block_size, dspark_noise_token_id, dspark_markov_rank;
    int32_t dspark_n_routed_experts, dspark_num_experts_per_tok;
    int32_t dspark_target_layers; /* number of dspark_target_layer_ids */
    int32_t dspark_target_layer_ids[MOST_LAYERS];
    int32_t bos_token_id, eos_token_id, pad_token_id;
    struct vision_config vision;
};

/* Reads FOLDER/config.json. ERROR_INPUT names file and field, what was found and what was expected: for a missing
 * or unknown field, a wrong type, a value out of range or one this engine does not implement (scoring_func,
 * topk_method, quantization_config, ...), and for fields that contradict each other (head counts that do not
 * divide, source layers out of order, Engram rows that are not the sum of the primes). */
MUST_CHECK enum result model_config_load(const char *folder, struct model_config *config);

/* The same from the file's text; `path` is for messages. */
MUST_CHECK enum result model_config_parse(
    const char *path, const char *text, size_t bytes, struct model_config *config);

/* The same from the parsed file. */
struct json;
MUST_CHECK enum result model_config_read(
    const char *path, const struct json *root, struct model_config *config);

/* ERROR_INPUT when the file is larger than `most` bytes, so that a wrong file does not fill memory. */
MUST_CHECK enum result model_file_check_size(const char *path, int64_t most);

/* Columns of an Engram row index: one for each look-back length and head. */
static inline int32_t engram_columns(const struct model_config *config) {
    return (config->engram_max_ngram_size - 1) * config->engram_n_heads;
}

#endif

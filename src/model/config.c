#include "model/config.h"

#include "base/json.h"
#include "model/engram.h" /* engram_hash_prepare, engram_hash_table_rows */

#include <limits.h>   /* PATH_MAX */
#include <stdio.h>    /* snprintf */
#include <string.h>   /* strlen, memcmp */
#include <sys/stat.h> /* stat */

/* ---- messages ---- */

/* One object of the file, for messages such as "config.json: text_config.head_dim: expected ..., found ...". */
struct section {
    const char *path;
    const char *prefix; /* "" or "text_config." */
    const struct json *object;
};

enum {
    FOUND_BYTES = 64,
    FILE_BYTES = 1 << 20, /* of config.json at most: hundreds of times its usual size */
};

/* A value as messages show it: numbers and short strings as written, the rest by kind. */
static const char *found(const struct json *value, char text[FOUND_BYTES]) {
    if (value && value->kind == JSON_NUMBER)
        snprintf(text, FOUND_BYTES, "%.40s", value->text);
    else if (value && value->kind == JSON_STRING)
        snprintf(text, FOUND_BYTES, "\"%.40s\"", value->text);
    else if (value && (value->kind == JSON_TRUE || value->kind == JSON_FALSE))
        snprintf(text, FOUND_BYTES, "%s", value->kind == JSON_TRUE ? "true" : "false");
    else if (value && value->kind == JSON_ARRAY)
        snprintf(text, FOUND_BYTES, "a list of %zu", value->count);
    else
        snprintf(text, FOUND_BYTES, "%s", value ? json_kind_name(value) : "no such field");
    return text;
}

static enum result fail_value(
    const struct section *section, const char *name, const char *expected, const struct json *value) {
    char text[FOUND_BYTES];
    return fail(ERROR_INPUT, "%s: %s%s: expected %s, found %s", section->path, section->prefix, name,
        expected, found(value, text));
}

/* ---- fields that are one number ---- */

enum kind { KIND_INT32, KIND_INT64, KIND_FLOAT, KIND_DOUBLE, KIND_BOOL };

/* When a field must be there; else it is not looked at. */
enum need { ALWAYS, WITH_CANDIDATES, WITH_ENGRAM, WITH_DRAFTS };

struct field {
    const char *name;
    enum kind kind;
    enum need need;
    size_t offset; /* of the member */
    double least, most;
};

#define FIELD(structure, name, kind, need, least, most)                                                      \
    { #name, kind, need, offsetof(structure, name), least, most }
#define TEXT_INT(name, need, least, most) FIELD(struct model_config, name, KIND_INT32, need, least, most)
#define TEXT_FLOAT(name, least, most) FIELD(struct model_config, name, KIND_FLOAT, ALWAYS, least, most)
#define TEXT_DOUBLE(name, least, most) FIELD(struct model_config, name, KIND_DOUBLE, ALWAYS, least, most)
#define YARN_DOUBLE(name, least, most) FIELD(struct yarn_config, name, KIND_DOUBLE, ALWAYS, least, most)
#define VISION_INT(name, least, most) FIELD(struct vision_config, name, KIND_INT32, ALWAYS, least, most)

/* The limits are far above any published model's sizes; they keep products of two sizes inside int64, rows of a matrix
 * inside int32 and positions exact in float32. */
enum {
    WIDTH = 1 << 16,
    VOCABULARY = 1 << 24,
    POSITIONS = 1 << 24,
};

static const struct field structure_fields[] = {
    TEXT_INT(vocab_size, ALWAYS, 4, VOCABULARY),
    TEXT_INT(num_hidden_layers, ALWAYS, 1, MOST_LAYERS),
    TEXT_INT(n_mtp_layers, ALWAYS, 0, 16),
};

static const struct field text_fields[] = {
    TEXT_INT(hidden_size, ALWAYS, 32, WIDTH),
    TEXT_INT(moe_intermediate_size, ALWAYS, 32, WIDTH),
    TEXT_INT(num_attention_heads, ALWAYS, 1, 1024),
    TEXT_INT(head_dim, ALWAYS, 32, 4096),
    TEXT_INT(qk_rope_head_dim, ALWAYS, 2, 4096),
    TEXT_INT(q_lora_rank, ALWAYS, 32, WIDTH),
    TEXT_INT(o_groups, ALWAYS, 1, 1024),
    TEXT_INT(o_lora_rank, ALWAYS, 1, WIDTH),
    TEXT_INT(n_routed_experts, ALWAYS, 1, 4096),
    TEXT_INT(n_shared_experts, ALWAYS, 1, 1),
    TEXT_INT(num_experts_per_tok, ALWAYS, 1, 64),
    FIELD(struct model_config, norm_topk_prob, KIND_BOOL, ALWAYS, 0, 1),
    TEXT_FLOAT(routed_scaling_factor, 1e-6, 1e6),
    TEXT_FLOAT(swiglu_limit, 1e-6, 1e6),
    TEXT_FLOAT(rms_norm_eps, 1e-37, 1), /* a float32 above zero, or a row of zeros would give NaN */
    TEXT_INT(sliding_window, ALWAYS, 1, WIDTH),
    TEXT_INT(candidate_topk_blocks, WITH_CANDIDATES, 1, WIDTH),
    TEXT_INT(candidate_block_size, WITH_CANDIDATES, 1, 1024),
    TEXT_INT(index_n_heads, ALWAYS, 1, 1024),
    TEXT_INT(index_head_dim, ALWAYS, 32, 4096),
    TEXT_INT(index_topk, ALWAYS, 1, WIDTH),
    TEXT_DOUBLE(rope_theta, 1.0001, 1e12),
    TEXT_DOUBLE(compress_rope_theta, 1.0001, 1e12),
    TEXT_INT(max_position_embeddings, ALWAYS, 1, POSITIONS),
    TEXT_INT(hc_mult, ALWAYS, 1, MOST_STREAMS),
    TEXT_INT(hc_sinkhorn_iters, ALWAYS, 1, 1000),
    TEXT_FLOAT(hc_eps, 1e-37, 1),
    TEXT_INT(engram_max_ngram_size, WITH_ENGRAM, 2, MOST_ENGRAM_NGRAM),
    TEXT_INT(engram_n_heads, WITH_ENGRAM, 1, MOST_ENGRAM_COLUMNS),
    TEXT_INT(engram_head_dim, WITH_ENGRAM, 32, 4096),
    TEXT_INT(engram_pad_token_id, WITH_ENGRAM, 0, VOCABULARY - 1),
    TEXT_INT(engram_compressed_vocab_size, WITH_ENGRAM, 1, VOCABULARY),
    FIELD(struct model_config, engram_vocab_size, KIND_INT64, WITH_ENGRAM, 2, 1 << 30),
    TEXT_INT(dspark_block_size, WITH_DRAFTS, 1, 64),
    TEXT_INT(dspark_noise_token_id, WITH_DRAFTS, 0, VOCABULARY - 1),
    TEXT_INT(dspark_markov_rank, WITH_DRAFTS, 1, WIDTH),
    TEXT_INT(dspark_n_routed_experts, WITH_DRAFTS, 1, 4096),
    TEXT_INT(dspark_num_experts_per_tok, WITH_DRAFTS, 1, 64),
    TEXT_INT(bos_token_id, ALWAYS, 0, VOCABULARY - 1),
    TEXT_INT(eos_token_id, ALWAYS, 0, VOCABULARY - 1),
    TEXT_INT(pad_token_id, ALWAYS, 0, VOCABULARY - 1),
};

static const struct field yarn_fields[] = {
    YARN_DOUBLE(factor, 1, 1e6),
    YARN_DOUBLE(beta_fast, 1e-6, 1e6),
    YARN_DOUBLE(beta_slow, 1e-6, 1e6),
    FIELD(struct yarn_config, original_max_position_embeddings, KIND_INT32, ALWAYS, 1, POSITIONS),
};

static const struct field vision_fields[] = {
    VISION_INT(num_hidden_layers, 1, 1024),
    VISION_INT(hidden_size, 4, WIDTH),
    VISION_INT(num_attention_heads, 1, 1024),
    VISION_INT(intermediate_size, 1, WIDTH),
    VISION_INT(patch_size, 1, 256),
    VISION_INT(downsample_ratio, 1, 64),
    VISION_INT(min_pixels, 1, 1 << 30),
    VISION_INT(max_image_tokens, 1, 1 << 20),
    FIELD(struct vision_config, rope_theta, KIND_DOUBLE, ALWAYS, 1.0001, 1e12),
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static enum result fail_range(
    const struct section *section, const struct field *field, const char *type, const struct json *value) {
    char expected[96];
    if (field->least == field->most)
        snprintf(expected, sizeof expected, "%.10g", field->least);
    else
        snprintf(expected, sizeof expected, "%s from %.10g to %.10g", type, field->least, field->most);
    return fail_value(section, field->name, expected, value);
}

static enum result read_bool(const struct section *section, const char *name, bool *result) {
    const struct json *value = json_member(section->object, name);
    if (!value || (value->kind != JSON_TRUE && value->kind != JSON_FALSE))
        return fail_value(section, name, "true or false", value);
    *result = value->kind == JSON_TRUE;
    return OK;
}

static enum result read_integer(const struct section *section, const struct field *field, void *member) {
    const struct json *value = json_member(section->object, field->name);
    int64_t number;
    if (!json_int64(value, &number) || number < (int64_t)field->least || number > (int64_t)field->most)
        return fail_range(section, field, "an integer", value);
    if (field->kind == KIND_INT64)
        *(int64_t *)member = number;
    else
        *(int32_t *)member = (int32_t)number;
    return OK;
}

static enum result read_real(const struct section *section, const struct field *field, void *member) {
    const struct json *value = json_member(section->object, field->name);
    double number;
    if (!json_double(value, &number) || !(number >= field->least && number <= field->most))
        return fail_range(section, field, "a number", value);
    if (field->kind == KIND_FLOAT)
        *(float *)member = (float)number;
    else
        *(double *)member = number;
    return OK;
}

static enum result read_field(const struct section *section, const struct field *field, void *structure) {
    void *member = (char *)structure + field->offset;
    switch (field->kind) {
    case KIND_BOOL:
        return read_bool(section, field->name, member);
    case KIND_INT32:
    case KIND_INT64:
        return read_integer(section, field, member);
    case KIND_FLOAT:
    case KIND_DOUBLE:
        return read_real(section, field, member);
    }
    return OK;
}

/* ---- fields that have one accepted value, and names ---- */

static enum result check_text(
    const struct section *section, const char *name, const char *expected, bool required) {
    const struct json *value = json_member(section->object, name);
    if ((!value && !required) || json_is_text(value, expected))
        return OK;
    char text[96];
    snprintf(text, sizeof text, "\"%s\"", expected);
    return fail_value(section, name, text, value);
}

static bool is_listed(const struct json *member, const char *const *names) {
    for (; *names; names++)
        if (strlen(*names) == member->key_bytes && !memcmp(*names, member->key, member->key_bytes))
            return true;
    return false;
}

static bool is_field(const struct json *member, const struct field *fields, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strlen(fields[i].name) == member->key_bytes &&
            !memcmp(fields[i].name, member->key, member->key_bytes))
            return true;
    return false;
}

/* What training and tool kits leave in a configuration and what changes nothing here. */
static const char *const harmless_names[] = {"architectures", "model_type", "torch_dtype", "dtype",
    "transformers_version", "_name_or_path", "auto_map", "use_cache", "initializer_range", NULL};

static enum result check_names(const struct section *section, const struct field *fields, size_t count,
    const struct field *more, size_t more_count, const char *const *others) {
    for (const struct json *member = section->object->first; member; member = member->next) {
        if (!is_field(member, fields, count) && !is_field(member, more, more_count) &&
            !is_listed(member, others) && !is_listed(member, harmless_names))
            return fail(ERROR_INPUT,
                "%s: %s%.60s: unknown field: this engine does not know what it means for the computation. "
                "Remove "
                "it if it means nothing",
                section->path, section->prefix, member->key);
    }
    return OK;
}

static enum result find_section(const char *path, const struct json *root, const char *name,
    const char *prefix, struct section *section) {
    const struct json *object = json_member(root, name);
    *section = (struct section){path, prefix, object};
    if (!object || object->kind != JSON_OBJECT) {
        struct section top = {path, "", root};
        return fail_value(&top, name, "an object", object);
    }
    return OK;
}

/* ---- lists ---- */

/* Integers from `least` to `most`, at most `limit` of them. */
static enum result read_list(const struct section *section, const char *name, int64_t least, int64_t most,
    int32_t limit, int64_t *values, int32_t *count) {
    const struct json *list = json_member(section->object, name);
    char expected[96], place[96];
    if (!list || list->kind != JSON_ARRAY || list->count > (size_t)limit) {
        snprintf(expected, sizeof expected, "a list of at most %d integers", limit);
        return fail_value(section, name, expected, list);
    }
    *count = 0;
    for (const struct json *value = list->first; value; value = value->next) {
        if (!json_int64(value, &values[*count]) || values[*count] < least || values[*count] > most) {
            snprintf(
                expected, sizeof expected, "an integer from %lld to %lld", (long long)least, (long long)most);
            snprintf(place, sizeof place, "%s[%d]", name, *count);
            return fail_value(section, place, expected, value);
        }
        ++*count;
    }
    return OK;
}

/* Layer numbers in ascending order. */
static enum result read_layers(const struct section *section, const char *name,
    const struct model_config *config, int32_t limit, int32_t *layers, int32_t *count) {
    int64_t values[MOST_LAYERS];
    TRY(read_list(section, name, 0, config->num_hidden_layers - 1, limit, values, count));
    for (int32_t i = 0; i < *count; i++) {
        if (i > 0 && values[i] <= values[i - 1])
            return fail(ERROR_INPUT, "%s: %s%s: expected layers in ascending order, found %lld after %lld",
                section->path, section->prefix, name, (long long)values[i], (long long)values[i - 1]);
        layers[i] = (int32_t)values[i];
    }
    return OK;
}

static enum result read_compress_ratios(const struct section *section, struct model_config *config) {
    int64_t values[MOST_LAYERS];
    int32_t count, layers = config->num_hidden_layers, all = layers + config->n_mtp_layers;
    if (all > MOST_LAYERS)
        return fail(ERROR_INPUT,
            "%s: %snum_hidden_layers: expected at most %d layers with those of n_mtp_layers, found %d",
            section->path, section->prefix, MOST_LAYERS, all);
    TRY(read_list(section, "compress_ratios", 0, 2, MOST_LAYERS, values, &count));
    if (count != all)
        return fail(ERROR_INPUT,
            "%s: %scompress_ratios: expected %d entries (num_hidden_layers %d + n_mtp_layers %d), found %d",
            section->path, section->prefix, all, layers, config->n_mtp_layers, count);
    for (int32_t i = 0; i < all; i++) {
        if (i >= layers && values[i] != 0)
            return fail(ERROR_INPUT,
                "%s: %scompress_ratios[%d]: expected 0 for a draft layer (it sees its window only), found "
                "%lld",
                section->path, section->prefix, i, (long long)values[i]);
        config->compress_ratios[i] = (int32_t)values[i];
    }
    return OK;
}

static enum result read_engram_tables(const struct section *section, struct model_config *config) {
    int32_t count;
    TRY(read_list(section, "engram_num_embeddings", 1, INT32_MAX, MOST_ENGRAM_LAYERS,
        config->engram_num_embeddings, &count));
    if (count != config->engram_layers)
        return fail(ERROR_INPUT,
            "%s: %sengram_num_embeddings: expected one entry for each of the %d engram_layer_ids, found %d",
            section->path, section->prefix, config->engram_layers, count);
    return OK;
}

/* ---- contradictions ---- */

struct divisibility {
    const char *name, *divisor_name; /* NULL: the divisor is a block size of an encoding */
    int64_t value, divisor;
};

static enum result check_divisible(
    const struct section *section, const struct divisibility *checks, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const struct divisibility *check = &checks[i];
        if (check->value % check->divisor == 0)
            continue;
        const char *name = check->divisor_name ? check->divisor_name : "scale blocks and pairs";
        return fail(ERROR_INPUT, "%s: %s%s: expected a multiple of %lld (%s), found %lld", section->path,
            section->prefix, check->name, (long long)check->divisor, name, (long long)check->value);
    }
    return OK;
}

static enum result check_sizes(const struct section *section, const struct model_config *c) {
    const struct divisibility checks[] = {
        {"hidden_size", NULL, c->hidden_size, 32},
        {"moe_intermediate_size", NULL, c->moe_intermediate_size, 32},
        {"head_dim", NULL, c->head_dim, 32},
        {"qk_rope_head_dim", NULL, c->qk_rope_head_dim, 2},
        {"q_lora_rank", NULL, c->q_lora_rank, 32},
        {"index_head_dim", NULL, c->index_head_dim, 32},
        {"num_attention_heads", "o_groups", c->num_attention_heads, c->o_groups},
        {"o_groups * o_lora_rank", NULL, (int64_t)c->o_groups * c->o_lora_rank, 32},
        {"engram_head_dim", NULL, c->engram_head_dim, 32},
    };
    return check_divisible(section, checks, COUNT(checks));
}

struct limit {
    const char *name, *limit_name;
    int64_t value, limit;
};

static enum result check_limits(const struct section *section, const struct limit *checks, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (checks[i].value > checks[i].limit)
            return fail(ERROR_INPUT, "%s: %s%s: expected at most %lld (%s), found %lld", section->path,
                section->prefix, checks[i].name, (long long)checks[i].limit, checks[i].limit_name,
                (long long)checks[i].value);
    }
    return OK;
}

static enum result check_order(const struct section *section, const struct model_config *c) {
    int64_t last_id = c->vocab_size - 1;
    const struct limit checks[] = {
        {"qk_rope_head_dim", "head_dim", c->qk_rope_head_dim, c->head_dim},
        {"qk_rope_head_dim", "index_head_dim", c->qk_rope_head_dim, c->index_head_dim},
        {"num_experts_per_tok", "n_routed_experts", c->num_experts_per_tok, c->n_routed_experts},
        {"dspark_num_experts_per_tok", "dspark_n_routed_experts", c->dspark_num_experts_per_tok,
            c->dspark_n_routed_experts},
        {"engram_compressed_vocab_size", "vocab_size", c->engram_compressed_vocab_size, c->vocab_size},
        {"bos_token_id", "vocab_size - 1", c->bos_token_id, last_id},
        {"eos_token_id", "vocab_size - 1", c->eos_token_id, last_id},
        {"pad_token_id", "vocab_size - 1", c->pad_token_id, last_id},
        {"engram_pad_token_id", "vocab_size - 1", c->engram_pad_token_id, last_id},
        {"dspark_noise_token_id", "vocab_size - 1", c->dspark_noise_token_id, last_id},
    };
    return check_limits(section, checks, COUNT(checks));
}

/* A layer that attends to compressed rows takes them from the last kv source at or below it, and its choice of rows
 * from the last index source at or below it; that choice must have been made among those rows. */
static enum result check_sources(const struct section *section, const struct model_config *c) {
    int32_t rows_from = -1, choice_from = -1;
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++) {
        int32_t ratio = c->compress_ratios[layer];
        if (c->is_kv_source[layer] && !c->is_index_source[layer])
            return fail(ERROR_INPUT,
                "%s: %sindex_source_layer_ids: expected kv source layer %d in it (its rows are new), found "
                "it missing",
                section->path, section->prefix, layer);
        if (!ratio && c->is_index_source[layer])
            return fail(ERROR_INPUT, "%s: %scompress_ratios[%d]: expected 1 or 2 for a layer of %s, found 0",
                section->path, section->prefix, layer,
                c->is_kv_source[layer] ? "kv_source_layer_ids" : "index_source_layer_ids");
        if (c->is_kv_source[layer])
            rows_from = layer;
        if (c->is_index_source[layer])
            choice_from = layer;
        if (!ratio)
            continue;
        if (rows_from < 0 || choice_from < 0)
            return fail(ERROR_INPUT,
                "%s: %scompress_ratios[%d]: expected 0 for a layer below the first kv source, found %d",
                section->path, section->prefix, layer, ratio);
        if (ratio != c->compress_ratios[rows_from])
            return fail(ERROR_INPUT,
                "%s: %scompress_ratios[%d]: expected %d, the ratio of kv source layer %d whose rows it "
                "reads, found %d",
                section->path, section->prefix, layer, c->compress_ratios[rows_from], rows_from, ratio);
    }
    return OK;
}

static enum result check_candidate_source(const struct section *section, const struct model_config *c) {
    int32_t source = c->candidate_source_layer_id;
    if (source < 0)
        return OK;
    if (source >= c->num_hidden_layers || !c->is_index_source[source])
        return fail(ERROR_INPUT,
            "%s: %scandidate_source_layer_id: expected -1 or one of index_source_layer_ids, found %d",
            section->path, section->prefix, source);
    if (c->last_kv_source > source)
        return fail(ERROR_INPUT,
            "%s: %skv_source_layer_ids: expected none above candidate_source_layer_id %d (candidates are "
            "blocks of "
            "its rows), found %d",
            section->path, section->prefix, source, c->last_kv_source);
    return OK;
}

static enum result check_engram(const struct section *section, const struct model_config *c) {
    if (c->engram_layers == 0)
        return OK;
    if ((int64_t)(c->engram_max_ngram_size - 1) * c->engram_n_heads > MOST_ENGRAM_COLUMNS)
        return fail(ERROR_INPUT,
            "%s: %sengram_n_heads: expected (engram_max_ngram_size - 1) * engram_n_heads of at most %d, "
            "found %d",
            section->path, section->prefix, MOST_ENGRAM_COLUMNS, engram_columns(c));
    struct engram_hash hash;
    engram_hash_prepare(&hash, c, 0);
    for (int32_t i = 0; i < c->engram_layers; i++) {
        int64_t rows = engram_hash_table_rows(&hash, i);
        if (c->engram_num_embeddings[i] != rows)
            return fail(ERROR_INPUT,
                "%s: %sengram_num_embeddings[%d]: expected %lld, the sum of the layer's primes, found %lld",
                section->path, section->prefix, i, (long long)rows, (long long)c->engram_num_embeddings[i]);
    }
    return OK;
}

/* ---- sections ---- */

static const char *const text_names[] = {"compress_ratios", "kv_source_layer_ids", "index_source_layer_ids",
    "candidate_source_layer_id", "rope_scaling", "engram_layer_ids", "engram_num_embeddings",
    "dspark_target_layer_ids", "num_key_value_heads", "scoring_func", "topk_method",
    "num_nextn_predict_layers", "tie_word_embeddings", "hidden_act", "attention_bias", NULL};

static enum result check_fixed_integer(
    const struct section *section, const char *name, int64_t expected, bool required) {
    const struct json *value = json_member(section->object, name);
    int64_t number;
    if ((!value && !required) || (json_int64(value, &number) && number == expected))
        return OK;
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)expected);
    return fail_value(section, name, text, value);
}

static enum result check_false(const struct section *section, const char *name) {
    const struct json *value = json_member(section->object, name);
    return !value || value->kind == JSON_FALSE ? OK : fail_value(section, name, "false", value);
}

/* What other models of the family choose otherwise, and this engine computes in one way only. */
static enum result check_fixed(const struct section *section, const struct model_config *config) {
    TRY(check_text(section, "model_type", "deepseek_v41_text", false));
    TRY(check_text(section, "scoring_func", "sqrtsoftplus", true));
    TRY(check_text(section, "topk_method", "noaux_tc", true));
    TRY(check_text(section, "hidden_act", "silu", false));
    TRY(check_fixed_integer(section, "num_key_value_heads", 1, true));
    TRY(check_fixed_integer(section, "num_nextn_predict_layers", config->n_mtp_layers, false));
    TRY(check_false(section, "attention_bias"));
    return check_false(section, "tie_word_embeddings");
}

static enum result read_sources(const struct section *section, struct model_config *config) {
    int32_t layers[MOST_LAYERS] = {0}, count = 0;
    TRY(read_layers(section, "kv_source_layer_ids", config, MOST_LAYERS, layers, &count));
    for (int32_t i = 0; i < count; i++)
        config->is_kv_source[layers[i]] = true;
    config->last_kv_source = count ? layers[count - 1] : -1;
    TRY(read_layers(section, "index_source_layer_ids", config, MOST_LAYERS, layers, &count));
    for (int32_t i = 0; i < count; i++)
        config->is_index_source[layers[i]] = true;
    config->candidate_source_layer_id = -1;
    const struct json *source = json_member(section->object, "candidate_source_layer_id");
    if (!source || source->kind == JSON_NULL)
        return OK;
    struct field field =
        TEXT_INT(candidate_source_layer_id, ALWAYS, -1, (double)config->num_hidden_layers - 1);
    return read_field(section, &field, config);
}

static enum result read_rope_scaling(const struct section *text, struct model_config *config) {
    static const char *const names[] = {"type", "rope_type", NULL};
    struct section section;
    TRY(find_section(text->path, text->object, "rope_scaling", "text_config.rope_scaling.", &section));
    TRY(check_names(&section, yarn_fields, COUNT(yarn_fields), NULL, 0, names));
    bool has_type = json_member(section.object, "type");
    TRY(check_text(&section, "type", "yarn", !json_member(section.object, "rope_type")));
    TRY(check_text(&section, "rope_type", "yarn", !has_type));
    for (size_t i = 0; i < COUNT(yarn_fields); i++)
        TRY(read_field(&section, &yarn_fields[i], &config->rope_scaling));
    if (config->rope_scaling.beta_slow >= config->rope_scaling.beta_fast)
        return fail(ERROR_INPUT, "%s: %sbeta_slow: expected less than beta_fast %g, found %g", section.path,
            section.prefix, config->rope_scaling.beta_fast, config->rope_scaling.beta_slow);
    return OK;
}

static bool is_needed(const struct field *field, const struct model_config *config) {
    switch (field->need) {
    case ALWAYS:
        return true;
    case WITH_CANDIDATES:
        return config->candidate_source_layer_id >= 0;
    case WITH_ENGRAM:
        return config->engram_layers > 0;
    case WITH_DRAFTS:
        return config->n_mtp_layers > 0;
    }
    return true;
}

static enum result read_text(const char *path, const struct json *root, struct model_config *config) {
    struct section section;
    TRY(find_section(path, root, "text_config", "text_config.", &section));
    TRY(check_names(
        &section, text_fields, COUNT(text_fields), structure_fields, COUNT(structure_fields), text_names));
    for (size_t i = 0; i < COUNT(structure_fields); i++)
        TRY(read_field(&section, &structure_fields[i], config));
    TRY(check_fixed(&section, config));
    TRY(read_compress_ratios(&section, config));
    TRY(read_sources(&section, config));
    TRY(read_layers(&section, "engram_layer_ids", config, MOST_ENGRAM_LAYERS, config->engram_layer_ids,
        &config->engram_layers));
    for (size_t i = 0; i < COUNT(text_fields); i++)
        if (is_needed(&text_fields[i], config))
            TRY(read_field(&section, &text_fields[i], config));
    TRY(read_rope_scaling(&section, config));
    if (config->engram_layers > 0)
        TRY(read_engram_tables(&section, config));
    if (config->n_mtp_layers > 0)
        TRY(read_layers(&section, "dspark_target_layer_ids", config, MOST_LAYERS,
            config->dspark_target_layer_ids, &config->dspark_target_layers));
    if (config->n_mtp_layers > 0 && config->dspark_target_layers == 0)
        return fail(ERROR_INPUT,
            "%s: %sdspark_target_layer_ids: expected a layer at least (drafts read them), found none", path,
            section.prefix);
    TRY(check_sizes(&section, config));
    TRY(check_order(&section, config));
    TRY(check_sources(&section, config));
    TRY(check_candidate_source(&section, config));
    return check_engram(&section, config);
}

static enum result read_vision(const char *path, const struct json *root, struct vision_config *vision) {
    static const char *const names[] = {"hidden_act", NULL};
    const struct json *object = json_member(root, "vision_config");
    if (!object || object->kind == JSON_NULL)
        return OK;
    struct section section;
    TRY(find_section(path, root, "vision_config", "vision_config.", &section));
    TRY(check_names(&section, vision_fields, COUNT(vision_fields), NULL, 0, names));
    TRY(check_text(&section, "hidden_act", "silu", false));
    for (size_t i = 0; i < COUNT(vision_fields); i++)
        TRY(read_field(&section, &vision_fields[i], vision));
    vision->present = true;
    /* A head's columns turn by row in one half and by column in the other, each half in pairs. */
    const struct divisibility checks[] = {
        {"hidden_size", "num_attention_heads", vision->hidden_size, vision->num_attention_heads},
        {"hidden_size", "four columns for each of num_attention_heads", vision->hidden_size,
            4 * (int64_t)vision->num_attention_heads},
    };
    return check_divisible(&section, checks, COUNT(checks));
}

static enum result read_quantization(const char *path, const struct json *root) {
    static const char *const names[] = {
        "quant_method", "weight_block_size", "scale_fmt", "expert_dtype", "fmt", "activation_scheme", NULL};
    const struct json *object = json_member(root, "quantization_config");
    if (!object || object->kind == JSON_NULL)
        return OK; /* the tensors' own types tell the encoding */
    struct section section;
    TRY(find_section(path, root, "quantization_config", "quantization_config.", &section));
    TRY(check_names(&section, NULL, 0, NULL, 0, names));
    TRY(check_text(&section, "quant_method", "fp8", true));
    TRY(check_text(&section, "scale_fmt", "ue8m0", true));
    TRY(check_text(&section, "expert_dtype", "fp4", true));
    TRY(check_text(&section, "fmt", "e4m3", false));
    TRY(check_text(&section, "activation_scheme", "dynamic", false));
    int64_t block[2];
    int32_t count = 0;
    TRY(read_list(&section, "weight_block_size", 32, 32, 2, block, &count));
    if (count != 2)
        return fail(ERROR_INPUT, "%s: %sweight_block_size: expected [32, 32], found a list of %d", path,
            section.prefix, count);
    return OK;
}

enum result model_config_read(const char *path, const struct json *root, struct model_config *config) {
    static const char *const names[] = {
        "text_config", "vision_config", "quantization_config", "image_token_id", NULL};
    struct section section = {path, "", root};
    if (root->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "%s: expected an object, found %s", path, json_kind_name(root));
    *config = (struct model_config){.image_token_id = -1};
    TRY(check_text(&section, "model_type", "deepseek_v41", true));
    TRY(check_names(&section, NULL, 0, NULL, 0, names));
    TRY(read_text(path, root, config));
    TRY(read_vision(path, root, &config->vision));
    TRY(read_quantization(path, root));
    const struct json *image = json_member(root, "image_token_id");
    if (!config->vision.present && (!image || image->kind == JSON_NULL))
        return OK;
    struct field field = TEXT_INT(image_token_id, ALWAYS, 0, (double)config->vocab_size - 1);
    return read_field(&section, &field, config);
}

enum result model_config_parse(
    const char *path, const char *text, size_t bytes, struct model_config *config) {
    enum result status;
    struct json_document *document;
    const struct json *root;
    TRY(json_document_create(&document));
    status = json_parse(document, text, bytes, &root);
    if (status == OK)
        status = model_config_read(path, root, config);
    else
        status = fail_context(status, "%s", path);
    json_document_free(document);
    return status;
}

enum result model_file_check_size(const char *path, int64_t most) {
    struct stat status;
    if (stat(path, &status) < 0)
        return fail_errno(ERROR_IO, "%s: cannot read the file's size", path);
    if (status.st_size > most)
        return fail(ERROR_INPUT, "%s: expected at most %lld bytes, found %lld: this is another kind of file",
            path, (long long)most, (long long)status.st_size);
    return OK;
}

enum result model_config_load(const char *folder, struct model_config *config) {
    enum result status;
    struct json_document *document;
    const struct json *root;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/config.json", folder) >= (int)sizeof path)
        return fail(ERROR_INPUT, "%s: the path is too long", folder);
    TRY(model_file_check_size(path, FILE_BYTES));
    TRY(json_document_create(&document));
    TRY_GOTO(status, json_parse_file(document, path, &root), done);
    status = model_config_read(path, root, config);
done:
    json_document_free(document);
    return status;
}

/* What `nocturne inspect DIR` prints of a checkpoint. */
#include "model/checkpoint.h"

#include <string.h> /* strncmp, strstr */

/* ---- sizes ---- */

static const char *plural(int64_t count) {
    return count == 1 ? "" : "s";
}

/* "2-5, 8": the layers for which `is_in` holds. */
static void print_layers(
    FILE *out, const struct model_config *c, bool (*is_in)(const struct model_config *, int32_t)) {
    const char *separator = "";
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++) {
        if (!is_in(c, layer))
            continue;
        int32_t last = layer;
        while (last + 1 < c->num_hidden_layers && is_in(c, last + 1))
            last++;
        fprintf(out, last > layer ? "%s%d-%d" : "%s%d", separator, layer, last);
        separator = ", ";
        layer = last;
    }
    if (!*separator)
        fprintf(out, "none");
}

static bool is_window_only(const struct model_config *c, int32_t layer) {
    return c->compress_ratios[layer] == 0;
}

static bool is_ratio_1(const struct model_config *c, int32_t layer) {
    return c->compress_ratios[layer] == 1;
}

static bool is_ratio_2(const struct model_config *c, int32_t layer) {
    return c->compress_ratios[layer] == 2;
}

static bool is_kv_source(const struct model_config *c, int32_t layer) {
    return c->is_kv_source[layer];
}

static bool is_index_source(const struct model_config *c, int32_t layer) {
    return c->is_index_source[layer];
}

static bool is_engram_layer(const struct model_config *c, int32_t layer) {
    for (int32_t i = 0; i < c->engram_layers; i++)
        if (c->engram_layer_ids[i] == layer)
            return true;
    return false;
}

/* Bytes of compressed rows and index keys that one token adds to a sequence's state. */
static double global_bytes_per_token(const struct model_config *c) {
    double bytes = 0;
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++)
        if (c->is_kv_source[layer])
            bytes +=
                (double)(row_bytes(ROWS_FP4_FINE, c->head_dim) + row_bytes(ROWS_FP4, c->index_head_dim)) /
                c->compress_ratios[layer];
    return bytes;
}

static void print_layer_kinds(const struct model_config *c, FILE *out) {
    fprintf(out, "layers       %d: window only ", c->num_hidden_layers);
    print_layers(out, c, is_window_only);
    fprintf(out, "; a compressed row for 2 tokens ");
    print_layers(out, c, is_ratio_2);
    fprintf(out, "; for 1 token ");
    print_layers(out, c, is_ratio_1);
    fprintf(out, "\nsources      compressed rows at ");
    print_layers(out, c, is_kv_source);
    fprintf(out, "; choice of rows at ");
    print_layers(out, c, is_index_source);
    if (c->candidate_source_layer_id >= 0)
        fprintf(out, "; %d candidate blocks of %d rows from %d on", c->candidate_topk_blocks,
            c->candidate_block_size, c->candidate_source_layer_id);
    fprintf(out, "\n");
}

static void print_optional_parts(const struct model_config *c, FILE *out) {
    if (c->engram_layers > 0) {
        fprintf(out, "Engram       at layers ");
        print_layers(out, c, is_engram_layer);
        fprintf(out, ": %d rows of %d a token and layer; tables of", engram_columns(c), c->engram_head_dim);
        for (int32_t i = 0; i < c->engram_layers; i++)
            fprintf(out, "%s %lld", i ? "," : "", (long long)c->engram_num_embeddings[i]);
        fprintf(out, " rows\n");
    } else
        fprintf(out, "Engram       none\n");
    if (c->n_mtp_layers > 0)
        fprintf(out, "drafts       %d blocks, %d tokens a pass, %d experts, %d a token\n", c->n_mtp_layers,
            c->dspark_block_size, c->dspark_n_routed_experts, c->dspark_num_experts_per_tok);
    else
        fprintf(out, "drafts       none\n");
    const struct vision_config *v = &c->vision;
    if (v->present)
        fprintf(out,
            "vision       %d layers x %d, %d heads, patches of %d pixels, at most %d tokens an image\n",
            v->num_hidden_layers, v->hidden_size, v->num_attention_heads, v->patch_size, v->max_image_tokens);
    else
        fprintf(out, "vision       none\n");
}

static void print_sizes(const struct checkpoint *checkpoint, FILE *out) {
    const struct model_config *c = checkpoint_config(checkpoint);
    int64_t tensors = checkpoint_tensor_count(checkpoint);
    int32_t shards = checkpoint_shard_count(checkpoint);
    fprintf(out, "checkpoint   %s\n", checkpoint_folder(checkpoint));
    fprintf(out, "fingerprint  %s\n", checkpoint_fingerprint(checkpoint));
    fprintf(out, "size         %lld tensor%s in %d shard%s, %lld bytes\n", (long long)tensors,
        plural(tensors), shards, plural(shards), (long long)checkpoint_tensor_bytes(checkpoint));
    fprintf(out, "vocabulary   %d; begin %d, end %d, padding %d", c->vocab_size, c->bos_token_id,
        c->eos_token_id, c->pad_token_id);
    if (c->image_token_id >= 0)
        fprintf(out, ", image %d", c->image_token_id);
    fprintf(out, "\nhidden       %d, %d residual stream%s\n", c->hidden_size, c->hc_mult, plural(c->hc_mult));
    print_layer_kinds(c, out);
    fprintf(out, "attention    %d heads x %d (%d rotary), query rank %d, output %d groups x %d\n",
        c->num_attention_heads, c->head_dim, c->qk_rope_head_dim, c->q_lora_rank, c->o_groups,
        c->o_lora_rank);
    fprintf(out, "             window %d tokens; %d compressed rows chosen by %d index heads x %d\n",
        c->sliding_window, c->index_topk, c->index_n_heads, c->index_head_dim);
    fprintf(out, "context      %d tokens, %.10g bytes of compressed rows and index keys a token\n",
        c->max_position_embeddings, global_bytes_per_token(c));
    fprintf(out, "experts      %d routed, %d a token, %d shared, inner width %d\n", c->n_routed_experts,
        c->num_experts_per_tok, c->n_shared_experts, c->moe_intermediate_size);
    print_optional_parts(c, out);
}

/* ---- bytes by kind ---- */

enum part {
    PART_EMBEDDING,
    PART_ATTENTION,
    PART_EXPERTS,
    PART_SHARED_EXPERTS,
    PART_ROUTER,
    PART_STREAMS,
    PART_ENGRAM_TABLES,
    PART_ENGRAM,
    PART_NORMS,
    PART_DRAFTS,
    PART_VISION,
    PARTS
};

static const char *const part_names[PARTS] = {
    [PART_EMBEDDING] = "embedding and head",
    [PART_ATTENTION] = "attention",
    [PART_EXPERTS] = "routed experts",
    [PART_SHARED_EXPERTS] = "shared experts",
    [PART_ROUTER] = "router",
    [PART_STREAMS] = "residual streams",
    [PART_ENGRAM_TABLES] = "Engram tables",
    [PART_ENGRAM] = "Engram projections",
    [PART_NORMS] = "layer norms",
    [PART_DRAFTS] = "drafts",
    [PART_VISION] = "vision",
};

/* The first line whose text is in the name decides; names that begin with `layers.` match none of the first group. */
static enum part part_of(const char *name) {
    static const struct {
        const char *text;
        bool at_start;
        enum part part;
    } rules[] = {
        {"embed.", true, PART_EMBEDDING},
        {"head.", true, PART_EMBEDDING},
        {"mtp.", true, PART_DRAFTS},
        {"vision.", true, PART_VISION},
        {"aligner.", true, PART_VISION},
        {"image_", true, PART_VISION},
        {".engram.embed.", false, PART_ENGRAM_TABLES},
        {".engram.", false, PART_ENGRAM},
        {".experts.", false, PART_EXPERTS},
        {".shared_experts.", false, PART_SHARED_EXPERTS},
        {".gate.", false, PART_ROUTER},
        {".hc_", false, PART_STREAMS},
        {".attn.", false, PART_ATTENTION},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        bool matches = rules[i].at_start ? !strncmp(name, rules[i].text, strlen(rules[i].text))
                                         : strstr(name, rules[i].text) != NULL;
        if (matches)
            return rules[i].part;
    }
    return PART_NORMS;
}

enum { DTYPES = TENSOR_I8 + 1 };

static void print_parts(const struct checkpoint *checkpoint, FILE *out) {
    struct {
        int64_t tensors, bytes;
    } sums[PARTS][DTYPES] = {0};
    for (int64_t i = 0; i < checkpoint_tensor_count(checkpoint); i++) {
        const struct tensor *tensor = checkpoint_tensor_at(checkpoint, i);
        enum part part = part_of(tensor->name);
        sums[part][tensor->dtype].tensors++;
        sums[part][tensor->dtype].bytes += tensor->bytes;
    }
    fprintf(out, "\n%-20s %-8s %8s %16s %7s\n", "part", "dtype", "tensors", "bytes", "share");
    double all = (double)checkpoint_tensor_bytes(checkpoint);
    for (int part = 0; part < PARTS; part++)
        for (int dtype = 0; dtype < DTYPES; dtype++)
            if (sums[part][dtype].tensors)
                fprintf(out, "%-20s %-8s %8lld %16lld %6.2f%%\n", part_names[part],
                    tensor_dtype_name((enum tensor_dtype)dtype), (long long)sums[part][dtype].tensors,
                    (long long)sums[part][dtype].bytes, 100 * (double)sums[part][dtype].bytes / all);
}

static void print_tensors(const struct checkpoint *checkpoint, FILE *out) {
    char shape[SHAPE_TEXT_BYTES];
    fprintf(out, "\n%-56s %-8s %-20s %14s  %s\n", "tensor", "dtype", "shape", "bytes", "shard");
    for (int64_t i = 0; i < checkpoint_tensor_count(checkpoint); i++) {
        const struct tensor *tensor = checkpoint_tensor_at(checkpoint, i);
        fprintf(out, "%-56s %-8s %-20s %14lld  %s\n", tensor->name, tensor_dtype_name(tensor->dtype),
            shape_text(tensor->dimensions, tensor->shape, shape), (long long)tensor->bytes,
            checkpoint_shard_name(checkpoint, tensor->shard));
    }
}

enum result checkpoint_print(const struct checkpoint *checkpoint, FILE *out, bool tensors) {
    print_sizes(checkpoint, out);
    print_parts(checkpoint, out);
    if (tensors)
        print_tensors(checkpoint, out);
    if (fflush(out) != 0 || ferror(out))
        return fail_errno(ERROR_IO, "cannot write the description of the checkpoint");
    return OK;
}

/* config.json, field by field: every fault is refused with a message that names the field. */
#include "model/config.h"
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NANO SOURCE_DIR "/inputs/nano"

static char *original; /* the text of nano's config.json */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 16);
    assert_true(fread(text, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return text;
}

/* ---- editing the text ---- */

/* The end of the JSON value at `at`: the next ',' or closing bracket of its own level. */
static char *value_end(char *at) {
    int depth = 0;
    for (;; at++) {
        if (!depth && (*at == ',' || *at == '}' || *at == ']'))
            return at;
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
    }
}

static char *find_key(char *from, const char *name) {
    char key[96];
    snprintf(key, sizeof key, "\"%s\":", name);
    char *at = strstr(from, key);
    if (!at)
        fail_msg("the test's file has no %s", name);
    return at;
}

/* A copy with the value of section.name (section "": the top level) replaced, or the field removed when NULL; or, for a name
 * that begins with '+', added. */
static char *edit(const char *text, const char *section, const char *name, const char *value) {
    size_t room = strlen(text) + (value ? strlen(value) : 0) + 256;
    char *source = strdup(text), *copy = calloc(1, room);
    char *from = *section ? find_key(source, section) : source;
    if (*name == '+') {
        char *brace = strchr(from, '{');
        snprintf(
            copy, room, "%.*s\"%s\": %s, %s", (int)(brace + 1 - source), source, name + 1, value, brace + 1);
    } else {
        char *key = find_key(from, name), *start = key + strlen(name) + 3, *end = value_end(start);
        if (value)
            snprintf(copy, room, "%.*s %s%s", (int)(start - source), source, value, end);
        else if (*end == ',')
            snprintf(copy, room, "%.*s%s", (int)(key - source), source, end + 1);
        else { /* the last member: the comma before it goes */
            char *comma = key;
            while (*comma != ',')
                comma--;
            snprintf(copy, room, "%.*s%s", (int)(comma - source), source, end);
        }
    }
    free(source);
    return copy;
}

static void expect_message(const char *text, const char *const *parts, int count) {
    struct model_config config;
    enum result status = model_config_parse("config.json", text, strlen(text), &config);
    if (status != ERROR_INPUT)
        fail_msg(
            "expected a refusal that says %s, found %s", parts[0], status == OK ? "OK" : failure_message());
    for (int i = 0; i < count; i++)
        if (!strstr(failure_message(), parts[i]))
            fail_msg("expected \"%s\" in: %s", parts[i], failure_message());
    assert_non_null(strstr(failure_message(), "config.json: "));
}

/* The edited file is refused; the message has the field's name and `more`. */
static void expect_refused(const char *section, const char *name, const char *value, const char *more) {
    char *text = edit(original, section, name, value);
    const char *parts[] = {name + (*name == '+'), more};
    expect_message(text, parts, 2);
    free(text);
}

static void expect_accepted(const char *text) {
    struct model_config config;
    if (model_config_parse("config.json", text, strlen(text), &config) != OK)
        fail_msg("%s", failure_message());
}

static void expect_edit_accepted(const char *section, const char *name, const char *value) {
    char *text = edit(original, section, name, value);
    expect_accepted(text);
    free(text);
}

/* ---- tests ---- */

static void test_loads(void **state) {
    (void)state;
    struct model_config c;
    assert_int_equal(model_config_load(NANO, &c), OK);
    assert_int_equal(c.vocab_size, 3072);
    assert_int_equal(c.num_hidden_layers, 10);
    assert_int_equal(c.q_lora_rank, 96);
    assert_true(c.norm_topk_prob);
    assert_true(c.rms_norm_eps == 1e-20f);
    assert_true(c.routed_scaling_factor == 1.5f);
    assert_true(c.compress_rope_theta == 160000);
    assert_true(c.rope_scaling.factor == 16);
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 256);
    assert_int_equal(c.compress_ratios[2], 2);
    assert_int_equal(c.compress_ratios[9], 1);
    assert_true(c.is_kv_source[6] && !c.is_kv_source[8] && c.is_index_source[8]);
    assert_int_equal(c.last_kv_source, 6);
    assert_int_equal(c.candidate_source_layer_id, 6);
    assert_int_equal(c.engram_layers, 2);
    assert_int_equal(c.engram_layer_ids[1], 4);
    assert_int_equal(c.engram_num_embeddings[1], 18428);
    assert_int_equal(c.dspark_target_layers, 3);
    assert_int_equal(c.dspark_target_layer_ids[2], 9);
    assert_true(c.vision.present);
    assert_int_equal(c.vision.hidden_size, 64);
    assert_int_equal(c.image_token_id, 3071);
    assert_int_equal(model_config_load(SOURCE_DIR "/tests/data/tiny/checkpoint", &c), OK);
    assert_int_equal(model_config_load(SOURCE_DIR "/tests", &c), ERROR_IO);
    assert_non_null(strstr(failure_message(), "config.json"));
}

/* Every number: missing, of a wrong type, below and above its range. */
static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *section, *name, *below, *above;
    } cases[] = {
        {"text_config", "vocab_size", "3", "16777217"},
        {"text_config", "hidden_size", "0", "1000000"},
        {"text_config", "moe_intermediate_size", "0", "1000000"},
        {"text_config", "num_hidden_layers", "0", "129"},
        {"text_config", "num_attention_heads", "0", "100000"},
        {"text_config", "num_key_value_heads", "0", "2"},
        {"text_config", "head_dim", "0", "100000"},
        {"text_config", "qk_rope_head_dim", "0", "5000"},
        {"text_config", "q_lora_rank", "-96", "1000000"},
        {"text_config", "o_groups", "0", "2000"},
        {"text_config", "o_lora_rank", "0", "1000000"},
        {"text_config", "n_routed_experts", "0", "5000"},
        {"text_config", "n_shared_experts", "0", "2"},
        {"text_config", "num_experts_per_tok", "0", "65"},
        {"text_config", "routed_scaling_factor", "0", "1e7"},
        {"text_config", "swiglu_limit", "-10", "1e7"},
        {"text_config", "rms_norm_eps", "1e-50", "2"},
        {"text_config", "sliding_window", "0", "100000"},
        {"text_config", "candidate_topk_blocks", "0", "100000"},
        {"text_config", "candidate_block_size", "0", "100000"},
        {"text_config", "index_n_heads", "0", "100000"},
        {"text_config", "index_head_dim", "0", "100000"},
        {"text_config", "index_topk", "0", "100000"},
        {"text_config", "rope_theta", "1", "1e13"},
        {"text_config", "compress_rope_theta", "-1", "1e13"},
        {"text_config", "max_position_embeddings", "0", "4294967296"},
        {"text_config", "hc_mult", "0", "9"},
        {"text_config", "hc_sinkhorn_iters", "0", "10000"},
        {"text_config", "hc_eps", "0", "2"},
        {"text_config", "engram_max_ngram_size", "1", "9"},
        {"text_config", "engram_n_heads", "0", "65"},
        {"text_config", "engram_head_dim", "0", "100000"},
        {"text_config", "engram_pad_token_id", "-1", "99999999"},
        {"text_config", "engram_compressed_vocab_size", "0", "99999999"},
        {"text_config", "engram_vocab_size", "1", "9223372036854775808"},
        {"text_config", "n_mtp_layers", "-1", "17"},
        {"text_config", "dspark_block_size", "0", "65"},
        {"text_config", "dspark_noise_token_id", "-1", "99999999"},
        {"text_config", "dspark_markov_rank", "0", "100000"},
        {"text_config", "dspark_n_routed_experts", "0", "5000"},
        {"text_config", "dspark_num_experts_per_tok", "0", "65"},
        {"text_config", "bos_token_id", "-1", "99999999"},
        {"text_config", "eos_token_id", "-1", "99999999"},
        {"text_config", "pad_token_id", "-1", "99999999"},
        {"rope_scaling", "factor", "0.5", "1e7"},
        {"rope_scaling", "beta_fast", "0", "1e7"},
        {"rope_scaling", "beta_slow", "0", "1e7"},
        {"rope_scaling", "original_max_position_embeddings", "0", "4294967296"},
        {"vision_config", "num_hidden_layers", "0", "5000"},
        {"vision_config", "hidden_size", "0", "100000"},
        {"vision_config", "num_attention_heads", "0", "5000"},
        {"vision_config", "intermediate_size", "0", "100000"},
        {"vision_config", "patch_size", "0", "257"},
        {"vision_config", "downsample_ratio", "0", "65"},
        {"vision_config", "min_pixels", "0", "4294967296"},
        {"vision_config", "max_image_tokens", "0", "4294967296"},
        {"vision_config", "rope_theta", "1", "1e13"},
        {"", "image_token_id", "-1", "3072"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *section = cases[i].section, *name = cases[i].name;
        expect_refused(section, name, NULL, "found no such field");
        expect_refused(section, name, "\"12\"", "found \"12\"");
        expect_refused(section, name, "null", "found null");
        expect_refused(section, name, "[1]", "found a list of 1");
        expect_refused(section, name, cases[i].below, cases[i].below);
        expect_refused(section, name, cases[i].above, cases[i].above);
    }
    expect_refused("text_config", "head_dim", "64.0", "expected an integer from 32 to 4096, found 64.0");
    expect_refused("text_config", "head_dim", "true", "found true");
}

static void test_words(void **state) {
    (void)state;
    expect_refused("", "model_type", "\"deepseek_v3\"", "expected \"deepseek_v41\", found \"deepseek_v3\"");
    expect_refused("", "model_type", NULL, "found no such field");
    expect_refused("text_config", "model_type", "\"llama\"", "llama");
    expect_refused(
        "text_config", "scoring_func", "\"softmax\"", "expected \"sqrtsoftplus\", found \"softmax\"");
    expect_refused("text_config", "scoring_func", NULL, "no such field");
    expect_refused("text_config", "topk_method", "\"greedy\"", "noaux_tc");
    expect_refused("text_config", "topk_method", NULL, "no such field");
    expect_refused("text_config", "norm_topk_prob", "1", "expected true or false, found 1");
    expect_refused("text_config", "norm_topk_prob", NULL, "no such field");
    expect_refused("text_config", "tie_word_embeddings", "true", "expected false, found true");
    expect_refused("text_config", "num_nextn_predict_layers", "2", "expected 3, found 2");
    expect_refused("rope_scaling", "type", "\"linear\"", "expected \"yarn\"");
    expect_refused("rope_scaling", "type", NULL, "no such field");
    expect_refused("quantization_config", "quant_method", "\"gptq\"", "expected \"fp8\", found \"gptq\"");
    expect_refused("quantization_config", "scale_fmt", "\"fp32\"", "ue8m0");
    expect_refused("quantization_config", "expert_dtype", "\"fp8\"", "fp4");
    expect_refused("quantization_config", "weight_block_size", "[128, 128]", "weight_block_size[0]");
    expect_refused("quantization_config", "weight_block_size", "[32]", "expected [32, 32]");
    expect_refused("quantization_config", "+activation_scheme", "\"static\"", "dynamic");
}

static void test_structure(void **state) {
    (void)state;
    expect_refused("", "text_config", "3", "expected an object, found 3");
    expect_refused("", "vision_config", "[]", "expected an object");
    expect_refused("text_config", "rope_scaling", "null", "expected an object, found null");
    expect_refused("", "+mystery", "1", "unknown field");
    expect_refused(
        "text_config", "+attention_window_2", "1", "text_config.attention_window_2: unknown field");
    expect_refused("vision_config", "+mystery", "1", "vision_config.mystery: unknown field");
    expect_refused("rope_scaling", "+mscale", "1", "rope_scaling.mscale: unknown field");
    expect_refused("quantization_config", "+mystery", "1", "unknown field");
    static const char *const broken[] = {"", "[]", "3", "{", "{\"model_type\": \"deepseek_v41\"", "{}"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        expect_message(broken[i], (const char *const[]){"config.json"}, 1);
}

static void test_lists(void **state) {
    (void)state;
    static const char *const names[] = {"compress_ratios", "kv_source_layer_ids", "index_source_layer_ids",
        "engram_layer_ids", "engram_num_embeddings", "dspark_target_layer_ids"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        expect_refused("text_config", names[i], NULL, "no such field");
        expect_refused("text_config", names[i], "2", "expected a list");
        expect_refused("text_config", names[i], "{}", "expected a list");
        expect_refused("text_config", names[i], "[\"a\"]", "[0]: expected an integer");
        expect_refused("text_config", names[i], "[-1]", "found -1");
        expect_refused("text_config", names[i], "[1.5]", "found 1.5");
    }
    char *many = calloc(1, 4096);
    strcpy(many, "[0");
    for (int i = 0; i < 200; i++)
        strcat(many, ", 0");
    strcat(many, "]");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        expect_refused("text_config", names[i], many, "found a list of 201");
    free(many);
    expect_refused("text_config", "compress_ratios", "[0, 0, 2]", "expected 13 entries");
    expect_refused("text_config", "compress_ratios", "[0,0,2,2,2,2,1,1,1,1,0,0,1]", "compress_ratios[12]");
    expect_refused("text_config", "compress_ratios", "[0,0,3,2,2,2,1,1,1,1,0,0,0]", "from 0 to 2");
    expect_refused("text_config", "kv_source_layer_ids", "[2, 6, 4]", "found 4 after 6");
    expect_refused("text_config", "kv_source_layer_ids", "[2, 2]", "found 2 after 2");
    expect_refused("text_config", "index_source_layer_ids", "[2, 4, 6, 10]", "found 10");
    expect_refused("text_config", "engram_layer_ids", "[1]", "one entry for each of the 1");
    expect_refused("text_config", "dspark_target_layer_ids", "[]", "a layer at least");
}

/* Fields that are fine alone but not together. `first` names the field that the message blames. */
static void test_contradictions(void **state) {
    (void)state;
    static const struct {
        const char *section, *edited, *value, *first, *more;
    } cases[] = {
        {"text_config", "hidden_size", "100", "hidden_size", "a multiple of 32"},
        {"text_config", "moe_intermediate_size", "65", "moe_intermediate_size", "a multiple of 32"},
        {"text_config", "head_dim", "65", "head_dim", "a multiple of 32"},
        {"text_config", "qk_rope_head_dim", "15", "qk_rope_head_dim", "a multiple of 2"},
        {"text_config", "q_lora_rank", "97", "q_lora_rank", "a multiple of 32"},
        {"text_config", "index_head_dim", "48", "index_head_dim", "a multiple of 32"},
        {"text_config", "engram_head_dim", "48", "engram_head_dim", "a multiple of 32"},
        {"text_config", "num_attention_heads", "5", "num_attention_heads", "a multiple of 2 (o_groups)"},
        {"text_config", "o_lora_rank", "9", "o_groups * o_lora_rank", "found 18"},
        {"text_config", "qk_rope_head_dim", "66", "qk_rope_head_dim", "at most 64 (head_dim)"},
        {"text_config", "qk_rope_head_dim", "34", "qk_rope_head_dim", "at most 32 (index_head_dim)"},
        {"text_config", "num_experts_per_tok", "33", "num_experts_per_tok", "at most 32 (n_routed_experts)"},
        {"text_config", "dspark_num_experts_per_tok", "9", "dspark_num_experts_per_tok", "at most 8"},
        {"text_config", "vocab_size", "2000", "engram_compressed_vocab_size", "at most 2000 (vocab_size)"},
        {"text_config", "bos_token_id", "3072", "bos_token_id", "at most 3071"},
        {"text_config", "eos_token_id", "3072", "eos_token_id", "at most 3071"},
        {"text_config", "pad_token_id", "3072", "pad_token_id", "at most 3071"},
        {"text_config", "engram_pad_token_id", "3072", "engram_pad_token_id", "at most 3071"},
        {"text_config", "dspark_noise_token_id", "3072", "dspark_noise_token_id", "at most 3071"},
        {"text_config", "index_source_layer_ids", "[2, 6, 8]", "index_source_layer_ids", "layer 4"},
        {"text_config", "index_source_layer_ids", "[0, 2, 4, 6]", "compress_ratios[0]", "1 or 2"},
        {"text_config", "compress_ratios", "[0,1,2,2,2,2,1,1,1,1,0,0,0]", "compress_ratios[1]",
            "first kv source"},
        {"text_config", "compress_ratios", "[0,0,2,2,2,1,1,1,1,1,0,0,0]", "compress_ratios[5]", "expected 2"},
        {"text_config", "compress_ratios", "[0,0,2,2,2,2,0,1,1,1,0,0,0]", "compress_ratios[6]",
            "kv_source_layer_ids"},
        {"text_config", "candidate_source_layer_id", "7", "candidate_source_layer_id", "found 7"},
        {"text_config", "candidate_source_layer_id", "4", "kv_source_layer_ids", "found 6"},
        {"text_config", "candidate_source_layer_id", "-2", "candidate_source_layer_id", "found -2"},
        {"text_config", "n_mtp_layers", "2", "num_nextn_predict_layers", "expected 2"},
        {"text_config", "num_hidden_layers", "9", "compress_ratios", "expected 12 entries"},
        {"text_config", "num_hidden_layers", "126", "num_hidden_layers", "at most 128"},
        {"text_config", "engram_num_embeddings", "[18132, 18427]", "engram_num_embeddings[1]", "18428"},
        {"text_config", "engram_vocab_size", "3002", "engram_num_embeddings[0]", "sum of the layer's primes"},
        {"text_config", "engram_n_heads", "22", "engram_n_heads", "at most 64"},
        {"rope_scaling", "beta_slow", "32", "beta_slow", "less than beta_fast"},
        {"vision_config", "num_attention_heads", "3", "vision_config.hidden_size", "a multiple of 3"},
        {"vision_config", "hidden_size", "68", "vision_config.hidden_size", "a multiple of 16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = edit(original, cases[i].section, cases[i].edited, cases[i].value);
        expect_message(text, (const char *const[]){cases[i].first, cases[i].more}, 2);
        free(text);
    }
}

/* What may be absent, and what is not looked at when its part of the model is off. */
static void test_accepted(void **state) {
    (void)state;
    expect_accepted(original);
    expect_edit_accepted("", "quantization_config", NULL);
    expect_edit_accepted("", "architectures", NULL);
    expect_edit_accepted("", "+transformers_version", "\"4.60\"");
    expect_edit_accepted("text_config", "num_nextn_predict_layers", NULL);
    expect_edit_accepted("text_config", "tie_word_embeddings", NULL);
    expect_edit_accepted("text_config", "routed_scaling_factor", "2");
    expect_edit_accepted("text_config", "candidate_source_layer_id", "-1");
    expect_edit_accepted("text_config", "candidate_source_layer_id", NULL);
    expect_edit_accepted("quantization_config", "+fmt", "\"e4m3\"");

    char *no_engram = edit(original, "text_config", "engram_layer_ids", "[]");
    char *without = edit(no_engram, "text_config", "engram_head_dim", NULL);
    expect_accepted(without);
    free(without);
    free(no_engram);

    char *no_vision = edit(original, "", "vision_config", NULL);
    char *no_image = edit(no_vision, "", "image_token_id", NULL);
    expect_accepted(no_vision);
    expect_accepted(no_image);
    struct model_config config;
    assert_int_equal(model_config_parse("c", no_image, strlen(no_image), &config), OK);
    assert_false(config.vision.present);
    assert_int_equal(config.image_token_id, -1);
    free(no_image);
    free(no_vision);

    char *drafts = edit(original, "text_config", "n_mtp_layers", "0");
    char *count = edit(drafts, "text_config", "num_nextn_predict_layers", NULL);
    char *ratios = edit(count, "text_config", "compress_ratios", "[0,0,2,2,2,2,1,1,1,1]");
    char *targets = edit(ratios, "text_config", "dspark_target_layer_ids", NULL);
    expect_accepted(targets);
    free(targets);
    free(ratios);
    free(count);
    free(drafts);
}

/* No prefix of the file is accepted, and none crashes. */
static void test_truncated(void **state) {
    (void)state;
    size_t bytes = strlen(original);
    while (original[bytes - 1] != '}')
        bytes--;
    for (size_t cut = 0; cut < bytes; cut++) {
        struct model_config config;
        char *copy = malloc(cut ? cut : 1); /* exact, so that the sanitizer sees a read past the end */
        memcpy(copy, original, cut);
        assert_int_equal(model_config_parse("config.json", copy, cut, &config), ERROR_INPUT);
        free(copy);
    }
}

static int set_up(void **state) {
    (void)state;
    original = read_text(NANO "/config.json");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    free(original);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loads),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_structure),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_truncated),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

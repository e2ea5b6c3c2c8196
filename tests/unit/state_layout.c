/* Saved states at the published sizes: bytes a token, and the block layout's own arithmetic. */
#include "model/internals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h> /* free */
#include <string.h> /* strncmp */

#include <cmocka.h> /* needs the ones above */

/* The published configuration's sizes that matter to key/value rows. */
static struct model_config published(void) {
    struct model_config c = {.num_hidden_layers = 40,
        .head_dim = 512,
        .index_head_dim = 128,
        .sliding_window = 128,
        .hc_mult = 4,
        .hidden_size = 5120,
        .last_kv_source = 20};
    for (int l = 2; l < 40; l++)
        c.compress_ratios[l] = l < 20 ? 2 : 1;
    c.is_kv_source[2] = c.is_kv_source[8] = c.is_kv_source[14] = c.is_kv_source[20] = true;
    return c;
}

static void bytes_a_token(void **state) {
    (void)state;
    struct model_config c = published();
    struct model model = {.config = &c,
        .window_encoding = ROWS_FP8,
        .latent_encoding = ROWS_FP4_FINE,
        .key_encoding = ROWS_FP4};
    kv_layout_make(&model);
    assert_int_equal(state_sections_make(&model), OK);
    double bytes = 0;
    for (int i = 0; i < model.section_count; i++) {
        const struct state_section *s = &model.sections[i];
        int layer = s->name[strlen(s->name) - 1] == '0' ? 20 : 2;
        if (!strncmp(s->name, "latent", 6) || !strncmp(s->name, "index_key", 9))
            bytes += (double)s->row_bytes / c.compress_ratios[layer];
    }
    assert_true(bytes == 890);
    /* A block wastes little beside what its rows need. */
    double global = (double)model.kv.global_tokens * bytes;
    assert_true(global > 0.9 * (double)model.kv.block_bytes);
    assert_int_equal(model.kv.global_tokens % GLOBAL_BLOCK_STEP, 0);
    free(model.sections);
}

static void rows_do_not_overlap(void **state) {
    (void)state;
    struct model_config c = published();
    struct model model = {
        .config = &c, .window_encoding = ROWS_F32, .latent_encoding = ROWS_F32, .key_encoding = ROWS_F32};
    kv_layout_make(&model);
    int64_t end = 0;
    for (int l = 0; l < c.num_hidden_layers; l++) {
        const struct block_rows *kinds[] = {&model.kv.latent[l], &model.kv.index_key[l]};
        for (int i = 0; c.is_kv_source[l] && i < 2; i++) {
            assert_true(kinds[i]->offset >= end);
            end = kinds[i]->offset +
                  (int64_t)kinds[i]->rows_per_block * row_bytes(kinds[i]->encoding, kinds[i]->columns);
        }
    }
    assert_true(end <= model.kv.block_bytes);
    int64_t window = (int64_t)WINDOW_BLOCK_ROWS * c.num_hidden_layers * row_bytes(ROWS_F32, c.head_dim);
    assert_true(window <= model.kv.block_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_a_token), cmocka_unit_test(rows_do_not_overlap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Engram: n-gram rows fetched from the ranks that hold them, and their gated addition to the residual streams. */
#include "base/stopwatch.h"
#include "model/internals.h"

#include <string.h> /* memcpy, memmove */

void engram_hash_span(
    struct model *model, struct sequence *sequence, const int32_t *ids, int32_t count, int32_t at) {
    const struct model_config *c = model->config;
    struct step_memory *m = &model->lane->step;
    const int32_t *map = checkpoint_engram_token_map(model->checkpoint);
    int32_t past = sequence->history_count;
    int32_t *history = m->compressed_ids;
    memcpy(history, sequence->history, (size_t)past * sizeof *history);
    for (int32_t t = 0; t < count; t++)
        history[past + t] = ids[t] == c->image_token_id ? ENGRAM_BARRIER : map[ids[t]];
    int64_t columns = (int64_t)model->engram.layers * model->engram.columns;
    for (int32_t t = 0; t < count; t++)
        engram_hash_rows(&model->engram, history, past + t, m->engram_rows + (at + t) * columns);
    int32_t keep = c->engram_max_ngram_size - 1;
    if (keep > past + count)
        keep = past + count;
    memcpy(sequence->history, history + past + count - keep, (size_t)keep * sizeof *history);
    sequence->history_count = keep;
}

struct table_reader {
    const struct matrix *table;
};

/* Row layout: codes, then scales, as ROWS_FP8. */
static void read_rows(void *context, const int64_t *rows, int64_t n, void *out) {
    const struct matrix *table = ((const struct table_reader *)context)->table;
    int32_t columns = table->columns, scales = columns / 32;
    uint8_t *at = out;
    for (int64_t i = 0; i < n; i++, at += columns + scales) {
        memcpy(at, (const uint8_t *)table->values + rows[i] * columns, (size_t)columns);
        memcpy(at + columns, table->scales + rows[i] * scales, (size_t)scales);
    }
}

/* Fetches and uploads the rows of one layer. */
static enum result fetch_layer(struct model *model, int32_t slot, int32_t tokens) {
    const struct model_config *c = model->config;
    struct step_memory *m = &model->lane->step;
    int32_t columns = model->engram.columns;
    for (int32_t t = 0; t < tokens; t++)
        memcpy(m->engram_wanted + (int64_t)t * columns,
            m->engram_rows + ((int64_t)t * model->engram.layers + slot) * columns,
            sizeof(int64_t) * (size_t)columns);
    size_t bytes = (size_t)row_bytes(ROWS_FP8, c->engram_head_dim);
    int64_t count = (int64_t)tokens * columns;
    struct table_reader reader = {.table = &model->layers[c->engram_layer_ids[slot]].engram.table};
    TRY(exchange_fetch_rows(model->options.supernode, c->engram_num_embeddings[slot], bytes, m->engram_wanted,
        count, read_rows, &reader, m->engram_packed));
    if (count)
        model->kernels->copy_in(model->lane->stream, m->engram_codes + slot * m->engram_layer_bytes,
            m->engram_packed, bytes * (size_t)count);
    return OK;
}

MUST_CHECK enum result engram_prefetch(struct model *model, int32_t tokens) {
    enum work_part before = stopwatch_switch(WORK_ENGRAM);
    for (int32_t slot = 0; slot < model->config->engram_layers; slot++)
        TRY(fetch_layer(model, slot, tokens));
    (void)stopwatch_switch(before);
    return OK;
}

void engram_run(struct model *model, int32_t slot, const struct token_set *set) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    const struct engram_weights *w = &model->layers[c->engram_layer_ids[slot]].engram;
    if (!set->tokens)
        return;
    struct rows packed = {.data = m->engram_codes + slot * m->engram_layer_bytes,
        .encoding = ROWS_FP8,
        .columns = c->engram_head_dim,
        .stride = row_bytes(ROWS_FP8, c->engram_head_dim)};
    k->decode(model->lane->stream, &packed, set->tokens * model->engram.columns, m->found);
    k->encode(model->lane->stream, m->found, set->tokens, &m->found_rows);
    k->product(model->lane->stream, &m->found_rows, set->tokens, &w->wkv, m->engram_kv, w->wkv.rows);
    k->engram_add(model->lane->stream, m->engram_kv, w->q_weight, w->k_weight, set->is_image, set->tokens,
        c->hc_mult, c->hidden_size, c->rms_norm_eps, set->streams);
}

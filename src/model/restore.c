/* What goes into the prefix cache, and what comes back from it: compressed rows, and where replay begins. */
#include "model/internals.h"

#include <string.h> /* memcpy */

/* ---- packed rows ---- */

int64_t sequence_rows_bytes(const struct model *model, int32_t tokens) {
    const struct model_config *c = model->config;
    const struct kv_layout *kv = &model->kv;
    int64_t bytes = 0;
    for (int32_t l = 0; l < c->num_hidden_layers; l++)
        if (c->is_kv_source[l])
            bytes += (int64_t)(tokens / c->compress_ratios[l]) *
                     (row_bytes(kv->latent[l].encoding, c->head_dim) +
                         row_bytes(kv->index_key[l].encoding, c->index_head_dim));
    return bytes;
}

/* Copies the rows of tokens [first, first + count) of a packing that holds `packed_tokens`, from its first on. */
static void copy_packed(struct model *model, const struct sequence *sequence, int32_t first, int32_t count,
    int32_t packed_tokens, uint8_t *packed, enum row_direction direction) {
    const struct model_config *c = model->config;
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        if (!c->is_kv_source[l])
            continue;
        const struct block_rows *kinds[2] = {&model->kv.latent[l], &model->kv.index_key[l]};
        int32_t ratio = c->compress_ratios[l];
        for (int32_t i = 0; i < 2; i++) {
            int64_t bytes = row_bytes(kinds[i]->encoding, kinds[i]->columns);
            sequence_copy_rows(
                model, &sequence->global, kinds[i], first / ratio, count / ratio, packed, bytes, direction);
            packed += packed_tokens / ratio * bytes;
        }
    }
}

enum result sequence_rows_save(
    struct model *model, const struct sequence *sequence, int32_t first, int32_t count, uint8_t *packed) {
    if (first % 2 || count % 2 || first < 0 || count < 0 || first + count > sequence->length)
        return fail(ERROR_INTERNAL, "tokens %d to %d of a sequence of %d are no rows to cache", first,
            first + count, sequence->length);
    copy_packed(model, sequence, first, count, count, packed, ROWS_OUT);
    return model->kernels->synchronize(model->stream);
}

/* ---- replay ---- */

int32_t sequence_replay_begin(
    const struct model *model, int32_t hit, int32_t tail_begin, const struct replay *replay) {
    const struct model_config *c = model->config;
    int32_t end = replay->tail && tail_begin < hit ? tail_begin : hit;
    int64_t layers = replay->tail ? model->split_layer + 1 : c->num_hidden_layers;
    int64_t exact = layers * (c->sliding_window - 1);
    int64_t back = replay->bounded && replay->bounded < exact ? replay->bounded : exact;
    return back < end ? (int32_t)(end - back) / 2 * 2 : 0;
}

/* The compressed ids of the tokens before `begin`, that the first n-grams look back on. */
static void restore_history(struct model *model, struct sequence *sequence, const int32_t *ids) {
    const struct model_config *c = model->config;
    if (!c->engram_layers)
        return;
    const int32_t *map = checkpoint_engram_token_map(model->checkpoint);
    int32_t begin = sequence->length, keep = c->engram_max_ngram_size - 1;
    sequence->history_count = keep < begin ? keep : begin;
    for (int32_t i = 0; i < sequence->history_count; i++) {
        int32_t id = ids[begin - sequence->history_count + i];
        sequence->history[i] = id == c->image_token_id ? ENGRAM_BARRIER : map[id];
    }
}

static enum result load_rows(struct model *model, struct sequence *sequence, const struct restore *restore) {
    int64_t block_bytes = sequence_rows_bytes(model, restore->block_tokens);
    for (int32_t at = 0; at < restore->hit; at += restore->block_tokens) {
        int32_t left = restore->hit - at;
        int32_t count = left < restore->block_tokens ? left : restore->block_tokens;
        /* Only read from. */
        uint8_t *packed = (uint8_t *)restore->packed + at / restore->block_tokens * block_bytes;
        copy_packed(model, sequence, at, count, restore->block_tokens, packed, ROWS_IN);
    }
    return model->kernels->synchronize(model->stream);
}

enum result sequence_restore(struct model *model, const struct restore *restore, struct sequence **sequence) {
    if (restore->hit < 0 || restore->hit % 2 || restore->begin % 2 || restore->begin < 0 ||
        restore->begin > restore->hit || restore->hit >= model->options.context ||
        restore->block_tokens < 2 || restore->block_tokens % 2)
        return fail(ERROR_INPUT, "a hit of %d tokens, run again from %d, in blocks of %d does not fit",
            restore->hit, restore->begin, restore->block_tokens);
    struct sequence *new = NULL;
    TRY(sequence_create(model, &new));
    new->window.first = restore->begin / WINDOW_BLOCK_ROWS;
    enum result status = sequence_extend_rows(model, new, restore->hit);
    new->length = new->lower_begin = new->upper_begin = restore->begin;
    new->write_floor = restore->hit;
    new->is_approximate = restore->is_approximate;
    if (status == OK) {
        restore_history(model, new, restore->ids);
        status = load_rows(model, new, restore);
    }
    if (status != OK) {
        sequence_free(model, new);
        return status;
    }
    *sequence = new;
    return OK;
}

bool sequence_is_approximate(const struct sequence *sequence) {
    return sequence->is_approximate;
}

/* One step of the forward pass over a batch of sequences.
 *
 * The layers up to the last kv source run on all tokens of the step (the lower set); that layer's attention and the
 * layers above run on the upper set: the same tokens, except that a prompt prefilled with a tail has only its last
 * `tail` tokens there, and only in the step that ends it.
 */
#include "base/beacon.h"
#include "base/stopwatch.h"
#include "model/internals.h"

#include <string.h> /* memcpy */
#include <xxhash.h> /* XXH64 */

int32_t span_upper_tokens(const struct span *span) {
    if (!span->tail)
        return span->count;
    if (!span->last)
        return 0;
    int32_t total = sequence_length(span->sequence) + span->count;
    return total < span->tail ? total : span->tail;
}

/* ---- preparing the step ---- */

static enum result check_spans(const struct model *model, const struct span *spans, int32_t count) {
    int64_t lower = 0, upper = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct span *s = &spans[i];
        if (s->count < 1 || s->tail < 0 || s->tail > model->options.step_tokens || s->logits < 0 ||
            s->logits > span_upper_tokens(s) || s->sequence->length > model->options.context - s->count)
            return fail(ERROR_INTERNAL,
                "a span of %d tokens after %d (tail %d, %d logits) does not fit the step", s->count,
                s->sequence->length, s->tail, s->logits);
        lower += s->count;
        upper += span_upper_tokens(s);
    }
    if (lower > model->options.step_tokens || upper > model->options.step_tokens ||
        count > model->options.step_sequences)
        return fail(ERROR_INTERNAL,
            "a step of %d sequences, %lld and %lld tokens is larger than %d sequences, %d tokens", count,
            (long long)lower, (long long)upper, model->options.step_sequences, model->options.step_tokens);
    return OK;
}

static int32_t at_least(int32_t value, int32_t least) {
    return value > least ? value : least;
}

/* The arrays of one set, in host memory: first array of its four in host_i32. */
static void add_token(struct model *model, enum host_array first, int32_t at, int32_t sequence,
    int32_t position, const struct sequence *of) {
    int32_t **host = model->lane->step.host_i32;
    int32_t begin = position - model->config->sliding_window + 1;
    host[first][at] = sequence;
    host[first + 1][at] = position;
    host[first + 2][at] = at_least(begin, of->lower_begin);
    host[first + 3][at] = at_least(begin, of->upper_begin);
}

static void upload(struct model *model, void *device, const void *host, int64_t count, size_t bytes) {
    if (count)
        model->kernels->copy_in(model->lane->stream, device, host, (size_t)count * bytes);
}

static void upload_set(
    struct model *model, struct token_set *set, enum host_array first, const uint8_t *image) {
    int32_t **host = model->lane->step.host_i32;
    upload(model, set->sequence, host[first], set->tokens, sizeof(int32_t));
    upload(model, set->position, host[first + 1], set->tokens, sizeof(int32_t));
    upload(model, set->visible_from, host[first + 2], set->tokens, sizeof(int32_t));
    upload(model, set->visible_from_upper, host[first + 3], set->tokens, sizeof(int32_t));
    upload(model, set->is_image, image, set->tokens, 1);
}

static void prepare_lower(struct model *model, const struct span *spans, int32_t count) {
    struct step_memory *m = &model->lane->step;
    int32_t at = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct span *s = &spans[i];
        for (int32_t t = 0; t < s->count; t++) {
            m->host_image[at + t] = s->ids[t] == model->config->image_token_id;
            add_token(model, LOWER_SEQUENCE, at + t, i, s->sequence->length + t, s->sequence);
        }
        upload(model, m->ids + at, s->ids, s->count, sizeof(int32_t));
        if (model->config->engram_layers) {
            (void)stopwatch_switch(WORK_ENGRAM);
            engram_hash_span(model, s->sequence, s->ids, s->count, at);
            (void)stopwatch_switch(WORK_SCHEDULING);
        }
        at += s->count;
    }
    m->lower.tokens = at;
    upload_set(model, &m->lower, LOWER_SEQUENCE, m->host_image);
}

/* Positions and visibility of the upper set; its streams are gathered when the layers reach it. */
static void prepare_upper(struct model *model, const struct span *spans, int32_t count) {
    struct step_memory *m = &model->lane->step;
    int32_t at = 0, lower_at = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct span *s = &spans[i];
        struct sequence *sequence = s->sequence;
        int32_t n = span_upper_tokens(s), end = sequence->length + s->count;
        if (s->tail && s->last)
            sequence->upper_begin = end - n;
        for (int32_t t = 0; t < n; t++, at++) {
            int32_t position = end - n + t;
            int32_t from_span = position - sequence->length;
            add_token(model, UPPER_SEQUENCE, at, i, position, sequence);
            m->host_image_upper[at] = from_span >= 0 ? m->host_image[lower_at + from_span]
                                                     : sequence->waiting_image[sequence->waiting + from_span];
        }
        lower_at += s->count;
    }
    m->upper.tokens = at;
    upload_set(model, &m->upper, UPPER_SEQUENCE, m->host_image_upper);
}

/* Whether the step is of a kind that a device may record: it decodes one token of each sequence. Its tables are then a little wider
 * than needed and its lists as long as they could be, so that its shape stays the same for many steps. */
static bool is_repeatable(const struct model *model, const struct span *spans, int32_t count) {
    if (!model->kernels->record_begin || model->trace)
        return false;
    for (int32_t i = 0; i < count; i++)
        if (spans[i].count != 1 || spans[i].tail || spans[i].embeddings || spans[i].logits != 1)
            return false;
    return true;
}

static int32_t rounded_up(int32_t value, int32_t step, int32_t most) {
    int32_t rounded = (value + step - 1) / step * step;
    return rounded < most ? rounded : at_least(value, most);
}

/* Gives the step's sequences blocks for their new tokens. */
static enum result extend_sequences(
    struct model *model, const struct span *spans, int32_t count, bool is_padded) {
    struct step_memory *m = &model->lane->step;
    m->window_stride = m->global_stride = 0;
    for (int32_t i = 0; i < count; i++) {
        struct sequence *s = spans[i].sequence;
        TRY(sequence_extend(model, s, spans[i].count));
        m->window_stride = at_least(m->window_stride, s->window.count);
        m->global_stride = at_least(m->global_stride, s->global.count);
    }
    if (is_padded) {
        m->window_stride = rounded_up(m->window_stride, 8, m->window_most);
        m->global_stride = rounded_up(m->global_stride, 64, m->global_most);
    }
    if (m->window_stride > m->window_most || m->global_stride > m->global_most)
        return fail(ERROR_INTERNAL, "a sequence has %d and %d blocks, more than a step's tables hold",
            m->window_stride, m->global_stride);
    return OK;
}

/* The copies of one ratio-2 source: see pair_rows. Of a span's rows, the first completes the sequence's open group when its
 * length is odd, and the last stays open when their sum is. */
static void list_row_copies(
    struct model *model, const struct span *spans, int32_t count, int32_t slot, bool is_padded) {
    struct step_memory *m = &model->lane->step;
    int64_t d = model->config->head_dim, from = 0, to = 0;
    struct row_copy *list = m->host_row_copies + (int64_t)slot * m->row_copies_most, *next = list;
    for (int32_t i = 0; i < count; from += spans[i++].count) {
        const struct sequence *s = spans[i].sequence;
        const float *open = s->open_groups + slot * 2 * d;
        int32_t odd = s->length % 2, paired = (odd + spans[i].count) / 2 * 2;
        for (int32_t r = 0; r < paired; r++, to++) {
            bool is_open = odd && r == 0;
            int64_t row = from + r - odd;
            *next++ = (struct row_copy){m->pair_kv + to * d, is_open ? open : m->compress_kv + row * d};
            *next++ =
                (struct row_copy){m->pair_gate + to * d, is_open ? open + d : m->compress_gate + row * d};
        }
    }
    while (is_padded && next < list + 4 * count)
        *next++ = (struct row_copy){NULL, NULL};
    m->pair_copies = (int32_t)(next - list);
    from = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct sequence *s = spans[i].sequence;
        float *open = s->open_groups + slot * 2 * d;
        from += spans[i].count;
        if ((s->length + spans[i].count) % 2 == 0)
            continue;
        *next++ = (struct row_copy){open, m->compress_kv + (from - 1) * d};
        *next++ = (struct row_copy){open + d, m->compress_gate + (from - 1) * d};
    }
    while (is_padded && next < list + 6 * count)
        *next++ = (struct row_copy){NULL, NULL};
    m->open_copies = (int32_t)(next - list) - m->pair_copies;
}

/* Block tables of the step's sequences and the ratio-2 groups that the step completes. */
static enum result prepare_tables(
    struct model *model, const struct span *spans, int32_t count, bool is_padded, int32_t *groups) {
    struct step_memory *m = &model->lane->step;
    int32_t n = 0;
    TRY(extend_sequences(model, spans, count, is_padded));
    for (int32_t i = 0; i < count; i++) {
        const struct sequence *s = spans[i].sequence;
        memcpy(m->host_window + (int64_t)i * m->window_stride, s->window.blocks,
            sizeof(int32_t) * (size_t)s->window.count);
        memcpy(m->host_global + (int64_t)i * m->global_stride, s->global.blocks,
            sizeof(int32_t) * (size_t)s->global.count);
        m->host_i32[WINDOW_FIRST][i] = s->window.first;
        m->host_i32[GLOBAL_FIRST][i] = s->global.first;
        m->host_i32[WRITE_FLOOR][i] = s->write_floor;
        m->host_i32[GROUP_WRITE_FLOOR][i] = s->write_floor / 2;
        for (int32_t g = s->length / 2; g < (s->length + spans[i].count) / 2; g++, n++) {
            m->host_i32[GROUP_SEQUENCE][n] = i;
            m->host_i32[GROUP_ROW][n] = g;
            m->host_i32[GROUP_POSITION][n] = 2 * g;
        }
    }
    for (; is_padded && n < count; n++) {
        m->host_i32[GROUP_SEQUENCE][n] = m->host_i32[GROUP_POSITION][n] = 0;
        m->host_i32[GROUP_ROW][n] = -1; /* not stored */
    }
    for (int32_t slot = 0; slot < model->ratio2_sources; slot++) {
        int64_t at = (int64_t)slot * m->row_copies_most;
        list_row_copies(model, spans, count, slot, is_padded);
        upload(model, m->row_copies + at, m->host_row_copies + at, m->pair_copies + m->open_copies,
            sizeof(struct row_copy));
    }
    upload(model, m->window_blocks, m->host_window, (int64_t)count * m->window_stride, sizeof(int32_t));
    upload(model, m->global_blocks, m->host_global, (int64_t)count * m->global_stride, sizeof(int32_t));
    upload(model, m->window_first, m->host_i32[WINDOW_FIRST], count, sizeof(int32_t));
    upload(model, m->global_first, m->host_i32[GLOBAL_FIRST], count, sizeof(int32_t));
    upload(model, m->write_floor, m->host_i32[WRITE_FLOOR], count, sizeof(int32_t));
    upload(model, m->group_write_floor, m->host_i32[GROUP_WRITE_FLOOR], count, sizeof(int32_t));
    upload(model, m->group_sequence, m->host_i32[GROUP_SEQUENCE], n, sizeof(int32_t));
    upload(model, m->group_row, m->host_i32[GROUP_ROW], n, sizeof(int32_t));
    upload(model, m->group_position, m->host_i32[GROUP_POSITION], n, sizeof(int32_t));
    *groups = n;
    return OK;
}

/* ---- the pieces of a layer ---- */

static struct rows plain_rows(const float *x, int32_t columns) {
    return (struct rows){
        .data = (void *)x, .encoding = ROWS_F32, .columns = columns, .stride = (int64_t)columns * 4};
}

static void linear(
    struct model *model, const struct rows *x, int32_t tokens, const struct matrix *w, float *out) {
    model->kernels->product(model->lane->stream, x, tokens, w, out, w->rows);
}

static struct block_tables window_tables(const struct model *model) {
    const struct step_memory *m = &model->lane->step;
    return (struct block_tables){
        .blocks = m->window_blocks, .first_block = m->window_first, .stride = m->window_stride};
}

static struct block_tables global_tables(const struct model *model) {
    const struct step_memory *m = &model->lane->step;
    return (struct block_tables){
        .blocks = m->global_blocks, .first_block = m->global_first, .stride = m->global_stride};
}

static const struct rope *rope_of(const struct model *model, int32_t layer) {
    return model->config->compress_ratios[layer] ? &model->long_rope : &model->plain_rope;
}

/* Pairs the rows of a ratio-2 source with the first halves kept in the sequences, and keeps the new ones. */
static void pair_rows(struct model *model, int32_t layer) {
    const struct kernels *k = model->kernels;
    const struct step_memory *m = &model->lane->step;
    const struct row_copy *copies = m->row_copies + (int64_t)model->ratio2_slot[layer] * m->row_copies_most;
    k->copy_rows(model->lane->stream, copies, m->pair_copies, model->config->head_dim);
    k->copy_rows(model->lane->stream, copies + m->pair_copies, m->open_copies, model->config->head_dim);
}

/* Compressed rows and index keys of a kv source, for the groups that the lower set completes. x [tokens, D]: normed input. */
static void compress(struct model *model, int32_t layer, const float *x, int32_t groups) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    const struct compressor_weights *w = &model->layers[layer].compressor;
    struct rows in = plain_rows(x, c->hidden_size);
    const int32_t *sequence = m->lower.sequence, *row = m->lower.position, *position = m->lower.position;
    const int32_t *floor = m->write_floor;
    const float *kv = m->compress_kv;
    linear(model, &in, m->lower.tokens, &w->wkv, m->compress_kv);
    if (c->compress_ratios[layer] == 2) {
        linear(model, &in, m->lower.tokens, &w->wgate, m->compress_gate);
        pair_rows(model, layer);
        if (!groups)
            return;
        k->compress_pairs(model->lane->stream, m->pair_kv, m->pair_gate, groups, c->head_dim, m->latent);
        sequence = m->group_sequence;
        row = m->group_row;
        position = m->group_position;
        floor = m->group_write_floor;
        kv = m->latent;
    } else {
        groups = m->lower.tokens;
    }
    struct block_tables tables = global_tables(model);
    k->rms_norm(model->lane->stream, kv, groups, c->head_dim, w->norm, c->rms_norm_eps, m->latent);
    struct rows latent = plain_rows(m->latent, c->head_dim);
    linear(model, &latent, groups, &w->wk, m->key);
    k->rms_norm(model->lane->stream, m->key, groups, c->index_head_dim, w->k_norm, c->rms_norm_eps, m->key);
    k->rotate(model->lane->stream, m->key, position, groups, 1, c->index_head_dim, &model->long_rope, false);
    k->store_rows(
        model->lane->stream, m->key, groups, sequence, row, floor, &model->kv.index_key[layer], &tables);
    k->rotate(model->lane->stream, m->latent, position, groups, 1, c->head_dim, &model->long_rope, false);
    k->store_rows(
        model->lane->stream, m->latent, groups, sequence, row, floor, &model->kv.latent[layer], &tables);
}

/* Normed and encoded input of a layer's attention in x and x_rows, and its window rows in their blocks. */
static void write_window(struct model *model, int32_t layer, const struct token_set *set) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    const struct layer_weights *w = &model->layers[layer];
    struct block_tables tables = window_tables(model);
    (void)stopwatch_switch(WORK_MIXES);
    k->collapse_norm(model->lane->stream, set->streams, set->pre, set->tokens, c->hc_mult, c->hidden_size,
        w->attn_norm, c->rms_norm_eps, m->x);
    (void)stopwatch_switch(WORK_ATTENTION_PRODUCTS);
    k->encode(model->lane->stream, m->x, set->tokens, &m->x_rows);
    linear(model, &m->x_rows, set->tokens, &w->wkv, m->kv);
    k->rms_norm(model->lane->stream, m->kv, set->tokens, c->head_dim, w->kv_norm, c->rms_norm_eps, m->kv);
    k->rotate(
        model->lane->stream, m->kv, set->position, set->tokens, 1, c->head_dim, rope_of(model, layer), false);
    k->store_rows(model->lane->stream, m->kv, set->tokens, set->sequence, set->position, m->no_floor,
        &model->kv.window[layer], &tables);
}

/* The rows each token attends to besides its window: chosen by this layer's indexer. The published scale of the head
 * weights is left out: it is positive and one for all rows, so it cannot change the order. */
static void choose(struct model *model, int32_t layer, const struct token_set *set) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    const struct indexer_weights *w = &model->layers[layer].indexer;
    struct rows in = plain_rows(m->x, c->hidden_size);
    struct block_tables tables = global_tables(model);
    (void)stopwatch_switch(WORK_INDEX);
    linear(model, &m->latent_q_rows, set->tokens, &w->wq_b, m->index_q);
    k->rotate(model->lane->stream, m->index_q, set->position, set->tokens, c->index_n_heads,
        c->index_head_dim, &model->long_rope, false);
    k->round(model->lane->stream, m->index_q, set->tokens * c->index_n_heads, c->index_head_dim,
        model->key_encoding);
    linear(model, &in, set->tokens, &w->weights_proj, m->index_weight);
    int32_t source = c->candidate_source_layer_id;
    struct index_choice choice = {.ratio = c->compress_ratios[layer],
        .heads = c->index_n_heads,
        .columns = c->index_head_dim,
        .top_k = c->index_topk,
        .is_candidate_source = layer == source,
        .use_candidates = source >= 0 && layer > source,
        .block_size = c->candidate_block_size,
        .block_limit = c->candidate_topk_blocks};
    k->choose(model->lane->stream, m->index_q, m->index_weight, set->tokens, set->sequence, set->position,
        &choice, &model->kv.index_key[model->kv.source_of[layer]], &tables, m->candidates, m->chosen);
}

/* Attention of the tokens whose input write_window left in x and x_rows: result in sublayer. */
static void attention(struct model *model, int32_t layer, const struct token_set *set) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    const struct layer_weights *w = &model->layers[layer];
    const struct rope *rope = rope_of(model, layer);
    int32_t source = model->kv.source_of[layer], tokens = set->tokens, heads = c->num_attention_heads;
    (void)stopwatch_switch(WORK_ATTENTION_PRODUCTS);
    linear(model, &m->x_rows, tokens, &w->wq_a, m->latent_q);
    k->rms_norm(
        model->lane->stream, m->latent_q, tokens, c->q_lora_rank, w->q_norm, c->rms_norm_eps, m->latent_q);
    k->encode(model->lane->stream, m->latent_q, tokens, &m->latent_q_rows);
    linear(model, &m->latent_q_rows, tokens, &w->wq_b, m->q);
    k->rotate(model->lane->stream, m->q, set->position, tokens, heads, c->head_dim, rope, false);
    if (c->is_index_source[layer])
        choose(model, layer, set);
    struct block_tables windows = window_tables(model), globals = global_tables(model);
    (void)stopwatch_switch(WORK_ATTENTION);
    k->attend(model->lane->stream, m->q, tokens, heads, set->sequence, set->position,
        layer > c->last_kv_source ? set->visible_from_upper : set->visible_from, &model->kv.window[layer],
        &windows, source >= 0 ? &model->kv.latent[source] : NULL, &globals, m->chosen, c->index_topk,
        w->attn_sink, m->attended);
    (void)stopwatch_switch(WORK_ATTENTION_PRODUCTS);
    k->rotate(model->lane->stream, m->attended, set->position, tokens, heads, c->head_dim, rope, true);
    k->grouped_product(model->lane->stream, m->attended, tokens, c->o_groups, &w->wo_a, m->grouped);
    k->encode(model->lane->stream, m->grouped, tokens, &m->grouped_rows);
    linear(model, &m->grouped_rows, tokens, &w->wo_b, m->sublayer);
}

static void mix(struct model *model, const struct mix_weights *w, const struct token_set *set, float *pre) {
    const struct model_config *c = model->config;
    struct step_memory *m = &model->lane->step;
    model->kernels->mix(model->lane->stream, set->streams, set->tokens, c->hc_mult, c->hidden_size, &w->fn,
        w->base, w->scale, c->hc_sinkhorn_iters, c->hc_eps, c->rms_norm_eps, pre, m->post, m->comb);
}

static void expand(struct model *model, const struct token_set *set) {
    const struct model_config *c = model->config;
    struct step_memory *m = &model->lane->step;
    model->kernels->expand(model->lane->stream, m->sublayer, m->post, m->comb, set->tokens, c->hc_mult,
        c->hidden_size, set->streams);
}

/* Attention and experts of a layer whose window rows are written. A sublayer collapses the streams with the mix that the one
 * before it made, which is why each mix is taken before the streams change. */
static enum result run_block(struct model *model, int32_t layer, const struct token_set *set) {
    beacon_layer(layer);
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    const struct layer_weights *w = &model->layers[layer];
    if (set->tokens) {
        attention(model, layer, set);
        (void)stopwatch_switch(WORK_MIXES);
        mix(model, &w->hc_attn, set, set->pre);
        expand(model, set);
        k->collapse_norm(model->lane->stream, set->streams, set->pre, set->tokens, c->hc_mult, c->hidden_size,
            w->ffn_norm, c->rms_norm_eps, m->x);
        mix(model, &w->hc_ffn, set, set->pre);
        k->encode(model->lane->stream, m->x, set->tokens, &m->x_rows);
    }
    TRY(moe_run(model, w, m->x, &m->x_rows, set->is_image, set->tokens, m->sublayer));
    (void)stopwatch_switch(WORK_MIXES);
    if (set->tokens)
        expand(model, set);
    return OK;
}

/* ---- the tail ---- */

/* Rows of streams and of their mix, `n` tokens. */
static void copy_streams(struct model *model, float *to_streams, float *to_pre, const float *streams,
    const float *pre, int32_t n) {
    const struct model_config *c = model->config;
    size_t row = (size_t)c->hc_mult * sizeof(float);
    model->kernels->copy(model->lane->stream, to_streams, streams, row * (size_t)c->hidden_size * (size_t)n);
    model->kernels->copy(model->lane->stream, to_pre, pre, row * (size_t)n);
}

/* Keeps the newest `tail` of the held and the span's tokens for the steps to come. */
static enum result hold_tail(struct model *model, const struct span *span, int32_t lower_at) {
    struct step_memory *m = &model->lane->step;
    struct sequence *s = span->sequence;
    int64_t pre = model->config->hc_mult, row = pre * model->config->hidden_size;
    int32_t fresh = span->count < span->tail ? span->count : span->tail;
    TRY(sequence_hold(model, s, span->tail));
    int32_t keep = span->tail - fresh < s->waiting ? span->tail - fresh : s->waiting;
    int32_t shift = s->waiting - keep;
    /* Moved in pieces no longer than the distance, since copies must not overlap. */
    for (int32_t i = 0; shift && i < keep; i += shift) {
        int32_t n = keep - i < shift ? keep - i : shift;
        copy_streams(model, s->waiting_streams + i * row, s->waiting_pre + i * pre,
            s->waiting_streams + (i + shift) * row, s->waiting_pre + (i + shift) * pre, n);
    }
    memmove(s->waiting_image, s->waiting_image + shift, (size_t)keep);
    int64_t from = lower_at + span->count - fresh;
    copy_streams(model, s->waiting_streams + keep * row, s->waiting_pre + keep * pre,
        m->lower.streams + from * row, m->lower.pre + from * pre, fresh);
    memcpy(s->waiting_image + keep, m->host_image + from, (size_t)fresh);
    s->waiting = keep + fresh;
    return OK;
}

/* Streams of the upper set: the lower set's own when no span has a tail, else gathered from it and from what was held. */
static enum result gather_upper(struct model *model, const struct span *spans, int32_t count, bool any_tail) {
    struct step_memory *m = &model->lane->step;
    if (!any_tail) {
        m->upper.streams = m->lower.streams;
        m->upper.pre = m->lower.pre;
        return OK;
    }
    m->upper.streams = m->upper_streams;
    m->upper.pre = m->upper_pre;
    int64_t pre = model->config->hc_mult, row = pre * model->config->hidden_size;
    int64_t at = 0;
    int32_t lower_at = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct span *span = &spans[i];
        struct sequence *s = span->sequence;
        int32_t n = span_upper_tokens(span);
        int32_t fresh = n < span->count ? n : span->count, held = n - fresh;
        if (held) {
            int64_t from = s->waiting - held;
            copy_streams(model, m->upper.streams + at * row, m->upper.pre + at * pre,
                s->waiting_streams + from * row, s->waiting_pre + from * pre, held);
        }
        if (fresh) {
            int64_t from = lower_at + span->count - fresh;
            copy_streams(model, m->upper.streams + (at + held) * row, m->upper.pre + (at + held) * pre,
                m->lower.streams + from * row, m->lower.pre + from * pre, fresh);
        }
        if (span->tail && !span->last)
            TRY(hold_tail(model, span, lower_at));
        at += n;
        lower_at += span->count;
    }
    return OK;
}

/* ---- the step ---- */

/* Replaces the inputs of image tokens by their embeddings. */
static void put_embeddings(struct model *model, const struct span *spans, int32_t count) {
    const struct step_memory *m = &model->lane->step;
    int64_t hidden = model->config->hidden_size;
    int32_t at = 0;
    for (int32_t i = 0; i < count; at += spans[i++].count) {
        const float *row = spans[i].embeddings;
        for (int32_t t = at; row && t < at + spans[i].count; t++)
            if (m->host_image[t]) {
                upload(model, m->x + t * hidden, row, hidden, sizeof(float));
                row += hidden;
            }
    }
}

static enum result trace(
    struct model *model, enum trace_point point, int32_t layer, const struct token_set *set) {
    return model->trace ? model->trace(model->trace_context, point, layer, set) : OK;
}

static enum result run_lower(struct model *model, const struct span *spans, int32_t count, int32_t groups) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    int32_t split = model->split_layer, slot = 0;
    if (m->lower.tokens) {
        (void)stopwatch_switch(WORK_EMBED);
        k->embed(model->lane->stream, &model->embed, m->ids, m->lower.tokens, m->x);
        put_embeddings(model, spans, count);
        k->start_streams(model->lane->stream, m->x, m->lower.tokens, c->hc_mult, c->hidden_size,
            m->lower.streams, m->lower.pre);
    }
    for (int32_t l = 0; l <= split; l++) {
        if (slot < c->engram_layers && c->engram_layer_ids[slot] == l) {
            TRY(trace(model, TRACE_ENGRAM_IN, l, &m->lower));
            (void)stopwatch_switch(WORK_ENGRAM);
            engram_run(model, slot++, &m->lower);
        }
        TRY(trace(model, TRACE_LAYER_IN, l, &m->lower));
        if (m->lower.tokens) {
            write_window(model, l, &m->lower);
            if (c->is_kv_source[l])
                compress(model, l, m->x, groups);
        }
        if (l == split)
            break;
        TRY(run_block(model, l, &m->lower));
        TRY(trace(model, TRACE_LAYER_OUT, l, &m->lower));
    }
    return OK;
}

static enum result run_upper(struct model *model, bool any_tail) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    for (int32_t l = model->split_layer; l < c->num_hidden_layers; l++) {
        if (l > model->split_layer)
            TRY(trace(model, TRACE_LAYER_IN, l, &m->upper));
        if (m->upper.tokens && l > model->split_layer) {
            write_window(model, l, &m->upper);
        } else if (m->upper.tokens && any_tail) {
            const struct layer_weights *w = &model->layers[l];
            k->collapse_norm(model->lane->stream, m->upper.streams, m->upper.pre, m->upper.tokens, c->hc_mult,
                c->hidden_size, w->attn_norm, c->rms_norm_eps, m->x);
            k->encode(model->lane->stream, m->x, m->upper.tokens, &m->x_rows);
        }
        TRY(run_block(model, l, &m->upper));
        TRY(trace(model, TRACE_LAYER_OUT, l, &m->upper));
    }
    return OK;
}

/* logits: device memory; NULL: into the lane's own. */
static enum result read_logits(struct model *model, const struct span *spans, int32_t count, float *logits) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    struct step_memory *m = &model->lane->step;
    if (!m->upper.tokens)
        return OK;
    (void)stopwatch_switch(WORK_LOGITS);
    k->collapse_norm(model->lane->stream, m->upper.streams, m->upper.pre, m->upper.tokens, c->hc_mult,
        c->hidden_size, model->final_norm, c->rms_norm_eps, m->x);
    int64_t from = 0, wanted = 0, hidden = c->hidden_size;
    for (int32_t i = 0; i < count; i++)
        wanted += spans[i].logits;
    const float *rows = m->x; /* all rows of the upper set, as when decoding */
    for (int32_t i = 0, to = 0; wanted < m->upper.tokens && i < count; i++) {
        from += span_upper_tokens(&spans[i]);
        int32_t n = spans[i].logits;
        if (n)
            k->copy(model->lane->stream, m->logit_hidden + to * hidden, m->x + (from - n) * hidden,
                (size_t)n * (size_t)hidden * sizeof(float));
        to += n;
        rows = m->logit_hidden;
    }
    if (!wanted)
        return OK;
    struct rows in = plain_rows(rows, c->hidden_size);
    if (!logits) {
        int64_t bytes = wanted * c->vocab_size * (int64_t)sizeof(float);
        TRY(grow_device(model, &m->logits, &m->logits_bytes, bytes));
        logits = m->logits;
    }
    linear(model, &in, (int32_t)wanted, &model->head, logits);
    return OK;
}

/* ---- recordings ---- */

/* A number for the shapes that the ranks of the supernode have now. Collective over the supernode. */
static enum result identify(const struct model *model, const struct step_shape *shape, int64_t *id) {
    enum { HASH_BITS = 48 }; /* sums over thousands of ranks stay positive */
    const uint64_t seed = (uint64_t)group_rank(model->options.supernode);
    *id = (int64_t)(XXH64(shape, sizeof *shape, seed) >> (64 - HASH_BITS));
    return group_sum(model->options.supernode, "the shape of a step", id, 1);
}

/* The entry of the shapes with this number, else the one that was used the longest ago, emptied. It is the same one on all ranks of the
 * supernode, and in the same state, for all of them have asked for the same numbers. */
static enum result find_recorded(
    struct model *model, int64_t id, const struct step_shape *shape, struct recorded_step **found) {
    struct lane *lane = model->lane;
    struct recorded_step *oldest = &lane->recorded[0];
    for (int32_t i = 0; i < MOST_RECORDINGS; i++) {
        struct recorded_step *step = &lane->recorded[i];
        if (step->used && step->id == id) {
            *found = step;
            return memcmp(&step->shape, shape, sizeof *shape) == 0
                       ? OK
                       : fail(ERROR_INTERNAL, "steps of two shapes have the same number");
        }
        if (step->used < oldest->used)
            oldest = step;
    }
    model->kernels->recording_free(oldest->recording);
    *oldest = (struct recorded_step){.id = id, .shape = *shape};
    *found = oldest;
    return OK;
}

/* Runs the layers of a step whose arrays are uploaded. */
static enum result enqueue_layers(struct model *model, const struct span *spans, int32_t count,
    int32_t groups, const int64_t most[2], float *logits) {
    bool any_tail = false;
    for (int32_t i = 0; i < count; i++)
        any_tail = any_tail || spans[i].tail;
    if (most[0])
        TRY(run_lower(model, spans, count, groups));
    TRY(gather_upper(model, spans, count, any_tail));
    if (!most[1])
        return OK;
    TRY(run_upper(model, any_tail));
    return read_logits(model, spans, count, logits);
}

/* The first step of the ranks' shapes runs as it is, the second is recorded, later ones replay: on all ranks of the supernode alike, for NCCL
 * wants its calls recorded by all or none. Collective over the supernode. */
static enum result run_repeatable(struct model *model, const struct span *spans, int32_t count,
    int32_t groups, const int64_t most[2], struct step_shape shape) {
    const struct kernels *k = model->kernels;
    struct lane *lane = model->lane;
    struct recorded_step *step = NULL;
    int64_t id = 0;
    TRY(identify(model, &shape, &id));
    TRY(find_recorded(model, id, &shape, &step));
    bool is_new = !step->used;
    step->used = ++lane->recorded_uses;
    if (is_new)
        return enqueue_layers(model, spans, count, groups, most, NULL);
    if (!step->recording) {
        TRY(k->record_begin(lane->stream));
        enum result status = enqueue_layers(model, spans, count, groups, most, NULL);
        enum result ended = k->record_end(lane->stream, &step->recording);
        TRY(status);
        TRY(ended);
    }
    k->replay(lane->stream, step->recording);
    lane->replays++;
    return OK;
}

void recordings_free(struct model *model, struct lane *lane) {
    for (int32_t i = 0; i < MOST_RECORDINGS; i++)
        if (lane->recorded[i].recording)
            model->kernels->recording_free(lane->recorded[i].recording);
}

static enum result run_layers(struct model *model, const struct span *spans, int32_t count, float *logits) {
    struct step_memory *m = &model->lane->step;
    int32_t groups = 0;
    const bool is_repeated = !logits && is_repeatable(model, spans, count);
    TRY(prepare_tables(model, spans, count, is_repeated, &groups));
    prepare_lower(model, spans, count);
    prepare_upper(model, spans, count);
    int64_t most[3] = {m->lower.tokens, m->upper.tokens, !is_repeated};
    TRY(group_max(model->options.supernode, "the size of a step", most, 3));
    TRY(exchange_begin_step(model->lane->exchange, at_least((int32_t)most[0], (int32_t)most[1])));
    if (most[0] && model->config->engram_layers)
        TRY(engram_prefetch(model, m->lower.tokens));
    struct step_shape shape = {.tokens = m->lower.tokens,
        .most_tokens = most[0],
        .window_stride = m->window_stride,
        .global_stride = m->global_stride,
        .memory_moves = model->lane->memory_moves};
    if (!most[2] && exchange_is_repeatable(model->lane->exchange, &shape.exchange_moves)) {
        shape.stream_moves = model->kernels->memory_moves(model->lane->stream);
        return run_repeatable(model, spans, count, groups, most, shape);
    }
    return enqueue_layers(model, spans, count, groups, most, logits);
}

static void advance_sequences(struct model *model, const struct span *spans, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        struct sequence *s = spans[i].sequence;
        bool unfinished = spans[i].tail && !spans[i].last;
        s->length += spans[i].count;
        sequence_trim(model, s, model->config->sliding_window - 1 + (unfinished ? spans[i].tail : 0));
        if (!unfinished && s->waiting_capacity)
            sequence_release_waiting(model, s);
    }
}

int32_t model_lanes(const struct model *model) {
    return model->lane_count;
}

static enum result begin_step(
    struct model *model, int32_t lane, const struct span *spans, int32_t count, float *logits) {
    struct lane *own = &model->lanes[lane];
    if (own->in_flight)
        return fail(ERROR_INTERNAL, "a step was begun while the lane's last one was on its way");
    TRY(check_spans(model, spans, count));
    enum work_part before = stopwatch_switch(WORK_SCHEDULING);
    model->lane = own;
    beacon_step(beacon_own()->step + 1);
    memcpy(own->spans, spans, sizeof *spans * (size_t)count);
    own->span_count = count;
    own->in_flight = true;
    enum result status = run_layers(model, spans, count, logits);
    if (status != OK)
        own->span_count = 0; /* their sequences are unusable */
    (void)stopwatch_switch(before);
    return status;
}

enum result model_step_begin(struct model *model, int32_t lane, const struct span *spans, int32_t count) {
    return begin_step(model, lane, spans, count, NULL);
}

enum result model_step_end(struct model *model, int32_t lane) {
    struct lane *own = &model->lanes[lane];
    if (!own->in_flight)
        return OK;
    enum work_part before = stopwatch_switch(WORK_WAITING);
    enum result status = exchange_wait(own->exchange);
    if (status == OK)
        status = model->kernels->synchronize(own->stream);
    (void)stopwatch_switch(WORK_SCHEDULING);
    own->in_flight = false;
    if (status == OK)
        advance_sequences(model, own->spans, own->span_count);
    (void)stopwatch_switch(before);
    return status;
}

enum result model_step(struct model *model, const struct span *spans, int32_t count, float *logits) {
    const struct kernels *k = model->kernels;
    TRY(begin_step(model, 0, spans, count, k->shares_host_memory ? logits : NULL));
    int64_t rows = 0;
    for (int32_t i = 0; i < count; i++)
        rows += spans[i].logits;
    TRY(exchange_wait(model->lane->exchange)); /* before the copy, which may wait without a deadline */
    if (rows && !k->shares_host_memory)
        k->copy_out(model->lane->stream, logits, model->lane->step.logits,
            sizeof(float) * (size_t)rows * (size_t)model->config->vocab_size);
    return model_step_end(model, 0);
}

/* Draws of tokens from a step's logits: on the device where it can, else by the host's samplers. */
#include "base/stopwatch.h"
#include "kernels/sample.h"
#include "model/internals.h"
#include "recipe/request.h" /* struct sampling */

#include <omp.h>    /* omp_get_thread_num */
#include <stdlib.h> /* calloc, realloc, qsort */
#include <string.h> /* memcpy */

void samplers_free(struct model *model) {
    for (int32_t i = 0; model->samplers && i < model->kernels->threads; i++)
        sampler_free(model->samplers[i]);
    free(model->samplers);
    model->samplers = NULL;
}

/* ---- on the host ---- */

static enum result create_samplers(struct model *model) {
    if (model->samplers)
        return OK;
    model->samplers = calloc((size_t)model->kernels->threads, sizeof(struct sampler *));
    if (!model->samplers)
        return fail(ERROR_MEMORY, "out of memory for sampling");
    for (int32_t i = 0; i < model->kernels->threads; i++)
        TRY(sampler_create(model->config->vocab_size, &model->samplers[i]));
    return OK;
}

static enum result draw_one(const struct model *model, struct sampler *sampler, const struct token_draw *draw,
    struct sampled_token *token) {
    const float *logits = model->lane->step.logits + (int64_t)draw->row * model->config->vocab_size;
    return sampler_choose(sampler, logits, draw, token);
}

static enum result draw_on_host(struct model *model, const struct token_draw *draws, int32_t count,
    struct sampled_token *tokens, int32_t *failed) {
    TRY(create_samplers(model));
    int32_t first_failed = count;
#pragma omp parallel for num_threads(model->kernels->threads) schedule(dynamic) reduction(min : first_failed)
    for (int32_t i = 0; i < count; i++)
        if (draw_one(model, model->samplers[omp_get_thread_num()], &draws[i], &tokens[i]) != OK)
            first_failed = i < first_failed ? i : first_failed;
    if (first_failed == count)
        return OK;
    *failed = first_failed;
    /* The message is the other thread's own: once more for this one. */
    return draw_one(model, model->samplers[0], &draws[first_failed], &tokens[first_failed]);
}

/* ---- on the device ---- */

/* One change of a logit; those of one id are made in `order`. */
struct adjustment {
    int32_t id, order;
    float delta;
};

struct adjustments {
    struct adjustment *items;
    int32_t count, capacity;
};

static enum result adjust(struct adjustments *all, int32_t id, float delta) {
    if (all->count == all->capacity) {
        int32_t capacity = 2 * all->capacity + 256;
        struct adjustment *grown = realloc(all->items, sizeof *grown * (size_t)capacity);
        if (!grown)
            return fail(ERROR_MEMORY, "out of memory for %d changed logits of a step", capacity);
        all->items = grown;
        all->capacity = capacity;
    }
    all->items[all->count] = (struct adjustment){id, all->count, delta};
    all->count++;
    return OK;
}

static int by_id_then_order(const void *left, const void *right) {
    const struct adjustment *a = left, *b = right;
    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

static int by_number(const void *left, const void *right) {
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

/* The penalties of a choice's tokens, each token once: what sampling.c subtracts. */
static enum result add_penalties(const struct token_draw *draw, struct adjustments *all) {
    const struct sampling *sampling = draw->sampling;
    int32_t count = draw->generated_count;
    if (!count || (sampling->presence_penalty == 0 && sampling->frequency_penalty == 0))
        return OK;
    int32_t *ids = malloc(sizeof *ids * (size_t)count);
    if (!ids)
        return fail(ERROR_MEMORY, "out of memory for the penalties of %d tokens", count);
    memcpy(ids, draw->generated, sizeof *ids * (size_t)count);
    qsort(ids, (size_t)count, sizeof *ids, by_number);
    enum result status = OK;
    for (int32_t i = 0, next; i < count && status == OK; i = next) {
        for (next = i + 1; next < count && ids[next] == ids[i];)
            next++;
        float penalty = sampling->presence_penalty + (float)(next - i) * sampling->frequency_penalty;
        status = adjust(all, ids[i], -penalty);
    }
    free(ids);
    return status;
}

static enum result describe_row(
    const struct token_draw *draw, struct adjustments *all, struct sample_row *row) {
    const struct sampling *sampling = draw->sampling;
    /* The token's own log-probability is always kept. */
    int32_t first = all->count, top = sampling->top_logprobs > 0 ? sampling->top_logprobs : 0;
    for (int32_t i = 0; i < sampling->bias_count; i++)
        TRY(adjust(all, sampling->bias_ids[i], sampling->bias_values[i]));
    TRY(add_penalties(draw, all));
    qsort(all->items + first, (size_t)(all->count - first), sizeof *all->items, by_id_then_order);
    *row = (struct sample_row){.key = {draw->key.words[0], draw->key.words[1]},
        .position = (uint64_t)draw->position,
        .temperature = sampling->temperature,
        .top_p = sampling->top_p,
        .min_p = sampling->min_p,
        .top_k = sampling->top_k,
        .top_logprobs = top < SAMPLE_MOST_TOP ? top : SAMPLE_MOST_TOP,
        .logits = draw->row,
        .mask = -1,
        .first_adjustment = first,
        .adjustments = all->count - first};
    return OK;
}

static void describe_token(const struct sample_result *result, struct sampled_token *token) {
    token->id = result->id;
    token->logprob = sample_logprob(result, result->logit);
    token->top_logprobs = result->top_logprobs;
    for (int32_t i = 0; i < result->top_logprobs; i++) {
        token->top_ids[i] = result->top_ids[i];
        token->top_values[i] = sample_logprob(result, result->top_logits[i]);
    }
}

/* What the draws ask for as the device reads it: rows, adjustments and masks, one behind the other. */
struct packed_draws {
    uint8_t *data;
    size_t adjustments, masks, bytes; /* where they begin, and the end */
};

static enum result pack_rows(
    const struct token_draw *draws, int32_t count, struct adjustments *all, struct sample_row *rows) {
    int32_t masks = 0;
    for (int32_t i = 0; i < count; i++) {
        TRY(describe_row(&draws[i], all, &rows[i]));
        if (draws[i].allowed)
            rows[i].mask = masks++;
    }
    return OK;
}

/* Makes room for what stands behind the rows, and fills it. */
static enum result pack_lists(const struct token_draw *draws, int32_t count, const struct adjustments *all,
    int32_t vocab_size, struct packed_draws *packed) {
    const size_t mask_bytes = mask_words(vocab_size) * sizeof(uint64_t);
    size_t masks = 0;
    for (int32_t i = 0; i < count; i++)
        masks += draws[i].allowed != NULL;
    packed->masks = packed->adjustments + sizeof(struct sample_adjustment) * (size_t)all->count;
    packed->bytes = packed->masks + masks * mask_bytes;
    uint8_t *grown = realloc(packed->data, packed->bytes);
    if (!grown)
        return fail(ERROR_MEMORY, "out of memory for sampling %d tokens", count);
    packed->data = grown;
    struct sample_adjustment *to = (struct sample_adjustment *)(grown + packed->adjustments);
    for (int32_t i = 0; i < all->count; i++)
        to[i] = (struct sample_adjustment){all->items[i].id, all->items[i].delta};
    uint8_t *mask = grown + packed->masks;
    for (int32_t i = 0; i < count; i++) {
        if (!draws[i].allowed)
            continue;
        memcpy(mask, draws[i].allowed, mask_bytes);
        mask += mask_bytes;
    }
    return OK;
}

/* `packed->data` is the caller's to free, after a failure too. */
static enum result pack_draws(
    const struct token_draw *draws, int32_t count, int32_t vocab_size, struct packed_draws *packed) {
    struct adjustments all = {0};
    *packed = (struct packed_draws){.adjustments = sizeof(struct sample_row) * (size_t)count};
    packed->data = malloc(packed->adjustments);
    if (!packed->data)
        return fail(ERROR_MEMORY, "out of memory for sampling %d tokens", count);
    enum result status = pack_rows(draws, count, &all, (struct sample_row *)packed->data);
    if (status == OK)
        status = pack_lists(draws, count, &all, vocab_size, packed);
    free(all.items);
    return status;
}

static enum result enqueue_draws(
    struct model *model, const struct token_draw *draws, int32_t count, struct sample_result *results) {
    const struct kernels *k = model->kernels;
    struct lane *lane = model->lane;
    struct step_memory *m = &lane->step;
    const int32_t vocab_size = model->config->vocab_size;
    const size_t result_bytes = sizeof *results * (size_t)count;
    struct packed_draws packed;
    enum result status = pack_draws(draws, count, vocab_size, &packed);
    if (status == OK)
        status = grow_device(model, &m->draws, &m->draws_bytes, (int64_t)packed.bytes);
    if (status == OK)
        status = grow_device(model, &m->drawn, &m->drawn_bytes, (int64_t)result_bytes);
    if (status == OK) {
        const uint8_t *on_device = (const uint8_t *)m->draws;
        k->copy_in(lane->stream, m->draws, packed.data, packed.bytes);
        k->sample(lane->stream, m->logits, count, vocab_size, m->draws,
            (const struct sample_adjustment *)(on_device + packed.adjustments),
            (const uint64_t *)(on_device + packed.masks), m->drawn);
        status = exchange_wait(lane->exchange); /* before the copy, which may wait without a deadline */
    }
    if (status == OK) {
        k->copy_out(lane->stream, results, m->drawn, result_bytes);
        status = k->synchronize(lane->stream);
    }
    free(packed.data);
    return status;
}

static enum result draw_on_device(struct model *model, const struct token_draw *draws, int32_t count,
    struct sampled_token *tokens, int32_t *failed) {
    struct sample_result *results = malloc(sizeof *results * (size_t)count);
    if (!results)
        return fail(ERROR_MEMORY, "out of memory for sampling %d tokens", count);
    enum result status = enqueue_draws(model, draws, count, results);
    for (int32_t i = 0; i < count && status == OK; i++) {
        if (results[i].id < 0) {
            *failed = i;
            status = fail_no_finite_logit(draws[i].position);
        }
        describe_token(&results[i], &tokens[i]);
    }
    free(results);
    return status;
}

enum result model_sample(struct model *model, int32_t lane, const struct token_draw *draws, int32_t count,
    struct sampled_token *tokens, int32_t *failed) {
    *failed = 0;
    model->lane = &model->lanes[lane];
    if (!count)
        return OK;
    return model->kernels->sample ? draw_on_device(model, draws, count, tokens, failed)
                                  : draw_on_host(model, draws, count, tokens, failed);
}

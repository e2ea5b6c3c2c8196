/* Sequence states: block layout, growth, copies, saving and loading. */
#include "model/internals.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy */

/* ---- layout ---- */

static int64_t align64(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static struct block_rows rows_at(
    int64_t offset, int32_t rows_per_block, enum row_encoding encoding, int32_t columns) {
    return (struct block_rows){
        .offset = offset, .rows_per_block = rows_per_block, .encoding = encoding, .columns = columns};
}

static int64_t rows_size(const struct block_rows *rows) {
    return (int64_t)rows->rows_per_block * row_bytes(rows->encoding, rows->columns);
}

/* Offsets of the compressed rows of all sources for `tokens` tokens; returns the block's bytes. */
static int64_t place_global_rows(struct model *model, int32_t tokens) {
    const struct model_config *c = model->config;
    struct kv_layout *kv = &model->kv;
    int64_t offset = 0;
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        int32_t ratio = c->compress_ratios[l];
        if (!c->is_kv_source[l] || ratio < 1)
            continue;
        int32_t rows = tokens / ratio;
        kv->latent[l] = rows_at(offset, rows, model->latent_encoding, c->head_dim);
        offset = align64(offset + rows_size(&kv->latent[l]));
        kv->index_key[l] = rows_at(offset, rows, model->key_encoding, c->index_head_dim);
        offset = align64(offset + rows_size(&kv->index_key[l]));
    }
    return offset;
}

void kv_layout_make(struct model *model) {
    const struct model_config *c = model->config;
    struct kv_layout *kv = &model->kv;
    int64_t offset = 0;
    int32_t source = -1;
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        kv->window[l] = rows_at(offset, WINDOW_BLOCK_ROWS, model->window_encoding, c->head_dim);
        offset += rows_size(&kv->window[l]);
        if (c->is_kv_source[l])
            source = l;
        kv->source_of[l] = c->compress_ratios[l] ? source : -1;
    }
    /* One size of block serves both kinds, so that one pool under one budget does: as many tokens' compressed rows as
     * fit where a window block's rows do. */
    kv->block_bytes = align64(offset);
    kv->global_tokens = GLOBAL_BLOCK_STEP;
    while (kv->global_tokens < 4096 &&
           place_global_rows(model, kv->global_tokens + GLOBAL_BLOCK_STEP) <= kv->block_bytes)
        kv->global_tokens += GLOBAL_BLOCK_STEP;
    int64_t bytes = place_global_rows(model, kv->global_tokens);
    if (bytes > kv->block_bytes)
        kv->block_bytes = bytes;
}

static void name_section(
    struct state_section *section, const char *name, int32_t layer, int32_t bytes, const char *description) {
    if (layer < 0)
        snprintf(section->name, sizeof section->name, "%s", name);
    else
        snprintf(section->name, sizeof section->name, "%s_%02d", name, layer);
    section->row_bytes = bytes;
    section->description = description;
}

MUST_CHECK enum result state_sections_make(struct model *model) {
    const struct model_config *c = model->config;
    struct kv_layout *kv = &model->kv;
    model->sections = calloc(3 * (size_t)c->num_hidden_layers + 3, sizeof *model->sections);
    if (!model->sections)
        return fail(ERROR_MEMORY, "out of memory for the list of state sections");
    int32_t n = 0;
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        if (!c->is_kv_source[l])
            continue;
        name_section(&model->sections[n++], "latent", l, row_bytes(kv->latent[l].encoding, c->head_dim),
            "one compressed row a group of compress_ratio tokens: FP4 E2M1 codes (two a byte, even column in "
            "the low "
            "nibble), then one E4M3 scale per 16 columns");
        name_section(&model->sections[n++], "index_key", l,
            row_bytes(kv->index_key[l].encoding, c->index_head_dim),
            "index key of each compressed row: FP4 E2M1 codes, then one E8M0 scale per 32 columns");
        if (c->compress_ratios[l] > 1)
            name_section(&model->sections[n++], "open_group", l, 2 * c->head_dim * (int32_t)sizeof(float),
                "float32 kv and gate rows of the tokens of a group that is not full yet");
    }
    name_section(&model->sections[n++], "window", -1,
        c->num_hidden_layers * row_bytes(model->window_encoding, c->head_dim),
        "window rows of the last sliding_window - 1 positions, all layers of a position side by side: FP8 "
        "E4M3 codes, then "
        "one E8M0 scale per 32 columns");
    name_section(&model->sections[n++], "engram_history", -1, (int32_t)sizeof(int32_t),
        "int32 compressed token ids of the last engram_max_ngram_size - 1 tokens, -1 where none may span");
    name_section(&model->sections[n++], "tail_inputs", -1,
        c->hc_mult * (c->hidden_size + 1) * (int32_t)sizeof(float) + (int32_t)sizeof(int32_t),
        "of an unfinished prompt: float32 streams and mix at the last kv source layer and int32 is_image of "
        "the tokens held for "
        "the tail");
    model->section_count = n;
    return OK;
}

const struct state_section *model_state_sections(const struct model *model, int32_t *count) {
    *count = model->section_count;
    return model->sections;
}

/* ---- block lists ---- */

static enum result list_append(struct model *model, struct block_list *list) {
    if (list->count == list->capacity) {
        int32_t capacity = list->capacity ? list->capacity * 2 : 16;
        int32_t *grown = realloc(list->blocks, sizeof *grown * (size_t)capacity);
        if (!grown)
            return fail(ERROR_MEMORY, "out of memory for a block table");
        list->blocks = grown;
        list->capacity = capacity;
    }
    TRY(block_acquire(model->pool, &list->blocks[list->count]));
    list->count++;
    return OK;
}

static void list_drop_front(struct model *model, struct block_list *list, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        block_release(model->pool, list->blocks[i]);
    memmove(list->blocks, list->blocks + n, sizeof *list->blocks * (size_t)(list->count - n));
    list->first += n;
    list->count -= n;
}

MUST_CHECK enum result sequence_extend_rows(struct model *model, struct sequence *sequence, int32_t tokens) {
    while ((int64_t)sequence->global.count * model->kv.global_tokens < tokens)
        TRY(list_append(model, &sequence->global));
    return OK;
}

MUST_CHECK enum result sequence_extend(struct model *model, struct sequence *sequence, int32_t tokens) {
    int32_t end = sequence->length + tokens;
    while ((sequence->window.first + sequence->window.count) * WINDOW_BLOCK_ROWS < end)
        TRY(list_append(model, &sequence->window));
    return sequence_extend_rows(model, sequence, end);
}

void sequence_trim(struct model *model, struct sequence *sequence, int32_t keep_back) {
    int32_t oldest = sequence->length - keep_back;
    int32_t drop = (oldest > 0 ? oldest / WINDOW_BLOCK_ROWS : 0) - sequence->window.first;
    if (drop > sequence->window.count)
        drop = sequence->window.count;
    if (drop > 0)
        list_drop_front(model, &sequence->window, drop);
}

int32_t sequence_blocks(const struct model *model, int64_t tokens, int32_t chunk, int32_t tail) {
    int64_t window = model->config->sliding_window - 1 + (int64_t)tail + chunk;
    if (window > tokens)
        window = tokens;
    int64_t global = (tokens + model->kv.global_tokens - 1) / model->kv.global_tokens;
    /* The window may begin and end inside a block. */
    int64_t blocks = window / WINDOW_BLOCK_ROWS + 2 + global;
    return blocks > INT32_MAX ? INT32_MAX : (int32_t)blocks;
}

int32_t sequence_whole_blocks(const struct model *model, int32_t tokens) {
    return tokens / model->kv.global_tokens;
}

int32_t model_blocks(const struct model *model) {
    return model->pool->total;
}

/* ---- life ---- */

static size_t open_groups_bytes(const struct model *model) {
    return (size_t)model->ratio2_sources * 2 * (size_t)model->config->head_dim * sizeof(float);
}

/* Memory for open groups comes from slabs and goes back to a list, for on a device each allocation waits for all its work. */
static enum result take_open_groups(struct model *model, float **groups) {
    enum { SLAB = 64 };
    const size_t bytes = (open_groups_bytes(model) + 63) / 64 * 64;
    if (!model->open_group_spare_count) {
        int32_t capacity = model->open_group_spare_capacity + SLAB;
        float **spares = realloc(model->open_group_spares, sizeof *spares * (size_t)capacity);
        if (!spares)
            return fail(ERROR_MEMORY, "out of memory for a sequence");
        model->open_group_spares = spares;
        uint8_t *slab = NULL;
        TRY(model_allocate(model, SLAB * bytes, &slab));
        model->open_group_spare_capacity = capacity;
        for (int32_t i = 0; i < SLAB; i++)
            spares[model->open_group_spare_count++] = (float *)(slab + (size_t)i * bytes);
    }
    *groups = model->open_group_spares[--model->open_group_spare_count];
    return OK;
}

MUST_CHECK enum result sequence_create(struct model *model, struct sequence **sequence) {
    struct sequence *new = calloc(1, sizeof *new);
    if (!new)
        return fail(ERROR_MEMORY, "out of memory for a sequence");
    enum result status = model->ratio2_sources ? take_open_groups(model, &new->open_groups) : OK;
    if (status != OK) {
        free(new);
        return status;
    }
    *sequence = new;
    return OK;
}

void sequence_free(struct model *model, struct sequence *sequence) {
    if (!sequence)
        return;
    for (int32_t i = 0; i < sequence->global.count; i++)
        block_release(model->pool, sequence->global.blocks[i]);
    for (int32_t i = 0; i < sequence->window.count; i++)
        block_release(model->pool, sequence->window.blocks[i]);
    free(sequence->global.blocks);
    free(sequence->window.blocks);
    if (sequence->open_groups)
        model->open_group_spares[model->open_group_spare_count++] = sequence->open_groups;
    sequence_release_waiting(model, sequence);
    free(sequence);
}

int32_t sequence_length(const struct sequence *sequence) {
    return sequence->length;
}

MUST_CHECK enum result sequence_hold(struct model *model, struct sequence *sequence, int32_t tokens) {
    if (sequence->waiting_capacity >= tokens)
        return OK;
    const struct kernels *k = model->kernels;
    size_t pre_bytes = (size_t)model->config->hc_mult * sizeof(float);
    size_t stream_bytes = pre_bytes * (size_t)model->config->hidden_size;
    size_t held = (size_t)sequence->waiting;
    enum result status = OK;
    void *streams = NULL, *pre = NULL;
    uint8_t *image = malloc((size_t)tokens);
    if (!image)
        return fail(ERROR_MEMORY, "out of memory for the held tail of a prompt");
    TRY_GOTO(status, k->allocate(k, stream_bytes * (size_t)tokens, &streams), done);
    TRY_GOTO(status, k->allocate(k, pre_bytes * (size_t)tokens, &pre), done);
    if (held) {
        k->copy(model->stream, streams, sequence->waiting_streams, stream_bytes * held);
        k->copy(model->stream, pre, sequence->waiting_pre, pre_bytes * held);
        memcpy(image, sequence->waiting_image, held);
        TRY_GOTO(status, k->synchronize(model->stream), done);
    }
done:
    if (status != OK) {
        free(image);
        if (streams)
            k->release(k, streams);
        return status;
    }
    sequence_release_waiting(model, sequence);
    sequence->waiting_streams = streams;
    sequence->waiting_pre = pre;
    sequence->waiting_image = image;
    sequence->waiting = (int32_t)held;
    sequence->waiting_capacity = tokens;
    return OK;
}

void sequence_release_waiting(struct model *model, struct sequence *sequence) {
    if (sequence->waiting_streams)
        model->kernels->release(model->kernels, sequence->waiting_streams);
    if (sequence->waiting_pre)
        model->kernels->release(model->kernels, sequence->waiting_pre);
    free(sequence->waiting_image);
    sequence->waiting_streams = sequence->waiting_pre = NULL;
    sequence->waiting_image = NULL;
    sequence->waiting = sequence->waiting_capacity = 0;
}

/* Shares the blocks of `from` that hold only rows before row `written`, and copies the others: both sequences will write into them. */
static enum result list_fork(struct model *model, const struct block_list *from, int32_t rows_per_block,
    int32_t written, struct block_list *to) {
    to->blocks = malloc(sizeof *to->blocks * (size_t)(from->count + 1));
    if (!to->blocks)
        return fail(ERROR_MEMORY, "out of memory for a block table");
    to->capacity = from->count + 1;
    to->first = from->first;
    for (int32_t i = 0; i < from->count; i++) {
        if ((from->first + i + 1) * rows_per_block > written) {
            TRY(block_acquire(model->pool, &to->blocks[i]));
            uint8_t *base = model->pool->base;
            int64_t bytes = model->pool->block_bytes;
            model->kernels->copy(
                model->stream, base + to->blocks[i] * bytes, base + from->blocks[i] * bytes, (size_t)bytes);
        } else {
            to->blocks[i] = from->blocks[i];
            block_retain(model->pool, to->blocks[i]);
        }
        to->count++;
    }
    return OK;
}

MUST_CHECK enum result sequence_fork(
    struct model *model, const struct sequence *original, struct sequence **copy) {
    const struct model_config *c = model->config;
    const int32_t filled = /* global rows; while cached tokens are replayed there are more than tokens run */
        original->length > original->write_floor ? original->length : original->write_floor;
    /* The end of a prompt writes window rows of the layers above the last kv source for all of its tail, held tokens included. */
    const int32_t settled = original->length - original->waiting;
    enum result status = OK;
    struct sequence *new = NULL;
    TRY(sequence_create(model, &new));
    TRY_GOTO(
        status, list_fork(model, &original->global, model->kv.global_tokens, filled, &new->global), done);
    TRY_GOTO(status, list_fork(model, &original->window, WINDOW_BLOCK_ROWS, settled, &new->window), done);
    new->length = original->length;
    new->write_floor = original->write_floor;
    new->lower_begin = original->lower_begin;
    new->is_approximate = original->is_approximate;
    new->upper_begin = original->upper_begin;
    memcpy(new->history, original->history, sizeof new->history);
    new->history_count = original->history_count;
    if (new->open_groups)
        model->kernels->copy(
            model->stream, new->open_groups, original->open_groups, open_groups_bytes(model));
    if (original->waiting) {
        size_t streams = (size_t)c->hc_mult * (size_t)c->hidden_size * sizeof(float);
        size_t pre = (size_t)c->hc_mult * sizeof(float);
        TRY_GOTO(status, sequence_hold(model, new, original->waiting_capacity), done);
        model->kernels->copy(model->stream, new->waiting_streams, original->waiting_streams,
            streams * (size_t)original->waiting);
        model->kernels->copy(
            model->stream, new->waiting_pre, original->waiting_pre, pre * (size_t)original->waiting);
        memcpy(new->waiting_image, original->waiting_image, (size_t)original->waiting);
        new->waiting = original->waiting;
    }
    status = model->kernels->synchronize(model->stream);
done:
    if (status != OK) {
        sequence_free(model, new);
        return status;
    }
    *copy = new;
    return OK;
}

/* ---- saving and loading ---- */

void sequence_copy_rows(struct model *model, const struct block_list *list, const struct block_rows *rows,
    int32_t first, int32_t count, uint8_t *packed, int64_t stride, enum row_direction direction) {
    int32_t bytes = row_bytes(rows->encoding, rows->columns);
    for (int32_t i = 0; i < count;) {
        int32_t row = first + i;
        int32_t inside = row % rows->rows_per_block;
        int32_t run = stride == bytes ? rows->rows_per_block - inside : 1;
        if (run > count - i)
            run = count - i;
        int64_t block = list->blocks[row / rows->rows_per_block - list->first];
        uint8_t *at =
            model->pool->base + block * model->pool->block_bytes + rows->offset + (int64_t)inside * bytes;
        if (direction == ROWS_OUT)
            model->kernels->copy_out(model->stream, packed + i * stride, at, (size_t)run * (size_t)bytes);
        else
            model->kernels->copy_in(model->stream, at, packed + i * stride, (size_t)run * (size_t)bytes);
        i += run;
    }
}

/* How many positions before `tokens` a later token can still see. */
static int32_t window_rows_kept(const struct model *model, int32_t tokens, int32_t waiting) {
    int32_t keep = model->config->sliding_window - 1 + waiting;
    return keep < tokens ? keep : tokens;
}

/* Number of rows of each section for a sequence of `tokens` tokens with `waiting` held ones. */
static void section_rows_expected(const struct model *model, int32_t tokens, int32_t waiting, int64_t *rows) {
    const struct model_config *c = model->config;
    int32_t n = 0;
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        int32_t ratio = c->compress_ratios[l];
        if (!c->is_kv_source[l] || ratio < 1)
            continue;
        rows[n++] = tokens / ratio;
        rows[n++] = tokens / ratio;
        if (ratio > 1)
            rows[n++] = tokens % ratio;
    }
    rows[n++] = window_rows_kept(model, tokens, waiting);
    int32_t history = c->engram_layers ? c->engram_max_ngram_size - 1 : 0;
    rows[n++] = tokens < history ? tokens : history;
    rows[n++] = waiting;
}

/* Moves all sections between a sequence and packed memory; data[i] holds rows[i] rows of section i. */
static void copy_sections(struct model *model, struct sequence *sequence, uint8_t *const *data,
    const int64_t *rows, enum row_direction direction) {
    const struct model_config *c = model->config;
    const struct kernels *k = model->kernels;
    size_t group_bytes = 2 * (size_t)c->head_dim * sizeof(float);
    int32_t n = 0;
    for (int32_t l = 0; l < c->num_hidden_layers; l++) {
        if (!c->is_kv_source[l])
            continue;
        const struct block_rows *kinds[2] = {&model->kv.latent[l], &model->kv.index_key[l]};
        for (int32_t i = 0; i < 2; i++, n++)
            sequence_copy_rows(model, &sequence->global, kinds[i], 0, (int32_t)rows[n], data[n],
                model->sections[n].row_bytes, direction);
        if (c->compress_ratios[l] > 1) {
            float *group = sequence->open_groups + (size_t)model->ratio2_slot[l] * 2 * (size_t)c->head_dim;
            if (rows[n] && direction == ROWS_OUT)
                k->copy_out(model->stream, data[n], group, group_bytes);
            else if (rows[n])
                k->copy_in(model->stream, group, data[n], group_bytes);
            n++;
        }
    }
    int64_t stride = model->sections[n].row_bytes;
    for (int32_t l = 0; l < c->num_hidden_layers; l++)
        sequence_copy_rows(model, &sequence->window, &model->kv.window[l],
            sequence->length - (int32_t)rows[n], (int32_t)rows[n],
            data[n] + (int64_t)l * row_bytes(model->window_encoding, c->head_dim), stride, direction);
    n++;
    if (data[n] && direction == ROWS_OUT)
        memcpy(data[n], sequence->history + sequence->history_count - rows[n],
            (size_t)rows[n] * sizeof(int32_t));
    else if (data[n])
        memcpy(sequence->history, data[n], (size_t)rows[n] * sizeof(int32_t));
    n++;
    size_t streams = (size_t)c->hc_mult * (size_t)c->hidden_size;
    for (int64_t t = 0; t < rows[n]; t++) {
        uint8_t *at = data[n] + t * model->sections[n].row_bytes;
        uint8_t *pre = at + streams * sizeof(float), *image = pre + (size_t)c->hc_mult * sizeof(float);
        int32_t is_image = 0;
        if (direction == ROWS_OUT) {
            k->copy_out(
                model->stream, at, sequence->waiting_streams + (size_t)t * streams, streams * sizeof(float));
            k->copy_out(model->stream, pre, sequence->waiting_pre + t * c->hc_mult,
                (size_t)c->hc_mult * sizeof(float));
            is_image = sequence->waiting_image[t];
            memcpy(image, &is_image, sizeof is_image);
        } else {
            k->copy_in(
                model->stream, sequence->waiting_streams + (size_t)t * streams, at, streams * sizeof(float));
            k->copy_in(model->stream, sequence->waiting_pre + t * c->hc_mult, pre,
                (size_t)c->hc_mult * sizeof(float));
            memcpy(&is_image, image, sizeof is_image);
            sequence->waiting_image[t] = is_image != 0;
        }
    }
}

enum { MOST_SECTIONS = 3 * MOST_LAYERS + 3 };

MUST_CHECK enum result sequence_save(
    struct model *model, const struct sequence *sequence, struct saved_state *saved) {
    int64_t rows[MOST_SECTIONS] = {0};
    uint8_t *data[MOST_SECTIONS] = {NULL};
    section_rows_expected(model, sequence->length, sequence->waiting, rows);
    int64_t total = 0, at = 0;
    for (int32_t i = 0; i < model->section_count; i++)
        total += align64(rows[i] * model->sections[i].row_bytes);
    saved->sections = calloc((uint32_t)model->section_count, sizeof *saved->sections);
    saved->memory = malloc((size_t)total + 1);
    if (!saved->sections || !saved->memory) {
        sequence_saved_free(saved);
        return fail(ERROR_MEMORY, "out of memory for the %lld bytes of a saved state", (long long)total);
    }
    for (int32_t i = 0; i < model->section_count; i++) {
        data[i] = (uint8_t *)saved->memory + at;
        at += align64(rows[i] * model->sections[i].row_bytes);
        saved->sections[i] = (struct section_rows){.data = data[i], .rows = rows[i]};
    }
    saved->tokens = sequence->length;
    saved->section_count = model->section_count;
    /* Saving does not change the sequence; only loading writes through this pointer. */
    copy_sections(model, (struct sequence *)sequence, data, rows, ROWS_OUT);
    enum result status = model->kernels->synchronize(model->stream);
    if (status != OK)
        sequence_saved_free(saved);
    return status;
}

void sequence_saved_free(struct saved_state *saved) {
    free(saved->sections);
    free(saved->memory);
    saved->sections = NULL;
    saved->memory = NULL;
}

MUST_CHECK enum result sequence_load(
    struct model *model, int32_t tokens, const struct section_rows *sections, struct sequence **sequence) {
    int64_t rows[MOST_SECTIONS] = {0};
    uint8_t *data[MOST_SECTIONS] = {NULL};
    int32_t last = model->section_count - 1;
    if (last < 2 || last >= MOST_SECTIONS)
        return fail(ERROR_INTERNAL, "a model with %d state sections", model->section_count);
    int64_t waiting = sections[last].rows;
    if (tokens < 0 || tokens > model->options.context)
        return fail(ERROR_INPUT, "a saved state of %d tokens does not fit the context of %d", tokens,
            model->options.context);
    if (waiting < 0 || waiting > tokens)
        return fail(
            ERROR_INPUT, "a saved state of %d tokens holds %lld tail inputs", tokens, (long long)waiting);
    section_rows_expected(model, tokens, (int32_t)waiting, rows);
    for (int32_t i = 0; i < model->section_count; i++) {
        if (sections[i].rows != rows[i])
            return fail(ERROR_INPUT, "section %s of a saved state has %lld rows, expected %lld for %d tokens",
                model->sections[i].name, (long long)sections[i].rows, (long long)rows[i], tokens);
        data[i] = (uint8_t *)sections[i].data; /* only read from */
    }
    enum result status = OK;
    struct sequence *new = NULL;
    TRY(sequence_create(model, &new));
    new->window.first = (tokens - (int32_t)rows[last - 2]) / WINDOW_BLOCK_ROWS;
    TRY_GOTO(status, sequence_extend(model, new, tokens), done);
    new->length = tokens;
    new->history_count = (int32_t)rows[last - 1];
    if (waiting)
        TRY_GOTO(status, sequence_hold(model, new, (int32_t)waiting), done);
    new->waiting = (int32_t)waiting;
    copy_sections(model, new, data, rows, ROWS_IN);
    status = model->kernels->synchronize(model->stream);
done:
    if (status != OK) {
        sequence_free(model, new);
        return status;
    }
    *sequence = new;
    return OK;
}

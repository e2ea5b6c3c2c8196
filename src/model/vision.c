#include "model/vision.h"

#include "base/beacon.h"
#include <math.h>   /* powf, INFINITY */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memset */

/* A BF16 linear layer with an optional bias. */
struct biased_linear {
    struct matrix weight;
    const void *bias; /* BF16 [rows] or NULL */
};

struct vision_block {
    const void *norm1, *norm2;                   /* BF16 [hidden] */
    struct biased_linear wqkv, wo, gate, up, w2; /* gate and up: the halves of w1 */
};

/* Device memory for an image of `patches` patches; grown on demand. */
struct vision_memory {
    int32_t patches;
    float *input, *x, *y, *qkv, *attended, *gate, *up, *packed, *hidden, *out;
};

struct vision {
    const struct checkpoint *checkpoint;
    const struct vision_config *config;
    const struct kernels *kernels;
    struct stream *stream;
    int32_t llm_hidden;
    float *frequency; /* [width / 4] */
    struct biased_linear patch_embed, aligner1, aligner2;
    const void *final_norm;
    struct vision_block *blocks;
    float *start, *end, *newline; /* host [llm_hidden] */
    int64_t weight_bytes;
    struct vision_memory memory;
    void **weight_memory; /* device memory of the weights, where that is not host memory */
    int32_t weight_count, weight_capacity;
};

static const float VISION_NORM_EPS = 1e-6F; /* not in the configuration: the published code's constant */

int32_t vision_span_tokens(const struct vision_config *config, int32_t rows, int32_t columns) {
    return vision_shrunk(rows, config->downsample_ratio) *
               (vision_shrunk(columns, config->downsample_ratio) + 1) +
           2;
}

/* ---- weights ---- */

/* Where the host shares the device's memory weights stay where the checkpoint is mapped: each is read once an image. */
static enum result place(struct vision *vision, const struct matrix *host, struct matrix *placed) {
    const struct kernels *k = vision->kernels;
    vision->weight_bytes += matrix_value_bytes(host);
    if (k->shares_host_memory)
        return k->place(k, host, NULL, placed);
    if (vision->weight_count == vision->weight_capacity) {
        int32_t capacity = 2 * vision->weight_capacity + 64;
        void **grown = realloc(vision->weight_memory, sizeof *grown * (size_t)capacity);
        if (!grown)
            return fail(ERROR_MEMORY, "out of memory for the vision encoder's weights");
        vision->weight_memory = grown;
        vision->weight_capacity = capacity;
    }
    void *memory = NULL;
    TRY(k->allocate(k, (size_t)k->placed_bytes(k, host), &memory));
    vision->weight_memory[vision->weight_count++] = memory;
    return k->place(k, host, memory, placed);
}

static enum result place_vector(struct vision *vision, const char *name, bool optional, const void **values) {
    *values = NULL;
    const struct tensor *tensor = checkpoint_tensor(vision->checkpoint, name);
    if (!tensor)
        return optional
                   ? OK
                   : fail(ERROR_INTERNAL, "%s: no tensor %s", checkpoint_folder(vision->checkpoint), name);
    const struct matrix host = {
        .values = tensor->data, .format = WEIGHT_BF16, .rows = 1, .columns = (int32_t)tensor->shape[0]};
    struct matrix placed;
    TRY(place(vision, &host, &placed));
    *values = placed.values;
    return OK;
}

/* Output rows [part * rows / parts, (part + 1) * rows / parts) of a linear layer. */
static enum result place_part(
    struct vision *vision, const char *prefix, int32_t part, int32_t parts, struct biased_linear *linear) {
    char name[128];
    struct matrix host;
    const void *bias = NULL;
    TRY(checkpoint_matrix(vision->checkpoint, prefix, &host));
    snprintf(name, sizeof name, "%s.bias", prefix);
    TRY(place_vector(vision, name, true, &bias));
    host.rows /= parts;
    host.values = (const uint16_t *)host.values + (int64_t)part * host.rows * host.columns;
    TRY(place(vision, &host, &linear->weight));
    linear->bias = bias ? (const uint16_t *)bias + part * host.rows : NULL;
    return OK;
}

static enum result place_linear(struct vision *vision, const char *prefix, struct biased_linear *linear) {
    return place_part(vision, prefix, 0, 1, linear);
}

static enum result place_block(struct vision *vision, int32_t index) {
    struct vision_block *block = &vision->blocks[index];
    const struct {
        const char *name;
        struct biased_linear *linear;
    } linears[] = {{"attn.wqkv", &block->wqkv}, {"attn.wo", &block->wo}, {"mlp.w2", &block->w2}};
    char name[128];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "vision.blocks.%d.%s", index, linears[i].name);
        TRY(place_linear(vision, name, linears[i].linear));
    }
    snprintf(name, sizeof name, "vision.blocks.%d.mlp.w1", index);
    TRY(place_part(vision, name, 0, 2, &block->gate));
    TRY(place_part(vision, name, 1, 2, &block->up));
    snprintf(name, sizeof name, "vision.blocks.%d.norm1.weight", index);
    TRY(place_vector(vision, name, false, &block->norm1));
    snprintf(name, sizeof name, "vision.blocks.%d.norm2.weight", index);
    return place_vector(vision, name, false, &block->norm2);
}

/* A BF16 row as float32 in host memory. */
static enum result read_marker(struct vision *vision, const char *name, float **row) {
    const struct tensor *tensor = checkpoint_tensor(vision->checkpoint, name);
    *row = malloc(sizeof(float) * (size_t)vision->llm_hidden);
    if (!tensor || !*row)
        return fail(tensor ? ERROR_MEMORY : ERROR_INTERNAL, "%s: cannot read tensor %s",
            checkpoint_folder(vision->checkpoint), name);
    const uint16_t *codes = tensor->data;
    for (int32_t c = 0; c < vision->llm_hidden; c++) {
        uint32_t bits = (uint32_t)codes[c] << 16;
        memcpy(*row + c, &bits, sizeof bits);
    }
    return OK;
}

static enum result place_all(struct vision *vision) {
    const struct vision_config *c = vision->config;
    vision->blocks = calloc((size_t)c->num_hidden_layers, sizeof *vision->blocks);
    int32_t width = c->hidden_size / c->num_attention_heads;
    vision->frequency = malloc(sizeof *vision->frequency * (size_t)(width / 4));
    if (!vision->blocks || !vision->frequency)
        return fail(ERROR_MEMORY, "out of memory for the vision encoder's tables");
    int32_t half = width / 2;
    for (int32_t i = 0; i < width / 4; i++) {
        float share = (float)(2 * i) / (float)half;
        vision->frequency[i] = 1.0F / powf((float)c->rope_theta, share);
    }
    TRY(place_linear(vision, "vision.patch_embed.proj", &vision->patch_embed));
    for (int32_t i = 0; i < c->num_hidden_layers; i++)
        TRY(place_block(vision, i));
    TRY(place_vector(vision, "vision.norm.weight", false, &vision->final_norm));
    TRY(place_linear(vision, "aligner.w1", &vision->aligner1));
    TRY(place_linear(vision, "aligner.w2", &vision->aligner2));
    TRY(read_marker(vision, "image_start", &vision->start));
    TRY(read_marker(vision, "image_end", &vision->end));
    return read_marker(vision, "image_newline", &vision->newline);
}

MUST_CHECK enum result vision_create(
    const struct checkpoint *checkpoint, const struct kernels *kernels, struct vision **vision) {
    const struct model_config *config = checkpoint_config(checkpoint);
    if (!config->vision.present)
        return fail(ERROR_INPUT, "%s/config.json: no vision_config, so this model takes no images",
            checkpoint_folder(checkpoint));
    struct vision *new = calloc(1, sizeof *new);
    if (!new)
        return fail(ERROR_MEMORY, "out of memory for the vision encoder");
    new->checkpoint = checkpoint;
    new->config = &config->vision;
    new->kernels = kernels;
    new->llm_hidden = config->hidden_size;
    enum result status = kernels->stream_create(kernels, &new->stream);
    if (status == OK)
        status = place_all(new);
    if (status != OK) {
        vision_free(new);
        return status;
    }
    *vision = new;
    return OK;
}

static void release_memory(struct vision *vision) {
    struct vision_memory *m = &vision->memory;
    float *all[] = {m->input, m->x, m->y, m->qkv, m->attended, m->gate, m->up, m->packed, m->hidden, m->out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            vision->kernels->release(vision->kernels, all[i]);
    memset(m, 0, sizeof *m);
}

void vision_free(struct vision *vision) {
    if (!vision)
        return;
    release_memory(vision);
    for (int32_t i = 0; i < vision->weight_count; i++)
        vision->kernels->release(vision->kernels, vision->weight_memory[i]);
    free(vision->weight_memory);
    if (vision->stream)
        vision->kernels->stream_free(vision->kernels, vision->stream);
    free(vision->blocks);
    free(vision->frequency);
    free(vision->start);
    free(vision->end);
    free(vision->newline);
    free(vision);
}

int64_t vision_weight_bytes(const struct vision *vision) {
    return vision->weight_bytes;
}

/* ---- encoding ---- */

static enum result reserve(struct vision *vision, int32_t patches) {
    const struct vision_config *c = vision->config;
    struct vision_memory *m = &vision->memory;
    if (patches <= m->patches)
        return OK;
    release_memory(vision);
    int64_t n = patches, r2 = (int64_t)c->downsample_ratio * c->downsample_ratio;
    /* A strip of patches one wide has a square for each `ratio` of them, so there are never more squares than patches. */
    int64_t squares = n;
    const struct {
        float **memory;
        int64_t count;
    } pieces[] = {{&m->input, n * 3 * c->patch_size * c->patch_size}, {&m->x, n * c->hidden_size},
        {&m->y, n * c->hidden_size}, {&m->qkv, n * 3 * c->hidden_size}, {&m->attended, n * c->hidden_size},
        {&m->gate, n * c->intermediate_size}, {&m->up, n * c->intermediate_size},
        {&m->packed, squares * r2 * c->hidden_size}, {&m->hidden, squares * vision->llm_hidden},
        {&m->out, squares * vision->llm_hidden}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        void *memory = NULL;
        TRY(vision->kernels->allocate(vision->kernels, (size_t)pieces[i].count * sizeof(float), &memory));
        *pieces[i].memory = memory;
    }
    m->patches = patches;
    return OK;
}

static void linear(
    struct vision *vision, const struct biased_linear *w, const float *x, int32_t tokens, float *out) {
    const struct kernels *k = vision->kernels;
    const struct rows in = {.data = (void *)x,
        .encoding = ROWS_F32,
        .columns = w->weight.columns,
        .stride = (int64_t)w->weight.columns * 4};
    k->product(vision->stream, &in, tokens, &w->weight, out, w->weight.rows);
    if (w->bias)
        k->add_bias(vision->stream, out, tokens, w->weight.rows, w->bias);
}

static void run_block(
    struct vision *vision, const struct vision_block *block, int32_t rows, int32_t columns) {
    const struct vision_config *c = vision->config;
    const struct kernels *k = vision->kernels;
    struct vision_memory *m = &vision->memory;
    int32_t tokens = rows * columns, heads = c->num_attention_heads, width = c->hidden_size / heads;
    int64_t size = (int64_t)tokens * c->hidden_size;
    k->rms_norm(vision->stream, m->x, tokens, c->hidden_size, block->norm1, VISION_NORM_EPS, m->y);
    linear(vision, &block->wqkv, m->y, tokens, m->qkv);
    k->rotate_grid(vision->stream, m->qkv, rows, columns, heads, width, vision->frequency);
    k->attend_all(vision->stream, m->qkv, tokens, heads, width, m->attended);
    linear(vision, &block->wo, m->attended, tokens, m->y);
    k->add(vision->stream, m->x, m->y, size);
    k->rms_norm(vision->stream, m->x, tokens, c->hidden_size, block->norm2, VISION_NORM_EPS, m->y);
    linear(vision, &block->gate, m->y, tokens, m->gate);
    linear(vision, &block->up, m->y, tokens, m->up);
    k->swiglu(vision->stream, m->gate, m->up, tokens, c->intermediate_size, INFINITY, m->gate);
    linear(vision, &block->w2, m->gate, tokens, m->y);
    k->add(vision->stream, m->x, m->y, size);
}

/* Embeddings between their markers. */
static enum result write_span(struct vision *vision, int32_t high, int32_t wide, float *span) {
    size_t row = (size_t)vision->llm_hidden * sizeof(float);
    int64_t hidden = vision->llm_hidden;
    memcpy(span, vision->start, row);
    float *to = span + hidden;
    for (int32_t y = 0; y < high; y++) {
        vision->kernels->copy_out(
            vision->stream, to, vision->memory.out + (int64_t)y * wide * hidden, row * (size_t)wide);
        to += wide * hidden;
        memcpy(to, vision->newline, row);
        to += hidden;
    }
    memcpy(to, vision->end, row);
    return vision->kernels->synchronize(vision->stream);
}

MUST_CHECK enum result vision_encode(
    struct vision *vision, const float *patches, int32_t rows, int32_t columns, float *span) {
    const struct vision_config *c = vision->config;
    const struct kernels *k = vision->kernels;
    struct vision_memory *m = &vision->memory;
    if (rows < 1 || columns < 1 || vision_span_tokens(c, rows, columns) > c->max_image_tokens)
        return fail(ERROR_INPUT, "an image of %d x %d patches is outside 1 .. %d tokens", rows, columns,
            c->max_image_tokens);
    int32_t tokens = rows * columns;
    int32_t high = vision_shrunk(rows, c->downsample_ratio),
            wide = vision_shrunk(columns, c->downsample_ratio);
    TRY(reserve(vision, tokens));
    k->copy_in(vision->stream, m->input, patches,
        (size_t)tokens * 3 * (size_t)c->patch_size * (size_t)c->patch_size * sizeof(float));
    linear(vision, &vision->patch_embed, m->input, tokens, m->x);
    beacon_step(beacon_own()->step + 1);
    for (int32_t i = 0; i < c->num_hidden_layers; i++)
        run_block(vision, &vision->blocks[i], rows, columns);
    k->rms_norm(vision->stream, m->x, tokens, c->hidden_size, vision->final_norm, VISION_NORM_EPS, m->x);
    k->pack_squares(vision->stream, m->x, rows, columns, c->hidden_size, c->downsample_ratio, m->packed);
    linear(vision, &vision->aligner1, m->packed, high * wide, m->hidden);
    k->gelu(vision->stream, m->hidden, (int64_t)high * wide * vision->llm_hidden);
    linear(vision, &vision->aligner2, m->hidden, high * wide, m->out);
    return write_span(vision, high, wide, span);
}

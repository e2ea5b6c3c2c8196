/* Attention, the choice of rows, and the router. */
#include "bench/cases/internal.h"

enum { WINDOW = 128, INDEX_COLUMNS = 128, BLOCK_ROWS = 64, REPEATED_ROWS = 509 };

/* One sequence whose rows lie in one block after the other. */
struct attention_case {
    struct bench_case base;
    struct block_rows window, latents, keys;
    struct block_tables tables;
    struct index_choice choice;
    int32_t heads, head_dim, top_k, context;
    int32_t *sequence, *position, *visible_from, *chosen, *candidates;
    int32_t *host_position, *host_visible_from, *host_chosen; /* where the case makes them */
    float *q, *weight, *sink, *out;
};

/* The first `distinct` rows are made up, the others repeat them. */
static struct block_rows random_block_rows(
    struct bench_case *self, enum row_encoding encoding, int32_t columns, int32_t rows, int32_t distinct) {
    const int32_t bytes = row_bytes(encoding, columns);
    const int32_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const int64_t all = (int64_t)blocks * BLOCK_ROWS;
    const struct rows few = random_input(self, encoding, distinct, columns);
    uint8_t *base = case_device(self, (size_t)(bytes * all));
    for (int64_t r = 0; r < all; r += distinct)
        self->kernels->copy(self->stream, base + r * bytes, few.data,
            (size_t)((all - r < distinct ? all - r : distinct) * bytes));
    return (struct block_rows){base, (int64_t)bytes * BLOCK_ROWS, 0, BLOCK_ROWS, encoding, columns};
}

/* What attention and choice share: tables and the queries' places at the end of the context. */
static void fill_attention(struct attention_case *c, const struct case_options *options, int32_t columns) {
    const size_t tokens = (size_t)options->most_tokens;
    const int32_t blocks = (c->context + BLOCK_ROWS - 1) / BLOCK_ROWS;
    int32_t *table = case_memory(&c->base, (size_t)(blocks + 1) * sizeof *table);
    for (int32_t i = 0; i < blocks; i++)
        table[i] = i;
    table[blocks] = 0; /* the number of the first block */
    const int32_t *twin = case_upload(&c->base, table, (size_t)(blocks + 1) * sizeof *table);
    c->tables = (struct block_tables){twin, twin + blocks, blocks};
    c->sequence = case_device(&c->base, tokens * sizeof *c->sequence);
    c->host_position = case_memory(&c->base, tokens * sizeof *c->position);
    c->position = case_twin(&c->base, c->host_position, tokens * sizeof *c->position);
    c->host_visible_from = case_memory(&c->base, tokens * sizeof *c->visible_from);
    c->visible_from = case_twin(&c->base, c->host_visible_from, tokens * sizeof *c->visible_from);
    c->host_chosen = case_memory(&c->base, tokens * (size_t)c->top_k * sizeof *c->chosen);
    c->chosen = case_twin(&c->base, c->host_chosen, tokens * (size_t)c->top_k * sizeof *c->chosen);
    c->q = device_floats(&c->base, tokens * (size_t)(c->heads * columns));
    c->base.most_tokens = c->context / 2;
    c->base.fits_tensor_cores = true;
}

static void set_positions(struct attention_case *c, int32_t tokens) {
    for (int32_t t = 0; t < tokens; t++) {
        const int32_t position = c->context - tokens + t;
        c->host_position[t] = position;
        c->host_visible_from[t] = position < WINDOW ? 0 : position - WINDOW + 1;
    }
    const size_t bytes = (size_t)tokens * sizeof *c->position;
    case_send(&c->base, c->position, c->host_position, bytes);
    case_send(&c->base, c->visible_from, c->host_visible_from, bytes);
}

static void set_attend_tokens(struct bench_case *self, int32_t tokens) {
    struct attention_case *c = (void *)self;
    const double rows = (double)tokens * (WINDOW + c->top_k);
    set_positions(c, tokens);
    for (int32_t t = 0; t < tokens;
         t++) /* spread over the context, each token's a little apart from the last one's */
        for (int32_t k = 0; k < c->top_k; k++)
            c->host_chosen[t * c->top_k + k] =
                (int32_t)((int64_t)k * (c->context - tokens - 64) / c->top_k) + t % 64;
    case_send(self, c->chosen, c->host_chosen, (size_t)(tokens * c->top_k) * sizeof *c->chosen);
    self->flops = 4 * rows * c->heads * c->head_dim;
    self->bytes = (double)tokens * c->top_k * row_bytes(ROWS_FP4_FINE, c->head_dim);
    self->activations = 8.0 * tokens * c->heads * c->head_dim;
    self->result = c->out;
    self->result_count = (int64_t)tokens * c->heads * c->head_dim;
}

static void call_attend(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct attention_case *c = (void *)self;
    self->kernels->attend(self->stream, c->q, self->tokens, c->heads, c->sequence, c->position,
        c->visible_from, &c->window, &c->tables, &c->latents, &c->tables, c->chosen, c->top_k, c->sink,
        c->out);
}

struct bench_case *case_attend(const struct case_options *options, const char *part, int32_t heads,
    int32_t head_dim, int32_t top_k, int32_t context) {
    struct attention_case *c =
        case_new(sizeof *c, options, "attend", part, "%dx%d, %d + %d rows", heads, head_dim, WINDOW, top_k);
    c->heads = heads;
    c->head_dim = head_dim;
    c->top_k = top_k;
    c->context = context;
    c->base.arithmetic = CASE_FMA;
    c->base.set_tokens = set_attend_tokens;
    c->base.call = call_attend;
    fill_attention(c, options, head_dim);
    c->window = random_block_rows(&c->base, ROWS_FP8, head_dim, context, REPEATED_ROWS);
    c->latents = random_block_rows(&c->base, ROWS_FP4_FINE, head_dim, context, REPEATED_ROWS);
    c->sink = device_floats(&c->base, (size_t)heads);
    c->out = case_device(
        &c->base, (size_t)options->most_tokens * (size_t)heads * (size_t)head_dim * sizeof(float));
    return &c->base;
}

static void set_choose_tokens(struct bench_case *self, int32_t tokens) {
    struct attention_case *c = (void *)self;
    set_positions(c, tokens);
    self->flops = 2.0 * tokens * c->context * c->heads * INDEX_COLUMNS;
    self->bytes = (double)c->context * row_bytes(ROWS_FP4, INDEX_COLUMNS);
    self->activations = 4.0 * tokens * (c->heads * (INDEX_COLUMNS + 1) + c->top_k);
}

static void call_choose(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct attention_case *c = (void *)self;
    self->kernels->choose(self->stream, c->q, c->weight, self->tokens, c->sequence, c->position, &c->choice,
        &c->keys, &c->tables, c->candidates, c->chosen);
}

struct bench_case *case_choose(
    const struct case_options *options, const char *part, int32_t heads, int32_t top_k, int32_t context) {
    struct attention_case *c =
        case_new(sizeof *c, options, "choose", part, "%d heads, %d of %d rows", heads, top_k, context);
    c->heads = heads;
    c->top_k = top_k;
    c->context = context;
    c->choice = (struct index_choice){.ratio = 1,
        .heads = heads,
        .columns = INDEX_COLUMNS,
        .top_k = top_k,
        .block_size = 8,
        .block_limit = 1};
    c->base.arithmetic = CASE_BYTE_DOT;
    c->base.set_tokens = set_choose_tokens;
    c->base.call = call_choose;
    fill_attention(c, options, INDEX_COLUMNS);
    c->keys = random_block_rows(&c->base, ROWS_FP4, INDEX_COLUMNS, context, context);
    c->weight = device_floats(&c->base, (size_t)options->most_tokens * (size_t)heads);
    c->candidates = case_device(&c->base, (size_t)options->most_tokens * sizeof *c->candidates);
    return &c->base;
}

/* ---- the router ---- */

struct route_case {
    struct bench_case base;
    int32_t chosen, expert_count;
    float *logits, *bias, *weights;
    uint8_t *is_image;
    int32_t *experts;
};

static void set_route_tokens(struct bench_case *self, int32_t tokens) {
    const struct route_case *c = (const void *)self;
    self->flops = 0;
    self->bytes = 0;
    self->result = c->weights;
    self->result_count = (int64_t)tokens * c->chosen;
}

static void call_route(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct route_case *c = (void *)self;
    self->kernels->route(self->stream, c->logits, self->tokens, c->expert_count, c->bias, c->bias,
        c->is_image, c->chosen, true, 1.5f, c->experts, c->weights);
}

struct bench_case *case_route(
    const struct case_options *options, const char *part, int32_t chosen, int32_t experts) {
    struct route_case *c = case_new(sizeof *c, options, "route", part, "%d of %d", chosen, experts);
    const size_t tokens = (size_t)options->most_tokens;
    c->chosen = chosen;
    c->expert_count = experts;
    c->base.arithmetic = CASE_CACHE;
    c->base.set_tokens = set_route_tokens;
    c->base.call = call_route;
    c->logits = device_floats(&c->base, tokens * (size_t)experts);
    c->bias = device_floats(&c->base, (size_t)experts);
    c->weights = case_device(&c->base, tokens * (size_t)chosen * sizeof *c->weights);
    c->experts = case_device(&c->base, tokens * (size_t)chosen * sizeof *c->experts);
    c->is_image = case_device(&c->base, tokens);
    return &c->base;
}

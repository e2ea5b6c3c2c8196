/* Memory, made-up numbers, and the products. */
#include "bench/cases/internal.h"
#include "bench/limits.h"

#include <stdarg.h> /* va_list */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* aligned_alloc, exit */
#include <string.h> /* memset */

enum { TILE = 32, ALIGNMENT = 64 };

static size_t round_up(size_t count, size_t step) {
    return (count + step - 1) / step * step;
}

/* ---- memory ---- */

static void *keep_block(struct bench_case *self, void *memory) {
    const int32_t most = (int32_t)(sizeof self->blocks / sizeof self->blocks[0]);
    if (memory == NULL || self->block_count == most) {
        fprintf(stderr, "bench: no memory for the inputs of %s %s\n", self->kernel, self->shape);
        exit(1);
    }
    self->blocks[self->block_count++] = memory;
    return memory;
}

void *case_memory(struct bench_case *self, size_t bytes) {
    size_t rounded = round_up(bytes, ALIGNMENT);
    void *memory = keep_block(self, aligned_alloc(ALIGNMENT, rounded));
    memset(memory, 0, rounded);
    return memory;
}

void *case_pages(struct bench_case *self, size_t bytes) {
    return keep_block(self, bench_pages(bytes));
}

static uint64_t random_state;

void *case_new(size_t bytes, const struct case_options *options, const char *kernel, const char *part,
    const char *format, ...) {
    struct bench_case *self = calloc(1, bytes);
    if (self == NULL) {
        fprintf(stderr, "bench: out of memory\n");
        exit(1);
    }
    self->kernels = options->kernels;
    self->stream = options->stream;
    self->kernel = kernel;
    int written = snprintf(self->shape, sizeof self->shape, "%s%s", part, *part ? " " : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(self->shape + written, sizeof self->shape - (size_t)written, format, arguments);
    va_end(arguments);
    random_state = 7;
    return self;
}

void case_set_tokens(struct bench_case *self, int32_t tokens) {
    self->tokens = tokens;
    self->set_tokens(self, tokens);
}

void case_call(struct bench_case *self, int32_t turn) {
    self->call(self, turn);
}

void case_free(struct bench_case *self) {
    for (int32_t i = 0; i < self->block_count; i++)
        free(self->blocks[i]);
    free(self);
}

/* ---- made-up numbers ---- */

uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static void fill_floats(float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(int32_t)random_bits() * 0x1p-31f;
}

float *random_floats(struct bench_case *self, size_t count) {
    float *values = case_memory(self, count * sizeof *values);
    fill_floats(values, count);
    return values;
}

void fill_bf16(void *memory, size_t count) {
    uint16_t *to = memory;
    for (size_t i = 0; i < count; i++) {
        float value = (float)(int32_t)random_bits() * 0x1p-31f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        to[i] = (uint16_t)(bits >> 16);
    }
}

void fill_codes(void *memory, size_t bytes) {
    uint8_t *to = memory;
    for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
        uint32_t codes = random_bits() & 0xbfbfbfbfu;
        memcpy(to + at, &codes, bytes - at < sizeof codes ? bytes - at : sizeof codes);
    }
}

void fill_scales(uint8_t *scales, size_t count) {
    for (size_t i = 0; i < count; i++)
        scales[i] = (uint8_t)(120 + random_bits() % 4);
}

struct rows random_input(
    struct bench_case *self, enum row_encoding encoding, int32_t tokens, int32_t columns) {
    float *values = random_floats(self, (size_t)tokens * (size_t)columns);
    struct rows rows = {values, encoding, columns, row_bytes(encoding, columns)};
    if (encoding != ROWS_F32) {
        rows.data = case_memory(self, (size_t)tokens * (size_t)rows.stride);
        self->kernels->encode(self->stream, values, tokens, &rows);
    }
    return rows;
}

size_t matrix_bytes(enum weight_format format, int32_t rows, int32_t columns) {
    struct matrix shape = {.format = format, .rows = rows, .columns = columns};
    return (size_t)(matrix_value_bytes(&shape) + matrix_scale_bytes(&shape));
}

struct matrix random_matrix(const struct kernels *kernels, uint8_t *memory, enum weight_format format,
    int32_t rows, int32_t columns) {
    struct matrix host = {memory, NULL, format, rows, columns}, placed;
    const size_t bytes = (size_t)matrix_value_bytes(&host), scales = (size_t)matrix_scale_bytes(&host);
    host.scales = scales > 0 ? memory + bytes : NULL;
    if (format == WEIGHT_F32)
        fill_floats((void *)memory, bytes / sizeof(float));
    else if (format == WEIGHT_BF16)
        fill_bf16(memory, bytes / sizeof(uint16_t));
    else
        fill_codes(memory, bytes);
    fill_scales(memory + bytes, scales);
    if (kernels->place(kernels, &host, NULL, &placed) != OK) {
        fprintf(stderr, "bench: %s\n", failure_message());
        exit(1);
    }
    return placed;
}

/* ---- products ---- */

struct product_case {
    struct bench_case base;
    struct rows x;
    struct matrix *copies;
    int32_t copy_count, groups;
    float *out;
};

static void set_product_tokens(struct bench_case *self, int32_t tokens) {
    const struct product_case *c = (const void *)self;
    const struct matrix *w = &c->copies[0];
    self->flops = 2.0 * tokens * w->rows * w->columns;
    self->bytes = (double)matrix_bytes(w->format, w->rows, w->columns);
}

static void call_product(struct bench_case *self, int32_t turn) {
    struct product_case *c = (void *)self;
    const struct matrix *w = &c->copies[turn % c->copy_count];
    self->kernels->product(self->stream, &c->x, self->tokens, w, c->out, w->rows);
}

static void call_grouped_product(struct bench_case *self, int32_t turn) {
    struct product_case *c = (void *)self;
    self->kernels->grouped_product(
        self->stream, c->x.data, self->tokens, c->groups, &c->copies[turn % c->copy_count], c->out);
}

/* The input, the copies of the weight and the output. */
static void fill_product(struct product_case *c, const struct case_options *options,
    enum weight_format format, enum row_encoding encoding, int32_t rows, int32_t columns) {
    size_t stride = round_up(matrix_bytes(format, rows, columns), ALIGNMENT);
    c->copy_count = (int32_t)(options->rotated_bytes / stride) + 1;
    c->x = random_input(&c->base, encoding, options->most_tokens, c->groups * columns);
    c->out = case_memory(&c->base, (size_t)options->most_tokens * (size_t)rows * sizeof(float));
    c->copies = case_memory(&c->base, (size_t)c->copy_count * sizeof *c->copies);
    uint8_t *memory = case_pages(&c->base, (size_t)c->copy_count * stride);
    for (int32_t i = 0; i < c->copy_count; i++)
        c->copies[i] = random_matrix(c->base.kernels, memory + (size_t)i * stride, format, rows, columns);
    c->base.set_tokens = set_product_tokens;
}

struct bench_case *case_product(const struct case_options *options, const char *part,
    enum weight_format format, int32_t rows, int32_t columns) {
    static const char *const names[] = {[WEIGHT_F32] = "f32",
        [WEIGHT_BF16] = "bf16",
        [WEIGHT_FP8_TILE] = "fp8",
        [WEIGHT_FP8_ROW] = "fp8 row",
        [WEIGHT_FP4_ROW] = "fp4"};
    const bool packed = format != WEIGHT_F32 && format != WEIGHT_BF16;
    struct product_case *c =
        case_new(sizeof *c, options, "product", part, "%s %dx%d", names[format], rows, columns);
    c->base.arithmetic = packed ? CASE_BF16_DOT : CASE_FMA;
    c->base.call = call_product;
    c->groups = 1;
    fill_product(c, options, format, packed ? ROWS_FP8 : ROWS_F32, rows, columns);
    return &c->base;
}

struct bench_case *case_grouped_product(
    const struct case_options *options, const char *part, int32_t groups, int32_t rows, int32_t columns) {
    struct product_case *c =
        case_new(sizeof *c, options, "grouped_product", part, "fp8 %d groups %dx%d", groups, rows, columns);
    c->base.arithmetic = CASE_FMA;
    c->base.call = call_grouped_product;
    c->groups = groups;
    fill_product(c, options, WEIGHT_FP8_TILE, ROWS_F32, rows, columns);
    return &c->base;
}

/* ---- experts ---- */

enum { MOST_CHOICES = 16 };

struct experts_case {
    struct bench_case base;
    struct rows x;
    struct expert_weights *weights; /* [layers * experts] */
    int32_t layers, experts, chosen, inner, columns;
    struct expert_pairs
        choices[MOST_CHOICES]; /* calls rotate through these too, lest they meet the same experts */
    int32_t choice_count;
    bool *visited;
    float *out;
};

/* Pairs of `tokens` tokens, sorted by expert, into arrays that are there already; returns the number of experts met. */
static int32_t fill_pairs(struct experts_case *c, struct expert_pairs *pairs, int32_t tokens) {
    int32_t *row = (int32_t *)pairs->row, *start = (int32_t *)pairs->start, met = 0;
    memset(c->visited, 0, (size_t)tokens * (size_t)c->experts);
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t i = 0; i < c->chosen;) {
            bool *visited = &c->visited[t * c->experts + (int32_t)(random_bits() % (uint32_t)c->experts)];
            i += !*visited;
            *visited = true;
        }
    pairs->count = 0;
    for (int32_t e = 0; e < c->experts; e++) {
        start[e] = pairs->count;
        for (int32_t t = 0; t < tokens; t++)
            if (c->visited[t * c->experts + e])
                row[pairs->count++] = t;
        start[e + 1] = pairs->count;
        met += start[e + 1] > start[e];
    }
    return met;
}

static void set_experts_tokens(struct bench_case *self, int32_t tokens) {
    struct experts_case *c = (void *)self;
    const double cells = 3.0 * c->inner * c->columns;
    double met = 0;
    for (int32_t i = 0; i < c->choice_count; i++)
        met += fill_pairs(c, &c->choices[i], tokens);
    self->flops = 2 * cells * c->choices[0].count;
    self->bytes = met / c->choice_count * 3.0 * (double)matrix_bytes(WEIGHT_FP4_ROW, c->inner, c->columns);
}

static void call_experts(struct bench_case *self, int32_t turn) {
    struct experts_case *c = (void *)self;
    const struct expert_weights *layer = c->weights + turn % c->layers * c->experts;
    const struct expert_pairs *pairs = &c->choices[turn / c->layers % c->choice_count];
    self->kernels->experts(self->stream, &c->x, pairs, layer, 10, c->out);
}

struct bench_case *case_experts(const struct case_options *options, const char *part, int32_t chosen,
    int32_t experts, int32_t inner, int32_t columns) {
    struct experts_case *c =
        case_new(sizeof *c, options, "experts", part, "fp4 %d of %d: %dx%d", chosen, experts, inner, columns);
    const size_t stride = round_up(matrix_bytes(WEIGHT_FP4_ROW, inner, columns), ALIGNMENT);
    const size_t pairs = (size_t)options->most_tokens * (size_t)chosen;
    c->layers = (int32_t)(options->rotated_bytes / (3 * stride * (size_t)experts)) + 1;
    c->choice_count = options->rotated_bytes > 0 ? MOST_CHOICES : 1;
    c->experts = experts;
    c->chosen = chosen;
    c->inner = inner;
    c->columns = columns;
    c->base.arithmetic = CASE_BF16_DOT;
    c->base.set_tokens = set_experts_tokens;
    c->base.call = call_experts;
    c->x = random_input(&c->base, ROWS_FP8, options->most_tokens, columns);
    c->out = case_memory(&c->base, pairs * (size_t)columns * sizeof(float));
    c->visited = case_memory(&c->base, (size_t)options->most_tokens * (size_t)experts);
    const size_t all = (size_t)c->layers * (size_t)experts;
    c->weights = case_memory(&c->base, all * sizeof *c->weights);
    uint8_t *memory = case_pages(&c->base, 3 * stride * all);
    for (size_t e = 0; e < all; e++, memory += 3 * stride)
        c->weights[e] =
            (struct expert_weights){random_matrix(c->base.kernels, memory, WEIGHT_FP4_ROW, inner, columns),
                random_matrix(c->base.kernels, memory + stride, WEIGHT_FP4_ROW, inner, columns),
                random_matrix(c->base.kernels, memory + 2 * stride, WEIGHT_FP4_ROW, columns, inner)};
    const size_t starts = (size_t)experts + 1;
    int32_t *numbers = case_memory(&c->base, (size_t)c->choice_count * (starts + pairs) * sizeof *numbers);
    const float *weight = random_floats(&c->base, pairs);
    for (int32_t i = 0; i < c->choice_count; i++, numbers += starts + pairs)
        c->choices[i] = (struct expert_pairs){0, experts, numbers, numbers + starts, weight};
    return &c->base;
}

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

enum { MOST_BLOCKS = sizeof((struct bench_case *)NULL)->blocks / sizeof(void *) };

static void fail_memory(const struct bench_case *self, const char *why) {
    fprintf(stderr, "bench: no memory for the inputs of %s %s%s%s\n", self->kernel, self->shape,
        *why ? ": " : "", why);
    exit(1);
}

static void *keep_block(struct bench_case *self, void *memory) {
    if (memory == NULL || self->block_count == MOST_BLOCKS)
        fail_memory(self, "");
    self->blocks[self->block_count++] = memory;
    return memory;
}

void *case_memory(struct bench_case *self, size_t bytes) {
    size_t rounded = round_up(bytes, ALIGNMENT);
    void *memory = keep_block(self, aligned_alloc(ALIGNMENT, rounded));
    memset(memory, 0, rounded);
    return memory;
}

void *case_device(struct bench_case *self, size_t bytes) {
    void *memory = NULL;
    if (self->kernels->shares_host_memory)
        return case_memory(self, bytes);
    if (self->device_count == MOST_BLOCKS)
        fail_memory(self, "");
    if (self->kernels->allocate(self->kernels, bytes, &memory) != OK)
        fail_memory(self, failure_message());
    self->device_blocks[self->device_count++] = memory;
    return memory;
}

void *case_twin(struct bench_case *self, void *host, size_t bytes) {
    return self->kernels->shares_host_memory ? host : case_device(self, bytes);
}

void case_send(struct bench_case *self, void *twin, const void *host, size_t bytes) {
    if (twin != host)
        self->kernels->copy_in(self->stream, twin, host, bytes);
}

void *case_upload(struct bench_case *self, void *host, size_t bytes) {
    void *twin = case_twin(self, host, bytes);
    case_send(self, twin, host, bytes);
    return twin;
}

void *case_weights(struct bench_case *self, size_t bytes) {
    return self->kernels->shares_host_memory ? keep_block(self, bench_pages(bytes))
                                             : case_device(self, bytes);
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
    self->rotation = 1;
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
    for (int32_t i = 0; i < self->device_count; i++)
        self->kernels->release(self->kernels, self->device_blocks[i]);
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

float *device_floats(struct bench_case *self, size_t count) {
    return case_upload(self, random_floats(self, count), count * sizeof(float));
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
    float *values = device_floats(self, (size_t)tokens * (size_t)columns);
    struct rows rows = {values, encoding, columns, row_bytes(encoding, columns)};
    if (encoding != ROWS_F32) {
        rows.data = case_device(self, (size_t)tokens * (size_t)rows.stride);
        self->kernels->encode(self->stream, values, tokens, &rows);
    }
    return rows;
}

size_t matrix_bytes(enum weight_format format, int32_t rows, int32_t columns) {
    struct matrix shape = {.format = format, .rows = rows, .columns = columns};
    return (size_t)(matrix_value_bytes(&shape) + matrix_scale_bytes(&shape));
}

size_t matrix_stride(
    const struct kernels *kernels, enum weight_format format, int32_t rows, int32_t columns) {
    const struct matrix shape = {.format = format, .rows = rows, .columns = columns};
    return kernels->shares_host_memory ? round_up(matrix_bytes(format, rows, columns), ALIGNMENT)
                                       : (size_t)kernels->placed_bytes(kernels, &shape);
}

/* A made-up matrix in host memory of matrix_bytes. */
static struct matrix fill_matrix(uint8_t *memory, enum weight_format format, int32_t rows, int32_t columns) {
    struct matrix host = {memory, NULL, format, rows, columns};
    const size_t bytes = (size_t)matrix_value_bytes(&host), scales = (size_t)matrix_scale_bytes(&host);
    host.scales = scales > 0 ? memory + bytes : NULL;
    if (format == WEIGHT_F32)
        fill_floats((void *)memory, bytes / sizeof(float));
    else if (format == WEIGHT_BF16)
        fill_bf16(memory, bytes / sizeof(uint16_t));
    else
        fill_codes(memory, bytes);
    fill_scales(memory + bytes, scales);
    return host;
}

struct matrix random_matrix(const struct kernels *kernels, uint8_t *memory, enum weight_format format,
    int32_t rows, int32_t columns) {
    struct matrix placed;
    uint8_t *made = NULL; /* where the device doesn't share host memory */
    if (!kernels->shares_host_memory)
        made = malloc(matrix_bytes(format, rows, columns));
    if (made == NULL && !kernels->shares_host_memory) {
        fprintf(stderr, "bench: out of memory\n");
        exit(1);
    }
    const struct matrix host = fill_matrix(made != NULL ? made : memory, format, rows, columns);
    if (kernels->place(kernels, &host, made != NULL ? memory : NULL, &placed) != OK) {
        fprintf(stderr, "bench: %s\n", failure_message());
        exit(1);
    }
    free(made);
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
    self->activations = (double)tokens * ((double)c->x.stride + 4.0 * w->rows);
    self->result = c->out;
    self->result_count = (int64_t)tokens * w->rows;
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
    size_t stride = matrix_stride(options->kernels, format, rows, columns);
    c->copy_count = (int32_t)(options->rotated_bytes / stride) + 1;
    c->base.rotation = c->copy_count;
    c->x = random_input(&c->base, encoding, options->most_tokens, c->groups * columns);
    c->out = case_device(&c->base, (size_t)options->most_tokens * (size_t)rows * sizeof(float));
    c->copies = case_memory(&c->base, (size_t)c->copy_count * sizeof *c->copies);
    uint8_t *memory = case_weights(&c->base, (size_t)c->copy_count * stride);
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
    c->base.fits_tensor_cores = format != WEIGHT_F32;
    c->base.call = call_product;
    c->base.weight_rows = rows;
    c->base.weight_columns = columns;
    c->groups = 1;
    fill_product(c, options, format, packed ? ROWS_FP8 : ROWS_F32, rows, columns);
    return &c->base;
}

struct bench_case *case_grouped_product(
    const struct case_options *options, const char *part, int32_t groups, int32_t rows, int32_t columns) {
    struct product_case *c =
        case_new(sizeof *c, options, "grouped_product", part, "fp8 %d groups %dx%d", groups, rows, columns);
    c->base.arithmetic = CASE_FMA;
    c->base.fits_tensor_cores = true;
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
    int32_t ranks; /* whose tokens choose among experts * ranks; this rank has the first */
    int32_t most_pairs;
    struct expert_pairs
        choices[MOST_CHOICES]; /* calls rotate through these too, lest they meet the same experts */
    int32_t choice_count;
    int32_t *numbers, *twins; /* host and device memory: start, then row of each choice */
    bool *visited;
    float *out;
};

/* Marks the experts that each token visits. */
static void choose_experts(struct experts_case *c, int32_t tokens, int32_t among) {
    memset(c->visited, 0, (size_t)tokens * (size_t)among);
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t i = 0; i < c->chosen;) {
            bool *visited = &c->visited[t * among + (int32_t)(random_bits() % (uint32_t)among)];
            i += !*visited;
            *visited = true;
        }
}

/* Pairs of `tokens` tokens, sorted by expert, into start [experts + 1] and row; returns the number of experts met. */
static int32_t fill_pairs(
    struct experts_case *c, int32_t *start, int32_t *row, int32_t *count, int32_t tokens) {
    const int32_t among = c->experts * c->ranks;
    int32_t met = 0;
    choose_experts(c, tokens, among);
    *count = 0;
    for (int32_t e = 0; e < c->experts; e++) {
        start[e] = *count;
        for (int32_t t = 0; t < tokens; t++)
            if (c->visited[t * among + e] && *count < c->most_pairs)
                row[(*count)++] = t;
        start[e + 1] = *count;
        met += start[e + 1] > start[e];
    }
    return met;
}

/* Numbers of one choice: start and row. */
static size_t numbers_of_choice(const struct experts_case *c) {
    return (size_t)c->experts + 1 + (size_t)c->most_pairs;
}

static void set_experts_tokens(struct bench_case *self, int32_t tokens) {
    struct experts_case *c = (void *)self;
    const double cells = 3.0 * c->inner * c->columns;
    double met = 0, pairs = 0;
    for (int32_t i = 0; i < c->choice_count; i++) {
        int32_t *start = c->numbers + (size_t)i * numbers_of_choice(c);
        met += fill_pairs(c, start, start + c->experts + 1, &c->choices[i].count, tokens * c->ranks);
        pairs += c->choices[i].count;
    }
    case_send(
        self, c->twins, c->numbers, (size_t)c->choice_count * numbers_of_choice(c) * sizeof *c->numbers);
    pairs /= c->choice_count;
    self->flops = 2 * cells * (c->ranks > 1 ? pairs : c->choices[0].count);
    self->bytes = met / c->choice_count * 3.0 * (double)matrix_bytes(WEIGHT_FP4_ROW, c->inner, c->columns);
    self->activations = pairs * ((double)c->x.stride + 4.0 * c->columns);
    self->result = c->out;
    self->result_count = (int64_t)c->choices[0].count * c->columns;
}

static void call_experts(struct bench_case *self, int32_t turn) {
    struct experts_case *c = (void *)self;
    const struct expert_weights *layer = c->weights + turn % c->layers * c->experts;
    const struct expert_pairs *pairs = &c->choices[turn / c->layers % c->choice_count];
    self->kernels->experts(self->stream, &c->x, pairs, layer, 10, c->out);
}

/* The weights of all layers' experts. */
static void fill_experts(struct experts_case *c, size_t stride) {
    const size_t all = (size_t)c->layers * (size_t)c->experts;
    const struct kernels *kernels = c->base.kernels;
    c->weights = case_memory(&c->base, all * sizeof *c->weights);
    uint8_t *memory = case_weights(&c->base, 3 * stride * all);
    for (size_t e = 0; e < all; e++, memory += 3 * stride)
        c->weights[e] =
            (struct expert_weights){random_matrix(kernels, memory, WEIGHT_FP4_ROW, c->inner, c->columns),
                random_matrix(kernels, memory + stride, WEIGHT_FP4_ROW, c->inner, c->columns),
                random_matrix(kernels, memory + 2 * stride, WEIGHT_FP4_ROW, c->columns, c->inner)};
}

static void fill_choices(struct experts_case *c) {
    const size_t each = numbers_of_choice(c), bytes = (size_t)c->choice_count * each * sizeof *c->numbers;
    c->numbers = case_memory(&c->base, bytes);
    c->twins = case_twin(&c->base, c->numbers, bytes);
    const float *weight = device_floats(&c->base, (size_t)c->most_pairs);
    for (int32_t i = 0; i < c->choice_count; i++) {
        const int32_t *start = c->twins + (size_t)i * each;
        c->choices[i] = (struct expert_pairs){0, c->experts, start, start + c->experts + 1, weight};
    }
}

static struct bench_case *make_experts(struct experts_case *c, const struct case_options *options,
    int32_t chosen, int32_t experts, int32_t ranks, int32_t inner, int32_t columns) {
    const size_t stride = matrix_stride(options->kernels, WEIGHT_FP4_ROW, inner, columns);
    const int32_t tokens = options->most_tokens * ranks;
    c->layers = (int32_t)(options->rotated_bytes / (3 * stride * (size_t)experts)) + 1;
    c->choice_count = options->rotated_bytes > 0 ? MOST_CHOICES : 1;
    c->base.rotation = c->layers;
    c->experts = experts;
    c->chosen = chosen;
    c->ranks = ranks;
    c->inner = inner;
    c->columns = columns;
    /* Of those that tokens spread over all ranks a quarter more than its share, which none gets. */
    c->most_pairs = ranks == 1 ? tokens * chosen : options->most_tokens * chosen * 5 / 4 + 64 * chosen;
    c->base.arithmetic = CASE_BF16_DOT;
    c->base.fits_tensor_cores = true;
    c->base.set_tokens = set_experts_tokens;
    c->base.call = call_experts;
    c->x = random_input(&c->base, ROWS_FP8, tokens, columns);
    c->out = case_device(&c->base, (size_t)c->most_pairs * (size_t)columns * sizeof(float));
    c->visited = case_memory(&c->base, (size_t)tokens * (size_t)(experts * ranks));
    fill_experts(c, stride);
    fill_choices(c);
    return &c->base;
}

struct bench_case *case_experts(const struct case_options *options, const char *part, int32_t chosen,
    int32_t experts, int32_t inner, int32_t columns) {
    struct experts_case *c =
        case_new(sizeof *c, options, "experts", part, "fp4 %d of %d: %dx%d", chosen, experts, inner, columns);
    return make_experts(c, options, chosen, experts, 1, inner, columns);
}

struct bench_case *case_experts_share(const struct case_options *options, const char *part, int32_t chosen,
    int32_t experts, int32_t ranks, int32_t inner, int32_t columns) {
    struct experts_case *c = case_new(sizeof *c, options, "experts", part, "fp4 %d of %d, 1/%d: %dx%d",
        chosen, experts, ranks, inner, columns);
    return make_experts(c, options, chosen, experts / ranks, ranks, inner, columns);
}

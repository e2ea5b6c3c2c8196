/* Operations on rows and on the residual streams. */
#include "bench/cases/internal.h"

#include <string.h> /* strcmp */

enum { STREAMS = 4, MIXES = (2 + STREAMS) * STREAMS, SINKHORN_ROUNDS = 20 };
static const float EPSILON = 1e-20f, MIX_EPSILON = 1e-6f;

struct rows_operation;

struct rows_case {
    struct bench_case base;
    const struct rows_operation *operation;
    int32_t columns;
    float *x, *y, *streams, *base_mix, *pre, *post, *comb, *out, *kv;
    uint8_t *encoded, *is_image;
    uint8_t *weight; /* BF16 [STREAMS * columns] */
    struct matrix fn;
};

struct rows_operation {
    const char *kernel;
    void (*call)(struct bench_case *self, int32_t turn);
    enum case_arithmetic arithmetic;
    double flops,
        bytes; /* of one column of a token: float32 values, codes and scales read and written, from caches */
};

static void call_rms_norm(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct rows_case *c = (void *)self;
    self->kernels->rms_norm(self->stream, c->x, self->tokens, c->columns, c->weight, EPSILON, c->out);
}

static void encode_as(struct rows_case *c, enum row_encoding encoding) {
    const struct rows rows = {c->encoded, encoding, c->columns, row_bytes(encoding, c->columns)};
    c->base.kernels->encode(c->base.stream, c->x, c->base.tokens, &rows);
}

static void call_encode(struct bench_case *self, int32_t turn) {
    (void)turn;
    encode_as((void *)self, ROWS_FP8);
}

static void call_encode_fine(struct bench_case *self, int32_t turn) {
    (void)turn;
    encode_as((void *)self, ROWS_FP4_FINE);
}

static void call_swiglu(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct rows_case *c = (void *)self;
    self->kernels->swiglu(self->stream, c->x, c->y, self->tokens, c->columns, 10, c->out);
}

static void call_collapse_norm(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct rows_case *c = (void *)self;
    self->kernels->collapse_norm(
        self->stream, c->streams, c->pre, self->tokens, STREAMS, c->columns, c->weight, EPSILON, c->out);
}

static void call_mix(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct rows_case *c = (void *)self;
    self->kernels->mix(self->stream, c->streams, self->tokens, STREAMS, c->columns, &c->fn, c->base_mix,
        c->base_mix, SINKHORN_ROUNDS, MIX_EPSILON, EPSILON, c->pre, c->post, c->comb);
}

static void call_expand(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct rows_case *c = (void *)self;
    self->kernels->expand(
        self->stream, c->x, c->post, c->comb, self->tokens, STREAMS, c->columns, c->streams);
}

static void call_engram_add(struct bench_case *self, int32_t turn) {
    (void)turn;
    struct rows_case *c = (void *)self;
    self->kernels->engram_add(self->stream, c->kv, c->weight, c->weight, c->is_image, self->tokens, STREAMS,
        c->columns, EPSILON, c->streams);
}

static const struct rows_operation operations[] = {
    {"rms_norm", call_rms_norm, CASE_CACHE, 4, 8},
    {"encode", call_encode, CASE_CACHE, 0, 4 + 33.0 / 32},
    {"encode_fine", call_encode_fine, CASE_CACHE, 0, 4 + 9.0 / 16},
    {"swiglu", call_swiglu, CASE_CACHE, 0, 12},
    {"collapse_norm", call_collapse_norm, CASE_CACHE, 2 * STREAMS + 4, 4 * STREAMS + 4},
    {"mix", call_mix, CASE_FMA, 2 * MIXES *STREAMS, 4 * STREAMS},
    {"expand", call_expand, CASE_CACHE, 2 * STREAMS *(STREAMS + 1), 8 * STREAMS + 4},
    {"engram_add", call_engram_add, CASE_CACHE, 8 * STREAMS, 4 * (STREAMS + 1) + 8 * STREAMS},
};

static void set_rows_tokens(struct bench_case *self, int32_t tokens) {
    const struct rows_case *c = (const void *)self;
    self->flops = c->operation->flops * tokens * c->columns;
    self->bytes = c->operation->bytes * tokens * c->columns;
}

static float *quarter_floats(struct bench_case *self, size_t count) {
    float *values = random_floats(self, count);
    for (size_t i = 0; i < count; i++)
        values[i] *= 0.25f;
    return case_upload(self, values, count * sizeof *values);
}

static void fill_rows(struct rows_case *c, size_t tokens) {
    const size_t row = (size_t)c->columns;
    c->x = device_floats(&c->base, tokens * row);
    c->y = device_floats(&c->base, tokens * row);
    c->streams = device_floats(&c->base, tokens * STREAMS * row);
    c->kv = device_floats(&c->base, tokens * (STREAMS + 1) * row);
    c->base_mix = device_floats(&c->base, MIXES);
    c->pre = device_floats(&c->base, tokens * STREAMS);
    /* expand is called again and again on its own result, which must stay a number */
    c->post = quarter_floats(&c->base, tokens * STREAMS);
    c->comb = quarter_floats(&c->base, tokens * STREAMS * STREAMS);
    c->out = case_device(&c->base, tokens * row * sizeof(float));
    c->encoded = case_device(&c->base, tokens * row * 2);
    c->is_image = case_device(&c->base, tokens);
    uint8_t *weight = case_memory(&c->base, STREAMS * row * 2);
    fill_bf16(weight, STREAMS * row);
    c->weight = case_upload(&c->base, weight, STREAMS * row * 2);
}

struct bench_case *case_rows(
    const struct case_options *options, const char *part, const char *kernel, int32_t columns) {
    const struct rows_operation *operation = NULL;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++)
        if (strcmp(kernel, operations[i].kernel) == 0)
            operation = &operations[i];
    if (operation == NULL)
        return NULL;
    struct rows_case *c = case_new(sizeof *c, options, operation->kernel, part, "%d", columns);
    c->operation = operation;
    c->columns = columns;
    c->base.arithmetic = operation->arithmetic;
    c->base.set_tokens = set_rows_tokens;
    c->base.call = operation->call;
    fill_rows(c, (size_t)options->most_tokens);
    if (strcmp(kernel, "mix") == 0) {
        uint8_t *memory =
            case_weights(&c->base, matrix_stride(options->kernels, WEIGHT_F32, MIXES, STREAMS * columns));
        c->fn = random_matrix(options->kernels, memory, WEIGHT_F32, MIXES, STREAMS * columns);
    }
    return &c->base;
}

/* The router of the CUDA backend against the CPU backend: the same experts and the same weights, bit for bit. */
#include "operations_check.h"

struct route_case {
    int32_t experts, k;
    bool normalize;
    const float *logits, *bias, *bias_vl;
    const uint8_t *is_image;
};

/* A token: k experts, then k weights. */
static void run_route(const struct kernels *kernels, struct stream *stream, const void *context,
    int32_t first, int32_t count, void *out) {
    const struct route_case *c = context;
    struct device d = open_device(kernels, stream);
    size_t all = (size_t)c->experts * sizeof(float), chosen = (size_t)(count * c->k) * 4;
    float *logits = to_device(&d, c->logits + (int64_t)first * c->experts, (size_t)count * all);
    int32_t *experts = device_array(&d, chosen);
    float *weights = device_array(&d, chosen);
    kernels->route(stream, logits, count, c->experts, to_device(&d, c->bias, all),
        to_device(&d, c->bias_vl, all), to_device(&d, c->is_image + first, (size_t)count), c->k, c->normalize,
        1.5f, experts, weights);
    uint8_t *ids = allocate_or_fail(chosen), *values = allocate_or_fail(chosen), *to = out;
    from_device(&d, ids, experts, chosen);
    from_device(&d, values, weights, chosen);
    size_t part = (size_t)c->k * 4;
    for (int32_t t = 0; t < count; t++) {
        memcpy(to + (size_t)t * 2 * part, ids + (size_t)t * part, part);
        memcpy(to + ((size_t)t * 2 + 1) * part, values + (size_t)t * part, part);
    }
    free(ids);
    free(values);
    close_device(&d);
}

static void check_route(int32_t tokens, struct route_case c, float *logits) {
    float *bias = random_floats((size_t)c.experts, 0.1f), *bias_vl = random_floats((size_t)c.experts, 0.1f);
    uint8_t *is_image = allocate_or_fail((size_t)tokens);
    for (int32_t t = 0; t < tokens; t++)
        is_image[t] = t % 3 == 1;
    c.logits = logits;
    c.bias = bias;
    c.bias_vl = bias_vl;
    c.is_image = is_image;
    struct trial trial = {"route", run_route, &c, tokens, (size_t)c.k * 8, NULL, SAME_BITS};
    compare_backends(&trial);
    free(logits);
    free(bias);
    free(bias_vl);
    free(is_image);
}

static void test_shapes(void **state) {
    (void)state;
    check_route(
        20, (struct route_case){.experts = 384, .k = 6, .normalize = true}, random_floats(20 * 384, 8));
    check_route(70, (struct route_case){.experts = 16, .k = 3, .normalize = true}, random_floats(70 * 16, 4));
    check_route(7, (struct route_case){.experts = 5, .k = 5, .normalize = false}, random_floats(7 * 5, 90));
    check_route(7, (struct route_case){.experts = 33, .k = 1, .normalize = true}, random_floats(7 * 33, 900));
    check_route(
        3, (struct route_case){.experts = 100, .k = 40, .normalize = true}, random_floats(3 * 100, 9));
}

/* Few values, so that the same ones meet again and again: the lower expert wins. */
static void test_ties(void **state) {
    (void)state;
    enum { TOKENS = 12, EXPERTS = 96 };
    float *logits = allocate_or_fail(TOKENS * EXPERTS * sizeof *logits);
    for (int32_t i = 0; i < TOKENS * EXPERTS; i++)
        logits[i] = (float)(int32_t)(random_bits() % 3) - 50;
    struct route_case c = {.experts = EXPERTS, .k = 8, .normalize = true};
    check_route(TOKENS, c, logits);
}

/* Infinite and tiny logits; NaN is taken only where nothing else is left. Weights of a token without NaN among its chosen are
 * numbers, so bytes can be compared. */
static void test_edges(void **state) {
    (void)state;
    enum { TOKENS = 6, EXPERTS = 40 };
    float *logits = random_floats(TOKENS * EXPERTS, 1);
    for (int32_t i = 0; i < EXPERTS; i++) {
        logits[i] = i % 3 == 0 ? NAN : logits[i];
        logits[EXPERTS + i] = i % 5 == 0 ? -INFINITY : -800.0f - (float)i;
        logits[2 * EXPERTS + i] = ldexpf(logits[2 * EXPERTS + i], -130);
        logits[3 * EXPERTS + i] = i % 2 ? 0.0f : -0.0f;
        logits[4 * EXPERTS + i] = i < 4 ? (float)i * 1e30f : -NAN;
    }
    struct route_case c = {.experts = EXPERTS, .k = 4, .normalize = true};
    check_route(TOKENS, c, logits);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

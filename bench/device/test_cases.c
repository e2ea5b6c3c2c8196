/* The cases of the benches on both backends: the same made-up inputs, so nearly the same results. */
#include "bench/cases/cases.h"

#include <math.h>   /* fabs */
#include <setjmp.h> /* for cmocka */
#include <stdarg.h>
#include <stdlib.h> /* malloc */

#include <cmocka.h>

enum { BACKENDS = 2, TOKENS = 5 };

typedef struct bench_case *maker(const struct case_options *options);

static struct bench_case *make_fp8(const struct case_options *options) {
    return case_product(options, "", WEIGHT_FP8_TILE, 64, 128);
}
static struct bench_case *make_bf16(const struct case_options *options) {
    return case_product(options, "", WEIGHT_BF16, 64, 128);
}
static struct bench_case *make_grouped(const struct case_options *options) {
    return case_grouped_product(options, "", 2, 64, 64);
}
static struct bench_case *make_experts(const struct case_options *options) {
    return case_experts(options, "", 2, 4, 64, 128);
}
static struct bench_case *make_share(const struct case_options *options) {
    return case_experts_share(options, "", 3, 16, 4, 64, 128);
}
static struct bench_case *make_attend(const struct case_options *options) {
    return case_attend(options, "", 4, 64, 16, 256);
}
static struct bench_case *make_choose(const struct case_options *options) {
    return case_choose(options, "", 4, 16, 256);
}
static struct bench_case *make_route(const struct case_options *options) {
    return case_route(options, "", 3, 16);
}
static struct bench_case *make_encode(const struct case_options *options) {
    return case_rows(options, "", "encode", 128);
}
static struct bench_case *make_mix(const struct case_options *options) {
    return case_rows(options, "", "mix", 128);
}
static struct bench_case *make_engram(const struct case_options *options) {
    return case_rows(options, "", "engram_add", 128);
}

static maker *const makers[] = {make_fp8, make_bf16, make_grouped, make_experts, make_share, make_attend,
    make_choose, make_route, make_encode, make_mix, make_engram};

/* Calls the case with each copy of its weights; the result of the first copy in memory of its own, or NULL. */
static float *run_case(const struct case_options *options, maker *make, int64_t *count) {
    struct bench_case *one = make(options);
    case_set_tokens(one, TOKENS);
    for (int32_t turn = one->rotation; turn >= 0; turn--)
        case_call(one, turn);
    *count = one->result_count;
    float *result = *count > 0 ? malloc((size_t)*count * sizeof *result) : NULL;
    if (result != NULL)
        one->kernels->copy_out(one->stream, result, one->result, (size_t)*count * sizeof *result);
    if (one->kernels->synchronize(one->stream) != OK)
        fail_msg("%s %s: %s", one->kernel, one->shape, failure_message());
    assert_true(one->flops + one->bytes + (double)one->result_count > 0);
    case_free(one);
    return result;
}

static void compare_case(const struct case_options options[BACKENDS], maker *make) {
    int64_t count[BACKENDS];
    float *result[BACKENDS];
    double top = 0;
    for (int b = 0; b < BACKENDS; b++)
        result[b] = run_case(&options[b], make, &count[b]);
    assert_int_equal(count[0], count[1]);
    for (int64_t i = 0; i < count[0]; i++)
        top = fabs((double)result[0][i]) > top ? fabs((double)result[0][i]) : top;
    for (int64_t i = 0; i < count[0]; i++)
        assert_true(fabs((double)result[0][i] - (double)result[1][i]) <= 0.02 * top);
    assert_true(count[0] == 0 || top > 0);
    free(result[0]);
    free(result[1]);
}

static void test_cases(void **state) {
    (void)state;
    const struct kernels *kernels[BACKENDS];
    struct case_options options[BACKENDS];
    assert_int_equal(kernels_cpu_create(1, NULL, &kernels[0]), OK);
    assert_int_equal(kernels_cuda_create(0, &kernels[1]), OK);
    for (int b = 0; b < BACKENDS; b++) {
        options[b] =
            (struct case_options){.kernels = kernels[b], .most_tokens = TOKENS, .rotated_bytes = 20000};
        assert_int_equal(kernels[b]->stream_create(kernels[b], &options[b].stream), OK);
    }
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        compare_case(options, makers[i]);
    for (int b = 0; b < BACKENDS; b++) {
        kernels[b]->stream_free(kernels[b], options[b].stream);
        kernels_free(kernels[b]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

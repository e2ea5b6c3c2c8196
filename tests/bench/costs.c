/* Costs fitted to recorded steps: exact ones come back, none is below 0, and no noise of single steps moves them far. */
#include "bench/cases/costs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const struct recorded_costs real = {0.02, 3e-3, 0.1, 7e-3, 4e-8};

static uint32_t next_number(uint32_t *state) {
    return *state = *state * 1664525u + 1013904223u;
}

/* Writes a recording of steps with errors of up to `noise` of their time, by `costs`. */
static void record(const char *path, const struct recorded_costs *costs, int steps, double noise) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "{\"bench\":\"steps\"}\n");
    uint32_t state = 7;
    for (int i = 0; i < steps; i++) {
        const struct step_content content = {.prompt_tokens = i % 3 ? next_number(&state) % 512 : 0,
            .prompt_ends = i % 3 ? next_number(&state) % 4 : 0,
            .sequences = 1 + next_number(&state) % 64,
            .positions = next_number(&state) % 4000000};
        double error = noise * (2 * (next_number(&state) >> 8) * 0x1p-24 - 1);
        fprintf(file,
            "{\"prompt_tokens\":%g,\"prompt_ends\":%g,\"sequences\":%g,\"positions\":%.0f,\"seconds\":%.17g}"
            "\n",
            content.prompt_tokens, content.prompt_ends, content.sequences, content.positions,
            (1 + error) * step_seconds(costs, &content));
    }
    fclose(file);
}

static void fit(const char *path, struct recorded_costs *costs, struct step_fit *quality) {
    assert_int_equal(recorded_costs_read(path, costs, quality), OK);
}

static void assert_near(double found, double expected, double part) {
    assert_true(fabs(found - expected) <= part * expected);
}

static void finds_exact_costs(void **state) {
    struct recorded_costs costs;
    struct step_fit quality;
    record(*state, &real, 60, 0);
    fit(*state, &costs, &quality);
    assert_near(costs.step, real.step, 1e-6);
    assert_near(costs.prompt_token, real.prompt_token, 1e-6);
    assert_near(costs.prompt_end, real.prompt_end, 1e-6);
    assert_near(costs.sequence, real.sequence, 1e-6);
    assert_near(costs.position, real.position, 1e-6);
    assert_int_equal(quality.steps, 60);
    assert_true(quality.worst < 1e-6);
}

static void bears_noise(void **state) {
    struct recorded_costs costs;
    struct step_fit quality;
    record(*state, &real, 3000, 0.1);
    fit(*state, &costs, &quality);
    assert_near(costs.prompt_token, real.prompt_token, 0.03);
    assert_near(costs.sequence, real.sequence, 0.05);
    assert_true(quality.typical > 0.02 && quality.typical < 0.1);
    assert_true(quality.worst < 0.2);
}

static void leaves_out_what_would_be_negative(void **state) {
    struct recorded_costs costs;
    struct step_fit quality;
    const struct recorded_costs odd = {0.5, 3e-3, 0.1, 7e-3, -1e-8};
    record(*state, &odd, 200, 0);
    fit(*state, &costs, &quality);
    assert_true(costs.position == 0);
    assert_true(costs.step >= 0 && costs.prompt_token > 0 && costs.prompt_end >= 0 && costs.sequence > 0);
    const struct recorded_costs none = {0.02, 0, 0, 7e-3, 0};
    record(*state, &none, 200, 0);
    fit(*state, &costs, &quality);
    assert_near(costs.sequence, none.sequence, 1e-6);
    assert_true(costs.prompt_token < 1e-9 && costs.prompt_token >= 0);
}

static void counts_no_empty_step(void **state) {
    (void)state;
    const struct step_content empty = {0}, one = {.sequences = 1};
    assert_true(step_seconds(&real, &empty) == 0);
    assert_near(step_seconds(&real, &one), real.step + real.sequence, 1e-12);
}

static int make_path(void **state) {
    static char path[] = "/tmp/nocturne-costs-XXXXXX";
    int file = mkstemp(path);
    if (file < 0)
        return -1;
    close(file);
    *state = path;
    return 0;
}

static int remove_path(void **state) {
    return unlink(*state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_exact_costs),
        cmocka_unit_test(bears_noise),
        cmocka_unit_test(leaves_out_what_would_be_negative),
        cmocka_unit_test(counts_no_empty_step),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}

/* FP8, FP4 and their group scales: against the goldens of the NumPy reference, and against a slow oracle that searches
 * the list of all values a format has. */
#include "kernels/cpu/operations/number_formats.h"

#include <hdf5.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- the oracle ---- */

/* Value of a small floating-point code: `mantissa_bits` after `exponent_bits`, no infinities. */
static double code_value(uint32_t code, int32_t exponent_bits, int32_t mantissa_bits) {
    int32_t bias = (1 << (exponent_bits - 1)) - 1;
    int32_t mantissa = (int32_t)(code & ((1u << mantissa_bits) - 1));
    int32_t exponent = (int32_t)(code >> mantissa_bits);
    if (exponent == 0)
        return ldexp(mantissa, 1 - bias - mantissa_bits);
    return ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

/* The code nearest to |value| among the positive codes 0 .. last, ties to the even code. */
static uint32_t nearest_code(double value, uint32_t last, int32_t exponent_bits, int32_t mantissa_bits) {
    double magnitude = fabs(value);
    uint32_t low = 0, high = last; /* the largest code whose value is <= magnitude */
    while (low < high) {
        uint32_t middle = (low + high + 1) / 2;
        if (code_value(middle, exponent_bits, mantissa_bits) <= magnitude)
            low = middle;
        else
            high = middle - 1;
    }
    if (low == last)
        return last;
    double below = magnitude - code_value(low, exponent_bits, mantissa_bits);
    double above = code_value(low + 1, exponent_bits, mantissa_bits) - magnitude;
    return below < above || (below == above && low % 2 == 0) ? low : low + 1;
}

static double oracle_e4m3(double value) {
    return copysign(code_value(nearest_code(value, 126, 4, 3), 4, 3), value);
}

static double oracle_e2m1(double value) {
    return copysign(code_value(nearest_code(value, 7, 2, 1), 2, 1), value);
}

static double power_of_two_at_least(double value) {
    int exponent;
    double mantissa = frexp(value, &exponent);
    return ldexp(1, mantissa == 0.5 ? exponent - 1 : exponent);
}

static float oracle_amax(const float *x, int32_t count, float floor) {
    float amax = floor;
    for (int32_t i = 0; i < count; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    return amax;
}

/* One group of 32 (16 for fine) of finite values, rounded as the reference does. */
static void oracle_round(enum row_encoding encoding, const float *x, float *out) {
    if (encoding == ROWS_FP8) {
        double scale = power_of_two_at_least(oracle_amax(x, 32, 1e-4f) * (float)(1.0 / 448));
        for (int32_t i = 0; i < 32; i++)
            out[i] = (float)(oracle_e4m3(x[i] / scale) * scale);
    } else if (encoding == ROWS_FP4) {
        double scale = power_of_two_at_least(oracle_amax(x, 32, (float)ldexp(6, -126)) * (float)(1.0 / 6));
        for (int32_t i = 0; i < 32; i++)
            out[i] = (float)(oracle_e2m1(x[i] / scale) * scale);
    } else {
        float unrounded = oracle_amax(x, 16, (float)ldexp(6, -9)) / 6;
        float scale = (float)oracle_e4m3(unrounded < 448 ? unrounded : 448);
        for (int32_t i = 0; i < 16; i++)
            out[i] = (float)(oracle_e2m1((double)(x[i] / scale)) * (double)scale);
    }
}

/* Equal values; zeros of either sign are equal. */
static void assert_same(const float *found, const float *expected, int32_t count, const float *input) {
    for (int32_t i = 0; i < count; i++)
        if (!(found[i] == expected[i]))
            fail_msg("column %d: %a became %a, expected %a", i, (double)input[i], (double)found[i],
                (double)expected[i]);
}

/* ---- goldens ---- */

static float *read_golden(const char *name, hsize_t *rows) {
    hid_t file = H5Fopen(SOURCE_DIR "/tests/data/tiny/golden.h5", H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(file >= 0);
    hid_t data = H5Dopen2(file, name, H5P_DEFAULT);
    assert_true(data >= 0);
    hid_t space = H5Dget_space(data);
    hsize_t shape[2];
    assert_int_equal(H5Sget_simple_extent_dims(space, shape, NULL), 2);
    assert_int_equal(shape[1], 32);
    float *values = malloc(shape[0] * shape[1] * sizeof *values);
    assert_non_null(values);
    assert_true(H5Dread(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Sclose(space);
    H5Dclose(data);
    H5Fclose(file);
    *rows = shape[0];
    return values;
}

static void test_goldens(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum row_encoding encoding;
    } cases[] = {
        {"rounding/fp8", ROWS_FP8}, {"rounding/fp4", ROWS_FP4}, {"rounding/fp4_fine", ROWS_FP4_FINE}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hsize_t rows, expected_rows;
        float *input = read_golden("rounding/input", &rows);
        float *expected = read_golden(cases[i].name, &expected_rows);
        assert_int_equal(rows, expected_rows);
        assert_true(rows > 100);
        for (hsize_t r = 0; r < rows; r++) {
            float x[32];
            memcpy(x, input + r * 32, sizeof x);
            round_row(cases[i].encoding, x, 32);
            assert_same(x, expected + r * 32, 32, input + r * 32);
        }
        free(input);
        free(expected);
    }
}

/* ---- single numbers ---- */

static void test_values_of_all_codes(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 128; code++) {
        if (code == 127) {
            assert_true(isnan(e4m3_value(127)) && isnan(e4m3_value(255)));
            continue;
        }
        assert_true(e4m3_value((uint8_t)code) == code_value(code, 4, 3));
        assert_true(e4m3_value((uint8_t)(code | 128)) == -code_value(code, 4, 3));
        assert_int_equal(e4m3_code(e4m3_value((uint8_t)code)), code);
        assert_int_equal(e4m3_code(-e4m3_value((uint8_t)code)), code | 128);
    }
    for (uint32_t code = 0; code < 8; code++) {
        assert_true(e2m1_value((uint8_t)code) == code_value(code, 2, 1));
        assert_true(e2m1_value((uint8_t)(code | 8)) == -code_value(code, 2, 1));
        assert_int_equal(e2m1_code(e2m1_value((uint8_t)code)), code);
    }
    for (uint32_t code = 0; code < 255; code++)
        assert_true(e8m0_value((uint8_t)code) == ldexp(1, (int)code - 127));
    assert_true(isnan(e8m0_value(255)));
    assert_true(bf16_value(0x3f80) == 1 && bf16_value(0xc049) == -3.140625f);
}

/* Floats of every sign, exponent and leading mantissa bits, with three patterns below them: exact, just above, just
 * below the next. Halfway points of both formats are among them. */
static void test_nearest_codes(void **state) {
    (void)state;
    static const uint32_t low[] = {0, 1, 0x1ff};
    for (uint32_t high = 0; high < 1u << 23; high++)
        for (int32_t i = 0; i < 3; i++) {
            float value = bits_float(high << 9 | low[i]);
            if (isnan(value)) {
                assert_int_equal(e4m3_code(value) & 127, E4M3_NAN);
                continue;
            }
            double clipped = value > 448 ? 448 : value < -448 ? -448 : value;
            uint32_t code = nearest_code(clipped, 126, 4, 3) | (signbit(value) ? 128 : 0);
            if (e4m3_code(value) != code)
                fail_msg("e4m3_code(%a): %u, expected %u", (double)value, e4m3_code(value), code);
            code = nearest_code(value, 7, 2, 1) | (signbit(value) ? 8 : 0);
            if (e2m1_code(value) != code)
                fail_msg("e2m1_code(%a): %u, expected %u", (double)value, e2m1_code(value), code);
        }
}

/* ---- groups ---- */

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

/* A finite group of one of several kinds: any bits, one exponent, denormals, ties, zeros. */
static void random_group(uint64_t *seed, float *x) {
    uint32_t kind = next_random(seed) % 5, exponent = next_random(seed) % 255;
    for (int32_t i = 0; i < 32; i++) {
        uint32_t bits = next_random(seed);
        if (kind == 1) /* one exponent, and a little below */
            bits = (bits & 0x807fffffu) | (exponent > bits >> 28 ? exponent - (bits >> 28) : 0) << 23;
        else if (kind == 2) /* few bits: ties and equal magnitudes */
            bits = (bits & 0x80780000u) | (exponent > 3 ? exponent - (bits & 3) : 0) << 23;
        else if (kind == 3)
            bits &= bits & 1 ? 0x807fffffu : 0x80000000u; /* denormals and zeros */
        else if (kind == 4)
            bits = float_bits((float)(int32_t)bits * 0x1p-30f);
        if ((bits & INFINITY_BITS) == INFINITY_BITS)
            bits &= 0xbfffffffu;
        x[i] = bits_float(bits);
    }
}

static void test_random_groups(void **state) {
    (void)state;
    static const enum row_encoding encodings[] = {ROWS_FP8, ROWS_FP4, ROWS_FP4_FINE};
    uint64_t seed = 11;
    for (int32_t round = 0; round < 200000; round++) {
        float x[32], found[32], expected[32];
        random_group(&seed, x);
        enum row_encoding encoding = encodings[round % 3];
        for (int32_t c = 0; c < 32; c += encoding == ROWS_FP4_FINE ? 16 : 32)
            oracle_round(encoding, x + c, expected + c);
        memcpy(found, x, sizeof x);
        round_row(encoding, found, 32);
        assert_same(found, expected, 32, x);
        /* rounding what is rounded changes nothing, unless it rounded up to infinity; a fine scale may shrink */
        memcpy(x, found, sizeof x);
        if (encoding != ROWS_FP4_FINE && largest_magnitude(x, 32) < INFINITY_BITS) {
            round_row(encoding, found, 32);
            assert_same(found, x, 32, x);
        }
    }
}

static void test_scale_is_smallest(void **state) {
    (void)state;
    for (uint32_t high = 0; high < 0x7f80; high++)
        for (uint32_t low = 0; low < 0x10000; low += 0x3331) {
            float x[32] = {bits_float(high << 16 | low)};
            uint8_t codes[32], scale;
            encode_fp8_group(x, codes, &scale);
            float bound = (x[0] > 1e-4f ? x[0] : 1e-4f) * (float)(1.0 / 448);
            assert_true(e8m0_value(scale) >= bound && e8m0_value(scale) / 2 < bound);
            encode_fp4_group(x, codes, &scale);
            float smallest = (float)ldexp(6, -126);
            bound = (x[0] > smallest ? x[0] : smallest) * (float)(1.0 / 6);
            assert_true(e8m0_value(scale) >= bound && (double)e8m0_value(scale) / 2 < (double)bound);
        }
}

static void test_zeros_and_unusual_values(void **state) {
    (void)state;
    static const enum row_encoding encodings[] = {ROWS_FP8, ROWS_FP4, ROWS_FP4_FINE};
    for (int32_t e = 0; e < 3; e++) {
        float x[64] = {0};
        x[3] = -0.0f;
        round_row(encodings[e], x, 64);
        for (int32_t i = 0; i < 64; i++)
            assert_true(x[i] == 0);
    }
    /* numpy's frexp gives an infinity the exponent 0: the scale is 1 and values are clipped */
    float wide[32] = {INFINITY, -INFINITY, 1000, 2, 0.75f};
    round_row(ROWS_FP8, wide, 32);
    assert_true(wide[0] == 448 && wide[1] == -448 && wide[2] == 448 && wide[3] == 2 && wide[4] == 0.75f);
    float narrow[32] = {INFINITY, -INFINITY, 1000, 2};
    round_row(ROWS_FP4, narrow, 32);
    assert_true(narrow[0] == 6 && narrow[1] == -6 && narrow[2] == 6 && narrow[3] == 2);
    float fine[32] = {INFINITY, 1, [16] = 1};
    round_row(ROWS_FP4_FINE, fine, 32);
    assert_true(fine[0] == 6 * 448 && fine[1] == 0 && fine[16] != 0);
    float broken[32] = {NAN, 1, 500};
    round_row(ROWS_FP8, broken, 32);
    assert_true(isnan(broken[0]) && broken[1] == 1 && broken[2] == 448);
    float lost[64] = {NAN, 1, [32] = 1};
    round_row(ROWS_FP4, lost, 64);
    assert_true(isnan(lost[0]) && isnan(lost[1]) && lost[32] == 1);
}

/* Codes before scales, even columns in the low nibble. */
static void test_layout_of_rows(void **state) {
    (void)state;
    float x[64] = {[0] = 1, [1] = -2, [32] = 0.5f};
    uint8_t row[80];
    encode_row(ROWS_FP8, x, 64, row);
    assert_int_equal(row_bytes(ROWS_FP8, 64), 66);
    assert_true(e4m3_value(row[0]) * e8m0_value(row[64]) == 1);
    assert_true(e4m3_value(row[32]) * e8m0_value(row[65]) == 0.5f);
    encode_row(ROWS_FP4, x, 64, row);
    assert_int_equal(row_bytes(ROWS_FP4, 64), 34);
    assert_true(e2m1_value(row[0] & 15) * e8m0_value(row[32]) == 1);
    assert_true(e2m1_value(row[0] >> 4) * e8m0_value(row[32]) == -2);
    assert_true(e2m1_value(row[16]) * e8m0_value(row[33]) == 0.5f);
    encode_row(ROWS_FP4_FINE, x, 64, row);
    assert_int_equal(row_bytes(ROWS_FP4_FINE, 64), 36);
    assert_true(e2m1_value(row[16]) == 6 && e4m3_value(row[34]) == e4m3_value(e4m3_code(0.5f / 6)));
    float back[64];
    decode_row(ROWS_FP4_FINE, row, 64, back);
    round_row(ROWS_FP4_FINE, x, 64);
    assert_memory_equal(back, x, sizeof x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_values_of_all_codes),
        cmocka_unit_test(test_nearest_codes),
        cmocka_unit_test(test_random_groups),
        cmocka_unit_test(test_scale_is_smallest),
        cmocka_unit_test(test_zeros_and_unusual_values),
        cmocka_unit_test(test_layout_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The arithmetic of sampling, one for the host and for devices, which promise the same bits: additions, products and bit moves in a
 * fixed order, nothing of a C library. Compile it without contraction of products and sums.
 *
 * C and CUDA C. Where the compiler needs a word before functions, NUMBER_FUNCTION is defined first (number_formats.h).
 */
#ifndef NOCTURNE_SAMPLE_ARITHMETIC_H
#define NOCTURNE_SAMPLE_ARITHMETIC_H

#include "kernels/number_formats.h" /* NUMBER_FUNCTION */

#include <stdbool.h> /* bool */
#include <stdint.h>  /* uint32_t, uint64_t */
#include <string.h>  /* memcpy */

/* Partial sums of every long sum: a vector's worth, the same on all machines. */
enum { LANES = 8 };

/* Philox 4x32 with 10 rounds. */
NUMBER_FUNCTION void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u; /* Weyl sequences of the golden ratio and of sqrt(3) - 1 */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Uniform in [0, 1): 53 bits of Philox of a key and a position. */
NUMBER_FUNCTION double uniform_of(const uint64_t key[2], uint64_t position) {
    const uint32_t counter[4] = {
        (uint32_t)position, (uint32_t)(position >> 32), (uint32_t)key[1], (uint32_t)(key[1] >> 32)};
    const uint32_t philox_key[2] = {(uint32_t)key[0], (uint32_t)(key[0] >> 32)};
    uint32_t out[4];
    philox(counter, philox_key, out);
    uint64_t bits = (uint64_t)out[0] << 32 | out[1];
    return (double)(bits >> 11) * 0x1p-53;
}

/* exp(x) for x <= 0, within 2 units in the last place; 0 below -700 and for NaN. Only additions, products
 * and bit moves: the same bits everywhere, and a loop over it becomes vector code. */
NUMBER_FUNCTION double exp_of_negative(double x) {
    bool tiny = !(x >= -700.0);
    double y = tiny ? -700.0 : x;
    const double round_to_integer = 0x1.8p52;
    double shifted = y * 1.4426950408889634 + round_to_integer;
    double n = shifted - round_to_integer;
    double r = (y - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33; /* ln 2 in two parts */
    double p = 1.0 / 6227020800.0;                                         /* 1/13! */
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    uint64_t power_bits = (bits + 1023) << 52; /* the low bits of `shifted` hold n; 2^n by its exponent */
    double power;
    memcpy(&power, &power_bits, sizeof power);
    return tiny ? 0.0 : p * power;
}

NUMBER_FUNCTION double add_lanes(const double lanes[LANES]) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

#endif

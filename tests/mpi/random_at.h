/* Made-up inputs of the tests of the exchange: the same on every rank, whatever the order in which they are asked for. */
#ifndef NOCTURNE_TESTS_RANDOM_AT_H
#define NOCTURNE_TESTS_RANDOM_AT_H

#include <stdint.h> /* uint64_t */

static inline uint64_t random_at(uint64_t seed, uint64_t index) {
    uint64_t x = (seed * 0x9e3779b97f4a7c15u) ^ (index + 0x632be59bd9b4e019u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 30) * 0x94d049bb133111ebu;
    x = (x ^ x >> 27) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 31;
}

#endif

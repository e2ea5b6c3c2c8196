#include "model/engram.h"

#include <stdbool.h> /* bool */

/* ---- NumPy's default_rng(seed).integers(0, bound, size, int64) ----
 *
 * The published tables were hashed with multipliers from that call: SeedSequence turns the seed into a 128-bit state
 * and increment, PCG64 (XSL-RR output) makes 64-bit words, and Lemire's method scales them to the range. */

typedef unsigned __int128 uint128;

struct pcg64 {
    uint128 state, increment;
};

enum { POOL_WORDS = 4, STATE_WORDS = 8 };

static uint32_t hash_word(uint32_t value, uint32_t *constant, uint32_t multiplier) {
    value ^= *constant;
    *constant *= multiplier;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mix_words(uint32_t x, uint32_t y) {
    uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ result >> 16;
}

/* SeedSequence(seed).generate_state(8, uint32), for a seed of one word. */
static void seed_words(uint32_t seed, uint32_t words[STATE_WORDS]) {
    uint32_t pool[POOL_WORDS], constant = 0x43b0d7e5u;
    for (int i = 0; i < POOL_WORDS; i++)
        pool[i] = hash_word(i == 0 ? seed : 0, &constant, 0x931e8875u);
    for (int from = 0; from < POOL_WORDS; from++)
        for (int to = 0; to < POOL_WORDS; to++)
            if (from != to)
                pool[to] = mix_words(pool[to], hash_word(pool[from], &constant, 0x931e8875u));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < STATE_WORDS; i++)
        words[i] = hash_word(pool[i % POOL_WORDS], &constant, 0x58f38dedu);
}

static void pcg64_step(struct pcg64 *generator) {
    const uint128 multiplier = (uint128)0x2360ed051fc65da4u << 64 | 0x4385df649fccf645u;
    generator->state = generator->state * multiplier + generator->increment;
}

/* Four 64-bit words, each of two 32-bit ones (low first): state high, state low, sequence high, sequence low. */
static uint128 two_words(const uint32_t *words) {
    uint64_t high = (uint64_t)words[1] << 32 | words[0], low = (uint64_t)words[3] << 32 | words[2];
    return (uint128)high << 64 | low;
}

static struct pcg64 pcg64_seed(uint32_t seed) {
    uint32_t words[STATE_WORDS];
    seed_words(seed, words);
    struct pcg64 generator = {.state = 0, .increment = two_words(words + 4) << 1 | 1};
    pcg64_step(&generator);
    generator.state += two_words(words);
    pcg64_step(&generator);
    return generator;
}

static uint64_t pcg64_next(struct pcg64 *generator) {
    pcg64_step(generator);
    uint64_t value = (uint64_t)(generator->state >> 64) ^ (uint64_t)generator->state;
    unsigned turn = (unsigned)(generator->state >> 122);
    return value >> turn | value << (-turn & 63);
}

/* Uniform in [0, bound). NumPy takes another way for bounds below 2^32, which a vocabulary under 2^30 never gives. */
static uint64_t pcg64_below(struct pcg64 *generator, uint64_t bound) {
    uint128 product = (uint128)pcg64_next(generator) * bound;
    if ((uint64_t)product < bound) {
        uint64_t threshold = -bound % bound;
        while ((uint64_t)product < threshold)
            product = (uint128)pcg64_next(generator) * bound;
    }
    return (uint64_t)(product >> 64);
}

/* ---- primes ---- */

/* Trial division: candidates are below 2^31, so 32-bit arithmetic does, and a few hundred primes take milliseconds. */
static bool is_prime(uint32_t n) {
    if (n < 4 || n % 2 == 0)
        return n == 2 || n == 3;
    for (uint32_t divisor = 3; (uint64_t)divisor * divisor <= n; divisor += 2)
        if (n % divisor == 0)
            return false;
    return true;
}

static uint32_t next_prime(uint32_t n) {
    do
        n++;
    while (!is_prime(n));
    return n;
}

/* ---- the hash ---- */

void engram_hash_prepare(struct engram_hash *hash, const struct model_config *config, int32_t pad) {
    *hash = (struct engram_hash){
        .layers = config->engram_layers,
        .ngrams = config->engram_max_ngram_size,
        .heads = config->engram_n_heads,
        .columns = engram_columns(config),
        .pad = pad,
    };
    uint32_t prime = (uint32_t)config->engram_vocab_size - 1;
    for (int32_t layer = 0; layer < hash->layers; layer++) {
        int64_t offset = 0;
        for (int32_t column = 0; column < hash->columns; column++) {
            prime = next_prime(prime);
            hash->primes[layer][column] = prime;
            hash->offsets[layer][column] = offset;
            offset += prime;
        }
        /* Odd, and small enough that the product with any compressed id stays below 2^63. */
        uint64_t bound = (uint64_t)(INT64_MAX / config->engram_compressed_vocab_size / 2);
        struct pcg64 generator = pcg64_seed(10007u * (uint32_t)config->engram_layer_ids[layer]);
        for (int32_t back = 0; back < hash->ngrams; back++)
            hash->multipliers[layer][back] = (int64_t)(pcg64_below(&generator, bound) * 2 + 1);
    }
}

int64_t engram_hash_table_rows(const struct engram_hash *hash, int32_t layer) {
    int32_t last = hash->columns - 1;
    return hash->offsets[layer][last] + hash->primes[layer][last];
}

void engram_hash_rows(const struct engram_hash *hash, const int32_t *history, int64_t at, int64_t *rows) {
    int64_t gram[MOST_ENGRAM_NGRAM] = {0};
    bool barred = false;
    for (int32_t back = 0; back < hash->ngrams; back++) {
        barred = barred || at < back || history[at - back] == ENGRAM_BARRIER;
        gram[back] = barred ? hash->pad : history[at - back];
    }
    for (int32_t layer = 0; layer < hash->layers; layer++) {
        int64_t value = gram[0] * hash->multipliers[layer][0];
        int32_t column = 0;
        for (int32_t back = 1; back < hash->ngrams; back++) {
            value ^= gram[back] * hash->multipliers[layer][back];
            for (int32_t head = 0; head < hash->heads; head++, column++)
                rows[layer * hash->columns + column] =
                    value % hash->primes[layer][column] + hash->offsets[layer][column];
        }
    }
}

/* What a device that samples by itself is asked and answers: what model/sampling.h does on the host, with the same bits.
 *
 * The device chooses the token and finds the likeliest alternatives; the one logarithm of a log-probability is left to
 * the host (sample_logprob), whose C library the host's sampler uses, too. The caller makes the list of adjustments from logit_bias
 * and penalties, for the device doesn't know the tokens generated so far; keys are those of random_key_make.
 * A mask has (vocab_size + 63) / 64 words: bit i % 64 of word i / 64 is set when token i may be chosen. Tokens that may not are
 * passed over before anything is added; log-probabilities and alternatives know nothing of masks.
 *
 * C and CUDA C.
 */
#ifndef NOCTURNE_SAMPLE_H
#define NOCTURNE_SAMPLE_H

#include <math.h>   /* log */
#include <stdint.h> /* int32_t, uint64_t */

enum {
    SAMPLE_MOST_TOP = 20,             /* alternatives */
    SAMPLE_MOST_VOCABULARY = 1 << 19, /* tokens */
};

/* Added to a token's logit, in float32. A penalty p is the delta -p. */
struct sample_adjustment {
    int32_t id; /* others than 0 .. vocab_size - 1 are passed over */
    float delta;
};

/* What one row asks for. */
struct sample_row {
    uint64_t key[2], position; /* of the row's random number */
    float temperature;         /* 0: the likeliest token */
    float top_p, min_p;        /* 1 and 0: off */
    int32_t top_k;             /* 0: off */
    int32_t top_logprobs;      /* alternatives, at most SAMPLE_MOST_TOP; -1: no log-probabilities */
    int32_t logits;            /* which row of logits */
    int32_t mask;              /* which mask says what may be chosen; -1: all tokens may */
    /* A part of the list, ascending by id; those of one id are added in their order. */
    int32_t first_adjustment, adjustments;
};

struct sample_result {
    int32_t id;           /* -1: no logit of a token that may be chosen is finite */
    int32_t top_logprobs; /* filled alternatives */
    float logit, most;    /* of the token, and the largest, both unadjusted */
    double sum; /* of exp(logit - most) over all finite logits; 0 unless log-probabilities were asked for */
    int32_t top_ids[SAMPLE_MOST_TOP]; /* likeliest first, ties to the lower id; unadjusted */
    float top_logits[SAMPLE_MOST_TOP];
};

/* Natural log-probability of a token with this logit: result->logit or one of top_logits. */
static inline float sample_logprob(const struct sample_result *result, float logit) {
    return (float)((double)logit - ((double)result->most + log(result->sum)));
}

#endif

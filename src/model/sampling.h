/* From logits to the next token: penalties, bias, temperature, top-k, top-p, min-p, counter-based
 * randomness. */
#ifndef NOCTURNE_MODEL_SAMPLING_H
#define NOCTURNE_MODEL_SAMPLING_H

#include "base/error.h"

#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t, uint64_t */

struct sampling; /* recipe/request.h */

/* Key of a choice's random numbers: from the request's seed (or else the campaign's), custom_id and the
 * choice's index, so that order and layout do not matter. */
struct random_key {
    uint64_t words[2];
};
struct random_key random_key_make(
    int64_t seed, const char *custom_id, size_t custom_id_bytes, int32_t choice);

/* The counter-based generator Philox 4x32 with 10 rounds. */
void philox_4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1) for one position of one choice: 53 bits of Philox 4x32-10 of (key, position). */
double random_uniform(struct random_key key, uint64_t position);

/* Natural logarithm of the sum of exp(logit), in double, summed in one fixed order with an exponential of
 * our own, so that bits depend on neither the C library nor the vector width. Non-finite logits count as
 * -infinity; -infinity when none is finite. */
double logits_log_sum(const float *logits, int32_t count);

struct sampler; /* scratch memory for one vocabulary size; one a thread */
MUST_CHECK enum result sampler_create(int32_t vocab_size, struct sampler **sampler);
void sampler_free(struct sampler *sampler);

struct sampled_token {
    int32_t id;
    float logprob;        /* natural log-probability under softmax of the unmodified logits */
    int32_t top_logprobs; /* filled alternatives (0: none asked) */
    int32_t top_ids[20];  /* of the unmodified logits, likeliest first, ties to the lower id */
    float top_values[20];
};

/* A token to draw. */
struct token_draw {
    int32_t row; /* of a step's logits (model_sample) */
    const struct sampling *sampling;
    struct random_key key;
    int64_t position;         /* tokens before it: prompt + generated */
    const int32_t *generated; /* [generated_count]: this choice's tokens so far, for the penalties */
    int32_t generated_count;
    const uint64_t *allowed; /* bit i % 64 of word i / 64: token i may be drawn; NULL: all may */
};

/* Words of a mask over a vocabulary. */
static inline size_t mask_words(int32_t vocab_size) {
    return ((size_t)vocab_size + 63) / 64;
}

/* Chooses a token from logits [vocab_size], which are not changed. Greedy at temperature 0 (ties to the lower id). Order: logits of
 * tokens that are not allowed become -infinity; bias and penalties on the logits, then temperature, then top_k, top_p (of what
 * top_k left), min_p on the probabilities, then one draw. Logits that are not finite never win; ERROR_INTERNAL when none of those
 * allowed is finite. */
MUST_CHECK enum result sampler_choose(
    struct sampler *sampler, const float *logits, const struct token_draw *draw, struct sampled_token *token);

/* ERROR_INTERNAL: what is said of logits none of which is finite. */
enum result fail_no_finite_logit(int64_t position);

#endif

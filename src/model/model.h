/* The forward pass over a batch of sequences, written once against kernels.h. */
#ifndef NOCTURNE_MODEL_MODEL_H
#define NOCTURNE_MODEL_MODEL_H

#include "base/error.h"
#include "cluster/collectives.h"
#include "kernels/kernels.h"
#include "model/checkpoint.h"
#include "model/sampling.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

enum numeric_mode {
    MODE_ROUNDED, /* activations rounded through FP8 and FP4 as in training: all campaigns */
    MODE_EXACT,   /* no activation rounding: `score` and tests only */
};

struct model_options {
    const struct kernels *kernels;
    struct group *supernode; /* ranks that share the experts and Engram rows */
    int32_t node;            /* number of this rank's node among the run's (ranks.h) */
    enum numeric_mode mode;
    int32_t step_tokens;    /* most tokens this rank runs in one step; the same on all ranks */
    int32_t step_sequences; /* most sequences in one step */
    int32_t context;        /* longest sequence that will be run; <= max_position_embeddings */
    int64_t
        kv_bytes; /* budget for key/value blocks; 0, on a device with memory of its own: most of what is left of it */
    bool
        mapped_weights; /* use weights where the checkpoint is mapped, if the device can, instead of copies */
};

struct model;
struct sequence; /* model/sequence.h */

/* Places this rank's weights (dense ones, its experts, its Engram rows) and allocates all memory of the step loop. The
 * checkpoint must outlive the model. Local (no communication). */
MUST_CHECK enum result model_create(
    const struct checkpoint *checkpoint, const struct model_options *options, struct model **model);
void model_free(struct model *model);

const struct model_config *model_config(const struct model *model);
const struct model_options *model_options(const struct model *model);

/* Bytes of the checkpoint this rank uses, and memory allocated: for the start-up lines. */
struct model_bytes {
    int64_t dense, experts, engram; /* packed weights touched */
    int64_t kv, scratch;            /* allocated */
};
struct model_bytes model_bytes(const struct model *model);

/* How often the router has sent a token to each of this rank's experts since the model was created. Between devices the lists of
 * pairs never come to the host, and nothing is counted. */
struct expert_load {
    int32_t layers, experts; /* of the model */
    int32_t first, count;    /* this rank's experts, of each layer */
    const int64_t *pairs;    /* [layers, count]; the model's own */
    bool counted;
};
struct expert_load model_expert_load(const struct model *model);

/* One sequence's part of a step: the tokens that follow its state. */
struct span {
    struct sequence *sequence;
    const int32_t *ids; /* host memory [count], range-checked by the caller against vocab_size */
    int32_t count;      /* >= 1 */
    /* 0: all layers on all tokens. N: decoder-side tail: the last kv source's attention and the layers above run only
     * on the prompt's last N tokens. The same for all spans of one prompt. */
    int32_t tail;
    bool last; /* with tail: the prompt ends with this span */
    /* Logits wanted for the last `logits` tokens the upper layers run (0: none); with tail and not last: 0. */
    int32_t logits;
    /* Inputs of the span's image tokens (id image_token_id), in order: host memory [their number, hidden_size]. NULL when
     * it has none; image tokens then get the table's row. */
    const float *embeddings;
};

/* Runs one step and advances the sequences. logits: host memory [sum of spans' logits, vocab_size], spans in order.
 * Collective over the supernode: ranks with nothing to do pass 0 spans. Sum of counts <= step_tokens; with tail, a
 * last span also runs up to `tail` held tokens: sum over spans of the tokens the upper layers run <= step_tokens too
 * (span_upper_tokens tells). Failure leaves the sequences of the step unusable. */
MUST_CHECK enum result model_step(
    struct model *model, const struct span *spans, int32_t count, float *logits);

/* The same in pieces, for as many steps at once as there are lanes: while one computes on the device, the host prepares another
 * and hands out the outcomes of the one before. begin enqueues a step (the spans' token ids may change afterwards, the
 * sequences may not), model_sample draws tokens from its logits, end waits for it and advances its sequences. A sequence
 * is in one lane at a time. On the CPU there is one lane, and begin does the work. begin and end are collective as model_step
 * is, all ranks with the same lane. */
int32_t model_lanes(const struct model *model);
MUST_CHECK enum result model_step_begin(
    struct model *model, int32_t lane, const struct span *spans, int32_t count);
MUST_CHECK enum result model_step_end(struct model *model, int32_t lane);

/* Draws tokens[i] for each of draws [count] after model_step_begin, as sampler_choose does; waits for the lane's work. The same bits on every backend,
 * given the same logits. *failed is the index of the draw that could not be made, if one could not. Local. */
MUST_CHECK enum result model_sample(struct model *model, int32_t lane, const struct token_draw *draws,
    int32_t count, struct sampled_token *tokens, int32_t *failed);

/* Tokens the layers above the last kv source will run for this span. */
int32_t span_upper_tokens(const struct span *span);

#endif

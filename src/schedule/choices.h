/* One choice of an answer while it is generated: its tokens and their log-probabilities, and when and why
 * it ends. */
#ifndef NOCTURNE_SCHEDULE_CHOICES_H
#define NOCTURNE_SCHEDULE_CHOICES_H

#include "base/buffer.h"
#include "base/error.h"
#include "model/sampling.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"
#include "schedule/constraints.h"
#include "schedule/engine.h"
#include "schedule/stop_strings.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

/* What ends an answer besides its own request's wishes. */
struct answer_rules {
    const struct tokenizer *tokenizer;
    int32_t eos_token_id;
    int32_t context; /* positions of the model */
};

struct choice {
    struct sequence *sequence; /* its state; NULL before it has one of its own and after the end */
    struct random_key key;
    struct stop_scan *scan;
    struct constraint *constraint; /* NULL: the answer may be anything */
    int32_t count, capacity, top_logprobs;
    int32_t *token_ids; /* [count] */
    float *logprobs;    /* [count] */
    int32_t *top_ids;   /* [count, top_logprobs] */
    float *top_values;  /* [count, top_logprobs] */
    bool finished;
    bool in_step; /* its next token is being made by a step on its way */
    enum finish_reason finish;
    enum stop_cause cause;
    int32_t stop_index;
    int64_t stop_start; /* STOP_TEXT: byte of the text where the stop string begins */
};

MUST_CHECK enum result choice_begin(struct choice *choice, const struct request *request, int32_t index,
    int64_t campaign_seed, const struct stop_strings *stops);
void choice_free(struct choice *choice); /* not its sequence */

/* Adds the next token and notices the end: EOS, a stop id, a stop string, max_tokens or the end of the
 * context, in this order; else the constraint takes it. */
MUST_CHECK enum result choice_add(struct choice *choice, const struct answer_rules *rules,
    const struct request *request, const struct stop_strings *stops, const struct generated_token *token);

/* Describes a finished choice; its text is appended to `text`, and `result->text` is left for the caller to
 * point there. */
void choice_describe(const struct choice *choice, const struct answer_rules *rules,
    struct choice_result *result, struct buffer *text);

#endif

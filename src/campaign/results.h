/* Parts of results/: what became of requests. A request is in it once, with all its choices. */
#ifndef NOCTURNE_CAMPAIGN_RESULTS_H
#define NOCTURNE_CAMPAIGN_RESULTS_H

#include "base/error.h"
#include "campaign/campaign.h"
#include "recipe/request.h"

#include <stdint.h> /* int64_t */

enum finish_reason { FINISH_STOP, FINISH_LENGTH };
enum stop_cause { STOP_NONE, STOP_EOS, STOP_ID, STOP_TEXT }; /* why FINISH_STOP */

/* One choice of an answer. */
struct choice_result {
    int32_t token_count; /* generated tokens, the stopping one (EOS, stop id) included: what usage counts */
    const int32_t *token_ids;      /* [token_count] */
    const float *logprobs;         /* [token_count]: natural log-probability of each token under the unmodified softmax */
    int32_t top_logprobs;          /* alternatives a token, 0: none */
    const int32_t *top_ids;        /* [token_count, top_logprobs], likeliest first */
    const float *top_values;       /* [token_count, top_logprobs] */
    struct text_piece text;        /* the answer: decoded, without the stopping token, cut before a stop string */
    int32_t text_tokens;           /* leading tokens whose text is wholly in `text` (logprobs of an answer list these) */
    enum finish_reason finish;
    enum stop_cause cause;
    int32_t stop_index;            /* STOP_TEXT: index of the stop string; STOP_ID: the id; else -1 */
};

struct request_result {
    int64_t request; /* index in requests.h5 */
    /* A failed request: code (NULL: none) with status, message and param as in struct request_error; choices are 0 then. */
    const char *error_code;
    int32_t error_status;
    const char *error_type, *error_param, *error_message;
    int32_t prompt_tokens;
    int32_t choice_count;
    const struct choice_result *choices;
    double finished_at; /* Unix seconds */
};

struct results_writer;

/* Parts go below results/rank-NNNN of `rank`, numbered on from those that exist. */
MUST_CHECK enum result results_writer_create(const char *campaign_folder, int32_t rank,
    const struct provenance *provenance, struct results_writer **writer);
/* Copies the result; kept in memory until the part is written. */
MUST_CHECK enum result results_writer_add(struct results_writer *writer, const struct request_result *result);
/* Results and bytes held and not yet in a part. */
int64_t results_writer_pending(const struct results_writer *writer);
int64_t results_writer_pending_bytes(const struct results_writer *writer);
/* Writes the pending results as one part: temporary name, fsync of file, rename, fsync of folder. Nothing pending: nothing. */
MUST_CHECK enum result results_writer_flush(struct results_writer *writer);
void results_writer_free(struct results_writer *writer); /* drops what is pending */

#endif

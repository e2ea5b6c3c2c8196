/* The step loop of one rank: admits requests, cuts prompts into chunks under a token budget, batches
 * decoding sequences, samples, and hands out results as they finish.
 *
 * It knows nothing of files: requests and saved states come from a source, results and states go to a sink
 * (campaign/ wires them to HDF5). Results do not depend on order, batch limits, ranks or threads. */
#ifndef NOCTURNE_SCHEDULE_ENGINE_H
#define NOCTURNE_SCHEDULE_ENGINE_H

#include "base/error.h"
#include "cache/cache.h"
#include "cluster/ranks.h"
#include "model/model.h"
#include "model/sequence.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"
#include "schedule/plan.h" /* MOST_BRANCHES */

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

enum finish_reason { FINISH_STOP, FINISH_LENGTH };
enum stop_cause { STOP_NONE, STOP_EOS, STOP_ID, STOP_TEXT }; /* why FINISH_STOP */

/* One choice of an answer. */
struct choice_result {
    int32_t token_count; /* generated tokens, the stopping one (EOS, stop id) included: what usage counts */
    const int32_t *token_ids; /* [token_count] */
    const float
        *logprobs; /* [token_count]: natural log-probability of each token under the unmodified softmax */
    int32_t top_logprobs;    /* alternatives a token, 0: none */
    const int32_t *top_ids;  /* [token_count, top_logprobs], likeliest first */
    const float *top_values; /* [token_count, top_logprobs] */
    struct text_piece text;  /* the answer: decoded, without the stopping token, cut before a stop string */
    int32_t
        text_tokens; /* leading tokens whose text is wholly in `text` (logprobs of an answer list these) */
    enum finish_reason finish;
    enum stop_cause cause;
    int32_t stop_index; /* STOP_TEXT: index of the stop string; STOP_ID: the id; else -1 */
};

struct request_result {
    int64_t request; /* index in requests.h5 */
    /* A failed request: code (NULL: none) with status, message and param as in struct request_error;
     * choices are 0 then. */
    const char *error_code;
    int32_t error_status;
    const char *error_type, *error_param, *error_message;
    int32_t prompt_tokens;
    int32_t cached_tokens; /* of these: not computed for this request */
    int32_t choice_count;
    const struct choice_result *choices;
    double finished_at; /* Unix seconds */
};

/* A token of an answer as it was drawn. */
struct generated_token {
    int32_t id;
    float logprob;
    int32_t top_logprobs;    /* 0: none */
    const int32_t *top_ids;  /* [top_logprobs] */
    const float *top_values; /* [top_logprobs] */
};

/* What a choice has generated so far; its last token has not been run. */
struct saved_choice {
    int32_t sequence; /* which of the record's sequences it goes on from; -1: it has ended */
    int32_t token_count;
    const int32_t *token_ids; /* [token_count] */
    const float *logprobs;    /* [token_count] */
    int32_t top_logprobs;     /* alternatives a token, 0: none */
    const int32_t *top_ids;   /* [token_count, top_logprobs] */
    const float *top_values;  /* [token_count, top_logprobs] */
};

struct saved_sequence {
    int32_t tokens;                      /* its length */
    const struct section_rows *sections; /* in the order of model_state_sections */
};

/* A request on its way: after prefill, when all choices have their first token and go on from one sequence, or where a stop found it
 * decoding, when each has its own. */
struct state_record {
    int64_t request;
    int32_t cached_tokens; /* as in struct request_result */
    int32_t sequence_count, choice_count;
    const struct saved_sequence *sequences; /* [sequence_count] */
    const struct saved_choice *choices;     /* [choice_count] */
};

enum engine_phase { ENGINE_PREFILL, ENGINE_DECODE, ENGINE_RUN };

/* A request to be worked on. */
struct engine_work {
    int64_t index; /* in requests.h5; -1: none is left now */
    struct request *request;
    struct state_record *state; /* NULL: from the prompt */
    /* Of a prompt: leading tokens in common with the request before, and lengths above at which later ones of this rank
     * branch off (see queues_take). */
    int32_t shared;
    int32_t branch_count;
    int32_t branches[MOST_BRANCHES];
};

/* Where work comes from. `next` gives the next request of this rank, in ENGINE_DECODE always and in ENGINE_RUN when there is one with its
 * state; the engine holds one that does not fit yet, and gives each back through `release` when it is done with it (either may be
 * NULL: a state is given back as soon as it is loaded). */
struct engine_source {
    void *context;
    enum result (*next)(void *context, struct engine_work *work);
    /* Requests that `next` has still to give. */
    int64_t (*left)(void *context);
    /* Moves requests between ranks: called at a step's edge by all ranks, when some are hungry (nothing left, and room) and others have
     * requests left. busy: seconds of work this rank has begun and not ended, as it estimates. *moved: how many changed place, the
     * same on all ranks. */
    enum result (*balance)(void *context, bool is_hungry, double busy, int64_t *moved);
    /* What identifies an image's embeddings, for the cache's keys. NULL where there is no cache. */
    enum result (*image_identity)(void *context, int64_t image, uint8_t identity[CACHE_KEY_BYTES]);
    /* The inputs of the prompt's image tokens, in order: [their number, hidden_size], freed by the engine with free();
     * NULL for a prompt without images. Not called in ENGINE_DECODE. */
    enum result (*embeddings)(void *context, const struct request *request, float **rows);
    void (*release)(void *context, struct request *request, struct state_record *state);
};

struct engine_counts {
    int64_t steps, prompt_tokens, generated_tokens, finished, failed;
    int64_t waiting;                 /* admitted and not finished */
    int64_t sequences;               /* in each rank's last step */
    int64_t kv_reserved, kv_blocks;  /* key/value blocks set aside for what is in work, and all there are */
    int64_t shared_tokens;           /* of prompts: taken over from prompts of the same run */
    int64_t cached_tokens;           /* taken from the cache; */
    int64_t replayed_tokens;         /* of these run again for their windows: prompt_tokens counts them too */
    int64_t saved_milliseconds;      /* what all these would have cost, less what was run again */
    int64_t cache_hits[CACHE_TIERS]; /* blocks, by the tier that had them */
    int64_t cache_bytes[CACHE_TIERS]; /* of memory: on all ranks; of folders: as the first rank sees them */
};

/* Where outcomes go. Pointers are valid during the call only. */
struct engine_sink {
    void *context;
    enum result (*result)(void *context, const struct request_result *result);
    /* ENGINE_PREFILL: a prompt has ended. Else: a stop found this request decoding. */
    enum result (*state)(void *context, const struct state_record *state);
    /* After each step: flush parts when it is time, progress. `world` is the sum over all ranks as of the
     * step's agreement (steps: of one rank). */
    enum result (*step_end)(void *context, const struct engine_counts *world);
};

struct engine_options {
    enum engine_phase phase;
    struct ranks *ranks;
    struct model *model;
    const struct tokenizer *tokenizer;
    int64_t campaign_seed;
    int32_t batch;                   /* most sequences decoding at once on this rank */
    int32_t step_tokens;             /* token budget of a step; <= model_options' */
    bool all_layers;                 /* prefill: run all layers on all tokens instead of the tail */
    bool no_sharing;                 /* each prompt is run by itself */
    struct cache *cache;             /* NULL: none */
    const struct cache_space *space; /* of the cache */
    int32_t bounded_replay;          /* see struct replay; 0: exact */
    double stop_at;                  /* wall_clock() at which the run stops by itself; 0: never */
    double grace; /* seconds that a stop may take to save what is decoding; 0: nothing is saved */
};

/* How a stop went, over all ranks. */
struct engine_stop {
    bool stopped;
    int64_t saved; /* requests whose states went to the sink */
    int64_t
        dropped; /* decoding ones for which the grace was too short: their tokens will be computed again */
};

/* Runs until no rank has work, or a stop is asked for (signals_stop_requested on any rank, or its stop_at: agreed at a
 * step's begin). Then requests that are decoding go to the sink as states, the oldest first; prompts that have not ended are simply not in
 * the sink. Near stop_at no prompt is begun that would not end in time. Collective over
 * the run; every step has one agreement (work left, stop, errors), so a rank without work takes part and an
 * error on one rank ends all with its message. *world are the counts of all ranks at the end. */
MUST_CHECK enum result engine_run(const struct engine_options *options, const struct engine_source *source,
    const struct engine_sink *sink, struct engine_counts *world, struct engine_stop *stop);

#endif

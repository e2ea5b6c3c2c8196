/* Which requests a rank works on: admitted in the source's order while their key/value blocks are sure to
 * suffice. */
#ifndef NOCTURNE_SCHEDULE_ADMISSION_H
#define NOCTURNE_SCHEDULE_ADMISSION_H

#include "base/error.h"
#include "schedule/choices.h"
#include "schedule/engine.h"
#include "schedule/prompts.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

/* A request in work. */
struct active_request {
    struct active_request *next;
    int64_t index; /* in requests.h5 */
    struct request *request;
    struct stop_strings *stops;
    struct prompt prompt;
    float *embeddings;     /* of the prompt's image tokens, NULL when it has none or has run */
    int32_t cached_tokens; /* of the prompt: see struct request_result */
    bool decoding;         /* the choices' first tokens are there */
    int32_t choice_count, unfinished;
    struct choice *choices; /* [choice_count] */
    int64_t blocks_each;    /* reserved for each unfinished choice */
    int64_t blocks;         /* still reserved */
};

/* The requests in work and what they have reserved. */
struct admission {
    const struct engine_options *options;
    const struct engine_source *source;
    const struct engine_sink *sink;
    struct engine_counts *counts;
    struct answer_rules rules;
    int32_t tail;
    int64_t blocks_total, blocks_reserved;
    int32_t choices; /* unfinished ones of all requests in work */
    struct prompts prompts;
    struct constraints *constraints; /* NULL until a request needs them */
    struct active_request *first;    /* in order of admission */
    struct active_request **last;    /* where the next one is linked */
    struct active_request *held;     /* read, but there is no room yet */
    struct engine_work held_work;
    struct engine_work refused_work; /* of the request before, when it was refused: for its branches */
    bool source_ended;
    int64_t prompt_budget; /* most prompt tokens that can still be run before the run stops by itself */
    bool is_late;          /* some request was left for the next launch for that: no more are taken */
};

void admission_begin(struct admission *admission, const struct engine_options *options,
    const struct engine_source *source, const struct engine_sink *sink, struct engine_counts *counts);
void admission_end(struct admission *admission); /* gives everything back, whatever state it is in */

/* Takes requests from the source while there is room for them; refused ones go to the sink as error
 * records. At most a fixed number at a time, so that other ranks do not wait long. */
MUST_CHECK enum result admission_fill(struct admission *admission);
/* Whether a request is in work, or may follow. */
bool admission_has_work(const struct admission *admission);
/* Whether requests are left to a next launch because their prompts would not end in time. */
bool admission_leaves_work(const struct admission *admission);

/* A choice has just finished: frees its state and reservation. */
MUST_CHECK enum result admission_choice_finished(
    struct admission *admission, struct active_request *active, struct choice *choice);
/* Gives a request's prompt its sequence, when it can run: see prompts_start. */
MUST_CHECK enum result admission_start(
    struct admission *admission, struct active_request *active, bool *can_run);
/* The same queue as before has got new requests. */
void admission_reopen(struct admission *admission);
/* Whether this rank has nothing left to take, and room. */
bool admission_is_hungry(const struct admission *admission);

/* What went wrong with the grammar of a request's answer, NULL when nothing did. */
const char *admission_fault(const struct active_request *active);
/* Sends the answer of a request whose choices have all finished, or its fault. */
MUST_CHECK enum result admission_answer(struct admission *admission, const struct active_request *active);
/* Drops the requests that are through: prompt saved (ENGINE_PREFILL), or all choices finished. */
void admission_drop_finished(struct admission *admission);

/* Gives each unfinished choice its own copy of the prompt's sequence; the last one takes it over. */
MUST_CHECK enum result admission_fork(struct admission *admission, struct active_request *active);

#endif

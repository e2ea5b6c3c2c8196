/* Requests on their way as records for the sink: after prefill, and where a stop found them. */
#ifndef NOCTURNE_SCHEDULE_SAVING_H
#define NOCTURNE_SCHEDULE_SAVING_H

#include "base/error.h"
#include "schedule/admission.h"
#include "schedule/choices.h"
#include "schedule/engine.h"

/* Sends the state of a request whose choices have drawn at least one token each. While `active->prompt` is there all choices go on from it;
 * else each unfinished one from its own sequence. No step may be on its way that uses them. */
MUST_CHECK enum result saving_send(
    struct model *model, const struct engine_sink *sink, const struct active_request *active);

/* The other way: puts a record's tokens into the request's choices, and gives unfinished ones their sequences. ERROR_INPUT when the record does
 * not fit the request. Choices that have ended are `finished` then, and have no sequence. */
MUST_CHECK enum result saving_restore(struct model *model, const struct answer_rules *rules,
    struct active_request *active, const struct state_record *state);

#endif

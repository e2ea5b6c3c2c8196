/* Prompts in lexicographic order, with what neighbours share: those with a common prefix lie side by side.
 *
 * A prompt's symbol at a position is its token and, where an image begins, which one; so prompts with the same tokens and
 * different images part where the image begins. No communication and no files here. */
#ifndef NOCTURNE_SCHEDULE_PROMPT_ORDER_H
#define NOCTURNE_SCHEDULE_PROMPT_ORDER_H

#include "base/error.h"
#include "schedule/plan.h"

#include <stdint.h> /* int32_t, int64_t */

/* Leading tokens that two prompts have in common; 0 when one of them has run (token_ids is NULL). */
int32_t prompt_shared(const struct plan_request *left, const struct plan_request *right);

/* Sorts order [count], which holds indices of requests: prompts that have run first, then lexicographically, a prompt before
 * those it is a prefix of, equal ones by index. shared [count]: what each has in common with the one before it, 0 for the
 * first. Reads each token of a prompt about once until it differs from all others. ERROR_MEMORY. */
MUST_CHECK enum result prompt_order(
    const struct plan_request *requests, int64_t *order, int32_t *shared, int64_t count);

#endif

/* The order of a phase's requests on its ranks: rank 0 plans, and while the phase runs work moves to ranks that have none. */
#ifndef NOCTURNE_CAMPAIGN_PHASE_PLAN_H
#define NOCTURNE_CAMPAIGN_PHASE_PLAN_H

#include "base/error.h"
#include "campaign/phase_cache.h"
#include "campaign/requests.h"
#include "cluster/ranks.h"
#include "schedule/engine.h"
#include "schedule/plan.h"
#include "schedule/step_costs.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t, uint8_t */

/* What there is to plan. */
struct phase_work {
    enum engine_phase kind;
    struct requests *requests;
    const uint8_t *todo;      /* [count of requests]: whether it is to be done */
    const uint8_t *has_state; /* [count of requests]: whether its prompt has run */
    int64_t todo_count;
    /* Of earlier launches, for the length of answers; rank 0's count. */
    int64_t answered, generated_tokens;
    /* For what is cached; the cache's rows must be known already. */
    const struct phase_cache *cache;
    const struct model *model;
    struct replay replay;
};

struct phase_plan {
    struct ranks *ranks;
    struct queues *queues;
    struct plan_entry *entries;   /* [todo_count] */
    int64_t *first;               /* [ranks + 1] */
    int64_t *told;                /* what ranks tell each other when work moves */
    double *busy;                 /* [ranks] */
    struct step_costs costs;      /* of this rank's steps */
    struct engine_counts counted; /* at the end of the last step */
    double counted_at;            /* when that was; 0: no step has ended yet */
};

/* Collective over the run. Rank 0 reads the prompts, 4 bytes a token, and lets go of them again. Freed with phase_plan_free also
 * after a failure. */
MUST_CHECK enum result phase_plan_make(
    struct phase_plan *plan, struct ranks *ranks, const struct phase_work *work);
void phase_plan_free(struct phase_plan *plan);

/* This rank's next request: fills in all of `work` but request and state; its index is -1 when there is none. */
void phase_plan_next(struct phase_plan *plan, struct engine_work *work);
int64_t phase_plan_left(const struct phase_plan *plan);
/* struct engine_source's balance: collective over the run. */
MUST_CHECK enum result phase_plan_balance(
    struct phase_plan *plan, bool is_hungry, double busy, int64_t *moved);
/* A step has ended: learns from it what tokens cost. */
void phase_plan_step(struct phase_plan *plan, const struct engine_counts *world);

#endif

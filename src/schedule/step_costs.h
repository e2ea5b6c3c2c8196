/* What tokens cost, learnt from the steps of a run: seconds of a prompt's token and of a generated one. */
#ifndef NOCTURNE_SCHEDULE_STEP_COSTS_H
#define NOCTURNE_SCHEDULE_STEP_COSTS_H

#include "schedule/plan.h"

#include <stdint.h> /* int64_t */

/* Sums over steps, in tokens and microseconds: whole numbers, so that ranks may add them up in any order. Zero-initialize; those of
 * several ranks are added field by field. */
struct step_costs {
    int64_t steps;
    int64_t prompt_prompt, prompt_answer, answer_answer; /* products of the step's two counts of tokens */
    int64_t prompt_time, answer_time;                    /* and of these with its microseconds */
};
enum { STEP_COSTS_FIELDS = sizeof(struct step_costs) / sizeof(int64_t) };

/* Counts a step. Negative numbers, and steps of more than a day, are left out: a clock may be set, a process suspended. */
void step_costs_add(struct step_costs *costs, int64_t prompt_tokens, int64_t answer_tokens, double seconds);

/* The costs a and b with the least sum of (a prompt_tokens + b answer_tokens - seconds)^2 over the steps, neither negative: the normal
 * equations. A cost that the steps don't tell (no token of its kind, or always as many of both) keeps its proportion to the other
 * one in `guess`; without a step both are the guess. */
struct plan_costs step_costs_solve(const struct step_costs *costs, const struct plan_costs *guess);

#endif

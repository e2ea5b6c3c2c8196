/* What a step costs, from a recording of steps of known content (bench-steps makes one). */
#ifndef NOCTURNE_BENCH_COSTS_H
#define NOCTURNE_BENCH_COSTS_H

#include "base/error.h"

#include <stdint.h> /* int64_t */

/* The content of a step on one rank. */
struct step_content {
    double prompt_tokens; /* run by the layers below the tail's */
    double prompt_ends;   /* prompts that end, whose tails the upper layers run too */
    double sequences;     /* that decode a token each */
    double positions;     /* sum over the step's tokens of the tokens before them */
};

/* Seconds of a step: the step itself, when there is anything in it, and so much for each of its content. */
struct recorded_costs {
    double step, prompt_token, prompt_end, sequence, position;
};

double step_seconds(const struct recorded_costs *costs, const struct step_content *content);

struct step_fit {
    int64_t steps;  /* recorded */
    double typical; /* median of |fitted / recorded - 1| */
    double worst;   /* largest of them */
};

/* Fits the costs to a recording: JSON lines with "prompt_tokens", "prompt_ends", "sequences", "positions" and "seconds";
 * lines without "seconds" say where it comes from and are passed over. Least squares of the relative errors, with no
 * cost below 0. ERROR_INPUT names file and line. */
MUST_CHECK enum result recorded_costs_read(
    const char *path, struct recorded_costs *costs, struct step_fit *fit);

#endif

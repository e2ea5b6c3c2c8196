/* Runs a trace through the real plan and queues on ranks that exist in numbers only: each step every rank takes what
 * src/schedule/admission.c and engine.c would take, a step costs what a recording says, and the next one begins when the
 * slowest rank is through. */
#ifndef NOCTURNE_BENCH_SIMULATION_H
#define NOCTURNE_BENCH_SIMULATION_H

#include "base/error.h"
#include "bench/cases/costs.h"
#include "bench/cases/traffic.h"
#include "schedule/plan.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

enum simulated_phase { SIMULATED_PREFILL, SIMULATED_DECODE, SIMULATED_RUN };

struct simulation {
    const struct traffic *traffic;
    enum simulated_phase phase;
    int32_t ranks; /* all of one supernode: they wait for each other in each step */
    int32_t step_tokens, batch;
    int32_t tail; /* tokens at a prompt's end that the upper layers run too */
    struct recorded_costs costs;
    enum plan_placement placement;
    bool moves; /* requests are moved to ranks that have run out */
    /* Prompts go on from the longest beginning of all that ran on their rank before, which is kept for nothing: the best that
     * a prefix cache can do for requests in no order of prefixes. Else from what the plan's order lets them share. */
    bool is_cached;
};

struct simulated {
    double total;        /* seconds from begin to end */
    double busy_mean;    /* seconds of a rank's own steps, over the ranks */
    double busy_most;    /* of the busiest */
    double plan_seconds; /* what making the plan took here */
    int64_t steps;
    int64_t prompt_tokens; /* computed */
    int64_t generated_tokens;
    int64_t moved; /* requests that changed place */
};

/* ERROR_INTERNAL when a request was not run exactly once, or not all of its tokens. */
MUST_CHECK enum result simulate(const struct simulation *simulation, struct simulated *simulated);

#endif

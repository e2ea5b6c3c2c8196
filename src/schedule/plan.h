/* The order of a campaign: which rank runs which request, and after which.
 *
 * All prompts are known beforehand. A trie over them finds what they share; whole families of prompts go to one rank
 * where that is cheaper than computing their prefix twice, and are split where a family is too big. The plan is made
 * on one rank and broadcast; from then on all ranks keep the same queues, so that work can be moved between them at
 * a step's edge by agreeing on a few numbers. No communication and no files here. */
#ifndef NOCTURNE_SCHEDULE_PLAN_H
#define NOCTURNE_SCHEDULE_PLAN_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t, uint64_t */

/* An image's span in a prompt: prompts with different images differ from its begin on. */
struct plan_image {
    int64_t image;
    int32_t begin; /* position */
};

/* A request as the plan sees it. */
struct plan_request {
    int64_t request;          /* its index in the campaign */
    const int32_t *token_ids; /* [tokens]; NULL: its prompt has run (decode), nothing is shared */
    int32_t tokens;
    const struct plan_image *images; /* [image_count], by position */
    int32_t image_count;
    int32_t answer_tokens; /* expected, of all its choices together */
    int32_t cached_tokens; /* of the prompt: found in the cache (less what replay costs) */
};

/* Seconds of work: of a prompt's token, and of a generated token. */
struct plan_costs {
    double prompt_token, answer_token;
};

/* A place in the order. Arrays of these are broadcast as bytes. */
struct plan_entry {
    int64_t request;
    int32_t tokens;
    int32_t shared; /* leading tokens it has in common with the entry before it; 0 for the first one */
    int32_t cached_tokens;
    int32_t answer_tokens;
};

enum plan_placement {
    PLAN_FAMILIES, /* the product's: families together, by cost */
    PLAN_ROUND_ROBIN,
    PLAN_RANDOM,
    PLAN_SHORTEST_QUEUE,
    PLAN_PREFIX_AFFINITY /* families together whatever that costs */
};

/* Makes entries [count] (the caller's) and first [ranks + 1]: rank r begins with entries [first[r], first[r + 1]).
 * Within a rank: families whose longest answer is long first, so that the end has no straggler, then so that prefixes
 * are freed soonest; a prompt always before those that begin with it. Deterministic. ERROR_MEMORY. */
MUST_CHECK enum result plan_make(const struct plan_request *requests, int64_t count, int32_t ranks,
    const struct plan_costs *costs, enum plan_placement placement, struct plan_entry *entries,
    int64_t *first);

/* ---- queues: what is left for each rank; the same on all of them ---- */

struct queues;

/* Keeps pointers to entries, which must outlive it: a plan's, the first one of each rank with nothing shared. */
MUST_CHECK enum result queues_create(const struct plan_entry *entries, int64_t count, const int64_t *first,
    int32_t ranks, const struct plan_costs *costs, struct queues **queues);
void queues_free(struct queues *queues); /* NULL is allowed */

enum { MOST_BRANCHES = 8 };

/* The next request of a rank. */
struct queue_next {
    const struct plan_entry *entry; /* NULL: nothing left */
    /* Leading tokens in common with the request handed to this rank before it; 0 when they stood on different ranks in the plan. */
    int32_t shared;
    /* Lengths above `shared` at which requests still queued for this rank branch off from this one, ascending:
     * its prefixes worth keeping. Close ones (less than `least` tokens from the one before, or from `shared`) are left out, and
     * so are more where there would be too many. */
    int32_t branch_count;
    int32_t branches[MOST_BRANCHES];
};
/* Takes it from the queue of `rank`; least: see above. Local: other ranks learn of it by queues_agree. */
void queues_take(struct queues *queues, int32_t rank, int32_t least, struct queue_next *next);

int64_t queues_left(const struct queues *queues, int32_t rank);  /* requests */
double queues_cost(const struct queues *queues, int32_t rank);   /* seconds of work queued */
int64_t queues_taken(const struct queues *queues, int32_t rank); /* since creation */

/* Other costs from now on; all ranks must give the same ones between the same calls of queues_agree. */
void queues_set_costs(struct queues *queues, const struct plan_costs *costs);

/* Moves work at a step's edge. taken [ranks]: queues_taken of each rank, as the ranks have told each other; hungry
 * [ranks]: whether it has nothing queued and room; busy [ranks]: seconds of work it has begun and not ended, as it
 * estimates. All ranks call it with the same numbers and end with the same queues. A hungry rank gets work up to what all have on
 * average, from the ends of the longest queues, whole families where that suffices, as long as it will end sooner there; never
 * the request a rank would take next, unless it was the only one left to it before. *moved: how many requests changed place.
 * ERROR_INTERNAL when the numbers do not fit, ERROR_MEMORY. */
MUST_CHECK enum result queues_agree(
    struct queues *queues, const int64_t *taken, const int64_t *hungry, const double *busy, int64_t *moved);

#endif

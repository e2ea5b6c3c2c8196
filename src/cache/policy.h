/* Which entries of the prefix cache go first, and when they go on their own: pure functions of an entry's facts and the
 * time, so that a simulation decides as the cache does. */
#ifndef NOCTURNE_CACHE_POLICY_H
#define NOCTURNE_CACHE_POLICY_H

#include "cache/cache.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

struct policy {
    enum cache_eviction eviction;
    double keep_seconds[CACHE_TRAFFIC_KINDS]; /* after the last use */
};

/* Times are seconds of one clock. */
struct policy_facts {
    double created, last_used; /* a put counts as the first use */
    int64_t uses;              /* after the put */
    int64_t bytes;
    float cost_seconds;
    int32_t first_token;
    enum cache_traffic traffic;
};

/* keep_hours of cache_options, 0 standing for the defaults: 72 h, 72 h for agents, 168 h for chats, whose users come
 * back after days. */
struct policy policy_make(enum cache_eviction eviction, const double keep_hours[CACHE_TRAFFIC_KINDS]);

/* True when the entry was not used for the whole time that entries of its traffic are kept. */
bool policy_expired(const struct policy *policy, const struct policy_facts *facts, double now);

/* Moves the times back by POLICY_TOKEN_SECONDS for each token before the entry: blocks of a prompt are put, and found, one after
 * another while it is computed, and must not for that go first to last. For times as they were noted; not where all blocks of a
 * prompt have one time. */
void policy_align_times(struct policy_facts *facts);

/* What keeping the entry is worth; the least goes first, see policy_before for equal ones.
 *
 * CACHE_EVICT_LEAST_RECENT: the time of the last use. CACHE_EVICT_OLDEST: the time of the put.
 * CACHE_EVICT_LEAST_VALUE: the seconds that a byte is expected to save,
 *
 *     cost / bytes / (1 + first_token / DEPTH) x (1 - exp(-(uses + 1) x K / (age + K))) x IDLE / (IDLE + idle)
 *
 * with K the keep time of its traffic, age = now - created and idle = now - last_used (both at least 0). The second factor
 * is the chance of a use within K if uses come at random at the rate seen so far; the +1 and +K are a prior of one use a
 * keep time, so that a new entry is not judged by its first seconds. The third is the chance that the next use is near: rests
 * between uses have a heavy tail, and one that ends after t with the chance 1 - (1 + t / IDLE)^-a (Lomax) ends at a rate that
 * falls as 1 / (IDLE + t) while it lasts, whatever a is (bench-retention compares this with the least recent use). The
 * division by depth keeps later blocks of a prompt, which cost somewhat more, from being worth more than the earlier ones
 * without which they are of no use; it does as long as a block's cost doubles no faster than every DEPTH tokens.
 * A cost that is not a positive number counts as POLICY_LEAST_COST. */
double policy_worth(const struct policy *policy, const struct policy_facts *facts, double now);

#define POLICY_DEPTH 16384.0
#define POLICY_IDLE 3600.0 /* seconds */
#define POLICY_LEAST_COST 1e-9
#define POLICY_TOKEN_SECONDS 0.02 /* a prompt is hardly computed more slowly */

/* True when an entry of worth `a` that begins at `first_a` goes before another: the lesser worth, and of equal ones the
 * later block, for a block needs those before it. */
static inline bool policy_before(double a, int32_t first_a, double b, int32_t first_b) {
    return a < b || (!(b < a) && first_a > first_b);
}

#endif

#include "cache/policy.h"

#include <math.h> /* exp */

static const double default_hours[CACHE_TRAFFIC_KINDS] = {
    [CACHE_TRAFFIC_OTHER] = 72, [CACHE_TRAFFIC_AGENT] = 72, [CACHE_TRAFFIC_CHAT] = 168};

struct policy policy_make(enum cache_eviction eviction, const double keep_hours[CACHE_TRAFFIC_KINDS]) {
    struct policy policy = {.eviction = eviction};
    for (int kind = 0; kind < CACHE_TRAFFIC_KINDS; kind++)
        policy.keep_seconds[kind] = 3600 * (keep_hours[kind] > 0 ? keep_hours[kind] : default_hours[kind]);
    return policy;
}

/* Clocks of hosts differ and are set back: a time in the future counts as now. */
static double since(double then, double now) {
    return then < now ? now - then : 0;
}

void policy_align_times(struct policy_facts *facts) {
    facts->created -= POLICY_TOKEN_SECONDS * facts->first_token;
    facts->last_used -= POLICY_TOKEN_SECONDS * facts->first_token;
}

bool policy_expired(const struct policy *policy, const struct policy_facts *facts, double now) {
    return since(facts->last_used, now) > policy->keep_seconds[facts->traffic];
}

static double expected_saving(const struct policy *policy, const struct policy_facts *facts, double now) {
    double keep = policy->keep_seconds[facts->traffic];
    double cost = facts->cost_seconds > POLICY_LEAST_COST ? (double)facts->cost_seconds : POLICY_LEAST_COST;
    double density = cost / (double)facts->bytes / (1 + facts->first_token / POLICY_DEPTH);
    double uses = (double)(facts->uses + 1) * keep / (since(facts->created, now) + keep);
    double nearness = POLICY_IDLE / (POLICY_IDLE + since(facts->last_used, now));
    return density * (1 - exp(-uses)) * nearness;
}

double policy_worth(const struct policy *policy, const struct policy_facts *facts, double now) {
    switch (policy->eviction) {
    case CACHE_EVICT_LEAST_RECENT:
        return facts->last_used;
    case CACHE_EVICT_OLDEST:
        return facts->created;
    default:
        return expected_saving(policy, facts, now);
    }
}

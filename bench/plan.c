/* Times the plan of a campaign: seconds on one core, and what the placements cost.
 *
 *   bench-plan [--json] [REQUESTS [TOKENS [RANKS [FAMILY]]]]     (default: 100000 requests of 1000 tokens, 64 ranks, families of 50)
 *
 * All prompts begin with a template of 40 tokens; half of the rest is the family's, a quarter is shared by four in it, and the end is
 * the prompt's own. Families differ in size, and come mixed. Waste: the longest rank's work over its part of all work with each
 * prefix computed once. take: nanoseconds for each request to leave its queue. */
#include "schedule/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TEMPLATE = 40 };

static uint64_t mix(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void check(enum result status) {
    if (status == OK)
        return;
    fprintf(stderr, "bench-plan: %s\n", failure_message());
    exit(1);
}

static void *get(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        check(fail(ERROR_MEMORY, "no memory for %zu bytes", bytes));
    return memory;
}

static void make_prompt(int32_t *tokens, int32_t count, uint64_t family, uint64_t group, uint64_t number) {
    for (int32_t t = 0; t < count; t++) {
        uint64_t of = t < TEMPLATE ? 0 : t < count / 2 ? family : t < count * 3 / 4 ? group : number;
        tokens[t] = (int32_t)(mix(of << 20 ^ (uint64_t)t) % 129280);
    }
}

static struct plan_request *make_requests(int64_t count, int32_t tokens, int64_t family_size) {
    struct plan_request *requests = get((size_t)count * sizeof *requests);
    int32_t *ids = get((size_t)count * (size_t)tokens * sizeof *ids);
    uint64_t families = (uint64_t)(count / family_size + 1);
    for (int64_t i = 0; i < count; i++) {
        uint64_t drawn = mix((uint64_t)i);
        uint64_t family =
            mix(drawn % families % (1 + drawn / 7 % families)) | 1; /* small numbers are drawn more often */
        int32_t *own = ids + i * tokens;
        make_prompt(own, tokens, family, family + 2 + (drawn >> 40) % ((uint64_t)family_size / 4 + 1), drawn);
        requests[i] = (struct plan_request){.request = i,
            .token_ids = own,
            .tokens = tokens,
            .answer_tokens = 32 + (int32_t)(drawn >> 50) % 64};
    }
    return requests;
}

static double longest_rank(const struct queues *queues, int32_t ranks, double *sum) {
    double most = 0;
    *sum = 0;
    for (int32_t rank = 0; rank < ranks; rank++) {
        double cost = queues_cost(queues, rank);
        most = cost > most ? cost : most;
        *sum += cost;
    }
    return most;
}

struct options {
    bool as_json;
    int64_t count, tokens, ranks, family;
};

static int usage(void) {
    fprintf(stderr, "usage: bench-plan [--json] [REQUESTS [TOKENS [RANKS [FAMILY]]]]\n");
    return 2;
}

static bool read_options(int argc, char **argv, struct options *options) {
    int64_t *values[] = {&options->count, &options->tokens, &options->ranks, &options->family};
    int given = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options->as_json = true;
            continue;
        }
        char *end;
        int64_t value = strtoll(argv[i], &end, 10);
        if (given == 4 || *end || value < 1 || value > INT32_MAX)
            return false;
        *values[given++] = value;
    }
    return true;
}

/* One line of the table. *least: work of the first placement, which the others are compared with. */
static void measure(
    const struct options *options, const struct plan_request *requests, int placement, double *least) {
    static const char *const names[] = {"families", "round robin", "random", "shortest queue", "affinity"};
    const struct plan_costs costs = {1, 2};
    int32_t ranks = (int32_t)options->ranks;
    struct plan_entry *entries = get((size_t)options->count * sizeof *entries);
    int64_t *first = get((size_t)(ranks + 1) * sizeof *first);
    struct queues *queues;
    double begun = now(), sum;
    check(plan_make(requests, options->count, ranks, &costs, placement, entries, first));
    double planned = now() - begun;
    check(queues_create(entries, options->count, first, ranks, &costs, &queues));
    double most = longest_rank(queues, ranks, &sum);
    if (placement == PLAN_FAMILIES)
        *least = sum; /* prefixes at cuts are in it, a few a rank */
    begun = now();
    struct queue_next next;
    for (int32_t rank = 0; rank < ranks; rank++)
        for (queues_take(queues, rank, 64, &next); next.entry;)
            queues_take(queues, rank, 64, &next);
    double take = (now() - begun) / (double)options->count * 1e9, waste = 100 * (most / (*least / ranks) - 1);
    printf(options->as_json
               ? "{\"placement\": \"%s\", \"seconds\": %.3f, \"work\": %.4g, \"waste_percent\": %.2f, "
                 "\"take_nanoseconds\": %.0f}\n"
               : "%-15s %9.3f %9.3g %8.2f%% %9.0f\n",
        names[placement], planned, sum, waste, take);
    queues_free(queues);
    free(entries);
    free(first);
}

int main(int argc, char **argv) {
    struct options options = {.count = 100000, .tokens = 1000, .ranks = 64, .family = 50};
    if (!read_options(argc, argv, &options))
        return usage();
    struct plan_request *requests = make_requests(options.count, (int32_t)options.tokens, options.family);
    if (!options.as_json)
        printf("%lld requests of %lld tokens, %lld ranks\n%-15s %9s %9s %9s %9s\n", (long long)options.count,
            (long long)options.tokens, (long long)options.ranks, "placement", "seconds", "work", "waste",
            "take ns");
    double least = 0;
    for (int placement = PLAN_FAMILIES; placement <= PLAN_PREFIX_AFFINITY; placement++)
        measure(&options, requests, placement, &least);
    free((void *)requests[0].token_ids);
    free(requests);
    return 0;
}

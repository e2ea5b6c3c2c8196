/* How evenly requests are spread over ranks, by the real plan and queues on a made-up trace (see bench-traffic):
 *
 *     bench-balance --costs STEPS.jsonl [--phase prefill|decode|run] [--ranks N] [--requests N] [--seeds N]
 *                   [--step-tokens N] [--batch N] [--json]
 *
 * Without --phase: prefill on 2 and on 4 ranks, and decoding on 64. A row for each way to place requests: the product's
 * ("families", and "without moves" of queued requests to ranks that have run out), prefix affinity, shortest queue, round
 * robin, random. Columns: the busiest rank's time in its own steps over the mean of all ranks (mean and worst over the seeds), seconds from begin to end, the mean
 * rank's busy share of them, prompt tokens that were computed, and requests that were moved. The ranks are one supernode:
 * each step lasts until the slowest rank is through. Placements that know no families get a prefix cache without limits instead. What a step costs is fitted to a recording of real steps (bench-steps). */
#include "base/options.h"
#include "bench/cases/simulation.h"

#include <stdio.h> /* printf */

static const struct {
    const char *name;
    enum plan_placement placement;
    bool moves, is_cached;
} ways[] = {{"families", PLAN_FAMILIES, true, false}, {"without moves", PLAN_FAMILIES, false, false},
    {"prefix affinity", PLAN_PREFIX_AFFINITY, false, false},
    {"shortest queue", PLAN_SHORTEST_QUEUE, false, true}, {"round robin", PLAN_ROUND_ROBIN, false, true},
    {"random", PLAN_RANDOM, false, true}};

enum { WAYS = sizeof ways / sizeof *ways };

static const char *const phases[] = {"prefill", "decode", "run", NULL};
/* What the published engine tells of itself for prefill on 2 and 4 ranks and for decoding on 64. */
static const struct {
    enum simulated_phase phase;
    int32_t ranks;
    double goal;
} goals[] = {{SIMULATED_PREFILL, 2, 1.045}, {SIMULATED_PREFILL, 4, 1.074}, {SIMULATED_DECODE, 64, 1.09}};

enum { GOALS = sizeof goals / sizeof *goals };

struct command {
    const char *costs_path;
    int phase; /* of phases; -1: the tables of goals */
    int64_t ranks, requests, seeds, step_tokens, batch;
    bool as_json;
    struct recorded_costs costs;
};

/* A row, over the seeds. */
struct outcome {
    double ratio, worst; /* of the busiest to the mean */
    double total, busy_share, prompt_tokens, moved, plan_seconds;
};

static void add_outcome(struct outcome *o, const struct simulated *s, double weight) {
    double ratio = s->busy_most / s->busy_mean;
    o->ratio += weight * ratio;
    o->worst = ratio > o->worst ? ratio : o->worst;
    o->total += weight * s->total;
    o->busy_share += weight * s->busy_mean / s->total;
    o->prompt_tokens += weight * (double)s->prompt_tokens;
    o->moved += weight * (double)s->moved;
    o->plan_seconds += weight * s->plan_seconds;
}

/* ---- the table ---- */

static void print_title(const struct command *c, const struct simulation *s, int64_t requests, double goal) {
    if (c->as_json)
        return;
    printf("\n%s on %d ranks, %lld requests, %d tokens a step, batch %d", phases[s->phase], s->ranks,
        (long long)requests, s->step_tokens, s->batch);
    if (goal > 0)
        printf("; goal for max/mean: %.3f", goal);
    printf("\n%-16s %9s %9s %12s %7s %15s %8s %9s\n", "placement", "max/mean", "worst", "seconds", "busy",
        "prompt tokens", "moved", "plan s");
}

static void print_row(
    const struct command *c, const struct simulation *s, int64_t requests, int way, const struct outcome *o) {
    if (c->as_json)
        printf("{\"bench\":\"balance\",\"phase\":\"%s\",\"ranks\":%d,\"requests\":%lld,\"seeds\":%lld,"
               "\"step_tokens\":%d,\"batch\":%d,\"placement\":\"%s\",\"ratio\":%.5f,\"worst_ratio\":%.5f,"
               "\"seconds\":%.3f,\"busy_share\":%.4f,\"prompt_tokens\":%.0f,\"moved\":%.1f,"
               "\"plan_seconds\":%.4f}\n",
            phases[s->phase], s->ranks, (long long)requests, (long long)c->seeds, s->step_tokens, s->batch,
            ways[way].name, o->ratio, o->worst, o->total, o->busy_share, o->prompt_tokens, o->moved,
            o->plan_seconds);
    else
        printf("%-16s %9.4f %9.4f %12.1f %6.1f%% %15.0f %8.1f %9.3f\n", ways[way].name, o->ratio, o->worst,
            o->total, 100 * o->busy_share, o->prompt_tokens, o->moved, o->plan_seconds);
    fflush(stdout);
}

static enum result simulate_seeds(
    const struct command *c, struct simulation *s, int64_t requests, struct outcome *outcomes) {
    for (int64_t seed = 1; seed <= c->seeds; seed++) {
        struct traffic_options options = traffic_defaults(requests);
        struct traffic *traffic = NULL;
        options.seed = (uint64_t)seed;
        TRY(traffic_make(&options, &traffic));
        s->traffic = traffic;
        enum result status = OK;
        for (int way = 0; way < WAYS && status == OK; way++) {
            struct simulated simulated;
            s->placement = ways[way].placement;
            s->moves = ways[way].moves;
            s->is_cached = ways[way].is_cached;
            status = simulate(s, &simulated);
            if (status == OK)
                add_outcome(&outcomes[way], &simulated, 1 / (double)c->seeds);
            else
                status = fail_context(status, "seed %lld, %s", (long long)seed, ways[way].name);
        }
        traffic_free(traffic);
        TRY(status);
    }
    return OK;
}

static enum result print_table(
    const struct command *c, enum simulated_phase phase, int32_t ranks, double goal) {
    int64_t requests = c->requests ? c->requests : phase == SIMULATED_DECODE ? 1000 * ranks : 4000;
    struct outcome outcomes[WAYS] = {{0}};
    struct simulation simulation = {.phase = phase,
        .ranks = ranks,
        .step_tokens = (int32_t)c->step_tokens,
        .batch = (int32_t)c->batch,
        .tail = 128,
        .costs = c->costs};
    print_title(c, &simulation, requests, goal);
    TRY(simulate_seeds(c, &simulation, requests, outcomes));
    for (int way = 0; way < WAYS; way++)
        print_row(c, &simulation, requests, way, &outcomes[way]);
    return OK;
}

static void print_costs(const struct command *c, const struct step_fit *fit) {
    const struct recorded_costs *k = &c->costs;
    if (c->as_json)
        printf(
            "{\"bench\":\"balance\",\"steps\":%lld,\"typical_error\":%.4f,\"worst_error\":%.4f,\"step\":%.6g,"
            "\"prompt_token\":%.6g,\"prompt_end\":%.6g,\"sequence\":%.6g,\"position\":%.6g}\n",
            (long long)fit->steps, fit->typical, fit->worst, k->step, k->prompt_token, k->prompt_end,
            k->sequence, k->position);
    else
        printf("costs of %lld recorded steps: %.3f ms a step, %.3f ms a prompt token, %.1f ms a prompt's "
               "end, %.3f ms a "
               "sequence, %.3f us for 1,000 positions; errors %.1f%% typically, %.1f%% at most\n",
            (long long)fit->steps, 1e3 * k->step, 1e3 * k->prompt_token, 1e3 * k->prompt_end,
            1e3 * k->sequence, 1e9 * k->position, 100 * fit->typical, 100 * fit->worst);
}

/* ---- the command ---- */

static enum result parse(struct command *c, int argc, char **argv, bool *help) {
    const struct option options[] = {{.name = "costs",
                                         .kind = OPTION_TEXT,
                                         .value = &c->costs_path,
                                         .placeholder = "FILE",
                                         .required = true,
                                         .help = "recorded steps (bench-steps)"},
        {.name = "phase",
            .kind = OPTION_CHOICE,
            .value = &c->phase,
            .placeholder = "PHASE",
            .choices = phases,
            .help = "one table of this phase (default: the three with goals)"},
        {.name = "ranks",
            .kind = OPTION_COUNT,
            .value = &c->ranks,
            .placeholder = "N",
            .least = 1,
            .most = 4096,
            .help = "with --phase: ranks (4)"},
        {.name = "requests",
            .kind = OPTION_COUNT,
            .value = &c->requests,
            .placeholder = "N",
            .least = 1,
            .most = 10000000,
            .help = "of the trace (4,000; decode: 1,000 a rank)"},
        {.name = "seeds",
            .kind = OPTION_COUNT,
            .value = &c->seeds,
            .placeholder = "N",
            .least = 1,
            .most = 1000,
            .help = "traces, whose rows are averaged (5)"},
        {.name = "step-tokens",
            .kind = OPTION_COUNT,
            .value = &c->step_tokens,
            .placeholder = "N",
            .least = 128,
            .most = 1 << 20,
            .help = "token budget of a step (512)"},
        {.name = "batch",
            .kind = OPTION_COUNT,
            .value = &c->batch,
            .placeholder = "N",
            .least = 1,
            .most = 1 << 20,
            .help = "most sequences that decode at once on a rank (64)"},
        {.name = "json", .kind = OPTION_FLAG, .value = &c->as_json, .help = "JSON lines instead of tables"},
        {0}};
    const struct command_usage usage = {.name = "bench-balance",
        .summary = "Simulates ranks on the real plan and queues, and compares ways to place requests."};
    TRY(options_parse(&usage, options, argc, argv, NULL, help));
    if (!*help && c->batch > c->step_tokens)
        return fail(ERROR_USAGE, "bench-balance: --batch %lld does not fit a step of %lld tokens",
            (long long)c->batch, (long long)c->step_tokens);
    return OK;
}

static enum result run(int argc, char **argv) {
    struct command c = {.phase = -1, .ranks = 4, .seeds = 5, .step_tokens = 512, .batch = 64};
    struct step_fit fit;
    bool help = false;
    TRY(parse(&c, argc, argv, &help));
    if (help)
        return OK;
    TRY(recorded_costs_read(c.costs_path, &c.costs, &fit));
    print_costs(&c, &fit);
    if (c.phase >= 0)
        return print_table(&c, (enum simulated_phase)c.phase, (int32_t)c.ranks, 0);
    for (int g = 0; g < GOALS; g++)
        TRY(print_table(&c, goals[g].phase, goals[g].ranks, goals[g].goal));
    return OK;
}

int main(int argc, char **argv) {
    enum result status = run(argc, argv);
    if (status != OK)
        fprintf(stderr, "bench-balance: %s\n", failure_message());
    return (int)status;
}

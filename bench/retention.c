/* How long prefixes are worth keeping: a made-up trace of several weeks (see bench-traffic), in which people come back to chats after
 * hours or weeks, is replayed through the real policy of the prefix cache, block by block:
 *
 *     bench-retention [--requests N] [--days N] [--measured N] [--block-tokens N] [--seed N] [--json]
 *                     [--tail pareto|lognormal --shape X --hours X]
 *
 * Hit rates are shares of the prompts' tokens, counted over the last --measured days. First table: no limit of bytes, 1, 3, 7 and 14 days
 * (for all traffic) and the cache's defaults, for several tails of the returns; "7 to 3" is the share of the chats' hits that 3
 * days lose against 7. Second table: the first tail with limits (parts of what 14 days take) and the three ways to evict; "saved"
 * weighs hits by what computing them again would cost. With --tail, --shape and --hours (see cases/traffic.h) only that tail. */
#include "base/options.h"
#include "bench/cases/kept_blocks.h"
#include "bench/cases/traffic.h"

#include <math.h>   /* isfinite */
#include <stdio.h>  /* printf */
#include <stdlib.h> /* strtod */

enum { BYTES_A_TOKEN = 890 }; /* of the published model's compressed rows */
/* A position's part of a prompt token's cost, from bench/steps.jsonl: what bench-balance prints of it. */
static const double POSITION_COST = 1.2e-5;

static const double DAYS[] = {1, 3, 7, 14, 0}; /* 0: the cache's defaults */

enum { TIMES = sizeof DAYS / sizeof *DAYS, LIMITS = 3 };

static const struct tail {
    enum traffic_tail tail;
    double shape, scale;
} TAILS[] = {{TRAFFIC_PARETO, 0.6, 1}, {TRAFFIC_PARETO, 0.3, 1}, {TRAFFIC_PARETO, 0.5, 1},
    {TRAFFIC_PARETO, 0.7, 1}, {TRAFFIC_PARETO, 1, 1}, {TRAFFIC_PARETO, 1.5, 1}, {TRAFFIC_LOGNORMAL, 1, 8},
    {TRAFFIC_LOGNORMAL, 1.5, 8}, {TRAFFIC_LOGNORMAL, 2, 8}, {TRAFFIC_LOGNORMAL, 3, 8}};

static const char *const tail_names[] = {"pareto", "lognormal", NULL};
static const char *const eviction_names[] = {"least value", "least recent", "oldest"};
enum { EVICTIONS = sizeof eviction_names / sizeof *eviction_names };

struct command {
    int64_t requests, days, measured, block_tokens, seed;
    int tail; /* -1: all of TAILS */
    const char *shape, *hours;
    bool as_json;
};

/* ---- one replay ---- */

struct replay {
    const struct command *c;
    const struct traffic *traffic;
    struct policy policy;
    int64_t limit;
};

struct replayed {
    double prompt_tokens[TRAFFIC_KINDS], hit_tokens[TRAFFIC_KINDS];
    double cost, saved;
    struct kept_counts counts;
};

/* A block of the system text is the same for all that share it whole; others are their conversation's. Equal blocks have equal
 * keys, as in the cache, but for the beginnings that turns of equal text would share, of which the trace has none. */
static uint64_t block_key(
    const struct traffic *traffic, const struct traffic_request *r, int32_t block, int32_t block_tokens) {
    bool is_system = r->system >= 0 && (block + 1) * block_tokens <= r->system_end;
    uint64_t text = is_system ? (uint64_t)r->system : (uint64_t)traffic->systems + (uint64_t)r->conversation;
    return text << 20 | (uint64_t)block;
}

/* As src/schedule tells them apart: a chat's first turn looks like any question. */
static enum cache_traffic traffic_of(const struct traffic_request *r) {
    if (r->kind == TRAFFIC_AGENT)
        return CACHE_TRAFFIC_AGENT;
    return r->kind == TRAFFIC_CHAT && r->turn > 0 ? CACHE_TRAFFIC_CHAT : CACHE_TRAFFIC_OTHER;
}

static double block_cost(int32_t block, int32_t block_tokens) {
    return block_tokens * (1 + POSITION_COST * (block + 0.5) * block_tokens);
}

/* Reads the prompt's leading blocks that are there, then puts what is missing of the prompt and its answer. */
static enum result serve(const struct replay *replay, struct kept_blocks *kept,
    const struct traffic_request *r, struct replayed *out) {
    int32_t tokens = (int32_t)replay->c->block_tokens, hits = 0;
    int32_t prompt_blocks = (r->prompt_tokens - 1) / tokens; /* the last token is run in any case */
    int32_t all_blocks = (r->prompt_tokens + r->answer_tokens - 1) / tokens;
    bool is_measured = r->hours >= 24 * (double)(replay->c->days - replay->c->measured);
    double now = 3600 * r->hours;
    while (hits < prompt_blocks && kept_blocks_use(kept, block_key(replay->traffic, r, hits, tokens), now))
        hits++;
    for (int32_t b = hits; b < all_blocks; b++) {
        const struct policy_facts facts = {.bytes = (int64_t)tokens * BYTES_A_TOKEN,
            .cost_seconds = (float)block_cost(b, tokens),
            .first_token = b * tokens,
            .traffic = traffic_of(r)};
        TRY(kept_blocks_put(kept, block_key(replay->traffic, r, b, tokens), &facts, now));
    }
    if (!is_measured)
        return OK;
    out->prompt_tokens[r->kind] += r->prompt_tokens;
    out->hit_tokens[r->kind] += (double)hits * tokens;
    for (int32_t b = 0; b <= prompt_blocks; b++) {
        out->cost += block_cost(b, tokens);
        out->saved += b < hits ? block_cost(b, tokens) : 0;
    }
    return OK;
}

static enum result replay_all(const struct replay *replay, struct replayed *out) {
    struct kept_blocks *kept = NULL;
    enum result status = kept_blocks_create(&replay->policy, replay->limit, &kept);
    *out = (struct replayed){0};
    for (int64_t i = 0; i < replay->traffic->count && status == OK; i++)
        status = serve(replay, kept, &replay->traffic->requests[i], out);
    if (status == OK)
        out->counts = kept_blocks_counts(kept);
    kept_blocks_free(kept);
    return status;
}

static struct policy make_policy(enum cache_eviction eviction, double days) {
    double hours[CACHE_TRAFFIC_KINDS];
    for (int kind = 0; kind < CACHE_TRAFFIC_KINDS; kind++)
        hours[kind] = 24 * days;
    return policy_make(eviction, hours);
}

/* Of one kind, or of all for TRAFFIC_KINDS. */
static double hit_rate(const struct replayed *out, enum traffic_kind kind) {
    double tokens = 0, hits = 0;
    for (int k = 0; k < TRAFFIC_KINDS; k++)
        if (kind == TRAFFIC_KINDS || (int)kind == k) {
            tokens += out->prompt_tokens[k];
            hits += out->hit_tokens[k];
        }
    return tokens > 0 ? hits / tokens : 0;
}

/* ---- tables ---- */

static void print_json(
    const struct tail *tail, const struct replay *replay, double days, const struct replayed *out) {
    printf(
        "{\"bench\":\"retention\",\"tail\":\"%s\",\"shape\":%g,\"hours\":%g,\"days\":%g,\"eviction\":\"%s\","
        "\"limit\":%lld,\"hit\":%.6f,\"hit_agents\":%.6f,\"hit_chats\":%.6f,\"hit_questions\":%.6f,"
        "\"saved\":%.6f,\"bytes\":%lld,\"most_bytes\":%lld,\"evicted\":%lld}\n",
        tail_names[tail->tail], tail->shape, tail->scale, days, eviction_names[replay->policy.eviction],
        (long long)replay->limit, hit_rate(out, TRAFFIC_KINDS), hit_rate(out, TRAFFIC_AGENT),
        hit_rate(out, TRAFFIC_CHAT), hit_rate(out, TRAFFIC_QUESTION), out->saved / out->cost,
        (long long)out->counts.bytes, (long long)out->counts.peak, (long long)out->counts.evicted);
}

static enum result make_traffic(const struct command *c, const struct tail *tail, struct traffic **traffic) {
    struct traffic_options options = traffic_defaults(c->requests);
    options.seed = (uint64_t)c->seed;
    options.days = (double)c->days;
    options.tail = tail->tail;
    options.shape = tail->shape;
    options.scale = tail->scale;
    return traffic_make(&options, traffic);
}

/* Share of the rests between two sittings that end within `hours`. */
static double rests_within(const struct tail *tail, double hours) {
    if (tail->tail == TRAFFIC_PARETO)
        return hours > tail->scale ? 1 - pow(tail->scale / hours, tail->shape) : 0;
    return 0.5 * erfc(-log(hours / tail->scale) / tail->shape / sqrt(2));
}

/* A row of the first table; *most gets the bytes that 14 days take. */
static enum result study_times(
    const struct command *c, const struct tail *tail, const struct traffic *traffic, int64_t *most) {
    double chats[TIMES], all[TIMES];
    for (int t = 0; t < TIMES; t++) {
        struct replayed out;
        const struct replay replay = {
            .c = c, .traffic = traffic, .policy = make_policy(CACHE_EVICT_LEAST_VALUE, DAYS[t])};
        TRY(replay_all(&replay, &out));
        chats[t] = hit_rate(&out, TRAFFIC_CHAT);
        all[t] = hit_rate(&out, TRAFFIC_KINDS);
        if (DAYS[t] == 14)
            *most = out.counts.peak;
        if (c->as_json)
            print_json(tail, &replay, DAYS[t], &out);
    }
    if (c->as_json)
        return OK;
    printf("%-9s %5g %5g %7.2f%% |", tail_names[tail->tail], tail->shape, tail->scale,
        100 * (rests_within(tail, 168) - rests_within(tail, 72)));
    for (int t = 0; t < TIMES; t++)
        printf(" %6.2f", 100 * chats[t]);
    printf(" |");
    for (int t = 0; t < TIMES; t++)
        printf(" %6.2f", 100 * all[t]);
    double lost = chats[2] > 0 ? 1 - chats[1] / chats[2] : 0;
    printf(" | %6.2f%%%s\n", 100 * lost, lost >= 0.005 && lost <= 0.01 ? "  as published" : "");
    fflush(stdout);
    return OK;
}

/* A row of the second table. */
static enum result study_limit(const struct command *c, const struct tail *tail,
    const struct traffic *traffic, enum cache_eviction eviction, int64_t limit) {
    double chats[TIMES], saved[TIMES];
    for (int t = 0; t < TIMES; t++) {
        struct replayed out;
        const struct replay replay = {
            .c = c, .traffic = traffic, .policy = make_policy(eviction, DAYS[t]), .limit = limit};
        TRY(replay_all(&replay, &out));
        chats[t] = hit_rate(&out, TRAFFIC_CHAT);
        saved[t] = out.saved / out.cost;
        if (c->as_json)
            print_json(tail, &replay, DAYS[t], &out);
    }
    if (c->as_json)
        return OK;
    printf("%7.2f  %-13s |", (double)limit / 1073741824, eviction_names[eviction]);
    for (int t = 0; t < TIMES; t++)
        printf(" %6.2f", 100 * saved[t]);
    printf(" |");
    for (int t = 0; t < TIMES; t++)
        printf(" %6.2f", 100 * chats[t]);
    printf("\n");
    fflush(stdout);
    return OK;
}

static enum result study_limits(
    const struct command *c, const struct tail *tail, const struct traffic *traffic, int64_t most) {
    if (!c->as_json)
        printf("\n%s of shape %g from %g hours on, with limits: 1/2, 1/4 and 1/8 of the %.2f GiB that 14 "
               "days take\n"
               "    GiB  eviction      | saved: kept for days              | chats: hits\n"
               "                       |      1      3      7     14  3/3/7 |      1      3      7     14  "
               "3/3/7\n",
            tail_names[tail->tail], tail->shape, tail->scale, (double)most / 1073741824);
    for (int64_t part = 2; part <= 1 << LIMITS; part *= 2)
        for (int eviction = 0; eviction < EVICTIONS; eviction++)
            TRY(study_limit(c, tail, traffic, (enum cache_eviction)eviction, most / part));
    return OK;
}

static void print_titles(const struct command *c) {
    if (c->as_json)
        return;
    printf("%lld requests in %lld days, of which the last %lld count; blocks of %lld tokens; hits in %% of "
           "prompt tokens\n\n",
        (long long)c->requests, (long long)c->days, (long long)c->measured, (long long)c->block_tokens);
    printf("rests between sittings         | chats: kept for days              | all traffic                 "
           "       | chats\n"
           "tail      shape hours 3 to 7 d |      1      3      7     14  3/3/7 |      1      3      7     "
           "14  3/3/7 | 7 to 3\n");
}

static enum result run_tails(const struct command *c, const struct tail *tails, int count) {
    int64_t most = 0, first_most = 0;
    struct traffic *traffic = NULL;
    print_titles(c);
    for (int i = 0; i < count; i++) {
        TRY(make_traffic(c, &tails[i], &traffic));
        enum result status = study_times(c, &tails[i], traffic, &most);
        traffic_free(traffic);
        TRY(status);
        first_most = i ? first_most : most;
    }
    TRY(make_traffic(c, &tails[0], &traffic));
    enum result status = study_limits(c, &tails[0], traffic, first_most);
    traffic_free(traffic);
    return status;
}

/* ---- the command ---- */

static enum result parse_number(const char *name, const char *text, double *number) {
    char *end;
    *number = text ? strtod(text, &end) : 0;
    if (!text || end == text || *end || !isfinite(*number) || *number <= 0)
        return fail(ERROR_USAGE, "bench-retention: --tail needs --%s with a number above 0, found '%s'", name,
            text ? text : "none");
    return OK;
}

static enum result parse(struct command *c, int argc, char **argv, bool *help) {
    const struct option options[] = {{.name = "requests",
                                         .kind = OPTION_COUNT,
                                         .value = &c->requests,
                                         .placeholder = "N",
                                         .least = 1,
                                         .most = 100000000,
                                         .help = "of the trace (60,000)"},
        {.name = "days",
            .kind = OPTION_COUNT,
            .value = &c->days,
            .placeholder = "N",
            .least = 2,
            .most = 1000,
            .help = "of the trace (42)"},
        {.name = "measured",
            .kind = OPTION_COUNT,
            .value = &c->measured,
            .placeholder = "N",
            .least = 1,
            .most = 1000,
            .help = "of them at the end, that count (14)"},
        {.name = "block-tokens",
            .kind = OPTION_COUNT,
            .value = &c->block_tokens,
            .placeholder = "N",
            .least = 2,
            .most = 8192,
            .help = "tokens of a block (128)"},
        {.name = "tail",
            .kind = OPTION_CHOICE,
            .value = &c->tail,
            .placeholder = "NAME",
            .choices = tail_names,
            .help = "of the rests between a chat's sittings: pareto or lognormal (several)"},
        {.name = "shape",
            .kind = OPTION_TEXT,
            .value = &c->shape,
            .placeholder = "X",
            .help = "of the tail: Pareto's exponent, or the logarithm's deviation"},
        {.name = "hours",
            .kind = OPTION_TEXT,
            .value = &c->hours,
            .placeholder = "X",
            .help = "of the tail: Pareto's least, or the median"},
        {.name = "seed",
            .kind = OPTION_COUNT,
            .value = &c->seed,
            .placeholder = "N",
            .help = "of all draws (1)"},
        {.name = "json", .kind = OPTION_FLAG, .value = &c->as_json, .help = "JSON lines instead of tables"},
        {0}};
    const struct command_usage usage = {.name = "bench-retention",
        .summary = "Replays weeks of traffic through the prefix cache's policy, and prints hit rates."};
    TRY(options_parse(&usage, options, argc, argv, NULL, help));
    if (!*help && c->measured >= c->days)
        return fail(ERROR_USAGE, "bench-retention: --measured %lld must be less than the --days %lld",
            (long long)c->measured, (long long)c->days);
    return OK;
}

static enum result run(int argc, char **argv) {
    struct command c = {
        .requests = 60000, .days = 42, .measured = 14, .block_tokens = 128, .seed = 1, .tail = -1};
    bool help = false;
    TRY(parse(&c, argc, argv, &help));
    if (help)
        return OK;
    if (c.tail < 0)
        return run_tails(&c, TAILS, sizeof TAILS / sizeof *TAILS);
    struct tail tail = {.tail = (enum traffic_tail)c.tail};
    TRY(parse_number("shape", c.shape, &tail.shape));
    TRY(parse_number("hours", c.hours, &tail.scale));
    return run_tails(&c, &tail, 1);
}

int main(int argc, char **argv) {
    enum result status = run(argc, argv);
    if (status != OK)
        fprintf(stderr, "bench-retention: %s\n", failure_message());
    return (int)status;
}

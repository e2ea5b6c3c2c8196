/* The statistics of the made-up trace that bench-balance and bench-retention use:
 *
 *     bench-traffic [--requests N] [--days N] [--seed N] [--json] [--list]
 *
 * A row for each kind of traffic and for all: requests and conversations, quantiles of the tokens of prompts and answers,
 * and the share of prompt tokens that some earlier prompt begins with. --list prints the requests instead, a JSON line each. */
#include "bench/cases/traffic.h"
#include "base/options.h"

#include <stdio.h> /* printf */

static void print_quantiles(const char *name, const struct traffic_quantiles *q) {
    printf("\"%s\":{\"mean\":%.1f,\"median\":%d,\"p90\":%d,\"p99\":%d,\"most\":%d},", name, q->mean,
        q->median, q->ninth_decile, q->last_percentile, q->largest);
}

static double shared_share(const struct traffic_statistics *s) {
    return s->prompt_tokens ? 1 - (double)s->distinct_tokens / (double)s->prompt_tokens : 0;
}

static void print_json(const char *name, const struct traffic_statistics *s) {
    printf(
        "{\"bench\":\"traffic\",\"kind\":\"%s\",\"requests\":%lld,\"conversations\":%lld,\"returns\":%lld,",
        name, (long long)s->requests, (long long)s->conversations, (long long)s->returns);
    print_quantiles("prompt", &s->prompt);
    print_quantiles("system", &s->system);
    print_quantiles("answer", &s->answer);
    printf("\"prompt_tokens\":%lld,\"distinct_tokens\":%lld,\"answer_tokens\":%lld,\"shared\":%.4f}\n",
        (long long)s->prompt_tokens, (long long)s->distinct_tokens, (long long)s->answer_tokens,
        shared_share(s));
}

static void print_row(const char *name, const struct traffic_statistics *s) {
    const struct traffic_quantiles *p = &s->prompt, *a = &s->answer;
    printf("%-9s %8lld %8lld %6.2f | %8.0f %7d %7d %7d %7d | %7.0f %6d %6d %6d %6d | %12lld %6.1f%%\n", name,
        (long long)s->requests, (long long)s->conversations,
        s->conversations ? (double)s->requests / (double)s->conversations : 0, p->mean, p->median,
        p->ninth_decile, p->last_percentile, p->largest, a->mean, a->median, a->ninth_decile,
        a->last_percentile, a->largest, (long long)s->prompt_tokens, 100 * shared_share(s));
}

static enum result print_statistics(const struct traffic *traffic, bool as_json) {
    if (!as_json)
        printf("%-9s %8s %8s %6s | %8s %7s %7s %7s %7s | %7s %6s %6s %6s %6s | %12s %7s\n", "", "requests",
            "chains", "turns", "prompt", "median", "p90", "p99", "most", "answer", "median", "p90", "p99",
            "most", "tokens", "shared");
    for (int kind = 0; kind <= TRAFFIC_KINDS; kind++) {
        struct traffic_statistics statistics;
        const char *name = kind == TRAFFIC_KINDS ? "all" : traffic_names[kind];
        TRY(traffic_describe(traffic, (enum traffic_kind)kind, &statistics));
        if (as_json)
            print_json(name, &statistics);
        else
            print_row(name, &statistics);
    }
    return OK;
}

static void print_requests(const struct traffic *traffic) {
    for (int64_t i = 0; i < traffic->count; i++) {
        const struct traffic_request *r = &traffic->requests[i];
        printf(
            "{\"hours\":%.4f,\"kind\":\"%s\",\"conversation\":%lld,\"turn\":%d,\"return\":%s,\"system\":%d,"
            "\"system_end\":%d,\"prompt\":%d,\"answer\":%d,\"max_tokens\":%d}\n",
            r->hours, traffic_names[r->kind], (long long)r->conversation, r->turn,
            r->is_return ? "true" : "false", r->system, r->system_end, r->prompt_tokens, r->answer_tokens,
            r->max_tokens);
    }
}

struct command {
    int64_t requests, days, seed;
    bool as_json, is_list;
};

static enum result parse(struct command *c, int argc, char **argv, bool *help) {
    const struct option options[] = {{.name = "requests",
                                         .kind = OPTION_COUNT,
                                         .value = &c->requests,
                                         .placeholder = "N",
                                         .least = 1,
                                         .most = 100000000,
                                         .help = "requests of the trace (10,000)"},
        {.name = "days",
            .kind = OPTION_COUNT,
            .value = &c->days,
            .placeholder = "N",
            .least = 1,
            .most = 1000,
            .help = "days in which they come (1)"},
        {.name = "seed",
            .kind = OPTION_COUNT,
            .value = &c->seed,
            .placeholder = "N",
            .help = "of all draws (1)"},
        {.name = "json", .kind = OPTION_FLAG, .value = &c->as_json, .help = "a JSON line for each row"},
        {.name = "list", .kind = OPTION_FLAG, .value = &c->is_list, .help = "the requests, a JSON line each"},
        {0}};
    const struct command_usage usage = {
        .name = "bench-traffic", .summary = "Prints the statistics of a made-up trace of requests."};
    return options_parse(&usage, options, argc, argv, NULL, help);
}

static enum result run(int argc, char **argv) {
    struct command command = {.requests = 10000, .days = 1, .seed = 1};
    bool help = false;
    TRY(parse(&command, argc, argv, &help));
    if (help)
        return OK;
    struct traffic_options options = traffic_defaults(command.requests);
    options.days = (double)command.days;
    options.seed = (uint64_t)command.seed;
    struct traffic *traffic = NULL;
    TRY(traffic_make(&options, &traffic));
    enum result status = OK;
    if (command.is_list)
        print_requests(traffic);
    else
        status = print_statistics(traffic, command.as_json);
    traffic_free(traffic);
    return status;
}

int main(int argc, char **argv) {
    enum result status = run(argc, argv);
    if (status != OK)
        fprintf(stderr, "bench-traffic: %s\n", failure_message());
    return (int)status;
}

#include "bench/cases/traffic.h"

#include <math.h>   /* exp, log, pow, sqrt, cos */
#include <stdlib.h> /* calloc, qsort */

const char *const traffic_names[TRAFFIC_KINDS + 1] = {"agents", "chats", "questions", NULL};

/* ---- draws ---- */

/* What a draw is for; with the number of a conversation or system text and a counter it is the draw's address. */
enum purpose {
    DRAW_BEGIN,
    DRAW_SYSTEM,
    DRAW_SYSTEM_LENGTH,
    DRAW_TURNS,
    DRAW_ASKED,
    DRAW_IS_LONG,
    DRAW_LONG,
    DRAW_ANSWERED,
    DRAW_IS_RETURN,
    DRAW_REST,
    TEXT_TEMPLATE,
    TEXT_SYSTEM,
    TEXT_CONVERSATION,
    PURPOSES
};

/* The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t scatter(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

struct stream {
    uint64_t key; /* of the seed, the kind and the conversation */
};

static struct stream stream_of(uint64_t seed, uint64_t kind, uint64_t number) {
    return (struct stream){scatter(scatter(seed ^ kind << 56) ^ number)};
}

static uint64_t draw_bits(struct stream stream, enum purpose purpose, int64_t counter) {
    return scatter(stream.key ^ scatter((uint64_t)counter * PURPOSES + (uint64_t)purpose));
}

/* In (0, 1). */
static double draw_unit(struct stream stream, enum purpose purpose, int64_t counter) {
    return ((double)(draw_bits(stream, purpose, counter) >> 12) + 0.5) * 0x1p-52;
}

/* Box and Muller's, of two draws. */
static double draw_normal(struct stream stream, enum purpose purpose, int64_t counter) {
    double radius = sqrt(-2 * log(draw_unit(stream, purpose, 2 * counter)));
    return radius * cos(2 * 3.14159265358979324 * draw_unit(stream, purpose, 2 * counter + 1));
}

static double draw_lognormal(
    struct stream stream, enum purpose purpose, int64_t counter, double median, double sigma) {
    return median * exp(sigma * draw_normal(stream, purpose, counter));
}

static double draw_pareto(
    struct stream stream, enum purpose purpose, int64_t counter, double least, double shape) {
    return least * pow(draw_unit(stream, purpose, counter), -1 / shape);
}

static int32_t whole(double value, int32_t least, int32_t most) {
    return value < least ? least : value > most ? most : (int32_t)value;
}

/* ---- what the kinds are like ---- */

struct nature {
    double mean_turns;
    int32_t most_turns;
    double asked,
        asked_sigma;   /* tokens that a turn adds before the answer: median and sigma of a lognormal */
    double long_share; /* of the turns: they bring a document, a file, a page, of Pareto's length */
    double long_least, long_shape;
    double answered, answered_sigma;
    int32_t max_tokens;
    double pause, pause_sigma; /* hours between turns of one sitting */
};

static const struct nature natures[TRAFFIC_KINDS] = {
    [TRAFFIC_AGENT] = {9, 60, 250, 1.2, 0.05, 2000, 1.3, 160, 0.9, 2048, 0.008, 1.3},
    [TRAFFIC_CHAT] = {4, 80, 60, 1.1, 0.05, 1000, 1.1, 320, 0.8, 4096, 0.03, 1.0},
    [TRAFFIC_QUESTION] = {1, 1, 180, 1.2, 0.05, 1500, 1.2, 420, 1.0, 8192, 0, 0},
};

enum {
    PRODUCTS = 3, /* system texts of chats */
    LEAST_SYSTEM = 2000,
    MOST_SYSTEM = 20000, /* of an agent, with its tools */
    LEAST_PRODUCT = 200,
    MOST_PRODUCT = 1500,
    LONGEST_TURN = 60000,
    MOST_CONVERSATIONS = 1 << 30
};

/* Lengths are spread evenly in their logarithm. */
static int32_t system_tokens(const struct traffic *traffic, int32_t system) {
    bool is_agent = system < traffic->options.agents;
    double least = is_agent ? LEAST_SYSTEM : LEAST_PRODUCT, most = is_agent ? MOST_SYSTEM : MOST_PRODUCT;
    struct stream stream = stream_of(traffic->options.seed, TRAFFIC_KINDS, (uint64_t)system);
    return (int32_t)(least * pow(most / least, draw_unit(stream, DRAW_SYSTEM_LENGTH, 0)));
}

/* The k-th of n in order of popularity has a share of 1 / k (Zipf); this is the inverse of the continuous form. */
static int32_t popular(double unit, int32_t n) {
    return whole(pow((double)n + 1, unit) - 1, 0, n - 1);
}

static int32_t choose_system(
    const struct traffic *traffic, enum traffic_kind kind, struct stream conversation) {
    double unit = draw_unit(conversation, DRAW_SYSTEM, 0);
    if (kind == TRAFFIC_AGENT)
        return popular(unit, traffic->options.agents);
    return kind == TRAFFIC_CHAT ? traffic->options.agents + popular(unit, PRODUCTS) : -1;
}

/* Geometric with the kind's mean. */
static int32_t draw_turns(const struct nature *nature, struct stream conversation) {
    if (nature->most_turns == 1)
        return 1;
    double more = log(draw_unit(conversation, DRAW_TURNS, 0)) / log(1 - 1 / nature->mean_turns);
    return 1 + whole(more, 0, nature->most_turns - 1);
}

static int32_t draw_asked(const struct nature *nature, struct stream conversation, int32_t turn) {
    double tokens = draw_lognormal(conversation, DRAW_ASKED, turn, nature->asked, nature->asked_sigma);
    if (draw_unit(conversation, DRAW_IS_LONG, turn) < nature->long_share)
        tokens += draw_pareto(conversation, DRAW_LONG, turn, nature->long_least, nature->long_shape);
    return whole(tokens, 4, LONGEST_TURN);
}

static int32_t draw_answered(const struct nature *nature, struct stream conversation, int32_t turn) {
    double tokens =
        draw_lognormal(conversation, DRAW_ANSWERED, turn, nature->answered, nature->answered_sigma);
    return whole(tokens, 2, nature->max_tokens);
}

/* Hours from a turn to the next. */
static double draw_pause(const struct traffic_options *options, enum traffic_kind kind,
    struct stream conversation, int32_t turn, bool *is_return) {
    const struct nature *nature = &natures[kind];
    *is_return =
        kind == TRAFFIC_CHAT && draw_unit(conversation, DRAW_IS_RETURN, turn) < options->return_share;
    if (!*is_return)
        return draw_lognormal(conversation, DRAW_REST, turn, nature->pause, nature->pause_sigma);
    if (options->tail == TRAFFIC_PARETO)
        return draw_pareto(conversation, DRAW_REST, turn, options->scale, options->shape);
    return draw_lognormal(conversation, DRAW_REST, turn, options->scale, options->shape);
}

/* ---- making a trace ---- */

struct traffic_options traffic_defaults(int64_t requests) {
    return (struct traffic_options){.seed = 1,
        .requests = {requests * 2 / 5, requests * 2 / 5, requests - 2 * (requests * 2 / 5)},
        .days = 1,
        .agents = 40,
        .tail = TRAFFIC_PARETO,
        .shape = 0.6,
        .scale = 1,
        .return_share = 0.3};
}

static enum result check_options(const struct traffic_options *o) {
    for (int kind = 0; kind < TRAFFIC_KINDS; kind++)
        if (o->requests[kind] < 0 || o->requests[kind] > MOST_CONVERSATIONS)
            return fail(ERROR_USAGE, "a trace with %lld requests of %s: expected 0 to %d",
                (long long)o->requests[kind], traffic_names[kind], MOST_CONVERSATIONS);
    if (!(o->days > 0) || !(o->shape > 0) || !(o->scale > 0) || o->agents < 1)
        return fail(ERROR_USAGE,
            "a trace of %g days with %d agents and rests of shape %g and scale %g: all "
            "must be above 0",
            o->days, o->agents, o->shape, o->scale);
    if (!(o->return_share >= 0) || !(o->return_share <= 1))
        return fail(ERROR_USAGE, "a share of returns of %g: expected 0 to 1", o->return_share);
    return OK;
}

/* Adds the turns of a conversation that lie in the trace, at most `room`; returns how many. */
static int64_t add_conversation(
    struct traffic *traffic, enum traffic_kind kind, int64_t number, int64_t room) {
    const struct traffic_options *options = &traffic->options;
    const struct nature *nature = &natures[kind];
    struct stream stream = stream_of(options->seed, kind, (uint64_t)number);
    int32_t system = choose_system(traffic, kind, stream), turns = draw_turns(nature, stream);
    int32_t system_end = TRAFFIC_TEMPLATE + (system < 0 ? 0 : system_tokens(traffic, system));
    int32_t tokens = system_end;
    double hours = 24 * options->days * draw_unit(stream, DRAW_BEGIN, 0);
    bool is_return = false;
    int64_t added = 0;
    for (int32_t turn = 0; turn < turns && added < room && hours < 24 * options->days; turn++) {
        int32_t asked = draw_asked(nature, stream, turn), answered = draw_answered(nature, stream, turn);
        if (tokens + asked + nature->max_tokens > TRAFFIC_CONTEXT)
            break;
        tokens += asked;
        traffic->requests[traffic->count++] = (struct traffic_request){.hours = hours,
            .conversation = number * TRAFFIC_KINDS + kind,
            .turn = turn,
            .system = system,
            .system_end = system_end,
            .prompt_tokens = tokens,
            .answer_tokens = answered,
            .max_tokens = nature->max_tokens,
            .kind = kind,
            .is_return = is_return};
        tokens += answered;
        hours += draw_pause(options, kind, stream, turn, &is_return);
        added++;
    }
    if (number * TRAFFIC_KINDS + kind >= traffic->conversations)
        traffic->conversations = number * TRAFFIC_KINDS + kind + 1;
    return added;
}

static int by_time(const void *a, const void *b) {
    const struct traffic_request *x = a, *y = b;
    if (x->hours != y->hours)
        return x->hours < y->hours ? -1 : 1;
    if (x->conversation != y->conversation)
        return x->conversation < y->conversation ? -1 : 1;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

enum result traffic_make(const struct traffic_options *options, struct traffic **traffic) {
    TRY(check_options(options));
    int64_t total = 0;
    for (int kind = 0; kind < TRAFFIC_KINDS; kind++)
        total += options->requests[kind];
    struct traffic *made = calloc(1, sizeof *made);
    if (made)
        made->requests = calloc((size_t)total + 1, sizeof *made->requests);
    if (!made || !made->requests) {
        traffic_free(made);
        return fail(ERROR_MEMORY, "out of memory for a trace of %lld requests", (long long)total);
    }
    made->options = *options;
    made->systems = options->agents + PRODUCTS;
    for (int kind = 0; kind < TRAFFIC_KINDS; kind++)
        for (int64_t number = 0, left = options->requests[kind]; left > 0; number++)
            left -= add_conversation(made, (enum traffic_kind)kind, number, left);
    qsort(made->requests, (size_t)made->count, sizeof *made->requests, by_time);
    *traffic = made;
    return OK;
}

void traffic_free(struct traffic *traffic) {
    if (!traffic)
        return;
    free(traffic->requests);
    free(traffic);
}

/* ---- texts ---- */

static void write_text(struct stream stream, enum purpose purpose, int32_t count, int32_t *ids) {
    for (int32_t i = 0; i < count; i++)
        ids[i] = (int32_t)(draw_bits(stream, purpose, i) % TRAFFIC_VOCABULARY);
}

void traffic_prompt(const struct traffic *traffic, int64_t request, int32_t *ids) {
    const struct traffic_request *r = &traffic->requests[request];
    uint64_t seed = traffic->options.seed;
    write_text(stream_of(seed, TRAFFIC_KINDS, 0), TEXT_TEMPLATE, TRAFFIC_TEMPLATE, ids);
    if (r->system >= 0)
        write_text(stream_of(seed, TRAFFIC_KINDS, (uint64_t)r->system), TEXT_SYSTEM,
            r->system_end - TRAFFIC_TEMPLATE, ids + TRAFFIC_TEMPLATE);
    write_text(stream_of(seed, TRAFFIC_KINDS + 1, (uint64_t)r->conversation), TEXT_CONVERSATION,
        r->prompt_tokens - r->system_end, ids + r->system_end);
}

/* ---- statistics ---- */

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static struct traffic_quantiles quantiles_of(int32_t *values, int64_t count) {
    struct traffic_quantiles q = {0};
    if (!count)
        return q;
    qsort(values, (size_t)count, sizeof *values, ascending);
    for (int64_t i = 0; i < count; i++)
        q.mean += (double)values[i] / (double)count;
    q.median = values[count / 2];
    q.ninth_decile = values[count * 9 / 10];
    q.last_percentile = values[count * 99 / 100];
    q.largest = values[count - 1];
    return q;
}

static bool is_of(const struct traffic_request *r, enum traffic_kind kind) {
    return kind == TRAFFIC_KINDS || r->kind == kind;
}

/* Of each conversation its longest prompt, which all others of it begin; of each system text that occurs its length. */
static void count_distinct(const struct traffic *traffic, enum traffic_kind kind, int32_t *longest,
    int32_t *systems, struct traffic_statistics *s) {
    for (int64_t i = 0; i < traffic->count; i++) {
        const struct traffic_request *r = &traffic->requests[i];
        if (!is_of(r, kind))
            continue;
        int32_t own = r->prompt_tokens - r->system_end;
        longest[r->conversation] = own > longest[r->conversation] ? own : longest[r->conversation];
        if (r->system >= 0)
            systems[r->system] = r->system_end - TRAFFIC_TEMPLATE;
    }
    s->distinct_tokens = s->requests ? TRAFFIC_TEMPLATE : 0;
    for (int64_t c = 0; c < traffic->conversations; c++) {
        s->distinct_tokens += longest[c];
        s->conversations += longest[c] > 0;
    }
    for (int32_t c = 0; c < traffic->systems; c++)
        s->distinct_tokens += systems[c];
}

enum result traffic_describe(
    const struct traffic *traffic, enum traffic_kind kind, struct traffic_statistics *statistics) {
    struct traffic_statistics s = {0};
    size_t count = (size_t)traffic->count + 1;
    int32_t *prompts = calloc(count, sizeof *prompts), *answers = calloc(count, sizeof *answers);
    int32_t *shared = calloc(count, sizeof *shared);
    int32_t *longest = calloc((size_t)traffic->conversations + 1, sizeof *longest);
    int32_t *systems = calloc((size_t)traffic->systems, sizeof *systems);
    enum result status = OK;
    if (!prompts || !answers || !shared || !longest || !systems)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory for the statistics of %zu requests", count), done);
    for (int64_t i = 0; i < traffic->count; i++) {
        const struct traffic_request *r = &traffic->requests[i];
        if (!is_of(r, kind))
            continue;
        prompts[s.requests] = r->prompt_tokens;
        answers[s.requests] = r->answer_tokens;
        shared[s.requests++] = r->system_end;
        s.returns += r->is_return;
        s.prompt_tokens += r->prompt_tokens;
        s.answer_tokens += r->answer_tokens;
    }
    s.prompt = quantiles_of(prompts, s.requests);
    s.answer = quantiles_of(answers, s.requests);
    s.system = quantiles_of(shared, s.requests);
    count_distinct(traffic, kind, longest, systems, &s);
    *statistics = s;
done:
    free(prompts);
    free(answers);
    free(shared);
    free(longest);
    free(systems);
    return status;
}

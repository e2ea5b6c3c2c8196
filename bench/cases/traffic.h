/* A made-up trace of requests like those that a service sees: agents with long system prompts and growing histories,
 * chats that people come back to after hours or weeks, and questions that are asked once.
 *
 * Every number is a function of (seed, what it is of), so a trace is the same wherever it is made, and one of more
 * requests holds the same conversations and others. A conversation's text only grows: the prompt of a turn is the template that all
 * prompts share, the system text of its agent or product, and all that was said before. bench-traffic prints a trace's
 * statistics; docs/balance.md shows them. */
#ifndef NOCTURNE_BENCH_TRAFFIC_H
#define NOCTURNE_BENCH_TRAFFIC_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t, uint64_t */

enum traffic_kind { TRAFFIC_AGENT, TRAFFIC_CHAT, TRAFFIC_QUESTION, TRAFFIC_KINDS };
extern const char *const traffic_names[TRAFFIC_KINDS + 1]; /* "agents", "chats", "questions"; NULL */

/* How long a chat rests before its person comes back. */
enum traffic_tail {
    TRAFFIC_PARETO,   /* P(more than t hours) = (scale / t)^shape for t > scale */
    TRAFFIC_LOGNORMAL /* scale * exp(shape * normal) hours */
};

struct traffic_options {
    uint64_t seed;
    int64_t requests[TRAFFIC_KINDS]; /* of each kind */
    double days;    /* conversations begin anywhere in them; later turns are not in the trace */
    int32_t agents; /* different ones */
    enum traffic_tail tail;
    double shape, scale; /* see there */
    double return_share; /* of a chat's later turns: the rest follow within minutes */
};

/* 2:2:1 agents, chats, questions; one day; 40 agents; Pareto of shape 0.6 from 1 hour on; 0.3 returns. */
struct traffic_options traffic_defaults(int64_t requests);

struct traffic_request {
    double hours;         /* since the trace's begin */
    int64_t conversation; /* of all kinds, < conversations */
    int32_t turn;         /* in its conversation, from 0 */
    int32_t system;       /* system text, -1: none */
    int32_t system_end;   /* the prompt's leading tokens that it shares with others of the same system text */
    int32_t prompt_tokens;
    int32_t answer_tokens; /* what will be generated */
    int32_t max_tokens;    /* what the request allows */
    enum traffic_kind kind;
    bool is_return; /* after a rest, not within a sitting */
};

struct traffic {
    struct traffic_options options;
    int64_t count;
    int64_t conversations;            /* a bound of their numbers, not all of which occur */
    int32_t systems;                  /* agents first, then products of chats */
    struct traffic_request *requests; /* [count], by time */
};

enum {
    TRAFFIC_TEMPLATE = 24,     /* tokens that begin all prompts */
    TRAFFIC_CONTEXT = 131072,  /* conversations end before */
    TRAFFIC_VOCABULARY = 65536 /* ids are below */
};

/* ERROR_USAGE for options without sense, ERROR_MEMORY. */
MUST_CHECK enum result traffic_make(const struct traffic_options *options, struct traffic **traffic);
void traffic_free(struct traffic *traffic); /* NULL is allowed */

/* Writes a request's prompt to ids [prompt_tokens]. */
void traffic_prompt(const struct traffic *traffic, int64_t request, int32_t *ids);

struct traffic_quantiles {
    double mean;
    int32_t median, ninth_decile, last_percentile, largest;
};

struct traffic_statistics {
    int64_t requests, conversations, returns;
    struct traffic_quantiles prompt, answer, system; /* tokens a request */
    int64_t prompt_tokens, answer_tokens;
    int64_t distinct_tokens; /* of the prompts when what several have in common counts once */
};

/* Of one kind, or of all for TRAFFIC_KINDS. */
MUST_CHECK enum result traffic_describe(
    const struct traffic *traffic, enum traffic_kind kind, struct traffic_statistics *statistics);

#endif

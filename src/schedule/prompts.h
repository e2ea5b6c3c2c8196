/* Prompts on their way, and what of them need not be computed: beginnings that other prompts in work share, and rows that the
 * cache keeps.
 *
 * A beginning that requests still to come share (a prefix) is run once, and its whole state kept while any of them may follow:
 * each goes on from a copy. Rows from the cache lack the windows, so that some of their last tokens are run again. */
#ifndef NOCTURNE_SCHEDULE_PROMPTS_H
#define NOCTURNE_SCHEDULE_PROMPTS_H

#include "base/error.h"
#include "cache/cache.h"
#include "model/sequence.h"
#include "schedule/engine.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

/* A request's prompt, or a prefix of it. */
struct prompt {
    const struct request *request; /* whose first `tokens` tokens it runs */
    int64_t owner;                 /* the request's index */
    int32_t tokens;
    int32_t done;              /* tokens run or taken over */
    struct sequence *sequence; /* NULL before it begins, and after its choices have their own */
    const float *embeddings;   /* of the request's image tokens, NULL when it has none; the request's own */
    int64_t embeddings_done;   /* image tokens among those done */
    bool in_step;              /* a part of it is in a step on its way */
    struct prefix *from;       /* what it goes on from, NULL: nothing */
    int32_t reused;            /* its leading tokens that were not computed for its request */
    struct cache_key *keys;    /* [key_count]: of its whole blocks; NULL without a cache */
    int32_t key_count;
    enum cache_traffic traffic;
};

/* A beginning that several prompts share. */
struct prefix {
    struct prefix *next;   /* all of them, in order of creation */
    struct prefix *parent; /* the next shorter one, NULL: none */
    struct prompt prompt;
    bool is_ready;   /* its sequence is at its end */
    bool is_open;    /* requests that share it may follow */
    int32_t waiting; /* prompts that will go on from it */
    int32_t users;   /* prompts, choices' sequences and prefixes that share its blocks */
    int64_t blocks;  /* reserved: what its sequence takes, then what others share of it */
};

struct prompts {
    const struct engine_options *options;
    const struct engine_source *source;
    struct engine_counts *counts;
    int32_t tail;
    int64_t left;      /* tokens not run yet of all prompts that are in no step on its way */
    int64_t *reserved; /* key/value blocks set aside, of all there are: the admission's */
    int64_t blocks_total;
    struct prefix *first;   /* all */
    struct prefix *deepest; /* of the open ones, each a beginning of the next */
    double seconds_a_token; /* of prompts, measured; 0: not yet */
};

void prompts_begin(struct prompts *prompts, const struct engine_options *options,
    const struct engine_source *source, struct engine_counts *counts, int32_t tail, int64_t *reserved,
    int64_t blocks_total);
void prompts_end(struct prompts *prompts); /* gives all prefixes back, whatever state they are in */

/* A request has been read: prefixes that it does not share have no followers any more. */
void prompts_follow(struct prompts *prompts, int32_t shared);

/* What a prompt that was read would go on from: *from and the blocks of it that need not be reserved (shared_blocks). */
struct prefix *prompts_find(const struct prompts *prompts, int32_t tokens, int64_t *shared_blocks);

/* Blocks of all prefixes that prompts_admit would make for a prompt of `tokens` tokens if there were room. */
int64_t prompts_prefix_blocks(const struct prompts *prompts, int32_t tokens, const struct engine_work *work);

/* Admits a request's prompt: makes prefixes at the branches ahead while there is room for them beside `blocks`. The prompt goes on
 * from the longest; *shared_blocks as above. */
MUST_CHECK enum result prompts_admit(struct prompts *prompts, struct prompt *prompt,
    const struct engine_work *work, int64_t blocks, int64_t *shared_blocks);
/* Nothing else fits: open prefixes are given up. */
void prompts_close_all(struct prompts *prompts);

/* Gives a prompt its sequence, if it has none and what it goes on from is ready: *can_run. *more: blocks that were reserved in addition for
 * each of `copies` sequences to come, since rows came from the cache instead of the prefix. */
MUST_CHECK enum result prompts_start(
    struct prompts *prompts, struct prompt *prompt, int64_t copies, bool *can_run, int64_t *more);
/* All its tokens have run, and no step is on its way that uses it: its rows go to the cache. */
MUST_CHECK enum result prompts_ended(struct prompts *prompts, const struct prompt *prompt);
/* An answer has ended: of the rows of its conversation those that are not in the cache go there. */
MUST_CHECK enum result prompts_answered(struct prompts *prompts, const struct prompt *prompt,
    const struct sequence *sequence, const int32_t *token_ids, int32_t count);
/* The prompt's sequences are gone, and those of its choices. */
void prompts_release(struct prompts *prompts, struct prompt *prompt);

/* The same for a prefix whose turn it is. */
MUST_CHECK enum result prompts_start_prefix(struct prompts *prompts, struct prefix *prefix, bool *can_run);

/* Tokens of a hit of `blocks` blocks that a prompt of `tokens` tokens can use: at least one is always computed, and no group of two is
 * cut. */
int32_t prompts_usable_hit(int32_t blocks, const struct cache_space *space, int32_t tokens);

static inline int32_t prompt_rest(const struct prompt *prompt) {
    return prompt->tokens - prompt->done;
}

/* Tokens that the next step may run of a prompt that is in none: 0 while what it goes on from is not ready. */
static inline int32_t prompt_runnable(const struct prompt *prompt) {
    bool can_begin = prompt->sequence || !prompt->from || prompt->from->is_ready;
    return can_begin && !prompt->in_step ? prompt_rest(prompt) : 0;
}

#endif

/* The trie of sorted prompts: its inner nodes are the prefixes that some of them share. */
#ifndef NOCTURNE_SCHEDULE_PROMPT_TRIE_H
#define NOCTURNE_SCHEDULE_PROMPT_TRIE_H

#include "base/error.h"
#include "schedule/plan.h"

#include <stdint.h> /* int32_t, int64_t */

/* Nodes [0, count) are the prompts (leaves), the others are inner ones; each has the leaves [begin, end) below it. */
struct prompt_node {
    int64_t begin, end;
    int64_t parent, first_child, next_sibling; /* -1: none */
    int64_t below;   /* tokens to be computed for its leaves after its own last one */
    int64_t answers; /* answer tokens of its leaves */
    int32_t depth;   /* tokens from the prompts' begin; of a leaf: its prompt's */
    int32_t cached;  /* tokens that a leaf's prompt has in the cache, at most */
    int32_t longest; /* answer of a leaf */
};

struct prompt_trie {
    struct prompt_node *nodes;
    int64_t count; /* leaves */
    int64_t root, node_count;
};

/* Builds the trie of requests[order[i]], sorted by prompt_order, with `shared` from there (its first entry is taken as 0). Children
 * are in the order of their leaves. A prompt that has run costs its answer only. Freed with prompt_trie_free also after a
 * failure. ERROR_MEMORY. */
MUST_CHECK enum result prompt_trie_build(const struct plan_request *requests, const int64_t *order,
    const int32_t *shared, int64_t count, struct prompt_trie *trie);
void prompt_trie_free(struct prompt_trie *trie);

/* Tokens to be computed for all leaves of a node when the first `held` ones are there already. */
int64_t prompt_trie_tokens(const struct prompt_node *node, int32_t held);

/* Puts children with long answers first, but before these prompts that the others begin with as a whole: behind them such a prompt could
 * not go on from what it shares, for its last token must be run. ERROR_MEMORY. */
MUST_CHECK enum result prompt_trie_arrange(struct prompt_trie *trie);

/* Walks the leaves from left to right: leaves [count] are their indices, shared [count] what each has in common with the one
 * before it. */
void prompt_trie_walk(const struct prompt_trie *trie, int64_t *leaves, int32_t *shared);

#endif

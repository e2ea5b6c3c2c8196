#include "schedule/prompt_trie.h"

#include <stdbool.h> /* bool */
#include <stdlib.h>  /* malloc, calloc, qsort */

/* ---- building ---- */

/* The path from the root to the leaf that came last. Nodes are closed, with all they have below known, when a prompt comes that
 * shares less than their depth. */
struct building {
    struct prompt_trie *trie;
    int64_t *path; /* [count + 1] */
    int64_t length;
    int64_t *last_child; /* [inner nodes] */
};

/* A leaf stays open until the next one comes, whatever it shares. */
static int32_t open_depth(const struct building *building) {
    int64_t node = building->path[building->length - 1];
    return node < building->trie->count ? INT32_MAX : building->trie->nodes[node].depth;
}

static void open_inner(struct building *building, int32_t depth, int64_t begin) {
    struct prompt_trie *trie = building->trie;
    trie->nodes[trie->node_count] = (struct prompt_node){
        .begin = begin, .end = begin, .parent = -1, .first_child = -1, .next_sibling = -1, .depth = depth};
    building->last_child[trie->node_count - trie->count] = -1;
    building->path[building->length++] = trie->node_count++;
}

static void open_leaf(struct building *building, const struct plan_request *request, int64_t leaf) {
    building->trie->nodes[leaf] = (struct prompt_node){.begin = leaf,
        .end = leaf + 1,
        .parent = -1,
        .first_child = -1,
        .next_sibling = -1,
        .answers = request->answer_tokens,
        .depth = request->token_ids ? request->tokens : 0,
        .cached = request->cached_tokens,
        .longest = request->answer_tokens};
    building->path[building->length++] = leaf;
}

static void attach(struct building *building, int64_t child) {
    struct prompt_trie *trie = building->trie;
    int64_t parent = building->path[building->length - 1],
            *last = &building->last_child[parent - trie->count];
    struct prompt_node *of = &trie->nodes[parent], *node = &trie->nodes[child];
    node->parent = parent;
    if (*last < 0)
        of->first_child = child;
    else
        trie->nodes[*last].next_sibling = child;
    *last = child;
    of->end = node->end;
    of->below += prompt_trie_tokens(node, of->depth);
    of->answers += node->answers;
    if (of->cached < node->cached)
        of->cached = node->cached;
    if (of->longest < node->longest)
        of->longest = node->longest;
}

/* Closes what the next prompt does not share. */
static void close_beyond(struct building *building, int32_t shared) {
    while (open_depth(building) > shared) {
        int64_t closed = building->path[--building->length];
        if (open_depth(building) < shared)
            open_inner(building, shared, building->trie->nodes[closed].begin);
        attach(building, closed);
    }
}

static void build(struct building *building, const struct plan_request *requests, const int64_t *order,
    const int32_t *shared) {
    int64_t count = building->trie->count;
    open_inner(building, 0, 0);
    building->trie->root = count;
    for (int64_t i = 0; i < count; i++) {
        close_beyond(building, i ? shared[i] : 0);
        open_leaf(building, &requests[order[i]], i);
    }
    close_beyond(building, 0);
}

enum result prompt_trie_build(const struct plan_request *requests, const int64_t *order,
    const int32_t *shared, int64_t count, struct prompt_trie *trie) {
    /* Each inner node but the root has two children or more, so there are fewer of them than leaves. */
    size_t most = (size_t)count + 1;
    *trie = (struct prompt_trie){.count = count, .node_count = count};
    struct building building = {.trie = trie};
    trie->nodes = malloc(2 * most * sizeof *trie->nodes);
    building.path = calloc(most + 1, sizeof *building.path);
    building.last_child = calloc(most, sizeof *building.last_child);
    bool memory = trie->nodes && building.path && building.last_child;
    if (memory)
        build(&building, requests, order, shared);
    free(building.path);
    free(building.last_child);
    return memory ? OK
                  : fail(ERROR_MEMORY, "out of memory for the prefixes of %lld prompts", (long long)count);
}

void prompt_trie_free(struct prompt_trie *trie) {
    free(trie->nodes);
    *trie = (struct prompt_trie){0};
}

int64_t prompt_trie_tokens(const struct prompt_node *node, int32_t held) {
    if (held < node->cached)
        held = node->cached;
    return node->below + (node->depth > held ? node->depth - held : 0);
}

/* ---- order ---- */

struct sibling {
    int64_t node, begin;
    bool ends; /* a prompt that the others go on from */
    int32_t longest;
};

static int compare_siblings(const void *left, const void *right) {
    const struct sibling *a = left, *b = right;
    if (a->ends != b->ends)
        return a->ends ? -1 : 1;
    if (a->longest != b->longest)
        return a->longest > b->longest ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

static void arrange_children(struct prompt_trie *trie, struct prompt_node *parent, struct sibling *siblings) {
    int64_t count = 0;
    for (int64_t child = parent->first_child; child >= 0; child = trie->nodes[child].next_sibling) {
        const struct prompt_node *node = &trie->nodes[child];
        siblings[count++] = (struct sibling){.node = child,
            .begin = node->begin,
            .ends = node->depth > 0 && node->depth == parent->depth,
            .longest = node->longest};
    }
    qsort(siblings, (size_t)count, sizeof *siblings, compare_siblings);
    int64_t *link = &parent->first_child;
    for (int64_t i = 0; i < count; i++) {
        *link = siblings[i].node;
        link = &trie->nodes[siblings[i].node].next_sibling;
    }
    *link = -1;
}

enum result prompt_trie_arrange(struct prompt_trie *trie) {
    struct sibling *siblings = malloc((size_t)(trie->count + 1) * sizeof *siblings);
    if (!siblings)
        return fail(ERROR_MEMORY, "out of memory for ordering %lld prompts", (long long)trie->count);
    for (int64_t i = trie->root; i < trie->node_count; i++)
        arrange_children(trie, &trie->nodes[i], siblings);
    free(siblings);
    return OK;
}

void prompt_trie_walk(const struct prompt_trie *trie, int64_t *leaves, int32_t *shared) {
    const struct prompt_node *nodes = trie->nodes;
    int64_t at = trie->root, done = 0;
    int32_t common = 0; /* of the leaf walked last and the next one */
    while (at >= 0 && done < trie->count) {
        while (nodes[at].first_child >= 0)
            at = nodes[at].first_child;
        leaves[done] = at;
        shared[done++] = common;
        while (at >= 0 && nodes[at].next_sibling < 0)
            at = nodes[at].parent;
        if (at >= 0) {
            common = nodes[nodes[at].parent].depth;
            at = nodes[at].next_sibling;
        }
    }
}

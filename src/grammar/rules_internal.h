/* A finished grammar, for the matcher. */
#ifndef NOCTURNE_GRAMMAR_RULES_INTERNAL_H
#define NOCTURNE_GRAMMAR_RULES_INTERNAL_H

#include "grammar/rules.h"

#include <pthread.h> /* pthread_mutex_t */

enum rule_node_kind { RULE_TERMINAL, RULE_TOKEN, RULE_CALL, RULE_SEQUENCE, RULE_CHOICE, RULE_REPEAT };

/* `a`: the expression, token or rule, the repeated node, or the first child in `children`, `count` long. */
struct rule_node {
    enum rule_node_kind kind;
    uint32_t a, count;
    int32_t least, most;
    uint32_t height; /* levels that the shallowest text of the node needs */
    bool nullable, productive;
};

struct rule {
    char *name;
    uint32_t node, height;
    bool nests, nullable, productive;
};

struct automaton; /* matcher.c: lazily grown tables */

struct grammar {
    struct expressions *expressions;
    struct rule_node *nodes;
    uint32_t *children;
    struct rule *rules;
    size_t node_count, child_count, rule_count, node_capacity, child_capacity, rule_capacity;
    uint32_t root;
    pthread_mutex_t lock; /* over `expressions` and `automaton` */
    struct automaton *automaton;
};

void automaton_free(struct automaton *automaton);
size_t automaton_bytes(const struct automaton *automaton);

#endif

#include "grammar/rules.h"

#include "grammar/grammar.h"
#include "grammar/rules_internal.h"

#include <stdlib.h> /* calloc, realloc, free */
#include <string.h> /* memcpy, strdup */

enum { NODES_LIMIT = 2000000 };

struct rules {
    struct grammar grammar;
    enum result failure;
    const char *why;
};

static uint32_t failed(struct rules *rules, enum result failure, const char *why) {
    if (rules->failure == OK) {
        rules->failure = failure;
        rules->why = why;
    }
    return RULES_FAILED;
}

static bool reserve(struct rules *rules, void *array, size_t *capacity, size_t wanted, size_t item) {
    void **data = array;
    if (wanted <= *capacity)
        return true;
    size_t grown = *capacity ? *capacity * 2 : 64;
    while (grown < wanted)
        grown *= 2;
    void *moved = realloc(*data, grown * item);
    if (!moved) {
        (void)failed(rules, ERROR_MEMORY, "no memory for a grammar");
        return false;
    }
    *data = moved;
    *capacity = grown;
    return true;
}

enum result rules_create(struct rules **rules) {
    *rules = calloc(1, sizeof **rules);
    if (!*rules)
        return fail(ERROR_MEMORY, "no memory for a grammar");
    enum result status = expressions_create(&(*rules)->grammar.expressions);
    if (status == OK && pthread_mutex_init(&(*rules)->grammar.lock, NULL) != 0)
        status = fail(ERROR_MEMORY, "no lock for a grammar");
    if (status != OK) {
        expressions_free((*rules)->grammar.expressions);
        free(*rules);
        *rules = NULL;
    }
    return status;
}

static void free_parts(struct grammar *grammar) {
    automaton_free(grammar->automaton);
    expressions_free(grammar->expressions);
    for (size_t i = 0; i < grammar->rule_count; i++)
        free(grammar->rules[i].name);
    free(grammar->rules);
    free(grammar->nodes);
    free(grammar->children);
    pthread_mutex_destroy(&grammar->lock);
}

void rules_free(struct rules *rules) {
    if (!rules)
        return;
    free_parts(&rules->grammar);
    free(rules);
}

void grammar_free(struct grammar *grammar) {
    if (!grammar)
        return;
    free_parts(grammar);
    free(grammar);
}

size_t grammar_bytes(struct grammar *grammar) {
    pthread_mutex_lock(&grammar->lock);
    size_t bytes = sizeof *grammar + expressions_bytes(grammar->expressions) +
                   automaton_bytes(grammar->automaton) + grammar->node_capacity * sizeof *grammar->nodes +
                   grammar->child_capacity * sizeof *grammar->children +
                   grammar->rule_capacity * sizeof *grammar->rules;
    pthread_mutex_unlock(&grammar->lock);
    return bytes;
}

struct expressions *rules_expressions(struct rules *rules) {
    return rules->grammar.expressions;
}

/* ---- nodes ---- */

static uint32_t add_node(struct rules *rules, struct rule_node node) {
    struct grammar *grammar = &rules->grammar;
    if (rules->failure != OK)
        return RULES_FAILED;
    if (grammar->node_count == NODES_LIMIT)
        return failed(rules, ERROR_INPUT, "the grammar is too large: more than 2000000 nodes");
    if (!reserve(rules, &grammar->nodes, &grammar->node_capacity, grammar->node_count + 1, sizeof node))
        return RULES_FAILED;
    grammar->nodes[grammar->node_count] = node;
    return (uint32_t)grammar->node_count++;
}

uint32_t rules_terminal(struct rules *rules, uint32_t expression) {
    if (expression == EXPRESSION_FAILED)
        return failed(rules, ERROR_INTERNAL, "an expression failed");
    return add_node(rules, (struct rule_node){.kind = RULE_TERMINAL, .a = expression});
}

uint32_t rules_token(struct rules *rules, uint32_t id) {
    return add_node(rules, (struct rule_node){.kind = RULE_TOKEN, .a = id});
}

uint32_t rules_call(struct rules *rules, uint32_t rule) {
    return rule == RULES_FAILED ? rule : add_node(rules, (struct rule_node){.kind = RULE_CALL, .a = rule});
}

static uint32_t add_list(struct rules *rules, enum rule_node_kind kind, const uint32_t *nodes, size_t count) {
    struct grammar *grammar = &rules->grammar;
    for (size_t i = 0; i < count; i++)
        if (nodes[i] == RULES_FAILED)
            return RULES_FAILED;
    if (!reserve(rules, &grammar->children, &grammar->child_capacity, grammar->child_count + count,
            sizeof *grammar->children))
        return RULES_FAILED;
    struct rule_node node = {.kind = kind, .a = (uint32_t)grammar->child_count, .count = (uint32_t)count};
    if (count)
        memcpy(grammar->children + grammar->child_count, nodes, count * sizeof *nodes);
    grammar->child_count += count;
    return add_node(rules, node);
}

uint32_t rules_sequence(struct rules *rules, const uint32_t *nodes, size_t count) {
    return count == 1 ? nodes[0] : add_list(rules, RULE_SEQUENCE, nodes, count);
}

uint32_t rules_choice(struct rules *rules, const uint32_t *nodes, size_t count) {
    return count == 1 ? nodes[0] : add_list(rules, RULE_CHOICE, nodes, count);
}

uint32_t rules_repeat(struct rules *rules, uint32_t node, int32_t least, int32_t most) {
    if (node == RULES_FAILED)
        return node;
    return add_node(rules, (struct rule_node){.kind = RULE_REPEAT, .a = node, .least = least, .most = most});
}

uint32_t rules_declare(struct rules *rules, const char *name, bool nests) {
    struct grammar *grammar = &rules->grammar;
    if (grammar->rule_count == RULES_LIMIT)
        return failed(rules, ERROR_INPUT, "the grammar is too large: more than 100000 rules");
    if (rules->failure != OK || !reserve(rules, &grammar->rules, &grammar->rule_capacity,
                                    grammar->rule_count + 1, sizeof *grammar->rules))
        return RULES_FAILED;
    struct rule *rule = &grammar->rules[grammar->rule_count];
    *rule = (struct rule){.name = strdup(name), .node = RULES_FAILED, .nests = nests};
    if (!rule->name)
        return failed(rules, ERROR_MEMORY, "no memory for a grammar");
    return (uint32_t)grammar->rule_count++;
}

void rules_define(struct rules *rules, uint32_t rule, uint32_t node) {
    if (rule != RULES_FAILED && node != RULES_FAILED)
        rules->grammar.rules[rule].node = node;
}

/* ---- checks ---- */

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Works out a node from its children; true when something changed. Children come before their parents, but
 * rules call each other, so that passes are repeated until nothing changes. */
static bool settle(struct grammar *grammar, struct rule_node *node) {
    struct rule_node now = *node;
    switch (node->kind) {
    case RULE_TERMINAL:
        now.nullable = expression_nullable(grammar->expressions, node->a);
        now.productive = !expression_is_empty(grammar->expressions, node->a);
        break;
    case RULE_TOKEN:
        now.productive = true;
        break;
    case RULE_CALL: {
        const struct rule *rule = &grammar->rules[node->a];
        now.nullable = rule->nullable;
        now.productive = rule->productive;
        now.height = rule->height;
        break;
    }
    case RULE_SEQUENCE:
        now.nullable = now.productive = true;
        now.height = 0;
        for (uint32_t i = 0; i < node->count; i++) {
            const struct rule_node *child = &grammar->nodes[grammar->children[node->a + i]];
            now.nullable = now.nullable && child->nullable;
            now.productive = now.productive && child->productive;
            now.height = larger(now.height, child->height);
        }
        break;
    case RULE_CHOICE:
        for (uint32_t i = 0; i < node->count; i++) {
            const struct rule_node *child = &grammar->nodes[grammar->children[node->a + i]];
            now.nullable = now.nullable || child->nullable;
            if (child->productive && (!now.productive || child->height < now.height))
                now.height = child->height;
            now.productive = now.productive || child->productive;
        }
        break;
    case RULE_REPEAT: {
        const struct rule_node *child = &grammar->nodes[node->a];
        now.nullable = node->least == 0 || child->nullable;
        now.productive = node->least == 0 || child->productive;
        now.height = node->least == 0 ? 0 : child->height;
        break;
    }
    }
    bool changed = now.nullable != node->nullable || now.productive != node->productive ||
                   (now.productive && now.height != node->height);
    *node = now;
    return changed;
}

static bool settle_rules(struct grammar *grammar) {
    bool changed = false;
    for (size_t i = 0; i < grammar->rule_count; i++) {
        struct rule *rule = &grammar->rules[i];
        const struct rule_node *node = &grammar->nodes[rule->node];
        uint32_t height = node->height + rule->nests;
        if (rule->nullable == node->nullable && rule->productive == node->productive &&
            (!node->productive || rule->height == height))
            continue;
        rule->nullable = node->nullable;
        rule->productive = node->productive;
        rule->height = height;
        changed = true;
    }
    return changed;
}

static enum result settle_all(struct grammar *grammar) {
    for (bool changed = true; changed;) {
        changed = false;
        expressions_spend(grammar->expressions, grammar->node_count / 4);
        TRY(expressions_check(grammar->expressions));
        for (size_t i = 0; i < grammar->node_count; i++)
            if (settle(grammar, &grammar->nodes[i]))
                changed = true;
        if (settle_rules(grammar))
            changed = true;
    }
    return OK;
}

/* Marks the rules that the root needs; false without memory. */
static bool mark_reached(const struct grammar *grammar, uint32_t root, bool *reached) {
    uint32_t *stack = malloc((grammar->node_count + 1) * sizeof *stack);
    bool *seen = calloc(grammar->node_count + 1, sizeof *seen);
    size_t depth = 0;
    if (stack && seen) {
        stack[depth++] = root;
        seen[root] = true;
    }
    while (depth) {
        const struct rule_node *node = &grammar->nodes[stack[--depth]];
        bool list = node->kind == RULE_SEQUENCE || node->kind == RULE_CHOICE;
        uint32_t count = list ? node->count : node->kind == RULE_CALL || node->kind == RULE_REPEAT;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t child = list ? grammar->children[node->a + i] : node->a;
            if (node->kind == RULE_CALL) {
                reached[child] = true;
                child = grammar->rules[child].node;
            }
            if (!seen[child])
                stack[depth++] = child;
            seen[child] = true;
        }
    }
    free(stack);
    free(seen);
    return stack && seen;
}

/* ---- left recursion: a rule that can begin with itself would be entered without an end ---- */

/* A node on the way of a search in depth, and how many of its children have been entered. */
struct visit {
    uint32_t node, children;
};

/* The next child that a text of the node can begin with; false when there is none left. */
static bool next_beginning(const struct grammar *grammar, struct visit *visit, uint32_t *child) {
    const struct rule_node *node = &grammar->nodes[visit->node];
    uint32_t index = visit->children++;
    switch (node->kind) {
    case RULE_TERMINAL:
    case RULE_TOKEN:
        return false;
    case RULE_CALL:
        *child = grammar->rules[node->a].node;
        return index == 0;
    case RULE_REPEAT:
        *child = node->a;
        return index == 0;
    case RULE_CHOICE:
    case RULE_SEQUENCE:
        if (index == node->count || (node->kind == RULE_SEQUENCE && index &&
                                        !grammar->nodes[grammar->children[node->a + index - 1]].nullable))
            return false;
        *child = grammar->children[node->a + index];
        return true;
    }
    return false;
}

/* The rule that the way calls last, from the node on. */
static const char *last_called(
    const struct grammar *grammar, const struct visit *way, size_t length, uint32_t from) {
    const char *name = "a rule";
    while (length-- > 0) {
        const struct rule_node *node = &grammar->nodes[way[length].node];
        if (node->kind == RULE_CALL)
            return grammar->rules[node->a].name;
        if (way[length].node == from)
            return name;
    }
    return name;
}

/* `state` of each node: 0 not met, 1 on the way, 2 done. Every node is on the way once at most. */
static enum result search_beginnings(
    const struct grammar *grammar, uint32_t from, uint8_t *state, struct visit *way) {
    size_t length = 0;
    way[length++] = (struct visit){.node = from};
    state[from] = 1;
    while (length) {
        uint32_t child = 0;
        if (!next_beginning(grammar, &way[length - 1], &child)) {
            state[way[--length].node] = 2;
            continue;
        }
        if (state[child] == 1)
            return fail(ERROR_INPUT, "%s: begins with itself", last_called(grammar, way, length, child));
        if (state[child] == 0)
            way[length++] = (struct visit){.node = child};
        state[child] = state[child] ? state[child] : 1;
    }
    return OK;
}

/* Of all rules that the root needs. */
static enum result check_beginnings(const struct grammar *grammar, uint32_t root, const bool *reached) {
    uint8_t *state = calloc(grammar->node_count + 1, 1);
    struct visit *way = malloc((grammar->node_count + 1) * sizeof *way);
    enum result status = state && way ? OK : fail(ERROR_MEMORY, "no memory for a grammar");
    if (status == OK)
        status = search_beginnings(grammar, root, state, way);
    for (size_t i = 0; status == OK && i < grammar->rule_count; i++)
        if (reached[i] && !state[grammar->rules[i].node])
            status = search_beginnings(grammar, grammar->rules[i].node, state, way);
    free(state);
    free(way);
    return status;
}

static enum result check_rules(struct grammar *grammar, uint32_t root) {
    for (size_t i = 0; i < grammar->rule_count; i++)
        if (grammar->rules[i].node == RULES_FAILED)
            return fail(ERROR_INTERNAL, "rule %s is not defined", grammar->rules[i].name);
    TRY(settle_all(grammar));
    bool *reached = calloc(grammar->rule_count + 1, sizeof *reached);
    enum result status = OK;
    if (!reached || !mark_reached(grammar, root, reached))
        status = fail(ERROR_MEMORY, "no memory for a grammar");
    for (size_t i = 0; status == OK && i < grammar->rule_count; i++)
        if (reached[i] && !grammar->rules[i].productive)
            status = fail(ERROR_INPUT, "%s: no finite value fits: the schema asks for itself without an end",
                grammar->rules[i].name);
    if (status == OK && !grammar->nodes[root].productive)
        status = fail(ERROR_INPUT, "no text fits");
    if (status == OK)
        status = check_beginnings(grammar, root, reached);
    free(reached);
    return status;
}

enum result rules_finish(struct rules *rules, uint32_t root, struct grammar **grammar) {
    *grammar = NULL;
    enum result status = expressions_check(rules->grammar.expressions);
    if (status == OK && rules->failure != OK)
        status = fail(rules->failure, "%s", rules->why);
    if (status == OK && root == RULES_FAILED)
        status = fail(ERROR_INTERNAL, "the root of the grammar is missing");
    if (status == OK)
        status = check_rules(&rules->grammar, root);
    if (status == OK)
        status = expressions_check(rules->grammar.expressions);
    struct grammar *finished = status == OK ? malloc(sizeof *finished) : NULL;
    if (status == OK && !finished)
        status = fail(ERROR_MEMORY, "no memory for a grammar");
    if (status != OK) {
        rules_free(rules);
        return status;
    }
    expressions_limit_work(rules->grammar.expressions, 0); /* answers are bounded otherwise */
    *finished = rules->grammar;
    pthread_mutex_init(&finished->lock, NULL);
    finished->root = root;
    pthread_mutex_destroy(&rules->grammar.lock);
    free(rules);
    *grammar = finished;
    return OK;
}

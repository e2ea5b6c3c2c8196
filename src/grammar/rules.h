/* Context-free structure over terminals, which are expressions or control tokens.
 *
 * Build nodes, define rules, finish. Nodes may be used in several places. Ambiguity is allowed. A node or rule is
 * a number; RULES_FAILED sticks as with expressions, and rules_finish tells why. */
#ifndef NOCTURNE_GRAMMAR_RULES_H
#define NOCTURNE_GRAMMAR_RULES_H

#include "base/error.h"
#include "grammar/expression.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint32_t */

#define RULES_FAILED UINT32_MAX
enum { RULES_LIMIT = 100000, RULES_DEPTH_LIMIT = 1024 };

struct grammar;
struct rules;

MUST_CHECK enum result rules_create(struct rules **rules);
void rules_free(struct rules *rules); /* NULL is allowed */
/* Owned by the rules, and after rules_finish by the grammar. */
struct expressions *rules_expressions(struct rules *rules);

uint32_t rules_terminal(struct rules *rules, uint32_t expression);
uint32_t rules_token(struct rules *rules, uint32_t id); /* that control token */
uint32_t rules_call(struct rules *rules, uint32_t rule);
uint32_t rules_sequence(struct rules *rules, const uint32_t *nodes, size_t count); /* 0: the empty text */
uint32_t rules_choice(struct rules *rules, const uint32_t *nodes, size_t count);
/* A counter, never written out; most -1: no end. `node` must not have the empty text. */
uint32_t rules_repeat(struct rules *rules, uint32_t node, int32_t least, int32_t most);

/* A new rule. `name` is copied, for messages. `nests`: a call is one level of depth, of which a text has at
 * most RULES_DEPTH_LIMIT. */
uint32_t rules_declare(struct rules *rules, const char *name, bool nests);
void rules_define(struct rules *rules, uint32_t rule, uint32_t node);

/* Checks that every rule is defined, has a finite text and does not begin with itself; ERROR_INPUT names the
 * rule. Takes over the rules, which are gone in every case. */
MUST_CHECK enum result rules_finish(struct rules *rules, uint32_t root, struct grammar **grammar);

#endif

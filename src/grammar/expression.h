/* Regular languages over bytes, as expressions with derivatives.
 *
 * An expression is a number; equal expressions (after simplification) have equal numbers. The derivative of an
 * expression by a byte is the expression of what may follow that byte (Brzozowski, "Derivatives of Regular
 * Expressions", 1964), so that an expression is a state of a lazily built automaton: conjunctions and
 * complements need no product tables, and a counted repetition is one node whatever its counts.
 *
 * Builders return EXPRESSION_FAILED when a limit or memory is exceeded; the failure sticks, and
 * expressions_check tells it. Not safe for use by several threads at once. */
#ifndef NOCTURNE_GRAMMAR_EXPRESSION_H
#define NOCTURNE_GRAMMAR_EXPRESSION_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint32_t */

#define EXPRESSION_FAILED UINT32_MAX
enum { EXPRESSION_NOTHING = 0, EXPRESSION_EMPTY = 1 };
enum { EXPRESSIONS_LIMIT = 2000000, EXPRESSION_STATES_LIMIT = 50000 };

struct expressions;

/* Ascending code points, both ends included. */
struct code_range {
    uint32_t first, last;
};

struct byte_set {
    uint64_t words[4];
};

MUST_CHECK enum result expressions_create(struct expressions **expressions);
void expressions_free(struct expressions *expressions); /* NULL is allowed */
/* OK, or the first failure of a builder: ERROR_INPUT for a limit, ERROR_MEMORY. */
MUST_CHECK enum result expressions_check(const struct expressions *expressions);
size_t expressions_bytes(const struct expressions *expressions); /* of memory */

uint32_t expression_nothing(struct expressions *expressions); /* no text */
uint32_t expression_empty(struct expressions *expressions);   /* the empty text */
uint32_t expression_byte_set(struct expressions *expressions, const struct byte_set *set);
uint32_t expression_byte(struct expressions *expressions, unsigned char byte);
uint32_t expression_concatenate(struct expressions *expressions, uint32_t a, uint32_t b);
uint32_t expression_either(struct expressions *expressions, const uint32_t *list, size_t count);
uint32_t expression_both(struct expressions *expressions, const uint32_t *list, size_t count);
uint32_t expression_complement(struct expressions *expressions, uint32_t a);
uint32_t expression_repeat(
    struct expressions *expressions, uint32_t a, int32_t least, int32_t most); /* most -1: no end */
uint32_t expression_literal(struct expressions *expressions, const char *bytes, size_t count);
/* Any of many texts, so that common beginnings are read once. Sorts the list. */
struct expression_text {
    const char *bytes;
    size_t count;
};
uint32_t expression_texts(struct expressions *expressions, struct expression_text *texts, size_t count);
/* One character of the ranges (ascending, apart; surrogates are left out), in UTF-8. */
uint32_t expression_code_points(
    struct expressions *expressions, const struct code_range *ranges, size_t count);
uint32_t expression_any_utf8(struct expressions *expressions); /* any text of whole characters */
/* Texts of digits and dots whose digits D satisfy: `remainder` followed by D is a multiple of `modulus`. */
uint32_t expression_multiple(struct expressions *expressions, uint32_t modulus, uint32_t remainder);

bool expression_nullable(const struct expressions *expressions, uint32_t a);
/* EXPRESSION_NOTHING when no text of `a` starts with `byte`. */
uint32_t expression_derivative(struct expressions *expressions, uint32_t a, unsigned char byte);
/* Whether the derivatives of `a` by any texts are at most so many: then no search among them takes long. */
bool expression_has_states(struct expressions *expressions, uint32_t a, size_t most);
/* Whether `a` has no text; true, too, when the search exceeds its limit (then expressions_check fails). */
bool expression_is_empty(struct expressions *expressions, uint32_t a);
/* How often a repetition can begin anew in a row at most: its texts are made of `bytes` (256 flags) and have at least
 * `shortest` of them. */
typedef uint32_t (*expression_longest_run)(const void *context, const bool bytes[256], uint32_t shortest);
/* An expression with the same prefixes of what the runs allow as `a`, and as nullable: counts of repetitions that
 * no run reaches are dropped, so that states that differ in those alone become equal. The answers of `longest` are
 * kept: of one `expressions` they must stay the same. */
uint32_t expression_within(
    struct expressions *expressions, uint32_t a, expression_longest_run longest, const void *context);

/* Partitions of the bytes into classes that an expression does not tell apart, numbered; equal ones have equal
 * numbers. EXPRESSION_ALL_ALIKE: one class. After a failure, which sticks, they mean nothing. */
enum { EXPRESSION_ALL_ALIKE = 1 };
uint32_t expression_partition(struct expressions *expressions, uint32_t a);
/* The coarsest partition that tells apart what one of the expressions does. */
uint32_t expression_partition_all(struct expressions *expressions, const uint32_t *list, size_t count);
/* The class of each byte, valid as long as `expressions`; stores how many there are unless `count` is NULL. */
const uint8_t *expression_classes(const struct expressions *expressions, uint32_t partition, uint32_t *count);

/* Work is counted, not timed, so that a specification is refused on every machine or on none: from now on at most
 * `units` may be spent, each some tens of nanoseconds; 0: any number. Builders spend for themselves. */
void expressions_limit_work(struct expressions *expressions, uint64_t units);
/* Others spend their own work here; beyond the limit expressions_check fails. */
void expressions_spend(struct expressions *expressions, uint64_t units);
uint64_t expressions_spent(const struct expressions *expressions);

/* Throws away what is not kept: call begin, keep for each expression that is still needed, and end; then
 * expressions_moved gives the new number of a kept one until the next begin. False: no memory, and nothing was done
 * (begin) or thrown away (end). */
bool expressions_begin_collection(struct expressions *expressions);
void expressions_keep(struct expressions *expressions, uint32_t a);
bool expressions_end_collection(struct expressions *expressions);
uint32_t expressions_moved(const struct expressions *expressions, uint32_t a);

bool expression_matches(struct expressions *expressions, uint32_t a, const char *text, size_t bytes);

#endif

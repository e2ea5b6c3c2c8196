/* Answers held to grammars: what each choice may draw next.
 *
 * Grammars are shared by requests of equal content, and kept for a while after the last of them. A choice's constraint follows its
 * tokens from the first one on, so that it is rebuilt from them when a choice goes on in another phase or launch. What fails inside
 * a grammar is a fault of its request alone. */
#ifndef NOCTURNE_SCHEDULE_CONSTRAINTS_H
#define NOCTURNE_SCHEDULE_CONSTRAINTS_H

#include "base/error.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, uint64_t */

struct constraints; /* of one rank: the vocabulary as grammars see it, and the grammars at hand */

MUST_CHECK enum result constraints_create(const struct tokenizer *tokenizer, int32_t vocab_size,
    int32_t eos_token_id, struct constraints **constraints);
void constraints_free(struct constraints *constraints); /* when no constraint is left; NULL is allowed */

struct constraint; /* of one choice */

/* NULL for a request whose answer may be anything. A grammar that does not compile is the constraint's fault, not a failure. */
MUST_CHECK enum result constraint_begin(
    struct constraints *constraints, const struct request *request, struct constraint **constraint);
void constraint_free(struct constraint *constraint); /* NULL is allowed, as in all below */

/* Takes the choice's next token. */
void constraint_accept(struct constraint *constraint, int32_t token);

/* Finds out which tokens may come next. Constraints of different choices may do so at once. */
void constraint_make_mask(struct constraint *constraint);
/* What was found: as token_draw's `allowed`, NULL when all tokens may come. The constraint's own, until the next token. */
const uint64_t *constraint_mask(const struct constraint *constraint);

/* What went wrong, NULL when nothing did. Its mask lets everything pass then. */
const char *constraint_fault(const struct constraint *constraint);

#endif

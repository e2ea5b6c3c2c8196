/* Compiled grammars by content: equal specifications share one grammar. Safe for use by several threads. */
#ifndef NOCTURNE_GRAMMAR_STORE_H
#define NOCTURNE_GRAMMAR_STORE_H

#include "grammar/grammar.h"

#include <stddef.h> /* size_t */

struct grammar_store;

/* Keeps grammars that nobody uses, too, those used last, as long as all together take at most `bytes` of memory. */
MUST_CHECK enum result grammar_store_create(size_t bytes, struct grammar_store **store);
/* Every grammar must have been released. NULL is allowed. */
void grammar_store_free(struct grammar_store *store);

/* The grammar of a specification, compiled when no equal one is at hand; to be released once per call, behind its
 * matchers' end. Errors are those of grammar_compile. */
MUST_CHECK enum result grammar_store_get(
    struct grammar_store *store, const struct grammar_specification *specification, struct grammar **grammar);
void grammar_store_release(struct grammar_store *store, struct grammar *grammar);

size_t grammar_store_count(struct grammar_store *store); /* of grammars, used or not */
/* Bytes of memory of all grammars, each as of its compilation or last release. */
size_t grammar_store_bytes(struct grammar_store *store);

#endif

/* Makes the masks of one state fail, in a program linked with --wrap=grammar_matcher_mask: where the token that
 * NOCTURNE_FAULT_TOKEN numbers is the only one that may come next. */
#include "grammar/grammar.h"

#include <stdlib.h> /* getenv, strtoul */

enum result __real_grammar_matcher_mask(struct grammar_matcher *matcher, uint64_t *bits);
enum result __wrap_grammar_matcher_mask(struct grammar_matcher *matcher, uint64_t *bits);

static bool is_only(const uint64_t *bits, unsigned long token) {
    /* Tokens are looked at up to the one asked for; behind it there may be no more words. */
    for (unsigned long i = 0; i < token / 64; i++)
        if (bits[i])
            return false;
    return bits[token / 64] == (uint64_t)1 << token % 64;
}

enum result __wrap_grammar_matcher_mask(struct grammar_matcher *matcher, uint64_t *bits) {
    TRY(__real_grammar_matcher_mask(matcher, bits));
    const char *token = getenv("NOCTURNE_FAULT_TOKEN");
    return token && is_only(bits, strtoul(token, NULL, 10))
               ? fail(ERROR_MEMORY, "a grammar's tables are full, said the test")
               : OK;
}

/* Regular expressions -> expressions over bytes.
 *
 * The syntax is the common part of ECMA-262 and Python without what needs a memory of the text: literals, `.`,
 * classes, \d \w \s and their negations (\d and \w are ASCII, \s is ECMA's set), groups, |, ? * + {n} {n,}
 * {n,m} (a lazy `?` behind them is ignored: the language is the same), `^` and `$` at the ends of the
 * pattern or of a top-level branch, escapes. Everything else is refused with its byte offset. */
#ifndef NOCTURNE_GRAMMAR_REGEX_H
#define NOCTURNE_GRAMMAR_REGEX_H

#include "base/error.h"
#include "grammar/expression.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* uint32_t */

enum { REGEX_EXPANDED_LIMIT = 100000 }; /* characters of a pattern whose repetitions are written out */

enum regex_reach {
    REGEX_WHOLE, /* the whole text must match */
    REGEX_SEARCH /* some part of the text must match, unless anchored */
};

/* Stores the expression of the texts that match. `json`: of their JSON spellings (json_text.h), without
 * quotes. ERROR_INPUT: "offset N: what is wrong". The expression may be of no text at all. */
MUST_CHECK enum result regex_compile(struct expressions *expressions, const char *pattern, size_t bytes,
    enum regex_reach reach, bool json, uint32_t *expression);

#endif

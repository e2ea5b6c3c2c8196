/* nocturne grammar check: whether one schema, pattern or set of tools is supported, and whether a text fits it. */
#ifndef NOCTURNE_RECIPE_GRAMMAR_CHECK_H
#define NOCTURNE_RECIPE_GRAMMAR_CHECK_H

#include "base/error.h"

/* argv[0] is "check". ERROR_INPUT: what is tried is refused, or the text does not fit; the message says where and why. */
MUST_CHECK enum result command_grammar_check(int argc, char **argv);

#endif

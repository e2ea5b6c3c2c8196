/* nocturne grammar: schemas and patterns with texts -> which of the texts fit, as JSON lines. */
#ifndef NOCTURNE_RECIPE_GRAMMAR_COMMAND_H
#define NOCTURNE_RECIPE_GRAMMAR_COMMAND_H

#include "base/error.h"

MUST_CHECK enum result command_grammar(int argc, char **argv);

#endif

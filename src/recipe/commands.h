/* nocturne tokenize, detokenize and render: JSON lines in, JSON lines out. */
#ifndef NOCTURNE_RECIPE_COMMANDS_H
#define NOCTURNE_RECIPE_COMMANDS_H

#include "base/error.h"

MUST_CHECK enum result command_tokenize(int argc, char **argv);
MUST_CHECK enum result command_detokenize(int argc, char **argv);
MUST_CHECK enum result command_render(int argc, char **argv);

#endif

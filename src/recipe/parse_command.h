/* nocturne parse: what models wrote -> reasoning, content and tool calls, as JSON lines. */
#ifndef NOCTURNE_RECIPE_PARSE_COMMAND_H
#define NOCTURNE_RECIPE_PARSE_COMMAND_H

#include "base/error.h"

MUST_CHECK enum result command_parse(int argc, char **argv);

#endif

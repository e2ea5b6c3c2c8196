/* Tool calls in the model's markup -> rules. */
#ifndef NOCTURNE_GRAMMAR_TOOLS_H
#define NOCTURNE_GRAMMAR_TOOLS_H

#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/rules.h"

/* `tools`: a list of {"type": "function", "function": {"name", "parameters", ...}}. Parameters come in the
 * order of the schema, required ones present. ERROR_INPUT names the tool. */
MUST_CHECK enum result tools_compile(struct rules *rules, const struct json *tools,
    const struct grammar_specification *specification, uint32_t *root);

#endif

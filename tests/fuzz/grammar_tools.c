/* Tools: any bytes are refused with a reason or give a grammar whose functions agree along a random walk.
 *
 * Input: a byte of options, then the JSON text of the tools. */
#include "grammar_walk.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    if (!bytes)
        return 0;
    struct grammar_specification specification = {.kind = GRAMMAR_TOOLS,
        .text = (const char *)data + 1,
        .bytes = bytes - 1,
        .strict = data[0] & 1,
        .compact = data[0] & 2,
        .one_call = data[0] & 4,
        .tool_choice = (enum grammar_tool_choice)(data[0] >> 3 & 3),
        .tool_name = "f",
        .marker_token = data[0] & 32 ? WALK_MARKER : GRAMMAR_NO_TOKEN};
    struct grammar *grammar = walk_compile(&specification);
    if (grammar)
        walk_grammar(grammar, walk_seed(data, bytes));
    grammar_free(grammar);
    return 0;
}

/* Schemas: any bytes are refused with a reason or give a grammar whose functions agree along a random walk.
 *
 * Input: a byte of options, then the schema's text. */
#include "grammar_walk.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    if (!bytes)
        return 0;
    struct grammar_specification specification = {.kind = GRAMMAR_SCHEMA,
        .text = (const char *)data + 1,
        .bytes = bytes - 1,
        .strict = data[0] & 1,
        .compact = data[0] & 2,
        .marker_token = GRAMMAR_NO_TOKEN};
    struct grammar *grammar = walk_compile(&specification);
    if (grammar)
        walk_grammar(grammar, walk_seed(data, bytes));
    grammar_free(grammar);
    return 0;
}

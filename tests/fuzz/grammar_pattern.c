/* Patterns: any bytes are refused with a reason or give a grammar whose functions agree along a random walk; the
 * same for the pattern as the keyword of a schema, where it binds a JSON string.
 *
 * Input: the pattern. */
#include "base/buffer.h"
#include "grammar_walk.h"

static void walk_pattern(const unsigned char *data, size_t bytes) {
    struct grammar_specification specification = {
        .kind = GRAMMAR_REGEX, .text = (const char *)data, .bytes = bytes, .marker_token = GRAMMAR_NO_TOKEN};
    struct grammar *grammar = walk_compile(&specification);
    if (grammar)
        walk_grammar(grammar, walk_seed(data, bytes));
    grammar_free(grammar);
}

static void walk_schema(const unsigned char *data, size_t bytes) {
    static struct buffer schema;
    buffer_clear(&schema);
    buffer_append_text(&schema, "{\"type\":\"string\",\"maxLength\":20,\"pattern\":");
    buffer_append_json_string(&schema, (const char *)data, bytes);
    buffer_append_text(&schema, "}");
    struct grammar_specification specification = {
        .kind = GRAMMAR_SCHEMA, .text = schema.data, .bytes = schema.bytes, .marker_token = GRAMMAR_NO_TOKEN};
    struct grammar *grammar = walk_compile(&specification);
    if (grammar)
        walk_grammar(grammar, walk_seed(data, bytes));
    grammar_free(grammar);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    walk_pattern(data, bytes);
    walk_schema(data, bytes);
    return 0;
}

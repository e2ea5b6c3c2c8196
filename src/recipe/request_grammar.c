#include "recipe/request_grammar.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* strlen */

#define DSML_MARKER "｜DSML｜"

/* The marker's id, or GRAMMAR_NO_TOKEN in a vocabulary without it. */
static uint32_t marker_token(const struct tokenizer *tokenizer) {
    int32_t id = tokenizer_added_id(tokenizer, DSML_MARKER);
    return id < 0 ? GRAMMAR_NO_TOKEN : (uint32_t)id;
}

static void specify_tools(
    const struct request *request, enum grammar_tool_choice choice, struct grammar_specification *to) {
    to->kind = GRAMMAR_TOOLS;
    to->tool_choice = choice;
    to->one_call = request->one_call;
}

bool request_specification(const struct request *request, const struct tokenizer *tokenizer,
    struct grammar_specification *specification) {
    const struct text_piece text = request->constraint_text;
    *specification = (struct grammar_specification){.text = text.data,
        .bytes = text.bytes,
        .strict = request->constraint_strict,
        .compact = request->constraint_compact,
        .marker_token = marker_token(tokenizer)};
    switch (request->constraint) {
    case CONSTRAINT_NONE:
        return false;
    case CONSTRAINT_JSON:
        specification->kind = text.bytes ? GRAMMAR_SCHEMA : GRAMMAR_JSON_OBJECT;
        return true;
    case CONSTRAINT_REGEX:
        specification->kind = GRAMMAR_REGEX;
        return true;
    case CONSTRAINT_TOOL_CALL:
        specify_tools(request, GRAMMAR_TOOLS_AUTO, specification);
        return true;
    case CONSTRAINT_TOOL_CALL_REQUIRED:
        specify_tools(request, GRAMMAR_TOOLS_REQUIRED, specification);
        return true;
    case CONSTRAINT_NO_TOOL_CALL:
        specify_tools(request, GRAMMAR_TOOLS_NONE, specification);
        specification->text = "[]";
        specification->bytes = 2;
        return true;
    }
    return false;
}

static enum result give_text(struct grammar_matcher *matcher, const char *text) {
    size_t taken = 0;
    TRY(grammar_matcher_accept_bytes(matcher, text, strlen(text), &taken));
    return taken == strlen(text) ? OK
                                 : fail(ERROR_INTERNAL, "calls do not begin as the prompt ends: %s", text);
}

static enum result give_marker(struct grammar_matcher *matcher, const struct tokenizer *tokenizer) {
    uint32_t token = marker_token(tokenizer);
    bool accepted = false;
    if (token == GRAMMAR_NO_TOKEN)
        return give_text(matcher, DSML_MARKER);
    TRY(grammar_matcher_accept(matcher, token, &accepted));
    return accepted ? OK : fail(ERROR_INTERNAL, "calls do not begin with the marker");
}

enum result request_grammar_begin(
    const struct request *request, const struct tokenizer *tokenizer, struct grammar_matcher *matcher) {
    if (request->start != START_CALLS)
        return OK;
    TRY(give_text(matcher, "\n\n<"));
    TRY(give_marker(matcher, tokenizer));
    return give_text(matcher, " calls>\n");
}

enum result tokenizer_grammar_vocabulary(
    const struct tokenizer *tokenizer, int32_t count, int32_t end, struct grammar_vocabulary **vocabulary) {
    const char **bytes = calloc((size_t)count + 1, sizeof *bytes);
    uint32_t *lengths = calloc((size_t)count + 1, sizeof *lengths);
    enum result status =
        bytes && lengths ? OK : fail(ERROR_MEMORY, "no memory for the vocabulary of grammars");
    for (int32_t i = 0; status == OK && i < count; i++) {
        size_t length = 0;
        if (!tokenizer_is_added(tokenizer, i) && tokenizer_token_bytes(tokenizer, i, &bytes[i], &length))
            lengths[i] = (uint32_t)length;
    }
    if (status == OK)
        status = grammar_vocabulary_create(bytes, lengths, (uint32_t)count, (uint32_t)end, vocabulary);
    free(bytes);
    free(lengths);
    return status;
}

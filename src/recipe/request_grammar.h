/* The grammar of a request's answer, from what the request says of it. */
#ifndef NOCTURNE_RECIPE_REQUEST_GRAMMAR_H
#define NOCTURNE_RECIPE_REQUEST_GRAMMAR_H

#include "base/error.h"
#include "grammar/grammar.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

/* What grammar_compile needs; its texts are the request's. False when the answer may be anything. */
bool request_specification(const struct request *request, const struct tokenizer *tokenizer,
    struct grammar_specification *specification);

/* Gives a fresh matcher of the request's grammar what the prompt has of its text already: calls that are required begin there. */
MUST_CHECK enum result request_grammar_begin(
    const struct request *request, const struct tokenizer *tokenizer, struct grammar_matcher *matcher);

/* The tokenizer's tokens as grammars see them: those that are added or special are control tokens, whose spelling no grammar
 * takes for text, and so is what the tokenizer does not know of the model's `count` ids. `end` is the token that ends an
 * answer. */
MUST_CHECK enum result tokenizer_grammar_vocabulary(
    const struct tokenizer *tokenizer, int32_t count, int32_t end, struct grammar_vocabulary **vocabulary);

#endif

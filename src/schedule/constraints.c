#include "schedule/constraints.h"

#include "grammar/grammar.h"
#include "grammar/store.h"
#include "model/sampling.h" /* mask_words */
#include "recipe/request_grammar.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, malloc, free */
#include <string.h> /* memset */

static const size_t GRAMMARS_BYTES = (size_t)64 << 20; /* kept, when nobody uses them, too */

struct constraints {
    const struct tokenizer *tokenizer;
    struct grammar_vocabulary *vocabulary;
    struct grammar_store *store;
    int32_t end_of_reasoning; /* a token; -1: the tokenizer has none */
    size_t words;             /* of a mask */
    uint64_t *not_the_end;    /* [words]: all tokens but the end */
};

struct constraint {
    struct constraints *constraints;
    struct grammar *grammar;         /* the store's; NULL: it does not compile */
    struct grammar_matcher *matcher; /* NULL after a fault */
    bool reasons;                    /* the grammar begins behind the reasoning */
    uint64_t *mask;                  /* [words] */
    char fault[400];                 /* "": none */
};

/* ---- the vocabulary ---- */

enum result constraints_create(const struct tokenizer *tokenizer, int32_t vocab_size, int32_t eos_token_id,
    struct constraints **result) {
    struct constraints *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for answers held to grammars");
    *made = (struct constraints){.tokenizer = tokenizer,
        .end_of_reasoning = tokenizer_added_id(tokenizer, "</think>"),
        .words = mask_words(vocab_size)};
    enum result status = OK;
    made->not_the_end = malloc(made->words * sizeof *made->not_the_end);
    if (!made->not_the_end)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory for a mask of %d tokens", vocab_size), done);
    memset(made->not_the_end, 0xFF, made->words * sizeof *made->not_the_end);
    made->not_the_end[eos_token_id / 64] &= ~((uint64_t)1 << eos_token_id % 64);
    TRY_GOTO(status, grammar_store_create(GRAMMARS_BYTES, &made->store), done);
    TRY_GOTO(
        status, tokenizer_grammar_vocabulary(tokenizer, vocab_size, eos_token_id, &made->vocabulary), done);
    *result = made;
    made = NULL;
done:
    constraints_free(made);
    return status;
}

void constraints_free(struct constraints *constraints) {
    if (!constraints)
        return;
    grammar_store_free(constraints->store);
    grammar_vocabulary_free(constraints->vocabulary);
    free(constraints->not_the_end);
    free(constraints);
}

/* ---- one choice ---- */

static void note_fault(struct constraint *constraint, const char *what) {
    grammar_matcher_free(constraint->matcher);
    constraint->matcher = NULL;
    snprintf(constraint->fault, sizeof constraint->fault, "%s", what);
}

/* The grammar's state where the answer begins. */
static enum result start_matcher(struct constraint *constraint, const struct request *request) {
    const struct constraints *constraints = constraint->constraints;
    TRY(grammar_matcher_create(constraint->grammar, constraints->vocabulary, &constraint->matcher));
    return request_grammar_begin(request, constraints->tokenizer, constraint->matcher);
}

enum result constraint_begin(
    struct constraints *constraints, const struct request *request, struct constraint **constraint) {
    struct grammar_specification specification;
    *constraint = NULL;
    if (!request_specification(request, constraints->tokenizer, &specification))
        return OK;
    struct constraint *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for an answer held to a grammar");
    *constraint = made;
    made->constraints = constraints;
    made->reasons = request->thinking;
    made->mask = calloc(constraints->words, sizeof *made->mask);
    if (!made->mask)
        return fail(ERROR_MEMORY, "out of memory for an answer held to a grammar");
    enum result status = grammar_store_get(constraints->store, &specification, &made->grammar);
    if (status == OK)
        status = start_matcher(made, request);
    if (status != OK)
        note_fault(made, failure_message());
    return OK;
}

void constraint_free(struct constraint *constraint) {
    if (!constraint)
        return;
    grammar_matcher_free(constraint->matcher);
    if (constraint->grammar)
        grammar_store_release(constraint->constraints->store, constraint->grammar);
    free(constraint->mask);
    free(constraint);
}

void constraint_accept(struct constraint *constraint, int32_t token) {
    if (!constraint || !constraint->matcher)
        return;
    if (constraint->reasons) {
        constraint->reasons = token != constraint->constraints->end_of_reasoning;
        return;
    }
    bool accepted = false;
    char text[80];
    if (grammar_matcher_finished(constraint->matcher))
        return; /* ignore_eos: end tokens follow */
    if (grammar_matcher_accept(constraint->matcher, (uint32_t)token, &accepted) != OK) {
        note_fault(constraint, failure_message());
    } else if (!accepted) {
        snprintf(text, sizeof text, "the answer has token %d, which its grammar does not allow", token);
        note_fault(constraint, text);
    }
}

static bool is_empty(const uint64_t *mask, size_t words) {
    for (size_t i = 0; i < words; i++)
        if (mask[i])
            return false;
    return true;
}

void constraint_make_mask(struct constraint *constraint) {
    if (!constraint || !constraint->matcher || constraint->reasons)
        return;
    if (grammar_matcher_mask(constraint->matcher, constraint->mask) != OK)
        note_fault(constraint, failure_message());
    else if (is_empty(constraint->mask, constraint->constraints->words))
        note_fault(constraint, "no token of this vocabulary can go on");
}

/* While the model reasons anything may come but the end, unless an answer may be empty. */
const uint64_t *constraint_mask(const struct constraint *constraint) {
    if (!constraint || !constraint->matcher)
        return NULL;
    if (!constraint->reasons)
        return constraint->mask;
    return grammar_matcher_accepting(constraint->matcher) ? NULL : constraint->constraints->not_the_end;
}

const char *constraint_fault(const struct constraint *constraint) {
    return constraint && constraint->fault[0] ? constraint->fault : NULL;
}

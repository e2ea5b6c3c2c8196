#include "schedule/constraints.h"

#include "grammar/grammar.h"
#include "model/sampling.h" /* mask_words */
#include "recipe/request_grammar.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, malloc, free */
#include <string.h> /* memset */
#include <xxhash.h> /* XXH3_128bits_withSeed */

enum { SPARE_GRAMMARS = 64 };
static const size_t SPARE_BYTES = (size_t)64 << 20;

/* A grammar and who uses it. */
struct shared_grammar {
    struct shared_grammar *next; /* the one used last comes first */
    XXH128_hash_t content;
    struct grammar *grammar;
    int32_t users;
};

struct constraints {
    const struct tokenizer *tokenizer;
    struct grammar_vocabulary *vocabulary;
    struct shared_grammar *grammars;
    int32_t end, end_of_reasoning; /* tokens; -1: the tokenizer has none */
    size_t words;                  /* of a mask */
    uint64_t *not_the_end;         /* [words]: all tokens but the end */
};

struct constraint {
    struct constraints *constraints;
    struct shared_grammar *shared;
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
        .end = eos_token_id,
        .end_of_reasoning = tokenizer_added_id(tokenizer, "</think>"),
        .words = mask_words(vocab_size)};
    enum result status = OK;
    made->not_the_end = malloc(made->words * sizeof *made->not_the_end);
    if (!made->not_the_end)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory for a mask of %d tokens", vocab_size), done);
    memset(made->not_the_end, 0xFF, made->words * sizeof *made->not_the_end);
    made->not_the_end[eos_token_id / 64] &= ~((uint64_t)1 << eos_token_id % 64);
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
    while (constraints->grammars) {
        struct shared_grammar *next = constraints->grammars->next;
        grammar_free(constraints->grammars->grammar);
        free(constraints->grammars);
        constraints->grammars = next;
    }
    grammar_vocabulary_free(constraints->vocabulary);
    free(constraints->not_the_end);
    free(constraints);
}

/* ---- shared grammars ---- */

static XXH128_hash_t content_of(const struct grammar_specification *specification) {
    uint64_t said = (uint64_t)specification->kind << 8 | (uint64_t)specification->tool_choice << 4 |
                    (uint64_t)specification->strict << 2 | (uint64_t)specification->compact << 1 |
                    specification->one_call;
    return XXH3_128bits_withSeed(specification->text, specification->bytes, said);
}

/* Takes a grammar that is at hand out of the list; NULL: it is not. */
static struct shared_grammar *take_known(struct constraints *constraints, XXH128_hash_t content) {
    for (struct shared_grammar **link = &constraints->grammars; *link; link = &(*link)->next) {
        struct shared_grammar *found = *link;
        if (!XXH128_isEqual(found->content, content))
            continue;
        *link = found->next;
        return found;
    }
    return NULL;
}

static enum result compile(
    const struct grammar_specification *specification, XXH128_hash_t content, struct shared_grammar **made) {
    *made = calloc(1, sizeof **made);
    if (!*made)
        return fail(ERROR_MEMORY, "out of memory for a grammar");
    (*made)->content = content;
    enum result status = grammar_compile(specification, &(*made)->grammar);
    if (status != OK) {
        free(*made);
        *made = NULL;
    }
    return status;
}

static enum result use_grammar(struct constraints *constraints,
    const struct grammar_specification *specification, struct shared_grammar **shared) {
    XXH128_hash_t content = content_of(specification);
    struct shared_grammar *used = take_known(constraints, content);
    if (!used)
        TRY(compile(specification, content, &used));
    used->users++;
    used->next = constraints->grammars;
    constraints->grammars = used;
    *shared = used;
    return OK;
}

/* Frees grammars without users, those used longest ago, until few and small ones are left. */
static void drop_spare(struct constraints *constraints) {
    int32_t spare = 0;
    size_t bytes = 0;
    struct shared_grammar **link = &constraints->grammars;
    while (*link) {
        struct shared_grammar *grammar = *link;
        if (!grammar->users) {
            spare++;
            bytes += grammar_bytes(grammar->grammar);
        }
        if (grammar->users || (spare <= SPARE_GRAMMARS && bytes <= SPARE_BYTES)) {
            link = &grammar->next;
            continue;
        }
        *link = grammar->next;
        grammar_free(grammar->grammar);
        free(grammar);
    }
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
    TRY(grammar_matcher_create(constraint->shared->grammar, constraints->vocabulary, &constraint->matcher));
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
    enum result status = use_grammar(constraints, &specification, &made->shared);
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
    if (constraint->shared) {
        constraint->shared->users--;
        drop_spare(constraint->constraints);
    }
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

/* Grammars of answers: which tokens may come next.
 *
 * A specification is compiled to a grammar, whose language is over bytes (and control tokens where the
 * specification names them). A matcher follows one answer: a token is allowed when the answer so far with it is a
 * prefix of a text of the language. Nothing here knows the model. */
#ifndef NOCTURNE_GRAMMAR_GRAMMAR_H
#define NOCTURNE_GRAMMAR_GRAMMAR_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint32_t, int64_t */

/* ---- the vocabulary ---- */

struct grammar_vocabulary;

/* `bytes[i]` of `lengths[i]` bytes is token i's text (copied); a token without bytes is a control token, never
 * allowed unless a grammar names it; `end` is the token that ends an answer. */
MUST_CHECK enum result grammar_vocabulary_create(const char *const *bytes, const uint32_t *lengths,
    uint32_t count, uint32_t end, struct grammar_vocabulary **vocabulary);
void grammar_vocabulary_free(struct grammar_vocabulary *vocabulary); /* NULL is allowed */
uint32_t grammar_vocabulary_count(const struct grammar_vocabulary *vocabulary);
size_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary); /* of memory */

/* ---- compiling ---- */

enum grammar_kind { GRAMMAR_SCHEMA, GRAMMAR_REGEX, GRAMMAR_JSON_OBJECT, GRAMMAR_TOOLS };

enum grammar_tool_choice {
    GRAMMAR_TOOLS_AUTO,
    GRAMMAR_TOOLS_REQUIRED,
    GRAMMAR_TOOLS_NAMED,
    GRAMMAR_TOOLS_NONE
};

#define GRAMMAR_NO_TOKEN UINT32_MAX

struct grammar_specification {
    enum grammar_kind kind;
    const char *text; /* a JSON Schema, a pattern, or a JSON array of tools; NULL for GRAMMAR_JSON_OBJECT */
    size_t bytes;
    bool
        strict; /* of a schema: objects and tuples that do not say so are closed; types are inferred. Of tools:
                     functions that do not say "strict" themselves are */
    bool compact; /* no blanks in JSON */
    enum grammar_tool_choice tool_choice;
    const char *tool_name; /* GRAMMAR_TOOLS_NAMED */
    bool one_call;         /* no parallel calls */
    uint32_t marker_token; /* the id of the DSML marker in tags, or GRAMMAR_NO_TOKEN: spelled in bytes */
};

struct grammar;

/* Units of work (expression.h) that compiling may take: about a second. */
enum { GRAMMAR_WORK_LIMIT = 20000000 };

/* ERROR_INPUT: the specification is refused; the message names the keyword and the JSON path, or the offset
 * in the pattern, or the limit. The grammar may be shared between threads. */
MUST_CHECK enum result grammar_compile(
    const struct grammar_specification *specification, struct grammar **grammar);
void grammar_free(struct grammar *grammar);    /* NULL is allowed */
size_t grammar_bytes(struct grammar *grammar); /* of memory, lazily grown tables included */

/* ---- following an answer ---- */

struct grammar_matcher;

/* Grammar and vocabulary must outlive the matcher; one grammar goes with one vocabulary. */
MUST_CHECK enum result grammar_matcher_create(
    struct grammar *grammar, const struct grammar_vocabulary *vocabulary, struct grammar_matcher **matcher);
MUST_CHECK enum result grammar_matcher_fork(
    const struct grammar_matcher *matcher, struct grammar_matcher **copy);
void grammar_matcher_free(struct grammar_matcher *matcher); /* NULL is allowed */

/* The tokens that may come next, as little-endian bits of 64-bit words (the vocabulary's size rounded up);
 * the end token's bit when the answer may end here. A finished matcher: that bit alone. */
MUST_CHECK enum result grammar_matcher_mask(struct grammar_matcher *matcher, uint64_t *bits);

/* Takes a token. `*accepted` is false, and the matcher unchanged, when it is not allowed. */
MUST_CHECK enum result grammar_matcher_accept(
    struct grammar_matcher *matcher, uint32_t token, bool *accepted);

/* Takes bytes; `*taken` of them were allowed, and the matcher stands behind those. Counts as one token for
 * grammar_matcher_rollback. */
MUST_CHECK enum result grammar_matcher_accept_bytes(
    struct grammar_matcher *matcher, const char *text, size_t bytes, size_t *taken);

bool grammar_matcher_accepting(const struct grammar_matcher *matcher);
bool grammar_matcher_finished(const struct grammar_matcher *matcher);
/* Which bytes may come next. */
MUST_CHECK enum result grammar_matcher_next_bytes(struct grammar_matcher *matcher, bool allowed[256]);
/* The bytes that must come next whatever follows, at most `room`. */
MUST_CHECK enum result grammar_matcher_forced(
    struct grammar_matcher *matcher, char *text, size_t room, size_t *bytes);
/* Undoes the last `tokens` accepted tokens (all, when there were fewer). */
void grammar_matcher_rollback(struct grammar_matcher *matcher, size_t tokens);

#endif

/* Random walks through a grammar, for the fuzzers: what the functions of grammar.h must tell each other at every
 * state of an answer. A fault aborts. */
#ifndef NOCTURNE_TESTS_FUZZ_GRAMMAR_WALK_H
#define NOCTURNE_TESTS_FUZZ_GRAMMAR_WALK_H

#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/rules_internal.h"

#include <stdint.h> /* uint64_t */
#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* abort */
#include <string.h> /* memcmp, memcpy, strlen */
#include <time.h>   /* clock_gettime */

/* Tokens 0 and WALK_MARKER are control tokens; then all bytes, then pieces of texts. */
enum { WALK_END = 1, WALK_MARKER = 2, WALK_BYTES = 3, WALK_ROOM = 512, WALK_WORDS = WALK_ROOM / 64 };
enum { WALK_COMPILE_SECONDS = 6 };
static const size_t WALK_MEMORY = (size_t)640 << 20;

static const char *const walk_pieces[] = {"{\"", "\":", "\": ", ",\"", ", \"", "\"}", "}]", "}}", "]}", "[]",
    "{}", "\",\"", "\\\"", "\\\\", "\\n", "\\u", "\\u00", "\\ud83d", "\\ude00", "dea", "\xE4\xB8",
    "\xE4\xB8\xAD", "\xE6\x97\xA5\xE6\x9C\xAC", "\xC3", "\xC3\xA9", "\xC3\xA9\xC3", "\xF0\x9F\x98",
    "\x9F\x98\x80", "\xED\xA0", "true", "false", "null", " true", "ull}", "00", "12", "-1", "0.", ".5", "1e",
    "E+", "999", "10000000", "1.0", "2024-", "-02-29", "T12:", ":59", "+01:00", "\n\n", "  ",
    "                ", "\n\t", "\r\n", "aa", "ab", "abc", "a1", "name", "id\"", "type", "x-",
    "b\":", "value\":\"", "0123456789abcdef", "@a.b", "</",
    "<\xEF\xBD\x9C"
    "DSML\xEF\xBD\x9C",
    "\xEF\xBD\x9C"
    "DSML",
    "DSML", " calls>", " invoke name=\"", " parameter name=\"", "\">\n", "\" string=\"", "true\">",
    "false\">", ">\n", "</\xEF\xBD\x9C", " parameter>", "<think>", "aa", "\"", "\x01", "\x7F", "Zz", "_-",
    "()", "$"};

static inline void walk_check(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "walk: %s\n", what);
    abort();
}

static inline void walk_expect(enum result status) {
    walk_check(status == OK, failure_message());
}

static inline const struct grammar_vocabulary *walk_vocabulary(void) {
    static struct grammar_vocabulary *vocabulary;
    static char single[256];
    const char *bytes[WALK_ROOM] = {NULL};
    uint32_t lengths[WALK_ROOM] = {0}, count = WALK_BYTES;
    if (vocabulary)
        return vocabulary;
    for (unsigned byte = 0; byte < 256; byte++, count++) {
        single[byte] = (char)byte;
        bytes[count] = &single[byte];
        lengths[count] = 1;
    }
    for (size_t i = 0; i < sizeof walk_pieces / sizeof *walk_pieces; i++, count++) {
        bytes[count] = walk_pieces[i];
        lengths[count] = (uint32_t)strlen(walk_pieces[i]);
    }
    walk_expect(grammar_vocabulary_create(bytes, lengths, count, WALK_END, &vocabulary));
    return vocabulary;
}

static inline uint64_t walk_draw(uint64_t *seed) {
    uint64_t x = *seed += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline uint64_t walk_seed(const void *data, size_t bytes) {
    uint64_t seed = 0xCBF29CE484222325u;
    for (size_t i = 0; i < bytes; i++)
        seed = (seed ^ ((const unsigned char *)data)[i]) * 0x100000001B3u;
    return seed;
}

static inline double walk_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Compiles; NULL when it is refused, which must say why and not take long. */
static inline struct grammar *walk_compile(const struct grammar_specification *specification) {
    struct grammar *grammar = NULL;
    double start = walk_seconds();
    enum result status = grammar_compile(specification, &grammar);
    walk_check(walk_seconds() - start < WALK_COMPILE_SECONDS, "compiling takes too long");
    if (status == OK)
        return grammar;
    walk_check(status == ERROR_INPUT && !grammar && *failure_message(), "a refusal without a reason");
    return NULL;
}

static inline bool walk_bit(const uint64_t *bits, uint32_t token) {
    return bits[token >> 6] >> (token & 63) & 1;
}

/* At run time a grammar may meet a limit (ambiguity, memory): an error, but no other one. */
static inline bool walk_within_limits(enum result status) {
    walk_check(status == OK || status == ERROR_INPUT || status == ERROR_MEMORY, failure_message());
    return status == OK;
}

static inline void walk_same_mask(struct grammar_matcher *matcher, const uint64_t *bits, const char *what) {
    uint64_t again[WALK_WORDS] = {0};
    walk_expect(grammar_matcher_mask(matcher, again));
    walk_check(!memcmp(bits, again, sizeof again), what);
}

/* Each token's bit says whether it is accepted; then it is undone again. */
static inline bool walk_check_tokens(struct grammar_matcher *matcher, const uint64_t *bits) {
    uint32_t count = grammar_vocabulary_count(walk_vocabulary());
    for (uint32_t token = 0; token < count; token++) {
        bool accepted = false;
        if (!walk_within_limits(grammar_matcher_accept(matcher, token, &accepted)))
            return false;
        walk_check(accepted == walk_bit(bits, token), "mask and accept disagree");
        if (accepted)
            grammar_matcher_rollback(matcher, 1);
    }
    for (uint32_t bit = count; bit < WALK_ROOM; bit++)
        walk_check(!walk_bit(bits, bit), "a bit beyond the vocabulary");
    walk_same_mask(matcher, bits, "a mask changed after tokens were undone");
    return true;
}

static inline bool walk_check_bytes(struct grammar_matcher *matcher, const uint64_t *bits) {
    bool allowed[256];
    if (!walk_within_limits(grammar_matcher_next_bytes(matcher, allowed)))
        return false;
    for (unsigned byte = 0; byte < 256; byte++) {
        size_t taken = 0;
        char text = (char)byte;
        walk_check(allowed[byte] == walk_bit(bits, WALK_BYTES + byte), "a byte and its token disagree");
        walk_expect(grammar_matcher_accept_bytes(matcher, &text, 1, &taken));
        walk_check(taken == allowed[byte], "next_bytes and accept_bytes disagree");
        grammar_matcher_rollback(matcher, 1);
    }
    return true;
}

/* Forced bytes are the only ones, and no end lies before them. */
static inline bool walk_check_forced(struct grammar_matcher *matcher) {
    struct grammar_matcher *copy = NULL;
    char text[40];
    size_t bytes = 0;
    if (!walk_within_limits(grammar_matcher_forced(matcher, text, sizeof text, &bytes)))
        return false;
    walk_expect(grammar_matcher_fork(matcher, &copy));
    for (size_t i = 0; i < bytes; i++) {
        bool allowed[256];
        size_t taken = 0;
        walk_expect(grammar_matcher_next_bytes(copy, allowed));
        walk_check(!grammar_matcher_accepting(copy), "a forced byte where the answer may end");
        for (unsigned byte = 0; byte < 256; byte++)
            walk_check(
                allowed[byte] == (byte == (unsigned char)text[i]), "a forced byte is not the only one");
        walk_expect(grammar_matcher_accept_bytes(copy, text + i, 1, &taken));
        walk_check(taken == 1, "a forced byte is refused");
    }
    grammar_matcher_free(copy);
    return true;
}

/* The checks of the matcher's state, those of all tokens where they are asked for; false when a limit was met. */
static inline bool walk_check_state(struct grammar_matcher *matcher, uint64_t *bits, bool all_tokens) {
    memset(bits, 0, WALK_WORDS * sizeof *bits);
    if (!walk_within_limits(grammar_matcher_mask(matcher, bits)))
        return false;
    uint64_t any = 0;
    for (int i = 0; i < WALK_WORDS; i++)
        any |= bits[i];
    walk_check(any != 0, "a dead end: nothing may come and the answer may not end");
    walk_check(walk_bit(bits, WALK_END) == grammar_matcher_accepting(matcher), "the end's bit");
    return (!all_tokens || walk_check_tokens(matcher, bits)) && walk_check_bytes(matcher, bits) &&
           walk_check_forced(matcher);
}

/* A finished matcher allows the end alone and takes nothing. */
static inline void walk_check_end(struct grammar_matcher *matcher, const uint64_t *before) {
    uint64_t bits[WALK_WORDS] = {0}, only[WALK_WORDS] = {(uint64_t)1 << WALK_END};
    bool accepted = false;
    walk_expect(grammar_matcher_accept(matcher, WALK_END, &accepted));
    walk_check(accepted && grammar_matcher_finished(matcher), "the end is refused");
    walk_expect(grammar_matcher_mask(matcher, bits));
    walk_check(!memcmp(bits, only, sizeof bits), "more than the end behind the end");
    for (uint32_t token = 0; token < grammar_vocabulary_count(walk_vocabulary()); token += 7) {
        walk_expect(grammar_matcher_accept(matcher, token, &accepted));
        walk_check(!accepted, "a token behind the end");
    }
    grammar_matcher_rollback(matcher, 1);
    walk_check(!grammar_matcher_finished(matcher), "the end was not undone");
    walk_same_mask(matcher, before, "a mask changed after the end was undone");
}

/* An allowed token that is not the end; in one case of two one that closes something. */
static inline uint32_t walk_choose(const uint64_t *bits, uint64_t *seed) {
    static const char closing[] = "\"}],:0a<>\n";
    uint32_t count = grammar_vocabulary_count(walk_vocabulary()), start = (uint32_t)(walk_draw(seed) % count);
    if (walk_draw(seed) % 2) {
        size_t from = walk_draw(seed) % (sizeof closing - 1);
        for (size_t i = 0; i < sizeof closing - 1; i++) {
            uint32_t token = WALK_BYTES + (unsigned char)closing[(from + i) % (sizeof closing - 1)];
            if (walk_bit(bits, token))
                return token;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = (start + i) % count;
        if (token != WALK_END && walk_bit(bits, token))
            return token;
    }
    return WALK_END;
}

/* Undoing all tokens leads back to the start's mask, and taking them again to the present one. */
static inline void walk_check_history(struct grammar_matcher *matcher, const uint32_t *tokens, size_t count,
    const uint64_t *first, const uint64_t *last) {
    struct grammar_matcher *copy = NULL;
    walk_expect(grammar_matcher_fork(matcher, &copy));
    grammar_matcher_rollback(copy, count);
    walk_same_mask(copy, first, "undoing all tokens does not lead to the start");
    for (size_t i = 0; i < count; i++) {
        bool accepted = false;
        walk_expect(grammar_matcher_accept(copy, tokens[i], &accepted));
        walk_check(accepted, "a token is refused the second time");
    }
    walk_same_mask(copy, last, "the same tokens lead to another mask");
    grammar_matcher_rollback(copy, count + 5);
    walk_same_mask(copy, first, "undoing more than all tokens does not lead to the start");
    walk_same_mask(matcher, last, "a fork changed its origin");
    grammar_matcher_free(copy);
}

enum { WALK_STEPS = 24, WALK_ALL_TOKENS = 3 };

/* In every other walk tables are collected at every step. */
static inline void walk_collect(struct grammar *grammar, uint64_t seed) {
    if (seed % 2)
        grammar->automaton->limit = 1;
}

static inline void walk_grammar(struct grammar *grammar, uint64_t seed) {
    struct grammar_matcher *matcher = NULL;
    uint64_t first[WALK_WORDS] = {0}, bits[WALK_WORDS] = {0};
    uint32_t tokens[WALK_STEPS];
    size_t count = 0;
    const uint64_t kind = seed;
    if (!walk_within_limits(grammar_matcher_create(grammar, walk_vocabulary(), &matcher)))
        return;
    bool going = walk_check_state(matcher, bits, true);
    memcpy(first, bits, sizeof first);
    while (going && count < WALK_STEPS) {
        bool accepted = false;
        if (walk_bit(bits, WALK_END))
            walk_check_end(matcher, bits);
        uint32_t token = walk_choose(bits, &seed);
        if (token == WALK_END)
            break;
        walk_expect(grammar_matcher_accept(matcher, token, &accepted));
        walk_check(accepted, "a token of the mask is refused");
        tokens[count++] = token;
        walk_collect(grammar, kind);
        going = walk_check_state(matcher, bits, count % WALK_ALL_TOKENS == kind % WALK_ALL_TOKENS);
    }
    walk_collect(grammar, kind);
    if (going)
        walk_check_history(matcher, tokens, count, first, bits);
    walk_check(grammar_bytes(grammar) < WALK_MEMORY, "the tables grew too large");
    grammar_matcher_free(matcher);
}

#endif

/* All ways to read an answer at once, as a lazily built automaton.
 *
 * A configuration is the state of a terminal and the stack of what comes behind it (a frame and its parents).
 * Frames and sets of configurations are kept once each, so that a set is a state and a byte is one look-up
 * when it was met before. Rows of successors have one place per class of bytes that no terminal tells apart.
 * All of it is under the grammar's lock. */
#ifndef NOCTURNE_GRAMMAR_AUTOMATON_H
#define NOCTURNE_GRAMMAR_AUTOMATON_H

#include "grammar/grammar.h"
#include "grammar/rules_internal.h"
#include "grammar/vocabulary.h"

enum { DEAD_SET = 0, UNKNOWN_SET = UINT32_MAX, TOKEN_FLAG = 0x40000000 };

/* What comes when a part is complete: the sequence's child `index`, or one more of a repetition that has
 * `index` so far. Frame 0: the answer is complete. A parent's number is lower than its child's. */
struct frame {
    uint32_t node, index, parent, depth, next;
    uint32_t masked; /* the frame that allows the same tokens, or 0: not known yet */
};

struct configuration {
    uint32_t state; /* an expression, or TOKEN_FLAG | token */
    uint32_t frame;
};

/* How many characters of a kind of text (vocabulary.h) can follow, whichever they are: so many + 1, or one of these.
 * For each kind known twice: for texts from their start, and for what goes on with one. */
enum { FREE_UNKNOWN = 0, FREE_ENDLESS = TEXT_CHARACTERS + 2, FREE_CASES = 2 * TEXT_KINDS };

struct set {
    uint32_t first, count, next; /* configurations */
    uint32_t row;                /* place in `rows` of the successors by class of bytes, + 1; 0: none yet */
    uint32_t partition;          /* of the bytes, when there is a row */
    const uint8_t *class_of;     /* of each byte, when there is a row */
    uint32_t masked;             /* the set that allows the same tokens; 0: not known yet */
    uint32_t kept;               /* number of the kept mask + 1; 0: none */
    bool accepting;
    uint8_t free[FREE_CASES];
    uint8_t to_the_end; /* bit of a case: behind so many characters none of the kind can follow */
};

/* Bytes of a grammar's tables above which they are collected at first. */
#define AUTOMATON_SOFT_LIMIT ((size_t)640 << 10)

struct array {
    void *data;
    size_t count, capacity;
};

struct work {
    uint32_t node, frame, depth;
};

/* A node and a frame that a closure has met. */
struct visit {
    uint64_t key;
    uint32_t closure; /* the last one that did */
};

/* A mask as the tokens in which it differs from a ready one. */
struct kept_mask {
    uint32_t set;  /* DEAD_SET: a free place */
    uint32_t base; /* 0: no tokens; WRITTEN_OUT: `gaps` is the mask; else vocabulary_mask(base - 1) */
    uint32_t newer, older;
    uint32_t differences;
    uint16_t *gaps; /* between those tokens; GAP_GOES_ON: so many, and the next one is added */
    size_t bytes;
};

struct automaton {
    const struct grammar_vocabulary *vocabulary;
    struct array frames, sets, configurations, rows; /* kept */
    struct array work, found;                        /* of the closure being made */
    struct visit *visited;                           /* hash table */
    uint32_t closures;
    size_t visited_capacity, visited_count;
    uint32_t *frame_buckets, *set_buckets;
    size_t frame_bucket_count, set_bucket_count;
    bool accepting;
    uint32_t start;
    struct array masks; /* kept; number 0 is the ring's anchor */
    size_t mask_bytes;
    uint64_t *scratch;                /* one mask */
    struct grammar_matcher *matchers; /* whose histories hold sets */
    size_t limit;                     /* of bytes, above which what no matcher needs is thrown away */
    uint64_t calls, collected;        /* calls of matchers, and at the last collection */
};

struct grammar_matcher {
    struct grammar *grammar;
    const struct grammar_vocabulary *vocabulary;
    struct grammar_matcher *next, **link; /* among the automaton's */
    uint32_t *history;                    /* sets; the last is the present one */
    size_t count, capacity;
    bool finished; /* the end token was taken; it is the last entry of the history */
};

static inline struct frame *frame_at(const struct automaton *automaton, uint32_t frame) {
    return (struct frame *)automaton->frames.data + frame;
}

static inline struct set *set_at(const struct automaton *automaton, uint32_t set) {
    return (struct set *)automaton->sets.data + set;
}

static inline const struct configuration *configurations_of(
    const struct automaton *automaton, const struct set *set) {
    return (const struct configuration *)automaton->configurations.data + set->first;
}

/* Room for `more` items of `item` bytes. */
MUST_CHECK enum result array_grow(struct array *array, size_t item, size_t more);

MUST_CHECK enum result automaton_create(struct grammar *grammar, const struct grammar_vocabulary *vocabulary);
/* The set behind a byte. */
MUST_CHECK enum result automaton_step(
    struct grammar *grammar, uint32_t set, unsigned char byte, uint32_t *next);
MUST_CHECK enum result automaton_step_token(
    struct grammar *grammar, uint32_t set, uint32_t token, uint32_t *next);
/* The place of the set's row in `rows`, made when there is none. Entries may be UNKNOWN_SET. */
MUST_CHECK enum result automaton_row(struct grammar *grammar, uint32_t set, uint32_t *row);
/* The set whose mask is that of `set`: without the counts that no token is long enough to reach. */
MUST_CHECK enum result automaton_masked(struct grammar *grammar, uint32_t set, uint32_t *masked);
/* Fills the hash tables of frames and sets anew; there must not be more of them than before. */
void automaton_rehash(struct automaton *automaton);

/* Throws away what no matcher's history and no kept mask needs, when the tables have grown over their limit
 * (collection.c). */
void automaton_collect(struct grammar *grammar);

/* The tokens that may follow `set` (masks.c). */
MUST_CHECK enum result masks_take(struct grammar *grammar, uint32_t set, uint64_t *bits);
MUST_CHECK enum result masks_create(struct automaton *automaton);
void masks_clear(struct automaton *automaton);
size_t masks_bytes(const struct automaton *automaton);

#endif

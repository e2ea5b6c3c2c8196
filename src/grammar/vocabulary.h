/* The tokens' bytes as a trie in pre-order, so that one walk meets common prefixes once, and which tokens are
 * texts of some common kinds, known beforehand.
 *
 * Most tokens are plain, or words. So a state in which every text of a kind may follow has nearly its whole mask
 * ready; few other tokens are left to be looked at. */
#ifndef NOCTURNE_GRAMMAR_VOCABULARY_H
#define NOCTURNE_GRAMMAR_VOCABULARY_H

#include "grammar/grammar.h"

enum { TOKEN_BYTES_LIMIT = 1024 };

/* The first child of a node is the next one; the next sibling lies `subtree` further. Tokens have ranks in the
 * order of their bytes: those that end at a node have the ranks from its own to the next node's. */
struct trie_node {
    uint32_t subtree : 24, byte : 8;
    uint32_t rank;
};

/* Plain text is UTF-8 without controls (below U+0020), quotes and backslashes: what a JSON string says as it is.
 * Alphanumeric and lower-case texts are ASCII; a space may stand before them, as it does in most tokens. Han: the
 * ideographs from U+4E00 to U+9FA5. */
enum text_kind { TEXT_PLAIN, TEXT_ALPHANUMERIC, TEXT_LOWER_CASE, TEXT_HAN, TEXT_KINDS };

/* Tokens of more characters are long: rare, and never part of what depends on a number of characters. A token that
 * ends within a character is of its kind, too; the part counts as a character. */
enum { TEXT_CHARACTERS = 15, LONG_TOKEN = 254, OF_OTHER_KIND = 255 };

/* States of texts by bytes: no byte yet, or whole characters (the same one where a space makes no difference), and
 * others within a character. */
enum { TEXT_START, TEXT_BEGUN, TEXT_STATES = 8, TEXT_OVER = TEXT_STATES };

struct text_class {
    uint8_t step[TEXT_STATES][256];                /* the state behind a byte, or TEXT_OVER */
    uint8_t first[TEXT_STATES], last[TEXT_STATES]; /* the bytes that go on lie between these */
    unsigned goes_on;    /* TEXT_START or TEXT_BEGUN: the state of one or more whole characters */
    uint8_t *characters; /* of each rank: up to TEXT_CHARACTERS, LONG_TOKEN or OF_OTHER_KIND */
    uint8_t *heights; /* of a node at the end of a character of such a text: the most characters of the kind's
                            tokens, not long, below it; 0: none, or no such node */
    uint64_t *special;   /* bits: nodes that lead to tokens of other kinds */
    uint64_t *irregular; /* bits: nodes that lead to tokens of other kinds, or long */
    uint64_t *masks; /* of all tokens of the kind, of those of at most 1, 2, ... TEXT_CHARACTERS characters */
    uint32_t *long_ranks, long_count; /* ascending */
};

/* The longest runs of some sorts of characters in tokens: how often a repetition can go on in one. */
enum { RUN_SORTS = 6 };

struct grammar_vocabulary {
    struct trie_node *trie; /* and one more, which has the number of ranks */
    size_t nodes;
    uint32_t *order; /* tokens by rank */
    uint32_t ranks;
    char *text;        /* all tokens' bytes */
    uint32_t *offsets; /* count + 1 */
    uint32_t count, end, longest;
    size_t words;         /* of a mask */
    uint64_t *space_mask; /* of the tokens that begin with a space, which are half of all */
    uint32_t spaces[2];   /* their ranks: the first, and the one behind the last */
    struct text_class classes[TEXT_KINDS];
    uint32_t runs[RUN_SORTS];
};

/* The number of the ready mask of the kind's tokens of at most `characters` (1 to TEXT_CHARACTERS), or, with 0,
 * of all of them. */
uint32_t vocabulary_base(enum text_kind kind, unsigned characters);
const uint64_t *vocabulary_mask(const struct grammar_vocabulary *vocabulary, uint32_t base);

/* At most so often does a repetition begin anew in one token: of texts that are made of `bytes` (256 flags) and have
 * at least `shortest` of them. */
uint32_t vocabulary_longest_run(
    const struct grammar_vocabulary *vocabulary, const bool bytes[256], uint32_t shortest);

#endif

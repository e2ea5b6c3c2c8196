/* The tokens' bytes as a trie in pre-order, so that one walk meets common prefixes once, and what is known of
 * tokens of plain text beforehand.
 *
 * Plain text is UTF-8 without controls (below U+0020), quotes and backslashes: what a JSON string says as it
 * is. Most tokens are plain, so that a state in which every plain text may follow has nearly its whole mask
 * ready. A token that ends within a character is plain too; the part counts as a character. */
#ifndef NOCTURNE_GRAMMAR_VOCABULARY_H
#define NOCTURNE_GRAMMAR_VOCABULARY_H

#include "grammar/grammar.h"

enum { TOKEN_BYTES_LIMIT = 1024 };

/* Plain tokens of more characters are long: rare, and never part of what depends on a number of characters. */
enum { PLAIN_CHARACTERS = 15, LONG_TOKEN = 254, NOT_PLAIN = 255 };

/* The first child of a node is the next one; the next sibling lies `subtree` further. Tokens have ranks in the
 * order of their bytes: those that end at a node have the ranks from its own to the next node's. */
struct trie_node {
    uint32_t subtree : 24, byte : 8;
    uint32_t rank;
};

/* The states of plain text by bytes: whole characters, or what must follow within one. */
enum {
    PLAIN_WHOLE,
    PLAIN_ONE_MORE,
    PLAIN_TWO_MORE,
    PLAIN_THREE_MORE,
    PLAIN_AFTER_E0,
    PLAIN_AFTER_ED,
    PLAIN_AFTER_F0,
    PLAIN_AFTER_F4,
    PLAIN_STATES,
    PLAIN_NONE = PLAIN_STATES
};

/* The longest runs of some kinds of characters in tokens: how often a repetition can go on in one. */
enum { RUN_KINDS = 6 };

struct grammar_vocabulary {
    struct trie_node *trie; /* and one more, which has the number of ranks */
    size_t nodes;
    uint32_t *order; /* tokens by rank */
    uint32_t ranks;
    char *text;        /* all tokens' bytes */
    uint32_t *offsets; /* count + 1 */
    uint32_t count, end, longest;
    uint8_t *characters; /* of each rank: up to PLAIN_CHARACTERS, LONG_TOKEN or NOT_PLAIN */
    uint8_t *heights;  /* of a node at the end of a plain character: the most characters of plain tokens, not
                             long, below it; 0: none, or no such node */
    uint64_t *special; /* bits: nodes that lead to tokens that are not plain */
    uint64_t *irregular; /* bits: nodes that lead to tokens that are not plain, or long */
    uint64_t
        *plain_masks;     /* of all plain tokens, of those of at most 1, 2, ... PLAIN_CHARACTERS characters */
    uint32_t *long_ranks; /* ascending */
    uint32_t long_count;
    uint32_t runs[RUN_KINDS];
};

/* The state of plain text behind `byte`, or PLAIN_NONE. */
unsigned plain_step(unsigned state, unsigned char byte);

/* Words of a mask. */
size_t vocabulary_words(const struct grammar_vocabulary *vocabulary);

/* Plain tokens of at most `characters` (1 to PLAIN_CHARACTERS), or, with 0, all. */
const uint64_t *vocabulary_plain_mask(const struct grammar_vocabulary *vocabulary, unsigned characters);

/* At most so often does one token go on with a repetition of characters that are made of `bytes` (256 flags). */
uint32_t vocabulary_longest_run(const struct grammar_vocabulary *vocabulary, const bool bytes[256]);

#endif

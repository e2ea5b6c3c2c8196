/* The tokens' bytes as a trie in pre-order, so that one walk meets common prefixes once. */
#ifndef NOCTURNE_GRAMMAR_VOCABULARY_H
#define NOCTURNE_GRAMMAR_VOCABULARY_H

#include "grammar/grammar.h"

enum { TOKEN_BYTES_LIMIT = 1024, NO_TOKEN_HERE = -1 };

/* The first child of a node is the next one; the next sibling lies `subtree` further. */
struct trie_node {
    uint32_t subtree : 24, byte : 8;
    int32_t token; /* that ends here, or NO_TOKEN_HERE */
};

struct grammar_vocabulary {
    struct trie_node *trie;
    size_t nodes;
    char *text;         /* all tokens' bytes */
    uint32_t *offsets;  /* count + 1 */
    int32_t *same_text; /* another token of equal bytes, or NO_TOKEN_HERE */
    uint32_t count, end, longest;
};

#endif

/* Finds the spellings of added tokens in text: the leftmost, and there the longest. */
#ifndef NOCTURNE_RECIPE_ADDED_TOKENS_H
#define NOCTURNE_RECIPE_ADDED_TOKENS_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t */

struct added_node {
    unsigned char byte;
    int32_t id;             /* of the spelling that ends here, or -1 */
    int32_t child, sibling; /* indexes of nodes, or -1 */
};

/* A tree of bytes; zero-initialize, free with added_tokens_free. */
struct added_tokens {
    struct added_node *nodes;
    int32_t count, capacity;
    int32_t roots[256]; /* the node of each first byte, index + 1 so that zero is none */
};

void added_tokens_free(struct added_tokens *tokens);
/* `bytes` must be above 0. A spelling that is there already gets the new id. */
MUST_CHECK enum result added_tokens_insert(
    struct added_tokens *tokens, const char *spelling, size_t bytes, int32_t id);
/* False when there is none; else where it starts, its length and its id. */
bool added_tokens_find(const struct added_tokens *tokens, const char *text, const char *end,
    const char **start, size_t *bytes, int32_t *id);

#endif

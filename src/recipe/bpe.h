/* Byte-pair merging of one piece of text: the adjacent pair of least rank is merged, the leftmost of
 * equals first, until no pair has a rank. */
#ifndef NOCTURNE_RECIPE_BPE_H
#define NOCTURNE_RECIPE_BPE_H

#include "base/error.h"
#include "recipe/tokenizer.h" /* struct token_list */

#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t */

/* Bytes of every id: blob[offsets[id] .. offsets[id + 1]); owned by the caller, must outlive the struct
 * bpe. */
struct token_texts {
    const char *blob;
    const uint32_t *offsets;
};

struct bpe; /* immutable after bpe_finish, shareable between threads */

/* Room for so many tokens and merges. Then: bpe_add_token for all, bpe_add_merge in order of rank,
 * bpe_finish. */
MUST_CHECK enum result bpe_create(struct token_texts texts, size_t tokens, size_t merges, struct bpe **bpe);
void bpe_free(struct bpe *bpe);

/* False when the same bytes are already there. */
bool bpe_add_token(struct bpe *bpe, int32_t id);
/* The token with exactly these bytes, or -1. */
int32_t bpe_find_token(const struct bpe *bpe, const char *bytes, size_t count);
/* False when the pair already has a rank. */
bool bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, uint32_t rank);
/* ERROR_INPUT when a byte has no token of its own. */
MUST_CHECK enum result bpe_finish(struct bpe *bpe);

/* A piece of text whose place in the table is on its way into the cache. */
struct bpe_piece {
    const char *text;
    size_t bytes;
    uint64_t key;
    size_t slot;
};

/* Begins to encode a piece: some calls ahead of bpe_encode, so that memory has time to answer. The text is not
 * copied. */
void bpe_look(const struct bpe *bpe, const char *text, size_t bytes, struct bpe_piece *piece);
/* Appends the ids of a piece. Time n log n in its bytes; fails only for lack of memory, and only with
 * long pieces. */
MUST_CHECK enum result bpe_encode(
    const struct bpe *bpe, const struct bpe_piece *piece, struct token_list *ids);

#endif

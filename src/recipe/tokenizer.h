/* Byte-level BPE tokenizer, read as data from a checkpoint folder's tokenizer.json. */
#ifndef NOCTURNE_RECIPE_TOKENIZER_H
#define NOCTURNE_RECIPE_TOKENIZER_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

struct tokenizer; /* immutable after loading, shareable between threads */

/* A growing list of ids; zero-initialize, free ids with free(). */
struct token_list {
    int32_t *ids;
    size_t count, capacity;
};

/* Reads FOLDER/tokenizer.json. ERROR_INPUT names file, field and what was expected: only the published
 * pipeline (BPE without dropout or fallback; the three Split patterns and ByteLevel; ByteLevel decoder)
 * is known, anything else is refused by name. */
MUST_CHECK enum result tokenizer_load(const char *folder, struct tokenizer **tokenizer);
/* As tokenizer_load, from a file's text; `name` is what messages call it. The text is not kept. */
MUST_CHECK enum result tokenizer_load_memory(
    const char *name, const char *text, size_t bytes, struct tokenizer **tokenizer);
void tokenizer_free(struct tokenizer *tokenizer);

/* Number of ids (largest id + 1). */
int32_t tokenizer_size(const struct tokenizer *tokenizer);
/* Id of the added token with exactly this spelling, or -1. */
int32_t tokenizer_added_id(const struct tokenizer *tokenizer, const char *spelling);
/* The bytes of one token (not necessarily valid UTF-8 alone); false for an unknown id. */
bool tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, const char **bytes, size_t *count);
/* True for added tokens with special = true (left out of decoded text). */
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);
/* True for all of added_tokens, special or not. */
bool tokenizer_is_added(const struct tokenizer *tokenizer, int32_t id);

/* Appends the ids of `text` with no added-token matching (pre-tokenizer and BPE only): how prompts are
 * encoded. Invalid UTF-8 is ERROR_INPUT with the offset. Linear time in `bytes`. */
MUST_CHECK enum result tokenizer_encode_plain(
    const struct tokenizer *tokenizer, const char *text, size_t bytes, struct token_list *ids);
/* As `tokenizers`' encode(add_special_tokens=False): added tokens are matched in the text first. */
MUST_CHECK enum result tokenizer_encode(
    const struct tokenizer *tokenizer, const char *text, size_t bytes, struct token_list *ids);
/* Appends the text of ids: bytes joined, then U+FFFD per maximal invalid subpart; unknown ids vanish. */
void tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
    struct buffer *text);

void token_list_append(
    struct token_list *list, const int32_t *ids, size_t count); /* aborts when out of memory */

#endif

/* Reading and checking of tokenizer.json: what of it the tokenizer needs, as views of the JSON document. */
#ifndef NOCTURNE_RECIPE_TOKENIZER_FILE_H
#define NOCTURNE_RECIPE_TOKENIZER_FILE_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/json.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t */

struct tokenizer_file_token {
    const char *spelling; /* as in the file; NULL: no token has this id */
    size_t bytes;
    bool byte_level; /* spelled in the byte alphabet and in the vocabulary: pieces can be merged to it */
    bool added, normalized, special;
};

struct tokenizer_file {
    int32_t size;                        /* largest id + 1 */
    struct tokenizer_file_token *tokens; /* [size] */
    size_t added_count;
    size_t text_bytes;         /* at least the bytes of all tokens */
    const struct json *merges; /* array */
};

struct tokenizer_file_merge {
    size_t left_bytes, right_bytes;
};

/* Checks every stage of the pipeline and gathers the tokens. ERROR_INPUT names the field. */
MUST_CHECK enum result tokenizer_file_read(const struct json *root, struct tokenizer_file *file);
void tokenizer_file_free(struct tokenizer_file *file);

/* Turns a spelling in the byte alphabet into bytes (room for `bytes` of them); returns their number, or
 * 0 when it holds a character outside the alphabet. */
size_t tokenizer_file_bytes(const char *spelling, size_t bytes, char *out);

/* The bytes of an element of model.merges ("left right" or ["left", "right"]), both joined in `joined`. */
MUST_CHECK enum result tokenizer_file_merge(
    const struct json *merge, size_t index, struct buffer *joined, struct tokenizer_file_merge *parts);

#endif

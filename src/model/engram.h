/* Which rows of the Engram tables a token looks up: hashes of the 2-, 3-, ... grams that end at it. */
#ifndef NOCTURNE_MODEL_ENGRAM_H
#define NOCTURNE_MODEL_ENGRAM_H

#include "model/config.h"

#include <stdint.h> /* int32_t, int64_t */

enum {
    ENGRAM_BARRIER = -1
}; /* a history entry that no n-gram spans: an image token, or none before the text */

/* A table is the concatenation of one range of rows per column (look-back length, head), each of a prime size; all
 * primes of all layers differ: they are the consecutive primes from engram_vocab_size on. */
struct engram_hash {
    int32_t layers, ngrams, heads, columns; /* columns = (ngrams - 1) * heads */
    int32_t pad;                            /* compressed id that stands where a look-back is barred */
    int64_t primes[MOST_ENGRAM_LAYERS][MOST_ENGRAM_COLUMNS];
    int64_t offsets[MOST_ENGRAM_LAYERS][MOST_ENGRAM_COLUMNS]; /* first row of the column's range */
    int64_t multipliers[MOST_ENGRAM_LAYERS]
                       [MOST_ENGRAM_NGRAM]; /* odd, one for each look-back 0 .. ngrams - 1 */
};

/* For a config whose Engram fields are in range. `pad` is the compressed id of engram_pad_token_id. */
void engram_hash_prepare(struct engram_hash *hash, const struct model_config *config, int32_t pad);

/* Rows of the table of the layer engram_layer_ids[layer]: what engram_num_embeddings must be. */
int64_t engram_hash_table_rows(const struct engram_hash *hash, int32_t layer);

/* The table rows of the token at history[at]: rows [layers, columns]. history holds compressed ids (below
 * engram_compressed_vocab_size) or ENGRAM_BARRIER; entries before history[0] count as barred, so `at` must be
 * >= ngrams - 1 unless the text begins there. */
void engram_hash_rows(const struct engram_hash *hash, const int32_t *history, int64_t at, int64_t *rows);

#endif

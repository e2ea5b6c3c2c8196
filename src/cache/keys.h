/* Keys of blocks: a chain of hashes (XXH3, 128 bits; https://github.com/Cyan4973/xxHash) over all that a block's rows
 * depend on. */
#ifndef NOCTURNE_CACHE_KEYS_H
#define NOCTURNE_CACHE_KEYS_H

#include "cache/cache.h"

#include <stdbool.h> /* bool */
#include <string.h>  /* memcmp */

/* Goes into every key: rows of two versions of what is hashed, or of how rows are packed, are never mixed. */
enum { CACHE_KEY_VERSION = 1 };

/* The chain's root: the hash of the version and of all members of the space. */
struct cache_key cache_space_key(const struct cache_space *space);

static inline bool cache_key_equal(const struct cache_key *a, const struct cache_key *b) {
    return !memcmp(a->bytes, b->bytes, CACHE_KEY_BYTES);
}

#endif

/* Memory for key/value rows: one pool of equal blocks under one budget, shared by reference count.
 *
 * A block is either a global block (compressed rows and index keys of all source layers for a fixed number of
 * tokens) or a window block (window rows of all layers for a few positions); what lies where inside is the
 * model's business (model/sequence.h). Not thread-safe: one scheduler thread a rank.
 */
#ifndef NOCTURNE_CACHE_BLOCKS_H
#define NOCTURNE_CACHE_BLOCKS_H

#include "base/error.h"
#include "kernels/kernels.h"

#include <stdint.h> /* int32_t, int64_t */

struct block_pool {
    const struct kernels *kernels;
    uint8_t *base; /* device memory [total * block_bytes] */
    int64_t block_bytes;
    int32_t total, unused;
    int32_t *free_list;  /* [total]: the first `unused` are free */
    int32_t *references; /* [total] */
    int32_t peak;        /* most blocks ever in use */
};

/* As many blocks as fit `budget` bytes. ERROR_MEMORY when not even one does or the memory is not to be had. */
MUST_CHECK enum result block_pool_create(
    const struct kernels *kernels, int64_t block_bytes, int64_t budget, struct block_pool **pool);
void block_pool_free(struct block_pool *pool);

/* A block with one reference, or ERROR_MEMORY when none is unused (the scheduler's reservations prevent that). Content is undefined. */
MUST_CHECK enum result block_acquire(struct block_pool *pool, int32_t *block);
void block_retain(struct block_pool *pool, int32_t block);
void block_release(struct block_pool *pool, int32_t block);

#endif

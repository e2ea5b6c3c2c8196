#include "cache/blocks.h"

#include <stdlib.h> /* calloc, free */

MUST_CHECK enum result block_pool_create(
    const struct kernels *kernels, int64_t block_bytes, int64_t budget, struct block_pool **pool) {
    enum result status = OK;
    int64_t total = budget / block_bytes;
    if (total < 1)
        return fail(ERROR_MEMORY,
            "a key/value memory of %lld bytes holds no block (a block has %lld bytes): raise --kv-memory",
            (long long)budget, (long long)block_bytes);
    if (total > INT32_MAX)
        total = INT32_MAX;
    struct block_pool *new = calloc(1, sizeof *new);
    if (!new)
        return fail(ERROR_MEMORY, "out of memory for the block pool");
    new->kernels = kernels;
    new->block_bytes = block_bytes;
    new->total = new->unused = (int32_t)total;
    new->free_list = malloc(sizeof *new->free_list *(size_t)total);
    new->references = calloc((size_t)total, sizeof *new->references);
    void *base = NULL;
    if (!new->free_list || !new->references) {
        status =
            fail(ERROR_MEMORY, "out of memory for the tables of %lld key/value blocks", (long long)total);
        goto done;
    }
    TRY_GOTO(status, kernels->allocate(kernels, (size_t)(total * block_bytes), &base), done);
    new->base = base;
    for (int32_t i = 0; i < new->total; i++)
        new->free_list[i] = new->total - 1 - i;
done:
    if (status != OK) {
        block_pool_free(new);
        return status;
    }
    *pool = new;
    return OK;
}

void block_pool_free(struct block_pool *pool) {
    if (!pool)
        return;
    if (pool->base)
        pool->kernels->release(pool->kernels, pool->base);
    free(pool->free_list);
    free(pool->references);
    free(pool);
}

MUST_CHECK enum result block_acquire(struct block_pool *pool, int32_t *block) {
    if (pool->unused == 0)
        return fail(ERROR_MEMORY, "all %d key/value blocks are in use", pool->total);
    *block = pool->free_list[--pool->unused];
    pool->references[*block] = 1;
    if (pool->total - pool->unused > pool->peak)
        pool->peak = pool->total - pool->unused;
    return OK;
}

void block_retain(struct block_pool *pool, int32_t block) {
    pool->references[block]++;
}

void block_release(struct block_pool *pool, int32_t block) {
    if (--pool->references[block] == 0)
        pool->free_list[pool->unused++] = block;
}

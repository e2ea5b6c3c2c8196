#include "cluster/exchange.h" /* struct shard */

struct shard shard_of(int64_t total, int32_t size, int32_t rank) {
    int64_t share = total / size, longer = total % size;
    return (struct shard){
        .first = rank * share + (rank < longer ? rank : longer), .count = share + (rank < longer)};
}

int32_t shard_owner(int64_t total, int32_t size, int64_t item) {
    int64_t share = total / size, longer = total % size;
    int64_t boundary = longer * (share + 1); /* items below lie in the longer shards */
    return (int32_t)(item < boundary ? item / (share + 1) : longer + (item - boundary) / share);
}

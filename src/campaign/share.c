#include "campaign/share.h"

#include <stdlib.h> /* malloc, qsort_r */

static int longest_first(const void *left, const void *right, void *context) {
    const int32_t *lengths = context;
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    if (lengths[a] != lengths[b])
        return lengths[a] > lengths[b] ? -1 : 1;
    return a < b ? -1 : a > b;
}

static int ascending(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

enum result share_requests(const uint8_t *todo, const int32_t *lengths, int64_t total, int32_t rank,
    int32_t ranks, int64_t **share, int64_t *count) {
    int64_t all = 0, own = 0;
    for (int64_t i = 0; i < total; i++)
        all += todo[i] != 0;
    int64_t *order = malloc((size_t)(all + 1) * sizeof *order);
    if (!order)
        return fail(ERROR_MEMORY, "out of memory for a list of %lld requests", (long long)all);
    for (int64_t i = 0, at = 0; i < total; i++)
        if (todo[i])
            order[at++] = i;
    qsort_r(order, (size_t)all, sizeof *order, longest_first, (void *)lengths);
    for (int64_t i = 0; i < all; i++) {
        int64_t round = i / ranks, place = i % ranks;
        if ((round % 2 ? ranks - 1 - place : place) == rank)
            order[own++] = order[i];
    }
    qsort(order, (size_t)own, sizeof *order, ascending);
    *share = order;
    *count = own;
    return OK;
}

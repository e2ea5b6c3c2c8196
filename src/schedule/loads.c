#include "schedule/loads.h"

#include <stdbool.h> /* bool */
#include <stdlib.h>  /* calloc */

enum result loads_create(struct loads *loads, int32_t ranks) {
    *loads = (struct loads){.ranks = ranks};
    loads->load = calloc((size_t)ranks, sizeof *loads->load);
    loads->heap = calloc((size_t)ranks, sizeof *loads->heap);
    if (!loads->load || !loads->heap)
        return fail(ERROR_MEMORY, "out of memory for the loads of %d ranks", ranks);
    for (int32_t i = 0; i < ranks; i++)
        loads->heap[i] = i;
    return OK;
}

void loads_free(struct loads *loads) {
    free(loads->load);
    free(loads->heap);
}

static bool has_less(const struct loads *loads, int32_t a, int32_t b) {
    double left = loads->load[loads->heap[a]], right = loads->load[loads->heap[b]];
    return left < right || (!(right < left) && loads->heap[a] < loads->heap[b]);
}

int32_t loads_add(struct loads *loads, double added) {
    int32_t rank = loads->heap[0], at = 0;
    loads->load[rank] += added;
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child + 1 < loads->ranks && has_less(loads, child + 1, child))
            child++;
        if (child >= loads->ranks || has_less(loads, at, child))
            return rank;
        int32_t moved = loads->heap[at];
        loads->heap[at] = loads->heap[child];
        loads->heap[child] = moved;
        at = child;
    }
}

double loads_most(const struct loads *loads) {
    double most = 0;
    for (int32_t i = 0; i < loads->ranks; i++)
        most = loads->load[i] > most ? loads->load[i] : most;
    return most;
}

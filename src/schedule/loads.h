/* How much each rank has, and which one has least. */
#ifndef NOCTURNE_SCHEDULE_LOADS_H
#define NOCTURNE_SCHEDULE_LOADS_H

#include "base/error.h"

#include <stdint.h> /* int32_t */

/* A heap of ranks: the one with the least load, and of equals the first one, on top. */
struct loads {
    double *load;  /* [ranks] */
    int32_t *heap; /* [ranks] */
    int32_t ranks;
};

/* All ranks have nothing. Freed with loads_free also after a failure. ERROR_MEMORY. */
MUST_CHECK enum result loads_create(struct loads *loads, int32_t ranks);
void loads_free(struct loads *loads);

/* Adds to the rank with the least load, and returns it. */
int32_t loads_add(struct loads *loads, double added);
double loads_most(const struct loads *loads);

#endif

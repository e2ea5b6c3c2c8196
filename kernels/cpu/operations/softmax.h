/* Softmax of one row of attention scores, its sum running in lanes over the row. */
#ifndef NOCTURNE_CPU_SOFTMAX_H
#define NOCTURNE_CPU_SOFTMAX_H

#include "kernels/cpu/operations/vectors.h"

#include <math.h> /* INFINITY */

/* scores [count] become weights; those up to `padded`, a multiple of LANES, become 0. sink -INFINITY: no sink. */
static inline void softmax_with_sink(float *scores, int32_t count, int32_t padded, float scale, float sink) {
    for (int32_t k = count; k < padded; k++)
        scores[k] = -INFINITY;
    lanes tops = splat(sink);
    for (int32_t k = 0; k < padded; k += LANES) {
        lanes value = load(scores + k) * scale;
        store(scores + k, value);
        tops = larger(tops, value);
    }
    float top = largest_lane(tops);
    lanes total = {0};
    for (int32_t k = 0; k < padded; k += LANES) {
        lanes weight = vector_exp(load(scores + k) - top);
        store(scores + k, weight);
        total += weight;
    }
    lanes sum = splat(sum_lanes(total) + scalar_exp(sink - top));
    for (int32_t k = 0; k < padded; k += LANES)
        store(scores + k, load(scores + k) / sum);
}

#endif

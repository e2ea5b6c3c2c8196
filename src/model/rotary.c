#include "model/rotary.h"

#include <math.h>   /* floor, log, pow */
#include <stdlib.h> /* malloc */

/* Dimension at which a rotary pair makes `turns` turns over the original length. */
static double turns_to_dimension(double turns, int32_t dims, double theta, int32_t length) {
    const double pi = 3.14159265358979323846;
    return dims * log(length / (turns * 2 * pi)) / (2 * log(theta));
}

MUST_CHECK enum result rope_create(
    int32_t dims, double theta, const struct yarn_config *yarn, struct rope *rope) {
    float *frequency = malloc(sizeof *frequency * (size_t)(dims / 2));
    if (!frequency)
        return fail(ERROR_MEMORY, "out of memory for rotary frequencies");
    double low = 0, span = 1;
    if (yarn) {
        low = fmax(
            floor(turns_to_dimension(yarn->beta_fast, dims, theta, yarn->original_max_position_embeddings)),
            0);
        double high = fmin(
            ceil(turns_to_dimension(yarn->beta_slow, dims, theta, yarn->original_max_position_embeddings)),
            dims - 1);
        span = fmax(high - low, 1e-3);
    }
    for (int32_t i = 0; i < dims / 2; i++) {
        float f = 1.0F / (float)pow(theta, (double)(2 * i) / dims);
        if (yarn) {
            /* Float arithmetic in this order, as the reference computes it: angles at long positions feel the last bit. */
            float ramp = ((float)i - (float)low) / (float)span;
            float keep = 1 - fminf(fmaxf(ramp, 0), 1);
            f = f / (float)yarn->factor * (1 - keep) + f * keep;
        }
        frequency[i] = f;
    }
    *rope = (struct rope){.dims = dims, .frequency = frequency};
    return OK;
}

void rope_free(struct rope *rope) {
    free((void *)rope->frequency);
    rope->frequency = NULL;
}

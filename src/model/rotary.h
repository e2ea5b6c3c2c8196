/* Rotary frequencies, plain and stretched by YaRN (arXiv 2309.00071; formula as in tools/reference/reference.py, class Rope). */
#ifndef NOCTURNE_MODEL_ROTARY_H
#define NOCTURNE_MODEL_ROTARY_H

#include "base/error.h"
#include "kernels/kernels.h" /* struct rope */
#include "model/config.h"

/* Frequencies of `dims` rotated columns; yarn NULL: plain. Freed by rope_free. */
MUST_CHECK enum result rope_create(
    int32_t dims, double theta, const struct yarn_config *yarn, struct rope *rope);
void rope_free(struct rope *rope);

#endif

/* Sampling on the device. C and CUDA C. */
#ifndef NOCTURNE_CUDA_SAMPLE_H
#define NOCTURNE_CUDA_SAMPLE_H

#include "kernels/kernels.h"
#include "kernels/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A token for each of `count` rows, chosen from its row of logits [.., vocab_size]. Order, ties and bits are those of sampler_choose:
 * adjustments, temperature, top_k, top_p of what top_k left, min_p, one draw. rows, adjustments and results are device memory. A
 * vocabulary above SAMPLE_MOST_VOCABULARY is a failure of the stream. */
void cuda_sample(struct stream *stream, const float *logits, int32_t count, int32_t vocab_size,
    const struct sample_row *rows, const struct sample_adjustment *adjustments, const uint64_t *masks,
    struct sample_result *results);

#ifdef __cplusplus
}
#endif

#endif

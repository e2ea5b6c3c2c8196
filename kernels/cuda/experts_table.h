/* Where the matrices of experts lie, in device memory. */
#ifndef NOCTURNE_CUDA_EXPERTS_TABLE_H
#define NOCTURNE_CUDA_EXPERTS_TABLE_H

#include "kernels/cuda/product_work.h"

/* The table [count] of an array of experts in host memory, valid until the stream is freed. It is uploaded
 * when the array is first met, and again when its content has changed since: compared at each call, which
 * costs a microsecond for hundreds of experts and no wait. So a stream that is to be captured meets its
 * arrays once before. NULL, with the failure kept, without memory. */
const struct expert_places *expert_places_on_device(
    struct stream *stream, const struct expert_weights *experts, int32_t count);

#endif

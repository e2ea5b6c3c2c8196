/* Times of work on a device, between two events: the best of several passes. */
#ifndef NOCTURNE_BENCH_DEVICE_TIMING_H
#define NOCTURNE_BENCH_DEVICE_TIMING_H

#include <cuda_runtime.h>

/* Enqueues one pass. */
typedef cudaError_t timed_pass(void *context, cudaStream_t stream);

/* The least seconds of `passes`; *seconds is 0 when one fails. */
static inline cudaError_t time_passes(timed_pass *pass, void *context, int passes, double *seconds) {
    cudaStream_t stream = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    *seconds = 0;
    code = code == cudaSuccess ? cudaEventCreate(&begin) : code;
    code = code == cudaSuccess ? cudaEventCreate(&end) : code;
    for (int i = 0; i <= passes && code == cudaSuccess; i++) {
        float milliseconds = 0;
        code = cudaEventRecord(begin, stream);
        code = code == cudaSuccess ? pass(context, stream) : code;
        code = code == cudaSuccess ? cudaEventRecord(end, stream) : code;
        code = code == cudaSuccess ? cudaEventSynchronize(end) : code;
        code = code == cudaSuccess ? cudaEventElapsedTime(&milliseconds, begin, end) : code;
        if (code == cudaSuccess && i > 0 &&
            (i == 1 || milliseconds * 1e-3 < *seconds)) /* the first warms up */
            *seconds = milliseconds * 1e-3;
    }
    if (end != NULL)
        (void)cudaEventDestroy(end);
    if (begin != NULL)
        (void)cudaEventDestroy(begin);
    if (stream != NULL)
        (void)cudaStreamDestroy(stream);
    *seconds = code == cudaSuccess ? *seconds : 0;
    return code;
}

#endif

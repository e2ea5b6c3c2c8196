/* Stands in for the CUDA backend in builds without it. */
#include "kernels/kernels.h"

static const char WITHOUT_CUDA[] =
    "this build has no CUDA backend (CMake found no CUDA Toolkit 12.8 or newer, or "
    "-DNOCTURNE_CUDA=OFF was given)";

int32_t kernels_cuda_devices(const char **why) {
    *why = WITHOUT_CUDA;
    return 0;
}

enum result kernels_cuda_create(int32_t device, const struct kernels **kernels) {
    (void)device;
    *kernels = NULL;
    return fail(ERROR_USAGE, "%s: use --backend cpu", WITHOUT_CUDA);
}

/* Stands in for the limits of a device in builds without CUDA. */
#include "bench/device/device.h"

enum result device_measure_limits(int32_t device, struct device_limits *limits) {
    (void)device;
    (void)limits;
    return fail(ERROR_USAGE, "this build has no CUDA: configure with -DNOCTURNE_CUDA=ON where nvcc is found");
}

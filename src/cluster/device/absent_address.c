/* Stands in for the look at devices in builds without CUDA. */
#include "cluster/device/address.h"

int32_t device_addresses(char (*addresses)[DEVICE_ADDRESS_BYTES], int32_t most) {
    (void)addresses;
    (void)most;
    return 0;
}

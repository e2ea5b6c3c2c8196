#include "cluster/device/address.h"

#include <ctype.h> /* tolower */
#include <cuda_runtime.h>
#include <stdio.h> /* snprintf */

int32_t device_addresses(char (*addresses)[DEVICE_ADDRESS_BYTES], int32_t most) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    int32_t found = count < most ? count : most;
    for (int32_t i = 0; i < found; i++) {
        if (cudaDeviceGetPCIBusId(addresses[i], DEVICE_ADDRESS_BYTES, i) != cudaSuccess)
            snprintf(addresses[i], DEVICE_ADDRESS_BYTES, "cuda%d", i);
        for (char *c = addresses[i]; *c; c++)
            *c = (char)tolower((unsigned char)*c);
    }
    return found;
}

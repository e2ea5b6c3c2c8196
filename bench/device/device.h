/* What a device can do, measured in the same run as what is compared with it, and the same products by NVIDIA's library. In builds
 * without CUDA (absent.c) everything here says so; without cuBLASLt (absent_peer.c) only the products do.
 */
#ifndef NOCTURNE_BENCH_DEVICE_H
#define NOCTURNE_BENCH_DEVICE_H

#include "base/error.h"

#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t */

#ifdef __cplusplus
extern "C" {
#endif

/* Per second. */
struct device_limits {
    char name[256];
    int32_t multiprocessors;
    int64_t cache_bytes; /* of the level nearest to memory */
    double fma;          /* float32 operations, a multiply-add being two, without tensor cores */
    double bf16;         /* operations of a dense product of BF16 by cuBLASLt; 0: not measured */
    double read_bytes;   /* from memory, by a kernel that only reads */
};

/* ERROR_USAGE in a build without CUDA, ERROR_INTERNAL when the device fails. */
MUST_CHECK enum result device_measure_limits(int32_t device, struct device_limits *limits);

/* Seconds that cuBLASLt takes for one product of BF16 with BF16 into float32: [tokens, columns] with [rows, columns], its fastest
 * of several ways, weights rotating through copies larger than `rotated_bytes`. 0: the library or the memory isn't there. */
double device_peer_seconds(
    int32_t device, int32_t tokens, int32_t rows, int32_t columns, size_t rotated_bytes);

/* The same for a big product into BF16, as operations a second; 0: as above. */
double device_peer_peak(int32_t device);

#ifdef __cplusplus
}
#endif

#endif

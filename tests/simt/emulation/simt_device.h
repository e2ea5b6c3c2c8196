/* The device language of the emulation (C++): what kernels may use. Contract: cuda_runtime.h. */
#ifndef SIMT_DEVICE_H
#define SIMT_DEVICE_H

#include "simt_host.h"

#include <algorithm> /* before the macros below */
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <new>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

/* ---- vectors ---- */

#define SIMT_VECTOR2(name, type)                                                                             \
    struct alignas(2 * sizeof(type)) name##2 {                                                               \
        type x, y;                                                                                           \
    };                                                                                                       \
    static inline name##2 make_##name##2(type x, type y) {                                                   \
        return name##2 {x, y};                                                                               \
    }
#define SIMT_VECTOR3(name, type)                                                                             \
    struct name##3 {                                                                                         \
        type x, y, z;                                                                                        \
    };                                                                                                       \
    static inline name##3 make_##name##3(type x, type y, type z) {                                           \
        return name##3 {x, y, z};                                                                            \
    }
#define SIMT_VECTOR4(name, type)                                                                             \
    struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 {                                  \
        type x, y, z, w;                                                                                     \
    };                                                                                                       \
    static inline name##4 make_##name##4(type x, type y, type z, type w) {                                   \
        return name##4 {x, y, z, w};                                                                         \
    }
#define SIMT_VECTORS(name, type) SIMT_VECTOR2(name, type) SIMT_VECTOR3(name, type) SIMT_VECTOR4(name, type)

SIMT_VECTORS(char, signed char)
SIMT_VECTORS(uchar, unsigned char)
SIMT_VECTORS(short, short)
SIMT_VECTORS(ushort, unsigned short)
SIMT_VECTORS(int, int)
SIMT_VECTORS(uint, unsigned)
SIMT_VECTORS(float, float)
SIMT_VECTOR2(double, double)
SIMT_VECTOR2(longlong, long long)
SIMT_VECTOR2(ulonglong, unsigned long long)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {
    }
};

/* ---- what the executor offers ---- */

/* A warp operation: its kind, then segment width and source line, to be packed in one word. */
enum simt_warp_kind {
    SIMT_SYNC,
    SIMT_SHUFFLE,
    SIMT_SHUFFLE_UP,
    SIMT_SHUFFLE_DOWN,
    SIMT_SHUFFLE_XOR,
    SIMT_BALLOT,
    SIMT_ANY,
    SIMT_ALL,
    SIMT_MATCH_ANY,
    SIMT_ADD,
    SIMT_MIN,
    SIMT_MAX,
    SIMT_MIN_SIGNED,
    SIMT_MAX_SIGNED,
    SIMT_AND,
    SIMT_OR,
    SIMT_XOR,
    SIMT_MULTIPLY_MATRICES,
    SIMT_LOAD_MATRICES,
    SIMT_LOAD_MATRICES_TRANSPOSED,
    SIMT_WARP_KINDS,
};

enum simt_atomic_kind {
    SIMT_ATOMIC_ADD,
    SIMT_ATOMIC_MIN,
    SIMT_ATOMIC_MAX,
    SIMT_ATOMIC_MIN_SIGNED,
    SIMT_ATOMIC_MAX_SIGNED,
    SIMT_ATOMIC_AND,
    SIMT_ATOMIC_OR,
    SIMT_ATOMIC_XOR,
    SIMT_ATOMIC_EXCHANGE,
    SIMT_ATOMIC_COMPARE,
};

extern "C" {
/* What a launch runs: `call(arguments)` once a thread. `destroy` ends the arguments' life. */
struct simt_work {
    void *arguments;
    size_t bytes;
    void (*call)(void *arguments);
    void (*destroy)(void *arguments);
};
/* Takes over work.arguments. A refused launch is told by cudaGetLastError. */
void simt_enqueue_launch(cudaStream_t stream, const char *name, const unsigned grid[3],
    const unsigned block[3], size_t shared_bytes, simt_work work);

/* The launch's shared memory, for a struct of `bytes`: an error when the launch has less. */
void *simt_shared_memory(size_t bytes);
uint3 simt_thread_index(void) __attribute__((const));
uint3 simt_block_index(void) __attribute__((const));
uint3 simt_block_size(void) __attribute__((const));
uint3 simt_grid_size(void) __attribute__((const));

enum simt_vote {
    SIMT_NO_VOTE,
    SIMT_VOTE_OR,
    SIMT_VOTE_AND,
    SIMT_VOTE_COUNT,
};
int simt_block_barrier(enum simt_vote vote, int predicate, int line, const char *file);
/* The lane's result. `operation` is kind | width << 8 | line << 16. */
uint64_t simt_warp(uint64_t operation, unsigned mask, uint64_t value, int parameter, const char *file);
unsigned simt_active_lanes(void);
/* The value before; `bytes` 4 or 8. */
uint64_t simt_atomic(enum simt_atomic_kind kind, void *address, int bytes, uint64_t value, uint64_t compare);
void simt_trap(const char *what, const char *file, int line) __attribute__((cold));

/* mma.h */
void simt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]);
void simt_load_matrices(uint32_t r[4], const void *row);
void simt_load_matrices_transposed(uint32_t r[4], const void *row);
void simt_copy_async(void *shared, const void *global, int bytes);
void simt_copies_commit(void);
void simt_copies_wait(int groups);

/* As the C library's, each byte watched. */
void *simt_checked_copy(void *to, const void *from, size_t bytes);
void *simt_checked_move(void *to, const void *from, size_t bytes);
void *simt_checked_fill(void *to, int value, size_t bytes);
int simt_checked_compare(const void *a, const void *b, size_t bytes);
}

#define threadIdx (simt_thread_index())
#define blockIdx (simt_block_index())
#define blockDim (simt_block_size())
#define gridDim (simt_grid_size())
static const int warpSize = 32;

/* ---- launches ---- */

/* A launch of any callable without arguments; it is copied. */
template <typename Callable>
static inline void simt_launch(
    cudaStream_t stream, const char *name, dim3 grid, dim3 block, size_t shared_bytes, Callable callable) {
    simt_work work;
    work.arguments = new Callable(callable);
    work.bytes = sizeof(Callable);
    work.call = [](void *arguments) { (*(Callable *)arguments)(); };
    work.destroy = [](void *arguments) { delete (Callable *)arguments; };
    unsigned grid_size[3] = {grid.x, grid.y, grid.z}, block_size[3] = {block.x, block.y, block.z};
    simt_enqueue_launch(stream, name, grid_size, block_size, shared_bytes, work);
}

template <typename T> struct simt_identity { typedef T type; };

/* A launch of a kernel: its arguments are evaluated and converted now, as CUDA does. */
template <typename... P>
static inline void simt_launch(cudaStream_t stream, const char *name, dim3 grid, dim3 block,
    size_t shared_bytes, void (*kernel)(P...), typename simt_identity<P>::type... arguments) {
    std::tuple<P...> kept(arguments...);
    simt_launch(
        stream, name, grid, block, shared_bytes, [kernel, kept]() mutable { std::apply(kernel, kept); });
}

/* ---- barriers and warp operations; where they stand is known from the caller's line ---- */

#define SIMT_PLACE int line = __builtin_LINE(), const char *file = __builtin_FILE()

static inline void __syncthreads(SIMT_PLACE) {
    simt_block_barrier(SIMT_NO_VOTE, 0, line, file);
}
static inline int __syncthreads_or(int predicate, SIMT_PLACE) {
    return simt_block_barrier(SIMT_VOTE_OR, predicate, line, file);
}
static inline int __syncthreads_and(int predicate, SIMT_PLACE) {
    return simt_block_barrier(SIMT_VOTE_AND, predicate, line, file);
}
static inline int __syncthreads_count(int predicate, SIMT_PLACE) {
    return simt_block_barrier(SIMT_VOTE_COUNT, predicate, line, file);
}

static inline uint64_t simt_operation(enum simt_warp_kind kind, int width, int line) {
    return (uint64_t)kind | (uint64_t)(unsigned)width << 8 | (uint64_t)(unsigned)line << 16;
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_PLACE) {
    simt_warp(simt_operation(SIMT_SYNC, 32, line), mask, 0, 0, file);
}

template <typename T>
static inline T simt_shuffle(
    enum simt_warp_kind kind, unsigned mask, T value, int parameter, int width, int line, const char *file) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move values of 4 or 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = simt_warp(simt_operation(kind, width, line), mask, bits, parameter, file);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, SIMT_PLACE) {
    return simt_shuffle(SIMT_SHUFFLE, mask, value, lane, width, line, file);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_PLACE) {
    return simt_shuffle(SIMT_SHUFFLE_UP, mask, value, (int)delta, width, line, file);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_PLACE) {
    return simt_shuffle(SIMT_SHUFFLE_DOWN, mask, value, (int)delta, width, line, file);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, SIMT_PLACE) {
    return simt_shuffle(SIMT_SHUFFLE_XOR, mask, value, bits, width, line, file);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_PLACE) {
    return (unsigned)simt_warp(simt_operation(SIMT_BALLOT, 32, line), mask, predicate != 0, 0, file);
}
static inline int __any_sync(unsigned mask, int predicate, SIMT_PLACE) {
    return (int)simt_warp(simt_operation(SIMT_ANY, 32, line), mask, predicate != 0, 0, file);
}
static inline int __all_sync(unsigned mask, int predicate, SIMT_PLACE) {
    return (int)simt_warp(simt_operation(SIMT_ALL, 32, line), mask, predicate != 0, 0, file);
}
template <typename T> static inline unsigned __match_any_sync(unsigned mask, T value, SIMT_PLACE) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "matches compare values of 4 or 8 bytes");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    return (unsigned)simt_warp(simt_operation(SIMT_MATCH_ANY, 32, line), mask, bits, 0, file);
}
/* Lanes that have not ended: which of them run together is not modelled. */
static inline unsigned __activemask(void) {
    return simt_active_lanes();
}

#define SIMT_REDUCE(name, type, kind)                                                                        \
    static inline type name(unsigned mask, type value, SIMT_PLACE) {                                         \
        return (type)simt_warp(simt_operation(kind, 32, line), mask, (unsigned)value, 0, file);              \
    }
SIMT_REDUCE(__reduce_add_sync, unsigned, SIMT_ADD)
SIMT_REDUCE(__reduce_add_sync, int, SIMT_ADD)
SIMT_REDUCE(__reduce_min_sync, unsigned, SIMT_MIN)
SIMT_REDUCE(__reduce_min_sync, int, SIMT_MIN_SIGNED)
SIMT_REDUCE(__reduce_max_sync, unsigned, SIMT_MAX)
SIMT_REDUCE(__reduce_max_sync, int, SIMT_MAX_SIGNED)
SIMT_REDUCE(__reduce_and_sync, unsigned, SIMT_AND)
SIMT_REDUCE(__reduce_or_sync, unsigned, SIMT_OR)
SIMT_REDUCE(__reduce_xor_sync, unsigned, SIMT_XOR)

/* ---- atomics on integers ---- */

#define SIMT_ATOMIC(name, type, bits, kind)                                                                  \
    static inline type name(type *address, type value) {                                                     \
        return (type)simt_atomic(kind, address, (int)sizeof(type), (bits)value, 0);                          \
    }
#define SIMT_ATOMICS(name, kind)                                                                             \
    SIMT_ATOMIC(name, int, unsigned, kind)                                                                   \
    SIMT_ATOMIC(name, unsigned, unsigned, kind)                                                              \
    SIMT_ATOMIC(name, unsigned long long, uint64_t, kind)
SIMT_ATOMICS(atomicAdd, SIMT_ATOMIC_ADD)
SIMT_ATOMICS(atomicAnd, SIMT_ATOMIC_AND)
SIMT_ATOMICS(atomicOr, SIMT_ATOMIC_OR)
SIMT_ATOMICS(atomicXor, SIMT_ATOMIC_XOR)
SIMT_ATOMICS(atomicExch, SIMT_ATOMIC_EXCHANGE)
SIMT_ATOMIC(atomicMin, int, unsigned, SIMT_ATOMIC_MIN_SIGNED)
SIMT_ATOMIC(atomicMin, unsigned, unsigned, SIMT_ATOMIC_MIN)
SIMT_ATOMIC(atomicMin, unsigned long long, uint64_t, SIMT_ATOMIC_MIN)
SIMT_ATOMIC(atomicMin, long long, uint64_t, SIMT_ATOMIC_MIN_SIGNED)
SIMT_ATOMIC(atomicMax, int, unsigned, SIMT_ATOMIC_MAX_SIGNED)
SIMT_ATOMIC(atomicMax, unsigned, unsigned, SIMT_ATOMIC_MAX)
SIMT_ATOMIC(atomicMax, unsigned long long, uint64_t, SIMT_ATOMIC_MAX)
SIMT_ATOMIC(atomicMax, long long, uint64_t, SIMT_ATOMIC_MAX_SIGNED)

#define SIMT_COMPARE(type, bits)                                                                             \
    static inline type atomicCAS(type *address, type compare, type value) {                                  \
        return (type)simt_atomic(                                                                            \
            SIMT_ATOMIC_COMPARE, address, (int)sizeof(type), (bits)value, (bits)compare);                    \
    }
SIMT_COMPARE(int, unsigned)
SIMT_COMPARE(unsigned, unsigned)
SIMT_COMPARE(unsigned long long, uint64_t)

static inline int atomicSub(int *address, int value) {
    return (int)simt_atomic(SIMT_ATOMIC_ADD, address, 4, 0u - (unsigned)value, 0);
}
static inline unsigned atomicSub(unsigned *address, unsigned value) {
    return (unsigned)simt_atomic(SIMT_ATOMIC_ADD, address, 4, 0u - value, 0);
}

/* Between blocks, order is that of the emulation: blocks run whole or are kept apart by atomics. */
static inline void __threadfence(void) {
}
static inline void __threadfence_block(void) {
}
static inline void __threadfence_system(void) {
}

#define __trap() simt_trap("__trap", __FILE__, __LINE__)
#undef assert
#define assert(condition)                                                                                    \
    ((condition) ? (void)0 : simt_trap("assert(" #condition ") failed", __FILE__, __LINE__))

/* ---- loads and stores with cache hints ---- */

#define SIMT_LOAD(name)                                                                                      \
    template <typename T> static inline T name(const T *address) {                                           \
        return *address;                                                                                     \
    }
#define SIMT_STORE(name)                                                                                     \
    template <typename T> static inline void name(T *address, typename simt_identity<T>::type value) {       \
        *address = value;                                                                                    \
    }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldlu)
SIMT_LOAD(__ldcv)
SIMT_STORE(__stwb)
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwt)

/* ---- integers ---- */

/* Sums of pairs, fours and eights of bits: quicker than the library's function, which the compiler would call. */
static inline int __popc(unsigned x) {
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    return (int)(((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}
static inline int __popcll(unsigned long long x) {
    return __popc((unsigned)x) + __popc((unsigned)(x >> 32));
}
static inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __clzll(long long x) {
    return x == 0 ? 64 : __builtin_clzll((unsigned long long)x);
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
static inline unsigned long long __brevll(unsigned long long x) {
    unsigned long long reversed = 0;
    for (int i = 0; i < 64; i++)
        reversed |= (x >> i & 1) << (63 - i);
    return reversed;
}
static inline unsigned __brev(unsigned x) {
    return (unsigned)(__brevll(x) >> 32);
}
/* Byte n of the result is the byte of y:x that nibble n of `selector` names; its bit 3 asks for the byte's sign. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int n = 0; n < 4; n++) {
        unsigned nibble = selector >> (4 * n) & 15;
        unsigned byte = (unsigned)(both >> (8 * (nibble & 7))) & 255;
        if (nibble & 8)
            byte = byte & 128 ? 255 : 0;
        result |= byte << (8 * n);
    }
    return result;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
static inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline int __mulhi(int x, int y) {
    return (int)((int64_t)x * y >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}

/* ---- bits and conversions of floats ---- */

#define SIMT_BITS(name, from, to)                                                                            \
    static inline to name(from value) {                                                                      \
        to result;                                                                                           \
        __builtin_memcpy(&result, &value, sizeof result);                                                    \
        return result;                                                                                       \
    }
SIMT_BITS(__float_as_uint, float, unsigned)
SIMT_BITS(__float_as_int, float, int)
SIMT_BITS(__uint_as_float, unsigned, float)
SIMT_BITS(__int_as_float, int, float)
SIMT_BITS(__double_as_longlong, double, long long)
SIMT_BITS(__longlong_as_double, long long, double)

/* Out of range: the nearest value; NaN: 0, as on the device. */
static inline int simt_to_int(double x) {
    return x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? -2147483647 - 1 : x == x ? (int)x : 0;
}
static inline unsigned simt_to_uint(double x) {
    return x >= 4294967295.0 ? 4294967295u : x >= 0 ? (unsigned)x : 0;
}
static inline int __float2int_rn(float x) {
    return simt_to_int(nearbyint((double)x));
}
static inline int __float2int_rz(float x) {
    return simt_to_int(trunc((double)x));
}
static inline int __float2int_rd(float x) {
    return simt_to_int(floor((double)x));
}
static inline int __float2int_ru(float x) {
    return simt_to_int(ceil((double)x));
}
static inline unsigned __float2uint_rn(float x) {
    return simt_to_uint(nearbyint((double)x));
}
static inline unsigned __float2uint_rz(float x) {
    return simt_to_uint(trunc((double)x));
}
static inline float __int2float_rn(int x) {
    return (float)x;
}
static inline float __uint2float_rn(unsigned x) {
    return (float)x;
}

/* ---- arithmetic; expf, fmaf and the like are the host's ---- */

static inline float __fadd_rn(float x, float y) {
    return x + y;
}
static inline float __fsub_rn(float x, float y) {
    return x - y;
}
static inline float __fmul_rn(float x, float y) {
    return x * y;
}
static inline float __fdiv_rn(float x, float y) {
    return x / y;
}
static inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}
static inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
static inline float __frcp_rn(float x) {
    return 1.0f / x;
}
static inline float rsqrtf(float x) {
    return (float)(1.0 / sqrt((double)x));
}

#define SIMT_LEAST_AND_MOST(type)                                                                            \
    static inline type min(type x, type y) {                                                                 \
        return y < x ? y : x;                                                                                \
    }                                                                                                        \
    static inline type max(type x, type y) {                                                                 \
        return x < y ? y : x;                                                                                \
    }
SIMT_LEAST_AND_MOST(int)
SIMT_LEAST_AND_MOST(unsigned)
SIMT_LEAST_AND_MOST(long)
SIMT_LEAST_AND_MOST(unsigned long)
SIMT_LEAST_AND_MOST(long long)
SIMT_LEAST_AND_MOST(unsigned long long)
static inline float min(float x, float y) {
    return fminf(x, y);
}
static inline float max(float x, float y) {
    return fmaxf(x, y);
}

/* ---- the C library's memory functions, watched; small known sizes are plain loads and stores, which have hooks of their own ---- */

static inline __attribute__((always_inline)) void *simt_copy(void *to, const void *from, size_t bytes) {
    if (__builtin_constant_p(bytes) && bytes <= 16)
        return __builtin_memcpy(to, from, bytes);
    return simt_checked_copy(to, from, bytes);
}
#define memcpy(to, from, bytes) simt_copy(to, from, bytes)
#define memmove(to, from, bytes) simt_checked_move(to, from, bytes)
#define memset(to, value, bytes) simt_checked_fill(to, value, bytes)
#define memcmp(a, b, bytes) simt_checked_compare(a, b, bytes)

#endif

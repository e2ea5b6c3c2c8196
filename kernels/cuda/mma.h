/* Tensor-core instructions behind names, with a form for the emulation that computes the same sums.
 *
 * Fragments are those of the PTX manual for mma.sync: lane l holds, with g = l / 4 and i = l % 4,
 *   A [16 rows x 16 columns] bf16: a[0] = row g columns 2i, 2i+1; a[1] = row g + 8, same columns; a[2], a[3] = columns + 8
 *   B [16 columns x 8]       bf16: b[0] = columns 2i, 2i+1 of output g; b[1] = columns + 8
 *   D [16 rows x 8]          f32:  d[0], d[1] = row g, outputs 2i, 2i + 1; d[2], d[3] = row g + 8
 * Two bf16 share a word, the lower column in the low half.
 */
#ifndef NOCTURNE_CUDA_MMA_H
#define NOCTURNE_CUDA_MMA_H

#include "kernels/cuda/device.h"

/* d += A * B over 16 columns. All 32 lanes take part. The order of the sum inside is the hardware's, the same for every row and
 * output, whatever the others hold; the emulation sums in double and rounds once. */
__device__ static inline void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
#ifdef CUDA_EMULATION
    simt_mma_bf16(d, a, b);
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, "
        "%1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* Four 8 x 8 matrices of 16-bit values from shared memory: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned),
 * and gets in r[m] the columns 2i, 2i + 1 of row g of matrix m. */
__device__ static inline void load_matrices(uint32_t r[4], const void *row) {
#ifdef CUDA_EMULATION
    simt_load_matrices(r, row);
#else
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

/* The same, each matrix transposed. */
__device__ static inline void load_matrices_transposed(uint32_t r[4], const void *row) {
#ifdef CUDA_EMULATION
    simt_load_matrices_transposed(r, row);
#else
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
#endif
}

/* 16 bytes from global to shared memory without passing registers; both addresses multiples of 16. `bytes` of them are
 * read (0 to 16), the rest of the 16 become zero. What a thread copied it may read after copies_wait, other threads after a barrier
 * behind that. */
__device__ static inline void copy_async(void *shared, const void *global, int bytes) {
#ifdef CUDA_EMULATION
    simt_copy_async(shared, global, bytes);
#else
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes)
                 : "memory");
#endif
}

/* Closes a group of copies. */
__device__ static inline void copies_commit(void) {
#ifdef CUDA_EMULATION
    simt_copies_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most `groups` of this thread's newest groups are on their way. */
template <int groups> __device__ static inline void copies_wait(void) {
#ifdef CUDA_EMULATION
    simt_copies_wait(groups);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

#endif

/* The end of a dot product: folding the lanes of its sum. */
#ifndef NOCTURNE_CPU_FOLD_H
#define NOCTURNE_CPU_FOLD_H

#include "kernels/cpu/operations/vectors.h"

#include <stdbool.h> /* bool */

/* The four sums sum_lanes would give, in the same order of additions. */
static inline __attribute__((always_inline)) void fold_four(const lanes *sum, float *folded) {
#if defined(HAVE_AVX512)
    __m512 a = (__m512)sum[0], b = (__m512)sum[1], c = (__m512)sum[2], d = (__m512)sum[3];
    __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    __m512 cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
    __m512 all = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
    all += _mm512_permute_ps(all, 0x4e);
    all += _mm512_permute_ps(all, 0xb1);
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(folded, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, all)));
#elif defined(HAVE_AVX2)
    __m256 a = (__m256)sum[0], b = (__m256)sum[1], c = (__m256)sum[2], d = (__m256)sum[3];
    __m256 ab = _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
    __m256 cd = _mm256_permute2f128_ps(c, d, 0x20) + _mm256_permute2f128_ps(c, d, 0x31);
    __m256 all = _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xee);
    all += _mm256_permute_ps(all, 0xb1);
    folded[0] = all[0];
    folded[1] = all[4];
    folded[2] = all[2];
    folded[3] = all[6];
#else
    for (int32_t r = 0; r < 4; r++)
        folded[r] = sum_lanes(sum[r]);
#endif
}

static inline __attribute__((always_inline)) void put(float *out, float value, bool add) {
    *out = add ? *out + value : value;
}

#endif

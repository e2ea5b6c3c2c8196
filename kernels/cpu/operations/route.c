/* The router: which experts a token visits, and with which weights. */
#include "kernels/cpu/operations/internal.h"

#include <math.h> /* isnan, sqrtf */

/* ---- scores ---- */

/* As many doubles as fill a vector. */
enum { HALF_LANES = LANES / 2 };
typedef double doubles __attribute__((vector_size(LANES * 4)));
typedef int64_t long_lanes __attribute__((vector_size(LANES * 4)));

static inline doubles splat_double(double value) {
    return value - (doubles){0};
}

/* e^x for x <= 0 to 13 digits; 0 below -708, NaN stays. */
static inline doubles exp_of_negative(doubles x) {
    const doubles magic = splat_double(0x1.8p52); /* adding it rounds to an integer */
    doubles shifted = x * 1.4426950408889634 + magic;
    doubles n = shifted - magic;
    doubles r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33; /* ln 2 in two parts */
    doubles p = splat_double(1.0 / 39916800);
    static const double terms[] = {1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
        1.0 / 24, 1.0 / 6, 0.5, 1, 1};
#pragma GCC unroll 16
    for (int32_t i = 0; i < (int32_t)(sizeof terms / sizeof terms[0]); i++)
        p = p * r + terms[i];
    long_lanes power = ((long_lanes)shifted - (long_lanes)magic + 1023) << 52;
    doubles value = p * (doubles)power;
    return (doubles)(~(x < -708) & (long_lanes)value);
}

/* log(1 + y) for 0 <= y <= 1 to 13 digits, as 2 artanh(y / (2 + y)). */
static inline doubles log_of_one_and(doubles y) {
    doubles s = y / (2 + y), square = s * s, p = splat_double(1.0 / 27);
#pragma GCC unroll 16
    for (int32_t i = 25; i > 0; i -= 2)
        p = p * square + 1.0 / i;
    return 2 * s * p;
}

/* sqrt(softplus(logit)) of `count` logits. The logarithm is taken in double, for it must be right to the last places
 * of a float where it is small, too. */
static void route_scores(const float *logits, int32_t count, float *scores) {
    for (int32_t e = 0; e < count; e += HALF_LANES) {
        int32_t now = least(HALF_LANES, count - e);
        doubles x = {0};
        for (int32_t l = 0; l < now; l++)
            x[l] = (double)logits[e + l];
        long_lanes is_positive = x > 0;
        doubles y =
            exp_of_negative((doubles)((is_positive & (long_lanes)-x) | (~is_positive & (long_lanes)x)));
        doubles value = (doubles)(is_positive & (long_lanes)x) + log_of_one_and(y);
        for (int32_t l = 0; l < now; l++)
            scores[e + l] = sqrtf((float)value[l]);
    }
}

/* ---- choice ---- */

/* Whether candidate beats best: NaN loses to all numbers, ties go to the one met first. */
static bool is_better(float candidate, float best) {
    return candidate > best || (isnan(best) && !isnan(candidate));
}

/* The k best of value [count], ascending, in chosen. */
static void take_best(const float *value, int32_t count, int32_t k, int32_t *chosen) {
    int32_t filled = 0;
    /* best first; who is no better than the last of k has no place */
    for (int32_t e = 0; e < count; e++) {
        if (filled == k && !is_better(value[e], value[chosen[k - 1]]))
            continue;
        int32_t at = filled < k ? filled++ : k - 1;
        for (; at > 0 && is_better(value[e], value[chosen[at - 1]]); at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
    for (int32_t i = 1; i < filled; i++) { /* ascending */
        int32_t expert = chosen[i], at = i;
        for (; at > 0 && chosen[at - 1] > expert; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = expert;
    }
}

static void route(struct stream *stream, const float *logits, int32_t tokens, int32_t expert_count,
    const float *bias, const float *bias_vl, const uint8_t *is_image, int32_t k, bool normalize, float factor,
    int32_t *experts, float *weights) {
    size_t one = (size_t)expert_count * 2 * sizeof(float);
    one = (one + 63) / 64 * 64;
    uint8_t *scratch = stream_scratch(stream, SCRATCH_SCORES, (size_t)stream->threads * one);
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (is_worth_threads((int64_t)tokens * expert_count * 16))
    for (int32_t t = 0; t < tokens; t++) {
        float *score = (float *)(scratch + (size_t)thread_number() * one);
        float *biased = score + expert_count;
        const float *offset = is_image[t] ? bias_vl : bias;
        route_scores(logits + (int64_t)t * expert_count, expert_count, score);
        for (int32_t e = 0; e < expert_count; e++)
            biased[e] = score[e] + offset[e];
        int32_t *chosen = experts + (int64_t)t * k;
        float *weight = weights + (int64_t)t * k;
        take_best(biased, expert_count, k, chosen);
        float total = 0;
        for (int32_t i = 0; i < k; i++) {
            weight[i] = score[chosen[i]];
            total += weight[i];
        }
        for (int32_t i = 0; i < k; i++)
            weight[i] = (normalize && k > 1 ? weight[i] / (total + 1e-20f) : weight[i]) * factor;
    }
}

void FOR_SET(fill_route)(struct kernels *kernels) {
    kernels->route = route;
}

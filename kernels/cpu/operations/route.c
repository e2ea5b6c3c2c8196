/* The router: which experts a token visits, and with which weights. */
#include "kernels/cpu/operations/internal.h"

#include <math.h> /* exp, fabs, isnan, log1p, sqrt */

/* sqrt(softplus(logit)) */
static float route_score(float logit) {
    double x = logit;
    return sqrtf((float)((x > 0 ? x : 0) + log1p(exp(-fabs(x)))));
}

/* Whether candidate beats best: NaN loses to all numbers, ties go to the one met first. */
static bool is_better(float candidate, float best) {
    return candidate > best || (isnan(best) && !isnan(candidate));
}

/* The k best of value [count], ascending, in chosen; used experts' marks are in taken [count]. */
static void take_best(const float *value, int32_t count, int32_t k, bool *taken, int32_t *chosen) {
    memset(taken, 0, (size_t)count * sizeof *taken);
    for (int32_t i = 0; i < k; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < count; e++)
            if (!taken[e] && (best < 0 || is_better(value[e], value[best])))
                best = e;
        taken[best] = true;
    }
    for (int32_t e = 0, filled = 0; e < count && filled < k; e++)
        if (taken[e])
            chosen[filled++] = e;
}

static void route(struct stream *stream, const float *logits, int32_t tokens, int32_t expert_count,
    const float *bias, const float *bias_vl, const uint8_t *is_image, int32_t k, bool normalize, float factor,
    int32_t *experts, float *weights) {
    size_t one = (size_t)expert_count * (2 * sizeof(float) + sizeof(bool));
    one = (one + 63) / 64 * 64;
    uint8_t *scratch = stream_scratch(stream, SCRATCH_SCORES, (size_t)stream->threads * one);
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (is_worth_threads((int64_t)tokens * expert_count * 16))
    for (int32_t t = 0; t < tokens; t++) {
        float *score = (float *)(scratch + (size_t)thread_number() * one);
        float *biased = score + expert_count;
        const float *offset = is_image[t] ? bias_vl : bias;
        for (int32_t e = 0; e < expert_count; e++) {
            score[e] = route_score(logits[(int64_t)t * expert_count + e]);
            biased[e] = score[e] + offset[e];
        }
        int32_t *chosen = experts + (int64_t)t * k;
        float *weight = weights + (int64_t)t * k;
        take_best(biased, expert_count, k, (bool *)(biased + expert_count), chosen);
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

/* The router: which experts a token visits, and with which weights. Scores are computed in double with additions, products and
 * divisions only, as on the CPU, so that both choose the same experts with the same weights, bit for bit.
 */
#include "kernels/cuda/functions.h"
#include "kernels/cuda/operations.h"

enum { ROUTE_WARPS = 4, MOST_SHARED = 200 * 1024 };

/* ---- scores ---- */

/* e^x for x <= 0 to 13 digits; 0 below -708, NaN stays. */
__device__ static inline double exp_of_negative(double x) {
    const double magic = 0x1.8p52; /* adding it rounds to an integer */
    double shifted = x * 1.4426950408889634 + magic;
    double n = shifted - magic;
    double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33; /* ln 2 in two parts */
    double p = 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    uint64_t bits, magic_bits;
    memcpy(&bits, &shifted, sizeof bits);
    memcpy(&magic_bits, &magic, sizeof magic_bits);
    uint64_t power_bits = (bits - magic_bits + 1023) << 52;
    double power;
    memcpy(&power, &power_bits, sizeof power);
    return x < -708 ? 0.0 : p * power;
}

/* log(1 + y) for 0 <= y <= 1 to 13 digits, as 2 artanh(y / (2 + y)). */
__device__ static inline double log_of_one_and(double y) {
    double s = y / (2 + y), square = s * s, p = 1.0 / 27;
    p = p * square + 1.0 / 25;
    p = p * square + 1.0 / 23;
    p = p * square + 1.0 / 21;
    p = p * square + 1.0 / 19;
    p = p * square + 1.0 / 17;
    p = p * square + 1.0 / 15;
    p = p * square + 1.0 / 13;
    p = p * square + 1.0 / 11;
    p = p * square + 1.0 / 9;
    p = p * square + 1.0 / 7;
    p = p * square + 1.0 / 5;
    p = p * square + 1.0 / 3;
    p = p * square + 1.0 / 1;
    return 2 * s * p;
}

/* sqrt(softplus(logit)) */
__device__ static inline float route_score(float logit) {
    double x = (double)logit;
    double positive = x > 0 ? x : 0.0, negative = x > 0 ? -x : x;
    return sqrtf((float)(positive + log_of_one_and(exp_of_negative(negative))));
}

/* ---- choice ---- */

/* Larger for what is taken first: larger values, then lower indices; a NaN comes after all numbers. Never 0. */
__device__ static inline uint64_t choice_key(float value, int32_t index) {
    uint32_t bits = float_bits(value == 0 ? 0.0f : value);
    bits = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t)(value == value ? bits : 0u) << 32 | (0xffffffffu - (uint32_t)index);
}

struct route_call {
    const float *logits; /* [T, experts_count] */
    const float *bias, *bias_vl;
    const uint8_t *is_image;
    int32_t tokens, count, k;
    bool normalize;
    float factor;
    int32_t *experts;
    float *weights;
};

/* One warp's memory: keys [count], scores [count], chosen [k]. */
__host__ __device__ static inline int32_t route_bytes(int32_t count, int32_t k) {
    return (count * 8 + count * 4 + k * 4 + 15) / 16 * 16;
}

/* The largest key of the warp's, which is then taken out. */
__device__ static inline int32_t take_best(uint64_t *keys, int32_t count, int32_t lane) {
    uint64_t best = 0;
    for (int32_t e = lane; e < count; e += WARP)
        best = keys[e] > best ? keys[e] : best;
    for (int32_t half = WARP / 2; half > 0; half /= 2) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, best, half);
        best = other > best ? other : best;
    }
    int32_t index = (int32_t)(0xffffffffu - (uint32_t)best);
    if (index % WARP == lane)
        keys[index] = 0;
    return index;
}

/* A warp: one token. */
static __global__ void route_tokens(struct route_call call) {
    unsigned char *shared = &SHARED(unsigned char);
    int32_t warp = (int32_t)threadIdx.x / WARP, lane = (int32_t)threadIdx.x % WARP;
    int64_t t = (int64_t)blockIdx.x * (blockDim.x / WARP) + warp;
    if (t >= call.tokens)
        return;
    uint64_t *keys = (uint64_t *)(shared + (int64_t)warp * route_bytes(call.count, call.k));
    float *scores = (float *)(keys + call.count);
    int32_t *chosen = (int32_t *)(scores + call.count);
    const float *offset = call.is_image[t] ? call.bias_vl : call.bias;
    for (int32_t e = lane; e < call.count; e += WARP) {
        scores[e] = route_score(call.logits[t * call.count + e]);
        keys[e] = choice_key(scores[e] + offset[e], e);
    }
    /* each lane takes keys of its own only; the chosen are kept in ascending order by the first */
    for (int32_t i = 0; i < call.k; i++) {
        int32_t index = take_best(keys, call.count, lane), at = i;
        for (; lane == 0 && at > 0 && chosen[at - 1] > index; at--)
            chosen[at] = chosen[at - 1];
        if (lane == 0)
            chosen[at] = index;
    }
    __syncwarp();
    float total = 0;
    for (int32_t i = 0; i < call.k; i++)
        total += scores[chosen[i]];
    for (int32_t i = lane; i < call.k; i += WARP) {
        float score = scores[chosen[i]];
        call.experts[t * call.k + i] = chosen[i];
        call.weights[t * call.k + i] =
            (call.normalize && call.k > 1 ? score / (total + 1e-20f) : score) * call.factor;
    }
}

void cuda_route(struct stream *stream, const float *logits, int32_t tokens, int32_t expert_count,
    const float *bias, const float *bias_vl, const uint8_t *is_image, int32_t k, bool normalize, float factor,
    int32_t *experts, float *weights) {
    if (tokens <= 0)
        return;
    int32_t bytes = route_bytes(expert_count, k), warps = ROUTE_WARPS;
    while (warps > 1 && (warps * bytes > MOST_SHARED || tokens / warps < stream->multiprocessors))
        warps /= 2;
    if (warps * bytes > MOST_SHARED || k > expert_count) {
        (void)stream_check(stream, cudaErrorInvalidValue, "route: too many experts");
        return;
    }
    struct route_call call = {
        logits, bias, bias_vl, is_image, tokens, expert_count, k, normalize, factor, experts, weights};
    unsigned blocks = (unsigned)((tokens + warps - 1) / warps);
    LAUNCH(stream, route_tokens, blocks, (unsigned)(warps * WARP), (size_t)(warps * bytes), call);
}

#include "model/sampling.h"

#include "kernels/sample_arithmetic.h"
#include "recipe/request.h" /* struct sampling */

#include <math.h>    /* INFINITY, isfinite, log */
#include <stdbool.h> /* bool */
#include <stdlib.h>  /* calloc, qsort */
#include <string.h>  /* memcpy */
#include <xxhash.h>  /* XXH3_128bits_update */

enum {
    BLOCK = 512,         /* probabilities summed together when drawing; a multiple of LANES */
    BUCKETS = 4096,      /* of probabilities by size, to find a cut without sorting */
    BUCKETS_A_UNIT = 64, /* buckets for a factor of e */
    MOST_TOP_LOGPROBS = 20,
};

/* ---- random numbers ---- */

void philox_4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    philox(counter, key, out);
}

/* The bytes hashed are written out in little-endian order, so that all machines agree. */
struct random_key random_key_make(
    int64_t seed, const char *custom_id, size_t custom_id_bytes, int32_t choice) {
    uint8_t head[12];
    for (int i = 0; i < 8; i++)
        head[i] = (uint8_t)((uint64_t)seed >> 8 * i);
    for (int i = 0; i < 4; i++)
        head[8 + i] = (uint8_t)((uint32_t)choice >> 8 * i);
    XXH3_state_t *state = XXH3_createState();
    struct random_key key = {{0}};
    if (state) {
        XXH3_128bits_reset(state);
        XXH3_128bits_update(state, head, sizeof head);
        XXH3_128bits_update(state, custom_id, custom_id_bytes);
        XXH128_hash_t hash = XXH3_128bits_digest(state);
        key.words[0] = hash.low64;
        key.words[1] = hash.high64;
        XXH3_freeState(state);
    }
    return key;
}

double random_uniform(struct random_key key, uint64_t position) {
    return uniform_of(key.words, position);
}

/* ---- exponentials in fixed order ---- */

/* Index of the largest finite value, the lowest of equals; -1 when there is none. */
static int32_t largest(const float *values, int32_t count) {
    /* Most of the work is this plain maximum; the index is looked up afterwards. */
    float lanes[LANES];
    for (int lane = 0; lane < LANES; lane++)
        lanes[lane] = -INFINITY;
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float value = values[i + lane];
            value = value < INFINITY ? value : -INFINITY; /* false for NaN too */
            lanes[lane] = value > lanes[lane] ? value : lanes[lane];
        }
    float most = -INFINITY;
    for (; i < count; i++)
        if (values[i] < INFINITY && values[i] > most)
            most = values[i];
    for (int lane = 0; lane < LANES; lane++)
        most = lanes[lane] > most ? lanes[lane] : most;
    if (most == -INFINITY)
        return -1;
    for (i = 0; i < count; i++)
        if (values[i] == most)
            return i;
    return -1;
}

double logits_log_sum(const float *logits, int32_t count) {
    int32_t top = largest(logits, count);
    if (top < 0)
        return -INFINITY;
    double most = logits[top];
    double lanes[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            double difference = (double)logits[i + lane] - most;
            lanes[lane] += exp_of_negative(difference <= 0 ? difference : -INFINITY);
        }
    for (int lane = 0; i < count; i++, lane++) {
        double difference = (double)logits[i] - most;
        lanes[lane] += exp_of_negative(difference <= 0 ? difference : -INFINITY);
    }
    return most + log(add_lanes(lanes));
}

/* ---- the sampler ---- */

struct sampler {
    int32_t vocab_size;
    float *adjusted;  /* [vocab_size]: logits after bias and penalties */
    double *weight;   /* [vocab_size]: probabilities relative to the likeliest token's */
    int32_t *members; /* [vocab_size]: tokens of one bucket */
    int32_t *seen;    /* [vocab_size]: times a token was generated; zero between calls */
    int32_t bucket_count[BUCKETS];
    double bucket_weight[BUCKETS];
};

enum result sampler_create(int32_t vocab_size, struct sampler **sampler) {
    struct sampler *made = calloc(1, sizeof *made);
    size_t count = (size_t)vocab_size;
    if (made) {
        made->vocab_size = vocab_size;
        made->adjusted = malloc(count * sizeof *made->adjusted);
        made->weight = malloc(count * sizeof *made->weight);
        made->members = malloc(count * sizeof *made->members);
        made->seen = calloc(count, sizeof *made->seen);
    }
    if (!made || !made->adjusted || !made->weight || !made->members || !made->seen) {
        sampler_free(made);
        return fail(ERROR_MEMORY, "out of memory for sampling from a vocabulary of %d tokens", vocab_size);
    }
    *sampler = made;
    return OK;
}

void sampler_free(struct sampler *sampler) {
    if (!sampler)
        return;
    free(sampler->adjusted);
    free(sampler->weight);
    free(sampler->members);
    free(sampler->seen);
    free(sampler);
}

/* Copies the logits of one word's tokens, -infinity for those that are not allowed. */
static void copy_allowed(float *to, const float *from, uint64_t allowed, int32_t count) {
    if (allowed == UINT64_MAX) {
        memcpy(to, from, (size_t)count * sizeof *to);
        return;
    }
    for (int32_t i = 0; i < count; i++)
        to[i] = allowed >> i & 1 ? from[i] : -INFINITY;
}

static void copy_logits(struct sampler *sampler, const float *logits, const uint64_t *allowed) {
    if (!allowed) {
        memcpy(sampler->adjusted, logits, (size_t)sampler->vocab_size * sizeof *logits);
        return;
    }
    for (int32_t first = 0; first < sampler->vocab_size; first += 64) {
        int32_t left = sampler->vocab_size - first;
        copy_allowed(sampler->adjusted + first, logits + first, allowed[first / 64], left < 64 ? left : 64);
    }
}

/* OpenAI's penalties: presence once, frequency for each time a token was generated. */
static void add_penalties(struct sampler *sampler, const struct token_draw *asked) {
    const struct sampling *sampling = asked->sampling;
    if (sampling->presence_penalty == 0 && sampling->frequency_penalty == 0)
        return;
    for (int32_t i = 0; i < asked->generated_count; i++)
        sampler->seen[asked->generated[i]]++;
    for (int32_t i = 0; i < asked->generated_count; i++) {
        int32_t id = asked->generated[i], times = sampler->seen[id];
        if (!times)
            continue; /* done at its first place */
        sampler->adjusted[id] -= sampling->presence_penalty + (float)times * sampling->frequency_penalty;
        sampler->seen[id] = 0;
    }
}

/* The logits to choose from: those given, or a copy with the mask, logit_bias and penalties. */
static const float *adjust_logits(
    struct sampler *sampler, const float *logits, const struct token_draw *asked) {
    const struct sampling *sampling = asked->sampling;
    if (!asked->allowed && !sampling->bias_count && sampling->presence_penalty == 0 &&
        sampling->frequency_penalty == 0)
        return logits;
    copy_logits(sampler, logits, asked->allowed);
    for (int32_t i = 0; i < sampling->bias_count; i++)
        if (sampling->bias_ids[i] >= 0 && sampling->bias_ids[i] < sampler->vocab_size)
            sampler->adjusted[sampling->bias_ids[i]] += sampling->bias_values[i];
    add_penalties(sampler, asked);
    return sampler->adjusted;
}

/* Whether the mask has one bit: then there is nothing to draw. */
static bool is_forced(const uint64_t *allowed, int32_t vocab_size) {
    int bits = 0;
    for (size_t i = 0; i < mask_words(vocab_size) && bits < 2; i++)
        bits += __builtin_popcountll(allowed[i]);
    return bits == 1;
}

/* A place in the order of tokens by falling logit, then rising id: tokens up to and including it are kept. */
struct cut {
    float logit;
    int32_t id;
};

static bool is_kept(struct cut cut, float logit, int32_t id) {
    return logit > cut.logit || (logit == cut.logit && id <= cut.id);
}

static int32_t bucket_of(double distance) {
    double place = distance * BUCKETS_A_UNIT;
    return place < BUCKETS - 1 ? (int32_t)place : BUCKETS - 1;
}

/* Weights exp(-(most - logit) / temperature), and their counts and sums by bucket of the exponent when
 * `buckets`. */
static void weigh(
    struct sampler *sampler, const float *logits, double most, double temperature, bool buckets) {
    int32_t count = sampler->vocab_size;
    double *weight = sampler->weight;
    for (int32_t i = 0; i < count; i++) {
        double difference = ((double)logits[i] - most) / temperature;
        weight[i] = exp_of_negative(difference <= 0 ? difference : -INFINITY);
    }
    if (!buckets)
        return;
    memset(sampler->bucket_count, 0, sizeof sampler->bucket_count);
    memset(sampler->bucket_weight, 0, sizeof sampler->bucket_weight);
    for (int32_t i = 0; i < count; i++) {
        if (!isfinite(logits[i]))
            continue;
        int32_t bucket = bucket_of((most - (double)logits[i]) / temperature);
        sampler->bucket_count[bucket]++;
        sampler->bucket_weight[bucket] += weight[i];
    }
}

static int by_logit_then_id(const void *left, const void *right, void *context) {
    const float *logits = context;
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    if (logits[a] != logits[b])
        return logits[a] > logits[b] ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* Lists the tokens of one bucket in members, likeliest first. */
static int32_t sort_bucket(
    struct sampler *sampler, const float *logits, double most, double temperature, int32_t bucket) {
    int32_t count = 0;
    for (int32_t i = 0; i < sampler->vocab_size; i++)
        if (isfinite(logits[i]) && bucket_of((most - (double)logits[i]) / temperature) == bucket)
            sampler->members[count++] = i;
    qsort_r(sampler->members, (size_t)count, sizeof *sampler->members, by_logit_then_id, (void *)logits);
    return count;
}

/* The cut after the likeliest tokens until there are `most_tokens` of them, or their weights reach
 * `target`. *kept is the weight up to the cut. */
static struct cut find_cut(struct sampler *sampler, const float *logits, double most, double temperature,
    int64_t most_tokens, double target, double *kept) {
    int64_t tokens = 0;
    double sum = 0;
    int32_t bucket = 0;
    for (; bucket < BUCKETS - 1; bucket++) {
        if (tokens + sampler->bucket_count[bucket] >= most_tokens ||
            sum + sampler->bucket_weight[bucket] >= target)
            break;
        tokens += sampler->bucket_count[bucket];
        sum += sampler->bucket_weight[bucket];
    }
    struct cut cut = {-INFINITY, -1};
    int32_t count = sort_bucket(sampler, logits, most, temperature, bucket);
    for (int32_t i = 0; i < count; i++) {
        int32_t id = sampler->members[i];
        cut = (struct cut){logits[id], id};
        sum += sampler->weight[id];
        if (++tokens >= most_tokens || sum >= target)
            break;
    }
    if (cut.id < 0)
        cut.id = INT32_MAX; /* rounding left the target unreached: keep all */
    *kept = sum;
    return cut;
}

/* Sets the weights of tokens that top_k, top_p and min_p leave out to zero. */
static void filter(
    struct sampler *sampler, const float *logits, double most, const struct sampling *sampling) {
    double temperature = sampling->temperature, kept = 0;
    bool limit_k = sampling->top_k > 0 && sampling->top_k < sampler->vocab_size;
    bool limit_p = sampling->top_p < 1.0f;
    struct cut cut_k = {-INFINITY, INT32_MAX}, cut_p = cut_k;
    if (limit_k) {
        cut_k = find_cut(sampler, logits, most, temperature, sampling->top_k, INFINITY, &kept);
    } else if (limit_p) {
        for (int32_t bucket = 0; bucket < BUCKETS; bucket++)
            kept += sampler->bucket_weight[bucket];
    }
    if (limit_p) {
        double target = (double)sampling->top_p * kept;
        cut_p = find_cut(sampler, logits, most, temperature, INT64_MAX, target, &kept);
    }
    for (int32_t i = 0; i < sampler->vocab_size; i++)
        if (!is_kept(cut_k, logits[i], i) || !is_kept(cut_p, logits[i], i) ||
            sampler->weight[i] < (double)sampling->min_p)
            sampler->weight[i] = 0;
}

static double sum_block(const double *weight, int32_t count) {
    double lanes[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] += weight[i + lane];
    for (int lane = 0; i < count; i++, lane++)
        lanes[lane] += weight[i];
    return add_lanes(lanes);
}

/* The token whose stretch of the summed weights holds uniform * total, tokens in order of id. */
static int32_t draw(const double *weight, int32_t vocab_size, double uniform) {
    double total = 0;
    for (int32_t first = 0; first < vocab_size; first += BLOCK)
        total += sum_block(weight + first, vocab_size - first < BLOCK ? vocab_size - first : BLOCK);
    double target = uniform * total, before = 0;
    int32_t last_possible = 0;
    for (int32_t first = 0; first < vocab_size; first += BLOCK) {
        int32_t count = vocab_size - first < BLOCK ? vocab_size - first : BLOCK;
        double sum = sum_block(weight + first, count);
        if (sum > 0 && before + sum > target) {
            double reached = before;
            for (int32_t i = first; i < first + count; i++) {
                if (weight[i] <= 0)
                    continue;
                last_possible = i;
                reached += weight[i];
                if (reached > target)
                    return i;
            }
            return last_possible; /* the block's own sum rounded the other way */
        }
        before += sum;
        for (int32_t i = first; sum > 0 && i < first + count; i++)
            if (weight[i] > 0)
                last_possible = i;
    }
    return last_possible;
}

/* The `wanted` likeliest tokens, by insertion into a short sorted list. */
static void find_top(
    const float *logits, int32_t vocab_size, int32_t wanted, double log_sum, struct sampled_token *token) {
    float values[MOST_TOP_LOGPROBS] = {0};
    int32_t count = 0;
    for (int32_t i = 0; i < vocab_size; i++) {
        float value = isfinite(logits[i]) ? logits[i] : -INFINITY;
        if (count == wanted && !(value > values[count - 1]))
            continue;
        int32_t place = count < wanted ? count++ : count - 1;
        for (; place > 0 && values[place - 1] < value; place--) {
            values[place] = values[place - 1];
            token->top_ids[place] = token->top_ids[place - 1];
        }
        values[place] = value;
        token->top_ids[place] = i;
    }
    token->top_logprobs = count;
    for (int32_t i = 0; i < count; i++)
        token->top_values[i] = (float)((double)values[i] - log_sum);
}

enum result fail_no_finite_logit(int64_t position) {
    return fail(ERROR_INTERNAL,
        "no logit of the token at position %lld is finite: the checkpoint's weights "
        "or the computation are broken",
        (long long)position);
}

/* Draws by the probabilities that temperature, top_k, top_p and min_p leave; `likeliest` is the token with the largest logit. */
static int32_t draw_by_chance(
    struct sampler *sampler, const float *logits, const struct token_draw *asked, int32_t likeliest) {
    const struct sampling *sampling = asked->sampling;
    double most = logits[likeliest];
    bool limited = (sampling->top_k > 0 && sampling->top_k < sampler->vocab_size) || sampling->top_p < 1.0f;
    weigh(sampler, logits, most, sampling->temperature, limited);
    if (limited || sampling->min_p > 0)
        filter(sampler, logits, most, sampling);
    return draw(sampler->weight, sampler->vocab_size, random_uniform(asked->key, (uint64_t)asked->position));
}

enum result sampler_choose(struct sampler *sampler, const float *logits, const struct token_draw *asked,
    struct sampled_token *token) {
    const struct sampling *sampling = asked->sampling;
    double log_sum = logits_log_sum(logits, sampler->vocab_size);
    if (log_sum == -INFINITY)
        return fail_no_finite_logit(asked->position);
    const float *chosen_from = adjust_logits(sampler, logits, asked);
    token->id = largest(chosen_from, sampler->vocab_size);
    if (token->id < 0)
        return fail_no_finite_logit(asked->position);
    if (sampling->temperature > 0 && !(asked->allowed && is_forced(asked->allowed, sampler->vocab_size)))
        token->id = draw_by_chance(sampler, chosen_from, asked, token->id);
    token->logprob = (float)((double)logits[token->id] - log_sum);
    token->top_logprobs = 0;
    int32_t wanted = sampling->top_logprobs < MOST_TOP_LOGPROBS ? sampling->top_logprobs : MOST_TOP_LOGPROBS;
    if (wanted > 0)
        find_top(logits, sampler->vocab_size, wanted, log_sum, token);
    return OK;
}

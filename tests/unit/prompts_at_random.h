/* Prompts that share prefixes, made at random, for the tests of the campaign's order. */
#ifndef NOCTURNE_TESTS_UNIT_PROMPTS_AT_RANDOM_H
#define NOCTURNE_TESTS_UNIT_PROMPTS_AT_RANDOM_H

#include "schedule/plan.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { PROMPTS_MOST = 160, PROMPT_MOST = 60, PROMPT_IMAGES = 3 };

struct random_prompts {
    uint64_t state;
    int64_t count;
    struct plan_request requests[PROMPTS_MOST];
    int32_t tokens[PROMPTS_MOST][PROMPT_MOST];
    struct plan_image images[PROMPTS_MOST][PROMPT_IMAGES];
};

static inline uint64_t draw(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    uint64_t mixed = (*state ^ (*state >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
}

static inline int64_t draw_below(uint64_t *state, int64_t limit) {
    return (int64_t)(draw(state) % (uint64_t)limit);
}

/* A prompt that begins like one made before, images included, and goes on by itself. */
static inline void make_prompt(struct random_prompts *prompts, int64_t i, bool with_images) {
    uint64_t *state = &prompts->state;
    struct plan_request *request = &prompts->requests[i];
    int32_t length = (int32_t)draw_below(state, PROMPT_MOST + 1), kept = 0;
    *request = (struct plan_request){.request = 1000 + 3 * i,
        .token_ids = prompts->tokens[i],
        .tokens = length,
        .images = prompts->images[i],
        .answer_tokens = 1 + (int32_t)draw_below(state, draw_below(state, 4) ? 8 : 100)};
    if (i > 0 && draw_below(state, 5)) {
        int64_t other = draw_below(state, i);
        int32_t most = prompts->requests[other].tokens < length ? prompts->requests[other].tokens : length;
        kept = draw_below(state, 3) ? (int32_t)draw_below(state, most + 1) : most;
        memcpy(prompts->tokens[i], prompts->tokens[other], (size_t)kept * sizeof(int32_t));
        for (int32_t k = 0; k < prompts->requests[other].image_count; k++)
            if (prompts->images[other][k].begin < kept)
                prompts->images[i][request->image_count++] = prompts->images[other][k];
    }
    for (int32_t t = kept; t < length; t++)
        prompts->tokens[i][t] = (int32_t)draw_below(state, 3);
    while (with_images && kept < length && request->image_count < PROMPT_IMAGES && draw_below(state, 2)) {
        kept += (int32_t)draw_below(state, length - kept);
        prompts->images[i][request->image_count++] = (struct plan_image){draw_below(state, 2), kept++};
    }
}

static inline void make_prompts(
    struct random_prompts *prompts, uint64_t seed, bool with_images, bool with_run) {
    prompts->state = seed;
    prompts->count = draw_below(&prompts->state, seed % 3 ? PROMPTS_MOST + 1 : 12);
    for (int64_t i = 0; i < prompts->count; i++)
        make_prompt(prompts, i, with_images);
    for (int64_t i = 0; i < prompts->count; i++)
        if (with_run && draw_below(&prompts->state, 4) == 0)
            prompts->requests[i].token_ids = NULL;
}

static inline const struct plan_request *find_prompt(const struct random_prompts *prompts, int64_t request) {
    return &prompts->requests[(request - 1000) / 3];
}

/* The plain way, which the code under test is compared with. */
static inline int32_t plain_shared(const struct plan_request *left, const struct plan_request *right) {
    int32_t at = 0;
    while (left->token_ids && right->token_ids && at < left->tokens && at < right->tokens) {
        int64_t image[2] = {-1, -1};
        for (int32_t k = 0; k < left->image_count; k++)
            if (left->images[k].begin == at)
                image[0] = left->images[k].image;
        for (int32_t k = 0; k < right->image_count; k++)
            if (right->images[k].begin == at)
                image[1] = right->images[k].image;
        if (left->token_ids[at] != right->token_ids[at] || image[0] != image[1])
            break;
        at++;
    }
    return at;
}

#endif

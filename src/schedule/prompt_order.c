#include "schedule/prompt_order.h"

#include <stdbool.h> /* bool */
#include <stdlib.h>  /* malloc, qsort */
#include <string.h>  /* memcmp */

/* ---- comparing two prompts ---- */

enum { BLOCK = 16 }; /* tokens compared at once: a cache line */

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* The first position from `begin` on where the tokens differ, or `end`. */
static int32_t tokens_differ(const int32_t *left, const int32_t *right, int32_t begin, int32_t end) {
    while (begin + BLOCK <= end && memcmp(left + begin, right + begin, BLOCK * sizeof *left) == 0)
        begin += BLOCK;
    while (begin < end && left[begin] == right[begin])
        begin++;
    return begin;
}

/* The first position where an image begins in one prompt that does not begin in the other. */
static int32_t images_differ(const struct plan_request *left, const struct plan_request *right) {
    int32_t most = least(left->image_count, right->image_count), i = 0;
    while (i < most && left->images[i].begin == right->images[i].begin &&
           left->images[i].image == right->images[i].image)
        i++;
    int32_t a = i < left->image_count ? left->images[i].begin : INT32_MAX;
    int32_t b = i < right->image_count ? right->images[i].begin : INT32_MAX;
    return least(a, b);
}

/* The image that begins at a position, -1: none. */
static int64_t image_at(const struct plan_request *request, int32_t position) {
    for (int32_t i = 0; i < request->image_count; i++)
        if (request->images[i].begin == position)
            return request->images[i].image;
    return -1;
}

/* The first position where two prompts that agree up to `known` differ, or the end of the shorter one. */
static int32_t prompts_differ(
    const struct plan_request *left, const struct plan_request *right, int32_t known) {
    int32_t at = tokens_differ(left->token_ids, right->token_ids, known, least(left->tokens, right->tokens));
    return left->image_count || right->image_count ? least(at, images_differ(left, right)) : at;
}

/* Which of two prompts comes first that agree up to `at`: negative, 0 (they are equal) or positive. */
static int prompts_compare(const struct plan_request *left, const struct plan_request *right, int32_t at) {
    if (at == left->tokens || at == right->tokens)
        return (left->tokens > right->tokens) - (left->tokens < right->tokens);
    int32_t a = left->token_ids[at], b = right->token_ids[at];
    if (a != b)
        return a < b ? -1 : 1;
    int64_t image_a = image_at(left, at), image_b = image_at(right, at);
    return (image_a > image_b) - (image_a < image_b);
}

int32_t prompt_shared(const struct plan_request *left, const struct plan_request *right) {
    return left->token_ids && right->token_ids ? prompts_differ(left, right, 0) : 0;
}

/* ---- sorting ----
 *
 * A range of prompts that agree in their first tokens is compared with one of them, the pivot. What a prompt shares with the
 * pivot, and on which side of it it lies, places it among the others: of those before the pivot the one that shares more lies
 * nearer to it, and so behind it. Prompts of one side that share equally much are a range of their own, which agrees in that
 * many tokens; so no token is compared again but the one that differed. */

struct placed {
    int64_t request;
    int32_t shared; /* with the pivot */
    int32_t side;   /* of the pivot: -1 before it, 0 equal, 1 behind it */
};

struct range {
    int64_t begin, end;
    int32_t agreed; /* tokens */
};

struct sorting {
    const struct plan_request *requests;
    int64_t *order;
    int32_t *shared;
    struct placed *placed; /* [count] */
    struct range
        *ranges; /* [count / 2 + 1]: still to be sorted; they have two prompts or more, and don't overlap */
    int64_t range_count;
};

static int compare_placed(const void *left, const void *right) {
    const struct placed *a = left, *b = right;
    if (a->side != b->side)
        return a->side < b->side ? -1 : 1;
    if (a->shared != b->shared)
        return (a->shared < b->shared ? -1 : 1) * (a->side > 0 ? -1 : 1);
    return (a->request > b->request) - (a->request < b->request);
}

/* Any member does; one that no order of the input makes a bad choice of each time. */
static int64_t choose_pivot(const struct range *range) {
    uint64_t mixed = ((uint64_t)range->begin * 0x9E3779B97F4A7C15u) ^ ((uint64_t)range->end << 20);
    mixed = (mixed ^ (mixed >> 31)) * 0xBF58476D1CE4E5B9u;
    return range->begin + (int64_t)((mixed >> 11) % (uint64_t)(range->end - range->begin));
}

/* Compares all of a range with its pivot and brings them in order. */
static void place_range(struct sorting *sorting, const struct range *range) {
    const struct plan_request *pivot = &sorting->requests[sorting->order[choose_pivot(range)]];
    for (int64_t i = range->begin; i < range->end; i++) {
        int64_t request = sorting->order[i];
        const struct plan_request *other = &sorting->requests[request];
        int32_t shared = other == pivot ? pivot->tokens : prompts_differ(other, pivot, range->agreed);
        int side = other == pivot ? 0 : prompts_compare(other, pivot, shared);
        sorting->placed[i] = (struct placed){request, shared, side};
    }
    qsort(sorting->placed + range->begin, (size_t)(range->end - range->begin), sizeof *sorting->placed,
        compare_placed);
}

/* What the neighbours at the border between two groups share: as much as the one farther from the pivot shares with it. */
static int32_t border_shared(const struct placed *before, const struct placed *behind) {
    return least(before->shared, behind->shared);
}

static void split_range(struct sorting *sorting, const struct range *range) {
    const struct placed *placed = sorting->placed;
    for (int64_t begin = range->begin, end; begin < range->end; begin = end) {
        end = begin + 1;
        while (end < range->end && placed[end].side == placed[begin].side &&
               placed[end].shared == placed[begin].shared)
            end++;
        if (begin > range->begin)
            sorting->shared[begin] = border_shared(&placed[begin - 1], &placed[begin]);
        for (int64_t i = begin; i < end; i++)
            sorting->order[i] = placed[i].request;
        if (placed[begin].side == 0)
            for (int64_t i = begin + 1; i < end; i++)
                sorting->shared[i] = placed[begin].shared;
        else if (end - begin > 1)
            sorting->ranges[sorting->range_count++] = (struct range){begin, end, placed[begin].shared};
    }
}

/* Moves prompts that have run to the front and returns how many there are. */
static int64_t separate_run(const struct plan_request *requests, int64_t *order, int64_t count) {
    int64_t run = 0;
    for (int64_t i = 0; i < count; i++)
        if (!requests[order[i]].token_ids) {
            int64_t request = order[i];
            order[i] = order[run];
            order[run++] = request;
        }
    return run;
}

static int compare_indices(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

enum result prompt_order(
    const struct plan_request *requests, int64_t *order, int32_t *shared, int64_t count) {
    int64_t run = separate_run(requests, order, count);
    qsort(order, (size_t)run, sizeof *order, compare_indices);
    for (int64_t i = 0; i <= run && i < count; i++)
        shared[i] = 0;
    struct sorting sorting = {.requests = requests, .order = order, .shared = shared};
    sorting.placed = malloc((size_t)(count + 1) * sizeof *sorting.placed);
    sorting.ranges = malloc((size_t)(count / 2 + 1) * sizeof *sorting.ranges);
    bool memory = sorting.placed && sorting.ranges;
    if (memory && count - run > 1)
        sorting.ranges[sorting.range_count++] = (struct range){run, count, 0};
    while (memory && sorting.range_count > 0) {
        struct range range = sorting.ranges[--sorting.range_count];
        place_range(&sorting, &range);
        split_range(&sorting, &range);
    }
    free(sorting.placed);
    free(sorting.ranges);
    return memory ? OK : fail(ERROR_MEMORY, "out of memory for sorting %lld prompts", (long long)count);
}

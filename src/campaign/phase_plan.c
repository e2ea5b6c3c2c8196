#include "campaign/phase_plan.h"

#include "base/log.h"
#include "campaign/files.h"    /* struct vector */
#include "campaign/progress.h" /* monotonic_seconds */
#include "cluster/collectives.h"
#include "schedule/prompts.h"

#include <stdlib.h> /* calloc, malloc */
#include <string.h> /* memcpy */

enum {
    UNKNOWN_ANSWER = 512, /* tokens of an answer, at most, as long as no request has ended */
    LEAST_APART = 32,     /* tokens between two branches worth a prefix each */
};

/* Until steps have told: a generated token runs through all layers, most of a prompt only through those below the last kv source,
 * which are half of the active parameters. */
static const struct plan_costs guessed_costs = {1, 2};

/* ---- what the plan is made of, on rank 0 ---- */

struct gathered {
    struct plan_request *requests; /* [count] */
    int64_t count;
    int32_t *token_ids;   /* of all prompts, one behind the other */
    struct vector images; /* struct plan_image, likewise */
};

static bool has_run(const struct phase_work *work, int64_t index) {
    return work->kind != ENGINE_PREFILL && work->has_state[index];
}

/* Tokens that the answers of a request are expected to have together. */
static int32_t expect_answer(const struct phase_work *work, int32_t choices, int32_t max_tokens) {
    int64_t most = (int64_t)choices * max_tokens, expected = (int64_t)choices * UNKNOWN_ANSWER;
    if (work->kind == ENGINE_PREFILL)
        return 0;
    if (work->answered > 0)
        expected = work->generated_tokens / work->answered + 1;
    if (expected > most)
        expected = most;
    return expected < INT32_MAX ? (int32_t)expected : INT32_MAX;
}

static enum result identify_images(
    const struct phase_work *work, const struct request_prompt *prompt, struct cache_image *images) {
    const int32_t *tokens;
    if (prompt->image_count == 0)
        return OK;
    TRY(requests_image_tokens(work->requests, &tokens));
    for (int32_t i = 0; i < prompt->image_count; i++) {
        TRY(phase_cache_image(work->requests, prompt->images[i], images[i].content)); /* checks the number */
        images[i].begin = prompt->positions[i];
        images[i].end = prompt->positions[i] + tokens[prompt->images[i]];
    }
    return OK;
}

/* Tokens of a prompt that need not be computed, thanks to the cache. */
static int32_t match_cached(const struct phase_work *work, const struct request_prompt *prompt,
    const struct cache_image *images, struct cache_key *keys) {
    const struct cache_space *space = &work->cache->space;
    int32_t blocks = prompt->tokens / space->block_tokens;
    cache_keys(space, prompt->token_ids, prompt->tokens, images, prompt->image_count, keys);
    int32_t hit = prompts_usable_hit(cache_match(work->cache->cache, keys, blocks), space, prompt->tokens);
    return hit > 0
               ? sequence_replay_begin(work->model, hit, prompt->tokens - work->replay.tail, &work->replay)
               : 0;
}

static enum result find_cached(
    const struct phase_work *work, const struct request_prompt *prompt, int32_t *cached) {
    *cached = 0;
    if (!work->cache->cache)
        return OK;
    size_t blocks = (size_t)(prompt->tokens / work->cache->space.block_tokens);
    struct cache_image *images = calloc((size_t)prompt->image_count + 1, sizeof *images);
    struct cache_key *keys = calloc(blocks + 1, sizeof *keys);
    enum result status = images && keys ? identify_images(work, prompt, images)
                                        : fail(ERROR_MEMORY, "out of memory for the keys of a prompt");
    if (status == OK)
        *cached = match_cached(work, prompt, images, keys);
    free(images);
    free(keys);
    return status;
}

/* Copies a prompt to where the request's token_ids point. Images are appended; image_count tells how many belong to it. */
static enum result gather_prompt(
    const struct phase_work *work, int64_t index, int32_t *token_ids, struct gathered *gathered) {
    struct plan_request *request = &gathered->requests[gathered->count];
    struct request_prompt prompt;
    TRY(requests_read_prompt(work->requests, index, &prompt));
    if (prompt.tokens != request->tokens)
        return fail(ERROR_INTERNAL, "request %lld has %d tokens, its length says %d", (long long)index,
            prompt.tokens, request->tokens);
    memcpy(token_ids, prompt.token_ids, (size_t)prompt.tokens * sizeof *token_ids);
    request->token_ids = token_ids;
    request->image_count = prompt.image_count;
    for (int32_t i = 0; i < prompt.image_count; i++) {
        const struct plan_image image = {prompt.images[i], prompt.positions[i]};
        TRY(vector_append(&gathered->images, &image, sizeof image));
    }
    return find_cached(work, &prompt, &request->cached_tokens);
}

static enum result gather_requests(
    const struct phase_work *work, const int32_t *lengths, struct gathered *gathered) {
    const int32_t *choices, *max_tokens;
    int32_t *token_ids = gathered->token_ids;
    TRY(requests_limits(work->requests, &choices, &max_tokens));
    for (int64_t i = 0; gathered->count < work->todo_count; i++) {
        if (!work->todo[i])
            continue;
        gathered->requests[gathered->count] = (struct plan_request){.request = i,
            .tokens = lengths[i],
            .answer_tokens = expect_answer(work, choices[i], max_tokens[i])};
        if (!has_run(work, i)) {
            TRY(gather_prompt(work, i, token_ids, gathered));
            token_ids += lengths[i];
        }
        gathered->count++;
    }
    const struct plan_image *images = gathered->images.data; /* it stays where it is now */
    for (int64_t i = 0; images && i < gathered->count; images += gathered->requests[i++].image_count)
        gathered->requests[i].images = images;
    return OK;
}

static enum result gather(const struct phase_work *work, struct gathered *gathered) {
    const int32_t *lengths;
    TRY(requests_lengths(work->requests, &lengths));
    size_t tokens = 0;
    for (int64_t i = 0, found = 0; found < work->todo_count; i++) {
        found += work->todo[i];
        tokens += work->todo[i] && !has_run(work, i) ? (size_t)lengths[i] : 0;
    }
    gathered->requests = malloc((size_t)work->todo_count * sizeof *gathered->requests + 1);
    gathered->token_ids = malloc(tokens * sizeof *gathered->token_ids + 1);
    if (!gathered->requests || !gathered->token_ids)
        return fail(ERROR_MEMORY, "out of memory for planning %lld requests with %zu tokens of prompts",
            (long long)work->todo_count, tokens);
    return gather_requests(work, lengths, gathered);
}

static void gathered_free(struct gathered *gathered) {
    free(gathered->requests);
    free(gathered->token_ids);
    vector_free(&gathered->images);
}

/* ---- making the plan ---- */

static void describe(const struct phase_plan *plan, const struct phase_work *work) {
    int64_t prompts = 0, shared = 0, cached = 0;
    for (int64_t i = 0; i < work->todo_count; i++) {
        const struct plan_entry *entry = &plan->entries[i];
        if (has_run(work, entry->request))
            continue;
        int32_t more = entry->cached_tokens - entry->shared;
        prompts += entry->tokens;
        shared += entry->shared;
        cached += more > 0 ? more : 0;
    }
    if (prompts > 0)
        log_info(
            "plan: of %lld prompt tokens %lld are shared with the prompt before on the same rank; %lld more "
            "are in the cache",
            (long long)prompts, (long long)shared, (long long)cached);
}

static enum result make_on_first_rank(struct phase_plan *plan, const struct phase_work *work) {
    struct gathered gathered = {0};
    enum result status = gather(work, &gathered);
    if (status == OK)
        status = plan_make(gathered.requests, gathered.count, plan->ranks->count, &guessed_costs,
            PLAN_FAMILIES, plan->entries, plan->first);
    gathered_free(&gathered);
    if (status == OK)
        describe(plan, work);
    return status;
}

static int32_t told_count(const struct phase_plan *plan) {
    return 3 * plan->ranks->count + STEP_COSTS_FIELDS;
}

static enum result allocate(struct phase_plan *plan, int64_t count) {
    size_t ranks = (size_t)plan->ranks->count;
    plan->entries = calloc((size_t)count + 1, sizeof *plan->entries);
    plan->first = calloc(ranks + 1, sizeof *plan->first);
    plan->told = calloc((size_t)told_count(plan), sizeof *plan->told);
    plan->busy = calloc(ranks, sizeof *plan->busy);
    return plan->entries && plan->first && plan->told && plan->busy
               ? OK
               : fail(ERROR_MEMORY, "out of memory for the plan of %lld requests", (long long)count);
}

enum result phase_plan_make(struct phase_plan *plan, struct ranks *ranks, const struct phase_work *work) {
    *plan = (struct phase_plan){.ranks = ranks};
    size_t bytes = (size_t)work->todo_count * sizeof *plan->entries;
    TRY(ranks_agree(ranks->world, allocate(plan, work->todo_count)));
    TRY(ranks_agree(ranks->world, ranks->rank == 0 ? make_on_first_rank(plan, work) : OK));
    TRY(group_broadcast(ranks->world, "start: the ranks' parts of the plan", 0, plan->first,
        ((size_t)ranks->count + 1) * sizeof *plan->first));
    if (bytes > 0)
        TRY(group_broadcast(ranks->world, "start: the plan", 0, plan->entries, bytes));
    return ranks_agree(ranks->world, queues_create(plan->entries, work->todo_count, plan->first, ranks->count,
                                         &guessed_costs, &plan->queues));
}

void phase_plan_free(struct phase_plan *plan) {
    queues_free(plan->queues);
    free(plan->entries);
    free(plan->first);
    free(plan->told);
    free(plan->busy);
    *plan = (struct phase_plan){0};
}

/* ---- while the phase runs ---- */

void phase_plan_next(struct phase_plan *plan, struct engine_work *work) {
    struct queue_next next;
    queues_take(plan->queues, plan->ranks->rank, LEAST_APART, &next);
    *work = (struct engine_work){.index = -1};
    if (!next.entry)
        return;
    work->index = next.entry->request;
    work->shared = next.shared;
    work->branch_count = next.branch_count;
    memcpy(work->branches, next.branches, sizeof work->branches);
}

int64_t phase_plan_left(const struct phase_plan *plan) {
    return queues_left(plan->queues, plan->ranks->rank);
}

/* One message holds what each rank has taken, whether it is hungry, its microseconds of work begun, and the sums of all on the cost of
 * steps. */
enum result phase_plan_balance(struct phase_plan *plan, bool is_hungry, double busy, int64_t *moved) {
    static const double microseconds = 1e6, most_seconds = 1e9;
    const struct ranks *ranks = plan->ranks;
    int32_t count = ranks->count, rank = ranks->rank;
    int64_t *taken = plan->told, *hungry = taken + count, *work = hungry + count, *costs = work + count;
    memset(plan->told, 0, (size_t)told_count(plan) * sizeof *plan->told);
    taken[rank] = queues_taken(plan->queues, rank);
    hungry[rank] = is_hungry;
    work[rank] = busy >= 0 && busy < most_seconds ? (int64_t)(busy * microseconds) : 0;
    memcpy(costs, &plan->costs, sizeof plan->costs);
    TRY(group_sum(ranks->world, "step: moving requests", plan->told, told_count(plan)));
    struct step_costs sums;
    memcpy(&sums, costs, sizeof sums);
    const struct plan_costs found = step_costs_solve(&sums, &guessed_costs);
    queues_set_costs(plan->queues, &found);
    for (int32_t i = 0; i < count; i++)
        plan->busy[i] = (double)work[i] / microseconds;
    TRY(queues_agree(plan->queues, taken, hungry, plan->busy, moved));
    if (*moved && rank == 0)
        log_verbose("plan: %lld requests moved to ranks without work", (long long)*moved);
    return OK;
}

/* Ranks step together, so that a step's tokens on all of them took its time on each. */
void phase_plan_step(struct phase_plan *plan, const struct engine_counts *world) {
    double now = monotonic_seconds();
    int64_t prompt = world->prompt_tokens - plan->counted.prompt_tokens;
    int64_t generated = world->generated_tokens - plan->counted.generated_tokens;
    if (plan->counted_at > 0)
        step_costs_add(&plan->costs, prompt, generated, (now - plan->counted_at) * plan->ranks->count);
    plan->counted = *world;
    plan->counted_at = now;
}

#include "bench/cases/simulation.h"

#include "base/clock.h"

#include <stdlib.h> /* calloc, realloc */

enum {
    READS_A_STEP = 64,     /* as in schedule/admission.c */
    MOST_STEPS_AHEAD = 16, /* there, too */
    STEPS_AFTER_NONE = 16, /* without another try, as in schedule/engine.c */
    LEAST_SHARED = 32      /* tokens between beginnings that are kept, as in schedule/prompts.c */
};

/* A prompt, or a beginning of prompts that is computed for several (see schedule/prompts.h). */
struct unit {
    int32_t begin, end, done;       /* its own tokens */
    int64_t parent;                 /* the unit that it goes on from, -1: none */
    bool is_ready;                  /* its end was reached in an earlier step */
    bool is_done;                   /* in this step it is */
    const struct plan_entry *entry; /* NULL: a beginning */
};

struct decoding {
    const struct plan_entry *entry;
    int32_t left; /* tokens to be generated */
    int64_t context;
};

struct rank {
    struct unit *units; /* [unit_count], all there ever were */
    int64_t unit_count, unit_capacity;
    int64_t first_unit;         /* those before have ended */
    int64_t deepest;            /* open beginning, each goes on from another or none; -1 */
    int64_t prompt_left;        /* tokens of units to be run */
    int32_t prompts;            /* in work */
    struct decoding *sequences; /* [batch] */
    int32_t sequence_count;
    int32_t *seen_tokens;   /* [conversations] of its prompts that were taken here, with is_cached */
    uint8_t *seen_systems;  /* [systems] */
    struct queue_next held; /* taken, but there is no room yet: entry NULL when none */
    double busy;
};

struct world {
    const struct simulation *s;
    struct plan_request *requests; /* [count] */
    struct plan_entry *entries;    /* [count] */
    int64_t *first;                /* [ranks + 1] */
    int32_t **prompts;             /* [count] */
    uint8_t *runs;                 /* [count]: how often each has ended */
    struct plan_costs costs;
    struct queues *queues;
    struct rank *ranks;
    int32_t wait;            /* steps until moving is tried again */
    int64_t *taken, *hungry; /* [ranks] */
    double *estimates;       /* [ranks] */
    struct simulated out;
};

/* ---- the plan ---- */

/* Seconds of a token where steps are full: what a run measures of itself. */
static struct plan_costs plan_costs_of(const struct simulation *s) {
    return (struct plan_costs){.prompt_token = s->costs.prompt_token + s->costs.step / s->step_tokens,
        .answer_token = s->costs.sequence + s->costs.step / s->batch};
}

/* What a launch before would have seen: nothing of the single request but what it allows. */
static int32_t expected_answer(const struct traffic_request *r, double mean) {
    return r->max_tokens < (int32_t)mean ? r->max_tokens : (int32_t)mean;
}

static double mean_answer(const struct traffic *traffic) {
    double sum = 0;
    for (int64_t i = 0; i < traffic->count; i++)
        sum += traffic->requests[i].answer_tokens;
    return traffic->count ? sum / (double)traffic->count : 0;
}

static enum result describe_requests(struct world *w) {
    const struct traffic *traffic = w->s->traffic;
    double mean = mean_answer(traffic);
    for (int64_t i = 0; i < traffic->count; i++) {
        const struct traffic_request *r = &traffic->requests[i];
        w->requests[i] = (struct plan_request){.request = i,
            .tokens = r->prompt_tokens,
            .answer_tokens = w->s->phase == SIMULATED_PREFILL ? 0 : expected_answer(r, mean)};
        if (w->s->phase == SIMULATED_DECODE)
            continue;
        w->prompts[i] = malloc((size_t)r->prompt_tokens * sizeof **w->prompts);
        if (!w->prompts[i])
            return fail(ERROR_MEMORY, "out of memory for %lld prompts", (long long)traffic->count);
        traffic_prompt(traffic, i, w->prompts[i]);
        w->requests[i].token_ids = w->prompts[i];
    }
    return OK;
}

static enum result make_plan(struct world *w) {
    TRY(describe_requests(w));
    double begin = wall_clock();
    TRY(plan_make(
        w->requests, w->s->traffic->count, w->s->ranks, &w->costs, w->s->placement, w->entries, w->first));
    w->out.plan_seconds = wall_clock() - begin;
    return queues_create(w->entries, w->s->traffic->count, w->first, w->s->ranks, &w->costs, &w->queues);
}

/* ---- taking requests ---- */

static enum result add_unit(
    struct world *w, struct rank *rank, int64_t parent, int32_t end, const struct plan_entry *entry) {
    if (rank->unit_count == rank->unit_capacity) {
        int64_t capacity = rank->unit_capacity ? 2 * rank->unit_capacity : 256;
        struct unit *units = realloc(rank->units, (size_t)capacity * sizeof *units);
        if (!units)
            return fail(ERROR_MEMORY, "out of memory for %lld prompts of a rank", (long long)capacity);
        rank->units = units;
        rank->unit_capacity = capacity;
    }
    int32_t begin = parent < 0 ? 0 : rank->units[parent].end;
    rank->units[rank->unit_count++] =
        (struct unit){.end = end, .done = begin, .parent = parent, .entry = entry};
    rank->prompt_left += end - begin;
    w->out.prompt_tokens += end - begin;
    return OK;
}

/* The longest open beginning that leaves a prompt of `tokens` tokens something to run, -1: none. */
static int64_t longest_below(const struct rank *rank, int32_t tokens) {
    int64_t unit = rank->deepest;
    while (unit >= 0 && rank->units[unit].end >= tokens)
        unit = rank->units[unit].parent;
    return unit;
}

/* The beginnings at its branches first, then the prompt from the longest of them on. */
static enum result admit_prompt(struct world *w, struct rank *rank, const struct queue_next *next) {
    const int32_t tokens = next->entry->tokens;
    while (rank->deepest >= 0 && rank->units[rank->deepest].end > next->shared)
        rank->deepest = rank->units[rank->deepest].parent;
    for (int32_t i = 0; i < next->branch_count; i++) {
        int32_t held = rank->deepest < 0 ? 0 : rank->units[rank->deepest].end;
        int32_t branch = next->branches[i] < tokens - 1 ? next->branches[i] : tokens - 1;
        if (branch < held + LEAST_SHARED)
            continue;
        TRY(add_unit(w, rank, rank->deepest, branch, NULL));
        rank->deepest = rank->unit_count - 1;
    }
    return add_unit(w, rank, longest_below(rank, tokens), tokens, next->entry);
}

/* What earlier prompts of the rank have in common with one: its conversation, its system text or the template. */
static enum result admit_cached_prompt(struct world *w, struct rank *rank, const struct plan_entry *entry) {
    const struct traffic_request *r = &w->s->traffic->requests[entry->request];
    int32_t known = rank->unit_count ? TRAFFIC_TEMPLATE : 0;
    if (r->system >= 0 && rank->seen_systems[r->system])
        known = r->system_end;
    if (r->system >= 0)
        rank->seen_systems[r->system] = 1;
    if (rank->seen_tokens[r->conversation] > known)
        known = rank->seen_tokens[r->conversation];
    known = known < r->prompt_tokens ? known : r->prompt_tokens - 1;
    if (rank->seen_tokens[r->conversation] < r->prompt_tokens)
        rank->seen_tokens[r->conversation] = r->prompt_tokens;
    TRY(add_unit(w, rank, -1, r->prompt_tokens, entry));
    rank->units[rank->unit_count - 1].done = known;
    rank->prompt_left -= known;
    w->out.prompt_tokens -= known;
    return OK;
}

static void admit_sequence(const struct world *w, struct rank *rank, const struct plan_entry *entry) {
    const struct traffic_request *r = &w->s->traffic->requests[entry->request];
    rank->sequences[rank->sequence_count++] =
        (struct decoding){.entry = entry, .left = r->answer_tokens, .context = r->prompt_tokens};
}

static bool is_runnable(const struct rank *rank, const struct unit *unit) {
    return unit->done < unit->end && (unit->parent < 0 || rank->units[unit->parent].is_ready);
}

/* Prompts that wait for a beginning do not count. */
static bool fills_step(const struct world *w, const struct rank *rank) {
    int64_t tokens = 0;
    for (int64_t u = rank->first_unit; u < rank->unit_count && tokens < w->s->step_tokens; u++)
        if (is_runnable(rank, &rank->units[u]))
            tokens += rank->units[u].end - rank->units[u].done;
    return tokens >= w->s->step_tokens;
}

static bool has_room(const struct world *w, const struct rank *rank) {
    if (w->s->phase == SIMULATED_PREFILL)
        return !fills_step(w, rank) && rank->prompt_left < (int64_t)MOST_STEPS_AHEAD * w->s->step_tokens;
    return rank->prompts + rank->sequence_count < w->s->batch;
}

static enum result fill(struct world *w, int32_t index) {
    struct rank *rank = &w->ranks[index];
    for (int reads = 0; reads < READS_A_STEP; reads++) {
        if (!rank->held.entry)
            queues_take(w->queues, index, LEAST_SHARED, &rank->held);
        if (!rank->held.entry || !has_room(w, rank))
            return OK;
        if (w->s->phase == SIMULATED_DECODE)
            admit_sequence(w, rank, rank->held.entry);
        else if (w->s->is_cached)
            TRY(admit_cached_prompt(w, rank, rank->held.entry));
        else
            TRY(admit_prompt(w, rank, &rank->held));
        rank->prompts += w->s->phase != SIMULATED_DECODE;
        rank->held.entry = NULL;
    }
    return OK;
}

/* ---- a step ---- */

struct room {
    int32_t tokens, upper;
};

static void end_request(struct world *w, const struct plan_entry *entry) {
    w->runs[entry->request]++;
}

/* What a prompt's part adds to a step; a request's last token waits where the upper layers have no room for its tail. */
static int32_t cut_chunk(const struct world *w, const struct unit *unit, struct room *room, bool *ends) {
    int32_t left = unit->end - unit->done, count = left < room->tokens ? left : room->tokens;
    int32_t upper = unit->end < w->s->tail ? unit->end : w->s->tail;
    *ends = count == left && unit->entry;
    if (*ends && upper > room->upper) {
        *ends = false;
        count--;
    }
    room->tokens -= count;
    room->upper -= *ends ? upper : 0;
    return count;
}

static void run_sequences(
    struct world *w, struct rank *rank, struct room *room, struct step_content *content) {
    int32_t kept = 0;
    room->tokens -= rank->sequence_count;
    room->upper -= rank->sequence_count;
    for (int32_t i = 0; i < rank->sequence_count; i++) {
        struct decoding *sequence = &rank->sequences[i];
        content->sequences++;
        content->positions += (double)sequence->context++;
        w->out.generated_tokens++;
        if (--sequence->left > 0)
            rank->sequences[kept++] = *sequence;
        else
            end_request(w, sequence->entry);
    }
    rank->sequence_count = kept;
}

/* A prompt has ended: its first token is drawn, and in a run it goes on decoding. */
static void end_prompt(struct world *w, struct rank *rank, const struct unit *unit) {
    const struct traffic_request *r = &w->s->traffic->requests[unit->entry->request];
    rank->prompts--;
    w->out.generated_tokens++;
    if (w->s->phase == SIMULATED_PREFILL || r->answer_tokens == 1) {
        end_request(w, unit->entry);
        return;
    }
    rank->sequences[rank->sequence_count++] =
        (struct decoding){.entry = unit->entry, .left = r->answer_tokens - 1, .context = r->prompt_tokens};
}

/* Beginnings that several share go first, as in the engine. */
static void run_units(
    struct world *w, struct rank *rank, bool of_requests, struct room *room, struct step_content *content) {
    for (int64_t u = rank->first_unit; u < rank->unit_count && room->tokens > 0; u++) {
        struct unit *unit = &rank->units[u];
        if ((unit->entry != NULL) != of_requests || !is_runnable(rank, unit))
            continue;
        bool ends;
        int32_t count = cut_chunk(w, unit, room, &ends);
        content->prompt_tokens += count;
        content->positions += (double)count * unit->done + 0.5 * count * (count - 1);
        content->prompt_ends += ends;
        unit->done += count;
        rank->prompt_left -= count;
        unit->is_done = unit->done == unit->end;
        if (ends)
            end_prompt(w, rank, unit);
    }
}

/* What has ended in this step may be gone on from in the next one. */
static void end_units(struct rank *rank) {
    for (int64_t u = rank->first_unit; u < rank->unit_count; u++)
        rank->units[u].is_ready |= rank->units[u].is_done;
    while (rank->first_unit < rank->unit_count && rank->units[rank->first_unit].is_ready)
        rank->first_unit++;
}

static double run_step(struct world *w, struct rank *rank) {
    struct room room = {w->s->step_tokens, w->s->step_tokens};
    struct step_content content = {0};
    run_sequences(w, rank, &room, &content);
    run_units(w, rank, false, &room, &content);
    run_units(w, rank, true, &room, &content);
    end_units(rank);
    double seconds = step_seconds(&w->s->costs, &content);
    rank->busy += seconds;
    return seconds;
}

/* ---- moving requests ---- */

/* Seconds of what a rank has begun, as it would estimate them itself: nobody knows how long answers get. */
static double estimate(const struct world *w, const struct rank *rank) {
    return (double)rank->prompt_left * w->costs.prompt_token;
}

static enum result move(struct world *w) {
    bool any_hungry = false, any_left = false;
    for (int32_t r = 0; r < w->s->ranks; r++) {
        const struct rank *rank = &w->ranks[r];
        int64_t left = queues_left(w->queues, r);
        w->taken[r] = queues_taken(w->queues, r);
        w->hungry[r] = left == 0 && !rank->held.entry && has_room(w, rank) && !fills_step(w, rank);
        w->estimates[r] = estimate(w, rank);
        any_hungry |= w->hungry[r] != 0;
        any_left |= left > 0;
    }
    if (!any_hungry || !any_left || w->wait-- > 0)
        return OK;
    int64_t moved = 0;
    TRY(queues_agree(w->queues, w->taken, w->hungry, w->estimates, &moved));
    w->out.moved += moved;
    w->wait = moved ? 0 : STEPS_AFTER_NONE;
    return OK;
}

/* ---- the run ---- */

static bool has_work(const struct world *w) {
    for (int32_t r = 0; r < w->s->ranks; r++)
        if (w->ranks[r].sequence_count || w->ranks[r].prompts || w->ranks[r].held.entry ||
            queues_left(w->queues, r))
            return true;
    return false;
}

static enum result run_all(struct world *w) {
    while (has_work(w)) {
        double slowest = 0;
        for (int32_t r = 0; r < w->s->ranks; r++)
            TRY(fill(w, r));
        for (int32_t r = 0; r < w->s->ranks; r++) {
            double seconds = run_step(w, &w->ranks[r]);
            slowest = seconds > slowest ? seconds : slowest;
        }
        if (slowest == 0)
            return fail(
                ERROR_INTERNAL, "step %lld: nothing ran, but requests are left", (long long)w->out.steps);
        w->out.total += slowest;
        w->out.steps++;
        if (w->s->moves)
            TRY(move(w));
    }
    return OK;
}

static enum result check_all(const struct world *w) {
    int64_t generated = 0, count = w->s->traffic->count;
    for (int64_t i = 0; i < count; i++) {
        if (w->runs[i] != 1)
            return fail(
                ERROR_INTERNAL, "request %lld of the trace was run %d times", (long long)i, w->runs[i]);
        generated += w->s->traffic->requests[i].answer_tokens;
    }
    if (w->s->phase == SIMULATED_PREFILL)
        generated = count;
    if (generated != w->out.generated_tokens)
        return fail(ERROR_INTERNAL, "%lld tokens were generated, the trace has %lld",
            (long long)w->out.generated_tokens, (long long)generated);
    return OK;
}

static void sum_up(struct world *w) {
    for (int32_t r = 0; r < w->s->ranks; r++) {
        double busy = w->ranks[r].busy;
        w->out.busy_mean += busy / w->s->ranks;
        w->out.busy_most = busy > w->out.busy_most ? busy : w->out.busy_most;
    }
}

static enum result allocate(struct world *w) {
    size_t count = (size_t)w->s->traffic->count + 1, ranks = (size_t)w->s->ranks;
    w->requests = calloc(count, sizeof *w->requests);
    w->entries = calloc(count, sizeof *w->entries);
    w->prompts = calloc(count, sizeof *w->prompts);
    w->runs = calloc(count, sizeof *w->runs);
    w->first = calloc(ranks + 1, sizeof *w->first);
    w->ranks = calloc(ranks, sizeof *w->ranks);
    w->taken = calloc(ranks, sizeof *w->taken);
    w->hungry = calloc(ranks, sizeof *w->hungry);
    w->estimates = calloc(ranks, sizeof *w->estimates);
    bool complete = w->requests && w->entries && w->prompts && w->runs && w->first && w->ranks && w->taken &&
                    w->hungry && w->estimates;
    for (size_t r = 0; complete && r < ranks; r++) {
        w->ranks[r].deepest = -1;
        w->ranks[r].sequences = calloc((size_t)w->s->batch, sizeof *w->ranks[r].sequences);
        w->ranks[r].seen_tokens =
            calloc((size_t)w->s->traffic->conversations + 1, sizeof *w->ranks[r].seen_tokens);
        w->ranks[r].seen_systems =
            calloc((size_t)w->s->traffic->systems + 1, sizeof *w->ranks[r].seen_systems);
        complete = w->ranks[r].sequences && w->ranks[r].seen_tokens && w->ranks[r].seen_systems;
    }
    if (!complete)
        return fail(
            ERROR_MEMORY, "out of memory for a simulation of %zu requests on %zu ranks", count, ranks);
    return OK;
}

static void free_world(struct world *w) {
    for (int64_t i = 0; w->prompts && i < w->s->traffic->count; i++)
        free(w->prompts[i]);
    for (int32_t r = 0; w->ranks && r < w->s->ranks; r++) {
        free(w->ranks[r].units);
        free(w->ranks[r].sequences);
        free(w->ranks[r].seen_tokens);
        free(w->ranks[r].seen_systems);
    }
    queues_free(w->queues);
    free(w->requests);
    free(w->entries);
    free(w->prompts);
    free(w->runs);
    free(w->first);
    free(w->ranks);
    free(w->taken);
    free(w->hungry);
    free(w->estimates);
}

enum result simulate(const struct simulation *simulation, struct simulated *simulated) {
    struct world w = {.s = simulation, .costs = plan_costs_of(simulation)};
    enum result status = OK;
    TRY_GOTO(status, allocate(&w), done);
    TRY_GOTO(status, make_plan(&w), done);
    TRY_GOTO(status, run_all(&w), done);
    TRY_GOTO(status, check_all(&w), done);
    sum_up(&w);
    *simulated = w.out;
done:
    free_world(&w);
    return status;
}

#include "schedule/engine.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/stopwatch.h"
#include "schedule/admission.h"
#include "schedule/choices.h"
#include "schedule/saving.h"

#include <stdlib.h> /* calloc, realloc */
#include <string.h> /* memcpy */

/* A token to be sampled after the step: for which choice. */
struct draw {
    struct active_request *active;
    int32_t choice;
};

/* The part of a request in a step. */
struct span_use {
    struct active_request *active; /* NULL: a prefix of several */
    int32_t choice;                /* -1: its prompt */
    struct prompt *prompt;         /* NULL: a choice */
    struct prefix *prefix;         /* whose prompt it is */
};

/* A step: being made, or on its way through one of the model's lanes. */
struct engine_step {
    int32_t lane;
    bool in_flight;
    int32_t span_count;
    struct span *spans;    /* [most_spans] */
    struct span_use *uses; /* [most_spans] */
    int32_t draw_count, draw_capacity;
    struct draw *draws;             /* [draw_capacity], as the next two */
    struct token_draw *token_draws; /* what the model is asked for */
    struct sampled_token *tokens;
};

enum { MOST_STEPS = 2 };

struct engine {
    const struct engine_options *options;
    const struct engine_sink *sink;
    struct engine_counts own, world;
    struct admission admission;
    int32_t most_spans;
    int32_t lanes;
    struct engine_step steps[MOST_STEPS], *step; /* `step`: the one that is worked on */
    double begun, stepped;                       /* wall_clock(): at the begin, at the end of the last step */
    double prompt_seconds;                       /* spent on prompts */
    const struct engine_source *source;
    bool is_uneven;       /* some ranks are hungry, and others have requests left; the same on all */
    int32_t balance_wait; /* turns until moving requests is tried again */
};

/* ---- life ---- */

static enum result check_options(const struct engine_options *options, int32_t tail) {
    const struct model_options *of_model = model_options(options->model);
    if (options->batch < 1 || options->step_tokens < 1 || options->step_tokens > of_model->step_tokens)
        return fail(ERROR_USAGE,
            "a batch of %d sequences with %d tokens a step does not fit the model's step of %d tokens",
            options->batch, options->step_tokens, of_model->step_tokens);
    if (options->phase != ENGINE_DECODE && options->step_tokens < tail)
        return fail(ERROR_USAGE,
            "--step-tokens %d is less than the %d tokens at a prompt's end that all layers run on: "
            "give at least %d, or --all-layers",
            options->step_tokens, tail, tail);
    return OK;
}

static enum result engine_begin(struct engine *engine, const struct engine_options *options,
    const struct engine_source *source, const struct engine_sink *sink) {
    *engine = (struct engine){
        .options = options, .sink = sink, .begun = wall_clock(), .stepped = wall_clock(), .source = source};
    admission_begin(&engine->admission, options, source, sink, &engine->own);
    TRY(check_options(options, engine->admission.tail));
    const struct model_options *of_model = model_options(options->model);
    engine->most_spans =
        options->step_tokens < of_model->step_sequences ? options->step_tokens : of_model->step_sequences;
    engine->lanes = model_lanes(options->model);
    if (engine->lanes > MOST_STEPS)
        engine->lanes = MOST_STEPS;
    size_t spans = (size_t)engine->most_spans;
    for (int32_t i = 0; i < engine->lanes; i++) {
        struct engine_step *step = &engine->steps[i];
        step->lane = i;
        step->spans = calloc(spans, sizeof *step->spans);
        step->uses = calloc(spans, sizeof *step->uses);
        if (!step->spans || !step->uses)
            return fail(ERROR_MEMORY, "out of memory for a step of %zu sequences: lower --batch", spans);
    }
    return OK;
}

static void engine_end(struct engine *engine) {
    for (int32_t i = 0; i < engine->lanes; i++) {
        struct engine_step *step = &engine->steps[i];
        /* After a failure: what it computes is dropped, but its memory must not go while it runs. */
        if (step->in_flight && model_step_end(engine->options->model, step->lane) != OK)
            log_error("%s", failure_message());
        free(step->spans);
        free(step->uses);
        free(step->draws);
        free(step->token_draws);
        free(step->tokens);
    }
    admission_end(&engine->admission);
}

/* ---- making a step ---- */

/* What a step may still take. */
struct step_room {
    int32_t tokens; /* run by the lower layers */
    int32_t upper;  /* run by the layers above the last kv source */
};

static void add_span(
    struct engine *engine, struct step_room *room, const struct span *span, const struct span_use *use) {
    struct engine_step *step = engine->step;
    room->tokens -= span->count;
    room->upper -= span_upper_tokens(span);
    step->spans[step->span_count] = *span;
    step->uses[step->span_count] = *use;
    step->span_count++;
    if (!use->prompt) {
        use->active->choices[use->choice].in_step = true;
        return;
    }
    use->prompt->in_step = true;
    engine->admission.prompts.left -= prompt_rest(use->prompt);
}

/* What the step held back from other lanes' steps is theirs again. */
static void release_spans(struct engine *engine) {
    const struct engine_step *step = engine->step;
    for (int32_t i = 0; i < step->span_count; i++) {
        const struct span_use *use = &step->uses[i];
        if (!use->prompt) {
            use->active->choices[use->choice].in_step = false;
            continue;
        }
        use->prompt->in_step = false;
        engine->admission.prompts.left += prompt_rest(use->prompt);
    }
}

static void add_decoding(struct engine *engine, struct step_room *room) {
    int32_t batch = engine->options->batch, lanes = engine->lanes;
    int32_t left = batch / lanes + (engine->step->lane < batch % lanes);
    for (struct active_request *active = engine->admission.first; active; active = active->next) {
        for (int32_t i = 0; active->decoding && i < active->choice_count; i++) {
            struct choice *choice = &active->choices[i];
            if (choice->finished || choice->in_step)
                continue;
            if (left == 0 || room->tokens == 0 || engine->step->span_count == engine->most_spans)
                return;
            const struct span span = {.sequence = choice->sequence,
                .ids = &choice->token_ids[choice->count - 1],
                .count = 1,
                .logits = 1};
            add_span(engine, room, &span, &(struct span_use){.active = active, .choice = i});
            left--;
        }
    }
}

/* As much of the prompt as there is room for. Its end also runs the tail through the upper layers; when
 * that does not fit any more, one token is left for a later step. A prefix has no such end. */
static bool cut_chunk(const struct engine *engine, const struct prompt *prompt, bool is_prefix,
    struct step_room room, struct span *span) {
    int32_t left = prompt_rest(prompt);
    *span = (struct span){.sequence = prompt->sequence,
        .ids = prompt->request->token_ids + prompt->done,
        .count = left < room.tokens ? left : room.tokens,
        .tail = engine->admission.tail};
    if (prompt->embeddings)
        span->embeddings =
            prompt->embeddings + prompt->embeddings_done * model_config(engine->options->model)->hidden_size;
    if (span->count == left && !is_prefix) {
        span->last = true;
        span->logits = 1;
        if (span_upper_tokens(span) > room.upper) {
            span->last = false;
            span->logits = 0;
            span->count--;
        }
    }
    return span->count > 0;
}

static bool is_full(const struct engine *engine, const struct step_room *room) {
    return room->tokens == 0 || engine->step->span_count == engine->most_spans;
}

static enum result add_prefixes(struct engine *engine, struct step_room *room) {
    for (struct prefix *prefix = engine->admission.prompts.first; prefix; prefix = prefix->next) {
        if (prefix->is_ready || prefix->prompt.in_step)
            continue;
        if (is_full(engine, room))
            return OK;
        bool can_run;
        struct span span;
        TRY(prompts_start_prefix(&engine->admission.prompts, prefix, &can_run));
        if (can_run && cut_chunk(engine, &prefix->prompt, true, *room, &span))
            add_span(engine, room, &span,
                &(struct span_use){.choice = -1, .prompt = &prefix->prompt, .prefix = prefix});
    }
    return OK;
}

static enum result add_prompts(struct engine *engine, struct step_room *room) {
    for (struct active_request *active = engine->admission.first; active; active = active->next) {
        if (active->decoding || active->prompt.in_step)
            continue;
        if (is_full(engine, room))
            return OK;
        bool can_run;
        struct span span;
        TRY(admission_start(&engine->admission, active, &can_run));
        if (can_run && cut_chunk(engine, &active->prompt, false, *room, &span))
            add_span(engine, room, &span,
                &(struct span_use){.active = active, .choice = -1, .prompt = &active->prompt});
    }
    return OK;
}

/* How many prompt tokens this rank can run until it stops by itself, at the speed it had so far. */
static int64_t prompt_budget(const struct engine *engine) {
    double now = wall_clock(), left = engine->options->stop_at - now, passed = now - engine->begun;
    if (engine->options->stop_at == 0 || (left > 0 && !engine->own.prompt_tokens))
        return INT64_MAX;
    return left <= 0 ? 0 : (int64_t)(left * (double)engine->own.prompt_tokens / passed);
}

static enum result prepare_step(struct engine *engine) {
    engine->admission.prompt_budget = prompt_budget(engine);
    TRY(admission_fill(&engine->admission));
    engine->step->span_count = 0;
    struct step_room room = {engine->options->step_tokens, engine->options->step_tokens};
    add_decoding(engine, &room);
    TRY(add_prefixes(engine, &room));
    return add_prompts(engine, &room);
}

/* ---- after a step ---- */

static enum result grow_draws(struct engine_step *step) {
    size_t capacity = step->draw_capacity ? 2 * (size_t)step->draw_capacity : 64;
    struct draw *draws = realloc(step->draws, capacity * sizeof *draws);
    if (draws)
        step->draws = draws;
    struct token_draw *token_draws = realloc(step->token_draws, capacity * sizeof *token_draws);
    if (token_draws)
        step->token_draws = token_draws;
    struct sampled_token *tokens = realloc(step->tokens, capacity * sizeof *tokens);
    if (tokens)
        step->tokens = tokens;
    if (!draws || !token_draws || !tokens)
        return fail(ERROR_MEMORY, "out of memory for sampling %zu tokens in a step", capacity);
    step->draw_capacity = (int32_t)capacity;
    return OK;
}

static enum result add_draw(
    struct engine *engine, struct active_request *active, int32_t index, int32_t row) {
    struct engine_step *step = engine->step;
    if (step->draw_count == step->draw_capacity)
        TRY(grow_draws(step));
    const struct choice *choice = &active->choices[index];
    step->draws[step->draw_count] = (struct draw){active, index};
    step->token_draws[step->draw_count++] = (struct token_draw){.row = row,
        .sampling = &active->request->sampling,
        .key = choice->key,
        .position = (int64_t)active->request->token_count + choice->count,
        .generated = choice->token_ids,
        .generated_count = choice->count,
        .allowed = constraint_mask(choice->constraint)};
    return OK;
}

/* Notes how far a prompt has come. */
static void advance_prompt(struct engine *engine, const struct span_use *use, const struct span *span) {
    int32_t image = model_config(engine->options->model)->image_token_id;
    struct prompt *prompt = use->prompt;
    prompt->done += span->count;
    for (int32_t t = 0; prompt->embeddings && t < span->count; t++)
        prompt->embeddings_done += span->ids[t] == image;
    if (prompt_rest(prompt) == 0) {
        prompt->embeddings = NULL;
        if (use->active) {
            free(use->active->embeddings);
            use->active->embeddings = NULL;
        }
    }
    engine->own.prompt_tokens += span->count;
}

/* The step has ended: rows of prompts that it has ended go to the cache, and their prefixes are ready. */
static enum result end_prompts(struct engine *engine) {
    const struct engine_step *step = engine->step;
    for (int32_t i = 0; i < step->span_count; i++) {
        const struct span_use *use = &step->uses[i];
        if (!use->prompt || prompt_rest(use->prompt))
            continue;
        TRY(prompts_ended(&engine->admission.prompts, use->prompt));
        if (use->prefix)
            use->prefix->is_ready = true;
        else
            use->active->cached_tokens = use->prompt->reused;
    }
    return OK;
}

/* Counts what the step ran and lists the tokens to sample. */
static enum result list_draws(struct engine *engine) {
    struct engine_step *step = engine->step;
    step->draw_count = 0;
    int32_t row = 0;
    for (int32_t i = 0; i < step->span_count; i++) {
        const struct span *span = &step->spans[i];
        struct active_request *active = step->uses[i].active;
        if (step->uses[i].choice >= 0) {
            TRY(add_draw(engine, active, step->uses[i].choice, row++));
            continue;
        }
        advance_prompt(engine, &step->uses[i], span);
        if (!span->logits)
            continue;
        for (int32_t choice = 0; choice < active->choice_count; choice++)
            TRY(add_draw(engine, active, choice, row));
        row++;
    }
    return OK;
}

/* The constraints of one part of the step that end in draws; NULL past the last. */
static struct constraint *constraint_of(const struct engine_step *step, int32_t span, int32_t index) {
    const struct span_use *use = &step->uses[span];
    if (use->choice >= 0)
        return index == 0 ? use->active->choices[use->choice].constraint : NULL;
    return step->spans[span].logits && index < use->active->choice_count
               ? use->active->choices[index].constraint
               : NULL;
}

/* Finds out, while a device computes the step, which tokens may come of it: the choices of a request are all held or none. */
static void make_masks(const struct engine *engine) {
    const struct engine_step *step = engine->step;
    bool is_held = false;
    for (int32_t i = 0; i < step->span_count && !is_held; i++)
        is_held = constraint_of(step, i, 0) != NULL;
    if (!is_held)
        return;
    enum work_part before = stopwatch_switch(WORK_SAMPLING);
#pragma omp parallel for num_threads(engine->options->ranks->threads) schedule(dynamic)
    for (int32_t i = 0; i < step->span_count; i++)
        for (int32_t k = 0; constraint_of(step, i, k); k++)
            constraint_make_mask(constraint_of(step, i, k));
    (void)stopwatch_switch(before);
}

/* Learns what a prompt's token costs: of the time since the last step prompts get their share, a generated token counting twice, for it runs
 * through all layers. */
static void learn_cost(struct engine *engine) {
    const struct engine_step *step = engine->step;
    double now = wall_clock(), prompt = 0, generated = 0;
    for (int32_t i = 0; i < step->span_count; i++)
        *(step->uses[i].prompt ? &prompt : &generated) += step->spans[i].count;
    if (prompt > 0)
        engine->prompt_seconds += (now - engine->stepped) * prompt / (prompt + 2 * generated);
    engine->stepped = now;
    if (engine->own.prompt_tokens)
        engine->admission.prompts.seconds_a_token =
            engine->prompt_seconds / (double)engine->own.prompt_tokens;
}

/* Draws the step's tokens, which waits for its end. */
static enum result sample(struct engine *engine) {
    struct engine_step *step = engine->step;
    int32_t failed = 0;
    enum result status = model_sample(
        engine->options->model, step->lane, step->token_draws, step->draw_count, step->tokens, &failed);
    if (status == OK || !step->draw_count)
        return status;
    const struct active_request *active = step->draws[failed].active;
    return fail_context(status, "request %lld (%.*s)", (long long)active->index,
        (int)active->request->custom_id.bytes, active->request->custom_id.data);
}

static struct generated_token describe_token(const struct sampled_token *token) {
    return (struct generated_token){
        .id = token->id,
        .logprob = token->logprob,
        .top_logprobs = token->top_logprobs,
        .top_ids = token->top_ids,
        .top_values = token->top_values,
    };
}

static enum result draw_token(struct engine *engine, int32_t index) {
    const struct draw *draw = &engine->step->draws[index];
    const struct generated_token token = describe_token(&engine->step->tokens[index]);
    struct choice *choice = &draw->active->choices[draw->choice];
    TRY(choice_add(choice, &engine->admission.rules, draw->active->request, draw->active->stops, &token));
    if (admission_fault(draw->active))
        choice->finished = true; /* and so will be the others with their next tokens */
    return OK;
}

/* ENGINE_PREFILL: saves the state of a prompt that has ended, with its choices' first tokens. */
static enum result save_prompt(struct engine *engine, int32_t first, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        TRY(draw_token(engine, first + i));
    engine->own.generated_tokens += count;
    const struct active_request *active = engine->step->draws[first].active;
    if (admission_fault(active))
        return admission_answer(&engine->admission, active);
    TRY(saving_send(engine->options->model, engine->sink, active));
    engine->own.finished++;
    return OK;
}

static enum result add_token(struct engine *engine, int32_t index) {
    const struct draw *draw = &engine->step->draws[index];
    struct active_request *active = draw->active;
    struct choice *choice = &active->choices[draw->choice];
    TRY(draw_token(engine, index));
    engine->own.generated_tokens++;
    return choice->finished ? admission_choice_finished(&engine->admission, active, choice) : OK;
}

/* The draws of a prompt's end stand together, one for each choice. */
static enum result end_prompt(struct engine *engine, int32_t first, int32_t count) {
    struct active_request *active = engine->step->draws[first].active;
    active->decoding = true;
    if (engine->options->phase == ENGINE_PREFILL)
        return save_prompt(engine, first, count);
    for (int32_t i = 0; i < count; i++)
        TRY(add_token(engine, first + i));
    return admission_fork(&engine->admission, active);
}

static enum result hand_out_tokens(struct engine *engine) {
    const struct engine_step *step = engine->step;
    for (int32_t i = 0; i < step->draw_count;) {
        struct active_request *active = step->draws[i].active;
        bool prompt_end = !active->decoding;
        int32_t count = prompt_end ? active->choice_count : 1;
        TRY(prompt_end ? end_prompt(engine, i, count) : add_token(engine, i));
        if (active->unfinished == 0)
            TRY(admission_answer(&engine->admission, active));
        i += count;
    }
    return OK;
}

/* Waits for the step that is on its way and hands out what came of it. */
static enum result take_outcomes(struct engine *engine) {
    struct engine_step *step = engine->step;
    TRY(list_draws(engine));
    (void)stopwatch_switch(WORK_SAMPLING);
    enum result status = sample(engine);
    (void)stopwatch_switch(WORK_SCHEDULING);
    step->in_flight = false;
    release_spans(engine);
    enum result ended = model_step_end(engine->options->model, step->lane);
    TRY(status);
    TRY(ended);
    learn_cost(engine);
    TRY(end_prompts(engine));
    TRY(hand_out_tokens(engine));
    admission_drop_finished(&engine->admission);
    engine->own.steps++;
    engine->own.sequences = step->span_count;
    return OK;
}

/* ---- the loop ---- */

/* What every rank tells the others before a step. */
enum agreed_value {
    AGREED_WORK,
    AGREED_LEFT,
    AGREED_STOP,
    AGREED_ERROR,
    AGREED_PROMPT_TOKENS,
    AGREED_GENERATED_TOKENS,
    AGREED_FINISHED,
    AGREED_FAILED,
    AGREED_WAITING,
    AGREED_SEQUENCES,
    AGREED_KV_RESERVED,
    AGREED_KV_BLOCKS,
    AGREED_SHARED_TOKENS,
    AGREED_CACHED_TOKENS,
    AGREED_REPLAYED_TOKENS,
    AGREED_SAVED_MILLISECONDS,
    AGREED_CACHE_HITS,
    AGREED_CACHE_BYTES = AGREED_CACHE_HITS + CACHE_TIERS,
    AGREED_HUNGRY = AGREED_CACHE_BYTES + CACHE_TIERS,
    AGREED_QUEUED,
    AGREED_VALUES
};

static bool wants_stop(const struct engine *engine) {
    double stop_at = engine->options->stop_at;
    return signals_stop_requested() || (stop_at > 0 && wall_clock() >= stop_at);
}

/* What was not computed, and what the cache has done so far. */
static void count_saved(struct engine *engine) {
    struct engine_counts *own = &engine->own;
    own->saved_milliseconds =
        (int64_t)(1000 * engine->admission.prompts.seconds_a_token *
                  (double)(own->shared_tokens + own->cached_tokens - own->replayed_tokens));
    if (!engine->options->cache)
        return;
    struct cache_counts counts;
    cache_counts(engine->options->cache, &counts);
    for (int tier = 0; tier < CACHE_TIERS; tier++) {
        bool is_counted = tier == CACHE_TIER_MEMORY || engine->options->ranks->rank == 0;
        own->cache_hits[tier] = counts.tiers[tier].hits;
        own->cache_bytes[tier] = is_counted ? counts.tiers[tier].bytes : 0;
    }
}

/* *go_on: whether any rank has work and none asks for a stop; *stopped: whether work is left when not. */
static enum result agree(struct engine *engine, enum result own, bool *go_on, bool *stopped) {
    const struct engine_counts *counts = &engine->own;
    count_saved(engine);
    int64_t values[AGREED_VALUES] = {
        [AGREED_WORK] = own == OK && admission_has_work(&engine->admission),
        [AGREED_LEFT] = own == OK && admission_leaves_work(&engine->admission),
        [AGREED_STOP] = wants_stop(engine),
        [AGREED_ERROR] = own != OK,
        [AGREED_PROMPT_TOKENS] = counts->prompt_tokens,
        [AGREED_GENERATED_TOKENS] = counts->generated_tokens,
        [AGREED_FINISHED] = counts->finished,
        [AGREED_FAILED] = counts->failed,
        [AGREED_WAITING] = counts->waiting,
        [AGREED_SEQUENCES] = counts->sequences,
        [AGREED_KV_RESERVED] = engine->admission.blocks_reserved,
        [AGREED_KV_BLOCKS] = engine->admission.blocks_total,
        [AGREED_SHARED_TOKENS] = counts->shared_tokens,
        [AGREED_CACHED_TOKENS] = counts->cached_tokens,
        [AGREED_REPLAYED_TOKENS] = counts->replayed_tokens,
        [AGREED_SAVED_MILLISECONDS] = counts->saved_milliseconds,
        [AGREED_HUNGRY] = own == OK && admission_is_hungry(&engine->admission),
        [AGREED_QUEUED] = own == OK ? engine->source->left(engine->source->context) : 0,
    };
    memcpy(values + AGREED_CACHE_HITS, counts->cache_hits, sizeof counts->cache_hits);
    memcpy(values + AGREED_CACHE_BYTES, counts->cache_bytes, sizeof counts->cache_bytes);
    struct group *world = engine->options->ranks->world;
    TRY(group_sum(world, "step: work left", values, AGREED_VALUES));
    engine->world = (struct engine_counts){
        .steps = counts->steps,
        .prompt_tokens = values[AGREED_PROMPT_TOKENS],
        .generated_tokens = values[AGREED_GENERATED_TOKENS],
        .finished = values[AGREED_FINISHED],
        .failed = values[AGREED_FAILED],
        .waiting = values[AGREED_WAITING],
        .sequences = values[AGREED_SEQUENCES],
        .kv_reserved = values[AGREED_KV_RESERVED],
        .kv_blocks = values[AGREED_KV_BLOCKS],
        .shared_tokens = values[AGREED_SHARED_TOKENS],
        .cached_tokens = values[AGREED_CACHED_TOKENS],
        .replayed_tokens = values[AGREED_REPLAYED_TOKENS],
        .saved_milliseconds = values[AGREED_SAVED_MILLISECONDS],
    };
    memcpy(engine->world.cache_hits, values + AGREED_CACHE_HITS, sizeof engine->world.cache_hits);
    memcpy(engine->world.cache_bytes, values + AGREED_CACHE_BYTES, sizeof engine->world.cache_bytes);
    engine->is_uneven = values[AGREED_HUNGRY] > 0 && values[AGREED_QUEUED] > 0;
    *go_on = values[AGREED_WORK] > 0 && values[AGREED_STOP] == 0;
    *stopped = !*go_on && values[AGREED_WORK] + values[AGREED_LEFT] > 0;
    return values[AGREED_ERROR] ? ranks_agree(world, own) : OK;
}

/* Seconds of work begun and not ended: prompts at what a token has cost so far. Generated tokens are left out, for nobody knows how many
 * there will be. */
static double busy_seconds(const struct engine *engine) {
    return (double)engine->admission.prompts.left * engine->admission.prompts.seconds_a_token;
}

/* Moves requests to ranks that have none. Collective over the run; rarely tried in vain, since the queues only shrink. */
static enum result balance(struct engine *engine) {
    enum { TURNS_AFTER_NONE = 16 };
    if (!engine->is_uneven || engine->balance_wait-- > 0)
        return OK;
    bool is_hungry = admission_is_hungry(&engine->admission);
    int64_t moved = 0;
    TRY(engine->source->balance(engine->source->context, is_hungry, busy_seconds(engine), &moved));
    engine->balance_wait = moved ? 0 : TURNS_AFTER_NONE;
    if (is_hungry && engine->source->left(engine->source->context) > 0)
        admission_reopen(&engine->admission);
    return OK;
}

/* Gives the step that has been to the sink and the trace. */
static enum result end_step(struct engine *engine) {
    (void)stopwatch_switch(WORK_FILES);
    enum result status = engine->sink->step_end(engine->sink->context, &engine->world);
    (void)stopwatch_switch(WORK_SCHEDULING);
    int64_t tokens = 0;
    for (int32_t i = 0; i < engine->step->span_count; i++)
        tokens += engine->step->spans[i].count;
    trace_step(engine->own.steps, tokens, engine->step->span_count);
    return status;
}

static enum result end_step_in_flight(struct engine *engine) {
    if (!engine->step->in_flight)
        return OK;
    TRY(take_outcomes(engine));
    return end_step(engine);
}

/* One turn: what came of the lane's last step, and its next one. *go_on is false when there is nothing left or a stop is asked
 * for. A step's failure is not agreed: the other ranks are inside its exchanges, so the run must be ended. */
static enum result take_turn(struct engine *engine, bool *go_on, bool *stopped) {
    struct engine_step *step = engine->step;
    enum result status = end_step_in_flight(engine);
    if (status == ERROR_RANKS)
        return status; /* others do not answer: do not ask them */
    if (status == OK)
        status = prepare_step(engine);
    TRY(agree(engine, status, go_on, stopped));
    if (!*go_on) {
        release_spans(engine);
        return OK;
    }
    TRY(balance(engine));
    step->in_flight = true;
    TRY(model_step_begin(engine->options->model, step->lane, step->spans, step->span_count));
    make_masks(engine);
    return OK;
}

/* ---- a stop ---- */

/* Names requests whose tokens are lost for want of time. */
static void name_dropped(const struct engine *engine, const struct active_request *first, int64_t count) {
    enum { NAMED = 5 };
    struct buffer names = {0};
    int64_t named = 0;
    for (const struct active_request *active = first; active && named < NAMED; active = active->next)
        if (active->decoding)
            buffer_printf(&names, "%s%.*s", named++ ? ", " : "", (int)active->request->custom_id.bytes,
                active->request->custom_id.data);
    log_warning(
        "rank %d: %.0f s of grace did not suffice for the states of %lld requests, whose tokens will be "
        "computed again: %s%s",
        engine->options->ranks->rank, engine->options->grace, (long long)count, names.data ? names.data : "",
        count > NAMED ? ", ..." : "");
    buffer_free(&names);
}

/* Sends what is decoding to the sink, in order of admission, while there is time. */
static enum result save_decoding(struct engine *engine, double noticed, struct engine_stop *stop) {
    /* The last part is written after this, and other ranks are waited for. */
    const double seconds = 0.75 * engine->options->grace;
    const struct active_request *first_dropped = NULL;
    if (engine->options->phase == ENGINE_PREFILL)
        return OK; /* what is decoding there was saved */
    for (const struct active_request *active = engine->admission.first; active; active = active->next) {
        if (!active->decoding)
            continue;
        if (wall_clock() - noticed >= seconds) {
            first_dropped = first_dropped ? first_dropped : active;
            stop->dropped++;
            continue;
        }
        TRY(saving_send(engine->options->model, engine->sink, active));
        stop->saved++;
    }
    if (stop->dropped)
        name_dropped(engine, first_dropped, stop->dropped);
    return OK;
}

/* Ends the other lanes' steps, lest their tokens are lost, and saves. */
static enum result end_early(struct engine *engine, struct engine_stop *stop) {
    double noticed = wall_clock() - signals_stop_age();
    enum result status = OK;
    for (int32_t lane = 0; lane < engine->lanes && status == OK; lane++) {
        engine->step = &engine->steps[lane];
        status = end_step_in_flight(engine);
    }
    if (status == ERROR_RANKS)
        return status;
    if (status == OK)
        status = save_decoding(engine, noticed, stop);
    bool go_on, stopped;
    TRY(agree(engine, status, &go_on, &stopped));
    int64_t sums[2] = {stop->saved, stop->dropped};
    TRY(group_sum(engine->options->ranks->world, "stop: states saved", sums, 2));
    *stop = (struct engine_stop){.stopped = true, .saved = sums[0], .dropped = sums[1]};
    return OK;
}

enum result engine_run(const struct engine_options *options, const struct engine_source *source,
    const struct engine_sink *sink, struct engine_counts *world, struct engine_stop *stop) {
    struct engine engine;
    enum work_part before = stopwatch_switch(WORK_SCHEDULING);
    enum result status = engine_begin(&engine, options, source, sink);
    bool go_on = true, stopped = false;
    *stop = (struct engine_stop){0};
    if (status != OK) {
        engine.step = &engine.steps[0];
        status = agree(&engine, status, &go_on, &stopped);
        go_on = false;
    }
    while (status == OK && go_on)
        for (int32_t lane = 0; lane < engine.lanes && status == OK && go_on; lane++) {
            engine.step = &engine.steps[lane];
            status = take_turn(&engine, &go_on, &stopped);
        }
    if (status == OK && stopped)
        status = end_early(&engine, stop);
    (void)stopwatch_switch(before);
    *world = engine.world;
    engine_end(&engine);
    return status;
}

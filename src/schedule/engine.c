#include "schedule/engine.h"

#include "base/signals.h"
#include "base/stopwatch.h"
#include "model/sampling.h"
#include "schedule/admission.h"
#include "schedule/choices.h"

#include <omp.h>    /* omp_get_thread_num */
#include <stdlib.h> /* calloc, realloc */

/* A token to be sampled after the step: which choice, from which row of logits. */
struct draw {
    struct active_request *active;
    int32_t choice, row;
    enum result status;
    struct sampled_token token;
};

/* The part of a request in a step. */
struct span_use {
    struct active_request *active;
    int32_t choice; /* -1: its prompt */
};

struct engine {
    const struct engine_options *options;
    const struct engine_sink *sink;
    struct engine_counts own, world;
    struct admission admission;
    int32_t most_spans;
    int32_t span_count;
    struct span *spans;    /* [most_spans] */
    struct span_use *uses; /* [most_spans] */
    float *logits;         /* [most_spans, vocab_size]: every span wants one row at most */
    struct draw *draws;    /* [draw_capacity] */
    int32_t draw_count, draw_capacity;
    int32_t threads;
    struct sampler **samplers; /* [threads] */
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
    *engine = (struct engine){.options = options, .sink = sink};
    admission_begin(&engine->admission, options, source, sink, &engine->own);
    TRY(check_options(options, engine->admission.tail));
    const struct model_options *of_model = model_options(options->model);
    size_t vocab_size = (size_t)model_config(options->model)->vocab_size;
    engine->most_spans =
        options->step_tokens < of_model->step_sequences ? options->step_tokens : of_model->step_sequences;
    engine->threads = options->ranks->threads;
    size_t spans = (size_t)engine->most_spans;
    engine->spans = calloc(spans, sizeof *engine->spans);
    engine->uses = calloc(spans, sizeof *engine->uses);
    engine->logits = malloc(spans * vocab_size * sizeof *engine->logits);
    engine->samplers = calloc((size_t)engine->threads, sizeof(struct sampler *));
    if (!engine->spans || !engine->uses || !engine->logits || !engine->samplers)
        return fail(ERROR_MEMORY, "out of memory for the logits of %zu sequences (%.1f MiB): lower --batch",
            spans, (double)(spans * vocab_size * sizeof *engine->logits) / 1048576);
    for (int32_t i = 0; i < engine->threads; i++)
        TRY(sampler_create((int32_t)vocab_size, &engine->samplers[i]));
    return OK;
}

static void engine_end(struct engine *engine) {
    admission_end(&engine->admission);
    for (int32_t i = 0; engine->samplers && i < engine->threads; i++)
        sampler_free(engine->samplers[i]);
    free(engine->samplers);
    free(engine->draws);
    free(engine->logits);
    free(engine->uses);
    free(engine->spans);
}

/* ---- making a step ---- */

/* What a step may still take. */
struct step_room {
    int32_t tokens; /* run by the lower layers */
    int32_t upper;  /* run by the layers above the last kv source */
};

static void add_span(struct engine *engine, struct step_room *room, const struct span *span,
    struct active_request *active, int32_t choice) {
    room->tokens -= span->count;
    room->upper -= span_upper_tokens(span);
    engine->spans[engine->span_count] = *span;
    engine->uses[engine->span_count] = (struct span_use){active, choice};
    engine->span_count++;
}

static void add_decoding(struct engine *engine, struct step_room *room) {
    int32_t left = engine->options->batch;
    for (struct active_request *active = engine->admission.first; active; active = active->next) {
        for (int32_t i = 0; active->decoding && i < active->choice_count; i++) {
            struct choice *choice = &active->choices[i];
            if (choice->finished)
                continue;
            if (left == 0 || room->tokens == 0 || engine->span_count == engine->most_spans)
                return;
            const struct span span = {.sequence = choice->sequence,
                .ids = &choice->token_ids[choice->count - 1],
                .count = 1,
                .logits = 1};
            add_span(engine, room, &span, active, i);
            left--;
        }
    }
}

/* As much of the prompt as there is room for. Its end also runs the tail through the upper layers; when
 * that does not fit any more, one token is left for a later step. */
static bool cut_chunk(const struct engine *engine, const struct active_request *active, struct step_room room,
    struct span *span) {
    int32_t left = active->request->token_count - active->prompt_done;
    *span = (struct span){.sequence = active->prompt,
        .ids = active->request->token_ids + active->prompt_done,
        .count = left < room.tokens ? left : room.tokens,
        .tail = engine->admission.tail};
    if (active->embeddings)
        span->embeddings =
            active->embeddings + active->embeddings_done * model_config(engine->options->model)->hidden_size;
    if (span->count == left) {
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

static void add_prompts(struct engine *engine, struct step_room *room) {
    for (struct active_request *active = engine->admission.first; active; active = active->next) {
        if (active->decoding)
            continue;
        if (room->tokens == 0 || engine->span_count == engine->most_spans)
            return;
        struct span span;
        if (cut_chunk(engine, active, *room, &span))
            add_span(engine, room, &span, active, -1);
    }
}

static enum result prepare_step(struct engine *engine) {
    TRY(admission_fill(&engine->admission));
    engine->span_count = 0;
    struct step_room room = {engine->options->step_tokens, engine->options->step_tokens};
    add_decoding(engine, &room);
    add_prompts(engine, &room);
    return OK;
}

/* ---- after a step ---- */

static enum result add_draw(
    struct engine *engine, struct active_request *active, int32_t choice, int32_t row) {
    if (engine->draw_count == engine->draw_capacity) {
        int32_t capacity = engine->draw_capacity ? 2 * engine->draw_capacity : 64;
        struct draw *grown = realloc(engine->draws, (size_t)capacity * sizeof *grown);
        if (!grown)
            return fail(ERROR_MEMORY, "out of memory for sampling %d tokens in a step", capacity);
        engine->draws = grown;
        engine->draw_capacity = capacity;
    }
    engine->draws[engine->draw_count++] = (struct draw){.active = active, .choice = choice, .row = row};
    return OK;
}

/* Notes how far a prompt has come. */
static void advance_prompt(struct engine *engine, struct active_request *active, const struct span *span) {
    int32_t image = model_config(engine->options->model)->image_token_id;
    active->prompt_done += span->count;
    for (int32_t t = 0; active->embeddings && t < span->count; t++)
        active->embeddings_done += span->ids[t] == image;
    if (active->prompt_done == active->request->token_count) {
        free(active->embeddings);
        active->embeddings = NULL;
    }
    engine->admission.prompt_left -= span->count;
    engine->own.prompt_tokens += span->count;
}

/* Counts what the step ran and lists the tokens to sample. */
static enum result list_draws(struct engine *engine) {
    engine->draw_count = 0;
    int32_t row = 0;
    for (int32_t i = 0; i < engine->span_count; i++) {
        const struct span *span = &engine->spans[i];
        struct active_request *active = engine->uses[i].active;
        if (engine->uses[i].choice >= 0) {
            TRY(add_draw(engine, active, engine->uses[i].choice, row++));
            continue;
        }
        advance_prompt(engine, active, span);
        if (!span->logits)
            continue;
        for (int32_t choice = 0; choice < active->choice_count; choice++)
            TRY(add_draw(engine, active, choice, row));
        row++;
    }
    return OK;
}

static enum result sample_one(struct engine *engine, struct sampler *sampler, struct draw *draw) {
    const struct request *request = draw->active->request;
    const struct choice *choice = &draw->active->choices[draw->choice];
    size_t vocab_size = (size_t)model_config(engine->options->model)->vocab_size;
    return sampler_choose(sampler, engine->logits + (size_t)draw->row * vocab_size, &request->sampling,
        choice->key, (int64_t)request->token_count + choice->count, choice->token_ids, choice->count,
        &draw->token);
}

static enum result sample(struct engine *engine) {
#pragma omp parallel for num_threads(engine->threads) schedule(dynamic)
    for (int32_t i = 0; i < engine->draw_count; i++)
        engine->draws[i].status =
            sample_one(engine, engine->samplers[omp_get_thread_num()], &engine->draws[i]);
    for (int32_t i = 0; i < engine->draw_count; i++) {
        struct draw *draw = &engine->draws[i];
        if (draw->status == OK)
            continue;
        /* The message is the other thread's own: once more for this one. */
        enum result status = sample_one(engine, engine->samplers[0], draw);
        return fail_context(status == OK ? ERROR_INTERNAL : status, "request %lld (%.*s)",
            (long long)draw->active->index, (int)draw->active->request->custom_id.bytes,
            draw->active->request->custom_id.data);
    }
    return OK;
}

static struct first_token describe_token(const struct draw *draw) {
    return (struct first_token){
        .id = draw->token.id,
        .logprob = draw->token.logprob,
        .top_logprobs = draw->token.top_logprobs,
        .top_ids = draw->token.top_ids,
        .top_values = draw->token.top_values,
    };
}

/* ENGINE_PREFILL: saves the state of a prompt that has ended, with its choices' first tokens. */
static enum result save_state(struct engine *engine, const struct draw *draws, int32_t count) {
    struct active_request *active = draws->active;
    struct first_token *tokens = calloc((size_t)count, sizeof *tokens);
    if (!tokens)
        return fail(ERROR_MEMORY, "out of memory for the first tokens of %d choices", count);
    for (int32_t i = 0; i < count; i++)
        tokens[i] = describe_token(&draws[i]);
    struct saved_state saved = {0};
    enum work_part before = stopwatch_switch(WORK_FILES);
    enum result status = sequence_save(engine->options->model, active->prompt, &saved);
    if (status == OK) {
        const struct state_record record = {
            .request = active->index,
            .tokens = saved.tokens,
            .sections = saved.sections,
            .choice_count = count,
            .first_tokens = tokens,
        };
        status = engine->sink->state(engine->sink->context, &record);
        sequence_saved_free(&saved);
    }
    (void)stopwatch_switch(before);
    free(tokens);
    if (status == OK)
        engine->own.finished++;
    return status;
}

static enum result add_token(struct engine *engine, const struct draw *draw) {
    struct active_request *active = draw->active;
    struct choice *choice = &active->choices[draw->choice];
    const struct first_token token = describe_token(draw);
    TRY(choice_add(choice, &engine->admission.rules, active->request, active->stops, &token));
    engine->own.generated_tokens++;
    if (choice->finished)
        admission_choice_finished(&engine->admission, active, choice);
    return OK;
}

/* The draws of a prompt's end stand together, one for each choice. */
static enum result end_prompt(struct engine *engine, const struct draw *draws, int32_t count) {
    struct active_request *active = draws->active;
    active->decoding = true;
    if (engine->options->phase == ENGINE_PREFILL)
        return save_state(engine, draws, count);
    for (int32_t i = 0; i < count; i++)
        TRY(add_token(engine, &draws[i]));
    return admission_fork(&engine->admission, active);
}

static enum result take_outcomes(struct engine *engine) {
    TRY(list_draws(engine));
    (void)stopwatch_switch(WORK_SAMPLING);
    TRY(sample(engine));
    (void)stopwatch_switch(WORK_SCHEDULING);
    for (int32_t i = 0; i < engine->draw_count;) {
        const struct draw *draw = &engine->draws[i];
        struct active_request *active = draw->active;
        bool prompt_end = !active->decoding;
        int32_t count = prompt_end ? active->choice_count : 1;
        TRY(prompt_end ? end_prompt(engine, draw, count) : add_token(engine, draw));
        if (active->unfinished == 0)
            TRY(admission_answer(&engine->admission, active));
        i += count;
    }
    admission_drop_finished(&engine->admission);
    engine->own.steps++;
    return OK;
}

/* ---- the loop ---- */

/* What every rank tells the others before a step. */
enum agreed_value {
    AGREED_WORK,
    AGREED_STOP,
    AGREED_ERROR,
    AGREED_PROMPT_TOKENS,
    AGREED_GENERATED_TOKENS,
    AGREED_FINISHED,
    AGREED_FAILED,
    AGREED_WAITING,
    AGREED_VALUES
};

static enum result agree(struct engine *engine, enum result own, bool *work, bool *stop) {
    const struct engine_counts *counts = &engine->own;
    int64_t values[AGREED_VALUES] = {
        [AGREED_WORK] = own == OK && admission_has_work(&engine->admission),
        [AGREED_STOP] = signals_stop_requested(),
        [AGREED_ERROR] = own != OK,
        [AGREED_PROMPT_TOKENS] = counts->prompt_tokens,
        [AGREED_GENERATED_TOKENS] = counts->generated_tokens,
        [AGREED_FINISHED] = counts->finished,
        [AGREED_FAILED] = counts->failed,
        [AGREED_WAITING] = counts->waiting,
    };
    struct group *world = engine->options->ranks->world;
    TRY(group_sum(world, "step: work left", values, AGREED_VALUES));
    engine->world = (struct engine_counts){
        .steps = counts->steps,
        .prompt_tokens = values[AGREED_PROMPT_TOKENS],
        .generated_tokens = values[AGREED_GENERATED_TOKENS],
        .finished = values[AGREED_FINISHED],
        .failed = values[AGREED_FAILED],
        .waiting = values[AGREED_WAITING],
    };
    *work = values[AGREED_WORK] > 0;
    *stop = values[AGREED_STOP] > 0;
    return values[AGREED_ERROR] ? ranks_agree(world, own) : OK;
}

/* Gives the step that has been to the sink and the trace. */
static enum result end_step(struct engine *engine) {
    (void)stopwatch_switch(WORK_FILES);
    enum result status = engine->sink->step_end(engine->sink->context, &engine->world);
    (void)stopwatch_switch(WORK_SCHEDULING);
    int64_t tokens = 0;
    for (int32_t i = 0; i < engine->span_count; i++)
        tokens += engine->spans[i].count;
    trace_step(engine->own.steps, tokens, engine->span_count);
    return status;
}

enum result engine_run(const struct engine_options *options, const struct engine_source *source,
    const struct engine_sink *sink, struct engine_counts *world, bool *stopped) {
    struct engine engine;
    enum work_part before = stopwatch_switch(WORK_SCHEDULING);
    enum result status = engine_begin(&engine, options, source, sink);
    *stopped = false;
    for (;;) {
        if (status == OK)
            status = prepare_step(&engine);
        bool work = false, stop = false;
        TRY_GOTO(status, agree(&engine, status, &work, &stop), done);
        *stopped = work && stop;
        if (!work || stop)
            break;
        /* Its failure is not agreed: the other ranks are inside the step's exchanges, so the run must be
         * ended. */
        TRY_GOTO(status, model_step(options->model, engine.spans, engine.span_count, engine.logits), done);
        status = take_outcomes(&engine);
        if (status == OK)
            status = end_step(&engine);
    }
done:
    (void)stopwatch_switch(before);
    *world = engine.world;
    engine_end(&engine);
    return status;
}

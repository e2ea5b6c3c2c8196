#include "schedule/admission.h"

#include "base/clock.h"
#include "base/stopwatch.h"
#include "schedule/saving.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc */
#include <string.h> /* memcpy, memmove */

enum {
    READS_A_STEP = 64,
    MOST_STEPS_AHEAD =
        16, /* of prompts admitted in prefill, by tokens: what is admitted cannot move to other ranks */
};

void admission_begin(struct admission *admission, const struct engine_options *options,
    const struct engine_source *source, const struct engine_sink *sink, struct engine_counts *counts) {
    const struct model_config *config = model_config(options->model);
    *admission = (struct admission){
        .options = options,
        .source = source,
        .sink = sink,
        .counts = counts,
        .rules = {options->tokenizer, config->eos_token_id, model_options(options->model)->context},
        .tail = options->all_layers ? 0 : config->sliding_window,
        .blocks_total = model_blocks(options->model),
        .prompt_budget = INT64_MAX,
    };
    admission->last = &admission->first;
    prompts_begin(&admission->prompts, options, source, counts, admission->tail, &admission->blocks_reserved,
        admission->blocks_total);
}

static void free_active(struct admission *admission, struct active_request *active) {
    struct model *model = admission->options->model;
    for (int32_t i = 0; i < active->choice_count; i++) {
        sequence_free(model, active->choices[i].sequence);
        choice_free(&active->choices[i]);
    }
    prompts_release(&admission->prompts, &active->prompt);
    free(active->choices);
    free(active->embeddings);
    stop_strings_free(active->stops);
    admission->source->release(admission->source->context, active->request, NULL);
    free(active);
}

static void release_state(struct admission *admission) {
    if (admission->held_work.state)
        admission->source->release(admission->source->context, NULL, admission->held_work.state);
    admission->held_work.state = NULL;
}

void admission_end(struct admission *admission) {
    release_state(admission);
    if (admission->held)
        free_active(admission, admission->held);
    while (admission->first) {
        struct active_request *next = admission->first->next;
        free_active(admission, admission->first);
        admission->first = next;
    }
    prompts_end(&admission->prompts);
    constraints_free(admission->constraints);
}

bool admission_has_work(const struct admission *admission) {
    return admission->first || (!admission->is_late && (admission->held || !admission->source_ended));
}

bool admission_leaves_work(const struct admission *admission) {
    return admission->is_late && (admission->held || !admission->source_ended);
}

/* ---- what reads and writes files ---- */

static enum result send_result(const struct admission *admission, const struct request_result *result) {
    enum work_part before = stopwatch_switch(WORK_FILES);
    enum result status = admission->sink->result(admission->sink->context, result);
    (void)stopwatch_switch(before);
    return status;
}

static enum result take_request(const struct admission *admission, struct engine_work *work) {
    enum work_part before = stopwatch_switch(WORK_FILES);
    enum result status = admission->source->next(admission->source->context, work);
    (void)stopwatch_switch(before);
    return status;
}

static enum result take_embeddings(const struct admission *admission, struct active_request *active) {
    enum work_part before = stopwatch_switch(WORK_FILES);
    enum result status =
        admission->source->embeddings(admission->source->context, active->request, &active->embeddings);
    (void)stopwatch_switch(before);
    return status;
}

/* ---- refusals ---- */

struct refusal {
    const char *code;
    bool is_ours; /* the request is right */
    char message[512];
};

const char *admission_fault(const struct active_request *active) {
    const char *fault = NULL;
    for (int32_t i = 0; !fault && i < active->choice_count; i++)
        fault = constraint_fault(active->choices[i].constraint);
    return fault;
}

/* Describes the fault of a request's grammar, if it has one. */
static bool describe_fault(const struct active_request *active, struct refusal *refusal) {
    const char *fault = admission_fault(active);
    if (!fault)
        return false;
    *refusal = (struct refusal){.code = "grammar_failed", .is_ours = true};
    snprintf(
        refusal->message, sizeof refusal->message, "The answer's grammar cannot be followed: %s.", fault);
    return true;
}

static enum result send_refusal(
    struct admission *admission, const struct active_request *active, const struct refusal *refusal) {
    const struct request_result result = {
        .request = active->index,
        .error_code = refusal->code,
        .error_status = refusal->is_ours ? 500 : 400,
        .error_type = refusal->is_ours ? "server_error" : "invalid_request_error",
        .error_message = refusal->message,
        .prompt_tokens = active->request->token_count,
        .finished_at = wall_clock(),
    };
    admission->counts->failed++;
    return send_result(admission, &result);
}

/* Whether the request can be run at all, however empty the machine is. */
static bool is_refused(
    const struct admission *admission, const struct active_request *active, struct refusal *refusal) {
    const struct request *request = active->request;
    int32_t vocab_size = model_config(admission->options->model)->vocab_size;
    *refusal = (struct refusal){0};
    if (request->token_count < 1 || request->token_count >= admission->rules.context) {
        refusal->code = "context_length_exceeded";
        snprintf(refusal->message, sizeof refusal->message,
            "The prompt has %d tokens; this model's context of %d tokens must hold the prompt and one token "
            "more.",
            request->token_count, admission->rules.context);
        return true;
    }
    for (int32_t i = 0; i < request->token_count; i++)
        if (request->token_ids[i] < 0 || request->token_ids[i] >= vocab_size) {
            refusal->code = "invalid_token_id";
            snprintf(refusal->message, sizeof refusal->message,
                "Token %d of the prompt is %d, which is outside the model's vocabulary of %d tokens.", i,
                request->token_ids[i], vocab_size);
            return true;
        }
    if (active->blocks > admission->blocks_total) {
        double block = (double)model_bytes(admission->options->model).kv / (double)admission->blocks_total;
        refusal->code = "kv_memory_exceeded";
        snprintf(refusal->message, sizeof refusal->message,
            "The prompt of %d tokens with up to %d generated tokens and %d choices needs %lld key/value "
            "blocks (%.1f "
            "MiB), but a rank has %lld (%.1f MiB). Raise --kv-memory, or lower max_tokens or n.",
            request->token_count, request->sampling.max_tokens, active->choice_count,
            (long long)active->blocks, (double)active->blocks * block / 1048576,
            (long long)admission->blocks_total, (double)admission->blocks_total * block / 1048576);
        return true;
    }
    return describe_fault(active, refusal);
}

/* ---- taking requests ---- */

/* The blocks a request may need at most, when it shares none. Prefill ends at the prompt and has one sequence whatever n is. */
static void reserve_worst_case(const struct admission *admission, struct active_request *active) {
    const struct engine_options *options = admission->options;
    const struct request *request = active->request;
    int64_t tokens = request->token_count, choices = 1;
    if (options->phase != ENGINE_PREFILL) {
        tokens += request->sampling.max_tokens;
        choices = active->choice_count;
    }
    if (tokens > admission->rules.context)
        tokens = admission->rules.context;
    bool loaded = admission->held_work.state;
    active->blocks_each = sequence_blocks(
        options->model, tokens, loaded ? 1 : options->step_tokens, loaded ? 0 : admission->tail);
    active->blocks = active->blocks_each * choices;
}

static enum result begin_constraints(struct admission *admission, struct active_request *active) {
    const struct model_config *config = model_config(admission->options->model);
    if (active->request->constraint == CONSTRAINT_NONE)
        return OK;
    if (!admission->constraints)
        TRY(constraints_create(admission->options->tokenizer, config->vocab_size, config->eos_token_id,
            &admission->constraints));
    for (int32_t i = 0; i < active->choice_count; i++)
        TRY(constraint_begin(admission->constraints, active->request, &active->choices[i].constraint));
    return OK;
}

static enum result prepare_active(struct admission *admission, struct active_request *active) {
    const struct sampling *sampling = &active->request->sampling;
    active->choices = calloc((size_t)sampling->choices, sizeof *active->choices);
    if (!active->choices)
        return fail(ERROR_MEMORY, "out of memory for the %d choices of a request", sampling->choices);
    active->choice_count = active->unfinished = sampling->choices;
    TRY(stop_strings_create(sampling->stops, sampling->stop_count, &active->stops));
    for (int32_t i = 0; i < active->choice_count; i++)
        TRY(choice_begin(
            &active->choices[i], active->request, i, admission->options->campaign_seed, active->stops));
    TRY(begin_constraints(admission, active));
    reserve_worst_case(admission, active);
    return OK;
}

/* Branches of refused prompts, up to what the next one has in common with them, are its own. */
static void inherit_branches(struct admission *admission, struct engine_work *work) {
    struct engine_work *refused = &admission->refused_work;
    int32_t inherited = 0, most = MOST_BRANCHES;
    while (inherited < refused->branch_count && refused->branches[inherited] <= work->shared)
        inherited++;
    int32_t own = work->branch_count < most - inherited ? work->branch_count : most - inherited;
    memmove(work->branches + inherited, work->branches, (size_t)own * sizeof *work->branches);
    memcpy(work->branches, refused->branches, (size_t)inherited * sizeof *work->branches);
    work->branch_count = inherited + own;
    refused->branch_count = 0;
}

/* Reads the next request into `held`. */
static enum result read_next(struct admission *admission) {
    struct active_request *active = calloc(1, sizeof *active);
    if (!active)
        return fail(ERROR_MEMORY, "out of memory for a request in work");
    struct engine_work work = {.index = -1};
    enum result status = take_request(admission, &work);
    if (status != OK || work.index < 0) {
        admission->source_ended = true;
        free(active);
        return status;
    }
    admission->held = active;
    inherit_branches(admission, &work);
    if (admission->options->no_sharing)
        work.shared = work.branch_count = 0;
    admission->held_work = work;
    active->index = work.index;
    active->request = work.request;
    if (!work.state)
        prompts_follow(&admission->prompts, work.shared);
    return prepare_active(admission, active);
}

/* Whether the prompts in work fill a step. Those that wait for a beginning do not count: of a conversation's turns only one can
 * run in a step, and other prompts must fill it. */
static bool fills_step(const struct admission *admission) {
    int64_t tokens = 0, wanted = admission->options->step_tokens;
    for (const struct prefix *prefix = admission->prompts.first; prefix && tokens < wanted;
         prefix = prefix->next)
        tokens += prefix->is_ready ? 0 : prompt_runnable(&prefix->prompt);
    for (const struct active_request *active = admission->first; active && tokens < wanted;
         active = active->next)
        tokens += active->decoding ? 0 : prompt_runnable(&active->prompt);
    return tokens >= wanted;
}

/* Whether a prompt waits until its prefixes have room, too: those that follow would have to run them again, and take more memory each. Not
 * when that would leave most of the memory idle. */
static bool waits_for_prefixes(const struct admission *admission, const struct active_request *active) {
    int64_t ahead =
        prompts_prefix_blocks(&admission->prompts, active->request->token_count, &admission->held_work);
    int64_t blocks = active->blocks + ahead;
    return ahead > 0 && blocks <= admission->blocks_total / 2 &&
           admission->blocks_reserved + blocks > admission->blocks_total;
}

/* In prefill a request takes one sequence and the token budget is the limit; else its choices fill the
 * batch. */
static bool has_room(struct admission *admission, const struct active_request *active) {
    const struct engine_options *options = admission->options;
    bool is_prompt = !admission->held_work.state;
    int64_t shared = 0;
    const struct prefix *from =
        is_prompt ? prompts_find(&admission->prompts, active->request->token_count, &shared) : NULL;
    int32_t tokens = active->request->token_count - (from ? from->prompt.tokens : 0);
    if (is_prompt && admission->prompts.left + tokens > admission->prompt_budget)
        admission->is_late = true;
    if (admission->is_late)
        return false;
    int64_t blocks = active->blocks - shared * (active->blocks / active->blocks_each);
    if (admission->blocks_reserved + blocks > admission->blocks_total) {
        if (admission->first)
            return false;
        prompts_close_all(&admission->prompts); /* it has all the memory to itself then */
    }
    if (!admission->first)
        return true;
    if (is_prompt && waits_for_prefixes(admission, active))
        return false;
    if (options->phase == ENGINE_PREFILL)
        return !fills_step(admission) &&
               admission->prompts.left < (int64_t)MOST_STEPS_AHEAD * options->step_tokens;
    return admission->choices + active->choice_count <= options->batch;
}

static enum result load_state(struct admission *admission, struct active_request *active) {
    const struct state_record *state = admission->held_work.state;
    active->decoding = true;
    active->prompt.request = active->request;
    active->cached_tokens = state->cached_tokens;
    TRY(saving_restore(admission->options->model, &admission->rules, active, state));
    release_state(admission);
    const bool has_failed = admission_fault(active);
    for (int32_t i = 0; i < active->choice_count; i++)
        if (active->choices[i].finished || has_failed)
            TRY(admission_choice_finished(admission, active, &active->choices[i]));
    return active->unfinished ? OK : admission_answer(admission, active);
}

/* The prompt, and the beginnings of it that later ones share; what is shared need not be reserved again for each of the choices. */
static enum result admit_prompt(struct admission *admission, struct active_request *active) {
    int64_t copies = active->blocks / active->blocks_each, shared = 0;
    active->prompt = (struct prompt){.request = active->request,
        .owner = active->index,
        .tokens = active->request->token_count,
        .embeddings = active->embeddings};
    TRY(prompts_admit(&admission->prompts, &active->prompt, &admission->held_work, active->blocks, &shared));
    active->blocks_each -= shared;
    active->blocks = active->blocks_each * copies;
    admission->blocks_reserved += active->blocks;
    return OK;
}

static enum result admit_held(struct admission *admission) {
    struct active_request *active = admission->held;
    admission->held = NULL;
    *admission->last = active;
    admission->last = &active->next;
    admission->choices += active->choice_count;
    admission->counts->waiting++;
    if (admission->held_work.state) {
        admission->blocks_reserved += active->blocks;
        return load_state(admission, active);
    }
    TRY(take_embeddings(admission, active));
    return admit_prompt(admission, active);
}

enum result admission_start(struct admission *admission, struct active_request *active, bool *can_run) {
    int64_t more = 0;
    TRY(prompts_start(
        &admission->prompts, &active->prompt, active->blocks / active->blocks_each, can_run, &more));
    active->blocks += more * (active->blocks / active->blocks_each);
    active->blocks_each += more;
    return OK;
}

void admission_reopen(struct admission *admission) {
    admission->source_ended = false;
}

bool admission_is_hungry(const struct admission *admission) {
    const struct engine_options *options = admission->options;
    bool is_batch_full = options->phase != ENGINE_PREFILL && admission->choices >= options->batch;
    return !admission->held && admission->source_ended && !admission->is_late && !is_batch_full &&
           !fills_step(admission);
}

enum result admission_fill(struct admission *admission) {
    for (int reads = 0; reads < READS_A_STEP; reads++) {
        if (!admission->held && !admission->source_ended)
            TRY(read_next(admission));
        if (!admission->held)
            return OK;
        struct refusal refusal;
        if (is_refused(admission, admission->held, &refusal)) {
            struct active_request *refused = admission->held;
            admission->held = NULL;
            admission->refused_work = admission->held_work;
            release_state(admission);
            enum result status = send_refusal(admission, refused, &refusal);
            free_active(admission, refused);
            TRY(status);
            continue;
        }
        if (!has_room(admission, admission->held))
            return OK;
        TRY(admit_held(admission));
        admission_drop_finished(admission); /* all of its choices may have ended with their first token */
    }
    return OK;
}

/* ---- the way out ---- */

enum result admission_choice_finished(
    struct admission *admission, struct active_request *active, struct choice *choice) {
    enum result status = OK;
    if (choice->sequence)
        status = prompts_answered(
            &admission->prompts, &active->prompt, choice->sequence, choice->token_ids, choice->count);
    sequence_free(admission->options->model, choice->sequence);
    choice->sequence = NULL;
    active->unfinished--;
    active->blocks -= active->blocks_each;
    admission->blocks_reserved -= active->blocks_each;
    admission->choices--;
    return status;
}

enum result admission_fork(struct admission *admission, struct active_request *active) {
    struct model *model = admission->options->model;
    int32_t left = active->unfinished;
    for (int32_t i = 0; i < active->choice_count; i++) {
        struct choice *choice = &active->choices[i];
        if (choice->finished)
            continue;
        if (--left == 0) {
            choice->sequence = active->prompt.sequence;
            active->prompt.sequence = NULL;
        } else {
            TRY(sequence_fork(model, active->prompt.sequence, &choice->sequence));
        }
    }
    sequence_free(model, active->prompt.sequence);
    active->prompt.sequence = NULL;
    return OK;
}

enum result admission_answer(struct admission *admission, const struct active_request *active) {
    size_t count = (size_t)active->choice_count;
    struct refusal refusal;
    if (describe_fault(active, &refusal))
        return send_refusal(admission, active, &refusal);
    struct choice_result *choices = calloc(count, sizeof *choices);
    struct buffer *texts = calloc(count, sizeof *texts);
    enum result status = OK;
    if (!choices || !texts)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory for an answer with %zu choices", count), done);
    for (size_t i = 0; i < count; i++) {
        choice_describe(&active->choices[i], &admission->rules, &choices[i], &texts[i]);
        choices[i].text = (struct text_piece){texts[i].data ? texts[i].data : "", texts[i].bytes};
    }
    const struct request_result result = {
        .request = active->index,
        .prompt_tokens = active->request->token_count,
        .cached_tokens = active->cached_tokens,
        .choice_count = active->choice_count,
        .choices = choices,
        .finished_at = wall_clock(),
    };
    admission->counts->finished++;
    status = send_result(admission, &result);
done:
    for (size_t i = 0; texts && i < count; i++)
        buffer_free(&texts[i]);
    free(texts);
    free(choices);
    return status;
}

void admission_drop_finished(struct admission *admission) {
    bool prefill = admission->options->phase == ENGINE_PREFILL;
    struct active_request **link = &admission->first;
    while (*link) {
        struct active_request *active = *link;
        if (!active->decoding || (active->unfinished && !prefill)) {
            link = &active->next;
            continue;
        }
        *link = active->next;
        admission->blocks_reserved -= active->blocks;
        admission->choices -= active->unfinished;
        admission->counts->waiting--;
        free_active(admission, active);
    }
    admission->last = link;
}

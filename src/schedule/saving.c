#include "schedule/saving.h"

#include "base/stopwatch.h"

#include <stdlib.h> /* calloc, free */

/* ---- saving ---- */

/* A record being made. */
struct making {
    struct saved_choice *choices;     /* [choice_count] */
    struct saved_sequence *sequences; /* [choice_count]; sequence_count of them are used */
    struct saved_state *states;       /* as the sequences: their memory */
    int32_t sequence_count;
};

static enum result save_sequence(
    struct model *model, const struct sequence *sequence, struct making *making, int32_t *number) {
    struct saved_state *state = &making->states[making->sequence_count];
    TRY(sequence_save(model, sequence, state));
    making->sequences[making->sequence_count] =
        (struct saved_sequence){.tokens = state->tokens, .sections = state->sections};
    *number = making->sequence_count++;
    return OK;
}

static enum result make_choice(struct model *model, const struct active_request *active,
    const struct choice *choice, struct making *making, struct saved_choice *saved) {
    *saved = (struct saved_choice){.sequence = -1,
        .token_count = choice->count,
        .token_ids = choice->token_ids,
        .logprobs = choice->logprobs,
        .top_logprobs = choice->top_logprobs,
        .top_ids = choice->top_ids,
        .top_values = choice->top_values};
    if (active->prompt.sequence)
        saved->sequence = 0;
    else if (!choice->finished)
        return save_sequence(model, choice->sequence, making, &saved->sequence);
    return OK;
}

static enum result make_record(
    struct model *model, const struct active_request *active, struct making *making) {
    int32_t number;
    if (active->prompt.sequence)
        TRY(save_sequence(model, active->prompt.sequence, making, &number));
    for (int32_t i = 0; i < active->choice_count; i++)
        TRY(make_choice(model, active, &active->choices[i], making, &making->choices[i]));
    return OK;
}

enum result saving_send(
    struct model *model, const struct engine_sink *sink, const struct active_request *active) {
    size_t count = (size_t)active->choice_count;
    struct making making = {.choices = calloc(count, sizeof *making.choices),
        .sequences = calloc(count, sizeof *making.sequences),
        .states = calloc(count, sizeof *making.states)};
    enum work_part before = stopwatch_switch(WORK_FILES);
    enum result status = OK;
    if (!making.choices || !making.sequences || !making.states)
        status = fail(ERROR_MEMORY, "out of memory for the state of a request with %zu choices", count);
    if (status == OK)
        status = make_record(model, active, &making);
    if (status == OK) {
        const struct state_record record = {.request = active->index,
            .cached_tokens = active->cached_tokens,
            .sequence_count = making.sequence_count,
            .choice_count = active->choice_count,
            .sequences = making.sequences,
            .choices = making.choices};
        status = sink->state(sink->context, &record);
    }
    for (int32_t i = 0; i < making.sequence_count; i++)
        sequence_saved_free(&making.states[i]);
    free(making.choices);
    free(making.sequences);
    free(making.states);
    (void)stopwatch_switch(before);
    return status;
}

/* ---- restoring ---- */

static enum result misfit(
    const struct active_request *active, const char *what, long long found, long long expected) {
    return fail(ERROR_INPUT,
        "the saved state of request %lld has %s %lld, expected %lld: its part of prefill/ is of another "
        "campaign; run prefill --restart",
        (long long)active->index, what, found, expected);
}

static enum result restore_tokens(const struct answer_rules *rules, struct active_request *active,
    int32_t vocab_size, struct choice *choice, const struct saved_choice *saved) {
    size_t top = (size_t)saved->top_logprobs;
    if (saved->top_logprobs != choice->top_logprobs)
        return misfit(active, "alternatives a token:", saved->top_logprobs, choice->top_logprobs);
    for (int32_t t = 0; t < saved->token_count; t++) {
        if (saved->token_ids[t] < 0 || saved->token_ids[t] >= vocab_size)
            return misfit(active, "a token beyond the vocabulary:", saved->token_ids[t], vocab_size);
        if (choice->finished)
            return misfit(active, "tokens after the end of an answer, in all", saved->token_count, t);
        const struct generated_token token = {.id = saved->token_ids[t],
            .logprob = saved->logprobs[t],
            .top_logprobs = saved->top_logprobs,
            .top_ids = saved->top_ids + (size_t)t * top,
            .top_values = saved->top_values + (size_t)t * top};
        TRY(choice_add(choice, rules, active->request, active->stops, &token));
    }
    if (!choice->finished && (saved->sequence < 0 || saved->token_count < 1))
        return misfit(active, "an unfinished answer without a sequence, of tokens:", saved->token_count, 1);
    return OK;
}

/* A choice's sequence: a copy when an earlier choice goes on from the same. */
static enum result restore_sequence(
    struct model *model, struct active_request *active, const struct state_record *state, int32_t index) {
    struct choice *choice = &active->choices[index];
    int32_t number = state->choices[index].sequence;
    const struct saved_sequence *saved = &state->sequences[number];
    if (saved->tokens != active->request->token_count + choice->count - 1)
        return misfit(active, "a sequence of tokens:", saved->tokens,
            (long long)active->request->token_count + choice->count - 1);
    for (int32_t i = 0; i < index; i++)
        if (!active->choices[i].finished && state->choices[i].sequence == number)
            return sequence_fork(model, active->choices[i].sequence, &choice->sequence);
    return sequence_load(model, saved->tokens, saved->sections, &choice->sequence);
}

enum result saving_restore(struct model *model, const struct answer_rules *rules,
    struct active_request *active, const struct state_record *state) {
    if (state->choice_count != active->choice_count)
        return misfit(active, "choices:", state->choice_count, active->choice_count);
    for (int32_t i = 0; i < active->choice_count; i++) {
        TRY(restore_tokens(
            rules, active, model_config(model)->vocab_size, &active->choices[i], &state->choices[i]));
        if (active->choices[i].finished)
            continue;
        enum result status = restore_sequence(model, active, state, i);
        if (status != OK)
            return fail_context(status, "request %lld", (long long)active->index);
    }
    return OK;
}

/* Following an answer: see automaton.h for how, masks.c for the masks. */
#include "grammar/automaton.h"

#include <stdlib.h> /* calloc, malloc, realloc, free */
#include <string.h> /* memcpy, memset */

static enum result out_of_memory(void) {
    return fail(ERROR_MEMORY, "no memory to follow a grammar");
}

static void lock(const struct grammar_matcher *matcher) {
    pthread_mutex_lock(&matcher->grammar->lock);
}

static void unlock(const struct grammar_matcher *matcher) {
    pthread_mutex_unlock(&matcher->grammar->lock);
}

/* ---- life; all under the lock ---- */

static uint32_t present(const struct grammar_matcher *matcher) {
    return matcher->history[matcher->count - 1];
}

static enum result remember(struct grammar_matcher *matcher, uint32_t set) {
    if (matcher->count == matcher->capacity) {
        size_t capacity = matcher->capacity ? matcher->capacity * 2 : 64;
        uint32_t *history = realloc(matcher->history, capacity * sizeof *history);
        if (!history)
            return out_of_memory();
        matcher->history = history;
        matcher->capacity = capacity;
    }
    matcher->history[matcher->count++] = set;
    return OK;
}

/* Puts the matcher among those whose sets are kept. */
static void enroll(struct grammar_matcher *matcher) {
    struct automaton *automaton = matcher->grammar->automaton;
    matcher->next = automaton->matchers;
    matcher->link = &automaton->matchers;
    if (matcher->next)
        matcher->next->link = &matcher->next;
    automaton->matchers = matcher;
}

static enum result start(struct grammar_matcher *matcher) {
    struct grammar *grammar = matcher->grammar;
    if (!grammar->automaton)
        TRY(automaton_create(grammar, matcher->vocabulary));
    if (grammar->automaton->vocabulary != matcher->vocabulary)
        return fail(ERROR_INTERNAL, "a grammar is used with two vocabularies");
    TRY(remember(matcher, grammar->automaton->start));
    enroll(matcher);
    return OK;
}

enum result grammar_matcher_create(
    struct grammar *grammar, const struct grammar_vocabulary *vocabulary, struct grammar_matcher **result) {
    struct grammar_matcher *matcher = calloc(1, sizeof *matcher);
    *result = NULL;
    if (!matcher)
        return out_of_memory();
    matcher->grammar = grammar;
    matcher->vocabulary = vocabulary;
    lock(matcher);
    enum result status = start(matcher);
    unlock(matcher);
    if (status == OK)
        *result = matcher;
    else
        grammar_matcher_free(matcher);
    return status;
}

enum result grammar_matcher_fork(const struct grammar_matcher *matcher, struct grammar_matcher **copy) {
    struct grammar_matcher *fork = malloc(sizeof *fork);
    uint32_t *history = malloc(matcher->count * sizeof *history);
    *copy = NULL;
    if (!fork || !history) {
        free(fork);
        free(history);
        return out_of_memory();
    }
    lock(matcher);
    *fork = *matcher;
    memcpy(history, matcher->history, matcher->count * sizeof *history);
    fork->history = history;
    fork->capacity = matcher->count;
    enroll(fork);
    unlock(matcher);
    *copy = fork;
    return OK;
}

void grammar_matcher_free(struct grammar_matcher *matcher) {
    if (!matcher)
        return;
    lock(matcher); /* its neighbours write its link */
    if (matcher->link) {
        *matcher->link = matcher->next;
        if (matcher->next)
            matcher->next->link = matcher->link;
    }
    unlock(matcher);
    free(matcher->history);
    free(matcher);
}

/* ---- masks and tokens ---- */

enum result grammar_matcher_mask(struct grammar_matcher *matcher, uint64_t *bits) {
    if (matcher->finished) {
        uint32_t end = matcher->vocabulary->end;
        memset(bits, 0, matcher->vocabulary->words * sizeof *bits);
        bits[end >> 6] |= (uint64_t)1 << (end & 63);
        return OK;
    }
    lock(matcher);
    automaton_collect(matcher->grammar);
    enum result status = masks_take(matcher->grammar, present(matcher), bits);
    unlock(matcher);
    return status;
}

static enum result follow(
    struct grammar *grammar, uint32_t set, const char *text, size_t bytes, uint32_t *reached, size_t *taken) {
    *reached = set;
    for (*taken = 0; *taken < bytes; ++*taken) {
        uint32_t next = DEAD_SET;
        TRY(automaton_step(grammar, *reached, (unsigned char)text[*taken], &next));
        if (next == DEAD_SET)
            return OK;
        *reached = next;
    }
    return OK;
}

static enum result follow_token(
    const struct grammar_matcher *matcher, uint32_t token, uint32_t *reached, bool *accepted) {
    const struct grammar_vocabulary *vocabulary = matcher->vocabulary;
    uint32_t from = vocabulary->offsets[token], length = vocabulary->offsets[token + 1] - from;
    size_t taken = 0;
    if (length) {
        TRY(follow(matcher->grammar, present(matcher), vocabulary->text + from, length, reached, &taken));
        *accepted = taken == length;
        return OK;
    }
    TRY(automaton_step_token(matcher->grammar, present(matcher), token, reached));
    *accepted = *reached != DEAD_SET;
    return OK;
}

static enum result accept(struct grammar_matcher *matcher, uint32_t token, bool *accepted) {
    struct grammar *grammar = matcher->grammar;
    automaton_collect(grammar);
    uint32_t reached = present(matcher);
    if (token == matcher->vocabulary->end)
        *accepted = set_at(grammar->automaton, reached)->accepting;
    else
        TRY(follow_token(matcher, token, &reached, accepted));
    if (!*accepted)
        return OK;
    enum result status = remember(matcher, reached);
    *accepted = status == OK;
    matcher->finished = status == OK && token == matcher->vocabulary->end;
    return status;
}

enum result grammar_matcher_accept(struct grammar_matcher *matcher, uint32_t token, bool *accepted) {
    *accepted = false;
    if (matcher->finished || token >= matcher->vocabulary->count)
        return OK;
    lock(matcher);
    enum result status = accept(matcher, token, accepted);
    unlock(matcher);
    return status;
}

enum result grammar_matcher_accept_bytes(
    struct grammar_matcher *matcher, const char *text, size_t bytes, size_t *taken) {
    uint32_t reached = DEAD_SET;
    *taken = 0;
    if (matcher->finished)
        return OK;
    lock(matcher);
    automaton_collect(matcher->grammar);
    enum result status = follow(matcher->grammar, present(matcher), text, bytes, &reached, taken);
    if (status == OK)
        status = remember(matcher, reached);
    unlock(matcher);
    return status;
}

bool grammar_matcher_accepting(const struct grammar_matcher *matcher) {
    if (matcher->finished)
        return true;
    lock(matcher);
    bool accepting = set_at(matcher->grammar->automaton, present(matcher))->accepting;
    unlock(matcher);
    return accepting;
}

bool grammar_matcher_finished(const struct grammar_matcher *matcher) {
    return matcher->finished;
}

/* ---- bytes ---- */

static enum result next_bytes(struct grammar *grammar, uint32_t set, bool allowed[256]) {
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t next = DEAD_SET;
        TRY(automaton_step(grammar, set, (unsigned char)byte, &next));
        allowed[byte] = next != DEAD_SET;
    }
    return OK;
}

enum result grammar_matcher_next_bytes(struct grammar_matcher *matcher, bool allowed[256]) {
    memset(allowed, 0, 256 * sizeof *allowed);
    if (matcher->finished)
        return OK;
    lock(matcher);
    enum result status = next_bytes(matcher->grammar, present(matcher), allowed);
    unlock(matcher);
    return status;
}

static bool waits_for_token(const struct automaton *automaton, uint32_t number) {
    const struct set *set = set_at(automaton, number);
    const struct configuration *all = configurations_of(automaton, set);
    for (uint32_t i = 0; i < set->count; i++)
        if (all[i].state & TOKEN_FLAG)
            return true;
    return false;
}

static enum result forced(struct grammar *grammar, uint32_t set, char *text, size_t room, size_t *bytes) {
    while (*bytes < room && !set_at(grammar->automaton, set)->accepting &&
           !waits_for_token(grammar->automaton, set)) {
        bool allowed[256];
        int only = -1;
        TRY(next_bytes(grammar, set, allowed));
        for (int byte = 0; byte < 256; byte++)
            if (allowed[byte])
                only = only == -1 ? byte : -2;
        if (only < 0)
            return OK;
        text[(*bytes)++] = (char)only;
        TRY(automaton_step(grammar, set, (unsigned char)only, &set));
    }
    return OK;
}

enum result grammar_matcher_forced(struct grammar_matcher *matcher, char *text, size_t room, size_t *bytes) {
    *bytes = 0;
    if (matcher->finished)
        return OK;
    lock(matcher);
    enum result status = forced(matcher->grammar, present(matcher), text, room, bytes);
    unlock(matcher);
    return status;
}

void grammar_matcher_rollback(struct grammar_matcher *matcher, size_t tokens) {
    if (tokens == 0)
        return;
    lock(matcher);
    matcher->finished = false;
    matcher->count = tokens < matcher->count ? matcher->count - tokens : 1;
    unlock(matcher);
}

/* One grammar followed by several threads at once, its tables collected all the time: each sees the masks that one alone
 * sees, behind every byte of its answer, in a fork, and after undoing. */
#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "grammar/rules_internal.h"
#include "recipe/request_grammar.h"
#include "recipe/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { THREADS = 4, ROUNDS = 4, TEXTS = 2, LONGEST = 64, END = 1 };

static const char *const texts[TEXTS] = {"{\"a\":[1,2,{\"b\":\"xyz \xE6\x97\xA5\"}],\"k\":\"v\"}",
    "{\"z\":{\"q\":{\"r\":[[],[[]]]}},\"b\":-1.5e10}"};

struct shared {
    struct grammar *grammar;
    struct grammar_vocabulary *vocabulary;
    size_t words;
    uint64_t *masks[TEXTS][LONGEST];
    bool collects;
};

struct worker {
    struct shared *shared;
    unsigned number, faults; /* cmocka's asserts are for the main thread */
};

static uint64_t *mask_of(const struct shared *shared, struct grammar_matcher *matcher) {
    uint64_t *bits = calloc(shared->words, sizeof *bits);
    if (!bits || grammar_matcher_mask(matcher, bits) != OK)
        abort();
    return bits;
}

static bool has_mask(const struct shared *shared, struct grammar_matcher *matcher, const uint64_t *wanted) {
    uint64_t *bits = mask_of(shared, matcher);
    bool same = !memcmp(bits, wanted, shared->words * sizeof *bits);
    free(bits);
    return same;
}

static bool undoes(
    const struct shared *shared, struct grammar_matcher *matcher, size_t bytes, const uint64_t *first) {
    struct grammar_matcher *copy = NULL;
    if (grammar_matcher_fork(matcher, &copy) != OK)
        return false;
    grammar_matcher_rollback(copy, bytes);
    bool same = has_mask(shared, copy, first);
    grammar_matcher_free(copy);
    return same;
}

static unsigned follow(struct shared *shared, unsigned text) {
    struct grammar_matcher *matcher = NULL;
    unsigned faults = 0;
    if (grammar_matcher_create(shared->grammar, shared->vocabulary, &matcher) != OK)
        return 1;
    for (size_t i = 0; texts[text][i]; i++) {
        size_t taken = 0;
        if (shared->collects) {
            pthread_mutex_lock(&shared->grammar->lock);
            shared->grammar->automaton->limit = 1;
            pthread_mutex_unlock(&shared->grammar->lock);
        }
        faults += !has_mask(shared, matcher, shared->masks[text][i]);
        faults += grammar_matcher_accept_bytes(matcher, texts[text] + i, 1, &taken) != OK || taken != 1;
        faults += i % 8 == 7 && !undoes(shared, matcher, i + 1, shared->masks[text][0]);
    }
    faults += !grammar_matcher_accepting(matcher);
    grammar_matcher_free(matcher);
    return faults;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    for (unsigned round = 0; round < ROUNDS; round++)
        worker->faults += follow(worker->shared, (worker->number + round) % TEXTS);
    return NULL;
}

static void compile(struct shared *shared) {
    struct grammar_specification specification = {
        .kind = GRAMMAR_JSON_OBJECT, .marker_token = GRAMMAR_NO_TOKEN};
    assert_int_equal(grammar_compile(&specification, &shared->grammar), OK);
}

/* Masks behind every beginning of the texts, by a grammar of their own. */
static void record_masks(struct shared *shared) {
    compile(shared);
    for (unsigned text = 0; text < TEXTS; text++) {
        struct grammar_matcher *matcher = NULL;
        assert_int_equal(grammar_matcher_create(shared->grammar, shared->vocabulary, &matcher), OK);
        for (size_t i = 0, taken = 0; texts[text][i]; i++) {
            assert_true(i < LONGEST);
            shared->masks[text][i] = mask_of(shared, matcher);
            assert_int_equal(grammar_matcher_accept_bytes(matcher, texts[text] + i, 1, &taken), OK);
            assert_int_equal(taken, 1);
        }
        grammar_matcher_free(matcher);
    }
    grammar_free(shared->grammar);
}

static void threads_see_the_same_masks(void **state) {
    (void)state;
    struct tokenizer *tokenizer = NULL;
    struct shared shared = {.collects = false};
    assert_int_equal(tokenizer_load(SOURCE_DIR "/tests/data/recipe", &tokenizer), OK);
    assert_int_equal(
        tokenizer_grammar_vocabulary(tokenizer, tokenizer_size(tokenizer), END, &shared.vocabulary), OK);
    shared.words = ((size_t)grammar_vocabulary_count(shared.vocabulary) + 63) / 64;
    record_masks(&shared);
    for (int collects = 0; collects < 2; collects++) {
        struct worker workers[THREADS];
        pthread_t threads[THREADS];
        compile(&shared);
        shared.collects = collects;
        for (unsigned i = 0; i < THREADS; i++) {
            workers[i] = (struct worker){.shared = &shared, .number = i};
            assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(workers[i].faults, 0);
        }
        grammar_free(shared.grammar);
    }
    for (unsigned text = 0; text < TEXTS; text++)
        for (size_t i = 0; i < LONGEST; i++)
            free(shared.masks[text][i]);
    grammar_vocabulary_free(shared.vocabulary);
    tokenizer_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_see_the_same_masks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Equal specifications share a grammar, others do not; what nobody uses goes when there is too much; several threads
 * follow one grammar, whose tables are collected meanwhile, and get the masks that one alone gets. */
#include "grammar/grammar.h"
#include "grammar/store.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 96, END = 1, THREADS = 4, STEPS = 3000, LIMIT = 1 << 20 };

static struct grammar_specification pattern(const char *text) {
    return (struct grammar_specification){
        .kind = GRAMMAR_REGEX, .text = text, .bytes = strlen(text), .marker_token = GRAMMAR_NO_TOKEN};
}

static struct grammar *get(struct grammar_store *store, struct grammar_specification specification) {
    struct grammar *grammar = NULL;
    assert_int_equal(grammar_store_get(store, &specification, &grammar), OK);
    assert_non_null(grammar);
    return grammar;
}

static void equal_specifications_share_a_grammar(void **state) {
    (void)state;
    struct grammar_store *store;
    assert_int_equal(grammar_store_create(LIMIT, &store), OK);
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"type\":\"object\"}}}]";
    struct grammar_specification named = {.kind = GRAMMAR_TOOLS,
        .text = tools,
        .bytes = sizeof tools - 1,
        .tool_choice = GRAMMAR_TOOLS_NAMED,
        .tool_name = "f",
        .marker_token = GRAMMAR_NO_TOKEN};
    struct grammar *a = get(store, pattern("a+")), *b = get(store, pattern("a+")),
                   *c = get(store, pattern("a*"));
    struct grammar *f = get(store, named);
    named.tool_name = "g";
    struct grammar *g = get(store, named);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_ptr_not_equal(f, g);
    assert_int_equal(grammar_store_count(store), 4);
    struct grammar *all[] = {a, b, c, f, g};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        grammar_store_release(store, all[i]);
    assert_ptr_equal(get(store, pattern("a*")), c); /* unused ones stay */
    grammar_store_release(store, c);
    grammar_store_free(store);
}

static void refusals_leave_nothing_behind(void **state) {
    (void)state;
    struct grammar_store *store;
    struct grammar *grammar;
    const struct grammar_specification wrong = pattern("a(");
    assert_int_equal(grammar_store_create(LIMIT, &store), OK);
    assert_int_equal(grammar_store_get(store, &wrong, &grammar), ERROR_INPUT);
    assert_null(grammar);
    assert_int_equal(grammar_store_count(store), 0);
    assert_int_equal(grammar_store_bytes(store), 0);
    grammar_store_free(store);
}

static void unused_grammars_go_when_there_is_too_much(void **state) {
    (void)state;
    struct grammar_store *store;
    char text[64];
    assert_int_equal(grammar_store_create(LIMIT, &store), OK);
    struct grammar *used = get(store, pattern("used"));
    for (int i = 0; i < 500; i++) {
        snprintf(text, sizeof text, "number %d", i);
        grammar_store_release(store, get(store, pattern(text)));
        assert_true(grammar_store_bytes(store) <= LIMIT);
    }
    assert_in_range(grammar_store_count(store), 2, 499);
    assert_ptr_equal(get(store, pattern("used")), used);
    size_t count = grammar_store_count(store);
    grammar_store_release(store, get(store, pattern("number 499"))); /* the last one is still there */
    assert_int_equal(grammar_store_count(store), count);
    grammar_store_release(store, used);
    grammar_store_release(store, used);
    grammar_store_free(store);
}

/* ---- threads ---- */

static struct grammar_vocabulary *letters(void) {
    static char texts[TOKENS][4];
    const char *bytes[TOKENS];
    uint32_t lengths[TOKENS] = {0};
    for (int i = 2; i < TOKENS; i++) {
        lengths[i] = (uint32_t)snprintf(texts[i], sizeof texts[i], "%c%s", ' ' + i, i % 3 ? "" : "a");
        bytes[i] = texts[i];
    }
    bytes[0] = bytes[END] = "";
    struct grammar_vocabulary *vocabulary;
    assert_int_equal(grammar_vocabulary_create(bytes, lengths, TOKENS, END, &vocabulary), OK);
    return vocabulary;
}

struct walk {
    struct grammar *grammar;
    struct grammar_vocabulary *vocabulary;
    uint64_t seed, hash;
    bool failed;
};

/* Takes random allowed tokens and hashes the masks on the way. */
static void *follow(void *context) {
    struct walk *walk = context;
    struct grammar_matcher *matcher = NULL;
    uint64_t bits[2];
    uint32_t last = 0;
    walk->hash = 1;
    walk->failed = grammar_matcher_create(walk->grammar, walk->vocabulary, &matcher) != OK;
    for (int step = 0; step < STEPS && !walk->failed; step++) {
        bool accepted = false;
        walk->failed = grammar_matcher_mask(matcher, bits) != OK;
        walk->hash = (walk->hash ^ bits[0]) * 0x9E3779B97F4A7C15u ^ bits[1];
        for (int tries = 0; tries < 5000 && !accepted && !walk->failed; tries++) {
            walk->seed = walk->seed * 6364136223846793005u + 1442695040888963407u;
            last = (uint32_t)(walk->seed >> 33) % TOKENS;
            if (last != END && bits[last >> 6] >> (last & 63) & 1)
                walk->failed = grammar_matcher_accept(matcher, last, &accepted) != OK || !accepted;
        }
        walk->failed = walk->failed || !accepted;
        if (step % 7 == 0)
            grammar_matcher_rollback(matcher, 1);
    }
    grammar_matcher_free(matcher);
    return NULL;
}

static void threads_get_the_masks_that_one_alone_gets(void **state) {
    (void)state;
    struct grammar_store *store;
    struct grammar_vocabulary *vocabulary = letters();
    struct walk walks[THREADS], alone[THREADS];
    pthread_t threads[THREADS];
    const struct grammar_specification specification =
        pattern("([a-z]{2,9}[0-9 ]?){1,3000}|[^q]{1,30000}|([^z]{1,9}x?){1,3000}");
    assert_int_equal(grammar_store_create(16 * LIMIT, &store), OK);
    for (int i = 0; i < THREADS; i++) {
        walks[i] = (struct walk){get(store, specification), vocabulary, (uint64_t)i, 0, false};
        assert_int_equal(pthread_create(&threads[i], NULL, follow, &walks[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_false(walks[i].failed);
    }
    assert_true(grammar_bytes(walks[0].grammar) < 2 * LIMIT);
    for (int i = 0; i < THREADS; i++) {
        grammar_store_release(store, walks[i].grammar);
        alone[i] = (struct walk){NULL, vocabulary, (uint64_t)i, 0, false};
        assert_int_equal(grammar_compile(&specification, &alone[i].grammar), OK);
        (void)follow(&alone[i]);
        assert_false(alone[i].failed);
        assert_true(alone[i].hash == walks[i].hash);
        grammar_free(alone[i].grammar);
    }
    grammar_store_free(store);
    grammar_vocabulary_free(vocabulary);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_specifications_share_a_grammar),
        cmocka_unit_test(refusals_leave_nothing_behind),
        cmocka_unit_test(unused_grammars_go_when_there_is_too_much),
        cmocka_unit_test(threads_get_the_masks_that_one_alone_gets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

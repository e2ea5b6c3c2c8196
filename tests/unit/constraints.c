/* Answers held to grammars: where the grammar begins, what ends, what is shared, what goes wrong. */
#include "schedule/constraints.h"
#include "model/sampling.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCABULARY = 3100, END = 1 }; /* some more ids than the tokenizer has */

static struct tokenizer *tokenizer;
static struct constraints *constraints;

static int load(void **state) {
    (void)state;
    if (tokenizer_load(SOURCE_DIR "/inputs/nano", &tokenizer) != OK ||
        constraints_create(tokenizer, VOCABULARY, END, &constraints) != OK) {
        fprintf(stderr, "%s\n", failure_message());
        return 1;
    }
    return 0;
}

static int unload(void **state) {
    (void)state;
    constraints_free(constraints);
    tokenizer_free(tokenizer);
    return 0;
}

static struct request held_to(enum constraint_kind kind, const char *text) {
    return (struct request){.constraint = kind, .constraint_text = {text, strlen(text)}};
}

static struct constraint *begin(const struct request *request) {
    struct constraint *constraint = NULL;
    assert_int_equal(constraint_begin(constraints, request, &constraint), OK);
    return constraint;
}

static int32_t token_of(const char *text) {
    struct token_list ids = {0};
    assert_int_equal(tokenizer_encode_plain(tokenizer, text, strlen(text), &ids), OK);
    assert_int_equal(ids.count, 1);
    int32_t id = ids.ids[0];
    free(ids.ids);
    return id;
}

static bool allows(struct constraint *constraint, int32_t token) {
    constraint_make_mask(constraint);
    const uint64_t *mask = constraint_mask(constraint);
    return !mask || (mask[token / 64] >> token % 64 & 1) != 0;
}

static void accept_all(struct constraint *constraint, const char *text) {
    for (; *text; text++) {
        const char letter[] = {*text, 0};
        assert_true(allows(constraint, token_of(letter)));
        constraint_accept(constraint, token_of(letter));
        assert_null(constraint_fault(constraint));
    }
}

static void anything_may_come_without_one(void **state) {
    (void)state;
    const struct request request = {0};
    struct constraint *constraint = begin(&request);
    assert_null(constraint);
    constraint_make_mask(constraint);
    constraint_accept(constraint, 5);
    assert_null(constraint_mask(constraint));
    assert_null(constraint_fault(constraint));
    constraint_free(constraint);
}

static void an_answer_ends_where_its_grammar_does(void **state) {
    (void)state;
    const struct request request = held_to(CONSTRAINT_REGEX, "ab?");
    struct constraint *constraint = begin(&request);
    assert_false(allows(constraint, END));
    assert_false(allows(constraint, token_of("b")));
    accept_all(constraint, "a");
    assert_true(allows(constraint, END) && allows(constraint, token_of("b")));
    for (int32_t token = 3000; token < VOCABULARY; token++) /* control tokens, and ids of no token */
        assert_false(allows(constraint, token));
    accept_all(constraint, "b");
    constraint_accept(constraint, END);
    for (int32_t token = 0; token < VOCABULARY; token++) /* with ignore_eos: nothing but ends */
        assert_int_equal(allows(constraint, token), token == END);
    constraint_accept(constraint, END);
    assert_null(constraint_fault(constraint));
    constraint_free(constraint);
}

static void grammars_begin_behind_reasoning(void **state) {
    (void)state;
    const int32_t end_of_reasoning = tokenizer_added_id(tokenizer, "</think>");
    struct request request = held_to(CONSTRAINT_REGEX, "a+");
    request.thinking = true;
    struct constraint *constraint = begin(&request);
    assert_true(end_of_reasoning > 0);
    for (int32_t token = 0; token < VOCABULARY; token++)
        assert_int_equal(allows(constraint, token), token != END);
    constraint_accept(constraint, token_of("b"));
    constraint_accept(constraint, end_of_reasoning);
    assert_false(
        allows(constraint, token_of("b")) || allows(constraint, END) || allows(constraint, end_of_reasoning));
    accept_all(constraint, "aa");
    constraint_free(constraint);
    /* An empty answer may end at once. */
    request.constraint_text = (struct text_piece){"a*", 2};
    constraint = begin(&request);
    assert_true(allows(constraint, END));
    constraint_free(constraint);
}

#define TOOLS                                                                                                \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","              \
    "\"properties\":{}}}}]"

static void calls_begin_and_are_tagged_by_the_marker(void **state) {
    (void)state;
    const int32_t marker = tokenizer_added_id(tokenizer, "｜DSML｜");
    struct request request = held_to(CONSTRAINT_TOOL_CALL_REQUIRED, TOOLS);
    request.start = START_CALLS;
    request.one_call = true;
    struct constraint *constraint = begin(&request);
    accept_all(constraint, "<");
    constraint_make_mask(constraint);
    for (int32_t token = 0; token < VOCABULARY; token++)
        assert_int_equal(allows(constraint, token), token == marker);
    constraint_accept(constraint, marker);
    accept_all(constraint, " invoke name=\"f\">\n</");
    constraint_accept(constraint, marker);
    accept_all(constraint, " invoke>\n");
    accept_all(constraint, "</"); /* one call: the block must end */
    constraint_accept(constraint, marker);
    accept_all(constraint, " calls>");
    assert_true(allows(constraint, END));
    constraint_free(constraint);

    /* No call may begin where none is allowed, though its spelling may be started. */
    request = held_to(CONSTRAINT_NO_TOOL_CALL, "");
    constraint = begin(&request);
    accept_all(constraint, "Hi <");
    assert_false(allows(constraint, marker));
    assert_true(allows(constraint, END));
    constraint_free(constraint);
}

static void requests_of_one_content_share(void **state) {
    (void)state;
    const struct request request = held_to(CONSTRAINT_JSON, "{\"enum\":[\"ab\",\"ac\"]}");
    struct request strict = request;
    strict.constraint_compact = true; /* another content */
    struct constraint *first = begin(&request), *second = begin(&request), *other = begin(&strict);
    accept_all(first, "\"a");
    assert_false(allows(second, token_of("b"))); /* each follows its own answer */
    constraint_free(first);
    accept_all(second, "\"ac\"");
    assert_true(allows(second, END));
    constraint_free(second);
    constraint_free(other);
    for (int i = 0; i < 200; i++) { /* more than are kept */
        char pattern[32];
        snprintf(pattern, sizeof pattern, "a{%d}", 1 + i % 150);
        const struct request changing = held_to(CONSTRAINT_REGEX, pattern);
        struct constraint *constraint = begin(&changing);
        accept_all(constraint, "a");
        assert_int_equal(allows(constraint, END), i % 150 == 0);
        constraint_free(constraint);
    }
}

static void faults_are_told(void **state) {
    (void)state;
    struct request request = held_to(CONSTRAINT_REGEX, "a(?=b)");
    struct constraint *constraint = begin(&request);
    assert_non_null(strstr(constraint_fault(constraint), "lookahead"));
    assert_true(allows(constraint, 7)); /* what is drawn does not matter */
    constraint_accept(constraint, 7);
    constraint_free(constraint);

    request = held_to(CONSTRAINT_REGEX, "ab");
    constraint = begin(&request);
    constraint_accept(constraint, token_of("b")); /* as from a state of another grammar */
    assert_non_null(strstr(constraint_fault(constraint), "does not allow"));
    assert_true(allows(constraint, 7));
    constraint_free(constraint);

    request = held_to(CONSTRAINT_TOOL_CALL_REQUIRED, "[]");
    constraint = begin(&request);
    assert_non_null(constraint_fault(constraint));
    constraint_free(constraint);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(anything_may_come_without_one),
        cmocka_unit_test(an_answer_ends_where_its_grammar_does),
        cmocka_unit_test(grammars_begin_behind_reasoning),
        cmocka_unit_test(calls_begin_and_are_tagged_by_the_marker),
        cmocka_unit_test(requests_of_one_content_share),
        cmocka_unit_test(faults_are_told),
    };
    return cmocka_run_group_tests(tests, load, unload);
}

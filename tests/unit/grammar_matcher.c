/* Random rules against tables of all short texts; masks against accepting each token; rollback and fork against
 * a fresh matcher; the real vocabulary; limits. */
#include "grammar/grammar.h"
#include "grammar/rules.h"
#include "grammar_languages.h"
#include "recipe/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ROUNDS = 200, DEPTH = 3, RULES = 3, SMALL = 20, END = 1, CONTROL = 2 };

/* ---- a small vocabulary: all texts of up to three letters, one twice, an end and a control token ---- */

static struct grammar_vocabulary *small_vocabulary(void) {
    static char texts[SMALL][4];
    const char *bytes[SMALL];
    uint32_t lengths[SMALL] = {0};
    for (uint32_t i = 0; i < SMALL; i++) {
        bytes[i] = texts[i];
        if (i > CONTROL)
            lengths[i] = text_spell(i - 1, texts[i]);
    }
    memcpy(texts[0], "ab", 2); /* the same text as another token */
    lengths[0] = 2;
    struct grammar_vocabulary *vocabulary;
    assert_int_equal(grammar_vocabulary_create(bytes, lengths, SMALL, END, &vocabulary), OK);
    return vocabulary;
}

static bool bit(const uint64_t *bits, uint32_t token) {
    return bits[token >> 6] >> (token & 63) & 1;
}

/* ---- random rules; rule i may call itself and the others behind a letter ---- */

struct plan {
    struct rules *rules;
    uint64_t seed;
    uint32_t numbers[RULES];
    struct language languages[RULES]; /* as far as known yet */
};

static uint32_t letter(struct plan *plan, bool b, struct language *language) {
    memset(language, 0, sizeof *language);
    language->has[b ? 3 : 2] = true;
    return rules_terminal(plan->rules, expression_byte(rules_expressions(plan->rules), b ? 'b' : 'a'));
}

static uint32_t grow(struct plan *plan, int depth, struct language *language) {
    uint32_t choice = depth ? draw(&plan->seed, 8) : draw(&plan->seed, 2);
    if (choice < 2)
        return letter(plan, choice, language);
    struct language x, y;
    if (choice == 2) {
        uint32_t rule = draw(&plan->seed, RULES);
        uint32_t pair[] = {
            letter(plan, draw(&plan->seed, 2), &x), rules_call(plan->rules, plan->numbers[rule])};
        *language = language_concatenate(&x, &plan->languages[rule]);
        return rules_sequence(plan->rules, pair, 2);
    }
    if (choice == 3) {
        int32_t least = (int32_t)draw(&plan->seed, 3);
        int32_t most = draw(&plan->seed, 3) ? least + 1 + (int32_t)draw(&plan->seed, 3) : -1;
        uint32_t pair[] = {letter(plan, draw(&plan->seed, 2), &x), grow(plan, depth - 1, &y)};
        x = language_concatenate(&x, &y);
        *language = language_repeat(&x, least, most);
        return rules_repeat(plan->rules, rules_sequence(plan->rules, pair, 2), least, most);
    }
    if (choice == 4) { /* a terminal of its own automaton: a* b{1,2} */
        struct expressions *e = rules_expressions(plan->rules);
        x = y = (struct language){{0}};
        x.has[2] = y.has[3] = true;
        x = language_repeat(&x, 0, -1);
        y = language_repeat(&y, 1, 2);
        *language = language_concatenate(&x, &y);
        return rules_terminal(
            plan->rules, expression_concatenate(e, expression_repeat(e, expression_byte(e, 'a'), 0, -1),
                             expression_repeat(e, expression_byte(e, 'b'), 1, 2)));
    }
    uint32_t pair[] = {grow(plan, depth - 1, &x), grow(plan, depth - 1, &y)};
    if (choice < 7) {
        *language = language_concatenate(&x, &y);
        return rules_sequence(plan->rules, pair, 2);
    }
    *language = language_join(&x, &y);
    return rules_choice(plan->rules, pair, 2);
}

/* The rules of a seed, with their languages: each round of building them anew knows texts that are a letter
 * longer, as calls come behind a letter. NULL: rules without a finite text. */
static struct grammar *random_grammar(uint64_t seed, struct language *language) {
    struct plan plan = {.seed = seed};
    memset(plan.languages, 0, sizeof plan.languages);
    struct grammar *grammar = NULL;
    for (int round = 0; round <= LONGEST + 1; round++) {
        struct language next[RULES];
        plan.seed = seed;
        assert_int_equal(rules_create(&plan.rules), OK);
        for (int i = 0; i < RULES; i++)
            plan.numbers[i] = rules_declare(plan.rules, "rule", i == 1);
        for (int i = 0; i < RULES; i++)
            rules_define(plan.rules, plan.numbers[i], grow(&plan, DEPTH, &next[i]));
        memcpy(plan.languages, next, sizeof next);
        if (round <= LONGEST)
            rules_free(plan.rules);
        else if (rules_finish(plan.rules, rules_call(plan.rules, plan.numbers[0]), &grammar) != OK)
            return NULL;
    }
    *language = plan.languages[0];
    return grammar;
}

/* Whether some text of the table starts with `text`. */
static bool has_prefix(const struct language *language, uint32_t text) {
    uint32_t length = text_length(text);
    for (uint32_t i = 1; i < TEXTS; i++)
        if (language->has[i] && text_length(i) >= length && i >> (text_length(i) - length) == text)
            return true;
    return false;
}

/* Whether the matcher's answer can be brought to an end with at most `more` letters. */
static bool can_end(struct grammar_matcher *matcher, int more) {
    if (grammar_matcher_accepting(matcher))
        return true;
    for (int i = 0; more && i < 2; i++) {
        size_t taken = 0;
        assert_int_equal(grammar_matcher_accept_bytes(matcher, i ? "b" : "a", 1, &taken), OK);
        bool found = taken && can_end(matcher, more - 1);
        grammar_matcher_rollback(matcher, 1);
        if (found)
            return true;
    }
    return false;
}

static void random_rules_have_their_texts(void **state) {
    (void)state;
    struct grammar_vocabulary *vocabulary = small_vocabulary();
    uint64_t seed = 0x5EED;
    int checked = 0, ended = 0, unknown = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct language language;
        (void)draw(&seed, 2);
        struct grammar *grammar = random_grammar(seed, &language);
        if (!grammar)
            continue;
        checked++;
        for (uint32_t text = 1; text < TEXTS; text++) {
            struct grammar_matcher *matcher;
            char letters[LONGEST];
            size_t length = text_spell(text, letters), taken = 0;
            assert_int_equal(grammar_matcher_create(grammar, vocabulary, &matcher), OK);
            assert_int_equal(grammar_matcher_accept_bytes(matcher, letters, length, &taken), OK);
            if ((taken == length && grammar_matcher_accepting(matcher)) != language.has[text] ||
                (taken < length && has_prefix(&language, text)))
                fail_msg("round %d: %.*s", round, (int)length, letters);
            if (taken == length) /* nothing is allowed that leads nowhere */
                *(can_end(matcher, 10) ? &ended : &unknown) += 1;
            grammar_matcher_free(matcher);
        }
        grammar_free(grammar);
    }
    assert_true(checked > ROUNDS / 4);
    assert_true(ended > 100 && unknown <= ended / 10); /* some need more than 10 letters */
    grammar_vocabulary_free(vocabulary);
}

/* The mask has just the tokens that the matcher accepts; a finished one shows the end and accepts nothing. */
static uint32_t check_mask(struct grammar_matcher *matcher, uint32_t count, uint64_t *bits) {
    uint32_t allowed = 0;
    bool finished = grammar_matcher_finished(matcher);
    assert_int_equal(grammar_matcher_mask(matcher, bits), OK);
    if (finished)
        assert_int_equal(bits[0], 1 << END);
    for (uint32_t token = 0; token < count; token++) {
        bool accepted = false;
        assert_int_equal(grammar_matcher_accept(matcher, token, &accepted), OK);
        if (accepted)
            grammar_matcher_rollback(matcher, 1);
        if (accepted != (bit(bits, token) && !finished))
            fail_msg("token %u: mask %d, accept %d", token, bit(bits, token), accepted);
        allowed += accepted;
    }
    return allowed;
}

static void random_walks_agree_with_fresh_matchers(void **state) {
    (void)state;
    struct grammar_vocabulary *vocabulary = small_vocabulary();
    uint64_t seed = 99;
    int steps = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct language language;
        (void)draw(&seed, 2);
        struct grammar *grammar = random_grammar(seed, &language), *cold = random_grammar(seed, &language);
        if (!grammar)
            continue;
        struct grammar_matcher *matcher, *copy, *fresh;
        assert_int_equal(grammar_matcher_create(grammar, vocabulary, &matcher), OK);
        uint32_t walk[64], length = 0;
        for (int step = 0; step < 24; step++) {
            uint64_t bits[1], expected[1];
            uint32_t allowed = check_mask(matcher, SMALL, bits);
            assert_int_equal(grammar_matcher_create(cold, vocabulary, &fresh), OK);
            for (uint32_t i = 0; i < length; i++) {
                bool accepted = false;
                assert_int_equal(grammar_matcher_accept(fresh, walk[i], &accepted), OK);
                assert_true(accepted);
            }
            assert_int_equal(grammar_matcher_mask(fresh, expected), OK);
            assert_int_equal(bits[0], expected[0]);
            assert_int_equal(grammar_matcher_accepting(matcher), grammar_matcher_accepting(fresh));
            grammar_matcher_free(fresh);
            if (!allowed || draw(&seed, 4) == 0) {
                uint32_t back = draw(&seed, 4) + (allowed == 0);
                grammar_matcher_rollback(matcher, back);
                length = back < length ? length - back : 0;
                continue;
            }
            uint32_t token = draw(&seed, SMALL);
            while (!bit(bits, token))
                token = (token + 1) % SMALL;
            bool accepted = false;
            assert_int_equal(grammar_matcher_fork(matcher, &copy), OK);
            assert_int_equal(grammar_matcher_accept(copy, token, &accepted), OK);
            assert_true(accepted);
            assert_int_equal(grammar_matcher_mask(matcher, expected), OK); /* left alone by its fork */
            assert_int_equal(bits[0], expected[0]);
            grammar_matcher_free(matcher);
            matcher = copy;
            walk[length++] = token;
            steps++;
        }
        grammar_matcher_free(matcher);
        grammar_free(grammar);
        grammar_free(cold);
    }
    assert_true(steps > ROUNDS);
    grammar_vocabulary_free(vocabulary);
}

/* ---- the real vocabulary ---- */

/* Arrays of strings, numbers and arrays: value = string | digits | [ value {, value} ]. */
static struct grammar *nested_arrays(void) {
    struct rules *rules;
    struct grammar *grammar;
    assert_int_equal(rules_create(&rules), OK);
    struct expressions *e = rules_expressions(rules);
    const struct code_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}}, digits[] = {{'0', '9'}};
    uint32_t quote = expression_byte(e, '"');
    uint32_t string = expression_concatenate(e, quote,
        expression_concatenate(e, expression_repeat(e, expression_code_points(e, plain, 3), 0, 200), quote));
    uint32_t value = rules_declare(rules, "value", true), call = rules_call(rules, value);
    uint32_t more =
        rules_sequence(rules, (uint32_t[]){rules_terminal(rules, expression_literal(e, ", ", 2)), call}, 2);
    uint32_t array = rules_sequence(rules,
        (uint32_t[]){rules_terminal(rules, expression_byte(e, '[')), call, rules_repeat(rules, more, 0, -1),
            rules_terminal(rules, expression_byte(e, ']'))},
        4);
    uint32_t number = rules_terminal(rules, expression_repeat(e, expression_code_points(e, digits, 1), 1, 9));
    rules_define(
        rules, value, rules_choice(rules, (uint32_t[]){rules_terminal(rules, string), number, array}, 3));
    assert_int_equal(rules_finish(rules, call, &grammar), OK);
    return grammar;
}

static struct grammar_vocabulary *real_vocabulary(struct tokenizer **tokenizer, uint32_t *count) {
    assert_int_equal(tokenizer_load(SOURCE_DIR "/tests/data/recipe", tokenizer), OK);
    *count = (uint32_t)tokenizer_size(*tokenizer);
    const char **bytes = calloc(*count, sizeof *bytes);
    uint32_t *lengths = calloc(*count, sizeof *lengths);
    for (uint32_t i = 0; i < *count; i++) {
        size_t length = 0;
        if (!tokenizer_is_added(*tokenizer, (int32_t)i) &&
            tokenizer_token_bytes(*tokenizer, (int32_t)i, &bytes[i], &length))
            lengths[i] = (uint32_t)length;
    }
    struct grammar_vocabulary *vocabulary;
    assert_int_equal(grammar_vocabulary_create(bytes, lengths, *count, END, &vocabulary), OK);
    free(bytes);
    free(lengths);
    return vocabulary;
}

static void real_masks_agree_with_accept(void **state) {
    (void)state;
    struct tokenizer *tokenizer;
    uint32_t count;
    struct grammar_vocabulary *vocabulary = real_vocabulary(&tokenizer, &count);
    struct grammar *grammar = nested_arrays();
    uint64_t *bits = calloc(count / 64 + 1, sizeof *bits);
    static const char *const texts[] = {"", "[", "[\"", "[\"caf\xC3", "[1234567", "[[[\"x\"", "[1, ", "12"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct grammar_matcher *matcher;
        size_t taken = 0;
        assert_int_equal(grammar_matcher_create(grammar, vocabulary, &matcher), OK);
        assert_int_equal(grammar_matcher_accept_bytes(matcher, texts[i], strlen(texts[i]), &taken), OK);
        assert_int_equal(taken, strlen(texts[i]));
        assert_true(check_mask(matcher, count, bits) > 0);
        grammar_matcher_free(matcher);
    }
    free(bits);
    grammar_free(grammar);
    grammar_vocabulary_free(vocabulary);
    tokenizer_free(tokenizer);
}

/* Kinds of text of which the vocabulary has masks ready, at and near their limits, and what looks like them. */
static void masks_of_common_texts_agree_with_accept(void **state) {
    (void)state;
    static const struct {
        enum grammar_kind kind;
        const char *text, *prefixes[4];
    } cases[] = {
        {GRAMMAR_REGEX, "[a-z]{2,9}( [a-z]{1,12}){0,4}", {"", "a", "abcdefgh", "ab c"}},
        {GRAMMAR_REGEX, " ?[a-z]{0,5}x", {"", " ", " abcd"}},
        {GRAMMAR_REGEX, "( [a-z]+)+", {"", " ", " a"}},
        {GRAMMAR_REGEX, "(ab|[a-z]{3})*", {"", "a", "ab"}},
        {GRAMMAR_REGEX, "[A-Za-z0-9]{1,4}!", {"", "Ab", "Ab12"}},
        {GRAMMAR_REGEX, "\\w{1,20}", {"", "abcdef", "abcdefghijklmnopq"}},
        {GRAMMAR_REGEX, "\\S+", {"", "\""}},
        {GRAMMAR_REGEX, "[\u4e00-\u9fa5]{1,3}", {"", "\u65e5", "\u65e5\u672c", "\xE6"}},
        {GRAMMAR_REGEX, "[\u4e00-\u9fff]{16,17}.", {"", "\xE9\xBE"}},
        {GRAMMAR_REGEX, "[\u3040-\u9fa5]+", {"", "\u65e5"}},
        {GRAMMAR_REGEX, ".{1,20}", {"", "abc", "abc def", "abc def ghi jkl mn"}},
        {GRAMMAR_REGEX, ".*foo.*", {"", "f", "fo", "foo"}},
        {GRAMMAR_REGEX, "[^\n]{15,16}\n", {"", "abc", "abc def ghi jk"}},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":18}",
            {"\"", "\"a", "\"abc", "\"abcdefgh ijklmno"}},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"[0-9]\"}", {"\"", "\"a", "\"1"}},
        {GRAMMAR_SCHEMA, "{\"properties\":{\"abc\":{},\"hello\":{}},\"type\":\"object\"}",
            {"{\"", "{\"hel", "{\"x"}},
        {GRAMMAR_SCHEMA, "{\"items\":{\"type\":\"string\"},\"type\":\"array\",\"maxItems\":200}",
            {"[\"", "[\"a\\", "[\"\xE6\x97", "[\"a\","}},
    };
    struct tokenizer *tokenizer;
    uint32_t count;
    struct grammar_vocabulary *vocabulary = real_vocabulary(&tokenizer, &count);
    uint64_t *bits = calloc(count / 64 + 1, sizeof *bits);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct grammar_specification specification = {.kind = cases[i].kind,
            .text = cases[i].text,
            .bytes = strlen(cases[i].text),
            .marker_token = GRAMMAR_NO_TOKEN};
        struct grammar *grammar;
        assert_int_equal(grammar_compile(&specification, &grammar), OK);
        for (int j = 0; j < 4 && cases[i].prefixes[j]; j++) {
            struct grammar_matcher *matcher;
            size_t taken = 0, bytes = strlen(cases[i].prefixes[j]);
            assert_int_equal(grammar_matcher_create(grammar, vocabulary, &matcher), OK);
            assert_int_equal(grammar_matcher_accept_bytes(matcher, cases[i].prefixes[j], bytes, &taken), OK);
            assert_int_equal(taken, bytes);
            assert_true(check_mask(matcher, count, bits) > 0);
            grammar_matcher_free(matcher);
        }
        grammar_free(grammar);
    }
    free(bits);
    grammar_vocabulary_free(vocabulary);
    tokenizer_free(tokenizer);
}

/* ---- ends and limits ---- */

static void depth_ends_quietly(void **state) {
    (void)state;
    struct grammar_vocabulary *vocabulary = small_vocabulary();
    struct grammar *grammar = nested_arrays();
    struct grammar_matcher *matcher;
    char *text = malloc(2000);
    size_t taken = 0, closed = 0;
    bool next[256];
    memset(text, '[', 2000);
    assert_int_equal(grammar_matcher_create(grammar, vocabulary, &matcher), OK);
    assert_int_equal(grammar_matcher_accept_bytes(matcher, text, 2000, &taken), OK);
    assert_in_range(taken, RULES_DEPTH_LIMIT - 1, RULES_DEPTH_LIMIT);
    assert_int_equal(grammar_matcher_next_bytes(matcher, next), OK);
    assert_false(next['[']);
    assert_true(next['1']);
    memset(text, ']', 2000);
    text[0] = '1';
    assert_int_equal(grammar_matcher_accept_bytes(matcher, text, 2000, &closed), OK);
    assert_int_equal(closed, taken + 1);
    assert_true(grammar_matcher_accepting(matcher));
    grammar_matcher_free(matcher);
    grammar_free(grammar);
    free(text);
    grammar_vocabulary_free(vocabulary);
}

static void finished_matchers_answer_quietly(void **state) {
    (void)state;
    struct grammar_vocabulary *vocabulary = small_vocabulary();
    struct rules *rules;
    struct grammar *grammar;
    struct grammar_matcher *matcher;
    assert_int_equal(rules_create(&rules), OK);
    uint32_t marker = rules_token(rules, CONTROL);
    uint32_t word = rules_terminal(rules, expression_literal(rules_expressions(rules), "abba", 4));
    assert_int_equal(rules_finish(rules, rules_sequence(rules, (uint32_t[]){marker, word}, 2), &grammar), OK);
    assert_int_equal(grammar_matcher_create(grammar, vocabulary, &matcher), OK);
    uint64_t bits[1];
    char forced[8];
    size_t bytes = 0;
    bool accepted = false;
    assert_int_equal(grammar_matcher_mask(matcher, bits), OK);
    assert_int_equal(bits[0], 1 << CONTROL);
    assert_int_equal(grammar_matcher_accept(matcher, CONTROL, &accepted), OK);
    assert_true(accepted);
    assert_int_equal(grammar_matcher_forced(matcher, forced, sizeof forced, &bytes), OK);
    assert_int_equal(bytes, 4);
    assert_memory_equal(forced, "abba", 4);
    assert_int_equal(grammar_matcher_accept_bytes(matcher, "abba", 4, &bytes), OK);
    assert_int_equal(grammar_matcher_accept(matcher, END, &accepted), OK);
    assert_true(accepted && grammar_matcher_finished(matcher));
    for (uint32_t token = 0; token < SMALL + 2; token++) {
        assert_int_equal(grammar_matcher_accept(matcher, token, &accepted), OK);
        assert_false(accepted);
    }
    assert_int_equal(grammar_matcher_mask(matcher, bits), OK);
    assert_int_equal(bits[0], 1 << END);
    grammar_matcher_rollback(matcher, 3); /* the end, the word, the marker */
    assert_int_equal(grammar_matcher_mask(matcher, bits), OK);
    assert_int_equal(bits[0], 1 << CONTROL);
    grammar_matcher_free(matcher);
    grammar_free(grammar);
    grammar_vocabulary_free(vocabulary);
}

static void rules_without_an_end_are_refused(void **state) {
    (void)state;
    struct rules *rules;
    struct grammar *grammar;
    assert_int_equal(rules_create(&rules), OK);
    uint32_t rule = rules_declare(rules, "endless", false);
    uint32_t a = rules_terminal(rules, expression_byte(rules_expressions(rules), 'a'));
    rules_define(rules, rule, rules_sequence(rules, (uint32_t[]){a, rules_call(rules, rule)}, 2));
    assert_int_equal(rules_finish(rules, rules_call(rules, rule), &grammar), ERROR_INPUT);
    assert_null(grammar);
    assert_non_null(strstr(failure_message(), "endless"));
}

/* left = maybe left 'a' | 'a', with or without something before it that may be empty. */
static void rules_that_begin_with_themselves_are_refused(void **state) {
    (void)state;
    for (int variant = 0; variant < 3; variant++) {
        struct rules *rules;
        struct grammar *grammar;
        assert_int_equal(rules_create(&rules), OK);
        struct expressions *e = rules_expressions(rules);
        uint32_t left = rules_declare(rules, "left", false), other = rules_declare(rules, "other", false);
        uint32_t a = rules_terminal(rules, expression_byte(e, 'a'));
        uint32_t maybe =
            rules_terminal(rules, expression_repeat(e, expression_byte(e, 'b'), variant == 2, 1));
        uint32_t again =
            rules_sequence(rules, (uint32_t[]){maybe, rules_call(rules, variant == 1 ? other : left), a}, 3);
        rules_define(rules, left, rules_choice(rules, (uint32_t[]){a, again}, 2));
        rules_define(rules, other, rules_call(rules, left));
        enum result status = rules_finish(rules, rules_call(rules, left), &grammar);
        assert_int_equal(status, variant == 2 ? OK : ERROR_INPUT);
        assert_true(variant == 2 || strstr(failure_message(), "begins with itself"));
        grammar_free(grammar);
    }
}

/* The same work on every machine: what is refused is refused here, too, and soon. */
static void too_much_work_is_refused(void **state) {
    (void)state;
    struct {
        char *text;
        size_t bytes, room;
    } schema = {.text = malloc(1 << 20), .room = 1 << 20};
    schema.bytes = (size_t)snprintf(schema.text, schema.room, "{\"properties\":{");
    for (int i = 0; i < 40000; i++)
        schema.bytes += (size_t)snprintf(
            schema.text + schema.bytes, schema.room - schema.bytes, "%s\"key %d\":{}", i ? "," : "", i);
    schema.bytes += (size_t)snprintf(schema.text + schema.bytes, schema.room - schema.bytes, "}}");
    const struct grammar_specification specification = {
        .kind = GRAMMAR_SCHEMA, .text = schema.text, .bytes = schema.bytes, .marker_token = GRAMMAR_NO_TOKEN};
    struct grammar *grammar;
    assert_int_equal(grammar_compile(&specification, &grammar), ERROR_INPUT);
    assert_non_null(strstr(failure_message(), "too much work"));
    free(schema.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_rules_have_their_texts),
        cmocka_unit_test(random_walks_agree_with_fresh_matchers),
        cmocka_unit_test(real_masks_agree_with_accept),
        cmocka_unit_test(masks_of_common_texts_agree_with_accept), cmocka_unit_test(depth_ends_quietly),
        cmocka_unit_test(finished_matchers_answer_quietly),
        cmocka_unit_test(rules_without_an_end_are_refused),
        cmocka_unit_test(rules_that_begin_with_themselves_are_refused),
        cmocka_unit_test(too_much_work_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

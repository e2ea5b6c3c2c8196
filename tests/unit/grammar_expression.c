/* Random expressions against tables of all short texts; characters against their UTF-8 spelling. */
#include "grammar/expression.h"
#include "grammar_languages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { ROUNDS = 300, DEPTH = 4 };

static uint32_t grow(struct expressions *e, uint64_t *seed, int depth, struct language *language) {
    uint32_t choice = depth ? draw(seed, 9) : draw(seed, 3);
    memset(language, 0, sizeof *language);
    if (choice == 0) {
        *language = language_empty_text();
        return expression_empty(e);
    }
    if (choice < 3) {
        language->has[choice == 1 ? 2 : 3] = true;
        return expression_byte(e, choice == 1 ? 'a' : 'b');
    }
    struct language x, y;
    uint32_t pair[2] = {grow(e, seed, depth - 1, &x), EXPRESSION_FAILED};
    if (choice == 3) { /* the complement within texts of a and b */
        for (uint32_t i = 1; i < TEXTS; i++)
            language->has[i] = !x.has[i];
        struct byte_set letters = {{0, (uint64_t)3 << ('a' - 64), 0, 0}};
        uint32_t all = expression_repeat(e, expression_byte_set(e, &letters), 0, -1);
        return expression_both(e, (uint32_t[]){expression_complement(e, pair[0]), all}, 2);
    }
    if (choice == 4) {
        int32_t least = (int32_t)draw(seed, 4), most = draw(seed, 3) ? least + (int32_t)draw(seed, 4) : -1;
        *language = language_repeat(&x, least, most);
        return expression_repeat(e, pair[0], least, most);
    }
    pair[1] = grow(e, seed, depth - 1, &y);
    if (choice < 7) {
        *language = language_concatenate(&x, &y);
        return expression_concatenate(e, pair[0], pair[1]);
    }
    if (choice == 7) {
        *language = language_join(&x, &y);
        return expression_either(e, pair, 2);
    }
    for (uint32_t i = 1; i < TEXTS; i++)
        language->has[i] = x.has[i] && y.has[i];
    return expression_both(e, pair, 2);
}

static void random_expressions_have_their_texts(void **state) {
    (void)state;
    uint64_t seed = 0x5EED;
    for (int round = 0; round < ROUNDS; round++) {
        struct expressions *e;
        struct language language;
        assert_int_equal(expressions_create(&e), OK);
        uint32_t expression = grow(e, &seed, DEPTH, &language);
        bool any = false;
        for (uint32_t text = 1; text < TEXTS; text++) {
            char letters[LONGEST];
            uint32_t length = text_spell(text, letters);
            if (expression_matches(e, expression, letters, length) != language.has[text])
                fail_msg("round %d: %.*s", round, (int)length, letters);
            any = any || language.has[text];
        }
        if (expression_is_empty(e, expression))
            assert_false(any);
        assert_int_equal(expressions_check(e), OK);
        expressions_free(e);
    }
}

static uint32_t spell_character(uint32_t code, char *bytes) {
    if (code < 0x80) {
        bytes[0] = (char)code;
        return 1;
    }
    uint32_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (uint32_t i = length; i-- > 1; code >>= 6)
        bytes[i] = (char)(0x80 | (code & 0x3F));
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    bytes[0] = (char)(lead[length] | code);
    return length;
}

static void ranges_of_characters_are_exact(void **state) {
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 200; round++) {
        uint32_t shift = draw(&seed, 15);
        struct code_range range = {draw(&seed, 0x110000) >> shift, 0};
        range.last = range.first + (draw(&seed, 0x110000 - range.first) >> draw(&seed, 15));
        struct expressions *e;
        assert_int_equal(expressions_create(&e), OK);
        uint32_t expression = expression_code_points(e, &range, 1);
        uint32_t near[] = {range.first, range.last, range.first - 1, range.last + 1, 0xD7FF, 0xE000, 0xDFFF};
        for (int i = 0; i < 200; i++) {
            uint32_t code = i < 7 ? near[i] : draw(&seed, 0x110000) >> draw(&seed, 15);
            if (code > 0x10FFFF)
                continue;
            char bytes[4];
            uint32_t length = spell_character(code, bytes);
            bool surrogate = code >= 0xD800 && code <= 0xDFFF;
            bool expected = !surrogate && code >= range.first && code <= range.last;
            if (expression_matches(e, expression, bytes, length) != expected)
                fail_msg("U+%04X in U+%04X..U+%04X", code, range.first, range.last);
        }
        expressions_free(e);
    }
}

static void a_large_count_is_one_node(void **state) {
    (void)state;
    struct expressions *e;
    assert_int_equal(expressions_create(&e), OK);
    uint32_t many = expression_repeat(e, expression_byte(e, 'a'), 1000000, 2000000);
    assert_int_not_equal(many, EXPRESSION_FAILED);
    assert_true(expressions_bytes(e) < 100000);
    assert_false(expression_is_empty(e, many));
    expressions_free(e);
}

/* Whether some text of `a` starts with `text`. */
static bool lives(struct expressions *e, uint32_t a, const char *text, uint32_t length) {
    for (uint32_t i = 0; i < length && a != EXPRESSION_NOTHING; i++)
        a = expression_derivative(e, a, (unsigned char)text[i]);
    return a != EXPRESSION_NOTHING;
}

static uint32_t any_run(const void *context, const bool bytes[256], uint32_t shortest) {
    (void)bytes;
    (void)shortest;
    return *(const uint32_t *)context;
}

static void counts_out_of_reach_do_not_change_prefixes(void **state) {
    (void)state;
    uint64_t seed = 0xC0DE;
    for (int round = 0; round < ROUNDS; round++) {
        struct expressions *e;
        struct language language;
        assert_int_equal(expressions_create(&e), OK);
        uint32_t all = grow(e, &seed, DEPTH, &language);
        uint32_t longest = 1 + draw(&seed, 3);
        uint32_t within = expression_within(e, all, any_run, &longest);
        assert_int_equal(expression_nullable(e, within), expression_nullable(e, all));
        for (uint32_t text = 1; text < (uint32_t)2 << longest; text++) {
            char letters[LONGEST];
            uint32_t length = text_spell(text, letters);
            if (lives(e, within, letters, length) != lives(e, all, letters, length))
                fail_msg("round %d: %.*s", round, (int)length, letters);
        }
        expressions_free(e);
    }
}

static void multiples_are_told_by_their_digits(void **state) {
    (void)state;
    struct expressions *e;
    assert_int_equal(expressions_create(&e), OK);
    uint32_t sevens = expression_multiple(e, 7, 0);
    assert_true(expression_matches(e, sevens, "10003", 5));
    assert_true(expression_matches(e, sevens, "2.1", 3));
    assert_false(expression_matches(e, sevens, "10004", 5));
    assert_false(expression_matches(e, sevens, "7a", 2));
    expressions_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_expressions_have_their_texts),
        cmocka_unit_test(ranges_of_characters_are_exact), cmocka_unit_test(a_large_count_is_one_node),
        cmocka_unit_test(counts_out_of_reach_do_not_change_prefixes),
        cmocka_unit_test(multiples_are_told_by_their_digits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "schedule/stop_strings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MOST_STOPS = 4 };

/* Feeds `text` in pieces of `piece` bytes; returns where the answer would be cut, -1: nowhere. */
static int64_t cut(const char *const *stops, const char *text, size_t piece, int32_t *index) {
    struct text_piece pieces[MOST_STOPS];
    int32_t count = 0;
    for (; stops[count]; count++)
        pieces[count] = (struct text_piece){stops[count], strlen(stops[count])};
    struct stop_strings *strings;
    struct stop_scan *scan;
    assert_int_equal(stop_strings_create(pieces, count, &strings), OK);
    assert_int_equal(stop_scan_create(strings, &scan), OK);
    struct stop_match match = {-1, -1};
    size_t bytes = strlen(text);
    for (size_t at = 0; at < bytes; at += piece)
        if (stop_scan_feed(strings, scan, text + at, bytes - at < piece ? bytes - at : piece, &match))
            break;
    stop_scan_free(scan);
    stop_strings_free(strings);
    *index = match.index;
    return match.start;
}

static void expect(const char *const *stops, const char *text, int64_t start, int32_t index) {
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        int32_t found;
        assert_int_equal(cut(stops, text, piece, &found), start);
        assert_int_equal(found, index);
    }
}

static void finds_across_pieces(void **state) {
    (void)state;
    expect((const char *[]){"END", NULL}, "some text END and more", 10, 0);
    expect((const char *[]){"END", NULL}, "some text EN D", -1, -1);
    expect((const char *[]){"aab", NULL}, "aaaaab", 3, 0); /* falls back inside the pattern */
    expect((const char *[]){"abab", NULL}, "abacababab", 4, 0);
    expect((const char *[]){"x", "\n\n", NULL}, "a\n\nx", 1, 1);
    expect((const char *[]){"\xC3\xA9", NULL}, "caf\xC3\xA9", 3, 0); /* a character cut between tokens */
    expect((const char *[]){"b", "b", NULL}, "ab", 1, 0);
    expect((const char *[]){"", "t", NULL}, "at", 1, 1); /* the empty string matches nothing */
    expect((const char *[]){NULL}, "anything", -1, -1);
    expect((const char *[]){"whole", NULL}, "whole", 0, 0);
}

static void first_start_wins_within_a_piece(void **state) {
    (void)state;
    int32_t index;
    assert_int_equal(cut((const char *[]){"bcd", "abcde", NULL}, "xabcdez", 7, &index), 1);
    assert_int_equal(index, 1);
    assert_int_equal(cut((const char *[]){"bcd", "abcde", NULL}, "xabcdez", 1, &index), 2);
    assert_int_equal(index, 0);
}

/* Against the plain way, on texts of two letters. */
static void agrees_with_a_plain_search(void **state) {
    (void)state;
    uint32_t random = 1;
    for (int round = 0; round < 20000; round++) {
        char text[25], stop[6];
        random = random * 1664525 + 1013904223;
        uint32_t bits = random;
        for (int i = 0; i < 24; i++)
            text[i] = "ab"[bits >> (i + 4) & 1];
        text[24] = 0;
        random = random * 1664525 + 1013904223;
        size_t length = 1 + random % 5;
        for (size_t i = 0; i < length; i++)
            stop[i] = "ab"[random >> (8 + i) & 1];
        stop[length] = 0;
        const char *expected = strstr(text, stop);
        int32_t index;
        int64_t found = cut((const char *[]){stop, NULL}, text, 1 + (size_t)round % 7, &index);
        assert_int_equal(found, expected ? expected - text : -1);
    }
}

static void long_outputs_take_linear_time(void **state) {
    (void)state;
    enum { STOP_BYTES = 100000, TEXT_BYTES = 20000000 };
    char *stop = malloc(STOP_BYTES);
    assert_non_null(stop);
    memset(stop, 'a', STOP_BYTES);
    stop[STOP_BYTES - 1] = 'b';
    struct text_piece piece = {stop, STOP_BYTES};
    struct stop_strings *strings;
    struct stop_scan *scan;
    assert_int_equal(stop_strings_create(&piece, 1, &strings), OK);
    assert_int_equal(stop_scan_create(strings, &scan), OK);
    struct stop_match match;
    clock_t start = clock();
    for (int i = 0; i < TEXT_BYTES / 4; i++)
        assert_false(stop_scan_feed(strings, scan, "aaaa", 4, &match));
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 20);
    assert_true(stop_scan_feed(strings, scan, "b", 1, &match));
    assert_int_equal(match.start, TEXT_BYTES - STOP_BYTES + 1);
    stop_scan_free(scan);
    stop_strings_free(strings);
    free(stop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_across_pieces),
        cmocka_unit_test(first_start_wins_within_a_piece),
        cmocka_unit_test(agrees_with_a_plain_search),
        cmocka_unit_test(long_outputs_take_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

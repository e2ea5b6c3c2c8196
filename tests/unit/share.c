#include "campaign/share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOTAL = 101 };

static void deals_each_request_once(void **state) {
    (void)state;
    uint8_t todo[TOTAL];
    int32_t lengths[TOTAL];
    for (int i = 0; i < TOTAL; i++) {
        todo[i] = i % 3 != 1;
        lengths[i] = 10 + i * 37 % 89 * (i % 5);
    }
    static const int32_t sizes[] = {1, 2, 3, 5, 8, 200};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int seen[TOTAL] = {0};
        int64_t fewest = TOTAL, most = 0, shortest = INT64_MAX, longest = 0;
        for (int32_t rank = 0; rank < sizes[s]; rank++) {
            int64_t *share, count, tokens = 0;
            assert_int_equal(share_requests(todo, lengths, TOTAL, rank, sizes[s], &share, &count), OK);
            for (int64_t i = 0; i < count; i++) {
                assert_true(i == 0 || share[i] > share[i - 1]);
                seen[share[i]]++;
                tokens += lengths[share[i]];
            }
            free(share);
            fewest = count < fewest ? count : fewest;
            most = count > most ? count : most;
            shortest = tokens < shortest ? tokens : shortest;
            longest = tokens > longest ? tokens : longest;
        }
        for (int i = 0; i < TOTAL; i++)
            assert_int_equal(seen[i], todo[i]);
        assert_true(most - fewest <= 1);
        assert_true(sizes[s] > 8 || longest - shortest <= 10 + 88 * 4); /* the longest request */
    }
}

static void nothing_to_do(void **state) {
    (void)state;
    uint8_t todo[1] = {0};
    int32_t lengths[1] = {5};
    int64_t *share, count;
    assert_int_equal(share_requests(todo, lengths, 1, 0, 3, &share, &count), OK);
    assert_int_equal(count, 0);
    free(share);
    assert_int_equal(share_requests(todo, lengths, 0, 2, 3, &share, &count), OK);
    assert_int_equal(count, 0);
    free(share);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deals_each_request_once),
        cmocka_unit_test(nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

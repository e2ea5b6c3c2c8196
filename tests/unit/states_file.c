#include "campaign_files.h"

static void check_record(const struct state_record *record, int i, int generated) {
    assert_int_equal(record->request, i);
    assert_int_equal(record->sequence_count, i % 2 ? 1 : 2);
    for (int s = 0; s < record->sequence_count; s++) {
        const struct section_rows *sections = record->sequences[s].sections;
        assert_int_equal(record->sequences[s].tokens, 10 + s + i);
        assert_int_equal(sections[0].rows, i % 64);
        assert_int_equal(sections[1].rows, 5);
        const unsigned char *rows = sections[0].data, *window = sections[1].data;
        for (size_t b = 0; b < (size_t)(i % 64) * 8; b++)
            assert_int_equal(rows[b], (unsigned char)(b * 7 + (size_t)i));
        for (size_t b = 0; b < 15; b++)
            assert_int_equal(window[b], (unsigned char)(b * 7 + (size_t)i));
    }
    assert_int_equal(record->choice_count, 2);
    const struct saved_choice *first = &record->choices[0], *second = &record->choices[1];
    assert_int_equal(first->sequence, 0);
    assert_int_equal(first->token_count, 1);
    assert_int_equal(first->token_ids[0], i);
    assert_true(first->logprobs[0] == -0.5f);
    assert_int_equal(first->top_logprobs, 2);
    assert_int_equal(first->top_ids[0], i);
    assert_true(first->top_values[1] == -2);
    assert_int_equal(second->sequence, i % 2 ? -1 : 1);
    assert_int_equal(second->token_count, generated);
    for (int t = 0; t < generated; t++) {
        assert_int_equal(second->token_ids[t], i + t);
        assert_true(second->logprobs[t] == -0.5f - (float)t);
    }
    assert_int_equal(second->top_logprobs, 0);
}

static void round_trip(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 200, 0);
    for (int part = 0; part < 12; part++) /* more parts than are kept open */
        make_states(folder, part % 3, part * 10, 10);
    struct states *states;
    assert_ok(states_open(folder, 200, test_sections, 2, &states));
    struct state_record *held[120];
    for (int i = 0; i < 120; i++) {
        int request = i * 7 % 120;
        assert_true(states_has(states, request));
        assert_ok(states_read(states, request, &held[request]));
    }
    for (int i = 0; i < 120; i++) {
        check_record(held[i], i, 2);
        states_release(held[i]);
    }
    assert_false(states_has(states, 120));
    assert_false(states_has(states, -1));
    assert_false(states_has(states, 1000));
    states_close(states);
    remove_folder(folder);
}

/* Of several states of a request the one that is farthest counts, wherever it stands. */
static void farthest(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 10, 0);
    make_states_of(folder, 0, 0, 10, 1);
    make_states_of(folder, 2, 3, 3, 3);
    make_states_of(folder, 1, 4, 4, 2);
    static const int expected[10] = {1, 1, 1, 3, 3, 3, 2, 2, 1, 1};
    struct states *states;
    assert_ok(states_open(folder, 10, test_sections, 2, &states));
    for (int i = 0; i < 10; i++) {
        struct state_record *record;
        assert_ok(states_read(states, i, &record));
        check_record(record, i, expected[i]);
        states_release(record);
    }
    states_close(states);
    remove_folder(folder);
}

/* Rows that changed after the sweep are found by the record's own checksum. */
static void damaged_record(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 40, 0);
    make_states(folder, 0, 20, 10);
    char *path = in_folder(folder, "prefill/rank-0000/part-000000.h5");
    size_t bytes, at = 0;
    char *data = read_file(path, &bytes);
    const char wanted[5] = {
        (char)(20 + 7), (char)(20 + 14), (char)(20 + 21), (char)(20 + 28), (char)(20 + 35)};
    while (memcmp(data + at, wanted, sizeof wanted))
        at++;
    data[at] ^= 1;
    write_file(path, data, bytes);
    free(data);
    struct states *states;
    struct state_record *record;
    assert_ok(states_open(folder, 40, test_sections, 2, &states));
    assert_fails(states_read(states, 20, &record), ERROR_INPUT, "part-000000.h5");
    assert_ok(states_read(states, 21, &record));
    states_release(record);
    states_close(states);
    remove_folder(folder);
}

static void other_sections(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 4, 0);
    make_states(folder, 0, 0, 4);
    struct state_section sections[2] = {test_sections[0], test_sections[1]};
    struct states *states;
    struct state_record *record;
    sections[1].row_bytes = 4;
    assert_ok(states_open(folder, 4, sections, 2, &states));
    assert_fails(states_read(states, 0, &record), ERROR_INPUT, "sections/window");
    states_close(states);
    assert_ok(states_open(folder, 4, sections, 1, &states));
    assert_fails(states_read(states, 0, &record), ERROR_INPUT, "2 sections");
    states_close(states);
    assert_fails(states_open(folder, 2, test_sections, 2, &states), ERROR_INPUT, "there are 2");
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(farthest),
        cmocka_unit_test(damaged_record),
        cmocka_unit_test(other_sections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

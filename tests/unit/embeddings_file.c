#include "campaign/embeddings_part.h"

#include "campaign_files.h"

enum { SPAN_VALUES = TEST_MOST_TOKENS * TEST_HIDDEN };

static void check_image(struct embeddings *embeddings, int i) {
    float rows[SPAN_VALUES];
    int tokens = 1 + i % TEST_MOST_TOKENS;
    assert_true(embeddings_has(embeddings, i));
    assert_int_equal(embeddings_tokens(embeddings, i), tokens);
    for (int v = 0; v < SPAN_VALUES; v++)
        rows[v] = -1;
    assert_ok(embeddings_read(embeddings, i, rows));
    for (int v = 0; v < SPAN_VALUES; v++) {
        float expected = v < tokens * TEST_HIDDEN ? test_embedding(i, v / TEST_HIDDEN, v % TEST_HIDDEN) : -1;
        assert_true(rows[v] == expected);
    }
}

/* The same rows whatever is kept in memory: nothing, a few spans, all. */
static void round_trip(void **state) {
    (void)state;
    static const int64_t kept[] = {0, 1000, 1 << 20};
    char *folder = make_folder();
    make_requests(folder, 5, 0);
    for (int part = 0; part < 12; part++) /* more parts than are kept open */
        make_embeddings(folder, part % 3, part * 10, 10);
    for (int k = 0; k < 3; k++) {
        struct embeddings *embeddings;
        assert_ok(embeddings_open(folder, 130, TEST_HIDDEN, kept[k], &embeddings));
        for (int i = 0; i < 1000; i++)
            check_image(embeddings, i * 7 % 120);
        for (int i = 0; i < 500; i++)
            check_image(embeddings, i % 3);
        assert_false(embeddings_has(embeddings, 120));
        assert_false(embeddings_has(embeddings, -1));
        assert_false(embeddings_has(embeddings, 1000));
        assert_int_equal(embeddings_tokens(embeddings, 125), 0);
        embeddings_close(embeddings);
    }
    remove_folder(folder);
}

/* A span that was read once comes from memory: its file may go. */
static void kept_span(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 5, 0);
    for (int part = 0; part < 10; part++)
        make_embeddings(folder, 0, part, 1);
    struct embeddings *embeddings;
    assert_ok(embeddings_open(folder, 10, TEST_HIDDEN, 3 * SPAN_VALUES * (int)sizeof(float), &embeddings));
    check_image(embeddings, 7);
    for (int i = 0; i < 5; i++) { /* other spans come and go; this one is used between them */
        check_image(embeddings, i);
        check_image(embeddings, 7);
    }
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s/vision'", folder);
    assert_int_equal(system(command), 0);
    check_image(embeddings, 7);
    float rows[SPAN_VALUES];
    assert_int_equal(embeddings_read(embeddings, 9, rows), ERROR_IO);
    embeddings_close(embeddings);
    remove_folder(folder);
}

/* Rows that changed after the sweep are found by the record's own checksum. */
static void damaged_record(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 5, 0);
    make_embeddings(folder, 0, 0, 10);
    char *path = in_folder(folder, "vision/rank-0000/part-000000.h5");
    size_t bytes, at = 0;
    char *data = read_file(path, &bytes);
    const float wanted[2] = {test_embedding(3, 2, 0), test_embedding(3, 2, 1)};
    while (memcmp(data + at, wanted, sizeof wanted))
        at++;
    data[at + 2] ^= 1;
    write_file(path, data, bytes);
    free(data);
    struct embeddings *embeddings;
    float rows[SPAN_VALUES];
    assert_ok(embeddings_open(folder, 10, TEST_HIDDEN, 1 << 20, &embeddings));
    assert_fails(embeddings_read(embeddings, 3, rows), ERROR_INPUT, "image 3 are damaged");
    assert_fails(embeddings_read(embeddings, 3, rows), ERROR_INPUT, "part-000000.h5"); /* it isn't kept */
    check_image(embeddings, 4);
    embeddings_close(embeddings);
    remove_folder(folder);
}

static void other_model(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 5, 0);
    make_embeddings(folder, 0, 0, 4);
    struct embeddings *embeddings;
    assert_fails(
        embeddings_open(folder, 4, TEST_HIDDEN + 4, 1000, &embeddings), ERROR_INPUT, "hidden_size of 16");
    assert_null(embeddings);
    assert_fails(embeddings_open(folder, 2, TEST_HIDDEN, 1000, &embeddings), ERROR_INPUT, "there are 2");
    assert_null(embeddings);
    remove_folder(folder);
}

static void no_parts(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 5, 0);
    struct embeddings *embeddings;
    float rows[SPAN_VALUES];
    assert_ok(embeddings_open(folder, 4, TEST_HIDDEN, 1000, &embeddings));
    assert_false(embeddings_has(embeddings, 0));
    assert_fails(embeddings_read(embeddings, 0, rows), ERROR_INTERNAL, "image 0");
    embeddings_close(embeddings);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(kept_span),
        cmocka_unit_test(damaged_record),
        cmocka_unit_test(other_model),
        cmocka_unit_test(no_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "campaign/parts.h"
#include "campaign/results_part.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "campaign_files.h"

static void round_trip(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 12, 0);
    make_results(folder, 3, 2, 8);
    char *path = in_folder(folder, "results/rank-0003/part-000000.h5");
    struct file_header header;
    struct table table;
    hid_t file;
    assert_ok(part_open(path, RESULTS_FORMAT, true, &header, &file));
    assert_ok(results_part_read(file, path, &header, &table));
    H5Fclose(file);
    assert_int_equal(header.records, 8);
    assert_int_equal(header.failed, 2); /* requests 4 and 9 */
    const int64_t *request = table_values(&table, RESULT_REQUEST);
    const uint64_t *choices = table_offsets(&table, RESULT_CHOICE_OFFSETS);
    const uint64_t *tokens = table_offsets(&table, RESULT_TOKEN_OFFSETS);
    const int32_t *ids = table_values(&table, RESULT_TOKEN_IDS);
    for (int r = 0; r < 8; r++) {
        int i = r + 2;
        assert_int_equal(request[r], i);
        uint64_t count = choices[r + 1] - choices[r];
        assert_int_equal(count, i % 5 == 4 ? 0 : 1 + i % 2);
        for (uint64_t c = choices[r]; c < choices[r + 1]; c++) {
            assert_int_equal(tokens[c + 1] - tokens[c], 3);
            assert_int_equal(ids[tokens[c]], i);
        }
    }
    table_free(&table);
    remove_folder(folder);
}

static void parts_are_numbered_on(void **state) {
    (void)state;
    char *folder = make_folder();
    struct part_list list;
    make_requests(folder, 30, 0);
    make_results(folder, 0, 0, 5);
    make_results(folder, 0, 5, 5);
    write_file(in_folder(folder, "results/rank-0000/part-000007.h5"), "", 0);
    make_results(folder, 0, 10, 5);
    make_results(folder, 11, 15, 5);
    assert_ok(parts_list(folder, "results", &list));
    assert_int_equal(list.count, 5);
    const char *const names[] = {"results/rank-0000/part-000000.h5", "results/rank-0000/part-000001.h5",
        "results/rank-0000/part-000007.h5", "results/rank-0000/part-000008.h5",
        "results/rank-0011/part-000000.h5"};
    for (size_t i = 0; i < list.count; i++)
        assert_string_equal(list.parts[i].relative, names[i]);
    part_list_free(&list);
    assert_ok(parts_list(folder, "prefill", &list));
    assert_int_equal(list.count, 0);
    remove_folder(folder);
}

/* A name that is taken meanwhile is never overwritten. */
static void nothing_is_overwritten(void **state) {
    (void)state;
    char *folder = make_folder(), *taken;
    make_requests(folder, 3, 0);
    struct results_writer *writer;
    assert_ok(results_writer_create(folder, 0, &test_provenance, &writer));
    struct request_result result = {.request = 1, .error_code = "x", .error_message = "y"};
    assert_ok(results_writer_add(writer, &result));
    mkdir(in_folder(folder, "results"), 0777);
    mkdir(in_folder(folder, "results/rank-0000"), 0777);
    taken = in_folder(folder, "results/rank-0000/part-000000.h5");
    write_file(taken, "other", 5);
    assert_ok(results_writer_flush(writer));
    results_writer_free(writer);
    size_t bytes;
    char *data = read_file(taken, &bytes);
    assert_string_equal(data, "other");
    free(data);
    assert_int_equal(access(in_folder(folder, "results/rank-0000/part-000001.h5"), F_OK), 0);
    remove_folder(folder);
}

/* A failed flush names file and cause, keeps what is pending, leaves no temporary file, and can be repeated. */
static void failed_flush(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 3, 0);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {4096, 200000};
        struct results_writer *writer;
        struct request_result result = {.request = 1, .error_code = "x", .error_message = "y"};
        if (results_writer_create(folder, 0, &test_provenance, &writer) != OK ||
            results_writer_add(writer, &result) != OK)
            _exit(1);
        setrlimit(RLIMIT_FSIZE, &limit);
        enum result status = results_writer_flush(writer);
        if (status != ERROR_IO || !strstr(failure_message(), "part-000000.h5") ||
            !strstr(failure_message(), "File too large") || results_writer_pending(writer) != 1)
            _exit(2);
        DIR *listing = opendir(in_folder(folder, "results/rank-0000"));
        for (struct dirent *entry; listing && (entry = readdir(listing));)
            if (strstr(entry->d_name, "part"))
                _exit(3);
        limit.rlim_cur = 200000;
        setrlimit(RLIMIT_FSIZE, &limit);
        _exit(results_writer_flush(writer) == OK ? 0 : 4);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 0);
    struct file_header header;
    char *identity;
    assert_ok(
        part_check(in_folder(folder, "results/rank-0000/part-000000.h5"), "results", &header, &identity));
    assert_string_equal(identity, IDENTITY);
    free(identity);
    remove_folder(folder);
}

static void what_is_done(void **state) {
    (void)state;
    char *folder = make_folder();
    uint8_t done[20];
    int64_t count;
    make_requests(folder, 20, 0);
    make_results(folder, 0, 0, 5);
    make_results(folder, 1, 3, 5); /* 3 and 4 a second time */
    struct campaign *campaign;
    assert_ok(campaign_open(folder, CAMPAIGN_READ, false, &campaign));
    assert_ok(campaign_done(campaign, "results", 20, done, &count, NULL));
    assert_int_equal(count, 8);
    for (int i = 0; i < 20; i++)
        assert_int_equal(done[i], i < 8);
    assert_ok(campaign_done(campaign, "prefill", 20, done, &count, NULL));
    assert_int_equal(count, 0);
    campaign_close(campaign);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(parts_are_numbered_on),
        cmocka_unit_test(nothing_is_overwritten),
        cmocka_unit_test(failed_flush),
        cmocka_unit_test(what_is_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

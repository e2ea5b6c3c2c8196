#include "campaign/lock.h"

#include <signal.h>
#include <sys/wait.h>

#include "campaign_files.h"

static void one_holder(void **state) {
    (void)state;
    char *folder = make_folder(), holder[512];
    struct campaign *first, *second;
    assert_false(lock_is_held(folder, holder, sizeof holder));
    assert_ok(campaign_open(folder, CAMPAIGN_WORK, false, &first));
    assert_true(lock_is_held(folder, holder, sizeof holder));
    assert_non_null(strstr(holder, "process "));
    assert_fails(
        campaign_open(folder, CAMPAIGN_WORK, false, &second), ERROR_CONFLICT, "is in use by process");
    assert_ok(campaign_open(folder, CAMPAIGN_READ, false, &second));
    campaign_close(second);
    assert_true(lock_is_held(folder, holder, sizeof holder));
    campaign_close(first);
    assert_false(lock_is_held(folder, holder, sizeof holder));
    assert_ok(campaign_open(folder, CAMPAIGN_WORK, false, &first));
    campaign_close(first);
    remove_folder(folder);
}

/* The lock of a process that was killed is taken over. */
static void killed_holder(void **state) {
    (void)state;
    char *folder = make_folder(), holder[512];
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct campaign *campaign;
        char ok = campaign_open(folder, CAMPAIGN_WORK, false, &campaign) == OK;
        if (write(ready[1], &ok, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    char ok;
    struct campaign *campaign;
    assert_int_equal(read(ready[0], &ok, 1), 1);
    assert_true(ok);
    assert_fails(campaign_open(folder, CAMPAIGN_WORK, false, &campaign), ERROR_CONFLICT, "in use");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_false(lock_is_held(folder, holder, sizeof holder));
    size_t bytes;
    char *text = read_file(in_folder(folder, "lock"), &bytes);
    assert_non_null(strstr(text, "host ")); /* it told who it was */
    free(text);
    assert_ok(campaign_open(folder, CAMPAIGN_WORK, false, &campaign));
    campaign_close(campaign);
    remove_folder(folder);
}

static void folders(void **state) {
    (void)state;
    char *folder = make_folder();
    struct campaign *campaign;
    char deep[64];
    snprintf(deep, sizeof deep, "%s/a/b/c", folder);
    assert_fails(campaign_open(deep, CAMPAIGN_READ, false, &campaign), ERROR_IO, "nocturne ingest");
    assert_ok(campaign_open(deep, CAMPAIGN_WORK, true, &campaign));
    assert_string_equal(campaign_folder(campaign), deep);
    struct progress progress = {.phase = "decode", .total = 3, .done = 1, .finished = true};
    campaign_write_progress(campaign, &progress);
    campaign_close(campaign);
    size_t bytes;
    char *text = read_file(in_folder(deep, "progress.json"), &bytes);
    assert_non_null(strstr(text, "\"total\": 3"));
    free(text);
    write_file(in_folder(folder, "file"), "", 0);
    assert_int_not_equal(campaign_open(in_folder(folder, "file"), CAMPAIGN_WORK, true, &campaign), OK);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_holder),
        cmocka_unit_test(killed_holder),
        cmocka_unit_test(folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

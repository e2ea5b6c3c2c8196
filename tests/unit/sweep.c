#include "campaign/embeddings_part.h"
#include "campaign/parts.h"
#include "campaign/results_part.h"
#include "campaign/states_part.h"

#include "campaign_files.h"

static struct campaign *open_campaign(const char *folder) {
    struct campaign *campaign;
    assert_ok(campaign_open(folder, CAMPAIGN_WORK, false, &campaign));
    return campaign;
}

static void make_part(const char *folder, const char *phase) {
    make_requests(folder, 20, 0);
    if (!strcmp(phase, "results"))
        make_results(folder, 0, 0, 10);
    else if (!strcmp(phase, "prefill"))
        make_states(folder, 0, 0, 10);
    else
        make_embeddings(folder, 0, 0, 10);
}

/* The part `data` is swept away, and the same part whole is left alone. */
static void expect_swept(
    struct campaign *campaign, const char *phase, const char *path, const char *data, size_t bytes) {
    char aside[600];
    snprintf(aside, sizeof aside, "%s.damaged", path);
    unlink(aside);
    write_file(path, data, bytes);
    assert_ok(campaign_sweep(campaign, phase, IDENTITY, false));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(aside, F_OK), 0);
}

static void every_damage_is_found(const char *phase, const char *name) {
    char *folder = make_folder();
    make_part(folder, phase);
    struct campaign *campaign = open_campaign(folder);
    char *path = strdup(in_folder(folder, name));
    size_t bytes;
    char *data = read_file(path, &bytes);
    assert_ok(campaign_sweep(campaign, phase, IDENTITY, false));
    assert_int_equal(access(path, F_OK), 0);
    for (size_t i = 0; i < 50; i++)
        expect_swept(campaign, phase, path, data, bytes * i / 50);
    expect_swept(campaign, phase, path, data, bytes - 1);
    for (size_t i = 0; i < 200; i++) {
        size_t at = bytes * i / 200;
        data[at] = (char)(data[at] ^ 1 << i % 8);
        expect_swept(campaign, phase, path, data, bytes);
        data[at] = (char)(data[at] ^ 1 << i % 8);
    }
    write_file(path, data, bytes);
    assert_ok(campaign_sweep(campaign, phase, IDENTITY, false));
    assert_int_equal(access(path, F_OK), 0);
    free(path);
    free(data);
    campaign_close(campaign);
    remove_folder(folder);
}

static void damaged_results(void **state) {
    (void)state;
    every_damage_is_found("results", "results/rank-0000/part-000000.h5");
}

static void damaged_states(void **state) {
    (void)state;
    every_damage_is_found("prefill", "prefill/rank-0000/part-000000.h5");
}

static void damaged_embeddings(void **state) {
    (void)state;
    every_damage_is_found("vision", "vision/rank-0000/part-000000.h5");
}

/* Makes the header of an altered file right again, so that only what stands behind it can find the fault. */
static void fix_header(char *data, size_t bytes) {
    struct file_header header;
    assert_ok(header_parse(data, &header));
    header.bytes = (int64_t)bytes;
    hash_digits_128(data + HEADER_BYTES, bytes - HEADER_BYTES, header.content_hash);
    header_format(&header, data);
}

/* Each dataset's own checksum is checked too: the header's hash is made right after a byte of the dataset changed. */
static void damaged_datasets(const char *phase, const char *name, const struct column *columns, int count) {
    char *folder = make_folder();
    make_part(folder, phase);
    struct campaign *campaign = open_campaign(folder);
    char *path = strdup(in_folder(folder, name));
    size_t bytes;
    char *data = read_file(path, &bytes);
    haddr_t places[64] = {0};
    hid_t file;
    assert_ok(hdf5_open(path, &file));
    for (int i = 0; i < count; i++) {
        hid_t dataset = H5Dopen2(file, columns[i].name, H5P_DEFAULT);
        assert_true(dataset >= 0);
        places[i] = H5Dget_storage_size(dataset) ? H5Dget_offset(dataset) : 0;
        H5Dclose(dataset);
    }
    H5Fclose(file);
    int hit = 0;
    for (int i = 0; i < count; i++) {
        if (!places[i])
            continue; /* a dataset without values */
        size_t at = (size_t)places[i];
        assert_true(at > HEADER_BYTES && at < bytes);
        data[at] ^= 0x10;
        fix_header(data, bytes);
        expect_swept(campaign, phase, path, data, bytes);
        struct file_header header;
        char *identity;
        write_file(path, data, bytes);
        assert_fails(part_check(path, phase, &header, &identity), ERROR_INPUT, columns[i].name);
        data[at] ^= 0x10;
        hit++;
    }
    assert_true(hit > count / 2);
    free(path);
    free(data);
    campaign_close(campaign);
    remove_folder(folder);
}

static void damaged_results_datasets(void **state) {
    (void)state;
    damaged_datasets("results", "results/rank-0000/part-000000.h5", results_columns, RESULT_COLUMNS);
}

static void damaged_states_datasets(void **state) {
    (void)state;
    damaged_datasets("prefill", "prefill/rank-0000/part-000000.h5", states_columns, STATE_COLUMNS);
}

static void damaged_embeddings_datasets(void **state) {
    (void)state;
    damaged_datasets("vision", "vision/rank-0000/part-000000.h5", embeddings_columns, EMBEDDING_COLUMNS);
}

static void foreign_part(void **state) {
    (void)state;
    char *folder = make_folder(), *other = make_folder();
    make_requests(folder, 10, 0);
    make_requests(other, 11, 0);
    make_results(other, 0, 0, 3);
    make_results(folder, 1, 0, 3);
    mkdir(in_folder(folder, "results/rank-0000"), 0777);
    char *path = in_folder(folder, "results/rank-0000/part-000000.h5");
    assert_int_equal(rename(in_folder(other, "results/rank-0000/part-000000.h5"), path), 0);
    struct campaign *campaign = open_campaign(folder);
    uint8_t done[10];
    int64_t count;
    assert_ok(campaign_done(campaign, "results", 10, done, &count, NULL));
    assert_int_equal(count, 3);
    assert_ok(campaign_sweep(campaign, "results", IDENTITY, false));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(in_folder(folder, "results/rank-0000/part-000000.h5.damaged"), F_OK), 0);
    assert_int_equal(access(in_folder(folder, "results/rank-0001/part-000000.h5"), F_OK), 0);
    campaign_close(campaign);
    remove_folder(folder);
    remove_folder(other);
}

static void other_identity(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 10, 0);
    make_results_of(folder, 0, 0, 3, "format=1 checkpoint=abc backend=cpu-avx2 mode=rounded");
    char *path = in_folder(folder, "results/rank-0000/part-000000.h5");
    struct campaign *campaign = open_campaign(folder);
    enum result status = campaign_sweep(campaign, "results", IDENTITY, false);
    assert_fails(status, ERROR_CONFLICT, "made with 'backend=cpu-avx2', this run has 'backend=test'");
    assert_int_equal(access(path, F_OK), 0);
    assert_ok(campaign_sweep(campaign, "results", IDENTITY, true));
    assert_int_equal(access(path, F_OK), -1);
    campaign_close(campaign);
    remove_folder(folder);
}

static void unfinished_files(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 10, 0);
    make_results(folder, 0, 0, 3);
    char *temporary = in_folder(folder, "results/rank-0000/.part-000001.h5.host.12.tmp");
    char *note = in_folder(folder, "results/rank-0000/notes.txt");
    write_file(temporary, "torn", 4);
    write_file(note, "mine", 4);
    struct campaign *campaign = open_campaign(folder);
    assert_ok(campaign_sweep(campaign, "results", IDENTITY, false));
    assert_int_equal(access(temporary, F_OK), -1);
    assert_int_equal(access(note, F_OK), 0); /* what isn't ours stays */
    campaign_close(campaign);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_results),
        cmocka_unit_test(damaged_states),
        cmocka_unit_test(damaged_embeddings),
        cmocka_unit_test(damaged_results_datasets),
        cmocka_unit_test(damaged_states_datasets),
        cmocka_unit_test(damaged_embeddings_datasets),
        cmocka_unit_test(foreign_part),
        cmocka_unit_test(other_identity),
        cmocka_unit_test(unfinished_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

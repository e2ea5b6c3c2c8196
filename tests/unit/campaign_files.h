/* Campaigns in temporary folders, for the tests of campaign/. Include it last: cmocka.h has a macro `fail`. */
#ifndef NOCTURNE_TESTS_CAMPAIGN_FILES_H
#define NOCTURNE_TESTS_CAMPAIGN_FILES_H

#include "campaign/embeddings.h"
#include "campaign/requests.h"
#include "campaign/results.h"
#include "campaign/states.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define IDENTITY "format=1 checkpoint=abc backend=test mode=rounded"

static const struct provenance test_provenance = {.command = "test",
    .model_folder = "/models/test",
    .fingerprint = "00112233445566778899aabbccddeeff",
    .identity = IDENTITY,
    .settings = "{}",
    .ranks = 2,
    .supernode = 1};

static inline void assert_ok(enum result status) {
    if (status != OK)
        fail_msg("result %d: %s", (int)status, failure_message());
}

static inline void assert_fails(enum result status, enum result expected, const char *words) {
    if (status != expected || !strstr(failure_message(), words))
        fail_msg("result %d, expected %d; message '%s', expected in it '%s'", (int)status, (int)expected,
            failure_message(), words);
}

static inline char *make_folder(void) {
    char *folder = strdup("/tmp/nocturne-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static inline void remove_folder(char *folder) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    free(folder);
}

static inline struct text_piece piece(const char *text) {
    return (struct text_piece){text, strlen(text)};
}

/* Request `i` of a test campaign; its values depend on i in every field. Storage is static. */
static inline struct request test_request(int i) {
    static char id[64], model[16];
    static int32_t tokens[64], bias_ids[4], stop_ids[4];
    static float bias_values[4];
    static struct text_piece stops[4];
    static struct request_image images[3];
    for (int k = 0; k < 3; k++)
        images[k] = (struct request_image){.image = i + k, .position = 4 * k + i};
    snprintf(id, sizeof id, "id-%d\xc3\xa9", i);
    snprintf(model, sizeof model, "model%d", i % 3);
    for (int t = 0; t < 64; t++)
        tokens[t] = i * 100 + t;
    for (int k = 0; k < 4; k++) {
        bias_ids[k] = i + k;
        bias_values[k] = (float)(i - k);
        stop_ids[k] = 7 * i + k;
        stops[k] = piece(k % 2 ? "stop" : "\n\nEnd");
    }
    struct request request = {.file = i % 2,
        .line = i + 1,
        .custom_id = piece(id),
        .model = piece(model),
        .kind = (enum request_kind)(i % 3),
        .thinking = i % 2,
        .start = (enum start_stage)(i % 5),
        .parse_tool_calls = i % 3 == 1,
        .json_output = i % 4 == 1,
        .constraint = (enum constraint_kind)(i % 6),
        .constraint_strict = i % 3 == 0,
        .constraint_compact = i % 4 == 2,
        .one_call = i % 7 == 1,
        .constraint_text = piece(i % 5 ? "[{\"type\":\"function\"}]" : ""),
        .token_ids = tokens,
        .token_count = i % 64,
        .images = images,
        .image_count = i % 4 == 3 ? 0 : i % 4 + 1,
        .image_tokens = 3 * (i % 4)};
    request.sampling = (struct sampling){.temperature = (float)i / 8,
        .top_p = 0.5f,
        .min_p = 0.25f,
        .top_k = i,
        .presence_penalty = -1,
        .frequency_penalty = 1.5f,
        .choices = 1 + i % 3,
        .max_tokens = 10 + i,
        .top_logprobs = i % 3 - 1,
        .has_seed = i % 2 == 0,
        .seed = i % 2 ? 0 : -i,
        .ignore_eos = i % 5 == 0,
        .bias_ids = bias_ids,
        .bias_values = bias_values,
        .bias_count = i % 5,
        .stop_ids = stop_ids,
        .stop_id_count = (i + 1) % 5,
        .stops = stops,
        .stop_count = (i + 2) % 5};
    return request;
}

static inline void make_requests_seeded(const char *folder, int count, int errors, int64_t seed) {
    static const char *const files[] = {"one.jsonl", "two.jsonl"};
    struct requests_source source = {.files = files, .file_count = 2, .seed = seed, .options = "{\"a\": 1}"};
    struct requests_writer *writer;
    assert_ok(requests_writer_create(folder, &test_provenance, &source, &writer));
    for (int i = 0; i < count; i++) {
        struct request request = test_request(i);
        assert_ok(requests_writer_add(writer, &request));
    }
    for (int i = 0; i < errors; i++) {
        struct request_error error = {.file = 1,
            .line = 1000 + i,
            .has_custom_id = i % 2,
            .custom_id = piece("bad"),
            .status = i % 2 ? 400 : 0,
            .type = i % 2 ? "invalid_request_error" : NULL,
            .code = i % 2 ? "bad_field" : "invalid_json_line",
            .param = i % 2 ? "n" : NULL};
        snprintf(error.message, sizeof error.message, "message %d", i);
        assert_ok(requests_writer_add_error(writer, &error));
    }
    struct requests_input input = {
        .hash = "ffeeddccbbaa99887766554433221100", .lines = count + errors + 1, .blank_lines = 1};
    assert_ok(requests_writer_finish(writer, &input));
}

static inline void make_requests(const char *folder, int count, int errors) {
    make_requests_seeded(folder, count, errors, 5);
}

/* Writes the results of requests [first, first + count) as one part of `rank`; every fifth one failed. */
static inline void make_results_of(const char *folder, int rank, int first, int count, const char *identity) {
    struct provenance provenance = test_provenance;
    provenance.identity = identity;
    struct results_writer *writer;
    assert_ok(results_writer_create(folder, rank, &provenance, &writer));
    for (int i = first; i < first + count; i++) {
        int32_t ids[3] = {i, i + 1, i + 2}, top_ids[6] = {1, 2, 3, 4, 5, 6};
        float values[3] = {-0.5f, -1, -2}, top_values[6] = {-1, -2, -3, -4, -5, -6};
        struct choice_result choices[2];
        for (int c = 0; c < 2; c++)
            choices[c] = (struct choice_result){.token_count = 3,
                .token_ids = ids,
                .logprobs = values,
                .top_logprobs = c * 2,
                .top_ids = top_ids,
                .top_values = top_values,
                .text = piece(c ? "second \xc3\xa9" : "first"),
                .text_tokens = 2,
                .finish = c ? FINISH_LENGTH : FINISH_STOP,
                .cause = c ? STOP_NONE : STOP_EOS,
                .stop_index = -1};
        struct request_result result = {
            .request = i, .prompt_tokens = 4, .finished_at = 1000.5 + i, .choices = choices};
        result.choice_count = 1 + i % 2;
        if (i % 5 == 4) {
            result.choice_count = 0;
            result.error_code = "kv_memory_too_small";
            result.error_status = 400;
            result.error_type = "invalid_request_error";
            result.error_message = "needs more";
        }
        assert_ok(results_writer_add(writer, &result));
    }
    assert_int_equal(results_writer_pending(writer), count);
    assert_ok(results_writer_flush(writer));
    assert_int_equal(results_writer_pending(writer), 0);
    results_writer_free(writer);
}

static inline void make_results(const char *folder, int rank, int first, int count) {
    make_results_of(folder, rank, first, count, IDENTITY);
}

static const struct state_section test_sections[2] = {
    {"latent_02", "a row", 8}, {"window", "another row", 3}};

/* Writes the states of requests [first, first + count) as one part: a choice with one token, and one with `generated` of them that has ended
 * where the request's number is odd. */
static inline void make_states_of(const char *folder, int rank, int first, int count, int generated) {
    struct states_writer *writer;
    assert_ok(states_writer_create(folder, rank, &test_provenance, test_sections, 2, &writer));
    for (int i = first; i < first + count; i++) {
        unsigned char rows[64 * 8];
        for (size_t b = 0; b < sizeof rows; b++)
            rows[b] = (unsigned char)(b * 7 + (size_t)i);
        struct section_rows sections[2] = {{rows, i % 64}, {rows, 5}};
        int32_t top_ids[2] = {i, 9};
        float top_values[2] = {-1, -2};
        int32_t ids[3] = {i, i + 1, i + 2};
        float logprobs[3] = {-0.5f, -1.5f, -2.5f};
        struct saved_choice choices[2] = {{.token_count = 1,
                                              .token_ids = ids,
                                              .logprobs = logprobs,
                                              .top_logprobs = 2,
                                              .top_ids = top_ids,
                                              .top_values = top_values},
            {.sequence = i % 2 ? -1 : 1, .token_count = generated, .token_ids = ids, .logprobs = logprobs}};
        struct saved_sequence sequences[2] = {{10 + i, sections}, {11 + i, sections}};
        struct state_record record = {.request = i,
            .sequence_count = i % 2 ? 1 : 2,
            .sequences = sequences,
            .choice_count = 2,
            .choices = choices};
        assert_ok(states_writer_add(writer, &record));
    }
    assert_ok(states_writer_flush(writer));
    states_writer_free(writer);
}

static inline void make_states(const char *folder, int rank, int first, int count) {
    make_states_of(folder, rank, first, count, 2);
}

enum { TEST_HIDDEN = 12, TEST_MOST_TOKENS = 8 };

/* Value `c` of row `t` of the test image `i`, which has 1 + i % TEST_MOST_TOKENS rows. */
static inline float test_embedding(int i, int t, int c) {
    return (float)(i * 1000 + t * 100 + c) / 8;
}

/* Writes the embeddings of images [first, first + count) as one part. */
static inline void make_embeddings(const char *folder, int rank, int first, int count) {
    struct embeddings_writer *writer;
    assert_ok(embeddings_writer_create(folder, rank, &test_provenance, TEST_HIDDEN, &writer));
    assert_int_equal(embeddings_writer_pending_bytes(writer), 0);
    for (int i = first; i < first + count; i++) {
        float rows[TEST_MOST_TOKENS * TEST_HIDDEN];
        for (int v = 0; v < TEST_MOST_TOKENS * TEST_HIDDEN; v++)
            rows[v] = test_embedding(i, v / TEST_HIDDEN, v % TEST_HIDDEN);
        struct embedding_record record = {.image = i,
            .hash = "0123456789abcdef0123456789abcdef",
            .tokens = 1 + i % TEST_MOST_TOKENS,
            .rows = rows};
        assert_ok(embeddings_writer_add(writer, &record));
    }
    assert_true(embeddings_writer_pending_bytes(writer) > 0);
    assert_ok(embeddings_writer_flush(writer));
    assert_int_equal(embeddings_writer_pending_bytes(writer), 0);
    embeddings_writer_free(writer);
}

static inline char *in_folder(const char *folder, const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* A whole file; *bytes its size. Freed by the caller. */
static inline char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes + 1);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    data[*bytes] = '\0';
    fclose(file);
    return data;
}

static inline void write_file(const char *path, const char *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

#endif

#include "campaign/header.h"
#include "campaign/lines.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "campaign_files.h"

static void assert_text(struct text_piece found, struct text_piece expected) {
    assert_int_equal(found.bytes, expected.bytes);
    assert_memory_equal(found.data, expected.data, expected.bytes);
}

static void assert_same_sampling(const struct sampling *found, const struct sampling *expected) {
    assert_true(found->temperature == expected->temperature && found->top_p == expected->top_p);
    assert_true(found->min_p == expected->min_p && found->presence_penalty == expected->presence_penalty);
    assert_true(found->frequency_penalty == expected->frequency_penalty);
    assert_int_equal(found->top_k, expected->top_k);
    assert_int_equal(found->choices, expected->choices);
    assert_int_equal(found->max_tokens, expected->max_tokens);
    assert_int_equal(found->top_logprobs, expected->top_logprobs);
    assert_int_equal(found->has_seed, expected->has_seed);
    assert_int_equal(found->seed, expected->seed);
    assert_int_equal(found->ignore_eos, expected->ignore_eos);
    assert_int_equal(found->bias_count, expected->bias_count);
    assert_memory_equal(found->bias_ids, expected->bias_ids, (size_t)expected->bias_count * 4);
    assert_memory_equal(found->bias_values, expected->bias_values, (size_t)expected->bias_count * 4);
    assert_int_equal(found->stop_id_count, expected->stop_id_count);
    assert_memory_equal(found->stop_ids, expected->stop_ids, (size_t)expected->stop_id_count * 4);
    assert_int_equal(found->stop_count, expected->stop_count);
    for (int32_t i = 0; i < expected->stop_count; i++)
        assert_text(found->stops[i], expected->stops[i]);
}

static void assert_same_request(const struct request *found, int i) {
    struct request expected = test_request(i);
    assert_int_equal(found->file, expected.file);
    assert_int_equal(found->line, expected.line);
    assert_text(found->custom_id, expected.custom_id);
    assert_text(found->model, expected.model);
    assert_int_equal(found->kind, expected.kind);
    assert_int_equal(found->thinking, expected.thinking);
    assert_int_equal(found->start, expected.start);
    assert_int_equal(found->parse_tool_calls, expected.parse_tool_calls);
    assert_int_equal(found->json_output, expected.json_output);
    assert_int_equal(found->constraint, expected.constraint);
    assert_text(found->constraint_text, expected.constraint_text);
    assert_int_equal(found->constraint_strict, expected.constraint_strict);
    assert_int_equal(found->constraint_compact, expected.constraint_compact);
    assert_int_equal(found->one_call, expected.one_call);
    assert_int_equal(found->token_count, expected.token_count);
    assert_memory_equal(found->token_ids, expected.token_ids, (size_t)expected.token_count * 4);
    assert_int_equal(found->image_tokens, expected.image_tokens);
    assert_int_equal(found->image_count, expected.image_count);
    for (int32_t k = 0; k < expected.image_count; k++) {
        assert_int_equal(found->images[k].image, expected.images[k].image);
        assert_int_equal(found->images[k].position, expected.images[k].position);
    }
    assert_same_sampling(&found->sampling, &expected.sampling);
}

/* What a plan is made of. */
static void check_prompts(struct requests *requests, int count) {
    const int32_t *choices, *max_tokens;
    struct request_prompt prompt;
    assert_ok(requests_limits(requests, &choices, &max_tokens));
    for (int i = 0; i < count; i += 1 + i % 5) {
        struct request expected = test_request(i);
        assert_int_equal(choices[i], expected.sampling.choices);
        assert_int_equal(max_tokens[i], expected.sampling.max_tokens);
        assert_ok(requests_read_prompt(requests, i, &prompt));
        assert_int_equal(prompt.tokens, expected.token_count);
        assert_memory_equal(prompt.token_ids, expected.token_ids, (size_t)expected.token_count * 4);
        assert_int_equal(prompt.image_count, expected.image_count);
        for (int32_t k = 0; k < expected.image_count; k++) {
            assert_int_equal(prompt.images[k], expected.images[k].image);
            assert_int_equal(prompt.positions[k], expected.images[k].position);
        }
    }
    assert_int_not_equal(requests_read_prompt(requests, count, &prompt), OK);
}

/* Every field comes back, read in order, backwards, with jumps, and many held at once. */
static void round_trip(void **state) {
    (void)state;
    enum { COUNT = 3000 };
    char *folder = make_folder();
    make_requests(folder, COUNT, 9);
    struct requests *requests;
    assert_ok(requests_open(folder, &requests));
    assert_int_equal(requests_count(requests), COUNT);
    assert_int_equal(requests_error_count(requests), 9);
    assert_int_equal(requests_seed(requests), 5);
    assert_string_equal(requests_fingerprint(requests), test_provenance.fingerprint);
    assert_string_equal(requests_input_file(requests, 1), "two.jsonl");
    assert_string_equal(requests_options(requests), "{\"a\": 1}");
    const int32_t *lengths;
    assert_ok(requests_lengths(requests, &lengths));
    struct request *held[COUNT], *request;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(lengths[i], i % 64);
        assert_ok(requests_read(requests, i, &held[i]));
    }
    for (int i = COUNT - 1; i >= 0; i -= 37) {
        assert_ok(requests_read(requests, i, &request));
        assert_same_request(request, i);
        requests_release(request);
    }
    for (int i = 0; i < COUNT; i++) {
        struct request_head head;
        assert_same_request(held[i], i);
        requests_release(held[i]);
        assert_ok(requests_read_head(requests, i, &head));
        struct request expected = test_request(i);
        assert_text(head.custom_id, expected.custom_id);
        assert_text(head.model, expected.model);
        assert_int_equal(head.kind, expected.kind);
        assert_int_equal(head.start, expected.start);
        assert_int_equal(head.parse_tool_calls, expected.parse_tool_calls);
        assert_int_equal(head.json_output, expected.json_output);
        assert_int_equal(head.top_logprobs, expected.sampling.top_logprobs);
        assert_int_equal(head.image_tokens, expected.image_tokens);
    }
    check_prompts(requests, COUNT);
    for (int i = 8; i >= 0; i--) {
        struct request_error error;
        assert_ok(requests_read_error(requests, i, &error));
        assert_int_equal(error.line, 1000 + i);
        assert_int_equal(error.has_custom_id, i % 2);
        assert_int_equal(error.status, i % 2 ? 400 : 0);
        assert_string_equal(error.code, i % 2 ? "bad_field" : "invalid_json_line");
        assert_int_equal(error.param != NULL, i % 2);
    }
    assert_int_not_equal(requests_read(requests, COUNT, &request), OK);
    requests_close(requests);
    remove_folder(folder);
}

/* One record of every `stride`, as a rank has them; strides beyond a block's size and backwards too. */
static void strides(void **state) {
    (void)state;
    enum { COUNT = 5000 };
    static const int all[] = {1, 3, 17, 64, 1000, -1, -29};
    char *folder = make_folder();
    make_requests(folder, COUNT, 0);
    for (size_t s = 0; s < sizeof all / sizeof *all; s++) {
        struct requests *requests;
        assert_ok(requests_open(folder, &requests));
        for (int i = all[s] > 0 ? 0 : COUNT - 1; i >= 0 && i < COUNT; i += all[s]) {
            struct request_format format;
            struct request *request, expected = test_request(i);
            assert_ok(requests_read(requests, i, &request));
            assert_same_request(request, i);
            requests_release(request);
            assert_ok(requests_read_format(requests, i, &format));
            assert_int_equal(format.constraint, expected.constraint);
            assert_text(format.constraint_text, expected.constraint_text);
            assert_int_equal(format.stop_count, expected.sampling.stop_count);
            for (int32_t k = 0; k < format.stop_count; k++)
                assert_text(format.stops[k], expected.sampling.stops[k]);
        }
        requests_close(requests);
    }
    remove_folder(folder);
}

enum { IMAGE_MOST = 5 << 20, IMAGES = 12 };

static uint8_t image_byte(int i, size_t b) {
    return (uint8_t)(b * 13 + (size_t)i);
}

static size_t image_bytes(int i) {
    return i % 4 == 2 ? IMAGE_MOST : 100 + (size_t)i;
}

static void make_images(const char *folder) {
    static const char *const files[] = {"in.jsonl"};
    struct requests_source source = {.files = files, .file_count = 1, .options = ""};
    struct requests_writer *writer;
    uint8_t *data = malloc(IMAGE_MOST);
    assert_ok(requests_writer_create(folder, &test_provenance, &source, &writer));
    for (int i = 0; i < IMAGES; i++) {
        char hash[HASH_DIGITS + 1];
        for (size_t b = 0; b < image_bytes(i); b++)
            data[b] = image_byte(i, b);
        hash_digits_128(data, image_bytes(i), hash);
        struct campaign_image image = {.hash = hash,
            .format = i % 2 ? "PNG" : "JPEG",
            .low_detail = i % 3 == 0,
            .rows = i + 1,
            .columns = 2 * i + 1,
            .tokens = 3 * i + 1,
            .data = data,
            .bytes = image_bytes(i)};
        assert_ok(requests_writer_add_image(writer, &image));
    }
    free(data);
    struct requests_input input = {.hash = "ffeeddccbbaa99887766554433221100", .lines = 1, .blank_lines = 1};
    assert_ok(requests_writer_finish(writer, &input));
}

/* Images come back in any order; together they are more than one batch. */
static void images(void **state) {
    (void)state;
    char *folder = make_folder();
    make_images(folder);
    struct requests *requests;
    const int32_t *tokens;
    assert_ok(requests_open(folder, &requests));
    assert_int_equal(requests_image_count(requests), IMAGES);
    assert_ok(requests_image_tokens(requests, &tokens));
    struct campaign_image image;
    for (int n = 0; n < 3 * IMAGES; n++) {
        int i = n * 7 % IMAGES;
        assert_int_equal(tokens[i], 3 * i + 1);
        assert_ok(requests_read_image(requests, i, &image));
        assert_string_equal(image.format, i % 2 ? "PNG" : "JPEG");
        assert_int_equal(image.low_detail, i % 3 == 0);
        assert_int_equal(image.rows, i + 1);
        assert_int_equal(image.columns, 2 * i + 1);
        assert_int_equal(image.tokens, 3 * i + 1);
        assert_int_equal(image.bytes, image_bytes(i));
        for (size_t b = 0; b < image.bytes; b += 97)
            assert_int_equal(image.data[b], image_byte(i, b));
    }
    assert_fails(requests_read_image(requests, IMAGES, &image), ERROR_INTERNAL, "12 of 12");
    assert_fails(requests_read_image(requests, -1, &image), ERROR_INTERNAL, "-1 of 12");
    requests_close(requests);
    remove_folder(folder);
}

/* More than one batch: datasets are extended, and the rest of the file is as if written at once. */
static void several_batches(void **state) {
    (void)state;
    char *folder = make_folder();
    enum { COUNT = 40000 };
    make_requests(folder, COUNT, 0);
    struct requests *requests;
    assert_ok(requests_open(folder, &requests));
    for (int i = 0; i < COUNT; i += 977) {
        struct request *request;
        assert_ok(requests_read(requests, i, &request));
        assert_same_request(request, i);
        requests_release(request);
    }
    requests_close(requests);
    remove_folder(folder);
}

static void nothing_in_it(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 0, 0);
    struct requests *requests;
    const int32_t *lengths;
    assert_ok(requests_open(folder, &requests));
    assert_int_equal(requests_count(requests), 0);
    assert_ok(requests_lengths(requests, &lengths));
    requests_close(requests);
    remove_folder(folder);
}

/* The identity depends on the content, not on the folder or the time. */
static void identity(void **state) {
    (void)state;
    char *one = make_folder(), *two = make_folder(), *three = make_folder();
    struct requests *a, *b, *c;
    make_requests(one, 10, 1);
    make_requests(two, 10, 1);
    make_requests_seeded(three, 10, 1, 6);
    assert_ok(requests_open(one, &a));
    assert_ok(requests_open(two, &b));
    assert_ok(requests_open(three, &c));
    assert_string_equal(requests_identity(a), requests_identity(b));
    assert_string_not_equal(requests_identity(a), requests_identity(c));
    requests_close(a);
    requests_close(b);
    requests_close(c);
    remove_folder(one);
    remove_folder(two);
    remove_folder(three);
}

static void damaged_file_is_refused(void **state) {
    (void)state;
    char *folder = make_folder();
    make_requests(folder, 20, 2);
    size_t bytes;
    char *path = in_folder(folder, "requests.h5"), *data = read_file(path, &bytes);
    struct requests *requests;
    for (size_t i = 0; i < 50; i++) {
        write_file(path, data, bytes * i / 50);
        assert_fails(requests_open(folder, &requests), ERROR_INPUT, "requests.h5");
        size_t at = bytes * i / 50;
        data[at] ^= 0x20;
        write_file(path, data, bytes);
        data[at] ^= 0x20;
        assert_fails(requests_open(folder, &requests), ERROR_INPUT, "requests.h5");
    }
    write_file(path, data, bytes);
    assert_ok(requests_open(folder, &requests));
    requests_close(requests);
    free(data);
    remove_folder(folder);
}

/* A write that fails is an error with file and cause, and leaves no file behind. */
static void full_disk(void **state) {
    (void)state;
    char *folder = make_folder();
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {200000, 200000};
        setrlimit(RLIMIT_FSIZE, &limit);
        struct requests_source source = {.options = ""};
        struct requests_writer *writer;
        if (requests_writer_create(folder, &test_provenance, &source, &writer) != OK)
            _exit(1);
        enum result status = OK;
        for (int i = 0; i < 60000 && status == OK; i++) {
            struct request request = test_request(i);
            status = requests_writer_add(writer, &request);
        }
        if (status == OK) {
            struct requests_input input = {.hash = ""};
            status = requests_writer_finish(writer, &input);
        } else {
            requests_writer_abandon(writer);
        }
        bool right = status == ERROR_IO && strstr(failure_message(), "requests.h5") &&
                     strstr(failure_message(), "File too large");
        if (!right)
            fprintf(stderr, "result %d: %s\n", (int)status, failure_message());
        _exit(right ? 0 : 2);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    char command[256];
    snprintf(command, sizeof command, "test -z \"$(ls -A '%s')\"", folder);
    assert_int_equal(system(command), 0);
    remove_folder(folder);
}

static void header_is_strict(void **state) {
    (void)state;
    struct file_header header = {.format = "nocturne.results",
                           .version = FORMAT_VERSION,
                           .bytes = 1234,
                           .records = 3},
                       again;
    memset(header.requests, 'a', HASH_DIGITS);
    memset(header.content_hash, 'b', HASH_DIGITS);
    char block[HEADER_BYTES];
    header_format(&header, block);
    assert_ok(header_parse(block, &again));
    assert_int_equal(again.bytes, 1234);
    for (int i = 0; i < HEADER_BYTES; i++)
        for (int bit = 0; bit < 8; bit++) {
            block[i] = (char)(block[i] ^ 1 << bit);
            assert_int_equal(header_parse(block, &again), ERROR_INPUT);
            block[i] = (char)(block[i] ^ 1 << bit);
        }
}

static void lines_of_files(void **state) {
    (void)state;
    char *folder = make_folder();
    char *one = in_folder(folder, "one"), *two = in_folder(folder, "two");
    size_t big = 5 << 20;
    char *text = malloc(big + 16);
    memset(text, 'x', big);
    memcpy(text + big, "\n\n \t\r\nend", 9);
    write_file(one, text, big + 9);
    write_file(two, "last\n", 5);
    const char *const files[] = {one, two};
    struct line_reader *reader;
    struct input_line line;
    bool more;
    assert_ok(line_reader_create(files, 2, &reader));
    const size_t sizes[] = {big, 0, 3, 3, 4};
    for (int i = 0; i < 5; i++) {
        assert_ok(line_reader_next(reader, &line, &more));
        assert_true(more);
        assert_int_equal(line.bytes, sizes[i]);
        assert_int_equal(line.number, i < 4 ? i + 1 : 1);
        assert_int_equal(line.file, i / 4);
        assert_int_equal(line.blank, i == 1 || i == 2);
    }
    assert_ok(line_reader_next(reader, &line, &more));
    assert_false(more);
    char digits[HASH_DIGITS + 1], drained[HASH_DIGITS + 1];
    line_reader_hash(reader, digits);
    line_reader_free(reader);
    assert_ok(line_reader_create(files, 2, &reader));
    assert_ok(line_reader_drain(reader));
    line_reader_hash(reader, drained);
    assert_string_equal(digits, drained);
    line_reader_free(reader);
    free(text);
    remove_folder(folder);
}

static void seen_texts(void **state) {
    (void)state;
    struct seen_set set = {0};
    uint64_t earlier;
    char text[32];
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 20000; i++) {
            int bytes = snprintf(text, sizeof text, "id %d", i);
            assert_ok(seen_add(&set, text, (size_t)bytes, 3, i + 1, &earlier));
            assert_int_equal(earlier, round ? (uint64_t)3 << 40 | (uint64_t)(i + 1) : 0);
        }
    seen_free(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(strides),
        cmocka_unit_test(images),
        cmocka_unit_test(several_batches),
        cmocka_unit_test(nothing_in_it),
        cmocka_unit_test(identity),
        cmocka_unit_test(damaged_file_is_refused),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(header_is_strict),
        cmocka_unit_test(lines_of_files),
        cmocka_unit_test(seen_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

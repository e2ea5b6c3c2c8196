/* What bench/campaign.py needs beside the program itself.
 *
 *   bench-campaign answers CAMPAIGN ANSWERS.jsonl   made-up results for every request, as decode would write them
 *   bench-campaign limit FILE SCRATCH.h5            what any ingest must do: read FILE, find its lines, and write as
 *                                                   many bytes to an HDF5 file; prints processor seconds
 *
 * Each line of ANSWERS.jsonl is a JSON string, the text a model wrote; requests take them in turn.
 */
#include "base/buffer.h"
#include "base/json.h"
#include "campaign/lines.h"
#include "campaign/requests.h"
#include "campaign/results.h"
#include "recipe/tokenizer.h"

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PART_BYTES = 32 << 20, /* pending results that make a part */
    CHOICES_MOST = 8,
    TOP_MOST = 20,
    EOS = 1,
    PIECE = 1 << 20, /* bytes of one HDF5 write */
};

/* One model output: its ids with the end of sequence behind them, and its text without special tokens. */
struct answer {
    struct token_list ids;
    struct buffer text;
};

static struct answer *answers;
static size_t answer_count, longest;
static float *logprobs, *top_values; /* [longest], [longest, TOP_MOST] */
static int32_t *top_ids;             /* [longest, TOP_MOST] */

static void check(enum result status) {
    if (status == OK)
        return;
    fprintf(stderr, "bench-campaign: %s\n", failure_message());
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *made = calloc(count + 1, size);
    if (!made) {
        fprintf(stderr, "bench-campaign: out of memory\n");
        exit(1);
    }
    return made;
}

/* ---- made-up results ---- */

static void add_answer(const struct tokenizer *tokenizer, const struct json *text) {
    answers = realloc(answers, (answer_count + 1) * sizeof *answers);
    if (!answers || text->kind != JSON_STRING)
        exit(1);
    struct answer *made = &answers[answer_count++];
    *made = (struct answer){0};
    check(tokenizer_encode(tokenizer, text->text, text->bytes, &made->ids));
    tokenizer_decode(tokenizer, made->ids.ids, made->ids.count, true, &made->text);
    token_list_append(&made->ids, &(int32_t){EOS}, 1);
    if (made->ids.count > longest)
        longest = made->ids.count;
}

static void read_answers(const struct tokenizer *tokenizer, const char *path) {
    struct line_reader *reader;
    struct json_document *document;
    struct input_line line;
    check(json_document_create(&document));
    check(line_reader_create(&path, 1, &reader));
    for (bool more = true;;) {
        const struct json *text;
        check(line_reader_next(reader, &line, &more));
        if (!more)
            break;
        check(json_parse(document, line.text, line.bytes, &text));
        add_answer(tokenizer, text);
    }
    line_reader_free(reader);
    json_document_free(document);
}

/* Values with the spread of real ones: most tokens are sure, some are not. */
static void make_logprobs(int32_t vocabulary) {
    uint64_t state = 88172645463325252u;
    logprobs = allocate(longest, sizeof *logprobs);
    top_values = allocate(longest * TOP_MOST, sizeof *top_values);
    top_ids = allocate(longest * TOP_MOST, sizeof *top_ids);
    for (size_t i = 0; i < longest * TOP_MOST; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        double unit = (double)(state >> 11) * 0x1p-53;
        top_values[i] = (float)(-unit * unit * unit * 12 - (double)(i % TOP_MOST));
        top_ids[i] = (int32_t)(state % (uint64_t)(vocabulary - 1024));
        if (i % TOP_MOST == 0)
            logprobs[i / TOP_MOST] = top_values[i];
    }
}

static void write_one(struct results_writer *writer, const struct request *request, int64_t index) {
    struct choice_result choices[CHOICES_MOST];
    int32_t count = request->sampling.choices < CHOICES_MOST ? request->sampling.choices : CHOICES_MOST;
    for (int32_t c = 0; c < count; c++) {
        const struct answer *answer = &answers[(size_t)(index + c) % answer_count];
        choices[c] = (struct choice_result){.token_count = (int32_t)answer->ids.count,
            .token_ids = answer->ids.ids,
            .logprobs = logprobs,
            .top_logprobs = request->sampling.top_logprobs > 0 ? request->sampling.top_logprobs : 0,
            .top_ids = top_ids,
            .top_values = top_values,
            .text = {answer->text.data, answer->text.bytes},
            .text_tokens = (int32_t)answer->ids.count - 1,
            .cause = STOP_EOS,
            .stop_index = -1};
    }
    struct request_result result = {.request = index,
        .prompt_tokens = request->token_count,
        .choice_count = count,
        .choices = choices,
        .finished_at = 1700000000.0 + (double)index};
    check(results_writer_add(writer, &result));
}

/* A rank finishes requests not quite in the order of the input: blocks of 64 are written backwards. */
static void write_results(const char *folder, const char *answers_path) {
    enum { BLOCK = 64 };
    struct requests *requests;
    struct tokenizer *tokenizer;
    struct results_writer *writer;
    check(requests_open(folder, &requests));
    check(tokenizer_load(requests_model_folder(requests), &tokenizer));
    read_answers(tokenizer, answers_path);
    make_logprobs(tokenizer_size(tokenizer));
    struct provenance provenance = {.command = "bench",
        .model_folder = requests_model_folder(requests),
        .fingerprint = requests_fingerprint(requests),
        .identity = "bench",
        .settings = "{}",
        .ranks = 1,
        .supernode = 1};
    check(results_writer_create(folder, 0, &provenance, &writer));
    int64_t count = requests_count(requests);
    for (int64_t i = 0; i < count; i++) {
        struct request *request;
        int64_t block = i / BLOCK * BLOCK, last = block + BLOCK < count ? block + BLOCK : count;
        int64_t index = last - 1 - (i - block);
        check(requests_read(requests, index, &request));
        write_one(writer, request, index);
        requests_release(request);
        if (results_writer_pending_bytes(writer) >= PART_BYTES)
            check(results_writer_flush(writer));
    }
    check(results_writer_flush(writer));
    results_writer_free(writer);
    tokenizer_free(tokenizer);
    requests_close(requests);
}

/* ---- the limit ---- */

static double processor_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static hid_t create_bytes(const char *path, hid_t *file) {
    hsize_t none = 0, most = H5S_UNLIMITED, chunk = PIECE;
    *file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = H5Screate_simple(1, &none, &most), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, 1, &chunk);
    hid_t dataset = H5Dcreate2(*file, "bytes", H5T_STD_U8LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    H5Pclose(creation);
    H5Sclose(space);
    return dataset;
}

static void append_bytes(hid_t dataset, hsize_t start, hsize_t count, const void *bytes) {
    hsize_t end = start + count;
    H5Dset_extent(dataset, &end);
    hid_t space = H5Dget_space(dataset), memory = H5Screate_simple(1, &count, NULL);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL);
    if (H5Dwrite(dataset, H5T_NATIVE_UINT8, memory, space, H5P_DEFAULT, bytes) < 0)
        exit(1);
    H5Sclose(memory);
    H5Sclose(space);
}

static void measure_limit(const char *path, const char *scratch) {
    double begun = processor_seconds();
    FILE *input = fopen(path, "rb");
    char *piece = allocate(PIECE, 1);
    size_t got, lines = 0, bytes = 0;
    hid_t file, dataset = create_bytes(scratch, &file);
    if (!input || dataset < 0)
        exit(1);
    setvbuf(input, NULL, _IONBF, 0);
    while ((got = fread(piece, 1, PIECE, input)) > 0) {
        const char *end = piece + got;
        for (const char *at = piece; (at = memchr(at, '\n', (size_t)(end - at))); at++)
            lines++;
        append_bytes(dataset, bytes, got, piece);
        bytes += got;
    }
    H5Dclose(dataset);
    H5Fclose(file);
    fclose(input);
    free(piece);
    printf(
        "{\"lines\": %zu, \"bytes\": %zu, \"seconds\": %.6f}\n", lines, bytes, processor_seconds() - begun);
    unlink(scratch);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "answers"))
        write_results(argv[2], argv[3]);
    else if (argc == 4 && !strcmp(argv[1], "limit"))
        measure_limit(argv[2], argv[3]);
    else {
        fprintf(stderr, "usage: bench-campaign answers CAMPAIGN ANSWERS.jsonl | limit FILE SCRATCH.h5\n");
        return 2;
    }
    return 0;
}

/* requests.h5: the requests of a campaign in input order, and the lines that were refused. */
#ifndef NOCTURNE_CAMPAIGN_REQUESTS_H
#define NOCTURNE_CAMPAIGN_REQUESTS_H

#include "base/error.h"
#include "campaign/campaign.h"
#include "recipe/request.h"

#include <stdint.h> /* int64_t */

struct requests_writer; /* flat memory: records go out in batches */

struct requests_source {
    const char *const *files; /* input files, in order */
    int32_t file_count;
    int64_t seed;        /* the campaign's sampling seed */
    const char *options; /* the ingest options that matter to the content, one line: see requests_options */
};

/* What was read, known at the end. */
struct requests_input {
    const char *hash; /* 32 hex digits: of all input bytes */
    int64_t lines, blank_lines;
};

MUST_CHECK enum result requests_writer_create(const char *campaign_folder,
    const struct provenance *provenance, const struct requests_source *source,
    struct requests_writer **writer);
MUST_CHECK enum result requests_writer_add(struct requests_writer *writer, const struct request *request);
/* An image of the campaign, stored once whatever number of requests show it. Its index is the number of those added
 * before. */
struct campaign_image {
    const char *hash, *format; /* XXH3-128 of the bytes, 32 hex digits; "PNG", ... */
    bool low_detail;
    int32_t rows, columns; /* patches fed to the encoder */
    int32_t tokens;        /* of its span */
    const uint8_t *data;   /* the file as it was given */
    size_t bytes;
};
MUST_CHECK enum result requests_writer_add_image(
    struct requests_writer *writer, const struct campaign_image *image);
MUST_CHECK enum result requests_writer_add_error(
    struct requests_writer *writer, const struct request_error *error);
/* Flushes, renames to requests.h5 (an older one is replaced). The writer is freed in every case. */
MUST_CHECK enum result requests_writer_finish(
    struct requests_writer *writer, const struct requests_input *input);
void requests_writer_abandon(
    struct requests_writer *writer); /* removes the temporary file; NULL is allowed */

struct requests; /* an open requests.h5; not shareable between threads */

MUST_CHECK enum result requests_open(const char *campaign_folder, struct requests **requests);
void requests_close(struct requests *requests);

int64_t requests_count(const struct requests *requests);       /* accepted requests */
int64_t requests_error_count(const struct requests *requests); /* refused lines */
int64_t requests_seed(const struct requests *requests);
const char *requests_model_folder(const struct requests *requests);
const char *requests_fingerprint(const struct requests *requests); /* the checkpoint it was ingested for */
const char *requests_identity(
    const struct requests *requests); /* 32 hex digits: of the content of this file */
const char *requests_input_hash(const struct requests *requests); /* 32 hex digits: of all input bytes */
const char *requests_options(const struct requests *requests);    /* as in struct requests_source */
int64_t requests_prompt_tokens(const struct requests *requests);
int32_t requests_input_file_count(const struct requests *requests);
const char *requests_input_file(const struct requests *requests, int32_t file);

/* Prompt tokens of each request [count], for placement; owned by `requests`. */
MUST_CHECK enum result requests_lengths(struct requests *requests, const int32_t **token_counts);

/* Request `index`. Its memory is `requests`' own and valid until requests_release or requests_close; each call allocates what
 * the request needs (so many can be held at once). */
MUST_CHECK enum result requests_read(struct requests *requests, int64_t index, struct request **request);
void requests_release(struct request *request); /* NULL is allowed */

/* What answers repeat of a request; cheaper than requests_read. Valid until the next call of this function. */
struct request_head {
    int32_t file;
    int64_t line;
    struct text_piece custom_id, model;
    enum request_kind kind;
    bool thinking;
    enum start_stage start;
    bool parse_tool_calls, json_output;
    int32_t top_logprobs;
    int32_t image_tokens;
};
MUST_CHECK enum result requests_read_head(
    struct requests *requests, int64_t index, struct request_head *head);

/* What an answer is read by; without the prompt, and so cheaper than requests_read. Valid until the next call of this
 * function. */
struct request_format {
    enum constraint_kind constraint;
    struct text_piece constraint_text; /* the schema, or the tools */
    const struct text_piece *stops;    /* [stop_count] */
    int32_t stop_count;
};
MUST_CHECK enum result requests_read_format(
    struct requests *requests, int64_t index, struct request_format *format);

/* A prompt alone; cheaper than requests_read. Valid until the next call of this function. */
struct request_prompt {
    const int32_t *token_ids; /* [tokens] */
    int32_t tokens;
    const int64_t *images;    /* [image_count], in the order of their spans */
    const int32_t *positions; /* [image_count]: where the spans begin */
    int32_t image_count;
};
MUST_CHECK enum result requests_read_prompt(
    struct requests *requests, int64_t index, struct request_prompt *prompt);

/* How much each request may generate [count]: choices and tokens of each, for placement; owned by `requests`. */
MUST_CHECK enum result requests_limits(
    struct requests *requests, const int32_t **choices, const int32_t **max_tokens);

/* The images that request `index` shows; valid until the next call. */
MUST_CHECK enum result requests_read_images(
    struct requests *requests, int64_t index, const int64_t **images, size_t *count);

int64_t requests_image_count(const struct requests *requests);
/* Tokens of each image [image count], for placement; owned by `requests`. */
MUST_CHECK enum result requests_image_tokens(struct requests *requests, const int32_t **tokens);
/* What the embeddings of an image depend on besides the encoder; all bytes are set. */
struct image_identity {
    char hash[32]; /* as in struct campaign_image */
    int32_t low_detail, rows, columns, tokens;
};
MUST_CHECK enum result requests_image_identity(
    struct requests *requests, int64_t index, struct image_identity *identity);
/* Image `index`, its bytes checked by their hash; valid until the next call. */
MUST_CHECK enum result requests_read_image(
    struct requests *requests, int64_t index, struct campaign_image *image);

/* Refused line `index`; valid until the next call. */
MUST_CHECK enum result requests_read_error(
    struct requests *requests, int64_t index, struct request_error *error);

#endif

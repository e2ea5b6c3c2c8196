/* The output of `nocturne score`: an HDF5 file that grows with each text and gets its name when it is
 * whole. */
#ifndef NOCTURNE_CAMPAIGN_SCORE_FILE_H
#define NOCTURNE_CAMPAIGN_SCORE_FILE_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

struct score_file;

struct score_file_options {
    bool logits;
    int32_t vocab_size;
    const char *fingerprint, *mode, *kernels, *tail; /* kept as attributes */
};

MUST_CHECK enum result score_file_create(
    const char *path, const struct score_file_options *options, struct score_file **file);
/* Removes what is not finished; NULL is allowed. */
void score_file_abandon(struct score_file *file);
/* Gives the file its name. It is freed in every case. */
MUST_CHECK enum result score_file_finish(struct score_file *file);

int64_t score_file_tokens(const struct score_file *file); /* of all texts so far */

/* Rows [first, first + count) of the logits, counted over all texts; rows never written are NaN. */
MUST_CHECK enum result score_file_put_logits(
    struct score_file *file, int64_t first, int64_t count, const float *logits);
/* The next text. */
MUST_CHECK enum result score_file_add(struct score_file *file, const char *id, int64_t id_bytes,
    const int32_t *token_ids, const float *logprobs, int64_t tokens);
MUST_CHECK enum result score_file_add_error(
    struct score_file *file, int64_t line, const char *message, int64_t message_bytes);

#endif

/* The texts that `nocturne score` is given: JSONL lines {"id", "token_ids"} or {"id", "text"}. */
#ifndef NOCTURNE_CAMPAIGN_SCORE_INPUT_H
#define NOCTURNE_CAMPAIGN_SCORE_INPUT_H

#include "base/buffer.h"
#include "base/error.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

struct score_input;

struct score_input_options {
    const struct tokenizer *tokenizer;
    int32_t vocab_size, bos_token_id, context;
    int32_t rank, ranks; /* of the lines that are not blank, every `ranks`th is this rank's */
};

/* A line: a text, or (bad) what is wrong with it. Memory is the input's, valid until its next line. */
struct score_line {
    int64_t line;     /* 1-based, blank lines counted */
    struct buffer id; /* "id" as it stands, or the line number */
    struct token_list tokens;
    bool bad;
    char message[512];
};

MUST_CHECK enum result score_input_open(
    const char *path, const struct score_input_options *options, struct score_input **input);
void score_input_close(struct score_input *input); /* NULL is allowed */

/* This rank's next line; *line is NULL at the end. A failure is only the program's own trouble, never a bad
 * line. */
MUST_CHECK enum result score_input_next(struct score_input *input, struct score_line **line);

#endif

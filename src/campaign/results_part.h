/* The columns of a part of results/ (docs/formats.md, nocturne.results). */
#ifndef NOCTURNE_CAMPAIGN_RESULTS_PART_H
#define NOCTURNE_CAMPAIGN_RESULTS_PART_H

#include "campaign/table.h"

#define RESULTS_FORMAT "nocturne.results"

/* A column of offsets follows its values. */
enum results_column {
    RESULT_REQUEST,
    RESULT_PROMPT_TOKENS,
    RESULT_CACHED_TOKENS,
    RESULT_FINISHED_AT,
    RESULT_FAILED,
    RESULT_ERROR_STATUS,
    RESULT_ERROR_TYPE,
    RESULT_ERROR_TYPE_OFFSETS,
    RESULT_ERROR_CODE,
    RESULT_ERROR_CODE_OFFSETS,
    RESULT_ERROR_PARAM,
    RESULT_ERROR_PARAM_OFFSETS,
    RESULT_ERROR_MESSAGE,
    RESULT_ERROR_MESSAGE_OFFSETS,
    RESULT_CHOICE_OFFSETS,
    RESULT_TOKEN_IDS,
    RESULT_LOGPROBS,
    RESULT_TOKEN_OFFSETS,
    RESULT_TEXT,
    RESULT_TEXT_OFFSETS,
    RESULT_TEXT_TOKENS,
    RESULT_FINISH,
    RESULT_CAUSE,
    RESULT_STOP_INDEX,
    RESULT_TOP_COUNT,
    RESULT_TOP_IDS,
    RESULT_TOP_LOGPROBS,
    RESULT_TOP_OFFSETS,
    RESULT_COLUMNS,
};
extern const struct column results_columns[RESULT_COLUMNS];

/* Reads a whole part, with all checks but the content hash of the file. `table` is created here, and freed on failure. */
MUST_CHECK enum result results_part_read(
    hid_t file, const char *path, const struct file_header *header, struct table *table);
/* The same checks, nothing kept. */
MUST_CHECK enum result results_part_check(hid_t file, const char *path, const struct file_header *header);

#endif

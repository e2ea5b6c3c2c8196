/* The columns of a part of prefill/ (docs/formats.md, nocturne.states), apart from its sections. */
#ifndef NOCTURNE_CAMPAIGN_STATES_PART_H
#define NOCTURNE_CAMPAIGN_STATES_PART_H

#include "campaign/table.h"

#define STATES_FORMAT "nocturne.states"

/* A column of offsets follows its values. */
enum states_column {
    STATE_REQUEST,
    STATE_CACHED_TOKENS,
    STATE_GENERATED,
    STATE_RECORD_HASH,
    STATE_SECTION_NAMES,
    STATE_SECTION_NAMES_OFFSETS,
    STATE_SEQUENCE_TOKENS,
    STATE_SEQUENCE_OFFSETS,
    STATE_CHOICE_SEQUENCE,
    STATE_TOP_COUNT,
    STATE_CHOICE_OFFSETS,
    STATE_TOKEN_IDS,
    STATE_TOKEN_LOGPROBS,
    STATE_TOKEN_OFFSETS,
    STATE_TOP_IDS,
    STATE_TOP_LOGPROBS,
    STATE_TOP_OFFSETS,
    STATE_COLUMNS,
};
extern const struct column states_columns[STATE_COLUMNS];

/* Reads all columns but the sections and checks that they agree. `table` is created here, and freed on failure. */
MUST_CHECK enum result states_part_read(
    hid_t file, const char *path, const struct file_header *header, struct table *table);
/* All of a part, sections included. */
MUST_CHECK enum result states_part_check(hid_t file, const char *path, const struct file_header *header);

#endif

/* The columns of requests.h5 (docs/formats.md, nocturne.requests), shared by its writer and its reader. */
#ifndef NOCTURNE_CAMPAIGN_REQUESTS_COLUMNS_H
#define NOCTURNE_CAMPAIGN_REQUESTS_COLUMNS_H

#include "campaign/table.h"

#define REQUESTS_FORMAT "nocturne.requests"

/* A column of offsets follows the (last) column of its values. */
enum requests_column {
    REQUEST_FILE,
    REQUEST_LINE,
    REQUEST_CUSTOM_ID,
    REQUEST_CUSTOM_ID_OFFSETS,
    REQUEST_MODEL,
    REQUEST_MODEL_OFFSETS,
    REQUEST_KIND,
    REQUEST_THINKING,
    REQUEST_START,
    REQUEST_PARSE_TOOL_CALLS,
    REQUEST_JSON_OUTPUT,
    REQUEST_CONSTRAINT,
    REQUEST_CONSTRAINT_STRICT,
    REQUEST_CONSTRAINT_COMPACT,
    REQUEST_ONE_CALL,
    REQUEST_CONSTRAINT_TEXT,
    REQUEST_CONSTRAINT_TEXT_OFFSETS,
    REQUEST_TOKEN_IDS,
    REQUEST_TOKEN_OFFSETS,
    REQUEST_IMAGE_TOKENS,
    REQUEST_IMAGES,
    REQUEST_IMAGE_POSITIONS,
    REQUEST_IMAGE_OFFSETS,
    REQUEST_TEMPERATURE,
    REQUEST_TOP_P,
    REQUEST_MIN_P,
    REQUEST_TOP_K,
    REQUEST_PRESENCE_PENALTY,
    REQUEST_FREQUENCY_PENALTY,
    REQUEST_CHOICES,
    REQUEST_MAX_TOKENS,
    REQUEST_TOP_LOGPROBS,
    REQUEST_HAS_SEED,
    REQUEST_SEED,
    REQUEST_IGNORE_EOS,
    REQUEST_BIAS_IDS,
    REQUEST_BIAS_VALUES,
    REQUEST_BIAS_OFFSETS,
    REQUEST_STOP_IDS,
    REQUEST_STOP_ID_OFFSETS,
    REQUEST_STOP_LIST_OFFSETS,
    REQUEST_STOPS,
    REQUEST_STOPS_OFFSETS,
    REQUEST_COLUMNS,
};

enum refused_column {
    REFUSED_FILE,
    REFUSED_LINE,
    REFUSED_HAS_CUSTOM_ID,
    REFUSED_CUSTOM_ID,
    REFUSED_CUSTOM_ID_OFFSETS,
    REFUSED_STATUS,
    REFUSED_TYPE,
    REFUSED_TYPE_OFFSETS,
    REFUSED_CODE,
    REFUSED_CODE_OFFSETS,
    REFUSED_PARAM,
    REFUSED_PARAM_OFFSETS,
    REFUSED_MESSAGE,
    REFUSED_MESSAGE_OFFSETS,
    REFUSED_COLUMNS,
};

enum image_column {
    IMAGE_HASH,
    IMAGE_HASH_OFFSETS,
    IMAGE_FORMAT,
    IMAGE_FORMAT_OFFSETS,
    IMAGE_LOW_DETAIL,
    IMAGE_ROWS,
    IMAGE_COLUMNS,
    IMAGE_TOKENS,
    IMAGE_DATA,
    IMAGE_DATA_OFFSETS,
    IMAGE_COLUMN_COUNT,
};

enum input_column { INPUT_FILES, INPUT_FILES_OFFSETS, INPUT_COLUMNS };

/* How the rows of a column are counted. */
enum column_extent {
    EXTENT_RECORD,  /* one a record */
    EXTENT_OFFSETS, /* one a record and one more */
    EXTENT_NESTED,  /* offsets of entries that another column of offsets counts, and one more */
    EXTENT_VALUES,  /* values that a column of offsets counts */
};

struct column_layout {
    enum column_extent extent;
    int offsets; /* EXTENT_NESTED, EXTENT_VALUES: the column that counts */
};

extern const struct column requests_columns[REQUEST_COLUMNS];
extern const struct column refused_columns[REFUSED_COLUMNS];
extern const struct column image_columns[IMAGE_COLUMN_COUNT];
extern const struct column input_columns[INPUT_COLUMNS];
extern const struct column_layout requests_layouts[REQUEST_COLUMNS];
extern const struct column_layout refused_layouts[REFUSED_COLUMNS];
extern const struct column_layout image_layouts[IMAGE_COLUMN_COUNT];
extern const struct column_layout input_layouts[INPUT_COLUMNS];

#endif

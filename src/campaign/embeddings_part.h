/* The columns of a part of vision/ (docs/formats.md, nocturne.embeddings), apart from its rows. */
#ifndef NOCTURNE_CAMPAIGN_EMBEDDINGS_PART_H
#define NOCTURNE_CAMPAIGN_EMBEDDINGS_PART_H

#include "campaign/hdf5_file.h"
#include "campaign/table.h"

#define EMBEDDINGS_FORMAT "nocturne.embeddings"

/* A column of offsets follows its values. */
enum embeddings_column {
    EMBEDDING_IMAGE,
    EMBEDDING_HASH,
    EMBEDDING_HASH_OFFSETS,
    EMBEDDING_RECORD_HASH,
    EMBEDDING_ROW_OFFSETS,
    EMBEDDING_COLUMNS,
};
extern const struct column embeddings_columns[EMBEDDING_COLUMNS];

/* Reads all columns but the rows, and checks that all agree; *hidden: values of a row. `table` is created here,
 * and freed on failure. */
MUST_CHECK enum result embeddings_part_read(
    hid_t file, const char *path, const struct file_header *header, struct table *table, int32_t *hidden);
/* The same checks, nothing kept. */
MUST_CHECK enum result embeddings_part_check(hid_t file, const char *path, const struct file_header *header);

#endif

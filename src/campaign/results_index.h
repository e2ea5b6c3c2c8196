/* results.h5: all parts of results/ as one file (docs/formats.md). */
#ifndef NOCTURNE_CAMPAIGN_RESULTS_INDEX_H
#define NOCTURNE_CAMPAIGN_RESULTS_INDEX_H

#include "campaign/parts.h"
#include "campaign/results_part.h"

#define INDEX_FORMAT "nocturne.index"

/* A part that takes part, and how many rows its columns have. */
struct indexed_part {
    const struct part_name *name;
    uint64_t rows[RESULT_COLUMNS];
};

/* Writes FOLDER/results.h5. record_of_request [total]: row in the joined records, -1: none. `header`: the joined counts and the
 * requests' identity. */
MUST_CHECK enum result results_index_write(const char *campaign_folder, const struct indexed_part *parts,
    size_t count, const int64_t *record_of_request, int64_t total, const struct provenance *provenance,
    struct file_header *header);

#endif

/* The columns of a format gathered in memory: what writers fill and readers get. */
#ifndef NOCTURNE_CAMPAIGN_TABLE_H
#define NOCTURNE_CAMPAIGN_TABLE_H

#include "campaign/hdf5_file.h"

struct table {
    const struct column *columns; /* not owned */
    int count;
    struct vector *data; /* [count] */
    uint64_t *ends;      /* [count]: of columns of offsets: the last one */
};

/* An empty table; columns whose names end in "offsets" hold their first 0. */
MUST_CHECK enum result table_create(struct table *table, const struct column *columns, int count);
void table_free(struct table *table);
/* Empties all columns but keeps where the offsets stand (a later batch of the same file goes on from there). */
void table_clear(struct table *table);
size_t table_bytes(const struct table *table); /* of all columns */

MUST_CHECK enum result table_append(struct table *table, int column, const void *values, size_t count);
MUST_CHECK enum result table_append_int32(struct table *table, int column, int32_t value);
MUST_CHECK enum result table_append_int64(struct table *table, int column, int64_t value);
MUST_CHECK enum result table_append_float(struct table *table, int column, float value);
MUST_CHECK enum result table_append_byte(struct table *table, int column, uint8_t value);
/* Ends an entry of `count` values in a column of offsets. */
MUST_CHECK enum result table_append_offset(struct table *table, int column, size_t count);
/* Values and then the offset, whose column must follow that of the values. */
MUST_CHECK enum result table_append_ragged(struct table *table, int column, const void *values, size_t count);
MUST_CHECK enum result table_append_text(struct table *table, int column, const char *text); /* NULL: "" */

/* Whether a column's name ends in "offsets". */
bool column_is_offsets(const struct column *column);

/* Writes all columns to a file being made; reads all of them, checksums checked. */
MUST_CHECK enum result table_write(hid_t file, const char *path, const struct table *table);
MUST_CHECK enum result table_read(hid_t file, const char *path, struct table *table);

size_t table_rows(const struct table *table, int column);
const void *table_values(const struct table *table, int column);
const uint64_t *table_offsets(const struct table *table, int column);
/* ERROR_INPUT unless `column` holds `entries` + 1 offsets, from 0 to `end`, none below the one before. */
MUST_CHECK enum result table_check_offsets(
    const struct table *table, const char *path, int column, size_t entries, size_t end);
/* ERROR_INPUT unless `column` holds `rows` values. */
MUST_CHECK enum result table_check_rows(const struct table *table, const char *path, int column, size_t rows);

#endif

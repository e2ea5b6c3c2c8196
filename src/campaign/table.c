#include "campaign/table.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* strlen, strcmp */

bool column_is_offsets(const struct column *column) {
    static const char ending[] = "offsets";
    size_t length = strlen(column->name), bytes = sizeof ending - 1;
    return length >= bytes && !strcmp(column->name + length - bytes, ending);
}

enum result table_create(struct table *table, const struct column *columns, int count) {
    *table = (struct table){.columns = columns, .count = count};
    table->data = calloc((size_t)count, sizeof *table->data);
    table->ends = calloc((size_t)count, sizeof *table->ends);
    if (!table->data || !table->ends) {
        table_free(table);
        return fail(ERROR_MEMORY, "out of memory for a table");
    }
    for (int i = 0; i < count; i++) {
        if (!column_is_offsets(&columns[i]))
            continue;
        enum result status = table_append_offset(table, i, 0);
        if (status != OK) {
            table_free(table);
            return status;
        }
    }
    return OK;
}

void table_free(struct table *table) {
    for (int i = 0; table->data && i < table->count; i++)
        vector_free(&table->data[i]);
    free(table->data);
    free(table->ends);
    *table = (struct table){0};
}

void table_clear(struct table *table) {
    for (int i = 0; i < table->count; i++)
        table->data[i].bytes = 0;
}

size_t table_bytes(const struct table *table) {
    size_t bytes = 0;
    for (int i = 0; i < table->count; i++)
        bytes += table->data[i].bytes;
    return bytes;
}

enum result table_append(struct table *table, int column, const void *values, size_t count) {
    return vector_append(
        &table->data[column], values, count * column_type_bytes(table->columns[column].type));
}

enum result table_append_int32(struct table *table, int column, int32_t value) {
    return table_append(table, column, &value, 1);
}

enum result table_append_int64(struct table *table, int column, int64_t value) {
    return table_append(table, column, &value, 1);
}

enum result table_append_float(struct table *table, int column, float value) {
    return table_append(table, column, &value, 1);
}

enum result table_append_byte(struct table *table, int column, uint8_t value) {
    return table_append(table, column, &value, 1);
}

enum result table_append_offset(struct table *table, int column, size_t count) {
    table->ends[column] += count;
    return table_append(table, column, &table->ends[column], 1);
}

enum result table_append_ragged(struct table *table, int column, const void *values, size_t count) {
    TRY(table_append(table, column, values, count));
    return table_append_offset(table, column + 1, count);
}

enum result table_append_text(struct table *table, int column, const char *text) {
    return table_append_ragged(table, column, text, text ? strlen(text) : 0);
}

enum result table_write(hid_t file, const char *path, const struct table *table) {
    for (int i = 0; i < table->count; i++)
        TRY(hdf5_write_column(file, path, &table->columns[i], table->data[i].data, table_rows(table, i), 0));
    return OK;
}

enum result table_read(hid_t file, const char *path, struct table *table) {
    for (int i = 0; i < table->count; i++)
        TRY(hdf5_read_column(file, path, &table->columns[i], &table->data[i]));
    return OK;
}

size_t table_rows(const struct table *table, int column) {
    return table->data[column].bytes / column_type_bytes(table->columns[column].type);
}

const void *table_values(const struct table *table, int column) {
    return table->data[column].data;
}

const uint64_t *table_offsets(const struct table *table, int column) {
    return table->data[column].data;
}

enum result table_check_offsets(
    const struct table *table, const char *path, int column, size_t entries, size_t end) {
    const uint64_t *offsets = table_offsets(table, column);
    const char *name = table->columns[column].name;
    if (table_rows(table, column) != entries + 1)
        return fail(ERROR_INPUT, "%s: the dataset %s has %zu entries, expected %zu", path, name,
            table_rows(table, column), entries + 1);
    if (offsets[0] != 0 || offsets[entries] != end)
        return fail(ERROR_INPUT, "%s: the dataset %s goes from %llu to %llu, expected 0 to %zu", path, name,
            (unsigned long long)offsets[0], (unsigned long long)offsets[entries], end);
    for (size_t i = 0; i < entries; i++)
        if (offsets[i] > offsets[i + 1])
            return fail(ERROR_INPUT, "%s: the dataset %s decreases at entry %zu", path, name, i + 1);
    return OK;
}

enum result table_check_rows(const struct table *table, const char *path, int column, size_t rows) {
    if (table_rows(table, column) == rows)
        return OK;
    return fail(ERROR_INPUT, "%s: the dataset %s has %zu rows, expected %zu", path,
        table->columns[column].name, table_rows(table, column), rows);
}

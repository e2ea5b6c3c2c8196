/* The few things we do with HDF5: files built in memory, datasets with units, descriptions and checksums, attributes,
 * and errors as messages that name file, dataset and cause. HDF5 is not thread-safe as Debian builds it: all of
 * campaign/ is called from one thread of a process. */
#ifndef NOCTURNE_CAMPAIGN_HDF5_FILE_H
#define NOCTURNE_CAMPAIGN_HDF5_FILE_H

#include "base/error.h"
#include "campaign/campaign.h"
#include "campaign/files.h"
#include "campaign/header.h"

#include <hdf5.h>    /* hid_t, hsize_t */
#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

enum column_type { COLUMN_U8, COLUMN_I32, COLUMN_I64, COLUMN_U64, COLUMN_F32, COLUMN_F64 };

/* A one-dimensional dataset of a format. Ragged data and texts are a column of values and one of offsets. */
struct column {
    const char *name; /* path in the file; groups are made as needed */
    enum column_type type;
    const char *units; /* NULL: none */
    const char *description;
};

size_t column_type_bytes(enum column_type type);
hid_t column_file_type(enum column_type type);   /* little-endian, not to be closed */
hid_t column_memory_type(enum column_type type); /* native, not to be closed */

/* A file built in memory. */
struct hdf5_image {
    void *data; /* the file, once finished; owned */
    size_t capacity;
    size_t bytes;
};
/* Begins an image; `file` belongs to it. */
MUST_CHECK enum result hdf5_image_begin(struct hdf5_image *image, hid_t *file);
/* Closes *file and completes the header: bytes and content hash are computed here. */
MUST_CHECK enum result hdf5_image_finish(struct hdf5_image *image, hid_t *file, struct file_header *header);
void hdf5_image_free(struct hdf5_image *image);

/* Creates a file on disk with an empty user block, open for writing. */
MUST_CHECK enum result hdf5_create(const char *path, hid_t *file);
/* Completes the header of a closed file made by hdf5_create (its bytes and content hash are computed here) and flushes it to
 * disk. */
MUST_CHECK enum result hdf5_seal(const char *path, struct file_header *header);
/* Opens for reading, without HDF5's file locks. The header is to be verified before (header_verify_path). */
MUST_CHECK enum result hdf5_open(const char *path, hid_t *file);
/* Closes; a failure (buffered data that can't be written) is reported. *file becomes invalid in any case. */
MUST_CHECK enum result hdf5_close(hid_t *file, const char *path);

/* A message made of HDF5's error stack, which is cleared: "PATH: ACTION NAME: cause". `code` ERROR_IO for writing (a full disk is
 * named as such), ERROR_INPUT for reading. */
enum result hdf5_fail(enum result code, const char *path, const char *action, const char *name);

/* Passes a result or identifier of HDF5 through, keeping the cause of a failure for hdf5_fail: any further call to the library, such
 * as closing what was open, would clear it. */
int64_t hdf5_noted(int64_t status);

/* Attributes of a group or dataset. Text is fixed-length UTF-8. */
MUST_CHECK enum result hdf5_put_text(hid_t object, const char *name, const char *text);
MUST_CHECK enum result hdf5_put_int64(hid_t object, const char *name, int64_t value);
/* *text is allocated; the message names attribute and `path`. */
MUST_CHECK enum result hdf5_get_text(hid_t object, const char *path, const char *name, char **text);
MUST_CHECK enum result hdf5_get_int64(hid_t object, const char *path, const char *name, int64_t *value);

/* Format, version, provenance (with host and time) and the header's counts as attributes of the root. rank -1: none. */
MUST_CHECK enum result hdf5_put_provenance(
    hid_t file, const struct provenance *provenance, const struct file_header *header, int32_t rank);

/* A copy with its own texts (NULL becomes ""). */
MUST_CHECK enum result provenance_copy(const struct provenance *from, struct provenance *to);
void provenance_free(struct provenance *provenance);

/* Writes a whole dataset at once, contiguous, with its xxh3_64. row_values 0: one-dimensional; else
 * [count, row_values]. `path` is for messages. */
MUST_CHECK enum result hdf5_write_column(hid_t file, const char *path, const struct column *column,
    const void *data, size_t count, size_t row_values);
/* Sets units and description. */
MUST_CHECK enum result hdf5_describe(hid_t dataset, const struct column *column);

/* Opens a contiguous dataset of exactly this type and dimensions; *count: its rows. */
MUST_CHECK enum result hdf5_open_column(hid_t file, const char *path, const struct column *column,
    size_t row_values, hid_t *dataset, size_t *count);
/* Reads rows [first, first + count) of an open dataset; row_values as above. */
MUST_CHECK enum result hdf5_read_rows(hid_t dataset, const char *path, const struct column *column,
    size_t row_values, uint64_t first, size_t count, void *data);
/* Reads a whole contiguous dataset into `data` (replacing what is there) and checks its xxh3_64. */
MUST_CHECK enum result hdf5_read_column(
    hid_t file, const char *path, const struct column *column, struct vector *data);

#endif

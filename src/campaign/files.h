/* Files that appear whole or not at all: temporary name, checked writes, fsync, rename, fsync of the folder. */
#ifndef NOCTURNE_CAMPAIGN_FILES_H
#define NOCTURNE_CAMPAIGN_FILES_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int64_t */

/* A file being written under a temporary name. Zero-initialized: none. */
struct output_file {
    char *path;      /* the final name */
    char *temporary; /* the name it has now */
    char *held;      /* bytes not yet written, [HELD_BYTES] */
    size_t held_bytes;
    int fd;
    int64_t bytes; /* given so far */
};

/* Name for what is being written to `path`: in its folder, ".NAME.HOST.PID.tmp". Freed by the caller; NULL without memory. */
char *temporary_name(const char *path);
/* True for names made by temporary_name. */
bool is_temporary_name(const char *name);

/* Refuses the name of a folder or device: a rename would replace /dev/null by a file. */
MUST_CHECK enum result output_check(const char *path);
MUST_CHECK enum result output_file_create(const char *path, struct output_file *file);
MUST_CHECK enum result output_file_write(struct output_file *file, const void *data, size_t bytes);
/* Hands what is held back to the system, so that it can be read through file->fd. */
MUST_CHECK enum result output_file_write_out(struct output_file *file);
/* Flushes to disk and renames to the final name. Without `replace`, a name that is taken is left alone and *taken is true: the file
 * keeps its temporary name, and may be committed under another one. In all other cases the file is freed. */
MUST_CHECK enum result output_file_commit(struct output_file *file, bool replace, bool *taken);
/* Closes and removes the temporary file; nothing for a file that is none. */
void output_file_abandon(struct output_file *file);

/* rename(2) that fails with EEXIST instead of overwriting, on any file system. Returns 0 or -1 with errno. */
int rename_without_overwriting(const char *from, const char *to);

/* A file size limit (ulimit -f) shall be an error of write, not the end of the process. */
void ignore_size_signal(void);

/* write(2) until all is written; the message names `path` and the cause. */
MUST_CHECK enum result write_fully(int fd, const void *data, size_t bytes, const char *path);
/* Reads exactly `bytes` at `offset`; *got tells how many there were. */
MUST_CHECK enum result read_fully(
    int fd, void *data, size_t bytes, int64_t offset, size_t *got, const char *path);
/* A message for an output error in errno: names the file, the cause and what to do. Returns ERROR_IO. */
enum result fail_output(const char *path, const char *action);

MUST_CHECK enum result folder_make(const char *path);  /* with its parents; there already: OK */
MUST_CHECK enum result folder_flush(const char *path); /* fsync of a folder */
/* "folder/name"; NULL without memory. Freed by the caller. */
char *path_join(const char *folder, const char *name);
/* The folder a path lies in ("." when it has none). Freed by the caller. */
char *path_folder(const char *path);

/* An array that grows, for records gathered in memory. Zero-initialize; free with vector_free. */
struct vector {
    void *data;
    size_t bytes, capacity;
};
MUST_CHECK enum result vector_append(struct vector *vector, const void *data, size_t bytes);
MUST_CHECK enum result vector_reserve(struct vector *vector, size_t bytes);
void vector_free(struct vector *vector);

#endif

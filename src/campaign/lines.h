/* Reads the lines of several files with flat memory, and notes which custom_ids have been seen. */
#ifndef NOCTURNE_CAMPAIGN_LINES_H
#define NOCTURNE_CAMPAIGN_LINES_H

#include "base/error.h"
#include "campaign/header.h" /* HASH_DIGITS */

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int64_t */

enum { MOST_LINE_BYTES = 256 << 20 };

struct line_reader;

/* A line without its newline; `text` is valid until the next call. */
struct input_line {
    int32_t file;   /* index in the list of files */
    int64_t number; /* 1-based, blank lines counted */
    const char *text;
    size_t bytes;
    bool too_long; /* more than MOST_LINE_BYTES: the text is left out */
    bool blank;    /* nothing but blanks */
};

/* `files` must outlive the reader; "-" is standard input. */
MUST_CHECK enum result line_reader_create(
    const char *const *files, int32_t count, struct line_reader **reader);
void line_reader_free(struct line_reader *reader);
/* The next line of all files; *more is false after the last one. */
MUST_CHECK enum result line_reader_next(struct line_reader *reader, struct input_line *line, bool *more);
/* Reads on to the end without looking at lines. */
MUST_CHECK enum result line_reader_drain(struct line_reader *reader);
int64_t line_reader_bytes(const struct line_reader *reader); /* read so far */
/* Hash of all files' bytes and where each ends; after the last line. */
void line_reader_hash(const struct line_reader *reader, char digits[HASH_DIGITS + 1]);

/* Texts seen, by their 128-bit hashes: 24 bytes each, plus the table's slack. Zero-initialize. */
struct seen_set {
    struct seen *slots;
    size_t capacity, count;
};
struct seen {
    uint64_t high, low;
    uint64_t place; /* file << 40 | line; 0: empty slot */
};
/* Notes a text; when it was there already *earlier is its place, else 0. */
MUST_CHECK enum result seen_add(
    struct seen_set *set, const char *text, size_t bytes, int32_t file, int64_t line, uint64_t *earlier);
void seen_free(struct seen_set *set);

#endif

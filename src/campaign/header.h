/* The first 512 bytes of a campaign's HDF5 files (HDF5's user block): what the file is, its counts, and the
 * checksums by which a torn, truncated or altered file is found before HDF5 reads it. See docs/formats.md. */
#ifndef NOCTURNE_CAMPAIGN_HEADER_H
#define NOCTURNE_CAMPAIGN_HEADER_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int64_t */

enum { HEADER_BYTES = 512, HASH_DIGITS = 32, FORMAT_VERSION = 5 };

struct file_header {
    char format[32]; /* "nocturne.results" */
    int64_t version;
    int64_t bytes; /* of the whole file */
    char requests[HASH_DIGITS + 1];
    int64_t records, completed, failed, prompt_tokens, generated_tokens;
    char content_hash[HASH_DIGITS + 1];
};

/* Hexadecimal digits of the XXH3 128-bit and 64-bit hashes, NUL-terminated. */
void hash_digits_128(const void *data, size_t bytes, char digits[HASH_DIGITS + 1]);
void format_hash_128(uint64_t high, uint64_t low, char digits[HASH_DIGITS + 1]);
void format_hash_64(uint64_t hash, char digits[17]);

/* Fills the block; the unused rest is zero. */
void header_format(const struct file_header *header, char block[HEADER_BYTES]);
/* ERROR_INPUT with the fault (without the file's name) unless `block` is exactly what header_format makes. */
MUST_CHECK enum result header_parse(const char block[HEADER_BYTES], struct file_header *header);

/* Reads and checks the header of an open file, its size, and with `content` the hash of all the rest.
 * `format` NULL: any of ours. ERROR_INPUT names the file and the fault; ERROR_IO when reading fails. */
MUST_CHECK enum result header_verify(
    int fd, const char *path, const char *format, bool content, struct file_header *header);
/* The same by path. */
MUST_CHECK enum result header_verify_path(
    const char *path, const char *format, bool content, struct file_header *header);
/* Hash of the bytes [HEADER_BYTES, end) of an open file. */
MUST_CHECK enum result header_hash_content(
    int fd, const char *path, int64_t end, char digits[HASH_DIGITS + 1]);

#endif

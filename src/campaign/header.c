#include "campaign/header.h"

#include "base/beacon.h"
#include "campaign/files.h"

#include <errno.h>  /* errno */
#include <fcntl.h>  /* open */
#include <stdio.h>  /* snprintf, sscanf */
#include <stdlib.h> /* malloc, free */
#include <string.h> /* memcmp, memset */
#include <sys/stat.h>
#include <unistd.h> /* close */
#include <xxhash.h>

void format_hash_128(uint64_t high, uint64_t low, char digits[HASH_DIGITS + 1]) {
    snprintf(digits, HASH_DIGITS + 1, "%016llx%016llx", (unsigned long long)high, (unsigned long long)low);
}

void format_hash_64(uint64_t hash, char digits[17]) {
    snprintf(digits, 17, "%016llx", (unsigned long long)hash);
}

void hash_digits_128(const void *data, size_t bytes, char digits[HASH_DIGITS + 1]) {
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    format_hash_128(hash.high64, hash.low64, digits);
}

void header_format(const struct file_header *header, char block[HEADER_BYTES]) {
    memset(block, 0, HEADER_BYTES);
    int used = snprintf(block, HEADER_BYTES,
        "%.31s %lld\nbytes %lld\nrequests %.32s\nrecords %lld\ncompleted %lld\nfailed %lld\nprompt_tokens "
        "%lld\n"
        "generated_tokens %lld\ncontent_xxh3_128 %.32s\n",
        header->format, (long long)header->version, (long long)header->bytes, header->requests,
        (long long)header->records, (long long)header->completed, (long long)header->failed,
        (long long)header->prompt_tokens, (long long)header->generated_tokens, header->content_hash);
    char digits[17];
    format_hash_64(XXH3_64bits(block, (size_t)used), digits);
    snprintf(block + used, HEADER_BYTES - (size_t)used, "header_xxh3_64 %s\n", digits);
}

static bool is_hash(const char *text) {
    return strlen(text) == HASH_DIGITS && strspn(text, "0123456789abcdef") == HASH_DIGITS;
}

enum result header_parse(const char block[HEADER_BYTES], struct file_header *header) {
    char text[HEADER_BYTES + 1];
    memcpy(text, block, HEADER_BYTES);
    text[HEADER_BYTES] = '\0';
    *header = (struct file_header){0};
    long long numbers[7] = {0};
    int fields = sscanf(text,
        "%31s %18lld bytes %18lld requests %32s records %18lld completed %18lld failed %18lld prompt_tokens "
        "%18lld "
        "generated_tokens %18lld content_xxh3_128 %32s",
        header->format, &numbers[0], &numbers[1], header->requests, &numbers[2], &numbers[3], &numbers[4],
        &numbers[5], &numbers[6], header->content_hash);
    if (fields < 2 || strncmp(header->format, "nocturne.", 9))
        return fail(ERROR_INPUT, "it doesn't begin with a nocturne header (docs/formats.md)");
    if (numbers[0] != FORMAT_VERSION)
        return fail(
            ERROR_INPUT, "format version %lld, this program reads version %d", numbers[0], FORMAT_VERSION);
    header->version = numbers[0];
    header->bytes = numbers[1];
    header->records = numbers[2];
    header->completed = numbers[3];
    header->failed = numbers[4];
    header->prompt_tokens = numbers[5];
    header->generated_tokens = numbers[6];
    /* Formatting again compares spelling, order, padding and the header's own hash in one go. */
    char again[HEADER_BYTES];
    if (fields == 10 && is_hash(header->requests) && is_hash(header->content_hash)) {
        header_format(header, again);
        if (!memcmp(again, block, HEADER_BYTES))
            return OK;
    }
    return fail(ERROR_INPUT, "its first %d bytes are damaged (header checksum)", HEADER_BYTES);
}

enum result header_hash_content(int fd, const char *path, int64_t end, char digits[HASH_DIGITS + 1]) {
    enum { PIECE = 1 << 20 };
    enum result status = OK;
    XXH3_state_t *state = XXH3_createState();
    char *piece = malloc(PIECE);
    if (!state || !piece) {
        status = fail(ERROR_MEMORY, "%s: out of memory for checking it", path);
        goto done;
    }
    XXH3_128bits_reset(state);
    for (int64_t offset = HEADER_BYTES; offset < end;) {
        size_t want = end - offset < PIECE ? (size_t)(end - offset) : PIECE, got;
        TRY_GOTO(status, read_fully(fd, piece, want, offset, &got, path), done);
        if (got < want) {
            status = fail(ERROR_INPUT, "%s: it ends at byte %lld instead of %lld", path,
                (long long)offset + (long long)got, (long long)end);
            goto done;
        }
        XXH3_128bits_update(state, piece, got);
        offset += (int64_t)got;
    }
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    format_hash_128(hash.high64, hash.low64, digits);
done:
    XXH3_freeState(state);
    free(piece);
    return status;
}

enum result header_verify(
    int fd, const char *path, const char *format, bool content, struct file_header *header) {
    char block[HEADER_BYTES];
    size_t got;
    struct stat status;
    TRY(read_fully(fd, block, sizeof block, 0, &got, path));
    if (fstat(fd, &status))
        return fail_errno(ERROR_IO, "%s: cannot read its size", path);
    if (got < sizeof block)
        return fail(ERROR_INPUT, "%s: it has %zu bytes only, too few for a nocturne file", path, got);
    enum result parsed = header_parse(block, header);
    if (parsed != OK)
        return fail_context(parsed, "%s", path);
    if (format && strcmp(header->format, format))
        return fail(ERROR_INPUT, "%s: it is a %s file, expected %s", path, header->format, format);
    if (header->bytes != (int64_t)status.st_size)
        return fail(ERROR_INPUT, "%s: it has %lld bytes, its header says %lld (truncated or appended to)",
            path, (long long)status.st_size, (long long)header->bytes);
    if (!content)
        return OK;
    char digits[HASH_DIGITS + 1];
    TRY(header_hash_content(fd, path, header->bytes, digits));
    if (strcmp(digits, header->content_hash))
        return fail(ERROR_INPUT, "%s: its content is damaged (checksum %s, expected %s)", path, digits,
            header->content_hash);
    return OK;
}

enum result header_verify_path(
    const char *path, const char *format, bool content, struct file_header *header) {
    beacon_file(path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    beacon_file(NULL);
    if (fd < 0)
        return fail_errno(ERROR_IO, "%s: cannot open", path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    enum result status = header_verify(fd, path, format, content, header);
    close(fd);
    return status;
}

#include "cache/segment.h"

#include "base/clock.h"
#include "cache/keys.h"

#include <errno.h>    /* errno */
#include <fcntl.h>    /* open, fcntl */
#include <math.h>     /* isfinite */
#include <stdio.h>    /* rename, snprintf */
#include <stdlib.h>   /* free */
#include <string.h>   /* memcpy, strdup */
#include <sys/stat.h> /* fstat */
#include <sys/uio.h>  /* preadv, pwritev */
#include <unistd.h>   /* pread, close */

#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory");

static const char file_magic[8] = {'N', 'O', 'C', 'T', 'S', 'E', 'G', '\n'};
static const char record_magic[4] = {'N', 'R', 'E', 'C'};

enum {
    HEADER_SUM_AT = 504,
    RECORD_SUM_AT = 56,
    SPARED_BYTES = 512 << 10, /* of a full disk, for the index to name the rest */
    SETTLED_SECONDS = 3600,   /* without locks: a file not written for so long has no writer any more */
};

/* ---- bytes ---- */

static void put(uint8_t *bytes, size_t at, const void *value, size_t size) {
    memcpy(bytes + at, value, size);
}

static void get(const uint8_t *bytes, size_t at, void *value, size_t size) {
    memcpy(value, bytes + at, size);
}

uint64_t segment_checksum(const void *payload, int64_t bytes) {
    return XXH3_64bits(payload, (size_t)bytes);
}

int64_t segment_stride(int64_t payload_bytes) {
    return SEGMENT_RECORD_BYTES + payload_bytes;
}

static void copy_text(char *to, size_t capacity, const char *text) {
    memset(to, 0, capacity);
    if (text)
        memcpy(to, text, strnlen(text, capacity - 1));
}

void segment_header_make(const struct cache_space *space, const char *host, struct segment_header *header) {
    *header = (struct segment_header){.space = cache_space_key(space),
        .payload_bytes = space->payload_bytes,
        .created = wall_clock(),
        .block_tokens = space->block_tokens};
    copy_text(header->host, sizeof header->host, host);
    copy_text(header->fingerprint, sizeof header->fingerprint, space->fingerprint);
    copy_text(header->backend, sizeof header->backend, space->backend);
    copy_text(header->instruction_set, sizeof header->instruction_set, space->instruction_set);
}

void segment_header_pack(const struct segment_header *header, uint8_t bytes[SEGMENT_HEADER_BYTES]) {
    uint32_t version = SEGMENT_VERSION, size = SEGMENT_HEADER_BYTES;
    memset(bytes, 0, SEGMENT_HEADER_BYTES);
    put(bytes, 0, file_magic, sizeof file_magic);
    put(bytes, 8, &version, 4);
    put(bytes, 12, &size, 4);
    put(bytes, 16, header->space.bytes, CACHE_KEY_BYTES);
    put(bytes, 32, &header->payload_bytes, 8);
    put(bytes, 40, &header->created, 8);
    put(bytes, 48, &header->block_tokens, 4);
    put(bytes, 64, header->host, sizeof header->host);
    put(bytes, 128, header->fingerprint, sizeof header->fingerprint);
    put(bytes, 256, header->backend, sizeof header->backend);
    put(bytes, 320, header->instruction_set, sizeof header->instruction_set);
    uint64_t sum = XXH3_64bits(bytes, HEADER_SUM_AT);
    put(bytes, HEADER_SUM_AT, &sum, 8);
}

enum result segment_header_parse(const uint8_t bytes[SEGMENT_HEADER_BYTES], struct segment_header *header) {
    uint32_t version, size;
    uint64_t sum;
    *header = (struct segment_header){0};
    get(bytes, 8, &version, 4);
    get(bytes, 12, &size, 4);
    get(bytes, HEADER_SUM_AT, &sum, 8);
    if (memcmp(bytes, file_magic, sizeof file_magic))
        return fail(ERROR_INPUT, "it is no segment file of a prefix cache");
    if (version != SEGMENT_VERSION || size != SEGMENT_HEADER_BYTES)
        return fail(ERROR_INPUT, "it has version %u of the format, and this program reads version %d",
            version, SEGMENT_VERSION);
    if (sum != XXH3_64bits(bytes, HEADER_SUM_AT))
        return fail(ERROR_INPUT, "its header is damaged");
    get(bytes, 16, header->space.bytes, CACHE_KEY_BYTES);
    get(bytes, 32, &header->payload_bytes, 8);
    get(bytes, 40, &header->created, 8);
    get(bytes, 48, &header->block_tokens, 4);
    get(bytes, 64, header->host, sizeof header->host - 1);
    get(bytes, 128, header->fingerprint, sizeof header->fingerprint - 1);
    get(bytes, 256, header->backend, sizeof header->backend - 1);
    get(bytes, 320, header->instruction_set, sizeof header->instruction_set - 1);
    if (header->payload_bytes < 1 || header->payload_bytes > SEGMENT_MOST_PAYLOAD ||
        !isfinite(header->created))
        return fail(ERROR_INPUT, "its header makes no sense");
    return OK;
}

void segment_record_pack(const struct segment_record *record, uint8_t bytes[SEGMENT_RECORD_BYTES]) {
    uint32_t traffic = (uint32_t)record->entry.traffic;
    put(bytes, 0, record_magic, sizeof record_magic);
    put(bytes, 4, &traffic, 4);
    put(bytes, 8, record->key.bytes, CACHE_KEY_BYTES);
    put(bytes, 24, &record->payload_bytes, 8);
    put(bytes, 32, &record->checksum, 8);
    put(bytes, 40, &record->created, 8);
    put(bytes, 48, &record->entry.first_token, 4);
    put(bytes, 52, &record->entry.cost_seconds, 4);
    uint64_t sum = XXH3_64bits(bytes, RECORD_SUM_AT);
    put(bytes, RECORD_SUM_AT, &sum, 8);
}

bool segment_record_parse(
    const uint8_t bytes[SEGMENT_RECORD_BYTES], int64_t payload_bytes, struct segment_record *record) {
    uint32_t traffic;
    uint64_t sum;
    get(bytes, 4, &traffic, 4);
    get(bytes, 24, &record->payload_bytes, 8);
    get(bytes, RECORD_SUM_AT, &sum, 8);
    if (memcmp(bytes, record_magic, sizeof record_magic) || sum != XXH3_64bits(bytes, RECORD_SUM_AT) ||
        record->payload_bytes != payload_bytes || traffic >= CACHE_TRAFFIC_KINDS)
        return false;
    record->entry.traffic = (enum cache_traffic)traffic;
    get(bytes, 8, record->key.bytes, CACHE_KEY_BYTES);
    get(bytes, 32, &record->checksum, 8);
    get(bytes, 40, &record->created, 8);
    get(bytes, 48, &record->entry.first_token, 4);
    get(bytes, 52, &record->entry.cost_seconds, 4);
    return isfinite(record->created) && isfinite(record->entry.cost_seconds);
}

/* ---- reading ---- */

/* Reads until `bytes` are there or the file ends; the number read, -1 with errno for an error. */
static ssize_t read_fully(int fd, void *data, size_t bytes, int64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t now = pread(fd, (char *)data + done, bytes - done, offset + (off_t)done);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            return -1;
        if (now == 0)
            break;
        done += (size_t)now;
    }
    return (ssize_t)done;
}

static enum result read_header(const char *path, int fd, struct segment_header *header) {
    uint8_t bytes[SEGMENT_HEADER_BYTES];
    ssize_t got = read_fully(fd, bytes, sizeof bytes, 0);
    if (got < 0)
        return fail_errno(ERROR_IO, "%s", path);
    if (got < SEGMENT_HEADER_BYTES)
        return fail(ERROR_INPUT, "%s: it ends within its header, after %zd bytes", path, got);
    enum result status = segment_header_parse(bytes, header);
    return status == OK ? OK : fail_context(status, "%s", path);
}

enum result segment_open(const char *path, int *fd, struct segment_header *header) {
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0)
        return fail_errno(ERROR_IO, "%s", path);
    enum result status = read_header(path, opened, header);
    if (status != OK) {
        int error = errno;
        close(opened);
        errno = error;
        return status;
    }
    *fd = opened;
    return OK;
}

enum result segment_scan(const char *path, int fd, const struct segment_header *header, int64_t from,
    segment_visit *visit, void *context, int64_t *end, int64_t *damaged) {
    int64_t stride = segment_stride(header->payload_bytes), passed = 0;
    struct stat found;
    if (from == 0)
        from = SEGMENT_HEADER_BYTES;
    *end = from;
    *damaged = 0;
    if (from < SEGMENT_HEADER_BYTES || (from - SEGMENT_HEADER_BYTES) % stride)
        return fail(ERROR_INPUT, "%s: no record begins at byte %lld", path, (long long)from);
    if (fstat(fd, &found))
        return fail_errno(ERROR_IO, "%s", path);
    for (int64_t offset = from; offset + stride <= found.st_size; offset += stride) {
        uint8_t bytes[SEGMENT_RECORD_BYTES];
        struct segment_record record;
        ssize_t got = read_fully(fd, bytes, sizeof bytes, offset);
        if (got < 0)
            return fail_errno(ERROR_IO, "%s: byte %lld", path, (long long)offset);
        if (got < SEGMENT_RECORD_BYTES)
            break; /* it was cut off just now */
        if (!segment_record_parse(bytes, header->payload_bytes, &record)) {
            passed++;
            continue;
        }
        *end = offset + stride;
        *damaged += passed; /* those after the last whole record may be still on their way */
        passed = 0;
        if (!visit(context, offset, &record))
            break;
    }
    return OK;
}

/* Takes the first `bytes` off the vectors that are left, *vectors [*count]; empty ones go, too. */
static void spend(struct iovec **vectors, int *count, size_t bytes) {
    while (*count > 0 && (bytes > 0 || (*vectors)->iov_len == 0)) {
        size_t part = bytes < (*vectors)->iov_len ? bytes : (*vectors)->iov_len;
        (*vectors)->iov_base = (char *)(*vectors)->iov_base + part;
        (*vectors)->iov_len -= part;
        bytes -= part;
        if ((*vectors)->iov_len == 0)
            ++*vectors, --*count;
    }
}

/* Reads into the vectors until all are full or the file ends; spends them. */
static ssize_t read_vectors(int fd, struct iovec *vectors, int count, int64_t offset) {
    size_t done = 0;
    while (count > 0) {
        ssize_t now = preadv(fd, vectors, count, offset + (off_t)done);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            return -1;
        if (now == 0)
            break;
        done += (size_t)now;
        spend(&vectors, &count, (size_t)now);
    }
    return (ssize_t)done;
}

enum result segment_read_run(const char *path, int fd, int64_t payload_bytes, int64_t offset,
    uint8_t *const *payloads, int32_t count, uint8_t headers[][SEGMENT_RECORD_BYTES], int32_t *whole) {
    struct iovec vectors[2 * SEGMENT_MOST_RUN];
    for (int32_t i = 0; i < count; i++) {
        vectors[2 * i] = (struct iovec){headers[i], SEGMENT_RECORD_BYTES};
        vectors[2 * i + 1] = (struct iovec){payloads[i], (size_t)payload_bytes};
    }
    ssize_t got = read_vectors(fd, vectors, 2 * count, offset);
    *whole = 0;
    if (got < 0)
        return fail_errno(ERROR_IO, "%s: byte %lld", path, (long long)offset);
    *whole = (int32_t)(got / segment_stride(payload_bytes));
    return OK;
}

/* ---- writing ---- */

static int lock(int fd, short type, int command, struct flock *what) {
    *what = (struct flock){.l_type = type, .l_whence = SEEK_SET};
    return fcntl(fd, command, what);
}

/* A record lock of the open file, which the kernel releases when the process ends, however it does. */
static void lock_for_writing(int fd) {
    struct flock what;
    (void)lock(fd, F_WRLCK, F_OFD_SETLK, &what); /* where there are none, times must do: segment_is_written */
}

bool segment_is_written(const char *path) {
    struct flock what;
    struct stat found;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno != ENOENT;
    bool written;
    if (lock(fd, F_RDLCK, F_OFD_GETLK, &what) == 0)
        written = what.l_type != F_UNLCK;
    else
        written = fstat(fd, &found) != 0 || wall_clock() - (double)found.st_mtime < SETTLED_SECONDS;
    close(fd);
    return written;
}

/* *offset moves on with what is written. */
static enum result write_fully(const char *path, int fd, struct iovec *vectors, int count, int64_t *offset) {
    while (count > 0) {
        ssize_t now = pwritev(fd, vectors, count, *offset);
        if (now < 0 && errno == EINTR)
            continue;
        if (now < 0)
            return fail_errno(ERROR_IO, "%s: byte %lld", path, (long long)*offset);
        *offset += now;
        spend(&vectors, &count, (size_t)now);
    }
    return OK;
}

static enum result create_named(const char *path, const char *unfinished, const struct segment_header *header,
    struct segment_writer *writer) {
    uint8_t bytes[SEGMENT_HEADER_BYTES];
    struct iovec vector = {bytes, sizeof bytes};
    int64_t offset = 0;
    segment_header_pack(header, bytes);
    writer->fd = open(unfinished, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer->fd < 0)
        return fail_errno(ERROR_IO, "%s", unfinished);
    lock_for_writing(writer->fd);
    TRY(write_fully(unfinished, writer->fd, &vector, 1, &offset));
    return rename(unfinished, path) ? fail_errno(ERROR_IO, "%s", path) : OK;
}

enum result segment_create(
    const char *path, const struct segment_header *header, struct segment_writer *writer) {
    size_t stem = strlen(path) - strlen(SEGMENT_SUFFIX), room = stem + sizeof SEGMENT_UNFINISHED;
    char *unfinished = malloc(room);
    *writer = (struct segment_writer){
        .fd = -1, .end = SEGMENT_HEADER_BYTES, .header = *header, .path = strdup(path)};
    enum result status = OK;
    errno = 0;
    if (!writer->path || !unfinished)
        status = fail(ERROR_MEMORY, "%s: no memory for its name", path);
    else if (access(path, F_OK) == 0) {
        errno = EEXIST;
        status = fail_errno(ERROR_IO, "%s", path);
    } else {
        snprintf(unfinished, room, "%.*s" SEGMENT_UNFINISHED, (int)stem, path);
        status = create_named(path, unfinished, header, writer);
        if (status != OK) {
            int error = errno;
            unlink(unfinished);
            errno = error;
        }
    }
    int error = errno;
    free(unfinished);
    if (status != OK)
        segment_writer_close(writer);
    errno = error;
    return status;
}

static enum result append_some(struct segment_writer *writer, const struct segment_record *records,
    uint8_t *const *payloads, int32_t count, int64_t *offset) {
    uint8_t headers[SEGMENT_MOST_RUN][SEGMENT_RECORD_BYTES];
    struct iovec vectors[2 * SEGMENT_MOST_RUN];
    for (int32_t i = 0; i < count; i++) {
        segment_record_pack(&records[i], headers[i]);
        vectors[2 * i] = (struct iovec){headers[i], SEGMENT_RECORD_BYTES};
        vectors[2 * i + 1] = (struct iovec){payloads[i], (size_t)records[i].payload_bytes};
    }
    return write_fully(writer->path, writer->fd, vectors, 2 * count, offset);
}

void segment_take_back(struct segment_writer *writer, int64_t end) {
    writer->damaged = true;
    writer->end = end;
    if (ftruncate(writer->fd, end)) {
        /* Whole records are learned at the next open, torn ones do not count. */
    }
}

enum result segment_append(struct segment_writer *writer, const struct segment_record *records,
    uint8_t *const *payloads, int32_t count, int32_t *written) {
    int64_t stride = segment_stride(writer->header.payload_bytes), begin = writer->end, offset = begin;
    enum result status = OK;
    for (int32_t done = 0; status == OK && done < count; done += SEGMENT_MOST_RUN)
        status = append_some(writer, records + done, payloads + done,
            count - done < SEGMENT_MOST_RUN ? count - done : SEGMENT_MOST_RUN, &offset);
    *written = (int32_t)((offset - begin) / stride);
    if (status != OK) {
        int32_t spared = (int32_t)((SPARED_BYTES + stride - 1) / stride);
        *written = *written > spared ? *written - spared : 0;
        segment_take_back(writer, begin + *written * stride);
    }
    if (*written > 0 && fdatasync(writer->fd)) { /* nobody knows what is down */
        status = fail_errno(ERROR_IO, "%s: fdatasync", writer->path);
        segment_take_back(writer, begin);
        *written = 0;
    }
    writer->end = begin + *written * stride;
    return status;
}

void segment_writer_close(struct segment_writer *writer) {
    if (writer->fd >= 0)
        close(writer->fd);
    free(writer->path);
    *writer = (struct segment_writer){.fd = -1};
}

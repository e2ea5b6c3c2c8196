/* Any bytes as a segment file of the prefix cache: refused with a message that names it, or records that lie within it, whose
 * headers pack to what was read. And any bytes as LMDB's file of its index: the check reads nothing outside.
 *
 * Input: a byte; even: the rest is a segment, and (byte / 2) % 4 repairs no, the file's, the first record's or both checksums,
 * so that the fuzzer comes past them; odd: the rest is an index's file. */
#include "cache/segment.h"
#include "cache/index_check.h"

#include <stdio.h>    /* snprintf */
#include <stdlib.h>   /* abort, malloc */
#include <string.h>   /* memcpy */
#include <sys/mman.h> /* memfd_create */
#include <unistd.h>   /* write, close */

#include <xxhash.h>

enum { MOST_BYTES = 1 << 20 };

struct scan {
    int64_t file_bytes, last;
    const struct segment_header *header;
    const uint8_t *file;
};

static bool check_record(void *context, int64_t offset, const struct segment_record *record) {
    struct scan *scan = context;
    uint8_t packed[SEGMENT_RECORD_BYTES];
    int64_t stride = segment_stride(scan->header->payload_bytes);
    if (offset <= scan->last || (offset - SEGMENT_HEADER_BYTES) % stride ||
        offset + stride > scan->file_bytes)
        abort();
    scan->last = offset;
    segment_record_pack(record, packed);
    if (memcmp(packed, scan->file + offset, sizeof packed) != 0)
        abort();
    return true;
}

static void read_segment(const uint8_t *file, size_t bytes) {
    char path[64];
    int fd, made = memfd_create("segment", MFD_CLOEXEC);
    struct segment_header header;
    if (made < 0 || write(made, file, bytes) != (ssize_t)bytes)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", made);
    enum result status = segment_open(path, &fd, &header);
    if (status != OK) {
        if (strncmp(failure_message(), path, strlen(path)) != 0)
            abort();
        close(made);
        return;
    }
    struct scan scan = {.file_bytes = (int64_t)bytes, .header = &header, .file = file};
    int64_t end, damaged;
    if (segment_scan(path, fd, &header, 0, check_record, &scan, &end, &damaged) != OK ||
        end > (int64_t)bytes || damaged < 0)
        abort();
    if (segment_scan(path, fd, &header, 1, check_record, &scan, &end, &damaged) != ERROR_INPUT)
        abort();
    close(fd);
    close(made);
}

static void repair(uint8_t *bytes, size_t sum_at) {
    uint64_t sum = XXH3_64bits(bytes, sum_at);
    memcpy(bytes + sum_at, &sum, sizeof sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > MOST_BYTES)
        return 0;
    size_t bytes = size - 1;
    uint8_t *file = malloc(bytes ? bytes : 1); /* exact, so that the sanitizer sees reads past the end */
    if (!file)
        return 0;
    memcpy(file, data + 1, bytes);
    if (data[0] % 2) {
        if (index_check_bytes("index", file, bytes) != OK && strncmp(failure_message(), "index: ", 7) != 0)
            abort();
    } else {
        if (data[0] / 2 % 2 && bytes >= SEGMENT_HEADER_BYTES)
            repair(file, SEGMENT_HEADER_BYTES - 8);
        if (data[0] / 4 % 2 && bytes >= SEGMENT_HEADER_BYTES + SEGMENT_RECORD_BYTES)
            repair(file + SEGMENT_HEADER_BYTES, SEGMENT_RECORD_BYTES - 8);
        read_segment(file, bytes);
    }
    free(file);
    return 0;
}

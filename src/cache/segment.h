/* Segment files: packed rows of blocks on disk, appended and never changed.
 *
 * FORMAT, version 1; numbers are little endian, floats IEEE 754.
 *
 *     file    = header (SEGMENT_HEADER_BYTES), then records without gaps
 *     record  = record header (SEGMENT_RECORD_BYTES), then the payload; all payloads of a file have one size, so record i
 *               begins at SEGMENT_HEADER_BYTES + i x (SEGMENT_RECORD_BYTES + payload bytes) and a damaged one costs no other
 *
 *     header:  0 "NOCTSEG\n"   8 u32 version   12 u32 bytes of the header   16 key of the space [16]   32 i64 payload bytes
 *             40 f64 created   48 i32 tokens of a block   64 host [64]   128 fingerprint [128]   256 backend [64]
 *            320 instruction set [64]   504 u64 XXH3 of bytes 0..503; texts end with zeros, the rest is zeros
 *     record:  0 "NREC"   4 u32 traffic   8 key [16]   24 i64 payload bytes   32 u64 XXH3 of the payload
 *             40 f64 created   48 i32 first token   52 f32 cost in seconds   56 u64 XXH3 of bytes 0..55
 *
 * A record counts when its header's checksum is right and the file reaches to its end; a payload counts when its checksum is
 * right, which is looked at on every read. A file has one writer, which holds a lock on it while it may still grow, and
 * appends and calls fdatasync before any index names a record. After an end without close the last records may be torn: they
 * don't count. What says where a key lies (index.h) is only an index: it can be made again from these files. */
#ifndef NOCTURNE_CACHE_SEGMENT_H
#define NOCTURNE_CACHE_SEGMENT_H

#include "cache/cache.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* uint8_t, int64_t, uint64_t */

enum { SEGMENT_VERSION = 1, SEGMENT_HEADER_BYTES = 512, SEGMENT_RECORD_BYTES = 64 };
#define SEGMENT_MOST_PAYLOAD INT32_MAX
#define SEGMENT_SUFFIX ".segment"
#define SEGMENT_UNFINISHED ".segment.new" /* until it is locked and has its header */

struct segment_header {
    struct cache_key space;
    int64_t payload_bytes;
    double created; /* seconds since 1970 */
    int32_t block_tokens;
    char host[64], fingerprint[128], backend[64], instruction_set[64]; /* for people; cut to size */
};

struct segment_record {
    struct cache_key key;
    struct cache_entry entry;
    int64_t payload_bytes;
    uint64_t checksum; /* of the payload */
    double created;
};

/* ---- bytes ---- */

/* A header for the space, now and on this host. */
void segment_header_make(const struct cache_space *space, const char *host, struct segment_header *header);
void segment_header_pack(const struct segment_header *header, uint8_t bytes[SEGMENT_HEADER_BYTES]);
/* ERROR_INPUT says what is wrong, without a path. */
MUST_CHECK enum result segment_header_parse(
    const uint8_t bytes[SEGMENT_HEADER_BYTES], struct segment_header *header);
void segment_record_pack(const struct segment_record *record, uint8_t bytes[SEGMENT_RECORD_BYTES]);
/* False when it is no record of payloads of this size. */
bool segment_record_parse(
    const uint8_t bytes[SEGMENT_RECORD_BYTES], int64_t payload_bytes, struct segment_record *record);
uint64_t segment_checksum(const void *payload, int64_t bytes);
/* From a record's begin to the next one's. */
int64_t segment_stride(int64_t payload_bytes);

/* ---- reading ---- */

/* Opens a file for reading and checks its header: ERROR_IO (errno is kept: ENOENT, ...) or ERROR_INPUT. */
MUST_CHECK enum result segment_open(const char *path, int *fd, struct segment_header *header);

/* Calls `visit` for each whole record from `from` on, which is 0 or where an earlier scan ended; *end becomes the end of the last
 * whole record, *damaged the number of slots before it whose header is no record. `visit` returns false to end early.
 * ERROR_IO, ERROR_INPUT when `from` is no border of records. */
typedef bool segment_visit(void *context, int64_t offset, const struct segment_record *record);
MUST_CHECK enum result segment_scan(const char *path, int fd, const struct segment_header *header,
    int64_t from, segment_visit *visit, void *context, int64_t *end, int64_t *damaged);

/* Reads a run of `count` neighbouring records (at most SEGMENT_MOST_RUN) that begins at `offset`, payload i to payloads[i]. *whole:
 * how many lie within the file; each of these is to be checked with segment_record_parse and segment_checksum. ERROR_IO. */
enum { SEGMENT_MOST_RUN = 128 };
MUST_CHECK enum result segment_read_run(const char *path, int fd, int64_t payload_bytes, int64_t offset,
    uint8_t *const *payloads, int32_t count, uint8_t headers[][SEGMENT_RECORD_BYTES], int32_t *whole);

/* ---- writing ---- */

struct segment_writer {
    int fd;       /* -1: none is open */
    char *path;   /* owned */
    int64_t end;  /* of the last record that is known to be down */
    bool damaged; /* it takes no more records */
    struct segment_header header;
};

/* Makes the file, locks it, writes its header and gives it its name, which ends with SEGMENT_SUFFIX and which nobody else makes at
 * the same time. ERROR_IO: nothing is left behind; errno is EEXIST when the name is taken. */
MUST_CHECK enum result segment_create(
    const char *path, const struct segment_header *header, struct segment_writer *writer);
/* Appends records and waits until they are down; offset of record i = the writer's end before + i strides. *written: how many count,
 * which with ERROR_IO may be some of them, as when a disk is full; what was written of the others is cut off again, and the writer
 * takes no more. */
MUST_CHECK enum result segment_append(struct segment_writer *writer, const struct segment_record *records,
    uint8_t *const *payloads, int32_t count, int32_t *written);
/* Cuts off the last records, which no index knows: the room is free again. The writer takes no more. */
void segment_take_back(struct segment_writer *writer, int64_t end);
void segment_writer_close(struct segment_writer *writer); /* also when none is open */

/* True when a living process may still append to the file. Where the file system has no locks: when it was written within the
 * last hour. */
bool segment_is_written(const char *path);

#endif

/* A folder of the prefix cache: segment files, which any number of processes and hosts may share, and an index of them for
 * each host.
 *
 *     FOLDER/segments/HOST-PID-NUMBER.segment   payloads (segment.h)
 *     FOLDER/index-HOST/                        where they lie (index.h); of no use to other hosts
 *     FOLDER/index-HOST.lock, upkeep.lock       held while an index is opened, while segments are removed
 *
 * An entry becomes visible after its bytes are down. What other hosts wrote is learned at open and at each
 * upkeep. Each
 * file may vanish, be cut or be damaged at any time: that is a miss, with a warning.
 *
 * store_find, store_read, store_use and store_counts may be called by any thread; the others by one. No lock is
 * held while files are read or written that any of them but store_read needs. */
#ifndef NOCTURNE_CACHE_STORE_H
#define NOCTURNE_CACHE_STORE_H

#include "cache/index.h"
#include "cache/segment.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* uint8_t, int32_t, int64_t */

struct store_options {
    const char *folder;
    int64_t limit; /* of the bytes of all segment files; while upkeep moves records, one segment more */
    struct policy policy;
    const char *host; /* NULL: this machine's name */
    bool existing;    /* ERROR_INPUT when the folder isn't there, instead of making it */
    bool still;       /* leaves entries as they are: no upkeep at open, no settling at close */
};

struct store;

/* ERROR_IO when the folder cannot be made or used, with errno as it was. A damaged index is set aside and made again from the segments. */
MUST_CHECK enum result store_open(const struct store_options *options, struct store **store);
/* Writes down uses. NULL is allowed. */
void store_close(struct store *store);

/* ---- looking up and reading ---- */

/* How many leading keys are there; entries[i] is filled for each unless `entries` is NULL. */
int32_t store_find(
    struct store *store, const struct cache_key *keys, int32_t count, struct index_entry *entries);

/* Reads the payloads of leading entries, as store_find gave them, to payloads[i]; returns how many are right. What is damaged is
 * reported and from then on absent. */
int32_t store_read(struct store *store, const struct cache_key *keys, struct index_entry *entries,
    int32_t count, uint8_t *const *payloads);

/* Counts keys as used now, at the next settling. */
void store_use(struct store *store, const struct cache_key *keys, int32_t count);

/* ---- writing ---- */

struct store_put {
    struct cache_key key;
    struct cache_entry entry;
    double created;
    uint8_t *payload;
};

/* Appends what is not there yet; returns how many are there now. `header`: of the space, by segment_header_make or from another
 * segment. Reports what goes wrong. */
int32_t store_append(
    struct store *store, const struct segment_header *header, const struct store_put *puts, int32_t count);

/* Writes uses and what was found damaged to the index. */
void store_settle(struct store *store);

/* Removes entries whose time is over and, when the folder is above its limit, those that are worth least; gives their room back.
 * `most`: the limit that counts now, negative for that of the options. Nothing when another process has been at it for
 * `wait_seconds`. */
void store_upkeep(struct store *store, int64_t most, double wait_seconds);

/* What store_upkeep would remove: entries and the room they take. */
MUST_CHECK enum result store_foresee_upkeep(
    struct store *store, int64_t most, int64_t *entries, int64_t *bytes);

/* True when it is time for an upkeep without need. */
bool store_upkeep_due(const struct store *store);

/* ---- for the commands ---- */

struct index *store_index(struct store *store);
/* The header of a segment, and its file's path into `path` when it is not NULL. ERROR_IO, ERROR_INPUT. */
MUST_CHECK enum result store_segment(
    struct store *store, uint32_t number, struct segment_header *header, char *path, size_t capacity);
/* Removes an entry; its segment's room is given back by the next upkeep. */
MUST_CHECK enum result store_remove(struct store *store, const struct cache_key *key);

struct store_counts {
    int64_t entries; /* in the index */
    int64_t bytes;   /* of all segment files, as far as is known */
    int64_t written, read;
    int64_t evicted, damaged; /* entries, by this process */
};
void store_counts(struct store *store, struct store_counts *counts);

#endif

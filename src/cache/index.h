/* Where the entries of a store lie: an LMDB environment, which processes of one host share (LMDB's locks and maps are of one
 * host; each host that uses a folder has an index of its own).
 *
 * FORMAT, version 1; numbers are little endian unless said otherwise. LMDB's own file (data version 1) with three tables:
 *
 *     facts     "version" -> u32;  "next" -> u32: the next segment's number; numbers are never used twice
 *     segments  u32 big endian -> struct index_segment, then u64 XXH3 of number and value
 *     entries   key [16] -> struct index_entry, then u64 XXH3 of key and value
 *
 * Values whose checksum is wrong count as absent. LMDB trusts its pages, so index_open looks through all of them first
 * (index_check.h). The index can always be made again from the segments; only the times and numbers of uses are lost then.
 *
 * Functions return ERROR_IO or ERROR_INPUT with a message that begins with the index's path. Looking up may be done by any thread
 * at any time; a change is made by one thread at a time and seen by all at once when it is committed. */
#ifndef NOCTURNE_CACHE_INDEX_H
#define NOCTURNE_CACHE_INDEX_H

#include "cache/cache.h"
#include "cache/policy.h"

#include <lmdb.h>    /* MDB_txn */
#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t, uint32_t, uint64_t */

enum { INDEX_VERSION = 1, INDEX_NAME_BYTES = 120 };

struct index_entry {
    int64_t offset; /* of the record in its segment */
    int64_t bytes;  /* of the payload */
    uint64_t checksum;
    double created, last_used; /* seconds since 1970 */
    int64_t uses;              /* after the put */
    uint32_t segment;
    uint32_t traffic; /* enum cache_traffic */
    int32_t first_token;
    float cost_seconds;
};

struct index_segment {
    struct cache_key space;
    int64_t payload_bytes;
    int64_t scanned; /* all records before this offset are known */
    int64_t entries; /* that the index says lie here */
    char name[INDEX_NAME_BYTES];
};

struct index;

/* Opens or makes the environment in the folder `path`. ERROR_INPUT: it is damaged or of another version, and should be set
 * aside (index_set_aside). To be called by one process at a time. */
MUST_CHECK enum result index_open(const char *path, int64_t map_bytes, struct index **index);
void index_close(struct index *index); /* NULL is allowed */
/* Renames the folder to PATH.damaged, in place of an older one. */
MUST_CHECK enum result index_set_aside(const char *path);

/* Facts for the policy, with aligned times. */
struct policy_facts index_facts(const struct index_entry *entry);

/* ---- looking up ---- */

/* How many leading keys are there; entries[i] is filled for each when `entries` is not NULL. An error counts as absent. */
int32_t index_find(
    struct index *index, const struct cache_key *keys, int32_t count, struct index_entry *entries);
/* present[i] for each key; returns how many. */
int32_t index_find_each(struct index *index, const struct cache_key *keys, int32_t count, bool *present);
/* False when there is no such segment. */
bool index_find_segment(struct index *index, uint32_t number, struct index_segment *segment);

/* Calls `visit` for each until it returns false. Damaged values are passed over and counted. */
typedef bool index_visit_entry(void *context, const struct cache_key *key, const struct index_entry *entry);
typedef bool index_visit_segment(void *context, uint32_t number, const struct index_segment *segment);
MUST_CHECK enum result index_each_entry(
    struct index *index, index_visit_entry *visit, void *context, int64_t *damaged);
MUST_CHECK enum result index_each_segment(struct index *index, index_visit_segment *visit, void *context);
int64_t index_entry_count(struct index *index);

/* Frees the places of readers that died. */
void index_clear_stale_readers(struct index *index);

/* ---- changes ---- */

/* Every begin is followed by one commit or abort. After an error the change is to be aborted. */
struct index_change {
    struct index *index;
    MDB_txn *transaction;
};

MUST_CHECK enum result index_begin(struct index *index, struct index_change *change);
/* Commits a change whose parts went well (`status` is OK), else takes it back and returns `status`. */
MUST_CHECK enum result index_end(struct index_change *change, enum result status);

/* False when it is absent or damaged. */
bool index_get(const struct index_change *change, const struct cache_key *key, struct index_entry *entry);
/* Adds or replaces; keeps the entries' counts of both segments right. */
MUST_CHECK enum result index_put(
    struct index_change *change, const struct cache_key *key, const struct index_entry *entry);
/* Removes the key if it is there. */
MUST_CHECK enum result index_remove(struct index_change *change, const struct cache_key *key);

MUST_CHECK enum result index_next_segment(struct index_change *change, uint32_t *number);
bool index_get_segment(const struct index_change *change, uint32_t number, struct index_segment *segment);
MUST_CHECK enum result index_put_segment(
    struct index_change *change, uint32_t number, const struct index_segment *segment);
MUST_CHECK enum result index_remove_segment(struct index_change *change, uint32_t number);

#endif

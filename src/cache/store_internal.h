/* What the parts of a store share: store.c (looking up, reading, writing), learn.c (opening, segments of others), upkeep.c. */
#ifndef NOCTURNE_CACHE_STORE_INTERNAL_H
#define NOCTURNE_CACHE_STORE_INTERNAL_H

#include "cache/store.h"

#include <pthread.h>   /* pthread_mutex_t */
#include <stdatomic.h> /* _Atomic */

enum {
    STORE_PATH_BYTES = 4096,
    STORE_HOST_BYTES = 64,
    STORE_OPEN_FILES = 64,
    STORE_MOST_FORGOTTEN = 1024, /* between two settlings */
    STORE_MOST_USES = 16384,     /* between two settlings; further ones are not counted */
    STORE_LEARN_AGAIN = 300,     /* seconds, unless room is short */
    STORE_CHANGES = 4096,        /* of the index, in one go */
    STORE_LEARNED = 16384,       /* at once: keys lie anywhere, so few go through most pages as many do */
    STORE_LOUD_REPORTS = 5,      /* warnings in full; later ones are counted */
};

/* A segment open for reading. */
struct store_file {
    struct segment_header header;
    char path[STORE_PATH_BYTES];
    uint32_t number; /* 0: the place is free */
    int fd, users;
    int64_t turn; /* when it was used last */
};

/* A place in a segment that is known to be bad; the whole segment when `offset` is negative. */
struct store_place {
    struct cache_key key;
    int64_t offset;
    uint32_t segment;
};

struct store_used {
    struct cache_key key;
    double when;
};

struct store {
    struct store_options options;
    char folder[STORE_PATH_BYTES - 512], host[STORE_HOST_BYTES];
    char index_path[STORE_PATH_BYTES];
    struct index *index;
    struct policy policy;

    pthread_mutex_t files_lock; /* of the open files */
    struct store_file *files;   /* [STORE_OPEN_FILES] */
    int64_t turn;

    pthread_mutex_t notes_lock; /* of what settling writes down */
    struct store_place *forgotten;
    _Atomic int32_t forgotten_count;
    struct store_used *used;
    int32_t used_count;

    struct segment_writer writer;
    uint32_t writer_number; /* of the writer's segment; 0: the index doesn't know it yet */
    int32_t next_name;
    int64_t segment_bytes; /* a segment takes no more records past this size */
    double quiet_until;    /* after a failed write, on the clock of the day */
    double next_upkeep, next_learning;

    _Atomic int64_t bytes, written, read, evicted, damaged;
    _Atomic int32_t reports;
};

/* A warning about the folder, in full for the first few. `offset` negative: none. */
void store_report(struct store *store, const char *path, int64_t offset, const char *what);

/* The place counts as absent from now on. */
void store_forget(struct store *store, const struct cache_key *key, uint32_t segment, int64_t offset);

void store_segment_path(const struct store *store, const char *name, char *path, size_t capacity);

/* Ends the writer's segment; the next append begins another. */
void store_seal(struct store *store);

/* Appends records without looking whether they are there, and tells the index: `moves` NULL for new ones, else their facts
 * with the place they come from: one that lies elsewhere by now is left alone. *written: how many are there, also after an
 * error. */
MUST_CHECK enum result store_write(struct store *store, const struct segment_header *header,
    const struct segment_record *records, uint8_t *const *payloads, int32_t count,
    const struct index_entry *moves, int32_t *written);

/* Removes a segment from the index, with all entries that lie there. */
MUST_CHECK enum result store_remove_segment(struct store *store, uint32_t number);

/* Closes a segment that was open for reading, unless it is being read. */
void store_drop_file(struct store *store, uint32_t number);

/* Reads what the segments hold that the index does not know, for about `seconds`, and forgets segments that are gone. */
MUST_CHECK enum result store_learn(struct store *store, double seconds);

/* Sums the sizes of all segment files. */
int64_t store_measure(const struct store *store);

/* A lock file in the folder, held until the descriptor is closed: -1 when another holds it after `seconds`, -2 where there are no
 * locks. */
int store_lock(const struct store *store, const char *name, double seconds);

#endif

#include "cache/index.h"

#include "cache/index_check.h"

#include <errno.h>    /* errno */
#include <fcntl.h>    /* open, fallocate */
#include <stddef.h>   /* offsetof */
#include <stdio.h>    /* snprintf, rename */
#include <stdlib.h>   /* calloc, free */
#include <string.h>   /* memcpy */
#include <sys/stat.h> /* mkdir */
#include <unistd.h>   /* close, unlink, rmdir */

#include <xxhash.h>

enum {
    MOST_READERS = 1022, /* of all processes of the host */
    LOCK_FILE_BYTES =
        65536, /* what LMDB needs for them; the same for all who open the file, for each maps what it sees */
    SUM_BYTES = 8,
    PATH_BYTES = 4096,
};

struct index {
    MDB_env *environment;
    MDB_dbi facts, segments, entries;
    char *path;
};

/* ---- values with checksums ---- */

static uint64_t sum_of(const MDB_val *key, const void *value, size_t bytes) {
    return XXH3_64bits_withSeed(value, bytes, XXH3_64bits(key->mv_data, key->mv_size));
}

static bool unpack(const MDB_val *key, const MDB_val *stored, void *value, size_t bytes) {
    uint64_t sum;
    if (stored->mv_size != bytes + SUM_BYTES)
        return false;
    memcpy(value, stored->mv_data, bytes);
    memcpy(&sum, (const char *)stored->mv_data + bytes, SUM_BYTES);
    return sum == sum_of(key, value, bytes);
}

static MDB_val entry_key(const struct cache_key *key) {
    return (MDB_val){CACHE_KEY_BYTES, (void *)(uintptr_t)key->bytes};
}

/* Big endian, so that LMDB's order of bytes is the order of numbers. */
static MDB_val segment_key(uint32_t number, uint8_t bytes[4]) {
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(number >> 8 * (3 - i));
    return (MDB_val){4, bytes};
}

static bool unpack_entry(const MDB_val *key, const MDB_val *stored, struct index_entry *entry) {
    return key->mv_size == CACHE_KEY_BYTES && unpack(key, stored, entry, sizeof *entry) &&
           entry->traffic < CACHE_TRAFFIC_KINDS && entry->bytes > 0;
}

static bool unpack_segment(const MDB_val *key, const MDB_val *stored, struct index_segment *segment) {
    if (key->mv_size != 4 || !unpack(key, stored, segment, sizeof *segment) || segment->payload_bytes < 1)
        return false;
    segment->name[INDEX_NAME_BYTES - 1] = 0;
    return true;
}

struct policy_facts index_facts(const struct index_entry *entry) {
    struct policy_facts facts = {.created = entry->created,
        .last_used = entry->last_used,
        .uses = entry->uses,
        .bytes = entry->bytes,
        .cost_seconds = entry->cost_seconds,
        .first_token = entry->first_token,
        .traffic = (enum cache_traffic)entry->traffic};
    policy_align_times(&facts);
    return facts;
}

/* ---- opening ---- */

static enum result failed(const struct index *index, int code, const char *what) {
    enum result kind = code == MDB_CORRUPTED || code == MDB_PAGE_NOTFOUND || code == MDB_INVALID ||
                               code == MDB_VERSION_MISMATCH
                           ? ERROR_INPUT
                           : ERROR_IO;
    return fail(kind, "%s: %s: %s", index->path, what, mdb_strerror(code));
}

/* LMDB writes to its lock file through a map: its blocks must exist, or a full disk would end the process. */
static enum result prepare_lock_file(const char *folder) {
    static const char zeros[LOCK_FILE_BYTES];
    char path[PATH_BYTES + 16];
    struct stat found;
    snprintf(path, sizeof path, "%s/lock.mdb", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_errno(ERROR_IO, "%s", path);
    bool ready = fallocate(fd, 0, 0, LOCK_FILE_BYTES) == 0;
    if (!ready && errno == EOPNOTSUPP)
        ready = fstat(fd, &found) == 0 &&
                (found.st_size >= LOCK_FILE_BYTES || write(fd, zeros, sizeof zeros) == sizeof zeros);
    int error = errno;
    close(fd);
    errno = error;
    return ready ? OK : fail_errno(ERROR_IO, "%s", path);
}

static enum result check_version(struct index_change *change) {
    struct index *index = change->index;
    MDB_val name = {7, (void *)(uintptr_t) "version"}, stored;
    uint32_t version = INDEX_VERSION;
    int code = mdb_get(change->transaction, index->facts, &name, &stored);
    if (code == MDB_NOTFOUND) {
        code = mdb_put(change->transaction, index->facts, &name, &(MDB_val){sizeof version, &version}, 0);
        return code ? failed(index, code, "its version") : OK;
    }
    if (code)
        return failed(index, code, "its version");
    if (stored.mv_size == sizeof version)
        memcpy(&version, stored.mv_data, sizeof version);
    if (stored.mv_size != sizeof version || version != INDEX_VERSION)
        return fail(
            ERROR_INPUT, "%s: it has another version of the format than %d", index->path, INDEX_VERSION);
    return OK;
}

static enum result open_tables(struct index_change *change) {
    struct {
        const char *name;
        MDB_dbi *table;
    } tables[] = {{"facts", &change->index->facts}, {"segments", &change->index->segments},
        {"entries", &change->index->entries}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        int code = mdb_dbi_open(change->transaction, tables[i].name, MDB_CREATE, tables[i].table);
        if (code)
            return failed(change->index, code, tables[i].name);
    }
    return check_version(change);
}

/* With the lock for changes held, so that the pages stay as they are while they are looked through. */
static enum result check_and_open_tables(struct index *index) {
    struct index_change change;
    TRY(index_begin(index, &change));
    enum result status = index_check_pages(index->path);
    if (status == OK)
        status = open_tables(&change);
    return index_end(&change, status);
}

static enum result open_environment(struct index *index, int64_t map_bytes) {
    int code = mdb_env_create(&index->environment);
    if (!code)
        code = mdb_env_set_maxdbs(index->environment, 3);
    if (!code)
        code = mdb_env_set_maxreaders(index->environment, MOST_READERS);
    if (!code)
        code = mdb_env_set_mapsize(index->environment, (size_t)map_bytes);
    /* A commit must not tear the file; whether the newest one is down does not matter. Threads pass readers on. */
    if (!code)
        code =
            mdb_env_open(index->environment, index->path, MDB_NOTLS | MDB_NOMETASYNC | MDB_NORDAHEAD, 0666);
    return code ? failed(index, code, "LMDB cannot open it") : OK;
}

enum result index_open(const char *path, int64_t map_bytes, struct index **index) {
    if (mkdir(path, 0777) && errno != EEXIST)
        return fail_errno(ERROR_IO, "%s", path);
    TRY(prepare_lock_file(path));
    TRY(index_check_start(path));
    struct index *made = calloc(1, sizeof *made);
    if (!made || !(made->path = strdup(path))) {
        free(made);
        return fail(ERROR_MEMORY, "%s: no memory for the index", path);
    }
    enum result status = open_environment(made, map_bytes);
    if (status == OK) {
        index_clear_stale_readers(made);
        status = check_and_open_tables(made);
    }
    if (status != OK)
        index_close(made);
    else
        *index = made;
    return status;
}

void index_close(struct index *index) {
    if (!index)
        return;
    if (index->environment)
        mdb_env_close(index->environment);
    free(index->path);
    free(index);
}

static void remove_environment(const char *folder) {
    static const char *const names[] = {"data.mdb", "lock.mdb"};
    char path[PATH_BYTES + 16];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

enum result index_set_aside(const char *path) {
    char aside[PATH_BYTES];
    snprintf(aside, sizeof aside, "%s.damaged", path);
    remove_environment(aside);
    if (rename(path, aside))
        return fail_errno(ERROR_IO, "%s: cannot be renamed to %s", path, aside);
    return OK;
}

void index_clear_stale_readers(struct index *index) {
    int dead;
    mdb_reader_check(index->environment, &dead);
}

/* ---- looking up ---- */

static bool find_entry(
    const struct index *index, MDB_txn *transaction, const struct cache_key *key, struct index_entry *entry) {
    MDB_val name = entry_key(key), stored;
    return mdb_get(transaction, index->entries, &name, &stored) == 0 && unpack_entry(&name, &stored, entry);
}

int32_t index_find(
    struct index *index, const struct cache_key *keys, int32_t count, struct index_entry *entries) {
    MDB_txn *transaction;
    int32_t found = 0;
    if (count == 0 || mdb_txn_begin(index->environment, NULL, MDB_RDONLY, &transaction))
        return 0;
    struct index_entry unwanted;
    while (
        found < count && find_entry(index, transaction, &keys[found], entries ? &entries[found] : &unwanted))
        found++;
    mdb_txn_abort(transaction);
    return found;
}

int32_t index_find_each(struct index *index, const struct cache_key *keys, int32_t count, bool *present) {
    MDB_txn *transaction;
    int32_t found = 0;
    struct index_entry entry;
    memset(present, 0, (size_t)count * sizeof *present);
    if (count == 0 || mdb_txn_begin(index->environment, NULL, MDB_RDONLY, &transaction))
        return 0;
    for (int32_t i = 0; i < count; i++)
        found += present[i] = find_entry(index, transaction, &keys[i], &entry);
    mdb_txn_abort(transaction);
    return found;
}

static bool find_segment(
    const struct index *index, MDB_txn *transaction, uint32_t number, struct index_segment *segment) {
    uint8_t bytes[4];
    MDB_val name = segment_key(number, bytes), stored;
    return mdb_get(transaction, index->segments, &name, &stored) == 0 &&
           unpack_segment(&name, &stored, segment);
}

bool index_find_segment(struct index *index, uint32_t number, struct index_segment *segment) {
    MDB_txn *transaction;
    if (mdb_txn_begin(index->environment, NULL, MDB_RDONLY, &transaction))
        return false;
    bool found = find_segment(index, transaction, number, segment);
    mdb_txn_abort(transaction);
    return found;
}

/* Calls `visit` for each pair of a table until it returns false. */
static enum result each(struct index *index, MDB_dbi table,
    bool (*visit)(void *context, const MDB_val *key, const MDB_val *stored), void *context) {
    MDB_txn *transaction;
    MDB_cursor *cursor;
    MDB_val key, stored;
    int code = mdb_txn_begin(index->environment, NULL, MDB_RDONLY, &transaction);
    if (code)
        return failed(index, code, "cannot be read");
    code = mdb_cursor_open(transaction, table, &cursor);
    if (!code) {
        bool more = true;
        while (more && (code = mdb_cursor_get(cursor, &key, &stored, MDB_NEXT)) == 0)
            more = visit(context, &key, &stored);
        mdb_cursor_close(cursor);
    }
    mdb_txn_abort(transaction);
    return code == 0 || code == MDB_NOTFOUND ? OK : failed(index, code, "cannot be read");
}

struct entry_visit {
    index_visit_entry *visit;
    void *context;
    int64_t damaged;
};

static bool visit_entry(void *context, const MDB_val *key, const MDB_val *stored) {
    struct entry_visit *visit = context;
    struct index_entry entry;
    struct cache_key name;
    if (!unpack_entry(key, stored, &entry)) {
        visit->damaged++;
        return true;
    }
    memcpy(name.bytes, key->mv_data, CACHE_KEY_BYTES);
    return visit->visit(visit->context, &name, &entry);
}

enum result index_each_entry(struct index *index, index_visit_entry *visit, void *context, int64_t *damaged) {
    struct entry_visit entries = {visit, context, 0};
    enum result status = each(index, index->entries, visit_entry, &entries);
    if (damaged)
        *damaged = entries.damaged;
    return status;
}

struct segment_visit {
    index_visit_segment *visit;
    void *context;
};

static bool visit_segment(void *context, const MDB_val *key, const MDB_val *stored) {
    struct segment_visit *visit = context;
    struct index_segment segment;
    if (!unpack_segment(key, stored, &segment))
        return true;
    const uint8_t *bytes = key->mv_data;
    uint32_t number = 0;
    for (int i = 0; i < 4; i++)
        number = number << 8 | bytes[i];
    return visit->visit(visit->context, number, &segment);
}

enum result index_each_segment(struct index *index, index_visit_segment *visit, void *context) {
    struct segment_visit segments = {visit, context};
    return each(index, index->segments, visit_segment, &segments);
}

int64_t index_entry_count(struct index *index) {
    MDB_txn *transaction;
    MDB_stat stat;
    if (mdb_txn_begin(index->environment, NULL, MDB_RDONLY, &transaction))
        return 0;
    int code = mdb_stat(transaction, index->entries, &stat);
    mdb_txn_abort(transaction);
    return code ? 0 : (int64_t)stat.ms_entries;
}

/* ---- changes ---- */

enum result index_begin(struct index *index, struct index_change *change) {
    *change = (struct index_change){.index = index};
    int code = mdb_txn_begin(index->environment, NULL, 0, &change->transaction);
    return code ? failed(index, code, "cannot be changed") : OK;
}

enum result index_end(struct index_change *change, enum result status) {
    MDB_txn *transaction = change->transaction;
    change->transaction = NULL;
    if (status != OK) {
        mdb_txn_abort(transaction);
        return status;
    }
    int code = mdb_txn_commit(transaction);
    return code ? failed(change->index, code, "a change could not be kept") : OK;
}

static enum result store_value(
    struct index_change *change, MDB_dbi table, MDB_val *key, const void *value, size_t bytes) {
    MDB_val room = {bytes + SUM_BYTES, NULL};
    int code = mdb_put(change->transaction, table, key, &room, MDB_RESERVE);
    if (code)
        return failed(change->index, code, "cannot take more");
    uint64_t sum = sum_of(key, value, bytes);
    memcpy(room.mv_data, value, bytes);
    memcpy((char *)room.mv_data + bytes, &sum, SUM_BYTES);
    return OK;
}

bool index_get(const struct index_change *change, const struct cache_key *key, struct index_entry *entry) {
    return find_entry(change->index, change->transaction, key, entry);
}

bool index_get_segment(const struct index_change *change, uint32_t number, struct index_segment *segment) {
    return find_segment(change->index, change->transaction, number, segment);
}

enum result index_put_segment(
    struct index_change *change, uint32_t number, const struct index_segment *segment) {
    uint8_t bytes[4];
    MDB_val name = segment_key(number, bytes);
    return store_value(change, change->index->segments, &name, segment, sizeof *segment);
}

enum result index_remove_segment(struct index_change *change, uint32_t number) {
    uint8_t bytes[4];
    MDB_val name = segment_key(number, bytes);
    int code = mdb_del(change->transaction, change->index->segments, &name, NULL);
    return code && code != MDB_NOTFOUND ? failed(change->index, code, "cannot remove a segment") : OK;
}

static enum result count_in_segment(struct index_change *change, uint32_t number, int64_t more) {
    struct index_segment segment;
    if (!index_get_segment(change, number, &segment))
        return OK; /* it was removed, with its count */
    segment.entries += more;
    return index_put_segment(change, number, &segment);
}

enum result index_put(
    struct index_change *change, const struct cache_key *key, const struct index_entry *entry) {
    struct index_entry old;
    MDB_val name = entry_key(key);
    bool replaces = index_get(change, key, &old);
    if (!replaces || old.segment != entry->segment) {
        if (replaces)
            TRY(count_in_segment(change, old.segment, -1));
        TRY(count_in_segment(change, entry->segment, 1));
    }
    return store_value(change, change->index->entries, &name, entry, sizeof *entry);
}

enum result index_remove(struct index_change *change, const struct cache_key *key) {
    struct index_entry old;
    MDB_val name = entry_key(key);
    if (index_get(change, key, &old))
        TRY(count_in_segment(change, old.segment, -1));
    int code = mdb_del(change->transaction, change->index->entries, &name, NULL);
    return code && code != MDB_NOTFOUND ? failed(change->index, code, "cannot remove an entry") : OK;
}

enum result index_next_segment(struct index_change *change, uint32_t *number) {
    struct index *index = change->index;
    MDB_val name = {4, (void *)(uintptr_t) "next"}, stored;
    int code = mdb_get(change->transaction, index->facts, &name, &stored);
    *number = 1;
    if (code == 0 && stored.mv_size == sizeof *number)
        memcpy(number, stored.mv_data, sizeof *number);
    else if (code != MDB_NOTFOUND)
        return failed(index, code ? code : MDB_CORRUPTED, "its next segment's number");
    uint32_t next = *number + 1;
    code = mdb_put(change->transaction, index->facts, &name, &(MDB_val){sizeof next, &next}, 0);
    return code ? failed(index, code, "cannot take a segment") : OK;
}

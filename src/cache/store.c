#include "cache/store_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "cache/keys.h"

#include <errno.h>  /* errno */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* malloc, free */
#include <string.h> /* memcpy */
#include <unistd.h> /* close, getpid */

enum {
    RUN_BYTES = 1 << 20,    /* read at once: so much is checked while it is in the processor's caches */
    PIECE_BYTES = 64 << 20, /* written at once */
    QUIET_SECONDS = 30,     /* without writing after a failure */
    FULL_SECONDS = 2,       /* without, after no room could be made */
    NEED_SECONDS = 10,      /* of waiting for another process that makes room */
};

void store_segment_path(const struct store *store, const char *name, char *path, size_t capacity) {
    snprintf(path, capacity, "%s/segments/%s", store->folder, name);
}

/* ---- damage ---- */

void store_report(struct store *store, const char *path, int64_t offset, const char *what) {
    int32_t earlier = atomic_fetch_add(&store->reports, 1);
    if (earlier > STORE_LOUD_REPORTS)
        return;
    if (earlier == STORE_LOUD_REPORTS)
        log_warning("prefix cache %s: more faults like these are counted only", store->folder);
    else if (offset >= 0)
        log_warning("prefix cache: %s, byte %lld: %s", path, (long long)offset, what);
    else
        log_warning("prefix cache: %s: %s", path, what);
}

void store_forget(struct store *store, const struct cache_key *key, uint32_t segment, int64_t offset) {
    pthread_mutex_lock(&store->notes_lock);
    if (store->forgotten_count < STORE_MOST_FORGOTTEN) {
        store->forgotten[store->forgotten_count] = (struct store_place){.segment = segment, .offset = offset};
        if (key)
            store->forgotten[store->forgotten_count].key = *key;
        atomic_fetch_add(&store->forgotten_count, 1);
    }
    pthread_mutex_unlock(&store->notes_lock);
}

/* How many leading entries lie at places that are not forgotten. */
static int32_t count_remembered(struct store *store, const struct index_entry *entries, int32_t count) {
    int32_t good = 0;
    pthread_mutex_lock(&store->notes_lock);
    for (bool forgotten = false; good < count; good += !forgotten) {
        for (int32_t i = 0; i < store->forgotten_count && !forgotten; i++) {
            const struct store_place *place = &store->forgotten[i];
            forgotten = place->segment == entries[good].segment &&
                        (place->offset < 0 || place->offset == entries[good].offset);
        }
        if (forgotten)
            break;
    }
    pthread_mutex_unlock(&store->notes_lock);
    return good;
}

/* ---- looking up ---- */

/* Some at a time when the caller wants no entries. */
static int32_t find_some(
    struct store *store, const struct cache_key *keys, int32_t count, struct index_entry *entries) {
    int32_t found = index_find(store->index, keys, count, entries);
    return atomic_load(&store->forgotten_count) > 0 ? count_remembered(store, entries, found) : found;
}

int32_t store_find(
    struct store *store, const struct cache_key *keys, int32_t count, struct index_entry *entries) {
    if (entries)
        return find_some(store, keys, count, entries);
    if (atomic_load(&store->forgotten_count) == 0)
        return index_find(store->index, keys, count, NULL);
    int32_t found = 0;
    struct index_entry entry;
    while (found < count && find_some(store, &keys[found], 1, &entry) == 1)
        found++;
    return found;
}

void store_use(struct store *store, const struct cache_key *keys, int32_t count) {
    double now = wall_clock();
    pthread_mutex_lock(&store->notes_lock);
    for (int32_t i = 0; i < count && store->used_count < STORE_MOST_USES; i++)
        store->used[store->used_count++] = (struct store_used){keys[i], now};
    pthread_mutex_unlock(&store->notes_lock);
}

/* ---- open files ---- */

static struct store_file *place_for_file(struct store *store, uint32_t number) {
    struct store_file *free_place = NULL;
    for (int i = 0; i < STORE_OPEN_FILES; i++) {
        struct store_file *file = &store->files[i];
        if (file->number == number)
            return file;
        if (file->users == 0 && (!free_place || file->turn < free_place->turn))
            free_place = file;
    }
    if (free_place && free_place->number) {
        close(free_place->fd);
        free_place->number = 0;
        free_place->turn = 0;
    }
    return free_place;
}

static enum result open_file(struct store *store, uint32_t number, struct store_file *file) {
    struct index_segment segment;
    if (!index_find_segment(store->index, number, &segment)) {
        errno = ENOENT;
        return fail(ERROR_INPUT, "%s: the index knows no segment %u", store->index_path, number);
    }
    store_segment_path(store, segment.name, file->path, sizeof file->path);
    TRY(segment_open(file->path, &file->fd, &file->header));
    file->number = number;
    return OK;
}

/* To be given back with release_file. */
static enum result acquire_file(struct store *store, uint32_t number, struct store_file **file) {
    enum result status = OK;
    pthread_mutex_lock(&store->files_lock);
    *file = place_for_file(store, number);
    if (!*file)
        status = fail(ERROR_INTERNAL, "%s: too many segments are in use", store->folder);
    else if ((*file)->number != number)
        status = open_file(store, number, *file);
    if (status == OK) {
        (*file)->users++;
        (*file)->turn = ++store->turn;
    }
    int error = errno;
    pthread_mutex_unlock(&store->files_lock);
    errno = error;
    return status;
}

static void release_file(struct store *store, struct store_file *file) {
    pthread_mutex_lock(&store->files_lock);
    file->users--;
    pthread_mutex_unlock(&store->files_lock);
}

void store_drop_file(struct store *store, uint32_t number) {
    pthread_mutex_lock(&store->files_lock);
    for (int i = 0; i < STORE_OPEN_FILES; i++)
        if (store->files[i].number == number && store->files[i].users == 0) {
            close(store->files[i].fd);
            store->files[i].number = 0;
            store->files[i].turn = 0;
        }
    pthread_mutex_unlock(&store->files_lock);
}

enum result store_segment(
    struct store *store, uint32_t number, struct segment_header *header, char *path, size_t capacity) {
    struct store_file *file;
    TRY(acquire_file(store, number, &file));
    *header = file->header;
    if (path)
        snprintf(path, capacity, "%s", file->path);
    release_file(store, file);
    return OK;
}

/* ---- reading ---- */

/* How many leading entries are neighbours in a segment, up to what is read at once. */
static int32_t run_length(const struct index_entry *entries, int32_t count) {
    int64_t stride = segment_stride(entries[0].bytes);
    int32_t most = (int32_t)(RUN_BYTES / stride), length = 1;
    most = most < 1 ? 1 : most < SEGMENT_MOST_RUN ? most : SEGMENT_MOST_RUN;
    while (length < count && length < most && entries[length].segment == entries[0].segment &&
           entries[length].bytes == entries[0].bytes &&
           entries[length].offset == entries[0].offset + length * stride)
        length++;
    return length;
}

static void bad_record(struct store *store, const struct store_file *file, const struct cache_key *key,
    const struct index_entry *entry, const char *what) {
    store_report(store, file->path, entry->offset, what);
    store_forget(store, key, entry->segment, entry->offset);
    atomic_fetch_add(&store->damaged, 1);
}

static const char *fault_of(const struct cache_key *key, const struct index_entry *entry,
    const uint8_t header[SEGMENT_RECORD_BYTES], const uint8_t *payload) {
    struct segment_record record;
    if (!segment_record_parse(header, entry->bytes, &record))
        return "no whole record is there; the block is computed again";
    if (!cache_key_equal(&record.key, key))
        return "another block than the index says is there; the block is computed again";
    if (record.checksum != segment_checksum(payload, entry->bytes))
        return "the payload is damaged; the block is computed again";
    return NULL;
}

static int32_t read_run(struct store *store, struct store_file *file, const struct cache_key *keys,
    const struct index_entry *entries, int32_t count, uint8_t *const *payloads) {
    uint8_t headers[SEGMENT_MOST_RUN][SEGMENT_RECORD_BYTES];
    int32_t whole, good = 0;
    if (file->header.payload_bytes != entries[0].bytes) {
        bad_record(store, file, &keys[0], &entries[0],
            "the segment has blocks of another size; they are computed again");
        return 0;
    }
    if (segment_read_run(file->path, file->fd, entries[0].bytes, entries[0].offset, payloads, count, headers,
            &whole) != OK) {
        bad_record(store, file, &keys[0], &entries[0], failure_message());
        return 0;
    }
    for (const char *fault; good < count; good++) {
        fault = good < whole ? fault_of(&keys[good], &entries[good], headers[good], payloads[good])
                             : "the file ends before the record does; the block is computed again";
        if (fault) {
            bad_record(store, file, &keys[good], &entries[good], fault);
            break;
        }
    }
    atomic_fetch_add(&store->read, good * entries[0].bytes);
    return good;
}

/* A segment cannot be opened. Upkeep may have moved its records: true when the index says so by now. */
static bool has_moved(struct store *store, const struct cache_key *key, struct index_entry *entry) {
    struct index_entry now;
    if (index_find(store->index, key, 1, &now) != 1)
        return false;
    bool moved = now.segment != entry->segment || now.offset != entry->offset;
    *entry = now;
    return moved;
}

static void lost_segment(struct store *store, uint32_t number) {
    char what[512];
    snprintf(what, sizeof what, "segment %u cannot be read; its blocks are computed again: %s", number,
        failure_message());
    store_report(store, store->folder, -1, what);
    store_forget(store, NULL, number, -1);
    atomic_fetch_add(&store->damaged, 1);
}

int32_t store_read(struct store *store, const struct cache_key *keys, struct index_entry *entries,
    int32_t count, uint8_t *const *payloads) {
    for (int32_t done = 0; done < count;) {
        int32_t length = run_length(entries + done, count - done);
        struct store_file *file;
        if (acquire_file(store, entries[done].segment, &file) != OK) {
            if (has_moved(store, &keys[done], &entries[done]))
                continue;
            lost_segment(store, entries[done].segment);
            return done;
        }
        int32_t good = read_run(store, file, keys + done, entries + done, length, payloads + done);
        release_file(store, file);
        done += good;
        if (good < length)
            return done;
    }
    return count;
}

/* ---- writing ---- */

void store_seal(struct store *store) {
    segment_writer_close(&store->writer);
    store->writer_number = 0;
}

static enum result begin_segment(struct store *store, const struct segment_header *space) {
    char name[INDEX_NAME_BYTES], path[STORE_PATH_BYTES];
    struct segment_header header = *space;
    enum result status;
    store_seal(store);
    header.created = wall_clock();
    memcpy(header.host, store->host, sizeof header.host);
    do { /* a process of an earlier start of the machine may have had this one's number */
        snprintf(
            name, sizeof name, "%s-%d-%d" SEGMENT_SUFFIX, store->host, (int)getpid(), store->next_name++);
        store_segment_path(store, name, path, sizeof path);
        status = segment_create(path, &header, &store->writer);
    } while (status != OK && errno == EEXIST);
    atomic_store(&store->bytes, store_measure(store)); /* with what others have written meanwhile */
    return status;
}

static bool segment_takes(const struct store *store, const struct segment_header *space, int64_t more_bytes) {
    const struct segment_writer *writer = &store->writer;
    return writer->fd >= 0 && !writer->damaged && cache_key_equal(&writer->header.space, &space->space) &&
           writer->header.payload_bytes == space->payload_bytes &&
           (writer->end == SEGMENT_HEADER_BYTES || writer->end + more_bytes <= store->segment_bytes);
}

static struct index_entry new_entry(const struct segment_record *record) {
    return (struct index_entry){.bytes = record->payload_bytes,
        .checksum = record->checksum,
        .created = record->created,
        .last_used = record->created,
        .traffic = (uint32_t)record->entry.traffic,
        .first_token = record->entry.first_token,
        .cost_seconds = record->entry.cost_seconds};
}

/* Names the writer's segment in the index. */
static enum result register_segment(struct store *store, struct index_change *change) {
    struct index_segment segment = {
        .space = store->writer.header.space, .payload_bytes = store->writer.header.payload_bytes};
    const char *name = strrchr(store->writer.path, '/') + 1;
    memcpy(segment.name, name, strlen(name) + 1); /* begin_segment made it to fit */
    TRY(index_next_segment(change, &store->writer_number));
    return index_put_segment(change, store->writer_number, &segment);
}

static enum result index_records(struct store *store, struct index_change *change, int64_t begin,
    const struct segment_record *records, int32_t count, const struct index_entry *moves) {
    struct index_segment segment;
    if (store->writer_number == 0)
        TRY(register_segment(store, change));
    for (int32_t i = 0; i < count; i++) {
        struct index_entry now, entry = moves ? moves[i] : new_entry(&records[i]);
        bool known = index_get(change, &records[i].key, &now);
        if (moves ? !known || now.segment != entry.segment || now.offset != entry.offset : known)
            continue;
        if (moves)
            entry = now; /* with uses that came since */
        entry.segment = store->writer_number;
        entry.offset = begin + i * segment_stride(records[i].payload_bytes);
        TRY(index_put(change, &records[i].key, &entry));
    }
    if (index_get_segment(change, store->writer_number, &segment)) {
        segment.scanned = store->writer.end;
        TRY(index_put_segment(change, store->writer_number, &segment));
    }
    return OK;
}

static enum result tell_index(struct store *store, int64_t begin, const struct segment_record *records,
    int32_t count, const struct index_entry *moves) {
    uint32_t number = store->writer_number;
    struct index_change change;
    TRY(index_begin(store->index, &change));
    enum result status = index_records(store, &change, begin, records, count, moves);
    status = index_end(&change, status);
    if (status != OK)
        store->writer_number = number;
    return status;
}

enum result store_write(struct store *store, const struct segment_header *header,
    const struct segment_record *records, uint8_t *const *payloads, int32_t count,
    const struct index_entry *moves, int32_t *written) {
    *written = 0;
    if (!segment_takes(store, header, count * segment_stride(header->payload_bytes)))
        TRY(begin_segment(store, header));
    int64_t begin = store->writer.end;
    enum result status = segment_append(&store->writer, records, payloads, count, written);
    if (*written > 0) {
        enum result told = tell_index(store, begin, records, *written, moves);
        if (told != OK) {
            segment_take_back(&store->writer, begin);
            *written = 0;
            status = told;
        }
    }
    atomic_fetch_add(&store->bytes, store->writer.end - begin);
    atomic_fetch_add(&store->written, store->writer.end - begin);
    return status;
}

/* Room under the limit for so many bytes, by upkeep if need be. */
static bool make_room(struct store *store, int64_t bytes) {
    if (store->bytes + bytes <= store->options.limit)
        return true;
    store_upkeep(store, store->options.limit - bytes, NEED_SECONDS);
    if (store->bytes + bytes <= store->options.limit)
        return true;
    store_report(store, store->folder, -1,
        "it is full, and nothing in it may be removed now; new blocks are not kept (raise its limit, or see "
        "nocturne cache stat)");
    store->quiet_until = wall_clock() + FULL_SECONDS;
    return false;
}

/* Returns how many are there now. */
static int32_t write_piece(struct store *store, const struct segment_header *header,
    const struct store_put *const *puts, int32_t count) {
    int64_t payload_bytes = header->payload_bytes;
    struct segment_record *records = calloc((size_t)count, sizeof *records);
    uint8_t **payloads = malloc((size_t)count * sizeof *payloads);
    int32_t written = 0;
    if (records && payloads &&
        make_room(store, SEGMENT_HEADER_BYTES + count * segment_stride(payload_bytes))) {
        for (int32_t i = 0; i < count; i++) {
            payloads[i] = puts[i]->payload;
            records[i] = (struct segment_record){.key = puts[i]->key,
                .entry = puts[i]->entry,
                .payload_bytes = payload_bytes,
                .checksum = segment_checksum(puts[i]->payload, payload_bytes),
                .created = puts[i]->created};
        }
        if (store_write(store, header, records, payloads, count, NULL, &written) != OK) {
            store_report(store, store->folder, -1, failure_message());
            store->quiet_until = wall_clock() + QUIET_SECONDS;
        }
    }
    free(records);
    free(payloads);
    return written;
}

int32_t store_append(
    struct store *store, const struct segment_header *header, const struct store_put *puts, int32_t count) {
    int64_t stride = segment_stride(header->payload_bytes);
    int64_t piece_bytes = PIECE_BYTES < store->segment_bytes ? PIECE_BYTES : store->segment_bytes;
    int32_t piece = piece_bytes < stride ? 1 : (int32_t)(piece_bytes / stride);
    const struct store_put **wanted = malloc((size_t)count * sizeof *wanted);
    int32_t wanted_count = 0, done = 0;
    if (store->forgotten_count > 0)
        store_settle(store);
    for (int32_t i = 0; wanted && i < count; i++)
        if (index_find(store->index, &puts[i].key, 1, NULL) == 0)
            wanted[wanted_count++] = &puts[i];
    if (!wanted || (wanted_count > 0 && wall_clock() < store->quiet_until)) {
        free(wanted);
        return wanted ? count - wanted_count : 0;
    }
    while (done < wanted_count) {
        int32_t now = wanted_count - done < piece ? wanted_count - done : piece;
        int32_t written = write_piece(store, header, wanted + done, now);
        done += written;
        if (written < now) {
            store_seal(store);
            break;
        }
    }
    free(wanted);
    return count - wanted_count + done;
}

/* ---- settling ---- */

struct lost_entries {
    uint32_t segment;
    struct cache_key *keys;
    int32_t count;
};

static bool collect_lost(void *context, const struct cache_key *key, const struct index_entry *entry) {
    struct lost_entries *lost = context;
    if (entry->segment == lost->segment)
        lost->keys[lost->count++] = *key;
    return lost->count < STORE_CHANGES;
}

static enum result remove_keys(struct store *store, const struct cache_key *keys, int32_t count) {
    struct index_change change;
    TRY(index_begin(store->index, &change));
    enum result status = OK;
    for (int32_t i = 0; status == OK && i < count; i++)
        status = index_remove(&change, &keys[i]);
    return index_end(&change, status);
}

enum result store_remove_segment(struct store *store, uint32_t number) {
    struct lost_entries lost = {.segment = number};
    struct index_segment segment;
    struct index_change change;
    enum result status = OK;
    lost.keys = malloc(STORE_CHANGES * sizeof *lost.keys);
    if (!lost.keys)
        return fail(ERROR_MEMORY, "%s: no memory to settle", store->folder);
    /* Entries are looked for only if there are any: it takes a pass through all. */
    while (status == OK && index_find_segment(store->index, number, &segment) && segment.entries > 0) {
        lost.count = 0;
        status = index_each_entry(store->index, collect_lost, &lost, NULL);
        if (status == OK)
            status = remove_keys(store, lost.keys, lost.count);
        if (lost.count < STORE_CHANGES)
            break;
    }
    free(lost.keys);
    TRY(status);
    TRY(index_begin(store->index, &change));
    status = index_remove_segment(&change, number);
    return index_end(&change, status);
}

static enum result remove_forgotten(struct store *store, const struct store_place *places, int32_t count) {
    struct index_change change;
    TRY(index_begin(store->index, &change));
    enum result status = OK;
    for (int32_t i = 0; status == OK && i < count; i++) {
        struct index_entry entry;
        if (places[i].offset >= 0 && index_get(&change, &places[i].key, &entry) &&
            entry.segment == places[i].segment && entry.offset == places[i].offset)
            status = index_remove(&change, &places[i].key);
    }
    status = index_end(&change, status);
    for (int32_t i = 0; status == OK && i < count; i++)
        if (places[i].offset < 0)
            status = store_remove_segment(store, places[i].segment);
    return status;
}

static enum result write_uses(struct store *store, const struct store_used *uses, int32_t count) {
    struct index_change change;
    TRY(index_begin(store->index, &change));
    enum result status = OK;
    for (int32_t i = 0; status == OK && i < count; i++) {
        struct index_entry entry;
        if (!index_get(&change, &uses[i].key, &entry))
            continue;
        entry.uses++;
        if (uses[i].when > entry.last_used)
            entry.last_used = uses[i].when;
        status = index_put(&change, &uses[i].key, &entry);
    }
    return index_end(&change, status);
}

/* Copies of the notes, so that no lock is held while they are written. The forgotten places stay in force until they are. */
static void settle_forgotten(struct store *store) {
    pthread_mutex_lock(&store->notes_lock);
    int32_t count = store->forgotten_count;
    struct store_place *places = malloc(((size_t)count + 1) * sizeof *places);
    if (places)
        memcpy(places, store->forgotten, (size_t)count * sizeof *places);
    pthread_mutex_unlock(&store->notes_lock);
    if (places && count > 0 && remove_forgotten(store, places, count) == OK) {
        pthread_mutex_lock(&store->notes_lock);
        int32_t left = store->forgotten_count - count;
        memmove(store->forgotten, store->forgotten + count, (size_t)left * sizeof *store->forgotten);
        atomic_store(&store->forgotten_count, left);
        pthread_mutex_unlock(&store->notes_lock);
    }
    free(places);
}

static void settle_uses(struct store *store) {
    pthread_mutex_lock(&store->notes_lock);
    int32_t count = store->used_count;
    struct store_used *uses = malloc(((size_t)count + 1) * sizeof *uses);
    if (uses) {
        memcpy(uses, store->used, (size_t)count * sizeof *uses);
        store->used_count = 0;
    }
    pthread_mutex_unlock(&store->notes_lock);
    if (uses && count > 0 && write_uses(store, uses, count) != OK)
        store_report(store, store->folder, -1, failure_message());
    free(uses);
}

void store_settle(struct store *store) {
    if (atomic_load(&store->forgotten_count) > 0)
        settle_forgotten(store);
    settle_uses(store);
}

enum result store_remove(struct store *store, const struct cache_key *key) {
    return remove_keys(store, key, 1);
}

/* ---- counts ---- */

struct index *store_index(struct store *store) {
    return store->index;
}

void store_counts(struct store *store, struct store_counts *counts) {
    *counts = (struct store_counts){.entries = index_entry_count(store->index),
        .bytes = store->bytes,
        .written = store->written,
        .read = store->read,
        .evicted = store->evicted,
        .damaged = store->damaged};
}

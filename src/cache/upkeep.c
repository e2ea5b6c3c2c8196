/* Keeping a folder under its limit: which entries go (policy.h), and how their room comes back.
 *
 * Segments are never changed, so a removed entry's record is dead room until its segment goes: one without entries is
 * removed, and of one with few its entries are moved to the writer's segment first. The index follows before the file goes, so
 * an end at any instant loses nothing; who still has the file open reads on. */
#include "cache/store_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "cache/keys.h"

#include <dirent.h>   /* opendir */
#include <stdio.h>    /* snprintf */
#include <stdlib.h>   /* malloc, qsort */
#include <string.h>   /* memcpy */
#include <sys/stat.h> /* stat */
#include <unistd.h>   /* close, unlink */

enum {
    UPKEEP_SECONDS = 600,  /* between upkeeps without need */
    MOVE_BYTES = 16 << 20, /* of payloads moved in one go */
    INDEX_LOCK_SECONDS = 2,
    LEARN_SECONDS = 5, /* at a time: puts wait */
    MOST_ROUNDS = 8,   /* of removing until there is room */
};

static const double evict_down_to = 0.9; /* of the limit, so that evictions come seldom and in numbers */
static const double rewrite_below = 0.5; /* of a segment's room alive: moving costs less than it gives back */

bool store_upkeep_due(const struct store *store) {
    return wall_clock() >= store->next_upkeep;
}

/* ---- entries ---- */

struct candidate {
    struct cache_key key;
    double worth, last_used;
    int64_t room; /* in its segment */
    int32_t first_token;
};

struct candidates {
    const struct store *store;
    struct candidate *items;
    int64_t count, capacity, expired; /* the expired ones have a worth below all others: they sort first */
    int64_t room;
    double now;
    bool failed;
};

static bool collect_candidate(void *context, const struct cache_key *key, const struct index_entry *entry) {
    struct candidates *all = context;
    if (all->count == all->capacity) {
        int64_t capacity = all->capacity ? 2 * all->capacity : 4096;
        struct candidate *grown = realloc(all->items, (size_t)capacity * sizeof *grown);
        if (!grown) {
            all->failed = true;
            return false;
        }
        all->items = grown;
        all->capacity = capacity;
    }
    struct policy_facts facts = index_facts(entry);
    bool expired = policy_expired(&all->store->policy, &facts, all->now);
    all->expired += expired;
    all->room += segment_stride(entry->bytes);
    all->items[all->count++] = (struct candidate){.key = *key,
        .worth = expired ? -1 : policy_worth(&all->store->policy, &facts, all->now),
        .last_used = entry->last_used,
        .room = segment_stride(entry->bytes),
        .first_token = entry->first_token};
    return true;
}

static int by_worth(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (policy_before(x->worth, x->first_token, y->worth, y->first_token))
        return -1;
    if (policy_before(y->worth, y->first_token, x->worth, x->first_token))
        return 1;
    return memcmp(x->key.bytes, y->key.bytes, CACHE_KEY_BYTES);
}

/* Those that were used meanwhile stay. */
static enum result remove_candidates(struct store *store, const struct candidate *victims, int64_t count) {
    struct index_change change;
    int64_t removed = 0;
    TRY(index_begin(store->index, &change));
    enum result status = OK;
    for (int64_t i = 0; status == OK && i < count; i++) {
        struct index_entry entry;
        if (!index_get(&change, &victims[i].key, &entry) || entry.last_used != victims[i].last_used)
            continue;
        status = index_remove(&change, &victims[i].key);
        removed++;
    }
    if (status == OK)
        atomic_fetch_add(&store->evicted, removed);
    return index_end(&change, status);
}

/* Sorts so that those that go come first: what is expired, and what is worth least until the rest takes no more than `most`. Returns
 * how many, with the room they take. */
static int64_t choose_victims(struct candidates *all, bool full, int64_t most, int64_t *room) {
    int64_t victims = 0;
    *room = 0;
    if (all->expired == 0 && (!full || all->room <= most))
        return 0;
    qsort(all->items, (size_t)all->count, sizeof *all->items, by_worth);
    while (victims < all->count && (victims < all->expired || (full && all->room - *room > most)))
        *room += all->items[victims++].room;
    return victims;
}

static enum result collect_candidates(struct store *store, struct candidates *all) {
    *all = (struct candidates){.store = store, .now = wall_clock()};
    TRY(index_each_entry(store->index, collect_candidate, all, NULL));
    return all->failed ? fail(ERROR_MEMORY, "%s: no memory to choose which blocks go", store->folder) : OK;
}

static enum result remove_entries(struct store *store, bool full, int64_t most) {
    struct candidates all;
    int64_t room, victims = 0;
    enum result status = collect_candidates(store, &all);
    if (status == OK)
        victims = choose_victims(&all, full, most, &room);
    for (int64_t done = 0; status == OK && done < victims; done += STORE_CHANGES)
        status = remove_candidates(
            store, all.items + done, victims - done < STORE_CHANGES ? victims - done : STORE_CHANGES);
    free(all.items);
    return status;
}

enum result store_foresee_upkeep(struct store *store, int64_t most, int64_t *entries, int64_t *bytes) {
    struct candidates all;
    *entries = *bytes = 0;
    enum result status = collect_candidates(store, &all);
    if (status == OK)
        *entries =
            choose_victims(&all, store_measure(store) > most, (int64_t)(evict_down_to * (double)most), bytes);
    free(all.items);
    return status;
}

/* ---- segments ---- */

struct move {
    struct store *store;
    uint32_t number;
    int32_t count, capacity;
    struct segment_record *records;
    struct index_entry *entries;
    struct segment_header header;
    uint8_t **payloads; /* [capacity] */
    uint8_t *memory;
    enum result status;
};

static enum result move_some(struct move *move) {
    struct cache_key *keys = malloc(((size_t)move->count + 1) * sizeof *keys);
    if (!keys)
        return fail(ERROR_MEMORY, "%s: no memory to move blocks", move->store->folder);
    for (int32_t i = 0; i < move->count; i++)
        keys[i] = move->records[i].key;
    enum result status = OK;
    for (int32_t done = 0; status == OK && done < move->count; done++) { /* past a damaged one at a time */
        int32_t good = store_read(
            move->store, keys + done, move->entries + done, move->count - done, move->payloads + done);
        int32_t written;
        if (good > 0)
            status = store_write(move->store, &move->header, move->records + done, move->payloads + done,
                good, move->entries + done, &written);
        done += good;
    }
    free(keys);
    move->count = 0;
    return status;
}

static bool collect_move(void *context, int64_t offset, const struct segment_record *record) {
    struct move *move = context;
    struct index_entry entry;
    if (index_find(move->store->index, &record->key, 1, &entry) == 1 && entry.segment == move->number &&
        entry.offset == offset) {
        move->records[move->count] = *record;
        move->entries[move->count++] = entry;
    }
    if (move->count == move->capacity)
        move->status = move_some(move);
    return move->status == OK;
}

static enum result allocate_move(struct move *move) {
    int64_t fit = MOVE_BYTES / move->header.payload_bytes;
    move->capacity = fit < 1 ? 1 : fit < SEGMENT_MOST_RUN ? (int32_t)fit : SEGMENT_MOST_RUN;
    size_t count = (size_t)move->capacity;
    move->records = malloc(count * sizeof *move->records);
    move->entries = malloc(count * sizeof *move->entries);
    move->payloads = malloc(count * sizeof *move->payloads);
    move->memory = malloc(count * (size_t)move->header.payload_bytes);
    if (!move->records || !move->entries || !move->payloads || !move->memory)
        return fail(ERROR_MEMORY, "%s: no memory to move blocks", move->store->folder);
    for (int32_t i = 0; i < move->capacity; i++)
        move->payloads[i] = move->memory + i * move->header.payload_bytes;
    return OK;
}

static enum result move_entries(struct store *store, uint32_t number, const char *path) {
    struct move move = {.store = store, .number = number, .status = OK};
    int64_t end, damaged;
    int fd;
    TRY(segment_open(path, &fd, &move.header));
    enum result status = allocate_move(&move);
    if (status == OK)
        status = segment_scan(path, fd, &move.header, 0, collect_move, &move, &end, &damaged);
    if (status == OK)
        status = move.status;
    if (status == OK)
        status = move_some(&move);
    close(fd);
    free(move.records);
    free(move.entries);
    free(move.payloads);
    free(move.memory);
    return status;
}

struct worn_segment {
    char path[STORE_PATH_BYTES];
    uint32_t number;
    int64_t entries, bytes, dead;
};

/* Moves what is alive, then removes the file. A file that cannot be read goes with all that the index says of it. */
static enum result remove_segment(struct store *store, const struct worn_segment *worn) {
    if (worn->entries > 0) {
        enum result status = move_entries(store, worn->number, worn->path);
        if (status == ERROR_INPUT)
            store_report(store, worn->path, -1, failure_message());
        else if (status != OK)
            return status;
    }
    TRY(store_remove_segment(store, worn->number));
    store_drop_file(store, worn->number);
    if (unlink(worn->path) == 0)
        atomic_fetch_sub(&store->bytes, worn->bytes);
    return OK;
}

struct worn_segments {
    struct store *store;
    struct worn_segment *items;
    int32_t count, capacity;
    bool failed;
};

static bool collect_worn(void *context, uint32_t number, const struct index_segment *segment) {
    struct worn_segments *all = context;
    struct stat found;
    struct worn_segment worn = {.number = number, .entries = segment->entries};
    store_segment_path(all->store, segment->name, worn.path, sizeof worn.path);
    if (number == all->store->writer_number || stat(worn.path, &found))
        return true;
    worn.bytes = found.st_size;
    worn.dead = worn.bytes - SEGMENT_HEADER_BYTES - segment->entries * segment_stride(segment->payload_bytes);
    if (worn.dead <= 0 && worn.entries > 0)
        return true;
    if (all->count == all->capacity) {
        int32_t capacity = all->capacity ? 2 * all->capacity : 16;
        struct worn_segment *grown = realloc(all->items, (size_t)capacity * sizeof *grown);
        if (!grown) {
            all->failed = true;
            return false;
        }
        all->items = grown;
        all->capacity = capacity;
    }
    all->items[all->count++] = worn;
    return true;
}

/* Those that give back most for the least work come first. */
static int by_dead_share(const void *a, const void *b) {
    const struct worn_segment *x = a, *y = b;
    double left = (double)x->dead / (double)x->bytes, right = (double)y->dead / (double)y->bytes;
    if (left != right)
        return left > right ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

static enum result give_room_back(struct store *store, int64_t most) {
    struct worn_segments all = {.store = store};
    enum result status = index_each_segment(store->index, collect_worn, &all);
    if (status == OK && all.failed)
        status = fail(ERROR_MEMORY, "%s: no memory to give room back", store->folder);
    if (status == OK && all.count > 0)
        qsort(all.items, (size_t)all.count, sizeof *all.items, by_dead_share);
    for (int32_t i = 0; status == OK && i < all.count; i++) {
        const struct worn_segment *worn = &all.items[i];
        bool mostly_dead = (double)(worn->bytes - worn->dead) < rewrite_below * (double)worn->bytes;
        if (!mostly_dead && worn->entries > 0 && store->bytes <= most)
            break;
        if (!segment_is_written(worn->path))
            status = remove_segment(store, worn);
    }
    free(all.items);
    return status;
}

/* Segments of other versions, or whose header is damaged, are in no index: they go when nothing as old would be kept. */
static void remove_old_strangers(struct store *store) {
    char folder_path[STORE_PATH_BYTES], path[STORE_PATH_BYTES];
    double longest = 0;
    for (int kind = 0; kind < CACHE_TRAFFIC_KINDS; kind++)
        if (store->policy.keep_seconds[kind] > longest)
            longest = store->policy.keep_seconds[kind];
    store_segment_path(store, "", folder_path, sizeof folder_path);
    DIR *folder = opendir(folder_path);
    for (struct dirent *item; folder && (item = readdir(folder));) {
        struct segment_header header;
        struct stat found;
        int fd;
        store_segment_path(store, item->d_name, path, sizeof path);
        if (stat(path, &found) || !S_ISREG(found.st_mode) || wall_clock() - (double)found.st_mtime < longest)
            continue;
        enum result status = segment_open(path, &fd, &header);
        if (status == OK)
            close(fd);
        else if (status == ERROR_INPUT && unlink(path) == 0)
            log_verbose("prefix cache: removed %s, which no program has written for long: %s", path,
                failure_message());
    }
    if (folder)
        closedir(folder);
}

/* ---- all ---- */

static enum result learn_others(struct store *store) {
    char name[STORE_HOST_BYTES + 16];
    snprintf(name, sizeof name, "index-%s.lock", store->host);
    int lock = store_lock(store, name, INDEX_LOCK_SECONDS);
    if (lock == -1)
        return OK; /* another process of the host does it now */
    enum result status = store_learn(store, LEARN_SECONDS);
    if (lock >= 0)
        close(lock);
    return status;
}

/* Room that cannot be given back yet, as in segments that others write, is made up for by removing more and more. */
static enum result keep_up(struct store *store, int64_t most) {
    int64_t bytes = store_measure(store), target = (int64_t)(evict_down_to * (double)most);
    bool full = bytes > most;
    index_clear_stale_readers(store->index);
    store_settle(store);
    if (full || wall_clock() >= store->next_learning) {
        TRY(learn_others(store));
        store_settle(store); /* segments that are gone */
    }
    if (full) {
        store_seal(store); /* its dead records can be given back, too */
        remove_old_strangers(store);
    }
    for (int round = 0; round < MOST_ROUNDS && (round == 0 || bytes > most); round++) {
        TRY(remove_entries(store, bytes > most, target > 0 ? target : 0));
        TRY(give_room_back(store, most));
        bytes = store_measure(store);
        target -= (bytes - most) * ((int64_t)1 << round);
    }
    return OK;
}

void store_upkeep(struct store *store, int64_t most, double wait_seconds) {
    int lock = store_lock(store, "upkeep.lock", wait_seconds);
    store->next_upkeep = wall_clock() + UPKEEP_SECONDS;
    if (lock == -1)
        return; /* another process does it */
    if (keep_up(store, most < 0 ? store->options.limit : most) != OK)
        store_report(store, store->folder, -1, failure_message());
    atomic_store(&store->bytes, store_measure(store));
    if (lock >= 0)
        close(lock);
}

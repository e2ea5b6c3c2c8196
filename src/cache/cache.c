/* The tiers together, and the two threads that work for them.
 *
 *     cache_put ---> memory (a copy) ---> queue ---> writing thread ---> local and shared folder
 *     cache_get <--- memory <--- reading thread (what cache_prefetch asked for) <--- local, else shared folder
 *               <--------------- the caller itself, when a payload is not in memory: it has to wait anyway, and reads
 *                                into its own place
 *
 * What comes from a lower tier goes into those above it. The lock is held for the queues only. */
#include "cache/cache.h"

#include "base/clock.h"
#include "base/log.h"
#include "cache/keys.h"
#include "cache/memory.h"
#include "cache/store.h"

#include <errno.h>     /* errno */
#include <pthread.h>   /* pthread_create */
#include <signal.h>    /* pthread_sigmask */
#include <stdatomic.h> /* _Atomic */
#include <stdlib.h>    /* calloc, free */
#include <string.h>    /* memcpy */
#include <sys/stat.h>  /* stat */
#include <time.h>      /* clock_gettime */

#define QUEUE_BYTES ((int64_t)256 << 20) /* of payloads on their way to files */

enum {
    RUN = 64,               /* blocks that share one look into a table */
    RUN_BYTES = 1 << 20,    /* and that are read in one go */
    CACHED_BYTES = 4 << 20, /* got at once: what is more does not stay in the caches until it is used */
    LEAST_QUEUE = 8,        /* blocks, however large they are */
    MOST_QUEUE = 8192,      /* however small */
    MOST_PREFETCH = 65536,  /* keys */
    BATCH = 1024,           /* puts that become visible together */
    SETTLE_SECONDS = 5,
    LEAST_RECORDS = 4, /* that a folder's limit must allow */
};

static const char *const tier_names[CACHE_TIERS] = {"memory", "local", "shared"};

struct pending_put {
    struct cache_key key;
    struct cache_entry entry;
    double created;
    int32_t slot;  /* with a reference */
    uint8_t tiers; /* where to */
};

struct cache {
    struct policy policy;
    struct segment_header space;
    int64_t payload_bytes;
    int32_t kept; /* blocks that the memory tier may keep */
    struct memory *memory;
    struct store *stores[CACHE_TIERS]; /* NULL: no such tier */
    uint8_t file_tiers;                /* 1 << tier */

    pthread_t writer, reader;
    bool writer_runs, reader_runs;
    pthread_mutex_t lock; /* of all below, up to the counts */
    pthread_cond_t put_came, put_done, read_came, read_done;
    bool closing;

    struct pending_put *puts; /* [put_capacity], a ring */
    int32_t put_capacity, put_begin, put_count;
    int32_t puts_written_now;
    int64_t puts_queued, puts_finished; /* so far */

    struct cache_key *reads; /* [read_capacity], a ring; NULL when nothing can be brought into memory */
    bool *taken;             /* [read_capacity]: the caller reads it itself */
    int32_t read_capacity, read_begin, read_count;
    struct cache_key reading[RUN];
    int32_t reading_count;

    struct cache_counts counts; /* of the caller's thread */
    _Atomic int64_t dropped;    /* by the writing thread */
};

static uint8_t bit(int tier) {
    return (uint8_t)(1u << tier);
}

/* ---- the writing thread ---- */

/* Queues a payload for file tiers; false when the queue is full. May be called by any thread. */
static bool queue_put(struct cache *cache, int32_t slot, const struct pending_put *put) {
    pthread_mutex_lock(&cache->lock);
    bool room = cache->put_count + cache->puts_written_now < cache->put_capacity;
    if (room) {
        struct pending_put *place =
            &cache->puts[(cache->put_begin + cache->put_count++) % cache->put_capacity];
        *place = *put;
        place->slot = slot;
        cache->puts_queued++;
        memory_retain(cache->memory, slot);
        pthread_cond_signal(&cache->put_came);
    }
    pthread_mutex_unlock(&cache->lock);
    if (room)
        memory_mark(cache->memory, &put->key, put->tiers, 0);
    return room;
}

static void write_to_tier(struct cache *cache, int tier, const struct pending_put *batch, int32_t count) {
    struct store_put puts[BATCH];
    int32_t wanted = 0;
    for (int32_t i = 0; i < count; i++)
        if (batch[i].tiers & bit(tier))
            puts[wanted++] = (struct store_put){.key = batch[i].key,
                .entry = batch[i].entry,
                .created = batch[i].created,
                .payload = memory_payload(cache->memory, batch[i].slot)};
    if (wanted == 0)
        return;
    int32_t there = store_append(cache->stores[tier], &cache->space, puts, wanted);
    if (there == wanted)
        return;
    atomic_fetch_add(&cache->dropped, wanted - there);
    for (int32_t i = 0; i < wanted; i++) /* so that a later put tries again */
        memory_mark(cache->memory, &puts[i].key, 0, bit(tier));
}

static void write_batch(struct cache *cache, const struct pending_put *batch, int32_t count) {
    int32_t slots[BATCH];
    for (int tier = CACHE_TIER_LOCAL; tier < CACHE_TIERS; tier++)
        if (cache->stores[tier])
            write_to_tier(cache, tier, batch, count);
    for (int32_t i = 0; i < count; i++)
        slots[i] = batch[i].slot;
    memory_release_run(cache->memory, slots, count);
}

static void settle(struct cache *cache) {
    for (int tier = CACHE_TIER_LOCAL; tier < CACHE_TIERS; tier++) {
        if (!cache->stores[tier])
            continue;
        store_settle(cache->stores[tier]);
        if (store_upkeep_due(cache->stores[tier]))
            store_upkeep(cache->stores[tier], -1, 0);
    }
}

/* Waits for puts, until it is time to settle; with the lock held. */
static void wait_for_puts(struct cache *cache, double settle_at) {
    struct timespec end = {.tv_sec = (time_t)settle_at + 1};
    while (cache->put_count == 0 && !cache->closing)
        if (pthread_cond_timedwait(&cache->put_came, &cache->lock, &end))
            return;
}

static int32_t take_puts(struct cache *cache, struct pending_put *batch) {
    int32_t count = cache->put_count < BATCH ? cache->put_count : BATCH;
    for (int32_t i = 0; i < count; i++)
        batch[i] = cache->puts[(cache->put_begin + i) % cache->put_capacity];
    cache->put_begin = (cache->put_begin + count) % cache->put_capacity;
    cache->put_count -= count;
    cache->puts_written_now = count;
    return count;
}

static void *write_behind(void *argument) {
    struct cache *cache = argument;
    static _Thread_local struct pending_put batch[BATCH];
    double settle_at = wall_clock() + SETTLE_SECONDS;
    pthread_mutex_lock(&cache->lock);
    while (!cache->closing || cache->put_count > 0) {
        wait_for_puts(cache, settle_at);
        int32_t count = take_puts(cache, batch);
        pthread_mutex_unlock(&cache->lock);
        if (count > 0)
            write_batch(cache, batch, count);
        if (wall_clock() >= settle_at) {
            settle(cache);
            settle_at = wall_clock() + SETTLE_SECONDS;
        }
        pthread_mutex_lock(&cache->lock);
        cache->puts_written_now = 0;
        cache->puts_finished += count;
        pthread_cond_broadcast(&cache->put_done);
    }
    pthread_mutex_unlock(&cache->lock);
    return NULL;
}

/* ---- from files to memory ---- */

static struct memory_note note_of(const struct index_entry *entry, int tier) {
    return (struct memory_note){.entry = {.traffic = (enum cache_traffic)entry->traffic,
                                    .first_token = entry->first_token,
                                    .cost_seconds = entry->cost_seconds},
        .created = entry->created,
        .origin = (enum cache_tier)tier,
        .tiers = bit(tier)};
}

/* Into the memory tier, and into the local folder what came from the shared one. */
static void promote(struct cache *cache, int32_t slot, const struct cache_key *key,
    const struct memory_note *note, int tier) {
    struct pending_put put = {.key = *key,
        .entry = note->entry,
        .created = note->created,
        .tiers = cache->file_tiers & (uint8_t)(bit(tier) - 1)};
    memory_publish(cache->memory, slot, key, note);
    if (put.tiers)
        (void)queue_put(cache, slot, &put); /* a full queue: it stays in the shared folder alone */
}

/* store_find, cut at an entry of another size: its payload would not fit its place. */
static int32_t find_entries(const struct cache *cache, int tier, const struct cache_key *keys, int32_t count,
    struct index_entry *entries) {
    int32_t found = store_find(cache->stores[tier], keys, count, entries), fit = 0;
    while (fit < found && entries[fit].bytes == cache->payload_bytes)
        fit++;
    return fit;
}

/* Brings leading keys from one tier into memory; returns how many. */
static int32_t load_from(struct cache *cache, int tier, const struct cache_key *keys, int32_t count) {
    struct index_entry entries[RUN];
    uint8_t *payloads[RUN];
    int32_t slots[RUN], reserved = 0;
    int32_t found = find_entries(cache, tier, keys, count < RUN ? count : RUN, entries);
    for (; reserved < found; reserved++) {
        slots[reserved] = memory_reserve(cache->memory);
        if (slots[reserved] < 0)
            break;
        payloads[reserved] = memory_payload(cache->memory, slots[reserved]);
    }
    int32_t good = store_read(cache->stores[tier], keys, entries, reserved, payloads);
    for (int32_t i = 0; i < good && i < reserved; i++) {
        struct memory_note note = note_of(&entries[i], tier);
        promote(cache, slots[i], &keys[i], &note, tier);
    }
    memory_release_run(cache->memory, slots, reserved);
    return good;
}

/* Passes over keys that are in memory by now, or nowhere. */
static void load(struct cache *cache, const struct cache_key *keys, int32_t count) {
    for (int32_t at = 0; at < count;) {
        int32_t there = memory_match(cache->memory, keys + at, count - at), loaded = 0;
        at += there;
        for (int tier = CACHE_TIER_LOCAL; tier < CACHE_TIERS && loaded == 0 && at < count; tier++)
            if (cache->stores[tier])
                loaded = load_from(cache, tier, keys + at, count - at);
        at += loaded > 0 ? loaded : there == 0;
    }
}

/* The next keys that the caller has not taken over, to `reading`; with the lock held. */
static void take_reads(struct cache *cache) {
    int32_t most = (int32_t)(RUN_BYTES / cache->payload_bytes);
    most = most < 1 ? 1 : most < RUN ? most : RUN;
    cache->reading_count = 0;
    while (cache->read_count > 0 && cache->reading_count < most) {
        if (!cache->taken[cache->read_begin])
            cache->reading[cache->reading_count++] = cache->reads[cache->read_begin];
        cache->read_begin = (cache->read_begin + 1) % cache->read_capacity;
        cache->read_count--;
    }
}

static void *read_ahead(void *argument) {
    struct cache *cache = argument;
    pthread_mutex_lock(&cache->lock);
    while (!cache->closing) {
        if (cache->read_count == 0) {
            pthread_cond_wait(&cache->read_came, &cache->lock);
            continue;
        }
        take_reads(cache);
        pthread_mutex_unlock(&cache->lock);
        load(cache, cache->reading, cache->reading_count);
        pthread_mutex_lock(&cache->lock);
        cache->reading_count = 0;
        pthread_cond_broadcast(&cache->read_done);
    }
    pthread_mutex_unlock(&cache->lock);
    return NULL;
}

/* ---- opening ---- */

static enum result check_limit(const struct cache_options *options, const char *folder, int64_t limit) {
    int64_t least = SEGMENT_HEADER_BYTES + LEAST_RECORDS * segment_stride(options->space.payload_bytes);
    if (folder && limit < least)
        return fail(ERROR_USAGE,
            "%s: a prefix cache's folder with blocks of %lld bytes needs a limit of at least %lld bytes, not "
            "%lld",
            folder, (long long)options->space.payload_bytes, (long long)least, (long long)limit);
    return OK;
}

static enum result check_options(const struct cache_options *options) {
    struct stat local, shared;
    if (options->space.payload_bytes < 1 || options->space.payload_bytes > SEGMENT_MOST_PAYLOAD)
        return fail(ERROR_USAGE, "the prefix cache takes blocks of 1 to %d bytes, not %lld",
            SEGMENT_MOST_PAYLOAD, (long long)options->space.payload_bytes);
    if (options->space.block_tokens < 1)
        return fail(ERROR_USAGE, "the prefix cache takes blocks of at least 1 token, not %d",
            options->space.block_tokens);
    if (options->memory_bytes < 0)
        return fail(ERROR_USAGE, "the prefix cache's memory limit is negative");
    TRY(check_limit(options, options->local, options->local_bytes));
    TRY(check_limit(options, options->shared, options->shared_bytes));
    if (options->local && options->shared &&
        (!strcmp(options->local, options->shared) ||
            (!stat(options->local, &local) && !stat(options->shared, &shared) &&
                local.st_dev == shared.st_dev && local.st_ino == shared.st_ino)))
        return fail(ERROR_USAGE, "%s: the prefix cache's local and shared folder are one", options->local);
    return OK;
}

/* A folder that does not work costs its tier, not the run, unless it is most likely named wrongly. */
static enum result open_tier(struct cache *cache, enum cache_tier tier, const char *folder, int64_t limit) {
    if (!folder)
        return OK;
    struct store_options options = {.folder = folder, .limit = limit, .policy = cache->policy};
    enum result status = store_open(&options, &cache->stores[tier]);
    if (status == OK) {
        cache->file_tiers |= bit((int)tier);
        return OK;
    }
    struct stat found;
    if (status == ERROR_USAGE || status == ERROR_MEMORY ||
        (errno != ENOSPC && errno != EDQUOT && stat(folder, &found)))
        return status;
    log_warning("prefix cache: the %s folder is left out: %s", tier_names[tier], failure_message());
    return OK;
}

static enum result allocate_queues(struct cache *cache) {
    int64_t fit = QUEUE_BYTES / cache->payload_bytes;
    cache->put_capacity = fit < LEAST_QUEUE ? LEAST_QUEUE : fit < MOST_QUEUE ? (int32_t)fit : MOST_QUEUE;
    cache->puts = malloc((size_t)cache->put_capacity * sizeof *cache->puts);
    if (!cache->puts)
        return fail(ERROR_MEMORY, "no memory for the prefix cache's queue");
    if (cache->kept < 2)
        return OK;
    /* No more than half of what memory keeps: a prefetch must not push out what it brought before it is used. */
    cache->read_capacity = cache->kept / 2 < MOST_PREFETCH ? cache->kept / 2 : MOST_PREFETCH;
    cache->reads = malloc((size_t)cache->read_capacity * sizeof *cache->reads);
    cache->taken = malloc((size_t)cache->read_capacity * sizeof *cache->taken);
    return cache->reads && cache->taken ? OK : fail(ERROR_MEMORY, "no memory for the prefix cache's queue");
}

/* Signals are the main thread's: the cache's threads block all. */
static enum result start_thread(struct cache *cache, pthread_t *thread, void *(*run)(void *), bool *runs) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, cache);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    *runs = error == 0;
    errno = error;
    return error ? fail_errno(ERROR_MEMORY, "a thread of the prefix cache") : OK;
}

static enum result open_all(struct cache *cache, const struct cache_options *options) {
    TRY(open_tier(cache, CACHE_TIER_LOCAL, options->local, options->local_bytes));
    TRY(open_tier(cache, CACHE_TIER_SHARED, options->shared, options->shared_bytes));
    TRY(allocate_queues(cache));
    TRY(memory_create(&cache->policy, cache->payload_bytes, cache->kept,
        (cache->file_tiers ? cache->put_capacity + 2 * RUN : 0) + 1, &cache->memory));
    if (!cache->file_tiers)
        return OK;
    TRY(start_thread(cache, &cache->writer, write_behind, &cache->writer_runs));
    return cache->reads ? start_thread(cache, &cache->reader, read_ahead, &cache->reader_runs) : OK;
}

enum result cache_open(const struct cache_options *options, struct cache **cache) {
    TRY(check_options(options));
    struct cache *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "no memory for the prefix cache");
    made->policy = policy_make(options->eviction, options->keep_hours);
    made->payload_bytes = options->space.payload_bytes;
    segment_header_make(&options->space, "", &made->space);
    int64_t kept = options->memory_bytes / made->payload_bytes;
    made->kept = kept < INT32_MAX / 4 ? (int32_t)kept : INT32_MAX / 4;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->put_came, NULL);
    pthread_cond_init(&made->put_done, NULL);
    pthread_cond_init(&made->read_came, NULL);
    pthread_cond_init(&made->read_done, NULL);
    enum result status = open_all(made, options);
    if (status != OK)
        cache_close(made);
    else
        *cache = made;
    return status;
}

void cache_close(struct cache *cache) {
    if (!cache)
        return;
    pthread_mutex_lock(&cache->lock);
    cache->closing = true;
    pthread_cond_broadcast(&cache->put_came);
    pthread_cond_broadcast(&cache->read_came);
    pthread_mutex_unlock(&cache->lock);
    if (cache->reader_runs) /* first: it queues puts */
        pthread_join(cache->reader, NULL);
    if (cache->writer_runs)
        pthread_join(cache->writer, NULL);
    for (int tier = 0; tier < CACHE_TIERS; tier++)
        store_close(cache->stores[tier]);
    memory_free(cache->memory);
    pthread_cond_destroy(&cache->put_came);
    pthread_cond_destroy(&cache->put_done);
    pthread_cond_destroy(&cache->read_came);
    pthread_cond_destroy(&cache->read_done);
    pthread_mutex_destroy(&cache->lock);
    free(cache->puts);
    free(cache->reads);
    free(cache->taken);
    free(cache);
}

/* ---- looking up ---- */

int32_t cache_match(struct cache *cache, const struct cache_key *keys, int32_t count) {
    int32_t matched = 0;
    for (int32_t before = -1; matched < count && matched > before;) {
        before = matched;
        matched += memory_match(cache->memory, keys + matched, count - matched);
        for (int tier = CACHE_TIER_LOCAL; tier < CACHE_TIERS; tier++)
            if (cache->stores[tier])
                matched += store_find(cache->stores[tier], keys + matched, count - matched, NULL);
    }
    return matched;
}

void cache_prefetch(struct cache *cache, const struct cache_key *keys, int32_t count) {
    if (!cache->reader_runs)
        return;
    for (int32_t at = 0; at < count; at++) {
        at += memory_match(cache->memory, keys + at, count - at);
        if (at == count)
            break;
        pthread_mutex_lock(&cache->lock);
        bool room = cache->read_count < cache->read_capacity;
        if (room) {
            int32_t place = (cache->read_begin + cache->read_count++) % cache->read_capacity;
            cache->reads[place] = keys[at];
            cache->taken[place] = false;
            pthread_cond_signal(&cache->read_came);
        }
        pthread_mutex_unlock(&cache->lock);
        if (!room)
            return;
    }
}

/* ---- getting ---- */

static void count_uses(struct cache *cache, const struct cache_key *keys, int32_t count) {
    for (int tier = CACHE_TIER_LOCAL; tier < CACHE_TIERS; tier++)
        if (cache->stores[tier])
            store_use(cache->stores[tier], keys, count);
}

static int32_t copy_from_memory(
    struct cache *cache, const struct cache_key *keys, int32_t count, uint8_t *payloads) {
    bool past_caches = count * cache->payload_bytes > CACHED_BYTES;
    int32_t slots[RUN];
    struct memory_note notes[RUN];
    int32_t found = memory_find_run(cache->memory, keys, count < RUN ? count : RUN, slots, notes);
    for (int32_t i = 0; i < found; i++) {
        const uint8_t *payload = memory_payload(cache->memory, slots[i]);
        if (past_caches)
            memory_copy_past_caches(payloads + i * cache->payload_bytes, payload, cache->payload_bytes);
        else
            memcpy(payloads + i * cache->payload_bytes, payload, (size_t)cache->payload_bytes);
        cache->counts.tiers[notes[i].origin].hits++;
        cache->counts.seconds_saved += (double)notes[i].entry.cost_seconds;
    }
    memory_release_run(cache->memory, slots, found);
    count_uses(cache, keys, found);
    return found;
}

/* The caller reads keys itself: those that are queued for the reading thread are taken from it, and for one that it is reading
 * right now it is waited: true then, for the key may be in memory. Keys come in the order in which they were asked for, so
 * the first one's place tells the others'. */
static bool take_over(struct cache *cache, const struct cache_key *keys, int32_t count) {
    bool waited = false;
    if (!cache->reader_runs)
        return false;
    pthread_mutex_lock(&cache->lock);
    for (int32_t i = 0; i < cache->reading_count && !waited; i++)
        waited = cache_key_equal(&cache->reading[i], &keys[0]);
    if (waited)
        while (cache->reading_count > 0)
            pthread_cond_wait(&cache->read_done, &cache->lock);
    int32_t at = 0;
    while (!waited && at < cache->read_count &&
           !cache_key_equal(&cache->reads[(cache->read_begin + at) % cache->read_capacity], &keys[0]))
        at++;
    for (int32_t i = 0; !waited && i < count && at < cache->read_count; i++, at++) {
        int32_t place = (cache->read_begin + at) % cache->read_capacity;
        if (!cache_key_equal(&cache->reads[place], &keys[i]))
            break;
        cache->taken[place] = true;
    }
    pthread_mutex_unlock(&cache->lock);
    return waited;
}

/* A copy of a payload that was read, for the tiers above. */
static void keep_copy(struct cache *cache, const struct cache_key *key, const struct index_entry *entry,
    int tier, const uint8_t *payload) {
    struct memory_note note = note_of(entry, tier);
    note.origin = CACHE_TIER_MEMORY; /* its hit is counted */
    if (cache->kept == 0 && !(cache->file_tiers & (bit(tier) - 1)))
        return;
    int32_t slot = memory_reserve(cache->memory);
    if (slot < 0)
        return;
    memory_copy_past_caches(memory_payload(cache->memory, slot), payload, cache->payload_bytes);
    promote(cache, slot, key, &note, tier);
    memory_release(cache->memory, slot);
}

/* Leading keys from one tier into the caller's place; returns how many. */
static int32_t read_from(
    struct cache *cache, int tier, const struct cache_key *keys, int32_t count, uint8_t *payloads) {
    struct index_entry entries[RUN];
    uint8_t *places[RUN];
    int32_t found = find_entries(cache, tier, keys, count, entries);
    for (int32_t i = 0; i < found; i++)
        places[i] = payloads + i * cache->payload_bytes;
    int32_t good = store_read(cache->stores[tier], keys, entries, found, places);
    for (int32_t i = 0; i < good; i++) {
        keep_copy(cache, &keys[i], &entries[i], tier, places[i]);
        cache->counts.seconds_saved += (double)entries[i].cost_seconds;
    }
    cache->counts.tiers[tier].hits += good;
    count_uses(cache, keys, good);
    return good;
}

static int32_t read_run(struct cache *cache, const struct cache_key *keys, int32_t count, uint8_t *payloads) {
    int32_t most = (int32_t)(RUN_BYTES / cache->payload_bytes), good = 0, run = 1;
    most = most < 1 ? 1 : most < RUN ? most : RUN;
    run += memory_match_absent(cache->memory, keys + 1, (count < most ? count : most) - 1);
    if (take_over(cache, keys, run)) {
        good = copy_from_memory(cache, keys, count, payloads);
        run = 1; /* others may have come into memory, too */
    }
    for (int tier = CACHE_TIER_LOCAL; tier < CACHE_TIERS && good == 0; tier++)
        if (cache->stores[tier])
            good = read_from(cache, tier, keys, run, payloads);
    return good;
}

enum result cache_get(
    struct cache *cache, const struct cache_key *keys, int32_t count, void *payloads, int32_t *found) {
    int32_t done = 0;
    for (int32_t got = 1; done < count && got > 0; done += got) {
        uint8_t *place = (uint8_t *)payloads + done * cache->payload_bytes;
        got = copy_from_memory(cache, keys + done, count - done, place);
        if (got == 0 && cache->file_tiers)
            got = read_run(cache, keys + done, count - done, place);
    }
    cache->counts.misses += count - done;
    *found = done;
    return OK;
}

/* ---- putting ---- */

/* File tiers without the key. */
static uint8_t missing_tiers(struct cache *cache, const struct cache_key *key) {
    uint8_t missing = 0;
    for (int tier = CACHE_TIER_LOCAL; tier < CACHE_TIERS; tier++)
        if (cache->stores[tier] && store_find(cache->stores[tier], key, 1, NULL) == 0)
            missing |= bit(tier);
    return missing;
}

/* It is in memory: its slot goes to the file tiers that do not have it, which a full queue or disk has left out. */
static void put_again(
    struct cache *cache, int32_t slot, struct pending_put *put, const struct memory_note *note) {
    put->tiers = cache->file_tiers & (uint8_t)~note->tiers;
    if (put->tiers) {
        put->tiers = missing_tiers(cache, &put->key);
        put->created = note->created;
        if (put->tiers && !queue_put(cache, slot, put))
            cache->counts.dropped++;
    }
    count_uses(cache, &put->key, 1);
}

static void put_new(struct cache *cache, struct pending_put *put, const void *payload) {
    put->tiers = missing_tiers(cache, &put->key);
    if (cache->file_tiers && !put->tiers) {
        count_uses(cache, &put->key, 1);
        return;
    }
    int32_t slot = memory_reserve(cache->memory);
    if (slot < 0) {
        cache->counts.dropped++;
        return;
    }
    struct memory_note note = {.entry = put->entry,
        .created = put->created,
        .origin = CACHE_TIER_MEMORY,
        .tiers = cache->file_tiers & (uint8_t)~put->tiers};
    memory_copy_past_caches(memory_payload(cache->memory, slot), payload, cache->payload_bytes);
    memory_publish(cache->memory, slot, &put->key, &note);
    bool queued = put->tiers && queue_put(cache, slot, put);
    if (put->tiers && !queued)
        cache->counts.dropped++;
    if (queued || cache->kept > 0)
        cache->counts.puts++;
    memory_release(cache->memory, slot);
}

void cache_put(
    struct cache *cache, const struct cache_key *key, const struct cache_entry *entry, const void *payload) {
    struct pending_put put = {.key = *key, .entry = *entry, .created = wall_clock()};
    struct memory_note note;
    int32_t slot = memory_find(cache->memory, key, &note);
    if (slot < 0) {
        put_new(cache, &put, payload);
        return;
    }
    put_again(cache, slot, &put, &note);
    memory_release(cache->memory, slot);
}

enum result cache_flush(struct cache *cache) {
    pthread_mutex_lock(&cache->lock);
    int64_t wanted = cache->puts_queued;
    while (cache->puts_finished < wanted)
        pthread_cond_wait(&cache->put_done, &cache->lock);
    pthread_mutex_unlock(&cache->lock);
    return OK;
}

/* ---- counts ---- */

void cache_counts(struct cache *cache, struct cache_counts *counts) {
    struct memory_counts memory;
    memory_counts(cache->memory, &memory);
    *counts = cache->counts;
    counts->tiers[CACHE_TIER_MEMORY].entries = memory.entries;
    counts->tiers[CACHE_TIER_MEMORY].bytes = memory.bytes;
    counts->tiers[CACHE_TIER_MEMORY].evicted = memory.evicted;
    counts->dropped += cache->dropped;
    for (int tier = CACHE_TIER_LOCAL; tier < CACHE_TIERS; tier++) {
        struct store_counts store;
        if (!cache->stores[tier])
            continue;
        store_counts(cache->stores[tier], &store);
        counts->tiers[tier].entries = store.entries;
        counts->tiers[tier].bytes = store.bytes;
        counts->tiers[tier].written = store.written;
        counts->tiers[tier].read = store.read;
        counts->tiers[tier].evicted = store.evicted;
        counts->damaged += store.damaged;
    }
}

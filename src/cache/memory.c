#include "cache/memory.h"

#include "base/clock.h"
#include "cache/keys.h"

#include <pthread.h>  /* pthread_mutex_t */
#include <stdlib.h>   /* calloc, free */
#include <string.h>   /* memcpy */
#include <sys/mman.h> /* mmap */
#ifdef __SSE2__
#include <emmintrin.h> /* _mm_stream_si128 */
#endif

enum {
    NOBODY = -1,
    SLOT_ALIGNMENT = 64,
    SAMPLE = 64, /* entries among which an eviction chooses */
};

struct slot {
    struct cache_key key;
    struct memory_note note;
    double last_used;
    int64_t uses;
    int32_t references; /* with the table's own */
    bool kept;          /* in the table */
};

struct memory {
    pthread_mutex_t lock; /* of all below but the payloads of slots that are referred to */
    struct policy policy;
    int64_t payload_bytes, stride;
    uint8_t *arena; /* [slots, stride] */
    struct slot *slots;
    int32_t *unused;  /* the first `unused_count` are slots without references */
    int32_t *buckets; /* [bucket_mask + 1]: open addressing, slot or NOBODY */
    uint64_t bucket_mask;
    int32_t slot_count, unused_count;
    int32_t kept, kept_most;
    int32_t hand; /* where the next eviction begins to look */
    int64_t evicted;
};

/* ---- the arena ---- */

static enum result allocate_arena(struct memory *memory) {
    size_t bytes = (size_t)memory->slot_count * (size_t)memory->stride;
    memory->arena =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory->arena == MAP_FAILED) {
        memory->arena = NULL;
        return fail_errno(ERROR_MEMORY, "%zu bytes for the prefix cache: lower its memory limit", bytes);
    }
    madvise(memory->arena, bytes,
        MADV_HUGEPAGE); /* a wish: fewer page faults and misses of address translation */
    return OK;
}

static enum result allocate(struct memory *memory) {
    uint64_t buckets = 16;
    while (buckets < 2 * (uint64_t)memory->slot_count)
        buckets *= 2;
    memory->bucket_mask = buckets - 1;
    memory->buckets = malloc(buckets * sizeof *memory->buckets);
    memory->slots = calloc((size_t)memory->slot_count, sizeof *memory->slots);
    memory->unused = malloc((size_t)memory->slot_count * sizeof *memory->unused);
    if (!memory->buckets || !memory->slots || !memory->unused)
        return fail(
            ERROR_MEMORY, "no memory for the tables of %d blocks of the prefix cache", memory->slot_count);
    for (uint64_t i = 0; i < buckets; i++)
        memory->buckets[i] = NOBODY;
    for (int32_t i = 0; i < memory->slot_count; i++)
        memory->unused[i] = memory->slot_count - 1 - i; /* low slots first: fewer pages touched */
    memory->unused_count = memory->slot_count;
    return allocate_arena(memory);
}

enum result memory_create(const struct policy *policy, int64_t payload_bytes, int32_t kept, int32_t passing,
    struct memory **memory) {
    struct memory *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "no memory for the prefix cache");
    made->policy = *policy;
    made->payload_bytes = payload_bytes;
    made->stride = (payload_bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    made->kept_most = kept;
    made->slot_count = kept + passing;
    pthread_mutex_init(&made->lock, NULL);
    enum result status = allocate(made);
    if (status != OK)
        memory_free(made);
    else
        *memory = made;
    return status;
}

void memory_free(struct memory *memory) {
    if (!memory)
        return;
    if (memory->arena)
        munmap(memory->arena, (size_t)memory->slot_count * (size_t)memory->stride);
    pthread_mutex_destroy(&memory->lock);
    free(memory->buckets);
    free(memory->slots);
    free(memory->unused);
    free(memory);
}

uint8_t *memory_payload(const struct memory *memory, int32_t slot) {
    return memory->arena + slot * memory->stride;
}

/* ---- the table; its functions are called with the lock held ---- */

static uint64_t home_of(const struct memory *memory, const struct cache_key *key) {
    uint64_t hash;
    memcpy(&hash, key->bytes, sizeof hash); /* keys are hashes */
    return hash & memory->bucket_mask;
}

/* The key's bucket, or the empty one where it would go. */
static uint64_t bucket_of(const struct memory *memory, const struct cache_key *key) {
    uint64_t at = home_of(memory, key);
    while (memory->buckets[at] != NOBODY && !cache_key_equal(&memory->slots[memory->buckets[at]].key, key))
        at = (at + 1) & memory->bucket_mask;
    return at;
}

static int32_t slot_of(const struct memory *memory, const struct cache_key *key) {
    return memory->buckets[bucket_of(memory, key)];
}

/* Empties a bucket and moves later ones of its run up, so that every search still meets no gap. */
static void empty_bucket(struct memory *memory, uint64_t gap) {
    uint64_t mask = memory->bucket_mask;
    for (uint64_t at = (gap + 1) & mask; memory->buckets[at] != NOBODY; at = (at + 1) & mask) {
        uint64_t home = home_of(memory, &memory->slots[memory->buckets[at]].key);
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            memory->buckets[gap] = memory->buckets[at];
            gap = at;
        }
    }
    memory->buckets[gap] = NOBODY;
}

static void drop_reference(struct memory *memory, int32_t slot) {
    if (--memory->slots[slot].references == 0)
        memory->unused[memory->unused_count++] = slot;
}

static void leave_table(struct memory *memory, int32_t slot) {
    empty_bucket(memory, bucket_of(memory, &memory->slots[slot].key));
    memory->slots[slot].kept = false;
    memory->kept--;
    drop_reference(memory, slot);
}

static double worth_of(const struct memory *memory, const struct slot *slot, double now) {
    struct policy_facts facts = {.created = slot->note.created,
        .last_used = slot->last_used,
        .uses = slot->uses,
        .bytes = memory->payload_bytes,
        .cost_seconds = slot->note.entry.cost_seconds,
        .first_token = slot->note.entry.first_token,
        .traffic = slot->note.entry.traffic};
    policy_align_times(&facts);
    return policy_worth(&memory->policy, &facts, now);
}

/* Of the next SAMPLE kept slots the one that goes first leaves the table: close to the best choice among all, at a cost
 * that does not grow with their number. With `free_only`, of those that nobody else refers to. False when there is none. */
static bool evict(struct memory *memory, bool free_only) {
    int32_t chosen = NOBODY, seen = 0;
    double least = 0, now = wall_clock();
    for (int32_t i = 0; i < memory->slot_count && seen < SAMPLE; i++) {
        int32_t slot = memory->hand;
        memory->hand = slot + 1 < memory->slot_count ? slot + 1 : 0;
        const struct slot *looked = &memory->slots[slot];
        if (!looked->kept || (free_only && looked->references > 1))
            continue;
        seen++;
        double worth = worth_of(memory, looked, now);
        if (chosen == NOBODY || policy_before(worth, looked->note.entry.first_token, least,
                                    memory->slots[chosen].note.entry.first_token)) {
            chosen = slot;
            least = worth;
        }
    }
    if (chosen == NOBODY)
        return false;
    leave_table(memory, chosen);
    memory->evicted++;
    return true;
}

/* A slot with a reference for the caller. */
static int32_t use(struct memory *memory, const struct cache_key *key, double now, struct memory_note *note) {
    int32_t found = slot_of(memory, key);
    if (found == NOBODY)
        return NOBODY;
    struct slot *slot = &memory->slots[found];
    slot->references++;
    slot->uses++;
    slot->last_used = now;
    if (note)
        *note = slot->note;
    slot->note.origin = CACHE_TIER_MEMORY;
    return found;
}

/* ---- what others call ---- */

int32_t memory_reserve(struct memory *memory) {
    int32_t slot = NOBODY;
    pthread_mutex_lock(&memory->lock);
    if (memory->unused_count > 0 || evict(memory, true)) {
        slot = memory->unused[--memory->unused_count];
        memory->slots[slot] = (struct slot){.references = 1};
    }
    pthread_mutex_unlock(&memory->lock);
    return slot;
}

void memory_retain(struct memory *memory, int32_t slot) {
    pthread_mutex_lock(&memory->lock);
    memory->slots[slot].references++;
    pthread_mutex_unlock(&memory->lock);
}

void memory_release(struct memory *memory, int32_t slot) {
    memory_release_run(memory, &slot, 1);
}

void memory_release_run(struct memory *memory, const int32_t *slots, int32_t count) {
    pthread_mutex_lock(&memory->lock);
    for (int32_t i = 0; i < count; i++)
        drop_reference(memory, slots[i]);
    pthread_mutex_unlock(&memory->lock);
}

void memory_publish(
    struct memory *memory, int32_t slot, const struct cache_key *key, const struct memory_note *note) {
    if (memory->kept_most == 0)
        return;
    pthread_mutex_lock(&memory->lock);
    if (slot_of(memory, key) == NOBODY) {
        if (memory->kept == memory->kept_most)
            evict(memory, false);
        struct slot *kept = &memory->slots[slot];
        kept->key = *key;
        kept->note = *note;
        kept->last_used = wall_clock();
        kept->kept = true;
        kept->references++;
        memory->buckets[bucket_of(memory, key)] = slot;
        memory->kept++;
    }
    pthread_mutex_unlock(&memory->lock);
}

int32_t memory_find(struct memory *memory, const struct cache_key *key, struct memory_note *note) {
    double now = wall_clock();
    pthread_mutex_lock(&memory->lock);
    int32_t slot = use(memory, key, now, note);
    pthread_mutex_unlock(&memory->lock);
    return slot;
}

int32_t memory_find_run(struct memory *memory, const struct cache_key *keys, int32_t count, int32_t *slots,
    struct memory_note *notes) {
    int32_t found = 0;
    double now = wall_clock();
    pthread_mutex_lock(&memory->lock);
    while (found < count && (slots[found] = use(memory, &keys[found], now, &notes[found])) != NOBODY)
        found++;
    pthread_mutex_unlock(&memory->lock);
    return found;
}

static int32_t match(struct memory *memory, const struct cache_key *keys, int32_t count, bool there) {
    int32_t matched = 0;
    pthread_mutex_lock(&memory->lock);
    while (matched < count && (slot_of(memory, &keys[matched]) != NOBODY) == there)
        matched++;
    pthread_mutex_unlock(&memory->lock);
    return matched;
}

int32_t memory_match(struct memory *memory, const struct cache_key *keys, int32_t count) {
    return match(memory, keys, count, true);
}

int32_t memory_match_absent(struct memory *memory, const struct cache_key *keys, int32_t count) {
    return match(memory, keys, count, false);
}

void memory_copy_past_caches(void *to, const void *from, int64_t bytes) {
    size_t left = (size_t)bytes;
#ifdef __SSE2__ /* every x86-64 */
    enum { LINE = 64, WORDS = LINE / sizeof(__m128i) };
    char *place = to;
    const char *source = from;
    size_t before = -(uintptr_t)place % LINE;
    if (left < LINE + before) {
        memcpy(to, from, left);
        return;
    }
    memcpy(place, source, before);
    place += before, source += before, left -= before;
    for (; left >= LINE; left -= LINE, place += LINE, source += LINE)
        for (int i = 0; i < WORDS; i++)
            _mm_stream_si128(
                (__m128i *)(void *)place + i, _mm_loadu_si128((const __m128i *)(const void *)source + i));
    memcpy(place, source, left);
    _mm_sfence(); /* other threads see it with what is stored after it */
#else
    memcpy(to, from, left);
#endif
}

void memory_mark(struct memory *memory, const struct cache_key *key, uint8_t set, uint8_t clear) {
    pthread_mutex_lock(&memory->lock);
    int32_t slot = slot_of(memory, key);
    if (slot != NOBODY)
        memory->slots[slot].note.tiers = (uint8_t)((memory->slots[slot].note.tiers & ~clear) | set);
    pthread_mutex_unlock(&memory->lock);
}

void memory_counts(struct memory *memory, struct memory_counts *counts) {
    pthread_mutex_lock(&memory->lock);
    *counts = (struct memory_counts){
        .entries = memory->kept, .bytes = memory->kept * memory->payload_bytes, .evicted = memory->evicted};
    pthread_mutex_unlock(&memory->lock);
}

/* Payloads in memory: equal slots in one arena, shared by reference count, and a table of those that the memory tier
 * keeps under its limit.
 *
 * More slots than the tier may keep serve payloads on their way to files and from them. All functions may be called by
 * several threads; a lock is held for table work only, never while payloads are copied or files are waited for. */
#ifndef NOCTURNE_CACHE_MEMORY_H
#define NOCTURNE_CACHE_MEMORY_H

#include "cache/cache.h"
#include "cache/policy.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* uint8_t, int32_t, int64_t */

struct memory;

/* `kept`: slots the tier may keep, 0 allowed; `passing`: further slots. The arena takes real memory as it is used.
 * ERROR_MEMORY. */
MUST_CHECK enum result memory_create(const struct policy *policy, int64_t payload_bytes, int32_t kept,
    int32_t passing, struct memory **memory);
void memory_free(struct memory *memory); /* NULL is allowed */

/* A slot of undefined content with one reference, which is the caller's; makes room by eviction when it must. -1 when all
 * slots are referred to. */
int32_t memory_reserve(struct memory *memory);
uint8_t *memory_payload(const struct memory *memory, int32_t slot); /* [payload_bytes] */
void memory_retain(struct memory *memory, int32_t slot);
void memory_release(struct memory *memory, int32_t slot);

/* What the table knows of a payload besides its bytes. */
struct memory_note {
    struct cache_entry entry;
    double created; /* seconds since 1970 */
    enum cache_tier
        origin;    /* the tier it was brought from, CACHE_TIER_MEMORY for a put or once it was used here */
    uint8_t tiers; /* 1 << tier: file tiers that hold it or have it on their way */
};

/* Puts a slot into the table; its content is fixed from now on. The caller keeps its own reference. Nothing when the key is
 * there already or `kept` is 0. */
void memory_publish(
    struct memory *memory, int32_t slot, const struct cache_key *key, const struct memory_note *note);

/* Finds a key: its slot with a reference for the caller, counted as used, and its note as it was before; -1 when it is not
 * there. The origin becomes CACHE_TIER_MEMORY. */
int32_t memory_find(struct memory *memory, const struct cache_key *key, struct memory_note *note);

/* memory_find for leading keys, until one is missing or `count`: returns how many. */
int32_t memory_find_run(struct memory *memory, const struct cache_key *keys, int32_t count, int32_t *slots,
    struct memory_note *notes);
void memory_release_run(struct memory *memory, const int32_t *slots, int32_t count);

/* How many leading keys are there; how many are not. */
int32_t memory_match(struct memory *memory, const struct cache_key *keys, int32_t count);
int32_t memory_match_absent(struct memory *memory, const struct cache_key *keys, int32_t count);

/* memcpy for amounts beyond the processor's caches: what is written is not read into them first, which takes a third of the
 * traffic and more of the time. */
void memory_copy_past_caches(void *to, const void *from, int64_t bytes);

/* Sets or clears bits of a key's note.tiers, when it is there. */
void memory_mark(struct memory *memory, const struct cache_key *key, uint8_t set, uint8_t clear);

struct memory_counts {
    int64_t entries, bytes; /* kept now */
    int64_t evicted;        /* entries, so far */
};
void memory_counts(struct memory *memory, struct memory_counts *counts);

#endif

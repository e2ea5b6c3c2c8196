/* The prefix cache: packed key/value rows of prompts, kept across requests, campaigns and nights.
 *
 * A prompt is cut into blocks of a fixed number of tokens. A block's key is a chain over all that its rows depend on:
 * the cache's space (checkpoint, backend, format) and every token and image from the prompt's begin to the block's
 * end. Payloads are opaque bytes of one size. They lie in up to three tiers: memory of this process, a local folder
 * and a shared folder. Damage of any kind is a miss and a warning, never a wrong payload.
 *
 * The caller's thread never writes files: puts are queued for a thread of the cache, and a put that finds the queue
 * full is dropped and counted. One cache a process; its functions are called from one thread. */
#ifndef NOCTURNE_CACHE_CACHE_H
#define NOCTURNE_CACHE_CACHE_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* uint8_t, int32_t, int64_t */

/* ---- keys ---- */

enum { CACHE_KEY_BYTES = 16 };

struct cache_key {
    uint8_t bytes[CACHE_KEY_BYTES];
};

/* All that rows depend on besides the prompt; rows of two spaces are never mixed. */
struct cache_space {
    const char *fingerprint;     /* of the checkpoint */
    const char *backend;         /* "cpu", "cuda" */
    const char *instruction_set; /* its bits may differ */
    int32_t block_tokens;        /* a multiple of every compress ratio */
    int64_t payload_bytes;       /* of a block */
};

/* An image's part in a prompt: its span of the image token's id. */
struct cache_image {
    uint8_t content[CACHE_KEY_BYTES]; /* identity of its content and of how it was cut into patches */
    int32_t begin, end;               /* positions in the prompt */
};

/* Keys of a prompt's whole blocks: keys[count / block_tokens], for ids [count] and all its images in order of
 * position. */
void cache_keys(const struct cache_space *space, const int32_t *ids, int32_t count,
    const struct cache_image *images, int32_t image_count, struct cache_key *keys);

/* ---- the cache ---- */

/* What kind of traffic a prompt is of: how long its blocks are kept after their last use. */
enum cache_traffic { CACHE_TRAFFIC_OTHER, CACHE_TRAFFIC_AGENT, CACHE_TRAFFIC_CHAT, CACHE_TRAFFIC_KINDS };

/* Which entry goes first when a tier is full. */
enum cache_eviction { CACHE_EVICT_LEAST_VALUE, CACHE_EVICT_LEAST_RECENT, CACHE_EVICT_OLDEST };

struct cache_options {
    struct cache_space space;
    const char *local, *shared;                      /* folders, made when missing; NULL: no such tier */
    int64_t memory_bytes, local_bytes, shared_bytes; /* limits of the tiers */
    double keep_hours[CACHE_TRAFFIC_KINDS];          /* 0: the defaults (72; 72; 168) */
    enum cache_eviction eviction;
};

struct cache;

/* ERROR_USAGE for limits or sizes that make no sense, ERROR_IO when a folder cannot be made, ERROR_MEMORY. A folder that
 * cannot be used for another reason is left out, and a damaged index is set aside and rebuilt from the segments, both with a
 * warning. */
MUST_CHECK enum result cache_open(const struct cache_options *options, struct cache **cache);
/* Waits for the puts on their way (their bytes are down and visible then), and frees all. NULL is allowed. */
void cache_close(struct cache *cache);

/* How many leading keys are in some tier; looks at indexes only. */
int32_t cache_match(struct cache *cache, const struct cache_key *keys, int32_t count);

/* Asks for payloads to be brought into memory; returns at once. */
void cache_prefetch(struct cache *cache, const struct cache_key *keys, int32_t count);

/* Copies the payloads of keys in order to payloads [count, payload_bytes], until one is missing or damaged: *found were
 * copied. Waits for reads on their way, and reads files itself for what nobody asked to be brought into memory. Always OK. */
MUST_CHECK enum result cache_get(
    struct cache *cache, const struct cache_key *keys, int32_t count, void *payloads, int32_t *found);

struct cache_entry {
    enum cache_traffic traffic;
    int32_t first_token; /* where the block begins in its prompt */
    float cost_seconds;  /* of computing it again */
};

/* Takes a copy of a payload and returns at once. Keys that are known already only count as used; those that a file tier
 * lacks go there. */
void cache_put(
    struct cache *cache, const struct cache_key *key, const struct cache_entry *entry, const void *payload);

/* Waits until all puts so far are visible; for tests and the end of a phase. */
MUST_CHECK enum result cache_flush(struct cache *cache);

enum cache_tier { CACHE_TIER_MEMORY, CACHE_TIER_LOCAL, CACHE_TIER_SHARED, CACHE_TIERS };

struct cache_counts {
    struct {
        int64_t entries, bytes; /* now */
        int64_t hits;           /* blocks found here by cache_get, or brought from here before it came */
        int64_t written, read;  /* bytes, by this process */
        int64_t evicted;        /* entries, by this process */
    } tiers[CACHE_TIERS];
    int64_t misses;       /* blocks that cache_get did not find */
    int64_t puts;         /* taken */
    int64_t dropped;      /* puts that found the queue full or a disk full */
    int64_t damaged;      /* entries found damaged */
    double seconds_saved; /* cost_seconds of the blocks that were found */
};
void cache_counts(struct cache *cache, struct cache_counts *counts);

#endif

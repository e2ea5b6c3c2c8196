#include "campaign/phase_cache.h"

#include "base/log.h"
#include "model/sequence.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* strtol, strtod */
#include <string.h> /* memcpy, strcmp, strncmp */
#include <xxhash.h>

enum {
    BLOCK_TOKENS = 64, /* see docs/cache.md for how it was chosen */
    DEFAULT_BOUNDED = 128,
    MOST_BOUNDED = 1 << 20,
};

/* ---- options ---- */

void phase_cache_option_rows(struct phase_cache_options *o, struct option *row) {
    static const char *const evictions[] = {"value", "recent", "oldest", NULL};
    *o = (struct phase_cache_options){
        .replay = "exact",
        .shared_limit = (int64_t)1 << 40,
        .local_limit = (int64_t)256 << 30,
        .memory_limit = (int64_t)1 << 30,
        .eviction = CACHE_EVICT_LEAST_VALUE,
    };
    const struct option rows[PHASE_CACHE_OPTIONS] = {
        {.name = "cache",
            .kind = OPTION_TEXT,
            .value = &o->shared,
            .placeholder = "DIR",
            .help =
                "keep rows of prompts in DIR for later campaigns and use those that are there; may be shared "
                "by nodes and campaigns (default: none)"},
        {.name = "cache-local",
            .kind = OPTION_TEXT,
            .value = &o->local,
            .placeholder = "DIR",
            .help = "the same on a disk of the node, asked before --cache (default: none)"},
        {.name = "cache-limit",
            .kind = OPTION_BYTES,
            .value = &o->shared_limit,
            .placeholder = "SIZE",
            .least = 1 << 20,
            .most = INT64_MAX,
            .help = "most bytes in --cache (default: 1T)"},
        {.name = "cache-local-limit",
            .kind = OPTION_BYTES,
            .value = &o->local_limit,
            .placeholder = "SIZE",
            .least = 1 << 20,
            .most = INT64_MAX,
            .help = "most bytes in --cache-local (default: 256G)"},
        {.name = "cache-memory",
            .kind = OPTION_BYTES,
            .value = &o->memory_limit,
            .placeholder = "SIZE",
            .least = 1 << 20,
            .most = INT64_MAX,
            .help = "memory of a rank for cached rows, with --cache or --cache-local (default: 1G)"},
        {.name = "cache-eviction",
            .kind = OPTION_CHOICE,
            .value = &o->eviction,
            .choices = evictions,
            .help =
                "what goes first when a limit is reached: the least 'value' (time saved a byte), the least "
                "'recent'ly used, or the 'oldest' (default: value)"},
        {.name = "cache-keep",
            .kind = OPTION_TEXT,
            .value = &o->keep,
            .placeholder = "HOURS",
            .help =
                "how long rows are kept after their last use: one number, or three by commas for one-shot "
                "questions, agents and chats (default: 72,72,168)"},
        {.name = "replay",
            .kind = OPTION_TEXT,
            .value = &o->replay,
            .placeholder = "HOW",
            .help =
                "after a hit: 'exact' gives the bits of a run without the cache; 'bounded' or 'bounded=N' "
                "runs only N (128) tokens again, and answers may differ (default: exact)"},
    };
    memcpy(row, rows, sizeof rows);
}

static enum result read_replay(struct phase_cache_options *o) {
    static const char bounded[] = "bounded=";
    char *end = "";
    long tokens = DEFAULT_BOUNDED;
    if (!strcmp(o->replay, "exact")) {
        o->bounded = 0;
        return OK;
    }
    if (!strncmp(o->replay, bounded, sizeof bounded - 1))
        tokens = strtol(o->replay + sizeof bounded - 1, &end, 10);
    else if (strcmp(o->replay, "bounded") != 0)
        tokens = 0;
    if (*end || tokens < 2 || tokens > MOST_BOUNDED)
        return fail(ERROR_USAGE,
            "--replay '%s': give exact, bounded, or bounded=N with N from 2 to %d tokens", o->replay,
            MOST_BOUNDED);
    o->bounded = (int32_t)tokens;
    return OK;
}

static enum result read_keep(struct phase_cache_options *o) {
    const char *at = o->keep;
    int count = 0;
    while (at && count < CACHE_TRAFFIC_KINDS) {
        char *end;
        double hours = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(hours > 0) || hours > 1e6)
            break;
        o->keep_hours[count++] = hours;
        at = *end ? end + 1 : NULL;
    }
    if (o->keep && (at || (count != 1 && count != CACHE_TRAFFIC_KINDS)))
        return fail(ERROR_USAGE,
            "--cache-keep '%s': give a number of hours, or three by commas: for one-shot questions, agents "
            "and "
            "chats",
            o->keep);
    for (int i = count; count == 1 && i < CACHE_TRAFFIC_KINDS; i++)
        o->keep_hours[i] = o->keep_hours[0];
    return OK;
}

enum result phase_cache_check(struct phase_cache_options *o) {
    TRY(read_replay(o));
    TRY(read_keep(o));
    if (o->bounded && !o->shared && !o->local)
        return fail(
            ERROR_USAGE, "--replay %s is for hits of a cache: give --cache or --cache-local", o->replay);
    return OK;
}

/* ---- the cache ---- */

enum result phase_cache_open(const struct phase_cache_options *options, const struct launch *launch,
    int arithmetic, struct phase_cache *cache) {
    *cache = (struct phase_cache){0};
    if (!options->shared && !options->local)
        return OK;
    snprintf(cache->fingerprint, sizeof cache->fingerprint, "%s/%d",
        checkpoint_fingerprint(launch->checkpoint), arithmetic);
    cache->space = (struct cache_space){.fingerprint = cache->fingerprint,
        .backend = launch->kernels->name,
        .instruction_set = launch->kernels->instruction_set,
        .block_tokens = BLOCK_TOKENS,
        .payload_bytes = sequence_rows_bytes(launch->model, BLOCK_TOKENS)};
    struct cache_options made = {.space = cache->space,
        .local = options->local,
        .shared = options->shared,
        .memory_bytes = options->memory_limit,
        .local_bytes = options->local_limit,
        .shared_bytes = options->shared_limit,
        .eviction = (enum cache_eviction)options->eviction};
    memcpy(made.keep_hours, options->keep_hours, sizeof made.keep_hours);
    return cache_open(&made, &cache->cache);
}

enum result phase_cache_finish(const struct phase_cache *cache, const struct launch *launch) {
    enum { HITS_MEMORY, HITS_LOCAL, HITS_SHARED, MISSES, PUTS, DROPPED, DAMAGED, MILLISECONDS, SUMS };
    if (!cache->cache)
        return OK;
    TRY(ranks_agree(launch->ranks.world, cache_flush(cache->cache)));
    struct cache_counts counts;
    cache_counts(cache->cache, &counts);
    int64_t sums[SUMS] = {
        [HITS_MEMORY] = counts.tiers[CACHE_TIER_MEMORY].hits,
        [HITS_LOCAL] = counts.tiers[CACHE_TIER_LOCAL].hits,
        [HITS_SHARED] = counts.tiers[CACHE_TIER_SHARED].hits,
        [MISSES] = counts.misses,
        [PUTS] = counts.puts,
        [DROPPED] = counts.dropped,
        [DAMAGED] = counts.damaged,
        [MILLISECONDS] = (int64_t)(1000 * counts.seconds_saved),
    };
    TRY(group_sum(launch->ranks.world, "end: the cache's counts", sums, SUMS));
    const int64_t used = sums[HITS_MEMORY] + sums[HITS_LOCAL] + sums[HITS_SHARED];
    if (launch->ranks.rank == 0)
        log_info(
            "cache: %lld blocks of %d tokens used (%lld of memory, %lld of the local folder, %lld of the "
            "shared one; %.1f s of work), %lld kept, %lld dropped for want of time or space, %lld damaged",
            (long long)used, cache->space.block_tokens, (long long)sums[HITS_MEMORY],
            (long long)sums[HITS_LOCAL], (long long)sums[HITS_SHARED], (double)sums[MILLISECONDS] / 1000,
            (long long)sums[PUTS], (long long)sums[DROPPED], (long long)sums[DAMAGED]);
    return OK;
}

void phase_cache_close(struct phase_cache *cache) {
    cache_close(cache->cache);
    cache->cache = NULL;
}

enum result phase_cache_image(struct requests *requests, int64_t image, uint8_t identity[CACHE_KEY_BYTES]) {
    struct image_identity found;
    TRY(requests_image_identity(requests, image, &found));
    XXH128_hash_t hash = XXH3_128bits(&found, sizeof found);
    memcpy(identity, &hash, CACHE_KEY_BYTES);
    return OK;
}

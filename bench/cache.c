/* The prefix cache's speed beside what the machine does without it.
 *
 *   bench-cache [--folder DIR] [--megabytes N] [--rounds N] [--tokens N] [--json]
 *
 * For each size of blocks (16 to 512 tokens at 890 bytes a token; --tokens: one size): putting into memory and into a folder,
 * matching, and restoring N megabytes (256) in prompts of 32,768 tokens: from the memory tier, beside memcpy of the same
 * bytes; from the folder, beside plain read() of the same segment files in steps of 1 MiB into the same places, with the files in
 * the page cache ("warm") and dropped from it ("cold"). Cache and reference take turns in one run, so that both see the
 * same machine; a row has the medians of the rounds (7) and the median of the rounds' shares. DIR (/tmp/nocturne-bench-cache) is
 * removed at the end; it should lie on the disk that matters. --json: a JSON line for each row. */
#include "cache/cache.h"
#include "base/options.h"
#include "cache/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    TOKEN_BYTES = 890,
    PROMPT_TOKENS = 32768,
    MOST_ROUNDS = 99,
    READ_BYTES = 1 << 20,
    MOST_SEGMENTS = 4096
};

static const int32_t sizes[] = {16, 32, 64, 128, 256, 512};

static const char *folder = "/tmp/nocturne-bench-cache";
static int64_t megabytes = 256, rounds = 7, only_tokens;
static bool as_json;

struct work {
    int32_t tokens, blocks, prompt_blocks;
    int64_t payload_bytes;
    struct cache_key *keys;
    uint8_t *from, *to; /* [blocks, payload_bytes] */
};

static void check(enum result status) {
    if (status == OK)
        return;
    fprintf(stderr, "bench-cache: %s\n", failure_message());
    exit(1);
}

static void demand(bool right, const char *what) {
    if (right)
        return;
    fprintf(stderr, "bench-cache: %s\n", what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *values) {
    double sorted[MOST_ROUNDS];
    memcpy(sorted, values, (size_t)rounds * sizeof *sorted);
    qsort(sorted, (size_t)rounds, sizeof *sorted, ascending);
    return sorted[rounds / 2];
}

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *place) {
    (void)found, (void)kind, (void)place;
    return remove(path);
}

static void remove_folder(void) {
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- rows ---- */

/* Seconds of the rounds for `bytes`; `plain` NULL: no reference. */
static void print_row(const struct work *work, const char *what, double amount, const char *unit,
    const double *seconds, const double *plain) {
    double shares[MOST_ROUNDS] = {0};
    for (int64_t i = 0; plain && i < rounds; i++)
        shares[i] = plain[i] / seconds[i];
    double rate = amount / median(seconds), reference = plain ? amount / median(plain) : 0;
    if (as_json) {
        printf("{\"bench\":\"cache\",\"measure\":\"%s\",\"block_tokens\":%d,\"payload_bytes\":%lld,\"rate\":%"
               ".4f,"
               "\"unit\":\"%s\"",
            what, work->tokens, (long long)work->payload_bytes, rate, unit);
        if (plain)
            printf(",\"reference\":%.4f,\"share\":%.4f", reference, median(shares));
        printf(",\"rounds\":%lld}\n", (long long)rounds);
    } else if (plain)
        printf("%6d  %-22s %9.2f %-5s %9.2f %7.1f %%\n", work->tokens, what, rate, unit, reference,
            100 * median(shares));
    else
        printf("%6d  %-22s %9.2f %-5s\n", work->tokens, what, rate, unit);
    fflush(stdout);
}

/* ---- work ---- */

static struct cache *open_cache(const struct work *work, const char *local, bool memory) {
    const struct cache_options options = {.space = {.fingerprint = "bench",
                                              .backend = "cpu",
                                              .instruction_set = "any",
                                              .block_tokens = work->tokens,
                                              .payload_bytes = work->payload_bytes},
        .local = local,
        .local_bytes = (int64_t)1 << 40,
        .memory_bytes = memory ? work->blocks * work->payload_bytes : 0};
    struct cache *cache;
    check(cache_open(&options, &cache));
    return cache;
}

static void make_work(int32_t tokens, struct work *work) {
    *work = (struct work){.tokens = tokens, .payload_bytes = tokens * TOKEN_BYTES};
    work->prompt_blocks = PROMPT_TOKENS / tokens;
    work->blocks =
        (int32_t)((megabytes << 20) / work->payload_bytes) / work->prompt_blocks * work->prompt_blocks;
    demand(work->blocks > 0, "--megabytes is too small for a prompt");
    size_t bytes = (size_t)work->blocks * (size_t)work->payload_bytes;
    work->keys = malloc((size_t)work->blocks * sizeof *work->keys);
    work->from = malloc(bytes);
    work->to = malloc(bytes);
    int32_t *ids = malloc(sizeof *ids * PROMPT_TOKENS);
    demand(work->keys && work->from && work->to && ids, "no memory");
    for (size_t i = 0; i < bytes; i++)
        work->from[i] = (uint8_t)(i * 2654435761u >> 13);
    memset(work->to, 1, bytes);
    const struct cache_space space = {"bench", "cpu", "any", tokens, work->payload_bytes};
    for (int32_t first = 0; first < work->blocks; first += work->prompt_blocks) {
        for (int32_t i = 0; i < PROMPT_TOKENS; i++)
            ids[i] = first + i;
        cache_keys(&space, ids, PROMPT_TOKENS, NULL, 0, work->keys + first);
    }
    free(ids);
}

static void free_work(struct work *work) {
    free(work->keys);
    free(work->from);
    free(work->to);
}

static double amount(const struct work *work) {
    return (double)work->blocks * (double)work->payload_bytes / 1e9;
}

static double put_all(const struct work *work, struct cache *cache, int32_t pause_every) {
    double start = now();
    for (int32_t i = 0; i < work->blocks; i++) {
        struct cache_entry entry = {
            .first_token = i % work->prompt_blocks * work->tokens, .cost_seconds = 0.01F};
        cache_put(cache, &work->keys[i], &entry, work->from + i * work->payload_bytes);
        if (pause_every > 0 && i % pause_every == pause_every - 1)
            check(cache_flush(cache));
    }
    check(cache_flush(cache));
    return now() - start;
}

static double get_all(const struct work *work, struct cache *cache) {
    double start = now();
    for (int32_t first = 0; first < work->blocks; first += work->prompt_blocks) {
        int32_t found;
        check(cache_get(
            cache, work->keys + first, work->prompt_blocks, work->to + first * work->payload_bytes, &found));
        demand(found == work->prompt_blocks, "a block was not found");
    }
    return now() - start;
}

static double match_all(const struct work *work, struct cache *cache) {
    double start = now();
    for (int32_t first = 0; first < work->blocks; first += work->prompt_blocks)
        demand(cache_match(cache, work->keys + first, work->prompt_blocks) == work->prompt_blocks,
            "a key was not found");
    return now() - start;
}

static double copy_all(const struct work *work) {
    double start = now();
    for (int32_t first = 0; first < work->blocks; first += work->prompt_blocks)
        memcpy(work->to + first * work->payload_bytes, work->from + first * work->payload_bytes,
            (size_t)(work->prompt_blocks * work->payload_bytes));
    return now() - start;
}

/* The segment files of the folder; what they hold is in *bytes. */
static int list_segments(char paths[][512], int64_t *bytes) {
    char path[256];
    int count = 0;
    *bytes = 0;
    snprintf(path, sizeof path, "%.200s/segments", folder);
    DIR *opened = opendir(path);
    for (struct dirent *item; opened && count < MOST_SEGMENTS && (item = readdir(opened));) {
        struct stat found;
        snprintf(paths[count], 512, "%s/%.255s", path, item->d_name);
        if (item->d_name[0] != '.' && stat(paths[count], &found) == 0) {
            *bytes += found.st_size;
            count++;
        }
    }
    if (opened)
        closedir(opened);
    return count;
}

static char segments[MOST_SEGMENTS][512];

static void drop_from_page_cache(void) {
    int64_t bytes;
    for (int i = list_segments(segments, &bytes) - 1; i >= 0; i--) {
        int fd = open(segments[i], O_RDONLY);
        if (fd < 0)
            continue;
        fdatasync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

/* Reads the segment files into the places of the payloads; seconds for as many bytes as these have. */
static double read_all(const struct work *work) {
    int64_t room = work->blocks * work->payload_bytes, at = 0, bytes;
    int count = list_segments(segments, &bytes);
    double start = now();
    for (int i = 0; i < count; i++) {
        int fd = open(segments[i], O_RDONLY);
        demand(fd >= 0, "a segment cannot be opened");
        for (ssize_t got = 1; got > 0 && at < room; at += got)
            got = read(fd, work->to + at, (size_t)(room - at < READ_BYTES ? room - at : READ_BYTES));
        close(fd);
    }
    demand(at == room, "the segments are too short");
    return now() - start;
}

/* ---- measures ---- */

static void measure_memory(const struct work *work) {
    double put[MOST_ROUNDS], get[MOST_ROUNDS], match[MOST_ROUNDS], copy[MOST_ROUNDS];
    struct cache *cache = open_cache(work, NULL, true);
    (void)put_all(work, cache, 0); /* the arena's pages are there now */
    cache_close(cache);
    for (int64_t i = 0; i < rounds; i++) {
        cache = open_cache(work, NULL, true);
        put[i] = put_all(work, cache, 0);
        copy[i] = copy_all(work);
        get[i] = get_all(work, cache);
        match[i] = match_all(work, cache);
        demand(!memcmp(work->from, work->to, (size_t)(work->blocks * work->payload_bytes)), "wrong payloads");
        cache_close(cache);
    }
    print_row(work, "memory put", amount(work), "GB/s", put, NULL);
    print_row(work, "memory get", amount(work), "GB/s", get, copy);
    print_row(work, "memory match", work->blocks / 1e6, "M/s", match, NULL);
}

static void measure_folder(const struct work *work) {
    double put[MOST_ROUNDS], warm[MOST_ROUNDS], cold[MOST_ROUNDS], match[MOST_ROUNDS];
    double plain_warm[MOST_ROUNDS], plain_cold[MOST_ROUNDS];
    int32_t pause = (int32_t)((128 << 20) / work->payload_bytes); /* half of the queue: nothing is dropped */
    pause = pause < 4096 ? pause : 4096;
    for (int64_t i = 0; i < rounds; i++) {
        remove_folder();
        struct cache *cache = open_cache(work, folder, false);
        put[i] = put_all(work, cache, pause);
        cache_close(cache);
        cache = open_cache(work, folder, false);
        match[i] = match_all(work, cache);
        (void)read_all(work);
        memset(work->to, 1, (size_t)(work->blocks * work->payload_bytes));
        warm[i] = get_all(work, cache);
        demand(!memcmp(work->from, work->to, (size_t)(work->blocks * work->payload_bytes)), "wrong payloads");
        plain_warm[i] = read_all(work);
        cache_close(cache);
        cache = open_cache(work, folder, false);
        for (int turn = 0; turn < 2; turn++) { /* who is first has a slower disk below it, at times */
            drop_from_page_cache();
            if ((turn + i) % 2)
                cold[i] = get_all(work, cache);
            else
                plain_cold[i] = read_all(work);
        }
        cache_close(cache);
    }
    remove_folder();
    print_row(work, "folder put and flush", amount(work), "GB/s", put, NULL);
    print_row(work, "folder match", work->blocks / 1e6, "M/s", match, NULL);
    print_row(work, "folder get, warm", amount(work), "GB/s", warm, plain_warm);
    print_row(work, "folder get, cold", amount(work), "GB/s", cold, plain_cold);
}

int main(int argc, char **argv) {
    const struct option options[] = {{.name = "folder",
                                         .kind = OPTION_TEXT,
                                         .value = &folder,
                                         .placeholder = "DIR",
                                         .help = "where to measure (default: /tmp/nocturne-bench-cache)"},
        {.name = "megabytes",
            .kind = OPTION_COUNT,
            .value = &megabytes,
            .placeholder = "N",
            .least = 64,
            .most = 65536,
            .help = "of payloads (default: 256)"},
        {.name = "rounds",
            .kind = OPTION_COUNT,
            .value = &rounds,
            .placeholder = "N",
            .least = 1,
            .most = MOST_ROUNDS,
            .help = "of each measure (default: 7)"},
        {.name = "tokens",
            .kind = OPTION_COUNT,
            .value = &only_tokens,
            .placeholder = "N",
            .least = 1,
            .most = 8192,
            .help = "one size of blocks only (default: 16 to 512)"},
        {.name = "json", .kind = OPTION_FLAG, .value = &as_json, .help = "a JSON line for each row"}, {0}};
    static const struct command_usage usage = {
        .name = "bench-cache", .summary = "The prefix cache's speed beside memcpy and plain read()."};
    bool help_shown;
    check(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    if (help_shown)
        return 0;
    if (!as_json)
        printf("tokens  measure                     rate           memcpy or read   share\n");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct work work;
        if (only_tokens && i > 0)
            break;
        make_work(only_tokens ? (int32_t)only_tokens : sizes[i], &work);
        measure_memory(&work);
        measure_folder(&work);
        free_work(&work);
    }
    return 0;
}

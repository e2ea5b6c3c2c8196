/* A prefix cache's folder among processes that are killed, fail to write, and write at once.
 *
 *     cache kill [ROUNDS [SEED]]   kill -9 while blocks are put; after each, every entry of the index is whole
 *     cache together               three processes put, get and make room in one folder at once, others beside them are killed
 *     cache hosts                  two hosts, each with its own index, share a folder with a limit
 *     cache full                   a disk that is full, by a small file system where this may mount one, and by a limit of file sizes
 *     cache make FOLDER COUNT      fills a folder, for cache_command.py
 *     cache failing                writes and fdatasync that fail (through system_fault.c)
 *
 * Exit code 0: all was right; 1: a message says what was not. */
#include "cache/cache.h"
#include "cache/store.h"
#include "unit/cache_folder.h"

#include <errno.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { PAYLOAD = 20011, KEYS = 4000 };

#define LIMIT ((int64_t)12 << 20) /* about 620 blocks */

static void demand(bool right, const char *what, int64_t number) {
    if (right)
        return;
    fprintf(stderr, "cache: %s (%lld): %s\n", what, (long long)number, failure_message());
    exit(1);
}

static struct cache *open_cache(const char *folder, int64_t limit, int64_t memory) {
    const struct cache_options options = {.space = {.fingerprint = "abc",
                                              .backend = "cpu",
                                              .instruction_set = "avx2",
                                              .block_tokens = 16,
                                              .payload_bytes = PAYLOAD},
        .local = folder,
        .local_bytes = limit,
        .memory_bytes = memory};
    struct cache *cache;
    demand(cache_open(&options, &cache) == OK, "cache_open", 0);
    return cache;
}

static void put_number(struct cache *cache, uint64_t n) {
    static uint8_t payload[PAYLOAD];
    struct cache_key key = numbered_key(n);
    fill_payload(n, payload, PAYLOAD);
    cache_put(
        cache, &key, &(struct cache_entry){.cost_seconds = 1, .first_token = (int32_t)(n % 100)}, payload);
}

/* Whether block n is there; it must be right. */
static bool get_number(struct cache *cache, uint64_t n) {
    static uint8_t payload[PAYLOAD];
    struct cache_key key = numbered_key(n);
    int32_t found;
    demand(cache_get(cache, &key, 1, payload, &found) == OK, "cache_get", (int64_t)n);
    demand(!found || is_payload(n, payload, PAYLOAD), "a wrong payload", (int64_t)n);
    return found == 1;
}

/* ---- whole folders ---- */

struct check {
    struct store *store;
    uint8_t *payload;
    int64_t entries, bad;
};

static bool check_entry(void *context, const struct cache_key *key, const struct index_entry *entry) {
    struct check *check = context;
    struct index_entry place = *entry;
    uint64_t n = 0;
    check->entries++;
    if (store_read(check->store, key, &place, 1, &check->payload) != 1)
        check->bad++;
    else {
        memcpy(&n, check->payload, 8);
        struct cache_key wanted = numbered_key(n);
        demand(cache_key_equal(&wanted, key) && is_payload(n, check->payload, PAYLOAD), "a wrong payload",
            (int64_t)n);
    }
    return true;
}

/* Every entry that the index of `host` shows is whole; returns how many there are. */
static int64_t check_folder(const char *folder, const char *host) {
    struct store_options options = {.folder = folder,
        .limit = (int64_t)1 << 30,
        .policy = policy_make(CACHE_EVICT_LEAST_RECENT, (double[CACHE_TRAFFIC_KINDS]){0}),
        .host = host,
        .still = true};
    struct check check = {0};
    int64_t damaged = 0;
    demand(store_open(&options, &check.store) == OK, "store_open", 0);
    check.payload = malloc(PAYLOAD);
    demand(check.payload && index_each_entry(store_index(check.store), check_entry, &check, &damaged) == OK,
        "the index cannot be read", 0);
    demand(damaged == 0, "damaged values in the index", damaged);
    demand(check.bad == 0, "entries that are visible and not whole", check.bad);
    free(check.payload);
    store_close(check.store);
    return check.entries;
}

static int64_t segment_bytes(const char *folder) {
    static char paths[512][512];
    int64_t bytes = 0;
    for (int i = list_files(folder, "segments", paths, 512) - 1; i >= 0; i--)
        bytes += file_bytes(paths[i]);
    return bytes;
}

/* ---- kills ---- */

/* Puts for ever, with evictions, moves of segments and uses between. */
static void put_until_killed(const char *folder, uint64_t first, int64_t limit) {
    struct cache *cache = open_cache(folder, limit, 100 * PAYLOAD);
    for (uint64_t n = first;; n++) {
        put_number(cache, n % KEYS);
        if (n % 7 == 0)
            get_number(cache, n / 2 % KEYS);
        if (n % 50 == 0)
            demand(cache_flush(cache) == OK, "cache_flush", 0);
    }
}

static void kill_rounds(int rounds, unsigned seed) {
    char folder[64];
    int64_t least = INT64_MAX, most = 0;
    make_folder(folder);
    printf("cache kill: %d rounds, seed %u\n", rounds, seed);
    srand(seed);
    for (int round = 0; round < rounds; round++) {
        pid_t children[2];
        int count = 1 + round % 2;
        for (int i = 0; i < count; i++)
            if ((children[i] = fork()) == 0)
                put_until_killed(folder, (uint64_t)rand() % KEYS, LIMIT);
        usleep(2000 + (unsigned)rand() % (round % 5 ? 150000 : 20000));
        for (int i = 0; i < count; i++) {
            int status;
            kill(children[i], SIGKILL);
            waitpid(children[i], &status, 0);
            demand(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a process ended by itself", status);
        }
        int64_t entries = check_folder(folder, NULL);
        least = entries < least ? entries : least;
        most = entries > most ? entries : most;
        demand(segment_bytes(folder) < 2 * LIMIT, "the folder grows beyond its limit", segment_bytes(folder));
    }
    demand(most > 100, "kills came before anything was put: nothing was tested", most);
    printf("cache kill: %lld to %lld entries after a kill, all whole\n", (long long)least, (long long)most);
    remove_folder(folder);
}

/* ---- several at once ---- */

static void work(const char *folder, uint64_t first, int64_t limit) {
    struct cache *cache = open_cache(folder, limit, 50 * PAYLOAD);
    struct cache_counts counts;
    for (uint64_t n = 0; n < KEYS / 2; n++) {
        put_number(cache, (first + n) % KEYS);
        get_number(cache, (first + n * 7) % KEYS);
    }
    demand(cache_flush(cache) == OK, "cache_flush", 0);
    cache_counts(cache, &counts);
    demand(counts.damaged == 0, "damage where there is none", counts.damaged);
    demand(counts.tiers[CACHE_TIER_LOCAL].written > 0, "nothing was written", 0);
    cache_close(cache);
}

static void wait_for(pid_t child) {
    int status;
    waitpid(child, &status, 0);
    demand(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process failed", status);
}

/* Processes that are killed beside others that work: whatever these held, such as the lock for changes of the index, is free again. */
static void kill_some(const char *folder, int64_t limit) {
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        if (child == 0)
            put_until_killed(folder, (uint64_t)i * 331, limit);
        usleep(5000 + 4000 * (unsigned)i);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

static void together(void) {
    char folder[64];
    pid_t children[3];
    make_folder(folder);
    for (int round = 0; round < 3; round++) {
        int64_t limit = round == 0 ? (int64_t)1 << 30 : LIMIT;
        for (int i = 0; i < 3; i++)
            if ((children[i] = fork()) == 0) {
                work(folder, (uint64_t)i * 700, limit);
                exit(0);
            }
        kill_some(folder, limit);
        for (int i = 0; i < 3; i++)
            wait_for(children[i]);
        int64_t entries = check_folder(folder, NULL);
        printf("cache together: %lld entries, %lld bytes\n", (long long)entries,
            (long long)segment_bytes(folder));
        demand(round > 0 || entries >= 700 * 2 + KEYS / 2, "not all that was put is there", entries);
        demand(round == 0 || segment_bytes(folder) <= 2 * LIMIT, "the folder is above its limit",
            segment_bytes(folder));
    }
    remove_folder(folder);
}

static struct store *open_host(const char *folder, const char *host, int64_t limit) {
    struct store_options options = {.folder = folder,
        .limit = limit,
        .policy = policy_make(CACHE_EVICT_LEAST_RECENT, (double[CACHE_TRAFFIC_KINDS]){0}),
        .host = host};
    struct store *store;
    demand(store_open(&options, &store) == OK, "store_open", 0);
    return store;
}

static void append(struct store *store, uint64_t first, int32_t count) {
    const struct cache_space space = {.fingerprint = "abc",
        .backend = "cpu",
        .instruction_set = "avx2",
        .block_tokens = 16,
        .payload_bytes = PAYLOAD};
    static uint8_t payload[PAYLOAD];
    struct segment_header header;
    segment_header_make(&space, "", &header);
    for (int32_t i = 0; i < count; i++) {
        uint64_t n = first + (uint64_t)i;
        struct store_put put = {.key = numbered_key(n),
            .entry = {.cost_seconds = 1},
            .created = (double)time(NULL),
            .payload = payload};
        fill_payload(n, payload, PAYLOAD);
        demand(store_append(store, &header, &put, 1) == 1, "store_append", (int64_t)n);
    }
}

/* One host removes what the other still has in its index; the other learns what the first wrote. */
static void hosts(void) {
    char folder[64];
    make_folder(folder);
    struct store *one = open_host(folder, "one", LIMIT);
    append(one, 0, 200);
    struct store *two = open_host(folder, "two", LIMIT); /* learns them while `one` still writes */
    struct store_counts counts;
    store_counts(two, &counts);
    demand(counts.entries == 200, "another host's entries were not learned", counts.entries);
    append(two, 1000,
        1500); /* far beyond the limit: `two` removes old ones, those of `one`'s files that are done */
    store_close(one);
    one = open_host(folder, "one", LIMIT);
    uint8_t *payload = malloc(PAYLOAD);
    int64_t there = 0;
    for (uint64_t n = 0; n < 2500; n++) {
        struct cache_key key = numbered_key(n);
        struct index_entry entry;
        if (store_find(one, &key, 1, &entry) == 1 && store_read(one, &key, &entry, 1, &payload) == 1) {
            demand(is_payload(n, payload, PAYLOAD), "a wrong payload", (int64_t)n);
            there++;
        }
    }
    free(payload);
    demand(there > 300, "too little is left", there);
    demand(segment_bytes(folder) <= LIMIT + (LIMIT / 16 + (1 << 20)) * 2, "the folder is above its limit",
        segment_bytes(folder));
    store_close(one);
    store_close(two);
    check_folder(folder, "one");
    check_folder(folder, "two");
    printf("cache hosts: %lld blocks found from the other host\n", (long long)there);
    remove_folder(folder);
}

/* ---- no room ---- */

/* Puts far more than fits: no failure, what was refused is counted, what is there is right, also after the next open. */
static void overfill(const char *folder, bool may_open_fail) {
    const struct cache_options options = {.space = {.fingerprint = "abc",
                                              .backend = "cpu",
                                              .instruction_set = "avx2",
                                              .block_tokens = 16,
                                              .payload_bytes = PAYLOAD},
        .local = folder,
        .local_bytes = (int64_t)1 << 30};
    struct cache *cache;
    struct cache_counts counts;
    enum result status = cache_open(&options, &cache);
    if (status != OK && may_open_fail)
        return;
    demand(status == OK, "cache_open", 0);
    for (uint64_t n = 0; n < KEYS; n++)
        put_number(cache, n);
    demand(cache_flush(cache) == OK, "cache_flush", 0);
    cache_counts(cache, &counts);
    demand(counts.dropped > 0, "nothing was refused: the disk was not full", counts.dropped);
    int64_t there = 0;
    for (uint64_t n = 0; n < KEYS; n++)
        there += get_number(cache, n);
    cache_close(cache);
    cache = open_cache(folder, (int64_t)1 << 30, 0);
    int64_t later = 0;
    for (uint64_t n = 0; n < KEYS; n++)
        later += get_number(cache, n);
    demand(later == there, "other blocks are there after the next open", later - there);
    cache_close(cache);
    printf("cache full: %lld of %d blocks were kept, %lld puts refused\n", (long long)there, KEYS,
        (long long)counts.dropped);
}

/* In a process of its own: a crash (SIGBUS) must not go unseen. */
static void overfill_apart(const char *folder, int64_t file_limit) {
    pid_t child = fork();
    if (child == 0) {
        if (file_limit > 0) {
            struct rlimit limit = {(rlim_t)file_limit, (rlim_t)file_limit};
            signal(SIGXFSZ, SIG_IGN);
            demand(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit", 0);
        }
        overfill(folder, false);
        exit(0);
    }
    wait_for(child);
}

static void full(void) {
    char folder[64], cache[96], sizes[64];
    make_folder(folder);
    snprintf(cache, sizeof cache, "%s/cache", folder);
    overfill_apart(cache, 3 << 20);
    remove_folder(folder);
    for (int kilobytes = 64; kilobytes <= 8192; kilobytes *= 2) {
        make_folder(folder);
        snprintf(sizes, sizeof sizes, "size=%dk", kilobytes);
        snprintf(cache, sizeof cache, "%s/cache", folder);
        if (mount("nocturne", folder, "tmpfs", 0, sizes)) {
            printf("cache full: no small file system here (%s)\n", strerror(errno));
            remove_folder(folder);
            return;
        }
        pid_t child = fork();
        if (child == 0) {
            if (kilobytes >= 1024)
                overfill(cache, false);
            else { /* not even the index fits: the tier is left out */
                struct cache *opened = open_cache(cache, (int64_t)1 << 30, 10 * PAYLOAD);
                for (uint64_t n = 0; n < 100; n++)
                    put_number(opened, n);
                demand(cache_flush(opened) == OK, "cache_flush", 0);
                for (uint64_t n = 0; n < 100; n++)
                    get_number(opened, n);
                cache_close(opened);
            }
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        umount(folder);
        remove_folder(folder);
        demand(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process failed, with kilobytes", kilobytes);
    }
}

/* With NOCTURNE_FAULT and the library in LD_PRELOAD; the folder is NOCTURNE_FAULT_PATH. */
static void failing(void) {
    static const char *const faults[] = {"write:30", "full:900000", "unsynced", "unread", "unrenamed",
        "read-only", "locks:ENOLCK", "locks:ENOSYS"};
    char folder[64], cache[96];
    const char *library = getenv("FAULT_LIBRARY");
    demand(library != NULL, "FAULT_LIBRARY is not set", 0);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        make_folder(folder);
        snprintf(cache, sizeof cache, "%s/cache", folder);
        struct cache *made = open_cache(cache, LIMIT, 0);
        for (uint64_t n = 0; n < 30; n++)
            put_number(made, n);
        cache_close(made);
        pid_t child = fork();
        if (child == 0) {
            setenv("LD_PRELOAD", library, 1);
            setenv("NOCTURNE_FAULT", faults[i], 1);
            setenv("NOCTURNE_FAULT_PATH", cache, 1);
            execl("/proc/self/exe", "cache", "use", cache, NULL);
            _exit(127);
        }
        wait_for(child);
        int64_t entries = check_folder(cache, NULL);
        printf("cache failing: %s: %lld entries are whole\n", faults[i], (long long)entries);
        demand(entries >= 30, "blocks were lost", entries);
        remove_folder(folder);
    }
}

static void make(const char *folder, uint64_t count) {
    static uint8_t payload[PAYLOAD];
    struct cache *cache = open_cache(folder, (int64_t)1 << 30, 0);
    for (uint64_t n = 0; n < count; n++) {
        struct cache_key key = numbered_key(n);
        struct cache_entry entry = {.traffic = (enum cache_traffic)(n % CACHE_TRAFFIC_KINDS),
            .first_token = (int32_t)(n % 20) * 16,
            .cost_seconds = 0.01F * (float)(1 + n % 7)};
        fill_payload(n, payload, PAYLOAD);
        cache_put(cache, &key, &entry, payload);
    }
    cache_close(cache);
}

/* The run that meets the faults. */
static void use(const char *folder) {
    struct cache *cache = open_cache(folder, LIMIT, 0);
    for (uint64_t n = 0; n < 200; n++) {
        put_number(cache, n);
        if (n % 40 == 0)
            demand(cache_flush(cache) == OK, "cache_flush", 0);
    }
    demand(cache_flush(cache) == OK, "cache_flush", 0);
    for (uint64_t n = 0; n < 200; n++)
        get_number(cache, n);
    cache_close(cache);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0); /* children must not print it again */
    if (!strcmp(what, "kill"))
        kill_rounds(argc > 2 ? atoi(argv[2]) : 30, argc > 3 ? (unsigned)atoi(argv[3]) : (unsigned)time(NULL));
    else if (!strcmp(what, "together"))
        together();
    else if (!strcmp(what, "hosts"))
        hosts();
    else if (!strcmp(what, "full"))
        full();
    else if (!strcmp(what, "failing"))
        failing();
    else if (!strcmp(what, "use") && argc == 3)
        use(argv[2]);
    else if (!strcmp(what, "make") && argc == 4)
        make(argv[2], strtoull(argv[3], NULL, 10));
    else {
        fprintf(stderr,
            "usage: cache kill [ROUNDS [SEED]] | together | hosts | full | failing | make FOLDER COUNT\n");
        return 2;
    }
    return 0;
}

/* Opening a folder: locks, the index, and what the segments hold that the index does not know. */
#include "cache/store_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <dirent.h>   /* opendir */
#include <errno.h>    /* errno */
#include <fcntl.h>    /* open, fcntl */
#include <stdio.h>    /* snprintf */
#include <stdlib.h>   /* calloc, qsort */
#include <string.h>   /* strcmp */
#include <sys/stat.h> /* mkdir, stat */
#include <unistd.h>   /* close, gethostname */

#define MOST_SEGMENT_BYTES ((int64_t)256 << 20)
#define LEAST_SEGMENT_BYTES ((int64_t)1 << 20)
#define LEAST_MAP_BYTES ((int64_t)256 << 20)
#define MOST_MAP_BYTES ((int64_t)16 << 30) /* some 80 million entries */

enum {
    SEGMENTS_OF_LIMIT = 16, /* at least so many in a full folder, so that giving room back moves little */
    MAP_SHARE = 32,         /* of the limit is enough for the index of the smallest blocks */
    LOCK_SECONDS = 300,
    OPEN_LEARN_SECONDS = 60,
    UNFINISHED_SECONDS = 600,
    LOCK_POLL_MICROSECONDS = 20000,
};

/* ---- locks ---- */

static bool locks_are_missing(int error) {
    return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
}

int store_lock(const struct store *store, const char *name, double seconds) {
    char path[STORE_PATH_BYTES];
    struct flock what = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    snprintf(path, sizeof path, "%s/%s", store->folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return -2;
    for (double end = wall_clock() + seconds; fcntl(fd, F_OFD_SETLK, &what);) {
        bool missing = locks_are_missing(errno);
        if (missing || wall_clock() > end) {
            close(fd);
            return missing ? -2 : -1;
        }
        usleep(LOCK_POLL_MICROSECONDS);
    }
    return fd;
}

/* ---- segments ---- */

struct known_segment {
    struct index_segment segment;
    uint32_t number;
    bool seen; /* its file is there */
};

struct known_segments {
    struct known_segment *items;
    int32_t count, capacity;
    bool failed;
};

static bool collect_segment(void *context, uint32_t number, const struct index_segment *segment) {
    struct known_segments *known = context;
    if (known->count == known->capacity) {
        int32_t capacity = known->capacity ? 2 * known->capacity : 64;
        struct known_segment *grown = realloc(known->items, (size_t)capacity * sizeof *grown);
        if (!grown) {
            known->failed = true;
            return false;
        }
        known->items = grown;
        known->capacity = capacity;
    }
    known->items[known->count++] = (struct known_segment){.segment = *segment, .number = number};
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(
        ((const struct known_segment *)a)->segment.name, ((const struct known_segment *)b)->segment.name);
}

static bool is_segment_name(const char *name) {
    size_t length = strlen(name), suffix = strlen(SEGMENT_SUFFIX);
    return length > suffix && length < INDEX_NAME_BYTES && !strcmp(name + length - suffix, SEGMENT_SUFFIX);
}

/* Made by a process of this host, which tells the index itself as long as it lives. */
static bool is_of_this_host(const struct store *store, const char *name) {
    size_t length = strlen(store->host);
    return !strncmp(name, store->host, length) && name[length] == '-';
}

struct learning {
    struct store *store;
    struct segment_record *records;
    int64_t *offsets;
    int32_t count;
    struct index_segment *segment;
    uint32_t number;
    enum result status;
    int64_t entries; /* added */
    double deadline; /* on the clock of the day: later segments are left for another time */
    bool complete;
};

/* When a learned entry was used is known to its own host only: at best it has half of its time left. */
static double guessed_use(const struct store *store, const struct segment_record *record) {
    double half = wall_clock() - store->policy.keep_seconds[record->entry.traffic] / 2;
    return record->created > half ? record->created : half;
}

static enum result learn_records(struct learning *learning, struct index_change *change) {
    for (int32_t i = 0; i < learning->count; i++) {
        const struct segment_record *record = &learning->records[i];
        struct index_entry entry;
        struct index_segment other;
        if (index_get(change, &record->key, &entry) && index_get_segment(change, entry.segment, &other))
            continue; /* it is known, at a place that is known */
        entry = (struct index_entry){.offset = learning->offsets[i],
            .bytes = record->payload_bytes,
            .checksum = record->checksum,
            .created = record->created,
            .last_used = guessed_use(learning->store, record),
            .segment = learning->number,
            .traffic = (uint32_t)record->entry.traffic,
            .first_token = record->entry.first_token,
            .cost_seconds = record->entry.cost_seconds};
        TRY(index_put(change, &record->key, &entry));
        learning->entries++;
    }
    return OK;
}

/* Writes down the collected records, and how far the segment is known. */
static enum result learn_some(struct learning *learning, int64_t end) {
    struct index_change change;
    struct index_segment now;
    TRY(index_begin(learning->store->index, &change));
    enum result status = OK;
    if (learning->number == 0) {
        status = index_next_segment(&change, &learning->number);
        if (status == OK)
            status = index_put_segment(&change, learning->number, learning->segment);
    }
    if (status == OK)
        status = learn_records(learning, &change);
    if (status == OK && index_get_segment(&change, learning->number, &now)) {
        now.scanned = end;
        status = index_put_segment(&change, learning->number, &now);
    }
    learning->count = 0;
    return index_end(&change, status);
}

static bool collect_record(void *context, int64_t offset, const struct segment_record *record) {
    struct learning *learning = context;
    learning->records[learning->count] = *record;
    learning->offsets[learning->count++] = offset;
    if (learning->count == STORE_LEARNED)
        learning->status = learn_some(learning, offset + segment_stride(record->payload_bytes));
    return learning->status == OK;
}

static enum result scan_segment(
    struct learning *learning, const char *path, int fd, const struct segment_header *header, int64_t from) {
    int64_t end, damaged;
    char what[128];
    TRY(segment_scan(path, fd, header, from, collect_record, learning, &end, &damaged));
    TRY(learning->status);
    if (learning->count > 0 || learning->number == 0)
        TRY(learn_some(learning, end));
    if (damaged > 0) {
        snprintf(what, sizeof what, "%lld records are damaged; their blocks are computed again",
            (long long)damaged);
        store_report(learning->store, path, -1, what);
        atomic_fetch_add(&learning->store->damaged, damaged);
    }
    return OK;
}

/* `known` is NULL for a segment that is new to the index. Faults of a file are reported and pass over it. */
static enum result learn_segment(struct learning *learning, const char *name, struct known_segment *known) {
    struct store *store = learning->store;
    char path[STORE_PATH_BYTES];
    struct segment_header header;
    struct stat found;
    int fd;
    store_segment_path(store, name, path, sizeof path);
    if (known && (stat(path, &found) ||
                     found.st_size < known->segment.scanned + segment_stride(known->segment.payload_bytes)))
        return OK;
    if (is_of_this_host(store, name) && segment_is_written(path))
        return OK;
    enum result status = segment_open(path, &fd, &header);
    if (status != OK) {
        if (status != ERROR_IO || errno != ENOENT) /* upkeep may have removed it just now */
            store_report(store, store->folder, -1, failure_message());
        return OK;
    }
    struct index_segment segment = {.space = header.space, .payload_bytes = header.payload_bytes};
    memcpy(segment.name, name, strlen(name) + 1);
    learning->segment = known ? &known->segment : &segment;
    learning->number = known ? known->number : 0;
    learning->count = 0;
    if (!known || known->segment.payload_bytes == header.payload_bytes)
        status = scan_segment(learning, path, fd, &header, known ? known->segment.scanned : 0);
    close(fd);
    return status;
}

/* A process that was killed between making a segment and giving it its name. */
static void remove_unfinished(const struct store *store, const char *name) {
    char path[STORE_PATH_BYTES];
    struct stat found;
    size_t length = strlen(name), suffix = strlen(SEGMENT_UNFINISHED);
    if (length <= suffix || strcmp(name + length - suffix, SEGMENT_UNFINISHED))
        return;
    store_segment_path(store, name, path, sizeof path);
    if (stat(path, &found) == 0 && wall_clock() - (double)found.st_mtime > UNFINISHED_SECONDS)
        unlink(path);
}

static enum result learn_folder(struct learning *learning, struct known_segments *known) {
    struct store *store = learning->store;
    char path[STORE_PATH_BYTES];
    enum result status = OK;
    snprintf(path, sizeof path, "%s/segments", store->folder);
    DIR *folder = opendir(path);
    if (!folder)
        return fail_errno(ERROR_IO, "%s", path);
    for (struct dirent *item; status == OK && (item = readdir(folder));) {
        struct known_segment key = {0}, *found = NULL;
        if (!is_segment_name(item->d_name)) {
            remove_unfinished(store, item->d_name);
            continue;
        }
        if (wall_clock() > learning->deadline) {
            learning->complete = false;
            break;
        }
        memcpy(key.segment.name, item->d_name, strlen(item->d_name) + 1);
        if (known->count > 0)
            found = bsearch(&key, known->items, (size_t)known->count, sizeof key, by_name);
        if (found)
            found->seen = true;
        status = learn_segment(learning, item->d_name, found);
    }
    closedir(folder);
    return status;
}

static void forget_gone(struct store *store, const struct known_segments *known) {
    int64_t segments = 0, blocks = 0;
    const char *name = NULL;
    for (int32_t i = 0; i < known->count; i++) {
        const struct known_segment *one = &known->items[i];
        struct index_segment now;
        if (one->seen || !index_find_segment(store->index, one->number, &now))
            continue; /* it is there, or upkeep by another process of this host has just ended it in good order */
        store_forget(store, NULL, one->number, -1);
        segments += one->segment.entries > 0;
        blocks += one->segment.entries;
        name = one->segment.entries > 0 ? one->segment.name : name;
    }
    char what[INDEX_NAME_BYTES + 160];
    snprintf(what, sizeof what,
        "%lld segments are gone, by another host's upkeep or by hand, such as %s; their %lld blocks are "
        "computed again",
        (long long)segments, name ? name : "", (long long)blocks);
    if (blocks > 0)
        store_report(store, store->folder, -1, what);
}

enum result store_learn(struct store *store, double seconds) {
    struct known_segments known = {0};
    struct learning learning = {
        .store = store, .status = OK, .complete = true, .deadline = wall_clock() + seconds};
    learning.records = malloc(STORE_LEARNED * sizeof *learning.records);
    learning.offsets = malloc(STORE_LEARNED * sizeof *learning.offsets);
    enum result status = index_each_segment(store->index, collect_segment, &known);
    if (status == OK && (known.failed || !learning.records || !learning.offsets))
        status = fail(ERROR_MEMORY, "%s: no memory to read what it holds", store->folder);
    if (status == OK) {
        if (known.count > 0)
            qsort(known.items, (size_t)known.count, sizeof *known.items, by_name);
        status = learn_folder(&learning, &known);
    }
    if (status == OK && learning.complete)
        forget_gone(store, &known);
    if (learning.entries > 0)
        log_verbose("prefix cache %s: %lld blocks of segments that are new to this host's index%s",
            store->folder, (long long)learning.entries, learning.complete ? "" : "; more is learned later");
    store->next_learning = wall_clock() + STORE_LEARN_AGAIN;
    free(known.items);
    free(learning.records);
    free(learning.offsets);
    return status;
}

int64_t store_measure(const struct store *store) {
    char path[STORE_PATH_BYTES];
    int64_t bytes = 0;
    snprintf(path, sizeof path, "%s/segments", store->folder);
    DIR *folder = opendir(path);
    if (!folder)
        return 0;
    for (struct dirent *item; (item = readdir(folder));) {
        struct stat found;
        if (is_segment_name(item->d_name) && fstatat(dirfd(folder), item->d_name, &found, 0) == 0)
            bytes += found.st_size;
    }
    closedir(folder);
    return bytes;
}

/* ---- opening ---- */

static enum result make_folders(const struct store *store) {
    char path[STORE_PATH_BYTES];
    struct stat found;
    snprintf(path, sizeof path, "%s/segments", store->folder);
    if (store->options.existing)
        return stat(path, &found) == 0
                   ? OK
                   : fail_errno(ERROR_INPUT, "%s: it is no folder of a prefix cache", store->folder);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int failed = mkdir(path, 0777) && errno != EEXIST;
        if (failed && stat(path, &found) != 0)
            return fail_errno(ERROR_IO, "%s: the folder cannot be made", path);
        *slash = '/';
    }
    if (mkdir(path, 0777) && errno != EEXIST)
        return fail_errno(ERROR_IO, "%s: the folder cannot be made", path);
    return OK;
}

static void name_host(struct store *store) {
    if (store->options.host)
        snprintf(store->host, sizeof store->host, "%s", store->options.host);
    else if (gethostname(store->host, sizeof store->host))
        snprintf(store->host, sizeof store->host, "localhost");
    store->host[sizeof store->host - 1] = 0;
    for (char *at = store->host; *at; at++)
        if (*at == '/')
            *at = '_';
}

static enum result open_index(struct store *store) {
    int64_t map = store->options.limit / MAP_SHARE;
    map = map < LEAST_MAP_BYTES ? LEAST_MAP_BYTES : map < MOST_MAP_BYTES ? map / 4096 * 4096 : MOST_MAP_BYTES;
    enum result status = index_open(store->index_path, map, &store->index);
    if (status != ERROR_INPUT)
        return status;
    store_report(store, store->index_path, -1, failure_message());
    TRY(index_set_aside(store->index_path));
    log_warning("prefix cache: %s is set aside as %s.damaged and made again from the segments",
        store->index_path, store->index_path);
    return index_open(store->index_path, map, &store->index);
}

/* Processes of a host that start together wait for each other here: the first one learns, and those that have waited for it do not
 * make others wait as long again. */
static double seconds_to_learn(double waited) {
    return waited < 1 ? OPEN_LEARN_SECONDS : waited < OPEN_LEARN_SECONDS / 2.0 ? 1 : 0;
}

static enum result open_locked(struct store *store) {
    char name[STORE_HOST_BYTES + 16];
    double begin = wall_clock();
    snprintf(name, sizeof name, "index-%s.lock", store->host);
    int lock = store_lock(store, name, LOCK_SECONDS);
    if (lock == -1)
        return fail(ERROR_IO, "%s: another process has held %s for %d s", store->folder, name, LOCK_SECONDS);
    enum result status = open_index(store);
    if (status == OK && store_learn(store, seconds_to_learn(wall_clock() - begin)) != OK)
        store_report(store, store->folder, -1, failure_message()); /* what the index knows can be used */
    if (lock >= 0)
        close(lock);
    return status;
}

static enum result allocate(struct store *store) {
    store->files = calloc(STORE_OPEN_FILES, sizeof *store->files);
    store->forgotten = malloc(STORE_MOST_FORGOTTEN * sizeof *store->forgotten);
    store->used = malloc(STORE_MOST_USES * sizeof *store->used);
    return store->files && store->forgotten && store->used
               ? OK
               : fail(ERROR_MEMORY, "%s: no memory for a prefix cache's folder", store->folder);
}

static int64_t choose_segment_bytes(int64_t limit) {
    int64_t bytes = limit / SEGMENTS_OF_LIMIT;
    return bytes < LEAST_SEGMENT_BYTES ? LEAST_SEGMENT_BYTES
                                       : (bytes < MOST_SEGMENT_BYTES ? bytes : MOST_SEGMENT_BYTES);
}

enum result store_open(const struct store_options *options, struct store **store) {
    struct store *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "%s: no memory for a prefix cache's folder", options->folder);
    made->options = *options;
    made->policy = options->policy;
    made->writer.fd = -1;
    made->segment_bytes = choose_segment_bytes(options->limit);
    pthread_mutex_init(&made->files_lock, NULL);
    pthread_mutex_init(&made->notes_lock, NULL);
    name_host(made);
    enum result status = allocate(made);
    int length = snprintf(made->folder, sizeof made->folder, "%s", options->folder);
    if (status == OK && length >= (int)sizeof made->folder)
        status = fail(ERROR_USAGE, "%s: the name of the folder is too long", options->folder);
    snprintf(made->index_path, sizeof made->index_path, "%s/index-%s", made->folder, made->host);
    if (status == OK)
        status = make_folders(made);
    if (status == OK)
        status = open_locked(made);
    if (status != OK) {
        int error = errno;
        store_close(made);
        errno = error;
        return status;
    }
    made->bytes = store_measure(made);
    if (!options->still)
        store_upkeep(made, -1, 0);
    *store = made;
    return OK;
}

void store_close(struct store *store) {
    if (!store)
        return;
    if (store->index && !store->options.still)
        store_settle(store);
    store_seal(store);
    if (store->reports > STORE_LOUD_REPORTS)
        log_warning("prefix cache %s: %d faults in all", store->folder, store->reports);
    for (int i = 0; store->files && i < STORE_OPEN_FILES; i++)
        if (store->files[i].number)
            close(store->files[i].fd);
    index_close(store->index);
    pthread_mutex_destroy(&store->files_lock);
    pthread_mutex_destroy(&store->notes_lock);
    free(store->files);
    free(store->forgotten);
    free(store->used);
    free(store);
}

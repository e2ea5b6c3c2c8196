#include "cluster/watch.h"

#include "base/beacon.h"
#include "base/log.h"

#include "cluster/processes.h"

#include <fcntl.h> /* open */
#include <pthread.h>
#include <signal.h>   /* pthread_sigmask */
#include <stdio.h>    /* snprintf */
#include <string.h>   /* memcpy */
#include <sys/mman.h> /* memfd_create, mmap */
#include <time.h>     /* clock_gettime */
#include <unistd.h>   /* getpid, gethostname, _exit */

/* ---- the ranks of a node ---- */

struct watch_member {
    int64_t pid, started;
    int32_t world_rank;
    _Atomic int32_t visible; /* its processes can be seen from the others' */
    struct beacon beacon;
};

struct watch_node {
    _Atomic int32_t speakers;
    struct watch_member members[];
};

struct ticket {
    int64_t pid, started, descriptor;
    int32_t world_rank;
};
_Static_assert(sizeof(struct ticket) <= WATCH_TICKET_BYTES, "a ticket fits");

static struct watch_node *node; /* NULL: this process sees no other */
static int32_t member_count, own_member;
static int memory = -1;
static _Atomic int32_t lost_rank = -1;
static _Atomic int32_t lone_speakers;

static size_t node_bytes(int32_t count) {
    return sizeof(struct watch_node) + (size_t)count * sizeof(struct watch_member);
}

void watch_ticket(
    int32_t world_rank, int32_t node_rank, int32_t node_count, unsigned char ticket[WATCH_TICKET_BYTES]) {
    struct ticket own = {.pid = getpid(), .descriptor = -1, .world_rank = world_rank};
    process_state(own.pid, &own.started);
    own_member = node_rank;
    member_count = node_count;
    if (node_rank == 0 && node_count > 1) {
        memory = memfd_create("nocturne", MFD_CLOEXEC);
        if (memory >= 0 && ftruncate(memory, (off_t)node_bytes(node_count)) == 0)
            own.descriptor = memory;
    }
    memset(ticket, 0, WATCH_TICKET_BYTES);
    memcpy(ticket, &own, sizeof own);
}

/* The memory that the node's first rank made, through its entry in /proc. */
static struct watch_node *map_memory(const struct ticket *first) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)first->pid, (long long)first->descriptor);
    int fd = first->descriptor < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    size_t bytes = node_bytes(member_count);
    void *mapped = lseek(fd, 0, SEEK_END) == (off_t)bytes
                       ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

void watch_share(const unsigned char *tickets) {
    struct ticket first, own;
    int64_t started;
    memcpy(&first, tickets, sizeof first);
    memcpy(&own, tickets + (size_t)own_member * WATCH_TICKET_BYTES, sizeof own);
    if (member_count < 2 || !process_state(first.pid, &started) || started != first.started)
        return; /* alone, or its number means another process here (containers) */
    struct watch_node *mapped = map_memory(&first);
    if (!mapped)
        return;
    struct watch_member *self = &mapped->members[own_member];
    self->pid = own.pid;
    self->started = own.started;
    self->world_rank = own.world_rank;
    beacon_move(&self->beacon);
    atomic_store(&self->visible, 1);
    node = mapped;
}

void watch_unticket(void) {
    if (memory >= 0)
        close(memory);
    memory = -1;
}

static char member_state(const struct watch_member *member) {
    int64_t started;
    char state = process_state(member->pid, &started);
    return started == member->started ? state : 0;
}

static enum watch_sight describe_member(
    const struct watch_member *member, const char *host, struct buffer *text) {
    char place[1024], state = member_state(member);
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    beacon_describe(&member->beacon, place, sizeof place);
    enum watch_sight sight = process_is_gone(state)      ? WATCH_GONE
                             : process_is_stopped(state) ? WATCH_STOPPED
                             : member->beacon.waits      ? WATCH_WAITS
                                                         : WATCH_BUSY;
    static const char *const words[] = {[WATCH_UNSEEN] = "",
        [WATCH_GONE] = "has gone without a word (killed, out of memory, or crashed)",
        [WATCH_STOPPED] = "is stopped (by a signal or a debugger)",
        [WATCH_BUSY] = "is alive",
        [WATCH_WAITS] = "waits for other ranks"};
    buffer_printf(text, "rank %d on %s (process %lld) %s%s, last seen %lld s ago in %s", member->world_rank,
        host, (long long)member->pid, words[sight], state == 'D' ? " in an uninterruptible system call" : "",
        (long long)(now.tv_sec - member->beacon.seconds), place);
    return sight;
}

enum watch_sight watch_describe(int32_t world_rank, const char *host, struct buffer *text) {
    for (int32_t i = 0; node && i < member_count; i++)
        if (node->members[i].visible && node->members[i].world_rank == world_rank)
            return describe_member(&node->members[i], host, text);
    return WATCH_UNSEEN;
}

bool watch_describe_stuck(const char *host, struct buffer *text) {
    bool found = false;
    for (int32_t i = 0; node && i < member_count; i++) {
        const struct watch_member *member = &node->members[i];
        char state = member->visible && i != own_member ? member_state(member) : 'R';
        bool gone = process_is_gone(state) && member->beacon.left == BEACON_HERE;
        if (!gone && !process_is_stopped(state))
            continue;
        buffer_append_text(text, "; ");
        (void)describe_member(member, host, text);
        found = true;
    }
    return found;
}

void watch_describe_late(const char *host, struct buffer *text) {
    for (int32_t i = 0; node && i < member_count; i++) {
        const struct watch_member *member = &node->members[i];
        if (!member->visible || i == own_member || member->beacon.left != BEACON_HERE)
            continue;
        buffer_append_text(text, "; no sign of ");
        (void)describe_member(member, host, text);
    }
}

int32_t watch_lost(void) {
    return atomic_load_explicit(&lost_rank, memory_order_relaxed);
}

bool watch_speaks(void) {
    return atomic_fetch_add(node ? &node->speakers : &lone_speakers, 1) == 0;
}

/* ---- the thread ---- */

static const double PERIOD = 0.2; /* seconds between two looks */
static const double MOST_COUNTED =
    1;                          /* of the time between two looks: more means that this process was stopped */
static const double SLACK = 15; /* the main thread's own deadlines come first */
static const double GRACE = 2;  /* for the main thread to end the run after a rank was lost */
static const double LEFT_GRACE = 5; /* for the launcher to end the run after a rank left with a message */

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running, stop, only_files;
    double deadline;
    char host[256];
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double seconds_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static _Noreturn void leave(enum result code) {
    beacon_leave(BEACON_LEFT_ALONE);
    remove_shared_memory();
    _exit(code);
}

/* Ends a process whose main thread has been at one place for too long. */
static void check_own(double stalled) {
    const struct beacon *own = beacon_own();
    char place[1024];
    bool in_file = own->in_file;
    if (stalled <= watch.deadline || (!in_file && (watch.only_files || stalled <= watch.deadline + SLACK)))
        return;
    beacon_describe(own, place, sizeof place);
    bool speaks = watch_speaks();
    if (in_file)
        log_error("process %ld on %s: a call to the file system has not returned for %.0f s: %s. The run is "
                  "ended: look "
                  "at that file system and its servers, then run the same command again",
            (long)getpid(), watch.host, stalled, place);
    else if (speaks)
        log_error("process %ld on %s has made no progress for %.0f s: %s. The run is ended: look for a hung "
                  "device or "
                  "network (system log), then run the same command again",
            (long)getpid(), watch.host, stalled, place);
    leave(in_file ? ERROR_IO : ERROR_RANKS);
}

/* Ranks of this node that have gone. */
static void check_others(double *lost_since, double *left_since, double now) {
    const struct watch_member *gone = NULL;
    bool left = false;
    for (int32_t i = 0; node && i < member_count && !gone; i++) {
        const struct watch_member *member = &node->members[i];
        int32_t how = member->beacon.left;
        if (i == own_member || !member->visible || how == BEACON_LEFT_TOGETHER ||
            !process_is_gone(member_state(member)))
            continue;
        if (how == BEACON_LEFT_ALONE)
            left = true;
        else
            gone = member;
    }
    if (left && *left_since == 0)
        *left_since = now;
    if (*left_since > 0 && now - *left_since > LEFT_GRACE)
        leave(ERROR_RANKS); /* its message has told why */
    if (!gone)
        return;
    if (*lost_since == 0) {
        *lost_since = now;
        atomic_store(
            &lost_rank, gone->world_rank); /* a main thread that waits for ranks ends the run itself */
        return;
    }
    if (now - *lost_since < GRACE)
        return;
    if (watch_speaks()) {
        struct buffer text = {0};
        describe_member(gone, watch.host, &text);
        log_error("%s. The run is ended: look for its own message and the system's log, then run the same "
                  "command again",
            text.data);
        buffer_free(&text);
    }
    leave(ERROR_RANKS);
}

static void *watch_main(void *argument) {
    (void)argument;
    double last = seconds_now(), stalled = 0, lost_since = 0, left_since = 0;
    int64_t progress = -1;
    pthread_mutex_lock(&watch.lock);
    while (!watch.stop) {
        struct timespec end;
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_nsec += (long)(PERIOD * 1e9);
        end.tv_sec += end.tv_nsec / 1000000000;
        end.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&watch.wake, &watch.lock, &end);
        if (watch.stop)
            break;
        pthread_mutex_unlock(&watch.lock);
        double now = seconds_now(), passed = now - last;
        int64_t found = atomic_load_explicit(&beacon_own()->progress, memory_order_acquire);
        stalled = found != progress ? 0 : stalled + (passed < MOST_COUNTED ? passed : MOST_COUNTED);
        progress = found;
        last = now;
        check_own(stalled);
        check_others(&lost_since, &left_since, now);
        pthread_mutex_lock(&watch.lock);
    }
    pthread_mutex_unlock(&watch.lock);
    return NULL;
}

void watch_start(double deadline_seconds, const char *host, bool only_files) {
    if (watch.running)
        return;
    watch.deadline = deadline_seconds;
    watch.only_files = only_files;
    watch.stop = false;
    if (host)
        snprintf(watch.host, sizeof watch.host, "%s", host);
    else if (gethostname(watch.host, sizeof watch.host - 1) != 0)
        snprintf(watch.host, sizeof watch.host, "unknown host");
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&watch.wake, &attributes);
    pthread_condattr_destroy(&attributes);
    /* Signals go to the main thread, whose waits they shall interrupt. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watch.running = pthread_create(&watch.thread, NULL, watch_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void watch_stop(void) {
    if (!watch.running)
        return;
    pthread_mutex_lock(&watch.lock);
    watch.stop = true;
    pthread_cond_signal(&watch.wake);
    pthread_mutex_unlock(&watch.lock);
    pthread_join(watch.thread, NULL);
    pthread_cond_destroy(&watch.wake);
    watch.running = false;
}

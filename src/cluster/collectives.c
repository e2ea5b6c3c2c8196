#include "cluster/collectives.h"

#include "base/beacon.h"
#include "base/buffer.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "cluster/group.h"
#include "cluster/processes.h"
#include "cluster/watch.h"

#include <limits.h>       /* INT_MAX */
#include <sched.h>        /* sched_yield */
#include <stdio.h>        /* snprintf */
#include <stdlib.h>       /* calloc, free */
#include <string.h>       /* memcpy */
#include <sys/resource.h> /* getrusage */
#include <time.h>         /* clock_gettime, nanosleep */

enum { TAG_DATA = 1, TAG_NOTE = 2 };

double cluster_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int32_t group_rank(const struct group *group) {
    return group->rank;
}

int32_t group_size(const struct group *group) {
    return group->size;
}

double group_seconds(const struct group *group) {
    return group->seconds;
}

int64_t group_bytes_sent(const struct group *group) {
    return group->bytes_sent;
}

/* ---- a group's life ---- */

enum result group_mpi(const struct group *group, const char *what, int code) {
    if (code == MPI_SUCCESS)
        return OK;
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length;
    MPI_Error_string(code, text, &length);
    if (!group)
        return fail(ERROR_RANKS, "%s: MPI reports: %s", what, text);
    const struct group_member *self = &group->members[group->rank];
    return fail(ERROR_RANKS, "rank %d on %s, %s: MPI reports: %s", self->world_rank, self->host, what, text);
}

static enum result group_allocate(struct group *group) {
    size_t size = (size_t)group->size;
    group->members = calloc(size, sizeof *group->members);
    group->requests = calloc(2 * size + 1, sizeof *group->requests);
    group->statuses = calloc(2 * size + 1, sizeof *group->statuses);
    group->notes = calloc(size, sizeof *group->notes);
    group->checks = calloc(size, sizeof *group->checks);
    group->note_requests = calloc(size, sizeof *group->note_requests);
    if (!group->members || !group->requests || !group->statuses || !group->notes || !group->checks ||
        !group->note_requests)
        return fail(ERROR_MEMORY, "out of memory for a group of %d ranks", group->size);
    for (size_t r = 0; r < size; r++)
        group->note_requests[r] = MPI_REQUEST_NULL;
    return OK;
}

enum result group_create(MPI_Comm communicator, int32_t world_rank, const char *host, double deadline,
    bool crowded, struct group **created) {
    enum result status = OK;
    struct group *group = calloc(1, sizeof *group);
    if (!group)
        return fail(ERROR_MEMORY, "out of memory for a group of ranks");
    group->communicator = communicator;
    group->deadline = deadline;
    group->crowded = crowded;
    group->most_message_bytes = (int64_t)1 << 30;
#ifndef NDEBUG
    group->check_arguments = true;
#endif
    TRY_GOTO(status,
        group_mpi(NULL, "communicator", MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN)), done);
    TRY_GOTO(status, group_mpi(NULL, "communicator", MPI_Comm_rank(communicator, &group->rank)), done);
    TRY_GOTO(status, group_mpi(NULL, "communicator", MPI_Comm_size(communicator, &group->size)), done);
    TRY_GOTO(status, group_allocate(group), done);
    struct group_member self = {.world_rank = world_rank};
    snprintf(self.host, sizeof self.host, "%s", host);
    int bytes = (int)sizeof self;
    TRY_GOTO(status,
        group_mpi(NULL, "exchange of host names",
            MPI_Allgather(&self, bytes, MPI_BYTE, group->members, bytes, MPI_BYTE, communicator)),
        done);
done:
    if (status != OK) {
        group_free(group);
        group = NULL;
    }
    *created = group;
    return status;
}

void group_free(struct group *group) {
    if (!group)
        return;
    for (int32_t r = 0; group->note_requests && r < group->size; r++)
        if (group->note_requests[r] != MPI_REQUEST_NULL)
            MPI_Request_free(&group->note_requests[r]);
    if (group->communicator != MPI_COMM_WORLD && group->communicator != MPI_COMM_NULL)
        MPI_Comm_free(&group->communicator);
    free(group->members);
    free(group->requests);
    free(group->statuses);
    free(group->notes);
    free(group->checks);
    free(group->note_requests);
    free(group->scratch[0]);
    free(group->scratch[1]);
    free(group);
}

enum result group_scratch(struct group *group, int32_t which, size_t bytes, void **scratch) {
    if (bytes > group->scratch_bytes[which]) {
        size_t wanted = (bytes + bytes / 4 + 63) / 64 * 64;
        void *grown = aligned_alloc(64, wanted);
        if (!grown)
            return fail(ERROR_MEMORY, "out of memory: %zu bytes to exchange rows between ranks", wanted);
        free(group->scratch[which]);
        group->scratch[which] = grown;
        group->scratch_bytes[which] = wanted;
    }
    *scratch = group->scratch[which];
    return OK;
}

/* ---- waiting ---- */

/* Tells every other rank where this one waits. */
static void send_notes(struct group *group) {
    int done = 0;
    MPI_Testall(group->size, group->note_requests, &done, MPI_STATUSES_IGNORE);
    if (!done)
        return; /* earlier notes still lie unread; those ranks are not listening */
    for (int32_t r = 0; r < group->size; r++)
        if (r != group->rank)
            MPI_Isend(&group->own_note, (int)sizeof group->own_note, MPI_BYTE, r, TAG_NOTE,
                group->communicator, &group->note_requests[r]);
}

/* Takes in the notes of others; true when one of them waits in this call (or a later one) and should hear from us. */
static bool read_notes(struct group *group) {
    bool asked = false;
    for (;;) {
        int there = 0;
        MPI_Status status;
        struct group_note note;
        if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_NOTE, group->communicator, &there, &status) != MPI_SUCCESS ||
            !there)
            return asked;
        if (MPI_Recv(&note, (int)sizeof note, MPI_BYTE, status.MPI_SOURCE, TAG_NOTE, group->communicator,
                MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return asked;
        note.what[sizeof note.what - 1] = '\0';
        group->notes[status.MPI_SOURCE] = note;
        asked |= note.call >= group->calls;
    }
}

/* Appends the ranks of the group that have not come to this call and, from here, look like `sight`; returns how many. */
static int32_t name_missing(const struct group *group, enum watch_sight wanted, struct buffer *text) {
    enum { MOST_NAMED = 8 };
    int32_t count = 0;
    for (int32_t r = 0; r < group->size; r++) {
        const struct group_member *member = &group->members[r];
        if (r == group->rank || group->notes[r].call == group->calls)
            continue;
        struct buffer sight = {0};
        bool is_wanted = watch_describe(member->world_rank, member->host, &sight) == wanted;
        if (is_wanted && count++ < MOST_NAMED) {
            if (wanted == WATCH_UNSEEN && group->notes[r].what[0])
                buffer_printf(&sight, "rank %d on %s, last heard of in '%s'", member->world_rank,
                    member->host, group->notes[r].what);
            else if (wanted == WATCH_UNSEEN)
                buffer_printf(&sight, "rank %d on %s", member->world_rank, member->host);
            buffer_printf(text, "%s%s", count == 1 ? "; no sign of " : ", ", sight.data);
        }
        buffer_free(&sight);
    }
    if (count > MOST_NAMED)
        buffer_printf(text, " and %d more", count - MOST_NAMED);
    return count;
}

/* Who did not come: first those that are gone or stopped, in this group or not, for others may only wait for them in turn. */
static void name_culprits(const struct group *group, struct buffer *text) {
    if (watch_describe_stuck(group->members[group->rank].host, text))
        return;
    if (name_missing(group, WATCH_BUSY, text) + name_missing(group, WATCH_UNSEEN, text) > 0)
        return;
    if (!name_missing(group, WATCH_WAITS, text))
        buffer_append_text(text, "; all ranks have come, but their messages have not");
}

/* Prints who waits for whom and ends the run. */
static _Noreturn void give_up(const struct group *group, const char *what, double waited) {
    struct buffer text = {0};
    char place[1024];
    const struct group_member *self = &group->members[group->rank];
    if (watch_speaks()) {
        beacon_describe(beacon_own(), place, sizeof place);
        buffer_printf(&text, "rank %d on %s waited %.1f s in '%s' (call %lld of a group of %d ranks; %s)",
            self->world_rank, self->host, waited, what, (long long)group->calls, group->size, place);
        name_culprits(group, &text);
        log_error("%s; the run is aborted. Look at those ranks' own messages and hosts (stopped, out of "
                  "memory, a slow "
                  "disk?), then run the same command again",
            text.data);
        buffer_free(&text);
    } else {
        /* The one that speaks ends us all. A second MPI_Abort at that time has made mpirun crash. */
        const struct timespec time = {.tv_sec = 5};
        nanosleep(&time, NULL);
        beacon_leave(BEACON_LEFT_ALONE);
        _Exit(ERROR_RANKS);
    }
    beacon_leave(BEACON_LEFT_ALONE);
    remove_shared_memory();
    MPI_Abort(MPI_COMM_WORLD, ERROR_RANKS);
    _Exit(ERROR_RANKS);
}

/* One step of patience: spin (not on crowded cores), then let others have the core, then sleep ever longer up to 0.2 ms. The
 * sleep comes soon after the spinning: who yields to a process that computes gets the core back after its whole slice of
 * milliseconds only, who wakes up gets it at once. */
static void pause_step(const struct group *group, int64_t step) {
    enum { SPINS = 2000, YIELDS = 20, NAPS = 100 };
    int64_t spins = group->crowded ? 0 : SPINS;
    if (step < spins)
        return;
    if (step < spins + YIELDS) {
        sched_yield();
        return;
    }
    struct timespec time = {.tv_nsec = step < spins + YIELDS + NAPS ? 20000 : 200000};
    nanosleep(&time, NULL);
}

/* One look at the requests; group->complete tells whether all are done. */
static enum result test_requests(struct group *group, const char *what, int32_t count) {
    int done = 0;
    int code = MPI_Testall(count, group->requests, &done, group->statuses);
    for (int32_t i = 0; code == MPI_ERR_IN_STATUS && i < count; i++)
        if (group->statuses[i].MPI_ERROR != MPI_SUCCESS && group->statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            code = group->statuses[i].MPI_ERROR;
    group->complete = done;
    return group_mpi(group, what, code);
}

enum result group_poll(struct group *group, const char *what, int32_t count) {
    /* On crowded cores MPI would give the core away, in the midst of the caller's work. */
    if (group->complete || !count || group->crowded)
        return OK;
    enum work_part before = stopwatch_switch(WORK_EXCHANGE);
    enum result status = test_requests(group, what, count);
    (void)stopwatch_switch(before);
    return status;
}

/* MPI doesn't tell when it copies, but a look at the requests that takes this rank's processor for longer than this has moved
 * data; others take some tenths of a microsecond. On crowded cores MPI gives the core away in a look that finds nothing, which
 * takes long too, but shows as a switch to another process. */
static const double MOVING_SECONDS = 3e-6;

struct moment {
    double processor; /* seconds */
    long switches;
};

static struct moment take_moment(const struct group *group) {
    struct timespec time;
    struct rusage usage = {.ru_nivcsw = 0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    if (group->crowded)
        getrusage(RUSAGE_THREAD, &usage);
    return (struct moment){
        (double)time.tv_sec + 1e-9 * (double)time.tv_nsec, usage.ru_nvcsw + usage.ru_nivcsw};
}

/* Seconds between two moments if data moved. */
static double moving_time(struct moment begin, struct moment end) {
    double took = end.processor - begin.processor;
    return took > MOVING_SECONDS && end.switches == begin.switches ? took : 0;
}

/* group_wait without its times; *moving gets the seconds in which data moved. */
static enum result wait_for_requests(struct group *group, const char *what, int32_t count, double *moving) {
    const double most_counted =
        1; /* of the time between two looks: more means that this process was stopped meanwhile */
    double last = cluster_now(), waited = 0;
    bool told = false;
    beacon_wait(what);
    for (int64_t step = 0;; step++) {
        struct moment begin = take_moment(group);
        TRY(test_requests(group, what, count));
        *moving += moving_time(begin, take_moment(group));
        if (group->complete) {
            beacon_wait(NULL);
            return OK;
        }
        pause_step(group, step);
        if (step % 64)
            continue;
        double now = cluster_now(), passed = now - last;
        waited += passed < most_counted ? passed : most_counted;
        last = now;
        if (waited > 0.05 && (read_notes(group) || waited > group->deadline / 2) && !told) {
            send_notes(group);
            told = true;
        }
        if (waited > group->deadline || watch_lost() >= 0)
            give_up(group, what, waited);
    }
}

enum result group_wait(struct group *group, const char *what, int32_t count) {
    if (group->complete) {
        group->complete = false;
        return OK;
    }
    double start = cluster_now(), moving = 0;
    enum work_part before = stopwatch_switch(WORK_WAITING);
    enum result status = wait_for_requests(group, what, count, &moving);
    stopwatch_claim(WORK_EXCHANGE, moving);
    (void)stopwatch_switch(before);
    group->complete = false;
    group->seconds += cluster_now() - start;
    return status;
}

/* ---- the calls ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static enum result compare_arguments(struct group *group, const char *what) {
    int bytes = (int)sizeof group->own_note;
    TRY(group_mpi(group, what,
        MPI_Iallgather(&group->own_note, bytes, MPI_BYTE, group->checks, bytes, MPI_BYTE, group->communicator,
            &group->requests[0])));
    TRY(group_wait(group, what, 1));
    for (int32_t r = 0; r < group->size; r++) {
        const struct group_note *first = &group->checks[0], *other = &group->checks[r];
        if (other->hash == first->hash)
            continue;
        return fail(ERROR_INTERNAL,
            "ranks disagree on what they do together: rank %d is in call %lld '%s', rank %d in call %lld "
            "'%s' (or "
            "the sizes they pass differ)",
            group->members[0].world_rank, (long long)first->call, first->what, group->members[r].world_rank,
            (long long)other->call, other->what);
    }
    return OK;
}

enum result group_begin(struct group *group, const char *what, int64_t first, int64_t second) {
    group->calls++;
    group->complete = false;
    struct group_note *note = &group->own_note;
    note->call = group->calls;
    if (group->size == 1)
        return OK;
    size_t length = strnlen(what, sizeof note->what - 1);
    memcpy(note->what, what, length);
    note->what[length] = '\0';
    if (!group->check_arguments)
        return OK;
    note->hash = mix(mix(mix(0, (uint64_t)group->calls), (uint64_t)first), (uint64_t)second);
    for (size_t i = 0; i < length; i++)
        note->hash = mix(note->hash, (unsigned char)what[i]);
    return compare_arguments(group, what);
}

enum result group_post_send(
    struct group *group, const char *what, const void *data, int64_t bytes, int32_t to, int32_t *count) {
    group->bytes_sent += bytes;
    return group_mpi(group, what,
        MPI_Isend(
            data, (int)bytes, MPI_BYTE, to, TAG_DATA, group->communicator, &group->requests[(*count)++]));
}

enum result group_post_receive(
    struct group *group, const char *what, void *data, int64_t most_bytes, int32_t from, int32_t *count) {
    return group_mpi(group, what,
        MPI_Irecv(data, (int)most_bytes, MPI_BYTE, from, TAG_DATA, group->communicator,
            &group->requests[(*count)++]));
}

enum result group_barrier(struct group *group, const char *what) {
    TRY(group_begin(group, what, 0, 0));
    if (group->size == 1)
        return OK;
    TRY(group_mpi(group, what, MPI_Ibarrier(group->communicator, &group->requests[0])));
    return group_wait(group, what, 1);
}

static enum result reduce(
    struct group *group, const char *what, int64_t *values, int32_t count, MPI_Op operation) {
    TRY(group_begin(group, what, count, operation == MPI_SUM));
    if (group->size == 1 || count == 0)
        return OK;
    group->bytes_sent += (int64_t)sizeof *values * count;
    TRY(group_mpi(group, what,
        MPI_Iallreduce(
            MPI_IN_PLACE, values, count, MPI_INT64_T, operation, group->communicator, &group->requests[0])));
    return group_wait(group, what, 1);
}

enum result group_sum(struct group *group, const char *what, int64_t *values, int32_t count) {
    return reduce(group, what, values, count, MPI_SUM);
}

enum result group_max(struct group *group, const char *what, int64_t *values, int32_t count) {
    return reduce(group, what, values, count, MPI_MAX);
}

enum result group_broadcast(struct group *group, const char *what, int32_t root, void *data, size_t bytes) {
    TRY(group_begin(group, what, root, (int64_t)bytes));
    if (group->size == 1)
        return OK;
    if (root == group->rank)
        group->bytes_sent += (int64_t)bytes;
    for (size_t done = 0; done < bytes;) {
        size_t left = bytes - done, most = (size_t)group->most_message_bytes,
               piece = left < most ? left : most;
        TRY(group_mpi(group, what,
            MPI_Ibcast(
                (char *)data + done, (int)piece, MPI_BYTE, root, group->communicator, &group->requests[0])));
        TRY(group_wait(group, what, 1));
        done += piece;
    }
    return OK;
}

/* Bytes [*first, *first + result) of a message that the `round`th message carries. */
static int64_t piece_of(const struct group *group, int64_t bytes, int64_t round, int64_t *first) {
    *first = round * group->most_message_bytes;
    int64_t left = bytes - *first;
    return left < 0 ? 0 : left < group->most_message_bytes ? left : group->most_message_bytes;
}

/* Posts the next piece of each message. */
static enum result post_round(struct group *group, struct transfer *t) {
    int64_t at = 0, first;
    t->count = 0;
    t->more = false;
    group->complete = false;
    for (int32_t r = 0; r < group->size; r++) {
        int64_t total = t->receive_counts[r] * t->unit, bytes = piece_of(group, total, t->round, &first);
        if (r != group->rank && bytes)
            TRY(group_post_receive(group, t->what, t->receive + at + first, bytes, r, &t->count));
        t->more |= r != group->rank && first + bytes < total;
        at += total;
    }
    at = 0;
    for (int32_t r = 0; r < group->size; r++) {
        int64_t total = t->send_counts[t->same_for_all ? group->rank : r] * t->unit;
        int64_t bytes = piece_of(group, total, t->round, &first);
        if (r != group->rank && bytes)
            TRY(group_post_send(group, t->what, t->send + at + first, bytes, r, &t->count));
        t->more |= r != group->rank && first + bytes < total;
        at += t->same_for_all ? 0 : total;
    }
    t->round++;
    return OK;
}

/* Offset in bytes of rank r's share of a packed buffer. */
static int64_t offset_of(const int64_t *counts, int32_t r, int64_t unit) {
    int64_t sum = 0;
    for (int32_t i = 0; i < r; i++)
        sum += counts[i];
    return sum * unit;
}

enum result transfer_begin(struct group *group, struct transfer *t) {
    int64_t own = t->receive_counts[group->rank] * t->unit;
    int64_t from = t->same_for_all ? 0 : offset_of(t->send_counts, group->rank, t->unit);
    char *to = t->receive + offset_of(t->receive_counts, group->rank, t->unit);
    if (own && to != t->send + from)
        memmove(to, t->send + from, (size_t)own);
    t->round = 0;
    return post_round(group, t);
}

enum result transfer_end(struct group *group, struct transfer *t) {
    for (;;) {
        if (t->count)
            TRY(group_wait(group, t->what, t->count));
        if (!t->more)
            return OK;
        TRY(post_round(group, t));
    }
}

static enum result exchange_all(struct group *group, struct transfer *t) {
    TRY(transfer_begin(group, t));
    return transfer_end(group, t);
}

enum result group_all_gather(
    struct group *group, const char *what, const void *data, size_t bytes, void *out) {
    TRY(group_begin(group, what, (int64_t)bytes, 1));
    if (group->size == 1) {
        memmove(out, data, bytes);
        return OK;
    }
    group->bytes_sent += (int64_t)bytes;
    for (size_t done = 0; done < bytes;) {
        /* Pieces of one rank's data do not lie together in `out`: describe them by a type that leaves gaps. */
        size_t left = bytes - done, most = (size_t)group->most_message_bytes,
               piece = left < most ? left : most;
        MPI_Datatype block, spaced;
        TRY(group_mpi(group, what, MPI_Type_contiguous((int)piece, MPI_BYTE, &block)));
        TRY(group_mpi(group, what, MPI_Type_create_resized(block, 0, (MPI_Aint)bytes, &spaced)));
        TRY(group_mpi(group, what, MPI_Type_commit(&spaced)));
        enum result status = group_mpi(group, what,
            MPI_Iallgather((const char *)data + done, (int)piece, MPI_BYTE, (char *)out + done, 1, spaced,
                group->communicator, &group->requests[0]));
        if (status == OK)
            status = group_wait(group, what, 1);
        MPI_Type_free(&spaced);
        MPI_Type_free(&block);
        TRY(status);
        done += piece;
    }
    return OK;
}

enum result group_all_gather_sizes(
    struct group *group, const char *what, const void *data, const int64_t *bytes, void *out) {
    TRY(group_begin(group, what, offset_of(bytes, group->size, 1), 2));
    struct transfer t = {.what = what,
        .send = data,
        .receive = out,
        .send_counts = bytes,
        .receive_counts = bytes,
        .unit = 1,
        .same_for_all = true};
    return exchange_all(group, &t);
}

enum result group_exchange_counts(
    struct group *group, const char *what, const int64_t *send_counts, int64_t *receive_counts) {
    TRY(group_begin(group, what, 0, 3));
    if (group->size == 1) {
        receive_counts[0] = send_counts[0];
        return OK;
    }
    group->bytes_sent += (int64_t)sizeof *send_counts * (group->size - 1);
    TRY(group_mpi(group, what,
        MPI_Ialltoall(send_counts, 1, MPI_INT64_T, receive_counts, 1, MPI_INT64_T, group->communicator,
            &group->requests[0])));
    return group_wait(group, what, 1);
}

enum result group_exchange_rows(struct group *group, const char *what, const void *send,
    const int64_t *send_counts, void *receive, const int64_t *receive_counts, size_t row_bytes) {
    TRY(group_begin(group, what, (int64_t)row_bytes, 4));
    if (send_counts[group->rank] != receive_counts[group->rank])
        return fail(ERROR_INTERNAL, "%s: a rank sends itself %lld rows but expects %lld", what,
            (long long)send_counts[group->rank], (long long)receive_counts[group->rank]);
    struct transfer t = {.what = what,
        .send = send,
        .receive = receive,
        .send_counts = send_counts,
        .receive_counts = receive_counts,
        .unit = (int64_t)row_bytes};
    return exchange_all(group, &t);
}

#include "cluster/device/nccl_group.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "cluster/group.h"

#include <sched.h>  /* sched_yield */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy */
#include <time.h>   /* nanosleep */

enum { TAG_PROGRESS = 17, TELLINGS = 4, MARKS = 256, MOST_NAMED = 8, TEXT_BYTES = 512 };

/* How far a rank is in setting up. */
enum progress { ABSENT, ARRIVED, INSIDE, READY, FAILED };

/* What ranks tell each other while they set up. */
struct report {
    int32_t progress;
    char text[TEXT_BYTES]; /* of FAILED */
    ncclUniqueId id;       /* rank 0's */
};

/* A place in the order of a stream. */
struct mark {
    cudaEvent_t event;
    const char *what;
    int32_t layer;
};

struct nccl_group {
    struct group *group;
    ncclComm_t communicator; /* NULL after an abort */
    const char *what;        /* the piece of work that is being enqueued */
    int32_t layer;
    bool is_set_up;
    struct mark marks[MARKS]; /* the last ones, in a ring */
    int64_t marked;
};

/* ---- messages ---- */

static const struct group_member *self_of(const struct group *group) {
    return &group->members[group->rank];
}

/* Only while the ranks are still coming together: later an abort could wait for ever, for it waits for all work of the device, and that
 * waits for the same rank. The failure then ends the run, and the communicator with it. */
static void abort_communicator(struct nccl_group *nccl) {
    if (nccl->communicator && !nccl->is_set_up)
        (void)ncclCommAbort(nccl->communicator);
    nccl->communicator = NULL;
}

/* "rank 3 on b, " and so on: the first few of the ranks of which `chosen` is set. */
static void append_ranks(struct buffer *text, const struct group *group, const bool *chosen) {
    int32_t named = 0, more = 0;
    for (int32_t r = 0; r < group->size; r++) {
        if (!chosen[r])
            continue;
        if (named == MOST_NAMED) {
            more++;
            continue;
        }
        buffer_printf(text, "%srank %d on %s", named++ ? ", " : "", group->members[r].world_rank,
            group->members[r].host);
    }
    if (more)
        buffer_printf(text, " and %d more", more);
}

static void append_place(struct buffer *text, const char *what, int32_t layer) {
    buffer_append_text(text, what);
    if (layer >= 0)
        buffer_printf(text, ", layer %d", layer);
}

static enum result fail_with(enum result code, struct buffer *text) {
    enum result status = fail(code, "%s", text->data);
    buffer_free(text);
    return status;
}

/* An error of NCCL in the piece of work that is being enqueued. */
static enum result nccl_failure(struct nccl_group *nccl, ncclResult_t code) {
    const struct group_member *self = self_of(nccl->group);
    const char *detail = ncclGetLastError(nccl->communicator);
    struct buffer text = {0};
    buffer_printf(&text, "rank %d on %s, ", self->world_rank, self->host);
    append_place(&text, nccl->what, nccl->layer);
    buffer_printf(&text, ": NCCL reports: %s", ncclGetErrorString(code));
    if (detail && *detail)
        buffer_printf(&text, " (%s)", detail);
    buffer_append_text(
        &text, code == ncclRemoteError
                   ? "; another rank ended or lost its connection: look for its own message"
                   : "; the communicator is aborted. Run again with NCCL_DEBUG=WARN to see more");
    abort_communicator(nccl);
    return fail_with(ERROR_RANKS, &text);
}

static enum result no_communicator(const struct nccl_group *nccl, const char *what) {
    const struct group_member *self = self_of(nccl->group);
    return fail(ERROR_RANKS, "rank %d on %s, %s: the communicator was aborted before", self->world_rank,
        self->host, what);
}

enum result nccl_group_cuda(struct nccl_group *nccl, const char *what, cudaError_t code) {
    if (code == cudaSuccess)
        return OK;
    const struct group_member *self = self_of(nccl->group);
    abort_communicator(nccl);
    return fail(code == cudaErrorMemoryAllocation ? ERROR_MEMORY : ERROR_INTERNAL,
        "rank %d on %s, %s: the device reports: %s", self->world_rank, self->host, what,
        cudaGetErrorString(code));
}

/* ---- waiting ---- */

/* One step of patience: spin, then let others have the core, then sleep. */
static void pause_step(const struct group *group, int64_t step) {
    enum { SPINS = 2000, YIELDS = 200 };
    int64_t spins = group->crowded ? 0 : SPINS;
    if (step < spins)
        return;
    if (step < spins + YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Waits while NCCL works on what it was asked for; `code` is what the call returned. */
static enum result settle(struct nccl_group *nccl, ncclResult_t code) {
    double start = cluster_now();
    for (int64_t step = 0; code == ncclInProgress; step++) {
        ncclResult_t asked = ncclCommGetAsyncError(nccl->communicator, &code);
        if (asked != ncclSuccess)
            code = asked;
        if (code != ncclInProgress)
            break;
        double waited = cluster_now() - start;
        if (waited > nccl->group->deadline) {
            const struct group_member *self = self_of(nccl->group);
            struct buffer text = {0};
            buffer_printf(&text, "rank %d on %s waited %.0f s for NCCL to begin: ", self->world_rank,
                self->host, waited);
            append_place(&text, nccl->what, nccl->layer);
            buffer_append_text(&text, ". Look at the other ranks' messages");
            abort_communicator(nccl);
            return fail_with(ERROR_RANKS, &text);
        }
        pause_step(nccl->group, step);
    }
    return code == ncclSuccess ? OK : nccl_failure(nccl, code);
}

/* Errors that other ranks or the network caused since the last look. */
static enum result look(struct nccl_group *nccl, const char *what, int32_t layer) {
    ncclResult_t code = ncclSuccess;
    nccl->what = what;
    nccl->layer = layer;
    if (!nccl->communicator)
        return no_communicator(nccl, what);
    ncclResult_t asked = ncclCommGetAsyncError(nccl->communicator, &code);
    if (asked != ncclSuccess)
        code = asked;
    return code == ncclSuccess || code == ncclInProgress ? OK : nccl_failure(nccl, code);
}

/* ---- set-up ---- */

/* Set-up as it runs: what this rank has told and what it has heard. */
struct setting_up {
    struct nccl_group *nccl;
    struct report own;       /* as last told */
    struct report *heard;    /* [size]: the last report of each rank; its own is in `own` */
    struct report *incoming; /* [size] */
    struct report *told;     /* [TELLINGS]: reports on their way stay as they are */
    int32_t telling;
    MPI_Request *receives; /* [size] */
    MPI_Request *sends;    /* [TELLINGS * size] */
    double start;
};

static enum result post_receive(struct setting_up *s, int32_t from) {
    const struct group *group = s->nccl->group;
    return group_mpi(group, "NCCL set-up",
        MPI_Irecv(&s->incoming[from], (int)sizeof(struct report), MPI_BYTE, from, TAG_PROGRESS,
            group->communicator, &s->receives[from]));
}

static enum result tell(struct setting_up *s, enum progress progress, const char *failure) {
    const struct group *group = s->nccl->group;
    int32_t turn = s->telling++;
    s->own.progress = progress;
    snprintf(s->own.text, sizeof s->own.text, "%s", failure);
    s->told[turn] = s->own;
    for (int32_t r = 0; r < group->size; r++)
        if (r != group->rank)
            TRY(group_mpi(group, "NCCL set-up",
                MPI_Isend(&s->told[turn], (int)sizeof(struct report), MPI_BYTE, r, TAG_PROGRESS,
                    group->communicator, &s->sends[(int64_t)turn * group->size + r])));
    return OK;
}

/* Takes the reports of one rank that have come. */
static enum result listen_to(struct setting_up *s, int32_t from) {
    while (s->receives[from] != MPI_REQUEST_NULL) {
        int done = 0;
        TRY(group_mpi(s->nccl->group, "NCCL set-up", MPI_Test(&s->receives[from], &done, MPI_STATUS_IGNORE)));
        if (!done)
            return OK;
        s->heard[from] = s->incoming[from];
        if (s->heard[from].progress < READY)
            TRY(post_receive(s, from));
    }
    return OK;
}

static enum result listen(struct setting_up *s) {
    const struct group *group = s->nccl->group;
    for (int32_t r = 0; r < group->size; r++)
        TRY(listen_to(s, r));
    s->heard[group->rank] = s->own;
    return OK;
}

static bool all_are(const struct setting_up *s, enum progress least) {
    for (int32_t r = 0; r < s->nccl->group->size; r++)
        if (s->heard[r].progress < (int32_t)least)
            return false;
    return true;
}

/* The first rank that told of a failure, or -1. */
static int32_t failed_rank(const struct setting_up *s) {
    for (int32_t r = 0; r < s->nccl->group->size; r++)
        if (s->heard[r].progress == FAILED)
            return r;
    return -1;
}

static void append_those_at(const struct setting_up *s, enum progress progress, const char *before,
    const char *after, bool *chosen, struct buffer *text) {
    bool any = false;
    for (int32_t r = 0; r < s->nccl->group->size; r++) {
        chosen[r] = s->heard[r].progress == (int32_t)progress;
        any |= chosen[r];
    }
    if (!any)
        return;
    buffer_append_text(text, before);
    append_ranks(text, s->nccl->group, chosen);
    buffer_append_text(text, after);
}

/* The message at the deadline: who is missing, who is stuck, what to look at. */
static enum result late(struct setting_up *s) {
    const struct group *group = s->nccl->group;
    const struct group_member *self = self_of(group);
    struct buffer text = {0};
    bool *chosen = calloc((size_t)group->size, sizeof *chosen);
    bool missing = !all_are(s, ARRIVED), stuck = !all_are(s, INSIDE);
    if (!chosen)
        return fail(ERROR_MEMORY, "out of memory for a message");
    buffer_printf(&text, "rank %d on %s waited %.0f s for the %d ranks of its NCCL communicator",
        self->world_rank, self->host, cluster_now() - s->start, group->size);
    append_those_at(s, ABSENT, "; no sign of ", "", chosen, &text);
    if (!missing)
        append_those_at(
            s, ARRIVED, "; ", " came but did not return from ncclCommInitRankConfig", chosen, &text);
    if (!missing && !stuck) {
        append_those_at(s, INSIDE, "; NCCL has not connected ", "", chosen, &text);
        buffer_append_text(&text, " to the others");
    }
    buffer_append_text(&text,
        missing ? ". Look at those ranks' own messages and hosts (stopped, out of memory, still loading?)"
                : ". Look at those hosts' devices (nvidia-smi, dmesg) and networks: NCCL_SOCKET_IFNAME and "
                  "NCCL_IB_HCA "
                  "must name networks that all hosts share; NCCL_DEBUG=INFO shows what NCCL tries");
    free(chosen);
    return fail_with(ERROR_RANKS, &text);
}

static enum result told_failure(const struct setting_up *s, int32_t r) {
    const struct group_member *member = &s->nccl->group->members[r];
    return fail(ERROR_RANKS, "NCCL set-up failed on rank %d on %s: %.*s", member->world_rank, member->host,
        TEXT_BYTES, s->heard[r].text);
}

/* Waits until all ranks have come as far as `least`. */
static enum result await_all(struct setting_up *s, enum progress least) {
    for (int64_t step = 0;; step++) {
        TRY(listen(s));
        int32_t failed = failed_rank(s);
        if (failed >= 0)
            return told_failure(s, failed);
        if (all_are(s, least))
            return OK;
        if (cluster_now() - s->start > s->nccl->group->deadline)
            return late(s);
        pause_step(s->nccl->group, step);
    }
}

/* Polls this rank's own start of NCCL. */
static enum result await_own(struct setting_up *s) {
    struct nccl_group *nccl = s->nccl;
    for (int64_t step = 0;; step++) {
        ncclResult_t code = ncclSuccess, asked = ncclCommGetAsyncError(nccl->communicator, &code);
        if (asked != ncclSuccess)
            code = asked;
        if (code == ncclSuccess)
            return OK;
        if (code != ncclInProgress)
            return nccl_failure(nccl, code);
        TRY(listen(s));
        int32_t failed = failed_rank(s);
        if (failed >= 0)
            return told_failure(s, failed);
        if (cluster_now() - s->start > nccl->group->deadline)
            return late(s);
        pause_step(nccl->group, step);
    }
}

static enum result meet(struct setting_up *s) {
    struct nccl_group *nccl = s->nccl;
    const struct group *group = nccl->group;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    nccl->what = "NCCL set-up";
    nccl->layer = -1;
    if (group->rank == 0) {
        ncclResult_t code = ncclGetUniqueId(&s->own.id);
        if (code != ncclSuccess)
            return nccl_failure(nccl, code);
    }
    for (int32_t r = 0; r < group->size; r++)
        if (r != group->rank)
            TRY(post_receive(s, r));
    TRY(tell(s, ARRIVED, ""));
    TRY(await_all(s, ARRIVED));
    ncclUniqueId id = s->heard[0].id;
    ncclResult_t code = ncclCommInitRankConfig(&nccl->communicator, group->size, id, group->rank, &config);
    if (code != ncclSuccess && code != ncclInProgress)
        return nccl_failure(nccl, code);
    TRY(tell(s, INSIDE, ""));
    TRY(await_own(s));
    TRY(tell(s, READY, ""));
    return await_all(s, READY);
}

/* Those who wait for this rank learn why it does not come; messages to and from ranks that never came are given up. True when
 * none of this rank's reports is on its way any more. */
static bool end_reports(struct setting_up *s, enum result status) {
    const struct group *group = s->nccl->group;
    int all_left = 0;
    if (status == OK) /* all ranks are ready, and listen */
        return MPI_Waitall(TELLINGS * group->size, s->sends, MPI_STATUSES_IGNORE) == MPI_SUCCESS;
    if (failed_rank(s) < 0 && s->own.progress < READY)
        (void)tell(s, FAILED, failure_message());
    for (int32_t r = 0; r < group->size; r++)
        if (s->receives[r] != MPI_REQUEST_NULL) {
            MPI_Cancel(&s->receives[r]);
            MPI_Wait(&s->receives[r], MPI_STATUS_IGNORE);
        }
    return MPI_Testall(TELLINGS * group->size, s->sends, &all_left, MPI_STATUSES_IGNORE) == MPI_SUCCESS &&
           all_left;
}

static enum result set_up(struct nccl_group *nccl) {
    const size_t size = (size_t)nccl->group->size;
    struct setting_up s = {.nccl = nccl, .start = cluster_now()};
    enum result status = OK;
    s.heard = calloc(size, sizeof *s.heard);
    s.incoming = calloc(size, sizeof *s.incoming);
    s.told = calloc(TELLINGS, sizeof *s.told);
    s.receives = calloc(size, sizeof(MPI_Request));
    s.sends = calloc(TELLINGS * size, sizeof(MPI_Request));
    if (!s.heard || !s.incoming || !s.told || !s.receives || !s.sends)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory to set NCCL up between %zu ranks", size), done);
    for (size_t r = 0; r < size; r++)
        s.receives[r] = MPI_REQUEST_NULL;
    for (size_t i = 0; i < TELLINGS * size; i++)
        s.sends[i] = MPI_REQUEST_NULL;
    status = meet(&s);
    if (!end_reports(&s, status))
        s.told = NULL; /* MPI may still read it; the run is about to end */
done:
    free(s.heard);
    free(s.incoming);
    free(s.told);
    free(s.receives);
    free(s.sends);
    return status;
}

static enum result make_marks(struct nccl_group *nccl) {
    for (int32_t i = 0; i < MARKS; i++)
        TRY(nccl_group_cuda(nccl, "marks in the order of work",
            cudaEventCreateWithFlags(&nccl->marks[i].event, cudaEventDisableTiming)));
    return OK;
}

static void release(struct nccl_group *nccl) {
    for (int32_t i = 0; i < MARKS; i++)
        if (nccl->marks[i].event)
            (void)cudaEventDestroy(nccl->marks[i].event);
    free(nccl);
}

enum result nccl_group_create(struct group *group, struct nccl_group **created) {
    *created = NULL;
    struct nccl_group *nccl = calloc(1, sizeof *nccl);
    if (!nccl)
        return fail(ERROR_MEMORY, "out of memory for a NCCL communicator");
    nccl->group = group;
    enum work_part before = stopwatch_switch(WORK_WAITING);
    enum result status = set_up(nccl);
    if (status == OK)
        status = make_marks(nccl);
    (void)stopwatch_switch(before);
    if (status != OK) {
        abort_communicator(nccl);
        release(nccl);
        return status;
    }
    nccl->is_set_up = true;
    *created = nccl;
    return OK;
}

void nccl_group_free(struct nccl_group *nccl) {
    if (!nccl)
        return;
    if (nccl->communicator) {
        nccl->what = "NCCL end";
        nccl->layer = -1;
        if (settle(nccl, ncclCommFinalize(nccl->communicator)) != OK)
            log_warning("%s", failure_message());
        else if (ncclCommDestroy(nccl->communicator) != ncclSuccess)
            log_warning("NCCL did not end its communicator");
    }
    release(nccl);
}

/* ---- work ---- */

static enum result mark(
    struct nccl_group *nccl, const char *what, int32_t layer, cudaStream_t stream, struct mark **made) {
    struct mark *next = &nccl->marks[nccl->marked++ % MARKS];
    next->what = what;
    next->layer = layer;
    *made = next;
    return nccl_group_cuda(nccl, what, cudaEventRecord(next->event, stream));
}

enum result nccl_group_begin(struct nccl_group *nccl, const char *what, int32_t layer) {
    TRY(look(nccl, what, layer));
    ncclResult_t code = ncclGroupStart();
    return code == ncclSuccess ? OK : nccl_failure(nccl, code);
}

/* What a call inside a group returned. */
static enum result inside(struct nccl_group *nccl, ncclResult_t code) {
    return code == ncclSuccess || code == ncclInProgress ? OK : nccl_failure(nccl, code);
}

enum result nccl_group_send(
    struct nccl_group *nccl, const void *data, size_t bytes, int32_t to, cudaStream_t stream) {
    return inside(nccl, ncclSend(data, bytes, ncclUint8, to, nccl->communicator, stream));
}

enum result nccl_group_receive(
    struct nccl_group *nccl, void *data, size_t bytes, int32_t from, cudaStream_t stream) {
    return inside(nccl, ncclRecv(data, bytes, ncclUint8, from, nccl->communicator, stream));
}

enum result nccl_group_end(struct nccl_group *nccl, cudaStream_t stream) {
    struct mark *end;
    TRY(settle(nccl, ncclGroupEnd()));
    return mark(nccl, nccl->what, nccl->layer, stream, &end);
}

enum result nccl_group_all_gather(struct nccl_group *nccl, const char *what, int32_t layer, const void *data,
    size_t bytes, void *out, cudaStream_t stream) {
    struct mark *end;
    TRY(look(nccl, what, layer));
    TRY(settle(nccl, ncclAllGather(data, out, bytes, ncclUint8, nccl->communicator, stream)));
    return mark(nccl, what, layer, stream, &end);
}

enum result nccl_group_order(
    struct nccl_group *nccl, const char *what, int32_t layer, cudaStream_t earlier, cudaStream_t later) {
    struct mark *made;
    if (!nccl->communicator)
        return no_communicator(nccl, what);
    TRY(mark(nccl, what, layer, earlier, &made));
    return nccl_group_cuda(nccl, what, cudaStreamWaitEvent(later, made->event, 0));
}

/* The oldest mark that the device has not passed, or NULL. */
static const struct mark *first_open_mark(const struct nccl_group *nccl) {
    int64_t first = nccl->marked > MARKS ? nccl->marked - MARKS : 0;
    for (int64_t i = first; i < nccl->marked; i++)
        if (cudaEventQuery(nccl->marks[i % MARKS].event) == cudaErrorNotReady)
            return &nccl->marks[i % MARKS];
    return NULL;
}

static enum result late_work(struct nccl_group *nccl, const char *what, double waited) {
    const struct group_member *self = self_of(nccl->group);
    const struct mark *open = first_open_mark(nccl);
    struct buffer text = {0};
    buffer_printf(
        &text, "rank %d on %s waited %.0f s for its device (%s)", self->world_rank, self->host, waited, what);
    if (open) {
        buffer_append_text(&text, ", which has not ended: ");
        append_place(&text, open->what, open->layer);
    } else {
        buffer_append_text(&text, ", in a layer that is not known, as a recorded step does not tell");
    }
    buffer_append_text(&text, ". A rank that ended, stopped or fell behind keeps the "
                              "others waiting: look for other ranks' messages and at their hosts");
    abort_communicator(nccl);
    return fail_with(ERROR_RANKS, &text);
}

enum result nccl_group_wait(struct nccl_group *nccl, const char *what, cudaStream_t stream) {
    double start = cluster_now();
    for (int64_t step = 0;; step++) {
        cudaError_t code = cudaStreamQuery(stream);
        if (code == cudaSuccess)
            return OK;
        if (code != cudaErrorNotReady)
            return nccl_group_cuda(nccl, what, code);
        if (nccl->communicator && step % 16 == 0)
            TRY(look(nccl, what, -1));
        double waited = cluster_now() - start;
        if (waited > nccl->group->deadline)
            return late_work(nccl, what, waited);
        pause_step(nccl->group, step);
    }
}

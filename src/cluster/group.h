/* Inside of cluster/: what a group is made of. Only the files of this folder and its tests include this. */
#ifndef NOCTURNE_CLUSTER_GROUP_H
#define NOCTURNE_CLUSTER_GROUP_H

#include "cluster/collectives.h"

#include <mpi.h>
#include <stdbool.h> /* bool */

enum { GROUP_HOST_BYTES = 64, GROUP_WHAT_BYTES = 104 };

/* What a rank is doing; ranks that wait long tell it to each other, so that the message at the deadline can name those that
 * did not come. */
struct group_note {
    int64_t call;  /* its collectives on this group so far */
    uint64_t hash; /* of the arguments that must agree */
    char what[GROUP_WHAT_BYTES];
};

struct group_member {
    int32_t world_rank;
    char host[GROUP_HOST_BYTES];
};

struct group {
    MPI_Comm communicator;
    int32_t rank, size;
    struct group_member *members; /* [size] */
    MPI_Request *requests;        /* [2 * size + 1], of the call in progress */
    MPI_Status *statuses;         /* [2 * size + 1] */
    double deadline;              /* seconds */
    int64_t most_message_bytes;   /* longer ones travel in pieces; MPI counts are ints */
    bool check_arguments;         /* compare a hash of the arguments at each call */
    bool crowded;                 /* more ranks than cores: never spin */
    double seconds;               /* spent in collectives */
    bool complete;                /* group_poll has seen the end of the call's requests */
    int64_t bytes_sent;
    enum result agreed; /* what ranks_agree on this group last returned */

    int64_t calls;
    struct group_note own_note;
    struct group_note *notes;   /* [size], the last heard from each */
    struct group_note *checks;  /* [size], of the argument comparison */
    MPI_Request *note_requests; /* [size] */

    void *scratch[2]; /* of exchange_fetch_rows; grow to what is needed and stay */
    size_t scratch_bytes[2];
};

/* Collective over `communicator`, which the group takes over. Blocking: the caller guards it with its own deadline. */
MUST_CHECK enum result group_create(MPI_Comm communicator, int32_t world_rank, const char *host,
    double deadline, bool crowded, struct group **group);
void group_free(struct group *group); /* before MPI_Finalize; NULL is allowed */

/* Turns an MPI return code into a result. */
MUST_CHECK enum result group_mpi(const struct group *group, const char *what, int code);

/* Begins a call: compares arguments when asked to. `first` and `second` are those that must agree on all ranks. */
MUST_CHECK enum result group_begin(struct group *group, const char *what, int64_t first, int64_t second);
/* Waits until the first `count` of group->requests are complete; their statuses are in group->statuses. At the deadline the
 * run is aborted. The stopwatch counts it as waiting, but for the time in which data moved. */
MUST_CHECK enum result group_wait(struct group *group, const char *what, int32_t count);
/* Lets the first `count` requests go on without waiting for them, unless cores are crowded; group_wait must follow. */
MUST_CHECK enum result group_poll(struct group *group, const char *what, int32_t count);

/* Adds one message to the requests of the call. */
MUST_CHECK enum result group_post_send(
    struct group *group, const char *what, const void *data, int64_t bytes, int32_t to, int32_t *count);
MUST_CHECK enum result group_post_receive(
    struct group *group, const char *what, void *data, int64_t most_bytes, int32_t from, int32_t *count);

/* Data on its way from each rank to each other one: `send_counts[r]` units to rank r, packed in rank order, received likewise.
 * Each pair of ranks knows both counts, so that empty messages are not sent. */
struct transfer {
    const char *what;
    const char *send;
    char *receive;
    const int64_t *send_counts, *receive_counts;
    int64_t unit;      /* bytes of one count */
    bool same_for_all; /* every rank gets the same data: send holds it once */
    /* set by transfer_begin */
    int64_t round;
    int32_t count; /* of requests */
    bool more;
};

/* After group_begin: copies what a rank sends itself and posts the messages. Until transfer_end nothing else may be done on
 * the group but group_poll with transfer->count, and the memory stays as it is. */
MUST_CHECK enum result transfer_begin(struct group *group, struct transfer *transfer);
MUST_CHECK enum result transfer_end(struct group *group, struct transfer *transfer);

/* At least `bytes` of scratch memory `which` (0 or 1), aligned to 64; what was there is lost. */
MUST_CHECK enum result group_scratch(struct group *group, int32_t which, size_t bytes, void **scratch);

double cluster_now(void); /* seconds, monotonic */

#endif

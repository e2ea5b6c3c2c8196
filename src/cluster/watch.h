/* The watchdog: a thread of each process that sees what the main thread cannot tell when it is stuck, and what the other ranks of
 * its node do.
 *
 * It ends the process, with one message that says who, where and for how long,
 *   - when a call to the file system does not return within the deadline (ERROR_IO), or the main thread makes no progress of any other
 *     kind for longer than the deadline (ERROR_RANKS);
 *   - when another rank of the node has gone without a word (ERROR_RANKS).
 * Waits on other ranks have their own deadline (collectives.h), whose message takes from here what other ranks were last
 * seen doing. Time in which this process was itself stopped does not count, so that a job may be suspended and resumed.
 *
 * The ranks of a node share some memory without a name, each with its beacon (base/beacon.h) in it; nothing of it is left
 * behind, however a process ends. */
#ifndef NOCTURNE_CLUSTER_WATCH_H
#define NOCTURNE_CLUSTER_WATCH_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

/* ---- one process ---- */

enum { WATCH_DEFAULT_DEADLINE = 600 }; /* seconds */

/* Starts the thread. `host`: its name for messages, NULL: found out. Without one to spare, or when it runs already, nothing happens. `only_files`: commands on one process, which
 * may wait for input as long as they like. */
void watch_start(double deadline_seconds, const char *host, bool only_files);
/* Ends the thread. */
void watch_stop(void);

/* ---- the ranks of a node ---- */

/* Bytes that each rank tells every other rank of its node, for watch_share. */
enum { WATCH_TICKET_BYTES = 48 };
/* Makes this node's memory (on its first rank) and writes this rank's ticket. */
void watch_ticket(
    int32_t world_rank, int32_t node_rank, int32_t node_count, unsigned char ticket[WATCH_TICKET_BYTES]);
/* tickets [node_count][WATCH_TICKET_BYTES]: of all ranks of the node. Where the system does not let ranks share memory this way, they
 * remain unseen, and nothing else changes. After it, a barrier of the node must follow before the first rank's watch_unticket. */
void watch_share(const unsigned char *tickets);
/* Drops what only watch_share of other ranks needed. */
void watch_unticket(void);

/* How a rank of this node looks from here. */
enum watch_sight { WATCH_UNSEEN, WATCH_GONE, WATCH_STOPPED, WATCH_BUSY, WATCH_WAITS };
/* Appends "rank 3 on HOST (process 12) is stopped; last seen ..." when the rank is on this node (else nothing, WATCH_UNSEEN). */
enum watch_sight watch_describe(int32_t world_rank, const char *host, struct buffer *text);
/* Appends "; rank 3 on HOST ..." for each rank of this node that has gone without a word or is stopped; true when there is one. */
bool watch_describe_stuck(const char *host, struct buffer *text);
/* Appends "; no sign of rank 3 on HOST ..." for each rank of this node that has not come to the run's end. */
void watch_describe_late(const char *host, struct buffer *text);
/* A rank of this node that went without a word, or -1. */
int32_t watch_lost(void);
/* True for the first rank of the node that asks: it prints the run's last message, the others leave quietly. */
bool watch_speaks(void);

#endif

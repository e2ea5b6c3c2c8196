/* Where this process is in its work, for those who watch it: its own watchdog thread, and other ranks of its node (through memory
 * they share, see cluster/watch.h). A process that is stopped or stuck cannot tell; its beacon still can.
 *
 * There is one beacon a process. Only the main thread writes it, at the cost of a few stores; others may read it at any time. Texts may be
 * torn when they change just then: they are for messages only. */
#ifndef NOCTURNE_BASE_BEACON_H
#define NOCTURNE_BASE_BEACON_H

#include <stdatomic.h> /* _Atomic */
#include <stddef.h>    /* size_t */
#include <stdint.h>    /* int32_t, int64_t */

enum { BEACON_PHASE_BYTES = 24, BEACON_WAIT_BYTES = 104, BEACON_FILE_BYTES = 384 };

/* How a process has left, for those that see it gone. */
enum beacon_left {
    BEACON_HERE,
    BEACON_LEFT_TOGETHER, /* all ranks end */
    BEACON_LEFT_ALONE,    /* it alone, with a message that says why */
};

/* Everything zero is a beacon that was never used. */
struct beacon {
    _Atomic int64_t progress; /* counts every change below */
    _Atomic int64_t seconds;  /* of the monotonic clock at the last change */
    _Atomic int64_t step;     /* of the engine, from 1; 0: none yet */
    _Atomic int32_t layer;    /* of the model in that step, from 0; -1: none */
    _Atomic int32_t waits;    /* 1: for other ranks, in `wait` */
    _Atomic int32_t in_file;  /* 1: in a call to the file system, on `file` */
    _Atomic int32_t left;     /* enum beacon_left */
    char phase[BEACON_PHASE_BYTES];
    char wait[BEACON_WAIT_BYTES];
    char file[BEACON_FILE_BYTES];
};

/* From now on the beacon is written at `place`, which must live as long as the process; what it says is copied there. NULL: back to the
 * process's own memory. */
void beacon_move(struct beacon *place);
/* This process's beacon. */
const struct beacon *beacon_own(void);

/* The command or stage of the work ("decode"). */
void beacon_phase(const char *phase);
void beacon_step(int64_t step); /* forgets the layer */
void beacon_layer(int32_t layer);
/* Progress without a new place, such as another tensor read. */
void beacon_tick(void);
/* The main thread begins to wait for other ranks in `what`; `what` NULL: it goes on. */
void beacon_wait(const char *what);
/* The main thread enters a call to the file system that may never return; NULL: it is back. Calls do not nest: the innermost
 * path counts. */
void beacon_file(const char *path);

/* This process is about to end. May be called by any thread and by signal handlers. */
void beacon_leave(enum beacon_left how);

/* "decode, step 31, layer 5, in the file x" as text, at most `capacity` bytes with the final zero. */
void beacon_describe(const struct beacon *beacon, char *text, size_t capacity);

#endif

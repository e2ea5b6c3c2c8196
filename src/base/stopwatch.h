/* Where the time of this process goes: a stopwatch that always runs for exactly one part of the work, so that the parts add
 * up to the whole. There is one a process, and only its main thread may use it. A switch costs one reading of the clock.
 *
 * While a trace is open, each stretch between two switches is also written to a file of Chrome trace events, which Perfetto
 * (https://ui.perfetto.dev) and chrome://tracing show. */
#ifndef NOCTURNE_BASE_STOPWATCH_H
#define NOCTURNE_BASE_STOPWATCH_H

#include "base/error.h"

#include <stdint.h> /* int32_t, int64_t */

enum work_part {
    WORK_OTHER,              /* all that has no name below, such as the start */
    WORK_SCHEDULING,         /* admission, batches, block tables, stops */
    WORK_EMBED,              /* input rows */
    WORK_ATTENTION_PRODUCTS, /* projections of the attention, with norms and rotations; compressed rows */
    WORK_INDEX,              /* choice of compressed rows, with its products */
    WORK_ATTENTION,          /* the attention itself */
    WORK_MIXES,              /* residual streams: mixes, collapses, expansions */
    WORK_ROUTER,
    WORK_SHARED_EXPERT,
    WORK_EXPERTS,
    WORK_EXCHANGE, /* packing, sending and receiving of what travels between ranks */
    WORK_WAITING,  /* for other ranks, before their data comes */
    WORK_ENGRAM,
    WORK_LOGITS,
    WORK_SAMPLING,
    WORK_FILES, /* HDF5: requests and states read; results and states written */
    WORK_PARTS
};

/* "attention products" and so on. */
const char *work_part_name(enum work_part part);

/* From now on time counts for `part`; returns the part it counted for before, to be switched back to by those who are
 * called from several. */
enum work_part stopwatch_switch(enum work_part part);

/* Seconds of each part since the process began to use the stopwatch. */
void stopwatch_read(double seconds[WORK_PARTS]);

/* The last `seconds` of the stretch that runs now count for `part`: for a call that learns only while it runs what it is
 * doing. */
void stopwatch_claim(enum work_part part, double seconds);

/* Begins a trace at `path`, which is replaced; `rank` is the process's number in it. ERROR_IO when it cannot be written. */
MUST_CHECK enum result trace_open(const char *path, int32_t rank);

/* Writes an event that spans everything since the last call (or trace_open), with its number and sizes. Without a trace it
 * does nothing. */
void trace_step(int64_t step, int64_t tokens, int64_t sequences);

/* Ends the trace, if there is one. ERROR_IO when not all of it could be written. */
MUST_CHECK enum result trace_close(void);

#endif

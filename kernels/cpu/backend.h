/* What the CPU backend's operations share: the stream with its threads and scratch memory.
 *
 * Every file in operations/ is compiled once per instruction set; FOR_SET gives a function the name of its set.
 */
#ifndef NOCTURNE_CPU_BACKEND_H
#define NOCTURNE_CPU_BACKEND_H

#include "kernels/kernels.h"

#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t, int64_t */

/* Columns of a matrix with more than one row, unless it is float32 and they are a multiple of 128: place refuses more. */
enum { MOST_COLUMNS = 16384 };

enum { TURN_LISTS = 4 }; /* lists of positions whose sines and cosines a stream keeps */

/* Scratch areas of a stream. An operation that calls another (mix calls product) uses none of its areas. */
enum scratch_area {
    SCRATCH_INPUT,   /* prepared input rows of products and experts, queries of choose */
    SCRATCH_WEIGHTS, /* one tile of decoded weights per thread */
    SCRATCH_HIDDEN,  /* experts: rounded hidden rows */
    SCRATCH_TASKS,   /* lists of work items, selections of choose */
    SCRATCH_ROWS,    /* decoded key/value rows and scores of attention, tiles of choose */
    SCRATCH_SCORES,  /* scores of choose, of the router and of images */
    SCRATCH_TURNS,   /* sines and cosines: one area per list, see rows.c */
    SCRATCH_GRID = SCRATCH_TURNS + TURN_LISTS, /* sines and cosines of the grid of an image */
    SCRATCH_MIX,                               /* products of the stream mixers */
    SCRATCH_VISION,                            /* queries, keys and transposed values of one image */
    SCRATCH_AREAS,
};

struct scratch {
    void *memory;
    size_t bytes;
};

/* What area SCRATCH_TURNS + i holds. */
struct turn_list {
    int32_t tokens, dims; /* 0: nothing yet */
    uint32_t used;        /* when it was used last */
};

/* The CPU backend runs work inline: a stream is the thread count, the scratch memory and what is kept in it. */
struct stream {
    int32_t threads;
    struct scratch scratch[SCRATCH_AREAS];
    struct turn_list turn_lists[TURN_LISTS];
    uint32_t turn_uses;
};

/* At least `bytes` of 64-byte aligned memory, its content undefined; valid until the area is asked for again. Grows on
 * first use and is kept for the stream's life. Ends the program with a message when the machine has no memory, for
 * operations return nothing. */
void *stream_scratch(struct stream *stream, enum scratch_area area, size_t bytes);

#define PASTE_SET_(name, set) name##_##set
#define PASTE_SET(name, set) PASTE_SET_(name, set)
#ifdef INSTRUCTION_SET
#define FOR_SET(name) PASTE_SET(name, INSTRUCTION_SET)
#endif

#endif

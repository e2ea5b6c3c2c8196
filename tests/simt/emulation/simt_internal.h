/* What the parts of the emulation share: launches, fibers, the shadow of shared memory, the registry of buffers. */
#ifndef SIMT_INTERNAL_H
#define SIMT_INTERNAL_H

#include "simt.h"
#include "simt_device.h"

#undef memcpy
#undef memmove
#undef memset
#undef memcmp

#if defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

enum : uint32_t {
    SIMT_WARP = 32,
    SIMT_WARPS = 32,
    SIMT_BLOCK_THREADS = SIMT_WARP * SIMT_WARPS, /* of a block */
};
enum : size_t {
    SIMT_SHARED_BYTES = 227 << 10, /* the most a block may have */
    SIMT_SHARED_GUARD = 256 << 10, /* watched on both sides of it */
};

/* ---- launches ---- */

struct simt_launch_data {
    const char *name;
    uint32_t grid[3], block[3];
    size_t shared_bytes;
    simt_work work;
    int device;
    uint64_t number;     /* of the launch, from 1 */
    uint64_t blocks;     /* in all */
    uint64_t next_block; /* not yet begun; taken atomically */
    int failed;          /* an error was reported; set atomically */
};

/* Runs all blocks; false when an error was reported. Not reentrant: the caller holds the API's lock. */
bool simt_run_launch(simt_launch_data *launch);

/* ---- the shadow of shared memory ----
 *
 * A tag says who touched a byte last, and when: time << 12 | who. Time is a counter of the worker that every barrier of a block or
 * warp moves on, and no block starts over, so that tags of earlier blocks are older than `start`. A later access is ordered behind
 * an earlier one when the earlier tag lies below the limit that the last barrier of both has set.
 */
enum : uint32_t {
    SIMT_TIME_STEP = 1 << 12,
    SIMT_WHO = SIMT_TIME_STEP - 1,
    SIMT_WHO_ATOMIC = 1024,  /* + thread: by atomics of this thread */
    SIMT_WHO_LANES = 2048,   /* + warp: by several lanes of a warp (reads, or atomics) */
    SIMT_WHO_MANY = 2080,    /* by several warps */
    SIMT_WHO_PENDING = 2081, /* a copy is on its way here; carries the last time of all */
    SIMT_WHO_SPLIT = 2082,   /* only in words: look at the bytes. Carries the time of their latest access */
    SIMT_LAST_TIME = 0xfffff000u,
    SIMT_PENDING_TAG = SIMT_LAST_TIME | SIMT_WHO_PENDING,
};

struct simt_cell {
    uint32_t write, read; /* tags; a write forgets the reads before it, which it was ordered behind */
};

/* ---- fibers ---- */

struct simt_context {
#ifdef SIMT_OWN_SWITCH
    void *stack_pointer;
#else
    ucontext_t state;
#endif
};

enum simt_wait : uint8_t {
    SIMT_RUNS,
    SIMT_AT_BARRIER,
    SIMT_AT_WARP,
    SIMT_ENDED,
};

struct simt_pending_copy {
    uint8_t *to; /* shared memory */
    const void *from;
    uint32_t bytes, group;
};

struct simt_warp_state;

struct alignas(64) simt_fiber {
    /* first what changing fibers and warp operations touch: one line of the cache */
    simt_context context;
    struct simt_warp_state *warp;
    /* of the barrier or warp operation that it waits at */
    uint64_t operation, value, result;
    const char *file;
    uint32_t mask;
    int parameter;
    uint32_t thread; /* number in the block */
    uint8_t lane;    /* number in the warp */
    enum simt_wait wait;

    int line;       /* of a barrier */
    uint32_t stack; /* number of its stack */
    uint3 index;
    const void *operands[3]; /* of matrix operations */
    /* asynchronous copies on their way, oldest first */
    struct simt_pending_copy *copies;
    uint32_t copy_count, copy_capacity, groups;
};

struct simt_warp_state {
    struct simt_fiber *lanes;
    uint32_t number;
    uint32_t exists, fresh, ready, waiting, ended; /* lanes; fresh: yet to begin */
    uint32_t limit;                                /* tags of its lanes below are ordered before what comes */
    /* What the first of the waiting lanes called, and whether another one called something else. */
    uint64_t operation;
    uint32_t mask;
    bool differs;
    /* known[l][m], after operations of some lanes: tags of lane m below are ordered before what lane l does. */
    bool has_known;
    uint32_t known[SIMT_WARP][SIMT_WARP];
};

/* What one host thread needs to run blocks. */
struct simt_worker {
    /* the hooks' part */
    uintptr_t shared; /* address of the block's shared memory */
    size_t shared_bytes;
    uintptr_t stacks;
    size_t stacks_bytes;
    uintptr_t arguments; /* of the launch, which threads may read */
    size_t arguments_bytes;
    simt_cell *words, *bytes; /* shadows of shared memory, by word and by byte of split words */
    uint32_t thread, warp;    /* that runs */
    uint32_t clock, start, block_limit;
    uint32_t device_bit;
    bool watches_global;

    simt_fiber *fiber; /* that runs, or NULL */
    simt_launch_data *launch;
    uint3 block;
    uint64_t block_number;
    simt_context home;
    uint32_t threads, warp_count, ended, ready_warps, turn;
    bool abandoned;  /* an error ended the block */
    bool has_copies; /* an asynchronous copy was begun */
    /* Stacks: the first used_stacks have been taken by the block's threads, those listed are free again. */
    uint32_t used_stacks, free_stacks, stack_list[SIMT_BLOCK_THREADS];
    uint64_t seed, random;
    uint32_t lanes_order; /* warp operations that order memory: a set of bits by kind */

    uint32_t arrived;
    int barrier_vote, barrier_line;
    const char *barrier_file;
    int predicates, result; /* threads whose predicate held; the last barrier's result */

    simt_fiber fibers[SIMT_BLOCK_THREADS];
    simt_warp_state warps[SIMT_WARPS];
};

/* The worker of this host thread while it is in a kernel, else NULL. */
extern __thread simt_worker *simt_current __attribute__((tls_model("initial-exec")));

/* Moves time on, so that what was done before is below the returned limit. */
uint32_t simt_advance(simt_worker *worker);
/* Waits, in a fiber, until all of the mask's lanes are there; the last one calls simt_complete_matrices where that is meant. */
void simt_complete_matrices(simt_worker *worker, simt_warp_state *warp, uint64_t operation);

/* ---- errors ---- */

/* Reports an error of `fiber`, or, with NULL, of the thread that runs, if any. In a kernel, unless it aborts, it ends the block and does not return. */
void simt_fail(simt_fiber *fiber, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* As simt_fail, with the place of the access that `code`, an address in the program, made. */
void simt_fail_at(simt_fiber *fiber, const void *code, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* Leaves the running fiber for good. */
void simt_abandon(simt_worker *worker);
const char *simt_warp_name(uint64_t operation);

/* ---- watching ---- */

enum simt_access {
    SIMT_READ,
    SIMT_WRITE,
    SIMT_ATOMIC_ACCESS,
    SIMT_COPY_TARGET, /* a write that arrives later */
};
/* Checks an access of the running kernel, of any size and alignment, and notes it. */
void simt_check(
    simt_worker *worker, uintptr_t address, size_t bytes, enum simt_access access, const void *code);
/* An access of `fiber` to shared memory that another thread makes for it. */
void simt_check_for(simt_worker *worker, simt_fiber *fiber, uintptr_t address, size_t bytes,
    enum simt_access access, const void *code);
/* A copy has arrived in shared memory. */
void simt_copy_arrived(simt_worker *worker, uintptr_t address, size_t bytes);
/* Forgets the time of all that the block did, on overflow of the clock: it counts as ordered. */
void simt_forget_times(simt_worker *worker);

/* ---- buffers ---- */

enum simt_memory_kind {
    SIMT_DEVICE_MEMORY,
    SIMT_PINNED_MEMORY,
};

/* Who touched a byte of a buffer, for the search for races: watcher.cpp. */
struct simt_touch {
    uint32_t write, read; /* blocks of a launch */
    uint32_t block;       /* whose threads in_block tells of */
    simt_cell in_block;
};

struct simt_buffer {
    uintptr_t begin;
    size_t bytes;     /* 0 in buffers that were freed */
    uint32_t devices; /* whose kernels may use it: bits */
    enum simt_memory_kind kind;
    int device;
    size_t freed_bytes; /* its size, when it was freed */
    uint64_t first_page, pages;
    uint8_t *written;           /* a byte for each, or NULL: all count as written */
    struct simt_touch *touched; /* one a byte, or NULL */
};

enum : unsigned {
    SIMT_PAGE_BITS = 12,
};
extern uintptr_t simt_arena; /* where all buffers lie; 0 before the first */
extern size_t simt_arena_pages;
extern uint32_t *simt_page_buffer;       /* [simt_arena_pages]: number of the buffer there; 0: none */
extern struct simt_buffer *simt_buffers; /* [0] is nobody's */

/* NULL when the device's memory is used up. */
void *simt_buffer_create(size_t bytes, enum simt_memory_kind kind, int device);
/* false when no buffer begins there. */
bool simt_buffer_free(void *memory, enum simt_memory_kind kind);
/* The buffer that holds the address, or NULL; among those freed, too, where asked for. */
simt_buffer *simt_buffer_find(uintptr_t address, bool freed_too);
/* Bytes of device memory in use. */
size_t simt_memory_used(int device);
/* Text on an address that no access may touch. */
void simt_describe(uintptr_t address, char *text, size_t bytes);
/* Makes `touched` where there is none. */
void simt_touched_create(struct simt_buffer *buffer);
/* Forgets which blocks touched what. */
void simt_forget_touches(void);

/* ---- settings ---- */

extern simt_options simt_settings;
extern simt_error_handler simt_handler;
extern void *simt_handler_context;
extern simt_counts simt_count;
void simt_read_environment(void); /* once */

#endif

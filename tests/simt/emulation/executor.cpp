/* The executor: launches as blocks, threads of a block as fibers, barriers and warp operations between them.
 *
 * A fiber runs until it has to wait; then the next one that can run goes on, in order of lanes and warps, or in an order drawn by
 * the seed. The last thread to reach a barrier or warp operation completes it for all. When none can run and some have not
 * ended, the block has a deadlock, and what each waits for is known.
 */
#include "simt_internal.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <link.h> /* dl_iterate_phdr */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum : size_t {
    STACK_BYTES = 256 << 10, /* the guard is part of it */
    STACK_GUARD = 64 << 10,
    /* Stacks begin at different cache sets, or the hot ends of all would share a few. */
    STACK_COLOURS = 61,
    STACK_COLOUR_BYTES = 704,
};
enum {
    WORKERS = 16,
};

__thread simt_worker *simt_current;
simt_counts simt_count;

static simt_worker *workers[WORKERS];

/* ---- changing fibers ---- */

#ifdef SIMT_OWN_SWITCH
/* Keeps the registers that a function call preserves. */
extern "C" void simt_switch(void **from, void *to);
asm(".text\n"
    ".p2align 4\n"
    ".type simt_switch, @function\n"
    "simt_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    popq %rcx\n" /* a jump is predicted better here than a return without its call */
    "    jmp *%rcx\n"
    ".size simt_switch, .-simt_switch\n");

static inline void switch_context(simt_context *from, simt_context *to) {
    simt_switch(&from->stack_pointer, to->stack_pointer);
}

static void prepare_context(simt_context *context, uint8_t *stack, size_t bytes, void (*entry)(void)) {
    uintptr_t top = ((uintptr_t)stack + bytes) & ~(uintptr_t)15;
    void **frame = (void **)top - 8;
    memset(frame, 0, 8 * sizeof *frame);
    frame[6] = (void *)entry; /* behind the six registers; entry finds its stack as after a call */
    context->stack_pointer = frame;
}
#else
static inline void switch_context(simt_context *from, simt_context *to) {
    swapcontext(&from->state, &to->state);
}

static void prepare_context(simt_context *context, uint8_t *stack, size_t bytes, void (*entry)(void)) {
    getcontext(&context->state);
    context->state.uc_stack.ss_sp = stack;
    context->state.uc_stack.ss_size = bytes;
    context->state.uc_link = NULL;
    makecontext(&context->state, entry, 0);
}
#endif

static inline uint32_t random_number(simt_worker *w) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (uint32_t)(w->random >> 32);
}

static inline unsigned first_from(uint32_t set, unsigned start) {
    uint32_t rotated = set >> start | set << ((32 - start) & 31);
    return (start + (unsigned)__builtin_ctz(rotated)) & 31;
}

/* The fiber that runs next: of the same warp, if one can. */
static inline simt_fiber *next_fiber(simt_worker *w) {
    if (w->ready_warps == 0)
        return NULL;
    unsigned warp_start = w->turn, lane_start = 0;
    if (w->seed != 0) {
        uint32_t drawn = random_number(w);
        warp_start = drawn & 31;
        lane_start = drawn >> 5 & 31;
    }
    w->turn = first_from(w->ready_warps, warp_start);
    simt_warp_state *warp = &w->warps[w->turn];
    unsigned lane = first_from(warp->ready, lane_start);
    warp->ready &= ~(1u << lane);
    if (warp->ready == 0)
        w->ready_warps &= ~(1u << w->turn);
    return &warp->lanes[lane];
}

static inline void enter(simt_worker *w, simt_fiber *fiber) {
    w->fiber = fiber;
    w->thread = fiber->thread;
    w->warp = fiber->warp->number;
}

/* Whether the fiber's thread has yet to begin; it counts as begun then. */
static inline bool begins(simt_worker *w, simt_fiber *fiber) {
    uint32_t bit = 1u << fiber->lane;
    if (!(fiber->warp->fresh & bit))
        return false;
    const uint32_t *size = w->launch->block;
    uint32_t thread = fiber->thread;
    fiber->warp->fresh &= ~bit;
    fiber->index = uint3{thread % size[0], thread / size[0] % size[1], thread / (size[0] * size[1])};
    fiber->wait = SIMT_RUNS;
    fiber->copy_count = fiber->groups = 0;
    return true;
}

static void fiber_main(void);

/* Gives a thread that begins a stack. */
static void get_stack(simt_worker *w, simt_fiber *fiber) {
    fiber->stack = w->free_stacks > 0 ? w->stack_list[--w->free_stacks] : w->used_stacks++;
    size_t colour = fiber->stack % STACK_COLOURS * STACK_COLOUR_BYTES;
    uint8_t *stack = (uint8_t *)w->stacks + fiber->stack * STACK_BYTES + STACK_GUARD;
    prepare_context(&fiber->context, stack, STACK_BYTES - STACK_GUARD - colour, fiber_main);
}

static inline void go_to(simt_worker *w, simt_context *from, simt_fiber *to) {
    if (to != NULL)
        enter(w, to);
    else
        w->fiber = NULL;
    switch_context(from, to != NULL ? &to->context : &w->home);
}

/* Lets others run; returns when it is this fiber's turn again. */
static inline void give_way(simt_worker *w) {
    simt_fiber *from = w->fiber, *to = next_fiber(w);
    if (to == from)
        return;
    if (to != NULL && begins(w, to))
        get_stack(w, to);
    go_to(w, &from->context, to);
}

void simt_abandon(simt_worker *w) {
    simt_fiber *from = w->fiber;
    w->abandoned = true;
    __atomic_store_n(&w->launch->failed, 1, __ATOMIC_RELAXED);
    w->fiber = NULL;
    switch_context(&from->context, &w->home);
    __builtin_unreachable();
}

/* Runs threads until one has ended while the next has begun before, on a stack of its own. */
static void fiber_main(void) {
    simt_worker *w = simt_current;
    for (;;) {
        w->launch->work.call(w->launch->work.arguments);
        simt_fiber *fiber = w->fiber;
        fiber->wait = SIMT_ENDED;
        fiber->warp->ended |= 1u << fiber->lane;
        w->ended++;
        simt_fiber *next = next_fiber(w);
        if (next != NULL && begins(w, next)) {
            next->stack = fiber->stack;
            enter(w, next);
            continue;
        }
        w->stack_list[w->free_stacks++] = fiber->stack;
        go_to(w, &fiber->context, next);
    }
}

/* ---- time ---- */

uint32_t simt_advance(simt_worker *w) {
    if (w->clock + 2 * SIMT_TIME_STEP >= SIMT_LAST_TIME)
        simt_forget_times(w);
    w->clock += SIMT_TIME_STEP;
    return w->clock;
}

static void order_whole_block(simt_worker *w) {
    w->block_limit = simt_advance(w);
    for (uint32_t i = 0; i < w->warp_count; i++)
        w->warps[i].has_known = false;
}

/* Orders the memory of the lanes in `mask` among themselves. */
static void order_lanes(simt_worker *w, simt_warp_state *warp, uint32_t mask) {
    uint32_t limit = simt_advance(w);
    if (mask == warp->exists) {
        warp->limit = limit;
        warp->has_known = false;
        return;
    }
    if (!warp->has_known)
        memset(warp->known, 0, sizeof warp->known);
    warp->has_known = true;
    uint32_t joined[SIMT_WARP] = {0};
    for (uint32_t l = 0; l < SIMT_WARP; l++)
        for (uint32_t m = 0; mask >> l & 1 && m < SIMT_WARP; m++)
            joined[m] = warp->known[l][m] > joined[m] ? warp->known[l][m] : joined[m];
    for (uint32_t m = 0; m < SIMT_WARP; m++)
        joined[m] = mask >> m & 1 ? limit : joined[m];
    for (uint32_t l = 0; l < SIMT_WARP; l++)
        if (mask >> l & 1)
            memcpy(warp->known[l], joined, sizeof joined);
}

/* ---- barriers of the block ---- */

static const char *barrier_name(int vote) {
    static const char *const names[] = {
        "__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count"};
    return names[vote];
}

static simt_worker *running(const char *what) {
    simt_worker *w = simt_current;
    if (w == NULL) {
        fprintf(stderr, "simt: %s outside of a kernel\n", what);
        abort();
    }
    return w;
}

static void release_barrier(simt_worker *w) {
    switch (w->barrier_vote) {
    case SIMT_VOTE_OR:
        w->result = w->predicates != 0;
        break;
    case SIMT_VOTE_AND:
        w->result = w->predicates == (int)w->threads;
        break;
    default:
        w->result = w->predicates;
    }
    w->arrived = 0;
    order_whole_block(w);
    for (uint32_t i = 0; i < w->warp_count; i++)
        w->warps[i].ready = w->warps[i].exists;
    w->ready_warps = w->warp_count == 32 ? 0xffffffffu : (1u << w->warp_count) - 1;
    w->turn = 0;
}

/* Takes the running fiber out of those that can run: it goes on at once. */
static inline void keep_running(simt_worker *w, simt_fiber *fiber) {
    simt_warp_state *warp = fiber->warp;
    warp->ready &= ~(1u << fiber->lane);
    if (warp->ready == 0)
        w->ready_warps &= ~(1u << warp->number);
}

static bool same_place(int line, const char *file, int other_line, const char *other_file) {
    return line == other_line && (file == other_file || strcmp(file, other_file) == 0);
}

extern "C" int simt_block_barrier(enum simt_vote vote, int predicate, int line, const char *file) {
    simt_worker *w = running("a barrier");
    simt_fiber *fiber = w->fiber;
    fiber->wait = SIMT_AT_BARRIER;
    fiber->line = line;
    fiber->file = file;
    if (w->arrived == 0) {
        w->barrier_vote = vote;
        w->barrier_line = line;
        w->barrier_file = file;
        w->predicates = 0;
    } else if (w->barrier_vote != (int)vote || !same_place(line, file, w->barrier_line, w->barrier_file)) {
        simt_fail(fiber,
            "waits at %s (%s:%d) while other threads wait at %s (%s:%d): all threads must meet at one "
            "barrier",
            barrier_name(vote), file, line, barrier_name(w->barrier_vote), w->barrier_file, w->barrier_line);
    }
    w->predicates += predicate != 0;
    if (++w->arrived == w->threads)
        release_barrier(w);
    give_way(w);
    fiber->wait = SIMT_RUNS;
    return w->result;
}

/* ---- warp operations ---- */

static inline unsigned kind_of(uint64_t operation) {
    return (unsigned)operation & 255;
}

static inline int line_of(uint64_t operation) {
    return (int)(operation >> 16);
}

const char *simt_warp_name(uint64_t operation) {
    static const char *const names[SIMT_WARP_KINDS] = {"__syncwarp", "__shfl_sync", "__shfl_up_sync",
        "__shfl_down_sync", "__shfl_xor_sync", "__ballot_sync", "__any_sync", "__all_sync",
        "__match_any_sync", "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
        "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",
        "__reduce_xor_sync", "mma_bf16", "load_matrices", "load_matrices_transposed"};
    return names[kind_of(operation)];
}

/* What a lane gets that asks for the value of one that takes no part: CUDA leaves it open. */
static const uint64_t NOBODYS_VALUE = 0xffbadbadffbadbadu;

static uint32_t shuffle_source(unsigned kind, uint32_t lane, int parameter, uint32_t width) {
    uint32_t first = lane & ~(width - 1), last = first + width - 1;
    uint32_t source = lane;
    if (kind == SIMT_SHUFFLE)
        source = first | ((uint32_t)parameter & (width - 1));
    else if (kind == SIMT_SHUFFLE_UP)
        source = lane >= first + (uint32_t)parameter ? lane - (uint32_t)parameter : lane;
    else if (kind == SIMT_SHUFFLE_DOWN)
        source = (uint32_t)parameter <= last - lane ? lane + (uint32_t)parameter : lane;
    else
        source = lane ^ (uint32_t)parameter;
    return source > last ? lane : source;
}

static void complete_shuffle(simt_warp_state *warp, uint64_t operation, uint32_t mask) {
    unsigned kind = kind_of(operation);
    uint32_t width = (uint32_t)(operation >> 8) & 255;
    if (width == 0 || width > 32 || (width & (width - 1)) != 0)
        simt_fail(NULL, "%s (%s:%d) with width %u: it must be a power of two up to 32",
            simt_warp_name(operation), warp->lanes[__builtin_ctz(mask)].file, line_of(operation), width);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        simt_fiber *fiber = &warp->lanes[__builtin_ctz(left)];
        uint32_t source = shuffle_source(kind, fiber->lane, fiber->parameter, width);
        fiber->result = mask >> source & 1 ? warp->lanes[source].value : NOBODYS_VALUE;
    }
}

static uint32_t ballot(const simt_warp_state *warp, uint32_t mask) {
    uint32_t votes = 0;
    for (uint32_t left = mask; left != 0; left &= left - 1)
        votes |= (uint32_t)(warp->lanes[__builtin_ctz(left)].value & 1) << __builtin_ctz(left);
    return votes;
}

static uint32_t reduce(const simt_warp_state *warp, unsigned kind, uint32_t mask) {
    uint32_t total = (uint32_t)warp->lanes[__builtin_ctz(mask)].value;
    for (uint32_t left = mask & (mask - 1); left != 0; left &= left - 1) {
        uint32_t value = (uint32_t)warp->lanes[__builtin_ctz(left)].value;
        switch (kind) {
        case SIMT_ADD:
            total += value;
            break;
        case SIMT_MIN:
            total = value < total ? value : total;
            break;
        case SIMT_MAX:
            total = value > total ? value : total;
            break;
        case SIMT_MIN_SIGNED:
            total = (int32_t)value < (int32_t)total ? value : total;
            break;
        case SIMT_MAX_SIGNED:
            total = (int32_t)value > (int32_t)total ? value : total;
            break;
        case SIMT_AND:
            total &= value;
            break;
        case SIMT_OR:
            total |= value;
            break;
        default:
            total ^= value;
        }
    }
    return total;
}

static void give_all(simt_warp_state *warp, uint32_t mask, uint64_t result) {
    for (uint32_t left = mask; left != 0; left &= left - 1)
        warp->lanes[__builtin_ctz(left)].result = result;
}

static void complete_match(simt_warp_state *warp, uint32_t mask) {
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        simt_fiber *fiber = &warp->lanes[__builtin_ctz(left)];
        fiber->result = 0;
        for (uint32_t others = mask; others != 0; others &= others - 1)
            if (warp->lanes[__builtin_ctz(others)].value == fiber->value)
                fiber->result |= 1u << __builtin_ctz(others);
    }
}

static void complete(simt_worker *w, simt_warp_state *warp, uint64_t operation, uint32_t mask) {
    unsigned kind = kind_of(operation);
    switch (kind) {
    case SIMT_SYNC:
        break;
    case SIMT_SHUFFLE:
    case SIMT_SHUFFLE_UP:
    case SIMT_SHUFFLE_DOWN:
    case SIMT_SHUFFLE_XOR:
        complete_shuffle(warp, operation, mask);
        break;
    case SIMT_BALLOT:
        give_all(warp, mask, ballot(warp, mask));
        break;
    case SIMT_ANY:
        give_all(warp, mask, ballot(warp, mask) != 0);
        break;
    case SIMT_ALL:
        give_all(warp, mask, ballot(warp, mask) == mask);
        break;
    case SIMT_MATCH_ANY:
        complete_match(warp, mask);
        break;
    case SIMT_MULTIPLY_MATRICES:
    case SIMT_LOAD_MATRICES:
    case SIMT_LOAD_MATRICES_TRANSPOSED:
        simt_complete_matrices(w, warp, operation);
        break;
    default:
        give_all(warp, mask, reduce(warp, kind, mask));
    }
    if (w->lanes_order >> kind & 1)
        order_lanes(w, warp, mask);
}

static void check_mask(simt_fiber *fiber, uint64_t operation, uint32_t mask, const char *file) {
    simt_warp_state *warp = fiber->warp;
    if (!(mask >> fiber->lane & 1))
        simt_fail(fiber, "%s (%s:%d) with mask 0x%08x, which leaves out lane %u that calls it",
            simt_warp_name(operation), file, line_of(operation), mask, fiber->lane);
    uint32_t missing = mask & ~warp->exists;
    if (missing != 0)
        simt_fail(fiber, "%s (%s:%d) with mask 0x%08x: the block has no thread for lane %d",
            simt_warp_name(operation), file, line_of(operation), mask, __builtin_ctz(missing));
    missing = mask & warp->ended;
    if (missing != 0)
        simt_fail(fiber, "%s (%s:%d) with mask 0x%08x waits for lane %d, which has ended",
            simt_warp_name(operation), file, line_of(operation), mask, __builtin_ctz(missing));
}

/* All lanes of the mask must have called the same. */
static void check_agreement(simt_warp_state *warp, simt_fiber *fiber) {
    for (uint32_t left = fiber->mask; left != 0; left &= left - 1) {
        simt_fiber *other = &warp->lanes[__builtin_ctz(left)];
        if (other->mask == fiber->mask && other->operation == fiber->operation)
            continue;
        simt_fail(fiber, "%s (%s:%d) with mask 0x%08x meets lane %u at %s (%s:%d) with mask 0x%08x",
            simt_warp_name(fiber->operation), fiber->file, line_of(fiber->operation), fiber->mask,
            other->lane, simt_warp_name(other->operation), other->file, line_of(other->operation),
            other->mask);
    }
}

extern "C" uint64_t simt_warp(
    uint64_t operation, unsigned mask, uint64_t value, int parameter, const char *file) {
    simt_worker *w = running("a warp operation");
    simt_fiber *fiber = w->fiber;
    simt_warp_state *warp = fiber->warp;
    uint32_t bit = 1u << fiber->lane;
    if (!(mask & bit) || (mask & (~warp->exists | warp->ended)))
        check_mask(fiber, operation, mask, file);
    fiber->wait = SIMT_AT_WARP;
    fiber->operation = operation;
    fiber->mask = mask;
    fiber->value = value;
    fiber->parameter = parameter;
    fiber->file = file;
    if (warp->waiting == 0) {
        warp->operation = operation;
        warp->mask = mask;
        warp->differs = false;
    } else if (warp->operation != operation || warp->mask != mask) {
        warp->differs = true;
    }
    warp->waiting |= bit;
    if ((warp->waiting & mask) != mask) {
        give_way(w);
    } else {
        if (warp->differs)
            check_agreement(warp, fiber);
        complete(w, warp, operation, mask);
        warp->waiting &= ~mask;
        warp->ready |= mask;
        w->ready_warps |= 1u << warp->number;
        if (w->seed == 0)
            keep_running(w, fiber);
        else
            give_way(w);
    }
    fiber->wait = SIMT_RUNS;
    return fiber->result;
}

extern "C" unsigned simt_active_lanes(void) {
    simt_warp_state *warp = running("__activemask")->fiber->warp;
    return warp->exists & ~warp->ended;
}

/* ---- what a thread knows ---- */

extern "C" uint3 simt_thread_index(void) {
    return simt_current->fiber->index;
}

extern "C" uint3 simt_block_index(void) {
    return simt_current->block;
}

extern "C" uint3 simt_block_size(void) {
    const uint32_t *size = simt_current->launch->block;
    return uint3{size[0], size[1], size[2]};
}

extern "C" uint3 simt_grid_size(void) {
    const uint32_t *size = simt_current->launch->grid;
    return uint3{size[0], size[1], size[2]};
}

extern "C" void *simt_shared_memory(size_t bytes) {
    simt_worker *w = running("shared memory");
    if (bytes > w->shared_bytes)
        simt_fail(
            NULL, "needs %zu bytes of shared memory, but was launched with %zu", bytes, w->shared_bytes);
    return (void *)w->shared;
}

extern "C" void simt_trap(const char *what, const char *file, int line) {
    simt_fail(NULL, "%s (%s:%d)", what, file, line);
    abort(); /* on the host */
}

/* ---- deadlocks ---- */

static void append(char *text, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t room, const char *format, ...) {
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, room - used, format, arguments);
    va_end(arguments);
}

static void describe_wait(const simt_fiber *fiber, char *text, size_t room) {
    if (fiber->wait == SIMT_ENDED)
        append(text, room, "has ended");
    else if (fiber->wait == SIMT_AT_BARRIER)
        append(text, room, "waits at a barrier (%s:%d)", fiber->file, fiber->line);
    else
        append(text, room, "waits at %s (%s:%d) with mask 0x%08x", simt_warp_name(fiber->operation),
            fiber->file, line_of(fiber->operation), fiber->mask);
}

static simt_fiber *find_waiting(simt_worker *w, enum simt_wait wait) {
    for (uint32_t i = 0; i < w->threads; i++)
        if (w->fibers[i].wait == wait)
            return &w->fibers[i];
    return NULL;
}

static uint32_t count_waiting(const simt_worker *w, enum simt_wait wait) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < w->threads; i++)
        count += w->fibers[i].wait == wait;
    return count;
}

/* A lane that `fiber` waits for: it is elsewhere, or at another warp operation. */
static simt_fiber *find_missing(simt_fiber *fiber) {
    simt_fiber *missing = NULL;
    for (uint32_t left = fiber->mask; left != 0 && missing == NULL; left &= left - 1) {
        simt_fiber *lane = &fiber->warp->lanes[__builtin_ctz(left)];
        if (lane->wait != SIMT_AT_WARP || lane->mask != fiber->mask || lane->operation != fiber->operation)
            missing = lane;
    }
    return missing;
}

/* The first warp operation that cannot complete, and a lane that it lacks; without one, the barrier and who is not there. */
static void report_deadlock(simt_worker *w) {
    char text[1024] = "";
    simt_fiber *fiber = find_waiting(w, SIMT_AT_WARP), *missing = NULL;
    if (fiber != NULL) {
        missing = find_missing(fiber);
        describe_wait(fiber, text, sizeof text);
        append(text, sizeof text, " for lane %u, which ", missing->lane);
        describe_wait(missing, text, sizeof text);
        simt_fail(fiber, "%s: the operation never completes", text);
        return;
    }
    fiber = find_waiting(w, SIMT_AT_BARRIER);
    missing = find_waiting(w, SIMT_ENDED);
    append(text, sizeof text, "waits at %s (%s:%d) with %u of %u threads; ", barrier_name(w->barrier_vote),
        fiber->file, fiber->line, count_waiting(w, SIMT_AT_BARRIER), w->threads);
    if (missing != NULL) {
        append(text, sizeof text, "%u have ended, the first of them thread (%u, %u, %u)",
            count_waiting(w, SIMT_ENDED), missing->index.x, missing->index.y, missing->index.z);
    }
    simt_fail(fiber, "%s: the barrier is never reached by all", text);
}

/* ---- blocks ---- */

static void start_warps(simt_worker *w) {
    w->warp_count = (w->threads + SIMT_WARP - 1) / SIMT_WARP;
    for (uint32_t i = 0; i < w->warp_count; i++) {
        simt_warp_state *warp = &w->warps[i];
        uint32_t lanes = w->threads - i * SIMT_WARP;
        warp->exists = lanes >= SIMT_WARP ? 0xffffffffu : (1u << lanes) - 1;
        warp->ready = warp->fresh = warp->exists;
        warp->waiting = warp->ended = 0;
        warp->limit = w->start;
        warp->has_known = false;
    }
    w->ready_warps = w->warp_count == 32 ? 0xffffffffu : (1u << w->warp_count) - 1;
    w->turn = 0;
}

/* Copies that nobody waited for leave no trace in the next block's shadow. */
static void drop_copies(simt_worker *w) {
    for (uint32_t i = 0; i < w->threads; i++) {
        simt_fiber *fiber = &w->fibers[i];
        if (fiber->warp->fresh >> fiber->lane & 1)
            continue;
        for (uint32_t j = 0; j < fiber->copy_count; j++)
            memset(&w->words[((uintptr_t)fiber->copies[j].to - w->shared) / 4], 0, 4 * sizeof *w->words);
    }
}

static uint64_t mix_bits(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) | 1;
}

static void run_block(simt_worker *w, uint64_t number) {
    const simt_launch_data *launch = w->launch;
    const uint32_t *grid = launch->grid;
    w->block_number = number;
    w->block = uint3{(uint32_t)(number % grid[0]), (uint32_t)(number / grid[0] % grid[1]),
        (uint32_t)(number / grid[0] / grid[1])};
    w->random = mix_bits(w->seed * 0x9e3779b97f4a7c15u + launch->number * 0xd1b54a32d192ed03u + number);
    w->ended = w->arrived = 0;
    w->abandoned = false;
    w->start = w->block_limit = simt_advance(w);
    w->free_stacks = w->used_stacks = 0;
    w->has_copies = false;
    start_warps(w);
    simt_fiber *first = next_fiber(w);
    (void)begins(w, first);
    get_stack(w, first);
    go_to(w, &w->home, first);
    if (!w->abandoned && w->ended < w->threads) {
        report_deadlock(w);
        __atomic_store_n(&w->launch->failed, 1, __ATOMIC_RELAXED);
    }
    if (w->has_copies)
        drop_copies(w);
}

/* The order of blocks: as they are numbered, or shifted and perhaps backwards. */
static uint64_t ordered_block(const simt_launch_data *launch, uint64_t i) {
    uint64_t drawn = mix_bits(simt_settings.seed + launch->number);
    if (simt_settings.seed == 0)
        return i;
    i = (i + drawn % launch->blocks) % launch->blocks;
    return drawn >> 32 & 1 ? launch->blocks - 1 - i : i;
}

static void run_blocks(simt_worker *w, simt_launch_data *launch) {
    w->launch = launch;
    w->threads = launch->block[0] * launch->block[1] * launch->block[2];
    w->shared_bytes = launch->shared_bytes;
    w->arguments = (uintptr_t)launch->work.arguments;
    w->arguments_bytes = launch->work.bytes;
    w->device_bit = 1u << launch->device;
    w->watches_global = simt_settings.uninitialised || simt_settings.global_races;
    w->seed = simt_settings.seed;
    w->lanes_order = simt_settings.weak_shuffles ? 1u << SIMT_SYNC : 0xffffffffu;
    simt_current = w;
    for (;;) {
        uint64_t i = __atomic_fetch_add(&launch->next_block, 1, __ATOMIC_RELAXED);
        if (i >= launch->blocks || __atomic_load_n(&launch->failed, __ATOMIC_RELAXED))
            break;
        run_block(w, ordered_block(launch, i));
    }
    simt_current = NULL;
}

static void *map(size_t bytes) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "simt: cannot map %zu bytes for the emulation\n", bytes);
        abort();
    }
    return memory;
}

/* ---- faults: what the hooks did not see, or a stack that is too small ---- */

static struct sigaction action_before;

static void take_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    simt_worker *w = simt_current;
    if (w != NULL && w->fiber != NULL) {
        uintptr_t address = (uintptr_t)info->si_addr;
        char text[512];
        const uint3 *index = &w->fiber->index;
        bool is_overflow = address - w->stacks < w->stacks_bytes;
        int used = snprintf(text, sizeof text,
            "simt: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s at %p\n", w->launch->name,
            w->block.x, w->block.y, w->block.z, index->x, index->y, index->z,
            is_overflow ? "its stack overflows" : "a fault in code that is not watched", info->si_addr);
        if (write(STDERR_FILENO, text, (size_t)used) < 0)
            _exit(1);
    }
    sigaction(number, &action_before, NULL); /* the access is repeated, and dealt with as before */
}

/* On a stack of its own, for a fiber's may be full. A handler that the program has set stays. */
static void watch_faults(void) {
    enum : size_t { HANDLER_STACK = 64 << 10 };
    struct sigaction action;
    stack_t stack;
    memset(&stack, 0, sizeof stack);
    stack.ss_sp = map(HANDLER_STACK);
    stack.ss_size = HANDLER_STACK;
    sigaltstack(&stack, NULL);
    sigaction(SIGSEGV, NULL, &action_before);
    if ((action_before.sa_flags & SA_SIGINFO) != 0 || action_before.sa_handler != SIG_DFL)
        return;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = take_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
}

/* ---- workers ---- */

static simt_worker *create_worker(void) {
    simt_worker *w = (simt_worker *)map(sizeof *w);
    uint8_t *shared = (uint8_t *)map(SIMT_SHARED_BYTES + 2 * SIMT_SHARED_GUARD);
    /* The 128 bytes that device.h asks for are all that a kernel may count on. */
    w->shared = (uintptr_t)shared + SIMT_SHARED_GUARD + 128;
    w->words = (simt_cell *)map(SIMT_SHARED_BYTES / 4 * sizeof *w->words);
    w->bytes = (simt_cell *)map(SIMT_SHARED_BYTES * sizeof *w->bytes);
    w->stacks_bytes = SIMT_BLOCK_THREADS * STACK_BYTES;
    w->stacks = (uintptr_t)map(w->stacks_bytes);
    for (uint32_t i = 0; i < SIMT_BLOCK_THREADS; i++) {
        mprotect((uint8_t *)w->stacks + i * STACK_BYTES, STACK_GUARD, PROT_NONE);
        w->fibers[i].thread = i;
        w->fibers[i].lane = i % SIMT_WARP;
        w->fibers[i].warp = &w->warps[i / SIMT_WARP];
    }
    for (uint32_t i = 0; i < SIMT_WARPS; i++) {
        w->warps[i].lanes = &w->fibers[i * SIMT_WARP];
        w->warps[i].number = i;
    }
    return w;
}

static simt_worker *get_worker(int number) {
    if (workers[number] == NULL)
        workers[number] = create_worker();
    return workers[number];
}

struct share {
    simt_worker *worker;
    simt_launch_data *launch;
};

static void *run_share(void *data) {
    struct share *share = (struct share *)data;
    run_blocks(share->worker, share->launch);
    return NULL;
}

bool simt_run_launch(simt_launch_data *launch) {
    static bool is_watching;
    pthread_t threads[WORKERS];
    struct share shares[WORKERS];
    int count = simt_settings.threads < WORKERS ? simt_settings.threads : WORKERS;
    count = (uint64_t)count > launch->blocks ? (int)launch->blocks : count;
    if (!is_watching)
        watch_faults();
    is_watching = true;
    launch->number = (uint64_t)++simt_count.launches;
    if (launch->number % 4095 == 0) /* numbers of launches are kept so short there */
        simt_forget_touches();
    launch->next_block = 0;
    launch->failed = 0;
    int started = 1;
    for (; started < count; started++) {
        shares[started] = {get_worker(started), launch};
        if (pthread_create(&threads[started], NULL, run_share, &shares[started]) != 0)
            break;
    }
    run_blocks(get_worker(0), launch);
    for (int i = 1; i < started; i++)
        pthread_join(threads[i], NULL);
    simt_count.blocks += (int64_t)launch->blocks;
    return launch->failed == 0;
}

/* ---- errors ---- */

static pthread_mutex_t reporting = PTHREAD_MUTEX_INITIALIZER;

static int find_program(struct dl_phdr_info *info, size_t size, void *base) {
    (void)size;
    *(uintptr_t *)base = info->dlpi_addr; /* the first one is the program */
    return 1;
}

/* Where in the sources an address of the program lies, if addr2line can tell. */
static void print_place(const void *code) {
    uintptr_t base = 0;
    char command[256];
    dl_iterate_phdr(find_program, &base);
    snprintf(command, sizeof command, "addr2line -Cfpie /proc/%d/exe 0x%lx 1>&2", (int)getpid(),
        (unsigned long)((uintptr_t)code - base - 1));
    fprintf(stderr, "simt: the access is at ");
    fflush(stderr);
    if (system(command) != 0)
        fprintf(stderr, "%p\n", code);
}

static void report(simt_fiber *fiber, const void *code, const char *what) {
    simt_worker *w = simt_current;
    char message[2048] = "";
    if (w != NULL) {
        append(message, sizeof message, "kernel %s, block (%u, %u, %u)", w->launch->name, w->block.x,
            w->block.y, w->block.z);
        fiber = fiber != NULL ? fiber : w->fiber;
        if (fiber != NULL)
            append(message, sizeof message, ", thread (%u, %u, %u)", fiber->index.x, fiber->index.y,
                fiber->index.z);
        append(message, sizeof message, ": ");
    }
    append(message, sizeof message, "%s", what);
    pthread_mutex_lock(&reporting);
    if (simt_handler == NULL) {
        fprintf(stderr, "simt: %s\n", message);
        if (code != NULL)
            print_place(code);
        abort();
    }
    simt_handler(message, simt_handler_context);
    pthread_mutex_unlock(&reporting);
    if (w != NULL && w->fiber != NULL)
        simt_abandon(w);
}

void simt_fail(simt_fiber *fiber, const char *format, ...) {
    char what[1536];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    report(fiber, NULL, what);
}

void simt_fail_at(simt_fiber *fiber, const void *code, const char *format, ...) {
    char what[1536];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    report(fiber, code, what);
}

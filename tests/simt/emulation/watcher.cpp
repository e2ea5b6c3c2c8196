/* The watcher: the functions that compilers call before each access in code compiled with -fsanitize=thread (GCC 12 and clang 14
 * agree on them), and at failed checks of -fsanitize=alignment, bounds and others.
 *
 * The common case of an access is decided in the hook itself: shared memory by comparing a word's tags, a buffer by its record, the
 * stacks of fibers by their addresses. All else goes to simt_check, which looks at every byte.
 */
#include "simt_internal.h"

#include <cstdio>
#include <cstdlib>
#include <link.h> /* dl_iterate_phdr */

#define CALLER __builtin_return_address(0)
#define LIKELY(condition) __builtin_expect(condition, 1)

/* ---- shared memory ---- */

static inline uint32_t tag_of(const simt_worker *w) {
    return w->clock | w->thread;
}

/* Whether what the tag tells of is ordered before what the running thread does now. */
static bool is_ordered(const simt_worker *w, uint32_t tag) {
    uint32_t who = tag & SIMT_WHO;
    if (tag < w->block_limit)
        return true;
    const simt_warp_state *warp = &w->warps[w->warp];
    if (who < SIMT_WHO_LANES) {
        uint32_t thread = who & 1023;
        if (thread == w->thread)
            return true;
        if (thread / SIMT_WARP != w->warp)
            return false;
        return tag < warp->limit ||
               (warp->has_known && tag < warp->known[w->thread % SIMT_WARP][thread % SIMT_WARP]);
    }
    if (who != SIMT_WHO_LANES + w->warp)
        return false;
    if (tag < warp->limit)
        return true;
    bool is_known = false; /* by any lane: which ones took part is not kept */
    for (uint32_t m = 0; warp->has_known && m < SIMT_WARP; m++)
        is_known |= m != w->thread % SIMT_WARP && tag < warp->known[w->thread % SIMT_WARP][m];
    return is_known;
}

/* The warp of all that a tag names, or SIMT_WARPS. */
static uint32_t warp_of(uint32_t tag) {
    uint32_t who = tag & SIMT_WHO;
    return who < SIMT_WHO_LANES  ? (who & 1023) / SIMT_WARP
           : who < SIMT_WHO_MANY ? who - SIMT_WHO_LANES
                                 : SIMT_WARPS;
}

/* The running thread and those of the tag together. */
static uint32_t joined_tag(const simt_worker *w, uint32_t tag) {
    return w->clock | (warp_of(tag) == w->warp ? SIMT_WHO_LANES + w->warp : (uint32_t)SIMT_WHO_MANY);
}

enum fault {
    NO_FAULT,
    NEVER_WRITTEN,
    ON_ITS_WAY,
    AFTER_WRITE,
    AFTER_READ,
};

static inline bool is_atomic_tag(uint32_t tag) {
    uint32_t who = tag & SIMT_WHO;
    return who >= SIMT_WHO_ATOMIC;
}

static enum fault meet_writes(
    const simt_worker *w, const simt_cell *cell, enum simt_access access, bool is_shared) {
    if (cell->write == SIMT_PENDING_TAG)
        return ON_ITS_WAY;
    if (cell->write < w->start) /* not in this block */
        return is_shared && (access == SIMT_READ || access == SIMT_ATOMIC_ACCESS) ? NEVER_WRITTEN : NO_FAULT;
    if (access == SIMT_ATOMIC_ACCESS && is_atomic_tag(cell->write))
        return NO_FAULT;
    return is_ordered(w, cell->write) ? NO_FAULT : AFTER_WRITE;
}

/* Checks one cell and notes the access in it. `old` gets what was there. In device memory, other than in shared, a block finds what
 * was written before. */
static enum fault touch_cell(
    simt_worker *w, simt_cell *cell, enum simt_access access, bool is_shared, simt_cell *old) {
    *old = *cell;
    enum fault fault = meet_writes(w, cell, access, is_shared);
    if (fault != NO_FAULT)
        return fault;
    bool is_read = cell->read >= w->start;
    if (access == SIMT_READ) {
        cell->read = !is_read || is_ordered(w, cell->read) ? tag_of(w) : joined_tag(w, cell->read);
        return NO_FAULT;
    }
    if (is_read && !is_ordered(w, cell->read))
        return AFTER_READ;
    cell->read = 0;
    if (access == SIMT_COPY_TARGET)
        cell->write = SIMT_PENDING_TAG;
    else if (access == SIMT_WRITE)
        cell->write = tag_of(w);
    else if (is_ordered(w, cell->write))
        cell->write = tag_of(w) + SIMT_WHO_ATOMIC;
    else
        cell->write = joined_tag(w, cell->write);
    return NO_FAULT;
}

static void split_word(simt_worker *w, size_t word) {
    simt_cell *cell = &w->words[word];
    if ((cell->write & SIMT_WHO) == SIMT_WHO_SPLIT && cell->write >= w->start)
        return;
    for (size_t i = 0; i < 4; i++)
        w->bytes[4 * word + i] = *cell;
    cell->read = 0;
}

static bool is_split(const simt_worker *w, size_t word) {
    return (w->words[word].write & SIMT_WHO) == SIMT_WHO_SPLIT && w->words[word].write >= w->start;
}

static bool equal_cells(const simt_cell *cells) {
    for (int i = 1; i < 4; i++)
        if (cells[i].write != cells[0].write || cells[i].read != cells[0].read)
            return false;
    return true;
}

/* Bytes `first` to `end` of a word. */
static enum fault touch_word(
    simt_worker *w, size_t word, size_t first, size_t end, enum simt_access access, simt_cell *old) {
    if (first == 0 && end == 4 && !is_split(w, word))
        return touch_cell(w, &w->words[word], access, true, old);
    split_word(w, word);
    simt_cell *bytes = &w->bytes[4 * word];
    for (size_t i = first; i < end; i++) {
        enum fault fault = touch_cell(w, &bytes[i], access, true, old);
        if (fault != NO_FAULT)
            return fault;
    }
    if (equal_cells(bytes))
        w->words[word] = bytes[0];
    else
        w->words[word].write = w->clock | SIMT_WHO_SPLIT;
    return NO_FAULT;
}

static void name_other(const simt_worker *w, uint32_t tag, char *text, size_t room) {
    uint32_t who = tag & SIMT_WHO;
    if (who >= SIMT_WHO_LANES) {
        snprintf(text, room, who == SIMT_WHO_MANY ? "several warps" : "several lanes of its warp");
        if (who != SIMT_WHO_MANY && who != SIMT_WHO_LANES + w->warp)
            snprintf(text, room, "several lanes of warp %u", who - SIMT_WHO_LANES);
        return;
    }
    const uint3 *index = &w->fibers[who & 1023].index;
    snprintf(text, room, "thread (%u, %u, %u)", index->x, index->y, index->z);
}

static const char *access_name(enum simt_access access) {
    static const char *const names[] = {"read", "write", "atomic operation", "asynchronous copy"};
    return names[access];
}

static void report_shared(simt_worker *w, simt_fiber *fiber, enum fault fault, size_t offset, size_t bytes,
    enum simt_access access, const simt_cell *old, const void *code) {
    char other[64];
    const char *name = access_name(access);
    switch (fault) {
    case NEVER_WRITTEN:
        simt_fail_at(fiber, code,
            "%s of %zu bytes of shared memory at offset %zu, which no thread of the block has written so far",
            name, bytes, offset);
        break;
    case ON_ITS_WAY:
        simt_fail_at(fiber, code,
            "%s of %zu bytes of shared memory at offset %zu, to which an asynchronous copy is on its way: "
            "copies_wait is missing",
            name, bytes, offset);
        break;
    default:
        name_other(w, fault == AFTER_WRITE ? old->write : old->read, other, sizeof other);
        simt_fail_at(fiber, code,
            "race in shared memory: %s of %zu bytes at offset %zu after a %s by %s without a barrier between",
            name, bytes, offset, fault == AFTER_WRITE ? "write" : "read", other);
    }
}

static void check_shared(simt_worker *w, simt_fiber *fiber, size_t offset, size_t bytes,
    enum simt_access access, const void *code) {
    if (offset >= w->shared_bytes || bytes > w->shared_bytes - offset) {
        simt_fail_at(fiber, code,
            "%s of %zu bytes of shared memory at offset %zd, outside of the launch's %zu bytes",
            access_name(access), bytes, (ssize_t)offset, w->shared_bytes);
        return;
    }
    simt_cell old = {0, 0};
    for (size_t at = offset, end = offset + bytes; at < end;) {
        size_t word = at / 4, stop = (word + 1) * 4 < end ? (word + 1) * 4 : end;
        enum fault fault = touch_word(w, word, at - word * 4, stop - word * 4, access, &old);
        if (fault != NO_FAULT) {
            report_shared(w, fiber, fault, offset, bytes, access, &old, code);
            return;
        }
        at = stop;
    }
}

void simt_copy_arrived(simt_worker *w, uintptr_t address, size_t bytes) {
    size_t word = (address - w->shared) / 4;
    for (size_t i = 0; i < bytes / 4; i++)
        w->words[word + i] = {tag_of(w), 0};
}

static void forget_cell(const simt_worker *w, simt_cell *cell) {
    if (cell->write != SIMT_PENDING_TAG)
        cell->write = cell->write >= w->start ? SIMT_TIME_STEP | (cell->write & SIMT_WHO) : 0;
    cell->read = 0;
}

void simt_forget_times(simt_worker *w) {
    for (size_t i = 0; i < SIMT_SHARED_BYTES / 4; i++)
        forget_cell(w, &w->words[i]);
    for (size_t i = 0; i < SIMT_SHARED_BYTES; i++)
        forget_cell(w, &w->bytes[i]);
    w->start = SIMT_TIME_STEP;
    w->clock = w->block_limit = 2 * SIMT_TIME_STEP;
    for (uint32_t i = 0; i < SIMT_WARPS; i++) {
        w->warps[i].limit = w->clock;
        w->warps[i].has_known = false;
    }
}

/* ---- buffers ---- */

/* Who touched a byte in which launch: launch number * LAUNCH + block, for writes + BY_ATOMICS when all were atomic. */
enum : uint32_t {
    LAUNCH = 1 << 20,
    BY_ATOMICS = 1 << 19,
    MANY_READ = BY_ATOMICS - 1,
    MANY_BY_ATOMICS = LAUNCH - 1,
    MOST_BLOCKS = BY_ATOMICS - 1, /* launches of more are not looked at */
};

/* Marks a byte as touched by this block; false where another block touched it and either wrote. */
static bool touch_by_block(
    const simt_worker *w, struct simt_touch *touch, uint32_t launch, enum simt_access access) {
    uint32_t mine = launch | (uint32_t)w->block_number;
    uint32_t write = touch->write - launch < LAUNCH ? touch->write : 0; /* of this launch */
    uint32_t read = touch->read - launch < LAUNCH ? touch->read : 0;
    bool is_mine = write == 0 || write == mine || write == (mine | BY_ATOMICS);
    if (!is_mine && !(access == SIMT_ATOMIC_ACCESS && (write & BY_ATOMICS) != 0))
        return false;
    if (access == SIMT_READ) {
        touch->read = read == 0 || read == mine ? mine : launch | MANY_READ;
        return true;
    }
    if (read != 0 && read != mine)
        return false;
    if (access == SIMT_WRITE)
        touch->write = mine;
    else if (write != mine)
        touch->write = is_mine ? mine | BY_ATOMICS : launch | MANY_BY_ATOMICS;
    return true;
}

/* The same among the threads of this block, as in shared memory. */
static enum fault touch_in_block(
    simt_worker *w, struct simt_touch *touch, uint32_t launch, enum simt_access access, simt_cell *old) {
    uint32_t mine = launch | (uint32_t)w->block_number;
    if (touch->block != mine)
        touch->in_block = {0, 0};
    touch->block = mine;
    return touch_cell(w, &touch->in_block, access, false, old);
}

static void watch_races(simt_worker *w, simt_buffer *buffer, uintptr_t address, size_t bytes,
    enum simt_access access, const void *code) {
    char place[160], other[64];
    uint32_t launch = (uint32_t)(w->launch->number % 4095 + 1) * LAUNCH;
    const char *name = access_name(access);
    if (w->launch->blocks > MOST_BLOCKS)
        return;
    simt_touched_create(buffer);
    struct simt_touch *touch = buffer->touched + (address - buffer->begin);
    simt_cell old = {0, 0};
    for (size_t i = 0; i < bytes; i++) {
        if (!touch_by_block(w, &touch[i], launch, access)) {
            simt_describe(address, place, sizeof place);
            simt_fail_at(NULL, code,
                "race between blocks: %s of %zu bytes that another block of the launch has touched: %s", name,
                bytes, place);
            return;
        }
        enum fault fault = touch_in_block(w, &touch[i], launch, access, &old);
        if (fault == NO_FAULT)
            continue;
        name_other(w, fault == AFTER_WRITE ? old.write : old.read, other, sizeof other);
        simt_describe(address, place, sizeof place);
        simt_fail_at(NULL, code,
            "race in device memory: %s of %zu bytes after a %s by %s without a barrier between: %s", name,
            bytes, fault == AFTER_WRITE ? "write" : "read", other, place);
        return;
    }
}

static bool all_written(const uint8_t *written, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (!written[i])
            return false;
    return true;
}

static void watch_global(simt_worker *w, simt_buffer *buffer, uintptr_t address, size_t bytes,
    enum simt_access access, const void *code) {
    char place[160];
    size_t offset = address - buffer->begin;
    if (simt_settings.uninitialised && buffer->written != NULL) {
        if (access == SIMT_WRITE) {
            memset(buffer->written + offset, 1, bytes);
        } else if (!all_written(buffer->written + offset, bytes)) {
            simt_describe(address, place, sizeof place);
            simt_fail_at(NULL, code, "%s of %zu bytes that nothing has written: %s", access_name(access),
                bytes, place);
        }
    }
    if (simt_settings.global_races)
        watch_races(w, buffer, address, bytes, access, code);
}

/* ---- all addresses ---- */

struct program_search {
    uintptr_t address;
    bool is_found;
};

static int search_program(struct dl_phdr_info *info, size_t size, void *data) {
    struct program_search *search = (struct program_search *)data;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && search->address - (info->dlpi_addr + part->p_vaddr) < part->p_memsz)
            search->is_found = true;
    }
    return search->is_found;
}

/* Constants and tables of the program or its libraries; the program's own are found at once. */
static bool is_of_program(uintptr_t address) {
    extern char __executable_start, _end;
    if (address - (uintptr_t)&__executable_start < (uintptr_t)&_end - (uintptr_t)&__executable_start)
        return true;
    struct program_search search = {address, false};
    dl_iterate_phdr(search_program, &search);
    return search.is_found;
}

static void check_other(simt_worker *w, simt_fiber *fiber, uintptr_t address, size_t bytes,
    enum simt_access access, const void *code) {
    char place[160];
    if (access == SIMT_READ && address - w->arguments < w->arguments_bytes)
        return;
    if (is_of_program(address))
        return;
    simt_describe(address, place, sizeof place);
    simt_fail_at(fiber, code, "%s of %zu bytes at an address that is not the kernel's: %s",
        access_name(access), bytes, place);
}

void simt_check_for(simt_worker *w, simt_fiber *fiber, uintptr_t address, size_t bytes,
    enum simt_access access, const void *code) {
    if (bytes == 0 || address - w->stacks < w->stacks_bytes)
        return;
    if (address - (w->shared - SIMT_SHARED_GUARD) < SIMT_SHARED_BYTES + 2 * SIMT_SHARED_GUARD - 128) {
        uint32_t thread = w->thread, warp = w->warp; /* the fiber's access, though another one runs */
        w->thread = fiber->thread;
        w->warp = fiber->warp->number;
        check_shared(w, fiber, address - w->shared, bytes, access, code);
        w->thread = thread;
        w->warp = warp;
        return;
    }
    simt_buffer *buffer = simt_buffer_find(address, false);
    if (buffer == NULL || address - buffer->begin + bytes > buffer->bytes ||
        !(buffer->devices & w->device_bit)) {
        /* of an access across the end, name the first byte behind it */
        if (buffer != NULL && address - buffer->begin + bytes > buffer->bytes)
            address = buffer->begin + buffer->bytes;
        check_other(w, fiber, address, bytes, access, code);
        return;
    }
    if (w->watches_global)
        watch_global(w, buffer, address, bytes, access, code);
}

void simt_check(simt_worker *w, uintptr_t address, size_t bytes, enum simt_access access, const void *code) {
    simt_check_for(w, w->fiber, address, bytes, access, code);
}

static void __attribute__((noinline, cold))
report_misaligned(uintptr_t address, size_t bytes, enum simt_access access, const void *code) {
    simt_fail_at(NULL, code, "misaligned %s of %zu bytes at %p, %zu bytes past a multiple of %zu",
        access_name(access), bytes, (void *)address, (size_t)(address % bytes), bytes);
}

/* Watched code on the host: device memory is not its own. */
static void __attribute__((noinline, cold)) check_host(uintptr_t address, const void *code) {
    char place[160];
    simt_buffer *buffer = simt_buffer_find(address, false);
    if (buffer != NULL && buffer->kind == SIMT_PINNED_MEMORY)
        return;
    simt_describe(address, place, sizeof place);
    simt_fail_at(NULL, code, "the host touches %s", place);
}

/* ---- the hooks ---- */

/* Whether the cell's tags allow the access, which they note then; never of a split word that is read. */
static bool __attribute__((noinline)) touch_carefully(simt_worker *w, simt_cell *cell, bool is_write) {
    bool is_split_word = (cell->write & SIMT_WHO) == SIMT_WHO_SPLIT;
    if (!is_write && (cell->write < w->start || is_split_word))
        return false;
    if (cell->write >= w->start && !is_ordered(w, cell->write))
        return false;
    bool is_first = cell->read < w->start || is_ordered(w, cell->read);
    if (!is_write)
        cell->read = is_first ? tag_of(w) : joined_tag(w, cell->read);
    else if (is_first)
        *cell = {tag_of(w), 0};
    return is_first || !is_write;
}

/* The same, for what lies before the last barrier or is the thread's own. */
static inline bool touch_quickly(simt_worker *w, simt_cell *cell, bool is_write) {
    uint32_t write = cell->write, read = cell->read, me = w->thread, limit = w->block_limit;
    bool is_clear = (write < limit || (write & SIMT_WHO) == me) && (read < limit || (read & SIMT_WHO) == me);
    if (!is_write && (write < w->start || (write & SIMT_WHO) == SIMT_WHO_SPLIT))
        is_clear = false;
    if (!LIKELY(is_clear))
        return touch_carefully(w, cell, is_write);
    if (is_write)
        *cell = {w->clock | me, 0};
    else
        cell->read = w->clock | me;
    return true;
}

/* An access that lies inside the shared memory. */
template <size_t BYTES> static inline bool touch_shared(simt_worker *w, size_t offset, bool is_write) {
    size_t word = offset / 4;
    if (BYTES >= 4) {
        for (size_t i = 0; i < BYTES / 4; i++)
            if (!touch_quickly(w, &w->words[word + i], is_write))
                return false;
        return true;
    }
    if (!is_split(w, word))
        return false;
    for (size_t i = 0; i < BYTES; i++)
        if (!touch_quickly(w, &w->bytes[offset + i], is_write))
            return false;
    w->words[word].write = w->clock | SIMT_WHO_SPLIT;
    return true;
}

/* BYTES is 1, 2, 4, 8 or 16, and the address should be a multiple of it (of 8 for 16: a struct of two 8-byte members has no more). */
template <size_t BYTES, bool IS_WRITE>
static inline __attribute__((always_inline)) void watch(void *pointer, const void *code) {
    simt_worker *w = simt_current;
    uintptr_t address = (uintptr_t)pointer;
    if (w == NULL) {
        if (__builtin_expect((address - simt_arena) >> SIMT_PAGE_BITS < simt_arena_pages, 0))
            check_host(address, code);
        return;
    }
    const enum simt_access access = IS_WRITE ? SIMT_WRITE : SIMT_READ;
    if (__builtin_expect(address % (BYTES < 16 ? BYTES : 8) != 0, 0)) {
        report_misaligned(address, BYTES, access, code);
        return;
    }
    size_t offset = address - w->shared;
    if (offset < w->shared_bytes) {
        if (LIKELY(offset + BYTES <= w->shared_bytes && touch_shared<BYTES>(w, offset, IS_WRITE)))
            return;
    } else if (address - w->stacks < w->stacks_bytes) {
        return;
    } else {
        size_t page = (address - simt_arena) >> SIMT_PAGE_BITS;
        if (LIKELY(page < simt_arena_pages)) {
            const simt_buffer *buffer = &simt_buffers[simt_page_buffer[page]];
            size_t place = address - buffer->begin;
            if (LIKELY(place < buffer->bytes && place + BYTES <= buffer->bytes &&
                       (buffer->devices & w->device_bit) != 0 && !w->watches_global))
                return;
        } else if (!IS_WRITE && address - w->arguments < w->arguments_bytes) {
            return;
        }
    }
    simt_check(w, address, BYTES, access, code);
}

static void watch_range(void *pointer, size_t bytes, enum simt_access access, const void *code) {
    simt_worker *w = simt_current;
    if (w != NULL)
        simt_check(w, (uintptr_t)pointer, bytes, access, code);
    else if (((uintptr_t)pointer - simt_arena) >> SIMT_PAGE_BITS < simt_arena_pages)
        check_host((uintptr_t)pointer, code);
}

extern "C" {

void __tsan_init(void) {
}
void __tsan_func_entry(void *) {
}
void __tsan_func_exit(void) {
}
void __tsan_ignore_thread_begin(void) {
}
void __tsan_ignore_thread_end(void) {
}
void __tsan_vptr_update(void **, void *) {
}
void __tsan_vptr_read(void **) {
}
void __tsan_read_range(void *pointer, size_t bytes) {
    watch_range(pointer, bytes, SIMT_READ, CALLER);
}
void __tsan_write_range(void *pointer, size_t bytes) {
    watch_range(pointer, bytes, SIMT_WRITE, CALLER);
}

#define HOOKS(bytes)                                                                                         \
    void __tsan_read##bytes(void *pointer) {                                                                 \
        watch<bytes, false>(pointer, CALLER);                                                                \
    }                                                                                                        \
    void __tsan_write##bytes(void *pointer) {                                                                \
        watch<bytes, true>(pointer, CALLER);                                                                 \
    }                                                                                                        \
    void __tsan_volatile_read##bytes(void *pointer) {                                                        \
        watch<bytes, false>(pointer, CALLER);                                                                \
    }                                                                                                        \
    void __tsan_volatile_write##bytes(void *pointer) {                                                       \
        watch<bytes, true>(pointer, CALLER);                                                                 \
    }                                                                                                        \
    void __tsan_read_write##bytes(void *pointer) {                                                           \
        watch<bytes, false>(pointer, CALLER);                                                                \
        watch<bytes, true>(pointer, CALLER);                                                                 \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

#define UNALIGNED_HOOKS(bytes)                                                                               \
    void __tsan_unaligned_read##bytes(void *pointer) {                                                       \
        watch_range(pointer, bytes, SIMT_READ, CALLER);                                                      \
    }                                                                                                        \
    void __tsan_unaligned_write##bytes(void *pointer) {                                                      \
        watch_range(pointer, bytes, SIMT_WRITE, CALLER);                                                     \
    }                                                                                                        \
    void __tsan_unaligned_read_write##bytes(void *pointer) {                                                 \
        watch_range(pointer, bytes, SIMT_READ, CALLER);                                                      \
        watch_range(pointer, bytes, SIMT_WRITE, CALLER);                                                     \
    }
UNALIGNED_HOOKS(2)
UNALIGNED_HOOKS(4)
UNALIGNED_HOOKS(8)
UNALIGNED_HOOKS(16)
}

/* ---- atomics: those of the device language, and the compiler's ---- */

template <typename T> static inline T chosen(enum simt_atomic_kind kind, T old, T value) {
    typedef typename std::make_signed<T>::type Signed;
    switch (kind) {
    case SIMT_ATOMIC_MIN:
        return value < old ? value : old;
    case SIMT_ATOMIC_MAX:
        return value > old ? value : old;
    case SIMT_ATOMIC_MIN_SIGNED:
        return (Signed)value < (Signed)old ? value : old;
    default:
        return (Signed)value > (Signed)old ? value : old;
    }
}

template <typename T> static T do_atomic(enum simt_atomic_kind kind, T *address, T value, T compare) {
    switch (kind) {
    case SIMT_ATOMIC_ADD:
        return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);
    case SIMT_ATOMIC_AND:
        return __atomic_fetch_and(address, value, __ATOMIC_SEQ_CST);
    case SIMT_ATOMIC_OR:
        return __atomic_fetch_or(address, value, __ATOMIC_SEQ_CST);
    case SIMT_ATOMIC_XOR:
        return __atomic_fetch_xor(address, value, __ATOMIC_SEQ_CST);
    case SIMT_ATOMIC_EXCHANGE:
        return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);
    case SIMT_ATOMIC_COMPARE:
        __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return compare;
    default:
        break;
    }
    T old = __atomic_load_n(address, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(
        address, &old, chosen(kind, old, value), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    return old;
}

static void watch_atomic(const volatile void *pointer, size_t bytes, const void *code) {
    simt_worker *w = simt_current;
    uintptr_t address = (uintptr_t)pointer;
    if (w == NULL) {
        watch_range((void *)address, bytes, SIMT_WRITE, code);
        return;
    }
    if (address % bytes != 0)
        report_misaligned(address, bytes, SIMT_ATOMIC_ACCESS, code);
    simt_check(w, address, bytes, SIMT_ATOMIC_ACCESS, code);
}

extern "C" uint64_t simt_atomic(
    enum simt_atomic_kind kind, void *address, int bytes, uint64_t value, uint64_t compare) {
    watch_atomic(address, (size_t)bytes, CALLER);
    if (bytes == 4)
        return do_atomic(kind, (uint32_t *)address, (uint32_t)value, (uint32_t)compare);
    return do_atomic(kind, (uint64_t *)address, value, compare);
}

#define ATOMIC_OPERATION(bits, name, builtin)                                                                \
    uint##bits##_t __tsan_atomic##bits##_##name(                                                             \
        volatile uint##bits##_t *address, uint##bits##_t value, int order) {                                 \
        (void)order;                                                                                         \
        watch_atomic(address, bits / 8, CALLER);                                                             \
        return builtin(address, value, __ATOMIC_SEQ_CST);                                                    \
    }

#define ATOMIC_COMPARE(bits, name)                                                                           \
    int __tsan_atomic##bits##_compare_exchange_##name(volatile uint##bits##_t *address,                      \
        uint##bits##_t *expected, uint##bits##_t value, int order, int failure) {                            \
        (void)order;                                                                                         \
        (void)failure;                                                                                       \
        watch_atomic(address, bits / 8, CALLER);                                                             \
        return __atomic_compare_exchange_n(                                                                  \
            address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                            \
    }

#define ATOMIC_HOOKS(bits)                                                                                   \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *address, int order) {           \
        (void)order;                                                                                         \
        watch_atomic(address, bits / 8, CALLER);                                                             \
        return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                   \
    }                                                                                                        \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *address, uint##bits##_t value, int order) {    \
        (void)order;                                                                                         \
        watch_atomic(address, bits / 8, CALLER);                                                             \
        __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                        \
    uint##bits##_t __tsan_atomic##bits##_compare_exchange_val(volatile uint##bits##_t *address,              \
        uint##bits##_t expected, uint##bits##_t value, int order, int failure) {                             \
        (void)order;                                                                                         \
        (void)failure;                                                                                       \
        watch_atomic(address, bits / 8, CALLER);                                                             \
        __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
        return expected;                                                                                     \
    }                                                                                                        \
    ATOMIC_COMPARE(bits, strong)                                                                             \
    ATOMIC_COMPARE(bits, weak)                                                                               \
    ATOMIC_OPERATION(bits, exchange, __atomic_exchange_n)                                                    \
    ATOMIC_OPERATION(bits, fetch_add, __atomic_fetch_add)                                                    \
    ATOMIC_OPERATION(bits, fetch_sub, __atomic_fetch_sub)                                                    \
    ATOMIC_OPERATION(bits, fetch_and, __atomic_fetch_and)                                                    \
    ATOMIC_OPERATION(bits, fetch_or, __atomic_fetch_or)                                                      \
    ATOMIC_OPERATION(bits, fetch_xor, __atomic_fetch_xor)                                                    \
    ATOMIC_OPERATION(bits, fetch_nand, __atomic_fetch_nand)

extern "C" {
ATOMIC_HOOKS(8)
ATOMIC_HOOKS(16)
ATOMIC_HOOKS(32)
ATOMIC_HOOKS(64)

void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {
}
}

/* ---- memory functions of the C library ---- */

extern "C" {
void *simt_checked_copy(void *to, const void *from, size_t bytes) {
    watch_range((void *)from, bytes, SIMT_READ, CALLER);
    watch_range(to, bytes, SIMT_WRITE, CALLER);
    return memcpy(to, from, bytes);
}

void *simt_checked_move(void *to, const void *from, size_t bytes) {
    watch_range((void *)from, bytes, SIMT_READ, CALLER);
    watch_range(to, bytes, SIMT_WRITE, CALLER);
    return memmove(to, from, bytes);
}

void *simt_checked_fill(void *to, int value, size_t bytes) {
    watch_range(to, bytes, SIMT_WRITE, CALLER);
    return memset(to, value, bytes);
}

int simt_checked_compare(const void *a, const void *b, size_t bytes) {
    watch_range((void *)a, bytes, SIMT_READ, CALLER);
    watch_range((void *)b, bytes, SIMT_READ, CALLER);
    return memcmp(a, b, bytes);
}

/* clang's names of them */
void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    return simt_checked_copy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    return simt_checked_move(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes) {
    return simt_checked_fill(to, value, bytes);
}
}

/* ---- checks of the undefined-behaviour sanitizer: each gets a record that begins with the place in the sources ---- */

struct source_place {
    const char *file;
    uint32_t line, column;
};

struct type_name {
    uint16_t kind, info;
    char name[];
};

struct mismatch_record {
    struct source_place place;
    const struct type_name *type;
    unsigned char log2_alignment, kind;
};

struct index_record {
    struct source_place place;
    const struct type_name *array, *index;
};

static void undefined(const struct source_place *place, const char *what) {
    simt_fail(NULL, "%s (%s:%u:%u)", what, place->file, place->line, place->column);
    if (simt_handler == NULL)
        abort();
}

extern "C" {
void __ubsan_handle_type_mismatch_v1(struct mismatch_record *record, uintptr_t pointer) {
    char what[256];
    size_t alignment = (size_t)1 << record->log2_alignment;
    if (pointer == 0)
        snprintf(what, sizeof what, "access through a null pointer to %s", record->type->name);
    else
        snprintf(what, sizeof what, "misaligned access to %s at %p, %zu bytes past a multiple of %zu",
            record->type->name, (void *)pointer, (size_t)(pointer % alignment), alignment);
    undefined(&record->place, what);
}

void __ubsan_handle_out_of_bounds(struct index_record *record, uintptr_t index) {
    char what[256];
    snprintf(what, sizeof what, "index %zd of an array %s", (ssize_t)index, record->array->name);
    undefined(&record->place, what);
}

#define UNDEFINED(name, what)                                                                                \
    void __ubsan_handle_##name(struct source_place *place, uintptr_t, uintptr_t) {                           \
        undefined(place, what);                                                                              \
    }
UNDEFINED(shift_out_of_bounds, "shift by a negative number or too far")
UNDEFINED(add_overflow, "integer overflow in an addition")
UNDEFINED(sub_overflow, "integer overflow in a subtraction")
UNDEFINED(mul_overflow, "integer overflow in a multiplication")
UNDEFINED(negate_overflow, "integer overflow in a negation")
UNDEFINED(divrem_overflow, "integer division by zero or overflow")
UNDEFINED(pointer_overflow, "overflow of a pointer")
}

/* The registry of buffers: device and pinned memory in one reserved range of addresses, so that a hook finds the buffer of an address in one
 * step. Around each buffer lie pages that belong to none; pages of freed buffers are used again only when the range has been
 * used up, so that late accesses are found.
 */
#include "simt_internal.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

enum : size_t {
    ARENA_BYTES = (size_t)256 << 30,
    PAGE = (size_t)1 << SIMT_PAGE_BITS,
    GUARD_PAGES = 16,
    MOST_BUFFERS =
        16 << 20,    /* ever: addresses are reserved for their records, too, lest they move under a hook */
    ALIGNMENT = 256, /* what cudaMalloc promises; buffers are not aligned to more, by intent */
};

uintptr_t simt_arena;
size_t simt_arena_pages;
uint32_t *simt_page_buffer;
struct simt_buffer *simt_buffers;

static uint32_t buffer_count;
static uint64_t next_page;
static size_t used_by_device[32];

static void *reserve(size_t bytes) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "simt: cannot reserve %zu MiB of addresses: is there a limit on virtual memory?\n",
            bytes >> 20);
        abort();
    }
    return memory;
}

static void create_arena(void) {
    simt_page_buffer = (uint32_t *)reserve(ARENA_BYTES / PAGE * sizeof *simt_page_buffer);
    simt_arena = (uintptr_t)reserve(ARENA_BYTES);
    simt_arena_pages = ARENA_BYTES / PAGE;
    next_page = GUARD_PAGES;
    simt_buffers = (struct simt_buffer *)reserve(MOST_BUFFERS * sizeof *simt_buffers);
    buffer_count = 1; /* number 0 is nobody's */
}

static uint32_t new_buffer(void) {
    if (buffer_count == MOST_BUFFERS) {
        fprintf(stderr, "simt: more than %zu allocations\n", (size_t)MOST_BUFFERS);
        abort();
    }
    return buffer_count++;
}

static bool is_page_free(uint64_t page) {
    return simt_page_buffer[page] == 0 || simt_buffers[simt_page_buffer[page]].bytes == 0;
}

/* The first of `pages` free pages from `start` on, or 0. */
static uint64_t find_pages(uint64_t start, uint64_t pages) {
    uint64_t run = 0;
    for (uint64_t page = start; page < simt_arena_pages; page++) {
        run = is_page_free(page) ? run + 1 : 0;
        if (run == pages)
            return page + 1 - pages;
    }
    return 0;
}

void *simt_buffer_create(size_t bytes, enum simt_memory_kind kind, int device) {
    if (simt_arena == 0)
        create_arena();
    size_t capacity = (size_t)simt_settings.memory << 20;
    if (bytes > ARENA_BYTES / 2 || (kind == SIMT_DEVICE_MEMORY && used_by_device[device] + bytes > capacity))
        return NULL;
    uint32_t number = new_buffer();
    size_t shift = number % (PAGE / ALIGNMENT - 1) * ALIGNMENT + ALIGNMENT; /* never a whole page */
    uint64_t pages = (shift + bytes + PAGE - 1) / PAGE;
    uint64_t first = find_pages(next_page, pages + GUARD_PAGES);
    if (first == 0) { /* the range is used up: pages of freed buffers, with guards on both sides */
        first = find_pages(GUARD_PAGES, pages + 2 * GUARD_PAGES);
        if (first == 0)
            return NULL;
        first += GUARD_PAGES;
    }
    next_page = first + pages + GUARD_PAGES;
    for (uint64_t page = first; page < next_page; page++)
        simt_page_buffer[page] = page < first + pages ? number : 0;
    struct simt_buffer *buffer = &simt_buffers[number];
    buffer->begin = simt_arena + first * PAGE + shift;
    buffer->bytes = bytes;
    buffer->kind = kind;
    buffer->device = device;
    buffer->devices = kind == SIMT_DEVICE_MEMORY ? 1u << device : 0xffffffffu;
    buffer->first_page = first;
    buffer->pages = pages;
    if (kind == SIMT_DEVICE_MEMORY) {
        used_by_device[device] += bytes;
        memset((void *)buffer->begin, 0xff, bytes); /* NaN, whatever it is read as */
        if (simt_settings.uninitialised)
            buffer->written = (uint8_t *)reserve(bytes);
    }
    return (void *)buffer->begin;
}

bool simt_buffer_free(void *memory, enum simt_memory_kind kind) {
    struct simt_buffer *buffer = simt_buffer_find((uintptr_t)memory, false);
    if (buffer == NULL || buffer->begin != (uintptr_t)memory || buffer->kind != kind)
        return false;
    if (kind == SIMT_DEVICE_MEMORY)
        used_by_device[buffer->device] -= buffer->bytes;
    if (buffer->written != NULL)
        munmap(buffer->written, buffer->bytes);
    if (buffer->touched != NULL)
        munmap(buffer->touched, buffer->bytes * sizeof *buffer->touched);
    buffer->written = NULL;
    buffer->touched = NULL;
    madvise((void *)(simt_arena + buffer->first_page * PAGE), buffer->pages * PAGE, MADV_DONTNEED);
    buffer->freed_bytes = buffer->bytes;
    buffer->bytes = 0;
    return true;
}

simt_buffer *simt_buffer_find(uintptr_t address, bool freed_too) {
    uintptr_t page = (address - simt_arena) >> SIMT_PAGE_BITS;
    if (simt_arena == 0 || address < simt_arena || page >= simt_arena_pages || simt_page_buffer[page] == 0)
        return NULL;
    struct simt_buffer *buffer = &simt_buffers[simt_page_buffer[page]];
    size_t bytes = freed_too ? buffer->bytes + buffer->freed_bytes : buffer->bytes;
    return address - buffer->begin < bytes ? buffer : NULL;
}

size_t simt_memory_used(int device) {
    return used_by_device[device];
}

static const char *kind_name(const struct simt_buffer *buffer) {
    return buffer->kind == SIMT_DEVICE_MEMORY ? "device memory" : "pinned memory";
}

/* The buffer nearest below or above an address between buffers, or NULL. */
static struct simt_buffer *neighbour(uintptr_t address, int step) {
    uint64_t page = (address - simt_arena) >> SIMT_PAGE_BITS;
    for (size_t i = 0; i <= GUARD_PAGES && page < simt_arena_pages; i++, page += (uint64_t)step) {
        uint32_t number = simt_page_buffer[page];
        if (number == 0)
            continue;
        struct simt_buffer *buffer = &simt_buffers[number];
        if (step < 0 ? buffer->begin <= address : buffer->begin > address)
            return buffer;
    }
    return NULL;
}

void simt_describe(uintptr_t address, char *text, size_t room) {
    if (simt_arena == 0 || address < simt_arena || address - simt_arena >= ARENA_BYTES) {
        snprintf(text, room, "host memory (%p), which no kernel may touch", (void *)address);
        return;
    }
    struct simt_buffer *buffer = simt_buffer_find(address, true);
    if (buffer != NULL && buffer->bytes == 0) {
        snprintf(text, room, "byte %zu of %zu bytes of %s that were freed", (size_t)(address - buffer->begin),
            buffer->freed_bytes, kind_name(buffer));
    } else if (buffer != NULL) {
        snprintf(text, room, "byte %zu of %zu bytes of %s of device %d", (size_t)(address - buffer->begin),
            buffer->bytes, kind_name(buffer), buffer->device);
    } else if ((buffer = neighbour(address, -1)) != NULL) {
        size_t bytes = buffer->bytes + buffer->freed_bytes;
        snprintf(text, room, "%zu bytes past the end of %zu bytes of %s",
            (size_t)(address - buffer->begin - bytes), bytes, kind_name(buffer));
    } else if ((buffer = neighbour(address, 1)) != NULL) {
        snprintf(text, room, "%zu bytes before the begin of %zu bytes of %s",
            (size_t)(buffer->begin - address), buffer->bytes + buffer->freed_bytes, kind_name(buffer));
    } else {
        snprintf(text, room, "device addresses far from any buffer");
    }
}

void simt_touched_create(struct simt_buffer *buffer) {
    static int lock;
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        ;
    if (buffer->touched == NULL)
        buffer->touched = (struct simt_touch *)reserve(buffer->bytes * sizeof *buffer->touched);
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

void simt_forget_touches(void) {
    for (uint32_t i = 1; i < buffer_count; i++)
        if (simt_buffers[i].touched != NULL)
            madvise(simt_buffers[i].touched, simt_buffers[i].bytes * sizeof *simt_buffers[i].touched,
                MADV_DONTNEED);
}

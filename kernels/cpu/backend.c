/* The CPU backend: memory, streams and the choice of the instruction set. */
#include "kernels/cpu/backend.h"

#include "base/error.h"

#include <omp.h>      /* omp_get_max_threads */
#include <stdbool.h>  /* bool */
#include <stdio.h>    /* fprintf */
#include <stdlib.h>   /* aligned_alloc, abort */
#include <string.h>   /* memcpy, memset, strcmp */
#include <sys/mman.h> /* mmap */

enum {
    ALIGNMENT = 64,
    PAGE = 4096,              /* in front of mapped memory: the header's */
    LEAST_MAPPED = 256 << 10, /* larger allocations are mapped, so that untouched pages cost nothing */
    HUGE_PAGE = 2 << 20,      /* still larger ones begin at such a border and ask for huge pages */
};

/* Stands in the ALIGNMENT bytes before each allocation. */
struct allocation_header {
    void *base;
    size_t mapped; /* bytes of the mapping, 0: from aligned_alloc */
};

/* ---- memory ---- */

static enum result allocate_mapped(size_t bytes, uint8_t **memory, struct allocation_header *header) {
    size_t border = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE;
    header->mapped = bytes + PAGE + border;
    header->base = mmap(
        NULL, header->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (header->base == MAP_FAILED)
        return fail_errno(ERROR_MEMORY,
            "cannot reserve %zu bytes of memory; lower --kv-memory or use more "
            "ranks",
            bytes);
    uintptr_t first = (uintptr_t)header->base + PAGE;
    *memory = (uint8_t *)header->base + PAGE + (border - first % border) % border;
    if (border == HUGE_PAGE)
        (void)madvise(*memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* a hint */
    return OK;
}

static enum result cpu_allocate(const struct kernels *self, size_t bytes, void **memory) {
    (void)self;
    *memory = NULL;
    if (bytes > SIZE_MAX - 2 * HUGE_PAGE)
        return fail(ERROR_MEMORY, "cannot allocate %zu bytes", bytes);
    struct allocation_header header = {NULL, 0};
    uint8_t *place = NULL;
    if (bytes >= LEAST_MAPPED) {
        TRY(allocate_mapped(bytes, &place, &header));
    } else {
        size_t rounded = (bytes + 2 * ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        header.base = aligned_alloc(ALIGNMENT, rounded);
        if (header.base == NULL)
            return fail_errno(ERROR_MEMORY, "cannot allocate %zu bytes", bytes);
        memset(header.base, 0, rounded);
        place = (uint8_t *)header.base + ALIGNMENT;
    }
    *(struct allocation_header *)(place - ALIGNMENT) = header;
    *memory = place;
    return OK;
}

static void cpu_release(const struct kernels *self, void *memory) {
    (void)self;
    if (memory == NULL)
        return;
    const struct allocation_header header =
        *(const struct allocation_header *)((uint8_t *)memory - ALIGNMENT);
    if (header.mapped > 0)
        munmap(header.base, header.mapped);
    else
        free(header.base);
}

static void cpu_copy(struct stream *stream, void *to, const void *from, size_t bytes) {
    (void)stream;
    if (bytes > 0)
        memcpy(to, from, bytes);
}

static void cpu_copy_rows(
    struct stream *stream, const struct row_copy *list, int32_t count, int32_t columns) {
    (void)stream;
    for (int32_t i = 0; i < count; i++)
        if (list[i].to != NULL)
            memcpy(list[i].to, list[i].from, sizeof(float) * (size_t)columns);
}

static enum result cpu_synchronize(struct stream *stream) {
    (void)stream; /* work was done inline */
    return OK;
}

/* ---- weights ---- */

static int64_t whole_lines(int64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t cpu_placed_bytes(const struct kernels *self, const struct matrix *host) {
    (void)self;
    return whole_lines(matrix_value_bytes(host)) + whole_lines(matrix_scale_bytes(host));
}

/* The kernels read the published layout. A copy in memory of its own has large pages, which is worth a fifth of the speed of
 * reading, and lies near the cores that read it. */
static enum result cpu_place(
    const struct kernels *self, const struct matrix *host, void *memory, struct matrix *placed) {
    (void)self;
    *placed = *host;
    if (host->rows > 1 && host->columns > MOST_COLUMNS &&
        (host->format != WEIGHT_F32 || host->columns % 128 != 0))
        return fail(ERROR_INPUT, "a matrix of %d columns: the CPU kernels take up to %d", host->columns,
            MOST_COLUMNS);
    if (memory == NULL)
        return OK;
    uint8_t *scales = (uint8_t *)memory + whole_lines(matrix_value_bytes(host));
    memcpy(memory, host->values, (size_t)matrix_value_bytes(host));
    placed->values = memory;
    if (host->scales != NULL) {
        memcpy(scales, host->scales, (size_t)matrix_scale_bytes(host));
        placed->scales = scales;
    }
    return OK;
}

/* ---- streams ---- */

static enum result cpu_stream_create(const struct kernels *self, struct stream **stream) {
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL)
        return fail_errno(ERROR_MEMORY, "cannot allocate a stream");
    (*stream)->threads = self->threads;
    return OK;
}

static void cpu_stream_free(const struct kernels *self, struct stream *stream) {
    if (stream == NULL)
        return;
    for (int32_t i = 0; i < SCRATCH_AREAS; i++)
        self->release(self, stream->scratch[i].memory);
    free(stream);
}

void *stream_scratch(struct stream *stream, enum scratch_area area, size_t bytes) {
    struct scratch *scratch = &stream->scratch[area];
    if (scratch->bytes >= bytes && scratch->memory != NULL)
        return scratch->memory;
    cpu_release(NULL, scratch->memory);
    size_t grown =
        bytes + bytes / 4 + ALIGNMENT; /* some room, lest slowly growing shapes allocate each time */
    if (cpu_allocate(NULL, grown, &scratch->memory) != OK) {
        fprintf(stderr, "nocturne: no memory for the work of an operation: %s\n", failure_message());
        abort();
    }
    scratch->bytes = grown;
    return scratch->memory;
}

/* ---- choice of the instruction set ---- */

struct instruction_set {
    const char *name;
    bool (*is_supported)(void);
    void (*fill)(struct kernels *kernels); /* sets the operations */
};

#define DECLARE_SET(name) void PASTE_SET(fill_operations, name)(struct kernels * kernels)

#ifdef HAVE_CPU_avx512bf16
DECLARE_SET(avx512bf16);
static bool supports_avx512bf16(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif
#ifdef HAVE_CPU_avx512
DECLARE_SET(avx512);
static bool supports_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd");
}
#endif
#ifdef HAVE_CPU_avx2
DECLARE_SET(avx2);
static bool supports_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#endif
DECLARE_SET(generic);
static bool supports_generic(void) {
    return true;
}

/* Best first. */
static const struct instruction_set instruction_sets[] = {
#ifdef HAVE_CPU_avx512bf16
    {"avx512bf16", supports_avx512bf16, fill_operations_avx512bf16},
#endif
#ifdef HAVE_CPU_avx512
    {"avx512", supports_avx512, fill_operations_avx512},
#endif
#ifdef HAVE_CPU_avx2
    {"avx2", supports_avx2, fill_operations_avx2},
#endif
    {"generic", supports_generic, fill_operations_generic},
};

enum { INSTRUCTION_SETS = sizeof instruction_sets / sizeof instruction_sets[0], MOST_THREADS = 4096 };

static enum result find_instruction_set(const char *name, const struct instruction_set **found) {
    bool is_known = false;
    for (int32_t i = 0; i < INSTRUCTION_SETS; i++) {
        const struct instruction_set *set = &instruction_sets[i];
        bool is_named = name == NULL || strcmp(set->name, name) == 0;
        is_known = is_known || is_named;
        if (is_named && set->is_supported()) {
            *found = set;
            return OK;
        }
    }
    return fail(ERROR_USAGE,
        "instruction set \"%s\": %s; give avx512bf16, avx512, avx2 or generic, or none for the best one",
        name, is_known ? "this processor does not have it" : "this build does not have it");
}

static void cpu_destroy(const struct kernels *self) {
    free((void *)self);
}

enum result kernels_cpu_create(int32_t threads, const char *instruction_set, const struct kernels **kernels) {
    *kernels = NULL;
    if (threads < 0 || threads > MOST_THREADS)
        return fail(ERROR_USAGE, "thread count %d: expected 0 to %d", threads, MOST_THREADS);
    const struct instruction_set *set = NULL;
    TRY(find_instruction_set(instruction_set, &set));
    struct kernels *table = calloc(1, sizeof *table);
    if (table == NULL)
        return fail_errno(ERROR_MEMORY, "cannot allocate the CPU backend");
    table->name = "cpu";
    table->instruction_set = set->name;
    table->threads = threads > 0 ? threads : omp_get_max_threads();
    table->shares_host_memory = true;
    table->destroy = cpu_destroy;
    table->stream_create = cpu_stream_create;
    table->stream_free = cpu_stream_free;
    table->allocate = cpu_allocate;
    table->release = cpu_release;
    table->copy_in = cpu_copy;
    table->copy_out = cpu_copy;
    table->copy = cpu_copy;
    table->copy_rows = cpu_copy_rows;
    table->synchronize = cpu_synchronize;
    table->placed_bytes = cpu_placed_bytes;
    table->place = cpu_place;
    set->fill(table);
    *kernels = table;
    return OK;
}

void kernels_free(const struct kernels *kernels) {
    if (kernels != NULL)
        kernels->destroy(kernels);
}

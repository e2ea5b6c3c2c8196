#include "base/stopwatch.h"

#include <inttypes.h> /* PRId64 */
#include <stdbool.h>  /* bool */
#include <stdio.h>    /* FILE */
#include <stdlib.h>   /* malloc */
#include <string.h>   /* strlen */
#include <time.h>     /* clock_gettime */

enum { TRACE_BUFFER_BYTES = 1 << 20 };

static struct {
    enum work_part part;
    int64_t since; /* nanoseconds of the monotonic clock; 0: not used yet */
    int64_t nanoseconds[WORK_PARTS];
} watch;

static struct {
    FILE *file; /* NULL: no trace */
    char *path, *buffer;
    int32_t rank;
    bool any;           /* an event was written, so a comma goes before the next */
    int64_t begin;      /* of the trace: zero of its times */
    int64_t step_begin; /* end of the last step */
} trace;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

const char *work_part_name(enum work_part part) {
    static const char *const names[WORK_PARTS] = {"other", "scheduling", "embed", "attention products",
        "index choice", "attention", "mixes", "router", "shared expert", "experts", "exchange", "waiting",
        "engram", "logits", "sampling", "files"};
    return names[part];
}

/* ---- the trace ---- */

static void event_begin(const char *name, const char *category, int64_t from, int64_t to) {
    fprintf(trace.file,
        "%s\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f",
        trace.any ? "," : "", name, category, trace.rank, (double)(from - trace.begin) * 1e-3,
        (double)(to - from) * 1e-3);
    trace.any = true;
}

static void write_stretch(enum work_part part, int64_t from, int64_t to) {
    if (!trace.file || to <= from)
        return;
    event_begin(work_part_name(part), "part", from, to);
    fputc('}', trace.file);
}

enum result trace_open(const char *path, int32_t rank) {
    size_t length = strlen(path) + 1;
    trace.path = malloc(length);
    trace.buffer = malloc(TRACE_BUFFER_BYTES);
    if (!trace.path || !trace.buffer) {
        free(trace.path);
        free(trace.buffer);
        return fail(ERROR_MEMORY, "out of memory for the trace");
    }
    memcpy(trace.path, path, length);
    (void)stopwatch_switch(watch.part); /* what went before is not of the trace */
    trace.begin = trace.step_begin = watch.since;
    trace.file = fopen(path, "w");
    if (!trace.file) {
        enum result status = fail_errno(ERROR_IO, "cannot write the trace %s", path);
        free(trace.path);
        free(trace.buffer);
        return status;
    }
    setvbuf(trace.file, trace.buffer, _IOFBF, TRACE_BUFFER_BYTES);
    trace.rank = rank;
    trace.any = false;
    fputs("[", trace.file);
    return OK;
}

void trace_step(int64_t step, int64_t tokens, int64_t sequences) {
    if (!trace.file)
        return;
    (void)stopwatch_switch(watch.part); /* so that the step holds its last stretch */
    event_begin("step", "step", trace.step_begin, watch.since);
    fprintf(trace.file, ",\"args\":{\"step\":%" PRId64 ",\"tokens\":%" PRId64 ",\"sequences\":%" PRId64 "}}",
        step, tokens, sequences);
    trace.step_begin = watch.since;
}

enum result trace_close(void) {
    if (!trace.file)
        return OK;
    (void)stopwatch_switch(WORK_OTHER);
    fputs("\n]\n", trace.file);
    bool failed = ferror(trace.file);
    failed |= fclose(trace.file) != 0;
    trace.file = NULL;
    enum result status =
        failed ? fail_errno(ERROR_IO, "the trace %s could not be written whole", trace.path) : OK;
    free(trace.path);
    free(trace.buffer);
    return status;
}

/* ---- the stopwatch ---- */

enum work_part stopwatch_switch(enum work_part part) {
    enum work_part before = watch.part;
    int64_t time = now();
    if (watch.since) {
        watch.nanoseconds[before] += time - watch.since;
        write_stretch(before, watch.since, time);
    }
    watch.since = time;
    watch.part = part;
    return before;
}

void stopwatch_claim(enum work_part part, double seconds) {
    int64_t time = now(), border = time - (int64_t)(seconds * 1e9);
    if (!watch.since)
        watch.since = time;
    if (border < watch.since)
        border = watch.since;
    watch.nanoseconds[watch.part] += border - watch.since;
    watch.nanoseconds[part] += time - border;
    write_stretch(watch.part, watch.since, border);
    write_stretch(part, border, time);
    watch.since = time;
}

void stopwatch_read(double seconds[WORK_PARTS]) {
    (void)stopwatch_switch(watch.part);
    for (int i = 0; i < WORK_PARTS; i++)
        seconds[i] = (double)watch.nanoseconds[i] * 1e-9;
}

#include "campaign/prometheus.h"

#include "base/buffer.h"

#include <errno.h>  /* errno */
#include <stdio.h>  /* fopen, rename */
#include <string.h> /* strerror */
#include <time.h>   /* time */
#include <unistd.h> /* unlink */

/* A label's value: backslash, quote and line feed are escaped (the text format 0.0.4). */
static void append_label(struct buffer *text, const char *value) {
    for (; *value; value++) {
        if (*value == '\n')
            buffer_append_text(text, "\\n");
        else if (*value == '\\' || *value == '"')
            buffer_printf(text, "\\%c", *value);
        else
            buffer_append(text, value, 1);
    }
}

static void append_metric(struct buffer *text, const struct prometheus_sample *sample, const char *name,
    const char *type, const char *help, double value) {
    buffer_printf(text, "# HELP nocturne_%s %s\n# TYPE nocturne_%s %s\nnocturne_%s{campaign=\"", name, help,
        name, type, name);
    append_label(text, sample->campaign);
    buffer_append_text(text, "\",phase=\"");
    append_label(text, sample->phase);
    buffer_printf(text, "\"} %.15g\n", value);
}

static void describe(struct buffer *text, const struct prometheus_sample *s) {
    const struct engine_counts *c = s->counts;
    append_metric(text, s, "running", "gauge", "1 while the phase works, 0 after its end", s->running);
    append_metric(text, s, "ranks", "gauge", "ranks of the launch", s->ranks);
    append_metric(text, s, "requests", "gauge", "requests of the phase", (double)s->total);
    append_metric(text, s, "requests_done", "gauge", "requests done, earlier launches included",
        (double)(s->done_before + c->finished));
    append_metric(text, s, "requests_failed_total", "counter", "requests of this launch that failed",
        (double)c->failed);
    append_metric(
        text, s, "requests_in_work", "gauge", "requests admitted and not finished", (double)c->waiting);
    append_metric(
        text, s, "sequences", "gauge", "sequences in the last step of each rank", (double)c->sequences);
    append_metric(text, s, "kv_blocks", "gauge", "key/value blocks of all ranks", (double)c->kv_blocks);
    append_metric(text, s, "kv_blocks_reserved", "gauge", "key/value blocks set aside for requests in work",
        (double)c->kv_reserved);
    append_metric(text, s, "prompt_tokens_total", "counter", "prompt tokens run by this launch",
        (double)c->prompt_tokens);
    append_metric(text, s, "generated_tokens_total", "counter", "tokens drawn by this launch",
        (double)c->generated_tokens);
    append_metric(text, s, "shared_tokens_total", "counter",
        "prompt tokens of this launch taken over from other prompts", (double)c->shared_tokens);
    append_metric(text, s, "cached_tokens_total", "counter",
        "prompt tokens of this launch taken from the cache", (double)c->cached_tokens);
    append_metric(text, s, "replayed_tokens_total", "counter",
        "cached tokens of this launch that were run again", (double)c->replayed_tokens);
    append_metric(text, s, "saved_seconds_total", "counter",
        "what the tokens that were not run would have cost", (double)c->saved_milliseconds / 1000);
    append_metric(text, s, "launch_seconds", "gauge", "time since the launch began its work", s->seconds);
    if (s->walltime_left >= 0)
        append_metric(
            text, s, "walltime_left_seconds", "gauge", "time to the end of the allocation", s->walltime_left);
    append_metric(
        text, s, "updated_seconds", "gauge", "when this was written, Unix time", (double)time(NULL));
}

enum result prometheus_write(const char *path, const struct prometheus_sample *sample) {
    struct buffer text = {0}, name = {0};
    describe(&text, sample);
    buffer_printf(&name, "%s.tmp", path); /* the collector reads *.prom only */
    enum result status = OK;
    FILE *file = text.data && name.data ? fopen(name.data, "w") : NULL;
    bool written = file && fwrite(text.data, 1, text.bytes, file) == text.bytes;
    int error = errno;
    if (file && fclose(file) != 0 && written) {
        written = false;
        error = errno;
    }
    if (written && rename(name.data, path) != 0) {
        written = false;
        error = errno;
    }
    if (!written) {
        status = fail(ERROR_IO, "--prometheus %s: cannot write it: %s", path, strerror(error));
        if (file)
            unlink(name.data);
    }
    buffer_free(&text);
    buffer_free(&name);
    return status;
}

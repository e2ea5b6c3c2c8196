#include "campaign/progress.h"

#include "base/clock.h"
#include "base/log.h"
#include "campaign/prometheus.h"

#include <math.h>      /* fmax, llround */
#include <stdio.h>     /* fprintf, snprintf */
#include <sys/ioctl.h> /* TIOCGWINSZ */
#include <time.h>      /* clock_gettime */
#include <unistd.h>    /* isatty */

static const double WRITE_SECONDS = 2, LINE_SECONDS = 60, TERMINAL_SECONDS = 0.5;

double monotonic_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_begin(struct phase_progress *progress, const struct campaign *campaign, const char *phase,
    int64_t total, int64_t done_before, int32_t ranks, bool quiet) {
    *progress = (struct phase_progress){
        .campaign = campaign,
        .phase = phase,
        .total = total,
        .done_before = done_before,
        .ranks = ranks,
        .terminal = isatty(STDERR_FILENO),
        .quiet = quiet,
        .begun = monotonic_seconds(),
    };
    progress->shown = progress->begun;
    progress->written = 0;
}

static void write_file(const struct phase_progress *progress, const struct engine_counts *counts, double now,
    bool is_last, bool finished) {
    const struct progress file = {
        .phase = progress->phase,
        .total = progress->total,
        .done = progress->done_before + counts->finished,
        .failed = counts->failed,
        .prompt_tokens = counts->prompt_tokens,
        .generated_tokens = counts->generated_tokens,
        .counts = counts,
        .seconds = now - progress->begun,
        .ranks = progress->ranks,
        .finished = finished,
    };
    campaign_write_progress(progress->campaign, &file);
    if (!progress->prometheus)
        return;
    const struct prometheus_sample sample = {
        .campaign = campaign_folder(progress->campaign),
        .phase = progress->phase,
        .total = progress->total,
        .done_before = progress->done_before,
        .counts = counts,
        .seconds = file.seconds,
        .walltime_left = progress->end > 0 ? fmax(progress->end - wall_clock(), 0) : -1,
        .ranks = progress->ranks,
        .running = !is_last,
    };
    if (prometheus_write(progress->prometheus, &sample) != OK)
        log_warning("%s", failure_message());
}

/* "3 h 05 min", "2 min 10 s", "9 s" */
static void format_duration(double seconds, char *text, size_t size) {
    long long whole = llround(seconds);
    if (whole >= 3600)
        snprintf(text, size, "%lld h %02lld min", whole / 3600, whole % 3600 / 60);
    else if (whole >= 60)
        snprintf(text, size, "%lld min %02lld s", whole / 60, whole % 60);
    else
        snprintf(text, size, "%lld s", whole);
}

/* A decode run has no prompts to show, and a prefill run only first tokens. */
static void format_line(const struct phase_progress *progress, const struct engine_counts *counts, double now,
    char *text, size_t size) {
    double seconds = now - progress->begun + 1e-9;
    int64_t done = progress->done_before + counts->finished, ended = counts->finished + counts->failed;
    int used = snprintf(
        text, size, "%s: %lld of %lld done", progress->phase, (long long)done, (long long)progress->total);
    if (counts->failed)
        used += snprintf(text + used, size - (size_t)used, ", %lld failed", (long long)counts->failed);
    if (counts->prompt_tokens)
        used += snprintf(text + used, size - (size_t)used, ", %lld prompt tokens (%.1f/s)",
            (long long)counts->prompt_tokens, (double)counts->prompt_tokens / seconds);
    if (counts->shared_tokens)
        used +=
            snprintf(text + used, size - (size_t)used, " + %lld shared", (long long)counts->shared_tokens);
    if (counts->cached_tokens)
        used += snprintf(text + used, size - (size_t)used, " + %lld of the cache less %lld replayed",
            (long long)counts->cached_tokens, (long long)counts->replayed_tokens);
    if (counts->generated_tokens)
        used += snprintf(text + used, size - (size_t)used, ", %lld generated tokens (%.1f/s)",
            (long long)counts->generated_tokens, (double)counts->generated_tokens / seconds);
    int64_t left = progress->total - progress->done_before - ended;
    if (ended > 0 && left > 0) {
        char duration[64];
        format_duration(seconds / (double)ended * (double)left, duration, sizeof duration);
        used += snprintf(text + used, size - (size_t)used, ", about %s left", duration);
    }
    if (progress->end > 0 && left > 0) {
        char duration[64];
        format_duration(fmax(progress->end - wall_clock(), 0), duration, sizeof duration);
        snprintf(text + used, size - (size_t)used, "; the allocation ends in %s", duration);
    }
}

/* Characters that fit into the terminal's last line. */
static int terminal_width(void) {
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

void progress_update(struct phase_progress *progress, const struct engine_counts *counts) {
    double now = monotonic_seconds();
    if (progress->written == 0 || now - progress->written >= WRITE_SECONDS) {
        progress->written = now;
        write_file(progress, counts, now, false, false);
    }
    double wait = progress->terminal ? TERMINAL_SECONDS : LINE_SECONDS;
    if (progress->quiet || now - progress->shown < wait)
        return;
    progress->shown = now;
    char line[512];
    format_line(progress, counts, now, line, sizeof line);
    if (progress->terminal)
        fprintf(stderr, "\r%.*s\033[K", terminal_width(), line);
    else
        log_info("%s", line);
}

void progress_finish(struct phase_progress *progress, const struct engine_counts *counts, bool finished) {
    double now = monotonic_seconds();
    write_file(progress, counts, now, true, finished);
    if (progress->terminal && !progress->quiet)
        fprintf(stderr, "\r\033[K");
    char line[512], duration[64];
    progress->end = 0; /* no longer of interest */
    format_line(progress, counts, now, line, sizeof line);
    format_duration(now - progress->begun, duration, sizeof duration);
    log_info("%s, %s", line, duration);
}

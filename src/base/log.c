#include "base/log.h"

#include <stdarg.h> /* va_list */
#include <stdio.h>  /* vsnprintf */
#include <string.h> /* strlen */
#include <unistd.h> /* write */

static int own_rank, rank_count = 1;
static enum log_level limit = LOG_NORMAL;

void log_setup(int rank, int ranks, enum log_level level) {
    own_rank = rank;
    rank_count = ranks;
    limit = level;
}

/* One write call a line, so that lines of several ranks on one terminal do not mix. */
static void line(const char *kind, const char *format, va_list arguments) {
    char text[8192];
    int used = rank_count > 1 ? snprintf(text, sizeof text, "nocturne[rank %d]: %s", own_rank, kind)
                              : snprintf(text, sizeof text, "nocturne: %s", kind);
    vsnprintf(text + used, sizeof text - 1 - (size_t)used, format, arguments);
    size_t length = strlen(text);
    text[length++] = '\n';
    for (size_t done = 0; done < length;) {
        ssize_t now = write(STDERR_FILENO, text + done, length - done);
        if (now <= 0)
            return;
        done += (size_t)now;
    }
}

#define DEFINE_LOG(name, level, kind)                                                                        \
    void name(const char *format, ...) {                                                                     \
        if (limit < (level))                                                                                 \
            return;                                                                                          \
        va_list arguments;                                                                                   \
        va_start(arguments, format);                                                                         \
        line(kind, format, arguments);                                                                       \
        va_end(arguments);                                                                                   \
    }

DEFINE_LOG(log_info, LOG_NORMAL, "")
DEFINE_LOG(log_warning, LOG_QUIET, "warning: ")
DEFINE_LOG(log_error, LOG_QUIET, "error: ")
DEFINE_LOG(log_verbose, LOG_VERBOSE, "")

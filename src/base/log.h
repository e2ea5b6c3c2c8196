/* Log lines on standard error, prefixed with the program, and with the rank when there is more than one. */
#ifndef NOCTURNE_BASE_LOG_H
#define NOCTURNE_BASE_LOG_H

#include "base/error.h" /* PRINTF_LIKE */

enum log_level { LOG_QUIET, LOG_NORMAL, LOG_VERBOSE };

/* Names this process in later lines; `ranks` of 1 leaves the rank out. Lines above `level` are dropped. */
void log_setup(int rank, int ranks, enum log_level level);

/* One line, newline added. */
void log_info(const char *format, ...) PRINTF_LIKE(1, 2);
void log_warning(const char *format, ...) PRINTF_LIKE(1, 2);
void log_error(const char *format, ...) PRINTF_LIKE(1, 2);
void log_verbose(const char *format, ...) PRINTF_LIKE(1, 2);

#endif

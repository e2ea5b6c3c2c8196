/* Results and error messages.
 *
 * Every function that can fail returns an `enum result` and is marked MUST_CHECK. On failure it has put one
 * complete message (what, where, found, expected, what to do) in a per-thread buffer, which the caller may
 * extend with context and which main prints once. A request's error is data, not a result: see
 * campaign/records.h.
 */
#ifndef NOCTURNE_BASE_ERROR_H
#define NOCTURNE_BASE_ERROR_H

#include <stddef.h>

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(format_index, first) __attribute__((format(printf, format_index, first)))

#ifdef __cplusplus
extern "C" {
#endif

/* The values are the program's exit codes, documented in docs/operations.md. */
enum result {
    OK = 0,
    ERROR_INTERNAL = 1, /* a broken invariant of ours */
    ERROR_USAGE = 2,    /* command line */
    ERROR_INPUT = 3,    /* requests, checkpoint or another file's content */
    ERROR_IO = 4,       /* the operating system refused: open, write, rename, disk full */
    ERROR_MEMORY = 5,   /* an allocation failed or a budget is too small */
    ERROR_CONFLICT = 6, /* the campaign is locked, or was made with another model or other settings */
    ERROR_RANKS = 7,    /* another rank failed or did not answer */
    ERROR_STOPPED = 75, /* stopped by a signal with all finished work kept; run the same command again */
};

/* Sets this thread's message and returns `code`. */
enum result fail(enum result code, const char *format, ...) PRINTF_LIKE(2, 3);

/* As fail, with ": " and the text of errno added. */
enum result fail_errno(enum result code, const char *format, ...) PRINTF_LIKE(2, 3);

/* Puts "text: " in front of the message; returns `code` unchanged. */
enum result fail_context(enum result code, const char *format, ...) PRINTF_LIKE(2, 3);

/* This thread's message; valid until its next fail. Never NULL. */
const char *failure_message(void);

/* Returns from the calling function when `call` fails. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        enum result try_result_ = (call);                                                                    \
        if (try_result_ != OK)                                                                               \
            return try_result_;                                                                              \
    } while (0)

/* Stores a failure in `status` and jumps to `label`. */
#define TRY_GOTO(status, call, label)                                                                        \
    do {                                                                                                     \
        (status) = (call);                                                                                   \
        if ((status) != OK)                                                                                  \
            goto label;                                                                                      \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif

/* Included in front of every file by lint-tidy (but src/base/error.c): tells the analyzer what it cannot see from one file, that
 * a failure is never OK. Without it every TRY looks as if it went on after a failure. */
#include "base/error.h"

#define fail(code, ...) (fail(code, __VA_ARGS__), (code))
#define fail_errno(code, ...) (fail_errno(code, __VA_ARGS__), (code))
#define fail_context(code, ...) (fail_context(code, __VA_ARGS__), (code))

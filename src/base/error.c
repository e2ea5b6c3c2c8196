#include "base/error.h"

#include <errno.h>  /* errno */
#include <stdarg.h> /* va_list */
#include <stdio.h>  /* vsnprintf */
#include <string.h> /* strerror, memmove */

enum { MESSAGE_BYTES = 4096 };

static _Thread_local char message[MESSAGE_BYTES];

enum result fail(enum result code, const char *format, ...) {
    /* The arguments may point into the old message. */
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(message, text, sizeof text);
    return code;
}

enum result fail_errno(enum result code, const char *format, ...) {
    int error = errno;
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return fail(code, "%s: %s", text, strerror(error));
}

enum result fail_context(enum result code, const char *format, ...) {
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return fail(code, "%s: %s", text, message);
}

const char *failure_message(void) {
    return message[0] ? message : "no error message";
}

/* Command lines: one table of options a command, from which parsing, --help and the printed settings come. */
#ifndef NOCTURNE_BASE_OPTIONS_H
#define NOCTURNE_BASE_OPTIONS_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

enum option_kind {
    OPTION_FLAG,   /* --name: bool */
    OPTION_TEXT,   /* --name VALUE: const char *, points into argv */
    OPTION_LIST,   /* --name VALUE [VALUE ...], repeatable: struct option_list, points into argv */
    OPTION_COUNT,  /* --name N: int64_t within [least, most] */
    OPTION_BYTES,  /* --name SIZE: int64_t; suffixes K, M, G, T are powers of 1024 */
    OPTION_CHOICE, /* --name WORD: int, the index of WORD in `choices` */
};

struct option_list {
    const char **items; /* freed by the caller with free() */
    int count;
};

struct option {
    const char *name; /* without the dashes */
    enum option_kind kind;
    void *value;             /* holds the default; written when the option is given */
    const char *placeholder; /* of the value in --help, such as DIR */
    const char *help;        /* one line, with the default */
    bool required;
    int64_t least, most;        /* OPTION_COUNT, OPTION_BYTES; both 0: any value >= 0 */
    const char *const *choices; /* OPTION_CHOICE: NULL-terminated */
};

struct command_usage {
    const char *name;      /* "ingest" */
    const char *summary;   /* a line or more on what the command does */
    const char *arguments; /* positional arguments as shown in the usage line, or NULL when there are none */
    const char *notes;     /* printed after the options, or NULL */
};

/* Parses argv[1..argc-1]; both "--name value" and "--name=value" are taken; a value that is empty is none, nor is
 * a word that begins with two dashes unless it comes after "=". Positional arguments go to
 * `positional` (may be NULL when the command takes none). `options` ends with a NULL name. With --help the usage
 * is printed on standard output and *help_shown is true. ERROR_USAGE names the offending word and how to get
 * help. */
MUST_CHECK enum result options_parse(const struct command_usage *usage, const struct option *options,
    int argc, char **argv, struct option_list *positional, bool *help_shown);

/* Parses "4G", "512M", "1048576"; used for OPTION_BYTES. */
MUST_CHECK enum result parse_bytes(const char *text, int64_t *bytes);

#endif

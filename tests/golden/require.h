/* What the programs of this folder share. */
#ifndef NOCTURNE_TESTS_GOLDEN_REQUIRE_H
#define NOCTURNE_TESTS_GOLDEN_REQUIRE_H

#include "base/error.h"

#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* exit */

enum { SKIPPED = 77 }; /* the exit code of a test that cannot run here */

/* Ends the program when a call fails that must not. */
#define REQUIRE(call)                                                                                        \
    do {                                                                                                     \
        if ((call) != OK) {                                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, failure_message());                           \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#endif

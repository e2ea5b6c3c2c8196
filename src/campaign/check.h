/* The parts of `nocturne check`: each makes rows of one table. */
#ifndef NOCTURNE_CAMPAIGN_CHECK_H
#define NOCTURNE_CAMPAIGN_CHECK_H

#include "base/error.h"
#include "campaign/launch.h"

#include <stdint.h> /* int32_t, int64_t */

enum check_verdict { CHECK_PASS, CHECK_WARN, CHECK_FAIL };

enum { CHECK_FOUND_BYTES = 512, CHECK_REMEDY_BYTES = 256 };

/* What one rank found. Plain bytes: rows travel between ranks. */
struct check_row {
    int32_t verdict;
    int32_t code;  /* enum result that a phase would end with; OK unless the verdict is CHECK_FAIL */
    int32_t empty; /* 1: this rank did not look; pass */
    char found[CHECK_FOUND_BYTES];
    char remedy[CHECK_REMEDY_BYTES]; /* what to do; "" for a pass */
};

void check_pass(struct check_row *row, const char *format, ...) PRINTF_LIKE(2, 3);
/* These two leave a worse verdict that is there already. */
void check_warn(struct check_row *row, const char *remedy, const char *format, ...) PRINTF_LIKE(3, 4);
void check_fail(struct check_row *row, enum result code, const char *remedy, const char *format, ...)
    PRINTF_LIKE(4, 5);
/* A failure with the message of `status` (failure_message). */
void check_failure(struct check_row *row, enum result status, const char *remedy);

/* `nocturne check ...`. Collective over the ranks that a launcher has started; starts and stops them itself. */
MUST_CHECK enum result command_check(int argc, char **argv);

/* ---- the file system of a campaign's folder: check_files.c ---- */

struct check_files {
    struct check_row space, flush, rename, locks, hdf5, visibility, file_clock;
};

/* Tries in `folder`, which must exist, what campaigns need of a file system: on the first rank of each node, with files of its own that are
 * removed again. wanted_bytes: what the campaign may write. Collective over the run; fails only when ranks do. */
MUST_CHECK enum result check_campaign_files(
    const struct ranks *ranks, const char *folder, int64_t wanted_bytes, struct check_files *rows);

#endif

/* The lock of a campaign (docs/formats.md, "The lock"). */
#ifndef NOCTURNE_CAMPAIGN_LOCK_H
#define NOCTURNE_CAMPAIGN_LOCK_H

#include "base/error.h"

#include <stdbool.h> /* bool */

/* Takes FOLDER/lock; *fd holds it until lock_release. ERROR_CONFLICT names the holder. */
MUST_CHECK enum result lock_take(const char *campaign_folder, int *fd);
void lock_release(int fd);
/* Whether someone holds it; `holder` gets "process 12 on host h since ..." ("" when unknown). */
bool lock_is_held(const char *campaign_folder, char *holder, size_t capacity);

#endif

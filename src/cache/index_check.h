/* Whether LMDB's file can be trusted: LMDB itself follows the numbers in its pages unseen, so a damaged file could end the
 * process.
 *
 * What is looked at (LMDB 0.9, data version 1: http://www.lmdb.tech/doc/): both meta pages; from the newer one every page
 * that its trees reach: within the file, of the right number and kind, reached once, nodes within the page; counts as the
 * trees' own say; the list of free pages in order and apart from those in use. Values have checksums of their own (index.h). */
#ifndef NOCTURNE_CACHE_INDEX_CHECK_H
#define NOCTURNE_CACHE_INDEX_CHECK_H

#include "base/error.h"

#include <stddef.h> /* size_t */
#include <stdint.h> /* uint8_t */

/* The meta pages of PATH/data.mdb, before LMDB may open it. No file or an empty one is right. ERROR_INPUT, ERROR_IO. */
MUST_CHECK enum result index_check_start(const char *path);

/* All pages, while the lock for changes is held. */
MUST_CHECK enum result index_check_pages(const char *path);

/* The same for a file in memory; `name` begins messages. */
MUST_CHECK enum result index_check_bytes(const char *name, const uint8_t *file, size_t bytes);

#endif

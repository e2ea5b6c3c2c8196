/* A campaign directory: its lock, its identity and what stands in it.
 *
 *     DIR/lock                     who works on it now (host, process, job, start time)
 *     DIR/requests.h5              the requests and the lines that were refused (requests.h)
 *     DIR/vision/rank-NNNN/part-NNNNNN.h5    embeddings of images, when there are images (embeddings.h)
 *     DIR/prefill/rank-NNNN/part-NNNNNN.h5   sequence states and first tokens (states.h)
 *     DIR/results/rank-NNNN/part-NNNNNN.h5   answers (results.h)
 *     DIR/results.h5, DIR/progress.json      made from the above; may be deleted at any time
 *
 * The byte-level rules (what counts as complete, order of writes and flushes, sweeping) stand in docs/formats.md.
 */
#ifndef NOCTURNE_CAMPAIGN_CAMPAIGN_H
#define NOCTURNE_CAMPAIGN_CAMPAIGN_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

/* Attributes every file of a campaign carries, so that each says what made it. */
struct provenance {
    const char *command;      /* "ingest", "prefill", ... */
    const char *model_folder; /* as given, made absolute */
    const char *fingerprint;  /* checkpoint_fingerprint */
    const char *
        identity; /* all that the tokens depend on, one line: two files of one campaign must agree (see below) */
    const char *settings; /* the options in effect, one line of JSON: for people, never compared */
    int32_t ranks, supernode;
};

/* The identity line of results and states: format version, requests' identity, checkpoint fingerprint, backend and
 * instruction set, numeric mode, tail setting. Built by schedule/, compared here as text. */

struct campaign;
struct engine_counts; /* schedule/engine.h */

enum campaign_access { CAMPAIGN_READ, CAMPAIGN_WORK };

/* Opens DIR; with CAMPAIGN_WORK takes the lock (one process of the run does this; the other ranks open with CAMPAIGN_READ).
 * A lock left by a process that is gone is taken over with a warning; one that is held is ERROR_CONFLICT naming its holder. `create`
 * makes the directory when it is not there. */
MUST_CHECK enum result campaign_open(
    const char *folder, enum campaign_access access, bool create, struct campaign **campaign);
void campaign_close(struct campaign *campaign); /* releases the lock */
const char *campaign_folder(const struct campaign *campaign);

/* Removes temporary files of earlier runs below the phase's folder, and sets aside (renames to *.damaged, with a
 * warning that names the file and the fault) every part that is torn, truncated, foreign (of another requests.h5) or
 * fails its checksums. Under the lock. A part of another `identity` is ERROR_CONFLICT with both identities' difference
 * named, unless `restart`, which removes all parts. `phase` is "vision", "prefill" or "results". */
MUST_CHECK enum result campaign_sweep(
    struct campaign *campaign, const char *phase, const char *identity, bool restart);

/* Which requests (for "vision": images) have a complete record below `phase`: done [total], by index; *count of
 * them, and (unless NULL) the tokens that were generated for these. Reads the parts' index datasets. */
MUST_CHECK enum result campaign_done(const struct campaign *campaign, const char *phase, int64_t total,
    uint8_t *done, int64_t *count, int64_t *generated_tokens);

/* Writes progress.json (atomic rename; failure is only logged). */
struct progress {
    const char *phase;
    int64_t total, done, failed;             /* of the phase's requests; earlier runs included */
    int64_t prompt_tokens, generated_tokens; /* this run */
    const struct engine_counts *counts;      /* this run's, for what was not computed */
    int64_t done_before; /* of done + failed: how many earlier launches left; for the rate */
    double seconds;      /* since this run began its work */
    int32_t ranks;
    bool finished;
};
void campaign_write_progress(const struct campaign *campaign, const struct progress *progress);

/* Commands without ranks. */
enum result command_export(int argc, char **argv);
enum result command_status(int argc, char **argv);
enum result command_report(int argc, char **argv);
enum result command_cache(int argc, char **argv);
enum result command_ingest(int argc, char **argv);

/* Prints what an HDF5 file of ours is: format, provenance, datasets, checks (for `nocturne inspect FILE_OR_DIR`). */
MUST_CHECK enum result campaign_inspect(const char *path);

#endif

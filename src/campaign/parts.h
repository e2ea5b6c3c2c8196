/* The part files of a phase: names, listing, writing, opening. */
#ifndef NOCTURNE_CAMPAIGN_PARTS_H
#define NOCTURNE_CAMPAIGN_PARTS_H

#include "campaign/hdf5_file.h"

struct part_name {
    char *path;     /* FOLDER/results/rank-0003/part-000017.h5 */
    char *relative; /* the same without FOLDER/ */
    int32_t rank, number;
};

struct part_list {
    struct part_name *parts; /* by rank, then number */
    size_t count;
};

/* The complete parts below FOLDER/PHASE, and nothing else that lies there. No such folder: none. */
MUST_CHECK enum result parts_list(const char *campaign_folder, const char *phase, struct part_list *list);
void part_list_free(struct part_list *list);

/* FOLDER/PHASE/rank-NNNN; freed by the caller, NULL without memory. */
char *part_folder(const char *campaign_folder, const char *phase, int32_t rank);
/* Whether a name is that of a part, and its number. */
bool part_number(const char *name, int32_t *number);
/* The folder names below a phase: "rank-NNNN". */
bool part_rank(const char *name, int32_t *rank);

/* Writes a finished image as the next part of `folder`; *number is the least number to try, and then the one after that used. */
MUST_CHECK enum result part_write(const char *folder, const struct hdf5_image *image, int32_t *number);
/* One more than the largest number in use in `folder` (0 when there is none). */
MUST_CHECK enum result part_next_number(const char *folder, int32_t *number);

/* Verifies the header, with `content` also the hash of the rest, and opens the file. Its format attribute must agree. */
MUST_CHECK enum result part_open(
    const char *path, const char *format, bool content, struct file_header *header, hid_t *file);

/* The identity of FOLDER/requests.h5, from its header. */
MUST_CHECK enum result requests_identity_of(const char *campaign_folder, char identity[HASH_DIGITS + 1]);

/* What differs between phases: "vision", "prefill", "results". */
struct phase_parts {
    const char *name, *format;
    const char *things;         /* what its records are of: "images" or "requests" */
    const struct column *index; /* int64: which of them each record is of */
    enum result (*check)(hid_t file, const char *path, const struct file_header *header);
};
const struct phase_parts *phase_parts(const char *phase);

/* All checks of a part: whole, and its datasets agree with each other. */
MUST_CHECK enum result part_check(
    const char *path, const char *phase, struct file_header *header, char **identity);

/* What became of requests, or for "vision" of images, by index. */
enum outcome { OUTCOME_NONE, OUTCOME_DONE, OUTCOME_FAILED };
struct outcome_counts {
    int64_t done, failed;                    /* distinct requests or images */
    int64_t prompt_tokens, generated_tokens; /* of all parts, by their headers */
    int64_t parts, skipped; /* parts read; parts left out because they are damaged or foreign */
};
/* Reads the index datasets of all parts of a phase; `requests`: the identity they must be of. Damaged and foreign parts are left out
 * with a warning (a sweep sets them aside), parts that went away while we looked silently. */
MUST_CHECK enum result parts_outcomes(const char *campaign_folder, const char *phase, const char *requests,
    int64_t total, uint8_t *outcomes, struct outcome_counts *counts);

#endif

/* What became of a campaign's requests, counted from its files for the report. */
#ifndef NOCTURNE_CAMPAIGN_REPORT_RESULTS_H
#define NOCTURNE_CAMPAIGN_REPORT_RESULTS_H

#include "campaign/requests.h"

#include <stdint.h> /* int32_t, int64_t */

enum { REPORT_CODES = 64, REPORT_ERRORS = 200, REPORT_LONGEST = 20, REPORT_CODE_BYTES = 64 };

struct report_code {
    char code[REPORT_CODE_BYTES];
    int64_t count;
};

struct report_error {
    int64_t line;
    int32_t status;
    char *custom_id, *code, *param, *message; /* param may be empty */
};

struct report_long {
    int64_t line, request, prompt_tokens, generated_tokens,
        longest; /* longest: tokens of the longest choice */
    double finished_at;
    char *custom_id;
};

struct report_results {
    int64_t lines, refused, done, failed, waiting; /* failed: by the launches, without the refused */
    int64_t prompt_tokens, generated_tokens;       /* of the requests that are done */
    int64_t skipped;                               /* parts that were left out */
    struct report_code codes[REPORT_CODES];        /* most frequent first; the last takes what does not fit */
    int32_t code_count;
    struct report_error errors[REPORT_ERRORS]; /* the first ones: refused lines, then failed requests */
    int32_t error_count;
    struct report_long longest[REPORT_LONGEST]; /* longest first */
    int32_t longest_count;
};

MUST_CHECK enum result report_results_read(
    const char *campaign_folder, struct requests *requests, struct report_results *results);
void report_results_free(struct report_results *results);

#endif

/* Finds stop strings in text that arrives in pieces: each byte is looked at once for each string, whatever
 * the lengths. */
#ifndef NOCTURNE_SCHEDULE_STOP_STRINGS_H
#define NOCTURNE_SCHEDULE_STOP_STRINGS_H

#include "base/error.h"
#include "recipe/request.h" /* struct text_piece */

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t, int64_t */

struct stop_strings; /* the strings of one request, shared by its choices */

/* Copies `strings` (empty ones never match). count may be 0: *made is NULL then, which all functions here
 * accept. */
MUST_CHECK enum result stop_strings_create(
    const struct text_piece *strings, int32_t count, struct stop_strings **made);
void stop_strings_free(struct stop_strings *strings);

struct stop_scan; /* how far one choice's text has matched */

MUST_CHECK enum result stop_scan_create(const struct stop_strings *strings, struct stop_scan **scan);
void stop_scan_free(struct stop_scan *scan);

struct stop_match {
    int64_t start; /* byte of the whole text where the match begins */
    int32_t index; /* of the string */
};

/* Takes the next piece. True when a string has ended in it: the match that begins first, of equal ones the
 * lower index. The scan is at its end then. */
bool stop_scan_feed(const struct stop_strings *strings, struct stop_scan *scan, const char *piece,
    size_t bytes, struct stop_match *match);

#endif

#include "schedule/stop_strings.h"

#include <stdlib.h> /* calloc */
#include <string.h> /* memcpy */

/* Knuth, Morris and Pratt: after a mismatch at pattern[i] go on comparing at fallback[i - 1]. */
struct pattern {
    char *text;
    int32_t *fallback; /* [bytes]: length of the longest proper prefix that ends here as a suffix */
    size_t bytes;
};

struct stop_strings {
    int32_t count;
    struct pattern patterns[]; /* [count] */
};

struct stop_scan {
    int64_t bytes;     /* of the text so far */
    int32_t matched[]; /* [strings]: leading bytes of each string that the text's end matches */
};

static enum result prepare(struct pattern *pattern, struct text_piece string) {
    if (string.bytes > INT32_MAX / 2)
        return fail(ERROR_INPUT, "a stop string of %zu bytes is longer than any answer", string.bytes);
    pattern->bytes = string.bytes;
    pattern->text = malloc(string.bytes + 1);
    pattern->fallback = malloc((string.bytes + 1) * sizeof *pattern->fallback);
    if (!pattern->text || !pattern->fallback)
        return fail(ERROR_MEMORY, "out of memory for a stop string of %zu bytes", string.bytes);
    if (string.bytes == 0)
        return OK;
    memcpy(pattern->text, string.data, string.bytes);
    pattern->fallback[0] = 0;
    int32_t length = 0;
    for (size_t i = 1; i < string.bytes; i++) {
        while (length > 0 && pattern->text[length] != pattern->text[i])
            length = pattern->fallback[length - 1];
        length += pattern->text[length] == pattern->text[i];
        pattern->fallback[i] = length;
    }
    return OK;
}

enum result stop_strings_create(const struct text_piece *strings, int32_t count, struct stop_strings **made) {
    *made = NULL;
    if (count == 0)
        return OK;
    struct stop_strings *set = calloc(1, sizeof *set + (size_t)count * sizeof *set->patterns);
    if (!set)
        return fail(ERROR_MEMORY, "out of memory for %d stop strings", count);
    set->count = count;
    for (int32_t i = 0; i < count; i++) {
        enum result status = prepare(&set->patterns[i], strings[i]);
        if (status != OK) {
            stop_strings_free(set);
            return status;
        }
    }
    *made = set;
    return OK;
}

void stop_strings_free(struct stop_strings *strings) {
    for (int32_t i = 0; strings && i < strings->count; i++) {
        free(strings->patterns[i].text);
        free(strings->patterns[i].fallback);
    }
    free(strings);
}

enum result stop_scan_create(const struct stop_strings *strings, struct stop_scan **scan) {
    *scan = NULL;
    if (!strings)
        return OK;
    struct stop_scan *made = calloc(1, sizeof *made + (size_t)strings->count * sizeof *made->matched);
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for the search of %d stop strings", strings->count);
    *scan = made;
    return OK;
}

void stop_scan_free(struct stop_scan *scan) {
    free(scan);
}

/* The first place in the piece where the pattern ends, as the count of the piece's bytes up to it; 0:
 * nowhere. */
static size_t find_end(const struct pattern *pattern, int32_t *matched, const char *piece, size_t bytes) {
    if (pattern->bytes == 0)
        return 0;
    int32_t length = *matched;
    for (size_t i = 0; i < bytes; i++) {
        while (length > 0 && pattern->text[length] != piece[i])
            length = pattern->fallback[length - 1];
        length += pattern->text[length] == piece[i];
        if ((size_t)length == pattern->bytes)
            return i + 1;
    }
    *matched = length;
    return 0;
}

bool stop_scan_feed(const struct stop_strings *strings, struct stop_scan *scan, const char *piece,
    size_t bytes, struct stop_match *match) {
    bool found = false;
    for (int32_t i = 0; strings && i < strings->count; i++) {
        const struct pattern *pattern = &strings->patterns[i];
        size_t end = find_end(pattern, &scan->matched[i], piece, bytes);
        if (end == 0)
            continue;
        int64_t start = scan->bytes + (int64_t)end - (int64_t)pattern->bytes;
        if (!found || start < match->start)
            *match = (struct stop_match){start, i};
        found = true;
    }
    if (strings)
        scan->bytes += (int64_t)bytes;
    return found;
}

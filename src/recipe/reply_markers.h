/* Finds the markers of a reply (closing tag of reasoning, tags of tool calls, fences, stop strings) in text
 * that arrives in pieces of any size.
 *
 * Text is a row of symbols: bytes, and special tokens where the reply comes as token ids. Of the markers that
 * a set looks for, the one that ends first wins, of several that end together the one added first. Every
 * symbol costs amortized constant time for each marker of the set, and most bytes cost one table look-up. */
#ifndef NOCTURNE_RECIPE_REPLY_MARKERS_H
#define NOCTURNE_RECIPE_REPLY_MARKERS_H

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint16_t, uint32_t */

enum { SYMBOL_END_THINK = 256, SYMBOL_DSML, SYMBOL_OTHER }; /* 0..255: bytes. OTHER is in no marker */

#define SPELLING_END_THINK "</think>"
#define SPELLING_DSML "｜DSML｜"

struct marker {
    uint16_t *symbols; /* [length] */
    uint32_t
        *failure; /* [length]: Knuth, Morris and Pratt's; how much still matches when symbol i + 1 doesn't */
    uint32_t *spelled; /* [length]: bytes of symbols 0..i as text */
    uint32_t length;
    uint32_t bytes; /* of the whole marker as text */
    uint32_t matched;
    bool newlines; /* the newlines just before it go with it */
    int action;    /* the user's */
    int32_t index; /* the user's: -1, or which stop string */
};

/* The markers of one state; zero-initialize, free with marker_set_free. */
struct marker_set {
    struct marker *markers;
    uint32_t count, capacity;
    bool active;     /* some marker has begun */
    bool begun;      /* the last symbol was the first of some marker */
    bool first[256]; /* bytes that a marker begins with */
};

/* How a marker's text is spelled: \1 stands for the DSML token, \2 for the end of reasoning. As ids they are
 * one symbol, as text their spelling. */
struct marker_text {
    const char *text;
    size_t bytes;
    bool as_ids;
};

void marker_set_clear(struct marker_set *set); /* keeps no marker */
void marker_set_free(struct marker_set *set);
/* Adds a marker; an empty text is not added. With index >= 0 the text is taken as it is. Aborts without
 * memory, as struct buffer does. */
void marker_set_add(
    struct marker_set *set, struct marker_text text, bool newlines, int action, int32_t index);
/* Forgets what has matched so far. */
void marker_set_restart(struct marker_set *set);
/* Takes the next symbol; returns the marker that ends with it, or NULL. */
const struct marker *marker_set_step(struct marker_set *set, uint16_t symbol);
/* The length of the bytes at `text` that no marker begins with. For use while the set isn't active. */
size_t marker_set_skip(const struct marker_set *set, const char *text, size_t bytes);
/* Bytes at the end of the text so far that may turn out to belong to a marker, newlines not counted. */
size_t marker_set_held(const struct marker_set *set);

#endif

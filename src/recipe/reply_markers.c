#include "recipe/reply_markers.h"

#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* calloc, realloc, free, abort */
#include <string.h> /* memset, strlen */

static void *checked(void *memory, size_t count) {
    if (!memory) {
        fprintf(stderr, "nocturne: no memory for a marker of %zu symbols\n", count);
        abort();
    }
    return memory;
}

void marker_set_clear(struct marker_set *set) {
    for (uint32_t i = 0; i < set->count; i++) {
        free(set->markers[i].symbols);
        free(set->markers[i].failure);
        free(set->markers[i].spelled);
    }
    set->count = 0;
    set->active = set->begun = false;
    memset(set->first, 0, sizeof set->first);
}

void marker_set_free(struct marker_set *set) {
    marker_set_clear(set);
    free(set->markers);
    *set = (struct marker_set){0};
}

/* ---- building ---- */

static void append_symbol(struct marker *marker, uint16_t symbol, size_t bytes) {
    marker->bytes += (uint32_t)bytes;
    marker->symbols[marker->length] = symbol;
    marker->spelled[marker->length++] = marker->bytes;
}

static void append_spelling(struct marker *marker, const char *spelling) {
    for (; *spelling; spelling++)
        append_symbol(marker, (unsigned char)*spelling, 1);
}

static void fill_failure(struct marker *marker) {
    marker->failure[0] = 0;
    for (uint32_t i = 1, k = 0; i < marker->length; i++) {
        while (k > 0 && marker->symbols[i] != marker->symbols[k])
            k = marker->failure[k - 1];
        k += marker->symbols[i] == marker->symbols[k];
        marker->failure[i] = k;
    }
}

void marker_set_add(
    struct marker_set *set, struct marker_text text, bool newlines, int action, int32_t index) {
    if (!text.bytes)
        return;
    if (set->count == set->capacity) {
        set->capacity = set->capacity ? 2 * set->capacity : 8;
        set->markers = checked(realloc(set->markers, set->capacity * sizeof *set->markers), set->capacity);
    }
    struct marker *marker = &set->markers[set->count++];
    size_t most = text.bytes * (index >= 0 ? 1 : sizeof SPELLING_DSML); /* if all were placeholders */
    *marker = (struct marker){.newlines = newlines, .action = action, .index = index};
    marker->symbols = checked(calloc(most, sizeof *marker->symbols), most);
    marker->failure = checked(calloc(most, sizeof *marker->failure), most);
    marker->spelled = checked(calloc(most, sizeof *marker->spelled), most);
    for (size_t i = 0; i < text.bytes; i++) {
        unsigned char c = (unsigned char)text.text[i];
        const char *spelling = c == 1 ? SPELLING_DSML : SPELLING_END_THINK;
        if (index >= 0 || c > 2)
            append_symbol(marker, c, 1);
        else if (text.as_ids)
            append_symbol(marker, c == 1 ? SYMBOL_DSML : SYMBOL_END_THINK, strlen(spelling));
        else
            append_spelling(marker, spelling);
    }
    fill_failure(marker);
    if (marker->symbols[0] < 256)
        set->first[marker->symbols[0]] = true;
}

/* ---- matching ---- */

void marker_set_restart(struct marker_set *set) {
    for (uint32_t i = 0; i < set->count; i++)
        set->markers[i].matched = 0;
    set->active = set->begun = false;
}

static uint32_t advance(const struct marker *marker, uint16_t symbol) {
    uint32_t matched = marker->matched;
    while (matched > 0 && marker->symbols[matched] != symbol)
        matched = marker->failure[matched - 1];
    return matched + (marker->symbols[matched] == symbol);
}

const struct marker *marker_set_step(struct marker_set *set, uint16_t symbol) {
    set->active = set->begun = false;
    for (uint32_t i = 0; i < set->count; i++) {
        struct marker *marker = &set->markers[i];
        marker->matched = advance(marker, symbol);
        set->active |= marker->matched > 0;
        set->begun |= marker->matched == 1;
        if (marker->matched == marker->length)
            return marker;
    }
    return NULL;
}

size_t marker_set_skip(const struct marker_set *set, const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes && !set->first[(unsigned char)text[at]])
        at++;
    return at;
}

size_t marker_set_held(const struct marker_set *set) {
    size_t held = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        const struct marker *marker = &set->markers[i];
        if (marker->matched && marker->spelled[marker->matched - 1] > held)
            held = marker->spelled[marker->matched - 1];
    }
    return held;
}

#include "recipe/pretokenizer.h"

#include "recipe/unicode_classes.h" /* unicode_class */

#include <stdbool.h> /* bool */
#include <stddef.h>  /* NULL */

/* The first two patterns cut where numbers, ideographs and the rest meet. So each character has one of
 * three kinds, and no match of the third pattern goes past a change of kind, which it sees as the end of
 * its text. */
enum {
    KIND_MASK = CLASS_NUMBER | CLASS_IDEOGRAPH,
    CLASS_END = 256, /* stands for the end of the stretch of one kind */
    NUMBER_GROUP = 3,
};

/* A place in the text and what stands there. */
struct place {
    const unsigned char *at;
    unsigned class; /* CLASS_END, or the character's classes */
    unsigned length;
};

struct stretch {
    const unsigned char *end; /* of the text */
    unsigned kind;            /* of all its characters */
};

/* Decodes without checks: the text is valid. */
static inline uint32_t decode(const unsigned char *at, unsigned *length) {
    uint32_t lead = at[0];
    if (lead < 0x80) {
        *length = 1;
        return lead;
    }
    if (lead < 0xE0) {
        *length = 2;
        return (lead & 0x1F) << 6 | (at[1] & 0x3F);
    }
    if (lead < 0xF0) {
        *length = 3;
        return (lead & 0x0F) << 12 | (uint32_t)(at[1] & 0x3F) << 6 | (at[2] & 0x3F);
    }
    *length = 4;
    return (lead & 0x07) << 18 | (uint32_t)(at[1] & 0x3F) << 12 | (uint32_t)(at[2] & 0x3F) << 6 |
           (at[3] & 0x3F);
}

static inline struct place look(const struct stretch *stretch, const unsigned char *at) {
    struct place place = {.at = at, .class = CLASS_END};
    if (at == stretch->end)
        return place;
    unsigned class = unicode_class(decode(at, &place.length));
    if ((class & KIND_MASK) == stretch->kind)
        place.class = class;
    return place;
}

static inline struct place after(const struct stretch *stretch, struct place place) {
    return look(stretch, place.at + place.length);
}

/* The first place from here on that has none of the classes. */
static inline struct place skip(const struct stretch *stretch, struct place place, unsigned classes) {
    while (place.class & classes)
        place = after(stretch, place);
    return place;
}

static inline bool is_ascii_letter(unsigned char c) {
    return (unsigned char)((c | 0x20) - 'a') < 26;
}

/* [!-/:-@\[-`{-~][A-Za-z]+ ; NULL when it does not match. ASCII letters are of no kind, so that only the
 * text's end bounds them. */
static const unsigned char *match_mark_and_word(const struct stretch *stretch, struct place start) {
    const unsigned char *at = start.at + 1;
    bool mark = start.at[0] < 0x80 && (start.class & (CLASS_PUNCTUATION | CLASS_SYMBOL));
    if (!mark || at == stretch->end || !is_ascii_letter(*at))
        return NULL;
    while (at < stretch->end && is_ascii_letter(*at))
        at++;
    return at;
}

/* [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ ; a leading mark may be taken by either part: the match is the
 * same. */
static const unsigned char *match_word(const struct stretch *stretch, struct place start) {
    const unsigned word = CLASS_LETTER | CLASS_MARK;
    struct place first = start;
    if (!(start.class & word)) {
        if (start.class & (CLASS_NEWLINE | CLASS_PUNCTUATION | CLASS_SYMBOL))
            return NULL;
        first = after(stretch, start);
        if (!(first.class & word))
            return NULL;
    }
    return skip(stretch, first, word).at;
}

/*  ?[\p{P}\p{S}]+[\r\n]* */
static const unsigned char *match_marks(const struct stretch *stretch, struct place start) {
    const unsigned marks = CLASS_PUNCTUATION | CLASS_SYMBOL;
    struct place first = *start.at == ' ' ? after(stretch, start) : start;
    if (!(first.class & marks))
        return NULL;
    return skip(stretch, skip(stretch, first, marks), CLASS_NEWLINE).at;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last newline of the blanks; else all of them when nothing follows
 * in this stretch; else all but the last, which stays for the word after it; else that one. */
static const unsigned char *match_blanks(const struct stretch *stretch, struct place start) {
    const unsigned char *after_newline = NULL, *last = start.at;
    struct place place = start;
    for (; place.class & CLASS_SPACE; place = after(stretch, place)) {
        last = place.at;
        if (place.class & CLASS_NEWLINE)
            after_newline = place.at + 1;
    }
    if (place.at == start.at)
        return NULL;
    if (after_newline)
        return after_newline;
    bool followed = !(place.class & CLASS_END);
    return followed && last > start.at ? last : place.at;
}

static const unsigned char *match(const struct stretch *stretch, struct place start) {
    const unsigned char *end = match_mark_and_word(stretch, start);
    if (!end)
        end = match_word(stretch, start);
    if (!end)
        end = match_marks(stretch, start);
    if (!end)
        end = match_blanks(stretch, start);
    return end;
}

/* What no pattern takes (controls, format characters, private use) up to where one matches again. */
static const unsigned char *gap_end(const struct stretch *stretch, struct place place) {
    do
        place = after(stretch, place);
    while (!(place.class & CLASS_END) && !match(stretch, place));
    return place.at;
}

const char *pretokenizer_next(const char *text, const char *text_end) {
    const unsigned char *at = (const unsigned char *)text;
    struct stretch stretch = {.end = (const unsigned char *)text_end};
    unsigned length;
    stretch.kind = unicode_class(decode(at, &length)) & KIND_MASK;
    struct place start = look(&stretch, at);
    if (stretch.kind == CLASS_NUMBER) {
        for (int i = 0; i < NUMBER_GROUP && !(start.class & CLASS_END); i++)
            start = after(&stretch, start);
        return (const char *)start.at;
    }
    const unsigned char *end = match(&stretch, start);
    return (const char *)(end ? end : gap_end(&stretch, start));
}

/* Character classes of Unicode 16.0 as far as the pre-tokenizer's patterns name them. */
#ifndef NOCTURNE_RECIPE_UNICODE_CLASSES_H
#define NOCTURNE_RECIPE_UNICODE_CLASSES_H

#include <stdint.h> /* uint8_t */

enum unicode_class {
    CLASS_LETTER = 1,      /* \p{L} */
    CLASS_MARK = 2,        /* \p{M} */
    CLASS_PUNCTUATION = 4, /* \p{P} */
    CLASS_SYMBOL = 8,      /* \p{S} */
    CLASS_SPACE = 16,      /* \s */
    CLASS_NEWLINE = 32,    /* \r or \n; a CLASS_SPACE too */
    CLASS_NUMBER = 64,     /* \p{N} */
    CLASS_IDEOGRAPH = 128, /* U+4E00..9FA5, Hiragana and Katakana: the second Split pattern; never a number */
};

/* Pages of 256 characters; equal pages are stored once. */
extern const uint8_t unicode_class_index[4352];
extern const uint8_t unicode_class_pages[][256];

/* The classes of a character below U+110000, as a set of bits. */
static inline unsigned unicode_class(uint32_t character) {
    return unicode_class_pages[unicode_class_index[character >> 8]][character & 255];
}

#endif

/* UTF-8 decoding and encoding of single characters, strict as in Unicode's table 3-7. */
#ifndef NOCTURNE_BASE_UTF8_H
#define NOCTURNE_BASE_UTF8_H

#include <stddef.h> /* size_t */
#include <stdint.h> /* uint32_t */

enum { UTF8_REPLACEMENT_BYTES = 3 };
#define UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

/* Reads the character at `text` (at least one byte must be there). Returns its length and stores the
 * character; for bytes that are not UTF-8 returns 0 and stores the length of the maximal invalid subpart
 * (1..3) in *character, which is what one U+FFFD stands for. */
static inline unsigned utf8_decode(const char *text, size_t bytes, uint32_t *character) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned lead = s[0];
    if (lead < 0x80) {
        *character = lead;
        return 1;
    }
    unsigned length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4) {
        *character = 1;
        return 0;
    }
    /* The second byte's range keeps out overlong forms, surrogates and what is above U+10FFFF. */
    unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    uint32_t value = lead & (0x7Fu >> length);
    for (unsigned i = 1; i < length; i++) {
        if (i >= bytes || s[i] < least || s[i] > most) {
            *character = i;
            return 0;
        }
        value = value << 6 | (s[i] & 0x3F);
        least = 0x80;
        most = 0xBF;
    }
    *character = value;
    return length;
}

/* Writes a character that is a Unicode scalar value; returns its length, 1..4. */
static inline unsigned utf8_encode(uint32_t character, char text[4]) {
    if (character < 0x80) {
        text[0] = (char)character;
        return 1;
    }
    if (character < 0x800) {
        text[0] = (char)(0xC0 | character >> 6);
        text[1] = (char)(0x80 | (character & 0x3F));
        return 2;
    }
    if (character < 0x10000) {
        text[0] = (char)(0xE0 | character >> 12);
        text[1] = (char)(0x80 | (character >> 6 & 0x3F));
        text[2] = (char)(0x80 | (character & 0x3F));
        return 3;
    }
    text[0] = (char)(0xF0 | character >> 18);
    text[1] = (char)(0x80 | (character >> 12 & 0x3F));
    text[2] = (char)(0x80 | (character >> 6 & 0x3F));
    text[3] = (char)(0x80 | (character & 0x3F));
    return 4;
}

#endif

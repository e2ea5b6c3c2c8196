/* Languages over the letters a and b up to LONGEST letters, as tables of all their texts: what expressions and
 * rules are compared with. */
#ifndef NOCTURNE_TESTS_GRAMMAR_LANGUAGES_H
#define NOCTURNE_TESTS_GRAMMAR_LANGUAGES_H

#include <stdbool.h> /* bool */
#include <stdint.h>  /* uint32_t */
#include <string.h>  /* memset */

enum { LONGEST = 7, TEXTS = 1 << (LONGEST + 1) };

/* Text number: a leading 1, then a bit a letter. */
struct language {
    bool has[TEXTS];
};

static inline uint32_t text_length(uint32_t text) {
    uint32_t length = 0;
    while (text >> (length + 1))
        length++;
    return length;
}

static inline uint32_t text_spell(uint32_t text, char *letters) {
    uint32_t length = text_length(text);
    for (uint32_t i = 0; i < length; i++)
        letters[i] = text >> (length - 1 - i) & 1 ? 'b' : 'a';
    return length;
}

static inline struct language language_empty_text(void) {
    struct language language;
    memset(&language, 0, sizeof language);
    language.has[1] = true;
    return language;
}

static inline struct language language_concatenate(const struct language *x, const struct language *y) {
    struct language language;
    memset(&language, 0, sizeof language);
    for (uint32_t i = 1; i < TEXTS; i++)
        for (uint32_t j = 1; x->has[i] && j < TEXTS; j++) {
            uint32_t length = text_length(j);
            if (y->has[j] && text_length(i) + length <= LONGEST)
                language.has[i << length | (j ^ (uint32_t)1 << length)] = true;
        }
    return language;
}

static inline struct language language_join(const struct language *x, const struct language *y) {
    struct language language = *x;
    for (uint32_t i = 1; i < TEXTS; i++)
        language.has[i] = language.has[i] || y->has[i];
    return language;
}

/* `most` -1: no end; texts beyond LONGEST letters do not count, so that LONGEST more times are enough. */
static inline struct language language_repeat(const struct language *x, int32_t least, int32_t most) {
    struct language power = language_empty_text(), all;
    memset(&all, 0, sizeof all);
    int32_t last = most < 0 ? least + LONGEST : most;
    for (int32_t times = 0; times <= last; times++) {
        if (times >= least)
            all = language_join(&all, &power);
        power = language_concatenate(&power, x);
    }
    return all;
}

/* xorshift64: the same numbers on every machine. */
static inline uint32_t draw(uint64_t *seed, uint32_t below) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (uint32_t)(*seed >> 33) % below;
}

#endif

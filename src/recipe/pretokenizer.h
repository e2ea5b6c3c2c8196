/* Cuts text into the pieces that byte-pair merging never crosses. */
#ifndef NOCTURNE_RECIPE_PRETOKENIZER_H
#define NOCTURNE_RECIPE_PRETOKENIZER_H

/* The published pipeline's three Split patterns, each applied to the pieces of the one before, matches
 * and the gaps between them both kept. The scanner below does what they say, as one pass; tokenizer
 * files are checked to hold exactly these spellings. */
#define PRETOKENIZER_NUMBERS "\\p{N}{1,3}"
#define PRETOKENIZER_IDEOGRAPHS "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
#define PRETOKENIZER_WORDS                                                                                   \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"       \
    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"

/* Returns the end of the piece that begins at `at` (at < end). The text must be valid UTF-8. A text's
 * pieces are found by going on from each end; all of them together take linear time. */
const char *pretokenizer_next(const char *at, const char *end);

#endif

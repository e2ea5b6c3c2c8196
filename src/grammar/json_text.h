/* The spelling of JSON strings as expressions over bytes.
 *
 * A string without a constraint may be spelled in every way that RFC 8259 allows. A string that is bound by a
 * length, pattern or format, and a key, is made of "bound spellings": each character raw, or as one of
 * \" \\ \b \f \n \r \t, and never as \uXXXX; the other controls cannot be said. Each such text has one bound
 * spelling only, so that conjunctions and complements of spellings are those of the texts. */
#ifndef NOCTURNE_GRAMMAR_JSON_TEXT_H
#define NOCTURNE_GRAMMAR_JSON_TEXT_H

#include "base/buffer.h"
#include "base/json.h"
#include "grammar/expression.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint32_t */

enum { LAST_CODE_POINT = 0x10FFFF };

/* One character of `ranges` (ascending, apart), as UTF-8 or, with `json`, in its bound spelling. */
uint32_t json_text_character(
    struct expressions *expressions, const struct code_range *ranges, size_t count, bool json);

/* Any one character, in UTF-8 or in its bound spelling. */
uint32_t json_text_any_character(struct expressions *expressions, bool json);

/* Everything between the quotes of a string without constraints, \u escapes and surrogate pairs included. */
uint32_t json_text_free_string(struct expressions *expressions);

/* A run of blanks, at most JSON_TEXT_BLANKS long; no blank at all when `compact`. */
enum { JSON_TEXT_BLANKS = 512 };
uint32_t json_text_blanks(struct expressions *expressions, bool compact);

uint32_t json_text_number(struct expressions *expressions, bool integer);

/* Appends the one spelling of a string value or key, with quotes: shortest escapes, lower-case \u00xx for
 * the controls that have none, everything else raw. */
void json_text_append_string(struct buffer *buffer, const char *text, size_t bytes);

#endif

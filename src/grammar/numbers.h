/* Decimal numbers by their digits: no bound ever goes through a double. */
#ifndef NOCTURNE_GRAMMAR_NUMBERS_H
#define NOCTURNE_GRAMMAR_NUMBERS_H

#include "base/buffer.h"
#include "grammar/expression.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint32_t */

enum { NUMBERS_DIGITS_LIMIT = 1024 };

/* A value: `digits` of which the last `decimals` stand behind the point; no zeros to spare at either end
 * (0 is "0"). */
struct decimal {
    char digits[NUMBERS_DIGITS_LIMIT + 1];
    int count, decimals;
    bool negative;
};

/* Reads a JSON number's spelling. False when it has more than NUMBERS_DIGITS_LIMIT digits. */
bool decimal_read(struct decimal *decimal, const char *text, size_t bytes);
bool decimal_is_zero(const struct decimal *decimal);
bool decimal_is_integer(const struct decimal *decimal);
/* <0, 0 or >0 as a < b, a = b, a > b. */
int decimal_compare(const struct decimal *a, const struct decimal *b);
/* The shortest decimal form, without an exponent. */
void decimal_append(struct buffer *buffer, const struct decimal *decimal);

enum { DIVISORS_LIMIT = 8 };

/* What a number must be; NULL: no such bound. */
struct number_bounds {
    bool integer;
    const struct decimal *minimum, *maximum;
    bool exclusive_minimum, exclusive_maximum;
    const struct decimal *divisors[DIVISORS_LIMIT]; /* multipleOf, each */
    int divisor_count;
};

/* The spellings of the numbers that fit: as JSON without bounds; with any bound, plain decimals without
 * exponent; -0 only where 0 and numbers below it fit. False when a divisor is too large (2^32 after scaling). */
bool number_expression(
    struct expressions *expressions, const struct number_bounds *bounds, uint32_t *expression);

#endif

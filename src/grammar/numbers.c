#include "grammar/numbers.h"

#include "grammar/json_text.h" /* json_text_number */

#include <stdlib.h> /* strtol */
#include <string.h> /* memmove, memset, memcmp */

/* ---- decimals ---- */

static bool add_digit(struct decimal *decimal, char digit) {
    if (decimal->count == 0 && digit == '0' && decimal->decimals == 0)
        return true; /* a leading zero */
    if (decimal->count == NUMBERS_DIGITS_LIMIT)
        return false;
    decimal->digits[decimal->count++] = digit;
    return true;
}

/* Leading zeros away, down to one digit before the point; trailing zeros behind the point away. */
static void normalize(struct decimal *decimal) {
    while (decimal->decimals > 0 && decimal->count > 0 && decimal->digits[decimal->count - 1] == '0') {
        decimal->count--;
        decimal->decimals--;
    }
    int zeros = 0;
    while (zeros < decimal->count && decimal->digits[zeros] == '0')
        zeros++;
    memmove(decimal->digits, decimal->digits + zeros, (size_t)(decimal->count - zeros));
    decimal->count -= zeros;
    if (decimal->count == 0)
        decimal->decimals = 0;
}

bool decimal_read(struct decimal *decimal, const char *text, size_t bytes) {
    const char *end = text + bytes;
    *decimal = (struct decimal){.count = 0};
    if (text < end && *text == '-') {
        decimal->negative = true;
        text++;
    }
    int decimals = 0;
    for (bool point = false; text < end && *text != 'e' && *text != 'E'; text++) {
        if (*text == '.')
            point = true;
        else if (!add_digit(decimal, *text))
            return false;
        else
            decimals += point;
    }
    long exponent = text < end ? strtol(text + 1, NULL, 10) : 0;
    if (decimal->count && (exponent > NUMBERS_DIGITS_LIMIT || exponent < -NUMBERS_DIGITS_LIMIT))
        return false;
    if (!decimal->count)
        exponent = 0, decimals = 0;
    long places = decimals - exponent;
    for (; places < 0; places++)
        if (!add_digit(decimal, '0'))
            return false;
    decimal->decimals = (int)places;
    normalize(decimal);
    return decimal->decimals <= NUMBERS_DIGITS_LIMIT;
}

bool decimal_is_zero(const struct decimal *decimal) {
    return decimal->count == 0;
}

bool decimal_is_integer(const struct decimal *decimal) {
    return decimal->decimals == 0;
}

/* Digits before the point, and the digit `index` of the number written with `whole` of them. */
static int whole_digits(const struct decimal *decimal) {
    return decimal->count > decimal->decimals ? decimal->count - decimal->decimals : 0;
}

static char digit_at(const struct decimal *decimal, int index) {
    int place = index - (decimal->decimals > decimal->count ? decimal->decimals - decimal->count : 0);
    return place < 0 || place >= decimal->count ? '0' : decimal->digits[place];
}

static int compare_sizes(const struct decimal *a, const struct decimal *b) {
    if (whole_digits(a) != whole_digits(b))
        return whole_digits(a) - whole_digits(b);
    int decimals = a->decimals > b->decimals ? a->decimals : b->decimals;
    for (int i = 0; i < whole_digits(a) + decimals; i++)
        if (digit_at(a, i) != digit_at(b, i))
            return digit_at(a, i) - digit_at(b, i);
    return 0;
}

int decimal_compare(const struct decimal *a, const struct decimal *b) {
    bool a_negative = a->negative && a->count, b_negative = b->negative && b->count;
    if (a_negative != b_negative)
        return a_negative ? -1 : 1;
    return a_negative ? -compare_sizes(a, b) : compare_sizes(a, b);
}

void decimal_append(struct buffer *buffer, const struct decimal *decimal) {
    int whole = whole_digits(decimal);
    if (decimal->negative && decimal->count)
        buffer_append(buffer, "-", 1);
    if (!whole)
        buffer_append(buffer, "0", 1);
    for (int i = 0; i < whole + decimal->decimals; i++) {
        char digit = digit_at(decimal, i);
        if (i == whole)
            buffer_append(buffer, ".", 1);
        buffer_append(buffer, &digit, 1);
    }
}

/* ---- comparing spellings without a sign ---- */

static uint32_t digits_between(struct expressions *e, char first, char last) {
    struct byte_set set = {{0}};
    for (char c = first; c <= last; c++)
        set.words[0] |= (uint64_t)1 << c;
    return expression_byte_set(e, &set);
}

static uint32_t either(struct expressions *e, uint32_t a, uint32_t b) {
    uint32_t both[] = {a, b};
    return expression_either(e, both, 2);
}

static uint32_t any_digits(struct expressions *e) {
    return expression_repeat(e, digits_between(e, '0', '9'), 0, -1);
}

static uint32_t any_fraction(struct expressions *e) {
    uint32_t fraction = expression_concatenate(
        e, expression_byte(e, '.'), expression_repeat(e, digits_between(e, '0', '9'), 1, -1));
    return expression_repeat(e, fraction, 0, 1);
}

/* Digits behind the point, all zeros, or with one that is not. */
static uint32_t zeros(struct expressions *e) {
    return expression_repeat(e, expression_byte(e, '0'), 0, -1);
}

static uint32_t not_zeros(struct expressions *e) {
    return expression_concatenate(
        e, zeros(e), expression_concatenate(e, digits_between(e, '1', '9'), any_digits(e)));
}

/* What may follow the same whole part as the bound's, so that the number is above (or below) the bound, or
 * equal when `equal`. */
static uint32_t compare_fraction(struct expressions *e, const struct decimal *bound, bool above, bool equal) {
    int whole = whole_digits(bound);
    /* Behind all of the bound's digits. */
    uint32_t tail = above ? (equal ? any_digits(e) : not_zeros(e)) : (equal ? zeros(e) : EXPRESSION_NOTHING);
    for (int i = bound->decimals - 1; i >= 0; i--) {
        char digit = digit_at(bound, whole + i);
        uint32_t other =
            above ? digits_between(e, (char)(digit + 1), '9') : digits_between(e, '0', (char)(digit - 1));
        tail = either(e, expression_concatenate(e, expression_byte(e, (unsigned char)digit), tail),
            expression_concatenate(e, other, any_digits(e)));
        if (!above && i > 0) /* shorter than the bound: below it, as the bound does not end in zeros */
            tail = either(e, tail, EXPRESSION_EMPTY);
    }
    /* Behind the point there is at least one digit. */
    uint32_t digits = expression_repeat(e, digits_between(e, '0', '9'), 1, -1), list[] = {tail, digits};
    uint32_t fraction = expression_concatenate(e, expression_byte(e, '.'), expression_both(e, list, 2));
    bool bare = bound->decimals == 0 ? equal : !above;
    return bare ? either(e, fraction, EXPRESSION_EMPTY) : fraction;
}

/* Spellings of the numbers without a sign above (below) |bound|. */
static uint32_t compare_spelling(struct expressions *e, const struct decimal *bound, bool above, bool equal) {
    int whole = whole_digits(bound) ? whole_digits(bound) : 1;
    int shift = whole_digits(bound) ? 0 : -1; /* a bound below 1 has the whole part 0 */
    uint32_t tail = compare_fraction(e, bound, above, equal), digit = digits_between(e, '0', '9');
    for (int i = whole - 1; i >= 0; i--) {
        char own = shift ? '0' : digit_at(bound, i);
        uint32_t other =
            above ? digits_between(e, (char)(own + 1), '9') : digits_between(e, '0', (char)(own - 1));
        uint32_t rest = expression_concatenate(
            e, expression_repeat(e, digit, whole - 1 - i, whole - 1 - i), any_fraction(e));
        tail = either(e, expression_concatenate(e, expression_byte(e, (unsigned char)own), tail),
            expression_concatenate(e, other, rest));
    }
    uint32_t lengths = above ? expression_repeat(e, digit, whole + 1, -1)
                             : (whole > 1 ? expression_repeat(e, digit, 1, whole - 1) : EXPRESSION_NOTHING);
    return either(e, tail, expression_concatenate(e, lengths, any_fraction(e)));
}

/* ---- multiples ---- */

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Digits (`some`) of a multiple of the modulus. Those of M * 10^z are the digits of a multiple of M and z zeros, or all
 * zeros: far fewer states than remainders. */
static uint32_t whole_multiple(struct expressions *e, uint64_t modulus, uint32_t some) {
    int32_t count = 0;
    for (; modulus % 10 == 0; modulus /= 10)
        count++;
    uint32_t list[] = {expression_multiple(e, (uint32_t)modulus, 0), some}, zero = expression_byte(e, '0');
    uint32_t fits =
        expression_concatenate(e, expression_both(e, list, 2), expression_repeat(e, zero, count, count));
    return count ? either(e, fits, expression_repeat(e, zero, 1, -1)) : fits;
}

/* Multiples of D / 10^k: with j <= k digits behind the point the digits are a multiple of D / gcd(D,
 * 10^(k-j)); further digits are zeros. */
static bool multiple_expression(struct expressions *e, const struct decimal *divisor, uint32_t *expression) {
    enum { MOST_DECIMALS = 18 };
    uint64_t scaled = 0, power = 1;
    if (divisor->decimals > MOST_DECIMALS)
        return false;
    for (int i = 0; i < divisor->count; i++)
        if ((scaled = scaled * 10 + (uint64_t)(divisor->digits[i] - '0')) >= UINT32_MAX)
            return false;
    uint32_t digit = digits_between(e, '0', '9'), some = expression_repeat(e, digit, 1, -1);
    *expression = EXPRESSION_NOTHING;
    for (int j = divisor->decimals; j >= 0; j--, power *= 10) {
        uint64_t modulus = scaled / greatest_common_divisor(scaled, power);
        uint32_t fits = j == 0 ? whole_multiple(e, modulus, some) : EXPRESSION_NOTHING;
        if (j > 0) {
            uint32_t shape = expression_concatenate(e, some,
                expression_concatenate(e, expression_byte(e, '.'), expression_repeat(e, digit, j, j)));
            uint32_t list[] = {expression_multiple(e, (uint32_t)modulus, 0), shape};
            fits = expression_both(e, list, 2);
        }
        if (j == divisor->decimals) {
            uint32_t more = j == 0 ? expression_concatenate(e, expression_byte(e, '.'),
                                         expression_repeat(e, expression_byte(e, '0'), 1, -1))
                                   : zeros(e);
            fits = expression_concatenate(e, fits, either(e, more, EXPRESSION_EMPTY));
        }
        *expression = either(e, *expression, fits);
    }
    return true;
}

/* ---- all together ---- */

static uint32_t unsigned_shape(struct expressions *e, bool integer) {
    uint32_t whole = either(
        e, expression_byte(e, '0'), expression_concatenate(e, digits_between(e, '1', '9'), any_digits(e)));
    return integer ? whole : expression_concatenate(e, whole, any_fraction(e));
}

/* Spellings without a sign of the numbers of one sign. */
static uint32_t one_sign(
    struct expressions *e, const struct number_bounds *bounds, bool negative, const uint32_t *multiples) {
    const struct decimal *least = negative ? bounds->maximum : bounds->minimum;
    const struct decimal *most = negative ? bounds->minimum : bounds->maximum;
    bool least_open = negative ? bounds->exclusive_maximum : bounds->exclusive_minimum;
    bool most_open = negative ? bounds->exclusive_minimum : bounds->exclusive_maximum;
    static const struct decimal zero = {.count = 0};
    uint32_t list[4 + DIVISORS_LIMIT] = {unsigned_shape(e, bounds->integer)};
    size_t count = 1;
    if (least && least->count && least->negative == negative)
        list[count++] = compare_spelling(e, least, true, !least_open);
    else if (least && !least->count && least_open)
        list[count++] = compare_spelling(e, &zero, true, false);
    if (most && (most->negative != negative || !most->count)) {
        if (most->count || negative)
            return EXPRESSION_NOTHING;
        list[count++] = compare_spelling(e, &zero, false, !most_open);
    } else if (most)
        list[count++] = compare_spelling(e, most, false, !most_open);
    for (int i = 0; i < bounds->divisor_count; i++)
        list[count++] = multiples[i];
    return expression_both(e, list, count);
}

bool number_expression(struct expressions *e, const struct number_bounds *bounds, uint32_t *expression) {
    uint32_t multiples[DIVISORS_LIMIT];
    if (!bounds->minimum && !bounds->maximum && !bounds->divisor_count) {
        *expression = json_text_number(e, bounds->integer);
        return true;
    }
    for (int i = 0; i < bounds->divisor_count; i++)
        if (!multiple_expression(e, bounds->divisors[i], &multiples[i]))
            return false;
    *expression = either(e, one_sign(e, bounds, false, multiples),
        expression_concatenate(e, expression_byte(e, '-'), one_sign(e, bounds, true, multiples)));
    return true;
}

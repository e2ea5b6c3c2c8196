#include "grammar/json_text.h"

#include <string.h> /* memcpy, strchr */

enum { RANGES_LIMIT = 600 };

static const char escaped[] = "\"\\\b\f\n\r\t";
static const char escape_letters[] = "\"\\bfnrt";

static bool needs_escape(uint32_t c) {
    return c < 0x20 || c == '"' || c == '\\';
}

/* The part of `ranges` that stands for itself in a JSON string. */
static size_t raw_ranges(const struct code_range *ranges, size_t count, struct code_range *raw) {
    static const struct code_range allowed[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, LAST_CODE_POINT}};
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof allowed / sizeof *allowed; k++) {
            uint32_t first = ranges[i].first > allowed[k].first ? ranges[i].first : allowed[k].first;
            uint32_t last = ranges[i].last < allowed[k].last ? ranges[i].last : allowed[k].last;
            if (first <= last && kept < RANGES_LIMIT)
                raw[kept++] = (struct code_range){first, last};
        }
    return kept;
}

static bool holds(const struct code_range *ranges, size_t count, uint32_t c) {
    for (size_t i = 0; i < count; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}

static uint32_t one_of(struct expressions *expressions, const char *letters) {
    struct byte_set set = {{0}};
    for (; *letters; letters++)
        set.words[(unsigned char)*letters >> 6] |= (uint64_t)1 << (*letters & 63);
    return expression_byte_set(expressions, &set);
}

uint32_t json_text_character(
    struct expressions *expressions, const struct code_range *ranges, size_t count, bool json) {
    if (!json)
        return expression_code_points(expressions, ranges, count);
    struct code_range raw[RANGES_LIMIT];
    char letters[sizeof escape_letters];
    size_t short_escapes = 0;
    for (size_t i = 0; escaped[i]; i++)
        if (holds(ranges, count, (unsigned char)escaped[i]))
            letters[short_escapes++] = escape_letters[i];
    letters[short_escapes] = '\0';
    uint32_t both[] = {expression_code_points(expressions, raw, raw_ranges(ranges, count, raw)),
        expression_concatenate(
            expressions, expression_byte(expressions, '\\'), one_of(expressions, letters))};
    return expression_either(expressions, both, 2);
}

uint32_t json_text_any_character(struct expressions *expressions, bool json) {
    return json_text_character(expressions, &(struct code_range){0, LAST_CODE_POINT}, 1, json);
}

uint32_t json_text_free_string(struct expressions *e) {
    uint32_t hex = one_of(e, "0123456789abcdefABCDEF"), u = expression_literal(e, "\\u", 2);
    uint32_t hex2 = expression_repeat(e, hex, 2, 2), hex3 = expression_repeat(e, hex, 3, 3);
    uint32_t d = one_of(e, "dD");
    uint32_t plain[] = {expression_concatenate(e, one_of(e, "0123456789abcefABCEF"), hex3),
        expression_concatenate(e, d, expression_concatenate(e, one_of(e, "01234567"), hex2))};
    uint32_t high = expression_concatenate(e, d, expression_concatenate(e, one_of(e, "89abAB"), hex2));
    uint32_t low = expression_concatenate(e, d, expression_concatenate(e, one_of(e, "cdefCDEF"), hex2));
    uint32_t pair =
        expression_concatenate(e, u, expression_concatenate(e, high, expression_concatenate(e, u, low)));
    uint32_t all[] = {json_text_any_character(e, true), expression_literal(e, "\\/", 2), pair,
        expression_concatenate(e, u, expression_either(e, plain, 2))};
    return expression_repeat(e, expression_either(e, all, 4), 0, -1);
}

uint32_t json_text_blanks(struct expressions *expressions, bool compact) {
    return compact ? EXPRESSION_EMPTY
                   : expression_repeat(expressions, one_of(expressions, " \n\r\t"), 0, JSON_TEXT_BLANKS);
}

static uint32_t optional(struct expressions *e, uint32_t a) {
    return expression_repeat(e, a, 0, 1);
}

uint32_t json_text_number(struct expressions *e, bool integer) {
    uint32_t digit = one_of(e, "0123456789"), some = expression_repeat(e, digit, 1, -1);
    uint32_t whole[] = {expression_byte(e, '0'),
        expression_concatenate(e, one_of(e, "123456789"), expression_repeat(e, digit, 0, -1))};
    uint32_t number =
        expression_concatenate(e, optional(e, expression_byte(e, '-')), expression_either(e, whole, 2));
    if (integer)
        return number;
    uint32_t fraction = optional(e, expression_concatenate(e, expression_byte(e, '.'), some));
    uint32_t exponent = optional(e, expression_concatenate(e, one_of(e, "eE"),
                                        expression_concatenate(e, optional(e, one_of(e, "+-")), some)));
    return expression_concatenate(e, number, expression_concatenate(e, fraction, exponent));
}

void json_text_append_string(struct buffer *buffer, const char *text, size_t bytes) {
    buffer_append(buffer, "\"", 1);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        const char *known = c ? strchr(escaped, c) : NULL;
        if (known) {
            char pair[2] = {'\\', escape_letters[known - escaped]};
            buffer_append(buffer, pair, 2);
        } else if (needs_escape(c))
            buffer_printf(buffer, "\\u%04x", c);
        else
            buffer_append(buffer, text + i, 1);
    }
    buffer_append(buffer, "\"", 1);
}

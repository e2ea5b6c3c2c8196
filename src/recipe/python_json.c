#include "recipe/python_json.h"

#include <float.h>  /* DBL_DIG, DBL_MIN */
#include <math.h>   /* fabs, frexp, signbit */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* strtod */
#include <string.h> /* memcpy, strchr */

enum {
    DIGITS_MOST = 17, /* enough for every double */
    /* Within these exponents every double is normal, so that DBL_DIG digits of a spelling come back. */
    EXPONENT_SURE = 300,
    POINT_MOST = 16,           /* from 1e16 on the exponent form is used */
    POINT_LEAST_PYTHON = -4,   /* below 1e-4 */
    POINT_LEAST_COMPACT = -5,  /* below 1e-5 */
    EXPONENT_READ_MOST = 9999, /* what is beyond makes no difference */
};

struct style {
    const char *comma, *colon;
    int point_least;           /* least decimal exponent written without exponent form */
    const char *exponent_form; /* of the exponent */
};

static const struct style PYTHON = {", ", ": ", POINT_LEAST_PYTHON, "e%+03d"};
static const struct style COMPACT = {",", ":", POINT_LEAST_COMPACT, "e%+d"};

/* DIGITS[0].DIGITS[1..] * 10^exponent */
struct decimal {
    bool negative;
    int count; /* at least 1 */
    int exponent;
    char digits[DIGITS_MOST + 2];
};

/* ---- shortest digits ---- */

static void strip_zeros(struct decimal *decimal) {
    while (decimal->count > 1 && decimal->digits[decimal->count - 1] == '0')
        decimal->count--;
    if (decimal->digits[0] == '0')
        decimal->exponent = 0;
}

/* The spelling's own digits, when they are so few that no other double is meant by them and none shorter
 * means the same. False when that isn't sure. */
static bool read_spelling(const char *text, struct decimal *decimal) {
    int exponent = -1;
    bool point = false;
    decimal->count = 0;
    decimal->negative = *text == '-';
    if (decimal->negative)
        text++;
    for (; *text && *text != 'e' && *text != 'E'; text++) {
        if (*text == '.') {
            point = true;
            continue;
        }
        bool leading = !decimal->count && *text == '0';
        if (!leading && decimal->count == DBL_DIG)
            return false;
        if (!leading)
            decimal->digits[decimal->count++] = *text;
        exponent += leading ? -point : !point;
    }
    if (!decimal->count) {
        decimal->digits[decimal->count++] = '0';
        decimal->exponent = 0;
        return true;
    }
    long power = *text ? strtol(text + 1, NULL, 10) : 0;
    if (power < -EXPONENT_READ_MOST || power > EXPONENT_READ_MOST)
        return false;
    decimal->exponent = exponent + (int)power;
    strip_zeros(decimal);
    return decimal->exponent > -EXPONENT_SURE && decimal->exponent < EXPONENT_SURE;
}

/* The value rounded to `count` digits. */
static void round_digits(double value, int count, struct decimal *decimal) {
    char text[40];
    snprintf(text, sizeof text, "%.*e", count - 1, fabs(value));
    decimal->digits[0] = text[0];
    if (count > 1)
        memcpy(decimal->digits + 1, text + 2, (size_t)count - 1);
    decimal->count = count;
    decimal->exponent = atoi(strchr(text, 'e') + 1);
}

static double decimal_value(const struct decimal *decimal) {
    char text[40];
    snprintf(text, sizeof text, "%.*se%d", decimal->count, decimal->digits,
        decimal->exponent - decimal->count + 1);
    return strtod(text, NULL);
}

/* One more in the last digit. */
static void next_decimal(struct decimal *decimal) {
    int i = decimal->count - 1;
    while (i >= 0 && decimal->digits[i] == '9')
        decimal->digits[i--] = '0';
    if (i >= 0) {
        decimal->digits[i]++;
        return;
    }
    decimal->digits[0] = '1';
    decimal->exponent++;
}

/* The fewest digits that read back as the value. Below a power of two doubles are twice as dense as above, so
 * that there the nearest decimal may miss and the one above it still hit. */
static void find_shortest(double value, struct decimal *decimal) {
    int exponent;
    double magnitude = fabs(value);
    bool power_of_two = frexp(magnitude, &exponent) == 0.5;
    decimal->negative = signbit(value);
    for (int count = magnitude < DBL_MIN ? 1 : DBL_DIG; count <= DIGITS_MOST; count++) {
        round_digits(value, count, decimal);
        if (decimal_value(decimal) == magnitude)
            break;
        if (power_of_two) {
            next_decimal(decimal);
            if (decimal_value(decimal) == magnitude)
                break;
        }
    }
    strip_zeros(decimal);
}

/* ---- writing numbers ---- */

static void append_zeros(struct buffer *text, int count) {
    static const char zeros[] = "0000000000000000000000";
    buffer_append(text, zeros, (size_t)count);
}

static void append_decimal(struct buffer *text, const struct decimal *decimal, const struct style *style) {
    int point = decimal->exponent + 1, count = decimal->count; /* digits before the point */
    if (decimal->negative)
        buffer_append(text, "-", 1);
    if (decimal->exponent < style->point_least || decimal->exponent >= POINT_MOST) {
        buffer_append(text, decimal->digits, 1);
        if (count > 1) {
            buffer_append(text, ".", 1);
            buffer_append(text, decimal->digits + 1, (size_t)count - 1);
        }
        char exponent[16];
        int bytes = snprintf(exponent, sizeof exponent, style->exponent_form, decimal->exponent);
        buffer_append(text, exponent, (size_t)bytes);
    } else if (point <= 0) {
        buffer_append(text, "0.", 2);
        append_zeros(text, -point);
        buffer_append(text, decimal->digits, (size_t)count);
    } else if (point >= count) {
        buffer_append(text, decimal->digits, (size_t)count);
        append_zeros(text, point - count);
        buffer_append(text, ".0", 2);
    } else {
        buffer_append(text, decimal->digits, (size_t)point);
        buffer_append(text, ".", 1);
        buffer_append(text, decimal->digits + point, (size_t)(count - point));
    }
}

static void append_number(struct buffer *text, const struct json *value, const struct style *style) {
    int64_t integer;
    uint64_t natural;
    struct decimal decimal;
    bool minus_zero = value->text[0] == '-' && value->text[1] == '0' && !value->text[2];
    if (!minus_zero && (json_int64(value, &integer) || json_uint64(value, &natural))) {
        buffer_append(text, value->text, value->bytes);
        return;
    }
    if (!read_spelling(value->text, &decimal))
        find_shortest(strtod(value->text, NULL), &decimal);
    append_decimal(text, &decimal, style);
}

/* ---- values ---- */

static void append_value(struct buffer *text, const struct json *value, const struct style *style);

/* The nesting is limited by the JSON reader. */
static void append_children(struct buffer *text, const struct json *value, const struct style *style) {
    bool object = value->kind == JSON_OBJECT;
    buffer_append(text, object ? "{" : "[", 1);
    for (const struct json *child = value->first; child; child = child->next) {
        if (child != value->first)
            buffer_append_text(text, style->comma);
        if (object) {
            buffer_append_json_string(text, child->key, child->key_bytes);
            buffer_append_text(text, style->colon);
        }
        append_value(text, child, style);
    }
    buffer_append(text, object ? "}" : "]", 1);
}

static void append_value(struct buffer *text, const struct json *value, const struct style *style) {
    switch (value->kind) {
    case JSON_NULL:
        buffer_append(text, "null", 4);
        break;
    case JSON_FALSE:
        buffer_append(text, "false", 5);
        break;
    case JSON_TRUE:
        buffer_append(text, "true", 4);
        break;
    case JSON_NUMBER:
        append_number(text, value, style);
        break;
    case JSON_STRING:
        buffer_append_json_string(text, value->text, value->bytes);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        append_children(text, value, style);
        break;
    }
}

void python_json_append(struct buffer *text, const struct json *value) {
    append_value(text, value, &PYTHON);
}

void compact_json_append(struct buffer *text, const struct json *value) {
    append_value(text, value, &COMPACT);
}

#include "grammar/regex.h"

#include "base/hex.h"
#include "base/utf8.h"         /* utf8_decode */
#include "grammar/json_text.h" /* json_text_character, struct code_range */

#include <stdlib.h> /* realloc, free */
#include <string.h> /* memcpy, strchr, memmove */

enum { DEPTH_LIMIT = 200, CLASS_RANGES = 512, COUNT_LIMIT = 100000 };

struct parser {
    struct expressions *expressions;
    const char *pattern;
    size_t bytes, at;
    bool json;
    int depth;
    uint32_t *parts; /* of the sequences and choices that are open */
    size_t part_count, part_capacity;
};

/* What was read, and how many characters it would be with its repetitions written out. */
struct piece {
    uint32_t expression;
    uint64_t expanded;
};

/* ---- reading ---- */

static enum result refuse(size_t offset, const char *what) {
    return fail(ERROR_INPUT, "offset %zu: %s", offset, what);
}

static bool ended(const struct parser *parser) {
    return parser->at == parser->bytes;
}

static char next_byte(const struct parser *parser) {
    return ended(parser) ? '\0' : parser->pattern[parser->at];
}

static bool next_is(const struct parser *parser, const char *text) {
    size_t length = strlen(text);
    return parser->bytes - parser->at >= length && !memcmp(parser->pattern + parser->at, text, length);
}

static bool take(struct parser *parser, const char *text) {
    if (!next_is(parser, text))
        return false;
    parser->at += strlen(text);
    return true;
}

static enum result read_character(struct parser *parser, uint32_t *character) {
    unsigned length = utf8_decode(parser->pattern + parser->at, parser->bytes - parser->at, character);
    if (!length)
        return refuse(parser->at, "the pattern is not UTF-8");
    parser->at += length;
    return OK;
}

static bool read_hex(struct parser *parser, int digits, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < digits; i++) {
        int digit = hex_value(next_byte(parser));
        if (digit < 0)
            return false;
        *value = *value << 4 | (uint32_t)digit;
        parser->at++;
    }
    return true;
}

/* ---- sets of characters ---- */

struct set {
    struct code_range ranges[CLASS_RANGES];
    size_t count;
};

static bool set_add(struct set *set, uint32_t first, uint32_t last) {
    if (set->count == CLASS_RANGES)
        return false;
    set->ranges[set->count++] = (struct code_range){first, last};
    return true;
}

/* Sorts the ranges and joins those that touch. */
static void set_normalize(struct set *set) {
    for (size_t i = 1; i < set->count; i++)
        for (size_t k = i; k > 0 && set->ranges[k - 1].first > set->ranges[k].first; k--) {
            struct code_range swapped = set->ranges[k];
            set->ranges[k] = set->ranges[k - 1];
            set->ranges[k - 1] = swapped;
        }
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        struct code_range *last = kept ? &set->ranges[kept - 1] : NULL;
        if (last && set->ranges[i].first <= last->last + 1)
            last->last = set->ranges[i].last > last->last ? set->ranges[i].last : last->last;
        else
            set->ranges[kept++] = set->ranges[i];
    }
    set->count = kept;
}

static bool set_negate(struct set *set) {
    set_normalize(set);
    struct set other = {.count = 0};
    uint32_t from = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (set->ranges[i].first > from && !set_add(&other, from, set->ranges[i].first - 1))
            return false;
        from = set->ranges[i].last + 1;
    }
    if (from <= LAST_CODE_POINT && !set_add(&other, from, LAST_CODE_POINT))
        return false;
    *set = other;
    return true;
}

static const struct code_range digits[] = {{'0', '9'}};
static const struct code_range word_characters[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
/* ECMA-262, WhiteSpace and LineTerminator. */
static const struct code_range blanks[] = {{0x09, 0x0D}, {0x20, 0x20}, {0xA0, 0xA0}, {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
    {0xFEFF, 0xFEFF}};

/* The set of \d \w \s \D \W \S; false for another letter. */
static bool shorthand(char letter, struct set *set) {
    static const struct {
        char letter, negated;
        const struct code_range *ranges;
        size_t count;
    } sets[] = {{'d', 'D', digits, sizeof digits / sizeof *digits},
        {'w', 'W', word_characters, sizeof word_characters / sizeof *word_characters},
        {'s', 'S', blanks, sizeof blanks / sizeof *blanks}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (letter != sets[i].letter && letter != sets[i].negated)
            continue;
        memcpy(set->ranges, sets[i].ranges, sets[i].count * sizeof *set->ranges);
        set->count = sets[i].count;
        if (letter == sets[i].negated)
            (void)set_negate(set); /* few ranges: they always fit */
        return true;
    }
    return false;
}

/* ---- escapes ---- */

static enum result read_unicode_escape(struct parser *parser, size_t start, uint32_t *character) {
    if (take(parser, "{")) {
        uint32_t value = 0;
        int read = 0;
        for (int digit; (digit = hex_value(next_byte(parser))) >= 0 && read < 7; read++, parser->at++)
            value = value << 4 | (uint32_t)digit;
        if (!read || !take(parser, "}") || value > LAST_CODE_POINT)
            return refuse(start, "\\u{H...} wants a hexadecimal number of at most 10FFFF and a '}'");
        *character = value;
    } else if (!read_hex(parser, 4, character))
        return refuse(start, "\\u wants four hexadecimal digits");
    if (*character >= 0xD800 && *character <= 0xDBFF && take(parser, "\\u")) {
        uint32_t low = 0;
        if (read_hex(parser, 4, &low) && low >= 0xDC00 && low <= 0xDFFF) {
            *character = 0x10000 + ((*character - 0xD800) << 10) + (low - 0xDC00);
            return OK;
        }
    }
    if (*character >= 0xD800 && *character <= 0xDFFF)
        return refuse(start, "half of a surrogate pair is no character");
    return OK;
}

static enum result refuse_escape(size_t start, char letter) {
    static const struct {
        const char *letters, *what;
    } known[] = {
        {"123456789", "back references are not supported"},
        {"k", "named back references are not supported"},
        {"bB", "word boundaries (\\b, \\B) are not supported"},
        {"AZzG", "anchors by escapes are not supported; use ^ and $ at the ends"},
        {"K", "\\K is not supported"},
        {"RX", "\\R and \\X are not supported"},
        {"QE", "quoting by \\Q and \\E is not supported"},
        {"pP", "Unicode properties (\\p) are not supported; write the ranges of characters"},
        {"c", "control escapes (\\c) are not supported; use \\xHH"},
        {"N", "named characters (\\N) are not supported; use \\uHHHH"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strchr(known[i].letters, letter))
            return refuse(start, known[i].what);
    return fail(ERROR_INPUT, "offset %zu: the escape \\%c is not known", start, letter);
}

/* Reads an escape, whose backslash is next: a set (`is_set`), or one character. */
static enum result read_escape(struct parser *parser, struct set *set, bool *is_set, uint32_t *character) {
    size_t start = parser->at++;
    *is_set = false;
    if (ended(parser))
        return refuse(start, "a backslash at the end of the pattern");
    char letter = parser->pattern[parser->at];
    if ((*is_set = shorthand(letter, set))) {
        parser->at++;
        return OK;
    }
    static const char names[] = "tnrfv0", values[] = "\t\n\r\f\v";
    const char *name = letter ? strchr(names, letter) : NULL;
    bool alphanumeric = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                        (letter >= 'A' && letter <= 'Z');
    if (name) {
        parser->at++;
        *character = (unsigned char)values[name - names]; /* \0: the NUL that ends `values` */
        if (letter == '0' && next_byte(parser) >= '0' && next_byte(parser) <= '9')
            return refuse(start, "octal escapes are not supported; use \\xHH");
        return OK;
    }
    if (letter == 'x') {
        parser->at++;
        return read_hex(parser, 2, character) ? OK : refuse(start, "\\x wants two hexadecimal digits");
    }
    if (letter == 'u') {
        parser->at++;
        return read_unicode_escape(parser, start, character);
    }
    if (alphanumeric)
        return refuse_escape(start, letter);
    return read_character(parser, character);
}

/* ---- classes ---- */

static enum result refuse_set_operation(const struct parser *parser) {
    if (next_is(parser, "&&") || next_is(parser, "--"))
        return refuse(parser->at, "set operations in classes (&&, --) are not supported");
    if (next_is(parser, "[:") || next_is(parser, "[.") || next_is(parser, "[="))
        return refuse(parser->at, "POSIX classes are not supported");
    return OK;
}

/* One end of a range, or a whole set. */
static enum result read_class_item(
    struct parser *parser, struct set *set, bool *is_set, uint32_t *character) {
    *is_set = false;
    if (next_is(parser, "\\b"))
        return refuse(parser->at, "\\b in a class is not supported; use \\x08");
    if (next_byte(parser) == '\\')
        return read_escape(parser, set, is_set, character);
    return read_character(parser, character);
}

static bool set_join(struct set *set, const struct set *other) {
    for (size_t i = 0; i < other->count; i++)
        if (!set_add(set, other->ranges[i].first, other->ranges[i].last))
            return false;
    return true;
}

static enum result read_class_member(struct parser *parser, struct set *set) {
    struct set shorthand_set;
    bool is_set = false;
    uint32_t first = 0, last = 0;
    size_t start = parser->at;
    TRY(refuse_set_operation(parser));
    TRY(read_class_item(parser, &shorthand_set, &is_set, &first));
    bool fits = true;
    if (is_set)
        fits = set_join(set, &shorthand_set);
    else if (next_byte(parser) == '-' && parser->at + 1 < parser->bytes &&
             parser->pattern[parser->at + 1] != ']') {
        parser->at++;
        TRY(read_class_item(parser, &shorthand_set, &is_set, &last));
        if (is_set) /* "[+-\d]": the '-' is itself */
            fits = set_add(set, first, first) && set_add(set, '-', '-') && set_join(set, &shorthand_set);
        else if (last < first)
            return refuse(start, "a range of characters in reverse order");
        else
            fits = set_add(set, first, last);
    } else
        fits = set_add(set, first, first);
    return fits ? OK : refuse(start, "a class of too many ranges");
}

static enum result read_class(struct parser *parser, struct piece *piece) {
    size_t start = parser->at++;
    struct set set = {.count = 0};
    bool negated = take(parser, "^");
    if (next_byte(parser) == ']')
        return refuse(start, "an empty class; write \\] for the bracket itself");
    while (!ended(parser) && next_byte(parser) != ']')
        TRY(read_class_member(parser, &set));
    if (!take(parser, "]"))
        return refuse(start, "a class without its ']'");
    if (negated && !set_negate(&set))
        return refuse(start, "a class of too many ranges");
    set_normalize(&set);
    piece->expression = json_text_character(parser->expressions, set.ranges, set.count, parser->json);
    piece->expanded = 1;
    return OK;
}

/* ---- groups and atoms ---- */

static enum result read_choice(struct parser *parser, struct piece *piece);

static bool is_name_byte(char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static enum result read_group_name(struct parser *parser, size_t start) {
    size_t first = parser->at;
    while (is_name_byte(next_byte(parser)))
        parser->at++;
    if (parser->at == first || (parser->pattern[first] >= '0' && parser->pattern[first] <= '9') ||
        !take(parser, ">"))
        return refuse(start, "a group's name wants letters, digits or '_' and a '>'");
    return OK;
}

/* What follows "(?". */
static enum result read_group_kind(struct parser *parser, size_t start) {
    static const struct {
        const char *text, *what;
    } refused[] = {
        {"=", "lookahead is not supported"},
        {"!", "negative lookahead is not supported"},
        {"<=", "lookbehind is not supported"},
        {"<!", "negative lookbehind is not supported"},
        {">", "atomic groups are not supported"},
        {"P=", "named back references are not supported"},
        {"P>", "recursion is not supported"},
        {"R", "recursion is not supported"},
        {"&", "recursion is not supported"},
        {"(", "conditional groups are not supported"},
        {"#", "comments are not supported"},
        {"|", "branch reset groups are not supported"},
    };
    if (take(parser, ":"))
        return OK;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (next_is(parser, refused[i].text))
            return refuse(start, refused[i].what);
    if (take(parser, "<") || take(parser, "P<"))
        return read_group_name(parser, start);
    return refuse(start, "flags in groups (such as (?i) or (?m)) are not supported");
}

static enum result read_group(struct parser *parser, struct piece *piece) {
    size_t start = parser->at++;
    if (++parser->depth > DEPTH_LIMIT)
        return refuse(start, "groups are nested too deep (200 at most)");
    if (take(parser, "?"))
        TRY(read_group_kind(parser, start));
    else if (next_byte(parser) == '*')
        return refuse(start, "verbs are not supported");
    TRY(read_choice(parser, piece));
    if (!take(parser, ")"))
        return refuse(start, "a group without its ')'");
    parser->depth--;
    return OK;
}

static void characters(struct parser *parser, const struct set *set, struct piece *piece) {
    piece->expression = json_text_character(parser->expressions, set->ranges, set->count, parser->json);
    piece->expanded = 1;
}

static enum result read_atom(struct parser *parser, struct piece *piece) {
    struct set set = {.count = 0};
    bool is_set = false;
    uint32_t character = 0;
    switch (next_byte(parser)) {
    case '(':
        return read_group(parser, piece);
    case '[':
        return read_class(parser, piece);
    case '*':
    case '+':
    case '?':
        return refuse(parser->at, "nothing to repeat");
    case '{':
        return refuse(parser->at, "a '{' that repeats nothing; write \\{ for the brace itself");
    case '^':
    case '$':
        return refuse(
            parser->at, "anchors are supported at the ends of the pattern and of its branches only");
    case '.':
        parser->at++;
        (void)set_add(&set, '\n', '\n');
        (void)set_negate(&set);
        break;
    case '\\':
        TRY(read_escape(parser, &set, &is_set, &character));
        if (!is_set)
            (void)set_add(&set, character, character);
        break;
    default:
        TRY(read_character(parser, &character));
        (void)set_add(&set, character, character);
    }
    characters(parser, &set, piece);
    return OK;
}

/* ---- repetition ---- */

static bool read_count(struct parser *parser, int64_t *count) {
    size_t start = parser->at;
    *count = 0;
    for (char c; (c = next_byte(parser)) >= '0' && c <= '9'; parser->at++)
        *count = *count > COUNT_LIMIT ? *count : *count * 10 + (c - '0');
    return parser->at > start;
}

/* Whether a quantifier is next; stores its counts (most: -1 without end). */
static enum result read_quantifier(struct parser *parser, bool *is, int64_t *least, int64_t *most) {
    size_t start = parser->at;
    *is = true;
    *least = 0;
    *most = -1;
    if (take(parser, "*"))
        return OK;
    if (take(parser, "+")) {
        *least = 1;
        return OK;
    }
    if (take(parser, "?")) {
        *most = 1;
        return OK;
    }
    *is = take(parser, "{");
    if (!*is)
        return OK;
    if (!read_count(parser, least))
        return refuse(start, "a '{' without a count; write \\{ for the brace itself");
    *most = *least;
    if (take(parser, ",") && !read_count(parser, most))
        *most = -1;
    if (!take(parser, "}"))
        return refuse(start, "a count without its '}'");
    if (*most >= 0 && *most < *least)
        return refuse(start, "counts in reverse order");
    if (*least > COUNT_LIMIT || *most > COUNT_LIMIT)
        return refuse(start, "a count above 100000");
    return OK;
}

static enum result read_repeated(struct parser *parser, struct piece *piece) {
    size_t start = parser->at;
    TRY(read_atom(parser, piece));
    bool is = false;
    int64_t least = 0, most = 0;
    TRY(read_quantifier(parser, &is, &least, &most));
    if (!is)
        return OK;
    (void)take(parser, "?"); /* lazy */
    if (next_byte(parser) == '+')
        return refuse(parser->at, "possessive repetition is not supported");
    if (next_byte(parser) == '*' || next_byte(parser) == '?' || next_byte(parser) == '{')
        return refuse(parser->at, "a repetition of a repetition; put the first in a group");
    uint64_t times = (uint64_t)(most > least ? most : least);
    piece->expanded *= times ? times : 1;
    if (piece->expanded > REGEX_EXPANDED_LIMIT)
        return refuse(start, "a repetition that stands for more than 100000 characters");
    piece->expression =
        expression_repeat(parser->expressions, piece->expression, (int32_t)least, (int32_t)most);
    return OK;
}

/* ---- sequences, choices, anchors ---- */

static enum result add_part(struct parser *parser, uint32_t expression) {
    if (parser->part_count == parser->part_capacity) {
        size_t capacity = parser->part_capacity ? parser->part_capacity * 2 : 64;
        uint32_t *parts = realloc(parser->parts, capacity * sizeof *parts);
        if (!parts)
            return fail(ERROR_MEMORY, "no memory for a pattern");
        parser->parts = parts;
        parser->part_capacity = capacity;
    }
    parser->parts[parser->part_count++] = expression;
    return OK;
}

/* The parts from `start` on one behind the other; from the last on, so that each is joined once. */
static uint32_t take_sequence(struct parser *parser, size_t start) {
    uint32_t result = expression_empty(parser->expressions);
    while (parser->part_count > start)
        result = expression_concatenate(parser->expressions, parser->parts[--parser->part_count], result);
    return result;
}

/* Any of the parts from `start` on. */
static uint32_t take_choice(struct parser *parser, size_t start) {
    size_t count = parser->part_count - start;
    parser->part_count = start;
    return count == 1 ? parser->parts[start]
                      : expression_either(parser->expressions, parser->parts + start, count);
}

static bool at_branch_end(const struct parser *parser) {
    return ended(parser) || next_byte(parser) == '|' || next_byte(parser) == ')';
}

static enum result read_parts(struct parser *parser, struct piece *piece) {
    piece->expanded = 0;
    while (!at_branch_end(parser)) {
        if (parser->depth == 0 && next_byte(parser) == '$') {
            parser->at++;
            if (!at_branch_end(parser))
                return refuse(parser->at - 1, "anchors are supported at the ends of the pattern and of its "
                                              "branches only");
            parser->at--;
            return OK;
        }
        struct piece next;
        size_t start = parser->at;
        TRY(read_repeated(parser, &next));
        TRY(add_part(parser, next.expression));
        piece->expanded += next.expanded;
        if (piece->expanded > REGEX_EXPANDED_LIMIT)
            return refuse(start, "a pattern that stands for more than 100000 characters");
    }
    return OK;
}

static enum result read_sequence(struct parser *parser, struct piece *piece) {
    size_t start = parser->part_count;
    TRY(read_parts(parser, piece));
    piece->expression = take_sequence(parser, start);
    return OK;
}

/* Within a group. */
static enum result read_choice(struct parser *parser, struct piece *piece) {
    size_t start = parser->part_count;
    piece->expanded = 0;
    do {
        struct piece branch;
        TRY(read_sequence(parser, &branch));
        TRY(add_part(parser, branch.expression));
        piece->expanded += branch.expanded;
    } while (take(parser, "|"));
    piece->expression = take_choice(parser, start);
    return OK;
}

/* A top-level branch, whose missing anchors let anything stand around what it matches. */
static enum result read_branch(
    struct parser *parser, enum regex_reach reach, uint32_t anything, struct piece *piece) {
    struct expressions *expressions = parser->expressions;
    bool from_start = take(parser, "^");
    TRY(read_sequence(parser, piece));
    bool to_end = take(parser, "$");
    if (reach == REGEX_SEARCH && !from_start)
        piece->expression = expression_concatenate(expressions, anything, piece->expression);
    if (reach == REGEX_SEARCH && !to_end)
        piece->expression = expression_concatenate(expressions, piece->expression, anything);
    return OK;
}

static enum result read_pattern(struct parser *parser, enum regex_reach reach, uint32_t *expression) {
    uint32_t anything = expression_repeat(
        parser->expressions, json_text_any_character(parser->expressions, parser->json), 0, -1);
    uint64_t expanded = 0;
    do {
        struct piece branch;
        size_t start = parser->at;
        TRY(read_branch(parser, reach, anything, &branch));
        TRY(add_part(parser, branch.expression));
        expanded += branch.expanded;
        if (expanded > REGEX_EXPANDED_LIMIT)
            return refuse(start, "a pattern that stands for more than 100000 characters");
    } while (take(parser, "|"));
    if (!ended(parser))
        return refuse(parser->at, "a ')' without its '('");
    *expression = take_choice(parser, 0);
    return OK;
}

enum result regex_compile(struct expressions *expressions, const char *pattern, size_t bytes,
    enum regex_reach reach, bool json, uint32_t *expression) {
    struct parser parser = {.expressions = expressions, .pattern = pattern, .bytes = bytes, .json = json};
    *expression = expression_nothing(expressions);
    enum result status = read_pattern(&parser, reach, expression);
    free(parser.parts);
    return status;
}

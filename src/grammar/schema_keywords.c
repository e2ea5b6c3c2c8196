#include "grammar/schema_keywords.h"

#include "grammar/expression.h"
#include "grammar/formats.h"
#include "grammar/numbers.h"
#include "grammar/regex.h"

#include <stdlib.h> /* strtol */
#include <string.h> /* strcmp, strlen */

/* ---- shapes of values ---- */

static bool is_schema(const struct json *value) {
    return value->kind == JSON_OBJECT || value->kind == JSON_TRUE || value->kind == JSON_FALSE;
}

static enum result wants(const char *keyword, const char *what) {
    return fail(ERROR_INPUT, "'%s' must be %s", keyword, what);
}

static enum result check_schema(const struct json *value, const char *keyword) {
    return is_schema(value) ? OK : wants(keyword, "a schema: an object, true or false");
}

static enum result check_items(const struct json *value, const char *keyword) {
    if (value->kind == JSON_ARRAY)
        return fail(ERROR_INPUT, "'%s' as a list is of old drafts; use 'prefixItems'", keyword);
    return check_schema(value, keyword);
}

static enum result check_schema_list(const struct json *value, const char *keyword) {
    if (value->kind != JSON_ARRAY || !value->count)
        return wants(keyword, "a list of one schema or more");
    for (const struct json *item = value->first; item; item = item->next)
        if (!is_schema(item))
            return wants(keyword, "a list of schemas: objects, true or false");
    return OK;
}

static enum result check_schema_map(const struct json *value, const char *keyword) {
    if (value->kind != JSON_OBJECT)
        return wants(keyword, "an object of schemas");
    for (const struct json *item = value->first; item; item = item->next)
        if (!is_schema(item))
            return fail(ERROR_INPUT, "'%s': \"%.100s\" must be a schema: an object, true or false", keyword,
                item->key);
    return OK;
}

static enum result check_pattern_text(const char *text, size_t bytes, const char *keyword) {
    struct expressions *expressions = NULL;
    uint32_t expression = EXPRESSION_NOTHING;
    TRY(expressions_create(&expressions));
    enum result status = regex_compile(expressions, text, bytes, REGEX_SEARCH, true, &expression);
    if (status == OK)
        status = expressions_check(expressions);
    expressions_free(expressions);
    return status == OK ? OK : fail_context(status, "'%s': pattern \"%.100s\"", keyword, text);
}

static enum result check_pattern_map(const struct json *value, const char *keyword) {
    TRY(check_schema_map(value, keyword));
    for (const struct json *item = value->first; item; item = item->next)
        TRY(check_pattern_text(item->key, item->key_bytes, keyword));
    return OK;
}

static enum result check_pattern(const struct json *value, const char *keyword) {
    if (value->kind != JSON_STRING)
        return wants(keyword, "a string");
    return check_pattern_text(value->text, value->bytes, keyword);
}

static enum result check_text(const struct json *value, const char *keyword) {
    return value->kind == JSON_STRING ? OK : wants(keyword, "a string");
}

static enum result check_anything(const struct json *value, const char *keyword) {
    (void)value;
    (void)keyword;
    return OK;
}

static enum result check_list(const struct json *value, const char *keyword) {
    return value->kind == JSON_ARRAY && value->count ? OK : wants(keyword, "a list of one value or more");
}

static enum result check_names(const struct json *value, const char *keyword) {
    if (value->kind != JSON_ARRAY)
        return wants(keyword, "a list of strings");
    for (const struct json *item = value->first; item; item = item->next)
        if (item->kind != JSON_STRING)
            return wants(keyword, "a list of strings");
    return OK;
}

static bool read_number(const struct json *value, struct decimal *decimal) {
    return value->kind == JSON_NUMBER && decimal_read(decimal, value->text, value->bytes);
}

static enum result check_number(const struct json *value, const char *keyword) {
    struct decimal decimal;
    if (value->kind == JSON_TRUE || value->kind == JSON_FALSE)
        return fail(ERROR_INPUT, "'%s' as true or false is of draft 4; give the bound itself", keyword);
    if (value->kind != JSON_NUMBER)
        return wants(keyword, "a number");
    if (!read_number(value, &decimal))
        return fail(ERROR_INPUT, "'%s' has more than %d digits", keyword, NUMBERS_DIGITS_LIMIT);
    return OK;
}

static enum result check_divisor(const struct json *value, const char *keyword) {
    struct decimal decimal;
    TRY(check_number(value, keyword));
    if (!read_number(value, &decimal) || decimal.negative || decimal_is_zero(&decimal))
        return wants(keyword, "a number above 0");
    return OK;
}

static enum result check_count(const struct json *value, const char *keyword) {
    struct decimal decimal;
    if (!read_number(value, &decimal) || decimal.negative || !decimal_is_integer(&decimal))
        return wants(keyword, "a whole number, 0 or more");
    if (decimal.count > 7 || strtol(decimal.digits, NULL, 10) > COUNTS_LIMIT)
        return fail(ERROR_INPUT, "'%s' is above the limit of %d", keyword, COUNTS_LIMIT);
    return OK;
}

/* ---- types ---- */

static const struct {
    const char *name;
    unsigned type;
} type_names[] = {{"null", TYPE_NULL}, {"boolean", TYPE_BOOLEAN}, {"integer", TYPE_INTEGER},
    {"number", TYPE_NUMBER}, {"string", TYPE_STRING}, {"array", TYPE_ARRAY}, {"object", TYPE_OBJECT}};

static unsigned type_of_name(const struct json *name) {
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++)
        if (json_is_text(name, type_names[i].name))
            return type_names[i].type;
    return 0;
}

static enum result check_type(const struct json *value, const char *keyword) {
    static const char what[] = "one or several of null, boolean, integer, number, string, array, object";
    if (value->kind == JSON_ARRAY && value->count) {
        for (const struct json *item = value->first; item; item = item->next)
            if (!type_of_name(item))
                return wants(keyword, what);
        return OK;
    }
    return type_of_name(value) ? OK : wants(keyword, what);
}

unsigned schema_types(const struct json *type) {
    unsigned types = 0;
    if (!type)
        return TYPE_NULL | TYPE_BOOLEAN | TYPE_NUMBER | TYPE_STRING | TYPE_ARRAY | TYPE_OBJECT;
    if (type->kind == JSON_STRING)
        types = type_of_name(type);
    else
        for (const struct json *item = type->first; item; item = item->next)
            types |= type_of_name(item);
    return types & TYPE_NUMBER ? types & ~(unsigned)TYPE_INTEGER : types;
}

int32_t schema_count(const struct json *schema, const char *keyword, int32_t otherwise) {
    const struct json *value = json_member(schema, keyword);
    struct decimal decimal;
    if (!value || !read_number(value, &decimal))
        return otherwise;
    int32_t count = 0;
    for (int i = 0; i < decimal.count; i++)
        count = count * 10 + (decimal.digits[i] - '0');
    return count;
}

/* ---- keywords ---- */

/* May be said as long as it says nothing. */
static enum result check_false(const struct json *value, const char *keyword) {
    return value->kind == JSON_FALSE ? OK : fail(ERROR_INPUT, "'%s' is not supported", keyword);
}

static enum result check_true(const struct json *value, const char *keyword) {
    return value->kind == JSON_TRUE ? OK : fail(ERROR_INPUT, "'%s' is not supported", keyword);
}

static enum result refuse(const struct json *value, const char *keyword) {
    (void)value;
    return fail(ERROR_INPUT, "'%s' is not supported", keyword);
}

static const struct keyword {
    const char *name;
    enum result (*check)(const struct json *value, const char *keyword);
} keywords[] = {
    {"type", check_type},
    {"enum", check_list},
    {"const", check_anything},
    {"properties", check_schema_map},
    {"patternProperties", check_pattern_map},
    {"additionalProperties", check_schema},
    {"required", check_names},
    {"minProperties", check_count},
    {"maxProperties", check_count},
    {"prefixItems", check_schema_list},
    {"items", check_items},
    {"minItems", check_count},
    {"maxItems", check_count},
    {"minLength", check_count},
    {"maxLength", check_count},
    {"pattern", check_pattern},
    {"format", check_text},
    {"minimum", check_number},
    {"maximum", check_number},
    {"exclusiveMinimum", check_number},
    {"exclusiveMaximum", check_number},
    {"multipleOf", check_divisor},
    {"anyOf", check_schema_list},
    {"oneOf", check_schema_list},
    {"allOf", check_schema_list},
    {"$ref", check_text},
    {"$defs", check_schema_map},
    {"definitions", check_schema_map},
    {"uniqueItems", check_false},
    {"nullable", check_false},
    {"unevaluatedProperties", check_true},
    {"unevaluatedItems", check_true},
    {"not", refuse},
    {"if", refuse},
    {"then", refuse},
    {"else", refuse},
    {"dependentRequired", refuse},
    {"dependentSchemas", refuse},
    {"dependencies", refuse},
    {"propertyNames", refuse},
    {"contains", refuse},
    {"minContains", refuse},
    {"maxContains", refuse},
    {"additionalItems", refuse},
    {"$dynamicRef", refuse},
    {"$recursiveRef", refuse},
    {"contentEncoding", refuse},
    {"contentMediaType", refuse},
    {"contentSchema", refuse},
};

enum result schema_check_keywords(const struct json *schema, bool is_root) {
    if (!is_schema(schema))
        return fail(ERROR_INPUT, "a schema must be an object, true or false, not %s", json_kind_name(schema));
    for (const struct json *member = schema->kind == JSON_OBJECT ? schema->first : NULL; member;
         member = member->next)
        for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
            if (!strcmp(member->key, keywords[i].name))
                TRY(keywords[i].check(member, member->key));
    if (!is_root && json_member(schema, "$id") && schema->kind == JSON_OBJECT)
        return fail(ERROR_INPUT, "'$id' within a schema is not supported");
    const struct json *format = json_member(schema, "format");
    unsigned types = schema_types(json_member(schema, "type"));
    if (format && types & TYPE_STRING && !format_pattern(format->text))
        return fail(ERROR_INPUT, "'format': \"%.100s\" is not supported; supported are %s", format->text,
            format_names());
    return OK;
}

/* ---- paths ---- */

static void append_step(struct buffer *path, const struct json *child, size_t index) {
    if (!child->key) {
        buffer_printf(path, "/%zu", index);
        return;
    }
    buffer_append(path, "/", 1);
    for (size_t i = 0; i < child->key_bytes; i++) {
        if (child->key[i] == '~' || child->key[i] == '/')
            buffer_append_text(path, child->key[i] == '~' ? "~0" : "~1");
        else
            buffer_append(path, child->key + i, 1);
    }
}

/* The way from the root to a value, the last step first. */
struct way {
    const struct json *child;
    size_t index;
    const struct way *outer;
};

static void append_way(struct buffer *path, const struct way *way) {
    if (!way)
        return;
    append_way(path, way->outer);
    append_step(path, way->child, way->index);
}

static bool find_path(
    struct buffer *path, const struct json *from, const struct json *value, const struct way *way) {
    if (from == value)
        append_way(path, way);
    if (from == value || (from->kind != JSON_OBJECT && from->kind != JSON_ARRAY))
        return from == value;
    struct way next = {.child = from->first, .outer = way};
    for (; next.child; next.child = next.child->next, next.index++)
        if (find_path(path, next.child, value, &next))
            return true;
    return false;
}

bool schema_path(struct buffer *path, const struct json *root, const struct json *value) {
    return find_path(path, root, value, NULL);
}

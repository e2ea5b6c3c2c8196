#include "recipe/schema_check.h"

#include "recipe/name_index.h"

#include <math.h>   /* floor */
#include <string.h> /* memcmp */

enum shape {
    SHAPE_SCHEMA,       /* a boolean or an object */
    SHAPE_SCHEMAS,      /* an array of at least one schema */
    SHAPE_SCHEMA_MAP,   /* an object of schemas */
    SHAPE_TYPE,         /* a type's name or an array of at least one, all different */
    SHAPE_TEXTS,        /* an array of strings, all different */
    SHAPE_TEXTS_MAP,    /* an object of these */
    SHAPE_DEPENDENCIES, /* an object of schemas and arrays of strings */
    SHAPE_TEXT,
    SHAPE_FLAG,
    SHAPE_NUMBER,
    SHAPE_POSITIVE,
    SHAPE_COUNT, /* an integer of at least 0 */
    SHAPE_ARRAY,
    SHAPE_FLAGS_MAP,
};

static const struct {
    const char *name;
    enum shape shape;
} KEYWORDS[] = {
    {"type", SHAPE_TYPE},
    {"properties", SHAPE_SCHEMA_MAP},
    {"required", SHAPE_TEXTS},
    {"items", SHAPE_SCHEMA},
    {"additionalProperties", SHAPE_SCHEMA},
    {"description", SHAPE_TEXT},
    {"title", SHAPE_TEXT},
    {"enum", SHAPE_ARRAY},
    {"anyOf", SHAPE_SCHEMAS},
    {"oneOf", SHAPE_SCHEMAS},
    {"allOf", SHAPE_SCHEMAS},
    {"not", SHAPE_SCHEMA},
    {"$ref", SHAPE_TEXT},
    {"$defs", SHAPE_SCHEMA_MAP},
    {"definitions", SHAPE_SCHEMA_MAP},
    {"minimum", SHAPE_NUMBER},
    {"maximum", SHAPE_NUMBER},
    {"exclusiveMinimum", SHAPE_NUMBER},
    {"exclusiveMaximum", SHAPE_NUMBER},
    {"multipleOf", SHAPE_POSITIVE},
    {"minLength", SHAPE_COUNT},
    {"maxLength", SHAPE_COUNT},
    {"pattern", SHAPE_TEXT},
    {"format", SHAPE_TEXT},
    {"minItems", SHAPE_COUNT},
    {"maxItems", SHAPE_COUNT},
    {"uniqueItems", SHAPE_FLAG},
    {"prefixItems", SHAPE_SCHEMAS},
    {"contains", SHAPE_SCHEMA},
    {"minContains", SHAPE_COUNT},
    {"maxContains", SHAPE_COUNT},
    {"minProperties", SHAPE_COUNT},
    {"maxProperties", SHAPE_COUNT},
    {"patternProperties", SHAPE_SCHEMA_MAP},
    {"propertyNames", SHAPE_SCHEMA},
    {"if", SHAPE_SCHEMA},
    {"then", SHAPE_SCHEMA},
    {"else", SHAPE_SCHEMA},
    {"dependentSchemas", SHAPE_SCHEMA_MAP},
    {"dependentRequired", SHAPE_TEXTS_MAP},
    {"dependencies", SHAPE_DEPENDENCIES},
    {"unevaluatedItems", SHAPE_SCHEMA},
    {"unevaluatedProperties", SHAPE_SCHEMA},
    {"contentEncoding", SHAPE_TEXT},
    {"contentMediaType", SHAPE_TEXT},
    {"contentSchema", SHAPE_SCHEMA},
    {"deprecated", SHAPE_FLAG},
    {"readOnly", SHAPE_FLAG},
    {"writeOnly", SHAPE_FLAG},
    {"examples", SHAPE_ARRAY},
    {"$id", SHAPE_TEXT},
    {"$schema", SHAPE_TEXT},
    {"$anchor", SHAPE_TEXT},
    {"$dynamicRef", SHAPE_TEXT},
    {"$dynamicAnchor", SHAPE_TEXT},
    {"$recursiveRef", SHAPE_TEXT},
    {"$comment", SHAPE_TEXT},
    {"$vocabulary", SHAPE_FLAGS_MAP},
};

static bool is_flag(const struct json *value) {
    return value->kind == JSON_TRUE || value->kind == JSON_FALSE;
}

static bool check_kind(struct body_reader *reader, const struct place *place, const struct json *value,
    bool right, const char *expected) {
    return right || refuse_value_at(reader, place, expected, value);
}

static bool check_number(
    struct body_reader *reader, const struct place *place, const struct json *value, enum shape shape) {
    double number = 0;
    bool is_number = json_double(value, &number);
    if (shape == SHAPE_NUMBER)
        return check_kind(reader, place, value, is_number, "a number");
    if (shape == SHAPE_POSITIVE)
        return check_kind(reader, place, value, is_number && number > 0, "a number above 0");
    bool is_count = is_number && number >= 0 && floor(number) == number;
    return check_kind(reader, place, value, is_count, "an integer of at least 0");
}

/* Strings that are all different. */
static bool check_texts(struct body_reader *reader, const struct place *place, const struct json *value) {
    size_t index = 0;
    if (value->kind != JSON_ARRAY)
        return refuse_value_at(reader, place, "an array of strings", value);
    struct name_index seen = name_index_create(&reader->conversation->arena, value->count);
    for (const struct json *text = value->first; text; text = text->next, index++) {
        if (text->kind != JSON_STRING)
            return refuse_value_at(reader, ELEMENT_OF(place, index), "a string", text);
        if (name_index_add(&seen, (struct text_piece){text->text, text->bytes}, &seen))
            return refuse_at(reader, CODE_VALUE, place, "%s stands there twice", json_excerpt(text).text);
    }
    return true;
}

static int type_index(const struct json *value) {
    static const char *const types[] = {"array", "boolean", "integer", "null", "number", "object", "string"};
    for (int i = 0; i < (int)(sizeof types / sizeof types[0]); i++) {
        if (json_is_text(value, types[i]))
            return i;
    }
    return -1;
}

static bool check_type(struct body_reader *reader, const struct place *place, const struct json *value) {
    static const char expected[] = "array, boolean, integer, null, number, object or string";
    unsigned seen = 0;
    size_t index = 0;
    if (value->kind != JSON_ARRAY)
        return check_kind(reader, place, value, type_index(value) >= 0, expected);
    if (!value->count)
        return refuse_at(reader, CODE_VALUE, place, "expected at least one type, found an empty array");
    for (const struct json *type = value->first; type; type = type->next, index++) {
        int known = type_index(type);
        if (known < 0)
            return refuse_value_at(reader, ELEMENT_OF(place, index), expected, type);
        if (seen & 1u << known)
            return refuse_at(reader, CODE_VALUE, place, "%s stands there twice", json_excerpt(type).text);
        seen |= 1u << known;
    }
    return true;
}

static bool check_schemas(struct body_reader *reader, const struct place *place, const struct json *value) {
    size_t index = 0;
    if (value->kind != JSON_ARRAY)
        return refuse_value_at(reader, place, "an array of schemas", value);
    if (!value->count)
        return refuse_at(reader, CODE_VALUE, place, "expected at least one schema, found an empty array");
    for (const struct json *schema = value->first; schema; schema = schema->next, index++) {
        if (!check_schema(reader, ELEMENT_OF(place, index), schema))
            return false;
    }
    return true;
}

static bool check_map(
    struct body_reader *reader, const struct place *place, const struct json *value, enum shape shape) {
    if (value->kind != JSON_OBJECT)
        return refuse_value_at(reader, place, "an object", value);
    for (const struct json *member = value->first; member; member = member->next) {
        const struct place *at = MEMBER_OF(place, member->key);
        bool texts = shape == SHAPE_TEXTS_MAP || (shape == SHAPE_DEPENDENCIES && member->kind == JSON_ARRAY);
        if (shape == SHAPE_FLAGS_MAP ? !check_kind(reader, at, member, is_flag(member), "true or false")
            : texts                  ? !check_texts(reader, at, member)
                                     : !check_schema(reader, at, member))
            return false;
    }
    return true;
}

static bool check_keyword(
    struct body_reader *reader, const struct place *place, const struct json *value, enum shape shape) {
    switch (shape) {
    case SHAPE_SCHEMA:
        return check_schema(reader, place, value);
    case SHAPE_SCHEMAS:
        return check_schemas(reader, place, value);
    case SHAPE_TYPE:
        return check_type(reader, place, value);
    case SHAPE_TEXTS:
        return check_texts(reader, place, value);
    case SHAPE_SCHEMA_MAP:
    case SHAPE_TEXTS_MAP:
    case SHAPE_DEPENDENCIES:
    case SHAPE_FLAGS_MAP:
        return check_map(reader, place, value, shape);
    case SHAPE_TEXT:
        return check_kind(reader, place, value, value->kind == JSON_STRING, "a string");
    case SHAPE_FLAG:
        return check_kind(reader, place, value, is_flag(value), "true or false");
    case SHAPE_ARRAY:
        return check_kind(reader, place, value, value->kind == JSON_ARRAY, "an array");
    case SHAPE_NUMBER:
    case SHAPE_POSITIVE:
    case SHAPE_COUNT:
        return check_number(reader, place, value, shape);
    }
    return true;
}

/* The nesting is limited by the JSON reader. */
bool check_schema(struct body_reader *reader, const struct place *place, const struct json *schema) {
    if (is_flag(schema))
        return true;
    if (schema->kind != JSON_OBJECT)
        return refuse_value_at(reader, place, "a JSON Schema: an object or a boolean", schema);
    for (const struct json *member = schema->first; member; member = member->next) {
        for (size_t i = 0; i < sizeof KEYWORDS / sizeof KEYWORDS[0]; i++) {
            if (strlen(KEYWORDS[i].name) != member->key_bytes ||
                memcmp(KEYWORDS[i].name, member->key, member->key_bytes) != 0)
                continue;
            if (!check_keyword(reader, MEMBER_OF(place, member->key), member, KEYWORDS[i].shape))
                return false;
            break;
        }
    }
    return true;
}

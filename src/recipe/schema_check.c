#include "recipe/schema_check.h"

#include "base/hex.h"
#include "recipe/name_index.h"

#include <math.h>   /* floor */
#include <stdio.h>  /* snprintf */
#include <string.h> /* memchr, memcmp, strstr */

enum shape {
    SHAPE_SCHEMA,    /* a boolean or an object */
    SHAPE_ITEMS,     /* a schema; in older drafts also an array of them */
    SHAPE_BOUND,     /* a number; in older drafts also a boolean */
    SHAPE_REFERENCE, /* a string that leads somewhere in the schema */
    SHAPE_ID,
    SHAPE_ANCHOR,
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
    {"items", SHAPE_ITEMS},
    {"additionalProperties", SHAPE_SCHEMA},
    {"description", SHAPE_TEXT},
    {"title", SHAPE_TEXT},
    {"enum", SHAPE_ARRAY},
    {"anyOf", SHAPE_SCHEMAS},
    {"oneOf", SHAPE_SCHEMAS},
    {"allOf", SHAPE_SCHEMAS},
    {"not", SHAPE_SCHEMA},
    {"$ref", SHAPE_REFERENCE},
    {"$defs", SHAPE_SCHEMA_MAP},
    {"definitions", SHAPE_SCHEMA_MAP},
    {"minimum", SHAPE_NUMBER},
    {"maximum", SHAPE_NUMBER},
    {"exclusiveMinimum", SHAPE_BOUND},
    {"exclusiveMaximum", SHAPE_BOUND},
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
    {"$id", SHAPE_ID},
    {"$schema", SHAPE_TEXT},
    {"$anchor", SHAPE_ANCHOR},
    {"$dynamicRef", SHAPE_REFERENCE},
    {"$dynamicAnchor", SHAPE_ANCHOR},
    {"$recursiveRef", SHAPE_TEXT},
    {"$recursiveAnchor", SHAPE_ANCHOR},
    {"$comment", SHAPE_TEXT},
    {"$vocabulary", SHAPE_FLAGS_MAP},
};

enum {
    POINTER_BYTES_MOST = 512,
    STEPS_MOST = 10000000, /* members looked at to resolve references; what is beyond is believed */
};

/* One schema being checked. */
struct check {
    struct body_reader *reader;
    const struct json *root;
    bool old; /* an older draft: "items" may be an array, exclusive bounds may be booleans */
    bool has_names;
    struct name_index names; /* anchors and ids of the whole schema; made when a reference needs it */
    size_t steps;
};

static bool check_value(struct check *check, const struct place *place, const struct json *schema);

static bool is_flag(const struct json *value) {
    return value->kind == JSON_TRUE || value->kind == JSON_FALSE;
}

/* ---- references ---- */

static bool is_id(const struct json *value) {
    const char *hash = value->kind == JSON_STRING ? memchr(value->text, '#', value->bytes) : NULL;
    return value->kind == JSON_STRING && (!hash || hash == value->text + value->bytes - 1);
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_anchor(const struct json *value) {
    if (value->kind != JSON_STRING || !value->bytes || !is_letter(value->text[0]))
        return false;
    for (size_t i = 1; i < value->bytes; i++) {
        char c = value->text[i];
        if (!is_letter(c) && c != '-' && c != '.' && (c < '0' || c > '9'))
            return false;
    }
    return true;
}

/* Anchors are indexed as they are, ids with a '#' behind. */
static void add_names(struct check *check, const struct json *value) {
    for (const struct json *child = value->first; child; child = child->next) {
        struct text_piece text = {child->text, child->bytes};
        if (child->kind == JSON_ARRAY || child->kind == JSON_OBJECT)
            add_names(check, child);
        else if (child->kind != JSON_STRING || !child->key)
            continue;
        else if (!strcmp(child->key, "$anchor") || !strcmp(child->key, "$dynamicAnchor"))
            name_index_add(&check->names, text, check);
        else if (!strcmp(child->key, "$id")) {
            char *id = arena_take(&check->reader->conversation->arena, text.bytes + 2);
            if (text.bytes)
                memcpy(id, text.data, text.bytes);
            size_t bytes = text.bytes && id[text.bytes - 1] == '#' ? text.bytes : text.bytes + 1;
            id[bytes - 1] = '#';
            name_index_add(&check->names, (struct text_piece){id, bytes}, check);
        }
    }
}

static size_t count_values(const struct json *value) {
    size_t count = 1;
    for (const struct json *child = value->first; child; child = child->next)
        count += count_values(child);
    return count;
}

static bool has_name(struct check *check, struct text_piece name) {
    if (!check->has_names) {
        check->names = name_index_create(&check->reader->conversation->arena, count_values(check->root));
        add_names(check, check->root);
        check->has_names = true;
    }
    return name_index_find(&check->names, name) != NULL;
}

/* One step of a JSON pointer, with its escapes undone; *at is left at the next '/' or the end. False when it
 * is too long. */
static bool read_step(const char **at, const char *end, char *step, size_t *bytes) {
    *bytes = 0;
    for (; *at < end && **at != '/'; ++*at) {
        char c = **at;
        if (c == '%' && end - *at > 2 && hex_value((*at)[1]) >= 0 && hex_value((*at)[2]) >= 0) {
            c = (char)(16 * hex_value((*at)[1]) + hex_value((*at)[2]));
            *at += 2;
        }
        if (c == '~' && end - *at > 1 && ((*at)[1] == '0' || (*at)[1] == '1'))
            c = *++*at == '0' ? '~' : '/';
        if (*bytes == POINTER_BYTES_MOST)
            return false;
        step[(*bytes)++] = c;
    }
    return true;
}

static const struct json *find_child(
    struct check *check, const struct json *parent, const char *step, size_t bytes) {
    size_t index = 0;
    char number[24];
    for (const struct json *child = parent->first; child; child = child->next, index++) {
        check->steps++;
        if (parent->kind == JSON_OBJECT && child->key_bytes == bytes && !memcmp(child->key, step, bytes))
            return child;
        if (parent->kind == JSON_ARRAY && bytes == (size_t)snprintf(number, sizeof number, "%zu", index) &&
            !memcmp(number, step, bytes))
            return child;
    }
    return NULL;
}

static bool pointer_exists(struct check *check, const char *at, const char *end) {
    const struct json *value = check->root;
    while (at < end && value && check->steps < STEPS_MOST) {
        char step[POINTER_BYTES_MOST];
        size_t bytes;
        at++; /* the '/' */
        if (!read_step(&at, end, step, &bytes))
            return true;
        value = find_child(check, value, step, bytes);
    }
    return value != NULL;
}

/* A reference must lead somewhere: nothing is fetched. */
static bool check_reference(struct check *check, const struct place *place, const struct json *value) {
    static const char metaschema[] = "https://json-schema.org/draft/2020-12/";
    const char *end = value->text + value->bytes, *hash = memchr(value->text, '#', value->bytes);
    struct text_piece id = {value->text, hash ? (size_t)(hash - value->text) + 1 : value->bytes};
    const char *fragment = hash ? hash + 1 : end;
    bool found;
    if (id.bytes > 1 || (id.bytes == 1 && !hash)) {
        char *known = arena_take(&check->reader->conversation->arena, id.bytes + 2);
        memcpy(known, id.data, id.bytes);
        known[id.bytes - (hash ? 1 : 0)] = '#';
        found = has_name(check, (struct text_piece){known, id.bytes + (hash ? 0 : 1)}) ||
                !strncmp(value->text, metaschema, sizeof metaschema - 1);
    } else if (fragment == end || *fragment == '/')
        found = pointer_exists(check, fragment, end);
    else
        found = has_name(check, (struct text_piece){fragment, (size_t)(end - fragment)});
    return found || refuse_at(check->reader, CODE_VALUE, place, "%s leads nowhere in the schema",
                        json_excerpt(value).text);
}

/* ---- keywords ---- */

static bool check_kind(struct check *check, const struct place *place, const struct json *value, bool right,
    const char *expected) {
    return right || refuse_value_at(check->reader, place, expected, value);
}

static bool check_number(
    struct check *check, const struct place *place, const struct json *value, enum shape shape) {
    double number = 0;
    bool is_number = json_double(value, &number);
    if (shape == SHAPE_NUMBER)
        return check_kind(check, place, value, is_number, "a number");
    if (shape == SHAPE_POSITIVE)
        return check_kind(check, place, value, is_number && number > 0, "a number above 0");
    bool is_count = is_number && number >= 0 && floor(number) == number;
    return check_kind(check, place, value, is_count, "an integer of at least 0");
}

/* Strings that are all different. */
static bool check_texts(struct check *check, const struct place *place, const struct json *value) {
    size_t index = 0;
    if (value->kind != JSON_ARRAY)
        return refuse_value_at(check->reader, place, "an array of strings", value);
    struct name_index seen = name_index_create(&check->reader->conversation->arena, value->count);
    for (const struct json *text = value->first; text; text = text->next, index++) {
        if (text->kind != JSON_STRING)
            return refuse_value_at(check->reader, ELEMENT_OF(place, index), "a string", text);
        if (name_index_add(&seen, (struct text_piece){text->text, text->bytes}, &seen))
            return refuse_at(
                check->reader, CODE_VALUE, place, "%s stands there twice", json_excerpt(text).text);
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

static bool check_type(struct check *check, const struct place *place, const struct json *value) {
    static const char expected[] = "array, boolean, integer, null, number, object or string";
    unsigned seen = 0;
    size_t index = 0;
    if (value->kind != JSON_ARRAY)
        return check_kind(check, place, value, type_index(value) >= 0, expected);
    if (!value->count)
        return refuse_at(
            check->reader, CODE_VALUE, place, "expected at least one type, found an empty array");
    for (const struct json *type = value->first; type; type = type->next, index++) {
        int known = type_index(type);
        if (known < 0)
            return refuse_value_at(check->reader, ELEMENT_OF(place, index), expected, type);
        if (seen & 1u << known)
            return refuse_at(
                check->reader, CODE_VALUE, place, "%s stands there twice", json_excerpt(type).text);
        seen |= 1u << known;
    }
    return true;
}

static bool check_schemas(struct check *check, const struct place *place, const struct json *value) {
    size_t index = 0;
    if (value->kind != JSON_ARRAY)
        return refuse_value_at(check->reader, place, "an array of schemas", value);
    if (!value->count)
        return refuse_at(
            check->reader, CODE_VALUE, place, "expected at least one schema, found an empty array");
    for (const struct json *schema = value->first; schema; schema = schema->next, index++) {
        if (!check_value(check, ELEMENT_OF(place, index), schema))
            return false;
    }
    return true;
}

static bool check_map(
    struct check *check, const struct place *place, const struct json *value, enum shape shape) {
    if (value->kind != JSON_OBJECT)
        return refuse_value_at(check->reader, place, "an object", value);
    for (const struct json *member = value->first; member; member = member->next) {
        const struct place *at = MEMBER_OF(place, member->key);
        bool texts = shape == SHAPE_TEXTS_MAP || (shape == SHAPE_DEPENDENCIES && member->kind == JSON_ARRAY);
        if (shape == SHAPE_FLAGS_MAP ? !check_kind(check, at, member, is_flag(member), "true or false")
            : texts                  ? !check_texts(check, at, member)
                                     : !check_value(check, at, member))
            return false;
    }
    return true;
}

static bool check_keyword(
    struct check *check, const struct place *place, const struct json *value, enum shape shape) {
    switch (shape) {
    case SHAPE_ITEMS:
        if (check->old && value->kind == JSON_ARRAY)
            return !value->count || check_schemas(check, place, value);
        return check_value(check, place, value);
    case SHAPE_BOUND:
        return (check->old && is_flag(value)) || check_number(check, place, value, SHAPE_NUMBER);
    case SHAPE_REFERENCE:
        return check_kind(check, place, value, value->kind == JSON_STRING, "a string") &&
               check_reference(check, place, value);
    case SHAPE_ID:
        return check_kind(check, place, value, is_id(value), "an address without a fragment");
    case SHAPE_ANCHOR:
        return check_kind(check, place, value, is_anchor(value), "a name");
    case SHAPE_SCHEMA:
        return check_value(check, place, value);
    case SHAPE_SCHEMAS:
        return check_schemas(check, place, value);
    case SHAPE_TYPE:
        return check_type(check, place, value);
    case SHAPE_TEXTS:
        return check_texts(check, place, value);
    case SHAPE_SCHEMA_MAP:
    case SHAPE_TEXTS_MAP:
    case SHAPE_DEPENDENCIES:
    case SHAPE_FLAGS_MAP:
        return check_map(check, place, value, shape);
    case SHAPE_TEXT:
        return check_kind(check, place, value, value->kind == JSON_STRING, "a string");
    case SHAPE_FLAG:
        return check_kind(check, place, value, is_flag(value), "true or false");
    case SHAPE_ARRAY:
        return check_kind(check, place, value, value->kind == JSON_ARRAY, "an array");
    case SHAPE_NUMBER:
    case SHAPE_POSITIVE:
    case SHAPE_COUNT:
        return check_number(check, place, value, shape);
    }
    return true;
}

/* The nesting is limited by the JSON reader. */
static bool check_value(struct check *check, const struct place *place, const struct json *schema) {
    if (is_flag(schema))
        return true;
    if (schema->kind != JSON_OBJECT)
        return refuse_value_at(check->reader, place, "a JSON Schema: an object or a boolean", schema);
    for (const struct json *member = schema->first; member; member = member->next) {
        for (size_t i = 0; i < sizeof KEYWORDS / sizeof KEYWORDS[0]; i++) {
            if (strlen(KEYWORDS[i].name) != member->key_bytes ||
                memcmp(KEYWORDS[i].name, member->key, member->key_bytes) != 0)
                continue;
            if (!check_keyword(check, MEMBER_OF(place, member->key), member, KEYWORDS[i].shape))
                return false;
            break;
        }
    }
    return true;
}

bool check_schema(struct body_reader *reader, const struct place *place, const struct json *schema) {
    const struct json *draft = json_member(schema, "$schema");
    struct check check = {.reader = reader, .root = schema};
    check.old = draft && draft->kind == JSON_STRING &&
                (strstr(draft->text, "//json-schema.org/draft-0") || strstr(draft->text, "/2019-09/"));
    return check_value(&check, place, schema);
}

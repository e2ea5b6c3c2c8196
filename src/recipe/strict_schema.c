#include "recipe/strict_schema.h"

#include "recipe/name_index.h"

#include <string.h> /* strlen */

/* An object or array under construction, in the arena. */
struct building {
    struct body_reader *reader;
    struct json *value;
    struct json *last;
};

static struct building start(struct body_reader *reader, enum json_kind kind) {
    struct json *value = arena_take(&reader->conversation->arena, sizeof *value);
    value->kind = kind;
    return (struct building){.reader = reader, .value = value};
}

/* Adds a copy of the value, whose children are shared. */
static void add(struct building *building, const char *key, size_t key_bytes, const struct json *value) {
    struct json *child = arena_take(&building->reader->conversation->arena, sizeof *child);
    if (value)
        *child = *value;
    child->key = key;
    child->key_bytes = key_bytes;
    child->next = NULL;
    if (building->last)
        building->last->next = child;
    else
        building->value->first = child;
    building->last = child;
    building->value->count++;
}

static void add_member(struct building *building, const char *key, const struct json *value) {
    add(building, key, strlen(key), value);
}

typedef bool member_check(const struct json *value);

static bool is_text(const struct json *value) {
    return value->kind == JSON_STRING;
}

static bool is_number(const struct json *value) {
    return value->kind == JSON_NUMBER;
}

static bool is_integer(const struct json *value) {
    int64_t integer;
    return json_int64(value, &integer);
}

static bool is_text_array(const struct json *value) {
    if (value->kind != JSON_ARRAY)
        return false;
    for (const struct json *element = value->first; element; element = element->next) {
        if (element->kind != JSON_STRING)
            return false;
    }
    return true;
}

static bool is_known_format(const struct json *value) {
    static const char *const formats[] = {"email", "hostname", "ipv4", "ipv6", "uuid"};
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (json_is_text(value, formats[i]))
            return true;
    }
    return false;
}

/* Copies an optional member after its check. */
static bool copy_member(struct building *building, const struct place *place, const struct json *schema,
    const char *key, member_check *check, const char *expected) {
    const struct json *value = json_member(schema, key);
    if (is_absent(value))
        return true;
    if (!check(value))
        return refuse_value_at(building->reader, MEMBER_OF(place, key), expected, value);
    add_member(building, key, value);
    return true;
}

static bool copy_description(
    struct building *building, const struct place *place, const struct json *schema) {
    return copy_member(building, place, schema, "description", is_text, "a string");
}

static bool rebuild(struct body_reader *reader, const struct place *place, const struct json *schema,
    bool typed_only, const struct json **rebuilt);

/* ---- kinds of values ---- */

static bool copy_string(struct building *building, const struct place *place, const struct json *schema) {
    return copy_description(building, place, schema) &&
           copy_member(building, place, schema, "pattern", is_text, "a string") &&
           copy_member(
               building, place, schema, "format", is_known_format, "email, hostname, ipv4, ipv6 or uuid") &&
           copy_member(building, place, schema, "enum", is_text_array, "an array of strings");
}

static bool copy_numeric(
    struct building *building, const struct place *place, const struct json *schema, bool integer) {
    static const char *const keys[] = {
        "const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
    if (!copy_description(building, place, schema))
        return false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!copy_member(building, place, schema, keys[i], integer ? is_integer : is_number,
                integer ? "an integer" : "a number"))
            return false;
    }
    return true;
}

static bool rebuild_items(struct building *building, const struct place *place, const struct json *schema) {
    const struct json *items = json_member(schema, "items"), *rebuilt = NULL;
    const struct place *at = MEMBER_OF(place, "items");
    if (!items)
        return refuse_value_at(building->reader, at, "the schema of the elements", items);
    if (!rebuild(building->reader, at, items, false, &rebuilt))
        return false;
    add_member(building, "items", rebuilt);
    return copy_description(building, place, schema);
}

static bool rebuild_properties(
    struct building *building, const struct place *place, const struct json *schema) {
    const struct json *properties = json_member(schema, "properties");
    const struct place *at = MEMBER_OF(place, "properties");
    struct building rebuilt = start(building->reader, JSON_OBJECT);
    if (!is_absent(properties) && properties->kind != JSON_OBJECT)
        return refuse_value_at(building->reader, at, "an object", properties);
    for (const struct json *property = properties ? properties->first : NULL; property;
         property = property->next) {
        const struct json *value = NULL;
        if (!rebuild(building->reader, MEMBER_OF(at, property->key), property, false, &value))
            return false;
        add(&rebuilt, property->key, property->key_bytes, value);
    }
    add_member(building, "properties", rebuilt.value);
    return true;
}

/* `required` lists all properties, whether the schema does or not: what it lists is checked later. */
static bool rebuild_object(struct building *building, const struct place *place, const struct json *schema) {
    const struct json *additional = json_member(schema, "additionalProperties");
    const struct json *required = json_member(schema, "required");
    if (!rebuild_properties(building, place, schema))
        return false;
    if (!is_absent(additional) && additional->kind != JSON_TRUE && additional->kind != JSON_FALSE)
        return refuse_value_at(
            building->reader, MEMBER_OF(place, "additionalProperties"), "false", additional);
    if (!is_absent(required) && !is_text_array(required))
        return refuse_value_at(
            building->reader, MEMBER_OF(place, "required"), "an array of strings", required);
    add_member(building, "additionalProperties", &(struct json){.kind = JSON_FALSE});
    struct building names = start(building->reader, JSON_ARRAY);
    const struct json *properties = json_member(building->value, "properties");
    for (const struct json *property = properties->first; property; property = property->next)
        add(&names, NULL, 0,
            &(struct json){.kind = JSON_STRING, .text = property->key, .bytes = property->key_bytes});
    add_member(building, "required", names.value);
    return copy_description(building, place, schema);
}

static bool rebuild_typed(struct body_reader *reader, const struct place *place, const struct json *schema,
    const struct json **rebuilt) {
    static const char *const types[] = {
        "object", "string", "number", "integer", "boolean", "array", "null", NULL};
    struct building building = start(reader, JSON_OBJECT);
    int type = 0;
    *rebuilt = building.value;
    if (!read_word(reader, place, schema, "type", types,
            "object, string, number, integer, boolean, array or null", &type))
        return false;
    add_member(&building, "type", json_member(schema, "type"));
    switch (type) {
    case 0:
        return rebuild_object(&building, place, schema);
    case 1:
        return copy_string(&building, place, schema);
    case 2:
    case 3:
        return copy_numeric(&building, place, schema, type == 3);
    case 5:
        return rebuild_items(&building, place, schema);
    default:
        return copy_description(&building, place, schema);
    }
}

/* ---- schemas without one type ---- */

static bool rebuild_type_list(struct body_reader *reader, const struct place *place,
    const struct json *schema, const struct json **rebuilt) {
    const struct json *types = json_member(schema, "type");
    struct building building = start(reader, JSON_OBJECT);
    size_t index = 0;
    *rebuilt = building.value;
    for (const struct json *type = types->first; type; type = type->next, index++) {
        if (json_is_text(type, "string") || json_is_text(type, "number") || json_is_text(type, "integer") ||
            json_is_text(type, "boolean") || json_is_text(type, "null"))
            continue;
        const struct place *at = MEMBER_OF(place, "type");
        return refuse_value_at(
            reader, ELEMENT_OF(at, index), "string, number, integer, boolean or null", type);
    }
    add_member(&building, "type", types);
    return copy_description(&building, place, schema);
}

static bool rebuild_any_of(struct body_reader *reader, const struct place *place, const struct json *schema,
    const struct json **rebuilt) {
    const struct json *choices = json_member(schema, "anyOf");
    const struct place *at = MEMBER_OF(place, "anyOf");
    struct building building = start(reader, JSON_OBJECT), list = start(reader, JSON_ARRAY);
    size_t index = 0;
    *rebuilt = building.value;
    if (choices->kind != JSON_ARRAY)
        return refuse_value_at(reader, at, "an array of schemas", choices);
    for (const struct json *choice = choices->first; choice; choice = choice->next, index++) {
        const struct json *value = NULL;
        if (!rebuild(reader, ELEMENT_OF(at, index), choice, true, &value))
            return false;
        add(&list, NULL, 0, value);
    }
    add_member(&building, "anyOf", list.value);
    return copy_description(&building, place, schema);
}

static bool rebuild_reference(struct body_reader *reader, const struct place *place,
    const struct json *schema, const struct json **rebuilt) {
    const struct json *reference = json_member(schema, "$ref");
    struct building building = start(reader, JSON_OBJECT);
    *rebuilt = building.value;
    if (reference->kind != JSON_STRING)
        return refuse_value_at(reader, MEMBER_OF(place, "$ref"), "a string", reference);
    add_member(&building, "$ref", reference);
    return true;
}

/* `typed_only`: a choice of anyOf, which must have one type. The nesting is limited by the JSON reader. */
static bool rebuild(struct body_reader *reader, const struct place *place, const struct json *schema,
    bool typed_only, const struct json **rebuilt) {
    const struct json *type = json_member(schema, "type");
    if (schema->kind == JSON_OBJECT && !type && !typed_only && json_member(schema, "anyOf"))
        return rebuild_any_of(reader, place, schema, rebuilt);
    if (schema->kind == JSON_OBJECT && !type && !typed_only && json_member(schema, "$ref"))
        return rebuild_reference(reader, place, schema, rebuilt);
    if (type && type->kind == JSON_ARRAY && !typed_only)
        return rebuild_type_list(reader, place, schema, rebuilt);
    if (!type)
        return refuse_at(reader, CODE_VALUE, place, "a strict schema needs %s, found %s",
            typed_only ? "one type here" : "type, anyOf or $ref",
            schema->kind == JSON_OBJECT ? "none" : json_excerpt(schema).text);
    return rebuild_typed(reader, place, schema, rebuilt);
}

/* ---- what the values say, once all have the right type ---- */

static bool check_required(struct body_reader *reader, const struct place *place, const struct json *schema) {
    const struct json *properties = json_member(schema, "properties");
    const struct json *required = json_member(schema, "required");
    const struct place *at = MEMBER_OF(place, "required");
    struct arena *arena = &reader->conversation->arena;
    size_t count = is_absent(properties) ? 0 : properties->count;
    if (is_absent(required))
        return true;
    struct name_index known = name_index_create(arena, count);
    struct name_index seen = name_index_create(arena, required->count);
    for (const struct json *property = count ? properties->first : NULL; property; property = property->next)
        name_index_add(&known, (struct text_piece){property->key, property->key_bytes}, &known);
    for (const struct json *name = required->first; name; name = name->next) {
        struct text_piece text = {name->text, name->bytes};
        if (!name_index_find(&known, text))
            return refuse_at(
                reader, CODE_VALUE, at, "%s is no property of the object", json_excerpt(name).text);
        if (name_index_add(&seen, text, &seen))
            return refuse_at(reader, CODE_VALUE, at, "%s stands there twice", json_excerpt(name).text);
    }
    return required->count == count ||
           refuse_at(reader, CODE_VALUE, at,
               "a strict schema requires all properties of an object: expected %zu names, found %zu", count,
               required->count);
}

static bool check_rules(
    struct body_reader *reader, const struct place *place, const struct json *schema, bool may_be_empty) {
    const struct json *properties = json_member(schema, "properties");
    const struct json *additional = json_member(schema, "additionalProperties");
    const struct json *choices = json_member(schema, "anyOf");
    size_t index = 0;
    if (json_is_text(json_member(schema, "type"), "array"))
        return check_rules(reader, MEMBER_OF(place, "items"), json_member(schema, "items"), false);
    for (const struct json *choice = json_member(schema, "type") || !choices ? NULL : choices->first; choice;
         choice = choice->next, index++) {
        const struct place *at = MEMBER_OF(place, "anyOf");
        if (!check_rules(reader, ELEMENT_OF(at, index), choice, false))
            return false;
    }
    if (!json_is_text(json_member(schema, "type"), "object"))
        return true;
    if ((is_absent(properties) || !properties->count) && !may_be_empty)
        return refuse_at(
            reader, CODE_VALUE, MEMBER_OF(place, "properties"), "a strict schema's object needs properties");
    if (additional && additional->kind == JSON_TRUE)
        return refuse_at(reader, CODE_VALUE, MEMBER_OF(place, "additionalProperties"),
            "expected false in a strict schema, found true");
    if (!check_required(reader, place, schema))
        return false;
    const struct place *at = MEMBER_OF(place, "properties");
    for (const struct json *property = properties ? properties->first : NULL; property;
         property = property->next) {
        if (!check_rules(reader, MEMBER_OF(at, property->key), property, false))
            return false;
    }
    return true;
}

bool rebuild_strict_schema(struct body_reader *reader, const struct place *place, const struct json *schema,
    bool for_tool, const struct json **rebuilt) {
    static const struct json object_word = {
        .kind = JSON_STRING, .text = "object", .bytes = 6, .key = "type", .key_bytes = 4};
    static const struct json empty = {.kind = JSON_OBJECT, .count = 1, .first = &object_word};
    if (for_tool && is_absent(schema))
        schema = &empty;
    if (!rebuild(reader, place, schema, false, rebuilt))
        return false;
    if (!json_is_text(json_member(schema, "type"), "object"))
        return refuse_at(reader, CODE_VALUE, MEMBER_OF(place, "type"),
            "expected \"object\" at the top of a strict schema");
    return check_rules(reader, place, schema, for_tool);
}

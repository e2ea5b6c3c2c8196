/* A value must fit a conjunction of schemas ("goal"), such as what a property's name asks for in several
 * members of an allOf. A goal opens into alternatives ("shapes"), each a conjunction without anyOf, oneOf,
 * allOf and $ref; a shape becomes a choice of what each type may look like. Each goal is compiled once, to a
 * rule, so that recursion needs nothing special. */
#include "grammar/schema.h"

#include "base/hex.h"
#include "grammar/formats.h"
#include "grammar/json_text.h"
#include "grammar/numbers.h"
#include "grammar/regex.h"
#include "grammar/schema_keywords.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, realloc, free, qsort */
#include <string.h> /* memcpy, memcmp, strcmp */

enum {
    SHAPES_LIMIT = 4096,
    NESTING_LIMIT = 256,
    PATTERNS_LIMIT = 6,
    GRID_LIMIT = 200000,
    NUMBER_STATES = 20000,
    BOUNDS_LIMIT = 64,
    DISJOINT_DEPTH = 4
};

/* A list of schemas that all hold, in order of appearance. */
struct conjunction {
    const struct json **schemas;
    size_t count, capacity;
};

struct shapes {
    struct conjunction *items;
    size_t count, capacity;
};

struct goal {
    const struct json **schemas; /* sorted */
    size_t count;
    uint32_t rule;
    bool done, possible;
    struct goal *next;
};

struct schema_compiler {
    struct rules *rules;
    struct expressions *expressions;
    const struct json *root;
    const char *base;
    bool strict, compact;
    uint32_t blanks, comma, any_value, any_object;
    uint32_t spellings; /* of strings and keys that are not listed; EXPRESSION_NOTHING: all */
    struct goal *goals;
    const struct json *opening[NESTING_LIMIT]; /* the schemas being opened, for cycles */
    size_t opening_count;
    int depth;
    size_t goal_count, value_count; /* values: of the document */
    const struct json *listed;      /* the enum whose values are being compiled */
    char impossible[512];           /* why the last goal that nothing fits is one */
};

static const struct json *member_of(const struct json *object, const char *key, size_t bytes) {
    if (!object || object->kind != JSON_OBJECT)
        return NULL;
    for (const struct json *member = object->first; member; member = member->next)
        if (member->key_bytes == bytes && !memcmp(member->key, key, bytes))
            return member;
    return NULL;
}

/* ---- messages ---- */

static void append_place(
    const struct schema_compiler *compiler, struct buffer *path, const struct json *schema) {
    buffer_append_text(path, compiler->base);
    if (!schema || !schema_path(path, compiler->root, schema))
        buffer_append(path, "", 0);
}

/* Puts the path of `schema` in front of the message. */
static enum result at_schema(
    const struct schema_compiler *compiler, enum result status, const struct json *schema) {
    struct buffer path = {0};
    append_place(compiler, &path, schema);
    status = fail_context(status, "%s", path.data);
    buffer_free(&path);
    return status;
}

static enum result refuse(
    const struct schema_compiler *compiler, const struct json *schema, const char *what) {
    return at_schema(compiler, fail(ERROR_INPUT, "%s", what), schema);
}

/* Whose place stands for the whole conjunction; NULL when it has none. */
static const struct json *first_schema(const struct conjunction *conjunction) {
    return conjunction->count && conjunction->schemas ? conjunction->schemas[0] : NULL;
}

/* Remembers why nothing fits; the first reason of a conjunction is the best. */
static void nothing_fits(struct schema_compiler *compiler, const struct json *schema, const char *why) {
    struct buffer path = {0};
    append_place(compiler, &path, schema);
    snprintf(compiler->impossible, sizeof compiler->impossible, "%s: no value fits: %s", path.data, why);
    buffer_free(&path);
}

/* Takes account of a step of the compiler's own; what expressions cost they count themselves. */
static enum result spend(const struct schema_compiler *compiler, uint64_t units) {
    expressions_spend(compiler->expressions, units);
    return expressions_check(compiler->expressions);
}

static enum result out_of_memory(void) {
    return fail(ERROR_MEMORY, "no memory for a schema");
}

/* ---- conjunctions and shapes ---- */

static enum result add_schema(struct conjunction *conjunction, const struct json *schema) {
    for (size_t i = 0; i < conjunction->count; i++)
        if (conjunction->schemas[i] == schema)
            return OK;
    if (conjunction->count == conjunction->capacity) {
        size_t capacity = conjunction->capacity ? conjunction->capacity * 2 : 4;
        const struct json **schemas =
            realloc((void *)conjunction->schemas, capacity * sizeof *conjunction->schemas);
        if (!schemas)
            return out_of_memory();
        conjunction->schemas = schemas;
        conjunction->capacity = capacity;
    }
    conjunction->schemas[conjunction->count++] = schema;
    return OK;
}

static enum result join(struct conjunction *to, const struct conjunction *from) {
    for (size_t i = 0; i < from->count; i++)
        TRY(add_schema(to, from->schemas[i]));
    return OK;
}

static void free_conjunction(struct conjunction *conjunction) {
    free((void *)conjunction->schemas);
    *conjunction = (struct conjunction){0};
}

static void free_shapes(struct shapes *shapes) {
    for (size_t i = 0; i < shapes->count; i++)
        free_conjunction(&shapes->items[i]);
    free(shapes->items);
    *shapes = (struct shapes){0};
}

/* Adds a shape, empty for the caller to fill. */
static enum result new_shape(struct shapes *shapes, struct conjunction **shape) {
    if (shapes->count == SHAPES_LIMIT)
        return fail(ERROR_INPUT, "more than %d alternatives of one value", SHAPES_LIMIT);
    if (shapes->count == shapes->capacity) {
        size_t capacity = shapes->capacity ? shapes->capacity * 2 : 4;
        struct conjunction *items = realloc(shapes->items, capacity * sizeof *items);
        if (!items)
            return out_of_memory();
        shapes->items = items;
        shapes->capacity = capacity;
    }
    *shape = &shapes->items[shapes->count++];
    **shape = (struct conjunction){0};
    return OK;
}

/* ---- references ---- */

/* The next step of a JSON pointer, with %XX, ~0 and ~1 read; false when it is malformed. */
static bool read_step(const char **at, const char *end, struct buffer *step) {
    buffer_clear(step);
    for (++*at; *at < end && **at != '/'; ++*at) {
        char c = **at;
        if (c == '%') {
            int high = end - *at < 3 ? -1 : hex_value((*at)[1]), low = high < 0 ? -1 : hex_value((*at)[2]);
            if (high < 0 || low < 0)
                return false;
            c = (char)(high * 16 + low);
            *at += 2;
        }
        buffer_append(step, &c, 1);
    }
    size_t kept = 0;
    for (size_t i = 0; i < step->bytes; i++) {
        char c = step->data[i];
        if (c == '~') {
            if (i + 1 == step->bytes || (step->data[i + 1] != '0' && step->data[i + 1] != '1'))
                return false;
            c = step->data[++i] == '0' ? '~' : '/';
        }
        step->data[kept++] = c;
    }
    step->bytes = kept;
    return true;
}

static const struct json *follow_step(const struct json *value, const struct buffer *step) {
    const char *text = step->data ? step->data : "";
    if (value->kind == JSON_OBJECT)
        return member_of(value, text, step->bytes);
    if (value->kind != JSON_ARRAY || !step->bytes || step->bytes > 6)
        return NULL;
    size_t index = 0;
    for (size_t i = 0; i < step->bytes; i++) {
        if (text[i] < '0' || text[i] > '9')
            return NULL;
        index = index * 10 + (size_t)(text[i] - '0');
    }
    const struct json *item = value->first;
    while (item && index--)
        item = item->next;
    return item;
}

static const struct json *find_target(const struct json *root, const struct json *reference) {
    const char *at = reference->text + 1, *end = reference->text + reference->bytes;
    struct buffer step = {0};
    const struct json *value = root;
    while (value && at < end)
        value = *at == '/' && read_step(&at, end, &step) ? follow_step(value, &step) : NULL;
    buffer_free(&step);
    return value;
}

static enum result resolve(
    const struct schema_compiler *compiler, const struct json *schema, const struct json **target) {
    const struct json *reference = json_member(schema, "$ref");
    if (!reference->bytes || reference->text[0] != '#')
        return at_schema(compiler,
            fail(ERROR_INPUT, "'$ref': \"%.200s\" leads out of the schema; only #... is supported",
                reference->text),
            schema);
    *target = find_target(compiler->root, reference);
    if (!*target)
        return at_schema(
            compiler, fail(ERROR_INPUT, "'$ref': \"%.200s\" leads nowhere", reference->text), schema);
    return OK;
}

/* ---- opening: schemas -> shapes ---- */

static enum result open_schema(
    struct schema_compiler *compiler, const struct json *schema, struct shapes *shapes);
static enum result check_apart(
    struct schema_compiler *compiler, const struct json *schema, const struct shapes *branches, size_t count);

/* Each shape with each alternative of `branches`. */
static enum result multiply(struct shapes *shapes, const struct shapes *branches, size_t branch_count) {
    struct shapes product = {0};
    enum result status = OK;
    for (size_t i = 0; status == OK && i < shapes->count; i++)
        for (size_t b = 0; status == OK && b < branch_count; b++)
            for (size_t k = 0; status == OK && k < branches[b].count; k++) {
                struct conjunction *shape = NULL;
                status = new_shape(&product, &shape);
                if (status == OK)
                    status = join(shape, &shapes->items[i]);
                if (status == OK)
                    status = join(shape, &branches[b].items[k]);
            }
    free_shapes(shapes);
    *shapes = product;
    return status;
}

static enum result open_branches(struct schema_compiler *compiler, const struct json *schema,
    const struct json *list, bool one_only, struct shapes *shapes) {
    struct shapes *branches = calloc(list->count, sizeof *branches);
    if (!branches)
        return out_of_memory();
    enum result status = OK;
    size_t count = 0;
    for (const struct json *branch = list->first; status == OK && branch; branch = branch->next) {
        struct conjunction *whole = NULL;
        status = new_shape(&branches[count], &whole);
        if (status == OK)
            status = open_schema(compiler, branch, &branches[count]);
        count++;
    }
    if (status == OK && one_only)
        status = check_apart(compiler, schema, branches, count);
    if (status == OK)
        status = multiply(shapes, branches, count);
    for (size_t i = 0; i < list->count; i++)
        free_shapes(&branches[i]);
    free(branches);
    return status;
}

static bool is_key(const struct json *member, const char *key) {
    return !strcmp(member->key, key);
}

static enum result open_keyword(struct schema_compiler *compiler, const struct json *schema,
    const struct json *member, struct shapes *shapes) {
    const struct json *target = NULL;
    if (is_key(member, "$ref")) {
        TRY(resolve(compiler, schema, &target));
        return open_schema(compiler, target, shapes);
    }
    if (is_key(member, "allOf")) {
        for (const struct json *item = member->first; item; item = item->next)
            TRY(open_schema(compiler, item, shapes));
        return OK;
    }
    if (is_key(member, "anyOf") || is_key(member, "oneOf"))
        return open_branches(compiler, schema, member, is_key(member, "oneOf"), shapes);
    for (size_t i = 0; i < shapes->count; i++) /* the order of keys is that of appearance */
        TRY(add_schema(&shapes->items[i], schema));
    return OK;
}

static enum result open_members(
    struct schema_compiler *compiler, const struct json *schema, struct shapes *shapes) {
    for (size_t i = 0; i < compiler->opening_count; i++)
        if (compiler->opening[i] == schema)
            return refuse(compiler, schema, "the schema refers to itself without anything in between");
    if (compiler->opening_count == NESTING_LIMIT)
        return refuse(compiler, schema, "nested deeper than 256 schemas");
    compiler->opening[compiler->opening_count++] = schema;
    enum result status = OK;
    for (const struct json *member = schema->first; status == OK && member; member = member->next)
        status = open_keyword(compiler, schema, member, shapes);
    compiler->opening_count--;
    return status;
}

/* Adds `schema` to the conjunction of every shape. */
static enum result open_schema(
    struct schema_compiler *compiler, const struct json *schema, struct shapes *shapes) {
    TRY(spend(compiler, 20));
    enum result status = schema_check_keywords(schema, schema == compiler->root);
    if (status != OK)
        return at_schema(compiler, status, schema);
    if (schema->kind == JSON_FALSE) {
        nothing_fits(compiler, schema, "the schema is false");
        free_shapes(shapes);
        return OK;
    }
    return schema->kind == JSON_TRUE ? OK : open_members(compiler, schema, shapes);
}

/* The shapes of a goal. */
static enum result open_goal(
    struct schema_compiler *compiler, const struct conjunction *goal, struct shapes *shapes) {
    struct conjunction *whole = NULL;
    size_t opening = compiler->opening_count;
    compiler->opening_count = 0; /* what a goal lies in is content in between */
    const struct json *saved[NESTING_LIMIT];
    memcpy((void *)saved, (const void *)compiler->opening, sizeof saved);
    enum result status = new_shape(shapes, &whole);
    for (size_t i = 0; status == OK && i < goal->count; i++)
        status = open_schema(compiler, goal->schemas[i], shapes);
    memcpy((void *)compiler->opening, (const void *)saved, sizeof saved);
    compiler->opening_count = opening;
    return status;
}

/* ---- what a shape asks for ---- */

static unsigned inferred_types(const struct conjunction *shape) {
    static const struct {
        const char *keyword;
        unsigned type;
    } table[] = {{"properties", TYPE_OBJECT}, {"patternProperties", TYPE_OBJECT},
        {"additionalProperties", TYPE_OBJECT}, {"required", TYPE_OBJECT}, {"minProperties", TYPE_OBJECT},
        {"maxProperties", TYPE_OBJECT}, {"items", TYPE_ARRAY}, {"prefixItems", TYPE_ARRAY},
        {"minItems", TYPE_ARRAY}, {"maxItems", TYPE_ARRAY}, {"minLength", TYPE_STRING},
        {"maxLength", TYPE_STRING}, {"pattern", TYPE_STRING}, {"format", TYPE_STRING},
        {"minimum", TYPE_NUMBER}, {"maximum", TYPE_NUMBER}, {"exclusiveMinimum", TYPE_NUMBER},
        {"exclusiveMaximum", TYPE_NUMBER}, {"multipleOf", TYPE_NUMBER}};
    unsigned types = 0;
    for (size_t i = 0; i < shape->count; i++)
        for (size_t k = 0; k < sizeof table / sizeof *table; k++)
            if (json_member(shape->schemas[i], table[k].keyword))
                types |= table[k].type;
    return types;
}

static unsigned shape_types(const struct schema_compiler *compiler, const struct conjunction *shape) {
    unsigned types = schema_types(NULL);
    bool said = false;
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *type = json_member(shape->schemas[i], "type");
        unsigned own = schema_types(type);
        said =
            said || type || json_member(shape->schemas[i], "enum") || json_member(shape->schemas[i], "const");
        if (own & TYPE_NUMBER && types & TYPE_INTEGER)
            own = (own & ~(unsigned)TYPE_NUMBER) | TYPE_INTEGER;
        if (own & TYPE_INTEGER && types & TYPE_NUMBER)
            types = (types & ~(unsigned)TYPE_NUMBER) | TYPE_INTEGER;
        types &= own;
    }
    unsigned inferred = compiler->strict && !said ? inferred_types(shape) : 0;
    return inferred ? types & inferred : types;
}

static int32_t largest(const struct conjunction *shape, const char *keyword) {
    int32_t found = 0;
    for (size_t i = 0; i < shape->count; i++) {
        int32_t own = schema_count(shape->schemas[i], keyword, 0);
        found = own > found ? own : found;
    }
    return found;
}

static int32_t smallest(const struct conjunction *shape, const char *keyword) {
    int32_t found = -1;
    for (size_t i = 0; i < shape->count; i++) {
        int32_t own = schema_count(shape->schemas[i], keyword, -1);
        found = own >= 0 && (found < 0 || own < found) ? own : found;
    }
    return found;
}

/* ---- strings ---- */

static enum result string_expression(
    struct schema_compiler *compiler, const struct conjunction *shape, bool json, uint32_t *expression) {
    struct expressions *e = compiler->expressions;
    uint32_t list[BOUNDS_LIMIT];
    size_t count = 0;
    int32_t least = largest(shape, "minLength"), most = smallest(shape, "maxLength");
    if (most >= 0 && least > most) {
        nothing_fits(compiler, first_schema(shape), "'minLength' is above 'maxLength'");
        *expression = EXPRESSION_NOTHING;
        return OK;
    }
    if (least > 0 || most >= 0)
        list[count++] = expression_repeat(e, json_text_any_character(e, json), least, most);
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *schema = shape->schemas[i], *pattern = json_member(schema, "pattern");
        const struct json *format = json_member(schema, "format");
        const char *known = format ? format_pattern(format->text) : NULL;
        if (count + 2 > BOUNDS_LIMIT)
            return refuse(compiler, schema, "too many patterns for one string");
        if (pattern)
            TRY(regex_compile(e, pattern->text, pattern->bytes, REGEX_SEARCH, json, &list[count++]));
        if (known)
            TRY(regex_compile(e, known, strlen(known), REGEX_WHOLE, json, &list[count++]));
    }
    if (count)
        *expression = expression_both(e, list, count);
    else
        *expression = json ? json_text_free_string(e) : expression_any_utf8(e);
    if (count && expression_is_empty(e, *expression)) {
        nothing_fits(compiler, first_schema(shape), "'pattern', 'format' and lengths contradict each other");
        *expression = EXPRESSION_NOTHING;
    }
    return expressions_check(e);
}

static uint32_t quoted(struct schema_compiler *compiler, uint32_t inner) {
    struct expressions *e = compiler->expressions;
    uint32_t quote = expression_byte(e, '"'), both[] = {inner, compiler->spellings};
    if (compiler->spellings != EXPRESSION_NOTHING)
        inner = expression_both(e, both, 2);
    return expression_concatenate(e, quote, expression_concatenate(e, inner, quote));
}

/* ---- numbers ---- */

struct read_bounds {
    struct number_bounds bounds;
    struct decimal minimum, maximum, divisors[DIVISORS_LIMIT], other;
};

/* Takes a bound when it is tighter. `sign`: 1 for minimum, -1 for maximum. */
static void take_bound(struct read_bounds *read, const struct json *value, bool exclusive, int sign) {
    const struct decimal **kept = sign > 0 ? &read->bounds.minimum : &read->bounds.maximum;
    bool *open = sign > 0 ? &read->bounds.exclusive_minimum : &read->bounds.exclusive_maximum;
    struct decimal *room = sign > 0 ? &read->minimum : &read->maximum;
    if (!value || !decimal_read(&read->other, value->text, value->bytes))
        return;
    int order = *kept ? sign * decimal_compare(&read->other, *kept) : 1;
    if (order < 0 || (order == 0 && !exclusive))
        return;
    *room = read->other;
    *kept = room;
    *open = exclusive;
}

static enum result numbers_expression(
    struct schema_compiler *compiler, const struct conjunction *shape, bool integer, uint32_t *expression) {
    struct read_bounds *read = calloc(1, sizeof *read);
    if (!read)
        return out_of_memory();
    enum result status = OK;
    read->bounds.integer = integer;
    for (size_t i = 0; status == OK && i < shape->count; i++) {
        const struct json *schema = shape->schemas[i], *divisor = json_member(schema, "multipleOf");
        take_bound(read, json_member(schema, "minimum"), false, 1);
        take_bound(read, json_member(schema, "exclusiveMinimum"), true, 1);
        take_bound(read, json_member(schema, "maximum"), false, -1);
        take_bound(read, json_member(schema, "exclusiveMaximum"), true, -1);
        if (divisor && read->bounds.divisor_count == DIVISORS_LIMIT)
            status = refuse(compiler, schema, "more than 8 'multipleOf' for one number");
        else if (divisor) {
            struct decimal *room = &read->divisors[read->bounds.divisor_count];
            if (decimal_read(room, divisor->text, divisor->bytes))
                read->bounds.divisors[read->bounds.divisor_count++] = room;
        }
    }
    if (status == OK && !number_expression(compiler->expressions, &read->bounds, expression))
        status = refuse(compiler, first_schema(shape), "'multipleOf' has too many digits");
    bool divided = read->bounds.divisor_count > 0;
    free(read);
    TRY(status);
    if (divided && !expression_has_states(compiler->expressions, *expression, NUMBER_STATES)) {
        TRY(expressions_check(compiler->expressions));
        return refuse(compiler, first_schema(shape),
            "'multipleOf' with these bounds has too many remainders to follow; a divisor of fewer digits, "
            "zeros at its end aside, has fewer");
    }
    bool empty = expression_is_empty(compiler->expressions, *expression);
    TRY(expressions_check(compiler->expressions));
    if (empty) {
        nothing_fits(
            compiler, first_schema(shape), "the bounds and 'multipleOf' of numbers contradict each other");
        *expression = EXPRESSION_NOTHING;
    }
    return OK;
}

/* ---- what a key or an element must fit ---- */

static bool key_matches(
    struct schema_compiler *compiler, const struct json *pattern, const char *key, size_t bytes) {
    uint32_t expression = EXPRESSION_NOTHING;
    if (regex_compile(
            compiler->expressions, pattern->key, pattern->key_bytes, REGEX_SEARCH, false, &expression) != OK)
        return false; /* checked before: cannot happen */
    return expression_matches(compiler->expressions, expression, key, bytes);
}

/* Whether keys that nothing declares are closed out though no schema says so. */
static bool closed_by_strictness(const struct schema_compiler *compiler, const struct conjunction *shape) {
    bool declares = false;
    for (size_t i = 0; i < shape->count; i++) {
        if (json_member(shape->schemas[i], "additionalProperties"))
            return false;
        declares = declares || json_member(shape->schemas[i], "properties") ||
                   json_member(shape->schemas[i], "patternProperties");
    }
    return compiler->strict && declares;
}

static const struct json forbidden = {.kind = JSON_FALSE};

/* Which patterns hold for a key: by its text, or (key NULL) those of `chosen`. */
struct key_choice {
    const char *key;
    size_t bytes;
    const struct json **patterns;
    size_t pattern_count;
    unsigned chosen;
};

static bool pattern_holds(
    struct schema_compiler *compiler, const struct key_choice *choice, const struct json *pattern) {
    if (choice->key)
        return key_matches(compiler, pattern, choice->key, choice->bytes);
    for (size_t i = 0; i < choice->pattern_count; i++)
        if (choice->patterns[i] == pattern)
            return choice->chosen >> i & 1;
    return false;
}

static enum result key_goal(struct schema_compiler *compiler, const struct conjunction *shape,
    const struct key_choice *choice, struct conjunction *goal) {
    bool declared = false;
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *schema = shape->schemas[i];
        const struct json *own =
            choice->key ? member_of(json_member(schema, "properties"), choice->key, choice->bytes) : NULL;
        const struct json *patterns = json_member(schema, "patternProperties");
        const struct json *others = json_member(schema, "additionalProperties");
        bool here = own != NULL;
        if (choice->key && json_member(schema, "properties"))
            TRY(spend(compiler, json_member(schema, "properties")->count / 16));
        if (own)
            TRY(add_schema(goal, own));
        for (const struct json *pattern = patterns ? patterns->first : NULL; pattern; pattern = pattern->next)
            if (pattern_holds(compiler, choice, pattern)) {
                here = true;
                TRY(add_schema(goal, pattern));
            }
        declared = declared || here;
        if (!here && others)
            TRY(add_schema(goal, others));
    }
    return !declared && closed_by_strictness(compiler, shape) ? add_schema(goal, &forbidden) : OK;
}

static enum result element_goal(struct schema_compiler *compiler, const struct conjunction *shape,
    size_t index, struct conjunction *goal) {
    bool open = true, tuple = false;
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *prefix = json_member(shape->schemas[i], "prefixItems");
        const struct json *items = json_member(shape->schemas[i], "items");
        const struct json *element = prefix ? prefix->first : NULL;
        for (size_t k = 0; element && k < index; k++)
            element = element->next;
        tuple = tuple || prefix;
        open = open && !element && !items;
        if (element || items)
            TRY(add_schema(goal, element ? element : items));
    }
    return compiler->strict && tuple && open ? add_schema(goal, &forbidden) : OK;
}

/* ---- whether a value fits, for enum and const ---- */

static bool equal_values(const struct json *a, const struct json *b) {
    if (a->kind != b->kind || a->count != b->count)
        return false;
    if (a->kind == JSON_STRING)
        return a->bytes == b->bytes && !memcmp(a->text, b->text, a->bytes);
    if (a->kind == JSON_NUMBER) {
        struct decimal x, y;
        return decimal_read(&x, a->text, a->bytes) && decimal_read(&y, b->text, b->bytes) &&
               decimal_compare(&x, &y) == 0;
    }
    const struct json *other = b->first;
    for (const struct json *item = a->first; item; item = item->next) {
        if (a->kind == JSON_OBJECT)
            other = member_of(b, item->key, item->key_bytes);
        if (!other || !equal_values(item, other))
            return false;
        if (a->kind == JSON_ARRAY)
            other = other->next;
    }
    return true;
}

static bool in_enums(
    const struct schema_compiler *compiler, const struct json *value, const struct conjunction *shape) {
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *list = json_member(shape->schemas[i], "enum");
        const struct json *only = json_member(shape->schemas[i], "const");
        bool found = !list || list == compiler->listed;
        expressions_spend(compiler->expressions, found ? 1 : 1 + list->count / 2);
        for (const struct json *item = list ? list->first : NULL; item && !found; item = item->next)
            found = equal_values(value, item);
        if (!found || (only && !equal_values(value, only)))
            return false;
    }
    return true;
}

static enum result fits_goal(
    struct schema_compiler *compiler, const struct json *value, const struct conjunction *goal, bool *fits);

static enum result array_fits(
    struct schema_compiler *compiler, const struct json *value, const struct conjunction *shape, bool *fits) {
    int32_t most = smallest(shape, "maxItems");
    size_t index = 0;
    *fits = value->count >= (size_t)largest(shape, "minItems") && (most < 0 || value->count <= (size_t)most);
    for (const struct json *item = value->first; item && *fits; item = item->next, index++) {
        struct conjunction goal = {0};
        enum result status = element_goal(compiler, shape, index, &goal);
        if (status == OK)
            status = fits_goal(compiler, item, &goal, fits);
        free_conjunction(&goal);
        TRY(status);
    }
    return OK;
}

static enum result object_fits(
    struct schema_compiler *compiler, const struct json *value, const struct conjunction *shape, bool *fits) {
    int32_t most = smallest(shape, "maxProperties");
    *fits =
        value->count >= (size_t)largest(shape, "minProperties") && (most < 0 || value->count <= (size_t)most);
    for (size_t i = 0; i < shape->count && *fits; i++) {
        const struct json *required = json_member(shape->schemas[i], "required");
        for (const struct json *key = required ? required->first : NULL; key && *fits; key = key->next)
            *fits = member_of(value, key->text, key->bytes) != NULL;
    }
    for (const struct json *item = value->first; item && *fits; item = item->next) {
        struct conjunction goal = {0};
        struct key_choice choice = {.key = item->key, .bytes = item->key_bytes};
        enum result status = key_goal(compiler, shape, &choice, &goal);
        if (status == OK)
            status = fits_goal(compiler, item, &goal, fits);
        free_conjunction(&goal);
        TRY(status);
    }
    return OK;
}

static enum result scalar_fits(struct schema_compiler *compiler, const struct json *value,
    const struct conjunction *shape, bool integer, bool *fits) {
    uint32_t expression = EXPRESSION_NOTHING;
    if (value->kind == JSON_STRING) {
        TRY(string_expression(compiler, shape, false, &expression));
        *fits = expression_matches(compiler->expressions, expression, value->text, value->bytes);
        return expressions_check(compiler->expressions);
    }
    struct decimal decimal;
    struct buffer text = {0};
    TRY(numbers_expression(compiler, shape, integer, &expression));
    *fits = decimal_read(&decimal, value->text, value->bytes);
    if (*fits) {
        decimal_append(&text, &decimal);
        *fits = expression_matches(compiler->expressions, expression, text.data, text.bytes);
    }
    buffer_free(&text);
    return expressions_check(compiler->expressions);
}

static enum result fits_shape(
    struct schema_compiler *compiler, const struct json *value, const struct conjunction *shape, bool *fits) {
    static const unsigned types_of_kinds[] = {[JSON_NULL] = TYPE_NULL,
        [JSON_FALSE] = TYPE_BOOLEAN,
        [JSON_TRUE] = TYPE_BOOLEAN,
        [JSON_NUMBER] = TYPE_NUMBER | TYPE_INTEGER,
        [JSON_STRING] = TYPE_STRING,
        [JSON_ARRAY] = TYPE_ARRAY,
        [JSON_OBJECT] = TYPE_OBJECT};
    unsigned types = shape_types(compiler, shape);
    TRY(spend(compiler, 10));
    *fits = types & types_of_kinds[value->kind] && in_enums(compiler, value, shape);
    if (!*fits)
        return OK;
    if (value->kind == JSON_ARRAY)
        return array_fits(compiler, value, shape, fits);
    if (value->kind == JSON_OBJECT)
        return object_fits(compiler, value, shape, fits);
    if (value->kind == JSON_STRING || value->kind == JSON_NUMBER)
        return scalar_fits(compiler, value, shape, types & TYPE_INTEGER, fits);
    return OK;
}

static enum result fits_goal(
    struct schema_compiler *compiler, const struct json *value, const struct conjunction *goal, bool *fits) {
    struct shapes shapes = {0};
    enum result status = open_goal(compiler, goal, &shapes);
    *fits = false;
    for (size_t i = 0; status == OK && !*fits && i < shapes.count; i++)
        status = fits_shape(compiler, value, &shapes.items[i], fits);
    free_shapes(&shapes);
    return status;
}

/* ---- oneOf: branches that no value fits both of ---- */

static const struct json *enum_of(const struct conjunction *shape, bool *only) {
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *list = json_member(shape->schemas[i], "enum");
        const struct json *value = json_member(shape->schemas[i], "const");
        *only = value != NULL;
        if (value || list)
            return value ? value : list;
    }
    return NULL;
}

static enum result goals_apart(struct schema_compiler *compiler, const struct conjunction *a,
    const struct conjunction *b, int depth, bool *apart);

static enum result key_apart(struct schema_compiler *compiler, const struct conjunction *a,
    const struct conjunction *b, const struct json *name, int depth, bool *apart) {
    struct key_choice choice = {.key = name->text, .bytes = name->bytes};
    struct conjunction x = {0}, y = {0};
    enum result status = key_goal(compiler, a, &choice, &x);
    if (status == OK)
        status = key_goal(compiler, b, &choice, &y);
    if (status == OK)
        status = goals_apart(compiler, &x, &y, depth + 1, apart);
    free_conjunction(&x);
    free_conjunction(&y);
    return status;
}

/* Objects are apart when a key that one of them requires cannot have a value that fits both. */
static enum result objects_apart(struct schema_compiler *compiler, const struct conjunction *a,
    const struct conjunction *b, int depth, bool *apart) {
    *apart = false;
    for (int side = 0; side < 2; side++) {
        const struct conjunction *one = side ? b : a;
        for (size_t i = 0; i < one->count; i++) {
            const struct json *required = json_member(one->schemas[i], "required");
            for (const struct json *name = required ? required->first : NULL; name && !*apart;
                 name = name->next)
                TRY(key_apart(compiler, a, b, name, depth, apart));
        }
    }
    return OK;
}

static enum result arrays_apart(struct schema_compiler *compiler, const struct conjunction *a,
    const struct conjunction *b, int depth, bool *apart) {
    int32_t a_least = largest(a, "minItems"), b_least = largest(b, "minItems");
    int32_t a_most = smallest(a, "maxItems"), b_most = smallest(b, "maxItems");
    int32_t sure = a_least > b_least ? a_least : b_least;
    *apart = (a_most >= 0 && a_most < b_least) || (b_most >= 0 && b_most < a_least);
    for (int32_t i = 0; i < sure && i < 16 && !*apart; i++) {
        struct conjunction x = {0}, y = {0};
        enum result status = element_goal(compiler, a, (size_t)i, &x);
        if (status == OK)
            status = element_goal(compiler, b, (size_t)i, &y);
        if (status == OK)
            status = goals_apart(compiler, &x, &y, depth + 1, apart);
        free_conjunction(&x);
        free_conjunction(&y);
        TRY(status);
    }
    return OK;
}

static enum result scalars_apart(struct schema_compiler *compiler, const struct conjunction *a,
    const struct conjunction *b, unsigned type, bool *apart) {
    uint32_t list[2];
    if (type == TYPE_STRING) {
        TRY(string_expression(compiler, a, false, &list[0]));
        TRY(string_expression(compiler, b, false, &list[1]));
    } else {
        unsigned a_types = shape_types(compiler, a), b_types = shape_types(compiler, b);
        TRY(numbers_expression(compiler, a, a_types & TYPE_INTEGER, &list[0]));
        TRY(numbers_expression(compiler, b, b_types & TYPE_INTEGER, &list[1]));
    }
    *apart = expression_is_empty(compiler->expressions, expression_both(compiler->expressions, list, 2));
    return expressions_check(compiler->expressions);
}

static enum result listed_apart(struct schema_compiler *compiler, const struct json *list, bool only,
    const struct conjunction *a, const struct conjunction *b, bool *apart) {
    *apart = true;
    for (const struct json *value = only ? list : list->first; value && *apart;
         value = only ? NULL : value->next) {
        bool in_a = false, in_b = false;
        TRY(fits_shape(compiler, value, a, &in_a));
        TRY(fits_shape(compiler, value, b, &in_b));
        *apart = !(in_a && in_b);
    }
    return OK;
}

static enum result shapes_apart(struct schema_compiler *compiler, const struct conjunction *a,
    const struct conjunction *b, int depth, bool *apart) {
    bool only = false;
    const struct json *list = enum_of(a, &only);
    if (!list)
        list = enum_of(b, &only);
    if (list)
        return listed_apart(compiler, list, only, a, b, apart);
    unsigned a_types = shape_types(compiler, a), b_types = shape_types(compiler, b);
    if ((a_types | b_types) & TYPE_INTEGER) {
        a_types |= a_types & TYPE_NUMBER ? TYPE_INTEGER : 0;
        b_types |= b_types & TYPE_NUMBER ? TYPE_INTEGER : 0;
    }
    unsigned common = a_types & b_types;
    *apart = !(common & (TYPE_NULL | TYPE_BOOLEAN)) && depth < DISJOINT_DEPTH;
    if (*apart && common & TYPE_STRING)
        TRY(scalars_apart(compiler, a, b, TYPE_STRING, apart));
    if (*apart && common & (TYPE_NUMBER | TYPE_INTEGER))
        TRY(scalars_apart(compiler, a, b, TYPE_NUMBER, apart));
    if (*apart && common & TYPE_ARRAY)
        TRY(arrays_apart(compiler, a, b, depth, apart));
    if (*apart && common & TYPE_OBJECT)
        TRY(objects_apart(compiler, a, b, depth, apart));
    return OK;
}

static enum result all_apart(struct schema_compiler *compiler, const struct shapes *x, const struct shapes *y,
    int depth, bool *apart) {
    *apart = true;
    for (size_t i = 0; i < x->count && *apart; i++)
        for (size_t k = 0; k < y->count && *apart; k++) {
            TRY(spend(compiler, 20));
            TRY(shapes_apart(compiler, &x->items[i], &y->items[k], depth, apart));
        }
    return OK;
}

static enum result goals_apart(struct schema_compiler *compiler, const struct conjunction *a,
    const struct conjunction *b, int depth, bool *apart) {
    struct shapes x = {0}, y = {0};
    *apart = false;
    if (depth >= DISJOINT_DEPTH)
        return OK;
    enum result status = open_goal(compiler, a, &x);
    if (status == OK)
        status = open_goal(compiler, b, &y);
    if (status == OK)
        status = all_apart(compiler, &x, &y, depth, apart);
    free_shapes(&x);
    free_shapes(&y);
    return status;
}

static enum result check_apart(struct schema_compiler *compiler, const struct json *schema,
    const struct shapes *branches, size_t count) {
    for (size_t i = 0; i < count; i++)
        for (size_t k = i + 1; k < count; k++) {
            bool apart = false;
            TRY(all_apart(compiler, &branches[i], &branches[k], 0, &apart));
            if (!apart)
                return at_schema(compiler,
                    fail(ERROR_INPUT,
                        "'oneOf': branches %zu and %zu are not provably apart; use 'anyOf', or give a "
                        "required key a different 'const' in each",
                        i, k),
                    schema);
        }
    return OK;
}

/* ---- shapes -> rules ---- */

enum { NONE = 0x7FFFFFFF }; /* no node: nothing fits */

static uint32_t text_node(struct schema_compiler *compiler, const char *text) {
    return rules_terminal(compiler->rules, expression_literal(compiler->expressions, text, strlen(text)));
}

static uint32_t pair(struct schema_compiler *compiler, uint32_t a, uint32_t b) {
    uint32_t list[] = {a, b};
    return rules_sequence(compiler->rules, list, 2);
}

static uint32_t optional(struct schema_compiler *compiler, uint32_t node) {
    uint32_t list[] = {rules_sequence(compiler->rules, NULL, 0), node};
    return rules_choice(compiler->rules, list, 2);
}

static enum result compile_goal(
    struct schema_compiler *compiler, const struct conjunction *conjunction, uint32_t *node);

/* Texts of which any fits: those of an enum's values that are no arrays or objects, or keys. */
struct texts {
    struct buffer text;
    size_t *ends;
    size_t count;
};

/* Room for so many texts. */
static enum result begin_texts(struct texts *texts, size_t count) {
    texts->ends = malloc((count + 1) * sizeof *texts->ends);
    return texts->ends ? OK : out_of_memory();
}

/* What was appended to the buffer since the last text is one more. */
static void end_text(struct texts *texts) {
    texts->ends[texts->count++] = texts->text.bytes;
}

/* The expression of any of them; frees the texts. `quoted`: without the first and last byte of each. */
static enum result finish_texts(
    struct schema_compiler *compiler, struct texts *texts, bool quoted, uint32_t *expression) {
    struct expression_text *list = malloc((texts->count + 1) * sizeof *list);
    enum result status = list ? OK : out_of_memory();
    for (size_t i = 0, from = 0; status == OK && i < texts->count; from = texts->ends[i++])
        list[i] = (struct expression_text){
            texts->text.data + from + quoted, texts->ends[i] - from - 2 * (size_t)quoted};
    if (status == OK)
        *expression = expression_texts(compiler->expressions, list, texts->count);
    free(list);
    free(texts->ends);
    buffer_free(&texts->text);
    return status;
}

/* The one spelling of a value of an enum that is no array or object. */
static void append_scalar(struct buffer *text, const struct json *value) {
    struct decimal decimal;
    if (value->kind == JSON_STRING)
        json_text_append_string(text, value->text, value->bytes);
    else if (value->kind == JSON_NUMBER && decimal_read(&decimal, value->text, value->bytes))
        decimal_append(text, &decimal);
    else
        buffer_append_text(text, value->kind == JSON_NULL   ? "null"
                                 : value->kind == JSON_TRUE ? "true"
                                                            : "false");
}

/* A value of an enum in its one spelling, blanks between its parts aside. */
static uint32_t value_node(struct schema_compiler *compiler, const struct json *value) {
    struct buffer text = {0};
    uint32_t node = NONE;
    if (value->kind == JSON_ARRAY || value->kind == JSON_OBJECT) {
        bool object = value->kind == JSON_OBJECT;
        node = pair(compiler, text_node(compiler, object ? "{" : "["), compiler->blanks);
        for (const struct json *item = value->first; item; item = item->next) {
            if (item != value->first)
                node = pair(compiler, node, compiler->comma);
            if (object) {
                buffer_clear(&text);
                json_text_append_string(&text, item->key, item->key_bytes);
                node = pair(compiler, node, text_node(compiler, text.data));
                node = pair(compiler, node, compiler->blanks);
                node = pair(compiler, node, text_node(compiler, ":"));
                node = pair(compiler, node, compiler->blanks);
            }
            node = pair(compiler, node, value_node(compiler, item));
        }
        if (value->count)
            node = pair(compiler, node, compiler->blanks);
        node = pair(compiler, node, text_node(compiler, object ? "}" : "]"));
    } else {
        append_scalar(&text, value);
        node = text_node(compiler, text.data);
    }
    buffer_free(&text);
    return node;
}

static enum result element_node(
    struct schema_compiler *compiler, const struct conjunction *shape, size_t index, uint32_t *node) {
    struct conjunction goal = {0};
    enum result status = element_goal(compiler, shape, index, &goal);
    if (status == OK)
        status = compile_goal(compiler, &goal, node);
    free_conjunction(&goal);
    return status;
}

static enum result array_node(
    struct schema_compiler *compiler, const struct conjunction *shape, uint32_t *node) {
    int32_t least = largest(shape, "minItems"), most = smallest(shape, "maxItems");
    size_t prefix = 0;
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *list = json_member(shape->schemas[i], "prefixItems");
        prefix = list && list->count > prefix ? list->count : prefix;
    }
    uint32_t *elements = malloc((prefix + 1) * sizeof *elements);
    if (!elements)
        return out_of_memory();
    enum result status = OK;
    for (size_t i = 0; status == OK && i <= prefix; i++) {
        elements[i] = NONE;
        if (most < 0 || i < (size_t)most)
            status = element_node(compiler, shape, i, &elements[i]);
        if (elements[i] == NONE && (most < 0 || (size_t)most > i))
            most = (int32_t)i;
    }
    *node = NONE;
    if (status == OK && most >= 0 && least > most)
        nothing_fits(compiler, first_schema(shape), "'minItems' is above what 'maxItems' and 'items' allow");
    else if (status == OK) {
        struct rules *rules = compiler->rules;
        uint32_t rest = NONE, close = text_node(compiler, "]"), all[3], count = 0;
        if (elements[prefix] != NONE && (most < 0 || (size_t)most > prefix)) {
            int32_t from = (int32_t)prefix > 1 ? (int32_t)prefix : 1;
            rest = rules_repeat(rules, pair(compiler, compiler->comma, elements[prefix]),
                least > from ? least - from : 0, most < 0 ? -1 : most - from);
        }
        for (size_t i = prefix; i-- > 1;) { /* from the back: what follows element i - 1 */
            if (most >= 0 && i >= (size_t)most)
                continue;
            uint32_t item = pair(compiler, compiler->comma, elements[i]);
            item = rest == NONE ? item : pair(compiler, item, rest);
            rest = (int32_t)i < least ? item : optional(compiler, item);
        }
        if (least == 0)
            all[count++] = close;
        if (most != 0 && elements[0] != NONE) {
            uint32_t body = rest == NONE ? elements[0] : pair(compiler, elements[0], rest);
            all[count++] = pair(compiler, body, pair(compiler, compiler->blanks, close));
        }
        if (count)
            *node = pair(compiler, pair(compiler, text_node(compiler, "["), compiler->blanks),
                rules_choice(rules, all, count));
    }
    free(elements);
    return status;
}

struct key {
    const char *text;
    size_t bytes;
    bool required;
    uint32_t node;
};

struct keys {
    struct key *items;
    size_t count;
};

static enum result add_key(const struct schema_compiler *compiler, struct keys *keys, const char *text,
    size_t bytes, bool required) {
    TRY(spend(compiler, 1 + keys->count / 32));
    for (size_t i = 0; i < keys->count; i++)
        if (keys->items[i].bytes == bytes && !memcmp(keys->items[i].text, text, bytes)) {
            keys->items[i].required = keys->items[i].required || required;
            return OK;
        }
    struct key *items = realloc(keys->items, (keys->count + 1) * sizeof *items);
    if (!items)
        return out_of_memory();
    keys->items = items;
    items[keys->count++] = (struct key){text, bytes, required, NONE};
    return OK;
}

static enum result collect_keys(
    const struct schema_compiler *compiler, const struct conjunction *shape, struct keys *keys) {
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *properties = json_member(shape->schemas[i], "properties");
        for (const struct json *p = properties ? properties->first : NULL; p; p = p->next)
            TRY(add_key(compiler, keys, p->key, p->key_bytes, false));
    }
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *required = json_member(shape->schemas[i], "required");
        for (const struct json *r = required ? required->first : NULL; r; r = r->next)
            TRY(add_key(compiler, keys, r->text, r->bytes, true));
    }
    return OK;
}

static uint32_t member_node(struct schema_compiler *compiler, uint32_t key, uint32_t value) {
    uint32_t list[] = {rules_terminal(compiler->rules, key), compiler->blanks, text_node(compiler, ":"),
        compiler->blanks, value};
    return rules_sequence(compiler->rules, list, 5);
}

static enum result key_node(
    struct schema_compiler *compiler, const struct conjunction *shape, struct key *key) {
    struct conjunction goal = {0};
    struct buffer text = {0};
    struct key_choice choice = {.key = key->text, .bytes = key->bytes};
    uint32_t value = NONE;
    enum result status = key_goal(compiler, shape, &choice, &goal);
    if (status == OK)
        status = compile_goal(compiler, &goal, &value);
    json_text_append_string(&text, key->text, key->bytes);
    if (status == OK && value != NONE)
        key->node =
            member_node(compiler, expression_literal(compiler->expressions, text.data, text.bytes), value);
    buffer_free(&text);
    free_conjunction(&goal);
    return status;
}

/* The declared keys as other keys would be spelled. */
static enum result declared_keys(
    struct schema_compiler *compiler, const struct keys *keys, uint32_t *expression) {
    struct texts texts = {0};
    TRY(begin_texts(&texts, keys->count));
    for (size_t i = 0; i < keys->count; i++) {
        json_text_append_string(&texts.text, keys->items[i].text, keys->items[i].bytes);
        end_text(&texts);
    }
    return finish_texts(compiler, &texts, true, expression);
}

/* The members whose keys nothing declares, or NONE. */
static enum result other_members(struct schema_compiler *compiler, const struct conjunction *shape,
    const struct keys *keys, uint32_t *node) {
    struct expressions *e = compiler->expressions;
    const struct json *patterns[PATTERNS_LIMIT];
    uint32_t holds[PATTERNS_LIMIT], members[1 << PATTERNS_LIMIT], list[PATTERNS_LIMIT + 2];
    size_t count = 0, found = 0;
    for (size_t i = 0; i < shape->count; i++) {
        const struct json *map = json_member(shape->schemas[i], "patternProperties");
        for (const struct json *p = map ? map->first : NULL; p; p = p->next) {
            if (count == PATTERNS_LIMIT)
                return refuse(compiler, shape->schemas[i], "'patternProperties': more than 6 patterns");
            TRY(regex_compile(e, p->key, p->key_bytes, REGEX_SEARCH, true, &holds[count]));
            patterns[count++] = p;
        }
    }
    uint32_t declared = EXPRESSION_NOTHING;
    TRY(declared_keys(compiler, keys, &declared));
    for (unsigned chosen = 0; chosen < 1u << count; chosen++) {
        struct conjunction goal = {0};
        struct key_choice choice = {.patterns = patterns, .pattern_count = count, .chosen = chosen};
        size_t used = 0;
        uint32_t value = NONE;
        bool plain = !keys->count && !count;
        list[used++] =
            plain ? json_text_free_string(e) : expression_repeat(e, json_text_any_character(e, true), 0, -1);
        if (keys->count)
            list[used++] = expression_complement(e, declared);
        for (size_t i = 0; i < count; i++)
            list[used++] = chosen >> i & 1 ? holds[i] : expression_complement(e, holds[i]);
        uint32_t text = expression_both(e, list, used);
        enum result status = OK;
        if (!expression_is_empty(e, text) && (status = key_goal(compiler, shape, &choice, &goal)) == OK)
            status = compile_goal(compiler, &goal, &value);
        free_conjunction(&goal);
        TRY(status);
        if (value != NONE)
            members[found++] = member_node(compiler, quoted(compiler, text), value);
    }
    *node = found ? rules_choice(compiler->rules, members, found) : NONE;
    return OK;
}

/* Members from the back, by how many came before (`cap` stands for all above when there is no most). */
static enum result members_node(struct schema_compiler *compiler, const struct keys *keys, uint32_t others,
    int32_t least, int32_t most, uint32_t *first, bool *may_be_empty) {
    struct rules *rules = compiler->rules;
    size_t cap = keys->count ? (size_t)(most < 0 ? least : most) : 1, n = keys->count;
    if ((n + 1) * (cap + 2) > GRID_LIMIT)
        return fail(ERROR_INPUT, "'minProperties' or 'maxProperties' is too large beside 'properties'");
    uint32_t *after = malloc((cap + 2) * sizeof *after), *from = calloc(cap + 2, sizeof *from);
    if (!after || !from) {
        free(after);
        free(from);
        return out_of_memory();
    }
    for (size_t c = 0; c <= cap; c++) {
        int32_t need = least > (int32_t)c ? least - (int32_t)c : 0, room = most < 0 ? -1 : most - (int32_t)c;
        after[c] = others != NONE && room != 0
                       ? rules_repeat(rules, pair(compiler, compiler->comma, others), need, room)
                   : need ? (uint32_t)NONE
                          : rules_sequence(rules, NULL, 0);
    }
    after[cap + 1] = most < 0 ? after[cap] : (uint32_t)NONE;
    for (size_t c = 0; c <= cap; c++)
        from[c] =
            others == NONE || after[c + 1] == NONE ? (uint32_t)NONE : pair(compiler, others, after[c + 1]);
    bool optional_to_end = true;
    for (size_t i = n; i-- > 0;) {
        const struct key *key = &keys->items[i];
        bool skip = !key->required;
        for (size_t c = 0; c <= cap; c++) {
            uint32_t list[2], count = 0;
            if (key->node != NONE && after[c + 1] != NONE)
                list[count++] = pair(compiler, key->node, after[c + 1]);
            if (skip && from[c] != NONE)
                list[count++] = from[c];
            from[c] = count ? rules_choice(rules, list, count) : (uint32_t)NONE;
        }
        optional_to_end = optional_to_end && skip;
        for (size_t c = 0; c <= cap; c++) {
            uint32_t more = from[c] == NONE ? (uint32_t)NONE : pair(compiler, compiler->comma, from[c]);
            bool end = optional_to_end && (int32_t)c >= least;
            after[c] = more == NONE ? (end ? rules_sequence(rules, NULL, 0) : (uint32_t)NONE)
                       : end        ? optional(compiler, more)
                                    : more;
        }
        after[cap + 1] = most < 0 ? after[cap] : (uint32_t)NONE;
    }
    *first = from[0];
    *may_be_empty = optional_to_end && least == 0;
    free(after);
    free(from);
    return OK;
}

static enum result object_node(
    struct schema_compiler *compiler, const struct conjunction *shape, uint32_t *node) {
    struct keys keys = {0};
    uint32_t others = NONE, first = NONE, all[2], count = 0, close = text_node(compiler, "}");
    int32_t least = largest(shape, "minProperties"), most = smallest(shape, "maxProperties");
    bool may_be_empty = false, possible = true;
    *node = NONE;
    if (most >= 0 && least > most) {
        nothing_fits(compiler, first_schema(shape), "'minProperties' is above 'maxProperties'");
        return OK;
    }
    enum result status = collect_keys(compiler, shape, &keys);
    for (size_t i = 0; status == OK && i < keys.count; i++) {
        status = key_node(compiler, shape, &keys.items[i]);
        possible = possible && (keys.items[i].node != NONE || !keys.items[i].required);
    }
    if (status == OK)
        status = other_members(compiler, shape, &keys, &others);
    if (status == OK && possible)
        status = members_node(compiler, &keys, others, least, most, &first, &may_be_empty);
    if (status == OK && may_be_empty)
        all[count++] = close;
    if (status == OK && first != NONE && most != 0)
        all[count++] = pair(compiler, first, pair(compiler, compiler->blanks, close));
    if (count)
        *node = pair(compiler, pair(compiler, text_node(compiler, "{"), compiler->blanks),
            rules_choice(compiler->rules, all, count));
    else if (status == OK && possible)
        nothing_fits(compiler, first_schema(shape), "counts and keys of an object contradict each other");
    free(keys.items);
    return status;
}

/* Gives a value with brackets its own level of depth. */
static uint32_t nested(struct schema_compiler *compiler, const char *name, uint32_t node) {
    if (node == NONE)
        return node;
    uint32_t rule = rules_declare(compiler->rules, name, true);
    rules_define(compiler->rules, rule, node);
    return rules_call(compiler->rules, rule);
}

static enum result listed_node(struct schema_compiler *compiler, const struct conjunction *shape,
    const struct json *list, bool only, unsigned wanted, uint32_t *node) {
    uint32_t *all = malloc((list->count + 2) * sizeof *all), expression = EXPRESSION_NOTHING;
    struct texts scalars = {0};
    size_t count = 0;
    enum result status = all ? begin_texts(&scalars, list->count) : out_of_memory();
    for (const struct json *value = only ? list : list->first; status == OK && value;
         value = only ? NULL : value->next) {
        bool fits = false;
        compiler->listed = list;
        status = fits_shape(compiler, value, shape, &fits);
        compiler->listed = NULL;
        if (status != OK || !fits || (value->kind == JSON_STRING && !(wanted & TYPE_STRING)))
            continue;
        if (value->kind == JSON_ARRAY || value->kind == JSON_OBJECT) {
            all[count++] = value_node(compiler, value);
            continue;
        }
        append_scalar(&scalars.text, value);
        end_text(&scalars);
    }
    bool any = scalars.count > 0;
    enum result finished = finish_texts(compiler, &scalars, false, &expression);
    status = status == OK ? finished : status;
    if (status == OK && any)
        all[count++] = rules_terminal(compiler->rules, expression);
    *node = count ? rules_choice(compiler->rules, all, count) : (uint32_t)NONE;
    if (status == OK && !count)
        nothing_fits(compiler, first_schema(shape), "no value of 'enum' or 'const' fits the other keywords");
    free(all);
    return status;
}

static enum result shape_node(
    struct schema_compiler *compiler, const struct conjunction *shape, unsigned wanted, uint32_t *node) {
    uint32_t all[7], expression = EXPRESSION_NOTHING, count = 0;
    bool only = false;
    const struct json *list = enum_of(shape, &only);
    if (list)
        return listed_node(compiler, shape, list, only, wanted, node);
    unsigned types = shape_types(compiler, shape) & wanted;
    if (types & TYPE_NULL)
        all[count++] = text_node(compiler, "null");
    if (types & TYPE_BOOLEAN) {
        all[count++] = text_node(compiler, "true");
        all[count++] = text_node(compiler, "false");
    }
    if (types & (TYPE_NUMBER | TYPE_INTEGER)) {
        TRY(numbers_expression(compiler, shape, !(types & TYPE_NUMBER), &expression));
        if (expression != EXPRESSION_NOTHING)
            all[count++] = rules_terminal(compiler->rules, expression);
    }
    if (types & TYPE_STRING) {
        TRY(string_expression(compiler, shape, true, &expression));
        if (expression != EXPRESSION_NOTHING)
            all[count++] = rules_terminal(compiler->rules, quoted(compiler, expression));
    }
    if (types & TYPE_ARRAY) {
        TRY(array_node(compiler, shape, &all[count]));
        all[count] = nested(compiler, "an array", all[count]);
        count += all[count] != NONE;
    }
    if (types & TYPE_OBJECT) {
        TRY(object_node(compiler, shape, &all[count]));
        all[count] = nested(compiler, "an object", all[count]);
        count += all[count] != NONE;
    }
    *node = count ? rules_choice(compiler->rules, all, count) : (uint32_t)NONE;
    if (!types && shape->count)
        nothing_fits(compiler, first_schema(shape), "the types of several schemas exclude each other");
    return OK;
}

static int compare_pointers(const void *a, const void *b) {
    uintptr_t x = (uintptr_t) * (const struct json *const *)a,
              y = (uintptr_t) * (const struct json *const *)b;
    return (x > y) - (x < y);
}

static enum result find_goal(struct schema_compiler *compiler, const struct conjunction *conjunction,
    struct goal **goal, bool *fresh) {
    size_t count = conjunction->count, bytes = count * sizeof *conjunction->schemas;
    const struct json **sorted = malloc(bytes + 1);
    if (!sorted)
        return out_of_memory();
    if (count)
        memcpy((void *)sorted, (const void *)conjunction->schemas, bytes);
    qsort((void *)sorted, count, sizeof *sorted, compare_pointers);
    *fresh = false;
    for (*goal = compiler->goals; *goal; *goal = (*goal)->next)
        if ((*goal)->count == count && !memcmp((const void *)(*goal)->schemas, (const void *)sorted, bytes)) {
            free((void *)sorted);
            return OK;
        }
    *goal = calloc(1, sizeof **goal);
    if (!*goal) {
        free((void *)sorted);
        return out_of_memory();
    }
    struct buffer path = {0};
    expressions_spend(compiler->expressions, compiler->value_count / 64); /* to find the place */
    append_place(compiler, &path, first_schema(conjunction));
    **goal = (struct goal){.schemas = sorted, .count = count, .possible = true, .next = compiler->goals};
    (*goal)->rule = rules_declare(compiler->rules, path.data, false);
    buffer_free(&path);
    compiler->goals = *goal;
    compiler->goal_count++;
    *fresh = true;
    return OK;
}

static enum result compile_goal(
    struct schema_compiler *compiler, const struct conjunction *conjunction, uint32_t *node) {
    struct goal *goal = NULL;
    bool fresh = false;
    TRY(spend(compiler, 100 + compiler->goal_count / 32));
    TRY(find_goal(compiler, conjunction, &goal, &fresh));
    if (fresh) {
        struct shapes shapes = {0};
        uint32_t *all = NULL;
        size_t count = 0;
        if (++compiler->depth > NESTING_LIMIT)
            return refuse(compiler, first_schema(conjunction), "nested deeper than 256 schemas");
        enum result status = open_goal(compiler, conjunction, &shapes);
        if (status == OK && !(all = malloc((shapes.count + 1) * sizeof *all)))
            status = out_of_memory();
        for (size_t i = 0; status == OK && i < shapes.count; i++) {
            status = shape_node(compiler, &shapes.items[i], ~0u, &all[count]);
            count += status == OK && all[count] != NONE;
        }
        goal->possible = count > 0;
        if (status == OK)
            rules_define(compiler->rules, goal->rule,
                count ? rules_choice(compiler->rules, all, count)
                      : rules_terminal(compiler->rules, EXPRESSION_NOTHING));
        compiler->depth--;
        free(all);
        free_shapes(&shapes);
        TRY(status);
    }
    *node = goal->possible ? rules_call(compiler->rules, goal->rule) : (uint32_t)NONE;
    return OK;
}

/* ---- from outside ---- */

static size_t count_values(const struct json *value) {
    size_t count = 1;
    if (value->kind == JSON_ARRAY || value->kind == JSON_OBJECT)
        for (const struct json *child = value->first; child; child = child->next)
            count += count_values(child);
    return count;
}

enum result schema_compiler_create(struct rules *rules, const struct json *root, const char *base,
    bool strict, bool compact, struct schema_compiler **result) {
    struct schema_compiler *compiler = calloc(1, sizeof *compiler);
    *result = compiler;
    if (!compiler)
        return out_of_memory();
    compiler->rules = rules;
    compiler->expressions = rules_expressions(rules);
    compiler->root = root;
    compiler->base = base;
    compiler->value_count = count_values(root);
    compiler->strict = strict;
    compiler->compact = compact;
    compiler->blanks = rules_terminal(rules, json_text_blanks(compiler->expressions, compact));
    uint32_t comma[] = {compiler->blanks, text_node(compiler, ","), compiler->blanks};
    compiler->comma = rules_sequence(rules, comma, 3);
    return OK;
}

void schema_compiler_bind_strings(struct schema_compiler *compiler, uint32_t spellings) {
    compiler->spellings = spellings;
}

void schema_compiler_free(struct schema_compiler *compiler) {
    while (compiler && compiler->goals) {
        struct goal *goal = compiler->goals;
        compiler->goals = goal->next;
        free((void *)goal->schemas);
        free(goal);
    }
    free(compiler);
}

enum result schema_compile(struct schema_compiler *compiler, const struct json *schema, uint32_t *node) {
    struct conjunction goal = {0};
    enum result status = schema ? add_schema(&goal, schema) : OK;
    if (status == OK)
        status = compile_goal(compiler, &goal, node);
    free_conjunction(&goal);
    TRY(status);
    return *node == NONE ? fail(ERROR_INPUT, "%s", compiler->impossible) : OK;
}

/* The strings that fit a shape, as they are. */
static enum result raw_strings(
    struct schema_compiler *compiler, const struct conjunction *shape, uint32_t *expression) {
    bool only = false;
    const struct json *list = enum_of(shape, &only);
    *expression = EXPRESSION_NOTHING;
    if (!list)
        return shape_types(compiler, shape) & TYPE_STRING
                   ? string_expression(compiler, shape, false, expression)
                   : OK;
    for (const struct json *value = only ? list : list->first; value; value = only ? NULL : value->next) {
        bool fits = false;
        TRY(fits_shape(compiler, value, shape, &fits));
        if (!fits || value->kind != JSON_STRING)
            continue;
        uint32_t both[] = {*expression, expression_literal(compiler->expressions, value->text, value->bytes)};
        *expression = expression_either(compiler->expressions, both, 2);
    }
    return OK;
}

static enum result compile_parameter(
    struct schema_compiler *compiler, const struct conjunction *goal, struct schema_parameter *parameter) {
    struct shapes shapes = {0};
    enum result status = open_goal(compiler, goal, &shapes);
    uint32_t *all = malloc((shapes.count + 1) * sizeof *all), raw = EXPRESSION_NOTHING;
    size_t count = 0;
    if (status == OK && !all)
        status = out_of_memory();
    parameter->raw = EXPRESSION_NOTHING;
    for (size_t i = 0; status == OK && i < shapes.count; i++) {
        status = raw_strings(compiler, &shapes.items[i], &raw);
        uint32_t both[] = {parameter->raw, raw};
        parameter->raw = expression_either(compiler->expressions, both, 2);
        if (status == OK)
            status = shape_node(compiler, &shapes.items[i], ~(unsigned)TYPE_STRING, &all[count]);
        count += status == OK && all[count] != NONE;
    }
    parameter->others = count ? rules_choice(compiler->rules, all, count) : RULES_FAILED;
    free(all);
    free_shapes(&shapes);
    return status;
}

/* Keywords of the object of all parameters that a call cannot be held to. */
static enum result check_parameters(struct schema_compiler *compiler, const struct conjunction *shape) {
    static const char *const counts[] = {"minProperties", "maxProperties", "enum", "const"};
    for (size_t i = 0; i < shape->count; i++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
            if (json_member(shape->schemas[i], counts[k])) {
                enum result status =
                    fail(ERROR_INPUT, "'%s' is not supported for a tool's parameters as a whole", counts[k]);
                return at_schema(compiler, status, shape->schemas[i]);
            }
    return OK;
}

static enum result compile_key_parameter(struct schema_compiler *compiler, const struct conjunction *shape,
    const struct key *key, const struct schema_parameters_taker *taker, bool *possible) {
    struct schema_parameter parameter = {.name = key->text, .bytes = key->bytes, .required = key->required};
    struct key_choice choice = {.key = parameter.name, .bytes = parameter.bytes};
    struct conjunction goal = {0};
    enum result status = key_goal(compiler, shape, &choice, &goal);
    if (status == OK)
        status = compile_parameter(compiler, &goal, &parameter);
    free_conjunction(&goal);
    TRY(status);
    if (parameter.raw != EXPRESSION_NOTHING || parameter.others != RULES_FAILED)
        return taker->take(taker->context, &parameter, possible);
    *possible = !parameter.required;
    return OK;
}

static enum result compile_way(struct schema_compiler *compiler, const struct conjunction *shape,
    const struct schema_parameters_taker *taker, bool *possible) {
    struct keys keys = {0};
    *possible = shape_types(compiler, shape) & TYPE_OBJECT;
    if (!*possible) {
        nothing_fits(compiler, first_schema(shape), "a tool's parameters are an object");
        return OK;
    }
    enum result status = check_parameters(compiler, shape);
    if (status == OK)
        status = collect_keys(compiler, shape, &keys);
    for (size_t i = 0; status == OK && *possible && i < keys.count; i++)
        status = compile_key_parameter(compiler, shape, &keys.items[i], taker, possible);
    free(keys.items);
    if (status == OK)
        taker->end_way(taker->context, *possible);
    return status;
}

enum result schema_compile_parameters(struct schema_compiler *compiler, const struct json *schema,
    const struct schema_parameters_taker *taker) {
    struct conjunction goal = {0};
    struct shapes shapes = {0};
    bool any = false;
    enum result status = schema ? add_schema(&goal, schema) : OK;
    if (status == OK)
        status = open_goal(compiler, &goal, &shapes);
    for (size_t i = 0; status == OK && i < shapes.count; i++) {
        bool possible = false;
        status = compile_way(compiler, &shapes.items[i], taker, &possible);
        any = any || possible;
    }
    if (status == OK && !any)
        status = *compiler->impossible ? fail(ERROR_INPUT, "%s", compiler->impossible)
                                       : refuse(compiler, schema, "no parameters fit");
    free_shapes(&shapes);
    free_conjunction(&goal);
    return status;
}

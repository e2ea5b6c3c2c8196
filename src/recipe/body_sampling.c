/* Sampling fields of request bodies, by the published toolkit's rules. */
#include "recipe/body.h"

#include <stddef.h> /* offsetof */

enum { STOPS_MOST = 16, TOP_LOGPROBS_MOST = 20 };

static const float TOP_P_LEAST_THINKING = 0.95f;

enum field_type {
    TYPE_NUMBER,
    TYPE_FLAG,
    TYPE_BYTE,
    TYPE_WORD,
    TYPE_NATURAL,
    TYPE_STOP,
    TYPE_STOPS,
    TYPE_STREAM_OPTIONS
};

struct sampling_field {
    const char *name;
    enum field_type type;
    size_t offset; /* in struct sampling_fields */
};

#define FIELD(name_, type_, slot_)                                                                           \
    { name_, type_, offsetof(struct sampling_fields, slot_) }

static const struct sampling_field CHAT_FIELDS[] = {
    FIELD("temperature", TYPE_NUMBER, temperature),
    FIELD("top_p", TYPE_NUMBER, top_p),
    FIELD("max_tokens", TYPE_WORD, max_tokens),
    FIELD("stop", TYPE_STOP, stop),
    FIELD("seed", TYPE_NATURAL, seed),
    FIELD("n", TYPE_BYTE, n),
    FIELD("logprobs", TYPE_FLAG, logprobs),
    FIELD("top_logprobs", TYPE_BYTE, top_logprobs),
    FIELD("presence_penalty", TYPE_NUMBER, presence_penalty),
    FIELD("frequency_penalty", TYPE_NUMBER, frequency_penalty),
    FIELD("stream", TYPE_FLAG, stream),
    FIELD("stream_options", TYPE_STREAM_OPTIONS, stream_options),
    {0},
};

static const struct sampling_field RESPONSES_FIELDS[] = {
    FIELD("temperature", TYPE_NUMBER, temperature),
    FIELD("top_p", TYPE_NUMBER, top_p),
    FIELD("max_output_tokens", TYPE_WORD, max_tokens),
    FIELD("top_logprobs", TYPE_BYTE, top_logprobs),
    FIELD("stream", TYPE_FLAG, stream),
    {0},
};

static const struct sampling_field MESSAGES_FIELDS[] = {
    FIELD("temperature", TYPE_NUMBER, temperature),
    FIELD("top_p", TYPE_NUMBER, top_p),
    FIELD("max_tokens", TYPE_WORD, max_tokens),
    FIELD("stop_sequences", TYPE_STOPS, stop),
    FIELD("stream", TYPE_FLAG, stream),
    {0},
};

static const struct sampling_field *const FIELDS[] = {
    [KIND_CHAT] = CHAT_FIELDS, [KIND_RESPONSES] = RESPONSES_FIELDS, [KIND_MESSAGES] = MESSAGES_FIELDS};

static const char *const MAX_TOKENS_NAMES[] = {
    [KIND_CHAT] = "max_tokens", [KIND_RESPONSES] = "max_output_tokens", [KIND_MESSAGES] = "max_tokens"};

/* ---- types ---- */

static bool has_integer_type(const struct json *value, uint64_t most) {
    uint64_t number;
    return json_uint64(value, &number) && number <= most;
}

static bool type_stops(struct body_reader *reader, const struct place *place, const struct json *value) {
    size_t index = 0;
    for (const struct json *stop = value->first; stop; stop = stop->next, index++) {
        if (stop->kind != JSON_STRING)
            return refuse_value_at(
                reader, ELEMENT_OF(place, index), "a string of at least one character", stop);
    }
    return true;
}

static bool type_field(
    struct body_reader *reader, const struct place *place, const struct json *value, enum field_type type) {
    const struct json *usage = NULL;
    switch (type) {
    case TYPE_NUMBER:
        return value->kind == JSON_NUMBER || refuse_value_at(reader, place, "a number", value);
    case TYPE_FLAG:
        return value->kind == JSON_TRUE || value->kind == JSON_FALSE ||
               refuse_value_at(reader, place, "true or false", value);
    case TYPE_BYTE:
        return has_integer_type(value, UINT8_MAX) ||
               refuse_value_at(reader, place, "an integer from 0 to 255", value);
    case TYPE_WORD:
        return has_integer_type(value, UINT32_MAX) ||
               refuse_value_at(reader, place, "an integer from 1 to 393216", value);
    case TYPE_NATURAL:
        return has_integer_type(value, UINT64_MAX) ||
               refuse_value_at(reader, place, "an integer from 0 to 9223372036854775807", value);
    case TYPE_STOP:
    case TYPE_STOPS:
        if (value->kind == JSON_ARRAY)
            return type_stops(reader, place, value);
        return (type == TYPE_STOP && value->kind == JSON_STRING) ||
               refuse_value_at(reader, place,
                   type == TYPE_STOP ? "a string or an array of 1 to 16 strings"
                                     : "an array of 1 to 16 strings",
                   value);
    case TYPE_STREAM_OPTIONS:
        return check_object(reader, place, "an object", value) &&
               read_optional_flag(reader, place, value, "include_usage", &usage);
    }
    return true;
}

bool type_sampling(struct body_reader *reader, enum request_kind kind, const struct json *body,
    struct sampling_fields *fields) {
    *fields = (struct sampling_fields){0};
    for (const struct sampling_field *field = FIELDS[kind]; field->name; field++) {
        const struct json *value = json_member(body, field->name);
        if (is_absent(value))
            continue;
        if (!type_field(reader, MEMBER_OF(NULL, field->name), value, field->type))
            return false;
        *(const struct json **)((char *)fields + field->offset) = value;
    }
    return true;
}

/* ---- values ---- */

/* Values pass through single precision before they are compared. */
static bool settle_float(struct body_reader *reader, const struct json *value, const char *expected,
    float least, bool least_included, float most, float *number) {
    double wide = 0;
    if (!value)
        return true;
    json_double(value, &wide);
    *number = (float)wide;
    return (*number >= least && *number <= most && (least_included || *number > least)) ||
           refuse_value_at(reader, MEMBER_OF(NULL, value->key), expected, value);
}

static bool settle_temperature(
    struct body_reader *reader, const struct json *value, struct toolkit_sampling *sampling) {
    sampling->temperature = 1;
    if (!settle_float(reader, value, "a number from 0 to 2", 0, true, 2, &sampling->temperature))
        return false;
    if (reader->conversation->thinking)
        sampling->temperature = 1;
    return true;
}

static bool settle_top_p(
    struct body_reader *reader, const struct json *value, struct toolkit_sampling *sampling) {
    sampling->top_p = 1;
    if (!settle_float(reader, value, "a number above 0 and up to 1", 0, false, 1, &sampling->top_p))
        return false;
    if (!reader->conversation->thinking)
        sampling->top_p = 1;
    else if (sampling->top_p < TOP_P_LEAST_THINKING)
        sampling->top_p = TOP_P_LEAST_THINKING;
    return true;
}

static bool add_stop(struct body_reader *reader, const struct place *place, const struct json *stop,
    struct toolkit_sampling *sampling) {
    if (!stop->bytes)
        return refuse_value_at(reader, place, "a string of at least one character", stop);
    sampling->stops[sampling->stop_count++] = (struct text_piece){stop->text, stop->bytes};
    return true;
}

static bool settle_stop_strings(
    struct body_reader *reader, const struct json *value, struct toolkit_sampling *sampling) {
    sampling->stop_count = 0;
    if (!value)
        return true;
    const struct place *place = MEMBER_OF(NULL, value->key);
    sampling->stops = arena_take(&reader->conversation->arena, STOPS_MOST * sizeof *sampling->stops);
    if (value->kind == JSON_STRING)
        return add_stop(reader, place, value, sampling);
    if (value->count > STOPS_MOST)
        return refuse_at(reader, CODE_VALUE, place, "expected 1 to 16 strings, found %zu", value->count);
    size_t index = 0;
    for (const struct json *stop = value->first; stop; stop = stop->next, index++) {
        if (!add_stop(reader, ELEMENT_OF(place, index), stop, sampling))
            return false;
    }
    return true;
}

static bool settle_max_tokens(struct body_reader *reader, enum request_kind kind, const struct json *value,
    struct toolkit_sampling *sampling) {
    int32_t bound = reader->conversation->thinking ? reader->policies->max_tokens_thinking
                                                   : reader->policies->max_tokens_plain;
    sampling->max_tokens = -1;
    if (!value)
        return true;
    json_int64(value, &sampling->max_tokens);
    if (kind == KIND_MESSAGES && sampling->max_tokens > bound)
        sampling->max_tokens = bound;
    return (sampling->max_tokens >= 1 && sampling->max_tokens <= bound) ||
           refuse_at(reader, CODE_VALUE, MEMBER_OF(NULL, MAX_TOKENS_NAMES[kind]),
               "expected an integer from 1 to %d, found %s", (int)bound, json_excerpt(value).text);
}

static bool settle_logprobs(struct body_reader *reader, enum request_kind kind,
    const struct sampling_fields *fields, struct toolkit_sampling *sampling) {
    const struct place *place = MEMBER_OF(NULL, "top_logprobs");
    int64_t number = -1;
    if (fields->top_logprobs)
        json_int64(fields->top_logprobs, &number);
    sampling->logprobs = fields->logprobs && fields->logprobs->kind == JSON_TRUE;
    sampling->top_logprobs = (int32_t)number;
    if (kind == KIND_RESPONSES)
        sampling->logprobs = number >= 0;
    if (number >= 0 && !sampling->logprobs)
        return refuse_at(reader, CODE_VALUE, place, "needs logprobs to be true");
    return number <= TOP_LOGPROBS_MOST ||
           refuse_value_at(reader, place, "an integer from 0 to 20", fields->top_logprobs);
}

static bool settle_seed(
    struct body_reader *reader, const struct json *value, struct toolkit_sampling *sampling) {
    sampling->has_seed = value != NULL;
    return !value || json_int64(value, &sampling->seed) ||
           refuse_value_at(
               reader, MEMBER_OF(NULL, "seed"), "an integer from 0 to 9223372036854775807", value);
}

static bool settle_choices(struct body_reader *reader, const struct json *value) {
    int64_t number = 1;
    if (value)
        json_int64(value, &number);
    return number == 1 || refuse_value_at(reader, MEMBER_OF(NULL, "n"), "1", value);
}

/* Strict tools that may be called do not go with a format. */
static bool check_format(struct body_reader *reader) {
    const struct conversation *conversation = reader->conversation;
    if (conversation->format == FORMAT_TEXT || conversation->tool_choice == TOOL_CHOICE_NONE)
        return true;
    for (const struct tool *tool = conversation->tools.first; tool; tool = tool->next) {
        if (is_true(tool->strict))
            return refuse_at(reader, CODE_VALUE, MEMBER_OF(NULL, "tools"),
                "strict tools do not go with a response format");
    }
    return true;
}

static bool settle_stream_options(struct body_reader *reader, const struct sampling_fields *fields) {
    return !fields->stream_options || (fields->stream && fields->stream->kind == JSON_TRUE) ||
           refuse_at(reader, CODE_VALUE, MEMBER_OF(NULL, "stream_options"), "needs stream to be true");
}

bool settle_stops(
    struct body_reader *reader, const struct sampling_fields *fields, struct toolkit_sampling *sampling) {
    sampling->stream = is_true(fields->stream);
    return settle_stop_strings(reader, fields->stop, sampling) && settle_stream_options(reader, fields);
}

bool settle_sampling(struct body_reader *reader, enum request_kind kind, const struct sampling_fields *fields,
    struct toolkit_sampling *sampling) {
    static const char penalty[] = "a number from -2 to 2";
    float ignored = 0;
    return check_format(reader) && settle_choices(reader, fields->n) &&
           settle_float(reader, fields->presence_penalty, penalty, -2, true, 2, &ignored) &&
           settle_float(reader, fields->frequency_penalty, penalty, -2, true, 2, &ignored) &&
           settle_temperature(reader, fields->temperature, sampling) &&
           settle_top_p(reader, fields->top_p, sampling) && settle_logprobs(reader, kind, fields, sampling) &&
           settle_max_tokens(reader, kind, fields->max_tokens, sampling) &&
           settle_seed(reader, fields->seed, sampling);
}

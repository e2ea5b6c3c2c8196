#include "recipe/request.h"

#include "base/json.h"
#include "recipe/body.h"    /* struct body_reader */
#include "recipe/prompt.h"  /* struct prompt_format */
#include "recipe/refusal.h" /* refuse, refuse_value */
#include "recipe/request_grammar.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, realloc, free */
#include <string.h> /* memcmp, strlen */
#include <xxhash.h> /* XXH3_128bits_withSeed */

enum {
    CHOICES_MOST = 128,
    STOPS_MOST = 16,
    TOP_LOGPROBS_MOST = 20,
    MAX_TOKENS_MOST = MAX_TOKENS_BOUND,
    MAX_TOKENS_PLAIN = 8192, /* the published defaults: thinking off, on, and with effort max */
    MAX_TOKENS_THINKING = 65536,
    MAX_TOKENS_MAX_EFFORT = 131072,
    IGNORED_NAMES_MOST = 32, /* names counted one by one; the rest together */
    KNOWN_GRAMMARS = 256,
    STATUS_BAD_REQUEST = 400,
    STATUS_NOT_FOUND = 404,
};

#define UNSUPPORTED "is not supported by this version; leave it out"
#define INVALID_REQUEST "invalid_request_error"
#define OTHER_FIELDS "(others)"

/* A field of the body that was not understood, and how many lines had it. */
struct ignored_field {
    char name[64];
    int64_t count;
};

struct request_parser {
    struct request_options options;
    int32_t vocabulary; /* ids are below */
    struct prompt_format *format;
    struct json_document *document;
    struct conversation conversation;
    struct prompt prompt;
    const struct tokenizer *tokenizer;
    XXH128_hash_t known_grammars[KNOWN_GRAMMARS]; /* hashes of specifications that compiled; zero: none */
    struct token_list spans;                      /* token_ids with the images' spans */
    struct request_image *images;                 /* [image_capacity] */
    size_t image_capacity;
    int32_t asked_tokens; /* of the line parsed last: the answer's, 0 when not given */
    const char *asked_field;
    struct refusal refusal;
    struct ignored_field ignored[IGNORED_NAMES_MOST + 1]; /* the last one counts all other names */
    int ignored_count;
    struct buffer ignored_text;
    /* Arrays that a struct sampling points into, grown as lines need. */
    int32_t *bias_ids;
    float *bias_values;
    size_t bias_capacity;
    int32_t *stop_ids;
    size_t stop_id_capacity;
    struct text_piece stops[STOPS_MOST];
};

/* One body being read. */
struct reading {
    struct request_parser *parser;
    struct sampling *sampling;
    struct refusal *refusal;
    enum request_kind kind;
    bool logprobs;
    int32_t max_tokens, max_completion_tokens, top_logprobs; /* -1: not given */
    enum result trouble;                                     /* not the line's fault: no memory */
};

/* ---- kinds of fields; each stores the value, or refuses it and returns false ---- */

static bool read_float(struct reading *reading, const struct json *value, const char *expected, float least,
    bool least_included, float most, float *number) {
    double wide;
    if (!json_double(value, &wide))
        return refuse_value(reading->refusal, value->key, expected, value);
    if (wide < (double)least || wide > (double)most || (!least_included && (float)wide == least))
        return refuse_value(reading->refusal, value->key, expected, value);
    *number = (float)wide;
    return true;
}

static bool read_integer(struct reading *reading, const struct json *value, const char *expected,
    int64_t least, int64_t most, int32_t *number) {
    int64_t wide;
    if (!json_int64(value, &wide) || wide < least || wide > most)
        return refuse_value(reading->refusal, value->key, expected, value);
    *number = (int32_t)wide;
    return true;
}

static bool read_flag(struct reading *reading, const struct json *value, bool *flag) {
    if (value->kind != JSON_TRUE && value->kind != JSON_FALSE)
        return refuse_value(reading->refusal, value->key, "true or false", value);
    *flag = value->kind == JSON_TRUE;
    return true;
}

/* ---- the body's fields ---- */

static bool read_temperature(struct reading *reading, const struct json *value) {
    return read_float(reading, value, "a number from 0 to 2", 0, true, 2, &reading->sampling->temperature);
}

static bool read_top_p(struct reading *reading, const struct json *value) {
    return read_float(reading, value, "a number above 0 and up to 1", 0, false, 1, &reading->sampling->top_p);
}

static bool read_min_p(struct reading *reading, const struct json *value) {
    return read_float(reading, value, "a number from 0 to 1", 0, true, 1, &reading->sampling->min_p);
}

static bool read_top_k(struct reading *reading, const struct json *value) {
    if (!read_integer(reading, value, "an integer of at least 0 (0 or -1: off)", -1, INT32_MAX,
            &reading->sampling->top_k))
        return false;
    if (reading->sampling->top_k < 0)
        reading->sampling->top_k = 0;
    return true;
}

static bool read_presence_penalty(struct reading *reading, const struct json *value) {
    return read_float(
        reading, value, "a number from -2 to 2", -2, true, 2, &reading->sampling->presence_penalty);
}

static bool read_frequency_penalty(struct reading *reading, const struct json *value) {
    return read_float(
        reading, value, "a number from -2 to 2", -2, true, 2, &reading->sampling->frequency_penalty);
}

static bool read_seed(struct reading *reading, const struct json *value) {
    int64_t seed;
    if (!json_int64(value, &seed) || seed < 0)
        return refuse_value(reading->refusal, value->key, "an integer from 0 to 9223372036854775807", value);
    reading->sampling->seed = seed;
    reading->sampling->has_seed = true;
    return true;
}

static bool read_choices(struct reading *reading, const struct json *value) {
    return read_integer(
        reading, value, "an integer from 1 to 128", 1, CHOICES_MOST, &reading->sampling->choices);
}

static bool read_max_tokens(struct reading *reading, const struct json *value) {
    return read_integer(
        reading, value, "an integer from 1 to 393216", 1, MAX_TOKENS_MOST, &reading->max_tokens);
}

/* What is above the bound is lowered to it. */
static bool read_messages_max_tokens(struct reading *reading, const struct json *value) {
    uint64_t wide;
    if (!json_uint64(value, &wide) || !wide)
        return refuse_value(reading->refusal, value->key, "an integer of at least 1", value);
    reading->max_tokens = wide < MAX_TOKENS_MOST ? (int32_t)wide : MAX_TOKENS_MOST;
    return true;
}

static bool read_max_completion_tokens(struct reading *reading, const struct json *value) {
    return read_integer(
        reading, value, "an integer from 1 to 393216", 1, MAX_TOKENS_MOST, &reading->max_completion_tokens);
}

static bool read_logprobs(struct reading *reading, const struct json *value) {
    return read_flag(reading, value, &reading->logprobs);
}

static bool read_top_logprobs(struct reading *reading, const struct json *value) {
    if (reading->kind == KIND_RESPONSES)
        reading->logprobs = true;
    return read_integer(
        reading, value, "an integer from 0 to 20", 0, TOP_LOGPROBS_MOST, &reading->top_logprobs);
}

static bool read_ignore_eos(struct reading *reading, const struct json *value) {
    return read_flag(reading, value, &reading->sampling->ignore_eos);
}

static bool read_stream(struct reading *reading, const struct json *value) {
    bool stream = false;
    if (!read_flag(reading, value, &stream))
        return false;
    if (stream)
        return refuse(
            reading->refusal, CODE_VALUE, "stream", "expected false: a campaign's answers are whole");
    return true;
}

static bool add_stop(struct reading *reading, const struct json *stop, const char *param) {
    struct sampling *sampling = reading->sampling;
    if (stop->kind != JSON_STRING || !stop->bytes)
        return refuse_value(reading->refusal, param, "a string of at least one character", stop);
    reading->parser->stops[sampling->stop_count++] =
        (struct text_piece){.data = stop->text, .bytes = stop->bytes};
    return true;
}

static bool read_stop_list(struct reading *reading, const struct json *value) {
    reading->sampling->stop_count = 0;
    if (value->kind != JSON_ARRAY)
        return refuse_value(reading->refusal, value->key, "an array of 1 to 16 strings", value);
    if (!value->count || value->count > STOPS_MOST)
        return refuse(
            reading->refusal, CODE_VALUE, value->key, "expected 1 to 16 strings, found %zu", value->count);
    int index = 0;
    for (const struct json *stop = value->first; stop; stop = stop->next, index++) {
        char param[32];
        snprintf(param, sizeof param, "%s[%d]", value->key, index);
        if (!add_stop(reading, stop, param))
            return false;
    }
    return true;
}

static bool read_stop(struct reading *reading, const struct json *value) {
    reading->sampling->stop_count = 0;
    if (value->kind == JSON_STRING)
        return add_stop(reading, value, "stop");
    if (value->kind != JSON_ARRAY)
        return refuse_value(reading->refusal, "stop", "a string or an array of 1 to 16 strings", value);
    return read_stop_list(reading, value);
}

static bool read_unsupported(struct reading *reading, const struct json *value) {
    return refuse(reading->refusal, CODE_UNSUPPORTED, value->key, UNSUPPORTED);
}

/* Makes room for `count` elements; what was there is lost. */
static bool reserve_ids(struct reading *reading, int32_t **ids, size_t *capacity, size_t count) {
    if (count <= *capacity)
        return true;
    free(*ids);
    *capacity = 0;
    *ids = malloc(count * sizeof **ids);
    if (!*ids) {
        reading->trouble = fail(ERROR_MEMORY, "no memory for a request's %zu token ids", count);
        return false;
    }
    *capacity = count;
    return true;
}

static bool read_stop_ids(struct reading *reading, const struct json *value) {
    struct request_parser *parser = reading->parser;
    if (value->kind != JSON_ARRAY)
        return refuse_value(reading->refusal, value->key, "an array of token ids", value);
    if (!reserve_ids(reading, &parser->stop_ids, &parser->stop_id_capacity, value->count))
        return false;
    int32_t count = 0;
    for (const struct json *id = value->first; id; id = id->next) {
        int64_t number;
        if (!json_int64(id, &number) || number < 0 || number >= parser->vocabulary) {
            char param[48];
            snprintf(param, sizeof param, "stop_token_ids[%d]", (int)count);
            return refuse(reading->refusal, CODE_VALUE, param, "expected a token id from 0 to %d, found %s",
                (int)parser->vocabulary - 1, json_excerpt(id).text);
        }
        parser->stop_ids[count++] = (int32_t)number;
    }
    reading->sampling->stop_ids = parser->stop_ids;
    reading->sampling->stop_id_count = count;
    return true;
}

/* A key of logit_bias: decimal digits without a sign or leading zeros, so that no id can stand there twice. */
static bool read_bias_id(const struct json *member, int32_t vocabulary, int32_t *id) {
    int64_t number = 0;
    if (!member->key_bytes || (member->key[0] == '0' && member->key_bytes > 1))
        return false;
    for (size_t i = 0; i < member->key_bytes; i++) {
        if (member->key[i] < '0' || member->key[i] > '9')
            return false;
        number = 10 * number + (member->key[i] - '0');
        if (number >= vocabulary)
            return false;
    }
    *id = (int32_t)number;
    return true;
}

static bool reserve_bias(struct reading *reading, size_t count) {
    struct request_parser *parser = reading->parser;
    if (count <= parser->bias_capacity)
        return true;
    if (!reserve_ids(reading, &parser->bias_ids, &parser->bias_capacity, count))
        return false;
    free(parser->bias_values);
    parser->bias_values = malloc(count * sizeof *parser->bias_values);
    if (!parser->bias_values) {
        parser->bias_capacity = 0;
        reading->trouble = fail(ERROR_MEMORY, "no memory for a request's logit_bias of %zu ids", count);
        return false;
    }
    return true;
}

static bool read_logit_bias(struct reading *reading, const struct json *value) {
    struct request_parser *parser = reading->parser;
    if (value->kind != JSON_OBJECT)
        return refuse_value(reading->refusal, value->key, "an object of token ids and numbers", value);
    if (!reserve_bias(reading, value->count))
        return false;
    int32_t count = 0;
    for (const struct json *member = value->first; member; member = member->next, count++) {
        char name[48], param[64];
        double bias;
        copy_text(name, sizeof name, member->key, member->key_bytes);
        snprintf(param, sizeof param, "logit_bias[\"%s\"]", name);
        if (!read_bias_id(member, parser->vocabulary, &parser->bias_ids[count]))
            return refuse(reading->refusal, CODE_VALUE, param,
                "expected a token id from 0 to %d in decimal digits", (int)parser->vocabulary - 1);
        if (!json_double(member, &bias) || bias < -100 || bias > 100)
            return refuse_value(reading->refusal, param, "a number from -100 to 100", member);
        parser->bias_values[count] = (float)bias;
    }
    reading->sampling->bias_ids = parser->bias_ids;
    reading->sampling->bias_values = parser->bias_values;
    reading->sampling->bias_count = count;
    return true;
}

enum { IN_CHAT = 1, IN_RESPONSES = 2, IN_MESSAGES = 4, IN_ALL = 7 };

struct field {
    const char *name;
    unsigned kinds;                                                  /* of bodies that have it */
    bool (*read)(struct reading *reading, const struct json *value); /* NULL: read elsewhere, or harmless */
};

static const struct field FIELDS[] = {
    {"model", IN_ALL, NULL}, /* checked before all others */
    /* Read by the readers of bodies. */
    {"messages", IN_CHAT | IN_MESSAGES, NULL},
    {"input", IN_RESPONSES, NULL},
    {"instructions", IN_RESPONSES, NULL},
    {"system", IN_MESSAGES, NULL},
    {"thinking", IN_CHAT | IN_MESSAGES, NULL},
    {"reasoning_effort", IN_CHAT, NULL},
    {"reasoning", IN_RESPONSES, NULL},
    {"output_config", IN_MESSAGES, NULL},
    {"tools", IN_ALL, NULL},
    {"tool_choice", IN_ALL, NULL},
    {"response_format", IN_CHAT, NULL},
    {"text", IN_RESPONSES, NULL},
    {"temperature", IN_ALL, read_temperature},
    {"top_p", IN_ALL, read_top_p},
    {"max_tokens", IN_CHAT, read_max_tokens},
    {"max_tokens", IN_MESSAGES, read_messages_max_tokens},
    {"max_completion_tokens", IN_CHAT, read_max_completion_tokens},
    {"max_output_tokens", IN_RESPONSES, read_max_tokens},
    {"stop", IN_CHAT, read_stop},
    {"stop_sequences", IN_MESSAGES, read_stop_list},
    {"seed", IN_ALL, read_seed},
    {"n", IN_CHAT, read_choices},
    {"logprobs", IN_CHAT, read_logprobs},
    {"top_logprobs", IN_CHAT | IN_RESPONSES, read_top_logprobs},
    {"presence_penalty", IN_CHAT, read_presence_penalty},
    {"frequency_penalty", IN_CHAT, read_frequency_penalty},
    {"logit_bias", IN_ALL, read_logit_bias},
    {"stream", IN_ALL, read_stream},
    {"functions", IN_CHAT, read_unsupported},
    {"function_call", IN_CHAT, read_unsupported},
    {"audio", IN_CHAT, read_unsupported},
    {"web_search_options", IN_CHAT, read_unsupported},
    {"previous_response_id", IN_RESPONSES, read_unsupported},
    {"conversation", IN_RESPONSES, read_unsupported},
    {"mcp_servers", IN_MESSAGES, NULL},
    /* Extensions. */
    {"top_k", IN_ALL, read_top_k},
    {"min_p", IN_ALL, read_min_p},
    {"stop_token_ids", IN_ALL, read_stop_ids},
    {"ignore_eos", IN_ALL, read_ignore_eos},
    /* Without a meaning for an answer's text. */
    {"user", IN_CHAT | IN_RESPONSES, NULL},
    {"user_id", IN_CHAT, NULL},
    {"metadata", IN_ALL, NULL},
    {"store", IN_CHAT | IN_RESPONSES, NULL},
    {"service_tier", IN_ALL, NULL},
    {"parallel_tool_calls", IN_CHAT | IN_RESPONSES, NULL},
    {"stream_options", IN_CHAT | IN_RESPONSES, NULL},
    {"prediction", IN_CHAT, NULL},
    {"safety_identifier", IN_CHAT | IN_RESPONSES, NULL},
    {"prompt_cache_key", IN_CHAT | IN_RESPONSES, NULL},
    {"prompt_cache_retention", IN_CHAT | IN_RESPONSES, NULL},
    {"include", IN_RESPONSES, NULL},
    {"truncation", IN_RESPONSES, NULL},
    {"background", IN_RESPONSES, NULL},
    {"cache_control", IN_MESSAGES, NULL},
};

static const struct field *find_field(enum request_kind kind, const struct json *member) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof FIELDS[0]; i++) {
        if (FIELDS[i].kinds & 1u << kind && strlen(FIELDS[i].name) == member->key_bytes &&
            !memcmp(FIELDS[i].name, member->key, member->key_bytes))
            return &FIELDS[i];
    }
    return NULL;
}

static void count_ignored(struct request_parser *parser, const struct json *member) {
    char name[sizeof parser->ignored[0].name];
    copy_text(name, sizeof name, member->key, member->key_bytes);
    for (int i = 0; i < parser->ignored_count; i++) {
        if (!strcmp(parser->ignored[i].name, name)) {
            parser->ignored[i].count++;
            return;
        }
    }
    if (parser->ignored_count == IGNORED_NAMES_MOST) {
        parser->ignored[IGNORED_NAMES_MOST].count++;
        return;
    }
    struct ignored_field *field = &parser->ignored[parser->ignored_count++];
    memcpy(field->name, name, sizeof field->name);
    field->count = 1;
}

static bool read_unknown(struct reading *reading, const struct json *member) {
    if (!reading->parser->options.strict) {
        count_ignored(reading->parser, member);
        return true;
    }
    char name[sizeof reading->refusal->param];
    copy_text(name, sizeof name, member->key, member->key_bytes);
    return refuse(
        reading->refusal, CODE_UNKNOWN, name, "unknown field; leave it out, or run without --strict");
}

static bool read_fields(struct reading *reading, const struct json *body) {
    for (const struct json *member = body->first; member; member = member->next) {
        if (member->kind == JSON_NULL) /* the same as absent */
            continue;
        const struct field *field = find_field(reading->kind, member);
        if (!field && !read_unknown(reading, member))
            return false;
        /* The toolkit's own fields are read by its rules, and it knows no others. */
        if (field && field->read && !reading->parser->options.toolkit && !field->read(reading, member))
            return false;
    }
    if (reading->top_logprobs >= 0 && !reading->logprobs)
        return refuse(reading->refusal, CODE_VALUE, "top_logprobs", "needs logprobs to be true");
    reading->sampling->top_logprobs = !reading->logprobs          ? -1
                                      : reading->top_logprobs < 0 ? 0
                                                                  : reading->top_logprobs;
    return true;
}

/* ---- length ---- */

static int32_t default_max_tokens(const struct request_parser *parser) {
    if (parser->options.default_max_tokens)
        return parser->options.default_max_tokens;
    if (!parser->conversation.thinking)
        return MAX_TOKENS_PLAIN;
    return parser->conversation.effort == EFFORT_MAX ? MAX_TOKENS_MAX_EFFORT : MAX_TOKENS_THINKING;
}

/* Sets the answer's bound from what the line asked for and what the context leaves. */
static bool fit_context(
    const struct request_parser *parser, size_t prompt, struct refusal *refusal, int32_t *max_tokens) {
    size_t context = (size_t)parser->options.context, asked = (size_t)parser->asked_tokens;
    /* An answer has a token at least; the toolkit lets a prompt fill the context. */
    size_t needed = asked || parser->options.toolkit ? asked : 1;
    if (prompt + needed > context) {
        const char *conversation =
            parser->asked_field[0] == 'm' && parser->asked_field[1] == 'a' && parser->asked_field[4] == 'o'
                ? "input"
                : "messages";
        const char *param = !asked || prompt > context ? conversation : parser->asked_field;
        refusal->code = "context_length_exceeded";
        snprintf(refusal->param, sizeof refusal->param, "%s", param);
        snprintf(refusal->message, sizeof refusal->message,
            "This model's maximum context length is %zu tokens. However, you requested %zu tokens (%zu in "
            "the messages, "
            "%zu in the completion). Please reduce the length of the messages or completion.",
            context, prompt + needed, prompt, needed);
        return false;
    }
    size_t room = context > prompt ? context - prompt : 1;
    size_t tokens = asked ? asked : (size_t)default_max_tokens(parser);
    *max_tokens = (int32_t)(tokens < room ? tokens : room);
    return true;
}

static bool check_images(struct request_parser *parser) {
    const struct conversation *conversation = &parser->conversation;
    if (!conversation->image_count || parser->options.images)
        return true;
    char param[sizeof parser->refusal.param];
    copy_text(param, sizeof param, conversation->images[0].path.data, conversation->images[0].path.bytes);
    return refuse(&parser->refusal, CODE_UNSUPPORTED, param, "images are not supported by this version");
}

/* ---- what the answer is held to ---- */

static const char *constraint_field(const struct request *request) {
    static const char *const schemas[] = {[KIND_CHAT] = "response_format.json_schema.schema",
        [KIND_RESPONSES] = "text.format.schema",
        [KIND_MESSAGES] = "output_config.format.schema"};
    static const char *const patterns[] = {[KIND_CHAT] = "response_format.regex",
        [KIND_RESPONSES] = "text.format.regex",
        [KIND_MESSAGES] = "output_config.format.regex"};
    switch (request->constraint) {
    case CONSTRAINT_JSON:
        return schemas[request->kind];
    case CONSTRAINT_REGEX:
        return patterns[request->kind];
    default:
        return "tools";
    }
}

/* What tells a specification from others; compiling the same again would tell nothing new. */
static XXH128_hash_t specification_hash(const struct grammar_specification *specification) {
    uint64_t flags = (uint64_t)specification->kind << 8 | (uint64_t)specification->tool_choice << 4 |
                     (uint64_t)specification->strict << 2 | (uint64_t)specification->compact << 1 |
                     specification->one_call;
    return XXH3_128bits_withSeed(specification->text, specification->bytes, flags + 1);
}

/* Compiles the answer's grammar: what it cannot hold is the line's error. *accepted false: the refusal says why. */
static enum result check_constraint(
    struct request_parser *parser, const struct request *request, bool *accepted) {
    struct grammar_specification specification;
    struct grammar *grammar = NULL;
    if (!request_specification(request, parser->tokenizer, &specification))
        return OK;
    XXH128_hash_t hash = specification_hash(&specification);
    XXH128_hash_t *known = &parser->known_grammars[hash.low64 % KNOWN_GRAMMARS];
    if (XXH128_isEqual(*known, hash))
        return OK;
    enum result status = grammar_compile(&specification, &grammar);
    grammar_free(grammar);
    if (status == OK)
        *known = hash;
    if (status != ERROR_INPUT)
        return status;
    *accepted = false;
    refuse(&parser->refusal, CODE_VALUE, constraint_field(request), "%.900s", failure_message());
    return OK;
}

/* ---- the line ---- */

/* The line's own fields, besides custom_id. */
static bool read_envelope(struct request_parser *parser, const struct json *line, const struct json **body,
    enum request_kind *kind) {
    static const char *const endpoints[] = {[KIND_CHAT] = "/v1/chat/completions",
        [KIND_RESPONSES] = "/v1/responses",
        [KIND_MESSAGES] = "/v1/messages"};
    const struct json *method = json_member(line, "method"), *url = json_member(line, "url");
    int known = 0;
    *body = json_member(line, "body");
    if (!json_is_text(method, "POST"))
        return refuse_value(&parser->refusal, "method", "\"POST\"", method);
    while (known <= KIND_MESSAGES && !json_is_text(url, endpoints[known]))
        known++;
    if (known > KIND_MESSAGES)
        return refuse_value(
            &parser->refusal, "url", "/v1/chat/completions, /v1/responses or /v1/messages", url);
    *kind = (enum request_kind)known;
    if (!*body || (*body)->kind != JSON_OBJECT)
        return refuse_value(&parser->refusal, "body", "an object", *body);
    return true;
}

static bool read_custom_id(
    struct request_parser *parser, const struct json *line, struct text_piece *custom_id) {
    const struct json *value = json_member(line, "custom_id");
    if (!value || value->kind != JSON_STRING)
        return refuse_value(&parser->refusal, "custom_id", "a string", value);
    *custom_id = (struct text_piece){.data = value->text, .bytes = value->bytes};
    return true;
}

/* The toolkit's sampling, as the engine takes it. */
static void take_toolkit_sampling(
    struct reading *reading, const struct toolkit_sampling *from, struct sampling *sampling) {
    struct request_parser *parser = reading->parser;
    sampling->temperature = from->temperature;
    sampling->top_p = from->top_p;
    sampling->has_seed = from->has_seed;
    sampling->seed = from->seed;
    sampling->top_logprobs = !from->logprobs ? -1 : from->top_logprobs < 0 ? 0 : from->top_logprobs;
    sampling->stop_count = (int32_t)from->stop_count;
    if (from->stop_count)
        memcpy(parser->stops, from->stops, from->stop_count * sizeof *parser->stops);
    reading->max_tokens = (int32_t)from->max_tokens;
    reading->max_completion_tokens = -1;
}

static bool read_conversation(struct reading *reading, const struct json *body, struct sampling *sampling) {
    struct request_parser *parser = reading->parser;
    struct body_reader reader = {.conversation = &parser->conversation,
        .refusal = &parser->refusal,
        .policies = &TOOLKIT_DEFAULTS,
        .model_names = parser->options.model_names,
        .toolkit = parser->options.toolkit};
    static bool (*const readers[])(struct body_reader *, const struct json *, struct toolkit_sampling *) = {
        [KIND_CHAT] = chat_body_read,
        [KIND_RESPONSES] = responses_body_read,
        [KIND_MESSAGES] = messages_body_read};
    struct toolkit_sampling toolkit = {0};
    if (!readers[reading->kind](&reader, body, parser->options.toolkit ? &toolkit : NULL))
        return false;
    if (parser->options.toolkit)
        take_toolkit_sampling(reading, &toolkit, sampling);
    return true;
}

static bool read_model(struct request_parser *parser, const struct json *body, struct text_piece *name) {
    const struct json *model = json_member(body, "model");
    struct body_reader reader = {.refusal = &parser->refusal, .model_names = parser->options.model_names};
    if (!model || model->kind != JSON_STRING)
        return refuse_value(&parser->refusal, "model", "the model's name", model);
    *name = (struct text_piece){.data = model->text, .bytes = model->bytes};
    return check_model(&reader, body);
}

static void describe_answer(const struct request_parser *parser, struct request *request) {
    const struct conversation *conversation = &parser->conversation;
    const struct buffer *text = &conversation->constraint_text;
    request->start = conversation->start;
    request->thinking = request->start == START_REASONING || request->start == START_REASONING_CONTINUATION;
    request->parse_tool_calls = conversation->parse_tool_calls;
    request->json_output = conversation->json_output;
    request->constraint = conversation->constraint;
    if (conversation->format == FORMAT_TEXT && conversation->tools.count &&
        conversation->tool_choice == TOOL_CHOICE_NONE)
        request->constraint = CONSTRAINT_NO_TOOL_CALL;
    request->constraint_text = (struct text_piece){text->data ? text->data : "", text->bytes};
    request->constraint_strict = conversation->strict && request->constraint == CONSTRAINT_JSON;
    request->constraint_compact = conversation->compact && request->constraint == CONSTRAINT_JSON;
    request->one_call = conversation->one_call && conversation->parse_tool_calls;
    request->token_ids = parser->prompt.ids.ids;
    request->token_count = (int32_t)parser->prompt.ids.count;
}

static void note_length(const struct reading *reading) {
    static const char *const fields[] = {
        [KIND_CHAT] = "max_tokens", [KIND_RESPONSES] = "max_output_tokens", [KIND_MESSAGES] = "max_tokens"};
    bool completion = reading->max_completion_tokens >= 0;
    int32_t given = completion ? reading->max_completion_tokens : reading->max_tokens;
    reading->parser->asked_tokens = given > 0 ? given : 0;
    reading->parser->asked_field = completion ? "max_completion_tokens" : fields[reading->kind];
}

static enum result read_body(
    struct request_parser *parser, const struct json *body, struct request *request, bool *accepted) {
    request->sampling = (struct sampling){
        .temperature = 1, .top_p = 1, .choices = 1, .top_logprobs = -1, .stops = parser->stops};
    struct reading reading = {
        .parser = parser,
        .sampling = &request->sampling,
        .refusal = &parser->refusal,
        .kind = request->kind,
        .max_tokens = -1,
        .max_completion_tokens = -1,
        .top_logprobs = -1,
    };
    conversation_clear(&parser->conversation);
    *accepted = read_fields(&reading, body);
    if (reading.trouble != OK || !*accepted)
        return reading.trouble;
    *accepted = read_conversation(&reading, body, &request->sampling) && check_images(parser);
    if (!*accepted)
        return OK;
    note_length(&reading);
    TRY(prompt_render(parser->format, &parser->conversation, &parser->prompt));
    TRY(prompt_encode(parser->format, &parser->prompt));
    *accepted =
        fit_context(parser, parser->prompt.ids.count, &parser->refusal, &request->sampling.max_tokens);
    describe_answer(parser, request);
    return *accepted ? check_constraint(parser, request, accepted) : OK;
}

static void copy_refusal(const struct request_parser *parser, struct request_error *error) {
    error->status = strcmp(parser->refusal.code, CODE_MODEL) ? STATUS_BAD_REQUEST : STATUS_NOT_FOUND;
    error->type = INVALID_REQUEST;
    error->code = parser->refusal.code;
    error->param = parser->refusal.param;
    memcpy(error->message, parser->refusal.message, sizeof error->message);
}

/* A line that is no JSON object was never a request: it gets no reply, only a code. */
static void report_bad_line(struct request_error *error, const char *what) {
    error->status = 0;
    error->code = "invalid_json_line";
    snprintf(error->message, sizeof error->message, "the line is no request: %.900s", what);
}

/* The JSON reader counts lines of its text; here there is one, and its number is told apart. */
static const char *without_line(const char *message) {
    static const char line[] = "line 1 ";
    return strncmp(message, line, sizeof line - 1) ? message : message + sizeof line - 1;
}

enum result request_parse(struct request_parser *parser, const char *text, size_t bytes,
    struct request *request, struct request_error *error, bool *accepted) {
    const struct json *line, *body = NULL;
    *accepted = false;
    *request = (struct request){0};
    *error = (struct request_error){0};
    enum result parsed = json_parse(parser->document, text, bytes, &line);
    if (parsed == ERROR_INPUT) {
        report_bad_line(error, without_line(failure_message()));
        return OK;
    }
    TRY(parsed);
    if (line->kind != JSON_OBJECT) {
        report_bad_line(error, "expected a JSON object with custom_id, method, url and body");
        return OK;
    }
    error->has_custom_id = read_custom_id(parser, line, &error->custom_id);
    request->custom_id = error->custom_id;
    bool readable = error->has_custom_id && read_envelope(parser, line, &body, &request->kind) &&
                    read_model(parser, body, &request->model);
    if (readable)
        TRY(read_body(parser, body, request, accepted));
    if (!*accepted)
        copy_refusal(parser, error);
    return OK;
}

/* ---- images ---- */

const struct image_reference *request_images(const struct request_parser *parser, size_t *count) {
    *count = parser->conversation.image_count;
    return parser->conversation.images;
}

static enum result reserve_images(struct request_parser *parser, size_t count) {
    if (count <= parser->image_capacity)
        return OK;
    struct request_image *grown = realloc(parser->images, count * sizeof *grown);
    if (!grown)
        return fail(ERROR_MEMORY, "no memory for a request's %zu images", count);
    parser->images = grown;
    parser->image_capacity = count;
    return OK;
}

enum result request_place_images(struct request_parser *parser, const int64_t *images, const int32_t *tokens,
    struct request *request, struct request_error *error, bool *accepted) {
    const struct token_list *ids = &parser->prompt.ids;
    size_t count = parser->conversation.image_count, image = 0, start = 0;
    int32_t marker = prompt_image_id(parser->format);
    TRY(reserve_images(parser, count));
    parser->spans.count = 0;
    request->image_tokens = 0;
    /* Only images are given the marker's id: its spelling in text is encoded as text. */
    for (size_t i = 0; i < ids->count && image < count; i++) {
        if (ids->ids[i] != marker)
            continue;
        token_list_append(&parser->spans, ids->ids + start, i - start);
        start = i + 1;
        parser->images[image] =
            (struct request_image){.image = images[image], .position = (int32_t)parser->spans.count};
        for (int32_t k = 0; k < tokens[image]; k++)
            token_list_append(&parser->spans, &marker, 1);
        request->image_tokens += tokens[image++];
    }
    if (image < count)
        return fail(ERROR_INPUT, "tokenizer.json: added_tokens has no image token, which images need");
    token_list_append(&parser->spans, ids->ids + start, ids->count - start);
    request->images = parser->images;
    request->image_count = (int32_t)count;
    request->token_ids = parser->spans.ids;
    request->token_count = (int32_t)parser->spans.count;
    *accepted = fit_context(parser, parser->spans.count, &parser->refusal, &request->sampling.max_tokens);
    if (!*accepted)
        copy_refusal(parser, error);
    return OK;
}

/* ---- the parser ---- */

enum result request_parser_create(const struct tokenizer *tokenizer, const struct request_options *options,
    struct request_parser **result) {
    enum result status = OK;
    struct request_parser *parser = calloc(1, sizeof *parser);
    if (!parser)
        return fail(ERROR_MEMORY, "no memory for reading requests");
    parser->options = *options;
    parser->tokenizer = tokenizer;
    parser->vocabulary = tokenizer_size(tokenizer);
    snprintf(parser->ignored[IGNORED_NAMES_MOST].name, sizeof parser->ignored[0].name, OTHER_FIELDS);
    TRY_GOTO(status, prompt_format_create(tokenizer, &parser->format), done);
    TRY_GOTO(status, json_document_create(&parser->document), done);
    *result = parser;
    parser = NULL;
done:
    request_parser_free(parser);
    return status;
}

void request_parser_free(struct request_parser *parser) {
    if (!parser)
        return;
    prompt_format_free(parser->format);
    conversation_free(&parser->conversation);
    prompt_free(&parser->prompt);
    free(parser->spans.ids);
    free(parser->images);
    json_document_free(parser->document);
    buffer_free(&parser->ignored_text);
    free(parser->bias_ids);
    free(parser->bias_values);
    free(parser->stop_ids);
    free(parser);
}

const char *request_parser_ignored_fields(struct request_parser *parser) {
    buffer_clear(&parser->ignored_text);
    buffer_append_text(&parser->ignored_text, "");
    for (int i = 0; i <= IGNORED_NAMES_MOST; i++) {
        const struct ignored_field *field = &parser->ignored[i];
        if (field->count)
            buffer_printf(&parser->ignored_text, "%s%s=%lld", parser->ignored_text.bytes ? ", " : "",
                field->name, (long long)field->count);
    }
    return parser->ignored_text.data;
}

#include "recipe/request.h"

#include "base/json.h"
#include "recipe/chat.h"    /* struct chat_format */
#include "recipe/refusal.h" /* refuse, refuse_value */

#include <stdio.h>   /* snprintf */
#include <stdlib.h>  /* calloc, realloc, free */
#include <string.h>  /* memcmp, strlen */
#include <strings.h> /* strncasecmp */

enum {
    CHOICES_MOST = 128,
    STOPS_MOST = 16,
    TOP_LOGPROBS_MOST = 20,
    MAX_TOKENS_MOST = 393216, /* the published bound */
    MAX_TOKENS_PLAIN = 8192,  /* the published defaults: thinking off, on, and with effort max */
    MAX_TOKENS_THINKING = 65536,
    MAX_TOKENS_MAX_EFFORT = 131072,
    IGNORED_NAMES_MOST = 32, /* names counted one by one; the rest together */
    STATUS_BAD_REQUEST = 400,
    STATUS_NOT_FOUND = 404,
};

#define ENDPOINT "/v1/chat/completions"
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
    struct chat_format *format;
    struct json_document *document;
    struct chat_prompt prompt;
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

static bool read_max_completion_tokens(struct reading *reading, const struct json *value) {
    return read_integer(
        reading, value, "an integer from 1 to 393216", 1, MAX_TOKENS_MOST, &reading->max_completion_tokens);
}

static bool read_logprobs(struct reading *reading, const struct json *value) {
    return read_flag(reading, value, &reading->logprobs);
}

static bool read_top_logprobs(struct reading *reading, const struct json *value) {
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

static bool read_stop(struct reading *reading, const struct json *value) {
    reading->sampling->stop_count = 0;
    if (value->kind == JSON_STRING)
        return add_stop(reading, value, "stop");
    if (value->kind != JSON_ARRAY)
        return refuse_value(reading->refusal, "stop", "a string or an array of 1 to 16 strings", value);
    if (!value->count || value->count > STOPS_MOST)
        return refuse(
            reading->refusal, CODE_VALUE, "stop", "expected 1 to 16 strings, found %zu", value->count);
    int index = 0;
    for (const struct json *stop = value->first; stop; stop = stop->next, index++) {
        char param[32];
        snprintf(param, sizeof param, "stop[%d]", index);
        if (!add_stop(reading, stop, param))
            return false;
    }
    return true;
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

struct field {
    const char *name;
    bool (*read)(struct reading *reading, const struct json *value); /* NULL: read elsewhere, or harmless */
};

static const struct field FIELDS[] = {
    {"model", NULL}, /* checked before all others */
    /* Read by the chat format. */
    {"messages", NULL},
    {"thinking", NULL},
    {"reasoning_effort", NULL},
    {"tools", NULL},
    {"tool_choice", NULL},
    {"response_format", NULL},
    {"temperature", read_temperature},
    {"top_p", read_top_p},
    {"max_tokens", read_max_tokens},
    {"max_completion_tokens", read_max_completion_tokens},
    {"stop", read_stop},
    {"seed", read_seed},
    {"n", read_choices},
    {"logprobs", read_logprobs},
    {"top_logprobs", read_top_logprobs},
    {"presence_penalty", read_presence_penalty},
    {"frequency_penalty", read_frequency_penalty},
    {"logit_bias", read_logit_bias},
    {"stream", read_stream},
    /* Extensions. */
    {"top_k", read_top_k},
    {"min_p", read_min_p},
    {"stop_token_ids", read_stop_ids},
    {"ignore_eos", read_ignore_eos},
    /* Without a meaning for an answer's text. */
    {"user", NULL},
    {"user_id", NULL},
    {"metadata", NULL},
    {"store", NULL},
    {"service_tier", NULL},
    {"parallel_tool_calls", NULL},
    {"stream_options", NULL},
    {"prediction", NULL},
    {"safety_identifier", NULL},
    {"prompt_cache_key", NULL},
    {"prompt_cache_retention", NULL},
};

static const struct field *find_field(const struct json *member) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof FIELDS[0]; i++) {
        if (strlen(FIELDS[i].name) == member->key_bytes &&
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
        const struct field *field = find_field(member);
        if (!field && !read_unknown(reading, member))
            return false;
        if (field && field->read && !field->read(reading, member))
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
    if (!parser->prompt.thinking)
        return MAX_TOKENS_PLAIN;
    return parser->prompt.effort == EFFORT_MAX ? MAX_TOKENS_MAX_EFFORT : MAX_TOKENS_THINKING;
}

static bool fit_context(struct reading *reading) {
    const struct request_parser *parser = reading->parser;
    size_t context = (size_t)parser->options.context, prompt = parser->prompt.ids.count;
    bool completion = reading->max_completion_tokens >= 0;
    int32_t given = completion ? reading->max_completion_tokens : reading->max_tokens;
    size_t asked = given > 0 ? (size_t)given : 0;
    if (prompt + asked > context) {
        struct refusal *refusal = reading->refusal;
        const char *param = !asked || prompt > context ? "messages"
                            : completion               ? "max_completion_tokens"
                                                       : "max_tokens";
        refusal->code = "context_length_exceeded";
        snprintf(refusal->param, sizeof refusal->param, "%s", param);
        snprintf(refusal->message, sizeof refusal->message,
            "This model's maximum context length is %zu tokens. However, you requested %zu tokens (%zu in "
            "the messages, "
            "%zu in the completion). Please reduce the length of the messages or completion.",
            context, prompt + asked, prompt, asked);
        return false;
    }
    size_t room = context > prompt ? context - prompt : 1;
    size_t tokens = asked ? asked : (size_t)default_max_tokens(parser);
    reading->sampling->max_tokens = (int32_t)(tokens < room ? tokens : room);
    return true;
}

/* ---- the line ---- */

static bool is_accepted_model(const struct request_options *options, const struct json *model) {
    for (const char *const *name = options->model_names; *name; name++) {
        if (strlen(*name) == model->bytes && !strncasecmp(*name, model->text, model->bytes))
            return true;
    }
    return false;
}

/* *status is 404 for a name that is not the model's. */
static bool read_model(
    struct request_parser *parser, const struct json *body, int32_t *status, struct request *request) {
    const struct json *model = json_member(body, "model");
    if (!model || model->kind != JSON_STRING)
        return refuse_value(&parser->refusal, "model", "the model's name", model);
    if (!is_accepted_model(&parser->options, model)) {
        *status = STATUS_NOT_FOUND;
        return refuse(&parser->refusal, "model_not_found", "model",
            "the model %s does not exist here: this campaign runs \"%s\"", json_excerpt(model).text,
            parser->options.model_names[0] ? parser->options.model_names[0] : "");
    }
    request->model = (struct text_piece){.data = model->text, .bytes = model->bytes};
    return true;
}

/* The line's own fields, besides custom_id. */
static bool read_envelope(struct request_parser *parser, const struct json *line, const struct json **body) {
    const struct json *method = json_member(line, "method"), *url = json_member(line, "url");
    *body = json_member(line, "body");
    if (!json_is_text(method, "POST"))
        return refuse_value(&parser->refusal, "method", "\"POST\"", method);
    if (!json_is_text(url, ENDPOINT))
        return refuse_value(&parser->refusal, "url", "\"" ENDPOINT "\"", url);
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

static enum result read_body(
    struct request_parser *parser, const struct json *body, struct request *request, bool *accepted) {
    request->sampling = (struct sampling){.temperature = 1, .top_p = 1, .choices = 1, .stops = parser->stops};
    struct reading reading = {
        .parser = parser,
        .sampling = &request->sampling,
        .refusal = &parser->refusal,
        .max_tokens = -1,
        .max_completion_tokens = -1,
        .top_logprobs = -1,
    };
    *accepted = read_fields(&reading, body);
    if (reading.trouble != OK || !*accepted)
        return reading.trouble;
    TRY(chat_format_render(parser->format, body, &parser->prompt, &parser->refusal, accepted));
    if (!*accepted)
        return OK;
    *accepted = fit_context(&reading);
    request->thinking = parser->prompt.starts_in_reasoning;
    request->token_ids = parser->prompt.ids.ids;
    request->token_count = (int32_t)parser->prompt.ids.count;
    return OK;
}

static void copy_refusal(const struct request_parser *parser, int32_t status, struct request_error *error) {
    error->status = status;
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
    const struct json *line, *body;
    int32_t status = STATUS_BAD_REQUEST;
    *accepted = false;
    *request = (struct request){0};
    *error = (struct request_error){0};
    enum result parsed = json_parse(parser->document, text, bytes, &line);
    if (parsed == ERROR_INPUT) {
        report_bad_line(error, without_line(error_message()));
        return OK;
    }
    TRY(parsed);
    if (line->kind != JSON_OBJECT) {
        report_bad_line(error, "expected a JSON object with custom_id, method, url and body");
        return OK;
    }
    error->has_custom_id = read_custom_id(parser, line, &error->custom_id);
    request->custom_id = error->custom_id;
    bool readable = error->has_custom_id && read_envelope(parser, line, &body) &&
                    read_model(parser, body, &status, request);
    if (readable)
        TRY(read_body(parser, body, request, accepted));
    if (!*accepted)
        copy_refusal(parser, status, error);
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
    parser->vocabulary = tokenizer_size(tokenizer);
    snprintf(parser->ignored[IGNORED_NAMES_MOST].name, sizeof parser->ignored[0].name, OTHER_FIELDS);
    TRY_GOTO(status, chat_format_create(tokenizer, &parser->format), done);
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
    chat_format_free(parser->format);
    json_document_free(parser->document);
    buffer_free(&parser->ignored_text);
    free(parser->prompt.ids.ids);
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

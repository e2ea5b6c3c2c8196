#include "recipe/reply_states.h"

#include <stdio.h>  /* fprintf, snprintf */
#include <stdlib.h> /* realloc, abort */
#include <string.h> /* memset, strlen */

/* ---- the markers of each state ---- */

enum action {
    ACTION_STOP,
    ACTION_BLOCK,         /* a calls block begins */
    ACTION_END_REASONING, /* </think> after reasoning */
    ACTION_DROP,          /* </think> elsewhere */
    ACTION_FENCE,         /* published: a code fence, in which the JSON value stands */
    ACTION_END_FENCE,
    ACTION_JSON, /* the first bracket of the JSON value */
    ACTION_INVOKE,
    ACTION_END_NAME,
    ACTION_PARAMETER,
    ACTION_END_KEY, /* published: the blank after it */
    ACTION_STRING,  /* the tag's end says that a string follows */
    ACTION_RAW,     /* ... a JSON value */
    ACTION_EITHER,  /* repaired: ... doesn't say */
    ACTION_END_VALUE,
    ACTION_END_CALL,
    ACTION_END_BLOCK,
    ACTION_NOT_A_KEY,  /* repaired: another tag inside a key */
    ACTION_NOT_A_NAME, /* repaired: the line ends inside a name */
};

#define AT(state) (1u << (state))
#define VALUES (AT(STATE_STRING) | AT(STATE_RAW))
#define TEXTS (AT(STATE_REASONING) | AT(STATE_CONTENT) | AT(STATE_JSON_BEFORE) | AT(STATE_JSON_AFTER))
#define OPENS (TEXTS | AT(STATE_AFTER_CALLS) | AT(STATE_CALLS))
#define INVOKES (OPENS | AT(STATE_ARGUMENTS))
#define BLOCK_ENDS (AT(STATE_CALLS) | AT(STATE_ARGUMENTS) | VALUES)
#define CALL_ENDS (AT(STATE_ARGUMENTS) | VALUES)

/* \1: the DSML token, \2: </think> (struct marker_text). `newlines`: those before it go with it. */
struct rule {
    unsigned states;
    const char *text;
    enum action action;
    bool newlines, tools; /* tools: only when tool calls are looked for */
};

static const struct rule published[] = {
    {TEXTS, "<\1", ACTION_BLOCK, true, true},
    {AT(STATE_REASONING), "\2", ACTION_END_REASONING, true, false},
    {AT(STATE_CONTENT) | AT(STATE_JSON_BEFORE), "\2", ACTION_DROP, false, false},
    {AT(STATE_JSON_BEFORE), "```json\n", ACTION_FENCE, false, false},
    {AT(STATE_JSON_BEFORE), "```\n", ACTION_FENCE, false, false},
    {AT(STATE_JSON_BEFORE), "{", ACTION_JSON, false, false},
    {AT(STATE_JSON_BEFORE), "[", ACTION_JSON, false, false},
    {AT(STATE_JSON_VALUE), "\n```", ACTION_END_FENCE, false, false},
    {AT(STATE_CALLS), "invoke name=\"", ACTION_INVOKE, false, false},
    {AT(STATE_CALLS), "</\1 calls>", ACTION_END_BLOCK, false, false},
    {AT(STATE_CALLS), "</\1tool_calls>", ACTION_END_BLOCK, false, false},
    {AT(STATE_NAME), "\"", ACTION_END_NAME, false, false},
    {AT(STATE_ARGUMENTS), "parameter name=", ACTION_PARAMETER, false, false},
    {AT(STATE_ARGUMENTS), "</\1", ACTION_END_CALL, false, false},
    {AT(STATE_KEY), " ", ACTION_END_KEY, false, false},
    {AT(STATE_TYPE), "true\">", ACTION_STRING, false, false},
    {AT(STATE_TYPE), "false\">", ACTION_RAW, false, false},
    {VALUES, "</\1", ACTION_END_VALUE, false, false},
};

/* Whole tags, in the spelling of V4.1 and in V4's. */
static const struct rule repaired[] = {
    {OPENS, "<\1 calls>", ACTION_BLOCK, true, true},
    {OPENS, "<\1tool_calls>", ACTION_BLOCK, true, true},
    {OPENS, "<\1function_calls>", ACTION_BLOCK, true, true},
    {INVOKES, "<\1 invoke name=\"", ACTION_INVOKE, true, true},
    {INVOKES, "<\1invoke name=\"", ACTION_INVOKE, true, true},
    {AT(STATE_REASONING), "\2", ACTION_END_REASONING, true, false},
    {AT(STATE_CONTENT) | AT(STATE_JSON_BEFORE) | AT(STATE_AFTER_CALLS), "\2", ACTION_DROP, false, false},
    {AT(STATE_JSON_BEFORE), "{", ACTION_JSON, false, false},
    {AT(STATE_JSON_BEFORE), "[", ACTION_JSON, false, false},
    {BLOCK_ENDS, "</\1 calls>", ACTION_END_BLOCK, false, false},
    {BLOCK_ENDS, "</\1tool_calls>", ACTION_END_BLOCK, false, false},
    {BLOCK_ENDS, "</\1function_calls>", ACTION_END_BLOCK, false, false},
    {CALL_ENDS, "</\1 invoke>", ACTION_END_CALL, false, false},
    {CALL_ENDS, "</\1invoke>", ACTION_END_CALL, false, false},
    {AT(STATE_NAME), "\"", ACTION_END_NAME, false, false},
    {AT(STATE_NAME), "\n", ACTION_NOT_A_NAME, false, false},
    {AT(STATE_ARGUMENTS), "<\1 parameter name=\"", ACTION_PARAMETER, false, false},
    {AT(STATE_ARGUMENTS), "<\1parameter name=\"", ACTION_PARAMETER, false, false},
    {AT(STATE_KEY), "\" string=\"true\">", ACTION_STRING, false, false},
    {AT(STATE_KEY), "\" string=\"false\">", ACTION_RAW, false, false},
    {AT(STATE_KEY), "\">", ACTION_EITHER, false, false},
    {AT(STATE_KEY), "<\1", ACTION_NOT_A_KEY, false, false},
    {AT(STATE_KEY), "</\1", ACTION_NOT_A_KEY, false, false},
    {VALUES, "</\1 parameter>", ACTION_END_VALUE, false, false},
    {VALUES, "</\1parameter>", ACTION_END_VALUE, false, false},
};

/* Stop strings come first: of markers that end together the first added wins. */
static void add_stops(struct reply_states *states) {
    static const enum reply_state with_stops[] = {STATE_CONTENT, STATE_JSON_VALUE, STATE_AFTER_CALLS};
    const struct reply_options *options = &states->options;
    for (size_t s = 0; s < sizeof with_stops / sizeof *with_stops; s++)
        for (int32_t i = 0; i < options->stop_count; i++) {
            struct marker_text text = {options->stops[i].data, options->stops[i].bytes, options->as_ids};
            marker_set_add(&states->sets[with_stops[s]], text, false, ACTION_STOP, i);
        }
}

static void compile(struct reply_states *states) {
    const struct reply_options *options = &states->options;
    bool repairs = options->rules == REPLY_REPAIRED;
    const struct rule *rules = repairs ? repaired : published;
    size_t count = repairs ? sizeof repaired / sizeof *repaired : sizeof published / sizeof *published;
    for (int s = 0; s < STATES; s++)
        marker_set_clear(&states->sets[s]);
    add_stops(states);
    for (size_t r = 0; r < count; r++)
        for (int s = 0; s < STATES; s++) {
            /* A block that the prompt opened is read even where tool calls aren't looked for. */
            bool wanted = !rules[r].tools || options->tools || s == STATE_CALLS || s == STATE_ARGUMENTS;
            struct marker_text text = {rules[r].text, strlen(rules[r].text), options->as_ids};
            if (wanted && rules[r].states & AT(s))
                marker_set_add(&states->sets[s], text, rules[r].newlines, rules[r].action, -1);
        }
}

/* ---- sinks ---- */

static void set_bytes(struct buffer *buffer, size_t bytes) {
    buffer->bytes = bytes;
    if (buffer->data)
        buffer->data[bytes] = 0;
}

static void append_buffer(struct buffer *to, const struct buffer *from) {
    buffer_append(to, from->data ? from->data : "", from->bytes);
}

static struct reply_call *current_call(struct reply_states *states) {
    return &states->reply.calls[states->reply.call_count - 1];
}

static struct buffer *arguments(struct reply_states *states) {
    return &current_call(states)->arguments;
}

static bool repairs(const struct reply_states *states) {
    return states->options.rules == REPLY_REPAIRED;
}

/* Where a state's text goes. */
static struct buffer *state_sink(struct reply_states *states, enum reply_state state) {
    switch (state) {
    case STATE_REASONING:
        return &states->reply.reasoning;
    case STATE_CONTENT:
    case STATE_AFTER_CALLS:
        return &states->reply.content;
    case STATE_JSON_BEFORE:
        return &states->stray;
    case STATE_JSON_AFTER:
        return repairs(states) ? NULL : &states->stray;
    case STATE_JSON_VALUE:
        return repairs(states) ? &states->value : &states->reply.content;
    case STATE_CALLS:
    case STATE_ARGUMENTS:
        return repairs(states) ? &states->stray : NULL;
    case STATE_NAME:
        return &current_call(states)->name;
    case STATE_KEY:
        return repairs(states) ? &states->key : arguments(states);
    case STATE_STRING:
        return arguments(states);
    case STATE_RAW:
        return repairs(states) ? &states->value : arguments(states);
    case STATE_TYPE:
    case STATE_FINISHED:
    case STATES:
        break;
    }
    return NULL;
}

static void enter(struct reply_states *states, enum reply_state state) {
    states->state = state;
    states->set = &states->sets[state];
    states->sink = state_sink(states, state);
    states->escapes = state == STATE_STRING;
    states->stretch = states->sink ? states->sink->bytes : 0;
    states->leading = false;
    marker_set_restart(states->set);
}

static void append_escaped(struct buffer *buffer, const char *text, size_t bytes) {
    static const char names[] = "bfnrt\"\\", plain[] = "\b\f\n\r\t\"\\";
    size_t run = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buffer_append(buffer, text + run, i - run);
        run = i + 1;
        const char *known = c ? strchr(plain, c) : NULL;
        if (known) {
            char escape[2] = {'\\', names[known - plain]};
            buffer_append(buffer, escape, sizeof escape);
        } else
            buffer_printf(buffer, "\\u%04x", c);
    }
    buffer_append(buffer, text + run, bytes - run);
}

static void emit(struct reply_states *states, const char *text, size_t bytes) {
    if (!states->sink || !bytes)
        return;
    if (states->escapes)
        append_escaped(states->sink, text, bytes);
    else
        buffer_append(states->sink, text, bytes);
}

/* Takes a marker that has just ended, and the newlines that go with it, out of the sink. Markers hold no byte
 * that is escaped. */
static void cut_marker(struct reply_states *states, const struct marker *marker) {
    struct buffer *sink = states->sink;
    if (!sink)
        return;
    size_t end = sink->bytes - marker->bytes;
    while (marker->newlines && end > states->stretch && sink->data[end - 1] == '\n')
        end--;
    set_bytes(sink, end);
}

/* ---- text where none belongs ---- */

static bool is_blank(const struct buffer *text) {
    for (size_t i = 0; i < text->bytes; i++)
        if (!strchr(" \t\r\n", text->data[i]) || !text->data[i])
            return false;
    return true;
}

static void append_content(struct reply_states *states, const struct buffer *text) {
    append_buffer(&states->reply.content, text);
}

/* Published: each stretch of text around a JSON value becomes one blank. */
static void settle_filler(struct reply_states *states) {
    if (states->stray.bytes)
        buffer_append(&states->reply.content, " ", 1);
    buffer_clear(&states->stray);
}

/* Repaired: what stands between tags goes to content, unless it is blank. The tag of a block in which no call
 * had begun was no tag then. */
static void settle_stray(struct reply_states *states) {
    struct buffer *stray = &states->stray;
    if (states->tag_open && stray->bytes && stray->data[0] == '>') {
        states->tag_open = false;
        memmove(stray->data, stray->data + 1, stray->bytes - 1);
        set_bytes(stray, stray->bytes - 1);
    }
    if (!is_blank(stray)) {
        append_content(states, &states->opened);
        append_content(states, stray);
        buffer_clear(&states->opened);
    }
    buffer_clear(stray);
}

/* Before `marker` (NULL: the end of the output) acts. */
static void settle(struct reply_states *states, const struct marker *marker) {
    bool json = states->state == STATE_JSON_BEFORE || states->state == STATE_JSON_AFTER;
    if (json && !repairs(states))
        settle_filler(states);
    if (repairs(states) && (states->state == STATE_CALLS || states->state == STATE_ARGUMENTS))
        settle_stray(states);
    bool calls = marker && (marker->action == ACTION_BLOCK || marker->action == ACTION_INVOKE);
    if (repairs(states) && states->state == STATE_JSON_BEFORE && calls)
        settle_stray(states);
}

static void enter_content(struct reply_states *states) {
    enter(states, !states->options.json ? STATE_CONTENT
                  : states->has_json    ? STATE_JSON_AFTER
                                        : STATE_JSON_BEFORE);
    states->leading = true;
}

/* ---- values and schemas ---- */

/* Whether a property's schema allows a type; false also when it doesn't say. */
static bool names_type(const struct json *property, const char *type) {
    const struct json *types = json_member(property, "type");
    if (types && types->kind == JSON_STRING)
        return json_is_text(types, type);
    for (const struct json *one = types && types->kind == JSON_ARRAY ? types->first : NULL; one;
         one = one->next)
        if (json_is_text(one, type))
            return true;
    return false;
}

static bool says_type(const struct json *property) {
    const struct json *types = json_member(property, "type");
    return types && (types->kind == JSON_STRING || (types->kind == JSON_ARRAY && types->count));
}

static bool strings_only(const struct json *property) {
    const struct json *types = json_member(property, "type");
    return names_type(property, "string") && (types->kind == JSON_STRING || types->count == 1);
}

static bool allows_no_string(const struct json *property) {
    return says_type(property) && !names_type(property, "string");
}

static bool parse_value(struct reply_states *states, const struct json **value) {
    const struct buffer *text = &states->value;
    return json_parse(states->document, text->data ? text->data : "", text->bytes, value) == OK;
}

static bool fits_type(const struct json *property, const struct json *value) {
    if (value->kind == JSON_TRUE || value->kind == JSON_FALSE)
        return names_type(property, "boolean");
    if (value->kind == JSON_NUMBER && strpbrk(value->text, ".eE"))
        return names_type(property, "number");
    if (value->kind == JSON_NUMBER)
        return names_type(property, "number") || names_type(property, "integer");
    return names_type(property, json_kind_name(value));
}

/* Whether the collected value goes into the arguments as it is; else as a string. */
static bool is_raw(struct reply_states *states) {
    const struct json *value = NULL;
    if (!parse_value(states, &value))
        return false;
    if (states->from_string)
        return fits_type(states->property, value);
    return value->kind == JSON_STRING || !strings_only(states->property);
}

static void find_tool(struct reply_states *states) {
    const struct json *tools = states->options.tools_schemas;
    const struct buffer *name = &current_call(states)->name;
    states->schema = NULL;
    for (const struct json *tool = tools ? tools->first : NULL; tool; tool = tool->next) {
        const struct json *function = json_member(tool, "function") ? json_member(tool, "function") : tool;
        if (name->data && json_is_text(json_member(function, "name"), name->data)) {
            states->schema = json_member(function, "parameters");
            return;
        }
    }
}

/* ---- calls ---- */

static void begin_call(struct reply_states *states) {
    struct reply *reply = &states->reply;
    if (reply->call_count == reply->call_capacity) {
        size_t capacity = reply->call_capacity ? 2 * reply->call_capacity : 4;
        struct reply_call *grown = realloc(reply->calls, capacity * sizeof *grown);
        if (!grown) {
            fprintf(stderr, "nocturne: no memory for %zu tool calls\n", capacity);
            abort();
        }
        memset(grown + reply->call_capacity, 0, (capacity - reply->call_capacity) * sizeof *grown);
        reply->calls = grown;
        reply->call_capacity = capacity;
    }
    struct reply_call *call = &reply->calls[reply->call_count++];
    buffer_clear(&call->name);
    buffer_clear(&call->arguments);
    call->incomplete = true;
    buffer_clear(&states->opened);
    states->in_call = true;
    states->has_parameter = false;
    enter(states, STATE_NAME);
}

static void begin_key(struct reply_states *states) {
    if (repairs(states))
        buffer_clear(&states->key);
    else {
        buffer_append_text(arguments(states), states->has_parameter ? ", " : "{");
        states->has_parameter = true;
    }
    enter(states, STATE_KEY);
}

/* Repaired: writes the key, so that it stands there only when a value follows. A tag with another attribute
 * than string="true|false" leaves that in the key's text: cut off. */
static void write_key(struct reply_states *states, enum action action) {
    static const char attribute[] = "\" string=\"";
    struct buffer *key = &states->key;
    char *cut = action == ACTION_EITHER && key->data ? strstr(key->data, attribute) : NULL;
    size_t bytes = cut ? (size_t)(cut - key->data) : key->bytes;
    set_bytes(key, bytes);
    buffer_append_text(arguments(states), states->has_parameter ? ", " : "{");
    buffer_append_json_string(arguments(states), key->data ? key->data : "", bytes);
    buffer_append_text(arguments(states), ": ");
    states->has_parameter = true;
    const struct json *properties = json_member(states->schema, "properties");
    states->property = key->data ? json_member(properties, key->data) : NULL;
}

static void begin_value(struct reply_states *states, enum action action) {
    bool string = action == ACTION_STRING;
    states->in_value = true;
    states->from_string = string;
    if (repairs(states)) {
        write_key(states, action);
        string = string && !allows_no_string(states->property);
        buffer_clear(&states->value);
    }
    if (string)
        buffer_append(arguments(states), "\"", 1);
    enter(states, string ? STATE_STRING : STATE_RAW);
}

static void end_value(struct reply_states *states) {
    if (!states->in_value)
        return;
    states->in_value = false;
    if (states->state == STATE_STRING)
        buffer_append(arguments(states), "\"", 1);
    else if (repairs(states)) {
        const struct buffer *value = &states->value;
        if (is_raw(states))
            append_buffer(arguments(states), value);
        else
            buffer_append_json_string(arguments(states), value->data ? value->data : "", value->bytes);
    }
}

static void end_call(struct reply_states *states, bool complete) {
    if (!states->in_call)
        return;
    end_value(states);
    buffer_append_text(arguments(states), states->has_parameter ? "}" : "{}");
    current_call(states)->incomplete = !complete;
    states->in_call = states->tag_open = false;
}

/* ---- JSON mode, repaired: where the value ends ---- */

/* Follows brackets and strings; true when the byte ends the value. */
static bool ends_json(struct reply_states *states, char c) {
    if (states->in_string) {
        states->in_string = states->after_backslash || c != '"';
        states->after_backslash = !states->after_backslash && c == '\\';
        return false;
    }
    states->in_string = c == '"';
    states->depth += c == '{' || c == '[';
    return (c == '}' || c == ']') && --states->depth == 0;
}

/* What looked like the value's begin may have been text: then the search goes on behind it. */
static void end_json(struct reply_states *states) {
    const struct json *value = NULL;
    if (parse_value(states, &value)) {
        append_content(states, &states->value);
        states->has_json = true;
        buffer_clear(&states->stray);
        enter(states, STATE_JSON_AFTER);
    } else {
        append_buffer(&states->stray, &states->value);
        enter(states, STATE_JSON_BEFORE);
    }
    buffer_clear(&states->value);
}

static void begin_json(struct reply_states *states, char bracket) {
    if (!repairs(states))
        buffer_append(&states->reply.content, &bracket, 1);
    enter(states, STATE_JSON_VALUE);
    states->depth = 1;
    states->in_string = states->after_backslash = false;
    if (repairs(states)) {
        buffer_clear(&states->value);
        buffer_append(&states->value, &bracket, 1);
    }
}

/* ---- what markers do ---- */

static void open_block(struct reply_states *states, const struct marker *marker) {
    struct buffer *opened = &states->opened;
    buffer_clear(opened);
    for (uint32_t i = 0; repairs(states) && i < marker->length; i++) {
        char byte = (char)marker->symbols[i];
        if (marker->symbols[i] == SYMBOL_DSML)
            buffer_append_text(opened, SPELLING_DSML);
        else
            buffer_append(opened, &byte, 1);
    }
    enter(states, STATE_CALLS);
}

/* Index of the id at hand; 0 when text is fed. */
static int64_t current_id(const struct reply_states *states) {
    int64_t taken = states->reply.completion_tokens;
    return taken > 0 ? taken - 1 : 0;
}

static void leave_reasoning(struct reply_states *states, int64_t tokens, int64_t content_token) {
    if (!states->reply.in_reasoning)
        return;
    states->reply.in_reasoning = false;
    states->reply.reasoning_tokens = tokens;
    states->reply.content_token = content_token;
}

/* Repaired: the text after `name="` isn't a key, so the tag is stray text, and the marker begins another tag.
 */
static void return_key(struct reply_states *states, const struct marker *marker) {
    enter(states, STATE_ARGUMENTS);
    buffer_append_text(&states->stray, "<" SPELLING_DSML " parameter name=\"");
    append_buffer(&states->stray, &states->key);
    states->stretch = states->stray.bytes;
    for (uint32_t i = 0; i < marker->length; i++) {
        char byte = (char)marker->symbols[i];
        if (marker->symbols[i] == SYMBOL_DSML)
            reply_states_special(states, SYMBOL_DSML, SPELLING_DSML, strlen(SPELLING_DSML));
        else
            reply_states_bytes(states, &byte, 1);
    }
}

/* Repaired: the text after `invoke name="` isn't a name, so there is no call. */
static void return_name(struct reply_states *states) {
    buffer_append_text(&states->reply.content, "<" SPELLING_DSML " invoke name=\"");
    append_content(states, &current_call(states)->name);
    buffer_append(&states->reply.content, "\n", 1);
    states->reply.call_count--;
    states->in_call = false;
    enter(states, STATE_CALLS);
}

static void act_on_call(struct reply_states *states, const struct marker *marker) {
    switch ((enum action)marker->action) {
    case ACTION_INVOKE:
        end_call(states, true);
        begin_call(states);
        break;
    case ACTION_END_NAME:
        find_tool(states);
        enter(states, STATE_ARGUMENTS);
        states->tag_open = true;
        break;
    case ACTION_NOT_A_NAME:
        return_name(states);
        break;
    case ACTION_PARAMETER:
        begin_key(states);
        break;
    case ACTION_END_KEY:
        buffer_append_text(arguments(states), ": ");
        enter(states, STATE_TYPE);
        break;
    case ACTION_STRING:
    case ACTION_RAW:
    case ACTION_EITHER:
        begin_value(states, (enum action)marker->action);
        break;
    case ACTION_NOT_A_KEY:
        return_key(states, marker);
        break;
    case ACTION_END_VALUE:
        end_value(states);
        enter(states, STATE_ARGUMENTS);
        break;
    case ACTION_END_CALL:
        end_call(states, true);
        enter(states, STATE_CALLS);
        break;
    default:
        break;
    }
}

static void act(struct reply_states *states, const struct marker *marker) {
    switch ((enum action)marker->action) {
    case ACTION_STOP:
        states->stopped = true;
        states->reply.stop_index = marker->index;
        enter(states, STATE_FINISHED);
        break;
    case ACTION_END_REASONING:
        leave_reasoning(states, current_id(states), states->reply.completion_tokens);
        enter_content(states);
        break;
    case ACTION_DROP:
        enter(states, states->state);
        states->leading = states->state == STATE_AFTER_CALLS && !states->reply.content.bytes;
        break;
    case ACTION_FENCE:
        enter(states, STATE_JSON_VALUE);
        break;
    case ACTION_END_FENCE:
        enter(states, STATE_JSON_AFTER);
        break;
    case ACTION_JSON:
        begin_json(states, (char)marker->symbols[0]);
        break;
    case ACTION_BLOCK:
        leave_reasoning(states, states->begun_id, states->begun_id);
        open_block(states, marker);
        break;
    case ACTION_END_BLOCK:
        end_call(states, true);
        buffer_clear(&states->opened);
        if (!repairs(states))
            enter(states, STATE_FINISHED);
        else if (states->options.json)
            enter_content(states);
        else {
            enter(states, STATE_AFTER_CALLS);
            states->leading = !states->reply.content.bytes;
        }
        break;
    default:
        if (marker->action == ACTION_INVOKE)
            leave_reasoning(states, states->begun_id, states->begun_id);
        act_on_call(states, marker);
    }
}

/* ---- taking symbols ---- */

static void step(struct reply_states *states, uint16_t symbol, const char *text, size_t bytes) {
    emit(states, text, bytes);
    const struct marker *marker = marker_set_step(states->set, symbol);
    if (states->set->begun)
        states->begun_id = current_id(states);
    if (!marker)
        return;
    cut_marker(states, marker);
    settle(states, marker);
    act(states, marker);
}

void reply_states_special(struct reply_states *states, uint16_t symbol, const char *spelling, size_t bytes) {
    states->leading = false;
    if (states->state != STATE_JSON_VALUE || !repairs(states)) {
        step(states, symbol, spelling, bytes);
        return;
    }
    for (size_t i = 0; i < bytes; i++) {
        emit(states, spelling + i, 1);
        if (states->state == STATE_JSON_VALUE && ends_json(states, spelling[i]))
            end_json(states);
    }
    marker_set_restart(states->set);
}

/* Bytes of the JSON value in repaired JSON mode, up to its end; returns how many. */
static size_t take_json(struct reply_states *states, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        step(states, (unsigned char)text[i], text + i, 1);
        if (states->state != STATE_JSON_VALUE)
            return i + 1;
        if (ends_json(states, text[i])) {
            end_json(states);
            return i + 1;
        }
    }
    return bytes;
}

void reply_states_bytes(struct reply_states *states, const char *text, size_t bytes) {
    while (bytes) {
        size_t taken = 1;
        if (states->state == STATE_FINISHED)
            return;
        if (states->state == STATE_JSON_VALUE && repairs(states))
            taken = take_json(states, text, bytes);
        else if (states->leading && *text == '\n')
            taken = 1; /* dropped */
        else {
            taken = states->set->active ? 0 : marker_set_skip(states->set, text, bytes);
            states->leading = false;
            emit(states, text, taken);
            if (taken == 0) {
                step(states, (unsigned char)*text, text, 1);
                taken = 1;
            }
        }
        text += taken;
        bytes -= taken;
    }
}

/* ---- begin and end ---- */

static bool same_sets(const struct reply_options *a, const struct reply_options *b) {
    return a->rules == b->rules && a->tools == b->tools && a->as_ids == b->as_ids && !a->stop_count &&
           !b->stop_count;
}

static void clear_reply(struct reply_states *states) {
    struct reply *reply = &states->reply;
    buffer_clear(&reply->reasoning);
    buffer_clear(&reply->content);
    *reply = (struct reply){.thinking = states->options.thinking,
        .reasoning = reply->reasoning,
        .content = reply->content,
        .calls = reply->calls,
        .call_capacity = reply->call_capacity,
        .stop_index = -1};
}

void reply_states_begin(struct reply_states *states, const struct reply_options *options) {
    bool compiled = states->compiled && same_sets(&states->options, options);
    states->options = *options;
    if (!compiled)
        compile(states);
    states->options.stops = NULL;
    states->compiled = true;
    clear_reply(states);
    buffer_clear(&states->stray);
    buffer_clear(&states->value);
    buffer_clear(&states->key);
    buffer_clear(&states->opened);
    states->in_call = states->tag_open = states->has_parameter = states->in_value = false;
    states->stopped = states->has_json = false;
    states->property = states->schema = NULL;
    states->begun_id = 0;
    switch (options->stage) {
    case START_REASONING:
    case START_REASONING_CONTINUATION:
        enter(states, STATE_REASONING);
        states->leading = options->stage == START_REASONING;
        states->reply.in_reasoning = true;
        break;
    case START_CALLS:
        enter(states, STATE_CALLS);
        break;
    case START_CONTENT:
    case START_CONTENT_CONTINUATION:
        enter_content(states);
        states->leading = options->stage == START_CONTENT;
        break;
    }
}

void reply_states_free(struct reply_states *states) {
    for (int s = 0; s < STATES; s++)
        marker_set_free(&states->sets[s]);
    for (size_t i = 0; i < states->reply.call_capacity; i++) {
        buffer_free(&states->reply.calls[i].name);
        buffer_free(&states->reply.calls[i].arguments);
    }
    free(states->reply.calls);
    buffer_free(&states->reply.reasoning);
    buffer_free(&states->reply.content);
    buffer_free(&states->stray);
    buffer_free(&states->value);
    buffer_free(&states->key);
    buffer_free(&states->opened);
    json_document_free(states->document);
}

enum { KEY_BYTES_CUT = 256 }; /* a longer unfinished key is taken for text */

/* Repaired: the output may end anywhere. */
static void repair_end(struct reply_states *states) {
    struct buffer *stray = &states->stray;
    if (states->state == STATE_CALLS || states->state == STATE_ARGUMENTS) {
        set_bytes(stray, stray->bytes - marker_set_held(states->set)); /* the begin of a tag that was cut */
        settle_stray(states);
    }
    if (states->state == STATE_KEY &&
        (states->key.bytes > KEY_BYTES_CUT || (states->key.data && strchr(states->key.data, '\n')))) {
        buffer_append_text(&states->reply.content, "<" SPELLING_DSML " parameter name=\"");
        append_content(states, &states->key);
    }
    end_call(states, false);
    if (states->options.json && !states->has_json) {
        if (!is_blank(stray) || states->value.bytes == 0)
            append_content(states, stray);
        if (states->state == STATE_JSON_VALUE || states->state == STATE_FINISHED)
            append_content(states, &states->value);
    }
}

void reply_states_finish(struct reply_states *states, enum reply_finish finish) {
    struct reply *reply = &states->reply;
    if (repairs(states))
        repair_end(states);
    else
        settle(states, NULL);
    leave_reasoning(states, reply->completion_tokens, reply->completion_tokens);
    reply->in_reasoning = states->state == STATE_REASONING;
    reply->finish = states->stopped          ? REPLY_STOP
                    : finish != REPLY_STOP   ? finish
                    : reply->call_count != 0 ? REPLY_TOOL_CALLS
                                             : REPLY_STOP;
    enter(states, STATE_FINISHED);
}

size_t reply_states_held(const struct reply_states *states) {
    const struct buffer *sink = states->sink;
    if (!sink || sink == &states->stray || sink == &states->value || sink == &states->key)
        return 0;
    size_t held = marker_set_held(states->set);
    bool newlines = false;
    for (uint32_t i = 0; i < states->set->count; i++)
        newlines |= states->set->markers[i].newlines;
    while (newlines && sink->bytes - held > states->stretch && sink->data[sink->bytes - held - 1] == '\n')
        held++;
    return held;
}

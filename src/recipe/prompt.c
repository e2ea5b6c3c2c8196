#include "recipe/prompt.h"

#include "recipe/added_tokens.h" /* struct added_tokens */
#include "recipe/name_index.h"
#include "recipe/python_json.h" /* python_json_append */
#include "recipe/tools_text.h"  /* TOOLS_TEXT_... */

#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* calloc, realloc, free, abort */
#include <string.h> /* strlen */

enum marker { BOS, EOS, SYSTEM, USER, ASSISTANT, THINK, END_THINK, REMINDER, DSML, IMAGE, MARKERS };

enum { MARKERS_NEEDED = REMINDER }; /* those before it: no conversation does without them */

static const char *const MARKER_SPELLINGS[MARKERS] = {
    [BOS] = "<｜begin▁of▁sentence｜>",
    [EOS] = "<｜end▁of▁sentence｜>",
    [SYSTEM] = "<｜System｜>",
    [USER] = "<｜User｜>",
    [ASSISTANT] = "<｜Assistant｜>",
    [THINK] = "<think>",
    [END_THINK] = "</think>",
    [REMINDER] = "<｜latest_reminder｜>",
    [DSML] = "｜DSML｜",
    [IMAGE] = "<｜deepseek_image｜>",
};

/* In what an assistant said, these are the model's own marks for places in an image. */
static const char *const GROUNDING_SPELLINGS[] = {"<｜ref｜>", "<｜/ref｜>", "<｜box｜>", "<｜/box｜>",
    "<｜point｜>", "<｜/point｜>", "<｜polygon｜>", "<｜/polygon｜>"};

#define EFFORT_LINE                                                                                          \
    "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
#define PARAGRAPH "\n\n" /* between parts of a message, and between messages of one user turn */
#define FORMAT_TEXT_OPENING                                                                                  \
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
#define NEW_TOOLS_OPENING "\n\n### Updated Tool Schemas\n\n"

struct prompt_format {
    const struct tokenizer *tokenizer;
    int32_t ids[MARKERS];           /* -1: the tokenizer lacks it */
    struct added_tokens grounding;  /* those the tokenizer has */
    struct json_document *document; /* of a call's arguments */
};

/* One conversation being written. */
struct writing {
    const struct prompt_format *format;
    struct conversation *conversation;
    struct prompt *prompt;
    bool has_tools;
};

enum result prompt_format_create(const struct tokenizer *tokenizer, struct prompt_format **result) {
    enum result status = OK;
    struct prompt_format *format = calloc(1, sizeof *format);
    if (!format)
        return fail(ERROR_MEMORY, "no memory for the prompt format");
    format->tokenizer = tokenizer;
    TRY_GOTO(status, json_document_create(&format->document), done);
    for (int i = 0; i < MARKERS; i++) {
        format->ids[i] = tokenizer_added_id(tokenizer, MARKER_SPELLINGS[i]);
        if (i < MARKERS_NEEDED && format->ids[i] < 0) {
            status = fail(ERROR_INPUT,
                "tokenizer.json: added_tokens has no %s, which the prompt format needs", MARKER_SPELLINGS[i]);
            goto done;
        }
    }
    for (size_t i = 0; i < sizeof GROUNDING_SPELLINGS / sizeof GROUNDING_SPELLINGS[0]; i++) {
        const char *spelling = GROUNDING_SPELLINGS[i];
        int32_t id = tokenizer_added_id(tokenizer, spelling);
        if (id >= 0)
            TRY_GOTO(status, added_tokens_insert(&format->grounding, spelling, strlen(spelling), id), done);
    }
    *result = format;
    format = NULL;
done:
    prompt_format_free(format);
    return status;
}

void prompt_format_free(struct prompt_format *format) {
    if (!format)
        return;
    added_tokens_free(&format->grounding);
    json_document_free(format->document);
    free(format);
}

int32_t prompt_image_id(const struct prompt_format *format) {
    return format->ids[IMAGE];
}

void prompt_free(struct prompt *prompt) {
    buffer_free(&prompt->text);
    free(prompt->markers);
    free(prompt->ids.ids);
    *prompt = (struct prompt){0};
}

/* ---- pieces ---- */

static void write_piece(struct writing *writing, struct text_piece text) {
    buffer_append(&writing->prompt->text, text.data, text.bytes);
}

static void write_text(struct writing *writing, const char *text) {
    buffer_append(&writing->prompt->text, text, strlen(text));
}

static void write_marker_id(struct writing *writing, const char *spelling, size_t bytes, int32_t id) {
    struct prompt *prompt = writing->prompt;
    if (prompt->marker_count == prompt->marker_capacity) {
        size_t capacity = prompt->marker_capacity ? 2 * prompt->marker_capacity : 64;
        struct prompt_marker *grown = realloc(prompt->markers, capacity * sizeof *grown);
        if (!grown) {
            fprintf(stderr, "nocturne: no memory for a prompt of %zu markers\n", capacity);
            abort();
        }
        prompt->markers = grown;
        prompt->marker_capacity = capacity;
    }
    prompt->markers[prompt->marker_count++] =
        (struct prompt_marker){.offset = prompt->text.bytes, .bytes = bytes, .id = id};
    buffer_append(&prompt->text, spelling, bytes);
}

static void write_marker(struct writing *writing, enum marker marker) {
    const char *spelling = MARKER_SPELLINGS[marker];
    if (writing->format->ids[marker] < 0)
        write_text(writing, spelling);
    else
        write_marker_id(writing, spelling, strlen(spelling), writing->format->ids[marker]);
}

/* A text of our own, in which some spellings are markers. */
static void write_marked_text(struct writing *writing, const char *text) {
    static const enum marker markers[] = {DSML, THINK, END_THINK};
    const char *run = text;
    for (const char *at = text; *at;) {
        size_t i = 0;
        while (i < 3 && strncmp(at, MARKER_SPELLINGS[markers[i]], strlen(MARKER_SPELLINGS[markers[i]])) != 0)
            i++;
        if (i == 3) {
            at++;
            continue;
        }
        buffer_append(&writing->prompt->text, run, (size_t)(at - run));
        write_marker(writing, markers[i]);
        at += strlen(MARKER_SPELLINGS[markers[i]]);
        run = at;
    }
    write_text(writing, run);
}

/* What an assistant said, with its grounding marks. */
static void write_assistant_text(struct writing *writing, struct text_piece text) {
    const char *at = text.data, *start;
    size_t bytes;
    int32_t id;
    if (!text.bytes)
        return;
    const char *end = text.data + text.bytes;
    while (added_tokens_find(&writing->format->grounding, at, end, &start, &bytes, &id)) {
        buffer_append(&writing->prompt->text, at, (size_t)(start - at));
        write_marker_id(writing, start, bytes, id);
        at = start + bytes;
    }
    buffer_append(&writing->prompt->text, at, (size_t)(end - at));
}

static void write_content(struct writing *writing, const struct message *message) {
    for (const struct content_part *part = message->parts; part; part = part->next) {
        if (part != message->parts)
            write_text(writing, PARAGRAPH);
        if (part->image >= 0)
            write_marker(writing, IMAGE);
        else if (message->role == ROLE_ASSISTANT)
            write_assistant_text(writing, part->text);
        else
            write_piece(writing, part->text);
    }
}

/* ---- tools ---- */

static void write_tool_line(struct writing *writing, const struct tool *tool) {
    struct buffer *text = &writing->prompt->text;
    buffer_append_text(text, "{\"name\": ");
    buffer_append_json_string(text, tool->name.data, tool->name.bytes);
    buffer_append_text(text, ", \"description\": ");
    buffer_append_json_string(
        text, tool->description.data ? tool->description.data : "", tool->description.bytes);
    buffer_append_text(text, ", \"parameters\": ");
    if (tool->parameters)
        python_json_append(text, tool->parameters);
    else
        buffer_append_text(text, "{}");
    buffer_append_text(text, "}");
}

static void write_tool_lines(struct writing *writing, const struct tool_list *tools, bool deferred) {
    bool first = true;
    for (const struct tool *tool = tools->first; tool; tool = tool->next) {
        if (tool->deferred && !deferred)
            continue;
        if (!first)
            write_text(writing, "\n");
        write_tool_line(writing, tool);
        first = false;
    }
}

static void write_tools_text(struct writing *writing) {
    write_text(writing, PARAGRAPH);
    write_marked_text(writing, TOOLS_TEXT_OPENING);
    write_tool_lines(writing, &writing->conversation->tools, false);
    write_text(writing, TOOLS_TEXT_CLOSING);
}

static void write_parameter(
    struct writing *writing, const char *key, size_t key_bytes, const struct json *value) {
    bool is_string = value->kind == JSON_STRING;
    write_text(writing, "<");
    write_marker(writing, DSML);
    write_text(writing, " parameter name=\"");
    buffer_append(&writing->prompt->text, key, key_bytes);
    write_text(writing, is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    if (is_string)
        buffer_append(&writing->prompt->text, value->text, value->bytes);
    else
        python_json_append(&writing->prompt->text, value);
    write_text(writing, "</");
    write_marker(writing, DSML);
    write_text(writing, " parameter>");
}

static void write_parameters(struct writing *writing, const struct json *object) {
    for (const struct json *member = object->first; member; member = member->next) {
        if (member != object->first)
            write_text(writing, "\n");
        write_parameter(writing, member->key, member->key_bytes, member);
    }
}

/* Arguments are text that should be a JSON object; what is none becomes one parameter, whole. */
static enum result write_arguments(struct writing *writing, const struct tool_call *call) {
    const struct json *object = call->object;
    struct json whole = {.kind = JSON_STRING, .text = call->arguments.data, .bytes = call->arguments.bytes};
    const char *key = call->custom ? "input" : "arguments";
    if (!object && !call->custom) {
        enum result parsed =
            json_parse(writing->format->document, call->arguments.data, call->arguments.bytes, &object);
        if (parsed != OK && parsed != ERROR_INPUT)
            return parsed;
        if (parsed == ERROR_INPUT || object->kind != JSON_OBJECT)
            object = NULL;
    }
    if (object)
        write_parameters(writing, object);
    else
        write_parameter(writing, key, strlen(key), &whole);
    return OK;
}

static enum result write_calls(struct writing *writing, const struct message *message) {
    write_text(writing, "\n\n<");
    write_marker(writing, DSML);
    write_text(writing, " calls>\n");
    for (const struct tool_call *call = message->calls; call; call = call->next) {
        write_text(writing, "<");
        write_marker(writing, DSML);
        write_text(writing, " invoke name=\"");
        write_piece(writing, call->name);
        write_text(writing, "\">\n");
        TRY(write_arguments(writing, call));
        write_text(writing, "\n</");
        write_marker(writing, DSML);
        write_text(writing, " invoke>\n");
    }
    write_text(writing, "</");
    write_marker(writing, DSML);
    write_text(writing, " calls>");
    return OK;
}

/* ---- messages ---- */

static void write_format_text(struct writing *writing) {
    const struct conversation *conversation = writing->conversation;
    if (conversation->format != FORMAT_JSON_OBJECT && conversation->format != FORMAT_JSON_SCHEMA)
        return;
    write_text(writing, FORMAT_TEXT_OPENING);
    if (conversation->format == FORMAT_JSON_OBJECT)
        write_text(writing, "{\"type\": \"json_object\"}");
    else
        python_json_append(&writing->prompt->text, conversation->schema);
}

static void write_system(struct writing *writing, const struct message *message, bool first) {
    if (!first)
        write_marker(writing, SYSTEM);
    write_content(writing, message);
    if (first && writing->has_tools)
        write_tools_text(writing);
    if (first)
        write_format_text(writing);
    if (message->new_tools.count && writing->has_tools) {
        write_text(writing, NEW_TOOLS_OPENING);
        write_tool_lines(writing, &message->new_tools, true);
    }
}

static bool is_user_side(const struct message *message) {
    return message && (message->role == ROLE_USER || message->role == ROLE_TOOL);
}

static void write_user_side(
    struct writing *writing, const struct message *message, const struct message *previous) {
    if (is_user_side(previous))
        write_text(writing, PARAGRAPH);
    else
        write_marker(writing, USER);
    if (message->role == ROLE_TOOL)
        write_text(writing, "<tool_result>");
    write_content(writing, message);
    if (message->role == ROLE_TOOL)
        write_text(writing, "</tool_result>");
}

/* A last assistant message that the answer goes on from. */
static void write_prefix(struct writing *writing, const struct message *message) {
    bool thinking = writing->conversation->thinking;
    write_marker(writing, ASSISTANT);
    write_marker(writing, thinking ? THINK : END_THINK);
    if (thinking) {
        write_assistant_text(writing, message->reasoning);
        if (!message_is_empty(message))
            write_marker(writing, END_THINK);
    }
    write_content(writing, message);
}

/* Earlier reasoning is dropped: only a history with tools keeps it. */
static enum result write_assistant(struct writing *writing, const struct message *message) {
    write_marker(writing, ASSISTANT);
    if (writing->conversation->thinking && writing->has_tools) {
        write_marker(writing, THINK);
        write_assistant_text(writing, message->reasoning);
    }
    write_marker(writing, END_THINK);
    write_content(writing, message);
    if (message->calls)
        TRY(write_calls(writing, message));
    write_marker(writing, EOS);
    return OK;
}

static enum result write_message(
    struct writing *writing, const struct message *message, const struct message *previous) {
    switch (message->role) {
    case ROLE_SYSTEM:
        write_system(writing, message, !previous);
        break;
    case ROLE_USER:
    case ROLE_TOOL:
        write_user_side(writing, message, previous);
        break;
    case ROLE_REMINDER:
        write_marker(writing, REMINDER);
        write_content(writing, message);
        break;
    case ROLE_ASSISTANT:
        if (message->prefix && !message->next)
            write_prefix(writing, message);
        else
            return write_assistant(writing, message);
    }
    return OK;
}

/* ---- order of messages ---- */

/* A message in the order it is written. */
struct placed {
    const struct message *message;
    size_t rank; /* of the call that a tool message answers */
};

/* Sorts the tool messages among the places that tool messages hold in a run; equal ranks keep their order. */
static void sort_results(struct arena *arena, struct placed *run, size_t count) {
    size_t results = 0;
    for (size_t i = 0; i < count; i++)
        results += run[i].message->role == ROLE_TOOL;
    if (results < 2)
        return;
    struct placed *from = arena_take(arena, results * sizeof *from), *to;
    to = arena_take(arena, results * sizeof *to);
    for (size_t i = 0, k = 0; i < count; i++) {
        if (run[i].message->role == ROLE_TOOL)
            from[k++] = run[i];
    }
    for (size_t width = 1; width < results; width *= 2) { /* merge sort */
        for (size_t start = 0; start < results; start += 2 * width) {
            size_t middle = start + width < results ? start + width : results;
            size_t end = middle + width < results ? middle + width : results;
            size_t a = start, b = middle;
            for (size_t k = start; k < end; k++)
                to[k] = a < middle && (b == end || from[a].rank <= from[b].rank) ? from[a++] : from[b++];
        }
        struct placed *other = from;
        from = to;
        to = other;
    }
    for (size_t i = 0, k = 0; i < count; i++) {
        if (run[i].message->role == ROLE_TOOL)
            run[i] = from[k++];
    }
}

static struct name_index index_calls(
    struct arena *arena, const struct message *message, struct placed *ranks) {
    struct name_index index = name_index_create(arena, message->call_count);
    for (const struct tool_call *call = message->calls; call; call = call->next, ranks++)
        name_index_add(&index, call->id, ranks); /* the first of equal ids */
    return index;
}

/* Tool results of a user turn come in the order of the calls before them, whatever order they were given
 * in. */
static void order_results(struct arena *arena, struct placed *order, size_t count) {
    struct name_index calls = {0};
    struct placed *ranks = NULL;
    size_t run = 0; /* start of the run of user and tool messages */
    for (size_t i = 0; i <= count; i++) {
        const struct message *message = i < count ? order[i].message : NULL;
        if (is_user_side(message)) {
            const struct placed *rank =
                message->role == ROLE_TOOL && ranks ? name_index_find(&calls, message->call_id) : NULL;
            order[i].rank = rank ? (size_t)(rank - ranks) : 0;
            continue;
        }
        sort_results(arena, order + run, i - run);
        run = i + 1;
        if (message && message->calls) {
            ranks = arena_take(arena, message->call_count * sizeof *ranks);
            calls = index_calls(arena, message, ranks);
        }
    }
}

/* Puts an empty system message first where a text of ours needs one, and orders tool results. Returns the
 * number of messages. */
static size_t order_messages(struct writing *writing, struct placed **result) {
    struct conversation *conversation = writing->conversation;
    struct placed *order =
        arena_take(&conversation->arena, (conversation->message_count + 1) * sizeof *order);
    size_t count = 1; /* the first place is kept free */
    for (const struct message *message = conversation->messages; message; message = message->next) {
        /* New tools are told of only where tools can be called. */
        if (message_is_empty(message) && message->new_tools.count && !writing->has_tools)
            continue;
        order[count++].message = message;
    }
    bool needs_system = writing->has_tools || conversation->format == FORMAT_JSON_OBJECT ||
                        conversation->format == FORMAT_JSON_SCHEMA;
    *result = order;
    if (needs_system && (count == 1 || order[1].message->role != ROLE_SYSTEM)) {
        struct message *empty = arena_take(&conversation->arena, sizeof *empty);
        empty->role = ROLE_SYSTEM;
        order[0].message = empty;
    } else {
        *result = order + 1;
        count--;
    }
    order_results(&conversation->arena, *result, count);
    return count;
}

/* What stands before the first message. */
static void write_opening(struct writing *writing, const struct message *first) {
    const struct conversation *conversation = writing->conversation;
    write_marker(writing, BOS);
    if (!first || !(conversation->thinking || first->role == ROLE_SYSTEM))
        return;
    write_marker(writing, SYSTEM);
    if (conversation->thinking) {
        enum chat_effort effort = conversation->effort;
        int budget = effort == EFFORT_LOW ? 50 : effort == EFFORT_MAX ? 100 : 75;
        buffer_printf(&writing->prompt->text, EFFORT_LINE, budget);
    }
}

static void write_ending(struct writing *writing, const struct message *last) {
    if (last && last->role == ROLE_ASSISTANT && last->prefix && !last->next)
        return;
    write_marker(writing, ASSISTANT);
    write_marker(writing, writing->conversation->thinking ? THINK : END_THINK);
    if (writing->conversation->start != START_CALLS)
        return;
    write_text(writing, "\n\n<");
    write_marker(writing, DSML);
    write_text(writing, " calls>\n");
}

enum result prompt_render(
    struct prompt_format *format, struct conversation *conversation, struct prompt *prompt) {
    struct writing writing = {.format = format,
        .conversation = conversation,
        .prompt = prompt,
        .has_tools = conversation_has_tools(conversation)};
    struct placed *order;
    buffer_clear(&prompt->text);
    prompt->marker_count = 0;
    size_t count = order_messages(&writing, &order);
    write_opening(&writing, count ? order[0].message : NULL);
    for (size_t i = 0; i < count; i++)
        TRY(write_message(&writing, order[i].message, i ? order[i - 1].message : NULL));
    write_ending(&writing, count ? order[count - 1].message : NULL);
    return OK;
}

enum result prompt_encode(const struct prompt_format *format, struct prompt *prompt) {
    const char *text = prompt->text.data;
    size_t at = 0;
    prompt->ids.count = 0;
    for (size_t i = 0; i <= prompt->marker_count; i++) {
        const struct prompt_marker *marker = i < prompt->marker_count ? &prompt->markers[i] : NULL;
        size_t end = marker ? marker->offset : prompt->text.bytes;
        if (end > at)
            TRY(tokenizer_encode_plain(format->tokenizer, text + at, end - at, &prompt->ids));
        if (!marker)
            break;
        token_list_append(&prompt->ids, &marker->id, 1);
        at = marker->offset + marker->bytes;
    }
    return OK;
}

#include "recipe/conversation.h"

#include "recipe/python_json.h" /* compact_json_append */

#include <string.h> /* memcpy */

void conversation_clear(struct conversation *conversation) {
    struct arena arena = conversation->arena;
    struct buffer text = conversation->constraint_text;
    arena_clear(&arena);
    buffer_clear(&text);
    *conversation = (struct conversation){.arena = arena, .constraint_text = text};
}

void conversation_free(struct conversation *conversation) {
    arena_free(&conversation->arena);
    buffer_free(&conversation->constraint_text);
    *conversation = (struct conversation){0};
}

struct message *conversation_add_message(struct conversation *conversation, enum message_role role) {
    struct message *message = arena_take(&conversation->arena, sizeof *message);
    message->role = role;
    if (conversation->last_message)
        conversation->last_message->next = message;
    else
        conversation->messages = message;
    conversation->last_message = message;
    conversation->message_count++;
    return message;
}

void conversation_drop_last(struct conversation *conversation, struct message *before) {
    if (before)
        before->next = NULL;
    else
        conversation->messages = NULL;
    conversation->last_message = before;
    conversation->message_count--;
}

static struct content_part *add_part(struct conversation *conversation, struct message *message) {
    struct content_part *part = arena_take(&conversation->arena, sizeof *part);
    if (message->last_part)
        message->last_part->next = part;
    else
        message->parts = part;
    message->last_part = part;
    return part;
}

void message_add_text(struct conversation *conversation, struct message *message, struct text_piece text) {
    struct content_part *part = add_part(conversation, message);
    part->text = text;
    part->image = -1;
}

void message_add_image(
    struct conversation *conversation, struct message *message, const struct image_reference *image) {
    if (conversation->image_count == conversation->image_capacity) {
        size_t capacity = conversation->image_capacity ? 2 * conversation->image_capacity : 4;
        struct image_reference *grown = arena_take(&conversation->arena, capacity * sizeof *grown);
        if (conversation->image_count)
            memcpy(grown, conversation->images, conversation->image_count * sizeof *grown);
        conversation->images = grown;
        conversation->image_capacity = capacity;
    }
    add_part(conversation, message)->image = (int32_t)conversation->image_count;
    conversation->images[conversation->image_count++] = *image;
}

struct tool_call *message_add_call(struct conversation *conversation, struct message *message) {
    struct tool_call *call = arena_take(&conversation->arena, sizeof *call);
    if (message->last_call)
        message->last_call->next = call;
    else
        message->calls = call;
    message->last_call = call;
    message->call_count++;
    return call;
}

void tool_list_add(struct conversation *conversation, struct tool_list *list, const struct tool *tool) {
    struct tool *copy = arena_take(&conversation->arena, sizeof *copy);
    *copy = *tool;
    copy->next = NULL;
    if (list->last)
        list->last->next = copy;
    else
        list->first = copy;
    list->last = copy;
    list->count++;
}

const struct tool *tool_list_find(const struct tool_list *list, struct text_piece name) {
    for (const struct tool *tool = list->first; tool; tool = tool->next) {
        if (text_equal(tool->name, name))
            return tool;
    }
    return NULL;
}

bool message_is_empty(const struct message *message) {
    const struct content_part *part = message->parts;
    return !part || (!part->next && part->image < 0 && !part->text.bytes);
}

bool conversation_has_tools(const struct conversation *conversation) {
    return conversation->tools.count && conversation->tool_choice != TOOL_CHOICE_NONE;
}

/* ---- the constraint ---- */

static void append_constraint_tool(struct buffer *text, const struct tool *tool) {
    buffer_append_text(text, "{\"type\":\"function\",\"function\":{\"name\":");
    buffer_append_json_string(text, tool->name.data, tool->name.bytes);
    buffer_append_text(text, ",\"description\":");
    if (tool->description.data)
        buffer_append_json_string(text, tool->description.data, tool->description.bytes);
    else
        buffer_append_text(text, "null");
    buffer_append_text(text, ",\"parameters\":");
    const struct json *parameters = tool->held ? tool->held : tool->parameters;
    if (parameters)
        compact_json_append(text, parameters);
    else
        buffer_append_text(text, "{}");
    buffer_append_text(text, ",\"strict\":");
    bool strict = tool->is_held || (tool->strict && tool->strict->kind == JSON_TRUE);
    buffer_append_text(text, strict ? "true" : tool->strict ? "false" : "null");
    buffer_append_text(text, tool->deferred ? "},\"defer_loading\":true}" : "}}");
}

static void append_constraint_tools(struct buffer *text, const struct tool_list *tools) {
    buffer_append_text(text, "[");
    for (const struct tool *tool = tools->first; tool; tool = tool->next) {
        if (tool != tools->first)
            buffer_append_text(text, ",");
        append_constraint_tool(text, tool);
    }
    buffer_append_text(text, "]");
}

static void set_constraint(
    struct conversation *conversation, const struct json *constraint_schema, struct text_piece regex) {
    struct buffer *text = &conversation->constraint_text;
    conversation->constraint = CONSTRAINT_NONE;
    if (conversation->parse_tool_calls) {
        conversation->constraint = conversation->tool_choice == TOOL_CHOICE_REQUIRED
                                       ? CONSTRAINT_TOOL_CALL_REQUIRED
                                       : CONSTRAINT_TOOL_CALL;
        append_constraint_tools(text, &conversation->tools);
    } else if (conversation->format == FORMAT_JSON_OBJECT) {
        conversation->constraint = CONSTRAINT_JSON;
    } else if (conversation->format == FORMAT_JSON_SCHEMA) {
        conversation->constraint = CONSTRAINT_JSON;
        compact_json_append(text, constraint_schema);
    } else if (conversation->format == FORMAT_REGEX) {
        conversation->constraint = CONSTRAINT_REGEX;
        buffer_append(text, regex.data, regex.bytes);
    }
}

static enum start_stage find_start(const struct conversation *conversation) {
    const struct message *last = conversation->last_message;
    if (!conversation->thinking)
        return conversation->constraint == CONSTRAINT_TOOL_CALL_REQUIRED ? START_CALLS : START_CONTENT;
    if (!last || last->role != ROLE_ASSISTANT || !last->prefix)
        return START_REASONING;
    if (!message_is_empty(last))
        return START_CONTENT_CONTINUATION;
    return last->reasoning.bytes ? START_REASONING_CONTINUATION : START_REASONING;
}

void conversation_finish(
    struct conversation *conversation, const struct json *constraint_schema, struct text_piece regex) {
    if (!conversation->tools.count && conversation->tool_choice == TOOL_CHOICE_REQUIRED)
        conversation->tool_choice = TOOL_CHOICE_AUTO; /* there is nothing to require */
    conversation->parse_tool_calls = conversation_has_tools(conversation);
    conversation->json_output = conversation->format == FORMAT_JSON_OBJECT;
    set_constraint(conversation, constraint_schema, regex);
    conversation->start = find_start(conversation);
}

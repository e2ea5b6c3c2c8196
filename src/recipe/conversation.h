/* A conversation as the published prompt format sees it: the same for all kinds of request bodies.
 *
 * Data flow: {chat,responses,messages}_body.c read a body into a struct conversation, prompt.c renders it.
 * Texts and JSON values point into the body's JSON document or into the conversation's arena; both must
 * stay until the prompt is rendered. */
#ifndef NOCTURNE_RECIPE_CONVERSATION_H
#define NOCTURNE_RECIPE_CONVERSATION_H

#include "base/buffer.h"
#include "base/json.h"
#include "recipe/arena.h"
#include "recipe/text_piece.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

/* Which API a body belongs to: Chat Completions, Responses or Messages. */
enum request_kind { KIND_CHAT, KIND_RESPONSES, KIND_MESSAGES };

enum message_role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLE_REMINDER };

enum chat_effort { EFFORT_UNSPECIFIED, EFFORT_LOW, EFFORT_HIGH, EFFORT_XHIGH, EFFORT_MAX };

enum tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED };

enum response_format { FORMAT_TEXT, FORMAT_JSON_OBJECT, FORMAT_JSON_SCHEMA, FORMAT_REGEX };

/* Where the model's output begins, seen from its parser. */
enum start_stage {
    START_CONTENT,                /* thinking is off */
    START_CONTENT_CONTINUATION,   /* goes on from content given as a prefix, thinking being on */
    START_REASONING,              /* a new stretch of reasoning */
    START_REASONING_CONTINUATION, /* goes on from reasoning given as a prefix */
    START_CALLS,                  /* inside the block of tool calls */
};

/* What an answer must hold to, for constrained decoding. */
enum constraint_kind {
    CONSTRAINT_NONE,
    CONSTRAINT_JSON, /* text: a JSON Schema as compact JSON, or empty for any JSON object */
    CONSTRAINT_REGEX,
    CONSTRAINT_TOOL_CALL, /* text: a compact JSON array of the tools; calls are optional */
    CONSTRAINT_TOOL_CALL_REQUIRED,
    CONSTRAINT_NO_TOOL_CALL, /* there are tools, which may not be called */
};

enum image_detail { DETAIL_LOW, DETAIL_HIGH, DETAIL_ORIGINAL, DETAIL_AUTO };

/* An image that a request shows; its marker stands in the prompt. */
struct image_reference {
    bool is_url;                 /* a web address; else a data URL, "data:image/...;base64,..." */
    struct text_piece reference; /* the whole URL */
    enum image_detail detail;
    struct text_piece path; /* the field it was given in, for messages */
};

struct content_part {
    struct content_part *next;
    struct text_piece text; /* when image < 0 */
    int32_t image;          /* index in the conversation's images, or -1 */
};

/* A call the assistant made earlier. One of `arguments` (text that should be a JSON object) and `object` is
 * given; of a custom tool, `arguments` is the plain input. */
struct tool_call {
    struct tool_call *next;
    struct text_piece id, name, arguments;
    const struct json *object;
    bool custom;
};

struct tool {
    struct tool *next;
    struct text_piece name;
    struct text_piece description; /* data NULL: absent */
    const struct json *parameters; /* NULL: absent; already rebuilt for a strict tool */
    const struct json *held;       /* what calls are held to; NULL: `parameters` */
    const struct json *strict;     /* a boolean, or NULL */
    bool is_held;                  /* calls are held to the schema as those of a strict tool are */
    bool deferred;                 /* not told of at the start: a message introduces it */
};

struct tool_list {
    struct tool *first, *last;
    size_t count;
};

struct message {
    struct message *next;
    enum message_role role;
    struct content_part *parts, *last_part;
    bool has_reasoning;
    struct text_piece reasoning;
    struct tool_call *calls, *last_call;
    size_t call_count;
    struct text_piece call_id;  /* ROLE_TOOL: the call it answers */
    struct tool_list new_tools; /* ROLE_SYSTEM: tools introduced here */
    bool prefix;                /* ROLE_ASSISTANT: the answer goes on from this message */
};

/* Zero-initialize; free with conversation_free. */
struct conversation {
    struct arena arena; /* owns all that is below and not the body's */
    struct message *messages, *last_message;
    size_t message_count;
    struct tool_list tools; /* those that may be called; deferred ones too */
    enum tool_choice tool_choice;
    bool thinking;
    enum chat_effort effort;
    enum response_format format;
    const struct json *schema; /* FORMAT_JSON_SCHEMA: as received */
    bool strict;               /* FORMAT_JSON_SCHEMA: objects that do not say so are closed */
    bool compact;              /* of JSON formats: no blanks */
    bool one_call;             /* at most one tool may be called */
    struct image_reference *images;
    size_t image_count, image_capacity;

    bool parse_tool_calls, json_output;
    enum start_stage start;
    enum constraint_kind constraint;
    struct buffer constraint_text;
};

void conversation_clear(struct conversation *conversation); /* keeps the memory */
void conversation_free(struct conversation *conversation);

struct message *conversation_add_message(struct conversation *conversation, enum message_role role);
/* Takes back the message that was added last, `before` being the one before it (or NULL). */
void conversation_drop_last(struct conversation *conversation, struct message *before);
void message_add_text(struct conversation *conversation, struct message *message, struct text_piece text);
void message_add_image(
    struct conversation *conversation, struct message *message, const struct image_reference *image);
struct tool_call *message_add_call(struct conversation *conversation, struct message *message);
/* Adds a copy of `tool`. */
void tool_list_add(struct conversation *conversation, struct tool_list *list, const struct tool *tool);
const struct tool *tool_list_find(const struct tool_list *list, struct text_piece name);

/* No part has text or an image. */
bool message_is_empty(const struct message *message);
/* There are tools, and the choice lets them be called. */
bool conversation_has_tools(const struct conversation *conversation);

/* Fills in parse_tool_calls .. constraint_text from the rest. `constraint_schema` is the schema to hold
 * to, and `regex` the expression, where the format is one of these. */
void conversation_finish(
    struct conversation *conversation, const struct json *constraint_schema, struct text_piece regex);

#endif

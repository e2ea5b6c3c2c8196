/* Replies as API bodies: what Chat Completions, Responses and Messages answer (docs/replies.md).
 *
 * A pure function of its arguments: no clock, no random ids. Members that only repeat the request
 * (temperature, tools and the like) are left out. */
#ifndef NOCTURNE_RECIPE_MESSAGE_H
#define NOCTURNE_RECIPE_MESSAGE_H

#include "base/buffer.h"
#include "base/json.h"
#include "recipe/conversation.h" /* enum request_kind */
#include "recipe/reply.h"
#include "recipe/text_piece.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

struct message_head {
    const char *id;  /* what makes it unique; its prefix is added here */
    int64_t created; /* Unix seconds */
    struct text_piece model;
    const char *system_fingerprint; /* Chat Completions only */
};

struct message_usage {
    int64_t prompt_tokens, completion_tokens;
    int64_t reasoning_tokens; /* of completion_tokens */
    int64_t image_tokens;     /* of prompt_tokens */
    int64_t cached_tokens;    /* of prompt_tokens */
    bool thinking;            /* Chat Completions tell of reasoning tokens only then */
};

struct message_choice {
    const struct reply *reply;
    struct text_piece
        logprobs; /* JSON: Chat Completions' `logprobs`, Responses' list of the content's tokens;
                                        data NULL: none asked for */
    bool stopped; /* by a stop string */
    struct text_piece stop_sequence; /* then: which */
};

/* Appends the begin of a body: `{"id":...,...,"model":...`. */
void message_append_head(enum request_kind kind, const struct message_head *head, struct buffer *text);

/* Appends one choice of a chat completion; `index` is its place. */
void message_append_choice(
    const char *id, int32_t index, const struct message_choice *choice, struct buffer *text);

/* Appends the rest of a body, its closing brace included. Chat Completions: `choices` is the text of the
 * choices, joined by commas. */
void message_append_chat(struct text_piece choices, const struct message_usage *usage, struct buffer *text);
void message_append_responses(const char *id, int64_t created, const struct message_choice *choice,
    const struct message_usage *usage, struct buffer *text);
/* `document` is scratch memory: arguments that are no JSON object become {"arguments": text}. */
void message_append_messages(const char *id, const struct message_choice *choice,
    const struct message_usage *usage, struct json_document *document, struct buffer *text);

#endif

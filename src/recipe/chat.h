/* The published chat format: a Chat Completions body -> the prompt's token ids.
 *
 * Covered: system (developer is the same), user and assistant messages of text, thinking and effort, and a
 * last assistant message with prefix true, which the answer goes on from. Tools, tool messages, images and
 * response formats are refused by name.
 *
 * Text is never trusted: only the markers that the format itself writes become marker ids. A marker's
 * spelling typed by a user is encoded as ordinary text. */
#ifndef NOCTURNE_RECIPE_CHAT_H
#define NOCTURNE_RECIPE_CHAT_H

#include "base/error.h"
#include "base/json.h"
#include "recipe/refusal.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */

enum chat_effort { EFFORT_UNSPECIFIED, EFFORT_LOW, EFFORT_HIGH, EFFORT_XHIGH, EFFORT_MAX };

struct chat_prompt {
    bool thinking;            /* the mode asked for */
    bool starts_in_reasoning; /* the answer begins with reasoning; false after a prefix with content */
    enum chat_effort effort;  /* EFFORT_UNSPECIFIED when thinking is off */
    struct token_list ids;    /* kept and reused from one call to the next; free ids.ids */
};

/* Writes prompts; holds marker ids and scratch memory, so one a thread. The tokenizer must outlive it. */
struct chat_format;

/* ERROR_INPUT names the marker that the tokenizer lacks. */
MUST_CHECK enum result chat_format_create(const struct tokenizer *tokenizer, struct chat_format **format);
void chat_format_free(struct chat_format *format);

/* Reads what concerns the prompt from a body (an object): messages, thinking, reasoning_effort, tools,
 * tool_choice, response_format. *accepted is false when it is refused, and *refusal says why. */
MUST_CHECK enum result chat_format_render(struct chat_format *format, const struct json *body,
    struct chat_prompt *prompt, struct refusal *refusal, bool *accepted);

#endif

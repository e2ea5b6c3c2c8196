/* What a model wrote -> reasoning, content and tool calls (docs/replies.md).
 *
 * A streaming parser: pieces of any size, split anywhere, give the same reply. It takes linear time, and
 * nothing is held that reply_finish does not hand over. Two sets of rules:
 *
 *   REPLY_PUBLISHED  what the published toolkit gives, also where that is no valid JSON or drops text
 *   REPLY_REPAIRED   arguments are always a JSON object, a marker without its tag is text, and text that
 *                    stands where none belongs goes to content
 *
 * Pieces are text, or token ids. As ids only a token itself counts as a marker's special part, and the same
 * spelling made of ordinary tokens is text, so that nobody can plant a marker through what the model quotes. */
#ifndef NOCTURNE_RECIPE_REPLY_H
#define NOCTURNE_RECIPE_REPLY_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/json.h"
#include "recipe/conversation.h" /* enum start_stage */
#include "recipe/text_piece.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t, int64_t */

enum reply_rules { REPLY_PUBLISHED, REPLY_REPAIRED };

enum reply_finish { REPLY_STOP, REPLY_LENGTH, REPLY_CONTENT_FILTER, REPLY_TOOL_CALLS };

struct reply_options {
    enum reply_rules rules;
    enum start_stage stage; /* where the prompt left off */
    bool thinking;          /* the reply has reasoning, be it empty */
    bool tools;             /* look for tool calls */
    bool json;              /* the content is one JSON value */
    bool as_ids;            /* the special parts of markers are ids; text that is fed has none */
    bool skip_special;      /* tokens with special = true add no text, as in decoding */
    const struct text_piece
        *stops; /* copied; empty ones never match. They end content, not reasoning or calls */
    int32_t stop_count;
    /* REPLY_REPAIRED: array of {"name", "parameters": JSON Schema}, or of these as "function", or NULL. A
     * value whose property allows strings only becomes a string, and a string whose property allows none
     * becomes the JSON value it spells. Used until reply_finish. */
    const struct json *tools_schemas;
};

struct reply_call {
    struct buffer name, arguments; /* UTF-8; `arguments` JSON text */
    bool incomplete;               /* the output ended inside the call: arguments may miss some */
};

struct reply {
    bool thinking; /* reasoning is part of it */
    struct buffer reasoning, content;
    struct reply_call *calls; /* [call_count] */
    size_t call_count, call_capacity;
    enum reply_finish finish;
    int32_t stop_index;        /* the stop string that ended it, or -1 */
    int64_t completion_tokens; /* ids taken (those after a stop string are not) */
    int64_t reasoning_tokens;  /* of these, before the end of reasoning */
    int64_t content_token;     /* index of the first id after reasoning */
    bool in_reasoning;         /* reasoning never ended */
};

struct reply_parser; /* reused from one reply to the next; one a thread */

/* The tokenizer must outlive the parser; it may be NULL when only text is fed. */
MUST_CHECK enum result reply_parser_create(const struct tokenizer *tokenizer, struct reply_parser **parser);
void reply_parser_free(struct reply_parser *parser); /* NULL is allowed */

/* Begins a reply; the one before is gone. */
void reply_begin(struct reply_parser *parser, const struct reply_options *options);
void reply_feed_text(struct reply_parser *parser, const char *text, size_t bytes);
/* Unknown ids add no text. Bytes are gathered over tokens until they are UTF-8. */
void reply_feed_ids(struct reply_parser *parser, const int32_t *ids, size_t count);
/* `finish`: why the output ended (REPLY_STOP, REPLY_LENGTH, REPLY_CONTENT_FILTER). The reply is valid until
 * the next reply_begin. */
const struct reply *reply_finish(struct reply_parser *parser, enum reply_finish finish);

/* The reply so far. All of it is final but the last reply_held bytes of whichever part is being written. */
const struct reply *reply_so_far(const struct reply_parser *parser);
size_t reply_held(const struct reply_parser *parser);

/* Appends an OpenAI-like call id: call_, the call's index, _, 20 letters or digits and 4 digits, which depend
 * on `seed` and the index only. */
void reply_call_id(const char *seed, size_t seed_bytes, size_t index, struct buffer *id);

#endif

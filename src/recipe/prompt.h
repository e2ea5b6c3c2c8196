/* The published prompt format: a conversation -> text with its markers' places -> token ids.
 *
 * Text is never trusted: only the markers that the format itself writes become marker ids. A marker's
 * spelling typed by a user is encoded as ordinary text. */
#ifndef NOCTURNE_RECIPE_PROMPT_H
#define NOCTURNE_RECIPE_PROMPT_H

#include "base/buffer.h"
#include "base/error.h"
#include "recipe/conversation.h"
#include "recipe/tokenizer.h"

/* A marker's place in the text. */
struct prompt_marker {
    size_t offset, bytes;
    int32_t id;
};

/* Zero-initialize, reuse, free with prompt_free. */
struct prompt {
    struct buffer text;
    struct prompt_marker *markers; /* ascending, disjoint */
    size_t marker_count, marker_capacity;
    struct token_list ids;
};

void prompt_free(struct prompt *prompt);

/* Marker ids and scratch memory: one a thread. The tokenizer must outlive it. */
struct prompt_format;

/* ERROR_INPUT names the marker that the tokenizer lacks; the tool, reminder, image and grounding markers
 * may be missing. */
MUST_CHECK enum result prompt_format_create(const struct tokenizer *tokenizer, struct prompt_format **format);
void prompt_format_free(struct prompt_format *format);

/* The image token's id, or -1. */
int32_t prompt_image_id(const struct prompt_format *format);

/* Fills text and markers. A marker the tokenizer lacks stays plain text. Every image of the conversation is
 * one marker, in order. Takes memory from the conversation's arena. */
MUST_CHECK enum result prompt_render(
    struct prompt_format *format, struct conversation *conversation, struct prompt *prompt);

/* Fills ids, from text and markers. */
MUST_CHECK enum result prompt_encode(const struct prompt_format *format, struct prompt *prompt);

#endif

/* Request bodies converted and rendered as the published toolkit does it, with its options. */
#ifndef NOCTURNE_RECIPE_TOOLKIT_H
#define NOCTURNE_RECIPE_TOOLKIT_H

#include "base/error.h"
#include "base/json.h"
#include "recipe/body.h"
#include "recipe/prompt.h"
#include "recipe/tokenizer.h"

/* One thread's; reused from one body to the next. */
struct toolkit {
    struct prompt_format *format;
    struct json_document *document; /* of a body given as text */
    struct conversation conversation;
    struct toolkit_sampling sampling;
    struct prompt prompt;
    struct refusal refusal;
};

MUST_CHECK enum result toolkit_create(const struct tokenizer *tokenizer, struct toolkit **toolkit);
void toolkit_free(struct toolkit *toolkit);

/* Fills conversation, sampling and prompt, or refusal; they point into the body. */
MUST_CHECK enum result toolkit_render(struct toolkit *toolkit, enum request_kind kind,
    const struct json *body, const struct toolkit_policies *policies, bool *accepted);
/* As toolkit_render, from a body's text, which need not be JSON. */
MUST_CHECK enum result toolkit_render_text(struct toolkit *toolkit, enum request_kind kind,
    struct text_piece text, const struct toolkit_policies *policies, bool *accepted);

/* Reads the toolkit's options from an object (or NULL) whose members are named as its own. ERROR_INPUT names
 * the member. */
MUST_CHECK enum result toolkit_read_policies(const struct json *options, struct toolkit_policies *policies);

#endif

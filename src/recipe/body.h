/* What the readers of all kinds of request bodies share: paths of fields, typed members, tools, images,
 * thinking, and the published toolkit's policies.
 *
 * A body is read in two passes, as the toolkit does: first every value's type is checked, then what the
 * values say. So a wrong type is reported before a wrong value, wherever both stand. */
#ifndef NOCTURNE_RECIPE_BODY_H
#define NOCTURNE_RECIPE_BODY_H

#include "base/json.h"
#include "recipe/conversation.h"
#include "recipe/name_index.h"
#include "recipe/refusal.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

/* The options of the published toolkit's conversion, with its names' meanings. */
struct toolkit_policies {
    bool default_thinking;                         /* when a body does not say */
    bool reject_missing_reasoning;                 /* else it counts as empty */
    bool responses_reject_web_search;              /* else the tool is dropped */
    bool messages_drop_web_search;                 /* else it is refused */
    int32_t max_tokens_thinking, max_tokens_plain; /* bounds of max_tokens */
};

enum { MAX_TOKENS_BOUND = 393216 }; /* the published bound */
extern const struct toolkit_policies TOOLKIT_DEFAULTS;

/* One body being read. */
struct body_reader {
    struct conversation *conversation;
    struct refusal *refusal; /* filled when a reader returns false */
    const struct toolkit_policies *policies;
    const char *const *model_names; /* those accepted; NULL-terminated */
    bool toolkit;                   /* take exactly what the toolkit takes; else also what other servers do */
};

/* Where a value stands; the path is spelled out only when something is refused. */
struct place {
    const struct place *parent; /* NULL: the body itself */
    const char *key;            /* NULL: an element, `index` */
    size_t index;
};

#define MEMBER_OF(parent_, key_) (&(struct place){.parent = (parent_), .key = (key_)})
#define ELEMENT_OF(parent_, index_) (&(struct place){.parent = (parent_), .index = (index_)})

/* "messages[2].content[0].text" */
void place_path(const struct place *place, char *path, size_t capacity);

/* All return false. */
bool refuse_at(struct body_reader *reader, const char *code, const struct place *place, const char *format,
    ...) PRINTF_LIKE(4, 5);
bool refuse_value_at(
    struct body_reader *reader, const struct place *place, const char *expected, const struct json *found);

/* ---- typed members: false when refused; a null is absent where the member is not required ---- */

bool is_absent(const struct json *value); /* NULL or null */
bool check_object(
    struct body_reader *reader, const struct place *place, const char *expected, const struct json *value);
bool read_text(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, struct text_piece *text);
/* text->data is NULL when absent. */
bool read_optional_text(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, struct text_piece *text);
bool read_optional_flag(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const struct json **flag);
bool read_array(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const struct json **array);
bool read_optional_array(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const struct json **array);
/* A member that is one of `words` (NULL-terminated); `expected` lists them for the message. */
bool read_word(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const char *const *words, const char *expected, int *word);
bool read_optional_word(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, const char *const *words, const char *expected, int *word);

/* The member's text, of a value whose type was checked; data NULL when absent. */
struct text_piece text_member(const struct json *object, const char *key);
/* The member, NULL when absent or null. */
const struct json *optional_member(const struct json *object, const char *key);
bool is_true(const struct json *value); /* NULL is not */
/* The place's path, kept in the conversation's arena. */
struct text_piece keep_path(struct body_reader *reader, const struct place *place);

/* A string or an array (of parts, whose types `type_part` checks). */
typedef bool part_check(struct body_reader *reader, const struct place *place, const struct json *part);
bool check_content(
    struct body_reader *reader, const struct place *place, const struct json *content, part_check *type_part);

/* ---- the model's name ---- */

#define CODE_MODEL "model_not_found"

/* Refuses with CODE_MODEL a name, already known to be a string, that is none of the accepted ones. */
bool check_model(struct body_reader *reader, const struct json *body);

/* ---- thinking ---- */

struct thinking_fields {
    bool has_type, enabled; /* thinking.type */
    bool has_effort, effort_none;
    enum chat_effort effort;
};

bool read_thinking(struct body_reader *reader, const struct json *body, struct thinking_fields *fields);
/* `object` may be NULL. */
bool read_effort(struct body_reader *reader, const struct place *parent, const struct json *object,
    const char *key, struct thinking_fields *fields);
void set_thinking(struct body_reader *reader, const struct thinking_fields *fields);

/* By the policy that asks for it: after the last user message no reasoning may be missing, where there are
 * tools or calls. `field` is what the message names. */
bool check_reasoning(struct body_reader *reader, const char *field, bool has_tools);

/* ---- tools ---- */

/* "name", 1 to 128 of the characters a-z A-Z 0-9 _ - */
bool check_tool_name(struct body_reader *reader, const struct place *tool, struct text_piece name);
/* Checks the parameters' JSON Schema, or rebuilds it for a strict tool. */
bool settle_parameters(struct body_reader *reader, const struct place *parameters, struct tool *tool);
/* No two tools have one name; `names` holds those before. */
bool check_unique_name(
    struct body_reader *reader, const struct place *tools, struct name_index *names, const struct tool *tool);
/* For the toolkit, strict tools go with strict tools only. */
bool check_strictness(struct body_reader *reader, const struct place *tools, const struct tool_list *list);
/* Leaves only the tool of this name, which must be called. */
bool choose_tool(struct body_reader *reader, struct text_piece name);
bool check_choice_against_thinking(struct body_reader *reader);

/* ---- formats ---- */

/* The schema that constrains the answer; the toolkit's is rebuilt when strict. */
bool settle_schema(struct body_reader *reader, const struct place *place, const struct json *schema,
    bool strict, const struct json **constraint);
/* Extension: `whitespace` of a JSON format, "flexible" (the default), "compact" or "none" (the same). */
bool read_whitespace(struct body_reader *reader, const struct place *place, const struct json *format);
/* "json" in any case, in a text part of a message. */
bool conversation_says_json(const struct conversation *conversation);

/* ---- images ---- */

/* Checks an image's URL: a data URL of base64 and a known media type, or an http address. */
bool settle_image(struct body_reader *reader, const struct place *place, struct image_reference *image);
/* An http address. */
bool settle_address(struct body_reader *reader, const struct place *place, struct image_reference *image);
/* Without blanks, and padded where it must be; more padding does no harm. */
bool is_padded_base64(struct text_piece text);
/* A data URL that holds a file, which must be an image. */
bool settle_file(struct body_reader *reader, const struct place *place, struct image_reference *image);
bool read_detail(struct body_reader *reader, const struct place *parent, const struct json *object,
    enum image_detail *detail);

/* ---- sampling, in fields that all kinds have ---- */

/* Fields of a body that concern sampling, typed but not yet checked; NULL: absent. */
struct sampling_fields {
    const struct json *temperature, *top_p, *max_tokens, *stop, *seed, *n, *logprobs, *top_logprobs,
        *presence_penalty, *frequency_penalty, *stream, *stream_options;
};

/* What a toolkit's request says of sampling. */
struct toolkit_sampling {
    float temperature, top_p;
    int64_t max_tokens; /* -1: not given */
    bool logprobs;
    int32_t top_logprobs; /* -1: not given */
    bool has_seed;
    int64_t seed;
    bool stream;
    struct text_piece *stops; /* in the conversation's arena */
    size_t stop_count;
};

/* ---- the kinds: fill the conversation and *sampling (when the reader is the toolkit's; else sampling is
 * read by the caller and may be NULL) ---- */

bool chat_body_read(struct body_reader *reader, const struct json *body, struct toolkit_sampling *sampling);
bool responses_body_read(
    struct body_reader *reader, const struct json *body, struct toolkit_sampling *sampling);
bool messages_body_read(
    struct body_reader *reader, const struct json *body, struct toolkit_sampling *sampling);

/* Types of the sampling fields of a body of this kind. */
bool type_sampling(struct body_reader *reader, enum request_kind kind, const struct json *body,
    struct sampling_fields *fields);
/* Their values, in the toolkit's order and by its rules: first what says how to stop and to stream, then the
 * numbers. A response format is checked in between. */
bool settle_stops(
    struct body_reader *reader, const struct sampling_fields *fields, struct toolkit_sampling *sampling);
bool settle_sampling(struct body_reader *reader, enum request_kind kind, const struct sampling_fields *fields,
    struct toolkit_sampling *sampling);

#endif

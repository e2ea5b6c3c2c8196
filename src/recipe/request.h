/* One request of a campaign, from a line of a batch file to what the engine needs.
 *
 * Data flow: ingest parses a line into a struct request, campaign/ stores it in requests.h5 and gives it
 * back, schedule/ runs it. Pointers are owned by whoever fills the struct (a request_parser, or a
 * requests reader) and live until its next call. */
#ifndef NOCTURNE_RECIPE_REQUEST_H
#define NOCTURNE_RECIPE_REQUEST_H

#include "base/error.h"
#include "recipe/conversation.h" /* enum request_kind, start_stage, constraint_kind */
#include "recipe/text_piece.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

/* What the line says of sampling, defaults filled in. */
struct sampling {
    float temperature;       /* 0: greedy */
    float top_p;             /* (0, 1] */
    float min_p;             /* [0, 1]; 0: off */
    int32_t top_k;           /* 0: off */
    float presence_penalty;  /* [-2, 2] */
    float frequency_penalty; /* [-2, 2] */
    int32_t choices;         /* n >= 1 */
    int32_t
        max_tokens; /* >= 1; prompt + max_tokens <= context, but 1 when the toolkit lets a prompt fill it */
    int32_t top_logprobs; /* -1: no log-probabilities; 0..20: that many alternatives a token */
    bool has_seed;
    int64_t seed;
    bool ignore_eos;         /* extension: go on past EOS, until max_tokens or a stop */
    const int32_t *bias_ids; /* logit_bias: ids and values [-100, 100] */
    const float *bias_values;
    int32_t bias_count;
    const int32_t *stop_ids; /* extension stop_token_ids */
    int32_t stop_id_count;
    const struct text_piece *stops; /* stop strings */
    int32_t stop_count;
};

/* An image of a prompt. */
struct request_image {
    int64_t image;    /* which of the campaign's images */
    int32_t position; /* where its span begins in the prompt */
};

struct request {
    int32_t file; /* index of the input file */
    int64_t line; /* 1-based line of that file, blank lines counted */
    struct text_piece custom_id;
    struct text_piece model; /* as the line spells it: answers repeat it */
    enum request_kind kind;
    bool thinking; /* the answer begins with reasoning (thinking on, and no content prefix to go on from) */
    enum start_stage start;
    bool parse_tool_calls; /* tools may be called: the answer is looked through for calls */
    bool json_output;      /* the content is one JSON object (response format json_object) */
    enum constraint_kind constraint;
    struct text_piece constraint_text; /* of a tool call's: a JSON array of the tools, as Chat has them */
    bool constraint_strict;            /* of a schema: objects that do not say so are closed */
    bool constraint_compact;           /* of JSON: no blanks */
    bool one_call;                     /* of tool calls: one at most */
    const int32_t *token_ids;          /* every position of an image's span has the image token's id */
    int32_t token_count;
    const struct request_image *images; /* [image_count], in the order of their spans */
    int32_t image_count;
    int32_t image_tokens; /* of token_count: positions of images */
    struct sampling sampling;
};

/* Why a line has no answer; a line of errors.jsonl. Two kinds, as OpenAI has: an HTTP-like refusal
 * (status 400..599; type, param and code as in an API reply), or a failure without a reply (status 0;
 * only code and message). */
struct request_error {
    int32_t file;
    int64_t line;
    bool has_custom_id;
    struct text_piece custom_id;
    int32_t status;
    const char *type;  /* "invalid_request_error", ... ; NULL when status is 0 */
    const char *code;  /* "invalid_json_line", "model_not_found", ... ; never NULL */
    const char *param; /* the field, or NULL */
    char message[1024];
};

struct request_options {
    const char *const *model_names; /* accepted spellings, compared without case; NULL-terminated; kept */
    int32_t context;                /* the model's positions */
    bool strict;                    /* unknown body fields are a 400 for their line */
    int32_t default_max_tokens;     /* 0: the published toolkit's default */
    bool toolkit; /* the published toolkit's own handling of options: what it forces and refuses */
    bool images;  /* images may be shown: the caller places them (request_place_images) */
};

struct request_parser;

MUST_CHECK enum result request_parser_create(
    const struct tokenizer *tokenizer, const struct request_options *options, struct request_parser **parser);
void request_parser_free(struct request_parser *parser);

/* Parses one line (without its newline). *accepted tells which of request and error was filled; both
 * leave file and line to the caller. A line that is no JSON object is the code invalid_json_line with
 * status 0; whatever else is wrong is status 400, or 404 for a model's name, with type
 * invalid_request_error. Failure (a result other than OK) is only for the program's own trouble, never
 * for a bad line. */
MUST_CHECK enum result request_parse(struct request_parser *parser, const char *line, size_t bytes,
    struct request *request, struct request_error *error, bool *accepted);

/* The images that the request parsed last shows, in the order of their markers; valid until the next
 * request_parse. Only with options.images. */
const struct image_reference *request_images(const struct request_parser *parser, size_t *count);

/* Gives each image its span: its marker in token_ids becomes tokens[i] times the image token, and images[i]
 * is the campaign's index of it. Fills images, image_count and image_tokens, and settles the length of the
 * answer anew. *accepted false: the prompt is too long now, and `error` says so. */
MUST_CHECK enum result request_place_images(struct request_parser *parser, const int64_t *images,
    const int32_t *tokens, struct request *request, struct request_error *error, bool *accepted);

/* Unknown body fields ignored so far: "field=count" pairs joined by ", " ("" when none); for ingest's
 * summary. Valid until its next call. */
const char *request_parser_ignored_fields(struct request_parser *parser);

#endif

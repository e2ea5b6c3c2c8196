/* The states that a reply goes through: for reply.c, which feeds it valid UTF-8. */
#ifndef NOCTURNE_RECIPE_REPLY_STATES_H
#define NOCTURNE_RECIPE_REPLY_STATES_H

#include "recipe/reply.h"
#include "recipe/reply_markers.h"

enum reply_state {
    STATE_REASONING,
    STATE_CONTENT,
    STATE_JSON_BEFORE, /* content in JSON mode, before the value */
    STATE_JSON_VALUE,
    STATE_JSON_AFTER,
    STATE_CALLS,       /* inside the calls block, between calls */
    STATE_AFTER_CALLS, /* repaired only: behind the calls block */
    STATE_NAME,
    STATE_ARGUMENTS, /* inside a call, between parameters */
    STATE_KEY,
    STATE_TYPE, /* published only: the rest of a parameter's tag */
    STATE_STRING,
    STATE_RAW,
    STATE_FINISHED, /* all that follows is ignored */
    STATES,
};

/* Zero-initialize, free with reply_states_free. */
struct reply_states {
    struct reply_options options; /* its stops aren't kept */
    bool compiled;                /* sets fit the options */
    struct marker_set sets[STATES];
    struct json_document *document; /* for values that must be JSON */

    struct reply reply;
    enum reply_state state;
    struct marker_set *set;
    struct buffer *sink; /* of the state's text; NULL: dropped */
    bool escapes;        /* the sink is the inside of a JSON string */
    size_t stretch;      /* bytes of the sink when the state began, or its last marker ended */
    bool leading;        /* newlines are dropped until something else comes */
    bool stopped;        /* by a stop string */

    struct buffer stray;  /* text where none belongs: in a calls block, around a JSON value */
    struct buffer value;  /* a parameter's, or the JSON value of JSON mode */
    struct buffer key;    /* of a parameter */
    struct buffer opened; /* repaired: the tag of a calls block in which no call has begun */
    bool in_call;
    bool tag_open;               /* the `>` of an invoke tag is due */
    bool has_parameter;          /* of the call */
    bool from_string;            /* the value was announced as a string */
    bool in_value;               /* a parameter's value is being read */
    const struct json *property; /* the parameter's schema, or NULL */
    const struct json *schema;   /* the call's parameters, or NULL */
    size_t depth;                /* JSON mode: open brackets of the value */
    bool in_string, after_backslash, has_json;
    int64_t begun_id; /* index of the id in which the latest marker began */
};

void reply_states_begin(struct reply_states *states, const struct reply_options *options);
void reply_states_free(struct reply_states *states);
void reply_states_bytes(struct reply_states *states, const char *text, size_t bytes);
/* A special token, with its spelling. */
void reply_states_special(struct reply_states *states, uint16_t symbol, const char *spelling, size_t bytes);
void reply_states_finish(struct reply_states *states, enum reply_finish finish);
size_t reply_states_held(const struct reply_states *states);

#endif

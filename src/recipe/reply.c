#include "recipe/reply.h"

#include "base/utf8.h"
#include "recipe/reply_states.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy, memcmp */
#include <xxhash.h> /* XXH3_128bits_withSeed */

enum token_kind {
    TOKEN_UNKNOWN,
    TOKEN_TEXT,      /* valid UTF-8 by itself */
    TOKEN_BYTES,     /* part of a character, perhaps */
    TOKEN_ADDED,     /* an added token that is in no marker */
    TOKEN_HIDDEN,    /* the same, with special = true */
    TOKEN_END_THINK, /* </think> */
    TOKEN_DSML,
};

enum { TAIL_BYTES = 4 };

struct reply_parser {
    struct reply_states states;
    const struct tokenizer *tokenizer;
    uint8_t *kinds; /* [size] enum token_kind */
    int32_t size;
    char tail[TAIL_BYTES]; /* the begin of a character */
    size_t tail_bytes;
    int64_t tail_ids; /* ids fed since the tail began */
};

/* ---- UTF-8 ---- */

/* The length of the valid UTF-8 at the start of the text. */
static size_t valid_prefix(const char *text, size_t bytes) {
    const uint64_t high = 0x8080808080808080u;
    size_t at = 0;
    while (at < bytes) {
        uint64_t word;
        uint32_t character;
        if (bytes - at >= sizeof word && (memcpy(&word, text + at, sizeof word), !(word & high))) {
            at += sizeof word;
            continue;
        }
        unsigned length = utf8_decode(text + at, bytes - at, &character);
        if (!length)
            break;
        at += length;
    }
    return at;
}

/* Whether bytes that are no character may become one when more come; `invalid`: what utf8_decode stored. */
static bool is_cut(const char *text, size_t bytes, uint32_t invalid) {
    unsigned char lead = (unsigned char)text[0];
    return invalid == bytes && lead >= 0xC2 && lead <= 0xF4;
}

static void take_replacement(struct reply_parser *parser) {
    reply_states_bytes(&parser->states, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
}

static void keep_tail(struct reply_parser *parser, const char *text, size_t bytes) {
    memcpy(parser->tail, text, bytes);
    parser->tail_bytes = bytes;
}

/* Adds one byte to the tail, and hands over what is known of it then. */
static void extend_tail(struct reply_parser *parser, char byte) {
    char text[TAIL_BYTES];
    size_t bytes = parser->tail_bytes + 1;
    uint32_t character;
    memcpy(text, parser->tail, parser->tail_bytes);
    text[bytes - 1] = byte;
    parser->tail_bytes = 0;
    unsigned length = utf8_decode(text, bytes, &character);
    if (length) {
        reply_states_bytes(&parser->states, text, length);
        return;
    }
    if (is_cut(text, bytes, character)) {
        keep_tail(parser, text, bytes);
        return;
    }
    take_replacement(parser); /* for all but the new byte, which may begin a character */
    if (character < bytes)
        extend_tail(parser, byte);
}

static void take_bytes(struct reply_parser *parser, const char *text, size_t bytes) {
    while (bytes && parser->tail_bytes) {
        extend_tail(parser, *text++);
        bytes--;
    }
    while (bytes) {
        size_t valid = valid_prefix(text, bytes);
        uint32_t invalid = 0;
        reply_states_bytes(&parser->states, text, valid);
        text += valid;
        bytes -= valid;
        if (!bytes)
            return;
        (void)utf8_decode(text, bytes, &invalid);
        if (is_cut(text, bytes, invalid)) {
            keep_tail(parser, text, bytes);
            return;
        }
        take_replacement(parser);
        text += invalid;
        bytes -= invalid;
    }
}

/* The begin of a character that nothing can complete any more. */
static void flush_tail(struct reply_parser *parser) {
    if (parser->tail_bytes)
        take_replacement(parser);
    parser->tail_bytes = 0;
}

/* ---- feeding ---- */

void reply_feed_text(struct reply_parser *parser, const char *text, size_t bytes) {
    take_bytes(parser, text, bytes);
}

static void take_id(struct reply_parser *parser, int32_t id) {
    struct reply_states *states = &parser->states;
    enum token_kind kind = id >= 0 && id < parser->size ? (enum token_kind)parser->kinds[id] : TOKEN_UNKNOWN;
    const char *text = NULL;
    size_t bytes = 0;
    bool hidden = kind == TOKEN_HIDDEN && states->options.skip_special;
    if (kind == TOKEN_UNKNOWN || hidden || !tokenizer_token_bytes(parser->tokenizer, id, &text, &bytes))
        return;
    if (!states->options.as_ids || kind == TOKEN_BYTES) {
        take_bytes(parser, text, bytes);
        return;
    }
    if (kind == TOKEN_TEXT) {
        if (parser->tail_bytes)
            take_bytes(parser, text, bytes);
        else
            reply_states_bytes(states, text, bytes);
        return;
    }
    flush_tail(parser);
    reply_states_special(states,
        kind == TOKEN_DSML        ? SYMBOL_DSML
        : kind == TOKEN_END_THINK ? SYMBOL_END_THINK
                                  : SYMBOL_OTHER,
        text, bytes);
}

void reply_feed_ids(struct reply_parser *parser, const int32_t *ids, size_t count) {
    for (size_t i = 0; i < count && !parser->states.stopped; i++) {
        parser->states.reply.completion_tokens++;
        parser->tail_ids += parser->tail_bytes > 0;
        take_id(parser, ids[i]);
        if (!parser->tail_bytes)
            parser->tail_ids = 0;
        else if (!parser->tail_ids)
            parser->tail_ids = 1;
    }
}

const struct reply *reply_finish(struct reply_parser *parser, enum reply_finish finish) {
    struct reply_states *states = &parser->states;
    /* The published parser leaves out an unfinished character, and the ids it is made of. */
    if (states->options.rules == REPLY_PUBLISHED && states->options.as_ids) {
        states->reply.completion_tokens -= parser->tail_bytes ? parser->tail_ids : 0;
        parser->tail_bytes = 0;
    }
    flush_tail(parser);
    reply_states_finish(states, finish);
    return &states->reply;
}

const struct reply *reply_so_far(const struct reply_parser *parser) {
    return &parser->states.reply;
}

size_t reply_held(const struct reply_parser *parser) {
    return reply_states_held(&parser->states);
}

/* ---- life ---- */

static enum token_kind token_kind(const struct tokenizer *tokenizer, int32_t id) {
    const char *text;
    size_t bytes;
    if (!tokenizer_token_bytes(tokenizer, id, &text, &bytes))
        return TOKEN_UNKNOWN;
    if (!tokenizer_is_added(tokenizer, id))
        return valid_prefix(text, bytes) == bytes ? TOKEN_TEXT : TOKEN_BYTES;
    if (bytes == strlen(SPELLING_DSML) && !memcmp(text, SPELLING_DSML, bytes))
        return TOKEN_DSML;
    if (bytes == strlen(SPELLING_END_THINK) && !memcmp(text, SPELLING_END_THINK, bytes))
        return TOKEN_END_THINK;
    return tokenizer_is_special(tokenizer, id) ? TOKEN_HIDDEN : TOKEN_ADDED;
}

enum result reply_parser_create(const struct tokenizer *tokenizer, struct reply_parser **parser) {
    struct reply_parser *made = calloc(1, sizeof *made);
    enum result status = OK;
    *parser = NULL;
    if (!made)
        return fail(ERROR_MEMORY, "no memory for a parser of replies");
    made->tokenizer = tokenizer;
    made->size = tokenizer ? tokenizer_size(tokenizer) : 0;
    made->kinds = calloc((size_t)made->size + 1, 1);
    if (!made->kinds) {
        status = fail(ERROR_MEMORY, "no memory for the kinds of %d tokens", made->size);
        goto done;
    }
    TRY_GOTO(status, json_document_create(&made->states.document), done);
    for (int32_t id = 0; id < made->size; id++)
        made->kinds[id] = (uint8_t)token_kind(tokenizer, id);
    *parser = made;
    made = NULL;
done:
    reply_parser_free(made);
    return status;
}

void reply_parser_free(struct reply_parser *parser) {
    if (!parser)
        return;
    reply_states_free(&parser->states);
    free(parser->kinds);
    free(parser);
}

void reply_begin(struct reply_parser *parser, const struct reply_options *options) {
    parser->tail_bytes = 0;
    parser->tail_ids = 0;
    reply_states_begin(&parser->states, options);
}

/* ---- call ids ---- */

void reply_call_id(const char *seed, size_t seed_bytes, size_t index, struct buffer *id) {
    enum { LETTERS = 20, DIGITS = 4 };
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    XXH128_hash_t hash = XXH3_128bits_withSeed(seed, seed_bytes, index);
    char text[LETTERS + DIGITS];
    for (int i = 0; i < LETTERS; i++) { /* 20 * log2(62) = 119 bits */
        uint64_t *half = i < LETTERS / 2 ? &hash.low64 : &hash.high64;
        text[i] = alphabet[*half % 62];
        *half /= 62;
    }
    for (int i = 0; i < DIGITS; i++) {
        uint64_t *half = i < DIGITS / 2 ? &hash.low64 : &hash.high64;
        text[LETTERS + i] = (char)('0' + *half % 10);
        *half /= 10;
    }
    buffer_printf(id, "call_%02zu_", index);
    buffer_append(id, text, sizeof text);
}

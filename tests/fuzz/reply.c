/* What a model wrote, as text or token ids: any bytes under any options give a well-formed reply, the same
 * for any split, and nothing is lost where nothing may be.
 *
 * Input: three bytes of options, then text, or ids of two bytes each. */
#include "recipe/reply.h"

#include "base/buffer.h"
#include "base/json.h"
#include "base/utf8.h"

#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* abort */
#include <string.h> /* memcmp */

enum { OPTION_BYTES = 3 };

static struct tokenizer *tokenizer;
static struct reply_parser *parser;
static struct json_document *document;

static void check(bool holds) {
    if (!holds)
        abort();
}

static void prepare(void) {
    if (tokenizer_load(SOURCE_DIR "/inputs/nano", &tokenizer) != OK ||
        reply_parser_create(tokenizer, &parser) != OK || json_document_create(&document) != OK) {
        fprintf(stderr, "%s\n", failure_message());
        abort();
    }
}

static struct reply_options read_options(const unsigned char *data) {
    static const struct text_piece stops[] = {{"END", 3}, {"\n\n", 2}};
    return (struct reply_options){.rules = data[0] & 1 ? REPLY_REPAIRED : REPLY_PUBLISHED,
        .tools = data[0] & 2,
        .json = data[0] & 4,
        .thinking = data[0] & 8,
        .as_ids = data[0] & 16,
        .skip_special = data[0] & 32,
        .stage = (enum start_stage)(data[1] % 5),
        .stops = stops,
        .stop_count = data[1] / 5 % 3};
}

/* ---- feeding ---- */

static void feed(const struct reply_options *options, const unsigned char *data, size_t bytes) {
    if (!options->as_ids) {
        reply_feed_text(parser, (const char *)data, bytes);
        return;
    }
    for (size_t i = 0; i + 2 <= bytes; i += 2) {
        int32_t id = data[i] | data[i + 1] << 8;
        reply_feed_ids(parser, &id, 1);
    }
}

/* `piece` 0: all at once. */
static const struct reply *parse(const struct reply_options *options, const unsigned char *data, size_t bytes,
    size_t piece, enum reply_finish finish) {
    reply_begin(parser, options);
    for (size_t at = 0; at < bytes;) {
        size_t count = piece && piece < bytes - at ? piece : bytes - at;
        feed(options, data + at, count);
        check(reply_held(parser) <= bytes + 64);
        at += count;
    }
    return reply_finish(parser, finish);
}

/* ---- what must hold ---- */

static void check_text(const struct buffer *text) {
    for (size_t at = 0; at < text->bytes;) {
        uint32_t character;
        unsigned length = utf8_decode(text->data + at, text->bytes - at, &character);
        check(length > 0);
        at += length;
    }
}

static void check_reply(const struct reply *reply, const struct reply_options *options, size_t bytes) {
    size_t total = reply->reasoning.bytes + reply->content.bytes;
    check_text(&reply->reasoning);
    check_text(&reply->content);
    for (size_t i = 0; i < reply->call_count; i++) {
        const struct reply_call *call = &reply->calls[i];
        const struct json *value = NULL;
        check_text(&call->name);
        check_text(&call->arguments);
        total += call->name.bytes + call->arguments.bytes;
        if (options->rules == REPLY_PUBLISHED)
            continue;
        check(json_parse(document, call->arguments.data, call->arguments.bytes, &value) == OK);
        check(value->kind == JSON_OBJECT);
    }
    check(total <= 64 * bytes + 64); /* an id spells up to 50 bytes or so, an escape takes six */
    check(reply->content_token >= 0 && reply->content_token <= reply->completion_tokens);
    check(reply->reasoning_tokens >= 0 && reply->reasoning_tokens <= reply->content_token);
    check(reply->stop_index < options->stop_count);
}

static void append_reply(const struct reply *reply, struct buffer *text) {
    buffer_clear(text);
    buffer_append(text, reply->reasoning.data ? reply->reasoning.data : "", reply->reasoning.bytes);
    buffer_printf(text, "|%d %d %lld %lld|", (int)reply->finish, reply->stop_index,
        (long long)reply->completion_tokens, (long long)reply->reasoning_tokens);
    buffer_append(text, reply->content.data ? reply->content.data : "", reply->content.bytes);
    for (size_t i = 0; i < reply->call_count; i++) {
        const struct reply_call *call = &reply->calls[i];
        buffer_append(text, call->incomplete ? "|?" : "|!", 2);
        buffer_append(text, call->name.data ? call->name.data : "", call->name.bytes);
        buffer_append(text, "|", 1);
        buffer_append(text, call->arguments.data ? call->arguments.data : "", call->arguments.bytes);
    }
}

static size_t visible_bytes(const struct buffer *text) {
    size_t count = 0;
    for (size_t i = 0; i < text->bytes; i++)
        count += text->data[i] != '\n';
    return count;
}

/* The text as UTF-8, without the closing tags of reasoning. */
static void append_expected(const unsigned char *data, size_t bytes, struct buffer *text) {
    static const char tag[] = "</think>";
    buffer_clear(text);
    for (size_t at = 0; at < bytes;) {
        uint32_t character;
        const char *here = (const char *)data + at;
        if (bytes - at >= sizeof tag - 1 && !memcmp(here, tag, sizeof tag - 1)) {
            at += sizeof tag - 1;
            continue;
        }
        unsigned length = utf8_decode(here, bytes - at, &character);
        if (length)
            buffer_append(text, here, length);
        else
            buffer_append(text, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
        at += length ? length : character;
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    static struct buffer whole, pieces, expected;
    if (!parser)
        prepare();
    if (bytes < OPTION_BYTES)
        return 0;
    struct reply_options options = read_options(data);
    enum reply_finish finish = (enum reply_finish)(data[2] % 3);
    size_t piece = 1 + data[2] / 3 % 7;
    data += OPTION_BYTES;
    bytes -= OPTION_BYTES;
    const struct reply *reply = parse(&options, data, bytes, 0, finish);
    check_reply(reply, &options, bytes);
    append_reply(reply, &whole);
    if (!options.tools && !options.json && !options.as_ids && !options.stop_count &&
        options.stage != START_CALLS) {
        append_expected(data, bytes, &expected);
        check(visible_bytes(&expected) == visible_bytes(&reply->reasoning) + visible_bytes(&reply->content));
    }
    append_reply(parse(&options, data, bytes, options.as_ids ? 2 * piece : piece, finish), &pieces);
    check(whole.bytes == pieces.bytes && !memcmp(whole.data, pieces.data, whole.bytes));
    return 0;
}

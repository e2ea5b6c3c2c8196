/* Images of request bodies: whether a reference can be one. Nothing is decoded here. */
#include "recipe/body.h"

#include "base/hex.h"

#include <string.h>  /* memchr */
#include <strings.h> /* strncasecmp */

enum { IMAGE_URL_MOST = 8192 };

#define FORMATS "an image in one of the formats webp, png, jpeg and gif"

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

/* Without the blanks and controls at both ends. */
static struct text_piece trim(struct text_piece text) {
    while (text.bytes && (unsigned char)text.data[0] <= ' ')
        text.data++, text.bytes--;
    while (text.bytes && (unsigned char)text.data[text.bytes - 1] <= ' ')
        text.bytes--;
    return text;
}

static bool starts_with(struct text_piece text, const char *word) {
    size_t bytes = strlen(word);
    return text.bytes >= bytes && !strncasecmp(text.data, word, bytes);
}

/* Type and payload of "data:TYPE;base64,PAYLOAD"; false when it is none. */
static bool split_data_url(
    struct text_piece url, struct text_piece *type, struct text_piece *payload, bool *is_base64) {
    static const char suffix[] = ";base64";
    url = trim(url);
    if (!starts_with(url, "data:"))
        return false;
    const char *start = url.data + 5, *end = url.data + url.bytes;
    const char *comma = memchr(start, ',', (size_t)(end - start));
    if (!comma)
        return false;
    struct text_piece head = trim((struct text_piece){start, (size_t)(comma - start)});
    *is_base64 = head.bytes >= sizeof suffix - 1 &&
                 !memcmp(head.data + head.bytes - (sizeof suffix - 1), suffix, sizeof suffix - 1);
    const char *semicolon = memchr(head.data, ';', head.bytes);
    *type = trim((struct text_piece){head.data, semicolon ? (size_t)(semicolon - head.data) : head.bytes});
    const char *fragment = memchr(comma, '#', (size_t)(end - comma));
    *payload = (struct text_piece){comma + 1, (size_t)((fragment ? fragment : end) - comma - 1)};
    return true;
}

static bool is_image_type(struct text_piece type) {
    static const char *const types[] = {"image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (type.bytes == strlen(types[i]) && !strncasecmp(type.data, types[i], type.bytes))
            return true;
    }
    return false;
}

static bool is_base64_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' || c == '/';
}

bool is_padded_base64(struct text_piece text) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t characters = 0;
    while (characters < text.bytes && is_base64_character(text.data[characters]))
        characters++;
    for (size_t i = characters; i < text.bytes; i++) {
        if (text.data[i] != '=')
            return false;
    }
    size_t rest = characters % 4;
    if (rest == 0)
        return true;
    unsigned last = (unsigned)(strchr(alphabet, text.data[characters - 1]) - alphabet);
    /* What the last character says beyond whole bytes must be nothing. */
    return characters < text.bytes && rest != 1 && !(last & (rest == 2 ? 15u : 3u));
}

/* Blanks are skipped, "%41" stands for 'A', padding may be missing. */
static bool is_base64_text(struct text_piece text) {
    size_t characters = 0, padding = 0;
    for (size_t i = 0; i < text.bytes; i++) {
        char c = text.data[i];
        if (c == '%' && i + 2 < text.bytes && hex_value(text.data[i + 1]) >= 0 &&
            hex_value(text.data[i + 2]) >= 0) {
            c = (char)(16 * hex_value(text.data[i + 1]) + hex_value(text.data[i + 2]));
            i += 2;
        }
        if (is_blank(c))
            continue;
        if (c == '=')
            padding++;
        else if (padding || !is_base64_character(c))
            return false;
        else
            characters++;
    }
    if (padding)
        return padding <= 2 && (characters + padding) % 4 == 0;
    return characters % 4 != 1;
}

/* A campaign's references may be paths of files too; whoever opens them judges them then. */
bool settle_address(struct body_reader *reader, const struct place *place, struct image_reference *image) {
    image->is_url = starts_with(image->reference, "http");
    if (!reader->toolkit)
        return true;
    if (!image->is_url)
        return refuse_at(reader, CODE_VALUE, place,
            "expected a data URL of base64 (data:image/png;base64,...) or an http address");
    return image->reference.bytes <= IMAGE_URL_MOST ||
           refuse_at(reader, CODE_VALUE, place,
               "the address has %zu bytes, expected at most %d; pass the image itself as a data URL",
               image->reference.bytes, IMAGE_URL_MOST);
}

bool settle_image(struct body_reader *reader, const struct place *place, struct image_reference *image) {
    struct text_piece type, payload, url = image->reference;
    bool is_base64;
    if (split_data_url(url, &type, &payload, &is_base64) && is_base64) {
        if (!is_image_type(type))
            return refuse_at(reader, CODE_VALUE, place, "expected " FORMATS ", found the media type \"%.*s\"",
                type.bytes < 64 ? (int)type.bytes : 0, type.data);
        return is_base64_text(payload) || refuse_at(reader, CODE_VALUE, place, "the base64 data is invalid");
    }
    return settle_address(reader, place, image);
}

bool settle_file(struct body_reader *reader, const struct place *place, struct image_reference *image) {
    struct text_piece type, payload;
    bool is_base64 = false;
    if (!split_data_url(image->reference, &type, &payload, &is_base64) ||
        (is_base64 && !is_base64_text(payload)))
        return refuse_at(reader, CODE_VALUE, place, "expected a data URL of base64");
    if (!is_image_type(type))
        return refuse_at(reader, CODE_VALUE, place, "expected " FORMATS ", found the media type \"%.*s\"",
            type.bytes < 64 ? (int)type.bytes : 0, type.data);
    return is_base64 || refuse_at(reader, CODE_VALUE, place, "expected a data URL of base64");
}

bool read_detail(struct body_reader *reader, const struct place *parent, const struct json *object,
    enum image_detail *detail) {
    static const char *const words[] = {"low", "high", "original", "auto", NULL};
    int word = DETAIL_HIGH;
    if (!read_optional_word(reader, parent, object, "detail", words, "low, high, original or auto", &word))
        return false;
    *detail = (enum image_detail)word;
    return true;
}

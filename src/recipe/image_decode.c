#include "recipe/image.h"
#include "recipe/image_internal.h"

#include <stdlib.h> /* malloc, free */
#include <string.h> /* memcmp, memcpy */

/* Transparent pixels show this light grey, #FDFDFD, as the published toolkit has it. */
enum { BACKDROP = 253, TILE = 32 };

/* ---- workspace ---- */

enum result workspace_block(
    struct image_workspace *workspace, enum image_block_use use, size_t bytes, void **data) {
    struct image_block *block = &workspace->blocks[use];
    if (bytes > block->bytes || !block->data) {
        free(block->data);
        *block = (struct image_block){0};
        size_t wanted = bytes ? bytes : 1;
        block->data = malloc(wanted);
        if (!block->data)
            return fail(ERROR_MEMORY, "no memory for %zu bytes of an image", wanted);
        block->bytes = wanted;
    }
    *data = block->data;
    return OK;
}

void image_workspace_free(struct image_workspace *workspace) {
    _Static_assert(BLOCK_PATCHES + 1 == IMAGE_WORKSPACE_BLOCKS, "every use has a block");
    for (int i = 0; i < IMAGE_WORKSPACE_BLOCKS; i++)
        free(workspace->blocks[i].data);
    *workspace = (struct image_workspace){0};
}

/* ---- what the decoders share ---- */

enum result decoding_fail(const struct image_decoding *decoding, const char *reason) {
    return fail(ERROR_INPUT, "%s image of %zu bytes: %s", decoding->format, decoding->count, reason);
}

enum result decoding_begin(
    struct image_decoding *decoding, uint64_t width, uint64_t height, int32_t channels) {
    const uint64_t most = (uint64_t)decoding->most_side;
    if (width < 1 || height < 1)
        return decoding_fail(decoding, "its header claims a size without pixels");
    if (width > most || height > most)
        return fail(ERROR_INPUT,
            "%s image of %llu x %llu pixels: expected at most %d a side here: make it smaller, the model "
            "sees no "
            "more than about two million pixels",
            decoding->format, (unsigned long long)width, (unsigned long long)height, decoding->most_side);
    void *block = NULL;
    TRY(workspace_block(
        decoding->workspace, BLOCK_DECODED, (size_t)width * (size_t)height * (size_t)channels, &block));
    decoding->width = (int32_t)width;
    decoding->height = (int32_t)height;
    decoding->channels = channels;
    decoding->pixels = block;
    return OK;
}

/* RGBA to RGB over the backdrop, in place. */
static void blend_alpha(struct image_decoding *decoding) {
    const size_t count = (size_t)decoding->width * (size_t)decoding->height;
    const uint8_t *from = decoding->pixels;
    uint8_t *to = decoding->pixels;
    for (size_t i = 0; i < count; i++, from += 4, to += IMAGE_CHANNELS) {
        const uint32_t alpha = from[3], behind = BACKDROP * (255 - alpha) + 127;
        for (int channel = 0; channel < IMAGE_CHANNELS; channel++)
            to[channel] = (uint8_t)((from[channel] * alpha + behind) / 255);
    }
    decoding->channels = IMAGE_CHANNELS;
}

/* ---- orientation ---- */

/* Where the pixel (x, y) of the upright image lies in the stored one, counted in pixels: at
 * origin + x * right + y * down. */
struct turn {
    ptrdiff_t origin, right, down;
    bool swaps_sides;
};

static struct turn find_turn(int orientation, ptrdiff_t width, ptrdiff_t height) {
    const ptrdiff_t last_column = width - 1, last_row = (height - 1) * width;
    switch (orientation) {
    case 2: /* mirrored left to right */
        return (struct turn){last_column, -1, width, false};
    case 3: /* turned by 180 degrees */
        return (struct turn){last_row + last_column, -1, -width, false};
    case 4: /* mirrored top to bottom */
        return (struct turn){last_row, 1, -width, false};
    case 5: /* mirrored at the main diagonal */
        return (struct turn){0, width, 1, true};
    case 6: /* to be turned clockwise by 90 degrees */
        return (struct turn){last_row, -width, 1, true};
    case 7: /* mirrored at the other diagonal */
        return (struct turn){last_row + last_column, -width, -1, true};
    case 8: /* to be turned clockwise by 270 degrees */
        return (struct turn){last_column, width, -1, true};
    default:
        return (struct turn){0, 1, width, false};
    }
}

/* Copies a tile of the upright image. */
static void turn_tile(const uint8_t *stored, const struct turn *turn, uint8_t *upright, int32_t width,
    int32_t left, int32_t top, int32_t right, int32_t bottom) {
    for (int32_t y = top; y < bottom; y++) {
        const uint8_t *from = stored + (turn->origin + left * turn->right + y * turn->down) * IMAGE_CHANNELS;
        uint8_t *to = upright + ((size_t)y * (size_t)width + (size_t)left) * IMAGE_CHANNELS;
        for (int32_t x = left; x < right; x++, to += IMAGE_CHANNELS) {
            memcpy(to, from, IMAGE_CHANNELS);
            if (x + 1 < right) /* no pointer outside the image */
                from += turn->right * IMAGE_CHANNELS;
        }
    }
}

static enum result turn_upright(struct image_decoding *decoding, int orientation) {
    const struct turn turn = find_turn(orientation, decoding->width, decoding->height);
    const int32_t width = turn.swaps_sides ? decoding->height : decoding->width;
    const int32_t height = turn.swaps_sides ? decoding->width : decoding->height;
    void *upright = NULL;
    TRY(workspace_block(
        decoding->workspace, BLOCK_TURNED, (size_t)width * (size_t)height * IMAGE_CHANNELS, &upright));
    for (int32_t top = 0; top < height; top += TILE)
        for (int32_t left = 0; left < width; left += TILE)
            turn_tile(decoding->pixels, &turn, upright, width, left, top,
                left + TILE < width ? left + TILE : width, top + TILE < height ? top + TILE : height);
    decoding->width = width;
    decoding->height = height;
    decoding->pixels = upright;
    return OK;
}

/* ---- formats ---- */

static const struct format {
    const char *name;
    enum result (*decode)(struct image_decoding *decoding);
    size_t magic_bytes;
    const char *magic;
    size_t second_offset; /* of more magic; 0: none */
    const char *second;
} formats[] = {
    {"PNG", image_decode_png, 8, "\x89PNG\r\n\x1A\n", 0, ""},
    {"JPEG", image_decode_jpeg, 3, "\xFF\xD8\xFF", 0, ""},
    {"WebP", image_decode_webp, 4, "RIFF", 8, "WEBP"},
    {"GIF", image_decode_gif, 6, "GIF87a", 0, ""},
    {"GIF", image_decode_gif, 6, "GIF89a", 0, ""},
};

static const struct format *find_format(const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct format *format = &formats[i];
        size_t second_bytes = strlen(format->second);
        if (count >= format->magic_bytes && memcmp(bytes, format->magic, format->magic_bytes) == 0 &&
            (!second_bytes || (count >= format->second_offset + second_bytes &&
                                  memcmp(bytes + format->second_offset, format->second, second_bytes) == 0)))
            return format;
    }
    return NULL;
}

const char *image_format_name(const uint8_t *bytes, size_t count) {
    const struct format *format = find_format(bytes, count);
    return format ? format->name : NULL;
}

static enum result fail_unknown(const uint8_t *bytes, size_t count) {
    char start[3 * 8 + 1] = "";
    for (size_t i = 0; i < count && i < 8; i++)
        for (int nibble = 0; nibble < 3; nibble++)
            start[3 * i + (size_t)nibble] =
                nibble == 2 ? ' ' : "0123456789abcdef"[bytes[i] >> (4 - 4 * nibble) & 15];
    return fail(ERROR_INPUT,
        "image of %zu bytes that begin with %s: no known format: expected PNG, JPEG, WebP or GIF", count,
        start[0] ? start : "nothing");
}

enum result image_decode(struct image_workspace *workspace, const uint8_t *bytes, size_t count,
    int32_t most_side, struct image_pixels *pixels) {
    if (count == 0)
        return fail(ERROR_INPUT, "image of 0 bytes: expected a PNG, JPEG, WebP or GIF file");
    const struct format *format = find_format(bytes, count);
    if (!format)
        return fail_unknown(bytes, count);
    struct image_decoding decoding = {.workspace = workspace,
        .format = format->name,
        .bytes = bytes,
        .count = count,
        .most_side = most_side < IMAGE_MOST_SIDE ? most_side : IMAGE_MOST_SIDE};
    TRY(format->decode(&decoding));
    if (decoding.channels == 4)
        blend_alpha(&decoding);
    int orientation = image_orientation(format->name, bytes, count);
    if (orientation != 1)
        TRY(turn_upright(&decoding, orientation));
    *pixels = (struct image_pixels){decoding.width, decoding.height, decoding.pixels};
    return OK;
}

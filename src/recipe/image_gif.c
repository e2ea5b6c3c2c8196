/* GIF by giflib: the first frame, on a transparent canvas of the screen's size (or larger, when the
 * frame reaches beyond it). */
#include "recipe/image_internal.h"

#include <gif_lib.h>
#include <string.h> /* memcpy, memset */

struct gif_reading {
    struct image_decoding *decoding;
    GifFileType *gif;
    size_t at;        /* bytes read */
    int transparent;  /* colour index, or NO_TRANSPARENT_COLOR */
    uint8_t *indices; /* one line */
};

static int read_bytes(GifFileType *gif, GifByteType *to, int count) {
    struct gif_reading *reading = gif->UserData;
    size_t left = reading->decoding->count - reading->at;
    size_t taken = count < 0 ? 0 : (size_t)count < left ? (size_t)count : left;
    memcpy(to, reading->decoding->bytes + reading->at, taken);
    reading->at += taken;
    return (int)taken;
}

static enum result gif_fail(const struct gif_reading *reading) {
    const char *reason = GifErrorString(reading->gif->Error);
    return decoding_fail(reading->decoding, reading->at >= reading->decoding->count ? "truncated"
                                            : reason                                ? reason
                                                                                    : "damaged");
}

/* One extension; of graphic control extensions the transparent colour is kept. */
static enum result read_extension(struct gif_reading *reading) {
    int kind;
    GifByteType *block; /* its length, then its bytes */
    if (DGifGetExtension(reading->gif, &kind, &block) == GIF_ERROR)
        return gif_fail(reading);
    while (block) {
        GraphicsControlBlock control;
        if (kind == GRAPHICS_EXT_FUNC_CODE && DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
            reading->transparent = control.TransparentColor;
        if (DGifGetExtensionNext(reading->gif, &block) == GIF_ERROR)
            return gif_fail(reading);
    }
    return OK;
}

/* Goes to the first frame and reads its header. */
static enum result find_frame(struct gif_reading *reading) {
    for (;;) {
        GifRecordType record;
        if (DGifGetRecordType(reading->gif, &record) == GIF_ERROR)
            return gif_fail(reading);
        if (record == EXTENSION_RECORD_TYPE)
            TRY(read_extension(reading));
        else if (record == TERMINATE_RECORD_TYPE)
            return decoding_fail(reading->decoding, "no frame in it");
        else if (record == IMAGE_DESC_RECORD_TYPE)
            return DGifGetImageDesc(reading->gif) == GIF_ERROR ? gif_fail(reading) : OK;
    }
}

static enum result read_line(struct gif_reading *reading, const ColorMapObject *colors, int32_t y) {
    const GifImageDesc *frame = &reading->gif->Image;
    struct image_decoding *decoding = reading->decoding;
    if (DGifGetLine(reading->gif, reading->indices, frame->Width) == GIF_ERROR)
        return gif_fail(reading);
    uint8_t *to =
        decoding->pixels + ((size_t)(frame->Top + y) * (size_t)decoding->width + (size_t)frame->Left) * 4;
    for (int32_t x = 0; x < frame->Width; x++, to += 4) {
        int index = reading->indices[x];
        if (index == reading->transparent)
            continue;
        if (index >= colors->ColorCount)
            return decoding_fail(decoding, "a pixel's colour is outside the colour table");
        const GifColorType *color = &colors->Colors[index];
        to[0] = color->Red;
        to[1] = color->Green;
        to[2] = color->Blue;
        to[3] = 255;
    }
    return OK;
}

static enum result read_lines(struct gif_reading *reading, const ColorMapObject *colors) {
    static const struct { int32_t first, step; } passes[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
    const GifImageDesc *frame = &reading->gif->Image;
    if (!frame->Interlace) {
        for (int32_t y = 0; y < frame->Height; y++)
            TRY(read_line(reading, colors, y));
        return OK;
    }
    for (size_t pass = 0; pass < sizeof passes / sizeof *passes; pass++)
        for (int32_t y = passes[pass].first; y < frame->Height; y += passes[pass].step)
            TRY(read_line(reading, colors, y));
    return OK;
}

static enum result read_gif(struct gif_reading *reading) {
    struct image_decoding *decoding = reading->decoding;
    GifFileType *gif = reading->gif;
    TRY(find_frame(reading));
    const GifImageDesc *frame = &gif->Image;
    if (frame->Width < 1 || frame->Height < 1 || frame->Left < 0 || frame->Top < 0)
        return decoding_fail(decoding, "its first frame has no pixels");
    const ColorMapObject *colors = frame->ColorMap ? frame->ColorMap : gif->SColorMap;
    if (!colors)
        return decoding_fail(decoding, "no colour table");
    int64_t right = (int64_t)frame->Left + frame->Width, bottom = (int64_t)frame->Top + frame->Height;
    int64_t width = right > gif->SWidth ? right : gif->SWidth;
    int64_t height = bottom > gif->SHeight ? bottom : gif->SHeight;
    void *indices = NULL;
    TRY(decoding_begin(decoding, (uint64_t)width, (uint64_t)height, 4));
    TRY(workspace_block(decoding->workspace, BLOCK_LINE, (size_t)frame->Width, &indices));
    reading->indices = indices;
    memset(decoding->pixels, 0, (size_t)width * (size_t)height * 4);
    return read_lines(reading, colors);
}

enum result image_decode_gif(struct image_decoding *decoding) {
    struct gif_reading reading = {.decoding = decoding, .transparent = NO_TRANSPARENT_COLOR};
    int error = 0;
    reading.gif = DGifOpen(&reading, read_bytes, &error);
    if (!reading.gif)
        return error == D_GIF_ERR_NOT_ENOUGH_MEM ? fail(ERROR_MEMORY, "no memory for reading a GIF image")
                                                 : decoding_fail(decoding, "truncated or damaged");
    enum result status = read_gif(&reading);
    DGifCloseFile(reading.gif, NULL);
    return status;
}

/* Shared by the image_*.c files; not for others. */
#ifndef NOCTURNE_RECIPE_IMAGE_INTERNAL_H
#define NOCTURNE_RECIPE_IMAGE_INTERNAL_H

#include "recipe/image.h"

/* What each block of a workspace holds. */
enum image_block_use {
    BLOCK_DECODED,      /* a decoder's pixels, 3 or 4 channels */
    BLOCK_TURNED,       /* decoded pixels after an EXIF turn that swaps the sides */
    BLOCK_LINE,         /* one line in a decoder's own form */
    BLOCK_SHRUNK,       /* pixels of the shrunk size */
    BLOCK_FITTED,       /* pixels of the planned size */
    BLOCK_HORIZONTAL,   /* resampling between its two passes */
    BLOCK_COEFFICIENTS, /* of one pass */
    BLOCK_BAND,         /* lines side by side, for the horizontal pass */
    BLOCK_PATCHES,
};

/* Gives the block at least `bytes`; its content is lost when it has to grow. */
MUST_CHECK enum result workspace_block(
    struct image_workspace *workspace, enum image_block_use use, size_t bytes, void **data);

/* An image being decoded. */
struct image_decoding {
    struct image_workspace *workspace;
    const char *format; /* for messages */
    const uint8_t *bytes;
    size_t count;
    int32_t most_side;
    int32_t width, height, channels;
    uint8_t *pixels; /* [height][width][channels], channels 3: RGB, 4: RGBA */
};

/* Checks the size that the header claims and takes memory for the pixels. */
MUST_CHECK enum result decoding_begin(
    struct image_decoding *decoding, uint64_t width, uint64_t height, int32_t channels);
/* ERROR_INPUT: "FORMAT image: reason". */
enum result decoding_fail(const struct image_decoding *decoding, const char *reason);

MUST_CHECK enum result image_decode_png(struct image_decoding *decoding);
MUST_CHECK enum result image_decode_jpeg(struct image_decoding *decoding);
MUST_CHECK enum result image_decode_webp(struct image_decoding *decoding);
MUST_CHECK enum result image_decode_gif(struct image_decoding *decoding);

/* The orientation, 1..8, of a file's EXIF data; 1 when it has none or they are not sound. `format` as
 * for messages. */
int image_orientation(const char *format, const uint8_t *bytes, size_t count);

#endif

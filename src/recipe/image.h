/* Images: from a file's bytes to what the vision encoder takes.
 *
 *     decode   PNG, JPEG, WebP, GIF (first frame) -> RGB, 8 bits, turned upright, alpha blended away
 *     plan     width x height -> the size fed to the encoder, its grid of patches, its span of tokens
 *     fit      pixels -> pixels of the planned size, as Pillow's ImageOps.pad does it, bit for bit
 *     patches  pixels -> normalized values, one row a patch
 *
 * ingest decodes each image (which is the check that it is sound) and keeps the plan's tokens; the
 * vision phase calls image_to_patches. Every failure with ERROR_INPUT is the image's fault: that
 * request's error, with a message that says what is wrong; other results are the program's own trouble.
 * Thread-safe for different workspaces. */
#ifndef NOCTURNE_RECIPE_IMAGE_H
#define NOCTURNE_RECIPE_IMAGE_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t, uint8_t */

enum {
    IMAGE_MOST_SIDE = 8192,         /* pixels a side */
    IMAGE_MOST_SIDE_OF_MANY = 4096, /* the same in a request with IMAGE_MANY images or more */
    IMAGE_MANY = 15,
    IMAGE_LOW_DETAIL_SIDE = 512, /* "detail": "low": the longer side is first brought down to this */
    IMAGE_CHANNELS = 3,
};

static inline int32_t image_most_side(int64_t images_of_request) {
    return images_of_request >= IMAGE_MANY ? IMAGE_MOST_SIDE_OF_MANY : IMAGE_MOST_SIDE;
}

/* Of the checkpoint's vision_config. */
struct image_limits {
    int32_t patch_size;       /* pixels a side of a patch */
    int32_t downsample_ratio; /* patches a side that become one embedding */
    int32_t min_pixels;       /* images of a smaller area are enlarged to about this one */
    int32_t max_image_tokens; /* of one image's span, its delimiters and line ends counted */
};

/* ERROR_INPUT when no image could be planned within them; the other functions here expect checked limits. */
MUST_CHECK enum result image_limits_check(const struct image_limits *limits);

/* ---- plan ---- */

struct image_plan {
    int32_t shrunk_width, shrunk_height; /* of the image that is fitted: its own, or less for low detail */
    int32_t width, height;               /* pixels fed to the encoder: multiples of patch_size */
    int32_t patch_rows, patch_columns;
    int32_t token_rows, token_columns; /* embeddings: blocks of downsample_ratio x downsample_ratio patches */
    int32_t tokens;                    /* START, token_rows x (token_columns IMAGE, NEWLINE), END */
};

/* What stands at a position of an image's span; all of them have the image token's id. */
enum image_position { IMAGE_START, IMAGE_PATCH, IMAGE_NEWLINE, IMAGE_END };
enum image_position image_position_kind(const struct image_plan *plan, int32_t index); /* 0..tokens-1 */

/* The plan that a campaign uses, that of the published toolkit's preprocessor: settled (below), and no
 * side longer than a WebP file's, into which the toolkit packs its result. ERROR_INPUT for sides below 1
 * or above IMAGE_MOST_SIDE, or when the limits leave no size for this shape. */
MUST_CHECK enum result image_plan(const struct image_limits *limits, int32_t width, int32_t height,
    bool low_detail, struct image_plan *plan);

/* One pass of the planning rules, which is what the model's own code does to the image that it gets. */
void image_plan_once(
    const struct image_limits *limits, int32_t width, int32_t height, struct image_plan *plan);

/* The rules repeated on their own result until it stays (ten times at most): the toolkit's count of
 * tokens. It differs from one pass for extreme shapes only. */
void image_plan_settled(
    const struct image_limits *limits, int32_t width, int32_t height, struct image_plan *plan);

/* ---- pixels ---- */

/* Memory for the steps below; grows to the largest image seen and is kept. Zero-initialize. */
enum { IMAGE_WORKSPACE_BLOCKS = 9 };
struct image_workspace {
    struct image_block {
        void *data;
        size_t bytes;
    } blocks[IMAGE_WORKSPACE_BLOCKS];
};
void image_workspace_free(struct image_workspace *workspace);

/* Rows of width x 3 bytes, without gaps; owned by the workspace. */
struct image_pixels {
    int32_t width, height;
    const uint8_t *data;
};

/* The format that the first bytes announce, or NULL when it is none of ours: "PNG", "JPEG", "WebP", "GIF". */
const char *image_format_name(const uint8_t *bytes, size_t count);

/* Decodes a whole image; the result lives until the workspace's next decode. Sides above `most_side` are
 * refused before memory is taken. ERROR_INPUT for an unknown format, truncated or damaged data. */
MUST_CHECK enum result image_decode(struct image_workspace *workspace, const uint8_t *bytes, size_t count,
    int32_t most_side, struct image_pixels *pixels);

/* Resizes to the plan's size, aspect kept, centred on grey 127. `pixels` is what the plan was made for;
 * the result lives until the workspace's next fit, or is `pixels` itself when nothing is to be done. */
MUST_CHECK enum result image_fit(struct image_workspace *workspace, const struct image_pixels *pixels,
    const struct image_plan *plan, struct image_pixels *fitted);

/* ---- patches ---- */

/* Values of a patch: 3 x patch_size x patch_size. */
static inline int32_t image_patch_values(const struct image_limits *limits) {
    return IMAGE_CHANNELS * limits->patch_size * limits->patch_size;
}

/* Fills patches[patch_rows * patch_columns][image_patch_values]: patches row by row over the grid, within one
 * channel, y, x; each value (v / 255 - 0.5) / 0.5 rounded to bfloat16, as float32. */
void image_patches(const struct image_limits *limits, const struct image_plan *plan,
    const struct image_pixels *fitted, float *patches);

/* All of the above for one image's bytes; the result depends on them, on `low_detail` and the limits only.
 * `patches` belongs to the workspace and lives until its next call. */
MUST_CHECK enum result image_to_patches(struct image_workspace *workspace, const struct image_limits *limits,
    const uint8_t *bytes, size_t count, int32_t most_side, bool low_detail, struct image_plan *plan,
    const float **patches);

#endif

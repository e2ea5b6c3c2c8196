/* The vision encoder: patches of one image -> embeddings for the language model, and the span they stand in.
 *
 * An image occupies, in a prompt, one START position, then for each row of its embeddings those of the row and a
 * NEWLINE, then END: all with image_token_id. Formulas: tools/reference/reference.py, encode_image. */
#ifndef NOCTURNE_MODEL_VISION_H
#define NOCTURNE_MODEL_VISION_H

#include "base/error.h"
#include "kernels/kernels.h"
#include "model/checkpoint.h"

#include <stdint.h> /* int32_t, int64_t */

struct vision;

/* Rows and columns of an image's embeddings for a grid of patches. */
static inline int32_t vision_shrunk(int32_t patches, int32_t downsample_ratio) {
    return (patches + downsample_ratio - 1) / downsample_ratio;
}

/* Positions of the span of an image with a grid of `rows` x `columns` patches. */
int32_t vision_span_tokens(const struct vision_config *config, int32_t rows, int32_t columns);

/* Places the encoder's weights. ERROR_INPUT when the model has no vision_config. The checkpoint must outlive it. */
MUST_CHECK enum result vision_create(
    const struct checkpoint *checkpoint, const struct kernels *kernels, struct vision **vision);
void vision_free(struct vision *vision);

/* Packed weight bytes placed. */
int64_t vision_weight_bytes(const struct vision *vision);

/* patches [rows * columns, 3 * patch_size^2], row-major over the grid -> span [vision_span_tokens, hidden_size], both in host
 * memory. Local. ERROR_INPUT for an empty grid or one beyond max_image_tokens. */
MUST_CHECK enum result vision_encode(
    struct vision *vision, const float *patches, int32_t rows, int32_t columns, float *span);

#endif

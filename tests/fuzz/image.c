/* Images: any bytes give pixels that can be planned, fitted and cut into patches within small limits, or
 * a message. */
#include "recipe/image.h"

#include <stdlib.h> /* abort */
#include <string.h> /* strlen */

static const struct image_limits limits = {
    .patch_size = 14, .downsample_ratio = 3, .min_pixels = 56 * 56, .max_image_tokens = 64};

enum { MOST_SIDE = 600 }; /* keeps runs short; the code is the same for larger ones */

static void check(bool holds) {
    if (!holds)
        abort();
}

static void check_patches(const struct image_plan *plan, const float *patches) {
    const size_t values =
        (size_t)plan->patch_rows * (size_t)plan->patch_columns * (size_t)image_patch_values(&limits);
    check(plan->tokens <= limits.max_image_tokens);
    for (size_t i = 0; i < values; i++)
        check(patches[i] >= -1 && patches[i] <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct image_workspace workspace; /* reused, as by ingest */
    struct image_plan plan;
    const float *patches;
    const bool low_detail = size % 2;
    enum result status =
        image_to_patches(&workspace, &limits, data, size, MOST_SIDE, low_detail, &plan, &patches);
    if (status == OK)
        check_patches(&plan, patches);
    else
        check(status == ERROR_INPUT && strlen(failure_message()) > 0);
    return 0;
}

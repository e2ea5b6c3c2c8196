/* References to images: any text gives bytes within the limits, or a refusal that names the field. */
#include "recipe/image_source.h"

#include <stdlib.h> /* abort */
#include <string.h> /* strcmp, strlen */

static void check(bool holds) {
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct image_source *source; /* reused, as by ingest */
    struct image_bytes image;
    struct refusal refusal;
    bool accepted;
    if (!source)
        check(image_source_create(SOURCE_DIR "/tests/fuzz/corpus/image_reference", &source) == OK);
    image_source_begin(source);
    check(
        image_source_read(source, "image_url", (const char *)data, size, &image, &refusal, &accepted) == OK);
    if (accepted)
        check(image.bytes >= 1 && image.bytes <= IMAGE_MOST_BYTES);
    else
        check(strcmp(refusal.param, "image_url") == 0 && strlen(refusal.message) > strlen("image_url: "));
    return 0;
}

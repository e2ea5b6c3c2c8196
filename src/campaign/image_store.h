/* The images of a campaign while ingest reads its requests: found, decoded as a check, and each stored once.
 *
 * For each request: image_store_load, and image_store_commit when the request is taken; images of a request that
 * is refused in the end are dropped by the next load. Memory: some 64 to 128 bytes an image, and the bytes of one
 * request's images. */
#ifndef NOCTURNE_CAMPAIGN_IMAGE_STORE_H
#define NOCTURNE_CAMPAIGN_IMAGE_STORE_H

#include "base/error.h"
#include "campaign/requests.h"
#include "model/config.h"
#include "recipe/conversation.h" /* struct image_reference */
#include "recipe/image.h"
#include "recipe/refusal.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t, int64_t */

struct image_store;

/* `root`: the directory of local images, NULL: none may be read. */
MUST_CHECK enum result image_store_create(
    const char *root, const struct vision_config *vision, struct image_store **store);
void image_store_free(struct image_store *store); /* NULL is allowed */

/* Finds the images of one request: images[i] is the campaign's index of the i-th, tokens[i] the length of its span.
 * *accepted false: `refusal` says which reference can't be used and why. */
MUST_CHECK enum result image_store_load(struct image_store *store, const struct image_reference *references,
    size_t count, int64_t *images, int32_t *tokens, struct refusal *refusal, bool *accepted);
/* Writes the images that were new in the last load. */
MUST_CHECK enum result image_store_commit(struct image_store *store, struct requests_writer *writer);

int64_t image_store_count(const struct image_store *store); /* stored so far */
int64_t image_store_bytes(const struct image_store *store);

/* What image.h needs to know of a checkpoint. */
struct image_limits image_limits_of(const struct vision_config *vision);

#endif

/* From a request's image reference to the image's bytes.
 *
 *     data:image/png;base64,...       the bytes themselves
 *     cats/1.png   /data/cats/1.png   a file below the directory that --image-root names: a relative path is
 *     file:///data/cats/1.png         looked up there, an absolute one must lie there
 *
 * Nothing else: no network, and no path that leaves the directory, be it by "..", by an absolute path or by a
 * symbolic link. What is wrong with a reference is a refusal of its request. */
#ifndef NOCTURNE_RECIPE_IMAGE_SOURCE_H
#define NOCTURNE_RECIPE_IMAGE_SOURCE_H

#include "base/error.h"
#include "recipe/refusal.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint8_t */

enum {
    IMAGE_MOST_BYTES = 32 << 20,  /* of one image's file */
    IMAGES_MOST_BYTES = 64 << 20, /* of all images of one request */
    IMAGES_MOST_COUNT = 600,      /* in one request */
    IMAGE_HASH_BYTES = 16,
};

struct image_bytes {
    const uint8_t *data;
    size_t bytes; /* >= 1 */
    uint8_t hash
        [IMAGE_HASH_BYTES]; /* XXH3-128 of the bytes, most significant first: equal images are known by it */
};

struct image_source; /* one thread's */

/* `root` is the directory of --image-root, or NULL when no local files are allowed. ERROR_USAGE when it is no
 * directory that can be opened. */
MUST_CHECK enum result image_source_create(const char *root, struct image_source **source);
void image_source_free(struct image_source *source); /* NULL is allowed */

/* Starts counting the images and bytes of a new request. */
void image_source_begin(struct image_source *source);

/* Gets the bytes that `reference` (UTF-8, not NUL-terminated) stands for; `param` is the field's path,
 * such as "messages[0].content[1].image_url.url". *accepted tells which of image and refusal was filled;
 * the image's data live until the next call. A failure is the program's own trouble: no memory, or a
 * file system that does not answer (ERROR_IO), so that a passing fault does not become a request's error
 * for good. */
MUST_CHECK enum result image_source_read(struct image_source *source, const char *param,
    const char *reference, size_t reference_bytes, struct image_bytes *image, struct refusal *refusal,
    bool *accepted);

/* Opens `path` (relative, NUL-terminated) for reading below the open directory `root`, step by step and
 * through no symbolic link or "..". Returns a descriptor, or -1 with errno. For kernels before 5.6,
 * where image_source_read has nothing better; here for the tests. */
int image_open_by_steps(int root, const char *path);

#endif

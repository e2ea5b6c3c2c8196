#include "campaign/image_store.h"

#include "campaign/header.h"
#include "recipe/image_source.h"

#include <limits.h> /* INT32_MAX */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, malloc, free */
#include <string.h> /* memcpy, memcmp */

/* What is known of an image that was decoded. */
struct known_image {
    uint8_t hash[IMAGE_HASH_BYTES];
    int32_t number; /* index + 1; 0: an empty slot */
    int32_t tokens;
    int32_t longer_side; /* pixels */
    bool low_detail;     /* shrunk for it: other embeddings than those of the image as it is */
};

/* A new image of the request at hand. */
struct new_image {
    struct known_image known;
    struct image_plan plan;
    const char *format;
    uint8_t *data;
    size_t bytes;
};

struct image_store {
    struct image_source *source;
    struct image_limits limits;
    struct image_workspace workspace;
    struct known_image *slots; /* [capacity], open addressing; capacity is a power of two */
    size_t capacity;
    int64_t count, bytes;
    struct new_image pending[IMAGES_MOST_COUNT];
    int32_t pending_count;
};

struct image_limits image_limits_of(const struct vision_config *vision) {
    return (struct image_limits){.patch_size = vision->patch_size,
        .downsample_ratio = vision->downsample_ratio,
        .min_pixels = vision->min_pixels,
        .max_image_tokens = vision->max_image_tokens};
}

enum result image_store_create(
    const char *root, const struct vision_config *vision, struct image_store **store) {
    *store = NULL;
    struct image_store *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for reading images");
    made->limits = image_limits_of(vision);
    enum result status = image_limits_check(&made->limits);
    if (status == OK)
        status = image_source_create(root, &made->source);
    if (status != OK)
        image_store_free(made);
    else
        *store = made;
    return status;
}

static void drop_pending(struct image_store *store) {
    for (int32_t i = 0; i < store->pending_count; i++)
        free(store->pending[i].data);
    store->pending_count = 0;
}

void image_store_free(struct image_store *store) {
    if (!store)
        return;
    drop_pending(store);
    image_source_free(store->source);
    image_workspace_free(&store->workspace);
    free(store->slots);
    free(store);
}

int64_t image_store_count(const struct image_store *store) {
    return store->count;
}

int64_t image_store_bytes(const struct image_store *store) {
    return store->bytes;
}

/* ---- the table of known images ---- */

/* The slot of a hash and detail, or the empty one where it belongs. */
static struct known_image *find_slot(
    const struct image_store *store, const uint8_t hash[IMAGE_HASH_BYTES], bool low_detail) {
    uint64_t start;
    memcpy(&start, hash, sizeof start);
    size_t mask = store->capacity - 1, at = (size_t)start & mask;
    for (;; at = (at + 1) & mask) {
        struct known_image *slot = &store->slots[at];
        if (!slot->number || (slot->low_detail == low_detail && !memcmp(slot->hash, hash, IMAGE_HASH_BYTES)))
            return slot;
    }
}

/* Makes room for one more: at most half of the slots are taken. */
static enum result grow(struct image_store *store) {
    if (2 * (size_t)(store->count + 1) <= store->capacity)
        return OK;
    struct image_store larger = {.capacity = store->capacity ? 2 * store->capacity : 256};
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return fail(ERROR_MEMORY, "out of memory for the list of %lld images", (long long)store->count);
    for (size_t i = 0; i < store->capacity; i++)
        if (store->slots[i].number)
            *find_slot(&larger, store->slots[i].hash, store->slots[i].low_detail) = store->slots[i];
    free(store->slots);
    store->slots = larger.slots;
    store->capacity = larger.capacity;
    return OK;
}

static const struct known_image *find_exactly(
    const struct image_store *store, const uint8_t hash[IMAGE_HASH_BYTES], bool low_detail) {
    for (int32_t i = 0; i < store->pending_count; i++) {
        const struct known_image *known = &store->pending[i].known;
        if (known->low_detail == low_detail && !memcmp(known->hash, hash, IMAGE_HASH_BYTES))
            return known;
    }
    const struct known_image *slot = store->capacity ? find_slot(store, hash, low_detail) : NULL;
    return slot && slot->number ? slot : NULL;
}

/* NULL for an image that was not seen yet. Detail low makes no difference to a small image. */
static const struct known_image *find_known(
    const struct image_store *store, const uint8_t hash[IMAGE_HASH_BYTES], bool low_detail) {
    const struct known_image *whole = find_exactly(store, hash, false);
    if (!low_detail || (whole && whole->longer_side <= IMAGE_LOW_DETAIL_SIDE))
        return whole;
    return find_exactly(store, hash, true);
}

/* ---- reading a request's images ---- */

/* One image being read. */
struct loading {
    struct image_store *store;
    const char *param;
    int32_t most_side;
    struct refusal *refusal;
};

/* What the image can't be used for is the request's fault, other failures are ours. */
static enum result refuse_image(const struct loading *loading, enum result status, bool *accepted) {
    if (status != ERROR_INPUT)
        return status;
    *accepted = false;
    refuse(loading->refusal, CODE_VALUE, loading->param, "%s", failure_message());
    return OK;
}

/* Decodes an image that was not seen yet and adds it to the pending ones. */
static enum result add_new(const struct loading *loading, const struct image_bytes *image, bool low_detail,
    const struct known_image **known, bool *accepted) {
    struct image_store *store = loading->store;
    struct new_image *new = &store->pending[store->pending_count];
    struct image_pixels pixels = {0};
    *new = (struct new_image){.format = image_format_name(image->data, image->bytes), .bytes = image->bytes};
    enum result status =
        image_decode(&store->workspace, image->data, image->bytes, loading->most_side, &pixels);
    if (status == OK)
        status = image_plan(&store->limits, pixels.width, pixels.height, low_detail, &new->plan);
    if (status != OK)
        return refuse_image(loading, status, accepted);
    int64_t index = store->count + store->pending_count;
    int32_t longer_side = pixels.width > pixels.height ? pixels.width : pixels.height;
    if (index >= INT32_MAX)
        return fail(ERROR_INPUT, "more than %lld images in one campaign: split it", (long long)index);
    new->data = malloc(image->bytes);
    if (!new->data)
        return fail(ERROR_MEMORY, "out of memory for an image of %zu bytes", image->bytes);
    memcpy(new->data, image->data, image->bytes);
    new->known = (struct known_image){.number = (int32_t)index + 1,
        .tokens = new->plan.tokens,
        .longer_side = longer_side,
        .low_detail = low_detail &&longer_side > IMAGE_LOW_DETAIL_SIDE};
    memcpy(new->known.hash, image->hash, sizeof new->known.hash);
    store->pending_count++;
    *known = &new->known;
    return OK;
}

static enum result load_one(struct loading *loading, const struct image_reference *reference, int64_t *index,
    int32_t *tokens, bool *accepted) {
    struct image_store *store = loading->store;
    struct image_bytes image = {0};
    bool low_detail = reference->detail == DETAIL_LOW;
    TRY(image_source_read(store->source, loading->param, reference->reference.data,
        reference->reference.bytes, &image, loading->refusal, accepted));
    if (!*accepted)
        return OK;
    const struct known_image *known = find_known(store, image.hash, low_detail);
    if (!known)
        TRY(add_new(loading, &image, low_detail, &known, accepted));
    if (!*accepted || !known)
        return OK;
    if (known->longer_side > loading->most_side) {
        *accepted = false;
        refuse(loading->refusal, CODE_VALUE, loading->param,
            "the image has a side of %d pixels, expected at most %d in a request with %d images or more",
            known->longer_side, loading->most_side, IMAGE_MANY);
        return OK;
    }
    *index = known->number - 1;
    *tokens = known->tokens;
    return OK;
}

enum result image_store_load(struct image_store *store, const struct image_reference *references,
    size_t count, int64_t *images, int32_t *tokens, struct refusal *refusal, bool *accepted) {
    *accepted = true;
    drop_pending(store);
    image_source_begin(store->source);
    for (size_t i = 0; i < count && *accepted; i++) {
        const struct image_reference *reference = &references[i];
        char param[sizeof refusal->param];
        copy_text(param, sizeof param, reference->path.data, reference->path.bytes);
        struct loading loading = {
            .store = store, .param = param, .most_side = image_most_side((int64_t)count), .refusal = refusal};
        TRY(load_one(&loading, reference, &images[i], &tokens[i], accepted));
    }
    return OK;
}

enum result image_store_commit(struct image_store *store, struct requests_writer *writer) {
    for (int32_t i = 0; i < store->pending_count; i++) {
        const struct new_image *new = &store->pending[i];
        char hash[HASH_DIGITS + 1];
        for (int b = 0; b < IMAGE_HASH_BYTES; b++)
            snprintf(hash + 2 * b, 3, "%02x", new->known.hash[b]);
        const struct campaign_image image = {.hash = hash,
            .format = new->format,
            .low_detail = new->known.low_detail,
            .rows = new->plan.patch_rows,
            .columns = new->plan.patch_columns,
            .tokens = new->plan.tokens,
            .data = new->data,
            .bytes = new->bytes};
        TRY(requests_writer_add_image(writer, &image));
        TRY(grow(store));
        *find_slot(store, new->known.hash, new->known.low_detail) = new->known;
        store->count++;
        store->bytes += (int64_t) new->bytes;
    }
    drop_pending(store);
    return OK;
}

#include "cache/keys.h"

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are hashed as little endian");

static struct cache_key digest(const XXH3_state_t *state) {
    struct cache_key key;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    memcpy(key.bytes, canonical.digest, CACHE_KEY_BYTES);
    return key;
}

static void add_number(XXH3_state_t *state, int64_t number) {
    XXH3_128bits_update(state, &number, sizeof number);
}

/* With its length, so that two texts in a row have one reading. */
static void add_text(XXH3_state_t *state, const char *text) {
    size_t bytes = text ? strlen(text) : 0;
    add_number(state, (int64_t)bytes);
    XXH3_128bits_update(state, text ? text : "", bytes);
}

struct cache_key cache_space_key(const struct cache_space *space) {
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    add_text(&state, "nocturne prefix cache");
    add_number(&state, CACHE_KEY_VERSION);
    add_text(&state, space->fingerprint);
    add_text(&state, space->backend);
    add_text(&state, space->instruction_set);
    add_number(&state, space->block_tokens);
    add_number(&state, space->payload_bytes);
    return digest(&state);
}

/* Where it begins counts from the block's first token, so that the key depends on nothing after the block. */
static void add_image(XXH3_state_t *state, const struct cache_image *image, int32_t block_begin) {
    XXH3_128bits_update(state, image->content, sizeof image->content);
    add_number(state, image->begin - block_begin);
    add_number(state, image->end - image->begin);
}

void cache_keys(const struct cache_space *space, const int32_t *ids, int32_t count,
    const struct cache_image *images, int32_t image_count, struct cache_key *keys) {
    struct cache_key previous = cache_space_key(space);
    int32_t tokens = space->block_tokens, first_image = 0;
    for (int32_t block = 0; block < count / tokens; block++) {
        int32_t begin = block * tokens, end = begin + tokens, images_here = 0;
        XXH3_state_t state;
        XXH3_INITSTATE(&state);
        XXH3_128bits_reset(&state);
        XXH3_128bits_update(&state, previous.bytes, CACHE_KEY_BYTES);
        XXH3_128bits_update(&state, ids + begin, sizeof *ids * (size_t)tokens);
        while (first_image < image_count && images[first_image].end <= begin)
            first_image++;
        for (int32_t i = first_image; i < image_count && images[i].begin < end; i++, images_here++)
            add_image(&state, &images[i], begin);
        add_number(&state, images_here);
        previous = keys[block] = digest(&state);
    }
}

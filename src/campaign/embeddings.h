/* Parts of vision/: the embeddings of images, from the vision phase to prefill. */
#ifndef NOCTURNE_CAMPAIGN_EMBEDDINGS_H
#define NOCTURNE_CAMPAIGN_EMBEDDINGS_H

#include "base/error.h"
#include "campaign/campaign.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

/* The span of one image. */
struct embedding_record {
    int64_t image;     /* index among the campaign's images */
    const char *hash;  /* of the image's bytes, 32 hex digits */
    int32_t tokens;    /* positions of its span */
    const float *rows; /* [tokens, hidden] */
};

struct embeddings_writer;
MUST_CHECK enum result embeddings_writer_create(const char *campaign_folder, int32_t rank,
    const struct provenance *provenance, int32_t hidden, struct embeddings_writer **writer);
MUST_CHECK enum result embeddings_writer_add(
    struct embeddings_writer *writer, const struct embedding_record *record);    /* copies */
int64_t embeddings_writer_pending_bytes(const struct embeddings_writer *writer); /* 0: nothing is pending */
MUST_CHECK enum result embeddings_writer_flush(struct embeddings_writer *writer);
void embeddings_writer_free(struct embeddings_writer *writer); /* NULL is allowed */

/* All embeddings of a campaign: an index over the parts. Spans read last are kept, for an image that many requests show
 * is read again and again. */
struct embeddings;
/* `cache_bytes`: most memory of kept spans. */
MUST_CHECK enum result embeddings_open(const char *campaign_folder, int64_t total_images, int32_t hidden,
    int64_t cache_bytes, struct embeddings **embeddings);
void embeddings_close(struct embeddings *embeddings); /* NULL is allowed */
bool embeddings_has(const struct embeddings *embeddings, int64_t image);
/* Positions of the image's span, 0 when there is none. */
int32_t embeddings_tokens(const struct embeddings *embeddings, int64_t image);
/* Copies an image's span to rows [embeddings_tokens, hidden]. ERROR_INPUT names the part when a checksum fails. */
MUST_CHECK enum result embeddings_read(struct embeddings *embeddings, int64_t image, float *rows);

#endif

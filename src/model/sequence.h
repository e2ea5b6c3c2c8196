/* The state of one sequence: all that later tokens need of earlier ones.
 *
 * Compressed rows, index keys and window rows lie in blocks of the model's pool; open groups, Engram history and
 * the held inputs of an unfinished prompt's tail in the struct. A state can be copied at any token.
 */
#ifndef NOCTURNE_MODEL_SEQUENCE_H
#define NOCTURNE_MODEL_SEQUENCE_H

#include "base/error.h"
#include "model/model.h"
#include "model/state_section.h"

#include <stdint.h> /* int32_t, int64_t */

struct sequence;

/* An empty sequence. */
MUST_CHECK enum result sequence_create(struct model *model, struct sequence **sequence);
/* A copy at the present token: full blocks are shared, the partly filled ones copied. */
MUST_CHECK enum result sequence_fork(
    struct model *model, const struct sequence *original, struct sequence **copy);
void sequence_free(struct model *model, struct sequence *sequence); /* NULL is allowed */

int32_t sequence_length(const struct sequence *sequence); /* tokens run so far */

/* Most blocks a sequence holds at once on its way to `tokens` tokens in all, when its prompt runs in chunks of at most
 * `chunk` tokens (with `tail` as in struct span; 0 tail for decoding from a loaded state, chunk 1). */
int32_t sequence_blocks(const struct model *model, int64_t tokens, int32_t chunk, int32_t tail);
/* Blocks of the pool in all. A scheduler admits sequences while the sum of their sequence_blocks stays within. */
int32_t model_blocks(const struct model *model);

/* ---- saving and loading ---- */

/* The sections of this model's states, in order; owned by the model. */
const struct state_section *model_state_sections(const struct model *model, int32_t *count);

/* Rows of each section as one allocation: rows [section count], freed by sequence_saved_free. */
struct saved_state {
    int32_t tokens;
    int32_t section_count;
    struct section_rows *sections;
    void *memory;
};
MUST_CHECK enum result sequence_save(
    struct model *model, const struct sequence *sequence, struct saved_state *saved);
void sequence_saved_free(struct saved_state *saved);

/* A sequence from saved rows. ERROR_INPUT when row counts do not fit `tokens`. */
MUST_CHECK enum result sequence_load(
    struct model *model, int32_t tokens, const struct section_rows *sections, struct sequence **sequence);

#endif

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

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

struct sequence;

/* An empty sequence. */
MUST_CHECK enum result sequence_create(struct model *model, struct sequence **sequence);
/* A copy at the present token: blocks that neither will write into any more are shared, the others copied. */
MUST_CHECK enum result sequence_fork(
    struct model *model, const struct sequence *original, struct sequence **copy);
void sequence_free(struct model *model, struct sequence *sequence); /* NULL is allowed */

int32_t sequence_length(const struct sequence *sequence); /* tokens run so far */

/* Most blocks a sequence holds at once on its way to `tokens` tokens in all, when its prompt runs in chunks of at most
 * `chunk` tokens (with `tail` as in struct span; 0 tail for decoding from a loaded state, chunk 1). */
int32_t sequence_blocks(const struct model *model, int64_t tokens, int32_t chunk, int32_t tail);
/* Blocks that a copy of a sequence of `tokens` tokens shares with it for good. */
int32_t sequence_whole_blocks(const struct model *model, int32_t tokens);
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

/* ---- compressed rows, for the prefix cache ---- */

/* Bytes of the compressed rows and index keys of `tokens` tokens of all kv sources; tokens is even. */
int64_t sequence_rows_bytes(const struct model *model, int32_t tokens);
/* Copies those of tokens [first, first + count) to `packed`, source by source: rows, then keys. Both are even, and the tokens
 * have been run. */
MUST_CHECK enum result sequence_rows_save(
    struct model *model, const struct sequence *sequence, int32_t first, int32_t count, uint8_t *packed);

/* What replay must achieve after a hit: window rows are not cached, and come back by running tokens before it anew. */
struct replay {
    int32_t tail; /* of the prompt, as in struct span */
    /* 0: exact, so that all later bits are those of a run without the cache. N: window rows of N tokens are made from what these tokens
     * alone give, which is an approximation. */
    int32_t bounded;
};
/* The first token to run again after a hit of `hit` tokens of a prompt whose tail may begin at token `tail_begin`. A row of layer l depends on
 * sliding_window - 1 earlier rows of each layer below; layers 0 to l have to be right at the hit's end, and at the tail's begin when
 * that comes earlier, where l is the last kv source, or with tail 0 the last layer. Even. */
int32_t sequence_replay_begin(
    const struct model *model, int32_t hit, int32_t tail_begin, const struct replay *replay);

/* A prompt's cached beginning. */
struct restore {
    const int32_t *ids; /* of the prompt: [hit] */
    int32_t hit;        /* cached tokens that are used; even */
    int32_t begin;      /* sequence_replay_begin's, or later, which makes an approximation */
    bool is_approximate;
    /* Rows as sequence_rows_save packed them, for each `block_tokens` tokens: enough of these to hold `hit` tokens. */
    const uint8_t *packed;
    int32_t block_tokens;
};
/* A sequence of `begin` tokens that has the compressed rows of `hit` tokens: the caller runs the tokens from `begin` on as any others; rows
 * of those before `hit` are not written again. ERROR_INPUT for numbers that do not fit. */
MUST_CHECK enum result sequence_restore(
    struct model *model, const struct restore *restore, struct sequence **sequence);
/* Whether its rows are not those that a run without the cache would have: then they must not be cached. */
bool sequence_is_approximate(const struct sequence *sequence);

#endif

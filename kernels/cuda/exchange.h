/* Kernels of the exchange of expert rows between devices (src/cluster/device): packing rows and pairs for their destinations,
 * handing rows on inside a node, sorting what arrived by expert, packing outputs for the way back.
 *
 * All sizes that depend on the tokens' choices stay on the device: a kernel finds them in the headers of slots, or, where the
 * host knows them (exact), in the table of slots. All orders follow from tokens, choices and ranks alone.
 *
 * Called from C. Launches are kept as failures of the stream, as for the operations of the backend.
 */
#ifndef NOCTURNE_CUDA_EXCHANGE_H
#define NOCTURNE_CUDA_EXCHANGE_H

#include <cuda_runtime.h>

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t */

#ifdef __cplusplus
extern "C" {
#endif

struct stream;

enum {
    EXCHANGE_MOST_RANKS = 1024,
    EXCHANGE_MOST_CHOICES = 128, /* k */
    EXCHANGE_ALIGNMENT = 16,     /* of slots and of what follows their rows */
    EXCHANGE_HEADER_BYTES = 16,  /* int32 rows, pairs; zeros */
};

/* Room for a message, in the arena: `rows` rows of row_bytes from arena row `row` on; then, from the next multiple of
 * EXCHANGE_ALIGNMENT, a header with the numbers of rows and pairs that are used; then
 *     for a rank:  int32 expert [pairs] (local index there), int32 row [pairs] (of the message), float weight [pairs]
 *     for a node:  int32 expert [rows, k], float weight [rows, k], as routed */
struct exchange_slot {
    int32_t row; /* -1: no message */
    int32_t rows, pairs;
    int32_t
        base; /* received: first of its pairs in `position`; from a source to be handed on: first of its rows in `row_to` */
};

/* Who exchanges, and where messages lie. Pointers are device memory but for none. */
struct exchange_shape {
    char *arena;
    int64_t row_bytes;
    int32_t experts, choices; /* of a layer; k of a token */
    int32_t ranks, rank, local_experts;
    int32_t nodes, node;            /* nodes 1: all messages go straight to their rank */
    int32_t node_first, node_ranks; /* this node's ranks; all, when nodes is 1 */
    bool exact;                     /* slots are as long as what is in them: headers need not be read */
    const int32_t
        *first_expert; /* [ranks + 1]: experts of rank r are first_expert[r] .. first_expert[r + 1] - 1 */
    const int32_t *first_rank; /* [nodes + 1] */
    const int32_t *return_row; /* [ranks]: row of the outputs at which those made by rank r will begin */
    /* Sources that this rank hands rows on for: itself, number 0, and ranks of other nodes. */
    const struct exchange_slot *received;  /* [ranks]: of each source's pairs, the rank's own too */
    const struct exchange_slot *sent;      /* [sources, node_ranks]; for this rank itself: in `received` */
    const struct exchange_slot *to_nodes;  /* [nodes] */
    const struct exchange_slot *forwarded; /* [sources]: what came to be handed on; the first is none */
};

/* A rank's own tokens: rows [count] at `stride`, experts and weights [count, k]. */
struct exchange_tokens {
    const void *rows;
    int64_t stride;
    int32_t count;
    const int32_t *experts;
    const float *weights;
};

/* Device memory that one exchange's kernels leave to the next. */
struct exchange_work {
    int32_t
        *row_to; /* [own tokens and then forwarded rows, 2 * k]: arena rows that a row is copied to, or -1 */
    int32_t *own_token; /* [own pairs to itself]: token * k + choice of each */
    int32_t *position;  /* [pairs received]: place of each among the arrivals */
    int32_t *place;     /* [own tokens, k]: row of the outputs */
    int32_t *start;     /* [local experts + 1] */
    int32_t *pair_row;  /* [arrivals] */
    float *pair_weight; /* [arrivals] */
    /* Becomes 1 + the highest token whose experts do not ascend or do not exist. Such a token's rows may go nowhere, but nothing else
     * is harmed. */
    int32_t *refused;
};

/* CUDA's name of a stream of the backend. */
cudaStream_t exchange_stream(const struct stream *stream);

/* counts [2 * ranks + nodes]: rows and pairs that this rank's tokens send to each rank, then rows to each node. */
void exchange_count(struct stream *stream, const struct exchange_shape *shape,
    const struct exchange_tokens *tokens, const struct exchange_work *work, int32_t *counts);

/* Writes the messages of this rank's tokens into its slots, and the places of the outputs made elsewhere. `copy` false: rows
 * stay where they are, for the only rank there is. */
void exchange_pack(struct stream *stream, const struct exchange_shape *shape,
    const struct exchange_tokens *tokens, const struct exchange_work *work, bool copy);

/* The same for the rows of `sources` - 1 other ranks that came to be handed on, at most `most_rows` of each. */
void exchange_forward(struct stream *stream, const struct exchange_shape *shape, int32_t sources,
    int32_t most_rows, const struct exchange_work *work);

/* Sorts the pairs of all received slots by expert, then source, then token, and places this rank's own among the outputs. */
void exchange_place(
    struct stream *stream, const struct exchange_shape *shape, const struct exchange_work *work);

/* Copies the other ranks' output rows [arrivals, columns] into the order of their messages: `returning` row base + i is pair i
 * of a received slot. No slot holds more than most_pairs. */
void exchange_return(struct stream *stream, const struct exchange_shape *shape,
    const struct exchange_work *work, const float *outputs, int32_t columns, int32_t most_pairs,
    float *returning);

#ifdef __cplusplus
}
#endif

#endif

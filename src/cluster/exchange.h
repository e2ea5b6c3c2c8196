/* Expert parallelism over a supernode: which rank holds which experts and Engram rows, dispatch and combine.
 *
 * All functions but the plain look-ups are Collective over the supernode's group: ranks without tokens take part
 * with zero tokens. With one rank nothing is sent and the same code paths give the same bits.
 */
#ifndef NOCTURNE_CLUSTER_EXCHANGE_H
#define NOCTURNE_CLUSTER_EXCHANGE_H

#include "base/error.h"
#include "cluster/collectives.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

/* [first, first + count) of `total` things sharded evenly over `size` ranks: rank r's share. Shares differ by at most one, the
 * lower ranks have the longer ones; size may exceed total. */
struct shard {
    int64_t first, count;
};
struct shard shard_of(int64_t total, int32_t size, int32_t rank);
int32_t shard_owner(int64_t total, int32_t size, int64_t item);

struct exchange;
struct kernels;
struct stream;

struct exchange_options {
    int32_t experts;           /* routed experts of a layer */
    int32_t experts_per_token; /* k */
    int32_t most_tokens;       /* most tokens a rank passes to one dispatch */
    int64_t row_bytes;         /* bytes of an encoded activation row (dispatch) */
    int32_t columns;           /* D: columns of an expert's float32 output row (combine) */

    /* To exchange on devices: the backend, the stream that the caller's work is enqueued on, and the number of this rank's node
     * (ranks.h). All zero: in host memory. */
    const struct kernels *kernels;
    struct stream *stream;
    int32_t node;
    /* Bytes a rank sends in a layer up to which messages have one size and the host never waits; 0: a good number, below 0: none.
     * Bits do not depend on it. */
    int64_t fixed_bytes;
};

/* Memory is sized for most_tokens from every rank; pages that are never needed are never touched. ERROR_USAGE when the
 * options are impossible. Collective in so far as all ranks must pass the same options (most_tokens too). */
MUST_CHECK enum result exchange_create(
    struct group *group, const struct exchange_options *options, struct exchange **exchange);
void exchange_free(struct exchange *exchange);

/* True when rows travel between devices: what dispatch takes and what arrivals and combined hold is device memory then, and work on it
 * is enqueued, not done. That is so when options->kernels is a backend with streams of CUDA and this build can do it. */
bool exchange_on_device(const struct exchange *exchange);

/* Before the first layer of each step: `tokens`, the most that any rank of the group passes to one dispatch until the next call; all ranks
 * give the same. In host memory it does nothing. */
MUST_CHECK enum result exchange_begin_step(struct exchange *exchange, int32_t tokens);

/* After exchange_begin_step: whether this step's calls do nothing but enqueue work, the same as in every step with as many tokens on
 * this rank and on the rank with the most: then devices may record and replay them, all ranks of the group alike, as long as *moves is
 * the same. The answer is the same on all ranks, *moves is not. In host memory never. */
bool exchange_is_repeatable(const struct exchange *exchange, int64_t *moves);

/* Waits until the work that was enqueued on the caller's stream and in this exchange has ended. Between devices, call it before
 * anything else waits for the stream: it alone has a deadline, past which the message names the call and the layer (dispatches
 * since the step began, from 0). In host memory it does nothing. */
MUST_CHECK enum result exchange_wait(struct exchange *exchange);

/* What arrived for this rank's experts: pairs sorted by expert (local index: 0 is the shard's first), then by source rank,
 * then by token. Pointers are the exchange's, valid until its next dispatch begins, but for this: with one rank row_data
 * is the `rows` passed in when their stride is row_bytes, so keep those as long as they are needed. */
struct arrivals {
    int64_t rows;         /* distinct activation rows; on a device: those that there is room for */
    const void *row_data; /* [rows, row_bytes]; a token sent to several experts of one rank travels once */
    int64_t pairs;        /* on a device: the most there can be; start tells how many there are */
    const int32_t *start; /* [local experts + 1]: pairs of local expert e are start[e] .. start[e + 1] - 1 */
    const int32_t *pair_row;  /* [pairs] */
    const float *pair_weight; /* [pairs] */
    float *outputs;           /* [pairs, D]: where the experts' outputs go, in the order of the pairs */
};

/* The outputs of a rank's tokens: that of the j-th of a token's experts, which ascend, is row place[token * k + j]. */
struct combined {
    const float *outputs; /* [rows, D] */
    int64_t rows;
    const int32_t *place; /* [tokens, k] */
};

/* One layer's exchange takes four calls in this order, and between each begin and its end other work may be done while
 * messages travel; exchange_progress, called now and then, keeps them going. Nothing else may be done on the group between a
 * begin and its end.
 *
 * Dispatch sends each token's row to the ranks of its experts: rows [tokens, row_bytes] at `stride`; experts and weights
 * [tokens, k], experts ascending within a token. Combine returns arrivals.outputs, filled by the caller, to the tokens' ranks. */
MUST_CHECK enum result exchange_dispatch_begin(struct exchange *exchange, const void *rows, int64_t stride,
    int32_t tokens, const int32_t *experts, const float *weights);
MUST_CHECK enum result exchange_dispatch_end(struct exchange *exchange, struct arrivals *arrivals);
MUST_CHECK enum result exchange_combine_begin(struct exchange *exchange);
MUST_CHECK enum result exchange_combine_end(struct exchange *exchange, struct combined *combined);
MUST_CHECK enum result exchange_progress(struct exchange *exchange);

/* Fetches rows of a table of `total_rows` sharded by shard_of over the group. wanted [count] row numbers, any order,
 * repeats allowed; `read` copies `n` of this rank's own rows (global numbers) to out [n, row_bytes]. */
typedef void row_reader(void *context, const int64_t *rows, int64_t n, void *out);
MUST_CHECK enum result exchange_fetch_rows(struct group *group, int64_t total_rows, size_t row_bytes,
    const int64_t *wanted, int64_t count, row_reader *read, void *context, void *out);

#endif

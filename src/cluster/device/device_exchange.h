/* Dispatch and combine on device memory over NCCL: the calls of cluster/exchange.h, whose arrays are all device memory here:
 * rows, experts and weights passed in; those of struct arrivals and struct combined.
 *
 * Work is enqueued, on a stream of the exchange's own that runs beside the caller's: each `begin` waits for what the caller has
 * enqueued so far, and what the caller enqueues after the matching `end` waits for the messages.
 *
 * A step whose messages are small (DEVICE_EXCHANGE_FIXED_BYTES) is fixed: a message has room for all that the step's tokens could
 * send, so no size depends on the tokens' choices and the host never waits. Otherwise it is counted: ranks first
 * gather all counts, and dispatch_end waits for them (the device goes on with what was enqueued before); messages then have
 * just the length they need. Both give the same bits.
 *
 * On several nodes a row goes once to each node that needs it, to the rank with the sender's index in its node, and that rank
 * hands it on to the ranks of its experts. Outputs return straight to the token's rank: they are not summed on the way, so no
 * detour would save any.
 */
#ifndef NOCTURNE_CLUSTER_DEVICE_EXCHANGE_H
#define NOCTURNE_CLUSTER_DEVICE_EXCHANGE_H

#include "cluster/exchange.h"

/* Bytes a rank sends in a layer above which counting pays: about what a link of 450 GB/s carries while a host waits for the
 * counts once. */
enum { DEVICE_EXCHANGE_FIXED_BYTES = 16 << 20 };

struct device_exchange;

/* As the functions of exchange.h that have these names, and Collective like them. create: options->kernels and options->stream
 * are set; memory grows with the steps; ERROR_RANKS as nccl_group_create. free: after wait, or a failure. */
struct device_exchange_calls {
    enum result (*create)(
        struct group *group, const struct exchange_options *options, struct device_exchange **exchange);
    void (*free)(struct device_exchange *exchange);
    enum result (*begin_step)(struct device_exchange *exchange, int32_t tokens);
    bool (*is_repeatable)(const struct device_exchange *exchange, int64_t *moves);
    enum result (*dispatch_begin)(struct device_exchange *exchange, const void *rows, int64_t stride,
        int32_t tokens, const int32_t *experts, const float *weights);
    enum result (*dispatch_end)(struct device_exchange *exchange, struct arrivals *arrivals);
    enum result (*combine_begin)(struct device_exchange *exchange);
    enum result (*combine_end)(struct device_exchange *exchange, struct combined *combined);
    enum result (*wait)(struct device_exchange *exchange);
};

/* NULL in a build without CUDA or NCCL: rows then travel through host memory. */
const struct device_exchange_calls *device_exchange_calls(void);

#endif

#include "cluster/device/device_exchange.h"

#include "base/stopwatch.h"
#include "cluster/device/nccl_group.h"
#include "cluster/group.h"
#include "kernels/cuda/exchange.h"
#include "kernels/kernels.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* memset */

static const char LAYOUT[] = "layout of the step";
static const char BEFORE_DISPATCH[] = "work before the dispatch";
static const char COUNTS[] = "counts of the dispatch";
static const char TO_NODES[] = "dispatch to other nodes";
static const char DISPATCH[] = "dispatch of tokens to experts";
static const char BEFORE_COMBINE[] = "experts";
static const char COMBINE[] = "combine of expert outputs";

enum stage { IDLE, DISPATCHING, ARRIVED, COMBINING };

/* Device memory that grows to what is needed and stays. */
struct area {
    void *memory;
    int64_t bytes;
};

struct device_exchange {
    struct group *group;
    struct nccl_group *nccl; /* NULL: one rank */
    const struct kernels *kernels;
    struct stream *main, *side; /* the caller's, and the exchange's own; the same for one rank */
    struct exchange_options options;
    int32_t size, rank, local_experts;
    int64_t fixed_bytes; /* the longest fixed messages */
    int64_t moves;       /* times that memory got another address */
    int64_t unit;        /* slots are multiples of it: whole rows and aligned */

    int32_t nodes, node;
    int32_t *node_of;    /* [size] */
    int32_t *first_rank; /* [nodes + 1] */
    int32_t *
        by_relay; /* [size]: all sources, grouped by the rank of this node that hands their rows on: itself first */
    int32_t *relay_first; /* [ranks of this node + 1]: into by_relay */

    enum stage stage;
    bool exact;                    /* the step is counted */
    int32_t step_tokens;           /* most of any rank */
    int32_t laid_out;              /* tokens of the fixed layout that the device's table holds, or -1 */
    bool told;                     /* the device has some table, so that it knows experts and nodes */
    int32_t layer;                 /* dispatches since the step began, less one */
    struct exchange_tokens tokens; /* of the dispatch */
    bool in_place;                 /* one rank, whose rows lie as they should */

    int32_t *counts;                            /* pinned host memory [size, count_words] */
    int32_t count_words;                        /* 2 * size, and nodes when there are several */
    int32_t *own_counts, *all_counts, *refused; /* device memory */
    int32_t *refused_seen;                      /* pinned host memory */

    /* The layout: what the host knows of it. */
    struct exchange_slot *table; /* [table_slots], then int32_t [table_words]: as on the device */
    int64_t table_bytes;
    struct exchange_slot *received, *sent, *to_nodes, *forwarded; /* parts of `table` */
    int32_t *first_expert, *return_row;
    int64_t *relay_begin, *relay_end;   /* [ranks of this node]: bytes of the arena that each of them fills */
    int64_t *member_begin, *member_end; /* the same: that go to each of them */
    int64_t received_bytes, arena_bytes;
    int64_t arrived_pairs, output_rows, forwarded_rows, most_forwarded, most_pairs;

    struct area arena, work, outputs, returning, device_table;
    struct exchange_shape shape; /* with pointers into the areas */
    struct exchange_work parts;
};

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* ---- who hands rows on ---- */

static int32_t node_size(const struct device_exchange *e, int32_t node) {
    return e->first_rank[node + 1] - e->first_rank[node];
}

static int32_t own_node_size(const struct device_exchange *e) {
    return node_size(e, e->node);
}

/* The rank of `node` that gets the rows of rank `source` for it. */
static int32_t relay_of(const struct device_exchange *e, int32_t source, int32_t node) {
    int32_t index = source - e->first_rank[e->node_of[source]];
    return e->first_rank[node] + index % node_size(e, node);
}

/* Sources that this rank hands rows on for; itself is number 0. */
static const int32_t *own_sources(const struct device_exchange *e, int32_t *count) {
    int32_t index = e->rank - e->first_rank[e->node];
    *count = e->relay_first[index + 1] - e->relay_first[index];
    return e->by_relay + e->relay_first[index];
}

static void group_by_relay(struct device_exchange *e) {
    int32_t at = 0;
    for (int32_t i = 0; i < own_node_size(e); i++) {
        int32_t relay = e->first_rank[e->node] + i;
        e->relay_first[i] = at;
        e->by_relay[at++] = relay;
        for (int32_t s = 0; s < e->size; s++)
            if (e->node_of[s] != e->node && relay_of(e, s, e->node) == relay)
                e->by_relay[at++] = s;
    }
    e->relay_first[own_node_size(e)] = at;
}

/* Nodes must be runs of ranks; anything else, or nodes of one rank, makes one node of all: messages go straight to their rank. */
static void find_nodes(struct device_exchange *e, const int64_t *given) {
    e->nodes = 0;
    bool runs = true;
    for (int32_t r = 0; r < e->size; r++) {
        if (r == 0 || given[r] != given[r - 1]) {
            for (int32_t n = 0; n < e->nodes; n++)
                runs = runs && given[e->first_rank[n]] != given[r];
            e->first_rank[e->nodes++] = r;
        }
        e->node_of[r] = e->nodes - 1;
    }
    if (!runs || e->nodes == e->size) {
        e->nodes = 1;
        memset(e->node_of, 0, sizeof *e->node_of * (size_t)e->size);
    }
    e->first_rank[e->nodes] = e->size;
    e->node = e->node_of[e->rank];
    group_by_relay(e);
}

/* ---- sizes of messages ---- */

static int32_t experts_of(const struct device_exchange *e, int32_t rank) {
    return e->first_expert[rank + 1] - e->first_expert[rank];
}

static int32_t counted(const struct device_exchange *e, int32_t source, int32_t word) {
    return e->counts[(int64_t)source * e->count_words + word];
}

static int64_t rows_between(const struct device_exchange *e, int32_t from, int32_t to) {
    if (e->exact)
        return counted(e, from, 2 * to);
    return experts_of(e, to) ? e->step_tokens : 0;
}

static int64_t pairs_between(const struct device_exchange *e, int32_t from, int32_t to) {
    if (e->exact)
        return counted(e, from, 2 * to + 1);
    return e->step_tokens * smaller(e->options.experts_per_token, experts_of(e, to));
}

static int64_t rows_to_node(const struct device_exchange *e, int32_t from, int32_t node) {
    if (e->exact)
        return counted(e, from, 2 * e->size + node);
    int32_t first = e->first_expert[e->first_rank[node]], end = e->first_expert[e->first_rank[node + 1]];
    return end > first ? e->step_tokens : 0;
}

/* Bytes of a slot with `tail` bytes behind its header. */
static int64_t slot_bytes(const struct device_exchange *e, int64_t rows, int64_t tail) {
    int64_t header = round_up(rows * e->options.row_bytes, EXCHANGE_ALIGNMENT);
    return round_up(header + EXCHANGE_HEADER_BYTES + tail, e->unit);
}

enum { PAIR_BYTES = 12, CHOICE_BYTES = 8 };

static int64_t rank_slot_bytes(const struct device_exchange *e, int64_t rows, int64_t pairs) {
    return slot_bytes(e, rows, pairs * PAIR_BYTES);
}

static int64_t node_slot_bytes(const struct device_exchange *e, int64_t rows) {
    return slot_bytes(e, rows, rows * e->options.experts_per_token * CHOICE_BYTES);
}

/* What a rank sends in a layer of a fixed step, the same on all ranks. */
static double fixed_step_bytes(const struct device_exchange *e, int32_t tokens) {
    int64_t most_pairs = tokens * smaller(e->options.experts_per_token, experts_of(e, 0));
    int64_t there = rank_slot_bytes(e, tokens, most_pairs);
    double back = (double)most_pairs * e->options.columns * sizeof(float);
    return (e->size - 1) * ((double)there + back);
}

/* ---- the layout ---- */

static const struct exchange_slot NO_SLOT = {.row = -1};

/* A slot at the end of the arena, none without rows. */
static struct exchange_slot add_slot(
    struct device_exchange *e, int64_t rows, int64_t pairs, int64_t bytes, int64_t base) {
    if (!rows)
        return NO_SLOT;
    struct exchange_slot slot = {
        (int32_t)(e->arena_bytes / e->options.row_bytes), (int32_t)rows, (int32_t)pairs, (int32_t)base};
    e->arena_bytes += bytes;
    return slot;
}

static struct exchange_slot add_rank_slot(struct device_exchange *e, int32_t from, int32_t to, int64_t base) {
    int64_t rows = rows_between(e, from, to), pairs = pairs_between(e, from, to);
    return add_slot(e, rows, pairs, rank_slot_bytes(e, rows, pairs), base);
}

static struct exchange_slot add_node_slot(
    struct device_exchange *e, int32_t from, int32_t node, int64_t base) {
    int64_t rows = rows_to_node(e, from, node);
    return add_slot(e, rows, 0, node_slot_bytes(e, rows), base);
}

/* What arrives comes first in the arena, so that the rows' numbers are those of its rows. */
static void lay_out_received(struct device_exchange *e) {
    e->arrived_pairs = e->most_pairs = 0;
    for (int32_t i = 0; i < own_node_size(e); i++) {
        e->relay_begin[i] = e->arena_bytes;
        for (int32_t j = e->relay_first[i]; j < e->relay_first[i + 1]; j++) {
            int32_t source = e->by_relay[j];
            int64_t pairs = pairs_between(e, source, e->rank);
            e->received[source] = add_rank_slot(e, source, e->rank, e->arrived_pairs);
            e->arrived_pairs += pairs;
            e->most_pairs = larger(e->most_pairs, source == e->rank ? 0 : pairs);
        }
        e->relay_end[i] = e->arena_bytes;
    }
    e->received_bytes = e->arena_bytes;
}

static void lay_out_sent(struct device_exchange *e) {
    int32_t sources, first = e->first_rank[e->node], count = own_node_size(e);
    const int32_t *source = own_sources(e, &sources);
    for (int32_t i = 0; i < count; i++) {
        e->member_begin[i] = e->arena_bytes;
        for (int32_t s = 0; s < sources; s++)
            e->sent[s * count + i] =
                first + i == e->rank ? e->received[source[s]] : add_rank_slot(e, source[s], first + i, 0);
        e->member_end[i] = e->arena_bytes;
    }
}

static void lay_out_nodes(struct device_exchange *e) {
    int32_t sources;
    const int32_t *source = own_sources(e, &sources);
    for (int32_t n = 0; n < e->nodes; n++)
        e->to_nodes[n] = n == e->node ? NO_SLOT : add_node_slot(e, e->rank, n, 0);
    e->forwarded[0] = NO_SLOT;
    e->forwarded_rows = e->most_forwarded = 0;
    for (int32_t s = 1; s < sources; s++) {
        int64_t rows = rows_to_node(e, source[s], e->node);
        e->forwarded[s] = add_node_slot(e, source[s], e->node, e->step_tokens + e->forwarded_rows);
        e->forwarded_rows += rows;
        e->most_forwarded = larger(e->most_forwarded, rows);
    }
}

static void lay_out_outputs(struct device_exchange *e) {
    e->output_rows = e->arrived_pairs;
    for (int32_t r = 0; r < e->size; r++) {
        e->return_row[r] = (int32_t)e->output_rows;
        e->output_rows += r == e->rank ? 0 : pairs_between(e, e->rank, r);
    }
}

/* Waits for what uses the areas, as one of them is about to be released. */
static enum result drain(struct device_exchange *e) {
    if (!e->nccl)
        return e->kernels->synchronize(e->main);
    TRY(nccl_group_wait(e->nccl, COMBINE, exchange_stream(e->side)));
    return nccl_group_wait(e->nccl, "work of the step", exchange_stream(e->main));
}

static enum result reserve(struct device_exchange *e, struct area *area, int64_t bytes) {
    if (area->memory && bytes <= area->bytes)
        return OK;
    int64_t grown = bytes + bytes / 2 + 256;
    TRY(drain(e));
    if (area->memory)
        e->kernels->release(e->kernels, area->memory);
    *area = (struct area){0};
    e->moves++;
    enum result status = e->kernels->allocate(e->kernels, (size_t)grown, &area->memory);
    if (status != OK)
        return fail_context(status, "exchange of %d tokens a rank between %d ranks: use smaller steps",
            e->step_tokens, e->size);
    area->bytes = grown;
    return OK;
}

/* Gives each part of the kernels' memory its place. */
static enum result carve_work(struct device_exchange *e) {
    const int64_t k = e->options.experts_per_token, own = e->step_tokens;
    const int64_t words[] = {(own + e->forwarded_rows) * 2 * k, pairs_between(e, e->rank, e->rank),
        e->arrived_pairs, own * k, e->local_experts + 1, e->arrived_pairs, e->arrived_pairs};
    enum { PARTS = sizeof words / sizeof *words };
    int32_t *part[PARTS];
    int64_t total = 0;
    for (int32_t i = 0; i < PARTS; i++)
        total += round_up(words[i], 16);
    TRY(reserve(e, &e->work, total * (int64_t)sizeof(int32_t)));
    int32_t *at = e->work.memory;
    for (int32_t i = 0; i < PARTS; i++) {
        part[i] = at;
        at += round_up(words[i], 16);
    }
    e->parts = (struct exchange_work){.row_to = part[0],
        .own_token = part[1],
        .position = part[2],
        .place = part[3],
        .start = part[4],
        .pair_row = part[5],
        .pair_weight = (float *)part[6],
        .refused = e->refused};
    return OK;
}

static enum result check_sizes(const struct device_exchange *e) {
    if (e->output_rows > INT32_MAX || e->arena_bytes / e->options.row_bytes > INT32_MAX)
        return fail(ERROR_MEMORY,
            "exchange: %d tokens a rank make too many messages between %d ranks: use smaller steps",
            e->step_tokens, e->size);
    return OK;
}

/* The same place in the device's copy of the table. */
static const void *on_device(const struct device_exchange *e, const void *host) {
    return (const char *)e->device_table.memory + ((const char *)host - (const char *)e->table);
}

static void fill_shape(struct device_exchange *e) {
    e->shape = (struct exchange_shape){.arena = e->arena.memory,
        .row_bytes = e->options.row_bytes,
        .experts = e->options.experts,
        .choices = e->options.experts_per_token,
        .ranks = e->size,
        .rank = e->rank,
        .local_experts = e->local_experts,
        .nodes = e->nodes,
        .node = e->node,
        .node_first = e->first_rank[e->node],
        .node_ranks = own_node_size(e),
        .exact = e->exact,
        .first_expert = on_device(e, e->first_expert),
        .first_rank = on_device(e, e->first_expert + e->size + 1),
        .return_row = on_device(e, e->return_row),
        .received = on_device(e, e->received),
        .sent = on_device(e, e->sent),
        .to_nodes = on_device(e, e->to_nodes),
        .forwarded = on_device(e, e->forwarded)};
}

static void tell_device(struct device_exchange *e) {
    e->kernels->copy_in(e->side, e->device_table.memory, e->table, (size_t)e->table_bytes);
    e->told = true;
}

/* Finds the place of every message and of all that follows from them, and tells the device. */
static enum result lay_out(struct device_exchange *e) {
    const int64_t line = e->options.columns * (int64_t)sizeof(float);
    e->arena_bytes = 0;
    e->laid_out = -1;
    lay_out_received(e);
    lay_out_sent(e);
    lay_out_nodes(e);
    lay_out_outputs(e);
    TRY(check_sizes(e));
    TRY(reserve(e, &e->arena, e->arena_bytes));
    TRY(reserve(e, &e->outputs, e->output_rows * line));
    TRY(reserve(e, &e->returning, e->size > 1 ? e->arrived_pairs * line : 0));
    TRY(carve_work(e));
    fill_shape(e);
    tell_device(e);
    if (!e->exact)
        e->laid_out = e->step_tokens;
    return OK;
}

/* ---- life ---- */

/* Beyond what exchange_create has checked. */
static enum result check_options(const struct exchange_options *o, int32_t size) {
    if (size > EXCHANGE_MOST_RANKS || o->experts_per_token > EXCHANGE_MOST_CHOICES)
        return fail(ERROR_USAGE,
            "exchange: %d ranks and %d experts a token: devices exchange between at most %d ranks and %d "
            "experts a "
            "token",
            size, o->experts_per_token, EXCHANGE_MOST_RANKS, EXCHANGE_MOST_CHOICES);
    return OK;
}

/* The table holds slots and then words, for the host and the device alike. */
static enum result make_table(struct device_exchange *e) {
    int32_t sources, count = own_node_size(e);
    (void)own_sources(e, &sources);
    int64_t slots = e->size + (int64_t)sources * count + e->nodes + sources;
    int64_t words = e->size + 1 + e->nodes + 1 + e->size;
    e->table_bytes = slots * (int64_t)sizeof(struct exchange_slot) + words * (int64_t)sizeof(int32_t);
    e->table = calloc(1, (size_t)e->table_bytes);
    if (!e->table)
        return fail(ERROR_MEMORY, "out of memory for the exchange");
    e->received = e->table;
    e->sent = e->received + e->size;
    e->to_nodes = e->sent + (int64_t)sources * count;
    e->forwarded = e->to_nodes + e->nodes;
    e->first_expert = (int32_t *)(e->forwarded + sources);
    int32_t *first_rank = e->first_expert + e->size + 1;
    e->return_row = first_rank + e->nodes + 1;
    for (int32_t r = 0; r < e->size; r++)
        e->first_expert[r] = (int32_t)shard_of(e->options.experts, e->size, r).first;
    e->first_expert[e->size] = e->options.experts;
    memcpy(first_rank, e->first_rank, sizeof *first_rank * (size_t)(e->nodes + 1));
    return reserve(e, &e->device_table, e->table_bytes);
}

static enum result pinned_words(struct device_exchange *e, int64_t count, int32_t **words) {
    void *memory = NULL;
    cudaError_t code = cudaMallocHost(&memory, (size_t)count * sizeof **words);
    *words = memory;
    if (code != cudaSuccess)
        return fail(ERROR_MEMORY, "exchange: pinned memory for counts of %d ranks: %s", e->size,
            cudaGetErrorString(code));
    memset(memory, 0, (size_t)count * sizeof **words);
    return OK;
}

static enum result make_counts(struct device_exchange *e) {
    void *memory = NULL;
    e->count_words = 2 * e->size + (e->nodes > 1 ? e->nodes : 0);
    int64_t all = (int64_t)e->size * e->count_words;
    TRY(pinned_words(e, all, &e->counts));
    TRY(pinned_words(e, 1, &e->refused_seen));
    TRY(e->kernels->allocate(e->kernels, sizeof(int32_t), &memory));
    e->refused = memory;
    TRY(e->kernels->allocate(e->kernels, (size_t)e->count_words * sizeof(int32_t), &memory));
    e->own_counts = memory;
    TRY(e->kernels->allocate(e->kernels, (size_t)all * sizeof(int32_t), &memory));
    e->all_counts = memory;
    return OK;
}

static enum result make_host_lists(struct device_exchange *e) {
    size_t size = (size_t)e->size;
    e->node_of = calloc(size, sizeof(int32_t));
    e->first_rank = calloc(size + 1, sizeof(int32_t));
    e->by_relay = calloc(size, sizeof(int32_t));
    e->relay_first = calloc(size + 1, sizeof(int32_t));
    e->relay_begin = calloc(4 * size, sizeof(int64_t));
    if (!e->node_of || !e->first_rank || !e->by_relay || !e->relay_first || !e->relay_begin)
        return fail(ERROR_MEMORY, "out of memory for the exchange");
    e->relay_end = e->relay_begin + size;
    e->member_begin = e->relay_end + size;
    e->member_end = e->member_begin + size;
    return OK;
}

/* Collective: each rank tells its node. */
static enum result learn_nodes(struct device_exchange *e) {
    int64_t own = e->options.node, *all = calloc((size_t)e->size, sizeof *all);
    if (!all)
        return fail(ERROR_MEMORY, "out of memory for the exchange");
    enum result status = group_all_gather(e->group, "nodes of the ranks", &own, sizeof own, all);
    if (status == OK)
        find_nodes(e, all);
    free(all);
    return status;
}

static enum result set_up(struct device_exchange *e) {
    TRY(make_host_lists(e));
    TRY(learn_nodes(e));
    if (e->size > 1) {
        TRY(e->kernels->stream_create(e->kernels, &e->side));
        TRY(nccl_group_create(e->group, &e->nccl));
    } else {
        e->side = e->main;
    }
    TRY(make_table(e));
    return make_counts(e);
}

static void device_free(struct device_exchange *e) {
    if (!e)
        return;
    nccl_group_free(e->nccl);
    if (e->side != e->main)
        e->kernels->stream_free(e->kernels, e->side);
    void *device[] = {e->arena.memory, e->work.memory, e->outputs.memory, e->returning.memory,
        e->device_table.memory, e->own_counts, e->all_counts, e->refused};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        if (device[i])
            e->kernels->release(e->kernels, device[i]);
    if (e->counts)
        (void)cudaFreeHost(e->counts);
    if (e->refused_seen)
        (void)cudaFreeHost(e->refused_seen);
    void *host[] = {e->table, e->node_of, e->first_rank, e->by_relay, e->relay_first, e->relay_begin};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    free(e);
}

static enum result device_create(
    struct group *group, const struct exchange_options *options, struct device_exchange **created) {
    *created = NULL;
    TRY(check_options(options, group_size(group)));
    struct device_exchange *e = calloc(1, sizeof *e);
    if (!e)
        return fail(ERROR_MEMORY, "out of memory for the exchange");
    e->group = group;
    e->options = *options;
    e->kernels = options->kernels;
    e->main = options->stream;
    e->size = group_size(group);
    e->rank = group_rank(group);
    e->local_experts = (int32_t)shard_of(options->experts, e->size, e->rank).count;
    e->fixed_bytes = options->fixed_bytes ? options->fixed_bytes : DEVICE_EXCHANGE_FIXED_BYTES;
    e->laid_out = -1;
    e->unit = options->row_bytes;
    while (e->unit % EXCHANGE_ALIGNMENT)
        e->unit *= 2;
    enum result status = set_up(e);
    if (status != OK) {
        device_free(e);
        return status;
    }
    *created = e;
    return OK;
}

/* ---- messages ---- */

/* Adds one message each way between this rank and another, where there is anything to send. */
static enum result trade(struct device_exchange *e, int32_t to, const void *send, int64_t send_bytes,
    int32_t from, void *receive, int64_t receive_bytes) {
    if (receive_bytes)
        TRY(nccl_group_receive(e->nccl, receive, (size_t)receive_bytes, from, exchange_stream(e->side)));
    if (!send_bytes)
        return OK;
    e->group->bytes_sent += send_bytes;
    return nccl_group_send(e->nccl, send, (size_t)send_bytes, to, exchange_stream(e->side));
}

static char *slot_memory(const struct device_exchange *e, struct exchange_slot slot) {
    return (char *)e->arena.memory + slot.row * e->options.row_bytes;
}

static int64_t node_message(const struct device_exchange *e, struct exchange_slot slot) {
    return slot.row < 0 ? 0 : node_slot_bytes(e, slot.rows);
}

/* Rows for other nodes, to the ranks that hand them on there. */
static enum result travel_to_nodes(struct device_exchange *e) {
    int32_t sources;
    const int32_t *source = own_sources(e, &sources);
    TRY(nccl_group_begin(e->nccl, TO_NODES, e->layer));
    for (int32_t n = 0; n < e->nodes; n++)
        TRY(trade(e, relay_of(e, e->rank, n), slot_memory(e, e->to_nodes[n]), node_message(e, e->to_nodes[n]),
            0, NULL, 0));
    for (int32_t s = 1; s < sources; s++)
        TRY(trade(
            e, 0, NULL, 0, source[s], slot_memory(e, e->forwarded[s]), node_message(e, e->forwarded[s])));
    return nccl_group_end(e->nccl, exchange_stream(e->side));
}

/* Rows and pairs between the ranks of a node: each to the next, then to the one after, so that not all send to one. */
static enum result travel_to_ranks(struct device_exchange *e) {
    const int32_t count = own_node_size(e), first = e->first_rank[e->node], index = e->rank - first;
    char *arena = e->arena.memory;
    TRY(nccl_group_begin(e->nccl, DISPATCH, e->layer));
    for (int32_t i = 1; i < count; i++) {
        int32_t to = (index + i) % count, from = (index + count - i) % count;
        TRY(trade(e, first + to, arena + e->member_begin[to], e->member_end[to] - e->member_begin[to],
            first + from, arena + e->relay_begin[from], e->relay_end[from] - e->relay_begin[from]));
    }
    return nccl_group_end(e->nccl, exchange_stream(e->side));
}

static enum result travel_back(struct device_exchange *e) {
    const int64_t line = e->options.columns * (int64_t)sizeof(float);
    const char *send = e->returning.memory;
    char *receive = e->outputs.memory;
    TRY(nccl_group_begin(e->nccl, COMBINE, e->layer));
    for (int32_t i = 1; i < e->size; i++) {
        int32_t to = (e->rank + i) % e->size, from = (e->rank + e->size - i) % e->size;
        struct exchange_slot slot = e->received[to];
        TRY(trade(e, to, send + slot.base * line, slot.pairs * line, from,
            receive + e->return_row[from] * line, pairs_between(e, e->rank, from) * line));
    }
    return nccl_group_end(e->nccl, exchange_stream(e->side));
}

/* ---- the four calls ---- */

static enum result enter(struct device_exchange *e, enum stage from, enum stage to) {
    if (e->stage != from)
        return fail(ERROR_INTERNAL, "the calls of an exchange came out of turn");
    e->stage = to;
    return OK;
}

static enum result order(
    struct device_exchange *e, const char *what, const struct stream *earlier, const struct stream *later) {
    return e->nccl
               ? nccl_group_order(e->nccl, what, e->layer, exchange_stream(earlier), exchange_stream(later))
               : OK;
}

static enum result device_begin_step(struct device_exchange *e, int32_t tokens) {
    if (e->stage != IDLE)
        return fail(ERROR_INTERNAL, "a step began within an exchange");
    if (tokens < 0 || tokens > e->options.most_tokens)
        return fail(
            ERROR_INTERNAL, "a step of %d tokens, but memory is for %d", tokens, e->options.most_tokens);
    e->step_tokens = tokens;
    e->layer = -1;
    e->exact = e->size > 1 && fixed_step_bytes(e, e->step_tokens) > (double)e->fixed_bytes;
    if (e->exact || e->laid_out == e->step_tokens)
        return OK;
    /* A recorded step runs on the caller's stream alone: the table that it reads must be there, and the one before no longer read. */
    TRY(order(e, LAYOUT, e->main, e->side));
    TRY(lay_out(e));
    return order(e, LAYOUT, e->side, e->main);
}

static bool device_is_repeatable(const struct device_exchange *e, int64_t *moves) {
    *moves = e->moves;
    return !e->exact;
}

/* Enqueues a counted dispatch's first half: what each rank will send. */
static enum result count(struct device_exchange *e) {
    const size_t bytes = (size_t)e->count_words * sizeof(int32_t);
    fill_shape(e); /* the parts that do not depend on counts */
    e->parts.refused = e->refused;
    if (!e->told)
        tell_device(e);
    exchange_count(e->side, &e->shape, &e->tokens, &e->parts, e->own_counts);
    TRY(nccl_group_all_gather(
        e->nccl, COUNTS, e->layer, e->own_counts, bytes, e->all_counts, exchange_stream(e->side)));
    e->kernels->copy_out(e->side, e->counts, e->all_counts, bytes * (size_t)e->size);
    return OK;
}

/* Enqueues everything between the layout and sorted arrivals. */
static enum result send_rows(struct device_exchange *e) {
    int32_t sources;
    (void)own_sources(e, &sources);
    e->in_place = e->size == 1 && e->tokens.stride == e->options.row_bytes;
    exchange_pack(e->side, &e->shape, &e->tokens, &e->parts, !e->in_place);
    if (e->nodes > 1) {
        TRY(travel_to_nodes(e));
        exchange_forward(e->side, &e->shape, sources, (int32_t)e->most_forwarded, &e->parts);
    }
    if (e->size > 1)
        TRY(travel_to_ranks(e));
    exchange_place(e->side, &e->shape, &e->parts);
    return OK;
}

static enum result begin_dispatch(struct device_exchange *e) {
    TRY(order(e, BEFORE_DISPATCH, e->main, e->side));
    return e->exact ? count(e) : send_rows(e);
}

static enum result device_dispatch_begin(struct device_exchange *e, const void *rows, int64_t stride,
    int32_t tokens, const int32_t *experts, const float *weights) {
    if (tokens < 0 || tokens > e->step_tokens)
        return fail(ERROR_INTERNAL, "dispatch of %d tokens in a step of %d", tokens, e->step_tokens);
    TRY(enter(e, IDLE, DISPATCHING));
    enum work_part before = stopwatch_switch(WORK_EXCHANGE);
    e->tokens = (struct exchange_tokens){rows, stride, tokens, experts, weights};
    e->layer++;
    enum result status = begin_dispatch(e);
    (void)stopwatch_switch(before);
    return status;
}

/* The host's one wait in a counted dispatch. */
static enum result await_counts(struct device_exchange *e) {
    enum work_part before = stopwatch_switch(WORK_WAITING);
    enum result status = nccl_group_wait(e->nccl, COUNTS, exchange_stream(e->side));
    (void)stopwatch_switch(before);
    TRY(status);
    TRY(lay_out(e));
    return send_rows(e);
}

static enum result device_dispatch_end(struct device_exchange *e, struct arrivals *arrivals) {
    TRY(enter(e, DISPATCHING, ARRIVED));
    enum work_part before = stopwatch_switch(WORK_EXCHANGE);
    enum result status = e->exact ? await_counts(e) : OK;
    if (status == OK)
        status = order(e, DISPATCH, e->side, e->main);
    *arrivals =
        (struct arrivals){.rows = e->in_place ? e->tokens.count : e->received_bytes / e->options.row_bytes,
            .row_data = e->in_place ? e->tokens.rows : e->arena.memory,
            .pairs = e->arrived_pairs,
            .start = e->parts.start,
            .pair_row = e->parts.pair_row,
            .pair_weight = e->parts.pair_weight,
            .outputs = e->outputs.memory};
    (void)stopwatch_switch(before);
    return status;
}

static enum result begin_combine(struct device_exchange *e) {
    TRY(order(e, BEFORE_COMBINE, e->main, e->side));
    exchange_return(e->side, &e->shape, &e->parts, e->outputs.memory, e->options.columns,
        (int32_t)e->most_pairs, e->returning.memory);
    return travel_back(e);
}

static enum result device_combine_begin(struct device_exchange *e) {
    TRY(enter(e, ARRIVED, COMBINING));
    if (e->size == 1)
        return OK;
    enum work_part before = stopwatch_switch(WORK_EXCHANGE);
    enum result status = begin_combine(e);
    (void)stopwatch_switch(before);
    return status;
}

static enum result device_combine_end(struct device_exchange *e, struct combined *combined) {
    TRY(enter(e, COMBINING, IDLE));
    *combined =
        (struct combined){.outputs = e->outputs.memory, .rows = e->output_rows, .place = e->parts.place};
    return order(e, COMBINE, e->side, e->main);
}

static enum result device_wait(struct device_exchange *e) {
    enum work_part before = stopwatch_switch(WORK_WAITING);
    /* A replayed step is the main stream's work, whichever stream its parts were recorded on. */
    enum result status = order(e, COMBINE, e->main, e->side);
    e->kernels->copy_out(e->side, e->refused_seen, e->refused, sizeof *e->refused_seen);
    if (status == OK)
        status = drain(e);
    (void)stopwatch_switch(before);
    TRY(status);
    TRY(e->kernels->synchronize(e->side)); /* tells of refused launches too */
    if (*e->refused_seen)
        return fail(ERROR_INTERNAL, "dispatch: token %d's experts do not ascend, or do not exist",
            *e->refused_seen - 1);
    return OK;
}

const struct device_exchange_calls *device_exchange_calls(void) {
    static const struct device_exchange_calls calls = {.create = device_create,
        .free = device_free,
        .begin_step = device_begin_step,
        .is_repeatable = device_is_repeatable,
        .dispatch_begin = device_dispatch_begin,
        .dispatch_end = device_dispatch_end,
        .combine_begin = device_combine_begin,
        .combine_end = device_combine_end,
        .wait = device_wait};
    return &calls;
}

/* Dispatch and combine over MPI, and the fetching of rows of sharded tables.
 *
 * One message goes from each rank to each other rank per dispatch, also when it carries nothing, so that no counts need
 * to be exchanged before:
 *
 *     int32 rows, int32 pairs, zeros up to HEADER_BYTES
 *     rows * row_bytes        the distinct activation rows, in order of token; padded to 4 bytes
 *     int32 expert [pairs]    local index at the receiver; pairs are in order of token, then expert
 *     int32 row [pairs]       which of the rows above
 *     float32 weight [pairs]
 *
 * The combine's messages hold the pairs' output rows in that same order, and both sides know how many there are. They are
 * received behind the outputs of this rank's own experts, so that a token's outputs lie in one array wherever they were made. */
#include "cluster/exchange.h"

#include "base/stopwatch.h"
#include "cluster/device/device_exchange.h"
#include "cluster/group.h"
#include "kernels/kernels.h"

#include <stdlib.h> /* aligned_alloc, free, qsort */
#include <string.h> /* memcpy */

/* ---- shards ---- */

struct shard shard_of(int64_t total, int32_t size, int32_t rank) {
    int64_t share = total / size, longer = total % size;
    return (struct shard){
        .first = rank * share + (rank < longer ? rank : longer), .count = share + (rank < longer)};
}

int32_t shard_owner(int64_t total, int32_t size, int64_t item) {
    int64_t share = total / size, longer = total % size;
    int64_t boundary = longer * (share + 1); /* items below lie in the longer shards */
    return (int32_t)(item < boundary ? item / (share + 1) : longer + (item - boundary) / share);
}

/* ---- the exchange's memory ---- */

enum { HEADER_BYTES = 64, MOST_MESSAGE_BYTES = 1 << 30 };

/* A message's parts, where they lie in memory. */
struct message {
    int32_t *counts; /* rows, pairs */
    char *rows;
    int32_t *experts, *pair_rows;
    float *weights;
    int64_t bytes;
};

/* Which of the four calls comes next. */
enum stage { IDLE, DISPATCHING, ARRIVED, COMBINING };

struct exchange {
    const struct device_exchange_calls *calls; /* NULL: in host memory; else nothing below `device` is used */
    struct device_exchange *device;
    struct group *group;
    struct exchange_options options;
    int32_t size, rank;
    int32_t local_experts; /* of this rank */
    int32_t *owner;        /* [experts]: rank */
    int32_t *local;        /* [experts]: index at its owner */

    char *send, *receive;        /* packed messages; one slot of slot_bytes for each source */
    int64_t slot_bytes;          /* longest message */
    struct message *outgoing;    /* [size]; this rank's own lies in its receive slot */
    int32_t *rows_to, *pairs_to; /* [size] */
    int32_t request_count;       /* of the dispatch on its way */
    int32_t tokens;              /* of the last dispatch */
    int32_t *slots;              /* [most_tokens * k]: token * k + place of each own pair, by destination */
    int64_t *pairs_from;         /* [size] */
    int64_t *return_to, *return_from; /* [size]: pairs of the combine's messages; none for this rank itself */
    int32_t *expert_start;            /* [local_experts + 2], see sum_starts */

    char *row_data; /* one rank, rows with gaps: a packed copy */
    int32_t *pair_row;
    float *pair_weight;
    int32_t *position; /* of each pair, in order of messages: its place among the arrivals */

    int32_t *place;        /* [most_tokens * k]: row of `outputs` for each own pair, by token */
    int64_t arrived_pairs; /* of the last dispatch */
    const void *arrived_rows;
    /* Of this rank's experts, then those that combine received; and those that it sends. They grow to the most rows seen, for
     * the bound is rarely near. */
    struct output_rows {
        float *data;
        int64_t capacity;
    } outputs, returning;
    struct transfer combine; /* on its way */
    enum stage stage;
};

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Where the part after the rows begins. */
static int64_t pairs_offset(int64_t rows, int64_t row_bytes) {
    return HEADER_BYTES + (rows * row_bytes + 3) / 4 * 4;
}

static int64_t message_bytes(int64_t rows, int64_t pairs, int64_t row_bytes) {
    return pairs_offset(rows, row_bytes) + pairs * 12;
}

static struct message message_at(char *base, int32_t rows, int32_t pairs, int64_t row_bytes) {
    struct message m = {.counts = (int32_t *)base, .rows = base + HEADER_BYTES};
    m.experts = (int32_t *)(base + pairs_offset(rows, row_bytes));
    m.pair_rows = m.experts + pairs;
    m.weights = (float *)(m.pair_rows + pairs);
    m.bytes = message_bytes(rows, pairs, row_bytes);
    return m;
}

static enum result check_options(const struct exchange_options *o, int32_t size) {
    if (o->experts < 1 || o->experts_per_token < 1 || o->experts_per_token > o->experts)
        return fail(ERROR_USAGE, "exchange: %d experts a token out of %d are impossible",
            o->experts_per_token, o->experts);
    if (o->most_tokens < 0 || o->row_bytes < 1 || o->columns < 1)
        return fail(ERROR_USAGE, "exchange: %d tokens with rows of %lld bytes and %d columns are impossible",
            o->most_tokens, (long long)o->row_bytes, o->columns);
    double pairs = (double)size * o->most_tokens * o->experts_per_token;
    if ((double)o->most_tokens * ((double)o->row_bytes + 12.0 * o->experts_per_token) + HEADER_BYTES >
            MOST_MESSAGE_BYTES ||
        pairs > INT32_MAX)
        return fail(ERROR_USAGE,
            "exchange: %d tokens a rank make messages that are too long for %d ranks: use smaller batches",
            o->most_tokens, size);
    return OK;
}

/* Memory aligned to 64 bytes, or NULL with *failed set. */
static void *take(int64_t bytes, bool *failed) {
    void *memory = aligned_alloc(64, ((size_t)bytes + 64) / 64 * 64);
    *failed |= memory == NULL;
    return memory;
}

static enum result allocate(struct exchange *e) {
    const struct exchange_options *o = &e->options;
    const int64_t size = e->size, tokens = o->most_tokens, k = o->experts_per_token, own_pairs = tokens * k;
    const int64_t most_pairs = size * tokens * smaller(k, e->local_experts);
    const int64_t word = sizeof(int32_t);
    const bool alone = size == 1;
    bool failed = false;
    e->owner = take(o->experts * word, &failed);
    e->local = take(o->experts * word, &failed);
    e->outgoing = take(size * (int64_t)sizeof *e->outgoing, &failed);
    e->rows_to = take(size * word, &failed);
    e->pairs_to = take(size * word, &failed);
    e->pairs_from = take(size * 8, &failed);
    e->return_to = take(size * 8, &failed);
    e->return_from = take(size * 8, &failed);
    e->expert_start = take((e->local_experts + 2) * word, &failed);
    e->pair_row = take(most_pairs * word, &failed);
    e->pair_weight = take(most_pairs * word, &failed);
    e->position = take(most_pairs * word, &failed);
    e->place = take(own_pairs * word, &failed);
    if (alone) {
        e->row_data = take(tokens * o->row_bytes, &failed);
    } else {
        e->slot_bytes = (message_bytes(tokens, own_pairs, o->row_bytes) + 63) / 64 * 64;
        e->slots = take(own_pairs * word, &failed);
        e->receive = take(size * e->slot_bytes, &failed);
        e->send = take(
            size * 3 * HEADER_BYTES + tokens * smaller(k, size) * o->row_bytes + own_pairs * 12, &failed);
    }
    return failed ? fail(ERROR_MEMORY, "out of memory to exchange %d tokens a rank between %d ranks",
                        o->most_tokens, e->size)
                  : OK;
}

/* Takes `e` over. */
static enum result create_on_device(struct group *group, const struct exchange_options *options,
    struct exchange *e, struct exchange **created) {
    enum result status = e->calls->create(group, options, &e->device);
    if (status != OK) {
        free(e);
        return status;
    }
    *created = e;
    return OK;
}

enum result exchange_create(
    struct group *group, const struct exchange_options *options, struct exchange **created) {
    *created = NULL;
    TRY(check_options(options, group_size(group)));
    struct exchange *e = calloc(1, sizeof *e);
    if (!e)
        return fail(ERROR_MEMORY, "out of memory for the exchange");
    if (options->kernels && options->kernels->has_cuda_streams)
        e->calls = device_exchange_calls();
    if (e->calls)
        return create_on_device(group, options, e, created);
    e->group = group;
    e->options = *options;
    e->size = group_size(group);
    e->rank = group_rank(group);
    e->local_experts = (int32_t)shard_of(options->experts, e->size, e->rank).count;
    enum result status = allocate(e);
    if (status != OK) {
        exchange_free(e);
        return status;
    }
    for (int32_t x = 0; x < options->experts; x++) {
        e->owner[x] = shard_owner(options->experts, e->size, x);
        e->local[x] = x - (int32_t)shard_of(options->experts, e->size, e->owner[x]).first;
    }
    *created = e;
    return OK;
}

void exchange_free(struct exchange *e) {
    if (!e)
        return;
    if (e->calls)
        e->calls->free(e->device);
    void *parts[] = {e->owner, e->local, e->send, e->receive, e->outgoing, e->rows_to, e->pairs_to, e->slots,
        e->pairs_from, e->return_to, e->return_from, e->expert_start, e->row_data, e->pair_row,
        e->pair_weight, e->position, e->place, e->outputs.data, e->returning.data};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        free(parts[i]);
    free(e);
}

bool exchange_on_device(const struct exchange *e) {
    return e->calls != NULL;
}

bool exchange_is_repeatable(const struct exchange *e, int64_t *moves) {
    return e->calls && e->calls->is_repeatable(e->device, moves);
}

enum result exchange_begin_step(struct exchange *e, int32_t tokens) {
    return e->calls ? e->calls->begin_step(e->device, tokens) : OK;
}

enum result exchange_wait(struct exchange *e) {
    return e->calls ? e->calls->wait(e->device) : OK;
}

/* ---- dispatch ---- */

static enum result check_choice(const struct exchange *e, int32_t tokens, const int32_t *experts) {
    const int32_t k = e->options.experts_per_token;
    if (tokens < 0 || tokens > e->options.most_tokens)
        return fail(
            ERROR_INTERNAL, "dispatch of %d tokens, but memory is for %d", tokens, e->options.most_tokens);
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t j = 0, before = -1; j < k; j++) {
            int32_t expert = experts[(int64_t)t * k + j];
            if (expert <= before || expert >= e->options.experts)
                return fail(ERROR_INTERNAL,
                    "dispatch: token %d's expert %d (choice %d) is not above %d and below %d", t, expert, j,
                    before, e->options.experts);
            before = expert;
        }
    return OK;
}

/* Counts the rows and pairs for each destination and lays the messages out. A token's experts ascend and shards are
 * contiguous, so a rank's pairs of one token stand together. */
static void plan_messages(struct exchange *e, int32_t tokens, const int32_t *experts) {
    const int32_t k = e->options.experts_per_token;
    memset(e->rows_to, 0, sizeof *e->rows_to * (size_t)e->size);
    memset(e->pairs_to, 0, sizeof *e->pairs_to * (size_t)e->size);
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t j = 0, before = -1; j < k; j++) {
            int32_t to = e->owner[experts[(int64_t)t * k + j]];
            e->rows_to[to] += to != before;
            e->pairs_to[to]++;
            before = to;
        }
    char *at = e->send;
    for (int32_t to = 0; to < e->size; to++) {
        char *base = to == e->rank ? e->receive + to * e->slot_bytes : at;
        e->outgoing[to] = message_at(base, e->rows_to[to], e->pairs_to[to], e->options.row_bytes);
        memset(base, 0, HEADER_BYTES);
        e->outgoing[to].counts[0] = e->rows_to[to];
        e->outgoing[to].counts[1] = e->pairs_to[to];
        at += to == e->rank ? 0 : (e->outgoing[to].bytes + 63) / 64 * 64;
    }
}

/* Writes the messages; afterwards rows_to and pairs_to hold the counts again. */
static void pack_messages(struct exchange *e, const char *rows, int64_t stride, int32_t tokens,
    const int32_t *experts, const float *weights) {
    const int32_t k = e->options.experts_per_token;
    const int64_t row_bytes = e->options.row_bytes;
    int64_t start = 0;
    for (int32_t to = 0; to < e->size; to++) {
        e->pairs_from[to] = start; /* not needed yet: first place in `slots` of each destination */
        start += e->pairs_to[to];
        e->rows_to[to] = e->pairs_to[to] = 0;
    }
    for (int32_t t = 0; t < tokens; t++)
        for (int32_t j = 0, before = -1; j < k; j++) {
            int32_t slot = t * k + j, to = e->owner[experts[slot]];
            const struct message *m = &e->outgoing[to];
            if (to != before)
                memcpy(m->rows + e->rows_to[to]++ * row_bytes, rows + t * stride, (size_t)row_bytes);
            int32_t pair = e->pairs_to[to]++;
            m->experts[pair] = e->local[experts[slot]];
            m->pair_rows[pair] = e->rows_to[to] - 1;
            m->weights[pair] = weights[slot];
            e->slots[e->pairs_from[to] + pair] = slot;
            before = to;
        }
}

static const char DISPATCH[] = "dispatch of tokens to experts";
static const char COMBINE[] = "combine of expert outputs";

static enum result post_messages(struct exchange *e) {
    struct group *group = e->group;
    TRY(group_begin(group, DISPATCH, e->options.row_bytes, e->options.experts));
    e->request_count = 0;
    for (int32_t i = 1; i < e->size; i++) {
        int32_t from = (e->rank + e->size - i) % e->size;
        TRY(group_post_receive(
            group, DISPATCH, e->receive + from * e->slot_bytes, e->slot_bytes, from, &e->request_count));
    }
    for (int32_t i = 1; i < e->size; i++) {
        int32_t to = (e->rank + i) % e->size;
        TRY(group_post_send(
            group, DISPATCH, e->outgoing[to].counts, e->outgoing[to].bytes, to, &e->request_count));
    }
    return OK;
}

/* After the wait for the messages. */
static enum result check_messages(const struct exchange *e) {
    const struct group *group = e->group;
    for (int32_t i = 1; i < e->size; i++) {
        int32_t from = (e->rank + e->size - i) % e->size;
        const int32_t *counts = (const int32_t *)(e->receive + from * e->slot_bytes);
        int bytes = 0;
        MPI_Get_count(&group->statuses[i - 1], MPI_BYTE, &bytes);
        if (bytes < HEADER_BYTES || counts[0] < 0 || counts[1] < 0 ||
            message_bytes(counts[0], counts[1], e->options.row_bytes) != bytes)
            return fail(ERROR_INTERNAL, "dispatch: rank %d's message of %d bytes contradicts its counts",
                group->members[from].world_rank, bytes);
    }
    return OK;
}

/* Turns the counts in expert_start [2 + expert] into starts at [1 + expert]; when each pair that is placed has raised its expert's
 * by one, they are the ends, so that [expert] is a start and [expert + 1] an end. */
static void sum_starts(struct exchange *e) {
    for (int32_t x = 0; x < e->local_experts; x++)
        e->expert_start[x + 2] += e->expert_start[x + 1];
}

/* Sorts the pairs of all messages by expert, keeping their order by source and token, and closes the gaps between the messages'
 * rows. */
static int64_t sort_arrivals(struct exchange *e, int64_t *rows) {
    const int64_t row_bytes = e->options.row_bytes;
    memset(e->expert_start, 0, sizeof *e->expert_start * (size_t)(e->local_experts + 2));
    int64_t pairs = 0;
    for (int32_t from = 0; from < e->size; from++) {
        char *slot = e->receive + from * e->slot_bytes;
        const int32_t *counts = (const int32_t *)slot;
        const struct message m = message_at(slot, counts[0], counts[1], row_bytes);
        e->pairs_from[from] = counts[1];
        pairs += counts[1];
        for (int32_t i = 0; i < counts[1]; i++)
            e->expert_start[m.experts[i] + 2]++;
    }
    sum_starts(e);
    int64_t row_base = 0, pair_base = 0;
    for (int32_t from = 0; from < e->size; from++) {
        char *slot = e->receive + from * e->slot_bytes;
        const int32_t row_count = ((const int32_t *)slot)[0];
        const struct message m = message_at(slot, row_count, (int32_t)e->pairs_from[from], row_bytes);
        for (int32_t i = 0; i < e->pairs_from[from]; i++) {
            int64_t at = e->expert_start[m.experts[i] + 1]++;
            e->pair_row[at] = (int32_t)(row_base + m.pair_rows[i]);
            e->pair_weight[at] = m.weights[i];
            e->position[pair_base + i] = (int32_t)at;
        }
        /* Slots are at least as long as their rows: this never reaches the next slot. */
        memmove(e->receive + row_base * row_bytes, m.rows, (size_t)(row_count * row_bytes));
        row_base += row_count;
        pair_base += e->pairs_from[from];
    }
    *rows = row_base;
    return pairs;
}

/* Where the outputs of this rank's tokens will be: its own experts' among the arrivals, the others' behind those. */
static void place_outputs(struct exchange *e) {
    const int32_t *slot = e->slots;
    int64_t own = 0, returned = e->arrived_pairs;
    for (int32_t r = 0; r < e->rank; r++)
        own += e->pairs_from[r];
    for (int32_t r = 0; r < e->size; r++)
        for (int32_t i = 0; i < e->pairs_to[r]; i++)
            e->place[*slot++] = r == e->rank ? e->position[own + i] : (int32_t)returned++;
}

static enum result grow_rows(struct exchange *e, struct output_rows *rows, int64_t count) {
    if (rows->data && count <= rows->capacity)
        return OK;
    bool failed = false;
    int64_t capacity = count + count / 2 + 1;
    float *grown = take(capacity * e->options.columns * (int64_t)sizeof(float), &failed);
    if (failed)
        return fail(ERROR_MEMORY, "out of memory for %lld expert outputs of %d columns", (long long)count,
            e->options.columns);
    free(rows->data);
    *rows = (struct output_rows){grown, capacity};
    return OK;
}

/* One rank: no messages, and no copy of rows that are packed already. */
static void dispatch_alone(struct exchange *e, const char *rows, int64_t stride, int32_t tokens,
    const int32_t *experts, const float *weights) {
    const int64_t row_bytes = e->options.row_bytes, pairs = (int64_t)tokens * e->options.experts_per_token;
    memset(e->expert_start, 0, sizeof *e->expert_start * (size_t)(e->local_experts + 2));
    for (int64_t i = 0; i < pairs; i++)
        e->expert_start[experts[i] + 2]++;
    sum_starts(e);
    for (int64_t i = 0; i < pairs; i++) {
        int64_t at = e->expert_start[experts[i] + 1]++;
        e->pair_row[at] = (int32_t)(i / e->options.experts_per_token);
        e->pair_weight[at] = weights[i];
        e->place[i] = (int32_t)at;
    }
    e->arrived_pairs = pairs;
    e->arrived_rows = rows;
    if (stride == row_bytes)
        return;
    for (int32_t t = 0; t < tokens; t++)
        memcpy(e->row_data + t * row_bytes, rows + t * stride, (size_t)row_bytes);
    e->arrived_rows = e->row_data;
}

/* The four calls must come in turn: what follows a forgotten one would overwrite messages on their way. */
static enum result enter(struct exchange *e, enum stage from, enum stage to) {
    if (e->stage != from)
        return fail(ERROR_INTERNAL, "the calls of an exchange came out of turn");
    e->stage = to;
    return OK;
}

enum result exchange_dispatch_begin(struct exchange *e, const void *rows, int64_t stride, int32_t tokens,
    const int32_t *experts, const float *weights) {
    if (e->calls)
        return e->calls->dispatch_begin(e->device, rows, stride, tokens, experts, weights);
    TRY(check_choice(e, tokens, experts));
    TRY(enter(e, IDLE, DISPATCHING));
    enum work_part before = stopwatch_switch(WORK_EXCHANGE);
    enum result status = OK;
    e->tokens = tokens;
    if (e->size == 1) {
        dispatch_alone(e, rows, stride, tokens, experts, weights);
    } else {
        plan_messages(e, tokens, experts);
        pack_messages(e, rows, stride, tokens, experts, weights);
        status = post_messages(e);
    }
    (void)stopwatch_switch(before);
    return status;
}

static enum result end_dispatch(struct exchange *e, struct arrivals *arrivals) {
    int64_t awaited = 0;
    arrivals->rows = e->tokens;
    if (e->size > 1) {
        TRY(group_wait(e->group, DISPATCH, e->request_count));
        TRY(check_messages(e));
        e->arrived_pairs = sort_arrivals(e, &arrivals->rows);
        e->arrived_rows = e->receive;
        place_outputs(e);
        awaited = (int64_t)e->tokens * e->options.experts_per_token - e->pairs_to[e->rank];
    }
    TRY(grow_rows(e, &e->outputs, e->arrived_pairs + awaited));
    arrivals->row_data = e->arrived_rows;
    arrivals->pairs = e->arrived_pairs;
    arrivals->outputs = e->outputs.data;
    return OK;
}

enum result exchange_dispatch_end(struct exchange *e, struct arrivals *arrivals) {
    if (e->calls)
        return e->calls->dispatch_end(e->device, arrivals);
    TRY(enter(e, DISPATCHING, ARRIVED));
    *arrivals =
        (struct arrivals){.start = e->expert_start, .pair_row = e->pair_row, .pair_weight = e->pair_weight};
    enum work_part before = stopwatch_switch(WORK_EXCHANGE);
    enum result status = end_dispatch(e, arrivals);
    (void)stopwatch_switch(before);
    return status;
}

/* ---- combine ---- */

/* Packs the outputs for the other ranks in order of their messages. */
static void pack_outputs(struct exchange *e) {
    const int64_t columns = e->options.columns;
    const int32_t *position = e->position;
    float *to = e->returning.data;
    for (int32_t r = 0; r < e->size; r++) {
        for (int64_t i = 0; r != e->rank && i < e->pairs_from[r]; i++, to += columns)
            memcpy(to, e->outputs.data + position[i] * columns, sizeof(float) * (size_t)columns);
        position += e->pairs_from[r];
    }
}

static enum result begin_combine(struct exchange *e) {
    const int64_t columns = e->options.columns;
    int64_t outgoing = 0;
    for (int32_t r = 0; r < e->size; r++) {
        e->return_to[r] = r == e->rank ? 0 : e->pairs_from[r];
        e->return_from[r] = r == e->rank ? 0 : e->pairs_to[r];
        outgoing += e->return_to[r];
    }
    TRY(grow_rows(e, &e->returning, outgoing));
    pack_outputs(e);
    e->combine = (struct transfer){.what = COMBINE,
        .send = (const char *)e->returning.data,
        .receive = (char *)(e->outputs.data + e->arrived_pairs * columns),
        .send_counts = e->return_to,
        .receive_counts = e->return_from,
        .unit = (int64_t)sizeof(float) * columns};
    TRY(group_begin(e->group, COMBINE, e->combine.unit, 4));
    return transfer_begin(e->group, &e->combine);
}

enum result exchange_combine_begin(struct exchange *e) {
    if (e->calls)
        return e->calls->combine_begin(e->device);
    TRY(enter(e, ARRIVED, COMBINING));
    if (e->size == 1)
        return OK;
    enum work_part before = stopwatch_switch(WORK_EXCHANGE);
    enum result status = begin_combine(e);
    (void)stopwatch_switch(before);
    return status;
}

enum result exchange_combine_end(struct exchange *e, struct combined *combined) {
    if (e->calls)
        return e->calls->combine_end(e->device, combined);
    TRY(enter(e, COMBINING, IDLE));
    *combined = (struct combined){.outputs = e->outputs.data, .rows = e->arrived_pairs, .place = e->place};
    if (e->size == 1)
        return OK;
    combined->rows += (int64_t)e->tokens * e->options.experts_per_token - e->pairs_to[e->rank];
    return transfer_end(e->group, &e->combine);
}

enum result exchange_progress(struct exchange *e) {
    if (e->calls || e->size == 1)
        return OK;
    if (e->stage == DISPATCHING)
        return group_poll(e->group, DISPATCH, e->request_count);
    return e->stage == COMBINING ? group_poll(e->group, COMBINE, e->combine.count) : OK;
}

/* ---- rows of sharded tables ---- */

struct wish {
    int64_t row, index; /* in `wanted` */
};

static int by_row(const void *left, const void *right) {
    const struct wish *a = left, *b = right;
    return a->row != b->row ? (a->row > b->row) - (a->row < b->row)
                            : (a->index > b->index) - (a->index < b->index);
}

/* Scratch memory of one fetch: this rank's wishes, and the requests of others. */
struct fetch {
    struct wish *wishes; /* [count] sorted by row */
    int64_t *rows;       /* the distinct ones, which are in order of their owners too */
    int64_t *to, *from;  /* [size]: rows asked of each rank, and by each rank */
    int64_t distinct, asked;
    char *data;          /* [distinct, row_bytes] */
    int64_t *asked_rows; /* [asked] */
    char *asked_data;    /* [asked, row_bytes] */
};

static enum result sort_wishes(struct group *group, int64_t total_rows, size_t row_bytes,
    const int64_t *wanted, int64_t count, struct fetch *f) {
    size_t size = (size_t)group->size, n = (size_t)count;
    char *memory;
    TRY(group_scratch(
        group, 0, 16 * size + n * (sizeof(struct wish) + 8 + row_bytes) + 64, (void **)&memory));
    f->to = (int64_t *)memory;
    f->from = f->to + size;
    f->wishes = (struct wish *)(f->from + size);
    f->rows = (int64_t *)(f->wishes + n);
    f->data = (char *)(f->rows + n);
    memset(f->to, 0, 8 * size);
    for (int64_t i = 0; i < count; i++)
        f->wishes[i] = (struct wish){wanted[i], i};
    qsort(f->wishes, n, sizeof *f->wishes, by_row);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = f->wishes[i].row;
        if (i && row == f->wishes[i - 1].row)
            continue;
        f->rows[f->distinct++] = row;
        f->to[shard_owner(total_rows, group->size, row)]++;
    }
    return OK;
}

/* The requests of others and memory for the answers. */
static enum result read_requests(struct group *group, size_t row_bytes, struct fetch *f) {
    TRY(group_exchange_counts(group, "counts of table rows", f->to, f->from));
    for (int32_t r = 0; r < group->size; r++)
        f->asked += f->from[r];
    char *memory;
    TRY(group_scratch(group, 1, (size_t)f->asked * (8 + row_bytes) + 64, (void **)&memory));
    f->asked_rows = (int64_t *)memory;
    f->asked_data = (char *)(f->asked_rows + f->asked);
    return group_exchange_rows(group, "numbers of table rows", f->rows, f->to, f->asked_rows, f->from, 8);
}

enum result exchange_fetch_rows(struct group *group, int64_t total_rows, size_t row_bytes,
    const int64_t *wanted, int64_t count, row_reader *read, void *context, void *out) {
    for (int64_t i = 0; i < count; i++)
        if (wanted[i] < 0 || wanted[i] >= total_rows)
            return fail(ERROR_INTERNAL, "row %lld of a table of %lld was asked for", (long long)wanted[i],
                (long long)total_rows);
    if (group->size == 1) {
        if (count)
            read(context, wanted, count, out);
        return OK;
    }
    struct fetch f = {0};
    TRY(sort_wishes(group, total_rows, row_bytes, wanted, count, &f));
    TRY(read_requests(group, row_bytes, &f));
    if (f.asked)
        read(context, f.asked_rows, f.asked, f.asked_data);
    TRY(group_exchange_rows(group, "table rows", f.asked_data, f.from, f.data, f.to, row_bytes));
    int64_t at = -1;
    for (int64_t i = 0; i < count; i++) {
        at += i == 0 || f.wishes[i].row != f.wishes[i - 1].row;
        memcpy((char *)out + f.wishes[i].index * (int64_t)row_bytes, f.data + at * (int64_t)row_bytes,
            row_bytes);
    }
    return OK;
}

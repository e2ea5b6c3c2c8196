/* The exchange between devices against the one in host memory, bit for bit: fixed and counted messages, one node and several, ranks
 * without tokens, several layers enqueued without a wait between them; and what is said when ranks or messages do not come.
 * Devices are the emulation's, NCCL is its double over MPI. */
#include "cluster/exchange.h"

#include "base/log.h"
#include "cluster/device/nccl_group.h"
#include "cluster/devices.h"
#include "cluster/group.h"
#include "cluster/ranks.h"
#include "kernels/cuda/exchange.h"
#include "kernels/kernels.h"
#include "tests/mpi/random_at.h"

#include <math.h>   /* NAN */
#include <simt.h>   /* simt_set_options */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcmp */
#include <time.h>   /* nanosleep */

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return fail(ERROR_INTERNAL, "%s:%d: %s is false", __FILE__, __LINE__, #condition);               \
    } while (0)

enum { LAYERS = 3, TRIALS = 48 };

/* The device under test. */
static const struct kernels *kernels;
static struct stream *stream;

/* ---- inputs ---- */

/* This rank's tokens of one layer, in host memory and on the device. */
struct input {
    int32_t tokens;
    unsigned char *rows; /* [tokens, stride] */
    int32_t *experts;    /* [tokens, k] ascending */
    float *weights;
    void *device_rows, *device_experts, *device_weights;
};

/* What an exchange gave one layer, in host memory, without the numbers that differ from one form of exchange to the other. */
struct output {
    int32_t pairs;
    int32_t *start;      /* [local experts + 1] */
    unsigned char *rows; /* [pairs, row_bytes]: the row of each pair */
    float *weights;      /* [pairs] */
    float *outputs;      /* [tokens, k, columns] as they came back */
};

struct trial {
    struct exchange_options options;
    int64_t stride;
    int32_t local_experts, most_pairs;
    int32_t step_tokens; /* the most of any rank and layer */
    bool caller_first; /* wait for the caller's stream alone, which must pull the exchange's work behind it */
    struct input inputs[LAYERS];
    struct output host[LAYERS], device[LAYERS];
};

static enum result on_device(const void *host, size_t bytes, void **memory) {
    TRY(kernels->allocate(kernels, bytes + 1, memory));
    kernels->copy_in(stream, *memory, host, bytes);
    return OK;
}

/* k different experts in ascending order; now and then the lowest ones, so that one rank gets all. */
static void choose_experts(uint64_t seed, int32_t experts, int32_t k, int32_t *out) {
    int32_t left = k, range = random_at(seed, 1) % 4 == 0 ? k : experts;
    for (int32_t x = 0; x < range && left; x++)
        if ((int64_t)(random_at(seed, 2 + (uint64_t)x) % (uint64_t)(range - x)) < left) {
            out[k - left] = x;
            left--;
        }
}

static enum result fill_input(uint64_t seed, const struct trial *trial, struct input *input) {
    const int32_t k = trial->options.experts_per_token;
    input->tokens = random_at(seed, 0) % 4 == 0
                        ? 0
                        : (int32_t)(random_at(seed, 1) % (uint64_t)(trial->options.most_tokens + 1));
    size_t tokens = (size_t)input->tokens, row_bytes = tokens * (size_t)trial->stride,
           pairs = tokens * (size_t)k;
    input->rows = calloc(row_bytes + 1, 1);
    input->experts = calloc(pairs + 1, sizeof *input->experts);
    input->weights = calloc(pairs + 1, sizeof *input->weights);
    if (!input->rows || !input->experts || !input->weights)
        return fail(ERROR_MEMORY, "out of memory");
    for (size_t i = 0; i < row_bytes; i++)
        input->rows[i] = (unsigned char)random_at(seed + 7, i);
    for (int32_t t = 0; t < input->tokens; t++)
        choose_experts(seed * 8191 + (uint64_t)t, trial->options.experts, k, input->experts + (int64_t)t * k);
    for (size_t i = 0; i < pairs; i++)
        input->weights[i] = (float)(random_at(seed + 9, i) % 1000) / 256;
    TRY(on_device(input->rows, row_bytes, &input->device_rows));
    TRY(on_device(input->experts, pairs * sizeof(int32_t), &input->device_experts));
    return on_device(input->weights, pairs * sizeof(float), &input->device_weights);
}

static enum result make_output(const struct trial *trial, const struct input *input, struct output *output) {
    const struct exchange_options *o = &trial->options;
    size_t pairs = (size_t)trial->most_pairs;
    output->start = calloc((size_t)trial->local_experts + 1, sizeof *output->start);
    output->rows = calloc(pairs * (size_t)o->row_bytes + 1, 1);
    output->weights = calloc(pairs + 1, sizeof *output->weights);
    output->outputs =
        calloc((size_t)input->tokens * (size_t)o->experts_per_token * (size_t)o->columns + 1, sizeof(float));
    return output->start && output->rows && output->weights && output->outputs
               ? OK
               : fail(ERROR_MEMORY, "out of memory");
}

static void free_trial(struct trial *trial) {
    for (int32_t l = 0; l < LAYERS; l++) {
        struct input *in = &trial->inputs[l];
        void *device[] = {in->device_rows, in->device_experts, in->device_weights};
        for (int32_t i = 0; i < 3; i++)
            if (device[i])
                kernels->release(kernels, device[i]);
        struct output *outs[] = {&trial->host[l], &trial->device[l]};
        for (int32_t i = 0; i < 2; i++) {
            free(outs[i]->start);
            free(outs[i]->rows);
            free(outs[i]->weights);
            free(outs[i]->outputs);
        }
        free(in->rows);
        free(in->experts);
        free(in->weights);
    }
}

/* Nodes of two ranks, of one, one node, a short and a long one, and numbers that are no nodes at all. */
static int32_t node_of(uint64_t number, int32_t rank, int32_t size) {
    switch (number % 5) {
    case 0:
        return rank / 2;
    case 1:
        return 5 - rank;
    case 2:
        return 7;
    case 3:
        return rank > 0;
    default:
        return rank % 2 + (size == 3) * rank;
    }
}

static enum result make_trial(struct group *group, uint64_t number, struct trial *trial) {
    static const int32_t experts[] = {1, 2, 3, 8, 16, 64, 192};
    static const int64_t fixed_bytes[] = {-1, (int64_t)1 << 40, 2000};
    const int32_t size = group_size(group), rank = group_rank(group);
    int32_t e = experts[random_at(number, 0) % 7], k = 1 + (int32_t)(random_at(number, 1) % 6);
    *trial = (struct trial){0};
    trial->options = (struct exchange_options){.experts = e,
        .experts_per_token = k < e ? k : e,
        .most_tokens = (int32_t)(random_at(number, 2) % (number % 7 == 0 ? 300 : 40)),
        .row_bytes = 1 + (int64_t)(random_at(number, 3) % 200),
        .columns = 1 + (int32_t)(random_at(number, 4) % 40),
        .kernels = kernels,
        .stream = stream,
        .node = node_of(number, rank, size),
        .fixed_bytes = fixed_bytes[number % 3]};
    if (random_at(number, 6) % 2) /* as the model has them */
        trial->options.row_bytes = (trial->options.row_bytes + 15) / 16 * 16;
    trial->stride = trial->options.row_bytes + (int64_t)(random_at(number, 5) % 2 * 13);
    trial->local_experts = (int32_t)shard_of(e, size, rank).count;
    trial->most_pairs = size * trial->options.most_tokens * trial->options.experts_per_token;
    for (int32_t l = 0; l < LAYERS; l++) {
        TRY(fill_input((number * LAYERS + (uint64_t)l) * 64 + (uint64_t)rank, trial, &trial->inputs[l]));
        TRY(make_output(trial, &trial->inputs[l], &trial->host[l]));
        TRY(make_output(trial, &trial->inputs[l], &trial->device[l]));
    }
    int64_t most = 0;
    for (int32_t l = 0; l < LAYERS; l++)
        most = trial->inputs[l].tokens > most ? trial->inputs[l].tokens : most;
    TRY(group_max(group, "tokens of the trial", &most, 1));
    trial->step_tokens = (int32_t)most;
    return OK;
}

/* ---- what stands for the model's work ---- */

/* What one layer's host functions need; they run in the stream's order, when the memory they look at is ready. */
struct turn {
    const struct trial *trial;
    const struct input *input;
    struct output *output;
    struct arrivals arrivals;
    struct combined combined;
    bool given_up; /* a fault came before, and what lies there means nothing */
};

/* Notes what arrived and makes outputs of it that tell rows, experts and weights apart. */
static void act_as_experts(void *argument) {
    struct turn *turn = argument;
    const struct exchange_options *o = &turn->trial->options;
    const struct arrivals *a = &turn->arrivals;
    struct output *out = turn->output;
    const int32_t experts = turn->trial->local_experts;
    if (turn->given_up)
        return;
    memcpy(out->start, a->start, sizeof *a->start * (size_t)(experts + 1));
    out->pairs = a->start[experts];
    for (int32_t x = 0; x < experts; x++)
        for (int32_t p = a->start[x]; p < a->start[x + 1]; p++) {
            const unsigned char *row = (const unsigned char *)a->row_data + a->pair_row[p] * o->row_bytes;
            if (p < 0 || p >= turn->trial->most_pairs || a->pair_row[p] < 0 || a->pair_row[p] >= a->rows) {
                out->pairs = -1;
                return;
            }
            memcpy(out->rows + p * o->row_bytes, row, (size_t)o->row_bytes);
            out->weights[p] = a->pair_weight[p];
            for (int32_t c = 0; c < o->columns; c++)
                a->outputs[(int64_t)p * o->columns + c] =
                    (float)(x * 31 + row[c % o->row_bytes]) + a->pair_weight[p] * 0.5f + (float)c * 0.001f;
        }
}

static void act_as_tokens(void *argument) {
    struct turn *turn = argument;
    const struct exchange_options *o = &turn->trial->options;
    const struct combined *combined = &turn->combined;
    const size_t columns = (size_t)o->columns;
    if (turn->given_up)
        return;
    for (int32_t i = 0; i < turn->input->tokens * o->experts_per_token; i++) {
        float *to = turn->output->outputs + (size_t)i * columns;
        if (combined->place[i] >= 0 && combined->place[i] < combined->rows)
            memcpy(to, combined->outputs + (size_t)combined->place[i] * columns, sizeof(float) * columns);
        else
            *to = NAN;
    }
}

static enum result enqueue(void (*function)(void *), struct turn *turn) {
    cudaError_t code = cudaLaunchHostFunc(exchange_stream(stream), function, turn);
    return code == cudaSuccess ? OK : fail(ERROR_INTERNAL, "%s", cudaGetErrorString(code));
}

/* ---- trials ---- */

static enum result run_host(struct group *group, struct trial *trial) {
    struct exchange *exchange;
    struct exchange_options options = trial->options;
    options.kernels = NULL;
    TRY(exchange_create(group, &options, &exchange));
    for (int32_t l = 0; l < LAYERS; l++) {
        const struct input *in = &trial->inputs[l];
        struct turn turn = {.trial = trial, .input = in, .output = &trial->host[l]};
        TRY(exchange_begin_step(exchange, in->tokens));
        TRY(exchange_dispatch_begin(exchange, in->rows, trial->stride, in->tokens, in->experts, in->weights));
        TRY(exchange_dispatch_end(exchange, &turn.arrivals));
        act_as_experts(&turn);
        TRY(exchange_combine_begin(exchange));
        TRY(exchange_combine_end(exchange, &turn.combined));
        TRY(exchange_wait(exchange));
        act_as_tokens(&turn);
    }
    CHECK(!exchange_on_device(exchange));
    exchange_free(exchange);
    return OK;
}

static enum result enqueue_layer(struct exchange *exchange, const struct trial *trial, struct turn *turn) {
    const struct input *in = turn->input;
    TRY(exchange_dispatch_begin(
        exchange, in->device_rows, trial->stride, in->tokens, in->device_experts, in->device_weights));
    TRY(exchange_progress(exchange));
    TRY(exchange_dispatch_end(exchange, &turn->arrivals));
    TRY(enqueue(act_as_experts, turn));
    TRY(exchange_combine_begin(exchange));
    TRY(exchange_combine_end(exchange, &turn->combined));
    return enqueue(act_as_tokens, turn);
}

static enum result run_step(
    struct exchange *exchange, struct trial *trial, int32_t most_tokens, struct turn *turns) {
    TRY(exchange_begin_step(exchange, most_tokens));
    for (int32_t l = 0; l < LAYERS; l++)
        TRY(enqueue_layer(exchange, trial, &turns[l]));
    if (trial->caller_first && cudaStreamSynchronize(exchange_stream(stream)) != cudaSuccess)
        return fail(ERROR_INTERNAL, "the device failed");
    return exchange_wait(exchange);
}

/* All layers as one step, twice: memory is used again. */
static enum result run_device(struct exchange *exchange, struct trial *trial) {
    struct turn turns[LAYERS];
    for (int32_t l = 0; l < LAYERS; l++)
        turns[l] = (struct turn){.trial = trial, .input = &trial->inputs[l], .output = &trial->device[l]};
    enum result status = run_step(exchange, trial, trial->step_tokens, turns);
    if (status == OK)
        status = run_step(exchange, trial, trial->options.most_tokens, turns);
    for (int32_t l = 0; status != OK && l < LAYERS; l++)
        turns[l].given_up = true;
    if (status != OK) /* what was enqueued runs before `turns` ends */
        (void)cudaStreamSynchronize(exchange_stream(stream));
    return status;
}

static enum result compare(const struct trial *trial, int32_t layer) {
    const struct exchange_options *o = &trial->options;
    const struct output *host = &trial->host[layer], *device = &trial->device[layer];
    const size_t pairs = (size_t)host->pairs,
                 own = (size_t)trial->inputs[layer].tokens * (size_t)o->experts_per_token;
    CHECK(host->pairs >= 0 && host->pairs == device->pairs);
    CHECK(!memcmp(host->start, device->start, sizeof *host->start * (size_t)(trial->local_experts + 1)));
    CHECK(!memcmp(host->weights, device->weights, sizeof *host->weights * pairs));
    CHECK(!memcmp(host->rows, device->rows, pairs * (size_t)o->row_bytes));
    CHECK(!memcmp(host->outputs, device->outputs, sizeof(float) * own * (size_t)o->columns));
    return OK;
}

static enum result run_trial(struct group *group, uint64_t number) {
    struct trial trial;
    struct exchange *exchange = NULL;
    enum result status = make_trial(group, number, &trial);
    if (status != OK)
        goto done;
    trial.caller_first = number % 2;
    TRY_GOTO(status, run_host(group, &trial), done);
    TRY_GOTO(status, exchange_create(group, &trial.options, &exchange), done);
    TRY_GOTO(status, exchange_on_device(exchange) ? OK : fail(ERROR_INTERNAL, "not on the device"), done);
    TRY_GOTO(status, run_device(exchange, &trial), done);
    for (int32_t l = 0; l < LAYERS; l++)
        TRY_GOTO(status, compare(&trial, l), done);
done:
    if (status != OK)
        status = fail_context(status, "trial %llu", (unsigned long long)number);
    exchange_free(exchange);
    free_trial(&trial);
    return status;
}

/* A fixed step has no size that depends on choices: the bytes of all ranks are equal; a counted one sends fewer. */
static enum result test_bytes(struct group *group) {
    int64_t bytes[2];
    for (int32_t counted = 0; counted < 2; counted++) {
        struct trial trial;
        struct exchange *exchange;
        TRY(make_trial(group, 21, &trial));
        trial.options.fixed_bytes = counted ? -1 : (int64_t)1 << 40;
        trial.options.node = 0;
        TRY(exchange_create(group, &trial.options, &exchange));
        nccl_double_set(NULL);
        TRY(run_device(exchange, &trial));
        bytes[counted] = nccl_double_counts().bytes;
        exchange_free(exchange);
        free_trial(&trial);
    }
    CHECK(group_size(group) == 1 || bytes[1] < bytes[0]);
    return OK;
}

static void forget(struct trial *trial) {
    const struct exchange_options *o = &trial->options;
    for (int32_t l = 0; l < LAYERS; l++) {
        size_t own = (size_t)trial->inputs[l].tokens * (size_t)o->experts_per_token;
        memset(trial->device[l].outputs, 0xff, own * (size_t)o->columns * sizeof(float));
        memset(trial->device[l].weights, 0xff, (size_t)trial->most_pairs * sizeof(float));
    }
}

static enum result record(
    struct exchange *exchange, const struct trial *trial, struct turn *turns, cudaGraphExec_t *made) {
    cudaStream_t handle = exchange_stream(stream);
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    for (int32_t l = 0; l < LAYERS; l++)
        TRY(enqueue_layer(exchange, trial, &turns[l]));
    CHECK(cudaStreamEndCapture(handle, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(made, graph, 0) == cudaSuccess);
    return cudaGraphDestroy(graph) == cudaSuccess ? OK : fail(ERROR_INTERNAL, "a graph stays");
}

/* A fixed step recorded as a graph gives the same at each replay, also after steps of other lengths. */
static enum result test_recording(struct group *group) {
    struct trial trial;
    struct exchange *exchange;
    struct turn turns[LAYERS];
    cudaGraphExec_t graph;
    TRY(make_trial(group, 21, &trial));
    trial.options.fixed_bytes = (int64_t)1 << 40;
    trial.options.node = group_rank(group) / 2;
    TRY(run_host(group, &trial));
    TRY(exchange_create(group, &trial.options, &exchange));
    TRY(run_device(exchange, &trial));
    for (int32_t l = 0; l < LAYERS; l++)
        turns[l] = (struct turn){.trial = &trial, .input = &trial.inputs[l], .output = &trial.device[l]};
    TRY(exchange_begin_step(exchange, trial.step_tokens));
    TRY(record(exchange, &trial, turns, &graph));
    for (int32_t replay = 0; replay < 3; replay++) {
        forget(&trial);
        TRY(exchange_begin_step(exchange, replay == 1 ? trial.options.most_tokens : 1));
        TRY(exchange_begin_step(exchange, trial.step_tokens));
        CHECK(cudaGraphLaunch(graph, exchange_stream(stream)) == cudaSuccess);
        TRY(exchange_wait(exchange));
        for (int32_t l = 0; l < LAYERS; l++)
            TRY(compare(&trial, l));
    }
    CHECK(cudaGraphExecDestroy(graph) == cudaSuccess);
    exchange_free(exchange);
    free_trial(&trial);
    return OK;
}

/* ---- refusals and faults ---- */

/* Wrong use is refused before anything is enqueued, so that all ranks fail alike. */
static enum result test_refusals(struct group *group) {
    struct exchange_options options = {.experts = 8,
        .experts_per_token = 2,
        .most_tokens = 2,
        .row_bytes = 16,
        .columns = 4,
        .kernels = kernels,
        .stream = stream};
    struct exchange *exchange;
    struct arrivals arrivals;
    struct combined combined;
    static const int32_t descending[] = {2, 1};
    static const float weights[] = {1, 1};
    static const char row[16];
    void *rows, *experts, *device_weights;
    TRY(exchange_create(group, &options, &exchange));
    TRY(on_device(row, sizeof row, &rows));
    TRY(on_device(descending, sizeof descending, &experts));
    TRY(on_device(weights, sizeof weights, &device_weights));
    CHECK(exchange_begin_step(exchange, 3) == ERROR_INTERNAL);
    TRY(exchange_begin_step(exchange, 1));
    CHECK(exchange_dispatch_begin(exchange, rows, 16, 2, experts, device_weights) == ERROR_INTERNAL);
    CHECK(exchange_dispatch_end(exchange, &arrivals) == ERROR_INTERNAL); /* out of turn */
    CHECK(exchange_combine_begin(exchange) == ERROR_INTERNAL);
    TRY(exchange_dispatch_begin(exchange, rows, 16, 1, experts, device_weights));
    CHECK(exchange_begin_step(exchange, 1) == ERROR_INTERNAL);
    TRY(exchange_dispatch_end(exchange, &arrivals));
    TRY(exchange_combine_begin(exchange));
    TRY(exchange_combine_end(exchange, &combined));
    CHECK(exchange_wait(exchange) == ERROR_INTERNAL);
    CHECK(strstr(failure_message(), "token 0's experts do not ascend"));
    exchange_free(exchange);
    kernels->release(kernels, rows);
    kernels->release(kernels, experts);
    kernels->release(kernels, device_weights);
    options.experts = options.experts_per_token = EXCHANGE_MOST_CHOICES + 1;
    CHECK(exchange_create(group, &options, &exchange) == ERROR_USAGE && !exchange);
    return OK;
}

/* A group of its own, in which waits are short. */
static enum result short_group(const struct ranks *ranks, double deadline, struct group **group) {
    MPI_Comm communicator;
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator);
    return group_create(communicator, ranks->rank, ranks->host, deadline, true, group);
}

static enum result expect(const char *text) {
    if (strstr(failure_message(), text))
        return OK;
    char message[1024];
    snprintf(message, sizeof message, "%s", failure_message());
    return fail(ERROR_INTERNAL, "'%s' lacks '%s'", message, text);
}

/* Starts whose last rank does not come, does not return, or is not heard by the others: all who came fail and name it. */
static enum result test_starts(const struct ranks *ranks) {
    const double deadline = 0.4;
    const int32_t last = ranks->count - 1;
    struct nccl_double_faults none = {-1, 0, -1, -1, -1, -1, 0}, deaf = none, mute = none;
    char name[300];
    snprintf(name, sizeof name, "rank %d on %s", last, ranks->host);
    deaf.deaf_rank = last;
    deaf.deaf_seconds = 2.5 * deadline;
    mute.mute_rank = last;
    for (int32_t fault = 0; fault < 3; fault++) {
        struct group *group;
        struct nccl_group *nccl = NULL;
        TRY(short_group(ranks, deadline, &group));
        nccl_double_set(fault == 1 ? &deaf : fault == 2 ? &mute : &none);
        if (fault == 0 && ranks->rank == last) {
            nanosleep(&(struct timespec){.tv_nsec = (long)(2.5e9 * deadline) % 1000000000}, NULL);
        } else {
            CHECK(nccl_group_create(group, &nccl) == ERROR_RANKS && !nccl);
            TRY(fault == 2 ? OK : expect(name));
            TRY(expect(fault == 0   ? "no sign of "
                       : fault == 1 ? "came but did not return from ncclCommInitRankConfig"
                                    : "NCCL has not connected "));
            TRY(expect(fault == 0 ? "Look at those ranks' own messages" : "NCCL_SOCKET_IFNAME"));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        group_free(group);
    }
    nccl_double_set(NULL);
    return OK;
}

/* Runs a trial on a group of its own until something fails. */
static enum result run_with(
    const struct ranks *ranks, const struct nccl_double_faults *faults, int64_t fixed, int32_t layers) {
    struct group *group;
    struct trial trial;
    struct exchange *exchange;
    TRY(short_group(ranks, 0.4, &group));
    TRY(make_trial(group, 21, &trial));
    trial.options.fixed_bytes = fixed;
    trial.options.node = 0;
    TRY(run_host(group, &trial));
    TRY(exchange_create(group, &trial.options, &exchange));
    nccl_double_set(faults);
    enum result status = run_device(exchange, &trial);
    for (int32_t l = 0; status == OK && l < layers; l++)
        status = compare(&trial, l);
    nccl_double_set(NULL);
    exchange_free(exchange);
    free_trial(&trial);
    group_free(group);
    return status;
}

static enum result test_work(const struct ranks *ranks) {
    const struct nccl_double_faults none = {-1, 0, -1, -1, -1, -1, 0};
    const int64_t fixed = (int64_t)1 << 40;
    struct nccl_double_faults faults = none;
    char name[300];
    snprintf(name, sizeof name, "rank %d on %s", ranks->rank, ranks->host);
    faults.error_piece = 3; /* of a fixed step: the second layer's combine */
    CHECK(run_with(ranks, &faults, fixed, LAYERS) == ERROR_RANKS);
    TRY(expect(name));
    TRY(expect("combine of expert outputs, layer 1"));
    TRY(expect("remote process exited"));
    TRY(expect("look for its own message"));
    faults = none;
    faults.stuck_piece = 4;
    CHECK(run_with(ranks, &faults, fixed, LAYERS) == ERROR_RANKS);
    TRY(expect(name));
    TRY(expect("which has not ended: dispatch of tokens to experts, layer 2"));
    faults.stuck_piece = 0; /* of a counted step: the first counts */
    CHECK(run_with(ranks, &faults, -1, LAYERS) == ERROR_RANKS);
    TRY(expect("which has not ended: counts of the dispatch, layer 0"));
    faults = none;
    faults.late_piece = ranks->rank % 2 ? 2 : 3;
    faults.late_seconds = 0.05;
    return run_with(ranks, &faults, -1, LAYERS);
}

/* Each rank of the node gets a device of its own; one for all is refused, naming two of them. */
static enum result test_devices(struct ranks *ranks) {
    struct simt_options before = simt_get_options(), options = before;
    struct device_choice choice;
    options.devices = ranks->count;
    simt_set_options(&options);
    TRY(devices_choose(ranks, &choice));
    CHECK(choice.number == ranks->node_rank && strlen(choice.address) == 12);
    CHECK(*ranks->place.accelerator_name);
    options.devices = 1;
    simt_set_options(&options);
    char names[300];
    snprintf(names, sizeof names, "rank 0 and rank 1 on %s have one device", ranks->host);
    enum result status = devices_choose(ranks, &choice);
    if (ranks->count > 1) {
        CHECK(status == ERROR_USAGE && ranks_share(ranks, status));
        TRY(expect(names));
        TRY(expect("--gpus-per-task=1"));
    }
    simt_set_options(&before);
    return ranks->count > 1 ? OK : status;
}

static enum result run_all(struct ranks *ranks) {
    struct group *group = ranks->supernode_group;
    for (uint64_t number = 0; number < TRIALS; number++)
        TRY(run_trial(group, number));
    TRY(test_bytes(group));
    TRY(test_recording(group));
    TRY(test_refusals(group));
    TRY(test_devices(ranks));
    if (ranks->count == 1)
        return OK;
    TRY(test_starts(ranks));
    return test_work(ranks);
}

int main(void) {
    struct ranks ranks;
    enum result status = ranks_start(&(struct rank_options){.deadline_seconds = 60}, &ranks);
    if (status == OK)
        status = kernels_cuda_create(0, &kernels);
    if (status == OK)
        status = kernels->stream_create(kernels, &stream);
    if (status == OK)
        status = run_all(&ranks);
    if (status != OK)
        log_error("%s", failure_message());
    if (stream)
        kernels->stream_free(kernels, stream);
    kernels_free(kernels);
    ranks_stop(&ranks, status);
    return status;
}

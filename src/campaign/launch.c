#include "campaign/launch.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/signals.h"
#include "cluster/collectives.h"
#include "cluster/devices.h"
#include "cluster/quota.h"
#include "model/sequence.h" /* model_blocks */

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc */
#include <string.h> /* memset, strcmp */
#include <unistd.h> /* sysconf */

#define MIB (1024.0 * 1024.0)

void launch_option_rows(struct launch_options *options, struct option *row) {
    const struct option rows[LAUNCH_OPTIONS + 1] = {
        {.name = "kv-memory",
            .kind = OPTION_BYTES,
            .value = &options->kv_memory,
            .placeholder = "SIZE",
            .help = "key/value memory of a rank (default: a quarter of the machine's memory, shared by its "
                    "ranks; on GPUs most of what the weights leave)"},
        {.name = "mapped-weights",
            .kind = OPTION_FLAG,
            .value = &options->mapped_weights,
            .help = "share weights with other ranks in the page cache instead of copying them: slower, less "
                    "memory"},
        {.name = "threads",
            .kind = OPTION_COUNT,
            .value = &options->threads,
            .placeholder = "N",
            .least = 1,
            .most = 4096,
            .help = "threads of a rank (default: its share of the cores)"},
        {.name = "supernode",
            .kind = OPTION_COUNT,
            .value = &options->supernode,
            .placeholder = "N",
            .least = 1,
            .most = 1 << 20,
            .help = "ranks that share one copy of the experts (default: all)"},
        {.name = "backend",
            .kind = OPTION_TEXT,
            .value = &options->backend,
            .placeholder = "NAME",
            .help = "cpu or cuda (default: cuda where this build has it and there is a device)"},
        {.name = "cpu-kernels",
            .kind = OPTION_TEXT,
            .value = &options->cpu_kernels,
            .placeholder = "NAME",
            .help = "generic, avx2, avx512 or avx512bf16 (default: the best this machine has)"},
        {.name = "deadline",
            .kind = OPTION_COUNT,
            .value = &options->deadline,
            .placeholder = "SECONDS",
            .least = 1,
            .most = 1 << 30,
            .help = "longest wait on other ranks before the run is given up (default: 600)"},
        {.name = "no-bind",
            .kind = OPTION_FLAG,
            .value = &options->no_bind,
            .help = "leave ranks unbound to cores"},
        {.name = "quiet", .kind = OPTION_FLAG, .value = &options->quiet, .help = "warnings and errors only"},
        {.name = "verbose", .kind = OPTION_FLAG, .value = &options->verbose, .help = "more on what happens"},
        {0}};
    memcpy(row, rows, sizeof rows);
}

int64_t machine_memory(void) {
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE),
            limit = memory_limit("");
    return limit < bytes ? limit : bytes;
}

enum result launch_begin(const struct launch_options *options, struct launch *launch) {
    memset(launch, 0, sizeof *launch);
    signals_install();
    const struct rank_options of_ranks = {
        .supernode = (int32_t)options->supernode,
        .threads = (int32_t)options->threads,
        .deadline_seconds = (int32_t)options->deadline,
        .bind = !options->no_bind,
    };
    TRY(ranks_start(&of_ranks, &launch->ranks));
    enum log_level level = options->quiet ? LOG_QUIET : options->verbose ? LOG_VERBOSE : LOG_NORMAL;
    log_setup(launch->ranks.rank, launch->ranks.count, level);
    return OK;
}

/* ---- opening ---- */

/* The backend that was asked for, else CUDA where every rank sees a device. Collective over the run. */
static enum result choose_backend(
    const struct launch *launch, const struct launch_options *options, bool *is_cuda) {
    const char *why = NULL;
    int32_t devices = kernels_cuda_devices(&why);
    int64_t with_device = devices > 0;
    enum result status = OK;
    *is_cuda = false;
    TRY(group_sum(launch->ranks.world, "start: devices", &with_device, 1));
    if (!options->backend)
        *is_cuda = with_device == launch->ranks.count && !options->cpu_kernels;
    else if (strcmp(options->backend, "cuda") == 0)
        *is_cuda = true;
    else if (strcmp(options->backend, "cpu") != 0)
        status = fail(ERROR_USAGE, "--backend %s: give cpu or cuda", options->backend);
    if (*is_cuda && options->cpu_kernels)
        status = fail(ERROR_USAGE, "--cpu-kernels goes with --backend cpu");
    else if (*is_cuda && devices == 0)
        status = fail(ERROR_USAGE, "--backend cuda: %s", why);
    return ranks_agree(launch->ranks.world, status);
}

/* Collective over the run. */
static enum result open_kernels(struct launch *launch, const struct launch_options *options) {
    struct group *world = launch->ranks.world;
    bool is_cuda = false;
    TRY(choose_backend(launch, options, &is_cuda));
    if (!is_cuda)
        return ranks_agree(
            world, kernels_cpu_create(launch->ranks.threads, options->cpu_kernels, &launch->kernels));
    struct device_choice device;
    TRY(devices_choose(&launch->ranks, &device));
    return ranks_agree(world, kernels_cuda_create(device.number, &launch->kernels));
}

enum { KERNEL_NAME_BYTES = 64 };

/* Different instruction sets would give different bits. */
static enum result compare_kernels(const struct launch *launch) {
    char own[KERNEL_NAME_BYTES] = "";
    snprintf(own, sizeof own, "%s/%s", launch->kernels->name, launch->kernels->instruction_set);
    size_t count = (size_t)launch->ranks.count;
    char *all = calloc(count, KERNEL_NAME_BYTES);
    enum result status = all ? OK : fail(ERROR_MEMORY, "out of memory for the names of the ranks' kernels");
    status = ranks_agree(launch->ranks.world, status);
    if (status == OK && all)
        status = group_all_gather(launch->ranks.world, "start: kernels", own, sizeof own, all);
    for (size_t i = 1; status == OK && all && i < count; i++)
        if (strcmp(all, all + i * KERNEL_NAME_BYTES) != 0)
            status = fail(ERROR_CONFLICT,
                "rank 0 computes with %s, rank %zu with %s, which give different bits: "
                "choose machines of one kind, or set --cpu-kernels to what all have",
                all, i, all + i * KERNEL_NAME_BYTES);
    free(all);
    return ranks_agree(launch->ranks.world, status);
}

static enum result open_checkpoint(struct launch *launch, const char *folder, const char *fingerprint) {
    TRY(checkpoint_open(folder, &launch->checkpoint));
    const char *found = checkpoint_fingerprint(launch->checkpoint);
    if (fingerprint && strcmp(found, fingerprint) != 0)
        return fail(ERROR_CONFLICT,
            "%s has the fingerprint %s, the campaign was ingested for a checkpoint with %s: give "
            "that one with --model, or ingest again into a new campaign",
            folder, found, fingerprint);
    return OK;
}

enum result launch_open(struct launch *launch, const struct launch_options *options, const char *model_folder,
    const char *fingerprint) {
    struct group *world = launch->ranks.world;
    TRY(open_kernels(launch, options));
    TRY(compare_kernels(launch));
    TRY(ranks_agree(world, open_checkpoint(launch, model_folder, fingerprint)));
    return ranks_agree(world, tokenizer_load(model_folder, &launch->tokenizer));
}

enum result launch_model(
    struct launch *launch, const struct launch_options *options, struct model_options *model) {
    model->kernels = launch->kernels;
    model->mapped_weights = options->mapped_weights;
    model->supernode = launch->ranks.supernode_group;
    model->node = launch->ranks.node;
    model->context = checkpoint_config(launch->checkpoint)->max_position_embeddings;
    model->kv_bytes = options->kv_memory;
    if (!model->kv_bytes && launch->kernels->shares_host_memory)
        model->kv_bytes = machine_memory() / 4 / launch->ranks.node_count;
    return ranks_agree(launch->ranks.world, model_create(launch->checkpoint, model, &launch->model));
}

/* ---- describing ---- */

enum { MOST_RANK_LINES = 16 };

static void print_weights(const struct launch *launch, const struct model_bytes *all) {
    double most = 0, total = 0;
    for (int32_t i = 0; i < launch->ranks.count; i++) {
        double bytes = (double)(all[i].dense + all[i].experts + all[i].engram);
        most = bytes > most ? bytes : most;
        total += bytes;
        if (launch->ranks.count <= MOST_RANK_LINES)
            log_info(
                "rank %d: weights %.1f MiB (dense %.1f, experts %.1f, Engram rows %.1f), scratch %.1f MiB", i,
                bytes / MIB, (double)all[i].dense / MIB, (double)all[i].experts / MIB,
                (double)all[i].engram / MIB, (double)all[i].scratch / MIB);
    }
    if (launch->ranks.count > MOST_RANK_LINES)
        log_info("weights of a rank: %.1f MiB on average, %.1f MiB at most",
            total / launch->ranks.count / MIB, most / MIB);
}

enum result launch_describe(const struct launch *launch) {
    const struct ranks *ranks = &launch->ranks;
    struct model_bytes own = model_bytes(launch->model);
    struct model_bytes *all = calloc((size_t)ranks->count, sizeof *all);
    enum result status = all ? OK : fail(ERROR_MEMORY, "out of memory for the ranks' memory sizes");
    status = ranks_agree(ranks->world, status);
    if (status == OK && all)
        status = group_all_gather(ranks->world, "start: memory sizes", &own, sizeof own, all);
    if (status == OK && all && ranks->rank == 0) {
        log_info("%s: %lld tensors, %.1f MiB", checkpoint_folder(launch->checkpoint),
            (long long)checkpoint_tensor_count(launch->checkpoint),
            (double)checkpoint_tensor_bytes(launch->checkpoint) / MIB);
        log_info("%d %s on %d %s, %d %s, %d %s a rank, kernels %s/%s", ranks->count,
            ranks->count == 1 ? "rank" : "ranks", ranks->nodes, ranks->nodes == 1 ? "node" : "nodes",
            ranks->supernodes, ranks->supernodes == 1 ? "supernode" : "supernodes", ranks->threads,
            ranks->threads == 1 ? "thread" : "threads", launch->kernels->name,
            launch->kernels->instruction_set);
        print_weights(launch, all);
        log_info("key/value memory of a rank: %.1f MiB in %d blocks", (double)own.kv / MIB,
            model_blocks(launch->model));
    }
    free(all);
    return status;
}

/* ---- end ---- */

enum result launch_end(struct launch *launch, enum result status) {
    if (!ranks_share(&launch->ranks, status)) {
        /* First of all: the others wait, and freeing what still works with them may take long. Ends the process. */
        log_error("%s", failure_message());
        ranks_stop(&launch->ranks, status);
    }
    model_free(launch->model);
    tokenizer_free(launch->tokenizer);
    checkpoint_close(launch->checkpoint);
    kernels_free(launch->kernels);
    ranks_stop(&launch->ranks, status);
    return status;
}

/* `nocturne check`: whether a run would find what it needs, tried out on all ranks, as one table.
 *
 * Every rank fills one row of each kind (or leaves it empty); rank 0 prints the worst of each kind. */
#include "campaign/check.h"

#include "base/options.h"

#include "campaign/files.h"
#include "campaign/header.h"   /* format_hash_64 */
#include "campaign/progress.h" /* monotonic_seconds */
#include "campaign/requests.h"
#include "cluster/collectives.h"
#include "cluster/links.h"
#include "cluster/quota.h"
#include "recipe/tokenizer.h"

#include <errno.h>        /* errno */
#include <fcntl.h>        /* open */
#include <math.h>         /* fabs */
#include <stdarg.h>       /* va_list */
#include <stdio.h>        /* printf, snprintf */
#include <stdlib.h>       /* calloc, free, realpath */
#include <string.h>       /* strcmp */
#include <sys/resource.h> /* getrlimit */
#include <sys/stat.h>     /* stat */
#include <time.h>         /* clock_gettime */
#include <unistd.h>       /* access, sysconf */
#include <xxhash.h>

#define GIB (1024.0 * 1024.0 * 1024.0)

enum {
    BYTES_A_PROMPT_TOKEN = 900, /* of states, docs/operations.md */
    BYTES_A_REQUEST = 256 << 10,
    READ_BYTES = 1 << 20,
    NAME_BYTES = 64
};

static const double MOST_SKEW = 60;          /* seconds between clocks of nodes: more is a failure */
static const double NOTED_SKEW = 1;          /* a warning */
static const time_t EARLIEST = 1767225600;   /* 2026-01-01: no clock that is set shows less */
static const double SLOW_LATENCY = 1e-3;     /* seconds one way */
static const double SLOW_BANDWIDTH = 1.25e8; /* bytes a second: 1 Gbit/s */
static const double UNEVEN = 4;              /* the slowest pair of nodes against the middle one */

enum kind {
    ROW_RANKS,
    ROW_BINDING,
    ROW_KERNELS,
    ROW_LIMITS,
    ROW_CHECKPOINT,
    ROW_SHARDS,
    ROW_MEMORY,
    ROW_CAMPAIGN,
    ROW_SPACE,
    ROW_FLUSH,
    ROW_RENAME,
    ROW_LOCKS,
    ROW_HDF5,
    ROW_VISIBILITY,
    ROW_FILE_CLOCK,
    ROW_TEMPORARY,
    ROW_CLOCK,
    ROW_LINKS,
    ROWS
};

static const char *const row_names[ROWS] = {"ranks", "binding", "kernels", "limits", "checkpoint", "shards",
    "memory", "campaign", "free space", "flush", "rename", "locks", "HDF5", "shared files", "file times",
    "TMPDIR", "clock", "links"};

struct check_options {
    const char *campaign, *model;
    bool hashes;
    struct launch_options launch;
};

struct check {
    const struct check_options *options;
    struct launch launch;
    struct check_row rows[ROWS];
    struct requests *requests; /* NULL: no campaign, or it cannot be read */
};

/* ---- rows ---- */

static void set_row(struct check_row *row, enum check_verdict verdict, enum result code, const char *remedy,
    const char *found) {
    if (!row->empty && row->verdict > (int32_t)verdict)
        return;
    *row = (struct check_row){.verdict = (int32_t)verdict, .code = (int32_t)code};
    snprintf(row->found, sizeof row->found, "%s", found);
    snprintf(row->remedy, sizeof row->remedy, "%s", remedy);
}

void check_pass(struct check_row *row, const char *format, ...) {
    char found[CHECK_FOUND_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(found, sizeof found, format, arguments);
    va_end(arguments);
    set_row(row, CHECK_PASS, OK, "", found);
}

void check_warn(struct check_row *row, const char *remedy, const char *format, ...) {
    char found[CHECK_FOUND_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(found, sizeof found, format, arguments);
    va_end(arguments);
    set_row(row, CHECK_WARN, OK, remedy, found);
}

void check_fail(struct check_row *row, enum result code, const char *remedy, const char *format, ...) {
    char found[CHECK_FOUND_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(found, sizeof found, format, arguments);
    va_end(arguments);
    set_row(row, CHECK_FAIL, code, remedy, found);
}

void check_failure(struct check_row *row, enum result status, const char *remedy) {
    check_fail(row, status, remedy, "%s", failure_message());
}

static bool leads_node(const struct check *check) {
    return check->launch.ranks.node_rank == 0;
}

/* ---- ranks, cores, kernels, limits ---- */

static void check_ranks(struct check *check) {
    const struct ranks *r = &check->launch.ranks;
    check_pass(&check->rows[ROW_RANKS], "%d rank%s on %d node%s, %d supernode%s", r->count,
        r->count == 1 ? "" : "s", r->nodes, r->nodes == 1 ? "" : "s", r->supernodes,
        r->supernodes == 1 ? "" : "s");
}

static void check_binding(struct check *check) {
    const struct ranks *r = &check->launch.ranks;
    struct check_row *row = &check->rows[ROW_BINDING];
    int32_t quota = processor_quota("");
    const char *remedy =
        "start fewer ranks on a node, or give the job more cores (srun --cpus-per-task, mpirun --map-by "
        "ppr:N:node:PE=C); see 'nocturne topo'";
    check_pass(row, "%d core%s a rank (%s), %s", r->place.cores, r->place.cores == 1 ? "" : "s",
        r->place.cpuset,
        r->launcher_bound ? "bound by the launcher"
        : r->bound        ? "bound"
                          : "not bound");
    if (r->place.shared)
        check_warn(row, remedy, "%d ranks of a node share cores (%s): each waits while others compute",
            r->node_count, r->place.cpuset);
    if (quota > 0 && quota < r->node_count)
        check_warn(row, remedy, "the job may use the time of %d core%s, for %d ranks on this node", quota,
            quota == 1 ? "" : "s", r->node_count);
    if (check->options->launch.threads > r->place.cores)
        check_warn(row, "leave --threads out", "--threads %lld on %d core%s",
            (long long)check->options->launch.threads, r->place.cores, r->place.cores == 1 ? "" : "s");
}

/* Instruction sets and devices; different ones on different ranks would give different bits. Collective over the run. */
static enum result check_kernels(struct check *check) {
    const struct launch_options *o = &check->options->launch;
    struct check_row *row = &check->rows[ROW_KERNELS];
    const char *why = NULL;
    char own[NAME_BYTES] = "none";
    int32_t devices = kernels_cuda_devices(&why);
    bool wants_device = o->backend && strcmp(o->backend, "cuda") == 0;
    enum result status = kernels_cpu_create(1, o->cpu_kernels, &check->launch.kernels);
    if (status == OK)
        snprintf(own, sizeof own, "%s, %d device%s", check->launch.kernels->instruction_set, devices,
            devices == 1 ? "" : "s");
    char *all = calloc((size_t)check->launch.ranks.count, NAME_BYTES);
    if (!all)
        return fail(ERROR_MEMORY, "out of memory for the names of the ranks' kernels");
    enum result gathered =
        group_all_gather(check->launch.ranks.world, "check: kernels", own, sizeof own, all);
    if (status != OK)
        check_failure(row, status, "leave --cpu-kernels out, or give what all machines have");
    else if (wants_device && devices == 0)
        check_fail(
            row, ERROR_USAGE, "use a build with CUDA on machines with devices", "--backend cuda: %s", why);
    else if (gathered == OK && strcmp(own, all) != 0)
        check_fail(row, ERROR_CONFLICT, "choose machines of one kind, or set --cpu-kernels to what all have",
            "%s here, %s on rank 0: they give different bits", own, all);
    else
        check_pass(row, "%s on every rank", own);
    free(all);
    return gathered;
}

static void check_limits(struct check *check) {
    struct check_row *row = &check->rows[ROW_LIMITS];
    struct rlimit size = {0}, files = {0};
    if (getrlimit(RLIMIT_FSIZE, &size) || getrlimit(RLIMIT_NOFILE, &files)) {
        check_warn(row, "look at 'ulimit -a'", "limits cannot be read");
        return;
    }
    check_pass(row, "%lld open files, files of any size", (long long)files.rlim_cur);
    if (files.rlim_cur < 256)
        check_warn(row, "raise it with 'ulimit -n 1024' in the job", "only %lld open files are allowed",
            (long long)files.rlim_cur);
    if (size.rlim_cur != RLIM_INFINITY)
        check_warn(row, "lift it with 'ulimit -f unlimited' in the job",
            "files may not grow beyond %lld bytes", (long long)size.rlim_cur);
}

/* ---- the checkpoint ---- */

static void open_checkpoint(struct check *check) {
    const char *folder = check->options->model;
    struct check_row *row = &check->rows[ROW_CHECKPOINT];
    const char *remedy = "copy the checkpoint again, or give the right folder with --model";
    struct tokenizer *tokenizer = NULL;
    if (!folder && check->requests)
        folder = requests_model_folder(check->requests);
    if (!folder) {
        check_fail(row, ERROR_USAGE, "give --model DIR", "no checkpoint and no readable campaign is named");
        return;
    }
    enum result status = checkpoint_open(folder, &check->launch.checkpoint);
    if (status == OK)
        status = tokenizer_load(folder, &tokenizer);
    if (status != OK) {
        check_failure(row, status, remedy);
        return;
    }
    tokenizer_free(tokenizer);
    const char *found = checkpoint_fingerprint(check->launch.checkpoint);
    check_pass(row, "%s: %lld tensors, %.1f GiB, fingerprint %s", folder,
        (long long)checkpoint_tensor_count(check->launch.checkpoint),
        (double)checkpoint_tensor_bytes(check->launch.checkpoint) / GIB, found);
    if (check->requests && strcmp(found, requests_fingerprint(check->requests)) != 0)
        check_fail(row, ERROR_CONFLICT, "give the checkpoint that ingest was given, or ingest again",
            "%s has the fingerprint %s, the campaign was made for %s", folder, found,
            requests_fingerprint(check->requests));
}

/* All nodes must see one checkpoint. Collective over the run. */
static enum result compare_fingerprints(struct check *check) {
    char own[NAME_BYTES] = "";
    const struct ranks *ranks = &check->launch.ranks;
    if (check->launch.checkpoint)
        snprintf(own, sizeof own, "%s", checkpoint_fingerprint(check->launch.checkpoint));
    char first[NAME_BYTES];
    memcpy(first, own, sizeof first);
    TRY(group_broadcast(ranks->world, "check: fingerprints", 0, first, sizeof first));
    if (own[0] && first[0] && strcmp(own, first) != 0)
        check_fail(&check->rows[ROW_CHECKPOINT], ERROR_CONFLICT, "copy one checkpoint to all nodes",
            "fingerprint %s here, %s on rank 0", own, first);
    return OK;
}

/* Reads [from, to) of an open file, in pieces. */
static enum result read_range(
    int fd, const char *path, int64_t from, int64_t to, char *memory, XXH3_state_t *hash) {
    for (int64_t at = from; at < to;) {
        size_t want = to - at < READ_BYTES ? (size_t)(to - at) : READ_BYTES, got = 0;
        TRY(read_fully(fd, memory, want, at, &got, path));
        if (got != want)
            return fail(ERROR_INPUT, "%s: ends at byte %lld of %lld", path, (long long)at + (long long)got,
                (long long)to);
        if (hash)
            XXH3_64bits_update(hash, memory, got);
        at += (int64_t)got;
    }
    return OK;
}

/* Reads a shard: all of it with `whole`, else its first, middle and last pieces. *digest: of what was read with `whole`. */
static enum result read_shard(
    const char *path, bool whole, char *memory, XXH3_state_t *hash, int64_t *bytes, uint64_t *digest) {
    struct stat found;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(ERROR_IO, "%s: cannot open", path);
    enum result status = fstat(fd, &found) ? fail_errno(ERROR_IO, "%s: cannot tell the size", path) : OK;
    int64_t size = status == OK ? (int64_t)found.st_size : 0, middle = size / 2;
    const int64_t places[] = {0, middle > READ_BYTES ? middle : 0, size > READ_BYTES ? size - READ_BYTES : 0};
    XXH3_64bits_reset(hash);
    if (whole && status == OK)
        status = read_range(fd, path, 0, size, memory, hash);
    for (size_t i = 0; !whole && i < sizeof places / sizeof *places && status == OK; i++)
        status = read_range(
            fd, path, places[i], places[i] + READ_BYTES < size ? places[i] + READ_BYTES : size, memory, hash);
    *bytes += size;
    *digest = XXH3_64bits_digest(hash);
    close(fd);
    return status;
}

/* The shards of a node are dealt out to its ranks. digests [shard count]: of those that this rank has read, else 0. */
static enum result read_shards(struct check *check, uint64_t *digests, int64_t *bytes, int32_t *count) {
    const struct ranks *ranks = &check->launch.ranks;
    const struct checkpoint *checkpoint = check->launch.checkpoint;
    char *memory = malloc(READ_BYTES);
    XXH3_state_t *hash = XXH3_createState();
    enum result status = memory && hash ? OK : fail(ERROR_MEMORY, "out of memory to read shards");
    for (int32_t i = ranks->node_rank; status == OK && i < checkpoint_shard_count(checkpoint);
         i += ranks->node_count) {
        char *path = path_join(checkpoint_folder(checkpoint), checkpoint_shard_name(checkpoint, i));
        status = path ? read_shard(path, check->options->hashes, memory, hash, bytes, &digests[i])
                      : fail(ERROR_MEMORY, "out of memory for a path");
        free(path);
        ++*count;
    }
    XXH3_freeState(hash);
    free(memory);
    return status;
}

/* With --hashes: every node must have read the same. Collective over the run. */
static enum result compare_digests(
    struct check *check, const uint64_t *digests, int32_t count, char text[17]) {
    int64_t *most = calloc((size_t)count + 1, sizeof *most);
    if (!most)
        return fail(ERROR_MEMORY, "out of memory for the hashes of %d shards", count);
    for (int32_t i = 0; i < count; i++)
        most[i] = (int64_t)(digests[i] >> 1); /* not negative: a maximum over all ranks */
    enum result status = group_max(check->launch.ranks.world, "check: hashes", most, count);
    for (int32_t i = 0; i < count && status == OK; i++)
        if (digests[i] && (int64_t)(digests[i] >> 1) != most[i])
            check_fail(&check->rows[ROW_SHARDS], ERROR_INPUT,
                "copy this shard again to the nodes that differ", "%s is not the same on all nodes",
                checkpoint_shard_name(check->launch.checkpoint, i));
    format_hash_64(XXH3_64bits(most, (size_t)count * sizeof *most), text);
    free(most);
    return status;
}

static enum result check_shards(struct check *check) {
    struct check_row *row = &check->rows[ROW_SHARDS];
    bool hashes = check->options->hashes;
    int64_t shards = check->launch.checkpoint ? checkpoint_shard_count(check->launch.checkpoint) : 0,
            bytes = 0;
    int64_t most[2] = {shards, -shards};
    TRY(group_max(check->launch.ranks.world, "check: shards", most, 2));
    uint64_t *digests = calloc((size_t)shards + 1, sizeof *digests);
    enum result status =
        ranks_agree(check->launch.ranks.world, digests ? OK : fail(ERROR_MEMORY, "out of memory for hashes"));
    if (status != OK || !digests) {
        free(digests);
        return status;
    }
    int32_t count = 0;
    char text[17] = "";
    if (!check->launch.checkpoint)
        check_fail(row, ERROR_INPUT, "see checkpoint", "the checkpoint is not open, so nothing was read");
    else {
        double start = monotonic_seconds();
        enum result read = read_shards(check, digests, &bytes, &count);
        double seconds = monotonic_seconds() - start;
        if (read != OK)
            check_failure(row, read, "copy that shard again, and look at the file system it lies on");
        else if (count)
            check_pass(row,
                hashes ? "%d shards read to their ends by this rank, %.2f GiB in %.1f s"
                       : "%d shards opened by this rank and read at three places, %.2f GiB in %.1f s "
                         "(--hashes reads all)",
                count, (double)bytes / GIB, seconds);
    }
    if (hashes && most[0] == -most[1] && most[0] > 0)
        status = compare_digests(check, digests, (int32_t)shards, text);
    if (status == OK && text[0] && row->verdict == CHECK_PASS && !row->empty) {
        size_t used = strlen(row->found);
        snprintf(row->found + used, sizeof row->found - used, ", content %s", text);
    }
    free(digests);
    return status;
}

/* ---- memory ---- */

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Bytes of memory that the system could give now. */
static int64_t available_memory(void) {
    char line[128];
    long long kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "MemAvailable: %lld", &kilobytes) != 1)
        ;
    if (file)
        fclose(file);
    return (int64_t)kilobytes * 1024;
}

static void check_memory(struct check *check) {
    const struct launch_options *o = &check->options->launch;
    const struct ranks *ranks = &check->launch.ranks;
    const struct checkpoint *checkpoint = check->launch.checkpoint;
    struct check_row *row = &check->rows[ROW_MEMORY];
    double dense = 0, experts = 0, machine = (double)machine_memory(), available = (double)available_memory();
    if (!checkpoint) {
        check_fail(
            row, ERROR_INPUT, "see checkpoint", "the checkpoint is not open, so its weights are unknown");
        return;
    }
    for (int64_t i = 0; i < checkpoint_tensor_count(checkpoint); i++) {
        const struct tensor *tensor = checkpoint_tensor_at(checkpoint, i);
        bool stays_mapped = strstr(tensor->name, ".engram.embed.") || begins(tensor->name, "embed.") ||
                            begins(tensor->name, "vision.") || begins(tensor->name, "aligner.") ||
                            begins(tensor->name, "mtp.");
        if (strstr(tensor->name, ".ffn.experts."))
            experts += stays_mapped ? 0 : (double)tensor->bytes;
        else
            dense += stays_mapped ? 0 : (double)tensor->bytes;
    }
    double weights = o->mapped_weights ? 0 : dense + experts * ranks->supernodes / ranks->count;
    double kv = o->kv_memory ? (double)o->kv_memory : machine / 4 / ranks->node_count;
    double need = (weights + kv) * ranks->node_count;
    const char *remedy = "give the job more memory or nodes, more ranks in a supernode, a lower --kv-memory, "
                         "or --mapped-weights";
    if (need > machine)
        check_fail(row, ERROR_MEMORY, remedy,
            "%d rank%s of this node need %.2f GiB (each %.2f of weights, %.2f of key/value memory), the "
            "machine or job has %.2f",
            ranks->node_count, ranks->node_count == 1 ? "" : "s", need / GIB, weights / GIB, kv / GIB,
            machine / GIB);
    else if (available > 0 && need > available)
        check_warn(row, "end what else runs on the node, or see that the job has it alone",
            "the ranks of this node need %.2f GiB, %.2f are free now", need / GIB, available / GIB);
    else
        check_pass(row,
            "a rank needs %.2f GiB of weights and %.2f of key/value memory; the node has %.2f for %d%s",
            weights / GIB, kv / GIB, machine / GIB, ranks->node_count,
            kernels_cuda_devices(&(const char *){NULL}) ? "; devices' own memory is checked by the phases"
                                                        : "");
}

/* ---- the campaign's folder ---- */

/* The campaign's folder, or the nearest one above it that exists. NULL without memory. */
static char *existing_folder(const char *path) {
    char *folder = strdup(path);
    struct stat found;
    while (folder && stat(folder, &found)) {
        char *above = path_folder(folder);
        bool same = above && strcmp(above, folder) == 0;
        free(folder);
        folder = above;
        if (same)
            break;
    }
    return folder;
}

static void open_campaign(struct check *check) {
    const char *folder = check->options->campaign;
    struct check_row *row = &check->rows[ROW_CAMPAIGN];
    struct stat found;
    char path[4096];
    if (!folder) {
        check_pass(row, "none given; the current folder is tried out");
        return;
    }
    snprintf(path, sizeof path, "%s/requests.h5", folder);
    if (stat(path, &found) && errno == ENOENT) {
        check_pass(row, "%s: not ingested yet", folder);
        return;
    }
    enum result status = requests_open(folder, &check->requests);
    if (status != OK)
        check_failure(row, status, "mend what the message names, or ingest again");
    else
        check_pass(row, "%s: %lld requests, %lld prompt tokens, %lld images", folder,
            (long long)requests_count(check->requests), (long long)requests_prompt_tokens(check->requests),
            (long long)requests_image_count(check->requests));
}

/* What phases may write, roughly: states of all prompts, results, images. */
static int64_t wanted_bytes(const struct check *check) {
    if (!check->requests)
        return 0;
    return requests_prompt_tokens(check->requests) * BYTES_A_PROMPT_TOKEN +
           requests_count(check->requests) * (int64_t)BYTES_A_REQUEST;
}

static enum result check_folder(struct check *check) {
    const char *given = check->options->campaign ? check->options->campaign : ".";
    struct check_files files;
    struct check_row *made[] = {&files.space, &files.flush, &files.rename, &files.locks, &files.hdf5,
        &files.visibility, &files.file_clock};
    const enum kind kinds[] = {
        ROW_SPACE, ROW_FLUSH, ROW_RENAME, ROW_LOCKS, ROW_HDF5, ROW_VISIBILITY, ROW_FILE_CLOCK};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        *made[i] = (struct check_row){.empty = 1};
    char *folder = existing_folder(given);
    TRY(ranks_agree(check->launch.ranks.world, folder ? OK : fail(ERROR_MEMORY, "out of memory for a path")));
    enum result status = check_campaign_files(&check->launch.ranks, folder, wanted_bytes(check), &files);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        check->rows[kinds[i]] = *made[i];
    free(folder);
    return status;
}

static void check_temporary(struct check *check) {
    struct check_row *row = &check->rows[ROW_TEMPORARY];
    const char *folder = getenv("TMPDIR");
    if (!folder || !*folder)
        folder = "/tmp";
    if (access(folder, W_OK | X_OK))
        check_warn(row, "set TMPDIR to a folder that exists and is writable: the MPI library wants it",
            "%s: %s", folder, strerror(errno));
    else
        check_pass(row, "%s is writable", folder);
}

/* ---- clocks and links ---- */

static enum result check_clock(struct check *check) {
    const struct ranks *ranks = &check->launch.ranks;
    struct check_row *row = &check->rows[ROW_CLOCK];
    const char *remedy = "set the clocks of all nodes by NTP (chrony)";
    double *ahead = calloc((size_t)ranks->count, sizeof *ahead), worst = 0;
    enum result status = ranks_agree(
        ranks->world, ahead ? OK : fail(ERROR_MEMORY, "out of memory for %d clocks", ranks->count));
    if (status == OK && ahead)
        status = clocks_compare(ranks, ahead);
    int32_t who = 0;
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec < EARLIEST)
        check_fail(row, ERROR_IO, remedy, "this node's clock says it is before 2026");
    for (int32_t r = 0; ahead && r < ranks->count; r++)
        if (fabs(ahead[r]) > worst) {
            worst = fabs(ahead[r]);
            who = r;
        }
    free(ahead);
    if (status != OK || ranks->rank > 0)
        return status;
    if (worst > MOST_SKEW)
        check_fail(row, ERROR_IO, remedy, "rank %d's clock differs by %.0f s from rank 0's", who, worst);
    else if (worst > NOTED_SKEW)
        check_warn(row, remedy, "rank %d's clock differs by %.1f s from rank 0's", who, worst);
    else
        check_pass(row, "differs by %.4f s at most between ranks", worst);
    return OK;
}

static int compare_latencies(const void *a, const void *b) {
    double x = ((const struct link *)a)->latency, y = ((const struct link *)b)->latency;
    return (x > y) - (x < y);
}

static int compare_bandwidths(const void *a, const void *b) {
    double x = ((const struct link *)a)->bytes_per_second, y = ((const struct link *)b)->bytes_per_second;
    return (x < y) - (x > y);
}

static void judge_links(const struct links *links, struct check_row *row) {
    size_t count = (size_t)links->count;
    const char *pairs = links->within_node ? "within the node" : "between nodes";
    qsort(links->pairs, count, sizeof *links->pairs, compare_latencies);
    double middle = links->pairs[count / 2].latency;
    struct link late = links->pairs[count - 1];
    qsort(links->pairs, count, sizeof *links->pairs, compare_bandwidths);
    double middle_speed = links->pairs[count / 2].bytes_per_second;
    struct link slow = links->pairs[count - 1];
    check_pass(row,
        "%zu pair%s %s: latency %.1f us, at most %.1f (ranks %d and %d); bandwidth %.2f GB/s, at least %.2f "
        "(ranks %d and %d)",
        count, count == 1 ? "" : "s", pairs, 1e6 * middle, 1e6 * late.latency, late.from, late.to,
        1e-9 * middle_speed, 1e-9 * slow.bytes_per_second, slow.from, slow.to);
    const char *remedy = "see that MPI uses the fast network (UCX_NET_DEVICES, OMPI_MCA_btl_tcp_if_include) "
                         "and that the cores "
                         "are not shared; leave the slow node out";
    if (late.latency > SLOW_LATENCY)
        check_warn(row, remedy, "a message between ranks %d and %d takes %.1f ms", late.from, late.to,
            1e3 * late.latency);
    else if (slow.bytes_per_second < SLOW_BANDWIDTH)
        check_warn(row, remedy, "only %.3f GB/s between ranks %d and %d", 1e-9 * slow.bytes_per_second,
            slow.from, slow.to);
    else if (!links->within_node &&
             (late.latency > UNEVEN * middle || slow.bytes_per_second * UNEVEN < middle_speed))
        check_warn(row, remedy,
            "uneven: latency of ranks %d and %d %.1f us (middle: %.1f), bandwidth of ranks %d and %d %.2f "
            "GB/s "
            "(middle: %.2f)",
            late.from, late.to, 1e6 * late.latency, 1e6 * middle, slow.from, slow.to,
            1e-9 * slow.bytes_per_second, 1e-9 * middle_speed);
}

static enum result check_links(struct check *check) {
    struct links links;
    TRY(links_measure(&check->launch.ranks, &links));
    if (check->launch.ranks.rank == 0 && links.count == 0)
        check_pass(&check->rows[ROW_LINKS], "one rank");
    else if (check->launch.ranks.rank == 0)
        judge_links(&links, &check->rows[ROW_LINKS]);
    links_free(&links);
    return OK;
}

/* ---- the table ---- */

/* The worst row of a kind, its lowest rank, and how many ranks say the same verdict. */
struct worst_row {
    const struct check_row *row;
    int32_t rank, count;
};

static struct worst_row find_worst(const struct check_row *all, int32_t ranks, int32_t kind) {
    struct worst_row worst = {0};
    for (int32_t r = 0; r < ranks; r++) {
        const struct check_row *row = &all[(size_t)r * ROWS + (size_t)kind];
        if (row->empty)
            continue;
        if (!worst.row || row->verdict > worst.row->verdict)
            worst = (struct worst_row){.row = row, .rank = r};
        worst.count += row->verdict == worst.row->verdict;
    }
    return worst;
}

static void print_row(const char *name, const struct worst_row *worst) {
    static const char *const words[] = {"pass", "warn", "FAIL"};
    const struct check_row *row = worst->row;
    printf("%-12s  %s  ", name, words[row->verdict]);
    if (row->verdict != CHECK_PASS && worst->rank > 0)
        printf("rank %d: ", worst->rank);
    printf("%s", row->found);
    if (row->verdict != CHECK_PASS && worst->count > 1)
        printf(" (and %d more rank%s)", worst->count - 1, worst->count == 2 ? "" : "s");
    printf("\n");
    if (row->remedy[0])
        printf("%-12s        -> %s\n", "", row->remedy);
}

/* Prints the table; returns the code of its first failure. */
static enum result print_rows(const struct check_row *all, int32_t ranks) {
    int32_t verdicts[3] = {0};
    enum result code = OK;
    for (int32_t kind = 0; kind < ROWS; kind++) {
        struct worst_row worst = find_worst(all, ranks, kind);
        if (!worst.row)
            continue;
        print_row(row_names[kind], &worst);
        verdicts[worst.row->verdict]++;
        if (worst.row->verdict == CHECK_FAIL && code == OK)
            code = (enum result)worst.row->code;
    }
    printf("%d passed, %d to look at, %d failed\n", verdicts[CHECK_PASS], verdicts[CHECK_WARN],
        verdicts[CHECK_FAIL]);
    if (code != OK)
        return fail(code, "%d of %d checks failed: do what the table says, then check again",
            verdicts[CHECK_FAIL], verdicts[CHECK_PASS] + verdicts[CHECK_WARN] + verdicts[CHECK_FAIL]);
    return OK;
}

static enum result show_rows(struct check *check) {
    const struct ranks *ranks = &check->launch.ranks;
    struct check_row *all = calloc((size_t)ranks->count, sizeof check->rows);
    enum result status = ranks_agree(
        ranks->world, all ? OK : fail(ERROR_MEMORY, "out of memory for the rows of %d ranks", ranks->count));
    if (status == OK && all)
        status = group_all_gather(ranks->world, "check: rows", check->rows, sizeof check->rows, all);
    if (status == OK && all)
        status = ranks_agree(ranks->world, ranks->rank == 0 ? print_rows(all, ranks->count) : OK);
    free(all);
    return status;
}

/* ---- the command ---- */

static enum result do_check(struct check *check) {
    for (int32_t kind = 0; kind < ROWS; kind++)
        check->rows[kind].empty = 1;
    TRY(launch_begin(&check->options->launch, &check->launch));
    check_ranks(check);
    check_binding(check);
    TRY(check_kernels(check));
    check_limits(check);
    open_campaign(check);
    open_checkpoint(check);
    TRY(compare_fingerprints(check));
    TRY(check_shards(check));
    check_memory(check);
    TRY(check_folder(check));
    if (leads_node(check))
        check_temporary(check);
    TRY(check_clock(check));
    TRY(check_links(check));
    return show_rows(check);
}

static enum result run_check(const struct check_options *options) {
    static struct check check;
    check = (struct check){.options = options};
    enum result status = do_check(&check);
    requests_close(check.requests);
    return launch_end(&check.launch, status);
}

enum { CHECK_OPTIONS = 3 };

enum result command_check(int argc, char **argv) {
    static const struct command_usage usage = {.name = "check",
        .summary = "Tries out, on all ranks, what a run needs: checkpoint, memory, the file system of the "
                   "campaign's folder, "
                   "clocks, cores\nand the network, and prints a table of what passed and what to do about "
                   "the rest. Writes "
                   "nothing but trial files,\nwhich it removes.",
        .arguments = "[CAMPAIGN]",
        .notes = "Start it as the phases will be started (same launcher, ranks and options). Exit code 0: "
                 "nothing failed "
                 "(there may be\nwarnings); else the code that a phase would end with because of the first "
                 "failure."};
    struct check_options values = {0};
    const struct option rows[CHECK_OPTIONS] = {
        {.name = "campaign",
            .kind = OPTION_TEXT,
            .value = &values.campaign,
            .placeholder = "DIR",
            .help = "the campaign's folder, which need not be there yet (default: CAMPAIGN, else the current "
                    "folder)"},
        {.name = "model",
            .kind = OPTION_TEXT,
            .value = &values.model,
            .placeholder = "DIR",
            .help = "folder of the checkpoint (default: where ingest found it)"},
        {.name = "hashes",
            .kind = OPTION_FLAG,
            .value = &values.hashes,
            .help = "read all shards to their ends on every node, and compare what the nodes have read"}};
    struct option table[CHECK_OPTIONS + LAUNCH_OPTIONS + 1];
    memcpy(table, rows, sizeof rows);
    launch_option_rows(&values.launch, table + CHECK_OPTIONS);
    struct option_list words = {0};
    bool help_shown;
    enum result status = options_parse(&usage, table, argc, argv, &words, &help_shown);
    if (status == OK && !help_shown && (words.count > 1 || (words.count == 1 && values.campaign)))
        status = fail(ERROR_USAGE, "check: give one campaign (see 'nocturne check --help')");
    if (status == OK && !help_shown) {
        if (words.count == 1)
            values.campaign = words.items[0];
        status = run_check(&values);
    }
    free(words.items);
    return status;
}

/* Start and end of a run. Blocking MPI calls are made here only, each under the watchdog below; everything later goes through
 * collectives.c, which polls. */
#include "cluster/ranks.h"

#include "base/beacon.h"
#include "base/log.h"
#include "cluster/group.h"
#include "cluster/layout.h"
#include "cluster/processes.h"
#include "cluster/quota.h"
#include "cluster/watch.h"

#include <errno.h> /* errno */
#include <mpi.h>
#include <omp.h>     /* omp_set_num_threads */
#include <pthread.h> /* the watchdog */
#include <sched.h>   /* sched_getaffinity */
#include <signal.h>  /* sigaction */
#include <stdio.h>   /* snprintf, fprintf */
#include <stdlib.h>  /* setenv, getenv */
#include <string.h>  /* memcmp */
#include <sys/uio.h> /* process_vm_readv */
#include <time.h>    /* clock_gettime */
#include <unistd.h>  /* gethostname, getpid */

/* ---- builds with AddressSanitizer ---- */

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define WITH_ADDRESS_SANITIZER
#endif

#ifdef WITH_ADDRESS_SANITIZER
#include <dlfcn.h> /* dlclose */

/* What Open MPI, hwloc and their plug-ins keep until the process ends is not ours to free. Plug-ins must stay loaded for
 * the leak check to know them by name. */
int dlclose(void *handle) {
    (void)handle;
    return 0;
}

const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "fast_unwind_on_malloc=0"; /* those libraries have no frame pointers */
}

const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:libmpi.so\nleak:libopen-pal.so\nleak:libopen-rte.so\nleak:libpmix.so\nleak:libevent\n"
           "leak:libhwloc.so\nleak:mca_\n";
}
#endif

/* ---- watchdog: ends the process when a blocking MPI call takes longer than the deadline ---- */

struct watchdog {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running, stop;
    bool at_end; /* of the run */
    const char *what, *host;
    int32_t seconds;
};

static void *watchdog_main(void *argument) {
    struct watchdog *dog = argument;
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += dog->seconds;
    pthread_mutex_lock(&dog->lock);
    int code = 0;
    while (!dog->stop && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&dog->wake, &dog->lock, &end);
    bool late = !dog->stop;
    pthread_mutex_unlock(&dog->lock);
    if (late) {
        /* MPI is in a call on another thread and must not be used: leaving makes the launcher end the other ranks. */
        struct buffer missing = {0};
        arrival_describe(&missing);
        if (!watch_describe_stuck(dog->host, &missing) && dog->at_end)
            watch_describe_late(dog->host, &missing);
        if (dog->at_end ? watch_speaks() : arrival_speaks())
            log_error(
                "process %ld on %s waited %d s for %s: another rank did not come, or the network between "
                "them does not work%s; the run is aborted. Look at those ranks' own messages and hosts, then "
                "run the same command again",
                (long)getpid(), dog->host, dog->seconds, dog->what, missing.data ? missing.data : "");
        buffer_free(&missing);
        if (!dog->at_end) { /* time for the one that speaks, before the launcher ends it */
            const struct timespec pause = {.tv_nsec = 300000000};
            nanosleep(&pause, NULL);
        }
        beacon_leave(BEACON_LEFT_ALONE);
        remove_shared_memory();
        _exit(ERROR_RANKS);
    }
    return NULL;
}

/* Without a thread to spare the calls go unguarded. */
static void watchdog_start(
    struct watchdog *dog, const char *what, bool at_end, const char *host, int32_t seconds) {
    *dog = (struct watchdog){.what = what, .at_end = at_end, .host = host, .seconds = seconds};
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&dog->lock, NULL);
    pthread_cond_init(&dog->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    dog->running = pthread_create(&dog->thread, NULL, watchdog_main, dog) == 0;
}

static void watchdog_stop(struct watchdog *dog) {
    if (!dog->running)
        return;
    pthread_mutex_lock(&dog->lock);
    dog->stop = true;
    pthread_cond_signal(&dog->wake);
    pthread_mutex_unlock(&dog->lock);
    pthread_join(dog->thread, NULL);
    pthread_cond_destroy(&dog->wake);
    pthread_mutex_destroy(&dog->lock);
}

/* ---- settings of Open MPI, before it starts ---- */

static int environment_count(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

static int allowed_cpus(cpu_set_t *set) {
    if (sched_getaffinity(0, sizeof *set, set) == 0)
        return CPU_COUNT(set);
    CPU_ZERO(set); /* more processors than a cpu_set_t holds: the affinity stays unknown */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* Containers often forbid one process to read another's memory; Open MPI then complains at each message. */
static bool can_read_memory(void) {
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

static bool launched(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK") || getenv("PMI_RANK") || getenv("PMI_SIZE");
}

/* Defaults that keep Open MPI quiet in containers and on crowded cores. A user's own setting always stays. */
static void set_mpi_defaults(void) {
    const int keep = 0;
    cpu_set_t set;
    if (environment_count("OMPI_COMM_WORLD_LOCAL_SIZE") > allowed_cpus(&set))
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", keep);
    if (!can_read_memory())
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", keep);
    if (launched())
        return;
    /* One rank: no network to look for, and no socket below a TMPDIR whose path may be too long for one. */
    setenv("OMPI_MCA_pml", "ob1", keep);
    setenv("OMPI_MCA_btl", "self", keep);
    setenv("OMPI_MCA_ess_singleton_isolated", "1", keep); /* nor a daemon beside it */
    const char *temporary = getenv("TMPDIR");
    if (temporary && strlen(temporary) > 60)
        setenv("OMPI_MCA_orte_tmpdir_base", "/tmp", keep);
}

/* srun without a matching MPI plugin starts many processes that each believe to be alone. */
static enum result check_not_alone_by_mistake(int32_t count) {
    int tasks = environment_count("SLURM_STEP_NUM_TASKS");
    if (count == 1 && tasks > 1 && !getenv("OMPI_COMM_WORLD_SIZE"))
        return fail(ERROR_USAGE,
            "srun started %d tasks, but MPI sees only this one: use 'srun --mpi=pmix' (see 'srun "
            "--mpi=list') or mpirun",
            tasks);
    return OK;
}

/* ---- layout ---- */

/* Ranks of this node, as a communicator and as facts. */
struct node {
    MPI_Comm communicator;
    int32_t rank, count;
    int32_t name; /* the lowest rank of the run on this node */
};

static enum result find_node(int32_t world_rank, struct node *node) {
    const char *what = "start: ranks of a node";
    TRY(group_mpi(NULL, what,
        MPI_Comm_split_type(
            MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &node->communicator)));
    TRY(group_mpi(NULL, what, MPI_Comm_rank(node->communicator, &node->rank)));
    TRY(group_mpi(NULL, what, MPI_Comm_size(node->communicator, &node->count)));
    node->name = world_rank;
    return group_mpi(NULL, what, MPI_Bcast(&node->name, 1, MPI_INT32_T, 0, node->communicator));
}

/* Lays the run out from the node of every rank; the same on all ranks, so that its errors are shared. */
static enum result lay_out(const struct rank_options *options, const struct node *node, struct ranks *ranks,
    int32_t *supernode_rank) {
    struct layout layout = {0};
    enum result status = OK;
    int32_t *nodes = calloc((size_t)ranks->count, sizeof *nodes);
    if (!nodes)
        return fail(ERROR_MEMORY, "out of memory for the layout of %d ranks", ranks->count);
    TRY_GOTO(status,
        group_mpi(NULL, "start: layout",
            MPI_Allgather(&node->name, 1, MPI_INT32_T, nodes, 1, MPI_INT32_T, MPI_COMM_WORLD)),
        done);
    status = layout_make(nodes, ranks->count, options->supernode, &layout);
    if (status == ERROR_USAGE)
        ranks->world->agreed = status;
    if (status != OK)
        goto done;
    const struct layout_rank *own = &layout.ranks[ranks->rank];
    ranks->node = own->node;
    ranks->nodes = layout.nodes;
    ranks->supernode = own->supernode;
    ranks->supernodes = layout.supernodes;
    *supernode_rank = own->supernode_rank;
done:
    layout_free(&layout);
    free(nodes);
    return status;
}

/* ---- cores ---- */

/* How many ranks of the node have the same affinity as this one, and which of them this one is. */
static enum result compare_affinity(
    const struct node *node, const cpu_set_t *own, int32_t *sharers, int32_t *index) {
    int bytes = (int)sizeof *own;
    cpu_set_t *all = calloc((size_t)node->count, sizeof *all);
    if (!all)
        return fail(ERROR_MEMORY, "out of memory for the affinities of %d ranks", node->count);
    enum result status = group_mpi(NULL, "start: affinity",
        MPI_Allgather(own, bytes, MPI_BYTE, all, bytes, MPI_BYTE, node->communicator));
    *sharers = *index = 0;
    for (int32_t r = 0; status == OK && r < node->count; r++)
        if (memcmp(&all[r], own, sizeof *own) == 0) {
            *index += r < node->rank;
            ++*sharers;
        }
    free(all);
    return status;
}

/* Cuts a rank's share of cores to what a quota on processor time leaves it; true when the quota is tight, so that time must
 * not be spent on spinning. */
static bool limit_by_quota(const struct node *node, int32_t *cores) {
    int32_t quota = processor_quota("");
    if (!quota || (int64_t)quota >= (int64_t)*cores * node->count)
        return false;
    *cores = quota > node->count ? quota / node->count : 1;
    return true;
}

/* Finds this rank's cores among those that the launcher (or a container, or taskset) left it, and binds it to them. */
static enum result take_cores(
    const struct rank_options *options, const struct node *node, struct ranks *ranks) {
    cpu_set_t own;
    allowed_cpus(&own);
    int32_t sharers = 1, index = 0;
    TRY(compare_affinity(node, &own, &sharers, &index));
    struct topology *topology = NULL;
    enum result status = OK;
    ranks->launcher_bound = sharers < node->count;
    TRY_GOTO(status, topology_load(NULL, &topology), done);
    TRY_GOTO(status, topology_place(topology, index, sharers, &ranks->place), done);
    ranks->bound = ranks->launcher_bound;
    if (options->bind && !(ranks->launcher_bound && sharers == 1)) {
        TRY_GOTO(status, topology_bind(topology, &ranks->place), done);
        ranks->bound = true;
    }
done:
    topology_free(topology);
    return status;
}

/* ---- start and end ---- */

/* Lets the ranks of the node see each other without MPI. */
static enum result share_watch(const struct node *node, int32_t world_rank) {
    const char *what = "start: watchdog";
    unsigned char own[WATCH_TICKET_BYTES];
    unsigned char *all = calloc((size_t)node->count, WATCH_TICKET_BYTES);
    if (!all)
        return fail(ERROR_MEMORY, "out of memory for a watchdog of %d ranks", node->count);
    watch_ticket(world_rank, node->rank, node->count, own);
    enum result status = group_mpi(NULL, what,
        MPI_Allgather(
            own, WATCH_TICKET_BYTES, MPI_BYTE, all, WATCH_TICKET_BYTES, MPI_BYTE, node->communicator));
    if (status == OK) {
        watch_share(all);
        status = group_mpi(NULL, what, MPI_Barrier(node->communicator));
    }
    watch_unticket();
    free(all);
    return status;
}

/* MPI_Init, without the crash handlers that Open MPI installs: they print a stack, for which they need memory, and wait for ever when
 * the crash was in malloc. A rank that crashes shall go at once; the others of its node tell where it was. */
static int init_mpi(void) {
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
    enum { CRASHES = sizeof crashes / sizeof *crashes };
    struct sigaction before[CRASHES];
    int provided;
    for (int i = 0; i < CRASHES; i++)
        sigaction(crashes[i], NULL, &before[i]);
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided); /* ends the process itself when it fails */
    for (int i = 0; i < CRASHES; i++)
        sigaction(crashes[i], &before[i], NULL);
    return provided;
}

static enum result begin_mpi(const struct rank_options *options, struct ranks *ranks) {
    int provided = init_mpi();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    TRY(group_mpi(NULL, "start", MPI_Comm_rank(MPI_COMM_WORLD, &ranks->rank)));
    TRY(group_mpi(NULL, "start", MPI_Comm_size(MPI_COMM_WORLD, &ranks->count)));
    log_setup(ranks->rank, ranks->count, LOG_NORMAL);
    if (provided < MPI_THREAD_FUNNELED)
        return fail(
            ERROR_RANKS, "this MPI library cannot be used by a program with threads (MPI_THREAD_FUNNELED)");
    TRY(check_not_alone_by_mistake(ranks->count));
    cpu_set_t set;
    bool crowded = environment_count("OMPI_COMM_WORLD_LOCAL_SIZE") > allowed_cpus(&set);
    return group_create(
        MPI_COMM_WORLD, ranks->rank, ranks->host, options->deadline_seconds, crowded, &ranks->world);
}

static enum result make_groups(const struct rank_options *options, struct node *node, struct ranks *ranks) {
    int32_t supernode_rank = 0;
    TRY(find_node(ranks->rank, node));
    TRY(share_watch(node, ranks->rank));
    ranks->node_rank = node->rank;
    ranks->node_count = node->count;
    TRY(lay_out(options, node, ranks, &supernode_rank));
    MPI_Comm communicator;
    TRY(group_mpi(NULL, "start: supernodes",
        MPI_Comm_split(MPI_COMM_WORLD, ranks->supernode, supernode_rank, &communicator)));
    TRY(group_create(
        communicator, ranks->rank, ranks->host, options->deadline_seconds, false, &ranks->supernode_group));
    TRY(take_cores(options, node, ranks));
    int32_t share = ranks->place.cores;
    int32_t crowded = limit_by_quota(node, &share) || ranks->place.shared;
    /* One rank that has to share a core must not spin on it, on any node. */
    TRY(group_mpi(NULL, "start: cores",
        MPI_Allreduce(MPI_IN_PLACE, &crowded, 1, MPI_INT32_T, MPI_MAX, MPI_COMM_WORLD)));
    ranks->world->crowded = ranks->supernode_group->crowded = crowded;
    ranks->threads = options->threads ? options->threads : share;
    omp_set_num_threads(ranks->threads);
    return OK;
}

enum result ranks_start(const struct rank_options *given, struct ranks *ranks) {
    struct rank_options options = *given;
    if (options.deadline_seconds <= 0)
        options.deadline_seconds = WATCH_DEFAULT_DEADLINE;
    *ranks = (struct ranks){.count = 1, .threads = 1, .supernodes = 1, .nodes = 1, .node_count = 1};
    if (gethostname(ranks->host, sizeof ranks->host - 1) != 0)
        snprintf(ranks->host, sizeof ranks->host, "unknown host");
    set_mpi_defaults();
    struct node node = {.communicator = MPI_COMM_NULL};
    struct watchdog dog;
    arrival_show();
    watchdog_start(
        &dog, "the other ranks at the start of the run", false, ranks->host, options.deadline_seconds);
    enum result status = begin_mpi(&options, ranks);
    if (status == OK)
        status = make_groups(&options, &node, ranks);
    if (node.communicator != MPI_COMM_NULL)
        MPI_Comm_free(&node.communicator);
    watchdog_stop(&dog);
    arrival_hide();
    watch_start(options.deadline_seconds, ranks->host, false);
    return status;
}

bool ranks_share(const struct ranks *ranks, enum result status) {
    if (status == OK || ranks->count == 1)
        return true;
    if (ranks->world && ranks->world->agreed == status)
        return true;
    return ranks->supernodes == 1 && ranks->supernode_group && ranks->supernode_group->agreed == status;
}

void ranks_stop(struct ranks *ranks, enum result status) {
    int started = 0, ended = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&ended);
    if (!started || ended)
        return;
    watch_stop();
    if (!ranks_share(ranks, status)) {
        beacon_leave(BEACON_LEFT_ALONE);
        remove_shared_memory();
        MPI_Abort(MPI_COMM_WORLD, status);
        _exit(status);
    }
    int32_t seconds = ranks->world ? (int32_t)ranks->world->deadline : WATCH_DEFAULT_DEADLINE;
    struct watchdog dog;
    watchdog_start(&dog, "the other ranks at the end of the run", true, ranks->host, seconds);
    group_free(ranks->supernode_group);
    group_free(ranks->world);
    ranks->world = ranks->supernode_group = NULL;
    beacon_wait("end of the run");
    beacon_leave(BEACON_LEFT_TOGETHER);
    MPI_Finalize();
    watchdog_stop(&dog);
}

/* ---- agreement ---- */

struct verdict {
    int32_t code;
    char message[4096];
};

enum result ranks_agree(struct group *group, enum result own) {
    if (group->size == 1) {
        group->agreed = own;
        return own;
    }
    /* The lowest failing rank is the largest of size - rank. */
    int64_t worst = own == OK ? 0 : group->size - group->rank;
    TRY(group_max(group, "agreement on errors", &worst, 1));
    group->agreed = OK;
    if (worst == 0)
        return OK;
    int32_t culprit = group->size - (int32_t)worst;
    struct verdict verdict = {.code = own};
    if (culprit == group->rank)
        snprintf(verdict.message, sizeof verdict.message, "%s", failure_message());
    TRY(group_broadcast(group, "the failing rank's message", culprit, &verdict, sizeof verdict));
    group->agreed = (enum result)verdict.code;
    if (culprit == group->rank)
        return own;
    verdict.message[sizeof verdict.message - 1] = '\0';
    return fail(group->agreed, "rank %d on %s: %s", group->members[culprit].world_rank,
        group->members[culprit].host, verdict.message);
}

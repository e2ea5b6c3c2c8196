#include "cluster/topology.h"

#include "base/log.h"
#include "cluster/exchange.h" /* shard_of */

#include <ctype.h> /* isdigit, isspace */
#include <errno.h> /* errno */
#include <fcntl.h> /* open */
#include <hwloc.h>
#include <signal.h> /* signal */
#include <stdio.h>  /* FILE */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* strchr */
#include <sys/stat.h>
#include <sys/wait.h> /* waitpid */
#include <unistd.h>   /* fork, dup2, alarm, _exit */

enum {
    MOST_PROCESSORS = 1 << 16,     /* of a synthetic description: a typing error must not fill the memory */
    MOST_DESCRIPTION_BYTES = 4096, /* of a text file */
    MOST_XML_BYTES = 64 << 20,
    MOST_ACCELERATORS = 1024,
};
enum { LONGEST_CHECK_SECONDS = 20, CHECK_FINE = 0, CHECK_REFUSED = 100 };

struct topology {
    hwloc_topology_t hwloc;
    bool live; /* this machine: can be bound to */
    int32_t accelerators;
    hwloc_obj_t accelerator[MOST_ACCELERATORS];
};

/* ---- loading ---- */

/* Processors that a synthetic description would make: the product of its counts, outside brackets. */
static int64_t synthetic_processors(const char *text) {
    int64_t product = 1;
    int depth = 0;
    bool expect_count = true; /* at a word's start or after its colon */
    for (const char *c = text; *c; c++) {
        if (strchr("([", *c)) {
            depth++;
        } else if (strchr(")]", *c)) {
            depth -= depth > 0;
        } else if (depth == 0 && expect_count && isdigit((unsigned char)*c)) {
            int64_t count = 0;
            for (; isdigit((unsigned char)*c); c++)
                count = count > MOST_PROCESSORS ? count : count * 10 + (*c - '0');
            product = product > MOST_PROCESSORS ? product : product * count;
            c--;
        }
        expect_count = *c == ':' || isspace((unsigned char)*c);
    }
    return product;
}

static enum result set_synthetic(hwloc_topology_t hwloc, const char *text) {
    int64_t processors = synthetic_processors(text);
    if (processors > MOST_PROCESSORS)
        return fail(
            ERROR_USAGE, "topology '%s': more than %d processors are not supported", text, MOST_PROCESSORS);
    if (hwloc_topology_set_synthetic(hwloc, text) != 0)
        return fail(ERROR_USAGE,
            "topology '%s' is neither a file nor a description of a machine: give an XML file made by "
            "'lstopo FILE.xml', or "
            "levels and their counts such as 'package:2 numa:4 core:8 pu:1'",
            text);
    return OK;
}

/* A recorded machine (XML), or a text file whose first line describes one. */
static enum result set_file(hwloc_topology_t hwloc, const char *path, int64_t bytes) {
    if (bytes > MOST_XML_BYTES)
        return fail(ERROR_INPUT, "%s: %lld bytes are too long for a machine's description (at most %d)", path,
            (long long)bytes, MOST_XML_BYTES);
    FILE *file = fopen(path, "rb");
    if (!file)
        return fail_errno(ERROR_IO, "cannot open topology %s", path);
    char text[MOST_DESCRIPTION_BYTES + 1];
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    size_t blanks = strspn(text, " \t\r\n");
    if (text[blanks] == '<') {
        if (hwloc_topology_set_xml(hwloc, path) != 0)
            return fail(ERROR_INPUT,
                "%s: hwloc %d.%d cannot read this XML file: record the machine again with 'lstopo FILE.xml'",
                path, HWLOC_API_VERSION >> 16, HWLOC_API_VERSION >> 8 & 255);
        return OK;
    }
    text[blanks + strcspn(text + blanks, "\r\n")] = '\0';
    enum result status = set_synthetic(hwloc, text + blanks);
    return status == OK ? OK : fail_context(ERROR_INPUT, "%s", path);
}

static enum result set_source(hwloc_topology_t hwloc, const char *source) {
    struct stat info;
    if (stat(source, &info) == 0) {
        if (!S_ISREG(info.st_mode))
            return fail(ERROR_USAGE, "topology %s is not a file", source);
        return set_file(hwloc, source, (int64_t)info.st_size);
    }
    size_t length = strlen(source);
    if (strchr(source, '/') || (length > 4 && !strcmp(source + length - 4, ".xml")))
        return fail_errno(ERROR_IO, "cannot open topology %s", source);
    return set_synthetic(hwloc, source);
}

/* Drops the processors that this process may not use (the launcher's or taskset's choice). */
static void restrict_to_affinity(hwloc_topology_t hwloc) {
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (allowed && hwloc_get_cpubind(hwloc, allowed, HWLOC_CPUBIND_PROCESS) == 0 &&
        !hwloc_bitmap_iszero(allowed) &&
        !hwloc_bitmap_isincluded(hwloc_topology_get_topology_cpuset(hwloc), allowed) &&
        hwloc_topology_restrict(hwloc, allowed, HWLOC_RESTRICT_FLAG_ADAPT_IO) != 0)
        log_warning("hwloc cannot be told which processors this process may use: %s", strerror(errno));
    hwloc_bitmap_free(allowed);
}

/* ---- accelerators ---- */

/* The device on the bus that an operating system's name stands for; several names may stand for one. */
static hwloc_obj_t device_of(hwloc_obj_t object) {
    return object->parent && object->parent->type == HWLOC_OBJ_PCI_DEVICE ? object->parent : object;
}

static void add_accelerator(struct topology *topology, hwloc_obj_t object) {
    for (int32_t i = 0; i < topology->accelerators; i++)
        if (device_of(topology->accelerator[i]) == device_of(object))
            return;
    if (topology->accelerators < MOST_ACCELERATORS)
        topology->accelerator[topology->accelerators++] = object;
}

static bool is_compute_device(hwloc_obj_t object) {
    return object->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC;
}

static bool is_managed_gpu(hwloc_obj_t object) {
    return object->attr->osdev.type == HWLOC_OBJ_OSDEV_GPU && object->name &&
           (!strncmp(object->name, "nvml", 4) || !strncmp(object->name, "rsmi", 4));
}

/* Compute devices (CUDA, OpenCL, Level Zero); if hwloc knows none, what NVML or ROCm SMI call GPUs; if it was built
 * without those, 3D controllers (class 0302) and processing accelerators (1200) on the bus. */
static void find_accelerators(struct topology *topology) {
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_osdev(topology->hwloc, object)))
        if (is_compute_device(object))
            add_accelerator(topology, object);
    if (topology->accelerators)
        return;
    while ((object = hwloc_get_next_osdev(topology->hwloc, object)))
        if (is_managed_gpu(object))
            add_accelerator(topology, object);
    if (topology->accelerators)
        return;
    while ((object = hwloc_get_next_pcidev(topology->hwloc, object)))
        if (object->attr->pcidev.class_id == 0x0302 || object->attr->pcidev.class_id == 0x1200)
            add_accelerator(topology, object);
}

/* ---- the interface ---- */

/* `whole`: of this machine, also the processors that this process may not use. */
static enum result load(const char *source, bool whole, struct topology **loaded) {
    enum result status = OK;
    *loaded = NULL;
    struct topology *topology = calloc(1, sizeof *topology);
    if (!topology)
        return fail(ERROR_MEMORY, "out of memory for the machine's topology");
    if (hwloc_topology_init(&topology->hwloc) != 0) {
        free(topology);
        return fail(ERROR_MEMORY, "hwloc cannot start");
    }
    topology->live = source == NULL && !whole;
    if (whole)
        hwloc_topology_set_flags(topology->hwloc, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    hwloc_topology_set_io_types_filter(topology->hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (source)
        TRY_GOTO(status, set_source(topology->hwloc, source), done);
    if (hwloc_topology_load(topology->hwloc) != 0) {
        status =
            source ? fail(ERROR_INPUT,
                         "topology %s: hwloc finds no machine in it: record it again with 'lstopo FILE.xml'",
                         source)
                   : fail_errno(ERROR_INTERNAL, "hwloc cannot read this machine's topology");
        goto done;
    }
    if (topology->live)
        restrict_to_affinity(topology->hwloc);
    if (topology_cores(topology) < 1) {
        status = fail(ERROR_INPUT, "topology %s has no cores", source ? source : "of this machine");
        goto done;
    }
    find_accelerators(topology);
    *loaded = topology;
done:
    if (status != OK)
        topology_free(topology);
    return status;
}

/* Uses all that is in a topology once, as a process of its own. */
static void rehearse(const char *source) {
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0)
        dup2(nowhere, STDERR_FILENO);
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        signal(fatal[i], SIG_DFL); /* a crash ends this child, whoever else would like to catch it */
    alarm(LONGEST_CHECK_SECONDS);
    struct topology *topology;
    if (load(source, false, &topology) != OK)
        _exit(CHECK_REFUSED);
    struct buffer text = {0};
    struct rank_place place;
    topology_describe(topology, &text);
    int32_t ranks = topology->accelerators ? topology->accelerators : 1;
    for (int32_t r = 0; r < ranks; r++)
        if (topology_place(topology, r, ranks, &place) != OK)
            _exit(CHECK_REFUSED);
    topology_free(topology);
    buffer_free(&text);
    _exit(CHECK_FINE);
}

/* hwloc trusts the XML it reads, and a damaged file makes it crash: better in a child than here. */
static enum result check_file(const char *path) {
    pid_t child = fork();
    if (child < 0)
        return fail_errno(ERROR_IO, "cannot start a process to check topology %s", path);
    if (child == 0)
        rehearse(path);
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return fail_errno(ERROR_IO, "cannot wait for the check of topology %s", path);
    if (WIFEXITED(status) && (WEXITSTATUS(status) == CHECK_FINE || WEXITSTATUS(status) == CHECK_REFUSED))
        return OK; /* an ordinary refusal is repeated here, with its message */
    return fail(ERROR_INPUT,
        "topology %s is damaged: hwloc fails on it (%s); record it again with 'lstopo FILE.xml'", path,
        WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit");
}

enum result topology_load(const char *source, struct topology **loaded) {
    *loaded = NULL;
    setenv("HWLOC_HIDE_ERRORS", "2",
        0); /* what hwloc prints of faults in tables of the firmware helps no user of ours */
    struct stat info;
    if (source && stat(source, &info) == 0 && S_ISREG(info.st_mode))
        TRY(check_file(source));
    return load(source, false, loaded);
}

enum result topology_load_whole(struct topology **loaded) {
    setenv("HWLOC_HIDE_ERRORS", "2", 0);
    return load(NULL, true, loaded);
}

void topology_free(struct topology *topology) {
    if (!topology)
        return;
    hwloc_topology_destroy(topology->hwloc);
    free(topology);
}

/* Virtual machines may show processors without cores: each then stands for a core. */
static hwloc_obj_type_t core_type(const struct topology *topology) {
    return hwloc_get_nbobjs_by_type(topology->hwloc, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
}

int32_t topology_cores(const struct topology *topology) {
    return hwloc_get_nbobjs_by_type(topology->hwloc, core_type(topology));
}

int32_t topology_accelerators(const struct topology *topology) {
    return topology->accelerators;
}

static hwloc_obj_t core_at(const struct topology *topology, int32_t index) {
    return hwloc_get_obj_by_type(topology->hwloc, core_type(topology), (unsigned)index);
}

void topology_describe(const struct topology *topology, struct buffer *out) {
    hwloc_topology_t hwloc = topology->hwloc;
    int32_t packages = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PACKAGE);
    int32_t numa_nodes = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE);
    int32_t processors = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PU);
    int32_t cores = topology_cores(topology);
    buffer_append_text(out, "machine: ");
    if (packages > 0)
        buffer_printf(out, "%d package%s, ", packages, packages == 1 ? "" : "s");
    buffer_printf(out, "%d core%s, %d hardware thread%s, %d NUMA node%s", cores, cores == 1 ? "" : "s",
        processors, processors == 1 ? "" : "s", numa_nodes, numa_nodes == 1 ? "" : "s");
    uint64_t memory = hwloc_get_root_obj(hwloc)->total_memory;
    if (memory)
        buffer_printf(out, ", %.1f GiB of memory", (double)memory / (1 << 30));
    buffer_append_text(out, "\naccelerators:");
    for (int32_t i = 0; i < topology->accelerators; i++)
        buffer_printf(
            out, " %s", topology->accelerator[i]->name ? topology->accelerator[i]->name : "unnamed");
    buffer_append_text(out, topology->accelerators ? "\n" : " none\n");
}

/* ---- where accelerators are ---- */

static hwloc_obj_t processors_beside(const struct topology *topology, hwloc_obj_t device) {
    return hwloc_get_non_io_ancestor_obj(topology->hwloc, device);
}

/* Set from the words of ours, or NULL when out of memory. Freed by the caller. */
static hwloc_bitmap_t bitmap_of(const struct processor_set *processors) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (unsigned p = 0; set && p < 64 * PROCESSOR_WORDS; p++)
        if (processors->words[p / 64] >> p % 64 & 1)
            hwloc_bitmap_set(set, p);
    return set;
}

/* True when one object of this type holds processors of both. */
static bool share_object(const struct topology *topology, hwloc_obj_type_t type, hwloc_const_cpuset_t left,
    hwloc_const_cpuset_t right) {
    int32_t count = hwloc_get_nbobjs_by_type(topology->hwloc, type);
    for (int32_t i = 0; i < count; i++) {
        hwloc_obj_t object = hwloc_get_obj_by_type(topology->hwloc, type, (unsigned)i);
        if (hwloc_bitmap_intersects(object->cpuset, left) && hwloc_bitmap_intersects(object->cpuset, right))
            return true;
    }
    return false;
}

/* 0 the same NUMA node, 1 the same package, 2 else. */
static int32_t steps_between(
    const struct topology *topology, hwloc_const_cpuset_t left, hwloc_const_cpuset_t right) {
    if (share_object(topology, HWLOC_OBJ_NUMANODE, left, right))
        return 0;
    return share_object(topology, HWLOC_OBJ_PACKAGE, left, right) ? 1 : 2;
}

int32_t topology_steps(
    const struct topology *topology, const struct processor_set *processors, int32_t accelerator) {
    hwloc_obj_t beside = processors_beside(topology, topology->accelerator[accelerator]);
    hwloc_bitmap_t set = bitmap_of(processors);
    if (!set || hwloc_bitmap_iszero(set)) {
        hwloc_bitmap_free(set);
        return 0;
    }
    int32_t steps =
        hwloc_bitmap_intersects(set, beside->cpuset) ? 0 : 1 + steps_between(topology, set, beside->cpuset);
    hwloc_bitmap_free(set);
    return steps;
}

/* The bridge from the processors to the bus that a device is on, or the device's own when there is none. */
static hwloc_obj_t root_port(hwloc_obj_t device) {
    hwloc_obj_t top = device_of(device);
    while (
        top->parent && (top->parent->type == HWLOC_OBJ_BRIDGE || top->parent->type == HWLOC_OBJ_PCI_DEVICE))
        top = top->parent;
    return top;
}

static int32_t steps_to_network(const struct topology *topology, hwloc_obj_t device, hwloc_obj_t network) {
    hwloc_obj_t own = device_of(device), other = device_of(network);
    if (own->parent == other->parent && own->parent && own->parent->type == HWLOC_OBJ_BRIDGE)
        return 0;
    if (root_port(own) == root_port(other))
        return 1;
    return 2 + steps_between(topology, processors_beside(topology, own)->cpuset,
                   processors_beside(topology, other)->cpuset);
}

/* Adapters that NCCL may use before plain network devices, which often are the same card's. */
static void find_network(const struct topology *topology, hwloc_obj_t own, struct topology_device *device) {
    static const hwloc_obj_osdev_type_t types[] = {HWLOC_OBJ_OSDEV_OPENFABRICS, HWLOC_OBJ_OSDEV_NETWORK};
    for (int32_t t = 0; t < 2 && !*device->network; t++) {
        hwloc_obj_t object = NULL;
        while ((object = hwloc_get_next_osdev(topology->hwloc, object))) {
            if (object->attr->osdev.type != types[t] || !object->name)
                continue;
            int32_t steps = steps_to_network(topology, own, object);
            if (*device->network && steps >= device->network_steps)
                continue;
            snprintf(device->network, sizeof device->network, "%s", object->name);
            device->network_steps = steps;
        }
    }
}

static void print_address(hwloc_obj_t object, char *text) {
    hwloc_obj_t bus = device_of(object);
    *text = '\0';
    if (bus->type != HWLOC_OBJ_PCI_DEVICE)
        return;
    const struct hwloc_pcidev_attr_s *pci = &bus->attr->pcidev;
    snprintf(text, DEVICE_ADDRESS_BYTES, "%04x:%02x:%02x.%01x", pci->domain & 0xffff, pci->bus, pci->dev,
        pci->func & 0xf);
}

int32_t topology_device_at(const struct topology *topology, const char *address) {
    for (int32_t i = 0; i < topology->accelerators; i++) {
        char own[DEVICE_ADDRESS_BYTES];
        print_address(topology->accelerator[i], own);
        if (*own && strcmp(own, address) == 0)
            return i;
    }
    return -1;
}

/* ---- places ---- */

/* Cores [*first, *first + *count) below a set of processors: they are neighbours in hwloc's order. */
static void cores_inside(
    const struct topology *topology, hwloc_const_cpuset_t set, int32_t *first, int32_t *count) {
    *first = *count = 0;
    for (int32_t i = 0; i < topology_cores(topology); i++) {
        if (!hwloc_bitmap_isincluded(core_at(topology, i)->cpuset, set))
            continue;
        if (!*count)
            *first = i;
        ++*count;
    }
}

/* Share `index` of `shares` of the cores [first, first + count). */
static void share_cores(
    int32_t first, int32_t count, int32_t index, int32_t shares, struct rank_place *place) {
    if (shares <= count) {
        struct shard shard = shard_of(count, shares, index);
        place->first_core = first + (int32_t)shard.first;
        place->cores = (int32_t)shard.count;
        place->shared = false;
        return;
    }
    int32_t core = shard_owner(shares, count, index);
    place->first_core = first + core;
    place->cores = 1;
    place->shared = shard_of(shares, count, core).count > 1;
}

/* Next to accelerator `index`; accelerators of one locality share its cores in order. */
static void place_by_accelerator(const struct topology *topology, int32_t index, struct rank_place *place) {
    hwloc_obj_t own = processors_beside(topology, topology->accelerator[index]);
    int32_t before = 0, sharers = 0, first, count;
    for (int32_t i = 0; i < topology->accelerators; i++) {
        hwloc_obj_t other = processors_beside(topology, topology->accelerator[i]);
        if (!hwloc_bitmap_isequal(other->cpuset, own->cpuset))
            continue;
        before += i < index;
        sharers++;
    }
    cores_inside(topology, own->cpuset, &first, &count);
    if (!count) { /* smaller than a core, or without processors: any share will do */
        before = index;
        sharers = topology->accelerators;
        count = topology_cores(topology);
    }
    share_cores(first, count, before, sharers, place);
    place->accelerator = index;
    const char *name = topology->accelerator[index]->name;
    snprintf(place->accelerator_name, sizeof place->accelerator_name, "%s", name ? name : "unnamed");
}

/* The NUMA node that all these processors belong to, or -1. */
static int32_t numa_node_of(const struct topology *topology, hwloc_const_cpuset_t set) {
    int32_t nodes = hwloc_get_nbobjs_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE);
    for (int32_t i = 0; i < nodes; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, (unsigned)i);
        if (hwloc_bitmap_isincluded(set, node->cpuset))
            return i;
    }
    return -1;
}

void topology_device(const struct topology *topology, int32_t index, struct topology_device *device) {
    hwloc_obj_t own = topology->accelerator[index];
    *device = (struct topology_device){
        .numa_node = numa_node_of(topology, processors_beside(topology, own)->cpuset)};
    snprintf(device->name, sizeof device->name, "%s", own->name ? own->name : "unnamed");
    print_address(own, device->address);
    find_network(topology, own, device);
}

/* The processors of a place, or NULL when out of memory. Freed by the caller. */
static hwloc_bitmap_t place_set(const struct topology *topology, const struct rank_place *place) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (int32_t i = 0; set && i < place->cores; i++)
        hwloc_bitmap_or(set, set, core_at(topology, place->first_core + i)->cpuset);
    return set;
}

enum result topology_place(
    const struct topology *topology, int32_t node_rank, int32_t node_ranks, struct rank_place *place) {
    if (node_rank < 0 || node_rank >= node_ranks)
        return fail(ERROR_INTERNAL, "rank %d of a node with %d ranks has no place", node_rank, node_ranks);
    *place = (struct rank_place){.accelerator = -1};
    if (topology->accelerators == node_ranks)
        place_by_accelerator(topology, node_rank, place);
    else
        share_cores(0, topology_cores(topology), node_rank, node_ranks, place);
    hwloc_bitmap_t set = place_set(topology, place);
    if (!set)
        return fail(ERROR_MEMORY, "out of memory for a set of processors");
    place->numa_node = numa_node_of(topology, set);
    int length = hwloc_bitmap_list_snprintf(place->cpuset, sizeof place->cpuset, set);
    if (length >= (int)sizeof place->cpuset)
        memcpy(place->cpuset + sizeof place->cpuset - 4, "...", 4);
    hwloc_bitmap_free(set);
    return OK;
}

void topology_processors(
    const struct topology *topology, const struct rank_place *place, struct processor_set *processors) {
    hwloc_bitmap_t set = place_set(topology, place);
    *processors = (struct processor_set){0};
    for (int p = set ? hwloc_bitmap_first(set) : -1; p >= 0 && p < 64 * PROCESSOR_WORDS;
         p = hwloc_bitmap_next(set, p))
        processors->words[p / 64] |= (uint64_t)1 << p % 64;
    hwloc_bitmap_free(set);
}

enum result topology_bind(const struct topology *topology, const struct rank_place *place) {
    if (!topology->live)
        return fail(ERROR_INTERNAL, "a process cannot be bound to a machine that is only described");
    hwloc_bitmap_t set = place_set(topology, place);
    if (!set)
        return fail(ERROR_MEMORY, "out of memory for a set of processors");
    if (hwloc_set_cpubind(topology->hwloc, set, HWLOC_CPUBIND_PROCESS) != 0)
        log_warning("this rank cannot be bound to processors %s: %s", place->cpuset, strerror(errno));
    /* Not strict: a full node spills over to others. */
    if (place->numa_node >= 0 && hwloc_get_nbobjs_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE) > 1) {
        hwloc_obj_t node =
            hwloc_get_obj_by_type(topology->hwloc, HWLOC_OBJ_NUMANODE, (unsigned)place->numa_node);
        if (hwloc_set_membind(topology->hwloc, node->nodeset, HWLOC_MEMBIND_BIND,
                HWLOC_MEMBIND_PROCESS | HWLOC_MEMBIND_BYNODESET) != 0 &&
            hwloc_set_membind(topology->hwloc, node->nodeset, HWLOC_MEMBIND_BIND,
                HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) != 0)
            log_warning(
                "this rank's memory cannot be bound to NUMA node %d: %s", place->numa_node, strerror(errno));
    }
    hwloc_bitmap_free(set);
    return OK;
}

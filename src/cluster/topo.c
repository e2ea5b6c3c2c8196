#include "cluster/topo.h"

#include "base/log.h"
#include "base/options.h"
#include "cluster/device/address.h"
#include "cluster/devices.h"
#include "cluster/exchange.h" /* shard_of */
#include "cluster/layout.h"
#include "cluster/ranks.h"
#include "cluster/topology.h"

#include <stdio.h>  /* fwrite, snprintf */
#include <stdlib.h> /* calloc, free, getenv */
#include <string.h> /* strcmp, strlen */

enum { MOST_RANKS = 1 << 16, DEFAULT_EXPERTS = 384 };

/* One line of the table. */
struct topo_row {
    char host[64];
    int32_t supernode, supernode_rank;
    int32_t threads;
    struct rank_place place;
    char address[DEVICE_ADDRESS_BYTES]; /* of its device, "" when not known */
    char network[DEVICE_NAME_BYTES];    /* nearest to the device */
};

/* ---- the table ---- */

enum { COLUMNS = 12, CELL_BYTES = 264, ADDRESS = 7, NETWORK = 8, ENGRAM = 11 };

struct table_line {
    char cells[COLUMNS][CELL_BYTES];
};

static void print_range(char *cell, int64_t first, int64_t count) {
    if (count == 0)
        snprintf(cell, CELL_BYTES, "none");
    else if (count == 1)
        snprintf(cell, CELL_BYTES, "%lld", (long long)first);
    else
        snprintf(cell, CELL_BYTES, "%lld-%lld", (long long)first, (long long)(first + count - 1));
}

static void fill_line(const struct topo_row *row, int32_t rank, int32_t supernode_size,
    const struct topo_options *o, struct table_line *line) {
    const struct rank_place *place = &row->place;
    struct shard experts = shard_of(o->experts, supernode_size, row->supernode_rank);
    struct shard engram = shard_of(o->engram_rows, supernode_size, row->supernode_rank);
    snprintf(line->cells[0], CELL_BYTES, "%d", rank);
    snprintf(line->cells[1], CELL_BYTES, "%s", row->host);
    snprintf(line->cells[2], CELL_BYTES, "%d", row->supernode);
    snprintf(line->cells[3], CELL_BYTES, "%d%s", place->cores, place->shared ? " shared" : "");
    snprintf(line->cells[4], CELL_BYTES, "%s", place->cpuset);
    snprintf(line->cells[5], CELL_BYTES, place->numa_node < 0 ? "-" : "%d", place->numa_node);
    snprintf(line->cells[6], CELL_BYTES, "%s", place->accelerator < 0 ? "-" : place->accelerator_name);
    snprintf(line->cells[ADDRESS], CELL_BYTES, "%s", *row->address ? row->address : "-");
    snprintf(line->cells[NETWORK], CELL_BYTES, "%s", *row->network ? row->network : "-");
    snprintf(line->cells[9], CELL_BYTES, "%d", row->threads);
    print_range(line->cells[10], experts.first, experts.count);
    print_range(line->cells[ENGRAM], engram.first, engram.count);
}

/* Columns of width 0 are left out. */
static void print_line(const struct table_line *line, const size_t *widths, struct buffer *out) {
    int32_t last = COLUMNS - 1;
    while (!widths[last])
        last--;
    for (int32_t c = 0; c <= last; c++)
        if (widths[c])
            buffer_printf(out, "%s%-*s", c ? "  " : "", c == last ? 0 : (int)widths[c], line->cells[c]);
    buffer_append_text(out, "\n");
}

static enum result print_table(const struct topo_row *rows, int32_t count, int32_t supernode_size,
    const struct topo_options *o, struct buffer *out) {
    static const struct table_line titles = {{"rank", "host", "supernode", "cores", "processors", "NUMA node",
        "accelerator", "PCI address", "network", "threads", "experts", "Engram rows"}};
    struct table_line *lines = calloc((size_t)count, sizeof *lines);
    bool shown[COLUMNS];
    if (!lines)
        return fail(ERROR_MEMORY, "out of memory for a table of %d ranks", count);
    for (int32_t c = 0; c < COLUMNS; c++)
        shown[c] = c == ENGRAM ? o->engram_rows > 0 : c != ADDRESS && c != NETWORK;
    for (int32_t r = 0; r < count; r++) {
        shown[ADDRESS] |= *rows[r].address != '\0';
        shown[NETWORK] |= *rows[r].network != '\0';
    }
    size_t widths[COLUMNS];
    for (int32_t c = 0; c < COLUMNS; c++)
        widths[c] = shown[c] ? strlen(titles.cells[c]) : 0;
    for (int32_t r = 0; r < count; r++) {
        fill_line(&rows[r], r, supernode_size, o, &lines[r]);
        for (int32_t c = 0; c < COLUMNS; c++)
            if (shown[c] && strlen(lines[r].cells[c]) > widths[c])
                widths[c] = strlen(lines[r].cells[c]);
    }
    print_line(&titles, widths, out);
    for (int32_t r = 0; r < count; r++)
        print_line(&lines[r], widths, out);
    free(lines);
    return OK;
}

static void print_shards(const char *name, int64_t total, int32_t supernode_size, struct buffer *out) {
    int64_t most = shard_of(total, supernode_size, 0).count;
    int64_t least = shard_of(total, supernode_size, supernode_size - 1).count;
    buffer_printf(out, "%s: %lld, in each supernode", name, (long long)total);
    if (most == least)
        buffer_printf(out, " %lld a rank\n", (long long)most);
    else
        buffer_printf(out, " %lld or %lld a rank\n", (long long)least, (long long)most);
}

static enum result print_run(const struct topo_row *rows, int32_t count, int32_t nodes, int32_t supernodes,
    const struct topo_options *o, struct buffer *out) {
    buffer_printf(out, "run: %d rank%s on %d node%s, %d supernode%s of %d\n", count, count == 1 ? "" : "s",
        nodes, nodes == 1 ? "" : "s", supernodes, supernodes == 1 ? "" : "s", count / supernodes);
    print_shards("routed experts of a layer", o->experts, count / supernodes, out);
    if (o->engram_rows)
        print_shards("Engram rows", o->engram_rows, count / supernodes, out);
    buffer_append_text(out, "\n");
    return print_table(rows, count, count / supernodes, o, out);
}

/* ---- a run that need not exist ---- */

/* Notes which accelerator a rank has. */
static void take_accelerator(const struct topology *topology, int32_t index, struct topo_row *row) {
    struct topology_device device;
    if (index < 0)
        return;
    topology_device(topology, index, &device);
    row->place.accelerator = index;
    memcpy(row->place.accelerator_name, device.name, sizeof row->place.accelerator_name);
    memcpy(row->address, device.address, sizeof row->address);
    memcpy(row->network, device.network, sizeof row->network);
}

/* Gives the ranks of a node, which all see all devices, one each; none when there are too few. */
static enum result assign_accelerators(
    const struct topology *topology, int32_t first_rank, int32_t count, struct topo_row *rows) {
    int32_t chosen[MOST_DEVICES], accelerators = topology_accelerators(topology);
    struct device_view view = {.count = accelerators};
    if (count > accelerators || accelerators > MOST_DEVICES)
        return OK;
    for (int32_t i = 0; i < accelerators; i++) {
        struct topology_device device;
        topology_device(topology, i, &device);
        if (!*device.address) { /* no bus in sight: in order */
            for (int32_t r = 0; r < count; r++)
                take_accelerator(topology, rows[r].place.accelerator, &rows[r]);
            return OK;
        }
        memcpy(view.addresses[i], device.address, DEVICE_ADDRESS_BYTES);
    }
    struct device_view *views = calloc((size_t)count, sizeof *views);
    if (!views)
        return fail(ERROR_MEMORY, "out of memory for a choice of devices");
    for (int32_t r = 0; r < count; r++) {
        views[r] = view;
        views[r].rank = first_rank + r;
        topology_processors(topology, &rows[r].place, &views[r].processors);
    }
    enum result status = devices_assign(topology, rows->host, views, count, chosen);
    for (int32_t r = 0; status == OK && r < count; r++)
        take_accelerator(topology, chosen[r], &rows[r]);
    free(views);
    return status;
}

static enum result place_rows(
    const struct topology *topology, const struct layout *layout, struct topo_row *rows) {
    for (int32_t r = 0; r < layout->count; r++) {
        const struct layout_rank *rank = &layout->ranks[r];
        snprintf(rows[r].host, sizeof rows[r].host, "node-%d", rank->node);
        rows[r].supernode = rank->supernode;
        rows[r].supernode_rank = rank->supernode_rank;
        TRY(topology_place(topology, rank->node_rank, rank->node_count, &rows[r].place));
        rows[r].threads = rows[r].place.cores;
    }
    /* Such runs fill one node after the other. */
    for (int32_t r = 0; r < layout->count; r += layout->ranks[r].node_count)
        TRY(assign_accelerators(topology, r, layout->ranks[r].node_count, &rows[r]));
    return OK;
}

/* Fills in what the options left open. */
static enum result choose_ranks(
    const struct topology *topology, const struct topo_options *o, int32_t *ranks, int32_t *ranks_per_node) {
    int32_t accelerators = topology_accelerators(topology);
    *ranks_per_node = o->ranks_per_node ? o->ranks_per_node
                      : accelerators    ? accelerators
                      : o->ranks        ? o->ranks
                                        : 1;
    *ranks = o->ranks ? o->ranks : *ranks_per_node;
    if (*ranks < 1 || *ranks > MOST_RANKS || *ranks_per_node < 1)
        return fail(ERROR_USAGE,
            "--ranks %d with --ranks-per-node %d: give 1 to %d ranks, and at least 1 a node", *ranks,
            *ranks_per_node, MOST_RANKS);
    return OK;
}

enum result topo_print(const struct topo_options *options, struct buffer *out) {
    enum result status = OK;
    struct topology *topology = NULL;
    struct layout layout = {0};
    struct topo_row *rows = NULL;
    int32_t *nodes = NULL, ranks, ranks_per_node;
    TRY_GOTO(status, topology_load(options->topology, &topology), done);
    TRY_GOTO(status, choose_ranks(topology, options, &ranks, &ranks_per_node), done);
    nodes = calloc((size_t)ranks, sizeof *nodes);
    rows = calloc((size_t)ranks, sizeof *rows);
    if (!nodes || !rows) {
        status = fail(ERROR_MEMORY, "out of memory for a layout of %d ranks", ranks);
        goto done;
    }
    layout_fill_nodes(nodes, ranks, ranks_per_node);
    TRY_GOTO(status, layout_make(nodes, ranks, options->supernode, &layout), done);
    TRY_GOTO(status, place_rows(topology, &layout, rows), done);
    topology_describe(topology, out);
    TRY_GOTO(status, print_run(rows, ranks, layout.nodes, layout.supernodes, options, out), done);
done:
    topology_free(topology);
    layout_free(&layout);
    free(nodes);
    free(rows);
    return status;
}

/* ---- the run that this process is part of ---- */

/* Collective over the run: the device that each rank would take, where the driver shows any. */
static enum result choose_device(struct ranks *ranks, struct topo_row *own) {
    char seen[1][DEVICE_ADDRESS_BYTES];
    int64_t devices = device_addresses(seen, 1);
    struct device_choice choice;
    struct topology *topology;
    TRY(group_max(ranks->world, "devices of the ranks", &devices, 1));
    if (!devices)
        return OK;
    TRY(devices_choose(ranks, &choice));
    TRY(topology_load_whole(&topology));
    take_accelerator(topology, ranks->place.accelerator, own);
    own->place = ranks->place;
    memcpy(own->address, choice.address, sizeof own->address);
    topology_free(topology);
    return OK;
}

/* Collective over the run: every rank's line on all ranks. */
static enum result gather_rows(struct ranks *ranks, struct topo_row *rows) {
    struct topo_row own = {.supernode = ranks->supernode,
        .supernode_rank = group_rank(ranks->supernode_group),
        .threads = ranks->threads,
        .place = ranks->place};
    TRY(choose_device(ranks, &own));
    snprintf(own.host, sizeof own.host, "%.63s", ranks->host);
    return group_all_gather(ranks->world, "layout of the ranks", &own, sizeof own, rows);
}

static enum result print_own_run(struct ranks *ranks, const struct topo_options *o, struct buffer *out) {
    struct topology *topology = NULL;
    struct topo_row *rows = calloc((size_t)ranks->count, sizeof *rows);
    enum result status =
        rows ? OK : fail(ERROR_MEMORY, "out of memory for a table of %d ranks", ranks->count);
    TRY_GOTO(status, ranks_agree(ranks->world, status), done);
    TRY_GOTO(status, gather_rows(ranks, rows), done);
    if (ranks->rank == 0) {
        TRY_GOTO(status, topology_load(NULL, &topology), done);
        buffer_append_text(out, "rank 0's part of its ");
        topology_describe(topology, out);
        TRY_GOTO(status, print_run(rows, ranks->count, ranks->nodes, ranks->supernodes, o, out), done);
        buffer_printf(out, "\nranks are %s\n",
            ranks->launcher_bound ? "bound by the launcher"
            : ranks->bound        ? "bound by nocturne"
                                  : "not bound");
    }
done:
    topology_free(topology);
    free(rows);
    return status;
}

static enum result show_own_run(const struct topo_options *o, struct buffer *out) {
    struct ranks ranks;
    enum result status = ranks_start(&(struct rank_options){.supernode = o->supernode, .bind = true}, &ranks);
    if (status == OK)
        status = ranks_agree(ranks.world, print_own_run(&ranks, o, out));
    if (!ranks_share(&ranks, status))
        log_error("%s", failure_message()); /* the caller does not come to it */
    ranks_stop(&ranks, status);
    return status;
}

/* Of several processes that a launcher started without need, one prints. */
static bool is_first_process(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (rank)
            return strcmp(rank, "0") == 0;
    }
    return true;
}

enum result command_topo(int argc, char **argv) {
    const char *topology = NULL;
    int64_t ranks = 0, ranks_per_node = 0, supernode = 0, experts = DEFAULT_EXPERTS, engram_rows = 0;
    const struct command_usage usage = {.name = "topo",
        .summary = "Prints the machine, the place of each rank on it, and the experts each rank holds.",
        .notes = "Under mpirun or srun, without --topology and --ranks, it prints the run as it is; else it "
                 "computes the "
                 "layout of\na run that need not exist, on nodes like this machine or the one given."};
    const struct option options[] = {{.name = "topology",
                                         .kind = OPTION_TEXT,
                                         .value = &topology,
                                         .placeholder = "MACHINE",
                                         .help = "what each node is: an XML file made by lstopo, or for "
                                                 "example 'package:2 numa:4 core:8 pu:1'"},
        {.name = "ranks",
            .kind = OPTION_COUNT,
            .value = &ranks,
            .placeholder = "N",
            .least = 1,
            .most = MOST_RANKS,
            .help = "ranks of the run (default: one node's)"},
        {.name = "ranks-per-node",
            .kind = OPTION_COUNT,
            .value = &ranks_per_node,
            .placeholder = "N",
            .least = 1,
            .most = MOST_RANKS,
            .help = "ranks of a node (default: one for each accelerator; without any, all ranks)"},
        {.name = "supernode",
            .kind = OPTION_COUNT,
            .value = &supernode,
            .placeholder = "N",
            .most = MOST_RANKS,
            .help = "ranks of a supernode (default: all)"},
        {.name = "experts",
            .kind = OPTION_COUNT,
            .value = &experts,
            .placeholder = "N",
            .least = 1,
            .most = 1 << 20,
            .help = "routed experts of a layer (default: 384)"},
        {.name = "engram-rows",
            .kind = OPTION_COUNT,
            .value = &engram_rows,
            .placeholder = "N",
            .help = "rows of the Engram tables, to show their shards too (default: 0, not shown)"},
        {0}};
    bool help_shown;
    TRY(options_parse(&usage, options, argc, argv, NULL, &help_shown));
    if (help_shown)
        return OK;
    struct topo_options chosen = {.topology = topology,
        .ranks = (int32_t)ranks,
        .ranks_per_node = (int32_t)ranks_per_node,
        .supernode = (int32_t)supernode,
        .experts = (int32_t)experts,
        .engram_rows = engram_rows};
    struct buffer text = {0};
    enum result status = OK;
    if (!topology && !ranks && !ranks_per_node)
        status = show_own_run(&chosen, &text);
    else if (is_first_process())
        status = topo_print(&chosen, &text);
    if (status == OK && text.bytes &&
        (fwrite(text.data, 1, text.bytes, stdout) != text.bytes || fflush(stdout) != 0))
        status = fail_errno(ERROR_IO, "cannot write to standard output");
    buffer_free(&text);
    return status;
}

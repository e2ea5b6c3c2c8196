#include "cluster/devices.h"

#include "cluster/collectives.h"
#include "cluster/device/address.h"
#include "cluster/ranks.h"

#include <sched.h>  /* sched_getaffinity */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free, qsort */
#include <string.h> /* strcmp */

/* ---- the least sum ---- */

/* A cost that no sum of others reaches: a device that a rank does not see. */
static const int64_t NEVER = (int64_t)1 << 50;

/* One step of the Hungarian method: the row `row` gets a column, others may move. Rows and columns are numbered from 1, row_of[0]
 * is the row that looks for one; `least` and `before` [columns + 1] are scratch. */
struct assignment {
    int32_t rows, columns;
    const int64_t *cost; /* [rows, columns] */
    int64_t *row_price, *column_price, *least;
    int32_t *row_of, *before;
    bool *done;
};

static int64_t reduced_cost(const struct assignment *a, int32_t row, int32_t column) {
    return a->cost[(int64_t)(row - 1) * a->columns + column - 1] - a->row_price[row] -
           a->column_price[column];
}

/* Follows the cheapest way from column `at` on; returns the next column. */
static int32_t cheapest_column(struct assignment *a, int32_t at) {
    int32_t row = a->row_of[at], next = 0;
    int64_t step = INT64_MAX;
    a->done[at] = true;
    for (int32_t c = 1; c <= a->columns; c++) {
        if (a->done[c])
            continue;
        int64_t cost = reduced_cost(a, row, c);
        if (cost < a->least[c]) {
            a->least[c] = cost;
            a->before[c] = at;
        }
        if (a->least[c] < step) {
            step = a->least[c];
            next = c;
        }
    }
    for (int32_t c = 0; c <= a->columns; c++) {
        if (a->done[c]) {
            a->row_price[a->row_of[c]] += step;
            a->column_price[c] -= step;
        } else {
            a->least[c] -= step;
        }
    }
    return next;
}

static void add_row(struct assignment *a, int32_t row) {
    int32_t at = 0;
    a->row_of[0] = row;
    for (int32_t c = 0; c <= a->columns; c++) {
        a->least[c] = INT64_MAX / 2;
        a->done[c] = false;
    }
    do
        at = cheapest_column(a, at);
    while (a->row_of[at]);
    while (at) {
        a->row_of[at] = a->row_of[a->before[at]];
        at = a->before[at];
    }
}

/* column_of [rows]: the assignment of least cost; rows <= columns. */
static enum result assign(int32_t rows, int32_t columns, const int64_t *cost, int32_t *column_of) {
    struct assignment a = {.rows = rows, .columns = columns, .cost = cost};
    size_t width = (size_t)columns + 1;
    int64_t *numbers = calloc((size_t)rows + 1 + 2 * width, sizeof *numbers);
    a.row_of = calloc(2 * width, sizeof *a.row_of);
    a.done = calloc(width, sizeof *a.done);
    enum result status =
        numbers && a.row_of && a.done ? OK : fail(ERROR_MEMORY, "out of memory for a choice of devices");
    if (status == OK) {
        a.row_price = numbers;
        a.column_price = numbers + rows + 1;
        a.least = a.column_price + width;
        a.before = a.row_of + width;
        for (int32_t r = 1; r <= rows; r++)
            add_row(&a, r);
        for (int32_t c = 1; c <= columns; c++)
            if (a.row_of[c])
                column_of[a.row_of[c] - 1] = c - 1;
    }
    free(numbers);
    free(a.row_of);
    free(a.done);
    return status;
}

/* ---- a node's devices ---- */

struct node_devices {
    int32_t count;
    char (*addresses)[DEVICE_ADDRESS_BYTES]; /* in order */
};

static int by_address(const void *left, const void *right) {
    return strcmp(left, right);
}

/* All devices that some rank sees. */
static enum result collect(const struct device_view *views, int32_t count, struct node_devices *devices) {
    int32_t seen = 0;
    devices->count = 0;
    for (int32_t r = 0; r < count; r++)
        seen += views[r].count;
    devices->addresses = calloc((size_t)seen + 1, sizeof *devices->addresses);
    if (!devices->addresses)
        return fail(ERROR_MEMORY, "out of memory for a choice of devices");
    seen = 0;
    for (int32_t r = 0; r < count; r++)
        for (int32_t i = 0; i < views[r].count; i++)
            memcpy(devices->addresses[seen++], views[r].addresses[i], DEVICE_ADDRESS_BYTES);
    qsort(devices->addresses, (size_t)seen, DEVICE_ADDRESS_BYTES, by_address);
    for (int32_t i = 0; i < seen; i++)
        if (i == 0 || strcmp(devices->addresses[i], devices->addresses[i - 1]) != 0)
            memmove(devices->addresses[devices->count++], devices->addresses[i], DEVICE_ADDRESS_BYTES);
    return OK;
}

/* Number of a device in a rank's view, or -1. */
static int32_t number_in(const struct device_view *view, const char *address) {
    for (int32_t i = 0; i < view->count; i++)
        if (strcmp(view->addresses[i], address) == 0)
            return i;
    return -1;
}

/* Processors count first, then the network; what is left goes to the device of the rank's own number. */
static int64_t cost_of(const struct topology *topology, const struct device_view *view, int32_t rank,
    const char *address, int32_t device) {
    enum { PROCESSORS = 1 << 26, NETWORK = 1 << 18 };
    if (number_in(view, address) < 0)
        return NEVER;
    int64_t apart = device - rank, cost = apart * apart;
    int32_t accelerator = topology_device_at(topology, address);
    if (accelerator < 0)
        return cost;
    struct topology_device place;
    topology_device(topology, accelerator, &place);
    return cost + PROCESSORS * (int64_t)topology_steps(topology, &view->processors, accelerator) +
           NETWORK * (int64_t)place.network_steps;
}

static const char HOW_TO_SHARE[] =
    "start as many ranks on a node as it has devices, or fewer "
    "(--ntasks-per-node), and let the launcher give each its own "
    "(--gpus-per-task=1) or all of them to all; or compute on cores with --backend cpu";

static enum result no_device(
    const char *host, const struct device_view *views, int32_t count, const struct node_devices *devices) {
    for (int32_t r = 0; r < count; r++)
        if (!views[r].count)
            return fail(ERROR_USAGE,
                "rank %d on %s sees no device: %s; CUDA_VISIBLE_DEVICES must not be empty there",
                views[r].rank, host, HOW_TO_SHARE);
    /* Two ranks that see one device only, the same. */
    for (int32_t r = 0; r < count; r++)
        for (int32_t other = 0; other < r; other++)
            if (views[r].count == 1 && views[other].count == 1 &&
                strcmp(views[r].addresses[0], views[other].addresses[0]) == 0)
                return fail(ERROR_USAGE, "rank %d and rank %d on %s have one device, %s, for both: %s",
                    views[other].rank, views[r].rank, host, views[r].addresses[0], HOW_TO_SHARE);
    return fail(ERROR_USAGE, "%d ranks on %s, from rank %d to rank %d, have %d devices between them: %s",
        count, host, views[0].rank, views[count - 1].rank, devices->count, HOW_TO_SHARE);
}

static enum result assign_devices(const struct topology *topology, const char *host,
    const struct device_view *views, int32_t count, const struct node_devices *devices, int64_t *cost,
    int32_t *chosen) {
    if (devices->count < count)
        return no_device(host, views, count, devices);
    for (int32_t r = 0; r < count; r++)
        for (int32_t d = 0; d < devices->count; d++)
            cost[(int64_t)r * devices->count + d] = cost_of(topology, &views[r], r, devices->addresses[d], d);
    TRY(assign(count, devices->count, cost, chosen));
    for (int32_t r = 0; r < count; r++) {
        chosen[r] = number_in(&views[r], devices->addresses[chosen[r]]);
        if (chosen[r] < 0)
            return no_device(host, views, count, devices);
    }
    return OK;
}

enum result devices_assign(const struct topology *topology, const char *host, const struct device_view *views,
    int32_t count, int32_t *chosen) {
    struct node_devices devices = {0};
    int64_t *cost = NULL;
    enum result status = collect(views, count, &devices);
    if (status != OK)
        goto done;
    cost = calloc((size_t)(count > 0 ? count : 1), sizeof *cost * ((size_t)devices.count + 1));
    if (!cost)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory for a choice of devices"), done);
    status = assign_devices(topology, host, views, count, &devices, cost, chosen);
done:
    free(cost);
    free(devices.addresses);
    return status;
}

/* ---- the run ---- */

/* What ranks tell each other: first what they see, then what they took. */
struct told_view {
    int32_t node;
    struct device_view view;
};

struct told_choice {
    char host[64];
    char address[DEVICE_ADDRESS_BYTES];
};

static void look(const struct ranks *ranks, struct told_view *own) {
    cpu_set_t set;
    *own = (struct told_view){.node = ranks->node, .view = {.rank = ranks->rank}};
    own->view.count = device_addresses(own->view.addresses, MOST_DEVICES);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return; /* more processors than a set holds: all devices are equally near */
    for (size_t p = 0; p < 64 * PROCESSOR_WORDS && p < CPU_SETSIZE; p++)
        if (CPU_ISSET(p, &set))
            own->view.processors.words[p / 64] |= (uint64_t)1 << p % 64;
}

/* Takes the views of this node's ranks to the front. */
static void keep_own_node(const struct ranks *ranks, const struct told_view *all, struct device_view *views) {
    int32_t count = 0;
    for (int32_t r = 0; r < ranks->count; r++)
        if (all[r].node == ranks->node)
            views[count++] = all[r].view;
}

static enum result choose(struct ranks *ranks, const struct told_view *all, struct device_choice *choice) {
    struct topology *topology = NULL;
    struct device_view *views = calloc((size_t)ranks->node_count, sizeof *views);
    int32_t *chosen = calloc((size_t)ranks->node_count, sizeof *chosen);
    enum result status = views && chosen ? OK : fail(ERROR_MEMORY, "out of memory for a choice of devices");
    if (status != OK)
        goto done;
    keep_own_node(ranks, all, views);
    TRY_GOTO(status, topology_load_whole(&topology), done);
    TRY_GOTO(status, devices_assign(topology, ranks->host, views, ranks->node_count, chosen), done);
    int32_t own = 0;
    while (views[own].rank != ranks->rank)
        own++;
    choice->number = chosen[own];
    memcpy(choice->address, views[own].addresses[chosen[own]], sizeof choice->address);
    ranks->place.accelerator = topology_device_at(topology, choice->address);
    if (ranks->place.accelerator < 0) {
        snprintf(ranks->place.accelerator_name, DEVICE_NAME_BYTES, "CUDA device %d", choice->number);
    } else {
        struct topology_device place;
        topology_device(topology, ranks->place.accelerator, &place);
        memcpy(ranks->place.accelerator_name, place.name, DEVICE_NAME_BYTES);
    }
done:
    topology_free(topology);
    free(views);
    free(chosen);
    return status;
}

/* Nodes may be cut so that MPI takes one for several (containers): hosts and addresses tell. */
static enum result compare_choices(const struct ranks *ranks, const struct told_choice *all) {
    for (int32_t r = 0; r < ranks->count; r++)
        for (int32_t other = 0; *all[r].address && other < r; other++)
            if (strcmp(all[r].address, all[other].address) == 0 && strcmp(all[r].host, all[other].host) == 0)
                return fail(ERROR_USAGE, "rank %d and rank %d on %s took the same device, %s: %s", other, r,
                    all[r].host, all[r].address, HOW_TO_SHARE);
    return OK;
}

static enum result choose_and_compare(struct ranks *ranks, struct device_choice *choice) {
    struct told_view own, *all = calloc((size_t)ranks->count, sizeof *all);
    struct told_choice taken = {0}, *all_taken = calloc((size_t)ranks->count, sizeof *all_taken);
    enum result status = all && all_taken ? OK : fail(ERROR_MEMORY, "out of memory for a choice of devices");
    status = ranks_agree(ranks->world, status);
    if (status != OK || !all || !all_taken)
        goto done;
    look(ranks, &own);
    TRY_GOTO(status, group_all_gather(ranks->world, "devices of the ranks", &own, sizeof own, all), done);
    TRY_GOTO(status, ranks_agree(ranks->world, choose(ranks, all, choice)), done);
    snprintf(taken.host, sizeof taken.host, "%.63s", ranks->host);
    memcpy(taken.address, choice->address, sizeof taken.address);
    TRY_GOTO(status, group_all_gather(ranks->world, "chosen devices", &taken, sizeof taken, all_taken), done);
    status = ranks_agree(ranks->world, compare_choices(ranks, all_taken));
done:
    free(all);
    free(all_taken);
    return status;
}

enum result devices_choose(struct ranks *ranks, struct device_choice *choice) {
    *choice = (struct device_choice){.number = -1};
    return choose_and_compare(ranks, choice);
}

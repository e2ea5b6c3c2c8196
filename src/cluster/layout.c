#include "cluster/layout.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* memset */

void layout_free(struct layout *layout) {
    free(layout->ranks);
    memset(layout, 0, sizeof *layout);
}

void layout_fill_nodes(int32_t *nodes, int32_t count, int32_t ranks_per_node) {
    for (int32_t r = 0; r < count; r++)
        nodes[r] = r / ranks_per_node;
}

/* Numbers the nodes by first appearance and the ranks within each. first and counts: [count] scratch. */
static void number_nodes(const int32_t *nodes, int32_t *names, int32_t *counts, struct layout *layout) {
    for (int32_t r = 0; r < layout->count; r++) {
        int32_t node = 0;
        while (node < layout->nodes && names[node] != nodes[r])
            node++;
        if (node == layout->nodes) {
            names[node] = nodes[r];
            counts[node] = 0;
            layout->nodes++;
        }
        layout->ranks[r].node = node;
        layout->ranks[r].node_rank = counts[node]++;
    }
    for (int32_t r = 0; r < layout->count; r++)
        layout->ranks[r].node_count = counts[layout->ranks[r].node];
}

static enum result cut_supernodes(const int32_t *counts, struct layout *layout) {
    int32_t size = layout->supernode_size, before = 0;
    for (int32_t node = 0; node < layout->nodes; node++) {
        int32_t last = before + counts[node] - 1;
        if (layout->nodes > 1 && before / size != last / size)
            return fail(ERROR_USAGE,
                "a supernode of %d ranks would divide node %d, which has %d ranks, between supernodes %d and "
                "%d: give "
                "--supernode a multiple of the ranks per node",
                size, node, counts[node], before / size, last / size);
        for (int32_t r = 0; r < layout->count; r++) {
            struct layout_rank *rank = &layout->ranks[r];
            if (rank->node != node)
                continue;
            rank->supernode = (before + rank->node_rank) / size;
            rank->supernode_rank = (before + rank->node_rank) % size;
        }
        before += counts[node];
    }
    return OK;
}

enum result layout_make(const int32_t *nodes, int32_t count, int32_t supernode, struct layout *layout) {
    memset(layout, 0, sizeof *layout);
    if (count < 1)
        return fail(ERROR_USAGE, "a run has at least one rank, not %d", count);
    if (supernode < 0)
        return fail(ERROR_USAGE, "--supernode %d: give the ranks of a supernode, or 0 for all", supernode);
    int32_t size = supernode ? supernode : count;
    if (count % size)
        return fail(ERROR_USAGE,
            "--supernode %d: the run has %d ranks, which is no multiple of %d; start %d ranks or choose a "
            "divisor",
            size, count, size, count / size * size + size);
    enum result status = OK;
    int32_t *scratch = calloc((size_t)count * 2, sizeof *scratch);
    layout->ranks = calloc((size_t)count, sizeof *layout->ranks);
    if (!scratch || !layout->ranks) {
        status = fail(ERROR_MEMORY, "out of memory for the layout of %d ranks", count);
        goto done;
    }
    layout->count = count;
    layout->supernode_size = size;
    layout->supernodes = count / size;
    number_nodes(nodes, scratch, scratch + count, layout);
    TRY_GOTO(status, cut_supernodes(scratch + count, layout), done);
done:
    free(scratch);
    if (status != OK)
        layout_free(layout);
    return status;
}

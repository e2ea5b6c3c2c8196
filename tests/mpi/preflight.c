/* What `nocturne check` does between nodes, with each rank taken for a node of its own. Run under mpirun on any number of ranks. */
#include "campaign/check.h"
#include "cluster/links.h"

#include "base/log.h"
#include "cluster/collectives.h"

#include <math.h>   /* fabs */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, mkdtemp */
#include <string.h> /* strstr */
#include <unistd.h> /* rmdir */

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return fail(ERROR_INTERNAL, "%s:%d: %s is false", __FILE__, __LINE__, #condition);               \
    } while (0)

/* Every pair of places meets exactly once, and every place has one opponent a round. */
static enum result test_rounds(void) {
    for (int32_t places = 2; places <= 66; places += 2) {
        char met[66][66] = {{0}};
        for (int32_t round = 0; round < places - 1; round++)
            for (int32_t place = 0; place < places; place++) {
                int32_t other = links_opponent(place, places, round);
                CHECK(other >= 0 && other < places && other != place);
                CHECK(links_opponent(other, places, round) == place);
                CHECK(!met[place][other]);
                met[place][other] = 1;
            }
    }
    return OK;
}

static enum result test_links(const struct ranks *nodes) {
    struct links links;
    TRY(links_measure(nodes, &links));
    int32_t count = nodes->count;
    CHECK(links.count == count * (count - 1) / 2);
    CHECK(count == 1 || !links.within_node);
    for (int32_t i = 0; i < links.count; i++) {
        const struct link *link = &links.pairs[i];
        CHECK(link->from >= 0 && link->from < link->to && link->to < count);
        CHECK(link->latency > 0 && link->latency < 10 && link->bytes_per_second > 1000);
        for (int32_t k = 0; k < i; k++)
            CHECK(links.pairs[k].from != link->from || links.pairs[k].to != link->to);
    }
    links_free(&links);
    return OK;
}

static enum result test_clocks(const struct ranks *nodes) {
    double ahead[64] = {0};
    TRY(clocks_compare(nodes, ahead));
    for (int32_t r = 0; r < nodes->count; r++)
        CHECK(fabs(ahead[r]) < 1);
    return OK;
}

/* A folder that all nodes share passes; one that is another one on the last node is found out by the node before. */
static enum result test_shared_files(const struct ranks *nodes) {
    char folder[64] = "/tmp/nocturne-preflight-XXXXXX", own[64] = "/tmp/nocturne-preflight-XXXXXX";
    CHECK(mkdtemp(own));
    memcpy(folder, own, sizeof folder);
    TRY(group_broadcast(nodes->world, "test: folder", 0, folder, sizeof folder));
    for (int32_t apart = 0; apart < 2; apart++) {
        struct check_files rows = {.space.empty = 1};
        bool last = nodes->node == nodes->nodes - 1;
        TRY(check_campaign_files(nodes, apart && last ? own : folder, 0, &rows));
        const struct check_row *made[] = {&rows.flush, &rows.rename, &rows.locks, &rows.hdf5};
        for (size_t i = 0; i < sizeof made / sizeof *made; i++)
            CHECK(made[i]->verdict == CHECK_PASS && made[i]->found[0]);
        /* The one before the last does not see the last one's file, and the last does not see the first one's. */
        bool blind = apart && nodes->nodes > 1 && (last || nodes->node == nodes->nodes - 2);
        CHECK(rows.visibility.verdict == (blind ? CHECK_FAIL : CHECK_PASS));
        CHECK(!blind || rows.visibility.code == ERROR_IO);
    }
    TRY(group_barrier(nodes->world, "test: end of files"));
    CHECK(rmdir(own) == 0); /* nothing is left */
    return OK;
}

static enum result run_all(const struct ranks *ranks) {
    struct ranks nodes = *ranks;
    nodes.node = ranks->rank;
    nodes.nodes = ranks->count;
    nodes.node_rank = 0;
    nodes.node_count = 1;
    TRY(test_rounds());
    TRY(test_links(&nodes));
    TRY(test_clocks(&nodes));
    return test_shared_files(&nodes);
}

int main(void) {
    struct ranks ranks;
    enum result status = ranks_start(&(struct rank_options){.deadline_seconds = 60}, &ranks);
    if (status == OK && ranks.count > 64)
        status = fail(ERROR_USAGE, "this test is for at most 64 ranks");
    if (status == OK)
        status = ranks_agree(ranks.world, run_all(&ranks));
    if (status != OK)
        log_error("%s", failure_message());
    ranks_stop(&ranks, status);
    return status;
}

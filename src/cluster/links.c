#include "cluster/links.h"

#include "base/clock.h"
#include "cluster/group.h"

#include <math.h>   /* INFINITY */
#include <stdlib.h> /* calloc, qsort */
#include <string.h> /* memset */

enum { PINGS = 64, CLOCK_PINGS = 8, STREAMS = 8, STREAM_BYTES = 4 << 20 };

/* One message to `to` (-1: none) and one from `from` (-1: none), waited for with the group's deadline. */
static enum result exchange(struct group *group, const char *what, const void *data, int32_t to,
    void *received, int32_t from, int64_t bytes) {
    int32_t count = 0;
    if (from >= 0)
        TRY(group_post_receive(group, what, received, bytes, from, &count));
    if (to >= 0)
        TRY(group_post_send(group, what, data, bytes, to, &count));
    return group_wait(group, what, count);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- links ---- */

/* The median of the way there and back, halved. */
static enum result measure_latency(struct group *group, int32_t other, bool leads, double *latency) {
    const char *what = "check: latency between nodes";
    double times[PINGS];
    int64_t out = 1, in = 0;
    for (int i = 0; i < PINGS; i++) {
        double start = cluster_now();
        if (leads)
            TRY(exchange(group, what, &out, other, NULL, -1, sizeof out));
        TRY(exchange(group, what, NULL, -1, &in, other, sizeof in));
        if (!leads)
            TRY(exchange(group, what, &in, other, NULL, -1, sizeof in));
        times[i] = cluster_now() - start;
    }
    qsort(times, PINGS, sizeof *times, compare_doubles);
    *latency = times[PINGS / 2] / 2;
    return OK;
}

static enum result measure_stream(
    struct group *group, int32_t other, bool leads, char *memory, double *bytes_per_second) {
    const char *what = "check: bandwidth between nodes";
    int64_t answer = 0;
    double start = 0;
    for (int i = -1; i < STREAMS; i++) { /* the first is not counted: it sets connections up */
        if (i == 0) {
            TRY(exchange(group, what, &answer, other, &answer, other, sizeof answer));
            start = cluster_now();
        }
        TRY(leads ? exchange(group, what, memory, other, NULL, -1, STREAM_BYTES)
                  : exchange(group, what, NULL, -1, memory, other, STREAM_BYTES));
    }
    if (leads)
        TRY(exchange(group, what, NULL, -1, &answer, other, sizeof answer));
    else
        TRY(exchange(group, what, &answer, other, NULL, -1, sizeof answer));
    double seconds = cluster_now() - start;
    *bytes_per_second = seconds > 0 ? (double)STREAMS * STREAM_BYTES / seconds : INFINITY;
    return OK;
}

static enum result measure_pair(
    struct group *group, int32_t own, int32_t other, char *memory, struct link *link) {
    bool leads = own < other;
    *link = (struct link){.from = leads ? own : other, .to = leads ? other : own};
    TRY(measure_latency(group, other, leads, &link->latency));
    return measure_stream(group, other, leads, memory, &link->bytes_per_second);
}

int32_t links_opponent(int32_t place, int32_t places, int32_t round) {
    int32_t circle = places - 1;
    if (place == circle) {
        /* Meets the one that would meet itself: 2 p = round (mod circle), and circle is odd. */
        return (int32_t)((int64_t)round * ((circle + 1) / 2) % circle);
    }
    int32_t other = ((round - place) % circle + circle) % circle;
    return other == place ? circle : other;
}

/* leaders [nodes]: the first rank of each node. */
static enum result find_leaders(const struct ranks *ranks, int32_t *leaders) {
    int64_t *first = calloc((size_t)ranks->nodes, sizeof *first);
    if (!first)
        return fail(ERROR_MEMORY, "out of memory for a list of %d nodes", ranks->nodes);
    if (ranks->node_rank == 0)
        first[ranks->node] = ranks->rank;
    enum result status = group_max(ranks->world, "check: nodes", first, ranks->nodes);
    for (int32_t i = 0; i < ranks->nodes; i++)
        leaders[i] = (int32_t)first[i];
    free(first);
    return status;
}

/* Rounds between the ranks of the list; own rank's place in it, -1: takes no part. */
static enum result play_rounds(const struct ranks *ranks, const int32_t *list, int32_t count,
    struct link *found, int32_t *found_count, char *memory) {
    int32_t places = count + count % 2, own = -1;
    for (int32_t i = 0; i < count; i++)
        own = list[i] == ranks->rank ? i : own;
    for (int32_t round = 0; round < places - 1; round++) {
        TRY(group_barrier(ranks->world, "check: next pairs of nodes"));
        int32_t other = own < 0 ? -1 : links_opponent(own, places, round);
        if (other < 0 || other >= count)
            continue;
        struct link link;
        TRY(measure_pair(ranks->world, ranks->rank, list[other], memory, &link));
        if (own < other)
            found[(*found_count)++] = link;
    }
    return OK;
}

static enum result gather_links(
    const struct ranks *ranks, const struct link *own, int32_t own_count, struct links *links) {
    int64_t count = own_count;
    int64_t *bytes = calloc((size_t)ranks->count, sizeof *bytes);
    enum result status = ranks_agree(
        ranks->world, bytes ? OK : fail(ERROR_MEMORY, "out of memory for %d ranks", ranks->count));
    if (status == OK && bytes) {
        count *= (int64_t)sizeof *own;
        status = group_all_gather(ranks->world, "check: links", &count, sizeof count, bytes);
    }
    int64_t total = 0;
    for (int32_t r = 0; status == OK && bytes && r < ranks->count; r++)
        total += bytes[r];
    if (status == OK) {
        links->pairs = calloc(1, (size_t)total + 1);
        links->count = (int32_t)(total / (int64_t)sizeof *own);
        status = ranks_agree(ranks->world,
            links->pairs ? OK : fail(ERROR_MEMORY, "out of memory for %lld links", (long long)links->count));
    }
    if (status == OK)
        status = group_all_gather_sizes(ranks->world, "check: links", own, bytes, links->pairs);
    free(bytes);
    return status;
}

enum result links_measure(const struct ranks *ranks, struct links *links) {
    *links = (struct links){.within_node = ranks->nodes == 1};
    if (ranks->count == 1)
        return OK;
    int32_t count = links->within_node ? 2 : ranks->nodes, found_count = 0;
    int32_t *list = calloc((size_t)count, sizeof *list);
    struct link *found = calloc((size_t)count, sizeof *found);
    char *memory = calloc(1, STREAM_BYTES);
    enum result status = ranks_agree(ranks->world,
        list && found && memory ? OK : fail(ERROR_MEMORY, "out of memory to measure links between nodes"));
    if (status == OK && list && links->within_node)
        list[1] = ranks->count - 1;
    else if (status == OK && list)
        status = find_leaders(ranks, list);
    if (status == OK && list && found)
        status = play_rounds(ranks, list, count, found, &found_count, memory);
    if (status == OK)
        status = gather_links(ranks, found, found_count, links);
    free(memory);
    free(found);
    free(list);
    if (status != OK)
        links_free(links);
    return status;
}

void links_free(struct links *links) {
    free(links->pairs);
    *links = (struct links){0};
}

/* ---- clocks ---- */

/* Of several questions the quickest answer counts: it was read nearest to the middle. */
static enum result ask_clock(struct group *group, int32_t other, double *ahead) {
    const char *what = "check: clocks";
    double quickest = INFINITY;
    for (int i = 0; i < CLOCK_PINGS; i++) {
        double question = 0, answer = 0, before = wall_clock();
        TRY(exchange(group, what, &question, other, NULL, -1, sizeof question));
        TRY(exchange(group, what, NULL, -1, &answer, other, sizeof answer));
        double after = wall_clock();
        if (after - before < quickest) {
            quickest = after - before;
            *ahead = answer - (before + after) / 2;
        }
    }
    return OK;
}

static enum result answer_clock(struct group *group) {
    const char *what = "check: clocks";
    for (int i = 0; i < CLOCK_PINGS; i++) {
        double question, answer;
        TRY(exchange(group, what, NULL, -1, &question, 0, sizeof question));
        answer = wall_clock();
        TRY(exchange(group, what, &answer, 0, NULL, -1, sizeof answer));
    }
    return OK;
}

enum result clocks_compare(const struct ranks *ranks, double *ahead) {
    ahead[0] = 0;
    if (ranks->rank > 0)
        return answer_clock(ranks->world);
    for (int32_t r = 1; r < ranks->count; r++)
        TRY(ask_clock(ranks->world, r, &ahead[r]));
    return OK;
}

/* Collectives against what one process computes: each rank knows every rank's data from a seed. Run under mpirun on any
 * number of ranks. */
#include "cluster/collectives.h"

#include "base/log.h"
#include "cluster/group.h"
#include "cluster/ranks.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcmp */

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return fail(ERROR_INTERNAL, "%s:%d: %s is false", __FILE__, __LINE__, #condition);               \
    } while (0)

static uint64_t random_at(uint64_t seed, uint64_t index) {
    uint64_t x = (seed * 0x9e3779b97f4a7c15u) ^ (index + 0x632be59bd9b4e019u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 30) * 0x94d049bb133111ebu;
    x = (x ^ x >> 27) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 31;
}

/* Byte i of what rank `from` sends to rank `to` in a trial. */
static unsigned char byte_of(uint64_t trial, int32_t from, int32_t to, int64_t i) {
    return (unsigned char)random_at(trial * 1000003 + (uint64_t)from * 1009 + (uint64_t)to, (uint64_t)i);
}

static enum result test_sums(struct group *group, uint64_t trial) {
    enum { MOST = 300 };
    int64_t sums[MOST], maxima[MOST];
    int32_t count = (int32_t)(random_at(trial, 0) % (MOST + 1)), size = group_size(group);
    for (int32_t i = 0; i < count; i++)
        sums[i] = maxima[i] = (int64_t)random_at(trial + 77, (uint64_t)(i * 64 + group_rank(group))) >> 8;
    TRY(group_sum(group, "test: sum", sums, count));
    TRY(group_max(group, "test: maximum", maxima, count));
    for (int32_t i = 0; i < count; i++) {
        int64_t sum = 0, maximum = INT64_MIN;
        for (int32_t r = 0; r < size; r++) {
            int64_t value = (int64_t)random_at(trial + 77, (uint64_t)(i * 64 + r)) >> 8;
            sum += value;
            maximum = value > maximum ? value : maximum;
        }
        CHECK(sums[i] == sum);
        CHECK(maxima[i] == maximum);
    }
    return OK;
}

static enum result test_broadcast(struct group *group, uint64_t trial) {
    int32_t root = (int32_t)(random_at(trial, 1) % (uint64_t)group_size(group));
    int64_t bytes = (int64_t)(random_at(trial, 2) % 20000);
    unsigned char *data = calloc((size_t)bytes + 1, 1);
    if (!data)
        return fail(ERROR_MEMORY, "out of memory");
    for (int64_t i = 0; i < bytes; i++)
        data[i] = group_rank(group) == root ? byte_of(trial, root, 0, i) : 0;
    enum result status = group_broadcast(group, "test: broadcast", root, data, (size_t)bytes);
    for (int64_t i = 0; status == OK && i < bytes; i++)
        if (data[i] != byte_of(trial, root, 0, i))
            status = fail(ERROR_INTERNAL, "broadcast: byte %lld is wrong", (long long)i);
    free(data);
    return status;
}

static enum result test_all_gather(struct group *group, uint64_t trial) {
    int32_t size = group_size(group), own = group_rank(group);
    int64_t bytes = (int64_t)(random_at(trial, 3) % 5000);
    int64_t counts[64], most = 5000;
    for (int32_t r = 0; r < size; r++) {
        counts[r] = (int64_t)(random_at(trial, 10 + (uint64_t)r) % (uint64_t)most);
        if (random_at(trial, 100 + (uint64_t)r) % 3 == 0)
            counts[r] = 0;
    }
    unsigned char *mine = calloc((size_t)most, 1), *all = calloc((size_t)(size * most + 1), 1);
    if (!mine || !all) {
        free(mine);
        free(all);
        return fail(ERROR_MEMORY, "out of memory");
    }
    enum result status = OK;
    for (int64_t i = 0; i < most; i++)
        mine[i] = byte_of(trial, own, 1, i);
    TRY_GOTO(status, group_all_gather(group, "test: gather", mine, (size_t)bytes, all), done);
    for (int64_t i = 0; i < size * bytes; i++)
        if (all[i] != byte_of(trial, (int32_t)(i / bytes), 1, i % bytes))
            TRY_GOTO(status, fail(ERROR_INTERNAL, "gather: byte %lld is wrong", (long long)i), done);
    TRY_GOTO(status, group_all_gather_sizes(group, "test: gather of sizes", mine, counts, all), done);
    for (int64_t at = 0, r = 0; r < size; at += counts[r++])
        for (int64_t i = 0; i < counts[r]; i++)
            if (all[at + i] != byte_of(trial, (int32_t)r, 1, i))
                TRY_GOTO(
                    status, fail(ERROR_INTERNAL, "gather of sizes: rank %lld is wrong", (long long)r), done);
done:
    free(mine);
    free(all);
    return status;
}

/* Rows from `from` to `to`: some pairs have none, some ranks send nothing at all, some send much. */
static int64_t rows_between(uint64_t trial, int32_t from, int32_t to) {
    uint64_t x = random_at(trial + 5, (uint64_t)(from * 64 + to));
    if (random_at(trial, 200 + (uint64_t)from) % 4 == 0 || x % 3 == 0)
        return 0;
    return (int64_t)(x / 8 % (x % 50 == 1 ? 4000 : 40));
}

static enum result test_exchange(struct group *group, uint64_t trial) {
    int32_t size = group_size(group), own = group_rank(group);
    int64_t to[64], from[64], learned[64], sent = 0, received = 0;
    int64_t row_bytes = 1 + (int64_t)(random_at(trial, 4) % 97);
    for (int32_t r = 0; r < size; r++) {
        sent += to[r] = rows_between(trial, own, r);
        received += from[r] = rows_between(trial, r, own);
    }
    TRY(group_exchange_counts(group, "test: counts", to, learned));
    CHECK(memcmp(learned, from, sizeof *from * (size_t)size) == 0);
    unsigned char *out = calloc((size_t)(sent * row_bytes + 1), 1);
    unsigned char *in = calloc((size_t)(received * row_bytes + 1), 1);
    enum result status = OK;
    if (!out || !in)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory"), done);
    for (int64_t at = 0, r = 0; r < size; at += to[r++] * row_bytes)
        for (int64_t i = 0; i < to[r] * row_bytes; i++)
            out[at + i] = byte_of(trial, own, (int32_t)r, i);
    TRY_GOTO(status, group_exchange_rows(group, "test: rows", out, to, in, from, (size_t)row_bytes), done);
    for (int64_t at = 0, r = 0; r < size; at += from[r++] * row_bytes)
        for (int64_t i = 0; i < from[r] * row_bytes; i++)
            if (in[at + i] != byte_of(trial, (int32_t)r, own, i))
                TRY_GOTO(status,
                    fail(ERROR_INTERNAL, "rows: byte %lld from rank %lld is wrong", (long long)i,
                        (long long)r),
                    done);
done:
    free(out);
    free(in);
    return status;
}

/* Errors of one rank, of several, and of none. */
static enum result test_agreement(struct ranks *ranks, uint64_t trial) {
    struct group *group = ranks->world;
    int32_t size = group_size(group), own = group_rank(group), lowest = size;
    for (int32_t r = 0; r < size; r++)
        if (random_at(trial, 300 + (uint64_t)r) % 3 == 0 && r < lowest)
            lowest = r;
    bool bad = random_at(trial, 300 + (uint64_t)own) % 3 == 0;
    enum result mine = bad ? fail(own % 2 ? ERROR_IO : ERROR_INPUT, "trouble %d", own) : OK;
    enum result all = ranks_agree(group, mine);
    if (lowest == size) {
        CHECK(all == OK);
        return OK;
    }
    char expected[400];
    snprintf(expected, sizeof expected, "trouble %d", lowest);
    CHECK(all == (lowest % 2 ? ERROR_IO : ERROR_INPUT));
    CHECK(strstr(failure_message(), expected) != NULL);
    snprintf(expected, sizeof expected, "rank %d on %s: trouble %d", lowest, ranks->host, lowest);
    CHECK((strcmp(failure_message(), expected) == 0) == (lowest != own));
    CHECK(ranks_share(ranks, all));
    CHECK(size == 1 || !ranks_share(ranks, ERROR_MEMORY));
    return OK;
}

/* The comparison of arguments notices a rank that is elsewhere, on all ranks, and does not hang. */
static enum result test_argument_check(struct group *group) {
    if (group_size(group) == 1)
        return OK;
    bool before = group->check_arguments;
    group->check_arguments = true;
    bool last = group_rank(group) == group_size(group) - 1;
    int64_t values[2] = {0, 0};
    enum result sizes = group_sum(group, "test: sizes that differ", values, last ? 1 : 2);
    CHECK(sizes == ERROR_INTERNAL && strstr(failure_message(), "test: sizes that differ"));
    enum result calls = group_barrier(group, last ? "test: one call" : "test: another call");
    CHECK(calls == ERROR_INTERNAL && strstr(failure_message(), "test: one call") &&
          strstr(failure_message(), "test: another call"));
    enum result fine = group_barrier(group, "test: the same call");
    group->check_arguments = before;
    return fine;
}

static enum result run_trials(struct ranks *ranks, struct group *group, int32_t trials) {
    for (int32_t i = 0; i < trials; i++) {
        uint64_t trial = (uint64_t)i * 31 + (uint64_t)ranks->supernode;
        /* Pieces as short as 7 bytes stand for the gigabytes that one MPI message cannot carry. */
        int64_t piece = i % 3 == 0 ? 7 : i % 3 == 1 ? 1000 : (int64_t)1 << 30;
        group->most_message_bytes = piece;
        TRY(test_sums(group, trial));
        TRY(test_broadcast(group, trial));
        TRY(test_all_gather(group, trial));
        TRY(test_exchange(group, trial));
        TRY(group_barrier(group, "test: barrier"));
    }
    group->most_message_bytes = (int64_t)1 << 30;
    return OK;
}

static enum result run_all(struct ranks *ranks) {
    TRY(run_trials(ranks, ranks->world, 40));
    TRY(run_trials(ranks, ranks->supernode_group, 20));
    for (uint64_t trial = 0; trial < 30; trial++)
        TRY(test_agreement(ranks, trial));
    TRY(test_argument_check(ranks->world));
    CHECK(group_seconds(ranks->world) >= 0);
    CHECK((group_bytes_sent(ranks->world) > 0) == (ranks->count > 1));
    return OK;
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

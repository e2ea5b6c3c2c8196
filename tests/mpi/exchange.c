/* Dispatch, combine and row fetching against a model of all ranks in one process: every rank knows all ranks' tokens from a
 * seed. Also more ranks than experts, ranks without tokens, and the whole chain of an expert layer. */
#include "cluster/exchange.h"

#include "base/log.h"
#include "cluster/group.h"
#include "cluster/ranks.h"
#include "tests/mpi/random_at.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcmp */
#include <time.h>   /* nanosleep */

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            return fail(ERROR_INTERNAL, "%s:%d: %s is false", __FILE__, __LINE__, #condition);               \
    } while (0)

enum { MOST_RANKS = 16 };

/* The tokens of one rank in one trial. */
struct input {
    int32_t tokens;
    unsigned char *rows; /* [tokens, stride] */
    int32_t *experts;    /* [tokens, k] ascending */
    float *weights;      /* [tokens, k] */
};

struct trial {
    struct exchange_options options;
    int64_t stride;
    int32_t size;
    struct input inputs[MOST_RANKS];
};

static void free_trial(struct trial *trial) {
    for (int32_t r = 0; r < trial->size; r++) {
        free(trial->inputs[r].rows);
        free(trial->inputs[r].experts);
        free(trial->inputs[r].weights);
    }
}

/* k different experts in ascending order: selection sampling. `skew` keeps them low so that few ranks get all. */
static void choose_experts(uint64_t seed, int32_t experts, int32_t k, int32_t *out) {
    int32_t left = k, range = random_at(seed, 1) % 4 == 0 ? k : experts;
    for (int32_t x = 0; x < range && left; x++)
        if ((int64_t)(random_at(seed, 2 + (uint64_t)x) % (uint64_t)(range - x)) < left) {
            out[k - left] = x;
            left--;
        }
}

static enum result fill_input(uint64_t seed, const struct trial *trial, struct input *input) {
    const int32_t k = trial->options.experts_per_token;
    input->tokens = random_at(seed, 0) % 4 == 0
                        ? 0
                        : (int32_t)(random_at(seed, 1) % (uint64_t)(trial->options.most_tokens + 1));
    size_t tokens = (size_t)input->tokens;
    input->rows = calloc(tokens * (size_t)trial->stride + 1, 1);
    input->experts = calloc(tokens * (size_t)k + 1, sizeof *input->experts);
    input->weights = calloc(tokens * (size_t)k + 1, sizeof *input->weights);
    if (!input->rows || !input->experts || !input->weights)
        return fail(ERROR_MEMORY, "out of memory");
    for (size_t i = 0; i < tokens * (size_t)trial->stride; i++)
        input->rows[i] = (unsigned char)random_at(seed + 7, i);
    for (int32_t t = 0; t < input->tokens; t++)
        choose_experts(seed * 8191 + (uint64_t)t, trial->options.experts, k, input->experts + (int64_t)t * k);
    for (size_t i = 0; i < tokens * (size_t)k; i++)
        input->weights[i] = (float)(random_at(seed + 9, i) % 1000) / 256;
    return OK;
}

static enum result make_trial(uint64_t number, int32_t size, struct trial *trial) {
    static const int32_t experts[] = {1, 2, 3, 8, 16, 64, 384};
    int32_t e = experts[random_at(number, 0) % 7], k = 1 + (int32_t)(random_at(number, 1) % 6);
    *trial = (struct trial){.size = size};
    trial->options = (struct exchange_options){.experts = e,
        .experts_per_token = k < e ? k : e,
        .most_tokens = (int32_t)(random_at(number, 2) % 50),
        .row_bytes = 1 + (int64_t)(random_at(number, 3) % 200),
        .columns = 1 + (int32_t)(random_at(number, 4) % 40)};
    trial->stride = trial->options.row_bytes + (int64_t)(random_at(number, 5) % 2 * 13);
    for (int32_t r = 0; r < size; r++)
        TRY(fill_input(number * 64 + (uint64_t)r, trial, &trial->inputs[r]));
    return OK;
}

/* Output of expert x for source r's token t: any function of the three will do. */
static float output_of(int32_t expert, int32_t source, int32_t token, int32_t column) {
    return (float)(expert * 1000003 % 4099) + (float)source * 0.25f + (float)token * 7 +
           (float)column * 0.001f;
}

/* Walks the expected arrivals in the documented order and compares; writes the experts' outputs. */
static enum result check_arrivals(const struct trial *trial, int32_t rank, const struct arrivals *a) {
    const struct exchange_options *o = &trial->options;
    const int32_t k = o->experts_per_token;
    struct shard own = shard_of(o->experts, trial->size, rank);
    int64_t at = 0, most_row = -1;
    for (int64_t x = 0; x < own.count; x++)
        for (int32_t r = 0; r < trial->size; r++)
            for (int32_t t = 0; t < trial->inputs[r].tokens; t++)
                for (int32_t j = 0; j < k; j++) {
                    int64_t slot = (int64_t)t * k + j;
                    if (trial->inputs[r].experts[slot] != own.first + x)
                        continue;
                    CHECK(at < a->pairs);
                    CHECK(at >= a->start[x] && at < a->start[x + 1]);
                    CHECK(a->pair_weight[at] == trial->inputs[r].weights[slot]);
                    CHECK(a->pair_row[at] >= 0 && a->pair_row[at] < a->rows);
                    CHECK(memcmp((const char *)a->row_data + a->pair_row[at] * o->row_bytes,
                              trial->inputs[r].rows + t * trial->stride, (size_t)o->row_bytes) == 0);
                    most_row = a->pair_row[at] > most_row ? a->pair_row[at] : most_row;
                    for (int32_t c = 0; c < o->columns; c++)
                        a->outputs[at * o->columns + c] = output_of((int32_t)(own.first + x), r, t, c);
                    at++;
                }
    CHECK(at == a->pairs);
    int64_t rows = 0; /* each token once for each rank that has one of its experts */
    for (int32_t r = 0; r < trial->size; r++)
        for (int32_t t = 0; t < trial->inputs[r].tokens; t++) {
            bool here = false;
            for (int32_t j = 0; j < k; j++) {
                int32_t x = trial->inputs[r].experts[(int64_t)t * k + j];
                here |= x >= own.first && x < own.first + own.count;
            }
            rows += here;
        }
    CHECK(rows == a->rows);
    CHECK(most_row == a->rows - 1);
    return OK;
}

static enum result check_combined(const struct trial *trial, int32_t rank, const struct combined *combined) {
    const int32_t k = trial->options.experts_per_token, columns = trial->options.columns;
    for (int32_t t = 0; t < trial->inputs[rank].tokens; t++)
        for (int32_t j = 0; j < k; j++)
            for (int32_t c = 0; c < columns; c++) {
                int64_t slot = (int64_t)t * k + j;
                CHECK(combined->place[slot] >= 0 && combined->place[slot] < combined->rows);
                CHECK(combined->outputs[(int64_t)combined->place[slot] * columns + c] ==
                      output_of(trial->inputs[rank].experts[slot], rank, t, c));
            }
    return OK;
}

/* What a rank does while messages travel: nothing, or so much that they have all arrived before it asks for them. */
static enum result dawdle(struct exchange *exchange, uint64_t number, int32_t rank) {
    int looks = (number + (uint64_t)rank) % 3 == 0 ? 30 : (int)(number % 2);
    for (int i = 0; i < looks; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
        TRY(exchange_progress(exchange));
    }
    return OK;
}

static enum result run_trial(struct group *group, uint64_t number) {
    struct trial trial;
    struct exchange *exchange = NULL;
    int32_t size = group_size(group), rank = group_rank(group);
    enum result status = make_trial(number, size, &trial);
    if (status != OK)
        goto done;
    const struct exchange_options *o = &trial.options;
    const struct input *own = &trial.inputs[rank];
    TRY_GOTO(status, exchange_create(group, o, &exchange), done);
    group->most_message_bytes = number % 2 ? 64 : (int64_t)1 << 30; /* combine in pieces, or whole */
    for (int32_t repeat = 0; repeat < 2; repeat++) {                /* memory is reused */
        struct arrivals arrivals;
        struct combined combined;
        TRY_GOTO(status,
            exchange_dispatch_begin(
                exchange, own->rows, trial.stride, own->tokens, own->experts, own->weights),
            done);
        TRY_GOTO(status, dawdle(exchange, number, rank), done);
        TRY_GOTO(status, exchange_dispatch_end(exchange, &arrivals), done);
        TRY_GOTO(status, check_arrivals(&trial, rank, &arrivals), done);
        TRY_GOTO(status, exchange_combine_begin(exchange), done);
        TRY_GOTO(status, dawdle(exchange, number + 1, rank), done);
        TRY_GOTO(status, exchange_combine_end(exchange, &combined), done);
        TRY_GOTO(status, check_combined(&trial, rank, &combined), done);
    }
done:
    group->most_message_bytes = (int64_t)1 << 30;
    if (status != OK)
        status = fail_context(status, "trial %llu", (unsigned long long)number);
    exchange_free(exchange);
    free_trial(&trial);
    return status;
}

/* ---- rows of a sharded table ---- */

struct table {
    struct shard own;
    size_t row_bytes;
    int64_t read;
    bool strayed; /* a row of another rank was read */
};

static unsigned char cell(int64_t row, size_t i) {
    return (unsigned char)random_at((uint64_t)row + 1, i);
}

static void read_table(void *context, const int64_t *rows, int64_t n, void *out) {
    struct table *table = context;
    for (int64_t i = 0; i < n; i++) {
        table->strayed |= rows[i] < table->own.first || rows[i] >= table->own.first + table->own.count;
        for (size_t c = 0; c < table->row_bytes; c++)
            ((unsigned char *)out)[(size_t)i * table->row_bytes + c] = cell(rows[i], c);
    }
    table->read += n;
}

static enum result fetch_trial(struct group *group, uint64_t number) {
    int32_t size = group_size(group), rank = group_rank(group);
    int64_t total = 1 + (int64_t)(random_at(number, 0) % (number % 3 == 0 ? 3 : 2000));
    uint64_t seed = number * 64 + (uint64_t)rank;
    int64_t count = random_at(seed, 1) % 4 == 0 ? 0 : (int64_t)(random_at(seed, 2) % 700);
    struct table table = {.own = shard_of(total, size, rank), .row_bytes = 1 + random_at(number, 3) % 70};
    int64_t *wanted = calloc((size_t)count + 1, sizeof *wanted);
    unsigned char *out = calloc((size_t)count * table.row_bytes + 1, 1);
    enum result status = OK;
    if (!wanted || !out)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory"), done);
    for (int64_t i = 0; i < count; i++)
        wanted[i] = (int64_t)(random_at(seed + 3, (uint64_t)i) % (uint64_t)total);
    TRY_GOTO(status,
        exchange_fetch_rows(group, total, table.row_bytes, wanted, count, read_table, &table, out), done);
    for (int64_t i = 0; i < count; i++)
        for (size_t c = 0; c < table.row_bytes; c++)
            if (out[(size_t)i * table.row_bytes + c] != cell(wanted[i], c))
                TRY_GOTO(status,
                    fail(ERROR_INTERNAL, "fetch %llu: row %lld is wrong", (unsigned long long)number,
                        (long long)wanted[i]),
                    done);
    if (table.strayed)
        status = fail(ERROR_INTERNAL, "fetch %llu: another rank's row was read", (unsigned long long)number);
done:
    free(wanted);
    free(out);
    return status;
}

/* Wrong input is refused before anything is sent, so that all ranks fail alike. */
static enum result test_refusals(struct group *group) {
    struct exchange_options options = {
        .experts = 4, .experts_per_token = 2, .most_tokens = 2, .row_bytes = 4, .columns = 1};
    struct exchange *exchange;
    struct arrivals arrivals;
    TRY(exchange_create(group, &options, &exchange));
    static const int32_t descending[] = {2, 1}, repeated[] = {1, 1}, beyond[] = {1, 4};
    static const int32_t *const bad[] = {descending, repeated, beyond};
    static const float weights[] = {1, 1};
    static const char row[4];
    for (int32_t i = 0; i < 3; i++)
        CHECK(exchange_dispatch_begin(exchange, row, 4, 1, bad[i], weights) == ERROR_INTERNAL);
    CHECK(exchange_dispatch_begin(exchange, row, 4, 3, descending, weights) == ERROR_INTERNAL);
    CHECK(exchange_dispatch_end(exchange, &arrivals) == ERROR_INTERNAL); /* out of turn */
    CHECK(exchange_combine_begin(exchange) == ERROR_INTERNAL);
    exchange_free(exchange);
    struct exchange_options impossible = options;
    impossible.experts_per_token = 5;
    CHECK(exchange_create(group, &impossible, &exchange) == ERROR_USAGE && !exchange);
    impossible = options;
    impossible.most_tokens = INT32_MAX;
    CHECK(exchange_create(group, &impossible, &exchange) == ERROR_USAGE && !exchange);
    int64_t wanted = 9;
    struct table table = {.row_bytes = 1};
    CHECK(exchange_fetch_rows(group, 9, 1, &wanted, 1, read_table, &table, &wanted) == ERROR_INTERNAL);
    CHECK(table.read == 0);
    return OK;
}

static enum result run_all(struct group *group) {
    for (uint64_t number = 0; number < 120; number++)
        TRY(run_trial(group, number));
    for (uint64_t number = 0; number < 60; number++)
        TRY(fetch_trial(group, number));
    return test_refusals(group);
}

int main(void) {
    struct ranks ranks;
    enum result status = ranks_start(&(struct rank_options){.deadline_seconds = 60}, &ranks);
    if (status == OK && ranks.count > MOST_RANKS)
        status = fail(ERROR_USAGE, "this test is for at most %d ranks", MOST_RANKS);
    if (status == OK)
        status = run_all(ranks.supernode_group);
    if (status != OK)
        log_error("%s", failure_message());
    ranks_stop(&ranks, status);
    return status;
}

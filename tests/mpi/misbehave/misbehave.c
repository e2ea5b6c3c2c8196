/* A run in which the last rank misbehaves as the argument says; the other ranks do all that is expected of them. Used by
 * misbehave.sh. The deadline is 2 seconds. */
#include "cluster/collectives.h"
#include "cluster/ranks.h"

#include "base/log.h"

#include <signal.h> /* raise */
#include <stdlib.h> /* exit */
#include <string.h> /* strcmp */
#include <unistd.h> /* pause, getenv */

static const char *kind;

static bool is(const char *name) {
    return strcmp(kind, name) == 0;
}

static void wait_for_ever(void) {
    for (;;)
        pause();
}

static enum result run(struct ranks *ranks) {
    bool last = ranks->rank == ranks->count - 1;
    int64_t value = 1;
    TRY(group_sum(ranks->world, "first sum", &value, 1));
    if (last && is("sleep"))
        wait_for_ever();
    if (last && is("stop"))
        raise(SIGSTOP);
    if (last && is("leave"))
        _exit(0);
    if (last && is("fail-alone"))
        return fail(ERROR_IO, "the disk of rank %d is full", ranks->rank);
    if (is("agree"))
        return ranks_agree(ranks->world, last ? fail(ERROR_INPUT, "a bad file") : OK);
    TRY(group_barrier(ranks->world, "second barrier"));
    if (last && is("never-end"))
        wait_for_ever();
    return OK;
}

int main(int argc, char **argv) {
    kind = argc > 1 ? argv[1] : "";
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (is("never-start") && rank && strcmp(rank, "2") == 0)
        wait_for_ever();
    struct ranks ranks;
    struct rank_options options = {.deadline_seconds = 2, .supernode = is("bad-supernode") ? 2 : 0};
    enum result status = ranks_start(&options, &ranks);
    if (status == OK)
        status = run(&ranks);
    if (status != OK && (ranks.rank == 0 || !ranks_share(&ranks, status)))
        log_error("%s", failure_message());
    ranks_stop(&ranks, status);
    return status;
}

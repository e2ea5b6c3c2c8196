/* What every command that runs the model on ranks does at its start and end: ranks, kernels, checkpoint,
 * tokenizer, model, and the options that go with them. Each stage that may fail on one rank alone is agreed
 * by all. */
#ifndef NOCTURNE_CAMPAIGN_LAUNCH_H
#define NOCTURNE_CAMPAIGN_LAUNCH_H

#include "base/error.h"
#include "base/options.h"
#include "cluster/ranks.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "recipe/tokenizer.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

/* Options of these commands; begin with launch_defaults. */
struct launch_options {
    int64_t threads, supernode, deadline, kv_memory; /* 0: see the help texts */
    const char *backend, *cpu_kernels;
    bool no_bind, mapped_weights, quiet, verbose;
};

enum { LAUNCH_OPTIONS = 10 };
/* Appends their rows to a command's table at `row`, which then ends with an empty row. */
void launch_option_rows(struct launch_options *options, struct option *row);

struct launch {
    struct ranks ranks;
    const struct kernels *kernels;
    struct checkpoint *checkpoint;
    struct tokenizer *tokenizer;
    struct model *model;
};

/* Starts the ranks. Collective over the run. After a failure too, launch_end must be called. */
MUST_CHECK enum result launch_begin(const struct launch_options *options, struct launch *launch);

/* Opens kernels, checkpoint and tokenizer; all ranks must have the same kernels. `fingerprint`: of the
 * checkpoint that is expected, NULL: any. Collective over the run. */
MUST_CHECK enum result launch_open(struct launch *launch, const struct launch_options *options,
    const char *model_folder, const char *fingerprint);

/* Creates the model: the caller fills mode, step_tokens and step_sequences; the rest comes from the launch.
 * Collective over the run. */
MUST_CHECK enum result launch_model(
    struct launch *launch, const struct launch_options *options, struct model_options *model);

/* One line on the ranks, and the weights each of them touches, printed by rank 0. Collective over the run. */
MUST_CHECK enum result launch_describe(const struct launch *launch);

/* Closes everything and ends MPI; returns `status`. A message that other ranks do not know is printed here,
 * for MPI then ends the process. */
enum result launch_end(struct launch *launch, enum result status);

/* Bytes of memory this process may use: the machine's, or its control group's limit when that is less. */
int64_t machine_memory(void);

#endif

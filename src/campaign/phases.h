/* The commands that run a campaign on ranks. They start and stop the ranks themselves; a failure is the same
 * on all ranks, and rank 0's caller prints the message. */
#ifndef NOCTURNE_CAMPAIGN_PHASES_H
#define NOCTURNE_CAMPAIGN_PHASES_H

#include "base/error.h"

MUST_CHECK enum result command_vision(int argc, char **argv);
MUST_CHECK enum result command_prefill(int argc, char **argv);
MUST_CHECK enum result command_decode(int argc, char **argv);
MUST_CHECK enum result command_run(int argc, char **argv);

#endif

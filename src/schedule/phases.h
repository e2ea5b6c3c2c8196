/* The phases' commands and main loops: prefill, decode, run (both in one launch), score. Each is Collective over the run. */
#ifndef NOCTURNE_SCHEDULE_PHASES_H
#define NOCTURNE_SCHEDULE_PHASES_H

#include "base/error.h"

enum result command_prefill(int argc, char **argv);
enum result command_decode(int argc, char **argv);
enum result command_run(int argc, char **argv);
enum result command_score(int argc, char **argv);

#endif

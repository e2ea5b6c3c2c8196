/* When the allocation that this process runs in ends. */
#ifndef NOCTURNE_CAMPAIGN_WALLTIME_H
#define NOCTURNE_CAMPAIGN_WALLTIME_H

#include "base/error.h"

/* The end in Unix seconds, 0 when there is none. `until` is what the user says: "+SECONDS" from `now`, "HH:MM" (the next time that the local clock
 * shows it), "YYYY-MM-DDTHH:MM[:SS]" in local time, "@UNIX_SECONDS", or "never"; NULL: the end of the Slurm job (its variable
 * SLURM_JOB_END_TIME), if it is in one. ERROR_USAGE names the option when it is none of these, or lies in the past. */
MUST_CHECK enum result walltime_end(const char *until, double now, double *end);

#endif

/* `nocturne score`: log-probabilities of given texts under the model, for evaluation and for checking the
 * engine. */
#ifndef NOCTURNE_CAMPAIGN_SCORE_H
#define NOCTURNE_CAMPAIGN_SCORE_H

#include "base/error.h"

/* Starts and stops the ranks itself, as the phases do. */
MUST_CHECK enum result command_score(int argc, char **argv);

#endif

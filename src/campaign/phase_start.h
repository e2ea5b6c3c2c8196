/* What the commands that work on a campaign with ranks have in common at their start. */
#ifndef NOCTURNE_CAMPAIGN_PHASE_START_H
#define NOCTURNE_CAMPAIGN_PHASE_START_H

#include "base/error.h"
#include "campaign/campaign.h"
#include "campaign/launch.h"
#include "campaign/requests.h"

enum { IDENTITY_BYTES = 512 };

/* Opens the campaign and its requests on all ranks; rank 0 takes the lock. Collective over the run. What was opened
 * is the caller's to close, after a failure too. */
MUST_CHECK enum result phase_open_campaign(
    const struct launch *launch, const char *folder, struct campaign **campaign, struct requests **requests);

/* The checkpoint's folder, made absolute: `given`, or where ingest found it when that is NULL. *folder is allocated. */
MUST_CHECK enum result phase_model_folder(const char *given, const struct requests *requests, char **folder);

/* All that embeddings of images depend on, as words: the identity of parts of vision/. */
void vision_identity(
    const struct launch *launch, const struct requests *requests, char identity[IDENTITY_BYTES]);

#endif

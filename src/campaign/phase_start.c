#include "campaign/phase_start.h"

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* realpath */

enum {
    VISION_IDENTITY_VERSION = 1
}; /* of everything that embeddings depend on and the other words do not say */

enum result phase_open_campaign(
    const struct launch *launch, const char *folder, struct campaign **campaign, struct requests **requests) {
    const struct ranks *ranks = &launch->ranks;
    bool first = ranks->rank == 0;
    *campaign = NULL;
    *requests = NULL;
    TRY(ranks_agree(ranks->world, first ? campaign_open(folder, CAMPAIGN_WORK, false, campaign) : OK));
    TRY(ranks_agree(ranks->world, first ? OK : campaign_open(folder, CAMPAIGN_READ, false, campaign)));
    return ranks_agree(ranks->world, requests_open(folder, requests));
}

enum result phase_model_folder(const char *given, const struct requests *requests, char **folder) {
    const char *path = given ? given : requests_model_folder(requests);
    *folder = realpath(path, NULL);
    if (!*folder)
        return fail_errno(
            ERROR_IO, "%s: cannot open the model's folder (if it has moved, say where with --model)", path);
    return OK;
}

void vision_identity(
    const struct launch *launch, const struct requests *requests, char identity[IDENTITY_BYTES]) {
    snprintf(identity, IDENTITY_BYTES, "version=%d requests=%s fingerprint=%s backend=%s/%s",
        VISION_IDENTITY_VERSION, requests_identity(requests), checkpoint_fingerprint(launch->checkpoint),
        launch->kernels->name, launch->kernels->instruction_set);
}

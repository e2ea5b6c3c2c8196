/* Parts of prefill/: requests on their way, with the states of their sequences and the tokens of their choices: from prefill to decode, and
 * from a launch that was stopped to the next one. */
#ifndef NOCTURNE_CAMPAIGN_STATES_H
#define NOCTURNE_CAMPAIGN_STATES_H

#include "base/error.h"
#include "campaign/campaign.h"
#include "model/state_section.h"
#include "schedule/engine.h" /* struct state_record */

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

struct states_writer;
MUST_CHECK enum result states_writer_create(const char *campaign_folder, int32_t rank,
    const struct provenance *provenance, const struct state_section *sections, int32_t section_count,
    struct states_writer **writer);
MUST_CHECK enum result states_writer_add(
    struct states_writer *writer, const struct state_record *record); /* copies */
int64_t states_writer_pending(const struct states_writer *writer);
int64_t states_writer_pending_bytes(const struct states_writer *writer);
MUST_CHECK enum result states_writer_flush(struct states_writer *writer);
void states_writer_free(struct states_writer *writer);

/* All complete states of a campaign: an index over the parts (which part and row holds a request), opened on demand. Of several states of a
 * request the farthest counts. */
struct states;
MUST_CHECK enum result states_open(const char *campaign_folder, int64_t total_requests,
    const struct state_section *sections, int32_t section_count, struct states **states);
void states_close(struct states *states);
bool states_has(const struct states *states, int64_t request);
/* Reads one record; its memory is valid until states_release. ERROR_INPUT names the part when a checksum fails. */
MUST_CHECK enum result states_read(struct states *states, int64_t request, struct state_record **record);
void states_release(struct state_record *record);

#endif

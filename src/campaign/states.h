/* Parts of prefill/: sequence states and the first token of each choice, from prefill to decode. */
#ifndef NOCTURNE_CAMPAIGN_STATES_H
#define NOCTURNE_CAMPAIGN_STATES_H

#include "base/error.h"
#include "campaign/campaign.h"

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */

/* One kind of row a sequence state consists of; the model names them (model/sequence.h). */
struct state_section {
    char name[32];           /* dataset name, such as "latent_02" */
    const char *description; /* attribute of the dataset, layout of a row in words */
    int32_t row_bytes;
};

struct section_rows {
    const void *data; /* [rows, row_bytes] */
    int64_t rows;
};

/* The first generated token of one choice. */
struct first_token {
    int32_t id;
    float logprob;
    int32_t top_logprobs;    /* 0: none */
    const int32_t *top_ids;  /* [top_logprobs] */
    const float *top_values; /* [top_logprobs] */
};

struct state_record {
    int64_t request;
    int32_t tokens; /* sequence length the state stands at */
    const struct section_rows *sections; /* in the order of the writer's section list */
    int32_t choice_count;
    const struct first_token *first_tokens; /* [choice_count] */
};

struct states_writer;
MUST_CHECK enum result states_writer_create(const char *campaign_folder, int32_t rank,
    const struct provenance *provenance, const struct state_section *sections, int32_t section_count,
    struct states_writer **writer);
MUST_CHECK enum result states_writer_add(struct states_writer *writer, const struct state_record *record); /* copies */
int64_t states_writer_pending(const struct states_writer *writer);
int64_t states_writer_pending_bytes(const struct states_writer *writer);
MUST_CHECK enum result states_writer_flush(struct states_writer *writer);
void states_writer_free(struct states_writer *writer);

/* All complete states of a campaign: an index over the parts (which part and row holds a request), opened on demand. */
struct states;
MUST_CHECK enum result states_open(const char *campaign_folder, int64_t total_requests,
    const struct state_section *sections, int32_t section_count, struct states **states);
void states_close(struct states *states);
bool states_has(const struct states *states, int64_t request);
int32_t states_length(const struct states *states, int64_t request); /* tokens of the state, 0 when there is none */
/* Reads one record; its memory is valid until states_release. ERROR_INPUT names the part when a checksum fails. */
MUST_CHECK enum result states_read(struct states *states, int64_t request, struct state_record **record);
void states_release(struct state_record *record);

#endif

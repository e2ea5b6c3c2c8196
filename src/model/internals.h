/* What the files of model/ share: placed weights, key/value layout, a sequence's members, the step's memory. */
#ifndef NOCTURNE_MODEL_INTERNALS_H
#define NOCTURNE_MODEL_INTERNALS_H

#include "cache/blocks.h"
#include "cluster/exchange.h"
#include "model/engram.h"
#include "model/model.h"
#include "model/sequence.h"

enum {
    WINDOW_BLOCK_ROWS = 16, /* positions of a window block: freed as the window moves on, so small */
    GLOBAL_BLOCK_STEP = 16, /* tokens of a global block are a multiple of this, hence of every ratio */
};

/* ---- weights ---- */

struct mix_weights {
    struct matrix fn;          /* F32 [(2 + S) * S, S * D] */
    const float *base, *scale; /* device [(2 + S) * S], [3] */
};

struct compressor_weights {
    struct matrix wkv, wgate; /* BF16 [d, D]; wgate only with ratio 2 */
    const void *norm;         /* BF16 [d] */
    struct matrix wk;         /* BF16 [index_head_dim, d] */
    const void *k_norm;       /* BF16 [index_head_dim] */
};

struct indexer_weights {
    struct matrix wq_b, weights_proj;
};

struct engram_weights {
    struct matrix table; /* host memory: the whole mapped table; only this rank's rows are read */
    struct matrix wkv;
    const void *q_weight, *k_weight; /* BF16 [S, D] */
};

struct layer_weights {
    struct matrix wq_a, wq_b, wkv, wo_a, wo_b;
    const void *attn_norm, *q_norm, *kv_norm, *ffn_norm; /* BF16 */
    const float *attn_sink;                              /* [heads] */
    struct mix_weights hc_attn, hc_ffn;
    struct matrix gate;
    const float *gate_bias, *gate_bias_vl; /* [n_routed_experts] */
    struct matrix shared_w1, shared_w2, shared_w3;
    struct expert_weights *experts;       /* this rank's shard */
    struct compressor_weights compressor; /* kv sources */
    struct indexer_weights indexer;       /* index sources */
    struct engram_weights engram;         /* Engram layers */
};

/* ---- key/value layout ---- */

struct kv_layout {
    int64_t block_bytes;
    int32_t global_tokens;                                         /* tokens of a global block */
    struct block_rows window[MOST_LAYERS];                         /* base is the pool's */
    struct block_rows latent[MOST_LAYERS], index_key[MOST_LAYERS]; /* kv sources */
    int32_t source_of[MOST_LAYERS]; /* the kv source whose rows a layer reads, -1: none */
};

/* ---- sequences ---- */

struct block_list {
    int32_t *blocks;
    int32_t first; /* number of blocks[0]: position (window) or token (global) divided by the block's size */
    int32_t count, capacity;
};

struct sequence {
    int32_t length;
    int32_t
        write_floor; /* compressed rows of tokens below it came from elsewhere and are never written; even */
    int32_t lower_begin; /* first position with window rows in the layers up to the last kv source */
    int32_t upper_begin; /* and in those above */
    bool is_approximate; /* see struct restore */
    struct block_list global, window;
    float *
        open_groups; /* device [sources with ratio 2][2][d]: kv and gate of a group's first token when length is odd */
    int32_t history
        [MOST_ENGRAM_NGRAM]; /* compressed ids of the last engram_max_ngram_size - 1 tokens, newest last; -1: barrier */
    int32_t history_count;
    /* Inputs of the last kv source's attention held for the tail of an unfinished prompt: the last `waiting` tokens. */
    float *waiting_streams; /* device [waiting_capacity, S * D] */
    float *waiting_pre;     /* device [waiting_capacity, S] */
    uint8_t *waiting_image; /* host [waiting_capacity] */
    int32_t waiting, waiting_capacity;
};

/* ---- a step ---- */

/* The tokens one part of the layers runs on: device arrays [tokens]. */
struct token_set {
    int32_t tokens;
    int32_t *sequence, *position; /* index among the step's spans; absolute position */
    int32_t *visible_from;        /* first window position seen by the layers up to the last kv source */
    int32_t *visible_from_upper;  /* and by those above */
    uint8_t *is_image;
    float *streams, *pre; /* [tokens, S, D], [tokens, S] */
};

/* Host copies of the small arrays of a step. */
enum host_array {
    LOWER_SEQUENCE,
    LOWER_POSITION,
    LOWER_VISIBLE,
    LOWER_VISIBLE_UPPER,
    UPPER_SEQUENCE,
    UPPER_POSITION,
    UPPER_VISIBLE,
    UPPER_VISIBLE_UPPER,
    GROUP_SEQUENCE,
    GROUP_ROW,
    GROUP_POSITION,
    WINDOW_FIRST,
    GLOBAL_FIRST,
    WRITE_FLOOR,
    GROUP_WRITE_FLOOR,
    HOST_ARRAYS
};

/* Device memory of a step, sized for step_tokens. */
struct step_memory {
    struct token_set lower, upper;
    float *upper_streams, *upper_pre; /* upper's own memory, used when it differs from lower */
    int32_t *ids;
    int32_t *write_floor;       /* [step_sequences], of compressed rows with ratio 1 */
    int32_t *group_write_floor; /* and with ratio 2 */
    int32_t *no_floor;          /* [step_sequences], zeros */
    int32_t *window_blocks, *window_first, *global_blocks, *global_first;
    int32_t window_most, global_most;     /* entries that a sequence's tables have room for */
    int32_t window_stride, global_stride; /* of this step's tables: the longest of its sequences' */
    int32_t *group_sequence, *group_row, *group_position; /* ratio-2 groups completed in this step */
    float *post, *comb;
    float *x, *latent_q, *q, *kv, *attended, *grouped, *sublayer;
    struct rows x_rows, latent_q_rows, grouped_rows, hidden_rows, found_rows;
    float *compress_kv, *compress_gate, *pair_kv, *pair_gate, *latent, *key;
    /* For each ratio-2 source: copies that put the rows of a group side by side, then those that keep the first half of an
     * unfinished one. */
    struct row_copy *row_copies;      /* [ratio-2 sources, row_copies_most] */
    int32_t pair_copies, open_copies; /* of each source in this step */
    int32_t row_copies_most;
    float *index_q, *index_weight;
    int32_t *chosen, *candidates;
    float *router_logits, *expert_weight;
    int32_t *expert_id;
    float *gate, *up, *shared;
    float *found, *engram_kv;
    float *logit_hidden;      /* [tokens, D]: hidden rows whose logits are wanted */
    float *logits;            /* this and the next two: grown on demand */
    struct sample_row *draws; /* with their adjustments behind them */
    struct sample_result *drawn;
    int64_t logits_bytes, draws_bytes, drawn_bytes;
    /* Where device memory is not host memory: arrivals of the exchange, their lists, their outputs and those of the step's
     * tokens with their places. All but the last grow on demand. */
    void *arrived;
    int32_t *pair_lists;
    float *pair_out, *routed;
    int64_t arrived_bytes, pair_lists_bytes, pair_out_bytes, routed_bytes;
    int32_t *place; /* [tokens, k] */
    /* host staging */
    int32_t *host_i32[HOST_ARRAYS]; /* [step_tokens or step_sequences]: see the enum */
    uint8_t *host_image, *host_image_upper;
    int32_t *host_window, *host_global;
    struct row_copy *host_row_copies;
    void *host_rows; /* this and the next two: only where device memory is not host memory */
    int32_t *host_expert_id;
    float *host_expert_weight;
    int64_t *engram_rows;   /* [tokens, layers, columns]: table rows of the step's tokens */
    int64_t *engram_wanted; /* [tokens, columns]: those of one layer */
    uint8_t *engram_packed; /* [tokens, columns, bytes of a row], as fetched */
    uint8_t *engram_codes;  /* [layers, engram_layer_bytes]: the same on the device, of all layers */
    int64_t engram_layer_bytes;
    int32_t *compressed_ids; /* of one span, history in front */
};

/* What the work of a decoding step depends on besides the contents of arrays, on this rank. */
struct step_shape {
    int64_t tokens, most_tokens; /* of this rank, and of the rank with the most */
    int64_t window_stride, global_stride;
    /* times that memory of the lane, its exchange or its stream got another address */
    int64_t memory_moves, exchange_moves, stream_moves;
};

enum { MOST_RECORDINGS = 32 };

/* Shapes that the ranks of the supernode met together before. Their first step lets memory grow, their second is recorded. */
struct recorded_step {
    int64_t id; /* of the shapes of all ranks: the same on all of them */
    struct step_shape shape;
    struct recording *recording; /* NULL: not yet */
    int64_t used;
};

/* One batch on its way through the model: its order of work, memory and exchange. A device has two, so that the host prepares one
 * step, and its ranks exchange rows, while the other computes. */
struct lane {
    struct stream *stream;
    struct step_memory step;
    struct exchange *exchange;
    struct span *spans; /* [step_sequences]: of the step on its way */
    int32_t span_count;
    bool in_flight;
    int64_t memory_moves;
    struct recorded_step recorded[MOST_RECORDINGS];
    int64_t recorded_uses;
    int64_t replays; /* steps done by a replay so far */
};

enum { MOST_LANES = 2 };

enum trace_point { TRACE_ENGRAM_IN, TRACE_LAYER_IN, TRACE_LAYER_OUT };

struct model {
    const struct checkpoint *checkpoint;
    const struct model_config *config;
    struct model_options options;
    const struct kernels *kernels;
    struct stream *stream;                /* for work between steps, on sequences: waited for at once */
    struct lane lanes[MOST_LANES], *lane; /* `lane`: the one whose step is being enqueued */
    int32_t lane_count;
    enum row_encoding activation, window_encoding, latent_encoding, key_encoding;
    struct matrix embed, head;
    const void *final_norm;
    struct layer_weights *layers;
    struct shard expert_shard;
    int64_t *expert_pairs; /* [num_hidden_layers, expert_shard.count]: see model_expert_load */
    struct rope plain_rope, long_rope;
    struct engram_hash engram;
    struct kv_layout kv;
    struct block_pool *pool;
    struct sampler **samplers; /* [kernels->threads], where the host samples */
    struct state_section *sections;
    int32_t section_count;
    int32_t split_layer; /* the last kv source, or the last layer when there is none: see forward.c */
    /* Called around each layer of a step with the set it runs on, whose streams it may replace; for tests of the forward
     * pass piece by piece. NULL: not called. */
    enum result (*trace)(void *context, enum trace_point point, int32_t layer, const struct token_set *set);
    void *trace_context;
    int32_t ratio2_sources;
    int32_t ratio2_slot[MOST_LAYERS]; /* index into a sequence's open_groups */
    float **open_group_spares;        /* memory for open_groups that no sequence has now */
    int32_t open_group_spare_count, open_group_spare_capacity;
    struct model_bytes bytes;
    void **allocations; /* all device memory of the step, released together */
    int32_t allocation_count, allocation_capacity;
    uint8_t *weights_room;                 /* what is left of the newest allocation for weights */
    int64_t weights_left, weights_touched; /* bytes of it, and of its beginning that have pages */
};

/* Device memory that lives as long as the model; counted as scratch. */
MUST_CHECK enum result model_allocate(struct model *model, size_t bytes, void *pointer);

/* Lays out blocks and section list; needs config, encodings (pool and base afterwards). */
void kv_layout_make(struct model *model);
MUST_CHECK enum result state_sections_make(struct model *model);
/* Blocks for `tokens` more tokens of a sequence, and release of window blocks that no later token needs; `keep_back` is how many
 * positions before the next token must stay. */
MUST_CHECK enum result sequence_extend(struct model *model, struct sequence *sequence, int32_t tokens);
/* Blocks for the compressed rows of the first `tokens` tokens. */
MUST_CHECK enum result sequence_extend_rows(struct model *model, struct sequence *sequence, int32_t tokens);
void sequence_trim(struct model *model, struct sequence *sequence, int32_t keep_back);
/* Copies rows [first, first + count) of one kind between a sequence's blocks and packed memory at `stride` bytes a row; enqueued on the
 * model's stream. */
enum row_direction { ROWS_OUT, ROWS_IN };
void sequence_copy_rows(struct model *model, const struct block_list *list, const struct block_rows *rows,
    int32_t first, int32_t count, uint8_t *packed, int64_t stride, enum row_direction direction);
/* Memory for up to `tokens` held tail inputs (held ones are kept), and its release. */
MUST_CHECK enum result sequence_hold(struct model *model, struct sequence *sequence, int32_t tokens);
void sequence_release_waiting(struct model *model, struct sequence *sequence);

/* step.c: sizes and allocates the memory of model->lane's steps. */
MUST_CHECK enum result step_memory_create(struct model *model);
void step_memory_free(struct model *model, struct step_memory *memory);

/* forward.c */
void recordings_free(struct model *model, struct lane *lane);

/* draws.c */
void samplers_free(struct model *model);

/* experts.c: out[t] = shared expert + routed experts of x (and its encoded rows). Collective over the supernode. */
MUST_CHECK enum result moe_run(struct model *model, const struct layer_weights *w, const float *x,
    const struct rows *x_rows, const uint8_t *is_image, int32_t tokens, float *out);

/* engram_lookup.c: fetches the rows of all Engram layers for the first `tokens` tokens of engram_rows. Collective over the
 * supernode. */
MUST_CHECK enum result engram_prefetch(struct model *model, int32_t tokens);
/* Adds Engram layer `slot` to the streams of the lower set. */
void engram_run(struct model *model, int32_t slot, const struct token_set *set);
/* Fills engram_rows for a span's tokens, whose first is token `at` of the step, and advances the sequence's history. */
void engram_hash_span(
    struct model *model, struct sequence *sequence, const int32_t *ids, int32_t count, int32_t at);

/* Grows *memory (device) to at least `bytes`; content is lost. */
MUST_CHECK enum result grow_device(struct model *model, void *pointer, int64_t *capacity, int64_t bytes);

#endif

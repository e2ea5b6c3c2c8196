/* The CUDA backend's operations, one file each (or a few that share their kernels): signatures and contracts are those of the
 * table in kernels/kernels.h. */
#ifndef NOCTURNE_CUDA_OPERATIONS_H
#define NOCTURNE_CUDA_OPERATIONS_H

#include "kernels/cuda/backend.h"

void cuda_product(struct stream *stream, const struct rows *x, int32_t tokens, const struct matrix *w,
    float *out, int64_t out_stride);
void cuda_grouped_product(struct stream *stream, const float *x, int32_t tokens, int32_t groups,
    const struct matrix *w, float *out);
void cuda_experts(struct stream *stream, const struct rows *x, const struct expert_pairs *pairs,
    const struct expert_weights *experts, float limit, float *out);
void cuda_embed(
    struct stream *stream, const struct matrix *table, const int32_t *ids, int32_t tokens, float *out);
void cuda_rms_norm(struct stream *stream, const float *x, int32_t tokens, int32_t columns, const void *weight,
    float eps, float *out);
void cuda_encode(struct stream *stream, const float *x, int32_t tokens, const struct rows *out);
void cuda_decode(struct stream *stream, const struct rows *x, int32_t tokens, float *out);
void cuda_round(struct stream *stream, float *x, int32_t tokens, int32_t columns, enum row_encoding encoding);
void cuda_rotate(struct stream *stream, float *x, const int32_t *positions, int32_t tokens, int32_t heads,
    int32_t columns, const struct rope *rope, bool inverse);
void cuda_swiglu(struct stream *stream, const float *gate, const float *up, int32_t tokens, int32_t columns,
    float limit, float *out);
void cuda_combine(struct stream *stream, const float *shared, const float *routed, const int32_t *place,
    int32_t tokens, int32_t k, int32_t columns, float *out);
void cuda_start_streams(struct stream *stream, const float *x, int32_t tokens, int32_t streams_count,
    int32_t columns, float *streams, float *pre);
void cuda_collapse_norm(struct stream *stream, const float *streams, const float *pre, int32_t tokens,
    int32_t streams_count, int32_t columns, const void *weight, float eps, float *out);
void cuda_mix(struct stream *stream, const float *streams, int32_t tokens, int32_t streams_count,
    int32_t columns, const struct matrix *fn, const float *base, const float *scale, int32_t iterations,
    float hc_eps, float norm_eps, float *pre, float *post, float *comb);
void cuda_expand(struct stream *stream, const float *x, const float *post, const float *comb, int32_t tokens,
    int32_t streams_count, int32_t columns, float *streams);
void cuda_engram_add(struct stream *stream, const float *kv, const void *q_weight, const void *k_weight,
    const uint8_t *is_image, int32_t tokens, int32_t streams_count, int32_t columns, float eps,
    float *streams);
void cuda_store_rows(struct stream *stream, const float *x, int32_t tokens, const int32_t *sequence,
    const int32_t *row, const int32_t *write_floor, const struct block_rows *rows,
    const struct block_tables *tables);
void cuda_compress_pairs(
    struct stream *stream, const float *kv, const float *gate, int32_t groups, int32_t columns, float *out);
void cuda_choose(struct stream *stream, const float *q, const float *weight, int32_t tokens,
    const int32_t *sequence, const int32_t *position, const struct index_choice *choice,
    const struct block_rows *keys, const struct block_tables *tables, int32_t *candidates, int32_t *chosen);
void cuda_attend(struct stream *stream, const float *q, int32_t tokens, int32_t heads,
    const int32_t *sequence, const int32_t *position, const int32_t *visible_from,
    const struct block_rows *window, const struct block_tables *window_tables,
    const struct block_rows *latents, const struct block_tables *latent_tables, const int32_t *chosen,
    int32_t top_k, const float *sink, float *out);
void cuda_add_bias(struct stream *stream, float *x, int32_t tokens, int32_t columns, const void *bias);
void cuda_add(struct stream *stream, float *x, const float *y, int64_t count);
void cuda_gelu(struct stream *stream, float *x, int64_t count);
void cuda_rotate_grid(struct stream *stream, float *qkv, int32_t grid_rows, int32_t grid_columns,
    int32_t heads, int32_t width, const float *frequency);
void cuda_pack_squares(struct stream *stream, const float *x, int32_t grid_rows, int32_t grid_columns,
    int32_t columns, int32_t ratio, float *out);
void cuda_attend_all(
    struct stream *stream, const float *qkv, int32_t tokens, int32_t heads, int32_t width, float *out);
void cuda_route(struct stream *stream, const float *logits, int32_t tokens, int32_t expert_count,
    const float *bias, const float *bias_vl, const uint8_t *is_image, int32_t k, bool normalize, float factor,
    int32_t *experts, float *weights);
void cuda_copy_rows(struct stream *stream, const struct row_copy *list, int32_t count, int32_t columns);

#endif

/* One launch of a product kernel, and what falls to a block of it: dense and grouped products, and those of
 * experts, whose pairs only the device knows.
 */
#ifndef NOCTURNE_CUDA_PRODUCT_WORK_H
#define NOCTURNE_CUDA_PRODUCT_WORK_H

#include "kernels/cuda/product_codes.h"
#include "kernels/cuda/product_rows.h"

/* Where an expert's matrices lie. */
enum expert_matrix { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_MATRICES };
struct expert_places {
    const uint8_t *codes[EXPERT_MATRICES], *scales[EXPERT_MATRICES];
};

/* A tile of pairs of one expert. */
struct expert_tile {
    int32_t expert, first, pairs;
};

/* What a gate and its up product turn into, pair by pair: silu(min(gate, limit)) * clamp(up) * weight. */
struct activation {
    const float *weight; /* of each pair */
    float limit;
    bool is_rounded; /* to FP8 */
    int32_t columns;
    struct product_rows hidden;
};

/* A launch has row tiles (fastest) times token tiles along x, groups along y, parts of the sum along z. */
struct product_work {
    struct code_matrix w;                /* with experts: where it lies is told by them */
    int32_t rows, groups;                /* outputs of one group or expert */
    struct product_rows x;               /* row t * groups + g, or one for each pair */
    int32_t tokens;                      /* without experts */
    const struct expert_places *experts; /* NULL: none */
    const struct expert_tile *tiles;     /* [*tile_count] */
    const int32_t *tile_count;
    enum expert_matrix matrix; /* EXPERT_GATE: the up product, too, where the kernel makes both */
    int32_t row_tiles;
    int32_t chunks, chunks_a_part;
    float *parts; /* sums of chunks [chunks, tokens, groups * rows], where blocks share them out; else NULL */
    float *out;
    int64_t out_stride;
    struct activation activation;
};

/* A block's part of it. Output r of the group is row `first + r` of the matrix. */
struct product_job {
    struct code_matrix w[2];  /* the second one is the up product's */
    int32_t first, row, rows; /* the tile begins at output `row` of `rows` */
    int32_t token, tokens;    /* the tile's first token or pair, and how many it has */
    const uint8_t *x;         /* of its first token */
    int64_t x_stride;         /* bytes from token to token */
};

/* False: nothing falls to this block. */
__device__ static inline bool find_job(
    const struct product_work *work, int32_t tile_rows, int32_t tile_tokens, struct product_job *job) {
    int32_t tile = (int32_t)blockIdx.x / work->row_tiles, group = (int32_t)blockIdx.y;
    job->row = (int32_t)blockIdx.x % work->row_tiles * tile_rows;
    job->rows = work->rows;
    job->first = group * work->rows;
    job->w[0] = job->w[1] = work->w;
    job->token = tile * tile_tokens;
    job->tokens = work->tokens - job->token;
    if (work->experts != NULL) {
        if (tile >= *work->tile_count)
            return false;
        struct expert_tile now = work->tiles[tile];
        const struct expert_places *expert = &work->experts[now.expert];
        int32_t second = work->matrix == EXPERT_GATE ? (int32_t)EXPERT_UP : (int32_t)work->matrix;
        job->w[0].codes = expert->codes[work->matrix];
        job->w[0].scales = expert->scales[work->matrix];
        job->w[1].codes = expert->codes[second];
        job->w[1].scales = expert->scales[second];
        job->token = now.first;
        job->tokens = now.pairs;
    }
    job->tokens = job->tokens < tile_tokens ? job->tokens : tile_tokens;
    job->x = work->x.values + ((int64_t)job->token * work->groups + group) * work->x.stride;
    job->x_stride = work->x.stride * work->groups;
    return true;
}

__device__ static inline void put_output(
    const struct product_work *work, const struct product_job *job, int32_t token, int32_t row, float value) {
    work->out[(job->token + token) * work->out_stride + job->first + row] = value;
}

/* ---- the hidden rows of experts ---- */

__device__ static inline float activate(float gate, float up, float limit, float weight) {
    float g = smaller_float(gate, limit);
    float u = smaller_float(larger_float(up, -limit), limit);
    return g * sigmoid_float(g) * u * weight;
}

/* Bits of the largest magnitude among a warp's values. */
__device__ static inline uint32_t largest_in_warp(float value) {
    uint32_t top = float_bits(value) & 0x7fffffffu;
    for (int32_t half = WARP / 2; half > 0; half /= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, top, half);
        top = other > top ? other : top;
    }
    return top;
}

/* The value that FP8 holds, amax_bits being those of the largest magnitude in its group. */
__device__ static inline float round_in_group(float value, uint32_t amax_bits) {
    uint8_t scale = group_scale(amax_bits, 1e-4f, 1.0f / 448.0f);
    return e4m3_value(e4m3_code(value * inverse_scale(scale))) * e8m0_value(scale);
}

/* ---- launches (product_NAME.cu): work.w to work.out are set, the tiles tell the rest ---- */

void launch_plain_product(struct stream *stream, const struct product_work *work,
    const struct product_tiles *tiles, enum code_kind kind);
/* is_gate_and_up: makes hidden rows. */
void launch_few_product(struct stream *stream, const struct product_work *work,
    const struct product_tiles *tiles, enum code_kind kind, bool is_gate_and_up);
void launch_many_product(struct stream *stream, const struct product_work *work,
    const struct product_tiles *tiles, enum code_kind kind, bool is_gate_and_up);
/* Weights of float32. */
void launch_float_product(
    struct stream *stream, const struct product_work *work, const struct product_tiles *tiles);

/* By the tiles' kernel. */
void launch_product(struct stream *stream, const struct product_work *work, const struct product_tiles *tiles,
    enum weight_format format, bool is_gate_and_up);

#endif

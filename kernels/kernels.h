/* The operations a backend offers: the seam between the forward pass (src/model) and the hardware.
 *
 * The forward pass is written once against this table. Memory the operations work on is device memory: obtained by
 * `allocate`, filled and read only by `copy_in` and `copy_out` (on the CPU backend both are plain copies and work is
 * done inline; on a GPU calls enqueue on the stream). Small per-step arrays (ids, positions, tables) are device
 * memory too.
 *
 * Every operation gives a token a result that does not depend on the other tokens of the call, on their number or
 * on the number of threads, bit for bit. Shapes: T tokens, D hidden, S streams, H heads, d head_dim.
 * Values are float32 unless said otherwise. "Rounded" rows hold values that FP8 or FP4 with block scales can hold.
 */
#ifndef NOCTURNE_KERNELS_H
#define NOCTURNE_KERNELS_H

#include "base/error.h"

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int32_t, uint8_t */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights ---- */

enum weight_format {
    WEIGHT_F32,
    WEIGHT_BF16,
    WEIGHT_FP8_TILE, /* E4M3, one E8M0 scale per 32 x 32 tile: scales [ceil(rows/32), ceil(columns/32)] */
    WEIGHT_FP8_ROW,  /* E4M3, one E8M0 scale per row and 32 columns: scales [rows, columns/32] */
    WEIGHT_FP4_ROW,  /* E2M1, two codes a byte, even column in the low nibble; scales as WEIGHT_FP8_ROW */
};

/* A linear layer's weight [rows = outputs, columns = inputs], row-major, in its published encoding. */
struct matrix {
    const void *values;
    const uint8_t *scales; /* NULL for F32 and BF16; value = code * 2^(scale - 127) */
    enum weight_format format;
    int32_t rows, columns;
};

/* Bytes of `cells` values; a multiple of 2 cells for FP4. */
static inline int64_t weight_bytes(enum weight_format format, int64_t cells) {
    static const int8_t bits[] = {32, 16, 8, 8, 4}; /* in the order of the enum */
    return cells * bits[format] / 8;
}

/* Bytes of a matrix's values and of its scales. */
static inline int64_t matrix_value_bytes(const struct matrix *w) {
    return weight_bytes(w->format, (int64_t)w->rows * w->columns);
}

static inline int64_t matrix_scale_bytes(const struct matrix *w) {
    int64_t blocks = (w->columns + 31) / 32;
    if (w->format == WEIGHT_FP8_TILE)
        return (w->rows + 31) / 32 * blocks;
    return w->format == WEIGHT_FP8_ROW || w->format == WEIGHT_FP4_ROW ? w->rows * blocks : 0;
}

/* One routed expert. */
struct expert_weights {
    struct matrix w1, w3, w2; /* gate and up [moe_intermediate, D], down [D, moe_intermediate] */
};

/* ---- activations ---- */

enum row_encoding {
    ROWS_F32,
    ROWS_FP8,      /* E4M3 codes [columns], then one E8M0 scale per 32 columns */
    ROWS_FP4,      /* E2M1 codes [columns/2], then one E8M0 scale per 32 columns */
    ROWS_FP4_FINE, /* E2M1 codes [columns/2], then one E4M3 scale per 16 columns */
};

/* Bytes of one encoded row, codes and scales together. columns is a multiple of 32. */
static inline int32_t row_bytes(enum row_encoding encoding, int32_t columns) {
    switch (encoding) {
    case ROWS_F32:
        return columns * 4;
    case ROWS_FP8:
        return columns + columns / 32;
    case ROWS_FP4:
        return columns / 2 + columns / 32;
    case ROWS_FP4_FINE:
        return columns / 2 + columns / 16;
    }
    return 0;
}

/* Encoded rows, one after the other, `stride` bytes apart: what travels between ranks and feeds products. */
struct rows {
    void *data;
    enum row_encoding encoding;
    int32_t columns;
    int64_t stride; /* bytes from row to row, >= row_bytes */
};

/* ---- key/value rows in blocks ---- */

/* Where the rows of one kind lie inside the blocks of a pool: row r of a sequence is row r % rows_per_block of
 * block table[r / rows_per_block - first_block], at base + block * block_bytes + offset + (r % rows_per_block) * row bytes. */
struct block_rows {
    uint8_t *base;
    int64_t block_bytes;
    int64_t offset;
    int32_t rows_per_block;
    enum row_encoding encoding;
    int32_t columns;
};

/* Block tables of the step's sequences, as device arrays. */
struct block_tables {
    const int32_t *blocks;      /* [sequences, stride]: block numbers */
    const int32_t *first_block; /* [sequences]: number (row / rows_per_block) of a table's first entry */
    int32_t stride;
};

/* ---- rotary tables ---- */

struct rope {
    int32_t dims;           /* the last `dims` columns of a head are rotated, in adjacent pairs */
    const float *frequency; /* host memory [dims / 2] */
};

/* ---- experts' work ---- */

/* (row, expert) pairs sorted by expert: device arrays, so that a device may have made them itself. */
struct expert_pairs {
    int32_t count;        /* pairs; where only the device knows them, the most that there can be */
    int32_t experts;      /* length of the expert_weights array */
    const int32_t *start; /* [experts + 1]: pairs of expert e are start[e] .. start[e + 1] - 1 */
    const int32_t *row;   /* [count]: index of an input row */
    const float *weight;  /* [count]: routing weight, applied before the down projection */
};

/* ---- copies of rows ---- */

struct row_copy {
    float *to; /* NULL: nothing */
    const float *from;
};

/* ---- sparse attention ---- */

struct index_choice {
    int32_t ratio; /* tokens a compressed row stands for; a query at position p sees (p + 1) / ratio rows */
    int32_t heads, columns; /* index heads and their width */
    int32_t top_k;          /* rows to choose */
    bool is_candidate_source;
    bool use_candidates; /* look only inside the candidate blocks made by the candidate source */
    int32_t block_size, block_limit;
};

struct stream; /* an order of work; the CPU backend's runs inline */
struct recording;
struct sample_row;
struct sample_adjustment;
struct sample_result;

struct kernels {
    const char *name;            /* "cpu" */
    const char *instruction_set; /* "avx512bf16", "avx2" ...: part of what makes bits comparable */
    int32_t threads;             /* threads used by one rank */
    /* Device memory is host memory: the host may use it in place once work is synchronized, and may pass its own memory
     * where device memory is asked for. copy_in and copy_out work all the same. */
    bool shares_host_memory;
    bool has_cuda_streams; /* streams are CUDA's, so that NCCL can work on them */

    void (*destroy)(const struct kernels *self); /* called by kernels_free */

    /* ---- memory and order ---- */
    /* A stream owns the scratch memory of its operations; one thread at a time enqueues on it. */
    enum result (*stream_create)(const struct kernels *self, struct stream **stream);
    void (*stream_free)(const struct kernels *self, struct stream *stream);
    enum result (*allocate)(
        const struct kernels *self, size_t bytes, void **memory); /* zeroed; 64-byte aligned */
    void (*release)(const struct kernels *self, void *memory);
    /* Bytes of device memory that nobody has yet; NULL where that is host memory. */
    int64_t (*memory_left)(const struct kernels *self);
    void (*copy_in)(struct stream *stream, void *device, const void *host, size_t bytes);
    void (*copy_out)(struct stream *stream, void *host, const void *device, size_t bytes);
    void (*copy)(
        struct stream *stream, void *to, const void *from, size_t bytes); /* device to device, no overlap */
    /* Copies rows of `columns` float32 within device memory, list [count] being there too. What is written is not read by the same
     * call. */
    void (*copy_rows)(struct stream *stream, const struct row_copy *list, int32_t count, int32_t columns);
    /* Waits for the work enqueued so far. Operations return nothing: a device that refused or failed in one of them is reported
     * here (ERROR_INTERNAL, ERROR_MEMORY), and the results since are worthless. Never fails on the CPU. */
    enum result (*synchronize)(struct stream *stream);
    /* Work that is enqueued again and again in one shape can be recorded once: between record_begin and record_end it is kept, not
     * done, and each replay enqueues all of it as one. It has the arguments of its recording, arrays included, so these stay where they
     * are; memory_moves counts how often the stream's own memory got another address: a recording is good as long as that is what it was
     * then. copy_in and copy_out cannot be recorded. A failed
     * recording is ERROR_INTERNAL, and the work was not done. All NULL where there is no such thing. */
    enum result (*record_begin)(struct stream *stream);
    enum result (*record_end)(struct stream *stream, struct recording **recording);
    int64_t (*memory_moves)(const struct stream *stream);
    void (*replay)(struct stream *stream, const struct recording *recording);
    void (*recording_free)(struct recording *recording);
    /* Bytes of device memory that `place` needs for a matrix, a multiple of 64. */
    int64_t (*placed_bytes)(const struct kernels *self, const struct matrix *host);
    /* Makes a checkpoint's matrix usable on the device: copies it into `memory`, device memory of placed_bytes that must live
     * as long as `placed`. memory NULL, where shares_host_memory is set: it is used where it lies, as long as that
     * memory lives. ERROR_INPUT for a shape that the backend cannot multiply. */
    enum result (*place)(
        const struct kernels *self, const struct matrix *host, void *memory, struct matrix *placed);

    /* ---- products ---- */
    /* out[t * out_stride + r] = sum over c of x[t][c] * w[r][c], float32 sums in an order fixed per (t, r). */
    void (*product)(struct stream *stream, const struct rows *x, int32_t tokens, const struct matrix *w,
        float *out, int64_t out_stride);
    /* `groups` products side by side: x [T, groups * columns] float32, w [groups * rows, columns],
     * out [T, groups * rows]; outputs of group g see the columns of group g. */
    void (*grouped_product)(struct stream *stream, const float *x, int32_t tokens, int32_t groups,
        const struct matrix *w, float *out);
    /* out[p] = w2 (round(silu(min(w1 x, limit)) * clamp(w3 x, limit) * weight)) for each pair: [count, D] float32.
     * The hidden row is rounded to FP8 when x is ROWS_FP8, else not. experts [pairs->experts] is host memory that stays as it is
     * while the stream lives. */
    void (*experts)(struct stream *stream, const struct rows *x, const struct expert_pairs *pairs,
        const struct expert_weights *experts, float limit, float *out);

    /* ---- rows ---- */
    void (*embed)(
        struct stream *stream, const struct matrix *table, const int32_t *ids, int32_t tokens, float *out);
    /* x * weight / sqrt(mean(x^2) + eps); weight BF16 [columns]; in place allowed. */
    void (*rms_norm)(struct stream *stream, const float *x, int32_t tokens, int32_t columns,
        const void *weight, float eps, float *out);
    /* Encodes float32 rows [tokens, columns]; ROWS_F32 copies. */
    void (*encode)(struct stream *stream, const float *x, int32_t tokens, const struct rows *out);
    /* The float32 values of encoded rows: out [tokens, columns]. */
    void (*decode)(struct stream *stream, const struct rows *x, int32_t tokens, float *out);
    /* Encodes and decodes again in place: rows of the values the encoding holds. ROWS_F32: nothing. */
    void (*round)(
        struct stream *stream, float *x, int32_t tokens, int32_t columns, enum row_encoding encoding);
    /* x [T, heads, columns] in place; `inverse` turns back. The angle is the float32 product position * frequency. */
    void (*rotate)(struct stream *stream, float *x, const int32_t *positions, int32_t tokens, int32_t heads,
        int32_t columns, const struct rope *rope, bool inverse);
    /* out = silu(min(gate, limit)) * clamp(up, -limit, limit): [T, columns]; in place allowed. */
    void (*swiglu)(struct stream *stream, const float *gate, const float *up, int32_t tokens, int32_t columns,
        float limit, float *out);
    /* out[t] = shared[t] + routed[place[t * k]] + routed[place[t * k + 1]] + ...: rows of D columns of the experts' outputs, those
     * of a token in ascending order of expert. */
    void (*combine)(struct stream *stream, const float *shared, const float *routed, const int32_t *place,
        int32_t tokens, int32_t k, int32_t columns, float *out);

    /* ---- residual streams (hyper-connections) ---- */
    /* streams [T, S, D] = copies of x [T, D]; pre [T, S] = (1, 0, ...). */
    void (*start_streams)(struct stream *stream, const float *x, int32_t tokens, int32_t streams_count,
        int32_t columns, float *streams, float *pre);
    /* out [T, D] = sum over s of pre[s] * streams[s], then RMS norm by weight (BF16 [D]). */
    void (*collapse_norm)(struct stream *stream, const float *streams, const float *pre, int32_t tokens,
        int32_t streams_count, int32_t columns, const void *weight, float eps, float *out);
    /* Mix coefficients of a sublayer: fn F32 [(2 + S) * S, S * D], base [(2 + S) * S], scale [3] ->
     * pre [T, S], post [T, S], comb [T, S, S] after `iterations` Sinkhorn normalizations. */
    void (*mix)(struct stream *stream, const float *streams, int32_t tokens, int32_t streams_count,
        int32_t columns, const struct matrix *fn, const float *base, const float *scale, int32_t iterations,
        float hc_eps, float norm_eps, float *pre, float *post, float *comb);
    /* streams[j] = post[j] * x + sum over i of comb[i][j] * streams[i], in place. */
    void (*expand)(struct stream *stream, const float *x, const float *post, const float *comb,
        int32_t tokens, int32_t streams_count, int32_t columns, float *streams);
    /* Gated addition of an n-gram lookup to every stream: kv [T, (S + 1) * D] keys then value; q and k weights BF16
     * [S, D]; tokens with is_image get nothing. */
    void (*engram_add)(struct stream *stream, const float *kv, const void *q_weight, const void *k_weight,
        const uint8_t *is_image, int32_t tokens, int32_t streams_count, int32_t columns, float eps,
        float *streams);

    /* ---- attention ---- */
    /* Rows x [T, columns] of tokens (sequence[t], row[t]) encoded into their blocks; rows below write_floor[sequence] stay
     * as they are. row[t] < 0: nothing is written. */
    void (*store_rows)(struct stream *stream, const float *x, int32_t tokens, const int32_t *sequence,
        const int32_t *row, const int32_t *write_floor, const struct block_rows *rows,
        const struct block_tables *tables);
    /* Ratio-2 groups: kv and gate [2 * groups, columns]; out[g] = softmax over the pair, column by column. */
    void (*compress_pairs)(struct stream *stream, const float *kv, const float *gate, int32_t groups,
        int32_t columns, float *out);
    /* For each token the top_k best visible rows by index score, ascending, into chosen [T, top_k], -1 after the last:
     * score(row) = sum over heads of max(0, q[h] . key(row)) * weight[h]; ties go to the lower row, NaN is never
     * chosen. q [T, heads, columns], weight [T, heads]; with FP4 keys q holds values of that encoding, too.
     * candidates [T, block_limit] (blocks of block_size rows, ascending, -1 after the last) is written by the
     * candidate source and read when use_candidates. */
    void (*choose)(struct stream *stream, const float *q, const float *weight, int32_t tokens,
        const int32_t *sequence, const int32_t *position, const struct index_choice *choice,
        const struct block_rows *keys, const struct block_tables *tables, int32_t *candidates,
        int32_t *chosen);
    /* Softmax attention of q [T, H, d] over window rows visible_from[t] .. position[t] and the chosen compressed rows
     * (latents NULL: none), one row being key and value of all heads, with a sink logit per head: out [T, H, d]. */
    void (*attend)(struct stream *stream, const float *q, int32_t tokens, int32_t heads,
        const int32_t *sequence, const int32_t *position, const int32_t *visible_from,
        const struct block_rows *window, const struct block_tables *window_tables,
        const struct block_rows *latents, const struct block_tables *latent_tables, const int32_t *chosen,
        int32_t top_k, const float *sink, float *out);

    /* ---- vision ---- */
    /* x [T, columns] += bias BF16 [columns]. */
    void (*add_bias)(struct stream *stream, float *x, int32_t tokens, int32_t columns, const void *bias);
    /* x += y, count elements. */
    void (*add)(struct stream *stream, float *x, const float *y, int64_t count);
    /* x * (1 + erf(x / sqrt 2)) / 2 in place. */
    void (*gelu)(struct stream *stream, float *x, int64_t count);
    /* Two-dimensional rotation of queries and keys in place: qkv [rows * columns, 3, heads, width], the grid row-major;
     * halves of a head are rotated against each other (not adjacent pairs): pairs 0 .. width/4 - 1 by the grid row,
     * the rest by the grid column. frequency: host memory [width / 4]. */
    void (*rotate_grid)(struct stream *stream, float *qkv, int32_t grid_rows, int32_t grid_columns,
        int32_t heads, int32_t width, const float *frequency);
    /* Squares of ratio x ratio grid cells as one row each: x [rows * columns, C] -> out [ceil(rows / ratio) *
     * ceil(columns / ratio), C * ratio * ratio], column (c * ratio + i) * ratio + j; cells beyond the grid are 0. */
    void (*pack_squares)(struct stream *stream, const float *x, int32_t grid_rows, int32_t grid_columns,
        int32_t columns, int32_t ratio, float *out);
    /* Full attention among the T tokens of one image: qkv [T, 3, heads, width] -> out [T, heads * width]. */
    void (*attend_all)(
        struct stream *stream, const float *qkv, int32_t tokens, int32_t heads, int32_t width, float *out);

    /* ---- sampling ---- */
    /* `count` draws from rows of logits [.., vocab_size]; rows, adjustments, masks and results are device memory: see
     * kernels/sample.h. NULL: the host samples. */
    void (*sample)(struct stream *stream, const float *logits, int32_t count, int32_t vocab_size,
        const struct sample_row *rows, const struct sample_adjustment *adjustments, const uint64_t *masks,
        struct sample_result *results);

    /* ---- router ---- */
    /* Scores sqrt(softplus(logit)) of logits [T, experts]; the k best by score + bias (bias_vl for image tokens), ties to the
     * lower expert; experts [T, k] ascending, weights [T, k] from the scores alone, normalized (if asked) and
     * times factor. */
    void (*route)(struct stream *stream, const float *logits, int32_t tokens, int32_t expert_count,
        const float *bias, const float *bias_vl, const uint8_t *is_image, int32_t k, bool normalize,
        float factor, int32_t *experts, float *weights);
};

/* The CPU backend with `threads` threads (0: OpenMP's default), for the best instruction set this machine has, or
 * the one named ("generic", "avx2", "avx512", "avx512bf16"). *kernels is owned by the backend; kernels_free ends it.
 * ERROR_USAGE for a name this machine or build does not have. */
MUST_CHECK enum result kernels_cpu_create(
    int32_t threads, const char *instruction_set, const struct kernels **kernels);

/* The CUDA backend on one of the devices that this process sees, numbered from 0; kernels_free ends it. ERROR_USAGE, saying
 * what is missing, when this build has no CUDA, the machine no driver, or the device does not exist or is too old. */
MUST_CHECK enum result kernels_cuda_create(int32_t device, const struct kernels **kernels);

/* Devices the CUDA backend can use; 0 without a driver or in a build without CUDA, *why saying which (a static text). */
int32_t kernels_cuda_devices(const char **why);

void kernels_free(const struct kernels *kernels); /* NULL is allowed */

#ifdef __cplusplus
}
#endif

#endif

/* Sparse attention: one latent row per position is key and value of all heads.
 *
 * The visible rows of a token (window rows, then chosen rows, both ascending) are decoded to float32, LANES columns of
 * all rows side by side: plane v holds columns v * LANES on, one vector a row. Scores have heads in lanes, so that
 * neither they nor their softmax need sums across lanes: a score is one chain of multiply-adds over the columns,
 * queries by vectors, the row's values broadcast. An output is one chain over the rows, weights broadcast, and is
 * divided by the sum of the weights at the end.
 *
 * With many tokens a thread takes a token as a whole, and consecutive ones of a sequence so that their window rows are
 * decoded once; the tokens that are left over are shared out among all threads, part by part. Both ways lead
 * through the same chains.
 */
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

#include <math.h> /* INFINITY, sqrtf */

enum {
    RUN_TOKENS = 8,     /* most consecutive tokens of one thread */
    SHARED_ROWS = 24,   /* rows of a work item of a shared token, a multiple of all tiles' rows */
    SHARED_VECTORS = 2, /* vectors of columns of such an item */
    PREFETCHED_ROWS = 8,
    LEAST_SHARED_WORK =
        4 << 20, /* heads x columns x rows: for less, threads wait longer for each other than they work */
#ifdef HAVE_AVX512
    SCORE_VECTORS = 4,  /* vectors of heads in a tile of scores */
    TILE_SUMS = 24,     /* sums of a tile, in registers */
    LAST_TILE_SUMS = 8, /* of a tile for the last rows */
    SUM_HEADS = 8,      /* heads and vectors of columns in a tile of outputs */
    SUM_VECTORS = 2,
#else
    SCORE_VECTORS = 2,
    TILE_SUMS = 12,
    LAST_TILE_SUMS = 4,
    SUM_HEADS = 4,
    SUM_VECTORS = 2,
#endif
};

/* Scratch memory for one token at a time. */
struct attention_space {
    float *queries; /* [columns, heads] of the token */
    float *rows;    /* [planes, slots, LANES] */
    float *scores;  /* [rows of the token's list, heads], then weights */
    float *inverse; /* [heads]: 1 / sum of the weights */
};

/* One call: what the threads share. Heads and columns are padded to vectors. */
struct attention_call {
    const float *q;
    int32_t tokens, heads, padded_heads, columns, padded;
    const int32_t *sequence, *position, *visible_from;
    const struct block_rows *window, *latents;
    const struct block_tables *window_tables, *latent_tables;
    const int32_t *chosen;
    int32_t top_k;
    const float *sink;
    float *out;
    int32_t most_window; /* window rows of any token */
    int32_t latent_slot; /* slots before it are the window's */
    int64_t plane;       /* floats from plane to plane */
    float *memory;       /* scratch of all spaces */
    int64_t space_floats;
};

/* Rows of a token's list: the slots of its window rows and of its chosen rows. */
struct row_list {
    int32_t slot[2], count[2];
};

static int32_t window_count(const struct attention_call *call, int32_t token) {
    int32_t count = call->position[token] - call->visible_from[token] + 1;
    return count > 0 ? count : 0;
}

static int32_t chosen_count(const struct attention_call *call, int32_t token) {
    int32_t count = 0;
    if (call->latents == NULL)
        return 0;
    while (count < call->top_k && call->chosen[(int64_t)token * call->top_k + count] >= 0)
        count++;
    return count;
}

/* ---- decoding ---- */

static inline __attribute__((always_inline)) void store_planes(
    float *out, int64_t plane, const lanes *value) {
#pragma GCC unroll 8
    for (int32_t v = 0; v < STEP_VECTORS; v++)
        store(out + v * plane, value[v]);
}

/* Factors of up to GROUP groups from their scale codes. */
static inline void fine_factors(const uint8_t *scales, int32_t count, float *factors) {
    uint8_t padded[GROUP];
    if (count == GROUP / 2) { /* a copy whose length the compiler knows is one load and store */
        memcpy(padded, scales, GROUP / 2);
        memset(padded + GROUP / 2, 0, GROUP / 2);
    } else {
        memset(padded, 0, GROUP);
        memcpy(padded, scales, (size_t)count);
    }
    lanes value[STEP_VECTORS];
    decode_fp8_step(count == GROUP ? scales : padded, scale_factor(WEIGHT_FP8_ROW, E8M0_ONE), true, value);
    store_step(factors, value);
}

/* GROUP columns of a fine row. */
static inline __attribute__((always_inline)) void decode_fine_step(
    const uint8_t *codes, const float *factors, lanes *value) {
#if defined(HAVE_AVX512)
    /* lane l takes eight codes and shifts its own down; the permutation looks at four bits only */
    const lanes values = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)codes));
    __m512i first = _mm512_srlv_epi32(_mm512_permutexvar_epi32(halves, all), shifts);
    __m512i second = _mm512_srlv_epi32(
        _mm512_permutexvar_epi32(_mm512_add_epi32(halves, _mm512_set1_epi32(2)), all), shifts);
    value[0] = (lanes)_mm512_permutexvar_ps(first, (__m512)values) * factors[0];
    value[1] = (lanes)_mm512_permutexvar_ps(second, (__m512)values) * factors[1];
#else
    decode_fp4_step(codes, 1, value);
    for (int32_t v = 0; v < STEP_VECTORS; v++)
        value[v] *= factors[v / (STEP_VECTORS / 2)];
#endif
}

static void decode_fine_row(const uint8_t *row, int32_t columns, float *out, int64_t plane) {
    float factors[GROUP];
    const uint8_t *scales = row + columns / 2;
    lanes value[STEP_VECTORS];
    for (int32_t begin = 0; begin < columns; begin += GROUP * FINE_GROUP) {
        int32_t end = least(begin + GROUP * FINE_GROUP, columns);
        fine_factors(scales + begin / FINE_GROUP, (end - begin) / FINE_GROUP, factors);
        for (int32_t c = begin; c < end; c += GROUP, out += STEP_VECTORS * plane) {
            decode_fine_step(row + c / 2, factors + (c - begin) / FINE_GROUP, value);
            store_planes(out, plane, value);
        }
    }
}

/* The values decode_row gives, vector v at out + v * plane; the last vector is padded with zeros. */
static void decode_to_planes(
    enum row_encoding encoding, const uint8_t *row, int32_t columns, float *out, int64_t plane) {
    lanes value[STEP_VECTORS];
    switch (encoding) {
    case ROWS_F32:
        for (int32_t c = 0; c < columns; c += LANES)
            store(out + c / LANES * plane, load_part((const float *)row + c, columns - c));
        break;
    case ROWS_FP8:
        for (int32_t c = 0; c < columns; c += GROUP) {
            uint8_t scale = row[columns + c / GROUP];
            if (scale <= 246) {
                decode_fp8_step(row + c, scale_factor(WEIGHT_FP8_ROW, scale), true, value);
            } else { /* the factor would be infinite */
                float values[GROUP];
                decode_fp8_group(row + c, scale, values);
                for (int32_t v = 0; v < STEP_VECTORS; v++)
                    value[v] = load(values + v * LANES);
            }
            store_planes(out + c / LANES * plane, plane, value);
        }
        break;
    case ROWS_FP4:
        for (int32_t c = 0; c < columns; c += GROUP) {
            decode_fp4_step(row + c / 2, e8m0_value(row[columns / 2 + c / GROUP]), value);
            store_planes(out + c / LANES * plane, plane, value);
        }
        break;
    case ROWS_FP4_FINE:
        decode_fine_row(row, columns, out, plane);
        break;
    }
}

/* Window rows [first, first + count) of a sequence into slots from `slot` on. */
static void decode_window(const struct attention_call *call, const struct attention_space *space,
    int32_t sequence, int32_t first, int32_t count, int32_t slot) {
    for (int32_t i = 0; i < count; i++)
        decode_to_planes(call->window->encoding,
            block_row(call->window, call->window_tables, sequence, first + i), call->columns,
            space->rows + (int64_t)(slot + i) * LANES, call->plane);
}

/* Chosen rows [first, first + count) of a token's list into slots from `slot` on. They lie far from each other, so that
 * no hardware foresees them. */
static void decode_chosen(const struct attention_call *call, const struct attention_space *space,
    int32_t token, int32_t first, int32_t count, int32_t slot) {
    const int32_t *chosen = call->chosen + (int64_t)token * call->top_k + first;
    int32_t sequence = call->sequence[token];
    int32_t bytes = row_bytes(call->latents->encoding, call->columns);
    const uint8_t *rows[PREFETCHED_ROWS];
    for (int32_t done = 0; done < count; done += PREFETCHED_ROWS) {
        int32_t now = least(PREFETCHED_ROWS, count - done);
        for (int32_t i = 0; i < now; i++) {
            rows[i] = block_row(call->latents, call->latent_tables, sequence, chosen[done + i]);
            for (int32_t b = 0; b < bytes; b += 64)
                __builtin_prefetch(rows[i] + b);
        }
        for (int32_t i = 0; i < now; i++)
            decode_to_planes(call->latents->encoding, rows[i], call->columns,
                space->rows + (int64_t)(slot + done + i) * LANES, call->plane);
    }
}

/* ---- scores ---- */

/* The token's queries with heads in lanes. */
static void load_queries(const struct attention_call *call, int32_t token, float *queries) {
    const float *q = call->q + (int64_t)token * call->heads * call->columns;
    for (int32_t h = 0; h < call->padded_heads; h += LANES)
        for (int32_t c = 0; c < call->padded; c += LANES) {
            lanes square[LANES];
            for (int32_t i = 0; i < LANES; i++)
                square[i] = h + i < call->heads
                                ? load_part(q + (int64_t)(h + i) * call->columns + c, call->columns - c)
                                : splat(0);
            transpose(square);
            for (int32_t i = 0; i < LANES; i++)
                store(queries + (int64_t)(c + i) * call->padded_heads + h, square[i]);
        }
}

/* Scores of `rows` rows and `vectors` vectors of heads over `columns` columns, of which the first `stored` rows exist;
 * vectors and rows are constant where it is called. */
static inline __attribute__((always_inline)) void score_tile(const float *queries, int64_t heads,
    const float *values, int64_t plane, int32_t columns, bool add, float *scores, int32_t stored,
    const int32_t vectors, const int32_t rows) {
    lanes sum[TILE_SUMS];
#pragma GCC unroll 24
    for (int32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int32_t v = 0; v < vectors; v++)
            sum[r * vectors + v] = add && r < stored ? load(scores + r * heads + v * LANES) : splat(0);
    for (int32_t c = 0; c < columns; c += LANES, values += plane)
        for (int32_t i = 0; i < LANES; i++, queries += heads) {
            lanes query[SCORE_VECTORS];
#pragma GCC unroll 4
            for (int32_t v = 0; v < vectors; v++)
                query[v] = load(queries + v * LANES);
#pragma GCC unroll 24
            for (int32_t r = 0; r < rows; r++) {
                lanes value = splat(values[r * LANES + i]);
#pragma GCC unroll 4
                for (int32_t v = 0; v < vectors; v++)
                    sum[r * vectors + v] = multiply_add(value, query[v], sum[r * vectors + v]);
            }
        }
#pragma GCC unroll 24
    for (int32_t r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int32_t v = 0; v < vectors; v++)
            if (r < stored)
                store(scores + r * heads + v * LANES, sum[r * vectors + v]);
}

/* `count` rows and `vectors` vectors of heads, constant where it is called. Blocks of columns keep the queries in the
 * first cache while all rows pass. */
static inline __attribute__((always_inline)) void score_strip(const struct attention_call *call,
    const float *queries, const float *values, int32_t count, float *scores, const int32_t vectors) {
    const int32_t rows = TILE_SUMS / vectors, last = LAST_TILE_SUMS / vectors;
    const int32_t block = vectors == 1 ? 128 : 64;
    int64_t heads = call->padded_heads;
    for (int32_t c = 0; c < call->padded; c += block) {
        int32_t columns = least(block, call->padded - c), r = 0;
        const float *q = queries + c * heads, *first = values + c / LANES * call->plane;
        for (; r + rows <= count; r += rows)
            score_tile(q, heads, first + r * LANES, call->plane, columns, c > 0, scores + r * heads, rows,
                vectors, rows);
        for (; r < count; r += last)
            score_tile(q, heads, first + r * LANES, call->plane, columns, c > 0, scores + r * heads,
                count - r, vectors, last);
    }
}

/* Scores of `count` rows, from `values` on, for all heads. The values of up to TILE_SUMS rows after them are read, too. */
static void score_rows(const struct attention_call *call, const float *queries, const float *values,
    int32_t count, float *scores) {
    int32_t h = 0;
#ifdef HAVE_AVX512
    for (; h + 4 * LANES <= call->padded_heads; h += 4 * LANES)
        score_strip(call, queries + h, values, count, scores + h, 4);
#endif
    for (; h + 2 * LANES <= call->padded_heads; h += 2 * LANES)
        score_strip(call, queries + h, values, count, scores + h, 2);
    if (h < call->padded_heads)
        score_strip(call, queries + h, values, count, scores + h, 1);
}

/* ---- softmax ---- */

/* Scores [count] of one vector of heads become weights that are not divided by their sum yet. */
static void weigh(
    const struct attention_call *call, int32_t head, int32_t count, float *scores, float *inverse) {
    lanes scale = splat(1.0f / sqrtf((float)call->columns));
    lanes sink = load_part(call->sink + head, call->heads - head), top = splat(-INFINITY);
    scores += head;
    for (int32_t k = 0; k < count; k++)
        top = larger(top, load(scores + (int64_t)k * call->padded_heads));
    top = larger(sink, top * scale);
    lanes total = vector_exp(sink - top);
    for (int32_t k = 0; k < count; k++) {
        float *at = scores + (int64_t)k * call->padded_heads;
        lanes weight = vector_exp(multiply_add(load(at), scale, -top));
        store(at, weight);
        total += weight;
    }
    store(inverse + head, 1.0f / total);
}

/* ---- outputs ---- */

/* Outputs of `heads` heads and `vectors` vectors of columns, both constant where it is called, of which the first
 * `stored` heads exist. */
static inline __attribute__((always_inline)) void sum_tile(const struct attention_call *call,
    const struct row_list *list, const float *weight, const float *inverse, const float *values, float *out,
    int32_t stored, int32_t columns, const int32_t heads, const int32_t vectors) {
    lanes sum[SUM_HEADS][SUM_VECTORS];
#pragma GCC unroll 8
    for (int32_t h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int32_t v = 0; v < vectors; v++)
            sum[h][v] = splat(0);
    for (int32_t part = 0; part < 2; part++) {
        const float *at = values + (int64_t)list->slot[part] * LANES;
        for (int32_t k = 0; k < list->count[part]; k++, at += LANES, weight += call->padded_heads) {
            lanes value[SUM_VECTORS];
#pragma GCC unroll 8
            for (int32_t v = 0; v < vectors; v++)
                value[v] = load(at + v * call->plane);
#pragma GCC unroll 8
            for (int32_t h = 0; h < heads; h++) {
                lanes factor = splat(weight[h]);
#pragma GCC unroll 8
                for (int32_t v = 0; v < vectors; v++)
                    sum[h][v] = multiply_add(factor, value[v], sum[h][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int32_t h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int32_t v = 0; v < vectors; v++)
            if (h < stored)
                store_part(out + (int64_t)h * call->columns + v * LANES, sum[h][v] * inverse[h],
                    columns - v * LANES);
}

/* Vectors [vector, vector + vectors) of the columns of a token's outputs, vectors <= SUM_VECTORS. */
static void sum_strip(const struct attention_call *call, const struct attention_space *space, int32_t token,
    const struct row_list *list, int32_t vector, int32_t vectors) {
    const float *values = space->rows + vector * call->plane;
    int32_t columns = call->columns - vector * LANES;
    for (int32_t h = 0; h < call->heads; h += SUM_HEADS) {
        const float *weight = space->scores + h, *inverse = space->inverse + h;
        float *out = call->out + ((int64_t)token * call->heads + h) * call->columns + vector * LANES;
        int32_t stored = call->heads - h;
        if (vectors == SUM_VECTORS)
            sum_tile(call, list, weight, inverse, values, out, stored, columns, SUM_HEADS, SUM_VECTORS);
        else
            sum_tile(call, list, weight, inverse, values, out, stored, columns, SUM_HEADS, 1);
    }
}

/* ---- whole tokens ---- */

static struct attention_space open_space(const struct attention_call *call, int32_t number) {
    float *queries = call->memory + number * call->space_floats;
    float *rows = queries + (int64_t)call->padded * call->padded_heads;
    float *inverse = rows + call->padded / LANES * call->plane;
    return (struct attention_space){queries, rows, inverse + call->padded_heads, inverse};
}

static void attend_token(const struct attention_call *call, const struct attention_space *space,
    int32_t token, const struct row_list *list) {
    int32_t count = list->count[0] + list->count[1];
    load_queries(call, token, space->queries);
    float *scores = space->scores;
    for (int32_t part = 0; part < 2; part++) {
        score_rows(
            call, space->queries, space->rows + (int64_t)list->slot[part] * LANES, list->count[part], scores);
        scores += (int64_t)list->count[part] * call->padded_heads;
    }
    for (int32_t h = 0; h < call->padded_heads; h += LANES)
        weigh(call, h, count, space->scores, space->inverse);
    int32_t vectors = call->padded / LANES;
    for (int32_t v = 0; v < vectors;) {
        int32_t left = vectors - v, now = least(left, SUM_VECTORS);
        sum_strip(call, space, token, list, v, now);
        v += now;
    }
}

/* Whether a token's window continues that of the token before it, of which rows before `decoded` are decoded. */
static bool continues(const struct attention_call *call, int32_t token, int32_t decoded) {
    return call->sequence[token] == call->sequence[token - 1] &&
           call->position[token] == call->position[token - 1] + 1 &&
           call->visible_from[token] >= call->visible_from[token - 1] && call->visible_from[token] <= decoded;
}

/* Tokens [begin, end), at most RUN_TOKENS; window rows are decoded once for consecutive ones. */
static void attend_run(
    const struct attention_call *call, const struct attention_space *space, int32_t begin, int32_t end) {
    int32_t first = 0, decoded = 0; /* window rows in the slots: [first, decoded) */
    for (int32_t t = begin; t < end; t++) {
        if (t == begin || !continues(call, t, decoded))
            first = decoded = call->visible_from[t];
        int32_t next = call->position[t] + 1;
        if (next > decoded) {
            decode_window(call, space, call->sequence[t], decoded, next - decoded, decoded - first);
            decoded = next;
        }
        struct row_list list = {{call->visible_from[t] - first, call->latent_slot},
            {window_count(call, t), chosen_count(call, t)}};
        if (list.count[1] > 0)
            decode_chosen(call, space, t, 0, list.count[1], list.slot[1]);
        attend_token(call, space, t, &list);
    }
}

/* ---- shared tokens ---- */

/* Scores of rows [first, first + SHARED_ROWS) of one part of a token's list. */
static void score_shared(const struct attention_call *call, const struct attention_space *space,
    const float *queries, int32_t token, int32_t part, int32_t first) {
    int32_t window = window_count(call, token);
    int32_t count = part == 0 ? window : chosen_count(call, token);
    int32_t slot = (part == 0 ? 0 : call->latent_slot) + first;
    count = least(SHARED_ROWS, count - first);
    if (count <= 0)
        return;
    if (part == 0)
        decode_window(call, space, call->sequence[token], call->visible_from[token] + first, count, slot);
    else
        decode_chosen(call, space, token, first, count, slot);
    score_rows(call, queries, space->rows + (int64_t)slot * LANES, count,
        space->scores + (int64_t)(first + (part == 0 ? 0 : window)) * call->padded_heads);
}

/* Tokens from `begin` on, each by all threads. Called by all threads of a parallel region. */
static void attend_shared(const struct attention_call *call, int32_t begin) {
    int32_t count = call->tokens - begin, prepared = -1;
    struct attention_space own = open_space(call, thread_number());
    int32_t windows = (call->most_window + SHARED_ROWS - 1) / SHARED_ROWS;
    int32_t blocks = windows + (call->latents != NULL ? call->top_k + SHARED_ROWS - 1 : 0) / SHARED_ROWS;
#pragma omp for schedule(dynamic)
    for (int32_t item = 0; item < count * blocks; item++) {
        int32_t token = begin + item / blocks, block = item % blocks, part = block >= windows;
        struct attention_space space = open_space(call, token - begin);
        if (token != prepared)
            load_queries(call, token, own.queries);
        prepared = token;
        score_shared(call, &space, own.queries, token, part, (block - (part ? windows : 0)) * SHARED_ROWS);
    }
    int32_t head_vectors = call->padded_heads / LANES;
#pragma omp for schedule(static)
    for (int32_t item = 0; item < count * head_vectors; item++) {
        int32_t token = begin + item / head_vectors;
        struct attention_space space = open_space(call, token - begin);
        weigh(call, item % head_vectors * LANES, window_count(call, token) + chosen_count(call, token),
            space.scores, space.inverse);
    }
    int32_t vectors = call->padded / LANES, strips = (vectors + SHARED_VECTORS - 1) / SHARED_VECTORS;
#pragma omp for schedule(dynamic)
    for (int32_t item = 0; item < count * strips; item++) {
        int32_t token = begin + item / strips, vector = item % strips * SHARED_VECTORS;
        struct attention_space space = open_space(call, token - begin);
        struct row_list list = {
            {0, call->latent_slot}, {window_count(call, token), chosen_count(call, token)}};
        sum_strip(call, &space, token, &list, vector, least(SHARED_VECTORS, vectors - vector));
    }
}

/* ---- the operation ---- */

/* Sizes of the spaces, and their memory. */
static void allocate_spaces(struct attention_call *call, struct stream *stream) {
    int32_t top_k = call->latents != NULL ? call->top_k : 0;
    for (int32_t t = 0; t < call->tokens; t++) {
        int32_t count = window_count(call, t);
        call->most_window = count > call->most_window ? count : call->most_window;
    }
    /* tiles read beyond the last row of either part */
    call->latent_slot = call->most_window + RUN_TOKENS + TILE_SUMS;
    int64_t slots = (int64_t)call->latent_slot + top_k + TILE_SUMS;
    call->plane = (slots | 1) * LANES; /* odd, lest the planes' vectors of a row crowd one cache set */
    call->space_floats = (int64_t)call->padded_heads * (call->padded + 1 + call->most_window + top_k) +
                         call->padded / LANES * call->plane;
    call->space_floats = (call->space_floats + LANES - 1) / LANES * LANES;
    call->memory = stream_scratch(
        stream, SCRATCH_ROWS, (size_t)stream->threads * (size_t)call->space_floats * sizeof(float));
}

static void attend(struct stream *stream, const float *q, int32_t tokens, int32_t heads,
    const int32_t *sequence, const int32_t *position, const int32_t *visible_from,
    const struct block_rows *window, const struct block_tables *window_tables,
    const struct block_rows *latents, const struct block_tables *latent_tables, const int32_t *chosen,
    int32_t top_k, const float *sink, float *out) {
    if (tokens <= 0)
        return;
    struct attention_call call = {.q = q,
        .tokens = tokens,
        .heads = heads,
        .padded_heads = round_up(heads, LANES),
        .columns = window->columns,
        .padded = round_up(window->columns, LANES),
        .sequence = sequence,
        .position = position,
        .visible_from = visible_from,
        .window = window,
        .latents = latents,
        .window_tables = window_tables,
        .latent_tables = latent_tables,
        .chosen = chosen,
        .top_k = top_k,
        .sink = sink,
        .out = out};
    allocate_spaces(&call, stream);
    int32_t threads = stream->threads;
    int64_t work =
        (int64_t)call.padded_heads * call.padded * (call.most_window + (latents != NULL ? top_k : 0));
    bool is_shared = tokens < RUN_TOKENS * threads && work > LEAST_SHARED_WORK;
    int32_t shared = is_shared ? tokens % threads : 0, whole = tokens - shared;
    int32_t run = least(RUN_TOKENS, (whole + 4 * threads - 1) / (4 * threads));
#pragma omp parallel num_threads(threads)
    {
        struct attention_space space = open_space(&call, thread_number());
        if (whole > 0) {
#pragma omp for schedule(dynamic)
            for (int32_t begin = 0; begin < whole; begin += run)
                attend_run(&call, &space, begin, least(begin + run, whole));
        }
        if (shared > 0)
            attend_shared(&call, whole);
    }
}

void FOR_SET(fill_attention)(struct kernels *kernels) {
    kernels->attend = attend;
}

/* Products with packed weights where BF16 dot products are at hand: rows rounded to FP8 meet FP8 and FP4 weights as BF16
 * numbers, which is exact; all others are multiplied in float32.
 *
 * The sum of one (token, output) is the same for every shape of the call: blocks of columns, each summed in 16 lanes by one
 * chain of dot products or multiply-adds over the decoded vectors in turn, folded as sum_lanes does, the blocks' sums added
 * in order. Weights are read in the order in which they lie in memory, which is what prefetchers can follow, and decoded in
 * registers for few tokens (of the formats that the model meets often), else a few whole rows at a time into a tile in
 * the cache.
 */
#include "kernels/cpu/operations/bf16_decode.h"
#include "kernels/cpu/operations/fold.h"
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

#ifdef HAVE_BF16

enum {
    WORD_BLOCK = 2048,  /* columns of a block of BF16 products */
    FLOAT_BLOCK = 1024, /* of float32 products */
    MICRO_ROWS = 4,
    MICRO_TOKENS = 6,
    SOME_TOKENS = 2 * MICRO_TOKENS, /* up to so many, a tile is small enough for the nearest cache */
    STEP_FLOAT_VECTORS = STEP_COLUMNS / LANES,
    ROW_END = 64, /* bytes after a row of a tile or an input: a stride of 2^n would crowd cache sets */
};

enum { MOST_GROUPS = MOST_COLUMNS / GROUP };

/* A thread's memory: what scales lack, for MICRO_ROWS rows, and decoded rows (or vectors of what scales lack). */
struct tile {
    uint16_t lacking[MICRO_ROWS * MOST_GROUPS];
    uint8_t values[TILE_BYTES - MICRO_ROWS * MOST_GROUPS * 2];
};

_Static_assert(
    MICRO_ROWS *(MOST_COLUMNS * 4 + ROW_END) <= sizeof((struct tile *)NULL)->values, "the least tile fits");

/* ---- weights ---- */

/* Rows of a matrix. */
struct weight_rows {
    const uint8_t *codes, *scales; /* of the first row */
    int64_t stride, scale_stride;  /* bytes from row to row; scale_stride 0: one row of scales for all */
    int32_t columns;
};

/* Rows from `row` on, within one tile of scales. */
static struct weight_rows open_rows(const struct matrix *w, int32_t row) {
    int64_t stride = weight_bytes(w->format, w->columns), groups = (w->columns + GROUP - 1) / GROUP;
    bool is_tile = w->format == WEIGHT_FP8_TILE;
    return (struct weight_rows){.codes = (const uint8_t *)w->values + row * stride,
        .scales = w->scales == NULL ? NULL : w->scales + (is_tile ? row / GROUP : row) * groups,
        .stride = stride,
        .scale_stride = is_tile ? 0 : groups,
        .columns = w->columns};
}

/* ---- steps ---- */

/* The words of one step of one row: `exponents` are what the scales lack as vectors, for WEIGHT_FP8_TILE, `four` the same as
 * words, for the other formats. format is constant where it is called. */
static inline __attribute__((always_inline)) void decode_words(const enum weight_format format,
    const uint8_t *codes, const uint16_t *four, const __m512i *exponents, const struct decode_tables *tables,
    __m512i *words) {
    switch (format) {
    case WEIGHT_FP8_TILE:
        e4m3_words(_mm512_loadu_si512(codes), tables, exponents[0], words);
        e4m3_words(_mm512_loadu_si512(codes + 64), tables, exponents[1], words + 2);
        break;
    case WEIGHT_FP8_ROW:
        e4m3_words(_mm512_loadu_si512(codes), tables, e4m3_exponents(four, 0), words);
        e4m3_words(_mm512_loadu_si512(codes + 64), tables, e4m3_exponents(four, 1), words + 2);
        break;
    case WEIGHT_FP4_ROW:
        e2m1_words_of(_mm512_loadu_si512(codes), tables, e2m1_exponents(four), words);
        break;
    case WEIGHT_BF16:
    case WEIGHT_F32:
#pragma GCC unroll 4
        for (int32_t v = 0; v < STEP_WORD_VECTORS; v++)
            words[v] = _mm512_loadu_si512(codes + v * 64);
        break;
    }
}

/* As decode_words, as float32. */
static inline __attribute__((always_inline)) void decode_floats(const enum weight_format format,
    const uint8_t *codes, const uint16_t *four, const __m512i *exponents, const struct decode_tables *tables,
    lanes *values) {
    if (format == WEIGHT_F32) {
#pragma GCC unroll 8
        for (int32_t v = 0; v < STEP_FLOAT_VECTORS; v++)
            values[v] = load((const float *)codes + v * LANES);
        return;
    }
    __m512i words[STEP_WORD_VECTORS];
    decode_words(format, codes, four, exponents, tables, words);
#pragma GCC unroll 4
    for (int32_t v = 0; v < STEP_WORD_VECTORS; v++) {
        values[2 * v] = even_words(words[v]);
        values[2 * v + 1] = odd_words(words[v]);
    }
}

/* The codes of a row's last, partial step, padded with zeros. */
static void pad_codes(enum weight_format format, const uint8_t *codes, int32_t count, uint8_t *padded) {
    memset(padded, 0, STEP_COLUMNS * sizeof(float));
    memcpy(padded, codes, (size_t)weight_bytes(format, count));
}

/* What the scales of a row lack, up to a multiple of a step. */
static void fill_lacking(
    enum weight_format format, const uint8_t *scales, int32_t columns, uint16_t *lacking) {
    int32_t groups = (columns + GROUP - 1) / GROUP;
    if (format == WEIGHT_FP4_ROW)
        lacking_words(scales, groups, E2M1_LARGEST_SCALE, E2M1_LEAST_SCALE, lacking);
    else
        lacking_words(scales, groups, E4M3_LARGEST_SCALE, E4M3_LEAST_SCALE, lacking);
}

/* ---- few tokens ---- */

/* Rows met side by side by few tokens: far apart, so that each is read as one long stream, which prefetchers follow better
 * than neighbours. */
struct few_rows {
    const uint8_t *codes[MICRO_ROWS];
    const uint16_t *lacking[MICRO_ROWS];  /* WEIGHT_FP4_ROW */
    const __m512i *exponents[MICRO_ROWS]; /* WEIGHT_FP8_TILE: of each 64 columns */
    int32_t kept;                         /* the first ones, whose sums are wanted */
};

/* One step of `side` rows (1 or 2) side by side, so that each piece of input is loaded once: sum[t * MICRO_ROWS + r]. */
static inline __attribute__((always_inline)) void few_step(const enum weight_format format,
    const bool is_bf16, const uint8_t *const *codes, const struct few_rows *w, int32_t row, int32_t column,
    const struct decode_tables *tables, const uint8_t *const *input, lanes *sum, const int32_t tokens,
    const int32_t side) {
    if (is_bf16) {
        __m512i words[2][STEP_WORD_VECTORS];
#pragma GCC unroll 2
        for (int32_t r = 0; r < side; r++)
            decode_words(format, codes[r], w->lacking[row + r] + column / GROUP,
                w->exponents[row + r] + column / 64, tables, words[r]);
#pragma GCC unroll 8
        for (int32_t t = 0; t < tokens; t++)
#pragma GCC unroll 4
            for (int32_t v = 0; v < STEP_WORD_VECTORS; v++) {
                __m512bh value = (__m512bh)_mm512_load_si512(input[t] + column * 2 + v * 64);
#pragma GCC unroll 2
                for (int32_t r = 0; r < side; r++)
                    sum[t * MICRO_ROWS + r] = (lanes)_mm512_dpbf16_ps(
                        (__m512)sum[t * MICRO_ROWS + r], (__m512bh)words[r][v], value);
            }
    } else {
        lanes values[2][STEP_FLOAT_VECTORS];
#pragma GCC unroll 2
        for (int32_t r = 0; r < side; r++)
            decode_floats(format, codes[r], w->lacking[row + r] + column / GROUP,
                w->exponents[row + r] + column / 64, tables, values[r]);
#pragma GCC unroll 8
        for (int32_t t = 0; t < tokens; t++)
#pragma GCC unroll 8
            for (int32_t v = 0; v < STEP_FLOAT_VECTORS; v++) {
                lanes value = load((const float *)(input[t] + column * 4 + v * 64));
#pragma GCC unroll 2
                for (int32_t r = 0; r < side; r++)
                    sum[t * MICRO_ROWS + r] = multiply_add(value, values[r][v], sum[t * MICRO_ROWS + r]);
            }
    }
}

/* tokens x rows sums: out[t * out_stride + r * row_step]. format, is_bf16 and tokens are constant where it is called. */
static inline __attribute__((always_inline)) void few_micro(const enum weight_format format,
    const bool is_bf16, const void *const *x, const struct few_rows *w, int32_t columns, float *out,
    int64_t out_stride, int32_t row_step, const int32_t tokens) {
    const struct decode_tables tables = load_tables();
    const int32_t block = is_bf16 ? WORD_BLOCK : FLOAT_BLOCK;
    const int32_t side = is_bf16 || tokens <= 2 ? 2 : 1; /* as registers allow */
    const uint8_t *input[FEW_TOKENS];
#pragma GCC unroll 8
    for (int32_t t = 0; t < tokens; t++)
        input[t] = x[t];
    for (int32_t column = 0; column < columns; column += block) {
        lanes sum[FEW_TOKENS][MICRO_ROWS];
        int32_t c = column, end = least(column + block, columns);
#pragma GCC unroll 8
        for (int32_t t = 0; t < tokens; t++)
#pragma GCC unroll 4
            for (int32_t r = 0; r < MICRO_ROWS; r++)
                sum[t][r] = splat(0);
        for (; c + STEP_COLUMNS <= end; c += STEP_COLUMNS)
#pragma GCC unroll 4
            for (int32_t r = 0; r < MICRO_ROWS; r += side) {
                const uint8_t *codes[2] = {w->codes[r] + weight_bytes(format, c),
                    side == 2 ? w->codes[r + 1] + weight_bytes(format, c) : NULL};
                few_step(format, is_bf16, codes, w, r, c, &tables, input, &sum[0][r], tokens, side);
            }
        if (__builtin_expect(c < end, 0))
            for (int32_t r = 0; r < MICRO_ROWS; r++) {
                uint8_t padded[STEP_COLUMNS * sizeof(float)];
                const uint8_t *codes[2] = {padded, NULL};
                pad_codes(format, w->codes[r] + weight_bytes(format, c), end - c, padded);
                few_step(format, is_bf16, codes, w, r, c, &tables, input, &sum[0][r], tokens, 1);
            }
#pragma GCC unroll 8
        for (int32_t t = 0; t < tokens; t++) {
            float folded[MICRO_ROWS];
            fold_four(sum[t], folded);
            for (int32_t r = 0; r < w->kept; r++)
                put(out + t * out_stride + r * row_step, folded[r], column > 0);
        }
    }
}

/* What the scales of the rows' tiles lack, as vectors of 64 columns, one row of tiles after the other. */
static void fill_exponents(
    const struct matrix *w, int32_t row, int32_t rows, uint16_t *lacking, __m512i *exponents) {
    int32_t groups = (w->columns + GROUP - 1) / GROUP;
    for (int32_t tile = row / GROUP; tile <= (row + rows - 1) / GROUP; tile++) {
        fill_lacking(WEIGHT_FP8_TILE, w->scales + (int64_t)tile * groups, w->columns, lacking);
        for (int32_t g = 0; g < groups; g += STEP_GROUPS) {
            *exponents++ = e4m3_exponents(lacking + g, 0);
            *exponents++ = e4m3_exponents(lacking + g, 1);
        }
    }
}

static inline __attribute__((always_inline)) void few_strip(const enum weight_format format,
    const bool is_bf16, const void *const *x, const struct matrix *w, int32_t row, int32_t rows, float *out,
    int64_t out_stride, struct tile *tile, const int32_t tokens) {
    struct weight_rows all = open_rows(w, row);
    int32_t step = (rows + MICRO_ROWS - 1) / MICRO_ROWS;
    int32_t row_vectors = round_up(w->columns, STEP_COLUMNS) / 64;
    if (format == WEIGHT_FP8_TILE)
        fill_exponents(w, row, rows, tile->lacking, (__m512i *)tile->values);
    for (int32_t i = 0; i < step; i++) {
        struct few_rows now = {.kept = 0};
        for (int32_t r = 0; r < MICRO_ROWS; r++) {
            bool is_kept = i + r * step < rows; /* else the first row again, for nothing */
            int32_t at = is_kept ? i + r * step : i;
            now.kept += is_kept;
            now.codes[r] = all.codes + at * all.stride;
            now.lacking[r] = tile->lacking + r * MOST_GROUPS;
            if (format == WEIGHT_FP4_ROW)
                fill_lacking(
                    format, all.scales + at * all.scale_stride, w->columns, tile->lacking + r * MOST_GROUPS);
            now.exponents[r] =
                (const __m512i *)tile->values + (int64_t)((row + at) / GROUP - row / GROUP) * row_vectors;
        }
        few_micro(format, is_bf16, x, &now, w->columns, out + i, out_stride, step, tokens);
    }
}

typedef void few_function(const void *const *x, const struct matrix *w, int32_t row, int32_t rows, float *out,
    int64_t out_stride, struct tile *tile);

#define DEFINE_FEW(name, format, is_bf16, tokens)                                                            \
    static void few_##name##_##tokens(const void *const *x, const struct matrix *w, int32_t row,             \
        int32_t rows, float *out, int64_t out_stride, struct tile *tile) {                                   \
        few_strip(format, is_bf16, x, w, row, rows, out, out_stride, tile, tokens);                          \
    }
#define DEFINE_FEW_ALL(name, format, is_bf16)                                                                \
    DEFINE_FEW(name, format, is_bf16, 1)                                                                     \
    DEFINE_FEW(name, format, is_bf16, 2)                                                                     \
    DEFINE_FEW(name, format, is_bf16, 3)                                                                     \
    DEFINE_FEW(name, format, is_bf16, 4)                                                                     \
    DEFINE_FEW(name, format, is_bf16, 5)                                                                     \
    DEFINE_FEW(name, format, is_bf16, 6)                                                                     \
    static few_function *const few_##name[FEW_TOKENS + 1] = {NULL, few_##name##_1, few_##name##_2,           \
        few_##name##_3, few_##name##_4, few_##name##_5, few_##name##_6};

DEFINE_FEW_ALL(f32_f32, WEIGHT_F32, false)
DEFINE_FEW_ALL(f32_bf16, WEIGHT_BF16, false)
DEFINE_FEW_ALL(f32_fp8_tile, WEIGHT_FP8_TILE, false)
DEFINE_FEW_ALL(bf16_fp8_tile, WEIGHT_FP8_TILE, true)
DEFINE_FEW_ALL(bf16_fp4, WEIGHT_FP4_ROW, true)

/* By is_bf16 and format; what the model multiplies in no hurry, or not at all, goes through tiles. */
static few_function *const *const few[2][WEIGHT_FP4_ROW + 1] = {
    {[WEIGHT_F32] = few_f32_f32, [WEIGHT_BF16] = few_f32_bf16, [WEIGHT_FP8_TILE] = few_f32_fp8_tile},
    {[WEIGHT_FP8_TILE] = few_bf16_fp8_tile, [WEIGHT_FP4_ROW] = few_bf16_fp4},
};

/* ---- tiles of decoded weights ---- */

static inline __attribute__((always_inline)) void put_step(const enum weight_format format,
    const bool is_bf16, const uint8_t *codes, const uint16_t *four, const struct decode_tables *tables,
    uint8_t *to) {
    if (is_bf16) {
        __m512i words[STEP_WORD_VECTORS];
        decode_words(format, codes, four, NULL, tables, words);
#pragma GCC unroll 4
        for (int32_t v = 0; v < STEP_WORD_VECTORS; v++)
            _mm512_store_si512(to + v * 64, words[v]);
    } else {
        lanes values[STEP_FLOAT_VECTORS];
        decode_floats(format, codes, four, NULL, tables, values);
#pragma GCC unroll 8
        for (int32_t v = 0; v < STEP_FLOAT_VECTORS; v++)
            _mm512_store_ps(to + v * 64, (__m512)values[v]);
    }
}

static inline __attribute__((always_inline)) void fill_rows(const enum weight_format format,
    const bool is_bf16, const struct weight_rows *w, int32_t rows, struct tile *tile, int64_t stride) {
    const struct decode_tables tables = load_tables();
    const uint16_t *lacking = tile->lacking;
    for (int32_t r = 0; r < rows; r++) {
        const uint8_t *codes = w->codes + r * w->stride;
        uint8_t *to = tile->values + r * stride;
        int32_t c = 0;
        if (w->scales != NULL && (r == 0 || w->scale_stride > 0))
            fill_lacking(format, w->scales + r * w->scale_stride, w->columns, tile->lacking);
        for (; c + STEP_COLUMNS <= w->columns; c += STEP_COLUMNS, to += STEP_COLUMNS * (is_bf16 ? 2 : 4))
            put_step(format, is_bf16, codes + weight_bytes(format, c), lacking + c / GROUP, &tables, to);
        if (c < w->columns) {
            uint8_t padded[STEP_COLUMNS * sizeof(float)];
            pad_codes(format, codes + weight_bytes(format, c), w->columns - c, padded);
            put_step(format, is_bf16, padded, lacking + c / GROUP, &tables, to);
        }
    }
}

/* Rows as BF16 numbers or float32, `stride` bytes apart, padded with zeros to whole steps. */
static void fill_tile(enum weight_format format, bool is_bf16, const struct weight_rows *w, int32_t rows,
    struct tile *tile, int64_t stride) {
    switch (format) {
    case WEIGHT_F32:
        fill_rows(WEIGHT_F32, false, w, rows, tile, stride);
        break;
    case WEIGHT_BF16:
        fill_rows(WEIGHT_BF16, false, w, rows, tile, stride);
        break;
    case WEIGHT_FP8_TILE:
    case WEIGHT_FP8_ROW:
        if (is_bf16)
            fill_rows(WEIGHT_FP8_ROW, true, w, rows, tile, stride);
        else
            fill_rows(WEIGHT_FP8_ROW, false, w, rows, tile, stride);
        break;
    case WEIGHT_FP4_ROW:
        if (is_bf16)
            fill_rows(WEIGHT_FP4_ROW, true, w, rows, tile, stride);
        else
            fill_rows(WEIGHT_FP4_ROW, false, w, rows, tile, stride);
        break;
    }
}

/* ---- BF16 dot products ---- */

/* tokens x rows sums at once; both constant where it is called. w: rows of a tile. */
static inline __attribute__((always_inline)) void word_micro(const void *const *x, int32_t column,
    const uint16_t *w, int64_t w_stride, int32_t columns, float *out, int64_t out_stride, bool add,
    const int32_t tokens, const int32_t rows) {
    __m512 sum[MICRO_TOKENS][MICRO_ROWS];
    const uint16_t *input[MICRO_TOKENS];
#pragma GCC unroll 8
    for (int32_t t = 0; t < tokens; t++) {
        input[t] = (const uint16_t *)x[t] + column;
#pragma GCC unroll 8
        for (int32_t r = 0; r < rows; r++)
            sum[t][r] = _mm512_setzero_ps();
    }
    for (int32_t c = 0; c < columns; c += WORD_LANES) {
        __m512bh weight[MICRO_ROWS];
#pragma GCC unroll 8
        for (int32_t r = 0; r < rows; r++)
            weight[r] = (__m512bh)_mm512_load_si512(w + r * w_stride + c);
#pragma GCC unroll 8
        for (int32_t t = 0; t < tokens; t++) {
            __m512bh value = (__m512bh)_mm512_load_si512(input[t] + c);
#pragma GCC unroll 8
            for (int32_t r = 0; r < rows; r++)
                sum[t][r] = _mm512_dpbf16_ps(sum[t][r], weight[r], value);
        }
    }
#pragma GCC unroll 8
    for (int32_t t = 0; t < tokens; t++) {
        float folded[MICRO_ROWS];
        if (rows == MICRO_ROWS)
            fold_four((lanes *)sum[t], folded);
        else
            folded[0] = sum_lanes((lanes)sum[t][0]);
#pragma GCC unroll 8
        for (int32_t r = 0; r < rows; r++)
            put(out + t * out_stride + r, folded[r], add);
    }
}

/* `tokens` <= MICRO_TOKENS tokens times all rows of a tile. */
#define DEFINE_WORD_STRIP(tokens)                                                                            \
    static void word_strip_##tokens(const void *const *x, int32_t column, const uint16_t *w,                 \
        int64_t w_stride, int32_t rows, int32_t columns, float *out, int64_t out_stride, bool add) {         \
        int32_t r = 0;                                                                                       \
        for (; r + MICRO_ROWS <= rows; r += MICRO_ROWS)                                                      \
            word_micro(x, column, w + r * w_stride, w_stride, columns, out + r, out_stride, add, tokens,     \
                MICRO_ROWS);                                                                                 \
        for (; r < rows; r++)                                                                                \
            word_micro(x, column, w + r * w_stride, w_stride, columns, out + r, out_stride, add, tokens, 1); \
    }

DEFINE_WORD_STRIP(1)
DEFINE_WORD_STRIP(2)
DEFINE_WORD_STRIP(3)
DEFINE_WORD_STRIP(4)
DEFINE_WORD_STRIP(5)
DEFINE_WORD_STRIP(6)

typedef void word_strip_function(const void *const *x, int32_t column, const uint16_t *w, int64_t w_stride,
    int32_t rows, int32_t columns, float *out, int64_t out_stride, bool add);

static word_strip_function *const word_strips[MICRO_TOKENS + 1] = {
    NULL, word_strip_1, word_strip_2, word_strip_3, word_strip_4, word_strip_5, word_strip_6};

/* ---- a tile of outputs ---- */

/* Codes that are needed next: asked for piece by piece while decoded ones are multiplied. */
struct ahead {
    const uint8_t *codes;
    int64_t bytes, piece;
};

/* `pieces`: times that fetch_piece will be called. */
static struct ahead open_ahead(
    const struct weight_rows *w, int32_t row, int32_t rows, int32_t tokens, int32_t pieces) {
    enum { MOST_TOKENS = 96 }; /* for more, the time to wait for codes is small beside that of the products */
    int64_t bytes = tokens <= MOST_TOKENS ? rows * w->stride : 0;
    return (struct ahead){w->codes + row * w->stride, bytes, (bytes / pieces + 63) / 64 * 64};
}

static void fetch_piece(struct ahead *ahead) {
    int64_t bytes = ahead->bytes < ahead->piece ? ahead->bytes : ahead->piece;
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(ahead->codes + at, 0, 2);
    ahead->codes += bytes;
    ahead->bytes -= bytes;
}

/* Decoded rows times rows of inputs. */
static void multiply_tile(const void *const *x, bool is_bf16, int32_t tokens, int32_t columns,
    const uint8_t *tile, int64_t tile_stride, int32_t rows, float *out, int64_t out_stride,
    struct ahead *ahead) {
    int32_t block = is_bf16 ? WORD_BLOCK : FLOAT_BLOCK;
    for (int32_t column = 0; column < columns; column += block) {
        int32_t now = round_up(least(block, columns - column), STEP_COLUMNS);
        for (int32_t t = 0, strip; t < tokens; t += strip) {
            strip = strip_tokens(tokens - t, MICRO_TOKENS);
            fetch_piece(ahead);
            if (is_bf16)
                word_strips[strip](x + t, column, (const uint16_t *)tile + column, tile_stride / 2, rows, now,
                    out + t * out_stride, out_stride, column > 0);
            else
                FOR_SET(dot_tile)
            ((const float *const *)x + t, column, strip, (const float *)tile + column, tile_stride / 4, rows,
                now, out + t * out_stride, out_stride, column > 0);
        }
    }
}

void FOR_SET(multiply_rows)(const struct inputs *x, int32_t token, int32_t tokens, const struct matrix *w,
    int32_t row, int32_t rows, float *out, int64_t out_stride, void *memory) {
    struct tile *tile = memory;
    int32_t padded = round_up(w->columns, STEP_COLUMNS), now;
    if (tokens <= FEW_TOKENS && few[x->is_bf16][w->format] != NULL) {
        /* what the tiles' scales lack, as vectors, fits the memory */
        int32_t fitting = (int32_t)(sizeof tile->values / (size_t)padded - 1) * GROUP;
        int32_t most = w->format == WEIGHT_FP8_TILE ? fitting : rows;
        for (int32_t r = 0; r < rows; r += most)
            few[x->is_bf16][w->format][tokens](
                x->rows + token, w, row + r, least(most, rows - r), out + r, out_stride, tile);
        return;
    }
    bool is_in_place = w->format == WEIGHT_F32 && w->columns % STEP_COLUMNS == 0;
    int64_t stride = (int64_t)padded * (x->is_bf16 ? 2 : 4) + ROW_END;
    int32_t fitting = is_in_place ? TILE_ROWS : (int32_t)((int64_t)sizeof tile->values / stride);
    int32_t most = tokens <= SOME_TOKENS ? MICRO_ROWS : least(TILE_ROWS, fitting / MICRO_ROWS * MICRO_ROWS);
    int32_t block = x->is_bf16 ? WORD_BLOCK : FLOAT_BLOCK;
    int32_t strips = (w->columns + block - 1) / block * ((tokens + MICRO_TOKENS - 1) / MICRO_TOKENS);
    for (int32_t r = 0; r < rows; r += now) {
        now = least(least(most, rows - r), GROUP - (row + r) % GROUP);
        struct weight_rows weights = open_rows(w, row + r);
        struct ahead ahead = open_ahead(&weights, now, least(now, w->rows - row - r - now), tokens, strips);
        if (!is_in_place)
            fill_tile(w->format, x->is_bf16, &weights, now, tile, stride);
        multiply_tile(x->rows + token, x->is_bf16, tokens, w->columns,
            is_in_place ? weights.codes : tile->values, is_in_place ? weights.stride : stride, now, out + r,
            out_stride, &ahead);
    }
}

/* ---- inputs ---- */

bool FOR_SET(uses_bf16)(enum row_encoding encoding, enum weight_format format) {
    return encoding == ROWS_FP8 &&
           (format == WEIGHT_FP8_TILE || format == WEIGHT_FP8_ROW || format == WEIGHT_FP4_ROW);
}

size_t FOR_SET(prepared_bytes)(int32_t columns, bool is_bf16) {
    /* a row's end keeps rows of 2^n bytes from crowding cache sets */
    return (size_t)round_up(columns, STEP_COLUMNS) * (is_bf16 ? 2 : 4) + ROW_END;
}

/* A step's FP8 codes and scales as BF16 numbers in the order of the weights; NaN codes are NaN. */
static void put_words(enum weight_format format, const uint8_t *codes, const uint8_t *four, uint16_t *out) {
    uint16_t lacking[32];
    lacking_words(four, STEP_GROUPS, E4M3_LARGEST_SCALE, E4M3_LEAST_SCALE, lacking);
    const struct decode_tables tables = load_tables();
    __m512i half[2] = {_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 64)};
    __m512i exponents[2] = {e4m3_exponents(lacking, 0), e4m3_exponents(lacking, 1)};
    if (format == WEIGHT_FP4_ROW) {
        /* bytes in the order that e4m3_words turns into vectors of the columns 4 i + j */
        const __m512i columns = _mm512_set_epi32(0x7d797571, 0x6d696561, 0x7c787470, 0x6c686460, 0x5d595551,
            0x4d494541, 0x5c585450, 0x4c484440, 0x3d393531, 0x2d292521, 0x3c383430, 0x2c282420, 0x1d191511,
            0x0d090501, 0x1c181410, 0x0c080400);
        __m512i later = _mm512_add_epi8(columns, _mm512_set1_epi8(2));
        __m512i first = _mm512_permutex2var_epi8(half[0], columns, half[1]);
        half[1] = _mm512_permutex2var_epi8(half[0], later, half[1]);
        half[0] = first;
        exponents[0] = exponents[1] = e2m1_exponents(lacking);
    }
    for (int32_t h = 0; h < 2; h++) {
        __m512i words[2], magnitude = _mm512_and_si512(half[h], _mm512_set1_epi8(0x7f));
        __mmask64 is_nan = _mm512_cmpeq_epi8_mask(magnitude, _mm512_set1_epi8(E4M3_NAN));
        e4m3_words(half[h], &tables, exponents[h], words);
        if (is_nan) {
            __m512i all = _mm512_movm_epi8(is_nan);
            words[0] = _mm512_or_si512(words[0], _mm512_unpacklo_epi8(all, all));
            words[1] = _mm512_or_si512(words[1], _mm512_unpackhi_epi8(all, all));
        }
        _mm512_store_si512(out + (2 * h) * WORD_LANES, words[0]);
        _mm512_store_si512(out + (2 * h + 1) * WORD_LANES, words[1]);
    }
}

/* 64 columns in natural order as the even and odd words of the vectors of 64 E4M3 codes. */
static inline void order_e4m3(const __m512 *from, __m512 *to) {
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    __m512 a = _mm512_permutexvar_ps(order, from[0]), b = _mm512_permutexvar_ps(order, from[1]);
    __m512 c = _mm512_permutexvar_ps(order, from[2]), d = _mm512_permutexvar_ps(order, from[3]);
    __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44), cd = _mm512_shuffle_f32x4(c, d, 0x44);
    to[0] = _mm512_shuffle_f32x4(ab, cd, 0x88);
    to[1] = _mm512_shuffle_f32x4(ab, cd, 0xdd);
    ab = _mm512_shuffle_f32x4(a, b, 0xee);
    cd = _mm512_shuffle_f32x4(c, d, 0xee);
    to[2] = _mm512_shuffle_f32x4(ab, cd, 0x88);
    to[3] = _mm512_shuffle_f32x4(ab, cd, 0xdd);
}

/* A step of float32 columns in the order of the weights; `out` may be `values`. */
static inline __attribute__((always_inline)) void put_floats(
    const enum weight_format format, const float *values, float *out) {
    __m512 from[STEP_FLOAT_VECTORS], to[STEP_FLOAT_VECTORS];
    float copy[STEP_COLUMNS];
#pragma GCC unroll 8
    for (int32_t v = 0; v < STEP_FLOAT_VECTORS; v++)
        to[v] = from[v] = _mm512_loadu_ps(values + v * LANES);
    switch (format) {
    case WEIGHT_F32:
        break;
    case WEIGHT_BF16: {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
#pragma GCC unroll 4
        for (int32_t v = 0; v < STEP_FLOAT_VECTORS; v += 2) {
            to[v] = _mm512_permutex2var_ps(from[v], even, from[v + 1]);
            to[v + 1] = _mm512_permutex2var_ps(from[v], odd, from[v + 1]);
        }
        break;
    }
    case WEIGHT_FP8_TILE:
    case WEIGHT_FP8_ROW:
        order_e4m3(from, to);
        order_e4m3(from + 4, to + 4);
        break;
    case WEIGHT_FP4_ROW:
        for (int32_t c = 0; c < STEP_COLUMNS; c++) /* column 4 i + j: word i of vector j */
            copy[c % 4 * WORD_LANES + c / 4 % 2 * LANES + c / 8] = values[c];
#pragma GCC unroll 8
        for (int32_t v = 0; v < STEP_FLOAT_VECTORS; v++)
            to[v] = _mm512_loadu_ps(copy + v * LANES);
        break;
    }
#pragma GCC unroll 8
    for (int32_t v = 0; v < STEP_FLOAT_VECTORS; v++)
        _mm512_store_ps(out + v * LANES, to[v]);
}

static void put_float_step(enum weight_format format, const float *values, float *out) {
    switch (format) {
    case WEIGHT_F32:
        put_floats(WEIGHT_F32, values, out);
        break;
    case WEIGHT_BF16:
        put_floats(WEIGHT_BF16, values, out);
        break;
    case WEIGHT_FP8_TILE:
    case WEIGHT_FP8_ROW:
        put_floats(WEIGHT_FP8_ROW, values, out);
        break;
    case WEIGHT_FP4_ROW:
        put_floats(WEIGHT_FP4_ROW, values, out);
        break;
    }
}

static void prepare_word_row(enum weight_format format, const uint8_t *row, int32_t columns, uint16_t *out) {
    const uint8_t *scales = row + columns;
    int32_t c = 0;
    for (; c + STEP_COLUMNS <= columns; c += STEP_COLUMNS)
        put_words(format, row + c, scales + c / GROUP, out + c);
    if (c < columns) {
        uint8_t codes[STEP_COLUMNS] = {0}, four[STEP_GROUPS] = {0};
        memcpy(codes, row + c, (size_t)(columns - c));
        memcpy(four, scales + c / GROUP, (size_t)((columns - c) / GROUP));
        put_words(format, codes, four, out + c);
    }
}

static void prepare_float_row(
    const struct rows *x, const uint8_t *row, enum weight_format format, float *out) {
    const float *values = (const float *)row;
    if (x->encoding != ROWS_F32) {
        decode_row_fast(x->encoding, row, x->columns, out);
        values = out;
    }
    int32_t c = 0;
    for (; c + STEP_COLUMNS <= x->columns; c += STEP_COLUMNS)
        put_float_step(format, values + c, out + c);
    if (c < x->columns) {
        float step[STEP_COLUMNS] = {0};
        memcpy(step, values + c, (size_t)(x->columns - c) * sizeof(float));
        put_float_step(format, step, out + c);
    }
}

struct inputs FOR_SET(prepare_inputs)(
    struct stream *stream, const struct rows *x, int32_t tokens, enum weight_format format) {
    bool is_bf16 = FOR_SET(uses_bf16)(x->encoding, format);
    bool in_place = x->encoding == ROWS_F32 && format == WEIGHT_F32 && x->columns % STEP_COLUMNS == 0;
    size_t pointer_bytes = ((size_t)tokens * sizeof(void *) + 63) / 64 * 64;
    size_t row_bytes = FOR_SET(prepared_bytes)(x->columns, is_bf16);
    const void **pointers =
        stream_scratch(stream, SCRATCH_INPUT, pointer_bytes + (in_place ? 0 : (size_t)tokens * row_bytes));
    uint8_t *values = (uint8_t *)pointers + pointer_bytes;
#pragma omp parallel for num_threads(                                                                        \
    stream->threads) if (!in_place && is_worth_threads((int64_t)tokens * x->columns))
    for (int32_t t = 0; t < tokens; t++) {
        const uint8_t *from = (const uint8_t *)x->data + t * x->stride;
        uint8_t *to = values + (size_t)t * row_bytes;
        pointers[t] = in_place ? from : to;
        if (is_bf16)
            prepare_word_row(format, from, x->columns, (uint16_t *)to);
        else if (!in_place)
            prepare_float_row(x, from, format, (float *)to);
    }
    return (struct inputs){pointers, is_bf16};
}

void FOR_SET(prepare_part)(enum weight_format format, bool is_bf16, bool round, float *values, int32_t column,
    int32_t count, void *row) {
    if (is_bf16) {
        uint8_t encoded[STEP_COLUMNS + STEP_GROUPS], codes[STEP_COLUMNS] = {0}, four[STEP_GROUPS] = {0};
        encode_row(ROWS_FP8, values, count, encoded);
        memcpy(codes, encoded, (size_t)count);
        memcpy(four, encoded + count, (size_t)(count / GROUP));
        put_words(format, codes, four, (uint16_t *)row + column);
        return;
    }
    float step[STEP_COLUMNS] = {0};
    if (round)
        round_row(ROWS_FP8, values, count);
    memcpy(step, values, (size_t)count * sizeof(float));
    put_float_step(format, step, (float *)row + column);
}

#endif

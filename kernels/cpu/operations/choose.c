/* The index: scores of compressed rows and the choice of the best.
 *
 * Tokens are taken in batches whose scores fit SCORE_BYTES. Consecutive tokens of one sequence share decoded keys; a token
 * that looks only inside candidate blocks has a list of its own. One lane is one row. FP4 keys meet FP4 queries: the
 * dot product of a scale group is an integer, the groups are added in order; other keys are float32, summed over
 * their columns in order. Then heads are added in order. Scores are kept as order-preserving integers.
 */
#include "kernels/cpu/operations/encode.h"
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

#include <math.h> /* INFINITY */

enum {
    SCORE_BYTES = 48 << 20, /* scores of a batch */
    BATCH_TOKENS = 64,
    SCORE_VECTORS = 4,
    SCORE_ROWS = SCORE_VECTORS * LANES, /* rows of a tile */
    PREFETCHED = 512,                   /* bytes */
    DIGIT_BITS = 11,
    DIGITS = 1 << DIGIT_BITS,
    MOST_GATHERED = 16384, /* keys of one digit that are worth gathering before the next digit */
    SELECT_WORDS = 2 * DIGITS + MOST_GATHERED + LANES, /* scratch of a selection */
};

#if defined(HAVE_AVX512)
#define HAVE_PACKED_SCORES 1
enum { SCORE_HEADS = 6, PACKED_HEADS = 4, PACKED_VECTORS = 2 };
#elif defined(HAVE_AVX2)
#define HAVE_PACKED_SCORES 1
enum { SCORE_HEADS = 2, PACKED_HEADS = 2, PACKED_VECTORS = 2 };
#else
enum { SCORE_HEADS = 2 };
#endif

/* One call: what the threads share. */
struct choose_call {
    const float *q, *weight;
    const int32_t *sequence, *position;
    const struct index_choice *choice;
    const struct block_rows *keys;
    const struct block_tables *tables;
    int32_t *candidates, *chosen;
    int64_t stride;      /* scores of a token */
    uint32_t *scores;    /* scratch [batch, stride]: sort keys of scores */
    int64_t tile_floats; /* of the scratch for a tile's rows, see decode_keys and unpack_keys */
    float *tiles;        /* scratch [threads, tile_floats] */
    uint32_t *work;      /* scratch [threads, SELECT_WORDS] */
    bool is_packed;      /* FP4 keys, scored by integers */
    int64_t query_bytes; /* of a packed query, see pack_query */
    uint8_t *queries;    /* scratch [batch, heads, query_bytes] */
};

/* Consecutive tokens that are scored on the same list of rows. */
struct run {
    int32_t token, tokens; /* the first, their number */
    int32_t rows;          /* rows of the list: the most any of them sees */
};

/* ---- lists of rows ---- */

static int32_t visible_rows(const struct choose_call *call, int32_t token) {
    return (call->position[token] + 1) / call->choice->ratio;
}

/* Rows of a token's list: all visible ones, or those of its candidate blocks. */
static int32_t listed_rows(const struct choose_call *call, int32_t token) {
    const struct index_choice *choice = call->choice;
    if (!choice->use_candidates)
        return visible_rows(call, token);
    const int32_t *blocks = call->candidates + (int64_t)token * choice->block_limit;
    int32_t count = 0;
    while (count < choice->block_limit && blocks[count] >= 0)
        count++;
    return count * choice->block_size;
}

/* The row at a place of a token's list; in a last partial block it may lie beyond the visible rows. */
static int32_t listed_row(const struct choose_call *call, int32_t token, int32_t place) {
    const struct index_choice *choice = call->choice;
    if (!choice->use_candidates)
        return place;
    const int32_t *blocks = call->candidates + (int64_t)token * choice->block_limit;
    return blocks[place / choice->block_size] * choice->block_size + place % choice->block_size;
}

/* The encoded rows [first, first + SCORE_ROWS) of the run's list; NULL for those that no token sees. */
static void find_keys(
    const struct choose_call *call, const struct run *run, int32_t first, const uint8_t **keys) {
    int32_t visible = visible_rows(call, run->token + run->tokens - 1);
    int32_t bytes = row_bytes(call->keys->encoding, call->keys->columns);
    int32_t size = call->choice->use_candidates ? call->choice->block_size : SCORE_ROWS;
    int32_t sequence = call->sequence[run->token], row = -1, left = 0; /* rows after `row` in its block */
    for (int32_t r = 0; r < SCORE_ROWS; r++) {
        int32_t place = first + r;
        int32_t next = place >= run->rows             ? visible
                       : row < 0 || place % size == 0 ? listed_row(call, run->token, place)
                                                      : row + 1;
        if (next >= visible) {
            keys[r] = NULL;
            row = place % size == size - 1 ? -1 : next;
            left = 0;
            continue;
        }
        bool follows = row >= 0 && next == row + 1 && left > 0;
        keys[r] = follows ? keys[r - 1] + bytes : block_row(call->keys, call->tables, sequence, next);
        for (int32_t b = 0; b < PREFETCHED && !follows;
             b += 64) /* candidate blocks lie far from each other */
            __builtin_prefetch(keys[r] + b);
        left = follows ? left - 1 : call->keys->rows_per_block - 1 - next % call->keys->rows_per_block;
        row = next;
    }
}

/* ---- scores of float32 keys ---- */

/* Order-preserving integers: larger score, larger key; 0: never chosen (NaN and -infinity). */
static inline void store_sort_keys(uint32_t *keys, lanes score) {
    int_lanes bits = (int_lanes)(score + 0.0f); /* -0 becomes 0 */
    int_lanes key = bits ^ ((bits < 0) | (int_lanes)splat(-0.0f));
    key &= score > splat(-INFINITY);
    memcpy(keys, &key, sizeof key);
}

/* Decodes rows [first, first + SCORE_ROWS) of the run's list, transposed: tile[column][row]; behind them is room for
 * LANES decoded rows. */
static void decode_keys(const struct choose_call *call, const struct run *run, int32_t first, float *tile) {
    int32_t columns = call->keys->columns, padded = round_up(columns, LANES);
    float *rows = tile + (int64_t)padded * SCORE_ROWS;
    const uint8_t *keys[SCORE_ROWS];
    find_keys(call, run, first, keys);
    for (int32_t r = 0; r < SCORE_ROWS; r += LANES) {
        for (int32_t i = 0; i < LANES; i++) {
            int32_t filled = keys[r + i] != NULL ? columns : 0;
            if (filled > 0)
                decode_row_fast(call->keys->encoding, keys[r + i], columns, rows + i * padded);
            memset(rows + i * padded + filled, 0, (size_t)(padded - filled) * sizeof *rows);
        }
        for (int32_t c = 0; c < padded; c += LANES) {
            lanes square[LANES];
            for (int32_t i = 0; i < LANES; i++)
                square[i] = load(rows + i * padded + c);
            transpose(square);
            for (int32_t i = 0; i < LANES; i++)
                store(tile + (int64_t)(c + i) * SCORE_ROWS + r, square[i]);
        }
    }
}

/* Adds the scores of `heads` heads, constant where it is called, to total. */
static inline __attribute__((always_inline)) void add_heads(const float *q, const float *weight,
    int32_t columns, const float *tile, lanes *total, const int32_t heads) {
    lanes sum[SCORE_HEADS][SCORE_VECTORS];
#pragma GCC unroll 8
    for (int32_t h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int32_t v = 0; v < SCORE_VECTORS; v++)
            sum[h][v] = splat(0);
    for (int32_t c = 0; c < columns; c++) {
        lanes key[SCORE_VECTORS];
#pragma GCC unroll 8
        for (int32_t v = 0; v < SCORE_VECTORS; v++)
            key[v] = load(tile + c * SCORE_ROWS + v * LANES);
#pragma GCC unroll 8
        for (int32_t h = 0; h < heads; h++) {
            lanes factor = splat(q[h * columns + c]);
#pragma GCC unroll 8
            for (int32_t v = 0; v < SCORE_VECTORS; v++)
                sum[h][v] = multiply_add(factor, key[v], sum[h][v]);
        }
    }
#pragma GCC unroll 8
    for (int32_t h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int32_t v = 0; v < SCORE_VECTORS; v++) {
            /* a NaN dot product stays NaN, as numpy's maximum keeps it */
            total[v] = multiply_add(larger(splat(0), sum[h][v]), splat(weight[h]), total[v]);
        }
}

static void score_tile(const struct choose_call *call, int32_t token, const float *tile, uint32_t *scores) {
    int32_t heads = call->choice->heads, columns = call->keys->columns;
    const float *q = call->q + (int64_t)token * heads * columns;
    const float *weight = call->weight + (int64_t)token * heads;
    lanes total[SCORE_VECTORS] = {{0}};
    int32_t h = 0;
    for (; h + SCORE_HEADS <= heads; h += SCORE_HEADS)
        add_heads(q + (int64_t)h * columns, weight + h, columns, tile, total, SCORE_HEADS);
    for (; h < heads; h++)
        add_heads(q + (int64_t)h * columns, weight + h, columns, tile, total, 1);
    for (int32_t v = 0; v < SCORE_VECTORS; v++)
        store_sort_keys(scores + v * LANES, total[v]);
}

/* ---- scores of FP4 keys ---- */

#ifdef HAVE_PACKED_SCORES

/* FP4 values times two are integers up to 12. Keys are kept as bytes 0 to 24, 12 too large, for the byte products want
 * one factor without a sign; what that adds to a dot product, 12 times the sum of the query's bytes, is taken off
 * again. A step is four columns of a row, in one lane: even columns of eight, then their odd ones. */
enum { KEY_OFFSET = 12, STEP_COLUMNS = 4, GROUP_STEPS = GROUP / STEP_COLUMNS };

/* A query of one head: bytes [columns] in the order of steps, then per group what to start from and the factor. */
static inline int64_t packed_query_bytes(int32_t columns) {
    return columns + columns / GROUP * (int64_t)(sizeof(int32_t) + sizeof(float));
}

static void pack_query(const float *q, int32_t columns, uint8_t *packed) {
    const __m128i values = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i nibble = _mm_set1_epi8(15);
    uint8_t *starts = packed + columns, *factors = starts + columns / GROUP * sizeof(int32_t);
    for (int32_t g = 0; g < columns / GROUP; g++) {
        uint8_t codes[GROUP / 2], scale;
        encode_fp4_step(q + g * GROUP, codes, &scale);
        __m128i pairs = _mm_loadu_si128((const __m128i *)codes);
        __m128i even = _mm_shuffle_epi8(values, _mm_and_si128(pairs, nibble));
        __m128i odd = _mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble));
        int8_t value[GROUP];
        _mm_storeu_si128((__m128i *)value, _mm_unpacklo_epi32(even, odd));
        _mm_storeu_si128((__m128i *)(value + GROUP / 2), _mm_unpackhi_epi32(even, odd));
        int32_t sum = 0;
        for (int32_t i = 0; i < GROUP; i++)
            sum += value[i];
        sum *= -KEY_OFFSET;
        float factor = e8m0_value(scale);
        memcpy(packed + g * GROUP, value, GROUP);
        memcpy(starts + g * sizeof sum, &sum, sizeof sum);
        memcpy(factors + g * sizeof factor, &factor, sizeof factor);
    }
}

/* Bytes of codes (the low four bits of each byte), as they are kept. */
static inline int_lanes key_bytes(int_lanes codes) {
    const __m128i values = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    codes &= 0x0f0f0f0f;
#if defined(HAVE_AVX512)
    return (int_lanes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), (__m512i)codes);
#else
    return (int_lanes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), (__m256i)codes);
#endif
}

/* Scales of LANES rows, group by group, SCORE_ROWS apart: a quarter of them, for keys and queries are doubled. */
static void unpack_scales(const uint8_t *const *keys, int32_t columns, float *scales) {
    int32_t groups = columns / GROUP;
    for (int32_t g = 0; g < groups; g += 4) {
        uint8_t four[LANES][4] = {{0}};
        for (int32_t i = 0; i < LANES; i++)
            if (keys[i] != NULL && groups - g >= 4)
                memcpy(four[i], keys[i] + columns / 2 + g, 4);
            else if (keys[i] != NULL)
                memcpy(four[i], keys[i] + columns / 2 + g, (size_t)(groups - g));
        int_lanes packed;
        memcpy(&packed, four, sizeof packed);
        for (int32_t j = 0; j < least(4, groups - g); j++) {
            int_lanes code = packed >> 8 * j & 255;
            lanes scale = choose_lanes(code == 0, splat(0x1p-127f), (lanes)(code << 23));
            scale = choose_lanes(code == E8M0_NAN, splat(NAN), scale * 0.25f);
            store(scales + (int64_t)(g + j) * SCORE_ROWS, scale);
        }
    }
}

/* Rows [first, first + SCORE_ROWS) of the run's list: tile[step][row] of four bytes, then scales [group][row]. */
static void unpack_keys(const struct choose_call *call, const struct run *run, int32_t first, float *tile) {
    int32_t columns = call->keys->columns, words = columns / 8;
    float *scales = tile + (int64_t)(columns / STEP_COLUMNS) * SCORE_ROWS;
    const uint8_t *keys[SCORE_ROWS];
    find_keys(call, run, first, keys);
    for (int32_t r = 0; r < SCORE_ROWS; r += LANES) {
        for (int32_t w = 0; w < words; w += LANES) {
            lanes square[LANES];
            for (int32_t i = 0; i < LANES; i++)
                square[i] =
                    keys[r + i] != NULL ? load_part((const float *)keys[r + i] + w, words - w) : splat(0);
            transpose(square);
            for (int32_t i = 0; i < least(LANES, words - w); i++) {
                float *to = tile + (int64_t)(w + i) * 2 * SCORE_ROWS + r;
                store(to, (lanes)key_bytes((int_lanes)square[i]));
                store(to + SCORE_ROWS, (lanes)key_bytes((int_lanes)square[i] >> 4));
            }
        }
        unpack_scales(keys + r, columns, scales + r);
    }
}

/* Sums of byte products: with VNNI in 32 bits, else in 16 bits, which hold those of one group. */
static inline __attribute__((always_inline)) int_lanes add_products(
    int_lanes sum, int_lanes key, int_lanes query) {
#if defined(HAVE_AVX512) && defined(__AVX512VNNI__)
    return (int_lanes)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)key, (__m512i)query);
#elif defined(HAVE_AVX512)
    return (int_lanes)_mm512_add_epi16((__m512i)sum, _mm512_maddubs_epi16((__m512i)key, (__m512i)query));
#else
    return (int_lanes)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)key, (__m256i)query));
#endif
}

/* `start` may be added before or after the products: as it costs least. */
static inline __attribute__((always_inline)) int_lanes products_start(int32_t start) {
#if defined(HAVE_AVX512) && defined(__AVX512VNNI__)
    return (int_lanes){0} + start;
#else
    (void)start;
    return (int_lanes){0};
#endif
}

static inline __attribute__((always_inline)) lanes products_value(int_lanes sum, int32_t start) {
#if defined(HAVE_AVX512) && defined(__AVX512VNNI__)
    (void)start;
    return (lanes)_mm512_cvtepi32_ps((__m512i)sum);
#elif defined(HAVE_AVX512)
    sum = (int_lanes)_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1));
    return (lanes)_mm512_cvtepi32_ps((__m512i)(sum + start));
#else
    sum = (int_lanes)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
    return (lanes)_mm256_cvtepi32_ps((__m256i)(sum + start));
#endif
}

static inline int32_t query_start(const uint8_t *query, int32_t columns, int32_t group) {
    int32_t start;
    memcpy(&start, query + columns + group * sizeof start, sizeof start);
    return start;
}

static inline float query_factor(const uint8_t *query, int32_t columns, int32_t group) {
    float factor;
    memcpy(&factor, query + columns + (columns / GROUP + group) * (int32_t)sizeof factor, sizeof factor);
    return factor;
}

/* As add_heads, for PACKED_VECTORS vectors of rows. */
static inline __attribute__((always_inline)) void add_packed_heads(const uint8_t *query, int64_t query_bytes,
    const float *weight, int32_t columns, const float *tile, lanes *total, const int32_t heads) {
    int32_t groups = columns / GROUP;
    const float *scales = tile + (int64_t)(columns / STEP_COLUMNS) * SCORE_ROWS;
    lanes score[PACKED_HEADS][PACKED_VECTORS];
#pragma GCC unroll 8
    for (int32_t h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int32_t v = 0; v < PACKED_VECTORS; v++)
            score[h][v] = splat(0);
    for (int32_t g = 0; g < groups; g++) {
        int_lanes sum[PACKED_HEADS][PACKED_VECTORS];
#pragma GCC unroll 8
        for (int32_t h = 0; h < heads; h++)
#pragma GCC unroll 8
            for (int32_t v = 0; v < PACKED_VECTORS; v++)
                sum[h][v] = products_start(query_start(query + h * query_bytes, columns, g));
#pragma GCC unroll 8
        for (int32_t s = 0; s < GROUP_STEPS; s++, tile += SCORE_ROWS) {
            int_lanes key[PACKED_VECTORS];
#pragma GCC unroll 8
            for (int32_t v = 0; v < PACKED_VECTORS; v++)
                key[v] = (int_lanes)load(tile + v * LANES);
#pragma GCC unroll 8
            for (int32_t h = 0; h < heads; h++) {
                float step;
                memcpy(&step, query + h * query_bytes + g * GROUP + s * STEP_COLUMNS, sizeof step);
#pragma GCC unroll 8
                for (int32_t v = 0; v < PACKED_VECTORS; v++)
                    sum[h][v] = add_products(sum[h][v], key[v], (int_lanes)splat(step));
            }
        }
#pragma GCC unroll 8
        for (int32_t h = 0; h < heads; h++) {
            int32_t start = query_start(query + h * query_bytes, columns, g);
            lanes factor = splat(query_factor(query + h * query_bytes, columns, g));
#pragma GCC unroll 8
            for (int32_t v = 0; v < PACKED_VECTORS; v++)
                score[h][v] =
                    multiply_add(products_value(sum[h][v], start) * load(scales + g * SCORE_ROWS + v * LANES),
                        factor, score[h][v]);
        }
    }
#pragma GCC unroll 8
    for (int32_t h = 0; h < heads; h++)
#pragma GCC unroll 8
        for (int32_t v = 0; v < PACKED_VECTORS; v++)
            total[v] = multiply_add(larger(splat(0), score[h][v]), splat(weight[h]), total[v]);
}

/* queries: the token's packed ones. */
static void score_packed_tile(const struct choose_call *call, int32_t token, const uint8_t *queries,
    const float *tile, uint32_t *scores) {
    int32_t heads = call->choice->heads, columns = call->keys->columns;
    const float *weight = call->weight + (int64_t)token * heads;
    for (int32_t v = 0; v < SCORE_VECTORS; v += PACKED_VECTORS) {
        lanes total[PACKED_VECTORS] = {{0}};
        int32_t h = 0;
        for (; h + PACKED_HEADS <= heads; h += PACKED_HEADS)
            add_packed_heads(queries + h * call->query_bytes, call->query_bytes, weight + h, columns,
                tile + v * LANES, total, PACKED_HEADS);
        for (; h < heads; h++)
            add_packed_heads(queries + h * call->query_bytes, call->query_bytes, weight + h, columns,
                tile + v * LANES, total, 1);
        for (int32_t i = 0; i < PACKED_VECTORS; i++)
            store_sort_keys(scores + (v + i) * LANES, total[i]);
    }
}

#endif

/* ---- selection ---- */

/* Those of keys [count] whose `known` bits are `prefix`, into `gathered`, which has room for them and LANES more. */
static int32_t gather_keys(
    const uint32_t *keys, int32_t count, uint32_t known, uint32_t prefix, uint32_t *gathered) {
    int32_t filled = 0, i = 0;
#ifdef HAVE_AVX512
    for (; i + LANES <= count; i += LANES) {
        __m512i key = _mm512_loadu_si512(keys + i);
        __m512i top = _mm512_and_si512(key, _mm512_set1_epi32((int32_t)known));
        __mmask16 taken = _mm512_cmpeq_epi32_mask(top, _mm512_set1_epi32((int32_t)prefix));
        _mm512_storeu_si512(gathered + filled, _mm512_maskz_compress_epi32(taken, key));
        filled += __builtin_popcount(taken);
    }
#endif
    for (; i < count; i++) {
        gathered[filled] = keys[i];
        filled += (keys[i] & known) == prefix;
    }
    return filled;
}

/* digits[d]: how many of the keys whose `known` bits are `prefix` have the digit d above bit `low`. Neighbours count in
 * two tables, for equal digits in a row would wait for each other. */
static void count_digits(
    const uint32_t *keys, int32_t count, uint32_t known, uint32_t prefix, int32_t low, uint32_t *digits) {
    uint32_t *others = digits + DIGITS;
    memset(digits, 0, 2 * DIGITS * sizeof *digits);
    int32_t i = 0;
    for (; i + 2 <= count; i += 2) {
        digits[(keys[i] >> low) & (DIGITS - 1)] += (keys[i] & known) == prefix;
        others[(keys[i + 1] >> low) & (DIGITS - 1)] += (keys[i + 1] & known) == prefix;
    }
    if (i < count)
        digits[(keys[i] >> low) & (DIGITS - 1)] += (keys[i] & known) == prefix;
    for (int32_t d = 0; d < DIGITS; d++)
        digits[d] += others[d];
}

/* The k-th largest of keys [count] (k >= 1), or 1 when fewer than k are live; *ties: how many of the keys equal
 * to it are among the k best. work: SELECT_WORDS. */
static uint32_t threshold_key(const uint32_t *keys, int32_t count, int32_t k, uint32_t *work, int32_t *ties) {
    uint32_t prefix = 0, known = 0; /* the threshold's top bits, and which they are */
    uint32_t *digits = work, *gathered = work + 2 * DIGITS;
    int32_t left = k;
    for (int32_t shift = 32 - DIGIT_BITS;; shift -= DIGIT_BITS) {
        int32_t low = shift > 0 ? shift : 0;
        count_digits(keys, count, known, prefix, low, digits);
        /* the last digit overlaps the one before: of its values only those that agree with the prefix occur */
        int32_t digit = DIGITS - 1;
        while (digit > 0 && digits[digit] < (uint32_t)left)
            left -= (int32_t)digits[digit--];
        prefix |= (uint32_t)digit << low;
        known |= (uint32_t)(DIGITS - 1) << low;
        if (low == 0 && prefix == 0) { /* only keys that are never chosen are left */
            *ties = count;
            return 1;
        }
        if (low == 0) {
            *ties = left;
            return prefix;
        }
        if (digits[digit] <= MOST_GATHERED) {
            count = gather_keys(keys, count, known, prefix, gathered);
            keys = gathered;
        }
    }
}

/* Places of the k best live keys, ascending, then -1; ties go to the lower place. Returns their number. */
static int32_t select_best(const uint32_t *keys, int32_t count, int32_t k, uint32_t *work, int32_t *places) {
    int32_t ties = 0, filled = 0, i = 0;
    if (k > 0 && count > 0) {
        uint32_t threshold = threshold_key(keys, count, k, work, &ties);
#ifdef HAVE_AVX512
        for (; i + LANES <= count; i += LANES) {
            __m512i key = _mm512_loadu_si512(keys + i), limit = _mm512_set1_epi32((int32_t)threshold);
            __m512i place = _mm512_add_epi32(_mm512_set1_epi32(i),
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
            uint32_t tied = _mm512_cmpeq_epi32_mask(key, limit);
            while (__builtin_popcount(tied) > ties) /* the last ones lose */
                tied &= ~(0x80000000u >> __builtin_clz(tied));
            ties -= __builtin_popcount(tied);
            uint32_t taken = tied | _mm512_cmpgt_epu32_mask(key, limit);
            int32_t number = __builtin_popcount(taken);
            _mm512_mask_storeu_epi32(places + filled, (__mmask16)((1u << number) - 1),
                _mm512_maskz_compress_epi32((__mmask16)taken, place));
            filled += number;
        }
#endif
        for (; i < count && filled < k; i++) {
            bool is_tie = keys[i] == threshold && ties-- > 0;
            if (keys[i] > threshold || is_tie)
                places[filled++] = i;
        }
    }
    for (int32_t j = filled; j < k; j++)
        places[j] = -1;
    return filled;
}

/* The best blocks of a token's scores [count], its newest one always; `best` has room for all blocks. */
static void select_blocks(const struct choose_call *call, int32_t token, const uint32_t *scores,
    int32_t count, uint32_t *best, uint32_t *work) {
    const struct index_choice *choice = call->choice;
    int32_t *candidates = call->candidates + (int64_t)token * choice->block_limit;
    int32_t blocks = (count + choice->block_size - 1) / choice->block_size;
    for (int32_t b = 0; b < blocks; b++) {
        uint32_t top = 0;
        for (int32_t r = b * choice->block_size; r < least((b + 1) * choice->block_size, count); r++)
            top = scores[r] > top ? scores[r] : top;
        best[b] = top;
    }
    /* the newest block takes one place, whatever its score; without a live row it is dropped again */
    int32_t older = blocks > 0 ? blocks - 1 : 0;
    int32_t limit = blocks > 0 ? choice->block_limit - 1 : 0;
    int32_t filled = select_best(best, older, limit, work, candidates);
    if (blocks > 0 && best[older] > 0)
        candidates[filled++] = older;
    for (int32_t i = filled; i < choice->block_limit; i++)
        candidates[i] = -1;
}

/* Rows of candidate blocks that the token does not see are never chosen. */
static void hide_invisible(const struct choose_call *call, int32_t token, uint32_t *scores) {
    const struct index_choice *choice = call->choice;
    const int32_t *blocks = call->candidates + (int64_t)token * choice->block_limit;
    int32_t visible = visible_rows(call, token), size = choice->block_size;
    for (int32_t b = 0; b < choice->block_limit && blocks[b] >= 0; b++)
        for (int32_t r = size; r > 0 && (int64_t)blocks[b] * size + r > visible; r--)
            scores[(int64_t)b * size + r - 1] = 0;
}

static void select_rows(
    const struct choose_call *call, const struct run *run, int32_t token, uint32_t *scores) {
    const struct index_choice *choice = call->choice;
    int32_t count = choice->use_candidates ? run->rows : visible_rows(call, token);
    uint32_t *work = call->work + (int64_t)thread_number() * SELECT_WORDS;
    if (choice->use_candidates)
        hide_invisible(call, token, scores);
    int32_t *chosen = call->chosen + (int64_t)token * choice->top_k;
    int32_t filled = select_best(scores, count, choice->top_k, work, chosen);
    for (int32_t i = 0; i < filled && choice->use_candidates; i++)
        chosen[i] = listed_row(call, token, chosen[i]);
    if (choice->is_candidate_source)
        select_blocks(
            call, token, scores, count, scores, work); /* blocks are read before they are overwritten */
}

/* ---- batches ---- */

/* Splits tokens [begin, end) into runs. */
static int32_t find_runs(const struct choose_call *call, int32_t begin, int32_t end, struct run *runs) {
    int32_t count = 0;
    for (int32_t t = begin; t < end; t++) {
        int32_t rows = listed_rows(call, t);
        bool continues = count > 0 && !call->choice->use_candidates &&
                         call->sequence[t] == call->sequence[t - 1] &&
                         call->position[t] >= call->position[t - 1];
        if (!continues)
            runs[count++] = (struct run){t, 0, 0};
        struct run *run = &runs[count - 1];
        run->tokens++;
        run->rows = rows > run->rows ? rows : run->rows;
    }
    return count;
}

/* The run and the token's or tile's number within it, of item `item` of all runs' items. */
static const struct run *find_run(
    const struct run *runs, int32_t *item, int32_t (*items)(const struct run *)) {
    while (*item >= items(runs))
        *item -= items(runs++);
    return runs;
}

static int32_t run_tiles(const struct run *run) {
    return (run->rows + SCORE_ROWS - 1) / SCORE_ROWS;
}

static int32_t run_tokens(const struct run *run) {
    return run->tokens;
}

/* Scores of the run's tokens and one tile of its rows. */
static void score_rows(
    const struct choose_call *call, const struct run *run, int32_t begin, int32_t first, float *tile) {
#ifdef HAVE_PACKED_SCORES
    if (call->is_packed)
        unpack_keys(call, run, first, tile);
    else
#endif
        decode_keys(call, run, first, tile);
    for (int32_t t = run->token; t < run->token + run->tokens; t++) {
        uint32_t *scores = call->scores + (t - begin) * call->stride + first;
        if (!call->choice->use_candidates && first >= visible_rows(call, t))
            continue;
#ifdef HAVE_PACKED_SCORES
        if (call->is_packed) {
            score_packed_tile(call, t,
                call->queries + (int64_t)(t - begin) * call->choice->heads * call->query_bytes, tile, scores);
            continue;
        }
#endif
        score_tile(call, t, tile, scores);
    }
}

/* Called by all threads of a parallel region. */
static void choose_batch(
    const struct choose_call *call, const struct run *runs, int32_t run_count, int32_t begin) {
    int32_t tiles = 0, tokens = 0;
    for (int32_t i = 0; i < run_count; i++) {
        tiles += run_tiles(&runs[i]);
        tokens += runs[i].tokens;
    }
    float *tile = call->tiles + thread_number() * call->tile_floats;
#ifdef HAVE_PACKED_SCORES
    if (call->is_packed) {
        int32_t columns = call->keys->columns;
        const float *q = call->q + (int64_t)begin * call->choice->heads * columns;
#pragma omp for schedule(static)
        for (int32_t i = 0; i < tokens * call->choice->heads; i++)
            pack_query(q + (int64_t)i * columns, columns, call->queries + i * call->query_bytes);
    }
#endif
#pragma omp for schedule(dynamic)
    for (int32_t item = 0; item < tiles; item++) {
        int32_t number = item;
        const struct run *run = find_run(runs, &number, run_tiles);
        score_rows(call, run, begin, number * SCORE_ROWS, tile);
    }
#pragma omp for schedule(dynamic)
    for (int32_t item = 0; item < tokens; item++) {
        int32_t number = item;
        const struct run *run = find_run(runs, &number, run_tokens);
        select_rows(call, run, run->token + number, call->scores + (int64_t)item * call->stride);
    }
}

/* Tokens from `begin` on that fit one batch. */
static int32_t batch_end(const struct choose_call *call, int32_t begin, int32_t tokens) {
    int64_t fitting = SCORE_BYTES / (int64_t)sizeof(float) / call->stride;
    int64_t most = fitting < 1 ? 1 : fitting < BATCH_TOKENS ? fitting : BATCH_TOKENS;
    return least(tokens, begin + (int32_t)most);
}

static void choose(struct stream *stream, const float *q, const float *weight, int32_t tokens,
    const int32_t *sequence, const int32_t *position, const struct index_choice *choice,
    const struct block_rows *keys, const struct block_tables *tables, int32_t *candidates, int32_t *chosen) {
    if (tokens <= 0)
        return;
    struct choose_call call = {.q = q,
        .weight = weight,
        .sequence = sequence,
        .position = position,
        .choice = choice,
        .keys = keys,
        .tables = tables,
        .candidates = candidates,
        .chosen = chosen,
        .tile_floats = (int64_t)round_up(keys->columns, LANES) * (SCORE_ROWS + LANES)};
    int32_t longest = 1;
    for (int32_t t = 0; t < tokens; t++)
        longest = listed_rows(&call, t) > longest ? listed_rows(&call, t) : longest;
    call.stride = round_up(longest, SCORE_ROWS);
    size_t threads = (size_t)stream->threads;
    size_t batch = (size_t)batch_end(&call, 0, tokens);
    call.scores = stream_scratch(stream, SCRATCH_SCORES, batch * (size_t)call.stride * sizeof(uint32_t));
    call.tiles = stream_scratch(stream, SCRATCH_ROWS, threads * (size_t)call.tile_floats * sizeof(float));
    call.work = stream_scratch(stream, SCRATCH_TASKS, threads * SELECT_WORDS * sizeof(uint32_t));
#ifdef HAVE_PACKED_SCORES
    call.is_packed = keys->encoding == ROWS_FP4;
    call.query_bytes = packed_query_bytes(keys->columns);
    if (call.is_packed)
        call.queries =
            stream_scratch(stream, SCRATCH_INPUT, batch * (size_t)choice->heads * (size_t)call.query_bytes);
#endif
    for (int32_t begin = 0; begin < tokens;) {
        struct run runs[BATCH_TOKENS];
        int32_t end = batch_end(&call, begin, tokens);
        int32_t run_count = find_runs(&call, begin, end, runs);
#pragma omp parallel num_threads(stream->threads)
        choose_batch(&call, runs, run_count, begin);
        begin = end;
    }
}

void FOR_SET(fill_choose)(struct kernels *kernels) {
    kernels->choose = choose;
}

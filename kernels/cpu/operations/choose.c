/* The index: scores of compressed rows and the choice of the best.
 *
 * Tokens are taken in batches whose scores fit SCORE_BYTES. Consecutive tokens of one sequence share decoded keys; a token
 * that looks only inside candidate blocks has a list of its own. A score is summed per row over the key's columns
 * in order, one lane a row, then over the heads in order.
 */
#include "kernels/cpu/operations/internal.h"
#include "kernels/cpu/operations/weights.h"

#include <math.h> /* INFINITY */

enum {
    SCORE_BYTES = 48 << 20, /* scores of a batch */
    BATCH_TOKENS = 64,
    SCORE_VECTORS = 4,
    SCORE_ROWS = SCORE_VECTORS * LANES, /* rows of a tile */
    DIGIT_BITS = 11,
    DIGITS = 1 << DIGIT_BITS,
};

#ifdef HAVE_AVX512
enum { SCORE_HEADS = 6 };
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
    float *scores;       /* scratch [BATCH_TOKENS, stride] */
    int64_t tile_floats; /* padded columns * (SCORE_ROWS + LANES): transposed keys, then LANES decoded ones */
    float *tiles;        /* scratch [threads, tile_floats] */
    uint32_t *digits;    /* scratch [threads, DIGITS] */
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

/* ---- scores ---- */

/* Decodes LANES rows of the run's list, from `first` on, into keys [LANES, padded]; rows that no token sees are zero. */
static void decode_key_rows(
    const struct choose_call *call, const struct run *run, int32_t first, float *keys, int32_t padded) {
    int32_t columns = call->keys->columns;
    int32_t visible = visible_rows(call, run->token + run->tokens - 1);
    for (int32_t r = 0; r < LANES; r++) {
        float *key = keys + r * padded;
        int32_t place = first + r;
        int32_t row = place < run->rows ? listed_row(call, run->token, place) : visible;
        int32_t filled = 0;
        if (row < visible) {
            decode_row_fast(call->keys->encoding,
                block_row(call->keys, call->tables, call->sequence[run->token], row), columns, key);
            filled = columns;
        }
        memset(key + filled, 0, (size_t)(padded - filled) * sizeof *key);
    }
}

/* Decodes rows [first, first + SCORE_ROWS) of the run's list, transposed: tile[column][row]. */
static void decode_keys(const struct choose_call *call, const struct run *run, int32_t first, float *tile) {
    int32_t padded = round_up(call->keys->columns, LANES);
    float *keys = tile + (int64_t)padded * SCORE_ROWS;
    for (int32_t r = 0; r < SCORE_ROWS; r += LANES) {
        decode_key_rows(call, run, first + r, keys, padded);
        for (int32_t c = 0; c < padded; c += LANES) {
            lanes square[LANES];
            for (int32_t i = 0; i < LANES; i++)
                square[i] = load(keys + i * padded + c);
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
            lanes positive = choose_lanes(sum[h][v] <= splat(0), splat(0), sum[h][v]);
            total[v] = multiply_add(positive, splat(weight[h]), total[v]);
        }
}

static void score_tile(const struct choose_call *call, int32_t token, const float *tile, float *scores) {
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
        store(scores + v * LANES, total[v]);
}

/* ---- selection ---- */

/* Order-preserving integers: larger float, larger key; 0: never chosen (NaN and -infinity). */
static inline uint32_t sort_key(float score) {
    uint32_t bits = float_bits(score + 0.0f); /* -0 becomes 0 */
    uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return score > -INFINITY ? key : 0;
}

/* The k-th largest key of scores [count] (k >= 1), or 1 when fewer than k are live; *ties: how many of the keys equal
 * to it are among the k best. */
static uint32_t threshold_key(
    const float *scores, int32_t count, int32_t k, uint32_t *digits, int32_t *ties) {
    uint32_t prefix = 0, known = 0; /* the threshold's top bits, and which they are */
    int32_t left = k;
    for (int32_t shift = 32 - DIGIT_BITS;; shift -= DIGIT_BITS) {
        int32_t low = shift > 0 ? shift : 0;
        memset(digits, 0, DIGITS * sizeof *digits);
        for (int32_t i = 0; i < count; i++) {
            uint32_t key = sort_key(scores[i]);
            digits[(key >> low) & (DIGITS - 1)] += key != 0 && (key & known) == prefix;
        }
        /* the last digit overlaps the one before: of its values only those that agree with the prefix occur */
        int32_t digit = DIGITS - 1;
        while (digit >= 0 && digits[digit] < (uint32_t)left)
            left -= (int32_t)digits[digit--];
        if (digit < 0) {
            *ties = count;
            return 1; /* fewer than k live scores: only the first pass can end here */
        }
        prefix |= (uint32_t)digit << low;
        known |= (uint32_t)(DIGITS - 1) << low;
        if (low == 0) {
            *ties = left;
            return prefix;
        }
    }
}

/* Places of the k best live scores, ascending, then -1; ties go to the lower place. Returns their number. */
static int32_t select_best(const float *scores, int32_t count, int32_t k, uint32_t *digits, int32_t *places) {
    int32_t ties = 0, filled = 0;
    if (k > 0 && count > 0) {
        uint32_t threshold = threshold_key(scores, count, k, digits, &ties);
        for (int32_t i = 0; i < count && filled < k; i++) {
            uint32_t key = sort_key(scores[i]);
            bool is_tie = key == threshold && ties-- > 0;
            if (key > threshold || is_tie)
                places[filled++] = i;
        }
    }
    for (int32_t i = filled; i < k; i++)
        places[i] = -1;
    return filled;
}

/* The best blocks of a token's scores [count], its newest one always; `best` has room for all blocks. */
static void select_blocks(const struct choose_call *call, int32_t token, const float *scores, int32_t count,
    float *best, uint32_t *digits) {
    const struct index_choice *choice = call->choice;
    int32_t *candidates = call->candidates + (int64_t)token * choice->block_limit;
    int32_t blocks = (count + choice->block_size - 1) / choice->block_size;
    for (int32_t b = 0; b < blocks; b++) {
        float top = -INFINITY;
        for (int32_t r = b * choice->block_size; r < least((b + 1) * choice->block_size, count); r++)
            top = scores[r] > top ? scores[r] : top;
        best[b] = top;
    }
    /* the newest block takes one place, whatever its score; without a live row it is dropped again */
    int32_t older = blocks > 0 ? blocks - 1 : 0;
    int32_t limit = blocks > 0 ? choice->block_limit - 1 : 0;
    int32_t filled = select_best(best, older, limit, digits, candidates);
    if (blocks > 0 && best[older] > -INFINITY)
        candidates[filled++] = older;
    for (int32_t i = filled; i < choice->block_limit; i++)
        candidates[i] = -1;
}

static void select_rows(const struct choose_call *call, const struct run *run, int32_t token, float *scores) {
    const struct index_choice *choice = call->choice;
    int32_t visible = visible_rows(call, token);
    int32_t count = run->rows;
    uint32_t *digits = call->digits + (int64_t)thread_number() * DIGITS;
    if (choice->use_candidates)
        for (int32_t i = 0; i < count; i++)
            scores[i] = listed_row(call, token, i) < visible ? scores[i] : -INFINITY;
    else
        count = visible;
    int32_t *chosen = call->chosen + (int64_t)token * choice->top_k;
    int32_t filled = select_best(scores, count, choice->top_k, digits, chosen);
    for (int32_t i = 0; i < filled; i++)
        chosen[i] = listed_row(call, token, chosen[i]);
    if (choice->is_candidate_source)
        select_blocks(
            call, token, scores, count, scores, digits); /* blocks are read before they are overwritten */
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

/* Called by all threads of a parallel region. */
static void choose_batch(
    const struct choose_call *call, const struct run *runs, int32_t run_count, int32_t begin) {
    int32_t tiles = 0, tokens = 0;
    for (int32_t i = 0; i < run_count; i++) {
        tiles += run_tiles(&runs[i]);
        tokens += runs[i].tokens;
    }
    float *tile = call->tiles + thread_number() * call->tile_floats;
#pragma omp for schedule(dynamic)
    for (int32_t item = 0; item < tiles; item++) {
        int32_t number = item;
        const struct run *run = find_run(runs, &number, run_tiles);
        int32_t first = number * SCORE_ROWS;
        decode_keys(call, run, first, tile);
        for (int32_t t = run->token; t < run->token + run->tokens; t++)
            if (call->choice->use_candidates || first < visible_rows(call, t))
                score_tile(call, t, tile, call->scores + (t - begin) * call->stride + first);
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
    struct choose_call call = {q, weight, sequence, position, choice, keys, tables, candidates, chosen, 0,
        NULL, (int64_t)round_up(keys->columns, LANES) * (SCORE_ROWS + LANES), NULL, NULL};
    int32_t longest = 1;
    for (int32_t t = 0; t < tokens; t++)
        longest = listed_rows(&call, t) > longest ? listed_rows(&call, t) : longest;
    call.stride = round_up(longest, SCORE_ROWS);
    size_t threads = (size_t)stream->threads;
    size_t batch = (size_t)batch_end(&call, 0, tokens);
    call.scores = stream_scratch(stream, SCRATCH_SCORES, batch * (size_t)call.stride * sizeof(float));
    call.tiles = stream_scratch(stream, SCRATCH_ROWS, threads * (size_t)call.tile_floats * sizeof(float));
    call.digits = stream_scratch(stream, SCRATCH_TASKS, threads * DIGITS * sizeof(uint32_t));
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

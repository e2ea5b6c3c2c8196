/* Rotations: of the last columns of heads by a token's position, and of an image's queries and keys by their place in its grid. */
#include "kernels/cuda/functions.h"
#include "kernels/cuda/operations.h"

#include <math.h> /* cos, sin */

/* Frequencies are host memory: they travel with the launch. */
enum { MOST_PAIRS = 64, ROTATE_THREADS = 256 };

struct frequencies {
    float value[MOST_PAIRS];
};

struct turns {
    float cosine[MOST_PAIRS], sine[MOST_PAIRS];
};

static bool take_frequencies(
    struct stream *stream, const float *from, int32_t count, const char *what, struct frequencies *to) {
    if (count > MOST_PAIRS)
        return stream_check(stream, cudaErrorInvalidValue, what);
    for (int32_t i = 0; i < count; i++)
        to->value[i] = from[i];
    return true;
}

/* Parts into which `work` items of each of `tokens` tokens are cut, so that few tokens keep the device busy, too. */
static unsigned parts_of(const struct stream *stream, int32_t tokens, int32_t work) {
    int32_t most = (work + ROTATE_THREADS - 1) / ROTATE_THREADS;
    int32_t wanted = (4 * stream->multiprocessors + tokens - 1) / tokens;
    return (unsigned)(most < wanted ? most : wanted);
}

/* Of a float32 angle, in double, so that they are right to the last place of a float however large it is. */
__device__ static inline void set_turn(struct turns &turns, int32_t pair, float angle, float sign) {
    turns.cosine[pair] = (float)cos((double)angle);
    turns.sine[pair] = (float)sin((double)angle) * sign;
}

/* ---- heads ---- */

struct rotate_call {
    float *x; /* [T, heads, columns] */
    const int32_t *positions;
    int32_t heads, columns, pairs;
    float sign; /* -1 turns back */
    bool whole; /* two pairs can be met at once */
};

__device__ static inline void rotate_pair(float *a, float *b, float cosine, float sine) {
    float first = *a * cosine - *b * sine;
    *b = *b * cosine + *a * sine;
    *a = first;
}

/* A block: a token and a part of its heads. */
static __global__ void rotate_heads(struct rotate_call call, struct frequencies frequencies) {
    struct turns &turns = SHARED(struct turns);
    int64_t t = blockIdx.x;
    float position = (float)call.positions[t];
    for (int32_t i = (int32_t)threadIdx.x; i < call.pairs; i += (int32_t)blockDim.x)
        set_turn(turns, i, position * frequencies.value[i], call.sign);
    __syncthreads();
    float *first = call.x + t * call.heads * call.columns + call.columns - 2 * call.pairs;
    int32_t step = call.whole ? 2 : 1, steps = (call.pairs + step - 1) / step;
    for (int32_t i = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x); i < call.heads * steps;
         i += (int32_t)(gridDim.y * blockDim.x)) {
        int32_t pair = i % steps * step;
        float *at = first + (int64_t)(i / steps) * call.columns + 2 * pair;
        float v[FOUR];
        load_four(at, 2, call.whole, v);
        rotate_pair(&v[0], &v[1], turns.cosine[pair], turns.sine[pair]);
        if (call.whole)
            rotate_pair(&v[2], &v[3], turns.cosine[pair + 1], turns.sine[pair + 1]);
        store_four(at, 2, call.whole, v);
    }
}

void cuda_rotate(struct stream *stream, float *x, const int32_t *positions, int32_t tokens, int32_t heads,
    int32_t columns, const struct rope *rope, bool inverse) {
    struct frequencies frequencies = {};
    int32_t pairs = rope->dims / 2;
    if (tokens <= 0 || heads * pairs <= 0 ||
        !take_frequencies(stream, rope->frequency, pairs, "rotate: too many pairs", &frequencies))
        return;
    bool whole = pairs % 2 == 0 && is_in_fours(x, columns);
    struct rotate_call call = {x, positions, heads, columns, pairs, inverse ? -1.0f : 1.0f, whole};
    dim3 grid((unsigned)tokens, parts_of(stream, tokens, heads * pairs));
    int32_t threads = heads * pairs <= 64 ? 64 : ROTATE_THREADS;
    LAUNCH(stream, rotate_heads, grid, (unsigned)threads, sizeof(struct turns), call, frequencies);
}

/* ---- grids ---- */

struct grid_call {
    float *qkv; /* [rows * columns, 3, heads, width] */
    int32_t grid_columns, heads, width;
};

/* A block: a place of the grid and a part of its heads of queries and keys. */
static __global__ void rotate_places(struct grid_call call, struct frequencies frequencies) {
    struct turns &turns = SHARED(struct turns);
    int32_t t = (int32_t)blockIdx.x, half = call.width / 2, quarter = call.width / 4;
    for (int32_t i = (int32_t)threadIdx.x; i < half; i += (int32_t)blockDim.x) {
        int32_t at = i < quarter ? t / call.grid_columns : t % call.grid_columns;
        set_turn(turns, i, (float)at * frequencies.value[i % quarter], 1.0f);
    }
    __syncthreads();
    float *first = call.qkv + (int64_t)t * 3 * call.heads * call.width;
    for (int32_t i = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x); i < 2 * call.heads * half;
         i += (int32_t)(gridDim.y * blockDim.x)) {
        int32_t pair = i % half;
        float *head = first + (int64_t)(i / half) * call.width;
        rotate_pair(&head[pair], &head[half + pair], turns.cosine[pair], turns.sine[pair]);
    }
}

void cuda_rotate_grid(struct stream *stream, float *qkv, int32_t grid_rows, int32_t grid_columns,
    int32_t heads, int32_t width, const float *frequency) {
    struct frequencies frequencies = {};
    int32_t tokens = grid_rows * grid_columns;
    /* a block keeps the turns of width / 2 pairs */
    bool fits =
        width / 2 <= MOST_PAIRS || stream_check(stream, cudaErrorInvalidValue, "rotate_grid: too wide heads");
    if (tokens <= 0 || !fits || !take_frequencies(stream, frequency, width / 4, "rotate_grid", &frequencies))
        return;
    struct grid_call call = {qkv, grid_columns, heads, width};
    dim3 grid((unsigned)tokens, parts_of(stream, tokens, heads * width));
    LAUNCH(stream, rotate_places, grid, ROTATE_THREADS, sizeof(struct turns), call, frequencies);
}

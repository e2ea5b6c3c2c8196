/* Resampling with Pillow's arithmetic, so that a campaign's pixels are those of the published pipeline
 * bit for bit: coefficients computed in double, normalized, rounded to 22 fractional bits; a horizontal
 * pass to 8 bits, then a vertical one, each sum rounded to nearest and clipped. */
#include "recipe/image.h"
#include "recipe/image_internal.h"

#include <math.h>   /* ceil, nearbyint */
#include <string.h> /* memcpy, memset */

enum { FRACTION_BITS = 22, LANES = 8, BACKGROUND = 127 };

typedef int32_t lanes __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef int16_t short_lanes __attribute__((vector_size(LANES * sizeof(int16_t))));
typedef uint8_t byte_lanes __attribute__((vector_size(LANES)));

/* The same integer sums in wider registers, chosen when the program starts. */
#if defined(__x86_64__)
#define FOR_EACH_INSTRUCTION_SET __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EACH_INSTRUCTION_SET
#endif

/* ---- coefficients ---- */

/* The source pixels that make one output pixel, and where their coefficients begin. */
struct taps {
    int32_t first, count;
    const int32_t *coefficients;
};

static const double SUPPORT = 2;

/* Keys' cubic kernel with a = -0.5. */
static double bicubic(double x) {
    const double a = -0.5;
    if (x < 0)
        x = -x;
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < SUPPORT)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static int32_t to_fixed_point(double coefficient) {
    double scaled = coefficient * (1 << FRACTION_BITS);
    return (int32_t)(coefficient < 0 ? scaled - 0.5 : scaled + 0.5);
}

/* Coefficients of one output pixel. */
static void compute_taps(
    double scale, int32_t from, int32_t output, double *weights, int32_t *coefficients, struct taps *taps) {
    double filter_scale = scale < 1 ? 1 : scale, support = SUPPORT * filter_scale;
    double center = (output + 0.5) * scale, inverse = 1 / filter_scale, sum = 0;
    int32_t first = (int32_t)(center - support + 0.5), end = (int32_t)(center + support + 0.5);
    first = first < 0 ? 0 : first;
    end = end > from ? from : end;
    for (int32_t i = 0; i < end - first; i++) {
        weights[i] = bicubic((i + first - center + 0.5) * inverse);
        sum += weights[i];
    }
    for (int32_t i = 0; i < end - first; i++)
        coefficients[i] = to_fixed_point(sum != 0 ? weights[i] / sum : weights[i]);
    *taps = (struct taps){first, end - first, coefficients};
}

/* The taps of all `to` output pixels of a line of `from` pixels. */
static enum result prepare_taps(
    struct image_workspace *workspace, int32_t from, int32_t to, struct taps **all_taps) {
    double scale = (double)from / to;
    size_t most = (size_t)ceil(SUPPORT * (scale < 1 ? 1 : scale)) * 2 + 1;
    size_t bytes =
        (size_t)to * sizeof(struct taps) + most * sizeof(double) + (size_t)to * most * sizeof(int32_t);
    void *block = NULL;
    TRY(workspace_block(workspace, BLOCK_COEFFICIENTS, bytes, &block));
    struct taps *taps = block;
    double *weights = (double *)(taps + to);
    int32_t *coefficients = (void *)(weights + most);
    for (int32_t i = 0; i < to; i++)
        compute_taps(scale, from, i, weights, coefficients + (size_t)i * most, &taps[i]);
    *all_taps = taps;
    return OK;
}

/* ---- passes ---- */

/* Vectors go through pointers: as arguments their passing would depend on the instruction set. */
static inline void accumulate(lanes *sum, const uint8_t *bytes, int32_t coefficient) {
    byte_lanes packed;
    memcpy(&packed, bytes, sizeof packed);
    /* In two steps: gcc 12 knows no instruction for the whole way. */
    short_lanes half_way = __builtin_convertvector(packed, short_lanes);
    *sum += __builtin_convertvector(half_way, lanes) * coefficient;
}

/* Rounds, clips to 0..255. */
static inline void store_lanes(const lanes *sum, uint8_t *bytes) {
    lanes values = *sum >> FRACTION_BITS;
    values &= values > 0;
    lanes above = values > 255;
    values = (values & ~above) | (above & 255);
    short_lanes half_way = __builtin_convertvector(values, short_lanes);
    byte_lanes packed = __builtin_convertvector(half_way, byte_lanes);
    memcpy(bytes, &packed, sizeof packed);
}

static const int32_t HALF = 1 << (FRACTION_BITS - 1);

/* One band of LANES lines, interleaved byte by byte: band[x][channel][line] -> out[x][channel][line]. */
FOR_EACH_INSTRUCTION_SET static void resample_band(
    const uint8_t *band, const struct taps *taps, int32_t to, uint8_t *out) {
    for (int32_t x = 0; x < to; x++) {
        const uint8_t *source = band + (size_t)taps[x].first * IMAGE_CHANNELS * LANES;
        lanes red = {0}, green = {0}, blue = {0};
        red += HALF;
        green += HALF;
        blue += HALF;
        for (int32_t i = 0; i < taps[x].count; i++, source += IMAGE_CHANNELS * LANES) {
            int32_t coefficient = taps[x].coefficients[i];
            accumulate(&red, source, coefficient);
            accumulate(&green, source + LANES, coefficient);
            accumulate(&blue, source + 2 * LANES, coefficient);
        }
        store_lanes(&red, out);
        store_lanes(&green, out + LANES);
        store_lanes(&blue, out + 2 * LANES);
        out += IMAGE_CHANNELS * LANES;
    }
}

/* Exchanges rows and columns of 8 x 8 bytes: halves, quarters, then single ones; little-endian words. */
static inline void transpose_bytes(uint64_t rows[LANES]) {
    static const struct {
        int distance, bits;
        uint64_t mask;
    } stages[] = {{4, 32, 0x00000000FFFFFFFF}, {2, 16, 0x0000FFFF0000FFFF}, {1, 8, 0x00FF00FF00FF00FF}};
#pragma GCC unroll 3
    for (int stage = 0; stage < 3; stage++)
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) {
            const int distance = stages[stage].distance, bits = stages[stage].bits;
            if (i & distance)
                continue;
            uint64_t moved = (rows[i] >> bits ^ rows[i + distance]) & stages[stage].mask;
            rows[i] ^= moved << bits;
            rows[i + distance] ^= moved;
        }
}

/* Copies LANES x LANES bytes, transposed, between lines `from_step` and `to_step` bytes apart. */
static inline void copy_transposed(const uint8_t *from, size_t from_step, uint8_t *to, size_t to_step) {
    uint64_t rows[LANES];
    for (size_t i = 0; i < LANES; i++)
        memcpy(&rows[i], from + i * from_step, LANES);
    transpose_bytes(rows);
    for (size_t i = 0; i < LANES; i++)
        memcpy(to + i * to_step, &rows[i], LANES);
}

/* Copies `count` lines of `bytes` bytes into a band. */
FOR_EACH_INSTRUCTION_SET static void gather_band(
    const uint8_t *lines, size_t bytes, size_t count, uint8_t *band) {
    size_t done = 0;
    if (count == LANES)
        for (; done + LANES <= bytes; done += LANES)
            copy_transposed(lines + done, bytes, band + done * LANES, LANES);
    for (size_t i = done; i < bytes; i++)
        for (size_t line = 0; line < count; line++)
            band[i * LANES + line] = lines[line * bytes + i];
}

/* Copies a band back into lines. */
FOR_EACH_INSTRUCTION_SET static void scatter_band(
    const uint8_t *band, size_t bytes, size_t count, uint8_t *lines) {
    size_t done = 0;
    if (count == LANES)
        for (; done + LANES <= bytes; done += LANES)
            copy_transposed(band + done * LANES, LANES, lines + done, bytes);
    for (size_t i = done; i < bytes; i++)
        for (size_t line = 0; line < count; line++)
            lines[line * bytes + i] = band[i * LANES + line];
}

static enum result resample_horizontally(
    struct image_workspace *workspace, const struct image_pixels *from, int32_t to, uint8_t *out) {
    const size_t line = (size_t)from->width * IMAGE_CHANNELS, new_line = (size_t)to * IMAGE_CHANNELS;
    struct taps *taps = NULL;
    void *block = NULL;
    TRY(prepare_taps(workspace, from->width, to, &taps));
    TRY(workspace_block(workspace, BLOCK_BAND, (line + new_line) * LANES, &block));
    uint8_t *band = block, *new_band = band + line * LANES;
    memset(band, 0, line * LANES); /* the last band may have fewer lines */
    for (int32_t y = 0; y < from->height; y += LANES) {
        size_t count = from->height - y < LANES ? (size_t)(from->height - y) : LANES;
        gather_band(from->data + (size_t)y * line, line, count, band);
        resample_band(band, taps, to, new_band);
        scatter_band(new_band, new_line, count, out + (size_t)y * new_line);
    }
    return OK;
}

/* One output line from the lines that its taps name. */
FOR_EACH_INSTRUCTION_SET static void resample_line(
    const uint8_t *source, size_t bytes, const struct taps *taps, uint8_t *out) {
    source += (size_t)taps->first * bytes;
    size_t i = 0;
    for (; i + 2 * LANES <= bytes; i += 2 * LANES) {
        lanes low = {0}, high = {0};
        low += HALF;
        high += HALF;
        for (int32_t tap = 0; tap < taps->count; tap++) {
            const uint8_t *at = source + (size_t)tap * bytes + i;
            accumulate(&low, at, taps->coefficients[tap]);
            accumulate(&high, at + LANES, taps->coefficients[tap]);
        }
        store_lanes(&low, out + i);
        store_lanes(&high, out + i + LANES);
    }
    for (; i < bytes; i++) {
        int32_t sum = HALF;
        for (int32_t tap = 0; tap < taps->count; tap++)
            sum += source[(size_t)tap * bytes + i] * taps->coefficients[tap];
        sum >>= FRACTION_BITS;
        out[i] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
    }
}

static enum result resample_vertically(
    struct image_workspace *workspace, const struct image_pixels *from, int32_t to, uint8_t *out) {
    const size_t line = (size_t)from->width * IMAGE_CHANNELS;
    struct taps *taps = NULL;
    TRY(prepare_taps(workspace, from->height, to, &taps));
    for (int32_t y = 0; y < to; y++)
        resample_line(from->data, line, &taps[y], out + (size_t)y * line);
    return OK;
}

/* Resizes to width x height into `out`. */
static enum result resize(struct image_workspace *workspace, struct image_pixels from, int32_t width,
    int32_t height, uint8_t *out) {
    if (from.width != width) {
        void *block = out;
        if (from.height != height)
            TRY(workspace_block(
                workspace, BLOCK_HORIZONTAL, (size_t)width * IMAGE_CHANNELS * (size_t)from.height, &block));
        TRY(resample_horizontally(workspace, &from, width, block));
        from = (struct image_pixels){width, from.height, block};
    }
    if (from.height != height)
        TRY(resample_vertically(workspace, &from, height, out));
    else if (from.data != out)
        memcpy(out, from.data, (size_t)width * (size_t)height * IMAGE_CHANNELS);
    return OK;
}

/* ---- fit ---- */

/* Python's round(): to the nearest integer, halves to the even one. At least one pixel of an image
 * remains. */
static int32_t round_side(double side, int32_t most) {
    int32_t rounded = (int32_t)nearbyint(side);
    return rounded < 1 ? 1 : rounded > most ? most : rounded;
}

/* The largest size of the image's aspect that has the plan's width or height. */
static void contained_size(
    const struct image_pixels *pixels, const struct image_plan *plan, int32_t *width, int32_t *height) {
    *width = plan->width;
    *height = plan->height;
    double ratio = (double)pixels->width / pixels->height, planned = (double)plan->width / plan->height;
    if (ratio > planned)
        *height = round_side((double)pixels->height / pixels->width * plan->width, plan->height);
    else if (ratio < planned)
        *width = round_side((double)pixels->width / pixels->height * plan->height, plan->width);
}

/* Centres width x height pixels at the start of `canvas` in the plan's size, in place: lines move up
 * from the last one. */
static void center(uint8_t *canvas, int32_t width, int32_t height, const struct image_plan *plan) {
    const size_t line = (size_t)width * IMAGE_CHANNELS, full = (size_t)plan->width * IMAGE_CHANNELS;
    const size_t left = (size_t)nearbyint((plan->width - width) * 0.5) * IMAGE_CHANNELS;
    const int32_t top = (int32_t)nearbyint((plan->height - height) * 0.5);
    for (int32_t y = height; y-- > 0;) {
        uint8_t *to = canvas + (size_t)(top + y) * full;
        memmove(to + left, canvas + (size_t)y * line, line);
        memset(to, BACKGROUND, left);
        memset(to + left + line, BACKGROUND, full - left - line);
    }
    memset(canvas, BACKGROUND, (size_t)top * full);
    memset(canvas + (size_t)(top + height) * full, BACKGROUND, (size_t)(plan->height - top - height) * full);
}

static enum result shrink(
    struct image_workspace *workspace, const struct image_plan *plan, struct image_pixels *pixels) {
    void *block = NULL;
    TRY(workspace_block(workspace, BLOCK_SHRUNK,
        (size_t)plan->shrunk_width * (size_t)plan->shrunk_height * IMAGE_CHANNELS, &block));
    TRY(resize(workspace, *pixels, plan->shrunk_width, plan->shrunk_height, block));
    *pixels = (struct image_pixels){plan->shrunk_width, plan->shrunk_height, block};
    return OK;
}

enum result image_fit(struct image_workspace *workspace, const struct image_pixels *pixels,
    const struct image_plan *plan, struct image_pixels *fitted) {
    struct image_pixels from = *pixels;
    if (from.width != plan->shrunk_width || from.height != plan->shrunk_height)
        TRY(shrink(workspace, plan, &from));
    if (from.width == plan->width && from.height == plan->height) {
        *fitted = from;
        return OK;
    }
    int32_t width, height;
    void *block = NULL;
    contained_size(&from, plan, &width, &height);
    TRY(workspace_block(
        workspace, BLOCK_FITTED, (size_t)plan->width * (size_t)plan->height * IMAGE_CHANNELS, &block));
    TRY(resize(workspace, from, width, height, block));
    if (width != plan->width || height != plan->height)
        center(block, width, height, plan);
    *fitted = (struct image_pixels){plan->width, plan->height, block};
    return OK;
}

/* ---- patches ---- */

/* To the nearest bfloat16, ties to even. */
static float round_to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7FFF + (bits >> 16 & 1);
    bits &= 0xFFFF0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void fill_patch(
    const uint8_t *corner, size_t line, int32_t side, const float *normalized, float *patch) {
    for (int32_t channel = 0; channel < IMAGE_CHANNELS; channel++)
        for (int32_t y = 0; y < side; y++) {
            const uint8_t *pixel = corner + (size_t)y * line + channel;
            for (int32_t x = 0; x < side; x++, pixel += IMAGE_CHANNELS)
                *patch++ = normalized[*pixel];
        }
}

void image_patches(const struct image_limits *limits, const struct image_plan *plan,
    const struct image_pixels *fitted, float *patches) {
    float normalized[256];
    for (int v = 0; v < 256; v++)
        normalized[v] = round_to_bfloat16(((float)v / 255.0F - 0.5F) / 0.5F);
    const size_t line = (size_t)fitted->width * IMAGE_CHANNELS,
                 patch_values = (size_t)image_patch_values(limits);
    for (int32_t row = 0; row < plan->patch_rows; row++)
        for (int32_t column = 0; column < plan->patch_columns; column++, patches += patch_values)
            fill_patch(fitted->data + (size_t)(row * limits->patch_size) * line +
                           (size_t)(column * limits->patch_size) * IMAGE_CHANNELS,
                line, limits->patch_size, normalized, patches);
}

enum result image_to_patches(struct image_workspace *workspace, const struct image_limits *limits,
    const uint8_t *bytes, size_t count, int32_t most_side, bool low_detail, struct image_plan *plan,
    const float **patches) {
    struct image_pixels pixels = {0}, fitted = {0};
    void *block = NULL;
    TRY(image_decode(workspace, bytes, count, most_side, &pixels));
    TRY(image_plan(limits, pixels.width, pixels.height, low_detail, plan));
    TRY(image_fit(workspace, &pixels, plan, &fitted));
    size_t total =
        (size_t)plan->patch_rows * (size_t)plan->patch_columns * (size_t)image_patch_values(limits);
    TRY(workspace_block(workspace, BLOCK_PATCHES, total * sizeof(float), &block));
    image_patches(limits, plan, &fitted, block);
    *patches = block;
    return OK;
}

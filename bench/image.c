/* Times images on one core: decoding, fitting to the model's size, cutting into patches.
 *
 *   bench-image [--json] [FILE ...]
 *
 * Without files it makes photograph-like pictures of three sizes and packs each as PNG, JPEG and WebP.
 * Columns: image, its size, milliseconds of each step (median, processor time), images a second, MB of file
 * and of decoded pixels a second. --json: one JSON line per image instead.
 */
#include "recipe/image.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>
#include <png.h>
#include <webp/encode.h>

static const struct image_limits limits = {
    .patch_size = 14, .downsample_ratio = 3, .min_pixels = 544 * 544, .max_image_tokens = 1024};

enum { MOST_ROUNDS = 101, JPEG_QUALITY = 90 };
static const double SECONDS_AN_IMAGE = 1.5;

enum step { DECODE, FIT, PATCHES, STEPS };

struct bench_image {
    const char *name;
    uint8_t *bytes;
    size_t count;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void check(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "bench-image: %s\n", what);
    exit(1);
}

static void check_result(enum result status) {
    check(status == OK, failure_message());
}

/* ---- pictures ---- */

/* Slow waves, some edges and noise of a few levels: packs about as well as a photograph. */
static uint8_t *make_picture(int32_t width, int32_t height) {
    uint8_t *pixels = malloc((size_t)width * (size_t)height * IMAGE_CHANNELS), *at = pixels;
    uint32_t noise = 1;
    check(pixels != NULL, "no memory");
    for (int32_t y = 0; y < height; y++)
        for (int32_t x = 0; x < width; x++, at += IMAGE_CHANNELS) {
            noise = noise * 1664525u + 1013904223u;
            int32_t shade = (x * 160 / width) + (y * 60 / height) + (x / 90 + y / 70) % 3 * 12;
            at[0] = (uint8_t)(shade + (int32_t)(noise >> 29));
            at[1] = (uint8_t)(220 - shade / 2 + (int32_t)(noise >> 26 & 7));
            at[2] = (uint8_t)(40 + shade / 3 + (int32_t)(noise >> 23 & 7));
        }
    return pixels;
}

static struct bench_image pack_png(const uint8_t *pixels, int32_t width, int32_t height) {
    png_image image = {.version = PNG_IMAGE_VERSION,
        .width = (uint32_t)width,
        .height = (uint32_t)height,
        .format = PNG_FORMAT_RGB};
    png_alloc_size_t count = PNG_IMAGE_PNG_SIZE_MAX(image);
    uint8_t *bytes = malloc(count);
    check(bytes && png_image_write_to_memory(&image, bytes, &count, 0, pixels, 0, NULL), "cannot write PNG");
    return (struct bench_image){"PNG", bytes, count};
}

static struct bench_image pack_jpeg(uint8_t *pixels, int32_t width, int32_t height) {
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    unsigned long count = 0;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &bytes, &count);
    jpeg.image_width = (JDIMENSION)width;
    jpeg.image_height = (JDIMENSION)height;
    jpeg.input_components = IMAGE_CHANNELS;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, JPEG_QUALITY, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    for (int32_t y = 0; y < height; y++) {
        JSAMPROW row = pixels + (size_t)y * (size_t)width * IMAGE_CHANNELS;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return (struct bench_image){"JPEG", bytes, count};
}

static struct bench_image pack_webp(const uint8_t *pixels, int32_t width, int32_t height) {
    uint8_t *bytes = NULL;
    size_t count = WebPEncodeRGB(pixels, width, height, width * IMAGE_CHANNELS, JPEG_QUALITY, &bytes);
    check(count > 0, "cannot write WebP");
    return (struct bench_image){"WebP", bytes, count};
}

static struct bench_image read_image(const char *path) {
    FILE *file = fopen(path, "rb");
    check(file && fseek(file, 0, SEEK_END) == 0, path);
    long size = ftell(file);
    check(size > 0, path);
    rewind(file);
    struct bench_image image = {path, malloc((size_t)size), (size_t)size};
    check(image.bytes && fread(image.bytes, 1, image.count, file) == image.count, path);
    fclose(file);
    return image;
}

/* ---- measuring ---- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static void report(const struct bench_image *image, const struct image_pixels *pixels,
    const struct image_plan *plan, const double medians[STEPS], bool as_json) {
    const double seconds = medians[DECODE] + medians[FIT] + medians[PATCHES];
    const double pixel_bytes = (double)pixels->width * pixels->height * IMAGE_CHANNELS;
    printf(as_json
               ? "{\"image\": \"%s\", \"width\": %d, \"height\": %d, \"tokens\": %d, \"decode_ms\": %.3f, "
                 "\"fit_ms\": %.3f, \"patches_ms\": %.3f, \"images_per_second\": %.1f, "
                 "\"file_megabytes_per_second\": %.1f, \"pixel_megabytes_per_second\": %.1f}\n"
               : "%-24s %5d x %-5d %5d tokens %8.2f ms decode %8.2f ms fit %8.2f ms patches %7.1f images/s "
                 "%7.1f MB/s of file %7.1f MB/s of pixels\n",
        image->name, pixels->width, pixels->height, plan->tokens, medians[DECODE] * 1e3, medians[FIT] * 1e3,
        medians[PATCHES] * 1e3, 1 / seconds, (double)image->count / seconds * 1e-6,
        pixel_bytes / seconds * 1e-6);
}

static void measure(const struct bench_image *image, bool as_json) {
    struct image_workspace workspace = {0};
    struct image_pixels pixels, fitted;
    struct image_plan plan;
    static double times[STEPS][MOST_ROUNDS];
    double medians[STEPS], begin = now();
    float *patches = NULL;
    int rounds = 0;
    while (rounds < MOST_ROUNDS && (rounds < 3 || now() - begin < SECONDS_AN_IMAGE)) {
        double start = now();
        check_result(image_decode(&workspace, image->bytes, image->count, IMAGE_MOST_SIDE, &pixels));
        double decoded = now();
        check_result(image_plan(&limits, pixels.width, pixels.height, false, &plan));
        check_result(image_fit(&workspace, &pixels, &plan, &fitted));
        double fit = now();
        if (!patches)
            patches = malloc((size_t)plan.patch_rows * (size_t)plan.patch_columns *
                             (size_t)image_patch_values(&limits) * sizeof *patches);
        check(patches != NULL, "no memory");
        image_patches(&limits, &plan, &fitted, patches);
        times[DECODE][rounds] = decoded - start;
        times[FIT][rounds] = fit - decoded;
        times[PATCHES][rounds++] = now() - fit;
    }
    for (int step = 0; step < STEPS; step++)
        medians[step] = median(times[step], rounds);
    report(image, &pixels, &plan, medians, as_json);
    free(patches);
    image_workspace_free(&workspace);
}

static void measure_made_pictures(bool as_json) {
    static const int32_t sizes[][2] = {{320, 240}, {1024, 768}, {4000, 3000}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int32_t width = sizes[i][0], height = sizes[i][1];
        uint8_t *pixels = make_picture(width, height);
        struct bench_image images[] = {pack_png(pixels, width, height), pack_jpeg(pixels, width, height),
            pack_webp(pixels, width, height)};
        for (size_t j = 0; j < sizeof images / sizeof *images; j++) {
            measure(&images[j], as_json);
            free(images[j].bytes);
        }
        free(pixels);
    }
}

int main(int argc, char **argv) {
    int first = 1;
    bool as_json = argc > 1 && strcmp(argv[1], "--json") == 0;
    first += as_json;
    if (first == argc)
        measure_made_pictures(as_json);
    for (int i = first; i < argc; i++) {
        struct bench_image image = read_image(argv[i]);
        measure(&image, as_json);
        free(image.bytes);
    }
    return 0;
}

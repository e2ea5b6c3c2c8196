/* PNG by libpng: every colour type to RGB or RGBA of 8 bits. Colour profiles, gamma and texts are
 * skipped unread: the published pipeline takes sample values as they are, and a compressed profile can
 * be a bomb. */
#include "recipe/image_internal.h"

#include <png.h>
#include <setjmp.h> /* setjmp, longjmp */
#include <stdio.h>  /* snprintf */
#include <string.h> /* memcpy */

enum { MOST_CHUNK_BYTES = 32 << 20, MOST_KEPT_CHUNKS = 8 };

struct png_reading {
    struct image_decoding *decoding;
    png_structp png;
    png_infop info;
    size_t at; /* bytes read */
    enum result status;
    char reason[128];
    jmp_buf on_error;
};

static void on_error(png_structp png, png_const_charp message) {
    struct png_reading *reading = png_get_error_ptr(png);
    snprintf(reading->reason, sizeof reading->reason, "%s", message);
    longjmp(reading->on_error, 1);
}

static void on_warning(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
}

static void read_bytes(png_structp png, png_bytep to, size_t count) {
    struct png_reading *reading = png_get_io_ptr(png);
    if (count > reading->decoding->count - reading->at)
        png_error(png, "truncated");
    memcpy(to, reading->decoding->bytes + reading->at, count);
    reading->at += count;
}

static void set_limits(struct png_reading *reading) {
    png_set_user_limits(
        reading->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* decoding_begin has the message for these */
    png_set_chunk_cache_max(reading->png, MOST_KEPT_CHUNKS);
    png_set_chunk_malloc_max(reading->png, MOST_CHUNK_BYTES);
    /* A negative count: all known chunks that an image can do without, tRNS excepted. */
    png_set_keep_unknown_chunks(reading->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
}

/* Returns how often the lines are passed over. */
static int set_transformations(struct png_reading *reading) {
    png_set_expand(reading->png);
    png_set_scale_16(reading->png); /* v / 257, rounded to nearest */
    png_set_gray_to_rgb(reading->png);
    return png_set_interlace_handling(reading->png);
}

static void read_lines(struct png_reading *reading, int passes) {
    struct image_decoding *decoding = reading->decoding;
    const size_t line = (size_t)decoding->width * (size_t)decoding->channels;
    for (int pass = 0; pass < passes; pass++)
        for (int32_t y = 0; y < decoding->height; y++)
            png_read_row(reading->png, decoding->pixels + (size_t)y * line, NULL);
}

/* False when it failed: with a status, or else with a reason. */
static bool read_png(struct png_reading *reading) {
    if (setjmp(reading->on_error))
        return false;
    png_set_read_fn(reading->png, reading, read_bytes);
    set_limits(reading);
    png_read_info(reading->png, reading->info);
    const int passes = set_transformations(reading);
    png_read_update_info(reading->png, reading->info);
    reading->status = decoding_begin(reading->decoding, png_get_image_width(reading->png, reading->info),
        png_get_image_height(reading->png, reading->info), png_get_channels(reading->png, reading->info));
    if (reading->status != OK)
        return false;
    if (png_get_rowbytes(reading->png, reading->info) !=
        (size_t)reading->decoding->width * (size_t)reading->decoding->channels)
        png_error(reading->png, "unexpected layout of its lines");
    read_lines(reading, passes);
    return true;
}

enum result image_decode_png(struct image_decoding *decoding) {
    struct png_reading reading = {.decoding = decoding};
    reading.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, on_error, on_warning);
    if (!reading.png)
        return fail(ERROR_MEMORY, "no memory for reading a PNG image");
    reading.info = png_create_info_struct(reading.png);
    if (!reading.info)
        reading.status = fail(ERROR_MEMORY, "no memory for reading a PNG image");
    else if (!read_png(&reading) && reading.status == OK)
        reading.status = decoding_fail(decoding, reading.reason);
    png_destroy_read_struct(&reading.png, &reading.info, NULL);
    return reading.status;
}

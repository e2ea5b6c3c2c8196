/* JPEG by libjpeg-turbo: baseline, progressive and arithmetic; grey, YCbCr, RGB, CMYK and YCCK to RGB. */
#include "recipe/image_internal.h"

#include <setjmp.h> /* setjmp, longjmp */
#include <stdio.h>  /* FILE, which jpeglib.h wants */

#include <jpeglib.h>

#include <jerror.h> /* after jpeglib.h, whose configuration decides its numbers */

enum {
    MOST_SCANS = 100, /* each one may walk over all of the image; real files have about ten */
    MOST_LIBRARY_BYTES =
        640 << 20, /* coefficients of a progressive image of the largest size, four channels */
};

struct jpeg_reading {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    struct image_decoding *decoding;
    enum result status;
    char reason[JMSG_LENGTH_MAX];
    jmp_buf on_error;
};

/* ---- the library's callbacks ---- */

static void on_error(j_common_ptr common) {
    struct jpeg_reading *reading = common->client_data;
    common->err->format_message(common, reading->reason);
    longjmp(reading->on_error, 1);
}

/* Warnings that mean lost pixels, which the library would fill with grey, are errors here. */
static void on_message(j_common_ptr common, int level) {
    if (level >= 0)
        return;
    switch (common->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
        on_error(common);
    }
}

static void on_output(j_common_ptr common) {
    (void)common;
}

static void on_progress(j_common_ptr common) {
    struct jpeg_reading *reading = common->client_data;
    if (reading->jpeg.input_scan_number <= MOST_SCANS)
        return;
    snprintf(reading->reason, sizeof reading->reason, "more than %d scans", MOST_SCANS);
    longjmp(reading->on_error, 1);
}

/* ---- reading ---- */

/* One line of CMYK to RGB. Files with Adobe's marker hold inverted ink. */
static void convert_inks(const uint8_t *inks, int32_t width, bool inverted, uint8_t *to) {
    for (int32_t x = 0; x < width; x++, inks += 4, to += IMAGE_CHANNELS)
        for (int channel = 0; channel < IMAGE_CHANNELS; channel++) {
            uint32_t light = inverted ? inks[channel] : 255u - inks[channel];
            uint32_t black = inverted ? inks[3] : 255u - inks[3];
            to[channel] = (uint8_t)((light * black + 127) / 255);
        }
}

static enum result begin(struct jpeg_reading *reading, void **inks) {
    const struct jpeg_decompress_struct *jpeg = &reading->jpeg;
    TRY(decoding_begin(reading->decoding, jpeg->image_width, jpeg->image_height, IMAGE_CHANNELS));
    if (jpeg->num_components == 4)
        TRY(workspace_block(reading->decoding->workspace, BLOCK_LINE, (size_t)jpeg->image_width * 4, inks));
    return OK;
}

static void read_lines(struct jpeg_reading *reading, uint8_t *inks) {
    struct image_decoding *decoding = reading->decoding;
    struct jpeg_decompress_struct *jpeg = &reading->jpeg;
    const size_t line = (size_t)decoding->width * IMAGE_CHANNELS;
    for (int32_t y = 0; y < decoding->height; y++) {
        uint8_t *pixels = decoding->pixels + (size_t)y * line;
        JSAMPROW row = inks ? inks : pixels;
        if (jpeg_read_scanlines(jpeg, &row, 1) != 1)
            ERREXIT(jpeg, JERR_INPUT_EMPTY);
        if (inks)
            convert_inks(inks, decoding->width, jpeg->saw_Adobe_marker, pixels);
    }
}

/* False when it failed: with a status, or else with a reason. */
static bool read_jpeg(struct jpeg_reading *reading) {
    struct jpeg_decompress_struct *jpeg = &reading->jpeg;
    if (setjmp(reading->on_error))
        return false;
    jpeg_create_decompress(jpeg);
    jpeg->client_data = reading;
    jpeg->progress = &reading->progress;
    jpeg->mem->max_memory_to_use = MOST_LIBRARY_BYTES;
    jpeg_mem_src(jpeg, reading->decoding->bytes, reading->decoding->count);
    if (jpeg_read_header(jpeg, TRUE) != JPEG_HEADER_OK)
        ERREXIT(jpeg, JERR_NO_IMAGE);
    jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_RGB;
    void *inks = NULL;
    reading->status = begin(reading, &inks);
    if (reading->status != OK)
        return false;
    jpeg_start_decompress(jpeg);
    read_lines(reading, inks);
    /* The end is not read: a file without its last marker has all its pixels. */
    return true;
}

enum result image_decode_jpeg(struct image_decoding *decoding) {
    struct jpeg_reading reading = {.decoding = decoding};
    reading.jpeg.err = jpeg_std_error(&reading.errors);
    reading.jpeg.client_data = &reading;
    reading.errors.error_exit = on_error;
    reading.errors.emit_message = on_message;
    reading.errors.output_message = on_output;
    reading.progress.progress_monitor = on_progress;
    if (!read_jpeg(&reading) && reading.status == OK)
        reading.status = decoding_fail(decoding, reading.reason);
    jpeg_destroy_decompress(&reading.jpeg);
    return reading.status;
}

/* WebP by libwebp, lossy and lossless; of an animation the first frame on a transparent canvas. */
#include "recipe/image_internal.h"

#include <string.h> /* memset */
#include <webp/decode.h>
#include <webp/demux.h>

static const char *status_text(VP8StatusCode status) {
    switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
        return "the decoder had no memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return "a feature that the decoder does not know";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
        return "truncated";
    default:
        return "damaged";
    }
}

/* Decodes the frame to its place on the canvas. */
static enum result decode_frame(struct image_decoding *decoding, const WebPIterator *frame) {
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config))
        return fail(ERROR_INTERNAL, "libwebp differs from the version Nocturne was built with: build again");
    const size_t line = (size_t)decoding->width * (size_t)decoding->channels;
    const size_t offset =
        (size_t)frame->y_offset * line + (size_t)frame->x_offset * (size_t)decoding->channels;
    config.output.colorspace = decoding->channels == 4 ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = decoding->pixels + offset;
    config.output.u.RGBA.stride = (int)line;
    config.output.u.RGBA.size = line * (size_t)decoding->height - offset;
    VP8StatusCode status = WebPDecode(frame->fragment.bytes, frame->fragment.size, &config);
    WebPFreeDecBuffer(&config.output);
    return status == VP8_STATUS_OK ? OK : decoding_fail(decoding, status_text(status));
}

static enum result decode_first_frame(
    struct image_decoding *decoding, const WebPIterator *frame, uint32_t width, uint32_t height) {
    /* Both are 64-bit sums of numbers of 24 bits at most. */
    uint64_t right = (uint64_t)frame->x_offset + (uint64_t)frame->width;
    uint64_t bottom = (uint64_t)frame->y_offset + (uint64_t)frame->height;
    if (!frame->complete)
        return decoding_fail(decoding, "truncated");
    if (frame->x_offset < 0 || frame->y_offset < 0 || right > width || bottom > height)
        return decoding_fail(decoding, "its first frame lies outside the image");
    bool covered = frame->width == (int)width && frame->height == (int)height;
    int32_t channels = covered && !frame->has_alpha ? 3 : 4;
    TRY(decoding_begin(decoding, width, height, channels));
    if (!covered)
        memset(decoding->pixels, 0, (size_t)width * height * (size_t)channels);
    return decode_frame(decoding, frame);
}

enum result image_decode_webp(struct image_decoding *decoding) {
    const WebPData data = {decoding->bytes, decoding->count};
    WebPDemuxer *demuxer = WebPDemux(&data);
    if (!demuxer)
        return decoding_fail(decoding, "truncated or damaged");
    enum result status;
    WebPIterator frame;
    if (WebPDemuxGetFrame(demuxer, 1, &frame)) {
        status = decode_first_frame(decoding, &frame, WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH),
            WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT));
        WebPDemuxReleaseIterator(&frame);
    } else
        status = decoding_fail(decoding, "no frame in it");
    WebPDemuxDelete(demuxer);
    return status;
}

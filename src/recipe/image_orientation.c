/* The one EXIF field of use here: how the camera was held. Found by walking the file's own chunks, so
 * that it takes neither memory nor the image libraries' views on broken metadata: whatever is not sound
 * is as if it were not there. */
#include "recipe/image_internal.h"

#include <string.h> /* memcmp, strcmp */

struct span {
    const uint8_t *bytes;
    size_t count;
};

static uint32_t read_number(const uint8_t *bytes, int count, bool big_endian) {
    uint32_t number = 0;
    for (int i = 0; i < count; i++)
        number = number << 8 | bytes[big_endian ? i : count - 1 - i];
    return number;
}

/* ---- EXIF: a TIFF header, then a directory of entries ---- */

enum {
    TIFF_HEADER_BYTES = 8,
    TIFF_ENTRY_BYTES = 12,
    TIFF_ORIENTATION = 0x0112,
    TIFF_SHORT = 3,
    UPRIGHT = 1,
    LAST_ORIENTATION = 8,
};

static int orientation_of_tiff(struct span tiff) {
    if (tiff.count < TIFF_HEADER_BYTES)
        return UPRIGHT;
    bool big_endian = memcmp(tiff.bytes, "MM\0*", 4) == 0;
    if (!big_endian && memcmp(tiff.bytes, "II*\0", 4) != 0)
        return UPRIGHT;
    size_t directory = read_number(tiff.bytes + 4, 4, big_endian);
    if (directory > tiff.count || tiff.count - directory < 2)
        return UPRIGHT;
    size_t entries = read_number(tiff.bytes + directory, 2, big_endian);
    size_t held = (tiff.count - directory - 2) / TIFF_ENTRY_BYTES;
    const uint8_t *entry = tiff.bytes + directory + 2;
    for (size_t i = 0; i < entries && i < held; i++, entry += TIFF_ENTRY_BYTES)
        if (read_number(entry, 2, big_endian) == TIFF_ORIENTATION) {
            uint32_t value = read_number(entry + 8, 2, big_endian);
            bool sound = read_number(entry + 2, 2, big_endian) == TIFF_SHORT &&
                         read_number(entry + 4, 4, big_endian) == 1 && value >= 1 &&
                         value <= LAST_ORIENTATION;
            return sound ? (int)value : UPRIGHT;
        }
    return UPRIGHT;
}

/* EXIF data as files hold them: with or without the name that JPEG puts in front. */
static int orientation_of_exif(struct span exif) {
    enum { NAME_BYTES = 6 };
    if (exif.count >= NAME_BYTES && memcmp(exif.bytes, "Exif\0\0", NAME_BYTES) == 0)
        exif = (struct span){exif.bytes + NAME_BYTES, exif.count - NAME_BYTES};
    return orientation_of_tiff(exif);
}

/* ---- containers ---- */

static bool is_standalone(uint8_t marker) {
    return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7);
}

/* JPEG: segments FF marker length(2) data, up to the first scan. */
static struct span find_in_jpeg(struct span file) {
    enum { APP1 = 0xE1, START_OF_SCAN = 0xDA, END_OF_IMAGE = 0xD9 };
    size_t at = 2;
    while (at + 4 <= file.count && file.bytes[at] == 0xFF) {
        uint8_t marker = file.bytes[at + 1];
        if (marker == 0xFF || is_standalone(marker)) {
            at += marker == 0xFF ? 1 : 2;
            continue;
        }
        size_t length = read_number(file.bytes + at + 2, 2, true);
        if (marker == START_OF_SCAN || marker == END_OF_IMAGE || length < 2 || length > file.count - at - 2)
            break;
        const uint8_t *data = file.bytes + at + 4;
        if (marker == APP1 && length >= 8 && memcmp(data, "Exif\0\0", 6) == 0)
            return (struct span){data, length - 2};
        at += 2 + length;
    }
    return (struct span){0};
}

/* PNG: length(4) name data crc(4). RIFF: name length(4) data, padded to an even length. */
static struct span find_chunk(struct span file, bool is_png) {
    const size_t overhead = is_png ? 12 : 8;
    size_t at = is_png ? 8 : 12;
    while (at <= file.count && file.count - at >= overhead) {
        const uint8_t *chunk = file.bytes + at;
        size_t length = read_number(chunk + (is_png ? 0 : 4), 4, is_png);
        if (length > file.count - at - overhead)
            break;
        if (memcmp(chunk + (is_png ? 4 : 0), is_png ? "eXIf" : "EXIF", 4) == 0)
            return (struct span){chunk + 8, length};
        at += overhead + length + (is_png ? 0 : length & 1);
    }
    return (struct span){0};
}

int image_orientation(const char *format, const uint8_t *bytes, size_t count) {
    const struct span file = {bytes, count};
    struct span exif = {0};
    if (strcmp(format, "JPEG") == 0)
        exif = find_in_jpeg(file);
    else if (strcmp(format, "PNG") == 0 || strcmp(format, "WebP") == 0)
        exif = find_chunk(file, format[0] == 'P');
    return orientation_of_exif(exif);
}

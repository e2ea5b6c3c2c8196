#include "recipe/image_source.h"

#include "base/hex.h"

#include <errno.h>    /* errno */
#include <fcntl.h>    /* open, openat */
#include <limits.h>   /* PATH_MAX */
#include <stdio.h>    /* snprintf */
#include <stdlib.h>   /* malloc, free, realpath */
#include <string.h>   /* memchr, memcpy */
#include <strings.h>  /* strncasecmp */
#include <sys/stat.h> /* fstat */
#include <unistd.h>   /* read, close, syscall */

#include <sys/syscall.h> /* SYS_openat2 */
#if defined(SYS_openat2) && __has_include(<linux/openat2.h>)
#include <linux/openat2.h> /* struct open_how */
#define HAVE_OPENAT2 1
#endif

#include <xxhash.h> /* XXH3_128bits */

enum {
    MOST_ATTEMPTS = 16, /* openat2 says EAGAIN when a directory on the way is renamed meanwhile */
    EXCERPT_BYTES = 80,
    OPEN_FLAGS = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, /* a pipe is refused, not waited for */
    BASE64_INVALID = 0xFF,
    MIBIBYTE = 1 << 20,
};

#define DATA_URL_FORM "data:image/png;base64,..."

struct image_source {
    char *root_given, *root_real; /* as the user spells it; without links and ".." */
    int root;                     /* descriptor, -1: no local files */
    int32_t images;               /* of this request */
    size_t bytes;                 /* of them together */
    uint8_t *data;                /* of the last image */
    size_t capacity;
    uint8_t base64[256]; /* value of a character, or BASE64_INVALID */
};

/* What a step of reading needs to fill or refuse. */
struct reading {
    struct image_source *source;
    const char *param;
    struct refusal *refusal;
    size_t count;                    /* bytes got, in source->data */
    char excerpt[EXCERPT_BYTES + 1]; /* of the reference, for messages */
};

/* Refuses the reference; for functions that return enum result, with *accepted false. */
#define REFUSE(reading, code, ...)                                                                           \
    ((void)refuse((reading)->refusal, code, (reading)->param, __VA_ARGS__), *accepted = false, OK)

/* ---- life ---- */

static void fill_base64(uint8_t values[256]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    memset(values, BASE64_INVALID, 256);
    for (uint8_t i = 0; i < 64; i++)
        values[(unsigned char)digits[i]] = i;
}

static enum result open_root(struct image_source *source, const char *root) {
    source->root_given = strdup(root);
    source->root_real = realpath(root, NULL);
    if (!source->root_given || (!source->root_real && errno == ENOMEM))
        return fail(ERROR_MEMORY, "no memory for the path of --image-root");
    if (source->root_real)
        source->root = open(source->root_real, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (source->root < 0)
        return fail_errno(ERROR_USAGE, "--image-root %s: expected a directory", root);
    return OK;
}

enum result image_source_create(const char *root, struct image_source **source) {
    struct image_source *made = calloc(1, sizeof *made);
    if (!made)
        return fail(ERROR_MEMORY, "no memory for reading images");
    made->root = -1;
    fill_base64(made->base64);
    enum result status = root ? open_root(made, root) : OK;
    if (status != OK) {
        image_source_free(made);
        made = NULL;
    }
    *source = made;
    return status;
}

void image_source_free(struct image_source *source) {
    if (!source)
        return;
    if (source->root >= 0)
        close(source->root);
    free(source->root_given);
    free(source->root_real);
    free(source->data);
    free(source);
}

void image_source_begin(struct image_source *source) {
    source->images = 0;
    source->bytes = 0;
}

static enum result reserve(struct image_source *source, size_t bytes) {
    if (bytes <= source->capacity)
        return OK;
    free(source->data);
    source->capacity = 0;
    source->data = malloc(bytes);
    if (!source->data)
        return fail(ERROR_MEMORY, "no memory for an image of %zu bytes", bytes);
    source->capacity = bytes;
    return OK;
}

/* ---- text ---- */

struct text {
    const char *data;
    size_t bytes;
};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

static struct text trim(struct text text) {
    while (text.bytes && is_blank(text.data[0])) {
        text.data++;
        text.bytes--;
    }
    while (text.bytes && is_blank(text.data[text.bytes - 1]))
        text.bytes--;
    return text;
}

/* Without regard to case. */
static bool starts_with(struct text text, const char *word) {
    size_t bytes = strlen(word);
    return text.bytes >= bytes && strncasecmp(text.data, word, bytes) == 0;
}

static bool equals(struct text text, const char *word) {
    return text.bytes == strlen(word) && starts_with(text, word);
}

/* Takes one character off the text, "%41" for 'A'. */
static char take_character(struct text *text) {
    char c = text->data[0];
    size_t taken = 1;
    if (c == '%' && text->bytes >= 3 && hex_value(text->data[1]) >= 0 && hex_value(text->data[2]) >= 0) {
        c = (char)(hex_value(text->data[1]) << 4 | hex_value(text->data[2]));
        taken = 3;
    }
    text->data += taken;
    text->bytes -= taken;
    return c;
}

/* ---- base64 ---- */

enum base64_outcome { BASE64_DONE, BASE64_BAD, BASE64_TOO_LARGE };

struct base64_decoding {
    const uint8_t *values;
    uint8_t *out;
    size_t count, most; /* bytes written; allowed */
    uint32_t bits;      /* of the characters of an unfinished group */
    size_t characters, pads;
};

/* Groups of four plain characters, as long as there are any. */
static void decode_groups(struct base64_decoding *decoding, struct text *text) {
    const uint8_t *values = decoding->values;
    while (text->bytes >= 4 && decoding->count + 3 <= decoding->most) {
        const unsigned char *c = (const unsigned char *)text->data;
        uint32_t a = values[c[0]], b = values[c[1]], d = values[c[2]], e = values[c[3]];
        if ((a | b | d | e) > 63) /* BASE64_INVALID among them */
            return;
        uint32_t bits = a << 18 | b << 12 | d << 6 | e;
        uint8_t *out = decoding->out + decoding->count;
        out[0] = (uint8_t)(bits >> 16);
        out[1] = (uint8_t)(bits >> 8);
        out[2] = (uint8_t)bits;
        decoding->count += 3;
        decoding->characters += 4;
        text->data += 4;
        text->bytes -= 4;
    }
}

/* Writes the first `bytes` bytes of a group. */
static bool write_group(struct base64_decoding *decoding, size_t bytes) {
    if (decoding->count + bytes > decoding->most)
        return false;
    for (size_t i = 0; i < bytes; i++)
        decoding->out[decoding->count++] = (uint8_t)(decoding->bits >> (16 - 8 * i));
    decoding->bits = 0;
    return true;
}

static enum base64_outcome decode_character(struct base64_decoding *decoding, char c) {
    if (is_blank(c))
        return BASE64_DONE;
    if (c == '=') {
        decoding->pads++;
        return BASE64_DONE;
    }
    uint8_t value = decoding->values[(unsigned char)c];
    if (decoding->pads || value == BASE64_INVALID)
        return BASE64_BAD;
    decoding->bits |= (uint32_t)value << (18 - 6 * (decoding->characters % 4));
    if (++decoding->characters % 4 == 0 && !write_group(decoding, 3))
        return BASE64_TOO_LARGE;
    return BASE64_DONE;
}

/* Blanks are skipped, percent escapes are resolved, the padding may be missing. */
static enum base64_outcome decode_base64(struct base64_decoding *decoding, struct text text) {
    while (text.bytes) {
        if (decoding->characters % 4 == 0 && !decoding->pads)
            decode_groups(decoding, &text);
        if (!text.bytes)
            break;
        enum base64_outcome outcome = decode_character(decoding, take_character(&text));
        if (outcome != BASE64_DONE)
            return outcome;
    }
    size_t rest = decoding->characters % 4;
    if (rest == 1 || (decoding->pads && (decoding->pads > 2 || (rest + decoding->pads) % 4 != 0)))
        return BASE64_BAD;
    return rest == 0 || write_group(decoding, rest - 1) ? BASE64_DONE : BASE64_TOO_LARGE;
}

/* ---- data URLs ---- */

static bool is_image_type(struct text type) {
    static const char *const types[] = {"image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (equals(type, types[i]))
            return true;
    return false;
}

/* "TYPE[;PARAMETER...];base64" */
static bool split_head(struct text head, struct text *type) {
    static const char suffix[] = ";base64";
    const size_t suffix_bytes = sizeof suffix - 1;
    head = trim(head);
    if (head.bytes < suffix_bytes ||
        !equals((struct text){head.data + head.bytes - suffix_bytes, suffix_bytes}, suffix))
        return false;
    const char *semicolon = memchr(head.data, ';', head.bytes);
    *type = trim((struct text){head.data, (size_t)(semicolon - head.data)});
    return true;
}

static enum result refuse_too_large(struct reading *reading, bool *accepted) {
    return REFUSE(
        reading, CODE_VALUE, "the image has more than %d MiB: make it smaller", IMAGE_MOST_BYTES / MIBIBYTE);
}

static enum result read_data_url(struct reading *reading, struct text url, bool *accepted) {
    struct text rest = {url.data + strlen("data:"), url.bytes - strlen("data:")}, type;
    const char *comma = memchr(rest.data, ',', rest.bytes);
    if (!comma || !split_head((struct text){rest.data, (size_t)(comma - rest.data)}, &type))
        return REFUSE(reading, CODE_VALUE, "expected a data URL of base64 (" DATA_URL_FORM "), found \"%s\"",
            reading->excerpt);
    if (!is_image_type(type))
        return REFUSE(reading, CODE_VALUE,
            "expected the media type image/png, image/jpeg, image/webp or image/gif, found \"%s\"",
            reading->excerpt);
    struct text payload = {comma + 1, (size_t)(rest.data + rest.bytes - comma - 1)};
    const char *fragment = memchr(payload.data, '#', payload.bytes);
    if (fragment)
        payload.bytes = (size_t)(fragment - payload.data);
    size_t most = payload.bytes / 4 * 3 + 3;
    if (most > IMAGE_MOST_BYTES)
        most = IMAGE_MOST_BYTES;
    TRY(reserve(reading->source, most));
    struct base64_decoding decoding = {
        .values = reading->source->base64, .out = reading->source->data, .most = most};
    switch (decode_base64(&decoding, payload)) {
    case BASE64_BAD:
        return REFUSE(
            reading, CODE_VALUE, "the base64 data is invalid after %zu characters", decoding.characters);
    case BASE64_TOO_LARGE:
        return refuse_too_large(reading, accepted);
    case BASE64_DONE:
        break;
    }
    reading->count = decoding.count;
    return OK;
}

/* ---- local files ---- */

int image_open_by_steps(int root, const char *path) {
    char name[NAME_MAX + 1];
    int folder = root;
    for (;;) {
        path += strspn(path, "/");
        size_t bytes = strcspn(path, "/");
        if (bytes > NAME_MAX || (bytes == 2 && path[0] == '.' && path[1] == '.')) {
            errno = bytes > NAME_MAX ? ENAMETOOLONG : EXDEV;
            break;
        }
        memcpy(name, path, bytes);
        name[bytes] = 0;
        path += bytes;
        bool last = path[strspn(path, "/")] == 0;
        int flags = last ? OPEN_FLAGS | O_NOFOLLOW : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
        int next = openat(folder, bytes ? name : ".", flags), error = errno;
        struct stat facts;
        if (next < 0 && error == ENOTDIR && fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISLNK(facts.st_mode))
            error = ELOOP;
        if (folder != root)
            close(folder);
        errno = error;
        if (last || next < 0)
            return next;
        folder = next;
    }
    int error = errno;
    if (folder != root)
        close(folder);
    errno = error;
    return -1;
}

/* Opens below the root, through links that stay there where the kernel can tell. */
static int open_below(int root, const char *path) {
#ifdef HAVE_OPENAT2
    struct open_how how = {.flags = OPEN_FLAGS, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
        long file = syscall(SYS_openat2, root, path, &how, sizeof how);
        if (file >= 0)
            return (int)file;
        if (errno != EAGAIN && errno != EINTR)
            break;
    }
    /* EPERM: a container's filter that does not know the call. */
    if (errno != ENOSYS && errno != EPERM)
        return -1;
#endif
    return image_open_by_steps(root, path);
}

/* A fault of the machine, not of the reference. */
static bool is_passing_fault(int error) {
    switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
    case EAGAIN:
        return true;
    default:
        return false;
    }
}

static enum result refuse_errno(struct reading *reading, bool *accepted) {
    const char *root = reading->source->root_given;
    int error = errno;
    if (is_passing_fault(error))
        return fail_errno(
            ERROR_IO, "%s: cannot read \"%s\" under --image-root %s", reading->param, reading->excerpt, root);
    if (error == EXDEV || error == ELOOP)
        return REFUSE(reading, CODE_VALUE,
            "\"%s\" leads out of --image-root %s (by \"..\" or a symbolic link): only files inside are read",
            reading->excerpt, root);
    return REFUSE(reading, CODE_VALUE, "cannot read \"%s\" under --image-root %s: %s", reading->excerpt, root,
        strerror(error));
}

/* Reads an open file whole. */
static enum result read_file(struct reading *reading, int file, bool *accepted) {
    struct stat facts;
    if (fstat(file, &facts) != 0)
        return refuse_errno(reading, accepted);
    if (!S_ISREG(facts.st_mode))
        return REFUSE(reading, CODE_VALUE, "\"%s\" is no regular file", reading->excerpt);
    if (facts.st_size > IMAGE_MOST_BYTES)
        return refuse_too_large(reading, accepted);
    const size_t most = (size_t)facts.st_size + 1; /* one more, to see a file that grew */
    TRY(reserve(reading->source, most));
    size_t count = 0;
    while (count < most) {
        ssize_t got = read(file, reading->source->data + count, most - count);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return refuse_errno(reading, accepted);
        if (got == 0)
            break;
        count += (size_t)got;
    }
    if (count != (size_t)facts.st_size)
        return REFUSE(reading, CODE_VALUE, "\"%s\" changed while it was read", reading->excerpt);
    reading->count = count;
    return OK;
}

/* What is left of an absolute path below `root`, or NULL. */
static const char *strip_root(const char *path, const char *root) {
    size_t bytes = strlen(root);
    while (bytes && root[bytes - 1] == '/')
        bytes--;
    return strncmp(path, root, bytes) == 0 && path[bytes] == '/' ? path + bytes : NULL;
}

static enum result read_path(struct reading *reading, const char *path, bool *accepted) {
    struct image_source *source = reading->source;
    const char *below = path;
    if (path[0] == '/') {
        below = strip_root(path, source->root_real);
        if (!below)
            below = strip_root(path, source->root_given);
        if (!below)
            return REFUSE(reading, CODE_VALUE, "\"%s\" is not under --image-root %s", reading->excerpt,
                source->root_given);
    }
    below += strspn(below, "/");
    int file = open_below(source->root, *below ? below : ".");
    if (file < 0)
        return refuse_errno(reading, accepted);
    enum result status = read_file(reading, file, accepted);
    close(file);
    return status;
}

/* The path of a file: URL, without its authority. */
static bool strip_file_scheme(struct text *url) {
    *url = (struct text){url->data + strlen("file:"), url->bytes - strlen("file:")};
    if (url->bytes >= 2 && url->data[0] == '/' && url->data[1] == '/') {
        *url = (struct text){url->data + 2, url->bytes - 2};
        if (starts_with(*url, "localhost/"))
            *url = (struct text){url->data + strlen("localhost"), url->bytes - strlen("localhost")};
    }
    return url->bytes && url->data[0] == '/' && !memchr(url->data, '?', url->bytes) &&
           !memchr(url->data, '#', url->bytes);
}

static enum result read_local(struct reading *reading, struct text reference, bool *accepted) {
    char path[PATH_MAX];
    size_t bytes = 0;
    bool is_url = starts_with(reference, "file:");
    if (reading->source->root < 0)
        return REFUSE(reading, CODE_UNSUPPORTED,
            "\"%s\" is a local file: allow its directory with --image-root DIR, or pass the image as a data "
            "URL "
            "(" DATA_URL_FORM ")",
            reading->excerpt);
    if (is_url && !strip_file_scheme(&reference))
        return REFUSE(reading, CODE_VALUE, "expected file:///PATH with an absolute path, found \"%s\"",
            reading->excerpt);
    while (reference.bytes) {
        char c = reference.data[0];
        if (is_url)
            c = take_character(&reference);
        else
            reference = (struct text){reference.data + 1, reference.bytes - 1};
        if (c == 0 || bytes + 1 >= sizeof path)
            return REFUSE(reading, CODE_VALUE, "no path of a file: %s",
                c ? "it is too long" : "it holds a zero character");
        path[bytes++] = c;
    }
    path[bytes] = 0;
    return read_path(reading, path, accepted);
}

/* ---- all references ---- */

/* "word://" */
static bool has_scheme(struct text reference) {
    size_t i = 0;
    while (i < reference.bytes && ((reference.data[i] | 32) >= 'a' && (reference.data[i] | 32) <= 'z'))
        i++;
    return i > 0 && reference.bytes >= i + 3 && memcmp(reference.data + i, "://", 3) == 0;
}

static enum result read_reference(struct reading *reading, struct text reference, bool *accepted) {
    struct text trimmed = trim(reference);
    if (starts_with(trimmed, "data:"))
        return read_data_url(reading, trimmed, accepted);
    if (starts_with(trimmed, "http://") || starts_with(trimmed, "https://"))
        return REFUSE(reading, CODE_UNSUPPORTED,
            "\"%s\" is on the network, which is not read: download the image and give its path under "
            "--image-root "
            "DIR, or pass it as a data URL (" DATA_URL_FORM ")",
            reading->excerpt);
    if (has_scheme(reference) && !starts_with(reference, "file:"))
        return REFUSE(reading, CODE_UNSUPPORTED,
            "expected a data URL (" DATA_URL_FORM ") or a file under --image-root DIR, found \"%s\"",
            reading->excerpt);
    if (reference.bytes == 0)
        return REFUSE(reading, CODE_VALUE, "expected an image, found an empty text");
    return read_local(reading, reference, accepted);
}

/* Counts the image into its request. */
static enum result count_image(struct reading *reading, bool *accepted) {
    struct image_source *source = reading->source;
    if (reading->count == 0)
        return REFUSE(reading, CODE_VALUE, "the image is empty: expected a PNG, JPEG, WebP or GIF file");
    if (reading->count > IMAGES_MOST_BYTES - source->bytes)
        return REFUSE(reading, CODE_VALUE,
            "with this image of %zu bytes the request's images have more than %d MiB together",
            reading->count, IMAGES_MOST_BYTES / MIBIBYTE);
    source->bytes += reading->count;
    return OK;
}

enum result image_source_read(struct image_source *source, const char *param, const char *reference,
    size_t reference_bytes, struct image_bytes *image, struct refusal *refusal, bool *accepted) {
    struct reading reading = {.source = source, .param = param, .refusal = refusal};
    *accepted = true;
    copy_text(reading.excerpt, sizeof reading.excerpt, reference, reference_bytes);
    if (source->images >= IMAGES_MOST_COUNT)
        return REFUSE(&reading, CODE_VALUE, "expected at most %d images in a request", IMAGES_MOST_COUNT);
    source->images++;
    TRY(read_reference(&reading, (struct text){reference, reference_bytes}, accepted));
    if (*accepted)
        TRY(count_image(&reading, accepted));
    if (*accepted) {
        XXH128_canonical_t hash;
        XXH128_canonicalFromHash(&hash, XXH3_128bits(source->data, reading.count));
        *image = (struct image_bytes){.data = source->data, .bytes = reading.count};
        memcpy(image->hash, hash.digest, sizeof image->hash);
    }
    return OK;
}

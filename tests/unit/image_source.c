/* References to images: data URLs, files below the allowed directory, and whatever tries to leave it. */
#include "recipe/image_source.h"
#include "image_files.h"
#include "recipe/image.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define PARAM "messages[0].content[1].image_url.url"

static char top[64]; /* a folder of this run; top/root is the allowed one */
static char root[128];
static struct image_source *source;

static bool read_bytes(
    const char *reference, size_t bytes, struct image_bytes *image, struct refusal *refusal) {
    bool accepted;
    memset(refusal, 0, sizeof *refusal);
    if (image_source_read(source, PARAM, reference, bytes, image, refusal, &accepted) != OK)
        fail_msg("%.80s: %s", reference, failure_message());
    return accepted;
}

static void check_accepted(const char *reference, const void *wanted, size_t count) {
    struct image_bytes image;
    struct refusal refusal;
    image_source_begin(source);
    if (!read_bytes(reference, strlen(reference), &image, &refusal))
        fail_msg("%.80s: refused: %s", reference, refusal.message);
    if (image.bytes != count || memcmp(image.data, wanted, count) != 0)
        fail_msg("%.80s: other bytes, %zu of them, expected %zu", reference, image.bytes, count);
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits(wanted, count));
    assert_memory_equal(image.hash, hash.digest, IMAGE_HASH_BYTES);
}

static void check_refused_bytes(const char *reference, size_t bytes, const char *code, const char *reason) {
    struct image_bytes image;
    struct refusal refusal;
    if (read_bytes(reference, bytes, &image, &refusal))
        fail_msg("%.80s: expected a refusal", reference);
    assert_string_equal(refusal.param, PARAM);
    assert_string_equal(refusal.code, code);
    if (!strstr(refusal.message, reason))
        fail_msg("%.80s: expected \"%s\" in: %s", reference, reason, refusal.message);
    assert_memory_equal(refusal.message, PARAM ": ", sizeof PARAM ": " - 1);
}

static void check_refused(const char *reference, const char *code, const char *reason) {
    image_source_begin(source);
    check_refused_bytes(reference, strlen(reference), code, reason);
}

/* ---- data URLs ---- */

static void test_data_urls(void **state) {
    (void)state;
    static const char magic[] = "\x89PNG\r\n\x1a\n";
    static const char *const spellings[] = {
        "data:image/png;base64,iVBORw0KGgo=", "data:image/png;base64,iVBORw0KGgo",
        "data:image/png;base64,iVBO Rw0K\r\n\tGgo=", "DATA:image/PNG;base64,iVBORw0KGgo=",
        "data:image/jpg;base64,iVBORw0KGgo", "data:IMAGE/WEBP;name=x.webp;BASE64,iVBORw0KGgo",
        " data:image/gif ;base64,iVBORw0KGgo=\n", "data:image/jpeg;base64,iVBORw0KGgo%3D",
        "data:image/png;base64,%69VBORw0KGgo", "data:image/png;base64,iVBORw0KGgo=#there"};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        check_accepted(spellings[i], magic, sizeof magic - 1);
    check_accepted("data:image/png;base64,/+8=", "\xFF\xEF", 2);
    check_accepted("data:image/png;base64,AA==", "\0", 1);
}

static void test_bad_data_urls(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"data:image/png;base64,@@@", "base64 data is invalid after 0"},
        {"data:image/png;base64,AAAAA", "invalid after 5"}, {"data:image/png;base64,AA=A", "invalid"},
        {"data:image/png;base64,AA===", "invalid"}, {"data:image/png;base64,AAA==", "invalid"},
        {"data:image/png;base64,AAAA====", "invalid"}, {"data:image/png;base64,AA-_", "invalid after 2"},
        {"data:image/png;base64,AAAA\xC3\xA9", "invalid after 4"}, {"data:image/png;base64,AA%3", "invalid"},
        {"data:image/png;base64,", "the image is empty"}, {"data:image/png;base64", "expected a data URL"},
        {"data:image/png,%89PNG", "expected a data URL"}, {"data:", "expected a data URL"},
        {"data:text/plain;base64,aGk=", "media type"}, {"data:image/svg+xml;base64,AA==", "media type"},
        {"data:;base64,AA==", "media type"}, {"data:image/pn;base64,AA==", "media type"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_refused(bad[i][0], CODE_VALUE, bad[i][1]);
}

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* A data URL of `count` bytes; free it. */
static char *encode(const uint8_t *bytes, size_t count) {
    static const char head[] = "data:image/png;base64,";
    char *url = malloc(sizeof head + (count + 2) / 3 * 4), *at = url;
    assert_non_null(url);
    at += sprintf(at, "%s", head);
    for (size_t i = 0; i < count; i += 3) {
        uint32_t bits = (uint32_t)bytes[i] << 16;
        bits |= i + 1 < count ? (uint32_t)bytes[i + 1] << 8 : 0;
        bits |= i + 2 < count ? bytes[i + 2] : 0;
        *at++ = alphabet[bits >> 18];
        *at++ = alphabet[bits >> 12 & 63];
        *at++ = i + 1 < count ? alphabet[bits >> 6 & 63] : '=';
        *at++ = i + 2 < count ? alphabet[bits & 63] : '=';
    }
    *at = 0;
    return url;
}

static void test_all_bytes(void **state) {
    (void)state;
    uint8_t bytes[1024];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 167 + i / 256);
    for (size_t count = 1; count <= sizeof bytes; count += count < 20 ? 1 : 251) {
        char *url = encode(bytes, count);
        check_accepted(url, bytes, count);
        free(url);
    }
}

static void test_sizes(void **state) {
    (void)state;
    uint8_t *bytes = calloc(1, IMAGE_MOST_BYTES + 1);
    assert_non_null(bytes);
    char *whole = encode(bytes, IMAGE_MOST_BYTES), *over = encode(bytes, IMAGE_MOST_BYTES + 1);
    struct image_bytes image;
    struct refusal refusal;
    image_source_begin(source);
    check_refused_bytes(over, strlen(over), CODE_VALUE, "more than 32 MiB");
    assert_true(read_bytes(whole, strlen(whole), &image, &refusal));
    assert_int_equal(image.bytes, IMAGE_MOST_BYTES);
    assert_true(read_bytes(whole, strlen(whole), &image, &refusal));
    check_refused_bytes("data:image/png;base64,AA", 24, CODE_VALUE, "more than 64 MiB together");
    image_source_begin(source);
    assert_true(read_bytes("data:image/png;base64,AA", 24, &image, &refusal));
    free(whole);
    free(over);
    free(bytes);
}

/* Blanks cost neither memory nor more than linear time. */
static void test_blanks(void **state) {
    (void)state;
    static const char head[] = "data:image/png;base64,A";
    const size_t count = 48 << 20;
    char *url = malloc(count);
    assert_non_null(url);
    memset(url, ' ', count);
    memcpy(url, head, sizeof head - 1);
    url[count - 1] = 'A';
    struct image_bytes image;
    struct refusal refusal;
    clock_t begin = clock();
    image_source_begin(source);
    assert_true(read_bytes(url, count, &image, &refusal));
    assert_int_equal(image.bytes, 1);
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 10);
    free(url);
}

static void test_count(void **state) {
    (void)state;
    struct image_bytes image;
    struct refusal refusal;
    image_source_begin(source);
    for (int i = 0; i < IMAGES_MOST_COUNT; i++)
        assert_true(read_bytes("data:image/png;base64,AA", 24, &image, &refusal));
    check_refused_bytes("data:image/png;base64,AA", 24, CODE_VALUE, "at most 600 images");
}

/* ---- files ---- */

static void write_file(const char *name, const char *content) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", top, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
}

static void make_link(const char *target, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", top, name);
    assert_int_equal(symlink(target, path), 0);
}

static void make_folder(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", top, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static int set_up(void **state) {
    (void)state;
    char path[256];
    snprintf(top, sizeof top, "/tmp/nocturne-image-source-XXXXXX");
    assert_non_null(mkdtemp(top));
    snprintf(root, sizeof root, "%s/root", top);
    make_folder("root");
    make_folder("root/cats");
    make_folder("root-not");
    write_file("secret.png", "secret");
    write_file("root-not/secret.png", "secret");
    write_file("root/one.png", "one");
    write_file("root/with blank#.png", "blank");
    write_file("root/cats/two.png", "two");
    write_file("root/empty.png", "");
    write_file("root/large.png", "");
    snprintf(path, sizeof path, "%s/large.png", root);
    assert_int_equal(truncate(path, IMAGE_MOST_BYTES + 1), 0);
    snprintf(path, sizeof path, "%s/pipe.png", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/secret.png", top);
    make_link(path, "root/absolute.png");
    make_link("../secret.png", "root/relative.png");
    make_link("..", "root/up");
    make_link("cats/two.png", "root/inside.png");
    make_link("loop.png", "root/loop.png");
    make_link("/proc/self/root", "root/magic");
    return image_source_create(root, &source) != OK;
}

static int tear_down(void **state) {
    (void)state;
    char command[128];
    image_source_free(source);
    snprintf(command, sizeof command, "rm -r '%s'", top);
    return system(command);
}

static void test_files(void **state) {
    (void)state;
    char path[256];
    check_accepted("one.png", "one", 3);
    check_accepted("./cats//two.png", "two", 3);
    check_accepted("with blank#.png", "blank", 5);
    snprintf(path, sizeof path, "%s/cats/two.png", root);
    check_accepted(path, "two", 3);
    snprintf(path, sizeof path, "file://%s/cats/two.png", root);
    check_accepted(path, "two", 3);
    snprintf(path, sizeof path, "FILE://localhost%s/cats/%%74wo.png", root);
    check_accepted(path, "two", 3);
    snprintf(path, sizeof path, "file:%s/with%%20blank%%23.png", root);
    check_accepted(path, "blank", 5);
}

/* A link that stays inside is followed where the kernel can tell. */
static void test_inner_link(void **state) {
    (void)state;
    struct image_bytes image;
    struct refusal refusal;
    image_source_begin(source);
    if (read_bytes("inside.png", strlen("inside.png"), &image, &refusal))
        assert_memory_equal(image.data, "two", 3);
    else
        assert_non_null(strstr(refusal.message, "symbolic link"));
}

static void test_escapes(void **state) {
    (void)state;
    char path[256];
    static const char *const out[] = {"../secret.png", "cats/../../secret.png", "absolute.png",
        "relative.png", "up/secret.png", "magic/etc/passwd", "loop.png"};
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        check_refused(out[i], CODE_VALUE, "leads out of --image-root");
    check_refused("/etc/passwd", CODE_VALUE, "is not under --image-root");
    snprintf(path, sizeof path, "%s/secret.png", top);
    check_refused(path, CODE_VALUE, "is not under --image-root");
    snprintf(path, sizeof path, "%s-not/secret.png", root);
    check_refused(path, CODE_VALUE, "is not under --image-root");
    snprintf(path, sizeof path, "%s/../secret.png", root);
    check_refused(path, CODE_VALUE, "leads out");
    snprintf(path, sizeof path, "file://%s/%%2e%%2e/secret.png", root);
    check_refused(path, CODE_VALUE, "leads out");
    check_refused("file://elsewhere/one.png", CODE_VALUE, "expected file:///PATH");
    check_refused("file:one.png", CODE_VALUE, "expected file:///PATH");
}

static void test_no_images(void **state) {
    (void)state;
    check_refused("missing.png", CODE_VALUE, "No such file");
    check_refused("cats", CODE_VALUE, "no regular file");
    check_refused(".", CODE_VALUE, "no regular file");
    check_refused(root, CODE_VALUE, "is not under");
    check_refused("pipe.png", CODE_VALUE, "no regular file");
    check_refused("empty.png", CODE_VALUE, "is empty");
    check_refused("large.png", CODE_VALUE, "more than 32 MiB");
    check_refused("one.png/more", CODE_VALUE, "Not a directory");
    check_refused("", CODE_VALUE, "empty text");
    image_source_begin(source);
    check_refused_bytes("one.png\0.png", 12, CODE_VALUE, "zero character");
    char *longest = malloc(10000);
    assert_non_null(longest);
    memset(longest, 'a', 10000);
    check_refused_bytes(longest, 10000, CODE_VALUE, "too long");
    check_refused_bytes(longest, 1000, CODE_VALUE, "too long");
    free(longest);
}

static void test_network(void **state) {
    (void)state;
    check_refused("https://example.com/a.png", CODE_UNSUPPORTED, "--image-root");
    check_refused("HTTP://x/y", CODE_UNSUPPORTED, "data URL");
    check_refused("ftp://x/y.png", CODE_UNSUPPORTED, "expected a data URL");
}

static void test_no_root(void **state) {
    (void)state;
    struct image_source *with = source;
    assert_int_equal(image_source_create(NULL, &source), OK);
    check_refused("one.png", CODE_UNSUPPORTED, "--image-root DIR");
    check_refused("file:///etc/passwd", CODE_UNSUPPORTED, "--image-root DIR");
    check_accepted("data:image/png;base64,AAAA", "\0\0\0", 3);
    image_source_free(source);
    source = with;
    struct image_source *none;
    assert_int_equal(image_source_create("/no/such/folder", &none), ERROR_USAGE);
    assert_null(none);
    char path[256];
    snprintf(path, sizeof path, "%s/one.png", root);
    assert_int_equal(image_source_create(path, &none), ERROR_USAGE);
    assert_non_null(strstr(failure_message(), "expected a directory"));
}

/* What stands in for openat2 on old kernels. */
static void test_open_by_steps(void **state) {
    (void)state;
    int folder = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(folder >= 0);
    static const char *const inside[] = {
        "one.png", "cats/two.png", "./cats//two.png", "cats/./two.png", "cats"};
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++) {
        int file = image_open_by_steps(folder, inside[i]);
        if (file < 0)
            fail_msg("%s: %s", inside[i], strerror(errno));
        close(file);
    }
    static const char *const outside[] = {"../secret.png", "cats/../one.png", "absolute.png", "relative.png",
        "up/secret.png", "magic/etc/passwd", "loop.png", "inside.png", "missing.png", "missing/one.png",
        "one.png/more"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_int_equal(image_open_by_steps(folder, outside[i]), -1);
    close(folder);
}

/* The way from a request to the model: the reference of a real image, decoded. */
static void test_real_image(void **state) {
    (void)state;
    struct test_file file = read_image_file("grad_40x50", ".png");
    struct image_workspace workspace = {0};
    struct image_bytes image;
    struct image_pixels pixels;
    struct refusal refusal;
    char *url = encode(file.bytes, file.count);
    image_source_begin(source);
    assert_true(read_bytes(url, strlen(url), &image, &refusal));
    assert_int_equal(image_decode(&workspace, image.data, image.bytes, image_most_side(1), &pixels), OK);
    assert_int_equal(pixels.width, 40);
    assert_int_equal(pixels.height, 50);
    image_workspace_free(&workspace);
    free(url);
    free(file.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_urls),
        cmocka_unit_test(test_bad_data_urls),
        cmocka_unit_test(test_all_bytes),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_blanks),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_inner_link),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_no_images),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_no_root),
        cmocka_unit_test(test_open_by_steps),
        cmocka_unit_test(test_real_image),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

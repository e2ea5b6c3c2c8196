/* Images against the published toolkit's vectors, Pillow's pixels, and files that mean harm. */
#include "recipe/image.h"
#include "base/json.h"
#include "image_files.h"

#include <time.h>
#include <unistd.h>
#include <xxhash.h>

static const struct image_limits limits = {
    .patch_size = 14, .downsample_ratio = 3, .min_pixels = 544 * 544, .max_image_tokens = 1024};

static struct json_document *document;
static const struct json *expected; /* expected.json */
static struct image_workspace workspace;

static int32_t number(const struct json *object, const char *member) {
    int64_t value = -1;
    if (!json_int64(json_member(object, member), &value))
        fail_msg("expected.json: no number %s", member);
    return (int32_t)value;
}

static const char *text(const struct json *object, const char *member) {
    const struct json *value = json_member(object, member);
    assert_non_null(value);
    return value->text;
}

static void check_hash(
    const char *name, const char *what, const void *data, size_t bytes, const char *digits) {
    char found[33];
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    snprintf(found, sizeof found, "%016llx%016llx", (unsigned long long)hash.high64,
        (unsigned long long)hash.low64);
    if (strcmp(found, digits) != 0)
        fail_msg("%s: %s: %zu bytes hash to %s, expected %s", name, what, bytes, found, digits);
}

static size_t pixel_bytes(const struct image_pixels *pixels) {
    return (size_t)pixels->width * (size_t)pixels->height * IMAGE_CHANNELS;
}

/* A copy outside of the workspace; free its data. */
static struct image_pixels copy_pixels(const struct image_pixels *pixels) {
    uint8_t *data = malloc(pixel_bytes(pixels));
    assert_non_null(data);
    memcpy(data, pixels->data, pixel_bytes(pixels));
    return (struct image_pixels){pixels->width, pixels->height, data};
}

static struct image_pixels decode(const char *name, const char *suffix) {
    struct test_file file = read_image_file(name, suffix);
    struct image_pixels pixels = {0};
    if (image_decode(&workspace, file.bytes, file.count, IMAGE_MOST_SIDE, &pixels) != OK)
        fail_msg("%s%s: %s", name, suffix, failure_message());
    free(file.bytes);
    return pixels;
}

static void check_refused(const char *name, const uint8_t *bytes, size_t count, const char *reason) {
    struct image_pixels pixels;
    enum result status = image_decode(&workspace, bytes, count, IMAGE_MOST_SIDE, &pixels);
    if (status != ERROR_INPUT)
        fail_msg("%s: expected a refusal, found %d", name, status);
    if (!strstr(failure_message(), reason))
        fail_msg("%s: expected a message with \"%s\", found \"%s\"", name, reason, failure_message());
}

/* ---- plans ---- */

static void check_plan(
    const struct image_plan *plan, const struct json *wanted, int32_t width, int32_t height) {
    const struct {
        const char *member;
        int32_t found;
    } fields[] = {{"best_width", plan->width}, {"best_height", plan->height},
        {"n_vit_w", plan->patch_columns}, {"n_vit_h", plan->patch_rows}, {"n_llm_w", plan->token_columns},
        {"n_llm_h", plan->token_rows}, {"token_count", plan->tokens}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (json_member(wanted, fields[i].member) && number(wanted, fields[i].member) != fields[i].found)
            fail_msg("%d x %d: %s: expected %d, found %d", width, height, fields[i].member,
                number(wanted, fields[i].member), fields[i].found);
}

static int check_details(const struct json *vector, int32_t width, int32_t height) {
    static const char *const details[] = {"low", "high", "original", "auto"};
    int checked = 0;
    for (size_t i = 0; i < sizeof details / sizeof *details; i++) {
        const struct json *wanted = json_member(vector, details[i]);
        if (!wanted || json_member(vector, "max_dimension_px")) /* that one is a limit of decoding */
            continue;
        struct image_plan plan;
        enum result status = image_plan(&limits, width, height, i == 0, &plan);
        if (json_member(wanted, "error"))
            assert_int_equal(status, ERROR_INPUT);
        else {
            assert_int_equal(status, OK);
            check_plan(&plan, wanted, width, height);
        }
        checked++;
    }
    return checked;
}

static void test_plans(void **state) {
    (void)state;
    int checked = 0;
    for (const struct json *vector = json_member(expected, "plans")->first; vector; vector = vector->next) {
        int32_t width = number(vector, "width"), height = number(vector, "height");
        checked += check_details(vector, width, height);
        if (json_member(vector, "token_count")) {
            struct image_plan plan;
            image_plan_settled(&limits, width, height, &plan);
            assert_int_equal(plan.tokens, number(vector, "token_count"));
        }
    }
    assert_true(checked >= 90);
}

static void test_token_counts(void **state) {
    (void)state;
    int checked = 0, changed = 0;
    for (const struct json *vector = json_member(expected, "sweep")->first; vector; vector = vector->next) {
        int64_t width = 0, height = 0, tokens = 0;
        assert_true(json_int64(vector->first, &width) && json_int64(vector->first->next, &height) &&
                    json_int64(vector->first->next->next, &tokens));
        struct image_plan settled, once;
        image_plan_settled(&limits, (int32_t)width, (int32_t)height, &settled);
        image_plan_once(&limits, (int32_t)width, (int32_t)height, &once);
        if (settled.tokens != tokens)
            fail_msg("%d x %d: expected %d tokens, found %d", (int)width, (int)height, (int)tokens,
                settled.tokens);
        changed += once.tokens != settled.tokens;
        checked++;
    }
    assert_int_equal(checked, 300);
    assert_int_equal(changed, 6);
}

static void test_one_pass(void **state) {
    (void)state;
    struct image_plan plan;
    image_plan_once(&limits, 294, 5, &plan);
    assert_int_equal(plan.tokens, 204);
    image_plan_settled(&limits, 294, 5, &plan);
    assert_int_equal(plan.tokens, 206);
}

/* Whatever the shape and the limits: a plan within them, or a refusal. */
static void test_plans_hold_limits(void **state) {
    (void)state;
    static const struct image_limits many_limits[] = {{14, 3, 544 * 544, 1024}, {14, 3, 3136, 64},
        {14, 3, 3136, 4}, {16, 2, 1, 9}, {1, 1, 1 << 24, 1 << 20}, {7, 5, 0, 100}};
    static const int32_t sides[] = {1, 2, 3, 13, 14, 15, 41, 42, 43, 511, 512, 513, 1000, 4095, 8191, 8192};
    const size_t side_count = sizeof sides / sizeof *sides;
    int planned = 0;
    for (size_t l = 0; l < sizeof many_limits / sizeof *many_limits; l++)
        for (size_t i = 0; i < side_count * side_count * 2; i++) {
            struct image_plan plan;
            int32_t width = sides[i / 2 % side_count], height = sides[i / 2 / side_count];
            assert_int_equal(image_limits_check(&many_limits[l]), OK);
            if (image_plan(&many_limits[l], width, height, i % 2, &plan) != OK)
                continue;
            planned++;
            assert_true(plan.tokens <= many_limits[l].max_image_tokens && plan.tokens >= 4);
            assert_true(plan.width >= 1 && plan.width <= 16383 && plan.height >= 1 && plan.height <= 16383);
            assert_int_equal(plan.width, plan.patch_columns * many_limits[l].patch_size);
            assert_int_equal(plan.height, plan.patch_rows * many_limits[l].patch_size);
            assert_int_equal(plan.tokens, plan.token_rows * (plan.token_columns + 1) + 2);
        }
    assert_true(planned > 2000);
}

static void test_limits_check(void **state) {
    (void)state;
    static const struct image_limits bad[] = {{0, 3, 9, 64}, {14, 0, 9, 64}, {14, 3, -1, 64}, {14, 3, 9, 3},
        {2000, 3, 9, 64}, {14, 3, INT32_MAX, 64}, {14, 3, 9, INT32_MAX}, {INT32_MAX, INT32_MAX, 9, 64}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(image_limits_check(&bad[i]), ERROR_INPUT);
    struct image_plan plan;
    assert_int_equal(image_plan(&limits, 0, 5, false, &plan), ERROR_INPUT);
    assert_int_equal(image_plan(&limits, 5, -1, false, &plan), ERROR_INPUT);
    assert_int_equal(image_most_side(14), 8192);
    assert_int_equal(image_most_side(15), 4096);
}

static void test_span(void **state) {
    (void)state;
    struct image_plan plan;
    assert_int_equal(image_plan(&limits, 640, 480, false, &plan), OK);
    int32_t patches = 0, newlines = 0;
    for (int32_t i = 0; i < plan.tokens; i++) {
        enum image_position kind = image_position_kind(&plan, i);
        assert_int_equal(kind == IMAGE_START, i == 0);
        assert_int_equal(kind == IMAGE_END, i == plan.tokens - 1);
        patches += kind == IMAGE_PATCH;
        newlines += kind == IMAGE_NEWLINE;
        if (kind == IMAGE_NEWLINE)
            assert_int_equal(patches, newlines * plan.token_columns);
    }
    assert_int_equal(patches, plan.token_rows * plan.token_columns);
    assert_int_equal(newlines, plan.token_rows);
}

/* ---- the toolkit's images ---- */

static struct image_pixels read_ppm(const char *name) {
    struct test_file file = read_image_file(name, ".plain.ppm");
    int width, height, consumed;
    assert_int_equal(sscanf((char *)file.bytes, "P6 %d %d 255%n", &width, &height, &consumed), 2);
    struct image_pixels pixels = {width, height, file.bytes + consumed + 1};
    assert_int_equal(file.count, (size_t)consumed + 1 + pixel_bytes(&pixels));
    pixels = copy_pixels(&pixels);
    free(file.bytes);
    return pixels;
}

static void check_pixels(const struct json *vector, const char *what, const struct image_pixels *pixels,
    const char *rgb_member, const char *patches_member) {
    const char *name = text(vector, "name");
    struct image_plan plan;
    struct image_pixels fitted;
    assert_int_equal(image_plan(&limits, pixels->width, pixels->height, false, &plan), OK);
    assert_int_equal(plan.width, number(vector, "width"));
    assert_int_equal(plan.height, number(vector, "height"));
    assert_int_equal(plan.patch_rows, number(vector, "patch_rows"));
    assert_int_equal(plan.patch_columns, number(vector, "patch_columns"));
    assert_int_equal(plan.token_rows, number(vector, "token_rows"));
    assert_int_equal(plan.token_columns, number(vector, "token_columns"));
    assert_int_equal(plan.tokens, number(vector, "tokens"));
    assert_int_equal(image_fit(&workspace, pixels, &plan, &fitted), OK);
    check_hash(name, what, fitted.data, pixel_bytes(&fitted), text(vector, rgb_member));
    if (!patches_member)
        return;
    size_t values =
        (size_t)plan.patch_rows * (size_t)plan.patch_columns * (size_t)image_patch_values(&limits);
    float *patches = malloc(values * sizeof *patches);
    assert_non_null(patches);
    image_patches(&limits, &plan, &fitted, patches);
    check_hash(name, "patches", patches, values * sizeof *patches, text(vector, patches_member));
    free(patches);
}

static double mean_difference(const struct image_pixels *a, const struct image_pixels *b) {
    assert_int_equal(a->width, b->width);
    assert_int_equal(a->height, b->height);
    int64_t sum = 0;
    for (size_t i = 0; i < pixel_bytes(a); i++)
        sum += abs(a->data[i] - b->data[i]);
    return (double)sum / (double)pixel_bytes(a);
}

static void check_image(const struct json *vector) {
    const char *name = text(vector, "name");
    struct image_pixels pixels = decode(name, ".png");
    check_hash(name, "decoded PNG", pixels.data, pixel_bytes(&pixels), text(vector, "decoded"));
    check_pixels(vector, "fitted", &pixels, "fitted", "patches");

    struct test_file file = read_image_file(name, ".png");
    struct image_plan plan;
    const float *patches;
    assert_int_equal(image_to_patches(&workspace, &limits, file.bytes, file.count, IMAGE_MOST_SIDE, false,
                         &plan, &patches),
        OK);
    check_hash(name, "image_to_patches", patches,
        (size_t)plan.patch_rows * (size_t)plan.patch_columns * (size_t)image_patch_values(&limits) *
            sizeof(float),
        text(vector, "patches"));
    free(file.bytes);

    /* What the vectors' model side began with: the same but for alpha and 16 bits. */
    if (json_member(vector, "plain")->kind == JSON_TRUE) {
        pixels = read_ppm(name);
        check_pixels(vector, "vectors' model side", &pixels, "model_rgb", "model_patches");
        free((void *)pixels.data);
    } else {
        pixels = decode(name, ".png");
        check_pixels(vector, "vectors' model side", &pixels, "model_rgb", "model_patches");
    }

    /* The toolkit's own result has its final size already, and differs by another filter and a lossy file. */
    pixels = decode(name, ".package.webp");
    check_hash(name, "decoded WebP", pixels.data, pixel_bytes(&pixels), text(vector, "webp"));
    check_pixels(vector, "the toolkit's WebP", &pixels, "webp", NULL);
    struct image_pixels webp = copy_pixels(&pixels), fitted;
    pixels = decode(name, ".png");
    assert_int_equal(image_fit(&workspace, &pixels, &plan, &fitted), OK);
    double difference = mean_difference(&webp, &fitted);
    if (difference > 2.5)
        fail_msg("%s: differs from the toolkit's WebP by %.2f levels on average", name, difference);
    free((void *)webp.data);
}

static void test_toolkit_images(void **state) {
    (void)state;
    int checked = 0;
    for (const struct json *vector = json_member(expected, "images")->first; vector;
         vector = vector->next, checked++)
        check_image(vector);
    assert_int_equal(checked, 9);
}

static void test_bad_inputs(void **state) {
    (void)state;
    int checked = 0;
    for (const struct json *bad = json_member(expected, "bad_inputs")->first; bad;
         bad = bad->next, checked++) {
        const char *hex = text(bad, "bytes");
        uint8_t bytes[256];
        size_t count = strlen(hex) / 2;
        assert_true(count <= sizeof bytes);
        for (size_t i = 0; i < count; i++) {
            char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
            bytes[i] = (uint8_t)strtoul(pair, NULL, 16);
        }
        check_refused(text(bad, "name"), bytes, count, "image of ");
    }
    assert_int_equal(checked, 8);
}

/* ---- resampling ---- */

/* The same picture as pattern() of tools/make_image_vectors.py. */
static struct image_pixels make_pattern(uint32_t width, uint32_t height) {
    uint8_t *data = malloc((size_t)width * height * IMAGE_CHANNELS), *at = data;
    assert_non_null(data);
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++, at += IMAGE_CHANNELS) {
            uint32_t noise = (x * 2654435761u ^ y * 2246822519u) >> 24;
            at[0] = (uint8_t)((x / 7 + y / 5) % 2 == 0 ? noise : 255 - noise / 4);
            at[1] = (uint8_t)((x * 3 + y * 2) % 256);
            at[2] = (uint8_t)(noise > 200 ? 255 : x * y % 256);
        }
    return (struct image_pixels){(int32_t)width, (int32_t)height, data};
}

static void test_fits(void **state) {
    (void)state;
    int checked = 0;
    for (const struct json *fit = json_member(expected, "fits")->first; fit; fit = fit->next, checked++) {
        int64_t sizes[4];
        const struct json *value = fit->first;
        for (int i = 0; i < 4; i++, value = value->next)
            assert_true(json_int64(value, &sizes[i]));
        struct image_pixels pixels = make_pattern((uint32_t)sizes[0], (uint32_t)sizes[1]), fitted;
        struct image_plan plan = {.shrunk_width = pixels.width,
            .shrunk_height = pixels.height,
            .width = (int32_t)sizes[2],
            .height = (int32_t)sizes[3]};
        assert_int_equal(image_fit(&workspace, &pixels, &plan, &fitted), OK);
        char name[64];
        snprintf(name, sizeof name, "%d x %d", pixels.width, pixels.height);
        check_hash(name, "fitted", fitted.data, pixel_bytes(&fitted), value->text);
        free((void *)pixels.data);
    }
    assert_true(checked >= 20);
}

static void test_low_detail(void **state) {
    (void)state;
    struct image_pixels pixels = make_pattern(2048, 1024), fitted, half;
    struct image_plan plan, high;
    assert_int_equal(image_plan(&limits, pixels.width, pixels.height, true, &plan), OK);
    assert_int_equal(image_plan(&limits, pixels.width, pixels.height, false, &high), OK);
    assert_int_equal(plan.shrunk_width, 512);
    assert_int_equal(plan.shrunk_height, 256);
    assert_true(plan.tokens < high.tokens);
    assert_int_equal(image_fit(&workspace, &pixels, &plan, &fitted), OK);
    assert_int_equal(fitted.width, plan.width);
    struct image_pixels in_one = copy_pixels(&fitted);
    struct image_plan shrink = {.shrunk_width = 2048, .shrunk_height = 1024, .width = 512, .height = 256};
    assert_int_equal(image_fit(&workspace, &pixels, &shrink, &half), OK);
    half = copy_pixels(&half);
    assert_int_equal(image_fit(&workspace, &half, &plan, &fitted), OK);
    assert_memory_equal(in_one.data, fitted.data, pixel_bytes(&fitted));
    free((void *)in_one.data);
    free((void *)half.data);
    free((void *)pixels.data);
}

/* ---- formats ---- */

static void test_formats(void **state) {
    (void)state;
    int checked = 0;
    for (const struct json *entry = json_member(expected, "formats")->first; entry;
         entry = entry->next, checked++) {
        char name[128];
        snprintf(name, sizeof name, "formats/%s", text(entry, "file"));
        struct image_pixels pixels = decode(name, ".expected.png"), wanted = copy_pixels(&pixels);
        pixels = decode(name, "");
        if (pixels.width != wanted.width || pixels.height != wanted.height)
            fail_msg("%s: expected %d x %d, found %d x %d", name, wanted.width, wanted.height, pixels.width,
                pixels.height);
        for (size_t i = 0; i < pixel_bytes(&pixels); i++)
            if (abs(pixels.data[i] - wanted.data[i]) > number(entry, "tolerance"))
                fail_msg("%s: pixel (%d, %d) channel %d: expected %d, found %d", name,
                    (int)(i / 3) % pixels.width, (int)(i / 3) / pixels.width, (int)(i % 3), wanted.data[i],
                    pixels.data[i]);
        free((void *)wanted.data);
    }
    assert_true(checked >= 35);
}

/* ---- harm ---- */

/* Whatever the bytes: pixels or a refusal with a message. */
static bool decode_damaged(const uint8_t *bytes, size_t count, struct image_pixels *pixels) {
    enum result status = image_decode(&workspace, bytes, count, 512, pixels);
    if (status != OK) {
        assert_int_equal(status, ERROR_INPUT);
        assert_true(strlen(failure_message()) > 20);
    }
    return status == OK;
}

/* At every length: refused, or nothing of the pixels is missing. */
static void check_truncations(const char *name, const struct test_file *file) {
    struct image_pixels pixels;
    assert_true(decode_damaged(file->bytes, file->count, &pixels));
    struct image_pixels whole = copy_pixels(&pixels);
    size_t refused = 0;
    for (size_t count = 0; count < file->count; count++) {
        uint8_t *part = malloc(count + 1); /* a read beyond it is seen by the sanitizer */
        assert_non_null(part);
        memcpy(part, file->bytes, count);
        part = realloc(part, count ? count : 1);
        if (!decode_damaged(part, count, &pixels))
            refused++;
        else if (pixels.width != whole.width || pixels.height != whole.height ||
                 memcmp(pixels.data, whole.data, pixel_bytes(&whole)) != 0)
            fail_msg("%s: cut to %zu of %zu bytes it gives other pixels", name, count, file->count);
        free(part);
    }
    assert_true(refused >= file->count / 3);
    free((void *)whole.data);
}

static void check_altered_bytes(const struct test_file *file) {
    static const uint8_t changes[] = {0x01, 0x80, 0xFF};
    for (size_t at = 0; at < file->count; at++)
        for (size_t i = 0; i < sizeof changes; i++) {
            struct image_pixels pixels;
            file->bytes[at] ^= changes[i];
            if (decode_damaged(file->bytes, file->count, &pixels))
                assert_true(
                    pixels.width >= 1 && pixels.width <= 512 && pixels.height >= 1 && pixels.height <= 512);
            file->bytes[at] ^= changes[i];
        }
}

/* Libraries like to print on standard error: here they must not. */
static void test_damage(void **state) {
    (void)state;
    FILE *printed = tmpfile();
    assert_non_null(printed);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(printed), STDERR_FILENO);
    for (const struct json *entry = json_member(expected, "formats")->first; entry; entry = entry->next) {
        char name[128];
        snprintf(name, sizeof name, "formats/%s", text(entry, "file"));
        struct test_file file = read_image_file(name, "");
        check_truncations(name, &file);
        check_altered_bytes(&file);
        free(file.bytes);
    }
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_int_equal(lseek(fileno(printed), 0, SEEK_END), 0);
    fclose(printed);
}

static void put_big_endian(uint8_t *at, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

static uint32_t png_crc(const uint8_t *bytes, size_t count) {
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* Files of a few bytes that claim to be huge are refused before memory is taken for them. */
static void test_bombs(void **state) {
    (void)state;
    struct image_workspace fresh = {0};
    struct image_pixels pixels;
    struct test_file png = read_image_file("formats/palette.png", "");
    put_big_endian(png.bytes + 16, 100000, 4);
    put_big_endian(png.bytes + 20, 200000, 4);
    put_big_endian(png.bytes + 29, png_crc(png.bytes + 12, 17), 4);
    assert_int_equal(image_decode(&fresh, png.bytes, png.count, IMAGE_MOST_SIDE, &pixels), ERROR_INPUT);
    assert_non_null(strstr(failure_message(), "PNG image of 100000 x 200000 pixels: expected at most 8192"));
    put_big_endian(png.bytes + 16, 4097, 4);
    put_big_endian(png.bytes + 20, 3, 4);
    put_big_endian(png.bytes + 29, png_crc(png.bytes + 12, 17), 4);
    assert_int_equal(image_decode(&fresh, png.bytes, png.count, image_most_side(15), &pixels), ERROR_INPUT);
    assert_non_null(strstr(failure_message(), "expected at most 4096"));
    free(png.bytes);

    struct test_file gif = read_image_file("formats/plain.gif", "");
    memset(gif.bytes + 6, 0xFF, 4);
    assert_int_equal(image_decode(&fresh, gif.bytes, gif.count, INT32_MAX, &pixels), ERROR_INPUT);
    assert_non_null(strstr(failure_message(), "65535 x 65535"));
    free(gif.bytes);

    struct test_file jpeg = read_image_file("formats/baseline.jpg", "");
    uint8_t *frame = memmem(jpeg.bytes, jpeg.count, "\xFF\xC0", 2);
    assert_non_null(frame);
    put_big_endian(frame + 5, 60000, 2);
    assert_int_equal(image_decode(&fresh, jpeg.bytes, jpeg.count, IMAGE_MOST_SIDE, &pixels), ERROR_INPUT);
    assert_non_null(strstr(failure_message(), "x 60000 pixels"));
    free(jpeg.bytes);
    for (int i = 0; i < IMAGE_WORKSPACE_BLOCKS; i++)
        assert_null(fresh.blocks[i].data);
}

/* Ten times the lines that its data hold. */
static void test_wrong_size(void **state) {
    (void)state;
    struct test_file jpeg = read_image_file("formats/baseline.jpg", "");
    uint8_t *frame = memmem(jpeg.bytes, jpeg.count, "\xFF\xC0", 2);
    assert_non_null(frame);
    put_big_endian(frame + 5, 8000, 2);
    check_refused("JPEG with wrong height", jpeg.bytes, jpeg.count, "remature end");
    free(jpeg.bytes);
    struct test_file png = read_image_file("formats/palette.png", "");
    put_big_endian(png.bytes + 20, 8000, 4);
    put_big_endian(png.bytes + 29, png_crc(png.bytes + 12, 17), 4);
    check_refused("PNG with wrong height", png.bytes, png.count, "PNG image of ");
    free(png.bytes);
}

/* A file with `copies` of the bytes from `at`, `count` long, put in at `at`. */
static struct test_file repeat_part(const struct test_file *file, size_t at, size_t count, size_t copies) {
    struct test_file made = {malloc(file->count + count * copies), file->count + count * copies};
    assert_non_null(made.bytes);
    memcpy(made.bytes, file->bytes, at);
    for (size_t i = 0; i < copies; i++)
        memcpy(made.bytes + at + i * count, file->bytes + at, count);
    memcpy(made.bytes + at + copies * count, file->bytes + at, file->count - at);
    return made;
}

static void test_too_many_scans(void **state) {
    (void)state;
    struct test_file jpeg = read_image_file("formats/progressive.jpg", "");
    uint8_t *scan = memmem(jpeg.bytes, jpeg.count, "\xFF\xDA", 2);
    assert_non_null(scan);
    uint8_t *next = memmem(scan + 2, jpeg.count - (size_t)(scan + 2 - jpeg.bytes), "\xFF\xC4", 2);
    assert_non_null(next);
    struct test_file made = repeat_part(&jpeg, (size_t)(scan - jpeg.bytes), (size_t)(next - scan), 1000);
    check_refused("JPEG of 1,010 scans", made.bytes, made.count, "more than 100 scans");
    free(made.bytes);
    free(jpeg.bytes);
}

/* Time is linear in the number of chunks, memory does not grow with them. */
static void test_many_chunks(void **state) {
    (void)state;
    enum { CHUNKS = 1000000, CHUNK_BYTES = 12, SIGNATURE_AND_HEADER_BYTES = 33 };
    struct test_file png = read_image_file("formats/palette.png", "");
    struct test_file made = repeat_part(&png, SIGNATURE_AND_HEADER_BYTES, CHUNK_BYTES, CHUNKS);
    uint8_t chunk[CHUNK_BYTES] = "\0\0\0\0tEXt";
    put_big_endian(chunk + 8, png_crc(chunk + 4, 4), 4);
    for (size_t i = 0; i < CHUNKS; i++)
        memcpy(made.bytes + SIGNATURE_AND_HEADER_BYTES + i * CHUNK_BYTES, chunk, CHUNK_BYTES);
    struct image_pixels pixels;
    clock_t begin = clock();
    if (image_decode(&workspace, made.bytes, made.count, IMAGE_MOST_SIDE, &pixels) != OK)
        fail_msg("%s", failure_message());
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 10);
    struct image_pixels with = copy_pixels(&pixels);
    assert_int_equal(image_decode(&workspace, png.bytes, png.count, IMAGE_MOST_SIDE, &pixels), OK);
    assert_memory_equal(with.data, pixels.data, pixel_bytes(&pixels));
    free((void *)with.data);
    free(made.bytes);
    free(png.bytes);
}

static void test_unknown_formats(void **state) {
    (void)state;
    static const char svg[] = "<svg xmlns=\"http://www.w3.org/2000/svg\"/>";
    check_refused("nothing", (const uint8_t *)"", 0, "0 bytes");
    check_refused("SVG", (const uint8_t *)svg, sizeof svg - 1, "begin with 3c 73 76 67");
    assert_string_equal(image_format_name((const uint8_t *)"GIF89a", 6), "GIF");
    assert_null(image_format_name((const uint8_t *)"GIF89", 5));
    assert_null(image_format_name((const uint8_t *)"RIFF\0\0\0\0WAVE", 12));
    assert_string_equal(image_format_name((const uint8_t *)"RIFF\0\0\0\0WEBP", 12), "WebP");
}

static int set_up(void **state) {
    (void)state;
    return json_document_create(&document) != OK ||
           json_parse_file(document, IMAGES_FOLDER "expected.json", &expected) != OK;
}

static int tear_down(void **state) {
    (void)state;
    json_document_free(document);
    image_workspace_free(&workspace);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_token_counts),
        cmocka_unit_test(test_one_pass),
        cmocka_unit_test(test_plans_hold_limits),
        cmocka_unit_test(test_limits_check),
        cmocka_unit_test(test_span),
        cmocka_unit_test(test_toolkit_images),
        cmocka_unit_test(test_bad_inputs),
        cmocka_unit_test(test_fits),
        cmocka_unit_test(test_low_detail),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_wrong_size),
        cmocka_unit_test(test_too_many_scans),
        cmocka_unit_test(test_many_chunks),
        cmocka_unit_test(test_unknown_formats),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* Opening checkpoints: whole ones, and `tiny` damaged in every way we could think of. */
#include "model/checkpoint.h"
#include "base/error.h"

#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TINY SOURCE_DIR "/tests/data/tiny/checkpoint"
#define NANO SOURCE_DIR "/inputs/nano"
#define FIRST "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define MAP "engram_token_map.json"

static const char *const files[] = {"config.json", MAP, INDEX, FIRST, SECOND};

/* ---- a folder to damage ---- */

static char folder[PATH_MAX];

static const char *path_of(const char *name) {
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

/* A fresh folder with links to tiny's files. */
static int make_folder(void **state) {
    (void)state;
    const char *root = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/checkpoint-XXXXXX", root ? root : "/tmp");
    if (!mkdtemp(folder))
        return -1;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char target[PATH_MAX];
        snprintf(target, sizeof target, "%s/%s", TINY, files[i]);
        if (symlink(target, path_of(files[i])))
            return -1;
    }
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

struct bytes {
    char *data;
    size_t count;
};

static struct bytes read_file(const char *name) {
    FILE *file = fopen(path_of(name), "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    struct bytes bytes = {.count = (size_t)ftell(file)};
    rewind(file);
    bytes.data = calloc(1, bytes.count + 1);
    assert_int_equal(fread(bytes.data, 1, bytes.count, file), bytes.count);
    fclose(file);
    return bytes;
}

/* Replaces the link or file. */
static void write_file(const char *name, const void *data, size_t count) {
    unlink(path_of(name));
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Replaces the first `from` after `after` in a text file. */
static void edit_text(const char *name, const char *after, const char *from, const char *to) {
    struct bytes old = read_file(name);
    char *start = strstr(old.data, after);
    assert_non_null(start);
    char *at = strstr(start, from);
    assert_non_null(at);
    char *text = calloc(1, old.count + strlen(to) + 1);
    sprintf(text, "%.*s%s%s", (int)(at - old.data), old.data, to, at + strlen(from));
    write_file(name, text, strlen(text));
    free(text);
    free(old.data);
}

static uint64_t header_length(const struct bytes *shard) {
    uint64_t length;
    memcpy(&length, shard->data, sizeof length);
    return length;
}

/* Writes a shard with another header. */
static void write_shard(const char *name, const char *header, const void *data, size_t data_bytes) {
    size_t text = strlen(header), padded = (text + 7) / 8 * 8;
    struct bytes shard = {.count = 8 + padded + data_bytes};
    shard.data = calloc(1, shard.count);
    uint64_t length = padded;
    memcpy(shard.data, &length, sizeof length);
    memset(shard.data + 8, ' ', padded);
    memcpy(shard.data + 8, header, text);
    memcpy(shard.data + 8 + padded, data, data_bytes);
    write_file(name, shard.data, shard.count);
    free(shard.data);
}

/* Replaces the first `from` after `after` in a shard's header and appends `more_data` zero bytes. */
static void edit_header(
    const char *name, const char *after, const char *from, const char *to, size_t more_data) {
    struct bytes shard = read_file(name);
    size_t length = header_length(&shard), data_bytes = shard.count - 8 - length;
    char *header = strndup(shard.data + 8, length), *text = calloc(1, length + strlen(to) + 1);
    char *start = strstr(header, after);
    assert_non_null(start);
    char *at = strstr(start, from);
    assert_non_null(at);
    sprintf(text, "%.*s%s%s", (int)(at - header), header, to, at + strlen(from));
    char *data = calloc(1, data_bytes + more_data + 1);
    memcpy(data, shard.data + 8 + length, data_bytes);
    write_shard(name, text, data, data_bytes + more_data);
    free(data);
    free(text);
    free(header);
    free(shard.data);
}

static void expect_refused(enum result expected, const char *first, const char *second) {
    struct checkpoint *checkpoint;
    enum result status = checkpoint_open(folder, &checkpoint);
    if (status == OK)
        fail_msg("accepted; expected a message with %s", first);
    if (status != expected || !strstr(failure_message(), first) || !strstr(failure_message(), second))
        fail_msg("expected \"%s\" and \"%s\" in: %s", first, second, failure_message());
}

static struct checkpoint *open_or_fail(const char *path) {
    struct checkpoint *checkpoint;
    if (checkpoint_open(path, &checkpoint) != OK)
        fail_msg("%s", failure_message());
    return checkpoint;
}

/* ---- whole checkpoints ---- */

static void test_opens(void **state) {
    (void)state;
    struct checkpoint *checkpoint = open_or_fail(TINY);
    assert_string_equal(checkpoint_folder(checkpoint), TINY);
    assert_int_equal(checkpoint_config(checkpoint)->hidden_size, 128);
    assert_int_equal(checkpoint_tensor_count(checkpoint), 1568);
    assert_int_equal(checkpoint_tensor_bytes(checkpoint), 6469640);
    assert_int_equal(checkpoint_shard_count(checkpoint), 2);
    assert_string_equal(checkpoint_shard_name(checkpoint, 1), SECOND);
    int64_t bytes = 0;
    for (int64_t i = 0; i < checkpoint_tensor_count(checkpoint); i++) {
        const struct tensor *tensor = checkpoint_tensor_at(checkpoint, i);
        assert_ptr_equal(checkpoint_tensor(checkpoint, tensor->name), tensor);
        bytes += tensor->bytes;
    }
    assert_int_equal(bytes, 6469640);
    assert_null(checkpoint_tensor(checkpoint, "layers.0.attn.wq_a"));
    assert_null(checkpoint_tensor(checkpoint, ""));
    const struct tensor *sink = checkpoint_tensor(checkpoint, "layers.3.attn.attn_sink");
    assert_non_null(sink);
    assert_int_equal(sink->dtype, TENSOR_F32);
    assert_int_equal(sink->dimensions, 1);
    assert_int_equal(sink->shape[0], 8);
    assert_int_equal(sink->bytes, 32);
    const int32_t *map = checkpoint_engram_token_map(checkpoint);
    assert_int_equal(map[0], 0);
    assert_int_equal(map[399], 399);
    assert_in_range(map[511], 0, 399);
    checkpoint_close(checkpoint);
    checkpoint_close(NULL);
    assert_int_equal(checkpoint_open(SOURCE_DIR "/no-such-folder", &checkpoint), ERROR_IO);
}

static void test_matrices(void **state) {
    (void)state;
    static const struct {
        const char *prefix;
        enum weight_format format;
        int32_t rows, columns;
        bool has_scales;
    } cases[] = {
        {"embed", WEIGHT_BF16, 3072, 128, false},
        {"layers.0.attn.wq_a", WEIGHT_FP8_TILE, 96, 128, true},
        {"layers.1.engram.embed", WEIGHT_FP8_ROW, 18132, 32, true},
        {"layers.0.ffn.experts.31.w2", WEIGHT_FP4_ROW, 128, 64, true},
        {"layers.0.ffn.gate", WEIGHT_BF16, 32, 128, false},
        {"layers.0.hc_ffn_fn", WEIGHT_F32, 24, 512, false},
        {"mtp.2.confidence_head.proj", WEIGHT_F32, 1, 160, false},
    };
    struct checkpoint *checkpoint = open_or_fail(NANO);
    struct matrix matrix;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(checkpoint_matrix(checkpoint, cases[i].prefix, &matrix), OK);
        assert_int_equal(matrix.format, cases[i].format);
        assert_int_equal(matrix.rows, cases[i].rows);
        assert_int_equal(matrix.columns, cases[i].columns);
        assert_int_equal(matrix.scales != NULL, cases[i].has_scales);
        assert_non_null(matrix.values);
    }
    assert_int_equal(checkpoint_matrix(checkpoint, "layers.99.attn.wq_a", &matrix), ERROR_INTERNAL);
    assert_int_equal(checkpoint_matrix(checkpoint, "norm", &matrix), ERROR_INTERNAL); /* a vector */
    checkpoint_close(checkpoint);
}

static void test_print(void **state) {
    (void)state;
    struct checkpoint *checkpoint = open_or_fail(NANO);
    char *text = NULL;
    size_t bytes;
    for (int tensors = 0; tensors < 2; tensors++) {
        FILE *out = open_memstream(&text, &bytes);
        assert_int_equal(checkpoint_print(checkpoint, out, tensors), OK);
        fclose(out);
        assert_non_null(strstr(text, "2528 tensors in 2 shards, 11225532 bytes"));
        assert_non_null(strstr(text, "window only 0-1; a compressed row for 2 tokens 2-5; for 1 token 6-9"));
        assert_non_null(strstr(text, "106 bytes of compressed rows and index keys a token"));
        assert_non_null(strstr(text, "routed experts       I8            960          3932160  35.03%"));
        assert_int_equal(strstr(text, "layers.9.ffn.experts.31.w2.scale") != NULL, tensors);
        free(text);
    }
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        assert_int_equal(checkpoint_print(checkpoint, full, false), ERROR_IO);
        fclose(full);
    }
    checkpoint_close(checkpoint);
}

static void test_linked_copy_opens(void **state) {
    (void)state;
    struct checkpoint *copy = open_or_fail(folder), *tiny = open_or_fail(TINY);
    assert_string_equal(checkpoint_fingerprint(copy), checkpoint_fingerprint(tiny));
    checkpoint_close(copy);
    checkpoint_close(tiny);
}

static void test_fingerprint(void **state) {
    (void)state;
    struct checkpoint *checkpoint = open_or_fail(folder);
    char before[33];
    strcpy(before, checkpoint_fingerprint(checkpoint));
    assert_int_equal(strlen(before), 32);
    checkpoint_close(checkpoint);
    struct bytes shard = read_file(SECOND), map = read_file(MAP);
    size_t data = 8 + header_length(&shard);
    const size_t places[] = {data, data + 4095, shard.count - 4096, shard.count - 1};
    for (size_t i = 0; i < 4; i++) { /* one bit of the first or last data */
        shard.data[places[i]] ^= 1;
        write_file(SECOND, shard.data, shard.count);
        shard.data[places[i]] ^= 1;
        checkpoint = open_or_fail(folder);
        assert_string_not_equal(checkpoint_fingerprint(checkpoint), before);
        checkpoint_close(checkpoint);
    }
    write_file(SECOND, shard.data, shard.count);
    write_file("tokenizer.json", "{}", 2);
    checkpoint = open_or_fail(folder);
    assert_string_not_equal(checkpoint_fingerprint(checkpoint), before);
    checkpoint_close(checkpoint);
    unlink(path_of("tokenizer.json"));
    edit_text("config.json", "\"rms_norm_eps\"", "1e-20", "1e-21");
    checkpoint = open_or_fail(folder);
    assert_string_not_equal(checkpoint_fingerprint(checkpoint), before);
    checkpoint_close(checkpoint);
    free(shard.data);
    free(map.data);
}

/* All tensors in one shard need no index. */
static void test_single_shard(void **state) {
    (void)state;
    struct bytes shards[2] = {read_file(FIRST), read_file(SECOND)};
    size_t lengths[2], data[2];
    for (int i = 0; i < 2; i++) {
        lengths[i] = header_length(&shards[i]);
        data[i] = shards[i].count - 8 - lengths[i];
    }
    /* Join the headers: the second one's offsets move by the first one's bytes of data. */
    char *header = calloc(1, 2 * (lengths[0] + lengths[1])), *out = header;
    char *first = strndup(shards[0].data + 8, lengths[0]), *second = strndup(shards[1].data + 8, lengths[1]);
    out += sprintf(out, "%.*s,", (int)(strrchr(first, '}') - first), first);
    char *from = strchr(second, '{') + 1, *offsets;
    while ((offsets = strstr(from, "\"data_offsets\":["))) {
        offsets += strlen("\"data_offsets\":[");
        char *end;
        size_t begin = strtoull(offsets, &end, 10), until = strtoull(end + 1, &end, 10);
        out += sprintf(out, "%.*s%zu,%zu", (int)(offsets - from), from, begin + data[0], until + data[0]);
        from = end;
    }
    strcpy(out, from);
    char *joined = calloc(1, data[0] + data[1]);
    memcpy(joined, shards[0].data + 8 + lengths[0], data[0]);
    memcpy(joined + data[0], shards[1].data + 8 + lengths[1], data[1]);
    unlink(path_of(FIRST));
    unlink(path_of(SECOND));
    unlink(path_of(INDEX));
    write_shard("model.safetensors", header, joined, data[0] + data[1]);
    struct checkpoint *checkpoint = open_or_fail(folder);
    assert_int_equal(checkpoint_tensor_count(checkpoint), 1568);
    assert_int_equal(checkpoint_shard_count(checkpoint), 1);
    checkpoint_close(checkpoint);
    free(joined);
    free(header);
    free(first);
    free(second);
    free(shards[0].data);
    free(shards[1].data);
}

/* ---- damaged shards and index ---- */

static void test_truncated_shard(void **state) {
    (void)state;
    struct bytes shard = read_file(SECOND);
    size_t data = 8 + header_length(&shard);
    const size_t cuts[] = {
        0, 1, 7, 8, 9, data / 2, data - 1, data, data + 1, (data + shard.count) / 2, shard.count - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        write_file(SECOND, shard.data, cuts[i]);
        expect_refused(ERROR_INPUT, SECOND, "truncated");
    }
    char *longer = calloc(1, shard.count + 1);
    memcpy(longer, shard.data, shard.count);
    write_file(SECOND, longer, shard.count + 1);
    expect_refused(ERROR_INPUT, SECOND, "the end of the last tensor");
    free(longer);
    free(shard.data);
}

static void test_missing_files(void **state) {
    (void)state;
    unlink(path_of(SECOND));
    expect_refused(ERROR_INPUT, SECOND ", which is missing", INDEX);
    unlink(path_of(FIRST));
    expect_refused(ERROR_INPUT, "found none", folder);
    remove_folder(NULL);
    make_folder(NULL);
    unlink(path_of(INDEX));
    expect_refused(ERROR_INPUT, INDEX, "the file is missing");
    remove_folder(NULL);
    make_folder(NULL);
    unlink(path_of("config.json"));
    expect_refused(ERROR_IO, "config.json", "No such file");
}

static void test_one_of_two_shards_without_index(void **state) {
    (void)state;
    unlink(path_of(INDEX));
    unlink(path_of(SECOND));
    expect_refused(ERROR_INPUT, "is missing: config.json calls for one of", folder);
}

static void test_extra_shard(void **state) {
    (void)state;
    write_shard("model-00003-of-00002.safetensors", "{}", "", 0);
    expect_refused(ERROR_INPUT, "model-00003-of-00002.safetensors", "holds no tensor");
    write_shard("model-00003-of-00002.safetensors",
        "{\"norm.weight2\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "\0\0\0", 4);
    expect_refused(ERROR_INPUT, "norm.weight2, which the index does not name", INDEX);
    write_shard("model-00003-of-00002.safetensors",
        "{\"norm.weight\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", "\0\0\0", 4);
    expect_refused(ERROR_INPUT, "tensor norm.weight is in two shards", "model-00003-of-00002");
}

static void test_directory_as_shard(void **state) {
    (void)state;
    unlink(path_of(SECOND));
    assert_int_equal(symlink("/tmp", path_of(SECOND)), 0);
    expect_refused(ERROR_INPUT, SECOND, "regular file");
}

static void test_damaged_index(void **state) {
    (void)state;
    edit_text(INDEX, "\"embed.weight\"", FIRST, SECOND);
    expect_refused(ERROR_INPUT, "tensor embed.weight: expected in shard " SECOND, "found in " FIRST);
    edit_text(INDEX, "\"embed.weight\"", "embed.weight", "embed.weights");
    expect_refused(ERROR_INPUT, "tensor embed.weights: expected in shard", "does not name it");
    edit_text(INDEX, "\"embed.weights\"", "\"embed.weights\": \"" SECOND "\",", "");
    expect_refused(ERROR_INPUT, "holds tensor embed.weight, which the index does not name", FIRST);
    edit_text(INDEX, "weight_map", "weight_map", "weight_mop");
    expect_refused(ERROR_INPUT, "weight_map: expected an object, found absent", INDEX);
    write_file(INDEX, "{\"weight_map\":{\"embed.weight\":3}}", 33);
    expect_refused(ERROR_INPUT, "weight_map: embed.weight: expected a shard's name, found number", INDEX);
    write_file(INDEX, "{\"weight_map\":{\"embed.weight\":\"../x.safetensors\"}}", 50);
    expect_refused(ERROR_INPUT, "../x.safetensors, which is missing", INDEX);
    write_file(INDEX, "{\"weight", 8);
    expect_refused(ERROR_INPUT, INDEX, "line 1");
}

/* ---- damaged tensors ---- */

static void restore(const char *name) {
    char target[PATH_MAX];
    snprintf(target, sizeof target, "%s/%s", TINY, name);
    unlink(path_of(name));
    assert_int_equal(symlink(target, path_of(name)), 0);
}

static void test_wrong_tensors(void **state) {
    (void)state;
    edit_header(FIRST, "\"embed.weight\"", "[512,128]", "[128,512]", 0);
    expect_refused(ERROR_INPUT,
        "tensor embed.weight: expected shape [512, 128] by config.json, found [128, 512]", FIRST);
    restore(FIRST);
    edit_header(FIRST, "\"layers.0.attn_norm.weight\"", "[128]", "[128,1]", 0);
    expect_refused(ERROR_INPUT, "layers.0.attn_norm.weight: expected shape [128]", "found [128, 1]");
    restore(FIRST);
    edit_header(FIRST, "\"layers.0.attn.wq_a.weight\"", "F8_E4M3", "I8", 0);
    expect_refused(ERROR_INPUT, "layers.0.attn.wq_a.weight: expected dtype F8_E4M3, found I8", FIRST);
    restore(FIRST);
    edit_header(FIRST, "\"layers.0.attn.wq_a.scale\"", "F8_E8M0", "I8", 0);
    expect_refused(ERROR_INPUT, "layers.0.attn.wq_a.scale: expected dtype F8_E8M0, found I8", "32 x 32 tile");
    restore(FIRST);
    edit_header(FIRST, "\"layers.0.attn.wq_a.weight\"", "F8_E4M3", "F16", 0);
    expect_refused(ERROR_INPUT, "tensor layers.0.attn.wq_a.weight: dtype: expected F32", "found F16");
    restore(FIRST);
    edit_header(FIRST, "\"layers.0.attn.wq_a.weight\"", "[64,128]", "[64,127]", 0);
    expect_refused(ERROR_INPUT, "layers.0.attn.wq_a.weight: data_offsets: expected 8128 bytes", "found 8192");
    restore(FIRST);
    edit_header(FIRST, "\"layers.0.attn.wq_a.weight\"", "[131072,139264]", "[131070,139262]", 0);
    expect_refused(ERROR_INPUT, "layers.0.attn.wq_a.weight", "they overlap");
}

static void test_unknown_and_missing_tensors(void **state) {
    (void)state;
    edit_header(FIRST, "\"layers.0.attn.attn_sink\"", "attn_sink", "attn_sunk", 0);
    edit_text(INDEX, "\"layers.0.attn.attn_sink\"", "attn_sink", "attn_sunk");
    expect_refused(ERROR_INPUT, "tensor layers.0.attn.attn_sink is missing", "F32, shape [8]");
    restore(FIRST);
    restore(INDEX);
    edit_header(
        FIRST, "{", "{", "{\"extra.weight\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[9,13]},", 0);
    expect_refused(ERROR_INPUT, FIRST, "extra.weight");
    restore(FIRST);
    edit_header(FIRST, "\"layers.0.attn.wq_a.scale\"", "wq_a.scale", "wq_a.weight_scale_inv", 0);
    edit_text(INDEX, "\"layers.0.attn.wq_a.scale\"", "wq_a.scale", "wq_a.weight_scale_inv");
    expect_refused(ERROR_INPUT, "layers.0.attn.wq_a.weight_scale_inv: unknown layout of scales", "F8_E8M0");
}

/* Stores an F32 tensor of a shard as BF16: half its bytes go, later tensors move up. */
static void store_as_bf16(const char *name, const char *tensor) {
    struct bytes shard = read_file(name);
    size_t length = header_length(&shard), data_bytes = shard.count - 8 - length;
    char *header = strndup(shard.data + 8, length), *text = calloc(1, length + 64), *out = text;
    char *data = shard.data + 8 + length, *from = header, *end;
    size_t cut_at = 0, cut = 0; /* known once the tensor is met: entries are in the order of their bytes */
    const char key[] = "\"data_offsets\":[";
    for (char *offsets; (offsets = strstr(from, key)); from = end) {
        offsets += strlen(key);
        size_t begin = strtoull(offsets, &end, 10) - cut, until = strtoull(end + 1, &end, 10) - cut;
        char *named = strstr(from, tensor), *dtype = strstr(from, "\"F32\"");
        if (!cut && named && named < offsets) {
            out += sprintf(out, "%.*s\"BF16\"", (int)(dtype - from), from);
            from = dtype + strlen("\"F32\"");
            cut = (until - begin) / 2;
            until -= cut;
            cut_at = until;
        }
        out += sprintf(out, "%.*s%zu,%zu", (int)(offsets - from), from, begin, until);
    }
    strcpy(out, from);
    assert_true(cut > 0);
    memmove(data + cut_at, data + cut_at + cut, data_bytes - cut_at - cut);
    write_shard(name, text, data, data_bytes - cut);
    free(text);
    free(header);
    free(shard.data);
}

/* The confidence head may be BF16; another F32 tensor may not. */
static void test_bf16_confidence_head(void **state) {
    (void)state;
    store_as_bf16(SECOND, "mtp.2.confidence_head.proj.weight");
    struct checkpoint *checkpoint = open_or_fail(folder);
    struct matrix matrix;
    assert_int_equal(checkpoint_matrix(checkpoint, "mtp.2.confidence_head.proj", &matrix), OK);
    assert_int_equal(matrix.format, WEIGHT_BF16);
    assert_int_equal(matrix.columns, 144);
    checkpoint_close(checkpoint);
    restore(SECOND);
    store_as_bf16(SECOND, "mtp.2.attn.attn_sink");
    expect_refused(ERROR_INPUT, "mtp.2.attn.attn_sink: expected dtype F32, found BF16", SECOND);
}

/* A tensor more at the end of the second shard, named by the index too. */
static void test_extra_tensor(void **state) {
    (void)state;
    struct bytes shard = read_file(SECOND);
    size_t data = shard.count - 8 - header_length(&shard);
    char entry[160];
    snprintf(entry, sizeof entry,
        "{\"extra.weight\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[%zu,%zu]},", data, data + 4);
    edit_header(SECOND, "{", "{", entry, 4);
    edit_text(INDEX, "\"weight_map\"", "{", "{\"extra.weight\": \"" SECOND "\",");
    expect_refused(ERROR_INPUT, SECOND, "tensor extra.weight is none that config.json calls for");
    free(shard.data);
}

/* The configuration decides what must be there. */
static void test_parts_switched_off(void **state) {
    (void)state;
    edit_text(
        "config.json", "\"vision_config\"", "\"vision_config\": {", "\"vision_config\": null, \"x\": {");
    expect_refused(ERROR_INPUT, "x: unknown field", "config.json");
    restore("config.json");
    edit_text("config.json", "\"engram_layer_ids\"", "1,\n   4", "");
    expect_refused(ERROR_INPUT, ".engram.", "its engram_layer_ids is empty");
    restore("config.json");
    edit_text("config.json", "\"n_routed_experts\"", "16", "17");
    expect_refused(ERROR_INPUT, "layers.0.ffn.gate.weight: expected shape [17, 128]", "found [16, 128]");
    restore("config.json");
    edit_text("config.json", "\"dspark_n_routed_experts\"", "8", "7");
    expect_refused(ERROR_INPUT, "mtp.0.ffn.gate.weight: expected shape [7, 128]", "found [8, 128]");
}

static void test_token_map(void **state) {
    (void)state;
    unlink(path_of(MAP));
    expect_refused(ERROR_INPUT, MAP, "the file is missing: a model with Engram layers needs it");
    write_file(MAP, "[]", 2);
    expect_refused(ERROR_INPUT, MAP, "expected a list of 512 compressed ids (vocab_size), found array of 0");
    write_file(MAP, "{}", 2);
    expect_refused(ERROR_INPUT, MAP, "found object");
    restore(MAP);
    edit_text(MAP, "[", "[0, 1,", "[0, 400,");
    expect_refused(ERROR_INPUT, "entry 1: expected an integer from 0 to 399", "found 400");
    edit_text(MAP, "[", "400", "-1");
    expect_refused(ERROR_INPUT, "entry 1", "found -1");
    edit_text(MAP, "[", "-1", "1.5");
    expect_refused(ERROR_INPUT, "entry 1", "found 1.5");
    edit_text(MAP, "[", "1.5", "null");
    expect_refused(ERROR_INPUT, "entry 1", "found null");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_print),
        IN_FOLDER(test_linked_copy_opens),
        IN_FOLDER(test_fingerprint),
        IN_FOLDER(test_single_shard),
        IN_FOLDER(test_truncated_shard),
        IN_FOLDER(test_missing_files),
        IN_FOLDER(test_one_of_two_shards_without_index),
        IN_FOLDER(test_extra_shard),
        IN_FOLDER(test_directory_as_shard),
        IN_FOLDER(test_damaged_index),
        IN_FOLDER(test_wrong_tensors),
        IN_FOLDER(test_unknown_and_missing_tensors),
        IN_FOLDER(test_bf16_confidence_head),
        IN_FOLDER(test_extra_tensor),
        IN_FOLDER(test_parts_switched_off),
        IN_FOLDER(test_token_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "recipe/tokenizer_file.h"

#include "base/utf8.h"           /* utf8_decode */
#include "recipe/pretokenizer.h" /* PRETOKENIZER_NUMBERS and the other patterns */

#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, free */
#include <string.h> /* memchr, memcmp */

enum {
    SIZE_LIMIT = 1 << 20,   /* ids are below; bounds the memory that a bad file can ask for */
    ALPHABET_EXTRA = 0x100, /* where the bytes without a printable Latin-1 character are spelled */
    ALPHABET_END = 0x144,
};

/* ---- the byte alphabet ---- */

static bool spells_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

/* The byte that a character spells, or -1. The 68 others stand in order from U+0100 on. */
static int alphabet_byte(uint32_t character) {
    if (character < ALPHABET_EXTRA)
        return spells_itself(character) ? (int)character : -1;
    if (character >= ALPHABET_END)
        return -1;
    uint32_t n = character - ALPHABET_EXTRA;
    return n < 0x21 ? (int)n : n < 0x43 ? (int)(n - 0x21 + 0x7F) : 0xAD;
}

size_t tokenizer_file_bytes(const char *spelling, size_t bytes, char *out) {
    size_t count = 0;
    for (size_t at = 0; at < bytes;) {
        uint32_t character;
        at += utf8_decode(spelling + at, bytes - at, &character); /* JSON text is valid UTF-8 */
        int byte = alphabet_byte(character);
        if (byte < 0)
            return 0;
        out[count++] = (char)byte;
    }
    return count;
}

/* ---- the pipeline ---- */

static bool is_absent(const struct json *value) {
    return !value || value->kind == JSON_NULL;
}

static enum result expect_text(
    const struct json *object, const char *path, const char *key, const char *expected) {
    const struct json *value = json_member(object, key);
    if (json_is_text(value, expected))
        return OK;
    if (value && value->kind == JSON_STRING)
        return fail(ERROR_INPUT, "%s.%s: expected \"%s\", found \"%.80s\"", path, key, expected, value->text);
    return fail(ERROR_INPUT, "%s.%s: expected \"%s\", found %s", path, key, expected, json_kind_name(value));
}

static enum result expect_false(const struct json *object, const char *path, const char *key) {
    const struct json *value = json_member(object, key);
    if (is_absent(value) || value->kind == JSON_FALSE)
        return OK;
    return fail(ERROR_INPUT, "%s.%s: expected false, found %s", path, key,
        value->kind == JSON_TRUE ? "true" : json_kind_name(value));
}

static enum result expect_null(const struct json *object, const char *path, const char *key) {
    const struct json *value = json_member(object, key);
    if (is_absent(value) || json_is_text(value, ""))
        return OK;
    return fail(ERROR_INPUT, "%s%s: expected null, found %s: this tokenizer has no such stage", path, key,
        json_kind_name(value));
}

static enum result expect_array(
    const struct json *object, const char *path, const char *key, size_t count, const struct json **array) {
    *array = json_member(object, key);
    if (!*array || (*array)->kind != JSON_ARRAY)
        return fail(ERROR_INPUT, "%s.%s: expected an array, found %s", path, key, json_kind_name(*array));
    if (count != SIZE_MAX && (*array)->count != count)
        return fail(
            ERROR_INPUT, "%s.%s: expected %zu elements, found %zu", path, key, count, (*array)->count);
    return OK;
}

static enum result check_normalizer(const struct json *root) {
    const struct json *normalizer = json_member(root, "normalizer"), *stages;
    if (is_absent(normalizer))
        return OK;
    TRY(expect_text(normalizer, "normalizer", "type", "Sequence"));
    return expect_array(normalizer, "normalizer", "normalizers", 0, &stages);
}

static enum result check_split(const struct json *stage, const char *path, const char *pattern) {
    char pattern_path[80];
    TRY(expect_text(stage, path, "type", "Split"));
    snprintf(pattern_path, sizeof pattern_path, "%s.pattern", path);
    TRY(expect_text(json_member(stage, "pattern"), pattern_path, "Regex", pattern));
    TRY(expect_text(stage, path, "behavior", "Isolated"));
    return expect_false(stage, path, "invert");
}

static enum result check_pre_tokenizer(const struct json *root) {
    static const char *const patterns[] = {PRETOKENIZER_NUMBERS, PRETOKENIZER_IDEOGRAPHS, PRETOKENIZER_WORDS};
    enum { PATTERNS = sizeof patterns / sizeof patterns[0] };
    const struct json *sequence = json_member(root, "pre_tokenizer"), *stages;
    TRY(expect_text(sequence, "pre_tokenizer", "type", "Sequence"));
    TRY(expect_array(sequence, "pre_tokenizer", "pretokenizers", PATTERNS + 1, &stages));
    const struct json *stage = stages->first;
    char path[64];
    for (int i = 0; i < PATTERNS; i++, stage = stage->next) {
        snprintf(path, sizeof path, "pre_tokenizer.pretokenizers[%d]", i);
        TRY(check_split(stage, path, patterns[i]));
    }
    snprintf(path, sizeof path, "pre_tokenizer.pretokenizers[%d]", PATTERNS);
    TRY(expect_text(stage, path, "type", "ByteLevel"));
    TRY(expect_false(stage, path, "add_prefix_space"));
    const struct json *use_regex = json_member(stage, "use_regex");
    if (!use_regex || use_regex->kind != JSON_FALSE)
        return fail(ERROR_INPUT, "%s.use_regex: expected false", path);
    return OK;
}

static enum result check_model(const struct json *model) {
    static const char *const unused[] = {
        "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    TRY(expect_text(model, "model", "type", "BPE"));
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        TRY(expect_null(model, "model.", unused[i]));
    TRY(expect_false(model, "model", "fuse_unk"));
    TRY(expect_false(model, "model", "byte_fallback"));
    return expect_false(model, "model", "ignore_merges");
}

static enum result check_pipeline(const struct json *root) {
    if (root->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "expected an object, found %s", json_kind_name(root));
    TRY(expect_null(root, "", "truncation"));
    TRY(expect_null(root, "", "padding"));
    TRY(check_normalizer(root));
    TRY(check_pre_tokenizer(root));
    const struct json *post_processor = json_member(root, "post_processor");
    if (!is_absent(post_processor))
        TRY(expect_text(post_processor, "post_processor", "type", "ByteLevel"));
    TRY(expect_text(json_member(root, "decoder"), "decoder", "type", "ByteLevel"));
    return check_model(json_member(root, "model"));
}

/* ---- tokens ---- */

static enum result read_id(const struct json *value, const char *where, int32_t *id) {
    int64_t number;
    if (!json_int64(value, &number) || number < 0 || number >= SIZE_LIMIT)
        return fail(ERROR_INPUT, "%s: expected an id from 0 to %d, found %.40s", where, SIZE_LIMIT - 1,
            value && value->kind == JSON_NUMBER ? value->text : json_kind_name(value));
    *id = (int32_t)number;
    return OK;
}

/* The number of ids, so that the table of tokens can be made at once. */
static enum result find_size(const struct json *vocabulary, const struct json *added, int32_t *size) {
    int32_t id = 0;
    char where[128];
    *size = 0;
    for (const struct json *member = vocabulary->first; member; member = member->next) {
        snprintf(where, sizeof where, "model.vocab[\"%.60s\"]", member->key);
        TRY(read_id(member, where, &id));
        *size = id >= *size ? id + 1 : *size;
    }
    size_t i = 0;
    for (const struct json *token = added->first; token; token = token->next, i++) {
        snprintf(where, sizeof where, "added_tokens[%zu].id", i);
        TRY(read_id(json_member(token, "id"), where, &id));
        *size = id >= *size ? id + 1 : *size;
    }
    return OK;
}

static enum result gather_vocabulary(const struct json *vocabulary, struct tokenizer_file *file) {
    struct buffer bytes = {0};
    enum result status = OK;
    for (const struct json *member = vocabulary->first; member; member = member->next) {
        int32_t id = 0;
        TRY_GOTO(status, read_id(member, "model.vocab", &id), done);
        struct tokenizer_file_token *token = &file->tokens[id];
        if (token->spelling || !member->key_bytes) {
            status = fail(ERROR_INPUT,
                token->spelling ? "model.vocab: two tokens have the id %d"
                                : "model.vocab: the token of id %d has no characters",
                (int)id);
            goto done;
        }
        buffer_clear(&bytes);
        buffer_append(&bytes, member->key, member->key_bytes);
        token->byte_level = tokenizer_file_bytes(member->key, member->key_bytes, bytes.data) > 0;
        token->spelling = member->key;
        token->bytes = member->key_bytes;
        file->text_bytes += member->key_bytes;
    }
done:
    buffer_free(&bytes);
    return status;
}

static bool is_ascii(const struct json *text) {
    for (size_t i = 0; i < text->bytes; i++) {
        if ((unsigned char)text->text[i] >= 0x80)
            return false;
    }
    return true;
}

static enum result gather_added_token(const struct json *object, size_t index, struct tokenizer_file *file) {
    static const char *const unused[] = {"single_word", "lstrip", "rstrip"};
    char path[48];
    int32_t id = 0;
    snprintf(path, sizeof path, "added_tokens[%zu]", index);
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        TRY(expect_false(object, path, unused[i]));
    TRY(read_id(json_member(object, "id"), path, &id));
    const struct json *content = json_member(object, "content");
    if (!content || content->kind != JSON_STRING || !content->bytes)
        return fail(ERROR_INPUT, "%s.content: expected a string of at least one character", path);
    struct tokenizer_file_token *token = &file->tokens[id];
    if (token->added)
        return fail(ERROR_INPUT, "%s: its id %d is that of an earlier added token", path, (int)id);
    if (token->spelling &&
        (token->bytes != content->bytes || memcmp(token->spelling, content->text, token->bytes) != 0))
        return fail(ERROR_INPUT, "%s: its id %d is that of another token of model.vocab", path, (int)id);
    const struct json *normalized = json_member(object, "normalized"),
                      *special = json_member(object, "special");
    *token = (struct tokenizer_file_token){
        .spelling = content->text,
        .bytes = content->bytes,
        .byte_level = token->byte_level && is_ascii(content), /* then both spellings are the same bytes */
        .added = true,
        .normalized = normalized && normalized->kind == JSON_TRUE,
        .special = special && special->kind == JSON_TRUE,
    };
    file->text_bytes += content->bytes;
    return OK;
}

enum result tokenizer_file_read(const struct json *root, struct tokenizer_file *file) {
    TRY(check_pipeline(root));
    const struct json *model = json_member(root, "model"), *vocabulary = json_member(model, "vocab");
    const struct json *added = json_member(root, "added_tokens");
    if (!vocabulary || vocabulary->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "model.vocab: expected an object, found %s", json_kind_name(vocabulary));
    TRY(expect_array(model, "model", "merges", SIZE_MAX, &file->merges));
    if (!added || added->kind != JSON_ARRAY)
        return fail(ERROR_INPUT, "added_tokens: expected an array, found %s", json_kind_name(added));
    TRY(find_size(vocabulary, added, &file->size));
    file->tokens = calloc(file->size ? (size_t)file->size : 1, sizeof *file->tokens);
    if (!file->tokens)
        return fail(ERROR_MEMORY, "no memory for %d tokens", (int)file->size);
    TRY(gather_vocabulary(vocabulary, file));
    for (const struct json *token = added->first; token; token = token->next)
        TRY(gather_added_token(token, file->added_count++, file));
    return OK;
}

void tokenizer_file_free(struct tokenizer_file *file) {
    free(file->tokens);
    *file = (struct tokenizer_file){0};
}

/* ---- merges ---- */

static bool is_text(const struct json *value) {
    return value && value->kind == JSON_STRING;
}

enum result tokenizer_file_merge(
    const struct json *merge, size_t index, struct buffer *joined, struct tokenizer_file_merge *parts) {
    const char *left, *right;
    size_t left_bytes, right_bytes;
    if (is_text(merge)) {
        const char *blank = memchr(merge->text, ' ', merge->bytes);
        if (!blank)
            return fail(
                ERROR_INPUT, "model.merges[%zu]: expected two tokens with a blank between them", index);
        left = merge->text;
        left_bytes = (size_t)(blank - left);
        right = blank + 1;
        right_bytes = merge->bytes - left_bytes - 1;
    } else if (merge->kind == JSON_ARRAY && merge->count == 2 && is_text(merge->first) &&
               is_text(merge->first->next)) {
        left = merge->first->text;
        left_bytes = merge->first->bytes;
        right = merge->first->next->text;
        right_bytes = merge->first->next->bytes;
    } else
        return fail(ERROR_INPUT, "model.merges[%zu]: expected a string or a pair of strings, found %s", index,
            json_kind_name(merge));
    buffer_clear(joined);
    buffer_append(joined, left, left_bytes);
    buffer_append(joined, right, right_bytes);
    parts->left_bytes = tokenizer_file_bytes(left, left_bytes, joined->data);
    parts->right_bytes = tokenizer_file_bytes(right, right_bytes, joined->data + parts->left_bytes);
    joined->bytes = parts->left_bytes + parts->right_bytes;
    return OK;
}

/* Merging against the rule itself: rescan all pairs for the least rank, the leftmost of equals, until none has one. */
#include "base/utf8.h"
#include "recipe/tokenizer.h"
#include "recipe/tokenizer_file.h"
#include "recipe/unicode_classes.h"
#include "vectors.h"

#define DATA SOURCE_DIR "/tests/data/recipe"

enum { PARTS_MOST = 64, TEXT_MOST = 4096, TEXTS = 20000, LONG_TEXT = 40 };

struct merge {
    int32_t left, right, merged, rank;
};

static struct tokenizer *tokenizer;
static struct merge *merges;
static size_t merge_count;
static int32_t *by_bytes; /* ids but of added tokens, by their bytes */
static size_t by_bytes_count;
static int32_t byte_ids[256];

static struct text_view {
    const char *bytes;
    size_t count;
} view(int32_t id) {
    struct text_view view = {0};
    assert_true(tokenizer_token_bytes(tokenizer, id, &view.bytes, &view.count));
    return view;
}

static int compare(struct text_view a, struct text_view b) {
    int order = memcmp(a.bytes, b.bytes, a.count < b.count ? a.count : b.count);
    return order ? order : a.count < b.count ? -1 : a.count > b.count;
}

static int by_text(const void *left, const void *right) {
    return compare(view(*(const int32_t *)left), view(*(const int32_t *)right));
}

static int text_to_id(const void *text, const void *id) {
    return compare(*(const struct text_view *)text, view(*(const int32_t *)id));
}

static int32_t id_of(const char *bytes, size_t count) {
    struct text_view text = {bytes, count};
    const int32_t *found = bsearch(&text, by_bytes, by_bytes_count, sizeof *by_bytes, text_to_id);
    assert_non_null(found);
    return *found;
}

static int by_pair(const void *left, const void *right) {
    const struct merge *a = left, *b = right;
    if (a->left != b->left)
        return a->left < b->left ? -1 : 1;
    return a->right < b->right ? -1 : a->right > b->right;
}

static void read_merges(const struct json *list) {
    struct buffer joined = {0};
    merges = malloc(list->count * sizeof *merges);
    for (const struct json *item = list->first; item; item = item->next) {
        struct tokenizer_file_merge parts;
        assert_int_equal(tokenizer_file_merge(item, merge_count, &joined, &parts), OK);
        merges[merge_count] = (struct merge){.left = id_of(joined.data, parts.left_bytes),
            .right = id_of(joined.data + parts.left_bytes, parts.right_bytes),
            .merged = id_of(joined.data, joined.bytes),
            .rank = (int32_t)merge_count};
        merge_count++;
    }
    buffer_free(&joined);
    qsort(merges, merge_count, sizeof *merges, by_pair);
}

static int setup(void **state) {
    (void)state;
    struct json_document *document;
    const struct json *root;
    assert_int_equal(tokenizer_load(DATA, &tokenizer), OK);
    by_bytes = malloc((size_t)tokenizer_size(tokenizer) * sizeof *by_bytes);
    for (int32_t id = 0; id < tokenizer_size(tokenizer); id++)
        if (!tokenizer_is_added(tokenizer, id))
            by_bytes[by_bytes_count++] = id;
    qsort(by_bytes, by_bytes_count, sizeof *by_bytes, by_text);
    for (int byte = 0; byte < 256; byte++)
        byte_ids[byte] = id_of(&(char){(char)byte}, 1);
    assert_int_equal(json_document_create(&document), OK);
    assert_int_equal(json_parse_file(document, DATA "/tokenizer.json", &root), OK);
    read_merges(json_member(json_member(root, "model"), "merges"));
    json_document_free(document);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_free(tokenizer);
    free(by_bytes);
    free(merges);
    return 0;
}

static size_t merge_by_the_rule(const char *text, size_t bytes, int32_t *ids) {
    size_t count = bytes;
    for (size_t i = 0; i < bytes; i++)
        ids[i] = byte_ids[(unsigned char)text[i]];
    for (;;) {
        const struct merge *best = NULL;
        size_t place = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            struct merge pair = {.left = ids[i], .right = ids[i + 1]};
            const struct merge *found = bsearch(&pair, merges, merge_count, sizeof *merges, by_pair);
            if (found && (!best || found->rank < best->rank)) {
                best = found;
                place = i;
            }
        }
        if (!best)
            return count;
        ids[place] = best->merged;
        count--;
        memmove(ids + place + 1, ids + place + 2, (count - place - 1) * sizeof *ids);
    }
}

static uint32_t draw(uint32_t below) {
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % below;
}

/* Scripts whose letters, all of a text's, make one piece. */
static const struct script {
    const char *name;
    uint32_t begin, end;
} scripts[] = {{"Latin", 'a', 'z' + 1}, {"Latin with accents", 0xE0, 0xF7}, {"Cyrillic", 0x430, 0x450},
    {"Arabic", 0x627, 0x64B}, {"Devanagari", 0x915, 0x93A}, {"Thai", 0xE01, 0xE2F},
    {"Hangul", 0xAC00, 0xD7A4}, {"ideographs", 0x4E00, 0x9FA6}, {"kana and ideographs", 0x3041, 0x9FA6},
    {"Gothic", 0x10330, 0x1034A}};

static bool belongs(struct text_view text, const struct script *script) {
    for (size_t at = 0; at < text.count;) {
        uint32_t character;
        unsigned length = utf8_decode(text.bytes + at, text.count - at, &character);
        if (!length || character < script->begin || character >= script->end ||
            !(unicode_class(character) & (CLASS_LETTER | CLASS_IDEOGRAPH)))
            return false;
        at += length;
    }
    return text.count > 0;
}

/* Tokens of a script, in the order of their ids: frequent ones first. */
static size_t find_tokens(const struct script *script, int32_t *found) {
    size_t count = 0;
    for (int32_t id = 0; id < tokenizer_size(tokenizer); id++)
        if (!tokenizer_is_added(tokenizer, id) && belongs(view(id), script))
            found[count++] = id;
    return count;
}

/* Frequent tokens, any tokens, and characters that may be none, by turns. */
static size_t make_text(const struct script *script, const int32_t *tokens, size_t count, char *text) {
    size_t bytes = 0, parts = 1 + draw(draw(LONG_TEXT) ? 12 : PARTS_MOST);
    for (size_t part = 0; part < parts; part++) {
        uint32_t kind = draw(8);
        if (!count || kind == 0) {
            uint32_t character = script->begin + draw(script->end - script->begin);
            char encoded[4];
            unsigned length = utf8_encode(character, encoded);
            if (!belongs((struct text_view){encoded, length}, script))
                continue;
            memcpy(text + bytes, encoded, length);
            bytes += length;
            continue;
        }
        size_t range = kind < 5 && count > 400 ? 400 : count;
        struct text_view token = view(tokens[draw((uint32_t)range)]);
        memcpy(text + bytes, token.bytes, token.count);
        bytes += token.count;
    }
    return bytes;
}

static void merges_as_the_rule_says(void **state) {
    (void)state;
    static char text[TEXT_MOST];
    static int32_t expected[TEXT_MOST];
    int32_t *tokens = malloc((size_t)tokenizer_size(tokenizer) * sizeof *tokens);
    struct token_list ids = {0};
    for (size_t s = 0; s < sizeof scripts / sizeof *scripts; s++) {
        size_t count = find_tokens(&scripts[s], tokens);
        for (int i = 0; i < TEXTS / (int)(sizeof scripts / sizeof *scripts); i++) {
            size_t bytes = make_text(&scripts[s], tokens, count, text);
            ids.count = 0;
            assert_int_equal(tokenizer_encode_plain(tokenizer, text, bytes, &ids), OK);
            size_t right = merge_by_the_rule(text, bytes, expected);
            if (ids.count != right || (right && memcmp(ids.ids, expected, right * sizeof *expected)))
                fail_msg("%s: '%.*s': other ids", scripts[s].name, (int)bytes, text);
        }
    }
    free(ids.ids);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(merges_as_the_rule_says)};
    return cmocka_run_group_tests(tests, setup, teardown);
}

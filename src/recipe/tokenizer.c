#include "recipe/tokenizer.h"

#include "base/utf8.h"             /* utf8_decode */
#include "recipe/added_tokens.h"   /* struct added_tokens */
#include "recipe/bpe.h"            /* struct bpe */
#include "recipe/pretokenizer.h"   /* pretokenizer_next */
#include "recipe/tokenizer_file.h" /* struct tokenizer_file */

#include <stdio.h>  /* fprintf */
#include <stdlib.h> /* malloc, realloc, free, abort */
#include <string.h> /* memcpy, strlen */

enum {
    TOKEN_KNOWN = 1,   /* the id exists */
    TOKEN_SPECIAL = 2, /* left out of decoded text */
    TOKEN_ADDED = 4,   /* one of added_tokens */
    PIECES_AHEAD = 16, /* looked up together */
};

struct added {
    const char *spelling; /* into the blob, not NUL-terminated */
    size_t bytes;
    int32_t id;
};

struct tokenizer {
    int32_t size;
    char *blob;
    uint32_t *offsets; /* [size + 1] into the blob */
    uint8_t *flags;    /* [size] */
    struct bpe *bpe;
    struct added *added;
    size_t added_count;
    struct added_tokens matchers[2]; /* tried in this order: not normalized, normalized */
};

/* ---- lists ---- */

static void list_reserve(struct token_list *list, size_t more) {
    if (list->count + more <= list->capacity)
        return;
    size_t capacity = list->capacity ? list->capacity : 256;
    while (capacity < list->count + more)
        capacity *= 2;
    int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
    if (!ids) {
        fprintf(stderr, "nocturne: no memory for %zu token ids\n", capacity);
        abort();
    }
    list->ids = ids;
    list->capacity = capacity;
}

void token_list_append(struct token_list *list, const int32_t *ids, size_t count) {
    list_reserve(list, count);
    for (size_t i = 0; i < count; i++)
        list->ids[list->count + i] = ids[i];
    list->count += count;
}

/* ---- loading ---- */

void tokenizer_free(struct tokenizer *tokenizer) {
    if (!tokenizer)
        return;
    free(tokenizer->blob);
    free(tokenizer->offsets);
    free(tokenizer->flags);
    free(tokenizer->added);
    bpe_free(tokenizer->bpe);
    added_tokens_free(&tokenizer->matchers[0]);
    added_tokens_free(&tokenizer->matchers[1]);
    free(tokenizer);
}

/* Lays the tokens' bytes out in the order of their ids. */
static enum result store_texts(struct tokenizer *tokenizer, const struct tokenizer_file *file) {
    size_t size = (size_t)file->size;
    tokenizer->blob = malloc(file->text_bytes ? file->text_bytes : 1);
    tokenizer->offsets = malloc((size + 1) * sizeof *tokenizer->offsets);
    tokenizer->flags = calloc(size ? size : 1, sizeof *tokenizer->flags);
    tokenizer->added = malloc((file->added_count ? file->added_count : 1) * sizeof *tokenizer->added);
    if (!tokenizer->blob || !tokenizer->offsets || !tokenizer->flags || !tokenizer->added)
        return fail(ERROR_MEMORY, "no memory for a tokenizer of %zu tokens", size);
    uint32_t used = 0;
    for (size_t id = 0; id < size; id++) {
        const struct tokenizer_file_token *token = &file->tokens[id];
        tokenizer->offsets[id] = used;
        if (!token->spelling)
            continue;
        tokenizer->flags[id] =
            TOKEN_KNOWN | (token->special ? TOKEN_SPECIAL : 0) | (token->added ? TOKEN_ADDED : 0);
        if (token->byte_level)
            used += (uint32_t)tokenizer_file_bytes(token->spelling, token->bytes, tokenizer->blob + used);
        else {
            memcpy(tokenizer->blob + used, token->spelling, token->bytes);
            used += (uint32_t)token->bytes;
        }
    }
    tokenizer->offsets[size] = used;
    return OK;
}

static enum result store_added(struct tokenizer *tokenizer, const struct tokenizer_file *file) {
    for (int32_t id = 0; id < file->size; id++) {
        const struct tokenizer_file_token *token = &file->tokens[id];
        if (!token->added)
            continue;
        const char *spelling = tokenizer->blob + tokenizer->offsets[id];
        size_t bytes = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
        TRY(added_tokens_insert(&tokenizer->matchers[token->normalized], spelling, bytes, id));
        tokenizer->added[tokenizer->added_count++] =
            (struct added){.spelling = spelling, .bytes = bytes, .id = id};
    }
    return OK;
}

static enum result find_part(const struct tokenizer *tokenizer, const char *bytes, size_t count, size_t merge,
    const char *which, int32_t *id) {
    *id = count ? bpe_find_token(tokenizer->bpe, bytes, count) : -1;
    if (*id < 0)
        return fail(ERROR_INPUT, "model.merges[%zu]: its %s is no token of model.vocab", merge, which);
    return OK;
}

static enum result store_merges(struct tokenizer *tokenizer, const struct tokenizer_file *file) {
    struct buffer joined = {0};
    enum result status = OK;
    size_t rank = 0;
    for (const struct json *merge = file->merges->first; merge; merge = merge->next, rank++) {
        struct tokenizer_file_merge parts;
        TRY_GOTO(status, tokenizer_file_merge(merge, rank, &joined, &parts), done);
        int32_t left, right, whole;
        TRY_GOTO(status, find_part(tokenizer, joined.data, parts.left_bytes, rank, "left part", &left), done);
        TRY_GOTO(status,
            find_part(
                tokenizer, joined.data + parts.left_bytes, parts.right_bytes, rank, "right part", &right),
            done);
        TRY_GOTO(status, find_part(tokenizer, joined.data, joined.bytes, rank, "result", &whole), done);
        if (!bpe_add_merge(tokenizer->bpe, left, right, whole, (uint32_t)rank)) {
            status = fail(ERROR_INPUT, "model.merges[%zu]: the same pair stands there twice", rank);
            goto done;
        }
    }
done:
    buffer_free(&joined);
    return status;
}

static enum result store_vocabulary(struct tokenizer *tokenizer, const struct tokenizer_file *file) {
    struct token_texts texts = {.blob = tokenizer->blob, .offsets = tokenizer->offsets};
    TRY(bpe_create(texts, (size_t)file->size, file->merges->count, &tokenizer->bpe));
    for (int32_t id = 0; id < file->size; id++) {
        if (file->tokens[id].byte_level && !bpe_add_token(tokenizer->bpe, id))
            return fail(ERROR_INPUT, "model.vocab: id %d has the bytes of another token", (int)id);
    }
    TRY(store_merges(tokenizer, file));
    return bpe_finish(tokenizer->bpe);
}

static enum result build(const struct json *root, struct tokenizer **result) {
    enum result status = OK;
    struct tokenizer_file file = {0};
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer)
        return fail(ERROR_MEMORY, "no memory for a tokenizer");
    TRY_GOTO(status, tokenizer_file_read(root, &file), done);
    tokenizer->size = file.size;
    TRY_GOTO(status, store_texts(tokenizer, &file), done);
    TRY_GOTO(status, store_added(tokenizer, &file), done);
    TRY_GOTO(status, store_vocabulary(tokenizer, &file), done);
    *result = tokenizer;
    tokenizer = NULL;
done:
    tokenizer_file_free(&file);
    tokenizer_free(tokenizer);
    return status;
}

enum result tokenizer_load_memory(
    const char *name, const char *text, size_t bytes, struct tokenizer **tokenizer) {
    struct json_document *document = NULL;
    const struct json *root = NULL;
    TRY(json_document_create(&document));
    enum result status = json_parse(document, text, bytes, &root);
    if (status == OK)
        status = build(root, tokenizer);
    json_document_free(document);
    return status == OK ? OK : fail_context(status, "%s", name);
}

enum result tokenizer_load(const char *folder, struct tokenizer **tokenizer) {
    struct json_document *document = NULL;
    const struct json *root = NULL;
    struct buffer path = {0};
    enum result status;
    buffer_printf(&path, "%s/tokenizer.json", folder);
    TRY_GOTO(status, json_document_create(&document), done);
    TRY_GOTO(status, json_parse_file(document, path.data, &root), done);
    status = build(root, tokenizer);
    if (status != OK)
        status = fail_context(status, "%s", path.data);
done:
    json_document_free(document);
    buffer_free(&path);
    return status;
}

/* ---- lookup ---- */

static bool is_known(const struct tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->size && (tokenizer->flags[id] & TOKEN_KNOWN);
}

int32_t tokenizer_size(const struct tokenizer *tokenizer) {
    return tokenizer->size;
}

int32_t tokenizer_added_id(const struct tokenizer *tokenizer, const char *spelling) {
    size_t bytes = strlen(spelling);
    for (size_t i = 0; i < tokenizer->added_count; i++) {
        const struct added *added = &tokenizer->added[i];
        if (added->bytes == bytes && !memcmp(added->spelling, spelling, bytes))
            return added->id;
    }
    return -1;
}

bool tokenizer_token_bytes(const struct tokenizer *tokenizer, int32_t id, const char **bytes, size_t *count) {
    if (!is_known(tokenizer, id))
        return false;
    *bytes = tokenizer->blob + tokenizer->offsets[id];
    *count = tokenizer->offsets[id + 1] - tokenizer->offsets[id];
    return true;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id) {
    return is_known(tokenizer, id) && (tokenizer->flags[id] & TOKEN_SPECIAL);
}

bool tokenizer_is_added(const struct tokenizer *tokenizer, int32_t id) {
    return is_known(tokenizer, id) && (tokenizer->flags[id] & TOKEN_ADDED);
}

/* ---- encoding ---- */

/* The length of the valid UTF-8 at the start of the text. */
static size_t valid_prefix(const char *text, size_t bytes) {
    const uint64_t high = 0x8080808080808080u;
    size_t at = 0;
    while (at < bytes) {
        uint64_t word;
        while (bytes - at >= sizeof word && (memcpy(&word, text + at, sizeof word), !(word & high)))
            at += sizeof word;
        if (at == bytes)
            break;
        uint32_t character;
        unsigned length = utf8_decode(text + at, bytes - at, &character);
        if (!length)
            break;
        at += length;
    }
    return at;
}

static enum result check_text(const char *text, size_t bytes) {
    if (bytes > INT32_MAX)
        return fail(ERROR_INPUT, "text of %zu bytes: at most %d can be encoded at once", bytes, INT32_MAX);
    size_t valid = valid_prefix(text, bytes);
    if (valid < bytes)
        return fail(ERROR_INPUT, "invalid UTF-8 at byte offset %zu of the text", valid);
    return OK;
}

static enum result encode_pieces(
    const struct tokenizer *tokenizer, const char *text, const char *end, struct token_list *ids) {
    struct bpe_piece pieces[PIECES_AHEAD];
    while (text < end) {
        int count = 0;
        for (; text < end && count < PIECES_AHEAD; count++) {
            const char *next = pretokenizer_next(text, end);
            bpe_look(tokenizer->bpe, text, (size_t)(next - text), &pieces[count]);
            text = next;
        }
        for (int i = 0; i < count; i++)
            TRY(bpe_encode(tokenizer->bpe, &pieces[i], ids));
    }
    return OK;
}

enum result tokenizer_encode_plain(
    const struct tokenizer *tokenizer, const char *text, size_t bytes, struct token_list *ids) {
    TRY(check_text(text, bytes));
    return encode_pieces(tokenizer, text, text + bytes, ids);
}

/* Cuts at the spellings of one matcher, and the rest by the next, or into pieces after the last. */
static enum result encode_around_added(const struct tokenizer *tokenizer, int matcher, const char *text,
    const char *end, struct token_list *ids) {
    if (matcher == 2)
        return encode_pieces(tokenizer, text, end, ids);
    const char *start;
    size_t bytes;
    int32_t id;
    while (added_tokens_find(&tokenizer->matchers[matcher], text, end, &start, &bytes, &id)) {
        TRY(encode_around_added(tokenizer, matcher + 1, text, start, ids));
        token_list_append(ids, &id, 1);
        text = start + bytes;
    }
    return encode_around_added(tokenizer, matcher + 1, text, end, ids);
}

enum result tokenizer_encode(
    const struct tokenizer *tokenizer, const char *text, size_t bytes, struct token_list *ids) {
    TRY(check_text(text, bytes));
    return encode_around_added(tokenizer, 0, text, text + bytes, ids);
}

/* ---- decoding ---- */

/* Replaces what is not UTF-8 from `start` on. */
static void replace_invalid(struct buffer *text, size_t start) {
    size_t valid = valid_prefix(text->data + start, text->bytes - start);
    if (start + valid == text->bytes)
        return;
    struct buffer rest = {0};
    buffer_append(&rest, text->data + start + valid, text->bytes - start - valid);
    text->bytes = start + valid;
    for (size_t at = 0; at < rest.bytes;) {
        uint32_t invalid;
        valid = valid_prefix(rest.data + at, rest.bytes - at);
        buffer_append(text, rest.data + at, valid);
        at += valid;
        if (at == rest.bytes)
            break;
        (void)utf8_decode(rest.data + at, rest.bytes - at, &invalid);
        buffer_append(text, UTF8_REPLACEMENT, UTF8_REPLACEMENT_BYTES);
        at += invalid;
    }
    buffer_free(&rest);
}

void tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip_special,
    struct buffer *text) {
    size_t start = text->bytes;
    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        size_t length;
        if (skip_special && tokenizer_is_special(tokenizer, ids[i]))
            continue;
        if (tokenizer_token_bytes(tokenizer, ids[i], &bytes, &length))
            buffer_append(text, bytes, length);
    }
    if (text->bytes > start)
        replace_invalid(text, start);
}

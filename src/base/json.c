#include "base/json.h"

#include "base/utf8.h" /* utf8_decode, utf8_encode */

#include <errno.h>    /* errno */
#include <fcntl.h>    /* open */
#include <math.h>     /* isinf */
#include <stdio.h>    /* snprintf */
#include <stdlib.h>   /* malloc, realloc, strtod, strtoll */
#include <string.h>   /* memcpy, memcmp */
#include <sys/stat.h> /* fstat */
#include <unistd.h>   /* read, close, getpid */
#include <xxhash.h>   /* XXH3_64bits_withSeed */

enum {
    CHUNK_NODES_FIRST = 512,
    CHUNK_NODES_MOST = 1 << 16,
    TEXT_SLACK = 16,           /* strings are copied eight bytes at a time, past their end */
    SMALL_OBJECT = 12,         /* members compared pairwise when looking for duplicates */
    EXPONENT_FREE_DIGITS = 300 /* a number this short without an exponent always fits a double */
};

struct node_chunk {
    struct node_chunk *next;
    size_t capacity;
    struct json nodes[];
};

struct json_document {
    struct node_chunk *chunks, *current;
    size_t used; /* nodes of `current` */
    /* Texts: a copied value never takes more room than its spelling, whose delimiters leave room for the
     * NUL, so that one block of the input's size is enough. */
    char *text;
    size_t text_capacity;
    struct json **slots; /* scratch of the duplicate search, a power of two */
    size_t slot_capacity;
    bool refuse_duplicates;
    uint64_t hash_seed; /* differs between processes, so that nobody can write keys that collide */
};

/* An open array or object. */
struct frame {
    struct json *value;
    struct json *last; /* its last child */
};

struct parser {
    struct json_document *document;
    const char *start, *at, *end;
    char *out; /* where the next text goes, in the document's text */
    struct frame frames[JSON_DEPTH_LIMIT];
    int depth;
};

enum result json_document_create(struct json_document **document) {
    *document = calloc(1, sizeof **document);
    if (!*document)
        return fail(ERROR_MEMORY, "no memory for a JSON document");
    (*document)->hash_seed = (uint64_t)getpid() * 0x9E3779B97F4A7C15u ^ (uint64_t)(uintptr_t)*document;
    return OK;
}

void json_document_refuse_duplicates(struct json_document *document) {
    document->refuse_duplicates = true;
}

void json_document_free(struct json_document *document) {
    if (!document)
        return;
    for (struct node_chunk *chunk = document->chunks; chunk;) {
        struct node_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    free(document->text);
    free(document->slots);
    free(document);
}

static enum result next_chunk(struct json_document *document) {
    struct node_chunk *current = document->current;
    struct node_chunk *next = current ? current->next : document->chunks;
    if (!next) {
        size_t capacity = current ? current->capacity * 2 : CHUNK_NODES_FIRST;
        if (capacity > CHUNK_NODES_MOST)
            capacity = CHUNK_NODES_MOST;
        next = malloc(sizeof *next + capacity * sizeof next->nodes[0]);
        if (!next)
            return fail(ERROR_MEMORY, "no memory for the values of a JSON text");
        next->next = NULL;
        next->capacity = capacity;
        if (current)
            current->next = next;
        else
            document->chunks = next;
    }
    document->current = next;
    document->used = 0;
    return OK;
}

static inline enum result new_node(struct json_document *document, struct json **node) {
    if (!document->current || document->used == document->current->capacity)
        TRY(next_chunk(document));
    *node = &document->current->nodes[document->used++];
    **node = (struct json){0};
    return OK;
}

/* ---- messages ---- */

static enum result fail_at(const struct parser *parser, const char *at, const char *what) {
    size_t line = 1;
    const char *line_start = parser->start;
    for (const char *p = parser->start; p < at && (p = memchr(p, '\n', (size_t)(at - p))); p++) {
        line++;
        line_start = p + 1;
    }
    return fail(ERROR_INPUT, "line %zu column %zu: %s", line, (size_t)(at - line_start) + 1, what);
}

/* "expected X, found Y" at the parser's position. */
static enum result fail_expected(const struct parser *parser, const char *expected) {
    char what[160], found[16];
    unsigned char c = parser->at < parser->end ? (unsigned char)*parser->at : 0;
    if (parser->at == parser->end)
        snprintf(what, sizeof what, "expected %s, found the end of the text", expected);
    else if (c == 0xEF && parser->end - parser->at >= 3 && !memcmp(parser->at, "\xEF\xBB\xBF", 3))
        snprintf(
            what, sizeof what, "expected %s, found a byte order mark: save the file without it", expected);
    else {
        if (c > 0x20 && c < 0x7F)
            snprintf(found, sizeof found, "'%c'", c);
        else
            snprintf(found, sizeof found, "byte 0x%02X", c);
        snprintf(what, sizeof what, "expected %s, found %s", expected, found);
    }
    return fail_at(parser, parser->at, what);
}

/* ---- strings ---- */

/* Non-zero when one of eight bytes is '"', '\\', a control character or not ASCII. */
static inline uint64_t special_bytes(uint64_t word) {
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
    return ((quote - ones) | (backslash - ones) | (word - ones * 0x20) | word) & high;
}

static bool read_hex4(const char *at, const char *end, uint32_t *value) {
    if (end - at < 4)
        return false;
    *value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i], lower = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            *value = *value << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            *value = *value << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return false;
    }
    return true;
}

/* \uXXXX, or a pair of them for a surrogate pair; `at` stands on the backslash. */
static enum result read_unicode_escape(struct parser *parser) {
    uint32_t character, low;
    const char *at = parser->at;
    if (!read_hex4(at + 2, parser->end, &character))
        return fail_at(parser, at, "\\u must be followed by four hexadecimal digits");
    at += 6;
    if (character >= 0xD800 && character < 0xE000) {
        bool paired = character < 0xDC00 && parser->end - at >= 2 && at[0] == '\\' && at[1] == 'u' &&
                      read_hex4(at + 2, parser->end, &low) && low >= 0xDC00 && low < 0xE000;
        if (!paired)
            return fail_at(parser, parser->at, "lone surrogate in a \\u escape: it is no character");
        character = 0x10000 + ((character - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
    }
    char encoded[4];
    unsigned length = utf8_encode(character, encoded);
    memcpy(parser->out, encoded, length);
    parser->out += length;
    parser->at = at;
    return OK;
}

static enum result read_escape(struct parser *parser) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = parser->end - parser->at >= 2 ? parser->at[1] : 0;
    if (c == 'u')
        return read_unicode_escape(parser);
    const char *name = c ? strchr(names, c) : NULL;
    if (!name)
        return fail_at(parser, parser->at,
            "unknown escape in a string: expected \\\" \\\\ \\/ \\b \\f \\n \\r \\t or \\u");
    *parser->out++ = values[name - names];
    parser->at += 2;
    return OK;
}

/* Copies characters from 0x80 up; `at` stands on the first. */
static enum result read_non_ascii(struct parser *parser) {
    while (parser->at < parser->end && (unsigned char)*parser->at >= 0x80) {
        uint32_t character;
        unsigned length = utf8_decode(parser->at, (size_t)(parser->end - parser->at), &character);
        if (!length)
            return fail_at(parser, parser->at, "invalid UTF-8 in a string");
        for (unsigned i = 0; i < length; i++)
            parser->out[i] = parser->at[i];
        parser->out += length;
        parser->at += length;
    }
    return OK;
}

/* `at` stands after the opening quote. The text ends up in the document, NUL-terminated. */
static enum result read_string(struct parser *parser, const char **text, size_t *bytes) {
    char *start = parser->out;
    const char *open = parser->at - 1;
    for (;;) {
        while (parser->end - parser->at >= 8) {
            uint64_t word;
            memcpy(&word, parser->at, 8);
            memcpy(parser->out, &word, 8);
            uint64_t special = special_bytes(word);
            if (special) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
                /* Borrows only run upwards, so that the lowest marked byte is a true one. */
                int clean = __builtin_ctzll(special) / 8;
                parser->at += clean;
                parser->out += clean;
#endif
                break;
            }
            parser->at += 8;
            parser->out += 8;
        }
        if (parser->at == parser->end)
            return fail_at(parser, open, "this string is not closed by a quote");
        unsigned char c = (unsigned char)*parser->at;
        if (c == '"')
            break;
        if (c == '\\')
            TRY(read_escape(parser));
        else if (c < 0x20)
            return fail_at(parser, parser->at, "control character in a string: it must be escaped");
        else if (c >= 0x80)
            TRY(read_non_ascii(parser));
        else {
            *parser->out++ = (char)c;
            parser->at++;
        }
    }
    parser->at++;
    *text = start;
    *bytes = (size_t)(parser->out - start);
    *parser->out++ = 0;
    return OK;
}

/* ---- numbers and words ---- */

static inline bool is_digit(const struct parser *parser) {
    return parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9';
}

static enum result read_digits(struct parser *parser) {
    if (!is_digit(parser))
        return fail_expected(parser, "a digit");
    while (is_digit(parser))
        parser->at++;
    return OK;
}

static enum result read_number(struct parser *parser, struct json *value) {
    const char *start = parser->at;
    bool exponent = false;
    if (*parser->at == '-')
        parser->at++;
    if (parser->at < parser->end && *parser->at == '0') {
        parser->at++;
        if (is_digit(parser))
            return fail_at(parser, start, "a number must not begin with 0 and more digits");
    } else
        TRY(read_digits(parser));
    if (parser->at < parser->end && *parser->at == '.') {
        parser->at++;
        TRY(read_digits(parser));
    }
    if (parser->at < parser->end && (*parser->at == 'e' || *parser->at == 'E')) {
        exponent = true;
        parser->at++;
        if (parser->at < parser->end && (*parser->at == '+' || *parser->at == '-'))
            parser->at++;
        TRY(read_digits(parser));
    }
    value->kind = JSON_NUMBER;
    value->bytes = (size_t)(parser->at - start);
    value->text = parser->out;
    memcpy(parser->out, start, value->bytes);
    parser->out[value->bytes] = 0;
    parser->out += value->bytes + 1;
    if ((exponent || value->bytes > EXPONENT_FREE_DIGITS) && isinf(strtod(value->text, NULL)))
        return fail_at(parser, start, "number out of range: it does not fit a double");
    return OK;
}

static enum result read_word(struct parser *parser, struct json *value) {
    static const struct {
        const char *word;
        size_t bytes;
        enum json_kind kind;
    } words[] = {{"null", 4, JSON_NULL}, {"true", 4, JSON_TRUE}, {"false", 5, JSON_FALSE}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if ((size_t)(parser->end - parser->at) >= words[i].bytes &&
            !memcmp(parser->at, words[i].word, words[i].bytes)) {
            value->kind = words[i].kind;
            parser->at += words[i].bytes;
            return OK;
        }
    }
    return fail_expected(parser, "a value");
}

/* ---- duplicate keys ---- */

static inline bool same_key(const struct json *a, const struct json *b) {
    return a->key_bytes == b->key_bytes && !memcmp(a->key, b->key, a->key_bytes);
}

/* Gives the earlier member the later one's value; the later one is then dropped by the caller. */
static void take_value(struct json *earlier, const struct json *later) {
    earlier->kind = later->kind;
    earlier->bytes = later->bytes;
    earlier->text = later->text;
    earlier->count = later->count;
    earlier->first = later->first;
}

static struct json *find_small(const struct json *object, const struct json *member) {
    struct json *other = (struct json *)object->first;
    while (other != member && !same_key(other, member))
        other = (struct json *)other->next;
    return other == member ? NULL : other;
}

/* The earlier member with this key; else NULL, and the member is in the table from now on. */
static struct json *find_or_insert(struct json_document *document, size_t mask, struct json *member) {
    size_t slot = XXH3_64bits_withSeed(member->key, member->key_bytes, document->hash_seed) & mask;
    for (; document->slots[slot]; slot = (slot + 1) & mask) {
        if (same_key(document->slots[slot], member))
            return document->slots[slot];
    }
    document->slots[slot] = member;
    return NULL;
}

static enum result clear_slots(struct json_document *document, size_t count) {
    if (count > document->slot_capacity) {
        free(document->slots);
        document->slot_capacity = 0;
        document->slots = malloc(count * sizeof document->slots[0]);
        if (!document->slots)
            return fail(ERROR_MEMORY, "no memory for the keys of a JSON object");
        document->slot_capacity = count;
    }
    memset(document->slots, 0, count * sizeof document->slots[0]);
    return OK;
}

/* Done when an object closes, so that one table serves all nested objects. */
static enum result drop_duplicates(struct json_document *document, struct json *object) {
    size_t mask = 0;
    if (object->count > SMALL_OBJECT) {
        size_t slots = 32;
        while (slots < 2 * object->count)
            slots *= 2;
        TRY(clear_slots(document, slots));
        mask = slots - 1;
    }
    const struct json **link = &object->first; /* what points to the member at hand */
    while (*link) {
        struct json *member = (struct json *)*link;
        struct json *earlier = mask ? find_or_insert(document, mask, member) : find_small(object, member);
        if (earlier && document->refuse_duplicates)
            return fail(ERROR_INPUT, "the key \"%.100s\" comes twice in one object", member->key);
        if (earlier) {
            take_value(earlier, member);
            *link = member->next;
            object->count--;
        } else
            link = &member->next;
    }
    return OK;
}

/* ---- structure ---- */

static inline void skip_blanks(struct parser *parser) {
    while (parser->at < parser->end &&
           (*parser->at == ' ' || *parser->at == '\n' || *parser->at == '\r' || *parser->at == '\t'))
        parser->at++;
}

static enum result read_key(struct parser *parser, struct json *member) {
    if (parser->at == parser->end || *parser->at != '"')
        return fail_expected(parser, "a key in quotes");
    parser->at++;
    TRY(read_string(parser, &member->key, &member->key_bytes));
    skip_blanks(parser);
    if (parser->at == parser->end || *parser->at != ':')
        return fail_expected(parser, "':' after a key");
    parser->at++;
    skip_blanks(parser);
    return OK;
}

static enum result read_value(struct parser *parser, struct json *value) {
    char c = parser->at < parser->end ? *parser->at : 0;
    switch (c) {
    case '"':
        value->kind = JSON_STRING;
        parser->at++;
        return read_string(parser, &value->text, &value->bytes);
    case '{':
    case '[':
        if (parser->depth == JSON_DEPTH_LIMIT)
            return fail_at(parser, parser->at, "arrays and objects nested deeper than 128");
        value->kind = c == '{' ? JSON_OBJECT : JSON_ARRAY;
        parser->at++;
        parser->frames[parser->depth++] = (struct frame){.value = value};
        return OK;
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
        return read_number(parser, value);
    default:
        return read_word(parser, value);
    }
}

/* Reads the next child of the innermost open value, or closes it. */
static enum result read_child(struct parser *parser) {
    struct frame *frame = &parser->frames[parser->depth - 1];
    bool object = frame->value->kind == JSON_OBJECT;
    char closing = object ? '}' : ']';
    skip_blanks(parser);
    bool closes = parser->at < parser->end && *parser->at == closing;
    if (closes) {
        parser->at++;
        parser->depth--;
        return object ? drop_duplicates(parser->document, frame->value) : OK;
    }
    if (frame->last) {
        if (parser->at == parser->end || *parser->at != ',')
            return fail_expected(parser, object ? "',' or '}'" : "',' or ']'");
        parser->at++;
        skip_blanks(parser);
    }
    struct json *child;
    TRY(new_node(parser->document, &child));
    if (object)
        TRY(read_key(parser, child));
    if (frame->last)
        frame->last->next = child;
    else
        frame->value->first = child;
    frame->last = child;
    frame->value->count++;
    return read_value(parser, child);
}

static enum result reserve_text(struct json_document *document, size_t bytes) {
    if (bytes + 1 + TEXT_SLACK <= document->text_capacity)
        return OK;
    free(document->text);
    document->text_capacity = 0;
    document->text = malloc(bytes + bytes / 4 + 1 + TEXT_SLACK);
    if (!document->text)
        return fail(ERROR_MEMORY, "no memory for a JSON text of %zu bytes", bytes);
    document->text_capacity = bytes + bytes / 4 + 1 + TEXT_SLACK;
    return OK;
}

enum result json_parse(
    struct json_document *document, const char *text, size_t bytes, const struct json **root) {
    TRY(reserve_text(document, bytes));
    document->current = NULL;
    struct parser parser = {
        .document = document, .start = text, .at = text, .end = text + bytes, .out = document->text};
    struct json *value;
    TRY(new_node(document, &value));
    skip_blanks(&parser);
    TRY(read_value(&parser, value));
    while (parser.depth > 0)
        TRY(read_child(&parser));
    skip_blanks(&parser);
    if (parser.at != parser.end)
        return fail_expected(&parser, "the end of the text");
    *root = value;
    return OK;
}

/* ---- files ---- */

static enum result read_file(const char *path, char **text, size_t *bytes) {
    enum result status = OK;
    struct stat stat;
    char *data = NULL;
    size_t used = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return fail_errno(ERROR_IO, "%s: cannot open the file", path);
    if (fstat(file, &stat) < 0) {
        status = fail_errno(ERROR_IO, "%s: cannot read the file's size", path);
        goto done;
    }
    if (!S_ISREG(stat.st_mode)) {
        status = fail(ERROR_IO, "%s: expected a regular file", path);
        goto done;
    }
    size_t size = (size_t)stat.st_size;
    data = malloc(size + 1);
    if (!data) {
        status = fail(ERROR_MEMORY, "%s: no memory for its %zu bytes", path, size);
        goto done;
    }
    while (used < size) {
        ssize_t got = read(file, data + used, size - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = fail_errno(ERROR_IO, "%s: cannot read byte %zu", path, used);
            goto done;
        }
        if (got == 0)
            break; /* cut since fstat: what is there is parsed, and will say so */
        used += (size_t)got;
    }
    *text = data;
    *bytes = used;
    data = NULL;
done:
    free(data);
    close(file);
    return status;
}

enum result json_parse_file(struct json_document *document, const char *path, const struct json **root) {
    char *text = NULL;
    size_t bytes = 0;
    TRY(read_file(path, &text, &bytes));
    enum result status = json_parse(document, text, bytes, root);
    free(text);
    return status == OK ? OK : fail_context(status, "%s", path);
}

/* ---- access ---- */

const struct json *json_member(const struct json *value, const char *key) {
    if (!value || value->kind != JSON_OBJECT)
        return NULL;
    size_t bytes = strlen(key);
    for (const struct json *member = value->first; member; member = member->next) {
        if (member->key_bytes == bytes && !memcmp(member->key, key, bytes))
            return member;
    }
    return NULL;
}

static bool is_integer(const struct json *value) {
    return value && value->kind == JSON_NUMBER && !strpbrk(value->text, ".eE");
}

bool json_int64(const struct json *value, int64_t *number) {
    if (!is_integer(value))
        return false;
    errno = 0;
    long long parsed = strtoll(value->text, NULL, 10);
    if (errno)
        return false;
    *number = parsed;
    return true;
}

bool json_uint64(const struct json *value, uint64_t *number) {
    if (!is_integer(value))
        return false;
    if (value->text[0] == '-') { /* strtoull would wrap it around */
        if (strspn(value->text + 1, "0") != value->bytes - 1)
            return false;
        *number = 0;
        return true;
    }
    errno = 0;
    unsigned long long parsed = strtoull(value->text, NULL, 10);
    if (errno)
        return false;
    *number = parsed;
    return true;
}

bool json_double(const struct json *value, double *number) {
    if (!value || value->kind != JSON_NUMBER)
        return false;
    *number = strtod(value->text, NULL);
    return true;
}

bool json_is_text(const struct json *value, const char *text) {
    return value && value->kind == JSON_STRING && value->bytes == strlen(text) &&
           !memcmp(value->text, text, value->bytes);
}

const char *json_kind_name(const struct json *value) {
    static const char *const names[] = {
        [JSON_NULL] = "null",
        [JSON_FALSE] = "boolean",
        [JSON_TRUE] = "boolean",
        [JSON_NUMBER] = "number",
        [JSON_STRING] = "string",
        [JSON_ARRAY] = "array",
        [JSON_OBJECT] = "object",
    };
    return value ? names[value->kind] : "absent";
}

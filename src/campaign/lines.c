#include "campaign/lines.h"

#include <errno.h>  /* errno */
#include <fcntl.h>  /* open */
#include <stdlib.h> /* malloc, realloc, free */
#include <string.h> /* memchr, memmove */
#include <unistd.h> /* read */
#include <xxhash.h>

enum { FIRST_BYTES = 1 << 20, LEAST_READ = 1 << 16 };

struct line_reader {
    const char *const *files;
    int32_t count, file; /* file: the one being read */
    int fd;              /* -1: the next file is to be opened */
    int64_t line, bytes, file_bytes;
    char *data; /* unread bytes are [begin, end); no newline before `searched` */
    size_t capacity, begin, searched, end;
    bool at_end, skipping; /* at_end: of the file; skipping: inside a line that is too long */
    XXH3_state_t *hash;
};

enum result line_reader_create(const char *const *files, int32_t count, struct line_reader **reader) {
    struct line_reader *made = calloc(1, sizeof *made);
    *reader = made;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for reading the input");
    *made = (struct line_reader){.files = files, .count = count, .fd = -1, .capacity = FIRST_BYTES};
    made->data = malloc(made->capacity);
    made->hash = XXH3_createState();
    if (!made->data || !made->hash) {
        line_reader_free(made);
        *reader = NULL;
        return fail(ERROR_MEMORY, "out of memory for reading the input");
    }
    XXH3_128bits_reset(made->hash);
    return OK;
}

void line_reader_free(struct line_reader *reader) {
    if (!reader)
        return;
    if (reader->fd > STDIN_FILENO)
        close(reader->fd);
    XXH3_freeState(reader->hash);
    free(reader->data);
    free(reader);
}

static enum result open_file(struct line_reader *reader) {
    const char *path = reader->files[reader->file];
    reader->fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    if (reader->fd < 0)
        return fail_errno(ERROR_IO, "%s: cannot open the input file", path);
    reader->line = reader->file_bytes = 0;
    reader->begin = reader->searched = reader->end = 0;
    reader->at_end = reader->skipping = false;
    return OK;
}

static void close_file(struct line_reader *reader) {
    XXH3_128bits_update(reader->hash, &reader->file_bytes, sizeof reader->file_bytes);
    if (reader->fd > STDIN_FILENO)
        close(reader->fd);
    reader->fd = -1;
    reader->file++;
}

/* Reads more bytes behind those that are there. */
static enum result refill(struct line_reader *reader) {
    if (reader->begin) {
        memmove(reader->data, reader->data + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->searched -= reader->begin;
        reader->begin = 0;
    }
    if (reader->capacity - reader->end < LEAST_READ) {
        char *grown = realloc(reader->data, reader->capacity * 2);
        if (!grown)
            return fail(ERROR_MEMORY, "%s: out of memory for line %lld of more than %zu bytes",
                reader->files[reader->file], (long long)reader->line + 1, reader->end);
        reader->data = grown;
        reader->capacity *= 2;
    }
    ssize_t got;
    do
        got = read(reader->fd, reader->data + reader->end, reader->capacity - reader->end);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return fail_errno(ERROR_IO, "%s: cannot read the input file", reader->files[reader->file]);
    reader->at_end = got == 0;
    XXH3_128bits_update(reader->hash, reader->data + reader->end, (size_t)got);
    reader->end += (size_t)got;
    reader->bytes += got;
    reader->file_bytes += got;
    return OK;
}

static bool is_blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return true;
}

/* Hands out the bytes up to `end`; the next line begins at `next`. */
static void take_line(struct line_reader *reader, size_t end, size_t next, struct input_line *line) {
    *line = (struct input_line){.file = reader->file,
        .number = ++reader->line,
        .text = reader->data + reader->begin,
        .bytes = end - reader->begin,
        .too_long = reader->skipping || end - reader->begin > MOST_LINE_BYTES};
    line->blank = !line->too_long && is_blank(line->text, line->bytes);
    reader->skipping = false;
    reader->begin = reader->searched = next;
}

enum result line_reader_next(struct line_reader *reader, struct input_line *line, bool *more) {
    *more = true;
    for (;;) {
        if (reader->fd < 0) {
            if (reader->file >= reader->count) {
                *more = false;
                return OK;
            }
            TRY(open_file(reader));
        }
        char *newline = memchr(reader->data + reader->searched, '\n', reader->end - reader->searched);
        if (newline) {
            size_t at = (size_t)(newline - reader->data);
            take_line(reader, at, at + 1, line);
            return OK;
        }
        reader->searched = reader->end;
        if (reader->end - reader->begin > MOST_LINE_BYTES) {
            reader->skipping = true;
            reader->begin = reader->end;
        }
        if (reader->at_end) {
            if (reader->end > reader->begin || reader->skipping) {
                take_line(reader, reader->end, reader->end, line);
                return OK;
            }
            close_file(reader);
        } else {
            TRY(refill(reader));
        }
    }
}

enum result line_reader_drain(struct line_reader *reader) {
    for (; reader->file < reader->count; close_file(reader)) {
        if (reader->fd < 0)
            TRY(open_file(reader));
        while (!reader->at_end) {
            reader->begin = reader->searched = reader->end;
            TRY(refill(reader));
        }
    }
    return OK;
}

int64_t line_reader_bytes(const struct line_reader *reader) {
    return reader->bytes;
}

void line_reader_hash(const struct line_reader *reader, char digits[HASH_DIGITS + 1]) {
    XXH128_hash_t hash = XXH3_128bits_digest(reader->hash);
    format_hash_128(hash.high64, hash.low64, digits);
}

static enum result seen_grow(struct seen_set *set) {
    size_t capacity = set->capacity ? set->capacity * 2 : 1024;
    struct seen *slots = calloc(capacity, sizeof *slots);
    if (!slots)
        return fail(ERROR_MEMORY, "out of memory for %zu custom_ids", set->count);
    for (size_t i = 0; i < set->capacity; i++) {
        if (!set->slots[i].place)
            continue;
        size_t at = set->slots[i].low & (capacity - 1);
        while (slots[at].place)
            at = (at + 1) & (capacity - 1);
        slots[at] = set->slots[i];
    }
    free(set->slots);
    set->slots = slots;
    set->capacity = capacity;
    return OK;
}

enum result seen_add(
    struct seen_set *set, const char *text, size_t bytes, int32_t file, int64_t line, uint64_t *earlier) {
    *earlier = 0;
    if (set->count * 10 >= set->capacity * 7)
        TRY(seen_grow(set));
    XXH128_hash_t hash = XXH3_128bits(bytes ? text : "", bytes);
    size_t at = hash.low64 & (set->capacity - 1);
    for (; set->slots[at].place; at = (at + 1) & (set->capacity - 1))
        if (set->slots[at].low == hash.low64 && set->slots[at].high == hash.high64) {
            *earlier = set->slots[at].place;
            return OK;
        }
    set->slots[at] = (struct seen){hash.high64, hash.low64, (uint64_t)file << 40 | (uint64_t)line};
    set->count++;
    return OK;
}

void seen_free(struct seen_set *set) {
    free(set->slots);
    *set = (struct seen_set){0};
}
